"""Answers of a model of questions, and when it gives none."""

from bertworks.tasks.questions import best_threshold


def test_the_answer_at_the_edge_does_not_hang_on_the_last_digit() -> None:
    answers = [{"no_answer_margin": margin} for margin in (-3.0, 2.0, 2.5)]
    assert best_threshold(answers, {"threshold": 2.0}) == 2.25
    assert best_threshold(answers, {"threshold": -3.0}) == -2.5
    assert best_threshold(answers, {"threshold": 2.5}) == 3.0


def test_a_model_that_had_better_not_answer_does_not() -> None:
    answers = [{"no_answer_margin": margin} for margin in (-3.0, 2.0)]
    assert best_threshold(answers, {"threshold": 0.0}) < -3.0
    assert best_threshold([{"no_answer_margin": 5.0}], {"threshold": 0.0}) < 0
