"""Sequences of any length, laid end to end without padding.

Every per-token tensor of a batch is [T, ...] and is described by one `Layout`. Padding happens in
`attention`, which gets the rectangles from here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

WASTE = 8000  # pairs of places without a token that cost as much as another group
_LENGTH_STEP = 16  # the padded length of a bucket is a multiple of it
_WASTE = 30_000  # largest number of pairs of places without a token in a bucket
# largest number of pairs of places in a bucket: what is computed for them stays in the cache
_PAIRS = 350_000


class PaddedBuckets(NamedTuple):
    """Sequences of similar lengths as rectangles of few sizes, one after the other.

    They have P places in all.
    """

    # One for each rectangle. Its number of sequences is a power of 2, and its max_seqlen is the
    # padded length, not that of the longest sequence.
    layouts: list[Layout]
    # int64 [P]: the token in a place; where there is none, the first token of the same sequence
    tokens: Tensor
    places: Tensor  # int64 [T]: the place of each token


@dataclass(frozen=True)
class Layout:
    """T tokens in B sequences.

    A token reads all tokens of its sequence, or with a `rank` those of its own rank or a lower one.
    """

    cu_seqlens: Tensor  # int32 [B+1]; sequence b is tokens cu_seqlens[b]:cu_seqlens[b+1]
    # the length of the longest sequence, known on the host: no kernel has to ask the device
    max_seqlen: int
    position_ids: Tensor  # int64 [T]
    num_positions: int = 0  # all position_ids are below it; 0: max_seqlen
    rank: Tensor | None = None  # int64 [T]; None: every token reads every token of its sequence
    is_causal: bool = False  # whether the rank is the place in the sequence

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | str = "cpu") -> Layout:
        """Return the layout of sequences of these lengths, in this order."""
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0, dtype=torch.int32)
        return cls(cu_seqlens, max(lengths), torch.cat([torch.arange(n) for n in lengths])).to(
            device
        )

    def to(self, device: torch.device | str) -> Layout:
        """Return the same layout on a device."""
        return self.map(lambda x: x.to(device, non_blocking=True))

    def map(self, move: Callable[[Tensor], Tensor]) -> Layout:
        """Return the same layout with copies of its tensors."""
        tensors = {
            "cu_seqlens": self.cu_seqlens,
            "position_ids": self.position_ids,
            "rank": self.rank,
        }
        moved: dict[str, Any] = {n: move(x) for n, x in tensors.items() if x is not None}
        return replace(self, **moved)

    def directed(self, direction: str) -> Layout:
        """Return the layout in which a token reads itself and the tokens on one side of it.

        These are the tokens before it ("left_to_right") or behind it ("right_to_left").
        """
        if direction == "bidirectional" or self.rank is not None:
            return self
        rank = self.places if direction == "left_to_right" else -self.places
        return replace(self, rank=rank, is_causal=direction == "left_to_right")

    @property
    def num_sequences(self) -> int:
        """The number of sequences."""
        return len(self.cu_seqlens) - 1

    @property
    def num_places(self) -> int:
        """The number of places of the rectangle of all sequences."""
        return self.num_sequences * self.max_seqlen

    @property
    def is_uniform(self) -> bool:
        """Whether all sequences have max_seqlen tokens, known on the host.

        Only then do they fill the rectangle.
        """
        return len(self.position_ids) == self.num_places

    @property
    def first(self) -> Tensor:
        """int32 [B]: the first token of every sequence."""
        return self.cu_seqlens[:-1]

    @property
    def last(self) -> Tensor:
        """int32 [B]: the last token of every sequence."""
        return self.cu_seqlens[1:] - 1

    @cached_property
    def sequence_ids(self) -> Tensor:
        """int64 [T]: the sequence of each token."""
        numbers = torch.arange(self.num_sequences, device=self.cu_seqlens.device)
        return numbers.repeat_interleave(self.cu_seqlens.diff(), output_size=len(self.position_ids))

    @cached_property
    def places(self) -> Tensor:
        """The place of each token in its sequence: int64 [T].

        It is counted from 0, whatever its position is.
        """
        return (
            torch.arange(len(self.position_ids), device=self.cu_seqlens.device)
            - self.first[self.sequence_ids]
        )

    @cached_property
    def backwards(self) -> Tensor:
        """int64 [T]: the tokens of every sequence from its last to its first."""
        numbers = torch.arange(len(self.position_ids), device=self.cu_seqlens.device)
        return (self.first + self.last).long()[self.sequence_ids] - numbers

    def with_ends(self) -> tuple[Layout, Tensor, Tensor]:
        """Return the layout with one more token at both ends of every sequence.

        Returns:
            The layout of T + 2 B tokens; int64 [T + 2 B], which token each of them is: T at the
            beginning of a sequence, T + 1 at its end; and int64 [T], where the tokens are now.
        """
        device = self.cu_seqlens.device
        count = len(self.position_ids)
        numbers = torch.arange(count, device=device)
        places = numbers + 2 * self.sequence_ids + 1
        added = 2 * torch.arange(self.num_sequences + 1, dtype=torch.int32, device=device)
        cu_seqlens = self.cu_seqlens + added
        sources = numbers.new_empty(count + 2 * self.num_sequences)
        sources[cu_seqlens[:-1].long()] = count
        sources[cu_seqlens[1:].long() - 1] = count + 1
        sources[places] = numbers
        lengths = cu_seqlens.diff()
        firsts = cu_seqlens[:-1].repeat_interleave(lengths, output_size=len(sources))
        positions = torch.arange(len(sources), device=device) - firsts
        return Layout(cu_seqlens, self.max_seqlen + 2, positions), sources, places

    @cached_property
    def slots(self) -> Tensor:
        """int64 [T]: the place of each token in the rectangle [B * max_seqlen]."""
        return self.sequence_ids * self.max_seqlen + self.places

    @cached_property
    def present(self) -> Tensor:
        """Which places of the rectangle hold a token: bool [B, max_seqlen]."""
        places = torch.arange(self.max_seqlen, device=self.cu_seqlens.device)
        return places < self.cu_seqlens.diff()[:, None]

    @cached_property
    def visible(self) -> Tensor | None:
        """Which tokens of the rectangle a token reads, or None if every place reads every place.

        bool [B or 1, 1, max_seqlen or 1, max_seqlen]. A place without a token reads at least one.
        """
        if self.is_causal:  # one mask for all: padding comes after every token
            places = torch.arange(self.max_seqlen, device=self.cu_seqlens.device)
            return (places[None, :] <= places[:, None])[None, None]
        return self.visible_keys(self)

    def visible_keys(self, keys: Layout) -> Tensor | None:
        """Return which tokens of the rectangle of `keys` a token of this layout reads.

        bool [B or 1, 1, max_seqlen or 1, keys.max_seqlen]. `keys` may be this layout or another. A
        token reads all of the same sequence, or if both have ranks those of its own rank or a lower
        one. None: all places.
        """
        if self.rank is None or keys.rank is None:
            return None if keys.is_uniform else keys.present[:, None, None]
        rank = self.pad(self.rank)
        ranks_of_keys = keys.pad(keys.rank)
        reads = (ranks_of_keys[:, None] <= rank[:, :, None]) | ~self.present[:, :, None]
        return keys.present[:, None, None] & reads[:, None]

    def mean(self, x: Tensor) -> Tensor:
        """float32 [B, ...]: the mean over the tokens of each sequence. x: [T, ...]."""
        return torch.segment_reduce(x.float(), "mean", offsets=self.cu_seqlens.long())

    @cached_property
    def equal_lengths(self) -> list[tuple[int, int, int]]:
        """Neighbours of one length, as rectangles: first token, number of sequences, their length.

        Asks the device.
        """
        runs = [
            (len(list(group)), length) for length, group in groupby(self.cu_seqlens.diff().tolist())
        ]
        starts = accumulate((count * length for count, length in runs), initial=0)
        return [
            (start, count, length) for start, (count, length) in zip(starts, runs, strict=False)
        ]

    @cached_property
    def buckets(self) -> PaddedBuckets:
        """All sequences, the longest first, in rectangles of few sizes.

        Asks the device.
        """
        lengths, order = self.cu_seqlens.diff().long().sort(descending=True)
        sizes = _bucket_sizes(lengths.tolist())
        counts = [count for count, _ in sizes]
        starts = torch.empty_like(order)  # the first place of each sequence
        layouts = []
        tokens = []
        start = 0
        parts = zip(sizes, order.split(counts), lengths.split(counts), strict=True)
        for (count, longest), sequences, part_lengths in parts:
            end = start + count * longest
            starts[sequences] = torch.arange(start, end, longest)
            start = end
            places = torch.arange(longest)
            present = places < part_lengths[:, None]
            rows = self.first[sequences, None] + places * present
            ends = F.pad(part_lengths.cumsum(0), (1, 0)).int()
            layouts.append(self._with_tokens(rows[present], ends, longest))
            tokens.append(rows.flatten())
        places_of_tokens = starts[self.sequence_ids] + self.places
        return PaddedBuckets(layouts, torch.cat(tokens), places_of_tokens)

    @cached_property
    def groups(self) -> list[Layout]:
        """Neighbours that are better padded together than computed apart, as layouts of their own.

        Asks the device.
        """
        lengths = self.cu_seqlens.diff().tolist()
        edges = [len(lengths)]
        longest = 0
        used = 0
        # sorted batches end with the longest
        for number, length in reversed(list(enumerate(lengths))):
            longest = max(longest, length)
            used = used + length * length
            if (edges[-1] - number) * longest * longest - used > WASTE:
                edges.append(number + 1)
                longest = length
                used = length * length
        edges.append(0)
        return [self.part(start, end, max(lengths[start:end])) for end, start in pairwise(edges)][
            ::-1
        ]

    def part(self, start: int, end: int, longest: int) -> Layout:
        """Return the layout of sequences `start` to `end`."""
        ends = self.cu_seqlens[start : end + 1]
        return self._with_tokens(slice(int(ends[0]), int(ends[-1])), ends - ends[0], longest)

    def select(self, tokens: Tensor) -> Layout:
        """Return the layout of some tokens of each sequence, at positions from 0.

        Asks the device.

        Args:
            tokens: bool [T], which tokens. There must be at least one in each sequence.
        """
        sizes = tokens.new_zeros(self.num_sequences, dtype=torch.int64)
        sizes.index_add_(0, self.sequence_ids, tokens.long())
        ends = F.pad(sizes.cumsum(0), (1, 0))
        places = torch.arange(int(ends[-1]), device=tokens.device)
        places = places - ends[:-1].repeat_interleave(sizes, output_size=len(places))
        return Layout(ends.int(), int(sizes.max()), places)

    def _with_tokens(self, tokens: slice | Tensor, cu_seqlens: Tensor, longest: int) -> Layout:
        """Return the layout of some tokens, which are whole sequences."""
        positions = self.position_ids[tokens]
        rank = None if self.rank is None else self.rank[tokens]
        return replace(
            self, cu_seqlens=cu_seqlens, max_seqlen=longest, position_ids=positions, rank=rank
        )

    def pad(self, x: Tensor) -> Tensor:
        """[T, ...] -> [B, max_seqlen, ...], zeros after the end.

        A view, not a copy, if the layout is uniform.
        """
        if not self.is_uniform:
            rectangle = x.new_zeros(self.num_places, *x.shape[1:])
            x = rectangle.index_copy(0, self.slots, x)
        return x.view(self.num_sequences, self.max_seqlen, *x.shape[1:])

    def unpad(self, x: Tensor) -> Tensor:
        """[B, max_seqlen, ...] -> [T, ...]."""
        x = x.flatten(0, 1)
        return x if self.is_uniform else x.index_select(0, self.slots)


def _bucket_sizes(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return the sizes of the rectangles for sequences, the longest first.

    They are the number of sequences, a power of 2, and the padded length.
    """
    sizes = []
    start = 0
    while start < len(lengths):
        length = -(-lengths[start] // _LENGTH_STEP) * _LENGTH_STEP
        wasted = accumulate(
            length**2 - n**2 for n in lengths[start : start + max(1, _PAIRS // length**2)]
        )
        count = 1 << max(1, bisect_right(list(wasted), _WASTE)).bit_length() - 1
        sizes.append((count, length))
        start += count
    return sizes
