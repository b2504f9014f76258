"""What is imported before a page of help is printed, and that the stored page is the parser's own.
No timings: see benchmarks/start_up.py."""

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from rich.console import Console

from bertworks.cli import start_page
from bertworks.cli.main import main
from bertworks.cli.parser import make_app

PAGE = start_page.PAGE.read_text(encoding="utf-8")
HEAVY = {
    "torch",
    "numpy",
    "pyarrow",
    "tokenizers",
    "filelock",
    "jinja2",
    "sklearn",
    "scipy",
    "huggingface_hub",
}
RUN = "import sys; sys.argv[0] = 'bertworks'; from bertworks.cli.main import run; run()"
PARSER_ALONE = """
import sys
from bertworks.cli import start_page
start_page.MIN_WIDTH = 10**9  # no screen is so wide: the parser answers
sys.argv[0] = "bertworks"
from bertworks.cli.main import run
run()
"""


def parsers_page(words: list[str], name: str | None = None, **settings: object) -> str:
    """A page of help as the parser with this command, or with all, writes it to a console with
    these settings."""
    stream = StringIO()
    console = Console(file=stream, legacy_windows=False, _environ={}, **settings)
    make_app(name)([*words, "--help"], console=console)
    return stream.getvalue()


def imported_modules(words: list[str]) -> set[str]:
    """The modules that a new process has imported after it has run this command."""
    code = """
import contextlib, io, json, sys
from bertworks.cli.main import main
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as stream:
    assert main(sys.argv[1:]) == 0
    assert stream.buffer.getvalue()
print(json.dumps(sorted(sys.modules)))
"""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")
    }
    command = [sys.executable, "-c", code, *words]
    answer = subprocess.run(command, env=environment, capture_output=True, check=True)
    return set(json.loads(answer.stdout))


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["-h"], ["--version"], ["--debug", "--help"]], ids=" ".join
)
def test_the_first_page_and_the_version_need_no_parser(words: list[str]):
    modules = imported_modules(words)
    assert not {"cyclopts", "rich", "dataclasses", "inspect"} & modules
    assert not HEAVY & modules
    names = {name for name in modules if name.startswith("bertworks")}
    assert names == {
        "bertworks",
        "bertworks.cli",
        "bertworks.cli.main",
        "bertworks.cli.start_page",
        "bertworks.errors",
    }


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["finetune"], "training"),
        (["embed"], "inference"),
        (["slurm"], "models"),
        (["evaluate"], "evaluation"),
        (["evaluate", "task"], "evaluation"),
    ],
    ids=str,
)
def test_the_help_of_a_command_needs_its_own_module_only(words: list[str], module: str):
    modules = imported_modules([*words, "--help"])
    assert not HEAVY & modules
    commands = {name for name in modules if name.startswith("bertworks.cli.")} - {
        "bertworks.cli.main"
    }
    assert commands == {
        f"bertworks.cli.{name}"
        for name in ("start_page", "parser", "help_topics", "console", module)
    }
    others = {
        name
        for name in modules
        if name.startswith("bertworks.") and not name.startswith("bertworks.cli")
    }
    options = {"bertworks.runs", "bertworks.runs.options"} if module == "training" else set()
    assert others == options | {
        "bertworks.errors",
        "bertworks.events",
        "bertworks.io",
        "bertworks.io.options",
    }


def test_help_of_an_unknown_command_is_an_error(capsys: pytest.CaptureFixture[str]):
    assert main(["evaluate", "no-such-metric", "--help"]) == 2
    assert main(["no-such-command", "--help"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "width", [start_page.MIN_WIDTH, 61, 72, 79, 80, 81, 93, 100, 118, 119, 120, 132, 200, 400]
)
def test_the_stored_page_is_that_of_the_parser_at_every_width(width: int):
    assert start_page.layout(PAGE, width, styled=False) == parsers_page(
        [], width=width, force_terminal=False
    )
    settings = {"width": width, "force_terminal": True}
    page = start_page.layout(PAGE, width, styled=True)
    assert page == parsers_page([], color_system="standard", **settings)
    assert page == parsers_page([], color_system="truecolor", **settings)


@pytest.mark.slow
def test_the_stored_page_is_that_of_the_parser_at_all_widths():
    for width in range(start_page.MIN_WIDTH, 300):
        test_the_stored_page_is_that_of_the_parser_at_every_width(width)


def output_of(code: str, settings: dict[str, str], columns: int | None) -> bytes:
    """What a program writes to a pipe, or to a terminal with this number of columns."""
    names = ("COLUMNS", "TERM", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "PYTHONIOENCODING")
    environment = {
        name: value for name, value in os.environ.items() if name not in names
    } | settings
    command = [sys.executable, "-c", code, "--help"]
    if columns is None:
        streams = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, check=True, **streams
        ).stdout
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        command, stdin=secondary, stdout=secondary, stderr=secondary, env=environment
    ):
        os.close(secondary)
        output = b""
        with contextlib.suppress(OSError):  # Linux says so when the other side is closed
            while chunk := os.read(primary, 1 << 16):
                output += chunk
    os.close(primary)
    return output


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({}, None),
        ({"COLUMNS": "72"}, None),
        ({"PYTHONIOENCODING": "ascii"}, None),
        ({"FORCE_COLOR": "1"}, None),
        ({"TERM": "xterm-256color"}, 104),
        ({"TERM": "xterm-256color", "COLUMNS": "90"}, 104),
        ({"TERM": "xterm", "NO_COLOR": "1"}, 104),
        ({"TERM": "dumb"}, 104),
        ({"TERM": "linux"}, 40),
    ],
    ids=str,
)
def test_a_process_prints_the_page_that_the_parser_would_print(
    settings: dict[str, str], columns: int | None
):
    page = output_of(RUN, settings, columns)
    assert page == output_of(PARSER_ALONE, settings, columns)
    assert b"Usage: " in page
    if "NO_COLOR" not in settings:
        assert (b"\x1b[36m" in page) is (
            settings.get("TERM", "dumb") != "dumb" or "FORCE_COLOR" in settings
        )


@pytest.mark.parametrize("words", [[], ["--version"], ["doctor", "--help"]], ids=" ".join)
def test_a_reader_that_has_gone_gives_every_page_the_same_status(words: list[str]):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", RUN, *words]
    answer = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (answer.returncode, answer.stderr) == (1, b"")


def test_a_full_disk_is_an_error_of_the_first_page():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("wb") as full:
        answer = subprocess.run(
            [sys.executable, "-c", RUN], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (answer.returncode, answer.stderr) == (
        1,
        b"error: standard output: No space left on device\n",
    )


def test_the_parser_answers_where_standard_output_is_no_stream_of_text(
    monkeypatch: pytest.MonkeyPatch,
):
    """As in a notebook, whose standard output is an object of its own."""
    stream = StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert not start_page.print_at_once(["--version"])
    assert main(["--version"]) == 0
    assert stream.getvalue() == "0.1.0\n"


def test_other_words_are_left_to_the_parser(monkeypatch: pytest.MonkeyPatch):
    stream = TextIOWrapper(BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stream)
    for words in (["vocab"], ["--help", "vocab"], ["help", "vocab"], ["--json"], ["-V"]):
        assert not start_page.print_at_once(words)
    assert stream.buffer.getvalue() == b""


def test_the_width_is_that_of_the_first_terminal(monkeypatch: pytest.MonkeyPatch):
    def size_of(descriptor: int) -> os.terminal_size:
        if descriptor == 0:
            raise OSError("no terminal")
        return os.terminal_size((70 * (descriptor - 1) or 0, 24))

    monkeypatch.setenv("COLUMNS", "")
    monkeypatch.setattr(os, "get_terminal_size", size_of)
    assert start_page._width() == 80  # a terminal that does not know its width
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.terminal_size((70, 24)))
    assert start_page._width() == 70
    monkeypatch.setenv("COLUMNS", "60")
    assert start_page._width() == 60
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(os, "get_terminal_size", lambda descriptor: os.open("/no/such/file", 0))
    assert start_page._width() == 80
