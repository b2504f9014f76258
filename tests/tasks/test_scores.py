"""Single mistakes: none is lost, none is invented, each stands in its place, and the tables add
up."""

import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as some

from bertworks.datasets.schema import Item
from bertworks.tasks import token_labels
from bertworks.tasks.scores import confusion, counted, mistakes, row_sums
from bertworks.tasks.settings import TaskConfig, TaskType

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


def describe(task: TaskType, **fields: Any) -> TaskConfig:
    return TaskConfig(task=task, **fields)


def tagged(tags: list[str]) -> dict[str, Any]:
    return {"tags": tags, "scores": [0.5] * len(tags)}


@pytest.mark.parametrize(
    ("golds", "answer", "kind", "f1"),
    [
        (["in Paris", "Paris"], "Paris", None, 1.0),
        (["the Paris"], "paris.", None, 1.0),
        (["in Paris"], "Paris now", "partly right", 0.5),
        (["Paris"], "Oslo", "quite another answer", 0.0),
        (["Paris"], "", "left without an answer", 0.0),
        ([], "Oslo", "answered, but there is no answer", 0.0),
        ([], "", None, 1.0),
    ],
)
def test_answers_are_wrong_in_five_ways(
    golds: list[str], answer: str, kind: str | None, f1: float
) -> None:
    requested = Item(
        ("who ?", "a context"), tuple((0, gold) for gold in golds), "q.json: question 1", "1"
    )
    found = mistakes(describe("qa"), [requested], [{"answer": answer, "score": 0.5}])
    assert [(one.kind, one.figures["f1"], one.texts) for one in found] == (
        [(kind, f1, ("who ?",))] if kind else []
    )


def test_of_answers_equally_wrong_the_surer_one_comes_first() -> None:
    requested = [
        Item(("who ?", "a context"), ((0, "Paris"),), f"q.json: question {n}") for n in range(3)
    ]
    answers = [
        {"answer": "Oslo", "score": 0.2},
        {"answer": "Lima", "score": 0.9},
        {"answer": "in Paris", "score": 0.9},
    ]
    found = mistakes(describe("qa"), requested, answers)
    assert [one.where[-1] for one in found] == ["1", "2", "0"]


def test_counts_in_words() -> None:
    assert counted(1, 2000) == "1 mistake in 2,000 rows"
    assert counted(1200, 2000) == "1,200 mistakes in 2,000 rows"


@settings(deadline=None, max_examples=30)
@given(
    some.lists(
        some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4)), max_size=20), min_size=1
    ),
    some.sampled_from(
        [(TAGS, False), (("NOUN", "O", "VERB", "X", "Y"), False), (("O", "x", "y", "z", "v"), True)]
    ),
)
def test_a_row_in_parts_has_the_same_figures(
    rows: list[list[tuple[int, int]]], tags: tuple[tuple[str, ...], bool]
) -> None:
    d = describe("tagging", labels=tags[0], bare_types=tags[1])
    items = [Item(("w",) * len(row), tuple(d.labels[n] for n, _ in row), "a:1") for row in rows]
    answers = [tagged([d.labels[n] for _, n in row]) for row in rows]

    def figures() -> Any:
        counts = {name: sums.rows.tolist() for name, sums in row_sums(d, items, answers).items()}
        return counts, sorted(map(repr, mistakes(d, items, answers))), confusion(d, items, answers)

    whole = figures()
    with patch.object(token_labels, "COUNTED_AT_ONCE", 2):
        assert figures() == whole


def long_row(
    words: int, gold: str, answer: str
) -> tuple[TaskConfig, list[Item], list[dict[str, Any]]]:
    """A word in two is an entity, by the gold tags and by the answer."""
    tags = [[tag, "O"] * (words // 2) for tag in (gold, answer)]
    item = Item(("word",) * words, tuple(tags[0]), "a:1")
    return describe("tagging", labels=("B-x", "B-y", "O")), [item], [tagged(tags[1])]


def test_the_entities_of_a_long_row_take_little_memory() -> None:
    row = long_row(100_000, "B-x", "B-x")
    row_sums(*row)
    for measure in (row_sums, confusion):
        tracemalloc.start()
        measure(*row)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 8e6, f"{measure.__name__}: those of the whole row take twice as much"


@pytest.mark.slow
def test_each_mistake_of_a_long_row_shows_the_words_around_it() -> None:
    """The whole text in each would be 10 GB, and pairs found by comparing all with all would take
    minutes."""
    d, items, answers = long_row(40_000, "B-x", "B-y")
    found = mistakes(d, items, answers)
    assert len(found) == 20_000
    assert {one.kind for one in found} == {"'x' taken for 'y'"}
    assert max(len(one.texts[0]) for one in found) == len("... ... ") + len("word " * 41) - 1
    short = mistakes(*long_row(1000, "B-x", "B-y"))
    assert short[0].texts == (" ".join(["word"] * 1000),)
