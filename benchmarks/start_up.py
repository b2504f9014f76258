"""Processor time of starting: pages of help and the version, next to an empty Python program and
one of cyclopts.

    python benchmarks/start_up.py [--rounds 15] [--checkouts FOLDER ...]

Each figure is the median of user and system time of a process of its own. The programs take turns,
so that other work on the machine disturbs all of them alike; a first round, which writes the
compiled modules, is not counted. With several checkouts of the repository, such as an older one and
this one, their commands take turns as well.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

CYCLOPTS_PROGRAM = """
from cyclopts import App
app = App(name="program", help="A program with one command.")

@app.command
def greet(name: str, *, loud: bool = False) -> None:
    '''Print a greeting.

    Args:
        name: Whom to greet.
        loud: In capital letters.
    '''
    print(name.upper() if loud else name)

app(["greet", "--help"])
"""
COMMANDS = (
    "",
    "--help",
    "--version",
    "vocab --help",
    "pretrain --help",
    "check --help",
    "finetune --help",
    "predict --help",
    "embed --help",
    "index --help",
    "serve --help",
    "evaluate --help",
    "evaluate task --help",
)


def processor_seconds(command: list[str], folder: Path) -> float:
    """User and system time of this command with the package in this folder."""
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--checkouts", type=Path, nargs="+", default=[Path(__file__).resolve().parents[1]]
    )
    options = parser.parse_args()
    here = options.checkouts[-1]
    empty = ("an empty program", [sys.executable, "-c", "pass"], here)
    trivial = (
        "a program of cyclopts, greet --help",
        [sys.executable, "-c", CYCLOPTS_PROGRAM],
        here,
    )
    programs = [empty, trivial]
    for words in COMMANDS:
        for folder in options.checkouts:
            name = f"bertworks {words}".rstrip() + (
                f" ({folder})" if len(options.checkouts) > 1 else ""
            )
            programs.append(
                (name, [sys.executable, "-m", "bertworks.cli.main", *words.split()], folder)
            )
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in programs}
    for number in range(options.rounds + 1):
        for name, command, folder in programs:
            duration = processor_seconds(command, folder)
            if number > 0:
                seconds[name].append(duration)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, ",
        end="",
    )
    print(
        f"cyclopts {version('cyclopts')}, rich {version('rich')}; {options.rounds} rounds, "
        "processor time"
    )
    print(f"{'seconds':>8} {'above empty':>12} {'of cyclopts':>12}")
    for name, median in medians.items():
        print(
            f"{median:8.3f} {median - medians[empty[0]]:12.3f} "
            f"{median / medians[trivial[0]]:12.2f}  {name}"
        )


if __name__ == "__main__":
    main()
