"""Many small jobs -> batches, in threads. A job gets a future; it is refused if its result would take too long."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from bertworks.errors import BertworksError
from bertworks.training.device import lower_thread_priority

Compute = Callable[[Sequence[Any]], Sequence[Any]]  # for each unit what the network says of it, whatever the others are
SPEED_MEMORY = 0.8  # share of the old speed in the new one, after each batch
SMALL_BATCH = 256  # cost of a batch while little waits: who comes meanwhile waits for all of it
BATCH_SHARE = 0.25  # of what waits, for all threads together: the more waits, the more the work as such counts
LONGEST_WAIT = 5.0  # times the patience after which a question that nobody got to is given back
LARGE_WAIT = 4.0  # times the patience that all that waits may take when a question larger than a batch comes


class OverloadedError(BertworksError):
    """More is waiting than can be answered soon.

    Attributes:
        seconds: after which it may be otherwise, 1 at least.
    """

    def __init__(self, seconds: float = 1):
        super().__init__("more is asked than can be answered soon", hint="ask again later")
        self.seconds = max(1, round(seconds))


@dataclass(eq=False)
class _PendingJob:
    compute: Compute
    units: Sequence[Any]
    costs: Sequence[int]
    since: float
    taken: int = 0  # units that are in a batch, or were in one
    found: dict[int, Any] = field(default_factory=dict)  # by the place of the unit: batches end in any order
    over: bool = False  # it has its answer, or its error
    future: "Future[list[Any]]" = field(default_factory=Future)


_Part = tuple[_PendingJob, int, int]  # units of a question: the first, and the one behind the last


class Batcher:
    """`submit` puts a question to its end; threads take from all that wait, in turn, as many units as a batch may
    have, so that a small question need not wait for a large one. Units of one batch have equal `compute`, which several
    threads call at once. If it fails the questions of the batch are computed each on its own, and the error is that of
    whom it belongs to.

    Args:
        batch_cost: at most, of the units of a batch, in tokens or whatever costs are given in; one unit may be more.
            Less while little waits.
        patience: seconds after which a question should be answered: more than can be done in that time does not wait
            here. How much that is, is learned from the batches.
        observe: is told units, cost and seconds of each batch, in the thread that computed it.
        workers: threads, each with a batch of its own.
        sharing: is told before each batch, in the thread that will compute it, how many are computed at once.
    """

    def __init__(
        self,
        batch_cost: int,
        *,
        patience: float = 2.0,
        observe: Callable[[int, int, float], None] = lambda units, cost, seconds: None,
        workers: int = 1,
        sharing: Callable[[int], object] = lambda batches: None,
    ):
        self.batch_cost, self.patience, self._observe, self._sharing = batch_cost, patience, observe, sharing
        self.speed = batch_cost / patience  # cost in a second; this, until the first batch
        self.cost = 0  # of all that waits or is computed
        self.load = 0  # the same, but of each question at most a batch: for more nobody has to wait
        self._busy = dict[threading.Thread, float]()  # since when
        self._waiting: deque[_PendingJob] = deque()
        self._changed, self._open = threading.Condition(), True
        self._threads = [threading.Thread(target=self._work, daemon=True, name="batcher") for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    @property
    def full(self) -> bool:
        """Whether a further question would have to wait too long."""
        return self.load > self.speed * self.patience

    @property
    def overloaded(self) -> OverloadedError:
        """What to tell whom there is no place for."""
        return OverloadedError(self.load / self.speed - self.patience)

    @property
    def alive(self) -> bool:
        """Whether everybody is there who computes."""
        return all(thread.is_alive() for thread in self._threads) or not self._open

    @property
    def busy_since(self) -> float | None:
        """When the oldest batch began that is computed now."""
        return min(list(self._busy.values()), default=None)

    def submit(self, compute: Compute, units: Sequence[Any], costs: Sequence[int]) -> "Future[list[Any]]":
        """The future of what `compute` gives for the units, in their order. Who cancels it makes room for others.

        Raises:
            OverloadedError: too much is waiting, or the batcher is closed.
        """
        question = _PendingJob(compute, units, costs, time.monotonic())
        if not units:
            question.future.set_result([])
            return question.future
        cost = sum(costs)
        with self._changed:
            late = cost > self.batch_cost and self.cost > LARGE_WAIT * self.patience * self.speed
            if self.full or late or not self._open:
                raise self.overloaded
            self.cost += cost
            self.load += min(cost, self.batch_cost)
            self._waiting.append(question)
            self._changed.notify()
        question.future.add_done_callback(lambda future: self._forget(question) if future.cancelled() else None)
        return question.future

    def close(self) -> None:
        """Nothing more is taken; what waits is answered."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _work(self) -> None:
        lower_thread_priority()  # or who only asks for the time of day waits until a product is done
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._open)
                if not self._waiting:
                    return
                parts = self._next()
                if not parts:
                    continue
                self._busy[threading.current_thread()] = time.monotonic()
                batches = len(self._busy)
                if self._waiting and batches < len(self._threads):
                    self._changed.notify()
                    batches += 1
            self._sharing(batches)
            self._answer(parts, batches)

    def _next(self) -> list[_Part]:
        """Of every question that waits, in turn, a unit more, until the batch is full."""
        now, counts = time.monotonic(), dict[_PendingJob, int]()
        budget = min(self.batch_cost, max(SMALL_BATCH, BATCH_SHARE * self.load / len(self._threads)))
        compute = self._waiting[0].compute
        rest: deque[_PendingJob] = deque()
        while self._waiting:
            one = self._waiting.popleft()
            if not one.taken and now - one.since > LONGEST_WAIT * self.patience:
                self._give_back(one, self.overloaded)
                continue
            cost = one.costs[one.taken]
            same = one.compute == compute  # not `is`: a method is another object each time it is asked for
            if not same or (cost > budget and counts):
                rest.append(one)
                if same:
                    break  # it is the first of the next batch
                continue
            budget -= cost
            counts[one] = counts.get(one, 0) + 1
            one.taken += 1
            if one.taken < len(one.units):
                self._waiting.append(one)
        self._waiting.extendleft(reversed(rest))
        return [(one, one.taken - count, one.taken) for one, count in counts.items()]

    def _answer(self, parts: list[_Part], batches: int) -> None:
        begin = time.monotonic()
        units = [unit for one, first, end in parts for unit in one.units[first:end]]
        cost, failure, rows = sum(sum(one.costs[first:end]) for one, first, end in parts), None, list[Any]()
        try:
            rows = list(_computed(parts[0][0].compute, units))
        except Exception as error:
            failure = error
        seconds = time.monotonic() - begin
        with self._changed:  # before anybody is answered, who may ask at once for more
            self.cost -= cost
            speed = batches * cost / max(seconds, 1e-6)  # of all, while so many compute
            self.speed = SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * speed
        self._observe(len(units), cost, seconds)
        if failure is not None:
            self._answer_alone(parts, failure)
        else:
            each = iter(rows)
            for one, first, end in parts:
                self._found(one, first, list(islice(each, end - first)))
        del self._busy[threading.current_thread()]

    def _answer_alone(self, parts: list[_Part], error: Exception) -> None:
        for one, first, end in parts:
            if len(parts) > 1:
                try:
                    self._found(one, first, _computed(one.compute, one.units[first:end]))
                    continue
                except Exception as its_own:
                    error = its_own
            with self._changed:
                self._give_back(one, error)

    def _found(self, one: _PendingJob, first: int, rows: Sequence[Any]) -> None:
        with self._changed:
            one.found.update(enumerate(rows, first))
            if one.over or len(one.found) < len(one.units):
                return
            one.over = True
            self.load -= min(sum(one.costs), self.batch_cost)
        if one.future.set_running_or_notify_cancel():
            one.future.set_result([one.found[place] for place in range(len(one.units))])

    def _forget(self, one: _PendingJob) -> None:
        with self._changed:
            self._give_back(one, self.overloaded)  # which nobody sees

    def _give_back(self, one: _PendingJob, error: Exception) -> None:
        """A question that is not answered is out of the way, with all units that are in no batch yet."""
        if one.over:
            return
        one.over = True
        self.cost -= sum(one.costs[one.taken :])
        self.load -= min(sum(one.costs), self.batch_cost)
        if one in self._waiting:
            self._waiting.remove(one)
        if one.future.set_running_or_notify_cancel():
            one.future.set_exception(error)


def _computed(compute: Compute, units: Sequence[Any]) -> Sequence[Any]:
    try:
        rows = compute(units)
    except Exception:
        raise
    except BaseException as error:  # a panic of a library in another language
        raise RuntimeError(repr(error)) from error
    if len(rows) != len(units):
        raise RuntimeError(f"{len(rows)} answers to {len(units)} units")
    return rows
