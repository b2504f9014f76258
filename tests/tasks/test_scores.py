"""Single mistakes: none is lost, none is invented, each stands in its place, and the tables add
up."""

import tracemalloc
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as some
from sklearn.metrics import accuracy_score, f1_score

from bertworks.datasets.schema import Item
from bertworks.tasks import token_labels
from bertworks.tasks.scores import confusion, counted, mistakes, row_sums, task_results
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig, TaskType

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


def describe(task: TaskType, **fields: Any) -> TaskConfig:
    return TaskConfig(task=task, **fields)


def tagged(tags: list[str]) -> dict[str, Any]:
    return {"tags": tags, "scores": [0.5] * len(tags)}


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


def test_results_are_those_of_scikit_learn() -> None:
    d = describe("classification", labels=("a", "b", "c"))
    gold = ["a", "a", "b", "b", "b", "c"]
    predicted = ["a", "b", "b", "b", "b", "b"]
    rows = [Features(Item((f"text {n}",), label, f"a.csv:{n}"), ()) for n, label in enumerate(gold)]
    answers = [{"label": label, "score": 0.7, "scores": {label: 0.7}} for label in predicted]
    results, wrong = task_results(d, rows, answers)
    figures = results["figures"]
    assert figures["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert figures["macro_f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert results["intervals"].keys() == figures.keys()
    assert all(low <= figures[name] <= high for name, (low, high) in results["intervals"].items())
    assert (results["task"], results["rows"], results["positive"]) == ("classification", 6, None)
    assert {name: row["support"] for name, row in results["table"].items()} == Counter(gold)
    assert results["never_found"] == {"c": 1}
    assert [one.where for one in wrong] == ["a.csv:1", "a.csv:5"]
    assert results["mistakes"] == 2
