"""What may cause trouble in a corpus: duplicates, unknown words, lengths, casing.

It reads finished shards in one pass and in bounded memory, and changes nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.io.atomic_write import write_json
from bertworks.text.shards import Shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.tokenizer_folder import count_cased

_BLOCK_TOKENS = 1 << 20
_BLOCK_SENTENCES = 1 << 18
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MOST_HASHES = 1 << 21  # kept to find duplicates (48 MB); beyond, a sample by hash, which counts all copies of a text
_SHOWN = 5
_SHOWN_TOKENS = 40
_SHOWN_CHARACTERS = 40
_BAR = 30  # characters
_MANY_UNKNOWN = 0.005  # published vocabularies give under 0.1 % on their own language
_MANY_DUPLICATE_SENTENCES = 0.2
_MANY_DUPLICATE_DOCUMENTS = 0.02
_MANY_PIECES = 2.0  # tokens per word; English through a good 30k vocabulary: 1.1 to 1.3
_FEW_USES = 100  # of a token of the vocabulary, on average
_CASING_UNKNOWN = 0.0005


@dataclass(frozen=True)
class Duplicates:
    """Copies beyond the first; estimates where the corpus is too large for all to be looked at."""

    number: int
    share: float
    most_repeated: dict[str, int]  # text -> how often it stands in the corpus
    looked_at: float  # share of distinct texts that was looked at; 1: exact


@dataclass(frozen=True)
class PreflightReport:
    """Figures, and warnings in words. `str()` is for people, `as_dict()` for JSON."""

    documents: int
    sentences: int
    tokens: int
    tokens_per_word: float  # a word: a stretch of letters or one punctuation mark, as the tokenizer cuts them
    unknown_share: float  # of all tokens
    unknown_words: dict[str, int]  # the most frequent, in a sample
    unknown_cured_by_lowercase: float  # share of those in the sample that the vocabulary knows in lower case
    sentence_lengths: dict[str, int]  # "8-15" tokens -> sentences
    document_lengths: dict[str, int]  # "256-511" tokens -> documents
    single_sentence_documents: int
    duplicate_sentences: Duplicates
    duplicate_documents: Duplicates
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, folder: Path) -> None:
        """Write preflight.json into a shards folder."""
        write_json(folder / "preflight.json", self.as_dict())

    def __str__(self) -> str:
        lines = [
            f"{self.documents:,} documents, {self.sentences:,} sentences, {self.tokens:,} tokens",
            f"tokens per word      {self.tokens_per_word:.2f}",
            f"[UNK]                {self.unknown_share:.3%} of tokens{_examples(self.unknown_words)}",
            f"duplicate sentences  {_duplicates_line(self.duplicate_sentences)}",
            f"duplicate documents  {_duplicates_line(self.duplicate_documents)}",
            *_histogram("tokens per sentence", self.sentence_lengths),
            *_histogram("tokens per document", self.document_lengths),
        ]
        return "\n".join(lines + [f"warning: {warning}" for warning in self.warnings])


def corpus_report(shards: Shards, tokenizer: Tokenizer | None = None) -> PreflightReport:
    """Look through shards once.

    Args:
        tokenizer: that of the shards; None: loaded from their folder.
    """
    tokenizer = tokenizer or shards.tokenizer()
    sentence_hashes, document_hashes = _HashSample(), _HashSample()
    sentence_lengths, document_lengths = np.zeros(64, np.int64), np.zeros(64, np.int64)
    words = single = 0
    for first, last in _cut(shards.documents, _BLOCK_SENTENCES):
        borders = np.asarray(shards.documents[first : last + 1])
        starts = np.asarray(shards.sentences[borders[0] : borders[-1] + 1])
        hashes = np.empty(len(starts) - 1, np.uint64)
        for low, high in _cut(starts, _BLOCK_TOKENS):
            tokens = np.asarray(shards.tokens[starts[low] : starts[high]])
            words += int(tokenizer.starts_word[tokens].sum())
            hashes[low:high] = _hash_rows(tokens, starts[low : high + 1] - starts[low])
        sentence_lengths += _by_doubling(np.diff(starts))
        document_lengths += _by_doubling(np.diff(starts[borders - borders[0]]))
        single += int((np.diff(borders) == 1).sum())
        sentence_hashes.add(hashes, int(borders[0]))
        document_hashes.add(_hash_rows(hashes, borders - borders[0]), first)
    manifest = shards.manifest
    report = PreflightReport(
        documents=manifest.documents,
        sentences=manifest.sentences,
        tokens=manifest.tokens,
        tokens_per_word=manifest.tokens / max(words, 1),
        unknown_share=manifest.unknown_tokens / manifest.tokens,
        unknown_words=dict(list(manifest.unknown_words.items())[:_SHOWN]),
        unknown_cured_by_lowercase=_cured_by_lowercase(manifest.unknown_words, tokenizer),
        sentence_lengths=_named(sentence_lengths),
        document_lengths=_named(document_lengths),
        single_sentence_documents=single,
        duplicate_sentences=sentence_hashes.duplicates(lambda row: _text(shards, tokenizer, row, row + 1)),
        duplicate_documents=document_hashes.duplicates(
            lambda row: _text(shards, tokenizer, int(shards.documents[row]), int(shards.documents[row + 1]))
        ),
        warnings=[],
    )
    return replace(report, warnings=_warnings(report, shards, tokenizer))


def _cut(borders: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Stretches of rows, row i being borders[i]:borders[i+1], that are at most `most` long together (or one row)."""
    first = 0
    while first < len(borders) - 1:
        last = max(int(np.searchsorted(borders, borders[first] + most, side="right")) - 1, first + 1)
        yield first, last
        first = last


def _hash_rows(values: NDArray[Any], borders: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A 64-bit hash of each row values[borders[i]:borders[i+1]]; no row is empty."""
    lengths = np.diff(borders)
    places = (np.arange(len(values)) - np.repeat(borders[:-1], lengths)).astype(np.uint64)
    mixed = _mix(_mix(values.astype(np.uint64)) + places * _ODD)
    return _mix(np.add.reduceat(mixed, borders[:-1]) + lengths.astype(np.uint64))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014): each bit of the result depends on all bits of x."""
    x = x + _ODD
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class _HashSample:
    """Counts equal rows by their hashes; of too many distinct ones it keeps those that end in zeros, in all copies."""

    def __init__(self, most: int = _MOST_HASHES):
        self._most = most
        self._level = 0  # low bits that must be zero
        self._total = 0
        self._hashes = np.zeros(0, np.uint64)
        self._rows = np.zeros(0, np.int64)  # where a hash first came
        self._counts = np.zeros(0, np.int64)

    def add(self, hashes: NDArray[np.uint64], first_row: int) -> None:
        self._total += len(hashes)
        kept = np.flatnonzero(self._wanted(hashes))
        self._hashes = np.concatenate([self._hashes, hashes[kept]])
        self._rows = np.concatenate([self._rows, first_row + kept])
        self._counts = np.concatenate([self._counts, np.ones(len(kept), np.int64)])
        if len(self._hashes) > self._most:
            self._merge()
            while len(self._hashes) > self._most // 2:  # half, so that sorting stays rare
                self._level += 1
                self._keep(self._wanted(self._hashes))

    def _wanted(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.asarray(hashes & np.uint64((1 << self._level) - 1) == 0, np.bool_)

    def _keep(self, which: NDArray[Any]) -> None:
        self._hashes, self._rows, self._counts = self._hashes[which], self._rows[which], self._counts[which]

    def _merge(self) -> None:
        """One entry for each distinct hash."""
        distinct, firsts, owners = np.unique(self._hashes, return_index=True, return_inverse=True)
        counts = np.zeros(len(distinct), np.int64)
        np.add.at(counts, owners, self._counts)
        self._keep(firsts)
        self._counts = counts

    def duplicates(self, text_of: Callable[[int], str]) -> Duplicates:
        """Copies among the rows seen; `text_of` makes a row readable."""
        self._merge()
        looked_at = int(self._counts.sum())
        copies = looked_at - len(self._hashes)
        share = copies / max(looked_at, 1)
        order = np.lexsort((self._rows, -self._counts))[:_SHOWN]
        repeated = {text_of(int(self._rows[i])): int(self._counts[i]) for i in order if self._counts[i] > 1}
        return Duplicates(round(share * self._total) if self._level else copies, share, repeated, 0.5**self._level)


def _text(shards: Shards, tokenizer: Tokenizer, first: int, last: int) -> str:
    """The beginning of sentences first..last-1."""
    start, end = int(shards.sentences[first]), int(shards.sentences[last])
    text = tokenizer.decode(shards.tokens[start : min(end, start + _SHOWN_TOKENS)])
    return text + (" ..." if end - start > _SHOWN_TOKENS else "")


def _by_doubling(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [64]: how many lengths are 1, 2-3, 4-7, ..."""
    exponents = np.frexp(lengths.astype(np.float64))[1] - 1
    return np.bincount(exponents, minlength=64)


def _named(counts: NDArray[np.int64]) -> dict[str, int]:
    used = np.flatnonzero(counts)
    return {str(1 << i) if i == 0 else f"{1 << i}-{(2 << i) - 1}": int(counts[i]) for i in range(used[0], used[-1] + 1)}


def _cured_by_lowercase(words: dict[str, int], tokenizer: Tokenizer) -> float:
    """Of the occurrences of unknown words, the share that has no [UNK] when written in lower case."""
    capitals = [word for word in words if word != word.lower()]
    ids = tokenizer.ids([word.lower() for word in capitals])
    cured = sum(words[word] for word, found in zip(capitals, ids) if tokenizer.unk_id not in found)
    return cured / max(sum(words.values()), 1)


def _warnings(report: PreflightReport, shards: Shards, tokenizer: Tokenizer) -> list[str]:
    """What will go wrong and what to do about it, the worst first."""
    found = [*tokenizer.notes, *_vocabulary_warnings(report, tokenizer)]
    documents, sentences = report.duplicate_documents, report.duplicate_sentences
    if documents.share > _MANY_DUPLICATE_DOCUMENTS:
        found.append(
            f"{documents.share:.1%} of the documents are copies of others: the model will learn them by heart, and "
            "held-out documents may be among them; remove copies from the corpus"
        )
    if sentences.share > _MANY_DUPLICATE_SENTENCES:
        found.append(
            f"{sentences.share:.1%} of the sentences are copies of others, such as "
            f"{next(iter(sentences.most_repeated), '')!r}: remove menus, headers and other lines that come with every "
            "page"
        )
    if shards.manifest.sections:
        found.append(
            "the corpus is one document, which was cut into sections so that next sentence prediction has others to "
            "draw from; separate documents by blank lines for real borders"
        )
    if report.single_sentence_documents > report.documents // 2:
        found.append(
            f"{report.single_sentence_documents:,} documents have a single sentence, and next sentence "
            "prediction needs two: join what belongs together into documents, or pre-train with masked words alone"
        )
    most = min(tokenizer.model_max_length, 512)
    long = sum(count for name, count in report.sentence_lengths.items() if int(name.split("-")[0]) >= most)
    if long > report.sentences // 1000:
        found.append(
            f"{long:,} sentences are longer than {most} tokens and will be cut: is the text without full stops and "
            "line ends, or in a language without word borders for this vocabulary?"
        )
    return found


def _vocabulary_warnings(report: PreflightReport, tokenizer: Tokenizer) -> list[str]:
    found = []
    if report.unknown_share > _MANY_UNKNOWN:
        found.append(
            f"{report.unknown_share:.1%} of the tokens are [UNK]{_examples(report.unknown_words)}: the vocabulary does "
            "not fit this text; train one on it with `bertworks vocab`"
        )
    if report.unknown_share > _CASING_UNKNOWN and report.unknown_cured_by_lowercase > 0.5 and not tokenizer.lowercase:
        share = f"{report.unknown_cured_by_lowercase:.0%} of the unknown words are known in lower case: "
        if count_cased(tokenizer.tokens) <= len(tokenizer.tokens) // 100:
            found.append(
                share + "the vocabulary is uncased but the tokenizer keeps capitals; set do_lower_case to true in its "
                "tokenizer_config.json (and lowercase in tokenizer.json)"
            )
        else:
            found.append(share + "much of the text is in capitals that the cased vocabulary lacks; use an uncased one")
    if report.tokens_per_word > _MANY_PIECES:
        found.append(
            f"a word takes {report.tokens_per_word:.1f} tokens on average: the vocabulary is of another language or "
            "field, or too small; train one with `bertworks vocab`"
        )
    if report.tokens < _FEW_USES * tokenizer.vocab_size:
        found.append(
            f"{report.tokens:,} tokens are few for a vocabulary of {tokenizer.vocab_size:,}: many tokens will hardly "
            f"be seen; a vocabulary of about {max(report.tokens // _FEW_USES, 1000):,} fits better"
        )
    return found


def _examples(words: dict[str, int]) -> str:
    return f" ({', '.join(words)})" if words else ""


def _duplicates_line(duplicates: Duplicates) -> str:
    about = "" if duplicates.looked_at == 1 else "about "
    line = f"{about}{duplicates.number:,} ({duplicates.share:.1%})"
    shown = [f"{count:,} x {text[:_SHOWN_CHARACTERS]!r}" for text, count in list(duplicates.most_repeated.items())[:3]]
    return line + (f": {', '.join(shown)}" if shown else "")


def _histogram(title: str, counts: dict[str, int]) -> list[str]:
    width, most, total = max(map(len, counts)), max(counts.values()), sum(counts.values())
    rows = [
        f"  {name:>{width}}  {'#' * -(-count * _BAR // most):{_BAR}}  {count / total:6.1%}"
        for name, count in counts.items()
    ]
    return [title, *(row.rstrip() for row in rows)]
