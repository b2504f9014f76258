"""Read tables in files, and recognise them by their first lines.

Delimiters, quotes and headers; Parquet files; the column of the text; values that are no language
(dates and times, ids, user names, paths and addresses); rows in memory.
"""

import csv
import difflib
import itertools
import json
import re
import tomllib
import unicodedata
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, TypeVar

from bertworks.errors import (
    BertworksError,
    UsageError,
    column_names_of,
    expect,
    first_names,
    listed,
    quoted,
    several,
)
from bertworks.io.atomic_write import utf8_path
from bertworks.io.class_names import class_names_of_table, named_column
from bertworks.io.inputs import (
    BLOCK_SIZE,
    LARGEST_LINE,
    IssueCounter,
    chunk_by_size,
    rereadable,
    too_large,
)

_T = TypeVar("_T")
COLUMN_NAMES = tomllib.loads(
    Path(__file__).with_name("column_names.toml").read_text(encoding="utf-8")
)
TEXT_NAMES, TITLE_NAMES = (tuple(COLUMN_NAMES[kind].split()) for kind in ("text", "title"))
SAMPLE_ROWS = 100  # from which the header and the columns are inferred
_SAMPLE_CHARACTERS = 1 << 22  # of these rows; fewer are taken if they have more
_MANY_FIELDS = 6  # of an object, that a hint names
_TEXT_TYPES = ("string", "large_string")  # of a column of Parquet
# held in memory at a time: at most; fewer if they are larger
_PARQUET_ROWS = 256
_PARQUET_BYTES = 1 << 24
_COMMENT = re.compile(r"##?(?:\s|$)")
ENTITY_TAG = re.compile(r"[BIESLUMW][-_]\S+")
WORD_RANGE = re.compile(r"\d+[-.]\d+")  # of CoNLL-U
_MIN_TEXT = 20  # characters on average of a column that is inferred to be text
_QUOTED_CELL = r'"((?:[^"]+|"")*+)"(?=[\t\n]|\Z)'
_CELL = re.compile(_QUOTED_CELL + r'|[^"\t\n]*+(?=[\t\n]|\Z)')
_UNFINISHED_CELL = re.compile(r'"(?:[^"]+|"")*+\Z')

# A file; or rows in memory: dicts, a dict of columns, or a table of pandas, polars, pyarrow or
# datasets
Data = str | PathLike[str] | Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]] | Any
# methods that give rows
_TABLES = {"to_pylist": (), "to_dicts": (), "to_list": (), "to_dict": ("records",)}
_ROWS_HINT = (
    'give a file, a list like [{"text": "...", "label": "..."}], a dict of columns, or a DataFrame'
)


def parse_size(text: str, option: str) -> int:
    """`"512m"`, `"1g"`, `"1.5 GiB"` as a number of bytes.

    Raises:
        UsageError: it is not a positive number with one of the units k, m, g, t.
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    size = int(float(match[1]) * 1024 ** " kmgt".find(match[2] or " ")) if match else 0
    expect(size > 0, f"{option} {text!r} is not a size", hint=f"{option} 512m, or {option} 1g")
    return size


def delimiter_of(sample: Sequence[str], format: str | None) -> str:
    """Return the delimiter of a table.

    It is a tab if the format of the file name says so, else the most frequent of , ; tab | in the
    first line.
    """
    return (
        "\t"
        if format == "tsv"
        else max(",;\t|", key=next((line for line in sample if line.strip()), "").count)
    )


def quotes_matter(lines: Sequence[str]) -> bool:
    r"""Return whether quote marks enclose cells of a tab-separated table.

    Else they belong to the text, as in most TSV files.

    They enclose cells if each quote mark belongs to a well-formed quoted cell, and if rows would
    have different widths without them, or a cell needs its quotes, or all cells of the first row
    have them.

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
        quoted = match[1]
        if quoted is not None:
            needed = needed or not quoted or any(mark in quoted for mark in '"\t\n\r')
        position = match.end() + 1
    return needed


def split_rows(
    lines: Iterable[tuple[int, str]],
    delimiter: str,
    *,
    quoted: bool,
    name: str,
    strict: bool = False,
    largest: int = LARGEST_LINE,
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line of a row, its cells); a blank line has no cells.

    Args:
        lines: numbered lines without "\\n".
        quoted: whether quote marks enclose cells.
        name: of the file, for messages.
        strict: a quote mark in a wrong place is an error, not text.
        largest: bytes of a row.

    Raises:
        BertworksError: a quote mark is not closed, or not followed by the next cell; a row is too
            large.
    """
    if not quoted:
        for number, line in lines:
            line = line.removesuffix("\r")
            yield number, line.split(delimiter) if line else []
        return
    csv.field_size_limit((1 << 31) - 1)  # `largest` is the limit
    first = size = 0  # of a row: the number of its first line, its characters so far
    last_line = ""

    def lines_of_rows() -> Iterator[str]:
        nonlocal first, size, last_line
        for number, line in lines:
            last_line = line
            first = first or number
            size += len(line) + 1
            if size > largest + 1:
                raise too_large(
                    f"{name}:{first}",
                    largest,
                    ", or a quotation mark is opened here and never closed",
                )
            yield line + "\n"

    try:
        for row in csv.reader(lines_of_rows(), delimiter=delimiter, strict=strict):
            yield first, row
            first = size = 0
    except csv.Error as error:
        if "new-line character" in str(error):
            place = last_line.find("\r")
            what = (
                "a carriage return inside a cell without quotes: "
                f"{last_line[max(0, place - 20) : place + 20]!r}"
            )
            hint = "put a space in its place, or put the cell in quotes"
        else:
            what = (
                "a quotation mark is opened here and never closed"
                if "end of data" in str(error)
                else str(error)
            )
            hint = (
                'look for an extra quotation mark; inside quotes it is written twice: "He said '
                '""no"", and left."'
            )
        raise BertworksError(f"not a table: {what}", where=f"{name}:{first}", hint=hint) from error


def column_names(first: Sequence[str], *, named: bool) -> list[str]:
    """Return the names of the columns of a table.

    They are the cells of its first row if it is a header, else "column 1", "column 2", ...
    """
    return [
        cell if named and cell.strip() else f"column {index}" for index, cell in enumerate(first, 1)
    ]


def distinct_names(
    names: list[str], where: str | None = None, hint: str = "rename one of them"
) -> list[str]:
    """Return the names of columns; UsageError if one comes twice."""
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    if twice:
        raise UsageError(f"two columns are named {twice[0]!r}", where=where, hint=hint)
    return names


def rejoin_broken_rows(
    rows: Iterable[tuple[int, list[str]]], width: int, counts: Mapping[str, IssueCounter], name: str
) -> Iterator[tuple[int, list[str]]]:
    r"""Join rows that a newline inside a cell has divided.

    These are two lines with too few cells that have `width` cells when joined by "\n". Other rows
    are unchanged.

    Args:
        counts: counts such rows.
        name: of the file, for `counts`.
    """
    before: tuple[int, list[str]] | None = None
    for number, cells in rows:
        if before and len(cells) < width == len(before[1]) + len(cells) - 1:
            number = before[0]
            cells = [*before[1][:-1], f"{before[1][-1]}\n{cells[0]}", *cells[1:]]
            counts["rows broken over two lines, joined"].add(f"{name}:{number}")
        elif before:
            yield before
        before = (number, cells) if 0 < len(cells) < width else None
        if not before:
            yield number, cells
    if before:
        yield before


@contextmanager
def open_parquet(path: Path, name: str) -> Iterator[Any]:
    """Open a `pyarrow.parquet.ParquetFile`.

    Texts that are stored once for many rows stay so in memory.

    Raises:
        BertworksError: the file is damaged or cannot be read, now or inside the block.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with utf8_path(path) as target:
            texts = [
                field.name for field in parquet.read_schema(target) if field.type in _TEXT_TYPES
            ]
            with parquet.ParquetFile(target, read_dictionary=texts) as file:
                yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise BertworksError(
            f"the Parquet file is damaged or cannot be read: {error}",
            where=name,
            hint="fetch it again, or leave it out",
        ) from error


def batches_of(
    file: Any, columns: Sequence[str] | None = None, name: str = "", limit: int = 1 << 40
) -> Iterator[Any]:
    """Yield the rows of a Parquet file in parts that are small as Python values, too.

    A kilobyte can hold gigabytes of one text. A row with more bytes of text than `limit` is a
    BertworksError; it is not read if it is alone.
    """
    from pyarrow import compute

    groups = (file.metadata.row_group(number) for number in range(file.num_row_groups))
    size = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=0)
    if size > 2 * limit + BLOCK_SIZE:  # on average, with room for what is not text
        raise too_large(name, limit)
    most = max(1, min(_PARQUET_ROWS, int(_PARQUET_BYTES / max(1, size))))
    first = 1
    for batch in file.iter_batches(batch_size=most, columns=columns):
        texts = (column for column in batch.columns if hasattr(column, "dictionary"))
        sizes = (
            compute.binary_length(text.dictionary).take(text.indices).fill_null(0).to_pylist()
            for text in texts
        )
        row, largest = max(
            enumerate(map(sum, zip(*sizes)), first), key=lambda pair: pair[1], default=(first, 0)
        )
        if largest > limit:
            raise too_large(f"{name}:{row}", limit)
        step = max(1, _PARQUET_BYTES // max(1, largest))
        first = first + len(batch)
        yield from (batch.slice(start, step) for start in range(0, len(batch), step))


def as_text(value: object) -> str | None:
    """A cell as text: empty if it is missing, lines for a list of texts, None for other types."""
    if isinstance(value, str | None):
        return value or ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return None


def choose_column(
    columns: Mapping[str, Sequence[object]],
    name: str,
    column: str | None,
    option: str = "--text-column",
    codes: Container[str] = (),
) -> str:
    """Choose the column of the text: `column`, else by name, else the one with the longest texts.

    Args:
        option: of the command line, for messages.
        codes: names of columns that hold no language. Such a column is chosen only if no other one
            looks like text.
    """
    if column is not None:
        names = list(columns)
        return find_column(names, name, by_number(names, column), option)
    lengths: dict[str, float] = {}  # the mean length of the texts of each column
    for key, values in columns.items():
        lengths[key] = sum(len(as_text(value) or "") for value in values) / max(1, len(values))
    filled_columns = [key for key in columns if lengths[key]]
    language_columns = [key for key in filled_columns if key not in codes]
    for candidates in (language_columns, filled_columns):
        usual = usual_column(candidates, TEXT_NAMES)
        if usual is not None:
            return usual
        texts = [key for key in candidates if lengths[key] >= _MIN_TEXT]
        if texts:
            return max(texts, key=lengths.__getitem__)
    raise BertworksError(
        f"no column looks like text; the columns are: {', '.join(columns) or 'none'}",
        where=name,
        hint=f"name the one that holds the text with {option}",
    )


def usual_column(columns: Iterable[str], names: Iterable[str]) -> str | None:
    """Return the column with a usual name, in any case; the first of the names counts most.

    None: there is none.
    """
    by_name = {column.strip().lower(): column for column in reversed(list(columns))}
    return next((by_name[name] for name in names if name in by_name), None)


def nested_names(column: str, value: object) -> list[str]:
    """Return the names of the fields within a JSON object: "labels.label".

    Objects within it are named by their fields. [] for other values.
    """
    if not isinstance(value, dict):
        return []
    names = []
    for key, part in value.items():
        name = f"{column}.{key}"
        names += nested_names(name, part) or [name]
    return names


def nested_hint(column: str, value: object, option: str) -> str | None:
    """Return what to type for a field within a JSON object; None for other values.

    Args:
        option: of the command line, with which columns are named.
    """
    options = [f"{option} {quoted(name)}" for name in nested_names(column, value)[:_MANY_FIELDS]]
    return f"name a field within it: {' or '.join(options)}" if options else None


def nested_value(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field within a JSON object, by its name, or None if there is none."""
    value: Any = row
    while name:
        if not isinstance(value, Mapping):
            return None
        # a name may have a point itself
        heads = [key for key in value if name == key or name.startswith(f"{key}.")]
        if not heads:
            return None
        key = max(heads, key=len)
        value = value[key]
        name = name[len(key) + 1 :]
    return value


def find_column(
    columns: Sequence[str], name: str, column: str, option: str, nested: Sequence[str] = ()
) -> str:
    """Check that a column exists.

    Args:
        name: of the file, for messages.
        option: of the command line, for messages.
        nested: names of fields within JSON objects, for messages.

    Raises:
        UsageError: there is no such column. The message lists all columns and suggests the closest.
    """
    if column in columns:
        return column
    names = {key.lower(): key for key in reversed([*columns, *nested])}
    close = difflib.get_close_matches(column.lower(), names, 1)
    within = f"; the fields within them: {first_names(nested)}" if nested else ""
    raise UsageError(
        f"there is no column {column!r}; the columns are: {', '.join(columns) or 'none'}{within}",
        where=name,
        hint=f"did you mean {option} {quoted(names[close[0]])}?"
        if close
        else f"name one of them with {option}",
    )


def by_number(columns: Sequence[str], column: str) -> str:
    """Return the name of the column of which `column` is the number, from 1; else `column`.

    A column with this name wins.
    """
    is_number = column not in columns and column.isascii() and column.isdigit()
    if is_number and 1 <= int(column) <= len(columns):
        return columns[int(column) - 1]
    return column


def first_rows(rows: Iterable[_T]) -> list[_T]:
    """Return the sample of rows from which the header and the columns are inferred."""
    sample = itertools.islice(rows, SAMPLE_ROWS)
    return next(chunk_by_size(sample, _SAMPLE_CHARACTERS, lambda row: len(str(row))), [])


def is_header(row: list[str]) -> bool:
    """Return whether the first row of a table names the columns.

    Its cells are short and distinct, and no sentences or numbers.
    """
    return len(set(row)) == len(row) and all(
        cell.strip()
        and len(cell) <= 64
        and not cell.strip().endswith((".", "?", "!", "。"))
        and not _is_number(cell)
        for cell in row
    )


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        return isinstance(float(cell), float)
    return False


def conll_cells(line: str) -> list[str]:
    """Return the cells of one line, separated by tabs, or by spaces if there is no tab."""
    line = line.rstrip(" \r")
    return line.split("\t") if "\t" in line else re.split(" +", line)


def is_boundary(line: str) -> bool:
    """Return whether a line of a CoNLL file stands between sentences or documents."""
    return not line.strip() or line.startswith("-DOCSTART-")


def begins_comment(line: str) -> bool:
    """Return whether a line of a CoNLL file, or its first cell, begins as a comment does.

    A comment begins with # or ## and white space, such as "# text = He ran." or the line before
    the sentences of KLUE. A word may be # as well: the cells behind it tell.
    """
    return _COMMENT.match(line) is not None


def is_entity_tag(cell: str) -> bool:
    """Return whether a cell is the tag of a word as CoNLL files mark entities: O, B-person."""
    return cell == "O" or ENTITY_TAG.fullmatch(cell) is not None


def looks_like_conll(sample: Iterable[str]) -> bool:
    """Return whether the lines are those of a CoNLL file, or of CoNLL-U.

    Nearly all of them begin with a token and end with a tag like O or B-person.
    """
    rows = [conll_cells(line) for line in sample if not (is_boundary(line) or begins_comment(line))]
    tagged = sum(len(row) > 1 and is_entity_tag(row[-1]) for row in rows)
    treebank = sum(
        len(row) == 10 and (row[6].isdecimal() or WORD_RANGE.fullmatch(row[0]) is not None)
        for row in rows
    )
    return len(rows) > 1 and max(tagged, treebank) >= 0.9 * len(rows)


def looks_like_fasttext(sample: Iterable[str]) -> bool:
    """Return whether nearly all lines begin with a label of fastText."""
    begins = [line.startswith("__label__") for line in sample if line.strip()]
    return sum(begins) > 0.9 * len(begins)


# --- values that are no language: a column of these is not the text while there is another one
# --------------------------------------------------------------------------------------------------

_WORDS = tomllib.loads(Path(__file__).with_name("codes.toml").read_text(encoding="utf-8"))


def _without_accents(word: str) -> str:
    """Return a word in lower case, without the accents on its letters."""
    decomposed = unicodedata.normalize("NFD", word.lower())
    return unicodedata.normalize(
        "NFC", "".join(c for c in decomposed if not unicodedata.combining(c))
    )


_DATE_WORDS = frozenset(_without_accents(" ".join(map(str, _WORDS.values()))).split())
# PDT, CEST, JST, MST; upper case only, for "east" ends in t as well
_TIME_ZONE = re.compile(r"[A-Z]{0,3}[SDE]?T")
_FILE = re.compile(r"\S+\.[A-Za-z][A-Za-z0-9]{0,4}")  # report.pdf, example.org, a.b.c
_PATH = re.compile(r"(?:[A-Za-z]:)?[\\/].*|~/.*|\.\.?[\\/].*|\S+[\\/]\S*[\\/]\S*", re.DOTALL)
_PATH_WITH_SPACES = re.compile(r"(?:[A-Za-z]:\\|\\\\|~/|\.\.?/|/(?=[^\n/]*/))[^\n]*\.\w{1,5}")
_ADDRESS = re.compile(
    r"\W*(?:[a-z][a-z0-9+.-]*://\S+|mailto:\S+|www\.\S+|[^\s@]+@[^\s@]+\.[^\s@]+|@\w+)\W*",
    re.IGNORECASE,
)
_NAMED_MAIL = re.compile(r"[^<>@]*<[^\s<>@]+@[^\s<>@]+>")  # Anna Berg <anna@example.org>
_NUMBER = re.compile(r"[\W\d_年月日時分秒년월일시분초]+")
# letters of ASCII with digits: user_17, 7c1e-4f, 2009-04-06T22:19:45Z
_MIXED = re.compile(r"(?=\D*\d)[!-~]+")
# Scripts without spaces between words: one of their texts may be a single run of characters.
_WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
)


def is_code(value: str) -> bool:
    """Return whether a value is a code, not language.

    Codes are numbers, dates and times in words or digits, ids of letters with digits, paths, and
    addresses (URL, e-mail, name of a user after @).
    """
    if _NAMED_MAIL.fullmatch(value) or _PATH_WITH_SPACES.fullmatch(value):
        return True
    has_code = False
    for token in value.split():
        if _is_code_token(token):
            has_code = True
        elif not _is_word_of_dates(token):
            return False
    return has_code  # May and Sunday are words of texts too


def are_codes(values: Iterable[str]) -> bool:
    """Return whether nine of ten values, or more, are codes; values without text do not count."""
    texts = [value for value in values if value.strip()]
    return bool(texts) and sum(map(is_code, texts)) >= 0.9 * len(texts)


def is_single_word(value: str) -> bool:
    """Return whether a value is one word or name, in a script that writes spaces."""
    return len(value.split()) == 1 and not _WITHOUT_SPACES.search(value)


def _is_word_of_dates(token: str) -> bool:
    """Return whether a token belongs to a date or time: Monday, avril, PDT, (CEST), 2009年, 22h."""
    word = token.strip(".,;()[]-")
    if _TIME_ZONE.fullmatch(word):
        return True
    parts = re.findall(r"[^\W\d_]+(?:['.][^\W\d_]+)*", _without_accents(word))
    return bool(parts) and all(part in _DATE_WORDS for part in parts)


def _is_code_token(token: str) -> bool:
    """Return whether a word is a number, an id with digits, an address, a path or a file."""
    patterns = (_NUMBER, _MIXED, _ADDRESS, _PATH, _FILE)
    return any(pattern.fullmatch(token) for pattern in patterns)


# --- rows in memory
# --------------------------------------------------------------------------------------------------


class StoredRows:
    """Rows in memory as a temporary file of JSON lines, which is deleted together with this object.

    What reads files reads them too; row n is line n. name: in messages.

    Attributes:
        notes: how the data are read, in words.

    Raises:
        UsageError: the data are not rows, or there are none.
        BertworksError: a class has a number for which the table has no name.
    """

    def __init__(self, data: Data, name: str = "rows"):
        self._name = name
        data = computed(data)
        rows = rows_of(data)
        class_names = class_names_of_table(data)
        self.notes = class_names.notes
        if class_names:
            rows = [
                class_names.named_row(row, f"{name}:{number}") for number, row in enumerate(rows, 1)
            ]
        with NamedTemporaryFile(
            "w",
            prefix="bertworks-rows-",
            suffix=".jsonl",
            delete=False,
            encoding="utf-8",
            errors="backslashreplace",
        ) as file:
            self._path = Path(file.name)
            weakref.finalize(self, self._path.unlink, missing_ok=True)
            file.writelines(
                f"{as_json({str(key): row[key] for key in row}, _json_value)}\n" for row in rows
            )

    def __fspath__(self) -> str:
        return str(self._path)

    def __str__(self) -> str:
        return self._name


class StoredInput(StoredRows):
    """Standard input as a temporary file, which is deleted together with this object."""

    def __init__(self) -> None:
        self._path, name = rereadable("-", self)
        self._name = name or str(self._path)
        self.notes = []


def stored(data: Data, name: str = "rows") -> str | PathLike[str]:
    """Return a file as it is; rows in memory as `StoredRows`."""
    return data if isinstance(data, str | PathLike) else StoredRows(data, name)


def are_rows(data: Any) -> bool:
    """Return whether these are rows in memory, and not a list or a column of texts."""
    if column_names_of(data) is not None:
        return True
    return isinstance(data, list | tuple) and isinstance(next(iter(data), None), Mapping)


def texts_of(data: Any, hint: str, what: str = "text") -> Iterable[str]:
    """Return the texts in the argument of a public function.

    The argument is a list, an array, a generator, a column of a table, or a table with a text
    column (see `text_column_of`). A generator is read as the texts are needed.

    Args:
        hint: what to type for one text.
        what: the name of one text in messages.

    Raises:
        UsageError: it is one text, a set or a table without a text column; or a value is no text
            (raised when it is reached).
    """
    if are_rows(data):
        data = text_column_of(computed(data))
    values = several(data, hint, what)
    return map(_checked_text, values, itertools.count(1), itertools.repeat(what))


def _checked_text(value: Any, number: int, what: str) -> str:
    value = plain_value(value)
    if isinstance(value, str):
        return value
    raise UsageError(
        f"{what} {number} is {value!r:.60}: expected a string",
        hint=missing_hint(what) if is_missing(value) else f"give each {what} as a string",
    )


def plain_value(value: Any) -> Any:
    """Return the value of Python for a value of a column of pyarrow.

    Other values are returned as they are.
    """
    return value.as_py() if hasattr(value, "as_py") else value


def is_missing(value: Any) -> bool:
    """Whether a value stands for a missing cell: None, NaN, and the missing values of pandas."""
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def missing_hint(what: str) -> str:
    """How missing values are left out. what: the name of one value."""
    return f"leave missing {what}s out, as TABLE['text'].dropna()"


def text_column_of(table: Any) -> Any:
    """Return the text column of a table in memory.

    It is the only column, or the only one with a usual name of a text.

    Raises:
        UsageError: no column or several have such a name; a row lacks it; there are several tables.
    """
    is_list = isinstance(table, list | tuple)
    rows = rows_of(table) if is_list else []
    names = (
        list(dict.fromkeys(str(name) for row in rows for name in row))
        if is_list
        else column_names_of(table) or []
    )
    if not is_list:
        _refuse_several_tables(table)
        distinct_names(names)
    usual = [name for name in names if name.strip().lower() in TEXT_NAMES]
    texts = names if len(names) == 1 else usual
    if len(texts) != 1:
        problem = (
            "this table has several columns of texts"
            if texts
            else "no column of this table is named as a text"
        )
        column = (texts or names or ["text"])[0]
        example = f"[row[{column!r}] for row in ROWS]" if is_list else f"TABLE[{column!r}]"
        raise UsageError(
            f"{problem}: {first_names(texts or names)}" if names else "this table has no columns",
            hint=f"give the column with the texts, as {example}",
        )
    (name,) = texts
    if is_list:
        return [row.get(name) for row in rows]
    column = table[
        next(key for key in (table if isinstance(table, Mapping) else names) if str(key) == name)
    ]
    return listed(column, "give one row as [{...}]", f"{name!r} value")


def _refuse_several_tables(data: Any) -> None:
    """Raises UsageError for a dict of tables, as `datasets` loads a data set with several parts."""
    if not isinstance(data, Mapping):
        return
    parts = [
        name
        for name, part in data.items()
        if not isinstance(part, Mapping) and column_names_of(part)
    ]
    if parts:
        raise UsageError(
            f"there are several tables: {first_names(list(map(str, data)))}",
            hint=f"give one of them, as DATA[{parts[0]!r}]",
        )


def sources_of(inputs: Any) -> list[Any]:
    """One path, several, or rows in memory, as a list of paths and of `StoredRows`.

    Raises:
        UsageError: something else.
    """
    if isinstance(inputs, str | PathLike) or are_rows(inputs):
        return [stored(inputs)]
    return listed(inputs, "give one path, or a list", "path")


def computed(data: Any) -> Any:
    """Return the rows of a LazyFrame of polars, which are computed here; other data as they are."""
    return data.collect() if hasattr(data, "collect_schema") and hasattr(data, "collect") else data


def rows_of(data: Any) -> list[Mapping[str, Any]]:
    """Return the rows of `Data` in memory, as dicts.

    Raises:
        UsageError: several tables; columns of the same name or of different lengths; a row that is
            no dict; no rows.
    """
    data = computed(data)
    if method := next((name for name in _TABLES if hasattr(data, name)), None):
        distinct_names(column_names_of(data) or [])
        data = getattr(data, method)(*_TABLES[method])
    if isinstance(data, Mapping):
        _refuse_several_tables(data)
        columns: dict[Any, list[Any]] = {}
        for name, cells in data.items():
            named_cells = named_column(cells, f"{name!r}, row")
            columns[name] = listed(named_cells, "give one row as [{...}]", f"{name!r} value")
        if len({len(cells) for cells in columns.values()}) > 1:
            lengths = ", ".join(f"{name} {len(cells)}" for name, cells in columns.items())
            raise UsageError(
                f"the columns have different lengths: {lengths}",
                hint="write None for a missing value",
            )
        data = [dict(zip(columns, cells)) for cells in zip(*columns.values())]
    rows = listed(data, _ROWS_HINT, "row")
    if wrong := [number for number, row in enumerate(rows, 1) if not isinstance(row, Mapping)]:
        raise UsageError(
            f"row {wrong[0]} is {rows[wrong[0] - 1]!r:.60}, not a dict", hint=_ROWS_HINT
        )
    expect(rows, "there are no rows", hint=_ROWS_HINT)
    return rows


def rows_of_texts(data: Data, columns: Sequence[str]) -> Data:
    """Texts as rows in memory: one after the other in these columns.

    They may be a list, an array or a column of a table. Other data as they are.

    Raises:
        UsageError: the last row has fewer texts than columns; a set.
    """
    if isinstance(data, str | PathLike) or are_rows(data):
        return data
    data = [plain_value(text) for text in listed(data, _ROWS_HINT, "row")]
    if not all(isinstance(text, str) for text in data):
        return data
    expect(
        len(data) % len(columns) == 0,
        f"the model reads rows of {' and '.join(columns)}, and {len(data)} texts are given",
        hint="give all texts of each row, in this order",
    )
    return [
        dict(zip(columns, row, strict=True))
        for row in zip(*[iter(data)] * len(columns), strict=True)
    ]


def as_json(value: Any, default: Callable[[Any], Any] = str) -> str:
    """Return a value as standard JSON, with null for NaN (a missing value in tables).

    default: returns what stands for a value that JSON does not have.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=default)
    except ValueError:
        text = json.dumps(value, ensure_ascii=False, default=default)
        finite = json.loads(
            text, parse_constant=lambda name: None if name == "NaN" else str(float(name))
        )
        return json.dumps(finite, ensure_ascii=False)


def _json_value(value: Any) -> Any:
    """What JSON has for a value of numpy, pandas or Python.

    Bytes become no text.
    """
    if is_missing(value):
        return None
    if isinstance(value, bytes | set | frozenset):
        return list(value) if isinstance(value, bytes) else sorted(value, key=str)
    value = plain_value(value)
    if value is None or isinstance(value, bool | int | float | list | dict):
        return value
    return value.tolist() if hasattr(value, "tolist") else str(value)
