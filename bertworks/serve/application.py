"""The HTTP side of the server: paths, errors, the files of the page, metrics and log.

It needs the extra `serve`.

A request comes from the `Connection` (protocol) to the `Application`, which asks who sends it
(access). What is computed goes through the `Pipeline`, to an endpoint of `Abilities` (endpoints).
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request

from bertworks.errors import BertworksError, UsageError
from bertworks.inference.explain import MAPS
from bertworks.serve.access import Access
from bertworks.serve.batching import RequestError, forget_origin, grant
from bertworks.serve.documentation import documentation
from bertworks.serve.endpoints import Abilities
from bertworks.serve.metrics import ServerMetrics
from bertworks.serve.openai_errors import openai_error
from bertworks.serve.openapi import ENDPOINTS, document, paths_of
from bertworks.serve.pipeline import LANES, SMALL_ANSWER, Answer, Pipeline

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


class UnknownModelError(RequestError):
    """The server has another model."""

    code = "model_not_found"  # of OpenAI


class Application:
    """The server without its port, as an ASGI application.

    Args:
        token, hosts, stopping: see `Access`. `GET` of `/health`, `/ping` and the files of the page
            is public.
    """

    def __init__(
        self,
        abilities: Abilities,
        *,
        token: str = "",
        hosts: Collection[str] = (),
        stopping: Callable[[], bool] = lambda: False,
    ):
        self._abilities = abilities
        self._metrics = ServerMetrics()
        self._access = Access(token, hosts, stopping)
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
        has_failed = False
        code = None
        try:
            is_public = path in self._public and request.method in READING
            client = self._access.client(request, is_public=is_public)
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
            return await self.pipeline.answer(self._post[path], request, client)
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
        """Return the error for an unknown path."""
        if not path.startswith(MODEL_PATH):
            return RequestError(404, "Not Found")
        name = path.removeprefix(MODEL_PATH)
        return UnknownModelError(
            404, f"there is no model {name[:100]!r}: this server has {self._abilities.name!r}"
        )

    def _health(self) -> Answer:
        seconds = self.pipeline.busy_seconds()
        grant(
            seconds <= STUCK_SECONDS,
            503,
            f"a computation has been going on for {seconds:.0f} seconds",
        )
        return Answer({"status": "ok"})
