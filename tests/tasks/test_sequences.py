"""Token sequences of texts: windows as they are published, and tokens of characters."""

import numpy as np
import pytest

from bertworks.tasks.sequences import centered_window, sliding_windows, tokens_in_span


def published(count: int, room: int, step: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Start and length of each window, and for every token its window: run_squad.py,
    `_check_is_max_context`."""
    spans, start = [], 0
    while start < count:
        length = min(count - start, room)
        spans.append((start, length))
        if start + length == count:
            break
        start += min(length, step)
    owners = []
    for place in range(count):
        best, owner = -1.0, -1
        for number, (start, length) in enumerate(spans):
            if start <= place < start + length:
                score = min(place - start, start + length - 1 - place) + 0.01 * length
                if score > best:
                    best, owner = score, number
        owners.append(owner)
    return spans, owners


@pytest.mark.parametrize(
    ("count", "room", "step"),
    [
        (1, 5, 2),
        (5, 5, 2),
        (6, 5, 2),
        (50, 12, 5),
        (50, 12, 6),
        (47, 12, 4),
        (30, 7, 9),
        (400, 100, 33),
        (520, 384, 128),
    ],
)
def test_windows_are_the_published_ones(count: int, room: int, step: int) -> None:
    spans, owners = published(count, room, step)
    found = sliding_windows(count, room, step)
    assert [(window.start, window.end - window.start) for window in found] == spans
    owned = [
        (n, w.start + place)
        for n, w in enumerate(found)
        for place in np.flatnonzero(w.is_own).tolist()
    ]
    assert owned == sorted((owner, place) for place, owner in enumerate(owners))


@pytest.mark.parametrize(
    ("first", "last", "count", "room"),
    [(5, 6, 20, 7), (0, 1, 20, 7), (19, 20, 20, 7), (4, 8, 20, 7), (3, 4, 5, 9), (10, 12, 40, 8)],
)
def test_as_much_on_either_side(first: int, last: int, count: int, room: int) -> None:
    start, end = centered_window(first, last, count, room)
    assert 0 <= start <= first < last <= end <= count
    assert end - start == min(room, count)
    assert abs((first - start) - (end - last)) <= 1 or start == 0 or end == count


def test_tokens_of_characters() -> None:
    offsets = np.array([[0, 0], [0, 3], [3, 5], [6, 9], [9, 9]])
    assert tokens_in_span(offsets, 3, 6).tolist() == [2]
    assert tokens_in_span(offsets, 2, 7).tolist() == [1, 2, 3]
    assert tokens_in_span(offsets, 5, 6).tolist() == []
