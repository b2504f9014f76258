"""The command `bertworks`: threads, error messages and exit codes.

Exit codes: 0 success; 1 a problem with data, model or machine; 2 a wrong command or recipe; 130
Ctrl-C, 143 SIGTERM. `--debug` shows tracebacks. The page that `bertworks` prints without a command
comes from a stored text: this module is imported in a few milliseconds, and imports the parser when
there is a command.
"""

import atexit
import errno
import io
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from bertworks.cli.start_page import print_at_once
from bertworks.errors import BertworksError, UsageError, quoted

_RESUMED = {  # if they are repeated
    "pretrain",
    "finetune",
    "prepare",
    "predict",
    "embed",
    "translate",
    "index",
    "demo",
    "glue",
    "ablation",
    "mlm",
    "--on",
    "--part",
    "--train",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    Args:
        arguments: without the program's name; None: those of the process.
    """
    typed = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in typed
    words = [word for word in typed if word != "--debug"]
    # bertworks starts worker processes itself
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Idle threads spin for some microseconds, then sleep. The default, endless spinning, makes a
    # step tens of times slower when another program uses one of the cores. Without spinning, small
    # networks gain nothing from a second core (docs/experiments).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        if print_at_once(words):
            return 0
        command = _set_threads(words)
        from bertworks.cli import parser

        result = parser.execute(command, debug=debug)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is an error of the command
        return result if isinstance(result, int) else 0
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if debug:
            import traceback

            traceback.print_exc()
        return _report(error, words)


def _set_threads(words: list[str]) -> list[str]:
    """Takes `--threads N` out of the words, and tells the libraries before they are imported.

    An = becomes a space here and for `--model`.

    Raises:
        UsageError: not a number from 1, and not auto.
    """
    both = ("--threads=", "--model=")
    words = [
        part for word in words for part in (word.split("=", 1) if word.startswith(both) else [word])
    ]
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
        raise UsageError(
            f"--threads {count}: expected a number from 1, or auto",
            hint="--threads 1, or --threads auto",
        )
    return words[:place] + words[place + 2 :]


def _report(error: BaseException, words: list[str]) -> int:
    """Print an error in one or two lines to standard error, and return the exit code."""
    from bertworks.cli import console

    say = partial(console.say, is_warning=True)
    if isinstance(error, BertworksError):
        say(f"error: {error}")
        late = _options_behind_dashes(words)
        if late:
            say(f"  note: after -- everything is a file or a text: type {late} before it")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else error.code
        if (
            code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
            and "TORCHELASTIC_RUN_ID" not in os.environ
        ):
            say(_how_to_go_on(words))
        return code if isinstance(code, int) else 1
    if isinstance(error, BrokenPipeError):  # `bertworks ... | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    # of standard output, which has no name: what writes files names them
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError) and (error.filename or error.errno in (*full, errno.EIO)):
        name = error.filename or ("standard output" if error.errno in full else "a disk")
        say(f"error: {name}: {error.strerror or error}")
        return 1
    say(f"error: {type(error).__name__}: {error}")
    command = " ".join(quoted(word) for word in words)
    say(
        "  this is a bug in bertworks: please report it with the output of\n"
        f"  bertworks --debug {command}"
    )
    return 1


def _options_behind_dashes(words: Sequence[str]) -> str:
    """Return the words behind `--` that look like options, which are read as texts there."""
    if "--" not in words:
        return ""
    behind = words[words.index("--") + 1 :]
    return " ".join(word for word in behind if re.fullmatch(r"-[a-z]|--[a-z][a-z-]*(=.*)?", word))


def _how_to_go_on(words: list[str]) -> str:
    """Return the message after Ctrl-C or SIGTERM.

    It names the command that resumes if results were saved, without --overwrite, which would start
    again.
    """
    has_output = not {"-o", "--output", "demo"}.isdisjoint(word.partition("=")[0] for word in words)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    is_repeatable = "-" not in words and "--estimate" not in options
    if not has_output or _RESUMED.isdisjoint((*words[:2], *options)) or not is_repeatable:
        return "interrupted; nothing was saved" if has_output else "interrupted"
    command = " ".join(quoted(word) for word in words if word != "--overwrite")
    return f"interrupted; progress is saved. Resume with:\n  bertworks {command}"


def run() -> NoReturn:
    """Run a command and end the process, without the interpreter's shutdown.

    In it, threads that libraries leave running sometimes abort the process, with a wrong exit code
    although everything is saved.
    """
    # A stream that was closed when the process started: its number must not become that of a file,
    # which would get the messages of libraries. Results are written nowhere then.
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor < 3:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if isinstance(sys.stdout, io.TextIOWrapper):  # for file names that are not UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    # SIGTERM acts as Ctrl-C: trainings save, then end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    code = main()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # The reader may have closed the pipe, or there may be no stream.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
