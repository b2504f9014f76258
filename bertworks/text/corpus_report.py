"""Report on finished shards: duplicates, unknown words, lengths, casing, with warnings.

Shards are read once, in bounded memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.config import packaged_table
from bertworks.io.atomic_write import write_json
from bertworks.text.near_copies import mixed
from bertworks.text.shards import Shards
from bertworks.text.tokenizer import MANY_UNKNOWN, Tokenizer
from bertworks.text.tokenizer_folder import count_cased

_WARNINGS = packaged_table(__file__, "corpus_warnings.toml")
_BLOCK_TOKENS = 1 << 17  # a fourth of the time of 1 << 20: the arrays fit a core's cache
_BLOCK_SENTENCES = 1 << 18
# to find duplicates (48 MB); of more texts a sample by hash is kept, with all copies
_MAX_HASHES = 1 << 21
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2 ** 64 divided by the golden ratio
_SHOWN = 5
_SHOWN_TOKENS = 40
_SHOWN_CHARACTERS = 40
_BAR = 30  # characters
_MANY_DUPLICATE_SENTENCES = 0.2
_MANY_DUPLICATE_DOCUMENTS = 0.02
# of a vocabulary of whole words, which leaves out those that are rare
_MANY_UNKNOWN_WORDS = 0.1
_MANY_PIECES = 2.0  # tokens per word; English with a good 30k vocabulary: 1.1 to 1.3
_FEW_USES = 100  # of a token on average
_CASING_UNKNOWN = 0.0005


@dataclass(frozen=True)
class Duplicates:
    """Copies after the first.

    For a large corpus they are estimated from a sample.
    """

    number: int
    share: float
    most_repeated: dict[str, int]  # text -> number in the corpus
    looked_at: float  # fraction of distinct texts in the sample; 1: exact


@dataclass(frozen=True)
class CorpusStatistics:
    """Figures of a corpus and warnings about it.

    `str()` is text, `as_dict()` is for JSON.
    """

    documents: int
    sentences: int
    tokens: int
    # a word: letters up to a space, or a punctuation mark, as the tokenizer splits them
    tokens_per_word: float
    unknown_share: float  # of all tokens
    unknown_words: dict[str, int]  # the most frequent, in a sample
    # fraction of those in the sample that are known in lower case
    unknown_cured_by_lowercase: float
    sentence_lengths: dict[str, int]  # "8-15" tokens -> sentences
    document_lengths: dict[str, int]  # "256-511" tokens -> documents
    single_sentence_documents: int
    duplicate_sentences: Duplicates
    duplicate_documents: Duplicates
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures and warnings by their names."""
        return asdict(self)

    def save(self, folder: Path) -> None:
        """Write preflight.json into a shards folder."""
        write_json(folder / "preflight.json", self.as_dict())

    def __str__(self) -> str:
        lines = [
            f"{self.documents:,} documents, {self.sentences:,} sentences, {self.tokens:,} tokens",
            f"tokens per word      {self.tokens_per_word:.2f}",
            f"[UNK]                {self.unknown_share:.3%} of "
            f"tokens{_examples(self.unknown_words)}",
            f"duplicate sentences  {_duplicates_line(self.duplicate_sentences)}",
            f"duplicate documents  {_duplicates_line(self.duplicate_documents)}",
            *_histogram("tokens per sentence", self.sentence_lengths),
            *_histogram("tokens per document", self.document_lengths),
        ]
        return "\n".join(lines + [f"warning: {warning}" for warning in self.warnings])


def corpus_report(
    shards: Shards,
    tokenizer: Tokenizer | None = None,
    *,
    is_parallel: bool = False,
    has_new_vocabulary: bool = True,
) -> CorpusStatistics:
    """Compute the report of shards.

    Args:
        tokenizer: of the shards; None: load it from their folder.
        is_parallel: whether documents are the sides of translations, which need no further
            sentences.
        has_new_vocabulary: whether another vocabulary can be advised.
    """
    tokenizer = tokenizer or shards.tokenizer()
    sentence_hashes = _HashSample()
    document_hashes = _HashSample()
    sentence_lengths = np.zeros(64, np.int64)
    document_lengths = np.zeros(64, np.int64)
    words = single = 0
    for first, last in _ranges(shards.documents, _BLOCK_SENTENCES):
        borders = np.asarray(shards.documents[first : last + 1])
        starts = np.asarray(shards.sentences[borders[0] : borders[-1] + 1])
        hashes = np.empty(len(starts) - 1, np.uint64)
        for low, high in _ranges(starts, _BLOCK_TOKENS):
            tokens = np.asarray(shards.tokens[starts[low] : starts[high]])
            words += int(tokenizer.starts_word[tokens].sum())
            hashes[low:high] = _hash_rows(tokens, starts[low : high + 1] - starts[low])
        sentence_lengths += _by_doubling(np.diff(starts))
        document_lengths += _by_doubling(np.diff(starts[borders - borders[0]]))
        single += int((np.diff(borders) == 1).sum())
        sentence_hashes.add(hashes, int(borders[0]))
        document_hashes.add(_hash_rows(hashes, borders - borders[0]), first)
    manifest = shards.manifest
    unknown_words = manifest.unknown_words
    capitals = [word for word in unknown_words if word != word.lower()]
    ids = tokenizer.ids([word.lower() for word in capitals])
    cured_words = [word for word, known in zip(capitals, ids) if tokenizer.unk_id not in known]
    num_cured = sum(unknown_words[word] for word in cured_words)
    report = CorpusStatistics(
        documents=manifest.documents,
        sentences=manifest.sentences,
        tokens=manifest.tokens,
        tokens_per_word=manifest.tokens / max(words, 1),
        unknown_share=manifest.unknown_tokens / manifest.tokens,
        unknown_words=dict(list(unknown_words.items())[:_SHOWN]),
        unknown_cured_by_lowercase=num_cured / max(sum(unknown_words.values()), 1),
        sentence_lengths=_named(sentence_lengths),
        document_lengths=_named(document_lengths),
        single_sentence_documents=single,
        duplicate_sentences=sentence_hashes.duplicates(
            lambda row: _text(shards, tokenizer, row, row + 1)
        ),
        duplicate_documents=document_hashes.duplicates(
            lambda row: _text(shards, tokenizer, *shards.documents[row : row + 2])
        ),
        warnings=[],
    )
    warnings = _warnings(report, shards, tokenizer, is_parallel, has_new_vocabulary)
    return replace(report, warnings=warnings)


def _ranges(borders: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows that are at most `most` long together, or a single row.

    Row i is borders[i]:borders[i+1].
    """
    first = 0
    while first < len(borders) - 1:
        last = max(
            int(np.searchsorted(borders, borders[first] + most, side="right")) - 1, first + 1
        )
        yield first, last
        first = last


def _hash_rows(values: NDArray[Any], borders: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row values[borders[i]:borders[i+1]].

    It is the sum of hashes of the values and their places.
    """
    places = np.arange(len(values)) - np.repeat(borders[:-1], np.diff(borders))
    x = values.astype(np.uint64) ^ (places.astype(np.uint64) + 1) * _GOLDEN
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed(x), dtype=np.uint64)])
    return np.asarray(sums[borders[1:]] - sums[borders[:-1]])


class _HashSample:
    """Counts equal rows by their hashes.

    Of too many hashes, it keeps those that end in zero bits.
    """

    def __init__(self, most: int = _MAX_HASHES):
        self._most = most
        self._level = 0  # low bits that must be zero
        self._total = 0
        # The first row of each hash, and how many rows have it.
        self._entries = np.zeros(0, [("hash", np.uint64), ("row", np.int64), ("count", np.int64)])
        self._new: list[NDArray[Any]] = []  # not yet merged

    def add(self, hashes: NDArray[np.uint64], first_row: int) -> None:
        """Add the hashes of consecutive rows."""
        self._total += len(hashes)
        new = np.ones(len(hashes), self._entries.dtype)
        new["hash"] = hashes
        new["row"] = np.arange(first_row, first_row + len(hashes))
        self._new.append(self._in_sample(new))
        if sum(map(len, [self._entries, *self._new])) > self._most:
            self._merge()
            while len(self._entries) > self._most // 2:  # half, so that sorting is rare
                self._level += 1
                self._entries = self._in_sample(self._entries)

    def _in_sample(self, entries: NDArray[Any]) -> NDArray[Any]:
        """Return the entries whose hashes end in as many zero bits as the level says."""
        return np.asarray(entries[entries["hash"] & np.uint64((1 << self._level) - 1) == 0])

    def _merge(self) -> None:
        """Merge equal hashes."""
        entries = np.concatenate([self._entries, *self._new])
        self._new = []
        _, firsts, owners = np.unique(entries["hash"], return_index=True, return_inverse=True)
        counts = np.bincount(owners, entries["count"], len(firsts))  # exact below 2 ** 53
        self._entries = entries[firsts]
        self._entries["count"] = counts

    def duplicates(self, text_of: Callable[[int], str]) -> Duplicates:
        """Return the copies among all rows.

        Args:
            text_of: returns the text of a row.
        """
        self._merge()
        in_sample = int(self._entries["count"].sum())
        copies = in_sample - len(self._entries)
        fraction = copies / max(in_sample, 1)
        order = np.lexsort((self._entries["row"], -self._entries["count"]))[:_SHOWN]
        repeated = {
            text_of(row): count for _, row, count in self._entries[order].tolist() if count > 1
        }
        number = round(fraction * self._total) if self._level else copies
        return Duplicates(number, fraction, repeated, 0.5**self._level)


def _text(shards: Shards, tokenizer: Tokenizer, first: int, last: int) -> str:
    """Return the beginning of sentences first..last-1."""
    start = int(shards.sentences[first])
    end = int(shards.sentences[last])
    text = tokenizer.decode(shards.tokens[start : min(end, start + _SHOWN_TOKENS)])
    return text + (" ..." if end - start > _SHOWN_TOKENS else "")


def _by_doubling(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of lengths of 1, 2-3, 4-7 and so on: int64 [64]."""
    return np.bincount(np.frexp(lengths.astype(np.float64))[1] - 1, minlength=64)


def _named(counts: NDArray[np.int64]) -> dict[str, int]:
    """Return counts of `_by_doubling` under the names of their ranges, such as "4-7"."""
    used = np.flatnonzero(counts)
    return {
        str(1 << i) if i == 0 else f"{1 << i}-{(2 << i) - 1}": int(counts[i])
        for i in range(used[0], used[-1] + 1)
    }


def _warnings(
    report: CorpusStatistics,
    shards: Shards,
    tokenizer: Tokenizer,
    is_parallel: bool,
    has_new_vocabulary: bool,
) -> list[str]:
    """Return the problems to expect and what to do, the worst first."""
    most_unknown = _MANY_UNKNOWN_WORDS if tokenizer.has_whole_words else MANY_UNKNOWN
    wrong_case = report.unknown_share > _CASING_UNKNOWN and report.unknown_cured_by_lowercase > 0.5
    wrong_case &= not tokenizer.lowercase
    is_uncased = wrong_case and count_cased(tokenizer.tokens) <= tokenizer.vocab_size // 100
    most = min(tokenizer.model_max_length, 512)
    long = sum(
        count for name, count in report.sentence_lengths.items() if int(name.split("-")[0]) >= most
    )
    applies = {
        "unknown": report.unknown_share > most_unknown,
        "uncased": is_uncased,
        "capitals": wrong_case and not is_uncased,
        "pieces": report.tokens_per_word > _MANY_PIECES,
        # Each word of ELMo is read by its spelling, however rare it is.
        "few_tokens": (
            has_new_vocabulary
            and report.tokens < _FEW_USES * tokenizer.vocab_size
            and not tokenizer.has_spelled_words
        ),
        "copied_documents": report.duplicate_documents.share > _MANY_DUPLICATE_DOCUMENTS,
        "copied_sentences": report.duplicate_sentences.share > _MANY_DUPLICATE_SENTENCES,
        "one_document": shards.manifest.sections,
        "single_sentences": (
            not is_parallel and report.single_sentence_documents > report.documents // 2
        ),
        "long_sentences": long > report.sentences // 1000,
    }
    values = {
        "report": report,
        "words": _examples(report.unknown_words),
        "size": tokenizer.vocab_size,
        "fitting": max(report.tokens // _FEW_USES, 1000),
        "most": most,
        "long": long,
        "repeated": next(iter(report.duplicate_sentences.most_repeated), ""),
    }
    return [
        *tokenizer.notes,
        *(_WARNINGS[name].format_map(values) for name, is_true in applies.items() if is_true),
    ]


def _examples(words: dict[str, int]) -> str:
    """Return words in parentheses, or nothing."""
    return f" ({', '.join(words)})" if words else ""


def _duplicates_line(duplicates: Duplicates) -> str:
    """Return a line about copies, with the three texts that have most of them."""
    about = "about " if duplicates.looked_at < 1 else ""
    line = f"{about}{duplicates.number:,} ({duplicates.share:.1%})"
    examples = [
        f"{count:,} x {text[:_SHOWN_CHARACTERS]!r}"
        for text, count in list(duplicates.most_repeated.items())[:3]
    ]
    return line + (f": {', '.join(examples)}" if examples else "")


def _histogram(title: str, counts: dict[str, int]) -> list[str]:
    """Return the lines of a bar chart: title, then name, bar and percentage of each count."""
    width = max(map(len, counts))
    most = max(counts.values())
    total = sum(counts.values())
    rows = [
        f"  {name:>{width}}  {'#' * -(-count * _BAR // most):{_BAR}}  {count / total:6.1%}"
        for name, count in counts.items()
    ]
    return [title, *(row.rstrip() for row in rows)]
