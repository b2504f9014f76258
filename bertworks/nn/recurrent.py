"""A recurrent body: a vector for each token in, a vector for each token out, which knows all before and all behind it.
Not here: where the vectors come from."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from bertworks.nn.layout import Layout


def num_parameters(input_size: int, units: int, num_layers: int = 2) -> int:
    """Of a `Recurrent` of these sizes."""
    sizes = [input_size, *[2 * units] * (num_layers - 1)]
    return sum(2 * 4 * units * (size + units + 2) for size in sizes)


class Recurrent(nn.Module):
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
