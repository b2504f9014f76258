"""Vectors made comparable: their mean taken away, or all directions made equally wide. Learned in one pass, in constant
memory. Not here: whose vectors they are.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Whitening = Literal["none", "center", "whiten"]
_SMALLEST = 1e-7  # of the greatest variance: directions with less are noise, and become 0
_SHORTEST = 1e-12


@dataclass(frozen=True)
class Whitener:
    """`whitener(x)` is `(x - mean) @ matrix`, float32 [N, D]."""

    mean: NDArray[np.float64]
    matrix: NDArray[np.float64] | None

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = x - self.mean
        return (centred if self.matrix is None else centred @ self.matrix).astype(np.float32)


class Moments:
    """Count, mean and products of the vectors that were added."""

    def __init__(self, dimension: int):
        self.count = 0
        self._sum = np.zeros(dimension)
        self._products = np.zeros((dimension, dimension))

    def add(self, x: NDArray[np.float32]) -> None:
        """x: [N, D]."""
        exact = x.astype(np.float64)
        self.count += len(x)
        self._sum += exact.sum(0)
        self._products += exact.T @ exact

    @property
    def suffices(self) -> bool:
        """Whether there are vectors enough to whiten by."""
        return self.count > len(self._sum)

    def whitener(self, kind: Literal["center", "whiten"]) -> Whitener:
        """What centres, or whitens (Su et al. 2021, arXiv 2103.15316): then the covariance of the vectors added is the
        identity, save for directions in which they do not differ.

        Raises:
            ValueError: nothing was added; to whiten, no more vectors than they have dimensions, which would come out
                equally far apart, whatever they were.
        """
        if not self.count:
            raise ValueError("no vectors")
        if kind == "whiten" and not self.suffices:
            raise ValueError(f"{self.count} vectors of {len(self._sum)} dimensions")
        mean = self._sum / self.count
        if kind == "center":
            return Whitener(mean, None)
        variances, directions = np.linalg.eigh(self._products / self.count - np.outer(mean, mean))
        wide = variances > _SMALLEST * variances[-1]
        scales = np.where(wide, np.where(wide, variances, 1.0) ** -0.5, 0.0)
        return Whitener(mean, directions * scales)


def normalized(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of length 1; a row of zeros stays."""
    lengths = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _SHORTEST).astype(np.float32)
    scaled: NDArray[np.float32] = np.divide(x, lengths, dtype=np.float32)
    return scaled
