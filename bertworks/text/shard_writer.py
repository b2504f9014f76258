"""Documents -> numbered parts -> a file of token ids per part -> the data files of a shards folder, in bounded memory.

Parts make `shards` parallel and resumable. The content of a part depends on the documents only, not on the number of
workers, and the file of a part holds the sha256 of its text. Documents are completed when parts are joined: a document
may continue in the next part, empty documents are dropped, and a corpus of one document is divided into sections.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.io.atomic_write import replacing, write_bytes, write_npy
from bertworks.io.processes import chunk_by_size, in_processes
from bertworks.text.segmentation import cut_text, split_sentences
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.word_cache import Arrays, WordCache, flat_arrays

DATA_FILES = ("tokens.bin", "sentences.npy", "documents.npy")
PIECE_CHARACTERS = 1 << 18  # longer documents are divided at a line end or a space, so that lines may have any length
SECTION_SENTENCES = 100
_BATCH_CHARACTERS = 1 << 19  # given to the tokenizer at a time
_SAMPLED_SENTENCES = 16  # per part: sentences with [UNK] whose unknown words are kept as examples
_SAMPLED_CHARACTERS = 1 << 12  # of such a sentence
_WORD_CHARACTERS = 40  # of a word kept as an example
_UNKNOWN_WORDS = 100  # of these, per part
_LISTED_UNKNOWN_WORDS = 1000  # in the manifest
_SUMMED = ("sentences", "tokens", "characters", "unknown_tokens", "empty_sentences")


class Part(NamedTuple):
    """A section of the corpus."""

    number: int
    pieces: list[tuple[bool, str]]  # whether it begins a document, or continues one; its text
    sha256: str  # of the pieces


@dataclass
class PartCounts:
    """The first line of the file of a part, as JSON."""

    input_sha256: str
    tokenizer_sha256: str
    payload_sha256: str  # of the arrays
    continues: bool  # whether fragment 0 continues the last document of the previous part
    characters: int
    tokens: int
    sentences: int
    fragments: int  # documents, or parts of documents
    unknown_tokens: int
    empty_sentences: int
    unknown_words: dict[str, int]  # from a sample


class PartArrays(NamedTuple):
    tokens: NDArray[Any]  # uint16 or uint32 [tokens]
    lengths: NDArray[np.int32]  # tokens of each sentence [sentences]; none is 0
    fragments: NDArray[np.int32]  # sentences of each fragment [fragments]; may be 0


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id, little-endian on every machine."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _most_frequent(words: Counter[str], number: int) -> dict[str, int]:
    return dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:number])


def cut_into_parts(documents: Iterable[str], part_characters: int) -> Iterator[Part]:
    """Group documents, in order, into parts of at least `part_characters`; the last may be shorter."""
    pieces = (
        (index == 0, piece)
        for document in documents
        for index, piece in enumerate(cut_text(document, PIECE_CHARACTERS, "\n", " "))
    )
    for number, chunk in enumerate(chunk_by_size(pieces, part_characters, lambda piece: len(piece[1]))):
        content = json.dumps(chunk, ensure_ascii=False).encode("utf-8", "surrogatepass")
        yield Part(number, chunk, hashlib.sha256(content).hexdigest())


def write_parts(
    parts: Iterable[Part], tokenizer_folder: Path, folder: Path, workers: int | None
) -> Generator[int, None, None]:
    """Write the parts that do not exist yet; yield the characters of each, in order.

    Args:
        workers: processes; None: one per CPU; 1: this process only.

    Raises:
        BertworksError: a worker was killed, or could not write. The parts written before are kept.
    """
    return in_processes(
        "bertworks.text.shard_writer:PartWriter",
        [str(tokenizer_folder), str(folder)],
        map(tuple, parts),
        workers,
        ended="a worker process ended while it made part {number} ({how})",
        hint="run the same command again: it resumes after the finished parts; fewer --workers need less memory",
    )


class PartWriter:
    """Writes parts as files. One per process: it caches words.

    Args:
        tokenizer_folder: a folder written by `Tokenizer.save`.
        folder: of the part files.
    """

    def __init__(self, tokenizer_folder: str | Path, folder: str | Path):
        tokenizer = Tokenizer.load(tokenizer_folder)
        serialized = (Path(tokenizer_folder) / "tokenizer.json").read_text(encoding="utf-8")
        self._encode: Callable[[list[str]], Arrays] = (
            WordCache(serialized).encode
            if WordCache.is_exact(serialized)
            else lambda sentences: flat_arrays(tokenizer.ids(sentences))
        )
        self._tokenizer = tokenizer
        self._dtype = token_dtype(tokenizer.vocab_size)
        self._folder = Path(folder)

    def __call__(self, part: tuple[Any, ...]) -> int:
        """Write a part unless a complete file exists. Returns its characters. Parts are plain values for a process."""
        named = Part(*part)
        return (find_part(self._folder, named, self._tokenizer.sha256) or self.write(named)).characters

    def write(self, part: Part) -> PartCounts:
        """Split, encode and write one part."""
        sentences, fragments = _sentences(part)
        tokens, lengths = [np.zeros(0, self._dtype)], [np.zeros(0, np.int64)]
        unknown_tokens, unknown_words = 0, dict[str, int]()
        for batch in chunk_by_size(sentences, _BATCH_CHARACTERS, len):
            ids, batch_lengths = self._encode(batch)
            tokens.append(ids.astype(self._dtype))
            lengths.append(batch_lengths)
            unknown = np.flatnonzero(ids == self._tokenizer.unk_id)
            if len(unknown) and not unknown_tokens:
                rows = np.unique(np.searchsorted(np.cumsum(batch_lengths), unknown, side="right"))
                unknown_words = self._unknown_words([batch[row] for row in rows[:_SAMPLED_SENTENCES]])
            unknown_tokens += len(unknown)
        all_lengths = np.concatenate(lengths)
        # A sentence of control characters only has no tokens and is left out.
        owners = np.repeat(np.arange(len(fragments)), fragments)[all_lengths > 0]
        arrays = PartArrays(
            np.concatenate(tokens),
            all_lengths[all_lengths > 0].astype("<i4"),
            np.bincount(owners, minlength=len(fragments)).astype("<i4"),
        )
        payload = b"".join(array.tobytes() for array in arrays)
        counts = PartCounts(
            input_sha256=part.sha256,
            tokenizer_sha256=self._tokenizer.sha256,
            payload_sha256=hashlib.sha256(payload).hexdigest(),
            continues=not part.pieces[0][0],
            characters=sum(len(text) for _, text in part.pieces),
            tokens=len(arrays.tokens),
            sentences=len(arrays.lengths),
            fragments=len(fragments),
            unknown_tokens=unknown_tokens,
            empty_sentences=len(all_lengths) - len(arrays.lengths),
            unknown_words=unknown_words,
        )
        write_bytes(part_path(self._folder, part.number), json.dumps(asdict(counts)).encode() + b"\n" + payload)
        return counts

    def _unknown_words(self, sentences: list[str]) -> dict[str, int]:
        """The words that [UNK] stands for."""
        words = self._tokenizer.unknown([sentence[:_SAMPLED_CHARACTERS] for sentence in sentences])
        return _most_frequent(Counter(word[:_WORD_CHARACTERS] for word in words), _UNKNOWN_WORDS)


def _sentences(part: Part) -> tuple[list[str], list[int]]:
    """All sentences of a part, and their number in each fragment."""
    sentences: list[str] = []
    fragments: list[int] = []
    for begins, text in part.pieces:
        new = split_sentences(text)
        sentences += new
        if begins or not fragments:
            fragments.append(0)
        fragments[-1] += len(new)
    return sentences, fragments


def part_path(folder: Path, number: int) -> Path:
    """The file of a part. A folder holds a thousand, as larger folders are slow."""
    return folder / f"{number // 1000:04d}" / f"{number % 1000:03d}.part"


def find_part(folder: Path, part: Part, tokenizer_sha256: str) -> PartCounts | None:
    """The counts of an existing file of this part, if it is complete and of the same text and tokenizer."""
    try:
        header, _, payload = part_path(folder, part.number).read_bytes().partition(b"\n")
        counts = PartCounts(**json.loads(header))
    except (OSError, ValueError, TypeError):
        return None
    found = counts.input_sha256, counts.tokenizer_sha256, counts.payload_sha256
    return counts if found == (part.sha256, tokenizer_sha256, hashlib.sha256(payload).hexdigest()) else None


def read_parts(folder: Path, number: int, dtype: np.dtype[Any]) -> Iterator[tuple[PartCounts, PartArrays]]:
    """The content of complete parts, the first `number`."""
    for index in range(number):
        with part_path(folder, index).open("rb") as file:
            counts = PartCounts(**json.loads(file.readline()))
            tokens = np.fromfile(file, dtype, counts.tokens)
            lengths = np.fromfile(file, "<i4", counts.sentences)
            yield counts, PartArrays(tokens, lengths, np.fromfile(file, "<i4", counts.fragments))


def join_parts(parts: Path, number: int, dtype: np.dtype[Any], folder: Path) -> dict[str, Any]:
    """Write the data files into `folder`, each atomically. Returns the counts of a manifest.

    Args:
        parts: the folder of the part files.
        number: of parts.
    """

    def arrays() -> Iterator[tuple[PartCounts, PartArrays]]:
        return read_parts(parts, number, dtype)

    totals: Counter[str] = Counter()
    unknown_words: Counter[str] = Counter()
    for part, _ in arrays():
        totals.update({name: getattr(part, name) for name in _SUMMED})
        totals["empty_documents"] += part.fragments - part.continues
        unknown_words.update(part.unknown_words)
    sentences = totals["sentences"]
    documents = sum(map(len, _document_sizes(arrays())))
    totals["empty_documents"] -= documents
    sizes = _document_sizes(arrays())
    sections = documents == 1 and sentences > 1
    if sections:
        # Next sentence prediction draws wrong sentences from other documents.
        documents = max(2, round(sentences / SECTION_SENTENCES))
        sizes = iter([(sentences + documents - 1 - np.arange(documents)) // documents])  # they differ by one at most
    with replacing(folder / "tokens.bin") as temporary, temporary.open("wb") as file:
        for _, content in arrays():
            file.write(content.tokens.tobytes())
    write_npy(folder / "sentences.npy", _borders(content.lengths for _, content in arrays()))
    write_npy(folder / "documents.npy", _borders(sizes))
    words = _most_frequent(unknown_words, _LISTED_UNKNOWN_WORDS)
    return {**totals, "documents": documents, "sections": sections, "unknown_words": words}


def _document_sizes(parts: Iterable[tuple[PartCounts, PartArrays]]) -> Iterator[NDArray[np.int64]]:
    """Sentences of each document, one block per part. A document may continue in the next; empty ones are dropped."""
    unfinished = np.zeros(1, np.int64)
    for counts, arrays in parts:
        sizes = arrays.fragments.astype(np.int64)
        if counts.continues:
            sizes[0] += unfinished[0]
        else:
            sizes = np.concatenate([unfinished, sizes])
        unfinished = sizes[-1:]
        yield sizes[:-1][sizes[:-1] > 0]
    yield unfinished[unfinished > 0]


def _borders(sizes: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.int64]]:
    """int64, block by block: 0 and the running sums of the sizes."""
    end = np.zeros(1, "<i8")
    yield end
    for block in sizes:
        if len(block):
            ends = end + np.cumsum(block, dtype="<i8")
            end = ends[-1:]
            yield ends
