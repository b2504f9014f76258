"""Work in the processes of a Ray cluster, by a stand-in for Ray that computes in this process. Ray
itself runs in the slow tests of test_file_job.py."""

import socket
import sys
from collections.abc import Callable, Generator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bertworks.errors import BertworksError
from bertworks.io.ray_engine import in_ray


class RayError(Exception):
    """The base of the errors of Ray."""


def squares(offset: int) -> Callable[[list[int]], int]:
    def work(value: list[int]) -> int:
        if value[0] < 0:
            raise ValueError(f"{value[0]} is negative")
        return value[0] ** 2 + offset

    return work


def cluster(head: str) -> Any:
    """Return a stand-in for the module of Ray, connected to a head."""

    def remote(**needs: float) -> Callable[[Callable[..., Any]], Any]:
        assert needs == {"max_retries": 2, "num_cpus": 1, "num_gpus": 0}
        return lambda function: SimpleNamespace(remote=partial(partial, function))

    ray: Any = ModuleType("ray")
    ray.exceptions = SimpleNamespace(
        RayError=RayError,
        LocalRayletDiedError=type("LocalRayletDiedError", (RayError,), {}),
        RaySystemError=type("RaySystemError", (RayError,), {}),
    )
    ray.is_initialized = lambda: True
    ray.get_runtime_context = lambda: SimpleNamespace(gcs_address=head)
    ray.cluster_resources = lambda: {"CPU": 2.0}
    ray.remote = remote
    ray.wait = lambda references, **_: (references[:1], references[1:])
    ray.get = lambda reference: reference()
    ray.cancel = lambda reference, force: None
    return ray


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Generator[socket.socket, None, None]:
    """A head that answers until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setitem(sys.modules, "ray", cluster(f"127.0.0.1:{server.getsockname()[1]}"))
        yield server


def results(values: list[int], address: str = "ray") -> Generator[Any, None, None]:
    inputs = ([value] for value in values)
    name = f"{__name__}:squares"
    return in_ray(
        name,
        [1],
        inputs,
        None,
        ended="{value} ended: {how}",
        hint="again",
        tries=3,
        address=address,
        threads=1,
        gpus=0,
    )


def test_each_input_has_its_result(head: socket.socket) -> None:
    assert list(results([*range(9)])) == [n * n + 1 for n in range(9)]


def test_an_error_of_a_task_is_that_of_the_job(head: socket.socket) -> None:
    work = results([1, -2, 3, 4, 5, 6])
    assert next(work) == 2
    with pytest.raises(ValueError, match="-2 is negative"):
        next(work)


def test_a_task_that_ended_its_process_is_named(head: socket.socket) -> None:
    def crash(reference: Any) -> None:
        raise RayError("the worker died\nat an address")

    sys.modules["ray"].get = crash  # type: ignore[attr-defined]
    with pytest.raises(BertworksError, match=r"^\[7\] ended: RayError: the worker died"):
        list(results([7]))


def test_a_client_cannot_see_the_head(head: socket.socket) -> None:
    head.close()
    assert list(results([3], "ray://127.0.0.1:10001")) == [10]


def test_a_head_that_is_lost(head: socket.socket) -> None:
    work = results([*range(9)])
    assert next(work) == 1
    head.close()
    with pytest.raises(BertworksError, match=r"Ray head was lost: .* does not answer"):
        list(work)
