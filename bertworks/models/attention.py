"""The blocks of a Transformer: multi-head attention within packed sequences, and feed-forward.

- `TransformerConfig`: the settings of a stack of blocks, its parameters and operations;
  `DecoderConfig`: those of a second one
- `Attention`: the matrices of attention around the kernel that computes it
- `CrossAttention`: the same for tokens that read those of another text, the `Source`
- `make_distances`: the vectors of distances of a configuration
- `RelativeBias`: a bias for the distance of two tokens; `RotaryAngles`, `Rotation`: positions as
  rotations of queries and keys
- `Block`: attention and feed-forward, written only here
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.errors import check
from bertworks.models.cache import LayerCache
from bertworks.models.disentangled import NUM_TERMS, DistanceTable
from bertworks.models.kernels import Bias, attention, is_exported, visible
from bertworks.models.layers import (
    ACTIVATIONS,
    LIMITS,
    LayerConfig,
    Linear,
    count_parameters,
    dropout,
    layer_norm,
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
    gated_feed_forward: the first matrix of a feed-forward layer has twice this width; the second
        half of its outputs is multiplied with the activation of the first (GeGLU, Shazeer 2020).
    attention_bias, feed_forward_bias: whether the matrices of these parts have biases.
    num_hidden_groups: blocks with parameters of their own; layer i uses block i * groups // layers;
        0: num_hidden_layers (ALBERT: 1).
    relative_position_buckets: of a bias on the attention scores for the distance of two tokens,
        which all layers share (Raffel et al. 2020, section 2.1; MPNet); 0: no such bias.
    position_buckets: with position_embedding_type "disentangled", half of the rows of the table of
        distances that all layers share (He et al. 2021). Up to half of this number each distance
        has a row of its own, see `models.disentangled`; 0: there is no such table.
    max_relative_positions: from this distance on all distances have the same row.
    rotary_base: of the angles by which queries and keys are rotated (Su et al. 2021, section 3.2),
        see `RotaryAngles`, with position_embedding_type "rotary".
    local_rotary_base: the same in local layers.
    local_attention: of local layers, in which a token reads its neighbours: how many tokens this
        window reaches over. A token reads those at a distance of up to half of it, on both sides
        (ModernBERT, Warner et al. 2024, section 2.1).
    global_attention_every: every n-th layer, from the first one on, reads whole sequences, and the
        others are local; 0: local_layers says which are.
    local_layers: numbers of the local layers, from 0, where these are not all but every n-th.
    relative_segments: with position_embedding_type "relative": a score for each head also says
        whether two tokens have the same token type, of which there may be any number (Yang et al.
        2019, section 2.4).
    memory_length: with "relative": the number of tokens before a sequence of which it reads the
        states (Dai et al. 2019, section 3.2). Training and evaluation keep them; 0: sequences stand
        alone.
    clamp_length: with "relative": larger distances count as this one; 0: all distances differ.
    direction: which tokens a token reads. "left_to_right": itself and those before it (GPT-2).
    norm_first: layer norm before attention and feed-forward, and one after the last block (GPT-2).
    first_norm: with norm_first: also before the attention of the first layer (not in ModernBERT,
        which norms the embeddings).
    attention_dropout: probability of zeroing an attention probability.
    dropout_within: attention_dropout is also behind attention, and hidden_dropout within
        feed-forward layers, before their second matrix (ModernBERT), instead of hidden_dropout
        behind both.
    cell_clip, projection_clip: of the kind "elmo": the largest absolute values of the cells of an
        LSTM, and of its outputs, in each step; 0: they are not limited.
    """

    kind: Literal["transformer", "lstm", "static", "elmo"] = "transformer"
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 0
    gated_feed_forward: bool = False
    attention_bias: bool = True
    feed_forward_bias: bool = True
    num_hidden_groups: int = 0
    relative_position_buckets: int = 0
    position_buckets: int = 0
    max_relative_positions: int = 0
    rotary_base: float = 10_000.0
    local_rotary_base: float = 10_000.0
    local_attention: int = 0
    global_attention_every: int = 0
    local_layers: tuple[int, ...] = ()
    relative_segments: bool = False
    memory_length: int = 0
    clamp_length: int = 0
    direction: Literal["bidirectional", "left_to_right", "right_to_left"] = "bidirectional"
    norm_first: bool = False
    first_norm: bool = True
    attention_dropout: float = 0.1
    dropout_within: bool = False
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
        check(
            self.first_norm or (self.norm_first and not self.num_hidden_groups),
            f"first_norm is false with norm_first {self.norm_first} and num_hidden_groups "
            f"{self.num_hidden_groups}: expected norm_first = true and a block per layer, or "
            "first_norm = true",
        )
        self._check_distances()
        self._check_local_layers()

    def _check_distances(self) -> None:
        """Check the fields of disentangled attention."""
        least = self.position_buckets // 2 + 2 if self.position_buckets else 0
        check(
            self.position_buckets != 1
            and self.max_relative_positions >= least
            and (self.position_buckets > 0 or not self.max_relative_positions),
            f"position_buckets is {self.position_buckets} and max_relative_positions "
            f"{self.max_relative_positions}: expected 0 and 0, or 2 or more buckets, and "
            "max_relative_positions above half of their number by 2 or more",
        )

    def _check_local_layers(self) -> None:
        """Check the fields of layers in which a token reads its neighbours."""
        numbers = self.local_layers
        check(
            numbers == tuple(sorted({*numbers} & {*range(self.num_hidden_layers)}))
            and not (numbers and self.global_attention_every),
            f"local_layers is {list(numbers)} with num_hidden_layers {self.num_hidden_layers} and "
            f"global_attention_every {self.global_attention_every}: expected numbers of layers "
            "from 0, in order and each once, with global_attention_every = 0",
        )
        has_pattern = bool(numbers or self.global_attention_every)
        check(
            self.local_attention >= 2 if has_pattern else self.local_attention == 0,
            f"local_attention is {self.local_attention} "
            f"{'with' if has_pattern else 'without'} global_attention_every or local_layers: "
            f"expected {'2 tokens or more' if has_pattern else 'local_attention = 0'}",
        )
        check(
            not has_pattern
            or (
                self.direction == "bidirectional"
                and not self.num_hidden_groups
                and not self.relative_position_buckets
            ),
            "global_attention_every or local_layers with direction 'left_to_right' or "
            "'right_to_left', num_hidden_groups or relative_position_buckets: expected an encoder "
            "that reads in both directions, with a block per layer",
        )

    def is_local(self, number: int) -> bool:
        """Return whether a token reads its neighbours in a layer, and not the whole sequence.

        number: of the layer, from 0.
        """
        if self.global_attention_every:
            return number % self.global_attention_every > 0
        return number in self.local_layers

    def reach(self, number: int) -> int:
        """Return the largest distance at which a token reads another one in a layer.

        0: it reads the whole sequence. number: of the layer, from 0.
        """
        return self.local_attention // 2 if self.is_local(number) else 0

    def rotary_base_of(self, number: int) -> float:
        """Return the base of the angles in a layer. number: of the layer, from 0."""
        return self.local_rotary_base if self.is_local(number) else self.rotary_base

    def pattern_of(self, numbers: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """Return global_attention_every and local_layers of a network with some of the layers.

        numbers: of the layers, from 0, in their new order.
        """
        are_local = [self.is_local(number) for number in numbers]
        if not any(are_local):
            return int(self.local_attention > 0), ()
        period = next((n for n, is_local in enumerate(are_local) if n and not is_local), 0)
        period = period or len(numbers)
        if are_local == [n % period > 0 for n in range(len(numbers))]:
            return period, ()
        return 0, tuple(n for n, is_local in enumerate(are_local) if is_local)

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
        """Parameters of all blocks, the norm behind them, and what adds positions to scores."""
        norm = (1 + self.norm_bias) * self.hidden_size if self.norm_first else 0
        bias = self.relative_position_buckets * self.num_attention_heads
        if self.position_buckets:
            bias += (2 * self.position_buckets + 1 + self.norm_bias) * self.hidden_size
        blocks = self.num_groups * count_parameters(Block, self, False, 1) if self.num_groups else 0
        absent = 0 if self.first_norm else (1 + self.norm_bias) * self.hidden_size
        return blocks - absent + norm + bias

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
        feed_forward = (2 + self.gated_feed_forward) * hidden * self.ffn_size
        products = 2 * (4 * hidden * hidden + feed_forward)
        unfinished = (1 - finished) * 2 * (hidden * hidden + feed_forward)
        layers = range(self.num_hidden_layers)
        num_local = sum(map(self.is_local, layers))
        window = min(sequence_length, 2 * (self.local_attention // 2) + 1)
        read = (self.num_hidden_layers - num_local) * sequence_length + num_local * window
        if self.position_buckets:  # a query and a key of each token with each distance
            read += self.num_hidden_layers * (2 * sequence_length - 1)
        return self.num_hidden_layers * products + 4 * hidden * read - unfinished


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
