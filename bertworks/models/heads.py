"""The small networks between an encoder's states and an answer. Not here: what an answer is compared with.

The states of a sequence's tokens -> one vector for the sequence. Not here: texts, and what vectors are compared
with.

A recurrent body: a vector for each token in, a vector for each token out, which knows all before and all behind it.
Not here: where the vectors come from.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertworks.models.config import EncoderConfig
from bertworks.models.encoder import ACTIVATIONS, initialize
from bertworks.models.layers import Linear
from bertworks.models.layout import Layout


class Pooler(nn.Module):
    """The vector of a whole sequence: a dense layer and tanh over the state of its [CLS]."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        initialize(self, c)

    def forward(self, x: Tensor) -> Tensor:
        """[B, hidden] -> [B, hidden]."""
        return self.dense(x).tanh()  # type: ignore[no-any-return]


class OutputLayer(nn.Linear):
    """The last layer of a task, in single precision whatever the others compute in: it is small, and its numbers may be
    years or prices, which in bf16 lie 8 or 1,000 apart."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> float32 [..., out_features]."""
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), self.weight, self.bias)


class MaskedLMHead(nn.Module):
    """States to scores for every word, through the table of the word embeddings. The caller passes the table: a tied
    parameter has one owner. Ask for few tokens: this is the widest layer of all."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.activation = ACTIVATIONS[c.hidden_act]
        self.norm = nn.LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(c.vocab_size))
        initialize(self, c)

    def transform(self, x: Tensor) -> Tensor:
        """[M, hidden] -> [M, hidden]: what is compared with the words."""
        return self.norm(self.activation(self.dense(x)))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """x [M, hidden], words [V, hidden] -> scores [M, V]."""
        return F.linear(self.transform(x), words, self.bias)


Pooling = Literal["mean", "cls", "max", "last-four"]
_LAST_LAYERS = 4


def pool(states: Sequence[Tensor], layout: Layout, pooling: Pooling) -> Tensor:
    """states: of all layers, [T, hidden] each, embeddings first -> float32 [B, hidden].

    "mean" and "max" are over all tokens, [CLS] and [SEP] among them, as sentence-transformers has it; "last-four" is
    the mean over the tokens of the last four layers, or of all of fewer.
    """
    if pooling == "cls":
        return states[-1].index_select(0, layout.first).float()
    layers = states[1:][-_LAST_LAYERS:] if pooling == "last-four" else states[-1:]
    x = layers[0].float() if len(layers) == 1 else torch.stack([state.float() for state in layers]).mean(0)
    return torch.segment_reduce(x, "max" if pooling == "max" else "mean", offsets=layout.cu_seqlens.long())


def num_lstm_parameters(input_size: int, units: int, num_layers: int = 2) -> int:
    """Of a `Recurrent` of these sizes."""
    sizes = [input_size, *[2 * units] * (num_layers - 1)]
    return sum(2 * 4 * units * (size + units + 2) for size in sizes)


class BiLSTM(nn.Module):
    """A bidirectional LSTM (Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005), with the initialisation of
    torch and without dropout. It computes in the precision of its weights: torch has no LSTM in bf16 for processors
    without instructions for that.

    units: of each direction, in each layer.
    """

    def __init__(self, input_size: int, units: int, num_layers: int = 2):
        super().__init__()
        self.lstm = nn.LSTM(input_size, units, num_layers, batch_first=True, bidirectional=True)
        self.output_size = 2 * units

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, input_size] -> [T, 2 units]: forwards, then backwards."""
        lengths = layout.cu_seqlens.diff().cpu()
        given = layout.pad(x).to(next(self.lstm.parameters()).dtype)
        rectangle = pack_padded_sequence(given, lengths, batch_first=True, enforce_sorted=False)
        with torch.autocast(x.device.type, enabled=False):
            found, _ = self.lstm(rectangle)
        states, _ = pad_packed_sequence(found, batch_first=True, total_length=layout.max_seqlen)
        return layout.unpad(states)
