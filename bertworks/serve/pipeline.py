"""What a request for a computation passes through, from its head to its answer.

1. `Admission` counts it, before its body is read; the queues that it will need accept or refuse it
2. its body is received, and parsed in a thread: `openapi.parse`, `openapi.read`
3. its endpoint yields jobs, which a `Batcher` computes together with those of other requests
4. its answer is made part by part, and sent as fast as its client reads it

- `Pipeline`: these four steps, observed by `ServerMetrics`
- `Answer`: JSON, or a file of the page
"""

import asyncio
import logging
import math
import mmap
import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bertworks.config import packaged_table
from bertworks.errors import BertworksError
from bertworks.serve.batching import (
    CLIENT_REQUESTS,
    CLIENT_TEXTS,
    SPEED_MEMORY,
    Admission,
    Batcher,
    InferenceJob,
    OverloadedError,
    Place,
    RequestError,
    grant,
)
from bertworks.serve.endpoints import (
    QUERY_COST,
    Abilities,
    AnswerParts,
    Part,
    Steps,
    call_each,
    check_answer,
    check_tokens,
    to_json,
)
from bertworks.serve.openapi import (
    ENDPOINTS,
    INVOCATIONS,
    invoked_ability,
    parse,
    read,
    requests_of,
)
from bertworks.training.device import THREADS, ServerHeapTrimmer

MAX_WORKERS = 4  # batches computed at the same time: one batch is often too small for all threads
# Upper bound of the bytes of a body -> threads that parse it: small requests need not wait for
# large ones.
LANES = {1 << 14: 2, 1 << 18: 2, 1 << 62: 1}
PARSE_SPEED = 1e6  # bytes per second until it is measured
PARSE_COST = 1000  # what a request costs besides its bytes
ANSWER_WORKERS = 2  # threads that make answers
ANSWER_BATCH = 1 << 18  # bytes of answers that are made together
ANSWER_SECONDS = 30.0  # to make an answer, from when its results are there
SMALL_ANSWER = 1 << 14  # bytes: made at once, and sent in one piece
SENT_BYTES = 1 << 16  # of a larger answer, at once
SEND_SECONDS = 30.0  # in which a client reads such a piece
MAX_SETTINGS = 20  # commas of a request to /decode that are not between its ids
TOKENS_PER_BYTE = 0.25  # of a request, until it is measured
# times the patience that a request may wait if it was admitted for fewer tokens than it has
ADMITTED_WAIT = 2.0
BODY_SECONDS = 10.0  # to receive a body
# Seconds that a request may wait to be parsed, to be searched for, and to be explained: this work
# is not that of the network, and its clients expect an answer soon.
PARSE_PATIENCE = 2.0
SEARCH_PATIENCE = 2.0
EXPLAIN_PATIENCE = 5.0
TEXT_BYTES = 4096  # of each text of the requests that a client may always send
SEARCH_SPEED = 256.0  # words and tokens of queries per second, until it is measured
EXPLAIN_SPEED = 0.2  # explanations per second, until it is measured
LEAST_TEXT = 64  # tokens that the objects of a text in memory correspond to
# computed to measure the speed; not more once they took TRIAL_SECONDS
TRIAL_TOKENS = (128, 256, 1024, 4096)
TRIAL_SECONDS = 0.5
LARGE_BODY = 1 << 16  # bytes: in memory of its own
CLIENT_CLOSED = 499  # logged status of a request if the client closed the connection, as in nginx
HEADERS = [
    (name.encode(), value.encode())
    for name, value in packaged_table(__file__, "headers.toml").items()
]
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
Result = TypeVar("Result")
_LOG = logging.getLogger("bertworks.serve")


class ServerMetrics:
    """Counters and histograms of requests and batches, for Prometheus.

    Their names are those of Text Embeddings Inference (TEI).
    """

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=self.registry)
        sizes = partial(Histogram, buckets=_SIZES, registry=self.registry)
        self.count = count("te_request_count", "Requests", ["method"])
        self.success = count("te_request_success", "Requests answered", ["method"])
        self.failure = count("te_request_failure", "Requests refused, by status", ["err"])
        self.duration = seconds("te_request_duration", "Seconds")
        self.tokens = sizes("te_request_input_length", "Tokens of a request")
        self.tokenization = seconds("te_request_tokenization_duration", "Seconds")
        self.inference = seconds("te_request_inference_duration", "Seconds")
        self.batch_size = sizes("te_batch_next_size", "Texts of a batch")
        self.batch_tokens = sizes("te_batch_next_tokens", "Tokens of a batch")

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """Report the present value of something."""
        Gauge(name, what, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus.

        Its library appends `_total` to the names of counters, TEI does not.
        """
        return re.sub(rb"\b(te_request_\w+?)_total\b", rb"\1", generate_latest(self.registry))


class Answer(Response):
    """JSON, or bytes of another type, with the headers that all answers have.

    Attributes:
        client: whose room a large answer takes until it is sent.
    """

    media_type = "application/json"
    client: Hashable = ""

    def render(self, content: Any) -> bytes:
        """Return the content as JSON."""
        return content if isinstance(content, bytes) else to_json(content)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set the headers of the response."""
        super().init_headers(headers)
        self.raw_headers += HEADERS


def _check_content_type(request: Request) -> None:
    """Raise RequestError unless the header of a request says that its body is JSON.

    The type of forms is accepted as well, because curl sends it with -d, but not from a browser: a
    page of another site could send such a body without a question to this server. Browsers name
    the origin of every POST, or say that it is of another site.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_of_browser = "origin" in request.headers or "sec-fetch-site" in request.headers
    grant(
        kind == "application/json"
        or (kind == "application/x-www-form-urlencoded" and not is_of_browser),
        415,
        "expected the header Content-Type: application/json, as in curl -H 'Content-Type: "
        "application/json'",
    )


class Pipeline:
    """The stations that requests pass through.

    They are, in this order, `admission`, the parsing threads of their size (`lanes`), the queue of
    a computation (`batchers`), and the threads that make answers.

    Attributes:
        admission: the requests in the server, by the bytes of their bodies.
        waiting_tokens: those that wait or are computed, by their tokens.
        room: the answers that are made or wait to be read, by their bytes.
        ratios: tokens per byte of a request, by endpoint and lane, as measured.
        requests: the types of the requests of each endpoint.
    """

    def __init__(self, abilities: Abilities, metrics: ServerMetrics):
        self._abilities = abilities
        limits = abilities.limits
        self._limits = limits
        self._metrics = metrics
        self.requests = requests_of(abilities.info, limits)
        self.admission = Admission(limits.requests, max(limits.total_bytes, limits.body_bytes))
        self.room = Admission(limits.requests, max(limits.total_answer_bytes, limits.answer_bytes))
        self.ratios = {(name, lane): TOKENS_PER_BYTE for name in ENDPOINTS for lane in LANES}
        self._heap = ServerHeapTrimmer()

        def look(*_: object) -> None:
            """Called after work that is no batch of the network, in the thread that did it."""
            self._heap.look()

        workers = min(MAX_WORKERS, THREADS.adapt()) if abilities.on_cpu else 1
        # Each job on its own: together they are not faster, and a small one would wait for all of a
        # batch.
        single_jobs = partial(Batcher, 1, observe=look)
        explanations = partial(single_jobs, patience=EXPLAIN_PATIENCE, speed=EXPLAIN_SPEED)
        self.batchers = {
            "network": Batcher(
                limits.batch_tokens,
                patience=limits.patience,
                always_waits=limits.client_tokens,
                observe=self._observe,
                workers=workers,
                turn_cost=limits.tokens,
            ),
            "search": single_jobs(patience=SEARCH_PATIENCE, speed=SEARCH_SPEED),
            "explanation": explanations(),
            "short explanation": explanations(),
        }
        self.waiting_tokens = Admission(
            limits.requests,
            limits.waiting_tokens,
            lambda: self.batchers["network"].speed,
        )
        # What an endpoint does between two computations: each on its own, as it may take long.
        self.steps = single_jobs(patience=math.inf, workers=ANSWER_WORKERS)
        self.answers = Batcher(
            ANSWER_BATCH,
            patience=math.inf,
            observe=look,
            workers=ANSWER_WORKERS,
            turn_cost=0,
        )
        self.lanes = {
            size: single_jobs(
                patience=PARSE_PATIENCE,
                speed=PARSE_SPEED,
                always_waits=CLIENT_REQUESTS * (CLIENT_TEXTS * TEXT_BYTES + PARSE_COST),
                workers=workers,
                rank=1 + number,
            )
            for number, (size, workers) in enumerate(LANES.items())
        }
        metrics.watch(
            "te_request_active", "Requests in the server", partial(len, self.admission.places)
        )
        for name, batcher in self.batchers.items():
            metrics.watch(
                f"te_queue_{name.replace(' ', '_')}",
                "Tokens that wait or are computed",
                batcher.costs.total,
            )

    def measure_speed(self) -> None:
        """Compute a few batches to measure the speed of the network.

        The first requests are then accepted or refused by its real speed. The first batch prepares
        its memory and threads, and counts only if it takes long.
        """
        network = self.batchers["network"]
        for tokens in TRIAL_TOKENS:
            job = self._abilities.trial_job(tokens)
            begin = time.monotonic()
            network.submit(job, math.inf).result()
            seconds = time.monotonic() - begin
            network.speed = sum(job.costs) / seconds
            if seconds > TRIAL_SECONDS:
                break

    def end_waiting(self) -> None:
        """Answer what is waiting with 503, as the server is stopping.

        What has begun to be computed goes on.
        """
        self.admission.end_waiting(RequestError(503, "the server is stopping"))

    def close(self) -> None:
        """Accept no more jobs.

        Accepted jobs are still computed.
        """
        for batcher in (
            *self.lanes.values(),
            *self.batchers.values(),
            self.steps,
            self.answers,
        ):
            batcher.threads.shutdown(wait=False)

    def busy_seconds(self) -> float:
        """Return how long the oldest computation has been going on; 0: there is none."""
        begins = [
            begin for batcher in self.batchers.values() for begin in list(batcher.busy.values())
        ]
        now = time.monotonic()
        return now - min(begins, default=now)

    async def answer(self, name: str, request: Request, client: str) -> Answer:
        """Return the answer of an endpoint.

        What is too much is refused before the body is read: a cheap refusal leaves more time for
        answers.

        Args:
            name: of the endpoint.
            client: whose turn, and whose room, the request takes.

        Raises:
            RequestError, UsageError, BertworksError: the request is refused, or fails.
        """
        self._check_offered(name)
        _check_content_type(request)
        limit = self._limits.body_bytes
        size = int(request.headers.get("content-length", 0))
        grant(size <= limit, 413, f"the body has {size:,} bytes: expected {limit:,} at most")
        with self.admission.place(client, size) as place, ExitStack() as stack:
            body: memoryview | None = None
            if "content-length" not in request.headers:
                body = await self._body(request, place)
                size = len(body)
            lane = next(bound for bound in LANES if size < bound)
            sender = (client, lane)
            # Count the request before its body is read. First by what refuses most.
            tokens: Place | None = None
            if expected := self._expected_job(name, size, lane):
                expected.client = sender
                if expected.queue == "network":
                    tokens = stack.enter_context(
                        self.waiting_tokens.place(client, sum(expected.costs))
                    )
                stack.callback(self.batchers[expected.queue].reserve(expected).cancel)
            parsing = InferenceJob(costs=[size + PARSE_COST], client=sender)
            stack.callback(self.lanes[lane].reserve(parsing).cancel)
            if body is None:
                body = await self._body(request, place, size)
            stack.callback(asyncio.ensure_future(self._watch(request, place)).cancel)
            parsing.units = [partial(self._parse, name, body, lane)]
            parsing.compute = call_each
            body = None
            if tokens is not None:
                tokens.task = asyncio.current_task()
                if tokens.error is not None:
                    raise tokens.error
            place.job = parsing
            ((steps, step),) = await result_of(self.lanes[lane].start(parsing))
            place.job = None
            parsing.units = ()  # the body has been read: its memory is needed for other ones
            if expected:
                expected.future.cancel()
            while isinstance(step, InferenceJob):
                step.client = sender
                if tokens is not None and step.units:
                    self.waiting_tokens.resize(
                        tokens, sum(max(cost, LEAST_TEXT) for cost in step.costs)
                    )
                results = await self._results(step, place) if step.units else []
                turn = InferenceJob(
                    [partial(self._next_step, steps, results)],
                    [size + PARSE_COST],
                    call_each,
                    sender,
                )
                # With any patience: to refuse it now would waste what was computed.
                (step,) = await result_of(self.steps.submit(turn, math.inf))
            return (
                await self._large_answer(step, place, sender)
                if isinstance(step, AnswerParts)
                else step
            )

    def _check_offered(self, name: str) -> None:
        """Raise RequestError if the model lacks an ability."""
        info = self._abilities.info
        if name not in info["abilities"]:
            offered = ", ".join(info["abilities"])
            raise RequestError(
                424,
                f"this server's model ({info['task']}) does not offer /{name}; it offers {offered}",
            )

    def _expected_job(self, name: str, size: int, lane: int) -> InferenceJob | None:
        """Return what a request will probably compute, or None.

        Its tokens are not known before it is parsed. It is None for nothing that others would have
        to wait for, or something whose queue depends on its tokens. size: of its body.
        """
        if name == "search":
            return InferenceJob(costs=[QUERY_COST], queue="search")
        if name in ("tokenize", "decode", "explain"):
            return None
        batch_cost = self.batchers["network"].batch_cost
        # At most as many tokens as a request has that a client may always send: a wrong estimate
        # must not refuse it.
        most = self._limits.client_tokens // CLIENT_REQUESTS
        batches, rest = divmod(min(1 + int(size * self.ratios[name, lane]), most), batch_cost)
        return InferenceJob(costs=[batch_cost] * batches + [rest])

    async def _body(self, request: Request, place: Place, size: int | None = None) -> memoryview:
        """Return the body of a request. size: the bytes that it has, if they are known."""
        place.task = asyncio.current_task()
        limit = self._limits.body_bytes
        size = limit if size is None else size
        # The memory of a large body goes back to the system as soon as the body is not used any
        # more: in the heap, freed bodies would lie between the objects of other requests. It takes
        # no memory before it is written.
        buffer = memoryview(bytearray(size) if size < LARGE_BODY else mmap.mmap(-1, size))
        received = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    grant(
                        received + len(part) <= limit,
                        413,
                        f"the body has more than {limit:,} bytes",
                    )
                    self.admission.grow(place, received + len(part))
                    buffer[received : received + len(part)] = part
                    received += len(part)
        except TimeoutError:
            raise RequestError(
                408,
                f"the body did not come within {BODY_SECONDS:.0f} seconds",
                headers={"connection": "close"},
            ) from None
        except ClientDisconnect:
            raise RequestError(400, "the body is incomplete") from None
        return buffer[:received]

    async def _watch(self, request: Request, place: Place) -> None:
        """End a request when its client closes the connection."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self.admission.end(
            place, RequestError(CLIENT_CLOSED, "the client has closed the connection")
        )

    def _parse(self, name: str, body: memoryview, lane: int) -> tuple[Steps, InferenceJob]:
        """Called in a thread of the lane."""
        begin = time.perf_counter()
        # lists of ids take some twenty times the memory of a body: too many are not read
        if name == "decode":
            commas = np.count_nonzero(np.frombuffer(body, np.uint8) == ord(","))
            check_tokens(int(commas) - MAX_SETTINGS, self._limits.tokens)
        steps = self._steps_of(name, body)
        job = next(steps)
        tokens = sum(job.costs)
        check_tokens(tokens, self._limits.tokens)
        self._metrics.tokens.observe(tokens)
        self._metrics.tokenization.observe(time.perf_counter() - begin)
        self.ratios[name, lane] += (1 - SPEED_MEMORY) * (
            tokens / len(body) - self.ratios[name, lane]
        )
        return steps, job

    def _steps_of(self, name: str, body: memoryview) -> Steps:
        """Return the steps of an endpoint, before the first one.

        They alone refer to the fields of the request, so that they can free them.
        """
        value = parse(body)
        ability = invoked_ability(value, self._abilities.info) if name == INVOCATIONS else name
        self._check_offered(ability)
        return self._abilities.endpoints[ability](read(value, self.requests[ability]))

    async def _results(self, job: InferenceJob, place: Place) -> list[Any]:
        """Return the results of a job of a request."""
        try:
            future = self.batchers[job.queue].submit(job, ADMITTED_WAIT)
            place.job = job
            return await result_of(future)
        except BertworksError:
            raise
        except Exception as error:
            _LOG.exception("the computation failed")
            raise BertworksError("the computation failed; the server's log says how") from error
        finally:
            place.job = None

    def _next_step(self, steps: Steps, results: list[Any]) -> InferenceJob | AnswerParts | Answer:
        """Return what an endpoint computes next, or the parts of its answer, or a small answer.

        Called in a thread that makes answers.
        """
        if not all(np.isfinite(row).all() for row in results if isinstance(row, np.ndarray)):
            raise BertworksError(
                "the network's output has values that are not finite, which is not JSON"
            )
        try:
            job = steps.send(results)
        except StopIteration as end:
            answer: AnswerParts = end.value
            check_answer(answer.size, self._limits.answer_bytes)
            return (
                self._joined(answer, list(map(_made, answer.parts)))
                if answer.size <= SMALL_ANSWER
                else answer
            )
        check_tokens(sum(job.costs), self._limits.tokens)
        return job

    async def _large_answer(self, answer: AnswerParts, place: Place, sender: Hashable) -> Answer:
        """Make an answer part by part, in turns with those of other clients.

        It is not made to its end if the client goes, nor if another client that has less needs its
        room. `send_large` takes the room again.
        """
        making = InferenceJob(
            [partial(_made, part) for part in answer.parts],
            [part.size for part in answer.parts],
            call_each,
            sender,
        )
        try:
            with self.room.place(place.client, answer.size) as room:
                room.task = asyncio.current_task()
                async with asyncio.timeout(ANSWER_SECONDS):
                    pieces = await result_of(self.answers.submit(making, math.inf))
                    size = sum(map(len, pieces))
                    joining = InferenceJob(
                        [partial(self._joined, answer, pieces)], [size], call_each, sender
                    )
                    answers: list[Answer] = await result_of(self.answers.submit(joining, math.inf))
        except TimeoutError:
            raise OverloadedError from None
        answers[0].client = place.client
        return answers[0]

    def _joined(self, answer: AnswerParts, pieces: Sequence[bytes]) -> Answer:
        body = answer.join(pieces)
        check_answer(len(body), self._limits.answer_bytes)
        headers = {}
        if answer.truncated:
            headers["x-truncated-texts"] = str(np.count_nonzero(answer.truncated))
            headers["x-truncated-tokens"] = str(sum(answer.truncated))
        return Answer(body, headers=headers)

    async def send_large(self, response: Answer, scope: Any, send: Any) -> None:
        """Send an answer piece by piece, as fast as its client reads it.

        It keeps its room until then: another client that needs the room may end it, and so does the
        time of a client that does not read.
        """
        body = response.body
        try:
            with self.room.place(response.client, len(body)) as place:
                place.task = asyncio.current_task()
                await send(
                    {
                        "type": "http.response.start",
                        "status": response.status_code,
                        "headers": response.raw_headers,
                    }
                )
                for start in range(0, len(body), SENT_BYTES):
                    end = start + SENT_BYTES
                    piece = {
                        "type": "http.response.body",
                        "body": body[start:end],
                        "more_body": end < len(body),
                    }
                    async with asyncio.timeout(SEND_SECONDS):
                        await send(piece)
        except (TimeoutError, RequestError) as error:
            _LOG.info(
                "an answer was not read",
                extra={"fields": {"path": scope["path"][:200], "why": str(error)}},
            )
            if "abort" in scope:  # of `Connection`: what is left in its buffer goes, too
                scope["abort"]()
                await asyncio.sleep(0)  # until the connection is closed

    def _observe(self, units: int, cost: int, seconds: float) -> None:
        """Called after each batch of the network, in the thread that computed it."""
        self._metrics.batch_size.observe(units)
        self._metrics.batch_tokens.observe(cost)
        self._metrics.inference.observe(seconds)
        self._heap.look()


async def result_of(future: "Future[Result]") -> Result:
    """Return the result of a future of another thread.

    The future is cancelled with the task that waits for it. The callbacks of `asyncio.wrap_future`
    refer to the future that has them: each result would stay in memory until a collection of
    garbage.
    """
    loop = asyncio.get_running_loop()
    finished = loop.create_future()

    def finish() -> None:
        if not finished.done():
            finished.set_result(None)

    def notify(_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish)

    future.add_done_callback(notify)
    try:
        await finished
    finally:
        future.cancel()  # no effect on one that is finished
    if future.cancelled():
        raise asyncio.CancelledError
    return future.result()


def _made(part: Part) -> bytes:
    """Return a part of an answer as JSON."""
    return to_json(part.make())
