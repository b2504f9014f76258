"""The processes of a training: those that torchrun starts, and the signals that end one.

Collectives have a timeout and occur only in steps. Before and after them, all processes meet at a
store, where they may wait for hours: the first process prepares, evaluates and saves. If one is
lost, or does not finish a step in time, the others end; `runs.launch` starts all again, and they
resume.
"""

import os
import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from bertworks.errors import BertworksError, expect, require

Value = TypeVar("Value")
STEP_SECONDS = 600.0  # in which all processes finish a step, or a checkpoint before it
STORE_TIMEOUT = timedelta(days=1)  # to reach the store
PARTING_SECONDS = 10.0  # in which the other processes leave the store
PAUSE = 0.05  # seconds between two questions to the store


def terminable() -> AbstractContextManager[None]:
    """SIGTERM raises SystemExit(143) in the block, as Ctrl-C raises KeyboardInterrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return signal_handler(leave, signal.SIGTERM)


@contextmanager
def signal_handler(handler: "signal._HANDLER", *signals: int) -> Iterator[None]:
    """A handler for signals in the block.

    Signals are the main thread's: a program that trains in another thread handles them itself.
    """
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
    """Notes SIGINT and SIGTERM.

    A computation ends at once, between two operations, because it changes nothing that a run saves;
    anything else, such as writing a checkpoint, is completed first.

    requested: what ends the process: KeyboardInterrupt, or an exit status of 128 + the signal, as
        in shells; or None.
    """

    def __init__(self) -> None:
        self.requested: BaseException | None = None
        self._computes = False

    def handling(self) -> AbstractContextManager[None]:
        """Handle the signals in the block."""
        return signal_handler(self._note, signal.SIGINT, signal.SIGTERM)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = (
            KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        )
        if self._computes:
            self._computes = False
            raise self.requested

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the block a signal raises `requested`, until `protect` is called.

        So does one that came before.
        """
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


class LostProcessError(BertworksError):
    """Another process of the training ended or hangs: to start all again helps.

    The exit status is sysexits' for that, which `runs.launch` starts again; it does not start
    errors of data or of the command again.
    """

    exit_code = 75

    def __init__(self, what: str):
        super().__init__(
            what, hint="run the same command again: it resumes from the last checkpoint"
        )


def meet_in(store: Store, rank: int, size: int) -> Store:
    """Return the part of a store for this start of all processes, when all are there.

    torchrun keeps its store from one start to the next. What a process of an earlier start has
    left, such as its address, must not be read; but counts of starts differ between machines. So
    the first process names this start, and goes on when each of the others has answered with a word
    that only this start knows.
    """
    start = word = uuid4().hex
    answers = [f"{word}/{other}" for other in range(1, size)]
    if rank == 0:
        store.set("start", word)
        while not store.check(answers):
            time.sleep(0.05)
        store.set(f"{word}/all", " ".join(answer.decode() for answer in store.multi_get(answers)))
    while rank > 0:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", word)
        if store.check([f"{start}/all"]) and word in store.get(f"{start}/all").decode():
            break
        time.sleep(0.05)
    return PrefixStore(start, store)


def _end_with_parent() -> None:
    """Wait, in a thread, until torchrun was killed, and end this process.

    torchrun could start others in its place.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(LostProcessError.exit_code)


class Processes:
    """The processes that torchrun started, or one process.

    The first one prepares alone; then all join a group.
    """

    def __init__(self, device: torch.device):
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = device
        self.rank = int(os.environ.get("RANK", "0"))
        self.first = self.rank == 0
        self._num_meetings = 0
        if self.count > 1:
            require(
                not dist.is_initialized(),
                "a process group exists already",
                hint="let the training create it",
            )
            is_free = device.type != "cuda" or device.index == int(
                os.environ.get("LOCAL_RANK", device.index or 0)
            )
            expect(
                is_free,
                f"{device} is one GPU",
                hint="--device cuda: each process takes one of the GPUs",
            )
            store, *_ = next(rendezvous("env://", timeout=STORE_TIMEOUT))
            self._store = meet_in(store, self.rank, self.count)
            if "TORCHELASTIC_RUN_ID" in os.environ:
                threading.Thread(target=_end_with_parent, daemon=True).start()

    def refuse_to_share(self, items: int) -> None:
        """Raise UsageError if a step has fewer items than there are processes."""
        what = f"a step of {items} items cannot be shared by {self.count} processes"
        expect(items >= self.count, what, hint="start fewer processes")

    def meet(self, output: Path) -> None:
        """Wait for all processes, and create the process group.

        Raises:
            UsageError: one of them is on a machine that does not share the output folder, which
                exists.
        """
        if self.count == 1:
            return
        self.wait()
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.count,
            timeout=timedelta(seconds=STEP_SECONDS),
            device_id=self.device if on_gpu else None,
        )
        if os.environ.get("LOCAL_WORLD_SIZE") != str(self.count):
            self._refuse_other_folder(output)

    def _refuse_other_folder(self, output: Path) -> None:
        mark = output / f".shared-{self.from_first(uuid4().hex)}"
        if self.first:
            mark.touch()
        self.wait()
        blind = [""] * self.count
        dist.all_gather_object(blind, "" if mark.exists() else platform.node())
        if self.first:
            mark.unlink()
        names = sorted({*filter(None, blind)})
        what = f"{', '.join(names)} cannot see the folder {output.resolve()} of the first process"
        hint = (
            "-o FOLDER on a disk that all machines share; the data must be at the same path on "
            "each of them"
        )
        expect(not names, what, hint=hint)

    def from_first(self, value: Value) -> Value:
        """Return the value that the first process has."""
        values = [value]
        if self.count > 1:
            self.wait()
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def wait(self) -> None:
        """Wait for all processes, as long as it takes.

        Here SIGTERM is handled at once, within torch it is not.
        """
        if self.count == 1:
            return
        self._num_meetings += 1
        meeting = f"meeting {self._num_meetings}"
        self._store.add(meeting, 1)
        while self._store.add(meeting, 0) < self.count:
            time.sleep(PAUSE)

    def part(self) -> None:
        """Let the first process end last: the others read from the store that it may hold."""
        if self.count == 1:
            return
        self._store.add("left", 1)
        end = time.monotonic() + PARTING_SECONDS
        while self.first and self._store.add("left", 0) < self.count and time.monotonic() < end:
            time.sleep(PAUSE)

    def leave(self) -> None:
        """Leave the group."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def training_processes(device: torch.device) -> Iterator[Processes]:
    """The processes of a training, which SIGTERM ends as Ctrl-C does.

    Raises:
        LostProcessError: another process of the training ended, or did not finish a step in time.
    """
    processes = Processes(device)
    try:
        with terminable():
            yield processes
        processes.part()
    except RuntimeError as error:
        # Only NCCL has an exception for a process that does not answer; gloo has texts.
        is_lost = (
            isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)
        )
        if processes.count == 1 or not is_lost:
            raise
        what = "another process of this training ended; its own message says why"
        if "timed out" in str(error).lower():
            what = f"another process of this training did not finish a step in {STEP_SECONDS:.0f} s"
        raise LostProcessError(what) from error
    finally:
        processes.leave()
