"""An index on disk.

- segments, which are written once, and a manifest that names them and the deleted rows. A change is a new manifest,
  renamed into place at the end: an interrupted change leaves the index as it was.
- an optional HNSW graph of the vectors (Malkov and Yashunin 2018) by faiss: approximate search
- the documents and vectors, read by place, added and deleted by one process at a time
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.checkpoints.storage import read_json, read_tensors, write_tensors
from bertworks.datasets.writer import as_json
from bertworks.errors import BertworksError, UsageError, optional_import
from bertworks.io.atomic_write import folder_lock, remove_leftovers, replacing, write_text
from bertworks.retrieval.ranking import Postings, hash_of, postings

MANIFEST, FORMAT = "index.json", 1
NAMED = "named:"  # before the fingerprint of a source whose rows have names
_DAMAGED = "make the index again"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All that an index is.

    model: as it was named. fingerprint: all that its vectors depend on (`Embedder.fingerprint`).
    segments: name -> base64 of a bit for each row, 1 where it is deleted.
    sources: files that were read into it: fingerprint -> how many rows were taken, and whether these were all.
    next_segment, next_row: numbers that were never used.
    neighbours: the segments, the first ones, of whose vectors there is a graph (`neighbours`).
    """

    model: str
    fingerprint: Mapping[str, Any]
    dimension: int
    segments: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, tuple[int, bool]] = field(default_factory=dict)
    next_segment: int = 1
    next_row: int = 1
    neighbours: Sequence[str] = ()


def drop_named_sources(sources: Mapping[str, tuple[int, bool]]) -> dict[str, tuple[int, bool]]:
    """Those that stay read when documents were replaced or deleted: of others, whose rows have names, some may be gone.
    To read these again adds nothing twice."""
    return {name: state for name, state in sources.items() if not name.startswith(NAMED)}


class Segment:
    """Some rows of an index: `vectors` float32 [n, dimension] of length 1, `keys` int64 [n] (`hash_of` their ids),
    `postings` of their texts, `alive` bool [n], `deleted` as the manifest has it."""

    def __init__(self, folder: Path, name: str, deleted: str, dimension: int):
        self.deleted, self._path = deleted, folder / f"{name}.jsonl"
        path = folder / f"{name}.safetensors"
        tensors = {key: tensor.numpy() for key, tensor in read_tensors(path).items()}
        try:
            # Mapped, as the tensors are: what is open stays readable when another process compacts the index.
            self._lines = np.memmap(self._path, np.uint8, "r")
            self.vectors, self.keys, self._offsets = (tensors[key] for key in ("vectors", "keys", "offsets"))
            self.postings = Postings(**{key: tensors[f"postings.{key}"] for key in Postings._fields})
            n = len(self.keys)
            bits = np.unpackbits(np.frombuffer(base64.b64decode(deleted), np.uint8))
            self.alive = ~bits[:n].astype(bool) if deleted else np.ones(n, bool)
            whole = self.vectors.shape == (n, dimension) and len(self.alive) == n and self._offsets.shape == (n + 1,)
            whole = whole and len(self.postings.lengths) == n and len(self.postings.texts) == len(self.postings.counts)
            whole = whole and len(self.postings.starts) == len(self.postings.words) + 1
            kinds = {self.vectors.dtype.char, self.keys.dtype.char, self._offsets.dtype.char}
            whole = whole and kinds == {"f", "l"} and {one.dtype.kind for one in self.postings} == {"i"}
        except (OSError, KeyError, TypeError, ValueError):
            whole = False
        if not whole:
            raise BertworksError("this is no segment of such an index", where=str(path), hint=_DAMAGED)

    def __len__(self) -> int:
        return len(self.keys)

    def without(self, keys: NDArray[np.int64]) -> tuple[str, int]:
        """What the manifest says when these are deleted as well, and how many that are."""
        gone = self.alive & np.isin(self.keys, keys)
        return base64.b64encode(np.packbits(~self.alive | gone).tobytes()).decode(), int(gone.sum())

    def rows(self, numbers: Sequence[int] | NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """What these rows hold."""
        for number in numbers:
            line = self._lines[self._offsets[number] : self._offsets[number + 1]].tobytes()
            try:
                row = json.loads(line)
                row["id"], row["text"], row["fields"]
            except (ValueError, KeyError, TypeError):
                raise BertworksError(f"row {number} is damaged", where=str(self._path), hint=_DAMAGED) from None
            yield row


def write_segment(
    folder: Path,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    vectors: NDArray[np.float32],
    keys: NDArray[np.int64],
    words: Postings,
) -> None:
    """Writes a segment, which no manifest names yet. rows: with `id`, `text` and `fields`."""
    lines = [f"{as_json(row)}\n".encode(errors="surrogatepass") for row in rows]
    with replacing(folder / f"{name}.jsonl") as temporary, temporary.open("wb") as file:
        file.writelines(lines)
    offsets = np.cumsum([0, *map(len, lines)], dtype=np.int64)
    arrays = {"vectors": vectors, "keys": keys, "offsets": offsets}
    arrays |= {f"postings.{key}": value for key, value in words._asdict().items()}
    with replacing(folder / f"{name}.safetensors") as temporary:
        write_tensors(temporary, {key: torch.from_numpy(value) for key, value in arrays.items()}, {})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index.

    Raises:
        BertworksError: there is none, or one that makes no sense.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise BertworksError("there is no index here", where=str(folder), hint=f"bertworks index DOCUMENTS -o {folder}")
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise BertworksError("an index of another version", where=str(path), hint=_DAMAGED)
    try:
        found = Manifest(**content)
        strange = [name for name in found.segments if not name.isascii() or not name.replace("-", "").isalnum()]
        kinds = all(type(number) is int for number in (found.dimension, found.next_row, found.next_segment))
        if strange or not kinds or not isinstance(found.model, str) or not isinstance(found.segments, dict):
            raise ValueError
        if list(found.segments)[: len(found.neighbours)] != list(found.neighbours):
            raise ValueError
        sources = {name: (int(rows), bool(whole)) for name, (rows, whole) in found.sources.items()}
        return replace(found, fingerprint=dict(found.fingerprint), sources=sources)
    except (TypeError, ValueError, AttributeError):
        raise BertworksError("the manifest of the index makes no sense", where=str(path), hint=_DAMAGED) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """From now on the index is this."""
    write_text(folder / MANIFEST, json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1) + "\n")


def writing(folder: Path) -> AbstractContextManager[None]:
    """Hold the index for this process while it writes.

    Raises:
        UsageError: it is a file.
        BertworksError: another process writes to it.
    """
    return folder_lock(folder, "another process writes to this index", "wait for it")


def remove_strays(folder: Path, manifest: Manifest) -> None:
    """Deletes segments that the manifest does not name, and what killed processes left half-written."""
    remove_leftovers(folder)
    for path in folder.glob("segment-*"):
        if path.stem not in manifest.segments:
            path.unlink()


HNSW_FILE = "neighbours.faiss"
_LINKS, _WIDTH = 32, 128  # of each vector; the least number of candidates that are kept on the way


class Neighbours:
    """The graph that `write_neighbours` wrote in a folder, of `count` vectors.

    Raises:
        BertworksError: no such file, or one of other vectors; faiss is not installed.
    """

    def __init__(self, folder: Path, count: int, dimension: int):
        faiss, path = _faiss(), folder / HNSW_FILE
        try:
            found = faiss.read_index(str(path)) if path.is_file() else None
        except RuntimeError:
            found = None
        if not isinstance(found, faiss.IndexHNSWFlat) or (found.ntotal, found.d) != (count, dimension):
            hint = f"make it again: bertworks index -o {folder} --approximate"
            raise BertworksError("this is no graph of these documents", where=str(path), hint=hint)
        self._graph: Any = found

    def __call__(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products and numbers [queries, k] of the nearest vectors; -1 where there are fewer."""
        self._graph.hnsw.efSearch = max(_WIDTH, k)
        return self._graph.search(queries, k)  # type: ignore[no-any-return]


def write_neighbours(folder: Path, vectors: Iterable[NDArray[np.float32]], dimension: int) -> None:
    """Writes the graph of all these vectors, which holds them as well.

    Raises:
        BertworksError: faiss is not installed; the disk is full.
    """
    faiss = _faiss()
    graph = faiss.IndexHNSWFlat(dimension, _LINKS, faiss.METRIC_INNER_PRODUCT)
    for part in vectors:
        graph.add(np.ascontiguousarray(part))
    with replacing(folder / HNSW_FILE) as temporary:
        faiss.write_index(graph, str(temporary))


def _faiss() -> Any:
    with optional_import("approximate search", '"bertworks[faiss]"'):
        import faiss
    return faiss


_ROWS = 1 << 16  # of a segment that is made of many


class Stored:
    """What another process adds is seen when the folder is opened again.

    Attributes:
        manifest: what the index says of itself.
        segments: by name, in the order of the documents.

    Raises:
        BertworksError: no index there, or a damaged one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.segments: dict[str, Segment] = {}
        self._walked: tuple[Sequence[str], Neighbours] | None = None
        manifest = read_manifest(folder)
        try:
            self._open(manifest)
        except BertworksError:
            if (now := read_manifest(folder)) == manifest:
                raise
            self._open(now)  # another process compacted it meanwhile

    def __len__(self) -> int:
        return sum(int(segment.alive.sum()) for segment in self.segments.values())

    @property
    def edges(self) -> list[int]:
        """Where the documents of each segment begin, deleted ones counted; and their number."""
        return np.cumsum([0, *map(len, self.segments.values())]).tolist()  # type: ignore[no-any-return]

    def rows(self, numbers: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """`id`, `text` and `fields` of documents by their place."""
        segments, edges = list(self.segments.values()), self.edges
        for number in numbers:
            segment = int(np.searchsorted(edges, number, side="right")) - 1
            yield from segments[segment].rows([int(number - edges[segment])])

    @property
    def graph(self) -> Neighbours:
        """That which `build_graph` made.

        Raises:
            UsageError: there is none.
            BertworksError: faiss is not installed.
        """
        covered = self.manifest.neighbours
        if not covered:
            hint = f"bertworks index -o {self.folder} --approximate"
            raise UsageError("there is no graph for approximate search", where=str(self.folder), hint=hint)
        if self._walked is None or self._walked[0] != covered:
            count = sum(len(self.segments[name]) for name in covered)
            self._walked = covered, Neighbours(self.folder, count, self.manifest.dimension)
        return self._walked[1]

    # --- changes

    @contextmanager
    def changing(self) -> Iterator[None]:
        """While this lasts the index is ours, and is what it is on disk; outside of it nothing may be changed."""
        with writing(self.folder):
            self._open(read_manifest(self.folder))
            remove_strays(self.folder, self.manifest)
            yield

    def add(
        self,
        rows: Sequence[dict[str, Any]],
        vectors: NDArray[np.float32],
        next_row: int,
        sources: Mapping[str, tuple[int, bool]] | None = None,
    ) -> int:
        """Adds documents, each with another id; how many with these ids there were, which are deleted.

        Args:
            next_row: what the manifest says from then on.
            sources: what it says besides of files that were read; others, if any was replaced, as `forgotten` has it.
        """
        segments, replaced = self._without([row["id"] for row in rows])
        before = drop_named_sources(self.manifest.sources) if replaced else self.manifest.sources
        manifest = replace(self.manifest, segments=segments, next_row=next_row, sources={**before, **(sources or {})})
        self._commit(self._written(manifest, rows, vectors))
        return replaced

    def note_sources(self, sources: Mapping[str, tuple[int, bool]]) -> None:
        """What the manifest says from then on of these files."""
        self._commit(replace(self.manifest, sources={**self.manifest.sources, **sources}))

    def delete(self, ids: Sequence[str]) -> int:
        """Deletes documents, as far as they are there, and says how many were."""
        segments, count = self._without(ids)
        sources = drop_named_sources(self.manifest.sources) if count else self.manifest.sources
        self._commit(replace(self.manifest, segments=segments, sources=sources))
        return count

    def compact(self) -> None:
        """Writes all anew, without what was deleted, in few segments."""
        manifest = replace(self.manifest, segments={}, neighbours=())
        rows: list[dict[str, Any]] = []
        vectors: list[NDArray[np.float32]] = []
        for segment in self.segments.values():
            rows += segment.rows(np.flatnonzero(segment.alive))
            vectors.append(segment.vectors[segment.alive])
            if len(rows) >= _ROWS:
                manifest, rows, vectors = self._written(manifest, rows, np.concatenate(vectors)), [], []
        if rows:
            manifest = self._written(manifest, rows, np.concatenate(vectors))
        self._commit(manifest)
        remove_strays(self.folder, manifest)
        (self.folder / HNSW_FILE).unlink(missing_ok=True)

    def build_graph(self) -> None:
        """Makes the graph of near vectors, of all documents that are there."""
        if not self.segments:
            raise UsageError("there are no documents yet", where=str(self.folder), hint="add some first")
        vectors = [segment.vectors for segment in self.segments.values()]
        write_neighbours(self.folder, vectors, self.manifest.dimension)
        self._commit(replace(self.manifest, neighbours=tuple(self.segments)))

    def _written(self, manifest: Manifest, rows: Sequence[dict[str, Any]], vectors: NDArray[np.float32]) -> Manifest:
        """The manifest with a segment more, which is on disk."""
        name = f"segment-{manifest.next_segment:06d}"
        keys = np.array([hash_of(row["id"]) for row in rows], np.int64)
        write_segment(self.folder, name, rows, vectors, keys, postings(row["text"] for row in rows))
        return replace(manifest, segments={**manifest.segments, name: ""}, next_segment=manifest.next_segment + 1)

    def _without(self, ids: Sequence[str]) -> tuple[dict[str, str], int]:
        """Segments, as the manifest has them, in which these are deleted; and how many that are."""
        keys = np.array([hash_of(one) for one in ids], np.int64)
        found = {name: segment.without(keys) for name, segment in self.segments.items()}
        deleted = {name: self.segments[name].deleted if not count else bits for name, (bits, count) in found.items()}
        return deleted, sum(count for _, count in found.values())

    def _commit(self, manifest: Manifest) -> None:
        write_manifest(self.folder, manifest)
        self._open(manifest)

    def _open(self, manifest: Manifest) -> None:
        known, self.manifest = self.segments, manifest
        self.segments = {
            name: known[name] if name in known and known[name].deleted == deleted
            else Segment(self.folder, name, deleted, manifest.dimension)
            for name, deleted in manifest.segments.items()
        }  # fmt: skip
