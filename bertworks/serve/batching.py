"""Many small jobs -> batches, in threads, and which requests are accepted.

- `InferenceJob`: what a request computes; `Limits`: of requests and of the server
- `Batcher`: a job gets a future; it is refused if its result would take too long
- `Admission`: the requests in the server, limited in number and bytes, with equal shares for
  clients
"""

import asyncio
import math
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
# that a batch should take if it is not small: what arrives meanwhile waits for all of it
BATCH_SECONDS = 0.04
# of a large unit's cost: small units of other clients in its batch, which need not wait for it
EXTRA = 1 / 16
MAX_RETRY_SECONDS = 60  # in which a refused client may come again: clients ignore more
# Requests of a client that always wait; texts of each; tokens of each text.
CLIENT_REQUESTS = 32
CLIENT_TEXTS = 32
TEXT_TOKENS = 512


@dataclass(frozen=True)
class Limits:
    """Limits of one request, and of the server.

    Attributes of the server:
        batch_tokens: that are computed together.
        requests, total_bytes: that are accepted at the same time, and the bytes of their bodies.
        patience: seconds that a request may wait to be computed. If it would have to wait longer,
            it is refused.
        client_tokens: of one client, that wait in any case, however slow the network is.
        waiting_tokens: of all clients, that wait or are computed: what was read of a text takes
            more memory than its bytes.
        total_answer_bytes: of answers that are made or wait to be read.
    """

    body_bytes: int = 2_000_000
    total_bytes: int = 16_000_000
    # 2,048 vectors of 1,024 values as decimal numbers have 33 million
    answer_bytes: int = 40_000_000
    total_answer_bytes: int = 64_000_000
    texts: int = 2048
    tokens: int = 65_536  # of all its texts, in all windows
    k: int = 100  # results of one query
    query_characters: int = 2000
    explained_tokens: int = 128
    batch_tokens: int = 4096
    requests: int = 512
    patience: float = 30.0
    client_tokens: int = CLIENT_REQUESTS * CLIENT_TEXTS * TEXT_TOKENS
    waiting_tokens: int = 2 * CLIENT_REQUESTS * CLIENT_TEXTS * TEXT_TOKENS


class RequestError(BertworksError):
    """A request that is refused, with an HTTP status and headers."""

    def __init__(
        self,
        status: int,
        what: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(what, hint=hint)
        self.status = status
        self.headers = headers


def grant(holds: object, status: int, what: str, **options: Any) -> None:
    """Raise RequestError unless a condition holds."""
    if not holds:
        raise RequestError(status, what, **options)


def forget_origin(error: BertworksError) -> None:
    """Forget where an expected error was raised, once its message is all that matters.

    The traceback refers to the variables of the functions that the error has left: the body of a
    refused request, and the job whose future holds the error. They would stay in memory until a
    collection of garbage.
    """
    error.__traceback__ = None
    error.__context__ = None


class OverloadedError(RequestError):
    """More is waiting than can be computed soon.

    seconds: after which a client may try again, as estimated.
    """

    def __init__(self, seconds: float = 1):
        what = "the server has more requests than it can answer soon"
        retry_after = math.ceil(min(max(seconds, 1), MAX_RETRY_SECONDS))
        super().__init__(
            429, what, hint="try again later", headers={"retry-after": str(retry_after)}
        )


@dataclass(eq=False)
class InferenceJob:
    """What a request computes.

    `compute(units)` gives a result for each unit; units of other jobs may be in the same call.
    `costs`: of each unit, in tokens for a network. `client`: clients are served in turn. `queue`:
    the name of the server's queue that computes it.
    """

    units: Sequence[Any] = ()
    costs: Sequence[int] = ()
    compute: Compute = list
    client: Hashable = ""
    queue: str = "network"
    num_started: int = field(init=False, default=0)  # units that are, or were, in a batch
    # unit number -> result: batches end in any order
    results: dict[int, Any] = field(init=False, default_factory=dict)
    future: "Future[list[Any]]" = field(init=False, default_factory=Future)


_Batch = dict[InferenceJob, list[int]]  # job -> numbers of its units


class Batcher:
    """Computes jobs in threads.

    A batch takes units from all waiting clients, and from the jobs of a client, in turn (see
    `turn_cost`), until it is full: a small job need not wait for a large one, nor a client for
    another one's many jobs. All units of a batch have equal `compute`, which several threads may
    call at the same time. If a batch fails, its jobs are computed one by one: only the job that
    causes the error gets it.

    Args:
        batch_cost: maximum cost of a batch; a single unit may cost more. Batches are smaller while
            little waits, and if they would take long.
        patience: seconds that a job may wait. A job that would have to wait longer is refused.
        speed: cost per second, until it is measured with the batches. Infinite: unknown; nothing is
            refused yet.
        always_waits: cost of the jobs of one client that are accepted however long they have to
            wait.
        observe: called with units, cost and seconds of each batch, in the thread that computed it.
        workers: number of threads, each with its own batch. The batches that are computed at the
            same time share the threads of torch.
        rank: the higher, the lower the priority of the threads; 0: as the others of the process.
        turn_cost: cost of the first jobs of a client, which are computed in turn. Its other jobs
            are begun when one of these is finished, so that the results of few jobs are in memory.
            0: one job after another.

    Attributes:
        costs: client -> cost of all its jobs that wait or are computed.
        loads: the same, but at most a batch (or a unit that is larger) of each job: no job has to
            wait for more.
        busy: thread -> when its batch began.
        threads: shut them down to refuse new jobs. Waiting jobs are still computed.
    """

    def __init__(
        self,
        batch_cost: int,
        *,
        patience: float,
        speed: float = math.inf,
        always_waits: int = 0,
        observe: Callable[[int, int, float], object] = lambda units, cost, seconds: None,
        workers: int = 1,
        rank: int = 1,
        turn_cost: float = math.inf,
    ):
        self._turn_cost = turn_cost
        self._always_waits = always_waits
        self.batch_cost = batch_cost
        self.patience = patience
        self.workers = workers
        self._observe = observe
        self.speed = speed
        self.costs = Counter[Hashable]()
        self.loads = Counter[Hashable]()
        self.busy = dict[int, float]()
        self._waiting = dict[Compute, dict[Hashable, _ClientQueue]]()
        # Jobs that have not ended. A future keeps its callbacks: one that refers to its job would
        # keep the texts of an abandoned request in memory until a collection of garbage.
        self._reserved = dict[Future[list[Any]], InferenceJob]()
        self._lock = threading.Lock()
        # Low priority, or short requests wait until a matrix product is finished.
        self.threads = ThreadPoolExecutor(workers, "batcher", lower_thread_priority, (rank,))

    def _load(self, job: InferenceJob) -> int:
        return min(sum(job.costs), max(self.batch_cost, *job.costs, 0))

    def overloaded(self, job: InferenceJob, patience: float = 1.0) -> OverloadedError | None:
        """Return the error of a job that arrives now, if it would have to wait too long.

        It waits for all work of its client, and as much of each other one. patience: a factor.
        """
        client = job.client
        cost = sum(job.costs)
        if self.costs[client] + cost <= self._always_waits:
            return None
        seconds = _fair_sum(self.loads, self.loads[client] + self._load(job)) / self.speed
        # A small job has its turn beside the first jobs of its client, a large one ends after all
        # of them.
        earlier = self.costs[client] + (cost if cost > self.batch_cost else -self._turn_cost)
        if earlier > 0:
            seconds = max(seconds, _fair_sum(self.costs, earlier) / self.speed)
        limit = patience * self.patience
        return OverloadedError(seconds - limit) if seconds > limit else None

    def reserve(self, job: InferenceJob, patience: float = 1.0) -> "Future[list[Any]]":
        """Accept a job that `start` will compute: from now on it counts.

        Cancel its future to make room for others.

        Raises:
            OverloadedError: too much is waiting.
        """
        with self._lock:
            if error := self.overloaded(job, patience):
                raise error
            _add(self.costs, job.client, sum(job.costs))
            _add(self.loads, job.client, self._load(job))
            self._reserved[job.future] = job
        job.future.add_done_callback(self._release)
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
            queues = self._waiting.setdefault(job.compute, {})
            if job.client not in queues:
                queues[job.client] = _ClientQueue(self._turn_cost)
            queues[job.client].add(job)
        return job.future

    def submit(self, job: InferenceJob, patience: float = 1.0) -> "Future[list[Any]]":
        """Return the future of the results of the units, in order: `reserve`, then `start`."""
        self.reserve(job, patience)
        return self.start(job)

    def _release(self, future: "Future[list[Any]]") -> None:
        """Leave out what waits of a job that has ended.

        It has its results or an error, or is cancelled: the rest is not computed.
        """
        with self._lock:
            job = self._reserved.pop(future)
            _add(self.loads, job.client, -self._load(job))
            _add(self.costs, job.client, -sum(job.costs[job.num_started :]))
            queues = self._waiting.get(job.compute, {})
            queue = queues.get(job.client)
            if queue is not None:
                queue.remove(job)
                if not queue:
                    del queues[job.client]
            if not queues:
                self._waiting.pop(job.compute, None)

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
            units = sum(map(len, batch.values()))
            cost = sum(job.costs[n] for job in batch for n in batch[job])
            self._observe(units, cost, seconds)
            with self._lock:  # before the answers: a client may send its next request at once
                for job, numbers in batch.items():
                    _add(self.costs, job.client, -sum(job.costs[n] for n in numbers))
                speed = batches * cost / max(seconds, 1e-6)  # of all threads that compute
                is_typical = cost >= min(SMALL_BATCH, self.batch_cost)  # smaller batches are slower
                if math.isinf(self.speed):
                    self.speed = speed if is_typical else self.speed
                elif speed > self.speed or is_typical:
                    self.speed = SPEED_MEMORY * self.speed + (1 - SPEED_MEMORY) * speed
            for job in batch:
                # another batch has failed, or the client has gone away
                with suppress(InvalidStateError):
                    if job in errors:
                        job.future.set_exception(errors[job])
                    elif len(job.results) == len(job.units):
                        job.future.set_result(
                            [job.results[number] for number in range(len(job.units))]
                        )
            del self.busy[thread]

    def _next_batch(self) -> _Batch:
        """One more unit of each waiting client, in turn, until the batch is full.

        It is as large as if all clients had as little work as the one with the least, which need
        not wait for the others' large batches.
        """
        batch: _Batch = {}
        with self._lock:
            compute = next((compute for compute, queues in self._waiting.items() if queues), None)
            if compute is None:
                return batch
            queues = self._waiting[compute] = self._waiting.pop(compute)  # now the last in turn
            waiting = _fair_sum(self.loads, min(self.loads[client] for client in queues))
            first = next(iter(queues.values())).first
            least = max(SMALL_BATCH, (1 + EXTRA) * first.costs[first.num_started])
            usual = min(BATCH_FRACTION * waiting, BATCH_SECONDS * self.speed) / self.workers
            budget = min(self.batch_cost, max(least, usual))
            while queues:
                client, queue = next(iter(queues.items()))
                job = queue.first
                cost = job.costs[job.num_started]
                if batch and cost > budget:
                    break
                batch.setdefault(job, []).append(job.num_started)
                budget -= cost
                queue.take()
                del queues[client]
                if queue:
                    queues[client] = queue  # now the last in turn
            if not queues:
                del self._waiting[compute]
        return batch


class _ClientQueue:
    """The jobs of a client that wait.

    The first of them, up to `turn_cost` together and at least one, are computed in turn; each other
    one follows when one of these is finished.
    """

    def __init__(self, turn_cost: float):
        self._turn_cost = turn_cost
        self._in_turn = deque[InferenceJob]()
        self._later = deque[InferenceJob]()
        self._cost = 0  # of the jobs in turn

    def __len__(self) -> int:
        return len(self._in_turn) + len(self._later)

    @property
    def first(self) -> InferenceJob:
        """The job whose unit is next."""
        return self._in_turn[0]

    def add(self, job: InferenceJob) -> None:
        self._later.append(job)
        self._fill()

    def take(self) -> None:
        """Count the next unit as taken."""
        job = self._in_turn[0]
        job.num_started += 1
        if job.num_started == len(job.units):
            self.remove(job)
        else:
            self._in_turn.rotate(-1)

    def remove(self, job: InferenceJob) -> None:
        """Forget a job, if it is still there."""
        if job in self._in_turn:
            self._in_turn.remove(job)
            self._cost -= sum(job.costs)
        elif job in self._later:
            self._later.remove(job)
        self._fill()

    def _fill(self) -> None:
        """Begin with jobs while there is room in the turn."""
        while self._later and (
            not self._in_turn or self._cost + sum(self._later[0].costs) <= self._turn_cost
        ):
            job = self._later.popleft()
            self._in_turn.append(job)
            self._cost += sum(job.costs)


def _add(totals: Counter[Hashable], client: Hashable, amount: int) -> None:
    totals[client] += amount
    if not totals[client]:
        del totals[client]


def _fair_sum(totals: Mapping[Hashable, int], most: float) -> float:
    """Return the sum of what all clients have, at most `most` of each.

    It is computed in turns, before a client has that much.
    """
    return sum(min(total, most) for total in list(totals.values()))  # other threads change it


def _compute(batch: _Batch) -> dict[InferenceJob, Exception]:
    """Add the results of a batch to its jobs.

    Returns the errors of those that have none.
    """
    units = [job.units[number] for job, numbers in batch.items() for number in numbers]
    try:
        results = next(iter(batch)).compute(units)
        if len(results) != len(units):
            raise RuntimeError(f"{len(results)} answers to {len(units)} units")
    except BaseException as error:  # also a panic of a library in another language
        if len(batch) > 1:
            return {job: error for job in batch for error in _compute({job: batch[job]}).values()}
        return dict.fromkeys(
            batch, error if isinstance(error, Exception) else RuntimeError(repr(error))
        )
    remaining = iter(results)
    for job, numbers in batch.items():
        job.results.update(zip(numbers, remaining))
    return {}


@dataclass(eq=False)
class Place:
    """A request in the server.

    size: bytes of its body (or what else is counted). task: None before it reads the body;
    cancelled if there is an error. job: in a queue, for which the request waits.
    """

    client: Hashable
    task: Any = None
    job: InferenceJob | None = None
    size: int = 0
    error: RequestError | None = None


class Admission:
    """The requests in the server, `places`.

    Each counts with the bytes of its body, and at least with an equal part of all bytes, which
    limits their number. If there is no room left, a client that has less gets the room of the last
    request of the client that has most; that request is refused. It also counts what else is
    limited: the bytes of answers, and tokens.

    Args:
        speed: how much becomes free in a second, as estimated.
    """

    def __init__(
        self, requests: int, total_bytes: int, speed: Callable[[], float] = lambda: math.inf
    ):
        self._least = max(1, total_bytes // requests)
        self._free = total_bytes
        self._speed = speed
        self._sizes = Counter[Hashable]()
        self.places = dict[Place, None]()

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
        more = size - place.size
        while more > self._free:
            error = OverloadedError((more - self._free) / self._speed())
            most = max(self._sizes, key=self._sizes.__getitem__, default=place.client)
            # it would have less
            if self._sizes[most] - (more - self._free) < self._sizes[place.client] + more:
                raise error
            self.end(next(other for other in reversed(self.places) if other.client == most), error)
            more = size - place.size
        self._count(place, max(size, place.size))

    def resize(self, place: Place, size: int) -> None:
        """Count `size`, now that it is known."""
        if place.error is not None:
            raise place.error
        if size > place.size:
            self.grow(place, size)
        else:
            self._count(place, max(size, self._least))

    def end_waiting(self, error: RequestError) -> None:
        """Answer all requests with an error whose job has not begun."""
        for place in list(self.places):
            if place.job is not None and place.job.num_started == 0:
                self.end(place, error)

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
        if size:
            self.places[place] = None
        else:
            self.places.pop(place, None)
