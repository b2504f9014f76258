"""The HTTP side of the server: heads, access, paths, errors, the files of the page, and the log.

It needs the extra `serve`.

A request comes from its `Connection` to the `Application`, which asks who sends it (`Access`). What
is computed goes through the `Pipeline`, to an endpoint of `Abilities` (endpoints).
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import os
import re
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bertworks.errors import BertworksError, UsageError
from bertworks.inference.explain import MAPS
from bertworks.io.system import enlarge_pipe, has_room
from bertworks.serve.batching import RequestError, forget_origin, grant
from bertworks.serve.endpoints import Abilities
from bertworks.serve.openapi import ENDPOINTS, document, documentation, paths_of
from bertworks.serve.pipeline import LANES, SMALL_ANSWER, Answer, Pipeline, ServerMetrics

HEAD_SECONDS = 10.0  # to receive the head of a request
KEPT_HEAD = 65_536  # bytes of a head after which it is not read on
MAX_HEAD = 16_384  # bytes of a head
SINGLE_HEADERS = (
    b"host",
    b"origin",
    b"authorization",
    b"content-length",
    b"content-type",
    b"transfer-encoding",
)
PAGE = Path(__file__).with_name("page")
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
STUCK_SECONDS = 60.0  # of one batch
_LOG = logging.getLogger("bertworks.serve")
MODEL_PATH = "/v1/models/"  # and the name of a model
READING = ("GET", "HEAD")  # the methods of what is not computed
_QUIET = ("/health", "/ping", "/metrics")  # polled every few seconds: only their errors are logged
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
# Of the paths under `/v1/`, as OpenAI has them; all other statuses are 400 there.
_OPENAI_STATUSES = (401, 403, 404, 405, 408, 429, 431, 499, 500, 503)
_OPENAI_CODES = {401: "invalid_api_key", 405: "method_not_allowed", 429: "rate_limit_exceeded"}
_PARAMETER = re.compile(r"(input|dimensions|encoding_format|model|truncate|user)\b(\[\d+\])*: ")
PIPE_BYTES = 1 << 20  # of the log that may wait for its reader: some 7,000 lines
MAX_TRACEBACK = 3000  # characters, from its end


class Connection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too long or too late.

    It has to arrive in HEAD_SECONDS, counted from its first byte or from the start of the
    connection. The lines of a head, or before or after a body, may be too long.
    """

    _timer: asyncio.TimerHandle | None = None
    _unparsed_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of the first request."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Read bytes of a request, and close the connection if its head is too long."""
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > KEPT_HEAD and not self.transport.is_closing():
            self.send_400_response("A line is too long.")

    def on_message_begin(self) -> None:
        """Note that the head of a request has begun."""
        super().on_message_begin()
        self.scope["abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Note that the head of a request is complete."""
        super().on_headers_complete()
        self.headers = []  # uvicorn would take lines after the body for headers
        self._parsed()

    def on_body(self, body: bytes) -> None:
        """Note that a part of a body has arrived."""
        super().on_body(body)
        self._parsed()

    def on_message_complete(self) -> None:
        """Note that a request is complete, and wait for the next one."""
        super().on_message_complete()
        self._parsed()

    def _parsed(self) -> None:
        self._unparsed_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Access:
    """The rules of a server.

    Args:
        token: required for all requests that are not public. Several: one on each line. "": no
            token, and only the server's own page may send requests.
        hosts: names of the server, in addition to those of this machine; used only without a token.

    Attributes:
        is_stopping: whether the server is shutting down.
    """

    is_stopping = False

    def __init__(self, token: str, hosts: Collection[str]):
        self._tokens = list(filter(None, token.encode().splitlines()))
        self._hosts = {"localhost", "127.0.0.1", "::1", *hosts}

    def client(self, request: Request, *, is_public: bool) -> str:
        """Return who sends a request: a token, if there are several, or else an address.

        Args:
            is_public: whether the request needs no token.

        Raises:
            RequestError: the request is refused.
        """
        scope = request.scope
        headers = dict(request.scope["headers"])
        size = (
            len(scope["raw_path"])
            + len(scope["query_string"])
            + sum(len(k) + len(v) for k, v in scope["headers"])
        )
        grant(size <= MAX_HEAD, 431, f"the head has {size:,} bytes: expected {MAX_HEAD:,} at most")
        names = [name for name, _ in scope["headers"]]
        for header in SINGLE_HEADERS if len(names) > len(headers) else ():
            grant(
                names.count(header) < 2, 400, f"the header {header.decode().title()} is there twice"
            )
        grant(not self.is_stopping, 503, "the server is stopping")
        address = request.client.host if request.client else ""
        if ":" in address:  # one user has all addresses of such a network
            address = str(ipaddress.ip_network(f"{address.partition('%')[0]}/64", strict=False))
        if self._tokens:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            matches = [hmac.compare_digest(token, known) for known in self._tokens]
            is_authorized = any(matches) and scheme.lower() == b"bearer"
            grant(
                is_public or is_authorized,
                401,
                "expected the header Authorization: Bearer TOKEN",
                headers={"www-authenticate": "Bearer"},
            )
            return f"token {matches.index(True)}" if is_authorized and len(matches) > 1 else address
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        grant(name in self._hosts, 403, f"this server is not called {host[:100]!r}")
        is_own = origin is None or origin.decode("latin-1").partition("://")[2] == host
        grant(
            is_own,
            403,
            "the request comes from a page of another server; set a token to allow that",
        )
        return address


class UnknownModelError(RequestError):
    """The server has another model than that of a path."""

    code = "model_not_found"  # of OpenAI


class Application:
    """The server without its port, as an ASGI application.

    Args:
        token, hosts: see `Access`. `GET` of `/health`, `/ping` and the files of the page
            is public.
    """

    def __init__(self, abilities: Abilities, *, token: str = "", hosts: Collection[str] = ()):
        self._abilities = abilities
        self._metrics = ServerMetrics()
        self.access = Access(token, hosts)
        self._overloaded = dict[str, int]()  # path -> requests refused and not logged yet
        self.pipeline = Pipeline(abilities, self._metrics)
        limits = abilities.limits
        server_info = {
            "max_concurrent_requests": limits.requests,
            "max_batch_tokens": limits.batch_tokens,
            "max_batch_requests": None,  # only their tokens are limited
            "max_client_batch_size": limits.texts,
            "auto_truncate": True,
            "tokenization_workers": sum(LANES.values()),
            "limits": asdict(limits),
        }
        model = {"id": abilities.name, "object": "model", "created": 0, "owned_by": "bertworks"}
        files = (*PAGE.iterdir(), *MAPS.iterdir())
        page = {"/" if file.name == "index.html" else f"/{file.name}": file for file in files}
        self._public = {*page, "/health", "/ping"}
        description = document(abilities.info, self.pipeline.requests, token=bool(token))
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

    def close(self) -> None:
        """Accept no more jobs.

        Accepted jobs are still computed.
        """
        self.pipeline.close()
        self._log_overloaded()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, then count it and log it."""
        if scope["type"] != "http":
            return
        begin = time.perf_counter()
        request = Request(scope, receive)
        path = scope["path"].rstrip("/") or "/"
        response = await self._respond(request, path)
        if len(response.body) > SMALL_ANSWER and scope["method"] == "POST":
            await self.pipeline.send_large(response, scope, send)
        else:
            await response(scope, receive, send)
        # Later, so that other requests of the same moment do not wait for it.
        asyncio.get_running_loop().call_soon(
            self._record, scope, path, response, time.perf_counter() - begin
        )

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
        """Return the answer to a request, or an error: under `/v1/` one as OpenAI has it."""
        try:
            is_public = path in self._public and request.method in READING
            client = self.access.client(request, is_public=is_public)
            allowed = [
                *(["POST"] if path in self._post else []),
                *(READING if path in self._get else []),
            ]
            if not allowed and path.startswith(MODEL_PATH):
                name = path.removeprefix(MODEL_PATH)[:100]
                raise UnknownModelError(
                    404, f"there is no model {name!r}: this server has {self._abilities.name!r}"
                )
            grant(allowed, 404, "Not Found")
            grant(
                request.method in allowed,
                405,
                "Method Not Allowed",
                headers={"allow": ", ".join(allowed)},
            )
            if request.method in READING:
                return self._get[path]()
            return await self.pipeline.answer(self._post[path], request, client)
        except BertworksError as refusal:
            error = refusal
            forget_origin(error)
        except asyncio.CancelledError:  # the time to finish open requests is over
            error = RequestError(503, "the server is stopping")
        except Exception as bug:
            _LOG.error("an error in bertworks", exc_info=bug)
            error = RequestError(500, "an error in bertworks; see the server's log")
        status = getattr(error, "status", 422 if isinstance(error, UsageError) else 424)
        what = error.what
        if error.hint:
            what += f" ({error.hint})"
        headers = getattr(error, "headers", None)
        if not path.startswith("/v1/"):
            body = {"error": what, "error_type": _KINDS.get(status, "Validation")}
            return Answer(body, status, headers)
        if not isinstance(error, UsageError | RequestError):
            status = 500
        kind = "requests" if status == 429 else "invalid_request_error"
        field = _PARAMETER.match(what)
        openai_error = {
            "message": what,
            "type": "server_error" if status in (500, 503) else kind,
            "param": field[1] if field else None,
            "code": getattr(error, "code", None) or _OPENAI_CODES.get(status),
        }
        status = status if status in _OPENAI_STATUSES else 400
        return Answer({"error": openai_error}, status, headers)

    def _health(self) -> Answer:
        seconds = self.pipeline.busy_seconds()
        grant(
            seconds <= STUCK_SECONDS,
            503,
            f"a computation has been going on for {seconds:.0f} seconds",
        )
        return Answer({"status": "ok"})


class LogHandler(logging.Handler):
    """One JSON object for each record.

    What a slow reader leaves no room for is lost: no request waits for the log. The next line
    reports the number of lost lines. descriptor: standard error.
    """

    def __init__(self, descriptor: int = 2):
        super().__init__()
        self._descriptor = descriptor
        self._lost = 0
        enlarge_pipe(descriptor, PIPE_BYTES)

    def format(self, record: logging.LogRecord) -> str:
        """Return a line, short enough for a pipe that has any room."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)[
                -MAX_TRACEBACK:
            ]
        return json.dumps(line, ensure_ascii=True, default=str) + "\n"

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it as lost."""
        content = self.format(record)
        if self._lost:
            fields = {
                "levelname": "WARNING",
                "msg": "lines of the log were lost",
                "fields": {"lost": self._lost},
            }
            content = self.format(logging.makeLogRecord(fields)) + content
        try:
            if not has_room(self._descriptor):
                raise BlockingIOError
            os.write(self._descriptor, content.encode())
            self._lost = 0
        except OSError:  # also of a full disk
            self._lost += 1


def json_log() -> logging.Logger:
    """Return the log of the server and of uvicorn.

    It holds no text of a request.
    """
    handler = LogHandler()
    for name in ("uvicorn", "bertworks.serve"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return logging.getLogger("bertworks.serve")
