"""Fine-tune a model on each task of GLUE (Wang et al. 2019), and compare with published results.

- `GLUE`: columns, labels and metrics of each task; `PUBLISHED`: results of other models; both are
  in glue.toml
- `find_glue_tasks`: the tasks in a folder with the layout of the official download. Samples of the
  large training sets (`train-sample`, `heldout-from-train-sample`) are accepted and reported.
- `evaluate_glue`: fine-tuning on all tasks, the table, the files for the leaderboard
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.checkpoints.model_card import render_table
from bertworks.config import packaged_table
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema, items
from bertworks.errors import BertworksError, expect, names_of, require
from bertworks.events import Event, JsonObject, forward_events
from bertworks.inference.predictor import Predictor, rows_with_items
from bertworks.io.atomic_write import local_path, write_json, write_text
from bertworks.io.inputs import IssueCounter, as_path
from bertworks.io.options import ReadOptions
from bertworks.metrics.intervals import resampled
from bertworks.runs.data_splits import LabelledData
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.trials import MAX_TRIALS, interval_of_trials, plan_trials, run_trials
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import row_sums

_SUFFIXES = ("tsv", "csv", "jsonl", "parquet")
COLUMNS = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "WNLI")


class GlueTask(NamedTuple):
    """One task of GLUE, and those of its files that are present.

    The other fields are those of glue.toml.
    """

    name: str  # of its folder
    text: Sequence[Sequence[str]]
    label: Sequence[str] = ("label",)
    labels: Sequence[str] = ()
    metrics: Sequence[str] = ("accuracy",)
    splits: Sequence[str] = ("train", "dev", "test")
    without_header: Sequence[str] = ()
    files: Mapping[str, Path] = {}  # split -> file

    @property
    def submissions(self) -> dict[str, str]:
        """The file that the leaderboard expects, by split."""
        return {
            split: f"{self.column(split)}.tsv" for split in self.splits if split.startswith("test")
        }

    def column(self, split: str) -> str:
        """Return the column of the table for a split."""
        return self.name + {"matched": "-m", "mismatched": "-mm"}.get(split.partition("_")[2], "")

    @property
    def sampled(self) -> bool:
        """Whether the training set is a sample of the official one."""
        return "train" in self.files and self.files["train"].name.split(".")[0] != "train"

    @property
    def measured_on(self) -> tuple[str, ...]:
        """The splits to evaluate: the official dev sets, else the mixed or the held-out one."""
        official = [split for split in self.splits if split.startswith("dev")]
        present = (
            [s for s in splits if s in self.files]
            for splits in (official, ["dev_mixed"], ["heldout"])
        )
        return tuple(next(filter(None, present), ()))

    def read(self, split: str) -> tuple[RowReader, Schema]:
        """Return the rows of a split that is there, and their schema; test splits have no labels.

        Raises:
            BertworksError: the file lacks a column.
        """
        path = self.files[split]
        is_tsv = path.name.split(".")[1] == "tsv"
        has_header = not is_tsv or split not in self.without_header
        reader = RowReader(
            path, ReadOptions(quoting="raw" if is_tsv else "auto", header=has_header)
        )
        return reader, Schema(
            task="classification" if self.labels else "regression",
            text=tuple(_column(reader, names) for names in self.text),
            label=() if split.startswith("test") else (_column(reader, self.label),),
            labels=tuple(self.labels),
        )


_CONTENT = packaged_table(__file__, "glue.toml")
GLUE = tuple(GlueTask(**task) for task in _CONTENT["tasks"])
PUBLISHED: list[JsonObject] = _CONTENT["published"]


def find_glue_tasks(folder: str | Path) -> list[GlueTask]:
    """Return the tasks of GLUE in a folder, in GLUE's order.

    The folder may be that of one task. The folder of a task may be empty.

    Raises:
        BertworksError: there is no folder of any task.
    """
    root = as_path(folder)
    folders = {
        _key(path.name): path
        for path in [root, *(root.iterdir() if root.is_dir() else ())]
        if path.is_dir()
    }
    tasks = [(task, folders[_key(task.name)]) for task in GLUE if _key(task.name) in folders]
    names = ", ".join(task.name for task in GLUE)
    require(
        tasks,
        f"no task of GLUE is here; its folders are {names}",
        folder,
        "name the folder that holds them, such as glue_data",
    )
    tasks_with_files = []
    for task, path in tasks:
        present = {
            tuple(file.name.split(".")[:2]): file
            for file in sorted(path.iterdir())
            if file.is_file()
        }
        # The best file of each split. Every task may have a held-out set, MNLI also a mixed one.
        files: dict[str, Path] = {}
        for split in (*task.splits, "heldout", "dev_mixed"):
            for name in product(_CONTENT["files"].get(split, (split,)), _SUFFIXES):
                if name in present:
                    files.setdefault(split, present[name])
        tasks_with_files.append(task._replace(files=files))
    return tasks_with_files


def _key(name: str) -> str:
    """Return what the names of a folder have in common, such as SST-2, sst2 and sst-2."""
    return name.lower().replace("-", "").replace("_", "")


def _column(reader: RowReader, names: Sequence[str]) -> str:
    """Return the first of these names that is a column."""
    present = [name for name in names if name in reader.columns]
    if present:
        return present[0]
    raise BertworksError(
        f"no column is called {' or '.join(names)}; there are {', '.join(reader.columns)}",
        where=reader.name,
        hint="is this file of another task? Fetch it again from GLUE",
    )


def submission(task: GlueTask, predictions: Iterable[str | float]) -> str:
    """Return the file that the leaderboard expects of a test split.

    It has `index` and `prediction`, one line for each row in the order of the test file. Labels
    stand by name, similarities (STS-B) within 0 and 5 with three digits.
    """
    lines = ["index\tprediction\n"]
    for row, prediction in enumerate(predictions):
        text = prediction if task.labels else f"{min(max(float(prediction), 0.0), 5.0):.3f}"
        lines.append(f"{row}\t{text}\n")
    return "".join(lines)


def evaluate_glue(
    data: str | Path,
    output: str | Path,
    *,
    model: str | Path = "minilm",
    tasks: Sequence[str] = (),
    seeds: int = 1,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    windows: int | None = None,
    recipe: str = "stable",
    overrides: Sequence[str] = (),
    seed: int | None = None,
    device: str = "auto",
    precision: str | None = None,
) -> Iterator[Event]:
    """Fine-tune on every task in the folder with several seeds.

    Write `table.md` and `glue.json` after each task, and its files for the leaderboard, of the seed
    that is best on dev.

    The best checkpoint is chosen on the dev set, and its score on the same set is reported, as in
    the paper; the table says so. An interrupted call resumes when it is repeated.

    Args:
        tasks: names of GLUE's folders; (): all in the folder.
        seed: the first of the `seeds`; None: the recipe's. epochs, learning_rate, batch_size,
            max_length, windows: the same.

    Raises:
        UsageError: a name that is not a task of GLUE; more than MAX_TRIALS seeds.
        BertworksError: the folder has no task, or lacks a named one.
    """
    options = dict(locals())  # the arguments, without those of this function alone
    for argument in ("data", "output", "tasks", "seeds", "device"):
        del options[argument]
    output = local_path(output)
    tasks = names_of(tasks)
    known = [task.name for task in GLUE]
    present = {task.name: task for task in find_glue_tasks(data)}
    expect(
        seeds <= MAX_TRIALS,
        f"{seeds:,} trainings of each task: expected at most {MAX_TRIALS:,}",
        hint="choose a smaller number of --seeds",
    )
    for name in tasks:
        expect(
            name in known, f"{name!r} is not a GLUE task", hint=f"name some of {', '.join(known)}"
        )
        require(
            name in present, f"the task {name} is not there", data, "name the folder that holds it"
        )
    rows: dict[str, JsonObject] = {}
    for name in [name for name in present if not tasks or name in tasks]:
        task = present[name]
        if "train" not in task.files or not task.measured_on:
            missing = "dev" if "train" in task.files else "train"
            yield Event("note", f"{name}: no {missing} file: left out")
            continue
        train, schema = task.read("train")
        dev, dev_schema = task.read(task.measured_on[0])
        empty = IssueCounter()  # the official train file of QQP has two such rows
        train_items = list(items(train, schema, TASKS, left_out=empty))
        dev_items = list(items(dev, dev_schema, TASKS, left_out=empty))
        notes = [f"{name} of GLUE: trained on {train.name}, evaluated on {dev.name}"]
        notes += [f"rows without text are left out: {empty}"] if empty.count else []
        labelled = LabelledData(schema, train_items, dev_items, [*notes, *train.notes, *dev.notes])
        request = make_finetune_request(
            task.files["train"],
            dev=task.files[task.measured_on[0]],
            metric=task.metrics[0],
            **options,
        )
        trials = run_trials(
            output / name, plan_trials(request, seeds=seeds), device=device, data=labelled
        )
        last = yield from forward_events(trials)
        rows |= _figures(task, last.fields, output / name, device)
        text = table(rows, str(model), recipe, seeds)
        write_json(
            output / "glue.json",
            {"model": str(model), "recipe": recipe, "seeds": seeds, "columns": rows},
        )
        write_text(output / "table.md", text)
        # The files for the leaderboard, of the best model of the task.
        key, default = ("label", task.labels[0]) if task.labels else ("value", 0.0)
        for split in [split for split in task.submissions if split in task.files]:
            test_items = [item for _, item in rows_with_items(*task.read(split), IssueCounter())]
            answers = Predictor(output / name, device=device).answers(filter(None, test_items))
            # The leaderboard expects a prediction for every row: a row without text gets any.
            predictions = [
                default if item is None else next(answers)[1][key] for item in test_items
            ]
            path = output / "submission" / task.submissions[split]
            write_text(path, submission(task, predictions))
        summary = last.text.splitlines()[0]
        fields = {"task": name, "trials": last.fields["trials"]}
        yield Event("evaluation", f"{name}: {summary}", fields)
    require(rows, "no task has both a train and a dev file", data, "get the files of GLUE again")
    yield Event(
        "done", f"{text}\nwritten to {output}/table.md", {"output": str(output), "columns": rows}
    )


def _figures(
    task: GlueTask, result: Mapping[str, Any], folder: Path, device: str
) -> dict[str, JsonObject]:
    """Return the columns of the table for a task.

    Each has the figures of every seed, the interval of their mean, and what they are figures of.

    Args:
        result: the fields of the last event of `run_trials`.
    """
    trials = result["trials"]
    split, *other_splits = task.measured_on
    about = {"split": split, "sampled": task.sampled, "train": task.files["train"].name}
    about |= {"seconds": [trial["seconds"] for trial in trials], "metrics": [*task.metrics]}
    columns = {
        task.column(split): [
            {name: trial["figures"][name] for name in task.metrics} for trial in trials
        ]
    }
    intervals = {task.column(split): result["settings"][0]["interval"]}
    for other_split in other_splits:  # the other half of MNLI
        reader, schema = task.read(other_split)
        rows = list(items(reader, schema, TASKS, left_out=IssueCounter()))
        sums_of_trials = []
        for trial in trials:
            predictor = Predictor(folder / str(trial["folder"]), device=device)
            answers = [answer for _, answer in predictor.answers(rows)]
            sums_of_trials.append(row_sums(predictor.description, rows, answers))
        column = task.column(other_split)
        columns[column] = [
            {name: sums[name].value for name in task.metrics} for sums in sums_of_trials
        ]
        scores = [sums[task.metrics[0]] for sums in sums_of_trials]
        scored = [
            {**trial, "score": score.value, "rows": len(rows)}
            for trial, score in zip(trials, scores)
        ]
        intervals[column] = interval_of_trials(scored, [resampled(score) for score in scores])
    return {
        name: {**about, "seeds": seeds, "interval": intervals[name]}
        for name, seeds in columns.items()
    }


def macro_average(row: Mapping[str, float]) -> tuple[float, list[str]]:
    """Return the mean over tasks, and the names of the tasks without a score.

    A row of a table is by `COLUMNS`; MNLI counts once: as "MNLI", else as the mean of those of
    "MNLI-m" and "MNLI-mm" that are there.
    """
    names = [task.name for task in GLUE]
    scores = {
        name: [row[column] for column in (name, f"{name}-m", f"{name}-mm") if column in row]
        for name in names
    }
    means = [sum(values) / len(values) for values in scores.values() if values]
    return sum(means) / len(means), [name for name, values in scores.items() if not values]


def table(rows: Mapping[str, Mapping[str, Any]], model: str, recipe: str, seeds: int) -> str:
    """Return the row of a model next to the published ones, in percent.

    Notes name what is missing, sampled or measured otherwise.
    """
    columns = [name for name in (*COLUMNS, "MNLI") if name in rows or name in COLUMNS]
    metrics = {name: row["metrics"][0] for name, row in rows.items()}
    means = dict[str, float]()
    cells = dict[str, str]()
    for name, row in rows.items():
        scores = [100 * figures[metrics[name]] for figures in row["seeds"]]
        means[name] = sum(scores) / len(scores)
        low, high = (100 * end for end in row["interval"])
        cells[name] = f"{means[name]:.1f} ({low:.1f} to {high:.1f})"
    average, missing = macro_average(means)
    of_tasks = f" of {len(GLUE) - len(missing)} tasks" if missing else ""
    model_row = ("dev", *(cells.get(name, "") for name in columns), f"{average:.1f}{of_tasks}")
    lines: dict[str, object] = {f"{model}, {seeds} seed{'s' if seeds > 1 else ''}": model_row}
    for result in PUBLISHED:
        scores_of_columns = [
            f"{result['scores'][name]:.1f}" if name in result["scores"] else "" for name in columns
        ]
        title = f"{result['name']} ({result['source']})"
        lines[title] = (result["split"], *scores_of_columns, str(result.get("average", "")))
    notes = [
        f"Recipe {recipe}; the best state of each training chosen on the dev set that is reported. "
        "Means over seeds, and their 95 % intervals over dev rows and seeds.",
        f"Figures: {', '.join(f'{name} {metric}' for name, metric in metrics.items())}.",
    ]
    if missing:
        notes.append(
            f"Missing from the average: {', '.join(missing)}. It does not compare with averages "
            "of all tasks."
        )
    sampled = [f"{name} ({row['train']})" for name, row in rows.items() if row["sampled"]]
    if sampled:
        notes.append(f"Trained on a sample of the official training set: {', '.join(sampled)}.")
    odd = [
        f"{name} on {row['split']}"
        for name, row in rows.items()
        if row["split"] in ("heldout", "dev_mixed")
    ]
    if odd:
        notes.append(f"Not measured on the official dev set as it is: {', '.join(odd)}.")
    notes += [f"{r['name']} ({r['source']}): {r['remark']}." for r in PUBLISHED if "remark" in r]
    return render_table(("", "split", *columns, "average"), lines) + "\n" + "\n".join(notes) + "\n"
