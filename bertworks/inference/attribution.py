"""Attributions: how much each token of a sequence contributes to an output of a network.

- `integrated_gradients` of tokens
- `occlusion` of words
- `read_tokens`: which tokens a hidden state depends on
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Example, Ids, collate
from bertworks.models.transformer import Encoder

ATTRIBUTION_TOKENS = 4096  # of a batch of copies
FEWEST_STEPS = 32
MOST_STEPS = 512
MOST_TOKENS = 1 << 15  # of all copies: long texts get fewer steps
TOLERANCE = 0.01  # of the sum of absolute attributions
# of a network, for copies of one sequence: [copies], with gradients
Output = Callable[[Sequence[Example]], Tensor]


@dataclass(frozen=True)
class IntegratedGradients:
    """attributions: float64 [n].

    They should sum to `end - start`, the output for the sequence minus the output for the baseline
    (completeness). `error` is the difference.
    """

    attributions: NDArray[np.float64]
    start: float
    end: float
    steps: int

    @property
    def error(self) -> float:
        """The difference of the sum of the attributions from that of the outputs."""
        return float(self.attributions.sum() - (self.end - self.start))


def integrated_gradients(
    output: Output, embedding: nn.Embedding, example: Example, baseline: Ids
) -> IntegratedGradients:
    """Return integrated gradients over the token embeddings (Sundararajan et al. 2017).

    They are the mean gradient on the straight line from the embeddings of `baseline` to those of
    the sequence (Gauss-Legendre), times the difference. The number of steps doubles until the
    completeness error is below TOLERANCE, or up to a limit.

    embedding: the token embeddings of the network.
    baseline: int64 [n], the tokens that stand for "no information". Tokens that are the same in the
        sequence get 0.
    """
    with torch.no_grad():
        end, start = output([example, example._replace(input_ids=baseline)]).tolist()
        ids, other = (
            torch.from_numpy(x).to(embedding.weight.device) for x in (example.input_ids, baseline)
        )
        base = embedding(other)
        difference = embedding(ids) - base

    def mean_gradient(steps: int) -> Tensor:
        """Return the mean gradient: [n, hidden]."""
        nodes, weights = (
            torch.from_numpy(x).to(base) / 2 for x in np.polynomial.legendre.leggauss(steps)
        )
        at_once = max(1, ATTRIBUTION_TOKENS // len(base))
        mean = torch.zeros_like(base)
        for positions, weight in zip(nodes.split(at_once), weights.split(at_once), strict=True):
            mixed = (
                (base + (positions[:, None, None] + 0.5) * difference)
                .flatten(0, 1)
                .requires_grad_()
            )
            replaced = embedding.register_forward_hook(lambda *_, mixed=mixed: mixed)
            with replaced, torch.enable_grad():
                (gradient,) = torch.autograd.grad(output([example] * len(positions)).sum(), mixed)
            mean += (weight[:, None, None] * gradient.view(len(positions), *base.shape)).sum(0)
        return mean

    steps = FEWEST_STEPS
    most = min(MOST_STEPS, MOST_TOKENS // len(base))
    while True:
        attributions = (mean_gradient(steps) * difference).sum(-1).double().cpu().numpy()
        result = IntegratedGradients(attributions, start, end, steps)
        if abs(result.error) <= TOLERANCE * np.abs(attributions).sum() or 2 * steps > most:
            return result
        steps *= 2


@torch.no_grad()
def occlusion(
    output: Output, example: Example, words: Sequence[tuple[int, int]], baseline: Ids
) -> NDArray[np.float64]:
    """Return by how much the output falls when the tokens of a word are replaced: float64 [words].

    They are replaced by those of `baseline`.

    words: the first token and the end of each.
    """
    numbers = []
    copies = []
    for number, (first, end) in enumerate(words):
        ids = example.input_ids.copy()
        ids[first:end] = baseline[first:end]
        if (ids != example.input_ids).any():  # else rounding would give other values than 0
            numbers.append(number)
            copies.append(example._replace(input_ids=ids))
    falls = np.zeros(len(words))
    whole = output([example])
    at_once = max(1, ATTRIBUTION_TOKENS // len(example.input_ids))
    parts = [output(copies[n : n + at_once]) for n in range(0, len(copies), at_once)]
    falls[numbers] = (whole - torch.cat([whole[:0], *parts])).double().cpu().numpy()
    return falls


def read_tokens(encoder: Encoder, example: Example, layer: int = -1) -> NDArray[np.bool_]:
    """Return whether the hidden state of a token after a layer depends on a token of the text.

    bool [n, n]: the state is the row, the token of the text the column. It shows who reads whom, as
    in Figure 3 of Devlin et al. 2019.

    From the network, not from its settings: whether the derivative by the embedding of the token is
    zero. One product of a random vector with the Jacobian of each state, in one pass over n copies
    of the sequence. A derivative that is zero by construction is exactly zero; one that is too
    small for the precision of the network counts as zero too.

    layer: the number of the hidden states, 0: the embeddings.
    """
    table = encoder.embeddings.token
    n = len(example.input_ids)
    batch = collate([example] * n).to(table.weight.device)
    tokens = table(batch.input_ids).detach().requires_grad_()
    # replaces the embeddings
    with table.register_forward_hook(lambda *_: tokens), torch.enable_grad():
        states = encoder(batch.input_ids, batch.layout, batch.token_type_ids)[layer]
        read = states.view(n, n, -1).diagonal().T  # of each copy another state
        weights = torch.randn(read.shape, generator=torch.Generator().manual_seed(0)).to(read)
        (gradient,) = torch.autograd.grad((read * weights).sum(), tokens)
    depends: NDArray[np.bool_] = (gradient.view(n, n, -1) != 0).any(-1).cpu().numpy()
    return depends
