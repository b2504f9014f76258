"""Questions become batches: everybody gets the own answer, whoever else asks; errors are of whom
they belong to; who would have to wait too long is not let in."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from bertworks.errors import BertworksError
from bertworks.serve.batching import Batcher, Compute, InferenceJob, OverloadedError
from bertworks.training.device import THREADS


class Squares:
    """Squares of numbers, in batches that are written down, as soon as `go` is set; of 13 nobody
    knows it."""

    def __init__(self) -> None:
        self.go, self.begun, self.batches = threading.Event(), threading.Event(), list[list[int]]()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.begun.set()
        assert self.go.wait(10)
        self.batches.append(list(numbers))
        if 13 in numbers:
            raise ValueError("13")
        return [number * number for number in numbers]


@pytest.fixture
def squares() -> Squares:
    return Squares()


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = eager(8)
    yield made
    made.threads.shutdown()


def eager(batch_cost: int, **settings: Any) -> Batcher:
    """One that lets everybody in."""
    made = Batcher(batch_cost, patience=100, **settings)
    made.speed = 1e6
    return made


def job(compute: Compute, *units: int, cost: int = 1) -> InferenceJob:
    return InferenceJob(units, [cost] * len(units), compute)


def ask(batcher: Batcher, squares: Squares, *numbers: int, cost: int = 1) -> "Future[list[int]]":
    return batcher.submit(job(squares, *numbers, cost=cost))


def hold(batcher: Batcher, squares: Squares) -> "Future[list[int]]":
    """A first batch that lasts until `go`."""
    first = ask(batcher, squares, 0)
    assert squares.begun.wait(10)
    return first


@given(
    st.lists(st.lists(st.integers(0, 12), min_size=1), max_size=9),
    st.integers(1, 12),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_each_gets_its_own_answer(questions: list[list[int]], size: int, workers: int):
    batcher, squares = eager(size, workers=workers), Squares()
    futures = [ask(batcher, squares, *numbers) for numbers in questions]
    squares.go.set()
    assert [f.result(10) for f in futures] == [[n * n for n in numbers] for numbers in questions]
    assert all(len(batch) <= size for batch in squares.batches)
    assert sum(map(len, squares.batches)) == sum(map(len, questions))
    batcher.threads.shutdown()
    assert (batcher.costs.total(), batcher.loads.total()) == (0, 0)


@given(
    st.lists(st.lists(st.integers(0, 13), min_size=1, max_size=5), max_size=9),
    st.integers(1, 6),
    st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_only_an_unknown_question_gets_an_error(
    questions: list[list[int]], size: int, workers: int
):
    batcher, squares = eager(size, workers=workers), Squares()
    futures = [ask(batcher, squares, *numbers) for numbers in questions]
    squares.go.set()
    for numbers, future in zip(questions, futures, strict=True):
        error = future.exception(10)
        assert str(error) == "13" if 13 in numbers else future.result() == [n * n for n in numbers]
    batcher.threads.shutdown()
    assert (batcher.costs.total(), batcher.loads.total()) == (0, 0)


def test_several_batches_are_computed_at_once_and_know_it(monkeypatch: pytest.MonkeyPatch):
    both, reported = threading.Barrier(2, timeout=10), list[int]()
    monkeypatch.setattr(THREADS, "adapt", reported.append)

    def compute(units: Sequence[int]) -> Sequence[int]:
        both.wait()
        return units

    batcher = eager(1, workers=2)
    futures = [batcher.submit(job(compute, n)) for n in range(4)]
    assert [future.result(10) for future in futures] == [[0], [1], [2], [3]]
    # The third batch may begin when both of the first pair have ended; its partner cannot.
    assert [reported[1], reported[3]] == [2, 2]
    batcher.threads.shutdown()


def test_pieces_of_a_question_that_end_in_another_order_are_put_in_theirs():
    second = threading.Event()

    def compute(units: Sequence[int]) -> Sequence[int]:
        assert second.wait(10) if units == [1] else True
        second.set()
        return units

    batcher = eager(1, workers=2)
    assert batcher.submit(job(compute, 1, 2, 3)).result(10) == [1, 2, 3]
    batcher.threads.shutdown()


def test_questions_that_wait_are_computed_together(batcher: Batcher, squares: Squares):
    futures = [hold(batcher, squares), *(ask(batcher, squares, n) for n in range(1, 9))]
    squares.go.set()
    wait(futures, 10)
    assert squares.batches == [[0], [1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_method_is_one_way_to_compute(batcher: Batcher, squares: Squares):
    """`squares.__call__`, made twice, is two objects."""
    futures = [
        hold(batcher, squares),
        *(batcher.submit(job(squares.__call__, n)) for n in range(1, 9)),
    ]
    squares.go.set()
    wait(futures, 10)
    assert squares.batches == [[0], [1, 2, 3, 4, 5, 6, 7, 8]]


def test_a_small_question_does_not_wait_for_a_large_one(batcher: Batcher, squares: Squares):
    futures = [hold(batcher, squares), ask(batcher, squares, *[2] * 100), ask(batcher, squares, 3)]
    squares.go.set()
    wait(futures, 10)
    assert 3 in squares.batches[1]
    assert futures[1].result() == [4] * 100


def test_an_error_belongs_to_one(batcher: Batcher, squares: Squares):
    futures = [
        hold(batcher, squares),
        ask(batcher, squares, 1),
        ask(batcher, squares, 13),
        ask(batcher, squares, 2),
    ]
    squares.go.set()
    assert (futures[1].result(10), futures[3].result(10)) == ([1], [4])
    with pytest.raises(ValueError, match="13"):
        futures[2].result(10)
    assert ask(batcher, squares, 5).result(10) == [25]
    assert batcher.costs.total() == 0


def test_what_is_computed_in_another_way_is_another_batch(batcher: Batcher, squares: Squares):
    other = Squares()
    other.go.set()
    futures = [
        hold(batcher, squares),
        ask(batcher, squares, 1),
        ask(batcher, other, 2),
        ask(batcher, squares, 3),
    ]
    squares.go.set()
    wait(futures, 10)
    assert (squares.batches, other.batches) == ([[0], [1, 3]], [[2]])


def test_who_would_wait_too_long_is_not_let_in(squares: Squares):
    batcher = Batcher(4, patience=1, speed=4)
    futures = [hold(batcher, squares), ask(batcher, squares, *[1] * 4)]
    assert batcher.overloaded(job(squares, 1))
    with pytest.raises(OverloadedError) as raised:
        ask(batcher, squares, 1)
    assert int(raised.value.headers["retry-after"]) >= 1
    squares.go.set()
    wait(futures, 10)
    assert ask(batcher, squares, 1).result(10) == [1]
    batcher.threads.shutdown()


def test_a_large_question_keeps_small_ones_not_out_but_large_ones(squares: Squares):
    batcher = Batcher(4, patience=1, speed=4)
    batcher.speed = 6.0
    futures = [hold(batcher, squares), ask(batcher, squares, *[1] * 40), ask(batcher, squares, 2)]
    with pytest.raises(OverloadedError):
        ask(batcher, squares, *[1] * 5)
    squares.go.set()
    wait(futures, 10)
    batcher.threads.shutdown()
    assert 2 in squares.batches[1]
    assert (batcher.costs.total(), batcher.loads.total()) == (0, 0)


def test_a_panic_is_an_error_of_one(batcher: Batcher):
    class Panic(BaseException):
        pass

    def panic(units: Sequence[int]) -> list[int]:
        raise Panic

    with pytest.raises(RuntimeError, match="Panic"):
        batcher.submit(job(panic, 1)).result(10)
    with pytest.raises(RuntimeError, match="0 answers"):
        batcher.submit(job(lambda units: [], 1)).result(10)
    batcher.threads.shutdown()
    assert (batcher.costs.total(), batcher.loads.total()) == (0, 0)


def test_closed_it_answers_what_it_has(squares: Squares):
    batcher = Batcher(4, patience=100)
    futures = [hold(batcher, squares), ask(batcher, squares, 5)]
    batcher.threads.shutdown(wait=False)
    with pytest.raises(BertworksError):
        ask(batcher, squares, 1)
    squares.go.set()
    assert [f.result(10) for f in futures] == [[0], [25]]


def test_who_went_away_disturbs_no_other(batcher: Batcher, squares: Squares):
    futures = [hold(batcher, squares), ask(batcher, squares, 1), ask(batcher, squares, 2)]
    futures[1].cancel()
    assert (batcher.costs.total(), batcher.loads.total()) == (2, 2)  # there is room at once
    futures[0].cancel()  # which is computed already
    assert (batcher.costs.total(), batcher.loads.total()) == (2, 1)
    squares.go.set()
    assert futures[2].result(10) == [4]
    assert squares.batches == [[0], [2]]
    assert ask(batcher, squares, 3).result(10) == [9]


def test_what_is_computed_no_more_is_forgotten(batcher: Batcher, squares: Squares):
    """Each request may bring a function of its own."""
    futures = [hold(batcher, squares)]
    others = [Squares() for _ in range(3)]
    for other in others:
        other.go.set()
        futures.append(ask(batcher, other, 2))
    assert len(batcher._waiting) == 3
    futures.pop().cancel()
    assert len(batcher._waiting) == 2
    squares.go.set()
    assert [future.result(10) for future in futures] == [[0], [4], [4]]
    assert not batcher._waiting
