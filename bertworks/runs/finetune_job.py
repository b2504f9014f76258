"""What a fine-tuning trains, how it is evaluated during the training, and how long it takes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.batching.batch import Batch, ExampleGroup, LabelledBatches, collate
from bertworks.batching.features import Features
from bertworks.checkpoints.model_folder import Model, TaskConfig, save_model, task_settings
from bertworks.errors import BertworksError
from bertworks.inference.decoding import Decoder, Logits, make_task_head
from bertworks.inference.engine import compute_logits_and_loss
from bertworks.models.encoder import initialize, meta_device_init, num_lstm_parameters
from bertworks.runs.data_splits import LabelledData
from bertworks.runs.dataset_report import DatasetReport, make_dataset_report
from bertworks.runs.task_metrics import compute_metrics, format_metrics
from bertworks.training.budget import time_step
from bertworks.training.device import Precision
from bertworks.training.recipe import FinetuneRecipe
from bertworks.training.task_heads import TaskModel, frozen_features_size


class VocabSubset:
    """The rows of the token embedding matrix that a dataset uses: a fine-tuning computes only with these. The matrix is
    most of a multilingual network, and a small dataset uses few of its rows.

    The tokens of all `units` in ascending order, and one unused token if there is any: its row shows what weight
    decay does to a row that no text uses."""

    def __init__(self, units: Iterable[ExampleGroup], vocab_size: int):
        used = np.zeros(vocab_size, np.bool_)
        for unit in units:
            for example in unit:
                used[example.input_ids] = True
        ids = np.flatnonzero(used)
        self.ids = torch.from_numpy(np.append(ids, np.flatnonzero(~used)[:1]))  # int64 [S], the unused one last
        self.has_unused = len(ids) < vocab_size
        self._row_of_token = torch.full((vocab_size,), -1)  # int64 [V]
        self._row_of_token[ids] = torch.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def attach(self, embedding: nn.Embedding) -> None:
        """Make an embedding of these rows, [S, hidden], accept token ids of the whole vocabulary, int64 [T]."""
        row_of_token = cache(self._row_of_token.to)  # on each device
        embedding.register_forward_pre_hook(lambda _, inputs: row_of_token(inputs[0].device)[inputs[0]])

    def rows(self, embeddings: Tensor) -> Tensor:
        """[V, hidden] -> [S, hidden]."""
        return embeddings[self.ids]

    def merge(self, before: Tensor, trained: Tensor) -> Tensor:
        """before [V, hidden]: the matrix before training; trained [S, hidden]: these rows after it -> [V, hidden]."""
        trained = trained.detach().to(before.device, before.dtype)
        whole = before * self._decay(before, trained)
        whole[self.ids] = trained
        return whole

    def _decay(self, before: Tensor, trained: Tensor) -> float:
        """The factor by which weight decay has made an unused row smaller."""
        if not self.has_unused:
            return 1.0
        old, new = before[self.ids[-1]].double(), trained[-1].double()
        size = old.square().sum().item()
        return (old * new).sum().item() / size if size else 1.0


TOKEN_EMBEDDING_KEY = "encoder.embeddings.token.weight"  # in a state dict


@dataclass(frozen=True)
class Prepared:
    """Everything that a fine-tuning needs, read and checked.

    metric: the metric that selects the best checkpoint.
    model_name, model: the initial model, as in the request and in memory.
    head: the task of its own head; None: it has none, or it is not used.
    groups: the training examples.
    train, dev: the items and their examples.
    """

    recipe: FinetuneRecipe
    data: LabelledData
    description: TaskConfig
    metric: str
    model_name: str
    model: Model
    head: TaskConfig | None
    groups: list[ExampleGroup]
    train: list[Features]
    dev: list[Features]

    def data_report(self) -> DatasetReport:
        return make_dataset_report(self.data, self.train, self.dev, self.model.tokenizer, self.description.max_length)


class FinetuneJob:
    """A task trained on labelled items and evaluated on others: see `training_run.TrainingJob`."""

    keeps: ClassVar[Literal["last", "best"]] = "best"
    describe = staticmethod(format_metrics)

    def __init__(self, prepared: Prepared, *, card: Callable[[Mapping[str, Any]], str], report: Callable[[Path], None]):
        p, recipe = prepared, prepared.recipe
        self.prepared, self.recipe, self.description = p, recipe, p.description
        self.seed, self.optimizer, self.save_every = recipe.seed, recipe.optimizer, recipe.save_every
        self.precision = cast(Precision, recipe.precision)
        self.card, self.report = card, report
        self.dev_units = [features.unit for features in p.dev]
        lengths = [len(example.input_ids) for group in p.groups[:1000] for example in group]
        self._mean_length = sum(lengths) // len(lengths)
        self.train_batches = LabelledBatches(p.groups, recipe.batch_size, recipe.micro_batch_tokens, recipe.seed)
        self.num_steps = recipe.epochs * self.train_batches.steps_per_epoch
        self.evaluate_every = max(1, self.train_batches.steps_per_epoch // recipe.evaluations)
        # The network has embeddings only of the tokens in the data; the model folder has all of them.
        self.vocab_subset = VocabSubset([*p.groups, *self.dev_units], p.model.config.vocab_size)
        rate, c = recipe.dropout, replace(p.model.config, vocab_size=len(self.vocab_subset))
        if rate >= 0:
            spans = None if c.span_dropout is None else rate
            c = replace(c, hidden_dropout=rate, attention_dropout=rate, sequence_dropout=rate, span_dropout=spans)
        self.config = c
        # Logits of all dev items: of the last evaluation; of the state in the folder, if known.
        self._last: list[Logits] = []
        self.saved: list[Logits] | None = None

    def network(self) -> TaskModel:
        """A network with random weights."""
        task = make_task_head(self.description, self.prepared.groups, self.recipe)
        network = TaskModel(self.config, task, lstm_units=self.recipe.lstm_units)
        self.vocab_subset.attach(network.encoder.embeddings.token)
        return network

    def blank(self) -> TaskModel:
        network, groups = self.network(), self.prepared.groups
        if features := network.features:
            self.caches_features = features.remember([*groups, *self.dev_units]) or features.remember(groups)
        return network

    def begin(self) -> tuple[TaskModel, list[str]]:
        torch.manual_seed(self.recipe.seed)
        p, network, notes = self.prepared, self.blank(), []
        state = dict(p.model.state)
        state[TOKEN_EMBEDDING_KEY] = self.vocab_subset.rows(state[TOKEN_EMBEDDING_KEY])
        if p.head is None:
            state = {name: value for name, value in state.items() if name.split(".")[0] in ("encoder", "pooler")}
        elif self.description.labels:  # its outputs in the order of the labels of the data
            order = torch.tensor([p.head.labels.index(label) for label in self.description.labels])
            state |= {name: value[order] for name, value in state.items() if name.startswith("classifier.")}
        missing, _ = network.load_state_dict(state, strict=False)
        if any(name.startswith("pooler") for name in missing):
            notes.append(f"{p.model_name} has no pooler: it starts at random")
        if network.features is not None and not self.caches_features:
            notes.append("the features of the frozen encoder do not fit in memory: they are computed in every epoch")
        if self.recipe.reinitialized_layers:
            self._reinitialize(network, self.recipe.reinitialized_layers)
        return network, notes

    def _reinitialize(self, network: TaskModel, layers: int) -> None:
        blocks = list(network.encoder.blocks)
        if layers > len(blocks):
            what = f"reinitialized_layers is {layers}, but the model has {len(blocks)}"
            raise BertworksError(what, where=self.prepared.model_name)
        for part in [*blocks[len(blocks) - layers :], *([network.pooler] if network.pooler else [])]:
            initialize(part, self.config)
            for norm in part.modules():
                if isinstance(norm, nn.LayerNorm):
                    norm.reset_parameters()

    def batches(self, plans: Path, rank: int, world_size: int) -> Callable[[int], list[Batch]]:
        return replace(self.train_batches, rank=rank, world_size=world_size)

    def evaluate(self, network: nn.Module) -> dict[str, float]:
        assert isinstance(network, TaskModel)
        self._last, mean = compute_logits_and_loss(network, self.dev_units, self.precision)
        dev, decode = self.prepared.dev, Decoder(self.description)
        answers = [decode(features, logits) for features, logits in zip(dev, self._last, strict=True)]
        items = [features.item for features in dev]
        return {"loss": mean.loss, **compute_metrics(self.description, items, answers)}

    def is_better(self, figures: Mapping[str, float], best: Mapping[str, float]) -> bool:
        metric = self.prepared.metric
        return (figures[metric], -figures["loss"]) > (best[metric], -best["loss"])

    def enough(self, evaluated: int, best: int) -> bool:
        """Whether the score did not improve for `patience` evaluations."""
        return 0 < self.recipe.patience * self.evaluate_every <= evaluated - best

    def baseline(self) -> None:
        return None

    def flops_per_token(self, step: int) -> float:
        c, units, length = self.config, self.recipe.lstm_units, self._mean_length
        if units:  # of the LSTM alone: the features are computed once
            return 6.0 * num_lstm_parameters(frozen_features_size(c), units)
        finished = 1.0 if self.description.task == "qa" else 1 / max(1, length)  # tokens of the last layer
        return replace(c, vocab_size=0).flops_per_token(length, 0.0, finished=finished)

    def cost(self, steps: int) -> float:
        return float(steps)

    def progress(self, step: int) -> dict[str, Any]:
        return {"epoch": step / self.train_batches.steps_per_epoch, "epochs": self.recipe.epochs}

    def save(self, folder: Path, network: nn.Module, facts: Mapping[str, Any]) -> None:
        state = {name: p.detach() for name, p in network.named_parameters()}
        m = self.prepared.model
        state[TOKEN_EMBEDDING_KEY] = self.vocab_subset.merge(m.state[TOKEN_EMBEDDING_KEY], state[TOKEN_EMBEDDING_KEY])
        head = task_settings(self.description, m.config.family)
        # m.config has the dropout of the model, not that of the recipe.
        save_model(folder, state, m.config, m.tokenizer, card=self.card(facts), head=head)
        self.description.save(folder)
        self.saved = self._last if facts["evaluated"] == facts["step"] else None


CPU_TOKENS = 512  # of the timed steps: enough to be efficient, few enough to be fast
TIMING_DEVIATION = 0.02  # random weights take the same time; the initialization of a training takes a second
TIMING_SECONDS = 0.5  # of measurement, or three steps


def forecast(job: FinetuneJob, device: torch.device, processes: int = 1) -> float:
    """Seconds of the whole training with all evaluations, if it does not end early: timed on a random network of the
    same size, on examples of all lengths."""
    recipe = job.recipe
    with meta_device_init():
        network = job.network()
    network = network.to_empty(device=device)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=TIMING_DEVIATION)
    max_tokens = recipe.micro_batch_tokens if device.type == "cuda" else CPU_TOKENS
    groups = job.prepared.groups
    sample = _sample_lengths(groups, recipe.batch_size, max_tokens)
    batch = collate([example for group in sample for example in group]).to(device)
    train_tokens, dev_tokens = num_tokens(groups), num_tokens(job.dev_units)
    per_batch, update = time_step(network, recipe.optimizer, job.precision, batch, TIMING_SECONDS)
    once = 0.0
    if network.features is not None and network.features.remember(groups):
        network.features.remember(sample)  # the encoder runs once per example, in the training too
        head_only, update = time_step(network, recipe.optimizer, job.precision, batch, TIMING_SECONDS)
        once, per_batch = per_batch - head_only, head_only
    evaluations = -(-job.num_steps // job.evaluate_every)
    # A backward pass costs as much as two forward passes.
    tokens = recipe.epochs * train_tokens / processes + evaluations * dev_tokens / 3
    return (once * (train_tokens + dev_tokens) + per_batch * tokens) / len(batch.input_ids) + update * job.num_steps


def _sample_lengths(groups: Sequence[ExampleGroup], count: int, max_tokens: int) -> list[ExampleGroup]:
    """At most `count` groups of all lengths with at most `max_tokens` tokens together, but at least one group."""
    ordered = sorted(groups, key=lambda group: num_tokens([group]))
    count = min(count, len(ordered), max(1, max_tokens * len(ordered) // num_tokens(ordered)))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def num_tokens(groups: Sequence[ExampleGroup]) -> int:
    return sum(len(example.input_ids) for group in groups for example in group)
