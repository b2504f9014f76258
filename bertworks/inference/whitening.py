"""Centering and whitening of vectors, computed in one pass and in constant memory.

- `Moments`: count, sum and products of vectors
- `Whitener`: the transformation
- `normalized`: vectors of length 1
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Whitening = Literal["none", "center", "whiten"]
_SMALLEST = 1e-7  # of the largest variance: directions with less are noise and become 0
_SHORTEST = 1e-12


@dataclass(frozen=True)
class Whitener:
    """`whitener(x)` is `(x - mean) @ matrix`, float32 [N, D]."""

    mean: NDArray[np.float64]
    matrix: NDArray[np.float64] | None

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        centered = x - self.mean
        return (centered if self.matrix is None else centered @ self.matrix).astype(np.float32)


class Moments:
    """Count, sum and products of the vectors that were added."""

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
    def can_whiten(self) -> bool:
        """Whether there are more vectors than dimensions."""
        return self.count > len(self._sum)

    def whitener(self, kind: Literal["center", "whiten"]) -> Whitener:
        """The transformation that centers, or whitens (Su et al. 2021, arXiv 2103.15316): the covariance of the added
        vectors becomes the identity, except in directions without variance.

        Raises:
            ValueError: no vectors; to whiten, not more vectors than dimensions: all would end at the same distance.
        """
        if not self.count:
            raise ValueError("no vectors")
        if kind == "whiten" and not self.can_whiten:
            raise ValueError(f"{self.count} vectors of {len(self._sum)} dimensions")
        mean = self._sum / self.count
        if kind == "center":
            return Whitener(mean, None)
        variances, directions = np.linalg.eigh(self._products / self.count - np.outer(mean, mean))
        is_wide = variances > _SMALLEST * variances[-1]
        scales = np.where(is_wide, np.where(is_wide, variances, 1.0) ** -0.5, 0.0)
        return Whitener(mean, directions * scales)


def normalized(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows scaled to length 1; rows of zeros stay."""
    lengths = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _SHORTEST).astype(np.float32)
    scaled: NDArray[np.float32] = np.divide(x, lengths, dtype=np.float32)
    return scaled
