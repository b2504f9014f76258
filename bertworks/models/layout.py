"""Where tokens stand: sequences of any length laid end to end in one row, without padding.

Every per-token tensor of a batch is [T, ...] and obeys one Layout. Not here: what the tokens are. Padding happens
inside `attention` alone, which asks a Layout for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

WASTE = 8000  # pairs of places without a token that cost as much as a group of their own
_LENGTH_STEP = 16  # the length of a rectangle is a multiple of it
_WASTE = 30_000  # pairs of places of a rectangle that lack a token, at most
_PAIRS = 350_000  # of places in a rectangle, at most: what is computed for them stays near the processor


class PaddedBuckets(NamedTuple):
    """Sequences of similar lengths as rectangles of few sizes, one after the other: P places in all."""

    sizes: list[tuple[int, int]]  # sequences, a power of 2, and their padded length
    tokens: Tensor  # int64 [P]: the token in a place; where there is none, the first one of the same sequence
    present: list[Tensor]  # for each rectangle, bool [sequences, length]: where there is one
    places: Tensor  # int64 [T]: the place of each token


@dataclass(frozen=True)
class Layout:
    """T tokens in B sequences."""

    cu_seqlens: Tensor  # int32 [B+1]; sequence b is tokens cu_seqlens[b]:cu_seqlens[b+1]
    max_seqlen: int  # no sequence is longer; known on the host, so that no kernel has to ask the device
    position_ids: Tensor  # int64 [T]

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
        """The layout of sequences of these lengths, in this order."""
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        return cls(cu_seqlens, max(lengths), torch.cat([torch.arange(n) for n in lengths])).to(device)

    def to(self, device: torch.device | str) -> Layout:
        """The same layout on a device."""
        return Layout(
            self.cu_seqlens.to(device, non_blocking=True),
            self.max_seqlen,
            self.position_ids.to(device, non_blocking=True),
        )

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    @property
    def is_uniform(self) -> bool:
        """Are all sequences of length max_seqlen? Answered on the host: only then do they fill the rectangle."""
        return len(self.position_ids) == self.num_sequences * self.max_seqlen

    @property
    def first(self) -> Tensor:
        """int32 [B]: the place of the first token of every sequence, which is [CLS]."""
        return self.cu_seqlens[:-1]

    @cached_property
    def slots(self) -> Tensor:
        """int64 [T]: the place of each token in the rectangle [B * max_seqlen]."""
        numbers = torch.arange(self.num_sequences, device=self.cu_seqlens.device)
        sequence_ids = numbers.repeat_interleave(self.cu_seqlens.diff(), output_size=len(self.position_ids))
        return sequence_ids * self.max_seqlen + self.position_ids

    @cached_property
    def present(self) -> Tensor:
        """bool [B, max_seqlen]: which places of the rectangle hold a token."""
        places = torch.arange(self.max_seqlen, device=self.cu_seqlens.device)
        return places < self.cu_seqlens.diff()[:, None]

    @cached_property
    def runs(self) -> list[tuple[int, int, int]]:
        """Neighbours of one length, as rectangles: first token, number of sequences, their length. Asks the device."""
        found, begin = [], 0
        for length, group in groupby(self.cu_seqlens.diff().tolist()):
            count = sum(1 for _ in group)
            found.append((begin, count, length))
            begin += count * length
        return found

    @cached_property
    def rectangles(self) -> PaddedBuckets:
        """All sequences, the longest first, in rectangles. Asks the device."""
        lengths, order = self.cu_seqlens.diff().long().sort(descending=True)
        sizes = _sizes(lengths.tolist())
        counts, padded = torch.tensor(sizes).T
        padded = padded.repeat_interleave(counts)  # [B]
        total = int(padded.sum())
        sequence_ids = torch.arange(len(order)).repeat_interleave(padded, output_size=total)  # [P]
        positions = torch.arange(total) - (padded.cumsum(0) - padded)[sequence_ids]
        present = positions < lengths[sequence_ids]
        tokens = self.first[order][sequence_ids] + positions * present
        filled = present.nonzero()[:, 0]
        places = torch.empty_like(self.position_ids).index_copy_(0, tokens[filled], filled)
        parts = present.split([count * length for count, length in sizes])
        return PaddedBuckets(sizes, tokens, [part.view(size) for part, size in zip(parts, sizes, strict=True)], places)

    @cached_property
    def groups(self) -> list[Layout]:
        """Neighbours that are better padded together than computed apart, as layouts of their own. Asks the device."""
        lengths = self.cu_seqlens.diff().tolist()
        edges, longest, used = [len(lengths)], 0, 0
        for number, length in reversed(list(enumerate(lengths))):  # sorted batches end with the longest
            longest, used = max(longest, length), used + length * length
            if (edges[-1] - number) * longest * longest - used > WASTE:
                edges.append(number + 1)
                longest, used = length, length * length
        edges.append(0)
        return [Layout.of(lengths[begin:end]) for end, begin in pairwise(edges)][::-1]

    def pad(self, x: Tensor) -> Tensor:
        """[T, ...] -> [B, max_seqlen, ...], zeros after the end. A view, not a copy, if the layout is uniform."""
        if not self.is_uniform:
            rectangle = x.new_zeros(self.num_sequences * self.max_seqlen, *x.shape[1:])
            x = rectangle.index_copy(0, self.slots, x)
        return x.view(self.num_sequences, self.max_seqlen, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """[B, max_seqlen, ...] -> [T, ...]."""
        x = x.flatten(0, 1)
        return x if self.is_uniform else x.index_select(0, self.slots)


def _sizes(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """How to cut sequences, the longest first, into rectangles: sequences, a power of 2, and their padded length."""
    found, begin = [], 0
    while begin < len(lengths):
        length = -(-lengths[begin] // _LENGTH_STEP) * _LENGTH_STEP
        count, wasted = 1, length**2 - lengths[begin] ** 2
        for shorter in lengths[begin + 1 : begin + max(1, _PAIRS // length**2)]:
            wasted += length**2 - shorter**2
            if wasted > _WASTE:
                break
            count += 1
        count = 1 << count.bit_length() - 1
        found.append((count, length))
        begin += count
    return found
