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

    Args:
        num_layers: of the network.
        prompts: the layout of the tokens that the first pass reads.
        room: the largest number of further passes. Memory is reserved for them.
    """

    def __init__(self, num_layers: int, prompts: Layout, room: int):
        self.prompts = prompts
        self.capacity = prompts.max_seqlen + room
        self.num_columns = 0  # with a token; 0: nothing has been read
        self.lengths = prompts.cu_seqlens.diff().long()  # int64 [B]: tokens of each sequence
        self.layers = [LayerCache(self) for _ in range(num_layers)]
        self._mask: Tensor | None = None
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
        """[B, 1, 1, num_columns]: -inf in columns before a sequence begins, else 0.

        None: all begin in column 0.
        """
        if self.prompts.is_uniform:
            return None
        if self._mask is None:
            columns = torch.arange(self.capacity, device=self.lengths.device)
            before = columns < self.first_columns[:, None]
            self._mask = torch.zeros(before.shape, dtype=dtype, device=before.device).masked_fill_(
                before, -torch.inf
            )
        return self._mask[:, None, None, : self.num_columns]

    def keep(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Drop all sequences but `rows` int64 [B'], which may name a sequence several times.

        The columns in which none of these has a token are dropped, too.

        sources: of a decoder, int64: the sources that stay; None: all.
        """
        self.lengths = self.lengths[rows]
        unused = self.num_columns - int(self.lengths.max())
        for layer in self.layers:
            layer.keep(rows, unused)
            if layer.source is not None and sources is not None:
                layer.source = layer.source[:, sources]
        if self.source_mask is not None and sources is not None:
            self.source_mask = self.source_mask[sources]
        self._mask = None if self._mask is None else self._mask[rows][:, unused:]
        self.num_columns = self.num_columns - unused
        self.capacity = self.capacity - unused


class LayerCache:
    """The part of a `KeyValueCache` of one layer."""

    def __init__(self, batch: KeyValueCache):
        self.batch = batch
        self._table: Tensor | None = None  # [2, B, heads, capacity, d]: keys, values
        self.source: Tensor | None = None  # [2, sources, heads, S, d]: keys, values of the source

    @property
    def continues(self) -> bool:
        """Whether the tokens of this pass have others before them."""
        return self._table is not None

    def start(self, kv: Tensor) -> None:
        """Store the keys and values [T, 2, heads, d] of the prompts."""
        batch = self.batch
        layout = self.batch.prompts
        count = layout.num_sequences
        longest = layout.max_seqlen
        if not layout.is_uniform:
            slots = layout.slots + batch.first_columns[layout.sequence_ids]
            # Masked keys and values are multiplied with 0: they must be numbers.
            kv = kv.new_zeros(count * longest, *kv.shape[1:]).index_copy_(0, slots, kv)
        # On a CPU torch's attention of one query takes 1.6 to 5 times as long in bf16.
        dtype = torch.float32 if (kv.device.type, kv.dtype) == ("cpu", torch.bfloat16) else kv.dtype
        self._table = kv.new_empty(2, count, kv.shape[2], batch.capacity, kv.shape[3], dtype=dtype)
        self._table[..., :longest, :] = kv.view(count, longest, *kv.shape[1:]).permute(
            2, 0, 3, 1, 4
        )

    def attend(self, qkv: Tensor) -> Tensor:
        """Return the attention of one new token of each sequence.

        [B, 3, heads, d] -> [B, heads, d]: it reads all tokens before it, and itself.
        """
        assert self._table is not None
        columns = self.batch.num_columns
        self._table[..., columns - 1, :] = qkv[:, 1:].transpose(0, 1)
        keys, values = self._table[..., :columns, :]
        query = qkv[:, 0, :, None].to(keys.dtype)
        mask = self.batch.mask(keys.dtype)
        return F.scaled_dot_product_attention(query, keys, values, mask)[:, :, 0].to(qkv.dtype)

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

    def keep(self, rows: Tensor, unused: int) -> None:
        """Drop all sequences but `rows`, and the first `unused` columns."""
        if self._table is not None:
            used = self.batch.num_columns - unused
            old = self._table
            self._table = old.new_empty(
                2, len(rows), old.shape[2], old.shape[3] - unused, old.shape[4]
            )
            self._table[..., :used, :] = old[:, rows, :, unused : unused + used]
