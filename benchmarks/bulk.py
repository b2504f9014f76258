"""What bulk work costs: two workers against one, the overhead of an engine, the memory of the command.

    python benchmarks/bulk.py [--rounds 3] [--rows 20000] [--seconds 10] [--engines local ray] [--most 1000000]

All measurements are in turns on the same machine, which should do nothing else.

    two workers   `prepare` and `embed` with --on local --threads 1, with one worker and with two: medians, their ratio
    overhead      portions that sleep: the time beyond portions x seconds / workers, as a fraction of it; two workers
    memory        the peak of the resident memory of the command, without its workers, by the number of rows
"""

import argparse
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
WORDS = "the film was a story of men and dogs in this town with some music that they heard last night".split()


def maker(seconds: float) -> tuple[dict[str, Any], Callable[[list[str]], tuple[int, bytes]]]:
    """Portions that sleep, and say when."""

    def make(rows: list[str]) -> tuple[int, bytes]:
        begin = time.time()
        time.sleep(seconds)
        return 0, json.dumps([begin, time.time(), len(rows)]).encode()

    return {}, make


def sleep_in_portions(engine: str, portions: int, seconds: float, rows: int, workers: int = 2) -> tuple[float, float]:
    """Seconds of a job of portions that sleep: until the first portion begins, and from then to the end."""
    from bertworks.inference.predict import results_in
    from bertworks.io.portions import Portions
    from bertworks.io.processes import Bulk

    def inputs() -> Iterator[list[str]]:
        for number in range(portions):
            yield [f"{' '.join(WORDS)} {number} {row}" for row in range(rows)]

    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        job = Portions(Path(folder, "out"), Bulk(on=engine, workers=workers), {}, "bulk:maker", [seconds])
        with job.open():
            for _ in job.make("sleep", inputs()):
                pass
            end, first = time.time(), min(json.loads(results_in(file))[0] for file in job.files)
        return first - begin, end - first


def overhead(engine: str, seconds: float, portions: int = 8) -> dict[str, float]:
    """The seconds before the first portion are reported apart."""
    (start, wall), ideal = sleep_in_portions(engine, portions, seconds, 2048), portions * seconds / 2
    return {"start": start, "wall": wall, "ideal": ideal, "overhead": wall / ideal - 1}


def memory(rows: int) -> float:
    """MB of a new process that has that many rows sent to two workers."""
    command = [sys.executable, __file__, "--child", str(rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def two_workers(rounds: int, rows: int) -> dict[str, dict[str, float]]:
    draw, times = random.Random(0), dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        lines = [" ".join(draw.choices(WORDS, k=draw.randint(5, 30))) + f" {n}.\n" for n in range(rows)]
        (folder / "rows.txt").write_text("".join(lines))
        for number in range(4):  # 17 MB each: a portion each
            text = "".join(f"{line}\n" if n % 8 == 0 else line for n, line in enumerate(lines))
            (folder / "corpus" / f"{number}.txt").write_text((text * (1 + (17 << 20) // len(text)))[: 17 << 20])
        bertworks(folder, "vocab", "rows.txt", "-o", "words", "--size", "2000")
        commands = {
            "prepare": ("prepare", "corpus", "--tokenizer", "words", "-o", "out"),
            "embed": ("embed", "minilm", "rows.txt", "-o", "out.npy", "--precision", "fp32"),
        }
        for _ in range(rounds):
            for command, words in commands.items():
                for workers in (1, 2):
                    begin = time.perf_counter()
                    bertworks(folder, *words, "--on", "local", "--workers", str(workers), "--threads", "1")
                    times.setdefault(f"{command} {workers}", []).append(time.perf_counter() - begin)
                    shutil.rmtree(folder / "out", ignore_errors=True)
                    (folder / "out.npy").unlink(missing_ok=True)
    medians = {name: statistics.median(values) for name, values in times.items()}
    both = {name: (medians[f"{name} 1"], medians[f"{name} 2"]) for name in commands}
    return {name: {"one": one, "two": two, "ratio": one / two} for name, (one, two) in both.items()}


def bertworks(folder: Path, *words: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bertworks.cli.main", *words]
    subprocess.run(command, check=True, cwd=folder, env=environment, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=20_000, help="of embed; 0: do not measure two workers")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a portion")
    parser.add_argument("--engines", nargs="*", default=["local", "ray"])
    parser.add_argument("--most", type=int, default=1_000_000, help="rows, for the memory; 0: do not measure it")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sleep_in_portions("local", -(-arguments.child // 2048), 0.0, 2048)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for the workers of Ray
    results: dict[str, Any] = {engine: overhead(engine, arguments.seconds) for engine in arguments.engines}
    if arguments.most:
        results["memory"] = {rows: memory(rows) for rows in (10_000, arguments.most)}
    if arguments.rows:
        results |= two_workers(arguments.rounds, arguments.rows)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
