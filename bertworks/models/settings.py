"""The settings of the parts of a network, and what they cost in operations. No torch.

They stand apart from the networks, so that a configuration is read and checked in little time.

- `LayerConfig`: the settings that all parts of a network share; `LIMITS`: the largest sizes
- `EmbeddingsConfig`: those of embeddings; `CharactersConfig`: of vectors that are computed from
  spellings
- `TransformerConfig`: those of a stack of blocks; `DecoderConfig`: those of a second one
- `HeadsConfig`: those of heads; `Head`: the heads of pre-training
- `lstm_flops`, `directed_flops`, `relative_flops`: operations of other kinds of blocks
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bertworks.errors import check

SPELLING_LENGTH = 50  # characters of a word, with those at its beginning and its end
_MOST_KINDS = 64  # of filters
_MOST_HIGHWAYS = 64
Head = Literal["pooler", "lm_head", "next_sentence", "sentence_order", "replaced_token"]
PRETRAINING_HEADS: tuple[Head, ...] = ("pooler", "lm_head", "next_sentence")  # of BERT
Pooling = Literal["mean", "cls", "max", "last-four"]
# Of any network: beyond these a configuration is a mistake or an attack, not a model.
LIMITS = {
    "vocab_size": 4_000_000,
    "hidden_size": 65_536,
    "embedding_size": 65_536,
    "num_hidden_layers": 1_024,
    "num_hidden_groups": 1_024,
    "num_attention_heads": 1_024,
    "intermediate_size": 524_288,
    "max_position_embeddings": 1_048_576,
    "type_vocab_size": 65_536,
    "position_buckets": 65_536,
    "max_relative_positions": 1_048_576,
    "local_attention": 2_097_152,
    "global_attention_every": 1_024,
    "memory_length": 1_048_576,
    "clamp_length": 1_048_576,
}
# the least and the greatest of these numbers
RANGES = {
    "rotary_base": (1.0, 1e12),
    "local_rotary_base": (1.0, 1e12),
    "initializer_cutoff": (0.1, 100.0),
}
_MAY_BE_0 = {
    "vocab_size",
    "embedding_size",
    "num_hidden_layers",
    "num_hidden_groups",
    "intermediate_size",
    "type_vocab_size",
    "position_buckets",
    "max_relative_positions",
    "local_attention",
    "global_attention_every",
    "memory_length",
    "clamp_length",
}


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """What all parts of a network share.

    hidden_size: width of the hidden states.
    hidden_act: "gelu" is the exact function, "gelu_tanh" its approximation in Google's released
        code.
    hidden_dropout: probability of zeroing.
    layer_norm_eps: added to the variance.
    norm_bias: whether layer norms add a bias.
    initializer_range: standard deviation of the initial matrices and embeddings.
    initializer_cutoff: where their normal distribution is cut, in standard deviations.
    """

    hidden_size: int = 768
    hidden_act: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    hidden_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    norm_bias: bool = True
    initializer_range: float = 0.02
    initializer_cutoff: float = 2.0

    def __post_init__(self) -> None:
        """Check each size and each probability of all parts."""
        values = vars(self)
        for name, limit in LIMITS.items():
            value = values.get(name, limit)  # a part alone has some of the sizes
            least = int(name not in _MAY_BE_0)
            check(
                type(value) is int and least <= value <= limit,
                f"{name} is {value!r}: expected a whole number from {least} to {limit:,}",
            )
        for name, (lowest, highest) in RANGES.items():
            number = values.get(name, lowest)
            check(
                lowest <= number <= highest,
                f"{name} is {number}: expected a number from {lowest:g} to {highest:g}",
            )
        for name in values:
            if name.endswith("_dropout") and name not in ("token_dropout", "pooler_dropout"):
                check(
                    0 <= (values[name] or 0) < 1,
                    f"{name} is {values[name]}: expected a number from 0 to below 1",
                )
        check(
            self.layer_norm_eps > 0,
            f"layer_norm_eps is {self.layer_norm_eps}: expected a number above 0",
        )


@dataclass(frozen=True, kw_only=True)
class CharactersConfig:
    """How the vector of a word is computed from its characters (Peters et al. 2018, section 3.4).

    size: width of the vector of a character.
    widths: how many characters each kind of filter reads.
    filters: how many filters there are of each kind.
    highways: layers of the highway network behind the filters (Srivastava et al. 2015).
    activation: behind the filters. The highways always have "relu".
    """

    size: int = 16
    widths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7)
    filters: tuple[int, ...] = (32, 32, 64, 128, 256, 512, 1024)
    highways: int = 2
    activation: Literal["relu", "tanh"] = "relu"

    def __post_init__(self) -> None:
        check(
            0 < len(self.widths) == len(self.filters) <= _MOST_KINDS,
            f"characters.widths has {len(self.widths)} numbers and characters.filters "
            f"{len(self.filters)}: expected equally many, from 1 to {_MOST_KINDS}",
        )
        most = LIMITS["hidden_size"]
        for name, limit in (("widths", SPELLING_LENGTH), ("filters", most)):
            numbers = getattr(self, name)
            check(
                all(type(number) is int and 1 <= number <= limit for number in numbers),
                f"characters.{name} is {list(numbers)}: expected whole numbers from 1 to {limit:,}",
            )
        for name, least, limit in (("size", 1, most), ("highways", 0, _MOST_HIGHWAYS)):
            number = getattr(self, name)
            check(
                type(number) is int and least <= number <= limit,
                f"characters.{name} is {number!r}: expected a whole number from {least} to "
                f"{limit:,}",
            )


@dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(LayerConfig):
    """The embeddings of tokens, positions and token types.

    vocab_size: tokens; 0: those of the tokenizer. With `characters`: the words that a pre-training
        predicts, the first ones of its vocabulary. All others are then one, the unknown word.
    embedding_size: width of the embedding tables; 0: hidden_size. If it differs, a linear layer
        projects to hidden_size (ALBERT, ELECTRA).
    max_position_embeddings: the longest sequence.
    position_embedding_type: "learned"; "sinusoidal" (Vaswani et al. 2017, section 3.5); "rotary":
        nothing is added here, and every layer rotates queries and keys (Su et al. 2021);
        "relative": nothing is added here, and attention reads the distances of tokens (Dai et al.
        2019), so that max_position_embeddings is only a limit; "disentangled": nothing is added
        here, and every layer reads vectors of distances (He et al. 2021); or "none", for networks
        that read one token after the other, and for static vectors.
    type_vocab_size: 0: no token type embeddings (DistilBERT, GPT-2).
    embedding_norm: layer norm over the sum of the embeddings.
    embedding_scale: token embeddings times sqrt(hidden_size) (Vaswani et al. 2017, section 3.4).
    embedding_dropout: after the embeddings (GPT-2); None: hidden_dropout.
    languages: names of the token types, where these are languages (XLM, Conneau and Lample 2019,
        section 3).
    language: the one that all texts are in; "": the token types of a batch are its languages, as in
        pre-training.
    characters: vectors that are computed from the spellings of words, instead of a table; None:
        there is a table.
    """

    vocab_size: int = 0
    embedding_size: int = 0
    max_position_embeddings: int = 512
    position_embedding_type: Literal[
        "learned", "sinusoidal", "rotary", "relative", "disentangled", "none"
    ] = "learned"
    type_vocab_size: int = 2
    embedding_norm: bool = True
    embedding_scale: bool = False
    embedding_dropout: float | None = None
    languages: tuple[str, ...] = ()
    language: str = ""
    characters: CharactersConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.position_embedding_type in ("learned", "sinusoidal") or not self.type_vocab_size,
            f"position_embedding_type {self.position_embedding_type!r} with type_vocab_size "
            f"{self.type_vocab_size}: expected type_vocab_size = 0",
        )
        check(
            not self.languages
            or len({*self.languages}) == len(self.languages) == self.type_vocab_size,
            f"languages {self.languages} with type_vocab_size {self.type_vocab_size}: expected a "
            "name for each type",
        )
        check(
            self.language in ("", *self.languages),
            f"language is {self.language!r}: expected one of {self.languages}",
        )

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def embedding_rate(self) -> float:
        """The dropout after the embeddings."""
        return self.hidden_dropout if self.embedding_dropout is None else self.embedding_dropout

    @property
    def embedding_flops(self) -> int:
        """Matrix-product operations per token (a multiply-add counts 2): of the projection.

        With characters: of a word of which the whole spelling is computed.
        """
        width = self.embedding_width
        if self.characters is not None:
            c = self.characters
            total = sum(c.filters)
            kinds = zip(c.widths, c.filters, strict=True)
            places = sum((SPELLING_LENGTH + 1 - w) * w * count for w, count in kinds)
            highways = 2 * c.highways * total**2
            return 2 * (places * c.size + highways + total * (self.hidden_size // 2))
        return 2 * width * self.hidden_size if width != self.hidden_size else 0


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


def directed_flops(c: TransformerConfig) -> float:
    """Matrix-product operations per token of the blocks of the kind "elmo"."""
    width = c.hidden_size // 2
    cells = c.ffn_size
    projection = width * cells if cells != width else 0
    return c.num_hidden_layers * 2 * 2.0 * (2 * width * 4 * cells + projection)


def lstm_flops(c: TransformerConfig, decoder: DecoderConfig, sequence_length: int) -> float:
    """Matrix-product operations of a pair of texts per token (a multiply-add counts 2).

    Half of the tokens pass the encoder, the other half the decoder.
    """
    square = 2 * c.hidden_size**2
    # four gates, which read the input and the state
    encoder = 4 * 1.5 * square * c.num_hidden_layers
    decoding = 4 * 2 * square * decoder.num_hidden_layers
    if decoder.attention != "none":
        keys = square
        reading = 2 * 2 * c.hidden_size * (sequence_length // 2)
        encoder += keys
        decoding += 2 * square + reading
    if decoder.attention == "additive":
        decoding += square
    if decoder.attention == "additive" or decoder.input_feeding:
        decoding += 4 * square
    return (encoder + decoding) / 2


def relative_flops(c: TransformerConfig, sequence_length: int) -> float:
    """Return matrix-product operations per token (a multiply-add counts 2).

    They are those of all layers that come in addition to `TransformerConfig.stack_flops`: scores of
    distances, and keys and values of the memory, which all tokens of a sequence read. The matrix of
    the distances is left out, which is multiplied once for all sequences of a batch.
    """
    hidden = c.hidden_size
    before = c.memory_length
    of_distances = 2 * hidden * (2 * sequence_length + before)
    of_memory = 4 * hidden * before + 4 * hidden * hidden * before / sequence_length
    return c.num_hidden_layers * (of_distances + of_memory)


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(EmbeddingsConfig):
    """The heads of a network, whose output over the vocabulary is tied to the embeddings.

    lm_head: "transform": dense, activation, norm, tied embeddings, bias; "bias": tied embeddings
        and bias; "plain": tied embeddings alone.
    lm_head_act: the activation in the head that predicts masked tokens; "" if it is hidden_act. The
        published RoBERTa and ELECTRA always have "gelu" there.
    lm_head_bias: whether the logits of the vocabulary have a bias, with lm_head "transform".
    transform_bias: whether the dense layer of lm_head "transform" has a bias.
    task_transform: whether the logits of all tasks have such a transform before them, too, for
        which a fine-tuning begins with that of masked tokens (ModernBERT).
    pooler: which token stands for a sequence, and the activation of the dense layer over it, which
        "first" and "last" do not have; or "mean": the mean of all tokens stands for it.
    pooler_dropout: in fine-tuning for whole texts, the same dropout also before the dense layer of
        the pooler (RoBERTa).
    pooler_input_dropout: in fine-tuning, before the dense layer of the pooler, whatever the other
        dropouts are (DeBERTa).
    sequence_dropout: in fine-tuning, before the output layer for whole texts and choices; None:
        hidden_dropout.
    choice_dropout: the same for choices (ELECTRA, RoBERTa); None: as for whole texts.
    token_dropout: sequence_dropout also before the output layer for tokens (ALBERT, BERT).
    span_dropout: in fine-tuning, before the output layer for answers in texts (DistilBERT); None:
        no dropout.
    """

    lm_head: Literal["transform", "bias", "plain"] = "transform"
    lm_head_act: Literal["", "gelu", "gelu_tanh", "relu", "silu"] = ""
    lm_head_bias: bool = True
    transform_bias: bool = True
    task_transform: bool = False
    pooler: Literal[
        "first_tanh", "first_gelu", "first_relu", "first", "last_tanh", "last", "mean"
    ] = "first_tanh"
    pooler_dropout: bool = False
    pooler_input_dropout: float = 0.0
    sequence_dropout: float | None = None
    choice_dropout: float | None = None
    token_dropout: bool = False
    span_dropout: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.embedding_width == self.hidden_size or self.lm_head == "transform",
            f"lm_head {self.lm_head!r} with embedding_size {self.embedding_size} and hidden_size "
            f"{self.hidden_size}: only lm_head 'transform' leads from one width to the other",
        )
        check(
            self.lm_head == "transform" or (self.lm_head_bias and self.transform_bias),
            f"lm_head_bias {self.lm_head_bias} and transform_bias {self.transform_bias} with "
            f"lm_head {self.lm_head!r}: expected lm_head = 'transform', or both true",
        )
        check(
            not self.task_transform
            or (
                self.lm_head == "transform"
                and self.embedding_width == self.hidden_size
                and self.pooler in ("first", "mean")
            ),
            f"task_transform with lm_head {self.lm_head!r}, embedding_size {self.embedding_size} "
            f"and pooler {self.pooler!r}: expected lm_head = 'transform', embedding_size = 0 and "
            "pooler = 'first' or 'mean'",
        )
        check(
            self.task_transform or self.pooler != "mean",
            "pooler 'mean' without task_transform: expected task_transform = true, or another "
            "pooler",
        )

    @property
    def lm_head_activation(self) -> str:
        """The activation in the head that predicts masked tokens."""
        return self.lm_head_act or self.hidden_act

    @property
    def sequence_rate(self) -> float:
        """The dropout before the output layer for whole texts."""
        return self.hidden_dropout if self.sequence_dropout is None else self.sequence_dropout

    @property
    def choice_rate(self) -> float:
        """The dropout before the output layer for choices."""
        return self.sequence_rate if self.choice_dropout is None else self.choice_dropout

    @property
    def lm_head_flops(self) -> int:
        """Matrix-product operations per predicted token (a multiply-add counts 2)."""
        # ELMo has no such head: each half of a state is multiplied with a matrix of half the width.
        transforms = self.lm_head == "transform" and self.characters is None
        inputs = self.hidden_size if transforms else 0
        return 2 * self.embedding_width * (inputs + self.vocab_size)
