"""Read files as documents.

It finds the files of the inputs, reads every format, joins wrapped lines, and counts all issues.

Formats: plain text, JSON lines, CSV, TSV, Parquet, output of WikiExtractor; by the file name if it
is known, else by the content. Documents are streamed in an order that depends on the file names
only. Memory does not grow with the corpus.
"""

import glob
import hashlib
import html
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import UsageError, expect, explain_os_errors, quoted, require
from bertworks.events import JsonObject
from bertworks.io import inputs, tables
from bertworks.io.atomic_write import sha256
from bertworks.io.inputs import (
    FORMATS,
    IssueCounter,
    Issues,
    LineReader,
    chunk_by_size,
    format_suffix,
    nothing_there,
    open_lines,
    rereadable,
)
from bertworks.io.options import Documents
from bertworks.io.tables import Data, StoredRows, are_codes, sources_of
from bertworks.text.segmentation import Separation, cut_text, margin_of, paragraphs, separation

LARGEST_DOCUMENT = 1 << 22  # characters; longer documents are divided, to bound memory
CUT = f"documents longer than {LARGEST_DOCUMENT:,} characters (cut)"
SKIPPED = "files skipped"
EMPTY = "empty documents"
MALFORMED = "malformed lines left out"
# of lines without a blank one, at which it is divided
_LONGEST_BLOCK = LARGEST_DOCUMENT + LARGEST_DOCUMENT // 4
SUFFIXES = [suffix for suffix, kind in FORMATS.items() if kind != "conll"]
_GROUP = 1 << 24  # bytes of files
_MIN_LINES = 1000  # before a file with malformed lines is refused before its end
_OWN_MARGIN = 30  # lines of a document that has its own margin, not that of its file
Group = tuple[int, int]  # of files: the number of the first one, and the number after the last one
_LARGE = 1_000_000  # bytes of a text that is one document only with an option
_FIRST_FILES = 100  # for which the division into documents is reported before the work
# What ends a document in plain text. title: a blank line, but not the one after a title.
_ENDS = {
    "blank_line": "a blank line ends a document",
    "title": "a title and its text are a document",
    "file": "each file is a document",
}
_NO_BLOCKS = "write a blank line between documents if it has several"
# What to type if it is another thing that ends a document.
_OTHERWISE = {
    "blank_line": "--documents file if each file is one",
    "title": "--documents blank_line or file if not",
    "file": "--documents blank_line if blank lines end documents",
}


class RawDocument(NamedTuple):
    """A document with its lines as in the file."""

    line: int  # its first line, from 1; of Parquet the row
    lines: list[str]
    margin: int | None  # the right margin if its lines are hard-wrapped


# A line of JSON or a row of a table: its line; the values by column, or the text itself; why it is
# malformed, or "".
_Record = tuple[int, Any, str]


@dataclass(kw_only=True)
class CorpusReport(inputs.Repairs):
    """Counts and issues of a pass over a corpus.

    `str()` gives several lines of text.
    """

    columns: dict[str, int] = field(default_factory=dict)  # text column -> number of files
    # separation of documents -> number of files
    separations: dict[str, int] = field(default_factory=dict)
    files: int = 0
    documents: int = 0
    characters: int = 0
    wrapped_documents: int = 0  # with hard-wrapped lines, which were joined

    def issues(self) -> list[str]:
        """Return a line for each kind of issue, with its number and first places."""
        return [f"{name}: {counter}" for name, counter in self.counts.items() if counter.count]

    def __str__(self) -> str:
        lines = [
            f"{self.documents:,} documents, {self.characters:,} characters in {self.files:,} files "
            f"({self.bytes / 1e6:,.1f} MB read)"
        ]
        lines += [
            f"text column: {column} ({count:,} files)"
            for column, count in sorted(self.columns.items())
        ]
        lines += [
            f"plain text: {how} ({count:,} files)"
            for how, count in sorted(self.separations.items())
        ]
        if self.wrapped_documents:
            lines.append(f"hard-wrapped lines joined in {self.wrapped_documents:,} documents")
        return "\n".join(lines + self.issues())

    def add(self, report: JsonObject) -> None:
        """Add the report of files that come later, as a dict."""
        for issue, counter in report["counts"].items():
            self.counts[issue].add_all(IssueCounter(**counter))
        for name in report.keys() - {"counts"}:
            value = report[name]
            sum_so_far = getattr(self, name)
            if isinstance(value, dict):
                for key, number in value.items():
                    sum_so_far[key] = sum_so_far.get(key, 0) + number
            else:
                setattr(self, name, sum_so_far + value)


@dataclass
class FileReader:
    """The documents of a file, as a stream.

    It is iterated once.

    Args:
        name: of the file in messages. Its suffix is that of the format.
        report: is updated while reading.
        text_column, documents, encoding: as for `CorpusReader`.

    Raises:
        BertworksError: while iterating: the file is damaged or unreadable, too many lines are
            malformed or not in the encoding, a line of a table or of JSON is larger than
            LARGEST_LINE, or there is no text column.
    """

    path: Path
    name: str
    report: CorpusReport
    text_column: str | None
    documents: Documents
    encoding: str | None = None

    def __iter__(self) -> Iterator[RawDocument]:
        with open_lines(self.path, self.name, self.report, self.encoding) as reader:
            if reader.is_parquet:
                yield from self._parquet()
                return
            if not reader.head:
                self.report.counts["empty files"].add(self.name)
                return
            kind = self._kind(reader)
            readers = {
                "text": self._text,
                "wiki": self._wiki,
                "json": self._json,
                "jsonl": self._json,
            }
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
            unpack = inputs.COMPRESSIONS.get(Path(self.name).suffix, ("", ""))[1].replace(
                "-t", "-d"
            )
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
        sample = reader.sample(universal=True)
        margin = margin_of(sample)
        if self.documents == "auto":
            inferred = separation(sample, margin)
        else:
            inferred = Separation(self.documents, "as set")
        ends = inferred.ends
        how = f"{_ENDS[ends]} ({inferred.reason})"
        self.report.separations[how] = self.report.separations.get(how, 0) + 1
        lines: list[str] = []
        start = size = 0

        def document() -> RawDocument:
            return RawDocument(
                start, lines, margin if len(lines) < _OWN_MARGIN else margin_of(lines)
            )

        for number, line in reader.lines(longest=inputs.LONGEST_PIECE, universal=True):
            blank = not line or line.isspace()
            longest = LARGEST_DOCUMENT if blank else _LONGEST_BLOCK
            is_end = ends == "blank_line" or (ends == "title" and any(map(str.strip, lines[1:])))
            if lines and (size >= longest or (blank and is_end)):
                if size >= longest:
                    self.report.counts[CUT].add(f"{self.name}:{number}")
                yield document()
                lines = []
                size = 0
            if lines or not blank:
                start = start if lines else number
                lines.append(line)
                size += len(line)
        if lines:
            yield document()

    def separation(self) -> Separation | None:
        """Return what ends a document, inferred from the first megabyte; None: it is no plain text.

        Raises:
            UsageError: the file is large, and may be one document or many.
        """
        with open_lines(self.path, self.name, CorpusReport(), self.encoding) as reader:
            if reader.is_parquet or not reader.head or self._kind(reader) != "text":
                return None
            sample = reader.sample(universal=True)
            inferred = separation(sample, margin_of(sample))
            expect(
                not inferred.is_doubtful or len(reader.head) < _LARGE,
                "does a blank line end a document, or a paragraph of one document?",
                where=self.name,
                hint="--documents blank_line if it ends documents; --documents file if the file is "
                "one document",
            )
            return inferred

    def _wiki(self, reader: LineReader) -> Iterator[RawDocument]:
        """Yield the articles of WikiExtractor.

        `<doc id=... title=...>`, the article with its title as first line, `</doc>`.
        """
        start = 1
        lines = list[str]()
        inside = False
        for number, line in itertools.chain(
            reader.lines(universal=True), [(0, "<doc ")]
        ):  # the file may end in an article
            if line.startswith(("<doc ", "</doc>")):
                if inside or lines:
                    yield RawDocument(start, lines, None)
                    if not (inside and line.startswith("</doc>")):
                        self.report.counts[MALFORMED].add(f"{self.name}:{start}")
                start = number
                lines = []
                inside = line.startswith("<doc ")
            elif line:
                lines.append(html.unescape(line))

    def _json(self, reader: LineReader) -> Iterator[RawDocument]:
        def records() -> Iterator[_Record]:
            for number, line in reader.lines(universal=reader.has_only_carriage_returns):
                if not line or line.isspace():
                    continue
                value = None
                problem = 'expected a JSON object like {"text": "..."} or a JSON string'
                try:
                    if inputs.is_hollow(line):
                        raise ValueError(inputs.HOLLOW)
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    problem = f"this is not a JSON value ({error})"
                yield number, value, "" if isinstance(value, dict | str) else problem

        return self._from_records(records())

    def _table(self, reader: LineReader) -> Iterator[RawDocument]:
        universal = reader.has_only_carriage_returns
        sample = reader.sample(universal=universal)
        delimiter = tables.delimiter_of(sample, reader.format)
        quoted = delimiter != "\t" or tables.quotes_matter(sample)
        # A carriage return inside a cell separates paragraphs as a vertical tab does, which `csv`
        # takes for text.
        lines = (
            (number, line.replace("\r", "\v")) for number, line in reader.lines(universal=universal)
        )
        rows = tables.split_rows(lines, delimiter, quoted=quoted, name=self.name)
        rows = ((number, row) for number, row in rows if row)
        first = next(rows, (0, []))
        named = tables.is_header(first[1])
        header = tables.column_names(first[1], named=named)
        what = f"cells where the first row has {len(header)}"
        records = (
            (
                number,
                dict(zip(header, row)),
                "" if len(row) == len(header) else f"{len(row)} {what}",
            )
            for number, row in (rows if named else itertools.chain([first], rows))
        )
        return self._from_records(records, header)

    def _from_records(
        self, records: Iterator[_Record], names: Sequence[str] = ()
    ) -> Iterator[RawDocument]:
        """Yield the documents of records.

        Args:
            names: of all columns; empty: those of the first records.

        Raises:
            BertworksError: there is no text column; all records are malformed, or more than one and
                more than 1 %.
        """
        first = tables.first_rows(records)
        objects = [value for _, value, _ in first if isinstance(value, dict)]
        names = names or list(dict.fromkeys(itertools.chain(*objects)))
        read = (
            self._text_columns({name: [value.get(name) for value in objects] for name in names})
            if names
            else [""]
        )
        good = bad = 0
        first_bad: tuple[int, str] = 0, ""
        for line, value, problem in itertools.chain(first, records):
            if not problem:
                good += 1
                values = [value] if isinstance(value, str) else list(map(value.get, read))
                text = _titled(values)
                if text is not None:
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
            read = self._text_columns(
                {name: texts.get(name, ()) for name in file.schema_arrow.names}
            )
            row = itertools.count(1)
            for batch in tables.batches_of(file, read):
                self.report.bytes += batch.nbytes
                for values in zip(*(batch.column(name).to_pylist() for name in read)):
                    yield _document(next(row), _titled(values) or "")

    def _text_columns(self, columns: Mapping[str, Sequence[object]]) -> list[str]:
        """Return the column of the text, after that of the title.

        The latter is there if there is one and `text_column` is unset. It is reported, too. Dates,
        paths, addresses and ids are no text while there is another column.
        """
        codes = {
            name
            for name, values in columns.items()
            if are_codes(value for value in values if isinstance(value, str))
        }
        column = tables.choose_column(columns, self.name, self.text_column, codes=codes)
        title = (
            tables.usual_column(columns, tables.TITLE_NAMES) if self.text_column is None else None
        )
        how = (
            column
            if title in (None, column)
            else f"{column}, after {title} (--text-column {column}: without)"
        )
        self.report.columns[how] = self.report.columns.get(how, 0) + 1
        return [column] if title is None or title == column else [title, column]

    def _refuse_malformed(self, line: int, problem: str, bad: int, good: int) -> None:
        require(
            bad <= (1 + good // 100 if good else 0),
            f"{bad:,} malformed lines and only {good:,} good ones so far; the first: {problem}",
            f"{self.name}:{line}",
            f"look at it with `sed -n {line}p {quoted(self.name)}`, repair the file or leave "
            "it out",
        )


def _titled(values: Sequence[object]) -> str | None:
    """Return the text of a document from its title, if there is one, and its text.

    It is None for what is not text.

    A title alone is no document, and some texts begin with their titles.
    """
    *titles, text = map(tables.as_text, values)
    return (
        "\n".join([*(title for title in titles if title and not text.startswith(title)), text])
        if text
        else text
    )


def _document(line: int, text: str) -> RawDocument:
    lines = text.split("\n")
    return RawDocument(line, lines, margin_of(lines) if len(lines) > 1 else None)


_OTHER_LINE_ENDS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPECIAL = "a pipe or a device; name it as an input of its own"


class Document(NamedTuple):
    """One document, never empty."""

    text: str  # paragraphs separated by "\n", without empty ones; hard-wrapped lines joined
    source: str  # "path:line" where it begins (for Parquet the row)


class CorpusReader:
    """The documents of files, folders, globs and "-" (standard input), in a fixed order.

    It can be iterated repeatedly.

    Files are sorted by their path relative to the input, independent of the order of the inputs.

    Args:
        inputs: the paths, or rows in memory as in `pretrain`. Of folders: .txt .jsonl .csv .tsv
            .parquet, their other usual suffixes (.text .ndjson .tab .pq ...), files without a
            suffix (WikiExtractor), also with .gz .zst .xz .bz2. Names with "_" first, other
            suffixes, links, pipes and devices are skipped and counted, hidden not.
        text_column: the column or field of the text; None: inferred per file, and reported.
        documents: the end of a document in plain text; "auto": inferred from the first megabyte of
            each file, and reported.
        encoding: of all files, as "cp1252"; None: by the byte order mark of each file, else UTF-8.

    Attributes:
        files: all files.
        folders: all input folders.
        options: `text_column`, `documents` and `encoding`.
        report: of the last complete pass.

    Raises:
        BertworksError: an input has nothing to read; while iterating: a damaged file, a file in
            another encoding, a file without a text column, no document at all.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path] | Data,
        *,
        text_column: str | None = None,
        documents: Documents = "auto",
        encoding: str | None = None,
    ):
        self.options: JsonObject = {
            "text_column": text_column,
            "documents": documents,
            "encoding": encoding,
        }
        self.folders: list[Path] = []
        self._skipped = IssueCounter()
        # file -> path relative to its input, name in messages
        self._names: dict[Path, tuple[str, str]] = {}
        self.inputs = sources_of(inputs)  # rows in memory are a file as long as this object exists
        for item in self.inputs:
            path, pipe_name = rereadable(item, self)
            pipe_name = str(item) if isinstance(item, StoredRows) else pipe_name
            paths = [(path, "")] if pipe_name else self._find(path)
            files = [
                (file.resolve(), (relative, pipe_name or str(file))) for file, relative in paths
            ]
            require(
                files,
                f"the folder has no file to read; skipped: {self._skipped}",
                path,
                f"put files there that end in {', '.join(SUFFIXES)}, or name a file of another "
                "kind itself",
            )
            for file, names in files:
                self._names[file] = min(names, self._names.get(file, names))
        expect(
            self._names,
            "no input was given",
            hint="name files, folders, a glob in quotes, or - for standard input",
        )
        self.files = sorted(self._names, key=lambda path: (self._names[path][0], path))
        self.report = CorpusReport()

    def __iter__(self) -> Iterator[Document]:
        report = self.new_report()
        for path in self.files:
            yield from self.read(path, report)
        self.finish(report)

    def separations(self) -> list[str]:
        """Return how the first files of plain text are divided into documents, in words.

        There is a line for each way, with what to type otherwise; none if it was set.

        Raises:
            UsageError: a file is large, and may be one document or many.
        """
        if self.options["documents"] != "auto":
            return []
        ways: dict[str, None] = {}
        for path in self.files[:_FIRST_FILES]:
            name = self._names[path][1]
            inferred = FileReader(path, name, CorpusReport(), **self.options).separation()
            if inferred is not None:
                ends = inferred.ends
                otherwise = _OTHERWISE[ends] if inferred.has_blocks else _NO_BLOCKS
                how = f"{_ENDS[ends]} ({inferred.reason}); {otherwise}"
                ways[how] = None
        return [f"plain text: {how}" for how in ways]

    def new_report(self) -> CorpusReport:
        """Return the report of a pass that has read no file yet."""
        return CorpusReport(
            files=len(self.files), counts=Issues({SKIPPED: deepcopy(self._skipped)})
        )

    def finish(self, report: CorpusReport) -> None:
        """Keep the report of a complete pass.

        Raises BertworksError if there was no document.
        """
        where = self._names[self.files[0]][1] + (" ..." if len(self.files) > 1 else "")
        require(
            report.documents,
            "\n  ".join(["no text was found", *report.issues()]),
            where,
            "name files that hold text",
        )
        self.report = report

    def groups(self) -> Iterator[Group]:
        """Yield groups of consecutive files of at least 16 MB; the last one may be smaller."""
        first = 0
        for files in chunk_by_size(self.files, _GROUP, lambda path: path.stat().st_size):
            yield first, first + len(files)
            first += len(files)

    def texts(self, group: Group, report: CorpusReport) -> Iterator[str]:
        """Yield the texts of the documents of a group."""
        for path in self.files[slice(*group)]:
            for document in self.read(path, report):
                yield document.text

    def parts(self, part_characters: int) -> Iterator[list[str]]:
        """Yield the texts of all documents in parts of at least `part_characters`.

        The last part of a group may be smaller.
        """
        report = self.new_report()
        for group in self.groups():
            yield from chunk_by_size(self.texts(group, report), part_characters, len)
        self.finish(report)

    def source(self) -> JsonObject:
        """Return the arguments of which another process makes the same reader.

        Raises:
            UsageError: it reads standard input, a pipe or rows in memory.
        """
        for path in self.inputs:
            if isinstance(path, StoredRows) or str(path) == "-" or Path(path).is_fifo():
                raise UsageError(
                    "this can be read by one process only",
                    where=path,
                    hint="save the text in a file, and name that",
                )
        return {"inputs": list(map(str, self.inputs)), **self.options}

    def identity(self) -> JsonObject:
        """Return what identifies the corpus without reading it.

        It is the number of `files` and of their `bytes`, and `files_sha256` of their paths, sizes
        and times of change, which differs for a copy.

        Raises:
            BertworksError: a file is gone.
        """
        digest = hashlib.sha256()
        size = 0
        for path in self.files:
            with explain_os_errors("cannot be read", self._names[path][1]):
                status = path.stat()
            size += status.st_size
            digest.update(
                f"{path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape")
            )
        return {"files": len(self.files), "bytes": size, "files_sha256": digest.hexdigest()}

    def content_sha256(self) -> str:
        """Return the sha256 of all files and of their paths relative to the inputs.

        A copy of the files has the same.
        """
        digest = hashlib.sha256()
        for path in self.files:
            digest.update(
                f"{self._names[path][0]} {sha256(path)}\n".encode("utf-8", "surrogateescape")
            )
        return digest.hexdigest()

    def read(self, path: Path, report: CorpusReport) -> Iterator[Document]:
        """Yield the documents of a file."""
        _, name = self._names[path]
        for raw in FileReader(path, name, report, **self.options):
            source = f"{name}:{raw.line}"
            report.wrapped_documents += raw.margin is not None
            text = _clean("\n".join(paragraphs(raw.lines, raw.margin)), source, report)
            pieces = list(
                filter(
                    None, map(str.strip, cut_text(text, LARGEST_DOCUMENT, "\n", "。", ". ", " "))
                )
            )
            if len(pieces) != 1:
                report.counts[CUT if pieces else EMPTY].add(source)
            for piece in pieces:
                report.documents += 1
                report.characters += len(piece)
                yield Document(piece, source)

    def _find(self, path: Path) -> Iterator[tuple[Path, str]]:
        """Yield the files of an input, with their paths relative to it."""
        matches = [path]
        if not path.exists():  # a pattern, which may be absolute
            names = glob.glob(str(path), recursive=True)  # noqa: PTH207
            matches = [Path(name) for name in names]
        if not matches:
            raise nothing_there(path)
        for match in matches:
            if match.is_dir():
                self.folders.append(match.resolve())
                yield from (
                    (file, file.relative_to(match).as_posix()) for file in self._walk(match)
                )
            elif match != path and _is_special(match):
                self._skipped.add(f"{match} ({_SPECIAL})")
            else:
                yield match, match.name

    def _walk(self, folder: Path) -> Iterator[Path]:
        """Yield the files of a folder and of the folders in it.

        Other entries, except hidden ones, are counted with the reason.
        """
        with explain_os_errors("the folder cannot be read", folder, "make it readable"):
            entries = list(folder.iterdir())
        for path in entries:
            if path.name.startswith("."):
                continue
            if reason := _skip_reason(path):
                self._skipped.add(f"{path} ({reason})")
            elif path.is_dir():
                yield from self._walk(path)
            else:
                yield path


def _skip_reason(path: Path) -> str:
    """Why an entry of a folder is not read; empty: it is read."""
    if path.name.startswith("_"):
        return "its name begins with _"
    if path.is_dir():
        return "a link to a folder; name it as an input of its own" if path.is_symlink() else ""
    if _is_special(path):
        return _SPECIAL
    return "" if format_suffix(path.name) in ("", *SUFFIXES) else "a suffix that is not read"


def _is_special(path: Path) -> bool:
    """Return whether the path is a pipe or a device, which could block a reader forever."""
    return not path.is_file() and path.exists()


def _clean(text: str, source: str, report: CorpusReport) -> str:
    """Return a text without NUL, lone surrogates and line ends other than line feeds.

    JSON and Parquet may hold them.
    """
    if "\0" in text:
        report.counts[inputs.NULL].add(source)
        text = text.replace("\0", "")
    valid = (
        text
        if text.isascii()
        else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
    if valid != text:
        report.counts[inputs.BAD_BYTES].add(source)
    if any(end in valid for end in _OTHER_LINE_ENDS):
        return "\n".join(paragraphs(valid.splitlines(), None))
    return valid.strip()
