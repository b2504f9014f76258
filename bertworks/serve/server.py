"""The process of a server for one model: its port, its end, and its log.

The log is JSON lines on standard error, written by a thread, so that no request waits for it.
"""

import gc
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, UsageError, optional_import
from bertworks.events import Event
from bertworks.serve.endpoints import Abilities
from bertworks.serve.job import Limits
from bertworks.training.device import PrecisionOption

MOST = 10_000  # lines that wait; more of them are lost, and counted
PAUSE = 0.05  # seconds in which lines come together: a thread that is woken by each of them would hold up the others
RETRY = 0.5  # seconds, after a write that failed
_AT_ONCE = 100  # lines
PATIENCE = 1.0  # seconds, at the end, for who does not read


class _Lines(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class LogHandler(logging.Handler):
    """Keeps lines until they are written. Where a reader is too slow for MOST of them, later ones are lost, and the
    next line says how many."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_Lines())
        self._lines: deque[str] = deque()
        self._lost = 0
        self._some = threading.Event()
        try:
            self._descriptor = sys.stderr.fileno()
        except (AttributeError, OSError):  # a stand-in, such as a notebook's
            self._descriptor = 2
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Without waiting."""
        if len(self._lines) >= MOST:
            self._lost += 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            said = {"levelname": "WARNING", "msg": "lines of the log were lost", "fields": {"lost": lost}}
            self._lines.append(self.format(logging.makeLogRecord(said)))
        try:
            self._lines.append(self.format(record))
        except Exception:
            self.handleError(record)  # as the handlers of the library do: no request fails for its log
        self._some.set()

    def flush(self) -> None:
        """Waits until all is written, for PATIENCE at most."""
        end = time.monotonic() + PATIENCE
        while self._lines and time.monotonic() < end:
            time.sleep(PAUSE / 5)

    def _write(self) -> None:
        """Past the buffer of `sys.stderr`, which would be locked at the end of the process, should nobody read."""
        while self._some.wait():
            time.sleep(PAUSE)
            self._some.clear()
            while count := min(len(self._lines), _AT_ONCE):
                content = "".join(self._lines[number] + "\n" for number in range(count)).encode()
                while content:
                    try:
                        content = content[os.write(self._descriptor, content) :]
                    except OSError:  # a full disk, or nobody there: lines wait, as for a slow reader
                        time.sleep(RETRY)
                for _ in range(count):
                    self._lines.popleft()


def json_log() -> logging.Logger:
    """The log of a server, and of uvicorn. No text that was asked about is in it."""
    handler = LogHandler()
    for name in ("uvicorn", "bertworks.serve"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    return logging.getLogger("bertworks.serve")


IDLE_SECONDS = 75  # of a connection on which nothing more is asked: longer than proxies keep one (60), lest they ask
# on one that is just being closed
MOST_FILES = 1 << 16  # open at once: more than requests that are let in
DRAIN_SECONDS = 8  # in which what was asked is answered after SIGTERM
_SETTINGS: dict[str, Any] = {  # of uvicorn
    "ws": "none", "lifespan": "off", "loop": "auto", "log_config": None, "access_log": False, "server_header": False,
    "proxy_headers": False, "timeout_keep_alive": IDLE_SECONDS, "timeout_graceful_shutdown": DRAIN_SECONDS,
}  # fmt: skip


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
    """A server for a model, until SIGTERM or Ctrl-C: then what was asked is answered, and nothing more is taken. The
    first event says where it is, the last that it has ended.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a hub id.
        host, port: where; port 0: any free one.
        index: the folder of an index, to be searched.
        precision: see `Abilities`.
        token: that every request has to bear; it must be there where other machines can reach the server.

    Raises:
        BertworksError: no such model or index, the port is taken, or the extra `serve` is not installed.
        UsageError: no token for a server that others can reach.
    """
    if not token and not _only_here(host):
        raise UsageError(
            f"others can reach {host}, and there is no token", hint="set BERTWORKS_API_KEY to a long random word"
        )
    with optional_import("a server", '"bertworks[serve]"'):
        import uvicorn

        from bertworks.serve.application import Application
        from bertworks.serve.connections import Connection
    with bound(host, port) as listening:  # before the model is read: a port that is not free is told of at once
        abilities = Abilities(model, index=index, device=device, precision=precision, limits=limits)
        application = Application(abilities, token=token, hosts=[host.strip("[]")], stopping=lambda: server.should_exit)
        server, log = uvicorn.Server(uvicorn.Config(application.asgi, http=Connection, **_SETTINGS)), json_log()
        _raise_fd_limit()
        at = listening.getsockname()
        url = f"http://[{at[0]}]:{at[1]}/" if ":" in at[0] else f"http://{at[0]}:{at[1]}/"
        yield Event("note", f"{abilities.name} at {url}", {"url": url, "abilities": abilities.info["abilities"]})
        with _stoppable(), _gc_frozen():
            server.run(sockets=[listening])
    application.close()
    log.info("stopped")
    yield Event("done", "stopped", {"requests": server.server_state.total_requests})


def _only_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int) -> socket.socket:
    """What listens there.

    Raises:
        BertworksError: it cannot.
    """
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    try:
        listening = socket.create_server((name, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BertworksError(f"cannot serve there: {reason}", where=f"{host}:{port}", hint="--port 0") from None
    # Connections inherit it; asyncio sets it only for sockets that it made. Without it the body of an answer would wait
    # until the client has acknowledged the head, which it puts off for 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _raise_fd_limit() -> None:
    """Every connection is one."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, wanted), most))


@contextmanager
def _stoppable() -> Iterator[None]:
    """uvicorn, having stopped, sends itself the signal again for whoever waits for it: here that is nobody."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _gc_frozen() -> Iterator[None]:
    """What is there now, some 300,000 objects of libraries and model, is not searched for garbage, which would hold all
    threads for a sixth of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
