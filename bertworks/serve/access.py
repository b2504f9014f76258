"""Access to the server: tokens, hosts, limits, common headers, and its metrics. Plain ASGI."""

import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from bertworks.serve.batching import Batcher, OverloadedError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
HEADER_BYTES = 16_384
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536)
_QUIET = ("/health", "/metrics")  # polled every few seconds: only their errors are logged


class ServerMetrics:
    """Metrics for Prometheus, with the names of Text Embeddings Inference (TEI)."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = r = CollectorRegistry()
        self.count = Counter("te_request_count", "Requests", ["method"], registry=r)
        self.success = Counter("te_request_success", "Requests answered", ["method"], registry=r)
        self.failure = Counter("te_request_failure", "Requests refused, by status", ["err"], registry=r)
        self.duration = Histogram("te_request_duration", "Seconds", buckets=_SECONDS, registry=r)
        self.tokens = Histogram("te_request_input_length", "Tokens of a request", buckets=_SIZES, registry=r)
        self.tokenization = Histogram("te_request_tokenization_duration", "Seconds", buckets=_SECONDS, registry=r)
        self.inference = Histogram("te_request_inference_duration", "Seconds", buckets=_SECONDS, registry=r)
        self.batch_size = Histogram("te_batch_next_size", "Texts of a batch", buckets=_SIZES, registry=r)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens of a batch", buckets=_SIZES, registry=r)
        self.active = Gauge("te_request_active", "Requests in the server", registry=r)

    def watch(self, name: str, batcher: Batcher) -> None:
        """Report the length of a queue."""
        queue = Gauge(f"te_queue_{name}", "Cost of what waits or is computed, in tokens", registry=self.registry)
        queue.set_function(lambda: batcher.cost)

    def text(self) -> bytes:
        """All metrics in the format of Prometheus. Its library appends `_total` to the names of counters, TEI does
        not."""
        return re.sub(rb"\b(te_request_\w+?)_total\b", rb"\1", generate_latest(self.registry))

    def batch(self, units: int, cost: int, seconds: float) -> None:
        """Count a computed batch."""
        self.batch_size.observe(units)
        self.batch_tokens.observe(cost)
        self.inference.observe(seconds)


class AccessMiddleware:
    """An application with access control.

    Args:
        token: required for all paths but `public`; "": no token, and only the server's own page may send requests.
        hosts: host names of a server without a token.
        max_requests: at the same time.
        full: path -> the error to report if too much is waiting. It is called before the body is read: a cheap refusal
            leaves more time for answers.
        stopping: whether the server is shutting down.
    """

    def __init__(
        self,
        app: App,
        metrics: ServerMetrics,
        *,
        token: str = "",
        hosts: Collection[str] = (),
        public: Collection[str] = (),
        paths: Collection[str] = (),
        max_requests: int = 512,
        full: Callable[[str], OverloadedError | None] = lambda path: None,
        stopping: Callable[[], bool] = lambda: False,
    ):
        self._app, self._metrics, self._token, self._hosts = app, metrics, token.encode(), hosts
        self._public, self._paths = public, paths
        self._max_requests, self._full, self._stopping, self._active = max_requests, full, stopping, 0
        self._log = logging.getLogger("bertworks.serve")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begin, status, size = time.perf_counter(), 500, 0

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            size += len(message.get("body", b""))
            await send(message)

        self._active += 1
        self._metrics.active.set(self._active)
        try:
            if refusal := self._refusal(scope):
                await _refuse(answer, scope["path"], *refusal)
            else:
                await self._app(scope, receive, answer)
        finally:
            self._active -= 1
            self._metrics.active.set(self._active)
            self._record(scope, status, size, time.perf_counter() - begin)

    def _refusal(self, scope: Message) -> tuple[int, str, str, *tuple[Header, ...]] | None:
        headers = dict(scope["headers"])
        size = len(scope["raw_path"]) + len(scope["query_string"]) + sum(len(k) + len(v) for k, v in scope["headers"])
        if size > HEADER_BYTES:
            return 431, "Validation", f"the head has {size:,} bytes: expected {HEADER_BYTES:,} at most"
        if self._stopping():
            return 503, "Unhealthy", "the server is stopping"
        if self._token:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            is_authorized = hmac.compare_digest(token, self._token) and scheme.lower() == b"bearer"
            if scope["path"] not in self._public and not is_authorized:
                what = "expected the header Authorization: Bearer TOKEN"
                return 401, "Unauthorized", what, (b"www-authenticate", b"Bearer")
        else:
            host = headers.get(b"host", b"").decode("latin-1")
            if _host_name(host) not in self._hosts:
                return 403, "Forbidden", f"this server is not called {host[:100]!r}"
            origin = headers.get(b"origin")
            if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
                return 403, "Forbidden", "the request comes from a page of another server; set a token to allow that"
        if scope["method"] != "POST":
            return None
        if self._active > self._max_requests:
            what = f"{self._max_requests} requests are in work: try again later"
            return 429, "Overloaded", what, (b"retry-after", b"1")
        if error := self._full(scope["path"]):
            return 429, "Overloaded", f"{error.what} ({error.hint})", (b"retry-after", str(error.seconds).encode())
        return None

    def _record(self, scope: Message, status: int, size: int, seconds: float) -> None:
        """Count a request, and log it."""
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._metrics.count.labels(path).inc()
        (self._metrics.success.labels(path) if status < 400 else self._metrics.failure.labels(str(status))).inc()
        self._metrics.duration.observe(seconds)
        if path not in _QUIET or status >= 400:
            fields = {"method": scope["method"], "path": scope["path"][:200], "status": status,
                      "milliseconds": round(1000 * seconds, 1), "bytes": size}  # fmt: skip
            self._log.info("request", extra={"fields": fields})


def _host_name(host: str) -> str:
    """The header Host without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def error_body(path: str, kind: str, what: str) -> dict[str, Any]:
    """An error in the format that the clients of a path expect."""
    if path.startswith("/v1/"):
        return {"error": {"message": what, "type": kind, "param": None, "code": None}}
    return {"error": what, "error_type": kind}


async def _refuse(send: Send, path: str, status: int, kind: str, what: str, *more: Header) -> None:
    body = json.dumps(error_body(path, kind, what)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
