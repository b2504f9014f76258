"""Rows -> one file: csv, tsv, JSON lines or Parquet, compressed or not. `reader` reads back the same cells.

The file appears when it is complete. Memory does not grow with it.
"""

import bz2
import gzip
import itertools
import json
import lzma
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, Literal

from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, UsageError
from bertworks.io.atomic_write import replacing
from bertworks.io.text_files import COMPRESSIONS, format_suffix

FileKind = Literal["csv", "tsv", "jsonl", "json", "parquet", "conll"]
_KINDS: dict[str, FileKind] = {
    **dict.fromkeys((".csv",), "csv"),
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines"), "jsonl"),
    **dict.fromkeys((".json",), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bioes"), "conll"),
}
_FRAME = {"csv": 1, "tsv": 1, "json": 2}  # lines that are no rows: the header, the brackets around all
_ROWS_AT_A_TIME = 500  # held in memory, and written


def write_rows(
    path: str | Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, kind: FileKind | None = None
) -> int:
    """Write rows and return how many they were.

    Missing values are empty cells in tables, null in Parquet, and absent in JSON lines, which also take fields that
    are no columns. Lists and mappings in tables are JSON.

    Args:
        path: where to; its suffix tells kind and compression. "-" is standard output, csv if no kind is given.
        columns: their order in tables and Parquet.
        kind: what to write whatever the suffix says.

    Raises:
        UsageError: the suffix tells no kind.
        BertworksError: a row has a field that is no column; values of one column have no common type in Parquet; the
            file cannot be written. Nothing is left behind then.
    """
    kind = kind or kind_of(path)
    if kind == "parquet" and str(path) != "-":
        target = Path(path).expanduser()
        with replacing(target) as temporary:
            return _write_parquet(temporary, target.name, columns, rows)
    with _opened(path) as stream:
        lines = _lines(str(path) if str(path) != "-" else "<stdout>", columns, rows, kind)
        return _write(stream, lines) - _FRAME.get(kind, 0)


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines as they are, compressed as the suffix says; "-" is standard output.

    Raises:
        BertworksError: the file cannot be written. Nothing is left behind then.
    """
    with _opened(path) as stream:
        _write(stream, iter(lines))


def kind_of(path: str | Path, *, vectors: bool = False) -> FileKind:
    """The kind of file that a name stands for; "-" for csv.

    Args:
        vectors: whether these are written, for which the advice is another one.

    Raises:
        UsageError: for none that can be written.
    """
    if str(path) == "-":
        return "csv"
    name = str(path).lower()
    kind = _KINDS.get(format_suffix(name))
    if kind is None or (kind == "parquet" and name.endswith(tuple(COMPRESSIONS))):
        suffixes = ", ".join(suffix for suffix, one in _KINDS.items() if not vectors or one != "conll")
        array = ".npy; or in " if vectors else ""
        raise UsageError(
            "the name does not tell what to write" if kind is None else "Parquet is compressed inside",
            where=str(path),
            hint=f"end it in {array}{suffixes}; all but Parquet also with {', '.join(COMPRESSIONS)} after it",
        )
    return kind


def refuse_same(reader: RowReader, output: str | Path) -> None:
    """Raises UsageError where the output is the file that is read."""
    path = Path(output).expanduser()
    if str(output) != "-" and path.exists() and path.samefile(reader.path):
        raise UsageError("this is the file that is read", where=str(output), hint="-o ANOTHER-FILE")


def _write(stream: IO[bytes], lines: Iterator[str]) -> int:
    count = 0
    while portion := list(itertools.islice(lines, _ROWS_AT_A_TIME)):
        stream.write("".join(f"{line}\n" for line in portion).encode())
        count += len(portion)
    stream.flush()
    return count


def _lines(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], kind: FileKind) -> Iterator[str]:
    match kind:
        case "csv":
            return _table_lines(name, columns, rows, ",")
        case "tsv":
            return _table_lines(name, columns, rows, "\t")
        case "jsonl":
            return _json_lines(rows)
        case "json":
            return _array(_json_lines(rows))
        case "parquet":
            raise UsageError("Parquet cannot be written as a stream", where=name, hint="name a file, or another kind")
        case "conll":
            raise UsageError(
                "CoNLL columns hold words and their tags, and no rows", where=name, hint="use another kind"
            )


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    return (as_json(dict(row)) for row in rows)


def _array(lines: Iterator[str]) -> Iterator[str]:
    """The lines of one JSON array, which has a row on each."""
    yield "["
    for last in itertools.islice(lines, 1):
        for line in lines:
            yield f"{last},"
            last = line
        yield last
    yield "]"


def _table_lines(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], delimiter: str) -> Iterator[str]:
    special = re.compile(f'["\r\n{delimiter}]')

    def quoted(cell: str) -> str:
        if special.search(cell) or (not cell and len(columns) == 1):  # an empty line would be no row
            return '"' + cell.replace('"', '""') + '"'
        return cell

    yield delimiter.join(map(quoted, columns))
    for row in _checked(name, columns, rows):
        yield delimiter.join(quoted(_cell(row.get(column))) for column in columns)


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list | tuple | dict | bool):
        return as_json(value)
    return str(value)


def as_json(value: Any) -> str:
    """A value as any reader of JSON takes it: NaN, which tables have for what is missing, is null, and what else JSON
    does not know is its text."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=str)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None if math.isnan(value) else str(value)
        case dict():
            return {name: _finite(part) for name, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
        case _:
            return value


def _checked(name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows; BertworksError for one with a field that is no column."""
    known = set(columns)
    for number, row in enumerate(rows, 1):
        if not row.keys() <= known:
            extra = next(key for key in row if key not in known)
            raise BertworksError(
                f"row {number} has the field {extra!r}, which no row before it had",
                where=name,
                hint="write JSON lines (a name that ends in .jsonl): there each row has its own fields",
            )
        yield row


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    """What lines are written to, as bytes: it appears at its place when all went well."""
    if str(path) == "-":
        yield sys.stdout.buffer
        return
    target = Path(path).expanduser()
    with (
        replacing(target) as temporary,
        temporary.open("wb") as file,
        _compressed(file, target.suffix.lower()) as stream,
    ):
        yield stream


def _compressed(file: IO[bytes], suffix: str) -> Any:
    match suffix:
        case ".gz":  # without name and time in it, so that the same rows are the same bytes
            return gzip.GzipFile("", "wb", 6, file, mtime=0)
        case ".bz2":
            return bz2.open(file, "wb")
        case ".xz":
            return lzma.open(file, "wb")
        case ".zst":
            import pyarrow

            return pyarrow.CompressedOutputStream(file, "zstd")
        case _:
            return nullcontext(file)


def _write_parquet(path: Path, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """With the types of the rows so far; where these turn out too narrow, what is there is written again with wider."""
    import pyarrow
    from pyarrow import parquet

    count, source = 0, _checked(name, columns, rows)
    schema = pyarrow.schema([(column, pyarrow.null()) for column in columns])
    writer = parquet.ParquetWriter(path, schema)
    try:
        while batch := list(itertools.islice(source, _ROWS_AT_A_TIME)):
            try:
                arrays = [pyarrow.array([row.get(column) for row in batch]) for column in columns]
                table = pyarrow.Table.from_arrays(arrays, names=list(columns))
                wider = pyarrow.unify_schemas([schema, table.schema], promote_options="permissive")
                if wider != schema:
                    writer.close()
                    writer, schema = _widened(path, wider), wider
                writer.write_table(table.cast(schema))
            except pyarrow.ArrowException as error:
                raise BertworksError(
                    f"rows {count + 1} to {count + len(batch)} cannot be written as Parquet: {error}",
                    where=name,
                    hint="write JSON lines (a name that ends in .jsonl): there a column may hold anything",
                ) from error
            count += len(batch)
    finally:
        writer.close()
    return count


def _widened(path: Path, schema: Any) -> Any:
    """A writer that has written again, with these types, what is in the file."""
    import pyarrow
    from pyarrow import parquet

    with replacing(path) as wider, parquet.ParquetFile(path) as file:
        writer = parquet.ParquetWriter(wider, schema)
        for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME):
            writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))
    return writer
