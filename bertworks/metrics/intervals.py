"""Confidence intervals of metrics, and of the difference between two predictions of the same rows.

- `RowSums`: a metric as a function of sums over rows, so that thousands of resamples are a matrix product
- `bootstrap_interval`: the percentile bootstrap (Efron and Tibshirani 1993, chapter 13) of a metric
- `paired_difference`: the same of a difference, on the same resamples for both (Koehn 2004)
- `wilson_interval`: of a fraction of independent rows (Wilson 1927)
- `interval_of_mean`: of the mean of several trainings, over rows and seeds
- `mean_sums`, `correlation_sums`, `COUNT_METRICS`: metrics as functions of sums

Rows that belong together (questions on a context, sentences of a document) are resampled together.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError

Array = NDArray[np.float64]
SAMPLES = 1000
FEWEST_GROUPS = 10  # that are resampled as a whole; fewer would show too little of the chance
_BLOCK = 1 << 24  # numbers in memory at a time
_Z = 1.959963984540054  # of 95 %


class Interval(NamedTuple):
    """95 %."""

    low: float
    high: float


@dataclass(frozen=True)
class RowSums:
    """A metric of rows.

    rows: float64 [rows, k]: what each row adds. score: sums [samples, k] -> the metric [samples].
    """

    rows: Array
    score: Callable[[Array], Array]

    @property
    def value(self) -> float:
        """The metric of all rows."""
        return float(self.score(self.rows.sum(0, keepdims=True))[0])


def bootstrap_interval(metric: RowSums, groups: Sequence[Hashable] = (), seed: int = 0) -> Interval:
    """The middle 95 % of the metric over SAMPLES resamples of the groups, which are single rows if there are none."""
    return middle(resampled(metric, groups, seed))


def resampled(metric: RowSums, groups: Sequence[Hashable] = (), seed: int = 0) -> Array:
    """The metric of SAMPLES resamples of the groups: the same resamples for equal groups and seeds."""
    blocks = _resamples(len(metric.rows), groups, seed)
    return np.concatenate([metric.score(weights @ metric.rows) for weights in blocks])


def interval_of_mean(scores: Sequence[float], samples: Sequence[Array]) -> Interval:
    """The interval of the mean of several trainings, over the sampling of the rows and of the seeds.

    scores: the mean of each seed; their spread adds noise of Student's t. samples: `resampled` of each training.
    """
    means = np.mean(samples, axis=0)
    if (count := len(scores)) > 1:
        from scipy.special import stdtrit

        noise = stdtrit(count - 1, (np.arange(len(means)) + 0.5) / len(means))  # Student's t, in an order of chance
        error = float(np.std(scores, ddof=1)) / math.sqrt(count)
        means = means + error * np.random.default_rng(0).permutation(noise)
    return middle(means)


def paired_difference(metric: RowSums, other: RowSums, groups: Sequence[Hashable] = ()) -> tuple[float, Interval]:
    """metric - other, on the same rows, and the interval of the difference.

    Raises:
        BertworksError: they have different numbers of rows.
    """
    if len(metric.rows) != len(other.rows):
        raise BertworksError(f"{len(metric.rows):,} rows are compared with {len(other.rows):,}")
    width = metric.rows.shape[1]
    rows = np.concatenate([metric.rows, other.rows], 1)
    both = RowSums(rows, lambda sums: metric.score(sums[:, :width]) - other.score(sums[:, width:]))
    return both.value, bootstrap_interval(both, groups)


def groups_or_rows(groups: Sequence[Hashable]) -> Sequence[Hashable]:
    """The group of each row, or the rows themselves if the groups are too few."""
    return groups if len(set(groups)) >= FEWEST_GROUPS else range(len(groups))


def wilson_interval(right: float, count: int) -> Interval:
    """95 % interval of a fraction: never below 0 or above 1, and sound for few rows."""
    share, square = right / count, _Z * _Z / count
    center, margin = share + square / 2, _Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return Interval(max(0.0, (center - margin) / (1 + square)), min(1.0, (center + margin) / (1 + square)))


def middle(samples: Array) -> Interval:
    """The middle 95 % of a metric of resamples."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(float(low), float(high))


def _resamples(count: int, groups: Sequence[Hashable], seed: int) -> Iterator[Array]:
    """Blocks of weights [samples, rows], equal for equal arguments."""
    generator, numbers = np.random.default_rng(seed), dict[Hashable, int]()
    group_of_row = np.array([numbers.setdefault(key, len(numbers)) for key in groups or range(count)])
    num_groups, left = len(numbers), SAMPLES
    while left:
        block = min(left, max(1, _BLOCK // count))
        drawn = generator.multinomial(num_groups, np.full(num_groups, 1 / num_groups), block)
        yield drawn[:, group_of_row].astype(np.float64)
        left -= block


def mean_sums(values: Sequence[float]) -> RowSums:
    """The mean of a figure of each row."""
    rows = np.stack([values, np.ones(len(values))], 1).astype(np.float64)
    return RowSums(rows, lambda sums: sums[:, 0] / sums[:, 1])


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below != 0)


def correlation_sums(x: Array, y: Array) -> RowSums:
    """The Pearson correlation of two numbers of each row, float64 [rows]; 0 if one is constant."""
    return RowSums(np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1), _correlation)


def _correlation(sums: Array) -> Array:
    n, x, y, xx, yy, xy = sums.T
    return _ratio(n * xy - x * y, np.sqrt(np.maximum(0, n * xx - x * x) * np.maximum(0, n * yy - y * y)))


def _macro_f1(counts: Array) -> Array:
    right, predicted, gold = counts.swapaxes(0, 1)
    return _ratio(_ratio(2 * right, predicted + gold).sum(1), (predicted + gold > 0).sum(1))


def _matthews(counts: Array) -> Array:
    """Gorodkin 2004, for any number of labels."""
    right, predicted, gold = counts.swapaxes(0, 1)
    rows = gold.sum(1)
    spread = [rows * rows - (side * side).sum(1) for side in (predicted, gold)]
    return _ratio(right.sum(1) * rows - (predicted * gold).sum(1), np.sqrt(spread[0] * spread[1]))


COUNT_METRICS: Mapping[str, Callable[[Array], Array]] = {  # of counts (right, predicted, gold) [samples, 3, labels]
    "macro_f1": _macro_f1, "matthews_correlation": _matthews,
    "precision": lambda counts: _ratio(counts[:, 0].sum(1), counts[:, 1].sum(1)),
    "recall": lambda counts: _ratio(counts[:, 0].sum(1), counts[:, 2].sum(1)),
    **dict.fromkeys(("f1", "micro_f1"), lambda c: _ratio(2 * c[:, 0].sum(1), c[:, 1:].sum((1, 2)))),
}  # fmt: skip
