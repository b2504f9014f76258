"""Token ids -> the vectors that the first layer reads: token, position and token type in one.

- `Embeddings`: the part; `Characters`: the part of a network that reads spellings
- `make_embeddings`: that of a configuration; `num_embedding_parameters`: how large it is
"""

from typing import cast

import torch
from torch import Tensor, nn

from bertworks.errors import check
from bertworks.models.layers import Linear, count_parameters, dropout, layer_norm
from bertworks.models.layout import Layout
from bertworks.models.settings import SPELLING_LENGTH, EmbeddingsConfig

# Of a spelling: 0 to 255 are the bytes of the word in UTF-8.
SENTENCE_MARKS = 256, 257  # the only characters of the words that begin and end each text
WORD_BEGINS = 258
WORD_ENDS = 259
NO_CHARACTER = 260
NUM_CHARACTERS = 261
_WORDS_AT_ONCE = 512  # of which the convolutions are computed together
# Of initial weights (Kim et al. 2016): the largest ones of filters, and the bias by which a highway
# adds little.
_FILTER_LIMIT = 0.05
_CARRY_BIAS = -2.0


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


def num_embedding_parameters(c: EmbeddingsConfig) -> int:
    """Return the parameters of the tables, their norm and the projection."""
    return count_parameters(make_embeddings, c)


def sinusoids(position_ids: Tensor, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return sines in the first half of the columns, cosines in the rest.

    int64 [T] -> [T, width] of a type, in which they are computed. Their wavelengths go from 2 pi to
    10,000 * 2 pi (Vaswani et al. 2017, section 3.5). They are in halves as in the authors' code,
    tensor2tensor, and in Marian.
    """
    columns = torch.arange(0, width, 2, device=position_ids.device)
    angles = position_ids[:, None].to(dtype) * 10_000.0 ** (-columns.to(dtype) / width)
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]
