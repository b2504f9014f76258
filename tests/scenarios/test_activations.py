"""Activation functions against transformers: every one that a config.json can name, in the layers
and in each head of each family; and the head for masked tokens of a RoBERTa that an earlier version
of bertworks trained.

Tiny random networks; every parameter is perturbed, biases and norms included.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers.activations import ACT2FN
from transformers.models.openai.modeling_openai import ACT_FNS

from bertworks.checkpoints.hf_config import FAMILIES, check_lm_head_act, config_from_huggingface
from bertworks.checkpoints.hf_mapping import UNUSED_POSITIONS, from_huggingface, to_huggingface
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.errors import BertworksError
from bertworks.interop.convert import convert
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.heads import LMHead, Pooler, TokenHead
from bertworks.models.layers import ACTIVATIONS
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder
from bertworks.text.tokenizer import Tokenizer

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
SMALL_GPT = {
    "vocab_size": 40,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 20,
    "pad_token_id": 0,
}
SIZES = {
    "bert": SMALL,
    "roberta": {**SMALL, "type_vocab_size": 1},
    "distilbert": {
        "vocab_size": 40,
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "max_position_embeddings": 20,
    },
    "albert": {**SMALL, "embedding_size": 8},
    "electra": {**SMALL, "embedding_size": 8},
    "gpt2": {**SMALL_GPT, "bos_token_id": 0, "eos_token_id": 0},
    "openai-gpt": SMALL_GPT,
    "xlm": {
        "vocab_size": 40,
        "emb_dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "max_position_embeddings": 20,
    },
}
# The setting that names the activation, and the beginning of the names of the classes.
SETTINGS = {
    "bert": ("hidden_act", "Bert"),
    "roberta": ("hidden_act", "Roberta"),
    "distilbert": ("activation", "DistilBert"),
    "albert": ("hidden_act", "Albert"),
    "electra": ("hidden_act", "Electra"),
    "gpt2": ("activation_function", "GPT2"),
    "openai-gpt": ("afn", "OpenAIGPT"),
    "xlm": ("gelu_activation", "XLM"),
}
FINE_TUNED = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
HEADS = {
    "bert": ("ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction", *FINE_TUNED),
    "roberta": ("ForMaskedLM", *FINE_TUNED),
    "distilbert": ("ForMaskedLM", *FINE_TUNED),
    "albert": ("ForPreTraining", "ForMaskedLM", *FINE_TUNED),
    "electra": ("ForPreTraining", "ForMaskedLM", *FINE_TUNED),
    "gpt2": ("LMHeadModel", "ForSequenceClassification"),
    "openai-gpt": ("LMHeadModel", "ForSequenceClassification"),
    "xlm": (
        "WithLMHeadModel",
        "ForSequenceClassification",
        "ForTokenClassification",
        "ForQuestionAnsweringSimple",
    ),
}
NAMES: dict[str, tuple[str | bool, ...]] = dict.fromkeys(SIZES, ("gelu", "gelu_new", "relu"))
NAMES |= {"openai-gpt": ("gelu", "relu"), "xlm": (True, False)}
CASES = [
    (family, name, kind) for family in SIZES for name in NAMES[family] for kind in HEADS[family]
]
IDS = torch.tensor([7, 31, 12, 9, 25, 38, 6])
LAYOUT = Layout.of([len(IDS)])


def perturbed_model(family: str, activation: str | bool, kind: str) -> torch.nn.Module:
    """A model of transformers, far from zero biases: logits of different activations then differ
    clearly."""
    setting, beginning = SETTINGS[family]
    config = transformers.AutoConfig.for_model(family, **{**SIZES[family], setting: activation})
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(transformers, beginning + kind)(config)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def load_part(module: torch.nn.Module, state: dict[str, Tensor], prefix: str) -> torch.nn.Module:
    module.load_state_dict(
        {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    )
    return module.eval()


def logits_of_bertworks(config: EncoderConfig, state: dict[str, Tensor], kind: str) -> list[Tensor]:
    """The logits of each head of the state, in the order of the outputs of transformers."""
    state = {name: value for name, value in state.items() if name != UNUSED_POSITIONS}
    encoder = load_part(Encoder(config), state, "encoder.")
    types = None if config.type_vocab_size == 0 else torch.zeros_like(IDS)
    states = encoder(IDS, LAYOUT, types)[-1]
    components = {name.split(".")[0] for name in state}
    results: list[Tensor] = []
    if "lm_head" in components or kind.endswith("LMHeadModel"):
        head = load_part(LMHead(config), state, "lm_head.")
        results.append(head(states, encoder.embeddings.token.weight))
    if "replaced_token" in components:
        results.append(load_part(TokenHead(config), state, "replaced_token.")(states))
    if "span" in components:
        spans = torch.nn.functional.linear(states, state["span.weight"], state["span.bias"])
        results += [spans[:, 0], spans[:, 1]]
    sequence_heads = components & {"classifier", "next_sentence", "sentence_order"}
    if sequence_heads and kind != "ForTokenClassification":
        pooler = Pooler(config)
        states = load_part(pooler, state, "pooler.")(states[pooler.tokens(LAYOUT).long()])
    for head in sequence_heads:
        results.append(
            torch.nn.functional.linear(states, state[f"{head}.weight"], state.get(f"{head}.bias"))
        )
    return results


@pytest.mark.parametrize(("family", "activation", "kind"), CASES)
def test_every_head_has_the_activation_of_transformers(
    family: str, activation: str | bool, kind: str
) -> None:
    model = perturbed_model(family, activation, kind)
    config = config_from_huggingface(json.loads(model.config.to_json_string(use_diff=False)))
    state = from_huggingface(model.state_dict(), config)
    ids = IDS[None, None] if kind == "ForMultipleChoice" else IDS[None]
    with torch.no_grad():
        output = model(ids)
        logits = logits_of_bertworks(config, state, kind)
    expected = [value for name, value in output.items() if "logits" in name]
    assert len(logits) == len(expected) > 0
    for values, expected_values in zip(logits, expected, strict=True):
        assert (values.flatten() - expected_values.flatten()).abs().max() <= 2e-5


@pytest.mark.parametrize("family", [family for family in SIZES if family != "xlm"])
def test_every_name_of_an_activation_is_the_same_function_or_refused(family: str) -> None:
    """All names of transformers: no name is read as another function."""
    setting, _ = SETTINGS[family]
    functions = ACT_FNS if family == "openai-gpt" else ACT2FN
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    supported = {*FAMILIES[family].activations}
    assert {"gelu", "relu"} <= supported <= {*functions}
    for name in functions:
        settings = {"model_type": family, **SIZES[family], setting: name}
        if name in supported:
            function = (
                ACT_FNS[name]
                if family == "openai-gpt"
                else transformers.activations.get_activation(name)
            )
            config = config_from_huggingface(settings)
            assert (ACTIVATIONS[config.hidden_act](x) - function(x)).abs().max() <= 1e-6
        else:
            with pytest.raises(BertworksError, match=f"^{setting} is '{name}': expected one of"):
                config_from_huggingface(settings)


# --- the head for masked tokens of networks that bertworks 0.1.0 trained


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz.,!?", "<mask>"]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}
    settings = {**names, "mask_token": "<mask>", "do_lower_case": True, "model_max_length": 18}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.load(folder)


def folder_of_first_version(
    folder: Path, tokenizer: Tokenizer, activation: str
) -> dict[str, Tensor]:
    """A folder as bertworks 0.1.0 wrote it: config.json is known by its null bos_token_id. Returns
    the weights."""
    model = perturbed_model("roberta", activation, "ForMaskedLM")
    settings = json.loads(model.config.to_json_string(use_diff=False)) | {
        "architectures": ["RobertaForMaskedLM"]
    }
    for name in ("transformers_version", "id2label", "label2id", "problem_type"):
        settings.pop(name, None)
    settings |= {"bos_token_id": None, "eos_token_id": None, "dtype": "float32"}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    state = from_huggingface(model.state_dict(), config_from_huggingface(settings))
    weights = to_huggingface(state, config_from_huggingface(settings))
    tensors = {name: value.contiguous().clone() for name, value in weights.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    tokenizer.save(folder)
    return state


@pytest.mark.parametrize(("activation", "expected"), [("relu", "relu"), ("gelu_new", "gelu_tanh")])
def test_a_roberta_of_the_first_version_keeps_its_function(
    activation: str, expected: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    """Its head has the activation of its layers. transformers refuses it by name after it is
    written again."""
    state = folder_of_first_version(tmp_path / "first", tokenizer, activation)
    config = load_model(tmp_path / "first").config
    assert config.lm_head_activation == config.hidden_act == expected
    logits = logits_of_bertworks(config, state, "ForMaskedLM")
    gelu_logits = logits_of_bertworks(replace(config, lm_head_act="gelu"), state, "ForMaskedLM")
    assert (logits[0] - gelu_logits[0]).abs().max() > 1e-4
    list(convert(tmp_path / "first", tmp_path / "again"))
    settings = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (settings["model_type"], settings["lm_head_act"]) == ("bertworks-roberta", expected)
    with pytest.raises(ValueError, match="bertworks-roberta"):
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again")
    assert "library_name: bertworks" in (tmp_path / "again" / "README.md").read_text()
    converted = load_model(tmp_path / "again")
    assert converted.config == config
    converted_logits = logits_of_bertworks(converted.config, converted.state, "ForMaskedLM")
    assert torch.equal(logits[0], converted_logits[0])


def test_without_the_head_the_folder_is_an_ordinary_roberta(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    folder_of_first_version(tmp_path / "first", tokenizer, "relu")
    config, state, _ = load_model(tmp_path / "first")
    body = {name: value for name, value in state.items() if not name.startswith("lm_head.")}
    save_model(tmp_path / "body", body, config, tokenizer, card="")
    settings = json.loads((tmp_path / "body" / "config.json").read_text())
    assert (settings["model_type"], settings["architectures"]) == ("roberta", ["RobertaModel"])
    assert "lm_head_act" not in settings
    assert transformers.AutoModel.from_pretrained(tmp_path / "body").config.hidden_act == "relu"


@pytest.mark.parametrize(
    ("activation", "head"), [("gelu", ""), ("relu", "gelu"), ("gelu_new", "gelu")]
)
def test_a_roberta_of_transformers_has_gelu_in_its_head(activation: str, head: str) -> None:
    settings = transformers.RobertaConfig(**SIZES["roberta"], hidden_act=activation).to_dict()
    assert config_from_huggingface(settings).lm_head_act == head
    assert config_from_huggingface(settings | {"bos_token_id": None}).lm_head_act == head
    del settings["bos_token_id"], settings["transformers_version"]
    assert config_from_huggingface(settings).lm_head_act == head


def test_a_damaged_name_of_the_activation_of_the_head_is_refused() -> None:
    settings = {"model_type": "bertworks-roberta", **SIZES["roberta"], "lm_head_act": "tanh"}
    with pytest.raises(
        BertworksError, match="lm_head_act is 'tanh': expected one of gelu, gelu_tanh, relu"
    ):
        config_from_huggingface(settings)


def test_a_new_training_has_the_head_of_its_family() -> None:
    for config in PRESETS.values():
        check_lm_head_act(config)
    with pytest.raises(
        BertworksError,
        match=r"the head for masked tokens has the activation 'relu': in roberta with hidden_act "
        r"'relu' it is 'gelu'\n"
        r"  hint: --set encoder\.lm_head_act=gelu",
    ):
        check_lm_head_act(replace(PRESETS["roberta-base"], hidden_act="relu"))
    check_lm_head_act(replace(PRESETS["roberta-base"], hidden_act="relu", lm_head_act="gelu"))
    with pytest.raises(BertworksError, match="in bert with hidden_act 'relu' it is 'relu'"):
        check_lm_head_act(replace(PRESETS["bert-base"], hidden_act="relu", lm_head_act="gelu"))
