"""The order of examples: `stream[n]` is the n-th example of the run, whoever asks, whenever. So to resume is to ask for
another number, and to share the work among processes is arithmetic. Not here: how many examples make a batch."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from numpy.random import Generator

from bertworks.data.masking import Example
from bertworks.data.sampling import Sampler, Sequence, rng


class Policy(Protocol):
    def __call__(self, s: Sequence, generator: Generator) -> Example: ...


@dataclass(frozen=True)
class Stream:
    """Epoch after epoch over the sequences of a sampler, each epoch in an order of its own."""

    sampler: Sampler
    policy: Policy
    seed: int = 0
    dynamic: bool = True  # new masks in every epoch
    shuffle: bool = True

    def __getitem__(self, n: int) -> Example:
        epoch, i = divmod(n, len(self.sampler))
        if self.shuffle:
            i = shuffled(i, len(self.sampler), self.seed, epoch)
        return self.policy(self.sampler[i], rng("mask", self.seed, epoch if self.dynamic else 0, i))


def shuffled(i: int, n: int, seed: int, epoch: int) -> int:
    """Where the i-th of n things goes in a shuffle that is stored nowhere: a Feistel network is a bijection of the
    numbers below a power of four, and one that lands beyond n is sent on until it does not."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = i >> half, i & low
        for key in _round_keys(seed, epoch, n):
            left, right = right, left ^ ((((right * 0x9E3779B1) ^ key) * 0x85EBCA6B) >> 7) & low
        i = left << half | right
        if i < n:
            return i


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int, n: int) -> tuple[int, ...]:
    return tuple(rng("shuffle", seed, epoch, n).integers(1, 1 << 31, 6).tolist())
