"""Documents -> numbered parts of bounded size -> one file of token ids per part -> one row of ids, in bounded memory.

This makes `shards` parallel and resumable. What is in a part depends on the documents alone, not on the number of
workers, and the file of a part holds the sha256 of its text. Documents are completed when parts are joined: those that
continue in the next part are one, empty ones are dropped, and a corpus of one document becomes sections.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.io.atomic_write import replacing, sha256, write_npy
from bertworks.io.workers import chunk_by_size, in_processes
from bertworks.text.segmentation import cut_text, split_sentences
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.word_cache import Arrays, WordCache, flat_arrays

PIECE_CHARACTERS = 1 << 18  # a longer document is cut at a line end or a space: a 100 MB line is no special case
SECTION_SENTENCES = 100
_BATCH_CHARACTERS = 1 << 19  # given to the tokenizer at once
_SAMPLED_SENTENCES = 16  # sentences with [UNK] whose words are looked at, per part
_LOOKED_AT = 1 << 12  # characters of such a sentence
_WORD_CHARACTERS = 40  # of a word kept as an example


class Part(NamedTuple):
    """A stretch of the corpus in reading order."""

    number: int
    pieces: list[bytes]  # UTF-8
    begins: list[bool]  # whether piece i begins a document; otherwise it continues the one before
    characters: int
    sha256: str  # of all of the above


@dataclass
class PartCounts:
    """What a part's file holds; its first line is this, as JSON."""

    input_sha256: str
    tokenizer_sha256: str
    characters: int
    continues: bool  # whether fragment 0 continues the last document of the part before
    tokens: int = 0
    sentences: int = 0
    fragments: int = 0  # documents, or parts of documents
    unknown_tokens: int = 0
    empty_sentences: int = 0
    unknown_words: dict[str, int] = field(default_factory=dict)  # from a sample
    payload_sha256: str = ""


class PartArrays(NamedTuple):
    tokens: NDArray[Any]  # uint16 or uint32 [tokens]
    lengths: NDArray[np.int32]  # tokens of each sentence [sentences]; none is 0
    fragments: NDArray[np.int32]  # sentences of each fragment [fragments]; may be 0


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id, little-endian on every machine."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def cut_into_parts(documents: Iterable[str], part_characters: int) -> Iterator[Part]:
    """Group documents, in order, into parts of at least `part_characters`; the last may be smaller."""
    number, characters = 0, 0
    pieces: list[bytes] = []
    begins: list[bool] = []
    for document in documents:
        for place, piece in enumerate(cut_text(document, PIECE_CHARACTERS, "\n", " ")):
            pieces.append(piece.encode("utf-8", "surrogatepass"))
            begins.append(place == 0)
            characters += len(piece)
            if characters >= part_characters:
                yield _part(number, pieces, begins, characters)
                number, pieces, begins, characters = number + 1, [], [], 0
    if pieces:
        yield _part(number, pieces, begins, characters)


def _part(number: int, pieces: list[bytes], begins: list[bool], characters: int) -> Part:
    digest = hashlib.sha256(json.dumps([begins, [len(piece) for piece in pieces]]).encode())
    for piece in pieces:
        digest.update(piece)
    return Part(number, pieces, begins, characters, digest.hexdigest())


def write_parts(
    parts: Iterable[Part], tokenizer_folder: Path, folder: Path, workers: int | None
) -> Generator[PartCounts, None, None]:
    """Write the parts that are not there yet and yield the counts of all, in order.

    Args:
        workers: processes; None: one per processor; 1: none but this one.

    Raises:
        BertworksError: a worker was killed, or could not write. The parts written so far stay and are found again.
    """
    made = in_processes(
        "bertworks.text.shard_writer:PartWriter",
        [str(tokenizer_folder), str(folder)],
        map(tuple, parts),
        workers,
        ended="a worker process ended while it made part {number} ({how})",
        hint="type the same again: it goes on with the parts that are written; fewer --workers need less memory",
    )
    with closing(made):
        for counts in made:
            yield PartCounts(**counts)


class PartWriter:
    """Turns parts into files. Make one in each process: it remembers words.

    Args:
        tokenizer_folder: a folder written by `Tokenizer.save`.
        folder: where part files go.
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

    def __call__(self, part: tuple[Any, ...]) -> dict[str, Any]:
        """The counts of a part, as plain values both (`workers`), written unless an earlier run left it whole."""
        found = Part(*part)
        return asdict(find_part(self._folder, found, self._tokenizer.sha256) or self.write(found))

    def write(self, part: Part) -> PartCounts:
        """Split, encode and write one part; atomically."""
        counts = PartCounts(part.sha256, self._tokenizer.sha256, part.characters, continues=not part.begins[0])
        sentences, fragments = _sentences(part)
        tokens: list[NDArray[Any]] = []
        lengths: list[NDArray[np.int64]] = []
        words: Counter[str] = Counter()
        for batch in chunk_by_size(sentences, _BATCH_CHARACTERS):
            ids, lengths_of_batch = self._encode(batch)
            tokens.append(ids.astype(self._dtype))
            lengths.append(lengths_of_batch)
            self._note_unknown(batch, ids, lengths_of_batch, counts, words)
        all_lengths = np.concatenate([np.zeros(0, np.int64), *lengths])
        # A sentence of control characters alone has no token: it is left out, and its document has one sentence less.
        owners = np.repeat(np.arange(len(fragments)), fragments)[all_lengths > 0]
        arrays = PartArrays(
            np.concatenate([np.zeros(0, self._dtype), *tokens]),
            all_lengths[all_lengths > 0].astype("<i4"),
            np.bincount(owners, minlength=len(fragments)).astype("<i4"),
        )
        counts.tokens, counts.sentences, counts.fragments = map(len, arrays)
        counts.empty_sentences = len(all_lengths) - counts.sentences
        counts.unknown_words = dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:100])
        _write_file(part_path(self._folder, part.number), counts, arrays)
        return counts

    def _note_unknown(
        self, batch: list[str], ids: NDArray[Any], lengths: NDArray[np.int64], counts: PartCounts, words: Counter[str]
    ) -> None:
        """Count the [UNK]s, and in a few sentences find the words that they stand for."""
        sampled = _SAMPLED_SENTENCES if not counts.unknown_tokens else 0
        counts.unknown_tokens += int((ids == self._tokenizer.unk_id).sum())
        if not sampled or not counts.unknown_tokens:
            return
        rows = _rows_with(self._tokenizer.unk_id, ids, lengths)[:sampled]
        found = self._tokenizer.unknown([batch[row][:_LOOKED_AT] for row in rows])
        words.update(word[:_WORD_CHARACTERS] for word in found)


def _rows_with(number: int, ids: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows, of `lengths` ids each, in which `number` occurs."""
    return np.unique(np.searchsorted(np.cumsum(lengths), np.flatnonzero(ids == number), side="right"))


def _sentences(part: Part) -> tuple[list[str], list[int]]:
    """All sentences of a part, and how many each document, or part of one, has."""
    sentences: list[str] = []
    fragments: list[int] = []
    for piece, begins in zip(part.pieces, part.begins):
        found = split_sentences(piece.decode("utf-8", "replace"))
        sentences += found
        if begins or not fragments:
            fragments.append(0)
        fragments[-1] += len(found)
    return sentences, fragments


def part_path(folder: Path, number: int) -> Path:
    """Where part `number` stands; a thousand to a folder, so that no folder becomes slow."""
    return folder / f"{number // 1000:04d}" / f"{number % 1000:03d}.part"


def _write_file(path: Path, counts: PartCounts, arrays: PartArrays) -> None:
    contents = [array.tobytes() for array in arrays]
    counts.payload_sha256 = hashlib.sha256(b"".join(contents)).hexdigest()
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(json.dumps(asdict(counts)).encode("ascii") + b"\n")
        file.writelines(contents)


def find_part(folder: Path, part: Part, tokenizer_sha256: str) -> PartCounts | None:
    """What the file of this part holds, if an earlier run left a whole one made from the same text and tokenizer."""
    path = part_path(folder, part.number)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        try:
            counts = PartCounts(**json.loads(file.readline()))
        except (ValueError, TypeError):
            return None
        right = (counts.input_sha256, counts.tokenizer_sha256) == (part.sha256, tokenizer_sha256)
        return counts if right and hashlib.sha256(file.read()).hexdigest() == counts.payload_sha256 else None


def read_part(folder: Path, number: int, counts: PartCounts, dtype: np.dtype[Any]) -> PartArrays:
    """The arrays of a part that `find_part` or `PartWriter.write` vouches for, mapped from its file."""
    content = np.memmap(part_path(folder, number), np.uint8, mode="r")
    sizes = counts.tokens * dtype.itemsize, counts.sentences * 4, counts.fragments * 4
    first, second, third = (len(content) - sum(sizes[i:]) for i in range(3))
    return PartArrays(
        np.frombuffer(content, dtype, counts.tokens, first),
        np.frombuffer(content, "<i4", counts.sentences, second),
        np.frombuffer(content, "<i4", counts.fragments, third),
    )


# --- part files -> the three files of a shards folder, as streams -----------------------------------------------------


def join_parts(parts: Path, counts: Sequence[PartCounts], dtype: np.dtype[Any], folder: Path) -> dict[str, Any]:
    """Write tokens.bin, sentences.npy and documents.npy into `folder`, each atomically. Returns what a manifest says of
    them: `documents`, `empty_documents`, `sections` (whether the documents are sections of the only one), and `files`,
    the sha256 by name.

    Args:
        parts: the folder of the part files.
        counts: of part 0, 1, ...
    """

    def arrays() -> Iterator[tuple[PartCounts, PartArrays]]:
        for number, part in enumerate(counts):
            yield part, read_part(parts, number, part, dtype)

    sentences = sum(part.sentences for part in counts)
    found = documents = sum(map(len, _document_sizes(arrays())))
    sections = documents == 1 and sentences > 1
    sizes = _document_sizes(arrays())
    if sections:
        # Next sentence prediction needs another document to draw a wrong sentence from.
        documents = max(2, round(sentences / SECTION_SENTENCES))
        sizes = iter([(sentences + documents - 1 - np.arange(documents)) // documents])  # they differ by one at most
    _write_tokens(folder / "tokens.bin", (part.tokens for _, part in arrays()))
    write_npy(folder / "sentences.npy", _borders(part.lengths for _, part in arrays()))
    write_npy(folder / "documents.npy", _borders(sizes))
    files = {name: sha256(folder / name) for name in ("tokens.bin", "sentences.npy", "documents.npy")}
    begun = sum(part.fragments - part.continues for part in counts)
    return {"documents": documents, "empty_documents": begun - found, "sections": sections, "files": files}


def _document_sizes(parts: Iterable[tuple[PartCounts, PartArrays]]) -> Iterator[NDArray[np.int64]]:
    """Sentences of each document, block by block; a document may go on from part to part, and empty ones drop out."""
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


def _write_tokens(path: Path, blocks: Iterable[NDArray[Any]]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        for block in blocks:
            file.write(block.tobytes())
