"""A training in its run folder: from wherever its newest checkpoint stands to its last step, saving on the way.

The folder is a model folder at all times (config.json, model.safetensors, tokenizer, README.md), plus recipe.toml,
metrics.jsonl, report.html, `checkpoints/` and `plans/`. Not here: where recipe and shards come from (`pretrain`).
"""

import json
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import bertworks

from ..data.sampling import Store
from ..errors import BertworksError
from ..files.checkpoint import latest_checkpoint, save_checkpoint
from ..files.model import model_card, save_model
from ..learn.machine import DTYPES, Precision, measure_matmul, memory_in_use
from ..learn.objectives import PretrainingModel
from ..learn.optimization import make_optimizer
from ..learn.recipe import Recipe, dump
from ..learn.train import Mean, Step, evaluate, train
from ..text.atomic import write_text
from ..text.tokenizer import Tokenizer
from . import examples
from .events import Event
from .interruption import Interruption
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
    """`for event in Run(...).events()` trains; stopping the iteration stops the run after its step."""

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        corpus: Corpus,
        device: torch.device,
        precision: Precision,
        init: Mapping[str, Tensor] | None = None,
    ):
        self.folder, self.recipe, self.corpus, self.device, self.precision = folder, recipe, corpus, device, precision
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.store = examples.in_sections(corpus.store)
        self.documents, self.held_out = examples.split(self.store, recipe.seed)
        pairs = recipe.sampling.pairs == "next_sentence"
        torch.manual_seed(recipe.seed)
        self.model = PretrainingModel(
            recipe.encoder, next_sentence=pairs, gradient_checkpointing=recipe.train.gradient_checkpointing
        )
        if init is not None:
            self._initialize(init)
        elif recipe.train.bias_from_counts:
            counts = examples.token_counts(self.store, self.documents, recipe.encoder.vocab_size)
            shares = (counts + 0.5) / (counts + 0.5).sum()
            self.model.masked_lm.bias.data.copy_(torch.from_numpy(shares).log())
        self.model.to(device)
        self.optimizer = make_optimizer(self.model, recipe.optimizer)
        self.num_steps = recipe.train.num_steps
        self.facts: dict[str, Any] = {"tokens": 0, "seconds": 0.0, "skipped": 0, "best": None, "evaluation": {}}
        self.step = 0
        self._finished = 0  # changes of the parameters at the end of the last step

    def events(self) -> Iterator[Event]:
        """Trains to the end. Ctrl-C and SIGTERM save and raise SystemExit with 128 + the signal's number."""
        yield from self._resume()
        batches = examples.phase_batches(
            self.store, self.documents, self.recipe, self.corpus.tokenizer, self.folder / "plans", self.rank,
            self.world_size,
        )  # fmt: skip
        if self.rank == 0:
            self.held_out_batches = examples.held_out_batches(
                self.store,
                self.held_out,
                self.corpus.tokenizer,
                pairs=self.model.next_sentence is not None,
                sequence_length=self.recipe.train.phases[0].sequence_length,
                sequences=self.recipe.train.held_out_sequences,
            )
        if self.step == 0:
            yield from self._first()
        self._finished = self._changes()
        with Interruption(self._leave) as interruption:
            steps = train(
                self.model, self.optimizer, batches, self.recipe.optimizer, self.num_steps,
                precision=self.precision, seed=self.recipe.seed, start=self.step, updating=interruption.updating,
            )  # fmt: skip
            for event in self._loop(steps):
                yield event
                if interruption.requested and event.kind == "step" and self.step < self.num_steps:
                    yield from self._save()
                    raise SystemExit(interruption.exit_code)
        yield self._done()

    def _loop(self, steps: Iterator[Step]) -> Iterator[Event]:
        c = self.recipe.train
        evaluate_every = c.evaluate_every or max(1, -(-self.num_steps // EVALUATIONS))
        log_every = max(1, -(-self.num_steps // MOST_LINES)) * (10 if self.device.type == "cuda" else 1)
        ceiling = measure_matmul(DTYPES[self.precision], self.device)
        streak = total = torch.zeros((), device=self.device)
        saved = mark = time.perf_counter()
        marked_tokens = 0
        for step in steps:
            self.step = step.number
            self.facts["tokens"] += step.tokens
            self._finished = self._changes()
            marked_tokens += step.tokens
            streak, total = (streak + step.skipped) * step.skipped, total + step.skipped
            if step.number % log_every == 0 or step.number == self.num_steps:
                means, now = step.read(), time.perf_counter()
                self.facts["seconds"] += now - mark
                self.facts["skipped"] += int(total.item())
                yield self._step_event(step, means, marked_tokens / (now - mark), ceiling)
                if streak.item() >= STOP_AFTER:
                    raise self._diverged(step)
                mark, marked_tokens, total = now, 0, torch.zeros_like(total)
            if step.number % evaluate_every == 0 or step.number == self.num_steps:
                yield from self._evaluate()
                mark = time.perf_counter()
            by_step = c.save_every and step.number % c.save_every == 0
            by_time = not c.save_every and time.perf_counter() - saved > SAVE_SECONDS
            if by_step or by_time or step.number == self.num_steps:
                yield from self._save()
                saved = mark = time.perf_counter()

    def _resume(self) -> Iterator[Event]:
        checkpoint, notes = latest_checkpoint(self.folder / "checkpoints")
        for note in notes:
            yield Event("note", f"{note.path}: {note.why}; using the newest checkpoint before it")
        if checkpoint is None:
            return
        for name, tensor in self._state().items():
            if name not in checkpoint.tensors or checkpoint.tensors[name].shape != tensor.shape:
                raise BertworksError(
                    f"the checkpoint does not fit the recipe: {name}", where=str(checkpoint.path),
                    fix="use another output folder, or --overwrite",
                )  # fmt: skip
            tensor.copy_(checkpoint.tensors[name])
        self.step, self.facts = checkpoint.step, dict(checkpoint.facts)
        self._forget_later_metrics()
        yield Event("note", f"resuming after step {self.step:,} of {self.num_steps:,}", {"resumed_step": self.step})

    def _first(self) -> Iterator[Event]:
        if self.rank == 0:
            word, accuracy = examples.most_frequent_word(
                self.store, self.documents, self.corpus.tokenizer, self.held_out_batches
            )
            self.facts["baseline"] = {"token": word, "masked_lm_accuracy": accuracy}
            text = f"always answering {word!r} would get {accuracy:.1%} of the masked words right"
            yield Event("note", text, {"baseline": self.facts["baseline"]})
        yield from self._evaluate()
        yield from self._save()

    def _state(self) -> dict[str, Tensor]:
        """Everything that changes, by name; the tensors themselves."""
        state = {f"parameter/{name}": p.data for name, p in self.model.named_parameters()}
        for name, p in self.model.named_parameters():
            state |= {f"{part}/{name}": value for part, value in self.optimizer.state[p].items()}
        return state

    def _save_state(self) -> Path | None:
        if self.rank != 0:
            return None
        best = self.facts["best"]["step"] if self.facts["best"] else None
        return save_checkpoint(self.folder / "checkpoints", self.step, self._state(), self.facts, best=best)

    def _changes(self) -> int:
        return sum(p._version for p in self.model.parameters())

    def _leave(self) -> bool:
        """Saves what the last finished step left, from another thread; not while the main one takes note of a step."""
        if self._changes() != self._finished:
            return False
        self._save_state()
        return True

    def _save(self) -> Iterator[Event]:
        """The checkpoint first, then the model for everyone to use, then the report."""
        path = self._save_state()
        if path is None:
            return
        recipe = dump(self.recipe)
        card = model_card(
            self.recipe.encoder,
            name=self.folder.resolve().name,
            recipe=recipe,
            steps=self.step,
            tokens=self.facts["tokens"],
            corpus=self.corpus.facts,
            held_out=self.facts["evaluation"],
            versions=versions(),
        )
        state = {name: p.detach() for name, p in self.model.named_parameters()}
        save_model(self.folder, state, self.recipe.encoder, self.corpus.tokenizer, card=card)
        write_report(self.folder)
        yield Event("saved", f"saved {path}", {"step": self.step, "path": str(path)})

    def _evaluate(self) -> Iterator[Event]:
        if self.rank != 0:
            return
        means = evaluate(self.model, self.held_out_batches, self.precision)
        figures = evaluation_figures(means)
        self.facts["evaluation"] = figures
        best = self.facts["best"]
        if best is None or figures["masked_lm_loss"] < best["masked_lm_loss"]:
            self.facts["best"] = {"step": self.step, **figures}
        self._record({"step": self.step, "evaluation": figures})
        if self.step and self.facts["best"]["step"] == self.step:
            self._save_state()
        text = f"held out after step {self.step:,}: {describe(figures)}"
        yield Event("evaluation", text, {"step": self.step, **figures})

    def _step_event(self, step: Step, means: dict[str, Mean], tokens_per_second: float, ceiling: float) -> Event:
        c, phase = self.recipe, self._phase()
        flops = c.encoder.flops_per_token(c.train.phases[phase].sequence_length, c.masking.rate)
        learned = {
            "step": step.number,
            "loss": sum(mean.loss for mean in means.values()),
            **training_figures(means),
            "learning_rate": step.learning_rate,
            "gradient_norm": step.grad_norm.item(),
            "tokens": self.facts["tokens"],
        }
        measured = {
            "tokens_per_second": tokens_per_second,
            "matmul_share": tokens_per_second * flops / ceiling / self.world_size,
            "memory": memory_in_use(self.device),
            "seconds": self.facts["seconds"],
        }
        if self.rank == 0:
            self._record(learned | measured)
        left = self.facts["seconds"] / step.number * (self.num_steps - step.number)
        shown = {"steps": self.num_steps, "phase": phase + 1, "phases": len(c.train.phases), "eta_seconds": left}
        text = f"step {step.number:,}/{self.num_steps:,}  loss {learned['loss']:.3f}  {tokens_per_second:,.0f} tokens/s"
        return Event("step", text, learned | measured | shown | {"skipped": self.facts["skipped"]})

    def _phase(self) -> int:
        end = 0
        for number, phase in enumerate(self.recipe.train.phases):
            end += phase.num_steps
            if self.step <= end:
                return number
        return len(self.recipe.train.phases) - 1

    def _diverged(self, step: Step) -> BertworksError:
        last = max((int(p.name[5:]) for p in (self.folder / "checkpoints").glob("step-????????")), default=0)
        return BertworksError(
            f"loss or gradient was not finite in {STOP_AFTER} steps in a row, up to step {step.number:,}; the "
            f"parameters were left as they were, and the checkpoint of step {last:,} is intact",
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

    def _initialize(self, state: Mapping[str, Tensor]) -> None:
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        heads = {name.split(".")[0] for name in missing}
        if unexpected or "encoder" in heads:
            raise BertworksError(f"the model to begin with does not fit: {', '.join([*missing, *unexpected][:5])}")

    def _record(self, line: dict[str, Any]) -> None:
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _forget_later_metrics(self) -> None:
        """What was logged after the checkpoint will be logged again; half a line of a killed process goes too."""
        path = self.folder / "metrics.jsonl"
        if self.rank != 0 or not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= self.step:
                    kept.append(line + "\n")
            except ValueError:
                break
        write_text(path, "".join(kept))


def training_figures(means: Mapping[str, Mean]) -> dict[str, float]:
    """Losses and accuracies by name."""
    return {
        f"{name}_{kind}": value
        for name, mean in means.items()
        for kind, value in (("loss", mean.loss), ("accuracy", mean.accuracy))
    }


def evaluation_figures(means: Mapping[str, Mean]) -> dict[str, float]:
    """The same, and the perplexity of the masked words: e to the mean loss."""
    perplexity = torch.tensor(means["masked_lm"].loss, dtype=torch.float64).exp().item()
    return training_figures(means) | {"masked_lm_perplexity": perplexity}


def describe(figures: Mapping[str, float]) -> str:
    """Held-out figures as a sentence."""
    if not figures:
        return "nothing was evaluated"
    text = (
        f"masked words: loss {figures['masked_lm_loss']:.3f}, accuracy {figures['masked_lm_accuracy']:.1%}, "
        f"perplexity {figures['masked_lm_perplexity']:,.1f}"
    )
    if "next_sentence_accuracy" in figures:
        text += f"; next sentence: accuracy {figures['next_sentence_accuracy']:.1%}"
    return text


def versions() -> dict[str, str]:
    """Of the software that computes."""
    return {"bertworks": bertworks.__version__, "torch": torch.__version__, "python": platform.python_version()}
