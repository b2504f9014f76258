"""A training in its run folder: from wherever its newest checkpoint stands to its last step, saving on the way.

The folder is a model folder at all times (config.json, model.safetensors, tokenizer, README.md), plus recipe.toml,
metrics.jsonl, report.html, `checkpoints/` and `plans/`. Not here: where recipe and shards come from (`pretrain`).
"""

import hashlib
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import bertworks

from ..data.batch import Batch
from ..data.sampling import Store
from ..errors import BertworksError, UsageError
from ..files.checkpoint import Checkpoint, latest_checkpoint, remove_deleted, save_checkpoint
from ..files.model import load_model, model_card, save_model
from ..learn.machine import DTYPES, Precision, measure_matmul, memory_in_use
from ..learn.objectives import PretrainingModel
from ..learn.optimization import make_optimizer
from ..learn.recipe import Recipe, dump
from ..learn.train import Mean, Step, evaluate, train
from ..nn.initialization import attend_to_neighbours
from ..text.tokenizer import Tokenizer
from . import examples
from .events import Event
from .interruption import PATIENCE, Interruption
from .metrics import Metrics, Stopwatch, describe, evaluation_figures, finite, training_figures
from .report import write_report

EVALUATIONS, SAVE_SECONDS, MOST_LINES = 20, 120.0, 10_000
STOP_AFTER = 3  # steps in a row whose loss or gradient is not finite


@dataclass(frozen=True)
class Corpus:
    """What a run learns from."""

    store: Store
    tokenizer: Tokenizer
    facts: Mapping[str, object]  # for the model card


class Run:
    """`for event in Run(...).events()` trains; stopping the iteration stops the run after its step.

    Whatever decides what comes next is the tensors of `_state` and the values of `facts`, both of which a checkpoint
    holds: a run that goes on from one cannot be told from a run that was never stopped.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        corpus: Corpus,
        device: torch.device,
        precision: Precision,
        init: str | None = None,
    ):
        self.folder, self.recipe, self.corpus, self.device, self.precision = folder, recipe, corpus, device, precision
        self.init, self.metrics = init, Metrics(folder / "metrics.jsonl")
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.store = examples.in_sections(corpus.store)
        self.documents, self.held_out = examples.split(self.store, recipe.seed)
        self.notes: list[str] = []  # what has to be said of the beginning
        self.checkpoint, damaged = latest_checkpoint(folder / "checkpoints")
        self.notes += [f"{note.path}: {note.why}; using the newest checkpoint before it" for note in damaged]
        self.model = self._begin() if self.checkpoint is None else self._blank()
        self.optimizer = make_optimizer(self.model, recipe.optimizer)
        self.num_steps = recipe.train.num_steps
        self.step = 0
        self.facts: dict[str, Any] = {
            "recipe_sha256": hashlib.sha256((folder / "recipe.toml").read_bytes()).hexdigest(),
            "tokens": 0,
            "seconds": 0.0,  # of training alone
            "evaluated": None,  # after which step, last
            "evaluation": {},  # its figures
            "best": None,  # the step and the figures with the lowest held-out loss
            "exported": None,  # the step of the model in the folder
        }
        # Steps left out because loss or gradient was not finite: all, the latest in a row, the most in a row.
        self.skipped = torch.zeros(3, device=device)
        self.saved: int | None = None  # the step of the checkpoint that this process wrote or read last
        self.evaluate_every = recipe.train.evaluate_every or max(1, -(-self.num_steps // EVALUATIONS))
        # To ask a GPU for figures is to wait for it, so it is asked seldom.
        self.read_every = 10 if device.type == "cuda" else 1
        self.log_every = self.read_every * max(1, -(-self.num_steps // (MOST_LINES * self.read_every)))

    def events(self) -> Iterator[Event]:
        """Trains to the end. Ctrl-C and SIGTERM save and raise SystemExit with 128 + the signal's number."""
        yield from self._resume()
        batches = self._batches()
        patience = PATIENCE if self.rank == 0 else 2 * PATIENCE  # the first saves; the others stay until it has
        with Interruption(self._leave, patience) as interruption:
            try:
                yield from self._train(batches, interruption)
            except RuntimeError:
                if interruption.requested and self.world_size > 1:  # another process left before this one
                    raise SystemExit(interruption.exit_code) from None
                raise
        yield self._done()

    def _train(self, batches: Callable[[int], list[Batch]], interruption: Interruption) -> Iterator[Event]:
        if self._asks_for_evaluation() and self.facts["evaluated"] != self.step:
            yield from self._evaluate()
        if self._asks_for_evaluation() and self.facts["exported"] != self.step:
            yield from self._save()
        steps = train(
            self.model, self.optimizer, batches, self.recipe.optimizer, self.num_steps,
            precision=self.precision, seed=self.recipe.seed, start=self.step, updating=interruption.updating,
        )  # fmt: skip
        saved, clock = time.perf_counter(), Stopwatch()
        for step in steps:
            event = self._take_note(step, clock)
            interruption.updating.noted()
            if event:
                yield event
            last = step.number == self.num_steps
            if (last or step.number % self.read_every == 0) and self.skipped[2].item() >= STOP_AFTER:
                raise self._diverged(f"loss or gradient was not finite in {STOP_AFTER} steps in a row")
            with clock.paused():
                leaving = interruption.requested and not last and self.rank == 0
                if leaving:
                    interruption.take_over()
                elif self._asks_for_evaluation():
                    yield from self._evaluate()
                if leaving or last or self._is_due(saved):
                    yield from self._save()
                    saved = time.perf_counter()
                if leaving:
                    raise SystemExit(interruption.exit_code)

    def _asks_for_evaluation(self) -> bool:
        return self.step % self.evaluate_every == 0 or self.step == self.num_steps

    def _is_due(self, saved: float) -> bool:
        """Is it time for a checkpoint, the last one having been written at `saved`?"""
        if self.facts["best"] and self.facts["best"]["step"] == self.step:
            return True
        every = self.recipe.train.save_every
        return self.step % every == 0 if every else time.perf_counter() - saved > SAVE_SECONDS

    def _take_note(self, step: Step, clock: Stopwatch) -> Event | None:
        """Everything that a checkpoint after this step has to know, and what metrics.jsonl has before it."""
        self.step = step.number
        self.facts["tokens"] += step.tokens
        total, row, most = self.skipped
        row = (row + step.skipped) * step.skipped
        self.skipped = torch.stack([total + step.skipped, row, torch.maximum(most, row)])
        clock.tokens += step.tokens
        if step.number % self.log_every and step.number != self.num_steps:
            return None
        means = step.read()
        seconds, tokens = clock.lap()
        self.facts["seconds"] += seconds
        with clock.paused():
            return self._step_event(step, means, tokens / seconds)

    def _resume(self) -> Iterator[Event]:
        yield from (Event("note", text) for text in self.notes)
        if self.checkpoint:
            self._restore(self.checkpoint)
        if self.rank == 0:
            remove_deleted(self.folder / "checkpoints")
            self.metrics.forget(self.step, -1 if self.facts["evaluated"] is None else self.facts["evaluated"])
        if self.checkpoint:
            yield Event("note", f"resuming after step {self.step:,} of {self.num_steps:,}", {"resumed_step": self.step})
            self.checkpoint = None  # its file need not stay mapped

    def _restore(self, checkpoint: Checkpoint) -> None:
        if checkpoint.facts.get("recipe_sha256") != self.facts["recipe_sha256"]:
            raise UsageError(
                "recipe.toml is not the one that this run began with", where=str(self.folder),
                fix="put it back; or start another run with it: --recipe COPY-OF-IT.toml -o ANOTHER-FOLDER",
            )  # fmt: skip
        for name, tensor in self._state().items():
            if name not in checkpoint.tensors or checkpoint.tensors[name].shape != tensor.shape:
                raise BertworksError(
                    f"the checkpoint does not fit the recipe: {name}", where=str(checkpoint.path),
                    fix="use another output folder, or --overwrite",
                )  # fmt: skip
            tensor.copy_(checkpoint.tensors[name])
        self.step, self.facts, self.saved = checkpoint.step, dict(checkpoint.facts), checkpoint.step

    def _network(self) -> PretrainingModel:
        pairs = self.recipe.sampling.pairs == "next_sentence"
        checkpointing = self.recipe.train.gradient_checkpointing
        return PretrainingModel(self.recipe.encoder, next_sentence=pairs, gradient_checkpointing=checkpointing)

    def _blank(self) -> PretrainingModel:
        """The network for a checkpoint to fill: drawing millions of numbers for nothing would take seconds."""
        with torch.device("meta"):
            return self._network().to_empty(device=self.device)

    def _begin(self) -> PretrainingModel:
        """The network before its first step."""
        torch.manual_seed(self.recipe.seed)
        model = self._network()
        if self.init is not None:
            ours, state = model.state_dict(), load_model(self.init, needs={"encoder"}).state
            missing, _ = model.load_state_dict({name: state[name] for name in ours if name in state}, strict=False)
            if missing:
                heads = ", ".join(sorted({name.split(".")[0] for name in missing}))
                self.notes.append(f"{self.init} has no {heads}: begun at random")
        elif self.recipe.initialization == "neighbours":
            attend_to_neighbours(model.encoder)
        return model.to(self.device)

    def _batches(self) -> Callable[[int], list[Batch]]:
        """The micro-batches of a step. The first process makes the plans; the others find them."""
        if self.rank > 0:
            dist.barrier()
        batches = examples.phase_batches(
            self.store, self.documents, self.recipe, self.corpus.tokenizer, self.folder / "plans", self.rank,
            self.world_size,
        )  # fmt: skip
        if self.rank == 0 and self.world_size > 1:
            dist.barrier()
        return batches

    @cached_property
    def _held_out_batches(self) -> list[Batch]:
        return examples.held_out_batches(
            self.store,
            self.held_out,
            self.corpus.tokenizer,
            pairs=self.model.next_sentence is not None,
            sequence_length=self.recipe.train.phases[0].sequence_length,
            sequences=self.recipe.train.held_out_sequences,
        )

    @cached_property
    def _matmul_speed(self) -> float:
        return measure_matmul(DTYPES[self.precision], self.device)

    def _state(self) -> dict[str, Tensor]:
        """Everything that changes, by name; the tensors themselves."""
        state = {f"parameter/{name}": p.data for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            state |= {f"{part}/{name}": value for part, value in self.optimizer.state[p].items()}
        return state | {"skipped": self.skipped}

    def _leave(self) -> None:
        """Saves what the last step left, from another thread, unless that is saved."""
        if self.rank == 0 and self.saved != self.step:
            self._save_state()

    def _save_state(self) -> Path:
        self.metrics.sync()  # no checkpoint without the lines before it
        best = self.facts["best"]["step"] if self.facts["best"] else None
        path = save_checkpoint(self.folder / "checkpoints", self.step, self._state(), self.facts, best=best)
        self.saved = self.step
        return path

    def _save(self) -> Iterator[Event]:
        """The model for everyone to use, the report, and last the checkpoint: where that stands, all stands."""
        if self.rank != 0:
            return
        card = model_card(
            self.recipe.encoder,
            name=self.folder.resolve().name,
            recipe=dump(self.recipe),
            steps=self.step,
            tokens=self.facts["tokens"],
            corpus=self.corpus.facts,
            held_out=self.facts["evaluation"],
            versions=versions(),
        )
        state = {name: p.detach() for name, p in self.model.named_parameters()}
        save_model(self.folder, state, self.recipe.encoder, self.corpus.tokenizer, card=card)
        write_report(self.folder)
        self.facts = self.facts | {"exported": self.step}
        path = self._save_state()
        yield Event("saved", f"saved {path}", {"step": self.step, "path": str(path)})

    def _evaluate(self) -> Iterator[Event]:
        if self.rank != 0:
            return
        if "baseline" not in self.facts:
            yield self._baseline()
        figures = evaluation_figures(evaluate(self.model, self._held_out_batches, self.precision))
        if not all(map(math.isfinite, figures.values())):
            raise self._diverged("the loss on held-out text is not finite")
        best = self.facts["best"]
        if best is None or figures["masked_lm_loss"] < best["masked_lm_loss"]:
            best = {"step": self.step, **figures}
        self.metrics.record({"step": self.step, "evaluation": figures})
        self.facts = self.facts | {"evaluated": self.step, "evaluation": figures, "best": best}
        text = f"held out after step {self.step:,}: {describe(figures)}"
        yield Event("evaluation", text, {"step": self.step, **figures})

    def _baseline(self) -> Event:
        word, accuracy = examples.most_frequent_word(
            self.store, self.documents, self.corpus.tokenizer, self._held_out_batches
        )
        self.facts = self.facts | {"baseline": {"token": word, "masked_lm_accuracy": accuracy}}
        text = f"always answering {word!r} would get {accuracy:.1%} of the masked words right"
        return Event("note", text, {"baseline": self.facts["baseline"]})

    def _step_event(self, step: Step, means: dict[str, Mean], tokens_per_second: float) -> Event:
        c, phase = self.recipe, self._phase()
        length, asked = c.train.phases[phase].sequence_length, c.masking.rate
        flops = c.encoder.flops_per_token(length, asked, finished=asked + 1 / length)
        figures = {"loss": sum(mean.loss for mean in means.values()), **training_figures(means)}
        learned = finite({"step": step.number, **figures, "learning_rate": step.learning_rate})
        learned |= finite({"gradient_norm": step.grad_norm.item(), "tokens": self.facts["tokens"]})
        measured = {
            "tokens_per_second": tokens_per_second,
            "matmul_share": tokens_per_second * flops / self._matmul_speed / self.world_size,
            "memory": memory_in_use(self.device),
            "seconds": self.facts["seconds"],
        }
        if self.rank == 0:
            self.metrics.record(learned | measured)
        left = self.facts["seconds"] / step.number * (self.num_steps - step.number)
        shown = {
            "steps": self.num_steps,
            "phase": phase + 1,
            "phases": len(c.train.phases),
            "eta_seconds": left,
            "skipped": int(self.skipped[0].item()),
        }
        text = f"step {step.number:,}/{self.num_steps:,}  loss {figures['loss']:.3f}  {tokens_per_second:,.0f} tokens/s"
        return Event("step", text, learned | measured | shown)

    def _phase(self) -> int:
        end = 0
        for number, phase in enumerate(self.recipe.train.phases):
            end += phase.num_steps
            if self.step <= end:
                return number
        return len(self.recipe.train.phases) - 1

    def _diverged(self, what: str) -> BertworksError:
        last = max((int(p.name[5:]) for p in (self.folder / "checkpoints").glob("step-*[0-9]")), default=0)
        return BertworksError(
            f"{what}, up to step {self.step:,}; the parameters are finite still, and the checkpoint of step {last:,} "
            "is intact",
            where=str(self.folder),
            fix="lower the rate in a new folder: -o OTHER --set optimizer.learning_rate="
            f"{self.recipe.optimizer.learning_rate / 3:.1e}",
        )

    def _done(self) -> Event:
        figures = {"folder": str(self.folder), "step": self.step, "tokens": self.facts["tokens"]}
        figures |= {"seconds": self.facts["seconds"], "evaluation": self.facts["evaluation"]}
        figures |= {"baseline": self.facts.get("baseline"), "report": str(self.folder / "report.html")}
        text = (
            f"{self.folder}: {self.step:,} steps, {self.facts['tokens']:,} tokens; {describe(self.facts['evaluation'])}"
        )
        best = self.facts["best"]
        if best and best["step"] < self.step:
            text += f"; the lowest held-out loss was at step {best['step']:,}: {self.folder}/checkpoints"
        return Event("done", text, figures)


def versions() -> dict[str, str]:
    """Of the software that computes."""
    return {"bertworks": bertworks.__version__, "torch": torch.__version__, "python": platform.python_version()}
