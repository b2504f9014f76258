"""Many small jobs -> batches, in threads, and which requests are accepted.

- `InferenceJob`: what a request computes; `Limits`: of requests and of the server
- `Batcher`: a job gets a future; it is refused if its result would take too long
- `Admission`: the requests in the server, limited in number and bytes, with equal shares for clients
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bertworks.errors import BertworksError
from bertworks.training.device import THREADS, lower_thread_priority

Compute = Callable[[Sequence[Any]], Any]  # units -> a result for each, whatever the other units are
SPEED_MEMORY = 0.8  # weight of the old speed in the moving average, after each batch
SMALL_BATCH = 128  # cost of a batch while little waits
BATCH_FRACTION = 0.25  # of what waits, for all threads together: under load, throughput counts more
BATCH_SECONDS = 0.04  # that a batch should take if it is not small: what arrives meanwhile waits for all of it
EXTRA = 1 / 16  # of a large unit's cost: small units of other clients in its batch, which need not wait for it
LARGE_WAIT = 4.0  # times the patience that a job larger than a batch may wait for its end


@dataclass(frozen=True)
class Limits:
    """Limits of one request; and of the server: `batch_tokens` are computed together, up to `requests` with
    `total_bytes` of bodies are accepted at the same time, and none that would have to wait for more than `patience`
    seconds; `total_answer_bytes` of answers are made or wait to be read."""

    body_bytes: int = 2_000_000
    total_bytes: int = 16_000_000
    answer_bytes: int = 40_000_000  # 2,048 vectors of 1,024 values as decimal numbers have 33 million
    total_answer_bytes: int = 64_000_000
    texts: int = 2048
    tokens: int = 65_536  # of all its texts, in all windows
    k: int = 100  # results of one query
    query_characters: int = 2000
    explained_tokens: int = 128
    batch_tokens: int = 4096
    requests: int = 512
    patience: float = 2.0


class RequestError(BertworksError):
    """A request that is refused, with an HTTP status and headers."""

    def __init__(self, status: int, what: str, *, hint: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(what, hint=hint)
        self.status, self.headers = status, headers


def grant(holds: object, status: int, what: str, **options: Any) -> None:
    """Raise RequestError unless a condition holds."""
    if not holds:
        raise RequestError(status, what, **options)


def forget_origin(error: BertworksError) -> None:
    """Forget where an expected error was raised, once its message is all that matters. The traceback refers to the
    variables of the functions that the error has left: the body of a refused request, and the job whose future holds
    the error. They would stay in memory until a collection of garbage."""
    error.__traceback__ = None
    error.__context__ = None


class OverloadedError(RequestError):
    """More is waiting than can be computed soon. seconds: after which a client may try again."""

    def __init__(self, seconds: float = 1):
        what = "the server has more requests than it can answer soon"
        super().__init__(429, what, hint="try again later", headers={"retry-after": f"{max(seconds, 1):.0f}"})


@dataclass(eq=False)
class InferenceJob:
    """What a request computes. `compute(units)` gives a result for each unit; units of other jobs may be in the same
    call. `costs`: of each unit, in tokens for a network. `client`: clients are served in turn. `queue`: the name of
    the server's queue that computes it."""

    units: Sequence[Any] = ()
    costs: Sequence[int] = ()
    compute: Compute = list
    client: Hashable = ""
    queue: str = "network"
    taken: int = field(init=False, default=0)  # units that are, or were, in a batch
    results: dict[int, Any] = field(init=False, default_factory=dict)  # unit number -> result: batches end in any order
    future: "Future[list[Any]]" = field(init=False, default_factory=Future)


_Batch = dict[InferenceJob, list[int]]  # job -> numbers of its units


class Batcher:
    """Computes jobs in threads. A batch takes units from all waiting clients, and from all jobs of a client, in turn
    (see `in_order`), until it is full: a small job need not wait for a large one, nor a client for another one's many
    jobs. All units of a batch have equal `compute`, which several threads may call at the same time. If a batch fails,
    its jobs are computed one by one: only the job that causes the error gets it.

    Args:
        batch_cost: maximum cost of a batch; a single unit may cost more. Batches are smaller while little waits, and
            if they would take long.
        patience: seconds in which a job should be finished. A job that would take longer is refused. The speed is
            measured with the batches.
        observe: called with units, cost and seconds of each batch, in the thread that computed it.
        workers: number of threads, each with its own batch. The batches that are computed at the same time share the
            threads of torch.
        rank: the higher, the lower the priority of the threads; 0: as the others of the process.
        in_order: the jobs of a client are computed one after another, not in turn, so that the results of few of them
            are in memory.

    Attributes:
        costs: client -> cost of all its jobs that wait or are computed.
        loads: the same, but at most a batch (or a unit that is larger) of each job: no job has to wait for more.
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
        rank: int = 1,
        in_order: bool = False,
    ):
        self._in_order = in_order
        self.batch_cost, self.patience, self.workers, self._observe = batch_cost, patience, workers, observe
        self.speed = batch_cost / patience  # cost per second; this value until the first batch
        self.costs, self.loads = Counter[Hashable](), Counter[Hashable]()
        self.busy = dict[int, float]()
        self._waiting, self._lock = dict[Compute, dict[Hashable, deque[InferenceJob]]](), threading.Lock()
        # Low priority, or short requests wait until a matrix product is finished.
        self.threads = ThreadPoolExecutor(workers, "batcher", lower_thread_priority, (rank,))

    def _load(self, job: InferenceJob) -> int:
        return min(sum(job.costs), max(self.batch_cost, *job.costs, 0))

    def overloaded(self, job: InferenceJob, patience: float = 1.0) -> OverloadedError | None:
        """The error of a job that arrives now, if it would have to wait too long: for all work of its client, and as
        much of each other one. patience: a factor."""
        cost, limit = sum(job.costs), patience * self.patience
        seconds = _fair_sum(self.loads, self.loads[job.client] + self._load(job)) / self.speed
        if cost > self.batch_cost:
            seconds = max(seconds, _fair_sum(self.costs, self.costs[job.client] + cost) / self.speed / LARGE_WAIT)
        return OverloadedError(seconds - limit) if seconds > limit else None

    def reserve(self, job: InferenceJob, patience: float = 1.0) -> "Future[list[Any]]":
        """Accept a job that `start` will compute: from now on it counts. Cancel its future to make room for others.

        Raises:
            OverloadedError: too much is waiting.
        """
        with self._lock:
            if error := self.overloaded(job, patience):
                raise error
            _add(self.costs, job.client, sum(job.costs))
            _add(self.loads, job.client, self._load(job))
        job.future.add_done_callback(_Release(self._release, job))
        return job.future

    def start(self, job: InferenceJob) -> "Future[list[Any]]":
        """Compute a job that `reserve` has accepted.

        Raises:
            OverloadedError: the batcher is closed.
        """
        with self._lock:
            try:
                for _ in job.units[: self.workers]:
                    self.threads.submit(self._work)
            except RuntimeError:  # it is closed
                raise OverloadedError from None
            self._waiting.setdefault(job.compute, {}).setdefault(job.client, deque()).append(job)
        return job.future

    def submit(self, job: InferenceJob, patience: float = 1.0) -> "Future[list[Any]]":
        """The future of the results of the units, in order: `reserve`, then `start`."""
        self.reserve(job, patience)
        return self.start(job)

    def _release(self, job: InferenceJob) -> None:
        """Called when a job has its results or an error, or is cancelled: what waits of it is not computed."""
        with self._lock:
            _add(self.loads, job.client, -self._load(job))
            _add(self.costs, job.client, -sum(job.costs[job.taken :]))
            queues = self._waiting.get(job.compute, {})
            if job in queues.get(job.client, ()):
                queues[job.client].remove(job)
                if not queues[job.client]:
                    del queues[job.client]

    def _work(self) -> None:
        """Compute batches until nothing waits."""
        thread = threading.get_ident()
        while batch := self._next_batch():
            begin = self.busy[thread] = time.monotonic()
            batches = min(self.workers, len(self.busy) + any(list(self._waiting.values())))
            THREADS.adapt(batches)
            errors = _compute(batch)
            for error in errors.values():
                if isinstance(error, BertworksError):
                    forget_origin(error)
            seconds = time.monotonic() - begin
            units, cost = sum(map(len, batch.values())), sum(job.costs[n] for job in batch for n in batch[job])
            self._observe(units, cost, seconds)
            with self._lock:  # before the answers: a client may send its next request at once
                for job, numbers in batch.items():
                    _add(self.costs, job.client, -sum(job.costs[n] for n in numbers))
                speed = batches * cost / max(seconds, 1e-6)  # of all threads that compute
                if speed > self.speed or cost >= min(SMALL_BATCH, self.batch_cost):  # smaller batches are slower
                    self.speed = SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * speed
            for job in batch:
                with suppress(InvalidStateError):  # another batch has failed, or the client has gone away
                    if job in errors:
                        job.future.set_exception(errors[job])
                    elif len(job.results) == len(job.units):
                        job.future.set_result([job.results[number] for number in range(len(job.units))])
            del self.busy[thread]

    def _next_batch(self) -> _Batch:
        """One more unit of each waiting client, in turn, until the batch is full. It is as large as if all clients had
        as little work as the one with the least, which need not wait for the others' large batches."""
        batch: _Batch = {}
        with self._lock:
            compute = next((compute for compute, queues in self._waiting.items() if queues), None)
            if compute is None:
                return batch
            queues = self._waiting[compute] = self._waiting.pop(compute)  # now the last in turn
            waiting = _fair_sum(self.loads, min(self.loads[client] for client in queues))
            first = next(iter(queues.values()))[0]
            least = max(SMALL_BATCH, (1 + EXTRA) * first.costs[first.taken])
            usual = min(BATCH_FRACTION * waiting, BATCH_SECONDS * self.speed) / self.workers
            budget = min(self.batch_cost, max(least, usual))
            while queues:
                client, jobs = next(iter(queues.items()))
                if batch and jobs[0].costs[jobs[0].taken] > budget:
                    break
                job = jobs.popleft()
                del queues[client]
                batch.setdefault(job, []).append(job.taken)
                budget -= job.costs[job.taken]
                job.taken += 1
                if job.taken < len(job.units):
                    if self._in_order:
                        jobs.appendleft(job)
                    else:
                        jobs.append(job)
                if jobs:
                    queues[client] = jobs  # now the last in turn
        return batch


class _Release:
    """Calls a function with a job when the future of the job is done, and then forgets the job: a future keeps its
    callbacks, so that a job would hold itself, and the texts of abandoned requests would stay until a collection of
    garbage."""

    def __init__(self, release: Callable[[InferenceJob], None], job: InferenceJob):
        self._release = release
        self._job: InferenceJob | None = job

    def __call__(self, _: "Future[list[Any]]") -> None:
        job, self._job = self._job, None
        if job is not None:
            self._release(job)


def _add(totals: Counter[Hashable], client: Hashable, amount: int) -> None:
    totals[client] += amount
    if not totals[client]:
        del totals[client]


def _fair_sum(totals: Mapping[Hashable, int], most: int) -> int:
    """The sum of what all clients have, at most `most` of each: computed in turns, before a client has that much."""
    return sum(min(total, most) for total in list(totals.values()))  # other threads change it


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


@dataclass(eq=False)
class Place:
    """A request in the server. size: bytes of its body, as it is counted. task: None before it reads the body;
    cancelled if there is an error."""

    client: Hashable
    task: Any = None
    size: int = 0
    error: RequestError | None = None


class Admission:
    """The requests in the server, `places`. Each counts with the bytes of its body, and at least with an equal part of
    all bytes, which limits their number. If there is no room left, a client that has less gets the room of the last
    request of the client that has most; that request is refused."""

    def __init__(self, requests: int, total_bytes: int):
        self._least, self._free = max(1, total_bytes // requests), total_bytes
        self._sizes, self.places = Counter[Hashable](), dict[Place, None]()

    @contextmanager
    def place(self, client: Hashable, size: int) -> Iterator[Place]:
        """A place for a request while it is answered.

        Raises:
            OverloadedError: there is no room, or another client has got it.
            RequestError: of `end`.
        """
        place = Place(client)
        try:
            self.grow(place, max(size, self._least))
            yield place
        except asyncio.CancelledError as error:
            raise place.error or error from None
        finally:
            self._count(place, 0)

    def grow(self, place: Place, size: int) -> None:
        """Count `size` bytes, if that is more than before."""
        while (more := size - place.size) > self._free:
            most = max(self._sizes, key=self._sizes.__getitem__, default=place.client)
            if self._sizes[most] - (more - self._free) < self._sizes[place.client] + more:  # it would have less
                raise OverloadedError
            self.end(next(other for other in reversed(self.places) if other.client == most), OverloadedError())
        self._count(place, max(size, place.size))

    def end(self, place: Place, error: RequestError) -> None:
        """Answer a request with an error, if it is still there."""
        if place in self.places:
            place.error = error
            self._count(place, 0)
            if place.task:
                place.task.cancel()

    def _count(self, place: Place, size: int) -> None:
        self._free += place.size - size
        _add(self._sizes, place.client, size - place.size)
        place.size = size
        self.places.pop(place, None)
        if size:
            self.places[place] = None
