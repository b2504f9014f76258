"""Confidence intervals of metrics, and of the difference between two predictions of the same rows.

- `RowSums`: a metric as a function of sums over rows, so that thousands of resamples are a matrix product
- `bootstrap_interval`: the percentile bootstrap (Efron and Tibshirani 1993, chapter 13) of a metric
- `paired_difference`: the same of a difference, on the same resamples for both (Koehn 2004)
- `wilson_interval`: of a fraction of independent rows (Wilson 1927)

Rows that belong together (questions on a context, sentences of a document) are resampled together.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError

Array = NDArray[np.float64]
SAMPLES = 1000
_BLOCK = 1 << 24  # numbers in memory at a time
_Z = 1.959963984540054  # of 95 %


class Interval(NamedTuple):
    """95 %."""

    low: float
    high: float

    @property
    def is_positive(self) -> bool:
        return self.low > 0


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

    def resampled(self, weights: Array) -> Array:
        """The metric of resamples [samples]. weights: [samples, rows]: how often each row is drawn."""
        return self.score(weights @ self.rows)


def bootstrap_interval(metric: RowSums, groups: Sequence[Hashable] = (), seed: int = 0) -> Interval:
    """The middle 95 % of the metric over SAMPLES resamples of the groups, which are single rows if there are none."""
    return _middle([metric.resampled(weights) for weights in _resamples(len(metric.rows), groups, seed)])


def paired_difference(
    metric: RowSums, other: RowSums, groups: Sequence[Hashable] = (), seed: int = 0
) -> tuple[float, Interval]:
    """metric - other, on the same rows, and the interval of the difference.

    Raises:
        BertworksError: they have different numbers of rows.
    """
    if len(metric.rows) != len(other.rows):
        raise BertworksError(f"{len(metric.rows):,} rows are compared with {len(other.rows):,}")
    resamples = _resamples(len(metric.rows), groups, seed)
    differences = [metric.resampled(weights) - other.resampled(weights) for weights in resamples]
    return metric.value - other.value, _middle(differences)


def wilson_interval(right: float, count: int) -> Interval:
    """95 % interval of a fraction: never below 0 or above 1, and sound for few rows."""
    share, square = right / count, _Z * _Z / count
    center, margin = share + square / 2, _Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return Interval(max(0.0, (center - margin) / (1 + square)), min(1.0, (center + margin) / (1 + square)))


def _middle(samples: Sequence[Array]) -> Interval:
    low, high = np.quantile(np.concatenate(samples), [0.025, 0.975])
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
