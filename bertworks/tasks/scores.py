"""Metrics and mistakes of a fine-tuned model, and its calibration.

- items with labels and predictions -> metrics, as numbers and in words; metrics of parts; the
  confusion matrix
- all mistakes, the worst first, and the most frequent kinds
- `fit_outputs`: the temperature of the probabilities and the threshold that fit labelled rows
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from bertworks.batching.examples import keyed_rng
from bertworks.datasets.schema import Item
from bertworks.errors import require, some_names
from bertworks.events import JsonObject
from bertworks.metrics import intervals
from bertworks.metrics.classification import paired
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.sequences import Rows
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import NOTHING, Answer, Logits, Mistake
from bertworks.text.near_copies import near_copies_of_rows

# Names of metrics in words, in the order of tables; of others only parts are shown.
NAMES: Mapping[str, str] = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "matthews_correlation": "Matthews correlation",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "exact": "exact match",
    "f1": "F1",
}
# their names on the Hugging Face hub, where these are others
HUB_NAMES: Mapping[str, str] = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "exact": "exact_match",
}
# shown in per cent
SHARES = ("accuracy", "macro_f1", "micro_f1", "exact", "f1", "precision", "recall")
FEWEST_CALIBRATED = 50  # rows from which a temperature is fitted
MAX_CONFUSION_LABELS = 50  # of a confusion matrix; larger ones cannot be read
MAX_POINTS = 1000  # of gold and predicted numbers
MAX_PARTS = 200  # of a table for a person
_ROUNDING = 1e-9  # of a score


def compute_metrics(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> dict[str, float]:
    """Return the metrics of a task, and other figures; all items have labels.

    Raises as `row_sums`.
    """
    figures = {name: sums.value for name, sums in row_sums(d, items, answers).items()}
    return figures | task_of(d).further_figures([*zip(items, answers)])


def row_sums(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> dict[str, intervals.RowSums]:
    """Return the metrics and other figures of a task as sums over rows.

    They give values and intervals.

    Raises:
        BertworksError: no rows; more or fewer tags than words; a number that is not finite.
    """
    require(items, "no rows: there is nothing to score", "", "give rows with labels")
    return task_of(d).row_sums([*zip(items, answers, strict=True)])


def interval_of(
    d: TaskConfig, items: Sequence[Item], sums: intervals.RowSums, metric: str
) -> intervals.Interval | None:
    """Return the 95 % interval of one of `row_sums`.

    It is Wilson's for fractions of independent rows, else the bootstrap over rows or over groups:
    questions on one context, rows of one document. If the score itself is not within the interval
    of the bootstrap, it is None: resamples lack labels that have one or two rows, so nearly all of
    them have a lower macro F1.
    """
    groups = groups_of(d, items)
    num_groups = len(set(groups))
    if metric in TASKS[d.task].row_fractions and num_groups == len(items):
        return intervals.wilson_interval(sums.value * len(items), len(items))
    interval = bounded(
        intervals.middle(intervals.resampled(sums, groups)), sums.value, num_groups, metric
    )
    is_around = interval.low - _ROUNDING <= sums.value <= interval.high + _ROUNDING
    return interval if is_around else None


def bounded(
    interval: intervals.Interval, value: float, count: int, metric: str
) -> intervals.Interval:
    """Return an interval within the bounds of its metric.

    If all resamples are equal, it is Wilson's of as many rows as groups.
    """
    least = least_value(metric)
    if interval.low == interval.high:
        low, high = intervals.wilson_interval((value - least) / (1 - least) * count, count)
        interval = intervals.Interval(least + (1 - least) * low, least + (1 - least) * high)
    return intervals.Interval(max(least, interval.low), min(1.0, interval.high))


def least_value(metric: str) -> float:
    """Return the smallest value of a metric: 0 of fractions, -1 of correlations."""
    return 0.0 if metric in SHARES else -1.0


def groups_of(d: TaskConfig, items: Sequence[Item]) -> Sequence[Hashable]:
    """Return the group of each row for resampling: its context, its document, or itself.

    With fewer than FEWEST_GROUPS groups each row is its own.
    """
    task = TASKS[d.task]
    return intervals.groups_or_rows([task.group(item) or row for row, item in enumerate(items)])


# low and high, by metric; None: no interval is known to hold, the figure is "about"
Intervals = Mapping[str, Sequence[float] | None]


def format_metrics(
    figures: Mapping[str, Any], intervals: Intervals | None = None, positive: str | None = None
) -> str:
    """Return metrics in one line, with their intervals if they are known.

    Args:
        positive: see `metric_name`.
    """
    if not figures:
        return "nothing was evaluated"
    texts: dict[str, str] = {}
    if "loss" in figures:
        texts["loss"] = f"{figures['loss']:.3f}"
    texts.update(titled_metrics(figures, intervals, positive))
    return ", ".join(f"{title} {text}" for title, text in texts.items())


def titled_metrics(
    figures: Mapping[str, float], intervals: Intervals | None = None, positive: str | None = None
) -> dict[str, str]:
    """Return metrics in words, by title. positive: see `metric_name`."""
    names = [name for name in NAMES if name in figures]
    intervals = intervals or {}
    texts = {}
    for name in names:
        interval = intervals.get(name)
        text = format_score(name, figures[name], interval)
        if name in intervals and interval is None:
            text = about(name, figures[name])
        texts[metric_name(name, positive)] = text
    return texts


def metric_name(metric: str, positive: str | None = None) -> str:
    """Return the name of a metric in words.

    Args:
        positive: the class whose F1 is reported, if there are two classes; else None.
    """
    name = NAMES.get(metric, metric)
    if metric == "f1" and positive is not None:
        return f"{name} of {positive!r}"
    return name


def format_score(
    metric: str, value: float, interval: Sequence[float] | None = None, sign: str = ""
) -> str:
    """Return a figure in words, as "89.2% (86.2 to 91.6%)": a fraction in per cent, else a number.

    Args:
        interval: low and high, which follow in brackets; None: unknown.
        sign: "+" for a difference: of fractions in points.
    """
    scale = 1
    unit = ""
    digits = f"{sign}.3f"
    if metric in SHARES:
        scale = 100
        unit = "" if sign else "%"
        digits = f"{sign}.1f"
    text = f"{scale * value:{digits}}{unit}"
    if interval is None:
        return text
    low, high = interval
    return f"{text} ({scale * low:{digits}} to {scale * high:{digits}}{unit})"


def about(metric: str, value: float) -> str:
    """Return a figure without an interval in words, as "about 84%": rounded."""
    return f"about {value:.0%}" if metric in SHARES else f"about {value:.2f}"


def task_results(
    d: TaskConfig,
    encoded: Rows,
    answers: Sequence[Answer],
    estimates: Mapping[str, intervals.Estimate] | None = None,
) -> tuple[JsonObject, list[Mistake]]:
    """Return the results of an evaluation, and all mistakes.

    The results are metrics and their intervals, `table`s of parts, the number of mistakes and their
    most frequent kinds, `positive` (the class whose F1 is among the metrics) and `never_found` (see
    the function of this name).

    Args:
        estimates: of a model of more rows, by metric, in place of the metrics of these answers and
            of their intervals; None: there are none.
    """
    items = [features.item for features in encoded]
    task = task_of(d)
    estimates = estimates or {}
    pairs = [*zip(items, answers, strict=True)]
    wrong_answers = mistakes(d, items, answers)
    sums = row_sums(d, items, answers)
    figures = {name: row_sum.value for name, row_sum in sums.items()}
    parts = task.table(encoded, pairs)
    results = {
        "task": d.task,
        "rows": len(items),
        "positive": d.positive_label,
        "figures": figures
        | task.further_figures(pairs)
        | {name: estimate.value for name, estimate in estimates.items()},
        "intervals": {
            name: estimates[name].interval
            if name in estimates
            else interval_of(d, items, sums[name], name)
            for name in task.metrics_of()
        },
        "table": parts,
        "never_found": never_found(parts) if task.has_classes else {},
        "mistakes": len(wrong_answers),
        "frequent": frequent(wrong_answers),
    }
    return results, wrong_answers


def largest_parts(parts: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the rows of a table for a person: of more than MAX_PARTS those with most support.

    Args:
        parts: the `table` of an evaluation.
    """
    if len(parts) <= MAX_PARTS:
        return dict(parts)
    return dict(sorted(parts.items(), key=lambda part: -part[1]["support"])[:MAX_PARTS])


def never_found(parts: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """Return the labels of which the model finds no row, with the number of their rows.

    Args:
        parts: the `table` of a classification.
    """
    return {
        name: int(row["support"])
        for name, row in parts.items()
        if row["support"] and not row["recall"]
    }


def format_never_found(labels: Mapping[str, int]) -> str:
    """Return a sentence about the labels of `never_found`, or "" if there are none."""
    if not labels:
        return ""
    if len(labels) == 1:
        [(name, count)] = labels.items()
        rows = f"any of the {count:,} rows" if count > 1 else "the only row"
        return f"the model does not find {rows} of {name!r}"
    descriptions = [
        f"{name!r} (1 row)" if count == 1 else f"{name!r} ({count:,} rows)"
        for name, count in labels.items()
    ]
    names = some_names(descriptions)
    return f"the model does not find any row of {len(labels):,} labels: {names}"


def mistakes(d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]) -> list[Mistake]:
    """Return all mistakes, the worst first.

    Regression: all rows. Entities: one for each.
    """
    all_mistakes = task_of(d).mistakes([*zip(items, answers, strict=True)])
    return sorted(all_mistakes, key=lambda mistake: -mistake.badness)


def counted(count: int, rows: int) -> str:
    """Return a number of mistakes, in words."""
    mistakes = "1 mistake" if count == 1 else f"{count:,} mistakes"
    return f"{mistakes} in {rows:,} rows"


def frequent(all_mistakes: Sequence[Mistake]) -> str:
    """Return the most frequent kinds in one line; "" if there are none."""
    kinds = Counter(mistake.kind for mistake in all_mistakes if mistake.kind)
    return "; ".join(f"{kind} ({times:,})" for kind, times in kinds.most_common(3))


def confusion(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> dict[str, list[Any]]:
    """Return the confusion matrix: `labels`, and `counts`.

    Gold labels are in rows, predictions in columns. NOTHING: an entity without a counterpart.
    Choices are named by their positions. {}: a task without classes, or too many of them.
    """
    task = task_of(d)
    if not task.has_confusion:
        return {}
    pairs = Counter(
        (gold[2] if gold else NOTHING, predicted[2] if predicted else NOTHING)
        for spans in task.span_pairs([*zip(items, answers, strict=True)])
        for gold, predicted in paired(*spans)
    )
    names = task.confusion_labels(set(chain(*pairs)) - {NOTHING})
    if len(names) > MAX_CONFUSION_LABELS:
        return {}
    counts = [[pairs[gold, predicted] for predicted in names] for gold in names]
    return {"labels": names, "counts": counts}


def points(items: Sequence[Item], answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Return gold and predicted numbers, at most MAX_POINTS, spread over all rows."""
    step = -(-len(items) // MAX_POINTS)
    pairs = list(zip(items, answers, strict=True))[::step]
    return [(float(item.label), answer["value"]) for item, answer in pairs]


def fit_outputs(
    d: TaskConfig, rows: Rows, logits: Sequence[Logits]
) -> tuple[TaskConfig, list[Answer], JsonObject]:
    """Return the task with the threshold and the temperature that fit labelled rows.

    With it come predictions for these rows, with a threshold that fits the other half of the rows,
    so that their scores are those of new rows; and the calibration error before and after,
    estimated in the same way, with the `bins` of a reliability diagram and the accuracy by
    `coverage`; {}: there are too few rows, or no probabilities of labels.

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
    reliability: JsonObject = {"temperature": fitted.temperature, "rows": len(rows)}
    for name, divisor in (("before", np.ones(len(x))), ("after", temperatures[row_of])):
        sides = intervals.confidences(x, gold, divisor)
        error, interval = intervals.expected_calibration_error(
            *sides, np.repeat(row_of, len(sides[0]) // len(x))
        )
        reliability[name] = {"error": error, "interval": interval}
    reliability["bins"] = [part._asdict() for part in intervals.reliability_bins(*sides)]
    if gold.ndim == 1:  # one prediction of each row or token, which can be left to a person
        reliability["coverage"] = intervals.accuracy_by_coverage(*sides)
    before, after = (format_score("", *reliability[name].values()) for name in ("before", "after"))
    how = (
        f"calibrated by temperature scaling (T = {fitted.temperature:.3g}, fitted on {len(rows):,} "
        "held-out rows)"
    )
    return (
        fitted,
        answers,
        reliability | {"text": f"{how}: expected calibration error {before} -> {after}"},
    )


def _halves(groups: Sequence[Hashable]) -> list[list[int]]:
    names = list(dict.fromkeys(groups))
    first = {names[n] for n in keyed_rng("halves", 0).permutation(len(names))[: len(names) // 2]}
    return [
        [n for n, name in enumerate(groups) if (name in first) == side] for side in (True, False)
    ]
