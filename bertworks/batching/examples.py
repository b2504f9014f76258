"""What a network reads, as arrays: sequences with their targets. No torch.

- `Example`: a sequence that a network reads, with its targets
- `add_special_tokens`: token ids -> a sequence in the template of a tokenizer; `example_of`: the
  encoding of a text -> an example
- `Lazy`: examples that are made when they are read
- `longest_sequence`, `num_tokens`: sizes of groups of examples
- `keyed_rng`, `shuffled_index`, `sample_rows`: random numbers and orders that are functions of a
  seed
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bertworks.text.tokenizer import Encoding, Template, Tokenizer

_Row = TypeVar("_Row")
Ids = NDArray[np.int64]  # without a vocabulary of the type `text.tokenizer.SPELLED`


class Target(NamedTuple):
    """What an objective predicts from one sequence."""

    positions: Ids  # int64 [m], ascending: the tokens from which it is predicted
    labels: NDArray[Any]  # [m], or [m, number of labels]; spans: [2], start and end


class LanePlace(NamedTuple):
    """Where a sequence stands in a text that is read in lanes (`SamplingConfig.lanes`)."""

    lane: int
    num_before: int  # tokens of the lane before this sequence


class Example(NamedTuple):
    """A sequence that a network reads, and what is predicted from it, by name."""

    input_ids: Ids  # int64 [n]
    token_type_ids: Ids  # int64 [n]
    targets: Mapping[str, Target]
    # The number of this window among those that have one vector together; 0 begins another vector.
    window: int = 0
    place: LanePlace | None = None  # None: the text is not read in lanes

    @property
    def target(self) -> Target:
        """The target of a task: the first one.

        A teacher may have added another.
        """
        return next(iter(self.targets.values()))


def example_of(tokenizer: Tokenizer, encoding: Encoding) -> Example:
    """Return the encoding of a text as a sequence without targets."""
    return Example(
        tokenizer.array(encoding.ids), np.array(encoding.type_ids, np.int64), MappingProxyType({})
    )


class TokenSequence(NamedTuple):
    """A sequence with its special tokens, before tokens are masked."""

    input_ids: Ids  # int64 [n]
    token_type_ids: Ids  # int64 [n]
    special: NDArray[np.bool_]  # [n]: special tokens, which are never masked
    targets: Mapping[str, Target]  # those that the format gives
    next_id: int | None = None  # the token behind the sequence, where it is known


def keyed_rng(purpose: str, *address: int) -> Generator:
    """Return the random numbers of an address.

    The purpose is part of it, so that no two purposes share numbers.
    """
    return np.random.default_rng((int.from_bytes(purpose.encode(), "little"), *address))


def add_special_tokens(
    segments: Collection[NDArray[np.integer]],
    template: Template,
    targets: Mapping[str, Target] = MappingProxyType({}),
    one_type: bool = False,
) -> TokenSequence:
    """Return segments with the special tokens of a template around and between them.

    The segments are [tokens] each, the result is [all tokens]. The number of its segment is the
    token type of a token. With `one_type` they are pieces of one text: each ends with the suffix,
    and the token types are all 0.
    """
    spelled = [segment.dtype for segment in segments if segment.dtype.kind == "S"]
    dtype = spelled[0] if spelled else np.dtype(np.int64)
    ends = [template.suffix if one_type else template.between] * (len(segments) - 1) + [
        template.suffix
    ]
    # Special tokens and segments take turns.
    pieces: list[Any] = [template.prefix, *chain.from_iterable(zip(segments, ends, strict=True))]
    lengths = [len(piece) for piece in pieces]
    numbers = np.arange(len(pieces))
    types = np.zeros_like(numbers) if one_type else np.maximum(numbers - 1, 0) // 2
    input_ids = np.concatenate([np.asarray(piece, dtype) for piece in pieces])
    types_of_tokens = types.repeat(lengths)
    if template.last_type:
        types_of_tokens[-1] = template.last_type
    return TokenSequence(input_ids, types_of_tokens, (numbers % 2 == 0).repeat(lengths), targets)


def shuffled_index(i: int, n: int, seed: int, epoch: int) -> int:
    """Return the position of i in a random permutation of n numbers that is not stored.

    A Feistel network permutes the numbers below a power of four, and is applied again to a result
    of n or more.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left = i >> half
        right = i & low
        for key in _round_keys(seed, epoch, n):
            left, right = right, left ^ ((((right * 0x9E3779B1) ^ key) * 0x85EBCA6B) >> 7) & low
        i = left << half | right
        if i < n:
            return i


def sample_rows(rows: Sequence[_Row], count: int) -> Sequence[_Row]:
    """Return a fixed sample of rows, which is a part of every larger sample.

    Args:
        count: the size of the sample; 0, or at least the number of rows: all rows in their order.
    """
    if not 0 < count < len(rows):
        return rows
    return [rows[shuffled_index(i, len(rows), 0, 0)] for i in range(count)]


@lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int, n: int) -> tuple[int, ...]:
    return tuple(keyed_rng("shuffle", seed, epoch, n).integers(1, 1 << 31, 6).tolist())


class Lazy(Sequence[_Row]):
    """A sequence in which each value is made when it is read.

    All windows over a long text would need twenty times its memory. A slice is such a sequence,
    too.

    make: number -> value.
    length: the number of tokens of each value, if all have the same; 0: they are counted.
    """

    def __init__(self, numbers: range, make: Callable[[int], _Row], length: int = 0):
        self._numbers = numbers
        self._make = make
        self.length = length

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        numbers = self._numbers[number]
        if isinstance(numbers, range):
            return Lazy(numbers, self._make, self.length)
        return self._make(numbers)


# sequences that are evaluated together: one, the choices of one item, or the windows of one text
ExampleGroup = Sequence[Example]


def longest_sequence(group: ExampleGroup) -> int:
    """Tokens of the longest sequence of a group."""
    return max(_lengths(group))


def num_tokens(groups: Sequence[ExampleGroup]) -> int:
    """Return the number of tokens of all groups."""
    return sum(length for group in groups for length in _lengths(group))


def _lengths(group: ExampleGroup) -> Iterable[int]:
    """Return the number of tokens of each sequence, without making lazy ones."""
    if isinstance(group, Lazy) and group.length:
        return [group.length] * len(group)
    return (len(example.input_ids) for example in group)
