"""The protocol: trailers are no headers, and a request can abort its connection."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from bertworks.serve.protocol import Connection
from bertworks.serve.server import _SETTINGS as SETTINGS


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 1), "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    close = abort

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def test_lines_after_a_body_are_no_headers_and_a_connection_can_be_aborted() -> None:
    scopes = list[Any]()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def go() -> None:
        config = uvicorn.Config(application, http=Connection, **SETTINGS)
        config.load()
        connection, wire = Connection(config, ServerState(), {}), Wire()
        connection.connection_made(wire)
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.data_received(head + b"1\r\nx\r\n0\r\nAuthorization: Bearer y\r\n\r\n")
        while b"ok" not in wire.written:
            await asyncio.sleep(0.001)
        assert wire.written.startswith(b"HTTP/1.1 200 ")
        (scope,) = scopes
        assert [name for name, _ in scope["headers"]] == [b"host", b"transfer-encoding"]
        assert not wire.is_aborted
        scope["abort"]()
        assert wire.is_aborted

    asyncio.run(go())
