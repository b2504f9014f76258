"""Labelled data -> a fine-tuned model, in one call that can be repeated: finished work is not repeated.

- `finetune_events`: the run, as events; `finetune`: the same, returning a `Predictor`
"""

import hashlib
import shutil
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from bertworks.batching.features import training_groups
from bertworks.checkpoints.model_folder import ModelFolder, check_same_task
from bertworks.checkpoints.resolve import resolve_model
from bertworks.checkpoints.storage import read_json
from bertworks.config import dump_recipe
from bertworks.datasets.reader import Quoting
from bertworks.datasets.schema import TaskType
from bertworks.errors import UsageError
from bertworks.events import Event, duration, forward_events
from bertworks.inference.decoding import make_featurizer
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import refuse_nested, sha256, write_json, write_text
from bertworks.runs.data_splits import LabelledData, describe_task, find_files, read_data
from bertworks.runs.final_evaluation import FinalEvaluation, task_card
from bertworks.runs.finetune_job import FinetuneJob, Prepared, forecast
from bertworks.runs.processes import Processes, training_processes
from bertworks.runs.run_folder import absolute, check_same_request, open_run
from bertworks.runs.task_metrics import metric_of
from bertworks.runs.training_run import TrainingRun
from bertworks.training.device import Precision, best_precision, choose_device, disable_heap_trim
from bertworks.training.recipe import FinetuneRecipe, default_max_length, load_finetune_recipe, resolve_recipe

FINISHED = "finished.json"  # the last event; a folder with it is finished


@dataclass(frozen=True)
class FinetuneRequest:
    """The request of a user: the same one in the same folder resumes, another one is refused.

    data: a file, or a folder with a train and a dev file.
    model: the initial model: `minilm`, a model folder, or the name of a BERT on the Hugging Face hub.
    dev: the dev file; None: that of the folder, or a random tenth of the rows.
    recipe: "stable", "paper", "feature_based", or a TOML file; overrides: `field=value` settings.
    task, text, label: the meaning of the columns; None and (): inferred.
    group: a column; rows with the same value stay on one side of the split.
    metric: the metric that selects the best checkpoint; None: that of the task.
    quoting: whether quote marks enclose cells.
    precision: None: that of the recipe.
    seed: of the new head, the order of the rows and dropout; None: the recipe's.
    new_head: whether the head of a fine-tuned model is replaced by a new one.
    fold: the part of the data, of `folds`, that is the dev data.
    """

    data: str
    model: str = "minilm"
    dev: str | None = None
    recipe: str = "stable"
    overrides: tuple[str, ...] = ()
    task: TaskType | None = None
    text: tuple[str, ...] = ()
    label: str | None = None
    group: str | None = None
    metric: str | None = None
    quoting: Quoting = "auto"
    precision: str | None = None
    seed: int | None = None
    new_head: bool = False
    fold: int | None = None
    folds: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """The inputs: the output must not be inside them."""
        return tuple(filter(None, (self.data, self.dev, self.model if Path(self.model).is_dir() else None)))

    def content(self) -> dict[str, Any]:
        """As JSON, with hashes of the files that it names."""
        content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        inputs = {"data": self.data, "dev": self.dev, "recipe": self.recipe if self.recipe.endswith(".toml") else None}
        for name, path in ((name, Path(path)) for name, path in inputs.items() if path is not None):
            files = list(filter(None, find_files(path, None))) if path.is_dir() else [path]
            if files := [file for file in files if file.is_file()]:
                content[f"{name}_sha256"] = hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()
        return content


def finetune_events(
    output: str | Path,
    request: FinetuneRequest,
    *,
    device: str = "auto",
    overwrite: bool = False,
    data: LabelledData | None = None,
) -> Iterator[Event]:
    """Fine-tunes a model and yields events; `output` becomes a model folder with the checkpoint that is best on dev.

    data: the data of the request, if it is read already; None: it is read here.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is contradictory.
        BertworksError: the data, the model, the disk or the training does not allow it.
    """
    output, device_, content = Path(output), choose_device(device), request.content()
    with training_processes(device_) as processes:
        refuse_nested(output, request.paths)
        if not processes.first:
            processes.meet()  # the first process has created the folder by then, or seen that the run is finished
        resumes = check_same_request(output, content, overwrite and processes.first)
        if resumes and (output / FINISHED).exists():
            if processes.first:
                processes.meet()
            yield _done_event(output)
            return
        recipe_file = output / "recipe.toml"
        recipe = None
        if resumes and recipe_file.exists():
            recipe = load_finetune_recipe(str(recipe_file))
        prepared = prepare(request, device_, recipe, data)
        processes.refuse_to_share(min(prepared.recipe.batch_size, len(prepared.groups)))
        with open_run(output, content, overwrite) if processes.first else nullcontext():
            if processes.first and not recipe_file.exists():
                write_text(recipe_file, dump_recipe(prepared.recipe))
            yield from train(prepared, output, device_, processes)


def prepare(
    request: FinetuneRequest,
    device: torch.device,
    recipe: FinetuneRecipe | None = None,
    data: LabelledData | None = None,
) -> Prepared:
    """Reads and checks everything that a request names, before a folder is created.

    recipe: the resolved recipe of a run that is resumed; None: that of the request.
    """
    if recipe is None:
        seed = () if request.seed is None else (f"seed={request.seed}",)
        recipe = load_finetune_recipe(request.recipe, (*request.overrides, *seed))
        precision = request.precision or recipe.precision
        chosen = best_precision(device) if precision == "auto" else cast(Precision, precision)
        recipe = replace(recipe, precision=chosen)
    folder = ModelFolder(resolve_model(request.model))
    model = folder.load(needs={"encoder"})
    data = data or read_data(
        request.data, dev=request.dev, task=request.task, text=request.text, label=request.label, group=request.group,
        quoting=request.quoting, fold=None if request.fold is None else (request.fold, request.folds),
        whole_documents=recipe.document_context,
    )  # fmt: skip
    metric = metric_of(data.schema.task, request.metric, data.schema.labels)
    recipe = replace(recipe, max_length=default_max_length(recipe, model.config.max_position_embeddings))
    description = describe_task(data, recipe)
    featurize = make_featurizer(description, model.tokenizer)
    train, dev = list(featurize(data.train)), list(featurize(data.dev))
    groups = [group for features in train for group in training_groups(features, description.task)]
    head = None
    if not request.new_head and not {"classifier.weight", "span.weight"}.isdisjoint(model.state):
        head = folder.task_config
        check_same_task(head, description.task, description.labels, request.model, lstm_units=description.lstm_units)
    recipe = resolve_recipe(recipe, len(groups), model.config)
    return Prepared(recipe, data, description, metric, request.model, model, head, groups, train, dev)


def train(prepared: Prepared, output: Path, device: torch.device, processes: Processes) -> Iterator[Event]:
    """The training and the final evaluation. The folder exists and is locked; only the first process writes to it."""
    p, data_report = prepared, prepared.data_report()
    if processes.first:
        write_json(output / "data.json", data_report.as_dict())
    disable_heap_trim()
    evaluation = FinalEvaluation(output, p.description, p.dev, data_report)
    job = FinetuneJob(
        p,
        card=lambda facts: task_card(output, p.description, p.recipe, p.model_name, data_report, facts),
        report=evaluation.report,
    )
    seconds = 0.0
    if processes.first:
        seconds = forecast(job, device, processes.count)  # before the first step that all processes compute together
        processes.meet()
    fields = {"survey": data_report.as_dict(), "recipe": asdict(p.recipe), "estimated_seconds": seconds}
    yield Event("plan", f"{data_report}\n{_plan(p, job, seconds)}", fields)
    done = yield from forward_events(TrainingRun(output, job, device).events())
    if processes.first:
        metrics, text = evaluation.evaluate(device, job.precision, job.saved)
        results = {"figures": metrics, "metric": p.metric, "score": metrics[p.metric]}
        content = {"text": text, "fields": done.fields | results | {"best": done.fields["best"] or {}}}
        write_json(output / FINISHED, content)
        shutil.rmtree(output / "checkpoints")  # a finished run is not resumed
    processes.wait()
    yield _done_event(output)


def _done_event(output: Path) -> Event:
    """The last event of a finished run."""
    content = read_json(output / FINISHED)
    return Event("done", content["text"], content["fields"])


def _plan(p: Prepared, job: FinetuneJob, seconds: float) -> str:
    lstm = f" in the frozen encoder, {p.recipe.lstm_units} units in the LSTM" if p.recipe.lstm_units else ""
    can_end_early = 0 < p.recipe.patience * job.evaluate_every < job.num_steps - job.evaluate_every
    early = f"; ends early after {p.recipe.patience} evaluations without gain" if can_end_early else ""
    return (
        f"model        {p.model_name}: {p.model.config.num_parameters():,} parameters{lstm}\n"
        f"training     {p.recipe.epochs} epochs of {job.train_batches.steps_per_epoch:,} steps, "
        f"{p.recipe.batch_size} at a time, rate {p.recipe.optimizer.learning_rate:g}{early}\n"
        f"time         about {duration(seconds)} on this machine"
    )


def make_finetune_request(data: str | Path, **options: Any) -> FinetuneRequest:
    """The request for `finetune_events`, with absolute paths.

    Args:
        data: a file, or a folder with a train and a dev file.
        options: see `FinetuneRequest`.

    Raises:
        UsageError: standard input, which can be read only once.
    """
    files = {"data": data, "dev": options.get("dev")}
    if "-" in map(str, files.values()):
        raise UsageError("fine-tuning reads its data more than once, standard input can be read only once",
                         hint="write it to a file first")  # fmt: skip
    model, recipe = str(options.get("model", "minilm")), options.get("recipe", "stable")
    options |= {name: absolute(path) for name, path in files.items() if path is not None}
    options |= {name: tuple(options.get(name, ())) for name in ("overrides", "text")}
    options["model"] = absolute(model) if Path(model).is_dir() else model
    options["recipe"] = absolute(recipe) if recipe.endswith(".toml") else recipe
    return FinetuneRequest(**options)


def finetune(
    data: str | Path,
    *,
    model: str | Path = "minilm",
    output: str | Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    **options: Any,
) -> Predictor:
    """Fine-tunes and returns the model that is best on dev: `.predict(texts)`, `.save(folder)`. It takes minutes and
    prints nothing; `finetune_events` shows the progress.

    Args:
        data: a file, or a folder with a train and a dev file.
        output: the run folder; None: a temporary one, deleted together with the returned model.
        options: those of `FinetuneRequest`: dev, task, text, label, recipe, overrides, seed and others.

    Raises:
        UsageError, BertworksError: see `finetune_events`.
    """
    request = make_finetune_request(data, model=model, **options)
    with ExitStack() as stack:
        if output is None:
            output = stack.enter_context(TemporaryDirectory(prefix="bertworks-", ignore_cleanup_errors=True))
        for _ in finetune_events(output, request, device=device, overwrite=overwrite):
            pass
        predictor = Predictor(output, device=device)
        weakref.finalize(predictor, stack.pop_all().close)
    return predictor
