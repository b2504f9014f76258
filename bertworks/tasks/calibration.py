"""Labelled rows and logits -> the temperature of the probabilities, the threshold of a task, and
how good they are."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.sampling import keyed_rng
from bertworks.datasets.schema import compared_texts
from bertworks.metrics import intervals
from bertworks.tasks import scores as task_metrics
from bertworks.tasks.decoding import Answer, Decoder, Logits, sigmoid
from bertworks.tasks.features import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.text.near_copies import near_copies_of_rows

FEWEST_CALIBRATED = 50  # rows from which a temperature is fitted


def fit_outputs(
    d: TaskConfig, rows: Sequence[Features], logits: Sequence[Logits]
) -> tuple[TaskConfig, list[Answer], dict[str, Any]]:
    """The task with the threshold and the temperature that fit labelled rows; predictions for these
    rows, with a threshold that fits the other half of the rows, so that their scores are those of
    new rows; and the calibration error before and after, estimated in the same way; {}: there are
    too few rows, or no probabilities of labels.

    Contexts, documents and near-copies of a text are in one half. Few rows: only the threshold of
    "no answer" is fitted.
    """
    enough = len(rows) >= FEWEST_CALIBRATED and d.task not in ("regression", "qa")
    items = [features.item for features in rows]
    groups = task_metrics.groups_of(d, items)
    if len(set(groups)) == len(items):
        groups = intervals.groups_or_rows(near_copies_of_rows(compared_texts(items, d.task)))
    halves = _halves(groups)
    if not all(halves) or not (enough or d.threshold is not None):
        return d, list(map(Decoder(d), rows, logits)), {}
    answers, temperatures = [Answer()] * len(rows), np.ones(len(rows))
    for half, others in (halves, halves[::-1]):
        fitted = _fitted(d, [rows[n] for n in others], [logits[n] for n in others])
        for n in half:
            answers[n], temperatures[n] = Decoder(fitted)(rows[n], logits[n]), fitted.temperature
    fitted = _fitted(d, rows, logits)
    if fitted.threshold is None:  # the labels are the same
        answers = list(map(Decoder(fitted), rows, logits))
    if not enough:
        return fitted, answers, {}
    x, gold, row_of = gold_logits(d, rows, logits)
    reliability: dict[str, Any] = {"temperature": fitted.temperature, "rows": len(rows)}
    for name, divisor in (("before", np.ones(len(x))), ("after", temperatures[row_of])):
        sides = intervals.confidences(x, gold, divisor)
        error, interval = intervals.expected_calibration_error(
            *sides, np.repeat(row_of, len(sides[0]) // len(x))
        )
        reliability[name] = {"error": error, "interval": interval}
    before, after = (
        task_metrics.format_score("", *reliability[name].values()) for name in ("before", "after")
    )
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


def _fitted(d: TaskConfig, rows: Sequence[Features], logits: Sequence[Logits]) -> TaskConfig:
    """The task with the temperature and then the threshold that fit these rows."""
    if d.task == "qa":
        answers = list(map(Decoder(d), rows, logits))
        figures = task_metrics.compute_metrics(d, [features.item for features in rows], answers)
        return (
            replace(d, threshold=task_metrics.best_threshold(answers, figures))
            if "threshold" in figures
            else d
        )
    x, gold, _ = gold_logits(d, rows, logits)
    d = replace(d, temperature=intervals.fit_temperature(x, gold))
    if d.task == "multilabel":
        d = replace(d, threshold=intervals.best_label_threshold(sigmoid(x / d.temperature), gold))
    return d


def gold_logits(
    d: TaskConfig, rows: Sequence[Features], logits: Sequence[Logits]
) -> tuple[Logits, NDArray[np.float64], NDArray[np.int64]]:
    """Logits [n, labels] and gold labels as in `metrics.intervals`, of all words or tokens, or of
    each row; and the number of the row of each."""
    gold = [
        np.concatenate([example.target.labels for example in features.unit]) for features in rows
    ]
    if d.task == "choice":
        return np.stack([x[:, 0] for x in logits]), np.stack(gold).argmax(1), np.arange(len(rows))
    return (
        np.concatenate(logits),
        np.concatenate(gold),
        np.repeat(np.arange(len(rows)), list(map(len, gold))),
    )
