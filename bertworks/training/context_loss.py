"""The losses of static vectors: a word and its context against negative words.

- `context_loss`: blocks of words -> the loss of skip-gram or of a continuous bag of words
- `num_predictions`: what the mean is taken over

Negative sampling (Mikolov et al. 2013, "Distributed representations of words and phrases and their
compositionality", equation 4) draws a few negative words for each pair. Here the words of a block
share as many as the block has words, and each counts as often as that many pairs would draw it on
average: the expectation of the loss is the published one, and all is products of matrices.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bertworks.batching.contexts import BLOCK
from bertworks.training.loop import LossSum


class Contexts(NamedTuple):
    """What the losses read of a batch of m words, m a multiple of BLOCK.

    outputs: [m, width], the second vector of each word.
    negatives: [m, width], those of the negative words.
    reach: int64 [m, 2], how many words before and after a word are its context.
    """

    outputs: Tensor
    negatives: Tensor
    reach: Tensor


def num_predictions(kind: str, reach: Tensor) -> int:
    """Return the number of pairs ("skip_gram"), or of words that have a context ("cbow")."""
    return int(reach.sum()) if kind == "skip_gram" else int(reach.any(-1).sum())


def context_loss(kind: str, words: Tensor, contexts: Contexts, num_negatives: int) -> LossSum:
    """Return the sum of the losses of blocks of words. No correct predictions are counted.

    "skip_gram": each word predicts the words of its context, one by one. "cbow": the mean of the
    vectors of its context predicts a word (Mikolov et al. 2013, "Efficient estimation of word
    representations in vector space", section 3.1).

    words: [m, width], the first vector of each word.
    num_negatives: negative words of a prediction, on average.
    """
    words, outputs, negatives = (
        x.unflatten(0, (-1, BLOCK)) for x in (words, contexts.outputs, contexts.negatives)
    )
    pairs = _is_context(contexts.reach).to(words.dtype)
    if kind == "cbow":
        sizes = pairs.sum(-1)
        words = torch.bmm(pairs / sizes.clamp_min(1)[:, :, None], words)
        pairs = torch.diag_embed((sizes > 0).to(words.dtype))
    loss = _PairLoss.apply(words, outputs, negatives, pairs, num_negatives / BLOCK)  # type: ignore[no-untyped-call]
    return LossSum(loss, torch.zeros_like(loss))


def _is_context(reach: Tensor) -> Tensor:
    """Return which word of a block is in the context of which: bool [blocks, BLOCK, BLOCK].

    reach: see `Contexts`.
    """
    before, after = reach.to(torch.int8).view(-1, BLOCK, 1, 2).unbind(-1)  # bytes are compared fast
    places = torch.arange(BLOCK, dtype=torch.int8, device=reach.device)
    distances = places - places[:, None]
    return (distances >= -before) & (distances <= after) & (distances != 0)


class _PairLoss(torch.autograd.Function):
    """The sum of -log sigmoid(x y) over pairs and of -log sigmoid(-x n) over negative words.

    The gradients are known in the forward pass, so that no logits are kept.

    x, y, n: [blocks, BLOCK, width]; pairs [blocks, BLOCK, BLOCK]: 1 where x and y are a pair, else
    0; weight: of a negative word, for each pair of x.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x: Tensor, y: Tensor, n: Tensor, pairs: Tensor, weight: float
    ) -> Tensor:
        smallest = torch.finfo(x.dtype).tiny
        of_pairs = torch.bmm(x, y.transpose(1, 2)).sigmoid_()
        of_negatives = torch.bmm(x, n.transpose(1, 2)).sigmoid_()
        weights = weight * pairs.sum(-1, keepdim=True)
        loss = -torch.dot(of_pairs.clamp_min(smallest).log_().flatten(), pairs.flatten())
        rests = (1 - of_negatives).clamp_min_(smallest).log_().sum(-1)
        loss = loss - torch.dot(rests.flatten(), weights.flatten())
        of_pairs.sub_(1).mul_(pairs)
        of_negatives.mul_(weights)
        ctx.save_for_backward(
            torch.bmm(of_pairs, y).baddbmm_(of_negatives, n),
            torch.bmm(of_pairs.transpose(1, 2), x),
            torch.bmm(of_negatives.transpose(1, 2), x),
        )
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        return *(grad * gradient for gradient in ctx.saved_tensors), None, None
