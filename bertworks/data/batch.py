"""Examples become batches: the only place where numpy becomes torch and meets a device. Not here: which examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.data.masking import Example
from bertworks.data.stream import Stream
from bertworks.nn.layout import Layout


@dataclass(frozen=True)
class Batch:
    """What a network reads and what it is asked. B sequences, T tokens, M questions about tokens."""

    input_ids: Tensor  # int64 [T]
    layout: Layout
    token_type_ids: Tensor | None  # int64 [T]
    masked_positions: Tensor  # int64 [M]: by place in the row of T, not within the sequence
    labels: Tensor  # int64 [M]
    pair_labels: Tensor | None  # int64 [B]; NSP: 0 = is next

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""

        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        ids, positions, labels = (x.to(device) for x in (self.input_ids, self.masked_positions, self.labels))
        return Batch(ids, self.layout.to(device), move(self.token_type_ids), positions, labels, move(self.pair_labels))


def collate(examples: Sequence[Example]) -> Batch:
    """One row of tokens out of many examples."""
    lengths = np.array([len(e.input_ids) for e in examples])
    starts = np.concatenate([[0], lengths.cumsum()])

    def join(parts: Sequence[NDArray[np.int64]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))

    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    layout = Layout(torch.from_numpy(starts.astype(np.int32)), int(lengths.max()), torch.from_numpy(positions))
    asks_pairs = examples[0].pair_label >= 0
    return Batch(
        join([e.input_ids for e in examples]),
        layout,
        join([e.token_type_ids for e in examples]),
        join([e.masked_positions + start for e, start in zip(examples, starts, strict=False)]),
        join([e.labels for e in examples]),
        torch.tensor([e.pair_label for e in examples]) if asks_pairs else None,
    )


@dataclass(frozen=True)
class Batches:
    """`batches(n)` is what this process computes for the n-th step: its share of the same `batch_size` sequences,
    sorted by length (neighbours pad one another little) and cut into micro-batches. Every process makes the same
    number of them, none empty; where the shares are unequal one may be larger by a sequence than asked for.

    Raises:
        ValueError: if there are more processes than sequences.
    """

    stream: Stream
    batch_size: int  # sequences in a step, over all processes
    micro_batch_size: int  # at most so many sequences at once
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < self.world_size:
            raise ValueError(f"a batch of {self.batch_size} sequences cannot be shared by {self.world_size} processes")

    def __call__(self, n: int) -> list[Batch]:
        numbers = range(n * self.batch_size, (n + 1) * self.batch_size)[self.rank :: self.world_size]
        examples = sorted((self.stream[i] for i in numbers), key=lambda e: len(e.input_ids))
        return [collate(examples[part]) for part in self._cuts(len(examples))]

    def _cuts(self, count: int) -> list[slice]:
        largest_share = -(-self.batch_size // self.world_size)
        parts = min(-(-largest_share // self.micro_batch_size), self.batch_size // self.world_size)
        edges = [count * p // parts for p in range(parts + 1)]
        return [slice(a, b) for a, b in pairwise(edges)]
