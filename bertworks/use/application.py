"""The application of a server: paths, bodies, errors, and the files of the page. Only `serving` imports it: it needs
what not everybody installs. Not here: what can be asked (`abilities`), who may ask (`gate`)."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from bertworks.errors import BertworksError, UsageError
from bertworks.use.abilities import Abilities, Question, TooMuchError
from bertworks.use.batching import Batcher, OverloadedError
from bertworks.use.gate import Figures, error_body
from bertworks.use.openapi import check, document, paths_of, requests_of

PAGE = Path(__file__).with_name("page")
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}  # fmt: skip
READERS = 2  # threads that read requests and write answers
BODY_SECONDS = 10.0  # in which a body has to come
STUCK_SECONDS = 60.0  # of one batch
BYTES = 64_000_000  # of all bodies in the server
EXPLANATIONS_PATIENCE = 5.0
_KINDS = {404: "NotFound", 405: "NotAllowed", 503: "Unhealthy"}  # others: Validation

Endpoint = Callable[[Request], Awaitable[Response]]


class Application:
    """`Application(...).app` is an ASGI application.

    Args:
        facts: what /info says besides what the abilities say.
        batch_tokens: of a batch.
        token: whether one is asked for, which the document says.
    """

    def __init__(
        self,
        abilities: Abilities,
        figures: Figures,
        *,
        facts: Mapping[str, Any],
        batch_tokens: int,
        patience: float,
        token: bool,
    ):
        self._abilities, self._figures, self._limits = abilities, figures, abilities.limits
        self._schemas = requests_of(abilities.info, abilities.limits)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        network = Batcher(batch_tokens, patience=patience, observe=figures.batch)
        self.batchers = {"network": network}
        if "search" in abilities.asks:
            self.batchers["search"] = Batcher(1, patience=patience)
        if "explain" in abilities.asks:
            self.batchers["explain"] = Batcher(1, patience=EXPLANATIONS_PATIENCE)
        for name, batcher in self.batchers.items():
            figures.watch(name, batcher)
        self._bytes = 0
        info = {**abilities.info, **facts}
        described = document(abilities.info, abilities.limits, token=token)
        model = {"id": abilities.name, "object": "model", "created": 0, "owned_by": "bertworks"}
        routes = [
            *(Route(path, self._endpoint(n), methods=["POST"]) for n in self._schemas for path in paths_of(n)),
            Route("/info", _constant(info)),
            Route("/openapi.json", _constant(described)),
            Route("/v1/models", _constant({"object": "list", "data": [model]})),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            *(self._absent(path) for path in _ALL_PATHS if path not in described["paths"]),
            *_page_routes(),
        ]
        self.paths = [route.path for route in routes]
        handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _fault}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def _endpoint(self, name: str) -> Endpoint:
        batcher = self.batchers.get(name, self.batchers["network"])

        async def endpoint(request: Request) -> Response:
            loop, path = asyncio.get_running_loop(), request.url.path
            try:
                if batcher.full and name not in ("tokenize", "decode"):
                    raise batcher.overloaded  # before anything is read
                body = await self._body(request)
                question = await loop.run_in_executor(self._readers, self._question, name, body)
                rows = await self._rows(batcher, question)
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
            raise OverloadedError(1)
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

    def _question(self, name: str, body: bytes) -> Question:
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

    async def _rows(self, batcher: Batcher, question: Question) -> list[Any]:
        future = batcher.submit(question.compute, question.units, question.costs)
        try:
            return await asyncio.wrap_future(future)
        except BertworksError:
            raise
        except Exception as error:
            logging.getLogger("bertworks.serve").exception("the computation failed")
            raise BertworksError("the computation failed; the server's log says how") from error

    async def _health(self, _: Request) -> Response:
        now = time.monotonic()
        since = [batcher.busy_since for batcher in self.batchers.values() if batcher.busy_since is not None]
        if since and now - min(since) > STUCK_SECONDS:
            raise HTTPException(503, f"a computation has been going on for {now - min(since):.0f} seconds")
        return _json({"status": "ok"})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._figures.registry), media_type=CONTENT_TYPE_LATEST)

    def _absent(self, path: str) -> Route:
        """A path of other models: asked for, it says what this one offers."""
        i = self._abilities.info
        what = f"this server's model ({i['task']}) does not offer {path}; it offers {', '.join(i['abilities'])}"

        async def endpoint(request: Request) -> Response:
            return _json(error_body(request.url.path, "Backend", what), 424)

        return Route(path, endpoint, methods=["POST"])


_ALL_PATHS = [
    path
    for name in ("embed", "similarity", "embeddings", "fill", "predict", "rerank", "ner", "qa", "search", "explain")
    for path in paths_of(name)
]


class _NoJSONError(UsageError):
    """A body that cannot even be read."""


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _written(question: Question, rows: list[Any]) -> bytes:
    """In a thread that writes. A list is written item by item, for the encoder lets no other thread run."""
    try:
        return _encoded(question.answer(rows), 2)
    except ValueError as error:  # NaN, which no network should give, and no JSON can say
        raise BertworksError(f"the answer cannot be written: {error}") from None


def _encoded(value: Any, depth: int) -> bytes:
    if depth and isinstance(value, dict):
        return b"{" + b",".join(json.dumps(k).encode() + b":" + _encoded(v, depth - 1) for k, v in value.items()) + b"}"
    if depth and isinstance(value, list):
        return b"[" + b",".join(_encoded(one, depth - 1) for one in value) + b"]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encoded(value, 0), status, headers, "application/json")


def _refusal(path: str, error: BertworksError) -> Response:
    """An error of ours as a response."""
    match error:
        case OverloadedError():
            status, kind, headers = 429, "Overloaded", {"retry-after": str(round(error.seconds))}
        case _NoJSONError():
            status, kind, headers = 400, "Validation", {}
        case TooMuchError():
            status, kind, headers = 413, "Validation", {}
        case UsageError():
            status, kind, headers = 422, "Validation", {}
        case _:
            status, kind, headers = 424, "Backend", {}
    what = error.what + (f" ({error.fix})" if error.fix else "")
    return _json(error_body(path, kind, what), status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    kind = _KINDS.get(error.status_code, "Validation")
    return _json(error_body(request.url.path, kind, str(error.detail)), error.status_code, error.headers)


async def _fault(request: Request, error: Exception) -> Response:
    logging.getLogger("bertworks.serve").error("a fault of bertworks", exc_info=error)
    return _json(error_body(request.url.path, "Backend", "a fault of bertworks; the server's log says which"), 500)


def _constant(value: Any) -> Endpoint:
    content = _encoded(value, 0)

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type="application/json")

    return endpoint


def _page_routes() -> list[Route]:
    """The files of the page, by their names; index.html is /."""
    return [
        Route("/" if path.name == "index.html" else f"/{path.name}", _file(path.read_bytes(), TYPES[path.suffix]))
        for path in sorted(PAGE.iterdir())
        if path.suffix in TYPES
    ]


def _file(content: bytes, media_type: str) -> Endpoint:
    async def endpoint(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return endpoint
