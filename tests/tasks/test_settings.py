"""What the settings of a fine-tuned model say about its logits, vectors and labels."""

from typing import Any

import pytest

from bertworks.tasks.settings import TaskConfig


@pytest.mark.parametrize(
    ("task", "temperature", "divides"),
    [("classification", 2.0, True), ("classification", 1.0, False), ("regression", 2.0, False)],
)
def test_only_probabilities_are_divided_by_a_temperature(
    task: Any, temperature: float, divides: bool
) -> None:
    assert TaskConfig(task=task, temperature=temperature).divides_logits is divides


@pytest.mark.parametrize(
    ("vectors", "means"), [("pooler", False), ("mean", True), ("pair", True), ("cosine", True)]
)
def test_what_is_no_pooler_reads_means(vectors: Any, means: bool) -> None:
    assert TaskConfig(task="classification", vectors=vectors).reads_means is means


def test_of_two_classes_the_second_is_positive_unless_another_is_named() -> None:
    def positive(*labels: str, **settings: Any) -> str | None:
        return TaskConfig(task="classification", labels=labels, **settings).positive_label

    assert positive("a", "b") == "b"
    assert positive("a", "b", positive="a") == "a"
    assert positive("a", "b", "c", positive="a") is None
