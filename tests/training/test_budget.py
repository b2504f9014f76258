"""A budget becomes a plan: sizes grow with it, its time is used, and measuring takes little of
it."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from bertworks.batching.sampling import SamplingConfig
from bertworks.checkpoints.hf_config import can_hold, check_representable
from bertworks.config import dump_recipe, parse_as
from bertworks.errors import UsageError
from bertworks.models.config import BERT_SIZES, PRESETS, EncoderConfig
from bertworks.runs.pretrain import Request, _advice
from bertworks.training import budget
from bertworks.training.budget import (
    SIZE_PRESETS,
    Plan,
    choose_recipe,
    fit_steps,
    measure_steps,
    random_batch,
    size_preset_for,
)
from bertworks.training.objectives import heads_of
from bertworks.training.recipe import Phase, Recipe, TrainConfig, family_recipe, load_recipe

TINY = EncoderConfig(
    vocab_size=300,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=64,
)


def recipe_with(*phases: tuple[int, int, int], **options) -> Recipe:
    made = tuple(Phase(num_steps=n, batch_size=b, sequence_length=s) for n, b, s in phases)
    return Recipe(
        title="x", train=TrainConfig(phases=made, precision="fp32", **options), encoder=TINY
    )


def test_the_ladder_climbs():
    assert SIZE_PRESETS[0].flops == 0
    for lower, higher in pairwise(SIZE_PRESETS):
        assert higher.flops > lower.flops
        assert (
            budget.BERT_SIZES[higher.size].num_parameters()
            >= budget.BERT_SIZES[lower.size].num_parameters()
        )
        assert higher.learning_rate <= lower.learning_rate
        assert size_preset_for(higher.flops) == higher
        assert size_preset_for(higher.flops * 0.999) == lower


@pytest.mark.parametrize("exponent", range(9, 24))
def test_every_choice_is_a_recipe(exponent: int):
    recipe = choose_recipe(3600, 10.0**exponent, 10**8)
    assert parse_as(Recipe, dump_recipe(recipe), "r.toml") == recipe
    assert recipe.encoder.vocab_size == 0  # as many as the tokenizer has
    assert all(phase.num_steps == 1 for phase in recipe.train.phases)
    assert recipe.train.sequence_length <= recipe.encoder.max_position_embeddings


def test_more_time_never_makes_a_smaller_model():
    sizes = [choose_recipe(10 * 4**n, 1e11, 10**7).encoder.num_hidden_layers for n in range(12)]
    assert sizes == sorted(sizes)


def test_little_text_gets_dropout():
    assert choose_recipe(3600, 1e11, 10**9).encoder.hidden_dropout == 0
    assert (
        choose_recipe(3600, 1e11, 10**7).encoder.hidden_dropout == 0
    )  # ten times, by a network of 1.6 million parameters
    assert choose_recipe(3600, 1e11, 10**4).encoder.hidden_dropout == 0.1
    assert choose_recipe(3600, 1e11, 10**4).encoder.attention_dropout == 0.1


def test_a_model_to_begin_with_keeps_its_shape():
    encoder = replace(BERT_SIZES["base"], max_position_embeddings=100, vocab_size=30528)
    recipe = choose_recipe(600, 1e11, 10**9, encoder)
    assert replace(recipe.encoder, hidden_dropout=0.1, attention_dropout=0.1) == encoder
    assert recipe.train.sequence_length == 100
    assert [phase.sequence_length for phase in recipe.train.phases] == [64, 100]
    assert [phase.batch_size for phase in recipe.train.phases] == [32, 20]


def test_a_family_keeps_everything_but_its_size():
    family = load_recipe("roberta-base")
    recipe = choose_recipe(600, 1e11, 10**9, None, family)
    size = choose_recipe(600, 1e11, 10**9)
    assert recipe.title == size.title.replace("BERT", "RoBERTa")
    assert (recipe.train, recipe.optimizer, recipe.initialization) == (
        size.train,
        size.optimizer,
        "neighbours",
    )
    assert recipe.vocabulary == replace(family.vocabulary, size=size.vocabulary.size)
    assert (recipe.sampling, recipe.masking, recipe.weights) == (
        family.sampling,
        family.masking,
        {"masked_lm": 1.0},
    )
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "initializer_range")
    assert all(getattr(recipe.encoder, name) == getattr(size.encoder, name) for name in sizes)
    others = {name: getattr(family.encoder, name) for name in sizes} | {
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
    }
    assert replace(recipe.encoder, **others) == family.encoder
    directed = replace(
        family, encoder=replace(family.encoder, embedding_size=128, embedding_norm=False)
    )
    recipe = choose_recipe(3600, 1e12, 10**9, None, directed)
    assert (recipe.encoder.embedding_size, recipe.initialization) == (128, "published")


@pytest.mark.parametrize("exponent", range(9, 22, 2))
def test_albert_keeps_its_family_at_every_size(exponent: int):
    recipe = choose_recipe(3600, 10.0**exponent, 10**8, family=load_recipe("albert-base"))
    bert, c = choose_recipe(3600, 10.0**exponent, 10**8).encoder, recipe.encoder
    assert parse_as(Recipe, dump_recipe(recipe), "r.toml") == recipe
    assert (c.family, c.num_hidden_groups, c.hidden_act) == ("albert", 1, "gelu_tanh")
    assert (c.num_hidden_layers, c.hidden_size) == (bert.num_hidden_layers, bert.hidden_size)
    assert c.embedding_size == min(128, c.hidden_size // 2)
    assert list(recipe.weights) == ["masked_lm", "sentence_order"]
    assert (recipe.vocabulary.algorithm, recipe.initialization) == ("unigram", "neighbours")
    check_representable(replace(c, vocab_size=8000), 0)
    assert recipe.title.startswith("ALBERT-")


@pytest.mark.parametrize(
    ("family", "warns"), [("roberta", False), ("albert", True), ("electra", True)]
)
def test_shared_layers_and_discriminators_need_more_steps(family: str, warns: bool):
    recipe = choose_recipe(3600, 1e11, 10**8, family=family_recipe(family))
    steps = [1000, 0, 0][: len(recipe.train.phases)]
    phases = [
        replace(phase, num_steps=max(1, n))
        for phase, n in zip(recipe.train.phases, steps, strict=True)
    ]
    recipe = replace(recipe, train=replace(recipe.train, phases=tuple(phases)))
    assert recipe.initialization == "neighbours"
    plan = Plan(0, [phase.num_steps for phase in phases], [1.0] * len(phases), 0.0)
    advice = _advice(recipe, Request(("a.txt",), budget="1h"), plan)
    assert (advice is not None) == warns


def test_more_training_of_an_albert_has_its_objectives():
    recipe = choose_recipe(600, 1e11, 10**9, PRESETS["albert-base"], load_recipe("albert-base"))
    assert (
        replace(recipe.encoder, hidden_dropout=0.0, attention_dropout=0.0) == PRESETS["albert-base"]
    )
    assert list(recipe.weights) == ["masked_lm", "sentence_order"]


@pytest.mark.parametrize("exponent", range(9, 24, 2))
def test_electra_keeps_its_family_at_every_size(exponent: int):
    family = family_recipe("electra")
    assert family == load_recipe("electra-small")
    recipe, bert = (
        choose_recipe(3600, 10.0**exponent, 10**8, family=one) for one in (family, None)
    )
    assert parse_as(Recipe, dump_recipe(recipe), "r.toml") == recipe
    assert recipe.title == bert.title.replace("BERT", "ELECTRA")
    assert recipe.weights == {"masked_lm": 1, "replaced_token": 50}
    assert (recipe.masking.mask, recipe.masking.random, recipe.masking.max_predictions) == (
        0.85,
        0,
        0,
    )
    assert recipe.sampling.format == "one_segment"
    assert (recipe.train, recipe.generator_size) == (bert.train, 0.25)
    assert recipe.initialization == "neighbours"
    c, other = recipe.encoder, bert.encoder
    check_representable(c, 0)
    assert can_hold(c, heads_of(recipe.weights))
    assert (c.num_hidden_layers, c.hidden_size) == (other.num_hidden_layers, other.hidden_size)
    assert c.embedding_width == min(128, c.hidden_size // 2)


def test_the_size_of_a_generator_is_kept():
    family = replace(load_recipe("electra-small"), generator_size=0.5)
    assert choose_recipe(3600, 1e12, 10**8, family=family).generator_size == 0.5


def test_more_training_of_electra_keeps_its_objectives():
    encoder = PRESETS["electra-small"]
    recipe = choose_recipe(600, 1e11, 10**9, encoder, family_recipe("electra"))
    assert replace(recipe.encoder, hidden_dropout=0.1, attention_dropout=0.1) == encoder
    assert recipe.weights == {"masked_lm": 1, "replaced_token": 50}


def test_titles_say_how_long():
    assert choose_recipe(90, 1e11, 1).title == "BERT-tiny for 90 s"
    assert choose_recipe(600, 1e3, 1).title == "BERT-tiny for 10 min"


@pytest.mark.parametrize("seconds", [30, 600, 36000])
def test_the_time_is_filled(seconds: int):
    costs = [0.02, 0.04, 0.07]
    recipe = fit_steps(recipe_with((1, 8, 32), (1, 4, 48), (1, 2, 64)), seconds, costs)
    spent = [p.num_steps * cost for p, cost in zip(recipe.train.phases, costs, strict=True)]
    assert sum(spent) == pytest.approx(seconds, rel=0.01)
    assert sum(spent) <= seconds
    assert [one / seconds for one in spent] == pytest.approx([0.6, 0.2, 0.2], abs=0.01)


def test_the_phases_of_a_recipe_keep_their_shares():
    recipe = fit_steps(recipe_with((900, 8, 32), (100, 8, 64)), 100, [0.01, 0.03])
    first, second = (phase.num_steps for phase in recipe.train.phases)
    assert first / second == pytest.approx(9, rel=0.01)
    assert first * 0.01 + second * 0.03 == pytest.approx(100, rel=0.01)


def test_one_phase_gets_all():
    assert fit_steps(recipe_with((1, 8, 32)), 10, [0.01]).train.num_steps == 1000


def test_a_budget_for_much_less_than_a_step_of_each_phase_is_refused():
    with pytest.raises(UsageError, match="a step of 256 x 64 tokens takes 5 min") as error:
        fit_steps(recipe_with((1, 256, 32), (1, 256, 64)), 60, [60.0, 300.0])
    assert "--budget 28m" in error.value.hint
    assert "--set train.phases.1.batch_size=32" in error.value.hint
    enough = fit_steps(recipe_with((1, 256, 32), (1, 256, 64)), 25 * 60, [60.0, 300.0])
    assert [p.num_steps for p in enough.train.phases] == [20, 1]


def test_a_budget_for_nearly_a_step_is_a_step():
    assert [
        p.num_steps
        for p in fit_steps(recipe_with((1, 8, 32), (1, 8, 64)), 10, [8.5, 3.0]).train.phases
    ] == [1, 1]


def test_evaluations_cost_little():
    cheap = fit_steps(recipe_with((1, 8, 32)), 1000, [0.01])
    assert -(-cheap.train.num_steps // cheap.train.evaluate_every) == 20
    dear = fit_steps(recipe_with((1, 8, 32)), 60, [2.0])
    assert -(-dear.train.num_steps // dear.train.evaluate_every) == 3
    requested = fit_steps(recipe_with((1, 8, 32), evaluate_every=7), 1000, [0.01])
    assert requested.train.evaluate_every == 7


def test_fixed_fields_keep_their_values():
    recipe = recipe_with((7, 8, 32), (9, 8, 64))
    steps = [phase.num_steps for phase in fit_steps(recipe, 1000, [0.01, 0.01]).train.phases]
    fixed = fit_steps(recipe, 1000, [0.01, 0.01], {"train.phases.1.num_steps"}).train.phases
    assert [phase.num_steps for phase in fixed] == [steps[0], 9]
    assert (
        fit_steps(recipe, 1000, [0.01, 0.01], {"train.phases"}).train.phases == recipe.train.phases
    )


def test_random_batches_look_like_real_ones():
    recipe = replace(recipe_with((1, 8, 32)), encoder=TINY)
    batch = random_batch(recipe, 6, 32)
    assert batch.layout.num_sequences == 6
    assert len(batch.input_ids) == 6 * 32
    assert len(batch.targets["masked_lm"].labels) == 6 * 5
    assert len(batch.targets["next_sentence"].labels) == 6
    assert set(batch.token_type_ids.tolist()) == {0, 1}
    without_pairs = replace(recipe, sampling=SamplingConfig(format="full_sentences"))
    assert set(random_batch(without_pairs, 1, 5).targets) == {"masked_lm"}


def test_a_step_is_its_micro_batches_and_one_update(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budget, "time_step", lambda *_: (2.0, 0.5))
    monkeypatch.setattr(budget, "measure_matmul", lambda *_: 1e12)
    recipe = recipe_with((1, 64, 64), (1, 4, 32), micro_batch_tokens=1024)
    assert measure_steps(recipe, torch.device("cpu")).step_seconds == [8.5, 2.5]


def test_measuring_takes_about_its_time():
    measured = measure_steps(recipe_with((1, 8, 32)), torch.device("cpu"), 0.1)
    assert 0 < measured.step_seconds[0] < 1
    assert measured.memory > 0


def test_measuring_a_large_model_on_a_slow_machine_takes_few_sequences(
    monkeypatch: pytest.MonkeyPatch,
):
    """A step of BERT-Base takes minutes on this machine: it is measured on one sequence of each
    phase."""
    requested: list[int] = []

    def seen(recipe: Recipe, sequences: int, length: int):
        requested.append(sequences * length)
        return random_batch(replace(recipe_with((1, 8, 32)), encoder=TINY), 1, 32)

    monkeypatch.setattr(budget, "measure_matmul", lambda *_: 5e10)
    monkeypatch.setattr(Model, "of", lambda recipe: Model(TINY, recipe.weights))
    monkeypatch.setattr(budget, "random_batch", seen)
    recipe = replace(load_recipe("bert-base", ["train.precision=fp32"]), encoder=BERT_SIZES["base"])
    measured = measure_steps(recipe, torch.device("cpu"), 0.2)
    assert requested == [128, 128, 256, 512, 512, 1024]  # one to time, one and two to count memory
    assert len(measured.step_seconds) == 2


def test_memory_grows_with_micro_batches_and_not_with_accumulation(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budget, "time_step", lambda *_: (1.0, 0.1))
    monkeypatch.setattr(budget, "measure_matmul", lambda *_: 1e12)

    def memory(batch: int, tokens: int, **options) -> int:
        recipe = recipe_with((1, batch, 64), micro_batch_tokens=tokens, **options)
        return measure_steps(recipe, torch.device("cpu")).memory

    small, large = memory(64, 1024), memory(64, 4096)
    assert memory(128, 1024) == small
    assert memory(64, 8192) == memory(64, 4096)
    layers = (large - small) / 1.3 / (48 * 64)  # bytes per token
    # attention, and both sides of the gelu
    assert 4 * (4 * 32 + 2 * 128) < layers < 8 * 4 * (4 * 32 + 2 * 128)
    assert memory(64, 4096, gradient_checkpointing=True) < large


Model = budget.PretrainingModel
