"""Calibration: do predictions with a probability of 80 % turn out right in 80 % of all cases?

- `fit_temperature`: one number by which logits are divided (Guo et al. 2017)
- `confidences`: logits and gold labels -> probabilities, and what was right
- `best_label_threshold`: of predictions with several labels
- `expected_calibration_error`: bins of equal mass, debiased
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.metrics.intervals import Array, Interval, RowSums, middle, resampled

Logits = NDArray[np.floating[Any]]  # [n, labels]
# Numbers of classes [n]; or, if each label is true or false by itself, 0 and 1 [n, labels].
Gold = NDArray[Any]
BINS = 15
_WIDEST = 3.0  # of the logarithm of a temperature


def fit_temperature(logits: Logits, gold: Gold) -> float:
    """The temperature with the smallest log loss of all rows, plus (log temperature)² / 2: without this the temperature
    of predictions that are all right would be 0."""
    from scipy.optimize import minimize_scalar

    x = logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        return _log_loss(x / math.exp(log_temperature), gold) + log_temperature**2 / 2

    return float(math.exp(minimize_scalar(loss, bounds=(-_WIDEST, _WIDEST), method="bounded").x))


def _log_loss(x: Array, gold: Gold) -> float:
    from scipy.special import log_softmax

    if gold.ndim == 2:
        return float(np.logaddexp(0, np.where(gold > 0, -x, x)).sum())
    return -float(np.take_along_axis(log_softmax(x, axis=1), gold[:, None], 1).sum())


def confidences(logits: Logits, gold: Gold, temperature: Array | float = 1.0) -> tuple[Array, Array]:
    """The probability of the best class of each row, and whether it is right, 0 or 1; of labels that are true or false
    by themselves, the probability of each, and whether it is true: float64 [n], or [n * labels].

    temperature: one number, or one of each row [n].
    """
    from scipy.special import expit, softmax

    x = logits / np.reshape(np.asarray(temperature, np.float64), (-1, 1))
    if gold.ndim == 2:
        return expit(x).ravel(), (gold > 0).astype(np.float64).ravel()
    return softmax(x, axis=1).max(1), (x.argmax(1) == gold).astype(np.float64)


def expected_calibration_error(
    confidence: Array, correct: Array, groups: Sequence[int] | NDArray[np.int64] = (), bins: int = BINS
) -> tuple[float, Interval]:
    """The mean difference of confidence and correctness in `bins` bins of equal mass, without the part that is noise of
    few rows (Kumar et al. 2019, "Verified uncertainty calibration", `normal debiased`, in closed form); and its
    interval, by the bootstrap over groups. Both are within 0 and 1.

    Args:
        confidence, correct: of each prediction, from 0 to 1; 0 or 1.
        groups: numbers from 0: predictions that are resampled together, as those of the words of a sentence; (): none.
    """
    count, bins = len(confidence), min(bins, len(confidence))
    bin_of = np.empty(count, np.int64)
    bin_of[np.argsort(confidence, kind="stable")] = np.arange(count) * bins // count
    group_of = np.asarray(groups if len(groups) else range(count), np.int64)
    sums = np.zeros((int(group_of.max()) + 1, 3, bins))
    for part, values in enumerate((np.ones(count), confidence, correct)):
        np.add.at(sums[:, part], (group_of, bin_of), values)
    metric = RowSums(sums.reshape(len(sums), -1), lambda rows: _debiased_error(rows.reshape(-1, 3, bins)))
    samples = resampled(metric)
    # A resample has the noise of the rows twice, and is debiased once: its middle is moved to the estimate.
    low, high = middle(samples - samples.mean() + metric.value)
    return max(0.0, metric.value), Interval(max(0.0, low), min(1.0, max(0.0, high)))


def _debiased_error(sums: Array) -> Array:
    """sums: count, confidence and correctness [samples, 3, bins] -> [samples]."""
    from scipy.special import erf

    count, confidence, correct = sums.swapaxes(0, 1)
    there = np.maximum(count, 1)
    gap, share = np.abs(correct - confidence) / there, correct / there
    noise = np.sqrt(2 * share * (1 - share) / there) + 1e-9  # deviation of the gap, times √2
    expected = noise / math.sqrt(math.pi) * np.exp(-np.square(gap / noise)) + gap * erf(gap / noise)  # of |gap + noise|
    return np.asarray((count * (2 * gap - expected)).sum(1) / count.sum(1))


def best_label_threshold(probabilities: Array, gold: Gold) -> float:
    """The probability from which a label is given for the best micro F1, both [n, labels]: in the middle of the
    probabilities on its two sides, so that no label depends on the last digit; 0.5 if no label is ever true."""
    order = np.argsort(-probabilities, axis=None, kind="stable")
    p, right = probabilities.ravel()[order], np.cumsum(gold.ravel()[order] > 0)
    if not len(right) or not right[-1]:
        return 0.5
    f1 = 2 * right / (np.arange(1, len(p) + 1) + right[-1])
    f1[:-1][p[:-1] == p[1:]] = 0  # equal probabilities are not separated
    best = int(f1.argmax())
    return float(p[best] + (p[best + 1] if best + 1 < len(p) else 0.0)) / 2
