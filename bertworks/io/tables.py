"""Tables in files: delimiters, quotes, where rows begin; Parquet files; which column holds the text."""

import csv
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, UsageError
from bertworks.io.text_files import IssueCounter

TEXT_NAMES = (
    *("text", "content", "contents", "body", "article", "document", "doc", "passage", "paragraph", "paragraphs"),
    *("sentence", "sentences", "raw_text", "raw_content", "plain_text", "maintext", "story", "abstract", "review"),
    *("comment", "本文", "テキスト", "본문", "텍스트"),
)
_SHORTEST_TEXT = 20  # characters on average below which a column is not taken for text by itself
_LONGEST_CELL = 1 << 26  # characters; what is longer comes of a quote mark that is never closed
_UNCLOSED = re.compile("end of data|field limit")
_QUOTED_CELL = re.compile(r'"((?:[^"]+|"")*+)"(?=[\t\n]|\Z)')
_UNFINISHED_CELL = re.compile(r'"(?:[^"]+|"")*+\Z')
_PLAIN_CELL = re.compile(r'[^"\t\n]*+(?=[\t\n]|\Z)')


def delimiter_of(sample: Sequence[str]) -> str:
    """Which of , ; tab | parts the cells: the one that stands most often in the first line."""
    header = next((line for line in sample if line.strip()), "")
    return max(",;\t|", key=header.count)


def quotes_matter(lines: Sequence[str]) -> bool:
    r"""Whether quote marks enclose cells of a tab-separated table, or are just quote marks, as mostly in TSV.

    They enclose cells where each quote mark belongs to a well-formed quoted cell, and where that is no accident: rows
    would be uneven otherwise, or a cell needs its quotes, or all cells of the first row have them.

    Args:
        lines: the beginning of the table, or of a part of it that begins with a row.
    """
    text = "\n".join(lines)
    if '"' not in text:
        return False
    uneven = len({line.count("\t") for line in lines if line}) > 1
    needed = uneven or all(_QUOTED_CELL.fullmatch(cell) for cell in lines[0].split("\t"))
    position = 0
    while position < len(text):
        if match := _QUOTED_CELL.match(text, position):
            needed = needed or not match[1] or any(mark in match[1] for mark in '"\t\n\r')
        elif match := _PLAIN_CELL.match(text, position):
            pass
        else:
            return needed and _UNFINISHED_CELL.match(text, position) is not None
        position = match.end() + 1
    return needed


def split_rows(
    lines: Iterable[tuple[int, str]], delimiter: str, *, quoted: bool, name: str, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the line where the row begins, its cells); no cells for a blank line.

    Args:
        lines: numbered lines without "\\n".
        quoted: whether quote marks enclose cells.
        name: of the file, for messages.
        strict: whether a quote mark in a wrong place is an error, and not just a quote mark.

    Raises:
        BertworksError: a quote mark is never closed, or followed by something else than the next cell.
    """
    if not quoted:
        for number, line in lines:
            line = line.removesuffix("\r")
            yield number, line.split(delimiter) if line else []
        return
    csv.field_size_limit(_LONGEST_CELL)
    rows = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter, strict=strict)
    while True:
        number = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise _not_a_table(f"{name}:{number}", str(error)) from error
        yield number, row


def rejoin_broken_rows(
    rows: Iterable[tuple[int, list[str]]], width: int, broken: IssueCounter, name: str
) -> Iterator[tuple[int, list[str]]]:
    r"""The rows, with those whole again of which a cell holds the end of a line: two lines with too few cells each
    that, joined by "\n", have `width` of them. Any other row is passed on as it is.

    Args:
        broken: where such rows begin is added to it.
        name: of the file, for `broken`.
    """
    before: tuple[int, list[str]] | None = None
    for number, cells in rows:
        if before is not None:
            begin, first = before
            if len(cells) < width == len(first) + len(cells) - 1:
                broken.add(f"{name}:{begin}")
                yield begin, [*first[:-1], f"{first[-1]}\n{cells[0]}", *cells[1:]]
                before = None
                continue
            yield before
        before = (number, cells) if 0 < len(cells) < width else None
        if before is None:
            yield number, cells
    if before is not None:
        yield before


def _not_a_table(where: str, why: str) -> BertworksError:
    if "new-line character" in why:
        what, hint = "a line ends in a carriage return alone", "convert the file: `tr '\\r' '\\n' < OLD > NEW`"
    else:
        what = "a quote mark is opened here and never closed" if _UNCLOSED.search(why) else why
        hint = 'look for a quote mark too many; inside quotes it is written twice: "He said ""no"", and left."'
    return BertworksError(f"not a table: {what}", where=where, hint=hint)


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its first bytes; False also where it cannot be read."""
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
        raise BertworksError(
            f"the Parquet file is damaged or cannot be read: {error}",
            where=name,
            hint="fetch it again, or leave it out",
        ) from error


# --- columns ---------------------------------------------------------------------------------------------------------


def as_text(value: object) -> str | None:
    """A cell as text: missing is empty, a list of texts is lines; None for anything else."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


def choose_column(
    columns: Mapping[str, Sequence[object]], name: str, wanted: str | None, option: str = "--text-column"
) -> str:
    """Choose the column that holds the text: the given one, else by name, else the one with the longest texts.
    option: with which it is named, for messages."""
    if wanted is not None:
        return find_column(list(columns), name, wanted, option)
    listed = ", ".join(columns) or "none"
    lengths = {key: _mean_length(values) for key, values in columns.items()}
    by_name = {key.strip().lower(): key for key in reversed(list(columns)) if lengths[key]}
    if chosen := next((by_name[candidate] for candidate in TEXT_NAMES if candidate in by_name), None):
        return chosen
    longest = max(lengths, key=lambda key: lengths[key], default=None)
    if longest is None or lengths[longest] < _SHORTEST_TEXT:
        raise BertworksError(
            f"no column looks like text; the columns are: {listed}",
            where=name,
            hint=f"name the one that holds the text with {option}",
        )
    return longest


def find_column(columns: Sequence[str], name: str, wanted: str, option: str) -> str:
    """The column with a given name.

    Args:
        name: of the file, for messages.
        option: with which columns are named, for messages.

    Raises:
        UsageError: there is none of that name; it says which there are, and which one was perhaps meant.
    """
    if wanted in columns:
        return wanted
    close = difflib.get_close_matches(wanted.lower(), [key.lower() for key in columns], 1)
    meant = next((key for key in columns if [key.lower()] == close), None)
    raise UsageError(
        f"there is no column {wanted!r}; the columns are: {', '.join(columns) or 'none'}",
        where=name,
        hint=f"did you mean {option} {meant}?" if meant else f"name one of them with {option}",
    )


def _mean_length(values: Iterable[object]) -> float:
    texts = [as_text(value) or "" for value in values]
    return sum(map(len, texts)) / len(texts) if texts else 0.0


def is_header(row: list[str]) -> bool:
    """Whether a table's first row names the columns: short, distinct, no sentences, no numbers."""
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
