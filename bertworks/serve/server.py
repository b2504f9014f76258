"""The process of a server for one model: port, signals and shutdown."""

import gc
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertworks.errors import UsageError, explain_os_errors, optional_import
from bertworks.events import Event, JsonObject
from bertworks.io.system import raise_file_limit
from bertworks.runs.run_folder import signal_handler
from bertworks.training.device import limit_kernel_caches, use_one_heap

MAX_FILES = 1 << 16  # open at the same time: more than the accepted requests
# that a thread computes in Python while others wait: a small request changes threads six times
SWITCH_SECONDS = 0.0005
MIN_TOKEN = 16  # characters of a token, if other machines can reach the server
NEW_TOKEN = (
    'export BERTWORKS_API_KEY="$(python3 -c "import secrets; print(secrets.token_urlsafe())")"'
)
# Of uvicorn. An idle connection is closed after 75 seconds: longer than in proxies (60), which else
# may use one that is being closed. After SIGTERM there are 8 seconds to answer accepted requests.
_SETTINGS: JsonObject = {
    "ws": "none",
    "lifespan": "off",
    "loop": "auto",
    "log_config": None,
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    "timeout_keep_alive": 75,
    "timeout_graceful_shutdown": 8,
}


def serve(
    model: str | Path, *, host: str = "127.0.0.1", port: int = 8080, token: str = "", **options: Any
) -> Iterator[Event]:
    """Serve a model until SIGTERM or Ctrl-C.

    Then requests that are being computed are answered, and those that wait and new ones are
    refused. The first event holds the address, the last reports the end.

    Args:
        model: a folder, pre-trained, fine-tuned, exported or of sentence-transformers; `minilm`; a
            hub id.
        host, port: the address; port 0: any free port.
        token: required in every request; necessary if other machines can reach the server. Several,
            one on each line: one for each client, which then all get their share of the server.
        options: see `Abilities`.

    Raises:
        BertworksError: no such model or index, the port is in use, or the extra `serve` is not
            installed.
        UsageError: no token, or a short one, for a server that other machines can reach.
    """
    with optional_import("a server", '"bertworks[serve]"'):
        import uvicorn

        from bertworks.serve.application import Application, Connection, json_log
        from bertworks.serve.endpoints import Abilities
    with bound(host, port) as listening:  # before the model is read: report a used port at once
        name, number = listening.getsockname()[:2]
        if (
            min(map(len, token.splitlines()), default=0) < MIN_TOKEN
            and not ipaddress.ip_address(name).is_loopback
        ):
            raise UsageError(
                f"other machines can reach {host}: expected a token of {MIN_TOKEN} characters "
                "or more",
                hint=NEW_TOKEN,
            )
        use_one_heap()  # before there are threads
        limit_kernel_caches()  # before anything is computed
        abilities = Abilities(model, **options)
        application = Application(abilities, token=token, hosts=[host.strip("[]")])

        class Server(uvicorn.Server):
            def handle_exit(self, *signal: Any) -> None:
                """Called when a signal arrives."""
                application.access.is_stopping = True
                super().handle_exit(*signal)

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                """Called in the event loop, within a tenth of a second after the signal."""
                application.pipeline.end_waiting()
                await super().shutdown(sockets)

        server = Server(uvicorn.Config(application, http=Connection, **_SETTINGS))
        log = json_log()
        application.pipeline.measure_speed()
        raise_file_limit(MAX_FILES)  # every connection is an open file
        url = f"http://[{name}]:{number}/" if ":" in name else f"http://{name}:{number}/"
        price = ""
        if abilities.info.get("model_dtype") == "int8":
            price = (
                ", slightly less accurate in int8: embed, predict and evaluate task with "
                "--precision int8 say by how much"
            )
        yield Event(
            "note",
            f"{abilities.name} at {url}{price}",
            {"url": url, "abilities": abilities.info["abilities"]},
        )
        # Exclude the present objects, some 300,000 of libraries and model, from garbage collection,
        # which would stop all threads for 0.17 seconds.
        gc.collect()
        gc.freeze()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            # uvicorn raises the signal again after its shutdown. Here the shutdown is all that is
            # needed.
            with signal_handler(lambda *_: None, signal.SIGINT, signal.SIGTERM):
                server.run(sockets=[listening])
        finally:
            gc.unfreeze()
            sys.setswitchinterval(interval)
    application.close()
    log.info("stopped")
    yield Event("done", "stopped", {"requests": server.server_state.total_requests})


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        BertworksError: the address cannot be used.
    """
    name = host.strip("[]")
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    with explain_os_errors("cannot listen", f"{host}:{port}", "--port 0"):
        listening = socket.create_server((name, port), family=family, backlog=2048)
    # Connections inherit it; asyncio sets it only for its own sockets. Without it the body of an
    # answer would wait until the client has acknowledged the head, which may take 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
