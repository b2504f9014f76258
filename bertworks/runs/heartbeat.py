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
from typing import NamedTuple
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


class Beat(NamedTuple):
    """What a process says of itself: a running number, steps begun and ended together, and where it runs."""

    number: int
    moves: int  # odd: in a step
    process: int
    host: str


def meet_in(store: Store, rank: int, size: int) -> Store:
    """The part of a store for this start of all processes, when all are there.

    torchrun keeps its store from one start to the next. What a process of an earlier start has left, such as its
    address, must not be read; but counts of starts differ between machines. So the first process names this start, and
    goes on when each of the others has answered with a word that only this start knows.
    """
    word = uuid4().hex
    answers = [f"{word}/{other}" for other in range(1, size)]
    if rank == 0:
        store.set("start", word)
    while rank == 0 and not store.check(answers):
        time.sleep(0.05)
    if rank == 0:
        store.set(f"{word}/all", b" ".join(store.multi_get(answers)))
        return PrefixStore(word, store)
    while True:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", word)
        if store.check([f"{start}/all"]) and word.encode() in store.get(f"{start}/all").split():
            return PrefixStore(start, store)
        time.sleep(0.05)


class Heartbeat:
    """The signs of life of this process, and the watch over those of the others."""

    def __init__(self, store: Store, rank: int, size: int):
        self.rank, self._store = rank, store.clone()
        self._ended, self._moves, self._seconds = threading.Event(), 0, deque[float](maxlen=RECENT)
        self._beats, self._heard = dict[int, Beat](), dict.fromkeys(range(size), time.monotonic())
        self._moved, self._parent = time.monotonic(), os.getppid()
        for work in (self._exchange, self._watch):
            threading.Thread(target=work, daemon=True).start()

    def stop(self) -> None:
        """No process is missed from now on."""
        self._ended.set()

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is a step: it may wait for the other processes, but not for ever."""
        begin = time.monotonic()
        self._moves += 1
        try:
            yield
        finally:
            self._moves += 1
            self._seconds.append(time.monotonic() - begin)

    @property
    def limit(self) -> float:
        """Seconds that a step may take."""
        return max(SHORTEST_LIMIT, STEPS * statistics.median(self._seconds)) if self._seconds else float("inf")

    def problem(self, now: float) -> tuple[list[int], str]:
        """The processes that are to blame, perhaps none, and what is wrong; empty: nothing."""
        if silent := [rank for rank, heard in self._heard.items() if now - heard > SILENT]:
            if len(silent) == len(self._heard):
                where = os.environ.get("MASTER_ADDR", "the first machine")
                return [], f"{where}, where the processes of this training meet, was silent for {SILENT:.0f} s"
            return silent, f"{self._names(silent)} of this training sent no sign of life for {SILENT:.0f} s"
        moves = {rank: beat.moves for rank, beat in [*self._beats.items()]}
        if len(moves) < len(self._heard) or not all(m % 2 for m in moves.values()) or now - self._moved < self.limit:
            return [], ""
        late = [rank for rank, m in moves.items() if m == min(moves.values())]
        if len(late) == len(moves):  # they wait for each other
            return [], f"no process of this training finished its step for {self.limit:.0f} s"
        return late, f"{self._names(late)} of this training did not finish a step for {self.limit:.0f} s"

    def _names(self, ranks: list[int]) -> str:
        known = {rank: f" (process {beat.process} on {beat.host})" for rank, beat in self._beats.items()}
        return ", ".join(f"rank {rank}{known.get(rank, '')}" for rank in ranks)

    def _exchange(self) -> None:
        keys = {f"heartbeat/{rank}": rank for rank in self._heard}
        with suppress(RuntimeError):  # the store is gone: nothing is heard any more
            for number in numbers_from():
                own = Beat(number, self._moves, os.getpid(), platform.node())
                self._store.set(f"heartbeat/{self.rank}", " ".join(map(str, own)))
                there = [key for key in keys if self._store.check([key])]
                for key, value in zip(there, self._store.multi_get(there), strict=True):
                    first, moves, process, host = value.decode().split(" ", 3)
                    before, beat = self._beats.get(keys[key]), Beat(int(first), int(moves), int(process), host)
                    if beat != before:
                        self._beats[keys[key]], self._heard[keys[key]] = beat, time.monotonic()
                    if before is None or beat.moves != before.moves:
                        self._moved = time.monotonic()
                if self._ended.wait(BEAT):
                    return

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(1):
            now = time.monotonic()
            if now - last > PAUSE:  # this process itself was halted
                self._heard, self._moved = dict.fromkeys(self._heard, now), now
            last = now
            blamed, what = self.problem(now)
            if "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != self._parent:
                os._exit(LostProcessError.exit_code)  # torchrun was killed: it could start others in this place
            if what:
                if self.rank == min(self._heard.keys() - blamed):
                    print(f"error: {LostProcessError(what)}", file=sys.stderr, flush=True)
                else:
                    time.sleep(2)  # the end of one ends all: first the one that speaks
                os._exit(LostProcessError.exit_code)  # the main thread may wait for ever
