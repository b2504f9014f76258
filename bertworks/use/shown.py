"""Which parts of an answer a person gets to see, and the columns of a file in which they stand. Not here: answers
(`learn.answers`)."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertworks.data.questions import Encoded
from bertworks.errors import UsageError
from bertworks.files.task import TaskDescription
from bertworks.learn.answers import Answer, mark_entities
from bertworks.rows.schema import Task

DIGITS = 6  # after the point, in a file
_PARTS: Mapping[Task, tuple[str, ...]] = {  # of an answer, that are given unasked
    "classification": ("label", "score"),
    "multilabel": ("labels",),
    "regression": ("value",),
    "tagging": ("tags",),
    "spans": ("entities",),
    "qa": ("answer", "start", "end", "score"),
    "choice": ("choice", "score"),
}


@dataclass(frozen=True)
class Shown:
    """Which parts of an answer are given, and how many labels or answers."""

    parts: tuple[str, ...]
    top_k: int
    probabilities: bool  # of all, whatever top_k says

    @classmethod
    def of_task(cls, d: TaskDescription, top_k: int, probabilities: bool, raw: bool = False) -> "Shown":
        """What a model for this task shows; raw: of texts whose words it does not know before."""
        parts = _PARTS[d.task]
        if raw:
            parts = (*(("entities",) if mark_entities(d.labels) else ()), "words", *parts)
        if top_k > 1 or probabilities:
            if d.task not in ("classification", "multilabel", "choice", "qa"):
                raise UsageError(f"a model for {d.task} gives one answer, without others beside it")
            parts = (*parts, "n_best" if d.task == "qa" else "scores")
        return cls(parts, top_k, probabilities)

    def of(self, answer: Answer) -> Answer:
        given = {part: answer[part] for part in self.parts}
        if not self.probabilities and "n_best" in given:
            given["n_best"] = given["n_best"][: self.top_k]
        elif not self.probabilities and isinstance(given.get("scores"), dict):
            best = sorted(given["scores"].items(), key=lambda pair: -pair[1])
            given["scores"] = dict(best[: self.top_k])
        return given


def said_in(answer: Answer) -> Any:
    """What an answer says, without how sure it is."""
    told = next(answer[parts[0]] for parts in _PARTS.values() if parts[0] in answer)
    if isinstance(told, list) and told and isinstance(told[0], dict):
        return [{name: value for name, value in part.items() if name != "score"} for part in told]
    return told


class Columns:
    """What is written beside a row: names that the row does not have.

    first_choice: how the data that was learned from counts choices; a prediction counts as its labels do.
    """

    def __init__(self, shown: Shown, taken: Sequence[str], first_choice: int = 0):
        self.shown, self.first_choice = shown, first_choice
        self.names = [f"predicted_{part}" for part in shown.parts] + ["truncated_tokens"]
        self.refuse_taken(taken)

    def refuse_taken(self, taken: Collection[str], where: str | None = None) -> None:
        """Raises UsageError where what is written would replace what is there."""
        if clash := [name for name in self.names if name in taken]:
            what = f"the {'row' if where else 'file'} has a column {clash[0]!r} already"
            raise UsageError(what, where=where, fix="rename it, or drop it")

    @property
    def nothing(self) -> dict[str, Any]:
        """The columns of a row without text."""
        return dict.fromkeys(self.names[:-1]) | {"truncated_tokens": 0}

    def of(self, encoded: Encoded, answer: Answer) -> dict[str, Any]:
        """The columns of one row."""
        given = self.shown.of(answer)
        if "choice" in given:
            given["choice"] += self.first_choice
        columns = {f"predicted_{part}": _rounded(value) for part, value in given.items()}
        return columns | {"truncated_tokens": encoded.num_truncated}


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as mean something, for people who open the file."""
    match value:
        case float():
            return round(value, DIGITS)
        case dict():
            return {name: _rounded(part) for name, part in value.items()}
        case list():
            return [_rounded(part) for part in value]
        case _:
            return value
