"""The states of a sequence's tokens -> one vector for the sequence. Not here: texts, and what vectors are compared
with."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from bertworks.nn.layout import Layout

Pooling = Literal["mean", "cls", "max", "last-four"]
_LAYERS = 4


def pool(states: Sequence[Tensor], layout: Layout, pooling: Pooling) -> Tensor:
    """states: of all layers, [T, hidden] each, embeddings first -> float32 [B, hidden].

    "mean" and "max" are over all tokens, [CLS] and [SEP] among them, as sentence-transformers has it; "last-four" is
    the mean over the tokens of the last four layers, or of all of fewer.
    """
    if pooling == "cls":
        return states[-1].index_select(0, layout.first).float()
    layers = states[1:][-_LAYERS:] if pooling == "last-four" else states[-1:]
    x = layers[0].float() if len(layers) == 1 else torch.stack([state.float() for state in layers]).mean(0)
    return torch.segment_reduce(x, "max" if pooling == "max" else "mean", offsets=layout.cu_seqlens.long())
