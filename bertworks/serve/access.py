"""Check who sends a request, and whether it may.

The size of its head, doubled headers, tokens, names of the server, pages of other servers.
"""

import hmac
import ipaddress
import re
from collections.abc import Callable, Collection

from starlette.requests import Request

from bertworks.serve.batching import grant

MAX_HEAD = 16_384  # bytes of a head
SINGLE_HEADERS = (
    b"host",
    b"origin",
    b"authorization",
    b"content-length",
    b"content-type",
    b"transfer-encoding",
)


class Access:
    """The rules of a server.

    Args:
        token: required for all requests that are not public. Several: one on each line. "": no
            token, and only the server's own page may send requests.
        hosts: names of the server, in addition to those of this machine; used only without a token.
        stopping: whether the server is shutting down.
    """

    def __init__(self, token: str, hosts: Collection[str], stopping: Callable[[], bool]):
        self._tokens = list(filter(None, token.encode().splitlines()))
        self._hosts = {"localhost", "127.0.0.1", "::1", *hosts}
        self._stopping = stopping

    def client(self, request: Request, *, is_public: bool) -> str:
        """Return who sends a request: a token, if there are several, or else an address.

        Args:
            is_public: whether the request needs no token.

        Raises:
            RequestError: the request is refused.
        """
        scope = request.scope
        headers = dict(request.scope["headers"])
        size = (
            len(scope["raw_path"])
            + len(scope["query_string"])
            + sum(len(k) + len(v) for k, v in scope["headers"])
        )
        grant(size <= MAX_HEAD, 431, f"the head has {size:,} bytes: expected {MAX_HEAD:,} at most")
        names = [name for name, _ in scope["headers"]]
        for header in SINGLE_HEADERS if len(names) > len(headers) else ():
            what = f"the header {header.decode().title()} is there twice"
            grant(names.count(header) < 2, 400, what)
        grant(not self._stopping(), 503, "the server is stopping")
        address = request.client.host if request.client else ""
        if ":" in address:  # one user has all addresses of such a network
            address = str(ipaddress.ip_network(f"{address.partition('%')[0]}/64", strict=False))
        if self._tokens:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            matches = [hmac.compare_digest(token, known) for known in self._tokens]
            is_authorized = any(matches) and scheme.lower() == b"bearer"
            what = "expected the header Authorization: Bearer TOKEN"
            grant(is_public or is_authorized, 401, what, headers={"www-authenticate": "Bearer"})
            return f"token {matches.index(True)}" if is_authorized and len(matches) > 1 else address
        host = headers.get(b"host", b"").decode("latin-1")
        origin = headers.get(b"origin")
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        grant(name in self._hosts, 403, f"this server is not called {host[:100]!r}")
        is_own = origin is None or origin.decode("latin-1").partition("://")[2] == host
        grant(
            is_own,
            403,
            "the request comes from a page of another server; set a token to allow that",
        )
        return address
