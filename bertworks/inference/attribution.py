"""How much each token of one sequence has to do with one number that a network says of it: integrated gradients and
occlusion. Not here: which number that is (`use.explain`), and what attention does (`nn.attention_maps`), which is
another question.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Batch, collate
from bertworks.batching.masking import Example
from bertworks.batching.sampling import Ids

ATTRIBUTION_TOKENS = 4096  # of a batch of copies
FEWEST_STEPS, MOST_STEPS = 32, 512
MOST_TOKENS = 1 << 15  # of all copies on the way: a long text gets fewer steps
TOLERANCE = 0.01  # of the sum of all attributions without their signs


@dataclass(frozen=True)
class AttributionTarget:
    """A number of a network, for copies of one sequence.

    logits: Batch -> [all M, outputs], of a network in evaluation mode.
    word: the table of the word embeddings that it reads.
    value: [copies, M, outputs] -> [copies].
    """

    logits: Callable[[Batch], Tensor]
    word: nn.Embedding
    value: Callable[[Tensor], Tensor]

    def __call__(self, examples: Sequence[Example]) -> Tensor:
        """[copies], with gradients if they are enabled."""
        batch = collate(examples).to(self.word.weight.device)
        logits = self.logits(batch).float()
        return self.value(logits.view(len(examples), -1, logits.shape[-1]))


@dataclass(frozen=True)
class IntegratedGradients:
    """attributions: float64 [n]. They should sum to `end - start`, the number at the sequence less the number at the
    baseline (completeness, the theorem by which they are judged); `error` is by how much they do not."""

    attributions: NDArray[np.float64]
    start: float
    end: float
    steps: int

    @property
    def error(self) -> float:
        return float(self.attributions.sum() - (self.end - self.start))


def integrated_gradients(asked: AttributionTarget, example: Example, baseline: Ids) -> IntegratedGradients:
    """Sundararajan et al. 2017, over the word embeddings: the gradient's mean on the straight way from those of
    `baseline` to those of the sequence (Gauss-Legendre), times the difference. Steps are doubled until the completeness
    error is below TOLERANCE, or there are as many as may be.

    baseline: int64 [n], the tokens that stand for "nothing is said here"; where it has the sequence's own token, that
        token gets 0.
    """
    with torch.no_grad():
        end, start = asked([example, example._replace(input_ids=baseline)]).tolist()
        ids, other = (torch.from_numpy(x).to(asked.word.weight.device) for x in (example.input_ids, baseline))
        base = asked.word(other)
        difference = asked.word(ids) - base
    steps, most = FEWEST_STEPS, min(MOST_STEPS, MOST_TOKENS // len(base))
    while True:
        gradient = sum(_gradients(asked, example, base, difference, steps), torch.zeros_like(base))
        attributions = (gradient * difference).sum(-1).double().cpu().numpy()
        found = IntegratedGradients(attributions, start, end, steps)
        if abs(found.error) <= TOLERANCE * np.abs(attributions).sum() or 2 * steps > most:
            return found
        steps *= 2


def _gradients(
    asked: AttributionTarget, example: Example, base: Tensor, difference: Tensor, steps: int
) -> Iterator[Tensor]:
    """[n, hidden] each: parts of the mean gradient on the way."""
    nodes, weights = (torch.from_numpy(x).to(base) / 2 for x in np.polynomial.legendre.leggauss(steps))
    at_once = max(1, ATTRIBUTION_TOKENS // len(base))
    for place, weight in zip(nodes.split(at_once), weights.split(at_once), strict=True):
        mixed = (base + (place[:, None, None] + 0.5) * difference).flatten(0, 1).requires_grad_()
        hook = asked.word.register_forward_hook(lambda *_, mixed=mixed: mixed)  # the network reads these instead
        try:
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(asked([example] * len(place)).sum(), mixed)
        finally:
            hook.remove()
        yield (weight[:, None, None] * gradient.view(len(place), *base.shape)).sum(0)


@torch.no_grad()
def occlusion(
    asked: AttributionTarget, example: Example, words: Sequence[tuple[int, int]], baseline: Ids
) -> NDArray[np.float64]:
    """float64 [words]: by how much the number falls when the tokens of a word are replaced by those of `baseline`.

    words: first token and the one behind the last.
    """
    numbers, copies = [], []
    for number, (first, end) in enumerate(words):
        ids = example.input_ids.copy()
        ids[first:end] = baseline[first:end]
        if (ids != example.input_ids).any():  # what does not change falls by nothing, not by the last bit of a sum
            numbers.append(number)
            copies.append(example._replace(input_ids=ids))
    found = np.zeros(len(words))
    whole, at_once = asked([example]), max(1, ATTRIBUTION_TOKENS // len(example.input_ids))
    parts = [asked(copies[n : n + at_once]) for n in range(0, len(copies), at_once)]
    found[numbers] = (whole - torch.cat([whole[:0], *parts])).double().cpu().numpy()
    return found


def log_odds(logits: Tensor, output: int) -> Tensor:
    """[copies, outputs] -> [copies]: log p / (1 - p) of one of several outputs that exclude each other. Unlike a bare
    logit it does not change with what is added to all of them. A single output is taken as it is."""
    if logits.shape[-1] == 1:
        return logits[:, 0]
    own = torch.arange(logits.shape[-1], device=logits.device) == output
    return logits[:, output] - logits.masked_fill(own, -torch.inf).logsumexp(-1)
