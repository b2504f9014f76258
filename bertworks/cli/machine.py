"""`bertworks doctor` and `bertworks demo`: what this machine has, and what the tool does on it."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import emit, show_events
from bertworks.cli.options import Json


def doctor(*, as_json: Json = False) -> int:
    """Show what this machine has, what was chosen for it, and whether training works here. Takes a few seconds."""
    from bertworks.use.doctor import doctor as examine

    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            print(f"{'  ' if check.good else '! '}{check.name:<14}{check.text}", flush=True)
            if check.fix:
                print(f"{'':16}fix: {check.fix}")
    if as_json:
        emit([asdict(check) for check in checks])
    return 0 if all(check.good for check in checks) else 1


def demo(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The folder to write.")] = Path("demo"),
    minutes: Annotated[float, Parameter(validator=Number(gte=0.5), help="Time for vocabulary and pre-training.")] = 3.5,
    as_json: Json = False,
) -> None:
    """Pre-train a small BERT on the English that comes with Python, fine-tune one to tell its libraries apart, and show
    what they learned. No data is downloaded.
    """
    from bertworks.demo.tour import demo as run

    show_events(run(output, minutes=minutes), as_json=as_json)
