"""Token, position and token type as one vector per token."""

import torch
from torch import Tensor, nn

from bertworks.models.config import EncoderConfig
from bertworks.models.layers import Linear, dropout
from bertworks.models.layout import Layout


class Embeddings(nn.Module):
    """The sum of the embeddings that a configuration has, normalised, with dropout (Devlin et al. 2019, figure 2), and
    projected if their width is not the hidden size."""

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
        self.max_positions, self.dropout = c.max_position_embeddings, c.hidden_dropout

    def forward(self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None) -> Tensor:
        """input_ids int64 [T]; token_type_ids int64 [T], None, or a table of one row: all 0 -> [T, hidden_size].

        Raises:
            ValueError: if there are fewer positions than a sequence needs.
        """
        if layout.num_positions > self.max_positions:
            raise ValueError(
                f"a sequence of {layout.num_positions} tokens, but the model has {self.max_positions} positions"
            )
        x: Tensor = self.token(input_ids)
        if self.scale != 1:
            x = x * self.scale
        x = x + self._places(x, layout, token_type_ids)
        if self.norm is not None:
            x = self.norm(x.to(self.norm.weight.dtype))  # tables may have a higher precision than what is computed
        x = dropout(x, self.dropout if self.training else 0.0)
        if self.projection is not None:
            x = self.projection(x.to(self.projection.weight.dtype))
        return x

    def _places(self, x: Tensor, layout: Layout, token_type_ids: Tensor | None) -> Tensor:
        """[T, width]: position and token type embeddings."""
        if self.position is None:
            places = sinusoids(layout.position_ids, x.shape[1]).to(x.dtype)
            if self.token_type is None:
                return places
            one_type = token_type_ids is None or self.token_type.num_embeddings == 1
            types = torch.zeros_like(layout.position_ids) if one_type else token_type_ids
            return places + self.token_type(types)  # type: ignore[no-any-return]
        table = self.position.weight[: layout.num_positions]
        if self.token_type is None:
            return table.index_select(0, layout.position_ids)
        kinds = self.token_type.num_embeddings
        # A model that was trained without pairs (RoBERTa) has one type for all tokens.
        types = torch.zeros_like(layout.position_ids) if token_type_ids is None or kinds == 1 else token_type_ids
        # A row of the product table is position + type: one small table, read once, instead of two large sums.
        product = (table[:, None] + self.token_type.weight).view(-1, table.shape[1])
        return product.index_select(0, layout.position_ids * kinds + types)


def sinusoids(position_ids: Tensor, width: int) -> Tensor:
    """int64 [T] -> float64 [T, width]: sines in even columns, cosines in odd ones, with wavelengths from 2 pi to
    10,000 * 2 pi (Vaswani et al. 2017, section 3.5)."""
    columns = torch.arange(0, width, 2, device=position_ids.device)
    angles = position_ids[:, None].double() * 10_000.0 ** (-columns.double() / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]
