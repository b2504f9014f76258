"""Tensors and small facts on disk: safetensors and JSON, written as a stream, read with suspicion.

It knows these two formats and not what is in them. Files may come from strangers: whatever is wrong
with one is a BertworksError before much memory or time is spent. Nothing here reads a pickle.

`write_record` notes what the weights of a folder were when bertworks wrote them, and `read_record`
tells whether they still are: from weights.json, or what earlier versions and `export` wrote.
"""

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from safetensors import SafetensorError, safe_open

from bertworks.checkpoints.pickle_reader import safetensors_layout
from bertworks.errors import BertworksError, check, explain_os_errors, require, some_names
from bertworks.io.atomic_write import (
    LFS_POINTER,
    parse_json,
    read_small,
    refuse_lfs_pointer,
    replacing,
    sha256,
    utf8_path,
    write_json,
)

if TYPE_CHECKING:
    from torch import Tensor

_LARGEST_HEADER = 1 << 22  # bytes; BERT-Large with the state of its optimizer has 200 kB
_MOST_TENSORS = 20_000  # BERT-Large with the state of its optimizer has 1,200
_LARGEST_JSON = 1 << 23
DAMAGED = "the file is damaged or was cut: get it again"

RECORD_FILE = "weights.json"
EVALUATION_FILE = "result.json"  # has a hash of the weights, too
_EXPORT_FILE = "export.json"  # has a hash of the weights, too
# nanoseconds; a file that changed later may change again without a new time
_TRUSTED_AGE = 50_000_000

_known_hashes: dict[tuple[int, ...], str] = {}  # by device, inode, size and times of a file


def write_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> str:
    """Write a safetensors file, tensor by tensor, and return the sha256 of its bytes.

    The bytes are those of the safetensors library, whose own writer leaves the file unreadable for
    others and a temporary file behind when it is killed. `path` is written in place: pass a
    temporary one.
    """
    # Most of what is read and written here is JSON. Tensors alone need torch: safetensors, too,
    # imports it only when it opens a file.
    import torch

    start_of_file, ordered = safetensors_layout(tensors, metadata)
    digest = hashlib.sha256(start_of_file)
    # One thread hashes while this one writes: who stops a training should not wait for both.
    with path.open("wb") as file, ThreadPoolExecutor(1) as hashing:
        file.write(start_of_file)
        for tensor in ordered:
            if not tensor.numel():  # which has no bytes, and need not be laid out as a row of them
                continue
            content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            hashed = hashing.submit(digest.update, content)
            file.write(content)
            hashed.result()
    return digest.hexdigest()


def read_tensors(path: Path) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file.

    They stand in a private map of the file: what is never touched is never read.

    Raises:
        BertworksError: no such file; a header that lies or is absurdly long; a file that was cut.
    """
    with _opened(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is no dict


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a safetensors file, without torch.

    Raises:
        BertworksError: as `read_tensors`.
    """
    with _opened(path, "np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, it is no dict


@contextmanager
def _opened(path: Path, framework: Literal["pt", "np"]) -> Iterator[Any]:
    """Open a safetensors file for the block, and raise what is wrong with it as a BertworksError.

    Args:
        framework: the library of the tensors that are read: torch, or NumPy.
    """
    try:
        with explain_os_errors("cannot be read", path):
            # a pipe would be waited for
            check(stat.S_ISREG(path.stat().st_mode), "a folder, a pipe or a device")
            with path.open("rb") as file, utf8_path(path) as name:
                start = file.read(len(LFS_POINTER))
                refuse_lfs_pointer(start, path)
                header_length = int.from_bytes(start[:8], "little")
                check(header_length <= _LARGEST_HEADER, "the length of the header is not plausible")
                with safe_open(name, framework=framework) as opened:
                    count = len(opened.keys())
                    check(
                        count <= _MOST_TENSORS,
                        f"{count:,} tensors: more than any model or checkpoint has",
                    )
                    yield opened
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise BertworksError(
            f"not a safetensors file: {str(error)[:200]}", where=path, hint=DAMAGED
        ) from None


def refuse_non_finite(tensors: Mapping[str, "Tensor"], where: object) -> None:
    """Raise BertworksError, with the first few names, if a number is infinite or none at all."""
    # A sum is some 20 times as fast, and finite unless a number is not (or all are absurd: then the
    # slow look decides).
    suspects = [
        name
        for name, value in tensors.items()
        if value.is_floating_point() and not value.sum().isfinite()
    ]
    bad = [name for name in suspects if not tensors[name].isfinite().all()]
    require(
        not bad,
        f"NaN or infinite numbers in {some_names(bad, 4)}",
        where,
        "use a model or a checkpoint saved before it broke",
    )


def read_json(path: Path, kind: type = dict) -> Any:
    """Return a small JSON object, or list (kind).

    Raises:
        BertworksError: no such file, not JSON, absurdly large, deep or long-numbered, or of another
            kind.
    """
    content = parse_json(read_small(path, _LARGEST_JSON), path, hint=DAMAGED)
    require(
        isinstance(content, kind),
        f"a JSON {'list' if kind is list else 'object'} is expected",
        path,
        DAMAGED,
    )
    return content


def read_index(index: Path, ending: str) -> dict[str, str]:
    """Return the name of the file of each tensor, from the index of weights in several files.

    The files stand next to it.

    Args:
        ending: of the names of the files.

    Raises:
        BertworksError: as `read_json`; a name is not that of a file in the same folder.
    """
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise BertworksError("weight_map is missing or not a table of file names", where=index)
    for file in sorted(set(files.values())):
        is_name = Path(file).name == file and file.endswith(ending)
        require(
            is_name,
            f"{file[:100]!r} is not the name of a {ending.removeprefix('.')} file in this folder",
            index,
        )
    return files


def write_weights(
    path: Path, tensors: Mapping[str, "Tensor"], outdated: Iterable[Path] = ()
) -> str:
    """Write a safetensors file as transformers does, and return the sha256 of its bytes.

    It is complete or absent.

    Args:
        outdated: files that describe the previous weights; they are deleted just before the new
            weights replace those.
    """
    with replacing(path) as temporary:
        digest = write_tensors(temporary, tensors, {"format": "pt"})
        for file in outdated:
            file.unlink(missing_ok=True)
    return digest


def write_sharded(
    index: Path, tensors: Mapping[str, "Tensor"], prefixes: tuple[str, ...], shared: Path
) -> list[Path]:
    """Write weights as two files, and return their paths.

    They are the body, tensors with one of the prefixes, and the head.

    The body is written next to the index `shared`; elsewhere it is a hard link to that file, or a
    copy where the disk has no links. The old index is deleted first and the new one is written
    last: a folder never has the body of one step and the head of another.
    """
    folder = index.parent
    body = "model-00001-of-00002.safetensors"
    head = "model-00002-of-00002.safetensors"
    index.unlink(missing_ok=True)
    if index == shared:
        names = {name for name in tensors if name.startswith(prefixes)}
        write_weights(folder / body, {name: tensors[name] for name in names})
    else:
        names = {name for name, file in read_json(shared)["weight_map"].items() if file == body}
        with replacing(folder / body) as temporary:
            try:
                os.link(shared.parent / body, temporary)
            except OSError:
                shutil.copyfile(shared.parent / body, temporary)
    write_weights(
        folder / head, {name: value for name, value in tensors.items() if name not in names}
    )
    size = sum((folder / file).stat().st_size for file in (body, head))
    files = {name: body if name in names else head for name in sorted({*tensors, *names})}
    write_json(index, {"metadata": {"total_size": size}, "weight_map": files})
    return [folder / body, folder / head]


class WeightsRecord(NamedTuple):
    """The state of a folder when bertworks wrote it.

    file: the name of the file that says so.
    weights_sha256: see `combined_sha256`.
    config_sha256: of config.json; "": not recorded.
    has_task: whether task.json belongs to the folder.
    """

    file: str
    weights_sha256: str
    config_sha256: str
    has_task: bool


def write_record(folder: Path, weights_sha256: str, *, has_task: bool) -> None:
    """Write weights.json about the files of a folder, which are complete.

    Args:
        weights_sha256: see `combined_sha256`.
        has_task: whether the folder has a task.json.
    """
    content = {
        "weights_sha256": weights_sha256,
        "config_sha256": file_sha256(folder / "config.json"),
        "has_task": has_task,
    }
    write_json(folder / RECORD_FILE, content)


def record_files(folder: Path) -> list[Path]:
    """Return the files with a hash of the weights.

    Delete them before the weights are replaced: a killed process then leaves no wrong record.
    """
    return [folder / RECORD_FILE, folder / EVALUATION_FILE]


def read_record(folder: Path) -> WeightsRecord | None:
    """Return the record of a folder of bertworks, or None if it has none.

    Raises:
        BertworksError: the record is damaged.
    """
    if (folder / RECORD_FILE).exists():
        content = read_json(folder / RECORD_FILE)
        weights = content.get("weights_sha256")
        config = content.get("config_sha256")
        has_task = content.get("has_task")
        is_record = (
            isinstance(weights, str) and isinstance(config, str) and isinstance(has_task, bool)
        )
        require(is_record, "not a record of weights", folder / RECORD_FILE, "get the folder again")
        return WeightsRecord(RECORD_FILE, weights, config, has_task)
    # Records of `export` and of earlier versions; a file without a hash is no record.
    if (folder / _EXPORT_FILE).exists():
        file = _EXPORT_FILE
        content = read_json(folder / file)
        weights = content.get("sha256")
        request = content.get("request")
        has_task = isinstance(request, dict) and request.get("task") != str(None)
    elif (folder / EVALUATION_FILE).exists():
        file = EVALUATION_FILE
        content = read_json(folder / file)
        weights = content.get("weights_sha256")
        has_task = "task" in content
    else:
        return None
    return WeightsRecord(file, weights, "", has_task) if isinstance(weights, str) else None


def combined_sha256(files: Sequence[Path]) -> str:
    """Return a hash of the files of a network; equal hashes mean the same network.

    It is the sha256 of a single file; for several files it is the sha256 of their hashes in a row.
    """
    hashes = [file_sha256(path) for path in files]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file.

    It is remembered in this process, for as long as the file has the same size and times.
    """
    status = os.stat(path)  # noqa: PTH116 - of the file that a link leads to
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if version in _known_hashes:
        return _known_hashes[version]
    digest = sha256(path)
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) > _TRUSTED_AGE:
        _known_hashes[version] = digest
    return digest
