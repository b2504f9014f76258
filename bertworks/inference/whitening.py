"""Vectors centered, whitened, or scaled to length 1."""

from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import require

Whitening = Literal["none", "center", "whiten"]
Vectors = NDArray[np.float32]
_SMALLEST = 1e-7  # of the largest variance: directions with less are noise and become 0
_SHORTEST = 1e-12


class Moments:
    """Count, sum and products of vectors, which come in blocks [N, D]."""

    def __init__(self, dimension: int, blocks: Iterable[Vectors]):
        self.count = 0
        self._sum = np.zeros(dimension)
        self._products = np.zeros((dimension, dimension))
        for block in blocks:
            exact = block.astype(np.float64)
            self.count += len(block)
            self._sum += exact.sum(0)
            self._products += exact.T @ exact

    @property
    def can_whiten(self) -> bool:
        """Whether there are more vectors than dimensions."""
        return self.count > len(self._sum)

    def whitener(self, kind: Literal["center", "whiten"]) -> Callable[[Vectors], Vectors]:
        """Return the transformation that centers, or whitens (Su et al. 2021, arXiv 2103.15316).

        Whitening makes the covariance of the vectors the identity, except in directions without
        variance.

        Raises:
            BertworksError: to whiten, not more vectors than dimensions: all would end at the same
                distance.
        """
        mean = self._sum / self.count
        if kind == "center":
            return lambda x: (x - mean).astype(np.float32)
        what = (
            f"whitening needs more vectors than dimensions: {self.count:,} vectors of "
            f"{len(self._sum)} dimensions"
        )
        require(
            self.can_whiten, what, "", "--learn-from a file with more texts, or --whitening center"
        )
        variances, directions = np.linalg.eigh(self._products / self.count - np.outer(mean, mean))
        is_wide = variances > _SMALLEST * variances[-1]
        matrix = directions * np.where(is_wide, np.where(is_wide, variances, 1.0) ** -0.5, 0.0)
        return lambda x: ((x - mean) @ matrix).astype(np.float32)


def normalized(x: Vectors) -> Vectors:
    """Rows scaled to length 1; rows of zeros stay."""
    lengths = np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _SHORTEST).astype(np.float32)
    return np.asarray(np.divide(x, lengths, dtype=np.float32))
