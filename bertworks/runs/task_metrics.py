"""Metrics and mistakes of a fine-tuned model.

- items with labels and predictions -> metrics, as numbers and in words
- every mistake, the worst first, and the most frequent kinds
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.checkpoints.model_folder import TaskConfig
from bertworks.datasets.schema import Item, TaskType
from bertworks.errors import UsageError
from bertworks.inference.decoding import Answer, is_entity_tagset
from bertworks.metrics import classification, squad
from bertworks.metrics.classification import Span, tag_spans

METRICS: Mapping[TaskType, tuple[str, ...]] = {  # of each task; the first one selects the best checkpoint
    "classification": ("accuracy", "macro_f1", "matthews_correlation", "f1"),
    "multilabel": ("micro_f1", "macro_f1", "accuracy"),
    "regression": ("spearman", "pearson"),
    "tagging": ("f1", "precision", "recall", "accuracy"),
    "spans": ("f1", "precision", "recall"),
    "qa": ("f1", "exact"),
    "choice": ("accuracy",),
}
NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "matthews_correlation": "Matthews correlation",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "exact": "exact match",
    "f1": "F1",
}
SHARES = ("accuracy", "macro_f1", "micro_f1", "exact", "f1", "precision", "recall")  # shown in per cent


def metric_of(task: TaskType, metric: str | None = None, labels: Sequence[str] = ()) -> str:
    """The metric that selects the best checkpoint. labels: of the data; (): not known yet.

    Raises:
        UsageError: the task has no such metric.
    """
    known = METRICS[task]
    if task == "classification" and len(labels) not in (0, 2):
        known = known[:-1]  # F1 is that of one of two classes
    if task == "tagging" and not is_entity_tagset(labels):
        known = ("accuracy", "macro_f1")
    if metric is not None and metric not in known:
        raise UsageError(f"{metric!r} is not a metric of {task}", hint=f"name one of {', '.join(known)}")
    return metric or known[0]


def compute_metrics(d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]) -> dict[str, float]:
    """The metrics of a task; all items have labels."""
    gold = [item.label for item in items]
    match d.task:
        case "classification":
            return classification.classification(gold, [answer["label"] for answer in answers], d.labels)
        case "multilabel":
            return classification.multilabel(gold, [answer["labels"] for answer in answers])
        case "regression":
            return classification.regression(gold, [answer["value"] for answer in answers])
        case "choice":
            return classification.choice(gold, [answer["choice"] for answer in answers])
        case "tagging" if not is_entity_tagset(d.labels):
            predicted = [tag for answer in answers for tag in answer["tags"]]
            return classification.classification([tag for tags in gold for tag in tags], predicted, d.labels)
        case "tagging":
            return classification.tagging(gold, [answer["tags"] for answer in answers])
        case "spans":
            return classification.spans(gold, [given_spans(d, answer) for answer in answers])
        case "qa":
            return compute_answer_metrics(items, answers)


def compute_answer_metrics(items: Sequence[Item], answers: Sequence[Answer]) -> dict[str, float]:
    """The official metrics as fractions. If some questions have no answer, also `best_f1` and its `threshold`: the
    lead in logits from which "no answer" is predicted."""
    # Numbered in order: not all files have ids.
    golds = [tuple(text for _, text in item.label or ()) for item in items]
    questions = [squad.SquadQuestion(str(place), texts) for place, texts in enumerate(golds)]
    without = not all(question.answers for question in questions)
    version: squad.SquadVersion = "2.0" if without else "1.1"
    unit = squad.f1_unit_of([item.texts[1] for item in items])
    # The best threshold is computed from the best answer, whatever the present threshold.
    given = {str(place): answer["answer"] for place, answer in enumerate(answers)}
    figures = squad.evaluate_answers(questions, given, version=version, unit=unit)
    metrics = {"exact": figures["exact"] / 100, "f1": figures["f1"] / 100}
    if without:
        best = {str(place): (a["n_best"] or [{"text": ""}])[0]["text"] for place, a in enumerate(answers)}
        margins = {str(place): a["no_answer_margin"] for place, a in enumerate(answers)}
        found = squad.evaluate_answers(questions, best, version="2.0", no_answer_probabilities=margins, unit=unit)
        metrics |= {"best_f1": found["best_f1"] / 100, "threshold": found["best_f1_thresh"]}
    return metrics


def format_metrics(figures: Mapping[str, Any]) -> str:
    """Metrics in one line."""
    if not figures:
        return "nothing was evaluated"
    shown = [f"loss {figures['loss']:.3f}"] if "loss" in figures else []
    for name, title in NAMES.items():
        if name in figures:
            value = figures[name]
            shown.append(f"{title} {value:.1%}" if name in SHARES else f"{title} {value:.3f}")
    return ", ".join(shown)


Counts = NDArray[np.int64]
NOTHING = "-"  # instead of a label, if there is none


@dataclass(frozen=True)
class Mistake:
    """One wrong prediction.

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
    figures: Mapping[str, float] = field(default_factory=dict)  # further columns, the same for all mistakes of a task


def mistakes(d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]) -> list[Mistake]:
    """All mistakes, the worst first. Regression: all rows. Entities: one mistake for each."""
    find = {
        "classification": _labels, "multilabel": _label_sets, "regression": _numbers, "tagging": _entities,
        "spans": _entities, "qa": _answers, "choice": _choices,
    }[d.task]  # fmt: skip
    unit = squad.f1_unit_of([item.texts[1] for item in items]) if d.task == "qa" else "word"
    found = [one for item, answer in zip(items, answers, strict=True) for one in find(d, item, answer, unit)]
    return sorted(found, key=lambda one: -one.badness)


def counted(count: int, rows: int) -> str:
    """A number of mistakes, in words."""
    return f"{count:,} mistake{'s' * (count != 1)} in {rows:,} rows"


def frequent(found: Sequence[Mistake], count: int = 3) -> str:
    """The most frequent kinds in one line; "": there are none."""
    kinds = Counter(one.kind for one in found if one.kind)
    return ", ".join(f"{kind} ({times:,})" for kind, times in kinds.most_common(count))


def gold_spans(d: TaskConfig, item: Item) -> list[Span]:
    """The entities of an item: by words where words are tagged, else by characters."""
    return list(item.label) if d.task == "spans" else _spans(d, item.label)


def given_spans(d: TaskConfig, answer: Answer) -> list[Span]:
    """Those of an answer."""
    if "entities" in answer:
        return [(one["start"], one["end"], one["type"]) for one in answer["entities"]]
    return _spans(d, answer["tags"])


def _spans(d: TaskConfig, tags: Sequence[str]) -> list[Span]:
    """The entities of tags; for other tags, each word is a span."""
    return tag_spans(tags) if is_entity_tagset(d.labels) else [(n, n + 1, tag) for n, tag in enumerate(tags)]


def paired(gold: Sequence[Span], given: Sequence[Span]) -> list[tuple[Span | None, Span | None]]:
    """Each gold entity with the prediction that overlaps it most, or None; each other prediction with None."""
    left = [span for span in dict.fromkeys(given) if span not in set(gold)]
    pairs: list[tuple[Span | None, Span | None]] = []
    for span in dict.fromkeys(gold):
        if span in given:
            pairs.append((span, span))
            continue
        shared = {other: min(span[1], other[1]) - max(span[0], other[0]) for other in left}
        best = max(left, key=shared.__getitem__, default=None)
        if best is not None and shared[best] <= 0:
            best = None
        if best is not None:
            left.remove(best)
        pairs.append((span, best))
    return pairs + [(None, span) for span in left]


def _labels(d: TaskConfig, item: Item, answer: Answer, _: str) -> list[Mistake]:
    given = answer["label"]
    if given == item.label:
        return []
    p = answer["scores"][item.label]
    kind = f"{item.label!r} taken for {given!r}"
    return [Mistake(item.where, item.texts, item.label, given, answer["score"], -p, kind, {"gold_score": p})]


def _label_sets(d: TaskConfig, item: Item, answer: Answer, _: str) -> list[Mistake]:
    gold, given = set(item.label), set(answer["labels"])
    if gold == given:
        return []
    wrong = {name: p if name in given else 1 - p for name, p in answer["scores"].items() if name in gold ^ given}
    worst = max(wrong, key=wrong.__getitem__)
    kind = f"{worst!r} {'given wrongly' if worst in given else 'missed'}"
    names = [json.dumps(sorted(labels), ensure_ascii=False) for labels in (gold, given)]
    return [Mistake(item.where, item.texts, names[0], names[1], wrong[worst], sum(wrong.values()), kind)]


def _numbers(d: TaskConfig, item: Item, answer: Answer, _: str) -> list[Mistake]:
    off = answer["value"] - item.label
    return [Mistake(item.where, item.texts, f"{item.label:g}", f"{answer['value']:.4g}", off, abs(off))]


def _choices(d: TaskConfig, item: Item, answer: Answer, _: str) -> list[Mistake]:
    given, right = answer["choice"], item.label
    if given == right:
        return []
    p = answer["scores"][right]
    texts = item.texts[1:]
    return [Mistake(item.where, item.texts[:1], texts[right], texts[given], answer["score"], -p, "", {"gold_score": p})]


def _answers(d: TaskConfig, item: Item, answer: Answer, unit: squad.F1Unit) -> list[Mistake]:
    golds, given = [text for _, text in item.label], answer["answer"]
    exact, f1 = squad.score_answer(golds, given, version="2.0", unit=unit)
    if exact:
        return []
    kind = "answered, but there is no answer" if not golds else "left without an answer" if not given else ""
    kind = kind or ("partly right" if f1 else "quite another answer")
    shown = json.dumps(list(dict.fromkeys(golds)), ensure_ascii=False) if golds else NOTHING
    badness = 1 - f1 + answer["score"]
    return [Mistake(item.where, item.texts[:1], shown, given or NOTHING, answer["score"], badness, kind, {"f1": f1})]


def _entities(d: TaskConfig, item: Item, answer: Answer, _: str) -> list[Mistake]:
    words = d.task == "tagging"
    scores = answer["scores"] if words else {(e["start"], e["end"], e["type"]): e["score"] for e in answer["entities"]}
    text = " ".join(item.texts)

    def named(span: Span | None) -> str:
        if span is None:
            return NOTHING
        inside = " ".join(item.texts[span[0] : span[1]]) if words else item.texts[0][span[0] : span[1]]
        return f"{span[2]}: {inside}"

    found = []
    for gold, given in paired(gold_spans(d, item), given_spans(d, answer)):
        if gold == given:
            continue
        place = given or gold
        assert place is not None
        if words:
            score = sum(scores[place[0] : place[1]]) / (place[1] - place[0])
        else:
            score = scores.get(given)  # what is not seen has no score
        badness = 0.5 if score is None else score
        found.append(Mistake(item.where, (text,), named(gold), named(given), score, badness, _what(gold, given)))
    return found


def _what(gold: Span | None, given: Span | None) -> str:
    if given is None:
        return f"{gold[2]!r} missed" if gold else ""
    if gold is None:
        return f"{given[2]!r} predicted where there is no entity"
    if gold[2] == given[2]:
        return f"borders of {gold[2]!r} wrong"
    return f"{gold[2]!r} taken for {given[2]!r}"


def confusion(d: TaskConfig, items: Sequence[Item], answers: Sequence[Answer]) -> tuple[list[str], Counts]:
    """Names, and the confusion matrix: gold labels in rows, predictions in columns. NOTHING: an entity without a
    counterpart. Choices are named by their positions. Empty for tasks without classes."""
    pairs: Counter[tuple[str, str]] = Counter()
    names: list[str] = list(d.labels)
    match d.task:
        case "classification":
            pairs.update((item.label, answer["label"]) for item, answer in zip(items, answers, strict=True))
        case "choice":
            names = [str(number + 1) for number in range(d.num_choices)]
            pairs.update((names[x.label], names[answer["choice"]]) for x, answer in zip(items, answers, strict=True))
        case "tagging" | "spans":
            for item, answer in zip(items, answers, strict=True):
                both = paired(gold_spans(d, item), given_spans(d, answer))
                pairs.update((a[2] if a else NOTHING, b[2] if b else NOTHING) for a, b in both)
            names = [*sorted({name for pair in pairs for name in pair} - {NOTHING}), NOTHING]
        case "multilabel" | "regression" | "qa":
            return [], np.zeros((0, 0), np.int64)
    return names, np.array([[pairs[gold, given] for given in names] for gold in names], np.int64)
