"""Ctrl-C and SIGTERM: finish the step, save, leave; and leave in time even if a step takes longer. Not here: saving."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

PATIENCE = 2.0  # seconds that a step may still take


class Interruption:
    """A context in which SIGINT and SIGTERM only set `requested`, for the loop to see after its step.

    One call into a library may compute for many seconds, during which Python runs no signal handler; a thread that is
    woken by the signal itself therefore waits for `PATIENCE` seconds at most, calls `leave` until it says that it has
    saved, and ends the process. Holding `updating` keeps that thread away from parameters that are being changed.
    """

    def __init__(self, leave: Callable[[], bool]):
        self.requested = 0
        self.updating = threading.Lock()
        self._leave, self._done = leave, threading.Event()
        self._previous: dict[int, object] = {}
        self._ours, self._theirs = socket.socketpair()

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as shells have it."""
        return 128 + self.requested

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is not threading.main_thread():
            return self  # signals are the main thread's; a program that trains in another handles them itself
        self._theirs.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        threading.Thread(target=self._watch, daemon=True, name="interruption").start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._previous:
            signal.set_wakeup_fd(self._wakeup)
        self._theirs.close()  # ends the watching thread

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = number

    def _watch(self) -> None:
        numbers = self._ours.recv(1)
        self._ours.close()
        if not numbers or self._done.wait(PATIENCE):
            return
        while not self._done.wait(0.01):
            with self.updating:
                if self._leave():
                    os._exit(128 + numbers[0])
