"""The example texts that the page of a server offers.

- `read_examples`: a text file with one text per line -> the texts
- `MAX_EXAMPLES`, `MAX_CHARACTERS`: how many there may be, and how long each
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bertworks.errors import expect, explain_os_errors
from bertworks.io.inputs import as_path, nothing_there

MAX_EXAMPLES = 20
MAX_CHARACTERS = 1000
MAX_BYTES = 4 * MAX_CHARACTERS + 5  # of a line in UTF-8, with a byte-order mark and its end


def read_examples(path: str | Path) -> list[str]:
    """Return the texts of a UTF-8 file with one text per line, without blank lines.

    Raises:
        UsageError: there is no such file; it has no text, or more than MAX_EXAMPLES; a text has
            more than MAX_CHARACTERS characters, or bytes that are not UTF-8.
        BertworksError: the file cannot be read.
    """
    file = as_path(path)
    if not file.exists():
        raise nothing_there(file)
    texts = list[str]()
    with explain_os_errors("the examples cannot be read", file):
        for number, line in enumerate(_lines_of(file), 1):
            where = f"{file}:{number}"
            text = _decoded(line, where).strip()
            if not text:
                continue
            expect(
                len(text) <= MAX_CHARACTERS and len(line) < MAX_BYTES,
                f"the example has more than {MAX_CHARACTERS:,} characters",
                where=where,
                hint="shorten it, or leave it out",
            )
            expect(
                len(texts) < MAX_EXAMPLES,
                f"this is example {MAX_EXAMPLES + 1}: expected {MAX_EXAMPLES} at most",
                where=where,
                hint="leave some out: the page shows all of them at once",
            )
            texts.append(text)
    expect(texts, "the file has no example", where=f"{file}:1", hint="write one text per line")
    return texts


def _lines_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, at most MAX_BYTES of each at a time."""
    with file.open("rb") as stream:
        yield from iter(partial(stream.readline, MAX_BYTES), b"")


def _decoded(line: bytes, where: str) -> str:
    """Return a line as text. A line that is too long may end within a character."""
    is_cut = len(line) == MAX_BYTES
    try:
        return line.decode("utf-8-sig", "ignore" if is_cut else "strict")
    except UnicodeDecodeError:
        expect(False, "bytes that are not UTF-8", where=where, hint="save the file as UTF-8")
        raise
