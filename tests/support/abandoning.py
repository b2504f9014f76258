"""A client that sends requests and does not wait for their answers: a process of
`tests/scenarios/test_serve_flood.py`.

    python abandoning.py URL PATH COUNT < BODY

It opens COUNT connections from 127.0.0.2, sends the body over each, and closes them after half a
second.
"""

import asyncio
import contextlib
import sys
from urllib.parse import urlsplit

SECONDS = 0.5


async def abandon(host: str, port: int, request: bytes) -> None:
    """Send one request, and close the connection without reading an answer."""
    with contextlib.suppress(OSError):  # the server may have closed it already
        _, writer = await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0))
        writer.write(request)
        await asyncio.sleep(SECONDS)
        writer.transport.abort()


async def main(url: str, path: str, count: int, body: bytes) -> None:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 0
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    await asyncio.gather(*(abandon(host, port, request) for _ in range(count)))


if __name__ == "__main__":
    address, where, number = sys.argv[1:]
    asyncio.run(main(address, where, int(number), sys.stdin.buffer.read()))
