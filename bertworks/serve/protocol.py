"""Limit what uvicorn does not limit: the size and the time of the head of a request."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0  # to receive the head of a request
KEPT_HEAD = 65_536  # bytes of a head after which it is not read on


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
