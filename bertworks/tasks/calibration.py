"""Fit the temperature of the probabilities and the threshold of a task to labelled rows.

Also how good the probabilities are.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from bertworks.batching.batch import keyed_rng
from bertworks.metrics import intervals
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import format_score, groups_of
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Answer, Logits
from bertworks.text.near_copies import near_copies_of_rows

FEWEST_CALIBRATED = 50  # rows from which a temperature is fitted


def fit_outputs(
    d: TaskConfig, rows: Sequence[Features], logits: Sequence[Logits]
) -> tuple[TaskConfig, list[Answer], dict[str, Any]]:
    """Return the task with the threshold and the temperature that fit labelled rows.

    With it come predictions for these rows, with a threshold that fits the other half of the rows,
    so that their scores are those of new rows; and the calibration error before and after,
    estimated in the same way; {}: there are too few rows, or no probabilities of labels.

    Contexts, documents and near-copies of a text are in one half. Few rows: only the threshold of
    "no answer" is fitted.
    """
    task = task_of(d)
    enough = len(rows) >= FEWEST_CALIBRATED and task.has_temperature
    items = [features.item for features in rows]
    groups = groups_of(d, items)
    if len(set(groups)) == len(items):
        groups = intervals.groups_or_rows(near_copies_of_rows(task.compared_texts(items)))
    halves = _halves(groups)
    if not all(halves) or not (enough or d.threshold is not None):
        return d, list(map(task.decode, rows, logits)), {}
    answers = [Answer()] * len(rows)
    temperatures = np.ones(len(rows))
    for half, other_half in (halves, halves[::-1]):
        fitted = task.fitted([rows[n] for n in other_half], [logits[n] for n in other_half])
        for n in half:
            answers[n] = task_of(fitted).decode(rows[n], logits[n])
            temperatures[n] = fitted.temperature
    fitted = task.fitted(rows, logits)
    if fitted.threshold is None:  # the labels are the same
        answers = list(map(task_of(fitted).decode, rows, logits))
    if not enough:
        return fitted, answers, {}
    x, gold, row_of = task.gold_logits(rows, logits)
    reliability: dict[str, Any] = {"temperature": fitted.temperature, "rows": len(rows)}
    for name, divisor in (("before", np.ones(len(x))), ("after", temperatures[row_of])):
        sides = intervals.confidences(x, gold, divisor)
        error, interval = intervals.expected_calibration_error(
            *sides, np.repeat(row_of, len(sides[0]) // len(x))
        )
        reliability[name] = {"error": error, "interval": interval}
    before, after = (format_score("", *reliability[name].values()) for name in ("before", "after"))
    how = f"calibrated on {len(rows):,} rows with the temperature {fitted.temperature:.3g}"
    return (
        fitted,
        answers,
        reliability | {"text": f"{how}: expected calibration error {after}, before {before}"},
    )


def _halves(groups: Sequence[Hashable]) -> list[list[int]]:
    names = list(dict.fromkeys(groups))
    first = {names[n] for n in keyed_rng("halves", 0).permutation(len(names))[: len(names) // 2]}
    return [
        [n for n, name in enumerate(groups) if (name in first) == side] for side in (True, False)
    ]
