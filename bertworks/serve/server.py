"""The process of a server for one model: port, shutdown and log.

The log is JSON lines on standard error, written by a thread: no request waits for it.
"""

import gc
import ipaddress
import json
import logging
import os
import queue
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, UsageError, optional_import
from bertworks.events import Event
from bertworks.serve.batching import Limits
from bertworks.serve.endpoints import Abilities
from bertworks.training.device import PrecisionOption

MAX_LINES = 10_000  # that wait; further lines are dropped and counted
PAUSE = 0.05  # seconds to collect lines: waking the thread for each line would slow down the other threads
RETRY = 0.5  # seconds, after a failed write
FLUSH_SECONDS = 1.0  # at the end, if the log is read slowly
IDLE_SECONDS = 75  # before an idle connection is closed: longer than in proxies (60), which else may use a connection
# that is being closed
MAX_FILES = 1 << 16  # open at the same time: more than the accepted requests
DRAIN_SECONDS = 8  # to answer accepted requests after SIGTERM
_SETTINGS: dict[str, Any] = {  # of uvicorn
    "ws": "none", "lifespan": "off", "loop": "auto", "log_config": None, "access_log": False, "server_header": False,
    "proxy_headers": False, "timeout_keep_alive": IDLE_SECONDS, "timeout_graceful_shutdown": DRAIN_SECONDS,
}  # fmt: skip


class _JSONFormatter(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        time_ = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time_, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class LogHandler(logging.Handler):
    """Queues lines until a thread has written them. If MAX_LINES wait, further lines are dropped, and the next line
    reports their number. descriptor: standard error."""

    def __init__(self, descriptor: int = 2):
        super().__init__()
        self.setFormatter(_JSONFormatter())
        self._descriptor, self._lines, self._dropped = descriptor, queue.Queue[str](), 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line without waiting."""
        if self._lines.unfinished_tasks >= MAX_LINES:
            self._dropped += 1
            return
        try:
            self._lines.put(self.format(record))
        except Exception:
            self.handleError(record)  # as in handlers of the standard library: no request fails because of its log

    def flush(self) -> None:
        """Wait until all lines are written, for at most FLUSH_SECONDS."""
        end = time.monotonic() + FLUSH_SECONDS
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(PAUSE / 5)

    def _write(self) -> None:
        """Write without the lock of `sys.stderr`: it would block the end of the process if the log is not read."""
        while True:
            lines = [self._lines.get()]
            time.sleep(PAUSE)
            lines += [self._lines.get() for _ in range(self._lines.qsize())]
            content = "".join(f"{line}\n" for line in lines).encode()
            if dropped := self._dropped:
                self._dropped = 0
                warning = {"levelname": "WARNING", "msg": "lines of the log were lost", "fields": {"lost": dropped}}
                content += f"{self.format(logging.makeLogRecord(warning))}\n".encode()
            while content:
                try:
                    content = content[os.write(self._descriptor, content) :]
                except OSError:  # a full disk or a closed pipe: lines wait, as for a slow reader
                    time.sleep(RETRY)
            for _ in lines:
                self._lines.task_done()


def json_log() -> logging.Logger:
    """The log of the server and of uvicorn. It holds no text of a request."""
    handler = LogHandler()
    for name in ("uvicorn", "bertworks.serve"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    return logging.getLogger("bertworks.serve")


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    index: str | Path | None = None,
    token: str = "",
    device: str = "auto",
    precision: PrecisionOption = "auto",
    limits: Limits | None = None,
) -> Iterator[Event]:
    """Serve a model until SIGTERM or Ctrl-C. Then accepted requests are answered, and new ones are refused. The first
    event holds the address, the last reports the end.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a hub id.
        host, port: the address; port 0: any free port.
        index: the folder of an index to search.
        precision: see `Abilities`.
        token: required in every request; necessary if other machines can reach the server.

    Raises:
        BertworksError: no such model or index, the port is in use, or the extra `serve` is not installed.
        UsageError: no token for a server that other machines can reach.
    """
    with optional_import("a server", '"bertworks[serve]"'):
        import uvicorn

        from bertworks.serve.application import Application, Connection
    with bound(host, port) as listening:  # before the model is read: report a used port at once
        name, number = listening.getsockname()[:2]
        if not token and not ipaddress.ip_address(name).is_loopback:
            what = f"other machines can reach {host}, and there is no token"
            raise UsageError(what, hint="set BERTWORKS_API_KEY to a long random word")
        abilities = Abilities(model, index=index, device=device, precision=precision, limits=limits)
        application = Application(abilities, token=token, hosts=[host.strip("[]")], stopping=lambda: server.should_exit)
        server, log = uvicorn.Server(uvicorn.Config(application, http=Connection, **_SETTINGS)), json_log()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # every connection is an open file; -1: no limit
        if 0 <= soft < MAX_FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard if 0 <= hard < MAX_FILES else MAX_FILES, hard))
        url = f"http://[{name}]:{number}/" if ":" in name else f"http://{name}:{number}/"
        yield Event("note", f"{abilities.name} at {url}", {"url": url, "abilities": abilities.info["abilities"]})
        with ExitStack() as stack:
            if threading.current_thread() is threading.main_thread():
                # uvicorn raises the signal again after its shutdown. Here the shutdown is all that is needed.
                for signal_ in (signal.SIGINT, signal.SIGTERM):
                    stack.callback(signal.signal, signal_, signal.signal(signal_, lambda *_: None))
            # Exclude the present objects, some 300,000 of libraries and model, from garbage collection, which would
            # stop all threads for 0.17 seconds.
            gc.collect()
            gc.freeze()
            stack.callback(gc.unfreeze)
            server.run(sockets=[listening])
    application.close()
    log.info("stopped")
    yield Event("done", "stopped", {"requests": server.server_state.total_requests})


def bound(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        BertworksError: the address cannot be used.
    """
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        listening = socket.create_server((name, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BertworksError(f"cannot listen: {reason}", where=f"{host}:{port}", hint="--port 0") from None
    # Connections inherit it; asyncio sets it only for its own sockets. Without it the body of an answer would wait
    # until the client has acknowledged the head, which may take 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
