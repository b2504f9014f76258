"""What a token is (its word), where it is (its position) and whose it is (its segment), as one vector."""

import torch
from torch import Tensor, nn

from bertworks.models.config import EncoderConfig
from bertworks.models.layers import dropout
from bertworks.models.layout import Layout


class Embeddings(nn.Module):
    """The sum of three tables, normalised, with dropout (Devlin et al. 2019, figure 2)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.word = nn.Embedding(c.vocab_size, c.hidden_size)
        self.position = nn.Embedding(c.max_position_embeddings, c.hidden_size)
        self.token_type = nn.Embedding(c.type_vocab_size, c.hidden_size)
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = c.hidden_dropout

    def forward(self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None) -> Tensor:
        """input_ids int64 [T]; token_type_ids int64 [T], None, or a table of one row: all 0 -> [T, hidden_size].

        Raises:
            ValueError: if a sequence is longer than there are positions.
        """
        if layout.max_seqlen > self.position.num_embeddings:
            raise ValueError(
                f"a sequence of {layout.max_seqlen} tokens, but the model has {self.position.num_embeddings} positions"
            )
        kinds = self.token_type.num_embeddings
        # Of a model that was trained without pairs the second text is of the first's kind, as RoBERTa has it.
        types = torch.zeros_like(input_ids) if token_type_ids is None or kinds == 1 else token_type_ids
        # A row of the product table is position + segment: one small table, read once, instead of two large sums.
        places = (self.position.weight[: layout.max_seqlen, None] + self.token_type.weight).flatten(0, 1)
        x = self.word(input_ids) + places.index_select(0, layout.position_ids * kinds + types)
        x = x.to(self.norm.weight.dtype)  # tables may be kept in a higher precision than what is computed
        return dropout(self.norm(x), self.dropout if self.training else 0.0)
