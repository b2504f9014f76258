"""TOML text and dataclasses: defaults, single fields, floats and texts to the last bit."""

import math
from dataclasses import replace

import pytest

from bertworks.config import dump_recipe, override, parse_as
from bertworks.errors import UsageError
from bertworks.training.recipe import (
    OptimizerConfig,
    Recipe,
)
from tests.training.test_recipe import MINIMAL


@pytest.mark.parametrize(
    "title", ['a "b" \\ c', "two\nlines", "tab\tand\x00\x1f\x7f", "日本語 🦊", ""]
)
def test_any_title_survives(title: str):
    recipe = replace(parse_as(Recipe, MINIMAL, "r.toml"), title=title)
    assert parse_as(Recipe, dump_recipe(recipe), "r.toml") == recipe


@pytest.mark.parametrize("value", [1e-4, 1e22, 0.1 + 0.2, 5e-324, 1.0, math.pi])
def test_floats_survive_to_the_last_bit(value: float):
    recipe = replace(parse_as(Recipe, MINIMAL, "r.toml"), optimizer=OptimizerConfig(eps=value))
    assert parse_as(Recipe, dump_recipe(recipe), "r.toml").optimizer.eps == value


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("seed=3", lambda r: r.seed == 3),
        ("title=plain words", lambda r: r.title == "plain words"),
        ('title="quoted"', lambda r: r.title == "quoted"),
        ("optimizer.learning_rate=1", lambda r: r.optimizer.learning_rate == 1.0),
        ("optimizer.learning_rate=1e-3", lambda r: r.optimizer.learning_rate == 1e-3),
        ("vocabulary.lowercase=false", lambda r: r.vocabulary.lowercase is False),
        ("masking.unit=whole_word", lambda r: r.masking.unit == "whole_word"),
        ("masking.spans=[0.5, 0.5]", lambda r: r.masking.spans == (0.5, 0.5)),
        ("train.phases.1.num_steps=7", lambda r: [p.num_steps for p in r.train.phases] == [10, 7]),
        ("train.phases.0={num_steps=1, batch_size=1}", lambda r: r.train.phases[0].batch_size == 1),
    ],
)
def test_single_fields_can_be_set(word: str, read):
    recipe = parse_as(Recipe, MINIMAL, "r.toml")
    assert not read(recipe)
    assert read(parse_as(Recipe, MINIMAL, "r.toml", [word]))
    assert read(override(recipe, [word]))


def test_the_last_word_counts():
    assert parse_as(Recipe, MINIMAL, "r.toml", ["seed=3", "seed=4"]).seed == 4


@pytest.mark.parametrize(
    "word",
    ["seed", "=3", "train.phases.2.num_steps=1", "title.a=1", "train.phases.x=1", "seed.a.b=1"],
)
def test_a_word_that_sets_nothing(word: str):
    with pytest.raises(UsageError):
        parse_as(Recipe, MINIMAL, "r.toml", [word])
