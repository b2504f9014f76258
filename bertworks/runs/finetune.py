"""Labelled data -> a fine-tuned model, in one call that can be repeated: finished work is not done again.

- `forecast`: how long it will take, measured before it begins
- `finetune_events`: the run, as events; `finetune`: the same, returning a `Predictor`
"""

import hashlib
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from bertworks.batching.batch import ExampleGroup, collate
from bertworks.batching.features import Features, training_groups
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.checkpoints.resolve import resolve_model
from bertworks.checkpoints.task_config import TaskConfig, check_same_task
from bertworks.checkpoints.training_state import locked
from bertworks.config import dump_recipe, parse_as
from bertworks.datasets.reader import Quoting
from bertworks.datasets.schema import TaskType
from bertworks.errors import UsageError
from bertworks.events import Event, duration, forward_events
from bertworks.inference.decoding import make_featurizer
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import refuse_nested, sha256, write_text
from bertworks.models.initialization import meta_device_init
from bertworks.runs.data_splits import LabelledData, describe_task, find_files, read_data
from bertworks.runs.dataset_report import DatasetReport, make_dataset_report
from bertworks.runs.distributed import Processes
from bertworks.runs.finetune_job import FinalEvaluation, FinetuneJob, InitialModel
from bertworks.runs.run_folder import absolute, check_same_request, create_run_folder, delete_run
from bertworks.runs.signals import terminable
from bertworks.runs.task_card import task_card
from bertworks.runs.task_metrics import metric_of
from bertworks.runs.training_run import TrainingRun
from bertworks.training.budget import time_step
from bertworks.training.device import Precision, best_precision, choose_device, disable_heap_trim
from bertworks.training.finetune_recipe import (
    FinetuneRecipe,
    default_max_length,
    load_finetune_recipe,
    resolve_recipe,
)

CPU_TOKENS = 512  # of the steps that are timed: enough to be fast, few enough to be soon over
_DEVIATION = 0.02  # any numbers take as long; to draw them as for a network that learns takes a second
SECONDS = 0.5  # that are spent on it, or three steps


def forecast(work: FinetuneJob, device: torch.device, processes: int = 1) -> float:
    """Seconds of the whole training, if it does not end early, with all looks at dev: from some steps of a network like
    it, on texts of all its lengths."""
    recipe = work.recipe
    with meta_device_init():
        network = work.network()
    network = network.to_empty(device=device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=_DEVIATION)
    sample = _spread(work.units, recipe.batch_size, recipe.micro_batch_tokens if device.type == "cuda" else CPU_TOKENS)
    batch = collate([one for unit in sample for one in unit]).to(device)
    learned, asked = _tokens(work.units), _tokens([encoded.unit for encoded in work.dev])
    micro, update = time_step(network, recipe.optimizer, work.precision, batch, SECONDS)
    once = 0.0
    if network.features is not None and network.features.remember(work.units):
        network.features.remember(sample)  # as it will be with everything: the encoder is asked once
        above, update = time_step(network, recipe.optimizer, work.precision, batch, SECONDS)
        once, micro = micro - above, above
    looks = -(-work.num_steps // work.evaluate_every)
    passes = recipe.epochs * learned / processes + looks * asked / 3  # a backward pass costs as much as two forward
    return (once * (learned + asked) + micro * passes) / len(batch.input_ids) + update * work.num_steps


def _spread(units: Sequence[ExampleGroup], count: int, tokens: int) -> list[ExampleGroup]:
    """At most so many units, short and long ones as there are, with at most so many tokens; or one."""
    ordered = sorted(units, key=lambda unit: _tokens([unit]))
    count = min(count, len(ordered), max(1, tokens * len(ordered) // _tokens(ordered)))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def _tokens(units: Sequence[ExampleGroup]) -> int:
    return sum(len(one.input_ids) for unit in units for one in unit)


FINISHED = "finished.json"  # what the last event said; a folder that has it is done


@dataclass(frozen=True)
class FinetuneRequest:
    """What a person asked for: the same request in the same folder goes on, another is refused."""

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
    seed: int = 0
    new_head: bool = False
    fold: int | None = None  # of `folds`: the part that is judged on
    folds: int = 0

    @property
    def paths(self) -> tuple[str, ...]:
        """What is read, and must not lie in what is written."""
        return tuple(filter(None, (self.data, self.dev, self.model if Path(self.model).is_dir() else None)))

    def content(self) -> dict[str, Any]:
        """As JSON holds it, with hashes of what it names."""
        content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        read = {"data": self.data, "dev": self.dev, "recipe": self.recipe if self.recipe.endswith(".toml") else None}
        for name, path in ((name, Path(path)) for name, path in read.items() if path is not None):
            files = list(filter(None, find_files(path, None))) if path.is_dir() else [path]
            if files := [file for file in files if file.is_file()]:
                content[f"{name}_sha256"] = hashlib.sha256("".join(map(sha256, files)).encode()).hexdigest()
        return content


@dataclass(frozen=True)
class Prepared:
    """Everything that a fine-tuning needs, read and checked."""

    request: FinetuneRequest
    recipe: FinetuneRecipe
    data: LabelledData
    description: TaskConfig
    beginning: InitialModel
    units: list[ExampleGroup]
    train: list[Features]
    dev: list[Features]

    def survey(self) -> DatasetReport:
        """What a person should know before it begins."""
        return make_dataset_report(
            self.data, self.train, self.dev, self.beginning.model.tokenizer, self.description.max_length
        )


def finetune_events(
    output: str | Path,
    request: FinetuneRequest,
    *,
    device: str = "auto",
    overwrite: bool = False,
    data: LabelledData | None = None,
) -> Iterator[Event]:
    """Fine-tunes a model and yields what happens; `output` becomes a model folder with the best state that was found.

    data: what the request names, where that is read already; None: it is read here.

    Raises:
        UsageError: the folder belongs to a run with other settings, or the request is contradictory.
        BertworksError: the data, the model, the disk or the training does not allow it.
    """
    output, where = Path(output), choose_device(device)
    with terminable(), Processes(where) as processes:
        refuse_nested(output, request.paths)
        if not processes.first:
            processes.meet()  # by then the first has claimed the folder, or found it finished
        going_on = not (overwrite and processes.first) and check_same_request(output, request.content())
        if going_on and (output / FINISHED).exists():
            if processes.first:
                processes.meet()
            yield _finished(output)
            return
        kept = output / "recipe.toml"
        recipe = kept.read_text(encoding="utf-8") if going_on and kept.exists() else None
        prepared = prepare(request, where, recipe, data)
        processes.refuse_to_share(min(prepared.recipe.batch_size, len(prepared.units)))
        with locked(output) if processes.first else nullcontext():
            if processes.first:
                if (overwrite and delete_run(output)) or not going_on:
                    create_run_folder(output, request.content())
                if not kept.exists():
                    write_text(kept, dump_recipe(prepared.recipe))
            yield from train(prepared, output, where, processes)


def prepare(
    request: FinetuneRequest, device: torch.device, kept: str | None = None, data: LabelledData | None = None
) -> Prepared:
    """Reads all that a request names. Whatever of it can be wrong is found here, before a folder is touched.

    kept: the resolved recipe of a run that goes on.
    """
    recipe = load_finetune_recipe(request.recipe, (*request.overrides, f"seed={request.seed}"))
    metric = request.metric
    if request.task and request.task != "tagging":  # whose labels are not known yet
        metric_of(request.task, metric)
    folder = ModelFolder(resolve_model(request.model))
    model = folder.load(needs={"encoder"})
    data = data or read_data(
        request.data, dev=request.dev, task=request.task, text=request.text, label=request.label, group=request.group,
        quoting=request.quoting, fold=None if request.fold is None else (request.fold, request.folds),
        whole_documents=recipe.document_context,
    )  # fmt: skip
    metric_of(data.schema.task, metric, data.schema.labels)
    if kept is not None:
        recipe = parse_as(FinetuneRecipe, kept, "recipe.toml")
    else:
        asked = request.precision or recipe.precision
        precision = best_precision(device) if asked == "auto" else cast(Precision, asked)
        recipe = replace(recipe, precision=precision)
    recipe = replace(recipe, max_length=default_max_length(recipe, model.config.max_position_embeddings))
    description = describe_task(data, recipe)
    reading = make_featurizer(description, model.tokenizer)
    train, dev = list(reading(data.train)), list(reading(data.dev))
    units = [unit for encoded in train for unit in training_groups(encoded, description.task)]
    head = None
    if not request.new_head and not {"classifier.weight", "span.weight"}.isdisjoint(model.state):
        head = folder.task_config
        check_same_task(head, description.task, description.labels, request.model, lstm_units=description.lstm_units)
    beginning = InitialModel(request.model, model, head)
    return Prepared(
        request, resolve_recipe(recipe, len(units), model.config), data, description, beginning, units, train, dev
    )


def train(prepared: Prepared, output: Path, device: torch.device, processes: Processes) -> Iterator[Event]:
    """The training and, with its best state, the examination. The folder is claimed and locked; only the first process
    writes into it."""
    p, found = prepared, prepared.survey()
    if processes.first:
        write_text(output / "data.json", json.dumps(found.as_dict(), indent=2, ensure_ascii=False) + "\n")
    disable_heap_trim()
    examination = FinalEvaluation(output, p.description, p.dev, found)
    work = FinetuneJob(
        p.recipe, p.description, p.beginning, p.units, p.dev, cast(Precision, p.recipe.precision),
        metric=metric_of(p.description.task, p.request.metric, p.description.labels),
        card=lambda facts: task_card(output, p.description, p.recipe, p.request.model, found, facts),
        report=examination.report,
    )  # fmt: skip
    seconds = 0.0
    if processes.first:
        seconds = forecast(work, device, processes.count)  # alone: from now on every step is one of all processes
        processes.meet()
    told = {"survey": found.as_dict(), "recipe": asdict(p.recipe), "estimated_seconds": seconds}
    yield Event("plan", f"{found}\n{_plan(p, work, seconds)}", told)
    done = yield from forward_events(TrainingRun(output, work, device).events())
    if processes.first:
        figures, text = examination.examine(device, cast(Precision, p.recipe.precision), work.saved)
        best: Mapping[str, Any] = done.fields["best"] or {}
        fields = done.fields | {"figures": figures, "metric": work.metric, "score": figures[work.metric], "best": best}
        told = {"text": text, "fields": fields}
        write_text(output / FINISHED, json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        shutil.rmtree(output / "checkpoints")  # nothing is left to go on with; the best state is the model
    processes.wait()
    yield _finished(output)


def _finished(output: Path) -> Event:
    """The last event of a run that is done."""
    told = json.loads((output / FINISHED).read_text(encoding="utf-8"))
    return Event("done", told["text"], told["fields"])


def _plan(p: Prepared, work: FinetuneJob, seconds: float) -> str:
    steps = work.train_batches.steps_per_epoch
    units = p.recipe.lstm_units
    how = f" in the frozen encoder, {units} units in the LSTM above" if units else ""
    early = f"; ends early after {p.recipe.patience} evaluations without gain" if p.recipe.patience else ""
    return (
        f"model        {p.request.model}: {p.beginning.model.config.num_parameters():,} parameters{how}\n"
        f"training     {p.recipe.epochs} epochs of {steps:,} steps, {p.recipe.batch_size} at a time, rate "
        f"{p.recipe.optimizer.learning_rate:g}{early}\n"
        f"time         about {duration(seconds)} on this machine"
    )


def make_finetune_request(
    data: str | Path,
    *,
    model: str | Path = "minilm",
    dev: str | Path | None = None,
    recipe: str = "stable",
    overrides: Sequence[str] = (),
    task: TaskType | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    group: str | None = None,
    metric: str | None = None,
    quoting: Quoting = "auto",
    precision: str | None = None,
    seed: int | None = None,
    new_head: bool = False,
) -> FinetuneRequest:
    """What `finetune_events` is to do. Paths then mean the same from every folder.

    Args:
        data: a file, or a folder with a train and a dev file.
        model: what to begin with: `minilm`, a model folder, or the name of a BERT on the Hugging Face hub.
        dev: a file to judge on; None: the folder's, or a tenth of the rows.
        recipe: "stable", "paper", "features", or a TOML file; overrides: `field=value` words on top of it.
        task, text, label: what the columns mean; None and (): it is guessed.
        group: a column; rows that share its value are not divided between train and dev.
        metric: the figure by which the best state is chosen; None: that of the task.
        quoting: whether quote marks enclose cells.
        seed: of the new head, the order of the rows and dropout; None: the recipe's.
        new_head: whether the head of a model that was fine-tuned before is forgotten.

    Raises:
        UsageError: standard input, which comes only once; no such recipe.
    """
    if str(data) == "-" or str(dev) == "-":
        raise UsageError("fine-tuning reads its data more than once, standard input only comes once",
                         hint="write it to a file first")  # fmt: skip
    name = str(model)
    seed = load_finetune_recipe(recipe, overrides).seed if seed is None else seed
    return FinetuneRequest(
        absolute(data), absolute(name) if Path(name).is_dir() else name, None if dev is None else absolute(dev),
        absolute(recipe) if recipe.endswith(".toml") else recipe, tuple(overrides), task, tuple(text), label, group,
        metric, quoting, precision, seed, new_head,
    )  # fmt: skip


def finetune(
    data: str | Path,
    *,
    model: str | Path = "minilm",
    output: str | Path | None = None,
    device: str = "auto",
    overwrite: bool = False,
    **options: Any,
) -> Predictor:
    """Fine-tunes and returns the model with the best state on dev, ready to answer: `.predict(texts)`, `.save(folder)`.
    It says nothing while it works, which takes minutes; to see what happens, go through `finetune_events`.

    Args:
        data: a file, or a folder with a train and a dev file.
        output: the run folder; None: a temporary one, which lives as long as what is returned.
        options: those of `make_finetune_request`: dev, task, text, label, recipe, overrides, seed and others.

    Raises:
        UsageError, BertworksError: see `finetune_events`.
    """
    request = make_finetune_request(data, model=model, **options)
    folder = Path(tempfile.mkdtemp(prefix="bertworks-") if output is None else output)
    try:
        for _ in finetune_events(folder, request, device=device, overwrite=overwrite):
            pass
        predictor = Predictor(folder, device=device)
    except BaseException:
        if output is None:
            shutil.rmtree(folder)
        raise
    if output is None:
        weakref.finalize(predictor, shutil.rmtree, folder, ignore_errors=True)
    return predictor
