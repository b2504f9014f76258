"""Token sequences of texts: windows as they are published, and tokens of characters."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as some

from bertworks.batching.examples import Example, Ids, Target
from bertworks.tasks.sequences import (
    Truncation,
    centered_window,
    format_counts,
    format_windows,
    num_tokens_read,
    read_texts,
    sliding_windows,
    tokens_in_span,
    window_starts,
)
from bertworks.tasks.settings import MOST_WINDOWS
from bertworks.text.tokenizer import Template


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


@given(
    count=some.integers(0, 400),
    room=some.integers(1, 60),
    most=some.integers(1, MOST_WINDOWS),
)
def test_windows_with_one_vector_are_full_and_overlap_by_half(
    count: int, room: int, most: int
) -> None:
    starts = window_starts(count, room, most)
    ends = [min(start + room, count) for start in starts]
    step = max(1, room // 2)
    assert starts[0] == 0
    assert 1 <= len(starts) <= most
    if count > room:
        assert all(end - start == room for start, end in zip(starts, ends, strict=True))
    assert all(second - first == step for first, second in pairwise(starts[:-1]))
    assert all(0 < second - first <= step for first, second in pairwise(starts[-2:]))
    if len(starts) < most:
        assert ends[-1] == count
    # one window fewer would not cover the text
    assert len(starts) == 1 or starts[-2] + room < count


def ids_of(unit: Sequence[Example]) -> list[list[int]]:
    return [example.input_ids.tolist() for example in unit]


TEMPLATE = Template(prefix=(1,), between=(2, 2), suffix=(3,))
TARGET = Target(np.zeros(1, np.int64), np.array([7]))


def segment(first: int, count: int, most: int = 1000) -> tuple[Ids, int]:
    return np.arange(first, first + min(count, most)), count


def test_a_text_is_read_in_windows_with_one_target() -> None:
    read = read_texts([segment(100, 17)], TEMPLATE, 8, 4, target=TARGET)
    row = [*range(100, 117)]
    assert ids_of(read.unit) == [[1, *row[start : start + 6], 3] for start in (0, 3, 6, 9)]
    assert (read.num_read, read.num_truncated) == (15, 2)
    assert [example.window for example in read.unit] == [0, 1, 2, 3]
    assert [example.target.labels.tolist() for example in read.unit] == [[7], [], [], []]
    assert [example.target.positions.tolist() for example in read.unit] == [[0], [], [], []]
    # all of it: the last window is moved back
    whole = read_texts([segment(100, 17)], TEMPLATE, 8, 5, target=TARGET)
    assert ids_of(whole.unit) == [[1, *row[start : start + 6], 3] for start in (0, 3, 6, 9, 11)]
    assert (whole.num_read, whole.num_truncated) == (17, 0)
    end = read_texts([(np.arange(102, 117), 17)], TEMPLATE, 8, 4, keep_end=True)
    assert ids_of(end.unit) == [[1, *row[start : start + 6], 3] for start in (2, 5, 8, 11)]
    assert (end.num_read, end.num_truncated) == (15, 2)
    assert num_tokens_read(8, 4) >= 15


@pytest.mark.parametrize("windows", [0, 1, 3])
def test_a_text_that_is_not_longer_is_read_as_ever(windows: int) -> None:
    (example,) = read_texts([segment(100, 6)], TEMPLATE, 8, windows, target=TARGET).unit
    assert example.input_ids.tolist() == [1, *range(100, 106), 3]
    assert example.input_ids.dtype == np.int64
    assert example.window == 0


@pytest.mark.parametrize("longer", [0, 1])
def test_the_longer_text_of_a_pair_is_read_in_windows(longer: int) -> None:
    segments = [segment(100, 3), segment(200, 3)]
    segments[longer] = segment(300, 20)
    read = read_texts(segments, TEMPLATE, 13, 3, target=TARGET)
    short = [*range(200, 203)] if longer == 0 else [*range(100, 103)]
    expected = []
    for start in (0, 3, 6):
        parts = [short, short]
        parts[longer] = [*range(300 + start, 306 + start)]
        expected.append([1, *parts[0], 2, 2, *parts[1], 3])
    assert ids_of(read.unit) == expected
    first = 6 if longer == 0 else 3
    types = [0] * (1 + first + 2) + [1] * (9 - first + 1)
    assert [example.token_type_ids.tolist() for example in read.unit] == [types] * 3
    assert (read.num_read, read.num_truncated) == (3 + 12, 8)
    positions = read.places()
    joined = np.zeros(max(map(max, positions)) + 1, int)
    for places, example in zip(positions, read.unit, strict=True):
        joined[places] = example.input_ids
    whole = [short, short]
    whole[longer] = [*range(300, 312)]
    assert joined.tolist() == [1, *whole[0], 2, 2, *whole[1], 3]


def test_of_two_long_texts_the_shorter_one_fills_half_of_each_window() -> None:
    read = read_texts([segment(100, 30), segment(200, 20)], TEMPLATE, 13, 2)
    # 9 tokens beside the special ones
    assert ids_of(read.unit) == [
        [1, *range(100 + start, 105 + start), 2, 2, *range(200, 204), 3] for start in (0, 2)
    ]
    assert (read.num_read, read.num_truncated) == (7 + 4, 23 + 16)


def test_texts_are_counted() -> None:
    counts = Truncation()
    counts.add(10, 0)
    assert format_counts(counts.as_counts()) == ""
    assert counts.as_dict().keys() == {"truncated", "truncated_tokens", "truncated_share"}
    counts.add(30, 10, in_windows=True)
    counts.add(30, 0, in_windows=True)
    assert format_counts(counts.as_counts()) == (
        "1 texts were truncated: 25.0% of their tokens were left out; 2 texts were read in several "
        "windows"
    )
    result = {"rows": 3, **counts.as_dict()}
    assert format_windows(result) == (
        "2 of 3 rows are longer than one window, and were read in several"
    )
