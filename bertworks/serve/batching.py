"""Many small jobs -> batches, in threads.

- `InferenceJob`: what a request computes; `Limits`: of requests and of the server
- `Batcher`: a job gets a future; it is refused if its result would take too long
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from bertworks.errors import BertworksError, UsageError
from bertworks.training.device import lower_thread_priority

Compute = Callable[[Sequence[Any]], Sequence[Any]]  # units -> a result for each, whatever the other units are
SPEED_MEMORY = 0.8  # weight of the old speed in the moving average, after each batch
SMALL_BATCH = 256  # cost of a batch while little waits: a request that arrives meanwhile waits for all of it
BATCH_FRACTION = 0.25  # of what waits, for all threads together: under load, throughput counts more
LONGEST_WAIT = 5.0  # times the patience after which a job that no batch has taken is refused
LARGE_WAIT = 4.0  # times the patience that may wait in total when a job larger than a batch arrives


@dataclass(frozen=True)
class Limits:
    """Limits of one request; and of the server: `batch_tokens` are computed together, up to `requests` are accepted at
    the same time, and none that would have to wait for more than `patience` seconds."""

    body_bytes: int = 2_000_000
    texts: int = 2048
    tokens: int = 65_536  # of all its texts, in all windows
    k: int = 100  # results of one query
    explained_tokens: int = 128
    batch_tokens: int = 4096
    requests: int = 512
    patience: float = 2.0


class RequestTooLargeError(UsageError):
    """A request is larger than the limits allow."""


class OverloadedError(BertworksError):
    """More is waiting than can be computed soon.

    Attributes:
        seconds: after which a client may try again, at least 1.
    """

    def __init__(self, seconds: float = 1):
        super().__init__("the server has more requests than it can answer soon", hint="try again later")
        self.seconds = max(1, round(seconds))


@dataclass(frozen=True)
class InferenceJob:
    """What a request computes. `compute(units)` gives a result for each unit; units of other jobs may be in the same
    call. `answer(results)` is a JSON value, or a list of vectors. `costs`: of each unit, in tokens; 1 without a
    network."""

    answer: Callable[[Sequence[Any]], Any]
    units: Sequence[Any] = ()
    costs: Sequence[int] = ()
    compute: Compute = list


@dataclass(eq=False)
class _PendingJob:
    compute: Compute
    units: Sequence[Any]
    costs: Sequence[int]
    since: float
    taken: int = 0  # units that are, or were, in a batch
    results: dict[int, Any] = field(default_factory=dict)  # unit number -> result: batches end in any order
    finished: bool = False  # with results or an error
    future: "Future[list[Any]]" = field(default_factory=Future)


_Part = tuple[_PendingJob, int, int]  # units of a job: the first, and the end


class Batcher:
    """Computes jobs in threads. Each thread takes units from all waiting jobs, in turn, until the batch is full: a
    small job need not wait for a large one. All units of a batch have equal `compute`, which several threads may call
    at the same time. If a batch fails, its jobs are computed one by one: only the job that causes the error gets it.

    Args:
        batch_cost: maximum cost of a batch; a single unit may cost more. Batches are smaller while little waits.
        patience: seconds in which a job should be finished. A job that would take longer is refused. The speed is
            measured with the batches.
        observe: called with units, cost and seconds of each batch, in the thread that computed it.
        workers: number of threads, each with its own batch.
        sharing: called before each batch, in its thread, with the number of batches computed at the same time.
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
        self.speed = batch_cost / patience  # cost per second; this value until the first batch
        self.cost = 0  # of all that waits or is computed
        self.load = 0  # the same, but at most a batch of each job: no job has to wait for more
        self._busy = dict[threading.Thread, float]()  # thread -> start of its batch
        self._waiting: deque[_PendingJob] = deque()
        self._changed, self._open = threading.Condition(), True
        self._threads = [threading.Thread(target=self._work, daemon=True, name="batcher") for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    @property
    def full(self) -> bool:
        """Whether another job would have to wait too long."""
        return self.load > self.speed * self.patience

    @property
    def overloaded(self) -> OverloadedError:
        """The error of a job that is refused now."""
        return OverloadedError(self.load / self.speed - self.patience)

    @property
    def alive(self) -> bool:
        """Whether all threads are running."""
        return all(thread.is_alive() for thread in self._threads) or not self._open

    @property
    def busy_since(self) -> float | None:
        """The start of the oldest batch that is being computed."""
        return min(list(self._busy.values()), default=None)

    def submit(self, compute: Compute, units: Sequence[Any], costs: Sequence[int]) -> "Future[list[Any]]":
        """The future of the results of the units, in order. Cancel it to make room for others.

        Raises:
            OverloadedError: too much is waiting, or the batcher is closed.
        """
        job = _PendingJob(compute, units, costs, time.monotonic())
        if not units:
            job.future.set_result([])
            return job.future
        cost = sum(costs)
        with self._changed:
            is_late = cost > self.batch_cost and self.cost > LARGE_WAIT * self.patience * self.speed
            if self.full or is_late or not self._open:
                raise self.overloaded
            self.cost += cost
            self.load += min(cost, self.batch_cost)
            self._waiting.append(job)
            self._changed.notify()
        job.future.add_done_callback(lambda future: self._drop(job, self.overloaded) if future.cancelled() else None)
        return job.future

    def close(self) -> None:
        """Refuse new jobs. Waiting jobs are still computed."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _work(self) -> None:
        lower_thread_priority()  # or short requests wait until a matrix product is finished
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._open)
                if not self._waiting:
                    return
                parts = self._next_batch()
                if not parts:
                    continue
                self._busy[threading.current_thread()] = time.monotonic()
                batches = len(self._busy)
                if self._waiting and batches < len(self._threads):
                    self._changed.notify()
                    batches += 1
            self._sharing(batches)
            self._compute_batch(parts, batches)

    def _next_batch(self) -> list[_Part]:
        """One more unit of each waiting job, in turn, until the batch is full."""
        now, counts = time.monotonic(), dict[_PendingJob, int]()
        budget = min(self.batch_cost, max(SMALL_BATCH, BATCH_FRACTION * self.load / len(self._threads)))
        compute = self._waiting[0].compute
        others: deque[_PendingJob] = deque()
        while self._waiting:
            job = self._waiting.popleft()
            if not job.taken and now - job.since > LONGEST_WAIT * self.patience:
                self._drop(job, self.overloaded)
                continue
            cost = job.costs[job.taken]
            is_same = job.compute == compute  # not `is`: each access to a method creates a new object
            if not is_same or (cost > budget and counts):
                others.append(job)
                if is_same:
                    break  # it is the first of the next batch
                continue
            budget -= cost
            counts[job] = counts.get(job, 0) + 1
            job.taken += 1
            if job.taken < len(job.units):
                self._waiting.append(job)
        self._waiting.extendleft(reversed(others))
        return [(job, job.taken - count, job.taken) for job, count in counts.items()]

    def _compute_batch(self, parts: list[_Part], batches: int) -> None:
        begin = time.monotonic()
        units = [unit for job, first, end in parts for unit in job.units[first:end]]
        cost = sum(sum(job.costs[first:end]) for job, first, end in parts)
        results: Sequence[Any] | Exception
        try:
            results = _compute(parts[0][0].compute, units)
        except Exception as error:
            results = error
        seconds = time.monotonic() - begin
        with self._changed:  # before the answers: a client may send its next request at once
            self.cost -= cost
            speed = batches * cost / max(seconds, 1e-6)  # of all threads that compute
            self.speed = SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * speed
        self._observe(len(units), cost, seconds)
        start = 0
        for job, first, end in parts:
            if not isinstance(results, Exception):
                self._add_results(job, first, results[start : start + end - first])
            elif len(parts) == 1:
                self._drop(job, results)
            else:
                try:
                    self._add_results(job, first, _compute(job.compute, job.units[first:end]))
                except Exception as error:
                    self._drop(job, error)
            start += end - first
        del self._busy[threading.current_thread()]

    def _add_results(self, job: _PendingJob, first: int, results: Sequence[Any]) -> None:
        with self._changed:
            job.results.update(enumerate(results, first))
            if job.finished or len(job.results) < len(job.units):
                return
            job.finished = True
            self.load -= min(sum(job.costs), self.batch_cost)
        if job.future.set_running_or_notify_cancel():
            job.future.set_result([job.results[number] for number in range(len(job.units))])

    def _drop(self, job: _PendingJob, error: Exception) -> None:
        """End a job with an error, and remove its units that are in no batch yet."""
        with self._changed:
            if job.finished:
                return
            job.finished = True
            self.cost -= sum(job.costs[job.taken :])
            self.load -= min(sum(job.costs), self.batch_cost)
            if job in self._waiting:
                self._waiting.remove(job)
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)


def _compute(compute: Compute, units: Sequence[Any]) -> Sequence[Any]:
    try:
        results = compute(units)
    except Exception:
        raise
    except BaseException as error:  # a panic of a library in another language
        raise RuntimeError(repr(error)) from error
    if len(results) != len(units):
        raise RuntimeError(f"{len(results)} answers to {len(units)} units")
    return results
