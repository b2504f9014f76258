"""Long texts in pieces that a network can read, so that every token is asked once, where it sees most around itself.
Numbers only: neither texts nor tensors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.data.sampling import Ids


class Window(NamedTuple):
    """Tokens `start` to `end` of a text, and which of them count as this window's own."""

    start: int
    end: int
    own: NDArray[np.bool_]  # [end - start]


def cut(count: int, room: int, step: int) -> list[Window]:
    """Windows of at most `room` tokens that begin `step` apart, over `count` tokens. A token that stands in several
    belongs to the one in which the smaller of its two contexts is largest, the longer window where that is equal, then
    the earlier one (google-research/bert `run_squad.py`, `_check_is_max_context`)."""
    starts = [0]
    while starts[-1] + room < count:
        starts.append(starts[-1] + min(step, room))
    ends = [min(start + room, count) for start in starts]
    best, owner = np.full(count, -1.0), np.zeros(count, np.int64)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        places = np.arange(end - start)
        score = np.minimum(places, places[::-1]) + 0.01 * (end - start)
        better = score > best[start:end]
        best[start:end][better] = score[better]
        owner[start:end][better] = number
    return [Window(s, e, owner[s:e] == number) for number, (s, e) in enumerate(zip(starts, ends, strict=True))]


def around(first: int, last: int, count: int, room: int) -> tuple[int, int]:
    """The `room` tokens, or all if they are fewer, of a row of `count` in whose middle `first` to `last` stand."""
    spare = max(0, room - (last - first))
    start = max(0, min(first - spare // 2, count - room))
    return start, min(count, max(start + room, last))


def tokens_of(offsets: NDArray[np.int64], start: int, end: int) -> Ids:
    """Which tokens, given by the characters [n, 2] that they cover, share a character with `start` to `end`."""
    return np.flatnonzero((offsets[:, 0] < end) & (offsets[:, 1] > start) & (offsets[:, 0] < offsets[:, 1]))
