"""The losses of static vectors: a word and its context against negative words.

- `context_loss`: blocks of words -> the loss of skip-gram or of a continuous bag of words
- `num_predictions`: what the mean is taken over

Negative sampling (Mikolov et al. 2013, "Distributed representations of words and phrases and their
compositionality", equation 4) draws a few negative words for each pair. Here the words of a block
share as many as the block has words, and each counts as often as that many pairs would draw it on
average: the expectation of the loss is the published one, and all is products of matrices.
"""

import torch
from torch import Tensor

from bertworks.batching.contexts import BLOCK
from bertworks.training.loop import LossSum


def num_predictions(kind: str, reach: Tensor) -> int:
    """Return the number of pairs ("skip_gram"), or of words that have a context ("cbow")."""
    return int(reach.sum()) if kind == "skip_gram" else int(reach.any(-1).sum())


def context_loss(
    kind: str, words: Tensor, targets: Tensor, reach: Tensor, num_negatives: int
) -> LossSum:
    """Return the sum of the losses of blocks of words. No correct predictions are counted.

    "skip_gram": each word predicts the words of its context, one by one. "cbow": the mean of the
    vectors of its context predicts a word (Mikolov et al. 2013, "Efficient estimation of word
    representations in vector space", section 3.1).

    words: [blocks, BLOCK, width], the first vector of each word.
    targets: [blocks, 2 * BLOCK, width], the second vectors of the same words, then those of the
        negative words.
    reach: int64 [blocks, BLOCK, 2], how many words before and after a word are its context.
    num_negatives: negative words of a prediction, on average.
    """
    pairs = _is_context(reach)
    if kind == "cbow":
        sizes = pairs.sum(-1, dtype=words.dtype)
        words = torch.bmm(pairs / sizes.clamp_min(1)[:, :, None], words)
        pairs = torch.diag_embed(sizes > 0)
    loss = _PairLoss.apply(words, targets, pairs, num_negatives / BLOCK)  # type: ignore[no-untyped-call]
    return LossSum(loss, torch.zeros_like(loss))


def _is_context(reach: Tensor) -> Tensor:
    """Return which word of a block is in the context of which: bool [blocks, BLOCK, BLOCK].

    reach: see `context_loss`.
    """
    before, after = reach.to(torch.int8)[:, :, None].unbind(-1)  # bytes are compared fast
    places = torch.arange(BLOCK, dtype=torch.int8, device=reach.device)
    distances = places - places[:, None]
    return (distances >= -before) & (distances <= after) & (distances != 0)


class _PairLoss(torch.autograd.Function):
    """The sum of -log sigmoid(x y) over pairs and of -log sigmoid(-x n) over negative words n.

    The gradient of the scores is known in the forward pass, so that the scores are not kept.

    x: [blocks, BLOCK, width]; y: [blocks, 2 * BLOCK, width], the negative words behind the others.
    pairs: bool [blocks, BLOCK, BLOCK], which x and y are a pair.
    weight: of a negative word, for each pair of x.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x: Tensor, y: Tensor, pairs: Tensor, weight: float
    ) -> Tensor:
        weights = torch.empty(*pairs.shape[:2], 2 * BLOCK, dtype=x.dtype, device=x.device)
        weights[:, :, :BLOCK] = pairs
        weights[:, :, BLOCK:] = weight * pairs.sum(-1, keepdim=True)
        scores = torch.bmm(x, y.transpose(1, 2))
        scores[:, :, BLOCK:].neg_()
        scores.sigmoid_().clamp_min_(torch.finfo(x.dtype).tiny)
        loss = -torch.dot(scores.log().flatten(), weights.flatten())
        if any(ctx.needs_input_grad):
            scores.sub_(1).mul_(weights)
            scores[:, :, BLOCK:].neg_()
        ctx.save_for_backward(x, y, scores)
        return loss

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        x, y, scores = ctx.saved_tensors
        scaled = scores * grad
        return torch.bmm(scaled, y), torch.bmm(scaled.transpose(1, 2), x), None, None
