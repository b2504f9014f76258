"""Tables in files: delimiters, quotes and headers; Parquet files; the column of the text."""

import csv
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from bertworks.errors import BertworksError, UsageError, quoted
from bertworks.io.text_files import IssueCounter

TEXT_NAMES = (
    *("text", "content", "contents", "body", "article", "document", "doc", "passage", "paragraph", "paragraphs"),
    *("sentence", "sentences", "raw_text", "raw_content", "plain_text", "maintext", "story", "abstract", "review"),
    *("comment", "本文", "テキスト", "본문", "텍스트"),
)
_MIN_TEXT = 20  # characters on average of a column that is inferred to be text
_LONGEST_CELL = 1 << 26  # characters; longer cells come from a quote mark that is never closed
_UNCLOSED = re.compile("end of data|field limit")
_QUOTED_CELL = r'"((?:[^"]+|"")*+)"(?=[\t\n]|\Z)'
_CELL = re.compile(_QUOTED_CELL + r'|[^"\t\n]*+(?=[\t\n]|\Z)')
_UNFINISHED_CELL = re.compile(r'"(?:[^"]+|"")*+\Z')


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a file of rows is read. The fields are options of every command that reads rows.

    Args:
        quoting: Whether quote marks enclose cells (quoted) or are text (raw).
        header: Whether the first row of a table names the columns. Unset: inferred and printed.
    """

    quoting: Literal["auto", "raw", "quoted"] = "auto"
    header: bool | None = None

    @property
    def words(self) -> list[str]:
        """The options of the command line that differ from their defaults."""
        words: list[str] = []
        for field in fields(self):
            name, value = field.name.replace("_", "-"), getattr(self, field.name)
            if value != field.default:
                words += [f"--{'' if value else 'no-'}{name}"] if isinstance(value, bool) else [f"--{name}", str(value)]
        return words


def delimiter_of(sample: Sequence[str], format: str | None) -> str:
    """The delimiter of a table: a tab if the format of its name says so, else the most frequent of , ; tab | in the
    first line."""
    header = next((line for line in sample if line.strip()), "")
    return "\t" if format == "tsv" else max(",;\t|", key=header.count)


def quotes_matter(lines: Sequence[str]) -> bool:
    r"""Whether quote marks enclose cells of a tab-separated table, or belong to the text, as in most TSV files.

    They enclose cells if each quote mark belongs to a well-formed quoted cell, and if rows would have different widths
    without them, or a cell needs its quotes, or all cells of the first row have them.

    Args:
        lines: the first lines of a table, or lines that begin with a row.
    """
    text = "\n".join(lines)
    if '"' not in text:
        return False
    uneven = len({line.count("\t") for line in lines if line}) > 1
    needed = uneven or all(re.fullmatch(_QUOTED_CELL, cell) for cell in lines[0].split("\t"))
    position = 0
    while position < len(text):
        match = _CELL.match(text, position)
        if match is None:
            return needed and _UNFINISHED_CELL.match(text, position) is not None
        if (quoted := match[1]) is not None:
            needed = needed or not quoted or any(mark in quoted for mark in '"\t\n\r')
        position = match.end() + 1
    return needed


def split_rows(
    lines: Iterable[tuple[int, str]], delimiter: str, *, quoted: bool, name: str, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line of a row, its cells); a blank line has no cells.

    Args:
        lines: numbered lines without "\\n".
        quoted: whether quote marks enclose cells.
        name: of the file, for messages.
        strict: a quote mark in a wrong place is an error, not text.

    Raises:
        BertworksError: a quote mark is not closed, or not followed by the next cell.
    """
    if not quoted:
        for number, line in lines:
            line = line.removesuffix("\r")
            yield number, line.split(delimiter) if line else []
        return
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter, strict=strict)
    number = 1
    try:
        for row in rows:
            yield number, row
            number = rows.line_num + 1
    except csv.Error as error:
        raise _not_a_table(f"{name}:{number}", str(error)) from error


def column_names(first: Sequence[str], *, named: bool) -> list[str]:
    """The names of the columns of a table: the cells of its first row if it is a header, else "column 1", ..."""
    return [cell if named and cell.strip() else f"column {index}" for index, cell in enumerate(first, 1)]


def rejoin_broken_rows(
    rows: Iterable[tuple[int, list[str]]], width: int, broken: IssueCounter, name: str
) -> Iterator[tuple[int, list[str]]]:
    r"""Join rows that a newline inside a cell has divided: two lines with too few cells that have `width` cells when
    joined by "\n". Other rows are unchanged.

    Args:
        broken: counts such rows.
        name: of the file, for `broken`.
    """
    before: tuple[int, list[str]] | None = None
    for number, cells in rows:
        if before and len(cells) < width == len(before[1]) + len(cells) - 1:
            begin, first = before
            broken.add(f"{name}:{begin}")
            yield begin, [*first[:-1], f"{first[-1]}\n{cells[0]}", *cells[1:]]
            before = None
            continue
        if before:
            yield before
        before = (number, cells) if 0 < len(cells) < width else None
        if not before:
            yield number, cells
    if before:
        yield before


def _not_a_table(where: str, problem: str) -> BertworksError:
    if "new-line character" in problem:
        what, hint = "a line ends in a carriage return alone", "convert the file: `tr '\\r' '\\n' < OLD > NEW`"
    else:
        what = "a quote mark is opened here and never closed" if _UNCLOSED.search(problem) else problem
        hint = 'look for a quote mark too many; inside quotes it is written twice: "He said ""no"", and left."'
    return BertworksError(f"not a table: {what}", where=where, hint=hint)


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its first bytes. False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False  # reported when it is opened


@contextmanager
def open_parquet(path: Path, name: str) -> Iterator[Any]:
    """Open a `pyarrow.parquet.ParquetFile`.

    Raises:
        BertworksError: the file is damaged or cannot be read, now or inside the block.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        what = f"the Parquet file is damaged or cannot be read: {error}"
        raise BertworksError(what, where=name, hint="fetch it again, or leave it out") from error


def as_text(value: object) -> str | None:
    """A cell as text: empty if it is missing, lines for a list of texts, None for other types."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


def choose_column(
    columns: Mapping[str, Sequence[object]], name: str, column: str | None, option: str = "--text-column"
) -> str:
    """Choose the column of the text: `column`, else by name, else the one with the longest texts.

    Args:
        option: of the command line, for messages.
    """
    if column is not None:
        return find_column(list(columns), name, column, option)
    listed = ", ".join(columns) or "none"
    lengths = {key: _mean_length(values) for key, values in columns.items()}
    by_name = {key.strip().lower(): key for key in reversed(list(columns)) if lengths[key]}
    if chosen := next((by_name[candidate] for candidate in TEXT_NAMES if candidate in by_name), None):
        return chosen
    longest = max(lengths, key=lambda key: lengths[key], default=None)
    if longest is None or lengths[longest] < _MIN_TEXT:
        what = f"no column looks like text; the columns are: {listed}"
        raise BertworksError(what, where=name, hint=f"name the one that holds the text with {option}")
    return longest


def find_column(columns: Sequence[str], name: str, column: str, option: str) -> str:
    """Check that a column exists.

    Args:
        name: of the file, for messages.
        option: of the command line, for messages.

    Raises:
        UsageError: there is no such column. The message lists all columns and suggests the closest.
    """
    if column in columns:
        return column
    close = difflib.get_close_matches(column.lower(), [key.lower() for key in columns], 1)
    meant = next((key for key in columns if [key.lower()] == close), None)
    what = f"there is no column {column!r}; the columns are: {', '.join(columns) or 'none'}"
    hint = f"did you mean {option} {quoted(meant)}?" if meant else f"name one of them with {option}"
    raise UsageError(what, where=name, hint=hint)


def _mean_length(values: Iterable[object]) -> float:
    texts = [as_text(value) or "" for value in values]
    return sum(map(len, texts)) / len(texts) if texts else 0.0


def is_header(row: list[str]) -> bool:
    """Whether the first row of a table names the columns: short and distinct, no sentences, no numbers."""
    return len(set(row)) == len(row) and all(
        cell.strip() and len(cell) <= 64 and not cell.strip().endswith((".", "?", "!", "。")) and not _is_number(cell)
        for cell in row
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
