"""The files of a run folder that are no model: run.json, metrics.jsonl and schedule.jsonl.

- run.json holds the request: the same one resumes, another one is refused
- metrics.jsonl holds the figures of steps and evaluations, which `describe` turns into text
- schedule.jsonl holds the plans of a run with a budget, the first one and each new one
"""

import json
import math
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

import bertworks
from bertworks.checkpoints.resolve import TASKS
from bertworks.checkpoints.storage import RECORD_FILE
from bertworks.errors import UsageError, expect, explain_os_errors
from bertworks.io.atomic_write import folder_lock, url_of, write_json, write_text
from bertworks.io.inputs import as_path
from bertworks.text.tokenizer_folder import TOKENIZER_FILES
from bertworks.training.budget import Plan
from bertworks.training.objectives import OBJECTIVES, Measure

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
    "table.json",
    "table.md",
)
BITS = "bits_per_character"
BITS_BEFORE = "bits_per_character_before"  # names of figures
FOLDERS = ("checkpoints", "plans", "shards", "tokenizer", "arms", TASKS)


def check_same_request(output: Path, now: Mapping[str, Any], overwrite: bool = False) -> bool:
    """Return whether the folder holds this request already.

    It does not if it is empty, or its run is to be overwritten.

    Raises:
        UsageError: it holds another run, or other files.
    """
    path = output / "run.json"
    if path.exists():
        if overwrite:
            return False
        old = _read_request(path)
        differing = [
            f"\n  {name}: {_show_value(name, there)} there, {_show_value(name, here)} now"
            for name in now
            for there, here in [_first_difference(old.get(name), now[name])]
            if there != here
        ]
        what = f"the folder holds a run with other settings:{''.join(differing)}"
        hint = "-o ANOTHER-FOLDER keeps both; --overwrite deletes the present run"
        expect(not differing, what, where=output, hint=hint)
        return True
    strange = (
        [p.name for p in output.iterdir() if not p.name.startswith(".")] if output.is_dir() else []
    )
    what = f"the folder is not empty and holds no run: {', '.join(sorted(strange)[:5])}"
    expect(not strange, what, where=output, hint="-o ANOTHER-FOLDER, or empty this one")
    return False


def stored_request(output: Path) -> dict[str, Any] | None:
    """Return the request of the run in a folder, or None if the folder holds no run.

    Raises:
        UsageError: run.json is damaged.
    """
    path = output / "run.json"
    return _read_request(path) if path.exists() else None


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
    return unchanged or os.path.abspath(as_path(path).expanduser())  # noqa: PTH100 - it keeps links


def _read_request(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["request"])
    except (ValueError, KeyError, TypeError):
        what = "the file is damaged: expected a JSON object with the request of the run"
        hint = "-o ANOTHER-FOLDER; or --overwrite, which deletes the run that is there"
        raise UsageError(what, where=str(path), hint=hint) from None


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
        what = "the checkpoints are untouched, but figures cannot be written"
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
        hint = (
            "put them back; or -o ANOTHER-FOLDER keeps the present model, --overwrite starts again"
        )
        raise UsageError(
            "the plans of the run are missing or damaged", where=str(path), hint=hint
        ) from None


def finite(figures: Mapping[str, Any]) -> dict[str, Any]:
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
                name = f"{kind}_{m.name}{suffix}"
                if name in figures:
                    yield objective.title + where, m, name
    if BITS in figures:
        yield "characters", Measure("bits per character", lambda stats: stats.loss, "{:.3f}"), BITS


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
