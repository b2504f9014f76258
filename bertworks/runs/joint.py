"""Train one encoder on several labelled data sets (MT-DNN, Liu et al. 2019).

It has a head for each, in one call that can be repeated.

- `JointJob`: what such a fine-tuning trains, and how it is evaluated
- `joint_events`: the run, as events; `finetune_joint`: the same, returning a `Predictor` for each
  task
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import nn

from bertworks.batching.batch import Batch, BatchTarget, StepBatches, joint_sizes, joint_step
from bertworks.checkpoints.resolve import TASKS
from bertworks.config import option_of
from bertworks.errors import BertworksError, UsageError, expect, names_of
from bertworks.events import Event, JsonObject, duration, forward_events
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import local_path, write_text
from bertworks.io.tables import Data
from bertworks.runs.finetune import (
    End,
    Training,
    evaluate_on_dev,
    finetuning,
    forecast_comparison,
    make_finetune_request,
    open_trained,
)
from bertworks.runs.finetune_job import (
    FinetuneJob,
    FinetuneRequest,
    VocabSubset,
    forecast,
    prepare_finetuning,
    run_settings,
    task_name,
)
from bertworks.runs.loggers import logged, require_loggers
from bertworks.runs.report import joint_card, write_task_report
from bertworks.runs.run_folder import Processes
from bertworks.runs.training_run import Job, Progress, TrainingRun
from bertworks.tasks.heads import JointModel, TaskModel
from bertworks.training.loop import TrainableModel
from bertworks.training.recipe import FinetuneRecipe, load_finetune_recipe

# Options of one data set, and their values that mean nothing
_OF_ONE: dict[str, tuple[Any, ...]] = dict.fromkeys(
    ("dev", "task", "text", "label", "group", "positive", "metric"), (None, ())
)
_OF_ONE |= {
    "budget": (None,),
    "method": ("auto", "full"),
    "validation": ("auto", "split"),
    "sweep": (None, ()),
}
_OF_ONE |= {"seeds": (1,), "folds": (0,), "teacher": (None,), "label_descriptions": (None,)}


@dataclass(frozen=True)
class JointRequest:
    """The request of a user, see `FinetuneRequest`.

    tasks: that of each task, by name, in the order of the data; they differ only in their data.
    mix: see `batching.batch.joint_step`.
    """

    tasks: Mapping[str, FinetuneRequest]
    mix: float = 0.0

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the data of all tasks."""
        return tuple(path for request in self.tasks.values() for path in request.paths)

    def content(self) -> JsonObject:
        """Return the request as it is stored in the run folder."""
        return {
            "joint": {name: request.content() for name, request in self.tasks.items()},
            "mix": self.mix,
        }


class JointJob(Job):
    """Several fine-tunings of one encoder, for a `TrainingRun`.

    Each step is a batch of one task.

    jobs: that of each task, by name. They share the encoder, and the rows of its embedding matrix.
    """

    def __init__(
        self, request: JointRequest, device: torch.device, recipe: FinetuneRecipe | None = None
    ):
        """Reads and checks everything that a request names. recipe: as in `FinetuneJob`."""
        self.mix = request.mix
        self.jobs: dict[str, FinetuneJob] = {}
        initial = None  # the model that several tasks start from
        for name, task_request in request.tasks.items():
            _check(recipe or load_finetune_recipe(task_request.recipe, task_request.overrides))
            try:
                prepared = prepare_finetuning(task_request, device, recipe, initial=initial)
                # one recipe for all tasks: the rows of one do not decide
                one_recipe = replace(prepared.recipe, windows=max(0, prepared.recipe.windows))
                prepared = replace(prepared, recipe=one_recipe)
                self.jobs[name] = FinetuneJob(prepared)
            except BertworksError as error:
                raise type(error)(
                    f"task {name}: {error.what}", where=error.where, hint=error.hint
                ) from error
            if not prepared.joint:
                initial = prepared.folder, prepared.model, prepared.joint
        jobs = [*self.jobs.values()]
        self.recipe = jobs[0].recipe
        self.model_name = jobs[0].request.model_name
        self.sizes = [job.train_batches.steps_per_epoch for job in jobs]
        self.steps_per_epoch = sum(joint_sizes(self.sizes, self.mix))
        self.settings = run_settings(replace(self.recipe, cloze_steps=0), self.steps_per_epoch)
        units = [unit for job in jobs for unit in (*job.groups, *job.dev_units)]
        c = jobs[0].model.config
        subset = VocabSubset(units if c.characters is None else [], c.vocab_size)
        for job in jobs:
            job.vocab_subset = subset
            job.config = replace(job.config, vocab_size=len(subset.ids))

    @property
    def min_batch_size(self) -> int:
        """The smallest batch size of the tasks."""
        return min(job.min_batch_size for job in self.jobs.values())

    def network(self) -> JointModel:
        """Return a network with random weights."""
        return JointModel({name: job.network() for name, job in self.jobs.items()})

    def initial_network(self) -> tuple[JointModel, list[str]]:
        """Return the network with which the training starts, and notes."""
        models: dict[str, TaskModel] = {}
        notes: list[str] = []
        for name, job in self.jobs.items():
            models[name], task_notes = job.initial_network()
            notes += [f"task {name}: {note}" for note in task_notes]
        return JointModel(models), notes

    def batches(
        self, plans: Path, rank: int, size: int, note: Callable[[str], None]
    ) -> StepBatches:
        """Return the batches of each step."""
        task_batches = [
            (name, job.batches(plans, rank, size, note)) for name, job in self.jobs.items()
        ]

        def batches(step: int) -> list[Batch]:
            task, number = joint_step(step, self.sizes, self.mix, self.recipe.seed)
            name, make_batches = task_batches[task]
            return [
                replace(batch, targets={name: BatchTarget(*batch.target)})
                for batch in make_batches(number)
            ]

        return batches

    def evaluate(self, network: TrainableModel) -> dict[str, float]:
        """Return the figures of each task as "name/figure".

        "score" is the mean of their metrics.
        """
        task_figures = {
            name: job.evaluate(cast(JointModel, network).task(name))
            for name, job in self.jobs.items()
        }
        loss = fmean(figures["loss"] for figures in task_figures.values())
        score = fmean(task_figures[name][job.metric] for name, job in self.jobs.items())
        named = {
            f"{name}/{figure}": value
            for name, figures in task_figures.items()
            for figure, value in figures.items()
        }
        return {"loss": loss, "score": score, **named}

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Return whether figures are better than the best ones so far."""
        return (figures["score"], -figures["loss"]) > (best["score"], -best["loss"])

    def figures_of_task(self, name: str, figures: Mapping[str, float]) -> dict[str, float]:
        """Return the figures of a task, under their names without that of the task."""
        start = f"{name}/"
        return {
            key.removeprefix(start): value
            for key, value in figures.items()
            if key.startswith(start)
        }

    def describe(self, figures: Mapping[str, float]) -> str:
        """Return the figures of an evaluation in words."""
        return "; ".join(
            f"{name}: {job.describe(self.figures_of_task(name, figures))}"
            for name, job in self.jobs.items()
        )

    def progress(self, step: int) -> Progress:
        """Return how far the training is at a step."""
        flops_per_token = fmean(job.flops_per_token for job in self.jobs.values())
        fields = {"epoch": step / self.steps_per_epoch, "epochs": self.recipe.epochs}
        return Progress(float(step), flops_per_token, fields)

    @property
    def survey(self) -> str:
        """What is known of the data of each task, for people."""
        return "\n".join(f"task {name}\n{job.data_report}" for name, job in self.jobs.items())

    def save(self, folder: Path, network: nn.Module | None, facts: Mapping[str, Any]) -> None:
        """Write a model folder for each task; the first one has the file of the encoder."""
        shared = folder / TASKS / next(iter(self.jobs))
        if network is not None:
            for name, job in self.jobs.items():
                model = cast(JointModel, network).task(name)
                evaluation = self.figures_of_task(name, facts["evaluation"])
                task_facts = {**facts, "evaluation": evaluation}
                job.save_model(folder / TASKS / name, model, task_facts, shared)
        self.write_report(folder)

    def write_report(self, folder: Path, results: str = "") -> None:
        """Write report.html. results: of the final evaluation, for people."""
        write_task_report(folder, "score", f"{results}{self.survey}", None)


def _check(recipe: FinetuneRecipe) -> None:
    """Raises UsageError if a recipe is not for several tasks."""
    expect(
        recipe.epochs,
        f"the recipe {recipe.title} has no number of epochs for several tasks",
        hint="--epochs 5",
    )
    for name in ("lstm_units", "cloze_steps", "lm_weight"):
        expect(
            getattr(recipe, name) <= 0,
            f"{name} is for one task, not for several",
            hint=f"--set {name}=0",
        )


def make_joint_request(
    data: Iterable[str | Path] | Mapping[str, Data], *, mix: float = 0.0, **options: Any
) -> JointRequest:
    """Return the request for `joint_events`, with absolute paths.

    Args:
        data: files or folders, each with the name of its task; or data as in `finetune`, by the
            name of the task.
        mix: batches of all other tasks together, for one of the first; 0: all.
        options: those of `finetune` that are not about one data set.

    Raises:
        UsageError: fewer than two tasks, or two with the same name; an option of one data set.
    """
    for name, neutral in _OF_ONE.items():
        if options.pop(name, None) not in (*neutral, None):
            word = option_of(name)
            raise UsageError(
                f"{word} is for one data set, not for a joint fine-tuning",
                hint=f"leave out {word}",
            )
    options["recipe"] = options.get("recipe") or "mt-dnn"
    expect(0 <= mix < 1e6, f"mix is {mix}: expected 0 or more", hint="--mix 1")
    pairs = (
        [*data.items()]
        if isinstance(data, Mapping)
        else [(task_name(str(part)), part) for part in data]
    )
    expect(
        len(pairs) >= 2, "a joint fine-tuning needs two or more data sets", hint="leave out --joint"
    )
    tasks = {}
    for name, part in pairs:
        expect(
            name not in tasks,
            f"two data sets have the name {name!r}, which is that of their file or folder",
            hint="rename one of them",
        )
        if not name or Path(name).name != name or name.startswith("."):
            raise UsageError(
                f"{name!r} is not a name of a task: expected one that a folder can have"
            )
        tasks[name] = make_finetune_request(part, **options, method="full", validation="split")
    return JointRequest(tasks, mix)


def joint_events(
    output: str | Path,
    request: JointRequest,
    *,
    device: str = "auto",
    overwrite: bool = False,
    compares: bool = True,
    log_to: str | Iterable[str] = (),
) -> Iterator[Event]:
    """Fine-tune one encoder for several tasks and yield events.

    `output/tasks` has a model folder for each.

    Args:
        compares: whether the models are compared with baselines.
        log_to: see `finetune_events`.

    Raises:
        UsageError, BertworksError: as `finetune_events`.
    """
    loggers = require_loggers(names_of(log_to))
    output = local_path(output, "output folder")

    def make_training(processes: Processes, recipe: FinetuneRecipe | None) -> Training:
        job = JointJob(request, processes.device, recipe)
        events = _train(job, output, processes, compares, loggers)
        return Training(job.recipe, job.min_batch_size, events)

    yield from finetuning(
        output, request.content(), request.paths, device, overwrite, make_training
    )


def _train(
    job: JointJob,
    output: Path,
    processes: Processes,
    compares: bool,
    loggers: Sequence[str],
) -> Generator[Event, None, End | None]:
    seconds = 0.0
    fraction = job.steps_per_epoch / sum(job.sizes)  # of the batches of each task that an epoch has
    if processes.first:
        for task_job in job.jobs.values():
            times = forecast(task_job, processes.count)
            seconds += fraction * times.training
            if compares:
                seconds += forecast_comparison(task_job, times)
        processes.meet(output)
    for name, task_job in job.jobs.items():
        yield Event("stage", f"task {name}", {"stage": name})
        yield from task_job.featurize.examples(task_job.train)
    steps = (
        f"{job.recipe.epochs} epochs of {job.steps_per_epoch:,} steps, "
        f"{job.recipe.batch_size} at a time"
    )
    text = f"{job.survey}\ntraining     {steps}, each of one task\n"
    text += f"time         about {duration(max(1, seconds))} on this machine"
    yield Event("plan", text, {"recipe": asdict(job.recipe), "estimated_seconds": seconds})
    run = TrainingRun(output, job, processes.device, processes)
    last_event = yield from forward_events(
        logged(run.events(), loggers, output, asdict(job.recipe), processes.first)
    )
    if not processes.first:
        return None
    results = {}
    summaries = []
    for name, task_job in job.jobs.items():
        results[name], summary = evaluate_on_dev(task_job, output / TASKS / name, compares=compares)
        summaries.append(summary)
    write_text(output / "README.md", joint_card(output, job.recipe, job.model_name, results))
    text = "\n\n".join(summaries)
    job.write_report(output, f"{text}\n\n")
    figures = {name: result["figures"] for name, result in results.items()}
    return text, {**last_event.fields, "figures": figures}, job.recipe


def finetune_joint(
    data: Iterable[str | Path] | Mapping[str, Data],
    *,
    output: str | Path | None = None,
    mix: float = 0.0,
    device: str = "auto",
    overwrite: bool = False,
    progress: bool | None = None,
    log_to: str | Iterable[str] = (),
    **options: Any,
) -> dict[str, Predictor]:
    """Fine-tune one encoder for several tasks, and return a model for each, by name.

    It is MT-DNN (Liu et al. 2019).

    Args:
        data: files or folders, each with the name of its task; or data as in `finetune`, by the
            name of the task.
        output: the run folder; None: a temporary one, deleted together with the returned models.
        mix: batches of all other tasks together, for one of the first; 0: all.
        options: those of `finetune` that are not about one data set; the recipe is "mt-dnn".
        progress: whether one line shows the progress; None: in notebooks.
        log_to: see `finetune_events`.

    Raises:
        UsageError, BertworksError: see `make_joint_request` and `finetune_events`.
    """
    request = make_joint_request(data, mix=mix, **options)
    run = partial(joint_events, request=request, device=device, overwrite=overwrite, log_to=log_to)
    folders = [f"{TASKS}/{name}" for name in request.tasks]
    return dict(
        zip(request.tasks, open_trained(run, output, folders, device, progress), strict=True)
    )
