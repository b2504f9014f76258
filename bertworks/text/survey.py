"""What the text of a corpus is like: its words, its characters, its scripts, and a sample held back to measure on.

It stands between `counting` and `vocabulary`: counts come in, what a learner of pieces wants to know goes out.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Self

from tokenizers import decoders, normalizers, pre_tokenizers

from bertworks.text.counting import WordCounts

_HELD_OUT = 64  # one document in so many is not learned from but measured on
_MEASURED = 2_000_000  # characters measured on, at most
_WORD_MEMORY = 1500  # bytes that a word takes while it is learned from
_FEWEST_WORDS = 100_000  # learned from, if there are so many, however little memory is allowed
_SPARE_ALPHABET = 50  # rare characters get in until the alphabet takes this part (one in so many) of the vocabulary


class Sample:
    """Documents that go by, without one in 64, drawn by its content and kept to measure on."""

    def __init__(self, documents: Iterable[str]):
        self._all = documents
        self.documents = 0
        self.held_back: list[str] = []
        self.learned_from: list[str] = []
        self._room = {id(self.held_back): _MEASURED, id(self.learned_from): _MEASURED // 10}

    def __iter__(self) -> Iterator[str]:
        for text in self._all:
            self.documents += 1
            drawn = zlib.crc32(text.encode("utf-8", "surrogatepass")) % _HELD_OUT == 0
            if drawn and len(text) <= _MEASURED // 20:  # a book is too much to lose
                self._keep(self.held_back, text)
            else:
                self._keep(self.learned_from, text)
                yield text

    def _keep(self, texts: list[str], text: str) -> None:
        if (room := self._room[id(texts)]) > 0:
            texts.append(text[:room])
            self._room[id(texts)] -= len(text)

    @property
    def enough(self) -> bool:
        """Whether what was held back tells something."""
        return sum(map(len, self.held_back)) >= 10_000

    @property
    def texts(self) -> list[str]:
        return self.held_back if self.enough else self.learned_from or self.held_back


@dataclass(frozen=True)
class Survey:
    """What the counted words say."""

    words: list[tuple[str, int]]  # the most frequent first, those of one count by code points
    characters: Counter[str]
    inside: frozenset[str]  # characters that come inside words, not only at their begin
    num_words: int
    num_unique: int

    @classmethod
    def of(cls, counts: WordCounts, max_memory: int, notes: list[str]) -> Self:
        characters: Counter[str] = Counter()
        inside: set[str] = set()
        num_words = num_unique = 0

        def noticed() -> Iterator[tuple[str, int]]:
            nonlocal num_words, num_unique
            for word, count in counts:
                num_words += count
                num_unique += 1
                inside.update(word[1:])
                for character in word:
                    characters[character] += count
                yield word, count

        limit = max(_FEWEST_WORDS, max_memory // _WORD_MEMORY)
        words = nsmallest(limit, noticed(), key=lambda item: (-item[1], item[0]))
        if num_unique > limit:
            notes.append(f"memory allows to learn from the {limit:,} most frequent of {num_unique:,} different words")
        return cls(words, characters, frozenset(inside), num_words, num_unique)

    def alphabet(self, coverage: float, size: int, *, marked: bool) -> list[str]:
        """The most frequent characters that make up `coverage` of the text, and more while they take little of `size`.

        Args:
            marked: with a `##` form of each character that comes inside words.
        """
        wanted, covered = coverage * self.characters.total(), 0
        alphabet: set[str] = set()
        for character, count in sorted(self.characters.items(), key=lambda item: (-item[1], item[0])):
            if covered >= wanted and len(alphabet) >= size // _SPARE_ALPHABET:
                break
            covered += count
            alphabet.add(character)
            if marked and character in self.inside:
                alphabet.add("##" + character)
        return sorted(alphabet, key=lambda form: (form.startswith("##") and len(form) > 2, form))

    def coverage(self, alphabet: Iterable[str]) -> float:
        """Share of the characters of the text that are in the alphabet."""
        return sum(self.characters[form] for form in alphabet if len(form) == 1) / self.characters.total()


def script_share(counts: WordCounts, *, as_bytes: bool) -> float:
    """Share of kana and Hangul among all characters.

    Args:
        as_bytes: the words are written in the stand-ins of byte-level BPE.
    """
    total = script = 0
    for word, count in counts:
        plain = _plain(word, as_bytes)
        total += len(plain) * count
        script += sum("\u3040" <= c <= "\u30ff" or "\uac00" <= c <= "\ud7a3" for c in plain) * count
    return script / max(total, 1)


def strip_accents(counts: WordCounts, into: WordCounts, *, as_bytes: bool) -> None:
    """Add the counts as if accents had been stripped before counting.

    Args:
        as_bytes: the words are written in the stand-ins of byte-level BPE.
    """
    strip = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    marks = pre_tokenizers.BertPreTokenizer()  # decomposing can set some free: U+2260 becomes "=" and an accent
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word, count in counts:
        plain = _plain(word, as_bytes)
        bare = plain if plain.isascii() else strip.normalize_str(plain)
        if bare == plain:
            into.add({word: count})
        else:
            for part, _ in (to_bytes if as_bytes else marks).pre_tokenize_str(bare):
                into.add({part: count})


def _plain(word: str, as_bytes: bool) -> str:
    """A word as it was written: byte-level words are made of stand-ins for bytes."""
    return str(decoders.ByteLevel().decode([word])) if as_bytes else word
