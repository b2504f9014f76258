"""One encoder, several tasks: what a joint fine-tuning trains, and how it is evaluated (MT-DNN, Liu et al. 2019)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import nn

from bertworks.batching.batch import Batch, BatchTarget, joint_sizes, joint_step
from bertworks.checkpoints.resolve import TASKS
from bertworks.errors import BertworksError, UsageError, expect
from bertworks.inference.task_metrics import format_metrics
from bertworks.runs.finetune_job import FinetuneJob, FinetuneRequest
from bertworks.runs.report import write_task_report
from bertworks.training.objectives import TrainableModel
from bertworks.training.recipe import FinetuneRecipe, load_finetune_recipe
from bertworks.training.task_heads import JointModel, TaskModel
from bertworks.training.vocab_subset import VocabSubset


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
        return tuple(path for one in self.tasks.values() for path in one.paths)

    def content(self) -> dict[str, Any]:
        return {"joint": {name: one.content() for name, one in self.tasks.items()}, "mix": self.mix}


class JointJob(FinetuneJob):
    """Several fine-tunings of one encoder, for a `TrainingRun`. Each step is a batch of one task.

    jobs: that of each task, by name. They share the encoder, and the rows of its embedding matrix.
    """

    def __init__(self, request: JointRequest, device: torch.device, recipe: FinetuneRecipe | None = None):
        """Reads and checks everything that a request names. recipe: as in `FinetuneJob`."""
        self.mix, self.jobs = request.mix, dict[str, FinetuneJob]()
        for name, one in request.tasks.items():
            _check(recipe or load_finetune_recipe(one.recipe, one.overrides))
            others = [job for job in self.jobs.values() if not job.joint]  # with the same model
            try:
                self.jobs[name] = FinetuneJob(one, device, recipe, source=others[0].source if others else None)
            except BertworksError as error:
                raise type(error)(f"task {name}: {error.what}", where=error.where, hint=error.hint) from error
        jobs = [*self.jobs.values()]
        self.recipe = recipe = jobs[0].recipe
        self.seed, self.optimizer, self.save_every = recipe.seed, recipe.optimizer, recipe.save_every
        self.precision, self.keeps, self.model_name = jobs[0].precision, recipe.select, jobs[0].model_name
        self.metric, self.evaluates = "score", True
        self.sizes = [job.train_batches.steps_per_epoch for job in jobs]
        self.steps_per_epoch = sum(joint_sizes(self.sizes, self.mix))
        self.num_steps = recipe.epochs * self.steps_per_epoch
        self.evaluate_every = max(1, self.steps_per_epoch // recipe.evaluations)
        self.groups = min((job.groups for job in jobs), key=len)
        units = [unit for job in jobs for unit in (*job.groups, *job.dev_units)]
        subset = VocabSubset(units, jobs[0].model.config.vocab_size)
        for job in jobs:
            job.vocab_subset, job.config = subset, replace(job.config, vocab_size=len(subset.ids))

    def blank(self) -> JointModel:  # type: ignore[override]
        return JointModel({name: job.blank() for name, job in self.jobs.items()})

    def begin(self) -> tuple[JointModel, list[str]]:  # type: ignore[override]
        models, notes = dict[str, TaskModel](), list[str]()
        for name, job in self.jobs.items():
            models[name], some = job.begin()
            notes += [f"task {name}: {note}" for note in some]
        return JointModel(models), notes

    def batches(self, plans: Path, rank: int, size: int, note: Callable[[str], None]) -> Callable[[int], list[Batch]]:
        each = {name: job.batches(plans, rank, size, note) for name, job in self.jobs.items()}
        names = [*each]

        def batches(step: int) -> list[Batch]:
            task, number = joint_step(step, self.sizes, self.mix, self.seed)
            name = names[task]
            return [replace(batch, targets={name: BatchTarget(*batch.target)}) for batch in each[name](number)]

        return batches

    def evaluate(self, network: TrainableModel) -> dict[str, float]:
        """The figures of each task as "name/figure"; "score" is the mean of their metrics."""
        each = {name: job.evaluate(cast(JointModel, network).task(name)) for name, job in self.jobs.items()}
        score = fmean(each[name][job.metric] for name, job in self.jobs.items())
        figures = {f"{name}/{figure}": value for name, some in each.items() for figure, value in some.items()}
        return {"loss": fmean(one["loss"] for one in each.values()), "score": score, **figures}

    def of_task(self, name: str, figures: Mapping[str, float]) -> dict[str, float]:
        """The figures of a task, under their own names."""
        start = f"{name}/"
        return {key.removeprefix(start): value for key, value in figures.items() if key.startswith(start)}

    def describe(self, figures: Mapping[str, float]) -> str:
        return "; ".join(f"{name}: {format_metrics(self.of_task(name, figures))}" for name in self.jobs)

    def flops_per_token(self, step: int) -> float:
        return fmean(job.flops_per_token(step) for job in self.jobs.values())

    @property
    def survey(self) -> str:
        """What is known of the data of each task, for people."""
        return "\n".join(f"task {name}\n{job.data_report}" for name, job in self.jobs.items())

    def save(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        """Writes a model folder of each task; the first one has the file of the encoder."""
        for name, job in self.jobs.items():
            job.shared = folder / TASKS / next(iter(self.jobs))
            figures = self.of_task(name, facts["evaluation"])
            job.save(folder / TASKS / name, cast(JointModel, network).task(name), {**facts, "evaluation": figures})

    def report(self, folder: Path, results: str = "") -> Path:
        return write_task_report(folder, self.metric, f"{results}{self.survey}", None)


def _check(recipe: FinetuneRecipe) -> None:
    """Raises UsageError if a recipe is not for several tasks."""
    if recipe.epochs == 0:
        raise UsageError(f"the recipe {recipe.title} has no number of epochs for several tasks", hint="--epochs 5")
    for name in ("lstm_units", "cloze_steps", "lm_weight"):
        expect(getattr(recipe, name) <= 0, f"{name} is for one task, not for several", hint=f"--set {name}=0")
