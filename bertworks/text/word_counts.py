"""Count the words of documents.

- `Splitter`: texts to words, by the normalizer and pre-tokenizer of a tokenizer
- `AccentSplitter`: the same for two tokenizers at once, of which one keeps accents and the other
  strips them
- `WordCounts`, `count_words`: exact counts in bounded memory, with any number of processes
- `Sample`: held-out documents
- `WordStatistics`: the most frequent words, and characters

The counts do not depend on the order of the documents, on the number of processes or on the memory.
"""

import itertools
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import NamedTuple

import tokenizers
from tokenizers import decoders

from bertworks.errors import BertworksError
from bertworks.io.inputs import chunk_by_size
from bertworks.io.processes import in_processes
from bertworks.text.long_texts import SURROGATES

BATCH = 4_000_000  # characters of the texts that a process counts at a time
_ENTRY = 160  # bytes of a counted word in Python, without its characters
_HELD_OUT = 64  # one of this number of documents is held out
_MAX_SAMPLE = 2_000_000  # characters of held-out text; of training text, a tenth
_WORD_MEMORY = 1500  # bytes of a word during training
_MIN_WORDS = 100_000  # words that are used for training even if memory is short
_SPARE_ALPHABET = 50  # rare characters are added until the alphabet is 1/50 of the vocabulary
_NEWLINES = re.compile("[\n\r\t]")
# This character stands for bytes that are not text. As a word it counts the words with such bytes.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Where a text that is read as it is can be cut: in front of a single space, which belongs to the
# word after it.
_BEFORE_SPACE = re.compile(r"(?<=\S)(?= \S)")
_BROKEN_WORD = re.compile(rf"(?<!\w)\w*+{REPLACEMENT}[\w{REPLACEMENT}]*")


@dataclass(frozen=True)
class Splitter:
    """Splits texts into words.

    Args:
        serialized: a tokenizer.json, of which the normalizer and the pre-tokenizer are used.
    """

    serialized: str

    @cached_property
    def _library(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self.serialized)

    def words(self, chunk: str) -> list[str]:
        """Return the words of a text without spaces, or of any text."""
        text = SURROGATES.sub(REPLACEMENT, chunk)
        if self._library.normalizer is not None:
            text = self._library.normalizer.normalize_str(text)
        return [word for word, _ in self._library.pre_tokenizer.pre_tokenize_str(text)]


class AccentCounts(NamedTuple):
    """Counts of words by two tokenizers: one keeps accents, the other strips them.

    The words of each tokenizer are those in `shared_words` and its own.
    """

    # words of the parts of the text that both tokenizers split into the same words
    shared_words: dict[str, int]
    accented_words: dict[str, int]  # words of the other parts, with their accents
    stripped_words: dict[str, int]  # words of the same parts, without accents


@dataclass(frozen=True)
class AccentSplitter:
    """Splits texts into words, by the normalizers and pre-tokenizers of two tokenizers at once.

    Whether a vocabulary strips accents depends on its text, so this is decided after all words have
    been counted. The counts are then those of the tokenizer that is written, without a second
    reading of the text.

    Args:
        keeping: the tokenizer.json of the tokenizer that keeps accents.
        stripping: that of the tokenizer that strips them. Both are the same if the decision is
            known.
        max_length: characters; longer words are not counted.
        reads_white_space: whether white space belongs to the words, as in byte-level BPE of the
            text as it is.
    """

    keeping: str
    stripping: str
    max_length: int
    reads_white_space: bool = False

    @cached_property
    def _splitters(self) -> tuple[Splitter, Splitter]:
        return Splitter(self.keeping), Splitter(self.stripping)

    def count(self, texts: Iterable[str]) -> AccentCounts:
        """Return the number of each word in texts, for both tokenizers.

        Each different chunk between two spaces is split once.
        """
        keeping, stripping = self._splitters
        chunks, num_broken_words = _count_chunks(texts, self.reads_white_space)
        shared_words = Counter[str]()
        accented_words = Counter[str]()
        stripped_words = Counter[str]()
        if num_broken_words:
            shared_words[REPLACEMENT] = num_broken_words
        is_decided = self.keeping == self.stripping
        for chunk, number in chunks.items():
            words = keeping.words(chunk)
            plain_words = words if is_decided or chunk.isascii() else stripping.words(chunk)
            groups = [(shared_words, words)]
            if words != plain_words:
                groups = [(accented_words, words), (stripped_words, plain_words)]
            for counts, words_of_group in groups:
                for word in words_of_group:
                    if len(word) <= self.max_length:
                        counts[word] += number
        return AccentCounts(shared_words, accented_words, stripped_words)

    def __call__(self, texts: list[str]) -> tuple[AccentCounts, int]:
        """Return the work of a process: counts, and the number of characters."""
        return self.count(texts), sum(map(len, texts))


def _count_chunks(
    texts: Iterable[str], reads_white_space: bool = False
) -> tuple[Counter[str], int]:
    """Count the chunks between two spaces.

    Args:
        reads_white_space: each chunk begins with the space in front of it, and other white space
            stays in it.

    Returns:
        The number of each chunk, without words that have bytes that are not text; and the number of
        those words.
    """
    chunks = Counter[str]()
    for text in texts:
        if not reads_white_space:
            chunks.update(_NEWLINES.sub(" ", text).split(" "))
        elif not text.isspace():  # a document of white space has no words
            chunks.update(_BEFORE_SPACE.split(text))
    del chunks[""]
    num_broken_words = 0
    for chunk in [chunk for chunk in chunks if REPLACEMENT in chunk]:
        number = chunks.pop(chunk)
        first_part, *other_parts = _BROKEN_WORD.split(chunk)
        for part in (first_part, *other_parts):
            if part and not part.isspace():
                chunks[part] += number
        num_broken_words += len(other_parts) * number
    return chunks, num_broken_words


class WordCounts:
    """Counts of words in bounded memory.

    Counts are added up in a dict, and moved to a temporary database when they are too many, or
    read.

    Iterating gives (word, count), any number of times: by falling count, then by code points.

    Args:
        max_memory: bytes for the counts.
        as_bytes: words are in byte-level characters, one for each byte.
    """

    def __init__(self, max_memory: int, *, as_bytes: bool = False):
        self._max_memory = max_memory
        self._as_bytes = as_bytes
        self._counts = Counter[str]()
        self._used = 0
        self._database = sqlite3.connect("")  # a file that the system deletes when it is closed
        self._database.execute(
            "CREATE TABLE words (word TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID"
        )

    def close(self) -> None:
        """Delete the counts."""
        self._database.close()
        self._counts.clear()

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts.

        Raises:
            BertworksError: there is no room for temporary files.
        """
        self._used += sum(_ENTRY + 4 * len(word) for word in counts if word not in self._counts)
        self._counts.update(counts)
        if self._used > self._max_memory:
            self._store()

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Iterate over (word, count), by falling count."""
        self._store()
        return self._database.execute("SELECT word, number FROM words ORDER BY number DESC, word")

    def __len__(self) -> int:
        """Return the number of different words, without the replacement character."""
        self._store()
        sql = "SELECT COUNT(*) FROM words WHERE word != ?"
        return int(self._database.execute(sql, (REPLACEMENT,)).fetchone()[0])

    def character_counts(self) -> Counter[str]:
        """Return the number of each character in the text of the words, spaces included."""
        counts = Counter[str]()
        for word, number in self:
            if word != REPLACEMENT:
                for character in self.text_of(word):
                    counts[character] += number
        return counts

    def text_of(self, word: str) -> str:
        """Return the characters of a word, which may be in byte-level characters."""
        return str(decoders.ByteLevel().decode([word])) if self._as_bytes else word

    def _store(self) -> None:
        """Move the counts to the database, in its order, which is faster."""
        sql = (
            "INSERT INTO words VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET number = number + "
            "excluded.number"
        )
        try:
            self._database.executemany(sql, sorted(self._counts.items()))
        except sqlite3.OperationalError as error:
            raise BertworksError(
                f"word counts cannot be written: {error}",
                hint="allow more memory, or set TMPDIR to a folder with more free space",
            ) from error
        self._counts = Counter()
        self._used = 0


def count_words(
    documents: Iterable[str],
    splitter: AccentSplitter,
    add: Callable[[AccentCounts], None],
    *,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Count the words of all documents, with a few million characters of text in memory.

    Args:
        add: called with the counts of each few million characters, as `splitter.count` returns
            them.
        workers: processes; None: one per CPU; 1: this process only, as for a corpus of one batch.
        progress: called with the number of characters counted so far.

    Raises:
        BertworksError: a process was killed.
    """
    # numpy strings cannot be sent to a process
    batches = chunk_by_size(map(str, documents), BATCH, len)
    first = list(itertools.islice(batches, 2))
    counted = in_processes(
        "bertworks.text.word_counts:AccentSplitter",
        astuple(splitter),
        itertools.chain(first, batches),
        workers if len(first) > 1 else 1,
        ended="a process that counted words ended: was memory short?",
        hint="run the same command again with fewer workers",
    )
    done = 0
    with closing(counted):
        for counts, characters in counted:
            add(counts)
            done += characters
            if progress:
                progress(done)


class Sample:
    """Iterates over the documents that are not held out; keeps a sample of each kind."""

    def __init__(self, documents: Iterable[str]):
        self._source = documents
        # Each pair is of the training text and of the held-out text.
        self.beginnings: tuple[list[str], list[str]] = [], []
        self._room = [_MAX_SAMPLE // 10, _MAX_SAMPLE]  # characters that may still be added

    def __iter__(self) -> Iterator[str]:
        for text in self._source:
            is_drawn = zlib.crc32(text.encode("utf-8", "surrogatepass")) % _HELD_OUT == 0
            held_out = is_drawn and len(text) <= _MAX_SAMPLE // 20  # a book is too much to lose
            self._keep(text, held_out)
            if not held_out:
                yield text

    def _keep(self, text: str, held_out: int) -> None:
        """Add the beginning of a text as long as there is room for its kind."""
        room = self._room[held_out]
        if room > 0:
            self.beginnings[held_out].append(text[:room])
            self._room[held_out] -= len(text)

    def add(self, beginnings: Sequence[Iterable[str]]) -> None:
        """Add the beginnings in a sample of later documents."""
        for held_out, texts in enumerate(beginnings):
            for text in texts:
                self._keep(text, held_out)

    @property
    def is_large(self) -> bool:
        """Whether enough text is held out for meaningful rates."""
        return sum(map(len, self.beginnings[True])) >= 10_000

    @property
    def texts(self) -> list[str]:
        """The held-out text if it is large, else the training text if there is any."""
        return (
            self.beginnings[True]
            if self.is_large
            else self.beginnings[False] or self.beginnings[True]
        )


class WordStatistics:
    """The words and characters of a text.

    Args:
        max_memory: bytes for the training: as many of the most frequent words as fit are kept.
        notes: a note is added if words are left out.

    Attributes:
        words: (word, count), by falling count, then by code points.
        characters: their counts.
        inside: characters that occur after the first character of a word.
        num_words, num_unique: all words, and different ones.
    """

    def __init__(self, counts: WordCounts, max_memory: int, notes: list[str]):
        self.characters: Counter[str] = Counter()
        self.inside: set[str] = set()
        self.words: list[tuple[str, int]] = []
        self.num_words = 0
        self.num_unique = len(counts)
        limit = max(_MIN_WORDS, max_memory // _WORD_MEMORY)
        if self.num_unique > limit:
            notes.append(
                f"memory allows training on the {limit:,} most frequent of {self.num_unique:,} "
                "different words"
            )
        for word, count in counts:
            if word == REPLACEMENT:
                notes.append(
                    f"{count:,} words have bytes that are not text ({REPLACEMENT}): they are not "
                    "learned"
                )
                continue
            if len(self.words) < limit:
                self.words.append((word, count))
            self.num_words += count
            self.inside.update(word[1:])
            for character in word:
                self.characters[character] += count

    def alphabet(self, coverage: float, size: int, *, marked: bool) -> list[str]:
        """Return the most frequent characters that cover the fraction `coverage` of the text.

        They are more while they are few for a vocabulary of `size`.

        Args:
            marked: with a `##` form of each character that occurs inside words.
        """
        target = coverage * self.characters.total()
        covered = 0
        alphabet: set[str] = set()
        for character, count in sorted(
            self.characters.items(), key=lambda item: (-item[1], item[0])
        ):
            if covered >= target and len(alphabet) >= size // _SPARE_ALPHABET:
                break
            covered += count
            alphabet.add(character)
            if marked and character in self.inside:
                alphabet.add("##" + character)
        return sorted(alphabet, key=lambda form: (form.startswith("##") and len(form) > 2, form))

    def coverage(self, alphabet: Iterable[str]) -> float:
        """Return the fraction of the characters of the text that are in the alphabet."""
        covered = sum(self.characters[form] for form in alphabet if len(form) == 1)
        return covered / self.characters.total()
