"""Documents -> numbered parts -> a file of token ids per part -> the data files of a shards folder, in bounded memory.

Parts make `shards` parallel and resumable. The content of a part depends on the documents only, not on the number of
workers, and the file of a part holds the sha256 of its text. Documents are completed when parts are joined: a document
may continue in the next part, and empty documents are dropped.

The file of a part is an .npz file, sealed with the sha256 of the text and of the tokenizer:

    tokens     uint16 or uint32 [tokens]
    lengths    int32 [sentences]: tokens of each sentence; none is 0
    fragments  int32 [1 + documents that begin here]: sentences that continue the last document of the part before, then
               sentences of each document; may be 0
    counts     JSON: figures for the manifest
"""

import json
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.io.atomic_write import replacing, write_npy
from bertworks.io.binary_files import is_sealed, json_sha256, sealing
from bertworks.io.processes import chunk_by_size, in_processes
from bertworks.text.segmentation import cut_text, split_sentences
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.word_cache import WordCache, flat_arrays

DATA_FILES = ("tokens.bin", "sentences.npy", "documents.npy")
PIECE_CHARACTERS = 1 << 18  # longer documents are divided at a line end or a space, so that lines may have any length
_BATCH_CHARACTERS = 1 << 19  # given to the tokenizer at a time
_SAMPLED_SENTENCES = 16  # per part: sentences with [UNK] whose unknown words are kept as examples
_SAMPLED_CHARACTERS = 1 << 12  # of such a sentence
_WORD_CHARACTERS = 40  # of a word kept as an example
_UNKNOWN_WORDS = 100  # of these, per part
_LISTED_UNKNOWN_WORDS = 1000  # in the manifest
Piece = tuple[bool, str]  # whether it begins a document, or continues one; its text
Part = tuple[int, list[Piece]]  # its number


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
    return enumerate(chunk_by_size(pieces, part_characters, lambda piece: len(piece[1])))


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
        parts,
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
        self._tokenizer = tokenizer = Tokenizer.load(tokenizer_folder)
        serialized = (Path(tokenizer_folder) / "tokenizer.json").read_text(encoding="utf-8")
        is_exact = WordCache.is_exact(serialized)
        self._encode = WordCache(serialized).encode if is_exact else lambda texts: flat_arrays(tokenizer.ids(texts))
        self._folder = Path(folder)

    def __call__(self, part: Part) -> int:
        """Write a part unless a complete file exists. Returns its characters."""
        number, pieces = part
        path, key = part_path(self._folder, number), self.key(pieces)
        if not is_sealed(path, key):
            arrays = self.encode(pieces)
            with sealing(path, key) as temporary, temporary.open("wb") as file:
                np.savez(file, **arrays)
        return sum(len(text) for _, text in pieces)

    def key(self, pieces: list[Piece]) -> str:
        return json_sha256({"tokenizer": self._tokenizer.sha256, "pieces": pieces})

    def encode(self, pieces: list[Piece]) -> dict[str, Any]:
        """Split and encode the text of a part."""
        split = [split_sentences(text) for _, text in pieces]
        sentences = list(chain.from_iterable(split))
        documents = np.cumsum([begins for begins, _ in pieces])  # the number of the document of each piece
        batches = [flat_arrays([]), *map(self._encode, chunk_by_size(sentences, _BATCH_CHARACTERS, len))]
        tokens, lengths = (np.concatenate(arrays) for arrays in zip(*batches))
        unknown = np.flatnonzero(tokens == self._tokenizer.unk_id)
        with_unknown = np.unique(np.searchsorted(np.cumsum(lengths), unknown, side="right"))[:_SAMPLED_SENTENCES]
        sample = self._tokenizer.unknown([sentences[row][:_SAMPLED_CHARACTERS] for row in with_unknown])
        unknown_words = Counter(word[:_WORD_CHARACTERS] for word in sample)
        # A sentence of control characters only has no tokens and is left out.
        owners = np.repeat(documents, list(map(len, split)))[lengths > 0]
        counts = {
            "sentences": len(owners),
            "tokens": len(tokens),
            "characters": sum(len(text) for _, text in pieces),
            "unknown_tokens": len(unknown),
            "empty_documents": int(documents[-1]),  # less those with sentences, when parts are joined
            "empty_sentences": len(lengths) - len(owners),
            "unknown_words": _most_frequent(unknown_words, _UNKNOWN_WORDS),
        }
        return {
            "tokens": tokens.astype(token_dtype(self._tokenizer.vocab_size)),
            "lengths": lengths[lengths > 0].astype("<i4"),
            "fragments": np.bincount(owners, minlength=documents[-1] + 1).astype("<i4"),
            "counts": np.array(json.dumps(counts)),
        }


def part_path(folder: Path, number: int) -> Path:
    """The file of a part. A folder holds a thousand, as larger folders are slow."""
    return folder / f"{number // 1000:04d}" / f"{number % 1000:03d}.part"


def join_parts(parts: Path, number: int, folder: Path) -> dict[str, Any]:
    """Write the data files into `folder`, each atomically. Returns the counts of a manifest.

    Args:
        parts: the folder of the part files.
        number: of parts.
    """

    def arrays(name: str) -> Iterator[NDArray[Any]]:
        for index in range(number):
            with np.load(part_path(parts, index)) as part:
                yield part[name]

    totals: Counter[str] = Counter()
    unknown_words: Counter[str] = Counter()
    for counts in arrays("counts"):
        figures = json.loads(str(counts))
        unknown_words.update(figures.pop("unknown_words"))
        totals.update(figures)
    documents = sum(map(len, _document_sizes(arrays("fragments"))))
    totals["empty_documents"] -= documents
    with replacing(folder / "tokens.bin") as temporary, temporary.open("wb") as file:
        for tokens in arrays("tokens"):
            file.write(tokens.tobytes())
    write_npy(folder / "sentences.npy", _borders(arrays("lengths")))
    write_npy(folder / "documents.npy", _borders(_document_sizes(arrays("fragments"))))
    words = _most_frequent(unknown_words, _LISTED_UNKNOWN_WORDS)
    return {**totals, "documents": documents, "sections": documents == 1, "unknown_words": words}


def _document_sizes(parts: Iterable[NDArray[np.int32]]) -> Iterator[NDArray[np.int64]]:
    """Sentences of each document, one block per part. A document may continue in the next; empty ones are dropped."""
    unfinished = np.zeros(1, np.int64)
    for fragments in parts:
        sizes = fragments.astype(np.int64)
        sizes[:1] += unfinished
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
