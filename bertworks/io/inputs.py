"""What a user names as an input becomes a path, and a file becomes lines of clean text.

- `as_path`: a path; a URL becomes the path of its local copy
- `rereadable`: a path that can be read repeatedly, also of a pipe and of standard input
- `file_or_texts`: the words of a command
- `nothing_there`: the error for a path that does not exist
- `open_lines`: a file as lines, in any compression and encoding. Repairs are counted and reported.
- `chunk_by_size`: values in parts

Memory does not grow with the file.
"""

import bz2
import codecs
import difflib
import gzip
import io
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
import tomllib
import unicodedata
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from glob import has_magic
from os import PathLike
from pathlib import Path
from pkgutil import resolve_name
from typing import IO, Any, Literal, TypeVar

from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    explain_os_errors,
    quoted,
    require,
)
from bertworks.io.atomic_write import LFS_POINTER, local_path, refuse_lfs_pointer, url_of
from bertworks.io.options import STDIN

_T = TypeVar("_T")

# bytes read at a time, and the size of the sample from which the format is inferred
BLOCK_SIZE = 1 << 20
# characters; longer lines of plain text are cut at a space, so that memory stays flat
LONGEST_PIECE = 1 << 22
LARGEST_LINE = 1 << 28  # bytes; a larger line is an error where it is not cut
_NAMED_PLACES = 5
_MOST_PARTS = 300_000  # lists and objects of a JSON value that may be nearly empty
HOLLOW = "hundreds of thousands of empty lists or objects are not data"
BAD_BYTES = "lines with bytes that are not text (replaced by \N{REPLACEMENT CHARACTER})"
NO_LINE_FEED = "the lines end in carriage returns alone: only a line feed ends a line"
CONVERT_LINE_ENDS = "convert the file: `tr '\\r' '\\n' < OLD > NEW`"
NULL = "places with NUL characters (dropped)"  # blocks of about 1 MB
_SPACES = " 。　\r\t"  # where a line may be divided
_MARK = "\udcff"  # stands for each sequence of bytes that is not text, until its line is counted
_MARKED = "bertworks-marked"  # the error handler that writes it
codecs.register_error(_MARKED, lambda error: (_MARK, error.end))  # type: ignore[attr-defined]


def _zstd(name: str, stream: Any) -> Any:
    """Return the stream of pyarrow of that name, which is imported when it is needed."""
    return resolve_name(f"pyarrow:{name}")(stream, "zstd")


_PARQUET = b"PAR1"
# A .zst file may begin with a frame without text.
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))
COMPRESSIONS: dict[
    str,
    tuple[bytes | tuple[bytes, ...], str, Callable[[IO[bytes]], Any], Callable[[IO[bytes]], Any]],
] = {
    # by suffix: the first bytes of a file, the command that checks it, how an open file is read and
    # written.
    # Files of gzip are written without a name and a time: the same rows give the same bytes.
    ".gz": (
        b"\x1f\x8b",
        "gzip -t",
        gzip.open,
        lambda file: gzip.GzipFile("", "wb", 6, file, mtime=0),
    ),
    ".zst": (
        _ZSTD,
        "zstd -t",
        partial(_zstd, "input_stream"),
        partial(_zstd, "CompressedOutputStream"),
    ),
    ".xz": (b"\xfd7zXZ\0", "xz -t", lzma.open, partial(lzma.open, mode="wb")),
    ".bz2": (b"BZh", "bzip2 -t", bz2.open, partial(bz2.open, mode="wb")),
}
OTHER_FORMATS = tomllib.loads(
    Path(__file__).with_name("file_formats.toml").read_text(encoding="utf-8")
)
Format = Literal["csv", "tsv", "jsonl", "json", "parquet", "conll", "text"]
FORMATS: dict[str, Format] = OTHER_FORMATS.pop("suffixes")
# Of a word that may be a text or the name of a file that does not exist.
_LIKE_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,5}$", re.ASCII)
_ENDS_OF_SENTENCES = "。！？"
_NEAR = 0.8  # similarity to a name, from which on that one may be meant
_BYTE_ORDER_MARKS = {  # UTF-32 first: its mark begins with that of UTF-16
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
SOME_ENCODINGS = "cp1252, cp932, euc-kr, gb18030"
_FREQUENT: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("encodings.toml").read_text("utf-8")
)


@dataclass
class IssueCounter:
    """The number of issues of one kind, and the first places ("path:line")."""

    count: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, place: str) -> None:
        """Count an issue, and keep the first places."""
        self.count += 1
        if len(self.places) < _NAMED_PLACES:
            self.places.append(place)

    def add_all(self, counter: "IssueCounter") -> None:
        """Add the issues of a later part."""
        self.count += counter.count
        self.places += counter.places[: _NAMED_PLACES - len(self.places)]

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.places) else ""
        return f"{self.count:,} ({', '.join(self.places)}{more})" if self.count else "0"


class Issues(dict[str, IssueCounter]):
    """The counters of issues, by what they are.

    `issues[what].add(place)` counts one.
    """

    def __missing__(self, what: str) -> IssueCounter:
        self[what] = IssueCounter()
        return self[what]


@dataclass(kw_only=True)
class Repairs:
    """Bytes that were read, and issues with them."""

    bytes: int = 0  # read, after decompression
    counts: Issues = field(default_factory=Issues)


class _Bytes(io.RawIOBase):
    """The decompressed bytes of a file.

    They are counted, and damage is explained.
    """

    def __init__(self, stream: IO[bytes], name: str, repairs: Repairs):
        self._stream = stream
        self._name = name
        self._repairs = repairs

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except (EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
            _, check, *_ = COMPRESSIONS.get(Path(self._name).suffix, ("", "file"))
            raise BertworksError(
                f"the file is damaged or incomplete: {error}",
                where=self._name,
                hint=f"fetch it again (`{check} {quoted(self._name)}` checks it), or leave it out",
            ) from error
        buffer[: len(data)] = data
        self._repairs.bytes += len(data)
        return len(data)


class LineReader:
    """The lines of an open file, from `open_lines`.

    They can be iterated once.

    Attributes:
        name: of the file in messages.
        head: the first 1 MB, decompressed, as UTF-8 without a byte order mark.
        suffix, format: of the name.
        not_text: the format of a file that is not text, by its first bytes, and what to do with it,
            or ""; None: it is text.
        is_parquet: whether the file is Parquet, by its first bytes.
        repairs: so far.
    """

    def __init__(
        self,
        stream: IO[bytes],
        name: str,
        repairs: Repairs,
        encoding: str | None = None,
        *,
        is_parquet: bool = False,
    ):
        self.name = name
        self.repairs = repairs
        self.is_parquet = is_parquet
        self._bytes = io.BufferedReader(_Bytes(stream, name, repairs), BLOCK_SIZE)
        self._start = head = self._bytes.peek()
        marked = next(
            (name for name, marks in _BYTE_ORDER_MARKS.items() if head.startswith(marks)),
            "utf-8-sig",
        )
        try:
            encoding = marked if encoding is None else codecs.lookup(encoding).name
            self._encoding = marked if marked.startswith(encoding[:6]) else encoding
            b"\xff".decode(self._encoding, "replace")  # some codecs have no such replacement
            utf8 = self._encoding == "utf-8-sig"
            self.head = (
                head.removeprefix(codecs.BOM_UTF8)
                if utf8
                else head.decode(self._encoding, "replace").encode()
            )
        except (LookupError, UnicodeError, ValueError) as error:
            raise UsageError(
                f"{encoding!r} is not an encoding of text",
                where=name,
                hint=f"name one that Python knows: --encoding {SOME_ENCODINGS}, utf-16-le",
            ) from error
        self.suffix = format_suffix(name)
        self.format = FORMATS.get(self.suffix)
        self.not_text = _not_text(self.head)

    @property
    def has_only_carriage_returns(self) -> bool:
        """Whether the file has carriage returns and no line feed.

        Files of the first Macintosh computers are like that.
        """
        return b"\r" in self.head and b"\n" not in self.head

    def require_line_feeds(self) -> None:
        """Raise BertworksError if the file has carriage returns and no line feed."""
        has_line_feeds = not self.has_only_carriage_returns
        require(has_line_feeds, NO_LINE_FEED, f"{self.name}:1", CONVERT_LINE_ENDS)

    def sample(self, *, universal: bool = False) -> list[str]:
        """Return the complete lines of `head`, as `lines` yields them.

        The format is inferred from these.
        """
        head = self.head
        if len(head) >= BLOCK_SIZE // 2 and b"\n" in head:
            head = head[: head.rindex(b"\n")]
        text = head.decode("utf-8", "replace").replace("\r\n", "\n")
        return (text.replace("\r", "\n") if universal else text).split("\n")

    def lines(
        self,
        *,
        longest: int = 0,
        largest: int = LARGEST_LINE,
        exact: bool = False,
        universal: bool = False,
    ) -> Iterator[tuple[int, str]]:
        r"""Yield (line number from 1, line without its end).

        Only "\n", or "\r\n", ends a line. NUL is dropped.

        Args:
            longest: characters; a line that is more than 1 MB longer is divided at a space into
                lines of one number.
            largest: bytes of a line, if they are not divided.
            exact: the "\r" before "\n" and NUL stay; any number of lines may have bytes that are
                not text.
            universal: a "\r" alone ends a line too. For text that is not aligned with another file
                or with an output. Numbers count "\n", as other programs do; in a file without "\n"
                they count "\r".

        Raises:
            BertworksError: a line is too large; unless `exact`, more than one line and more than 1
                % of the lines so far, or all of them, have bytes that are not text in the encoding.
        """
        text = io.TextIOWrapper(self._bytes, self._encoding, _MARKED, newline="\n")
        number = 1
        rest = ""
        bad = IssueCounter()
        while block := rest + text.read(BLOCK_SIZE):
            end = text.readline(longest or largest + 1)
            is_cut = 0 < longest == len(end) and not end.endswith("\n")
            rest = end[max(map(end.rfind, _SPACES)) + 1 :] if is_cut else ""
            block += end.removesuffix(rest)
            if "\0" in block and not exact:
                self.repairs.counts[NULL].add(f"{self.name}:{number}")
                block = block.replace("\0", "")
            if "\r" in block and not exact:
                block = block.replace("\r\n", "\n")
                if universal and self.has_only_carriage_returns:
                    block = block.replace("\r", "\n")
            lines = block.split("\n")
            for index, line in enumerate(lines) if not longest and 4 * len(block) > largest else ():
                if 4 * len(line) > largest and len(line.encode("utf-8", "surrogatepass")) > largest:
                    raise too_large(f"{self.name}:{number + index}", largest)
            for index, line in enumerate(lines) if _MARK in block else ():
                if _MARK in line:
                    for counter in (bad, self.repairs.counts[BAD_BYTES]):
                        counter.add(f"{self.name}:{number + index}")
                    lines[index] = line.replace(_MARK, "\N{REPLACEMENT CHARACTER}")
            lines = lines if lines[-1] else lines[:-1]
            if bad.count and not exact:
                self._refuse_other_encoding(bad, number - 1 + len(lines))
            numbered = enumerate(lines, number)
            if universal and "\r" in block:
                yield from ((place, part) for place, line in numbered for part in line.split("\r"))
            else:
                yield from numbered
            number += block.count("\n")

    def _refuse_other_encoding(self, bad: IssueCounter, lines: int) -> None:
        few = bad.count <= 1 + lines // 100
        if few and bad.count < lines:
            return
        wrong = [
            line for line in self._start.split(b"\n") if "\ufffd" in line.decode("utf-8", "replace")
        ]
        likely = infer_encoding(b"\n".join(wrong)) if self._encoding == "utf-8-sig" else None
        if few and not likely:  # the only line has a few of them
            return
        raise BertworksError(
            f"{bad.count:,} of the first {lines:,} lines have bytes that are not "
            f"{self._encoding.removesuffix('-sig').upper()}",
            where=bad.places[0],
            hint=f"--encoding {likely}"
            if likely
            else f"name the encoding: --encoding {SOME_ENCODINGS}, ...",
        )


@contextmanager
def open_lines(
    path: Path, name: str, repairs: Repairs | None = None, encoding: str | None = None
) -> Iterator[LineReader]:
    """Open a file to read its lines.

    The compression is inferred from its first bytes, not from its name.

    Args:
        name: of the file in messages.
        repairs: is updated while reading.
        encoding: any that Python knows; None: by the byte order mark, else UTF-8.

    Raises:
        UsageError: Python knows no such encoding.
        BertworksError: the file cannot be opened; while reading: it is damaged or incomplete.
    """
    with ExitStack() as stack:
        with explain_os_errors("cannot be read", name, "make it readable, or leave it out"):
            file = stack.enter_context(path.open("rb"))
            start = file.peek(len(LFS_POINTER))
            refuse_lfs_pointer(start, name)
            openers = (
                opener for first, _, opener, _ in COMPRESSIONS.values() if start.startswith(first)
            )
            stream = next(openers, nullcontext)(file)
        is_parquet = start.startswith(_PARQUET)
        # bytes of Parquet are counted by those who read its columns
        counts = Repairs() if repairs is None or is_parquet else repairs
        yield LineReader(stack.enter_context(stream), name, counts, encoding, is_parquet=is_parquet)


def infer_encoding(data: bytes) -> str | None:
    """Return the encoding of text that is not UTF-8, by its frequent characters.

    It is None if the text is UTF-8, or if no encoding is likely.

    Args:
        data: bad lines or the first bytes of a file. A character may be cut off at the end.
    """

    def decoded(encoding: str) -> str:
        with suppress(UnicodeDecodeError):
            return codecs.getincrementaldecoder(encoding)().decode(data)
        return ""

    def likelihood(encoding: str) -> float:
        text = decoded(encoding)
        frequent = _FREQUENT["one_byte"][encoding]
        if frequent[0] == "L":
            frequent = (
                f"(?<=[A-Za-z]){frequent[1:]}|{frequent[1:]}(?=[a-z])|[«»„“”‘’–—…€£§©®°·¿¡ºª]"
            )
        return len(re.findall(frequent, text)) / max(
            1, sum(character > "\x7f" for character in text)
        )

    zeros = [data[parity::2].count(0) for parity in (0, 1)]
    # UTF-16 without a mark: in spaces, line ends
    if max(zeros) > max(0.005 * len(data), 2 * min(zeros)):
        text = decoded(encoding := "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le")
        kinds = [
            unicodedata.category(character)[0]
            for character in text
            if character not in "\t\n\r\ufeff"
        ]
        return encoding if kinds.count("C") < 0.02 * len(text) else None
    if decoded("utf-8"):
        return None
    if likelihood("cp1252") > 0.9:
        return "cp1252"
    pairs = re.findall(rb"[\x81-\xfe][\x40-\xfe]", data)
    for encoding, (frequent, least) in _FREQUENT["two_bytes"].items():
        count = sum(re.fullmatch(frequent.encode(), pair) is not None for pair in pairs)
        if count > least * len(pairs) and decoded(encoding):
            return encoding
    best = max(_FREQUENT["one_byte"], key=likelihood)
    return best if likelihood(best) > 0.5 else None


def too_large(where: str, largest: int, why: str = "") -> BertworksError:
    """The error for a line or a row of more than `largest` bytes. why: a reason that is likely."""
    option = (
        f"--max-row-bytes {2 * largest >> 20}m"
        if largest >= 1 << 20
        else f"--max-row-bytes {2 * largest}"
    )
    return BertworksError(
        f"a row has more than {largest:,} bytes{why}",
        where=where,
        hint="write it as several rows"
        if largest >= LARGEST_LINE
        else f"if the row is right, allow it: {option}",
    )


def is_hollow(json_text: str) -> bool:
    """Return whether a JSON value is little else than lists and objects.

    Millions of empty ones have 3 bytes each in the file, and take seconds and hundreds of megabytes
    once parsed. Rows of data have at least 6 characters for each of them.
    """
    parts = json_text.count("[") + json_text.count("{")
    return parts > _MOST_PARTS and len(json_text) < 6 * parts


def format_suffix(name: str) -> str:
    """Return the suffix of the format in lower case: ".jsonl" for "a.JSONL.gz", or ""."""
    path = Path(name.lower())
    return Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def _not_text(head: bytes) -> tuple[str, str] | None:
    for first, (what, hint) in OTHER_FORMATS["first_bytes"].items():
        if head.startswith(first.encode("latin-1")):
            return what, hint
    with suppress(tarfile.HeaderError):
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
        return (
            "a tar archive",
            "`mkdir FOLDER; tar xf FILE -C FOLDER` unpacks it; then name the folder",
        )
    head = head[:8192]
    control = sum(head.count(byte) for byte in range(32) if byte not in b"\t\n\v\f\r\x1b")
    bad = head.decode("utf-8", "replace").count("\ufffd")
    binary = control > 0.3 * len(head) or (control > 0.02 * len(head) and bad > 0.1 * len(head))
    return ("not text", "") if binary else None


def as_path(path: str | PathLike[str], what: str = "path") -> Path:
    """Return the path of an input; that of a local copy of a URL. what: its name in the message.

    Raises:
        UsageError: it is something else, such as a list of paths.
        BertworksError: the URL cannot be read.
    """
    url = url_of(path)
    if url is None:
        return local_path(path, what)
    from bertworks.io.remote import fetched  # it brings locks and threads, which few inputs need

    return fetched(url)


def rereadable(path: str | PathLike[str], owner: object) -> tuple[Path, str | None]:
    """Return a path that can be read repeatedly, and a name for messages.

    The name is that of a pipe or of standard input ("-"), and None for a file.

    A pipe is copied to a temporary file, which is deleted with `owner`.

    Raises:
        BertworksError: there is no space for the copy.
    """
    path = as_path(path)
    is_stdin = str(path) == "-"
    if not is_stdin and not path.is_fifo():
        return path, None
    pipe = nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb")
    try:
        with (
            pipe as stream,
            tempfile.NamedTemporaryFile(prefix="bertworks-stdin-", delete=False) as file,
        ):
            copy = Path(file.name).resolve()
            weakref.finalize(owner, copy.unlink, missing_ok=True)
            shutil.copyfileobj(stream, file, BLOCK_SIZE)
    except OSError as error:
        raise BertworksError(
            f"the input of a pipe cannot be copied to a file: {error.strerror}",
            where=tempfile.tempdir,
            hint="set TMPDIR to a folder with more free space, or save the text in a file and "
            "name that",
        ) from error
    return copy, STDIN if is_stdin else str(path)


def names_file(word: str) -> bool:
    """Return whether a text is the name of a file.

    There is such a file, or the text ends as files of rows or texts do.
    """
    # A text may be too long for a name, or begin with ~ and a user that does not exist.
    with suppress(OSError, RuntimeError):
        if Path(word).expanduser().is_file():
            return True
    return format_suffix(word) in FORMATS or word.endswith(tuple(COMPRESSIONS))


def is_text(word: str) -> bool:
    """Return whether a word of a command is a text, and not the name of a file.

    A name of a file is one that exists or ends as files of rows or texts do (`names_file`), and
    what begins as a path does. Other words with white space are texts. So is a word without, if it
    has letters that are not ASCII, or is not like the name of a file: it has no slashes, characters
    of globs or a suffix such as .cvs, and is unlike every name in the current folder.
    """
    if word == "-" or names_file(word) or word.startswith(("/", "./", "../", "~/")):
        return False
    if len(word.split()) > 1:
        return True
    if not word.strip() or word.startswith(("~", ".")) or Path(word).exists():
        return False
    if any(c.isalpha() or c in _ENDS_OF_SENTENCES for c in word if not c.isascii()):
        return "/" not in word or not Path(word).parent.is_dir()
    is_like_name = "/" in word or "\\" in word or has_magic(word) or _LIKE_SUFFIX.search(word)
    return not is_like_name and not _near_names(word)


def _near_names(word: str) -> list[str]:
    """Return a name in the current folder, or without its suffix, that is nearly a word."""
    with suppress(OSError):  # the folder may not be readable
        names = [part for path in Path().iterdir() for part in (path.name, path.stem)]
        return difflib.get_close_matches(word, names, 1, _NEAR)
    return []


def file_or_texts(
    words: Sequence[str], texts: Sequence[str], note: Callable[[str], None] | None = None
) -> str | list[str]:
    """What the words of a command are: one file, or "-", or texts (`is_text`).

    Args:
        texts: more texts, whatever is in them.
        note: is called with a line that says that a word without white space is read as a text.

    Raises:
        UsageError: nothing is given, or more than a file; there is no such file; several words
            without white space, which may be one text without its quotes.
    """
    paths = [word for word in words if not is_text(word)]
    if not paths and (words or texts):
        bare = [word for word in words if word.isascii() and len(word.split()) < 2]
        expect(
            len(bare) < 2,
            f"{len(bare)} words without a space: is this one text, or several?",
            where=" ".join(bare),
            hint=f'one text: "{" ".join(bare)}"; several: '
            + " ".join(f"-t {quoted(word)}" for word in bare),
        )
        if bare and note is not None:
            note(f'text: "{bare[0]}" (no such file)')
        return [*words, *texts]
    hint = (
        f"if this is a text: -t {quoted(paths[0])}"
        if paths
        else 'name a file; or give a text: -t "A text"'
    )
    where = paths[0] if paths else None
    expect(
        len([*words, *texts]) == 1,
        "expected one file, or - for standard input, or texts",
        where=where,
        hint=hint,
    )
    path = Path(paths[0]) if paths[0].startswith("~") else as_path(paths[0])
    with suppress(RuntimeError):  # ~ and the name of a user that does not exist
        path = path.expanduser()
    if paths[0] != "-" and not path.exists():
        error = nothing_there(path)
        raise UsageError(error.what, where=error.where, hint=f"{error.hint}; {hint}")
    return paths[0]


def nothing_there(path: Path) -> UsageError:
    """Return the error for a path that does not exist, with the closest name in its folder."""
    if str(path) == STDIN:
        return UsageError(
            "standard input is not read here", hint="write it to a file, and name that"
        )
    folder = path.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1)
    meant = (
        f"did you mean {folder / close[0]}?"
        if close
        else f"see what is there: `ls {quoted(folder)}`"
    )
    return UsageError(
        "the glob matches nothing" if has_magic(str(path)) else "there is no such file or folder",
        where=path,
        hint=meant,
    )


def chunk_by_size(
    values: Iterable[_T], smallest: int, size_of: Callable[[_T], int] = lambda _: 1
) -> Iterator[list[_T]]:
    """Lists of values of at least this size together; the last may be smaller.

    size_of: a value -> its size; by default each counts 1.
    """
    chunk: list[_T] = []
    size = 0
    for value in values:
        chunk.append(value)
        size += size_of(value)
        if size >= smallest:
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk
