"""Read and write tables of settings: TOML text <-> frozen dataclasses.

Errors say where and what to type.
"""

import json
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from bertworks.errors import UsageError, check, expect, names_of
from bertworks.events import JsonObject
from bertworks.io.atomic_write import read_small

T = TypeVar("T")
_LARGEST_RECIPE = 1 << 14  # bytes; those of bertworks have up to 2 kB


class Range(NamedTuple):
    """The valid values of a field of `Settings`, in its annotation.

    expected: these values, in words.
    """

    expected: str
    holds: Callable[[Any], bool]


# Types of fields.
Positive = Annotated[int, Range("1 or more", lambda x: x >= 1)]
NotNegative = Annotated[int, Range("0 or more", lambda x: x >= 0)]
MAX_SIZE = 1 << 20  # of what a model folder tells to reserve
Size = Annotated[int, Range(f"1 to {MAX_SIZE:,}", lambda x: 1 <= x <= MAX_SIZE)]
# What people use is far below these. Far above them, a run would need more memory than any machine
# has, or never end.
MAX_COUNT = 2_000_000_000  # steps, sequences, evaluations
MAX_TOKENS = 1 << 40  # that are computed at once: a byte for each of them would be a terabyte
Count = Annotated[int, Range(f"1 to {MAX_COUNT:,}", lambda x: 1 <= x <= MAX_COUNT)]
CountOrZero = Annotated[int, Range(f"0 to {MAX_COUNT:,}", lambda x: 0 <= x <= MAX_COUNT)]
TokenCount = Annotated[int, Range(f"1 to {MAX_TOKENS:,}", lambda x: 1 <= x <= MAX_TOKENS)]
LONGEST = 60  # characters of a path in a message
AboveZero = Annotated[float, Range("a number above 0", lambda x: 0 < x < math.inf)]
SizeOrZero = Annotated[int, Range(f"0 to {MAX_SIZE:,}", lambda x: 0 <= x <= MAX_SIZE)]
Fraction = Annotated[float, Range("a fraction from 0 to 1", lambda x: 0 <= x <= 1)]
FractionAboveZero = Annotated[float, Range("a fraction above 0, at most 1", lambda x: 0 < x <= 1)]
FractionBelowOne = Annotated[float, Range("a fraction from 0 to below 1", lambda x: 0 <= x < 1)]


class Settings:
    """The base of dataclasses that check the ranges of their fields, and the rules between them.

    Raises:
        ValueError: a value is out of its range, or a rule does not hold.
    """

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for limit in getattr(hint, "__metadata__", ()):
                value = getattr(self, name)
                if not limit.holds(value):
                    raise ValueError(f"{name} is {value!r}: expected {limit.expected}")
        for holds, message in self.rules():
            check(holds, message)

    def rules(self) -> Iterable[tuple[object, str]]:
        """Return what must hold, and the message if it does not."""
        return ()


def packaged_table(module: str, name: str) -> JsonObject:
    """Return the content of a TOML file of the package, beside a module. module: its `__file__`."""
    return tomllib.loads((Path(module).parent / name).read_text(encoding="utf-8"))


def read_recipe_text(name: str, what: str, known: Mapping[str, str]) -> str:
    """Return the TOML text of a file, or of a name that is known. what: it is called in messages.

    Raises:
        UsageError: no such file or name; a file that is no text.
    """
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UsageError(
                f"there is no recipe file {name}", hint=f"name one of {', '.join(known)}, or a file"
            )
        try:
            return read_small(path, _LARGEST_RECIPE).decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError as error:
            raise UsageError(
                "this is not a text in UTF-8", where=name, hint="save it as UTF-8"
            ) from error
    near = get_close_matches(name, known, 1)
    expect(
        name in known,
        f"there is no {what} called {name!r}",
        hint=f"did you mean {near[0]}?"
        if near
        else f"name one of {', '.join(known)}, or a .toml file",
    )
    return known[name]


def parse_as(kind: type[T], text: str, where: str, overrides: Sequence[str] = ()) -> T:
    """Return the recipe that a TOML text and overrides describe.

    It is a dataclass of values and of other dataclasses.

    overrides: words `table.field=value`.
    where: the name of the text in errors.

    Raises:
        UsageError: text that is not TOML; an unknown field, a wrong type, a missing or refused
            value: with its path.
    """
    try:
        table = tomllib.loads(text)
    # numbers of thousands of digits, thousands of lists in lists
    except (ValueError, RecursionError) as error:
        raise UsageError(f"this is not TOML: {str(error)[:200]}", where=where) from error
    _set_overrides(kind, table, overrides)
    return build(kind, table, where)


def override(recipe: T, overrides: Sequence[str]) -> T:
    """Return the recipe with the fields of `table.field=value` words replaced."""
    table = tomllib.loads(dump_recipe(recipe))
    _set_overrides(type(recipe), table, overrides)
    return build(type(recipe), table, "--set")


def dump_recipe(recipe: Any) -> str:
    """Return a recipe as TOML; reading it gives the same recipe."""
    table = asdict(
        recipe,
        dict_factory=lambda items: {name: value for name, value in items if value is not None},
    )
    return "\n".join(_table_lines(table, "")).strip() + "\n"


def _table_lines(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield the lines of a table, then those of the tables in it."""
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            tables.append((f"[{name}{key}]", value))
        elif isinstance(value, tuple) and value and isinstance(value[0], dict):
            tables += [(f"[[{name}{key}]]", item) for item in value]
        else:
            # Values are written as in JSON, but for infinity and the escape of DEL.
            text = (
                repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
            )
            yield f"{key} = {text}".replace("\x7f", "\\u007f")
    for header, inner in tables:
        yield from ("", header)
        yield from _table_lines(inner, header.strip("[]") + ".")


def parse_overrides(overrides: Sequence[str]) -> JsonObject:
    """Return the values of `table.field=value` words by field.

    The last word for a field counts.

    Raises:
        UsageError: a word of another form.
    """
    values: JsonObject = {}
    for word in names_of(overrides):
        name, equals, text = word.partition("=")
        expect(
            equals and name,
            f"{word!r} sets nothing",
            hint="write it as table.field=value, as in optimizer.learning_rate=1e-3",
        )
        try:
            value = tomllib.loads(f"x = {text}")["x"]
        except (ValueError, RecursionError):
            value = text  # a bare word is a string
        values[name] = value
    return values


def add_overrides(overrides: Sequence[str], settings: Mapping[str, object]) -> tuple[str, ...]:
    """Return the `table.field=value` words, and one more for each setting.

    Args:
        settings: values by the path of a field; None: not set.

    Raises:
        UsageError: a word sets a field of `settings`, too.
    """
    words = tuple(f"{path}={value}" for path, value in settings.items() if value is not None)
    if twice := parse_overrides(overrides).keys() & parse_overrides(words).keys():
        raise UsageError(
            f"{min(twice)} is set twice: in overrides, and on its own", hint="leave one of them out"
        )
    return *overrides, *words


def option_of(path: str) -> str:
    """Return the option of the command line for a field.

    That of optimizer.learning_rate is --learning-rate.
    """
    return f"--{path.rpartition('.')[2].replace('_', '-')}"


def field_paths(kind: Any, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all fields of a recipe, as in optimizer.learning_rate.

    Of a list: those of its first item.
    """
    hints = get_type_hints(kind)
    for field in fields(kind):
        path = f"{prefix}{field.name}"
        hint = hints[field.name]
        yield path
        if table := next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None):
            yield from field_paths(table, f"{path}.0." if get_origin(hint) is tuple else f"{path}.")


def near_field(kind: Any, path: str) -> str | None:
    """Return the field of a recipe that an unknown path means, or None: see `near_path`."""
    return near_path(field_paths(kind), path)


def near_path(paths: Iterable[str], path: str) -> str | None:
    """Return the one of the paths of fields that an unknown path means, or None.

    It is the field of the same name in another table; else of a similar name, of a name that is a
    part of it (num_train_epochs), or with these initials (lr).
    """
    table, _, name = path.replace("-", "_").rpartition(".")
    by_name = {
        p.rpartition(".")[2]: p for p in sorted(paths, key=lambda p: p.rpartition(".")[0] == table)
    }
    near = get_close_matches(name, by_name, 1, 0.75) or [
        part for part in by_name if f"_{part}_" in f"_{name}_"
    ]
    near += [whole for whole in by_name if "".join(word[0] for word in whole.split("_")) == name]
    return by_name[near[0]] if near else None


def _set_overrides(kind: Any, table: JsonObject, overrides: Sequence[str]) -> None:
    """Set fields of a table by words such as train.phases.1.num_steps=100.

    A missing table is added.
    """
    for name, value in parse_overrides(overrides).items():
        place: Any = table
        *path, last = name.split(".")
        for key in path:
            place = (
                place.setdefault(key, {})
                if isinstance(place, dict)
                else place[_index(kind, place, key, name)]
            )
        place[_index(kind, place, last, name)] = value


def _index(kind: Any, place: Any, key: str, name: str) -> str | int:
    """Return the key as that of a table, or as the number of an item of a list."""
    if isinstance(place, dict):
        return key
    if isinstance(place, list) and key.isdigit() and int(key) < len(place):
        return int(key)
    raise UsageError(f"{name}: there is no {key!r}", hint=_field_hint(kind, name))


def _field_hint(kind: Any, path: str) -> str:
    near = near_field(kind, path)
    return (
        f"did you mean {near}?"
        if near
        else f"the fields are {', '.join(sorted(f.name for f in fields(kind)))}"
    )


def build(kind: type[T], value: Any, where: str, at: str = "", whole: Any = None) -> T:
    """Return `value` as a `kind`, or raise a UsageError that names its path `at`.

    where: the name of the file, for messages. whole: the kind that it is a part of.
    """
    origin = get_origin(kind)
    choices = get_args(kind)
    if is_dataclass(kind):
        return cast(T, _build_dataclass(kind, value, where, at, whole or kind))
    if origin is Literal:
        if value not in choices:
            raise UsageError(
                f"{at}: {value!r:.60} is none of {', '.join(map(repr, choices))}", where=where
            )
        return cast(T, value)
    if origin in (Union, UnionType):  # TOML has no null
        kinds = [c for c in choices if c is not NoneType]
        return build(type(value) if type(value) in kinds else kinds[0], value, where, at, whole)  # type: ignore[no-any-return]
    if origin is tuple and isinstance(value, list):
        return cast(
            T, tuple(build(choices[0], v, where, f"{at}[{i}]", whole) for i, v in enumerate(value))
        )
    if kind is float and type(value) is int:
        return cast(T, float(value))
    if origin is dict and isinstance(value, dict):  # arguments of a function, which checks them
        return cast(T, value)
    if origin in (tuple, dict) or type(value) is not kind:
        names = {"tuple": "a list", "dict": "a table"}
        name = names.get(getattr(origin, "__name__", ""), getattr(kind, "__name__", str(kind)))
        raise UsageError(f"{at}: expected {name}, got {value!r:.60}", where=where)
    return value


def _build_dataclass(kind: Any, value: Any, where: str, at: str, whole: Any) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{at or 'recipe'}: expected a table, got {value!r:.60}", where=where)
    hints = get_type_hints(kind)
    prefix = at and at + "."
    for name in value.keys() - {f.name for f in fields(kind)}:
        path = name
        inner = value[name]
        while isinstance(inner, dict) and len(inner) == 1:  # as in optimiser.learning_rate
            (key, inner), *_ = inner.items()
            path = f"{path}.{key}"[:LONGEST]
        near = near_field(kind, path)
        raise UsageError(
            f"{prefix}{path}: no such field",
            where=where,
            hint=f"did you mean {prefix}{near}?" if near else _field_hint(whole, prefix + path),
        )
    for f in fields(kind):
        if f.name not in value and f.default is MISSING and f.default_factory is MISSING:
            raise UsageError(f"{prefix}{f.name}: must be given", where=where)
    parts = {
        name: build(hints[name], part, where, prefix + name, whole) for name, part in value.items()
    }
    try:
        return kind(**parts)
    except (ValueError, UsageError) as error:  # what the dataclass itself refuses
        what, remedy = (
            (error.what, error.hint) if isinstance(error, UsageError) else (str(error), None)
        )
        raise UsageError(f"{at + ': ' if at else ''}{what}", where=where, hint=remedy) from error
