"""The folder of a run: its lock and its records."""

import errno
import multiprocessing
import os

import pytest

from bertworks.errors import BertworksError
from bertworks.runs.run_folder import open_run


def test_a_disk_too_full_for_the_lock_is_named_with_a_way_out(tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bertworks.io.atomic_write.Path.write_text", full)
    with (
        pytest.raises(BertworksError, match="No space left") as caught,
        open_run(tmp_path / "run", {}, False),
    ):
        pass
    monkeypatch.undo()
    assert caught.value.where == str(tmp_path / "run")
    assert "free space" in caught.value.hint


def hold(folder, connection):
    with open_run(folder, {}, False):
        connection.send("held")
        connection.recv()


def test_two_processes_cannot_write_the_same_folder(tmp_path):
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    holder = context.Process(target=hold, args=(tmp_path, theirs), daemon=True)
    holder.start()
    try:
        assert ours.poll(60)
        with (
            pytest.raises(BertworksError, match=f"process {holder.pid} is writing"),
            open_run(tmp_path, {}, False),
        ):
            pass
    finally:
        holder.kill()
        holder.join(30)
    with open_run(tmp_path, {}, False):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    with open_run(tmp_path, {}, False):
        pass
