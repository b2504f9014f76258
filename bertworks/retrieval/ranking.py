"""Scores of documents and their order.

- BM25 over postings. Words are runs of letters and digits in lower case; for Korean and for scripts without spaces,
  pairs of neighbouring characters. Postings hold a 64-bit hash of each word, no list of words.
- `top_k`, `fuse_rankings`, nDCG, average precision, recall
- a fine-tuned model of pairs that reranks texts for a query
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.checkpoints.task_config import TaskConfig
from bertworks.errors import UsageError
from bertworks.inference.predictor import Predictor

K1, B = 1.2, 0.75  # Lucene's
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
# Vowel signs and points, which for `re` are no part of a word: accents, Hebrew, Arabic, Syriac, the scripts of India.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u0900-\u0963\u0966-\u096f\u0971-\u0df3"
)
_WORD = re.compile(rf"([{_UNSPACED}]+)|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[{_MARKS}])*")


class Postings(NamedTuple):
    """V different words in N texts, P pairs of both."""

    words: NDArray[np.int64]  # [V] hashes, ascending
    starts: NDArray[np.int64]  # [V+1]; word v stands in texts[starts[v]:starts[v+1]]
    texts: NDArray[np.int32]  # [P], ascending within a word
    counts: NDArray[np.int32]  # [P]: how often
    lengths: NDArray[np.int32]  # [N]: words of each text


def words_of(text: str) -> list[str]:
    """The words of a text in their order."""
    found: list[str] = []
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).lower()):
        run = match[0]
        found += [run] if match[1] is None or len(run) == 1 else [run[i : i + 2] for i in range(len(run) - 1)]
    return found


def postings(texts: Iterable[str]) -> Postings:
    """Which words stand where."""
    hashes, places, counts, lengths = list[int](), list[int](), list[int](), list[int]()
    for place, text in enumerate(texts):
        words = words_of(text)
        lengths.append(len(words))
        counted = Counter(words)
        hashes += map(hash_of, counted)
        counts += counted.values()
        places += [place] * len(counted)
    every = np.array(hashes, np.int64)
    order = np.argsort(every, kind="stable")
    distinct, first = np.unique(every[order], return_index=True)
    starts = np.append(first, len(every)).astype(np.int64)
    return Postings(
        distinct, starts, np.array(places, np.int32)[order], np.array(counts, np.int32)[order],
        np.array(lengths, np.int32),
    )  # fmt: skip


def bm25(query: str, parts: Sequence[Postings], alive: Sequence[NDArray[np.bool_]]) -> NDArray[np.float32]:
    """The score of every text of all parts, one part after the other; -inf where no word of the query stands, and of
    texts that are not alive, which count nowhere.

    sum over words of idf * count / (count + K1 * (1 - B + B * length / mean length)), with
    idf = log(1 + (texts - texts with the word + 0.5) / (texts with the word + 0.5)), as Lucene has it.
    """
    sizes = [len(part.lengths) for part in parts]
    edges = np.cumsum([0, *sizes])
    scores = np.full(edges[-1], -np.inf, np.float32)
    total = sum(int(living.sum()) for living in alive)
    if not total:
        return scores
    mean = max(1.0, sum(int(part.lengths[living].sum()) for part, living in zip(parts, alive)) / total)
    for word, times in Counter(words_of(query)).items():
        found = [_found(part, living, hash_of(word)) for part, living in zip(parts, alive)]
        containing = sum(len(texts) for texts, _ in found)
        weight = times * np.log1p((total - containing + 0.5) / (containing + 0.5))
        for part, edge, (texts, counts) in zip(parts, edges, found):
            share = counts / (counts + K1 * (1 - B + B * part.lengths[texts] / mean))
            scores[edge + texts] = np.maximum(scores[edge + texts], 0) + weight * share
    return scores


def _found(part: Postings, alive: NDArray[np.bool_], word: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The living texts that a word stands in, and how often."""
    place = int(np.searchsorted(part.words, word))
    if place == len(part.words) or part.words[place] != word:
        return part.texts[:0], part.counts[:0]
    where = slice(int(part.starts[place]), int(part.starts[place + 1]))
    living = alive[part.texts[where]]
    return part.texts[where][living], part.counts[where][living]


@lru_cache(1 << 18)
def hash_of(word: str) -> int:
    """64 bits that stand for a word, or a name; two of a million differ in them but once in 10^7 times."""
    return int.from_bytes(blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True)


Scores = NDArray[np.float32]  # of documents; -inf: no hit at all
DEPTH, _CONSTANT = 1000, 60  # of the fusion


def top_k(scores: Scores, k: int) -> NDArray[np.int64]:
    """Numbers of the k documents with the highest scores, the highest first; of equals the earlier one first. Fewer
    where fewer are hits."""
    hits = np.isfinite(scores)
    if k < len(scores):
        hits &= scores >= np.partition(scores, -k)[-k]
    numbers = np.flatnonzero(hits)
    return numbers[np.lexsort((numbers, -scores[numbers]))][:k]


def fuse_rankings(dense: Scores, lexical: Scores) -> Scores:
    """Reciprocal rank fusion (Cormack et al. 2009): of the first DEPTH of both, the sum of 1 / (60 + rank). It has no
    weight that would have to be fitted; docs/experiments has what a weighted sum of the scores gives."""
    found = np.full(len(dense), -np.inf, np.float32)
    for scores in (dense, lexical):
        numbers = top_k(scores, DEPTH)
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


def fits_pairs(d: TaskConfig) -> bool:
    """Whether a model says one number of a pair of texts, or may do so: of transformers' own folders nobody knows."""
    one = d.task == "regression" or (d.task == "classification" and len(d.labels) == 2)
    return one and len(d.text) in (0, 2)


class Reranker:
    """`reranker(query, texts)` is float32 [texts], greater for texts that fit better: the number of a model for
    regression, or the probability of the second of two labels.

    Raises:
        BertworksError: no such model, or it was not fine-tuned.
        UsageError: it gives no such number.
    """

    def __init__(self, model: str | Path | Predictor, *, device: str = "auto"):
        self._predictor = model if isinstance(model, Predictor) else Predictor(model, device=device)
        d = self._predictor.description
        if not fits_pairs(d):
            raise UsageError(
                f"this model was fine-tuned for {d.task}, with {len(d.labels)} labels and {len(d.text)} texts",
                where=str(self._predictor.folder),
                hint="fine-tune one on pairs (query, text) with two labels, the second of which says that they fit, or "
                "with numbers",
            )
        self._label = d.labels[1] if d.labels else None

    def __call__(self, query: str, texts: Sequence[str]) -> Scores:
        answers = self._predictor.predict([(query, text) for text in texts], probabilities=self._label is not None)
        values = [answer["value"] if self._label is None else answer["scores"][self._label] for answer in answers]
        return np.array(values, np.float32)
