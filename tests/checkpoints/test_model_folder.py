"""A model folder is whole, comes back bit for bit, and a hostile one is refused quickly and by
name."""

import json
import os
import pickle
import resource
import stat
import struct
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from bertworks.checkpoints.model_card import pretraining_card
from bertworks.checkpoints.model_folder import load_model, save_model
from bertworks.errors import BertworksError
from bertworks.models.config import EncoderConfig
from bertworks.models.settings import PRETRAINING_HEADS
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.objectives import PretrainingModel
from tests.support.refusals import refusal

TOKENS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghij",
    *(f"##{letter}" for letter in "abcdefghij"),
]
CONFIG = EncoderConfig(
    vocab_size=len(TOKENS),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    hidden_act="gelu_tanh",
)
FILES = [
    "README.md",
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "weights.json",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 16}')
    return Tokenizer.load(folder)


@pytest.fixture
def state():
    torch.manual_seed(0)
    return {
        name: torch.randn_like(value)
        for name, value in PretrainingModel(CONFIG).state_dict().items()
    }


@pytest.fixture
def folder(tmp_path, state, tokenizer):
    save_model(tmp_path / "model", state, CONFIG, tokenizer, card="# a model\n")
    return tmp_path / "model"


def same(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- what is written


def test_what_is_saved_is_what_is_loaded(folder, state, tokenizer):
    assert sorted(contents(folder)) == FILES
    model = load_model(folder)
    assert model.config == CONFIG
    assert same(model.state, state)
    assert model.tokenizer.sha256 == tokenizer.sha256
    assert (folder / "README.md").read_text() == "# a model\n"


def test_a_loaded_model_saved_again_is_the_same_to_the_byte(folder, tmp_path):
    model = load_model(folder)
    save_model(tmp_path / "again", model.state, model.config, model.tokenizer, card="# a model\n")
    assert contents(tmp_path / "again") == contents(folder)
    save_model(
        folder, model.state, model.config, model.tokenizer, card="# a model\n"
    )  # over the file it is mapped from
    assert contents(folder) == contents(tmp_path / "again")


def test_the_weights_are_a_file_as_the_safetensors_library_writes_it(folder):
    content = load_file(folder / "model.safetensors")
    assert (folder / "model.safetensors").read_bytes() == save(content, {"format": "pt"})
    assert len(content) == 5 + 16 * CONFIG.num_hidden_layers + 2 + 5 + 2


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_others_may_read_the_weights(folder):
    assert stat.S_IMODE((folder / "model.safetensors").stat().st_mode) == stat.S_IMODE(
        (folder / "config.json").stat().st_mode
    )


def test_weights_in_half_precision_are_saved_and_loaded_in_float32(
    folder, state, tmp_path, tokenizer
):
    half = {name: value.bfloat16() for name, value in state.items()}
    save_model(tmp_path / "half", half, CONFIG, tokenizer, card="")
    assert {
        value.dtype for value in load_file(tmp_path / "half" / "model.safetensors").values()
    } == {torch.float32}
    save_file(
        {n: v.half() for n, v in load_file(folder / "model.safetensors").items()},
        folder / "model.safetensors",
    )
    (folder / "weights.json").unlink()  # other programs have no such file
    loaded = load_model(folder).state
    assert all(torch.equal(loaded[name], value.half().float()) for name, value in state.items())


def test_other_files_in_the_folder_stay(folder, state, tokenizer):
    (folder / "recipe.toml").write_text("mine")
    (folder / "checkpoints").mkdir()
    save_model(folder, state, CONFIG, tokenizer, card="new")
    assert (folder / "recipe.toml").read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*FILES, "recipe.toml", "checkpoints"]
    )


def test_a_model_that_cannot_be_used_is_not_written(tmp_path, state, tokenizer):
    broken = state | {"pooler.dense.bias": torch.full((8,), torch.nan)}
    with pytest.raises(BertworksError, match=r"NaN or infinite numbers in pooler\.dense\.bias"):
        save_model(tmp_path / "model", broken, CONFIG, tokenizer, card="")
    with pytest.raises(BertworksError, match="shape"):
        save_model(tmp_path / "model", state, replace(CONFIG, vocab_size=24), tokenizer, card="")
    small = replace(CONFIG, vocab_size=20)
    torch.manual_seed(0)
    with pytest.raises(BertworksError, match="do not belong together"):
        save_model(
            tmp_path / "model", PretrainingModel(small).state_dict(), small, tokenizer, card=""
        )
    assert not (tmp_path / "model").exists()


def test_a_full_disk_leaves_the_former_weights(folder, state, tokenizer, monkeypatch):
    before = contents(folder)

    def full(path, tensors, metadata):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("bertworks.checkpoints.storage.write_tensors", full)
    with pytest.raises(BertworksError, match="the disk is full"):
        save_model(
            folder,
            {name: value + 1 for name, value in state.items()},
            CONFIG,
            tokenizer,
            card="# a model\n",
        )
    assert contents(folder) == before


# --- what is read


def test_parts_that_are_needed_must_be_there(tmp_path, state, tokenizer):
    body = {name: value for name, value in state.items() if name.startswith("encoder.")}
    save_model(tmp_path, body, CONFIG, tokenizer, card="")
    assert same(load_model(tmp_path).state, body)
    with pytest.raises(BertworksError, match=r"no lm_head and no pooler \(it has encoder\)"):
        load_model(tmp_path, needs=("pooler", "encoder", "lm_head"))


def shard(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    places = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": places})
    )
    return places


def test_weights_in_several_files_are_read(folder, state):
    shard(folder)
    (folder / "weights.json").unlink()
    assert same(load_model(folder).state, state)


@pytest.mark.parametrize(
    "content", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {}}]
)
def test_an_index_that_is_none_is_refused(folder, content):
    shard(folder)
    (folder / "weights.json").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(BertworksError, match=r"weight_map|incomplete"):
        load_model(folder)


def test_an_index_that_disagrees_with_its_files_is_refused(folder):
    places = shard(folder)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": places | {"more": "a.safetensors"}})
    )
    with pytest.raises(BertworksError, match="disagree about more"):
        load_model(folder)


class Bomb:
    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickle_is_never_opened(folder, tmp_path, monkeypatch, name):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BertworksError) as raised:
        load_model(folder)
    assert not (tmp_path / "exploded").exists()
    if name == "pytorch_model.bin":
        assert f"bertworks convert {folder} -o ANOTHER-FOLDER --trust-pickle" in raised.value.hint


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    (folder / "vocab.txt").unlink()
    with pytest.raises(BertworksError) as raised:
        load_model(folder)
    assert name in str(raised.value) or "tokenizer" in str(raised.value)
    with pytest.raises(BertworksError, match="no such model folder"):
        load_model(folder / "absent")


def test_a_tokenizer_that_is_too_large_is_refused(folder):
    with (folder / "vocab.txt").open("a") as file:
        file.write("more\n")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BertworksError, match="do not belong together"):
        load_model(folder)


def test_numbers_that_are_none_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.weight"][3, 3] = torch.inf
    save_file(tensors, folder / "model.safetensors")
    (folder / "weights.json").unlink()
    with pytest.raises(BertworksError, match=r"NaN or infinite numbers in pooler\.dense\.weight"):
        load_model(folder)


def test_large_numbers_are_not_taken_for_infinite_ones(folder, state, tokenizer):
    large = state | {"pooler.dense.weight": torch.full((8, 8), 3e38)}
    save_model(folder, large, CONFIG, tokenizer, card="")
    assert same(load_model(folder).state, large)


# --- hostile files


def header(content, data=b""):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text)) + text + data


ONE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE = {
    "empty": b"",
    "seven bytes": b"1234567",
    "length beyond the file": struct.pack("<Q", 10**6) + b"{}",
    "length beyond all": b"\xff" * 8 + b"{}",
    "length of 100 MB": struct.pack("<Q", 10**8) + b" " * 64,
    "not JSON": header(b"{{{{"),
    "not UTF-8": header(b'{"\xff": 1}'),
    "a list": header([1, 2]),
    "deep": header(b"[" * 100_000),
    "no shape": header({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, b"\0" * 8),
    "unknown kind": header({"a": ONE | {"dtype": "Q99"}}, b"\0" * 8),
    "data missing": header({"a": ONE}),
    "data left over": header({"a": ONE}, b"\0" * 16),
    "overlap": header({"a": ONE, "b": ONE}, b"\0" * 8),
    "gap": header({"a": ONE, "b": ONE | {"data_offsets": [12, 20]}}, b"\0" * 20),
    "backwards": header({"a": ONE | {"data_offsets": [8, 0]}}, b"\0" * 8),
    "shape and data disagree": header({"a": ONE | {"shape": [3]}}, b"\0" * 8),
    "shape overflows": header({"a": ONE | {"shape": [2**62, 2**62]}}, b"\0" * 8),
    "negative": header({"a": ONE | {"shape": [-2]}}, b"\0" * 8),
    "twice": header(b'{"a":%s,"a":%s}' % ((json.dumps(ONE).encode(),) * 2), b"\0" * 8),
    "a valid stranger": header({"a": ONE}, b"\0" * 8),
    "many strangers": header(
        {f"n{i}": ONE | {"shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_weights_are_a_clear_error(folder, name):
    (folder / "model.safetensors").write_bytes(HOSTILE[name])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BertworksError, match=r"model\.safetensors"):
        load_model(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 256 * 1024


def test_an_enormous_header_is_not_parsed(folder):
    (folder / "model.safetensors").write_bytes(
        header(b'{"__metadata__":{"a":"' + b"x" * (17 << 20) + b'"}}')
    )
    with pytest.raises(BertworksError, match="the length of the header is not plausible"):
        load_model(folder)


def test_weights_cut_anywhere_are_a_clear_error(folder):
    content = (folder / "model.safetensors").read_bytes()
    for length in range(0, len(content), len(content) // 100):
        (folder / "model.safetensors").write_bytes(content[:length])
        with pytest.raises(BertworksError, match=r"model\.safetensors"):
            load_model(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"hidden_size": ' + b"9" * 10_000 + b"}",
        b'{"model_type": "bert", "num_hidden_layers": 1000000000}',
        b'{"model_type": "gpt2"}',
        b"\0" * 100,
        b'{"model_type": "bert", "hidden_size": 1e400}',
        b" " * (17 << 20),
    ],
)
def test_a_hostile_configuration_is_a_clear_error(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(BertworksError, match=r"config\.json"):
        load_model(folder)


# --- the card


def test_the_card_says_what_it_was_given():
    card = pretraining_card(
        CONFIG,
        name="my\nbert",
        recipe='title = "mine" # ```',
        parameters=1_234_567,
        steps=1200,
        tokens=9_830_400,
        corpus={"documents": 8000, "sha256": "abc", "a|b": "c|d\ne"},
        held_out={"masked_lm_accuracy": 0.43751, "masked_lm_perplexity": 19.5},
        versions={"torch": "2.13.0"},
    )
    assert card.startswith("---\nlibrary_name: transformers\n")
    for expected in (
        "# my bert\n",
        "2 layers, hidden size 8, 2 heads",
        "1,200 updates on 9,830,400 tokens",
        "| documents | 8,000 |",
        "| masked_lm_accuracy | 0.4375 |",
        "| torch | 2.13.0 |",
        'pipeline("fill-mask"',
        'fill("The capital of France is [MASK].")',
        'bertworks fill . "The capital of France is [MASK]."',
        "| a\\|b | c\\|d e |",
    ):
        assert expected in card
    assert card.count("```") == 6
    assert "1,234,567 parameters" in card
    assert "family `bert`" in card


def test_a_card_without_figures_says_so():
    counts = {"steps": 0, "tokens": 0, "parameters": 1}
    card = pretraining_card(
        CONFIG, name="x", recipe="", corpus={}, held_out={}, versions={}, **counts
    )
    assert "No held-out text was evaluated." in card


def test_a_card_of_a_model_that_continues_texts():
    counts = {"steps": 0, "tokens": 0, "parameters": 1}
    c = replace(CONFIG, family="gpt2")
    card = pretraining_card(
        c, name="x", recipe="", corpus={}, held_out={}, versions={}, mask_token=None, **counts
    )
    assert 'bertworks generate . "The capital of France is"' in card
    assert (
        'start = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]\n' in card
    )
    assert "do_sample=False" in card
    assert "tags: [gpt2, bertworks, pretraining]" in card


def test_the_parameters_of_the_card_are_those_of_the_network():
    assert CONFIG.num_parameters(*PRETRAINING_HEADS) == sum(
        p.numel() for p in PretrainingModel(CONFIG).parameters()
    )


def test_a_tokenizer_with_more_types_than_the_model_is_refused(folder):
    path = folder / "tokenizer.json"
    content = path.read_text()
    assert '"type_id": 1' in content
    path.write_text(content.replace('"type_id": 1', '"type_id": 2'))
    what = "the tokenizer gives tokens the type 2, the model has 2 types"
    with refusal(what, "use the tokenizer that the model was trained with"):
        load_model(folder)


def test_an_adapter_is_no_model(folder):
    (folder / "model.safetensors").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "bert-base"}')
    with refusal("this is an adapter of PEFT", "merge both with peft"):
        load_model(folder)
