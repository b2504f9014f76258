"""Files -> documents: finds what the inputs name, reads every format, joins wrapped lines, names all trouble.

It does not split sentences and keeps no text: documents stream by, in an order that depends on nothing but the files'
names, and memory does not grow with the corpus.
"""

import glob
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bertworks.errors import BertworksError, UsageError
from bertworks.io.atomic_write import sha256
from bertworks.io.text_files import COMPRESSIONS, IssueCounter, format_suffix, nothing_there, rereadable
from bertworks.text.formats import LARGEST_DOCUMENT, SUFFIXES, CorpusReport, FileReader
from bertworks.text.segmentation import cut_text, paragraphs

_SPECIAL = "a pipe or a device; name it as an input of its own"
_OTHER_LINE_ENDS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"


class Document(NamedTuple):
    """One document, never empty."""

    text: str  # paragraphs separated by "\n", without empty ones; hard-wrapped lines joined
    source: str  # "path:line" where it begins (for Parquet the row)


class Identity(NamedTuple):
    """Which files a corpus has, as they stand there now; none is opened for it."""

    files: int
    bytes: int
    stamp: str  # sha256 of paths, sizes and times of change. The same: the same text. Another: perhaps a copy of it


class CorpusReader:
    """The documents of files, folders, globs and "-" (standard input), in a fixed order, as often as one iterates.

    Files come sorted by their path relative to the input that named them, in whatever order the inputs were typed.

    Args:
        inputs: what to read. In folders: .txt .jsonl .csv .tsv .parquet, their other usual suffixes (.text .ndjson .tab
            .pq ...) and files without one (WikiExtractor), also
            .gz .zst .xz .bz2. Names that begin with "_", other suffixes, links to folders, pipes and devices are left
            out, and counted; hidden ones, which begin with ".", are not looked at.
        text_column: the column or field that holds the text; None: guessed for each file, and reported.
        documents: what ends a document in plain text; "auto": judged for each file by its first megabyte, and reported.

    Attributes:
        files: what was found.
        folders: those that were looked through.
        text_column, documents: as they were asked for.
        report: of the last full pass; all zero before.

    Raises:
        BertworksError: an input names nothing that can be read; while iterating: a damaged file, a file without text
            column, or no document at all.
    """

    def __init__(
        self,
        inputs: Sequence[str | Path],
        *,
        text_column: str | None = None,
        documents: Literal["auto", "blank_line", "file"] = "auto",
    ):
        self.text_column, self.documents = text_column, documents
        self.folders: list[Path] = []
        self._skipped = IssueCounter()
        self._names: dict[Path, str] = {}
        found: dict[Path, str] = {}  # file -> path relative to its input
        for one in [inputs] if isinstance(inputs, str | Path) else inputs:
            for path, relative in self._find(one).items():
                found[path] = min(relative, found.get(path, relative))
        if not found:
            raise UsageError(
                "no input was given", hint="name files, folders, a glob in quotes, or - for standard input"
            )
        self.files = sorted(found, key=lambda path: (found[path], path))
        self._relative = found
        self.report = CorpusReport()

    def __iter__(self) -> Iterator[Document]:
        report = CorpusReport(files=len(self.files))
        report.skipped_files = IssueCounter(self._skipped.count, list(self._skipped.places))
        for path in self.files:
            yield from self._read(path, report)
        if not report.documents:
            raise BertworksError(
                "\n  ".join(["no text was found", *report.troubles()]),
                where=self._names[self.files[0]] + (" ..." if len(self.files) > 1 else ""),
                hint="name files that hold text",
            )
        self.report = report

    def identity(self) -> Identity:
        """What can be known of the corpus at once.

        Raises:
            BertworksError: a file is gone.
        """
        digest, size = hashlib.sha256(), 0
        for path in self.files:
            try:
                status = path.stat()
            except OSError as error:
                raise BertworksError(f"cannot be read: {error.strerror}", where=self._names[path]) from error
            size += status.st_size
            digest.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        return Identity(len(self.files), size, digest.hexdigest())

    def content_sha256(self) -> str:
        """Of the bytes of all files and their paths relative to the inputs: a copy elsewhere has the same.

        All of them are read for it, many times as fast as documents are."""
        digest = hashlib.sha256()
        for path in self.files:
            digest.update(f"{self._relative[path]} {sha256(path)}\n".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def _read(self, path: Path, report: CorpusReport) -> Iterator[Document]:
        name = self._names[path]
        for raw in FileReader(path, name, report, self.text_column, self.documents):
            source = f"{name}:{raw.line}"
            report.wrapped_documents += raw.margin is not None
            text = _clean("\n".join(paragraphs(raw.lines, raw.margin)), source, report)
            if not text:
                report.empty_documents.add(source)
                continue
            cut = cut_text(text, LARGEST_DOCUMENT, "\n", "。", ". ", " ")
            pieces = [stripped for piece in cut if (stripped := piece.strip())]
            if len(pieces) > 1:
                report.cut_documents.add(source)
            for piece in pieces:
                report.documents += 1
                report.characters += len(piece)
                yield Document(piece, source)

    def _find(self, one: str | Path) -> dict[Path, str]:
        """The files that one input names, with their paths relative to it."""
        path, piped = rereadable(one, self)
        if piped:
            self._names[path] = piped
            return {path: ""}
        if path.is_dir():
            found = self._walk(path)
        elif path.exists():
            found = {path: path.name}
        else:
            found = {}
            matches = [Path(match) for match in glob.glob(str(path), recursive=True)]  # noqa: PTH207 - it may be absolute
            if not matches:
                raise _nothing_there(path)
            for match in matches:
                if match.is_dir():
                    found |= self._walk(match)
                elif _is_special(match):
                    self._skipped.add(f"{match} ({_SPECIAL})")
                else:
                    found[match] = match.name
        if not found:
            raise BertworksError(
                f"the folder has no file to read; skipped: {self._skipped}",
                where=str(path),
                hint=f"put files there that end in {', '.join(SUFFIXES)}, or name a file of another kind itself",
            )
        resolved = {file.resolve(): relative for file, relative in found.items()}
        self._names |= {file.resolve(): str(file) for file in found}
        return resolved

    def _walk(self, folder: Path) -> dict[Path, str]:
        found = {}
        self.folders.append(folder.resolve())
        for parent, folders, files in os.walk(folder, onerror=_raise_unreadable):
            folders[:] = self._without_left_out(parent, folders)
            for name in self._without_left_out(parent, files):
                path = Path(parent) / name
                found[path] = path.relative_to(folder).as_posix()
        return found

    def _without_left_out(self, parent: str, names: list[str]) -> list[str]:
        """What is read of a folder's entries; the others, but for hidden ones, are counted with the reason."""
        kept = []
        for name in names:
            path = Path(parent) / name
            if name.startswith("."):
                continue
            if why := _why_left_out(path):
                self._skipped.add(f"{path} ({why})")
            else:
                kept.append(name)
        return kept


def _why_left_out(path: Path) -> str:
    """Why something that was found in a folder is not read; empty: it is."""
    if path.name.startswith("_"):
        return "its name begins with _"
    if path.is_dir():
        return "a link to a folder; name it as an input of its own" if path.is_symlink() else ""
    if _is_special(path):
        return _SPECIAL
    known = format_suffix(path.name) in ("", *SUFFIXES) or _is_wiki_part(path.name)
    return "" if known else "a suffix that is not read"


def _is_special(path: Path) -> bool:
    """Is there no file, but something that may keep a reader waiting for ever?"""
    return not path.is_file() and path.exists()


def _is_wiki_part(name: str) -> bool:
    """WikiExtractor's `wiki_00`, also compressed; `Path` would see no suffix in it, but one in `AA.wiki_00`."""
    return Path(name).suffix in COMPRESSIONS and "." not in Path(name).stem


def _raise_unreadable(error: OSError) -> None:
    raise BertworksError(
        f"the folder cannot be read: {error.strerror}", where=str(error.filename), hint="make it readable"
    ) from error


def _nothing_there(path: Path) -> UsageError:
    if glob.has_magic(str(path)):
        return UsageError(
            "the glob matches nothing", where=str(path), hint=f"see what is there: `ls {shlex.quote(str(path.parent))}`"
        )
    return nothing_there(path)


def _clean(text: str, source: str, report: CorpusReport) -> str:
    """Without NUL, lone surrogates and line ends other than "\\n"; JSON and Parquet can bring them in unseen."""
    if "\0" in text:
        report.null_characters.add(source)
        text = text.replace("\0", "")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            report.bad_bytes.add(source)
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if any(end in text for end in _OTHER_LINE_ENDS) or "\r" in text:
        text = "\n".join(stripped for line in text.splitlines() if (stripped := line.strip()))
    return text.strip()
