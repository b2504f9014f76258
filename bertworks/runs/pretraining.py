"""Pre-training as the work of a run: masked words and next sentences of a corpus, judged on text set aside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import nn

from bertworks.data.batch import Batch
from bertworks.data.sampling import Store
from bertworks.files.model import load_model, model_card, save_model
from bertworks.files.names import locate
from bertworks.learn.machine import Precision
from bertworks.learn.objectives import PretrainingModel
from bertworks.learn.recipe import Phase, Recipe, dump
from bertworks.learn.train import evaluate
from bertworks.nn.initialization import attend_to_neighbours
from bertworks.runs import examples
from bertworks.runs.metrics import describe, evaluation_figures
from bertworks.runs.report import write_report
from bertworks.runs.run import versions
from bertworks.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Corpus:
    """What a model learns from."""

    store: Store
    tokenizer: Tokenizer
    facts: Mapping[str, object]  # for the model card


class Pretraining:
    """See `run.Work`."""

    keeps: ClassVar[Literal["last", "best"]] = "last"

    def __init__(self, recipe: Recipe, corpus: Corpus, init: str | None = None):
        self.recipe, self.corpus, self.init = recipe, corpus, init
        self.seed, self.optimizer = recipe.seed, recipe.optimizer
        self.precision = cast(Precision, recipe.train.precision)
        self.num_steps = recipe.train.num_steps
        self.evaluate_every, self.save_every = recipe.train.evaluate_every, recipe.train.save_every
        self.store = examples.in_sections(corpus.store)
        self.documents, self.held_out = examples.split(self.store, recipe.seed)

    def blank(self) -> PretrainingModel:
        checkpointing = self.recipe.train.gradient_checkpointing
        model = PretrainingModel(self.recipe.encoder, next_sentence=self._pairs, gradient_checkpointing=checkpointing)
        # See `nn.initialization`: sines and cosines hold for all lengths as long as nobody moves some of them.
        model.encoder.embeddings.position.requires_grad_(self.recipe.initialization == "published")
        return model

    def begin(self) -> tuple[nn.Module, list[str]]:
        torch.manual_seed(self.recipe.seed)
        model, notes = self.blank(), []
        if self.init is not None:
            ours, state = model.state_dict(), load_model(locate(self.init), needs={"encoder"}).state
            missing, _ = model.load_state_dict({name: state[name] for name in ours if name in state}, strict=False)
            if missing:
                heads = ", ".join(sorted({name.split(".")[0] for name in missing}))
                notes.append(f"{self.init} has no {heads}: begun at random")
        elif self.recipe.initialization == "neighbours":
            attend_to_neighbours(model.encoder)
        return model, notes

    def batches(self, plans: Path, rank: int, world_size: int) -> Callable[[int], list[Batch]]:
        return examples.phase_batches(
            self.store, self.documents, self.recipe, self.corpus.tokenizer, plans, rank, world_size
        )

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        figures = evaluation_figures(evaluate(network, self._held_out_batches, self.precision))
        if self._long_batches:
            words = evaluate(network, self._long_batches, self.precision)["masked_lm"]
            length = self.recipe.train.sequence_length
            figures |= {f"masked_lm_loss_at_{length}": words.loss, f"masked_lm_accuracy_at_{length}": words.accuracy}
        return figures

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        return figures["masked_lm_loss"] < best["masked_lm_loss"]

    def enough(self, evaluated: int, best: int) -> bool:
        """Never before the last step: the schedule ends there."""
        return False

    def baseline(self) -> tuple[str, dict[str, Any]]:
        word, accuracy = examples.most_frequent_word(
            self.store, self.documents, self.corpus.tokenizer, self._held_out_batches
        )
        text = f"always answering {word!r} would get {accuracy:.1%} of the masked words right"
        return text, {"token": word, "masked_lm_accuracy": accuracy}

    def flops_per_token(self, step: int) -> float:
        return self._flops_per_token(self.recipe.train.phases[self._phase(step)])

    def _flops_per_token(self, phase: Phase) -> float:
        length, asked = phase.sequence_length, self.recipe.masking.rate
        return self.recipe.encoder.flops_per_token(length, asked, finished=asked + 1 / length)

    def cost(self, steps: int) -> float:
        total, before = 0.0, 0
        for phase in self.recipe.train.phases:
            done = min(max(steps - before, 0), phase.num_steps)
            total += done * phase.batch_size * phase.sequence_length * self._flops_per_token(phase)
            before += phase.num_steps
        return total

    def progress(self, step: int) -> dict[str, Any]:
        return {"phase": self._phase(step) + 1, "phases": len(self.recipe.train.phases)}

    def describe(self, figures: Mapping[str, float]) -> str:
        return describe(figures)

    def save(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        card = model_card(
            self.recipe.encoder,
            name=folder.resolve().name,
            recipe=dump(self.recipe),
            steps=facts["step"],
            tokens=facts["tokens"],
            corpus=self.corpus.facts,
            held_out=facts["evaluation"],
            versions=versions(),
        )
        state = {name: p.detach() for name, p in network.named_parameters()}
        save_model(folder, state, self.recipe.encoder, self.corpus.tokenizer, card=card)

    def report(self, folder: Path) -> None:
        write_report(folder)

    @property
    def _pairs(self) -> bool:
        return self.recipe.sampling.pairs == "next_sentence"

    def _phase(self, step: int) -> int:
        end = 0
        for number, phase in enumerate(self.recipe.train.phases):
            end += phase.num_steps
            if step <= end:
                return number
        return len(self.recipe.train.phases) - 1

    @cached_property
    def _held_out_batches(self) -> list[Batch]:
        train = self.recipe.train
        return self._questions(train.held_out_length, train.held_out_sequences)

    @cached_property
    def _long_batches(self) -> list[Batch]:
        """About as many tokens in sequences of the greatest length; none if the others are as long."""
        train = self.recipe.train
        if train.sequence_length <= train.held_out_length:
            return []
        sequences = train.held_out_sequences * train.held_out_length // train.sequence_length
        return self._questions(train.sequence_length, max(1, sequences))

    def _questions(self, sequence_length: int, sequences: int) -> list[Batch]:
        return examples.held_out_batches(
            self.store,
            self.held_out,
            self.corpus.tokenizer,
            pairs=self._pairs,
            sequence_length=sequence_length,
            sequences=sequences,
        )
