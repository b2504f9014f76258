"""Attention by the distances of tokens, to the tokens of a sequence and to those before it.

It is that of Transformer-XL (Dai et al. 2019, section 3.3) and XLNet (Yang et al. 2019).

- `RelativeBlock`: a block around `RelativeAttention`
- `RelativeInputs`: what it reads besides the states of the tokens; `Readers`: tokens that are
  predicted from what they read
- `DistanceTable`: sines and cosines of distances
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.attention import Block, Rotation, Source
from bertworks.models.cache import LayerCache
from bertworks.models.embeddings import sinusoids
from bertworks.models.kernels import Bias, attend, is_exported
from bertworks.models.layers import Linear, dropout
from bertworks.models.layout import Layout
from bertworks.models.settings import TransformerConfig


class DistanceTable:
    """Sines and cosines of the distances of tokens, as `sinusoids` has them of places.

    Those up to the largest distance so far are kept.

    clamp_length: larger distances count as this one; 0: no distance is too large.
    """

    def __init__(self, width: int, clamp_length: int):
        self.width = width
        self.clamp_length = clamp_length
        self._table: Tensor | None = None  # [2 * size, width]: distances size - 1 to -size

    def rows(self, length: int, before: int, like: Tensor) -> Tensor:
        """Return the rows of all distances within a sequence: [before + 2 * length, width].

        They are those of the distances before + length - 1, before + length - 2, down to -length. A
        distance is the place of the token that reads minus that of the token that is read.

        like: a tensor of the type and on the device of the result.
        before: the number of tokens before the sequence that are read as well.
        """
        farthest = before + length
        if is_exported():  # sizes are traced
            distances = farthest - 1 - torch.arange(farthest + length)
            return sinusoids(self._clamped(distances), self.width, torch.float32)
        table = self._table
        is_known = table is not None and (
            len(table) >= 2 * farthest
            and table.device == like.device
            and (table.dtype == torch.float64) == (like.dtype == torch.float64)
        )
        if table is None or not is_known:
            size = 1 << (farthest - 1).bit_length()
            distances = torch.arange(size - 1, -size - 1, -1, device=like.device)
            dtype = torch.promote_types(like.dtype, torch.float32)
            table = sinusoids(self._clamped(distances), self.width).to(dtype)
            self._table = table  # complete when it is assigned: several threads may be here
        start = len(table) // 2 - farthest
        return table[start : start + farthest + length].to(like.dtype)

    def _clamped(self, distances: Tensor) -> Tensor:
        """Return the distances that stand for others."""
        if not self.clamp_length:
            return distances
        return distances.clamp(-self.clamp_length, self.clamp_length)


class RelativeInputs(NamedTuple):
    """What relative attention reads in a layer besides the states of T tokens in B sequences."""

    # [M + 2 * max_seqlen, hidden]: `DistanceTable.rows` of the layout and the memory. With a cache
    # that has tokens: of one token, with as many before it as there is room for in the cache.
    distances: Tensor
    token_types: Tensor | None = None  # int64 [T]; None: all are equal
    memory: Tensor | None = None  # [B, M, hidden]: states before this layer, without gradients


class Readers(NamedTuple):
    """Tokens that read others, but not themselves.

    tokens: int64 [M], ascending: which tokens of a layout with ranks they are.
    layout: of these M tokens.
    """

    tokens: Tensor
    layout: Layout

    @classmethod
    def of(cls, tokens: Tensor, layout: Layout) -> "Readers":
        """Return tokens of a layout as readers. Asks the device."""
        are_chosen = torch.zeros(len(layout.position_ids), dtype=torch.bool, device=tokens.device)
        return cls(tokens, layout.select(are_chosen.index_fill(0, tokens, True)))


class _Rectangle(NamedTuple):
    """Sequences that are computed together, see `attend`."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    mask: Tensor | None
    bias: Tensor


class RelativeAttention(nn.Module):
    """Multi-head attention of which the scores depend on the distance of two tokens.

    The score of token i for token j is ((q + u) k' + (q + v) r(i - j)') / sqrt(d): r is a linear
    function of the sines and cosines of the distance, u and v are vectors of each head (Dai et al.
    2019, section 3.3). With segments there is also (q + s) e', where the vector e of each head is
    one for tokens of the same segment, and another one for others (Yang et al. 2019, section 2.4).
    """

    def __init__(self, c: TransformerConfig):
        super().__init__()
        hidden = c.hidden_size
        self.num_heads = c.num_attention_heads
        self.dropout = c.attention_dropout
        self.query = Linear(hidden, hidden, bias=False)
        self.key_value = Linear(hidden, 2 * hidden, bias=False)
        self.position = Linear(hidden, hidden, bias=False)
        self.output = Linear(hidden, hidden, bias=False)
        shape = self.num_heads, hidden // self.num_heads
        self.content_bias = nn.Parameter(torch.empty(shape))
        self.position_bias = nn.Parameter(torch.empty(shape))
        self.segment_bias = self.segment = None
        if c.relative_segments:
            self.segment_bias = nn.Parameter(torch.empty(shape))
            self.segment = nn.Parameter(torch.empty(2, *shape))  # the same one, and another one
        for parameter in self.parameters(recurse=False):
            nn.init.normal_(parameter, std=c.initializer_range)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        inputs: RelativeInputs,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only.

        x: may have more rows than the layout has tokens; their result is of no use.
        cache: keys and values of the tokens before, which are read as well; those of x are added.
        """
        num_tokens = len(layout.position_ids)
        num_padding_rows = len(x) - num_tokens
        query = self.query(x).unflatten(1, (self.num_heads, -1))
        key_value = self._keys_and_values(x)
        if num_padding_rows:
            query = query[:num_tokens]
            key_value = key_value[:num_tokens]
        if cache is not None and cache.continues:
            context = self._continued(query, key_value, inputs, cache)
        else:
            context = self._context(query, key_value, layout, inputs)
        if cache is not None and not cache.continues:
            cache.start(key_value)
        context = context.flatten(1)
        if rows is not None:
            context = context.index_select(0, rows)
        elif num_padding_rows:
            context = F.pad(context, (0, 0, 0, num_padding_rows))
        return self.output(context)  # type: ignore[no-any-return]

    def read(
        self,
        queries: Tensor,
        readers: Readers,
        x: Tensor,
        layout: Layout,
        inputs: RelativeInputs,
    ) -> Tensor:
        """Return what M tokens read of the T tokens of lower ranks (Yang et al. 2019, section 2.3).

        [M, hidden], [T, hidden] -> [M, hidden]. They read all of the memory. A token for which
        there is nothing to read gets zeros. All sequences are padded to the longest of them.

        queries, x: may have more rows than there are tokens; their result is of no use.
        """
        num_readers = len(readers.tokens)
        num_tokens = len(layout.position_ids)
        query = self.query(queries)[:num_readers].unflatten(1, (self.num_heads, -1))
        key_value = self._keys_and_values(x)[:num_tokens]
        memory = self._memory(inputs, query.dtype)
        positions = self._positions(inputs.distances)
        part = self._rectangle(query, key_value, layout, inputs, memory, positions, readers)
        assert part.mask is not None
        has_any = part.mask.any(-1, keepdim=True)
        p = self.dropout if self.training else 0.0
        context = attend(*part._replace(mask=part.mask | ~has_any), p) * has_any
        context = readers.layout.unpad(context.transpose(1, 2)).flatten(1)
        num_padding_rows = len(queries) - num_readers
        if num_padding_rows:
            context = F.pad(context, (0, 0, 0, num_padding_rows))
        return self.output(context)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, x: Tensor, layout: Layout, inputs: RelativeInputs) -> Tensor:
        """Return the attention that the token of a row pays to the token of a column.

        [T, hidden], the input of `forward`, without a memory -> [B, heads, max_seqlen, max_seqlen].
        Rows sum to 1; rows and columns of places without a token are 0.
        """
        query = self.query(x).unflatten(1, (self.num_heads, -1))
        part = self._rectangle(query, self._keys_and_values(x), layout, inputs, None)
        scores: Tensor = part.queries @ part.keys.transpose(-1, -2) * query.shape[-1] ** -0.5
        scores = scores + part.bias
        if part.mask is not None:
            scores = scores.masked_fill(~part.mask, -torch.inf)
        return scores.softmax(-1) * layout.present[:, None, :, None]

    def _keys_and_values(self, x: Tensor) -> Tensor:
        """Return the keys and values of states: [T, hidden] -> [T, 2, heads, d]."""
        return self.key_value(x).unflatten(1, (2, self.num_heads, -1))  # type: ignore[no-any-return]

    def _memory(self, inputs: RelativeInputs, dtype: torch.dtype) -> Tensor | None:
        """Return the keys and values of the memory: [B, M, 2, heads, d]; None: there is none."""
        if inputs.memory is None:
            return None
        states = inputs.memory.detach().to(dtype)
        key_value = self._keys_and_values(states.flatten(0, 1))
        return key_value.view(*states.shape[:2], *key_value.shape[1:])

    def _positions(self, distances: Tensor) -> Tensor:
        """Return the keys of distances: [distances, hidden] -> [heads, d, distances]."""
        return self.position(distances).unflatten(1, (self.num_heads, -1)).permute(1, 2, 0)  # type: ignore[no-any-return]

    def _context(
        self, query: Tensor, key_value: Tensor, layout: Layout, inputs: RelativeInputs
    ) -> Tensor:
        """Return what the tokens of a pass read: [T, heads, d]."""
        memory = self._memory(inputs, query.dtype)
        groups = [layout] if query.is_cuda or is_exported() else layout.groups
        positions = self._positions(inputs.distances)
        p = self.dropout if self.training else 0.0
        if len(groups) == 1:  # a slice would keep its numbers in an ONNX graph
            part = self._rectangle(query, key_value, groups[0], inputs, memory, positions)
            return groups[0].unpad(attend(*part, p).transpose(1, 2))
        contexts = []
        start = 0  # of the tokens of a group
        first = 0  # of its sequences
        for group in groups:
            end = start + len(group.position_ids)
            last = first + group.num_sequences
            types = None if inputs.token_types is None else inputs.token_types[start:end]
            part = self._rectangle(
                query[start:end],
                key_value[start:end],
                group,
                inputs._replace(token_types=types),
                None if memory is None else memory[first:last],
                positions,
            )
            contexts.append(group.unpad(attend(*part, p).transpose(1, 2)))
            start = end
            first = last
        return torch.cat(contexts)

    def _rectangle(
        self,
        query: Tensor,
        key_value: Tensor,
        layout: Layout,
        inputs: RelativeInputs,
        memory: Tensor | None,
        positions: Tensor | None = None,
        readers: Readers | None = None,
    ) -> _Rectangle:
        """Return sequences that are padded to the longest of them.

        memory: keys and values of the tokens before each of them, [B, M, 2, heads, d].
        positions: keys of the distances of the pass; None: they are computed.
        readers: the tokens that the queries are of; None: all of the layout.
        """
        queries_layout = layout if readers is None else readers.layout
        queries = queries_layout.pad(query).transpose(1, 2)  # [B, heads, L, d]
        keys_values = layout.pad(key_value)
        before = 0
        if memory is not None:
            before = memory.shape[1]
            keys_values = torch.cat([memory, keys_values], 1)
        keys, values = keys_values.transpose(1, 3).unbind(2)  # [B, heads, M + L, d]
        if positions is None:
            positions = self._positions(inputs.distances)
        if not is_exported():  # the distances are those of the longest sequence of the pass
            count = before + 2 * layout.max_seqlen
            unused = (positions.shape[2] - count) // 2
            positions = positions[..., unused : unused + count]
        bias = _added(queries, self.position_bias) @ positions
        num_keys = keys.shape[2]
        if readers is None:
            bias = _of_keys(bias, num_keys)
            mask = layout.visible
        else:
            places = queries_layout.pad(layout.places[readers.tokens])
            bias = _of_keys_at(bias, places, layout.max_seqlen, num_keys)
            mask = _lower_ranks(layout, readers)
        if mask is not None:
            mask = F.pad(mask, (before, 0), value=True) if before else mask
        if self.segment is not None and inputs.token_types is not None:
            types = inputs.token_types
            # what is before a sequence counts as its first segment
            types_of_keys = F.pad(layout.pad(types), (before, 0)) if before else layout.pad(types)
            types = queries_layout.pad(types if readers is None else types[readers.tokens])
            differs = types[:, None, :, None] != types_of_keys[:, None, None]
            bias = bias + self._of_segments(queries) * differs
        content = _added(queries, self.content_bias)
        return _Rectangle(content, keys, values, mask, bias * query.shape[-1] ** -0.5)

    def _of_segments(self, queries: Tensor) -> Tensor:
        """Return what is added to the score of a key of another segment: [B, heads, L, 1].

        Only the difference to the score of the same segment has an effect.
        """
        assert self.segment is not None
        assert self.segment_bias is not None
        difference = (self.segment[1] - self.segment[0])[:, :, None]
        return _added(queries, self.segment_bias) @ difference.to(queries.dtype)

    def _continued(
        self, query: Tensor, key_value: Tensor, inputs: RelativeInputs, cache: LayerCache
    ) -> Tensor:
        """Return what one new token of each sequence reads of the tokens before: [B, heads, d]."""
        if cache.positions is None:  # for this pass and all further ones
            cache.positions = self._positions(inputs.distances)[..., :-1]
        positions = cache.positions[..., -cache.batch.num_columns :]
        queries = query[:, :, None]  # [B, heads, 1, d]
        bias = _added(queries, self.position_bias) @ positions * query.shape[-1] ** -0.5
        content = _added(queries, self.content_bias)[:, None, :, 0]
        return cache.attend(torch.cat([content, key_value], 1), bias)


def _added(queries: Tensor, bias: Tensor) -> Tensor:
    """Return [B, heads, L, d] queries plus the bias [heads, d] of each head, in their type."""
    return queries + bias.to(queries.dtype)[:, None]


def _of_keys(scores: Tensor, num_keys: int) -> Tensor:
    """[B, heads, L, distances] -> [B, heads, L, num_keys]: the score of the distance of each key.

    Distances are in the order of `DistanceTable.rows`: a row reads them one place further on than
    the row before it, so that they are a view of the same numbers with shorter rows.
    """
    count, heads, length, width = scores.shape  # a graph has all of these as variables
    numbers = scores.view(count, heads, length * width)[..., length - 1 : length * width - 1]
    return numbers.view(count, heads, length, width - 1)[..., :num_keys]


def _of_keys_at(scores: Tensor, places: Tensor, length: int, num_keys: int) -> Tensor:
    """[B, heads, M, distances] -> [B, heads, M, num_keys], as `_of_keys` of tokens at any places.

    places: int64 [B, M], in sequences of up to `length` tokens.
    """
    keys = torch.arange(num_keys, device=places.device)
    columns = (length - 1 - places)[:, None, :, None] + keys
    return scores.gather(3, columns.expand(-1, scores.shape[1], -1, -1))


def _lower_ranks(layout: Layout, readers: Readers) -> Tensor:
    """Return which tokens have a lower rank than each reader: bool [B, 1, M, max_seqlen]."""
    assert layout.rank is not None
    rank = readers.layout.pad(layout.rank[readers.tokens])
    is_lower = layout.pad(layout.rank)[:, None] < rank[:, :, None]
    return (is_lower & layout.present[:, None])[:, None]


class RelativeBlock(Block):
    """`Block` with relative attention, and with a norm behind each part."""

    attention: RelativeAttention  # type: ignore[assignment]

    def make_attention(self, c: TransformerConfig, number: int) -> RelativeAttention:  # type: ignore[override]
        """Return attention that reads the distances of tokens."""
        return RelativeAttention(c)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
        source: Source | None = None,
        rotation: Rotation | None = None,
        relative: RelativeInputs | None = None,
        queries: Tensor | None = None,
        readers: Readers | None = None,
    ) -> Tensor:
        """Return the states after this block: [T, hidden] -> [T, hidden].

        relative: what it reads besides. All other arguments: see `Block.forward`; there is no bias,
            source or rotation.
        queries, readers: states of M tokens, [M, hidden], which read those of all T: the result is
            theirs. See `RelativeAttention.read`.
        """
        assert relative is not None
        if queries is not None and readers is not None:
            context = self.attention.read(queries, readers, x, layout, relative)
            return self._behind(context, queries)
        residual = x if rows is None else x.index_select(0, rows)
        return self._behind(self.attention(x, layout, relative, rows, cache), residual)

    def _behind(self, context: Tensor, residual: Tensor) -> Tensor:
        """Return the states after what was read and the states that read it."""
        rates = (self.attention_dropout, self.dropout) if self.training else (0.0, 0.0)
        assert self.attention_norm is not None
        x = self.attention_norm(dropout(context, rates[0], residual=residual))
        return self.feed_forward_norm(dropout(self.feed_forward(x), rates[1], residual=x))  # type: ignore[no-any-return]
