"""The parser of the command line: the words of a command -> a call of its function.

Each command is a public function of `training`, `inference`, `models` or `evaluation`. Of these
modules only that of the typed command is imported. Commands import heavy modules when they run, so
that help and completion are fast.

A command that uses a model takes it as its first word or as --model; check, finetune and index as
--model. `COMMAND --help` shows the options used most, `COMMAND --help all` all of them. These
options may stand anywhere: -q (--quiet) prints only results, errors and warnings, -v (--verbose)
every detail; --debug shows the traceback of an error; --threads N sets the threads on the CPU
(default: by the CPUs that are free; auto: trainings adapt as well).
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Sequence
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
)

from bertworks import __version__
from bertworks.cli import console
from bertworks.cli.console import with_json_and_urls
from bertworks.cli.help_topics import CommandApp
from bertworks.errors import UsageError
from bertworks.io.options import STDIN

MODULES = {  # the commands of each module
    "training": "vocab prepare pretrain check finetune predict".split(),
    "inference": "fill generate translate score explain embed index search".split(),
    "models": "serve export import convert push slurm doctor demo".split(),
    "evaluation": ["evaluate"],
}
GROUPS = {  # the commands of each group, in the order of the help
    "Learn from labelled data": "check finetune predict evaluate explain".split(),
    "Vectors and search": "embed index search".split(),
    "Pre-train on raw text": "vocab prepare pretrain fill generate translate score".split(),
    "Serve, convert and share": "serve export import convert push".split(),
    "This machine": "slurm doctor demo".split(),
}
MODEL_FIRST = (
    "predict fill generate translate score explain embed evaluate serve export convert push".split()
)


def execute(words: Sequence[str], *, debug: bool = False) -> object:
    """Run the command with these words, and return what its function returns.

    Args:
        words: without the program's name, and without --debug and --threads.
        debug: whether --debug was among them, for the processes that the command starts.

    Raises:
        UsageError: the words are no command.
    """
    amount = [word for word in words if word in console.VERBOSITY_OF]
    console.set_verbosity(amount)
    words = [STDIN if word == "-" else word for word in words if word not in amount]
    words, shows_all = _help_last(words)
    words = _complete_estimate(_model_first(_with_task_evaluation(words)))
    console.typed[:] = words + amount + ["--debug"] * debug
    app = make_app(words[0] if words else None, shows_all=shows_all)
    try:
        if _is_help(app, words):
            app.help_print(words[:-1])
            return None
        return app(words)
    except CycloptsError as error:
        raise _usage_error(error) from error


def make_app(name: str | None = None, *, shows_all: bool = True) -> CommandApp:
    """Return the parser.

    It prints only help and the version.

    Args:
        name: the command to parse: the parser knows no other one, and is made in less time. None,
            or a word that is no command: all commands.
        shows_all: whether the help of a command has all of its options, not only those used most.
    """
    app = CommandApp(
        name="bertworks",
        help="Train, fine-tune and use BERT models on your own data.",
        # the last paragraph above
        help_epilogue=" ".join(str(__doc__).rpartition("\n\n")[2].split()),
        help_format="plaintext",
        version=__version__,
        print_error=False,
        exit_on_error=False,
        verbose=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        group_commands=Group("Options", sort_key=len(GROUPS)),
    )
    module_of = {command: module for module, commands in MODULES.items() for command in commands}
    commands = [name] if name in module_of else list(module_of)
    if len(commands) > 1:
        app.register_install_completion_command()
    groups = {title: Group(title, sort_key=number) for number, title in enumerate(GROUPS)}
    for command in commands:
        module = import_module(f"bertworks.cli.{module_of[command]}")
        title = next(title for title, members in GROUPS.items() if command in members)
        position = GROUPS[title].index(command)
        if command == "evaluate":
            group = groups[title]
            app.command(_evaluation_app(module, group, position, shows_all=shows_all))
        else:
            function, examples = _prepared(_functions(module)[command])
            app.command(function, group=groups[title], sort_key=position, help_epilogue=examples)
            _set_topics(app[command], command, examples, shows_all=shows_all)
    return app


def _set_topics(app: App, words: str, examples: str, *, shows_all: bool) -> None:
    """Tell the parser of a command what its help shows; the arguments are those of `CommandApp`."""
    assert isinstance(app, CommandApp)
    app.words = words
    app.examples = examples
    app.shows_all = shows_all


def _is_help(app: App, words: list[str]) -> bool:
    """Return whether these words are the name of a command and --help.

    Then the page is printed without parsing the words, for which cyclopts would collect the options
    of the command once more.
    """
    names = words[:-1]
    if words[-1:] not in (["--help"], ["-h"]) or any(name.startswith("-") for name in names):
        return False
    _, _, other_words = app.parse_commands(names)
    return not other_words


def _evaluation_app(
    module: ModuleType, group: Group, position: int, *, shows_all: bool
) -> CommandApp:
    """Return the parser of the commands `evaluate ...`, at this position of its group."""
    examples = (
        "bertworks evaluate task MODEL-FOLDER test.csv\n"
        "bertworks evaluate mlm MODEL-FOLDER held-out.txt"
    )
    app = CommandApp(
        name="evaluate",
        help="Evaluate a model, or predictions, on held-out data.",
        group=group,
        group_commands=Group("Commands"),
        sort_key=position,
        help_epilogue=_format_examples(examples),
    )
    for name, function in _functions(module).items():
        command, examples_of_command = _prepared(function)
        app.command(command, help_epilogue=examples_of_command)
        _set_topics(app[name], f"evaluate {name}", examples_of_command, shows_all=shows_all)
    return app


def _functions(module: ModuleType) -> dict[str, Callable[..., object]]:
    """Return the public functions that this module defines, by the names of their commands."""
    return {
        name.rstrip("_"): value
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }


def _prepared(function: Callable[..., object]) -> tuple[Callable[..., object], str]:
    """Return the function of a command with the options --json and -o URL, and its examples.

    Its docstring gets the help of shared options and loses the examples. It has no line breaks
    within a paragraph or the help of an option: the terminal's width decides where lines break.
    The same holds for the docstrings of its groups of options.
    """
    text, _, examples = (inspect.getdoc(function) or "").partition("\nExamples:\n")
    text = _with_shared_options(text, inspect.signature(function).parameters)
    function.__doc__ = _join_lines(text)
    for parameter in inspect.signature(function).parameters.values():
        group = next(iter(get_args(parameter.annotation)), parameter.annotation)
        if isinstance(group, type) and is_dataclass(group):
            for kind in inspect.getmro(group)[:-1]:  # a group has the help of those it extends
                # A field that is only declared again, with another type, has its help there.
                names = [
                    name for name in kind.__annotations__ if not hasattr(super(kind, kind), name)
                ]
                help_text = _with_shared_options(inspect.getdoc(kind) or "", names)
                kind.__doc__ = _join_lines(help_text)
    # A second parser finds no examples in the docstring any more.
    formatted = vars(function).setdefault("examples", _format_examples(examples))
    return with_json_and_urls(function), formatted


def _join_lines(docstring: str) -> str:
    """Return the docstring with each paragraph, and the help of each option, in one line."""
    return re.sub(r"(?<=\S)\n( {8,}|(?=\S))", " ", docstring)


def _format_examples(text: str) -> str:
    """Return the paragraph of examples at the end of the help."""
    return "Examples:\n" + textwrap.indent(textwrap.dedent(text), "  ")


def _with_shared_options(text: str, names: Collection[str]) -> str:
    """Return the docstring of a command with the help of `console` for its shared parameters.

    These are the parameters that the docstring does not explain itself.
    """
    shared = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", console.__doc__ or "", re.MULTILINE)
    added = [
        f"    {name}: {line}"
        for name, line in shared
        if name in names and f"\n    {name}: " not in text
    ]
    head = ["\nArgs:"] if added and "\nArgs:\n" not in text else []
    return "\n".join([text.rstrip(), *head, *added])


def _help_last(words: list[str]) -> tuple[list[str], bool]:
    """Return `help COMMAND` as `COMMAND --help`, and whether all options are shown.

    `all` behind `--help` or `help COMMAND`, or `--help-all`, shows them. Without a request for help
    the parser has all of them as well, e.g. for the completion of the shell.
    """
    if words[:1] == ["help"]:
        words = [word for word in words[1:] if word not in ("--help", "-h")]
        if words[-1:] != ["all"]:
            return [*words, "--help"], False
        return [*words[:-1], "--help"], True
    if words[-1:] == ["--help-all"]:
        return [*words[:-1], "--help"], True
    if words[-2:] in (["--help", "all"], ["-h", "all"]):
        return words[:-1], True
    return words, {"--help", "-h"}.isdisjoint(words)


def _with_task_evaluation(words: list[str]) -> list[str]:
    """Return `evaluate MODEL ...` as `evaluate task MODEL ...`, which most people want.

    The word behind `evaluate` is a model if it is not the name of an evaluation, but a folder that
    exists, or has a slash, as paths and names on the hub have, or is minilm.
    """
    if words[:1] != ["evaluate"] or len(words) < 2:
        return words
    word = words[1]
    evaluations = _functions(import_module("bertworks.cli.evaluation"))
    is_model = word in ("--model", "minilm") or "/" in word or Path(word).is_dir()
    return ["evaluate", "task", *words[1:]] if is_model and word not in evaluations else words


def _model_first(words: list[str]) -> list[str]:
    """Return the words of a command that takes a model as its first word.

    The value of `--model` takes that place.
    """
    if not words or words[0] not in MODEL_FIRST or "--model" not in words:
        return words
    place = words.index("--model")
    depth = 1 + (words[0] == "evaluate")
    return [*words[:depth], *words[place + 1 : place + 2], *words[depth:place], *words[place + 2 :]]


def _complete_estimate(words: list[str]) -> list[str]:
    """Return the words with a value for `--estimate`, which is typed with or without one."""
    values = [*words[1:], ""]
    return [
        "--estimate=sizes" if word == "--estimate" and value not in ("sizes", "speed") else word
        for word, value in zip(words, values)
    ]


def _usage_error(error: CycloptsError) -> UsageError:
    """Return the error for wrong words, with the help of their command as a hint."""
    chain = list(error.command_chain or ())
    help_page = f"{' '.join(['bertworks', *chain])} --help"
    if isinstance(error, MissingArgumentError):
        return UsageError(_what_is_missing(error), hint=help_page)
    if isinstance(error, UnknownOptionError):
        return _unknown_option(error, chain, help_page)
    if isinstance(error, UnknownCommandError):
        return _unknown_command(error, chain, help_page)
    argument = getattr(error, "argument", None)
    if argument is not None:
        from bertworks.cli.suggestions import value_hint

        hint = value_hint(argument.names)
        help_page = f"{hint}; or see {help_page}" if hint else help_page
    return UsageError(str(error), hint=help_page)


def _what_is_missing(error: MissingArgumentError) -> str:
    """Return a sentence that says what is missing.

    The parser's own message, "requires an argument", fits only an option without its value.
    """
    argument = error.argument
    chain = " ".join(error.command_chain or ())
    if argument is None or error.keyword is not None or argument.tokens or error.unused_tokens:
        return str(error)
    short = "".join(f" ({name})" for name in argument.names if name != argument.name)
    return f"{chain} needs {argument.name}{short}"


def _unknown_option(error: UnknownOptionError, chain: list[str], help_page: str) -> UsageError:
    """Return the error for an option that a command does not have.

    Args:
        chain: the words of the command.
        help_page: the command that prints its help.
    """
    from bertworks.cli.suggestions import option_instead

    typed = error.token.keyword or error.token.value or ""
    names = [name for argument in error.argument_collection for name in argument.names]
    # `execute` takes these out of the words of a command
    names += ["--threads", "--debug", *console.VERBOSITY_OF]
    if chain and chain[0] in MODEL_FIRST:
        names.append("--model")
    option = option_instead(typed, chain, names)
    suggestion = f" Did you mean {option}?" if option else ""
    return UsageError(f"Unknown option: {typed}.{suggestion}", hint=help_page)


def _unknown_command(error: UnknownCommandError, chain: list[str], help_page: str) -> UsageError:
    """Return the error for a command that does not exist; the arguments are those above."""
    from bertworks.cli.suggestions import command_instead

    word = (error.unused_tokens or [""])[0]
    commands = [command for names in MODULES.values() for command in names]
    if chain and error.app is not None:
        commands = [name for name in error.app if not name.startswith("-")]
    usage = command_instead(word, commands)
    if chain == ["evaluate"] and not usage:
        return UsageError(
            f'"{word}" is neither an evaluation nor a model folder',
            hint=f"bertworks evaluate task MODEL FILE; the evaluations: {help_page}",
        )
    suggestion = f' Did you mean "{usage}"?' if usage else ""
    return UsageError(f'Unknown command "{word}".{suggestion}', hint=help_page)
