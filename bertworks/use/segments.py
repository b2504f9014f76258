"""An index on disk: segments that are written once, and a manifest that names them and says which rows are deleted.

A change is a new manifest, renamed into place after all that it names: what was killed leaves the index as it was, and
files that no manifest names, which the next writer deletes. Not here: models, queries, what rows mean (`index`).
"""

import base64
import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import BertworksError
from bertworks.files.storage import read_json, read_tensors, write_tensors
from bertworks.rows.writer import as_json
from bertworks.text.atomic import refuse_file, remove_leftovers, replacing, write_text
from bertworks.text.lexical import Postings

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


def forgotten(sources: Mapping[str, tuple[int, bool]]) -> dict[str, tuple[int, bool]]:
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
            raise BertworksError("this is no segment of such an index", where=str(path), fix=_DAMAGED)

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
                raise BertworksError(f"row {number} is damaged", where=str(self._path), fix=_DAMAGED) from None
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
        raise BertworksError("there is no index here", where=str(folder), fix=f"bertworks index DOCUMENTS -o {folder}")
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise BertworksError("an index of another version", where=str(path), fix=_DAMAGED)
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
        raise BertworksError("the manifest of the index makes no sense", where=str(path), fix=_DAMAGED) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """From now on the index is this."""
    write_text(folder / MANIFEST, json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1) + "\n")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """While this lasts nobody else writes.

    Raises:
        UsageError: it is a file.
        BertworksError: somebody else does already.
    """
    refuse_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BertworksError("another process writes to this index", where=str(folder), fix="wait for it") from None
        yield


def remove_strays(folder: Path, manifest: Manifest) -> None:
    """Deletes segments that the manifest does not name, and what killed processes left half-written."""
    remove_leftovers(folder)
    for path in folder.glob("segment-*"):
        if path.stem not in manifest.segments:
            path.unlink()
