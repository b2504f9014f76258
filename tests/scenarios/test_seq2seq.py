"""The recipes of LSTM translators, on words that are to be written backwards: each learns some of
it, and its folder translates."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.checkpoints.hf_config import num_parameters
from bertworks.checkpoints.model_folder import load_model
from bertworks.errors import BertworksError, UsageError
from bertworks.runs.pretrain import estimate, pretrain
from bertworks.training.recipe import load_recipe
from tests.support.tiny import assert_same_run

RECIPES = {"seq2seq": "none", "seq2seq-luong": "multiplicative", "seq2seq-bahdanau": "additive"}
WORDS = ["red", "blue", "old", "new", "cat", "dog"]
MOST = 3  # words of a line
# A target has two words and an end on average. Without its source each word is one of six, and
# its length one of three.
WITHOUT_SOURCE = math.exp((2 * math.log(len(WORDS)) + math.log(MOST)) / 3)
OVERRIDES = [
    "encoder.hidden_size=64",
    "encoder.hidden_dropout=0",
    "vocabulary.size=300",
    "optimizer.learning_rate=5e-3",
    "train.average=2",
    "train.held_out_sequences=20",
    "train.evaluate_every=40",
    "train.phases.0.num_steps=110",
    "train.phases.0.batch_size=32",
    "train.phases.0.sequence_length=64",
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two files: lines of words, and the same words backwards."""
    folder = tmp_path_factory.mktemp("pairs")
    draw = random.Random(0)
    lines = [draw.choices(WORDS, k=draw.randint(1, MOST)) for _ in range(1200)]
    for name, step in (("source", 1), ("target", -1)):
        (folder / name).write_text("".join(" ".join(line[::step]) + "\n" for line in lines))
    return [str(folder / "source"), str(folder / "target")]


@pytest.fixture(scope="module", params=RECIPES)
def trained(
    request: pytest.FixtureRequest, pairs: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    name: str = request.param
    output = tmp_path_factory.mktemp("run") / name
    options: dict[str, Any] = {"recipe": name, "overrides": OVERRIDES}
    list(pretrain([], output, parallel=pairs, workers=1, device="cpu", **options))
    return name, output


def test_a_recipe_learns_from_the_source(trained: tuple[str, Path]):
    """Its perplexity on held-out pairs is one that needs the source; attention is far below it."""
    name, folder = trained
    *_, line = (folder / "metrics.jsonl").read_text().splitlines()
    perplexity = json.loads(line)["evaluation"]["translation_perplexity"]
    assert perplexity < (0.8 if name == "seq2seq" else 0.5) * WITHOUT_SOURCE


def test_its_folder_translates(trained: tuple[str, Path]):
    name, folder = trained
    config, state, _ = load_model(folder)
    assert config.decoder is not None
    assert (config.kind, config.decoder.attention) == ("lstm", RECIPES[name])
    assert num_parameters(config, ["lm_head"]) == sum(value.numel() for value in state.values())
    translator = bw.load(folder)
    answers = list(translator.translate(["old cat", "", "red dog"], beam=2))
    assert [bool(answer["translation"]) for answer in answers] == [True, False, True]
    assert {word for answer in answers for word in answer["translation"].split()} <= {*WORDS}
    (alone,) = translator.translate(["red dog"], beam=2)
    assert alone["ids"] == answers[2]["ids"]
    if name == "seq2seq-luong":
        assert [answer["translation"] for answer in answers] == ["cat old", "", "dog red"]


def test_an_explanation_shows_the_attention_of_the_decoder(trained: tuple[str, Path]):
    name, folder = trained
    model = bw.load(folder)
    if name == "seq2seq":
        with pytest.raises(BertworksError, match="no attention"):
            model.explain("old cat")
        return
    explanation = model.explain("old cat")
    (layer,) = explanation.cross_attention
    shape = len(explanation.translation_tokens), len(model.tokenizer.encode("old cat").ids)
    assert layer.shape == (1, *shape)
    assert layer.sum(-1) == pytest.approx(np.ones((1, shape[0])), abs=1e-5)
    assert explanation.attention == ()
    explanation.save(folder / "explanation.html")
    json.dumps(explanation.as_dict())


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_other_precisions_than_fp32_are_refused(trained: tuple[str, Path], precision: Any):
    _, folder = trained
    with pytest.raises(UsageError, match=f"precision {precision}: .*'lstm' are computed in fp32"):
        list(bw.translate(folder, ["old cat"], precision=precision))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_budget_keeps_the_network(pairs: list[str], recipe: str):
    free, limited = (
        estimate([], parallel=pairs, recipe=recipe, budget=budget, speed=False)
        for budget in (None, "1m")
    )
    assert limited.parameters == free.parameters
    assert limited.title == load_recipe(recipe).title


def test_a_training_in_bf16_is_refused(pairs: list[str]):
    with pytest.raises(UsageError, match=r"train\.precision 'bf16' with encoder\.kind 'lstm'"):
        estimate([], parallel=pairs, recipe="seq2seq", precision="bf16", speed=False)
    with pytest.raises(UsageError, match=r"initialization 'scaled_residual' with encoder\.kind"):
        load_recipe("seq2seq", ["initialization=scaled_residual"])


def test_a_resumed_training_is_that_without_a_stop(pairs: list[str], tmp_path: Path):
    words = [*OVERRIDES, "train.phases.0.num_steps=12", "train.evaluate_every=4"]
    options: dict[str, Any] = {"recipe": "seq2seq-luong", "overrides": words, "device": "cpu"}
    list(pretrain([], tmp_path / "a", parallel=pairs, **options))
    events = pretrain([], tmp_path / "b", parallel=pairs, **options)
    for event in events:
        if event.kind == "evaluation" and event.fields["step"] == 8:
            break
    events.close()  # type: ignore[attr-defined]
    assert load_model(tmp_path / "b").state
    list(pretrain([], tmp_path / "b", parallel=pairs, **options))
    assert_same_run(tmp_path / "a", tmp_path / "b")
