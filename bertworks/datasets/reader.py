"""Read one file of labelled or unlabelled data as rows.

Tables, JSON, Parquet, CoNLL, SQuAD and character spans.

Nothing is converted, repaired or left out: what cannot be read is an error that names its line.
Memory use does not grow with the file, except for one JSON value that fills a whole file.
"""

import hashlib
import itertools
import json
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple

from bertworks.datasets import annotations
from bertworks.datasets.annotations import NumberedLines, Record, Records
from bertworks.datasets.values import has_header, label_text, names_columns
from bertworks.errors import BertworksError, UsageError, expect, require
from bertworks.events import Event, JsonObject
from bertworks.io import inputs, tables
from bertworks.io.atomic_write import sha256
from bertworks.io.class_names import ClassNames, class_names_of_schema
from bertworks.io.inputs import (
    IssueCounter,
    Issues,
    LineReader,
    chunk_by_size,
    infer_encoding,
    nothing_there,
    open_lines,
    rereadable,
)
from bertworks.io.options import ReadOptions
from bertworks.io.tables import Data, StoredRows, first_rows, split_rows, stored
from bertworks.io.workbook import Sheet, is_workbook

Names = Collection[str]
Kind = Literal["table", "json", "parquet", "conll", "squad", "spans"]
PLAIN_KINDS = ("table", "json", "parquet")  # their columns may be of any task
# the kind of a file, the names of its columns, its rows
_Recognized = tuple[Kind, list[str], Callable[[], Records]]
_SPANS = '{"text": "...", "entities": [{"start": 0, "end": 5, "type": "person"}]}'
_SEVERAL = "rows with several annotations: the first one counts"
_BAD_LINES = 1000  # from which the encoding is inferred
# the first line of some tables of Excel
_SEPARATOR = re.compile(r'"?sep=([^\w\s"]|\t)"?', re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_QUOTED_CHARACTERS = 1 << 20  # from which the meaning of quote marks is inferred
# without a quote mark in these first characters, the first one is searched in another pass
_HEAD_CHARACTERS = 1 << 16
# The first rows of a file that stay in memory: at most these, and about as many characters.
_SAMPLE_ROWS = 1000
_SAMPLE_CHARACTERS = 1 << 22


class Row(NamedTuple):
    """One row as the file has it; spans are brought into one layout."""

    # by column, in the file's order: strings in tables, JSON values elsewhere
    values: Record
    # "reviews.csv:17": the line where it begins; for Parquet and JSON arrays the number of the row
    where: str
    # the fields of the file, if `values` has them in another layout
    written: Record | None = None


def refuse_columns(row: Row, names: Iterable[str]) -> None:
    """Raise UsageError if a row has a field with the name of a new column."""
    for name in names:
        if name in (row.written or row.values):
            raise UsageError(
                f"the row has a column {name!r} already",
                where=row.where,
                hint="rename it, or drop it",
            )


class _Head:
    """The lines of an open file, of which the first ones can be iterated repeatedly.

    Attributes:
        first_lines: those that are kept.
        json: the value of a file that is one JSON value, once it is parsed.
        is_recognized: whether the kind of file is known: no more lines are kept.
    """

    def __init__(self, stream: LineReader, lines: NumberedLines):
        self.stream = stream
        self.json: Any = None
        self.is_recognized = False
        self._lines = iter(lines)
        self.first_lines: list[tuple[int, str]] = []

    def __iter__(self) -> Iterator[tuple[int, str]]:
        position = 0
        while position < len(self.first_lines) or not self.is_recognized:
            if position == len(self.first_lines):
                line = next(self._lines, None)
                if line is None:
                    return
                self.first_lines.append(line)
            yield self.first_lines[position]
            position += 1
        yield from self._lines


class RowReader:
    """The rows of one file.

    It can be iterated any number of times: each is one pass over the file, unless all rows are in
    memory, as those of a small file (see `sample`) and after `load`. The first pass continues the
    reading of the rows by which the file was recognized.

    Values by kind: cells of a table are strings, and columns without a header are "column 1",
    "column 2", ...; plain text has a row for each line, `text`. CoNLL: `tokens`, `tags` (if there
    are any), `document` (its number), `lines` (as in the file). SQuAD: `id`, `title`, `context`,
    `question`, `answers` (list of {"text", "answer_start"}; None if the file has none),
    `is_impossible`. Spans: `entities` (list of {"start", "end", "type"}) among the other fields.

    Args:
        path: the file, in any compression; "-" is standard input; or rows in memory, see
            `io.tables.Data`.
        options: how it is read. quoting="auto": inferred for tab-separated tables, "quoted" for
            others.
        name: the name of the file in messages.
        known: names of columns that a header may have, as those of the training.

    Attributes:
        kind: the kind of file.
        columns: the names of the values; of JSON lines those of the first rows. written_columns:
            the same as the file names them.
        header_note: whether the first row names the columns, in words; "" where that was not
            inferred.
        conll_layout: the cells of a line of a CoNLL file; None: it is another file.

    Raises:
        BertworksError: the file is not of any known kind. While iterating also: a row with too few
            or too many cells, a line that is not JSON or not UTF-8, a quote mark that is never
            closed, a file that changes meanwhile.
    """

    def __init__(
        self, path: Data, options: ReadOptions = ReadOptions(), *, name: str = "", known: Names = ()
    ):
        self._source = stored(path)  # rows in memory are kept as long as this object
        self.path, piped = rereadable(self._source, self)
        self.name = name or piped or str(self._source)
        if not self.path.exists():
            raise nothing_there(self.path)
        expect(
            not self.path.is_dir(),
            "this is a folder, not a file",
            where=self.name,
            hint="name one of its files",
        )
        self.options = options
        self._counts = Issues()
        self.header_note = ""
        self._known = known
        self._largest = tables.parse_size(options.max_row_bytes, "--max-row-bytes")
        self._largest_value = max(inputs.LARGEST_LINE, self._largest)  # bytes of one JSON value
        self._state = self._file_state()
        self._skipped = 0  # lines before a table
        self._spans: str | None = None  # the field with spans
        # fields of the context, the answer, its start
        self._answers: tuple[str, str, str | None] | None = None
        self._row_type: type | None = None  # of the first row of JSON
        self.conll_layout: annotations.ConllLayout | None = None
        self._class_names: ClassNames | None = None  # of a Parquet file
        self._head: _Head | None = None  # while the file is recognized
        self._first: list[Row] = []
        self._nested: list[str] = []  # the columns that are fields within objects
        with ExitStack() as stack:
            lines = open_lines(self.path, self.name, encoding=options.encoding)
            self._open(stack.enter_context(lines))
            opened = stack.pop_all()
        # in a cycle of references, the file would be found unclosed
        weakref.finalize(self, opened.close)
        # the rows after the first ones: in the open file; (): there are none; None: they are read
        # in another pass
        self._rest: Iterable[Row] | None = self._read_first(opened)
        self._counts_of_first = deepcopy(self._counts)
        self._head = None
        nested = () if set(known) <= {*self.columns} else self._nested_names()
        for column in known:
            if column in nested:
                self.find_column(column, "--text")

    def find_column(self, name: str, option: str) -> str:
        """Return the name of a column.

        `name` is this name, the number of the column from 1, or the path of a field within JSON
        objects, as in "labels.label". From now on such a field is one of the columns. A column of
        that name wins.

        Args:
            option: of the command line, for messages.

        Raises:
            UsageError: there is no such column.
        """
        name = tables.by_number(self.columns, name)
        nested = self._nested_names() if name not in self.columns else []
        if name in nested:
            self._nested.append(name)
            self.columns.append(name)
        return tables.find_column(self.columns, self.name, name, option, nested)

    def _nested_names(self) -> list[str]:
        """Return the names of the fields within the JSON objects of the first rows."""
        columns = dict.fromkeys(
            name
            for row in self._first
            for column, value in row.values.items()
            for name in tables.nested_names(column, value)
        )
        return [*columns]

    def _with_nested(self, row: Row) -> Row:
        """Return a row with the fields within objects that are columns."""
        if not self._nested:
            return row
        nested = {name: tables.nested_value(row.values, name) for name in self._nested}
        return Row({**row.values, **nested}, row.where, row.written or row.values)

    def _open(self, stream: LineReader) -> None:
        """Recognize the file."""
        self.kind, self.written_columns, self._rows = self._recognize(stream)
        self.columns = list(
            dict.fromkeys(
                "entities" if name == self._spans else name for name in self.written_columns
            )
        )
        is_plain = self.kind in PLAIN_KINDS
        self._sentence_column = self.options.sentence_column if is_plain else None
        if self._sentence_column is not None:
            tables.find_column(self.columns, self.name, self._sentence_column, "--sentence-column")
        elif is_plain:
            names = {name.strip().lower().replace(" ", "_"): name for name in self.columns}
            if {"question", "context"} <= names.keys():
                sample = (values for _, values in first_rows(self._rows()))
                self._answers = annotations.answer_fields(names, sample)
            if self._answers is not None:
                remaining = [name for name in self.columns if name not in self._answers[1:]]
                self.columns = [*remaining, "answers"]

    def _read_first(self, opened: ExitStack) -> Iterable[Row] | None:
        """Keep the first rows in memory, and return the others.

        opened: the file, to be closed after them.
        """

        def rows() -> Iterator[Row]:
            with opened:
                yield from self._pass()

        self._counts.clear()
        rest = rows()
        characters = 0
        try:
            for row in rest:
                self._first.append(row)
                characters += len(str(row.values))
                if len(self._first) == _SAMPLE_ROWS or characters > _SAMPLE_CHARACTERS:
                    if self._head:
                        self._head.is_recognized = True
                    return rest
        except BertworksError:
            return None  # the pass that comes to this row raises it again
        return ()

    def __iter__(self) -> Iterator[Row]:
        self._check_unchanged()
        self._counts.clear()
        rest = self._rest
        if rest is None:
            yield from map(self._with_nested, self._pass())
        else:
            self._rest = None if rest else ()
            self._counts.update(deepcopy(self._counts_of_first))
            yield from map(self._with_nested, itertools.chain(self._first, rest))
        self._check_unchanged()

    def sample(self, count: int) -> Iterator[Row]:
        """Return the first rows, at most `count`.

        The first 1,000 are in memory, unless they have more than 4 million characters.
        """
        if self._rest == () or count <= len(self._first):
            return map(self._with_nested, self._first[:count])
        return itertools.islice(self, count)

    def load(self) -> None:
        """Read all rows into memory, in one pass."""
        if self._rest != ():
            nested = self._nested
            self._nested = []  # nested fields are added when the rows are read
            self._first = list(self)
            self._nested = nested
            self._counts_of_first = deepcopy(self._counts)
            self._rest = ()

    def fingerprint(self, *settings: object) -> str:
        """Return a hash of the file, of how it is read, and of settings.

        Of the file the path, the size and the time of change count.
        """
        size, changed = self._state
        state = [str(self.path.resolve()), size, changed, asdict(self.options)]
        return hashlib.sha256(json.dumps([state, *settings], sort_keys=True).encode()).hexdigest()

    def content_identity(self) -> list[Any]:
        """Return the size and the sha256 of the file, and how it is read: the same for a copy."""
        return [self._state[0], sha256(self.path), asdict(self.options)]

    def refuse_output(self, output: Path) -> None:
        """Raise UsageError if an output is this file."""
        if str(output) != "-" and output.exists() and output.samefile(self.path):
            raise UsageError("this is the input file", where=output, hint="-o ANOTHER-FILE")

    def events(self, empty: IssueCounter, effect: str) -> Iterator[Event]:
        """What a person should know about the rows of a pass, as notes.

        Args:
            empty: the rows without text.
            effect: what happens to these.
        """
        for note in self.notes:
            yield Event("note", note, is_warning=True)
        if empty.count:
            text = f"rows without text {effect}: {empty}"
            yield Event("note", text, {"empty": empty.count}, is_warning=True)

    def _pass(self) -> Iterator[Row]:
        if self._sentence_column is not None:
            yield from self._sentences(self._sentence_column)
            return
        first = dict[str, str]()
        for place, values in self._rows():
            where = f"{self.name}:{place}"
            plain = values
            if self.kind != "table" and annotations.is_rejected(values):
                self._counts["rows that the annotator rejected or ignored, left out"].add(where)
                continue
            if self._spans is not None:
                plain = annotations.with_entities(values, self._spans, where)
            elif self._answers is not None:
                plain, several = annotations.with_answers(values, *self._answers)
                if several:
                    self._counts[
                        "answers that occur several times in the context: the first one counts"
                    ].add(where)
            number = values.get("annotations")
            if isinstance(number, int) and number > 1:
                self._counts[_SEVERAL].add(where)
            # Label Studio, JSON-MIN or CSV: a row for each annotation
            if "annotator" in values and "id" in values:
                mark = f"{values['annotator']} {values.get('annotation_id')}"
                if first.setdefault(str(values["id"]), mark) != mark:
                    self._counts[_SEVERAL].add(where)
                    continue
            if values.get("_is_binary") is True and "spans" in values:
                self._counts[
                    "rows of Prodigy about one span: nothing else in them counts as an entity"
                ].add(where)
            yield Row(plain, where, None if plain is values else values)

    def _sentences(self, column: str) -> Iterator[Row]:
        """Rows of one word as rows of one sentence: the cells of each column in a list."""
        current = None

        def sentence(row: tuple[int | str, Record]) -> Any:
            nonlocal current
            current = current if label_text(row[1].get(column)) is None else row[1][column]
            return current

        for name, group in itertools.groupby(self._rows(), sentence):
            first = ""
            written = {key: list[Any]() for key in self.columns}
            for place, values in self._within(group, f": all its words have one {column!r}"):
                first = first or f"{self.name}:{place}"
                for key, cells in written.items():
                    cells.append(
                        intern(values[key]) if type(values.get(key)) is str else values.get(key)
                    )
            yield Row(written | {column: name}, first, written)

    @property
    def unlabelled(self) -> IssueCounter:
        """Counts the rows without a label of the last pass; see `schema.items`."""
        return self._counts["rows without a label, left out"]

    @property
    def notes(self) -> list[str]:
        """Return how the file is read where it could be read in other ways.

        Also what the last pass repaired or left out, in words.
        """
        counts = [f"{what}: {counter}" for what, counter in self._counts.items()]
        if self._answers is not None:
            context, answer, start = self._answers
            counts.insert(
                0,
                f"answers: {answer!r}, "
                + (f"at {start!r}" if start else f"searched in {context!r}"),
            )
        layout_notes = self.conll_layout.notes if self.conll_layout else []
        stored_notes = self._source.notes if isinstance(self._source, StoredRows) else []
        class_notes = self._class_names.notes if self._class_names else []
        return [*layout_notes, *stored_notes, *class_notes, *counts]

    def _file_state(self) -> tuple[int, int]:
        state = self.path.stat()
        return state.st_size, state.st_mtime_ns

    def _check_unchanged(self) -> None:
        require(
            self.path.exists() and self._file_state() == self._state,
            "the file changed while it was read",
            self.name,
            "wait until it is complete, then try again",
        )

    def _parquet_rows(self) -> Records:
        with tables.open_parquet(self.path, self.name) as file:
            batches = tables.batches_of(file, None, self.name, self._largest)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, values in enumerate(rows, 1):
                self._check_size(number, str(values))
                if self._class_names:
                    values = self._class_names.named_row(values, f"{self.name}:{number}")
                yield number, values

    def _recognize(self, stream: LineReader) -> _Recognized:
        """Return the kind of file, the names of its columns, and its rows."""
        if stream.is_parquet:
            with tables.open_parquet(self.path, self.name) as file:
                self._class_names = class_names_of_schema(file.schema_arrow, self.name)
                names = tables.distinct_names(file.schema_arrow.names, self.name)
                return "parquet", names, self._parquet_rows
        if stream.head.startswith(b"PK") and is_workbook(self.path):
            return self._recognize_sheet()
        expect(
            self.options.sheet is None,
            "--sheet is for files of Excel, and this is another file",
            where=self.name,
            hint="leave --sheet out",
        )
        head = stream.head.lstrip()
        require(head, "the file is empty", self.name, "name a file that holds rows")
        if stream.not_text:
            what, hint = stream.not_text
            likely = infer_encoding(stream.head) if what == "not text" else None
            hint = hint or "name a csv, tsv, json, Parquet or CoNLL file"
            hint = f"it may be text in {likely}: --encoding {likely}" if likely else hint
            raise BertworksError(f"this is {what}", where=self.name, hint=hint)
        if stream.format in ("json", "jsonl") or head.startswith(
            (b'{"', b"[{", b"{\n", b"[\n", b"[[")
        ):
            # a line of another format may be one JSON value
            is_long = stream.format != "jsonl"
            self._read_head(stream, self._largest_value if is_long else self._largest)
            return self._recognize_json(stream.format)
        self._read_head(stream, self._largest)
        stream.require_line_feeds()
        sample = stream.sample()
        for pattern, (what, hint) in inputs.OTHER_FORMATS["first_lines"].items():
            require(
                not re.match(pattern, "\n".join(sample[:50]), re.IGNORECASE),
                f"this is {what}",
                self.name,
                hint,
            )
        if tables.looks_like_fasttext(sample):
            return "table", ["text", "label"], lambda: annotations.fasttext_rows(self._lines())
        treebank = stream.suffix == ".conllu"
        chosen = self.options.numbers_of_columns if self.options.columns is not None else {}
        if treebank or chosen or stream.format == "conll" or tables.looks_like_conll(sample):
            layout = self.conll_layout = annotations.conll_layout(sample, chosen, treebank=treebank)
            columns = ["tokens", *(["tags"] if layout.tag is not None else []), "document", "lines"]
            return (
                "conll",
                columns,
                lambda: annotations.read_conll(self._conll_lines(), self.name, layout),
            )
        return self._recognize_table(stream.format, sample)

    def _read_head(self, stream: LineReader, largest: int) -> None:
        """From now on `_lines` are those of an open file, until it is closed.

        largest: the most bytes of a line.
        """
        lines = _checked_lines(stream, self.path, self.options.encoding, largest)
        self._head = _Head(stream, lines)

    def _lines(self) -> NumberedLines:
        """Return the lines of the file.

        They come from memory while the file is recognized.
        """
        return itertools.islice(self._head or self._lines_of_file(), self._skipped, None)

    def _lines_of_file(self) -> NumberedLines:
        return utf8_lines(self.path, self.name, self.options.encoding, self._largest)

    def _conll_lines(self) -> NumberedLines:
        """`_lines`, with a limit for those of a sentence."""
        for _, lines in itertools.groupby(self._lines(), lambda numbered: not numbered[1].strip()):
            yield from self._within(lines, ": no blank line ends this sentence")

    def _within(
        self, parts: Iterable[tuple[int | str, Any]], why: str
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the parts of a row, which has a limit. why: where it would end."""
        first = ""
        size = 0
        for place, part in parts:
            first = first or f"{self.name}:{place}"
            size = size + len(str(part).strip().encode("utf-8", "replace"))
            if size > self._largest:
                raise inputs.too_large(first, self._largest, why)
            yield place, part

    # --- tables ---

    def _recognize_table(self, format: str | None, sample: list[str]) -> _Recognized:
        delimiter = tables.delimiter_of(sample, format)
        if by_excel := _SEPARATOR.fullmatch(sample[0]):
            delimiter = by_excel[1]
            format = "csv"
            sample = sample[1:]
            self._skipped = 1
        if format not in ("csv", "tsv"):
            first_line = next(line for line in sample if line.strip())
            delimiter = "\t" if "\t" in first_line else delimiter
            if (
                self.options.header is None
                and delimiter != "\t"
                and not has_header(sample, delimiter)
            ):
                self.header_note = "header: no"
                return (
                    "table",
                    ["text"],
                    lambda: ((n, {"text": line.removesuffix("\r")}) for n, line in self._lines()),
                )
        quoted = self.options.quoting == "quoted"
        if self.options.quoting == "auto":
            quoted = delimiter != "\t" or tables.quotes_matter(self._first_quoted_lines())
        columns, named = self._columns_of_cells(self._split(delimiter, quoted))
        other = (
            "raw: quotation marks are text" if quoted else "quoted: quotation marks enclose cells"
        )

        def rows() -> Records:
            cells = self._split(delimiter, quoted)
            if not quoted:
                cells = tables.rejoin_broken_rows(cells, len(columns), self._counts, self.name)
            return self._table_rows(
                columns, cells, named, f"repair the row; or is the table {other}?"
            )

        return "table", columns, rows

    def _recognize_sheet(self) -> _Recognized:
        """Return what `_recognize` returns, of a file of Excel."""
        sheet = Sheet(self.path, self.name, self.options.sheet, self._largest)
        has_cells = any(cells for _, cells in sheet.rows())
        require(
            has_cells, f"{sheet.note}: it is empty", self.name, "name another one: --sheet NAME"
        )
        columns, named = self._columns_of_cells(sheet.rows())
        self.header_note = "; ".join(filter(None, (sheet.note, self.header_note)))
        rows = partial(self._table_rows, columns, named=named)  # a sheet has rows of one width
        return "table", columns, lambda: rows(sheet.rows())

    def _columns_of_cells(self, cells: Iterable[tuple[int, list[str]]]) -> tuple[list[str], bool]:
        """Return the names of the columns of a table, and whether its first row has them."""
        first, *rows = [row for _, row in first_rows(cells) if row]
        named = self.options.header
        if named is None:
            named = names_columns(first, rows, self._known)
            self.header_note = f"header: {'yes' if named else 'no'}"
        if named is None:
            raise UsageError(
                f"does the first row name the columns? {first!r:.120}",
                where=f"{self.name}:1",
                hint="--header if so, else --no-header",
            )
        hint = "name them differently, or read it without header"
        columns = tables.distinct_names(
            tables.column_names(first, named=named), f"{self.name}:1", hint
        )
        return columns, named

    def _first_quoted_lines(self) -> list[str]:
        """Return a sample of lines that begins with the first line with a quote mark."""
        head = next(chunk_by_size((line for _, line in self._lines()), _HEAD_CHARACTERS, len), [])
        is_in_head = any('"' in line for line in head)
        is_whole = sum(map(len, head)) < _HEAD_CHARACTERS
        numbered = self._lines() if is_in_head or is_whole else self._lines_of_file()
        lines = (line.removesuffix("\r") for _, line in numbered)
        quoted = itertools.dropwhile(lambda line: '"' not in line, lines)
        return next(chunk_by_size(quoted, _QUOTED_CHARACTERS, len), [])

    def _split(self, delimiter: str, quoted: bool) -> Iterator[tuple[int, list[str]]]:
        return split_rows(
            self._lines(),
            delimiter,
            quoted=quoted,
            name=self.name,
            strict=True,
            largest=self._largest,
        )

    def _table_rows(
        self, columns: list[str], rows: Iterable[tuple[int, list[str]]], named: bool, hint: str = ""
    ) -> Records:
        """Yield the rows of a table as records.

        Args:
            rows: with the first one, which has the names of the columns if `named`.
            hint: for a row with too few or too many cells.
        """
        width = len(columns)
        if named:
            rows = itertools.islice(itertools.dropwhile(lambda row: not row[1], rows), 1, None)
        for number, cells in (
            (number, cells or [""]) for number, cells in rows if cells or width == 1
        ):
            if len(cells) != width:
                raise BertworksError(
                    f"{len(cells)} cells, but the first row has {width}: {cells!r:.120}",
                    where=f"{self.name}:{number}",
                    hint=hint,
                )
            yield number, dict(zip(columns, cells))

    # --- JSON ---

    def _recognize_json(self, format: str | None) -> _Recognized:
        """JSON lines if the first line is an object by itself; else the whole file is one value."""
        assert self._head is not None
        number, first = next((number, line) for number, line in self._head if line.strip())
        _require_content(first, self.name, number)
        try:
            value = json.loads(first)
        except (ValueError, RecursionError):
            if format != "json" and not first.lstrip().startswith(("[", "{")):
                parse_json(first, self.name, number)
            value = None
        whole = not isinstance(value, dict)
        if isinstance(value, list):  # a row by itself is one like ["text", "label"]
            whole = format != "jsonl" or isinstance((value or [{}])[0], dict)
        elif annotations.splits_of(value) or annotations.json_rows(value) is not None:
            whole = whole or not any(line.strip() for later, line in self._head if later > number)
        if whole and isinstance(self._whole_json(), dict):
            return "squad", [*annotations.SQUAD_FIELDS], self._whole_rows
        rows = self._whole_rows if whole else lambda: self._rows_of_lines(self._lines())
        sample = [values for _, values in first_rows(rows())]
        # of lines, the rows are read again, so that none stays in memory
        again = self._whole_rows() if whole else self._rows_of_lines(self._lines_of_file())
        self._spans = annotations.span_column(sample, (values for _, values in again))
        require(
            any(sample) or not sample,
            "the rows have no fields",
            self.name,
            f"write rows like {_SPANS}",
        )
        names = list(dict.fromkeys(itertools.chain.from_iterable(sample)))
        return "json" if self._spans is None else "spans", names, rows

    def _rows_of_lines(self, lines: NumberedLines) -> Records:
        for number, line in lines:
            if line.strip():
                self._check_size(number, line)
                yield number, self._checked(parse_json(line, self.name, number), number, line)

    def _whole_rows(self) -> Records:
        whole = self._whole_json()
        rows = (
            annotations.read_squad(whole, self.name)
            if isinstance(whole, dict)
            else enumerate(whole, 1)
        )
        for place, row in rows:
            # a copy: the parsed value is read again
            values = dict(row) if isinstance(row, dict) else row
            source = repr(row)
            self._check_size(place, source)
            yield place, self._checked(values, place, source)

    def _checked(self, value: Any, number: int | str, source: str) -> Record:
        """Return a JSON object. source: its text."""
        where = f"{self.name}:{number}"
        kind = type(value)
        self._row_type = self._row_type or kind
        try:
            value = annotations.record_of(value)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BertworksError(
                f"this row of Label Studio, Prodigy or spaCy cannot be read ({error}): "
                f"{value!r:.80}",
                where=where,
                hint=f"write it as {_SPANS}",
            ) from error
        if not isinstance(value, dict) or kind is not self._row_type:
            raise BertworksError(
                f"expected a JSON object, not {value!r:.60}",
                where=where,
                hint='write {"text": "..."}',
            )
        # Only an escape can be half a character.
        if "\\ud" in source.lower():
            half = _SURROGATE.search(json.dumps(value, ensure_ascii=False))
            require(
                half is None,
                f"a text holds half a character, {half and half[0]!r}",
                where,
                "repair the text",
            )
        return value

    def _whole_json(self) -> Any:
        """Return the rows, or a SQuAD document, of a file that is one JSON value.

        It is parsed once while the file is recognized.
        """
        head = self._head
        largest = self._largest_value
        if head is not None and head.json is not None:
            return head.json
        if head is None:
            lines = utf8_lines(self.path, self.name, self.options.encoding, largest, whole=True)
        else:
            lines = _lines_of_value(head, head.stream, largest)
        rows = self._rows_of_json("\n".join(line for _, line in lines))
        if head is not None:
            head.json = rows
            head.first_lines.clear()
        return rows

    def _rows_of_json(self, text: str) -> Any:
        value = parse_json(text, self.name)
        if splits := annotations.splits_of(value):
            if self.options.split not in splits:
                raise SplitsError(splits, self.name)
            value = value[self.options.split]
        rows = annotations.json_rows(value)
        if rows is None:
            raise BertworksError(
                f"the file is one JSON value, {value!r:.60}, not a list of rows",
                where=self.name,
                hint='write an object like {"text": "..."} on each line',
            )
        return rows

    def _check_size(self, number: int | str, row: str) -> None:
        if len(row) > self._largest // 4 and len(row.encode("utf-8", "replace")) > self._largest:
            raise inputs.too_large(f"{self.name}:{number}", self._largest)


class SplitsError(UsageError):
    """A file has several parts, as {"train": [...], "validation": [...]}, and none is named.

    splits: their names.
    """

    def __init__(self, splits: list[str], name: str):
        super().__init__(
            f"the file has the parts {', '.join(splits)}", where=name, hint=f"--split {splits[0]}"
        )
        self.splits = splits


def utf8_lines(
    path: Path,
    name: str,
    encoding: str | None = None,
    largest: int = inputs.LARGEST_LINE,
    *,
    whole: bool = False,
) -> NumberedLines:
    """Yield the numbered lines of a file.

    BertworksError for a line that is not in its encoding (None: UTF-8), or has more than `largest`
    bytes. whole: also for all lines together.
    """
    with open_lines(path, name, encoding=encoding) as stream:
        lines = _checked_lines(stream, path, encoding, largest)
        yield from _lines_of_value(lines, stream, largest) if whole else lines


def _checked_lines(
    stream: LineReader, path: Path, encoding: str | None, largest: int
) -> NumberedLines:
    for numbered in stream.lines(exact=True, largest=largest):
        if bad := stream.repairs.counts[inputs.BAD_BYTES].places:
            raise _bad_bytes(path, stream.name, bad[0], encoding)
        yield numbered


def _lines_of_value(lines: NumberedLines, stream: LineReader, largest: int) -> NumberedLines:
    """The lines of a file that is one value; BertworksError if it has more than `largest` bytes."""
    for number, line in lines:
        if stream.repairs.bytes > largest + inputs.BLOCK_SIZE:
            raise inputs.too_large(
                f"{stream.name}:{number}", largest, ": it is one JSON value over many lines"
            )
        yield number, line


def _bad_bytes(path: Path, name: str, where: str, encoding: str | None) -> BertworksError:
    """Return the error for the first bad line.

    It names the encoding that the bytes of all such lines suggest.
    """
    bad: list[bytes] = []
    num_utf8 = 0  # lines of UTF-8 with other characters than ASCII
    with open_lines(path, name, encoding="latin-1") as reader:
        for line in (line.encode("latin-1") for _, line in reader.lines(exact=True)):
            # with NUL: UTF-16
            is_bad = b"\0" in line or "\N{REPLACEMENT CHARACTER}" in line.decode("utf-8", "replace")
            if is_bad and len(bad) < _BAD_LINES:
                bad.append(line)
            num_utf8 += not (is_bad or line.isascii())
    likely = infer_encoding(b"\n".join(bad)) if encoding is None else None
    what = f"the line has bytes that are not {encoding or 'UTF-8'}"
    hint = f"name its encoding: --encoding {inputs.SOME_ENCODINGS}, ...; or repair the line"
    if likely:
        decoded = b"\n".join(bad).decode(likely, "replace").split("\n")[0]
        what += f"; in {likely} it is {decoded!r:.120}"
        hint = f"--encoding {likely}, or convert the file with iconv"
        if num_utf8:
            what_else = f"{num_utf8:,} other lines are UTF-8, so the file has two encodings"
            hint = f"repair the line: {what_else}"
    return BertworksError(what, where=where, hint=hint)


def _require_content(text: str, name: str, line: int) -> None:
    """Raise BertworksError for a JSON value that is little else than empty lists.

    This comes before it is parsed.
    """
    require(
        not inputs.is_hollow(text),
        inputs.HOLLOW,
        f"{name}:{line}",
        "repair the line, or leave it out",
    )


def parse_json(text: str, name: str, line: int = 1) -> Any:
    """Return a JSON value.

    BertworksError if it is not JSON, or if an object names a field twice. line: where it begins.
    """
    _require_content(text, name, line)
    try:
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        content = text.split("\n")[error.lineno - 1]
        raise BertworksError(
            f"this is not JSON ({error.msg} at character {error.colno}): {content!r:.80}",
            where=f"{name}:{line + error.lineno - 1}",
            hint="repair or remove the line",
        ) from error
    except (ValueError, RecursionError) as error:
        raise BertworksError(
            str(error)
            if isinstance(error, ValueError)
            else "this JSON has too many lists or objects within others",
            where=f"{name}:{line}",
            hint="repair the line",
        ) from error


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    value = dict(pairs)
    if len(value) != len(pairs):
        twice = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f"an object names {twice!r} twice")
    return value
