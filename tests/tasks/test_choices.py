"""Mistakes of models that choose an answer."""

from bertworks.datasets.schema import Item
from bertworks.tasks.scores import confusion, mistakes
from tests.tasks.test_scores import describe


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
