"""Who looks at whom: the attention probabilities of an encoder, computed once more from the states that it gave. It is
for eyes, not for training: `attention` itself never keeps them.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bertworks.models.encoder import Block, Encoder
from bertworks.models.layout import Layout


@torch.no_grad()
def attention_maps(encoder: Encoder, states: Sequence[Tensor], layout: Layout) -> list[Tensor]:
    """For each layer [B, heads, max_seqlen, max_seqlen]: the share of its attention that the token of a row gives to
    that of a column. Rows sum to 1 over the tokens there are; the others are 0.

    states: num_hidden_layers + 1 tensors [T, hidden], as `Encoder.forward` gives them without `rows`.
    """
    present = layout.present[:, None, None]  # [B, 1, 1, max_seqlen]
    maps = []
    for block, x in zip(encoder.blocks, states[:-1], strict=True):
        attention = cast(Block, block).attention
        qkv = layout.pad(attention.qkv(x).view(len(x), 3, attention.num_heads, -1))
        q, k, _ = qkv.permute(2, 0, 3, 1, 4)  # [B, heads, max_seqlen, d]
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(~present, -torch.inf)
        maps.append(scores.softmax(-1) * present.transpose(-1, -2))
    return maps
