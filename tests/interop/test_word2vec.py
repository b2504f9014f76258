"""word2vec texts: out and in without a changed bit, read by gensim, and damaged in every way."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.sentence_transformers import SentenceTransformerSettings, VectorModule
from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.inference.embedder import Embedder, num_zero
from bertworks.interop.convert import convert, import_checkpoint
from bertworks.interop.export import export
from bertworks.interop.word2vec import is_word2vec
from tests.support.fine import write_model
from tests.support.refusals import refusal

TABLE = "encoder.embeddings.token.weight"
GOOD = "3 2\nsun 1 0.5\nmoon -1e-3 2\nsea 0.25 3.0 \n"


def write(path: Path, text: str = GOOD) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def imported(text: Path, folder: Path) -> list[str]:
    return [event.text for event in import_checkpoint(text, folder)]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random vectors of words, one of which is not ASCII."""
    folder = tmp_path_factory.mktemp("vectors")
    draw = np.random.default_rng(0)
    words = [f"w{n}" for n in range(300)] + ["zoë"]
    rows = draw.normal(size=(len(words), 7)).astype(np.float32)
    lines = [f"{word} {' '.join(map(str, row.tolist()))}\n" for word, row in zip(words, rows)]
    imported(write(folder / "v.txt", f"{len(words)} 7\n{''.join(lines)}"), folder / "model")
    return folder / "model"


def test_a_file_becomes_a_model(tmp_path: Path):
    notes = imported(write(tmp_path / "v.txt"), tmp_path / "model")
    assert "text is lower-cased and loses its accents, and punctuation is left out" in notes[0]
    config, state, tokenizer = load_model(tmp_path / "model")
    assert (config.kind, config.hidden_size) == ("static", 2)
    assert tokenizer.tokens == ["[UNK]", "sun", "moon", "sea"]
    expected = torch.tensor([[0, 0], [1, 0.5], [-1e-3, 2], [0.25, 3]])
    assert torch.equal(state[TABLE], expected)
    embedder = Embedder(tmp_path / "model", device="cpu")
    texts = ["The Sun", "", "land"]
    found = embedder.embed(texts)
    assert found.tolist() == [[0.5, 0.25], [0, 0], [0, 0]]
    assert num_zero(found) == 2
    library = pytest.importorskip("sentence_transformers")
    theirs = library.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(texts)
    np.testing.assert_array_equal(theirs, found)


def test_compressed_files_with_other_line_ends_are_read(tmp_path: Path):
    path = tmp_path / "v.txt.gz"
    path.write_bytes(gzip.compress(GOOD.replace("\n", "\r\n").encode()))
    imported(path, tmp_path / "a")
    imported(write(tmp_path / "v.txt"), tmp_path / "b")
    assert torch.equal(*(load_model(tmp_path / name).state[TABLE] for name in "ab"))


def test_out_and_in_keeps_every_bit(vectors: Path, tmp_path: Path):
    text = tmp_path / "out.txt"
    (note, done) = export(vectors, text, format="word2vec")
    assert note.text == "tokens with the vector 0, left out: 1"
    assert (done.fields["words"], done.fields["width"]) == (301, 7)
    imported(text, tmp_path / "model")
    first, second = (load_model(folder) for folder in (vectors, tmp_path / "model"))
    assert first.tokenizer.sha256 == second.tokenizer.sha256
    assert torch.equal(first.state[TABLE], second.state[TABLE])


def test_gensim_reads_what_is_written_and_writes_what_is_read(vectors: Path, tmp_path: Path):
    models = pytest.importorskip("gensim.models", reason="gensim is not installed")
    list(export(vectors, tmp_path / "out.txt", format="word2vec"))
    library = models.KeyedVectors.load_word2vec_format(str(tmp_path / "out.txt"))
    _, state, tokenizer = load_model(vectors)
    assert library.index_to_key == tokenizer.tokens[1:]
    np.testing.assert_array_equal(library.vectors, state[TABLE][1:].numpy())
    library.save_word2vec_format(str(tmp_path / "again.txt"))
    imported(tmp_path / "again.txt", tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").state[TABLE], state[TABLE])


def test_special_tokens_and_white_space_have_no_place(tmp_path: Path):
    folder = write_model(tmp_path / "encoder", noise=0.1)
    list(convert(folder, tmp_path / "static", static=4))
    notes = [event.text for event in export(tmp_path / "static", tmp_path / "o", format="word2vec")]
    assert notes[0].startswith("tokens with the vector 0, left out: 5")
    words = [line.split(" ")[0] for line in (tmp_path / "o").read_text().splitlines()[1:]]
    assert "[CLS]" not in words
    assert not any(" " in word for word in words)


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("", 1, "is no such line", None),
        ("sun 1 2\n", 1, "is no such line", None),
        ("0 2\n", 1, "0 words: expected from 1", "first 500,000"),
        ("9999999 2\nsun 1 2\n", 1, "9,999,999 words", "first 500,000"),
        ("1 99999\nsun 1 2\n", 1, "99,999 numbers of a vector", "first 500,000"),
        ("3 2\nsun 1 2\nsea 1 2\n", 1, "says 3 words, but there are 2", "fetch the file again"),
        ("1 2\nsun 1 2\nsea 1 2\n", 3, "says 1 words, but there are more", "correct the number"),
        ("2 2\nsun 1 2\nsun 1 2\n", 3, "'sun' occurs twice, first in line 2", "remove one"),
        ("2 2\nsun 1 2\nsea 1 nan\n", 3, "'sea' has NaN or infinite numbers", "remove the line"),
        ("1 2\nsun 1 1e39\n", 2, "NaN or infinite numbers", "remove the line"),
        ("2 2\nsun 1 2\nsea 1\n", 3, "a word and 1 numbers: expected a word and 2", "the width"),
        ("1 2\nsun 1 2 3\n", 2, "a word and 3 numbers", "the width"),
        ("1 2\nnew york 1 2\n", 2, "a word and 3 numbers", "the width"),
        ("1 2\n 1 2\n", 2, "a word and 2 numbers: expected a word", "the width"),
        ("1 2\nsun 1 x2\n", 2, "'x2' is not a number", None),
    ],
)
def test_damaged_files_are_refused(
    text: str, line: int, message: str, hint: str | None, tmp_path: Path
):
    from bertworks.interop.word2vec import read_word2vec

    path = write(tmp_path / "v.txt", text)
    with pytest.raises(BertworksError) as caught:
        read_word2vec(path)
    assert message in caught.value.what
    assert str(caught.value.where) == f"{path}:{line}"
    assert hint is None or hint in str(caught.value.hint)
    if is_word2vec(path):
        with pytest.raises(BertworksError):
            imported(path, tmp_path / "model")
        assert not (tmp_path / "model").exists()


def test_other_files_are_refused(tmp_path: Path):
    with refusal("neither a TensorFlow checkpoint", "bert_model.ckpt"):
        imported(write(tmp_path / "v.txt", "sun 1 2\n"), tmp_path / "model")
    with refusal("the options of a TensorFlow checkpoint", "leave them out"):
        list(bw.import_checkpoint(write(tmp_path / "w.txt"), tmp_path / "model", lowercase=True))


def test_what_cannot_be_exported_is_refused(vectors: Path, tmp_path: Path):
    folder = write_model(tmp_path / "encoder")
    with refusal("this model has no static vectors", "convert"):
        list(export(folder, tmp_path / "v.txt", format="word2vec"))
    with refusal("are for ONNX files", "leave them out"):
        list(export(vectors, tmp_path / "v.txt", format="word2vec", int8=True))
    write(tmp_path / "there.txt")
    with refusal("already exists", "another file"):
        list(export(vectors, tmp_path / "there.txt", format="word2vec"))
    with refusal("no network that ONNX programs could run", "--format word2vec"):
        list(export(vectors, tmp_path / "onnx"))
    assert not (tmp_path / "v.txt").exists()


def test_vectors_with_a_layer_behind_them_are_not_exported(vectors: Path, tmp_path: Path):
    folder = tmp_path / "dense"
    list(convert(vectors, folder))
    weights = {"linear.weight": torch.ones(3, 7), "linear.bias": torch.zeros(3)}
    dense = VectorModule("Dense", {"in_features": 7, "out_features": 3}, folder, weights)
    SentenceTransformerSettings(modules=[dense]).save(folder, 7, is_static=True)
    with refusal("pass through Dense, which a word2vec text cannot hold", "other static vectors"):
        list(export(folder, tmp_path / "v.txt", format="word2vec"))
    SentenceTransformerSettings(normalize=True).save(folder, 7, is_static=True)
    events = [event.text for event in export(folder, tmp_path / "v.txt", format="word2vec")]
    assert "the numbers are those before that" in events[1]


def test_the_commands(vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = str(tmp_path / "v.txt")
    assert main(["export", str(vectors), "-o", text, "--format", "word2vec"]) == 0
    assert "301 words, 7 numbers each" in capsys.readouterr().out
    assert main(["import", text, "-o", str(tmp_path / "model")]) == 0
    assert load_model(tmp_path / "model").config.hidden_size == 7
