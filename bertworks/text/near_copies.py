"""Find texts that are nearly the same.

Examples are one question with and without its question mark, and two versions of one article.

A model that was trained on one of them has seen the other, so that they belong on the same side of
a split.

- `near_copies`: texts -> for each text, the first text of its group
- `near_copies_of_rows`: the same for rows of several texts, such as pairs

Two texts are near-copies if one of these holds:

- They are equal once case, width (full or half), punctuation, spaces and marks at the end are
  removed. Texts of which nothing remains are equal only as they are. Texts with different numbers
  are different: 1.5 is not 15.
- Both have at least MIN_WORDS words, and the Jaccard similarity of their sets of WORD_GRAM words in
  a row is at least MIN_SIMILARITY. Texts in scripts that write no spaces between words (Chinese,
  Japanese, Thai, Lao, Burmese, Khmer) need MIN_CHARACTERS characters and are compared by
  CHARACTER_GRAM characters in a row.

The pairs to compare are found by MinHash (Broder 1997, "On the resemblance and containment of
documents") with locality-sensitive hashing: the least value of a random hash function is the same
for two sets with a probability that is their Jaccard similarity. A text has BANDS x BAND_SIZE such
values; two texts are compared if all values of a band agree, which misses one in 4,000 pairs of
similarity 0.8. What decides is the exact similarity, computed from 64-bit hashes of the words.

Groups are not chains: each text of a group is a near-copy of the first text of the group. A text
that has several such first texts joins the most similar one, and the earliest of equally similar
ones.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from bertworks.io.inputs import chunk_by_size

MIN_WORDS = 20
MIN_CHARACTERS = 40  # about 20 words of Chinese or Japanese
WORD_GRAM = 3
CHARACTER_GRAM = 5
MIN_SIMILARITY = 0.8
BANDS = 16
BAND_SIZE = 4

# A longer text is compared as it is: its words would take many times its memory.
_LONGEST = 1 << 20
# Three limits bound the time for many texts that resemble one another without being near-copies.
# First texts that a bucket remembers.
_REMEMBERED = 16
# The fraction of equal values below which no exact similarity is computed: four standard deviations
# below MIN_SIMILARITY.
_PROMISING = 0.6
# Exact similarities that are computed for a text.
_MOST_EXACT = 8
# Characters whose hashes are in memory at the same time.
_BLOCK = 1 << 20
_CACHED_SETS = 4096

_Hashes = NDArray[np.uint64]


class _Separators(dict[int, str | int | None]):
    """A table for `str.translate` that maps each character to its replacement.

    Punctuation, separators and control characters become a space, invisible format characters
    disappear.
    """

    def __missing__(self, code: int) -> str | int | None:
        """Add the replacement of a character: itself, a space, or None to remove it."""
        category = unicodedata.category(chr(code))
        self[code] = code
        if category[0] in "PZ" or category == "Cc":
            self[code] = " "
        elif category == "Cf":
            self[code] = None
        return self[code]


_SEPARATORS = _Separators()
_FINAL_MARKS = "~^|`´¨ˆ♪♡♥❤☆★"  # marks that are no punctuation in Unicode
_NUMBER = re.compile(r"(?:(?<!\S)[-+\u2212])?\d+(?:[.,:/-]\d+)*%?")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"
)


def near_copies(texts: Sequence[str]) -> list[int]:
    """Return for each text the number of the first text of its group, which may be itself.

    Texts that are near-copies (see the module) of the same first text are one group. The order of
    the texts decides which texts come first. The result does not depend on anything else, such as a
    seed.

    It takes about 3 s of processor time for 100,000 texts of 20 words
    (`benchmarks/near_copies.py`), and the time grows with the number of texts, not with its square.
    """
    first_with_key: dict[bytes, int] = {}
    first_texts = [
        first_with_key.setdefault(_key(text), number) for number, text in enumerate(texts)
    ]
    different = list(first_with_key.values())
    similar = _similar(texts, different)
    return [similar.get(first, first) for first in first_texts]


def near_copies_of_rows(rows: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
    """Return a key for each row, which near-copies in all of their texts have in common.

    A key has a number for each text of the row, the same for all near-copies of this text, in
    whichever row and place.
    """
    firsts = iter(near_copies([text for texts in rows for text in texts]))
    return [tuple(next(firsts) for _ in texts) for texts in rows]


def _words(text: str) -> list[str]:
    """Return the words of a text without case, width and punctuation."""
    return _folded(text).translate(_SEPARATORS).split()


def _folded(text: str) -> str:
    """Return a text without differences of case and width."""
    return (text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold()


def _key(text: str) -> bytes:
    """Return a hash that is equal for texts that differ only in form.

    Differences of form are those of case, width, punctuation, spaces and marks at the end.
    """
    if len(text) > _LONGEST:
        return b"as it is" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    folded = _folded(text)
    letters = "".join(folded.translate(_SEPARATORS).split())
    content = letters.rstrip(_FINAL_MARKS)
    if not content:
        content = f"only marks: {' '.join(folded.split())}"
    elif not content.isalpha():
        content = f"{content}\0{' '.join(_NUMBER.findall(folded))}"
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _WordHashes(dict[str, int]):
    """The 64-bit hash of each word, computed once."""

    def __missing__(self, word: str) -> int:
        """Add the hash of a word."""
        digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        self[word] = int.from_bytes(digest, "little")
        return self[word]


def mixed(values: _Hashes) -> _Hashes:
    """Return 64-bit numbers with their bits spread.

    It is the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_RANDOM = np.random.default_rng(1997)
_GRAM_FACTORS, _HASH_FACTORS, _HASH_OFFSETS, _BAND_FACTORS = (
    _RANDOM.integers(0, 1 << 63, count, np.uint64)
    for count in (CHARACTER_GRAM, BANDS * BAND_SIZE, BANDS * BAND_SIZE, BAND_SIZE)
)
for _factors in (_GRAM_FACTORS, _HASH_FACTORS, _BAND_FACTORS):  # odd, so that no bit is lost
    _factors *= np.uint64(2)
    _factors += np.uint64(1)


def _hashes_of(text: str, word_hashes: _WordHashes) -> tuple[int, _Hashes]:
    """Return the hashes of the words of a text, or of its characters if its script has no spaces.

    There are no hashes for a text that is too short.

    Returns:
        The number of words or characters in a row that are compared, and the hashes.
    """
    words = [] if len(text) > _LONGEST else _words(text)
    letters = "".join(words)
    if not letters.isascii() and 2 * len(_UNSPACED.findall(letters)) > len(letters):
        if len(letters) < MIN_CHARACTERS:
            letters = ""
        codes = np.frombuffer(letters.encode("utf-32-le", "surrogatepass"), np.uint32)
        return CHARACTER_GRAM, mixed(codes.astype(np.uint64))
    if len(words) < MIN_WORDS:
        words = []
    return WORD_GRAM, np.array([word_hashes[word] for word in words], np.uint64)


def _grams(hashes: _Hashes, gram: int) -> _Hashes:
    """Return a hash of each `gram` words or characters in a row: [N] -> [N - gram + 1]."""
    count = len(hashes) - gram + 1
    total = np.zeros(count, np.uint64)
    for place in range(gram):
        total += hashes[place : place + count] * _GRAM_FACTORS[place]
    return mixed(total)


def _signatures(hashes: Sequence[_Hashes], gram: int) -> NDArray[np.uint32]:
    """Return the MinHash values of texts: [texts, BANDS * BAND_SIZE].

    hashes: of each text. gram: how many of them in a row are compared, the same for all texts.
    """
    lengths = np.array(list(map(len, hashes)))
    grams = _grams(np.concatenate(hashes), gram)
    # The grams that begin in one text and end in the next one belong to no text.
    places = np.arange(len(grams) + gram - 1)
    is_inside = (np.repeat(np.cumsum(lengths), lengths) - places >= gram)[: len(grams)]
    starts = np.concatenate([[0], np.cumsum(lengths - gram + 1)[:-1]])
    grams = grams[is_inside]
    signatures = np.empty((len(hashes), len(_HASH_FACTORS)), np.uint32)
    for column, (factor, offset) in enumerate(zip(_HASH_FACTORS, _HASH_OFFSETS, strict=True)):
        values = grams ^ offset
        values *= factor
        signatures[:, column] = np.minimum.reduceat(values, starts) >> np.uint64(32)
    return signatures


def _similar(texts: Sequence[str], numbers: Sequence[int]) -> dict[int, int]:
    """Return the first similar text of each text: number -> number.

    Only long texts that are similar to an earlier one are in it.

    Args:
        numbers: of the texts that are compared, in ascending order.
    """
    word_hashes = _WordHashes()
    long_numbers: list[int] = []
    signature_blocks = [np.empty((0, BANDS * BAND_SIZE), np.uint32)]
    for block in chunk_by_size(numbers, _BLOCK, lambda number: len(texts[number])):
        by_gram: dict[int, dict[int, _Hashes]] = defaultdict(dict)
        for number in block:
            gram, hashes = _hashes_of(texts[number], word_hashes)
            if len(hashes):
                by_gram[gram][number] = hashes
        for gram, long_texts in by_gram.items():
            long_numbers += long_texts.keys()
            signature_blocks.append(_signatures([*long_texts.values()], gram))
    signatures = np.concatenate(signature_blocks)

    @lru_cache(_CACHED_SETS)
    def grams_of(row: int) -> frozenset[int]:
        """Return the hashes of the grams of a long text."""
        gram, hashes = _hashes_of(texts[long_numbers[row]], word_hashes)
        return frozenset(_grams(hashes, gram).tolist())

    first_of_row: dict[int, int] = {}
    buckets: dict[int, list[int]] = defaultdict(list)
    order = np.argsort(np.array(long_numbers, np.int64), kind="stable")
    for row, keys in _shared_buckets(signatures, order):
        candidates = np.array(sorted({first for key in keys for first in buckets[key]}), np.int64)
        fractions = (signatures[candidates] == signatures[row]).mean(1)
        best = -1
        best_similarity = 0.0
        for place in np.argsort(-fractions, kind="stable")[:_MOST_EXACT].tolist():
            if fractions[place] < _PROMISING:
                break
            first = int(candidates[place])
            common = len(grams_of(row) & grams_of(first))
            similarity = common / (len(grams_of(row)) + len(grams_of(first)) - common)
            if (similarity, -first) > (best_similarity, -best):
                best = first
                best_similarity = similarity
        if best_similarity >= MIN_SIMILARITY:
            first_of_row[row] = best
            continue
        for key in keys:
            if len(buckets[key]) < _REMEMBERED:
                buckets[key].append(row)
    return {long_numbers[row]: long_numbers[first] for row, first in first_of_row.items()}


def _shared_buckets(
    signatures: NDArray[np.uint32], order: NDArray[np.int64]
) -> Iterator[tuple[int, list[int]]]:
    """Yield the rows that agree with another row in a band, with the keys of these bands.

    The rows come in the order `order`.
    """
    values = signatures.reshape(len(signatures), BANDS, BAND_SIZE).astype(np.uint64)
    keys = np.broadcast_to(np.arange(BANDS, dtype=np.uint64), (len(signatures), BANDS)).copy()
    for place in range(BAND_SIZE):
        keys = mixed(keys + values[:, :, place] * _BAND_FACTORS[place])
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(keys.shape)
    is_shared = counts[inverse] > 1
    for row in order[is_shared[order].any(1)].tolist():
        yield row, inverse[row][is_shared[row]].tolist()
