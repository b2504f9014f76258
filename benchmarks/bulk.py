"""What bulk work costs: two workers against one, the overhead of an engine, the memory of the
command, many workers.

    python benchmarks/bulk.py [--rounds 3] [--rows 16384] [--megabytes 64] [--seconds 10] [--engines
    local ray]
                              [--most 10000000]

All measurements are in turns on the same machine, which should do nothing else. Each is printed as
soon as it is there.

    two workers   `prepare` and `embed` with --on local --threads 1, with one worker and with two:
    medians, their ratio;
                  and the ratio that the machine allows: two commands with one worker each, at the
                  same time
    overhead      portions that sleep: the time beyond portions x seconds / workers, as a fraction
                  of it; two workers
    memory        the peak of the resident memory of the command, without its workers, by the number
                  of rows
    64 workers    `simulate_cluster.py` with the measured seconds of portions of `embed`, and those
                  of the command for each portion; its error for portions that sleep, with 2 and 4
                  real workers
"""

import argparse
import itertools
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from materials import documents
from provenance import HERE, provenance, publish
from simulate_cluster import Cluster, simulate, used

sys.path[:0] = [str(HERE), str(HERE.parent)]
WORDS = (
    "the film was a story of men and dogs in this town with some music that they heard last night"
).split()
ROWS = 2048  # of a portion


def maker(seconds: float) -> tuple[dict[str, Any], Callable[[list[str]], tuple[int, list[bytes]]]]:
    """Return the maker of portions that sleep and record when."""

    def make(rows: list[str]) -> tuple[int, list[bytes]]:
        begin = time.time()
        time.sleep(seconds)
        return 0, [json.dumps([begin, time.time(), len(rows)]).encode()]

    return {}, make


def sleep_in_portions(
    engine: str, portions: int, seconds: float, workers: int = 2
) -> tuple[float, float]:
    """Seconds of a job of portions that sleep: until the first portion begins, and from then to the
    end."""
    from bertworks.io.file_job import FileJob, unpacked_values
    from bertworks.io.options import Bulk

    def inputs() -> Iterator[list[str]]:
        for number in range(portions):
            yield [f"{' '.join(WORDS)} {number} {row}" for row in range(ROWS)]

    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        job = FileJob(
            Path(folder, "out"), Bulk(on=engine, workers=workers), {}, "bulk:maker", [seconds]
        )
        with job.open():
            for _ in job.make("sleep", inputs()):
                pass
            end, first = (
                time.time(),
                min(json.loads(*unpacked_values(file))[0] for file in job.files),
            )
        return first - begin, end - first


def overhead(engine: str, seconds: float, portions: int = 8) -> dict[str, float]:
    """The seconds before the first portion are reported apart."""
    (start, wall), ideal = sleep_in_portions(engine, portions, seconds), portions * seconds / 2
    return {"start": start, "wall": wall, "ideal": ideal, "overhead": wall / ideal - 1}


def memory(rows: int) -> dict[str, float]:
    """MB and seconds for each portion of a new process that has that many rows sent to two
    workers."""
    command = [sys.executable, __file__, "--child", str(rows)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return dict(zip(("megabytes", "seconds_per_portion"), found))


def child(rows: int) -> None:
    portions = -(-rows // ROWS)
    _, seconds = sleep_in_portions("local", portions, 0.0)
    print([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, seconds / portions])


def write_data(folder: Path, rows: int, megabytes: int) -> None:
    """Rows, a vocabulary, and a corpus of four files, which are a portion each: real texts,
    repeated."""
    draw = random.Random(0)
    (folder / "corpus").mkdir()
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(5, 30))) + f" {n}.\n" for n in range(rows)]
    (folder / "rows.txt").write_text("".join(lines))
    texts = itertools.cycle(list(documents()))
    for number in range(4):
        with (folder / "corpus" / f"{number}.jsonl").open("w") as file:
            while file.tell() < megabytes << 20:
                file.write(json.dumps({"text": next(texts)}, ensure_ascii=False) + "\n")
    run(folder, "vocab", "corpus", "-o", "words", "--size", "30000")


def two_workers(folder: Path, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The seconds of each command; those of the portions of `embed` with one worker."""
    commands = {
        "prepare": ("prepare", "corpus", "--tokenizer", "words", "-o", "out"),
        "embed": ("embed", "minilm", "rows.txt", "-o", "out.npy", "--precision", "fp32"),
    }
    other = folder / "other"
    other.mkdir()
    for file in ("corpus", "rows.txt", "words"):
        (other / file).symlink_to(folder / file)
    for name, words in commands.items():
        times, portions, both = {1: list[float](), 2: list[float]()}, list[float](), list[float]()

        def work(place: Path, workers: int = 1, words: tuple[str, ...] = words) -> list[float]:
            made = run(place, *words, "--on", "local", "--workers", str(workers), "--threads", "1")
            shutil.rmtree(place / "out", ignore_errors=True)
            (place / "out.npy").unlink(missing_ok=True)
            return made

        for _ in range(rounds):
            for workers, row in times.items():
                begin = time.perf_counter()
                made = work(folder, workers)
                row.append(time.perf_counter() - begin)
                portions += (
                    [after - before for before, after in itertools.pairwise(made)]
                    if workers == 1
                    else []
                )
            begin = time.perf_counter()
            with ThreadPoolExecutor() as pool:
                list(pool.map(work, (folder, other)))
            both.append(time.perf_counter() - begin)
        one, two = (statistics.median(row) for row in times.values())
        result = {
            "one": one,
            "two": two,
            "ratio": one / two,
            "possible": 2 * one / statistics.median(both),
        }
        yield name, result | {"seconds": times, "both": both, "portions": portions}


def run(folder: Path, *words: str) -> list[float]:
    """Runs a command. Returns when each of its portions was there, in seconds."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    command, there = [sys.executable, "-m", "bertworks.cli.main", *words], dict[str, float]()
    with (folder / "log").open("w+") as log:
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log
        ) as process:
            while process.poll() is None:
                for file in folder.glob("out*.parts/[0-9]*"):
                    there.setdefault(file.name, time.perf_counter())
                time.sleep(0.02)
        if process.returncode:
            raise SystemExit(f"failed: {' '.join(words)}\n{(folder / 'log').read_text()}")
    return sorted(there.values())


def simulation_check(seconds: float, portions: int) -> list[dict[str, float]]:
    """Simulated and real seconds of portions that sleep."""
    found = []
    for workers in (2, 4):
        _, real = sleep_in_portions("local", portions, seconds, workers)
        predicted = simulate(
            [seconds] * portions, Cluster(workers=workers, latency=0.0, dispatch=0.0)
        )
        found.append(
            {
                "workers": workers,
                "real": real,
                "simulated": predicted,
                "difference": predicted / real - 1,
            }
        )
    return found


def simulated(portions: list[float], dispatch: float) -> dict[str, Any]:
    draw = random.Random(0)
    times = [draw.choice(portions) for _ in range(6400)]
    share = used(times, Cluster(workers=64, dispatch=dispatch, failures=1.0))
    check = simulation_check(2.0, 24)
    return {"workers": 64, "used": share, "portion": statistics.mean(portions), "check": check}


def measure(arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    for engine in arguments.engines:
        yield f"overhead of {engine}", overhead(engine, arguments.seconds)
    found = {}
    for rows in (10_000, arguments.most):
        yield f"memory of {rows:,} rows", (found := memory(rows))
    portions = list[float]()
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name), arguments.rows, arguments.megabytes)
        for command, result in two_workers(Path(name), arguments.rounds):
            yield f"two workers, {command}", result
            portions = result["portions"]
    yield "simulation", simulated(portions, found["seconds_per_portion"])


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = ["| what | result | wanted |", "|---|---|---|"]
    for name, result in results.items():
        if "ratio" in result:
            shown, wanted = (
                f"{result['one']:.1f} s, {result['two']:.1f} s: {result['ratio']:.2f} times as "
                "fast",
                "1.85",
            )
            shown += f" (two commands at the same time: {result['possible']:.2f})"
        elif "overhead" in result:
            shown, wanted = (
                f"{100 * result['overhead']:.1f} %, {result['start']:.1f} s to start",
                "5 %, 15 s",
            )
        elif "megabytes" in result:
            shown, wanted = f"{result['megabytes']:,.0f} MB", "flat"
        else:
            shown = (
                f"{100 * result['used']:.1f} % of {result['workers']} workers used; error "
                + ", ".join(
                    f"{100 * one['difference']:+.1f} % at {one['workers']}"
                    for one in result["check"]
                )
            )
            wanted = "90 %; 5 %"
        lines.append(f"| {name} | {shown} | {wanted} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8 * ROWS, help="of embed")
    parser.add_argument(
        "--megabytes", type=int, default=64, help="of each of the four files of prepare"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of a portion that sleeps")
    parser.add_argument("--engines", nargs="*", default=["local", "ray"])
    parser.add_argument("--most", type=int, default=10_000_000, help="rows, for the memory")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for the workers of Ray
    results: dict[str, dict[str, Any]] = {}
    for name, result in measure(arguments):
        results[name] = result
        print(table({name: result}).splitlines()[-1], flush=True)
    packages = ["torch", *(["ray"] if "ray" in arguments.engines else [])]
    publish("bulk", provenance(packages) | results, table(results))


if __name__ == "__main__":
    main()
