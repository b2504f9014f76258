"""The processes of a training: those that torchrun starts, and the signals that end one."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist

from bertworks.errors import BertworksError, UsageError


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
        self.first = os.environ.get("RANK", "0") == "0"
        if self.count > 1 and dist.is_initialized():
            raise BertworksError("a process group exists already", hint="let the training create it")

    def refuse_to_share(self, items: int) -> None:
        """Raises UsageError if a step has fewer items than there are processes."""
        if items < self.count:
            what = f"a step of {items} items cannot be shared by {self.count} processes"
            raise UsageError(what, hint="start fewer processes")

    def meet(self) -> None:
        """Waits for all processes, and creates the process group."""
        if self.count > 1:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(days=1))

    def wait(self) -> None:
        """Waits for all processes."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def training_processes(device: torch.device) -> Iterator[Processes]:
    """The processes of a training, which SIGTERM ends as Ctrl-C does.

    Raises:
        BertworksError: another process of the training ended.
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
        what = "another process of this training ended; its own message says why"
        hint = "run the same command again: it resumes from the last checkpoint"
        raise BertworksError(what, hint=hint) from error
    finally:
        if processes.count > 1 and dist.is_initialized():
            dist.destroy_process_group()
