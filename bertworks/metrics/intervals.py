"""Compute confidence intervals of metrics, and of differences between predictions of the same rows.

Also calibration: temperatures, thresholds and the expected calibration error.

- `RowSums`: a metric as a function of sums over rows, so that thousands of resamples are a matrix
  product
- `resampled`, `middle`: the percentile bootstrap (Efron and Tibshirani 1993, chapter 13) of a
  metric
- `paired_difference`: the same of a difference, on the same resamples for both (Koehn 2004)
- `wilson_interval`: of a fraction of independent rows (Wilson 1927)
- `interval_of_mean`: of the mean of several trainings, over rows and seeds
- `learning_curve`, `moved_estimate`: the score of a model of all rows, estimated in a
  cross-validation; `cross_validated_difference`: of two methods
- `ratio_sums`, `mean_sums`, `count_sums`, `correlations`: metrics as functions of sums
- `label_correlation`: of labels that are true or false by themselves
- `fit_temperature`: one number by which logits are divided (Guo et al. 2017)
- `confidences`: logits and gold labels -> probabilities, and what was right
- `best_label_threshold`: of predictions with several labels
- `expected_calibration_error`: do predictions with a probability of 80 % turn out right in 80 % of
  all cases? Bins of equal mass, debiased
- `reliability_bins`: the same question for a chart; `accuracy_by_coverage`: what if only the most
  confident predictions are used?

Rows that belong together (questions on a context, sentences of a document) are resampled together.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError

Array = NDArray[np.float64]
SAMPLES = 1000
# Fewer groups are not resampled as a whole: they would show too little of the chance.
FEWEST_GROUPS = 10
# The variance of a score of a cross-validation, compared with that over resampled rows: other rows
# train other models.
TRAINING_VARIANCE = 1.3
# The fractions of the rows from which the models of ten and of three folds learn.
FRACTIONS = (9 / 10, 2 / 3)
_BLOCK = 1 << 24  # numbers in memory at a time
_ROWS = 1 << 15  # rows of logits in memory at a time
_Z = 1.959963984540054  # the quantile of the normal distribution for 95 %
_ROUNDING = 1e-9  # a deviation of resamples that are all equal


class Interval(NamedTuple):
    """A confidence interval of 95 %."""

    low: float
    high: float


@dataclass(frozen=True)
class RowSums:
    """A metric of rows, as a function of sums over them.

    Attributes:
        rows: float64 [rows, k]: what each row adds to the sums.
        score: sums [samples, k] -> the metric [samples].
        decisions_per_row: the mean number of labels, tokens or numbers of a row that the metric
            counts.
    """

    rows: Array
    score: Callable[[Array], Array]
    decisions_per_row: float = 1.0

    @property
    def value(self) -> float:
        """The metric of all rows."""
        return float(self.score(self.rows.sum(0, keepdims=True))[0])


def resampled(metric: RowSums, groups: Sequence[Hashable] = (), seed: int = 0) -> Array:
    """Return the metric of SAMPLES resamples of the groups: float64 [SAMPLES].

    The resamples are the same for equal groups and seeds.

    Args:
        groups: the group of each row; (): each row is a group of its own.
    """
    count = len(metric.rows)
    generator = np.random.default_rng(seed)
    numbers = dict[Hashable, int]()
    group_of_row = np.array(
        [numbers.setdefault(key, len(numbers)) for key in groups or range(count)]
    )
    probabilities = np.full(len(numbers), 1 / len(numbers))
    block_size = max(1, _BLOCK // count)
    scores = []
    for start in range(0, SAMPLES, block_size):
        num_samples = min(block_size, SAMPLES - start)
        times = generator.multinomial(len(numbers), probabilities, num_samples)  # of each group
        scores.append(metric.score(times[:, group_of_row].astype(np.float64) @ metric.rows))
    return np.concatenate(scores)


def interval_of_mean(scores: Sequence[float], samples: Sequence[Array]) -> Interval:
    """Return the interval of the mean of several trainings, over the rows and the seeds.

    Args:
        scores: the mean of each seed; their spread adds noise of Student's t.
        samples: `resampled` of each training.
    """
    means = np.mean(samples, axis=0)
    count = len(scores)
    if count > 1:
        from scipy.special import stdtrit

        # Quantiles of Student's t, which are then shuffled.
        noise = stdtrit(count - 1, (np.arange(len(means)) + 0.5) / len(means))
        error = float(np.std(scores, ddof=1)) / math.sqrt(count)
        means = means + error * np.random.default_rng(0).permutation(noise)
    return middle(means)


def mean_of_runs(runs: Sequence[RowSums]) -> tuple[float, Interval]:
    """Return the mean of several trainings, each measured on the same rows, and its interval."""
    values = [run.value for run in runs]
    return float(np.mean(values)), interval_of_mean(values, list(map(resampled, runs)))


def paired_difference(
    metric: RowSums, other: RowSums, groups: Sequence[Hashable] = ()
) -> tuple[float, Interval]:
    """Return metric - other, on the same rows, and the interval of the difference."""
    both = difference(metric, other)
    return both.value, middle(resampled(both, groups))


def difference(metric: RowSums, other: RowSums) -> RowSums:
    """Return metric - other, on the same rows, as a metric."""
    width = metric.rows.shape[1]
    rows = np.concatenate([metric.rows, other.rows], 1)
    return RowSums(rows, lambda sums: metric.score(sums[:, :width]) - other.score(sums[:, width:]))


class Estimate(NamedTuple):
    """The score that a model of all rows probably has on new rows, and the interval of 95 %.

    None: no interval is known to hold.
    """

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class _Scale:
    """A scale without bounds, on which errors of a score are nearly normal: atanh (Fisher 1915).

    least: the smallest value of the score: 0 of accuracy and F1, -1 of correlations. The largest
        is 1.
    num_rows: half a row away from the bounds scores count as that.
    """

    least: float
    num_rows: int

    def positions(self, scores: Array | float) -> Array:
        """Return the positions of scores on this scale."""
        margin = 0.5 / self.num_rows
        fractions = (np.asarray(scores) - self.least) / (1 - self.least)
        return np.asarray(np.arctanh(2 * np.clip(fractions, margin, 1 - margin) - 1), np.float64)

    def score(self, position: float) -> float:
        """Return the score at a position."""
        return self.least + (1 - self.least) * (1 + math.tanh(position)) / 2

    def estimate(
        self,
        position: float,
        samples: Array,
        metric: RowSums,
        groups: Sequence[Hashable],
        other_variance: float = 0.0,
    ) -> Estimate:
        """Return the estimate for a position with a normal error.

        Its variance is that of the resamples, but at least that of the correlation of independent
        numbers (Fisher 1915), which accuracies near 1/2 have too: 1 / the number of decisions. The
        resamples of a model that nearly always predicts the most frequent label hardly differ, and
        other rows would train another model. The variance is multiplied by TRAINING_VARIANCE.

        Args:
            samples: positions of resamples. If all are equal, the interval is Wilson's, of as many
                rows as there are groups.
            metric: of the rows.
            groups: see `resampled`.
            other_variance: is added.
        """
        variance = float(samples.var())
        if variance > _ROUNDING**2:
            num_decisions = len(metric.rows) * metric.decisions_per_row
            variance = max(variance, 1 / num_decisions)
            margin = _Z * math.sqrt(TRAINING_VARIANCE * variance + other_variance)
            bounds = self.score(position - margin), self.score(position + margin)
            return Estimate(self.score(position), Interval(*bounds))
        value = metric.value
        count = (len(set(groups)) or len(metric.rows)) / TRAINING_VARIANCE
        fraction = (value - self.least) / (1 - self.least)
        bounds = wilson_interval(fraction * count, count)
        low, high = (self.least + (1 - self.least) * bound for bound in bounds)
        return Estimate(value, Interval(low, high))


def learning_curve(
    larger: RowSums,
    smaller: RowSums,
    least: float = 0.0,
    groups: Sequence[Hashable] = (),
    fractions: tuple[float, float] = FRACTIONS,
) -> Estimate:
    """Return the score of a model of all rows, from the predictions of two cross-validations.

    Models of fewer rows are worse. On a scale without bounds (atanh) the score is taken to be
    linear in m^-0.5 for m training rows, and is extrapolated to all rows. The variance is that
    over resamples, which are the same for both cross-validations, times TRAINING_VARIANCE, but not
    less than 1 / the number of decisions, times the same.

    Args:
        larger: a metric of all rows, each predicted by a model of most of the other rows.
        smaller: the same by models of fewer rows.
        least: the smallest value of the metric, 0 or -1; the largest is 1.
        groups: the group of each row, see `resampled`.
        fractions: of the rows from which the models of `larger` and of `smaller` have learned.
    """
    scale = _Scale(least, len(larger.rows))
    at_larger, at_smaller = (fraction**-0.5 for fraction in fractions)
    steps = (1 - at_larger) / (at_larger - at_smaller)

    def extrapolated(larger_scores: Array | float, smaller_scores: Array | float) -> Array:
        position = scale.positions(larger_scores)
        return np.asarray(position + steps * (position - scale.positions(smaller_scores)))

    samples = extrapolated(resampled(larger, groups), resampled(smaller, groups))
    position = float(extrapolated(larger.value, smaller.value))
    return scale.estimate(position, samples, larger, groups)


def curve_gain(larger: RowSums, smaller: RowSums, least: float = 0.0) -> float:
    """Return by how much more training rows improve a metric, on the scale of `learning_curve`.

    It is 0 if they do not. The arguments are those of `learning_curve`.
    """
    scale = _Scale(least, len(larger.rows))
    return max(0.0, float(scale.positions(larger.value) - scale.positions(smaller.value)))


def moved_estimate(
    metric: RowSums, gain: float, least: float = 0.0, groups: Sequence[Hashable] = ()
) -> Estimate:
    """Return the score of a model of all rows, from models of two thirds of them and a gain.

    The gain is that of another method from more rows, so that the estimate is approximate: half of
    the gain is taken as its deviation.

    Args:
        metric: of rows that models of two thirds of all rows have predicted.
        gain: `curve_gain` of a cheap method with the same rows; 0: unknown.
        least, groups: see `learning_curve`.
    """
    scale = _Scale(least, len(metric.rows))
    samples = scale.positions(resampled(metric, groups))
    position = float(scale.positions(metric.value)) + gain
    return scale.estimate(position, samples, metric, groups, other_variance=(gain / 2) ** 2)


def cross_validated_difference(
    metric: RowSums, other: RowSums, groups: Sequence[Hashable] = (), most: float = 1.0
) -> tuple[float, Interval]:
    """Return metric - other in the same cross-validation, and the interval of the difference.

    No difference is larger than `most`.

    It is for models of as many rows as those of the folds. The interval is normal, with the
    deviation over resamples times the root of TRAINING_VARIANCE.
    """
    both = difference(metric, other)
    margin = _Z * math.sqrt(TRAINING_VARIANCE) * float(resampled(both, groups).std())
    return both.value, Interval(max(-most, both.value - margin), min(most, both.value + margin))


def groups_or_rows(groups: Sequence[Hashable]) -> Sequence[Hashable]:
    """Return the group of each row, or the rows themselves if the groups are too few."""
    return groups if len(set(groups)) >= FEWEST_GROUPS else range(len(groups))


def wilson_interval(right: float, count: float) -> Interval:
    """Return the interval of a fraction: never below 0 or above 1, and sound for few rows."""
    fraction = right / count
    square = _Z * _Z / count
    center = fraction + square / 2
    margin = _Z * math.sqrt(fraction * (1 - fraction) / count + square / (4 * count))
    low = (center - margin) / (1 + square)
    high = (center + margin) / (1 + square)
    return Interval(max(0.0, low), min(1.0, high))


def middle(samples: Array) -> Interval:
    """Return the middle 95 % of a metric of resamples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(float(low), float(high))


def ratio(above: Array, below: Array) -> Array:
    """Return the quotient; 0 where a division by zero would be."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


def ratio_sums(above: Sequence[float], below: Sequence[float]) -> RowSums:
    """Return the ratio of the sums of two figures of each row.

    below: how many decisions a row has.
    """
    return RowSums(
        np.stack([above, below], 1).astype(np.float64),
        lambda sums: ratio(sums[:, 0], sums[:, 1]),
        decisions_per_row=float(np.mean(below)) or 1.0,
    )


def mean_sums(values: Sequence[float]) -> RowSums:
    """Return the mean of a figure of each row."""
    return ratio_sums(values, np.ones(len(values)).tolist())


def correlations(gold: Sequence[float], predicted: Sequence[float]) -> dict[str, RowSums]:
    """Return `pearson` and `spearman` correlation and `rmse` (root of the mean squared error).

    Correlations are 0 where all gold or all predicted numbers are equal. The ranks of `spearman`
    are those in all rows.

    Raises:
        BertworksError: a number that is not finite.
    """
    from scipy.stats import rankdata

    numbers = np.array([gold, predicted], np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers.sum(0)))
    if len(wrong):
        x, y = numbers[:, wrong[0]]
        raise BertworksError(
            f"target {x}, prediction {y}: not a number", where=f"row {wrong[0] + 1}"
        )
    squares = mean_sums(np.square(numbers[0] - numbers[1]).tolist())
    result = {
        "pearson": _correlation_sums(numbers),
        "spearman": _correlation_sums(rankdata(numbers, axis=1)),
    }
    return result | {"rmse": RowSums(squares.rows, lambda sums: np.sqrt(squares.score(sums)))}


def _correlation_sums(numbers: Array) -> RowSums:
    """Return the Pearson correlation of two numbers of each row, [2, rows]."""
    numbers = numbers - numbers[:, :1]  # equal numbers are 0 then, and have exactly no correlation
    # Sums of squares around the mean lose no digits.
    x, y = numbers - numbers.mean(1, keepdims=True)
    return RowSums(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1), _correlation)


def _correlation(sums: Array) -> Array:
    """Return the Pearson correlation for sums of 1, x, y, x², y² and xy [samples, 6]."""
    n, x, y, xx, yy, xy = sums.T
    variances = np.maximum(0, n * xx - x * x) * np.maximum(0, n * yy - y * y)
    return ratio(n * xy - x * y, np.sqrt(variances))


def count_sums(counts: Array) -> dict[str, RowSums]:
    """Return metrics of counts of right, predicted and gold labels: float64 [rows, 3, labels].

    Macro F1 is the mean over the labels that occur in these rows, as gold or as predicted ones: it
    is `f1_score` of scikit-learn with `labels=` these and `zero_division=0`. In a resample the
    labels are the same. One that no row of the resample has counts 0 there: if it were left out, a
    resample without the rows of a label that is never found would have a far better score than any
    model has.
    """
    rows = counts.reshape(len(counts), -1)
    shape = counts.shape[1:]
    num_labels = np.count_nonzero(counts[:, 1:].sum((0, 1)))

    def macro_f1(sums: Array) -> Array:
        right, predicted, gold = sums.swapaxes(0, 1)
        f1 = ratio(2 * right, predicted + gold)  # 0 of a label that does not occur
        return ratio(f1.sum(1), np.full(len(sums), float(num_labels)))

    decisions_per_row = _gold_labels_per_row(counts)

    def metric(score: Callable[[Array], Array]) -> RowSums:
        return RowSums(rows, lambda sums: score(sums.reshape(len(sums), *shape)), decisions_per_row)

    scores = {"macro_f1": macro_f1, **_COUNT_METRICS}
    return {name: metric(score) for name, score in scores.items()}


def _gold_labels_per_row(counts: Array) -> float:
    """Return the mean number of gold labels of a row, 1 if there is none at all.

    counts: of right, predicted and gold labels [rows, 3, labels].
    """
    return float(counts[:, 2].sum(1).mean()) or 1.0


def _pooled_correlation(counts: Array, num_rows: Array) -> Array:
    """Return the correlation of decisions about labels, see `label_correlation`: [samples].

    Args:
        counts: of right, predicted and gold labels [samples, 3, labels].
        num_rows: the number of rows [samples, 1].
    """
    right, predicted, gold = counts.swapaxes(0, 1)
    covariance = (num_rows * right - predicted * gold).sum(1)
    predicted_variance = (num_rows * predicted - predicted * predicted).sum(1)
    gold_variance = (num_rows * gold - gold * gold).sum(1)
    return ratio(covariance, np.sqrt(predicted_variance * gold_variance))


def label_correlation(counts: Array) -> RowSums:
    """Return the correlation of predicted with gold decisions about labels, pooled over the labels.

    Each label is true or false by itself. The correlation is the sum over the labels of the
    covariance of the two, divided by the root of the product of the sums of their variances. It is
    0 for predictions that are the same in all rows, whatever they are, and 1 if all are right. For
    rows with exactly one label it is the Matthews correlation of Gorodkin 2004.

    Args:
        counts: how many labels of each row are right, predicted and gold: float64
            [rows, 3, labels], 0 or 1.
    """
    shape = counts.shape[1:]
    row_counts = np.ones((len(counts), 1))
    return RowSums(
        np.concatenate([row_counts, counts.reshape(len(counts), -1)], 1),
        lambda sums: _pooled_correlation(sums[:, 1:].reshape(len(sums), *shape), sums[:, :1]),
        decisions_per_row=_gold_labels_per_row(counts),
    )


# Metrics of counts (right, predicted, gold) [samples, 3, labels].
_COUNT_METRICS: Mapping[str, Callable[[Array], Array]] = {
    # for any number of labels (Gorodkin 2004)
    "matthews_correlation": lambda c: _pooled_correlation(c, c[:, 2].sum(1, keepdims=True)),
    "precision": lambda counts: ratio(counts[:, 0].sum(1), counts[:, 1].sum(1)),
    "recall": lambda counts: ratio(counts[:, 0].sum(1), counts[:, 2].sum(1)),
    **dict.fromkeys(("f1", "micro_f1"), lambda c: ratio(2 * c[:, 0].sum(1), c[:, 1:].sum((1, 2)))),
}


Logits = NDArray[np.floating[Any]]  # [n, labels]
# Numbers of classes [n]; or, if each label is true or false by itself, 0 and 1 [n, labels].
Gold = NDArray[Any]
BINS = 15
_WIDEST = 3.0  # the logarithm of the largest temperature, and of the inverse of the smallest


def fit_temperature(logits: Logits, gold: Gold) -> float:
    """Return the temperature with the smallest log loss of all rows, plus (log temperature)² / 2.

    Without this term the temperature of predictions that are all right would be 0. Logits are
    divided in float64, a block at a time: the words of long texts are many.
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    def loss(log_temperature: float) -> float:
        losses = np.empty(gold.shape)
        for start in range(0, len(logits), _ROWS):
            part = slice(start, start + _ROWS)
            x = logits[part].astype(np.float64) / math.exp(log_temperature)
            if gold.ndim == 2:
                losses[part] = np.logaddexp(0, np.where(gold[part] > 0, -x, x))
            else:
                scores = log_softmax(x, axis=1)
                losses[part] = -np.take_along_axis(scores, gold[part, None], 1)[:, 0]
        return float(losses.sum()) + log_temperature**2 / 2

    minimum = minimize_scalar(loss, bounds=(-_WIDEST, _WIDEST), method="bounded")
    return float(math.exp(minimum.x))


def confidences(
    logits: Logits, gold: Gold, temperature: Array | float = 1.0
) -> tuple[Array, Array]:
    """Return the probability of the best class of each row, and whether it is right (0 or 1).

    Of labels that are true or false by themselves, it is the probability of each, and whether it is
    true. Both are float64 [n], or [n * labels].

    Args:
        temperature: one number, or one of each row [n].
    """
    from scipy.special import expit, softmax

    divisors = np.broadcast_to(np.asarray(temperature, np.float64), len(logits))
    probabilities = []
    right = []
    for start in range(0, max(1, len(logits)), _ROWS):
        part = slice(start, start + _ROWS)
        x = logits[part] / divisors[part, None]
        if gold.ndim == 2:
            probabilities.append(expit(x).ravel())
            right.append((gold[part] > 0).ravel())
        else:
            probabilities.append(softmax(x, axis=1).max(1))
            right.append(x.argmax(1) == gold[part])
    return np.concatenate(probabilities), np.concatenate(right).astype(np.float64)


def expected_calibration_error(
    confidence: Array,
    correct: Array,
    groups: Sequence[int] | NDArray[np.int64] = (),
    bins: int = BINS,
) -> tuple[float, Interval]:
    """Return the mean difference of confidence and correctness in bins, and its interval.

    The bins have equal mass. The part of the difference that is noise of few rows is left out
    (Kumar et al. 2019, "Verified uncertainty calibration", `normal debiased`, in closed form). The
    interval is that of the bootstrap over groups. Both are within 0 and 1.

    Args:
        confidence: of each prediction, from 0 to 1.
        correct: whether each prediction is right, 0 or 1.
        groups: numbers from 0: predictions that are resampled together, as those of the words of a
            sentence; (): none.
        bins: their number, at most that of the predictions.
    """
    count = len(confidence)
    bins = min(bins, len(confidence))
    bin_of = np.empty(count, np.int64)
    bin_of[np.argsort(confidence, kind="stable")] = np.arange(count) * bins // count
    group_of = np.asarray(groups if len(groups) else range(count), np.int64)
    sums = np.zeros((int(group_of.max()) + 1, 3, bins))
    for part, values in enumerate((np.ones(count), confidence, correct)):
        np.add.at(sums[:, part], (group_of, bin_of), values)
    metric = RowSums(
        sums.reshape(len(sums), -1), lambda rows: _debiased_error(rows.reshape(-1, 3, bins))
    )
    samples = resampled(metric)
    # A resample has the noise of the rows twice, and is debiased once: its middle is moved to the
    # estimate.
    low, high = middle(samples - samples.mean() + metric.value)
    return max(0.0, metric.value), Interval(max(0.0, low), min(1.0, max(0.0, high)))


class ReliabilityBin(NamedTuple):
    """Predictions of similar confidence, as a reliability diagram shows them.

    low, high: the range of the confidences. confidence: their mean.
    correct: the fraction of the predictions that is right. predictions: their number.
    """

    low: float
    high: float
    confidence: float
    correct: float
    predictions: int


def reliability_bins(confidence: Array, correct: Array, bins: int = 10) -> list[ReliabilityBin]:
    """Return the predictions in bins of equal width, without empty bins.

    Guo et al. 2017, "On calibration of modern neural networks", figure 1.

    Args:
        confidence: of each prediction, from 0 to 1.
        correct: whether each prediction is right, 0 or 1.
    """
    edges = np.linspace(0, 1, bins + 1)
    number = np.searchsorted(edges[1:-1], confidence)
    return [
        ReliabilityBin(
            float(edges[n]),
            float(edges[n + 1]),
            float(confidence[number == n].mean()),
            float(correct[number == n].mean()),
            int((number == n).sum()),
        )
        for n in range(bins)
        if (number == n).any()
    ]


def accuracy_by_coverage(
    confidence: Array, correct: Array, steps: int = 20
) -> list[tuple[float, float]]:
    """Return the accuracy of the most confident predictions, for growing fractions of all.

    El-Yaniv and Wiener 2010, "On the foundations of noise-free selective classification". Of equal
    confidences the first predictions count as the most confident.

    Returns:
        (fraction of the predictions, accuracy), at most `steps` of them; the last one is of all.
    """
    order = np.argsort(-confidence, kind="stable")
    right = np.cumsum(correct[order])
    counts = sorted({max(1, round(len(order) * n / steps)) for n in range(1, steps + 1)})
    return [(count / len(order), float(right[count - 1] / count)) for count in counts]


def _debiased_error(sums: Array) -> Array:
    """Return the error for sums of count, confidence and correctness: [samples, 3, bins].

    The result is [samples].
    """
    from scipy.special import erf

    count, confidence, correct = sums.swapaxes(0, 1)
    size = np.maximum(count, 1)
    gap = np.abs(correct - confidence) / size
    fraction = correct / size
    noise = np.sqrt(2 * fraction * (1 - fraction) / size) + 1e-9  # deviation of the gap, times √2
    # The mean of |gap + noise|.
    expected = noise / math.sqrt(math.pi) * np.exp(-np.square(gap / noise)) + gap * erf(gap / noise)
    return np.asarray((count * (2 * gap - expected)).sum(1) / count.sum(1))


def best_label_threshold(probabilities: Array, gold: Gold) -> float:
    """Return the probability from which a label counts as predicted, for the best micro F1.

    It is in the middle of the probabilities on its two sides, so that no label depends on the last
    digit; 0.5 if no label is ever true. Both arguments are [n, labels].
    """
    order = np.argsort(-probabilities, axis=None, kind="stable")
    p = probabilities.ravel()[order]
    right = np.cumsum(gold.ravel()[order] > 0)
    if not len(right) or not right[-1]:
        return 0.5
    f1 = 2 * right / (np.arange(1, len(p) + 1) + right[-1])
    f1[:-1][p[:-1] == p[1:]] = 0  # equal probabilities are not separated
    best = int(f1.argmax())
    next_lower = p[best + 1] if best + 1 < len(p) else 0.0
    return float(p[best] + next_lower) / 2
