"""Metrics of classification, regression, tagging and choices: gold and predicted labels in, named figures out.

They equal those of scikit-learn, scipy and seqeval. Figures are fractions from 0 to 1, except correlations (-1 to 1)
and errors (in the unit of the targets). A division by zero (the precision of a label that is never predicted) gives 0.
"""

import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import numpy as np

from bertworks.datasets.annotations import OUTSIDE, TagScheme, tag_scheme
from bertworks.errors import BertworksError
from bertworks.metrics.intervals import COUNT_METRICS

Scores = dict[str, float]
Tags = Sequence[str]  # of one sentence
Span = tuple[int, int, str]  # start, end, type; ends are exclusive


def classification(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Scores:
    """`accuracy`, `macro_f1`, `matthews_correlation`; with two labels also `f1` of the second one, which GLUE calls
    positive ("1" of "0" and "1").

    The macro average is over the labels that occur, gold or predicted. The correlation with constant predictions is 0.

    Args:
        labels: all labels, in their order.

    Raises:
        BertworksError: no rows, more or fewer predictions than rows, a label that is not in `labels`.
    """
    counts = _count_labels(gold, predicted, labels)
    scores = choice(gold, predicted) | _metrics(counts, "macro_f1", "matthews_correlation")
    return scores | ({"f1": _table(counts, labels)[labels[1]]["f1"]} if len(labels) == 2 else {})


def per_class(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> dict[str, Scores]:
    """For each label `precision`, `recall`, `f1` and `support` (gold rows). Raises as `classification`."""
    return _table(_count_labels(gold, predicted, labels), labels)


def multilabel(gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]) -> Scores:
    """`accuracy` (exactly the gold labels of a row), `precision`, `recall` and `micro_f1` over all labels of
    all rows, `macro_f1`: mean over the labels that occur.

    Raises:
        BertworksError: no rows, or more or fewer predictions than rows.
    """
    sides = [[{(0, 1, label) for label in labels} for labels in side] for side in (gold, predicted)]
    return choice(*sides) | _metrics(_count(*sides), "precision", "recall", "micro_f1", "macro_f1")


def regression(gold: Sequence[float], predicted: Sequence[float]) -> Scores:
    """`pearson` and `spearman` correlation, `rmse` (root of the mean squared error, in the unit of the targets).

    If all gold or all predicted numbers are equal, the correlation is 0, not NaN.

    Raises:
        BertworksError: no rows, more or fewer predictions than rows, a number that is not finite.
    """
    _check_lengths(gold, predicted)
    x, y = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if not np.isfinite(x + y).all():
        row = int(np.argmin(np.isfinite(x + y)))
        raise BertworksError(f"target {x[row]}, prediction {y[row]}: not a number", where=f"row {row + 1}")
    rmse = float(np.sqrt(np.square(x - y).mean()))
    if not np.ptp(x) or not np.ptp(y):
        return {"pearson": 0.0, "spearman": 0.0, "rmse": rmse}
    from scipy.stats import pearsonr, spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # predictions that are nearly equal still have a correlation
        return {"pearson": float(pearsonr(x, y)[0]), "spearman": float(spearmanr(x, y)[0]), "rmse": rmse}


def choice(gold: Sequence[object], predicted: Sequence[object]) -> Scores:
    """`accuracy`: the fraction of right choices. Raises as `multilabel`."""
    _check_lengths(gold, predicted)
    return {"accuracy": sum(a == b for a, b in zip(gold, predicted)) / len(gold)}


def tagging(gold: Sequence[Tags], predicted: Sequence[Tags], scheme: TagScheme | None = None) -> Scores:
    """`precision`, `recall`, `f1` of whole entities and `accuracy` of tags, equal to those of the CoNLL script
    `conlleval`. Tags of other schemes count as those of IOBES with the same meaning.

    Args:
        gold, predicted: the tags of each sentence.
        scheme: None: that of these tags.

    Raises:
        BertworksError: no sentences, a sentence with more or fewer tags than words, an invalid tag.
    """
    _check_lengths(gold, predicted)
    for number, (tags, others) in enumerate(zip(gold, predicted), 1):
        if len(tags) != len(others):
            raise BertworksError(f"{len(others)} predicted tags for {len(tags)} words", where=f"sentence {number}")
    right = sum(a == b for tags, others in zip(gold, predicted) for a, b in zip(tags, others))
    scheme = scheme or _scheme_of(chain(*gold, *predicted))
    scores = spans(*([tag_spans(tags, scheme) for tags in side] for side in (gold, predicted)))
    return scores | {"accuracy": right / max(sum(map(len, gold)), 1)}


def spans(gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]) -> Scores:
    """`precision`, `recall`, `f1` of character spans with the start, end and type of a gold one. Raises as
    `multilabel`."""
    return _metrics(_count(gold, predicted), "precision", "recall", "f1")


def spans_per_type(gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]) -> dict[str, Scores]:
    """The same for each type, sorted: `precision`, `recall`, `f1`, `support`. Raises as `multilabel`."""
    counts = _count(gold, predicted)
    return _table(counts, sorted(counts[1] | counts[2]))


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


def tag_spans(tags: Tags, scheme: TagScheme | None = None) -> list[Span]:
    """The entities of one sentence as (first word, word after the last, type), by the rules of `conlleval`. The type of
    a tag without one is "_".

    scheme: None: that of these tags.

    Raises:
        BertworksError: tags that mark no entities.
    """
    return [(start, end, kind or "_") for start, end, kind in tag_runs(tags, scheme or _scheme_of(tags))]


def _scheme_of(tags: Iterable[str]) -> TagScheme:
    names = tuple(sorted(set(tags)))
    if scheme := tag_scheme(names):
        return scheme
    raise BertworksError(f"these tags mark no entities: {', '.join(names)}", hint="write B-, I- and a type, or O")


def tag_runs(tags: Tags, scheme: TagScheme) -> list[Span]:
    """The entities of tags of a scheme. A tag that continues no entity begins one."""
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


def _check_lengths(gold: Sequence[object], predicted: Sequence[object]) -> None:
    if len(gold) != len(predicted):
        raise BertworksError(f"{len(predicted):,} predictions for {len(gold):,} rows: which is of which row is unknown")
    if not len(gold):
        raise BertworksError("no rows: there is nothing to score")


def _count(gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]) -> list[Counter[str]]:
    """How many spans of each type are right, predicted and gold."""
    _check_lengths(gold, predicted)
    counts = [Counter[str](), Counter[str](), Counter[str]()]
    for labels, others in zip(map(set, gold), map(set, predicted)):
        for count, found in zip(counts, (labels & others, others, labels)):
            count.update(kind for _, _, kind in found)
    return counts


def _count_labels(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> list[Counter[str]]:
    """`_count` for labels of whole texts, which must be in `labels`."""
    _check_lengths(gold, predicted)
    known = set(labels)
    for what, names in (("gold", gold), ("predicted", predicted)):
        for row, label in enumerate(names, 1):
            if label not in known:
                raise BertworksError(f"{what} label {label!r} is none of: {', '.join(labels)}", where=f"row {row}")
    return _count(*([[(0, 1, label)] for label in names] for names in (gold, predicted)))


def _metrics(counts: Sequence[Counter[str]], *names: str) -> Scores:
    """Metrics of `COUNT_METRICS`."""
    types = sorted(set().union(*counts))
    sums = np.array([[[count[kind] for kind in types] for count in counts]], np.float64)
    return {name: float(COUNT_METRICS[name](sums)[0]) for name in names}


def _table(counts: Sequence[Counter[str]], names: Iterable[str]) -> dict[str, Scores]:
    return {name: _figures(*(count[name] for count in counts)) for name in names}


def _figures(right: int, predicted: int, gold: int) -> Scores:
    precision, recall, f1 = right / max(predicted, 1), right / max(gold, 1), 2 * right / max(predicted + gold, 1)
    return {"precision": precision, "recall": recall, "f1": f1, "support": float(gold)}
