"""Documents -> numbered parts -> a file of token ids per part -> the data files of a shards folder, in bounded memory.

Parts make `shards` parallel and resumable. The content of a part depends on the documents only, not on the number of
workers, and the file of a part holds the sha256 of its text. Documents are completed when parts are joined: a document
may continue in the next part, empty documents are dropped, and a corpus of one document is divided into sections.
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


class Part(NamedTuple):
    """A section of the corpus."""

    number: int
    pieces: list[bytes]  # UTF-8
    begins: list[bool]  # whether piece i begins a document or continues one
    characters: int
    sha256: str  # of all of the above


@dataclass
class PartCounts:
    """The first line of the file of a part, as JSON."""

    input_sha256: str
    tokenizer_sha256: str
    characters: int
    continues: bool  # whether fragment 0 continues the last document of the previous part
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
    """Group documents, in order, into parts of at least `part_characters`; the last may be shorter."""
    number, characters = 0, 0
    pieces: list[bytes] = []
    begins: list[bool] = []
    for document in documents:
        for i, piece in enumerate(cut_text(document, PIECE_CHARACTERS, "\n", " ")):
            pieces.append(piece.encode("utf-8", "surrogatepass"))
            begins.append(i == 0)
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
    """Write the parts that do not exist yet; yield the counts of all, in order.

    Args:
        workers: processes; None: one per CPU; 1: this process only.

    Raises:
        BertworksError: a worker was killed, or could not write. The parts written before are kept.
    """
    results = in_processes(
        "bertworks.text.shard_writer:PartWriter",
        [str(tokenizer_folder), str(folder)],
        map(tuple, parts),
        workers,
        ended="a worker process ended while it made part {number} ({how})",
        hint="run the same command again: it resumes after the finished parts; fewer --workers need less memory",
    )
    with closing(results):
        yield from (PartCounts(**counts) for counts in results)


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

    def __call__(self, part: tuple[Any, ...]) -> dict[str, Any]:
        """Write a part unless a complete file exists. Part and counts are plain values, as `workers` needs them."""
        named = Part(*part)
        return asdict(find_part(self._folder, named, self._tokenizer.sha256) or self.write(named))

    def write(self, part: Part) -> PartCounts:
        """Split, encode and write one part."""
        counts = PartCounts(part.sha256, self._tokenizer.sha256, part.characters, continues=not part.begins[0])
        sentences, fragments = _sentences(part)
        tokens: list[NDArray[Any]] = []
        lengths: list[NDArray[np.int64]] = []
        words: Counter[str] = Counter()
        for batch in chunk_by_size(sentences, _BATCH_CHARACTERS):
            ids, lengths_of_batch = self._encode(batch)
            tokens.append(ids.astype(self._dtype))
            lengths.append(lengths_of_batch)
            self._count_unknown(batch, ids, lengths_of_batch, counts, words)
        all_lengths = np.concatenate([np.zeros(0, np.int64), *lengths])
        # A sentence of control characters only has no tokens and is left out.
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

    def _count_unknown(
        self, batch: list[str], ids: NDArray[Any], lengths: NDArray[np.int64], counts: PartCounts, words: Counter[str]
    ) -> None:
        """Count [UNK] tokens; collect the words that they stand for, in a few sentences."""
        sampled = _SAMPLED_SENTENCES if not counts.unknown_tokens else 0
        counts.unknown_tokens += int((ids == self._tokenizer.unk_id).sum())
        if not sampled or not counts.unknown_tokens:
            return
        positions = np.flatnonzero(ids == self._tokenizer.unk_id)
        rows = np.unique(np.searchsorted(np.cumsum(lengths), positions, side="right"))[:sampled]
        unknown = self._tokenizer.unknown([batch[row][:_SAMPLED_CHARACTERS] for row in rows])
        words.update(word[:_WORD_CHARACTERS] for word in unknown)


def _sentences(part: Part) -> tuple[list[str], list[int]]:
    """All sentences of a part, and their number in each fragment."""
    sentences: list[str] = []
    fragments: list[int] = []
    for piece, begins in zip(part.pieces, part.begins):
        new = split_sentences(piece.decode("utf-8", "replace"))
        sentences += new
        if begins or not fragments:
            fragments.append(0)
        fragments[-1] += len(new)
    return sentences, fragments


def part_path(folder: Path, number: int) -> Path:
    """The file of a part. A folder holds a thousand, as larger folders are slow."""
    return folder / f"{number // 1000:04d}" / f"{number % 1000:03d}.part"


def _write_file(path: Path, counts: PartCounts, arrays: PartArrays) -> None:
    contents = [array.tobytes() for array in arrays]
    counts.payload_sha256 = hashlib.sha256(b"".join(contents)).hexdigest()
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(json.dumps(asdict(counts)).encode("ascii") + b"\n")
        file.writelines(contents)


def find_part(folder: Path, part: Part, tokenizer_sha256: str) -> PartCounts | None:
    """The counts of an existing file of this part, if it is complete and of the same text and tokenizer."""
    path = part_path(folder, part.number)
    if not path.is_file():
        return None
    with path.open("rb") as file:
        try:
            counts = PartCounts(**json.loads(file.readline()))
        except (ValueError, TypeError):
            return None
        same = (counts.input_sha256, counts.tokenizer_sha256) == (part.sha256, tokenizer_sha256)
        return counts if same and hashlib.sha256(file.read()).hexdigest() == counts.payload_sha256 else None


def read_part(folder: Path, number: int, counts: PartCounts, dtype: np.dtype[Any]) -> PartArrays:
    """The arrays of a complete part, mapped from its file."""
    content = np.memmap(part_path(folder, number), np.uint8, mode="r")
    sizes = counts.tokens * dtype.itemsize, counts.sentences * 4, counts.fragments * 4
    first, second, third = (len(content) - sum(sizes[i:]) for i in range(3))
    return PartArrays(
        np.frombuffer(content, dtype, counts.tokens, first),
        np.frombuffer(content, "<i4", counts.sentences, second),
        np.frombuffer(content, "<i4", counts.fragments, third),
    )


def join_parts(parts: Path, counts: Sequence[PartCounts], dtype: np.dtype[Any], folder: Path) -> dict[str, Any]:
    """Write the data files into `folder`, each atomically. Returns these fields of a manifest: `documents`,
    `empty_documents`, `sections` and `files`.

    Args:
        parts: the folder of the part files.
        counts: of part 0, 1, ...
    """

    def arrays() -> Iterator[tuple[PartCounts, PartArrays]]:
        for number, part in enumerate(counts):
            yield part, read_part(parts, number, part, dtype)

    sentences = sum(part.sentences for part in counts)
    non_empty = documents = sum(map(len, _document_sizes(arrays())))
    sections = documents == 1 and sentences > 1
    sizes = _document_sizes(arrays())
    if sections:
        # Next sentence prediction draws wrong sentences from other documents.
        documents = max(2, round(sentences / SECTION_SENTENCES))
        sizes = iter([(sentences + documents - 1 - np.arange(documents)) // documents])  # they differ by one at most
    _write_tokens(folder / "tokens.bin", (part.tokens for _, part in arrays()))
    write_npy(folder / "sentences.npy", _borders(part.lengths for _, part in arrays()))
    write_npy(folder / "documents.npy", _borders(sizes))
    files = {name: sha256(folder / name) for name in DATA_FILES}
    begun = sum(part.fragments - part.continues for part in counts)
    return {"documents": documents, "empty_documents": begun - non_empty, "sections": sections, "files": files}


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


def _write_tokens(path: Path, blocks: Iterable[NDArray[Any]]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        for block in blocks:
            file.write(block.tobytes())
