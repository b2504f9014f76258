"""The command `bertworks`: its parser, error messages and exit codes.

Exit codes: 0 success; 1 a problem with data, model or machine; 2 a wrong command or recipe; 130 Ctrl-C, 143 SIGTERM.
`--debug` shows tracebacks. Commands import heavy modules when they run, so that help and completion are fast.

A command that uses a model takes it as its first word or as --model; check, finetune and index as --model. Every
command has its own --help. Two options may stand anywhere: --debug shows the traceback of an error; --threads N
sets the threads on the CPU (default: by the CPUs that are free; auto: trainings adapt as well).
"""

import atexit
import errno
import inspect
import io
import os
import re
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from types import ModuleType
from typing import NoReturn

from cyclopts import App, CycloptsError, Group, MissingArgumentError, UnknownOptionError

from bertworks import __version__
from bertworks.cli import console, evaluation, inference, models, training
from bertworks.cli.console import say, with_json, with_urls
from bertworks.config import near_field, option_of
from bertworks.errors import BertworksError, UsageError, quoted
from bertworks.io.text_files import STDIN

_JOBS = {  # groups of commands, in the order of the help
    "Learn from labelled data": "check finetune predict evaluate explain",
    "Vectors and search": "embed index search",
    "Pre-train on raw text": "vocab prepare pretrain fill generate score",
    "Serve, convert and share": "serve export import convert push",
    "This machine": "slurm doctor demo",
}
_MODEL_FIRST = "predict fill generate score explain embed evaluate serve export convert push".split()
_RESUMED = {  # if they are repeated
    "pretrain", "finetune", "prepare", "predict", "embed", "index", "demo", "glue", "ablation", "mlm", "--on", "--part",
}  # fmt: skip


def make_app() -> App:
    """The parser with all commands. It prints only help and the version."""
    app = App(
        name="bertworks",
        help="Train, fine-tune and use BERT models on your own data.",
        help_epilogue=" ".join(str(__doc__).rpartition("\n\n")[2].split()),  # the last paragraph above
        help_format="plaintext",
        version=__version__,
        print_error=False,
        exit_on_error=False,
        verbose=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
        group_commands=Group("Options", sort_key=len(_JOBS)),
    )
    app.register_install_completion_command()
    groups: dict[str, Group] = {}
    for number, (job, names) in enumerate(_JOBS.items()):
        groups |= dict.fromkeys(names.split(), Group(job, sort_key=number))
    for position, (name, command, examples) in enumerate(_commands(training, inference, models)):
        app.command(command, group=groups[name], sort_key=position, help_epilogue=examples)
    evaluate = App(
        name="evaluate", help="Evaluate a model, or predictions, on held-out data.", group=groups["evaluate"],
        group_commands=Group("Commands"), sort_key=5.5, help_epilogue=_examples(
            "bertworks evaluate task MODEL-FOLDER test.csv\nbertworks evaluate mlm MODEL-FOLDER held-out.txt"),
    )  # fmt: skip
    for _, command, examples in _commands(evaluation):
        evaluate.command(command, help_epilogue=examples)
    app.command(evaluate)
    return app


def _examples(text: str) -> str:
    return "Examples:\n" + textwrap.indent(textwrap.dedent(text), "  ")


def _commands(*modules: ModuleType) -> Iterator[tuple[str, Callable[..., object], str]]:
    """The public functions that these modules define, in order: name, command, examples. Their docstrings have no line
    breaks within a paragraph or the help of an option: the terminal's width decides where lines break."""
    for module in modules:
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
                text, _, examples = (inspect.getdoc(value) or "").partition("\nExamples:\n")
                text = _with_shared_options(text, inspect.signature(value).parameters)
                value.__doc__ = re.sub(r"(?<=\S)\n( {8,}|(?=\S))", " ", text)
                shown = with_urls(with_json(value))
                yield name.rstrip("_"), shown, vars(value).setdefault("examples", _examples(examples))


def _with_shared_options(text: str, names: Collection[str]) -> str:
    """The docstring of a command with the help of `console` for the parameters that it does not explain itself."""
    shared = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", console.__doc__ or "", re.MULTILINE)
    added = [f"    {name}: {line}" for name, line in shared if name in names and f"\n    {name}: " not in text]
    head = ["\nArgs:"] if added and "\nArgs:\n" not in text else []
    return "\n".join([text.rstrip(), *head, *added])


def _model_first(words: list[str]) -> list[str]:
    """The words of a command that takes a model as its first word, with the value of `--model` in that place."""
    if not words or words[0] not in _MODEL_FIRST or "--model" not in words:
        return words
    place, depth = words.index("--model"), 1 + (words[0] == "evaluate")
    return [*words[:depth], *words[place + 1 : place + 2], *words[depth:place], *words[place + 2 :]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    Args:
        arguments: without the program's name; None: those of the process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = given = [STDIN if word == "-" else word for word in words if word != "--debug"]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # bertworks starts worker processes itself
    # Idle threads spin for some microseconds, then sleep. The default, endless spinning, makes a step tens of times
    # slower when another program uses one of the cores. Without spinning, small networks gain nothing from a second
    # core (docs/experiments).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        words = _complete_estimate(_model_first(_set_threads(words)))
        console.typed[:] = words + ["--debug"] * debug
        result = make_app()(words)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is an error of the command
        return result if isinstance(result, int) else 0
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if debug:
            traceback.print_exc()
        return _report(error, given)


def _complete_estimate(words: list[str]) -> list[str]:
    """The words with a value for `--estimate`, which is typed with or without one."""
    values = [*words[1:], ""]
    return [
        "--estimate=sizes" if word == "--estimate" and value not in ("sizes", "speed") else word
        for word, value in zip(words, values)
    ]


def _set_threads(words: list[str]) -> list[str]:
    """Takes `--threads N` out of the words, and tells the libraries before they are imported. An = becomes a space here
    and for `--model`.

    Raises:
        UsageError: not a number from 1, and not auto.
    """
    both = ("--threads=", "--model=")
    words = [part for word in words for part in (word.split("=", 1) if word.startswith(both) else [word])]
    if "--threads" not in words:
        return words
    place = words.index("--threads")
    count = words[place + 1] if place + 1 < len(words) else ""
    if count == "auto":
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ["BERTWORKS_THREADS"] = "auto"
    elif count.isdigit() and int(count):
        os.environ["OMP_NUM_THREADS"] = count
    else:
        raise UsageError(f"--threads {count}: expected a number from 1, or auto", hint="--threads 1, or --threads auto")
    return words[:place] + words[place + 2 :]


def _report(error: BaseException, words: list[str]) -> int:
    """Print an error in one or two lines to standard error, and return the exit code."""
    if isinstance(error, BertworksError):
        say(f"error: {error}")
        return error.exit_code
    if isinstance(error, CycloptsError):
        chain = list(error.command_chain or ())
        option = _meant_option(chain, error) if isinstance(error, UnknownOptionError) else None
        more = f"{option}; or see " if option else ""
        what = _what_is_missing(error) if isinstance(error, MissingArgumentError) else str(error)
        say(f"error: {what}\n  hint: {more}{' '.join(['bertworks', *chain])} --help")
        return 2
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else error.code
        if code in (128 + signal.SIGINT, 128 + signal.SIGTERM) and "TORCHELASTIC_RUN_ID" not in os.environ:
            say(_how_to_go_on(words))
        return code if isinstance(code, int) else 1
    if isinstance(error, BrokenPipeError):  # `bertworks ... | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    full = (errno.ENOSPC, errno.EDQUOT)  # of standard output, which has no name: what writes files names them
    if isinstance(error, OSError) and (error.filename or error.errno in (*full, errno.EIO)):
        name = error.filename or ("standard output" if error.errno in full else "a disk")
        say(f"error: {name}: {error.strerror or error}")
        return 1
    say(f"error: {type(error).__name__}: {error}")
    command = " ".join("-" if word == STDIN else quoted(word) for word in words)
    say(f"  this is a bug in bertworks: please report it with the output of\n  bertworks --debug {command}")
    return 1


def _what_is_missing(error: MissingArgumentError) -> str:
    """What is missing. The parser's own message, "requires an argument", fits only an option without its value."""
    argument, chain = error.argument, " ".join(error.command_chain or ())
    if argument is None or error.keyword is not None or argument.tokens or error.unused_tokens:
        return str(error)
    short = "".join(f" ({name})" for name in argument.names if name != argument.name)
    return f"{chain} needs {argument.name}{short}"


def _meant_option(chain: list[str], error: UnknownOptionError) -> str | None:
    """What to type instead of an unknown option that is like --model, or like a field of a recipe."""
    from bertworks.training.recipe import FinetuneRecipe, Recipe

    kind = {"pretrain": Recipe, "finetune": FinetuneRecipe, "glue": FinetuneRecipe}.get(chain[-1] if chain else "")
    name = (error.token.keyword or error.token.value or "").partition("=")[0].strip("-")
    path = near_field(kind, name) if kind else None
    if path is None:
        return "--model MODEL" if get_close_matches(name, ["model"]) else None
    option = option_of(path)
    is_option = any(option in argument.names for argument in error.argument_collection)
    return f"{option} VALUE" if is_option else f"--set {path}=VALUE"


def _how_to_go_on(words: list[str]) -> str:
    """The message after Ctrl-C or SIGTERM, with the command that goes on where what was done is kept. Without
    --overwrite, with which it would start again."""
    has_output = not {"-o", "--output", "demo"}.isdisjoint(word.partition("=")[0] for word in words)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    is_repeatable = STDIN not in words and "--estimate" not in options
    if not has_output or _RESUMED.isdisjoint((*words[:2], *options)) or not is_repeatable:
        return "interrupted; nothing was saved" if has_output else "interrupted"
    command = " ".join(quoted(word) for word in words if word != "--overwrite")
    return f"interrupted; what was done is saved. The same command goes on:\n  bertworks {command}"


def run() -> NoReturn:
    """Run a command and end the process, without the interpreter's shutdown: threads that libraries leave running
    sometimes abort it, with a wrong exit code although everything is saved.
    """
    # A stream that was closed when the process started: its number must not become that of a file, which would get the
    # messages of libraries. Results are written nowhere then.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin, sys.stderr = sys.stdin or os.fdopen(0), sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # for file names that are not UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # as Ctrl-C: trainings save, then end
    code = main()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the reader has closed the pipe; there is no stream
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
