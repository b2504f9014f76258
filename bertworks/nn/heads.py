"""The small networks between an encoder's states and an answer. Not here: what an answer is compared with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import ACTIVATIONS, initialize
from bertworks.nn.linear import Linear


class Pooler(nn.Module):
    """The vector of a whole sequence: a dense layer and tanh over the state of its [CLS]."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        initialize(self, c)

    def forward(self, x: Tensor) -> Tensor:
        """[B, hidden] -> [B, hidden]."""
        return self.dense(x).tanh()  # type: ignore[no-any-return]


class Head(nn.Linear):
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
