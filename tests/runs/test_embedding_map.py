"""The map of held-out rows: principal components of what the encoder has read."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bertworks.datasets.schema import Item
from bertworks.runs.embedding_map import MOST_ROWS, describe_rows, place_rows
from bertworks.tasks.settings import TaskConfig

CLASSES = TaskConfig(task="classification", labels=("neg", "pos"))


class Encoder:
    """Vectors by text."""

    def __init__(self, vectors: NDArray[np.float64], unread: Iterable[int] = ()):
        left_out = {*unread}
        self.vectors = {f"text {n}": x for n, x in enumerate(vectors) if n not in left_out}

    def has_read(self, text: str) -> bool:
        return text in self.vectors

    def texts(self, texts: Iterable[str]) -> NDArray[np.float64]:
        return np.stack([self.vectors[text] for text in texts])


def rows(count: int, texts: int = 1) -> Any:
    items = [
        Item((f"text {n}",) * texts, ("neg", "pos")[n % 2], f"dev.csv:{n}") for n in range(count)
    ]
    return [SimpleNamespace(item=item) for item in items]


def random_vectors(count: int, width: int = 20) -> NDArray[np.float64]:
    scales = np.array([8.0, 5.0, *[1.0] * (width - 2)])
    return np.random.default_rng(0).normal(size=(count, width)) * scales + 3


def test_points_are_the_first_two_principal_components() -> None:
    vectors = random_vectors(60)
    places = place_rows(rows(60), CLASSES, Encoder(vectors))  # type: ignore[arg-type]
    assert places is not None
    centered = vectors - vectors.mean(0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    expected = (u * s)[:, :2]
    signs = np.sign((expected * places.points).sum(0))
    assert np.allclose(places.points, expected * signs)
    assert places.variance == pytest.approx((s[:2] ** 2).sum() / (s**2).sum())
    # the sign does not depend on the order of the rows
    backward = place_rows(rows(60)[::-1], CLASSES, Encoder(vectors))  # type: ignore[arg-type]
    assert backward is not None
    assert np.allclose(backward.points[::-1], places.points)


def test_rows_that_were_not_read_are_left_out_and_many_are_thinned() -> None:
    encoder: Any = Encoder(random_vectors(30), unread=[3, 7])
    places = place_rows(rows(30), CLASSES, encoder)
    assert places is not None
    assert [*places.numbers] == [n for n in range(30) if n not in (3, 7)]
    encoder = Encoder(random_vectors(3 * MOST_ROWS))
    places = place_rows(rows(3 * MOST_ROWS), CLASSES, encoder)
    assert places is not None
    assert len({*places.numbers}) == len(places.points) == MOST_ROWS
    assert (places.numbers[0], places.numbers[-1]) == (0, 3 * MOST_ROWS - 1)


def test_only_classes_of_single_texts_have_a_map() -> None:
    encoder: Any = Encoder(random_vectors(30))
    assert place_rows(rows(30, texts=2), CLASSES, encoder) is None
    assert place_rows(rows(30), TaskConfig(task="regression"), encoder) is None
    assert place_rows(rows(9), CLASSES, encoder) is None


def test_a_row_of_the_map_has_its_own_label_and_prediction() -> None:
    encoder: Any = Encoder(random_vectors(12), unread=[0])
    places = place_rows(rows(12), CLASSES, encoder)
    assert places is not None
    answers = [{"label": "pos" if n == 5 else "neg"} for n in range(12)]
    described = describe_rows(places, rows(12), answers)
    assert described["variance"] == places.variance
    assert [row["text"] for row in described["rows"]] == [f"text {n}" for n in range(1, 12)]
    assert [row["predicted"] for row in described["rows"]].index("pos") == 4
    assert [row["label"] for row in described["rows"]][:3] == ["pos", "neg", "pos"]
    assert described["rows"][2]["x"] == pytest.approx(places.points[2, 0], abs=1e-4)
