"""Logits -> probabilities, and the type of a prediction."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Answer = dict[str, Any]
Logits = NDArray[np.float32]


def softmax(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return probabilities along the last axis."""
    powers = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def sigmoid(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the probability of each logit alone."""
    return np.asarray(1 / (1 + np.exp(-x.astype(np.float64))))
