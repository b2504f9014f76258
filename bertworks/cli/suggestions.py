"""What to type instead of a word that the command line does not know.

Other tools have other words for the same thing, which are in other_words.toml; the fields of
recipes are in recipe_fields.toml, which `make docs` writes from the code, so that an answer needs
neither torch nor half a second.

- `command_instead`: of an unknown command
- `option_instead`: of an unknown option
- `value_hint`: for a value that an option does not have
"""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from bertworks.config import near_path, option_of

FIELDS = Path(__file__).with_name("recipe_fields.toml")
_WORDS = Path(__file__).with_name("other_words.toml")
# Commands with a recipe -> the table of its fields. `glue` is `evaluate glue`.
_RECIPES = {"pretrain": "pretrain", "finetune": "finetune", "glue": "finetune"}
_SIMILARITY = 0.75  # of two words of which one may be meant by the other


def command_instead(word: str, commands: Collection[str]) -> str | None:
    """Return what to type instead of an unknown command; None: nothing is like it.

    Args:
        word: the unknown command.
        commands: the commands that there are.

    Example:
        command_instead("train", ["finetune"]) -> "finetune DATA -o MODEL"
    """
    usage = _table("commands").get(word.lower().replace("_", "-"))
    if isinstance(usage, str) and usage.split()[0] in commands:
        return usage
    return next(iter(get_close_matches(word, commands, 1, 0.6)), None)


def option_instead(option: str, command: Sequence[str], options: Collection[str]) -> str | None:
    """Return what to type instead of an unknown option; None: nothing is like it.

    A word of another tool wins over an option that is spelled alike, and this over a field of the
    recipe of the command.

    Args:
        option: as it was typed, with or without a value behind "=".
        command: the words of the command, as in ["evaluate", "glue"].
        options: all names of the options of the command.

    Example:
        option_instead("--lr", ["finetune"], ["--layers", "--learning-rate"]) -> "--learning-rate"
    """
    name = option.partition("=")[0].strip("-").replace("_", "-")
    candidates = _table("options").get(name.lower(), ())
    for candidate in candidates:
        first = candidate.split()[0]
        if first in options or first == "bertworks":
            return candidate
        if first == "--set" and "--set" in options:
            return f"{candidate}VALUE"
    names = [known.strip("-") for known in options if known.startswith("--")]
    near = get_close_matches(name, names, 1, _SIMILARITY)
    if near:
        return f"--{near[0]}"
    recipe = _RECIPES.get(command[-1]) if command else None
    path = near_path(_fields()[recipe], name) if recipe else None
    if path is None:
        return None
    field_option = option_of(path)
    return field_option if field_option in options else f"--set {path}=VALUE"


def value_hint(names: Collection[str]) -> str | None:
    """Return a hint for a value that an option does not have. names: of the option."""
    hints = _table("values")
    return next((str(hints[name]) for name in names if name in hints), None)


@cache
def _words() -> Mapping[str, Mapping[str, str | Sequence[str]]]:
    return tomllib.loads(_WORDS.read_text(encoding="utf-8"))


def _table(name: str) -> Mapping[str, str | Sequence[str]]:
    """Return a table of other_words.toml."""
    return _words()[name]


@cache
def _fields() -> Mapping[str, Sequence[str]]:
    """Return the paths of all fields of the two kinds of recipes."""
    return tomllib.loads(FIELDS.read_text(encoding="utf-8"))
