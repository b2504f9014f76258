"""The small networks on top of an encoder.

- `Pooler`, `LMHead`, `OutputLayer`: hidden states -> a vector per sequence, logits of the vocabulary, logits of a task.
- `pool`: the hidden states of a sequence -> one vector, without parameters.
- `BiLSTM`: vectors -> vectors that depend on all tokens before and behind.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertworks.models.config import EncoderConfig
from bertworks.models.encoder import ACTIVATIONS, initialize
from bertworks.models.layers import Linear
from bertworks.models.layout import Layout

_POOLER_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu, "relu": F.relu}


class Pooler(nn.Module):
    """The vector of a sequence: the state of its first or last token, through a dense layer and an activation (BERT:
    the first, tanh). The kind "last" has no parameters."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        place, _, activation = c.pooler.partition("_")
        self.reads_last = place == "last"
        self.activation = _POOLER_ACTIVATIONS.get(activation)
        self.dense = Linear(c.hidden_size, c.hidden_size) if activation else None
        initialize(self, c)

    def tokens(self, layout: Layout) -> Tensor:
        """int32 [B]: the token that stands for each sequence."""
        return layout.last if self.reads_last else layout.first

    def forward(self, x: Tensor) -> Tensor:
        """States of these tokens, [B, hidden] -> [B, hidden]."""
        return x if self.dense is None or self.activation is None else self.activation(self.dense(x))


class OutputLayer(nn.Linear):
    """The last layer of a task, always in float32: it is small, and its numbers may be years or prices, which in bf16
    lie 8 or 1,000 apart."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> float32 [..., out_features]."""
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight, self.bias)


class LMHead(nn.Module):
    """Hidden states -> logits of the vocabulary, through the token embedding matrix. The caller passes that matrix: a
    tied parameter has one owner. Use it for few tokens: this is the widest layer of all."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        transforms, width = c.lm_head == "transform", c.embedding_width
        self.dense = Linear(c.hidden_size, width) if transforms else None
        self.activation = ACTIVATIONS[c.hidden_act]
        self.norm = nn.LayerNorm(width, c.layer_norm_eps) if transforms else None
        self.bias = nn.Parameter(torch.zeros(c.vocab_size)) if c.lm_head != "plain" else None
        initialize(self, c)

    def transform(self, x: Tensor) -> Tensor:
        """[M, hidden] -> [M, width of the embeddings]: what is multiplied with the embedding matrix."""
        if self.dense is None or self.norm is None:
            return x
        return self.norm(self.activation(self.dense(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, embeddings: Tensor) -> Tensor:
        """x [M, hidden], embeddings [V, width] -> logits [M, V]."""
        return F.linear(self.transform(x), embeddings, self.bias)


Pooling = Literal["mean", "cls", "max", "last-four"]
_LAST_LAYERS = 4


def pool(states: Sequence[Tensor], layout: Layout, pooling: Pooling) -> Tensor:
    """states: of all layers, [T, hidden] each, embeddings first -> float32 [B, hidden].

    "mean" and "max" are over all tokens, [CLS] and [SEP] included, as in sentence-transformers. "last-four" is the mean
    over the tokens and the last four layers, or all layers if there are fewer.
    """
    if pooling == "cls":
        return states[-1].index_select(0, layout.first).float()
    layers = states[1:][-_LAST_LAYERS:] if pooling == "last-four" else states[-1:]
    x = layers[0].float() if len(layers) == 1 else torch.stack([state.float() for state in layers]).mean(0)
    return torch.segment_reduce(x, "max" if pooling == "max" else "mean", offsets=layout.cu_seqlens.long())


def num_lstm_parameters(input_size: int, units: int, num_layers: int = 2) -> int:
    """Parameters of a `BiLSTM` of these sizes."""
    sizes = [input_size, *[2 * units] * (num_layers - 1)]
    return sum(2 * 4 * units * (size + units + 2) for size in sizes)


class BiLSTM(nn.Module):
    """A bidirectional LSTM (Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005), initialized as in torch,
    without dropout. It computes in the precision of its weights: torch has no LSTM in bf16 for processors without
    instructions for it.

    units: of each direction, in each layer.
    """

    def __init__(self, input_size: int, units: int, num_layers: int = 2):
        super().__init__()
        self.lstm = nn.LSTM(input_size, units, num_layers, batch_first=True, bidirectional=True)
        self.output_size = 2 * units

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, input_size] -> [T, 2 units]: forward, then backward."""
        lengths = layout.cu_seqlens.diff().cpu()
        padded = layout.pad(x).to(next(self.lstm.parameters()).dtype)
        rectangle = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        with torch.autocast(x.device.type, enabled=False):
            outputs, _ = self.lstm(rectangle)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=layout.max_seqlen)
        return layout.unpad(states)
