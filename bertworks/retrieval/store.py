"""An index on disk.

- segments, which are written once, and a manifest that names them and the deleted rows. A change is a new manifest,
  renamed into place at the end: an interrupted change leaves the index as it was.
- an optional HNSW graph of the vectors (Malkov and Yashunin 2018) by faiss: approximate search
- the documents and vectors, read by number, added and deleted by one process at a time
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
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

MANIFEST, HNSW_FILE, FORMAT = "index.json", "neighbours.faiss", 1
NAMED = "named:"  # prefix of the fingerprint of a source with ids
_DAMAGED = "make the index again"
_COMPACT_ROWS = 1 << 16  # rows of a segment that `compact` writes
_HNSW_LINKS, _HNSW_WIDTH = 32, 128  # links of each vector; minimum number of candidates during a search

Sources = Mapping[str, tuple[int, bool]]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The state of an index.

    model: path or name of the model. fingerprint: all that the vectors depend on (`Embedder.fingerprint`).
    segments: name -> base64 of a bit for each row, 1 if the row is deleted.
    sources: fingerprint of an indexed file -> number of rows that were read, and whether these are all.
    next_segment, next_row: numbers that were never used.
    neighbours: the first segments; their vectors are in the HNSW graph.
    """

    model: str
    fingerprint: Mapping[str, Any]
    dimension: int
    segments: Mapping[str, str] = field(default_factory=dict)
    sources: Sources = field(default_factory=dict)
    next_segment: int = 1
    next_row: int = 1
    neighbours: Sequence[str] = ()


class Segment:
    """Some rows of an index: `vectors` float32 [n, dimension] of length 1, `keys` int64 [n] (`hash_of` their ids),
    `postings` of their texts, `alive` bool [n], `deleted` as in the manifest."""

    def __init__(self, folder: Path, name: str, deleted: str, dimension: int):
        self.deleted, self._path = deleted, folder / f"{name}.jsonl"
        path = folder / f"{name}.safetensors"
        tensors = {key: tensor.numpy() for key, tensor in read_tensors(path).items()}
        try:
            # Memory-mapped: an open index stays readable while another process compacts it.
            self._lines = np.memmap(self._path, np.uint8, "r")
            self.vectors, self.keys, self._offsets = (tensors[key] for key in ("vectors", "keys", "offsets"))
            self.postings = p = Postings(**{key: tensors[f"postings.{key}"] for key in Postings._fields})
            n = len(self.keys)
            bits = np.unpackbits(np.frombuffer(base64.b64decode(deleted), np.uint8))
            self.alive = ~bits[:n].astype(bool) if deleted else np.ones(n, bool)
            is_valid = (
                self.vectors.shape == (n, dimension) and self._offsets.shape == (n + 1,)
                and len(self.alive) == len(p.lengths) == n
                and len(p.texts) == len(p.counts) and len(p.starts) == len(p.words) + 1
                and {array.dtype.char for array in (self.vectors, self.keys, self._offsets)} == {"f", "l"}
                and {array.dtype.kind for array in p} == {"i"}
            )  # fmt: skip
        except (OSError, KeyError, TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise BertworksError("this is no segment of an index", where=str(path), hint=_DAMAGED)

    def __len__(self) -> int:
        return len(self.keys)

    def without(self, keys: NDArray[np.int64]) -> tuple[str, int]:
        """The deleted rows, encoded for the manifest, if the rows with these keys are deleted too, and how many these
        are."""
        removed = self.alive & np.isin(self.keys, keys)
        count = int(removed.sum())
        bits = np.packbits(~self.alive | removed).tobytes()
        return base64.b64encode(bits).decode() if count else self.deleted, count

    def rows(self, numbers: Sequence[int] | NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """The rows with these numbers."""
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
    """Write a segment that no manifest names yet. rows: with `id`, `text` and `fields`."""
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
        BertworksError: it is missing or damaged.
    """
    path = folder / MANIFEST
    if not path.exists():
        raise BertworksError("there is no index here", where=str(folder), hint=f"bertworks index DOCUMENTS -o {folder}")
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise BertworksError("an index of another version", where=str(path), hint=_DAMAGED)
    try:
        m = Manifest(**content)
        is_valid = (
            all(type(number) is int for number in (m.dimension, m.next_row, m.next_segment))
            and isinstance(m.model, str) and isinstance(m.segments, dict)
            and all(name.isascii() and name.replace("-", "").isalnum() for name in m.segments)
            and list(m.segments)[: len(m.neighbours)] == list(m.neighbours)
        )  # fmt: skip
        if not is_valid:
            raise ValueError
        sources = {name: (int(rows), bool(complete)) for name, (rows, complete) in m.sources.items()}
        return replace(m, fingerprint=dict(m.fingerprint), sources=sources)
    except (TypeError, ValueError, AttributeError):
        raise BertworksError("the manifest of the index is damaged", where=str(path), hint=_DAMAGED) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: the change is complete."""
    write_text(folder / MANIFEST, json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1) + "\n")


def writing(folder: Path) -> AbstractContextManager[None]:
    """Hold the index for this process while it writes.

    Raises:
        UsageError: it is a file.
        BertworksError: another process writes to it.
    """
    return folder_lock(folder, "another process writes to this index", "wait for it")


def _remove_strays(folder: Path, manifest: Manifest) -> None:
    """Delete segments that the manifest does not name, and temporary files of killed processes."""
    remove_leftovers(folder)
    for path in folder.glob("segment-*"):
        if path.stem not in manifest.segments:
            path.unlink()


def _faiss() -> Any:
    with optional_import("approximate search", '"bertworks[faiss]"'):
        import faiss
    return faiss


class Stored:
    """The documents of an index. Changes by other processes are visible after it is opened again.

    Attributes:
        manifest: the state of the index.
        segments: by name, in the order of the documents.

    Raises:
        BertworksError: the index is missing or damaged.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.segments: dict[str, Segment] = {}
        self._graph: tuple[Sequence[str], Any] | None = None
        manifest = read_manifest(folder)
        try:
            self._open(manifest)
        except BertworksError:
            if (current := read_manifest(folder)) == manifest:
                raise
            self._open(current)  # another process has compacted it

    def __len__(self) -> int:
        return sum(int(segment.alive.sum()) for segment in self.segments.values())

    @property
    def edges(self) -> list[int]:
        """The number of the first document of each segment (deleted documents count), and the total."""
        return np.cumsum([0, *map(len, self.segments.values())]).tolist()  # type: ignore[no-any-return]

    def rows(self, numbers: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """`id`, `text` and `fields` of documents by their number."""
        segments, edges = list(self.segments.values()), self.edges
        for number in numbers:
            segment = int(np.searchsorted(edges, number, side="right")) - 1
            yield from segments[segment].rows([int(number - edges[segment])])

    def nearest(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Inner products and numbers [queries, k] of the nearest vectors by the graph; -1 pads missing numbers.

        Raises:
            UsageError: there is no graph.
            BertworksError: the graph is damaged or of other documents, or faiss is not installed.
        """
        covered, hint = self.manifest.neighbours, f"bertworks index -o {self.folder} --approximate"
        if not covered:
            raise UsageError("there is no graph for approximate search", where=str(self.folder), hint=hint)
        if self._graph is None or self._graph[0] != covered:
            faiss, path = _faiss(), self.folder / HNSW_FILE
            try:
                graph = faiss.read_index(str(path)) if path.is_file() else None
            except RuntimeError:
                graph = None
            shape = sum(len(self.segments[name]) for name in covered), self.manifest.dimension
            if not isinstance(graph, faiss.IndexHNSWFlat) or (graph.ntotal, graph.d) != shape:
                what = "this is no graph of these documents"
                raise BertworksError(what, where=str(path), hint=f"make it again: {hint}")
            self._graph = covered, graph
        graph = self._graph[1]
        graph.hnsw.efSearch = max(_HNSW_WIDTH, k)
        return graph.search(queries, k)  # type: ignore[no-any-return]

    # --- changes

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the index, and read its current state. Every change happens inside."""
        with writing(self.folder):
            self._open(read_manifest(self.folder))
            _remove_strays(self.folder, self.manifest)
            yield

    def add(
        self, rows: Sequence[dict[str, Any]], vectors: NDArray[np.float32], next_row: int, sources: Sources | None
    ) -> int:
        """Add documents with distinct ids. The number of documents with these ids that they replace.

        Args:
            next_row, sources: new values of the manifest.
        """
        manifest, replaced = self._without([row["id"] for row in rows])
        manifest = replace(manifest, next_row=next_row, sources={**manifest.sources, **(sources or {})})
        self._commit(self._with_segment(manifest, rows, vectors))
        return replaced

    def note_sources(self, sources: Sources) -> None:
        """Update the sources in the manifest."""
        self._commit(replace(self.manifest, sources={**self.manifest.sources, **sources}))

    def delete(self, ids: Sequence[str]) -> int:
        """Delete the documents with these ids. The number of deleted documents."""
        manifest, count = self._without(ids)
        if count:
            self._commit(manifest)
        return count

    def compact(self) -> None:
        """Write all documents that are not deleted to few new segments."""
        manifest = replace(self.manifest, segments={}, neighbours=())
        rows: list[dict[str, Any]] = []
        vectors: list[NDArray[np.float32]] = []
        for segment in self.segments.values():
            rows += segment.rows(np.flatnonzero(segment.alive))
            vectors.append(segment.vectors[segment.alive])
            if len(rows) >= _COMPACT_ROWS:
                manifest, rows, vectors = self._with_segment(manifest, rows, np.concatenate(vectors)), [], []
        if rows:
            manifest = self._with_segment(manifest, rows, np.concatenate(vectors))
        self._commit(manifest)
        _remove_strays(self.folder, manifest)
        (self.folder / HNSW_FILE).unlink(missing_ok=True)

    def build_graph(self) -> None:
        """Write the HNSW graph of all documents.

        Raises:
            UsageError: there are no documents.
            BertworksError: faiss is not installed, or the disk is full.
        """
        if not self.segments:
            raise UsageError("there are no documents yet", where=str(self.folder), hint="add some first")
        faiss = _faiss()
        graph = faiss.IndexHNSWFlat(self.manifest.dimension, _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        for segment in self.segments.values():
            graph.add(np.ascontiguousarray(segment.vectors))
        with replacing(self.folder / HNSW_FILE) as temporary:
            faiss.write_index(graph, str(temporary))
        self._commit(replace(self.manifest, neighbours=tuple(self.segments)))

    def _with_segment(
        self, manifest: Manifest, rows: Sequence[dict[str, Any]], vectors: NDArray[np.float32]
    ) -> Manifest:
        """Write a segment. The manifest with it."""
        name = f"segment-{manifest.next_segment:06d}"
        keys = np.array([hash_of(row["id"]) for row in rows], np.int64)
        write_segment(self.folder, name, rows, vectors, keys, postings(row["text"] for row in rows))
        return replace(manifest, segments={**manifest.segments, name: ""}, next_segment=manifest.next_segment + 1)

    def _without(self, ids: Sequence[str]) -> tuple[Manifest, int]:
        """The manifest without the documents with these ids, and their number."""
        keys = np.array([hash_of(name) for name in ids], np.int64)
        results = {name: segment.without(keys) for name, segment in self.segments.items()}
        count = sum(number for _, number in results.values())
        if not count:
            return self.manifest, 0
        segments = {name: deleted for name, (deleted, _) in results.items()}
        # A file with ids may be indexed again after a deletion: this adds no row twice.
        sources = {name: state for name, state in self.manifest.sources.items() if not name.startswith(NAMED)}
        return replace(self.manifest, segments=segments, sources=sources), count

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
