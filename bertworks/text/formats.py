"""Reads a file of a corpus: plain text, JSON lines, CSV, TSV, Parquet, output of WikiExtractor.

The format is that of the file name if it is known, else of the content.
"""

import html
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertworks.errors import BertworksError, quoted
from bertworks.io import tables
from bertworks.io.text_files import COMPRESSIONS, FORMATS, LONGEST_PIECE, LineReader, Repairs, open_lines
from bertworks.text.segmentation import margin_of, separation

LARGEST_DOCUMENT = 1 << 22  # characters; longer documents are divided, to bound memory
CUT = f"documents longer than {LARGEST_DOCUMENT:,} characters (cut)"
SKIPPED, EMPTY, MALFORMED = "files skipped", "empty documents", "malformed lines left out"
_LONGEST_BLOCK = LARGEST_DOCUMENT + LARGEST_DOCUMENT // 4  # of lines without a blank one, at which it is divided
SUFFIXES = [suffix for suffix, kind in FORMATS.items() if kind != "conll"]
_MIN_LINES = 1000  # before a file with malformed lines is refused before its end
_OWN_MARGIN = 30  # lines of a document that has its own margin, not that of its file


# What ends a document in plain text. title: a blank line, but not the one after a title.
Documents = Literal["auto", "blank_line", "title", "file"]
_ENDS = {
    "blank_line": "a blank line ends a document", "title": "a title and its text are a document",
    "file": "each file is a document",
}  # fmt: skip


class RawDocument(NamedTuple):
    """A document with its lines as in the file."""

    line: int  # its first line, from 1; of Parquet the row
    lines: list[str]
    margin: int | None  # the right margin if its lines are hard-wrapped


# A line of JSON or a row of a table: its line; the values by column, or the text itself; why it is malformed, or "".
_Record = tuple[int, Any, str]


@dataclass(kw_only=True)
class CorpusReport(Repairs):
    """Counts and issues of a pass over a corpus. `str()` gives several lines of text."""

    columns: dict[str, int] = field(default_factory=dict)  # text column -> number of files
    separations: dict[str, int] = field(default_factory=dict)  # separation of documents -> number of files
    files: int = 0
    documents: int = 0
    characters: int = 0
    wrapped_documents: int = 0  # whose hard-wrapped lines were joined

    def issues(self) -> list[str]:
        """A line for each kind of issue, with its number and first places."""
        return [f"{name}: {counter}" for name, counter in self.counts.items() if counter.count]

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
        text_column, documents, encoding: as for `CorpusReader`.

    Raises:
        BertworksError: while iterating: the file is damaged or unreadable, too many lines are malformed or not in the
            encoding, a line of a table or of JSON is larger than LARGEST_LINE, or there is no text column.
    """

    path: Path
    name: str
    report: CorpusReport
    text_column: str | None
    documents: Documents
    encoding: str | None = None

    def __iter__(self) -> Iterator[RawDocument]:
        if tables.is_parquet(self.path):
            yield from self._parquet()
            return
        with open_lines(self.path, self.name, self.report, self.encoding) as reader:
            if not reader.head:
                self.report.counts["empty files"].add(self.name)
                return
            kind = self._kind(reader)
            readers = {"text": self._text, "wiki": self._wiki, "json": self._json, "jsonl": self._json}
            readers |= {"csv": self._table, "tsv": self._table}
            if kind in readers:
                yield from readers[kind](reader)
            else:
                self.report.counts[SKIPPED].add(f"{self.name} ({kind})")

    def _kind(self, reader: LineReader) -> str:
        """text, wiki, json, jsonl, csv or tsv, or the reason why the file is not read."""
        head = reader.head.lstrip()
        if head.startswith(b"<doc "):
            return "wiki"
        if reader.head.startswith(b"PAR1"):
            unpack = COMPRESSIONS.get(Path(self.name).suffix, ("", ""))[1].replace("-t", "-d")
            return f"a compressed Parquet file; unpack it{f': `{unpack} FILE`' if unpack else ''}"
        if reader.format == "parquet":
            return "not a Parquet file, in spite of its name"
        if reader.not_text:
            return "; ".join(filter(None, reader.not_text))
        if reader.format in ("json", "jsonl") and head.startswith(b"["):
            return "one JSON array, not JSON lines; `jq -c '.[]' FILE > FILE.jsonl` makes them"
        if reader.format and reader.format != "conll":
            return reader.format
        return "json" if head.startswith((b'{"', b"{ ")) else "text"

    def _text(self, reader: LineReader) -> Iterator[RawDocument]:
        sample = reader.sample()
        margin = margin_of(sample)
        ends, reason = (self.documents, "as set") if self.documents != "auto" else separation(sample, margin)
        how = f"{_ENDS[ends]} ({reason})"
        self.report.separations[how] = self.report.separations.get(how, 0) + 1
        lines: list[str] = []
        start = size = 0

        def document() -> RawDocument:
            return RawDocument(start, lines, margin if len(lines) < _OWN_MARGIN else margin_of(lines))

        for number, line in reader.lines(longest=LONGEST_PIECE):
            blank = not line or line.isspace()
            longest = LARGEST_DOCUMENT if blank else _LONGEST_BLOCK
            is_end = ends == "blank_line" or (ends == "title" and any(map(str.strip, lines[1:])))
            if lines and (size >= longest or (blank and is_end)):
                if size >= longest:
                    self.report.counts[CUT].add(f"{self.name}:{number}")
                yield document()
                lines, size = [], 0
            if lines or not blank:
                start = start if lines else number
                lines.append(line)
                size += len(line)
        if lines:
            yield document()

    def _wiki(self, reader: LineReader) -> Iterator[RawDocument]:
        """WikiExtractor: `<doc id=... title=...>`, the article with its title as first line, `</doc>`."""
        start, lines, inside = 1, list[str](), False
        for number, line in itertools.chain(reader.lines(), [(0, "<doc ")]):  # the file may end in an article
            if line.startswith(("<doc ", "</doc>")):
                if inside or lines:
                    yield RawDocument(start, lines, None)
                    if not (inside and line.startswith("</doc>")):
                        self.report.counts[MALFORMED].add(f"{self.name}:{start}")
                start, lines, inside = number, [], line.startswith("<doc ")
            elif line:
                lines.append(html.unescape(line))

    def _json(self, reader: LineReader) -> Iterator[RawDocument]:
        def records() -> Iterator[_Record]:
            for number, line in reader.lines():
                if not line or line.isspace():
                    continue
                value, problem = None, 'expected a JSON object like {"text": "..."} or a JSON string'
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    problem = f"this is not a JSON value ({error})"
                yield number, value, "" if isinstance(value, dict | str) else problem

        return self._from_records(records())

    def _table(self, reader: LineReader) -> Iterator[RawDocument]:
        sample = reader.sample()
        delimiter = tables.delimiter_of(sample, reader.format)
        quoted = delimiter != "\t" or tables.quotes_matter(sample)
        rows = tables.split_rows(reader.lines(), delimiter, quoted=quoted, name=self.name)
        rows = ((number, row) for number, row in rows if row)
        first = next(rows, (0, []))
        named = tables.is_header(first[1])
        header = tables.column_names(first[1], named=named)
        rows = rows if named else itertools.chain([first], rows)

        def records() -> Iterator[_Record]:
            for number, row in rows:
                problem = "" if len(row) == len(header) else f"{len(row)} cells where the first row has {len(header)}"
                yield number, dict(zip(header, row)), problem

        return self._from_records(records(), header)

    def _from_records(self, records: Iterator[_Record], names: Sequence[str] = ()) -> Iterator[RawDocument]:
        """The documents of records.

        Args:
            names: of all columns; empty: those of the first records.

        Raises:
            BertworksError: there is no text column; all records are malformed, or more than one and more than 1 %.
        """
        first = tables.first_rows(records)
        objects = [value for _, value, _ in first if isinstance(value, dict)]
        names = names or list(dict.fromkeys(itertools.chain(*objects)))
        read = self._text_columns({name: [value.get(name) for value in objects] for name in names}) if names else [""]
        good = bad = 0
        first_bad: tuple[int, str] = 0, ""
        for line, value, problem in itertools.chain(first, records):
            if not problem:
                good += 1
                values = [value] if isinstance(value, str) else list(map(value.get, read))
                if (text := _titled(values)) is not None:
                    yield _document(line, text)
                    continue
                problem = f"{read[-1]!r} holds {type(values[-1]).__name__}, not text"
            self.report.counts[MALFORMED].add(f"{self.name}:{line}")
            bad += 1
            first_bad = first_bad if bad > 1 else (line, problem)
            if bad + good >= _MIN_LINES:
                self._refuse_malformed(*first_bad, bad, good)
        self._refuse_malformed(*first_bad, bad, good)

    def _parquet(self) -> Iterator[RawDocument]:
        with tables.open_parquet(self.path, self.name) as file:
            names = [column.name for column in file.schema_arrow if "string" in str(column.type)]
            sample = next(tables.batches_of(file, names), None) if names else None
            texts = sample.to_pydict() if sample else {}
            read = self._text_columns({name: texts.get(name, ()) for name in file.schema_arrow.names})
            row = itertools.count(1)
            for batch in tables.batches_of(file, read):
                self.report.bytes += batch.nbytes
                for values in zip(*(batch.column(name).to_pylist() for name in read)):
                    yield _document(next(row), _titled(values) or "")

    def _text_columns(self, columns: Mapping[str, Sequence[object]]) -> list[str]:
        """The column of the text, after that of the title if there is one and `text_column` is unset. Also reported."""
        column = tables.choose_column(columns, self.name, self.text_column)
        title = tables.usual_column(columns, tables.TITLE_NAMES) if self.text_column is None else None
        how = column if title in (None, column) else f"{column}, after {title} (--text-column {column}: without)"
        self.report.columns[how] = self.report.columns.get(how, 0) + 1
        return [column] if title is None or title == column else [title, column]

    def _refuse_malformed(self, line: int, problem: str, bad: int, good: int) -> None:
        if bad > (1 + good // 100 if good else 0):
            what = f"{bad:,} malformed lines and only {good:,} good ones so far; the first: {problem}"
            hint = f"look at it with `sed -n {line}p {quoted(self.name)}`, repair the file or leave it out"
            raise BertworksError(what, where=f"{self.name}:{line}", hint=hint)


def _titled(values: Sequence[object]) -> str | None:
    """The text of a document from its title, if there is one, and its text; None: that is not text. A title alone is
    no document, and some texts begin with their titles."""
    *titles, text = map(tables.as_text, values)
    return "\n".join([*(title for title in titles if title and not text.startswith(title)), text]) if text else text


def _document(line: int, text: str) -> RawDocument:
    lines = text.split("\n")
    return RawDocument(line, lines, margin_of(lines) if len(lines) > 1 else None)
