"""The published weights of ELMo: a file of their layout with random weights, computed in numpy as
TensorFlow does; refused files; and each command that reads the imported folder."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.batching.batch import collate
from bertworks.batching.examples import Example
from bertworks.checkpoints.allennlp import load_elmo
from bertworks.checkpoints.hf_config import FAMILIES
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.models.transformer import Encoder
from tests.support.elmo import OPTIONS, arrays_of, states_of, write_elmo
from tests.support.refusals import refusal

h5py = pytest.importorskip("h5py")
TEXTS = [
    "The cat sat on the mat .".split(),
    ["a"],
    # 60 bytes; and one of which a character is cut: its third byte is the 49th
    ["w" * 60, "b" * 46 + "語x", "Ünïcödé", "日本語"],
    ["<S>", "</S>", "<spelling>"],
]


def changed(**values: Any) -> dict[str, Any]:
    """The options with other values: of a table as in lstm__dim."""
    options = copy.deepcopy(OPTIONS)
    for path, value in values.items():
        table, _, name = path.partition("__")
        place = options[table] if name else options
        place[name or table] = value
    return options


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_elmo(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def folder(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported") / "model"
    assert main(["import", *map(str, files), "-o", str(folder)]) == 0
    return folder


def examples_of(folder: Path, texts: list[list[str]]) -> list[Example]:
    t = ModelFolder(folder).tokenizer
    return [
        Example(t.array(t.spelled(words)), np.zeros(len(words), np.int64), {}) for words in texts
    ]


def encoder_of(folder: Path, dtype: torch.dtype = torch.float64) -> Encoder:
    config, state, _ = load_model(folder)
    encoder = Encoder(config)
    encoder.load_state_dict({name.removeprefix("encoder."): x for name, x in state.items()})
    return encoder.to(dtype).eval()


@torch.no_grad()
def states(encoder: Encoder, examples: list[Example]) -> list[np.ndarray[Any, Any]]:
    """The states of each text, [layers + 1, words, width]."""
    batch = collate(examples)
    stacked = torch.stack(encoder(*batch.inputs))
    return [x.numpy() for x in stacked.split(batch.layout.cu_seqlens.diff().tolist(), 1)]


@pytest.mark.parametrize(
    "options",
    [
        OPTIONS,
        changed(lstm__cell_clip=None),
        changed(lstm__proj_clip=None),
        changed(lstm__cell_clip=None, lstm__proj_clip=None),
        changed(char_cnn__activation="tanh", lstm__n_layers=3, char_cnn__n_highway=1),
        changed(lstm__dim=6, char_cnn__n_characters=261),
    ],
    ids=["both clips", "outputs clipped", "cells clipped", "no clips", "other sizes", "narrow"],
)
def test_states_are_those_of_tensorflow(options: dict[str, Any], tmp_path: Path):
    weights, text = write_elmo(tmp_path, options)
    list(bw.import_checkpoint(weights, tmp_path / "model", elmo_options=text))
    arrays = arrays_of(options)
    batched = states(encoder_of(tmp_path / "model"), examples_of(tmp_path / "model", TEXTS))
    single = encoder_of(tmp_path / "model", torch.float32)
    counts = np.zeros(2, int)
    for words, result in zip(TEXTS, batched, strict=True):
        expected, *at_clips = states_of(words, arrays, options)
        counts += at_clips
        np.testing.assert_allclose(result, expected, atol=1e-10, rtol=0)
        (alone,) = states(single, examples_of(tmp_path / "model", [words]))
        np.testing.assert_allclose(alone, expected, atol=1e-4, rtol=0)
    clips = [options["lstm"][name] for name in ("cell_clip", "proj_clip")]
    assert [bool(count) for count in counts] == [bool(clip) for clip in clips]


def test_small_weights_are_exact_in_float32(tmp_path: Path):
    arrays = arrays_of(scale=0.1)
    weights, text = write_elmo(tmp_path, arrays=arrays)
    list(bw.import_checkpoint(weights, tmp_path / "model", elmo_options=text))
    encoder = encoder_of(tmp_path / "model", torch.float32)
    for words, result in zip(
        TEXTS, states(encoder, examples_of(tmp_path / "model", TEXTS)), strict=True
    ):
        np.testing.assert_allclose(result, states_of(words, arrays)[0], atol=1e-5, rtol=0)


def test_a_text_alone_is_the_same_as_in_a_batch(folder: Path):
    encoder = encoder_of(folder)
    batched = states(encoder, examples_of(folder, TEXTS))
    for words, result in zip(TEXTS, batched, strict=True):
        (alone,) = states(encoder, examples_of(folder, [words]))
        np.testing.assert_allclose(alone, result, atol=1e-12, rtol=0)
    # only the states of some words, in the last layer
    batch = collate(examples_of(folder, TEXTS))
    rows = torch.tensor([0, 7, len(batch.input_ids) - 1])
    with torch.no_grad():
        *others, last = encoder(*batch.inputs, rows)
    whole = np.concatenate(batched, 1)
    np.testing.assert_allclose(last.numpy(), whole[-1][rows.numpy()], atol=1e-12)
    np.testing.assert_allclose(others[1].numpy(), whole[1], atol=1e-12)


def test_no_word_knows_what_it_predicts(folder: Path):
    """The half from the left of word i depends on words up to i, the other on those from i on."""
    encoder = encoder_of(folder)
    batch = collate(examples_of(folder, [TEXTS[0], TEXTS[2]]))
    seen: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    encoder.embeddings.register_forward_hook(keep)
    last = encoder(*batch.inputs)[-1]
    forward, backward = last[3].chunk(2)
    for part, expected in ((forward, range(4)), (backward, range(3, 7))):
        (gradient,) = torch.autograd.grad(part.sum(), seen[0], retain_graph=True)
        assert gradient.abs().sum(1).nonzero().flatten().tolist() == list(expected)


def test_the_folder_is_equal_after_conversion(folder: Path, tmp_path: Path):
    list(bw.convert(folder, tmp_path / "copy"))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    card = (folder / "README.md").read_text()
    assert "library_name: bertworks" in card
    assert "zero states" in card
    assert "n_tokens_vocab 793471" in card
    config = ModelFolder(folder).config
    assert (config.kind, config.ffn_size, config.cell_clip) == ("elmo", 24, 3.0)
    assert config.num_parameters() == sum(array.size for array in arrays_of().values())
    assert config.flops_per_token(10, 0.0) > 0


@pytest.mark.parametrize(
    ("sizes", "highways", "count"),
    [((1024, 128), 1, 13_593_296), ((2048, 256), 1, 28_027_728), ((4096, 512), 2, 93_600_848)],
)
def test_published_sizes(sizes: tuple[int, int], highways: int, count: int):

    default = FAMILIES["elmo"].default
    assert default.characters is not None
    config = replace(
        default,
        intermediate_size=sizes[0],
        hidden_size=2 * sizes[1],
        characters=replace(default.characters, highways=highways),
    )
    assert config.num_parameters() == count


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"transformer": {}}, "an ELMo of Transformers"),
        ({**OPTIONS, "char_cnn": None}, "char_cnn is None: expected a table"),
        ({"lstm": {}}, "there is no char_cnn"),
        (changed(lstm__use_skip_connections=False), "lstm.use_skip_connections is False"),
        (changed(lstm__use_skip_connections=1), "lstm.use_skip_connections is 1"),
        (changed(lstm__dim="24"), "lstm.dim is '24'"),
        (changed(lstm__dim=10), "lstm.dim and lstm.projection_dim are both 10"),
        (changed(lstm__n_layers=10**9), "num_hidden_layers is 1000000000"),
        (changed(lstm__cell_clip=-3), "lstm.cell_clip is -3"),
        (changed(char_cnn__n_characters=300), "char_cnn.n_characters is 300"),
        (changed(char_cnn__max_characters_per_token=40), "max_characters_per_token is 40"),
        (changed(char_cnn__activation="gelu"), "char_cnn.activation is 'gelu'"),
        (changed(char_cnn__filters=[[1]]), "char_cnn.filters is [[1]]"),
        (changed(char_cnn__filters=[]), "characters.widths has 0 numbers"),
        (changed(char_cnn__filters=[[51, 4]]), "characters.widths is [51]"),
        (changed(char_cnn__filters=[[1, 10**9]]), "characters.filters is [1000000000]"),
        (changed(char_cnn__n_highway=None), "characters.highways is None"),
        (changed(char_cnn__embedding={}), "characters.size is None"),
    ],
)
def test_other_networks_are_refused_by_name(
    options: Any, what: str, files: tuple[Path, Path], tmp_path: Path
):
    (tmp_path / "options.json").write_text(json.dumps(options))
    with pytest.raises(BertworksError) as error:
        load_elmo(files[0], tmp_path / "options.json")
    assert what in error.value.what
    assert error.value.where == str(tmp_path / "options.json")


CELL = "RNN_1/RNN/MultiRNNCell/Cell0/LSTMCell"


def _without(*ends: str) -> Any:
    return {name: array for name, array in arrays_of().items() if not name.endswith(ends)}


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        (_without("char_embed") | {"embedding": np.zeros((9, 4), "f4")}, "a vector for each word"),
        (_without("W_proj", "b_proj"), "no projection of the characters"),
        (_without("W_P_0"), "no projection of the LSTMs"),
        (_without(f"{CELL}/B"), f"lacks {CELL}/B"),
        (
            {
                name.replace("MultiRNNCell/Cell0/", ""): x
                for name, x in arrays_of().items()
                if "Cell1" not in name
            },
            "LSTMs of one layer (RNN_0/RNN/LSTMCell",
        ),
        (arrays_of() | {"softmax/W": np.zeros(3, "f4")}, "the file has softmax"),
        (arrays_of() | {"char_embed": np.zeros((262, 4), "f4")}, "char_embed has the shape [262"),
        (arrays_of() | {"char_embed": np.zeros((261, 4))}, "char_embed has the type float64"),
        (arrays_of() | {"char_embed": np.full((261, 4), np.nan, "f4")}, "NaN or infinite"),
        (
            arrays_of() | {"more": np.zeros(2_000_000, "f4")},
            "but the numbers of this network need only",
        ),
    ],
)
def test_other_arrays_are_refused_by_name(arrays: Any, what: str, tmp_path: Path):
    weights, text = write_elmo(tmp_path, arrays=arrays)
    with pytest.raises(BertworksError) as error:
        load_elmo(weights, text)
    assert what in error.value.what


def _soft_link(file: Any) -> None:
    del file["char_embed"]
    file["char_embed"] = h5py.SoftLink("/CNN/b_cnn_0")


def _external_link(file: Any) -> None:
    del file["char_embed"]
    file["char_embed"] = h5py.ExternalLink("other.hdf5", "/x")


def _object(file: Any) -> None:
    del file["char_embed"]
    file.create_dataset("char_embed", (261, 4), dtype=h5py.string_dtype())


def _compressed(file: Any) -> None:
    del file["char_embed"]
    file.create_dataset("char_embed", data=np.zeros((261, 4), "f4"), compression="gzip")


def _unwritten(file: Any) -> None:
    del file["char_embed"]
    file.create_dataset("char_embed", (261, 4), "f4")


def _group(file: Any) -> None:
    del file["char_embed"]
    file.create_group("char_embed")


def _stored_elsewhere(file: Any) -> None:
    del file["char_embed"]
    file.create_dataset("char_embed", (261, 4), "f4", external=[("/etc/passwd", 0, 261 * 16)])


def _many(file: Any) -> None:
    for number in range(1001):
        file.create_group(f"g{number}")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (_soft_link, "'char_embed' is a link to another place"),
        (_external_link, "'char_embed' is a link to another place"),
        (_object, "char_embed has the type object"),
        (_compressed, "char_embed is compressed"),
        (_stored_elsewhere, "char_embed is compressed, or lies in another file"),
        (_unwritten, "char_embed has 0 bytes in the file, and needs 4,176"),
        (_group, "char_embed is not an array of numbers"),
        (_many, "more than 1,000 entries in a group"),
    ],
)
def test_only_plain_numbers_are_read(
    change: Any, what: str, files: tuple[Path, Path], tmp_path: Path
):
    shutil.copyfile(files[0], tmp_path / "weights.hdf5")
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        change(file)
    with pytest.raises(BertworksError) as error:
        load_elmo(tmp_path / "weights.hdf5", files[1])
    assert what in error.value.what


def test_damaged_files_are_refused(files: tuple[Path, Path], tmp_path: Path):
    content = files[0].read_bytes()
    path = tmp_path / "weights.hdf5"
    damaged = {
        b"": "not a file of HDF5",
        b"PK\x03\x04 a zip": "not a file of HDF5",
        content[: len(content) // 2]: "a damaged file of HDF5",
        content[:600]: "a damaged file of HDF5",
    }
    for data, what in damaged.items():
        path.write_bytes(data)
        with pytest.raises(BertworksError) as error:
            load_elmo(path, files[1])
        assert what in error.value.what
        assert error.value.hint
    for place, what in ((tmp_path / "none.hdf5", "no such file"), (tmp_path, "a folder, a pipe")):
        with pytest.raises(BertworksError, match=what):
            load_elmo(place, files[1])
    (tmp_path / "options.json").write_text("[1]")
    with pytest.raises(BertworksError):
        load_elmo(files[0], tmp_path / "options.json")


def test_an_import_that_lacks_a_file_or_has_other_options(files: tuple[Path, Path], tmp_path: Path):
    weights, options = files
    output = tmp_path / "model"
    with refusal("need their options.json", "options.json -o MODEL"):
        list(bw.import_checkpoint(weights, output))
    with refusal("lowercase: the weights of an ELMo have no such option", "leave it out"):
        list(bw.import_checkpoint(weights, output, elmo_options=options, lowercase=True))
    (tmp_path / "bert_model.ckpt.index").write_bytes(b"x")
    with refusal("only an ELMo has a second file", "leave the second file out"):
        list(bw.import_checkpoint(tmp_path / "bert_model.ckpt", output, elmo_options=options))
    assert not output.exists()


def test_without_h5py_the_extra_is_named(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(BertworksError) as error:
        load_elmo(*files)
    assert error.value.hint == 'pip install "bertworks[elmo]"'


def test_texts_are_split_into_words(folder: Path):
    t = ModelFolder(folder).tokenizer
    assert t.spells_words
    cases = {
        "I can't go; it's 3,000.5 miles (U.S. well-known)...": "I ca n't go ; it 's 3,000.5 miles "
        "( U.S. well-known ) ...",
        'He said "yes," and left.': 'He said " yes , " and left .',
        "the dogs' food, o'clock": "the dogs ' food , o'clock",
        "WE'LL SAY DON'T": "WE 'LL SAY DO N'T",
        "  a\t b\n c  ": "a b c",
        "nul\0l": "null",
        "日本語 Ünïcödé": "日本語 Ünïcödé",
        "\ud800x": "\ufffd x",
        "": "",
    }
    for text, expected in cases.items():
        encoding = t.encode(text)
        assert t.decode(encoding.ids) == expected, text
        assert encoding.ids == t.spelled(expected.split())
        ((ids, offsets),) = t.arrays([text])
        assert ids.tolist() == encoding.ids
        assert offsets.tolist() == [list(pair) for pair in encoding.offsets]
    words = t.encode("wide " * 9, max_length=4)
    assert (len(words.ids), words.num_truncated) == (4, 5)
    with pytest.raises(UsageError, match="word 2 is '': an empty word has no spelling"):
        t.spelled(["a", ""])
    # a long text is read in parts
    text = "it's a long, long text (of Jan. 3,000). " * 3000
    assert t.ids([text])[0] == t.encode(text).ids
    assert t.ids([text])[0] == t.ids([text[:40]])[0] * 3000
