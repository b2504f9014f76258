"""A Transformer: token ids -> hidden states of every layer.

- `Stack`: blocks; `Encoder`: embeddings and blocks; `Decoder`: blocks that read an encoder's states
- `make_decoder`: the decoder of a configuration
- `select_layers`: a network with fewer layers
- `scale_residual`, `init_local_attention`: other initial weights
- `pack_linears`: a copy of an encoder for inference on a CPU, in which every `nn.Linear` is packed
  once for the kernels of this processor
- `pack_output`: the same for the output layer over the vocabulary
- `to_fp32_inference`, `to_bf16_inference`, `to_int8_inference`, `with_fp16_weights`: the encoder in
  a precision
"""

import copy
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from bertworks.errors import check
from bertworks.models.attention import (
    Block,
    FeedForward,
    RelativeBias,
    RotaryAngles,
    Rotation,
    Source,
    make_distances,
)
from bertworks.models.cache import KeyValueCache
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import Characters, Embeddings, make_embeddings
from bertworks.models.kernels import Bias
from bertworks.models.layers import (
    SMALL_BATCH_ROWS,
    compiles_sizes,
    cpu_supports_bf16,
    dropout,
    initialize,
    layer_norm,
    pad_rows_to_bucket,
)
from bertworks.models.layout import Layout
from bertworks.models.recurrent import DirectedBlock, LSTMBlock, LSTMDecoder
from bertworks.models.relative import DistanceTable, Readers, RelativeBlock, RelativeInputs

PUBLISHED_LAYERS = {(12, 6): (0, 2, 4, 7, 9, 11)}  # Sanh et al. 2019, in the authors' code
_BLOCKS = "encoder.blocks."  # how the names of their parameters begin, in a whole network


class Stack(nn.Module):
    """Blocks one after the other, and of a network with `norm_first` a norm behind the last one.

    Args:
        embeddings: what the first block reads; None: it is no part of this stack.
        num_layers: blocks that a token passes; None: those of the encoder.
        reads_source: whether the blocks read a source, see `Block`.
        gradient_checkpointing: only the states between blocks are kept for the backward pass, which
            computes the rest again: memory of one block instead of all, for a third more
            arithmetic.
    """

    pads_rows = False  # always to one of few numbers of rows; else in bf16 on a CPU only
    compute_dtype: torch.dtype | None = None  # of the states; None: that of the embeddings
    direction: str

    def __init__(
        self,
        c: EncoderConfig,
        embeddings: Embeddings | Characters | None = None,
        *,
        num_layers: int | None = None,
        reads_source: bool = False,
        gradient_checkpointing: bool = False,
    ):
        super().__init__()
        self.config = c
        self.gradient_checkpointing = gradient_checkpointing
        self.num_layers = num_layers or c.num_hidden_layers
        self.embeddings = embeddings
        groups = c.num_groups if num_layers is None else num_layers
        self.blocks = nn.ModuleList(_make_block(c, n, reads_source) for n in range(groups))
        self.norm = layer_norm(c.hidden_size, c) if c.norm_first else None
        self.relative_bias = None
        if c.relative_position_buckets:
            self.relative_bias = RelativeBias(c.relative_position_buckets, c.num_attention_heads)
        self.distances = make_distances(c)
        self.angles: dict[float, RotaryAngles] = {}  # by their base
        if c.position_embedding_type == "rotary":
            bases = {c.rotary_base_of(number) for number in range(self.num_layers)}
            size = c.hidden_size // c.num_attention_heads
            self.angles = {base: RotaryAngles(base, size) for base in sorted(bases)}
        self.relative_distances: DistanceTable | None = None
        if c.position_embedding_type == "relative":
            self.relative_distances = DistanceTable(c.hidden_size, c.clamp_length)
        initialize(self, c)

    @property
    def layers(self) -> list[Block]:
        """The block of every layer; layers of a group share one."""
        groups = len(self.blocks)
        return [
            cast(Block, self.blocks[i * groups // self.num_layers]) for i in range(self.num_layers)
        ]

    def compute(
        self,
        embeddings: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        cache: KeyValueCache | None = None,
        source: Source | None = None,
        token_types: Tensor | None = None,
        memory: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Return the states after each layer, embeddings [T, hidden] first.

        rows, cache, memory: see `Encoder.forward`; the cache has the tokens of this pass already.
        source: see `Block.forward`. token_types: int64 [T], of a network with relative positions.
        """
        layout = layout.directed(self.direction)
        # Without a norm over the embeddings they have the precision of the tables, which may be
        # higher.
        layers = self.layers
        if layers:
            embeddings = embeddings.to(self.compute_dtype or layers[0].dtype)
        elif rows is not None:  # without a layer, nothing else selects them
            embeddings = embeddings.index_select(0, rows)
        num_tokens = len(embeddings)
        num_last = num_tokens if rows is None else len(rows)
        pads_rows = self.pads_rows or compiles_sizes(embeddings)
        if pads_rows:
            pad = partial(pad_rows_to_bucket, pads_small=not torch.is_grad_enabled())
            embeddings = pad(embeddings)
            if rows is not None:
                rows = pad(rows)
        biases = self._biases(layout, embeddings.dtype)
        rotations = self._rotations(layout, embeddings.dtype)
        relative = self._relative_inputs(layout, embeddings, cache, token_types, memory)
        states = [embeddings]
        for number, block in enumerate(layers):
            rows_of_layer = rows if number == len(layers) - 1 else None
            layer_cache = cache and cache.layers[number]
            rotation = rotations[number]
            inputs: tuple[Any, ...] = (states[-1], layout, rows_of_layer, layer_cache)
            inputs += (biases[number], source, rotation, *relative[number : number + 1])
            states.append(self._computed(block, *inputs))
        if self.norm is not None:
            states[-1] = self.norm(states[-1])
        if not pads_rows:
            return states
        return [*(state[:num_tokens] for state in states[:-1]), states[-1][:num_last]]

    def _computed(self, block: Block, *inputs: Any) -> Tensor:
        """Return the states after a block."""
        if not (self.gradient_checkpointing and self.training):
            return block(*inputs)  # type: ignore[no-any-return]
        # With the parameters of now: in bf16 they are copies, which are gone when the block is
        # computed again.
        copies = dict(block.named_parameters())
        return checkpoint(functional_call, block, copies, inputs, use_reentrant=False)  # type: ignore[no-any-return]

    def _biases(self, layout: Layout, dtype: torch.dtype) -> list[Bias | None]:
        """Return what positions add to the scores of each layer. dtype: of the states."""
        if self.distances is not None:
            make = partial(self.distances.bias, dtype=dtype)
            return [make(n, block.attention.qkv) for n, block in enumerate(self.layers)]
        shared = None
        if self.relative_bias is not None:
            shared = self.relative_bias.of_places(layout.num_positions or layout.max_seqlen)
        return [shared] * self.num_layers

    def _rotations(self, layout: Layout, dtype: torch.dtype) -> list[Rotation | None]:
        """Return the rotation of the tokens in each layer. dtype: of the states."""
        rows = {base: angles.of_tokens(layout, dtype) for base, angles in self.angles.items()}
        layers = range(self.num_layers)
        return [rows[self.config.rotary_base_of(number)] if rows else None for number in layers]

    def _relative_inputs(
        self,
        layout: Layout,
        embeddings: Tensor,
        cache: KeyValueCache | None,
        token_types: Tensor | None,
        memory: Sequence[Tensor] | None,
    ) -> list[RelativeInputs]:
        """Return what each layer of a network with relative positions reads besides states."""
        if self.relative_distances is None:
            return []
        length = layout.max_seqlen
        before = 0 if memory is None else memory[0].shape[1]
        if cache is not None and cache.layers[0].continues:
            before = cache.capacity - 1
        rows = self.relative_distances.rows(length, before, embeddings)
        types = token_types if self.config.relative_segments else None
        return [
            RelativeInputs(rows, types, None if memory is None else memory[number])
            for number in range(self.num_layers)
        ]

    def attention_maps(
        self, states: Sequence[Tensor], layout: Layout, token_types: Tensor | None = None
    ) -> list[Tensor]:
        """For each layer the attention probabilities [B, heads, max_seqlen, max_seqlen].

        [] of an LSTM, which has no self-attention. states: as `forward` returns them without
        `rows`. token_types: those of `forward`.
        """
        if self.config.kind in ("lstm", "elmo"):
            return []
        layout = layout.directed(self.direction)
        relative = self._relative_inputs(layout, states[0], None, token_types, None)
        if relative:
            blocks = cast("list[RelativeBlock]", self.layers)
            return [
                block.attention.probabilities(x, layout, inputs)
                for block, x, inputs in zip(blocks, states[:-1], relative, strict=True)
            ]
        biases = self._biases(layout, states[0].dtype)
        rotations = self._rotations(layout, states[0].dtype)
        parts = zip(self.layers, states[:-1], biases, rotations, strict=True)
        return [
            block.attention.probabilities(block.attention_input(x), layout, bias, rotation)
            for block, x, bias, rotation in parts
        ]


def _make_block(c: EncoderConfig, number: int, reads_source: bool) -> nn.Module:
    """Return a block. number: of the layer, from 0. reads_source: see `Block`."""
    if c.kind == "lstm":
        return LSTMBlock(c)
    if c.position_embedding_type == "relative":
        return RelativeBlock(c)
    return DirectedBlock(c, number) if c.kind == "elmo" else Block(c, reads_source, number)


class Encoder(Stack):
    """The body of a network: embeddings and blocks.

    gradient_checkpointing: see `Stack`.

    Attributes:
        embeddings: of a network that reads spellings, they are `Characters`.
        query: [hidden], what tokens that are not read begin with, see `read`; None: there is none.
    """

    embeddings: Embeddings

    def __init__(self, c: EncoderConfig, gradient_checkpointing: bool = False):
        super().__init__(c, make_embeddings(c), gradient_checkpointing=gradient_checkpointing)
        self.direction = c.direction
        self.query: nn.Parameter | None = None
        if c.has_query:
            self.query = nn.Parameter(torch.empty(c.hidden_size))
            nn.init.normal_(self.query, std=c.initializer_range)

    def forward(
        self,
        input_ids: Tensor,
        layout: Layout,
        token_type_ids: Tensor | None = None,
        rows: Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Return the states after each layer, embeddings first.

        input_ids, token_type_ids int64 [T] -> num_hidden_layers + 1 tensors [T, hidden]. A network
        that reads spellings has uint8 [T, 48] instead (`Characters.forward`).

        rows: int64 [R], the only tokens whose last state is needed: the last tensor is [R, hidden],
            and most of the last layer's work is saved.
        cache: of a network that reads from left to right, without gradients: the tokens of the
            passes before are read as well. The first pass has the prompts, each further one has the
            layout `cache.next_layout()`.
        memory: of a network with relative positions: for each layer the states before it of M
            tokens before each sequence, [B, M, hidden], which are read as well. No gradient passes
            into them, and they count as tokens of type 0. The states before each layer of this pass
            are all but the last of those that are returned (Dai et al. 2019, section 3.2).

        Raises:
            ValueError: a memory of another shape, or of a network without relative positions; a
                memory and a cache.
        """
        if cache is not None:
            cache.extend(layout)
        if memory is not None:
            self._check_memory(memory, layout, cache)
        embeddings = self.embeddings(input_ids, layout, token_type_ids)
        if self.config.characters is None:
            return self.compute(
                embeddings, layout, rows, cache, token_types=token_type_ids, memory=memory
            )
        x, marked, places = self._with_marks(embeddings, layout)
        *lower, last = self.compute(x, marked, None if rows is None else places[rows])
        last = last if rows is not None else last[places]
        return [*(state[places] for state in lower), last]

    def read(
        self,
        input_ids: Tensor,
        layout: Layout,
        tokens: Tensor,
        token_type_ids: Tensor | None = None,
        memory: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the states of some tokens that read those of lower ranks, and not themselves.

        All of them begin with the same vector. In every layer each one reads the states of tokens
        with lower ranks (Yang et al. 2019, section 2.3). So its own token has no effect, and what
        the head for the vocabulary makes of its state is a prediction.

        Args:
            layout: with a rank; all other arguments as of `forward`.
            tokens: int64 [M], ascending: those that are predicted.

        Returns:
            [M, hidden], and the states before each layer, [T, hidden] each.
        """
        assert self.query is not None
        assert layout.rank is not None
        if memory is not None:
            self._check_memory(memory, layout, None)
        layers = cast("list[RelativeBlock]", self.layers)
        dtype = self.compute_dtype or layers[0].dtype
        x = self.embeddings(input_ids, layout, token_type_ids).to(dtype)
        p = self.config.embedding_rate if self.training else 0.0
        queries = dropout(self.query.to(dtype).expand(len(tokens), -1), p)
        count = len(x)
        if self.pads_rows or compiles_sizes(x):
            pad = partial(pad_rows_to_bucket, pads_small=not torch.is_grad_enabled())
            x = pad(x)
            queries = pad(queries)
        relative = self._relative_inputs(layout, x, None, token_type_ids, memory)
        readers = Readers.of(tokens, layout)
        states = [x]
        for number, block in enumerate(layers):
            inputs = states[-1], layout, *[None] * 5, relative[number]
            queries = self._computed(block, *inputs, queries, readers)
            if number < len(layers) - 1:
                states.append(self._computed(block, *inputs))
        return queries[: len(tokens)], [state[:count] for state in states]

    def _check_memory(
        self, memory: Sequence[Tensor], layout: Layout, cache: KeyValueCache | None
    ) -> None:
        """Check what is before the sequences of a pass."""
        check(
            self.relative_distances is not None and cache is None,
            "a memory of a network without relative positions, or together with a cache: expected "
            "position_embedding_type 'relative', and one of them",
        )
        shapes = {tuple(states.shape) for states in memory}
        count = layout.num_sequences
        width = self.config.hidden_size
        check(
            len(memory) == self.num_layers
            and len(shapes) == 1
            and all(len(s) == 3 and (s[0], s[2]) == (count, width) for s in shapes),
            f"a memory of {len(memory)} tensors of the shapes {sorted(shapes)}: expected "
            f"{self.num_layers} of one shape, [{count}, tokens, {width}]",
        )

    def predicting_states(self, input_ids: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the two states from which a network that reads spellings predicts each word.

        uint8 [T, 48] -> [T, hidden / 2] twice: what was read from the left up to the word before
        it, and from the right up to the word behind it (Peters et al. 2018, section 3.1). The marks
        at the ends of a text stand before the first word and behind the last one.
        """
        x, marked, places = self._with_marks(self.embeddings(input_ids, layout), layout)
        forward, backward = self.compute(x, marked)[-1].chunk(2, 1)
        return forward[places - 1], backward[places + 1]

    def _with_marks(self, embeddings: Tensor, layout: Layout) -> tuple[Tensor, Layout, Tensor]:
        """Return the vectors of texts with a mark at both ends, their layout, and the words in it.

        [T, hidden] -> [T + 2 B, hidden]. The last one is int64 [T].
        """
        marked, sources, places = layout.with_ends()
        marks = cast(Characters, self.embeddings).marks()
        return torch.cat([embeddings, marks])[sources], marked, places


class Decoder(Stack):
    """The blocks that write a text while they read another one (Vaswani et al. 2017, section 3.1).

    Its embeddings are those of the encoder.
    """

    direction = "left_to_right"

    def __init__(self, c: EncoderConfig, gradient_checkpointing: bool = False):
        assert c.decoder is not None
        super().__init__(
            c,
            num_layers=c.decoder.num_hidden_layers,
            reads_source=True,
            gradient_checkpointing=gradient_checkpointing,
        )

    def start(self, source: Source, texts: int, room: int) -> KeyValueCache:
        """Return the cache before the first token of some texts for each source.

        room: see `KeyValueCache`.
        """
        count = source.layout.num_sequences * texts
        prompts = Layout.of([1] * count, source.states.device)
        return KeyValueCache(self.num_layers, prompts, room, beam=texts)

    def forward(
        self,
        embeddings: Tensor,
        layout: Layout,
        source: Source,
        cache: KeyValueCache | None = None,
    ) -> list[Tensor]:
        """Return the states after each layer, embeddings first.

        embeddings [T, hidden] -> num_hidden_layers + 1 tensors [T, hidden]. A token reads itself,
        the tokens before it and the whole source of its sequence.

        cache: see `Encoder.forward`.
        """
        if cache is not None:
            cache.extend(layout)
        return self.compute(embeddings, layout, None, cache, source)

    def cross_attention_maps(
        self, states: Sequence[Tensor], layout: Layout, source: Source
    ) -> list[Tensor]:
        """For each layer the attention probabilities of tokens (rows) to those of the source.

        [B, heads, max_seqlen, max_seqlen of the source]; states: as `forward` returns them.
        """
        layout = layout.directed(self.direction)
        biases = self._biases(layout, states[0].dtype)
        maps = []
        for block, x, bias in zip(self.layers, states[:-1], biases, strict=True):
            assert block.cross_attention is not None
            read = block.cross_attention_input(block.attend(x, layout, bias=bias))
            maps.append(block.cross_attention.probabilities(read, layout, source))
        return maps


def make_decoder(
    c: EncoderConfig, gradient_checkpointing: bool = False
) -> Decoder | LSTMDecoder | None:
    """Return the decoder of a configuration with random weights; None: it has none."""
    if c.decoder is None:
        return None
    return LSTMDecoder(c, c.decoder) if c.kind == "lstm" else Decoder(c, gradient_checkpointing)


def student_layers(teacher: int, student: int) -> tuple[int, ...]:
    """Return the layers of a teacher from which a student starts.

    Of 12 for 6 they are the published ones; else layer i * teacher // student for i from 0, so that
    3 of 6 are 0, 2, 4, and all layers are all.
    """
    return PUBLISHED_LAYERS.get(
        (teacher, student), tuple(i * teacher // student for i in range(student))
    )


def select_layers(
    c: EncoderConfig, state: Mapping[str, Tensor], layers: Sequence[int]
) -> tuple[EncoderConfig, dict[str, Tensor]]:
    """Return a network with some of its layers, such as `student_layers` chooses.

    state: of the network, with its encoder under the name "encoder". Its other parameters stay.
        Where all layers share one block, so do those of the result.
    """
    shared = c.num_groups == 1
    count = len(layers)
    chosen = [i * c.num_groups // c.num_hidden_layers for i in layers]
    groups = (1 if shared else count) if c.num_hidden_groups else 0
    result = {name: value for name, value in state.items() if not name.startswith(_BLOCKS)}
    for new, old in enumerate(chosen[:1] if shared else chosen):
        prefix = f"{_BLOCKS}{old}."
        result |= {
            f"{_BLOCKS}{new}.{name.removeprefix(prefix)}": value
            for name, value in state.items()
            if name.startswith(prefix)
        }
    return replace(c.with_layers(layers), num_hidden_groups=groups), result


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


# of the largest weight of a matrix: fp16 has few digits for smaller ones, and no larger ones
_FP16_LIMITS = 1e-2, 6e4
_PACKED_ROWS = 4096  # rows of a product, for which packed matrices are laid out
_MAX_INT8 = 127
_ZERO_POINT = 128  # oneDNN takes unsigned inputs: 128 is added to them
_SMALLEST_SCALE = 1e-30  # for a row of zeros
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # in place
    "gelu": torch.ops.aten.gelu_.default,
    "gelu_tanh": partial(torch.ops.aten.gelu_.default, approximate="tanh"),
    "relu": torch.relu_,
    "silu": partial(F.silu, inplace=True),
}
_FUSED = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
}

Product = Callable[[Tensor], Tensor]  # a packed linear layer: [T, in_features] -> [T, out_features]


class PackedLayer(NamedTuple):
    """A linear layer that is to be packed.

    weight: [out_features, in_features]. bias: [out_features]; None: there is none.
    activation: the name of the activation behind the layer; None: there is none.
    owns_input: whether its product may overwrite its input.
    """

    weight: Tensor
    bias: Tensor | None
    activation: str | None = None
    owns_input: bool = False


Pack = Callable[[PackedLayer], Product]
AnyStack = TypeVar("AnyStack", bound=Stack)


def pack_linears(encoder: AnyStack, pack: Pack, dtype: torch.dtype, *, pads_rows: bool) -> AnyStack:
    """Return a copy of an encoder or a decoder for inference on a CPU, with packed linear layers.

    Its states are in `dtype`. It shares the tables and the norms with the original.

    pads_rows: whether the number of rows of a product is padded to one of few, for kernels that are
        compiled for each.
    """
    result = copy.deepcopy(encoder, {id(p): p for p in encoder.parameters()})
    result.compute_dtype = dtype
    result.pads_rows = pads_rows
    if result.distances is not None:
        result.distances.cache = {}
    for module in result.modules():
        if isinstance(module, Stack | Block) and next(encoder.parameters()).device.type != "cpu":
            for norm in (part for part in module.children() if isinstance(part, nn.LayerNorm)):
                # A GPU has no norm of states in one type with weights in another; it computes in
                # float32 anyway.
                norm.weight = nn.Parameter(norm.weight.to(dtype), False)
                if norm.bias is not None:
                    norm.bias = nn.Parameter(norm.bias.to(dtype), False)
        for name, part in list(module.named_children()):
            # The projection of the embeddings is small, and in the precision of the tables.
            if isinstance(part, nn.Linear) and not isinstance(module, Embeddings):
                activation = (
                    module.name if isinstance(module, FeedForward) and name == "up" else None
                )
                # nothing else reads what attention and the activation returned
                owns_input = name in ("output", "down")
                delattr(module, name)
                bias = None if part.bias is None else part.bias.detach()
                layer = PackedLayer(part.weight.detach(), bias, activation, owns_input)
                is_gated = isinstance(module, FeedForward) and name == "up" and module.is_gated
                # a module costs time in each call
                module.__dict__[name] = _pack_gated(layer, pack) if is_gated else pack(layer)
        if isinstance(module, FeedForward):
            module.activation = lambda x: x  # part of the packed layer before it
            module.is_gated = False
    return result


def _pack_gated(layer: PackedLayer, pack: Pack) -> Product:
    """Return the product of a layer of which one half of the outputs is a factor of the other.

    The activation is that of the first half. Two products write what is multiplied side by side,
    without a copy.
    """
    size = len(layer.weight) // 2
    halves = []
    for rows, activation in ((slice(size), layer.activation), (slice(size, None), None)):
        bias = None if layer.bias is None else layer.bias[rows]
        halves.append(pack(PackedLayer(layer.weight[rows], bias, activation)))
    activated, factors = halves
    return lambda x: activated(x).mul_(factors(x))


class InferenceEncoder(nn.Module):
    """An encoder or a decoder and its packed copy, with the same interface.

    With gradients the original computes.

    Args:
        pack, dtype, pads_rows: see `pack_linears`. The copy is made when it is first needed.
        fallback: computes batches of more than SMALL_BATCH_ROWS tokens; None: the packed copy does.
        output_dtype: of the states that are returned; None: as they are computed.
    """

    def __init__(
        self,
        encoder: Stack,
        pack: Pack,
        dtype: torch.dtype = torch.float32,
        *,
        pads_rows: bool = True,
        fallback: "Stack | InferenceEncoder | None" = None,
        output_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.encoder = encoder
        self.config = encoder.config
        self.training = encoder.training
        self._pack = partial(pack_linears, pack=pack, dtype=dtype, pads_rows=pads_rows)
        self._packed: Stack | None = None
        self._fallback = fallback
        self._output_dtype = output_dtype

    def forward(self, input_ids: Tensor, *inputs: Any, **options: Any) -> list[Tensor]:
        """As `Encoder.forward` or `Decoder.forward`."""
        if torch.is_grad_enabled():
            return self.encoder(input_ids, *inputs, **options)  # type: ignore[no-any-return]
        if self._fallback is not None and len(input_ids) > SMALL_BATCH_ROWS:
            return self._fallback(input_ids, *inputs, **options)  # type: ignore[no-any-return]
        packed = self._packed or self._pack(self.encoder)
        self._packed = packed  # complete when it is assigned: several threads may be here
        with torch.autocast(input_ids.device.type, enabled=False):  # it would look at every call
            states: list[Tensor] = packed(input_ids, *inputs, **options)
        return (
            states
            if self._output_dtype is None
            else [state.to(self._output_dtype) for state in states]
        )


def to_fp32_inference(encoder: Stack) -> Stack | InferenceEncoder:
    """Return the encoder in float32 for inference.

    On a CPU it is about 5 % faster, on one of AMD with AVX-512 twice as fast, with a second copy of
    the matrices in memory.
    """
    if next(encoder.parameters()).device.type != "cpu":
        return encoder
    return (
        InferenceEncoder(encoder, _mkl, pads_rows=False)
        if _prefer_mkl()
        else InferenceEncoder(encoder, _onednn)
    )


def with_fp16_weights(
    encoder: Stack, fallback: Stack | InferenceEncoder
) -> Stack | InferenceEncoder:
    """Return the encoder with weights in half precision for up to SMALL_BATCH_ROWS tokens.

    It is where this processor and these weights allow it: the time of one short text is that of
    fetching weights. It takes half to two thirds of the time, and states differ in the fourth
    digit. More tokens are left to `fallback`.
    """
    if (
        encoder.config.kind == "elmo"
        or torch.backends.quantized.engine not in ("x86", "fbgemm")
        or next(encoder.parameters()).device.type != "cpu"
    ):
        return fallback
    least, most = _FP16_LIMITS
    matrices = (part.weight for part in encoder.modules() if isinstance(part, nn.Linear))
    if not all(least < weight.detach().abs().amax() < most for weight in matrices):
        return fallback
    return InferenceEncoder(encoder, _fp16, pads_rows=False, fallback=fallback)


def to_bf16_inference(encoder: Stack) -> Stack | InferenceEncoder:
    """Return the encoder in bf16.

    On a GPU, and on a processor that multiplies such matrices, states are bf16, with sums and
    softmax in float32, and the encoder itself stays as it was. Elsewhere its matrices are rounded.
    """
    if next(encoder.parameters()).device.type != "cpu":
        return InferenceEncoder(encoder, _rounded, torch.bfloat16, pads_rows=False)
    if cpu_supports_bf16():
        return InferenceEncoder(encoder, partial(_onednn, dtype=torch.bfloat16), torch.bfloat16)
    for part in encoder.modules():
        if isinstance(part, nn.Linear):
            part.bfloat16()
    return encoder


def pack_output(weight: Tensor, bias: Tensor | None, precision: str) -> Product:
    """Return the product with the embedding matrix [V, hidden] of an output layer.

    It is for inference in "fp32", "bf16" or "int8": its results are logits of the vocabulary.
    """
    is_fp32 = precision == "fp32" or (weight.device.type == "cpu" and not cpu_supports_bf16())
    dtype = torch.float32 if is_fp32 else torch.bfloat16
    weight = weight.detach()
    bias = None if bias is None else bias.detach()
    if weight.device.type != "cpu" or (is_fp32 and _prefer_mkl()):
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        return lambda x: F.linear(x.to(dtype), weight, bias)
    layer = PackedLayer(weight, weight.new_zeros(len(weight)) if bias is None else bias)
    multiply = (_int8 if precision == "int8" else _onednn)(layer, dtype)
    return lambda x: multiply(x.to(dtype))


def to_int8_inference(encoder: Stack) -> InferenceEncoder:
    """Return the encoder with matrices in int8, for a processor that multiplies these.

    Weights have a scale for each output, inputs one for each token (Dettmers et al. 2022, section
    2.1). Sums are exact; all else is in bf16 where this processor multiplies such matrices, else in
    float32.
    """
    dtype = torch.bfloat16 if cpu_supports_bf16() else torch.float32
    return InferenceEncoder(encoder, partial(_int8, dtype=dtype), dtype, output_dtype=torch.float32)


@cache
def cpu_supports_int8() -> bool:
    """Return whether this processor, as oneDNN may use it, multiplies int8 numbers exactly.

    Without VNNI the sum of two products overflows.
    """
    if not torch.backends.mkldnn.is_available() or not torch.cpu._is_vnni_supported():
        return False
    weight = torch.full((1, 64), _MAX_INT8, dtype=torch.int8)
    rows = torch.full((1, 64), _ZERO_POINT + _MAX_INT8, dtype=torch.uint8)
    return _int8_product(weight, torch.ones(1))(rows).item() == 64 * _MAX_INT8 * _MAX_INT8


@cache
def _prefer_mkl() -> bool:
    """Return whether float32 is left to PyTorch, which uses MKL where it was built with it.

    MKL keeps its best kernels for Intel's processors; on AMD's oneDNN is faster. Not measured, so
    that results never differ between two processes.
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return True
    cpuinfo = Path("/proc/cpuinfo")
    return "AuthenticAMD" not in (cpuinfo.read_text() if cpuinfo.exists() else platform.processor())


def _with_activation(product: Product, activation: str | None) -> Product:
    if activation is None:
        return product
    function = _ACTIVATIONS[activation]
    return lambda x: function(product(x))


def _rounded(layer: PackedLayer) -> Product:
    """Return states in the type of the weights after a norm on a GPU.

    torch's own mode of mixed precision would return float32 states.
    """
    weight = layer.weight.bfloat16()
    bias = None if layer.bias is None else layer.bias.bfloat16()
    return _with_activation(lambda x: F.linear(x, weight, bias), layer.activation)


def _mkl(layer: PackedLayer) -> Product:
    weight = layer.weight.t()
    bias = layer.bias
    if bias is None:
        return _with_activation(lambda x: torch.mm(x, weight), layer.activation)
    return _with_activation(lambda x: torch.addmm(bias, x, weight), layer.activation)


def _onednn(layer: PackedLayer, dtype: torch.dtype = torch.float32) -> Product:
    """In bf16 an activation is faster within the product, in fp32 on its own."""
    weight = torch.ops.mkldnn._reorder_linear_weight(
        layer.weight.to(dtype).contiguous(), _PACKED_ROWS
    )
    bias = None if layer.bias is None else layer.bias.to(dtype)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    is_fused = dtype == torch.bfloat16
    function, variant = _FUSED[layer.activation if is_fused else None]
    return _with_activation(
        lambda x: multiply(x, weight, bias, function, [], variant),
        None if is_fused else layer.activation,
    )


def _fp16(layer: PackedLayer) -> Product:
    """By FBGEMM."""
    weight = torch.ops.quantized.linear_prepack_fp16(layer.weight.contiguous(), layer.bias)
    return _with_activation(
        lambda x: torch.ops.quantized.linear_dynamic_fp16.default(x, weight), layer.activation
    )


def _int8(layer: PackedLayer, dtype: torch.dtype = torch.float32) -> Product:
    weight = layer.weight.float()
    bias = None if layer.bias is None else layer.bias.to(dtype)
    scales = weight.abs().amax(1).clamp_min(_SMALLEST_SCALE) / _MAX_INT8
    multiply = _int8_product(
        (weight / scales[:, None]).round().to(torch.int8).contiguous(), scales, dtype
    )
    owns_input = layer.owns_input
    # in bf16 a quotient may be rounded up
    most = _MAX_INT8 if dtype == torch.float32 else _MAX_INT8 - 1

    def product(x: Tensor) -> Tensor:
        scale = _max_abs(x).clamp_min_(_SMALLEST_SCALE).div_(most)
        x = x.div_(scale) if owns_input else x / scale
        # another sign bit: + 128
        y = multiply(x.round_().to(torch.int8).bitwise_xor_(-_ZERO_POINT).view(torch.uint8))
        return y.mul_(scale) if bias is None else torch.addcmul(bias, y, scale)

    return _with_activation(product, layer.activation)


def _max_abs(x: Tensor) -> Tensor:
    """[T, n] -> [T, 1]: the largest absolute number of each row.

    The bits of bf16 without the sign are in the order of their values, and whole numbers are
    compared in half the time.
    """
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).bitwise_and(0x7FFF).amax(1, keepdim=True).view(torch.bfloat16)
    return torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))


def _int8_product(weight: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Product:
    """Return a product of int8 [outputs, inputs] and a scale for each output with uint8 inputs.

    The inputs [T, inputs] are 128 too large; the result is [T, outputs] of that type.
    """
    packed = torch.ops.onednn.qlinear_prepack(weight, [_PACKED_ROWS, weight.shape[1]])
    zeros = torch.zeros_like(scales).long()
    return lambda rows: torch.ops.onednn.qlinear_pointwise.default(
        rows, 1.0, _ZERO_POINT, packed, scales, zeros, None, 1.0, 0, dtype, "none", [], ""
    )
