"""What a person sees: progress on a terminal, plain lines in a pipe, JSON for programs.

Data goes to standard output and everything else to standard error, so that `--json` can be piped. Nothing here knows
what the work is; it is handed figures and shows them.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bertworks.use.events import Event

PLAIN_SECONDS = 5.0  # between two lines of progress where there is no terminal


def is_terminal() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


def say(text: str) -> None:
    """One line for people."""
    print(text, file=sys.stderr, flush=True)


def emit(data: Any) -> None:
    """One JSON value on one line of standard output."""
    print(json.dumps(data, ensure_ascii=False, default=str), flush=True)


def table(rows: Iterable[tuple[str, str]], indent: str = "  ") -> str:
    """Names and values in two aligned columns."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{indent}{name:<{width}}  {value}" for name, value in rows)


def amount(number: float, unit: str = "") -> str:
    """A number as people read it: `12,345`, `1.23 M`, `4.5 G`, with its unit."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(number) >= factor:
            return f"{number / factor:.2f} {prefix}{unit}".rstrip()
    return f"{number:,.0f} {unit}".rstrip()


def duration(seconds: float) -> str:
    """`8 s`, `3:07 min` or `2:03:07 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} h"


@contextmanager
def counting(label: str, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield `show(done)` for work whose end is unknown: a line that stays in place, or one more every few seconds."""
    begin = last = time.monotonic()

    def line(done: int) -> str:
        seconds = time.monotonic() - begin
        return f"{label}: {amount(done, unit)} in {duration(seconds)}, {amount(done / max(seconds, 1e-3), unit)}/s"

    if is_terminal():
        from rich.console import Console

        with Console(stderr=True, highlight=False).status(label) as status:
            yield lambda done: status.update(line(done))
        return

    def show(done: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            say(line(done))

    yield show


def figures(fields: Mapping[str, Any]) -> str:
    """One line of the figures of a training step; those that are missing or None are left out."""
    shown = (
        ("step", lambda v: f"step {v:,}/{fields['steps']:,}" if fields.get("steps") else f"step {v:,}"),
        ("loss", lambda v: f"loss {v:.3f}"),
        ("masked_lm_accuracy", lambda v: f"masked words {v:.1%}"),
        ("next_sentence_accuracy", lambda v: f"next sentence {v:.1%}"),
        ("learning_rate", lambda v: f"rate {v:.1e}"),
        ("tokens_per_second", lambda v: f"{v:,.0f} tokens/s"),
        ("matmul_share", lambda v: f"{v:.0%} of matmul speed"),
        ("memory", lambda v: f"{v / 1e9:.2f} GB"),
        ("eta_seconds", lambda v: f"{duration(v)} left"),
    )
    return "  ".join(show(fields[name]) for name, show in shown if fields.get(name) is not None)


def show_run(events: Iterable[Event], *, as_json: bool = False) -> Event | None:
    """Show a run while it goes on; its last event. With `as_json` every event is also a line of standard output."""
    last: Event | None = None
    with _run_display() as show:
        for last in events:
            if as_json:
                emit({"kind": last.kind, **last.fields})
            show(last)
    return last


@contextmanager
def _run_display() -> Iterator[Callable[[Event], None]]:
    """Yield what shows one event: a bar and a line of figures that stay in place, or plain lines."""
    if is_terminal():
        from rich.console import Console, Group
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        console = Console(stderr=True, highlight=False)
        with Live(console=console, refresh_per_second=4, transient=True) as live:

            def draw(event: Event) -> None:
                if event.kind != "step":
                    console.print(event.text, markup=False)
                    return
                bar = ProgressBar(
                    total=event.fields.get("steps") or 1, completed=event.fields["step"], width=console.width
                )
                live.update(Group(bar, Text(figures(event.fields))))

            yield draw
        return

    last = 0.0

    def line(event: Event) -> None:
        nonlocal last
        if event.kind != "step":
            say(event.text)
        elif time.monotonic() - last >= PLAIN_SECONDS or event.fields["step"] == event.fields.get("steps"):
            last = time.monotonic()
            say(figures(event.fields))

    yield line
