"""Token ids -> the vectors that the first layer reads: token, position and token type in one.

- `EmbeddingsConfig`: the settings of this part of a network, its parameters and operations;
  `CharactersConfig`: those of vectors that are computed from spellings
- `Embeddings`: the part; `Characters`: the part of a network that reads spellings
- `make_embeddings`: that of a configuration
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from bertworks.errors import check
from bertworks.models.layers import (
    LIMITS,
    LayerConfig,
    Linear,
    count_parameters,
    dropout,
    layer_norm,
)
from bertworks.models.layout import Layout

# Of a spelling: 0 to 255 are the bytes of the word in UTF-8.
SENTENCE_MARKS = 256, 257  # the only characters of the words that begin and end each text
WORD_BEGINS = 258
WORD_ENDS = 259
NO_CHARACTER = 260
NUM_CHARACTERS = 261
SPELLING_LENGTH = 50  # characters of a word, with those at its beginning and its end
_WORDS_AT_ONCE = 512  # of which the convolutions are computed together
_MOST_KINDS = 64  # of filters
_MOST_HIGHWAYS = 64
# Of initial weights (Kim et al. 2016): the largest ones of filters, and the bias by which a highway
# adds little.
_FILTER_LIMIT = 0.05
_CARRY_BIAS = -2.0


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
    def num_embedding_parameters(self) -> int:
        """Parameters of the tables, their norm and the projection."""
        return count_parameters(make_embeddings, self)

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


class Embeddings(nn.Module):
    """The sum of the embeddings that a configuration has, normalised, with dropout.

    It is that of Devlin et al. 2019, figure 2, and projected if the width is not the hidden size.
    """

    def __init__(self, c: EmbeddingsConfig):
        super().__init__()
        width = c.embedding_width
        self.token = nn.Embedding(c.vocab_size, width)
        learned = c.position_embedding_type == "learned"
        self.position = nn.Embedding(c.max_position_embeddings, width) if learned else None
        self.token_type = nn.Embedding(c.type_vocab_size, width) if c.type_vocab_size else None
        self.norm = layer_norm(width, c) if c.embedding_norm else None
        self.projection = Linear(width, c.hidden_size) if width != c.hidden_size else None
        self.scale = c.hidden_size**0.5 if c.embedding_scale else 1.0
        self.language = c.languages.index(c.language) if c.language else None
        self.has_positions = c.position_embedding_type in ("learned", "sinusoidal")
        self.max_positions = c.max_position_embeddings
        self.dropout = c.embedding_rate

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the embeddings of tokens: [T, hidden_size].

        input_ids int64 [T]; token_type_ids int64 [T], None, or a table of one row: all 0.

        Raises:
            ValueError: if there are fewer positions than a sequence needs.
        """
        count = layout.num_positions or layout.max_seqlen
        check(
            count <= self.max_positions,
            f"a sequence of {count} tokens, but the model has {self.max_positions} positions",
        )
        x: Tensor = self.token(input_ids)
        if self.scale != 1:
            x = x * self.scale
        if self.has_positions:
            x = x + self._of_positions(x, layout.position_ids, count, token_type_ids)
        if self.norm is not None:
            # tables may have a higher precision than what is computed
            x = self.norm(x.to(self.norm.weight.dtype))
        x = dropout(x, self.dropout if self.training else 0.0)
        if self.projection is not None:
            x = self.projection(x.to(self.projection.weight.dtype))
        return x

    def _of_positions(
        self, x: Tensor, positions: Tensor, count: int, token_type_ids: Tensor | None
    ) -> Tensor:
        """Return the embeddings of positions and token types for embeddings x of tokens.

        positions: int64 [T], all below `count`.
        """
        if self.position is None:
            places = torch.arange(count, device=x.device)
            table = sinusoids(places, self.token.embedding_dim).to(x.dtype)
        else:
            table = self.position.weight[:count]
        if self.token_type is not None:
            kinds = self.token_type.num_embeddings
            types = token_type_ids
            # A model that was trained without pairs (RoBERTa) has one type for all tokens.
            if types is None or kinds == 1:
                types = torch.zeros_like(positions)
            if self.language is not None:
                types = torch.full_like(positions, self.language)
            # A row of the product table is position + type: one small table, read once, instead of
            # two large sums.
            table = (table[:, None] + self.token_type.weight).flatten(0, 1)
            positions = positions * kinds + types
        return table.index_select(0, positions)


class Characters(nn.Module):
    """Spellings of words -> their vectors (Kim et al. 2016; Peters et al. 2018, section 3.4).

    The bytes of a word, with a mark at both ends, pass filters of several widths, of which only the
    largest values over the word remain, a highway network, and a linear layer. The vector stands
    twice in the result, as the two directions of the network read it separately.
    """

    def __init__(self, c: EmbeddingsConfig):
        super().__init__()
        characters = c.characters
        assert characters is not None
        total = sum(characters.filters)
        self.character = nn.Embedding(NUM_CHARACTERS, characters.size)
        self.filters = nn.ModuleList(
            nn.Conv1d(characters.size, count, width)
            for width, count in zip(characters.widths, characters.filters, strict=True)
        )
        # the first half of the rows is what is added, the second half decides how much of it
        self.highways = nn.ModuleList(Linear(total, 2 * total) for _ in range(characters.highways))
        self.projection = Linear(total, c.hidden_size // 2)
        self.widest = max(characters.widths)
        self.activation = torch.tanh if characters.activation == "tanh" else torch.relu
        self.max_positions = c.max_position_embeddings

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Return the vectors of words: [T, hidden_size].

        input_ids: uint8 [T, 48]: the bytes of each word, 0 behind its end. Each different word is
            computed once. token_type_ids are not read.

        Raises:
            ValueError: if a sequence is longer than the network reads.
        """
        check(
            layout.max_seqlen <= self.max_positions,
            f"a sequence of {layout.max_seqlen} words, but the model reads {self.max_positions}",
        )
        packed, numbers = input_ids.view(torch.int64).unique(dim=0, return_inverse=True)
        return self._vectors(spellings(packed.view(torch.uint8)))[numbers]

    def draw(self) -> None:
        """Draw the parameters for a training, as the code of the authors (allenai/bilm-tf) does.

        The highways begin as layers that leave nearly all of their input as it is.
        """
        nn.init.uniform_(self.character.weight, -1, 1)
        total = self.projection.in_features
        for layer in self.modules():
            if isinstance(layer, nn.Conv1d) and self.activation is torch.tanh:
                nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
            elif isinstance(layer, nn.Conv1d):
                nn.init.uniform_(layer.weight, -_FILTER_LIMIT, _FILTER_LIMIT)
            elif isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=total**-0.5)
            if isinstance(layer, nn.Conv1d | nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        for highway in self.highways:
            nn.init.constant_(cast(Linear, highway).bias[total:], _CARRY_BIAS)

    def marks(self) -> Tensor:
        """Return the vectors of the words that begin and end each text: [2, hidden_size]."""
        device = self.character.weight.device
        rows = torch.full((2, SPELLING_LENGTH), NO_CHARACTER, device=device)
        rows[:, 0] = WORD_BEGINS
        rows[:, 1] = torch.tensor(SENTENCE_MARKS, device=device)
        rows[:, 2] = WORD_ENDS
        return self._vectors(rows)

    def _vectors(self, rows: Tensor) -> Tensor:
        """[N, 50] -> [N, hidden_size]. rows: the characters of each word."""
        # Behind the longest word all places are equal, so that one of them, for each filter, has
        # the largest value of all.
        length = int((rows != NO_CHARACTER).sum(1).max()) if len(rows) else 0
        rows = rows[:, : min(SPELLING_LENGTH, length + self.widest)]
        parts = [self._largest(part) for part in rows.split(_WORDS_AT_ONCE)]
        x = torch.cat(parts)
        for highway in self.highways:
            added, gate = highway(x).chunk(2, 1)
            gate = gate.sigmoid()
            x = gate * added.relu() + (1 - gate) * x
        vectors: Tensor = self.projection(x)
        return vectors.repeat(1, 2)

    def _largest(self, rows: Tensor) -> Tensor:
        """Return the largest value of each filter over the places of each word, activated."""
        x = self.character(rows).transpose(1, 2)
        return self.activation(torch.cat([f(x).amax(2) for f in self.filters], 1))


def spellings(words: Tensor) -> Tensor:
    """Return the characters of words with their marks: int64 [N, 50].

    words: uint8 [N, 48]: the bytes of each, 0 behind its end.
    """
    count = len(words)
    is_byte = words != 0
    rows = torch.full((count, SPELLING_LENGTH), NO_CHARACTER, device=words.device)
    rows[:, 0] = WORD_BEGINS
    rows[:, 1:-1] = torch.where(is_byte, words.long(), NO_CHARACTER)
    numbers = torch.arange(count, device=words.device)
    rows[numbers, is_byte.sum(1) + 1] = WORD_ENDS
    return rows


def make_embeddings(c: EmbeddingsConfig) -> Embeddings | Characters:
    """Return the embeddings of a configuration with random weights."""
    return Embeddings(c) if c.characters is None else Characters(c)


def sinusoids(position_ids: Tensor, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return sines in the first half of the columns, cosines in the rest.

    int64 [T] -> [T, width] of a type, in which they are computed. Their wavelengths go from 2 pi to
    10,000 * 2 pi (Vaswani et al. 2017, section 3.5). They are in halves as in the authors' code,
    tensor2tensor, and in Marian.
    """
    columns = torch.arange(0, width, 2, device=position_ids.device)
    angles = position_ids[:, None].to(dtype) * 10_000.0 ** (-columns.to(dtype) / width)
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]
