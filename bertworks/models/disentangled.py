"""Disentangled attention: content and distance of two tokens have vectors of their own.

He et al. 2021 (DeBERTa), section 3.1: the score of a query and a key is the sum of content to
content, content to position and position to content.

- `rows_of_distances`: which vector stands for a distance
- `DistanceTable`: these vectors, and what they add to the scores of a layer
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.kernels import Bias, is_exported
from bertworks.models.layers import dropout, layer_norm
from bertworks.models.layout import Layout
from bertworks.models.settings import LayerConfig

# Products that are computed at once without gradients, for some heads after the others: memory of
# this size is used again and again, where larger pieces are fetched from the system each time.
_PRODUCTS_AT_ONCE = 1 << 19
NUM_TERMS = 3  # of a score; their sum is divided by the root of this number


def rows_of_distances(length: int, buckets: int, furthest: int) -> Tensor:
    """Return the row of the table for each distance, int64 [2 * length - 1].

    A distance is the place of the query minus that of the key; they are those from 1 - length to
    length - 1. Up to half of the buckets each distance has a row of its own, then the logarithm of
    the distance is cut into equal parts (microsoft/DeBERTa `make_log_bucket_position`). From
    `furthest` on all distances have the last row of their direction.
    """
    middle = buckets // 2
    end = math.log((furthest - 1) / middle)
    rows = []
    for distance in range(length):
        row = distance
        if distance > middle:
            row = middle + math.ceil(math.log(distance / middle) / end * (middle - 1))
        rows.append(row)
    # numbers, and no operations on tensors: an exported graph has them as a constant
    both = [-row for row in rows[:0:-1]] + rows
    return torch.tensor([min(max(row + buckets, 0), 2 * buckets - 1) for row in both])


class DistanceTable(nn.Module):
    """Vectors of distances, which all layers share.

    Each layer turns them into queries and keys by its own matrices, those of the tokens. They
    depend on no text: all sequences of a call share them, and without gradients, in a copy of the
    network with packed matrices, all calls do.

    Args:
        c: of the norm and the dropout.
        num_heads: attention heads.
        buckets: see `rows_of_distances`; the table has twice as many rows.
        furthest: see there.

    Attributes:
        cache: queries and keys of each layer, by its number; None: they are computed in each call.
    """

    def __init__(self, c: LayerConfig, num_heads: int, buckets: int, furthest: int):
        super().__init__()
        self.num_heads = num_heads
        self.buckets = buckets
        self.furthest = furthest
        self.dropout = c.hidden_dropout
        self.table = nn.Embedding(2 * buckets, c.hidden_size)
        self.norm = layer_norm(c.hidden_size, c)
        self.cache: dict[int, Tensor] | None = None
        self._rows: Tensor | None = None  # of the distances of the longest sequence so far

    def bias(self, number: int, product: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Bias:
        """Return what position adds to the scores of a layer.

        The bias reads queries that are divided by the root of NUM_TERMS.

        Args:
            number: of the layer, from 0.
            product: that of the layer's queries, keys and values: [N, hidden] -> [N, 3 * hidden].
            dtype: of the states.
        """
        vectors = None if self.cache is None else self.cache.get(number)
        if vectors is None:
            vectors = self._vectors(product, dtype)
            if self.cache is not None:
                self.cache[number] = vectors

        def bias(layout: Layout, queries: Tensor, keys: Tensor) -> Tensor:
            if is_exported():
                return self._gathered(vectors, layout, queries, keys)
            rows = self._rows_of(layout.max_seqlen, vectors.device)
            extra = _padded_width(len(rows)) - len(rows)
            from_positions, to_positions = (
                part.index_select(1, F.pad(numbers, (0, extra)))
                for part, numbers in zip(vectors, (rows, rows.flip(0)), strict=True)
            )
            if torch.is_grad_enabled():
                return _added(queries, keys, to_positions, from_positions)
            count, heads, length, _ = queries.shape
            result = queries.new_empty(count, heads, length, length)
            step = max(1, _PRODUCTS_AT_ONCE // (2 * count * length**2))
            for first in range(0, heads, step):
                part = slice(first, first + step)
                inputs = queries[:, part], keys[:, part], to_positions[part], from_positions[part]
                result[:, part] = _added(*inputs)
            return result

        return bias

    def _vectors(self, product: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        """Return queries and keys of all rows: [2, heads, rows, d].

        Both are scaled, so that what they add to scores is divided by sqrt(NUM_TERMS * d).
        """
        # tables may have a higher precision than what is computed
        x = self.norm(self.table.weight.to(self.norm.weight.dtype))
        x = dropout(x, self.dropout if self.training else 0.0).to(dtype)
        hidden = x.shape[1]
        pairs = product(x)[: len(x), : 2 * hidden].unflatten(1, (2, self.num_heads, -1))
        size = pairs.shape[-1]
        scales = pairs.new_tensor([(NUM_TERMS * size) ** -0.5, size**-0.5])
        vectors: Tensor = (pairs * scales[:, None, None]).permute(1, 2, 0, 3).contiguous()
        return vectors

    def _rows_of(self, length: int, device: torch.device) -> Tensor:
        """Return `rows_of_distances` of a length."""
        rows = self._rows
        if rows is None or len(rows) < 2 * length - 1 or rows.device != device:
            longest = 1 << (length - 1).bit_length()
            rows = rows_of_distances(longest, self.buckets, self.furthest).to(device)
            self._rows = rows  # complete when it is assigned: several threads may be here
        middle = len(rows) // 2
        return rows[middle - length + 1 : middle + length]

    def _gathered(self, vectors: Tensor, layout: Layout, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the bias in a graph with traced sizes.

        There is a product for each row of the table, and one is gathered for each pair of tokens.
        """
        most = layout.num_positions
        rows = rows_of_distances(most, self.buckets, self.furthest)
        places = torch.arange(layout.max_seqlen)
        pairs = rows[places[:, None] - places + (most - 1)]
        pairs = pairs.expand(*queries.shape[:2], -1, -1)
        to_positions = (queries @ vectors[1].transpose(-1, -2)).gather(-1, pairs)
        from_positions = (keys @ vectors[0].transpose(-1, -2)).gather(-1, pairs.transpose(-1, -2))
        return to_positions + from_positions.transpose(-1, -2)


def _padded_width(count: int) -> int:
    """Return how many products a token has, at least `count`.

    A product of two matrices is faster with a multiple of 16 columns, and a transposed copy without
    rows that lie a multiple of 2048 bytes apart, which share places in the cache.
    """
    width = -(-count // 16) * 16
    return width + 16 if width % 512 == 0 else width


def _added(queries: Tensor, keys: Tensor, to_positions: Tensor, from_positions: Tensor) -> Tensor:
    """Return content to position and position to content: see `_by_pair`."""
    added = _by_pair(queries, to_positions)
    return added + _by_pair(keys, from_positions).transpose(-1, -2)


def _by_pair(x: Tensor, vectors: Tensor) -> Tensor:
    """Return the products of tokens with the vectors of their distances to all tokens.

    Nothing is gathered: the products of neighbouring tokens with all distances lie so that a view
    with another step from row to row has those of each pair.

    x: [B, heads, L, d]. vectors: [heads, 2 * L - 1 or more, d], of which token a reads L from
        number L - 1 - a on.
    Returns [B, heads, L, L].
    """
    count, heads, length, size = x.shape
    # one product for all sequences, because they share the vectors
    rows = x.transpose(0, 1).reshape(heads, count * length, size)
    products = torch.bmm(rows, vectors.transpose(1, 2))
    width = vectors.shape[1]
    steps = (count * length * width, length * width, width - 1, 1)
    pairs = products.as_strided((heads, count, length, length), steps, length - 1)
    return pairs.transpose(0, 1)
