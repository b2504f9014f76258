"""Labelled data -> a fine-tuned model, in one call that can be repeated: finished work is not repeated.

- `finetune_events`: the run, as events; `finetune`: the same, returning a `Predictor`
"""

import json
import shutil
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from bertworks.checkpoints.model_folder import WEIGHTS
from bertworks.checkpoints.storage import read_json
from bertworks.config import dump_recipe, parse_overrides
from bertworks.datasets.schema import TaskType
from bertworks.errors import UsageError, as_path, names_of, quoted
from bertworks.events import Event, duration, forward_events, show_progress
from bertworks.inference.decoding import Decoder, make_featurizer
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import refuse_nested, sha256, write_json, write_text
from bertworks.io.tables import Data, ReadOptions, StoredRows, stored
from bertworks.runs import task_metrics
from bertworks.runs.cross_validation import FOLDER, choose_method
from bertworks.runs.data_splits import LabelledData, Method, Validation
from bertworks.runs.finetune_job import FinetuneJob, FinetuneRequest, forecast, num_tokens
from bertworks.runs.processes import Processes, training_processes
from bertworks.runs.report import write_errors, write_task_report
from bertworks.runs.run_folder import absolute, check_same_request, open_run
from bertworks.runs.training_run import TrainingRun
from bertworks.training.device import choose_device, disable_heap_trim
from bertworks.training.recipe import load_finetune_recipe

WORST = 25  # mistakes on the page; errors.csv has all
# Arguments of `finetune`, and the fields of the recipe
_SETTINGS = {"learning_rate": "optimizer.learning_rate"} | {x: x for x in ("epochs", "batch_size", "max_length")}
FINISHED = "finished.json"  # the last event; a folder with it is finished


def finetune_events(
    output: str | Path,
    request: FinetuneRequest,
    *,
    device: str = "auto",
    overwrite: bool = False,
    data: LabelledData | None = None,
) -> Iterator[Event]:
    """Fine-tunes a model and yields events; `output` becomes a model folder.

    data: the data of the request, if it is read already; None: it is read here.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is contradictory.
        BertworksError: the data, the model, the disk or the training does not allow it.
    """
    output, device_, content = as_path(output, "output folder"), choose_device(device), request.content()
    with training_processes(device_) as processes:
        refuse_nested(output, request.paths)
        if not processes.first:
            processes.meet()  # the first process has created the folder by then, or seen that the run is finished
        resumes = check_same_request(output, content, overwrite and processes.first)
        if not (resumes and (output / FINISHED).exists()):
            recipe_file = output / "recipe.toml"
            recipe = load_finetune_recipe(str(recipe_file)) if resumes and recipe_file.exists() else None
            if processes.count > 1:  # a cross-validation is for few rows, which one process learns in minutes
                method: Method = "full" if request.method == "auto" else request.method
                validation: Validation = "split" if request.validation == "auto" else request.validation
                request = replace(request, method=method, validation=validation)
            job = FinetuneJob(request, device_, recipe, data)
            processes.refuse_to_share(min(job.recipe.batch_size, len(job.groups)))
            with open_run(output, content, overwrite) if processes.first else nullcontext():
                if processes.first and not recipe_file.exists():
                    write_text(recipe_file, dump_recipe(job.recipe))
                yield from _train(job, output, device_, processes)
        elif processes.first:
            processes.meet()
        done = read_json(output / FINISHED)
        yield Event("done", done["text"], done["fields"])


def _train(job: FinetuneJob, output: Path, device: torch.device, processes: Processes) -> Iterator[Event]:
    """The training and the final evaluation. The folder exists and is locked; only the first process writes to it."""
    survey, seconds = job.data_report.as_dict(), 0.0
    disable_heap_trim()
    if processes.first:
        write_json(output / "data.json", survey)
        seconds = forecast(job, device, processes.count)  # before the first step that all processes compute together
        processes.meet()
    fields = {"survey": survey, "recipe": asdict(job.recipe), "estimated_seconds": seconds}
    yield from make_featurizer(job.description, job.model.tokenizer).examples(job.train)
    yield Event("plan", f"{job.data_report}\n{_plan(job, seconds)}", fields)
    job = yield from choose_method(job, output)
    if job.method == "frozen":
        done = _fit(job, output)
    else:
        done = yield from forward_events(TrainingRun(output, job, device).events())
    if processes.first:
        figures, text = evaluate_on_dev(job, output, device)
        results = {"figures": figures, "metric": job.metric, "score": figures[job.metric], "method": job.method}
        content = {"text": text, "fields": done.fields | results | {"best": done.fields["best"] or {}}}
        write_json(output / FINISHED, content)
        for name in ("checkpoints", FOLDER):  # a finished run is not resumed
            shutil.rmtree(output / name, ignore_errors=True)
    processes.wait()


def _fit(job: FinetuneJob, output: Path) -> Event:
    """Writes the model folder of the method "frozen"."""
    begin = time.perf_counter()
    network, _ = job.fit()
    job.save(output, network, {"evaluation": {}, "evaluated": None, "step": 0})
    seconds = time.perf_counter() - begin
    figures = {"folder": str(output), "step": 0, "tokens": num_tokens(job.groups), "seconds": seconds, "best": None}
    return Event("done", f"{output}: a linear head, fitted in {duration(seconds)}", figures)


def evaluate_on_dev(job: FinetuneJob, folder: Path, device: torch.device) -> tuple[dict[str, float], str]:
    """The figures of the model in the folder on dev, and the last message to the user. The best threshold is stored in
    the model. Writes errors.csv, README.md, report.html and last result.json.

    Raises:
        BertworksError: the model cannot be read, or the disk is full.
    """
    d, items, logits = job.description, [features.item for features in job.dev], job.dev_logits(folder, device)
    answers, threshold = list(map(Decoder(d), job.dev, logits)), {}
    if "threshold" in (figures := task_metrics.compute_metrics(d, items, answers)):
        d = replace(d, threshold=task_metrics.best_threshold(answers, figures))
        d.save(folder)
        answers, threshold = list(map(Decoder(d), job.dev, logits)), {"threshold": d.threshold}
    results, wrong = task_metrics.task_results(d, job.dev, answers)
    result = {
        "weights_sha256": sha256(folder / WEIGHTS),
        **results,
        "figures": results["figures"] | threshold,
        "confusion": task_metrics.confusion(d, items, answers),
        "points": task_metrics.points(items, answers) if d.task == "regression" else [],
        "worst": [asdict(mistake) for mistake in wrong[:WORST]],
    }
    write_errors(folder / "errors.csv", d, wrong)
    write_text(folder / "README.md", job.card(folder, result["figures"]))
    write_task_report(folder, job.metric, str(job.data_report), result)
    write_text(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return result["figures"], _summary(folder, result)


def _summary(folder: Path, result: Mapping[str, Any]) -> str:
    lines = [f"{folder}: {task_metrics.format_metrics(result['figures'])} on dev"]
    if result["task"] == "regression":
        errors = [abs(gold - predicted) for gold, predicted in result["points"]]
        lines.append(f"half of the numbers are off by less than {np.median(errors):.3g}")
    elif result["mistakes"]:
        most = f": {result['frequent']}" if result["frequent"] else ""
        lines.append(task_metrics.counted(result["mistakes"], result["rows"]) + most)
    lines.append(f"see {folder / 'report.html'} and {folder / 'errors.csv'}")
    lines.append(f"next: bertworks predict {quoted(folder)} new.csv -o scored.csv")
    return "\n".join(lines)


def _plan(job: FinetuneJob, seconds: float) -> str:
    recipe, every = job.recipe, job.evaluate_every
    lstm = f" in the frozen encoder, {recipe.lstm_units} units in the LSTM" if recipe.lstm_units else ""
    can_end_early = 0 < recipe.patience * every < job.num_steps - every
    early = f"; ends early after {recipe.patience} evaluations without gain" if can_end_early else ""
    return (
        f"model        {job.model_name}: {job.model.config.num_parameters():,} parameters{lstm}\n"
        f"training     {recipe.epochs} epochs of {job.train_batches.steps_per_epoch:,} steps, "
        f"{recipe.batch_size} at a time, rate {recipe.optimizer.learning_rate:g}{early}\n"
        f"time         about {duration(seconds)} on this machine"
    )


def make_finetune_request(data: Data, **options: Any) -> FinetuneRequest:
    """The request for `finetune_events`, with absolute paths.

    Args:
        data: see `finetune`.
        options: the others of `finetune`.

    Raises:
        UsageError: standard input, which can be read only once; a setting that `overrides` has too.
    """
    words = names_of(options.get("overrides"))
    settings = {field: value for name, field in _SETTINGS.items() if (value := options.pop(name, None)) is not None}
    if twice := [field for field in parse_overrides(words) if field in settings]:
        raise UsageError(f"{twice[0]} is set twice: in overrides, and on its own", hint="leave one of them out")
    model, recipe = as_path(options.get("model", "minilm"), "model"), str(options.get("recipe", "stable"))
    files = {"data": data} | ({} if options.get("dev") is None else {"dev": options["dev"]})
    options |= {name: _source(source, "rows" if name == "data" else "dev rows") for name, source in files.items()}
    options |= {name: names_of(options.get(name)) for name in ("text", "label")}
    options["overrides"] = (*words, *(f"{field}={value}" for field, value in settings.items()))
    options["model"] = absolute(model) if model.is_dir() else str(options.get("model", "minilm"))
    options["recipe"] = absolute(recipe) if recipe.endswith(".toml") else recipe
    return FinetuneRequest(**options)


def _source(data: Data, name: str) -> str | StoredRows:
    """The absolute path of a file or folder, or rows in memory."""
    if str(source := stored(data, name)) == "-":
        raise UsageError("fine-tuning reads its data more than once, standard input can be read only once",
                         hint="write it to a file first")  # fmt: skip
    return source if isinstance(source, StoredRows) else absolute(source)


def finetune(
    data: Data, *, dev: Data | None = None, model: str | Path = "minilm", output: str | Path | None = None,
    epochs: int | None = None, learning_rate: float | None = None, batch_size: int | None = None,
    max_length: int | None = None, method: Method = "auto", validation: Validation = "auto",
    task: TaskType | None = None, text: str | Iterable[str] = (), label: str | Iterable[str] = (),
    group: str | None = None, metric: str | None = None, recipe: str | Path = "stable",
    overrides: str | Iterable[str] = (), seed: int | None = None, new_head: bool = False,
    precision: str | None = None, read: ReadOptions = ReadOptions(), device: str = "auto", overwrite: bool = False,
    progress: bool | None = None,
) -> Predictor:  # fmt: skip
    """Fine-tunes and returns the model: `.predict(texts)`, `.save(folder)`. It takes minutes. `finetune_events` gives
    all events.

    Args:
        data: a file; a folder with a train and a dev file; a list of dicts; a dict of columns; a DataFrame of pandas or
            polars, a table of pyarrow or a data set of datasets. The index of a DataFrame is not read.
        dev: the dev data in the same forms; None: that of the folder, or else see `validation`.
        model: the initial model: `minilm`, a model folder, or the name of a BERT on the Hugging Face hub.
        output: the run folder; None: a temporary one, deleted together with the returned model.
        epochs, learning_rate, batch_size, max_length: None: as in the recipe.
        method: "full", "frozen", "cosine", or "auto": see `FinetuneRequest`.
        validation: without dev data: "split", "folds", or "auto": folds for few rows.
        task, text, label: what the columns mean; None or (): inferred.
        group: a column; rows with the same value stay on one side of a split.
        metric: the metric that is reported first; None: that of the task.
        recipe: "stable", "paper", "feature_based", or a TOML file; overrides: `field=value` settings of it.
        seed, precision: None: those of the recipe.
        new_head: whether the head of a fine-tuned model is replaced by a new one.
        read: how files are read.
        progress: whether one line shows the progress; None: in notebooks.

    Raises:
        UsageError, BertworksError: see `finetune_events`.
    """
    names = FinetuneRequest.__dataclass_fields__.keys() | _SETTINGS.keys()
    options = {name: value for name, value in locals().items() if name in names}
    request = make_finetune_request(**options)
    with ExitStack() as stack:
        if output is None:
            output = stack.enter_context(TemporaryDirectory(prefix="bertworks-", ignore_cleanup_errors=True))
        show_progress(finetune_events(output, request, device=device, overwrite=overwrite), progress)
        predictor = Predictor(output, device=device)
        weakref.finalize(predictor, stack.pop_all().close)
    return predictor
