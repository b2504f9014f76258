"""Losses as sums. The mean is taken once, over all micro-batches and processes, so that an accumulated batch equals a
large one however unequal its parts are.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK_BYTES = 1 << 27  # of scores held at once


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


def vocabulary_cross_entropy(x: Tensor, words: Tensor, bias: Tensor | None, labels: Tensor) -> LossSum:
    """The cross-entropy of `x @ words.T + bias`, whose scores are the largest tensor of a small BERT: never kept.

    x [M, hidden], words [V, hidden], bias [V], labels int64 [M].
    """
    return LossSum(*_VocabularyCrossEntropy.apply(x, words, bias, labels))  # type: ignore[no-untyped-call]


class _VocabularyCrossEntropy(torch.autograd.Function):
    """The gradient of the scores is the softmax less one at the label: it is known in the forward pass, which therefore
    computes the gradients of its inputs at once, some rows at a time, and forgets the scores."""

    @staticmethod
    def forward(ctx, x: Tensor, words: Tensor, bias: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
        needs_grad = any(ctx.needs_input_grad)
        loss = x.new_zeros((), dtype=torch.float32)
        correct = torch.zeros_like(loss)
        grad_x = torch.empty_like(x) if needs_grad else None
        grad_words = grad_bias = None
        chunks = math.ceil(len(x) * len(words) * x.element_size() / CHUNK_BYTES)
        size = math.ceil(len(x) / chunks) if chunks else 1
        has_bias = bias is not None
        for start in range(0, len(x), size):
            part, asked = x[start : start + size], labels[start : start + size]
            p = torch.nn.functional.linear(part, words, bias)
            correct += _num_correct(p, asked)
            torch.softmax(p, -1, out=p)
            told = p.gather(1, asked[:, None]).float()
            loss -= told.clamp_min(torch.finfo(torch.float32).tiny).log().sum()
            if grad_x is not None:
                p[torch.arange(len(asked), device=p.device), asked] -= 1
                torch.mm(p, words, out=grad_x[start : start + size])
                in_words, in_bias = torch.mm(p.t(), part), p.sum(0)
                if chunks > 1:  # many sums are added up in single precision
                    in_words, in_bias = in_words.float(), in_bias.float()
                grad_words = in_words if grad_words is None else grad_words.add_(in_words)
                if has_bias:
                    grad_bias = in_bias if grad_bias is None else grad_bias.add_(in_bias)
        ctx.dtype = x.dtype
        ctx.save_for_backward(grad_x, grad_words, grad_bias)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        return *(None if g is None else (g * grad).to(ctx.dtype) for g in ctx.saved_tensors), None


def _num_correct(scores: Tensor, labels: Tensor) -> Tensor:
    """How often the label is the argmax, the first of equal ones. On a CPU that takes longer than the softmax, so that
    it is looked for only where no score is above the label's."""
    if not scores.is_cuda:
        (best,) = (scores.gather(1, labels[:, None]) >= scores.amax(-1, keepdim=True)).squeeze(1).nonzero(as_tuple=True)
        scores, labels = scores.index_select(0, best), labels.index_select(0, best)
    return (scores.argmax(-1) == labels).sum()
