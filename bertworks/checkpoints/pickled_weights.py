"""Weights in pytorch_model.bin, which is a pickle: a program.

Only `convert --trust-pickle` reads them.

A child process (`pickle_reader`) reads the file and writes the tensors as safetensors; this process
never opens the pickle. It reads what the child wrote as it reads any safetensors file of a
stranger: sizes and places are checked against the length of the file. So even a child that a
hostile file controls can only hand over other numbers, which the author of the file could have put
into it anyway.
"""

import os
import subprocess
import sys
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from torch import Tensor

from bertworks.checkpoints import pickle_reader
from bertworks.checkpoints.storage import read_index, read_tensors
from bertworks.errors import BertworksError, explain_os_errors, printable, require, some_names
from bertworks.io.atomic_write import LFS_POINTER, refuse_lfs_pointer
from bertworks.io.system import can_limit_processes

PICKLE = "pytorch_model.bin"
PICKLE_INDEX = f"{PICKLE}.index.json"  # of weights in several files
PICKLE_FILES = (PICKLE, PICKLE_INDEX, "pytorch_model-*.bin")
_FIRST_SECONDS = 120  # the time that a file may take, however small it is
_BYTES_PER_SECOND = 5_000_000  # the speed of a slow disk
_LONGEST_ANSWER = 20_000  # characters that the child may print
# The child sees no other variables of the environment: no tokens and no keys.
_VARIABLES = ("LD_LIBRARY_PATH", "TMPDIR")
_LINUX_HINT = "choose a model with safetensors, or convert this one on Linux"
_HINT = "choose a model with safetensors, or ask the author of this one for them"


class PickledWeights(NamedTuple):
    """Tensors under the names in their files, and sentences on what was left out or renamed."""

    tensors: dict[str, Tensor]
    notes: list[str]


def find_pickle(folder: Path) -> Path | None:
    """Return the pickle with the weights in a folder, the index of several, or None."""
    for name in (PICKLE, PICKLE_INDEX):
        if (folder / name).exists():
            return folder / name
    return None


def read_pickled_weights(pickle: Path, scratch: Path, root: Path) -> PickledWeights:
    """Read weights from a pickle, or from the pickles of an index, in a child process.

    Args:
        pickle: what `find_pickle` returned.
        scratch: an empty folder, for the weights as safetensors. The tensors are maps of the files
            in it.
        root: the folder that the files must be in, also where they are links.

    Raises:
        BertworksError: a file is missing, damaged or hostile, holds something else than weights, or
            takes too long.
    """
    names = {PICKLE}
    index = None
    if pickle.name == PICKLE_INDEX:
        index = read_index(pickle, ".bin")
        names = set(index.values())
    tensors: dict[str, Tensor] = {}
    notes: list[str] = []
    for number, name in enumerate(sorted(names)):
        file = pickle.with_name(name)
        _check_file(file, root)
        target = scratch / f"{number}.safetensors"
        left_out = _convert(file, target)
        if left_out:
            notes.append(f"left out of {name}: {some_names(left_out, 20)}")
        tensors |= read_tensors(target)
    strays = set() if index is None else index.keys() ^ tensors.keys()
    if strays:
        raise BertworksError(f"the index and its files disagree about {min(strays)}", where=pickle)
    prefix = "module."  # of a network that several GPUs trained
    if tensors and all(name.startswith(prefix) for name in tensors):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
        notes.append(f"{prefix!r} is removed from the names of all tensors")
    return PickledWeights(tensors, notes)


def _check_file(file: Path, root: Path) -> None:
    """Raise BertworksError unless this is a file in a folder, and no link that leads out of it."""
    with explain_os_errors("cannot be read", file, "get the whole model"):
        place = file.resolve(strict=True)
        is_file = S_ISREG(place.stat().st_mode)
        require(
            root.resolve() in place.parents,
            "a link that leads out of the model folder",
            file,
            _HINT,
        )
        require(is_file, "a folder, a pipe or a device", file, _HINT)
        with file.open("rb") as opened:
            refuse_lfs_pointer(opened.read(len(LFS_POINTER)), file)


def _convert(file: Path, target: Path) -> list[str]:
    """Write the tensors of a pickle as safetensors, and return the names of what was left out.

    A child process does this.
    """
    require(
        can_limit_processes(),
        "pickled weights are read only on Linux, where the process that reads them can be limited",
        file,
        _LINUX_HINT,
    )
    seconds = _FIRST_SECONDS + file.stat().st_size // _BYTES_PER_SECOND
    # -I: neither variables nor the current folder decide what is imported; -B: no compiled files
    # are written.
    program = [
        sys.executable,
        "-I",
        "-B",
        "-W",
        "ignore",
        str(Path(pickle_reader.__file__).resolve()),
    ]
    places = [path for path in sys.path if Path(path).is_absolute()]
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    answer = target.with_suffix(".txt")
    trouble = target.with_suffix(".log")
    try:
        with answer.open("wb") as output, trouble.open("wb") as errors:
            process = subprocess.run(
                [*program, str(file.resolve()), str(target), str(seconds), *places],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=variables | {"OMP_NUM_THREADS": "1"},
                cwd=target.parent,
                timeout=seconds,
                start_new_session=True,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise BertworksError(
            f"it takes more than {seconds} s to read: weights of this size do not",
            where=file,
            hint=_HINT,
        ) from None
    lines = _lines(answer)
    if process.returncode == pickle_reader.REFUSED and lines:
        raise BertworksError(f"not read: {lines[0][:400]}", where=file, hint=_HINT)
    if process.returncode:
        how = " ".join([f"exit code {process.returncode}", *_lines(trouble)[-1:]])[:400]
        if process.returncode < 0:
            how = f"signal {-process.returncode}, perhaps for lack of memory or time"
        raise BertworksError(f"the process that read it has ended ({how})", where=file, hint=_HINT)
    return [line for line in lines if line]


def _lines(file: Path) -> list[str]:
    """Return the lines that the child printed, which may be a stranger's."""
    with file.open(encoding="utf-8", errors="replace") as text:
        return [printable(line) for line in text.read(_LONGEST_ANSWER).splitlines()]
