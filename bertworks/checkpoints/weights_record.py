"""What the weights of a model folder were when bertworks wrote them, and whether they still are.

- `write_record`: writes weights.json; `record_files`: what is deleted before other weights are
  written
- `read_record`: the record of a folder: weights.json, or what earlier versions and `export` wrote
- `file_sha256`, `combined_sha256`: hashes of files; each version of a file is read once per process
"""

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bertworks.checkpoints.storage import read_json
from bertworks.errors import require
from bertworks.io.atomic_write import sha256, write_json

RECORD_FILE = "weights.json"
EVALUATION_FILE = "result.json"  # has a hash of the weights, too
_EXPORT_FILE = "export.json"  # has a hash of the weights, too
# nanoseconds; a file that changed later may change again without a new time
_TRUSTED_AGE = 50_000_000

_known_hashes: dict[tuple[int, ...], str] = {}  # by device, inode, size and times of a file


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
    if (folder / _EXPORT_FILE).exists():
        content = read_json(folder / _EXPORT_FILE)
        request = content.get("request")
        has_task = isinstance(request, dict) and request.get("task") != str(None)
        return _older_record(_EXPORT_FILE, content.get("sha256"), has_task=has_task)
    if (folder / EVALUATION_FILE).exists():
        content = read_json(folder / EVALUATION_FILE)
        return _older_record(
            EVALUATION_FILE, content.get("weights_sha256"), has_task="task" in content
        )
    return None


def _older_record(file: str, weights: object, *, has_task: bool) -> WeightsRecord | None:
    """Return the record in a file of an earlier version or of `export`.

    It is None if the file has no hash of the weights.
    """
    if not isinstance(weights, str):
        return None
    return WeightsRecord(file, weights, "", has_task)


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
