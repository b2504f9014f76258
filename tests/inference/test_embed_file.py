"""Files of vectors: each row, in order, after interruptions too; whitened files; the command."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import bertworks
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_sts
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder, normalized
from bertworks.metrics.intervals import correlations
from tests.support.embedding import TEXTS, needs_int8
from tests.support.fine import write_pairs


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 3)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(TEXTS * 2))
    )
    return path


def read(path: Path) -> np.ndarray:
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".parquet":
            table = pyarrow.parquet.read_table(path)
            assert table["n"].to_pylist() == list(range(10))
            assert str(table.schema.field("embedding").type.value_type) == "float"
            return np.array(table["embedding"].to_pylist(), np.float32)
        case _:
            lines = path.read_text().splitlines()
            assert [json.loads(line)["n"] for line in lines] == list(range(10))
            return np.array([json.loads(line)["embedding"] for line in lines], np.float32)


def test_a_name_that_does_not_tell_what_to_write(tmp_path: Path):
    with pytest.raises(UsageError, match="unknown file format") as caught:
        next(embed_file("minilm", tmp_path / "t.txt", tmp_path / "v.pickle"))
    assert str(caught.value.hint).startswith("use the suffix .npy, or .csv, ")
    assert "conll" not in str(caught.value.hint)  # of words and tags


@pytest.mark.parametrize("name", ["v.npy", "v.parquet", "v.jsonl"])
def test_files_of_vectors(name: str, rows: Path, model: Path, tmp_path: Path, small: None):
    *_, last = embed_file(model, rows, tmp_path / name, device="cpu")
    assert last.fields == {
        "output": str(tmp_path / name),
        "rows": 10,
        "dimension": 32,
        "truncated": 2,
    }
    expected = bertworks.embed(model, [text.strip() for text in TEXTS * 2], device="cpu")
    np.testing.assert_allclose(read(tmp_path / name), expected, atol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "rows.jsonl"])


@needs_int8
def test_a_file_in_eight_bits_reports_its_price(rows: Path, model: Path, tmp_path: Path):
    events = list(embed_file(model, rows, tmp_path / "v.npy", device="cpu", precision="int8"))
    exact = normalized(
        bertworks.embed(model, [text for text in TEXTS * 2 if text], device="cpu", precision="fp32")
    )
    cosines = (
        normalized(np.load(tmp_path / "v.npy"))[[n for n in range(10) if n % 5 != 2]] * exact
    ).sum(1)
    (reported,) = [event.fields for event in events if "least_cosine" in event.fields]
    assert reported == {
        "least_cosine": pytest.approx(cosines.min(), abs=1e-4),
        "mean_cosine": pytest.approx(cosines.mean(), abs=1e-4),
    }
    assert 0.999 < reported["least_cosine"] < 0.9999999


def test_eight_bits_are_refused_where_there_are_no_instructions(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bertworks.models.transformer.cpu_supports_int8", lambda: False)
    with pytest.raises(UsageError, match="int8"):
        Embedder(model, device="cpu", precision="int8")


def test_a_stopped_one_goes_on(rows: Path, model: Path, tmp_path: Path, small: None):
    list(embed_file(model, rows, tmp_path / "whole.npy", device="cpu"))
    stopped = embed_file(model, rows, tmp_path / "v.npy", device="cpu")
    seen = list(islice((event for event in stopped if event.kind == "stage"), 2))
    stopped.close()
    assert seen[-1].fields["amount"] == 6
    assert not (tmp_path / "v.npy").exists()
    events = list(embed_file(model, rows, tmp_path / "v.npy", device="cpu"))
    assert [
        event.fields["resumed_portions"] for event in events if "resumed_portions" in event.fields
    ] == [2]
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_stopped_one_counts_what_it_had_read(model: Path, tmp_path: Path, small: None):
    (tmp_path / "t.txt").write_text("good\n\nfilm\n\nsad\n")
    stopped = embed_file(model, tmp_path / "t.txt", tmp_path / "v.npy", device="cpu")
    assert next(event for event in stopped if event.kind == "stage").fields["amount"] == 3
    stopped.close()
    events = list(embed_file(model, tmp_path / "t.txt", tmp_path / "v.npy", device="cpu"))
    assert [event.fields["empty"] for event in events if "empty" in event.fields] == [2]


def test_lines_and_several_columns(model: Path, tmp_path: Path):
    (tmp_path / "t.txt").write_text("good film\nsad dogs\n")
    list(embed_file(model, tmp_path / "t.txt", tmp_path / "a.npy", device="cpu"))
    (tmp_path / "t.csv").write_text("a,b,embedding\ngood,film,1\nsad,dogs,2\n")
    list(embed_file(model, tmp_path / "t.csv", tmp_path / "b.npy", text=["a", "b"], device="cpu"))
    list(embed_file(model, tmp_path / "t.csv", tmp_path / "c.csv", text=["a", "b"], device="cpu"))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))
    assert (tmp_path / "c.csv").read_text().startswith("a,b,embedding,embedding_\n")
    with pytest.raises(UsageError, match="--text"):
        list(embed_file(model, tmp_path / "t.csv", tmp_path / "d.npy", text=["c"]))
    (tmp_path / "n.jsonl").write_text('{"text": "a good film", "x": 1}\n{"text": 3, "x": 1}\n')
    with pytest.raises(BertworksError, match=r"n\.jsonl:2: 'text' holds 3"):
        list(
            embed_file(model, tmp_path / "n.jsonl", tmp_path / "d.npy", text=["text"], device="cpu")
        )
    assert not (tmp_path / "d.npy").exists()


@pytest.mark.parametrize("kind", ["center", "whiten"])
def test_whitened_files(kind: str, model: Path, tmp_path: Path, small: None):
    pairs = write_pairs(tmp_path / "pairs.tsv", 120)
    list(
        embed_file(
            model, pairs, tmp_path / "v.npy", text=["sentence2"], whitening=kind, device="cpu"
        )
    )
    vectors = np.load(tmp_path / "v.npy").astype(np.float64)
    np.testing.assert_allclose(vectors.mean(0), 0, atol=1e-5)
    if kind == "whiten":
        variances = np.linalg.eigvalsh(np.cov(vectors.T, bias=True))
        # a norm leaves no mean: 31 directions
        np.testing.assert_allclose(variances, [0] + [1] * 31, atol=1e-4)
    (tmp_path / "texts.txt").write_text(
        "".join(f"{line.split(chr(9))[1]}\n" for line in pairs.read_text().splitlines()[1:])
    )
    learned = {"whitening": kind, "learn_from": tmp_path / "texts.txt", "device": "cpu"}
    list(embed_file(model, pairs, tmp_path / "w.npy", text=["sentence2"], **learned))
    np.testing.assert_allclose(np.load(tmp_path / "w.npy"), vectors, atol=1e-4)


def test_sts_before_and_after(model: Path, tmp_path: Path):
    pairs = write_pairs(tmp_path / "pairs.tsv", 80)
    figures = evaluate_sts(model, pairs, device="cpu")
    lines = [line.split("\t") for line in pairs.read_text().splitlines()[1:]]
    a, b = (
        bertworks.embed(model, [line[place] for line in lines], device="cpu") for place in (0, 1)
    )
    cosines = (normalized(a) * normalized(b)).sum(1).tolist()
    expected = {
        name: sums.value
        for name, sums in correlations([float(line[2]) for line in lines], cosines).items()
    }
    assert figures["rows"] == 80
    assert figures["none"] == pytest.approx(
        {name: expected[name] for name in ("pearson", "spearman")}, abs=1e-6
    )
    cut = {"truncated", "truncated_tokens", "truncated_share"}
    assert set(figures) == {"rows", "notes", "none", "center", "whiten"} | cut
    again = evaluate_sts(model, pairs, learn_from=pairs, device="cpu")
    assert again["none"] == figures["none"]


def test_the_verbs(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "t.txt").write_text("good film\nsad dogs\n")
    assert (
        main(
            [
                "embed",
                str(model),
                str(tmp_path / "t.txt"),
                "-o",
                str(tmp_path / "v.npy"),
                "--pooling",
                "cls",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == f"2 vectors of 32 written to {tmp_path / 'v.npy'}\n"
    pairs = write_pairs(tmp_path / "pairs.tsv", 20)
    assert main(["evaluate", "sts", str(model), str(pairs)]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "20",
        "none",
        "center",
        "whiten",
    ]
    assert main(["embed", str(model), str(pairs), "-o", str(tmp_path / "v.bin")]) == 2
    assert "unknown file format" in capsys.readouterr().err
