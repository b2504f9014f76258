"""Small requests of one client while another floods the server: 300 requests of 60 kB at once,
abandoned or not, and slow bodies.

    python benchmarks/flood.py [--before FOLDER] [--rounds 3] [--quick]

FOLDER is another checkout of the repository, for comparison: `git worktree add --detach FOLDER
COMMIT`. The checkouts take turns. The clients are two other processes, on another core if there are
two or more: the one with the large requests has a lower priority, so that its work does not count
as waiting time of the small ones. They have different addresses of this machine (Linux): small
requests come from 127.0.0.1, one every 50 ms, large ones from 127.0.0.2. Four phases:

- alone: only small requests
- abandoned: 300 requests of 60 kB, closed half a second after they were sent
- patient: 300 requests of 60 kB that wait for their answers; refusals are timed from the end of the
  headers
- slow bodies: 600 requests whose bodies come a byte a second

A large request is one long text or many short ones, in turn. "Allowed": three times the median
alone, and the batch that is being computed when a request comes. The table goes to
docs/concepts/performance.md.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provenance import provenance, publish
from serving import quantiles, said

ROOT = Path(__file__).parents[1]
PHASES = ("alone", "abandoned", "patient", "slow bodies")
SECONDS, QUICK_SECONDS = 12.0, 6.0  # of a phase in which small requests are sent
CONNECTIONS, SLOW, SIZE = 300, 600, 60_000
ABANDON, PAUSE, PATIENCE = 0.5, 0.05, 120.0  # seconds
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is kept")
    parser.add_argument(
        "--client", nargs=4, metavar=("WHICH", "URL", "PHASE", "SECONDS"), help=argparse.SUPPRESS
    )
    a = parser.parse_args()
    if a.client:
        which, url, phase, seconds = a.client
        print(json.dumps(asyncio.run(CLIENTS[which](url, phase, float(seconds)))))
        return
    checkouts = {commit(folder): folder.resolve() for folder in (a.before, ROOT) if folder}
    rows = []
    for _ in range(1 if a.quick else a.rounds):
        for name, folder in checkouts.items():
            rows += measure(name, folder, QUICK_SECONDS if a.quick else SECONDS)
    text = table(rows)
    print(text)
    if not a.quick:
        about = provenance(("torch", "uvicorn", "starlette"))
        publish("flood", {**about, "rows": rows}, f"{text}\n\n{said(about)}")


def commit(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def measure(name: str, folder: Path, seconds: float) -> list[Row]:
    """All phases with one server, in order."""
    cores = sorted(os.sched_getaffinity(0))
    rows = []
    with server(folder, cores[:-1] or cores) as url:
        talk(url, "alone", 3, cores[-1])  # it learns how fast it is
        for phase in PHASES:
            before = batches(url)
            row = {"checkout": name, "phase": phase, **talk(url, phase, seconds, cores[-1])}
            row["batch_ms"] = usual(before, batches(url))
            rows.append(row)
            print(json.dumps(row), flush=True)
            now = dict[float, float]()
            while now != (now := batches(url)):  # what was abandoned may still be computed
                time.sleep(2)
    return rows


@contextlib.contextmanager
def server(folder: Path, cores: Sequence[int]) -> Iterator[str]:
    """A server of a checkout, and its address."""
    command = [
        "taskset",
        "--cpu-list",
        ",".join(map(str, cores)),
        sys.executable,
        "-m",
        "bertworks.cli.main",
    ]
    command += ["serve", "minilm", "--port", "0", "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, **pipes
    ) as running:
        assert running.stdout is not None
        try:
            yield json.loads(running.stdout.readline())["url"]
        finally:
            running.kill()


def batches(url: str) -> dict[float, float]:
    """Seconds -> how many batches of the network took no longer, until now."""
    with urllib.request.urlopen(f"{url}metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found = re.findall(r'^te_request_inference_duration_bucket{le="([^"]+)"} (\S+)', text, re.M)
    return {float(most): float(count) for most, count in found}


def usual(before: dict[float, float], after: dict[float, float]) -> float:
    """Milliseconds of the batch that is being computed when a request comes: a mean, weighted by
    the time that batches take. It is known up to the bounds of the histogram."""
    bounds = [0.0, *sorted(after)]
    times = squares = known = 0.0
    for least, most in itertools.pairwise(bounds):
        count = after[most] - before[most]
        middle = (least + most) / 2 if most < float("inf") else least
        times, squares, known = (
            times + (count - known) * middle,
            squares + (count - known) * middle**2,
            count,
        )
    return 1000 * squares / times if times else 0.0


def talk(url: str, phase: str, seconds: float, core: int) -> Row:
    """What the two clients found."""
    command = ["taskset", "--cpu-list", str(core), sys.executable, __file__, "--client"]
    arguments: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}
    found: Row = {}
    with contextlib.ExitStack() as stack:
        for which in CLIENTS:
            lower = ["nice", "-n", "10"] if which == "large" else []
            running = subprocess.Popen(
                [*lower, *command, which, url, phase, str(seconds)], **arguments
            )
            found[which] = stack.enter_context(running)
        texts = {which: running.communicate()[0] for which, running in found.items()}
    return {key: value for text in texts.values() for key, value in json.loads(text).items()}


def table(rows: Sequence[Row]) -> str:
    """Medians over the rounds; sums of counts."""
    columns = [
        "checkout",
        "phase",
        "small requests",
        "not answered",
        "p50 ms",
        "p99 ms",
        "max ms",
        "allowed ms",
    ]
    columns += ["large: 200", "429", "no answer", "refused within p50, p99, max ms"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for checkout, phase in dict.fromkeys((row["checkout"], row["phase"]) for row in rows):
        same = [row for row in rows if (row["checkout"], row["phase"]) == (checkout, phase)]
        alone = [row for row in rows if (row["checkout"], row["phase"]) == (checkout, "alone")]

        def middle(kind: str, what: str, same: Sequence[Row] = same) -> float:
            return float(statistics.median([row[kind][what] for row in same if row[kind]] or [0.0]))

        counts = {
            kind: sum((Counter(row[kind]) for row in same), Counter[str]())
            for kind in ("small", "large")
        }
        total, failed = counts["small"].total(), counts["small"].total() - counts["small"]["200"]
        allowed = 3 * middle("small_ms", "p50", alone) + statistics.median(
            row["batch_ms"] for row in same
        )
        small = " | ".join(f"{middle('small_ms', what):.1f}" for what in ("p50", "p99", "max"))
        large = " | ".join(f"{counts['large'][kind]}" for kind in ("200", "429", "no answer"))
        refused = ", ".join(f"{middle('refused_ms', what):.1f}" for what in ("p50", "p99", "max"))
        refused = refused if any(row["refused_ms"] for row in same) else ""
        lines.append(
            f"| {checkout} | {phase} | {total} | {failed} | {small} | {allowed:.1f} | {large} | "
            f"{refused} |"
        )
    return "\n".join(lines)


# --- the clients
# --------------------------------------------------------------------------------------------------


class Exchange(asyncio.Protocol):
    """One request over its own connection. It knows just enough of HTTP to read a status: the
    client must be fast."""

    def __init__(self, host: str, port: int, body: bytes):
        head = f"POST /embed HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        self.head, self.body = f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body
        self.status, self.end = "no answer", 0.0
        self.done = asyncio.get_running_loop().create_future()

    async def open(self, host: str, port: int, local: str) -> None:
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().create_connection(
                lambda: self, host, port, local_addr=(local, 0)
            )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def send(self) -> None:
        self.begin = time.perf_counter()
        self.transport.writelines([self.head, self.body])

    async def drip(self, end: float) -> None:
        self.begin = time.perf_counter()
        self.transport.write(self.head)
        for number in range(len(self.body)):
            if self.done.done() or time.perf_counter() > end:
                break
            self.transport.write(self.body[number : number + 1])
            await asyncio.sleep(1)
        self.transport.abort()

    async def answer(self, seconds: float) -> tuple[str, float]:
        """The status, or "no answer", and seconds from the end of the headers."""
        await asyncio.wait([self.done], timeout=seconds)
        self.transport.abort()
        return self.status, self.end - self.begin

    def data_received(self, data: bytes) -> None:
        if not self.end:
            self.end, self.status = time.perf_counter(), data.split(maxsplit=2)[1].decode()
            self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def small(url: str, phase: str, seconds: float) -> Row:
    """One small request after the other."""
    statuses, times, tasks = Counter[str](), list[float](), list[asyncio.Task[None]]()
    end, (host, port) = time.perf_counter() + seconds, address(url)

    async def one() -> None:
        begin = time.perf_counter()
        exchange = Exchange(host, port, b'{"inputs": "a cat and an engine"}')
        await exchange.open(host, port, "127.0.0.1")
        exchange.send()
        status, _ = await exchange.answer(PATIENCE)
        statuses[status] += 1
        if status == "200":
            times.append(1000 * (exchange.end - begin))

    while time.perf_counter() < end:
        tasks.append(asyncio.create_task(one()))
        await asyncio.sleep(PAUSE)
    await asyncio.gather(*tasks)
    return {"small": dict(statuses), "small_ms": quantiles(times) if times else {}}


async def large(url: str, phase: str, seconds: float) -> Row:
    """The statuses of the large requests, which begin after the first second, and the times from
    the end of their headers to a refusal."""
    end, (host, port) = time.perf_counter() + seconds, address(url)
    words = " ".join(page.read_text() for page in sorted(ROOT.glob("docs/**/*.md")))[:SIZE]
    pieces = [words[start : start + 60] for start in range(0, SIZE * 5 // 6, 60)]
    bodies = [json.dumps({"inputs": inputs}).encode() for inputs in (words, pieces)]
    count = {"alone": 0, "slow bodies": SLOW}.get(phase, CONNECTIONS)
    exchanges = [Exchange(host, port, bodies[number % 2]) for number in range(count)]
    await asyncio.gather(*(exchange.open(host, port, "127.0.0.2") for exchange in exchanges))
    await asyncio.sleep(1)
    if phase == "slow bodies":
        await asyncio.gather(*(exchange.drip(end) for exchange in exchanges))
        found = [(exchange.status, exchange.end - exchange.begin) for exchange in exchanges]
    else:
        for exchange in exchanges:
            exchange.send()
        patience = ABANDON if phase == "abandoned" else PATIENCE
        found = await asyncio.gather(*(exchange.answer(patience) for exchange in exchanges))
    refused = [1000 * duration for status, duration in found if status == "429"]
    statuses = Counter(status for status, _ in found)
    return {"large": dict(statuses), "refused_ms": quantiles(refused) if refused else {}}


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 0


CLIENTS = {"small": small, "large": large}

if __name__ == "__main__":
    main()
