"""What only some operating systems have: one function for each, and what it does elsewhere.

- `read_system_file`: a file of /proc or /sys; empty where there is none
- `flush_to_disk`: fsync of a file, and of a folder where folders can be opened
- `exchange_names`: swap two names in one step; False where the system cannot
- `process_exists`: whether a process runs; yes where that is not known
- `physical_memory`: the memory of the machine; unlimited where the system does not tell it
- `resident_memory`: that of this process; 0 where the system does not tell it
- `raise_file_limit`, `enlarge_pipe`, `lower_priority`: no effect where they do not exist
- `has_room`: whether a pipe takes a line at once; yes where that is not known
- `can_limit_processes`: whether a process can be limited in memory, time and output

No other module of the package imports `fcntl`, `resource` or another module that a platform lacks,
but for `checkpoints/pickle_reader`, a program that checks `can_limit_processes` before it starts.
"""

import ctypes
import mmap
import os
import select
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

IS_POSIX = os.name == "posix"
UNLIMITED = sys.maxsize  # bytes
_AT_CURRENT_FOLDER = -100  # AT_FDCWD
_RENAME_EXCHANGE = 2
_LOWEST_PRIORITY = 19


def read_system_file(path: str | Path) -> str:
    """Return the text of a small system file; empty if it does not exist."""
    with suppress(OSError):
        return Path(path).read_text(encoding="utf-8", errors="replace")
    return ""


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to disk.

    Windows opens no folders, and flushes only files that are open for writing.

    Raises:
        OSError: the disk is full or broken.
    """
    if not IS_POSIX and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if IS_POSIX else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange_names(first: Path, second: Path) -> bool:
    """Swap two names in one step (renameat2 of Linux); False if the system cannot."""
    if not IS_POSIX:
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here = _AT_CURRENT_FOLDER
    names = (os.fsencode(first), os.fsencode(second))
    return bool(rename and rename(here, names[0], here, names[1], _RENAME_EXCHANGE) == 0)


def process_exists(process: int) -> bool:
    """Return whether a process of this number runs, also one of another user.

    Signal 0 tells this on POSIX. On Windows it would end the process: there the answer is yes.
    """
    if not IS_POSIX:
        return True
    try:
        with suppress(PermissionError):  # it belongs to another user
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def physical_memory() -> int:
    """Return the memory of the machine in bytes; UNLIMITED where the system does not tell it."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    return UNLIMITED


def resident_memory() -> int:
    """Return the memory of this process in bytes; 0 where there is no /proc."""
    sizes = read_system_file("/proc/self/statm").split()
    return int(sizes[1]) * mmap.PAGESIZE if sizes else 0


def raise_file_limit(count: int) -> None:
    """Let this process open up to `count` files, or as many as the hard limit allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    # -1: no limit
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < count else count, hard))


def enlarge_pipe(descriptor: int, size: int) -> None:
    """Let a pipe hold `size` bytes (Linux); no effect on anything else."""
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, size)


def has_room(descriptor: int) -> bool:
    """Return whether a short write to a descriptor returns at once.

    Windows tells this of sockets only; there the answer is yes.

    Raises:
        OSError: the descriptor is closed.
    """
    if not IS_POSIX:
        return True
    return bool(select.select([], [descriptor], [], 0)[1])


def lower_priority(steps: int) -> None:
    """Raise the niceness of the calling thread, and of those that it starts (Linux)."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        niceness = os.getpriority(os.PRIO_PROCESS, thread) + steps
        os.setpriority(os.PRIO_PROCESS, thread, min(_LOWEST_PRIORITY, niceness))


def can_limit_processes() -> bool:
    """Return whether a process can be limited as `checkpoints/pickle_reader` does (Linux)."""
    return find_spec("resource") is not None and bool(read_system_file("/proc/self/statm"))
