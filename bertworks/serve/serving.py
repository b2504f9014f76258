"""A server for one model: the application behind its gate, on a port, until it is told to stop. Not here: what it is
asked (`abilities`) and what HTTP makes of it (`application`)."""

import gc
import ipaddress
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, UsageError
from bertworks.learn.machine import Choice
from bertworks.runs.events import Event
from bertworks.serve.abilities import Abilities
from bertworks.serve.question import Limits

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
    precision: Choice = "auto",
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
            f"others can reach {host}, and there is no token", fix="set BERTWORKS_API_KEY to a long random word"
        )
    with _needs_extra():
        import uvicorn

        from bertworks.serve.application import Application
        from bertworks.serve.connections import Connection
        from bertworks.serve.log import json_log
    with bound(host, port) as listening:  # before the model is read: a port that is not free is told of at once
        abilities = Abilities(model, index=index, device=device, precision=precision, limits=limits)
        application = Application(abilities, token=token, hosts=[host.strip("[]")], stopping=lambda: server.should_exit)
        server, log = uvicorn.Server(uvicorn.Config(application.asgi, http=Connection, **_SETTINGS)), json_log()
        _many_files()
        at = listening.getsockname()
        url = f"http://[{at[0]}]:{at[1]}/" if ":" in at[0] else f"http://{at[0]}:{at[1]}/"
        yield Event("note", f"{abilities.name} at {url}", {"url": url, "abilities": abilities.info["abilities"]})
        with _stoppable(), _little_garbage():
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
        raise BertworksError(f"cannot serve there: {reason}", where=f"{host}:{port}", fix="--port 0") from None
    # Connections inherit it; asyncio sets it only for sockets that it made. Without it the body of an answer would wait
    # until the client has acknowledged the head, which it puts off for 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _many_files() -> None:
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
def _little_garbage() -> Iterator[None]:
    """What is there now, some 300,000 objects of libraries and model, is not searched for garbage, which would hold all
    threads for a sixth of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _needs_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise BertworksError(
            f"a server needs what is not installed: {error}", fix='pip install "bertworks[serve]"'
        ) from error
