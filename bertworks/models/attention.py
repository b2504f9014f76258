"""The blocks of a Transformer: multi-head attention within packed sequences, and feed-forward.

- `Attention`: the matrices of attention around the kernel that computes it
- `CrossAttention`: the same for tokens that read those of another text, the `Source`
- `make_distances`: the vectors of distances of a configuration
- `RelativeBias`: a bias for the distance of two tokens; `RotaryAngles`, `Rotation`: positions as
  rotations of queries and keys
- `Block`: attention and feed-forward, written only here
- `num_stack_parameters`: the parameters of a stack of blocks; `num_decoder_block_parameters`: those
  of a block of a decoder
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.cache import LayerCache
from bertworks.models.disentangled import NUM_TERMS, DistanceTable
from bertworks.models.kernels import Bias, attention, is_exported, visible
from bertworks.models.layers import ACTIVATIONS, Linear, count_parameters, dropout, layer_norm
from bertworks.models.layout import Layout
from bertworks.models.settings import TransformerConfig


class Rotation(NamedTuple):
    """Cosines and sines of the angles of tokens: [T, 1, 1, d / 2] each, in float32 or more."""

    cosines: Tensor
    sines: Tensor


class RotaryAngles:
    """The angles by which queries and keys are rotated (Su et al. 2021, section 3.2).

    Place p rotates the pair of numbers i and i + d / 2 of a head of d numbers by p * base ** (-2 i
    / d), so that the product of a query and a key depends on their distance. Angles are computed
    in float32, also for states in half precision, which has no numbers for single places beyond
    256. Those up to the longest sequence so far are kept.
    """

    def __init__(self, base: float, size: int):
        self.base = base
        self.size = size  # of a head: d
        self._table: Rotation | None = None  # of the places from 0

    def of_tokens(self, layout: Layout, dtype: torch.dtype) -> Rotation:
        """Return the rotation of the tokens of a layout. dtype: of the states."""
        dtype = torch.promote_types(dtype, torch.float32)
        device = layout.position_ids.device
        if is_exported():
            return self._of_places(layout.position_ids, dtype)
        count = layout.num_positions or layout.max_seqlen
        table = self._table
        is_known = table is not None and (
            len(table.cosines) >= count
            and table.cosines.dtype == dtype
            and table.cosines.device == device
        )
        if table is None or not is_known:
            places = torch.arange(1 << (count - 1).bit_length(), device=device)
            table = self._of_places(places, dtype)
            self._table = table  # complete when it is assigned: several threads may be here
        cosines, sines = (x.index_select(0, layout.position_ids) for x in table)
        return Rotation(cosines, sines)

    def _of_places(self, places: Tensor, dtype: torch.dtype) -> Rotation:
        """Return the rotations of places int64 [N]."""
        exponents = torch.arange(0, self.size, 2, device=places.device).to(dtype) / self.size
        angles = places.to(dtype)[:, None] * (1.0 / self.base**exponents)
        return Rotation(angles.cos()[:, None, None], angles.sin()[:, None, None])


def _rotated(qkv: Tensor, rotation: Rotation | None) -> Sequence[Tensor]:
    """Return queries, keys and values [T, heads, d] of qkv [T, 3, heads, d].

    Queries and keys are rotated, in the precision of the rotation. None: they are as they were.
    """
    if rotation is None:
        return qkv.unbind(1)
    cosines, sines = rotation
    first, second = qkv[:, :2].to(cosines.dtype).chunk(2, -1)
    pairs = first * cosines - second * sines, second * cosines + first * sines
    rotated = torch.cat(pairs, -1).to(qkv.dtype)
    return rotated[:, 0], rotated[:, 1], qkv[:, 2]


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2).

    There is one matrix for query, key and value. number: of the layer, from 0.
    """

    def __init__(self, c: TransformerConfig, number: int = 0):
        super().__init__()
        self.num_heads = c.num_attention_heads
        self.dropout = c.attention_dropout
        self.reach = c.reach(number)
        self.scale = NUM_TERMS**-0.5 if c.position_buckets else 1.0  # of queries, for the bias
        self.qkv = Linear(c.hidden_size, 3 * c.hidden_size, bias=c.attention_bias)
        self.output = Linear(c.hidden_size, c.hidden_size, bias=c.attention_bias)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only.

        x: may have more rows than the layout has tokens; their result is of no use.
        cache: keys and values of the tokens before, which are read as well; those of x are added.
        bias: added to the scores; not with a cache.
        rotation: of the queries and keys of the tokens; not with a cache.
        """
        assert cache is None or (bias is None and rotation is None)
        p = self.dropout if self.training else 0.0
        num_padding_rows = len(x) - len(layout.position_ids)
        qkv = self._heads(self.qkv(x))
        qkv = qkv[:-num_padding_rows] if num_padding_rows else qkv
        if cache is not None and cache.continues:
            context = cache.attend(qkv)
        else:
            q, k, v = _rotated(qkv, rotation)
            q = q if self.scale == 1 else q * self.scale
            context = attention(q, k, v, layout, bias=bias, dropout=p, reach=self.reach)
        if cache is not None and not cache.continues:
            cache.start(qkv[:, 1:])
        context = context.flatten(1)
        if rows is not None:
            context = context.index_select(0, rows)
        elif num_padding_rows:
            context = F.pad(context, (0, 0, 0, num_padding_rows))
        return self.output(context)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(
        self,
        x: Tensor,
        layout: Layout,
        bias: Bias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Return the attention that the token of a row pays to the token of a column.

        [T, hidden], the input of `forward` -> [B, heads, max_seqlen, max_seqlen]. Rows sum to 1;
        rows and columns of places without a token are 0.
        """
        # [B, heads, max_seqlen, d]
        q, k, _ = (
            layout.pad(part).transpose(1, 2)
            for part in _rotated(self._heads(self.qkv(x)), rotation)
        )
        q = q * self.scale
        scores: Tensor = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias(layout, q, k)
        mask = visible(layout, self.reach)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) * layout.present[:, None, :, None]

    def _heads(self, qkv: Tensor) -> Tensor:
        """[T, 3 * hidden] -> [T, 3, heads, d]."""
        return qkv.unflatten(1, (3, self.num_heads, -1))  # type: ignore[no-any-return]


class Source(NamedTuple):
    """The text that a decoder reads: its last hidden states [S, hidden], and their layout.

    It has as many sequences as the layout of the decoder's tokens; with a cache it may have fewer,
    of each of which there are equally many sequences in a row.
    """

    states: Tensor
    layout: Layout


class CrossAttention(nn.Module):
    """Multi-head attention of tokens to all tokens of a source (Vaswani et al. 2017, 3.2.3)."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.num_heads = c.num_attention_heads
        self.dropout = c.attention_dropout
        self.query = Linear(c.hidden_size, c.hidden_size)
        self.key_value = Linear(c.hidden_size, 2 * c.hidden_size)
        self.output = Linear(c.hidden_size, c.hidden_size)

    def forward(
        self, x: Tensor, layout: Layout, source: Source, cache: LayerCache | None = None
    ) -> Tensor:
        """[T, hidden] -> [T, hidden].

        x: may have more rows than the layout has tokens; their result is of no use.
        cache: keys and values of the source, which are computed in the first pass only.
        """
        query = _first_rows(self.query(x), layout).unflatten(1, (self.num_heads, -1))
        if cache is not None:
            if cache.source is None:
                cache.start_source(self._keys_and_values(source), source.layout)
            context = cache.attend_source(query)
        else:
            key, value = self._keys_and_values(source).unbind(1)
            p = self.dropout if self.training else 0.0
            context = attention(query, key, value, layout, keys_layout=source.layout, dropout=p)
        context = context.flatten(1)
        num_padding_rows = len(x) - len(layout.position_ids)
        if num_padding_rows:
            context = F.pad(context, (0, 0, 0, num_padding_rows))
        return self.output(context)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, x: Tensor, layout: Layout, source: Source) -> Tensor:
        """Return the attention that the token of a row pays to the source's token of a column.

        [T, hidden], the input of `forward` -> [B, heads, max_seqlen, max_seqlen of the source].
        Rows sum to 1; rows and columns of places without a token are 0.
        """
        query = layout.pad(self.query(x).unflatten(1, (self.num_heads, -1))).transpose(1, 2)
        key = source.layout.pad(self._keys_and_values(source)[:, 0]).transpose(1, 2)
        scores: Tensor = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        scores = scores.masked_fill(~source.layout.present[:, None, None], -torch.inf)
        return scores.softmax(-1) * layout.present[:, None, :, None]

    def _keys_and_values(self, source: Source) -> Tensor:
        """Return the keys and values of the tokens of a source: [S, 2, heads, d]."""
        rows = _first_rows(self.key_value(source.states), source.layout)
        return rows.unflatten(1, (2, self.num_heads, -1))  # type: ignore[no-any-return]


def _first_rows(x: Tensor, layout: Layout) -> Tensor:
    """Return as many rows as the layout has tokens.

    Without others it is x itself: a slice would keep their number in an ONNX graph.
    """
    count = len(layout.position_ids)
    return x if len(x) == count else x[:count]


def make_distances(c: TransformerConfig) -> DistanceTable | None:
    """Return the vectors of distances with random weights; None: the configuration has none."""
    if not c.position_buckets:
        return None
    return DistanceTable(c, c.num_attention_heads, c.position_buckets, c.max_relative_positions)


MAX_DISTANCE = 128  # tokens; longer distances have the last bucket


class RelativeBias(nn.Embedding):
    """A bias on attention scores for each head and each bucket of distances.

    It is that of Raffel et al. 2020, section 2.1. Half of the buckets are for keys behind the
    query; half of each direction for one distance each, the others grow with the logarithm of the
    distance.
    """

    def buckets(self, distances: Tensor) -> Tensor:
        """Return the bucket of each distance, int64.

        A distance is the place of the key minus that of the query.
        """
        half = self.num_embeddings // 2
        exact = half // 2
        lengths = distances.abs()
        logarithms = torch.log(lengths.clamp(min=1).float() / exact) / math.log(
            MAX_DISTANCE / exact
        )
        far = (exact + (logarithms * (half - exact)).long()).clamp(max=half - 1)
        return (distances > 0) * half + torch.where(lengths < exact, lengths, far)

    def of_places(self, num_places: int) -> Bias:
        """Return the bias of sequences of up to `num_places` tokens, as `attention` reads it."""
        distances = torch.arange(1 - num_places, num_places, device=self.weight.device)
        table = self(self.buckets(distances))  # [distances, heads]

        def bias(layout: Layout, queries: Tensor, keys: Tensor) -> Tensor:
            places = torch.arange(layout.max_seqlen, device=table.device)
            rows = places - places[:, None] + (num_places - 1)
            # a rectangle may be longer than its sequences: what is added there has no effect
            rows = rows.clamp(0, len(distances) - 1)
            return F.embedding(rows, table).permute(2, 0, 1)[None]

        return bias


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al. 2017, section 3.3).

    A gate may be between them as well (Shazeer 2020): the first half of the outputs of the first
    layer passes the activation, the second half is what it is multiplied with.
    """

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.name = c.hidden_act
        self.activation = ACTIVATIONS[c.hidden_act]
        self.is_gated = c.gated_feed_forward
        self.dropout = c.hidden_dropout if c.dropout_within else 0.0
        outputs = c.ffn_size * (1 + c.gated_feed_forward)
        self.up = Linear(c.hidden_size, outputs, bias=c.feed_forward_bias)
        self.down = Linear(c.ffn_size, c.hidden_size, bias=c.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        y = self.up(x)
        if self.is_gated:
            activated, factors = y.chunk(2, -1)
            y = self.activation(activated) * factors
        else:
            y = self.activation(y)
        return self.down(dropout(y, self.dropout if self.training else 0.0))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then feed-forward, each with dropout and a residual connection.

    The norm follows the sum (BERT), or precedes each of the two (`norm_first`, GPT-2).

    reads_source: whether there is attention to a source between the two, with a norm of its own:
        the block of a decoder.
    number: of the layer, from 0.
    """

    def __init__(self, c: TransformerConfig, reads_source: bool = False, number: int = 0):
        super().__init__()
        self.attention_dropout = c.attention_dropout if c.dropout_within else c.hidden_dropout
        self.dropout = 0.0 if c.dropout_within else c.hidden_dropout
        self.norm_first = c.norm_first
        self.attention = self.make_attention(c, number)
        has_norm = c.first_norm or number > 0
        self.attention_norm = layer_norm(c.hidden_size, c) if has_norm else None
        self.cross_attention = CrossAttention(c) if reads_source else None
        if reads_source:
            self.cross_attention_norm = layer_norm(c.hidden_size, c)
        self.feed_forward = FeedForward(c)
        self.feed_forward_norm = layer_norm(c.hidden_size, c)

    def make_attention(self, c: TransformerConfig, number: int) -> Attention:
        """Return the attention of layer `number`. Blocks of other families have another one."""
        return Attention(c, number)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
        source: Source | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Return the states after this block: [T, hidden] -> [T, hidden].

        They are [R, hidden] for the tokens `rows` int64 [R] only, which read all the others; a
        block that reads a source computes all tokens.

        cache, bias, rotation: see `Attention.forward`. source: of a block that reads one.
        """
        p = self.dropout if self.training else 0.0
        x = self.attend(x, layout, rows, cache, bias, rotation)
        if self.cross_attention is not None:
            assert source is not None
            read = self.cross_attention_input(x)
            x = dropout(self.cross_attention(read, layout, source, cache), p, residual=x)
            if not self.norm_first:
                x = self.cross_attention_norm(x)
        if self.norm_first:
            return dropout(self.feed_forward(self.feed_forward_norm(x)), p, residual=x)
        return self.feed_forward_norm(dropout(self.feed_forward(x), p, residual=x))  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the states that this block reads."""
        return self.feed_forward_norm.weight.dtype

    def attend(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Return the states behind self-attention; the arguments are those of `forward`."""
        p = self.attention_dropout if self.training else 0.0
        residual = x if rows is None else x.index_select(0, rows)
        read = self.attention_input(x)
        context = self.attention(read, layout, rows, cache, bias, rotation)
        x = dropout(context, p, residual=residual)
        return x if self.norm_first or self.attention_norm is None else self.attention_norm(x)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention reads of the states before this block."""
        has_norm = self.norm_first and self.attention_norm is not None
        return self.attention_norm(x) if has_norm else x  # type: ignore[misc]

    def cross_attention_input(self, x: Tensor) -> Tensor:
        """What attention to the source reads of the states behind self-attention."""
        return self.cross_attention_norm(x) if self.norm_first else x


def num_stack_parameters(c: TransformerConfig) -> int:
    """Return the parameters of all blocks, the norm behind them, and what adds positions to scores.

    The blocks are those of the kind "transformer".
    """
    norm = (1 + c.norm_bias) * c.hidden_size if c.norm_first else 0
    bias = c.relative_position_buckets * c.num_attention_heads
    if c.position_buckets:
        bias += (2 * c.position_buckets + 1 + c.norm_bias) * c.hidden_size
    blocks = c.num_groups * count_parameters(Block, c, False, 1) if c.num_groups else 0
    absent = 0 if c.first_norm else (1 + c.norm_bias) * c.hidden_size
    return blocks - absent + norm + bias


def num_decoder_block_parameters(c: TransformerConfig) -> int:
    """Return the parameters of a block that also reads a source."""
    return count_parameters(Block, c, True)
