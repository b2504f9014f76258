"""How much of the time of many workers is used: a discrete simulation of bulk work.
`bulk.py` checks it with real workers.

    python benchmarks/simulate_cluster.py [--times FILE.json] [--workers 64] [--failures 1.0]

A job has numbered portions. A command gives them to workers in their order; at most twice as many
portions as there are workers are on their way. A worker that fails loses its portion, which begins
again when another process is up. Used is the sum of the times of all portions divided by workers x
time of the job.

    --times       a JSON list of measured seconds of portions, drawn at random. Without it: 10 s,
                  give or take 20 %
    --latency     seconds to store a portion
    --dispatch    seconds of the command for each portion: reading its rows and sending them
    --failures    per worker and hour
    --restart     seconds until a failed worker is replaced
"""

import argparse
import heapq
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Seconds, and failures per worker and hour."""

    workers: int
    latency: float = 0.1
    dispatch: float = 0.02
    failures: float = 0.0
    restart: float = 15.0
    start: float = 0.0


def simulate(times: Sequence[float], c: Cluster, seed: int = 0) -> float:
    """The seconds from the start to the last result."""
    draw, clock = random.Random(seed), c.start
    free = [c.start] * c.workers  # when each worker can begin a portion
    heapq.heapify(free)
    pending: list[float] = []  # when the portions that are on their way end
    last = 0.0
    for seconds in times:
        if len(pending) >= 2 * c.workers:
            clock = max(clock, heapq.heappop(pending))
        clock += c.dispatch
        begin = max(clock, heapq.heappop(free))
        work = seconds + c.latency
        while c.failures and (until := draw.expovariate(c.failures / 3600)) < work:
            begin += until + c.restart
        heapq.heappush(free, begin + work)
        heapq.heappush(pending, begin + work)
        last = max(last, begin + work)
    return last


def used(times: Sequence[float], c: Cluster, rounds: int = 20) -> float:
    """The fraction of the time of the workers that portions take, on average."""
    return (
        sum(sum(times) / (c.workers * simulate(times, c, seed)) for seed in range(rounds)) / rounds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=Path)
    parser.add_argument("--portions", type=int, default=6400)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--dispatch", type=float, default=0.02)
    parser.add_argument("--failures", type=float, default=1.0)
    parser.add_argument("--restart", type=float, default=15.0)
    a = parser.parse_args()
    draw = random.Random(0)
    measured = (
        json.loads(a.times.read_text()) if a.times else [draw.uniform(8, 12) for _ in range(1000)]
    )
    times = [draw.choice(measured) for _ in range(a.portions)]
    rest = {
        "latency": a.latency,
        "dispatch": a.dispatch,
        "failures": a.failures,
        "restart": a.restart,
    }
    results = {
        str(workers): round(used(times, Cluster(workers=workers, **rest)), 4)
        for workers in sorted({1, 2, 4, 8, 16, 32, a.workers})
    }
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
