"""Recipes: what is written is what is read, and whatever is wrong is named with its place and a
remedy."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from bertworks.batching.sampling import MaskingConfig, SamplingConfig
from bertworks.checkpoints.hf_config import num_parameters
from bertworks.config import dump_recipe, parse_as
from bertworks.errors import UsageError
from bertworks.models.config import BERT_SIZES, PRESETS, EncoderConfig
from bertworks.text.vocabulary import VocabularyConfig
from bertworks.training.recipe import (
    FinetuneRecipe,
    OptimizerConfig,
    Phase,
    Recipe,
    TrainConfig,
    family_recipe,
    load_finetune_recipe,
    load_recipe,
    packaged_recipes,
    resolve_recipe,
)

MINIMAL = """
title = "One"

[train]
[[train.phases]]
num_steps = 10
batch_size = 4

[[train.phases]]
num_steps = 5
batch_size = 2
sequence_length = 512
"""


# that one: test_ltr
BERTS = [name for name in packaged_recipes() if name.startswith("bert-") and name != "bert-ltr"]


@pytest.mark.parametrize("name", BERTS)
def test_the_published_recipes(name: str):
    recipe = load_recipe(name)
    size = name.removeprefix("bert-")
    assert replace(recipe.encoder, vocab_size=30522) == BERT_SIZES[size]
    assert recipe.vocabulary.size == 30522
    assert recipe.train.num_steps == 1_000_000
    assert [(p.num_steps, p.batch_size, p.sequence_length) for p in recipe.train.phases] == [
        (900_000, 256, 128),
        (100_000, 256, 512),
    ]
    assert recipe.optimizer == OptimizerConfig(
        learning_rate=1e-4, warmup=0.01, schedule="linear_from_start", bias_correction=False
    )
    assert recipe.sampling == SamplingConfig(copies=10)
    assert recipe.masking == MaskingConfig()


def test_there_is_a_recipe_for_every_size():
    assert sorted(BERTS) == sorted(f"bert-{size}" for size in BERT_SIZES)


def test_roberta_is_that_of_fairseq():
    recipe = load_recipe("roberta-base")
    assert replace(recipe.encoder, vocab_size=50265) == PRESETS["roberta-base"]
    assert num_parameters(replace(recipe.encoder, vocab_size=50265), ["lm_head"]) == 124_697_433
    assert recipe.vocabulary == VocabularyConfig(
        size=50265, algorithm="bpe", lowercase=False, special_tokens="roberta"
    )
    assert recipe.weights == {"masked_lm": 1.0}
    assert recipe.train.num_steps * recipe.optimizer.warmup == 10_000
    assert [(p.batch_size, p.sequence_length) for p in recipe.train.phases] == [(2048, 512)]
    assert recipe.masking == MaskingConfig(rounding="random", special_tokens="predicted")


def test_gpt2_is_as_published():
    recipe = load_recipe("gpt2")
    c = replace(recipe.encoder, vocab_size=50257)
    assert c == PRESETS["gpt2"]
    assert num_parameters(c, ["lm_head"]) == 124_439_808
    assert (recipe.weights, recipe.predictions, recipe.initialization) == (
        {"causal_lm": 1.0},
        1.0,
        "scaled_residual",
    )
    assert recipe.vocabulary.pad_id == -1
    assert [(p.batch_size, p.sequence_length) for p in recipe.train.phases] == [(512, 1024)]


def test_gpt_is_as_published():
    """Radford et al. 2018, section 4.1; the count is that of transformers."""
    recipe = load_recipe("gpt")
    c, o = replace(recipe.encoder, vocab_size=40478), recipe.optimizer
    assert c == PRESETS["gpt"]
    assert num_parameters(c, ["lm_head"]) == 116_534_784
    assert (recipe.weights, recipe.vocabulary.size) == ({"causal_lm": 1.0}, 40478)
    assert [(p.batch_size, p.sequence_length) for p in recipe.train.phases] == [(64, 512)]
    assert (o.learning_rate, o.schedule, o.weight_decay) == (2.5e-4, "cosine", 0.01)
    assert round(o.warmup * recipe.train.num_steps) == pytest.approx(2000, abs=10)
    assert family_recipe("gpt") == recipe
    tuning = load_finetune_recipe("gpt")
    o = tuning.optimizer
    assert (tuning.batch_size, tuning.epochs, tuning.lm_weight, tuning.dropout) == (32, 3, 0.5, 0.1)
    assert (o.learning_rate, o.warmup, o.schedule, o.max_grad_norm) == (
        6.25e-5,
        0.002,
        "linear",
        1.0,
    )


def test_the_cosine_begins_at_the_peak_and_ends_at_zero():
    c = OptimizerConfig(learning_rate=1.0, warmup=0.1, schedule="cosine")
    rates = [c.rate(step, 100) for step in (0, 5, 10, 55, 100)]
    assert rates == pytest.approx([0, 0.5, 1, 0.5, 0], abs=1e-12)
    assert c.rate(32.5, 100) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)


def test_a_family_has_no_size():
    assert family_recipe("roberta") == load_recipe("roberta-base")
    assert family_recipe("bert") == load_recipe("bert-base")
    assert family_recipe("gpt2") == load_recipe("gpt2")
    assert all(
        family_recipe(name) is None
        for name in (None, "roberta-base", "roberta.toml", "rob", "gpt5")
    )


def test_the_recipe_of_albert():
    """The defaults of google-research/albert: run_pretraining.py and create_pretraining_data.py."""
    recipe = load_recipe("albert-base")
    assert replace(recipe.encoder, vocab_size=30000) == PRESETS["albert-base"]
    assert (recipe.vocabulary.size, recipe.vocabulary.algorithm) == (30000, "unigram")
    assert recipe.weights == {"masked_lm": 1.0, "sentence_order": 1.0}
    assert recipe.sampling == SamplingConfig(format="sentence_order", copies=40)
    assert recipe.masking == MaskingConfig(unit="span", max_predictions=20, dynamic=False)
    assert [p * n for n, p in enumerate(recipe.masking.spans, 1)] == pytest.approx(
        [recipe.masking.spans[0]] * 3
    )
    assert [(p.num_steps, p.batch_size, p.sequence_length) for p in recipe.train.phases] == [
        (125_000, 4096, 512)
    ]
    c = recipe.optimizer
    assert c == OptimizerConfig(
        optimizer="lamb",
        learning_rate=0.00176,
        warmup=0.025,
        schedule="linear_from_start",
        bias_correction=False,
    )
    assert c.rate(3124, 125_000) == pytest.approx(0.00176 * 3124 / 3125)
    assert c.rate(3125, 125_000) == pytest.approx(0.00176 * (1 - 3125 / 125_000))


def test_the_small_albert_is_an_albert():
    recipe = load_recipe("albert-small")
    same = {
        "family",
        "embedding_size",
        "num_hidden_groups",
        "hidden_act",
        "hidden_dropout",
        "sequence_dropout",
    }
    for name in same:
        assert getattr(recipe.encoder, name) == getattr(PRESETS["albert-base"], name)
    assert list(recipe.weights) == ["masked_lm", "sentence_order"]


def test_the_recipes_of_fine_tuning():
    recipes = {name: load_finetune_recipe(name) for name in packaged_recipes("finetuning")}
    assert list(recipes) == [recipe.title for recipe in recipes.values()]
    names = [
        "bilstm",
        "contrastive",
        "deberta",
        "electra",
        "feature_based",
        "gpt",
        "mt-dnn",
        "paper",
    ]
    assert list(recipes) == [*names, "stable", "static"]  # electra: see test_electra
    assert recipes["contrastive"].batch_size == 64
    assert (recipes["contrastive"].rows_per_label, recipes["contrastive"].patience) == (4, 0)
    assert (recipes["static"].epochs, recipes["static"].optimizer.learning_rate) == (5, 3e-3)
    assert recipes["stable"].optimizer == OptimizerConfig(learning_rate=0.0, warmup=0.1)
    published = OptimizerConfig(
        learning_rate=5e-5, warmup=0.1, bias_correction=False, schedule="linear_from_start"
    )
    adamax = OptimizerConfig(optimizer="adamax", learning_rate=5e-5, warmup=0.1, weight_decay=0.0)
    assert recipes["mt-dnn"] == FinetuneRecipe(
        title="mt-dnn", epochs=5, batch_size=8, patience=0, optimizer=adamax
    )
    assert recipes["paper"] == FinetuneRecipe(
        title="paper", epochs=3, batch_size=32, patience=0, optimizer=published
    )
    assert recipes["deberta"] == FinetuneRecipe(
        title="deberta",
        epochs=3,
        batch_size=32,
        patience=0,
        optimizer=OptimizerConfig(learning_rate=0.0, warmup=0.1),
    )
    assert (recipes["feature_based"].lstm_units, recipes["feature_based"].patience) == (768, 0)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("bert-base", 5e-5),
        ("bert-tiny", 3e-4),
        ("deberta-v3-xsmall", 4e-5),
        ("deberta-v3-small", 4e-5),
        ("deberta-v3-base", 2e-5),
        ("mdeberta-v3-base", 2e-5),
        ("deberta-v3-large", 7.5e-6),
    ],
)
@pytest.mark.parametrize("recipe", ["stable", "deberta"])
def test_the_default_rate_of_a_network(name: str, rate: float, recipe: str):
    resolved = resolve_recipe(load_finetune_recipe(recipe), 1000, PRESETS[name])
    assert resolved.optimizer.learning_rate == rate
    shallow = replace(PRESETS[name], num_hidden_layers=1)  # never above that of a BERT
    resolved = resolve_recipe(load_finetune_recipe(recipe), 1000, shallow)
    assert resolved.optimizer.learning_rate <= 1.02 * 5e-5 * 768 / shallow.hidden_size


def test_what_is_not_said_is_the_default():
    recipe = parse_as(Recipe, MINIMAL, "r.toml")
    assert recipe == Recipe(
        title="One",
        train=TrainConfig(
            phases=(
                Phase(num_steps=10, batch_size=4),
                Phase(num_steps=5, batch_size=2, sequence_length=512),
            )
        ),
    )
    assert recipe.train.num_steps == 15
    assert recipe.train.sequence_length == 512
    assert recipe.train.num_tokens == 10 * 4 * 128 + 5 * 2 * 512


@given(
    title=st.text(st.characters(exclude_categories=["C"])),
    phases=st.lists(
        st.builds(
            Phase,
            num_steps=st.integers(1, 10**9),
            batch_size=st.integers(1, 10**6),
            sequence_length=st.integers(5, 512),
        ),
        min_size=1,
        max_size=3,
    ),
    learning_rate=st.floats(1e-12, 9),
    rate=st.floats(0.001, 1),
    spans=st.lists(st.floats(0.001, 1), min_size=1, max_size=10),
    strip_accents=st.sampled_from([None, True, False]),
    precision=st.sampled_from(["auto", "fp32", "bf16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_written_is_what_is_read(
    title, phases, learning_rate, rate, spans, strip_accents, precision, seed
):
    recipe = Recipe(
        title=title,
        train=TrainConfig(phases=tuple(phases), precision=precision),
        optimizer=OptimizerConfig(learning_rate=learning_rate),
        masking=MaskingConfig(rate=rate, spans=tuple(spans), unit="span"),
        vocabulary=VocabularyConfig(strip_accents=strip_accents),
        seed=seed,
    )
    text = dump_recipe(recipe)
    tomllib.loads(text)
    assert parse_as(Recipe, text, "r.toml") == recipe
    assert dump_recipe(parse_as(Recipe, text, "r.toml")) == text


def test_a_training_has_a_phase():
    with pytest.raises(UsageError, match=r"phases is \(\): expected at least one phase"):
        parse_as(Recipe, MINIMAL, "r.toml", ["train.phases=[]"])


NO_PAIRS = """[sampling]
format = "full_sentences"
[[objectives]]
kind = "masked_lm"
[[objectives]]
kind = "next_sentence"
[train]"""


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        (
            "num_steps = 10",
            "num_step = 10",
            "train.phases[0].num_step: no such field",
            "train.phases[0].num_steps?",
        ),
        (
            "batch_size = 2",
            "batch_sizes = 2",
            "train.phases[1].batch_sizes: no such field",
            "[1].batch_size?",
        ),
        (
            "[train]",
            "[train]\nprecison = 'fp32'",
            "train.precison: no such field",
            "did you mean train.precision?",
        ),
        ("[train]", "[trian]\n[train]", "trian: no such field", "did you mean train?"),
        (
            "[train]",
            "[train]\nprecision = 'fp16'",
            "'fp16' is none of 'auto', 'fp32', 'bf16'",
            None,
        ),
        (
            "num_steps = 10",
            "num_steps = 1.5",
            "train.phases[0].num_steps: expected int, got 1.5",
            None,
        ),
        ("num_steps = 10", "num_steps = true", "expected int, got True", None),
        ("num_steps = 10", "num_steps = 0", "expected 1 to 2,000,000,000", None),
        ("batch_size = 4\n", "", "train.phases[0].batch_size: must be given", None),
        (
            "sequence_length = 512",
            "sequence_length = 513",
            "max_position_embeddings is 512",
            None,
        ),
        ("sequence_length = 512", "sequence_length = 4", "expected 5 to 1,048,576", None),
        ('title = "One"', "title = 1", "title: expected str, got 1", None),
        ('title = "One"\n', "", "title: must be given", None),
        ("[train]", "[train]\nsave_every = -1", "expected 0 to 2,000,000,000", None),
        (
            "[train]",
            "[vocabulary]\nsize = 3\n[train]",
            "vocabulary: a vocabulary of 3 tokens",
            "size like 30000",
        ),
        ("[train]", "[vocabulary]\nalgorithm = 'bpee'\n[train]", "'bpee' is none of", None),
        ("[train]", "[masking]\nrate = 0.0\n[train]", "masking: rate is 0.0", None),
        (
            "[train]",
            "[masking]\nspans = 1\n[train]",
            "masking.spans: expected a list, got 1",
            None,
        ),
        (
            "[train]",
            "[masking]\nspans = ['a']\n[train]",
            "masking.spans[0]: expected float, got 'a'",
            None,
        ),
        (
            "[train]",
            "[optimizer]\nlearning_rate = nan\n[train]",
            "optimizer: learning_rate is nan",
            None,
        ),
        (
            "[train]",
            "[optimizer]\nlearning_rate = 0\n[train]",
            "learning_rate is 0: expected the rate",
            None,
        ),
        ("[train]", "[encoder]\nhidden_size = 65537\n[train]", "hidden_size is 65537", None),
        ("[train]", "[encoder]\nnum_attention_heads = 7\n[train]", "does not divide", None),
        ("[train]", "[encoder]\nlayer_norm_eps = -1.0\n[train]", "layer_norm_eps is -1.0", None),
        (
            "[train]",
            "[encoder]\ninitializer_range = 0.0\n[train]",
            "initializer_range is 0.0",
            None,
        ),
        (
            "[train]",
            "[encoder]\ntype_vocab_size = 1\n[train]",
            "'next_sentence' has 2 segments",
            None,
        ),
        ("[train]", "[masking]\nmax_predictions = -1\n[train]", "max_predictions is -1", None),
        ("[train]", "[optimizer]\nbeta1 = 1.5\n[train]", "beta1 is 1.5", None),
        ("[train]", "[optimizer]\neps = -1.0\n[train]", "eps is -1.0", None),
        ("[train]", "[optimizer]\nweight_decay = -1.0\n[train]", "weight_decay is -1.0", None),
        ("[train]", "[optimizer]\nmax_grad_norm = -1.0\n[train]", "max_grad_norm is -1.0", None),
        ("[train]", "seed = 4294967296\n[train]", "seed is 4294967296", None),
        (
            "[train]",
            "[[objectives]]\nkind = 'mlm'\n[train]",
            "objectives[0].kind: 'mlm' is none of",
            None,
        ),
        (
            "[train]",
            "[[objectives]]\nkind = 'masked_lm'\nweight = 0.0\n[train]",
            "weight is 0.0",
            None,
        ),
        (
            "[train]",
            "[[objectives]]\nkind = 'next_sentence'\n[train]",
            "expected masked_lm, causal_lm, permutation_lm, translation, ",
            None,
        ),
        (
            "[train]",
            "[[objectives]]\nkind = 'masked_lm'\n[[objectives]]\nkind = 'causal_lm'\n[train]",
            "expected masked_lm, causal_lm, permutation_lm, translation, ",
            None,
        ),
        (
            "[train]",
            "[[objectives]]\nkind = 'causal_lm'\n[train]",
            "which sees the next token",
            None,
        ),
        (
            "[train]",
            "[[objectives]]\nkind = 'masked_lm'\n" * 2 + "[train]",
            "expected each kind once",
            None,
        ),
        (
            "[train]",
            NO_PAIRS,
            "next_sentence has no targets in sequences of sampling.format 'full_sentences'",
            None,
        ),
        ("[train]", "encoder = 3\n[train]", "encoder: expected a table, got 3", None),
        (
            "[train]",
            "[masking]\nspans = [\n  0.5,\n  'a',\n]\n[train]",
            "masking.spans[1]: expected float",
            None,
        ),
        (
            "[train]",
            "masking.rate = 'a'\n[train]",
            "masking.rate: expected float, got 'a'",
            None,
        ),
        (
            "[train]",
            "ALIASES = 3\n[train]",
            "ALIASES: no such field",
            "the fields are context, encoder, generator_size, initialization,",
        ),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, message: str, hint: str | None, tmp_path: Path):
    assert old in MINIMAL
    path = tmp_path / "r.toml"
    path.write_text(MINIMAL.replace(old, new, 1))
    with pytest.raises(UsageError) as raised:
        load_recipe(str(path))
    error = raised.value
    assert message in error.what
    assert hint is None or hint in (error.hint or "")
    assert error.where == str(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"title = ", "not TOML"),
        (b"\xff\xfe", "not a text in UTF-8"),
        (b"", "title: must be given"),
    ],
)
def test_files_that_are_no_recipes(content: bytes, message: str, tmp_path: Path):
    (tmp_path / "r.toml").write_bytes(content)
    with pytest.raises(UsageError, match=message) as raised:
        load_recipe(str(tmp_path / "r.toml"))
    assert str(tmp_path / "r.toml") in str(raised.value)


def test_a_name_that_is_none():
    with pytest.raises(UsageError, match="did you mean bert-base"):
        load_recipe("bert-bsae")
    with pytest.raises(UsageError, match=r"name one of albert-base, .*, or a \.toml file"):
        load_recipe("zzz")
    with pytest.raises(UsageError, match="there is no recipe file"):
        load_recipe("zzz.toml")


def test_defaults_are_those_of_the_paper():
    c = EncoderConfig()
    assert (
        c.hidden_size,
        c.num_hidden_layers,
        c.num_attention_heads,
        c.max_position_embeddings,
    ) == (768, 12, 12, 512)


def test_objectives_are_those_of_the_format_unless_they_are_listed():
    assert parse_as(Recipe, MINIMAL, "r.toml").weights == {"masked_lm": 1.0, "next_sentence": 1.0}
    assert parse_as(Recipe, MINIMAL, "r.toml", ["sampling.format=full_sentences"]).weights == {
        "masked_lm": 1.0
    }
    listed = (
        MINIMAL
        + "[[objectives]]\nkind = 'masked_lm'\n[[objectives]]\nkind = 'next_sentence'\nweight = 2\n"
    )
    assert parse_as(Recipe, listed, "r.toml").weights == {"masked_lm": 1.0, "next_sentence": 2.0}
    alone = parse_as(Recipe, MINIMAL + "[[objectives]]\nkind = 'masked_lm'\n", "r.toml")
    assert alone.weights == {"masked_lm": 1.0}  # over pairs of segments


def test_a_written_recipe_lists_its_objectives():
    recipe = parse_as(Recipe, MINIMAL, "r.toml").with_objectives()
    text = dump_recipe(recipe)
    assert '[[objectives]]\nkind = "masked_lm"\nweight = 1.0\n' in text
    assert parse_as(Recipe, text, "r.toml") == recipe
