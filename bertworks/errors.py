"""Errors that users can cause: what is wrong, where, why, and a hint of what to type.

Any other exception that reaches the command line is a bug.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


class BertworksError(Exception):
    """The data, a model or the machine does not allow it.

    The command line prints it and exits with 1.

    Args:
        what: one sentence: what is wrong, and why.
        where: the place: a path, or a text as `file:line`.
        hint: what to type or change next.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: object = None, hint: str | None = None):
        super().__init__(what)
        self.what = what
        self.where = None if where is None else str(where)
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}" + (f"\n  hint: {self.hint}" if self.hint else "")


class UsageError(BertworksError):
    """The command or the recipe was typed wrongly.

    The command line exits with 2.
    """

    exit_code = 2


def column_names_of(data: object) -> list[str] | None:
    """Return the names of the columns of a table in memory, or None if the value is no table.

    A table is a dict of columns, or a table of pandas, polars, pyarrow or datasets.
    """
    if isinstance(data, Mapping):
        return [str(name) for name in data]
    # a DataFrame or LazyFrame of polars; the latter has to find out
    if hasattr(data, "collect_schema"):
        return [str(name) for name in data.collect_schema().names()]
    for attribute in ("column_names", "columns"):  # pyarrow and datasets; pandas
        names = getattr(data, attribute, None)
        if names is not None and isinstance(names, Iterable):
            return [str(name) for name in names]
    return None


def several(
    values: Iterable[_T], hint: str, what: str = "text", *, ordered: bool = True
) -> Iterable[_T]:
    """Check that an argument holds several values, one after the other.

    Everything that reads a list of texts, labels, names or ids asks this function.

    A string would be read letter by letter, a table by the names of its columns, and a set in any
    order.

    Args:
        hint: what to type for one value.
        what: the name of one value in the message.
        ordered: whether the order of the values matters; else a set will do.

    Raises:
        UsageError: it is one string, a table or a set, or cannot be iterated.
    """
    if isinstance(values, str | bytes):
        raise UsageError(f"expected a list of {what}s, not one {what}", hint=hint)
    if isinstance(values, set | frozenset) and ordered:
        raise UsageError(
            f"expected a list of {what}s, not a set, which has no order: {values!r:.60}",
            hint="give a list, as sorted(VALUES)",
        )
    columns = column_names_of(values)
    if columns and not isinstance(values, Mapping):
        raise UsageError(
            f"expected a list of {what}s, not a table with the columns {first_names(columns)}",
            hint=f"give one of its columns, as TABLE[{columns[0]!r}]",
        )
    has_no_length = getattr(values, "shape", None) == ()  # an array of numpy with a single value
    if columns is not None or has_no_length or not isinstance(values, Iterable):
        raise UsageError(f"expected a list of {what}s, not {values!r:.60}", hint=hint)
    # a column of pyarrow, of which each value is an object of pyarrow
    if hasattr(values, "to_pylist"):
        return list(values.to_pylist())
    return values


def listed(
    values: Iterable[_T], hint: str, what: str = "text", *, ordered: bool = True
) -> list[_T]:
    """`several` as a list: of a list, an array, a column of a table, a generator."""
    return list(several(values, hint, what, ordered=ordered))


def first_names(names: Sequence[str], count: int = 8) -> str:
    """Up to `count` names in words, in their order."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def names_of(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """One name, several or none, as a tuple."""
    if names is None or isinstance(names, str):
        return () if names is None else (names,)
    return tuple(listed(names, "give one name, or a list", "name"))


def some_names(names: Iterable[str], most: int = 8) -> str:
    """Return the first names in alphabetical order, for a message, and how many more there are."""
    ordered = [name if len(name) <= 120 else f"{name[:117]}..." for name in sorted(names)]
    return ", ".join(ordered[:most]) + (
        f" and {len(ordered) - most} more" if len(ordered) > most else ""
    )


def one_line(error: object) -> str:
    """Return the text of an error of another library in one line, of at most 200 characters."""
    return " ".join(str(error).split())[:200]


def printable(text: str) -> str:
    """Return a text in one line, with control characters as escapes.

    One of them is ESC, which commands a terminal.
    """
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def quoted(path: object) -> str:
    """Return a path or a name as it is typed in a shell."""
    return shlex.quote(str(path))


def require(holds: object, what: str, where: object = "", hint: str | None = None) -> None:
    """Raise BertworksError unless a condition holds, about what a file at `where` says.

    Args:
        hint: None: to choose another file.
    """
    if not holds:
        raise BertworksError(
            what, where=where or "", hint=hint or "get the file again, or choose another model"
        )


def expect(holds: object, what: str, *, where: object = None, hint: str | None = None) -> None:
    """Raise UsageError unless a condition holds, about what the user typed."""
    if not holds:
        raise UsageError(what, where=where, hint=hint)


def check(holds: object, what: str) -> None:
    """Raise ValueError unless a condition holds, about the content of a file.

    The caller knows which file.
    """
    if not holds:
        raise ValueError(what)


@contextmanager
def optional_import(feature: str, package: str) -> Iterator[None]:
    """Name the package to install if an import within this context fails.

    It is used around imports of packages that not every user has.

    Raises:
        BertworksError: an import failed. feature: what needs the package, the subject of the
            message.
    """
    try:
        yield
    except ImportError as error:
        raise BertworksError(
            f"{feature} needs a package that is not installed: {error}",
            hint=f"pip install {package}",
        ) from error


@contextmanager
def explain_os_errors(what: str, where: str | Path, hint: str | None = None) -> Iterator[None]:
    """Around work with files.

    Raises:
        BertworksError: the system refused something: a file is missing, the disk is full, ...
    """
    try:
        yield
    except OSError as error:
        raise BertworksError(
            f"{what}: {error.strerror or error}", where=where, hint=hint
        ) from error
