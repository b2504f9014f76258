"""Print what `bertworks`, `bertworks --help` and `bertworks --version` show, without the parser.

The parser takes long to import.

The page is stored in `start_page.txt`, as the parser writes it for a screen that is wide enough for
every line, without the borders on the right. `make docs` keeps it, and a test compares it with the
parser's own page. Here its lines are broken for the width of the screen, as `rich` breaks them.
"""

import io
import os
import sys
from pathlib import Path

from bertworks import __version__

PAGE = Path(__file__).with_suffix(".txt")
MIN_WIDTH = 60  # on a narrower screen the names of options are broken too: the parser does that
# The beginnings of the lines of a box.
_TITLE = "╭─ "
_ROW = "│ "
_END = "╰"
# These variables change what `rich` makes of a terminal.
_STYLE_VARIABLES = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")
_BOLD = "\x1b[1m"
_CYAN = "\x1b[36m"
_PLAIN = "\x1b[0m"


def print_at_once(words: list[str]) -> bool:
    """Print the page or the version if these words of the command line ask for it.

    Returns:
        Whether it was printed. If not, the parser answers: there is another command, the screen is
        narrow, or standard output has no UTF-8 or unusual settings.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):  # closed, or that of a notebook
        return False
    if words == ["--version"]:
        text = f"{__version__}\n"
    elif (
        words in ([], ["--help"], ["-h"], ["help"]) and _is_usual(stream) and _width() >= MIN_WIDTH
    ):
        text = layout(PAGE.read_text(encoding="utf-8"), _width(), styled=stream.isatty())
    else:
        return False
    try:
        stream.write(text)
        stream.flush()
    # The reader has closed the pipe: the status is that of pages that `rich` prints.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(1) from None
    return True


def layout(page: str, width: int, *, styled: bool) -> str:
    """Return the stored page for a screen of this width.

    Args:
        page: the content of `start_page.txt`.
        width: number of characters in a line, at least `MIN_WIDTH`.
        styled: with the escape sequences for bold text and colours.
    """
    lines = []
    for line in page.splitlines():
        if line.startswith(_TITLE):
            lines.append(f"{line} ".ljust(width - 1, "─") + "╮")
        elif line.startswith(_ROW):
            lines += _layout_row(line.removeprefix(_ROW), width, styled=styled)
        elif line == _END:
            lines.append(_END.ljust(width - 1, "─") + "╯")
        elif line.startswith("Usage: ") and styled:
            label, command = line.split(maxsplit=1)
            lines.append(f"{_BOLD}{label} {_PLAIN}{_BOLD}{command}{_PLAIN}")
        else:
            lines += _wrap(line, width)
    return "".join(f"{line}\n" for line in lines)


def _layout_row(row: str, width: int, *, styled: bool) -> list[str]:
    """Return the lines of a row of a box: a name, at least two spaces, and a text."""
    name, _, rest = row.partition("  ")
    text = rest.lstrip()
    name_width = len(row) - len(text) - 2
    text_width = width - len(row) + len(text) - 4  # a border and a space on both sides
    lines = []
    for number, part in enumerate(_wrap(text, text_width)):
        if not styled:
            start = (name if number == 0 else "").ljust(name_width + 2)
        elif number == 0:
            start = f"{_CYAN}{name.ljust(name_width)}{_PLAIN}{_CYAN}  {_PLAIN}"
        else:
            start = f"{_CYAN}{' ' * (name_width + 2)}{_PLAIN}"
        lines.append(f"│ {start}{part.ljust(text_width)} │")
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text.

    The space where a line is broken stays at its end if there is room, as in `rich`.
    """
    lines = [""]
    for word in text.split(" "):
        line = f"{lines[-1]}{word}"
        if len(line) <= width:
            lines[-1] = f"{line} "
        else:
            lines.append(f"{word} ")
    return [*(line[:width] for line in lines[:-1]), lines[-1].removesuffix(" ")]


def _is_usual(stream: io.TextIOWrapper) -> bool:
    """Return whether `rich` would write to this stream in UTF-8 and in its usual styles.

    Styles matter only for a terminal.
    """
    is_dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown") and stream.isatty()
    is_utf8 = stream.encoding.lower().startswith("utf")
    return is_utf8 and not is_dumb and not any(name in os.environ for name in _STYLE_VARIABLES)


def _width() -> int:
    """Return the width of the screen, found as `rich` finds it.

    It is COLUMNS, else that of the first terminal among the three streams.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns) or 80
    for descriptor in (0, 1, 2):
        try:
            return os.get_terminal_size(descriptor).columns or 80
        except OSError:
            continue
    return 80
