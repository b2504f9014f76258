"""Items as the network reads them, and windows over long texts.

- `sliding_windows`, `centered_window`: parts of a long text; each token counts in the window where
  it has most context.
- `Features`: an item as the network reads it. `Truncation` counts what was left out
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.batch import ExampleGroup, Ids
from bertworks.datasets.schema import Item
from bertworks.text.long_texts import with_marks

ShortIds = NDArray[np.int32]  # half the memory, for long texts
Offsets = NDArray[np.int32]  # [n, 2]
_T = TypeVar("_T")


class Window(NamedTuple):
    """Tokens `start` to `end` of a text, and which of them count as this window's own."""

    start: int
    end: int
    is_own: NDArray[np.bool_]  # [end - start]


class Lazy(Sequence[_T]):
    """A sequence in which each value is made when it is read.

    All windows over a long text would need twenty times its memory. A slice is such a sequence,
    too. make: number -> value.
    """

    def __init__(self, numbers: range, make: Callable[[int], _T]):
        self._numbers = numbers
        self._make = make

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        numbers = self._numbers[number]
        return Lazy(numbers, self._make) if isinstance(numbers, range) else self._make(numbers)


def sliding_windows(count: int, room: int, step: int) -> Lazy[Window]:
    """Windows of at most `room` tokens that begin `step` apart, over `count` tokens.

    A token that stands in several belongs to the one in which the smaller of its two contexts is
    largest, the longer window where that is equal, then the earlier one (google-research/bert
    `run_squad.py`, `_check_is_max_context`).
    """
    step = min(step, room)
    starts = range(0, max(0, count - room) + step, step)

    def window(number: int) -> Window:
        first = max(0, number - room // step)  # of the windows that may have a token in common
        begin = np.array(starts[first : number + room // step + 1])[:, None]
        end = np.minimum(begin + room, count)
        places = np.arange(starts[number], min(starts[number] + room, count))
        score = np.minimum(places - begin, end - 1 - places) + 0.01 * (end - begin)
        score[(places < begin) | (places >= end)] = -1.0
        return Window(
            starts[number], starts[number] + len(places), score.argmax(0) == number - first
        )

    return Lazy(range(len(starts)), window)


def centered_window(first: int, last: int, count: int, room: int) -> tuple[int, int]:
    """Return the `room` tokens, or all if they are fewer, around `first` to `last`.

    They stand in the middle of a row of `count`.
    """
    start = max(0, min(first - max(0, room - (last - first)) // 2, count - room))
    return start, min(count, max(start + room, last))


def tokens_in_span(offsets: Offsets, start: int, end: int) -> Ids:
    """Return which tokens share a character with `start` to `end`.

    They are given by the characters [n, 2] that they cover.
    """
    return np.flatnonzero(
        (offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1])
    )


NO_OFFSETS: Offsets = np.zeros((0, 2), np.int32)


def strip_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without white space around it, which some tokenizers include in a word."""
    span = text[start:end]
    first = int(end) - len(span.lstrip())
    return first, max(first, with_marks(text, int(start) + len(span.rstrip())))


class Features(NamedTuple):
    """An item as the network reads it."""

    item: Item
    # one sequence; one for each choice; or windows over a long text, `Lazy` if several
    unit: ExampleGroup
    # Tokens of the texts that are read, or of the question in front of windows, without special
    # tokens; 0 where nothing is truncated.
    num_read: int = 0
    num_truncated: int = 0  # tokens that are in no sequence
    # those of the unit: together they predict every token or word once, in order
    windows: Sequence[Window] = ()
    begin: int = 0  # the position of a window in its sequence
    # Characters of the text, by token (spans, qa) or by word (tagging of a raw text).
    offsets: Offsets = NO_OFFSETS

    @property
    def words(self) -> Sequence[str]:
        """Tagging, spans: the words or tokens that are predicted."""
        has_offsets = self.item.raw or len(self.offsets)
        text = self.item.texts[0]
        return (
            [text[start:end] for start, end in self.offsets.tolist()]
            if has_offsets
            else self.item.texts
        )


Rows = Sequence[Features]  # of a data set, as the network reads them


@dataclass
class Truncation:
    """How many rows were longer than the model reads, and how much of them was left out.

    rows: the number of all rows.
    truncated: the number of rows that lost their end.
    tokens_read, tokens_left_out: numbers of tokens of the truncated rows, without special tokens.
        Of a question and its context these are the tokens of the question: the context is read in
        windows, to its end.
    """

    rows: int = 0
    truncated: int = 0
    tokens_read: int = 0
    tokens_left_out: int = 0

    def add(self, tokens_read: int, tokens_left_out: int) -> None:
        """Count a row. tokens_read: without special tokens."""
        self.rows += 1
        if tokens_left_out:
            self.truncated += 1
            self.tokens_read += tokens_read
            self.tokens_left_out += tokens_left_out

    def as_dict(self) -> dict[str, float]:
        """Return the counts as in results.

        `truncated` (rows), `truncated_tokens` and `truncated_share` (of the tokens of these rows).
        """
        tokens = self.tokens_read + self.tokens_left_out
        return {
            "truncated": self.truncated,
            "truncated_tokens": self.tokens_left_out,
            "truncated_share": self.tokens_left_out / max(1, tokens),
        }


def format_truncation(result: Mapping[str, Any], what: str = "rows") -> str:
    """Return a sentence that says how many rows were truncated, or "" if none was.

    Args:
        result: `rows`, and the fields of `Truncation.as_dict`.
        what: what the rows are, as a plural noun.
    """
    if not result["truncated"]:
        return ""
    rows = f"{result['truncated']:,} of {result['rows']:,} {what} were truncated"
    return f"{rows}: {result['truncated_share']:.1%} of their tokens were left out"
