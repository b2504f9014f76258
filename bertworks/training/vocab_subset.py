"""The rows of the token embedding matrix that a data set uses: a fine-tuning computes with these alone.

The matrix is most of a multilingual network, and a small data set uses few of its rows.
"""

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example


class VocabSubset:
    """The tokens of all `units` in ascending order and, where not all of the vocabulary are among them, one more: its
    row tells what becomes of a row that no text names (weight decay, in as many steps as were taken)."""

    def __init__(self, units: Iterable[ExampleGroup], vocab_size: int):
        named = np.zeros(vocab_size, np.bool_)
        for unit in units:
            for example in unit:
                named[example.input_ids] = True
        ids = np.flatnonzero(named)
        self.ids = torch.from_numpy(np.append(ids, np.flatnonzero(~named)[:1]))  # int64 [S], the witness last
        self.has_witness = len(ids) < vocab_size
        self._numbers = np.full(vocab_size, -1)
        self._numbers[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def renumbered(self, unit: ExampleGroup) -> list[Example]:
        """The same sequences by the numbers of their tokens in this list."""
        return [example._replace(input_ids=self._numbers[example.input_ids]) for example in unit]

    def over(self, units: Sequence[ExampleGroup]) -> Sequence[ExampleGroup]:
        """All of them so, each when it is asked for: a second copy of all texts would take as much memory again."""
        return _Renumbered(self, units)

    def taken(self, table: Tensor) -> Tensor:
        """[V, hidden] -> [S, hidden]."""
        return table[self.ids]

    def put_back(self, table: Tensor, learned: Tensor) -> Tensor:
        """table [V, hidden], as it was; learned [S, hidden], what became of the taken rows -> [V, hidden]: of all."""
        learned = learned.detach().to(table.device, table.dtype)
        whole = table * self._kept(table, learned)
        whole[self.ids] = learned
        return whole

    def _kept(self, table: Tensor, learned: Tensor) -> float:
        """By how much a row has become smaller that no text names."""
        if not self.has_witness:
            return 1.0
        was, now = table[self.ids[-1]].double(), learned[-1].double()
        size = was.square().sum().item()
        return (was * now).sum().item() / size if size else 1.0


class _Renumbered(Sequence[ExampleGroup]):
    def __init__(self, shortlist: VocabSubset, units: Sequence[ExampleGroup]):
        self._shortlist, self._units = shortlist, units

    def __len__(self) -> int:
        return len(self._units)

    @overload
    def __getitem__(self, number: int) -> ExampleGroup: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[ExampleGroup]: ...
    def __getitem__(self, number: int | slice) -> ExampleGroup | Sequence[ExampleGroup]:
        if isinstance(number, slice):
            return _Renumbered(self._shortlist, self._units[number])
        return self._shortlist.renumbered(self._units[number])
