"""Servers for tests: the application without a port, and a whole process with one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import torch

from bertworks.checkpoints.model_folder import save_model
from bertworks.checkpoints.task_config import save_task, task_settings
from bertworks.models.config import EncoderConfig
from bertworks.serve.application import Application
from bertworks.serve.batching import Batcher, Limits
from bertworks.serve.endpoints import Abilities
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from bertworks.training.device import PrecisionOption
from tests.support.fine import tokenizer

URL = "http://127.0.0.1:8080"


VOCABULARY = cache(tokenizer)


def write_head(folder: Path, **description: Any) -> Path:
    """A tiny model with a head of random weights."""
    d = TaskConfig(max_length=64, max_question=8, stride=8, **description)
    config = EncoderConfig(
        vocab_size=VOCABULARY().vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    torch.manual_seed(1)
    save_model(
        folder,
        TaskModel(config, task_of(d).head()).state_dict(),
        config,
        VOCABULARY(),
        card="tiny",
        head=task_settings(d),
    )
    save_task(d, folder)
    return folder


class Local:
    """An application without a port."""

    def __init__(
        self,
        model: Path,
        *,
        index: Path | None = None,
        precision: PrecisionOption = "auto",
        limits: Limits | None = None,
        token: str = "",
        **options: Any,
    ):
        self.abilities = Abilities(
            model, index=index, device="cpu", precision=precision, limits=limits, **options
        )
        self.application = Application(self.abilities, token=token)

    def __enter__(self) -> "Local":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.application.close()

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        return self.all([(method, path, request)])[0]

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.send("POST", path, json=body)

    def all(self, requests: Sequence[tuple[str, str, dict[str, Any]]]) -> list[httpx.Response]:
        """At once."""

        async def go() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.application)
            async with httpx.AsyncClient(transport=transport, base_url=URL, timeout=60) as client:
                return await asyncio.gather(
                    *(client.request(method, path, **r) for method, path, r in requests)
                )

        return asyncio.run(go())


def waiting(batcher: Batcher) -> int:
    """Jobs that no batch has taken."""
    return sum(len(jobs) for queues in batcher._waiting.values() for jobs in queues.values())


async def ask_until(
    gone: asyncio.Event, application: Application, path: str, body: Any
) -> tuple[int, Any]:
    """The status and the answer of a request whose client stays until it is `gone`."""
    messages = iter([{"type": "http.request", "body": json.dumps(body).encode()}])
    sent = list[Any]()

    async def receive() -> Any:
        for message in messages:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    await application(scope, receive, send)
    return int(sent[0]["status"]), json.loads(sent[1]["body"])


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`bertworks serve` on a free port, and its address; killed at the end, should it still be
    there."""
    command = [
        sys.executable,
        "-m",
        "bertworks.cli.main",
        "serve",
        *arguments,
        "--port",
        "0",
        "--json",
    ]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            assert line, running.stderr and running.stderr.read()
            yield running, json.loads(line)["url"]
        finally:
            running.kill()


def stop(running: subprocess.Popen[str]) -> tuple[int, float, list[dict[str, Any]]]:
    """SIGTERM: the exit code, seconds, the lines of the log."""
    begin = time.monotonic()
    running.send_signal(signal.SIGTERM)
    _, log = running.communicate(timeout=30)
    return (
        running.returncode,
        time.monotonic() - begin,
        [json.loads(line) for line in log.splitlines()],
    )
