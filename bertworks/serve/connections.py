"""A connection to the server, as uvicorn has it, that does not wait for ever for the head of a request. Only `serving`
imports it, for it needs uvicorn."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0  # in which the head of a request has to come


class Connection(H11Protocol):
    """Closed when the head of a request, once a byte of it or the connection itself was there, does not come in time,
    however slowly it drips."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect(self) -> None:
        """A head is awaited, where none is there."""
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _forget(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
