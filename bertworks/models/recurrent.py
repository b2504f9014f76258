"""Recurrent networks over packed sequences: vectors that depend on all tokens before and behind."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertworks.models.layout import Layout


class BiLSTM(nn.Module):
    """A bidirectional LSTM of two layers, initialized as in torch, without dropout.

    Hochreiter and Schmidhuber 1997; Graves and Schmidhuber 2005. It computes in the precision of
    its weights: torch has no LSTM in bf16 for processors without instructions for it.

    units: of each direction, in each layer.
    """

    def __init__(self, input_size: int, units: int):
        super().__init__()
        self.lstm = nn.LSTM(input_size, units, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, input_size] -> [T, 2 units]: forward, then backward."""
        lengths = layout.cu_seqlens.diff().cpu()
        padded = layout.pad(x).to(next(self.lstm.parameters()).dtype)
        rectangle = pack_padded_sequence(padded, lengths, batch_first=True, enforce_sorted=False)
        # In evaluation mode cuDNN has no gradients of an LSTM, which explanations need.
        fast = torch.backends.cudnn.flags(enabled=self.training or not torch.is_grad_enabled())
        with torch.autocast(x.device.type, enabled=False), fast:
            outputs, _ = self.lstm(rectangle)
        states, _ = pad_packed_sequence(outputs, batch_first=True, total_length=layout.max_seqlen)
        return layout.unpad(states)
