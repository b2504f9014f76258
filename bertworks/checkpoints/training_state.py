"""The state of a training run on disk: complete or absent, and verified when read.

The newest valid one wins.

One dict of tensors, one dict of facts that JSON can hold; no pickle, and no state of random
generators, since whatever is drawn is a function of the step. It does not know what the tensors
are.

    folder/step-00000123/state.safetensors    the tensors
                         checkpoint.json      format, step, facts, size and sha256 of the other file
                         and of itself

A power cut or `kill -9` at any moment leaves the checkpoints that were complete and, at most, a
leftover that the next save removes. Only the process that holds the run folder may write there.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from torch import Tensor

from bertworks.checkpoints.storage import read_tensors, refuse_non_finite, write_tensors
from bertworks.errors import BertworksError, check, explain_os_errors, require
from bertworks.events import JsonObject
from bertworks.io.atomic_write import (
    json_sha256,
    remove_leftovers,
    replacing_folder,
    sha256,
    temporary_sibling,
)

FORMAT = 1
_TENSORS = "state.safetensors"
_MANIFEST = "checkpoint.json"
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    The tensors stand in a private map of the file: copy them into the network.
    """

    path: Path
    step: int
    tensors: dict[str, Tensor]
    facts: JsonObject


def save_checkpoint(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
    *,
    keep: int = 2,
    best: int | None = None,
) -> Path:
    """Save `folder/step-00000123`, and only then delete older checkpoints.

    Args:
        step: updates made so far.
        facts: anything that JSON holds exactly (no NaN).
        keep: how many of the newest stay, this one included; at least 1.
        best: the step whose checkpoint stays as well.

    Raises:
        BertworksError: a full disk, a folder that cannot be written, numbers that are not finite.
            Older checkpoints are then as they were.
        ValueError, TypeError: facts that JSON cannot hold.
    """
    folder = Path(folder)
    path = folder / f"step-{step:08d}"
    manifest: JsonObject = {"format": FORMAT, "step": step, "facts": dict(facts)}
    json_sha256(manifest)  # a fact that JSON cannot hold is found before anything is written
    refuse_non_finite(tensors, path)
    hint = "make the folder writable, or choose another with -o"
    with explain_os_errors(
        "older checkpoints are untouched, but this one cannot be written", path, hint
    ):
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with replacing_folder(path) as temporary:
            digest = write_tensors(temporary / _TENSORS, tensors, {"format": "pt"})
            size = (temporary / _TENSORS).stat().st_size
            manifest["files"] = {_TENSORS: {"bytes": size, "sha256": digest}}
            manifest["sha256"] = json_sha256(manifest)
            (temporary / _MANIFEST).write_bytes(
                json.dumps(manifest, indent=2, allow_nan=False).encode() + b"\n"
            )
    with explain_os_errors(
        f"checkpoint {step} is saved, but an older one cannot be deleted", folder
    ):
        for number, older in _checkpoints(folder)[: -max(keep, 1)]:
            if number not in (step, best):
                # a rename first makes each vanish at once
                shutil.rmtree(older.rename(temporary_sibling(older)))
    return path


def latest_checkpoint(folder: str | Path) -> tuple[Checkpoint | None, dict[Path, str]]:
    """Return the newest checkpoint whose every byte is as it was written; None if there is none.

    Newer ones that are damaged are renamed to `step-....corrupt` and returned: their paths, and
    what is wrong. Nothing is deleted.

    Raises:
        BertworksError: a checkpoint of a later version of this software, or one that the disk does
            not give now: they must not be renamed.
    """
    damaged: dict[Path, str] = {}
    for step, path in reversed(_checkpoints(Path(folder))):
        try:
            return _read(path, step), damaged
        except ValueError as error:
            damaged[_quarantine(path)] = str(error)
    return None, damaged


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Steps and paths of all checkpoints, oldest first."""
    matches = [(_NAME.fullmatch(path.name), path) for path in folder.glob("step-*")]
    return sorted((int(match[1]), path) for match, path in matches if match)


def _read(path: Path, step: int) -> Checkpoint:
    """Everything in it, verified.

    ValueError if a byte is not as it was written.
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        # the same rule in every format
        check(manifest["sha256"] == json_sha256(manifest), "not as it was written")
        require(
            manifest["format"] <= FORMAT,
            f"a checkpoint of format {manifest['format']}; this version knows formats up to "
            f"{FORMAT}",
            path,
            "use a newer version of bertworks",
        )
        check(manifest["step"] == step, f"it is that of step {manifest['step']}")
        expected = manifest["files"][_TENSORS]
        size = (path / _TENSORS).stat().st_size
        check(
            size == expected["bytes"],
            f"{_TENSORS} has {size:,} bytes instead of {expected['bytes']:,}",
        )
        check(sha256(path / _TENSORS) == expected["sha256"], f"the sha256 of {_TENSORS} differs")
        return Checkpoint(path, step, read_tensors(path / _TENSORS), manifest["facts"])
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ValueError(
            f"{Path(error.filename or path).name} cannot be read: {error.strerror}"
        ) from error
    except OSError as error:  # it may be as good as ever: a network disk that is away, permissions
        raise BertworksError(
            f"cannot be read: {error.strerror}",
            where=path,
            hint="try again; if it fails again, move this checkpoint away: the one before it is "
            "then used",
        ) from None
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{_MANIFEST}: {error}") from error


def _quarantine(path: Path) -> Path:
    """Rename a checkpoint to a name that is no checkpoint's.

    Where even that is impossible it stays, and is skipped again.
    """
    names = (
        path.with_name(f"{path.name}.corrupt{number if number > 1 else ''}") for number in count(1)
    )
    try:
        return path.rename(next(name for name in names if not name.exists()))
    except OSError:
        return path
