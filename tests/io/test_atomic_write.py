"""Files and folders appear whole or not at all, also when the disk is full or the writer is
killed."""

import errno
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from bertworks.errors import BertworksError
from bertworks.io import atomic_write
from bertworks.io.atomic_write import (
    hidden_sibling,
    remove_leftovers,
    replacing,
    replacing_folder,
    sha256,
    utf8_path,
    write_bytes,
    write_json,
    write_text,
)
from tests.support.refusals import refusal

BIG = os.urandom(300_000)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fail_while_writing(path: Path, error: BaseException) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


def fail_while_filling(path: Path, error: BaseException) -> None:
    with replacing_folder(path) as temporary:
        (temporary / "half").write_text("half")
        raise error


def test_writes_whole_files_and_missing_folders(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "日本\r\n")
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == "日本\r\n".encode()
    write_bytes(tmp_path / "a" / "b" / "c.txt", BIG)
    assert (tmp_path / "a" / "b" / "c.txt").read_bytes() == BIG
    assert names(tmp_path / "a" / "b") == ["c.txt"]


def test_names_that_are_not_utf8_come_back_as_they_were(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \\udce9 \xe2\x82\xac.txt")
    write_json(tmp_path / "x.json", {name: name})
    assert json.loads((tmp_path / "x.json").read_bytes()) == {name: name}


def test_sha256_streams(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(BIG)
    assert sha256(tmp_path / "x") == hashlib.sha256(BIG).hexdigest()


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_failing_block_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, error: BaseException
) -> None:
    write_text(tmp_path / "x", "old")
    with pytest.raises(type(error)):
        fail_while_writing(tmp_path / "x", error)
    with pytest.raises(type(error)):
        fail_while_filling(tmp_path / "folder", error)
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


@pytest.mark.parametrize("exchange", [True, False])
def test_folders_are_replaced_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(atomic_write, "exchange_names", lambda first, second: False)
    for content in ("one", "two"):
        with replacing_folder(tmp_path / "folder") as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / content).write_text(content)
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder" / "deep") == ["two"]


def test_a_failed_exchange_by_renames_puts_the_former_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path / "folder" / "old", "old")
    monkeypatch.setattr(atomic_write, "exchange_names", lambda first, second: False)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".tmp" and target.name == "folder":
            raise OSError(errno.EIO, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with (
        pytest.raises(BertworksError, match="cannot be written: Input/output"),
        replacing_folder(tmp_path / "folder") as temporary,
    ):
        (temporary / "new").write_text("new")
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


def test_a_link_is_written_through(tmp_path: Path) -> None:
    write_text(tmp_path / "real", "old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


FULL_DISKS = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    OSError("1024 requested and 512 written"),
]


@pytest.mark.parametrize("error", FULL_DISKS, ids=str)
def test_a_full_disk_is_explained(tmp_path: Path, error: Exception) -> None:
    write_text(tmp_path / "x", "old")
    with pytest.raises(BertworksError) as caught:
        fail_while_writing(tmp_path / "x", error)
    said = str(caught.value)
    assert str(tmp_path / "x") in said
    assert "MB free" in said
    assert "files saved before are unchanged" in said
    assert "free space" in said
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_really_full_file_system(tmp_path: Path) -> None:
    """A limit on the file's size fails in write() itself, as a full disk does."""
    script = (
        "import resource, sys\n"
        "from bertworks.io.atomic_write import write_bytes\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "write_bytes(sys.argv[1], b'x' * 100_000)\n"
    )
    write_text(tmp_path / "x", "old")
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x")], capture_output=True, text=True
    )
    assert "BertworksError" in done.stderr
    assert "the disk is full" in done.stderr
    assert names(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_a_place_that_cannot_be_written_is_an_error_of_the_user(tmp_path: Path) -> None:
    write_text(tmp_path / "file", "x")
    with pytest.raises(BertworksError, match="cannot be written"):
        write_text(tmp_path / "file" / "below", "y")
    write_text(tmp_path / "folder" / "x", "x")
    with pytest.raises(BertworksError, match="cannot be written"):
        write_text(tmp_path / "folder", "y")
    with (
        pytest.raises(BertworksError, match="a file, not a folder"),
        replacing_folder(tmp_path / "file"),
    ):
        pass
    assert names(tmp_path) == ["file", "folder"]


def test_a_failing_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_text(tmp_path / "x", "old")
    with pytest.raises(
        BertworksError, match=f"{tmp_path / 'x'}: cannot be written: Input/output error"
    ):
        # of write(): it names no file
        fail_while_writing(tmp_path / "x", OSError(errno.EIO, "Input/output error"))
    assert (tmp_path / "x").read_text() == "old"


def test_errors_about_other_files_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "x"):
        Path("/nowhere/at/all").read_text()


def test_a_killed_writer_leaves_the_old_content_and_its_rests_are_removed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from bertworks.io.atomic_write import replacing\n"
        "with replacing(sys.argv[1]) as temporary:\n"
        "    temporary.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    write_text(tmp_path / "x", "old")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "x").read_text() == "old"
    assert len(names(tmp_path)) == 2
    with replacing(tmp_path / "y") as mine:
        mine.write_text("z")
        remove_leftovers(tmp_path, name="y")
        assert len(names(tmp_path)) == 3
        remove_leftovers(tmp_path)
        assert len(names(tmp_path)) == 2  # not the one that is being written now
    assert names(tmp_path) == ["x", "y"]


def test_the_temporary_file_of_a_temporary_file_is_removed_too(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from bertworks.io.atomic_write import replacing\n"
        "with replacing(sys.argv[1]) as outer, replacing(outer) as inner:\n"
        "    inner.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")])
    assert len(names(tmp_path)) == 1
    write_text(tmp_path / "other", "")
    assert len(names(tmp_path)) == 2
    write_text(tmp_path / "x", "new")
    assert names(tmp_path) == ["other", "x"]


def leave(folder: Path, writer: str, name: str = "x") -> Path:
    """What a writer leaves half-written, by number and time of its process."""
    rest = folder / f".{name}@{socket.gethostname()}.{writer}.0.tmp"
    rest.write_text("half")
    return rest


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="this system does not tell when a process began"
)
def test_a_living_process_does_not_protect_what_another_of_its_number_left(tmp_path: Path) -> None:
    """In a container the same small numbers come with every start."""
    with replacing(tmp_path / "y") as mine:
        mine.write_text("z")
        began = re.search(rf"\.{os.getpid()}-(\d+)\.", mine.name)
        assert began is not None
        rest = leave(tmp_path, f"{os.getpid()}-{int(began[1]) - 1}")
        remove_leftovers(tmp_path)
        assert not rest.exists()
        assert mine.exists()


def test_where_no_time_is_known_a_living_process_protects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = leave(tmp_path, str(os.getpid()))
    remove_leftovers(tmp_path)
    rest.unlink()
    monkeypatch.setattr(atomic_write, "_start_time", lambda process: "")
    with replacing(tmp_path / "y") as mine:
        mine.write_text("z")
        leave(tmp_path, f"{os.getpid()}-7")
        remove_leftovers(tmp_path)
        assert names(tmp_path) == sorted(
            [mine.name, rest.name.replace(f"{os.getpid()}", f"{os.getpid()}-7")]
        )
    assert "y" in names(tmp_path)


@pytest.mark.parametrize("name", ["x" * 255, "日" * 85])
def test_names_as_long_as_the_file_system_allows(tmp_path: Path, name: str) -> None:
    for content in ("old", "new"):
        write_text(tmp_path / name, content)
    assert names(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "new"
    leave(tmp_path, "999999999", atomic_write._shorten(name))
    remove_leftovers(tmp_path, name=name)
    assert names(tmp_path) == [name]


@settings(max_examples=50, deadline=None)
@given(
    names=st.lists(
        st.binary(min_size=1, max_size=255).filter(lambda n: not {0, 47} & set(n)),
        min_size=2,
        max_size=2,
    ),
    ending=st.sampled_from([".portions", ".lock", f"@{'h' * 64}.4194304-99999999999.1000000.tmp"]),
)
def test_hidden_names_fit_and_differ(names: list[bytes], ending: str) -> None:
    first, second = (
        hidden_sibling(Path(os.fsdecode(b"/folder/" + name)), ending) for name in names
    )
    assert len(os.fsencode(first.name)) <= 255
    assert first.parent == Path("/folder")
    assert first.name.startswith(".")
    assert first.name.endswith(ending)
    assert (first == second) == (names[0] == names[1])


def test_long_names_with_one_beginning_have_different_hidden_names() -> None:
    one, other = (hidden_sibling(Path("x" * 254 + end), ".portions") for end in "ab")
    assert one != other


def test_libraries_get_names_in_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9") / os.fsdecode(b"\xe9.bin")
    with replacing(path) as name:
        str(name).encode()
        name.write_text("new")
    assert path.read_text() == "new"
    with utf8_path(path) as name:
        assert str(name).encode().endswith(b".bin")
        assert name.read_text() == "new"
    assert not name.exists()
    with utf8_path(tmp_path / "plain") as name:
        assert name == tmp_path / "plain"


def test_a_name_too_long_is_an_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(BertworksError, match="File name too long"):
        write_text(tmp_path / ("x" * 256), "content")
    with pytest.raises(BertworksError, match="File name too long"):
        write_text(tmp_path / ("x" * 256) / "y", "content")
    assert names(tmp_path) == []


def test_what_another_machine_writes_stays(tmp_path: Path):
    """On a disk that several share."""
    other = tmp_path / f".x@not-{socket.gethostname()}.999999999.0.tmp"
    other.write_text("half")
    remove_leftovers(tmp_path)
    assert other.exists()


def test_a_file_is_on_the_disk_before_its_name_is(
    tmp_path: Path, put_on_disk: list[tuple[str, Path]]
):
    with replacing(tmp_path / "x") as temporary:
        temporary.write_text("new")
    assert put_on_disk == [("fsync", temporary), ("rename", tmp_path / "x"), ("fsync", tmp_path)]


def test_small_files_are_regular_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert atomic_write.read_small(tmp_path / "a", 5) == b"12345"
    with refusal("too much for this file", "name another file"):
        atomic_write.read_small(tmp_path / "a", 4)
    with refusal("this is not a file, but a folder, a pipe or a device", "name another file"):
        atomic_write.read_small(tmp_path, 5)
