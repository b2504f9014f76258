"""Intervals: their coverage on data with a known truth, and equality with loops over resamples."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, norm
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from bertworks.datasets.schema import Item
from bertworks.metrics import intervals
from bertworks.metrics.classification import count_spans
from bertworks.metrics.intervals import (
    Interval,
    RowSums,
    accuracy_by_coverage,
    count_sums,
    cross_validated_difference,
    curve_gain,
    expected_calibration_error,
    interval_of_mean,
    learning_curve,
    middle,
    moved_estimate,
    paired_difference,
    ratio_sums,
    reliability_bins,
    resampled,
    wilson_interval,
)
from bertworks.runs.trials import interval_of_trials, summary, table
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import (
    bounded,
    compute_metrics,
    format_metrics,
    groups_of,
    interval_of,
    row_sums,
)
from bertworks.tasks.settings import TaskConfig


def mean_of(values: np.ndarray) -> RowSums:
    return RowSums(
        np.stack([values, np.ones_like(values)], 1), lambda sums: sums[:, 0] / sums[:, 1]
    )


def bootstrapped(metric: RowSums, *arguments: Any, **options: Any) -> Interval:
    return middle(resampled(metric, *arguments, **options))


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (3, 10), (10, 10), (872, 1000)])
def test_wilson_is_that_of_scipy(right: int, count: int) -> None:
    expected = binomtest(right, count).proportion_ci(method="wilson")
    assert wilson_interval(right, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    found = [bootstrapped(mean_of(rng.normal(3, 2, 60)), seed=n) for n in range(300)]
    assert 0.9 < np.mean([low < 3 < high for low, high in found]) < 0.98


def test_rows_of_a_group_are_drawn_together() -> None:
    """Ten copies of each row hold no more information than one."""
    rng = np.random.default_rng(2)
    values = rng.normal(0, 1, 50)
    groups = np.repeat(np.arange(50), 10).tolist()
    once, ten = bootstrapped(mean_of(values)), bootstrapped(mean_of(np.repeat(values, 10)), groups)
    assert ten == pytest.approx(once, abs=1e-12)
    alone = bootstrapped(mean_of(np.repeat(values, 10)))
    assert alone.high - alone.low < 0.5 * (ten.high - ten.low)


def test_a_paired_difference_does_not_see_what_is_common() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(0, 10, 200)
    difference, interval = paired_difference(
        mean_of(common + 0.5 + rng.normal(0, 0.1, 200)), mean_of(common)
    )
    assert difference == pytest.approx(0.5, abs=0.03)
    assert 0 < interval.low < 0.5 < interval.high
    assert interval.high - interval.low < 0.05
    assert paired_difference(mean_of(common), mean_of(common))[1] == (0, 0)


def metric_of_labels(gold: np.ndarray, predicted: np.ndarray, name: str) -> RowSums:
    """A metric of classes, as the tasks compute it."""
    if name == "accuracy":
        return mean_of((gold == predicted).astype(float))
    sides = [[(0, 1, str(label))] for label in gold], [[(0, 1, str(label))] for label in predicted]
    return count_sums(count_spans(zip(*sides, strict=True), "012")[1])[name]


def predictions(seed: int, count: int, *shares: float) -> list[np.ndarray]:
    """Gold labels, and predictions of which these shares are right; errors go together."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, 3, count)
    luck = rng.random(count)
    return [gold, *(np.where(luck < share, gold, (gold + 1) % 3) for share in shares)]


@pytest.mark.parametrize(
    ("name", "least", "oracle"),
    [
        ("accuracy", 0.0, accuracy_score),
        (
            "macro_f1",
            0.0,
            lambda gold, predicted: f1_score(
                gold, predicted, average="macro", labels=[0, 1, 2], zero_division=0
            ),
        ),
        ("matthews_correlation", -1.0, matthews_corrcoef),
    ],
)
@pytest.mark.parametrize("is_grouped", [False, True])
def test_the_learning_curve_is_its_formula(
    monkeypatch: pytest.MonkeyPatch, name: str, least: float, oracle: Any, is_grouped: bool
) -> None:
    """Scores of scikit-learn on rows that are drawn one by one, and the formula in float64."""
    monkeypatch.setattr(intervals, "SAMPLES", 60)
    gold, by_ten, by_three = predictions(5, 60, 0.8, 0.7)
    groups = np.arange(60) // 3 if is_grouped else np.arange(60)
    num_groups = groups.max() + 1

    def position(predicted: np.ndarray, times: np.ndarray) -> float:
        rows = np.repeat(np.arange(60), times[groups])
        score = oracle(gold[rows], predicted[rows])
        if least:
            return float(np.arctanh(np.clip(score, -1 + 1 / 60, 1 - 1 / 60)))
        return float(np.arctanh(2 * np.clip(score, 0.5 / 60, 1 - 0.5 / 60) - 1))

    def extrapolated(times: np.ndarray) -> float:
        of_ten = position(by_ten, times)
        steps = (1 - 0.9**-0.5) / (0.9**-0.5 - (2 / 3) ** -0.5)
        return of_ten + steps * (of_ten - position(by_three, times))

    draws = np.random.default_rng(0).multinomial(
        num_groups, np.full(num_groups, 1 / num_groups), 60
    )
    center = extrapolated(np.ones(num_groups, int))
    margin = 1.959963984540054 * np.sqrt(1.3) * np.std([extrapolated(times) for times in draws])
    expected = np.tanh([center, center - margin, center + margin])
    expected = expected if least else (expected + 1) / 2
    estimate = learning_curve(
        metric_of_labels(gold, by_ten, name),
        metric_of_labels(gold, by_three, name),
        least,
        groups.tolist() if is_grouped else (),
    )
    assert (estimate.value, *estimate.interval) == pytest.approx(expected, abs=1e-12)


def test_an_interval_is_not_narrower_than_that_of_a_correlation_of_independent_numbers() -> None:
    """Of predictions that are nearly always the most frequent label, resamples hardly differ."""
    gold = np.repeat([0, 0, 0, 1], 25)
    predicted = np.zeros(100, int)
    predicted[[3, 99]] = 1
    groups = (np.arange(100) // 2).tolist()
    for name, least in (("macro_f1", 0.0), ("matthews_correlation", -1.0)):
        sums = metric_of_labels(gold, predicted, name)
        for kwargs in ({}, {"groups": groups}):
            scaled = resampled(sums, **kwargs)
            scaled = np.arctanh(scaled if least else 2 * scaled - 1)
            deviation = max(scaled.std(), 1 / np.sqrt(100))
            assert deviation == 0.1 or name == "matthews_correlation"
            for estimate in (
                learning_curve(sums, sums, least, **kwargs),
                moved_estimate(sums, 0.0, least, **kwargs),
            ):
                bounds = np.array(estimate.interval)
                half = np.diff(np.arctanh(bounds if least else 2 * bounds - 1)) / 2
                assert half == pytest.approx(norm.ppf(0.975) * np.sqrt(1.3) * deviation)


def test_rows_with_several_decisions_have_narrower_intervals() -> None:
    one = ratio_sums([1.0, 0.0] * 50, [1.0] * 100)
    ten = ratio_sums([5.0] * 99 + [4.0], [10.0] * 100)
    assert (one.decisions_per_row, ten.decisions_per_row) == (1, 10)
    widths = [np.subtract(*learning_curve(sums, sums).interval[::-1]) for sums in (one, ten)]
    assert widths[0] / widths[1] == pytest.approx(np.sqrt(10), rel=0.01)


@pytest.mark.slow
def test_the_learning_curve_finds_the_score_of_all_rows() -> None:
    """Scores that are linear in m^-0.5 on the scale: no bias, and the intervals hold."""

    def right(fraction: float) -> float:
        return float(1 + np.tanh(0.9 - 0.5 * (fraction**-0.5 - 1))) / 2

    estimates = []
    for seed in range(300):
        gold, by_ten, by_three = predictions(seed, 200, right(0.9), right(2 / 3))
        pair = (metric_of_labels(gold, side, "accuracy") for side in (by_ten, by_three))
        estimates.append(learning_curve(*pair))
    assert np.mean([value for value, _ in estimates]) == pytest.approx(right(1), abs=0.004)
    held = np.mean([low < right(1) < high for _, (low, high) in estimates])
    assert 0.94 < held <= 0.99  # no chance of other training rows: wider than these need


def test_a_moved_estimate_has_the_gain_of_another_method() -> None:
    gold, better, worse = predictions(6, 90, 0.8, 0.7)
    by_ten, by_three = (metric_of_labels(gold, side, "accuracy") for side in (better, worse))
    gain = curve_gain(by_ten, by_three)
    assert gain == pytest.approx(
        np.arctanh(2 * by_ten.value - 1) - np.arctanh(2 * by_three.value - 1)
    )
    assert curve_gain(by_three, by_ten) == 0
    expensive = metric_of_labels(gold[:60], worse[:60], "accuracy")
    moved = moved_estimate(expensive, gain)
    assert moved.value == pytest.approx(
        (1 + np.tanh(np.arctanh(2 * expensive.value - 1) + gain)) / 2
    )
    samples = np.arctanh(2 * np.clip(resampled(expensive), 0.5 / 60, 1 - 0.5 / 60) - 1)
    variance = 1.3 * samples.var() + (gain / 2) ** 2
    half = np.diff(np.arctanh(2 * np.array(moved.interval) - 1)) / 2
    assert half == pytest.approx(norm.ppf(0.975) * np.sqrt(variance))
    # without a gain the value is that of the rows
    assert moved_estimate(expensive, 0).value == pytest.approx(expensive.value, abs=1e-12)


def test_an_estimate_of_predictions_that_are_all_right_is_wilson_s() -> None:
    gold, predicted = predictions(7, 40, 1.0)
    expected = wilson_interval(40 / 1.3, 40 / 1.3)
    for name, least in (("accuracy", 0.0), ("matthews_correlation", -1.0)):
        sums = metric_of_labels(gold, predicted, name)
        for estimate in (learning_curve(sums, sums, least), moved_estimate(sums, 0.1, least)):
            assert estimate.value == 1
            scaled = [least + (1 - least) * bound for bound in expected]
            assert estimate.interval == pytest.approx(scaled)
    pairs = np.repeat(np.arange(20), 2).tolist()
    assert learning_curve(sums, sums, -1.0, pairs).interval.low < estimate.interval.low


def test_a_difference_of_a_cross_validation_is_wider() -> None:
    gold, better, worse = predictions(8, 200, 0.8, 0.7)
    sides = [metric_of_labels(gold, side, "accuracy") for side in (better, worse)]
    difference, interval = cross_validated_difference(*sides)
    samples = resampled(sides[0]) - resampled(sides[1])
    assert difference == pytest.approx(sides[0].value - sides[1].value)
    margin = norm.ppf(0.975) * np.sqrt(1.3) * samples.std()
    assert interval == pytest.approx((difference - margin, difference + margin))
    few = [mean_of(np.array(right)) for right in ([1.0, 1.0, 1.0], [0.0, 1.0, 0.0])]
    assert cross_validated_difference(*few)[1].high == 1
    assert cross_validated_difference(*few, most=2.0)[1].high > 1


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
                    sides.append(
                        [
                            (n, n + 2, str(rng.choice(["x", "y"])))
                            for n in range(4)
                            if rng.random() < 0.5
                        ]
                    )
                case "choice":
                    sides.append(int(rng.integers(0, 4)))
                case "qa":
                    sides.append(
                        [
                            (0, str(text))
                            for text in rng.choice(
                                ["a red cat", "a cat", "dog"], rng.integers(0, 3)
                            )
                        ]
                    )
        gold, given = sides if rng.random() < 0.6 else (sides[0], sides[0])
        key = {
            "multilabel": "labels",
            "regression": "value",
            "tagging": "tags",
            "choice": "choice",
        }.get(task, "label")
        answer = {key: given}
        if task == "spans":
            answer = {"entities": [{"start": a, "end": b, "type": c} for a, b, c in given]}
        elif task == "qa":
            answer = {"answer": given[0][1] if given else "", "n_best": [], "no_answer_margin": 0.0}
        items.append(Item(("question", "context"), gold, f"row {number}"))
        answers.append(answer)
    return d, items, answers


@pytest.mark.parametrize(
    ("task", "metric"), [(name, metric) for name, task in TASKS.items() for metric in task.metrics]
)
def test_sums_over_rows_give_each_metric(task: str, metric: str) -> None:
    d, items, answers = some_rows(task, np.random.default_rng(4))
    sums = row_sums(d, items, answers)[metric]
    if metric == "spearman":  # the ranks in a resample differ from those in all rows
        return
    drawn = np.random.default_rng(5).integers(0, 40, 40)
    expected = compute_metrics(d, [items[n] for n in drawn], [answers[n] for n in drawn])[metric]
    assert sums.score(np.bincount(drawn, minlength=40)[None] @ sums.rows)[0] == pytest.approx(
        expected, abs=1e-12
    )


@pytest.mark.slow
def test_the_interval_of_a_mean_covers_the_truth_over_rows_and_seeds() -> None:
    """Trainings on 60 rows that they share: the spread of their scores says nothing of the rows."""
    rng, inside, alone, rows_alone = np.random.default_rng(5), 0, 0, 0
    for _ in range(100):
        hard = rng.normal(0, 1, 60)
        seeds = [
            (hard + rng.normal(0.8 + rng.normal(0, 0.1), 0.5, 60) > 0).astype(np.float64)
            for _ in range(8)
        ]
        scores, samples = [float(s.mean()) for s in seeds], [resampled(mean_of(s)) for s in seeds]
        truth = norm.cdf(0.8 / np.sqrt(1 + 0.25 + 0.01))
        low, high = interval_of_mean(scores, samples)
        inside += low <= truth <= high
        margin = 2.365 * np.std(scores, ddof=1) / np.sqrt(8)
        alone += abs(np.mean(scores) - truth) <= margin
        one = interval_of_mean(scores[:1], samples[:1])
        rows_alone += one == bootstrapped(mean_of(seeds[0]))
    assert inside >= 0.9 * 100
    assert alone < 0.75 * 100
    assert rows_alone == 100


def test_trials_stay_within_their_bounds() -> None:
    """Three seeds on six rows: 90, 90 and 100 %."""
    trials = [
        {"setting": "", "seed": n, "score": score, "metric": "accuracy", "rows": 10}
        for n, score in enumerate([0.9, 0.9, 1.0])
    ]
    samples = [resampled(mean_of(np.array([1.0] * 9 + [score > 0.9]))) for score in (0.9, 0.9, 1.0)]
    low, high = interval_of_trials(trials, samples)
    assert 0.5 < low < 0.9 < 0.95 < high <= 1
    (row,) = summary(trials, samples)
    assert row["interval"] == (low, high)
    assert table("accuracy", [row]).startswith(
        f"all: accuracy 93.3% ({100 * low:.1f} to 100.0%), deviation 5.8%; 90.0%, "
    )
    perfect = [trial | {"score": 1.0} for trial in trials]
    assert interval_of_trials(perfect, [np.ones(1000)] * 3) == pytest.approx(
        wilson_interval(10, 10)
    )
    folds = [{**trial, "seed": 0} for trial in perfect]  # all rows of three folds
    assert interval_of_trials(folds, [np.ones(1000)] * 3) == pytest.approx(wilson_interval(30, 30))


@pytest.mark.parametrize("task", TASKS)
def test_intervals_are_within_bounds_and_hold_the_figure(task: str) -> None:
    for seed, count in ((0, 40), (1, 3)):
        d, items, answers = some_rows(task, np.random.default_rng(seed))
        items, answers = items[:count], answers[:count]
        figures = row_sums(d, items, answers)
        for metric in TASKS[task].metrics:
            low, high = interval_of(d, items, figures[metric], metric)
            assert -1 <= low <= figures[metric].value + 1e-9
            assert figures[metric].value - 1e-9 <= high <= 1
            assert low < high, "few rows that are all right say little"


def test_independent_fractions_have_the_interval_of_wilson() -> None:
    d = TaskConfig(task="classification", labels=("no", "yes"))
    items = [Item(("x",), "yes", f"row {n}") for n in range(20)]
    answers = [{"label": "yes" if n < 17 else "no"} for n in range(20)]
    sums = row_sums(d, items, answers)["accuracy"]
    assert interval_of(d, items, sums, "accuracy") == pytest.approx(wilson_interval(17, 20))
    kept = [item._replace(document=f"{n // 2}") for n, item in enumerate(items)]
    assert interval_of(d, kept, sums, "accuracy") != pytest.approx(wilson_interval(17, 20))
    assert len(set(groups_of(d, kept))) == 10
    assert len(set(groups_of(d, kept[:18]))) == 18  # nine documents show too little


def test_correlations_are_no_shares() -> None:
    assert bounded(Interval(-1.2, 0.9), 0.5, 10, "pearson") == (-1, 0.9)
    assert bounded(Interval(-1.2, 0.9), 0.5, 10, "f1") == (0, 0.9)
    assert bounded(Interval(1, 1), 1.0, 5, "pearson").low == pytest.approx(
        2 * wilson_interval(5, 5).low - 1
    )
    text = format_metrics(
        {"pearson": 0.5, "accuracy": 0.5}, {"pearson": (0.4, 0.6), "accuracy": (0.4, 0.6)}
    )
    assert text == "accuracy 50.0% (40.0 to 60.0%), Pearson 0.500 (0.400 to 0.600)"


def classified(
    gold: list[str], predicted: list[str]
) -> tuple[TaskConfig, list[Item], list[dict[str, str]]]:
    d = TaskConfig(task="classification", labels=tuple(sorted({*gold, *predicted})))
    items = [Item(("a text",), label, f"row {number}") for number, label in enumerate(gold, 1)]
    return d, items, [{"label": label} for label in predicted]


def test_macro_f1_of_a_resample_is_over_all_labels_of_the_rows() -> None:
    """Equal to scikit-learn's with `labels` and `zero_division=0`, also where a resample lacks a
    label."""
    rng = np.random.default_rng(6)
    gold = [str(label) for label in rng.choice(["a", "b", "c", "d"], 30, p=[0.6, 0.3, 0.05, 0.05])]
    predicted = [label if rng.random() < 0.5 else "a" for label in gold]
    predicted[0] = "e"  # no row has this label
    sums = row_sums(*classified(gold, predicted))["macro_f1"]
    names = sorted({*gold, *predicted})
    lacking = 0
    for _ in range(200):
        drawn = rng.integers(0, 30, 30)
        sides = [[side[n] for n in drawn] for side in (gold, predicted)]
        lacking += len(set().union(*sides)) < len(names)
        expected = f1_score(*sides, labels=names, average="macro", zero_division=0.0)
        found = sums.score(np.bincount(drawn, minlength=30)[None] @ sums.rows)[0]
        assert found == pytest.approx(expected, abs=1e-12)
    assert lacking > 50


def test_a_label_that_is_never_found_gives_no_resample_a_perfect_macro_f1() -> None:
    """One row of 300 has a label that the model never predicts: macro F1 is 49.9 %, and never 100
    %."""
    d, items, answers = classified(["often"] * 299 + ["rare"], ["often"] * 300)
    sums = row_sums(d, items, answers)["macro_f1"]
    low, high = interval_of(d, items, sums, "macro_f1")
    assert sums.value == pytest.approx(0.499, abs=5e-4)
    assert 0.49 < low <= sums.value <= high <= 0.5


@pytest.mark.parametrize(("rows_of_label", "is_known"), [(1, False), (20, True)])
def test_macro_f1_of_labels_with_one_row_has_no_interval(
    rows_of_label: int, is_known: bool
) -> None:
    """A third of the labels lacks in each resample: all resamples are below the score."""
    gold = [f"label {n}" for n in range(60)] * rows_of_label
    predicted = [label if n % 2 else "label 0" for n, label in enumerate(gold)]
    d, items, answers = classified(gold, predicted)
    sums = row_sums(d, items, answers)
    assert (interval_of(d, items, sums["macro_f1"], "macro_f1") is not None) == is_known
    low, high = interval_of(d, items, sums["accuracy"], "accuracy")
    assert low < sums["accuracy"].value < high


def test_bins_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    confidence = np.append(rng.uniform(0.3, 0.95, 500), [0.5, 1.0])
    right = (rng.uniform(size=502) < confidence).astype(float)
    bins = reliability_bins(confidence, right)
    fractions, means = calibration_curve(right, confidence, n_bins=10)
    assert [part.correct for part in bins] == pytest.approx(fractions.tolist())
    assert [part.confidence for part in bins] == pytest.approx(means.tolist())
    assert sum(part.predictions for part in bins) == 502
    assert all(part.low <= part.confidence <= part.high for part in bins)


def test_the_most_confident_answers_are_kept() -> None:
    confidence = np.array([0.9, 0.5, 0.8, 0.6, 0.7])
    right = np.array([1.0, 0.0, 1.0, 0.0, 1.0])
    assert accuracy_by_coverage(confidence, right, 5) == [
        (0.2, 1.0),
        (0.4, 1.0),
        (0.6, 1.0),
        (0.8, 0.75),
        (1.0, 0.6),
    ]
    assert accuracy_by_coverage(confidence[:1], right[:1]) == [(1.0, 1.0)]


def test_calibration_errors_of_right_and_of_wrong_confidences() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 4000)
    right = (rng.uniform(size=4000) < confidence).astype(float)
    error, (low, high) = expected_calibration_error(confidence, right)
    assert error < 0.02
    assert low <= error <= high
    error, (low, high) = expected_calibration_error(confidence, np.zeros(4000))
    assert error == pytest.approx(confidence.mean(), abs=0.01)
    assert low <= error <= high
