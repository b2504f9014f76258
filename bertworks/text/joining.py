"""Part files -> the three files of a shards folder, as streams: memory does not grow with the corpus.

It decides what a document is at last: those that go on from part to part are joined, empty ones drop out, and a corpus
of one document becomes sections.
"""

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.text.atomic import replacing
from bertworks.text.parts import PartArrays, PartCounts, read_part

SECTION_SENTENCES = 100


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
    streams = {
        "tokens.bin": (part.tokens.tobytes() for _, part in arrays()),
        "sentences.npy": _index_bytes(sentences, (part.lengths.astype(np.int64) for _, part in arrays())),
        "documents.npy": _index_bytes(documents, sizes),
    }
    files = {name: _write_stream(folder / name, blocks) for name, blocks in streams.items()}
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


def _index_bytes(count: int, sizes: Iterable[NDArray[np.int64]]) -> Iterator[bytes]:
    """The bytes of an .npy file of int64 [count+1]: 0 and the running sums of `sizes`."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": (count + 1,)})
    yield header.getvalue()
    end = 0
    yield np.zeros(1, "<i8").tobytes()
    for block in sizes:
        if len(block):
            ends = end + np.cumsum(block)
            end = int(ends[-1])
            yield ends.astype("<i8").tobytes()


def _write_stream(path: Path, blocks: Iterable[bytes]) -> str:
    """Write blocks to a file, atomically; return their sha256."""
    digest = hashlib.sha256()
    with replacing(path) as temporary, temporary.open("wb") as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
    return digest.hexdigest()
