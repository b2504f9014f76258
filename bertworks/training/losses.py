"""Losses as sums. The mean is taken once, over all micro-batches and processes, so that an accumulated batch equals a
large one however unequal its parts are.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

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


def cross_entropy(logits: Tensor, labels: Tensor) -> LossSum:
    """logits [M, C], labels int64 [M]."""
    loss = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
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
        has_bias = bias is not None
        for start in range(0, len(x), size):
            rows, targets = x[start : start + size], labels[start : start + size]
            p = torch.nn.functional.linear(rows, embeddings, bias)
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
                if has_bias:
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
