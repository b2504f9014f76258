"""The name tables: reversible and complete; what does not fit is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch

from bertworks.checkpoints.hf_config import (
    FAMILIES,
    architecture_of,
    check_lm_head_act,
    component_names,
    config_from_huggingface,
    config_to_huggingface,
)
from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
from bertworks.errors import BertworksError
from bertworks.models.config import BERT_SIZES, EncoderConfig
from bertworks.training.objectives import PretrainingModel
from tests.support.refusals import refusal

CONFIG = EncoderConfig(
    vocab_size=60,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=20,
    max_position_embeddings=16,
)
HEADS = {"lm_head", "pooler", "next_sentence"}


def our_state(heads=HEADS):
    torch.manual_seed(0)
    state = PretrainingModel(CONFIG).state_dict()
    return {
        name: torch.randn_like(value)
        for name, value in state.items()
        if name.split(".")[0] in heads | {"encoder"}
    }


def their_state(heads=HEADS):
    return dict(to_huggingface(our_state(heads), CONFIG))


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


# --- names and shapes


@pytest.mark.parametrize(
    "heads",
    [HEADS, {"lm_head"}, {"pooler", "next_sentence"}, {"pooler"}, set()],
    ids=lambda heads: "+".join(sorted(heads)),
)
def test_there_and_back_is_where_we_were(heads):
    ours = our_state(heads)
    theirs = to_huggingface(ours, CONFIG)
    assert same(from_huggingface(theirs, CONFIG), ours)
    assert component_names(ours) == heads | {"encoder"}
    again = to_huggingface(from_huggingface(theirs, CONFIG), CONFIG)
    assert list(again) == list(theirs)


def test_their_names_are_theirs():
    ours = {"encoder", "pooler", "lm_head", "next_sentence"}
    assert set(their_state(set())) >= {
        "embeddings.LayerNorm.bias",
        "encoder.layer.1.attention.self.key.weight",
    }
    theirs = their_state(ours)
    assert "bert.embeddings.word_embeddings.weight" in theirs
    assert "bert.encoder.layer.0.output.dense.bias" in theirs
    assert "cls.seq_relationship.weight" in theirs
    assert not [name for name in theirs if "decoder" in name]


def test_query_key_and_value_are_distinguished():
    theirs = their_state()
    packed = from_huggingface(theirs, CONFIG)["encoder.blocks.1.attention.qkv.weight"]
    parts = [
        theirs[f"bert.encoder.layer.1.attention.self.{part}.weight"]
        for part in ("query", "key", "value")
    ]
    assert torch.equal(packed, torch.cat(parts))


def without_prefix(state):
    return {name.removeprefix("bert."): value for name, value in state.items()}


def with_old_norms(state):
    for today, old in (
        ("LayerNorm.weight", "LayerNorm.gamma"),
        ("LayerNorm.bias", "LayerNorm.beta"),
    ):
        state = {name.replace(today, old): value for name, value in state.items()}
    return state


def with_copies(state):
    return state | {
        "cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": state["cls.predictions.bias"].clone(),
        "bert.embeddings.position_ids": torch.arange(16)[None],
    }


def with_the_copy_only(state):
    state = state | {"cls.predictions.decoder.bias": state["cls.predictions.bias"]}
    return {name: value for name, value in state.items() if name != "cls.predictions.bias"}


@pytest.mark.parametrize(
    "change", [without_prefix, with_old_norms, with_copies, with_the_copy_only]
)
def test_older_files_are_read(change):
    assert same(from_huggingface(change(their_state()), CONFIG), our_state())


@pytest.mark.parametrize(
    ("head", "shape", "part"),
    [("classifier", 5, "classifier"), ("classifier", 1, "classifier"), ("qa_outputs", 2, "span")],
)
def test_heads_of_fine_tuned_models_are_read_and_named(head, shape, part):
    theirs = {f"bert.{name}": value for name, value in their_state(set()).items()}
    theirs |= {f"{head}.weight": torch.randn(shape, 8), f"{head}.bias": torch.randn(shape)}
    ours = from_huggingface(theirs, CONFIG)
    assert component_names(ours) == {"encoder", part}
    assert torch.equal(ours[f"{part}.weight"], theirs[f"{head}.weight"])
    assert same(to_huggingface(ours, CONFIG), theirs)


def test_the_class_fits_the_parts():
    assert architecture_of(our_state()) == "BertForPreTraining"
    assert architecture_of(our_state({"lm_head"})) == "BertForMaskedLM"
    assert (
        architecture_of(our_state({"pooler", "next_sentence"})) == "BertForNextSentencePrediction"
    )
    assert architecture_of(our_state({"pooler"})) == "BertModel"
    with pytest.raises(KeyError):
        architecture_of([*our_state(), "classifier.weight"])


@pytest.mark.parametrize("name", list(their_state()))
def test_a_missing_parameter_is_named(name):
    state = their_state()
    del state[name]
    with pytest.raises(
        BertworksError, match=rf"^file: incomplete: {name.removeprefix('bert.')} missing"
    ):
        from_huggingface(state, CONFIG, where="file")


@pytest.mark.parametrize("name", list(our_state()))
def test_an_incomplete_state_of_ours_is_not_written(name):
    state = our_state()
    del state[name]
    with pytest.raises(BertworksError, match=f"incomplete: {name} missing"):
        to_huggingface(state, CONFIG)


@pytest.mark.parametrize(
    "name",
    [
        "bert.encoder.layer.2.output.dense.bias",
        "bert.encoder.layer.01.output.dense.bias",
        "bert.encoder.layer.0.attention.self.distance_embedding.weight",
        "cls.predictions.extra",
        "classifier.dense.weight",
        "module.bert.pooler.dense.weight",
        "",
        "x" * 100_000,
    ],
)
def test_an_unknown_name_is_an_error_not_a_loss(name):
    with pytest.raises(BertworksError, match="no place") as raised:
        from_huggingface(their_state() | {name: torch.zeros(8)}, CONFIG)
    assert name[:100].removeprefix("bert.") in str(raised.value)
    assert len(str(raised.value)) < 1000
    with pytest.raises(BertworksError, match="no place"):
        to_huggingface(our_state() | {name: torch.zeros(8)}, CONFIG)


def test_many_unknown_names_are_counted():
    with pytest.raises(BertworksError, match="and 92 more"):
        from_huggingface(
            their_state() | {f"stranger{n}": torch.zeros(1) for n in range(100)}, CONFIG
        )


@pytest.mark.parametrize("name", list(their_state()))
def test_a_wrong_shape_or_kind_is_named(name):
    state = their_state()
    value = state[name]
    for wrong in (
        torch.cat([value, value[:1]]),
        value[:-1],
        value[None],
        value.flatten()[0],
        value.to(torch.int64),
        value.new_empty(0),
        value.to(torch.complex64),
    ):
        with pytest.raises(BertworksError, match=name.removeprefix("bert.")):
            from_huggingface(state | {name: wrong}, CONFIG)


@pytest.mark.parametrize("name", list(our_state()))
def test_a_wrong_shape_of_ours_is_named(name):
    state = our_state()
    with pytest.raises(BertworksError, match=name):
        to_huggingface(state | {name: torch.cat([state[name], state[name][:1]])}, CONFIG)


def test_two_names_for_one_parameter_contradict():
    state = their_state()
    with pytest.raises(BertworksError, match=r"two tensors are both pooler\.dense\.bias"):
        from_huggingface(state | {"pooler.dense.bias": torch.zeros(8)}, CONFIG)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("copy", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_a_copy_that_is_none_is_refused(copy, kind):
    state = with_copies(their_state())
    with pytest.raises(BertworksError, match=f"{copy} differs"):
        from_huggingface(state | {copy: state[copy].to(kind) + 1}, CONFIG)


# --- config.json


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("size", BERT_SIZES)
def test_a_configuration_comes_back(size, activation):
    config = replace(
        BERT_SIZES[size],
        hidden_act=activation,
        hidden_dropout=0.0,
        type_vocab_size=3,
        layer_norm_eps=1e-5,
    )
    written = config_to_huggingface(config, architectures=["BertForPreTraining"], pad_token_id=7)
    read = config_from_huggingface(json.loads(json.dumps(written)))
    assert read == replace(config, intermediate_size=config.ffn_size)
    assert written["pad_token_id"] == 7
    assert (
        written["hidden_act"]
        == {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}[activation]
    )


def test_every_field_is_written_with_its_type():
    written = config_to_huggingface(CONFIG, architectures=("BertForMaskedLM",))
    assert list(written) == sorted(written)
    kinds = {name: type(value) for name, value in written.items()}
    assert kinds == {
        "add_cross_attention": bool,
        "architectures": list,
        "attention_probs_dropout_prob": float,
        "bos_token_id": type(None),
        "classifier_dropout": type(None),
        "dtype": str,
        "eos_token_id": type(None),
        "hidden_act": str,
        "hidden_dropout_prob": float,
        "hidden_size": int,
        "initializer_range": float,
        "intermediate_size": int,
        "is_decoder": bool,
        "layer_norm_eps": float,
        "max_position_embeddings": int,
        "model_type": str,
        "num_attention_heads": int,
        "num_hidden_layers": int,
        "pad_token_id": int,
        "tie_word_embeddings": bool,
        "type_vocab_size": int,
        "use_cache": bool,
        "vocab_size": int,
    }


def test_what_a_file_does_not_say_is_bert_base():
    assert config_from_huggingface({"model_type": "bert"}) == EncoderConfig(
        vocab_size=30522, intermediate_size=3072
    )


def test_unknown_keys_are_ignored_and_whole_numbers_may_be_rates():
    read = config_from_huggingface(
        {
            "model_type": "bert",
            "_name_or_path": "x",
            "auto_map": {"AutoModel": "evil.Evil"},
            "hidden_dropout_prob": 0,
        }
    )
    assert read.hidden_dropout == 0.0
    assert type(read.hidden_dropout) is float


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("gelu", "gelu"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("relu", "relu"),
        ("gelu_python", "gelu"),
        ("gelu_fast", "gelu_tanh"),
    ],
)
def test_the_two_gelus_are_distinguished(theirs, ours):
    assert config_from_huggingface({"model_type": "bert", "hidden_act": theirs}).hidden_act == ours


ABSURD = [
    ("num_hidden_layers", 10**9),
    ("num_hidden_layers", 10**4000),
    ("num_hidden_layers", -1),
    ("num_hidden_layers", 0),
    ("hidden_size", 770),
    ("hidden_size", 768.0),
    ("hidden_size", "768"),
    ("hidden_size", None),
    ("hidden_size", True),
    ("hidden_size", 12 * 10**8),
    ("vocab_size", 10**12),
    ("vocab_size", 0),
    ("num_attention_heads", 7),
    ("num_attention_heads", 0),
    ("intermediate_size", [3072]),
    ("intermediate_size", 10**10),
    ("max_position_embeddings", 2**40),
    ("type_vocab_size", -2),
    ("hidden_dropout_prob", 1.0),
    ("hidden_dropout_prob", -0.1),
    ("hidden_dropout_prob", "0.1"),
    ("hidden_dropout_prob", math.nan),
    ("attention_probs_dropout_prob", math.inf),
    ("attention_probs_dropout_prob", True),
    ("layer_norm_eps", -1e-12),
    ("layer_norm_eps", math.nan),
    ("layer_norm_eps", {}),
    ("initializer_range", 1e9),
    ("hidden_act", "swish"),
    ("hidden_act", 3),
    ("hidden_act", ["gelu"]),
    ("hidden_act", "x" * 10**6),
    ("is_decoder", 3),
    ("position_embedding_type", "relative_key"),
    ("model_type", "t5"),
    ("model_type", None),
    ("model_type", 1),
]


@pytest.mark.parametrize(
    ("name", "value"), ABSURD, ids=[f"{name}-{number}" for number, (name, _) in enumerate(ABSURD)]
)
def test_an_absurd_configuration_is_refused(name, value):
    with pytest.raises(BertworksError) as raised:
        config_from_huggingface({"model_type": "bert", name: value}, where="folder/config.json")
    words = name.removesuffix("_prob").removeprefix("num_").replace("_", " ")
    assert words in str(raised.value).replace("_", " ")
    assert str(raised.value).startswith("folder/config.json: ")
    assert len(str(raised.value)) < 500


def test_a_configuration_of_2019_is_known_by_its_class():
    assert config_from_huggingface({"architectures": ["BertForMaskedLM"]}).num_hidden_layers == 12
    for named in (
        ["RobertaForMaskedLM"],
        ["BertModel", "GPT2Model"],
        [],
        "BertModel",
        None,
        [None],
    ):
        with pytest.raises(BertworksError, match="there is no model_type"):
            config_from_huggingface({"architectures": named})


@pytest.mark.parametrize("content", [{}, {"hidden_size": 8}, [], "bert", None])
def test_what_is_no_configuration_is_refused(content):
    with pytest.raises(BertworksError, match="there is no model_type"):
        config_from_huggingface(content)


@pytest.mark.parametrize(
    ("fields", "what", "hint"),
    [
        ({"family": "xlm", "type_vocab_size": 1}, "a table of one type", "use type_vocab_size 0"),
        (
            {"family": "roberta", "hidden_dropout": 0.1, "choice_dropout": 0.5},
            "encoder.choice_dropout is 0.5: in roberta it is hidden_dropout",
            "--set encoder.choice_dropout=0.1",
        ),
        (
            {"pooler_dropout": True},
            "encoder.pooler_dropout is True: files of bert can only hold False",
            "--set encoder.pooler_dropout=false",
        ),
        (
            {"family": "albert", "embedding_size": 8},
            "encoder.embedding_size and encoder.hidden_size are both 8",
            "--set encoder.embedding_size=4",
        ),
        (
            {"family": "xlm", "type_vocab_size": 0, "hidden_act": "silu"},
            "encoder.hidden_act is 'silu': files of xlm cannot name it",
            "use relu or gelu",
        ),
    ],
)
def test_a_network_that_files_of_its_family_cannot_hold_is_refused(fields, what, hint):
    family = fields.get("family", "bert")
    default = FAMILIES[family].default_of(False)
    with refusal(what, hint):
        config_to_huggingface(
            replace(
                default, **{"hidden_size": 8, "num_attention_heads": 2, "family": family} | fields
            ),
            architectures=(),
            pad_token_id=FAMILIES[family].required.get("pad_token_id", 0),
        )


def test_a_head_with_another_activation_than_those_of_its_family_is_refused():
    config = replace(CONFIG, hidden_act="relu", lm_head_act="gelu_tanh")
    with refusal("the head for masked tokens has the activation 'gelu_tanh'", "lm_head_act=relu"):
        check_lm_head_act(config)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"model_type": "bert", "lm_head_act": "cube"}, "lm_head_act is 'cube': expected one of"),
        (
            {"model_type": "xlm", "n_langs": 2, "lang2id": {"en": 0, "de": 7}},
            "expected a number from 0 for each name",
        ),
    ],
)
def test_settings_that_are_none_of_their_kind_are_refused(settings, what):
    with refusal(what, "correct the file, or get it again"):
        config_from_huggingface(settings)
