"""Single mistakes: none is lost, none is invented, each stands in its place, and the tables add
up."""

import tracemalloc
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from sklearn.metrics import confusion_matrix

from bertworks.datasets.schema import Item
from bertworks.tasks import token_labels
from bertworks.tasks.scores import confusion, counted, frequent, mistakes, paired, row_sums
from bertworks.tasks.settings import TaskConfig, TaskType
from bertworks.tasks.task import NOTHING
from tests.support.schemes import tagging_per_type

LABELS = ("a", "b", "c")
TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


def describe(task: TaskType, **fields: Any) -> TaskConfig:
    return TaskConfig(task=task, **fields)


def items_of(labels: list[Any], *texts: str) -> list[Item]:
    return [
        Item(texts or (f"text {n}",), label, f"a.csv:{n + 1}", f"q{n}")
        for n, label in enumerate(labels)
    ]


def labelled(given: str, p: float, right: str) -> dict[str, Any]:
    rest = dict.fromkeys(LABELS, 0.1) | {right: 0.05, given: p}
    return {"label": given, "score": p, "scores": rest}


def tagged(tags: list[str]) -> dict[str, Any]:
    return {"tags": tags, "scores": [0.5] * len(tags)}


@settings(deadline=None)  # the first call imports what counts
@given(some.lists(some.tuples(some.sampled_from(LABELS), some.sampled_from(LABELS)), min_size=1))
def test_of_labels_every_wrong_row_is_a_mistake_and_the_table_is_that_of_the_scores(
    pairs: list[tuple[str, str]],
) -> None:
    items = items_of([gold for gold, _ in pairs])
    answers = [labelled(answer, 0.7, gold) for gold, answer in pairs]
    d = describe("classification", labels=LABELS)
    found = mistakes(d, items, answers)
    wrong = [n for n, (gold, answer) in enumerate(pairs) if gold != answer]
    assert sorted(one.where for one in found) == sorted(f"a.csv:{n + 1}" for n in wrong)
    names, counts = confusion(d, items, answers).values()
    assert names == list(LABELS)
    expected = confusion_matrix(
        [gold for gold, _ in pairs], [answer for _, answer in pairs], labels=LABELS
    )
    np.testing.assert_array_equal(counts, expected)


def test_the_surest_mistake_comes_first() -> None:
    items = items_of(["a", "a", "a"])
    answers = [
        {"label": "b", "score": 0.6, "scores": {"a": 0.3, "b": 0.6, "c": 0.1}},
        {"label": "c", "score": 0.9, "scores": {"a": 0.02, "b": 0.08, "c": 0.9}},
        {"label": "b", "score": 0.5, "scores": {"a": 0.4, "b": 0.5, "c": 0.1}},
    ]
    found = mistakes(describe("classification", labels=LABELS), items, answers)
    assert [one.where for one in found] == ["a.csv:2", "a.csv:1", "a.csv:3"]
    assert found[0].figures == {"gold_score": 0.02}
    assert frequent(found) == "'a' taken for 'b' (2), 'a' taken for 'c' (1)"


def test_of_several_labels_the_one_most_wrong_gives_the_kind() -> None:
    items = items_of([("a", "b"), (), ("c",)])
    answers = [
        {"labels": ["a", "c"], "scores": {"a": 0.9, "b": 0.4, "c": 0.95}},
        {"labels": [], "scores": {"a": 0.1, "b": 0.1, "c": 0.1}},
        {"labels": [], "scores": {"a": 0.1, "b": 0.1, "c": 0.05}},
    ]
    found = mistakes(describe("multilabel", labels=LABELS), items, answers)
    assert [(one.where, one.kind) for one in found] == [
        ("a.csv:1", "'c' given wrongly"),
        ("a.csv:3", "'c' missed"),
    ]
    assert found[0].gold == '["a", "b"]'
    assert confusion(describe("multilabel", labels=LABELS), items, answers) == {}


def test_a_missed_label_is_the_worse_the_less_likely_it_was_held() -> None:
    items = items_of([("a",), ("a",)])
    answers = [
        {"labels": ["b"], "scores": {"a": 0.45, "b": 0.6, "c": 0.1}},
        {"labels": ["b"], "scores": {"a": 0.05, "b": 0.6, "c": 0.1}},
    ]
    found = mistakes(describe("multilabel", labels=LABELS), items, answers)
    assert [(one.where, one.kind) for one in found] == [
        ("a.csv:2", "'a' missed"),
        ("a.csv:1", "'b' given wrongly"),
    ]
    assert found[0].score == pytest.approx(0.95)


def test_numbers_are_all_there_the_farthest_first() -> None:
    found = mistakes(
        describe("regression"), items_of([1.0, 2.0, 3.0]), [{"value": x} for x in (1.5, 0.0, 3.0)]
    )
    assert [(one.where, one.score) for one in found] == [
        ("a.csv:2", -2.0),
        ("a.csv:1", 0.5),
        ("a.csv:3", 0.0),
    ]
    assert frequent(found) == ""


def test_choices_are_shown_as_texts() -> None:
    d = describe("choice", num_choices=3)
    items = [
        Item(("prompt", "one", "two", "three"), 2, "a.csv:1"),
        Item(("prompt", "x", "y", "z"), 0, "a.csv:2"),
    ]
    answers = [
        {"choice": 0, "score": 0.6, "scores": [0.6, 0.3, 0.1]},
        {"choice": 0, "score": 1, "scores": [1, 0, 0]},
    ]
    (one,) = mistakes(d, items, answers)
    assert (one.texts, one.gold, one.predicted) == (("prompt",), "three", "one")
    names, counts = confusion(d, items, answers).values()
    assert names == ["1", "2", "3"]
    assert counts == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]


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


ENTITIES = some.lists(
    some.tuples(some.integers(0, 8), some.integers(1, 4), some.sampled_from("xy")).map(
        lambda t: (t[0], t[0] + t[1], t[2])
    )
)


@given(ENTITIES, ENTITIES)
def test_every_entity_is_in_one_pair(gold: list[Any], answered: list[Any]) -> None:
    pairs = paired(gold, answered)
    assert [a for a, _ in pairs if a] == list(dict.fromkeys(gold))
    assert sorted(b for _, b in pairs if b) == sorted(set(answered))
    for a, b in pairs:
        assert a or b
        if a and b:
            assert max(a[0], b[0]) < min(a[1], b[1]), "a pair shares a word"


@settings(deadline=None)  # the first call imports what counts
@given(
    some.lists(
        some.lists(some.tuples(some.sampled_from(TAGS), some.sampled_from(TAGS)), min_size=1),
        min_size=1,
    )
)
def test_the_table_of_entities_has_the_sums_of_the_scores(
    sentences: list[list[tuple[str, str]]],
) -> None:
    golds, answered = ([[pair[n] for pair in one] for one in sentences] for n in (0, 1))
    d = describe("tagging", labels=TAGS)
    items = [Item(("word",) * len(tags), tuple(tags), f"a:{n}") for n, tags in enumerate(golds)]
    answers = [tagged(tags) for tags in answered]
    found = confusion(d, items, answers)
    names, counts = found["labels"], np.array(found["counts"])
    table = tagging_per_type(golds, answered)
    for place, name in enumerate(names[:-1]):
        assert counts[place].sum() == table[name]["support"]
        assert counts[place, place] >= round(table[name]["recall"] * table[name]["support"])
    found = mistakes(d, items, answers)
    right = sum(round(row["recall"] * row["support"]) for row in table.values())
    assert len(found) == counts.sum() - right


def test_entities_are_wrong_in_four_ways() -> None:
    words = ("Anna", "Lee", "saw", "Oslo", "and", "Rome", "today")
    gold = ("B-x", "I-x", "O", "B-y", "O", "B-y", "O")
    given = ["B-x", "O", "O", "B-x", "O", "O", "B-y"]
    found = mistakes(describe("tagging", labels=TAGS), [Item(words, gold, "a:1")], [tagged(given)])
    assert {(one.gold, one.predicted, one.kind) for one in found} == {
        ("x: Anna Lee", "x: Anna", "borders of 'x' wrong"),
        ("y: Oslo", "x: Oslo", "'y' taken for 'x'"),
        ("y: Rome", NOTHING, "'y' missed"),
        (NOTHING, "y: today", "'y' predicted where there is no entity"),
    }


def test_an_entity_is_as_sure_as_its_words_on_average() -> None:
    answer = {"tags": ["B-x", "I-x", "O"], "scores": [0.9, 0.5, 0.1]}
    (one,) = mistakes(
        describe("tagging", labels=TAGS),
        [Item(("Anna", "Lee", "saw"), ("O",) * 3, "a:1")],
        [answer],
    )
    assert one.score == pytest.approx(0.7)


def test_spans_are_shown_by_their_characters() -> None:
    requested = Item(("Anna saw Oslo",), ((0, 4, "x"), (9, 13, "y")), "a:1")
    answer = {"entities": [{"start": 0, "end": 4, "type": "y", "text": "Anna", "score": 0.8}]}
    found = mistakes(describe("spans", labels=TAGS), [requested], [answer])
    assert [(one.gold, one.predicted, one.score) for one in found] == [
        ("x: Anna", "y: Anna", 0.8),
        ("y: Oslo", NOTHING, None),
    ]


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
