"""Draw the embeddings of held-out rows in two dimensions, for the report of a fine-tuning.

- `place_rows`: the rows that are drawn, and their coordinates
- `describe_rows`: these rows with their labels, predictions and texts, as in result.json

The embeddings are those of the initial model, which the baseline "frozen vectors" has computed
already. The models of a cross-validation each have a space of their own, so that their vectors
could not be drawn together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.events import JsonObject
from bertworks.runs.baselines import FrozenEncoder
from bertworks.runs.static_distillation import principal_components
from bertworks.tasks.registry import TASKS
from bertworks.tasks.sequences import Rows
from bertworks.tasks.settings import TaskConfig

MOST_ROWS = 500
FEWEST_ROWS = 10  # fewer lie apart from each other whatever their labels are
_DIGITS = 4  # of a coordinate: a picture has fewer
_SHOWN = 80  # characters of a text


class Places(NamedTuple):
    """Where rows are drawn.

    numbers: of the rows, [n]. points: their coordinates, float64 [n, 2]. variance: the share of the
    variance of the embeddings in these two dimensions.
    """

    numbers: Sequence[int]
    points: NDArray[np.float64]
    variance: float


def place_rows(rows: Rows, d: TaskConfig, encoder: FrozenEncoder) -> Places | None:
    """Return where rows are drawn: their first two principal components.

    At most MOST_ROWS are drawn, evenly spread over those that the encoder has read. None: the task
    has no classes of single texts, or it has read fewer than FEWEST_ROWS.

    Args:
        encoder: nothing is encoded with it, so that a map costs no time.
    """
    if not TASKS[d.task].has_classes or any(len(row.item.texts) > 1 for row in rows):
        return None
    known = [n for n, row in enumerate(rows) if encoder.has_read(row.item.texts[0])]
    if len(known) < FEWEST_ROWS:
        return None
    chosen = np.linspace(0, len(known) - 1, min(len(known), MOST_ROWS)).astype(int)
    numbers = [known[n] for n in chosen]
    vectors = encoder.texts(rows[n].item.texts[0] for n in numbers)
    points, variance = principal_components(vectors, 2)
    return Places(numbers, points, variance)


def describe_rows(places: Places, rows: Rows, answers: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Return the rows of a map as in result.json: `variance`, and `rows`, each with its place.

    Args:
        rows: of `place_rows`. answers: to them, by models that did not see them.
    """
    described = []
    for number, (x, y) in zip(places.numbers, places.points.round(_DIGITS).tolist(), strict=True):
        item = rows[number].item
        text = item.texts[0]
        described.append(
            {
                "x": x,
                "y": y,
                "label": item.label,
                "predicted": answers[number]["label"],
                "text": text if len(text) <= _SHOWN else f"{text[:_SHOWN]} …",
            }
        )
    return {"variance": places.variance, "rows": described}
