"""Many small jobs -> batches, in threads.

- `InferenceJob`: what a request computes; `Limits`: of requests and of the server
- `Batcher`: a job gets a future; it is refused if its result would take too long
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bertworks.errors import BertworksError
from bertworks.training.device import THREADS, lower_thread_priority

Compute = Callable[[Sequence[Any]], Any]  # units -> a result for each, whatever the other units are
SPEED_MEMORY = 0.8  # weight of the old speed in the moving average, after each batch
SMALL_BATCH = 256  # cost of a batch while little waits: a request that arrives meanwhile waits for all of it
BATCH_FRACTION = 0.25  # of what waits, for all threads together: under load, throughput counts more
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


class RequestError(BertworksError):
    """A request that is refused, with an HTTP status and headers."""

    def __init__(self, status: int, what: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(what, hint=hint)
        self.status, self.headers = status, headers


class OverloadedError(RequestError):
    """More is waiting than can be computed soon. seconds: after which a client may try again."""

    def __init__(self, seconds: float = 1):
        what = "the server has more requests than it can answer soon"
        super().__init__(429, what, hint="try again later", headers={"retry-after": f"{max(seconds, 1):.0f}"})


@dataclass(eq=False)
class InferenceJob:
    """What a request computes. `compute(units)` gives a result for each unit; units of other jobs may be in the same
    call. `costs`: of each unit, in tokens; 1 without a network."""

    units: Sequence[Any] = ()
    costs: Sequence[int] = ()
    compute: Compute = list
    taken: int = field(init=False, default=0)  # units that are, or were, in a batch
    results: dict[int, Any] = field(init=False, default_factory=dict)  # unit number -> result: batches end in any order
    future: "Future[list[Any]]" = field(init=False, default_factory=Future)


_Batch = dict[InferenceJob, list[int]]  # job -> numbers of its units


class Batcher:
    """Computes jobs in threads. A batch takes units from all waiting jobs, in turn, until it is full: a small job need
    not wait for a large one. All units of a batch have equal `compute`, which several threads may call at the same
    time. If a batch fails, its jobs are computed one by one: only the job that causes the error gets it.

    Args:
        batch_cost: maximum cost of a batch; a single unit may cost more. Batches are smaller while little waits.
        patience: seconds in which a job should be finished. A job that would take longer is refused. The speed is
            measured with the batches.
        observe: called with units, cost and seconds of each batch, in the thread that computed it.
        workers: number of threads, each with its own batch. The batches that are computed at the same time share the
            threads of torch.

    Attributes:
        busy: thread -> when its batch began.
        threads: shut them down to refuse new jobs. Waiting jobs are still computed.
    """

    def __init__(
        self,
        batch_cost: int,
        *,
        patience: float,
        observe: Callable[[int, int, float], None] = lambda units, cost, seconds: None,
        workers: int = 1,
    ):
        self.batch_cost, self.patience, self.workers, self._observe = batch_cost, patience, workers, observe
        self.speed = batch_cost / patience  # cost per second; this value until the first batch
        self.cost = 0  # of all that waits or is computed
        self.load = 0  # the same, but at most a batch of each job: no job has to wait for more
        self.busy = dict[int, float]()
        self._waiting, self._lock = dict[Compute, deque[InferenceJob]](), threading.Lock()
        # Low priority, or short requests wait until a matrix product is finished.
        self.threads = ThreadPoolExecutor(workers, "batcher", lower_thread_priority)

    @property
    def overloaded(self) -> OverloadedError | None:
        """The error of a job that arrives now, if it would have to wait too long."""
        seconds = self.load / self.speed
        return OverloadedError(seconds - self.patience) if seconds > self.patience else None

    def submit(self, job: InferenceJob) -> "Future[list[Any]]":
        """The future of the results of the units, in order. Cancel it to make room for others.

        Raises:
            OverloadedError: too much is waiting, or the batcher is closed.
        """
        cost = sum(job.costs)
        with self._lock:
            is_late = cost > self.batch_cost and self.cost > LARGE_WAIT * self.patience * self.speed
            if error := OverloadedError(self.patience) if is_late else self.overloaded:
                raise error
            try:
                for _ in job.units[: self.workers]:
                    self.threads.submit(self._work)
            except RuntimeError:  # it is closed
                raise OverloadedError from None
            self.cost += cost
            self.load += min(cost, self.batch_cost)
            self._waiting.setdefault(job.compute, deque()).append(job)
        job.future.add_done_callback(lambda _: self._release(job))
        return job.future

    def _release(self, job: InferenceJob) -> None:
        """Called when a job has its results or an error, or is cancelled: what waits of it is not computed."""
        with self._lock:
            self.load -= min(sum(job.costs), self.batch_cost)
            self.cost -= sum(job.costs[job.taken :])
            if job.taken < len(job.units):
                self._waiting[job.compute].remove(job)

    def _work(self) -> None:
        """Compute batches until nothing waits."""
        thread = threading.get_ident()
        while batch := self._next_batch():
            begin = self.busy[thread] = time.monotonic()
            batches = min(self.workers, len(self.busy) + any(list(self._waiting.values())))
            THREADS.adapt(batches)
            errors = _compute(batch)
            seconds = time.monotonic() - begin
            units, cost = sum(map(len, batch.values())), sum(job.costs[n] for job in batch for n in batch[job])
            self._observe(units, cost, seconds)
            with self._lock:  # before the answers: a client may send its next request at once
                self.cost -= cost
                speed = batches * cost / max(seconds, 1e-6)  # of all threads that compute
                self.speed = SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * speed
            for job in batch:
                with suppress(InvalidStateError):  # another batch has failed, or the client has gone away
                    if job in errors:
                        job.future.set_exception(errors[job])
                    elif len(job.results) == len(job.units):
                        job.future.set_result([job.results[number] for number in range(len(job.units))])
            del self.busy[thread]

    def _next_batch(self) -> _Batch:
        """One more unit of each waiting job, in turn, until the batch is full."""
        batch: _Batch = {}
        with self._lock:
            compute = next((compute for compute, jobs in self._waiting.items() if jobs), None)
            if compute is None:
                return batch
            jobs = self._waiting[compute] = self._waiting.pop(compute)  # now the last in turn
            budget = min(self.batch_cost, max(SMALL_BATCH, BATCH_FRACTION * self.load / self.workers))
            while jobs and (jobs[0].costs[jobs[0].taken] <= budget or not batch):
                job = jobs.popleft()
                batch.setdefault(job, []).append(job.taken)
                budget -= job.costs[job.taken]
                job.taken += 1
                if job.taken < len(job.units):
                    jobs.append(job)
        return batch


def _compute(batch: _Batch) -> dict[InferenceJob, Exception]:
    """Add the results of a batch to its jobs. Returns the errors of those that have none."""
    units = [job.units[number] for job, numbers in batch.items() for number in numbers]
    try:
        results = next(iter(batch)).compute(units)
        if len(results) != len(units):
            raise RuntimeError(f"{len(results)} answers to {len(units)} units")
    except BaseException as error:  # also a panic of a library in another language
        if len(batch) > 1:
            return {job: error for job in batch for error in _compute({job: batch[job]}).values()}
        return dict.fromkeys(batch, error if isinstance(error, Exception) else RuntimeError(repr(error)))
    remaining = iter(results)
    for job, numbers in batch.items():
        job.results.update(zip(numbers, remaining))
    return {}
