"""What a user names as an input becomes a path: a file, a folder, a URL, standard input.

- `as_path`: a path; a URL becomes the path of its local copy
- `rereadable`: a path that can be read repeatedly, also of a pipe and of standard input
- `file_or_texts`: the words of a command
- `nothing_there`: the error for a path that does not exist
"""

import difflib
import shutil
import sys
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from glob import has_magic
from os import PathLike
from pathlib import Path

from bertworks.errors import BertworksError, UsageError, expect, quoted
from bertworks.io.atomic_write import local_path, url_of
from bertworks.io.options import STDIN
from bertworks.io.text_files import BLOCK_SIZE, COMPRESSIONS, FORMATS, format_suffix


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
    path = as_path(path).expanduser()
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
        what = f"the input of a pipe cannot be copied to a file: {error.strerror}"
        hint = (
            "set TMPDIR to a folder with more free space, or save the text in a file and name that"
        )
        raise BertworksError(what, where=tempfile.tempdir, hint=hint) from error
    return copy, STDIN if is_stdin else str(path)


def names_file(word: str) -> bool:
    """Return whether a text is the name of a file.

    There is such a file, or the text ends as files of rows or texts do.
    """
    with suppress(OSError):  # a text may be too long for a name
        if Path(word).expanduser().is_file():
            return True
    return format_suffix(word) in FORMATS or word.endswith(tuple(COMPRESSIONS))


def file_or_texts(words: Sequence[str], texts: Sequence[str]) -> str | list[str]:
    """What the words of a command are: one file, or "-", or texts.

    A word is a text if it has a space, does not begin as a path does, and is not the name of a file
    (`names_file`). texts: more texts, whatever is in them.

    Raises:
        UsageError: nothing is given, or more than a file; there is no such file.
    """
    paths = [
        word
        for word in words
        if names_file(word) or len(word.split()) < 2 or word.startswith(("/", "./", "../", "~/"))
    ]
    if not paths and (words or texts):
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
    path = as_path(paths[0]).expanduser()
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
    what = "the glob matches nothing" if has_magic(str(path)) else "there is no such file or folder"
    return UsageError(what, where=str(path), hint=meant)
