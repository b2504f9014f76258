"""The folder of a run: its lock and its records."""

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from bertworks.errors import BertworksError, UsageError
from bertworks.runs.run_folder import Metrics, check_same_request, open_run, read_plans, write_plans
from bertworks.training.budget import Plan
from tests.support.refusals import refusal


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


def test_plans_come_back_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    plans = [Plan(*range(len(Plan._fields)))]
    write_plans(tmp_path, plans)
    assert read_plans(tmp_path) == plans
    (tmp_path / "schedule.jsonl").write_text("{")
    with refusal("the plans of the run are missing or damaged", "put them back; or -o ANOTHER"):
        read_plans(tmp_path)


def test_figures_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    what = "the checkpoints are untouched, but figures cannot be written"
    with refusal(what, "make room, or the file writable, and run the same command again"):
        Metrics(tmp_path / "metrics.jsonl").record({"step": 1})


def test_a_run_of_another_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"request": {"seed": 1}}))
    with pytest.raises(UsageError):
        check_same_request(tmp_path, {"seed": 2})
