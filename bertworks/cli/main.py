"""The command `bertworks`: its verbs, and the boundary where errors become messages and exit codes.

0: done. 1: the data, a model or the machine does not allow it. 2: typed wrongly. 130: stopped by Ctrl-C. A traceback is
shown with `--debug` only. Nothing heavy is imported before a verb runs, so that help and completion answer at once.
"""

import atexit
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from cyclopts import App, CycloptsError

from bertworks import __version__
from bertworks.cli import finetune, inference, models, pretrain, search
from bertworks.cli.console import say
from bertworks.errors import BertworksError
from bertworks.io.text_files import STDIN
from bertworks.runs.signals import GracefulShutdown

_VERBS: tuple[Callable[..., object], ...] = (
    pretrain.vocab,
    pretrain.prepare,
    pretrain.pretrain,
    finetune.check,
    finetune.finetune,
    finetune.predict,
    inference.fill,
    inference.score,
    inference.explain,
    search.embed,
    search.index,
    search.search,
    models.serve,
    models.export,
    models.import_,
    models.convert,
    models.push,
    models.doctor,
    models.demo,
)
_EPILOGUE = "Every verb has its own --help. --debug, anywhere, shows the traceback of an error."


def make_app() -> App:
    """The parser with all verbs; it prints nothing of its own accord but help and version."""
    app = App(
        name="bertworks",
        help="BERT from your own raw text: vocabulary, pre-training, fine-tuning, answers.",
        help_epilogue=_EPILOGUE,
        help_format="plaintext",
        version=__version__,
        print_error=False,
        exit_on_error=False,
        verbose=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    app.register_install_completion_command()
    for place, verb in enumerate(_VERBS):
        app.command(verb, help=_joined(verb), sort_key=place)
    evaluate = App(name="evaluate", help="Measure a model, or answers, on what it was not trained on.", sort_key=11.5)
    for measure in (
        inference.mlm,
        inference.blimp,
        inference.task,
        inference.squad,
        inference.glue,
        search.sts,
        search.retrieval,
    ):
        evaluate.command(measure, help=_joined(measure))
    app.command(evaluate)
    return app


def _joined(verb: Callable[..., object]) -> str:
    """The docstring with its lines joined, so that help breaks them where the terminal ends."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (verb.__doc__ or "").split("\n\n"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. `arguments` without the program's name; those of the process where None."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [STDIN if word == "-" else word for word in words if word != "--debug"]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # worker processes are ours to start
    # Waiting threads look for work for some microseconds, then sleep. By default they look on, which makes a step tens
    # of times slower as soon as another program wants one of the cores; asleep at once, small networks gain nothing
    # from a second core (docs/diary.md).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        result = make_app()(words)
        return result if isinstance(result, int) else 0
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        return _explain(error, words)


def _explain(error: BaseException, words: list[str]) -> int:
    """Say what went wrong in one or two lines of standard error; the exit code."""
    if isinstance(error, BertworksError):
        say(f"error: {error}")
        return error.exit_code
    if isinstance(error, CycloptsError):
        chain = " ".join(["bertworks", *(error.command_chain or ())])
        say(f"error: {error}\n  hint: {chain} --help")
        return 2
    if isinstance(error, KeyboardInterrupt):
        say("stopped")
        return 130
    if isinstance(error, BrokenPipeError):  # `bertworks ... | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if isinstance(error, OSError) and error.filename:
        say(f"error: {error.filename}: {error.strerror or error}")
        return 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):  # of standard output
        say(f"error: {error.strerror}")
        return 1
    say(f"error: {type(error).__name__}: {error}")
    typed = " ".join("-" if word == STDIN else word for word in words)
    say(f"  this is a fault of bertworks; please report it with the output of\n  bertworks --debug {typed}")
    return 1


def run() -> NoReturn:
    """The whole process: one command, then out. Not by the interpreter's own way: threads that libraries leave running
    now and then abort a process while it takes itself down, with everything saved and an exit code that says otherwise.
    """
    GracefulShutdown.ends_process = True
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file name that is not UTF-8 is shown as well as can be
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main()
    except SystemExit as error:  # a signal, after the run was saved
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads any more
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
