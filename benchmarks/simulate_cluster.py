"""How much of the time of many workers is used: a discrete simulation of bulk work, and checks of it with real workers.

    python benchmarks/simulate_cluster.py [--times FILE.json] [--workers 64] [--failures 1.0] [--check]

A job has numbered portions. A command gives them to workers in their order; at most twice as many portions as there are
workers are on their way. A worker that fails loses its portion, which begins again when another process is up. Used is
the sum of the times of all portions divided by workers x time of the job.

    --times       a JSON list of measured seconds of portions, drawn at random. Without it: 10 s, give or take 20 %
    --latency     seconds to store a portion
    --dispatch    seconds of the command for each portion: reading its rows and sending them
    --failures    per worker and hour
    --restart     seconds until a failed worker is replaced
    --check       also runs portions that sleep, with 2 and with 4 workers, and compares
"""

import argparse
import heapq
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


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
    return sum(sum(times) / (c.workers * simulate(times, c, seed)) for seed in range(rounds)) / rounds


def check(seconds: float, portions: int) -> list[dict[str, float]]:
    """Simulated and real seconds of portions that sleep."""
    from bulk import sleep_in_portions

    found = []
    for workers in (2, 4):
        _, real = sleep_in_portions("local", portions, seconds, workers)
        cluster = Cluster(workers=workers, latency=0.0, dispatch=0.0)
        simulated = simulate([seconds] * portions, cluster)
        found.append({"workers": workers, "real": real, "simulated": simulated, "difference": simulated / real - 1})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=Path)
    parser.add_argument("--portions", type=int, default=6400)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.1)
    parser.add_argument("--dispatch", type=float, default=0.02)
    parser.add_argument("--failures", type=float, default=1.0)
    parser.add_argument("--restart", type=float, default=15.0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a portion of the check")
    a = parser.parse_args()
    draw = random.Random(0)
    measured = json.loads(a.times.read_text()) if a.times else [draw.uniform(8, 12) for _ in range(1000)]
    times = [draw.choice(measured) for _ in range(a.portions)]
    rest = {"latency": a.latency, "dispatch": a.dispatch, "failures": a.failures, "restart": a.restart}
    results: dict[str, object] = {
        str(workers): round(used(times, Cluster(workers=workers, **rest)), 4)
        for workers in sorted({1, 2, 4, 8, 16, 32, a.workers})
    }
    if a.check:
        results["check"] = check(a.seconds, 24)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
