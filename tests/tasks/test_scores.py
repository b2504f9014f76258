"""Single mistakes: none is lost, none is invented, each stands in its place, and the tables add
up. Temperatures, thresholds and the calibration error: against scikit-learn, scipy and a truth that
is known."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.metrics import accuracy_score, f1_score, log_loss

from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.task_config import read_task_json, save_task
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError
from bertworks.inference.explain import explain
from bertworks.inference.predictor import Predictor
from bertworks.metrics import intervals
from bertworks.metrics.intervals import (
    best_label_threshold,
    confidences,
    expected_calibration_error,
    fit_temperature,
)
from bertworks.tasks import scores, token_labels
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import (
    FEWEST_CALIBRATED,
    compute_metrics,
    confusion,
    counted,
    fit_outputs,
    mistakes,
    row_sums,
    task_results,
)
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig, TaskType
from tests.support.served import write_head

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


def describe(task: TaskType, **fields: Any) -> TaskConfig:
    return TaskConfig(task=task, **fields)


def tagged(tags: list[str]) -> dict[str, Any]:
    return {"tags": tags, "scores": [0.5] * len(tags)}


def test_counts_in_words() -> None:
    assert counted(1, 2000) == "1 mistake in 2,000 rows"
    assert counted(1200, 2000) == "1,200 mistakes in 2,000 rows"


@settings(deadline=None, max_examples=30)
@given(
    some.lists(
        some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4)), max_size=20), min_size=1
    ),
    some.sampled_from(
        [(TAGS, False), (("NOUN", "O", "VERB", "X", "Y"), False), (("O", "x", "y", "z", "v"), True)]
    ),
)
def test_a_row_in_parts_has_the_same_figures(
    rows: list[list[tuple[int, int]]], tags: tuple[tuple[str, ...], bool]
) -> None:
    d = describe("tagging", labels=tags[0], bare_types=tags[1])
    items = [Item(("w",) * len(row), tuple(d.labels[n] for n, _ in row), "a:1") for row in rows]
    answers = [tagged([d.labels[n] for _, n in row]) for row in rows]

    def figures() -> Any:
        counts = {name: sums.rows.tolist() for name, sums in row_sums(d, items, answers).items()}
        return counts, sorted(map(repr, mistakes(d, items, answers))), confusion(d, items, answers)

    whole = figures()
    with patch.object(token_labels, "COUNTED_AT_ONCE", 2):
        assert figures() == whole


def long_row(
    words: int, gold: str, answer: str
) -> tuple[TaskConfig, list[Item], list[dict[str, Any]]]:
    """A word in two is an entity, by the gold tags and by the answer."""
    tags = [[tag, "O"] * (words // 2) for tag in (gold, answer)]
    item = Item(("word",) * words, tuple(tags[0]), "a:1")
    return describe("tagging", labels=("B-x", "B-y", "O")), [item], [tagged(tags[1])]


def test_the_entities_of_a_long_row_take_little_memory() -> None:
    row = long_row(100_000, "B-x", "B-x")
    row_sums(*row)
    for measure in (row_sums, confusion):
        tracemalloc.start()
        measure(*row)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6, f"{measure.__name__}: those of the whole row take twice as much"


@pytest.mark.slow
def test_each_mistake_of_a_long_row_shows_the_words_around_it() -> None:
    """The whole text in each would be 10 GB, and pairs found by comparing all with all would take
    minutes."""
    d, items, answers = long_row(40_000, "B-x", "B-y")
    found = mistakes(d, items, answers)
    assert len(found) == 20_000
    assert {one.kind for one in found} == {"true 'x', predicted 'y'"}
    assert max(len(one.texts[0]) for one in found) == len("... ... ") + len("word " * 41) - 1
    short = mistakes(*long_row(1000, "B-x", "B-y"))
    assert short[0].texts == (" ".join(["word"] * 1000),)


def test_results_are_those_of_scikit_learn() -> None:
    d = describe("classification", labels=("a", "b", "c"))
    gold = ["a", "a", "b", "b", "b", "c"]
    predicted = ["a", "b", "b", "b", "b", "b"]
    rows = [Features(Item((f"text {n}",), label, f"a.csv:{n}"), ()) for n, label in enumerate(gold)]
    answers = [{"label": label, "score": 0.7, "scores": {label: 0.7}} for label in predicted]
    results, wrong = task_results(d, rows, answers)
    figures = results["figures"]
    assert figures["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert figures["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert results["intervals"].keys() == figures.keys()
    assert all(low <= figures[name] <= high for name, (low, high) in results["intervals"].items())
    assert (results["task"], results["rows"], results["positive"]) == ("classification", 6, None)
    assert {name: row["support"] for name, row in results["table"].items()} == Counter(gold)
    assert results["never_found"] == {"c": 1}
    assert [one.where for one in wrong] == ["a.csv:1", "a.csv:5"]
    assert results["mistakes"] == 2


# --- calibration
# --------------------------------------------------------------------------------------------------


LABELS = ("a", "b", "c")


def drawn(
    count: int, temperature: float, seed: int = 0, labels: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and gold labels drawn with the probabilities that these logits have with a
    temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (count, labels)).astype(np.float32)
    chosen = (softmax(logits / temperature, axis=1).cumsum(1) < rng.random((count, 1))).sum(1)
    return logits, np.minimum(chosen, labels - 1)


def of_rows(logits: np.ndarray, gold: np.ndarray) -> list[Features]:
    """Rows of one label."""
    none, examples = np.zeros(0, np.int64), [np.asarray([n]) for n in gold]
    return [
        Features(
            Item(("x",), LABELS[n[0]], f"a.csv:{row}"),
            [Example(none, none, {"task": Target(none, n)})],
        )
        for row, n in enumerate(examples)
    ]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_the_temperature_is_the_one_of_the_data(temperature: float) -> None:
    logits, gold = drawn(20_000, temperature)
    assert fit_temperature(logits, gold) == pytest.approx(temperature, rel=0.04)
    truth = (np.random.default_rng(1).random(logits.shape) < expit(logits / temperature)).astype(
        np.float32
    )
    assert fit_temperature(logits, truth) == pytest.approx(temperature, rel=0.04)


@pytest.mark.parametrize("several", [False, True])
def test_the_temperature_has_the_smallest_log_loss(several: bool) -> None:
    logits, gold = drawn(300, 2.0)
    truth = (np.random.default_rng(1).random(logits.shape) < expit(logits / 2)).astype(np.float32)

    def loss(x: np.ndarray) -> float:
        scaled = logits.astype(np.float64) / np.exp(x[0])
        if several:
            total = log_loss(truth.ravel(), expit(scaled).ravel(), normalize=False)
        else:
            total = log_loss(gold, softmax(scaled, axis=1), labels=[0, 1, 2], normalize=False)
        return total + x[0] ** 2 / 2

    found = minimize(loss, [0.0], method="Nelder-Mead").x[0]
    assert fit_temperature(logits, truth if several else gold) == pytest.approx(
        np.exp(found), rel=1e-3
    )


def test_predictions_that_are_all_right_keep_some_doubt() -> None:
    logits = np.tile(np.float32([3, 0]), (50, 1))
    found = fit_temperature(logits, np.zeros(50, np.int64))
    assert 0.3 < found < 0.8


def plain_error(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    order = np.argsort(confidence, kind="stable")
    parts = [order[len(order) * b // bins : len(order) * (b + 1) // bins] for b in range(bins)]
    return sum(len(p) * abs(correct[p].mean() - confidence[p].mean()) for p in parts) / len(order)


def test_without_noise_the_error_is_the_plain_one() -> None:
    """Where all rows of a bin are right, or all wrong, there is no noise to remove."""
    rng = np.random.default_rng(0)
    confidence = rng.random(150)
    correct = (np.argsort(np.argsort(confidence)) // 10 % 2).astype(np.float64)
    found, interval = expected_calibration_error(confidence, correct)
    assert found == pytest.approx(plain_error(confidence, correct, 15), abs=1e-12)
    assert 0 <= interval.low <= found <= interval.high <= 1


def test_the_error_is_debiased_as_by_drawing() -> None:
    """The mean of the plain error over new noise of each bin, minus the plain error, is what is
    taken away."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 600)
    correct = (rng.random(600) < confidence - 0.05).astype(np.float64)
    order = np.argsort(confidence, kind="stable").reshape(15, 40)
    share, mean = correct[order].mean(1), confidence[order].mean(1)
    noisy = np.abs(
        rng.normal(share, np.sqrt(share * (1 - share) / 40), (100_000, 15)) - mean
    ).mean()
    expected = 2 * plain_error(confidence, correct, 15) - noisy
    assert expected_calibration_error(confidence, correct)[0] == pytest.approx(expected, abs=1e-3)


def test_the_error_and_its_interval_find_the_truth() -> None:
    """Predictions that are 10 points too sure; and honest ones, where the plain error is all
    noise."""
    rng, over, honest, plain, inside = np.random.default_rng(0), [], [], [], 0
    for _ in range(12):
        confidence = rng.uniform(0.6, 1, 500)
        sure = (rng.random(500) < confidence - 0.1).astype(np.float64)
        error, interval = expected_calibration_error(confidence, sure)
        over.append(error)
        inside += interval.low <= 0.1 <= interval.high
        right = (rng.random(500) < confidence).astype(np.float64)
        honest.append(expected_calibration_error(confidence, right)[0])
        plain.append(plain_error(confidence, right, 15))
    assert np.mean(over) == pytest.approx(0.1, abs=0.02)
    assert np.mean(honest) < 0.75 * np.mean(plain)
    assert inside >= 10


def test_words_of_a_sentence_are_drawn_together() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 1, 100)
    correct = (rng.random(100) < confidence - 0.2).astype(np.float64)
    rows = np.repeat(np.arange(100), 20)
    several = expected_calibration_error(np.repeat(confidence, 20), np.repeat(correct, 20), rows)[1]
    alone = expected_calibration_error(np.repeat(confidence, 20), np.repeat(correct, 20))[1]
    assert alone.high - alone.low < 0.5 * (several.high - several.low)


@settings(max_examples=25, deadline=None)
@given(some.integers(0, 10_000))
def test_the_threshold_of_labels_has_the_best_f1(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = np.round(rng.random((8, 3)), 1)
    gold = (rng.random((8, 3)) < p).astype(np.int64)

    def f1(threshold: float) -> float:
        return float(f1_score(gold, p >= threshold, average="micro", zero_division=0))

    found = best_label_threshold(p, gold)
    assert 0 <= found <= 1
    assert f1(found) == pytest.approx(max(map(f1, np.arange(-0.1, 1, 0.1) + 0.05)))


def test_predictions_stay_and_probabilities_change() -> None:
    d, logits = TaskConfig(task="classification", labels=LABELS), np.float32([[3, 1, 0]])
    (row,) = of_rows(logits, np.array([0]))
    cold, warm = (
        task_of(d).decode(row, logits),
        task_of(TaskConfig(task="classification", labels=LABELS, temperature=2.0)).decode,
    )
    assert warm(row, logits)["label"] == cold["label"]
    assert list(warm(row, logits)["scores"].values()) == pytest.approx(
        softmax([1.5, 0.5, 0]).tolist()
    )


def test_the_fit_is_scored_on_other_rows() -> None:
    logits, gold = drawn(1000, 3.0)
    d = TaskConfig(task="classification", labels=LABELS)
    fitted, answers, reliability = fit_outputs(d, of_rows(logits, gold), logits[:, None])
    assert fitted.temperature == pytest.approx(fit_temperature(logits, gold))
    assert [a["label"] for a in answers] == [LABELS[n] for n in logits.argmax(1)]
    assert answers[0]["score"] == pytest.approx(softmax(logits[0] / fitted.temperature).max())
    before, after = reliability["before"], reliability["after"]
    assert before["error"] == pytest.approx(
        expected_calibration_error(*confidences(logits, gold))[0]
    )
    assert before["interval"].low > 0.1 > after["interval"].high
    few = FEWEST_CALIBRATED - 1
    fitted, _, reliability = fit_outputs(d, of_rows(logits, gold)[:few], logits[:few, None])
    assert (fitted, reliability) == (d, {})


def test_copies_of_a_text_are_in_one_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows on which a temperature is fitted must not be those on which it is judged."""
    logits, gold = drawn(60, 3.0)
    texts = [f"Who was king number {number}" for number in range(30)]
    rows = [
        row._replace(item=row.item._replace(texts=(text,)))
        for row, text in zip(
            of_rows(logits, gold), [*texts, *(f"{text}?" for text in texts)], strict=True
        )
    ]
    halves: list[list[list[int]]] = []

    def recorded(groups: Sequence[Hashable]) -> list[list[int]]:
        halves.append(divide(groups))
        return halves[-1]

    divide = scores._halves
    monkeypatch.setattr(scores, "_halves", recorded)
    fit_outputs(TaskConfig(task="classification", labels=LABELS), rows, logits[:, None])
    ((first, second),) = halves
    assert len(first) == len(second) == 30
    assert {number % 30 for number in first}.isdisjoint(number % 30 for number in second)


def test_the_threshold_of_labels_is_scored_on_other_rows() -> None:
    """Labels of pure noise: with the threshold of the same rows their F1 would look better than it
    is."""
    rng = np.random.default_rng(0)
    d, logits = (
        TaskConfig(task="multilabel", labels=LABELS),
        rng.normal(-2, 1, (300, 3)).astype(np.float32),
    )
    none, gold = (
        np.zeros(0, np.int64),
        (rng.random((300, 3)) < expit(logits + 2)).astype(np.float32),
    )
    rows = [
        Features(
            Item(("x",), tuple(np.array(LABELS)[truth > 0]), f"a.csv:{n}"),
            [Example(none, none, {"task": Target(none, truth[None])})],
        )
        for n, truth in enumerate(gold)
    ]
    fitted, answers, reliability = fit_outputs(d, rows, logits[:, None])
    items, decode = (
        [row.item for row in rows],
        list(map(task_of(fitted).decode, rows, logits[:, None])),
    )
    assert 0.02 < fitted.threshold < 0.45
    honest, same, half = (
        compute_metrics(d, items, found)["micro_f1"]
        for found in (answers, decode, list(map(task_of(d).decode, rows, logits[:, None])))
    )
    assert half + 0.05 < honest <= same + 1e-9
    assert reliability["rows"] == 300


def test_the_temperature_is_stored_and_checked(tmp_path: Path) -> None:
    save_task(TaskConfig(task="classification", labels=LABELS, temperature=1.5), tmp_path)
    path = tmp_path / "task.json"
    assert read_task_json(path).temperature == 1.5
    content = json.loads(path.read_text())
    for wrong in (0, -1, float("inf"), float("nan"), "hot"):
        path.write_text(json.dumps(content | {"temperature": wrong}))
        with pytest.raises(BertworksError):
            read_task_json(path)
    del content["temperature"]  # as earlier versions wrote it
    path.write_text(json.dumps(content))
    assert read_task_json(path).temperature == 1.0


def test_a_model_with_a_temperature_answers_and_explains_so(tmp_path: Path) -> None:
    odds = []
    for temperature in (1.0, 3.0):
        folder = write_head(
            tmp_path / f"{temperature}",
            task="classification",
            labels=LABELS,
            temperature=temperature,
        )
        answer = Predictor(folder, device="cpu", precision="fp32").predict(
            ["a good film"], probabilities=True
        )[0]
        p = answer["scores"]["a"]
        odds.append((np.log(p / (answer["scores"]["b"] + 1e-300)), answer["label"]))
        shown = explain(folder, "a good film", target="a", device="cpu")
        assert shown.gradients is not None
        assert shown.gradients.end == pytest.approx(np.log(p / (1 - p)), abs=1e-4)
    assert odds[0][0] == pytest.approx(3 * odds[1][0], rel=1e-4)
    assert odds[0][1] == odds[1][1]


@pytest.mark.parametrize("shape", [(50,), (50, 3)], ids=["classes", "labels"])
def test_blocks_of_rows_have_the_same_bits(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(0)
    logits, gold = (
        generator.normal(size=(50, 3)).astype(np.float32),
        generator.integers(2, size=shape),
    )

    def results() -> list[Any]:
        sides = [confidences(logits, gold, divisor) for divisor in (1.5, 1 + np.arange(50))]
        return [fit_temperature(logits, gold), *(side.tolist() for pair in sides for side in pair)]

    whole = results()
    monkeypatch.setattr(intervals, "_ROWS", 7)
    assert results() == whole
