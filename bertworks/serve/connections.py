"""HTTP connections with limits on the size of the request head and on its time. It needs uvicorn and httptools."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 10.0  # in which the head of a request has to come
HEAD_BYTES = 65_536  # that are kept of one; the gate, which says what is wrong, takes fewer


class Connection(HttpToolsProtocol):
    """Closed when the head of a request, once a byte of it or the connection itself was there, does not come in time,
    however slowly it drips; when the rest of a body that nobody reads does not; and when the lines before, or after, a
    body are too long."""

    _head: asyncio.TimerHandle | None = None
    _reading = _inside = False  # a request; its body
    _ended = _size = _unknown = 0  # requests; bytes of lines of this one; bytes of which the parser made nothing yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        ended, self._unknown = self._ended, self._unknown + len(data)
        super().data_received(data)
        if self._unknown > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("A line is too long.")
        unread = self._inside and self.cycle.response_complete
        nothing = not self._inside and self._ended == ended  # a part of a head, or blank lines
        if unread or nothing or (self._reading and not self._inside):
            self._expect()
        else:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._reading, self._inside, self._size = True, False, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._add(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._add(len(name) + len(value))
        if not self._inside:  # a line after the body is no header, though uvicorn would take it for one
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._inside = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unknown = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._reading = self._inside = False
        self._ended, self._unknown = self._ended + 1, 0
        super().on_message_complete()

    def _add(self, size: int) -> None:
        """Raises, through the parser, what becomes a 400."""
        self._size, self._unknown = self._size + size, 0
        if self._size > HEAD_BYTES:
            raise ValueError

    def _expect(self) -> None:
        """The end of what is being sent is awaited."""
        if self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
