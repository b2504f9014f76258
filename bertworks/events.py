"""Report what happens during a long piece of work, as values.

The caller shows them to a person, or writes them as JSON.
"""

import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar

from bertworks.errors import printable

# An object of JSON: values under their names.
JsonObject = dict[str, Any]
Kind = Literal["note", "stage", "plan", "step", "evaluation", "saved", "done"]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Event:
    """Something that happened: `text` is for people, `fields` for programs.

    A "note" is something that a person should know. A warning is about something that may make the
    results wrong: `--quiet` shows it, as it shows each line that begins with "warning:".
    """

    kind: Kind
    text: str
    fields: JsonObject = field(default_factory=dict)
    is_warning: bool = False


@dataclass(frozen=True)
class PartOfJob:
    """A part of a longer job: one of several trainings.

    Amounts of work are in any unit, the same for all parts.

    Args:
        name: of the part, for people: "fold 1/2".
        before: the work of all parts before this one.
        size: the work of this part, above 0.
        whole: the work of all parts.
    """

    name: str
    before: float
    size: float
    whole: float

    def placed(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield the events of this part. Those of steps get the progress of the whole job.

        These are fields: `part`, the names of the parts, the outer one first; `job_share`, the part
        of the work that is done, 0 to 1; `job_seconds`, the expected time of all of the job; and
        `job_seconds_left`. Parts of parts may be placed as well.
        """
        for event in events:
            yield self._placed_step(event) if event.kind == "step" else event

    def _placed_step(self, event: Event) -> Event:
        fields = event.fields
        progress = job_progress(fields)
        later = self.whole - self.before - self.size
        seconds_left = progress.seconds_left + later / self.size * progress.seconds
        share = (self.before + self.size * progress.share) / self.whole
        names = ", ".join(filter(None, (self.name, progress.part)))
        placed = {
            "part": names,
            "job_share": share,
            "job_seconds": progress.seconds * self.whole / self.size,
            "job_seconds_left": seconds_left,
        }
        return replace(event, fields=fields | placed)


class JobProgress(NamedTuple):
    """How far a job is at a step.

    part: the names of its parts, or "". share: of the work that is done, 0 to 1. seconds: the
    expected time of all of the job.
    """

    part: str
    share: float
    seconds: float
    seconds_left: float


def job_progress(fields: JsonObject) -> JobProgress:
    """Return how far the job is, from the fields of the event of a step.

    A training that is no part of a longer job is the whole job.
    """
    if "job_share" in fields:
        return JobProgress(
            fields["part"], fields["job_share"], fields["job_seconds"], fields["job_seconds_left"]
        )
    share = fields["step"] / fields["steps"]
    seconds_left = fields["eta_seconds"]
    return JobProgress("", share, fields["seconds"] + seconds_left, seconds_left)


def no_notes(text: str) -> None:
    """Shows no note: the default of work that passes its notes to a function."""


def result_of(events: Generator[Event, None, Result]) -> Result:
    """Run a generator to its end without showing its events, and return what it returns."""
    while True:
        try:
            next(events)
        except StopIteration as end:
            result: Result = end.value
            return result


def forward_events(events: Iterable[Event]) -> Generator[Event, None, Event]:
    """Yield the events of a part of a longer work, and return its last one.

    That last event is not the last one of the whole work.
    """
    done: Event | None = None
    for event in events:
        if event.kind == "done":
            done = event
        else:
            yield event
    assert done is not None
    return done


def duration(seconds: float) -> str:
    """42 s, 12 min, 3 h 05 min, 2 d 4 h."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes // 1440} d {minutes % 1440 // 60} h"


def show_progress(events: Iterable[Event], shows: bool | None = None) -> None:
    """Return the last event, after showing a line of the text of each in place.

    Lines appear in the output of a notebook, else on standard error.

    shows: False: shows nothing; None: only in notebooks.
    """
    from shutil import get_terminal_size  # it imports compression, which help does not need

    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    in_notebook = hasattr(shell, "kernel")
    handle = None
    for event in events:
        lines = event.text.strip().splitlines() or [""]
        line = printable(lines[0 if event.kind == "done" else -1])
        if in_notebook and shows is not False:
            handle = handle or import_module("IPython.display").display(
                {}, raw=True, display_id=True
            )
            handle.update({"text/plain": line}, raw=True)
        elif shows:
            width = get_terminal_size().columns - 1
            print(
                f"\r{line[:width]:<{width}}",
                end=("\n" if event.kind == "done" else ""),
                file=sys.stderr,
                flush=True,
            )
