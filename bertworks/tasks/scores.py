"""Metrics and mistakes of a fine-tuned model.

- items with labels and predictions -> metrics, as numbers and in words; metrics of parts; the
  confusion matrix
- every mistake, the worst first, and the most frequent kinds
- `TASKS`, `METRICS`, `NAMES`: what is known of each task and metric, from tasks.toml
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import eq
from typing import Any

import numpy as np

from bertworks.config import packaged_table
from bertworks.datasets.annotations import OUTSIDE, tag_scheme
from bertworks.datasets.schema import Item
from bertworks.errors import UsageError, require, some_names
from bertworks.metrics import intervals, squad
from bertworks.metrics.classification import Span, count_spans, figures_by_type, paired, tag_runs
from bertworks.tasks.decoding import Answer
from bertworks.tasks.features import Features
from bertworks.tasks.settings import TaskConfig

_CONTENT = packaged_table(__file__, "tasks.toml")
TASKS: Mapping[str, Mapping[str, Any]] = _CONTENT["tasks"]
METRICS = {task: tuple[str, ...](facts["metrics"]) for task, facts in TASKS.items()}
NAMES: Mapping[str, str] = _CONTENT["names"]
_AT_ONCE = 1 << 14  # words of which the entities are in memory
# shown in per cent
SHARES = ("accuracy", "macro_f1", "micro_f1", "exact", "f1", "precision", "recall")


def metrics_of(task: str, labels: Sequence[str] = (), bare: bool = False) -> tuple[str, ...]:
    """The metrics of a task with these labels; (): not known yet. bare: see `Schema`."""
    if task == "classification" and len(labels) not in (0, 2):
        return METRICS[task][:-1]  # F1 is that of one of two classes
    without_entities = task == "tagging" and tag_scheme(tuple(labels), bare) is None
    return ("accuracy", "macro_f1", "matthews_correlation") if without_entities else METRICS[task]


def metric_of(
    task: str, metric: str | None = None, labels: Sequence[str] = (), bare: bool = False
) -> str:
    """The metric that selects the best checkpoint. labels, bare: see `metrics_of`.

    Raises:
        UsageError: the task has no such metric.
    """
    known = metrics_of(task, labels, bare)
    if metric is not None and metric not in known:
        raise UsageError(
            f"{metric!r} is not a metric of {task}", hint=f"name one of {', '.join(known)}"
        )
    return metric or known[0]


_LABEL_NAMES: Mapping[str, Callable[[Any], Iterable[str]]] = {  # in the label of a whole text
    "classification": lambda label: (label,),
    "multilabel": iter,
    "regression": lambda _: (),
    "choice": lambda label: (str(label + 1),),
    "qa": lambda label: ("with an answer" if label else "without an answer",),
}


def predicted_label(task: str, answer: Answer) -> Any:
    """The prediction in the form of `Item.label`; the text of the answer to a question."""
    result = answer[TASKS[task]["shown"][0]]
    return (
        [(part["start"], part["end"], part["type"]) for part in result]
        if task == "spans"
        else result
    )


def named_spans(task: str, label: Any, labels: Sequence[str], bare: bool = False) -> list[Span]:
    """A gold or predicted label as spans with names: entities by words or characters, other tags by
    words. The labels of a whole text have the span 0 to 1; choices are named by their positions.

    labels, bare: of the task, see `Schema`.
    """
    if task == "tagging":
        scheme = tag_scheme(tuple(labels), bare)
        if scheme is None:
            return [(n, n + 1, tag) for n, tag in enumerate(label)]
        return [(start, end, kind or "_") for start, end, kind in tag_runs(label, scheme)]
    return list(label) if task == "spans" else [(0, 1, name) for name in _LABEL_NAMES[task](label)]


def span_pairs(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> Iterator[tuple[list[Span], list[Span]]]:
    """The `named_spans` of the label and of the prediction of each item; those of each part of many
    tags."""
    for item, answer in zip(items, answers, strict=True):
        sides = item.label, predicted_label(d.task, answer)
        for part in _parts(d, item, answer):
            named = (
                named_spans(d.task, side[part] if part else side, d.labels, d.bare_types)
                for side in sides
            )
            if first := part.start if part else 0:
                named = ([(first + a, first + b, kind) for a, b, kind in spans] for spans in named)
            gold, given = named
            yield gold, given


def _parts(d: TaskConfig, item: Item, answer: Answer) -> Iterator[slice | None]:
    """The words of a tagged item in parts, so that few entities are in memory. No entity is in two
    of them."""
    if d.task != "tagging":
        yield None
        return
    gold, given, start = item.label, answer["tags"], 0
    count, is_free = min(len(gold), len(given)), d.tag_scheme is None
    while start + _AT_ONCE < count:
        cuts = range(start + _AT_ONCE, count)
        end = next(
            (n for n in cuts if is_free or (gold[n] in OUTSIDE and given[n] in OUTSIDE)), count
        )
        yield slice(start, end)
        start = end
    yield slice(start, None)


def compute_metrics(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> dict[str, float]:
    """The metrics of a task, and other figures; all items have labels. Raises as `row_sums`."""
    figures = {name: sums.value for name, sums in row_sums(d, items, answers).items()}
    return figures | (_best_of_answers(items, answers) if d.task == "qa" else {})


def _best_of_answers(items: Sequence[Item], answers: Sequence[Answer]) -> dict[str, float]:
    """If some questions have no answer, `best_f1` and its `threshold`: the lead in logits from
    which "no answer" is predicted; else {}."""
    if all(item.label for item in items):
        return {}
    # Numbered in order: not all files have ids. The threshold is that of the best answers, whatever
    # the present one.
    questions = [
        squad.SquadQuestion(str(n), tuple(golds)) for n, golds in enumerate(map(_golds, items))
    ]
    best = {
        str(n): (answer["n_best"] or [{"text": ""}])[0]["text"] for n, answer in enumerate(answers)
    }
    margins = {str(n): answer["no_answer_margin"] for n, answer in enumerate(answers)}
    unit = _f1_unit(items)
    found, _ = squad.evaluate_answers(
        questions, best, version="2.0", no_answer_probabilities=margins, unit=unit
    )
    return {"best_f1": found["best_f1"] / 100, "threshold": found["best_f1_thresh"]}


def _golds(item: Item) -> list[str]:
    return [text for _, text in item.label or ()]


def _f1_unit(items: Sequence[Item]) -> squad.F1Unit:
    return squad.f1_unit_of(item.texts[1] for item in items)


def _answer_scores(items: Sequence[Item], answers: Sequence[Answer]) -> list[squad.SquadScore]:
    """Of each answer, by the official script: that of version 2.0 if a question has no answer."""
    version: squad.SquadVersion = "1.1" if all(item.label for item in items) else "2.0"
    pairs, unit = zip(items, answers, strict=True), _f1_unit(items)
    return [
        squad.score_answer(_golds(item), a["answer"], version=version, unit=unit)
        for item, a in pairs
    ]


def row_sums(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> dict[str, intervals.RowSums]:
    """The metrics and other figures of a task as sums over rows, for their values and intervals.

    Raises:
        BertworksError: no rows; more or fewer tags than words; a number that is not finite.
    """
    require(items, "no rows: there is nothing to score", "", "give rows with labels")
    if d.task == "regression":
        return intervals.correlations(
            [item.label for item in items], [answer["value"] for answer in answers]
        )
    if d.task == "qa":
        exact, f1 = zip(*_answer_scores(items, answers))
        return {"f1": intervals.mean_sums(f1), "exact": intervals.mean_sums(exact)}
    counts = count_spans(
        span_pairs(d, items, answers), d.labels if d.task == "classification" else ()
    )[1]
    sizes = [
        len(list(_parts(d, item, answer))) for item, answer in zip(items, answers, strict=True)
    ]
    counts = np.add.reduceat(counts, np.cumsum([0, *sizes[:-1]]))
    sums = intervals.count_sums(counts)
    sums["accuracy"] = intervals.mean_sums((counts == counts[:, :1]).all((1, 2)).tolist())
    if d.task == "tagging":
        for item, answer in zip(items, answers, strict=True):
            what = f"{len(answer['tags'])} predicted tags for {len(item.label)} words"
            require(
                len(item.label) == len(answer["tags"]), what, item.where, "give each word one tag"
            )
        right = [
            sum(map(eq, item.label, answer["tags"]))
            for item, answer in zip(items, answers, strict=True)
        ]
        sums["accuracy"] = intervals.ratio_sums(right, [len(item.label) for item in items])
    if d.positive_label is not None:
        place = d.labels.index(d.positive_label)
        sums["f1"] = intervals.count_sums(counts[:, :, place : place + 1])["f1"]
    names = *metrics_of(d.task, d.labels, d.bare_types), *TASKS[d.task].get("figures", ())
    return {name: sums[name] for name in names}


def interval_of(
    d: TaskConfig, items: Sequence[Item], sums: intervals.RowSums, metric: str
) -> intervals.Interval:
    """95 % interval of one of `row_sums`: Wilson's for fractions of independent rows, else the
    bootstrap over rows or over groups: questions on one context, rows of one document."""
    groups = groups_of(d, items)
    if metric in ("accuracy", "exact") and d.task != "tagging" and len(set(groups)) == len(items):
        return intervals.wilson_interval(sums.value * len(items), len(items))
    return bounded(
        intervals.middle(intervals.resampled(sums, groups)), sums.value, len(set(groups)), metric
    )


def bounded(
    interval: intervals.Interval, value: float, count: int, metric: str
) -> intervals.Interval:
    """An interval within the bounds of its metric. If all resamples are equal, Wilson's of as many
    rows as groups."""
    least = 0.0 if metric in SHARES else -1.0
    if interval.low == interval.high:
        low, high = intervals.wilson_interval((value - least) / (1 - least) * count, count)
        interval = intervals.Interval(least + (1 - least) * low, least + (1 - least) * high)
    return intervals.Interval(max(least, interval.low), min(1.0, interval.high))


def groups_of(d: TaskConfig, items: Sequence[Item]) -> Sequence[Hashable]:
    """Of each row what it belongs to: the context of a question, the document, or itself.
    FEWEST_GROUPS or more groups, else each row is its own."""
    names = [
        item.texts[1] if d.task == "qa" else item.document or row for row, item in enumerate(items)
    ]
    return intervals.groups_or_rows(names)


def best_threshold(answers: Sequence[Answer], figures: Mapping[str, float]) -> float:
    """The margin with the best F1, plus half of the distance to the next margin (at most .5), so
    that no answer depends on the last digit. If it is best to give no answer at all, a margin below
    all."""
    threshold = figures["threshold"]
    margins: list[float] = [answer["no_answer_margin"] for answer in answers]
    if threshold not in margins:
        return min(0.0, *margins) - 1
    return (
        threshold
        + min([1.0, *(margin - threshold for margin in margins if margin > threshold)]) / 2
    )


Intervals = Mapping[str, Sequence[float]]  # low and high, by metric


def format_metrics(
    figures: Mapping[str, Any], intervals: Intervals | None = None, positive: str | None = None
) -> str:
    """Metrics in one line, with their intervals if they are known. positive: see `metric_name`."""
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
    """Metrics in words, by title. positive: see `metric_name`."""
    names = [name for name in NAMES if name in figures]
    intervals = intervals or {}
    return {
        metric_name(name, positive): format_score(name, figures[name], intervals.get(name))
        for name in names
    }


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
    """ "89.2% (86.2 to 91.6%)": a share in per cent, else as a number; its interval in brackets, if
    it is known. sign: "+" for a difference, of shares in points."""
    scale, unit, form = (
        (100, "" if sign else "%", sign + ".1f") if metric in SHARES else (1, "", sign + ".3f")
    )
    shown = f"{scale * value:{form}}{unit}"
    if interval is None:
        return shown
    return f"{shown} ({scale * interval[0]:{form}} to {scale * interval[1]:{form}}{unit})"


NOTHING = "-"  # instead of a label, if there is none
MAX_CONFUSION_LABELS = 50  # of a confusion matrix; larger ones cannot be read
MAX_POINTS = 1000  # of gold and predicted numbers


def task_results(
    d: TaskConfig, encoded: Sequence[Features], answers: Sequence[Answer]
) -> tuple[dict[str, Any], list["Mistake"]]:
    """Return the results of an evaluation, and all mistakes.

    The results are metrics and their intervals, `table`s of parts, the number of mistakes and their
    most frequent kinds, `positive` (the class whose F1 is among the metrics) and `never_found` (see
    the function of this name).
    """
    items = [features.item for features in encoded]
    wrong_answers = mistakes(d, items, answers)
    sums = row_sums(d, items, answers)
    names = metrics_of(d.task, d.labels, d.bare_types)
    parts = table(d, encoded, answers)
    results = {
        "task": d.task,
        "rows": len(items),
        "positive": d.positive_label,
        "figures": compute_metrics(d, items, answers),
        "intervals": {name: interval_of(d, items, sums[name], name) for name in names},
        "table": parts,
        "never_found": never_found(parts) if d.task == "classification" else {},
        "mistakes": len(wrong_answers),
        "frequent": frequent(wrong_answers),
    }
    return results, wrong_answers


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


@dataclass(frozen=True, slots=True)
class Mistake:
    """One wrong prediction.

    texts: of a tagged text of more than _LONG characters what is around the entity: each of its
        mistakes has a line.
    kind: the type of mistake, in words; "": it has none.
    score: probability of the prediction, or the difference of a number; None: unknown.
    badness: mistakes of one task are sorted by it.
    """

    where: str
    texts: tuple[str, ...]
    gold: str
    predicted: str
    score: float | None
    badness: float
    kind: str = ""
    # further columns, the same for all mistakes of a task
    figures: Mapping[str, float] = field(default_factory=dict)


def mistakes(d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]) -> list[Mistake]:
    """All mistakes, the worst first. Regression: all rows. Entities: one mistake for each."""
    find = {
        "classification": _labels,
        "multilabel": _label_sets,
        "regression": _numbers,
        "tagging": _entities,
        "spans": _entities,
        "qa": _answers,
        "choice": _labels,
    }[d.task]
    unit = _f1_unit(items) if d.task == "qa" else "word"
    found = [
        one
        for item, answer in zip(items, answers, strict=True)
        for one in find(d, item, answer, unit)
    ]
    return sorted(found, key=lambda one: -one.badness)


def counted(count: int, rows: int) -> str:
    """A number of mistakes, in words."""
    return f"{count:,} mistake{'s' * (count != 1)} in {rows:,} rows"


def frequent(found: Sequence[Mistake], count: int = 3) -> str:
    """The most frequent kinds in one line; "": there are none."""
    kinds = Counter(one.kind for one in found if one.kind)
    return ", ".join(f"{kind} ({times:,})" for kind, times in kinds.most_common(count))


def _labels(d: TaskConfig, item: Item, answer: Answer, _: str) -> Iterator[Mistake]:
    """One label, or one of several choices."""
    gold, given, texts = item.label, predicted_label(d.task, answer), item.texts
    if gold == given:
        return
    known = d.task == "choice" or gold in answer["scores"]
    p, kind = answer["scores"][gold] if known else 0.0, f"{gold!r} taken for {given!r}"
    if d.task == "choice":
        gold, given, texts, kind = texts[1 + gold], texts[1 + given], texts[:1], ""
    yield Mistake(item.where, texts, gold, given, answer["score"], -p, kind, {"gold_score": p})


def _label_sets(d: TaskConfig, item: Item, answer: Answer, _: str) -> Iterator[Mistake]:
    gold, given = set(item.label), set(answer["labels"])
    if gold != given:
        # no probability of labels that were never trained
        p = dict.fromkeys(gold, 0.0) | answer["scores"]
        wrong = {name: p[name] if name in given else 1 - p[name] for name in gold ^ given}
        worst = max(wrong, key=wrong.__getitem__)
        kind = f"{worst!r} {'given wrongly' if worst in given else 'missed'}"
        names, others = (json.dumps(sorted(labels), ensure_ascii=False) for labels in (gold, given))
        yield Mistake(
            item.where, item.texts, names, others, wrong[worst], sum(wrong.values()), kind
        )


def _numbers(d: TaskConfig, item: Item, answer: Answer, _: str) -> Iterator[Mistake]:
    off = answer["value"] - item.label
    yield Mistake(
        item.where, item.texts, f"{item.label:g}", f"{answer['value']:.4g}", off, abs(off)
    )


def _answers(d: TaskConfig, item: Item, answer: Answer, unit: squad.F1Unit) -> Iterator[Mistake]:
    golds, given = [text for _, text in item.label], answer["answer"]
    exact, f1 = squad.score_answer(golds, given, version="2.0", unit=unit)
    if not golds:
        kind = "answered, but there is no answer"
    elif not given:
        kind = "left without an answer"
    else:
        kind = "partly right" if f1 else "quite another answer"
    if not exact:
        shown = json.dumps(list(dict.fromkeys(golds)), ensure_ascii=False) if golds else NOTHING
        badness = 1 - f1 + answer["score"]
        yield Mistake(
            item.where,
            item.texts[:1],
            shown,
            given or NOTHING,
            answer["score"],
            badness,
            kind,
            {"f1": f1},
        )


def _entities(d: TaskConfig, item: Item, answer: Answer, _: str) -> Iterator[Mistake]:
    is_by_word, text = d.task == "tagging", " ".join(item.texts)
    is_long = len(text) > _LONG
    given_spans = answer.get("entities", ())
    scores: dict[Span | None, float] = {
        (one["start"], one["end"], one["type"]): one["score"] for one in given_spans
    }

    def named(span: Span | None) -> str:
        if span is None:
            return NOTHING
        start, end, name = span
        return f"{name}: {' '.join(item.texts[start:end]) if is_by_word else text[start:end]}"

    for gold, given in chain(*(paired(*spans) for spans in span_pairs(d, [item], [answer]))):
        place = given or gold
        if gold == given or place is None:
            continue
        score = scores.get(given)  # a span that is missed has no score
        if is_by_word:
            score = sum(answer["scores"][place[0] : place[1]]) / (place[1] - place[0])
        badness, shown = 0.5 if score is None else score, text
        if is_long:
            near = slice(max(0, place[0] - _NEAR[is_by_word]), place[1] + _NEAR[is_by_word])
            shown = f"... {' '.join(item.texts[near]) if is_by_word else text[near]} ..."
        yield Mistake(
            item.where, (shown,), named(gold), named(given), score, badness, _kind(gold, given)
        )


# characters of a text; characters or words on each side of an entity
_LONG, _NEAR = 10_000, (100, 20)


def _kind(gold: Span | None, given: Span | None) -> str:
    if gold is None or given is None:
        return (
            f"{gold[2]!r} missed"
            if gold
            else f"{given[2]!r} predicted where there is no entity"
            if given
            else ""
        )
    return (
        f"borders of {gold[2]!r} wrong"
        if gold[2] == given[2]
        else f"{gold[2]!r} taken for {given[2]!r}"
    )


def confusion(
    d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]
) -> dict[str, list[Any]]:
    """The confusion matrix: `labels`, and `counts` with gold labels in rows, predictions in
    columns. NOTHING: an entity without a counterpart. Choices are named by their positions. {}: a
    task without classes, or too many of them."""
    if d.task in ("multilabel", "regression", "qa"):
        return {}
    pairs = Counter(
        (gold[2] if gold else NOTHING, given[2] if given else NOTHING)
        for spans in span_pairs(d, items, answers)
        for gold, given in paired(*spans)
    )
    names = [*sorted(set(chain(*pairs)) - {NOTHING}), NOTHING]
    if d.task == "classification":
        names = list(d.labels)
    elif d.task == "choice":
        names = [str(number + 1) for number in range(d.num_choices)]
    if len(names) > MAX_CONFUSION_LABELS:
        return {}
    return {"labels": names, "counts": [[pairs[gold, given] for given in names] for gold in names]}


def table(
    d: TaskConfig, dev: Sequence[Features], answers: Sequence[Answer]
) -> dict[str, dict[str, float]]:
    """Metrics of parts: of each label, of each type of entity, of each kind of question."""
    items = [features.item for features in dev]
    if d.task == "qa":
        return _questions(dev, answers)
    if d.task in ("regression", "choice"):
        return {}
    labels = d.labels if d.task == "classification" else ()
    return figures_by_type(*count_spans(span_pairs(d, items, answers), labels))


def _questions(dev: Sequence[Features], answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
    """Questions with and without answer; contexts that are read in one window and in several."""
    items = [features.item for features in dev]
    has_unanswerable = not all(item.label for item in items)
    parts: dict[str, list[squad.SquadScore]] = defaultdict(list)
    for features, score in zip(dev, _answer_scores(items, answers), strict=True):
        parts[
            "context in one piece" if len(features.unit) == 1 else "context in several pieces"
        ].append(score)
        if has_unanswerable:
            parts["with an answer" if features.item.label else "without an answer"].append(score)
    means = {kind: np.mean(scores, axis=0).tolist() for kind, scores in sorted(parts.items())}
    return {
        kind: {"exact": exact, "f1": f1, "support": float(len(parts[kind]))}
        for kind, (exact, f1) in means.items()
    }


def points(items: Sequence[Item], answers: Sequence[Answer]) -> list[tuple[float, float]]:
    """Gold and predicted numbers, at most MAX_POINTS, spread over all rows."""
    step = -(-len(items) // MAX_POINTS)
    return [
        (float(item.label), a["value"])
        for item, a in list(zip(items, answers, strict=True))[::step]
    ]
