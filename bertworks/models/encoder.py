"""Token ids -> hidden states of every layer.

- `Embeddings`: token, position and token type as one vector per token
- `Block`: attention and feed-forward, written only here
- `Encoder`: embeddings and blocks
- `Pooler`, `LMHead`, `OutputLayer`: hidden states -> a vector per sequence, logits of the
  vocabulary, logits of a task
- `TokenHead`: hidden states -> a logit per token
- `pool`: the hidden states of a sequence -> one vector, without parameters
- `BiLSTM`: vectors -> vectors that depend on all tokens before and behind
- `meta_device_init`: shapes without memory; `init_local_attention`: a start with attention to the
  neighbours
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from bertworks.errors import check
from bertworks.models.attention import (
    Attention,
    Linear,
    compiles_sizes,
    dropout,
    pad_rows_to_bucket,
)
from bertworks.models.cache import KeyValueCache, LayerCache
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class Embeddings(nn.Module):
    """The sum of the embeddings that a configuration has, normalised, with dropout (Devlin et al.
    2019, figure 2), and projected if their width is not the hidden size."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        width = c.embedding_width
        self.token = nn.Embedding(c.vocab_size, width)
        learned = c.position_embedding_type == "learned"
        self.position = nn.Embedding(c.max_position_embeddings, width) if learned else None
        self.token_type = nn.Embedding(c.type_vocab_size, width) if c.type_vocab_size else None
        self.norm = nn.LayerNorm(width, c.layer_norm_eps) if c.embedding_norm else None
        self.projection = Linear(width, c.hidden_size) if width != c.hidden_size else None
        self.scale = c.hidden_size**0.5 if c.embedding_scale else 1.0
        self.language = c.languages.index(c.language) if c.language else None
        self.max_positions = c.max_position_embeddings
        self.dropout = c.embedding_rate

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """input_ids int64 [T]; token_type_ids int64 [T], None, or a table of one row: all 0 -> [T,
        hidden_size].

        Raises:
            ValueError: if there are fewer positions than a sequence needs.
        """
        count = layout.num_positions or layout.max_seqlen
        what = f"a sequence of {count} tokens, but the model has {self.max_positions} positions"
        check(count <= self.max_positions, what)
        x: Tensor = self.token(input_ids)
        if self.scale != 1:
            x = x * self.scale
        x = x + self._places(x, layout.position_ids, count, token_type_ids)
        if self.norm is not None:
            # tables may have a higher precision than what is computed
            x = self.norm(x.to(self.norm.weight.dtype))
        x = dropout(x, self.dropout if self.training else 0.0)
        if self.projection is not None:
            x = self.projection(x.to(self.projection.weight.dtype))
        return x

    def _places(
        self, x: Tensor, positions: Tensor, count: int, token_type_ids: Tensor | None
    ) -> Tensor:
        """[T, width]: position and token type embeddings. count: all positions int64 [T] are below
        it."""
        if self.position is None:
            table = sinusoids(torch.arange(count, device=x.device), x.shape[1]).to(x.dtype)
        else:
            table = self.position.weight[:count]
        if self.token_type is None:
            return table.index_select(0, positions)
        kinds = self.token_type.num_embeddings
        # A model that was trained without pairs (RoBERTa) has one type for all tokens.
        types = (
            torch.zeros_like(positions) if token_type_ids is None or kinds == 1 else token_type_ids
        )
        types = types if self.language is None else torch.full_like(positions, self.language)
        # A row of the product table is position + type: one small table, read once, instead of two
        # large sums.
        product = (table[:, None] + self.token_type.weight).flatten(0, 1)
        return product.index_select(0, positions * kinds + types)


def sinusoids(position_ids: Tensor, width: int) -> Tensor:
    """int64 [T] -> float64 [T, width]: sines in even columns, cosines in odd ones, with wavelengths
    from 2 pi to 10,000 * 2 pi (Vaswani et al. 2017, section 3.5)."""
    columns = torch.arange(0, width, 2, device=position_ids.device)
    angles = position_ids[:, None].double() * 10_000.0 ** (-columns.double() / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


class FeedForward(nn.Module):
    """Two linear layers with an activation between them (Vaswani et al. 2017, section 3.3)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.name, self.activation = c.hidden_act, ACTIVATIONS[c.hidden_act]
        self.up = Linear(c.hidden_size, c.ffn_size)
        self.down = Linear(c.ffn_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then feed-forward, each with dropout and a residual connection. The norm follows
    the sum (BERT), or precedes each of the two (`norm_first`, GPT-2)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.dropout, self.norm_first = c.hidden_dropout, c.norm_first
        self.attention = Attention(c)
        self.attention_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.feed_forward = FeedForward(c)
        self.feed_forward_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only: they
        read all the others.

        memory, cache: see `Attention.forward`.
        """
        p = self.dropout if self.training else 0.0
        residual = x if rows is None else x.index_select(0, rows)
        read = self.attention_input(x)
        if memory is not None:
            memory = self.attention_input(memory)
        x = dropout(self.attention(read, layout, rows, memory, cache), p, residual=residual)
        if self.norm_first:
            return dropout(self.feed_forward(self.feed_forward_norm(x)), p, residual=x)
        x = self.attention_norm(x)
        return self.feed_forward_norm(dropout(self.feed_forward(x), p, residual=x))  # type: ignore[no-any-return]

    def attention_input(self, x: Tensor) -> Tensor:
        """What attention reads of the states before this block."""
        return self.attention_norm(x) if self.norm_first else x


class Encoder(nn.Module):
    """The body of a network: embeddings and blocks.

    gradient_checkpointing: only the states between blocks are kept for the backward pass, which
        computes the rest again: memory of one block instead of all, for a third more arithmetic.
    """

    pads_rows = False  # always to one of few numbers of rows; else in bf16 on a CPU only
    compute_dtype: torch.dtype | None = None  # of the states; None: that of the embeddings

    def __init__(self, c: EncoderConfig, gradient_checkpointing: bool = False):
        super().__init__()
        self.config, self.gradient_checkpointing = c, gradient_checkpointing
        self.embeddings = Embeddings(c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.num_groups))
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if c.norm_first else None
        initialize(self, c)

    @property
    def layers(self) -> list[Block]:
        """The block of every layer; layers of a group share one."""
        c = self.config
        return [
            cast(Block, self.blocks[i * c.num_groups // c.num_hidden_layers])
            for i in range(c.num_hidden_layers)
        ]

    def forward(
        self,
        input_ids: Tensor,
        layout: Layout,
        token_type_ids: Tensor | None = None,
        rows: Tensor | None = None,
        memories: Sequence[Tensor] | None = None,
        cache: KeyValueCache | None = None,
    ) -> list[Tensor]:
        """input_ids, token_type_ids int64 [T] -> num_hidden_layers + 1 tensors [T, hidden],
        embeddings first.

        rows: int64 [R], the only tokens whose last state is needed: the last tensor is [R, hidden],
            and most of the last layer's work is saved.
        memories: for each layer [tokens of layout.memory, hidden], the states before it that are
            read as well.
        cache: of a network that reads from left to right, without gradients: the tokens of the
            passes before are read as well. The first pass has the prompts, each further one has the
            layout `cache.next_layout()`.
        """
        if cache is not None:
            cache.extend(layout)
        layout = layout.directed(self.config.direction)
        embeddings = self.embeddings(input_ids, layout, token_type_ids)
        # Without a norm over the embeddings they have the precision of the tables, which may be
        # higher.
        embeddings = embeddings.to(self.compute_dtype or self.layers[0].attention_norm.weight.dtype)
        num_tokens = len(input_ids)
        num_last = num_tokens if rows is None else len(rows)
        pads_rows = self.pads_rows or compiles_sizes(embeddings)
        if pads_rows:
            pad = partial(pad_rows_to_bucket, pads_small=not torch.is_grad_enabled())
            embeddings = pad(embeddings)
            if rows is not None:
                rows = pad(rows)
        states = [embeddings]
        layers = self.layers
        for number, block in enumerate(layers):
            rows_of_layer = rows if number == len(layers) - 1 else None
            memory = memories and memories[number]
            layer_cache = cache and cache.layers[number]
            inputs = (states[-1], layout, rows_of_layer, memory, layer_cache)
            if self.gradient_checkpointing and self.training:
                # With the parameters of now: in bf16 they are copies, which are gone when the block
                # is computed again.
                copies = dict(block.named_parameters())
                states.append(
                    checkpoint(functional_call, block, copies, inputs, use_reentrant=False)
                )
            else:
                states.append(block(*inputs))
        if self.norm is not None:
            states[-1] = self.norm(states[-1])
        if not pads_rows:
            return states
        return [*(state[:num_tokens] for state in states[:-1]), states[-1][:num_last]]

    def attention_maps(self, states: Sequence[Tensor], layout: Layout) -> list[Tensor]:
        """For each layer the attention probabilities [B, heads, max_seqlen, max_seqlen].

        states: as `forward` returns them without `rows`.
        """
        layout = layout.directed(self.config.direction)
        return [
            block.attention.probabilities(block.attention_input(x), layout)
            for block, x in zip(self.layers, states[:-1], strict=True)
        ]


def initialize(module: nn.Module, c: EncoderConfig) -> None:
    """Matrices and tables from a normal distribution cut at two deviations, as in
    google-research/bert `create_initializer`; biases zero; norms as torch makes them. The row of
    [PAD] is drawn like any other."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            limit = 2 * c.initializer_range
            nn.init.trunc_normal_(part.weight, std=c.initializer_range, a=-limit, b=limit)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


@torch.no_grad()
def scale_residual(encoder: "Encoder") -> None:
    """Divides the matrices that lead into the residual stream, two in each layer, by the root of
    their number (Radford et al. 2019, section 2.3)."""
    for block in cast("list[Block]", encoder.blocks):
        for layer in (block.attention.output, block.feed_forward.down):
            layer.weight /= (2 * encoder.config.num_hidden_layers) ** 0.5


class Pooler(nn.Module):
    """The vector of a sequence: the state of its first or last token, through a dense layer and an
    activation (BERT: the first, tanh). The kinds "first" and "last" have no parameters."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        place, _, activation = c.pooler.partition("_")
        self.reads_last = place == "last"
        self.activation = torch.tanh if activation == "tanh" else ACTIVATIONS.get(activation)
        self.dense = Linear(c.hidden_size, c.hidden_size) if activation else None
        initialize(self, c)

    def tokens(self, layout: Layout) -> Tensor:
        """int32 [B]: the token that stands for each sequence."""
        return layout.last if self.reads_last else layout.first

    def forward(self, x: Tensor) -> Tensor:
        """States of these tokens, [B, hidden] -> [B, hidden]."""
        return (
            x if self.dense is None or self.activation is None else self.activation(self.dense(x))
        )


class OutputLayer(nn.Linear):
    """The last layer of a task, always in float32: it is small, and its numbers may be years or
    prices, which in bf16 lie 8 or 1,000 apart."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> float32 [..., out_features]."""
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight, self.bias)


class LMHead(nn.Module):
    """Hidden states -> logits of the vocabulary, through the token embedding matrix. The caller
    passes that matrix: a tied parameter has one owner. Use it for few tokens: this is the widest
    layer of all."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        transforms, width = c.lm_head == "transform", c.embedding_width
        self.dense = Linear(c.hidden_size, width) if transforms else None
        self.activation = ACTIVATIONS[c.lm_head_activation]
        self.norm = nn.LayerNorm(width, c.layer_norm_eps) if transforms else None
        self.bias = nn.Parameter(torch.zeros(c.vocab_size)) if c.lm_head != "plain" else None
        initialize(self, c)

    def transform(self, x: Tensor) -> Tensor:
        """[M, hidden] -> [M, width of the embeddings]: what is multiplied with the embedding
        matrix."""
        if self.dense is None or self.norm is None:
            return x
        return self.norm(self.activation(self.dense(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
        """x [M, hidden], embeddings [V, width] -> logits [M, V]."""
        return F.linear(self.transform(x), embeddings, self.bias)


class TokenHead(nn.Module):
    """Hidden states -> one logit per token, through a dense layer and the activation: whether a
    token was replaced (Clark et al. 2020, section 2)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.activation = ACTIVATIONS[c.hidden_act]
        self.output = Linear(c.hidden_size, 1)
        initialize(self, c)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> logits [T]."""
        return self.output(self.activation(self.dense(x))).squeeze(-1)  # type: ignore[no-any-return]


Pooling = Literal["mean", "cls", "max", "last-four"]
_LAST_LAYERS = 4


def pool(
    states: Sequence[Tensor], layout: Layout, pooling: Literal["mean", "max", "last-four"]
) -> Tensor:
    """states: of all layers, [T, hidden] each, embeddings first -> float32 [B, hidden].

    "mean" and "max" are over all tokens, [CLS] and [SEP] included, as in sentence-transformers.
    "last-four" is the mean over the tokens and the last four layers, or all layers if there are
    fewer. "cls" is the last state of the first
    token: the caller needs no more than that one.
    """
    layers = states[1:][-_LAST_LAYERS:] if pooling == "last-four" else states[-1:]
    x = (
        layers[0].float()
        if len(layers) == 1
        else torch.stack([state.float() for state in layers]).mean(0)
    )
    return (
        torch.segment_reduce(x, "max", offsets=layout.cu_seqlens.long())
        if pooling == "max"
        else layout.mean(x)
    )


def num_lstm_parameters(input_size: int, units: int) -> int:
    """Parameters of a `BiLSTM` of these sizes."""
    return sum(2 * 4 * units * (size + units + 2) for size in (input_size, 2 * units))


class BiLSTM(nn.Module):
    """A bidirectional LSTM of two layers (Hochreiter and Schmidhuber 1997; Graves and Schmidhuber
    2005), initialized as in torch, without dropout. It computes in the precision of its weights:
    torch has no LSTM in bf16 for processors without instructions for it.

    units: of each direction, in each layer.
    """

    def __init__(self, input_size: int, units: int):
        super().__init__()
        self.lstm = nn.LSTM(input_size, units, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, input_size] -> [T, 2 units]: forward, then backward."""
        lengths = layout.cu_seqlens.diff().cpu()
        padded = layout.pad(x).to(next(self.lstm.parameters()).dtype)
        rectangle = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        # In evaluation mode cuDNN has no gradients of an LSTM, which explanations need.
        fast = torch.backends.cudnn.flags(enabled=self.training or not torch.is_grad_enabled())
        with torch.autocast(x.device.type, enabled=False), fast:
            outputs, _ = self.lstm(rectangle)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=layout.max_seqlen)
        return layout.unpad(states)


class _SkipInit(TorchFunctionMode):
    """Nothing is drawn at random. Even where there is no memory to fill, torch would import its
    compiler for that, which takes seconds."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Any = None,
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            Tensor.normal_,
            Tensor.uniform_,
        ):
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def meta_device_init() -> Iterator[None]:
    """Modules that are made in it have parameters of the device "meta": shapes without memory."""
    with torch.device("meta"), _SkipInit():
        yield


# radians per position, of the first and the last pair of the position table
FREQUENCIES = 2.0, 0.02
SHIFTS = (-1, 1, -2, 2)  # where the first heads look, in tokens; further heads begin at random
# of queries and keys: at a fresh norm the neighbour then gets most of a head's attention
GAIN = 1.2


@torch.no_grad()
def init_local_attention(encoder: Encoder, gain: float = GAIN) -> None:
    """Position embeddings become sines and cosines, as large as the words'; queries of a head in
    the first layer turn them by the angle of a shift (a rotation per frequency), so that they fit
    the keys that stand so far away.

    From random weights, a small BERT needs thousands of steps to use context (in the spirit of
    Trockman and Kolter 2023, "Mimetic initialization of self-attention layers"). The position table
    should not be trained then: rows beyond the length of most sequences would stay behind while the
    others move (docs/experiments). A projection of narrow embeddings starts orthogonal, so that its
    transpose brings the positions back to queries and keys.
    """
    position = encoder.embeddings.position
    assert position is not None, "`Recipe` refuses other configurations"
    table = position.weight
    half = table.shape[1] // 2
    first, last = FREQUENCIES
    frequencies = first * (last / first) ** torch.linspace(0, 1, half)
    angles = torch.arange(len(table))[:, None] * frequencies
    deviation = encoder.embeddings.token.weight.std()
    table[:, : 2 * half] = torch.cat([angles.sin(), angles.cos()], 1) * deviation * 2**0.5

    attention, projection = cast(Block, encoder.blocks[0]).attention, encoder.embeddings.projection
    heads, hidden = attention.num_heads, encoder.config.hidden_size
    size, pairs = hidden // heads, hidden // heads // 2
    # the faster half: near places differ most
    used = torch.linspace(0, max(half // 2 - 1, 0), pairs).round().long()
    rows = torch.arange(pairs)
    # to the weights of queries and keys, which read the embeddings
    added = torch.zeros(2, heads, size, table.shape[1])
    for query, key, shift in zip(*added, SHIFTS, strict=False):
        cosine, sine = (gain * f(frequencies[used] * shift) for f in (torch.cos, torch.sin))
        key[rows, used] += gain
        key[pairs + rows, half + used] += gain
        query[rows, used] += cosine
        query[rows, half + used] += sine
        query[pairs + rows, half + used] += cosine
        query[pairs + rows, used] -= sine
    if projection is not None:
        added = added @ nn.init.orthogonal_(projection.weight).T
    attention.qkv.weight.view(3, heads, size, hidden)[:2] += added
