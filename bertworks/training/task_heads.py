"""Heads of fine-tuning and their losses.

- `FrozenFeatures`: hidden states of a frozen encoder, computed once and kept for all epochs
- `TaskHead`: the number of outputs and the loss of a task
- `TaskModel`: an encoder with the head of a task
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.batching.batch import Batch, ExampleGroup, token_budget_batches
from bertworks.models.config import EncoderConfig
from bertworks.models.encoder import BiLSTM, Encoder, OutputLayer, Pooler, initialize
from bertworks.training.objectives import LossSum, TrainableModel, cross_entropy, divergence

SentenceVectors = Literal["pooler", "mean", "pair", "cosine"]
FEATURE_LAYERS = 4  # last layers; their concatenated hidden states are the best features (Devlin et al. 2019, table 7)
MAX_FEATURE_BYTES = 2 << 30  # of cached features
FEATURE_BATCH_TOKENS = 4096  # of a batch whose features are cached, with padding


def frozen_features_size(c: EncoderConfig) -> int:
    """Size of the features of a token. An encoder with fewer layers gives all of them."""
    return min(FEATURE_LAYERS, c.num_hidden_layers) * c.hidden_size


class FrozenFeatures:
    """`features(batch)` is float32 [T, width]: the concatenated hidden states of the last layers, without dropout and
    gradients, in any precision of the training. The encoder must not change after the first call."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self._to_cache: list[ExampleGroup] = []
        self._cache: dict[bytes, Tensor] = {}

    def remember(self, groups: Sequence[ExampleGroup]) -> bool:
        """Caches the features of these examples at the next call, all in one pass, so that they do not depend on the
        order of the calls. False: they need more than MAX_FEATURE_BYTES, and are computed each time."""
        tokens = sum(len(example.input_ids) for group in groups for example in group)
        if 4 * tokens * frozen_features_size(self.encoder.config) > MAX_FEATURE_BYTES:
            return False
        self._to_cache = list(groups)
        return True

    def __call__(self, batch: Batch) -> Tensor:
        for inputs in token_budget_batches(self._to_cache, FEATURE_BATCH_TOKENS):
            features = self._compute(inputs.to(batch.input_ids.device)).cpu()
            pieces = features.split(inputs.layout.cu_seqlens.diff().tolist())
            # Copies: a piece is a view that keeps the features of the whole batch.
            self._cache |= {key: piece.clone() for key, piece in zip(_sequence_keys(inputs), pieces, strict=True)}
        self._to_cache = []
        keys = _sequence_keys(batch)
        if not self._cache.keys() >= set(keys):
            return self._compute(batch)
        return torch.cat([self._cache[key] for key in keys]).to(batch.input_ids.device)

    @torch.no_grad()
    def _compute(self, batch: Batch) -> Tensor:
        training = self.encoder.training
        self.encoder.eval()
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids)
        self.encoder.train(training)
        return torch.cat(states[1:][-FEATURE_LAYERS:], -1)


def _sequence_keys(batch: Batch) -> list[bytes]:
    """The inputs of the encoder for each sequence, as bytes."""
    assert batch.token_type_ids is not None
    inputs = torch.stack([batch.input_ids, batch.token_type_ids]).cpu()
    return [part.numpy().tobytes() for part in inputs.split(batch.layout.cu_seqlens.diff().tolist(), 1)]


def combine_vectors(x: Tensor, kind: SentenceVectors) -> Tensor:
    """The features of an item: float32 [B, width].

    x: the mean vectors of its sequences, [B, hidden] or, of pairs, [2 B, hidden].
    kind: "mean": the vector. "pair": |u - v|, u * v (Conneau et al. 2017, section 3.1) and the cosine of both vectors
        with length 1. "cosine": the cosine alone. "pooler": not from here.
    """
    if kind == "mean":
        return x
    u, v = F.normalize(x.view(-1, 2, x.shape[-1]), dim=-1).unbind(1)
    cosine = (u * v).sum(-1, keepdim=True)
    return cosine if kind == "cosine" else torch.cat([(u - v).abs(), u * v, cosine], -1)


@dataclass(frozen=True, kw_only=True)
class TaskHead(ABC):
    """The loss of a task over the M predictions of a batch of B sequences: one each, or one for many tokens of each.

    head: name of the output layer in a model folder.
    outputs: logits of a prediction.
    pooled: whether whole sequences are classified, or tokens.
    vectors: what of a sequence is classified, if `pooled`; see `combine_vectors`.
    """

    head: ClassVar[Literal["classifier", "span"]] = "classifier"
    outputs: int = 1
    pooled: bool = True
    vectors: SentenceVectors = "pooler"

    def width(self, hidden_size: int) -> int:
        """The number of features that the output layer reads."""
        return {"pair": 2 * hidden_size + 1, "cosine": 1}.get(self.vectors, hidden_size)

    def count(self, batch: Batch) -> int:
        """The number of terms of the loss."""
        return batch.target.labels.numel()

    @abstractmethod
    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        """The loss. logits: float32 [M, outputs]."""


@dataclass(frozen=True, kw_only=True)
class Classification(TaskHead):
    """One of several labels, the outputs: of a sequence (Devlin et al. 2019, section 4.1) or, if not `pooled`, of each
    predicted token (section 5.3).

    weights: of the labels in the loss, with a mean of 1 over the training data; (): all 1.
    smoothing: fraction of the target probability that is spread over all labels.
    """

    weights: tuple[float, ...] = ()
    smoothing: float = 0.0

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        weights = logits.new_tensor(self.weights) if self.weights else None
        return cross_entropy(logits, batch.target.labels, weights, self.smoothing)


@dataclass(frozen=True, kw_only=True)
class MultiLabel(TaskHead):
    """Each label, yes or no. Labels of a batch: float32 [B, outputs] of zeros and ones."""

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        loss = F.binary_cross_entropy_with_logits(logits, batch.target.labels, reduction="sum")
        return LossSum(loss, ((logits.detach() > 0) == (batch.target.labels > 0.5)).sum().float())


@dataclass(frozen=True, kw_only=True)
class Regression(TaskHead):
    """A number. Labels of a batch: float32 [B]. The squared error is in units of the standard deviation of the targets,
    and the bias starts at their mean, so that the scale of the targets does not matter."""

    mean: float = 0.0
    deviation: float = 1.0

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        off = (logits[:, 0] - batch.target.labels) / self.deviation
        return LossSum(off.square().sum(), (off.detach().abs() < 0.5).sum().float())


@dataclass(frozen=True, kw_only=True)
class SpanExtraction(TaskHead):
    """Start and end of an answer (section 4.2), predicted from all tokens. Labels of a batch: int64 [2 B], positions of
    the first and last token of the answer, both 0 ([CLS]) if there is none (section 4.3)."""

    head: ClassVar[Literal["classifier", "span"]] = "span"
    outputs: int = 2
    pooled: bool = False

    def count(self, batch: Batch) -> int:
        return batch.layout.num_sequences

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        absent = ~batch.layout.present[:, :, None]
        scores = batch.layout.pad(logits).masked_fill(absent, torch.finfo(torch.float32).min)  # [B, S, 2]
        labels = batch.target.labels.view(-1, 2)
        loss = F.cross_entropy(scores, labels, reduction="sum") / 2
        return LossSum(loss, (scores.detach().argmax(1) == labels).all(1).sum().float())


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(TaskHead):
    """The best of several continuations (section 4.4): `num_choices` sequences in a row, each with one score. Labels of
    a batch: float32 [B], 1 for the right choice, else 0."""

    num_choices: int

    def count(self, batch: Batch) -> int:
        return len(batch.target.labels) // self.num_choices

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        scores, labels = logits.view(-1, self.num_choices), batch.target.labels.view(-1, self.num_choices)
        return cross_entropy(scores, labels.argmax(1))


def teacher_loss(task: TaskHead, logits: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """The sum of the losses of logits, float32 [M, outputs], that should be those of a teacher: for numbers the squared
    error as in `Regression`, for several labels the divergence of each probability, else that of all."""
    if isinstance(task, Regression):
        return ((logits - theirs) / task.deviation).square().sum()
    if isinstance(task, MultiLabel):  # a sigmoid is a softmax over x and 0
        logits, theirs = (torch.stack([x, torch.zeros_like(x)], -1) for x in (logits, theirs))
    return divergence(logits, theirs, temperature)[0]


TEACHER = "teacher"  # the target with its logits


def output_dropout(c: EncoderConfig, task: TaskHead) -> float:
    """The dropout before the output layer: none for spans, as in google-research/bert `run_squad.py`, unless the model
    has its own."""
    if task.head == "span":
        return c.span_dropout or 0.0
    if c.sequence_dropout is not None and (task.pooled or c.token_dropout):
        return c.sequence_dropout
    return c.hidden_dropout


class TaskModel(TrainableModel):
    """An encoder with the head of a task.

    lstm_units: the encoder is frozen, and its last layers are read, as they are, by a two-layer bidirectional LSTM
        with this number of units (section 5.3, the feature-based approach); 0: no LSTM, the encoder is trained.
    teacher: of batches with the logits of a teacher: the weight of their loss, and the temperature.
    head_deviation: of the random weights of a classifier behind a pooler, see `training.recipe.FinetuneRecipe`. With
        many labels and few rows, large weights cost accuracy (docs/experiments, 2026-11-26).
    """

    def __init__(
        self, c: EncoderConfig, task: TaskHead, *, lstm_units: int = 0, head_deviation: float = 0.0,
        teacher: tuple[float, float] = (0.0, 1.0),
    ):  # fmt: skip
        super().__init__()
        self.task, self.dropout, (weight, self.temperature) = task, output_dropout(c, task), teacher
        self.weights = {"task": 1 - weight, "distillation": weight}
        self.encoder = Encoder(c)
        self.pooler = Pooler(c) if task.pooled and task.vectors == "pooler" else None
        self.pooler_dropout = c.hidden_dropout if c.pooler_dropout and not isinstance(task, MultipleChoice) else 0.0
        self.encoder.requires_grad_(lstm_units == 0)
        self.features = FrozenFeatures(self.encoder) if lstm_units else None
        self.recurrent = BiLSTM(frozen_features_size(c), lstm_units) if lstm_units else None
        layer = OutputLayer(2 * lstm_units or task.width(c.hidden_size), task.outputs)
        initialize(layer, c)
        if head_deviation and self.pooler is not None and isinstance(task, Classification | MultiLabel):
            labels = max(2, task.outputs) if isinstance(task, Classification) else 2
            layer.weight.data *= head_deviation * math.sqrt(2 / labels / layer.in_features) / (c.initializer_range or 1)
        self.add_module(task.head, layer)
        if isinstance(task, Regression):
            nn.init.constant_(layer.bias, task.mean)

    def counts(self, batch: Batch) -> dict[str, int]:
        count = self.task.count(batch)
        return {"task": count, "distillation": count} if TEACHER in batch.targets else {"task": count}

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        logits = self.logits(batch).float()
        losses = {"task": self.task.tally(logits, batch)}
        if TEACHER in batch.targets:
            loss = teacher_loss(self.task, logits, batch.targets[TEACHER].labels, self.temperature)
            losses["distillation"] = LossSum(loss, loss.new_zeros(()))
        return losses

    def logits(self, batch: Batch) -> Tensor:
        """[M, outputs]: the logits of all predictions."""
        output, dropout = self.get_submodule(self.task.head), 0.0 if self.task.vectors == "cosine" else self.dropout
        return output(F.dropout(self.head_inputs(batch), dropout, self.training))  # type: ignore[no-any-return]

    def head_inputs(self, batch: Batch) -> Tensor:
        """[M, width]: what the output layer reads, without its dropout."""
        if self.task.vectors != "pooler":
            states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids)
            return combine_vectors(batch.layout.mean(states[-1]), self.task.vectors)
        x = self._states(batch)
        return x if self.pooler is None else self.pooler(F.dropout(x, self.pooler_dropout, self.training))

    def _states(self, batch: Batch) -> Tensor:
        """[M, width]: hidden states of the predicted tokens."""
        if self.features is not None and self.recurrent is not None:
            x = self.features(batch).to(next(self.recurrent.parameters()).dtype)
            return self.recurrent(x, batch.layout)[batch.target.positions]  # type: ignore[no-any-return]
        everything = len(batch.target.positions) == len(batch.input_ids)
        rows = None if everything else batch.target.positions
        return self.encoder(batch.input_ids, batch.layout, batch.token_type_ids, rows)[-1]  # type: ignore[no-any-return]
