"""Labels and entities compared: how many are right, the entities of tags, pairs of gold and predicted entities.

Labels of whole texts are entities, too: all have the span 0 to 1.
"""

from collections.abc import Collection, Sequence

import numpy as np

from bertworks.datasets.annotations import OUTSIDE, TagScheme
from bertworks.metrics.intervals import Array, ratio

Span = tuple[int, int, str]  # start, end, type; ends are exclusive
Spans = Sequence[tuple[Collection[Span], Collection[Span]]]  # gold and predicted ones, of each row


def count_spans(rows: Spans, types: Sequence[str] = ()) -> tuple[list[str], Array]:
    """The types, and how many spans of each are right, predicted and gold in each row: float64 [rows, 3, types].

    types: all of them; (): those that occur, sorted.
    """
    counted = [(set(gold) & set(given), set(given), set(gold)) for gold, given in rows]
    names = list(types) or sorted({kind for _, *sides in counted for spans in sides for _, _, kind in spans})
    numbers, counts = {name: number for number, name in enumerate(names)}, np.zeros((len(counted), 3, len(names)))
    for row, parts in zip(counts, counted, strict=True):
        for count, spans in zip(row, parts, strict=True):
            for _, _, kind in spans:
                count[numbers[kind]] += 1
    return names, counts


def figures_by_type(names: Sequence[str], counts: Array) -> dict[str, dict[str, float]]:
    """For each type `precision`, `recall`, `f1` and `support` (gold ones). names, counts: see `count_spans`."""
    right, given, gold = counts.sum(0)
    columns = {"precision": ratio(right, given), "recall": ratio(right, gold), "f1": ratio(2 * right, given + gold)}
    rows = zip(*(column.tolist() for column in (columns | {"support": gold}).values()), strict=True)
    return {name: dict(zip((*columns, "support"), row, strict=True)) for name, row in zip(names, rows, strict=True)}


def paired(gold: Sequence[Span], given: Sequence[Span]) -> list[tuple[Span | None, Span | None]]:
    """Each gold entity with the prediction that overlaps it most, or None; each other prediction with None."""
    left = [span for span in dict.fromkeys(given) if span not in set(gold)]
    pairs: list[tuple[Span | None, Span | None]] = []
    for span in dict.fromkeys(gold):
        if span in given:
            pairs.append((span, span))
            continue
        shared = {other: min(span[1], other[1]) - max(span[0], other[0]) for other in left}
        best = max((other for other in left if shared[other] > 0), key=shared.__getitem__, default=None)
        if best is not None:
            left.remove(best)
        pairs.append((span, best))
    return pairs + [(None, span) for span in left]


def area_under_curve(scores: Array, labels: Array) -> float:
    """The area under the ROC curve: how often a positive item has a higher score than a negative one; equal scores
    count half. nan without items of both kinds.

    scores: float [n]. labels: bool [n].
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores)) if 0 < labels.sum() < len(labels) else float("nan")


def tag_runs(tags: Sequence[str], scheme: TagScheme) -> list[Span]:
    """The entities of the tags of one sentence, by the rules of `conlleval`: a tag that continues no entity begins one.
    Ends are words; the type of a tag without one is ""."""
    entities: list[Span] = []
    before = ""
    for n, tag in enumerate(tags):
        letter, kind = ("", "") if tag in OUTSIDE else scheme.marks[tag]
        if letter in ("I", "E") and before in ("B", "I") and entities[-1][1:] == (n, kind):
            entities[-1] = entities[-1][0], n + 1, kind
        elif letter:
            entities.append((n, n + 1, kind))
        before = letter
    return entities
