"""Scores of documents -> the best ones, and how good these are: nDCG, average precision, recall. Not here: whence the
scores come."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float32]  # of documents; -inf: no hit at all
DEPTH, _CONSTANT = 1000, 60  # of the fusion


def best(scores: Scores, k: int) -> NDArray[np.int64]:
    """Numbers of the k documents with the highest scores, the highest first; of equals the earlier one first. Fewer
    where fewer are hits."""
    hits = np.isfinite(scores)
    if k < len(scores):
        hits &= scores >= np.partition(scores, -k)[-k]
    numbers = np.flatnonzero(hits)
    return numbers[np.lexsort((numbers, -scores[numbers]))][:k]


def fused(dense: Scores, lexical: Scores) -> Scores:
    """Reciprocal rank fusion (Cormack et al. 2009): of the first DEPTH of both, the sum of 1 / (60 + rank). It has no
    weight that would have to be fitted; docs/diary.md has what a weighted sum of the scores gives."""
    found = np.full(len(dense), -np.inf, np.float32)
    for scores in (dense, lexical):
        numbers = best(scores, DEPTH)
        found[numbers] = np.maximum(found[numbers], 0) + 1 / (_CONSTANT + 1 + np.arange(len(numbers)))
    return found


def ndcg(ranking: Sequence[str], grades: Mapping[str, int], k: int = 10) -> float:
    """Normalised discounted cumulative gain of the first k, with the grade as gain and log2(rank + 1) as discount, as
    trec_eval has it. grades: of the judged documents; none is 0, as is any that is not positive."""
    gains = [max(0, grades.get(document, 0)) for document in ranking[:k]]
    ideal = sorted((max(0, grade) for grade in grades.values()), reverse=True)[:k]
    return _discounted(gains) / _discounted(ideal) if any(ideal) else 0.0


def average_precision(ranking: Sequence[str], grades: Mapping[str, int]) -> float:
    """The mean, over all relevant documents (grade above 0), of the precision at their ranks; 0 for those not found."""
    found, total = 0, 0.0
    for rank, document in enumerate(ranking, 1):
        if grades.get(document, 0) > 0:
            found += 1
            total += found / rank
    return total / max(1, sum(grade > 0 for grade in grades.values()))


def recall(ranking: Sequence[str], grades: Mapping[str, int], k: int) -> float:
    """The share of the relevant documents that is among the first k."""
    relevant = {document for document, grade in grades.items() if grade > 0}
    return len(relevant & set(ranking[:k])) / max(1, len(relevant))


def _discounted(gains: Sequence[int]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, 1)))
