"""The application of a server: paths, bodies, errors, the files of the page. It needs the extra `serve`."""

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

from bertworks.errors import BertworksError, UsageError
from bertworks.inference.explain import MAPS
from bertworks.serve.access import AccessMiddleware, ServerMetrics, error_body
from bertworks.serve.batching import Batcher, OverloadedError
from bertworks.serve.endpoints import Abilities
from bertworks.serve.job import InferenceJob, Limits, RequestTooLargeError
from bertworks.serve.openapi import ALL_PATHS, check, document, paths_of, requests_of
from bertworks.training.device import THREADS, HeapTrimmer

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}  # fmt: skip
MOST_WORKERS = 4  # batches that are computed at once: a batch is often too small for all threads
READERS = 2  # threads that read requests and write answers; one more reads what is
LARGE = 1 << 16  # bytes of a body, and more: lest others wait behind it
PACE = 1e6  # bytes per second that are read of these, before it is measured
BODY_SECONDS = 10.0  # in which a body has to come
STUCK_SECONDS = 60.0  # of one batch
BYTES = 64_000_000  # of all bodies in the server
EXPLANATIONS_PATIENCE = 5.0
GONE = 499  # the status that the log has of requests whose clients did not wait, as nginx calls it
_KINDS = {404: "NotFound", 405: "NotAllowed", 503: "Unhealthy"}  # others: Validation

Endpoint = Callable[[Request], Awaitable[Response]]


class Application:
    """Everything but a port: `asgi` is what is served.

    Args:
        token: that is asked for; "": none.
        hosts: names of the server, beside those of this machine; they matter where there is no token.
        stopping: whether it is about to end.
    """

    def __init__(
        self,
        abilities: Abilities,
        *,
        token: str = "",
        hosts: Collection[str] = (),
        stopping: Callable[[], bool] = lambda: False,
    ):
        self._abilities, self._limits, self._figures = abilities, abilities.limits, ServerMetrics()
        self._schemas = requests_of(abilities.info, abilities.limits)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._large, self._large_bytes, self._pace = ThreadPoolExecutor(1, thread_name_prefix="large"), 0, PACE
        patience, self._bytes, self._memory = self._limits.patience, 0, HeapTrimmer()
        workers = min(MOST_WORKERS, THREADS.adapt()) if abilities.on_cpu else 1
        self._batchers = {
            "network": Batcher(
                self._limits.batch_tokens,
                patience=patience,
                observe=self._observe,
                workers=workers,
                sharing=THREADS.adapt,
            ),
            "search": Batcher(8, patience=patience, sharing=THREADS.adapt),
            "explain": Batcher(1, patience=EXPLANATIONS_PATIENCE, sharing=THREADS.adapt),
        }
        for name, batcher in self._batchers.items():
            self._figures.watch(name, batcher)
        computing = self._schemas.keys() - {"tokenize", "decode"}
        self._asked = {path: self._batcher(name) for name in computing for path in paths_of(name)}
        described = document(abilities.info, abilities.limits, token=bool(token))
        model = {"id": abilities.name, "object": "model", "created": 0, "owned_by": "bertworks"}
        files = [*PAGE.iterdir(), *MAPS.iterdir()]
        page = {"/" if path.name == "index.html" else f"/{path.name}": _file(path) for path in files}
        routes = [
            *(Route(path, self._endpoint(n), methods=["POST"]) for n in self._schemas for path in paths_of(n)),
            *(self._absent(path) for path in ALL_PATHS if path not in described["paths"]),
            Route("/info", _constant(abilities.info | _facts(self._limits))),
            Route("/openapi.json", _constant(described)),
            Route("/v1/models", _constant({"object": "list", "data": [model]})),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            *(Route(path, endpoint) for path, endpoint in page.items()),
        ]
        handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _fault}
        self.asgi = AccessMiddleware(
            Starlette(routes=routes, exception_handlers=handlers), self._figures, token=token,
            hosts={"localhost", "127.0.0.1", "::1", *hosts}, public={*page, "/health"},
            paths={route.path for route in routes}, most=self._limits.requests, full=self._full, stopping=stopping,
        )  # fmt: skip

    def close(self) -> None:
        """What was asked is computed, and nothing more."""
        for batcher in self._batchers.values():
            batcher.close()
        for readers in (self._readers, self._large):
            readers.shutdown(wait=False)

    def _observe(self, units: int, cost: int, seconds: float) -> None:
        """In the thread that computes, after each batch."""
        self._figures.batch(units, cost, seconds)
        self._memory.look()

    def _batcher(self, name: str) -> Batcher:
        return self._batchers.get(name, self._batchers["network"])

    def _full(self, path: str) -> OverloadedError | None:
        """What to tell whoever asks there, where a question more would wait too long."""
        batcher = self._asked.get(path)
        return batcher.overloaded if batcher is not None and batcher.full else None

    def _endpoint(self, name: str) -> Endpoint:
        batcher = self._batcher(name)

        async def endpoint(request: Request) -> Response:
            loop, path = asyncio.get_running_loop(), request.url.path
            try:
                body = await self._body(request)
                question = await self._read(name, body)
                rows = await self._rows(batcher, question, request)
                content = await loop.run_in_executor(self._readers, _written, question, rows)
            except BertworksError as error:
                return _refusal(path, error)
            except asyncio.CancelledError:  # the time to drain is over
                raise HTTPException(503, "the server is stopping") from None
            return Response(content, media_type="application/json")

        return endpoint

    async def _body(self, request: Request) -> bytes:
        most = self._limits.body_bytes
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "expected the header Content-Type: application/json")
        told = request.headers.get("content-length", "")
        size = int(told) if told.isdecimal() else most
        if size > most:
            raise HTTPException(413, f"the body has {size:,} bytes: expected {most:,} at most")
        if self._bytes + size > BYTES:
            raise OverloadedError
        self._bytes += size
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = bytearray()
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise HTTPException(413, f"the body has more than {most:,} bytes")
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {BODY_SECONDS:.0f} seconds") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body ended too soon") from None
        finally:
            self._bytes -= size
        return bytes(body)

    async def _read(self, name: str, body: bytes) -> InferenceJob:
        """What a body asks. Large ones are read one by one, and refused where those before them take too long."""
        loop, size = asyncio.get_running_loop(), len(body)
        if size < LARGE:
            return await loop.run_in_executor(self._readers, self._question, name, body)
        if (seconds := self._large_bytes / self._pace) > self._limits.patience:
            raise OverloadedError(seconds)
        self._large_bytes += size
        try:
            return await loop.run_in_executor(self._large, self._paced, name, body)
        finally:
            self._large_bytes -= size

    def _paced(self, name: str, body: bytes) -> InferenceJob:
        begin = time.perf_counter()
        try:
            return self._question(name, body)
        finally:
            self._pace += 0.3 * (len(body) / max(1e-3, time.perf_counter() - begin) - self._pace)

    def _question(self, name: str, body: bytes) -> InferenceJob:
        """In a thread that reads."""
        begin = time.perf_counter()
        try:
            value = json.loads(body.decode("utf-8"), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise _NoJSONError(f"the body is no JSON in UTF-8: {what[:200]}") from None
        question = self._abilities.asks[name](check(value, self._schemas[name]))
        tokens = sum(question.costs)
        if name != "explain":
            self._abilities.within(tokens)
        self._figures.tokens.observe(tokens)
        self._figures.tokenization.observe(time.perf_counter() - begin)
        return question

    async def _rows(self, batcher: Batcher, question: InferenceJob, request: Request) -> list[Any]:
        """What is computed for a question, as long as somebody waits for it."""
        future = batcher.submit(question.compute, question.units, question.costs)
        gone = asyncio.ensure_future(_gone(request))
        gone.add_done_callback(lambda _: future.cancel())  # nothing happens if it is done
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if gone.done():
                raise HTTPException(GONE, "nobody waits for the answer") from None
            raise
        except BertworksError:
            raise
        except Exception as error:
            logging.getLogger("bertworks.serve").exception("the computation failed")
            raise BertworksError("the computation failed; the server's log says how") from error
        finally:
            gone.cancel()

    async def _health(self, _: Request) -> Response:
        now = time.monotonic()
        since = [batcher.busy_since for batcher in self._batchers.values() if batcher.busy_since is not None]
        if since and now - min(since) > STUCK_SECONDS:
            raise HTTPException(503, f"a computation has been going on for {now - min(since):.0f} seconds")
        if not all(batcher.alive for batcher in self._batchers.values()):
            raise HTTPException(503, "nobody computes any more")
        return _json({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        return Response(self._figures.text(), media_type=CONTENT_TYPE_LATEST)

    def _absent(self, path: str) -> Route:
        """A path of other models: asked for, it says what this one offers."""
        i = self._abilities.info
        what = f"this server's model ({i['task']}) does not offer {path}; it offers {', '.join(i['abilities'])}"

        async def endpoint(request: Request) -> Response:
            return _json(error_body(request.url.path, "Backend", what), 424)

        return Route(path, endpoint, methods=["POST"])


async def _gone(request: Request) -> None:
    """Until the client of a request whose body was read has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _NoJSONError(UsageError):
    """A body that cannot even be read."""


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _written(question: InferenceJob, rows: list[Any]) -> bytes:
    """In a thread that writes. A list is written item by item, for the encoder lets no other thread run."""
    try:
        return _encoded(question.answer(rows))
    except ValueError as error:  # NaN, which no network should give, and no JSON can say
        raise BertworksError(f"the answer cannot be written: {error}") from None


def _encoded(value: Any) -> bytes:
    if isinstance(value, dict):
        return b"{" + b",".join(_dumped(name) + b":" + _encoded(one) for name, one in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(_dumped, value)) + b"]"
    return _dumped(value)


def _dumped(value: Any) -> bytes:
    if isinstance(value, np.ndarray):  # a vector of float32, which nine digits tell exactly
        if not np.isfinite(value).all():
            raise ValueError("a vector is not finite")
        return b"[" + b",".join([b"%.9g"] * len(value)) % tuple(value.tolist()) + b"]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_dumped(value), status, headers, "application/json")


def _refusal(path: str, error: BertworksError) -> Response:
    """An error of ours as a response."""
    match error:
        case OverloadedError():
            status, kind, headers = 429, "Overloaded", {"retry-after": str(error.seconds)}
        case _NoJSONError():
            status, kind, headers = 400, "Validation", {}
        case RequestTooLargeError():
            status, kind, headers = 413, "Validation", {}
        case UsageError():
            status, kind, headers = 422, "Validation", {}
        case _:
            status, kind, headers = 424, "Backend", {}
    what = error.what + (f" ({error.hint})" if error.hint else "")
    return _json(error_body(path, kind, what), status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind = _KINDS.get(error.status_code, "Validation")
    return _json(error_body(request.url.path, kind, str(error.detail)), error.status_code, error.headers)


async def _fault(request: Request, error: Exception) -> Response:
    logging.getLogger("bertworks.serve").error("a fault of bertworks", exc_info=error)
    return _json(error_body(request.url.path, "Backend", "a fault of bertworks; the server's log says which"), 500)


def _constant(value: Any) -> Endpoint:
    content = _dumped(value)

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type="application/json")

    return endpoint


def _file(path: Path) -> Endpoint:
    content = path.read_bytes()

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type=TYPES.get(path.suffix, "application/octet-stream"))

    return endpoint


def _facts(limits: Limits) -> dict[str, Any]:
    """What /info says of the server."""
    return {
        "max_concurrent_requests": limits.requests,
        "max_batch_tokens": limits.batch_tokens,
        "max_client_batch_size": limits.texts,
        "auto_truncate": True,
        "tokenization_workers": READERS,
        "limits": asdict(limits),
    }
