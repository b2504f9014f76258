"""The folder of a run: its lock and its records; signals: what is computed ends at once, what
changes or saves something is completed."""

import errno
import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bertworks.errors import BertworksError, UsageError
from bertworks.runs.run_folder import (
    PAUSE,
    GracefulShutdown,
    LostProcessError,
    Metrics,
    Processes,
    check_same_request,
    open_run,
    read_plans,
    terminable,
    training_processes,
    write_plans,
)
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
    what = "the checkpoints are untouched, but metrics cannot be written"
    with refusal(what, "make room, or the file writable, and run the same command again"):
        Metrics(tmp_path / "metrics.jsonl").record({"step": 1})


def test_a_run_of_another_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"request": {"seed": 1}}))
    with pytest.raises(UsageError):
        check_same_request(tmp_path, {"seed": 2})


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_computation_ends_at_once_and_the_exit_status_names_the_signal(
    number: int, error: type[BaseException]
) -> None:
    shutdown = GracefulShutdown()
    with shutdown.handling():
        for _ in range(2):  # the second computation does not begin
            with pytest.raises(error) as left, shutdown.computing():
                os.kill(os.getpid(), number)
            assert left.value is shutdown.requested
    if isinstance(left.value, SystemExit):
        assert left.value.code == 128 + number


def test_what_changes_parameters_is_completed() -> None:
    shutdown, steps = GracefulShutdown(), []
    with shutdown.handling():
        with shutdown.computing():
            shutdown.protect()
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("updated")
        os.kill(os.getpid(), signal.SIGTERM)  # a second one, while a checkpoint is written
        steps.append("saved")
    assert steps == ["updated", "saved"]
    assert isinstance(shutdown.requested, SystemExit)
    assert shutdown.requested.code == 128 + signal.SIGTERM


def test_the_handlers_of_a_program_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with terminable(), GracefulShutdown().handling():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_leaves_the_signals_to_the_program() -> None:
    before, inside = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with terminable(), GracefulShutdown().handling():
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


def test_the_first_process_ends_after_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold the store, which the others still ask."""
    store = dist.HashStore()
    monkeypatch.setattr(
        "bertworks.runs.run_folder.rendezvous", lambda *_, **__: iter([(store, 0, 2)])
    )
    monkeypatch.setattr("bertworks.runs.run_folder.meet_in", lambda store, *_: store)
    monkeypatch.setenv("WORLD_SIZE", "2")
    processes = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        processes.append(Processes(torch.device("cpu")))
    parting = threading.Thread(target=processes[0].part)
    parting.start()
    parting.join(3 * PAUSE)
    assert parting.is_alive()
    processes[1].part()
    parting.join()


def test_a_process_group_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    with refusal("a process group exists already", "do not create one: the training does it"):
        Processes(torch.device("cpu"))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    with refusal("cuda:5 is a single GPU", "--device cuda: each process uses one of the GPUs"):
        monkeypatch.setenv("LOCAL_RANK", "0")
        Processes(torch.device("cuda:5"))


def test_a_step_has_an_item_for_each_process() -> None:
    processes = Processes(torch.device("cpu"))
    processes.count = 3
    processes.refuse_to_share(3)
    with refusal("a step of 2 items cannot be divided among 3 processes", "start fewer processes"):
        processes.refuse_to_share(2)
    hint = "run the same command again: it resumes from the last checkpoint"
    assert LostProcessError("a process is lost").hint == hint


def test_a_training_in_one_process_has_one() -> None:
    with training_processes(torch.device("cpu")) as processes:
        assert (processes.count, processes.rank, processes.first) == (1, 0, True)
    with pytest.raises(RuntimeError, match="no process"), training_processes(torch.device("cpu")):
        raise RuntimeError("no process was lost")
