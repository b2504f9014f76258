"""A plugin of pytest that records the hints of all errors which tests raise.

At the end of a run it parses the commands and options in the hints with the parser of the command
line, and fails the run if one does not exist. A run of all fast tests, with the real data, also
fails if a place in the package that passes a hint was not reached, unless `unseen_hints.txt` names
the function and the reason.
"""

import ast
import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnusedCliTokensError,
)

from bertworks import errors
from bertworks.cli.parser import MODULES, make_app
from tests.support import ROOT, SUPPORT

PACKAGE = ROOT / "bertworks"
EXEMPTIONS = SUPPORT / "unseen_hints.txt"
MAX_EXEMPTIONS = 60
_RAISES = ("expect", "require")  # these make the error themselves
COMMANDS = [command for commands in MODULES.values() for command in commands]
GLOBAL_OPTIONS = {"--debug", "--threads", "--help", "-h", "--version", "--model"}
# Programs of others, whose options are not ours.
PROGRAMS = (
    "gzip zstd xz bzip2 tar sed tr jq hf pip python python3 ray ls rm pdftotext iconv".split()
)
# A command in a sentence ends before these.
END_OF_COMMAND = re.compile(r"`|\n|; |: |, (?:and|or|which) | \(|\)|$|, then ")


@dataclass(frozen=True, order=True)
class Line:
    """A line of a module that was executing: the path of the module in the package, its number."""

    module: str
    number: int


@dataclass(frozen=True)
class Hint:
    """A hint that was raised.

    stack: the lines of the package that led to the error, the innermost first.
    test: the file of the test.
    """

    text: str
    stack: tuple[Line, ...]
    test: str


@dataclass(frozen=True)
class Place:
    """A call in the package that passes a hint.

    function: its qualified name.
    pattern: of the hint, where its text is written in the call.
    is_direct: whether the error is made by the call itself, not later with what it was given.
    """

    module: str
    function: str
    first_line: int
    last_line: int
    pattern: re.Pattern[str] | None
    is_direct: bool

    def is_reached_by(self, hint: Hint) -> bool:
        """Whether the hint came from here."""
        lines = range(self.first_line, self.last_line + 1)
        is_here = any(line.module == self.module and line.number in lines for line in hint.stack)
        if self.pattern is None:
            return is_here
        if self.is_direct:
            return is_here and self.pattern.fullmatch(hint.text) is not None
        # A function may add to a hint, and raise it later.
        matches = self.pattern.match if is_here else self.pattern.fullmatch
        return matches(hint.text) is not None


class HintRecorder:
    """The plugin: in the only process of a run, or in each worker of xdist and their controller."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.hints: set[Hint] = set()
        self.problems: list[str] = []
        self._test = ""
        original = errors.BertworksError.__init__

        def recording(
            error: errors.BertworksError,
            what: str,
            *,
            where: str | None = None,
            hint: str | None = None,
        ) -> None:
            original(error, what, where=where, hint=hint)
            if hint:
                stack = tuple(_package_lines(sys._getframe(1)))
                self.hints.add(Hint(hint, stack, self._test))

        errors.BertworksError.__init__ = recording  # type: ignore[method-assign]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._test = nodeid.partition("::")[0]

    def pytest_testnodedown(self, node: Any) -> None:
        """Merge what a worker of xdist recorded."""
        for text, stack, test in getattr(node, "workeroutput", {}).get("hints", ()):
            lines = tuple(Line(module, number) for module, number in stack)
            self.hints.add(Hint(text, lines, test))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["hints"] = [
                (hint.text, [(line.module, line.number) for line in hint.stack], hint.test)
                for hint in self.hints
            ]
            return
        hints = list(self.hints)
        self.problems += wrong_hints(hints)
        if exitstatus == pytest.ExitCode.OK and is_full_run(self.config):
            self.problems += unreached_places(hints, places(), exemptions())
        if self.problems and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.problems:
            terminalreporter.section("hints", red=True)
            for line in self.problems:
                terminalreporter.line(line)


def is_full_run(config: pytest.Config) -> bool:
    """Return whether a run has all fast tests.

    It was started without paths and without a selection, but for one that leaves slow tests out,
    and has the real data, without which tests are skipped.
    """
    option = config.option
    selections = ("keyword", "deselect", "ignore", "ignore_glob", "collectonly", "lf", "stepwise")
    return (
        config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and bool(os.environ.get("BERTWORKS_DATA"))
        and option.markexpr in ("", "not slow")
        and not any(getattr(option, name, None) for name in selections)
    )


def _package_lines(frame: Any) -> Iterator[Line]:
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(f"{PACKAGE}/"):
            yield Line(path[len(str(PACKAGE)) + 1 :], frame.f_lineno)
        frame = frame.f_back


# Commands and options in hints


def wrong_hints(hints: Sequence[Hint]) -> list[str]:
    """Return a line for each hint with a command or an option that does not exist."""
    lines = {}
    for hint in hints:
        for problem in problems_of(hint.text):
            place = f"{hint.stack[0].module}:{hint.stack[0].number}" if hint.stack else "?"
            lines.setdefault(f"{problem}: {hint.text!r}, raised by {place} in {hint.test}", None)
    return list(lines)


@cache
def problems_of(text: str) -> tuple[str, ...]:
    """Return what is wrong with the commands and the options that a hint advises."""
    problems, rest = [], text
    for command in commands_in(text):
        rest = rest.replace(command, " ")
        if problem := problem_of_command(command):
            problems.append(problem)
    for option in options_in(rest):
        if option not in all_options():
            problems.append(f"no command has the option {option}")
    return tuple(problems)


def commands_in(text: str) -> list[str]:
    """Return the commands of this program in a text, each with the words after it that may be its
    arguments."""
    starts = re.finditer(r"(?<![\w./\"-])(?<!of )bertworks (?=[a-z-])", text)
    commands = []
    for start in starts:
        end = END_OF_COMMAND.search(text, start.end())
        assert end is not None
        commands.append(text[start.start() : end.start()])
    return commands


def problem_of_command(command: str) -> str | None:
    """Return what the parser of the command line says against a command, or None.

    A hint may leave out arguments, and stand for a value with a word in capitals: only commands
    and options that do not exist are a problem.
    """
    try:
        words = shlex.split(command)[1:]
    except ValueError as error:
        return f"{command!r} cannot be typed: {error}"
    words = [word for word in words if word not in ("--debug", "...")]
    if words[:1] == ["slurm"]:  # prints a script that runs another command
        words = words[1:]
    if not words or words[0] in GLOBAL_OPTIONS:
        return None
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]!r}"
    names = options_of(app_of(words[0]))
    for word in words:
        if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word) and word.partition("=")[0] not in names:
            return f"{words[0]} has no option {word}"
    try:
        app_of(words[0]).parse_args(words, print_error=False, exit_on_error=False)
    except (MissingArgumentError, CoercionError):
        return None
    except UnusedCliTokensError:  # the sentence goes on after the command
        return None
    except CycloptsError as error:
        return f"{command!r} is refused: {error}"
    except errors.UsageError:  # by a converter of a placeholder
        return None
    return None


@cache
def app_of(command: str) -> App:
    return make_app(command)


def options_of(app: App) -> Collection[str]:
    """Return the names of all options of a command, and of the commands below it."""
    names = {"--model"}
    for name in [*app]:
        if not name.startswith("-"):
            names |= {*options_of(app[name])}
    if app.default_command is not None:
        names |= {
            option
            for argument in app.assemble_argument_collection()
            for option in (*argument.names, *argument.negatives)
        }
    return names | GLOBAL_OPTIONS


@cache
def all_options() -> frozenset[str]:
    """Return the names of the options of all commands."""
    return frozenset(option for command in COMMANDS for option in options_of(app_of(command)))


def options_in(text: str) -> list[str]:
    """Return the options that a text names, without those of other people's programs."""
    for program in PROGRAMS:
        text = re.sub(rf"(?<![\w./-]){program} [^`;,\n]*", " ", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", " ", text)  # values
    return re.findall(r"(?<![\w=/.-])--?[a-z][\w-]*(?![\w-])", text)


# Places that pass hints


def unreached_places(
    hints: Sequence[Hint], places: Sequence[Place], reasons: Mapping[tuple[str, str], str]
) -> list[str]:
    """Return a line for each place that no hint came from, and for each exemption of a function
    that passes no hint."""
    functions = {(place.module, place.function) for place in places}
    lines = [
        f"{EXEMPTIONS.name}: {module} {function} passes no hint"
        for module, function in reasons
        if (module, function) not in functions
    ]
    if len(reasons) > MAX_EXEMPTIONS:
        lines.append(f"{EXEMPTIONS.name} has more than {MAX_EXEMPTIONS} lines: write tests")
    by_module: dict[str, list[Hint]] = {}
    for hint in hints:
        for module in {line.module for line in hint.stack}:
            by_module.setdefault(module, []).append(hint)
    for place in places:
        if (place.module, place.function) in reasons:
            continue
        candidates = by_module.get(place.module, []) if place.is_direct else hints
        if not any(place.is_reached_by(hint) for hint in candidates):
            lines.append(
                f"bertworks/{place.module}:{place.first_line}: no test raises the hint of "
                f"{place.function}"
            )
    return lines


def exemptions() -> dict[tuple[str, str], str]:
    """Return the reasons of `unseen_hints.txt` by module and function."""
    reasons = {}
    for line in EXEMPTIONS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            place, _, reason = line.partition(": ")
            module, _, function = place.partition(" ")
            assert reason, line
            reasons[module, function] = reason
    return reasons


@cache
def places() -> list[Place]:
    """Return every call in the package that passes a hint."""
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    positions = {}  # of the parameter `hint`, by the name of the function
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args]
                if "hint" in names and names[0] != "self":
                    positions[node.name] = names.index("hint")
    places = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.With):  # what ends the block ends it on the first line of all
                for entry in node.items:
                    entry.context_expr.lineno = node.lineno
        local = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        # A function of the module itself may have the name of another one that takes a hint.
        known = {
            name: position
            for name, position in positions.items()
            if name in imported or name not in local or _takes_hint(tree, name)
        }
        places += _places_in(module, tree, known, _constants(tree))
    return places


def _takes_hint(tree: ast.AST, name: str) -> bool:
    """Return whether a module has a function of this name with a parameter `hint`."""
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name == name
        and "hint" in [argument.arg for argument in node.args.args]
        for node in ast.walk(tree)
    )


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the texts that a module gives names to."""
    return {
        node.targets[0].id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }


def _places_in(
    module: str,
    tree: ast.AST,
    positions: Mapping[str, int],
    constants: Mapping[str, ast.expr],
    functions: tuple[str, ...] = (),
    parameters: frozenset[str] = frozenset(),
) -> Iterator[Place]:
    for node in ast.iter_child_nodes(tree):
        names, inner = functions, parameters
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = (*functions, node.name)
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            inner = parameters | {argument.arg for argument in arguments}
        if isinstance(node, ast.Call):
            hint = _hint_of(node, positions)
            # What a function hands on was passed by those that call it.
            is_handed_on = isinstance(hint, ast.Name) and hint.id == "hint" and "hint" in inner
            if hint is not None and not is_handed_on:
                callee = ast.unparse(node.func).rpartition(".")[2]
                is_direct = callee.endswith(("Error", "__init__")) or callee in _RAISES
                if not is_direct and isinstance(hint, ast.Name):
                    hint = constants.get(hint.id, hint)
                yield Place(
                    module,
                    ".".join(functions) or "module",
                    node.lineno,
                    node.end_lineno or node.lineno,
                    _pattern(hint),
                    is_direct,
                )
        yield from _places_in(module, node, positions, constants, names, inner)


def _hint_of(call: ast.Call, positions: Mapping[str, int]) -> ast.expr | None:
    """Return the expression of the hint that a call passes, or None."""
    callee = ast.unparse(call.func).rpartition(".")[2]
    if callee == "Check":  # a line of `bertworks doctor`
        return None
    hint = next((word.value for word in call.keywords if word.arg == "hint"), None)
    if hint is None and positions.get(callee, sys.maxsize) < len(call.args):
        hint = call.args[positions[callee]]
    if isinstance(hint, ast.Constant) and not hint.value:
        return None
    if isinstance(hint, ast.Attribute) and hint.attr == "hint":  # of another error
        return None
    return hint


def _pattern(hint: ast.expr) -> re.Pattern[str] | None:
    """Return what the text of a hint matches, if it is written in the call."""
    if isinstance(hint, ast.Constant):
        return re.compile(re.escape(str(hint.value)))
    if not isinstance(hint, ast.JoinedStr):
        return None
    parts = [
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*"
        for part in hint.values
    ]
    return re.compile("".join(parts), re.DOTALL)
