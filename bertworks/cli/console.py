"""Options that several verbs share: one name, one meaning, one line of help. Not here: what the verbs do with them.

What a person sees: progress on a terminal, plain lines in a pipe, JSON for programs.

Results go to standard output and everything else to standard error, so that both can be piped. Nothing here knows what
the work is; it is handed events and figures, and shows them.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from bertworks.errors import UsageError
from bertworks.events import Event, duration
from bertworks.io.text_files import STDIN


def _values(_: object, tokens: Sequence[Token]) -> list[str]:
    return ["-" if token.value == STDIN else token.value for token in tokens]


Inputs = Annotated[
    list[str],
    Parameter(
        converter=_values,
        help="Files, folders or globs, or - for standard input: .txt, .jsonl, .csv, .tsv, .parquet or WikiExtractor"
        " output, also as .gz, .zst, .xz or .bz2.",
    ),
]
Texts = Annotated[
    list[str], Parameter(converter=_values, help="Texts with [MASK] in them, or - for the lines of standard input.")
]
Sentences = Annotated[list[str], Parameter(converter=_values, help="Sentences, or - for the lines of standard input.")]
Explained = Annotated[
    list[str],
    Parameter(
        converter=_values,
        help="A text, for a pre-trained model with a [MASK]; two for a pair, or a question and its context; or - for"
        " the lines of standard input.",
    ),
]
Output = Annotated[Path, Parameter(name=["--output", "-o"], help="The folder to write.")]
Workers = Annotated[
    int | None, Parameter(validator=Number(gte=1), help="Processes. Unset: one per core that may be used.")
]
TextColumn = Annotated[
    str | None, Parameter(help="Column or JSON field that holds the text. Unset: it is guessed, and shown.")
]
Documents = Annotated[
    Literal["auto", "blank_line", "file"],
    Parameter(help="Where a document of a .txt file ends: at a blank line, or with the file."),
]
Overwrite = Annotated[bool, Parameter(negative="", show_default=False, help="Replace what the output folder holds.")]
Rounding = Annotated[
    Literal["auto", "fp32", "bf16", "int8"],
    Parameter(
        help="auto: bf16 where this hardware gains by it; else fp32. int8: matrices in 8 bits, sooner on CPUs with"
        " instructions for it (VNNI), a little less exact; what it costs is said."
    ),
]
Json = Annotated[
    bool,
    Parameter(name="--json", negative="", show_default=False, help="Write results as JSON to standard output."),
]

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str, option: str) -> int:
    """`"512m"`, `"1g"`, `"1.5 GiB"` as a number of bytes.

    Raises:
        UsageError: it is not a positive number with one of the units k, m, g, t.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size <= 0:
        raise UsageError(f"{option} {text!r} is not a size", hint=f"{option} 512m, or {option} 1g")
    return size


PLAIN_SECONDS = 5.0  # between two lines of progress where there is no terminal

_FIGURES: tuple[tuple[str, Callable[[Any], str]], ...] = (  # of a training step, in the order in which they are shown
    ("loss", lambda value: f"loss {value:.3f}"),
    ("masked_lm_accuracy", lambda value: f"masked words {value:.1%}"),
    ("next_sentence_accuracy", lambda value: f"next sentence {value:.1%}"),
    ("learning_rate", lambda value: f"rate {value:.1e}"),
    ("tokens_per_second", lambda value: f"{value:,.0f} tokens/s"),
    ("matmul_share", lambda value: f"{value:.0%} of matmul speed"),
    ("memory", lambda value: f"{value / 1e9:.2f} GB"),
    ("eta_seconds", lambda value: f"{duration(value)} left"),
)


def is_terminal() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr, flush=True)


def emit(data: Any) -> None:
    """One JSON value on one line of standard output."""
    print(json.dumps(data, ensure_ascii=False, default=str), flush=True)


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two aligned columns."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def figures(fields: Mapping[str, Any]) -> str:
    """One line about a training step; figures that are missing or None are left out."""
    step = f"step {fields['step']:,}/{fields['steps']:,}"
    return "  ".join([step, *(show(fields[name]) for name, show in _FIGURES if fields.get(name) is not None)])


def show_events(events: Iterable[Event], *, as_json: bool = False, results: bool = True) -> Event | None:
    """Show work while it goes on, and return its last event.

    Progress, notes and evaluations go to standard error; what is done, to standard output. With `as_json` everything
    but progress within a stage is a line of JSON on standard output as well: `kind`, and the event's fields. Of many
    processes that torchrun started, the first speaks for all. Without `results` nothing is said of what is done: the
    work itself writes to standard output.
    """
    last: Event | None = None
    first = os.environ.get("RANK", "0") == "0"
    with _display(results=results and not as_json) as show:
        for event in events:
            last = event
            if first and as_json and not _is_progress(event):
                emit({"kind": event.kind, **({"text": event.text} if event.kind == "note" else {}), **event.fields})
            if first:
                show(event)
    return last


def _is_progress(event: Event) -> bool:
    return event.kind == "stage" and "amount" in event.fields


@contextmanager
def _display(*, results: bool) -> Iterator[Callable[[Event], None]]:
    """Yield what shows one event: figures that stay in place on a terminal, else a line of them every few seconds."""
    if is_terminal():
        with _terminal_display(results=results) as show:
            yield show
        return
    last = 0.0

    def line(event: Event) -> None:
        nonlocal last
        if event.kind == "done" and results:
            print(event.text, flush=True)
        elif event.kind != "step" and not _is_progress(event):
            say(event.text)
        elif time.monotonic() - last >= PLAIN_SECONDS or event.fields.get("step") == event.fields.get("steps", ""):
            last = time.monotonic()
            say(figures(event.fields) if event.kind == "step" else event.text)

    yield line


@contextmanager
def _terminal_display(*, results: bool) -> Iterator[Callable[[Event], None]]:
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    with Live(console=console, refresh_per_second=4, transient=True, redirect_stdout=False) as live:

        def draw(event: Event) -> None:
            if event.kind == "step":
                rows = Table.grid(expand=True)
                rows.add_row(ProgressBar(total=event.fields["steps"], completed=event.fields["step"]))
                rows.add_row(Text(figures(event.fields)))
                live.update(rows)
            elif _is_progress(event):
                live.update(Text(event.text))
            elif event.kind == "done" and results:
                live.update(Text(), refresh=True)  # the cursor stands where the result is to be printed
                print(event.text, flush=True)
            else:
                console.print(event.text, markup=False)

        yield draw
