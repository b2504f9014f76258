"""Signs of life of the processes of a training: one that hangs or is lost is named, and all end.

torchrun then starts them again, and they resume.

Each process sends one every BEAT seconds from a thread, so also while it saves or evaluates. The others end it all if
one is silent for SILENT seconds, or if a step takes much longer than steps did (`Heartbeat.limit`).
"""

import os
import platform
import statistics
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count as numbers_from
from uuid import uuid4

from torch.distributed.distributed_c10d import PrefixStore, Store

from bertworks.errors import BertworksError

BEAT, SILENT, PAUSE = 5.0, 45.0, 10.0  # seconds
SHORTEST_LIMIT, STEPS = 120.0, 20  # the longest wait in a step: seconds, and in median steps
RECENT = 99  # steps, of which the median is taken


class LostProcessError(BertworksError):
    """Another process of the training ended or hangs: to start all again helps. The exit status is sysexits' for that,
    which `runs.launch` starts again; it does not start errors of data or of the command again."""

    exit_code = 75

    def __init__(self, what: str):
        super().__init__(what, hint="run the same command again: it resumes from the last checkpoint")


def meet_in(store: Store, rank: int, size: int) -> Store:
    """The part of a store for this start of all processes, when all are there.

    torchrun keeps its store from one start to the next. What a process of an earlier start has left, such as its
    address, must not be read; but counts of starts differ between machines. So the first process names this start, and
    goes on when each of the others has answered with a word that only this start knows.
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
        self._ended, self._seconds, self._parent = threading.Event(), deque[float](maxlen=RECENT), os.getppid()
        # Of each process: steps begun and ended together (odd: in a step), and when it was heard; where it runs.
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
        return max(SHORTEST_LIMIT, STEPS * statistics.median(self._seconds)) if self._seconds else float("inf")

    def problem(self, now: float) -> tuple[list[int], str]:
        """The processes that are to blame, perhaps none, and what is wrong; empty: nothing."""
        silent = [rank for rank, heard in self._heard.items() if now - heard > SILENT]
        if len(silent) == len(self._heard):
            place = os.environ.get("MASTER_ADDR", "the first machine")
            return [], f"{place}, where the processes of this training meet, was silent for {SILENT:.0f} s"
        if silent:
            return silent, f"{self._names(silent)} of this training sent no sign of life for {SILENT:.0f} s"
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
            for number in numbers_from():
                own = f"{number} {self._own_moves} process {os.getpid()} on {platform.node()}"
                self._store.set(f"heartbeat/{self.rank}", own)
                keys = [key for rank in self._heard if self._store.check([key := f"heartbeat/{rank}"])]
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
                os._exit(LostProcessError.exit_code)  # torchrun was killed: it could start others in this place
            blamed, what = self.problem(now)
            if what and self.rank != min(self._heard.keys() - blamed):
                time.sleep(2)  # the end of one ends all: first the one that speaks
            elif what:
                print(f"error: {LostProcessError(what)}", file=sys.stderr, flush=True)
            if what:
                os._exit(LostProcessError.exit_code)  # the main thread may wait for ever
