"""Folders of networks that transformers does not have: our own names and settings in both
directions, and hostile files."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.hf_config import (
    FAMILIES,
    check_representable,
    config_from_huggingface,
    config_to_huggingface,
)
from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.checkpoints.storage import read_tensors, write_weights
from bertworks.errors import BertworksError
from bertworks.models.config import EncoderConfig
from bertworks.models.settings import DecoderConfig
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from bertworks.training.objectives import PretrainingModel
from tests.models.test_recurrent import CONFIG as LSTM_CONFIG, each_decoder
from tests.support.refusals import refusal

CONFIG = EncoderConfig(
    family="native",
    vocab_size=300,
    hidden_size=16,
    embedding_size=8,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=24,
    max_position_embeddings=40,
    hidden_act="gelu_tanh",
    layer_norm_eps=1e-6,
    sequence_dropout=0.25,
    decoder=DecoderConfig(num_hidden_layers=3),
)


def state_of(config: EncoderConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    network = PretrainingModel(config, {"translation": 1.0})
    return {name: torch.randn_like(p) for name, p in network.named_parameters()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator with the parts of a BERT, which has random weights."""
    folder = tmp_path_factory.mktemp("native")
    lines = [f"the line number {n} of many lines" for n in range(100)]
    vocabulary = VocabularyConfig(
        size=300, algorithm="bpe", lowercase=False, special_tokens="roberta"
    )
    tokenizer, _ = train_vocabulary(lines, vocabulary)
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size)
    save_model(folder / "model", state_of(config), config, tokenizer, card="")
    return folder / "model"


def settings(**fields: Any) -> dict[str, Any]:
    """The content of a config.json, with other fields in the table "encoder"."""
    content = config_to_huggingface(CONFIG, architectures=["BertworksTranslator"])
    content = json.loads(json.dumps(content))
    return content | {"encoder": content["encoder"] | fields}


def test_a_folder_keeps_every_field_and_every_parameter(folder: Path):
    config, state, tokenizer = load_model(folder)
    expected = replace(CONFIG, vocab_size=tokenizer.vocab_size)
    assert config == expected
    content = json.loads((folder / "config.json").read_text())
    assert content["model_type"] == "bertworks-native"
    assert content["architectures"] == ["BertworksTranslator"]
    assert content["eos_token_id"] == tokenizer.template.suffix[-1]
    assert content["decoder_start_token_id"] == tokenizer.start_id
    assert content["pad_token_id"] == tokenizer.pad_id
    fields = {name: value for name, value in vars(config).items() if value is not None}
    assert content["encoder"].keys() == fields.keys()
    tensors = state_of(expected)
    assert state.keys() == tensors.keys() == read_tensors(folder / "model.safetensors").keys()
    assert all(torch.equal(state[name], value) for name, value in tensors.items())


def test_a_converted_folder_is_the_same(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path / "source")
    (tmp_path / "source" / "README.md").unlink()  # another card is written then
    list(bw.convert(tmp_path / "source", tmp_path / "copy"))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    assert "library_name: bertworks" in (tmp_path / "copy" / "README.md").read_text()
    translator = bw.load(tmp_path / "copy")
    assert translator.can == ("explain", "translate")
    (answer,) = translator.translate(["the line"], max_tokens=3)
    assert len(answer["ids"]) <= 3


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"hidden_size": 10**9}, "encoder: hidden_size is 1000000000"),
        ({"num_hidden_layers": -1}, "encoder: num_hidden_layers is -1"),
        ({"num_hidden_layers": True}, "encoder.num_hidden_layers: expected int, got True"),
        ({"vocab_size": "8"}, "encoder.vocab_size: expected int, got '8'"),
        ({"hidden_dropout": None}, "encoder.hidden_dropout: expected float, got None"),
        ({"hidden_dropout": float("nan")}, "encoder: hidden_dropout is nan"),
        ({"hidden_act": ["gelu"]}, "encoder.hidden_act: ['gelu'] is none of 'gelu'"),
        ({"secret": 1}, "encoder.secret: no such field"),
        ({"family": "marian"}, "encoder.family is 'marian': expected 'native'"),
        ({"decoder": {"num_hidden_layers": 10**9}}, "num_hidden_layers of the decoder is 1000"),
        ({"decoder": {"secret": 1}}, "encoder.decoder.secret: no such field"),
        ({"decoder": [1]}, "encoder.decoder: expected a table, got [1]"),
    ],
)
def test_other_values_are_refused_by_name(fields: dict[str, Any], what: str):
    with pytest.raises(BertworksError) as error:
        config_from_huggingface(settings(**fields), where="config.json")
    assert what in error.value.what
    assert error.value.where == "config.json"
    assert error.value.hint


@pytest.mark.parametrize("table", [None, [], "encoder", 3])
def test_a_file_without_the_table_is_refused(table: object):
    with pytest.raises(BertworksError, match="encoder: expected a table"):
        config_from_huggingface(settings() | {"encoder": table})


def test_networks_of_spellings_have_files_of_their_own():
    elmo = FAMILIES["elmo"].default
    check_representable(elmo, 0)
    for config in (replace(elmo, family="native"), replace(CONFIG, family="elmo", decoder=None)):
        with refusal("files of 'elmo' are for networks of this kind", "another family"):
            check_representable(config, 0)


def test_files_for_relative_positions_hold_no_others():
    with refusal("such files are for networks with 'relative'", "position_embedding_type=relative"):
        check_representable(EncoderConfig(vocab_size=30, family="transformer-xl"), 0)


def test_a_network_without_a_decoder_has_another_family():
    with pytest.raises(BertworksError, match="such files are for translators"):
        check_representable(replace(CONFIG, decoder=None), 0)
    content = settings()
    del content["encoder"]["decoder"]
    with pytest.raises(BertworksError, match="there is no decoder"):
        config_from_huggingface(content)


def test_tensors_are_those_of_the_network():
    state = state_of(CONFIG)
    tensors = to_huggingface(state, CONFIG)
    assert all(torch.equal(tensors[name], value) for name, value in state.items())
    name = "decoder.blocks.2.cross_attention.key_value.weight"
    wrong = tensors | {name: tensors[name][:, 1:]}
    with pytest.raises(BertworksError, match=r"\[32, 15\], but the configuration expects .*32, 16"):
        from_huggingface(wrong, CONFIG)
    without = {other: value for other, value in tensors.items() if other != name}
    with pytest.raises(BertworksError, match=f"incomplete: {name} missing"):
        from_huggingface(without, CONFIG)
    more = tensors | {"decoder.blocks.3.attention.qkv.bias": torch.zeros(48)}
    with pytest.raises(BertworksError, match=r"decoder\.blocks\.3\.attention\.qkv\.bias"):
        from_huggingface(more, CONFIG)


def test_a_folder_of_a_hostile_size_is_refused_before_memory_is_used(folder: Path, tmp_path: Path):
    list(bw.convert(folder, tmp_path / "copy"))
    path = tmp_path / "copy" / "config.json"
    content = json.loads(path.read_text())
    content["encoder"] |= {"hidden_size": 65_536, "intermediate_size": 524_288}
    content["encoder"]["num_hidden_layers"] = 1024
    path.write_text(json.dumps(content))
    write_weights(tmp_path / "copy" / "model.safetensors", {"encoder.x": torch.zeros(1)})
    with pytest.raises(BertworksError):
        load_model(tmp_path / "copy")


@each_decoder
def test_networks_of_lstms_in_both_directions(decoder: DecoderConfig):
    config = replace(LSTM_CONFIG, decoder=decoder)
    written = config_to_huggingface(config, architectures=["BertworksTranslator"])
    assert config_from_huggingface(json.loads(json.dumps(written))) == config
    state = state_of(config)
    back = from_huggingface(to_huggingface(state, config), config)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], value) for name, value in state.items())


def test_no_other_family_holds_networks_of_lstms():
    with pytest.raises(BertworksError, match=r"encoder\.\w+ is .*: files of marian can only"):
        check_representable(replace(LSTM_CONFIG, family="marian"), 0)
