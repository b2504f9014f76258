"""A run folder: its files that are no model, and the processes of a training that share it.

- run.json holds the request: the same one resumes, another one is refused
- metrics.jsonl holds the figures of steps and evaluations, which `describe` turns into text
- schedule.jsonl holds the plans of a run with a budget, the first one and each new one
- `Processes` are those that torchrun starts. Collectives have a timeout and occur only in steps.
  Before and after them, all processes meet at a store, where they may wait for hours: the first
  process prepares, evaluates and saves. If one is lost, or does not finish a step in time, the
  others end; `runs.launch` starts all again, and they resume
- `GracefulShutdown`: the signals that end a training
"""

import json
import math
import os
import platform
import shutil
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

import bertworks
from bertworks.checkpoints.resolve import TASKS
from bertworks.checkpoints.storage import RECORD_FILE
from bertworks.errors import BertworksError, UsageError, expect, explain_os_errors, require
from bertworks.events import JsonObject
from bertworks.io.atomic_write import folder_lock, url_of, write_json, write_text
from bertworks.io.inputs import as_path
from bertworks.text.tokenizer_folder import TOKENIZER_FILES
from bertworks.training.budget import Plan
from bertworks.training.objectives import OBJECTIVES, Measure

Value = TypeVar("Value")
STEP_SECONDS = 600.0  # in which all processes finish a step, or a checkpoint before it
STORE_TIMEOUT = timedelta(days=1)  # to reach the store
PARTING_SECONDS = 10.0  # in which the other processes leave the store
PAUSE = 0.05  # seconds between two questions to the store
FILES = (  # of a run folder, besides run.json
    "recipe.toml",
    "metrics.jsonl",
    "report.html",
    "config.json",
    "model.safetensors",
    "README.md",
    "task.json",
    *TOKENIZER_FILES,
    RECORD_FILE,
    "schedule.jsonl",
    "data.json",
    "result.json",
    "errors.csv",
    "finished.json",
    "trials.json",
    "figures.jsonl",
    "loggers.json",
    "table.json",
    "table.md",
)
BITS = "bits_per_character"
BITS_BEFORE = "bits_per_character_before"  # names of figures
FOLDERS = ("checkpoints", "plans", "shards", "tokenizer", "arms", "tensorboard", "wandb", TASKS)


def check_same_request(output: Path, now: Mapping[str, Any], overwrite: bool = False) -> bool:
    """Return whether the folder holds this request already.

    It does not if it is empty, or its run is to be overwritten.

    Raises:
        UsageError: it holds another run, or other files.
    """
    if overwrite and (output / "run.json").exists():
        return False
    old = stored_request(output)
    if old is not None:
        differing = [
            f"\n  {name}: {_show_value(name, there)} there, {_show_value(name, here)} now"
            for name in now
            for there, here in [_first_difference(old.get(name), now[name])]
            if there != here
        ]
        expect(
            not differing,
            f"the folder holds a run with other settings:{''.join(differing)}",
            where=output,
            hint="-o ANOTHER-FOLDER keeps both; --overwrite deletes the present run",
        )
        return True
    strange = (
        [p.name for p in output.iterdir() if not p.name.startswith(".")] if output.is_dir() else []
    )
    expect(
        not strange,
        f"the folder is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
        where=output,
        hint="-o ANOTHER-FOLDER, or empty this one",
    )
    return False


def stored_request(output: Path) -> JsonObject | None:
    """Return the request of the run in a folder, or None if the folder holds no run.

    Raises:
        UsageError: run.json is damaged.
    """
    path = output / "run.json"
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["request"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            "the file is damaged: expected a JSON object with the request of the run",
            where=path,
            hint="-o ANOTHER-FOLDER; or --overwrite, which deletes the run that is there",
        ) from None


@contextmanager
def open_run(
    output: Path,
    request: Mapping[str, Any],
    overwrite: bool,
    inner: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Iterator[None]:
    """Locks the folder in the block, after it has got the request unless it holds it already.

    Args:
        inner: the requests of run folders within this one, by the names of these folders. Runs that
            they hold are deleted together with the former run of this folder.

    Raises:
        UsageError: it holds another run, or other files.
        BertworksError: another process writes to it.
    """
    busy = "process {process} is writing to this run folder"
    with folder_lock(output, busy, "wait for it, stop it, or choose another folder with -o"):
        if not check_same_request(output, request, overwrite):
            for name, inner_request in inner.items():
                if (output / name / "run.json").exists():
                    create_run_folder(output / name, inner_request)
            create_run_folder(output, request)
        yield


def create_run_folder(output: Path, request: Mapping[str, Any]) -> None:
    """Writes the request into a folder, and deletes the run that is there, and no other files.

    Its run.json stays until this request replaces it, so that the remains of a killed process can
    be deleted again.
    """
    if (output / "run.json").exists():
        for name in FOLDERS:
            shutil.rmtree(output / name, ignore_errors=True)
        for name in FILES:
            (output / name).unlink(missing_ok=True)
    write_json(output / "run.json", {"request": request, "versions": versions()})


def absolute(path: str | os.PathLike[str]) -> str:
    """A path or a glob that means the same from every folder, or a URL; "-" is standard input."""
    unchanged = url_of(path) or ("-" if str(path) == "-" else None)
    return unchanged or os.path.abspath(as_path(path))  # noqa: PTH100 - it keeps links


def _first_difference(old: Any, new: Any) -> tuple[Any, Any]:
    """Two values; of texts with several lines, the first ones that differ."""
    if isinstance(old, str) and isinstance(new, str) and "\n" in old:
        pairs = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
        return next(((there, here) for there, here in pairs if there != here), (old, new))
    return old, new


def _show_value(name: str, value: Any) -> str:
    return f"{value[:12]}..." if name.endswith("sha256") and value else repr(value)


def versions() -> dict[str, str]:
    """Return the versions of the software that computes."""
    return {
        "bertworks": bertworks.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


class Metrics(NamedTuple):
    """metrics.jsonl: a line for each logged step, and one with `evaluation` for each evaluation."""

    path: Path

    def record(self, line: Mapping[str, Any]) -> None:
        """Appends a line.

        Raises:
            BertworksError: a full disk, or the file cannot be written.
        """
        what = "the checkpoints are untouched, but metrics cannot be written"
        hint = "make room, or the file writable, and run the same command again"
        with (
            explain_os_errors(what, self.path, hint),
            self.path.open("a", encoding="utf-8") as file,
        ):
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def forget(self, after: int, evaluated: int) -> None:
        """Drop steps after `after` and evaluations after `evaluated`.

        A resumed run repeats them. What follows a damaged line is dropped, too. The file is
        created.
        """
        last = {False: after, True: evaluated}
        lines = [
            line
            for line, step, _, is_evaluation in read_metrics(self.path)
            if step <= last[is_evaluation]
        ]
        write_text(self.path, "".join(f"{line}\n" for line in lines))


def read_metrics(path: Path) -> Iterator[tuple[str, int, dict[str, float], bool]]:
    """Return the lines of metrics.jsonl.

    Each has its step, its numbers, and whether it is an evaluation. They end before the first
    damaged line, such as the incomplete last one of a killed process.
    """
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n") if path.exists() else []
    for line in lines[:-1]:
        try:
            content = json.loads(line)
            step = int(content["step"])
            figures = content.get("evaluation", content)
            numbers = {
                name: float(value)
                for name, value in figures.items()
                if isinstance(value, int | float)
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return
        yield line, step, numbers, "evaluation" in content


def write_plans(folder: Path, plans: Iterable[Plan]) -> None:
    """Writes schedule.jsonl, whole or not at all."""
    write_text(
        folder / "schedule.jsonl", "".join(f"{json.dumps(plan._asdict())}\n" for plan in plans)
    )


def read_plans(folder: Path) -> list[Plan]:
    """Return the plans of schedule.jsonl, in the order of their steps.

    Raises:
        UsageError: the file is missing or damaged.
    """
    path = folder / "schedule.jsonl"
    try:
        return [Plan(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, ValueError, TypeError):
        raise UsageError(
            "the plans of the run are missing or damaged",
            where=path,
            hint="put them back; or -o ANOTHER-FOLDER keeps the present model, --overwrite "
            "starts again",
        ) from None


def finite(figures: Mapping[str, Any]) -> JsonObject:
    """Return the figures with None for numbers that are not finite: JSON has none."""
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()
    }


def named_measures(figures: Mapping[str, float]) -> Iterator[tuple[str, Measure, str]]:
    """Yield the figures of a pre-training's evaluation.

    They are what is predicted, the measure and the name of the figure. Those of longer sequences
    and of each language, if there are any, follow those of their objective.
    """
    longer = sorted(int(name.rpartition("_")[2]) for name in figures if "_loss_at_" in name)
    parts = dict.fromkeys(name.partition("_loss_in_")[2] for name in figures if "_loss_in_" in name)
    for kind, objective in OBJECTIVES.items():
        suffixes = {"": "", **{f"_at_{length}": f" at {length} tokens" for length in longer}}
        for suffix, where in (suffixes | {f"_in_{part}": f" in {part}" for part in parts}).items():
            for m in objective.measures:
                name = f"{kind}_{m.key}{suffix}"
                if name in figures:
                    yield objective.title + where, m, name
    if BITS in figures:
        yield "characters", Measure("bits per character", None, "{:.3f}"), BITS


def compare_bits(folder: Path) -> tuple[dict[str, float], str]:
    """Return bits per character (`runs.adaptation`) before and after a training, and in words.

    A training without an initial model has none.
    """
    rows = [figures for *_, figures, _ in read_metrics(folder / "metrics.jsonl")]
    names = {"before": BITS_BEFORE, "after": BITS}
    figures = {when: row[name] for when, name in names.items() for row in rows if name in row}
    if "after" not in figures:
        return {}, ""
    text = f"bits per character on held-out text: {figures['after']:.3f} after"
    if "before" not in figures:
        return figures, f"{text}; the initial model had no head to compare with"
    return (
        figures,
        f"{text}, {figures['before']:.3f} before ({figures['after'] / figures['before'] - 1:+.1%})",
    )


def describe(figures: Mapping[str, float]) -> str:
    """Return the figures of a pre-training's evaluation as a sentence."""
    parts: dict[str, list[str]] = {}
    for title, m, name in named_measures(figures):
        parts.setdefault(title, []).append(f"{m.name} {m.format.format(figures[name])}")
    return (
        "; ".join(f"{title}: {', '.join(part)}" for title, part in parts.items())
        or "nothing was evaluated"
    )


def terminable() -> AbstractContextManager[None]:
    """SIGTERM raises SystemExit(143) in the block, as Ctrl-C raises KeyboardInterrupt."""

    def leave(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    return signal_handler(leave, signal.SIGTERM)


@contextmanager
def signal_handler(handler: "signal._HANDLER", *signals: int) -> Iterator[None]:
    """A handler for signals in the block.

    Signals are the main thread's: a program that trains in another thread handles them itself.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = [signal.signal(number, handler) for number in signals]
    try:
        yield
    finally:
        for number, former in zip(signals, previous, strict=True):
            signal.signal(number, former)


class GracefulShutdown:
    """Notes SIGINT and SIGTERM.

    A computation ends at once, between two operations, because it changes nothing that a run saves;
    anything else, such as writing a checkpoint, is completed first.

    requested: what ends the process: KeyboardInterrupt, or an exit status of 128 + the signal, as
        in shells; or None.
    """

    def __init__(self) -> None:
        self.requested: BaseException | None = None
        self._computes = False

    def handling(self) -> AbstractContextManager[None]:
        """Handle the signals in the block."""
        return signal_handler(self._note, signal.SIGINT, signal.SIGTERM)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = (
            KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        )
        if self._computes:
            self._computes = False
            raise self.requested

    @contextmanager
    def computing(self) -> Iterator[None]:
        """In the block a signal raises `requested`, until `protect` is called.

        So does one that came before.
        """
        if self.requested:
            raise self.requested
        self._computes = True
        try:
            yield
        finally:
            self._computes = False

    def protect(self) -> None:
        """From here on, parameters change: the rest of the block is completed."""
        self._computes = False


class LostProcessError(BertworksError):
    """Another process of the training ended or hangs: to start all again helps.

    The exit status is sysexits' for that, which `runs.launch` starts again; it does not start
    errors of data or of the command again.
    """

    exit_code = 75

    def __init__(self, what: str):
        super().__init__(
            what, hint="run the same command again: it resumes from the last checkpoint"
        )


def meet_in(store: Store, rank: int, size: int) -> Store:
    """Return the part of a store for this start of all processes, when all are there.

    torchrun keeps its store from one start to the next. What a process of an earlier start has
    left, such as its address, must not be read; but counts of starts differ between machines. So
    the first process names this start, and goes on when each of the others has answered with a word
    that only this start knows.
    """
    start = word = uuid4().hex
    answers = [f"{word}/{other}" for other in range(1, size)]
    if rank == 0:
        store.set("start", word)
        while not store.check(answers):
            time.sleep(0.05)
        store.set(f"{word}/all", " ".join(answer.decode() for answer in store.multi_get(answers)))
    while rank > 0:
        start = store.get("start").decode()
        store.set(f"{start}/{rank}", word)
        if store.check([f"{start}/all"]) and word in store.get(f"{start}/all").decode():
            break
        time.sleep(0.05)
    return PrefixStore(start, store)


def _end_with_parent() -> None:
    """Wait, in a thread, until torchrun was killed, and end this process.

    torchrun could start others in its place.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(LostProcessError.exit_code)


class Processes:
    """The processes that torchrun started, or one process.

    The first one prepares alone; then all join a group.
    """

    def __init__(self, device: torch.device):
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.device = device
        self.rank = int(os.environ.get("RANK", "0"))
        self.first = self.rank == 0
        self._num_meetings = 0
        if self.count > 1:
            require(
                not dist.is_initialized(),
                "a process group exists already",
                hint="do not create one: the training does it",
            )
            is_free = device.type != "cuda" or device.index == int(
                os.environ.get("LOCAL_RANK", device.index or 0)
            )
            expect(
                is_free,
                f"{device} is a single GPU",
                hint="--device cuda: each process uses one of the GPUs",
            )
            store, *_ = next(rendezvous("env://", timeout=STORE_TIMEOUT))
            self._store = meet_in(store, self.rank, self.count)
            if "TORCHELASTIC_RUN_ID" in os.environ:
                threading.Thread(target=_end_with_parent, daemon=True).start()

    def refuse_to_share(self, items: int) -> None:
        """Raise UsageError if a step has fewer items than there are processes."""
        expect(
            items >= self.count,
            f"a step of {items} items cannot be divided among {self.count} processes",
            hint="start fewer processes",
        )

    def meet(self, output: Path) -> None:
        """Wait for all processes, and create the process group.

        Raises:
            UsageError: one of them is on a machine that does not share the output folder, which
                exists.
        """
        if self.count == 1:
            return
        self.wait()
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.count,
            timeout=timedelta(seconds=STEP_SECONDS),
            device_id=self.device if on_gpu else None,
        )
        if os.environ.get("LOCAL_WORLD_SIZE") != str(self.count):
            self._refuse_other_folder(output)

    def _refuse_other_folder(self, output: Path) -> None:
        mark = output / f".shared-{self.from_first(uuid4().hex)}"
        if self.first:
            mark.touch()
        self.wait()
        blind = [""] * self.count
        dist.all_gather_object(blind, "" if mark.exists() else platform.node())
        if self.first:
            mark.unlink()
        names = sorted({*filter(None, blind)})
        expect(
            not names,
            f"{', '.join(names)} cannot see the folder {output.resolve()} of the first process",
            hint="-o FOLDER on a disk that all machines share; the data must have the same path "
            "on all of them",
        )

    def from_first(self, value: Value) -> Value:
        """Return the value that the first process has."""
        values = [value]
        if self.count > 1:
            self.wait()
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def agree(self, is_true: bool) -> bool:
        """Return what the first process says, in a step."""
        if self.count == 1:
            return is_true
        values = torch.tensor([int(is_true)], device=self.device)
        dist.broadcast(values, src=0)
        return bool(values.item())

    def wait(self) -> None:
        """Wait for all processes, as long as it takes.

        Here SIGTERM is handled at once, within torch it is not.
        """
        if self.count == 1:
            return
        self._num_meetings += 1
        meeting = f"meeting {self._num_meetings}"
        self._store.add(meeting, 1)
        while self._store.add(meeting, 0) < self.count:
            time.sleep(PAUSE)

    def part(self) -> None:
        """Let the first process end last: the others read from the store that it may hold."""
        if self.count == 1:
            return
        self._store.add("left", 1)
        end = time.monotonic() + PARTING_SECONDS
        while self.first and self._store.add("left", 0) < self.count and time.monotonic() < end:
            time.sleep(PAUSE)

    def leave(self) -> None:
        """Leave the group."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def training_processes(device: torch.device) -> Iterator[Processes]:
    """The processes of a training, which SIGTERM ends as Ctrl-C does.

    Raises:
        LostProcessError: another process of the training ended, or did not finish a step in time.
    """
    processes = Processes(device)
    try:
        with terminable():
            yield processes
        processes.part()
    except RuntimeError as error:
        # Only NCCL has an exception for a process that does not answer; gloo has texts.
        is_lost = (
            isinstance(error, dist.DistError) or "gloo" in str(error) or "Connection" in str(error)
        )
        if processes.count == 1 or not is_lost:
            raise
        what = "another rank ended; see its error message"
        if "timed out" in str(error).lower():
            what = f"another rank did not finish a step within {STEP_SECONDS:.0f} s"
        raise LostProcessError(what) from error
    finally:
        processes.leave()
