"""The HTTP side of the server. It needs the extra `serve`.

- `Application`: paths, bodies, errors, the files of the page
- `Connection`: a connection with limits on the size and time of a request head
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertworks.errors import BertworksError, UsageError
from bertworks.inference.explain import MAPS
from bertworks.serve.access import AccessMiddleware, ServerMetrics, error_body
from bertworks.serve.batching import Batcher, InferenceJob, OverloadedError, RequestTooLargeError
from bertworks.serve.endpoints import Abilities
from bertworks.serve.openapi import ALL_PATHS, check, document, paths_of, requests_of
from bertworks.training.device import THREADS, HeapTrimmer

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}  # fmt: skip
MAX_WORKERS = 4  # batches computed at the same time: one batch is often too small for all threads
READERS = 2  # threads that parse requests and write answers; one more thread parses large requests
LARGE = 1 << 16  # bytes of a large body, which gets a thread of its own so that others need not wait
INITIAL_PACE = 1e6  # bytes of large bodies parsed per second, until it is measured
BODY_SECONDS = 10.0  # to receive a body
STUCK_SECONDS = 60.0  # of one batch
BYTES = 64_000_000  # of all bodies that are being received
EXPLAIN_PATIENCE = 5.0
CLIENT_CLOSED = 499  # logged status of requests whose clients closed the connection, as in nginx
HEAD_SECONDS = 10.0  # to receive the head of a request
HEAD_BYTES = 65_536  # kept of a head; AccessMiddleware accepts less, and reports why
_LOG = logging.getLogger("bertworks.serve")
_KINDS = {404: "NotFound", 405: "NotAllowed", 503: "Unhealthy"}  # others: Validation

Endpoint = Callable[[Request], Awaitable[Response]]


class Application:
    """The server without its port. `asgi` is the ASGI application.

    Args:
        token: required by all requests; "": none.
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
        self._schemas = requests_of(abilities.info, abilities.limits)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._large, self._large_bytes, self._pace = ThreadPoolExecutor(1, thread_name_prefix="large"), 0, INITIAL_PACE
        self._bytes, self._heap = 0, HeapTrimmer()
        patience, sharing = self._limits.patience, THREADS.adapt
        workers = min(MAX_WORKERS, THREADS.adapt()) if abilities.on_cpu else 1
        network = Batcher(
            self._limits.batch_tokens, patience=patience, observe=self._observe, workers=workers, sharing=sharing
        )
        self._batchers = {
            "network": network,
            "search": Batcher(8, patience=patience, sharing=sharing),
            "explain": Batcher(1, patience=EXPLAIN_PATIENCE, sharing=sharing),
        }
        for name, batcher in self._batchers.items():
            self._metrics.watch(name, batcher)
        self._batcher_of = {name: self._batchers.get(name, network) for name in self._schemas}
        self._paths = {
            path: batcher for name, batcher in self._batcher_of.items() if name not in ("tokenize", "decode")
            for path in paths_of(name)
        }  # fmt: skip
        openapi = document(abilities.info, abilities.limits, token=bool(token))
        model = {"id": abilities.name, "object": "model", "created": 0, "owned_by": "bertworks"}
        page = {"/" if path.name == "index.html" else f"/{path.name}": _file(path)
                for path in (*PAGE.iterdir(), *MAPS.iterdir())}  # fmt: skip
        routes = [
            *(Route(path, self._endpoint(n), methods=["POST"]) for n in self._schemas for path in paths_of(n)),
            *(self._not_offered(path) for path in ALL_PATHS if path not in openapi["paths"]),
            Route("/info", _constant(abilities.info | self._server_info())),
            Route("/openapi.json", _constant(openapi)),
            Route("/v1/models", _constant({"object": "list", "data": [model]})),
            Route("/health", self._health),
            Route("/metrics", self._prometheus),
            *(Route(path, endpoint) for path, endpoint in page.items()),
        ]
        handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _internal_error}
        self.asgi = AccessMiddleware(
            Starlette(routes=routes, exception_handlers=handlers), self._metrics, token=token,
            hosts={"localhost", "127.0.0.1", "::1", *hosts}, public={*page, "/health"},
            paths={route.path for route in routes}, max_requests=self._limits.requests, full=self._full,
            stopping=stopping,
        )  # fmt: skip

    def close(self) -> None:
        """Accept no more jobs. Accepted jobs are still computed."""
        for batcher in self._batchers.values():
            batcher.close()
        for readers in (self._readers, self._large):
            readers.shutdown(wait=False)

    def _observe(self, units: int, cost: int, seconds: float) -> None:
        """Called after each batch, in the thread that computed it."""
        self._metrics.batch(units, cost, seconds)
        self._heap.look()

    def _full(self, path: str) -> OverloadedError | None:
        """The error for a new request on a path, if it would wait too long."""
        batcher = self._paths.get(path)
        return batcher.overloaded if batcher is not None and batcher.full else None

    def _endpoint(self, name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            try:
                job = await self._parse(name, await self._body(request))
                results = await self._results(self._batcher_of[name], job, request)
                content = await asyncio.get_running_loop().run_in_executor(self._readers, _encode_answer, job, results)
            except BertworksError as error:
                return _error_response(request.url.path, error)
            except asyncio.CancelledError:  # the time to finish open requests is over
                raise HTTPException(503, "the server is stopping") from None
            return Response(content, media_type="application/json")

        return endpoint

    async def _body(self, request: Request) -> bytes:
        limit = self._limits.body_bytes
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "expected the header Content-Type: application/json")
        content_length = request.headers.get("content-length", "")
        size = int(content_length) if content_length.isdecimal() else limit
        if size > limit:
            raise HTTPException(413, f"the body has {size:,} bytes: expected {limit:,} at most")
        if self._bytes + size > BYTES:
            raise OverloadedError
        self._bytes += size
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = bytearray()
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise HTTPException(413, f"the body has more than {limit:,} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {BODY_SECONDS:.0f} seconds") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body is incomplete") from None
        finally:
            self._bytes -= size
        return bytes(body)

    async def _parse(self, name: str, body: bytes) -> InferenceJob:
        """The job of a request. Large bodies are parsed one at a time, and refused if those before take too long."""
        loop, size = asyncio.get_running_loop(), len(body)
        if size < LARGE:
            return await loop.run_in_executor(self._readers, self._job, name, body)
        if (seconds := self._large_bytes / self._pace) > self._limits.patience:
            raise OverloadedError(seconds)
        self._large_bytes += size
        try:
            return await loop.run_in_executor(self._large, self._large_job, name, body)
        finally:
            self._large_bytes -= size

    def _large_job(self, name: str, body: bytes) -> InferenceJob:
        """`_job`, which also measures the pace."""
        begin = time.perf_counter()
        try:
            return self._job(name, body)
        finally:
            self._pace += 0.3 * (len(body) / max(1e-3, time.perf_counter() - begin) - self._pace)

    def _job(self, name: str, body: bytes) -> InferenceJob:
        """Called in a thread of the readers."""
        begin = time.perf_counter()
        try:
            value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise _NoJSONError(f"the body is no JSON in UTF-8: {what[:200]}") from None
        job = self._abilities.endpoints[name](check(value, self._schemas[name]))
        tokens = sum(job.costs)
        if name != "explain":
            self._abilities.check_tokens(tokens)
        self._metrics.tokens.observe(tokens)
        self._metrics.tokenization.observe(time.perf_counter() - begin)
        return job

    async def _results(self, batcher: Batcher, job: InferenceJob, request: Request) -> list[Any]:
        """The results of a job. It is cancelled when the client closes the connection."""
        future = batcher.submit(job.compute, job.units, job.costs)
        closed = asyncio.ensure_future(_wait_until_closed(request))
        closed.add_done_callback(lambda _: future.cancel())  # no effect on a finished future
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if closed.done():
                raise HTTPException(CLIENT_CLOSED, "the client has closed the connection") from None
            raise
        except BertworksError:
            raise
        except Exception as error:
            _LOG.exception("the computation failed")
            raise BertworksError("the computation failed; the server's log says how") from error
        finally:
            closed.cancel()

    async def _health(self, _: Request) -> Response:
        since = [batcher.busy_since for batcher in self._batchers.values() if batcher.busy_since is not None]
        seconds = time.monotonic() - min(since) if since else 0
        if seconds > STUCK_SECONDS:
            raise HTTPException(503, f"a computation has been going on for {seconds:.0f} seconds")
        if not all(batcher.alive for batcher in self._batchers.values()):
            raise HTTPException(503, "a computing thread has ended")
        return _json({"status": "ok"})

    async def _prometheus(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type=CONTENT_TYPE_LATEST)

    def _not_offered(self, path: str) -> Route:
        """A path of other models. Its answer names what this model offers."""
        info = self._abilities.info
        offered = ", ".join(info["abilities"])
        what = f"this server's model ({info['task']}) does not offer {path}; it offers {offered}"
        return Route(path, _constant(error_body(path, "Backend", what), 424), methods=["POST"])

    def _server_info(self) -> dict[str, Any]:
        """The server's part of /info."""
        return {
            "max_concurrent_requests": self._limits.requests,
            "max_batch_tokens": self._limits.batch_tokens,
            "max_client_batch_size": self._limits.texts,
            "auto_truncate": True,
            "tokenization_workers": READERS,
            "limits": asdict(self._limits),
        }


async def _wait_until_closed(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _NoJSONError(UsageError):
    """The body is not JSON."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _encode_answer(job: InferenceJob, results: list[Any]) -> bytes:
    """Called in a thread of the readers. A list is encoded item by item: the encoder lets no other thread run."""
    try:
        return _encode(job.answer(results))
    except ValueError as error:  # NaN, which a network should not give, is not JSON
        raise BertworksError(f"the answer cannot be written: {error}") from None


def _encode(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"{" + b",".join(_dumps(name) + b":" + _encode(item) for name, item in value.items()) + b"}"
    return b"[" + b",".join(map(_dumps, value)) + b"]" if isinstance(value, list) else _dumps(value)


def _dumps(value: Any) -> bytes:
    if isinstance(value, np.ndarray):  # a vector of float32, exact with nine digits
        if not np.isfinite(value).all():
            raise ValueError("a vector is not finite")
        return b"[" + b",".join([b"%.9g"] * len(value)) % tuple(value.tolist()) + b"]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_dumps(value), status, headers, "application/json")


def _error_response(path: str, error: BertworksError) -> Response:
    status, kind, headers = 424, "Backend", dict[str, str]()
    if isinstance(error, OverloadedError):
        status, kind, headers = 429, "Overloaded", {"retry-after": str(error.seconds)}
    elif isinstance(error, UsageError):
        kind = "Validation"
        status = {_NoJSONError: 400, RequestTooLargeError: 413}.get(type(error), 422)
    what = error.what + (f" ({error.hint})" if error.hint else "")
    return _json(error_body(path, kind, what), status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind = _KINDS.get(error.status_code, "Validation")
    return _json(error_body(request.url.path, kind, str(error.detail)), error.status_code, error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    _LOG.error("an error in bertworks", exc_info=error)
    return _json(error_body(request.url.path, "Backend", "an error in bertworks; see the server's log"), 500)


def _constant(value: Any, status: int = 200) -> Endpoint:
    return _static(_dumps(value), "application/json", status)


def _file(path: Path) -> Endpoint:
    return _static(path.read_bytes(), TYPES.get(path.suffix, "application/octet-stream"))


def _static(content: bytes, media_type: str, status: int = 200) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(content, status, media_type=media_type)

    return endpoint


class Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request does not arrive in HEAD_SECONDS, counted from its first byte
    or from the start of the connection; if the rest of a body that is not read does not; and if the lines before or
    after a body are too long."""

    _timer: asyncio.TimerHandle | None = None
    _in_request = _in_body = False
    _requests = _head_bytes = _unparsed_bytes = 0  # finished requests; bytes of this head; bytes not parsed yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        requests, self._unparsed_bytes = self._requests, self._unparsed_bytes + len(data)
        super().data_received(data)
        if self._unparsed_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("A line is too long.")
        is_unread_body = self._in_body and self.cycle.response_complete
        is_head = not self._in_body and (self._in_request or self._requests == requests)  # or blank lines
        if is_unread_body or is_head:
            self._start_timer()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._in_request, self._in_body, self._head_bytes = True, False, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if not self._in_body:  # uvicorn would take a line after the body for a header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = self._in_body = False
        self._requests, self._unparsed_bytes = self._requests + 1, 0
        super().on_message_complete()

    def _count(self, size: int) -> None:
        """Raises ValueError if the head is too long: the parser answers with status 400."""
        self._head_bytes, self._unparsed_bytes = self._head_bytes + size, 0
        if self._head_bytes > HEAD_BYTES:
            raise ValueError

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
