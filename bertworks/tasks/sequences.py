"""Items as the network reads them, and windows over long texts.

- `sliding_windows`, `centered_window`: parts of a long text; each token counts in the window where
  it has most context.
- `read_texts`: a text or a pair -> a sequence, or windows that have one vector together;
  `num_tokens_read`: how much of a text that is at most
- `Features`: an item as the network reads it. `Truncation` counts what was left out
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.batching.examples import Example, ExampleGroup, Ids, Lazy, Target, add_special_tokens
from bertworks.datasets.schema import Item
from bertworks.tasks.settings import MOST_WINDOWS
from bertworks.text.long_texts import with_marks
from bertworks.text.tokenizer import Template, truncated_lengths

Segments = Sequence[tuple[Ids, int]]  # the ids of texts, and how many there are before truncation
ShortIds = NDArray[np.int32]  # half the memory, for long texts
Offsets = NDArray[np.int32]  # [n, 2]


class Window(NamedTuple):
    """Tokens `start` to `end` of a text, and which of them count as this window's own."""

    start: int
    end: int
    is_own: NDArray[np.bool_]  # [end - start]


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


def _half(room: int) -> int:
    """Return by how many tokens windows of `room` tokens advance: they overlap by half."""
    return max(1, room // 2)


def window_starts(count: int, room: int, most: int) -> list[int]:
    """Return where the windows of `room` tokens over `count` tokens begin.

    They overlap by half, and there are at most `most`: the first ones. The last one of all is moved
    back, so that it is full and ends with the text.
    """
    needed = 1 + max(0, math.ceil((count - room) / _half(room)))
    return [min(number * _half(room), max(0, count - room)) for number in range(min(most, needed))]


def num_tokens_read(max_length: int, windows: int) -> int:
    """Return how many tokens of a text are read at most, with room for the special tokens."""
    return max_length + max(0, windows - 1) * _half(max_length)


def windows_for(tokens: int, max_length: int, num_special: int) -> int:
    """Return how many windows a text of `tokens` tokens needs, but at most MOST_WINDOWS.

    Args:
        max_length, num_special: of each window, all tokens and the special ones among them.
    """
    return len(window_starts(tokens, max_length - num_special, MOST_WINDOWS))


class ReadTexts(NamedTuple):
    """A text or a pair as the network reads it: one sequence, or several windows.

    num_read, num_truncated: tokens without special tokens, each counted once.
    begin: the position of a window in its sequence.
    size: its tokens.
    starts: where the windows begin in their text.
    """

    unit: ExampleGroup
    num_read: int
    num_truncated: int
    begin: int
    size: int
    starts: Sequence[int]

    def places(self) -> list[Ids]:
        """Return the position of each token of the windows in one sequence of all tokens.

        int64 [tokens of the window], for each window. What stands in front of all windows or behind
        them is there once.
        """
        places_of_windows = []
        for example, start in zip(self.unit, self.starts, strict=True):
            places = np.arange(len(example.input_ids))
            places[self.begin :] += start
            places[self.begin + self.size :] += self.starts[-1] - start
            places_of_windows.append(places)
        return places_of_windows


def read_texts(
    segments: Segments,
    template: Template,
    max_length: int,
    windows: int = 0,
    *,
    target: Target | None = None,
    keep_end: bool = False,
) -> ReadTexts:
    """Return what the network reads of texts that are one sequence, if they are short enough.

    Otherwise the longer text is read in windows of which each is a sequence with the special
    tokens, behind or in front of the shorter text, which is whole or fills half of each window.
    They have one vector together, see `Batch.mean_of_windows`. Of a text that is longer than all
    windows the first ones are read.

    Args:
        segments: one text or two. Of each, at least the first `num_tokens_read` ids, or as many
            last ones with `keep_end`.
        windows: the largest number of windows; with 0 or 1 the texts are truncated.
        target: what is predicted, from the first window; None: nothing.
        keep_end: what is too long loses its beginning and not its end.
    """
    counts = [count for _, count in segments]
    room = max_length - template.num_special(len(segments))
    lengths = [*truncated_lengths(counts[0], sum(counts[1:]), room)][: len(segments)]
    longer = int(len(counts) == 2 and counts[1] >= counts[0])
    has_windows = windows > 1 and sum(counts) > room
    starts = [0]
    if has_windows:
        room = lengths[longer]
        starts = window_starts(counts[longer], room, windows)
        lengths[longer] = starts[-1] + room
    pieces = [
        ids[len(ids) - length :] if keep_end else ids[:length]
        for (ids, _), length in zip(segments, lengths, strict=True)
    ]
    if has_windows:  # half of the memory, and none for what is not read
        pieces = [piece if piece.dtype.kind == "S" else piece.astype(np.int32) for piece in pieces]
    first_targets = {} if target is None else {"task": target}
    other_targets = {
        name: Target(positions[:0], labels[:0])
        for name, (positions, labels) in first_targets.items()
    }

    def example(number: int) -> Example:
        parts = [*pieces]
        if has_windows:
            parts[longer] = pieces[longer][starts[number] : starts[number] + room]
        sequence = add_special_tokens(parts, template)
        targets = other_targets if number else first_targets
        return Example(sequence.input_ids, sequence.token_type_ids, targets, number)

    unit: ExampleGroup = [example(0)]
    if has_windows:
        unit = Lazy(range(len(starts)), example, len(unit[0].input_ids))
    begin = len(template.prefix) + longer * (lengths[0] + len(template.between))
    size = room if has_windows else lengths[longer]
    return ReadTexts(unit, sum(lengths), sum(counts) - sum(lengths), begin, size, starts)


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
    # one sequence; one for each choice; or windows over a long text, mostly `Lazy` if several
    unit: ExampleGroup
    # Tokens of the texts that are read, or of the question in front of windows, without special
    # tokens; 0 where nothing is truncated.
    num_read: int = 0
    num_truncated: int = 0  # tokens that are in no sequence
    # those of the unit, if together they predict every token or word once, in order
    windows: Sequence[Window] = ()
    begin: int = 0  # the position of a window in its sequence
    # Characters of the text, by token (spans, qa) or by word (tagging of a raw text).
    offsets: Offsets = NO_OFFSETS
    # of the unit, if it has the mean of the vectors of several windows: of a pair that is read
    # apart, both texts
    parts: Sequence[ReadTexts] = ()

    @property
    def has_mean(self) -> bool:
        """Whether the vector of a text is the mean of those of several windows."""
        return bool(self.parts)

    @property
    def has_windows(self) -> bool:
        """Whether a text is longer than one window, and is read in several."""
        return len(self.windows) > 1 or self.has_mean

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
    in_windows: the number of rows that have the mean of the vectors of several windows.
    """

    rows: int = 0
    truncated: int = 0
    tokens_read: int = 0
    tokens_left_out: int = 0
    in_windows: int = 0

    def add(self, tokens_read: int, tokens_left_out: int, *, in_windows: bool = False) -> None:
        """Count a row. tokens_read: without special tokens."""
        self.rows += 1
        self.in_windows += in_windows
        if tokens_left_out:
            self.truncated += 1
            self.tokens_read += tokens_read
            self.tokens_left_out += tokens_left_out

    def as_dict(self) -> dict[str, float]:
        """Return the counts as in results.

        `truncated` (rows), `truncated_tokens` and `truncated_share` (of the tokens of these rows);
        and `in_windows` (rows), if there are any.
        """
        tokens = self.tokens_read + self.tokens_left_out
        counts: dict[str, float] = {
            "truncated": self.truncated,
            "truncated_tokens": self.tokens_left_out,
            "truncated_share": self.tokens_left_out / max(1, tokens),
        }
        return counts | ({"in_windows": self.in_windows} if self.in_windows else {})

    def as_counts(self) -> tuple[int, ...]:
        """Return the numbers that `format_counts` describes, and that can be added to others."""
        return self.truncated, self.tokens_read, self.tokens_left_out, self.in_windows


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


def format_counts(counts: Sequence[int]) -> str:
    """Return sentences about the truncated texts, and those in windows, of many portions.

    They are "" if there are none.

    Args:
        counts: the sums of `Truncation.as_counts`.
    """
    truncated, tokens_read, tokens_left_out, in_windows = counts
    sentences = []
    if truncated:
        share = tokens_left_out / max(1, tokens_read + tokens_left_out)
        sentences.append(
            f"{truncated:,} texts were truncated: {share:.1%} of their tokens were left out"
        )
    if in_windows:
        sentences.append(f"{in_windows:,} texts were read in several windows")
    return "; ".join(sentences)


def format_windows(result: Mapping[str, Any], what: str = "rows") -> str:
    """Return a sentence that says how many rows were read in windows, or "" if none was.

    Args: see `format_truncation`.
    """
    if not result.get("in_windows"):
        return ""
    rows = f"{result['in_windows']:,} of {result['rows']:,} {what}"
    return f"{rows} are longer than one window, and were read in several"
