"""The processes of a training: those that torchrun starts, and the signals that end one.

One that hangs or is lost is named, and all end. torchrun then starts them again, and they resume.
Each process sends a sign of life every BEAT seconds from a thread, so also while it saves or
evaluates. The others end it all if one is silent for SILENT seconds, or if a step takes much longer
than steps did (`Heartbeat.limit`).
"""

import os
import platform
import signal
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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
# The first process may prepare, evaluate and save for hours while others wait: their `Heartbeat`
# says whether to wait.
FOR_EVER = timedelta(days=1)
BEAT, SILENT, PAUSE = 5.0, 45.0, 10.0  # seconds
SHORTEST_LIMIT, STEPS = 120.0, 20  # the longest wait in a step: seconds, and in median steps
RECENT = 99  # steps, of which the median is taken


def terminable() -> AbstractContextManager[None]:
    """SIGTERM raises SystemExit(143) in the block, as Ctrl-C raises KeyboardInterrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return signal_handler(leave, signal.SIGTERM)


@contextmanager
def signal_handler(handler: "signal._HANDLER", *signals: int) -> Iterator[None]:
    """A handler for signals in the block. Signals are the main thread's: a program that trains in
    another thread handles them itself."""
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
    """Notes SIGINT and SIGTERM. A computation ends at once, between two operations, because it
    changes nothing that a run saves; anything else, such as writing a checkpoint, is completed
    first.

    requested: what ends the process: KeyboardInterrupt, or an exit status of 128 + the signal, as
        in shells; or None.
    """

    def __init__(self) -> None:
        self.requested: BaseException | None = None
        self._computes = False

    def handling(self) -> AbstractContextManager[None]:
        """Handles the signals in the block."""
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
        """In the block a signal raises `requested`, until `protect` is called. So does one that
        came before."""
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
    """Another process of the training ended or hangs: to start all again helps. The exit status is
    sysexits' for that, which `runs.launch` starts again; it does not start errors of data or of the
    command again."""

    exit_code = 75

    def __init__(self, what: str):
        super().__init__(
            what, hint="run the same command again: it resumes from the last checkpoint"
        )


def meet_in(store: Store, rank: int, size: int) -> Store:
    """The part of a store for this start of all processes, when all are there.

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


class Heartbeat:
    """The signs of life of this process, and the watch over those of the others."""

    def __init__(self, store: Store, rank: int, size: int):
        self.rank, self._store = rank, store.clone()  # type: ignore[attr-defined]  # for another thread
        self._ended, self._seconds, self._parent = (
            threading.Event(),
            deque[float](maxlen=RECENT),
            os.getppid(),
        )
        # Of each process: steps begun and ended together (odd: in a step), and when it was heard;
        # where it runs.
        self._moves, self._where = dict.fromkeys(range(size), 0), dict[int, str]()
        self._heard, self._moved = dict.fromkeys(range(size), time.monotonic()), time.monotonic()
        self._own_moves = 0
        for work in (self._exchange, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """No process is missed from now on."""
        self._ended.set()

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is a step: it may wait for the other processes, but not for ever."""
        begin = time.monotonic()
        self._own_moves += 1
        try:
            yield
        finally:
            self._own_moves += 1
            self._seconds.append(time.monotonic() - begin)

    @property
    def limit(self) -> float:
        """Seconds that a step may take."""
        return (
            max(SHORTEST_LIMIT, STEPS * statistics.median(self._seconds))
            if self._seconds
            else float("inf")
        )

    def problem(self, now: float) -> tuple[list[int], str]:
        """The processes that are to blame, perhaps none, and what is wrong; empty: nothing."""
        silent = [rank for rank, heard in self._heard.items() if now - heard > SILENT]
        if len(silent) == len(self._heard):
            place = os.environ.get("MASTER_ADDR", "the first machine")
            return (
                [],
                f"{place}, where the processes of this training meet, was silent for {SILENT:.0f} "
                "s",
            )
        if silent:
            return (
                silent,
                f"{self._names(silent)} of this training sent no sign of life for {SILENT:.0f} s",
            )
        moves = [*self._moves.values()]
        if not all(count % 2 for count in moves) or now - self._moved < self.limit:
            return [], ""
        late = [rank for rank, count in enumerate(moves) if count < max(moves)]
        names = f"{self._names(late)} of this training" if late else "a process of this training"
        return late, f"{names} did not finish a step for {self.limit:.0f} s"

    def _names(self, ranks: list[int]) -> str:
        return ", ".join(f"rank {rank} ({self._where.get(rank, 'never heard')})" for rank in ranks)

    def _exchange(self) -> None:
        before = dict[str, bytes]()
        with suppress(RuntimeError):  # the store is gone: nothing is heard any more
            while True:
                own = (
                    f"{time.monotonic()} {self._own_moves} process {os.getpid()} on "
                    f"{platform.node()}"
                )
                self._store.set(f"heartbeat/{self.rank}", own)
                keys = [
                    key for rank in self._heard if self._store.check([key := f"heartbeat/{rank}"])
                ]
                for key, value in zip(keys, self._store.multi_get(keys), strict=True):
                    if value != before.get(key):
                        rank = int(key.removeprefix("heartbeat/"))
                        _, moves, self._where[rank] = value.decode().split(" ", 2)
                        self._heard[rank] = time.monotonic()
                        if int(moves) != self._moves[rank]:
                            self._moves[rank], self._moved = int(moves), time.monotonic()
                    before[key] = value
                if self._ended.wait(BEAT):
                    return

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(1):
            now = time.monotonic()
            if now - last > PAUSE:  # this process itself was halted
                self._heard, self._moved = dict.fromkeys(self._heard, now), now
            last = now
            if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent:
                # torchrun was killed: it could start others in this place
                os._exit(LostProcessError.exit_code)
            blamed, what = self.problem(now)
            if what and self.rank != min(self._heard.keys() - blamed):
                time.sleep(2)  # the end of one ends all: first the one that speaks
            elif what:
                print(f"error: {LostProcessError(what)}", file=sys.stderr, flush=True)
            if what:
                os._exit(LostProcessError.exit_code)  # the main thread may wait for ever


class Processes:
    """The processes that torchrun started, or one process. The first one prepares alone; then all
    join a group."""

    def __init__(self, device: torch.device):
        self.count, self.device = int(os.environ.get("WORLD_SIZE", "1")), device
        self.rank = int(os.environ.get("RANK", "0"))
        self.first, self._heartbeat = self.rank == 0, None
        if self.count > 1:
            require(
                not dist.is_initialized(),
                "a process group exists already",
                hint="let the training create it",
            )
            own = device.type != "cuda" or device.index == int(
                os.environ.get("LOCAL_RANK", device.index or 0)
            )
            expect(
                own,
                f"{device} is one GPU",
                hint="--device cuda: each process takes one of the GPUs",
            )
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
            UsageError: one of them is on a machine that does not share the output folder, which
                exists.
        """
        if self.count == 1:
            return
        if self.first:
            self._store.set("prepared", "")
        # here SIGTERM is handled at once, within torch it is not
        while not self._store.check(["prepared"]):
            time.sleep(0.05)
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.count,
            timeout=FOR_EVER,
            device_id=self.device if on_gpu else None,
        )
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
        hint = (
            "-o FOLDER on a disk that all machines share; the data must be at the same path on "
            "each of them"
        )
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
        is_lost = (
            isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)
        )
        if processes.count == 1 or not is_lost:
            raise
        raise LostProcessError(
            "another process of this training ended; its own message says why"
        ) from error
    finally:
        processes.leave()
