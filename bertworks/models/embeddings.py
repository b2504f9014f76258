"""Token ids -> the vectors that the first layer reads: token, position and token type in one.

- `EmbeddingsConfig`: the settings of this part of a network, its parameters and operations
- `Embeddings`: the part
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bertworks.errors import check
from bertworks.models.layers import LayerConfig, Linear, count_parameters, dropout
from bertworks.models.layout import Layout


@dataclass(frozen=True, kw_only=True)
class EmbeddingsConfig(LayerConfig):
    """The embeddings of tokens, positions and token types.

    vocab_size: tokens; 0: those of the tokenizer.
    embedding_size: width of the embedding tables; 0: hidden_size. If it differs, a linear layer
        projects to hidden_size (ALBERT, ELECTRA).
    max_position_embeddings: the longest sequence.
    position_embedding_type: "learned"; "sinusoidal" (Vaswani et al. 2017, section 3.5); or "none",
        for networks that read one token after the other, and for static vectors.
    type_vocab_size: 0: no token type embeddings (DistilBERT, GPT-2).
    embedding_norm: layer norm over the sum of the embeddings.
    embedding_scale: token embeddings times sqrt(hidden_size) (Vaswani et al. 2017, section 3.4).
    embedding_dropout: after the embeddings (GPT-2); None: hidden_dropout.
    languages: names of the token types, where these are languages (XLM, Conneau and Lample 2019,
        section 3).
    language: the one that all texts are in; "": the token types of a batch are its languages, as in
        pre-training.
    """

    vocab_size: int = 0
    embedding_size: int = 0
    max_position_embeddings: int = 512
    position_embedding_type: Literal["learned", "sinusoidal", "none"] = "learned"
    type_vocab_size: int = 2
    embedding_norm: bool = True
    embedding_scale: bool = False
    embedding_dropout: float | None = None
    languages: tuple[str, ...] = ()
    language: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.position_embedding_type != "none" or not self.type_vocab_size,
            f"position_embedding_type 'none' with type_vocab_size {self.type_vocab_size}: expected "
            "type_vocab_size = 0",
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
        return count_parameters(Embeddings, self)

    @property
    def embedding_flops(self) -> int:
        """Matrix-product operations per token (a multiply-add counts 2): of the projection."""
        width = self.embedding_width
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
        self.norm = nn.LayerNorm(width, c.layer_norm_eps) if c.embedding_norm else None
        self.projection = Linear(width, c.hidden_size) if width != c.hidden_size else None
        self.scale = c.hidden_size**0.5 if c.embedding_scale else 1.0
        self.language = c.languages.index(c.language) if c.language else None
        self.has_positions = c.position_embedding_type != "none"
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


def sinusoids(position_ids: Tensor, width: int) -> Tensor:
    """Return sines in the first half of the columns, cosines in the rest.

    int64 [T] -> float64 [T, width]. Their wavelengths go from 2 pi to 10,000 * 2 pi (Vaswani et al.
    2017, section 3.5). They are in halves as in the authors' code, tensor2tensor, and in Marian.
    """
    columns = torch.arange(0, width, 2, device=position_ids.device)
    angles = position_ids[:, None].double() * 10_000.0 ** (-columns.double() / width)
    return torch.cat([angles.sin(), angles.cos()], 1)[:, :width]
