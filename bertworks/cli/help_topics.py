"""The help of a command with many options: boxes by topic, and the options used most first.

`COMMAND --help` shows about ten options, `COMMAND --help all` shows all of them. help_topics.toml
names the box of each option, and the options that each of these commands shows first. A command
that it does not name has few options, which are all in one box.

- `CommandApp`: the parser of a command, with this help
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from cyclopts import App, Group, Parameter
from cyclopts.argument import ArgumentCollection

_TABLES = Path(__file__).with_suffix(".toml")


class CommandApp(App):
    """A parser that writes the options of its command by topic.

    Attributes:
        words: the command without `bertworks`, e.g. "evaluate task".
        shows_all: whether the help has all options, and not only those used most.
        examples: the end of the help.
    """

    words = ""
    shows_all = True
    examples = ""

    def assemble_argument_collection(
        self, *, default_parameter: Parameter | None = None, parse_docstring: bool = False
    ) -> ArgumentCollection:
        """Return the arguments of the command; for a page of help, with their topics.

        The options are in the order of the table. One that the page leaves out is marked as not
        shown; the last line of the page counts them.

        Args:
            default_parameter: as in cyclopts.
            parse_docstring: whether it is for a page of help.
        """
        arguments = super().assemble_argument_collection(
            default_parameter=default_parameter, parse_docstring=parse_docstring
        )
        most_used = _tables()["most_used"].get(self.words) if parse_docstring else None
        if not most_used:
            return arguments
        groups = _groups()
        positions = {option: position for position, option in enumerate(groups)}
        arguments.sort(key=lambda argument: positions.get(argument.name, -1))
        num_hidden = 0
        for argument in arguments:
            if not argument.show or argument.index is not None:
                continue
            is_shown = self.shows_all or argument.name in most_used
            num_hidden += not is_shown
            changes: dict[str, Any] = {} if is_shown else {"show": False}
            argument.parameter = Parameter.combine(
                argument.parameter, Parameter(group=groups[argument.name], **changes)
            )
        note = f"\n\n{num_hidden} more options: bertworks {self.words} --help all"
        self.help_epilogue = self.examples + (note if num_hidden else "")
        return arguments


@cache
def _tables() -> dict[str, dict[str, list[str]]]:
    """Return the tables of help_topics.toml."""
    return tomllib.loads(_TABLES.read_text(encoding="utf-8"))


@cache
def _groups() -> dict[str, Group]:
    """Return the box of each option, by the first of its names."""
    groups: dict[str, Group] = {}
    for position, (title, options) in enumerate(_tables()["topics"].items()):
        group = Group(title, sort_key=position)
        groups |= dict.fromkeys(options, group)
    return groups
