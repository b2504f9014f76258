"""Keep keys and values of the tokens that a network has read from left to right.

A new token then costs the work of one.

- `KeyValueCache`: of a batch of sequences, in all layers
- `LayerCache`: of one layer
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.errors import check
from bertworks.models.layout import Layout


class KeyValueCache:
    """Keys and values of B sequences, each of which gets one more token in every further pass.

    All sequences end at the same column, and shorter ones begin later: the next tokens of all of
    them are one column. The longest sequence has a token in every column.

    In a beam search each source has a group of neighbouring sequences, its hypotheses. A hypothesis
    that continues another one has the same tokens up to there. Nothing is copied for it: a group
    has a table of the tokens of all its hypotheses, and a mask says which of them each one reads.

    Args:
        num_layers: of the network.
        prompts: the layout of the tokens that the first pass reads; one for each hypothesis.
        room: the largest number of further passes. Memory is reserved for them.
        beam: the number of hypotheses of a group; 1: no sequence continues another one.
    """

    def __init__(self, num_layers: int, prompts: Layout, room: int, beam: int = 1):
        check(beam == 1 or prompts.max_seqlen == 1, "a hypothesis begins with a single token")
        self.prompts = prompts
        self.beam = beam
        self.capacity = prompts.max_seqlen + room
        self.num_columns = 0  # with a token; 0: nothing has been read
        self.lengths = prompts.cu_seqlens.diff().long()  # int64 [B]: tokens of each sequence
        self.layers = [LayerCache(self) for _ in range(num_layers)]
        self._reads = self._first_reads()
        self._mask: Tensor | None = None  # of the present pass, see `mask`
        self.source_mask: Tensor | None = None  # [sources, 1, 1, S]: -inf where there is no token

    @property
    def first_columns(self) -> Tensor:
        """int64 [B]: the column of the first token of each sequence."""
        return self.num_columns - self.lengths

    def extend(self, layout: Layout) -> None:
        """Add the columns of the tokens of a pass, before any of its layers is computed.

        Raises:
            ValueError: a further pass with other than one token for each sequence, or more passes
                than there is room.
        """
        self._mask = None
        if self.num_columns == 0:
            self.num_columns = layout.max_seqlen
            return
        check(
            layout.max_seqlen == 1 and layout.num_sequences == len(self.lengths),
            f"the cache holds {len(self.lengths)} sequences: a pass adds one token to each of them",
        )
        check(self.num_columns < self.capacity, f"the cache has room for {self.capacity} tokens")
        self.num_columns = self.num_columns + 1
        self.lengths = self.lengths + 1

    def next_layout(self) -> Layout:
        """Return the layout of the next token of each sequence; at first that of the prompts."""
        if self.num_columns == 0:
            return self.prompts
        ends = torch.arange(len(self.lengths) + 1, dtype=torch.int32, device=self.lengths.device)
        return Layout(
            ends,
            1,
            self.lengths,
            self.num_columns + 1,
            torch.zeros_like(self.lengths),
            is_causal=True,
        )

    def mask(self, dtype: torch.dtype) -> Tensor | None:
        """[groups, 1, beam, num_columns * beam]: -inf where a sequence does not read, else 0.

        None: all sequences read everything.
        """
        if self._reads is None:
            return None
        if self._mask is None:
            reads = self._reads[:, None, :, : self.num_columns].flatten(3)
            self._mask = torch.zeros(reads.shape, dtype=dtype, device=reads.device)
            self._mask.masked_fill_(~reads, -torch.inf)
        return self._mask

    def _first_reads(self) -> Tensor | None:
        """Return what a sequence reads of each column: bool [groups, beam, capacity, beam].

        It reads no columns before it begins, and of each column the token of one hypothesis: at
        first its own. None: all sequences read everything.
        """
        device = self.lengths.device
        if self.beam > 1:
            num_groups = len(self.lengths) // self.beam
            diagonal = torch.eye(self.beam, dtype=torch.bool, device=device)
            return diagonal[:, None].repeat(num_groups, 1, self.capacity, 1)
        if self.prompts.is_uniform:
            return None
        columns = torch.arange(self.capacity, device=device)
        first_columns = self.prompts.max_seqlen - self.lengths
        return (columns >= first_columns[:, None])[:, None, :, None]

    def make_room(self, longest: int) -> None:
        """Make room for a further pass in a cache that is full, without a beam.

        A sequence that has as many tokens as are read keeps the newer half of them, whatever the
        other sequences have. This is for networks that read distances of tokens, and no positions.

        Args:
            longest: the largest number of tokens of a sequence that are read, and the number of
                columns that the cache grows to.
        """
        if self.num_columns < self.capacity:
            return
        dropped = 0
        if self.capacity == longest:
            is_full = self.lengths == longest
            self.lengths = torch.where(is_full, longest // 2, self.lengths)
            dropped = self.num_columns - int(self.lengths.max())
        for layer in self.layers:
            layer.resize(dropped, longest)
        self.num_columns = self.num_columns - dropped
        self.capacity = longest
        if self._reads is not None:
            columns = torch.arange(longest, device=self.lengths.device)
            self._reads = (columns >= self.first_columns[:, None])[:, None, :, None]

    def keep(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Drop all sequences but `rows` int64 [B'].

        The columns in which none of these has a token are dropped, too. With beam > 1 a row is the
        hypothesis that the one in its place continues, of the same group. It may be there several
        times.

        sources: of a decoder, int64: the sources that stay, and with them their groups; None: all.
        """
        self.lengths = self.lengths[rows]
        unused = self.num_columns - int(self.lengths.max())
        groups = sources if self.beam > 1 else rows
        for layer in self.layers:
            if groups is not None:
                layer.keep(groups, unused)
            if layer.source is not None and sources is not None:
                layer.source = layer.source[:, sources]
        if self.source_mask is not None and sources is not None:
            self.source_mask = self.source_mask[sources]
        if self._reads is not None and groups is not None:
            self._reads = self._reads[groups][:, :, unused:]
        self.num_columns = self.num_columns - unused
        self.capacity = self.capacity - unused
        if self._reads is not None and self.beam > 1:
            past = self._reads[:, :, : self.num_columns]
            origins = rows.view(-1, self.beam, 1, 1) % self.beam
            past.copy_(past.gather(1, origins.expand_as(past)))


class LayerCache:
    """The part of a `KeyValueCache` of one layer."""

    def __init__(self, batch: KeyValueCache):
        self.batch = batch
        # [2, groups, heads, capacity * beam, d]: keys, values; column by column
        self._table: Tensor | None = None
        self.source: Tensor | None = None  # [2, sources, heads, S, d]: keys, values of the source
        # [heads, d, distances]: of relative attention, keys of the distances down to 0
        self.positions: Tensor | None = None

    @property
    def continues(self) -> bool:
        """Whether the tokens of this pass have others before them."""
        return self._table is not None

    def start(self, kv: Tensor) -> None:
        """Store the keys and values [T, 2, heads, d] of the prompts."""
        batch = self.batch
        layout = batch.prompts
        count = layout.num_sequences // batch.beam
        longest = layout.max_seqlen * batch.beam
        if not layout.is_uniform:
            slots = layout.slots + batch.first_columns[layout.sequence_ids]
            # Masked keys and values are multiplied with 0: they must be numbers.
            kv = kv.new_zeros(count * longest, *kv.shape[1:]).index_copy_(0, slots, kv)
        # On a CPU torch's attention of one query takes 1.6 to 5 times as long in bf16.
        dtype = torch.float32 if (kv.device.type, kv.dtype) == ("cpu", torch.bfloat16) else kv.dtype
        shape = 2, count, kv.shape[2], batch.capacity * batch.beam, kv.shape[3]
        self._table = kv.new_empty(shape, dtype=dtype)
        self._table[..., :longest, :] = kv.view(count, longest, *kv.shape[1:]).permute(
            2, 0, 3, 1, 4
        )

    def attend(self, qkv: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the attention of one new token of each sequence.

        [B, 3, heads, d] -> [B, heads, d]: it reads all tokens before it, and itself.

        bias: [B, heads, 1, columns], added to the scores; without a beam.
        """
        assert self._table is not None
        beam = self.batch.beam
        end = self.batch.num_columns * beam
        # [3, groups, heads, beam, d]
        grouped = qkv.to(self._table.dtype).unflatten(0, (-1, beam)).permute(2, 0, 3, 1, 4)
        self._table[..., end - beam : end, :] = grouped[1:]
        keys, values = self._table[..., :end, :]
        mask = self.batch.mask(keys.dtype)
        if bias is not None:
            mask = bias.to(keys.dtype) if mask is None else bias.to(keys.dtype) + mask
        context = F.scaled_dot_product_attention(grouped[0], keys, values, mask)
        return context.transpose(1, 2).flatten(0, 1).to(qkv.dtype)

    def resize(self, dropped: int, capacity: int) -> None:
        """Drop the first columns, `dropped` in number, and reserve memory for a number of them."""
        assert self._table is not None
        rest = self._table[..., dropped : self.batch.num_columns, :]
        self._table = F.pad(rest, (0, 0, 0, capacity - rest.shape[-2]))
        self.positions = None  # of as many distances as there are columns

    def start_source(self, kv: Tensor, layout: Layout) -> None:
        """Store the keys and values [S, 2, heads, d] of the source's tokens."""
        # as for the prompts: one query at a time is slow in bf16 on a CPU
        dtype = torch.float32 if (kv.device.type, kv.dtype) == ("cpu", torch.bfloat16) else kv.dtype
        self.source = layout.pad(kv.to(dtype)).permute(2, 0, 3, 1, 4).contiguous()
        if not layout.is_uniform and self.batch.source_mask is None:
            absent = ~layout.present[:, None, None]
            self.batch.source_mask = torch.zeros_like(absent, dtype=dtype).masked_fill_(
                absent, -torch.inf
            )

    def attend_source(self, query: Tensor) -> Tensor:
        """Return the attention of one token of each sequence to its source.

        [B, heads, d] -> [B, heads, d]. Neighbouring sequences may have a source in common: its keys
        are there once, and all its sequences are queries of one product.
        """
        assert self.source is not None
        keys, values = self.source
        # [sources, heads, sequences of a source, d]
        queries = query.to(keys.dtype).unflatten(0, (keys.shape[0], -1)).transpose(1, 2)
        context = F.scaled_dot_product_attention(queries, keys, values, self.batch.source_mask)
        return context.transpose(1, 2).flatten(0, 1).to(query.dtype)

    def keep(self, groups: Tensor, unused: int) -> None:
        """Drop all groups of sequences but `groups`, and the first `unused` columns."""
        if self._table is not None:
            beam = self.batch.beam
            start = unused * beam
            end = self.batch.num_columns * beam
            old = self._table
            self._table = old.new_empty(
                2, len(groups), old.shape[2], old.shape[3] - start, old.shape[4]
            )
            self._table[..., : end - start, :] = old[:, groups, :, start:end]
