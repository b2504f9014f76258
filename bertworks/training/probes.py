"""Train structural probes (Hewitt and Manning 2019, section 2).

A probe is a linear map of the states of words under which squared lengths are distances or depths
in a tree.

- `WordStates`: the states of one layer, and where each sentence is in them
- `train_probe`: words of trees -> a matrix
- `predictions`: a matrix and words -> distances or depths
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import ReduceLROnPlateau

from bertworks.batching.examples import keyed_rng

ProbeKind = Literal["distance", "depth"]
# largest weight at the start; of Adam; sentences
_INITIAL = 0.05
_LEARNING_RATE = 0.001
_BATCH = 20
_SORTED = 25  # batches of one length in which sentences of similar lengths meet
_GAIN = 1e-4
_PATIENCE = 5  # of the dev loss, in this number of epochs; else the training ends
_EVALUATED = 64  # sentences of a batch without gradients


class WordStates(NamedTuple):
    """The states of all words of some sentences.

    Sentence s has the rows starts[s] to starts[s + 1].
    """

    states: NDArray[np.floating[Any]]  # [words, width]
    starts: NDArray[np.int64]  # [sentences + 1]

    def lengths(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        """int64: the words of each of these sentences."""
        return np.diff(self.starts)[list(numbers)]

    def padded(self, numbers: Sequence[int], dtype: torch.dtype) -> Tensor:
        """[B, n, width]: the states of sentences, zeros after their end."""
        parts = [self.states[self.starts[number] : self.starts[number + 1]] for number in numbers]
        # the file is read-only
        copies = [torch.from_numpy(np.array(part)).to(dtype) for part in parts]
        return pad_sequence(copies, batch_first=True)


class Probe(NamedTuple):
    """A trained probe: float32 [width, rank].

    With it come its mean loss per sentence of dev and the epochs of its training.
    """

    matrix: Tensor
    dev_loss: float
    epochs: int


def probe_outputs(matrix: Tensor, x: Tensor, kind: ProbeKind) -> Tensor:
    """Return squared distances of all pairs of words, or squared lengths (depths) of words.

    x [B, n, width] -> [B, n, n], or [B, n], after the map `matrix` [width, rank].
    """
    x = x @ matrix
    if kind == "depth":
        return x.square().sum(-1)
    x = x - x.mean(1, keepdim=True)  # distances stay, and products lose fewer digits
    squares = x.square().sum(-1)
    return (squares[:, :, None] + squares[:, None] - 2 * x @ x.mT).clamp(min=0)


def train_probe(
    words: WordStates,
    gold: Sequence[NDArray[Any]],
    train: Sequence[int],
    dev: Sequence[int],
    *,
    kind: ProbeKind,
    rank: int,
    epochs: int = 40,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[float, Probe]]:
    """Yield after each epoch the loss on dev, and the probe with the smallest one so far.

    The loss is L1, divided by the number of pairs (depths: words) of each sentence, the mean over
    sentences.

    Adam with batches of 20 sentences of similar lengths. The learning rate falls to a tenth after
    each epoch without a smaller loss on dev, and 5 epochs without a gain of 1e-4 end the training
    (john-hewitt/structural-probes, regimen.py).

    Args:
        gold: distances [n, n] or depths [n] of all sentences. train, dev: numbers of sentences.
        kind: what is predicted. rank: rows of the matrix. epochs: at most this number. seed: of the
            initial matrix and of the order of the sentences.
    """
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(words.states.shape[1], rank, generator=generator) * 2 * _INITIAL - _INITIAL
    matrix = matrix.to(device).requires_grad_()
    optimizer = torch.optim.Adam([matrix], lr=_LEARNING_RATE)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    best = Probe(matrix.detach().clone(), float("inf"), 0)
    lengths = words.lengths(train)
    for epoch in range(epochs):
        rng = keyed_rng("probe", seed, epoch)
        order = rng.permutation(len(train))
        # Sentences of similar lengths meet in a batch.
        parts = np.split(order, range(_SORTED * _BATCH, len(order), _SORTED * _BATCH))
        rows = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
        batches = np.split(rows, range(_BATCH, len(rows), _BATCH))
        for number in rng.permutation(len(batches)):
            batch = [train[n] for n in batches[number]]
            optimizer.zero_grad(set_to_none=True)
            _loss(matrix, words, gold, batch, kind).div(len(batch)).backward()
            optimizer.step()
        with torch.no_grad():
            losses = [
                float(_loss(matrix, words, gold, part, kind)) for part in _by_length(words, dev)
            ]
        scheduler.step(sum(losses))
        loss = sum(losses) / len(dev)
        if loss < best.dev_loss - _GAIN:
            best = Probe(matrix.detach().clone(), loss, epoch + 1)
        yield loss, best._replace(epochs=epoch + 1)
        if epoch + 1 - best.epochs >= _PATIENCE:
            break


def _by_length(words: WordStates, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield the sentences, the shortest first, in batches."""
    order = np.argsort(words.lengths(numbers), kind="stable").tolist()
    for start in range(0, len(order), _EVALUATED):
        yield [numbers[n] for n in order[start : start + _EVALUATED]]


def _loss(
    matrix: Tensor,
    words: WordStates,
    gold: Sequence[NDArray[Any]],
    numbers: Sequence[int],
    kind: ProbeKind,
) -> Tensor:
    """Return the sum of the losses of these sentences."""
    lengths = torch.from_numpy(words.lengths(numbers))
    outputs = probe_outputs(matrix, words.padded(numbers, torch.float32).to(matrix.device), kind)
    target = torch.zeros(outputs.shape)
    for row, number, n in zip(target, numbers, lengths.tolist()):
        row[(slice(n),) * row.ndim] = torch.from_numpy(gold[number])
    present = torch.arange(outputs.shape[1]) < lengths[:, None]  # [B, n]
    weights = present / lengths[:, None]
    if kind == "distance":
        weights = weights[:, :, None] * weights[:, None]
    return ((outputs - target.to(matrix.device)).abs() * weights.to(matrix.device)).sum()


def predictions(
    matrix: Tensor, words: WordStates, numbers: Sequence[int], kind: ProbeKind
) -> list[NDArray[np.float64]]:
    """Return the distances [n, n] or depths [n] of each of these sentences, computed in float64."""
    results = dict[int, NDArray[np.float64]]()
    exact = matrix.detach().double()
    for part in _by_length(words, numbers):
        outputs = (
            probe_outputs(exact, words.padded(part, torch.float64).to(exact.device), kind)
            .cpu()
            .numpy()
        )
        for output, number, n in zip(outputs, part, words.lengths(part).tolist(), strict=True):
            results[number] = output[(slice(n),) * output.ndim].copy()
    return [results[number] for number in numbers]
