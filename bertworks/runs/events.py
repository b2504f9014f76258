"""What happens during a long piece of work, as values: the caller shows them to a person, or writes them as JSON."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["note", "stage", "plan", "step", "evaluation", "saved", "done"]


@dataclass(frozen=True)
class Event:
    """`text` is for people, `fields` for programs; a "note" is something that a person should know."""

    kind: Kind
    text: str
    fields: dict[str, Any] = field(default_factory=dict)
