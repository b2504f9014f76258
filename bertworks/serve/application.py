"""The HTTP side of the server. It needs the extra `serve`.

- `Application`: access, paths, bodies, errors, the files of the page
- `Answer`: JSON, or a file of the page
"""

import asyncio
import hmac
import ipaddress
import logging
import math
import mmap
import re
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bertworks.config import packaged_table
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.explain import MAPS
from bertworks.serve.answers import AnswerParts, check_answer, to_json
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
    forget_origin,
    grant,
)
from bertworks.serve.documentation import documentation
from bertworks.serve.endpoints import QUERY_COST, Abilities, Steps, call_each, check_tokens
from bertworks.serve.invocation import INVOCATIONS, invoked_ability
from bertworks.serve.metrics import ServerMetrics
from bertworks.serve.openai_errors import openai_error
from bertworks.serve.openapi import ENDPOINTS, document, parse, paths_of, read, requests_of
from bertworks.training.device import THREADS, ServerHeapTrimmer

PAGE = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
HEADERS = [
    (name.encode(), value.encode())
    for name, value in packaged_table(__file__, "headers.toml").items()
]
MAX_WORKERS = 4  # batches computed at the same time: one batch is often too small for all threads
# Upper bound of the bytes of a body -> threads that parse it: small requests need not wait for
# large ones.
LANES = {1 << 14: 2, 1 << 18: 2, 1 << 62: 1}
# bytes per second until it is measured; what a request costs besides its bytes
PARSE_SPEED, PARSE_COST = 1e6, 1000
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
STUCK_SECONDS = 60.0  # of one batch
# Seconds that a request may wait to be parsed, to be searched for, and to be explained: this work
# is not that of the network, and its clients expect an answer soon.
PARSE_PATIENCE, SEARCH_PATIENCE, EXPLAIN_PATIENCE = 2.0, 2.0, 5.0
TEXT_BYTES = 4096  # of each text of the requests that a client may always send
SEARCH_SPEED = 256.0  # words and tokens of queries per second, until it is measured
EXPLAIN_SPEED = 0.2  # explanations per second, until it is measured
LEAST_TEXT = 64  # tokens that the objects of a text in memory correspond to
# computed to measure the speed; not more once they took TRIAL_SECONDS
TRIAL_TOKENS = (128, 256, 1024, 4096)
TRIAL_SECONDS = 0.5
LARGE_BODY = 1 << 16  # bytes: in memory of its own
MAX_HEAD = 16_384  # bytes of a head
SINGLE_HEADERS = (
    b"host",
    b"origin",
    b"authorization",
    b"content-length",
    b"content-type",
    b"transfer-encoding",
)
Result = TypeVar("Result")
_LOG = logging.getLogger("bertworks.serve")
MODEL_PATH = "/v1/models/"  # and the name of a model
READING = ("GET", "HEAD")  # the methods of what is not computed
_QUIET = ("/health", "/ping", "/metrics")  # polled every few seconds: only their errors are logged
CLIENT_CLOSED = 499  # logged status of a request if the client closed the connection, as in nginx
_KINDS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "NotAllowed",
    424: "Backend",
    429: "Overloaded",
    500: "Backend",
    503: "Unhealthy",
}  # others: Validation


class Answer(Response):
    """JSON, or bytes of another type, with the headers that all answers have.

    Attributes:
        client: whose room a large answer takes until it is sent.
    """

    media_type = "application/json"
    client: Hashable = ""

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else to_json(content)

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        super().init_headers(headers)
        self.raw_headers += HEADERS


class UnknownModelError(RequestError):
    """The server has another model."""

    code = "model_not_found"  # of OpenAI


class Application:
    """The server without its port, as an ASGI application.

    Args:
        token: required for all requests but `GET` of `/health`, `/ping` and the files of the page.
            Several: one on each line. "": no token, and only the server's own page may send
            requests.
        hosts: names of the server, in addition to those of this machine; used only without a token.
        stopping: whether the server is shutting down.
    """

    def __init__(
        self,
        abilities: Abilities,
        *,
        token: str = "",
        hosts: Collection[str] = (),
        stopping: Callable[[], bool] = lambda: False,
    ):
        self._abilities, self._limits, self._metrics = abilities, abilities.limits, ServerMetrics()
        self._tokens, self._stopping = list(filter(None, token.encode().splitlines())), stopping
        self._hosts = {"localhost", "127.0.0.1", "::1", *hosts}
        self._admission = Admission(
            self._limits.requests, max(self._limits.total_bytes, self._limits.body_bytes)
        )
        self._room = Admission(
            self._limits.requests, max(self._limits.total_answer_bytes, self._limits.answer_bytes)
        )
        self._ratios = {(name, lane): TOKENS_PER_BYTE for name in ENDPOINTS for lane in LANES}
        self._heap, self._overloaded = (
            ServerHeapTrimmer(),
            dict[str, int](),
        )  # path -> requests refused and not logged yet
        workers = min(MAX_WORKERS, THREADS.adapt()) if abilities.on_cpu else 1
        self._batchers = {
            "network": Batcher(
                self._limits.batch_tokens,
                patience=self._limits.patience,
                always_waits=self._limits.client_tokens,
                observe=self._observe,
                workers=workers,
                turn_cost=self._limits.tokens,
            ),
            # Each search on its own: together they are not faster, and a small one would wait for
            # all of a batch.
            "search": Batcher(
                1, patience=SEARCH_PATIENCE, speed=SEARCH_SPEED, observe=self._observe_memory
            ),
            "explanation": Batcher(
                1, patience=EXPLAIN_PATIENCE, speed=EXPLAIN_SPEED, observe=self._observe_memory
            ),
            "short explanation": Batcher(
                1, patience=EXPLAIN_PATIENCE, speed=EXPLAIN_SPEED, observe=self._observe_memory
            ),
        }
        self._waiting_tokens = Admission(
            self._limits.requests,
            self._limits.waiting_tokens,
            lambda: self._batchers["network"].speed,
        )
        # What an endpoint does between two computations: each on its own, as it may take long.
        self._steps = Batcher(
            1, patience=math.inf, observe=self._observe_memory, workers=ANSWER_WORKERS
        )
        self._answers = Batcher(
            ANSWER_BATCH,
            patience=math.inf,
            observe=self._observe_memory,
            workers=ANSWER_WORKERS,
            turn_cost=0,
        )
        self._lanes = {
            size: Batcher(
                1,
                patience=PARSE_PATIENCE,
                speed=PARSE_SPEED,
                always_waits=CLIENT_REQUESTS * (CLIENT_TEXTS * TEXT_BYTES + PARSE_COST),
                observe=self._observe_memory,
                workers=workers,
                rank=1 + number,
            )
            for number, (size, workers) in enumerate(LANES.items())
        }
        self._metrics.watch(
            "te_request_active", "Requests in the server", partial(len, self._admission.places)
        )
        for name, batcher in self._batchers.items():
            self._metrics.watch(
                f"te_queue_{name.replace(' ', '_')}",
                "Tokens that wait or are computed",
                batcher.costs.total,
            )
        self._requests = requests_of(abilities.info, self._limits)
        server_info = {
            "max_concurrent_requests": self._limits.requests,
            "max_batch_tokens": self._limits.batch_tokens,
            "max_batch_requests": None,  # only their tokens are limited
            "max_client_batch_size": self._limits.texts,
            "auto_truncate": True,
            "tokenization_workers": sum(LANES.values()),
            "limits": asdict(self._limits),
        }
        model = {"id": abilities.name, "object": "model", "created": 0, "owned_by": "bertworks"}
        files = (*PAGE.iterdir(), *MAPS.iterdir())
        page = {"/" if file.name == "index.html" else f"/{file.name}": file for file in files}
        self._public = {*page, "/health", "/ping"}
        description = document(abilities.info, self._requests, token=bool(token))
        self._get: dict[str, Callable[[], Answer]] = {
            "/info": partial(Answer, abilities.info | server_info),
            "/openapi.json": partial(Answer, description),
            "/v1/models": partial(Answer, {"object": "list", "data": [model]}),
            MODEL_PATH + abilities.name: partial(Answer, model),
            "/health": self._health,
            "/ping": self._health,
            "/docs": partial(Answer, documentation(description), media_type="text/html"),
            "/metrics": lambda: Answer(self._metrics.text(), media_type=CONTENT_TYPE_LATEST),
            **{
                path: partial(Answer, file.read_bytes(), media_type=TYPES[file.suffix])
                for path, file in page.items()
            },
        }
        self._post = {path: name for name in ENDPOINTS for path in paths_of(name)}

    def measure_speed(self) -> None:
        """Compute a few batches, so that the first requests are accepted or refused by the real
        speed of the network. The first batch prepares its memory and threads, and counts only if it
        takes long."""
        network = self._batchers["network"]
        for tokens in TRIAL_TOKENS:
            job = self._abilities.trial_job(tokens)
            begin = time.monotonic()
            network.submit(job, math.inf).result()
            seconds = time.monotonic() - begin
            network.speed = sum(job.costs) / seconds
            if seconds > TRIAL_SECONDS:
                break

    def end_waiting(self) -> None:
        """Answer what is waiting with 503, as the server is stopping. What has begun to be computed
        goes on."""
        self._admission.end_waiting(RequestError(503, "the server is stopping"))

    def close(self) -> None:
        """Accept no more jobs. Accepted jobs are still computed."""
        for batcher in (
            *self._lanes.values(),
            *self._batchers.values(),
            self._steps,
            self._answers,
        ):
            batcher.threads.shutdown(wait=False)
        self._log_overloaded()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, then count it and log it."""
        if scope["type"] != "http":
            return
        begin, request, path = (
            time.perf_counter(),
            Request(scope, receive),
            scope["path"].rstrip("/") or "/",
        )
        response = await self._respond(request, path)
        if len(response.body) > SMALL_ANSWER and scope["method"] == "POST":
            await self._send_large(response, scope, send)
        else:
            await response(scope, receive, send)
        # Later, so that other requests of the same moment do not wait for it.
        asyncio.get_running_loop().call_soon(
            self._record, scope, path, response, time.perf_counter() - begin
        )

    async def _send_large(self, response: Answer, scope: Any, send: Any) -> None:
        """Send an answer piece by piece, as fast as its client reads it. It keeps its room until
        then: another client that needs the room may end it, and so does the time of a client that
        does not read."""
        body = response.body
        try:
            with self._room.place(response.client, len(body)) as place:
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

    def _record(self, scope: Any, path: str, response: Answer, seconds: float) -> None:
        status = response.status_code
        label = path if path in self._get or path in self._post else "other"
        self._metrics.count.labels(label).inc()
        (
            self._metrics.success.labels(label)
            if status < 400
            else self._metrics.failure.labels(str(status))
        ).inc()
        self._metrics.duration.observe(seconds)
        if status == 429:
            if not self._overloaded:
                asyncio.get_running_loop().call_later(1, self._log_overloaded)
            self._overloaded[label] = self._overloaded.get(label, 0) + 1
        elif label not in _QUIET or status >= 400:
            fields = {
                "method": scope["method"],
                "path": scope["path"][:200],
                "status": status,
                "milliseconds": round(1000 * seconds, 1),
                "bytes": len(response.body),
            }
            _LOG.info("request", extra={"fields": fields})

    def _log_overloaded(self) -> None:
        """One line for the requests of a second that were too many."""
        for path in list(self._overloaded):
            _LOG.info(
                "requests",
                extra={
                    "fields": {"path": path, "status": 429, "count": self._overloaded.pop(path)}
                },
            )

    async def _respond(self, request: Request, path: str) -> Answer:
        has_failed, code = False, None
        try:
            client = self._check_access(request, path)
            allowed = [
                *(["POST"] if path in self._post else []),
                *(READING if path in self._get else []),
            ]
            if not allowed:
                raise self._not_found(path)
            grant(
                request.method in allowed,
                405,
                "Method Not Allowed",
                headers={"allow": ", ".join(allowed)},
            )
            if request.method in READING:
                return self._get[path]()
            return await self._compute(self._post[path], request, client)
        except BertworksError as error:
            status = getattr(error, "status", 422 if isinstance(error, UsageError) else 424)
            what = error.what
            if error.hint:
                what += f" ({error.hint})"
            headers = getattr(error, "headers", None)
            has_failed = not isinstance(error, UsageError | RequestError)
            code = getattr(error, "code", None)
            forget_origin(error)
        except asyncio.CancelledError:  # the time to finish open requests is over
            status = 503
            what = "the server is stopping"
            headers = None
        except Exception as error:
            _LOG.error("an error in bertworks", exc_info=error)
            status = 500
            what = "an error in bertworks; see the server's log"
            headers = None
        if path.startswith("/v1/"):
            status, body = openai_error(status, what, failed=has_failed, code=code)
        else:
            body = {"error": what, "error_type": _KINDS.get(status, "Validation")}
        return Answer(body, status, headers)

    def _not_found(self, path: str) -> RequestError:
        """The error for an unknown path."""
        if not path.startswith(MODEL_PATH):
            return RequestError(404, "Not Found")
        name = path.removeprefix(MODEL_PATH)
        return UnknownModelError(
            404, f"there is no model {name[:100]!r}: this server has {self._abilities.name!r}"
        )

    def _check_access(self, request: Request, path: str) -> str:
        """Who sends the request: a token, if there are several, or else an address."""
        scope, headers = request.scope, dict(request.scope["headers"])
        size = (
            len(scope["raw_path"])
            + len(scope["query_string"])
            + sum(len(k) + len(v) for k, v in scope["headers"])
        )
        grant(size <= MAX_HEAD, 431, f"the head has {size:,} bytes: expected {MAX_HEAD:,} at most")
        names = [name for name, _ in scope["headers"]]
        if len(names) > len(headers) and (
            doubled := next((n for n in SINGLE_HEADERS if names.count(n) > 1), None)
        ):
            raise RequestError(400, f"the header {doubled.decode().title()} is there twice")
        grant(not self._stopping(), 503, "the server is stopping")
        address = request.client.host if request.client else ""
        if ":" in address:  # one user has all addresses of such a network
            address = str(ipaddress.ip_network(f"{address.partition('%')[0]}/64", strict=False))
        if self._tokens:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            matches = [hmac.compare_digest(token, known) for known in self._tokens]
            is_authorized = any(matches) and scheme.lower() == b"bearer"
            what = "expected the header Authorization: Bearer TOKEN"
            is_public = path in self._public and request.method in READING
            grant(is_public or is_authorized, 401, what, headers={"www-authenticate": "Bearer"})
            return f"token {matches.index(True)}" if is_authorized and len(matches) > 1 else address
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        grant(name in self._hosts, 403, f"this server is not called {host[:100]!r}")
        is_own = origin is None or origin.decode("latin-1").partition("://")[2] == host
        grant(
            is_own,
            403,
            "the request comes from a page of another server; set a token to allow that",
        )
        return address

    async def _compute(self, name: str, request: Request, client: str) -> Answer:
        """The answer of an endpoint. What is too much is refused before the body is read: a cheap
        refusal leaves more time for answers."""
        self._check_offered(name)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        grant(kind == "application/json", 415, "expected the header Content-Type: application/json")
        limit, size = self._limits.body_bytes, int(request.headers.get("content-length", 0))
        grant(size <= limit, 413, f"the body has {size:,} bytes: expected {limit:,} at most")
        with self._admission.place(client, size) as place, ExitStack() as stack:
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
                        self._waiting_tokens.place(client, sum(expected.costs))
                    )
                stack.callback(self._batchers[expected.queue].reserve(expected).cancel)
            parsing = InferenceJob(costs=[size + PARSE_COST], client=sender)
            stack.callback(self._lanes[lane].reserve(parsing).cancel)
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
            ((steps, step),) = await result_of(self._lanes[lane].start(parsing))
            place.job = None
            parsing.units = ()  # the body has been read: its memory is needed for other ones
            if expected:
                expected.future.cancel()
            while isinstance(step, InferenceJob):
                step.client = sender
                if tokens is not None and step.units:
                    self._waiting_tokens.resize(
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
                (step,) = await result_of(self._steps.submit(turn, math.inf))
            return (
                await self._large_answer(step, place, sender)
                if isinstance(step, AnswerParts)
                else step
            )

    def _check_offered(self, name: str) -> None:
        """Raises RequestError if the model lacks an ability."""
        info = self._abilities.info
        if name not in info["abilities"]:
            offered = ", ".join(info["abilities"])
            what = (
                f"this server's model ({info['task']}) does not offer /{name}; it offers {offered}"
            )
            raise RequestError(424, what)

    def _expected_job(self, name: str, size: int, lane: int) -> InferenceJob | None:
        """What a request will probably compute: its tokens are not known before it is parsed. None:
        nothing that others would have to wait for, or something whose queue depends on its tokens.
        size: of its body."""
        if name == "search":
            return InferenceJob(costs=[QUERY_COST], queue="search")
        if name in ("tokenize", "decode", "explain"):
            return None
        batch_cost = self._batchers["network"].batch_cost
        # At most as many tokens as a request has that a client may always send: a wrong estimate
        # must not refuse it.
        most = self._limits.client_tokens // CLIENT_REQUESTS
        batches, rest = divmod(min(1 + int(size * self._ratios[name, lane]), most), batch_cost)
        return InferenceJob(costs=[batch_cost] * batches + [rest])

    def _next_step(self, steps: Steps, results: list[Any]) -> InferenceJob | AnswerParts | Answer:
        """What an endpoint computes next, or the parts of its answer, or a small answer. Called in
        a thread that makes answers."""
        if not all(np.isfinite(row).all() for row in results if isinstance(row, np.ndarray)):
            raise BertworksError(
                "the network's output has values that are not finite, which is not JSON"
            )
        try:
            job = steps.send(results)
        except StopIteration as end:
            parts: AnswerParts = end.value
            check_answer(sum(parts.sizes), self._limits.answer_bytes)
            return (
                self._joined(parts, list(map(_made, parts.make)))
                if sum(parts.sizes) <= SMALL_ANSWER
                else parts
            )
        check_tokens(sum(job.costs), self._limits.tokens)
        return job

    async def _large_answer(self, parts: AnswerParts, place: Place, sender: Hashable) -> Answer:
        """Make an answer part by part, in turns with those of other clients. It is not made to its
        end if the client goes, nor if another client that has less needs its room. `_send_large`
        takes the room again."""
        making = InferenceJob(
            [partial(_made, make) for make in parts.make], parts.sizes, call_each, sender
        )
        try:
            with self._room.place(place.client, sum(parts.sizes)) as room:
                room.task = asyncio.current_task()
                async with asyncio.timeout(ANSWER_SECONDS):
                    pieces = await result_of(self._answers.submit(making, math.inf))
                    size = sum(map(len, pieces))
                    joining = InferenceJob(
                        [partial(self._joined, parts, pieces)], [size], call_each, sender
                    )
                    answers: list[Answer] = await result_of(self._answers.submit(joining, math.inf))
        except TimeoutError:
            raise OverloadedError from None
        answers[0].client = place.client
        return answers[0]

    def _joined(self, parts: AnswerParts, pieces: Sequence[bytes]) -> Answer:
        body = parts.join(pieces)
        check_answer(len(body), self._limits.answer_bytes)
        headers = {}
        if parts.truncated:
            headers["x-truncated-texts"] = str(np.count_nonzero(parts.truncated))
            headers["x-truncated-tokens"] = str(sum(parts.truncated))
        return Answer(body, headers=headers)

    async def _body(self, request: Request, place: Place, size: int | None = None) -> memoryview:
        """The body of a request. size: the bytes that it has, if they are known."""
        place.task = asyncio.current_task()
        limit = self._limits.body_bytes
        buffer = new_buffer(limit if size is None else size)
        received = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    grant(
                        received + len(part) <= limit,
                        413,
                        f"the body has more than {limit:,} bytes",
                    )
                    self._admission.grow(place, received + len(part))
                    buffer[received : received + len(part)] = part
                    received += len(part)
        except TimeoutError:
            what = f"the body did not come within {BODY_SECONDS:.0f} seconds"
            raise RequestError(408, what, headers={"connection": "close"}) from None
        except ClientDisconnect:
            raise RequestError(400, "the body is incomplete") from None
        return buffer[:received]

    async def _watch(self, request: Request, place: Place) -> None:
        """End a request when its client closes the connection."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        self._admission.end(
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
        self._ratios[name, lane] += (1 - SPEED_MEMORY) * (
            tokens / len(body) - self._ratios[name, lane]
        )
        return steps, job

    def _steps_of(self, name: str, body: memoryview) -> Steps:
        """The steps of an endpoint, before the first one. They alone refer to the fields of the
        request, so that they can free them."""
        value = parse(body)
        ability = invoked_ability(value, self._abilities.info) if name == INVOCATIONS else name
        self._check_offered(ability)
        return self._abilities.endpoints[ability](read(value, self._requests[ability]))

    async def _results(self, job: InferenceJob, place: Place) -> list[Any]:
        """The results of a job of a request."""
        try:
            future = self._batchers[job.queue].submit(job, ADMITTED_WAIT)
            place.job = job
            return await result_of(future)
        except BertworksError:
            raise
        except Exception as error:
            _LOG.exception("the computation failed")
            raise BertworksError("the computation failed; the server's log says how") from error
        finally:
            place.job = None

    def _observe(self, units: int, cost: int, seconds: float) -> None:
        """Called after each batch, in the thread that computed it."""
        self._metrics.batch_size.observe(units)
        self._metrics.batch_tokens.observe(cost)
        self._metrics.inference.observe(seconds)
        self._heap.look()

    def _observe_memory(self, units: int, cost: int, seconds: float) -> None:
        """Called after any work that is no batch of the network, in the thread that did it."""
        self._heap.look()

    def _health(self) -> Answer:
        since = [
            begin for batcher in self._batchers.values() for begin in list(batcher.busy.values())
        ]
        seconds = time.monotonic() - min(since, default=time.monotonic())
        grant(
            seconds <= STUCK_SECONDS,
            503,
            f"a computation has been going on for {seconds:.0f} seconds",
        )
        return Answer({"status": "ok"})


async def result_of(future: "Future[Result]") -> Result:
    """The result of a future of another thread, which is cancelled with the task that waits for it.
    The callbacks of `asyncio.wrap_future` refer to the future that has them: each result would stay
    in memory until a collection of garbage."""
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


def new_buffer(size: int) -> memoryview:
    """Memory for a body. That of a large one goes back to the system as soon as the body is not
    used any more: in the heap, freed bodies would lie between the objects of other requests. It
    takes no memory before it is written."""
    return memoryview(bytearray(size) if size < LARGE_BODY else mmap.mmap(-1, size))


def _made(make: Callable[[], Any]) -> bytes:
    """A part of an answer as JSON."""
    return to_json(make())
