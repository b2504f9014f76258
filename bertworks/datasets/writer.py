"""Rows -> one file: csv, tsv, JSON lines or Parquet, compressed or not. `reader` reads the same
cells back.

The file appears when it is complete. Memory use does not grow with the file.
"""

import csv
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, UsageError, expect
from bertworks.io.atomic_write import local_path, replacing
from bertworks.io.tables import as_json
from bertworks.io.text_files import COMPRESSIONS, FORMATS, IssueCounter, format_suffix

FileKind = Literal["csv", "tsv", "jsonl", "json", "parquet", "conll"]
_BATCH_ROWS = 500  # held in memory
# A cell that spreadsheet programs compute: it begins with one of = + - @ tab CR, also of full
# width, and is no number.
_FORMULA = re.compile(r"[=@＝＠＋－\t\r]|[+-](?!\d*[.,]?\d*(?:[eE][+-]?\d+)?%?$)")


def write_rows(
    path: str | Path,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    kind: FileKind | None = None,
    formulas: IssueCounter | None = None,
    guard_formulas: bool = False,
) -> int:
    """Write rows and return their number.

    Missing values are empty cells in tables and null in Parquet. JSON lines leave them out, and may
    have fields besides the columns. Lists and mappings in tables are written as JSON.

    Args:
        path: the file. Its suffix gives the kind and the compression. "-" is standard output, csv
            by default.
        columns: in the order of tables and Parquet.
        kind: overrides the suffix.
        formulas: counts the texts in csv and tsv that spreadsheet programs would compute.
        guard_formulas: write ' before them.

    Raises:
        UsageError: the suffix gives no kind.
        BertworksError: a row has a field that is not a column; the values of a column have no
            common type in Parquet; the file cannot be written. Then no file is left behind.
    """
    kind = kind or kind_of(path)
    name = "<stdout>" if str(path) == "-" else str(path)
    expect(
        kind != "conll",
        "CoNLL files hold words and tags, not rows",
        where=name,
        hint="use another kind",
    )
    if kind == "parquet":
        expect(
            str(path) != "-",
            "Parquet cannot be written to a stream",
            where=name,
            hint="name a file, or use csv",
        )
        with replacing(Path(path).expanduser()) as temporary:
            return _write_parquet(temporary, _checked(name, columns, rows), columns, name)
    if kind in ("csv", "tsv"):
        mark = "'" if guard_formulas else ""
        lines = _table_lines(
            name, columns, rows, "," if kind == "csv" else "\t", formulas or IssueCounter(), mark
        )
        return write_lines(path, lines) - 1
    lines = (as_json(dict(row)) for row in rows)
    return (
        write_lines(path, lines) if kind == "jsonl" else write_lines(path, _json_array(lines)) - 2
    )


def write_lines(path: str | Path, lines: Iterable[str]) -> int:
    """Write lines, compressed as the suffix says, and return their number; "-" is standard output.

    Raises:
        BertworksError: the file cannot be written. Then no file is left behind.
    """
    count = 0
    with _open_output(path) as stream:
        for line in lines:
            stream.write(f"{line}\n".encode("utf-8", "backslashreplace"))
            count += 1
        stream.flush()
    return count


def kind_of(path: str | Path, *, vectors: bool = False) -> FileKind:
    """The kind of file that a name stands for; csv for "-".

    Args:
        vectors: whether the hint lists the kinds for vectors.

    Raises:
        UsageError: the name stands for no kind that can be written.
    """
    if str(path) == "-":
        return "csv"
    name = str(local_path(path)).lower()
    kind = FORMATS.get(format_suffix(name))
    if kind is None or kind == "text" or (kind == "parquet" and name.endswith(tuple(COMPRESSIONS))):
        left_out = ("text", "conll") if vectors else ("text",)
        suffixes = ", ".join(suffix for suffix, other in FORMATS.items() if other not in left_out)
        what = (
            "Parquet is compressed inside"
            if kind == "parquet"
            else "the name does not tell the kind of file"
        )
        also = f"all but Parquet also with {', '.join(COMPRESSIONS)} after it"
        hint = f"end it in {'.npy; or in ' if vectors else ''}{suffixes}; {also}"
        raise UsageError(what, where=str(path), hint=hint)
    return kind


def refuse_same(reader: RowReader, output: str | Path) -> None:
    """Raises UsageError if the output is the input file."""
    path = local_path(output).expanduser()
    if str(output) != "-" and path.exists() and path.samefile(reader.path):
        raise UsageError("this is the input file", where=str(output), hint="-o ANOTHER-FILE")


def _json_array(lines: Iterator[str]) -> Iterator[str]:
    """The lines of one JSON array with one row on each line."""
    yield "["
    for line, following in itertools.pairwise(itertools.chain(lines, [None])):
        yield f"{line}," if following else f"{line}"
    yield "]"


class _Line:
    """`csv.writer(_Line()).writerow(cells)` returns the line."""

    def write(self, text: str) -> str:
        return text.removesuffix("\r\n")


def _table_lines(
    name: str,
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    delimiter: str,
    formulas: IssueCounter,
    mark: str,
) -> Iterator[str]:
    """mark: is put before each of the `formulas`."""

    def cells(values: Sequence[Any], place: str) -> list[str]:
        texts = [_cell(value) for value in values]
        for number in [
            n for n, value in enumerate(values) if isinstance(value, str) and _FORMULA.match(value)
        ]:
            formulas.add(f"{place}, column {columns[number]!r:.60}")
            texts[number] = mark + texts[number]
        return texts

    # csv quotes the characters of its line end: cells with "\r" or "\n" are quoted in all versions
    # of Python.
    line = csv.writer(_Line(), delimiter=delimiter, lineterminator="\r\n").writerow
    yield line(cells(columns, "header"))
    for number, row in enumerate(_checked(name, columns, rows), 1):
        yield line(cells([row.get(column) for column in columns], f"row {number}"))


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple | dict | bool):
        return as_json(value)
    return "" if value is None else str(value)


def _checked(
    name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """The rows; BertworksError for a row with a field that is not a column."""
    known = set(columns)
    for number, row in enumerate(rows, 1):
        if extra := [key for key in row if key not in known]:
            what = f"row {number} has the field {extra[0]!r}, which no earlier row has"
            raise BertworksError(
                what, where=name, hint="write .jsonl: there each row has its own fields"
            )
        yield row


@contextmanager
def _open_output(path: str | Path) -> Iterator[Any]:
    """A stream of bytes. The file appears when the block ends without an error."""
    if str(path) == "-":
        if sys.stdout is None:
            raise BertworksError(
                "it was closed when the process started", where="standard output", hint="-o FILE"
            )
        yield sys.stdout.buffer
        return
    target = Path(path).expanduser()
    *_, compressed = COMPRESSIONS.get(target.suffix.lower(), (nullcontext,))
    with replacing(target) as temporary, temporary.open("wb") as file, compressed(file) as stream:
        yield stream


def _write_parquet(
    path: Path, rows: Iterator[Mapping[str, Any]], columns: Sequence[str], name: str
) -> int:
    """The types are those of the rows so far. If later rows need wider types, the file is rewritten
    with them."""
    import pyarrow
    from pyarrow import parquet

    count = 0
    schema = pyarrow.schema([(column, pyarrow.null()) for column in columns])
    writer = parquet.ParquetWriter(path, schema)
    try:
        while batch := list(itertools.islice(rows, _BATCH_ROWS)):
            try:
                table = pyarrow.table(
                    {column: [row.get(column) for row in batch] for column in columns}
                )
                wider = pyarrow.unify_schemas([schema, table.schema], promote_options="permissive")
                if wider != schema:
                    writer.close()
                    with replacing(path) as rewritten, parquet.ParquetFile(path) as file:
                        writer, schema = parquet.ParquetWriter(rewritten, wider), wider
                        for earlier in file.iter_batches(batch_size=_BATCH_ROWS):
                            writer.write_table(pyarrow.Table.from_batches([earlier]).cast(schema))
                writer.write_table(table.cast(schema))
            except pyarrow.ArrowException as error:
                what = (
                    f"rows {count + 1} to {count + len(batch)} cannot be written as Parquet: "
                    f"{error}"
                )
                raise BertworksError(
                    what, where=name, hint="write .jsonl: there a column holds anything"
                ) from error
            count += len(batch)
    finally:
        writer.close()
    return count
