"""What all benchmarks share: where figures come from, where they go, and a process of its own for
each contender."""

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "concepts" / "performance.md"
IMAGES = HERE.parent / "docs" / "images"
TELLING = (
    "avx",
    "avx2",
    "fma",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


def provenance(packages: Sequence[str]) -> dict[str, Any]:
    """What a figure depends on: the command, the code, the machine, the time and the versions."""
    return {
        "command": " ".join(
            [
                "python",
                str(Path(sys.argv[0]).resolve().relative_to(HERE.parent)),
                *("FOLDER" if Path(word).is_absolute() else word for word in sys.argv[1:]),
            ]
        ),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "cpu": cpu("model name"),
        "cpu_flags": [flag for flag in TELLING if flag in cpu("flags").split()],
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def commit() -> str:
    """The short name of the commit, with -dirty if tracked files differ from it, other than what
    benchmarks write."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=HERE, capture_output=True, text=True
        ).stdout.strip()

    changed = git(
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":/",
        ":!/docs",
        ":!/benchmarks/results",
    )
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def cpu(field: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty if it has none."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == field), ""
    )


def process(
    script: str,
    arguments: Sequence[str],
    threads: int,
    cores: Sequence[int] | None = None,
    *,
    python: str = sys.executable,
    settings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What a script, run in a process of its own, prints as JSON on its last line. Nothing is sent
    over a network.

    cores: the only ones that it may use; None: all. python: of another environment. settings: of
        its environment.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment |= settings or {}
    pinned = [] if cores is None else ["taskset", "--cpu-list", ",".join(map(str, cores))]
    command = [*pinned, python, script, *arguments]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    if run.returncode:
        raise SystemExit(f"failed: {' '.join([script, *arguments])}")
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def skip_without(path: Path) -> None:
    """Ends the program, in peace, where `make bench` runs it on a machine without the data that it
    reads."""
    if not path.exists() and len(sys.argv) == 1 and not os.environ.get("BERTWORKS_DATA"):
        print(f"skipped: {path} is not there; set BERTWORKS_DATA to the folder of the data")
        raise SystemExit


def publish(name: str, results: dict[str, Any], table: str) -> None:
    """Writes results/NAME.json, and the table NAME (between two comments) of
    docs/concepts/performance.md."""
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    write_between(PAGE, name, table)


def write_between(page: Path, name: str, table: str) -> None:
    """Puts a table between the comments `NAME` and `/NAME` of a page."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has no place for {name}")
    page.write_text(f"{before}{begin}{table}\n{end}{after}")


if __name__ == "__main__":
    print(json.dumps(provenance(("torch",)), indent=2))


@dataclass(frozen=True)
class ConfidenceInterval:
    """The figures of several runs (seeds, folds) together."""

    count: int
    mean: float
    deviation: float | None  # standard deviation of the runs (n - 1); None for one run
    # the mean is within mean ± margin with 95 % confidence (Student's t); None for one run
    margin: float | None


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Mean, standard deviation and 95 % interval of the mean.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no runs: there is nothing to average")
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return ConfidenceInterval(1, mean, None, None)
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return ConfidenceInterval(
        count, mean, deviation, float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    )
