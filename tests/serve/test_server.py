"""A server as a process: clients that know nothing of it, connections that behave badly, and how it
ends."""

import base64
import fcntl
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from bertworks.cli.main import main
from bertworks.inference.embedder import Embedder
from bertworks.serve.application import LogHandler
from bertworks.serve.server import bound, serve
from tests.support.served import process, stop

Server = tuple[subprocess.Popen[str], str]


@pytest.fixture(scope="module")
def openai() -> ModuleType:
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with process(str(model), "--precision", "fp32") as running:
        yield running


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=20)


def answered(connection: socket.socket) -> bytes:
    """The first that comes."""
    return connection.recv(1 << 16)


def drip(connection: socket.socket) -> None:
    """A byte now and then, until nobody takes them."""
    for _ in range(60):
        connection.sendall(b"G")
        time.sleep(0.5)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openais_client_works_unchanged(
    openai: ModuleType, server: Server, model: Path, encoding: str | None
):
    texts = ["good film", "sad dogs 😀"]
    ours = Embedder(model, device="cpu", normalize=True, precision="fp32").embed(texts)
    settings = {} if encoding is None else {"encoding_format": encoding}
    with openai.OpenAI(base_url=f"{server[1]}v1", api_key="none") as client:
        found = client.embeddings.create(model="text-embedding-3-small", input=texts, **settings)
        assert client.models.list().data[0].id == model.name
        with pytest.raises(openai.BadRequestError, match="input"):
            client.embeddings.create(model="any", input=[])
    vectors = [
        np.frombuffer(base64.b64decode(one.embedding), "<f4")
        if isinstance(one.embedding, str)
        else one.embedding
        for one in found.data
    ]
    np.testing.assert_allclose(vectors, ours, atol=1e-5)
    assert found.usage.total_tokens > 0


def test_requests_as_clients_of_text_embeddings_inference_send_them(server: Server):
    with httpx.Client(base_url=server[1]) as client:
        body = {
            "inputs": ["good film"],
            "normalize": True,
            "truncate": False,
            "truncation_direction": "Right",
        }
        assert (
            len(client.post("/embed", json=body).json()[0])
            == client.get("/info").json()["dimension"]
        )
        assert client.get("/health").status_code == 200
        requested = {"source_sentence": "good film", "sentences": ["good film", "sad dogs"]}
        assert client.post("/similarity", json={"inputs": requested}).json()[0] == pytest.approx(
            1, abs=1e-5
        )
        assert client.get("/metrics").text.count("te_request_count") > 1


def test_ten_megabytes_and_a_million_texts_are_too_much(server: Server):
    with httpx.Client(base_url=server[1], headers={"content-type": "application/json"}) as client:
        for body in (
            b'{"inputs": "' + b"a" * 10_000_000 + b'"}',
            json.dumps({"inputs": ["a"] * 10**6}).encode(),
        ):
            assert client.post("/embed", content=body).status_code == 413
            assert client.post("/embed", json={"inputs": "a"}).status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\n" + b"X: x\r\n" * 40_000 + b"\r\n",
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nX: "
        + b"x" * 20_000
        + b"\r\nContent-Length: 0\r\n\r\n",
        b"\r\n" * 40_000,
        b"GET /" + b"\xc3\xa4" + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=[
        "header",
        "path",
        "TLS",
        "length",
        "chunks",
        "headers",
        "gate",
        "blank",
        "umlaut",
        "CONNECT",
    ],
)
def test_what_is_no_request_is_refused(server: Server, head: bytes):
    with connected(server[1]) as connection:
        connection.sendall(head)
        assert answered(connection).startswith(b"HTTP/1.1 4")
    assert httpx.get(f"{server[1]}health").status_code == 200


def test_lines_after_a_body_are_no_headers_and_are_not_kept(model: Path):
    """Here they would give the token that the head did not."""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = b'Transfer-Encoding: chunked\r\n\r\nf\r\n{"inputs": "a"}\r\n0\r\n'
    with process(str(model), BERTWORKS_API_KEY="secret") as (_, url):
        for line, status in (
            (b"Authorization: Bearer secret\r\n", b" 401 "),
            (b"X: x\r\n" * 40_000, b" 4"),
        ):
            with connected(url) as connection:
                connection.sendall(head + body + line + b"\r\n")
                assert status in answered(connection)


def test_silent_connections_keep_no_other_away(server: Server):
    silent = [connected(server[1]) for _ in range(200)]
    for connection in silent[:100]:
        connection.sendall(b"POST /embed HTTP/1.1\r\nHost: ")
    assert httpx.post(f"{server[1]}embed", json={"inputs": "a"}).status_code == 200
    for connection in silent:
        connection.close()


@pytest.mark.slow
def test_a_head_or_a_body_that_never_comes_is_not_waited_for(server: Server):
    dripping, unfinished, silent = (connected(server[1]) for _ in range(3))
    head = (
        "POST /embed HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "Content-Length: 9",
    )
    unfinished.sendall("\r\n".join([*head, "", "{"]).encode())
    with pytest.raises(OSError):
        drip(dripping)
    assert answered(silent) == b""
    assert b" 408 " in answered(unfinished)
    for connection in (dripping, unfinished, silent):
        connection.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged(host: str):
    with bound(host, 0) as listening, socket.create_connection(listening.getsockname()[:2]):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_garbage_is_not_searched_for_in_what_was_there_before(model: Path):
    """Which would hold all threads for long, libraries being large."""
    frozen: list[int] = []

    def ask() -> None:
        try:
            httpx.get(f"{url}health", timeout=60).raise_for_status()
            frozen.append(gc.get_freeze_count())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    served = serve(model, port=0, device="cpu")
    url = next(served).fields["url"]
    asking = threading.Thread(target=ask)
    asking.start()
    assert [event.kind for event in served] == ["done"]
    asking.join()
    assert frozen[0] > 100_000
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_server_in_int8_names_the_commands_that_measure_its_price(
    precision: str, model: Path, monkeypatch: pytest.MonkeyPatch
):
    # nothing is computed whose value matters
    monkeypatch.setattr("bertworks.models.transformer.cpu_supports_int8", lambda: True)
    served = serve(model, port=0, device="cpu", precision=precision)
    address = next(served).text
    served.close()
    assert ("--precision int8" in address) is (precision == "int8")


def test_stopping_it_answers_open_requests(model: Path):
    long = {"inputs": ["the film was a story of men and dogs " * 8] * 800}
    with process(str(model)) as (running, url), httpx.Client(base_url=url, timeout=60) as client:
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(client.post("/embed", json=long)))
        asking.start()
        while "te_queue_network 0.0" in httpx.get(f"{url}metrics").text and not answers:
            time.sleep(0.01)
        early = bool(answers)
        code, seconds, log = stop(running)
        asking.join(30)
        assert not early
        assert (answers[0].status_code, len(answers[0].json())) == (200, 800)
        assert (code, log[-1]["message"]) == (0, "stopped")
        assert seconds < 10
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="not Linux")
def test_a_log_that_is_not_read_delays_no_request(model: Path):
    with process(str(model)) as (running, url), httpx.Client(base_url=url, timeout=60) as client:
        assert running.stderr is not None
        fcntl.fcntl(running.stderr, fcntl.F_SETPIPE_SZ, 1 << 16)
        for _ in range(600):
            client.get("/info").raise_for_status()
        begin = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
        assert time.monotonic() - begin < 10
        lines = [json.loads(line) for line in running.stderr.read().splitlines()]
        assert 200 < len(lines) < 600


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="not Linux")
def test_lines_that_find_no_room_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bertworks.serve.application.PIPE_BYTES", 4096)
    read, write = os.pipe()
    with os.fdopen(read) as reader, os.fdopen(write):
        handler, written = LogHandler(write), 0
        while not handler._lost:
            handler.handle(
                logging.makeLogRecord({"msg": f"line {written}", "fields": {"status": 200}})
            )
            written += 1
        handler.handle(logging.makeLogRecord({"msg": "another"}))
        lines = [json.loads(reader.readline()) for _ in range(written - 1)]
        assert [line["message"] for line in lines] == [
            f"line {number}" for number in range(written - 1)
        ]
        assert lines[0]["status"] == 200
        try:
            raise ValueError("long " * 10_000)
        except ValueError:
            handler.handle(logging.makeLogRecord({"msg": "last", "exc_info": sys.exc_info()}))
        lost, last = (json.loads(reader.readline()) for _ in range(2))
    assert (lost["level"], lost["message"], lost["lost"]) == (
        "warning",
        "lines of the log were lost",
        2,
    )
    assert last["traceback"].endswith("long long ")


def test_a_write_that_fails_is_counted(monkeypatch: pytest.MonkeyPatch):
    failures, written = [OSError(28, "No space left on device")] * 2, list[bytes]()

    def write(_: int, content: bytes) -> int:
        if failures:
            raise failures.pop()
        written.append(content)
        return len(content)

    monkeypatch.setattr("bertworks.serve.application.os.write", write)
    handler = LogHandler()
    for number in range(3):
        handler.handle(logging.makeLogRecord({"msg": number}))
    assert [json.loads(line).get("lost") for line in b"".join(written).splitlines()] == [2, None]


def test_a_token_and_a_full_server_from_outside(openai: ModuleType, model: Path):
    settings = ["--host", "0.0.0.0", "--max-concurrent-requests", "1"]
    with process(str(model), *settings, BERTWORKS_API_KEY="sesame-of-16-chars") as (running, url):
        port = urlsplit(url).port
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            assert client.post("/embed", json={"inputs": "a"}).status_code == 401
            client.headers["authorization"] = "Bearer sesame-of-16-chars"
            assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="sesame-of-16-chars", max_retries=0
        )
        assert client.embeddings.create(model="any", input="a").data
        client.close()
        assert stop(running)[0] == 0


def test_what_cannot_be_served_is_refused_in_a_line(
    model: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["serve", str(model), "--host", "0.0.0.0"]) == 2
    assert "BERTWORKS_API_KEY" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(model), "--port", str(taken.getsockname()[1])]) == 1
    assert "in use" in capsys.readouterr().err
    assert main(["serve", str(model / "nowhere"), "--port", "0"]) == 1
    assert "no such model folder" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(model: Path):
    code = (
        "import sys; sys.modules['uvicorn'] = None; from bertworks.cli.main import main; "
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "serve", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert (done.returncode, done.stdout) == (1, "")
    assert 'pip install "bertworks[serve]"' in done.stderr
