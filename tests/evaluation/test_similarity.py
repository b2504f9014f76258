"""Similarity of words: figures against scipy, pairs that are left out, and lines that are no
pairs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.cli.main import main
from bertworks.inference.embedder import Embedder
from tests.support.fine import BAD, FILLER, GOOD, write_model
from tests.support.refusals import refusal

WORDS = [*GOOD, *BAD, *FILLER[:6]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("encoder") / "model", noise=0.1)


@pytest.fixture(scope="module")
def static(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("static") / "model"
    list(bw.convert(encoder, folder, static=16))
    return folder


def write_pairs(path: Path, separator: str = "\t") -> list[tuple[str, str, float]]:
    draw = np.random.default_rng(0)
    pairs = [
        (WORDS[a], WORDS[b], round(float(draw.random() * 10), 2))
        for a, b in draw.integers(0, len(WORDS), (40, 2)).tolist()
    ]
    path.write_text("".join(f"{a}{separator}{b}{separator}{score}\n" for a, b, score in pairs))
    return pairs


@pytest.mark.parametrize("kind", ["encoder", "static"])
def test_the_figure_is_that_of_scipy(kind: str, request: Any, tmp_path: Path):
    stats = pytest.importorskip("scipy.stats")
    model = request.getfixturevalue(kind)
    pairs = write_pairs(tmp_path / "a.txt")
    figures = bw.evaluate_similarity(model, [tmp_path / "a.txt"], device="cpu")["files"]
    (result,) = figures.values()
    vectors = [Embedder(model, device="cpu").embed([pair[n] for pair in pairs]) for n in (0, 1)]
    first, second = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in vectors)
    expected = stats.spearmanr((first * second).sum(1), [pair[2] for pair in pairs]).statistic
    assert result["spearman"] == pytest.approx(expected, abs=1e-6)
    assert result["interval"][0] < expected < result["interval"][1]
    assert (result["pairs"], result["known"], result["coverage"]) == (40, 40, 1)


def test_spaces_and_commas_separate_too(static: Path, tmp_path: Path):
    for name, separator in (("a.txt", "\t"), ("b.txt", " "), ("c.csv", ",")):
        write_pairs(tmp_path / name, separator)
    files = [tmp_path / name for name in ("a.txt", "b.txt", "c.csv")]
    results = list(bw.evaluate_similarity(static, files, device="cpu")["files"].values())
    assert results[0] == results[1] == results[2]


def test_pairs_with_unknown_words_are_left_out_and_counted(
    static: Path, encoder: Path, tmp_path: Path, capsys: Any
):
    lines = ["good\tgreat\t9", "bad\tgood\t1", "film\tstory\t5", "☃\tgood\t3", "good\tbad\t2"]
    file = tmp_path / "p.txt"
    file.write_text("\n".join(lines) + "\n")
    for model in (static, encoder):
        notes = list[str]()
        result = bw.evaluate_similarity(model, [file], device="cpu", on_note=notes.append)
        (figures,) = result["files"].values()
        assert (figures["pairs"], figures["known"], figures["coverage"]) == (5, 4, 0.8)
        assert notes == [f"{file}: pairs that stand there more than once: 1; each line counts"]
    assert main(["evaluate", "similarity", str(static), str(file)]) == 0
    assert "4 of 5 pairs" in capsys.readouterr().out


def test_what_is_no_pair_is_refused(static: Path, tmp_path: Path):
    with refusal("no file of word pairs", "name one or more"):
        bw.evaluate_similarity(static, [])
    file = tmp_path / "p.txt"
    for line in ("good\tgreat\thigh", "good\t\t3", "good\tgreat\tnan"):
        file.write_text(f"good\tbad\t1\nbad\tgood\t2\n{line}\n")
        with refusal("is not a pair of words with a number", "two words and a number"):
            bw.evaluate_similarity(static, [file], device="cpu")
    file.write_text("☃\tgood\t1\nbad\tgood\t2\n☃\tbad\t3\n")
    with refusal("knows both words of 1 of 3 pairs", "language of the model"):
        bw.evaluate_similarity(static, [file], device="cpu")
