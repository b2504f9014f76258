"""Tokens in, one vector per token and layer out. Nothing here knows of losses, tasks, files or steps."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from bertworks.models.attention import Attention
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import Embeddings
from bertworks.models.layers import Linear, dropout, pad_rows_to_bucket
from bertworks.models.layout import Layout

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


class FeedForward(nn.Module):
    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.activation = ACTIVATIONS[c.hidden_act]
        self.up = Linear(c.hidden_size, c.ffn_size)
        self.down = Linear(c.ffn_size, c.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> [T, hidden]."""
        return self.down(self.activation(self.up(x)))  # type: ignore[no-any-return]


class Block(nn.Module):
    """One layer: attention, then feed-forward, each with dropout, residual and a norm after the sum (post-LN)."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.dropout = c.hidden_dropout
        self.attention = Attention(c)
        self.attention_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.feed_forward = FeedForward(c)
        self.feed_forward_norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)

    def forward(self, x: Tensor, layout: Layout, rows: Tensor | None = None) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only: they read all the others."""
        p = self.dropout if self.training else 0.0
        residual = x if rows is None else x.index_select(0, rows)
        x = self.attention_norm(dropout(self.attention(x, layout, rows), p, residual=residual))
        return self.feed_forward_norm(dropout(self.feed_forward(x), p, residual=x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """BERT's body. With `gradient_checkpointing` only the borders of layers are kept for the backward pass, which
    computes the rest again: memory of one layer instead of all, for a third more arithmetic."""

    def __init__(self, c: EncoderConfig, gradient_checkpointing: bool = False):
        super().__init__()
        self.config, self.gradient_checkpointing = c, gradient_checkpointing
        self.embeddings = Embeddings(c)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.num_hidden_layers))
        initialize(self, c)

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None, rows: Tensor | None = None
    ) -> list[Tensor]:
        """input_ids, token_type_ids int64 [T] -> num_hidden_layers + 1 tensors [T, hidden], embeddings first.

        rows: int64 [R], the only tokens whose last state is wanted: the last tensor is [R, hidden], and most of the
        last layer's work falls away.
        """
        states = [self.embeddings(input_ids, layout, token_type_ids)]
        count, last = len(input_ids), len(input_ids if rows is None else rows)
        filling = states[0].dtype == torch.bfloat16 and states[0].device.type == "cpu"
        if filling:
            states, rows = [pad_rows_to_bucket(states[0])], None if rows is None else pad_rows_to_bucket(rows)
        for number, block in enumerate(self.blocks):
            wanted = rows if number == len(self.blocks) - 1 else None
            if self.gradient_checkpointing and self.training:
                # With the parameters of this moment: in bf16 they are copies, which are gone when it is computed again.
                copies, given = dict(block.named_parameters()), (states[-1], layout, wanted)
                states.append(checkpoint(functional_call, block, copies, given, use_reentrant=False))
            else:
                states.append(block(states[-1], layout, wanted))
        return [*(state[:count] for state in states[:-1]), states[-1][:last]] if filling else states


def initialize(module: nn.Module, c: EncoderConfig) -> None:
    """Matrices and tables from a normal cut at two deviations, as in google-research/bert `create_initializer`; biases
    zero; norms are born right. The row of [PAD] is drawn like any other."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            limit = 2 * c.initializer_range
            nn.init.trunc_normal_(part.weight, std=c.initializer_range, a=-limit, b=limit)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
