"""A table fitted to the vectors that an encoder has for texts: the solutions against dense ones of
numpy in float64, and the command, also interrupted."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.checkpoints.model_folder import load_model
from bertworks.cli.main import main
from bertworks.events import Event, result_of
from bertworks.inference.embedder import Embedder
from bertworks.interop.convert import convert
from bertworks.runs import static_training
from bertworks.runs.static_distillation import frequency_weights
from bertworks.runs.static_training import (
    TeacherVectors,
    TokenShares,
    corrected_rows,
    draw_texts,
    linear_map,
)
from tests.support.fine import BAD, FILLER, GOOD, tokenizer, write_model
from tests.support.refusals import refusal

TABLE = "encoder.embeddings.token.weight"
WORDS = [*FILLER, *GOOD, *BAD]  # of the corpus: not names and places


def run(*arguments: Any, **options: Any) -> list[Event]:
    return list(convert(*arguments, **options))


def table_of(folder: Path) -> torch.Tensor:
    return load_model(folder).state[TABLE]


def write_words(path: Path, count: int, words: list[str] = WORDS) -> Path:
    """A corpus of documents of 50 to 70 words, each of a few kinds only, so that they differ."""
    draw = random.Random(0)
    documents = []
    for _ in range(count):
        kinds = draw.sample(words, min(8, len(words)))
        documents.append(" ".join(draw.choices(kinds, k=draw.randint(50, 70))))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("teacher") / "model", length=96, noise=0.1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(tmp_path_factory.mktemp("corpus") / "c.jsonl", 400)


@pytest.fixture(scope="module")
def trained(
    teacher: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Event]]:
    folder = tmp_path_factory.mktemp("trained") / "model"
    return folder, run(teacher, folder, static=8, train=[corpus])


def problem(num_texts: int = 60, num_rows: int = 20) -> tuple[list[Any], np.ndarray, np.ndarray]:
    """Texts with tokens without a row, with repeated rows, and with some rows that never occur; the
    matrix of their shares; targets."""
    draw = np.random.default_rng(0)
    texts = [draw.integers(-1, num_rows - 4, draw.integers(1, 12)) for _ in range(num_texts)]
    matrix = np.zeros((num_texts, num_rows))
    for place, rows in enumerate(texts):
        for row in rows[rows >= 0]:
            matrix[place, row] += 1 / len(rows)
    return texts, matrix, draw.normal(size=(num_texts, 5))


def test_shares_are_the_matrix_of_means():
    texts, matrix, targets = problem()
    shares = TokenShares(texts, matrix.shape[1])
    table = np.random.default_rng(1).normal(size=(matrix.shape[1], 3))
    means = shares.means(torch.from_numpy(table).float())
    np.testing.assert_allclose(means, matrix @ table, atol=1e-6)
    seen = shares.seen.numpy()
    assert seen.tolist() == np.flatnonzero(matrix.any(0)).tolist()
    assert len(seen) < matrix.shape[1]
    np.testing.assert_allclose(shares.squares, (matrix**2).sum(0)[seen], rtol=1e-5)
    sums = shares.sums(torch.from_numpy(targets).float())
    np.testing.assert_allclose(sums, (matrix.T @ targets)[seen], atol=1e-5)
    product = shares.normal_product(torch.from_numpy(table[seen]).float())
    np.testing.assert_allclose(product, matrix.T[seen] @ (matrix[:, seen] @ table[seen]), atol=1e-5)


@pytest.mark.parametrize("ridge", [0.02, 1.0])
def test_corrected_rows_are_the_exact_solution(ridge: float, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(static_training, "_TOLERANCE", 1e-6)
    texts, matrix, targets = problem()
    table = np.random.default_rng(2).normal(size=(matrix.shape[1], 5))
    shares = TokenShares(texts, len(table))
    start = torch.from_numpy(table).float()
    result = result_of(corrected_rows(shares, torch.from_numpy(targets).float(), start, ridge))
    equations = matrix.T @ matrix + ridge * np.eye(len(table))
    expected = np.linalg.solve(equations, matrix.T @ targets + ridge * table)
    np.testing.assert_allclose(result, expected, atol=1e-4)
    assert np.abs(expected - table).max() > 0.1
    unseen = np.setdiff1d(np.arange(len(table)), shares.seen.numpy())
    assert len(unseen) >= 4
    torch.testing.assert_close(result[unseen], start[unseen], rtol=0, atol=0)
    assert not torch.equal(result, start)


def test_a_table_that_fits_is_not_changed():
    texts, matrix, _ = problem()
    table = torch.randn(matrix.shape[1], 5, generator=torch.manual_seed(0))
    shares = TokenShares(texts, len(table))
    result = result_of(corrected_rows(shares, shares.means(table), table))
    torch.testing.assert_close(result, table, rtol=0, atol=0)


def test_the_map_is_the_exact_solution():
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(5000, 6))
    targets = draw.normal(size=(5000, 3)) + inputs @ draw.normal(size=(6, 3))
    result = linear_map(torch.from_numpy(inputs).float(), torch.from_numpy(targets).float())
    ridge = 1e-3 * np.diag(inputs.T @ inputs).mean()
    expected = np.linalg.solve(inputs.T @ inputs + ridge * np.eye(6), inputs.T @ targets)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    assert not linear_map(torch.zeros(4, 2), torch.ones(4, 3)).any()


def test_texts_are_drawn_from_the_whole_corpus_in_order():
    documents = [f"Sentence {n} has some words. " * 40 for n in range(50)]
    texts = draw_texts(documents, 10**6)
    assert max(map(len, texts)) < 300
    assert sum(len(text) >= 240 for text in texts) == 200  # the others are the rests of documents
    assert " ".join(texts).split() == " ".join(documents).split()
    drawn = draw_texts(documents, 40)
    numbers = [int(text.split()[1]) for text in drawn]
    assert len(drawn) == 40
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > 20
    assert draw_texts(documents, 40) == drawn
    # a sentence of Japanese counts by what it says, not by its characters
    japanese = draw_texts(["これは長い文です。" * 20], 100)
    assert 80 <= len(japanese[0]) < 100


def test_training_improves_texts_that_are_held_out(trained: tuple[Path, list[Event]]):
    folder, events = trained
    (evaluation,) = [event for event in events if event.kind == "evaluation"]
    cosine = evaluation.fields["cosine"]
    assert cosine["untrained"] < cosine["map"] < cosine["trained"]
    assert evaluation.fields["held_out_texts"] == round(evaluation.fields["texts"] / 20)
    progress = [event.text for event in events if "has read" in event.text]
    assert "left" in progress[0]
    card = (folder / "README.md").read_text()
    assert f"{cosine['untrained']:.3f} before the training" in card
    assert f"{cosine['trained']:.3f} after it" in card
    assert "the frequencies are those of" in card


def test_the_figures_are_those_of_the_folder(
    teacher: Path, corpus: Path, trained: tuple[Path, list[Event]]
):
    """Computed anew from the texts and both models, in the principal components of the teacher."""
    folder, events = trained
    documents = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    texts = draw_texts(documents, 30_000)
    is_held_out = np.array([n * 100 // len(texts) % 20 == 10 for n in range(len(texts))])
    vectors = Embedder(teacher, device="cpu").embed(texts).astype(np.float64)
    vectors -= vectors[~is_held_out].mean(0)
    _, _, directions = np.linalg.svd(vectors[~is_held_out], full_matrices=False)
    targets = (vectors @ directions[:8].T)[is_held_out]
    means = Embedder(folder, device="cpu").embed(texts)[is_held_out]
    targets *= np.sign((targets * means).sum(0))  # a direction may point either way
    cosines = (targets * means).sum(1)
    cosines /= np.linalg.norm(targets, axis=1) * np.linalg.norm(means, axis=1)
    (evaluation,) = [event for event in events if event.kind == "evaluation"]
    assert evaluation.fields["cosine"]["trained"] == pytest.approx(cosines.mean(), abs=1e-5)


def test_tokens_that_do_not_occur_have_what_the_map_gives(
    teacher: Path, corpus: Path, trained: tuple[Path, list[Event]]
):
    """One matrix makes all of their vectors of those that the encoder has for them, and not those
    of the tokens that occur, which are corrected one by one."""
    t = tokenizer(96)
    numbers = np.array([n for n in range(t.vocab_size) if n not in t.special_ids])
    embedder = Embedder(teacher, device="cpu", precision="fp32")
    units, _ = embedder.units_of_ids([[n] for n in numbers.tolist()])
    features = embedder.raw(units).astype(np.float64)
    features -= features.mean(0)
    documents = [json.loads(line)["text"] for line in corpus.read_text().splitlines()]
    counts = np.bincount(np.concatenate(t.ids(documents)), minlength=t.vocab_size)[numbers]
    features *= frequency_weights((counts + 1) / (counts + 1).sum())[:, None]
    table = table_of(trained[0]).double().numpy()
    is_seen = counts > 0
    assert (~is_seen).sum() > features.shape[1] + 5
    assert is_seen.sum() > 20
    rows = table[numbers]
    matrix, *_ = np.linalg.lstsq(features[~is_seen], rows[~is_seen])
    np.testing.assert_allclose(
        features[~is_seen] @ matrix, rows[~is_seen], atol=1e-4 * np.abs(rows).max()
    )
    difference = np.abs(features[is_seen] @ matrix - rows[is_seen])
    assert difference.max() > 0.05 * np.abs(rows[is_seen]).max()
    assert not table[sorted(t.special_ids)].any()


def test_shorter_vectors_are_those_of_a_shorter_training(
    teacher: Path, corpus: Path, trained: tuple[Path, list[Event]], tmp_path: Path
):
    run(trained[0], tmp_path / "cut", static=3)
    run(teacher, tmp_path / "again", static=3, train=[corpus])
    cut, again = (table_of(tmp_path / name) for name in ("cut", "again"))
    torch.testing.assert_close(cut, again, rtol=0, atol=1e-3 * float(cut.abs().max()))


def test_texts_without_a_known_token_are_left_out(
    teacher: Path, corpus: Path, trained: tuple[Path, list[Event]], tmp_path: Path
):
    mixed = tmp_path / "mixed.jsonl"
    snow = json.dumps({"text": "☃ " * 100}) + "\n"
    lines = corpus.read_text().splitlines(keepends=True)
    mixed.write_text(snow.join(["", *lines[:9], "".join(lines[9:]), ""]))
    run(teacher, tmp_path / "m", static=8, train=[mixed])
    assert torch.equal(table_of(tmp_path / "m"), table_of(trained[0]))


def test_text_gives_the_frequencies_and_train_the_texts(
    teacher: Path, corpus: Path, trained: tuple[Path, list[Event]], tmp_path: Path
):
    run(teacher, tmp_path / "same", static=8, train=[corpus], text=[corpus])
    assert torch.equal(table_of(tmp_path / "same"), table_of(trained[0]))
    other = write_words(tmp_path / "other.jsonl", 50, [*FILLER, "Anna"])
    run(teacher, tmp_path / "other", static=8, train=[corpus], text=[other])
    assert not torch.allclose(table_of(tmp_path / "other"), table_of(trained[0]), atol=1e-3)


@pytest.mark.parametrize("stops_in", ["encoder", "fit"])
def test_an_interrupted_command_continues_to_the_same_bits(
    stops_in: str, teacher: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(static_training, "_TEXTS_AT_ONCE", 64)
    run(teacher, tmp_path / "whole", static=8, train=[corpus])
    read = list[int]()
    portion = TeacherVectors._portion

    def interrupting(self: TeacherVectors, texts: Any) -> Any:
        read.append(len(texts))
        if stops_in == "encoder" and len(read) == 3:
            raise KeyboardInterrupt
        return portion(self, texts)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    output = tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr(TeacherVectors, "_portion", interrupting)
        if stops_in == "fit":
            patch.setattr(static_training, "corrected_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(teacher, output, static=8, train=[corpus])
    assert not output.exists()
    num_kept = 2 if stops_in == "encoder" else len(read)
    assert num_kept > 1
    events = run(teacher, output, static=8, train=[corpus])
    resumed = [
        event.fields["resumed_portions"] for event in events if event.fields.get("resumed_portions")
    ]
    assert resumed == [num_kept]
    content = (output / "model.safetensors").read_bytes()
    assert content == (tmp_path / "whole" / "model.safetensors").read_bytes()
    # what was kept is gone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "whole"]


def test_what_was_kept_is_not_taken_for_another_command(
    teacher: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(static_training, "corrected_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(teacher, tmp_path / "model", static=8, train=[corpus])
    events = run(teacher, tmp_path / "model", static=8, train=[corpus], train_texts=200)
    assert not any(event.fields.get("resumed_portions") for event in events)
    (evaluation,) = [event for event in events if event.kind == "evaluation"]
    assert evaluation.fields["texts"] == 200


def test_the_command(teacher: Path, corpus: Path, tmp_path: Path, capsys: Any):
    command = ["convert", str(teacher), "-o", str(tmp_path / "m"), "--static", "8", "--json"]
    assert main([*command, "--train", str(corpus), "--train-texts", "150"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (evaluation,) = [line for line in lines if line["kind"] == "evaluation"]
    assert evaluation["texts"] == 150
    assert any("a map that all tokens share" in note for note in lines[-1]["notes"])
    assert Embedder(tmp_path / "m", device="cpu").dimension == 8


def test_a_training_that_makes_the_vectors_worse_says_so(
    teacher: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(static_training, "corrected_rows", lambda *_: opposite(*_))

    def opposite(shares: Any, targets: Any, table: torch.Tensor) -> Any:
        yield from ()
        return -table

    events = run(teacher, tmp_path / "m", static=8, train=[corpus])
    assert any("WARNING: the training made the vectors worse" in event.text for event in events)


def test_bad_requests_are_refused(
    teacher: Path, corpus: Path, trained: tuple[Path, list[Event]], tmp_path: Path
):
    output = tmp_path / "out"
    with refusal("--train trains static vectors", "--static 256"):
        run(teacher, output, train=[corpus])
    with refusal("how much of the text of --train", "--train CORPUS"):
        run(teacher, output, static=8, train_texts=100)
    with refusal("trained from the encoder", "name the encoder instead"):
        run(trained[0], output, static=4, train=[corpus])
    with refusal("--static 33: expected from 1 to 32", "--static 32"):
        run(teacher, output, static=33, train=[corpus])
    few = write_words(tmp_path / "few.jsonl", 60)
    with refusal("trained on 60 texts", "name more text with --train"):
        run(teacher, output, static=8, train=[few])
    with refusal("trained on 99 texts", "raise --train-texts 99"):
        run(teacher, output, static=8, train=[corpus], train_texts=99)
    foreign = tmp_path / "snow.txt"
    foreign.write_text("☃ ☃ ☃\n")
    with refusal("none of the words of the text", "language of the model"):
        run(teacher, output, static=8, train=[foreign])
    with refusal("none of the words of the corpus", "with --train"):
        run(teacher, output, static=8, train=[foreign], text=[corpus])
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    with refusal("no text was found", "name files that hold text"):
        run(teacher, output, static=8, train=[empty])
    with refusal("there is no such file", "ls"):
        run(teacher, output, static=8, train=[tmp_path / "nothing" / "a.txt"])
    with refusal("lies in the input folder", "-o A-FOLDER-ELSEWHERE"):
        run(teacher, corpus.parent / "out", static=8, train=[corpus.parent])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "empty.txt",
        "few.jsonl",
        "snow.txt",
    ]
