"""Reads a file of a corpus: plain text, JSON lines, CSV, TSV, Parquet, output of WikiExtractor.

The format is that of the file name if it is known, else of the content.
"""

import html
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertworks.errors import BertworksError
from bertworks.io.tables import (
    as_text,
    choose_column,
    delimiter_of,
    is_header,
    is_parquet,
    open_parquet,
    quotes_matter,
    split_rows,
)
from bertworks.io.text_files import (
    COMPRESSIONS,
    LONGEST_PIECE,
    IssueCounter,
    LineReader,
    Repairs,
    format_suffix,
    not_text,
    open_lines,
)
from bertworks.text.segmentation import margin_of, separation

_BAD_BYTES = "lines with bytes that are not UTF-8 (replaced by \N{REPLACEMENT CHARACTER})"
_MANY_BAD_LINES = 100  # more suggest that the file has another encoding
LARGEST_DOCUMENT = 1 << 22  # characters; longer documents are divided, to bound memory
SUFFIXES = {
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".jsonlines", ".json"), "json"),
    **dict.fromkeys((".csv", ".tsv", ".tab"), "table"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
}
_SAMPLE_CHARACTERS = 1 << 20  # of the first records, from which the text column is inferred
_SAMPLE_RECORDS = 100
_MIN_LINES = 1000  # before a file with malformed lines is refused before its end
_OWN_MARGIN = 30  # lines of a document that has its own margin, not that of its file


class RawDocument(NamedTuple):
    """A document with its lines as in the file."""

    line: int  # its first line, from 1; of Parquet the row
    lines: list[str]
    margin: int | None  # the right margin if its lines are hard-wrapped


@dataclass(kw_only=True)
class CorpusReport(Repairs):
    """Counts and issues of a pass over a corpus. `str()` gives several lines of text."""

    malformed: IssueCounter = field(default_factory=IssueCounter)  # lines that are no JSON, rows of another width
    cut_documents: IssueCounter = field(default_factory=IssueCounter)  # longer than LARGEST_DOCUMENT
    empty_files: IssueCounter = field(default_factory=IssueCounter)
    skipped_files: IssueCounter = field(default_factory=IssueCounter)  # of another format
    columns: dict[str, int] = field(default_factory=dict)  # text column -> number of files
    separations: dict[str, int] = field(default_factory=dict)  # separation of documents -> number of files
    files: int = 0
    documents: int = 0
    characters: int = 0
    empty_documents: IssueCounter = field(default_factory=IssueCounter)
    wrapped_documents: int = 0  # whose hard-wrapped lines were joined

    def issues(self) -> list[str]:
        """A line for each kind of issue, with its number and first places."""
        counters = {
            "files skipped": self.skipped_files,
            "empty files": self.empty_files,
            "empty documents": self.empty_documents,
            "malformed lines left out": self.malformed,
            _BAD_BYTES: self.bad_bytes,
            "places with NUL characters (dropped)": self.null_characters,
            f"documents longer than {LARGEST_DOCUMENT:,} characters (cut)": self.cut_documents,
        }
        lines = [f"{name}: {counter}" for name, counter in counters.items() if counter.count]
        if self.bad_bytes.count >= _MANY_BAD_LINES:
            lines.append("  another encoding? `iconv -f CP932 -t UTF-8 FILE` (or EUC-KR, CP1252, ...) converts it")
        return lines

    def __str__(self) -> str:
        lines = [
            f"{self.documents:,} documents, {self.characters:,} characters in {self.files:,} files "
            f"({self.bytes / 1e6:,.1f} MB read)"
        ]
        lines += [f"text column: {column} ({count:,} files)" for column, count in sorted(self.columns.items())]
        lines += [f"plain text: {how} ({count:,} files)" for how, count in sorted(self.separations.items())]
        if self.wrapped_documents:
            lines.append(f"hard-wrapped lines joined in {self.wrapped_documents:,} documents")
        return "\n".join(lines + self.issues())


@dataclass
class FileReader:
    """The documents of a file, as a stream. It is iterated once.

    Args:
        name: of the file in messages. Its suffix is that of the format.
        report: is updated while reading.
        text_column, documents: as for `CorpusReader`.

    Raises:
        BertworksError: while iterating: the file is damaged or unreadable, too many lines are malformed, or there is no
            text column.
    """

    path: Path
    name: str
    report: CorpusReport
    text_column: str | None
    documents: Literal["auto", "blank_line", "file"]
    _good: int = 0
    _bad: int = 0
    _first_bad: tuple[int, str] = (0, "")  # line and problem

    def __iter__(self) -> Iterator[RawDocument]:
        if is_parquet(self.path):
            yield from self._parquet()
            return
        with open_lines(self.path, self.name, self.report) as reader:
            if not reader.head:
                self.report.empty_files.add(self.name)
                return
            kind = self._kind(reader)
            readers = {"text": self._text, "wiki": self._wiki, "json": self._json, "table": self._table}
            if kind in readers:
                yield from readers[kind](reader)
            else:
                self.report.skipped_files.add(f"{self.name} ({kind})")

    def _kind(self, reader: LineReader) -> str:
        """text, wiki, json or table, or the reason why the file is not read."""
        head = reader.head.lstrip()
        if head.startswith(b"<doc "):
            return "wiki"
        known = SUFFIXES.get(format_suffix(self.name))
        if reader.head.startswith(b"PAR1"):
            unpack = COMPRESSIONS.get(Path(self.name).suffix, ("", ""))[1].replace("-t", "-d")
            return f"a compressed Parquet file; unpack it{f': `{unpack} FILE`' if unpack else ''}"
        if known == "parquet":
            return "not a Parquet file, in spite of its name"
        if other := not_text(reader.head):
            return "; ".join(filter(None, other))
        if known == "json" and head.startswith(b"["):
            return "one JSON array, not JSON lines; `jq -c '.[]' FILE > FILE.jsonl` makes them"
        if known:
            return known
        return "json" if head.startswith((b'{"', b"{ ")) else "text"

    def _text(self, reader: LineReader) -> Iterator[RawDocument]:
        sample = reader.sample()
        margin = margin_of(sample)
        ends, reason = (self.documents, "as set") if self.documents != "auto" else separation(sample, margin)
        how = f"{'a blank line ends a document' if ends == 'blank_line' else 'each file is a document'} ({reason})"
        self.report.separations[how] = self.report.separations.get(how, 0) + 1
        lines: list[str] = []
        start = size = 0

        def document() -> RawDocument:
            return RawDocument(start, lines, margin if len(lines) < _OWN_MARGIN else margin_of(lines))

        for number, line in reader.lines(longest=LONGEST_PIECE):
            blank = not line or line.isspace()
            if lines and (size >= LARGEST_DOCUMENT if blank else size >= 1.25 * LARGEST_DOCUMENT):
                self.report.cut_documents.add(f"{self.name}:{number}")
                yield document()
                lines, size = [], 0
            elif blank and lines and ends == "blank_line":
                yield document()
                lines, size = [], 0
            if blank and not lines:
                continue
            if not lines:
                start = number
            lines.append(line)
            size += len(line)
        if lines:
            yield document()

    def _wiki(self, reader: LineReader) -> Iterator[RawDocument]:
        """WikiExtractor: `<doc id=... title=...>`, the article with its title as first line, `</doc>`."""
        start, lines, inside = 1, list[str](), False
        number = 0
        for number, line in reader.lines():
            if line.startswith("<doc "):
                if inside:
                    self.report.malformed.add(f"{self.name}:{number}")
                    yield RawDocument(start, lines, None)
                start, lines, inside = number, [], True
            elif line.startswith("</doc>"):
                yield RawDocument(start, lines, None)
                lines, inside = [], False
            elif line:
                lines.append(html.unescape(line) if "&" in line else line)
        if inside or lines:
            self.report.malformed.add(f"{self.name}:{number}")
            yield RawDocument(start, lines, None)

    def _json(self, reader: LineReader) -> Iterator[RawDocument]:
        first, rest = _peek(self._json_values(reader))
        objects = [record for _, record in first if isinstance(record, dict)]
        column = ""
        if objects:
            keys = dict.fromkeys(itertools.chain(*objects))
            column = self._text_column({key: [record.get(key) for record in objects] for key in keys})
        for number, record in rest:
            value = record if isinstance(record, str) else record.get(column)
            text = as_text(value)
            if text is None:
                self._malformed(number, f"{column!r} holds {type(value).__name__}, not text")
            else:
                yield _record(number, text)
        self._refuse_malformed()

    def _json_values(self, reader: LineReader) -> Iterator[tuple[int, Any]]:
        for number, line in reader.lines():
            if not line or line.isspace():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                self._malformed(number, f"this is not a JSON value ({error})")
                continue
            if isinstance(record, dict | str):
                self._good += 1
                yield number, record
            else:
                self._malformed(number, 'expected a JSON object like {"text": "..."} or a JSON string')

    def _table(self, reader: LineReader) -> Iterator[RawDocument]:
        sample = reader.sample()
        delimiter = "\t" if format_suffix(self.name) in (".tsv", ".tab") else delimiter_of(sample)
        quoted = delimiter != "\t" or quotes_matter(sample)
        rows = split_rows(reader.lines(), delimiter, quoted=quoted, name=self.name)
        first, rest = _peek((number, row) for number, row in rows if row)
        if not first:
            return
        header = first[0][1]
        if is_header(header):
            next(rest)
            first = first[1:]
        else:
            header = [f"column {index}" for index in range(1, len(header) + 1)]
        column = self._text_column(
            {key: [row[index] for _, row in first if index < len(row)] for index, key in enumerate(header)}
        )
        index = header.index(column)
        for line, row in rest:
            if len(row) == len(header):
                self._good += 1
                yield _record(line, row[index])
            else:
                self._malformed(line, f"{len(row)} cells where the first row has {len(header)}")
        self._refuse_malformed()

    def _parquet(self) -> Iterator[RawDocument]:
        with open_parquet(self.path, self.name) as file:
            readable = [column.name for column in file.schema_arrow if _is_text_type(column.type)]
            others = [name for name in file.schema_arrow.names if name not in readable]
            beginning = next(file.iter_batches(batch_size=_SAMPLE_RECORDS, columns=readable), None)
            columns = beginning.to_pydict() if beginning is not None and readable else {}
            column = self._text_column({**dict.fromkeys(others, ()), **columns})
            row = 1
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                self.report.bytes += batch.nbytes
                for value in batch.column(0).to_pylist():
                    yield _record(row, as_text(value) or "")
                    row += 1

    def _text_column(self, columns: Mapping[str, Sequence[object]]) -> str:
        """The column of the text; it is also reported."""
        column = choose_column(columns, self.name, self.text_column)
        self.report.columns[column] = self.report.columns.get(column, 0) + 1
        return column

    def _malformed(self, line: int, problem: str) -> None:
        """Count a malformed line. A long file may be refused before its end."""
        self._bad += 1
        self._first_bad = self._first_bad if self._first_bad[0] else (line, problem)
        self.report.malformed.add(f"{self.name}:{line}")
        if self._bad + self._good >= _MIN_LINES:
            self._refuse_malformed()

    def _refuse_malformed(self) -> None:
        """Raises BertworksError if all lines are malformed, or more than one line and more than 1 %."""
        if self._bad <= (1 + self._good // 100 if self._good else 0):
            return
        line, problem = self._first_bad
        what = f"{self._bad:,} malformed lines and only {self._good:,} good ones so far; the first: {problem}"
        hint = f"look at it with `sed -n {line}p {shlex.quote(self.name)}`, repair the file or leave it out"
        raise BertworksError(what, where=f"{self.name}:{line}", hint=hint)


def _is_text_type(kind: Any) -> bool:
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _peek(records: Iterator[tuple[int, Any]]) -> tuple[list[tuple[int, Any]], Iterator[tuple[int, Any]]]:
    """The first records, from which the columns are inferred, and an iterator over all records."""
    first, size = list[tuple[int, Any]](), 0
    while size < _SAMPLE_CHARACTERS and len(first) < _SAMPLE_RECORDS:
        record = next(records, None)
        if record is None:
            break
        first.append(record)
        size += len(str(record))
    return first, itertools.chain(first, records)


def _record(line: int, text: str) -> RawDocument:
    lines = text.split("\n")
    return RawDocument(line, lines, margin_of(lines) if len(lines) > 1 else None)
