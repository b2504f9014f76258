"""Rows -> one file: csv, tsv, JSON lines or Parquet, compressed or not.

`reader` reads the same cells back.

- `RowFormat`: rows as blocks of bytes, which any process can make, and which are joined to a file
- `row_portion`, `join_portions`: portions of a file job that hold such blocks
- `write_rows`: a whole file

The file appears when it is complete. Memory use does not grow with the file.
"""

import csv
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal

from bertworks.errors import BertworksError, UsageError, expect
from bertworks.io.atomic_write import replacing
from bertworks.io.file_job import pack, unpacked_values
from bertworks.io.inputs import COMPRESSIONS, FORMATS, IssueCounter, format_suffix
from bertworks.io.tables import as_json

FileKind = Literal["csv", "tsv", "jsonl", "json", "parquet", "conll"]
_BATCH_ROWS = 500  # held in memory
# A cell that spreadsheet programs compute: it begins with one of = + - @ tab CR, also of full
# width, and is no number.
_FORMULA = re.compile(r"[=@＝＠＋－\t\r]|[+-](?!\d*[.,]?\d*(?:[eE][+-]?\d+)?%?$)")


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """How rows become a file.

    They are written in blocks that are joined by concatenation, or, as Parquet, by copying them
    with one type for each column.

    Missing values are empty cells in tables and null in Parquet. JSON lines leave them out, and may
    have fields besides the columns. Lists and mappings in tables are written as JSON.

    Args:
        name: the name of the file in messages.
        columns: in the order of tables and Parquet.
        guard_formulas: write ' before texts in csv and tsv that spreadsheet programs would compute.
    """

    name: str
    kind: FileKind
    columns: Sequence[str]
    guard_formulas: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What the bytes of rows depend on."""
        return {name: value for name, value in asdict(self).items() if name != "name"}

    def block(
        self,
        rows: Iterable[Mapping[str, Any]],
        first: int = 1,
        formulas: IssueCounter | None = None,
    ) -> bytes:
        """Return the bytes of rows.

        Args:
            first: the number of the first row in the file.
            formulas: counts the texts that spreadsheet programs would compute.

        Raises:
            BertworksError: a row has a field that is not a column; the values of a column have no
                common type in Parquet.
        """
        if self.kind == "parquet":
            return self._arrow_block(list(self._checked(rows, first)), first)
        if self.kind in ("csv", "tsv"):
            numbered = enumerate(self._checked(rows, first), first)
            values = ((f"row {n}", list(map(row.get, self.columns))) for n, row in numbered)
            return self._lines(values, formulas)
        end = "\n" if self.kind == "jsonl" else ",\n"
        return _bytes_of(f"{as_json(dict(row))}{end}" for row in rows)

    def join(
        self,
        path: str | Path,
        blocks: Callable[[], Iterable[bytes]],
        formulas: IssueCounter | None = None,
    ) -> None:
        """Write the file of blocks, compressed as its suffix says; "-" is standard output.

        Args:
            blocks: returns all blocks; is called twice for Parquet.
            formulas: counts names of columns that spreadsheet programs would compute.

        Raises:
            BertworksError: the file cannot be written. Then no file is left behind.
        """
        if self.kind == "parquet":
            with replacing(Path(path).expanduser()) as temporary:
                self._join_arrow(temporary, blocks)
            return
        with _open_output(path) as stream:
            if self.kind == "json":
                _join_array(stream, blocks())
            else:
                if self.kind in ("csv", "tsv"):
                    stream.write(self._lines([("header", self.columns)], formulas))
                stream.writelines(blocks())
            stream.flush()

    def formula_note(self, formulas: IssueCounter) -> str | None:
        """Return a note on texts that would be formulas, if there are any."""
        if not formulas.count:
            return None
        effect = (
            "have a ' before them"
            if self.guard_formulas
            else "--guard-formulas writes ' before them"
        )
        return f"texts that spreadsheet programs compute as formulas: {formulas}; {effect}"

    def _lines(
        self, rows: Iterable[tuple[str, Sequence[Any]]], formulas: IssueCounter | None
    ) -> bytes:
        """Return rows as lines of a table. rows: their places, for `formulas`, and their values."""
        formulas = IssueCounter() if formulas is None else formulas
        # csv quotes the characters of its line end: cells with "\r" or "\n" are quoted in all
        # versions of Python.
        delimiter = "," if self.kind == "csv" else "\t"
        writer = csv.writer(_Line(), delimiter=delimiter, lineterminator="\r\n")
        lines = []
        for place, values in rows:
            cells = ["" if value is None else str(value) for value in values]
            for index, value in enumerate(values):
                if isinstance(value, list | tuple | dict | bool):
                    cells[index] = as_json(value)
                elif isinstance(value, str) and _FORMULA.match(value):
                    formulas.add(f"{place}, column {self.columns[index]!r:.60}")
                    if self.guard_formulas:
                        cells[index] = f"'{value}"
            lines.append(f"{writer.writerow(cells)}\n")
        return _bytes_of(lines)

    def _checked(
        self, rows: Iterable[Mapping[str, Any]], first: int
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the rows; BertworksError for a row with a field that is not a column."""
        columns = set(self.columns)
        for number, row in enumerate(rows, first):
            extra = [key for key in row if key not in columns]
            if extra:
                what = f"row {number} has the field {extra[0]!r}, which no earlier row has"
                raise BertworksError(
                    what, where=self.name, hint="write .jsonl: there each row has its own fields"
                )
            yield row

    def _arrow_block(self, rows: list[Mapping[str, Any]], first: int) -> bytes:
        """Return rows as an Arrow stream, with the types of their values."""
        import pyarrow

        with _explained(self.name, first, len(rows)):
            cells = {column: [row.get(column) for row in rows] for column in self.columns}
            table = pyarrow.table(cells)
        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return bytes(sink.getvalue())

    def _join_arrow(self, path: Path, blocks: Callable[[], Iterable[bytes]]) -> None:
        """Write a Parquet file of Arrow streams, with types that hold the values of all."""
        import pyarrow
        from pyarrow import parquet

        schema = pyarrow.schema([(column, pyarrow.null()) for column in self.columns])
        first = 1
        for block in blocks():
            with pyarrow.ipc.open_stream(block) as stream:
                count = sum(batch.num_rows for batch in stream)
                with _explained(self.name, first, count):
                    schema = pyarrow.unify_schemas(
                        [schema, stream.schema], promote_options="permissive"
                    )
            first += count
        first = 1
        with parquet.ParquetWriter(path, schema) as writer:
            for block in blocks():
                with pyarrow.ipc.open_stream(block) as stream:
                    for batch in stream:
                        with _explained(self.name, first, batch.num_rows):
                            writer.write_table(pyarrow.Table.from_batches([batch]).cast(schema))
                        first += batch.num_rows


def format_of(
    path: str | Path,
    columns: Sequence[str],
    *,
    kind: FileKind | None = None,
    guard_formulas: bool = False,
) -> RowFormat:
    """Return the format of a file of rows.

    Args:
        path: the file. Its suffix gives the kind and the compression. "-" is standard output, csv
            by default.
        columns: in the order of tables and Parquet.
        kind: overrides the suffix.

    Raises:
        UsageError: the suffix gives no kind, or the kind has no rows, or is for files only.
    """
    kind = kind or kind_of(path)
    is_stdout = str(path) == "-"
    name = "<stdout>" if is_stdout else str(path)
    expect(
        kind != "conll",
        "CoNLL files hold words and tags, not rows",
        where=name,
        hint="use another kind",
    )
    expect(
        kind != "parquet" or not is_stdout,
        "Parquet cannot be written to a stream",
        where=name,
        hint="name a file, or use csv",
    )
    return RowFormat(name=name, kind=kind, columns=columns, guard_formulas=guard_formulas)


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

    See `format_of` and `RowFormat`.

    Args:
        formulas: counts the texts in csv and tsv that spreadsheet programs would compute.

    Raises:
        UsageError: see `format_of`.
        BertworksError: see `RowFormat`. Then no file is left behind.
    """
    row_format = format_of(path, columns, kind=kind, guard_formulas=guard_formulas)
    count = 0

    def blocks() -> Iterator[bytes]:
        nonlocal count
        iterator = iter(rows)
        while batch := list(itertools.islice(iterator, _BATCH_ROWS)):
            yield row_format.block(batch, count + 1, formulas)
            count += len(batch)

    if row_format.kind != "parquet":
        row_format.join(path, blocks, formulas)
        return count
    with TemporaryDirectory() as folder:
        files = []
        for number, block in enumerate(blocks()):
            files.append(Path(folder, str(number)))
            files[-1].write_bytes(block)
        row_format.join(path, lambda: map(Path.read_bytes, files))
    return count


def row_portion(
    row_format: RowFormat, rows: Iterable[Mapping[str, Any]], first: int
) -> Iterator[bytes]:
    """Return the content of a portion of a file job (`io.file_job`) that holds finished rows.

    It is the texts that spreadsheet programs would compute, and the bytes of the rows. first: see
    `RowFormat.block`.
    """
    formulas = IssueCounter()
    block = row_format.block(rows, first, formulas)
    return pack([json.dumps(asdict(formulas)).encode(), block])


def line_portion(lines: Iterable[str]) -> Iterator[bytes]:
    """`row_portion` of lines, such as those of a CoNLL file."""
    return pack([json.dumps(asdict(IssueCounter())).encode(), _bytes_of(f"{x}\n" for x in lines)])


def join_portions(row_format: RowFormat, path: str | Path, files: Sequence[Path]) -> str | None:
    """Write a file of portions of rows, in order.

    Return a note if some texts would be formulas.

    Raises:
        BertworksError: a portion is damaged; the file cannot be written.
    """
    formulas = IssueCounter()

    def block_of(file: Path) -> bytes:
        counts, block = unpacked_values(file)
        formulas.add_all(IssueCounter(**json.loads(counts)))
        return block

    row_format.join(path, lambda: map(block_of, files), formulas)
    return row_format.formula_note(formulas)


def kind_of(path: str | Path, *, vectors: bool = False) -> FileKind:
    """Return the kind of file that a name stands for; csv for "-".

    Args:
        vectors: whether the hint lists the kinds for vectors.

    Raises:
        UsageError: the name stands for no kind that can be written.
    """
    if str(path) == "-":
        return "csv"
    name = str(path).lower()
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


def _bytes_of(lines: Iterable[str]) -> bytes:
    return "".join(lines).encode("utf-8", "backslashreplace")


def _join_array(stream: IO[bytes], blocks: Iterable[bytes]) -> None:
    """Write one JSON array with one row on each line, without a comma after the last one."""
    stream.write(b"[\n")
    last = b""
    for block in filter(None, blocks):
        stream.write(last)
        last = block
    stream.write(last.removesuffix(b",\n") + b"\n" if last else b"")
    stream.write(b"]\n")


class _Line:
    """`csv.writer(_Line()).writerow(cells)` returns the line."""

    def write(self, text: str) -> str:
        return text.removesuffix("\r\n")


@contextmanager
def _open_output(path: str | Path) -> Iterator[Any]:
    """A stream of bytes.

    The file appears when the block ends without an error.
    """
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


@contextmanager
def _explained(name: str, first: int, count: int) -> Iterator[None]:
    """Raise BertworksError for rows that pyarrow refuses."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowException as error:
        rows = f"rows {first} to {first + count - 1}"
        raise BertworksError(
            f"{rows} cannot be written as Parquet: {error}",
            where=name,
            hint="write .jsonl: there a column holds anything",
        ) from error
