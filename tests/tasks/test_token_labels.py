"""Mistakes of models with labels of words."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some

from bertworks.datasets.schema import Item
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import confusion, mistakes, paired
from bertworks.tasks.task import NOTHING
from tests.support.fine import tokenizer
from tests.support.schemes import tagging_per_type
from tests.support.tasks import featurizer
from tests.tasks.test_scores import TAGS, describe, tagged

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
        ("x: Anna Lee", "x: Anna", "wrong borders of 'x'"),
        ("y: Oslo", "x: Oslo", "true 'y', predicted 'x'"),
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


def test_windows_that_ask_nothing_are_not_learned_from() -> None:
    item = Item(("?" * 60, "film"), ("O", "B-x"), "a:1")
    (found,) = featurizer(tokenizer(), "tagging", ("O", "B-x"), 16)([item])
    assert any(not len(one.target.positions) for one in found.unit)
    units = TASKS["tagging"].training_groups(found)
    assert all(len(one.target.positions) for unit in units for one in unit)
    assert sum(len(one.target.positions) for unit in units for one in unit) == 2
