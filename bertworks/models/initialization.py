"""Networks of which only the shapes are wanted, because their numbers come from a file.

A start from which attention is soon of use. Only weights are set: the network is BERT's, unchanged.

From random weights a small BERT says for thousands of steps little more than how often words come, because no head
knows yet where anything stands. Here the heads of the first layer begin by looking at the neighbours (in the spirit of
Trockman and Kolter 2023, "Mimetic initialization of self-attention layers"); training is free to change that. The
table of positions should not be trained then: sines and cosines mean the same at every length, but rows beyond the
length of most sequences would stay behind while the others move (docs/experiments).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bertworks.models.encoder import Block, Encoder


class _SkipInit(TorchFunctionMode):
    """Nothing is drawn at random. Even where there is no memory to fill, torch would import its compiler for that,
    which takes seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def meta_device_init() -> Iterator[None]:
    """Modules that are made in it have parameters of the device "meta": shapes without memory."""
    with torch.device("meta"), _SkipInit():
        yield


FREQUENCIES = 2.0, 0.02  # radians per position, of the first and the last pair of the position table
SHIFTS = (-1, 1, -2, 2)  # where the first heads look, in tokens; further heads begin at random
GAIN = 1.2  # of queries and keys: at a fresh norm the neighbour then gets most of a head's attention


@torch.no_grad()
def init_local_attention(encoder: Encoder, gain: float = GAIN) -> None:
    """Position embeddings become sines and cosines, as large as the words'; queries of a head in the first layer turn
    them by the angle of a shift (a rotation per frequency), so that they fit the keys that stand so far away."""
    position = encoder.embeddings.position
    assert position is not None, "`Recipe` refuses other configurations"
    table = position.weight
    half = table.shape[1] // 2
    first, last = FREQUENCIES
    frequencies = first * (last / first) ** torch.linspace(0, 1, half)
    angles = torch.arange(len(table))[:, None] * frequencies
    deviation = encoder.embeddings.token.weight.std()
    table[:, : 2 * half] = torch.cat([angles.sin(), angles.cos()], 1) * deviation * 2**0.5

    attention = cast(Block, encoder.blocks[0]).attention
    hidden, size = table.shape[1], table.shape[1] // attention.num_heads
    pairs = size // 2
    used = torch.linspace(0, max(half // 2 - 1, 0), pairs).round().long()  # the faster half: near places differ most
    rows = torch.arange(pairs)
    queries, keys, _ = attention.qkv.weight.view(3, attention.num_heads, size, hidden)
    for query, key, shift in zip(queries, keys, SHIFTS, strict=False):
        cosine, sine = (gain * f(frequencies[used] * shift) for f in (torch.cos, torch.sin))
        key[rows, used] += gain
        key[pairs + rows, half + used] += gain
        query[rows, used] += cosine
        query[rows, half + used] += sine
        query[pairs + rows, half + used] += cosine
        query[pairs + rows, used] -= sine
