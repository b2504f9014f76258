"""Ctrl-C and SIGTERM: finish the step, save and exit, within seconds even if a step takes long."""

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

EXIT_SECONDS, PATIENCE = 4.0, 1.5  # from the signal to the exit on a slow disk; of these, for the step to finish
DISK_SPEED = 250e6  # bytes per second, written and synced, of a slow disk
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def patience_for(state_bytes: int) -> float:
    """Seconds to wait for the end of a step if `state_bytes` are saved after it."""
    return min(PATIENCE, max(0.0, EXIT_SECONDS - state_bytes / DISK_SPEED))


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises SystemExit(143) in the block, as Ctrl-C raises KeyboardInterrupt."""
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
    """Held from the first change of a parameter in a step until the caller has recorded the step. A thread that holds
    `lock` sees the parameters and the records of one whole step."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active = False

    def __enter__(self) -> None:
        self.lock.acquire()
        self.active = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """It stays held until `noted`."""

    def noted(self) -> None:
        """The step is recorded: release the lock."""
        self.active = False
        self.lock.release()


class GracefulShutdown:
    """A context in which SIGINT and SIGTERM only set `requested`, for the loop to see after its step.

    One call into a library may compute for many seconds, in which Python runs no signal handler. A thread that the
    signal itself wakes waits for `patience` seconds, calls `leave` while it holds `updating.lock`, and ends the
    process, unless the loop has called `take_over` by then.

    ends_process: True for a command, whose process ends with the run. Another program continues: the end of the step is
        waited for, however long it takes, and Ctrl-C becomes a KeyboardInterrupt.
    """

    ends_process: ClassVar[bool] = False

    def __init__(self, leave: Callable[[], None], patience: float = PATIENCE):
        self.requested = 0
        self.updating = StepLock()
        self._leave, self._patience, self._taken = leave, patience, threading.Event()
        self._previous: dict[int, object] = {}
        self._ours, self._theirs = socket.socketpair()

    def end(self) -> NoReturn:
        """Exit after everything is saved. The exit status is 128 + the number of the signal, as in shells."""
        if self.requested == signal.SIGINT and not self.ends_process:
            raise KeyboardInterrupt
        raise SystemExit(128 + self.requested)

    def take_over(self) -> None:
        """The loop itself saves and exits. If the thread has begun to, this waits until it ends the process."""
        if self.updating.active:  # an error within a step: there is nothing to save
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
                continue  # another signal
        if not byte or self._taken.wait(self._patience):
            return
        with self.updating.lock:
            if not self._taken.is_set():
                _lower_other_threads()
                code = 128 + byte[0]
                try:
                    self._leave()
                except BertworksError as error:
                    print(f"error: {error}", file=sys.stderr, flush=True)
                    code = error.exit_code
                if sys.stderr.isatty():
                    print("\x1b[?25h", end="", file=sys.stderr, flush=True)  # a display may have hidden the cursor
                os._exit(code)


def _lower_other_threads() -> None:
    """Give this thread the CPUs: what the other threads compute is not needed any more. Only Linux has priorities per
    thread. Not the lowest priority: on a busy machine the others still need a turn to release the interpreter lock."""
    tasks, priority = Path("/proc/self/task"), max(10, os.getpriority(os.PRIO_PROCESS, 0))
    for task in tasks.iterdir() if tasks.exists() else ():
        with suppress(OSError):  # it has ended
            if int(task.name) != threading.get_native_id():
                os.setpriority(os.PRIO_PROCESS, int(task.name), priority)
