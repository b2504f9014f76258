"""Objectives of pre-training, and the network that learns several of them at once.

- `OBJECTIVES`: the objectives by kind, each with its heads, loss and figures; reports and evaluations iterate over it
- `PretrainingModel`: an encoder with the heads of its objectives; BERT is `masked_lm` + `next_sentence`
- `TrainableModel`: what the training loop needs of a network
- `LossSum`: losses as sums. The mean is taken once, over all micro-batches and processes, so that an accumulated batch
  equals a large one however unequal its parts are
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.models.config import EncoderConfig, Head
from bertworks.models.encoder import Encoder, LMHead, Pooler, initialize
from bertworks.training.recipe import ObjectiveKind

CHUNK_BYTES = 1 << 27  # of logits in memory at the same time


class LossSum(NamedTuple):
    """A loss over a batch, and the number of correct predictions."""

    loss: Tensor  # float32 []: sum of the losses
    correct: Tensor  # float32 []: how often the label has the highest logit


@dataclass(frozen=True)
class LossStats:
    """A loss and its accuracy over many batches and processes."""

    loss: float
    accuracy: float
    count: int


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0) -> LossSum:
    """logits [M, C], labels int64 [M].

    weights: [C], of the labels.
    smoothing: fraction of the target probability that is spread over all labels.
    """
    loss = F.cross_entropy(logits.float(), labels, weights, reduction="sum", label_smoothing=smoothing)
    return LossSum(loss, (logits.detach().argmax(-1) == labels).sum().float())


def vocabulary_cross_entropy(x: Tensor, embeddings: Tensor, bias: Tensor | None, labels: Tensor) -> LossSum:
    """The cross-entropy of the logits `x @ embeddings.T + bias`, the largest tensor of a small BERT, without keeping
    them.

    x [M, hidden], embeddings [V, hidden], bias [V], labels int64 [M].
    """
    return LossSum(*_VocabularyCrossEntropy.apply(x, embeddings, bias, labels))  # type: ignore[no-untyped-call]


class _VocabularyCrossEntropy(torch.autograd.Function):
    """The gradient of the logits is the softmax minus one at the label. It is known in the forward pass, which computes
    the gradients of its inputs at once, some rows at a time, and frees the logits."""

    @staticmethod
    def forward(ctx, x: Tensor, embeddings: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        needs_grad = any(ctx.needs_input_grad)
        loss = x.new_zeros((), dtype=torch.float32)
        correct = torch.zeros_like(loss)
        grad_x = torch.empty_like(x) if needs_grad else None
        grad_embeddings = grad_bias = None
        chunks = math.ceil(len(x) * len(embeddings) * x.element_size() / CHUNK_BYTES)
        size = math.ceil(len(x) / chunks) if chunks else 1
        for start in range(0, len(x), size):
            rows, targets = x[start : start + size], labels[start : start + size]
            p = F.linear(rows, embeddings, bias)
            correct += _num_correct(p, targets)
            torch.softmax(p, -1, out=p)
            probability = p.gather(1, targets[:, None]).float()
            loss -= probability.clamp_min(torch.finfo(torch.float32).tiny).log().sum()
            if grad_x is not None:
                p[torch.arange(len(targets), device=p.device), targets] -= 1
                torch.mm(p, embeddings, out=grad_x[start : start + size])
                part_embeddings, part_bias = torch.mm(p.t(), rows), p.sum(0)
                if chunks > 1:  # many sums are added up in single precision
                    part_embeddings, part_bias = part_embeddings.float(), part_bias.float()
                grad_embeddings = part_embeddings if grad_embeddings is None else grad_embeddings.add_(part_embeddings)
                if bias is not None:
                    grad_bias = part_bias if grad_bias is None else grad_bias.add_(part_bias)
        ctx.dtype = x.dtype
        ctx.save_for_backward(grad_x, grad_embeddings, grad_bias)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        return *(None if g is None else (g * grad).to(ctx.dtype) for g in ctx.saved_tensors), None


def _num_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How often the label is the argmax, the first of equal ones. On a CPU the argmax takes longer than the softmax, so
    it is computed only for rows in which no logit is above the label's."""
    if not logits.is_cuda:
        (best,) = (logits.gather(1, labels[:, None]) >= logits.amax(-1, keepdim=True)).squeeze(1).nonzero(as_tuple=True)
        logits, labels = logits.index_select(0, best), labels.index_select(0, best)
    return (logits.argmax(-1) == labels).sum()


class TrainableModel(nn.Module, ABC):
    """A network that turns a batch into named sums of losses: `model(batch)` is a dict of `LossSum`.

    weights: of the losses in the sum that is minimized, by name.
    counts(batch): the denominators, known before the forward pass: that of a whole step is needed for its first
        gradient.
    """

    weights: dict[str, float]

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]: ...


class Measure(NamedTuple):
    """A figure of an objective, and how it is printed."""

    name: str
    compute: Callable[[LossStats], float]
    format: str
    starts_at_zero: bool = False  # the axis of its chart


LOSS = Measure("loss", lambda stats: stats.loss, "{:.3f}")
ACCURACY = Measure("accuracy", lambda stats: stats.accuracy, "{:.1%}", True)
PERPLEXITY = Measure("perplexity", lambda stats: math.exp(min(stats.loss, 700.0)), "{:,.1f}", True)


class Objective(NamedTuple):
    """A loss over the hidden states at the positions of its target.

    title: what is predicted, in reports.
    measures: the first one decides which checkpoint is the best: lower is better.
    loss: the sum of the losses, of the last hidden states [M, hidden] at these positions and labels int64 [M].
    """

    title: str
    heads: tuple[Head, ...]
    measures: tuple[Measure, ...]
    loss: Callable[["PretrainingModel", Tensor, Tensor], LossSum]


def _token_loss(model: "PretrainingModel", states: Tensor, labels: Tensor) -> LossSum:
    assert model.lm_head is not None
    x = model.lm_head.transform(states)
    embeddings = model.encoder.embeddings.token.weight.to(x.dtype)
    return vocabulary_cross_entropy(x, embeddings, model.lm_head.bias, labels)


def _pair_loss(head: Head, model: "PretrainingModel", states: Tensor, labels: Tensor) -> LossSum:
    assert model.pooler is not None
    return cross_entropy(model.get_submodule(head)(model.pooler(states)), labels)


OBJECTIVES: Mapping[str, Objective] = {
    # Predict the masked tokens (Devlin et al. 2019, section 3.1, task 1).
    "masked_lm": Objective(
        title="masked tokens",
        heads=("lm_head",),
        measures=(LOSS, ACCURACY, PERPLEXITY),
        loss=_token_loss,
    ),
    # Predict each token from those before it (Radford et al. 2018, section 3.1).
    "causal_lm": Objective(
        title="next tokens",
        heads=("lm_head",),
        measures=(LOSS, ACCURACY, PERPLEXITY),
        loss=_token_loss,
    ),
    # Predict whether segment B follows segment A (task 2).
    "next_sentence": Objective(
        title="next sentence",
        heads=("pooler", "next_sentence"),
        measures=(LOSS, ACCURACY),
        loss=partial(_pair_loss, "next_sentence"),
    ),
    # Predict which of two segments comes first in the text (Lan et al. 2020, section 3.1).
    "sentence_order": Objective(
        title="sentence order",
        heads=("pooler", "sentence_order"),
        measures=(LOSS, ACCURACY),
        loss=partial(_pair_loss, "sentence_order"),
    ),
}
BERT: Mapping[ObjectiveKind, float] = {"masked_lm": 1.0, "next_sentence": 1.0}


def heads_of(kinds: Iterable[str]) -> tuple[Head, ...]:
    """The heads that these objectives need."""
    needed = {head for kind in kinds for head in OBJECTIVES[kind].heads}
    return tuple(head for head in get_args(Head) if head in needed)


def figures(means: Mapping[str, LossStats]) -> dict[str, float]:
    """The figures of an evaluation, such as `masked_lm_accuracy`."""
    return {
        f"{kind}_{measure.name}": measure.compute(stats)
        for kind, stats in means.items()
        for measure in OBJECTIVES[kind].measures
    }


class PretrainingModel(TrainableModel):
    """An encoder with the heads of its objectives, whose weighted losses are added. The default is BERT (Devlin et al.
    2019, appendix A.2). One pass of the encoder serves all objectives; its last layer is computed only at the positions
    that they read.

    Args:
        objectives: the weights of the losses by kind, see `OBJECTIVES`.
    """

    def __init__(
        self,
        c: EncoderConfig,
        objectives: Mapping[ObjectiveKind, float] = BERT,
        *,
        gradient_checkpointing: bool = False,
    ):
        super().__init__()
        self.weights = {str(kind): weight for kind, weight in objectives.items()}
        heads = heads_of(objectives)
        self.encoder = Encoder(c, gradient_checkpointing)
        self.pooler = Pooler(c) if "pooler" in heads else None
        self.lm_head = LMHead(c) if "lm_head" in heads else None
        self.next_sentence = nn.Linear(c.hidden_size, 2) if "next_sentence" in heads else None
        self.sentence_order = nn.Linear(c.hidden_size, 2) if "sentence_order" in heads else None
        for head in (self.next_sentence, self.sentence_order):
            if head is not None:
                initialize(head, c)

    def counts(self, batch: Batch) -> dict[str, int]:
        return {kind: len(batch.targets[kind].labels) for kind in self._present(batch)}

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        kinds = self._present(batch)
        positions = [self._positions(kind, batch) for kind in kinds]
        states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids, torch.cat(positions))[-1]
        parts = states.split([len(rows) for rows in positions])
        return {
            kind: OBJECTIVES[kind].loss(self, part, batch.targets[kind].labels)
            for kind, part in zip(kinds, parts, strict=True)
        }

    def scores(self, batch: Batch) -> Tensor:
        """[M, V]: the logits of the vocabulary at the masked tokens."""
        assert self.lm_head is not None
        positions = batch.targets["masked_lm"].positions
        states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids, positions)[-1]
        return self.lm_head(states, self.encoder.embeddings.token.weight)  # type: ignore[no-any-return]

    def _positions(self, kind: str, batch: Batch) -> Tensor:
        """int64 [M]: the positions of the hidden states that a loss reads: of its target, or of the pooler."""
        if self.pooler is not None and "pooler" in OBJECTIVES[kind].heads:
            return self.pooler.tokens(batch.layout).long()
        return batch.targets[kind].positions

    def _present(self, batch: Batch) -> list[str]:
        """The objectives whose targets a batch has."""
        return [kind for kind in self.weights if kind in batch.targets]
