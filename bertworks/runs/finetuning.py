"""Fine-tuning as the work of a run: a task learned from labelled items, judged on others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.data.batch import Batch
from bertworks.data.labelled import LabelledBatches, Unit
from bertworks.data.questions import Encoded, Reading
from bertworks.errors import BertworksError
from bertworks.files.model import Model, save_model
from bertworks.files.task import TaskDescription, settings_of
from bertworks.learn.answers import Decoding, Logits
from bertworks.learn.features import width
from bertworks.learn.finetuning import FinetuneRecipe
from bertworks.learn.inference import examine
from bertworks.learn.machine import Precision
from bertworks.learn.shortlist import Shortlist
from bertworks.learn.tasks import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
    Task,
    TaskModel,
)
from bertworks.nn.encoder import initialize
from bertworks.nn.recurrent import num_parameters
from bertworks.runs.judging import describe_scores, judge, metric_of
from bertworks.text.tokenizer import Tokenizer

WORDS = "encoder.embeddings.word.weight"  # the table of words in a state


@dataclass(frozen=True)
class Beginning:
    """The model that a fine-tuning starts from."""

    name: str  # as it was typed
    model: Model
    head: TaskDescription | None  # what its own head does; None: it has none, or it is to be forgotten


class Finetuning:
    """See `run.Work`."""

    keeps: ClassVar[Literal["last", "best"]] = "best"

    def __init__(
        self,
        recipe: FinetuneRecipe,
        description: TaskDescription,
        beginning: Beginning,
        units: Sequence[Unit],
        dev: Sequence[Encoded],
        precision: Precision,
        *,
        metric: str | None = None,
        card: Callable[[Mapping[str, Any]], str],
        report: Callable[[Path], None],
    ):
        self.recipe, self.description, self.beginning = recipe, description, beginning
        self.precision, self.metric = precision, metric or metric_of(description.task, None, description.labels)
        c = beginning.model.config
        # The network has a row for each token that it will meet; the folder has all of them.
        self.shortlist = Shortlist([*units, *(encoded.unit for encoded in dev)], c.vocab_size)
        self.units = self.shortlist.over(units)
        self.dev = [encoded._replace(unit=self.shortlist.renumbered(encoded.unit)) for encoded in dev]
        first = [len(one.input_ids) for unit in units[:1000] for one in unit]
        self._mean_length = sum(first) // len(first)
        self._card, self._report = card, report
        self.seed, self.optimizer = recipe.seed, recipe.optimizer
        self.train_batches = LabelledBatches(self.units, recipe.batch_size, recipe.micro_batch_tokens, recipe.seed)
        self.num_steps = recipe.epochs * self.train_batches.steps_per_epoch
        self.evaluate_every = max(1, self.train_batches.steps_per_epoch // recipe.evaluations)
        self.save_every = recipe.save_every
        rate, c = recipe.dropout, replace(c, vocab_size=len(self.shortlist))
        self.config = c if rate < 0 else replace(c, hidden_dropout=rate, attention_dropout=rate)
        # What the network says to all dev items: at the last evaluation; in the state that the folder holds, if known.
        self._last: list[Logits] = []
        self.saved: list[Logits] | None = None

    def network(self) -> TaskModel:
        """One of this kind, with everything at random."""
        task = task_of(self.description, self.units, self.recipe)
        return TaskModel(self.config, task, recurrent_units=self.recipe.recurrent_units)

    def blank(self) -> TaskModel:
        network = self.network()
        if network.features is not None:
            asked = [encoded.unit for encoded in self.dev]
            self.remembers = network.features.remember([*self.units, *asked]) or network.features.remember(self.units)
        return network

    def begin(self) -> tuple[nn.Module, list[str]]:
        torch.manual_seed(self.recipe.seed)
        network, notes = self.blank(), []
        state = dict(self.beginning.model.state)
        state[WORDS] = self.shortlist.taken(state[WORDS])
        if self.beginning.head:
            state |= self._head_by_name(self.beginning.head)
        else:
            state = {name: value for name, value in state.items() if name.split(".")[0] in ("encoder", "pooler")}
        ours = network.state_dict()
        missing, _ = network.load_state_dict({name: state[name] for name in ours if name in state}, strict=False)
        if any(name.startswith("pooler") for name in missing):
            notes.append(f"{self.beginning.name} has no pooler: begun at random")
        if network.features is not None and not self.remembers:
            notes.append("what the frozen encoder says does not fit in memory: it is computed again in every epoch")
        if again := self.recipe.reinitialized_layers:
            self._reinitialize(network, again)
        return network, notes

    def _head_by_name(self, head: TaskDescription) -> dict[str, Tensor]:
        """The model's own head, with its outputs in the order of our labels."""
        state = self.beginning.model.state
        if not self.description.labels:
            return {}
        order = torch.tensor([head.labels.index(label) for label in self.description.labels])
        return {name: value[order] for name, value in state.items() if name.startswith("classifier.")}

    def _reinitialize(self, network: TaskModel, layers: int) -> None:
        blocks = list(network.encoder.blocks)
        if layers > len(blocks):
            raise BertworksError(
                f"reinitialized_layers is {layers}, but the model has {len(blocks)}", where=self.beginning.name
            )
        for part in [*blocks[len(blocks) - layers :], *([network.pooler] if network.pooler else [])]:
            initialize(part, self.config)
            for norm in part.modules():
                if isinstance(norm, nn.LayerNorm):
                    norm.reset_parameters()

    def batches(self, plans: Path, rank: int, world_size: int) -> Callable[[int], list[Batch]]:
        return replace(self.train_batches, rank=rank, world_size=world_size)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        assert isinstance(network, TaskModel)
        self._last, mean = examine(network, [encoded.unit for encoded in self.dev], self.precision)
        decoding = decoding_of(self.description)
        answers = [decoding(e, rows) for e, rows in zip(self.dev, self._last, strict=True)]
        return {"loss": mean.loss, **judge(self.description, [e.item for e in self.dev], answers)}

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        return (figures[self.metric], -figures["loss"]) > (best[self.metric], -best["loss"])

    def enough(self, evaluated: int, best: int) -> bool:
        """No better score in so many evaluations."""
        return 0 < self.recipe.patience * self.evaluate_every <= evaluated - best

    def baseline(self) -> None:
        return None

    def flops_per_token(self, step: int) -> float:
        c, units, length = self.config, self.recipe.recurrent_units, self._mean_length
        if units:  # of the LSTM alone: what the encoder says is computed once
            return 6.0 * num_parameters(width(c), units)
        everything = self.description.task == "qa"
        return replace(c, vocab_size=0).flops_per_token(length, 0.0, finished=1.0 if everything else 1 / max(1, length))

    def cost(self, steps: int) -> float:
        return float(steps)

    def progress(self, step: int) -> dict[str, Any]:
        return {"epoch": step / self.train_batches.steps_per_epoch, "epochs": self.recipe.epochs}

    def describe(self, figures: Mapping[str, float]) -> str:
        return describe_scores(figures)

    def save(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        state = {name: p.detach() for name, p in network.named_parameters()}
        b = self.beginning.model
        state[WORDS] = self.shortlist.put_back(b.state[WORDS], state[WORDS])
        # The dropout of the training is not one of the model.
        save_model(folder, state, b.config, b.tokenizer, card=self._card(facts), head=settings_of(self.description))
        self.description.save(folder)
        self.saved = self._last if facts["evaluated"] == facts["step"] else None

    def report(self, folder: Path) -> None:
        self._report(folder)


def task_of(d: TaskDescription, units: Sequence[Unit] = (), recipe: FinetuneRecipe | None = None) -> Task:
    """The head and the loss of a task; what depends on the data in training comes from `units`."""
    smoothing = recipe.label_smoothing if recipe else 0.0
    match d.task:
        case "classification" | "tagging" | "spans":
            balanced = recipe is not None and recipe.class_weights == "balanced"
            weights = balanced_weights(units, len(d.labels)) if balanced else ()
            pooled = d.task == "classification"
            return Classification(num_labels=len(d.labels), pooled=pooled, weights=weights, smoothing=smoothing)
        case "multilabel":
            return MultiLabel(num_labels=len(d.labels))
        case "regression":
            targets = [float(one.labels[0]) for unit in units for one in unit] or [0.0, 1.0]
            return Regression(mean=float(np.mean(targets)), deviation=float(np.std(targets)) or 1.0)
        case "qa":
            return SpanExtraction()
        case "choice":
            return MultipleChoice(num_choices=d.num_choices)


def balanced_weights(units: Sequence[Unit], count: int) -> tuple[float, ...]:
    """n / (labels * n_of_label), as in scikit-learn; 1 for a label that never occurs."""
    seen = np.bincount(np.concatenate([one.labels for unit in units for one in unit]), minlength=count)
    return tuple(float(seen.sum() / (count * n)) if n else 1.0 for n in seen)


def reading_of(d: TaskDescription, tokenizer: Tokenizer) -> Reading:
    """How a model that does this reads its items."""
    return Reading(tokenizer, d.task, d.labels, d.max_length, d.stride, d.max_question, d.document_context)


def decoding_of(d: TaskDescription) -> Decoding:
    """How the network's numbers are read."""
    return Decoding(d.task, d.labels, d.threshold, d.max_answer)
