"""The blocks of a Transformer: multi-head attention within packed sequences, and feed-forward.

- `TransformerConfig`: the settings of a stack of blocks, its parameters and operations;
  `DecoderConfig`: those of a second one
- `Attention`: the matrices of attention around the kernel that computes it
- `CrossAttention`: the same for tokens that read those of another text, the `Source`
- `RelativeBias`: a bias for the distance of two tokens
- `Block`: attention and feed-forward, written only here
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.errors import check
from bertworks.models.cache import LayerCache
from bertworks.models.kernels import Bias, attention
from bertworks.models.layers import (
    ACTIVATIONS,
    LIMITS,
    LayerConfig,
    Linear,
    count_parameters,
    dropout,
)
from bertworks.models.layout import Layout


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(LayerConfig):
    """A stack of blocks, as wide as its hidden states.

    kind: "transformer", or "lstm": each block is a bidirectional LSTM, with half of the width in
        each direction (Graves and Schmidhuber 2005); heads, feed-forward layers and attention
        dropout are not there; or "static": there are no blocks; or "elmo": each block is two LSTMs,
        one of each direction, which read a half of the states each and never meet (Peters et al.
        2018). They have `intermediate_size` cells, and a projection if these are not the half.
    num_hidden_layers: blocks that a token passes; 0: the vector of a token is the same in all texts
        (Mikolov et al. 2013).
    num_attention_heads: of every layer; a divisor of hidden_size.
    intermediate_size: width of the feed-forward layers; 0: 4 * hidden_size.
    num_hidden_groups: blocks with parameters of their own; layer i uses block i * groups // layers;
        0: num_hidden_layers (ALBERT: 1).
    relative_position_buckets: of a bias on the attention scores for the distance of two tokens,
        which all layers share (Raffel et al. 2020, section 2.1; MPNet); 0: no such bias.
    direction: which tokens a token reads. "left_to_right": itself and those before it (GPT-2).
    norm_first: layer norm before attention and feed-forward, and one after the last block (GPT-2).
    attention_dropout: probability of zeroing an attention probability.
    cell_clip, projection_clip: of the kind "elmo": the largest absolute values of the cells of an
        LSTM, and of its outputs, in each step; 0: they are not limited.
    """

    kind: Literal["transformer", "lstm", "static", "elmo"] = "transformer"
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 0
    num_hidden_groups: int = 0
    relative_position_buckets: int = 0
    direction: Literal["bidirectional", "left_to_right", "right_to_left"] = "bidirectional"
    norm_first: bool = False
    attention_dropout: float = 0.1
    cell_clip: float = 0.0
    projection_clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cell_clip", "projection_clip"):
            value = getattr(self, name)
            check(
                0 <= value < math.inf and (self.kind == "elmo" or not value),
                f"{name} is {value} with kind {self.kind!r}: expected 0, or a number above 0 with "
                "kind = 'elmo'",
            )
        check(
            self.kind != "transformer" or self.hidden_size % self.num_attention_heads == 0,
            f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} "
            "attention heads",
        )
        check(
            self.relative_position_buckets in (0, *range(4, 1025, 4))
            and (not self.relative_position_buckets or self.direction == "bidirectional"),
            f"relative_position_buckets is {self.relative_position_buckets} with direction "
            f"{self.direction!r}: expected 0, or a multiple of 4 up to 1,024 with 'bidirectional'",
        )
        check(
            self.num_hidden_layers % max(1, self.num_groups) == 0,
            f"num_hidden_groups {self.num_hidden_groups} does not divide num_hidden_layers "
            f"{self.num_hidden_layers}: use a divisor, or 0 for a block per layer",
        )

    @property
    def ffn_size(self) -> int:
        """The width between the two matrices of a feed-forward layer."""
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def num_groups(self) -> int:
        """Blocks with parameters of their own."""
        return self.num_hidden_groups or self.num_hidden_layers

    @property
    def num_stack_parameters(self) -> int:
        """Parameters of all blocks, the norm behind them and the relative bias."""
        hidden = self.hidden_size
        norm = 2 * hidden if self.norm_first else 0
        bias = self.relative_position_buckets * self.num_attention_heads
        return self.num_groups * count_parameters(Block, self) + norm + bias

    @property
    def num_decoder_block_parameters(self) -> int:
        """Parameters of a block that also reads a source."""
        return count_parameters(Block, self, True)

    def stack_flops(self, sequence_length: int, finished: float) -> float:
        """Matrix-product operations per token (a multiply-add counts 2).

        finished: the last layer computes queries, keys and values for all tokens, and the rest
            of the layer for this fraction of them.
        """
        if not self.num_hidden_layers:
            return 0.0
        hidden = self.hidden_size
        products = 2 * (4 * hidden * hidden + 2 * hidden * self.ffn_size)
        unfinished = (1 - finished) * 2 * (hidden * hidden + 2 * hidden * self.ffn_size)
        return self.num_hidden_layers * (products + 4 * hidden * sequence_length) - unfinished


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The decoder of a network that writes one text while it reads another one.

    It has the kind and the sizes of the encoder. A Transformer has attention to the last states of
    the encoder between self-attention and feed-forward (Vaswani et al. 2017, section 3.1).

    num_hidden_layers: its blocks, or layers of its LSTM.
    attention: how it reads the last states of the encoder. "multi_head": of a Transformer; of an
        LSTM "multiplicative" (Luong et al. 2015, section 3.1, "general"), "additive" (Bahdanau et
        al. 2015, section 3.1) or "none": it knows only the state from which it starts (Sutskever et
        al. 2014).
    input_feeding: with multiplicative attention: an LSTM also reads what it predicted the token
        before from (Luong et al. 2015, section 3.3).
    divides_texts: whether a text longer than those of the training is divided into groups of
        sentences, and the results are joined. The summaries of the parts of a text are not its
        summary.
    """

    num_hidden_layers: int = 6
    attention: Literal["multi_head", "multiplicative", "additive", "none"] = "multi_head"
    input_feeding: bool = False
    divides_texts: bool = True

    def __post_init__(self) -> None:
        check(
            self.attention == "multiplicative" or not self.input_feeding,
            f"input_feeding of the decoder with attention {self.attention!r}: expected attention = "
            "'multiplicative', or input_feeding = false",
        )
        limit = LIMITS["num_hidden_layers"]
        check(
            1 <= self.num_hidden_layers <= limit,
            f"num_hidden_layers of the decoder is {self.num_hidden_layers!r}: expected a whole "
            f"number from 1 to {limit:,}",
        )


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2).

    There is one matrix for query, key and value.
    """

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.num_heads = c.num_attention_heads
        self.dropout = c.attention_dropout
        self.qkv = Linear(c.hidden_size, 3 * c.hidden_size)
        self.output = Linear(c.hidden_size, c.hidden_size)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only.

        x: may have more rows than the layout has tokens; their result is of no use.
        cache: keys and values of the tokens before, which are read as well; those of x are added.
        bias: added to the scores; not with a cache.
        """
        assert cache is None or bias is None
        p = self.dropout if self.training else 0.0
        num_padding_rows = len(x) - len(layout.position_ids)
        qkv = self._heads(self.qkv(x))
        qkv = qkv[:-num_padding_rows] if num_padding_rows else qkv
        if cache is not None and cache.continues:
            context = cache.attend(qkv)
        else:
            q, k, v = qkv.unbind(1)
            context = attention(q, k, v, layout, bias=bias, dropout=p)
        if cache is not None and not cache.continues:
            cache.start(qkv[:, 1:])
        context = context.flatten(1)
        if rows is not None:
            context = context.index_select(0, rows)
        elif num_padding_rows:
            context = F.pad(context, (0, 0, 0, num_padding_rows))
        return self.output(context)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, x: Tensor, layout: Layout, bias: Bias | None = None) -> Tensor:
        """Return the attention that the token of a row pays to the token of a column.

        [T, hidden], the input of `forward` -> [B, heads, max_seqlen, max_seqlen]. Rows sum to 1;
        rows and columns of places without a token are 0.
        """
        # [B, heads, max_seqlen, d]
        q, k, _ = layout.pad(self._heads(self.qkv(x))).permute(2, 0, 3, 1, 4)
        scores: Tensor = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias(layout)
        mask = layout.visible
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

        def bias(layout: Layout) -> Tensor:
            places = torch.arange(layout.max_seqlen, device=table.device)
            rows = places - places[:, None] + (num_places - 1)
            # a rectangle may be longer than its sequences: what is added there has no effect
            rows = rows.clamp(0, len(distances) - 1)
            return F.embedding(rows, table).permute(2, 0, 1)[None]

        return bias


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, c: TransformerConfig):
        super().__init__()
        self.name = c.hidden_act
        self.activation = ACTIVATIONS[c.hidden_act]
        self.up = Linear(c.hidden_size, c.ffn_size)
        self.down = Linear(c.ffn_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then feed-forward, each with dropout and a residual connection.

    The norm follows the sum (BERT), or precedes each of the two (`norm_first`, GPT-2).

    reads_source: whether there is attention to a source between the two, with a norm of its own:
        the block of a decoder.
    """

    def __init__(self, c: TransformerConfig, reads_source: bool = False):
        super().__init__()
        self.dropout = c.hidden_dropout
        self.norm_first = c.norm_first
        self.attention = Attention(c)
        self.attention_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.cross_attention = CrossAttention(c) if reads_source else None
        if reads_source:
            self.cross_attention_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.feed_forward = FeedForward(c)
        self.feed_forward_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
        source: Source | None = None,
    ) -> Tensor:
        """Return the states after this block: [T, hidden] -> [T, hidden].

        They are [R, hidden] for the tokens `rows` int64 [R] only, which read all the others; a
        block that reads a source computes all tokens.

        cache, bias: see `Attention.forward`. source: of a block that reads one.
        """
        p = self.dropout if self.training else 0.0
        x = self.attend(x, layout, rows, cache, bias)
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
        return self.attention_norm.weight.dtype

    def attend(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """Return the states behind self-attention; the arguments are those of `forward`."""
        p = self.dropout if self.training else 0.0
        residual = x if rows is None else x.index_select(0, rows)
        read = self.attention_input(x)
        x = dropout(self.attention(read, layout, rows, cache, bias), p, residual=residual)
        return x if self.norm_first else self.attention_norm(x)

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention reads of the states before this block."""
        return self.attention_norm(x) if self.norm_first else x

    def cross_attention_input(self, x: Tensor) -> Tensor:
        """What attention to the source reads of the states behind self-attention."""
        return self.cross_attention_norm(x) if self.norm_first else x
