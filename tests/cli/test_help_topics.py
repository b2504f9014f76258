"""The help of commands with many options: the options used most, in boxes by topic, and all of
them on request."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App
from cyclopts.argument import Argument

from bertworks.cli import help_topics
from bertworks.cli.help_topics import CommandApp
from bertworks.cli.main import main
from bertworks.cli.parser import make_app
from tests.cli.test_start_page import parsers_page

TABLES = tomllib.loads(Path(help_topics.__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MOST_USED = TABLES["most_used"]
MANY = 12  # options, which still fit on a screen
TITLES = re.compile(r"^╭─ (.+?) ─", re.MULTILINE)
OPTIONS = re.compile(r"^│ [* ]*(--[a-z][\w-]*)", re.MULTILINE)


def commands(app: App, path: str = "") -> Iterator[tuple[str, App]]:
    """The words and the parser of each command."""
    for name in app:
        if not name.startswith("-"):
            words = f"{path} {name}".strip()
            if app[name].default_command is None:
                yield from commands(app[name], words)
            else:
                yield words, app[name]


def options_of(app: App) -> list[Argument]:
    """The options of a command with their help."""
    arguments = app.assemble_argument_collection(parse_docstring=True)
    return [argument for argument in arguments if argument.show and argument.index is None]


COMMANDS = dict(commands(make_app()))


def page_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def test_every_command_with_many_options_has_a_short_help():
    many = {words for words, app in COMMANDS.items() if len(options_of(app)) > MANY}
    assert many == set(MOST_USED)


def test_every_option_of_these_commands_has_one_topic():
    topics = [option for options in TABLES["topics"].values() for option in options]
    assert [option for option, count in Counter(topics).items() if count > 1] == []
    names = {argument.name for words in MOST_USED for argument in options_of(COMMANDS[words])}
    assert set(topics) == names


@pytest.mark.parametrize("words", MOST_USED)
def test_the_options_used_most_are_about_ten_and_exist(words: str):
    arguments = options_of(COMMANDS[words])
    names = {argument.name for argument in arguments}
    required = {argument.name for argument in arguments if argument.required}
    assert required <= set(MOST_USED[words]) <= names
    assert len(set(MOST_USED[words])) == len(MOST_USED[words])
    assert 7 <= len(MOST_USED[words]) <= 14


@pytest.mark.parametrize("words", MOST_USED)
def test_the_short_help_counts_the_options_that_it_leaves_out(
    words: str, capsys: pytest.CaptureFixture[str]
):
    short = page_of([*words.split(), "--help"], capsys)
    assert set(OPTIONS.findall(short)) == set(MOST_USED[words])
    number = len(options_of(COMMANDS[words])) - len(MOST_USED[words])
    assert short.rstrip().endswith(f"\n\n{number} more options: bertworks {words} --help all")


def test_the_boxes_of_finetune(capsys: pytest.CaptureFixture[str]):
    boxes = ["Output", "Data", "Model", "Training", "Evaluation", "Several runs", "Hardware"]
    for words in (["finetune", "--help"], ["finetune", "--help", "all"]):
        assert TITLES.findall(page_of(words, capsys)) == ["Arguments", *boxes]


@pytest.mark.parametrize("words", ["finetune", "evaluate task"])
def test_all_options_on_request(words: str, capsys: pytest.CaptureFixture[str]):
    names = words.split()
    page = page_of([*names, "--help", "all"], capsys)
    assert set(OPTIONS.findall(page)) == {a.name for a in options_of(COMMANDS[words])}
    assert "more options" not in page
    for same in ([*names, "-h", "all"], [*names, "--help-all"], ["help", *names, "all"]):
        assert page_of(same, capsys) == page


def test_a_command_with_few_options_has_one_box(capsys: pytest.CaptureFixture[str]):
    page = page_of(["explain", "--help"], capsys)
    assert TITLES.findall(page) == ["Arguments", "Parameters"]
    assert "more options" not in page
    assert page_of(["explain", "--help", "all"], capsys) == page


def test_a_page_is_the_same_the_second_time():
    app = make_app(shows_all=False)
    pages = []
    for _ in range(2):
        app["finetune"].assemble_argument_collection(parse_docstring=True)
        pages.append(app["finetune"].help_epilogue)
    assert pages[0] == pages[1]
    assert isinstance(app["finetune"], CommandApp)


def test_the_parser_reads_options_that_the_short_help_leaves_out():
    _, bound, *_ = make_app(shows_all=False).parse_args(
        ["finetune", "a.csv", "-o", "b", "--mix", "2"]
    )
    assert bound.arguments["mix"] == 2


def test_the_completion_of_the_shell_has_all_options():
    assert "--sentence-column" in make_app().generate_completion(shell="bash")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_says_its_default(words: str):
    """In words or in brackets: without the option, what happens? A flag does nothing then, and an
    option that may be repeated adds nothing."""
    for argument in options_of(COMMANDS[words]):
        text = argument.parameter.help or ""
        is_flag = argument.hint is bool
        in_brackets = argument.show_default is not False
        assert not (is_flag and in_brackets), argument.name
        is_repeatable = "repeatable" in text.lower() or "one per input" in text
        has_words = re.search(r"\bdefault: |\brequired\b", text, re.IGNORECASE)
        is_clear = argument.required or is_flag or is_repeatable or in_brackets or has_words
        assert is_clear, f"{argument.name}: {text}"


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_no_line_break_within_a_sentence(words: str):
    """The width of the terminal alone decides where lines are broken."""
    page = parsers_page(words.split(), words.split()[0], width=1000)
    for line in page.splitlines():
        text = line.strip("│ ")
        if not text.startswith(("Usage:", "bertworks ", "╭", "╰", "Examples:")) and text:
            assert text[0] in "*-" or text.endswith((".", "]", ")")), text
