"""The files of an index.

- segments, which are written once, and a manifest that names them and the deleted rows. A change is
  a new manifest, renamed into place at the end: an interrupted change leaves the index as it was.
- an optional HNSW graph of the vectors (Malkov and Yashunin 2018) by faiss: approximate search
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.checkpoints.storage import read_json, read_tensors, write_tensors
from bertworks.config import Positive, Settings, build
from bertworks.errors import BertworksError, UsageError, expect, optional_import, quoted, require
from bertworks.events import JsonObject
from bertworks.io.arrays import CheckedArray, CheckedFile, file_sums, verify_files
from bertworks.io.atomic_write import (
    folder_lock,
    json_sha256,
    remove_leftovers,
    replacing,
    write_bytes,
    write_text,
)
from bertworks.io.tables import as_json
from bertworks.retrieval.ranking import Postings, hash_of, postings, words_state

MANIFEST = "index.json"
GRAPH = "neighbours.faiss"
FORMAT = 2
NAMED = "named:"  # prefix of the fingerprint of a source with ids
_DAMAGED = "make the index again: delete its folder and repeat the `bertworks index` command"
# links of each vector; minimum number of candidates during a search
_GRAPH_LINKS = 32
_GRAPH_WIDTH = 128

Sources = dict[str, tuple[int, bool]]
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Manifest(Settings):
    """The state of an index.

    model: path or name of the model. fingerprint: all that the vectors depend on
        (`Embedder.fingerprint`), and the language and stemmer of the words, if they are stemmed.
    segments: name -> base64 of a bit for each row, 1 if the row is deleted; "": no row is.
    sources: fingerprint of an indexed file -> number of rows that were read, and whether these are
        all.
    next_segment, next_row: numbers that were never used.
    neighbours: the first segments; their vectors are in the HNSW graph.
    files: the sha256 of each file and the CRC-32 of its blocks (`file_sums`). index.json has its
        own sha256, too.
    """

    model: str
    fingerprint: JsonObject
    dimension: Positive
    segments: dict[str, str] = field(default_factory=dict)
    sources: Sources = field(default_factory=dict)
    next_segment: Positive = 1
    next_row: Positive = 1
    neighbours: tuple[str, ...] = ()
    files: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """A hash of the state."""
        return json_sha256(asdict(self))

    def with_sums(self, folder: Path, names: Sequence[str]) -> Self:
        """Return the manifest with the checksums of new files.

        Files that are no longer in the index are left out.
        """
        segments = self.segments | ({Path(GRAPH).stem: ""} if self.neighbours else {})
        files = {name: sums for name, sums in self.files.items() if Path(name).stem in segments}
        files |= {name: file_sums(folder / name) for name in names}
        return replace(self, files=files)


def _files_of(segments: Iterable[str]) -> list[str]:
    return [f"{name}.{kind}" for name in segments for kind in ("safetensors", "jsonl")]


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of an index.

    Raises:
        BertworksError: it is missing or damaged.
    """
    path = folder / MANIFEST
    require(
        path.exists(), "no index here", folder, f"bertworks index DOCUMENTS -o {quoted(folder)}"
    )
    content = read_json(path)
    require(content.get("format") == FORMAT, "an index of another version", path, _DAMAGED)
    try:
        fields = {
            name: value for name, value in content.items() if name not in ("format", "sha256")
        }
        m = build(Manifest, fields, "")
        settings = {
            "pooling": str,
            "normalize": bool,
            "max_length": int,
            "language": str,
            "stemmer": str,
        }
        is_valid = (
            content["sha256"] == json_sha256(content)
            and all(
                type(m.fingerprint.get(name)) in (kind, type(None))
                for name, kind in settings.items()
            )
            and all(name.isascii() and name.replace("-", "").isalnum() for name in m.segments)
            and list(m.segments)[: len(m.neighbours)] == [*m.neighbours]
            and m.files.keys() >= {*_files_of(m.segments), *([GRAPH] if m.neighbours else ())}
        )
        if not is_valid:
            raise ValueError
        for deleted in m.segments.values():
            base64.b64decode(deleted, validate=True)
        sources = {
            name: (int(rows), bool(complete)) for name, (rows, complete) in m.sources.items()
        }
        files = {name: (str(digest), str(blocks)) for name, (digest, blocks) in m.files.items()}
        return replace(m, sources=sources, files=files)
    except (TypeError, ValueError, AttributeError, KeyError, UsageError):
        raise BertworksError(
            "the manifest of the index is damaged", where=path, hint=_DAMAGED
        ) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: the change is complete."""
    content = {"format": FORMAT, **asdict(manifest)}
    write_text(
        folder / MANIFEST, json.dumps(content | {"sha256": json_sha256(content)}, indent=1) + "\n"
    )


def create_index(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a new index.

    Raises:
        UsageError: see `refuse_documents`; another process may have been faster.
        BertworksError: another process writes to it.
    """
    with writing(folder):
        write_manifest(folder, replace(manifest, **refuse_documents(folder)))


def refuse_documents(folder: Path) -> JsonObject:
    """Return the numbers that a new index begins with.

    An index without documents may be made again, and its numbers are never used again.

    Raises:
        UsageError: the folder holds documents, or other files.
    """
    names = sorted(path.name for path in folder.glob("[!.]*"))
    what = f"the folder is not empty: {''.join(names[:1])}"
    if MANIFEST in names:
        manifest = read_manifest(folder)
        if not manifest.segments:
            return {"next_segment": manifest.next_segment, "next_row": manifest.next_row}
        what = "there is an index already"
    expect(not names, what, where=folder, hint="name another folder")
    return {}


def writing(folder: Path) -> AbstractContextManager[None]:
    """Hold the index for this process while it writes.

    Raises:
        UsageError: it is a file.
        BertworksError: another process writes to it.
    """
    return folder_lock(folder, "another process writes to this index", "wait for it")


class Segment(NamedTuple):
    """n rows of an index."""

    vectors: CheckedArray  # float32 [n, dimension], of length 1
    keys: CheckedArray  # int64 [n], `hash_of` their ids
    postings: Postings  # of their texts
    offsets: CheckedArray  # int64 [n+1]; row r is lines[offsets[r]:offsets[r+1]]
    lines: CheckedArray  # JSON lines with `id`, `text` and `fields`

    def row(self, number: int) -> JsonObject:
        """Return the row with this number."""
        line = self.lines[self.offsets[number] : self.offsets[number + 1]].tobytes()
        try:
            row = json.loads(line)
            return {name: row[name] for name in ("id", "text", "fields")}
        except (ValueError, KeyError, TypeError):
            raise BertworksError(
                f"row {number} is damaged", where=self.lines.file.path, hint=_DAMAGED
            ) from None


def _read_segment(folder: Path, name: str, manifest: Manifest) -> Segment:
    """A segment, memory-mapped: an open index stays readable while another process compacts it.

    Raises:
        BertworksError: it is missing or damaged.
    """
    path = folder / f"{name}.safetensors"
    file, lines = (
        CheckedFile(folder / file, manifest.files[file][1], _DAMAGED) for file in _files_of([name])
    )
    tensors = read_tensors(path)
    start = 8 + int.from_bytes(file.content[:8].tobytes(), "little")
    file.check(0, start)
    header = json.loads(file.content[8:start].tobytes())
    arrays: dict[str, Any] = {
        name: CheckedArray(file, tensor.numpy(), start + header[name]["data_offsets"][0])
        for name, tensor in tensors.items()
    }
    try:
        p = Postings(**{name: arrays[f"postings.{name}"] for name in Postings._fields})
        fixed = {name: arrays[name] for name in ("vectors", "keys", "offsets")}
        segment = Segment(postings=p, lines=CheckedArray(lines, lines.content, 0), **fixed)
        n = len(segment.keys)
        is_valid = (
            segment.vectors.shape == (n, manifest.dimension)
            and segment.offsets.shape == (n + 1,)
            and len(p.lengths) == n
            and len(p.texts) == len(p.counts)
            and len(p.starts) == len(p.words) + 1
            and segment.vectors.dtype == np.float32
            and segment.keys.dtype == segment.offsets.dtype == np.int64
            and all(array.dtype.kind == "i" for array in p)
        )
    except (KeyError, TypeError, ValueError):
        is_valid = False
    require(is_valid, "this is not a segment of an index", path, _DAMAGED)
    return segment


def _faiss() -> Any:
    with optional_import("approximate search", '"bertworks[faiss]"'):
        import faiss
    return faiss


class Documents:
    """The documents of an index.

    Changes by other processes are visible after it is opened again.

    Attributes:
        manifest: the state of the index.
        segments: the parts of the index, in the order of the documents.
        edges: the number of the first document of each segment, and the number of all documents.
        alive: bool [documents], False for deleted ones.

    Raises:
        BertworksError: the index is missing or damaged.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._opened: dict[str, Segment] = {}
        self._graph: tuple[Sequence[str], Any] = (), None  # the segments in it, and the graph
        manifest = read_manifest(folder)
        try:
            self._open(manifest)
        except BertworksError:
            current = read_manifest(folder)
            if current == manifest:
                raise
            self._open(current)  # another process has compacted it

    def __len__(self) -> int:
        return int(self.alive.sum())

    @property
    def language(self) -> str | None:
        """The language of the stemmer; None: words are not stemmed.

        Raises:
            BertworksError: its stemmer is not installed, or is of another version than that of the
                index.
        """
        fingerprint = self.manifest.fingerprint
        words = words_state(fingerprint.get("language"))
        expected = fingerprint.get("stemmer")
        stemmer = words.get("stemmer")
        require(
            stemmer == expected,
            f"the words of this index were stemmed by {expected}, and {stemmer} may give "
            "other stems",
            self.folder,
            f"bertworks index -o {quoted(self.folder)} --compact stems them again",
        )
        return words.get("language")

    def segment_of(self, number: int) -> tuple[Segment, int]:
        """Return the segment of a document, and the number of its row there."""
        position = int(self.edges.searchsorted(number, "right")) - 1
        return self.segments[position], int(number - self.edges[position])

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the index, and read its current state.

        Every change happens inside.
        """
        with writing(self.folder):
            self._open(read_manifest(self.folder))
            self.remove_strays()
            yield

    def verify(self) -> None:
        """Compare the sha256 of every file.

        Without it, a block of 1 MiB is checked when it is first read.

        Raises:
            BertworksError: a file has changed.
        """
        verify_files(
            self.folder,
            {name: digest for name, (digest, _) in self.manifest.files.items()},
            _DAMAGED,
        )

    def remove_strays(self) -> None:
        """Delete segments and a graph that the manifest does not name.

        Temporary files of killed processes are deleted, too.
        """
        remove_leftovers(self.folder)
        for path in self.folder.glob("segment-*"):
            if path.stem not in self.manifest.segments:
                path.unlink()
        if not self.manifest.neighbours:
            (self.folder / GRAPH).unlink(missing_ok=True)

    def with_segment(
        self, manifest: Manifest, rows: Rows, vectors: NDArray[np.float32]
    ) -> Manifest:
        """Write a segment.

        The manifest with it. rows: with `id`, `text` and `fields`.
        """
        name = f"segment-{manifest.next_segment:06d}"
        lines = [f"{as_json(row)}\n".encode(errors="surrogatepass") for row in rows]
        write_bytes(self.folder / f"{name}.jsonl", b"".join(lines))
        words = postings((row["text"] for row in rows), manifest.fingerprint.get("language"))
        arrays = {f"postings.{key}": array for key, array in words._asdict().items()} | {
            "vectors": vectors,
            "keys": np.array([hash_of(row["id"]) for row in rows], np.int64),
            "offsets": np.cumsum([0, *map(len, lines)], dtype=np.int64),
        }
        with replacing(self.folder / f"{name}.safetensors") as temporary:
            write_tensors(
                temporary, {key: torch.from_numpy(array) for key, array in arrays.items()}, {}
            )
        segments = {**manifest.segments, name: ""}
        manifest = replace(manifest, segments=segments, next_segment=manifest.next_segment + 1)
        return manifest.with_sums(self.folder, _files_of([name]))

    def without(self, ids: Sequence[str]) -> Manifest:
        """Return the manifest without the documents with these ids."""
        keys = np.concatenate([np.zeros(0, np.int64), *(segment.keys for segment in self.segments)])
        alive = self.alive & ~np.isin(keys, [hash_of(name) for name in ids])
        if (alive == self.alive).all():
            return self.manifest
        parts = [alive[start:end] for start, end in pairwise(self.edges)]
        deleted = [
            "" if part.all() else base64.b64encode(np.packbits(~part).tobytes()).decode()
            for part in parts
        ]
        # A file with ids may be indexed again after a deletion: this adds no row twice.
        sources = {
            name: state
            for name, state in self.manifest.sources.items()
            if not name.startswith(NAMED)
        }
        segments = dict(zip(self.manifest.segments, deleted, strict=True))
        return replace(self.manifest, segments=segments, sources=sources)

    def commit(self, manifest: Manifest) -> None:
        """Write a manifest, and open what it names."""
        manifest = manifest.with_sums(self.folder, [])
        write_manifest(self.folder, manifest)
        self._open(manifest)

    def _open(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._opened = {
            name: self._opened.get(name) or _read_segment(self.folder, name, manifest)
            for name in manifest.segments
        }
        self.segments = list(self._opened.values())
        sizes = [len(segment.keys) for segment in self.segments]
        self.edges = np.cumsum([0, *sizes])
        parts = [np.ones(0, bool)]
        for deleted, size in zip(manifest.segments.values(), sizes, strict=True):
            bits = base64.b64decode(deleted).ljust(-(-size // 8), b"\0")
            parts.append(~np.unpackbits(np.frombuffer(bits, np.uint8), count=size).astype(bool))
        self.alive = np.concatenate(parts)

    # --- the graph

    def write_graph(self) -> None:
        """Write the HNSW graph of all documents.

        Raises:
            UsageError: there are no documents.
            BertworksError: faiss is not installed, or the disk is full.
        """
        with self.changing():
            expect(
                self.segments,
                "there are no documents yet",
                where=self.folder,
                hint="add some first",
            )
            faiss = _faiss()
            graph = faiss.IndexHNSWFlat(
                self.manifest.dimension, _GRAPH_LINKS, faiss.METRIC_INNER_PRODUCT
            )
            for segment in self.segments:
                graph.add(np.ascontiguousarray(segment.vectors[:]))
            with replacing(self.folder / GRAPH) as temporary:
                faiss.write_index(graph, str(temporary))
            manifest = replace(self.manifest, neighbours=tuple(self.manifest.segments))
            self.commit(manifest.with_sums(self.folder, [GRAPH]))

    def nearest(
        self, queries: NDArray[np.float32], k: int
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return inner products and numbers [queries, k] of the nearest documents by the graph.

        Missing numbers are -1.

        Raises:
            UsageError: there is no graph.
            BertworksError: the graph is damaged or of other documents, or faiss is not installed.
        """
        covered = self.manifest.neighbours
        hint = f"bertworks index -o {quoted(self.folder)} --approximate"
        expect(covered, "there is no graph for approximate search", where=self.folder, hint=hint)
        if self._graph[0] != covered:
            faiss = _faiss()
            path = self.folder / GRAPH
            verify_files(
                self.folder, {GRAPH: self.manifest.files[GRAPH][0]}, f"make it again: {hint}"
            )
            graph = None
            with suppress(RuntimeError):  # no file, or damage
                graph = faiss.read_index(str(path))
            shape = self.edges[len(covered)], self.manifest.dimension
            is_theirs = isinstance(graph, faiss.IndexHNSWFlat) and (graph.ntotal, graph.d) == shape
            require(
                is_theirs,
                "this graph does not belong to these documents",
                path,
                f"make it again: {hint}",
            )
            self._graph = covered, graph
        graph = self._graph[1]
        graph.hnsw.efSearch = max(_GRAPH_WIDTH, k)
        return graph.search(queries, k)  # type: ignore[no-any-return]
