"""Every field of the configuration classes of transformers is honoured, refused by name, or listed
as without effect.

The classes are those of the families that open; their fields are found by introspection, so that a
new one is noticed.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.checkpoints import hf_mapping
from bertworks.checkpoints.hf_config import FAMILIES, REQUIRED, config_from_huggingface
from bertworks.checkpoints.model_folder import load_model
from bertworks.config import packaged_table
from bertworks.errors import BertworksError
from tests.support.gpt import write_gpt2

TABLE = packaged_table(hf_mapping.__file__, "other_fields.toml")
CLASSES = {
    name: type(transformers.AutoConfig.for_model(name))
    for name, family in FAMILIES.items()
    # static vectors have no config.json that anything reads
    if not family.has_own_names and name != "static"
}
HEADS = {
    "bert": "BertForPreTraining",
    "roberta": "RobertaForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "albert": "AlbertForPreTraining",
    "electra": "ElectraForPreTraining",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "gpt2": "GPT2LMHeadModel",
    "xlm": "XLMWithLMHeadModel",
    "xlm-roberta": "XLMRobertaForMaskedLM",
    "camembert": "CamembertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "marian": "MarianMTModel",
    "modernbert": "ModernBertForMaskedLM",
    "xlnet": "XLNetLMHeadModel",
    "deberta-v2": "DebertaV2ForSequenceClassification",
}
LAYERS = ["full_attention", "sliding_attention"]
# other values of the keys of ModernBERT that need a certain form
OTHERS = {
    "classifier_pooling": "mean",
    "global_attn_every_n_layers": 2,
    "layer_types": LAYERS[:1] * 2 + LAYERS[1:] * 20,
    "rope_parameters": {kind: {"rope_theta": 7.0} for kind in LAYERS},
    "layer_norm_eps": 0.5,
    "norm_eps": 0.25,
}


def fields_of(name: str) -> dict[str, Any]:
    """The fields of a class with their defaults, those of its base classes and of its aliases
    included."""
    default = CLASSES[name]()
    fields = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    fields |= default.to_dict()
    if FAMILIES[name].stated:  # without these the default is a network that is refused
        fields |= FAMILIES[name].stated | {"position_buckets": 256}
    return fields


def without_effect(name: str) -> dict[str, str]:
    return TABLE["without_effect"]["every_family"] | TABLE["without_effect"].get(name, {})


def other_value(name: str, value: Any) -> Any:
    """Another value of the same kind, which a network can have."""
    if isinstance(value, bool):
        return not value
    if name == "pad_token_id" and (value or 0) > 1000:  # a token that a small network has
        return 1
    if name == "max_relative_positions":  # below 1 it is the longest sequence
        return 300
    if isinstance(value, int):
        return value * 2 if value else 3
    if isinstance(value, float):
        return value / 2 if value else 0.25
    special = {"n_inner": 96, "classifier_dropout": 0.25, "summary_activation": "tanh"}
    special["cls_dropout"] = 0.25
    if name in special:
        return special[name]
    return "relu" if isinstance(value, str) else 3


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_has_its_place(name: str) -> None:
    family = FAMILIES[name]
    places = [
        {*family.settings, *family.equal, *family.quotients},
        {*family.required, *family.required_null, *family.stated, *REQUIRED},
        {*TABLE["elsewhere"]} - {*family.required},
        {*without_effect(name)} - {*family.required},
    ]
    fields = fields_of(name)
    assert len(fields) > 20
    assert fields.keys() - set().union(*places) == set()
    assert sum(map(len, places)) == len(set().union(*places)), "a field in two places"
    assert all(without_effect(name).values())


@pytest.mark.parametrize("name", CLASSES)
def test_an_honoured_field_changes_the_network(name: str) -> None:
    family = FAMILIES[name]
    fields = fields_of(name)
    fields |= {"n_langs": 4, "use_lang_emb": True} if name == "xlm" else {}
    for key in (*family.equal, *family.quotients):  # they follow other fields
        del fields[key]
    if name == "modernbert":  # written in the older layout
        for key in ("layer_types", "rope_parameters", "norm_eps"):
            del fields[key]
    default = config_from_huggingface(fields)
    for key in family.settings:
        value = (
            {"en": 0, "de": 1, "fr": 2, "it": 3}
            if key == "lang2id"
            else other_value(key, fields.get(key))
        )
        if name == "modernbert":
            value = OTHERS.get(key, 3 if key.endswith("theta") else value)
        if key == "clamp_len":
            value = 3
        changed = {key: "2"} if key == "language" else {key: value}
        assert config_from_huggingface(fields | changed) != default, key


@pytest.mark.parametrize("name", CLASSES)
def test_another_value_of_a_required_field_is_refused_by_name(name: str) -> None:
    family = FAMILIES[name]
    fields = fields_of(name)
    required = {**REQUIRED, **family.required, **dict.fromkeys(family.required_null)}
    required |= family.stated
    for key, value in required.items():
        refused_value = {"0": [1]} if value == {} else other_value(key, value)
        refused_value = "relu" if refused_value == value else refused_value
        with pytest.raises(BertworksError, match=f"^{key} is .*: only .* is supported"):
            config_from_huggingface(fields | {key: refused_value})


@pytest.mark.parametrize("name", CLASSES)
def test_a_field_without_effect_has_none_in_transformers(name: str) -> None:
    """The same weights under another value give the same logits there; and the same configuration
    here."""
    family = FAMILIES[name]
    small: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    small |= {"intermediate_size": 32, "max_position_embeddings": 20, "embedding_size": 8}
    sizes = {key: small[field] for key, field in family.settings.items() if field in small}
    if name == "gpt2":
        sizes["n_inner"] = 32
    if name == "modernbert":
        sizes |= {"pad_token_id": 0}
    if family.stated:
        sizes |= {**family.stated, "position_buckets": 8}
    if name == "marian":
        sizes |= {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
        sizes |= {"pad_token_id": 0, "decoder_start_token_id": 0}

    def model_of(**changed: Any) -> Any:
        config = CLASSES[name](**sizes | changed)
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        return getattr(transformers, HEADS[name])(config).eval()

    reference = model_of()
    for parameter in reference.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    inputs = {"input_ids": torch.tensor([[9, 17, 25, 33, 41]])}
    if name == "marian":
        inputs["decoder_input_ids"] = inputs["input_ids"]
    with torch.no_grad():
        expected = reference(**inputs)[0]
    read = config_from_huggingface(reference.config.to_dict())
    fields = fields_of(name)
    of_the_call = {"output_hidden_states", "output_attentions", "return_dict"}
    for key in {*without_effect(name)} & {*fields} - {*family.required} - of_the_call:
        if isinstance(fields[key], str) or key == "dtype":
            changed: dict[str, Any] = {key: "last" if key == "summary_type" else None}
        else:
            changed = {key: other_value(key, fields[key])}
        if key == "chunk_size_feed_forward":
            changed[key] = 1
        model = model_of(**changed)
        model.load_state_dict(reference.state_dict())
        with torch.no_grad():
            assert (model(**inputs)[0] - expected).abs().max() <= 1e-5, key
        assert config_from_huggingface(reference.config.to_dict() | changed) == read, key


# --- an output layer that is said to be its own, and is not there


def untie(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), "tie_word_embeddings": False, **settings}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("classes", [["GPT2LMHeadModel"], None])
def test_a_gpt2_without_its_output_layer_is_refused(
    classes: list[str] | None, tmp_path: Path
) -> None:
    write_gpt2(tmp_path)
    untie(tmp_path, architectures=classes)
    with pytest.raises(
        BertworksError, match=r"tie_word_embeddings is false, but there is no lm_head\.weight"
    ):
        load_model(tmp_path)
    with pytest.raises(BertworksError, match="the output layer is missing"):
        list(bw.generate(tmp_path, ["a"], device="cpu"))


def test_the_body_of_an_untied_gpt2_opens_and_does_not_predict_tokens(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    untie(tmp_path, architectures=["GPT2Model"])
    assert bw.embed(tmp_path, ["a dog"], device="cpu").shape == (1, 24)
    with pytest.raises(BertworksError, match="the output layer is missing"):
        list(bw.generate(tmp_path, ["a"], device="cpu"))


def test_an_output_layer_that_equals_the_embeddings_is_read(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    network = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, tie_word_embeddings=False)
    network.lm_head.weight.data.copy_(network.transformer.wte.weight)
    network.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False
    assert len(list(bw.generate(tmp_path, ["a"], max_tokens=2, device="cpu"))) == 1
    network.lm_head.weight.data[3] += 1
    network.save_pretrained(tmp_path)
    with pytest.raises(
        BertworksError, match="only models with an output layer tied to the embeddings"
    ):
        load_model(tmp_path)


def test_a_bert_with_a_head_and_without_its_output_layer_is_refused(
    model: Path, tmp_path: Path
) -> None:
    for file in model.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    untie(tmp_path)
    with pytest.raises(BertworksError, match=r"there is no cls\.predictions\.decoder\.weight"):
        load_model(tmp_path)
    untie(tmp_path, tie_word_embeddings="no")
    with pytest.raises(BertworksError, match="tie_word_embeddings is 'no': expected true or false"):
        load_model(tmp_path)
