"""The rows of the token embedding matrix that a dataset uses: a fine-tuning computes only with these.

The matrix is most of a multilingual network, and a small dataset uses few of its rows.
"""

from collections.abc import Iterable, Sequence
from typing import overload

import numpy as np
import torch
from torch import Tensor

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.masking import Example


class VocabSubset:
    """The tokens of all `units` in ascending order, and one unused token if there is any: its row shows what weight
    decay does to a row that no text uses."""

    def __init__(self, units: Iterable[ExampleGroup], vocab_size: int):
        used = np.zeros(vocab_size, np.bool_)
        for unit in units:
            for example in unit:
                used[example.input_ids] = True
        ids = np.flatnonzero(used)
        self.ids = torch.from_numpy(np.append(ids, np.flatnonzero(~used)[:1]))  # int64 [S], the unused one last
        self.has_unused = len(ids) < vocab_size
        self._numbers = np.full(vocab_size, -1)
        self._numbers[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def renumbered(self, unit: ExampleGroup) -> list[Example]:
        """The same sequences with positions in this list as token ids."""
        return [example._replace(input_ids=self._numbers[example.input_ids]) for example in unit]

    def over(self, units: Sequence[ExampleGroup]) -> Sequence[ExampleGroup]:
        """All units, each renumbered on access: a second copy of all texts would double the memory."""
        return _Renumbered(self, units)

    def rows(self, embeddings: Tensor) -> Tensor:
        """[V, hidden] -> [S, hidden]."""
        return embeddings[self.ids]

    def merge(self, before: Tensor, trained: Tensor) -> Tensor:
        """before [V, hidden]: the matrix before training; trained [S, hidden]: these rows after it -> [V, hidden]."""
        trained = trained.detach().to(before.device, before.dtype)
        whole = before * self._decay(before, trained)
        whole[self.ids] = trained
        return whole

    def _decay(self, before: Tensor, trained: Tensor) -> float:
        """The factor by which weight decay has made an unused row smaller."""
        if not self.has_unused:
            return 1.0
        old, new = before[self.ids[-1]].double(), trained[-1].double()
        size = old.square().sum().item()
        return (old * new).sum().item() / size if size else 1.0


class _Renumbered(Sequence[ExampleGroup]):
    def __init__(self, subset: VocabSubset, units: Sequence[ExampleGroup]):
        self._subset, self._units = subset, units

    def __len__(self) -> int:
        return len(self._units)

    @overload
    def __getitem__(self, number: int) -> ExampleGroup: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[ExampleGroup]: ...
    def __getitem__(self, number: int | slice) -> ExampleGroup | Sequence[ExampleGroup]:
        if isinstance(number, slice):
            return _Renumbered(self._subset, self._units[number])
        return self._subset.renumbered(self._units[number])
