"""Hidden states -> a vector of a sequence, logits of the vocabulary, of a task, of every token.

- `Pooler`: a vector per sequence; `pool`: the same without parameters
- `Transform`: a dense layer, an activation and a norm before logits; `scale_transform`: other
  initial weights
- `LMHead`: logits of the vocabulary
- `TokenHead`: a logit per token
- `PairHead`: two logits per pair of segments
- `add_heads`: the heads of pre-training that a network has; `num_head_parameters`: their size
- `OutputLayer`: logits of a task
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.layers import (
    ACTIVATIONS,
    Linear,
    count_parameters,
    initialize,
    layer_norm,
)
from bertworks.models.layout import Layout
from bertworks.models.settings import Head, HeadsConfig


class Pooler(nn.Module):
    """The vector of a sequence: the state of its first or last token, through a dense layer.

    An activation follows (BERT: the first token, tanh). The kinds "first" and "last" have no
    parameters.
    """

    def __init__(self, c: HeadsConfig):
        super().__init__()
        place, _, activation = c.pooler.partition("_")
        self.reads_last = place == "last"
        self.activation = torch.tanh if activation == "tanh" else ACTIVATIONS.get(activation)
        self.dense = Linear(c.hidden_size, c.hidden_size) if activation else None
        initialize(self, c)

    def tokens(self, layout: Layout) -> Tensor:
        """int32 [B]: the token that stands for each sequence."""
        return layout.last if self.reads_last else layout.first

    def forward(self, x: Tensor) -> Tensor:
        """States of these tokens, [B, hidden] -> [B, hidden]."""
        return (
            x if self.dense is None or self.activation is None else self.activation(self.dense(x))
        )


class OutputLayer(nn.Linear):
    """The last layer of a task, always in float32.

    It is small, and its numbers may be years or prices, which in bf16 lie 8 or 1,000 apart.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> float32 [..., out_features]."""
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight, self.bias)


class Transform(nn.Module):
    """A dense layer, an activation and a norm, which stand before logits.

    Only a network with `lm_head` "transform" has them; any other returns its input.
    """

    def __init__(self, c: HeadsConfig):
        super().__init__()
        transforms = c.lm_head == "transform"
        width = c.embedding_width
        self.dense = Linear(c.hidden_size, width, bias=c.transform_bias) if transforms else None
        self.activation = ACTIVATIONS[c.lm_head_activation]
        self.norm = layer_norm(width, c) if transforms else None
        initialize(self, c)

    def transform(self, x: Tensor) -> Tensor:
        """[M, hidden] -> [M, width of the embeddings]."""
        if self.dense is None or self.norm is None:
            return x
        return self.norm(self.activation(self.dense(x)))  # type: ignore[no-any-return]


@torch.no_grad()
def scale_transform(transform: Transform, num_layers: int) -> None:
    """Divide the dense layer of a transform by the root of the number of parts of the blocks.

    There are two in each layer. So does ModernBERT in transformers.
    """
    assert transform.dense is not None
    transform.dense.weight /= math.sqrt(2 * num_layers)


class LMHead(Transform):
    """Hidden states -> logits of the vocabulary, through the token embedding matrix.

    The caller passes that matrix: a tied parameter has one owner. Use it for few tokens: this is
    the widest layer of all.
    """

    def __init__(self, c: HeadsConfig):
        super().__init__(c)
        has_bias = c.lm_head != "plain" and c.lm_head_bias
        self.bias = nn.Parameter(torch.zeros(c.vocab_size)) if has_bias else None

    def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
        """Return the logits [M, V] of states x [M, hidden], for embeddings [V, width]."""
        return F.linear(self.transform(x), embeddings, self.bias)


class TokenHead(nn.Module):
    """Hidden states -> one logit per token, through a dense layer and the activation.

    It says whether a token was replaced (Clark et al. 2020, section 2).
    """

    def __init__(self, c: HeadsConfig):
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.activation = ACTIVATIONS[c.hidden_act]
        self.output = Linear(c.hidden_size, 1)
        initialize(self, c)

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] -> logits [T]."""
        return self.output(self.activation(self.dense(x))).squeeze(-1)  # type: ignore[no-any-return]


class PairHead(nn.Linear):
    """The vector of a pair of segments -> two logits, [B, hidden] -> [B, 2]."""

    def __init__(self, c: HeadsConfig):
        super().__init__(c.hidden_size, 2)
        initialize(self, c)


# The heads of pre-training, in the order in which they are built: initial weights depend on it.
_HEADS: Mapping[Head, Callable[[HeadsConfig], nn.Module]] = {
    "pooler": Pooler,
    "lm_head": LMHead,
    "next_sentence": PairHead,
    "sentence_order": PairHead,
    "replaced_token": TokenHead,
}


def num_head_parameters(c: HeadsConfig, *heads: Head) -> int:
    """Return the parameters of heads, without the tied embeddings."""
    return sum(count_parameters(_HEADS[head], c) for head in {*heads})


def add_heads(network: nn.Module, c: HeadsConfig, names: Collection[Head]) -> None:
    """Build heads of pre-training as modules of a network; an absent head is None."""
    for name, kind in _HEADS.items():
        network.register_module(name, kind(c) if name in names else None)


_LAST_LAYERS = 4


def pool(
    states: Sequence[Tensor], layout: Layout, pooling: Literal["mean", "max", "last-four"]
) -> Tensor:
    """states: of all layers, [T, hidden] each, embeddings first -> float32 [B, hidden].

    "mean" and "max" are over all tokens, [CLS] and [SEP] included, as in sentence-transformers.
    "last-four" is the mean over the tokens and the last four layers, or all layers if there are
    fewer. "cls" is the last state of the first
    token: the caller needs no more than that one.
    """
    layers = states[1:][-_LAST_LAYERS:] if pooling == "last-four" else states[-1:]
    x = (
        layers[0].float()
        if len(layers) == 1
        else torch.stack([state.float() for state in layers]).mean(0)
    )
    return (
        torch.segment_reduce(x, "max", offsets=layout.cu_seqlens.long())
        if pooling == "max"
        else layout.mean(x)
    )
