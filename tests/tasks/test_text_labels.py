"""Mistakes of models with labels of texts, and of those that choose an answer."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from sklearn.metrics import confusion_matrix

from bertworks.datasets.schema import Item
from bertworks.tasks.scores import confusion, frequent, mistakes
from tests.support.fine import tokenizer
from tests.support.tasks import featurizer
from tests.tasks.test_scores import describe

LABELS = ("a", "b", "c")


def items_of(labels: list[Any], *texts: str) -> list[Item]:
    return [
        Item(texts or (f"text {n}",), label, f"a.csv:{n + 1}", f"q{n}")
        for n, label in enumerate(labels)
    ]


def labelled(given: str, p: float, right: str) -> dict[str, Any]:
    rest = dict.fromkeys(LABELS, 0.1) | {right: 0.05, given: p}
    return {"label": given, "score": p, "scores": rest}


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
    assert frequent(found) == "true 'a', predicted 'b' (2); true 'a', predicted 'c' (1)"


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


def test_texts_lose_their_end_and_a_pair_that_of_the_longer_text() -> None:
    t = tokenizer()
    read = featurizer(t, "classification", ("neg", "pos"), 12)
    long = "the film was a story of men and dogs in this town"
    ids = t.encode(long).ids[1:-1]
    cls, sep = (t.encode(long).ids[place] for place in (0, -1))
    single, pair = read([Item((long,), "pos", "a:1"), Item(("good film", long), "neg", "a:2")])
    (example,) = single.unit
    assert example.input_ids.tolist() == [cls, *ids[:10], sep]
    assert (example.target.positions.tolist(), example.target.labels.tolist()) == ([0], [1])
    assert single.num_truncated == len(ids) - 10
    (example,) = pair.unit
    good = t.encode("good film").ids[1:-1]
    assert example.input_ids.tolist() == [cls, *good, sep, *ids[: 9 - len(good)], sep]
    assert example.target.labels.tolist() == [0]
    assert pair.num_truncated == len(good) + len(ids) - 9
    (end,) = replace(read, keep_end=True)([Item((long,), "pos", "a:1")])
    assert end.unit[0].input_ids.tolist() == [cls, *ids[-10:], sep]


def test_texts_that_are_read_apart_have_one_target_and_each_choice_has_its_own() -> None:
    t = tokenizer()
    texts = ("good film", "bad film", "sad film")
    apart = featurizer(t, "regression", vectors="pair")
    ((_, unit, *_),) = apart([Item(texts[:2], 2.5, "a:1")])
    assert [one.input_ids.tolist() for one in unit] == [t.encode(text).ids for text in texts[:2]]
    assert [one.target.labels.tolist() for one in unit] == [[2.5], []]
    ((_, unit, *_),) = featurizer(t, "choice")([Item(texts, 1, "a:2")])
    assert [one.input_ids.tolist() for one in unit] == [
        t.encode(texts[0]).ids + t.encode(choice).ids[1:] for choice in texts[1:]
    ]
    assert [one.target.labels.tolist() for one in unit] == [[0.0], [1.0]]
