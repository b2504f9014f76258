"""The documents of an index and their vectors, opened where they lie: read by place, added and deleted by one process
at a time, all or none. Not here: files and what is in them (`segments`), what vectors are of and what is found
(`index`)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import BertworksError, UsageError
from bertworks.text.lexical import hash_of, postings
from bertworks.use.neighbours import FILE as NEIGHBOURS
from bertworks.use.neighbours import Neighbours, write_neighbours
from bertworks.use.segments import (
    Manifest,
    Segment,
    forgotten,
    read_manifest,
    remove_strays,
    write_manifest,
    write_segment,
    writing,
)

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
            fix = f"bertworks index -o {self.folder} --approximate"
            raise UsageError("there is no graph for approximate search", where=str(self.folder), fix=fix)
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
        before = forgotten(self.manifest.sources) if replaced else self.manifest.sources
        manifest = replace(self.manifest, segments=segments, next_row=next_row, sources={**before, **(sources or {})})
        self._commit(self._written(manifest, rows, vectors))
        return replaced

    def note_sources(self, sources: Mapping[str, tuple[int, bool]]) -> None:
        """What the manifest says from then on of these files."""
        self._commit(replace(self.manifest, sources={**self.manifest.sources, **sources}))

    def delete(self, ids: Sequence[str]) -> int:
        """Deletes documents, as far as they are there, and says how many were."""
        segments, count = self._without(ids)
        sources = forgotten(self.manifest.sources) if count else self.manifest.sources
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
        (self.folder / NEIGHBOURS).unlink(missing_ok=True)

    def build_graph(self) -> None:
        """Makes the graph of near vectors, of all documents that are there."""
        if not self.segments:
            raise UsageError("there are no documents yet", where=str(self.folder), fix="add some first")
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
