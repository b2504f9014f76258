"""Signals in a training: what is computed ends at once, what changes or saves something is
completed."""

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from bertworks.runs.processes import (
    PAUSE,
    GracefulShutdown,
    LostProcessError,
    Processes,
    terminable,
)
from tests.support.refusals import refusal


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
        "bertworks.runs.processes.rendezvous", lambda *_, **__: iter([(store, 0, 2)])
    )
    monkeypatch.setattr("bertworks.runs.processes.meet_in", lambda store, *_: store)
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
    with refusal("a process group exists already", "let the training create it"):
        Processes(torch.device("cpu"))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: False)
    with refusal("cuda:5 is one GPU", "--device cuda: each process takes one of the GPUs"):
        monkeypatch.setenv("LOCAL_RANK", "0")
        Processes(torch.device("cuda:5"))


def test_a_step_has_an_item_for_each_process() -> None:
    processes = Processes(torch.device("cpu"))
    processes.count = 3
    processes.refuse_to_share(3)
    with refusal("a step of 2 items cannot be shared by 3 processes", "start fewer processes"):
        processes.refuse_to_share(2)
    hint = "run the same command again: it resumes from the last checkpoint"
    assert LostProcessError("a process is lost").hint == hint
