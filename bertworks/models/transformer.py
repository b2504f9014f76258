"""A Transformer: token ids -> hidden states of every layer.

- `Encoder`: embeddings and blocks
- `select_layers`: a network with fewer layers
- `scale_residual`, `init_local_attention`: other initial weights
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from bertworks.models.attention import Block, RelativeBias
from bertworks.models.cache import KeyValueCache
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import Embeddings
from bertworks.models.kernels import Bias
from bertworks.models.layers import compiles_sizes, initialize, pad_rows_to_bucket
from bertworks.models.layout import Layout

PUBLISHED_LAYERS = {(12, 6): (0, 2, 4, 7, 9, 11)}  # Sanh et al. 2019, in the authors' code
_BLOCKS = "encoder.blocks."  # how the names of their parameters begin, in a whole network


class Encoder(nn.Module):
    """The body of a network: embeddings and blocks.

    gradient_checkpointing: only the states between blocks are kept for the backward pass, which
        computes the rest again: memory of one block instead of all, for a third more arithmetic.
    """

    pads_rows = False  # always to one of few numbers of rows; else in bf16 on a CPU only
    compute_dtype: torch.dtype | None = None  # of the states; None: that of the embeddings

    def __init__(self, c: EncoderConfig, gradient_checkpointing: bool = False):
        super().__init__()
        self.config = c
        self.gradient_checkpointing = gradient_checkpointing
        self.embeddings = Embeddings(c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.num_groups))
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps) if c.norm_first else None
        self.relative_bias = None
        if c.relative_position_buckets:
            self.relative_bias = RelativeBias(c.relative_position_buckets, c.num_attention_heads)
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
        """Return the states after each layer, embeddings first.

        input_ids, token_type_ids int64 [T] -> num_hidden_layers + 1 tensors [T, hidden].

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
        bias = self._bias(layout)
        states = [embeddings]
        layers = self.layers
        for number, block in enumerate(layers):
            rows_of_layer = rows if number == len(layers) - 1 else None
            memory = memories and memories[number]
            layer_cache = cache and cache.layers[number]
            inputs = (states[-1], layout, rows_of_layer, memory, layer_cache, bias)
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

    def _bias(self, layout: Layout) -> Bias | None:
        if self.relative_bias is None:
            return None
        return self.relative_bias.of_places(layout.num_positions or layout.max_seqlen)

    def attention_maps(self, states: Sequence[Tensor], layout: Layout) -> list[Tensor]:
        """For each layer the attention probabilities [B, heads, max_seqlen, max_seqlen].

        states: as `forward` returns them without `rows`.
        """
        layout = layout.directed(self.config.direction)
        bias = self._bias(layout)
        return [
            block.attention.probabilities(block.attention_input(x), layout, bias)
            for block, x in zip(self.layers, states[:-1], strict=True)
        ]


def student_layers(teacher: int, student: int) -> tuple[int, ...]:
    """Return the layers of a teacher from which a student starts.

    Of 12 for 6 they are the published ones; else layer i * teacher // student for i from 0, so that
    3 of 6 are 0, 2, 4, and all layers are all.
    """
    return PUBLISHED_LAYERS.get(
        (teacher, student), tuple(i * teacher // student for i in range(student))
    )


def select_layers(
    c: EncoderConfig, state: Mapping[str, Tensor], count: int
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Return a network with some of its layers, see `student_layers`.

    state: of the network, with its encoder under the name "encoder". Its other parameters stay.
        Where all layers share one block, so do those of the result.
    """
    shared = c.num_groups == 1
    chosen = [
        i * c.num_groups // c.num_hidden_layers for i in student_layers(c.num_hidden_layers, count)
    ]
    groups = (1 if shared else count) if c.num_hidden_groups else 0
    result = {name: value for name, value in state.items() if not name.startswith(_BLOCKS)}
    for new, old in enumerate(chosen[:1] if shared else chosen):
        prefix = f"{_BLOCKS}{old}."
        result |= {
            f"{_BLOCKS}{new}.{name.removeprefix(prefix)}": value
            for name, value in state.items()
            if name.startswith(prefix)
        }
    return replace(c, num_hidden_layers=count, num_hidden_groups=groups), result


@torch.no_grad()
def scale_residual(encoder: "Encoder") -> None:
    """Divide the matrices that lead into the residual stream by the root of their number.

    There are two in each layer (Radford et al. 2019, section 2.3).
    """
    for block in cast("list[Block]", encoder.blocks):
        for layer in (block.attention.output, block.feed_forward.down):
            layer.weight /= (2 * encoder.config.num_hidden_layers) ** 0.5


# radians per position, of the first and the last pair of the position table
FREQUENCIES = 2.0, 0.02
SHIFTS = (-1, 1, -2, 2)  # where the first heads look, in tokens; further heads begin at random
# of queries and keys: at a fresh norm the neighbour then gets most of a head's attention
GAIN = 1.2


@torch.no_grad()
def init_local_attention(encoder: Encoder, gain: float = GAIN) -> None:
    """Initialize position embeddings and queries so that heads attend to near tokens.

    Position embeddings become sines and cosines, as large as the words'; queries of a head in the
    first layer turn them by the angle of a shift (a rotation per frequency), so that they fit the
    keys that stand so far away.

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

    attention = cast(Block, encoder.blocks[0]).attention
    projection = encoder.embeddings.projection
    heads = attention.num_heads
    hidden = encoder.config.hidden_size
    size = hidden // heads
    pairs = hidden // heads // 2
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
