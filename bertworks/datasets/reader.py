"""One file of labelled or unlabelled data -> rows: tables, JSON, Parquet, CoNLL, SQuAD, character spans.

Nothing is converted, repaired or left out: what cannot be read is an error that names its line. Memory does not grow
with the file, except for one JSON value that fills a whole file.
"""

import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertworks.datasets.annotations import (
    conll_width,
    is_squad,
    looks_like_conll,
    may_hold_spans,
    read_conll,
    read_squad,
    span_column,
    with_entities,
    with_tags,
)
from bertworks.datasets.values import JUDGED_ROWS, has_header, names_columns
from bertworks.errors import BertworksError, UsageError
from bertworks.io.tables import delimiter_of, is_parquet, open_parquet, quotes_matter, rejoin_broken_rows, split_rows
from bertworks.io.text_files import (
    IssueCounter,
    LineReader,
    Repairs,
    format_suffix,
    not_text,
    nothing_there,
    open_lines,
    rereadable,
)

Kind = Literal["table", "json", "parquet", "conll", "squad", "spans"]
Quoting = Literal["auto", "raw", "quoted"]
_CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".bioes")
_PARQUET_ROWS = 256  # held in memory at a time
_JUDGED_CHARACTERS = 1 << 20  # by which is told what quote marks mean


class Row(NamedTuple):
    """One row, as it stands in the file; spans in one layout, whatever theirs."""

    values: dict[str, Any]  # by column, in the file's order: strings in tables, JSON values elsewhere
    where: str  # "reviews.csv:17": the line where it begins; for Parquet and JSON arrays the number of the row
    written: dict[str, Any] | None = None  # what the file says, where `values` says it in other words


class RowReader:
    """The rows of one file, as often as one iterates.

    Values by kind: a table's cells are strings, and columns without header are "column 1", "column 2", ...; plain
    text has a row for each line, `text`. CoNLL: `tokens`, `tags` (where there are any), `document` (its number),
    `lines` (as they stand in the file). SQuAD: `id`, `title`, `context`, `question`, `answers` (list of {"text",
    "answer_start"}; None where the file has none), `is_impossible`. Spans: `entities` (list of {"start", "end",
    "type"}) among the other fields.

    Args:
        path: the file, in any compression; "-" is standard input.
        quoting: whether quote marks enclose cells of a table ("quoted") or are just quote marks ("raw"); "auto": judged
            for tab-separated tables, "quoted" for others.
        header: whether a table's first row names the columns; None: judged.
        name: what the file is called in messages.

    Attributes:
        kind: what the file is.
        columns: the names of the values; of JSON lines those that the first rows have. written_columns: the same as the
            file names them.
        broken: rows of a raw table that a line's end inside of a cell divides, and that were joined again; of the last
            pass.

    Raises:
        BertworksError: the file is no such file. While iterating also: a row with too few or too many cells, what is
            not JSON or not UTF-8, a quote mark that is never closed, a file that changes meanwhile.
    """

    def __init__(
        self, path: str | Path, *, quoting: Quoting = "auto", header: bool | None = None, name: str | None = None
    ):
        self.path, piped = rereadable(path, self)
        self.name = name or piped or str(path)
        if not self.path.exists():
            raise nothing_there(self.path)
        if self.path.is_dir():
            raise UsageError("this is a folder, not a file", where=self.name, hint="name one of the files in it")
        self.quoting, self._header = quoting, header
        self.broken = IssueCounter()
        self._state = self._file_state()
        self.kind: Kind
        self.columns: list[str]
        self.written_columns: list[str] = []
        self._rows: Callable[[], Iterator[Row]]
        if is_parquet(self.path):
            self._recognise_parquet()
        else:
            with self._open() as (reader, lines):
                self._recognise(reader, lines)
        self.written_columns = self.written_columns or self.columns

    def __iter__(self) -> Iterator[Row]:
        self._check_unchanged()
        self.broken = IssueCounter()
        yield from self._rows()
        self._check_unchanged()

    @property
    def notes(self) -> list[str]:
        """What the last pass repaired, in words."""
        return [f"rows broken over two lines, joined: {self.broken}"] if self.broken.count else []

    def _file_state(self) -> tuple[int, int]:
        state = self.path.stat()
        return state.st_size, state.st_mtime_ns

    def _check_unchanged(self) -> None:
        if not self.path.exists() or self._file_state() != self._state:
            raise BertworksError(
                "the file changed while it was read", where=self.name, hint="wait until it is complete, then try again"
            )

    @contextmanager
    def _open(self) -> Iterator[tuple[LineReader, Iterator[tuple[int, str]]]]:
        """The file as numbered lines; reading them raises BertworksError where they are not UTF-8."""
        repairs = Repairs()

        def lines(reader: LineReader) -> Iterator[tuple[int, str]]:
            for numbered in reader.lines(exact=True):
                if repairs.bad_bytes.count:
                    raise BertworksError(
                        "the line has bytes that are not UTF-8",
                        where=repairs.bad_bytes.places[0],
                        hint="convert the file: `iconv -f CP1252 -t UTF-8 FILE` (or CP932, EUC-KR, ...)",
                    )
                yield numbered

        with open_lines(self.path, self.name, repairs) as reader:
            yield reader, lines(reader)

    def _recognise(self, reader: LineReader, lines: Iterator[tuple[int, str]]) -> None:
        suffix, head = format_suffix(self.name), reader.head.lstrip()
        if not head:
            raise BertworksError("the file is empty", where=self.name, hint="name a file that holds rows")
        if other := not_text(head):
            what, hint = other
            hint = hint or "name a csv, tsv, json, Parquet or CoNLL file"
            raise BertworksError(f"this is {what}", where=self.name, hint=hint)
        if suffix == ".conllu":
            raise BertworksError(
                "CoNLL-U files are treebanks: which column is the tag is not told",
                where=self.name,
                hint=f"take two columns: `grep -v '^#' {shlex.quote(self.name)} | cut -f2,4 > tagged.conll`",
            )
        if suffix in (".jsonl", ".ndjson", ".jsonlines", ".json") or head.startswith((b'{"', b"[{", b"{\n", b"[\n")):
            self._recognise_json(lines)
            return
        sample = reader.sample()
        if suffix in _CONLL_SUFFIXES or looks_like_conll(sample):
            width = conll_width(sample)
            self._width = width
            self.kind, self._rows = "conll", lambda: self._conll_rows(width)
            self.columns = ["tokens", *(["tags"] if width > 1 else []), "document", "lines"]
        else:
            self._recognise_table(suffix, sample, lines)

    # --- tables ---

    def _recognise_table(self, suffix: str, sample: list[str], lines: Iterator[tuple[int, str]]) -> None:
        self.kind = "table"
        delimiter = "\t" if suffix in (".tsv", ".tab") else delimiter_of(sample)
        if suffix not in (".csv", ".tsv", ".tab"):
            first_line = next(line for line in sample if line.strip())
            delimiter = "\t" if "\t" in first_line else delimiter
            if self._header is None and delimiter != "\t" and not has_header(sample, delimiter):
                self.columns, self._rows = ["text"], self._plain_rows
                return
        quoted = self.quoting == "quoted"
        if self.quoting == "auto":
            quoted = delimiter != "\t" or quotes_matter(_quoted_lines(lines))
        with self._open() as (_, again):
            rows = split_rows(again, delimiter, quoted=quoted, name=self.name, strict=True)
            first = [row for _, row in itertools.islice(rows, JUDGED_ROWS) if row]
        named = self._header if self._header is not None else names_columns(first[0], first[1:])
        self.columns = [cell if named and cell.strip() else f"column {index}" for index, cell in enumerate(first[0], 1)]
        self._check_names("the header", "name them differently, or read it without header")
        self._rows = lambda: self._table_rows(delimiter, quoted, named)

    def _table_rows(self, delimiter: str, quoted: bool, named: bool) -> Iterator[Row]:
        width = len(self.columns)
        with self._open() as (_, lines):
            rows = split_rows(lines, delimiter, quoted=quoted, name=self.name, strict=True)
            for number, cells in rows if quoted else rejoin_broken_rows(rows, width, self.broken, self.name):
                if not cells and (named or width > 1):
                    continue  # a blank line
                if named:
                    named = False
                    continue
                cells = cells or [""]
                if len(cells) != width:
                    raise self._uneven(number, cells, quoted)
                yield Row(dict(zip(self.columns, cells)), f"{self.name}:{number}")

    def _uneven(self, number: int, cells: list[str], quoted: bool) -> BertworksError:
        other = "raw: quote marks mean nothing" if quoted else "quoted: quote marks enclose cells"
        return BertworksError(
            f"{len(cells)} cells where the first row has {len(self.columns)}: {cells!r:.120}",
            where=f"{self.name}:{number}",
            hint=f"repair the row; or is the whole table {other}? It was read as {'quoted' if quoted else 'raw'}",
        )

    def _plain_rows(self) -> Iterator[Row]:
        with self._open() as (_, lines):
            for number, line in lines:
                yield Row({"text": line.removesuffix("\r")}, f"{self.name}:{number}")

    def _check_names(self, where: str, hint: str) -> None:
        twice = [name for index, name in enumerate(self.columns) if name in self.columns[:index]]
        if twice:
            raise BertworksError(f"{where} names {twice[0]!r} twice", where=f"{self.name}:1", hint=hint)

    # --- CoNLL ---

    def _conll_rows(self, width: int) -> Iterator[Row]:
        with self._open() as (_, lines):
            for number, values in read_conll(lines, self.name, width):
                yield Row(values, f"{self.name}:{number}")

    def with_tags(self, tags: Iterable[str]) -> Iterator[str]:
        """The lines of a CoNLL file, each with the tag of its word as a further cell (`annotations.with_tags`)."""
        with self._open() as (_, lines):
            yield from with_tags((line for _, line in lines), tags, self._width)

    # --- JSON ---

    def _recognise_json(self, lines: Iterator[tuple[int, str]]) -> None:
        """JSON lines where the first line is an object by itself; else the whole file is one value."""
        number, first = next((number, line) for number, line in lines if line.strip())
        try:
            value = json.loads(first)
        except (ValueError, RecursionError):
            if format_suffix(self.name) != ".json" and not first.lstrip().startswith(("[", "{")):
                raise _not_json(f"{self.name}:{number}", first) from None
            value = None
        whole = not isinstance(value, dict) or is_squad(value)
        if whole and is_squad(self._whole_json()):
            self.kind, self._rows = "squad", self._squad_rows
            self.columns = ["id", "title", "context", "question", "answers", "is_impossible"]
            return
        records = self._array_rows if whole else self._line_rows
        judged = [row.values for row in itertools.islice(records(), JUDGED_ROWS)]
        column = span_column(judged)
        if column is None and may_hold_spans(judged):
            column = span_column(row.values for row in records())
        if column is None:
            self.kind, self._rows = "json", records
        else:
            self.kind, self._rows = "spans", lambda: self._span_rows(records, column)
            self.written_columns = list(dict.fromkeys(itertools.chain.from_iterable(judged)))
            judged = [with_entities(row.values, column, row.where) for row in itertools.islice(records(), JUDGED_ROWS)]
        self.columns = list(dict.fromkeys(itertools.chain.from_iterable(judged)))

    def _line_rows(self) -> Iterator[Row]:
        with self._open() as (_, lines):
            for number, line in lines:
                if line.strip():
                    where = f"{self.name}:{number}"
                    yield Row(_json_object(_parse(line, self.name, number), where, line), where)

    def _array_rows(self) -> Iterator[Row]:
        value = self._whole_json()
        if not isinstance(value, list):
            raise BertworksError(
                f"the file is one JSON value, {value!r:.60}, and no list of rows",
                where=self.name,
                hint='write one object like {"text": "...", "label": "..."} on each line',
            )
        for number, record in enumerate(value, 1):
            where = f"{self.name}:{number}"
            yield Row(_json_object(record, where, repr(record)), where)

    def _span_rows(self, records: Callable[[], Iterator[Row]], column: str) -> Iterator[Row]:
        for values, where, _ in records():
            yield Row(with_entities(values, column, where), where, values)

    def _squad_rows(self) -> Iterator[Row]:
        for identity, values in read_squad(self._whole_json(), self.name):
            yield Row(values, f"{self.name}: question {identity}")

    def _whole_json(self) -> Any:
        with self._open() as (_, lines):
            return _parse("\n".join(line for _, line in lines), self.name)

    # --- Parquet ---

    def _recognise_parquet(self) -> None:
        self.kind, self._rows = "parquet", self._parquet_rows
        with open_parquet(self.path, self.name) as file:
            self.columns = list(file.schema_arrow.names)
        self._check_names("the schema", "give the columns different names")

    def _parquet_rows(self) -> Iterator[Row]:
        number = 0
        with open_parquet(self.path, self.name) as file:
            for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(values, f"{self.name}:{number}")


def _quoted_lines(lines: Iterator[tuple[int, str]]) -> list[str]:
    """Lines from the first one on that has a quote mark: by these is told what quote marks mean."""
    found, size = list[str](), 0
    for _, line in itertools.dropwhile(lambda numbered: '"' not in numbered[1], lines):
        found.append(line.removesuffix("\r"))
        size += len(line)
        if size > _JUDGED_CHARACTERS:
            break
    return found


def _parse(text: str, name: str, line: int = 1) -> Any:
    """A JSON value. line: where in the file the text begins."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        where = f"{name}:{line + error.lineno - 1}"
        raise _not_json(where, text.split("\n")[error.lineno - 1], error) from error
    except (ValueError, RecursionError) as error:
        raise BertworksError(str(error), where=f"{name}:{line}", hint="repair the line") from error


def _not_json(where: str, line: str, error: json.JSONDecodeError | None = None) -> BertworksError:
    why = f" ({error.msg} at character {error.colno})" if error else ""
    return BertworksError(f"this is not JSON{why}: {line!r:.80}", where=where, hint="repair the line, or take it out")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object names {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return value


def _json_object(value: Any, where: str, source: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BertworksError(
            f"expected a JSON object, found {value!r:.60}", where=where, hint='write it as {"text": "...", ...}'
        )
    if "\\ud" in source.lower():  # the only way in which half a character can come in
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise BertworksError(
                f"a text holds half a character, {error.object[error.start]!r}", where=where, hint="repair the text"
            ) from error
    return value
