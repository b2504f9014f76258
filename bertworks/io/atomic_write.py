"""Files and folders that are complete or absent, also after `kill -9`, a power cut or a full disk.

- `replacing`, `replacing_folder`, `write_bytes`, `write_text`, `write_json`: write to a temporary
  name, fsync, then rename
- `sealing`, `is_sealed`: files without a manifest, such as the portions of a job, that carry the
  hash of their content and of what it belongs to
- `sha256`, `json_sha256`: the hashes of a file, and of a manifest, which holds its own
- `remove_leftovers`: temporary files of killed processes
- `temporary_folder`: a folder that is deleted together with an object
- `folder_lock`: one writer at a time
- `refuse_unwritable`, `refuse_file`, `refuse_not_empty`, `refuse_nested`: checks of output paths
  before the work begins
- `read_small`, `parse_json`, `refuse_lfs_pointer`: limits for files from untrusted sources
"""

import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from filelock import FileLock, Timeout

from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    explain_os_errors,
    quoted,
    require,
)
from bertworks.io.system import exchange_names, flush_to_disk, process_exists, read_system_file

SCHEMES = ("s3", "gs", "hf", "memory")  # of URLs that are read; all but hf:// are written, too
LFS_POINTER = b"version https://git-lfs.github.com/spec/"  # the first bytes of such a file
SEAL = 32  # bytes that `sealing` appends
_BLOCK = 1 << 20  # bytes that are read at a time
_COUNTER = itertools.count()
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and numpy's tofile report a full disk in words only.
_DISK_FULL_WORDS = re.compile(
    r"No space left on device|os error 28\b|\d+ requested and \d+ written"
)
# the largest vocabularies of BERT models have 250,000 and 500,000 tokens
_MAX_LISTS = 300_000
_MAX_NAMES = 900_000
# of a name, kept in the name of its temporary sibling; file systems allow 255
_MAX_NAME_BYTES = 100
_LOCK_SECONDS = 0.1  # to acquire a lock that a process is about to release


def url_of(path: object) -> str | None:
    """A URL with both slashes, of which a Path keeps one; None: it is a path, or something else.

    Raises:
        UsageError: a URL that is not read, or one with a name and a password, which is not printed.
    """
    match = (
        re.match("([a-z][a-z0-9+.-]+):/+(?=[^/])", str(path))
        if isinstance(path, str | PathLike)
        else None
    )
    if match:
        _refuse_password(match[1], str(path)[match.end() :])
    if match and match[1] not in SCHEMES:
        raise UsageError(
            f"{match[1]}:// is not read or written",
            where=path,
            hint="copy the file to this machine and name that; or a URL with "
            f"{', '.join(f'{s}://' for s in SCHEMES)}",
        )
    return f"{match[1]}://{str(path)[match.end() :]}" if match else None


def _refuse_password(scheme: str, address: str) -> None:
    """Raise UsageError for USER:PASSWORD@HOST in a URL, without the password.

    Messages are logged, and a request with these words would send it to another host. A secret key
    may have slashes.
    """
    before, at_sign, host = address.rpartition("@")
    is_name = ":" in before.partition("/")[0] or "/" not in before
    if at_sign and is_name:
        hint = "leave it out, and give the access by the environment: "
        hint += "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (s3), "
        hint += "GOOGLE_APPLICATION_CREDENTIALS (gs) or HF_TOKEN (hf)"
        raise UsageError(
            "a URL with a name or a password", where=f"{scheme}://...@{host}", hint=hint
        )


def local_path(path: str | PathLike[str], what: str = "output") -> Path:
    """Return a path on this machine; ~ stands for the home folder. what: its name in the message.

    Raises:
        UsageError: it is a URL, or something else, such as a list of paths; or it begins with ~ and
            the name of a user that does not exist.
    """
    if not isinstance(path, str | PathLike):
        raise UsageError(
            f"expected one {what}, not {path!r:.60}", hint=f"give one {what} as a string or a Path"
        )
    expect(
        not (url := url_of(path)),
        "a function cannot write to a URL",
        where=url,
        hint="write to the path that bertworks.published yields for this URL",
    )
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"this {what} begins with {path.parts[0]}, and this machine has no such user",
            where=str(path),
            hint=f"write the whole path; if a folder has this name: {quoted(f'./{path}')}",
        ) from error


def read_small(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes.

    The file may come from an untrusted source.

    Raises:
        BertworksError: the file is missing, too large, or a folder, pipe or device.
    """
    hint = "name another file"
    with explain_os_errors("cannot be read", path):
        require(
            stat.S_ISREG(path.stat().st_mode),
            "this is not a file, but a folder, a pipe or a device",
            path,
            hint,
        )
        with path.open("rb") as file:
            content = file.read(limit + 1)
    refuse_lfs_pointer(content, path)
    require(
        len(content) <= limit,
        f"{path.stat().st_size / 1e6:.0f} MB: too much for this file",
        path,
        hint,
    )
    return content


def refuse_lfs_pointer(start: bytes, where: object) -> None:
    """Raise BertworksError for a pointer of Git LFS.

    It is the three lines that stand for a large file in a repository.

    Args:
        start: the first bytes of the file, at least `LFS_POINTER`.
        where: the file, for the message.
    """
    require(
        not start.startswith(LFS_POINTER),
        "this is not the file itself but a pointer of Git LFS: the repository was cloned "
        "without git-lfs",
        where,
        "install git-lfs, then type `git lfs pull` in the cloned folder; or download the file "
        "from its web page",
    )


def parse_json(
    content: bytes,
    path: Path,
    *,
    hint: str | None = None,
    hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return a JSON value from an untrusted source.

    Args:
        path: of the file, for errors.
        hint: for errors.
        hook: makes an object from its names and values; None: a dict.

    Raises:
        BertworksError: it is not JSON, or absurdly deep or long-numbered, or it would take hundreds
            of megabytes once parsed: an empty list has 2 bytes in the file and 80 in memory.
    """
    if content.count(b"[") + content.count(b"{") > _MAX_LISTS or content.count(b":") > _MAX_NAMES:
        raise BertworksError("too many parts for this file", where=path)
    try:
        return json.loads(content, object_pairs_hook=hook)
    except (RecursionError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        what = (
            "nested too deeply"
            if isinstance(error, RecursionError)
            else getattr(error, "msg", str(error))[:100]
        )
        raise BertworksError(f"not valid JSON: {what}", where=f"{path}{line}", hint=hint) from None


@contextmanager
def utf8_path(path: Path) -> Iterator[Path]:
    """Yield a path for libraries that know only names in UTF-8.

    It is the same path, or a link to it, which need not exist.
    """
    name = str(path).encode("utf-8", "replace").decode()
    if name == str(path):
        yield path
        return
    with TemporaryDirectory() as folder:
        (link := Path(folder, Path(name).name)).symlink_to(path.absolute())
        yield link


def refuse_unwritable(path: str | Path | None) -> None:
    """Check early that an output file can be written, so that no result is lost at the end.

    Raises:
        BertworksError: no file can be created there.
    """
    if path is None:
        return
    target = local_path(path)
    with explain_os_errors("cannot be written", path, "choose another path with -o"):
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=target.parent).close()


def refuse_existing(path: str | Path | None, overwrite: bool) -> None:
    """Check that an output file does not exist, or may be replaced.

    Raises:
        UsageError: it exists.
    """
    if path is not None and local_path(path).is_file():
        refuse_replacing(path, overwrite)


def refuse_replacing(path: object, overwrite: bool) -> None:
    """Raise UsageError for a file that exists, unless it may be replaced."""
    expect(
        overwrite,
        "this file already exists",
        where=path,
        hint="use another -o, or --overwrite",
    )


def refuse_file(folder: Path) -> None:
    """Check that an output folder is not a file and not inside a file.

    Raises:
        UsageError: it is.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    expect(
        existing.is_dir(),
        "this is a file, not a folder",
        where=existing,
        hint="choose another folder with -o",
    )


def refuse_not_empty(
    folder: Path, overwrite: bool | None = None, inputs: Iterable[str | Path] = ()
) -> None:
    """Check that an output folder does not exist, or is empty, or may be replaced.

    Args:
        overwrite: whether its content may be replaced; None: the command has no such option.
        inputs: what is read to write it: files, folders or names of models.

    Raises:
        UsageError: it is a file, or has content; it may be replaced, but has an input in it.
    """
    refuse_file(folder)
    if overwrite:
        refuse_nested(folder, [str(Path(name).absolute()) for name in inputs])
    elif folder.exists() and any(folder.iterdir()):
        option = "" if overwrite is None else ", or --overwrite, which replaces its content"
        raise UsageError(
            "the folder is not empty",
            where=folder,
            hint=f"choose a folder that does not exist{option}",
        )


def refuse_nested(output: Path, inputs: Iterable[str], corpora: Sequence[str] = ()) -> None:
    """Check that writing the output does not change an input.

    Raises:
        UsageError: the output folder contains an input, or lies inside an input folder that is in
            `corpora`.
    """
    target = output.resolve()
    # not standard input, or the name of a model
    for path in filter(Path.is_absolute, map(Path, inputs)):
        real = path.resolve()
        expect(
            target not in (real, *real.parents),
            f"the output folder contains an input: {path}",
            where=output,
            hint="-o ANOTHER-FOLDER",
        )
        if path in map(Path, corpora) and real.is_dir() and real in target.parents:
            raise UsageError(
                f"the output folder lies in the input folder {path}: the output would become "
                "part of the text",
                where=output,
                hint="-o A-FOLDER-ELSEWHERE",
            )


@contextmanager
def folder_lock(folder: Path, busy: str, hint: str) -> Iterator[None]:
    """Hold a folder for this process, by a hidden file with the number of the process.

    The system releases it when the process ends, however it ends.

    Args:
        busy: the message if another process holds it; {process} becomes the number of that process.

    Raises:
        UsageError: the folder is a file.
        BertworksError: another process holds it, or it cannot be written.
    """
    refuse_file(folder)
    path = folder / ".lock"
    space = "free space on that disk and make the folder writable, or choose another folder with -o"
    with ExitStack() as stack:
        with explain_os_errors("cannot be written", folder, space):
            folder.mkdir(parents=True, exist_ok=True)
            process = read_system_file(path)[:20].strip() or "unknown"
            # in most cases it is released where it was acquired; a generator may be closed by
            # another thread
            try:
                stack.enter_context(
                    FileLock(
                        path, timeout=_LOCK_SECONDS, thread_local=False, fallback_to_soft=False
                    )
                )
            except Timeout:
                raise BertworksError(
                    busy.format(process=process), where=folder, hint=hint
                ) from None
            path.write_text(f"{os.getpid()}\n")
        yield


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file atomically.

    Missing parent folders are created.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    r"""Write a UTF-8 file atomically, with its newlines unchanged.

    A file name that is not UTF-8 has lone surrogates in Python. They are written as \udce9 and the
    like, as in JSON, so that the name is the same when it is read.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: str | Path, content: Any) -> None:
    """Write an indented JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary sibling to write to.

    Its name is unique among processes and threads; see also `utf8_path`. When the block ends
    without an error, it is fsynced and replaces `path`; otherwise it is removed and `path` stays as
    it was.

    Raises:
        BertworksError: the disk is full, or the file cannot be written there.
    """
    target = Path(os.path.realpath(local_path(path)))
    temporary = temporary_sibling(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, name=target.name)
        with utf8_path(temporary) as name:
            yield name
        for new_path in (*temporary.rglob("*"), temporary):
            flush_to_disk(new_path)
        if not (temporary.is_dir() and target.exists()):
            temporary.replace(target)
        elif not exchange_names(temporary, target):
            # a process that is killed in between leaves the former content under a name that
            # `remove_leftovers` does not delete
            former = temporary.with_suffix(".former")
            target.rename(former)
            try:
                temporary.rename(target)
            finally:
                former.rename(temporary if target.exists() else target)
        flush_to_disk(target.parent)
    except BaseException as error:
        if (isinstance(error, OSError) and error.errno in DISK_FULL) or _DISK_FULL_WORDS.search(
            str(error)
        ):
            disk = next(folder for folder in target.parents if folder.exists())
            raise BertworksError(
                f"the disk is full ({shutil.disk_usage(disk).free / 1e6:.1f} MB free, or a quota "
                "or limit is reached): this was not written; files saved before are unchanged",
                where=target,
                hint=f"free space on the disk of {disk} or use another output folder, then run the "
                "same command again",
            ) from error
        if isinstance(error, OSError) and (error.errno == errno.EIO or _concerns(error, target)):
            raise BertworksError(
                f"cannot be written: {error.strerror}",
                where=target,
                hint="choose another path, or make this one writable",
            ) from error
        raise
    finally:
        remove(temporary)  # what is incomplete; or the former folder, if there was one


@contextmanager
def sealing(path: Path, key: str) -> Iterator[Path]:
    """`replacing`, with the sha256 of a key and of the content at the end of the file.

    The key says what the content belongs to.
    """
    with replacing(path) as temporary:
        yield temporary
        with temporary.open("r+b") as file:
            file.write(_seal_of(file, key, temporary.stat().st_size))


def is_sealed(path: Path, key: str) -> bool:
    """Return whether a file has the content and the key with which it was sealed."""
    size = path.stat().st_size - SEAL if path.is_file() else -1
    if size < 0:
        return False
    with path.open("rb") as file:
        return _seal_of(file, key, size) == file.read()


def _seal_of(file: IO[bytes], key: str, size: int) -> bytes:
    """Return the sha256 of a key and of the first `size` bytes of a file, which are read."""
    digest = hashlib.sha256(f"{key}\n".encode())
    while block := file.read(min(_BLOCK, size - file.tell())):
        digest.update(block)
    return digest.digest()


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new temporary folder to fill.

    When the block ends without an error, it replaces `path`, as `replacing`.

    On Linux, an existing folder is exchanged with the new one in one step and then deleted.
    Elsewhere it has another name for a moment.

    Raises:
        UsageError: `path` is a file.
        BertworksError: the disk is full, or the folder cannot be written there.
    """
    refuse_file(Path(path))
    with replacing(path) as temporary:
        temporary.resolve().mkdir()  # it may be a link to what does not exist yet
        yield temporary


@contextmanager
def temporary_folder() -> Iterator[tuple[Path, object]]:
    """Make a temporary folder that lives longer than the block, and yield its path and its owner.

    The folder is deleted together with the owner, when the process ends, or at once if the block
    raises an error.
    """
    with ExitStack() as stack:
        folder = TemporaryDirectory(prefix="bertworks-", ignore_cleanup_errors=True)
        yield Path(stack.enter_context(folder)), stack
        weakref.finalize(stack, stack.pop_all().close)


def temporary_sibling(target: Path) -> Path:
    """Return a new hidden name in the folder of a target.

    What has it is deleted by `remove_leftovers`.
    """
    writer = f"{os.getpid()}-{_start_time(os.getpid())}"
    return hidden_sibling(target, f"@{socket.gethostname()}.{writer}.{next(_COUNTER)}.tmp")


def remove_leftovers(folder: str | Path, *, name: str | None = None) -> None:
    """Delete temporary files and folders that killed processes of this machine left in `folder`.

    Args:
        name: delete the leftovers of this file or folder only; None: all.
    """
    targets = re.escape(_shorten(name)) if name else ".+"
    host = re.escape(socket.gethostname())
    for entry in Path(folder).glob(".*.tmp"):
        # a temporary file may have one of its own
        ending = rf"@{host}\.(?P<process>\d+)-?(?P<start>\d*)\.\d+\.tmp"
        match = re.fullmatch(rf"\.+{targets}(?:@.+\.tmp)?{ending}", entry.name, re.DOTALL)
        if match and not _is_running(int(match["process"]), match["start"]):
            remove(entry)


def sha256(path: str | Path) -> str:
    """Return the sha256 of a file in hexadecimal.

    The file is read as a stream.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(content: Mapping[str, Any]) -> str:
    """Return the sha256 of a JSON object without its value `sha256`.

    White space and the order of the names make no difference.

    Raises:
        ValueError, TypeError: it holds something that is not JSON, such as NaN.
    """
    hashed = {name: value for name, value in content.items() if name != "sha256"}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _shorten(name: str) -> str:
    """Return the name; of a long one the beginning, and a hash by which two of them differ."""
    whole = os.fsencode(name)
    if len(whole) <= _MAX_NAME_BYTES:
        return name
    return f"{os.fsdecode(whole[:_MAX_NAME_BYTES])}-{hashlib.sha256(whole).hexdigest()[:16]}"


def hidden_sibling(target: Path, ending: str) -> Path:
    """Return the path of a hidden file or folder next to a target, such as `.NAME.lock`."""
    return target.with_name(f".{_shorten(target.name)}{ending}")


def _concerns(error: OSError, target: Path) -> bool:
    """Return whether an error is about the folder of the target.

    Else it is about a file that the caller reads.
    """
    names = [
        Path(os.fsdecode(name))
        for name in (error.filename, error.filename2)
        if isinstance(name, str | bytes)
    ]
    return any(name.parent == target.parent or name in target.parents for name in names)


def _start_time(process: int) -> str:
    """Return when a process started, in clock ticks of the machine.

    Linux tells it in field 22 of /proc/pid/stat (proc(5)), of which the second field is a name in
    parentheses. Other systems do not: then it is empty.
    """
    fields = read_system_file(f"/proc/{process}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _is_running(process: int, start: str) -> bool:
    """Return whether a process runs.

    Another may have the same number: a later one, or one of another container.

    Args:
        start: when it started; empty if that is unknown.
    """
    if not process_exists(process):
        return False
    return not start or _start_time(process) in ("", start)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it exists and can be deleted."""
    # the cause is already reported, or will be at the next attempt to write
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
