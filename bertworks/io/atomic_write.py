"""Files and folders that are there whole or not at all: written aside, fsynced, renamed into place; sha256 of files.

It is not a format and knows no file of ours: it only moves bytes safely. A reader sees the old content or the new one,
also after `kill -9` or a power cut; a full disk costs nothing that was saved before.
"""

import ctypes
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from bertworks.errors import BertworksError, UsageError

_COUNTER = itertools.count()
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Libraries that write by themselves report a full disk in words only (safetensors, numpy's tofile).
_DISK_FULL_WORDS = re.compile(r"No space left on device|os error 28\b|\d+ requested and \d+ written")
_LEFTOVER = re.compile(r"\..+@(?P<host>[^@]*)\.(?P<process>\d+)(-(?P<began>\d+))?\.\d+\.tmp")
_MOST_LISTS, _MOST_NAMES = 300_000, 900_000  # the largest vocabularies of BERTs have 250,000 and 500,000 words
_LONGEST_NAME = 100  # bytes of a name that are in the name of its temporary sibling; file systems allow 255 in all
_AT_CURRENT_FOLDER = -100  # AT_FDCWD
_RENAME_EXCHANGE = 2


def read_small(path: Path, limit: int) -> bytes:
    """All of a file that may be a stranger's: no link to a device, no pipe, no more than `limit` bytes.

    Raises:
        BertworksError: no such file, or one that is no regular file or too large.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BertworksError("this is no file, but a folder, a pipe or a device", where=str(path))
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise BertworksError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(content) > limit:
        raise BertworksError(f"{path.stat().st_size / 1e6:.0f} MB: too much for this file", where=str(path))
    return content


def refuse_unwritable(path: str | Path) -> None:
    """What is to be written at the end is tried at the beginning: nothing is to be lost then.

    Raises:
        BertworksError: no file can be made there.
    """
    target = Path(path).expanduser()
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise BertworksError(
            f"cannot be written: {error.strerror}", where=str(path), hint="name another place with -o"
        ) from None


def refuse_file(folder: Path) -> None:
    """What becomes a folder must not be a file, nor lie below one.

    Raises:
        UsageError: it is.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise UsageError("there is a file of that name", where=str(there), hint="choose another folder with -o")


def refuse_nested(output: Path, paths: Iterable[str], corpora: Sequence[str] = ()) -> None:
    """What is read must not change because of what is written.

    Raises:
        UsageError: the folder holds what is to be read, or lies within the corpus.
    """
    target = output.resolve()
    for one in paths:
        if not Path(one).is_absolute():  # standard input, or the name of a model
            continue
        path = Path(one).resolve()
        if target in (path, *path.parents):
            raise UsageError(
                f"the output folder holds what is to be read: {one}", where=str(output), hint="-o ANOTHER-FOLDER"
            )
        if one in corpora and path.is_dir() and path in target.parents:
            raise UsageError(
                f"the output folder lies in the folder that is read, {one}: what is written would become its text",
                where=str(output),
                hint="-o A-FOLDER-ELSEWHERE",
            )


def refuse_many_parts(content: bytes, where: Path) -> None:
    """Raises BertworksError for JSON with more lists, objects or names than can be read without hundreds of
    megabytes: an empty list is 3 bytes there, and 80 in memory."""
    if content.count(b"[") + content.count(b"{") > _MOST_LISTS or content.count(b":") > _MOST_NAMES:
        raise BertworksError("too many parts for this file", where=str(where))


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a whole file atomically; missing folders above it are made."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    r"""Write a whole UTF-8 file atomically, newlines as they are.

    A file name that is not UTF-8 has lone surrogates in Python. They become \udce9 and the like, which is what JSON
    calls them too: read again, the name is the same.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, content: Any) -> None:
    """Write a whole JSON file atomically, for people to read as well."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling to write to; when the block ends well it takes the place of `path`, durably.

    When the block fails, the temporary file is removed and whatever was at `path` stays.

    Raises:
        BertworksError: the disk is full, or the file cannot be written there.
    """
    with _aside(path) as (target, temporary):
        yield temporary
        _fsync(temporary)
        temporary.replace(target)
        _fsync(target.parent)


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new temporary sibling folder to fill; when the block ends well it takes the place of `path`, durably.

    A folder already there is exchanged with the new one in one step of the file system where it can (Linux), and then
    deleted; elsewhere there is an instant in which it stands beside, under a temporary name.

    Raises:
        BertworksError: the disk is full, or the folder cannot be written there.
    """
    with _aside(path) as (target, temporary):
        if target.exists() and not target.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "there is a file of that name", str(target))
        temporary.mkdir()
        yield temporary
        for folder, _, files in os.walk(temporary, topdown=False):
            for file in files:
                _fsync(Path(folder) / file)
            _fsync(Path(folder))
        if not target.exists():
            temporary.rename(target)
        elif not _exchange(temporary, target):
            _exchange_by_renames(temporary, target)
        _fsync(target.parent)
    _remove(temporary)  # the former content, if there was any


def remove_leftovers(folder: str | Path, *, name: str | None = None) -> int:
    """Delete what killed processes of this machine left half-written in `folder`; return how many there were.

    Args:
        name: only the leftovers of this file or folder; None: of all.
    """
    removed = 0
    for entry in Path(folder).glob(".*.tmp"):
        match = _LEFTOVER.fullmatch(entry.name)
        if match is None or match["host"] != socket.gethostname() or _is_writing(int(match["process"]), match["began"]):
            continue
        if name is None or entry.name.startswith(f".{_cut(name)}@"):
            _remove(entry)
            removed += 1
    return removed


def sha256(path: str | Path) -> str:
    """The sha256 of a file's bytes in hexadecimal, read as a stream."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cut(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_LONGEST_NAME])


@contextmanager
def _aside(path: str | Path) -> Iterator[tuple[Path, Path]]:
    """What a path names, and a sibling to write to: a name that no other process or thread uses and that
    `remove_leftovers` recognises. When the block fails, the sibling goes, and the reason is reported plainly."""
    target = Path(os.path.realpath(path))
    began = _beginning(os.getpid())
    writer = f"{os.getpid()}-{began}" if began else str(os.getpid())
    temporary = target.with_name(f".{_cut(target.name)}@{socket.gethostname()}.{writer}.{next(_COUNTER)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, name=target.name)
        yield target, temporary
    except BaseException as error:
        _remove(temporary)
        if (isinstance(error, OSError) and error.errno in _DISK_FULL) or _DISK_FULL_WORDS.search(str(error)):
            raise _disk_full(target) from error
        if isinstance(error, OSError) and _concerns(error, target):
            raise BertworksError(
                f"cannot be written: {error.strerror}",
                where=str(target),
                hint="choose another place, or make this one writable",
            ) from error
        raise


def _concerns(error: OSError, target: Path) -> bool:
    """Whether an error is about the place we write to, and not about some file that the caller's block read."""
    names = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return any(name.parent == target.parent or name in target.parents for name in names)


def _disk_full(target: Path) -> BertworksError:
    existing = next(folder for folder in target.parents if folder.exists())
    free = shutil.disk_usage(existing).free
    return BertworksError(
        f"the disk is full ({free / 1e6:.1f} MB free, or a quota or limit is reached): this was not written; "
        "nothing that was already saved has been touched",
        where=str(target),
        hint=f"free space on the disk of {existing} or choose an output folder elsewhere, then type the same again",
    )


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (renameat2 of Linux); False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(first), os.fsencode(second)
    return bool(rename(_AT_CURRENT_FOLDER, names[0], _AT_CURRENT_FOLDER, names[1], _RENAME_EXCHANGE) == 0)


def _exchange_by_renames(temporary: Path, target: Path) -> None:
    """The same in three steps. Killed in between, the former content stays, under a name that nothing ever deletes."""
    former = temporary.with_suffix(".former")
    target.rename(former)
    try:
        temporary.rename(target)
    except OSError:
        former.rename(target)
        raise
    former.rename(temporary)


def _is_writing(process: int, began: str | None) -> bool:
    """Is the process at work that had this number and began then? Numbers come again, in containers at once."""
    return _is_alive(process) and (began is None or _beginning(process) in ("", began))


def _beginning(process: int) -> str:
    """When a process began, in ticks of the machine's clock; "" where the system does not tell (it is Linux that does,
    in proc(5), /proc/pid/stat: the 22nd field, of which the second is a name in parentheses)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[19].decode()
    except (OSError, IndexError):
        return ""


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):  # whatever prevents it was reported already, or is reported by the next who writes
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
