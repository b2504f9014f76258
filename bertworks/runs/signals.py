"""Ctrl-C and SIGTERM: finish the step, save and exit; in time even if a step takes long."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import ClassVar, NoReturn

from bertworks.errors import BertworksError

LEAVING, PATIENCE = 4.0, 1.5  # seconds: to be gone in, for all we know of the disk; that a step may still take of them
DISK_SPEED = 250e6  # bytes a second written and synced, on a slow one
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def patience_for(state_bytes: int) -> float:
    """Seconds to wait for the end of a step, where so many bytes are to be saved after it."""
    return min(PATIENCE, max(0.0, LEAVING - state_bytes / DISK_SPEED))


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, by an exception that unwinds it: SystemExit with 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class StepLock:
    """Held from the moment at which a step begins to change what is trained until the caller has taken note of that
    step. So another thread that holds `lock` sees the state, and what is known of it, as a whole step left them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.going_on = False

    def __enter__(self) -> None:
        self.lock.acquire()
        self.going_on = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """It stays held: `noted` lets go."""

    def noted(self) -> None:
        """The step's number and figures are where `leave` looks for them."""
        self.going_on = False
        self.lock.release()


class GracefulShutdown:
    """A context in which SIGINT and SIGTERM only set `requested`, for the loop to see after its step.

    One call into a library may compute for many seconds, during which Python runs no signal handler. A thread that is
    woken by the signal itself therefore waits for `patience` seconds, calls `leave` while it holds `updating.lock`, and
    ends the process; unless the loop has called `take_over` by then.

    ends_process: whether the process is that of a command, and ends with the run, as `cli.main.run` says. A program of
        somebody else's goes on: nothing ends it, the end of the step is waited for however long it takes, and Ctrl-C
        becomes a KeyboardInterrupt.
    """

    ends_process: ClassVar[bool] = False

    def __init__(self, leave: Callable[[], None], patience: float = PATIENCE):
        self.requested = 0
        self.updating = StepLock()
        self._leave, self._patience, self._taken = leave, patience, threading.Event()
        self._previous: dict[int, object] = {}
        self._ours, self._theirs = socket.socketpair()

    def end(self) -> NoReturn:
        """What was asked for, now that all is saved. The exit code is 128 + the signal's number, as shells have it."""
        if self.requested == signal.SIGINT and not self.ends_process:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.requested)

    def take_over(self) -> None:
        """The loop itself saves and leaves. If the thread is at it already, this waits until it ends the process."""
        if self.updating.going_on:  # an error in the middle of a step: there is nothing to save
            self._taken.set()
            return
        with self.updating.lock:
            self._taken.set()

    def __enter__(self) -> "GracefulShutdown":
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the main thread's; a program that trains in another handles them itself
        self._theirs.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        for number in SIGNALS:
            self._previous[number] = signal.signal(number, self._note)
        if self.ends_process:
            threading.Thread(target=self._watch, daemon=True, name="interruption").start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.take_over()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._previous:
            signal.set_wakeup_fd(self._wakeup)
        if not self._previous or not self.ends_process:
            self._ours.close()
        self._theirs.close()  # ends the watching thread

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = number

    def _watch(self) -> None:
        with self._ours:
            while (byte := self._ours.recv(1)) and byte[0] not in SIGNALS:
                continue  # a signal of somebody else's
        if not byte or self._taken.wait(self._patience):
            return
        with self.updating.lock:
            if not self._taken.is_set():
                _step_back()
                code = 128 + byte[0]
                try:
                    self._leave()
                except BertworksError as error:
                    print(f"error: {error}", file=sys.stderr, flush=True)
                    code = error.exit_code
                if sys.stderr.isatty():
                    print("\x1b[?25h", end="", file=sys.stderr, flush=True)  # a display may have hidden the cursor
                os._exit(code)


def _step_back() -> None:
    """The processors are for this thread: the others of this process compute what nobody will see. On Linux threads
    have priorities of their own; elsewhere all go on alike. Not the lowest: they still need a turn to let go of the
    interpreter's lock, however busy the machine is."""
    tasks, priority = Path("/proc/self/task"), max(10, os.getpriority(os.PRIO_PROCESS, 0))
    for task in tasks.iterdir() if tasks.exists() else ():
        with suppress(OSError):  # it has ended
            if int(task.name) != threading.get_native_id():
                os.setpriority(os.PRIO_PROCESS, int(task.name), priority)
