"""s3:// against moto's server in this process, which fails as storages do.
tests/io/test_remote.py has the rest."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import psutil
import pytest

pytest.importorskip("s3fs")
pytest.importorskip("moto")
import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from bertworks.cli.main import main
from bertworks.errors import BertworksError
from bertworks.io import remote
from bertworks.io.remote import CLAIM, MANIFEST, Storage, fetched, published
from tests.support import ROOT
from tests.support.tiny import write_corpus, write_recipe

Answer = Callable[[dict[str, Any]], int]


class Server:
    """An S3 that answers some requests with an error."""

    def __init__(self) -> None:
        application = DomainDispatcherApplication(create_backend_app)
        writing = threading.Lock()
        self.fails: Answer = lambda environ: 0  # the status of the answer; 0: it is that of S3
        self.writes: list[str] = []

        def answer(environ: dict[str, Any], start: Any) -> Any:
            if status := self.fails(environ):
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start(f"{status} Failed", [("Content-Type", "application/xml")])
                code = b"InvalidAccessKeyId" if status == 403 else b"InternalError"
                return [b"<Error><Code>%b</Code><Message>We failed.</Message></Error>" % code]
            if environ["REQUEST_METHOD"] != "PUT":
                return application(environ, start)
            self.writes.append(environ["PATH_INFO"])
            # S3 looks for an object and writes it in one step; this server does so in two
            with writing:
                return application(environ, start)

        self._server = make_server("127.0.0.1", 0, answer, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def started() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def s3(
    started: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: Any
) -> Iterator[Server]:
    values = {
        "ACCESS_KEY_ID": "a",
        "SECRET_ACCESS_KEY": "b",
        "ENDPOINT_URL": started.url,
        "DEFAULT_REGION": "us-east-1",
    }
    for name, value in values.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("BERTWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "WAITS", (0.01,) * 5)
    monkeypatch.setattr(remote, "BEAT", 0.05)
    monkeypatch.setattr(remote, "SILENT", 0.5)
    started.fails = lambda environ: 0
    started.writes.clear()
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    yield started
    started.fails = lambda environ: 0
    for found in client.list_objects_v2(Bucket="bucket").get("Contents", ()):
        client.delete_object(Bucket="bucket", Key=found["Key"])
    client.close()


def names() -> list[str]:
    return [
        found["Key"]
        for found in boto3.client("s3").list_objects_v2(Bucket="bucket").get("Contents", ())
    ]


def objects() -> dict[str, bytes]:
    client = boto3.client("s3")
    return {name: client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in names()}


def put(name: str, content: bytes) -> None:
    boto3.client("s3").put_object(Bucket="bucket", Key=name, Body=content)


def sometimes(every: int) -> Answer:
    """Every n-th request fails, with 500 and 503 in turn."""
    count = [0]

    def fails(environ: dict[str, Any]) -> int:
        count[0] += 1
        return (500 if count[0] % (2 * every) else 503) if count[0] % every == 0 else 0

    return fails


def test_bytes_are_those_of_a_disk_although_the_storage_fails_at_times(s3: Server, tmp_path: Path):
    corpus = write_corpus(tmp_path / "a.jsonl", 30)
    put("c/a.jsonl", corpus.read_bytes())
    s3.fails = sometimes(4)
    assert main(["vocab", str(corpus), "-o", str(tmp_path / "tok"), "--size", "300"]) == 0
    assert main(["vocab", "s3://bucket/c", "-o", "s3://bucket/tok", "--size", "300"]) == 0
    assert (fetched("s3://bucket/tok") / "vocab.txt").read_bytes() == (
        tmp_path / "tok" / "vocab.txt"
    ).read_bytes()
    s3.fails = lambda environ: 0
    there = objects()
    files = {
        path.name: path.read_bytes() for path in (tmp_path / "tok").iterdir() if path.name[0] != "."
    }
    manifest = json.loads(there.pop(f"tok/{MANIFEST}"))["files"]
    assert {name: facts["sha256"] for name, facts in manifest.items()} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    assert there == {"c/a.jsonl": corpus.read_bytes()} | {
        f"tok/{name}": content for name, content in files.items()
    }
    assert [name for name in s3.writes if not name.endswith(CLAIM)][-1] == f"/bucket/tok/{MANIFEST}"


def write_folder(url: str, size: int = 10) -> None:
    with published(url) as folder:
        folder.mkdir(exist_ok=True)
        for number in range(4):
            (folder / f"{number}.bin").write_bytes(bytes([number]) * size)


def test_a_torn_upload_is_not_read_and_done_again(s3: Server, tmp_path: Path):
    s3.fails = lambda environ: (
        503 * (environ["PATH_INFO"].endswith("/2.bin") and environ["REQUEST_METHOD"] == "PUT")
    )
    with pytest.raises(
        BertworksError, match=r"s3://bucket/m/2.bin: the storage fails, 6 times"
    ) as error:
        write_folder("s3://bucket/m")
    assert error.value.hint == "run the same command again later"
    assert 1 <= len(objects()) < 4
    with pytest.raises(BertworksError, match="not finished"):
        fetched("s3://bucket/m")
    s3.fails = lambda environ: 0
    write_folder("s3://bucket/m")
    assert sorted(objects()) == [*(f"m/{number}.bin" for number in range(4)), f"m/{MANIFEST}"]
    assert (fetched("s3://bucket/m") / "3.bin").read_bytes() == bytes([3]) * 10


def test_a_lost_answer_of_a_create_is_no_conflict(s3: Server, tmp_path: Path):
    """S3 stores the object, and the answer is an error: the repetition finds the object."""
    calls: list[str] = []

    def fails(environ: dict[str, Any]) -> int:
        if environ["PATH_INFO"] == "/bucket/p" and environ["REQUEST_METHOD"] == "PUT" and not calls:
            calls.append("put")
            put("p", b"portion")
            return 500
        return 0

    s3.fails = fails
    (source := tmp_path / "source").write_bytes(b"portion")
    assert Storage("s3://bucket/p").create("", source)
    assert calls == ["put"]


def test_one_of_many_writers_wins(s3: Server, tmp_path: Path):
    won: list[int] = []

    def write(number: int) -> None:
        (source := tmp_path / f"{number}").write_text(str(number))
        if Storage("s3://bucket/p").create("", source):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert objects() == {"p": str(won[0]).encode()}
    assert len(won) == 1


def test_what_is_wrong_is_said_at_once(s3: Server, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BertworksError, match="no such bucket, folder or file"):
        fetched("s3://nothing/a.csv")
    with pytest.raises(
        BertworksError, match=r"s3://nothing/m.*: there is no such bucket, folder or file"
    ) as error:
        write_folder("s3://nothing/m")
    assert error.value.hint == "check the spelling; a bucket must exist before"
    s3.fails = lambda environ: 403
    with pytest.raises(BertworksError, match="the access is refused") as error:
        write_folder("s3://bucket/m")
    assert "AWS_ACCESS_KEY_ID" in str(error.value.hint)
    s3.fails = lambda environ: 0
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(
        BertworksError,
        match="the access is refused: NoCredentialsError: Unable to locate credentials",
    ):
        fetched("s3://bucket/a.csv")


@pytest.mark.slow
def test_a_killed_upload_is_not_read_and_done_again(s3: Server, tmp_path: Path):
    """SIGKILL in the middle of the files; the same command, after its signs of life ended."""
    script = tmp_path / "upload.py"
    script.write_text(
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from tests.scenarios.test_remote_s3 import remote, write_folder\n"
        "remote.BEAT = 0.05\nwrite_folder('s3://bucket/m', 1000)\n"
    )
    halt = threading.Event()
    s3.fails = lambda environ: 0 * (environ["PATH_INFO"].endswith("/2.bin") and halt.wait(30))
    command = [sys.executable, str(script), str(ROOT)]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=variables)
    while not {"m/0.bin", "m/1.bin", "m/3.bin"} <= objects().keys():
        time.sleep(0.1)
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    halt.set()
    s3.fails = lambda environ: 0
    with pytest.raises(BertworksError, match="not finished"):
        fetched("s3://bucket/m")
    assert "m" + remote.CLAIM in objects()
    write_folder("s3://bucket/m", 1000)
    assert sorted(objects()) == [*(f"m/{number}.bin" for number in range(4)), f"m/{MANIFEST}"]
    assert not [path for path in (tmp_path / "cache" / "work").rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_training_goes_on_elsewhere(processes: int, s3: Server, tmp_path: Path):
    """SIGKILL of the training and all its processes after a checkpoint; the same command on a
    machine without its files has the bits of a training that nothing disturbed."""
    corpus = write_corpus(tmp_path / "a.jsonl")
    longer = [
        ("num_steps = 40", "num_steps = 2500"),
        ("_every = 10", "_every = 500"),
        ("_every = 5", "_every = 100"),
    ]
    recipe = write_recipe(tmp_path / "r.toml", *longer)

    def start(output: str, cache: str) -> subprocess.Popen[bytes]:
        words = [
            str(corpus),
            "-o",
            output,
            "--recipe",
            str(recipe),
            "--workers",
            "1",
            "--device",
            "cpu",
        ]
        words += ["--processes", str(processes)] * (processes > 1)
        variables = os.environ | {"BERTWORKS_CACHE": str(tmp_path / cache), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "bertworks.cli.main", "pretrain", *words]
        return subprocess.Popen(command, env=variables, start_new_session=True)

    assert start(str(tmp_path / "whole"), "none").wait(400) == 0
    process = start("s3://bucket/m", "one")
    while not any(name.endswith("/checkpoint.json") for name in names()):
        time.sleep(0.1)
        assert process.poll() is None
    for one in [*psutil.Process(process.pid).children(recursive=True), process]:
        one.kill()
    process.wait()
    assert "m/" + MANIFEST not in names()
    assert start("s3://bucket/m", "two").wait(400) == 0
    whole = {
        name: (tmp_path / "whole" / name).read_bytes()
        for name in ("model.safetensors", "recipe.toml")
    }
    assert {name: objects()[f"m/{name}"] for name in whole} == whole
    assert not [path for path in (tmp_path / "two" / "work").rglob("*") if path.is_file()]
