"""Files -> documents: finds the files of the inputs, reads every format, joins wrapped lines, counts all issues.

Documents are streamed in an order that depends on the file names only. Memory does not grow with the corpus.
"""

import glob
import hashlib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import BertworksError, UsageError, explain_os_errors, quoted
from bertworks.io.atomic_write import sha256
from bertworks.io.tables import Data, StoredRows, sources_of
from bertworks.io.text_files import BAD_BYTES, NULL, IssueCounter, Issues, format_suffix, nothing_there, rereadable
from bertworks.text.formats import CUT, EMPTY, LARGEST_DOCUMENT, SKIPPED, SUFFIXES, CorpusReport, Documents, FileReader
from bertworks.text.segmentation import cut_text, paragraphs

_OTHER_LINE_ENDS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_SPECIAL = "a pipe or a device; name it as an input of its own"


class Document(NamedTuple):
    """One document, never empty."""

    text: str  # paragraphs separated by "\n", without empty ones; hard-wrapped lines joined
    source: str  # "path:line" where it begins (for Parquet the row)


class CorpusReader:
    """The documents of files, folders, globs and "-" (standard input), in a fixed order. It can be iterated repeatedly.

    Files are sorted by their path relative to the input, independent of the order of the inputs.

    Args:
        inputs: the paths, or rows in memory as in `pretrain`. Of folders: .txt .jsonl .csv .tsv .parquet, their other
            usual suffixes (.text .ndjson .tab .pq ...), files without a suffix (WikiExtractor), also with .gz .zst .xz
            .bz2. Names with a leading "_", other suffixes, links to folders, pipes and devices are skipped and counted.
            Hidden files are ignored.
        text_column: the column or field of the text; None: inferred per file, and reported.
        documents: the end of a document in plain text; "auto": inferred from the first megabyte of each file, and
            reported.
        encoding: of all files, as "cp1252"; None: by the byte order mark of each file, else UTF-8.

    Attributes:
        files: all files.
        folders: all input folders.
        report: of the last complete pass.

    Raises:
        BertworksError: an input has nothing to read; while iterating: a damaged file, a file in another encoding, a
            file without a text column, no document at all.
    """

    def __init__(
        self, inputs: Sequence[str | Path] | Data, *, text_column: str | None = None, documents: Documents = "auto",
        encoding: str | None = None,
    ):  # fmt: skip
        self.text_column, self.documents, self.encoding = text_column, documents, encoding
        self.folders: list[Path] = []
        self._skipped = IssueCounter()
        self._names: dict[Path, tuple[str, str]] = {}  # file -> path relative to its input, name in messages
        self._inputs = sources_of(inputs)  # rows in memory are a file as long as this object exists
        for item in self._inputs:
            path, pipe_name = rereadable(item, self)
            pipe_name = str(item) if isinstance(item, StoredRows) else pipe_name
            found = [(path, "")] if pipe_name else self._find(path)
            files = [(file.resolve(), (relative, pipe_name or str(file))) for file, relative in found]
            if not files:
                what = f"the folder has no file to read; skipped: {self._skipped}"
                hint = f"put files there that end in {', '.join(SUFFIXES)}, or name a file of another kind itself"
                raise BertworksError(what, where=str(path), hint=hint)
            for file, names in files:
                self._names[file] = min(names, self._names.get(file, names))
        if not self._names:
            hint = "name files, folders, a glob in quotes, or - for standard input"
            raise UsageError("no input was given", hint=hint)
        self.files = sorted(self._names, key=lambda path: (self._names[path][0], path))
        self.report = CorpusReport()

    def __iter__(self) -> Iterator[Document]:
        report = CorpusReport(files=len(self.files), counts=Issues({SKIPPED: deepcopy(self._skipped)}))
        for path in self.files:
            yield from self._read(path, report)
        if not report.documents:
            what = "\n  ".join(["no text was found", *report.issues()])
            where = self._names[self.files[0]][1] + (" ..." if len(self.files) > 1 else "")
            raise BertworksError(what, where=where, hint="name files that hold text")
        self.report = report

    def identity(self) -> dict[str, Any]:
        """What identifies the corpus without reading it: the number of `files` and of their `bytes`, and `files_sha256`
        of their paths, sizes and times of change, which differs for a copy.

        Raises:
            BertworksError: a file is gone.
        """
        digest, size = hashlib.sha256(), 0
        for path in self.files:
            with explain_os_errors("cannot be read", self._names[path][1]):
                status = path.stat()
            size += status.st_size
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        return {"files": len(self.files), "bytes": size, "files_sha256": digest.hexdigest()}

    def content_sha256(self) -> str:
        """The sha256 of all files and of their paths relative to the inputs. A copy of the files has the same."""
        digest = hashlib.sha256()
        for path in self.files:
            digest.update(f"{self._names[path][0]} {sha256(path)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _read(self, path: Path, report: CorpusReport) -> Iterator[Document]:
        _, name = self._names[path]
        for raw in FileReader(path, name, report, self.text_column, self.documents, self.encoding):
            source = f"{name}:{raw.line}"
            report.wrapped_documents += raw.margin is not None
            text = _clean("\n".join(paragraphs(raw.lines, raw.margin)), source, report)
            pieces = list(filter(None, map(str.strip, cut_text(text, LARGEST_DOCUMENT, "\n", "。", ". ", " "))))
            if len(pieces) != 1:
                report.counts[CUT if pieces else EMPTY].add(source)
            for piece in pieces:
                report.documents += 1
                report.characters += len(piece)
                yield Document(piece, source)

    def _find(self, path: Path) -> Iterator[tuple[Path, str]]:
        """The files of an input, with their paths relative to it."""
        matches = [path] if path.exists() else [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - it may be absolute
        if not matches and glob.has_magic(str(path)):
            hint = f"see what is there: `ls {quoted(path.parent)}`"
            raise UsageError("the glob matches nothing", where=str(path), hint=hint)
        if not matches:
            raise nothing_there(path)
        for match in matches:
            if match.is_dir():
                self.folders.append(match.resolve())
                yield from ((file, file.relative_to(match).as_posix()) for file in self._walk(match))
            elif match != path and _is_special(match):
                self._skipped.add(f"{match} ({_SPECIAL})")
            else:
                yield match, match.name

    def _walk(self, folder: Path) -> Iterator[Path]:
        """The files of a folder and of the folders in it. Other entries, except hidden ones, are counted with the
        reason."""
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
    """Whether the path is a pipe or a device, which could block a reader forever."""
    return not path.is_file() and path.exists()


def _clean(text: str, source: str, report: CorpusReport) -> str:
    """Remove NUL, lone surrogates and line ends other than "\\n", which JSON and Parquet may hold."""
    if "\0" in text:
        report.counts[NULL].add(source)
        text = text.replace("\0", "")
    valid = text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if valid != text:
        report.counts[BAD_BYTES].add(source)
    if any(end in valid for end in _OTHER_LINE_ENDS):
        return "\n".join(paragraphs(valid.splitlines(), None))
    return valid.strip()
