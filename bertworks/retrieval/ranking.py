"""Scores of documents and their order.

- BM25 over postings. Words are runs of letters and digits in lower case; for Korean and for scripts
  without spaces, pairs of neighbouring characters. With a language, words are stemmed, and its stop
  words are left out of queries. Postings hold a 64-bit hash of each word, no list of words.
- `top_k`, `fuse_rankings`, `ranking_figures`: nDCG, average precision, recall
- `Reranker`: a model fine-tuned on pairs of texts that scores texts for a query
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache, lru_cache
from hashlib import blake2b
from importlib import import_module, metadata
from pathlib import Path
from pkgutil import iter_modules
from sys import intern
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import expect, optional_import
from bertworks.inference.predictor import Predictor
from bertworks.tasks.registry import TASKS
from bertworks.tasks.settings import TaskConfig

K1 = 1.2
B = 0.75  # Lucene's
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
    "\U00020000-\U0003ffff"
)
# Vowel signs and points, which are not word characters for `re`: accents, Hebrew, Arabic, Syriac,
# the scripts of India.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u0900-\u0963\u0966-\u096f\u0971-\u0df3"
)
_WORD = re.compile(rf"([{_UNSPACED}]+)|[^\W_{_UNSPACED}](?:[^\W_{_UNSPACED}]|[{_MARKS}])*")

Scores = NDArray[np.float32]  # of documents; -inf: no hit


class Postings(NamedTuple):
    """V different words in N texts; P pairs of a word and a text."""

    words: NDArray[np.int64]  # [V] hashes, ascending
    starts: NDArray[np.int64]  # [V+1]; word v is in texts[starts[v]:starts[v+1]]
    texts: NDArray[np.int32]  # [P], ascending within a word
    counts: NDArray[np.int32]  # [P], of the word in the text
    lengths: NDArray[np.int32]  # [N], words in each text


def words_of(text: str, language: str | None = None) -> list[str]:
    """Return the words of a text, in order.

    Args:
        language: of the stemmer that reduces them; None leaves them as they are.
    """
    words: list[str] = []
    for match in _WORD.finditer(unicodedata.normalize("NFKC", text).lower()):
        run = intern(match[0])  # kept once: a long text repeats most of its words
        words += (
            [run]
            if match[1] is None or len(run) == 1
            else [run[i : i + 2] for i in range(len(run) - 1)]
        )
    return [_stem(word, language) for word in words] if language else words


def query_words(query: str, language: str | None = None) -> list[str]:
    """Return the words of a query without the stop words of a language.

    A query without other words keeps them.
    """
    words = (word for word in words_of(query) if word not in stop_words_of(language))
    return words_of(" ".join(words) or query, language)


def words_to_mark(query: str, language: str | None = None) -> list[str]:
    """Return the words of a query that are marked in its hits: those without stop words.

    Without a language, whose stop words are part of the ranking, the stop words are those of the
    language that has most of them in the query. In a tie it is English, else the first by name.
    """
    if language is not None:
        return query_words(query, language)
    words = words_of(query)
    lists = [stop_words_of("english"), *_stop_word_lists().values()]
    stop_words = max(lists, key=lambda stops: sum(word in stops for word in words))
    return [word for word in words if word not in stop_words] or words


def places_of(
    words: Set[str], text: str, language: str | None = None, max_matches: int | None = None
) -> list[tuple[int, int]]:
    """Where words are in a text: start and end of each match, in characters.

    Args:
        words: as `query_words` gives them.
        max_matches: how many matches are returned: the text is not read after them. None returns
            all.
    """
    spans = list[tuple[int, int]]()
    for match in _WORD.finditer(text):
        if max_matches is not None and len(spans) >= max_matches:
            return spans[:max_matches]
        start, end = match.span()
        width = end - start if match[1] is None or end - start == 1 else 2
        for first in range(start, end - width + 1):
            if not words.isdisjoint(words_of(text[first : first + width], language)):
                begin = spans.pop()[0] if spans and spans[-1][1] >= first > start else first
                spans.append((begin, first + width))
    return spans


@cache
def stemmer_of(language: str) -> Any:
    """Return the class of a language's stemmer.

    The classes are named here because `snowballstemmer.stemmer` may take those of another package,
    with other stems.

    Raises:
        UsageError: there is none. The hint lists all languages.
        BertworksError: snowballstemmer is not installed.
    """
    with optional_import("stemming", "snowballstemmer"):
        import snowballstemmer
    names = [
        name.removesuffix("_stemmer")
        for _, name, _ in iter_modules(snowballstemmer.__path__)
        if "_stem" in name
    ]
    expect(
        language in names,
        f"there is no stemmer for {language!r}",
        hint=f"name one of {', '.join(sorted(names))}",
    )
    module = import_module(f"snowballstemmer.{language}_stemmer")
    return getattr(module, f"{language.title().replace('_', '')}Stemmer")


def words_state(language: str | None) -> dict[str, str]:
    """Return what the words of an index depend on; {} without a language.

    That is the language, and what stems its words, because other versions may give other stems.
    Raises as `stemmer_of`.
    """
    stemmer = language and f"{stemmer_of(language).__name__} {metadata.version('snowballstemmer')}"
    return {"language": language, "stemmer": stemmer} if language and stemmer else {}


@lru_cache(1 << 18)
def _stem(word: str, language: str) -> str:
    # a new stemmer: its word is part of its state
    return str(stemmer_of(language)().stemWord(word))


@cache
def _stop_word_lists() -> dict[str, frozenset[str]]:
    """Return the stop words of each language that has a list, from stop_words.txt."""
    _, *lists = Path(__file__).with_name("stop_words.txt").read_text(encoding="utf-8").split("\n\n")
    return {name: frozenset(words) for name, *words in map(str.split, lists)}


def stop_words_of(language: str | None) -> frozenset[str]:
    """Return the stop words of a language; none if it has no list."""
    return _stop_word_lists().get(language or "", frozenset())


def postings(texts: Iterable[str], language: str | None = None) -> Postings:
    """Return the postings of some texts."""
    hashes = list[int]()
    numbers = list[int]()
    counts = list[int]()
    lengths = list[int]()
    for number, text in enumerate(texts):
        words = words_of(text, language)
        lengths.append(len(words))
        counted = Counter(words)
        hashes += map(hash_of, counted)
        counts += counted.values()
        numbers += [number] * len(counted)
    order = np.argsort(np.array(hashes, np.int64), kind="stable")
    distinct, first = np.unique(np.array(hashes, np.int64)[order], return_index=True)
    return Postings(
        words=distinct,
        starts=np.append(first, len(hashes)).astype(np.int64),
        texts=np.array(numbers, np.int32)[order],
        counts=np.array(counts, np.int32)[order],
        lengths=np.array(lengths, np.int32),
    )


def bm25(
    query: str, parts: Sequence[Postings], alive: NDArray[np.bool_], language: str | None = None
) -> Scores:
    """Return the score of every text of all parts, in order.

    It is -inf for a text without a word of the query, and for texts that are not alive, which are
    ignored in all counts.

    Args:
        alive: bool [texts].

    sum over words of idf * count / (count + K1 * (1 - B + B * length / mean length)), with
    idf = log(1 + (texts - texts with the word + 0.5) / (texts with the word + 0.5)), as in Lucene.
    """
    scores = np.full(len(alive), -np.inf, np.float32)
    total = int(alive.sum())
    if not total:
        return scores
    lengths = np.concatenate([part.lengths for part in parts])
    mean = max(1.0, int(lengths[alive].sum()) / total)
    edges = np.cumsum([0, *(len(part.lengths) for part in parts)])
    for word, times in Counter(query_words(query, language)).items():
        hashes = hash_of(word), hash_of(word) + 1  # the word, and where the next one begins
        spans = [slice(*part.starts[part.words.searchsorted(hashes)]) for part in parts]
        texts = np.concatenate(
            [edge + part.texts[span] for edge, part, span in zip(edges, parts, spans)]
        )
        counts = np.concatenate([part.counts[span] for part, span in zip(parts, spans)])
        texts, counts = texts[alive[texts]], counts[alive[texts]]
        idf = np.log1p((total - len(texts) + 0.5) / (len(texts) + 0.5))
        saturation = counts / (counts + K1 * (1 - B + B * lengths[texts] / mean))
        scores[texts] = np.maximum(scores[texts], 0) + times * idf * saturation
    return scores


@lru_cache(1 << 18)
def hash_of(word: str) -> int:
    """Return a 64-bit hash of a word or id.

    Two of a million collide with a probability of about 3e-8.
    """
    return int.from_bytes(
        blake2b(word.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True
    )


DEPTH = 1000
_RANK_CONSTANT = 60  # of the fusion


def top_k(scores: Scores, k: int) -> NDArray[np.int64]:
    """Return the numbers of the k documents with the highest scores, best first.

    Ties are in the order of the numbers. They are fewer if there are fewer hits.
    """
    hits = np.isfinite(scores)
    if k < len(scores):
        hits &= scores >= np.partition(scores, -k)[-k]
    numbers = np.flatnonzero(hits)
    return numbers[np.lexsort((numbers, -scores[numbers]))][:k]


def fuse_rankings(dense: Scores, lexical: Scores) -> Scores:
    """Return scores by reciprocal rank fusion (Cormack et al. 2009).

    A score is the sum of 1 / (60 + rank) over the first DEPTH of both rankings. It has no weight to
    fit; docs/experiments compares it with a weighted sum of the scores.
    """
    fused = np.full(len(dense), -np.inf, np.float32)
    for scores in (dense, lexical):
        numbers = top_k(scores, DEPTH)
        fused[numbers] = np.maximum(fused[numbers], 0) + 1 / (
            _RANK_CONSTANT + 1 + np.arange(len(numbers))
        )
    return fused


def ranking_figures(ranking: Sequence[str], grades: Mapping[str, int]) -> dict[str, float]:
    """Return figures of the ranking for one query, as in trec_eval.

    Args:
        grades: of relevance; missing or negative ones count as 0.

    - `ndcg@10`: normalised discounted cumulative gain of the first ten, with the grade as gain and
      log2(rank + 1) as discount
    - `map`: the mean, over all relevant documents (grade above 0), of the precision at their ranks
      (0: not ranked)
    - `recall@10`, `recall@100`: the fraction of the relevant documents among the first
    """
    gains = [max(0, grades.get(document, 0)) for document in ranking]
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
    ranks = [rank for rank, gain in enumerate(gains, 1) if gain]
    count = max(1, len(ideal))
    return {
        "ndcg@10": _discounted(gains[:10]) / (_discounted(ideal[:10]) or 1.0),
        "map": sum(hits / rank for hits, rank in enumerate(ranks, 1)) / count,
        "recall@10": sum(rank <= 10 for rank in ranks) / count,
        "recall@100": sum(rank <= 100 for rank in ranks) / count,
    }


def _discounted(gains: Sequence[int]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, 1)))


def fits_pairs(d: TaskConfig) -> bool:
    """Return whether a model gives one score for a pair of texts, or may do so.

    Folders of transformers do not say how many texts a model reads.
    """
    return TASKS[d.task].has_one_score(d.labels) and len(d.text) in (0, 2)


class Reranker:
    """A model that scores texts for a query.

    `reranker(query, texts)` is float32 [texts], higher for more relevant texts: the value of a
    regression model, or the probability of the second of two labels.

    Raises:
        BertworksError: no such model, or it was not fine-tuned.
        UsageError: the model gives no such score.
    """

    def __init__(self, model: str | Path | Predictor, *, device: str = "auto"):
        self._predictor = model if isinstance(model, Predictor) else Predictor(model, device=device)
        d = self._predictor.description
        expect(
            fits_pairs(d),
            f"this model was fine-tuned for {d.task}, with {len(d.labels)} labels and "
            f"{len(d.text)} texts",
            where=self._predictor.folder,
            hint="fine-tune one on pairs (query, text) with two labels, the second for "
            "relevant, or with numbers",
        )
        self._label = d.labels[1] if d.labels else None

    def __call__(self, query: str, texts: Sequence[str]) -> Scores:
        """Return the score of each text for a query."""
        answers = self._predictor.predict(
            [(query, text) for text in texts], probabilities=self._label is not None
        )
        values = [
            answer["value"] if self._label is None else answer["scores"][self._label]
            for answer in answers
        ]
        return np.array(values, np.float32)
