"""Hidden states -> a vector of a sequence, logits of the vocabulary, of a task, of every token.

- `HeadsConfig`: the settings of heads, their parameters and operations
- `Pooler`: a vector per sequence; `pool`: the same without parameters
- `Transform`: a dense layer, an activation and a norm before logits; `scale_transform`: other
  initial weights
- `LMHead`: logits of the vocabulary
- `TokenHead`: a logit per token
- `PairHead`: two logits per pair of segments
- `add_heads`: the heads of pre-training that a network has
- `OutputLayer`: logits of a task
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.errors import check
from bertworks.models.embeddings import EmbeddingsConfig
from bertworks.models.layers import (
    ACTIVATIONS,
    Linear,
    count_parameters,
    initialize,
    layer_norm,
)
from bertworks.models.layout import Layout

Head = Literal["pooler", "lm_head", "next_sentence", "sentence_order", "replaced_token"]
PRETRAINING_HEADS: tuple[Head, ...] = ("pooler", "lm_head", "next_sentence")  # of BERT


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

    def num_head_parameters(self, *heads: Head) -> int:
        """Parameters of heads, without the tied embeddings."""
        return sum(count_parameters(_HEADS[head], self) for head in {*heads})

    @property
    def lm_head_flops(self) -> int:
        """Matrix-product operations per predicted token (a multiply-add counts 2)."""
        # ELMo has no such head: each half of a state is multiplied with a matrix of half the width.
        transforms = self.lm_head == "transform" and self.characters is None
        inputs = self.hidden_size if transforms else 0
        return 2 * self.embedding_width * (inputs + self.vocab_size)


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


def add_heads(network: nn.Module, c: HeadsConfig, names: Collection[Head]) -> None:
    """Build heads of pre-training as modules of a network; an absent head is None."""
    for name, kind in _HEADS.items():
        network.register_module(name, kind(c) if name in names else None)


Pooling = Literal["mean", "cls", "max", "last-four"]
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
