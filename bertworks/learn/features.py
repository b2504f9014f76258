"""What a frozen encoder says of sequences, and a memory for it: what learns above it asks the same in every epoch. Not
here: the network above (`tasks`)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from bertworks.data.batch import Batch, collate
from bertworks.data.labelled import Unit, packed
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder

LAYERS = 4  # the last ones, whose states side by side were the best features of all (Devlin et al. 2019, table 7)
MOST_BYTES = 2 << 30  # that are remembered
TOKENS = 4096  # that are computed at once to be remembered, padding counted


def width(c: EncoderConfig) -> int:
    """Of the features: an encoder of fewer layers gives all that it has."""
    return min(LAYERS, c.num_hidden_layers) * c.hidden_size


class Features:
    """`features(batch)` is float32 [T, width]: the states of the last layers side by side, without dropout and without
    gradients, whatever the precision of the training. The encoder must not change any more once it was asked."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self._wanted: list[Unit] = []
        self._known: dict[bytes, Tensor] = {}

    def remember(self, units: Sequence[Unit]) -> bool:
        """From the next question on, what these units hold is known by heart, computed in one pass: nothing depends on
        the order of the questions. False: it would take more than MOST_BYTES, and is computed each time."""
        tokens = sum(len(one.input_ids) for unit in units for one in unit)
        if 4 * tokens * width(self.encoder.config) > MOST_BYTES:
            return False
        self._wanted = list(units)
        return True

    def __call__(self, batch: Batch) -> Tensor:
        for part in packed(self._wanted, TOKENS):
            asked = collate([one for unit in part for one in unit])
            found = self._computed(asked.to(batch.input_ids.device)).cpu()
            pieces = found.split(asked.layout.cu_seqlens.diff().tolist())
            # Copies: a piece would keep all that was computed with it.
            self._known |= {name: piece.clone() for name, piece in zip(_names(asked), pieces, strict=True)}
        self._wanted = []
        known = [self._known.get(name) for name in _names(batch)] if self._known else [None]
        found_all = [one for one in known if one is not None]
        if len(found_all) < len(known):
            return self._computed(batch)
        return torch.cat(found_all).to(batch.input_ids.device)

    @torch.no_grad()
    def _computed(self, batch: Batch) -> Tensor:
        training = self.encoder.training
        self.encoder.eval()
        with torch.autocast(batch.input_ids.device.type, enabled=False):
            states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids)
        self.encoder.train(training)
        return torch.cat(states[1:][-LAYERS:], -1)


def _names(batch: Batch) -> list[bytes]:
    """Of the sequences: all that the encoder reads of each."""
    ends = batch.layout.cu_seqlens.tolist()
    assert batch.token_type_ids is not None
    rows = torch.stack([batch.input_ids, batch.token_type_ids]).cpu().numpy()
    return [rows[:, start:end].tobytes() for start, end in pairwise(ends)]
