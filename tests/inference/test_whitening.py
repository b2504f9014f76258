"""Centered and whitened vectors, compared with numpy."""

import numpy as np
import pytest

from bertworks.errors import BertworksError
from bertworks.inference.whitening import Moments


def test_whitening_by_numpy():
    draw = np.random.default_rng(0)
    # six of eight directions
    x = (draw.normal(size=(500, 6)) @ draw.normal(size=(6, 8)) + 3).astype(np.float32)
    moments = Moments(8, np.array_split(x, 7))
    white = moments.whitener("whiten")(x).astype(np.float64)
    values = np.linalg.eigvalsh(np.cov(white.T, bias=True))
    np.testing.assert_allclose(values, [0, 0, 1, 1, 1, 1, 1, 1], atol=1e-4)
    np.testing.assert_allclose(moments.whitener("center")(x), x - x.mean(0), atol=1e-5)
    with pytest.raises(BertworksError, match="more vectors than dimensions"):
        Moments(8, [x[:8]]).whitener("whiten")
