"""A fine-tuning with the rows of the embedding matrix that its data use."""

from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.batching.batch import ExampleGroup


class VocabSubset:
    """The rows of the token embedding matrix that a dataset uses.

    A fine-tuning computes only with these. The matrix is most of a multilingual network, and a
    small dataset uses few of its rows.

    The tokens of all `units` in ascending order, and one unused token if there is any: its row
    shows what weight decay does to a row that no text uses. whole: all rows, because the network
    predicts tokens.
    """

    def __init__(self, units: Iterable[ExampleGroup], vocab_size: int, whole: bool = False):
        used = np.full(vocab_size, whole, np.bool_)
        for unit in units:
            for example in unit:
                used[example.input_ids] = True
        ids = np.flatnonzero(used)
        # int64 [S], the unused one last
        self.ids = torch.from_numpy(np.append(ids, np.flatnonzero(~used)[:1]))
        self.has_unused = len(ids) < vocab_size
        self._row_of_token = torch.full((vocab_size,), -1)  # int64 [V]
        self._row_of_token[ids] = torch.arange(len(ids))

    def attach(self, embedding: nn.Embedding) -> None:
        """Make an embedding of these rows, [S, hidden], accept ids of the whole vocabulary.

        They are int64 [T].
        """
        row_of_token = cache(self._row_of_token.to)  # on each device
        embedding.register_forward_pre_hook(
            lambda _, inputs: row_of_token(inputs[0].device)[inputs[0]]
        )

    def rows(self, embeddings: Tensor) -> Tensor:
        """[V, hidden] -> [S, hidden]."""
        return embeddings[self.ids]

    def merge(self, before: Tensor, trained: Tensor) -> Tensor:
        """Return the matrix after a training: [V, hidden].

        before [V, hidden]: the matrix before training; trained [S, hidden]: these rows after it.
        """
        trained = trained.detach().to(before.device, before.dtype)
        whole = before * self._decay(before, trained)
        whole[self.ids] = trained
        return whole

    def _decay(self, before: Tensor, trained: Tensor) -> float:
        """Return the factor by which weight decay has made an unused row smaller."""
        if not self.has_unused:
            return 1.0
        old = before[self.ids[-1]].double()
        new = trained[-1].double()
        size = old.square().sum().item()
        return (old * new).sum().item() / size if size else 1.0
