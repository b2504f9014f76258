"""A model fine-tuned on each task of GLUE, and the table next to published results."""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item, Schema, fitted, items, read_item
from bertworks.datasets.values import EmptyTextError
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.glue_data import (
    COLUMNS,
    GLUE,
    PUBLISHED,
    GlueTaskFiles,
    find_glue_tasks,
    macro_average,
    write_submission,
)
from bertworks.events import Event, forward_events
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import write_text
from bertworks.io.text_files import IssueCounter
from bertworks.metrics.classification import confidence_interval
from bertworks.runs.data_splits import LabelledData
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.trials import plan_trials, run_trials

HALVES = {"dev_matched": "MNLI-m", "dev_mismatched": "MNLI-mm"}


def evaluate_glue(
    data: str | Path,
    output: str | Path,
    *,
    model: str | Path = "minilm",
    tasks: Sequence[str] = (),
    seeds: int = 1,
    seed: int | None = None,
    recipe: str = "stable",
    overrides: Sequence[str] = (),
    device: str = "auto",
    precision: str | None = None,
) -> Iterator[Event]:
    """Fine-tunes on every task that the folder holds, with several seeds, and writes `table.md` and `glue.json` after
    each, at last the submission files for the leaderboard, of the best seed on dev.

    The best state of a training is chosen on the very dev set whose score is reported, as in the paper: the table says
    so. Stopped and called again it goes on where it was.

    Args:
        tasks: names of GLUE's folders; (): all that are there.
        seed: the first of the `seeds`; None: the recipe's.

    Raises:
        UsageError: a name that is no task of GLUE.
        BertworksError: no task is there, or one of those asked for is not.
    """
    output, there = Path(output), _asked(find_glue_tasks(data), tasks, data)
    options = {"model": model, "recipe": recipe, "overrides": overrides, "precision": precision, "seed": seed}
    rows: dict[str, dict[str, Any]] = {}
    for found in there:
        name = found.benchmark.name
        if "train" not in found.files or not found.measured_on:
            yield Event("note", f"{name}: no {'dev' if 'train' in found.files else 'train'} file: left out")
            continue
        trials, told = yield from _trials(found, output / name, options, seeds, device)
        rows |= _measured(found, trials, output / name, device)
        _write(output, rows, str(model), recipe, seeds)
        _submit(found, output, device)
        yield Event("evaluation", f"{name}: {told}", {"task": name, "trials": trials})
    if not rows:
        raise BertworksError("no task has both a train and a dev file", where=str(data))
    text = (output / "table.md").read_text(encoding="utf-8")
    yield Event("done", f"{text}\nwritten to {output}/table.md", {"output": str(output), "columns": rows})


def _asked(there: Sequence[GlueTaskFiles], tasks: Sequence[str], data: str | Path) -> list[GlueTaskFiles]:
    """The tasks asked for, of those that are there; all, if none is named."""
    known, names = [benchmark.name for benchmark in GLUE], [found.benchmark.name for found in there]
    for name in tasks:
        if name not in known:
            raise UsageError(f"{name!r} is no task of GLUE", hint=f"name some of {', '.join(known)}")
        if name not in names:
            raise BertworksError(f"the task {name} is not there", where=str(data))
    return [found for found in there if not tasks or found.benchmark.name in tasks]


def _trials(
    found: GlueTaskFiles, folder: Path, options: Mapping[str, Any], seeds: int, device: str
) -> Generator[Event, None, tuple[list[dict[str, Any]], str]]:
    """The fine-tunings of one task: what trials.json has of them, and their figures in a line."""
    split = found.measured_on[0]
    request = make_finetune_request(
        found.files["train"], dev=found.files[split], metric=found.benchmark.metrics[0], **options
    )
    trials = plan_trials(request, seeds=seeds)
    last = yield from forward_events(run_trials(folder, trials, device=device, data=_read(found, split)))
    return last.fields["trials"], last.text.splitlines()[0]


def _read(found: GlueTaskFiles, split: str) -> LabelledData:
    train, schema = found.read("train")
    dev, dev_schema = found.read(split)
    notes = [f"{found.benchmark.name} of GLUE: learned from {train.name}, judged on {dev.name}"]
    empty = IssueCounter()  # the official train file of QQP has two such rows
    learned, judged = list(items(train, schema, left_out=empty)), list(items(dev, dev_schema, left_out=empty))
    notes += [f"rows without text are left out: {empty}"] if empty.count else []
    return LabelledData(schema, learned, judged, [*notes, *train.notes, *dev.notes])


def _measured(
    found: GlueTaskFiles, trials: Sequence[Mapping[str, Any]], folder: Path, device: str
) -> dict[str, dict[str, Any]]:
    """Columns of the table: the figures of every seed, and what they are figures of."""
    split = found.measured_on[0]
    about = {"split": split, "sampled": found.sampled, "train": found.files["train"].name}
    about |= {"seconds": [trial["seconds"] for trial in trials]}
    name, metrics = found.benchmark.name, found.benchmark.metrics
    columns = {HALVES.get(split, name): [_only(trial["figures"], metrics) for trial in trials]}
    for other in found.measured_on[1:]:  # the other half of MNLI
        reader, schema = found.read(other)
        judged = list(items(reader, schema, left_out=IssueCounter()))
        columns[HALVES[other]] = []
        for trial in trials:
            predictor = Predictor(_model_of(folder, trial), device=device)
            given = [answer["label"] for _, answer in predictor.answers(judged)]
            columns[HALVES[other]].append(found.benchmark.score([item.label for item in judged], given))
    return {column: about | {"metrics": list(metrics), "seeds": figures} for column, figures in columns.items()}


def _model_of(folder: Path, trial: Mapping[str, Any]) -> Path:
    return folder / str(trial["folder"])


def _only(figures: Mapping[str, float], metrics: Sequence[str]) -> dict[str, float]:
    return {name: figures[name] for name in metrics}


def _submit(found: GlueTaskFiles, output: Path, device: str) -> None:
    """The leaderboard's files, of the task's best model."""
    for split in found.benchmark.submissions:
        if split in found.files:
            reader, schema = found.read(split)
            predictor = Predictor(output / found.benchmark.name, device=device)
            asked = list(_rows(reader, schema))
            given = predictor.answers(item for item in asked if item is not None)
            said = "label" if found.benchmark.labels else "value"
            # Every row wants an answer: one that nothing can be read of has any.
            anything = found.benchmark.labels[0] if found.benchmark.labels else 0.0
            answers = [anything if item is None else next(given)[1][said] for item in asked]
            write_submission(output / "submission", found.benchmark, split, answers)


def _rows(reader: RowReader, schema: Schema) -> Iterator[Item | None]:
    """Every row; None for one without text."""
    fitting = fitted(schema, reader, labelled=False)
    for row in reader:
        try:
            yield read_item(row, fitting, labelled=False)
        except EmptyTextError:
            yield None


def _write(output: Path, rows: Mapping[str, Mapping[str, Any]], model: str, recipe: str, seeds: int) -> None:
    content = {"model": model, "recipe": recipe, "seeds": seeds, "columns": rows}
    write_text(output / "glue.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    write_text(output / "table.md", table(rows, model, recipe, seeds))


def table(rows: Mapping[str, Mapping[str, Any]], model: str, recipe: str, seeds: int) -> str:
    """Our row beside the published ones, in per cent; what is missing, sampled or measured otherwise is said below."""
    columns = [name for name in (*COLUMNS, "MNLI") if name in rows or name in COLUMNS]
    ours: dict[str, float] = {}
    cells = {}
    for name, row in rows.items():
        metric = row["metrics"][0]
        found = confidence_interval([100 * figures[metric] for figures in row["seeds"]])
        ours[name] = found.mean
        cells[name] = f"{found.mean:.1f}" + (f" ± {found.margin:.1f}" if found.margin is not None else "")
    average, without = macro_average(ours)
    lines = [f"| | split | {' | '.join(columns)} | average |", "|---|---|" + "---|" * (len(columns) + 1)]
    shown = " | ".join(cells.get(name, "") for name in columns)
    told = f"{average:.1f}" if not without else f"{average:.1f} of {len(GLUE) - len(without)} tasks"
    lines.append(f"| {model}, {seeds} seed{'s' if seeds > 1 else ''} | dev | {shown} | {told} |")
    for row_ in PUBLISHED:
        shown = " | ".join(f"{row_.scores[name]:.1f}" if name in row_.scores else "" for name in columns)
        lines.append(f"| {row_.name} ({row_.source}) | {row_.split} | {shown} | {row_.average or ''} |")
    notes = [f"Recipe {recipe}; the best state of each training chosen on the dev set that is reported. "
             "Means over seeds, ± 95 % interval of the mean."]  # fmt: skip
    metrics = {name: row["metrics"][0] for name, row in rows.items()}
    notes.append("Figures: " + ", ".join(f"{name} {metric}" for name, metric in metrics.items()) + ".")
    if without:
        notes.append(f"Missing from the average: {', '.join(without)}. It does not compare with averages of all tasks.")
    if sampled := [f"{name} ({row['train']})" for name, row in rows.items() if row["sampled"]]:
        notes.append(f"Trained on a sample of the official training set: {', '.join(sampled)}.")
    if odd := [f"{n} on {row['split']}" for n, row in rows.items() if row["split"] not in ("dev", *HALVES)]:
        notes.append(f"Not measured on the official dev set as it is: {', '.join(odd)}.")
    notes += [f"{row_.name} ({row_.source}): {row_.remark}." for row_ in PUBLISHED if row_.remark]
    return "\n".join([*lines, "", *notes]) + "\n"
