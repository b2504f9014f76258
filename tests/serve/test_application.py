"""Connections, who may ask a server, paths, bodies and errors."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from bertworks.serve.application import Connection
from bertworks.serve.server import _SETTINGS as SETTINGS
from tests.serve.test_endpoints import JSON, TEXTS, models as models, words as words
from tests.support.served import URL, Local


def test_errors_say_where(words: Local):
    assert "inputs[1]" in words.post("/embed", {"inputs": ["a", 1]}).json()["error"]
    assert "top_k" in words.post("/fill", {"inputs": "[MASK]", "top_k": 101}).json()["error"]
    error = words.post("/search", {"query": "a", "ranking": "best"}).json()["error"]
    assert (
        """ranking: Invalid enum value 'best': expected one of "hybrid", "dense", "bm25\""""
        in error
    )
    body = {
        "inputs": {"source_sentence": "a", "sentences": ["b"]},
        "parameters": {"truncation_direction": "Both"},
    }
    assert 'expected one of "Left", "Right"' in words.post("/similarity", body).json()["error"]
    assert "[MASK]" in words.post("/fill", {"inputs": "a"}).json()["error"]
    assert "message" in words.post("/v1/embeddings", {"input": [], "model": "a"}).json()["error"]
    for ids in ([1, 2], [[1, 2], [3]]):
        answer = words.post("/v1/embeddings", {"input": ids, "model": "a"})
        assert "no ids of tokens" in answer.json()["error"]["message"]
        assert answer.status_code == 400


def test_other_paths_methods_and_types(words: Local):
    assert words.send("GET", "/embed").status_code == 405
    assert words.send("GET", "/etc/passwd").status_code == 404
    assert words.send("GET", "/..%2f..%2fetc/passwd").status_code == 404
    plain = {"content-type": "text/plain"}
    assert (
        words.send("POST", "/embed", content=b'{"inputs": "a"}', headers=plain).status_code == 415
    )
    assert ", /embed, " in words.send("GET", "/classify").json()["error"]


@pytest.mark.parametrize(
    ("further", "status"),
    [
        ({}, 200),
        ({"origin": URL}, 415),
        ({"sec-fetch-site": "cross-site"}, 415),
        ({"origin": "http://evil.example"}, 403),
    ],
)
def test_the_type_of_forms_is_accepted_from_programs_only(
    further: dict[str, str], status: int, words: Local
):
    """curl -d sends it; a page of another site could send it too, without a question before."""
    headers = {"content-type": "application/x-www-form-urlencoded"} | further
    answer = words.send("POST", "/embed", content=b'{"inputs": "a"}', headers=headers)
    assert answer.status_code == status


def test_a_body_that_does_not_say_how_long_it_is(words: Local):
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 10_000

    assert words.send("POST", "/embed", content=parts(), headers=JSON).status_code == 413


def test_every_answer_keeps_browsers_strict(words: Local):
    for path in ("/", "/info", "/nowhere"):
        headers = words.send("GET", path).headers
        assert headers["content-security-policy"].startswith(
            "default-src 'none'; script-src 'self';"
        )
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == (
            "nosniff",
            "no-referrer",
        )
    assert "text/html" in words.send("GET", "/").headers["content-type"]
    assert "text/javascript" in words.send("GET", "/page.js").headers["content-type"]


def test_figures_for_prometheus(words: Local):
    words.post("/embed", {"inputs": TEXTS})
    words.send("GET", "/nowhere/with/ever/other/names")
    text = words.send("GET", "/metrics").text
    for name in (
        "te_request_count",
        "te_request_duration_bucket",
        "te_batch_next_tokens_sum",
        "te_queue_network",
    ):
        assert name in text
    assert 'method="other"' in text
    assert "nowhere" not in text


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


def test_a_server_with_a_token_asks_for_it(models: dict[str, Path]):
    with Local(models["words"], token="sesame-öffne") as local:
        for path in ("/", "/page.js", "/page.css", "/health"):
            assert local.send("GET", path).status_code == 200
        for given in (
            {},
            {"authorization": "Bearer x"},
            {"authorization": "sesame"},
            {"authorization": b"Bearer \xff"},
        ):
            answer = local.send("GET", "/info", headers=given)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert local.send("GET", "/metrics", headers=given).status_code == 401
        right = {"authorization": "Bearer sesame-öffne".encode(), "host": "anything.example"}
        assert local.send("GET", "/info", headers=right).status_code == 200
        assert local.send("GET", "/openapi.json", headers=right).json()["components"][
            "securitySchemes"
        ]


def test_pages_of_others_may_not_ask(words: Local):
    for headers in (
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8080"},
        {"host": "["},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "http://["},
        {"origin": "127.0.0.1:8080"},
    ):
        assert words.send("GET", "/info", headers=headers).status_code == 403, headers
    for headers in (
        {"host": "localhost:8080"},
        {"host": "[::1]:8080"},
        {"origin": "http://127.0.0.1:8080"},
    ):
        assert words.send("GET", "/info", headers=headers).status_code == 200, headers


def test_who_is_let_in(model: Path, monkeypatch: pytest.MonkeyPatch):
    def status(**headers: str) -> int:
        return local.send("GET", "/info", headers=headers).status_code

    with Local(model) as local:
        assert status(x="x" * 16_000) == 200
        assert status(x="x" * 17_000) == 431
        monkeypatch.setattr(local.application.access, "is_stopping", True)
        assert status() == 503
    with Local(model, token="sesame") as local:
        assert status() == 401
        assert status(authorization="Basic sesame") == 401
        assert status(authorization="bearer sesame") == 200
