"""Heads of fine-tuning and their losses.

- `FrozenFeatures`: hidden states of a frozen encoder, computed once and kept for all epochs
- `TaskHead`: the number of outputs and the loss of a task
- `TaskModel`: an encoder with the head of a task
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.batching.batch import Batch, ExampleGroup, collate, token_budget_batches
from bertworks.models.config import EncoderConfig
from bertworks.models.encoder import Encoder, initialize
from bertworks.models.heads import BiLSTM, OutputLayer, Pooler
from bertworks.training.losses import LossSum

FEATURE_LAYERS = (
    4  # the last ones, whose states side by side were the best features of all (Devlin et al. 2019, table 7)
)
MAX_FEATURE_BYTES = 2 << 30  # that are remembered
FEATURE_BATCH_TOKENS = 4096  # that are computed at once to be remembered, padding counted


def frozen_features_size(c: EncoderConfig) -> int:
    """Of the features: an encoder of fewer layers gives all that it has."""
    return min(FEATURE_LAYERS, c.num_hidden_layers) * c.hidden_size


class FrozenFeatures:
    """`features(batch)` is float32 [T, width]: the states of the last layers side by side, without dropout and without
    gradients, whatever the precision of the training. The encoder must not change any more once it was asked."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self._wanted: list[ExampleGroup] = []
        self._known: dict[bytes, Tensor] = {}

    def remember(self, units: Sequence[ExampleGroup]) -> bool:
        """From the next question on, what these units hold is known by heart, computed in one pass: nothing depends on
        the order of the questions. False: it would take more than MOST_BYTES, and is computed each time."""
        tokens = sum(len(one.input_ids) for unit in units for one in unit)
        if 4 * tokens * frozen_features_size(self.encoder.config) > MAX_FEATURE_BYTES:
            return False
        self._wanted = list(units)
        return True

    def __call__(self, batch: Batch) -> Tensor:
        for part in token_budget_batches(self._wanted, FEATURE_BATCH_TOKENS):
            asked = collate([one for unit in part for one in unit])
            found = self._computed(asked.to(batch.input_ids.device)).cpu()
            pieces = found.split(asked.layout.cu_seqlens.diff().tolist())
            # Copies: a piece would keep all that was computed with it.
            self._known |= {name: piece.clone() for name, piece in zip(_sequence_keys(asked), pieces, strict=True)}
        self._wanted = []
        known = [self._known.get(name) for name in _sequence_keys(batch)] if self._known else [None]
        found_all = [one for one in known if one is not None]
        if len(found_all) < len(known):
            return self._computed(batch)
        return torch.cat(found_all).to(batch.input_ids.device)

    @torch.no_grad()
    def _computed(self, batch: Batch) -> Tensor:
        training = self.encoder.training
        self.encoder.eval()
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids)
        self.encoder.train(training)
        return torch.cat(states[1:][-FEATURE_LAYERS:], -1)


def _sequence_keys(batch: Batch) -> list[bytes]:
    """Of the sequences: all that the encoder reads of each."""
    ends = batch.layout.cu_seqlens.tolist()
    assert batch.token_type_ids is not None
    rows = torch.stack([batch.input_ids, batch.token_type_ids]).cpu().numpy()
    return [rows[:, start:end].tobytes() for start, end in pairwise(ends)]


class TaskHead(Protocol):
    """M things are asked of a batch, B sequences: one thing each, or many tokens of each."""

    @property
    def head(self) -> Literal["classifier", "span"]: ...  # what the last layer is called in a model folder
    @property
    def pooled(self) -> bool: ...  # is the sequence asked, by the pooler over its [CLS], or are its tokens?
    @property
    def outputs(self) -> int: ...
    def count(self, batch: Batch) -> int: ...  # what the loss is summed over
    def tally(self, logits: Tensor, batch: Batch) -> LossSum: ...  # logits float32 [M, outputs]


@dataclass(frozen=True, kw_only=True)
class Classification:
    """One of several labels: of a sequence (Devlin et al. 2019, section 4.1) or, where not `pooled`, of each asked
    token (section 5.3).

    weights: of the labels in the loss, with a mean of 1 over the training data; (): all 1.
    smoothing: share of the wanted probability that is spread over all labels.
    """

    num_labels: int
    pooled: bool = True
    weights: tuple[float, ...] = ()
    smoothing: float = 0.0
    head: ClassVar[Literal["classifier", "span"]] = "classifier"

    @property
    def outputs(self) -> int:
        return self.num_labels

    def count(self, batch: Batch) -> int:
        return len(batch.target.labels)

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        weights = logits.new_tensor(self.weights) if self.weights else None
        loss = F.cross_entropy(logits, batch.target.labels, weights, reduction="sum", label_smoothing=self.smoothing)
        return LossSum(loss, (logits.detach().argmax(-1) == batch.target.labels).sum().float())


@dataclass(frozen=True, kw_only=True)
class MultiLabel:
    """Each label, yes or no. Labels of a batch: float32 [B, num_labels] of zeros and ones."""

    num_labels: int
    head: ClassVar[Literal["classifier", "span"]] = "classifier"
    pooled: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.num_labels

    def count(self, batch: Batch) -> int:
        return batch.target.labels.numel()

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        loss = F.binary_cross_entropy_with_logits(logits, batch.target.labels, reduction="sum")
        return LossSum(loss, ((logits.detach() > 0) == (batch.target.labels > 0.5)).sum().float())


@dataclass(frozen=True, kw_only=True)
class Regression:
    """A number. Labels of a batch: float32 [B]. The squared error is taken in units of the targets' deviation, and the
    head begins at their mean: what the scale of a user's numbers is should not decide how fast they are learned."""

    mean: float = 0.0
    deviation: float = 1.0
    head: ClassVar[Literal["classifier", "span"]] = "classifier"
    pooled: ClassVar[bool] = True
    outputs: ClassVar[int] = 1

    def count(self, batch: Batch) -> int:
        return len(batch.target.labels)

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        off = (logits[:, 0] - batch.target.labels) / self.deviation
        return LossSum(off.square().sum(), (off.detach().abs() < 0.5).sum().float())


@dataclass(frozen=True, kw_only=True)
class SpanExtraction:
    """Where an answer begins and ends (section 4.2). All tokens are asked; labels of a batch: int64 [2 B], first and
    last token of the answer by their place in the sequence, both 0 ([CLS]) where it has none (section 4.3)."""

    head: ClassVar[Literal["classifier", "span"]] = "span"
    pooled: ClassVar[bool] = False
    outputs: ClassVar[int] = 2

    def count(self, batch: Batch) -> int:
        return batch.layout.num_sequences

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        absent = ~batch.layout.present[:, :, None]
        scores = batch.layout.pad(logits).masked_fill(absent, torch.finfo(torch.float32).min)  # [B, S, 2]
        labels = batch.target.labels.view(-1, 2)
        loss = F.cross_entropy(scores, labels, reduction="sum") / 2
        return LossSum(loss, (scores.detach().argmax(1) == labels).all(1).sum().float())


@dataclass(frozen=True, kw_only=True)
class MultipleChoice:
    """The best of several continuations (section 4.4): `num_choices` sequences in a row, each with one score. Labels of
    a batch: float32 [B], 1 for the right choice, else 0."""

    num_choices: int
    head: ClassVar[Literal["classifier", "span"]] = "classifier"
    pooled: ClassVar[bool] = True
    outputs: ClassVar[int] = 1

    def count(self, batch: Batch) -> int:
        return len(batch.target.labels) // self.num_choices

    def tally(self, logits: Tensor, batch: Batch) -> LossSum:
        scores, labels = logits.view(-1, self.num_choices), batch.target.labels.view(-1, self.num_choices).argmax(1)
        loss = F.cross_entropy(scores, labels, reduction="sum")
        return LossSum(loss, (scores.detach().argmax(-1) == labels).sum().float())


class TaskModel(nn.Module):
    """An encoder with the head of a task.

    lstm_units: the encoder is frozen, and its last layers are read, as they are, by a two-layer bidirectional LSTM
        with so many units (section 5.3, the feature-based approach); 0: there is none, and the encoder is learned.
    """

    def __init__(self, c: EncoderConfig, task: TaskHead, *, lstm_units: int = 0, gradient_checkpointing: bool = False):
        super().__init__()
        self.task, self.dropout, self.weights = task, c.hidden_dropout, {"task": 1.0}
        self.encoder = Encoder(c, gradient_checkpointing)
        self.pooler = Pooler(c) if task.pooled else None
        self.pooler_dropout = c.hidden_dropout if c.pooler_dropout and not isinstance(task, MultipleChoice) else 0.0
        self.features: FrozenFeatures | None = None
        self.recurrent: BiLSTM | None = None
        if lstm_units:
            self.encoder.requires_grad_(False)
            self.features = FrozenFeatures(self.encoder)
            self.recurrent = BiLSTM(frozen_features_size(c), lstm_units)
        layer = OutputLayer(2 * lstm_units or c.hidden_size, task.outputs)
        initialize(layer, c)
        self.classifier = layer if task.head == "classifier" else None
        self.span = layer if task.head == "span" else None
        if isinstance(task, Regression):
            nn.init.constant_(layer.bias, task.mean)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"task": self.task.count(batch)}

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        return {"task": self.task.tally(self.logits(batch).float(), batch)}

    def logits(self, batch: Batch) -> Tensor:
        """[M, outputs]: the scores of everything that is asked."""
        x = self._states(batch)
        if self.span is not None:  # without dropout, as in google-research/bert `run_squad.py`
            return self.span(x)  # type: ignore[no-any-return]
        assert self.classifier is not None
        if self.pooler is not None:
            x = self.pooler(F.dropout(x, self.pooler_dropout, self.training))
        return self.classifier(F.dropout(x, self.dropout, self.training))  # type: ignore[no-any-return]

    def _states(self, batch: Batch) -> Tensor:
        """[M, width]: of the tokens that are asked."""
        if self.features is not None and self.recurrent is not None:
            x = self.features(batch).to(next(self.recurrent.parameters()).dtype)
            return self.recurrent(x, batch.layout)[batch.target.positions]  # type: ignore[no-any-return]
        everything = len(batch.target.positions) == len(batch.input_ids)
        rows = None if everything else batch.target.positions
        return self.encoder(batch.input_ids, batch.layout, batch.token_type_ids, rows)[-1]  # type: ignore[no-any-return]
