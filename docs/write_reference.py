"""Write the pages of docs/reference from the code: `make docs`.

- commands.md: the help of every command
- python.md: every public name with its signature and docstring
- recipes.md: every field of every table of a recipe

And what the command line must know without importing what it describes: the page that `bertworks`
prints without a command, in bertworks/cli/start_page.txt, and the fields of recipes, in
bertworks/cli/recipe_fields.toml.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from io import StringIO
from pathlib import Path
from types import FunctionType
from typing import Any, get_args, get_type_hints

from cyclopts import App
from rich.console import Console

import bertworks
import bertworks.sklearn
from bertworks.cli import start_page, suggestions
from bertworks.cli.parser import make_app
from bertworks.config import field_paths
from bertworks.training.recipe import FinetuneRecipe, Recipe

REFERENCE = Path(__file__).parent / "reference"
NOTE = "Written by `make docs` from the code."


def commands() -> str:
    """The help of every command."""
    page = ["# Commands", NOTE, ""]
    for name in ("", *names_of(make_app())):
        text = help_of(name.split(), width=110)
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        page += [f"## bertworks {name}".rstrip(), "```", lines, "```", ""]
    return "\n".join(page)


def help_of(words: list[str], *, width: int) -> str:
    """The help of a command as the parser writes it to a file, in lines of this width."""
    text = StringIO()
    console = Console(file=text, width=width, no_color=True, force_terminal=False)
    make_app()([*words, "--help"], console=console)
    return text.getvalue()


def unwrapped_start_page() -> str:
    """The page of `bertworks` without a command: each text in one line, and no borders on the
    right."""
    page = help_of([], width=1000)
    return re.sub(r"[ ─]*[│╮╯]$", "", page, flags=re.MULTILINE)


def recipe_fields() -> str:
    """The paths of all fields of the two kinds of recipes, as TOML."""
    lines = ["# Written by `make docs` from the code: what may stand behind --set."]
    for name, kind in (("pretrain", Recipe), ("finetune", FinetuneRecipe)):
        lines += [f"{name} = [", *(f'    "{path}",' for path in field_paths(kind)), "]"]
    return "\n".join(lines) + "\n"


def names_of(app: App, path: str = "") -> Iterator[str]:
    """The names of all commands in the order of the help, those within others after them."""
    for name in sorted((n for n in app if not n.startswith("-")), key=lambda n: position(app[n])):
        yield f"{path}{name}"
        yield from names_of(app[name], f"{path}{name} ")


def position(app: App) -> tuple[Any, ...]:
    return tuple(
        getattr(group, "sort_key", None) or 0 for group in app.group or ()
    ), app.sort_key or 0


def python() -> str:
    """Every public name with its signature and its docstring."""
    places = (
        "`bertworks` imports every name on first use, except for those of "
        "`bertworks.sklearn` at the end."
    )
    page = ["# Python", f"{NOTE} {places}", ""]
    public = {name: getattr(bertworks, name) for name in bertworks.__all__}
    public |= {name: getattr(bertworks.sklearn, name) for name in bertworks.sklearn.__all__}
    for name, value in public.items():
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        page += [
            f"## `{name}`",
            f"From `{value.__module__}`.",
            *described(name, value, signed=not is_error),
        ]
        for method in [] if is_error or not inspect.isclass(value) else public_methods(value):
            page += [f"### `{name}.{method}`", *described(method, getattr(value, method))]
    return "\n".join(page)


def public_methods(kind: type) -> list[str]:
    """Names of the documented public methods of a class, in the order of the code."""
    own = [
        name
        for name, member in vars(kind).items()
        if isinstance(member, FunctionType | classmethod)
    ]
    return [name for name in own if not name.startswith("_") and getattr(kind, name).__doc__]


def described(name: str, value: Any, *, signed: bool = True) -> list[str]:
    """Signature and docstring."""
    signature = inspect.signature(value) if signed else ""
    if is_dataclass(value) and signed:  # the types without the ranges of the values
        hints = get_type_hints(value)
        types = [
            p.replace(annotation=hints[p.name])
            for p in inspect.signature(value).parameters.values()
        ]
        signature = inspect.signature(value).replace(parameters=types)
    return [
        "```python",
        re.sub(
            r"<(?:function (\w+) at \w+|class '([\w.]+)')>",
            r"\1\2",
            re.sub(r"bertworks\.|_local\.", "", f"{name}{signature}"),
        ),
        "```",
        "```text",
        inspect.cleandoc(value.__doc__ or ""),
        "```",
        "",
    ]


def recipes() -> str:
    """Every field of every table of the two kinds of recipes."""
    page = ["# Recipes", f"{NOTE} `--set TABLE.FIELD=VALUE` changes a field.", ""]
    for title, recipe in (("Pre-training", Recipe), ("Fine-tuning", FinetuneRecipe)):
        for path, table in recipe_tables(recipe):
            page += [f"## {title}: {f'`{path}`' if path else 'top level'}", introduction(table), ""]
            page += ["| field | type | default | meaning |", "|---|---|---|---|"]
            page += [
                f"| `{name}` | {kind} | {default} | {text} |"
                for name, kind, default, text in rows_of(table)
            ]
            page.append("")
    return "\n".join(page)


def recipe_tables(recipe: type, path: str = "") -> Iterator[tuple[str, type]]:
    """A recipe and the dataclasses in it, as `[table]` or `[[list of tables]]`."""
    yield path, recipe
    for name, hint in get_type_hints(recipe).items():
        inner = next((kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)), None)
        if isinstance(inner, type):
            prefix = path.strip("[]")
            name = f"{prefix}.{name}" if prefix else name
            yield from recipe_tables(inner, f"[{name}]" if inner is hint else f"[[{name}]]")


def field_texts(table: type) -> dict[str, str]:
    """The paragraphs `name, name: text` of a docstring, by name."""
    texts: dict[str, str] = {}
    names: list[str] = []
    known = {field.name for field in fields(table)}  # type: ignore[arg-type]
    parts = [kind for kind in reversed(table.__mro__) if is_dataclass(kind)]
    docstrings = "\n\n".join(inspect.cleandoc(part.__doc__ or "") for part in parts)
    for line in docstrings.splitlines():
        heading = re.match(r"\s*(\w+(?:, \w+)*): (.*)", line)
        if heading and known.issuperset(heading[1].split(", ")):
            names, line = heading[1].split(", "), heading[2]
        elif not line.strip():
            names = []
        for name in names:
            texts[name] = f"{texts.get(name, '')} {line.strip()}".strip()
    return texts


def introduction(table: type) -> str:
    """The docstring up to the first text of a field."""
    text = " ".join(inspect.cleandoc(table.__doc__ or "").split())
    starts = [
        match.start()
        for match in re.finditer(r"(\w+)(?:, \w+)*: ", text)
        if match[1] in field_texts(table)
    ]
    return text[: min(starts)].strip() if starts else text


def rows_of(table: type) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and text of every field that is not a table."""
    hints, texts = get_type_hints(table), field_texts(table)
    for field in fields(table):  # type: ignore[arg-type]
        hint = hints[field.name]
        if any(is_dataclass(kind) for kind in (hint, *get_args(hint))):
            continue
        choices = [value for value in get_args(hint) if isinstance(value, str)]
        kind = ", ".join(f"`{value}`" for value in choices) or getattr(hint, "__name__", str(hint))
        kind = kind if not get_args(hint) or choices else str(hint)
        value = field.default if field.default_factory is MISSING else field.default_factory()
        default = "required" if value is MISSING else f"`{value!r}`".replace("'", '"')
        yield (
            field.name,
            kind.replace("|", "\\|"),
            default.replace("|", "\\|"),
            texts.get(field.name, "").replace("|", "\\|"),
        )


def pages() -> dict[Path, str]:
    """The content of each page."""
    reference = {
        REFERENCE / f"{write.__name__}.md": write() for write in (commands, python, recipes)
    }
    stored = {start_page.PAGE: unwrapped_start_page(), suggestions.FIELDS: recipe_fields()}
    return reference | stored


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
