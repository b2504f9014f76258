"""The processes of a training: those that torchrun starts, and the signals that end one."""

import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from bertworks.errors import expect, require
from bertworks.runs.heartbeat import Heartbeat, LostProcessError, meet_in

Value = TypeVar("Value")
# The first process may prepare, evaluate and save for hours while others wait: their `Heartbeat` says whether to wait.
FOR_EVER = timedelta(days=1)


def terminable() -> AbstractContextManager[None]:
    """SIGTERM raises SystemExit(143) in the block, as Ctrl-C raises KeyboardInterrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return signal_handler(leave, signal.SIGTERM)


@contextmanager
def signal_handler(handler: "signal._HANDLER", *signals: int) -> Iterator[None]:
    """A handler for signals in the block. Signals are the main thread's: a program that trains in another thread
    handles them itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = [signal.signal(number, handler) for number in signals]
    try:
        yield
    finally:
        for number, former in zip(signals, previous, strict=True):
            signal.signal(number, former)


class GracefulShutdown:
    """Notes SIGINT and SIGTERM. A computation ends at once, between two operations, because it changes nothing that a
    run saves; anything else, such as writing a checkpoint, is completed first.

    requested: what ends the process: KeyboardInterrupt, or an exit status of 128 + the signal, as in shells; or None.
    """

    def __init__(self) -> None:
        self.requested: BaseException | None = None
        self._computes = False

    def handling(self) -> AbstractContextManager[None]:
        """Handles the signals in the block."""
        return signal_handler(self._note, signal.SIGINT, signal.SIGTERM)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        if self._computes:
            self._computes = False
            raise self.requested

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the block a signal raises `requested`, until `protect` is called. So does one that came before."""
        if self.requested:
            raise self.requested
        self._computes = True
        try:
            yield
        finally:
            self._computes = False

    def protect(self) -> None:
        """From here on, parameters change: the rest of the block is completed."""
        self._computes = False


class Processes:
    """The processes that torchrun started, or one process. The first one prepares alone; then all join a group."""

    def __init__(self, device: torch.device):
        self.count, self.device = int(os.environ.get("WORLD_SIZE", "1")), device
        self.rank = int(os.environ.get("RANK", "0"))
        self.first, self._heartbeat = self.rank == 0, None
        if self.count > 1:
            require(not dist.is_initialized(), "a process group exists already", hint="let the training create it")
            own = device.type != "cuda" or device.index == int(os.environ.get("LOCAL_RANK", device.index or 0))
            expect(own, f"{device} is one GPU", hint="--device cuda: each process takes one of the GPUs")
            store, *_ = next(rendezvous("env://", timeout=FOR_EVER))
            self._store = meet_in(store, self.rank, self.count)
            self._heartbeat = Heartbeat(self._store, self.rank, self.count)

    def refuse_to_share(self, items: int) -> None:
        """Raises UsageError if a step has fewer items than there are processes."""
        what = f"a step of {items} items cannot be shared by {self.count} processes"
        expect(items >= self.count, what, hint="start fewer processes")

    def meet(self, output: Path) -> None:
        """Waits for all processes, and creates the process group.

        Raises:
            UsageError: one of them is on a machine that does not share the output folder, which exists.
        """
        if self.count == 1:
            return
        if self.first:
            self._store.set("prepared", "")
        while not self._store.check(["prepared"]):  # here SIGTERM is handled at once, within torch it is not
            time.sleep(0.05)
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=self._store, rank=self.rank, world_size=self.count, timeout=FOR_EVER,
            device_id=self.device if on_gpu else None,
        )  # fmt: skip
        if os.environ.get("LOCAL_WORLD_SIZE") != str(self.count):
            self._refuse_other_folder(output)

    def _refuse_other_folder(self, output: Path) -> None:
        mark = output / f".shared-{self.from_first(uuid4().hex)}"
        if self.first:
            mark.touch()
        dist.barrier()
        blind = [""] * self.count
        dist.all_gather_object(blind, "" if mark.exists() else platform.node())
        if self.first:
            mark.unlink()
        names = sorted({*filter(None, blind)})
        what = f"{', '.join(names)} cannot see the folder {output.resolve()} of the first process"
        hint = "-o FOLDER on a disk that all machines share; the data must be at the same path on each of them"
        expect(not names, what, hint=hint)

    def step(self) -> AbstractContextManager[None]:
        """The block is a step of the training, in which all processes wait for each other."""
        return self._heartbeat.step() if self._heartbeat else nullcontext()

    def from_first(self, value: Value) -> Value:
        """The value that the first process has."""
        values = [value]
        if self.count > 1:
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Waits for all processes."""
        if self.count > 1:
            dist.barrier()

    def leave(self) -> None:
        """Leaves the group."""
        if self._heartbeat:
            self._heartbeat.stop()
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def training_processes(device: torch.device) -> Iterator[Processes]:
    """The processes of a training, which SIGTERM ends as Ctrl-C does.

    Raises:
        LostProcessError: another process of the training ended.
    """
    processes = Processes(device)
    try:
        with terminable():
            yield processes
    except RuntimeError as error:
        # Only NCCL has an exception for a process that does not answer; gloo has texts.
        is_lost = isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)
        if processes.count == 1 or not is_lost:
            raise
        raise LostProcessError("another process of this training ended; its own message says why") from error
    finally:
        processes.leave()
