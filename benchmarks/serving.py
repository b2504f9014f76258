"""How many texts a server of minilm embeds, how long each waits, and what happens when three times
as many come.

    python benchmarks/serving.py [--seconds 120] [--rounds 3] [--quick] [--peer]

The load comes from a process of its own. First the capacity: 64 clients that send again as soon as
they are answered, or a second after a refusal. Then open load, whose requests come at their times
whether or not others were answered: 3 times the capacity, the capacity once more, and 0.7 of that
for --seconds; all else takes a quarter of them. Meanwhile /health is requested ten times a second.
--peer measures the capacity of sentence-transformers behind FastAPI, in a process of its own: with
an endpoint in FastAPI's threads and with one in its event loop; the better counts. All of it in
turns, round after round: machines that others share are fast at one time and slow at another, so
that a ratio is one of neighbours, and its median over the rounds is shown.

A request is one text: the paragraphs of this project's pages, 1 to 60 words each. The table goes to
docs/concepts/performance.md.
"""

import argparse
import asyncio
import contextlib
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provenance import provenance, publish

ROOT = Path(__file__).parents[1]
PEERS = ("sentence-transformers", "fastapi")
CLIENTS = 64
CAPACITY, AGAIN, OVERLOAD, BEARABLE = "capacity", "capacity again", "3 x capacity", "0.7 x capacity"
WAYS = ("threads", "loop")  # of the peer
Row = dict[str, Any]
PEER = """
import sys
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

class Inputs(BaseModel):
    inputs: list[str] | str

app, model = FastAPI(), SentenceTransformer(sys.argv[1], device="cpu")

def embed(request: Inputs) -> list[list[float]]:
    texts = [request.inputs] if isinstance(request.inputs, str) else request.inputs
    return model.encode(texts, normalize_embeddings=True, show_progress_bar=False).tolist()

app.post("/threads")(embed)

@app.post("/loop")
async def loop(request: Inputs) -> list[list[float]]:
    return embed(request)

@app.get("/health")
def health() -> str:
    return "ok"

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--seconds", type=int, default=120, help="of the load that the server can bear"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="one round of 8 seconds; nothing is kept"
    )
    parser.add_argument(
        "--peer", action="store_true", help="sentence-transformers behind FastAPI as well"
    )
    parser.add_argument(
        "--load", nargs=4, metavar=("URL", "PATH", "RATE", "SECONDS"), help=argparse.SUPPRESS
    )
    a = parser.parse_args()
    if a.load:
        url, path, rate, seconds = a.load
        print(json.dumps(asyncio.run(load(url, path, float(rate), float(seconds)))))
        return
    if a.quick:
        a.seconds, a.rounds = 8, 1
    rounds = measure(a.seconds, a.rounds, peers=a.peer)
    text = "\n".join([*table(rounds), "", *ratios(rounds)])
    print(text)
    if not a.quick:
        about = provenance(
            ("torch", "uvicorn", "starlette", *PEERS)
            if a.peer
            else ("torch", "uvicorn", "starlette")
        )
        publish("serving", {**about, "rounds": rounds}, f"{text}\n\n{said(about)}")


def measure(seconds: int, count: int, *, peers: bool) -> list[list[Row]]:
    """Of each round what was found, in the order in which it was measured."""
    short, rounds = max(2, seconds // 4), list[list[Row]]()
    with server() as (url, running):
        run_load(url, "/embed", 0, min(short, 10))  # it learns how fast it is
        for _ in range(count):
            rows = [measured(CAPACITY, f"{url}embed", 0, short, running)]
            rows.append(
                measured(
                    OVERLOAD, f"{url}embed", 3 * rows[-1]["answered_per_second"], short, running
                )
            )
            rows.append(measured(AGAIN, f"{url}embed", 0, short, running))
            rows.append(
                measured(
                    BEARABLE, f"{url}embed", 0.7 * rows[-1]["answered_per_second"], seconds, running
                )
            )
            if peers:
                with peer() as (other, its):
                    rows += [
                        measured(f"peer, {way}", f"{other}{way}", 0, short, its) for way in WAYS
                    ]
            rounds.append(rows)
    return rounds


def measured(name: str, url: str, rate: float, seconds: float, running: int) -> Row:
    """running: the process of the server."""
    at, slash, path = url.rpartition("/")
    row = {
        "name": name,
        **summary(run_load(at + slash, slash + path, rate, seconds)),
        "memory_mb": memory(running),
    }
    print(json.dumps(row), flush=True)
    return row


# --- the servers
# --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server() -> Iterator[tuple[str, int]]:
    """Ours: its address, and its process."""
    command = [
        sys.executable,
        "-m",
        "bertworks.cli.main",
        "serve",
        "minilm",
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        yield json.loads(running.stdout.readline())["url"], running.pid
        running.terminate()


@contextlib.contextmanager
def peer() -> Iterator[tuple[str, int]]:
    from bertworks.checkpoints.resolve import resolve_model

    port = random.randint(20_000, 30_000)
    with subprocess.Popen(
        [sys.executable, "-c", PEER, str(resolve_model("minilm")), str(port)]
    ) as running:
        url, status = f"http://127.0.0.1:{port}/", 0
        while status != 200:
            assert running.poll() is None, (
                "the peer ended: pip install fastapi sentence-transformers"
            )
            time.sleep(1)
            with contextlib.suppress(OSError):
                status = asyncio.run(Connection(url).send("GET", "/health", b""))
        yield url, running.pid
        running.terminate()


def memory(process: int) -> int:
    """Megabytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1000


# --- the load
# --------------------------------------------------------------------------------------------------


def run_load(url: str, path: str, rate: float, seconds: float) -> dict[str, Any]:
    """What a process found that sends at this rate; rate 0: as soon as it is answered."""
    command = [sys.executable, __file__, "--load", url, path, str(rate), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """How many were sent and answered in a second; of each kind of answer how many, and their
    milliseconds."""
    seconds, kinds = found["seconds"], found["milliseconds"]
    return {
        "sent_per_second": found["sent"] / seconds,
        "answered_per_second": len(kinds.get("200", [])) / seconds,
        "seconds": seconds,
        "kinds": {kind: quantiles(times) for kind, times in kinds.items()},
    }


def quantiles(times: list[float]) -> dict[str, float]:
    parts = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return {"count": len(times), "p50": parts[49], "p99": parts[98], "max": max(times)}


def middle(rounds: Sequence[Sequence[Row]], name: str, figure: Callable[[Row], float]) -> float:
    """The median over the rounds of a figure of one load; NaN: it has none."""
    found = [figure(row) for rows in rounds for row in rows if row["name"] == name]
    return statistics.median(found) if found else math.nan


def table(rounds: Sequence[Sequence[Row]]) -> list[str]:
    columns = (
        "load",
        "requests/s",
        "answered/s",
        "p50 ms",
        "p99 ms",
        "max ms",
        "429/s",
        "their p50, p99 ms",
    )
    columns += ("/health p99, max ms", "memory MB")
    head = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return [*head, *(line(rounds, row["name"]) for row in rounds[0])]


def line(rounds: Sequence[Sequence[Row]], name: str) -> str:
    """One load: medians over the rounds."""

    def of(kind: str, what: str) -> float:
        return middle(rounds, name, lambda row: row["kinds"].get(kind, {what: math.nan})[what])

    sent, answered, used = (
        middle(rounds, name, itemgetter(what))
        for what in ("sent_per_second", "answered_per_second", "memory_mb")
    )
    refused = middle(
        rounds, name, lambda row: row["kinds"].get("429", {"count": 0})["count"] / row["seconds"]
    )
    late = f"{of('429', 'p50'):.1f}, {of('429', 'p99'):.1f}" if refused else ""
    times = " | ".join(f"{of('200', what):.1f}" for what in ("p50", "p99", "max"))
    health = f"{of('health', 'p99'):.1f}, {of('health', 'max'):.1f}"
    return (
        f"| {name} | {sent:.1f} | {answered:.1f} | {times} | {refused:.1f} | {late} | {health} "
        f"| {used:.0f} |"
    )


def ratios(rounds: Sequence[Sequence[Row]]) -> list[str]:
    """Of neighbours in each round, and their median."""
    found: dict[str, list[float]] = {}
    for rows in rounds:
        by_name = {row["name"]: row for row in rows}
        speed = {name: row["answered_per_second"] for name, row in by_name.items()}
        capacity, waits = (speed[CAPACITY] + speed[AGAIN]) / 2, by_name[BEARABLE]["kinds"]["200"]
        found.setdefault("answered at 3 times the capacity, as a share of it", []).append(
            speed[OVERLOAD] / capacity
        )
        found.setdefault("p99 / p50 at 0.7 of the capacity", []).append(waits["p99"] / waits["p50"])
        if peers := [speed[name] for name in speed if name.startswith("peer")]:
            found.setdefault("capacity, as a multiple of the better peer's", []).append(
                capacity / max(peers)
            )
    others = Counter[str]()
    for row in (row for rows in rounds for row in rows):
        others.update(
            {
                kind: n["count"]
                for kind, n in row["kinds"].items()
                if kind not in ("200", "429", "health")
            }
        )
    lines = [
        (
            f"* {name}: {statistics.median(values):.2f} (rounds: "
            f"{', '.join(f'{value:.2f}' for value in values)})"
        )
        for name, values in found.items()
    ]
    return [*lines, f"* neither answered nor refused with 429: {dict(others) or 'none'}"]


def said(about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    where = f"{about['cpu']}, {about['cores']} cores"
    return f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {where}; {versions}."


class Connection(asyncio.Protocol):
    """One that is kept. Of HTTP it knows only what gives a status: the load shares the cores of the
    server."""

    def __init__(self, url: str):
        self.at, self.received = urlsplit(url), b""
        self.transport: Any = None
        self.status: asyncio.Future[int]

    async def send(self, method: str, path: str, body: bytes) -> int:
        # a server may close what was idle: clients look
        if self.transport is None or self.transport.is_closing():
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self, self.at.hostname, self.at.port)
        self.status, self.received = asyncio.get_running_loop().create_future(), b""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.at.netloc}\r\n"
            "Content-Type: application/json\r\n"
        )
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self.status

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if end and len(body) == int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            self.status.set_result(int(head.split(maxsplit=2)[1]))

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if hasattr(self, "status") and not self.status.done():
            self.status.set_exception(ConnectionResetError())


@dataclass
class Load:
    """Requests that go out, and what became of them."""

    url: str
    path: str
    bodies: list[bytes]
    idle: list[Connection] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=dict)
    count: Counter[str] = field(default_factory=Counter)

    async def one(self, kind: str = "") -> str:
        """What became of it: its status, "health", or "no answer"."""
        connection = self.idle.pop() if self.idle else Connection(self.url)
        self.count["sent"] += not kind
        begin = time.perf_counter()
        try:
            if kind:
                await connection.send("GET", "/health", b"")
            else:
                body = self.bodies[self.count["sent"] % len(self.bodies)]
                kind = str(await connection.send("POST", self.path, body))
            self.idle.append(connection)
        except OSError:
            kind = "no answer"
        self.times.setdefault(kind, []).append(1000 * (time.perf_counter() - begin))
        return kind


async def load(url: str, path: str, rate: float, seconds: float) -> dict[str, Any]:
    texts = [
        text
        for page in sorted(ROOT.glob("docs/**/*.md"))
        for text in page.read_text().split("\n")
        if text.strip()
    ]
    draw = random.Random(0)
    bodies = [
        json.dumps({"inputs": " ".join(draw.choice(texts).split()[:60])}).encode()
        for _ in range(2000)
    ]
    made, begin = Load(url, path, bodies), time.perf_counter()
    end = begin + seconds

    async def repeated(pause: float, kind: str) -> None:
        while time.perf_counter() < end:
            found = await made.one(kind)
            await asyncio.sleep(1 if found == "429" else pause)

    tasks = [asyncio.create_task(repeated(0.1, "health"))]
    if not rate:
        tasks += [asyncio.create_task(repeated(0, "")) for _ in range(CLIENTS)]
    at = begin
    while rate and at < end:
        at += draw.expovariate(rate)
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.create_task(made.one()))
    await asyncio.gather(*tasks)
    return {
        "milliseconds": made.times,
        "sent": made.count["sent"],
        "seconds": time.perf_counter() - begin,
    }


if __name__ == "__main__":
    main()
