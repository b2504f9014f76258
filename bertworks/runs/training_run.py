"""Run a training in its run folder.

It goes from its newest checkpoint to its last step, with checkpoints on the way.

The folder is a model folder at all times (config.json, model.safetensors, tokenizer, README.md),
with recipe.toml, metrics.jsonl, report.html, `checkpoints/` and `plans/`, and with a budget
schedule.jsonl. A `Job` says what is trained, its `RunSettings` how long.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from bertworks.batching.batch import Prefetched, StepBatches
from bertworks.checkpoints.training_state import Checkpoint, latest_checkpoint, save_checkpoint
from bertworks.errors import BertworksError, expect
from bertworks.events import Event, JsonObject, duration
from bertworks.io.atomic_write import remove_leftovers
from bertworks.io.system import flush_to_disk
from bertworks.models.layers import meta_device_init
from bertworks.models.memory import Memory
from bertworks.runs.run_folder import (
    GracefulShutdown,
    Metrics,
    Processes,
    finite,
    read_metrics,
    write_plans,
)
from bertworks.training.budget import MEMORY, Pace, Schedule
from bertworks.training.device import (
    DTYPES,
    THREADS,
    HeapTrimmer,
    Precision,
    fixed_order,
    measure_matmul,
)
from bertworks.training.loop import LossStats, Step, TrainableModel, make_optimizer, train
from bertworks.training.objectives import ACCURACY, OBJECTIVES, figures
from bertworks.training.recipe import OptimizerConfig

EVALUATIONS = 20
SAVE_SECONDS = 120.0
MOST_LINES = 10_000
RECENT_SECONDS = 60.0  # over which the speed is averaged for the time left, without a budget
STOP_AFTER = 3  # steps in a row whose loss or gradient is not finite


@dataclass(frozen=True)
class RunSettings:
    """How long a training takes, and when it is evaluated and saved.

    All counts are steps.

    evaluate_every: 0: so that there are `training_run.EVALUATIONS`.
    save_every: 0: by time.
    keeps: which of the evaluated states is in the model folder.
    saves_best: whether a state that is better than those before it is saved at once.
    evaluates: whether there are held-out data. evaluates_start: whether the initial state is
        evaluated too, and may be the best one.
    patience: the training ends after this number of steps without a better evaluation, of which
        those before `patience_start` do not count; 0: it does not end early.
    average: at the end the mean of the parameters at the last evaluations, this many, is evaluated
        too, and may be the best state; 0: there is no mean.
    learned_loss: the training winds down once its loss has stayed below this for `learned_steps`
        steps; 0: it does not.
    """

    optimizer: OptimizerConfig
    seed: int
    precision: Precision
    num_steps: int
    evaluate_every: int = 0
    save_every: int = 0
    keeps: Literal["last", "best"] = "last"
    saves_best: bool = True
    evaluates: bool = True
    evaluates_start: bool = False
    patience: int = 0
    patience_start: int = 0
    average: int = 0
    learned_loss: float = 0.0
    learned_steps: int = 0

    def should_stop(self, evaluated: int, best: int) -> bool:
        """Return whether a training ends early after the evaluation of a step.

        Args:
            evaluated: the step. best: the step of the best evaluation.
        """
        return 0 < self.patience <= evaluated - max(best, self.patience_start)

    def last_step(self, learned: int | None) -> int:
        """Return the number of steps of the whole training.

        Args:
            learned: the step after which it winds down, or None. The learning rate then falls to
                the end of its schedule in a tenth of the steps done.
        """
        if learned is None:
            return self.num_steps
        return min(self.num_steps, learned + max(1, learned // 10))

    def position(self, step: int, learned: int | None) -> float:
        """Return where a step stands in the schedule of `num_steps` steps.

        Args:
            learned: see `last_step`.
        """
        if learned is None or step <= learned:
            return float(step)
        share = (step - learned) / (self.last_step(learned) - learned)
        return learned + share * (self.num_steps - learned)


class Progress(NamedTuple):
    """How far a training is after a number of steps.

    cost: of these steps, in any unit.
    flops_per_token: the arithmetic of the last of them.
    fields: of the event of that step, such as its epoch.
    """

    cost: float
    flops_per_token: float
    fields: JsonObject


class Job(Protocol):
    """What a `TrainingRun` trains, evaluates and saves.

    Its methods are functions of their arguments and of the plan that it follows, so that a resumed
    run gets the same results.

    schedule: of a run with a budget; None: there is no budget.
    settings: how the run evaluates and saves.
    """

    schedule: Schedule | None = None
    settings: RunSettings

    def network(self) -> TrainableModel:
        """Return a network with random weights."""

    def initial_network(self) -> tuple[TrainableModel, list[str]]:
        """Return the network with which the training begins, and notes for the user."""

    def initial_memory(self, device: torch.device) -> Memory | None:
        """Return the memory of the network before the first step; None: it has none."""
        return None

    def batches(
        self, plans: Path, rank: int, size: int, note: Callable[[str], None]
    ) -> StepBatches:
        """Return a function from the number of a step to its micro-batches.

        Args:
            plans: the folder for what is computed once.
            rank: the number of this process, of `size`.
            note: is called with notes for the user.
        """

    def baseline(self) -> tuple[str, JsonObject] | None:
        """Return the figures of a trivial prediction, with a note; None if there is none."""
        return None

    def evaluate(self, network: TrainableModel) -> dict[str, float]:
        """Return figures on held-out data."""

    def evaluate_trained(self, network: TrainableModel) -> dict[str, float]:
        """Return further figures, of a network that has been trained for one step or more.

        They mean nothing at random weights, or are expensive then.
        """
        return {}

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


class TrainingRun:
    """A training: `for event in TrainingRun(...).events()` trains.

    Stopping the iteration stops the run after its step.

    The tensors of `_state` and the values of `facts` decide everything that follows, and a
    checkpoint holds both: a resumed run equals one that was never interrupted.
    """

    def __init__(
        self,
        folder: Path,
        job: Job,
        device: torch.device,
        processes: Processes | None = None,
    ):
        self.folder = folder
        self.job = job
        self.device = device
        self.processes = processes or Processes(device)
        self.memory = HeapTrimmer(device)
        self.shutdown = GracefulShutdown()
        self.metrics = Metrics(folder / "metrics.jsonl")
        checkpoint, damaged = latest_checkpoint(folder / "checkpoints")
        instead = (
            "using the newest checkpoint before it" if checkpoint else "there is none before it"
        )
        self.notes = [
            Event("note", f"{path}: {why}; {instead}", is_warning=True)
            for path, why in damaged.items()
        ]
        if checkpoint:
            with meta_device_init():
                self.model: TrainableModel = job.network().to_empty(device=device)
        elif last := max((step for _, step, _, _ in read_metrics(self.metrics.path)), default=0):
            raise BertworksError(
                f"the run was at step {last:,}, but its checkpoints are missing",
                where=folder / "checkpoints",
                hint="put them back; or -o ANOTHER-FOLDER keeps the present model, --overwrite "
                "starts again",
            )
        else:
            network, notes = job.initial_network()
            self.model = network.to(device)
            self.notes += [Event("note", text) for text in notes]
        self.model.memory = job.initial_memory(device)
        self.optimizer = make_optimizer(self.model, job.settings.optimizer)
        self.step = 0
        self._evaluation_seconds = 0.0
        self._save_seconds = 0.0  # of the last ones
        self.schedule = job.schedule
        memory = MEMORY * self.schedule.seconds if self.schedule else RECENT_SECONDS
        # A plan expects the speed that was measured.
        self._pace = Pace(memory, (memory, memory) if self.schedule else (0.0, 0.0))
        self.facts: JsonObject = {
            "recipe_sha256": hashlib.sha256((folder / "recipe.toml").read_bytes()).hexdigest(),
            "tokens": 0,
            "seconds": 0.0,  # of training alone
            "threads": None,  # on the CPU: another number gives other last bits
            "evaluated": None,  # the step of the last evaluation
            "evaluation": {},  # its figures
            "best": None,  # the step and the figures of the best evaluation
            "low_since": None,  # the first of the last steps whose losses are all low
            "learned": None,  # the step after which the training winds down
        }
        # Skipped steps, whose loss or gradient was not finite: all, the last ones in a row, the
        # most in a row.
        self.skipped = torch.zeros(3, device=device)
        # The sum of the parameters at the last evaluations, by name, and their number.
        self._sums: dict[str, Tensor] = {}
        self._num_summed = torch.zeros(1, device=device)
        if job.settings.average:
            self._sums = {name: torch.zeros_like(p) for name, p in self.model.named_parameters()}
        self._mean_model: TrainableModel | None = None  # of these, if it is better at the end
        self.saved: int | None = None  # the step of the last checkpoint
        # A GPU computes on while a thread writes a checkpoint, and while another makes the next
        # batches.
        self._writer = ThreadPoolExecutor(1) if device.type == "cuda" else None
        self._writing: tuple[int, Future[Path]] | None = None  # the step of the checkpoint
        self._ahead: Prefetched | None = None
        num_steps = job.settings.num_steps
        self.evaluate_every = job.settings.evaluate_every or max(1, -(-num_steps // EVALUATIONS))
        # Reading figures waits for the GPU, so it is done rarely.
        self.read_every = 10 if device.type == "cuda" else 1
        self.log_every = self.read_every * max(1, -(-num_steps // (MOST_LINES * self.read_every)))
        if checkpoint:
            self._restore(checkpoint)

    def events(self) -> Iterator[Event]:
        """Trains to the end.

        Ctrl-C and SIGTERM save, then raise KeyboardInterrupt and SystemExit.
        """
        batches = self._batches()
        yield from self.notes
        if self.processes.first:
            remove_leftovers(self.folder / "checkpoints")
            self.metrics.forget(
                self.step, -1 if self.facts["evaluated"] is None else self.facts["evaluated"]
            )
        held = THREADS.hold(self.facts["threads"])
        with self.shutdown.handling(), fixed_order(self.device) as is_fixed, held as threads:
            if not is_fixed:
                yield Event(
                    "note", "BERTWORKS_DETERMINISTIC=0: the last bits differ from run to run"
                )
            if self.facts["threads"] not in (None, threads):
                yield Event(
                    "note",
                    f"{threads} threads, before {self.facts['threads']}: the last bits may differ",
                )
            self.facts["threads"] = threads
            try:
                yield from self._train(batches)
                yield from self._written(waits=True)
            except (KeyboardInterrupt, SystemExit, RuntimeError) as error:
                # A RuntimeError: another process left before this one.
                if not self.shutdown.requested or (
                    isinstance(error, RuntimeError) and self.processes.count == 1
                ):
                    raise
                # Before the first step there is nothing to save. The lanes of a memory can be
                # gathered only in a step, which other processes may not finish.
                is_whole = self.model.memory is None or self.processes.count == 1
                if self.step and self.saved != self.step and is_whole:
                    yield from self._save()
                yield from self._written(waits=True)
                raise self.shutdown.requested from None
            finally:
                if self._writer:
                    self._writer.shutdown()  # the folder is ours until the checkpoint is complete
        yield self._done()

    def _train(self, batches: StepBatches) -> Iterator[Event]:
        overdue = self._should_evaluate() and self.facts["evaluated"] != self.step
        if overdue:
            yield from self._evaluate()
        if overdue or self.saved is None:
            yield from self._save()
        if self._is_over():
            return
        settings = self.job.settings
        steps = train(
            self.model,
            self.optimizer,
            batches,
            settings.optimizer,
            sum(self.schedule.plans[0].steps) if self.schedule else settings.num_steps,
            precision=settings.precision,
            seed=settings.seed,
            start=self.step,
            before_update=self.shutdown.protect,
            position=self.schedule.position if self.schedule else self._position,
        )
        self._matmul_speed = measure_matmul(DTYPES[settings.precision], self.device)
        saved = time.perf_counter()
        self._logged = (self.facts["tokens"], self.facts["seconds"])
        last = saved
        while not self._is_over():
            begin = time.perf_counter()
            with self.shutdown.computing():
                step = next(steps)
            if THREADS.training_adapts:
                self.facts["threads"] = THREADS.adapt()
            self._count(step)
            is_last = self.step == self._last_step
            means = step.read() if is_last or self.step % self.log_every == 0 else None
            now = time.perf_counter()
            self.facts["seconds"] += now - begin
            cost = self.job.progress(self.step).cost - self.job.progress(self.step - 1).cost
            self._pace.add(now - last, cost)
            last = now
            if means:
                yield from self._look_at_loss(means)
                yield self._step_event(step, means)
            if (is_last or self.step % self.read_every == 0) and self.skipped[
                2
            ].item() >= STOP_AFTER:
                raise self._diverged(
                    f"loss or gradient was not finite in {STOP_AFTER} steps in a row"
                )
            yield from self._plan_again()
            if self._should_evaluate():
                yield from self._evaluate()
                last = time.perf_counter()
            yield from self._written()
            is_due = self._should_save(time.perf_counter() - saved)
            best = self.facts["best"]
            is_best = best is not None and best["step"] == self.step
            if self._is_over() or is_due or (settings.saves_best and is_best):
                yield from self._save()
                saved = last = time.perf_counter()

    def _plan_again(self) -> Iterator[Event]:
        """Plans the rest of a run with a budget again, where the speed has changed.

        The first process decides; the plan is recorded before it is followed. A resumed run follows
        recorded plans that are ahead, and makes none before them.
        """
        schedule = self.schedule
        if schedule is None or not schedule.is_due(self.step):
            return
        before = self.job.settings.num_steps
        if self.processes.first and schedule.plans[-1].step < self.step:
            spent = time.perf_counter() - schedule.begin
            evaluation = self._evaluation_seconds + self._save_seconds
            if plan := schedule.plan_again(
                self.step, spent, self._pace.value, evaluation, self.evaluate_every
            ):
                schedule.plans.append(plan)
                write_plans(self.folder, schedule.plans)
        schedule.plans[:] = self.processes.from_first(schedule.plans)
        plan = schedule.at(self.step)
        if plan.step == self.step:
            schedule.follow(plan.steps)
            if self._ahead:
                self._ahead.forget()
            num_steps = self.job.settings.num_steps
            speed = "slower" if num_steps < before else "faster"
            yield Event(
                "note",
                f"{speed} than planned: {num_steps:,} steps instead of {before:,}, to end in time",
                {"steps": num_steps},
            )

    def _should_evaluate(self) -> bool:
        settings = self.job.settings
        if self.step == 0 or not settings.evaluates:
            return settings.evaluates and settings.evaluates_start
        return self.step % self.evaluate_every == 0 or self.step == self._last_step

    @property
    def _last_step(self) -> int:
        """The number of steps of the whole training, as far as it is known now."""
        return self.job.settings.last_step(self.facts.get("learned"))

    def _position(self, step: int) -> float:
        """Return where a step stands in the schedule of the learning rate."""
        return self.job.settings.position(step, self.facts.get("learned"))

    def _look_at_loss(self, means: Mapping[str, LossStats]) -> Iterator[Event]:
        """Wind the training down if its loss has been low for long enough.

        All processes read the same losses, and so decide alike.
        """
        settings = self.job.settings
        if not settings.learned_loss or self.facts.get("learned") is not None:
            return
        # Steps on clozes, before those on the rows, do not count.
        is_early = self.step <= settings.patience_start
        if is_early or self._loss(means) >= settings.learned_loss:
            self.facts["low_since"] = None
            return
        if self.facts.get("low_since") is None:
            self.facts["low_since"] = self.step
        low_steps = self.step - self.facts["low_since"] + 1
        if low_steps < settings.learned_steps or self.step >= self._last_step:
            return
        self.facts["learned"] = self.step
        yield Event(
            "note",
            f"the training loss has been below {settings.learned_loss:g} for {low_steps:,} steps: "
            f"the training ends after step {self._last_step:,} instead of {settings.num_steps:,}",
            {"steps": self._last_step},
        )

    def _loss(self, means: Mapping[str, LossStats]) -> float:
        """Return the loss that the training minimizes."""
        return sum(self.model.weights[name] * stats.loss for name, stats in means.items())

    def _should_save(self, seconds: float) -> bool:
        """Return whether a checkpoint is due. seconds: since the last one."""
        save_every = self.job.settings.save_every
        if save_every:
            return self.step % save_every == 0
        is_due = seconds > SAVE_SECONDS
        # all processes gather a memory before one of them saves it
        return is_due if self.model.memory is None else self.processes.agree(is_due)

    def _is_over(self) -> bool:
        best = self.facts["best"]
        settings = self.job.settings
        if self.step == self._last_step:
            return True
        is_evaluated = best is not None and self.facts["evaluated"] == self.step
        return is_evaluated and settings.should_stop(self.step, best["step"])

    def _count(self, step: Step) -> None:
        """Updates what a checkpoint after this step holds."""
        self.step = step.number
        self.facts["tokens"] += step.tokens
        total, row, most = self.skipped
        row = (row + step.skipped) * step.skipped
        self.skipped = torch.stack([total + step.skipped, row, torch.maximum(most, row)])

    def _restore(self, checkpoint: Checkpoint) -> None:
        expect(
            checkpoint.facts.get("recipe_sha256") == self.facts["recipe_sha256"],
            "recipe.toml is not the one that this run began with",
            where=self.folder,
            hint="put the old one back; or start another run: --recipe COPY.toml -o ANOTHER-FOLDER",
        )
        for name, tensor in self._state().items():
            if name not in checkpoint.tensors or checkpoint.tensors[name].shape != tensor.shape:
                raise BertworksError(
                    f"the checkpoint does not fit the recipe: {name}",
                    where=checkpoint.path,
                    hint="use another output folder, or --overwrite",
                )
            tensor.copy_(checkpoint.tensors[name])
        self.step = checkpoint.step
        self.facts = dict(checkpoint.facts)
        self.saved = checkpoint.step
        if self.schedule:
            self.schedule.follow(self.schedule.at(self.step).steps)
            self.schedule.begin -= self.facts["spent"]
            self._pace.state = self.facts["pace"]
        self.notes.append(
            Event(
                "note",
                f"resuming after step {self.step:,} of {self._last_step:,}",
                {"resumed_step": self.step},
            )
        )

    def _batches(self) -> StepBatches:
        """Return the micro-batches of a step.

        The first process writes the plans; the others read them.
        """
        processes = self.processes
        texts = list[str]()
        if not processes.first:
            processes.wait()
        batches = self.job.batches(
            self.folder / "plans", processes.rank, processes.count, texts.append
        )
        self.notes += [Event("note", text) for text in texts]
        if processes.first:
            processes.wait()
        if self.device.type == "cuda":
            batches = self._ahead = Prefetched(batches, self.device)
        return batches

    def _state(self) -> dict[str, Tensor]:
        """Return all tensors that a training changes, by name."""
        state = {f"parameter/{name}": p.data for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            state |= {f"{part}/{name}": value for part, value in self.optimizer.state[p].items()}
        if self._sums:
            state |= {f"average/{name}": value for name, value in self._sums.items()}
            state["num_averaged"] = self._num_summed
        if self.model.memory is not None:
            state["memory/states"] = self.model.memory.states
        return state | {"skipped": self.skipped}

    def _save(self) -> Iterator[Event]:
        """The model, the report, and last the checkpoint: if it exists, the others do."""
        self.saved = self.step
        begin = time.perf_counter()
        if self.model.memory is not None:
            self.model.memory.gather(self.processes.rank, self.processes.count)
        if not self.processes.first:
            return
        best = self.facts["best"]["step"] if self.facts["best"] else None
        is_kept = self.job.settings.keeps == "last" or best in (None, self.step)
        network = (self._mean_model or self.model) if is_kept else None
        self.job.save(self.folder, network, self.facts | {"step": self.step})
        flush_to_disk(self.metrics.path)  # the lines before a checkpoint must be on disk
        if self.schedule:
            self.facts |= {
                "spent": time.perf_counter() - self.schedule.begin,
                "pace": self._pace.state,
            }
        state = self._state()
        checkpoints = self.folder / "checkpoints"
        if self._writer:
            yield from self._written(waits=True)
            state = {name: x.to("cpu", copy=True) for name, x in state.items()}
            facts = deepcopy(self.facts)
            writing = self._writer.submit(
                save_checkpoint, checkpoints, self.step, state, facts, best=best
            )
            self._writing = self.step, writing
            self._save_seconds = time.perf_counter() - begin
            return
        path = save_checkpoint(checkpoints, self.step, state, self.facts, best=best)
        self._save_seconds = time.perf_counter() - begin
        yield Event("saved", f"saved {path}", {"step": self.step, "path": str(path)})

    def _written(self, waits: bool = False) -> Iterator[Event]:
        """Yield the event of a checkpoint that the thread has written since the last look.

        It raises what stopped the thread.
        """
        if self._writing and (waits or self._writing[1].done()):
            step, future = self._writing
            self._writing = None
            path = future.result()
            yield Event("saved", f"saved {path}", {"step": step, "path": str(path)})

    def _evaluate(self) -> Iterator[Event]:
        """Evaluate in the first process.

        Its figures decide in all processes whether the training continues.
        """
        if self.processes.first:
            with self.shutdown.computing():
                baseline = None if "baseline" in self.facts else self.job.baseline()
                begin = time.perf_counter()
                figures = self._figures_of(self.model)
                mean_figures = self._evaluate_mean(figures)
            self._evaluation_seconds = time.perf_counter() - begin
            if baseline:
                text, self.facts["baseline"] = baseline
                yield Event("note", text, {"baseline": self.facts["baseline"]})
            if mean_figures:
                yield Event(
                    "note",
                    f"the mean of the last {int(self._num_summed) + 1} evaluated models: "
                    f"{self.job.describe(mean_figures)}",
                    {"mean": mean_figures},
                )
            if self._mean_model is not None:
                figures = mean_figures
            if not all(map(math.isfinite, figures.values())):
                raise self._diverged("the loss on held-out text is not finite")
            best = self.facts["best"]
            if best is None or self.job.is_better(figures, best):
                best = {"step": self.step, **figures}
            self.metrics.record({"step": self.step, "evaluation": figures})
            self.facts |= {"evaluated": self.step, "evaluation": figures, "best": best}
            yield Event(
                "evaluation",
                f"held out after step {self.step:,}: {self.job.describe(figures)}",
                {"step": self.step, **figures},
            )
        decided = {name: self.facts[name] for name in ("evaluated", "evaluation", "best")}
        self.facts |= self.processes.from_first(decided)

    def _figures_of(self, network: TrainableModel) -> dict[str, float]:
        """Return the figures of a network after this step on held-out data."""
        figures = self.job.evaluate(network)
        return figures | self.job.evaluate_trained(network) if self.step else figures

    def _evaluate_mean(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Add the parameters to the sum of the last evaluations; at the end evaluate their mean.

        The mean becomes the model if it is better than the last parameters (Vaswani et al. 2017,
        section 6.1). An interrupted evaluation is repeated, so that the sum changes only when
        nothing can interrupt it, and not at the end.

        Args:
            figures: of the last parameters.

        Returns:
            The figures of the mean; {} before the end of the training.
        """
        average = self.job.settings.average
        remaining = -(-(self.job.settings.num_steps - self.step) // self.evaluate_every)
        if self.step == 0 or remaining >= average:
            return {}
        if remaining:
            self.shutdown.protect()
            self._num_summed += 1
            for name, parameter in self.model.named_parameters():
                self._sums[name] += parameter.detach()
            return {}
        if self._num_summed < 1:
            return {}
        mean_model = deepcopy(self.model)
        with torch.no_grad():
            for name, parameter in mean_model.named_parameters():
                parameter.copy_((self._sums[name] + parameter) / (self._num_summed + 1))
        mean_figures = self._figures_of(mean_model)
        if self.job.is_better(mean_figures, figures):
            self._mean_model = mean_model
        return mean_figures

    def _step_event(self, step: Step, means: dict[str, LossStats]) -> Event:
        """Writes a line of metrics.jsonl.

        The speed is that of the steps since the line before it.
        """
        tokens, seconds = self._logged
        self._logged = self.facts["tokens"], self.facts["seconds"]
        tokens_per_second = (self.facts["tokens"] - tokens) / (self.facts["seconds"] - seconds)
        loss = self._loss(means)
        progress = self.job.progress(step.number)
        flops = tokens_per_second * progress.flops_per_token
        line = finite(
            {
                "step": step.number,
                "loss": loss,
                **figures(means, perplexity=False),
                "learning_rate": step.learning_rate,
                "gradient_norm": step.grad_norm.item(),
                "tokens": self.facts["tokens"],
                "tokens_per_second": tokens_per_second,
                "matmul_share": flops / self._matmul_speed / self.processes.count,
                "memory": self.memory.look(),
                "seconds": self.facts["seconds"],
            }
        )
        if self.processes.first:
            self.metrics.record(line)
        num_steps = self._last_step
        seconds_left = self._pace.value * (self.job.progress(num_steps).cost - progress.cost)
        seconds_left += self._evaluation_seconds * math.ceil(
            (num_steps - step.number) / self.evaluate_every
        )
        fields = line | {"steps": num_steps, **progress.fields}
        fields |= {"eta_seconds": seconds_left, "skipped": int(self.skipped[0].item())}
        predicted = [
            kind for kind in means if kind in OBJECTIVES and ACCURACY in OBJECTIVES[kind].measures
        ]
        accuracies = [f"{OBJECTIVES[kind].title} {means[kind].accuracy:.1%}" for kind in predicted]
        parts = [
            f"step {step.number:,}/{num_steps:,}",
            f"loss {loss:.3f}",
            *accuracies,
            f"lr {step.learning_rate:.1e}",
            f"{tokens_per_second:,.0f} tok/s",
            f"{line['memory'] / 1e9:.2f} GB",
            f"{duration(seconds_left)} left",
        ]
        return Event("step", " · ".join(parts), fields)

    def _diverged(self, what: str) -> BertworksError:
        text = (
            f"{what}, up to step {self.step:,}; the checkpoint of step {self.saved or 0:,} is "
            "finite and intact"
        )
        rate = self.job.settings.optimizer.learning_rate / 3
        return BertworksError(
            text,
            where=self.folder,
            hint="use a lower learning rate in a new folder: -o OTHER --set "
            f"optimizer.learning_rate={rate:.1e}",
        )

    def _done(self) -> Event:
        facts = {
            name: self.facts.get(name)
            for name in ("tokens", "seconds", "evaluation", "best", "baseline")
        }
        figures = {
            "folder": str(self.folder),
            "step": self.step,
            **facts,
            "report": str(self.folder / "report.html"),
        }
        described = self.job.describe(self.facts["evaluation"])
        text = f"{self.folder}: {self.step:,} steps, {self.facts['tokens']:,} tokens; {described}"
        best = self.facts["best"]
        settings = self.job.settings
        compares = settings.keeps == "best" or settings.evaluates_start
        if compares and best and best["step"] < self.step:
            where = (
                f": {self.folder}/checkpoints"
                if settings.keeps == "last"
                else f": {self.job.describe(best)}"
            )
            text += f"; the best one was after step {best['step']:,}{where}"
        return Event("done", text, figures)
