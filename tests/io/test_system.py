"""What a system lacks is not needed: each function of io/system does what it says without it, and
the whole package is imported without the modules of POSIX."""

import ast
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bertworks.errors import BertworksError
from bertworks.io import system
from bertworks.io.atomic_write import remove_leftovers, replacing_folder, temporary_sibling
from bertworks.training import device
from tests.support import ROOT

# Modules that Windows or macOS lack, and functions of `os` that only some systems have.
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline")
FUNCTIONS = (
    "fork",
    "getpriority",
    "kill",
    "killpg",
    "posix_fadvise",
    "sched_getaffinity",
    "sched_setaffinity",
    "setpriority",
    "sysconf",
)
PLACES = {  # where they are used: behind a function that has a fallback
    "fcntl": {"io/system.py"},
    "resource": {"io/system.py", "checkpoints/pickle_reader.py"},
    "getpriority": {"io/system.py"},
    "kill": {"io/system.py"},
    "sched_getaffinity": {"io/processes.py"},
    "setpriority": {"io/system.py"},
    "sysconf": {"io/system.py"},
}
IMPORT_ALL = f"""
import os, sys
sys.modules.update(dict.fromkeys({MODULES!r}))
import torch, subprocess, multiprocessing  # whose own business it is what they need
for name in {FUNCTIONS!r}:
    vars(os).pop(name, None)
import bertworks, importlib, pkgutil
for module in pkgutil.walk_packages(bertworks.__path__, "bertworks."):
    importlib.import_module(module.name)
from bertworks.io.processes import available_cpus
from bertworks.training.device import memory_in_use, total_memory
assert available_cpus() >= 1
assert total_memory() == sys.maxsize
"""


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without the modules and functions of POSIX, as far as this package can see."""
    for name in MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    for name in FUNCTIONS:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(system, "IS_POSIX", False)
    monkeypatch.setattr(sys, "platform", "win32")


def test_the_package_is_imported_without_the_modules_of_posix():
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORT_ALL],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_they_are_used_in_these_places_only():
    places: dict[str, set[str]] = {}
    for path in (ROOT / "bertworks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name in MODULES]
            elif isinstance(node, ast.ImportFrom) and node.module in (*MODULES, "os"):
                names = [node.module, *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os":
                names = [node.attr]
            for name in names:
                if name in (*MODULES, *FUNCTIONS):
                    file = path.relative_to(ROOT / "bertworks").as_posix()
                    places.setdefault(name, set()).add(file)
    assert places == PLACES


def test_folders_are_replaced_without_an_exchange(tmp_path: Path, windows: None):
    for content in ("one", "two"):
        with replacing_folder(tmp_path / "folder") as temporary:
            (temporary / content).write_text(content)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["two"]


def test_files_are_flushed_where_folders_cannot_be_opened(
    tmp_path: Path, windows: None, monkeypatch: pytest.MonkeyPatch
):
    flags: list[int] = []
    open_file = os.open

    def opened(path: Path, flag: int) -> int:
        assert Path(path).is_file(), "Windows opens no folder"
        flags.append(flag)
        return open_file(path, flag)

    (tmp_path / "x").write_text("x")
    monkeypatch.setattr(os, "open", opened)
    system.flush_to_disk(tmp_path)
    system.flush_to_disk(tmp_path / "x")
    assert flags == [os.O_RDWR]


def test_leftovers_stay_where_a_process_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On Windows `os.kill` with signal 0 would end the process."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    name = temporary_sibling(tmp_path / "x").name.replace(f".{os.getpid()}-", f".{process.pid}-")
    (tmp_path / name).write_text("half")
    with monkeypatch.context() as patch:
        patch.setattr(system, "IS_POSIX", False)
        patch.delattr(os, "kill")
        remove_leftovers(tmp_path)
        assert (tmp_path / name).exists()
    remove_leftovers(tmp_path)
    assert not (tmp_path / name).exists()


def test_a_process_exists_until_it_ends():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert system.process_exists(process.pid)
    process.communicate(b"\n")
    assert not system.process_exists(process.pid)
    assert system.process_exists(1), "also of another user"


def test_memory_is_unlimited_where_it_is_not_known(monkeypatch: pytest.MonkeyPatch):
    known = device.total_memory()
    meminfo = system.read_system_file("/proc/meminfo")
    if meminfo:
        assert known == pytest.approx(int(meminfo.split()[1]) * 1024, rel=0.01)
        assert 1 << 20 < device.memory_in_use() < known
    monkeypatch.setattr(system, "read_system_file", lambda path: "")
    monkeypatch.delattr(os, "sysconf")
    assert device.total_memory() == system.UNLIMITED > known
    assert device.memory_in_use() == 0


def test_without_them_nothing_happens(windows: None):
    system.raise_file_limit(1 << 16)
    system.enlarge_pipe(2, 1 << 16)
    device.lower_thread_priority()
    assert system.has_room(-1)
    assert not system.can_limit_processes()


def test_the_limit_of_files_is_raised_but_not_over_the_hard_one(monkeypatch: pytest.MonkeyPatch):
    changes: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: changes.append(limits))
    for limits in ((1024, 4096), (1024, -1), (8192, 9000), (-1, -1)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limits=limits: limits)
        system.raise_file_limit(5000)
    assert changes == [(4096, 4096), (5000, -1)]


def test_a_pipe_has_room_until_it_is_full():
    read, write = os.pipe()
    system.enlarge_pipe(write, 1 << 12)
    try:
        assert system.has_room(write)
        os.set_blocking(write, False)
        with suppress(BlockingIOError):
            while os.write(write, bytes(1 << 12)):
                pass
        assert not system.has_room(write)
    finally:
        os.close(read)
        os.close(write)


def test_pickled_weights_are_refused_where_a_process_cannot_be_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from bertworks.checkpoints.pickled_weights import read_pickled_weights

    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    monkeypatch.setitem(sys.modules, "resource", None)
    with pytest.raises(BertworksError, match=r"only on Linux, .*\n.*hint: choose a model with"):
        read_pickled_weights(tmp_path / "pytorch_model.bin", tmp_path, tmp_path)
