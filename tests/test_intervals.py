"""Intervals: their coverage on data with a known truth, and equality with loops over resamples."""

import numpy as np
import pytest
from scipy.stats import binomtest

from bertworks.checkpoints.model_folder import TaskConfig
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, UsageError
from bertworks.metrics.intervals import RowSums, bootstrap_interval, paired_difference, wilson_interval
from bertworks.runs.task_metrics import METRICS, compute_metrics, row_sums


def mean_of(values: np.ndarray) -> RowSums:
    return RowSums(np.stack([values, np.ones_like(values)], 1), lambda sums: sums[:, 0] / sums[:, 1])


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (3, 10), (10, 10), (872, 1000)])
def test_wilson_is_that_of_scipy(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    found = [bootstrap_interval(mean_of(rng.normal(3, 2, 60)), seed=n) for n in range(300)]
    assert 0.9 < np.mean([low < 3 < high for low, high in found]) < 0.98


def test_rows_of_a_group_are_drawn_together() -> None:
    """Ten copies of each row hold no more information than one."""
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, 50)
    groups = np.repeat(np.arange(50), 10).tolist()
    once, ten = bootstrap_interval(mean_of(values)), bootstrap_interval(mean_of(np.repeat(values, 10)), groups)
    assert ten == pytest.approx(once, abs=1e-12)
    alone = bootstrap_interval(mean_of(np.repeat(values, 10)))
    assert alone.high - alone.low < 0.5 * (ten.high - ten.low)


def test_a_paired_difference_does_not_see_what_is_common() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(0, 10, 200)
    difference, interval = paired_difference(mean_of(common + 0.5 + rng.normal(0, 0.1, 200)), mean_of(common))
    assert difference == pytest.approx(0.5, abs=0.03)
    assert interval.low < 0.5 < interval.high
    assert interval.is_positive
    assert interval.high - interval.low < 0.05
    assert paired_difference(mean_of(common), mean_of(common))[1] == (0, 0)
    with pytest.raises(BertworksError, match="200 rows are compared with 3"):
        paired_difference(mean_of(common), mean_of(np.ones(3)))


def some_rows(task: str, rng: np.random.Generator) -> tuple[TaskConfig, list[Item], list[dict]]:
    """A task with random labels and predictions, half of them right."""
    labels = {
        "tagging": ("B-PER", "I-PER", "B-LOC", "O"),
        "classification": ("no", "yes"),
        "multilabel": ("a", "b", "c"),
    }
    d, items, answers = TaskConfig(task=task, labels=labels.get(task, ())), [], []
    for number in range(40):
        sides = []
        for _ in "ab":
            match task:
                case "classification":
                    sides.append(str(rng.choice(d.labels)))
                case "multilabel":
                    sides.append([label for label in d.labels if rng.random() < 0.4])
                case "regression":
                    sides.append(float(rng.integers(0, 6)))
                case "tagging":
                    sides.append(rng.choice(d.labels, 5).tolist())
                case "spans":
                    sides.append([(n, n + 2, str(rng.choice(["x", "y"]))) for n in range(4) if rng.random() < 0.5])
                case "choice":
                    sides.append(int(rng.integers(0, 4)))
                case "qa":
                    sides.append(
                        [(0, str(text)) for text in rng.choice(["a red cat", "a cat", "dog"], rng.integers(0, 3))]
                    )
        gold, given = sides if rng.random() < 0.6 else (sides[0], sides[0])
        key = {"multilabel": "labels", "regression": "value", "tagging": "tags", "choice": "choice"}.get(task, "label")
        answer = {key: given}
        if task == "spans":
            answer = {"entities": [{"start": a, "end": b, "type": c} for a, b, c in given]}
        elif task == "qa":
            answer = {"answer": given[0][1] if given else "", "n_best": [], "no_answer_margin": 0.0}
        items.append(Item(("question", "context"), gold, f"row {number}"))
        answers.append(answer)
    return d, items, answers


@pytest.mark.parametrize(("task", "metric"), [(task, metric) for task, names in METRICS.items() for metric in names])
def test_sums_over_rows_give_each_metric(task: str, metric: str) -> None:
    d, items, answers = some_rows(task, np.random.default_rng(4))
    sums = row_sums(d, items, answers, metric)
    assert sums.value == pytest.approx(compute_metrics(d, items, answers)[metric], abs=1e-12)
    if metric == "spearman":  # the ranks in a resample differ from those in all rows
        return
    drawn = np.random.default_rng(5).integers(0, 40, 40)
    expected = compute_metrics(d, [items[n] for n in drawn], [answers[n] for n in drawn])[metric]
    assert sums.resampled(np.bincount(drawn, minlength=40)[None])[0] == pytest.approx(expected, abs=1e-12)


def test_a_metric_of_another_task() -> None:
    with pytest.raises(UsageError, match="is not a metric of choice"):
        row_sums(*some_rows("choice", np.random.default_rng(4)), "pearson")
