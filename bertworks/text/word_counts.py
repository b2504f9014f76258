"""Documents -> how often each word comes, exactly, in bounded memory and with as many processes as wanted; and what the
words say of the text: its characters and scripts.

A word is what the tokenizer's own normaliser and pre-tokeniser make of the text. No vocabulary is learned here. The
counts depend on neither the order of documents, nor the number of processes, nor how often memory ran out on the way.
"""

import heapq
import itertools
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from bertworks.errors import BertworksError
from bertworks.io.workers import chunk_by_size, in_processes

_BATCH = 4_000_000  # characters counted at a time
_RUNS = 64  # sorted files merged at a time
_ENTRY = 160  # bytes that Python takes for a counted word, besides its characters
_HELD_OUT = 64  # one document in so many is not learned from but measured on
_MEASURED = 2_000_000  # characters measured on, at most
_WORD_MEMORY = 1500  # bytes that a word takes while it is learned from
_FEWEST_WORDS = 100_000  # learned from, if there are so many, however little memory is allowed
_SPARE_ALPHABET = 50  # rare characters get in until the alphabet takes this part (one in so many) of the vocabulary
_NEWLINES = re.compile("[\n\r\t]")


@dataclass(frozen=True)
class Splitter:
    """How a text becomes words: the two parts of a tokenizer.json, as the library writes them.

    Args:
        normalizer: the `normalizer` part.
        pre_tokenizer: the `pre_tokenizer` part.
        longest: characters; longer words are not counted.
        plain: whether a chunk of ASCII letters and digits is one word as it is: "as it is" or "lower-cased", or None
            when it may not be.
    """

    normalizer: str
    pre_tokenizer: str
    longest: int
    plain: str | None

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        empty = (
            '{"version":"1.0","added_tokens":[],"model":{"type":"WordPiece","vocab":{"[UNK]":0},"unk_token":"[UNK]",'
        )
        empty += '"continuing_subword_prefix":"##","max_input_chars_per_word":100},"normalizer":%s,"pre_tokenizer":%s}'
        library = tokenizers.Tokenizer.from_str(empty % (self.normalizer, self.pre_tokenizer))
        return library.normalizer, library.pre_tokenizer

    def words(self, chunk: str) -> list[str]:
        """The words of a stretch of text without spaces, or of a whole text."""
        normalizer, pre_tokenizer = self._parts
        try:
            normal = normalizer.normalize_str(chunk)
        except (TypeError, UnicodeEncodeError):  # a lone surrogate, which UTF-8 cannot hold
            normal = normalizer.normalize_str(re.sub("[\ud800-\udfff]", "\ufffd", chunk))
        return [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]

    def count(self, texts: Iterable[str]) -> dict[str, int]:
        """How often each word comes in texts. Each different stretch between two spaces is looked at once."""
        chunks: Counter[str] = Counter()
        for text in texts:
            chunks.update(_NEWLINES.sub(" ", text).split(" "))
        del chunks[""]
        counts: dict[str, int] = {}
        for chunk, number in chunks.items():
            if self.plain and chunk.isascii() and chunk.isalnum():
                words = [chunk.lower() if self.plain == "lower-cased" else chunk]
            else:
                words = self.words(chunk)
            for word in words:
                if len(word) <= self.longest:
                    counts[word] = counts.get(word, 0) + number
        return counts


class WordCounts:
    """Word -> count in bounded memory: what is too much goes to sorted temporary files, merged when read.

    Iterating gives (word, count) in the order of code points, as often as one likes. Use it as a context manager: the
    files go when it closes.

    Args:
        max_memory: bytes that the counts may take.
    """

    def __init__(self, max_memory: int):
        self._max_memory = max_memory
        self._counts: dict[str, int] = {}
        self._used = 0
        self._runs: list[Path] = []
        self._names = itertools.count()
        self._folder = tempfile.TemporaryDirectory(prefix="bertworks-words-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._folder.cleanup()

    def add(self, counts: Mapping[str, int]) -> None:
        """Add counts to what is there."""
        for word, number in counts.items():
            known = self._counts.get(word)
            if known is None:
                self._used += _ENTRY + 4 * len(word)
                self._counts[word] = number
                if self._used > self._max_memory:
                    self._spill()
            else:
                self._counts[word] = known + number

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return _summed([sorted(self._counts.items()), *map(_read_run, self._runs)])

    def __bool__(self) -> bool:
        return bool(self._counts or self._runs)

    def _spill(self) -> None:
        self._write_run(iter(sorted(self._counts.items())))
        self._counts, self._used = {}, 0
        if len(self._runs) >= _RUNS:
            merged, self._runs = self._runs, []
            self._write_run(_summed(list(map(_read_run, merged))))
            for run in merged:
                run.unlink()

    def _write_run(self, items: Iterator[tuple[str, int]]) -> None:
        path = Path(self._folder.name) / f"{next(self._names)}.tsv"
        try:
            with path.open("w", encoding="utf-8", newline="") as file:
                file.writelines(f"{word}\t{number}\n" for word, number in items)
        except OSError as error:
            raise BertworksError(
                f"word counts cannot be put aside: {error.strerror}",
                where=str(path.parent),
                hint="allow more memory, or let TMPDIR name a folder with more room",
            ) from error
        self._runs.append(path)


def count_words(
    documents: Iterable[str],
    splitter: Splitter,
    into: WordCounts,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Count the words of all documents, holding a few million characters of text at a time.

    Args:
        workers: processes; None: as many as there are cores. 1 works in this one, as does a corpus of one batch.
        progress: called with the number of characters counted so far.

    Raises:
        BertworksError: a process was killed.
    """
    batches = chunk_by_size(map(str, documents), _BATCH)  # plain ones: numpy's go through no pipe
    first = list(itertools.islice(batches, 2))
    counted = in_processes(
        "bertworks.text.word_counts:counter",
        [asdict(splitter)],
        itertools.chain(first, batches),
        workers if len(first) > 1 else 1,
        ended="a process that counted words ended: was memory short?",
        hint="type the same again with fewer workers",
    )
    done = 0
    with closing(counted):
        for counts, characters in counted:
            into.add(counts)
            done += characters
            if progress:
                progress(done)


def counter(splitter: dict[str, Any]) -> Callable[[list[str]], tuple[dict[str, int], int]]:
    """What each process does: texts -> their words with counts, and the number of their characters."""
    count = Splitter(**splitter).count
    return lambda texts: (count(texts), sum(map(len, texts)))


def _summed(sources: list[Iterable[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    """Merge sources that are sorted by word; the counts of one word are added."""
    for word, items in itertools.groupby(heapq.merge(*sources), key=itemgetter(0)):
        yield word, sum(number for _, number in items)


def _read_run(path: Path) -> Iterator[tuple[str, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            word, number = line.rsplit("\t", 1)
            yield word, int(number)


# --- what the words say of the text -----------------------------------------------------------------------------------


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
class WordStatistics:
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
        words = heapq.nsmallest(limit, noticed(), key=lambda item: (-item[1], item[0]))
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
    """Share of kana and Hangul among all characters. as_bytes: the words are written in stand-ins (`_plain`)."""
    total = script = 0
    for word, count in counts:
        plain = _plain(word, as_bytes)
        total += len(plain) * count
        script += sum("\u3040" <= c <= "\u30ff" or "\uac00" <= c <= "\ud7a3" for c in plain) * count
    return script / max(total, 1)


def strip_accents(counts: WordCounts, into: WordCounts, *, as_bytes: bool) -> None:
    """Add the counts as if accents had been stripped before counting. as_bytes: the words are written in stand-ins."""
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
