"""Compare predicted with gold labels and entities.

Counts of right, predicted and gold spans, entities of tags, and pairs of gold and predicted
entities.

Labels of whole texts are entities, too: all have the span 0 to 1.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

import numpy as np

from bertworks.datasets.annotations import OUTSIDE, TagScheme
from bertworks.metrics.intervals import Array, ratio

Span = tuple[int, int, str]  # start, end, type; ends are exclusive
Spans = Iterable[tuple[Collection[Span], Collection[Span]]]  # gold and predicted ones, of each row


def count_spans(rows: Spans, types: Sequence[str] = ()) -> tuple[list[str], Array]:
    """Return the types, and how many spans of each are right, predicted and gold in each row.

    The counts are float64 [rows, 3, types].

    Args:
        rows: the gold and the predicted spans of each row.
        types: all types; (): those that occur, sorted.
    """
    sets = ((set(gold), set(predicted)) for gold, predicted in rows)
    triples = ((gold & predicted, predicted, gold) for gold, predicted in sets)
    counted = [[Counter(kind for _, _, kind in spans) for spans in triple] for triple in triples]
    names = list(types) or sorted(
        {kind for _, *sides in counted for kinds in sides for kind in kinds}
    )
    numbers = {name: number for number, name in enumerate(names)}
    counts = np.zeros((len(counted), 3, len(names)))
    for row, parts in zip(counts, counted, strict=True):
        for count, kinds in zip(row, parts, strict=True):
            for kind, times in kinds.items():
                count[numbers[kind]] = times
    return names, counts


def figures_by_type(names: Sequence[str], counts: Array) -> dict[str, dict[str, float]]:
    """Return `precision`, `recall`, `f1` and `support` (gold spans) of each type.

    Args:
        names: of the types.
        counts: see `count_spans`.
    """
    right, predicted, gold = counts.sum(0)
    figures = {
        "precision": ratio(right, predicted),
        "recall": ratio(right, gold),
        "f1": ratio(2 * right, predicted + gold),
        "support": gold,
    }
    return {
        name: {figure: float(values[number]) for figure, values in figures.items()}
        for number, name in enumerate(names)
    }


def paired(
    gold: Sequence[Span], predicted: Sequence[Span]
) -> list[tuple[Span | None, Span | None]]:
    """Return pairs of a gold entity and the predicted one that overlaps it most, or None.

    Predicted entities without a gold one follow, in pairs with None.
    """
    right = set(gold) & set(predicted)
    unpaired = dict.fromkeys(span for span in predicted if span not in right)  # in order
    order = {span: place for place, span in enumerate(unpaired)}
    by_start = sorted(unpaired)
    starts = [span[0] for span in by_start]
    ends = list(accumulate((span[1] for span in by_start), max))
    pairs: list[tuple[Span | None, Span | None]] = []
    for span in dict.fromkeys(gold):
        if span in right:
            pairs.append((span, span))
            continue
        near = by_start[bisect_right(ends, span[0]) : bisect_left(starts, span[1])]
        overlaps = {
            other: min(span[1], other[1]) - max(span[0], other[0])
            for other in near
            if other in unpaired
        }
        best = max(
            (other for other, length in overlaps.items() if length > 0),
            key=lambda other: (overlaps[other], -order[other]),
            default=None,
        )
        if best is not None:
            del unpaired[best]
        pairs.append((span, best))
    return pairs + [(None, span) for span in unpaired]


def area_under_curve(scores: Array, labels: Array) -> float:
    """Return the area under the ROC curve.

    It is how often a positive item has a higher score than a negative one; equal scores count half.
    Without items of both kinds it is nan.

    Args:
        scores: float [n].
        labels: bool [n].
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores)) if 0 < labels.sum() < len(labels) else float("nan")


def tag_runs(tags: Sequence[str], scheme: TagScheme) -> list[Span]:
    """Return the entities of the tags of one sentence, by the rules of `conlleval`.

    A tag that continues no entity begins one. Starts and ends count words; the type of a tag
    without one is "".
    """
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
