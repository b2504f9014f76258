"""Work in the processes of a Ray cluster."""

import socket

import pytest

from bertworks.io.ray_engine import _check_head


def test_a_head_that_is_lost() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        head = f"127.0.0.1:{server.getsockname()[1]}"
        _check_head(head)
    with pytest.raises(ConnectionError, match="does not answer"):
        _check_head(head)
    _check_head(None)
