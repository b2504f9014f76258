"""Words as a search engine counts them: texts -> postings, and BM25 over them. No meaning, no network, no files.

Words are runs of letters and digits in lower case; of scripts that are written without spaces, and of Korean, pairs of
neighbouring characters. A word stands in the postings as a number of 64 bits, its hash: no list of words is kept.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
