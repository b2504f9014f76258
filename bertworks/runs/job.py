"""What a `TrainingRun` knows of a training: its `Job`, and the `RunSettings` of that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from torch import nn

from bertworks.batching.batch import Batch
from bertworks.training.budget import Schedule
from bertworks.training.device import Precision
from bertworks.training.loop import TrainableModel
from bertworks.training.recipe import OptimizerConfig


@dataclass(frozen=True)
class RunSettings:
    """How long a training takes, and when it is evaluated and saved.

    All counts are steps.

    evaluate_every: 0: so that there are `training_run.EVALUATIONS`.
    save_every: 0: by time.
    keeps: which of the evaluated states is in the model folder.
    evaluates: whether there are held-out data. evaluates_start: whether the initial state is
        evaluated too, and may be the best one.
    patience: the training ends after this number of steps without a better evaluation, of which
        those before `patience_start` do not count; 0: it does not end early.
    """

    optimizer: OptimizerConfig
    seed: int
    precision: Precision
    num_steps: int
    evaluate_every: int = 0
    save_every: int = 0
    keeps: Literal["last", "best"] = "last"
    evaluates: bool = True
    evaluates_start: bool = False
    patience: int = 0
    patience_start: int = 0

    def should_stop(self, evaluated: int, best: int) -> bool:
        """Return whether a training ends early after the evaluation of a step.

        Args:
            evaluated: the step. best: the step of the best evaluation.
        """
        return 0 < self.patience <= evaluated - max(best, self.patience_start)


class Progress(NamedTuple):
    """How far a training is after a number of steps.

    cost: of these steps, in any unit.
    flops_per_token: the arithmetic of the last of them.
    fields: of the event of that step, such as its epoch.
    """

    cost: float
    flops_per_token: float
    fields: dict[str, Any]


class Job(Protocol):
    """What a `TrainingRun` trains, evaluates and saves.

    Its methods are functions of their arguments and of the plan that it follows, so that a resumed
    run gets the same results.
    """

    @property
    def schedule(self) -> Schedule | None:
        """The schedule of a run with a budget."""

    @property
    def settings(self) -> RunSettings:
        """How the run evaluates and saves."""

    def network(self) -> TrainableModel:
        """Return a network with random weights."""

    def initial_network(self) -> tuple[TrainableModel, list[str]]:
        """Return the network with which the training begins, and notes for the user."""

    def batches(
        self, plans: Path, rank: int, size: int, note: Callable[[str], None]
    ) -> Callable[[int], list[Batch]]:
        """Return a function from the number of a step to its micro-batches.

        Args:
            plans: the folder for what is computed once.
            rank: the number of this process, of `size`.
            note: is called with notes for the user.
        """

    def baseline(self) -> tuple[str, dict[str, Any]] | None:
        """Return the figures of a trivial prediction, with a note; None if there is none."""

    def evaluate(self, network: TrainableModel) -> dict[str, float]:
        """Return figures on held-out data."""

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        """Return whether figures are better than the best ones until now."""

    def describe(self, figures: Mapping[str, float]) -> str:
        """Return figures in words."""

    def progress(self, step: int) -> Progress:
        """Return how far the training is after this number of steps."""

    def save(self, folder: Path, network: nn.Module | None, facts: Mapping[str, Any]) -> None:
        """Write the report, and before it the model folder unless the network is None.

        Args:
            facts: the `facts` of the `TrainingRun`, with the number of steps as `step`.
        """
