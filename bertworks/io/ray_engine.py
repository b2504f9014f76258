"""Work in the processes of a Ray cluster, with the signature of `processes.in_processes`.

Only Ray Core is used: tasks.

Ray schedules, and tries a task again when its process or its node is lost. What a task makes is a
file with the same bytes each time (`file_job`), so a task that runs twice does no harm.
"""

import json
import os
import signal
import socket
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pkgutil import resolve_name
from typing import Any

from bertworks.errors import BertworksError, UsageError, optional_import

_START = "start it there: ray start --head; set RAY_AUTH_TOKEN to its token; or --on local"
_SECONDS = 5.0  # for a head to accept a connection
# seconds without a result before the head is looked for: Ray itself waits for a minute, and ends
_BETWEEN_CHECKS = 2.0
_LOST = "the connection to the Ray head was lost: {}"
_AFTER_LOSS = (
    "start the cluster again, then the same command: finished chunks are kept; or --on local"
)


@cache
def _work(maker: str, settings: str) -> Callable[[Any], Any]:
    """Return the function of a job.

    A process makes it once: it may hold a model.
    """
    work: Callable[[Any], Any] = resolve_name(maker)(*json.loads(settings))
    return work


def call(maker: str, settings: str, value: Any) -> Any:
    """Return the task: the result for a value, or the exception, as a value."""
    try:
        return _work(maker, settings)(value)
    except Exception as error:
        return error


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or start one on this machine.

    Raises:
        UsageError: the head does not answer.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports to its makers
    # what Ray will do; else it warns
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    for name in (
        "INITIAL",
        "MAX",
    ):  # between attempts, of which there are three; else 5, 10 and 15
        os.environ.setdefault(f"RAY_CLIENT_{name}_CONNECTION_TIMEOUT_S", "3")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
    former = signal.getsignal(signal.SIGTERM)
    try:
        if address != "ray":
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), _SECONDS).close()
            # of an unreachable port: it is reachable
            with warnings.catch_warnings(action="ignore"):
                ray.init(address, **options)
        # Without an address Ray would look for the last cluster of this machine, for minutes if
        # that is gone.
        else:
            ray.init(
                None if "RAY_ADDRESS" in os.environ else "local", include_dashboard=False, **options
            )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        place = os.environ.get("RAY_ADDRESS", address) if address == "ray" else address
        raise UsageError(
            f"no Ray head answers: {_first_line(error)}", where=place, hint=_START
        ) from error
    # in another thread. Ray's own would end the process with another exit code
    with suppress(ValueError):
        signal.signal(signal.SIGTERM, former)


def in_ray(
    maker: str,
    settings: Sequence[Any],
    inputs: Iterable[Any],
    workers: int | None,
    *,
    ended: str,
    hint: str,
    tries: int,
    address: str,
    threads: int,
    gpus: int,
) -> Generator[Any, None, None]:
    """Yield the results of inputs as they come.

    Twice as many inputs as there are workers are on their way.

    Args:
        workers: the most tasks at a time; None: all that the cluster has room for, also that of
            later nodes.
        address: "ray": the cluster of RAY_ADDRESS, or one that is started here; "ray://HOST:10001":
            that one.
        threads, gpus: that a task needs.

    Raises:
        UsageError: the head does not answer.
        BertworksError: a task raised it, or ended its process in all tries; Ray is not installed.
    """
    with optional_import("--on ray", '"bertworks[ray]"'):
        import ray
    owns_connection = not ray.is_initialized()
    if owns_connection:
        _connect(ray, address)
    need = {"num_cpus": threads, "num_gpus": min(gpus, 1)}
    task = ray.remote(max_retries=tries - 1, **need)(call)
    pending: dict[Any, Any] = {}  # references, and the first parts of their values
    # it cannot see the head; Ray raises ConnectionError where that is lost
    is_client = address.startswith("ray://")
    head = None if is_client else ray.get_runtime_context().gcs_address
    # Errors of Ray itself, which are not those of a task.
    is_cluster_lost = False
    losses = (ray.exceptions.LocalRayletDiedError, ray.exceptions.RaySystemError, ConnectionError)

    def next_result() -> Any:
        ready: list[Any] = []
        while not ready:
            ready, _ = ray.wait(list(pending), num_returns=1, timeout=_BETWEEN_CHECKS)
            _check_head(head)
        value = pending.pop(ready[0])
        try:
            result = ray.get(ready[0])
        except losses:
            raise
        except ray.exceptions.RayError as error:
            raise BertworksError(
                ended.format(value=value, how=f"{type(error).__name__}: {_first_line(error)}"),
                hint=hint,
            ) from error
        if isinstance(result, Exception):
            raise result
        return result

    try:
        for value in inputs:
            _check_head(head)
            pending[task.remote(maker, json.dumps(settings), value)] = value[:1]
            resource = "GPU" if gpus else "CPU"
            units_of_task = 1 if gpus else threads
            room = max(1, int(ray.cluster_resources().get(resource, 1) // units_of_task))
            while len(pending) >= 2 * min(room, workers or room):
                yield next_result()
        while pending:
            yield next_result()
    except losses as error:
        is_cluster_lost = True
        pending.clear()  # the cluster that would cancel them is lost
        raise BertworksError(
            _LOST.format(f"{type(error).__name__}: {_first_line(error)}"),
            where=head or address,
            hint=_AFTER_LOSS,
        ) from error
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        if owns_connection and not is_cluster_lost:
            ray.shutdown()


def _check_head(head: str | None) -> None:
    """Raise ConnectionError if the head of a cluster accepts no connections any more.

    The head is given as "host:port".
    """
    if head is None:
        return
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"{head} does not answer: {error.strerror or error}") from error


def _first_line(error: Exception) -> str:
    """Return the first line of the text of an error, of at most 200 characters."""
    return (str(error).strip() or "no message").split("\n")[0][:200]
