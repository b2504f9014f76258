"""A job without a model, for tests of portions: squares of numbers, and processes that end or fail
on the way.

As a program: python -m tests.support.bulk_jobs FOLDER ENGINE COUNT SECONDS [says], or FOLDER
cluster. With "says" an error is printed as the commands do.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError
from bertworks.events import Event
from bertworks.io.file_job import FileJob, Portion, unpacked_values
from bertworks.io.options import Bulk

MAKER = "tests.support.bulk_jobs:maker"


def maker(folder: str, seconds: float) -> tuple[dict[str, Any], Callable[[list[int]], Portion]]:
    """Squares. A number below zero is an error; a file `kill-N` in the folder ends the process once
    for each line."""

    def make(numbers: list[int]) -> Portion:
        time.sleep(seconds)
        with Path(folder, f"log-{os.getpid()}").open("a") as log:
            log.write("".join(f"{number}\n" for number in numbers))
        for number in numbers:
            if number < 0:
                raise BertworksError("a number below zero", where=f"numbers.txt:{-number}")
            if (mark := Path(folder, f"kill-{number}")).exists():
                lines = mark.read_text().splitlines()
                mark.write_text("".join(f"{line}\n" for line in lines[1:])) if lines[
                    1:
                ] else mark.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return len(numbers), [json.dumps([number * number for number in numbers]).encode()]

    return {"step": 1}, make


def run(
    folder: Path,
    bulk: Bulk,
    count: int = 40,
    seconds: float = 0.0,
    numbers: list[int] | None = None,
    **identity: Any,
) -> tuple[list[Event], bytes | None]:
    """The events, and the joined output."""
    job = FileJob(folder / "out", bulk, {"step": 1, **identity}, MAKER, [str(folder), seconds])
    inputs = (
        ([n, n + 1] for n in range(0, 2 * count, 2)) if numbers is None else ([n] for n in numbers)
    )
    events = list[Event]()
    with job.open():
        events += job.make("squares", inputs)
        if bulk.part:
            return events, None
        content = b"".join(chain.from_iterable(map(unpacked_values, job.files)))
        (folder / "out").write_bytes(content)
    return events, content


def lose_a_node(folder: Path) -> None:
    """The same on a cluster of three nodes, of which one is killed."""
    from ray import init
    from ray.cluster_utils import Cluster

    options = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    nodes = [cluster.add_node(**options) for _ in range(2)]
    init(address=cluster.address, log_to_driver=False)
    killed = threading.Event()

    def kill() -> None:
        while len(list((folder / "out.parts").glob("0*"))) < 5:
            time.sleep(0.1)
        cluster.remove_node(nodes[0], allow_graceful=False)
        killed.set()

    threading.Thread(target=kill, daemon=True).start()
    run(folder, Bulk(on="ray"), 60, 0.5)
    assert killed.wait(30)


if __name__ == "__main__":
    if sys.argv[2] == "cluster":
        lose_a_node(Path(sys.argv[1]))
    else:
        try:
            run(
                Path(sys.argv[1]),
                Bulk(on=sys.argv[2], workers=2),
                int(sys.argv[3]),
                float(sys.argv[4]),
            )
        except BertworksError as error:
            if sys.argv[5:] != ["says"]:
                raise
            print(error, flush=True)
            sys.exit(1)
