"""The axes of a network: exact counts, refused combinations, and the same states packed, padded,
one by one."""

import json
import random
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers

from bertworks.checkpoints.hf_config import config_from_huggingface
from bertworks.models.attention import Block, num_stack_parameters
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.embeddings import Embeddings, num_embedding_parameters
from bertworks.models.heads import LMHead, Pooler, TokenHead, add_heads, num_head_parameters
from bertworks.models.layers import meta_device_init
from bertworks.models.layout import Layout
from bertworks.models.settings import EmbeddingsConfig, Head, HeadsConfig, TransformerConfig
from bertworks.models.transformer import Encoder, to_bf16_inference, to_fp32_inference
from bertworks.training.loop import MixedPrecision, make_optimizer
from bertworks.training.recipe import OptimizerConfig, Phase, Recipe, TrainConfig, load_recipe

SMALL = EncoderConfig(
    vocab_size=60,
    hidden_size=24,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=64,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
AXES = {
    "bert": SMALL,
    "projection": replace(SMALL, embedding_size=10),
    "groups": replace(SMALL, num_hidden_groups=2, embedding_size=8),
    "sinusoidal": replace(
        SMALL, position_embedding_type="sinusoidal", embedding_scale=True, embedding_norm=False
    ),
    "no types": replace(SMALL, type_vocab_size=0),
    "one type": replace(SMALL, type_vocab_size=1),
    "gpt-2": replace(
        SMALL,
        type_vocab_size=0,
        direction="left_to_right",
        norm_first=True,
        embedding_norm=False,
        hidden_act="gelu_tanh",
        lm_head="plain",
        pooler="last",
    ),
    "right to left": replace(SMALL, direction="right_to_left"),
    "norm first": replace(SMALL, norm_first=True, hidden_act="relu"),
    "bias": replace(SMALL, lm_head="bias", pooler="last_tanh"),
}
LENGTHS = [7, 1, 12, 12, 30]


def network(c: EncoderConfig, dtype: torch.dtype = torch.float64) -> Encoder:
    torch.manual_seed(3)
    encoder = Encoder(c).eval().to(dtype)
    for p in encoder.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    return encoder


def inputs(c: EncoderConfig) -> tuple[torch.Tensor, torch.Tensor]:
    count = sum(LENGTHS)
    return torch.randint(c.vocab_size, (count,)), torch.randint(max(1, c.type_vocab_size), (count,))


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("gradients", [False, True])
def test_packed_is_one_by_one(name: str, gradients: bool):
    """Without gradients the kernels of inference compute, with them those of training."""
    c = AXES[name]
    encoder, (ids, types) = network(c), inputs(c)
    with torch.set_grad_enabled(gradients):
        states = encoder(ids, Layout.of(LENGTHS), types)
        alone = [
            encoder(part, Layout.of([len(part)]), kinds)
            for part, kinds in zip(ids.split(LENGTHS), types.split(LENGTHS), strict=True)
        ]
    assert len(states) == c.num_hidden_layers + 1
    for layer, state in enumerate(states):
        expected = torch.cat([one[layer] for one in alone])
        torch.testing.assert_close(state, expected, atol=1e-12, rtol=0)
    rows = torch.tensor([3, 0, 61])
    some = encoder(ids, Layout.of(LENGTHS), types, rows)[-1]
    torch.testing.assert_close(some, states[-1][rows], atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", AXES)
def test_packed_linear_layers_give_the_same_states(name: str):
    encoder, (ids, types) = network(AXES[name], torch.float32), inputs(AXES[name])
    expected = encoder.double()(ids, Layout.of(LENGTHS), types)
    with torch.no_grad():
        states = to_fp32_inference(encoder.float())(ids, Layout.of(LENGTHS), types)
    for state, exact in zip(states, expected, strict=True):
        torch.testing.assert_close(state.double(), exact, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", AXES)
def test_bf16_trains_and_infers(name: str):
    """Tables stay in float32, also where no norm follows them."""
    c = AXES[name]
    encoder, (ids, types) = network(c, torch.float32), inputs(c)
    exact = encoder(ids, Layout.of(LENGTHS), types)[-1].detach()
    # As in `inference.engine`: a processor without instructions for bf16 needs the context, and has
    # its matrices rounded in place.
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        rounded = to_bf16_inference(deepcopy(encoder))
        states = rounded(ids, Layout.of(LENGTHS), types)[-1].float()
    assert torch.cosine_similarity(states, exact).min() > 0.999
    objective = Sum(encoder)
    loss = MixedPrecision(objective, "bf16")((ids, Layout.of(LENGTHS), types))
    loss.backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in encoder.parameters())
    assert encoder.blocks[0].attention.qkv.weight.grad.isfinite().all()


class Sum(torch.nn.Module):
    """The sum of the last states, as an objective."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, batch: tuple[torch.Tensor, Layout, torch.Tensor]) -> torch.Tensor:
        return self.encoder(*batch)[-1].float().square().sum()


@pytest.mark.parametrize(
    ("name", "reads_before", "reads_behind"),
    [("bert", True, True), ("gpt-2", True, False), ("right to left", False, True)],
)
def test_a_token_reads_what_the_direction_allows(name: str, reads_before: bool, reads_behind: bool):
    encoder, (ids, types) = network(AXES[name]), inputs(AXES[name])
    changed, token = ids.clone(), 7 + 1 + 5  # of the third sequence
    changed[token] = (changed[token] + 1) % 60
    layout = Layout.of(LENGTHS)
    with torch.no_grad():
        before, after = encoder(ids, layout, types)[-1], encoder(changed, layout, types)[-1]
    differs = (before - after).abs().amax(1) > 1e-9
    assert not differs[:8].any()
    assert not differs[20:].any()
    assert bool(differs[8:token].any()) is reads_behind
    assert differs[token]
    assert bool(differs[token + 1 : 20].any()) is reads_before


def test_any_rank_may_be_given():
    """Tokens of a lower rank do not read those of a higher one (XLNet's order of factorisation)."""
    encoder, (ids, types) = network(SMALL), inputs(SMALL)
    rank = torch.cat([torch.tensor(random.Random(n).sample(range(n), n)) for n in LENGTHS])
    layout = replace(Layout.of(LENGTHS), rank=rank)
    changed, token = ids.clone(), 40
    changed[token] = (changed[token] + 1) % 60
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            before, after = encoder(ids, layout, types)[-1], encoder(changed, layout, types)[-1]
        differs = (before - after).abs().amax(1) > 1e-9
        same = torch.arange(len(ids)) >= 32
        assert torch.equal(differs, same & (rank >= rank[token]))


def test_positions_that_restart_and_start_late():
    """Positions are not places: two texts joined in one sequence may count anew (XLM)."""
    encoder, ids = network(SMALL), torch.randint(60, (11,))
    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3, 20, 21, 22, 23])
    layout = Layout(torch.tensor([0, 7, 11], dtype=torch.int32), 7, positions, num_positions=24)
    torch.testing.assert_close(layout.unpad(layout.pad(ids)), ids)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            states = encoder(ids, layout)[-1]
            first = encoder(
                ids[:7], Layout(torch.tensor([0, 7], dtype=torch.int32), 7, positions[:7])
            )[-1]
            second = Layout(
                torch.tensor([0, 4], dtype=torch.int32), 4, positions[7:], num_positions=24
            )
            torch.testing.assert_close(
                states, torch.cat([first, encoder(ids[7:], second)[-1]]), atol=1e-12, rtol=0
            )
    with pytest.raises(ValueError, match="65 tokens, but the model has 64 positions"):
        encoder(ids, replace(layout, num_positions=65))


@pytest.mark.parametrize("name", AXES)
def test_parameters_are_counted_exactly(name: str):
    c = AXES[name]
    modules = torch.nn.ModuleList([Encoder(c), Pooler(c), LMHead(c), TokenHead(c)])
    assert c.num_parameters() == sum(p.numel() for p in modules[0].parameters())
    assert c.num_parameters("pooler", "lm_head", "replaced_token") == sum(
        p.numel() for p in modules.parameters()
    )


@pytest.mark.parametrize("name", AXES)
def test_a_part_alone_builds_and_counts_its_network(name: str):
    parts: dict[type, Any] = {
        kind: kind(**{field.name: getattr(AXES[name], field.name) for field in fields(kind)})
        for kind in (EmbeddingsConfig, TransformerConfig, HeadsConfig)
    }
    embeddings, stack, heads = parts.values()
    assert num_embedding_parameters(embeddings) == num_parameters(Embeddings(embeddings))
    blocks = torch.nn.ModuleList(Block(stack) for _ in range(stack.num_groups))
    norm = 2 * stack.hidden_size * stack.norm_first
    assert num_stack_parameters(stack) == num_parameters(blocks) + norm
    network = torch.nn.Module()
    add_heads(network, heads, get_args(Head))
    assert num_head_parameters(heads, *get_args(Head)) == num_parameters(network)


def num_parameters(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        (EmbeddingsConfig, {"languages": ("en",)}, "languages .*expected a name for each type"),
        (TransformerConfig, {"num_attention_heads": 5}, "does not divide into 5 attention heads"),
        (TransformerConfig, {"num_hidden_groups": 7}, "num_hidden_groups 7 does not divide"),
        (HeadsConfig, {"lm_head": "bias", "embedding_size": 8}, "lm_head 'bias' with embedding"),
        (HeadsConfig, {"hidden_size": 0}, "hidden_size is 0"),
        (TransformerConfig, {"attention_dropout": 1.0}, "attention_dropout is 1.0"),
    ],
)
def test_a_part_alone_refuses_its_combinations(part: type, fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        part(**fields)


PUBLISHED = {  # of transformers, counted on the meta device
    # two rows of its position table are never used
    "roberta-base": (("pooler",), 124_645_632 - 2 * 768),
    "distilbert-base": ((), 66_362_880),
    "gpt": (("lm_head",), 116_534_784),
    "electra-small": (("replaced_token",), 13_549_057),
    "electra-base": (("replaced_token",), 109_483_009),
    "electra-large": (("replaced_token",), 335_142_913),
    "gpt2": (("lm_head",), 124_439_808),
    "gpt2-medium": (("lm_head",), 354_823_168),
    "gpt2-large": (("lm_head",), 774_030_080),
    "gpt2-xl": (("lm_head",), 1_557_611_200),
    "albert-base": (("pooler",), 11_683_584),
    "albert-large": (("pooler",), 17_683_968),
    "albert-xlarge": (("pooler",), 58_724_864),
    "albert-xxlarge": (("pooler",), 222_595_584),
    "bert-base": (("pooler",), 109_482_240),
    "bert-large": (("pooler", "lm_head", "next_sentence"), 336_226_108),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str):
    heads, count = PUBLISHED[name]
    assert PRESETS[name].num_parameters(*heads) == count
    if name == "albert-base":
        assert PRESETS[name].num_parameters("pooler", "lm_head", "sentence_order") == 11_813_810
    if name != "gpt2-xl":  # the largest takes long
        with meta_device_init():
            assert (
                sum(p.numel() for p in Encoder(PRESETS[name]).parameters())
                == PRESETS[name].num_parameters()
            )


@pytest.mark.parametrize(
    ("name", "fraction", "heads", "count"),
    [
        ("electra-small", 0.25, 1, 4_620_026),
        ("electra-base", 1 / 3, 4, None),
        ("electra-large", 0.25, 4, None),
    ],
)
def test_sizes_of_generators(name: str, fraction: float, heads: int, count: int | None):
    """Clark et al. 2020: a fraction of the hidden size, heads of 64 dimensions, embeddings of the
    same width."""
    c = PRESETS[name].generator(fraction)
    assert (c.num_attention_heads, c.hidden_size // heads, c.ffn_size) == (
        heads,
        64,
        4 * c.hidden_size,
    )
    assert (c.embedding_width, c.num_hidden_layers) == (
        PRESETS[name].embedding_width,
        PRESETS[name].num_hidden_layers,
    )
    theirs = transformers.ElectraConfig(
        embedding_size=c.embedding_width,
        hidden_size=c.hidden_size,
        num_attention_heads=heads,
        num_hidden_layers=c.num_hidden_layers,
        intermediate_size=c.ffn_size,
    )
    with torch.device("meta"):
        published = transformers.ElectraForMaskedLM(theirs).num_parameters()
    assert c.num_parameters("lm_head") == published
    assert count in (None, published)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_groups": 3}, "num_hidden_groups 3 does not divide num_hidden_layers 4"),
        ({"embedding_size": 8, "lm_head": "bias"}, "lm_head 'bias' with embedding_size 8"),
        ({"direction": "left_to_right"}, "pooler 'first_tanh' with direction 'left_to_right'"),
        (
            {"direction": "right_to_left", "pooler": "last"},
            "pooler 'last' with direction 'right_to_left'",
        ),
        ({"type_vocab_size": -1}, "type_vocab_size is -1"),
        ({"embedding_size": -1}, "embedding_size is -1"),
    ],
)
def test_values_that_exclude_each_other_are_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"position_embedding_type": "sinusoidal"},
            "position_embedding_type 'sinusoidal': expected 'learned'",
        ),
        ({"embedding_norm": False}, "with encoder.embedding_norm False: expected True"),
        ({"direction": "right_to_left"}, "with encoder.direction 'right_to_left'"),
        ({"embedding_size": 32}, "with encoder.embedding_size 32: expected 24"),
    ],
)
def test_local_attention_needs_a_learned_position_table(fields: dict, message: str):
    train = TrainConfig(phases=(Phase(num_steps=1, batch_size=1, sequence_length=64),))
    Recipe(title="a", train=train, encoder=SMALL, initialization="neighbours")
    with pytest.raises(ValueError, match=message):
        Recipe(
            title="a", train=train, encoder=replace(SMALL, **fields), initialization="neighbours"
        )


def test_shared_layers_have_one_learning_rate():
    for name, blocks in (("groups", 2), ("bert", 4)):
        optimizer = make_optimizer(Model(AXES[name]), OptimizerConfig(layer_decay=0.5))
        assert {group["factor"] for group in optimizer.param_groups} == {
            0.5**n for n in range(1, blocks + 2)
        }


class Model(torch.nn.Module):
    """A network with an encoder."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.encoder = Encoder(c)


# Of version 0.1.0, before its networks had parts: the fields and their defaults; of each preset, of
# each recipe and of a config.json of each family, the fields with other values; parameters of the
# encoder and of all heads, and operations per token.
BEFORE = json.loads(Path(__file__).with_name("configurations.json").read_text(encoding="utf-8"))


def fields_of(config: EncoderConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in BEFORE["fields"]}
    return {name: [*x] if isinstance(x, tuple) else x for name, x in values.items()}


def test_all_names_of_fields_and_their_defaults_are_those_of_version_0_1_0():
    assert fields_of(EncoderConfig()) == BEFORE["fields"]
    assert fields_of(EncoderConfig(**BEFORE["fields"])) == BEFORE["fields"]


@pytest.mark.parametrize("name", BEFORE["presets"])
def test_presets_are_those_of_version_0_1_0(name: str):
    config = PRESETS[name]
    assert fields_of(config) == BEFORE["fields"] | BEFORE["presets"][name]
    encoder, with_heads, operations = BEFORE["sizes"][name]
    assert config.num_parameters() == encoder
    assert config.num_parameters(*get_args(Head)) == with_heads
    assert config.flops_per_token(128, 0.15, 0.2) == operations


@pytest.mark.parametrize("name", BEFORE["recipes"])
def test_networks_of_recipes_are_those_of_version_0_1_0(name: str):
    assert fields_of(load_recipe(name).encoder) == BEFORE["fields"] | BEFORE["recipes"][name]


@pytest.mark.parametrize("family", BEFORE["folders"])
def test_networks_of_model_folders_are_those_of_version_0_1_0(family: str):
    folder = BEFORE["folders"][family]
    config = config_from_huggingface(folder["settings"])
    assert fields_of(config) == BEFORE["fields"] | folder["config"]
