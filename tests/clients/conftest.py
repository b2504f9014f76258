"""What the tests of other programs share: the servers that `run.py` has started, and servers of
their own."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

Starter = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def servers() -> Mapping[str, str]:
    """Return the address of each server, without a slash at its end, by the name of its model in
    `run.MODELS`."""
    addresses: dict[str, str] = json.loads(os.environ["BERTWORKS_SERVERS"])
    return addresses


@pytest.fixture(scope="session")
def models() -> Path:
    """Return the folder in which each model of `run.MODELS` has a folder of its name."""
    return Path(os.environ["BERTWORKS_MODELS"])


@pytest.fixture(scope="session")
def serve() -> Starter:
    """Return what starts a server of a model, with options and variables of its process, and yields
    its address."""

    @contextmanager
    def start(model: Path, *options: str, **variables: str) -> Iterator[str]:
        command = [
            os.environ["BERTWORKS_PYTHON"],
            "-m",
            "bertworks.cli.main",
            "serve",
            model,
            *options,
        ]
        command += ["--port", "0", "--json"]
        root = str(Path(__file__).parents[2])
        environment = os.environ | {"PYTHONPATH": root} | variables
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as running:
            try:
                assert running.stdout is not None
                yield json.loads(running.stdout.readline())["url"].rstrip("/")
            finally:
                running.kill()

    return start
