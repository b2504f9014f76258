"""Metrics of classification, regression, tagging and choices: gold and predicted in, named figures out.

They are those of scikit-learn, scipy and seqeval. Figures are fractions from 0 to 1, except correlations (-1 to 1) and
errors (in the unit of the targets). A division by zero (the precision of a label that is never predicted) gives 0.
"""

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError

Scores = dict[str, float]
Span = tuple[int, int, str]  # start, end, type; ends are exclusive

_TAG = re.compile(r"O|[BIES](-.+)?", re.DOTALL)
_Thing = TypeVar("_Thing", bound=Hashable)


def classification(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> Scores:
    """`accuracy`, `macro_f1`, `matthews_correlation`; with two labels also `f1` of the second one, which GLUE calls
    positive ("1" of "0" and "1").

    The macro average is over the labels that occur, in gold or predicted. Answers that are all the same correlate with
    nothing: 0.

    Args:
        labels: all that there are, in their order.

    Raises:
        BertworksError: no rows, not as many answers as questions, a label that is not among `labels`.
    """
    rows, columns = _numbers(gold, predicted, labels)
    with _borrowed("scikit-learn"):
        from sklearn.metrics import matthews_corrcoef
    table = per_class(gold, predicted, labels)
    occurring = [labels[n] for n in np.union1d(rows, columns)]
    scores = {
        "accuracy": float((rows == columns).mean()),
        "macro_f1": math.fsum(table[label]["f1"] for label in occurring) / len(occurring),
        "matthews_correlation": float(matthews_corrcoef(rows, columns)) if len(occurring) > 1 else 0.0,
    }
    return scores | ({"f1": table[labels[1]]["f1"]} if len(labels) == 2 else {})


def per_class(gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]) -> dict[str, Scores]:
    """For each label `precision`, `recall`, `f1` and `support` (how often it is right). Raises as `classification`."""
    rows, columns = _numbers(gold, predicted, labels)
    with _borrowed("scikit-learn"):
        from sklearn.metrics import precision_recall_fscore_support
    figures = precision_recall_fscore_support(rows, columns, labels=range(len(labels)), zero_division=0.0)
    names = ("precision", "recall", "f1", "support")
    return {label: {name: float(f[n]) for name, f in zip(names, figures)} for n, label in enumerate(labels)}


def multilabel(gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]) -> Scores:
    """`accuracy` (all labels of a row right, none too many), `precision`, `recall` and `micro_f1` over all labels of
    all rows, `macro_f1`: mean over the labels that occur.

    Raises:
        BertworksError: no rows, or not as many answers as questions.
    """
    _check_lengths(gold, predicted)
    table = _table(gold, predicted, kind=str)
    total = _total(table)
    return {
        "accuracy": sum(set(a) == set(b) for a, b in zip(gold, predicted)) / len(gold),
        "precision": total["precision"],
        "recall": total["recall"],
        "micro_f1": total["f1"],
        "macro_f1": math.fsum(row["f1"] for row in _per_kind(table).values()) / max(len(table), 1),
    }


def regression(gold: Sequence[float], predicted: Sequence[float]) -> Scores:
    """`pearson` and `spearman` correlation, `rmse` (root of the mean squared error, in the unit of the targets).

    Where gold or predicted are all the same there is no correlation to speak of: it is 0, not NaN.

    Raises:
        BertworksError: no rows, not as many answers as questions, a number that is not finite.
    """
    _check_lengths(gold, predicted)
    x, y = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if not np.isfinite(x + y).all():
        row = int(np.argmin(np.isfinite(x + y)))
        raise BertworksError(f"target {x[row]}, prediction {y[row]}: not a number", where=f"row {row + 1}")
    rmse = float(np.sqrt(np.square(x - y).mean()))
    if not np.ptp(x) or not np.ptp(y):
        return {"pearson": 0.0, "spearman": 0.0, "rmse": rmse}
    with _borrowed("scipy"):
        from scipy.stats import pearsonr, spearmanr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # answers that are nearly the same: their correlation is still a number
        return {"pearson": float(pearsonr(x, y)[0]), "spearman": float(spearmanr(x, y)[0]), "rmse": rmse}


def choice(gold: Sequence[int], predicted: Sequence[int]) -> Scores:
    """`accuracy`: how often the right one of several was chosen. Raises as `multilabel`."""
    _check_lengths(gold, predicted)
    return {"accuracy": sum(a == b for a, b in zip(gold, predicted)) / len(gold)}


def tagging(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """`precision`, `recall`, `f1` of whole entities and `accuracy` of tags, equal to those of the CoNLL script
    `conlleval`, for tags in IOB1, IOB2 or BIOES.

    Args:
        gold, predicted: the tags of each sentence.

    Raises:
        BertworksError: no sentences, a sentence with more or fewer tags than words, something that is no tag.
    """
    total = spans(*_entities(gold, predicted))
    right = sum(a == b for one, other in zip(gold, predicted) for a, b in zip(one, other))
    return total | {"accuracy": right / max(sum(map(len, gold)), 1)}


def spans(gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]) -> Scores:
    """`precision`, `recall`, `f1` of spans of characters; right is what has start, end and type of a gold one. Raises
    as `multilabel`."""
    _check_lengths(gold, predicted)
    total = _total(_table(gold, predicted, kind=_type_of))
    return {name: total[name] for name in ("precision", "recall", "f1")}


def spans_per_type(gold: Sequence[Collection[Span]], predicted: Sequence[Collection[Span]]) -> dict[str, Scores]:
    """The same for each type, sorted: `precision`, `recall`, `f1`, `support`. Raises as `multilabel`."""
    _check_lengths(gold, predicted)
    return _per_kind(_table(gold, predicted, kind=_type_of))


def tag_spans(tags: Sequence[str]) -> list[Span]:
    """The entities of one sentence as (first word, word after the last, type), by the rules of `conlleval`: they read
    IOB1, IOB2 and BIOES are recognised, and what is no proper beginning still begins an entity.

    Raises:
        BertworksError: something is neither O nor one of B, I, E, S with a type.
    """
    if (wrong := next((tag for tag in tags if not _TAG.fullmatch(tag)), None)) is not None:
        raise BertworksError(
            f"{wrong!r} is no tag: a tag is O, or B-, I-, E- or S- and a type", hint="write tags in IOB1, IOB2 or BIOES"
        )
    with _borrowed("seqeval"):
        from seqeval.metrics.sequence_labeling import get_entities
    return [(start, last + 1, kind) for kind, start, last in get_entities(list(tags))]


@dataclass(frozen=True)
class ConfidenceInterval:
    """What several runs (seeds, folds) say together."""

    count: int
    mean: float
    deviation: float | None  # standard deviation of the runs (n - 1); None for one run
    margin: float | None  # the mean is within mean ± margin with 95 % confidence (Student's t); None for one run


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Mean, standard deviation and 95 % interval of the mean.

    Raises:
        BertworksError: there are no values.
    """
    if not values:
        raise BertworksError("no runs: there is nothing to take the mean of")
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return ConfidenceInterval(1, mean, None, None)
    with _borrowed("scipy"):
        from scipy.special import stdtrit
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return ConfidenceInterval(count, mean, deviation, float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count))


@contextmanager
def _borrowed(distribution: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise BertworksError(
            f"this score is counted by {distribution}, which cannot be imported: {error}",
            hint=f"pip install {distribution}",
        ) from error


def _check_lengths(gold: Sequence[object], predicted: Sequence[object]) -> None:
    if len(gold) != len(predicted):
        raise BertworksError(f"{len(predicted):,} predictions for {len(gold):,} rows: which is for which is unknown")
    if not len(gold):
        raise BertworksError("no rows: there is nothing to score")


def _numbers(
    gold: Sequence[str], predicted: Sequence[str], labels: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Labels as their places among `labels`."""
    _check_lengths(gold, predicted)
    places = {label: n for n, label in enumerate(labels)}
    for what, given in (("gold", gold), ("predicted", predicted)):
        if (row := next((n for n, label in enumerate(given) if label not in places), None)) is not None:
            known = ", ".join(labels)
            raise BertworksError(f"{what} label {given[row]!r} is none of: {known}", where=f"row {row + 1}")
    return np.array([places[label] for label in gold]), np.array([places[label] for label in predicted])


def _entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[list[list[Span]], list[list[Span]]]:
    _check_lengths(gold, predicted)
    for number, (words, tags) in enumerate(zip(gold, predicted), 1):
        if len(words) != len(tags):
            raise BertworksError(f"{len(tags)} predicted tags for {len(words)} words", where=f"sentence {number}")
    return [tag_spans(tags) for tags in gold], [tag_spans(tags) for tags in predicted]


def _type_of(span: Span) -> str:
    return span[2]


def _table(
    gold: Sequence[Collection[_Thing]], predicted: Sequence[Collection[_Thing]], kind: Callable[[_Thing], str]
) -> dict[str, tuple[int, int, int]]:
    """For each kind of thing, sorted: how many are in both, are predicted, are gold."""
    both, found, there = Counter[str](), Counter[str](), Counter[str]()
    for right, given in zip(map(set, gold), map(set, predicted)):
        both.update(map(kind, right & given))
        found.update(map(kind, given))
        there.update(map(kind, right))
    return {name: (both[name], found[name], there[name]) for name in sorted(found | there)}


def _figures(both: int, found: int, there: int) -> Scores:
    precision, recall = both / max(found, 1), both / max(there, 1)
    return {"precision": precision, "recall": recall, "f1": 2 * both / max(found + there, 1), "support": float(there)}


def _per_kind(table: dict[str, tuple[int, int, int]]) -> dict[str, Scores]:
    return {name: _figures(*counts) for name, counts in table.items()}


def _total(table: dict[str, tuple[int, int, int]]) -> Scores:
    return _figures(*(sum(counts[n] for counts in table.values()) for n in range(3)))
