"""ModernBERT: the network against an oracle of plain torch in float64 and against transformers,
with gradients; local attention at its edges; files in both layouts of config.json; published sizes.
"""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.hf_config import (
    config_from_huggingface,
    config_to_huggingface,
    num_parameters,
)
from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
from bertworks.errors import BertworksError
from bertworks.models.attention import Block
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.heads import LMHead
from bertworks.models.layout import Layout
from bertworks.models.transformer import (
    Encoder,
    scale_residual,
    select_layers,
    to_bf16_inference,
    to_fp32_inference,
    to_int8_inference,
)
from bertworks.tasks.heads import TaskModel, without_head
from bertworks.tasks.outputs import Classification, MultipleChoice, SpanExtraction
from bertworks.training.budget import choose_recipe
from bertworks.training.recipe import load_recipe

SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
    "max_position_embeddings": 512,
}
SHAPES: dict[str, dict[str, Any]] = {
    "even window": {"local_attention": 8},
    "odd window": {
        "local_attention": 7,
        "num_hidden_layers": 5,
        "global_attn_every_n_layers": 2,
    },
    "all biases": {
        "local_attention": 8,
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "intermediate_size": 80,
    },
    "other bases": {
        "local_attention": 128,
        "global_rope_theta": 10000.0,
        "local_rope_theta": 160000.0,
        "hidden_activation": "silu",
        "classifier_activation": "relu",
    },
    "another pattern": {
        "num_hidden_layers": 4,
        "local_attention": 20,
        "layer_types": [
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "sliding_attention",
        ],
        "decoder_bias": False,
    },
}
LENGTHS = [200, 37, 1, 2, 70]


def theirs_of(shape: str, kind: str = "ForMaskedLM", **settings: Any) -> torch.nn.Module:
    """A network of transformers with random weights, biases and norms included."""
    config = transformers.ModernBertConfig(**SMALL | SHAPES[shape] | settings)
    torch.manual_seed(0)
    model = getattr(transformers, f"ModernBert{kind}")(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.1 + (1 if "norm.weight" in name else 0))
    return model


def ours_of(theirs: torch.nn.Module) -> tuple[EncoderConfig, dict[str, Tensor]]:
    settings = json.loads(theirs.config.to_json_string(use_diff=False))
    settings["architectures"] = [type(theirs).__name__]
    config = config_from_huggingface(settings)
    return config, from_huggingface(theirs.state_dict(), config, settings=settings)


def part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def oracle(c: EncoderConfig, s: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The last states of one text, in the precision of the weights: a formula for each line of the
    network's description."""
    length, size = len(ids), c.hidden_size // c.num_attention_heads
    places = torch.arange(length, dtype=torch.float64)
    act = {"gelu": F.gelu, "silu": F.silu, "relu": F.relu}[c.hidden_act]

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(
            x, (x.shape[-1],), s[f"{name}.weight"], s.get(f"{name}.bias"), c.layer_norm_eps
        )

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, s[f"{name}.weight"], s.get(f"{name}.bias"))

    def rotate(x: Tensor, base: float) -> Tensor:
        angles = places[:, None] * base ** (-torch.arange(0, size, 2).double() / size)
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        pairs = torch.complex(*x.double().chunk(2, -1)) * turn
        return torch.cat([pairs.real, pairs.imag], -1).to(x.dtype)

    x = norm(s["encoder.embeddings.token.weight"][ids], "encoder.embeddings.norm")
    for number in range(c.num_hidden_layers):
        block = f"encoder.blocks.{number}"
        is_local = (
            number % c.global_attention_every != 0
            if c.global_attention_every
            else number in c.local_layers
        )
        base = c.local_rotary_base if is_local else c.rotary_base
        y = x if number == 0 else norm(x, f"{block}.attention_norm")
        q, k, v = linear(y, f"{block}.attention.qkv").view(length, 3, -1, size).unbind(1)
        q, k = rotate(q, base), rotate(k, base)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(size)
        if is_local:
            far = (places[:, None] - places).abs() > c.local_attention // 2
            scores = scores.masked_fill(far, -torch.inf)
        y = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, -1)
        x = x + linear(y, f"{block}.attention.output")
        a, b = linear(norm(x, f"{block}.feed_forward_norm"), f"{block}.feed_forward.up").chunk(
            2, -1
        )
        x = x + linear(act(a) * b, f"{block}.feed_forward.down")
    return norm(x, "encoder.norm")


def padded(ids: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    rows = torch.nn.utils.rnn.pad_sequence(ids.split(lengths), batch_first=True)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return rows, mask


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", SHAPES)
def test_states_logits_and_gradients_are_those_of_transformers(shape: str, implementation: str):
    theirs = theirs_of(shape)
    theirs.set_attn_implementation(implementation)
    config, state = ours_of(theirs)
    encoder, head = Encoder(config).eval(), LMHead(config)
    encoder.load_state_dict(part(state, "encoder."))
    head.load_state_dict(part(state, "lm_head."))
    ids = torch.randint(3, 99, (sum(LENGTHS),))
    rows, mask = padded(ids, LENGTHS)
    expected = theirs(rows, attention_mask=mask.long(), output_hidden_states=True)
    layout = Layout.of(LENGTHS)
    states = encoder(ids, layout)
    logits = head(states[-1], encoder.embeddings.token.weight)
    with torch.no_grad():
        quick = encoder(ids, layout)[-1]
    assert (quick - states[-1]).abs().max() < 2e-5
    found, wanted = [*states, logits], [*expected.hidden_states, expected.logits]
    assert len(found) == len(wanted) == config.num_hidden_layers + 2
    for ours, other in zip(found, wanted, strict=True):
        scale = float(other[mask].detach().abs().max())
        assert (ours - other[mask]).abs().max() < 3e-6 * max(1.0, scale)
    probe = torch.randn_like(logits)
    (logits * probe).sum().backward()
    (expected.logits[mask] * probe).sum().backward()
    gradients = {n: p.grad for n, p in theirs.named_parameters()}
    wanted_gradients = from_huggingface(gradients, config)
    parameters = [*encoder.named_parameters("encoder"), *head.named_parameters("lm_head")]
    assert {name for name, _ in parameters} == wanted_gradients.keys() == state.keys()
    for name, p in parameters:
        difference = (p.grad - wanted_gradients[name]).norm()
        assert difference < 1e-5 * (wanted_gradients[name].norm() + 1e-3), name


@pytest.mark.parametrize("shape", SHAPES)
def test_states_in_float64_are_those_of_the_formulas(shape: str):
    config, state = ours_of(theirs_of(shape))
    state = {name: value.double() for name, value in state.items()}
    encoder = Encoder(config).double().eval()
    encoder.load_state_dict(part(state, "encoder."))
    lengths = [200, 37, 1, 2, 70, 129, 193]
    ids = torch.randint(3, 99, (sum(lengths),))
    expected = torch.cat([oracle(config, state, text) for text in ids.split(lengths)])
    layout = Layout.of(lengths)
    assert (encoder(ids, layout)[-1] - expected).abs().max() < 1e-10
    with torch.no_grad():
        assert (encoder(ids, layout)[-1] - expected).abs().max() < 1e-10
        firsts = encoder(ids, layout, rows=layout.first.long())[-1]
        assert (firsts - expected[layout.first]).abs().max() < 1e-10


@pytest.mark.parametrize("local_attention", [8, 9, 128])
@pytest.mark.parametrize("length", [40, 193, 260])
def test_local_attention_is_exact_at_its_edges(local_attention: int, length: int):
    """Behind two local layers a token depends on exactly the tokens at up to twice the half of the
    window, both ends included."""
    theirs = theirs_of("even window", local_attention=local_attention, num_hidden_layers=2)
    settings = theirs.config.to_dict() | {"layer_types": ["sliding_attention"] * 2}
    config = config_from_huggingface(settings)
    assert config.local_layers == (0, 1)
    _, state = ours_of(theirs)
    encoder = Encoder(config).eval()
    encoder.load_state_dict(part(state, "encoder."))
    ids = torch.randint(3, 99, (length,))
    place = 20
    vectors: list[Tensor] = []

    def keep(module: torch.nn.Module, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        vectors.append(output)

    encoder.embeddings.register_forward_hook(keep)
    encoder(ids, Layout.of([length]))[-1][place].sum().backward()
    assert vectors[0].grad is not None
    read = vectors[0].grad.abs().sum(-1).nonzero().flatten().tolist()
    reach = 2 * (local_attention // 2)
    assert read == [*range(max(0, place - reach), min(length, place + reach + 1))]


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_packed_texts_are_those_of_one_text_at_a_time(needs_gradients: bool):
    """Lengths at the borders of blocks of 64 queries; also the gradients of all parameters."""
    lengths = [63, 64, 65, 128, 129, 1, 192, 193, 256, 257, 300]
    config, state = ours_of(theirs_of("even window", local_attention=128))
    ids = torch.randint(3, 99, (sum(lengths),))
    probe = torch.randn(sum(lengths), 64, dtype=torch.float64)
    results = []
    for parts in ([[n] for n in lengths], [lengths], [lengths[:4], lengths[4:]]):
        encoder = Encoder(config).double().eval()
        encoder.load_state_dict(part(state, "encoder."))
        counts = [sum(part_lengths) for part_lengths in parts]
        states = []
        with torch.set_grad_enabled(needs_gradients):
            for text, part_lengths in zip(ids.split(counts), parts, strict=True):
                states.append(encoder(text, Layout.of(part_lengths))[-1])
        result = [torch.cat(states)]
        if needs_gradients:
            (result[0] * probe).sum().backward()
            result += [p.grad for p in encoder.parameters() if p.grad is not None]
            assert len(result) == 1 + len([*encoder.parameters()])
        results.append(result)
    for result in results[1:]:
        for found, wanted in zip(result, results[0], strict=True):
            assert (found - wanted).norm() <= 1e-10 * (1 + wanted.norm())


def test_blocks_that_are_computed_again_have_the_same_gradients():
    config, state = ours_of(theirs_of("all biases"))
    ids, layout = torch.randint(3, 99, (sum(LENGTHS),)), Layout.of(LENGTHS)
    gradients = []
    for is_checkpointed in (False, True):
        encoder = Encoder(config, is_checkpointed).train()
        encoder.load_state_dict(part(state, "encoder."))
        encoder(ids, layout)[-1].square().sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("prepare", "off"),
    [(to_fp32_inference, 2e-5), (to_bf16_inference, 0.08), (to_int8_inference, 0.5)],
)
@pytest.mark.parametrize("shape", ["even window", "all biases"])
def test_packed_weights_compute_the_same(shape: str, prepare: Any, off: float):
    config, state = ours_of(theirs_of(shape))
    encoder = Encoder(config).eval()
    encoder.load_state_dict(part(state, "encoder."))
    ids = torch.randint(3, 99, (sum(LENGTHS),))
    layout = Layout.of(LENGTHS)
    with torch.no_grad():
        wanted = encoder(ids, layout)
        found = prepare(encoder)(ids, layout)
    assert (found[-1].float() - wanted[-1]).abs().max() < off
    assert (found[-1].float() - wanted[-1]).norm() < off / 4 * wanted[-1].norm()


def test_rotations_in_bf16_are_those_of_float32():
    """Places beyond 256 are no numbers in bf16."""
    config, state = ours_of(theirs_of("even window"))
    encoder = Encoder(config).eval()
    encoder.load_state_dict(part(state, "encoder."))
    layout = Layout.of([400])
    for angles in encoder.angles.values():
        half, single = (angles.of_tokens(layout, t) for t in (torch.bfloat16, torch.float32))
        assert half.cosines.dtype == torch.float32
        assert torch.equal(half.cosines, single.cosines)
        assert torch.equal(half.sines, single.sines)
    ids = torch.randint(3, 99, (400,))
    with torch.no_grad():
        wanted = encoder(ids, layout)[-1]
        found = encoder.bfloat16()(ids, layout)[-1]
    assert (found - wanted).norm() < 0.03 * wanted.norm()


TASKS = {
    "SequenceClassification": Classification(outputs=3),
    "TokenClassification": Classification(outputs=3, pooled=False),
    "QuestionAnswering": SpanExtraction(),
    "MultipleChoice": MultipleChoice(num_choices=5),
}


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", TASKS)
def test_heads_of_tasks_and_their_dropout(kind: str, pooling: str, monkeypatch: pytest.MonkeyPatch):
    """All pass the same transform. With a dropout that scales instead of zeroing, the outputs in
    training agree only if its places agree."""

    def scale(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 - p) if training else x

    labels = 2 if kind == "QuestionAnswering" else 3
    theirs = theirs_of(
        "all biases",
        f"For{kind}",
        num_labels=labels,
        classifier_pooling=pooling,
        classifier_dropout=0.3,
    )
    theirs.set_attn_implementation("eager")
    config, state = ours_of(theirs)
    task = TASKS[kind]
    model = TaskModel(config, task).eval()
    model.load_state_dict(state, strict=True)
    ids, layout = torch.randint(3, 99, (sum(LENGTHS),)), Layout.of(LENGTHS)
    rows, mask = padded(ids, LENGTHS)
    inputs = {"input_ids": rows, "attention_mask": mask.long()}
    if kind == "MultipleChoice":
        inputs = {name: value[None] for name, value in inputs.items()}
    positions = layout.first.long() if task.pooled else torch.arange(len(ids))
    batch = Batch(ids, layout, None, {"task": BatchTarget(positions, positions)})
    monkeypatch.setattr("torch.nn.functional.dropout", scale)
    with torch.no_grad():
        for training in (False, True):
            model.train(training)
            model.encoder.eval()
            theirs.train(training)
            theirs.model.eval()
            found, output = model.logits(batch), theirs(**inputs)
            expected = output.logits if "logits" in output else None
            if expected is None:
                expected = torch.stack([output.start_logits, output.end_logits], -1)
            expected = expected.view(found.shape) if task.pooled else expected[mask]
            assert (found - expected).abs().max() < 3e-5
    written = to_huggingface(state, config, f"ModernBertFor{kind}")
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[name], value) for name, value in theirs.state_dict().items())


def test_dropout_within_blocks_is_where_transformers_has_it(monkeypatch: pytest.MonkeyPatch):
    def scale(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 - p) if training else x

    def ours(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
        return x * (1 - p) if residual is None else residual + x * (1 - p)

    theirs = theirs_of("all biases", mlp_dropout=0.2, embedding_dropout=0.3, attention_dropout=0.4)
    theirs.set_attn_implementation("eager")
    config, state = ours_of(theirs)
    encoder = Encoder(config).train()
    encoder.load_state_dict(part(state, "encoder."))
    monkeypatch.setattr("torch.nn.functional.dropout", scale)
    monkeypatch.setattr("bertworks.models.attention.dropout", ours)
    monkeypatch.setattr("bertworks.models.embeddings.dropout", ours)

    def kept(*arguments: Any) -> Tensor:
        q, k, v, mask, _, heads, dropped, *_ = arguments
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = (scores.view(-1, heads, *scores.shape[1:]) + mask).flatten(0, 1)
        assert dropped == round(0.4 * 256)
        return scores.softmax(-1) * 0.6 @ v

    monkeypatch.setattr("bertworks.models.kernels._AttentionFunction.apply", kept)
    ids = torch.randint(3, 99, (20,))
    expected = theirs.train()(ids[None], output_hidden_states=True).hidden_states
    for found, wanted in zip(encoder(ids, Layout.of([20])), expected, strict=True):
        assert (found - wanted[0]).abs().max() < 3e-5


def test_a_new_task_begins_with_the_transform_of_masked_tokens():
    config, state = ours_of(theirs_of("all biases"))
    model = TaskModel(config, TASKS["TokenClassification"])
    missing, unexpected = model.load_state_dict(without_head(state), strict=False)
    assert missing == ["classifier.weight", "classifier.bias"]
    assert not unexpected
    assert model.transform is not None
    assert torch.equal(model.transform.dense.weight, state["lm_head.dense.weight"])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_our_files_open_in_transformers(shape: str, kind: str, tmp_path: Path):
    theirs = theirs_of(shape, kind, num_labels=3)
    config, state = ours_of(theirs)
    name = f"ModernBert{kind}"
    is_task = kind == "ForSequenceClassification"
    written = to_huggingface(state, config, name if is_task else None)
    settings = config_to_huggingface(config, architectures=[name])
    settings |= {"id2label": {str(n): f"LABEL_{n}" for n in range(3)}} if is_task else {}
    assert ("layer_types" in settings) == (shape == "another pattern")
    assert config_from_huggingface(settings) == config
    (tmp_path / "config.json").write_text(json.dumps(settings))
    tensors = {key: value.contiguous().clone() for key, value in written.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    read, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    for key, value in theirs.state_dict().items():
        assert torch.equal(read.state_dict()[key], value), key
    ids = torch.randint(3, 99, (1, 150))
    with torch.no_grad():
        assert (read.eval()(ids)[0] - theirs(ids)[0]).abs().max() < 1e-5


def test_both_layouts_of_config_are_the_same_network():
    base = {"model_type": "modernbert", "num_hidden_layers": 5}
    older = base | {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 80000.0,
        "local_rope_theta": 500.0,
    }
    full, local = "full_attention", "sliding_attention"
    newer = base | {
        "layer_types": [full, local, full, local, full],
        "rope_parameters": {
            full: {"rope_type": "default", "rope_theta": 80000.0},
            local: {"rope_type": "default", "rope_theta": 500.0},
        },
    }
    config = config_from_huggingface(older)
    assert config == config_from_huggingface(newer)
    assert (config.rotary_base, config.local_rotary_base) == (80000.0, 500.0)
    assert [n for n in range(5) if config.is_local(n)] == [1, 3]
    null = config_from_huggingface(older | {"local_rope_theta": None})
    assert null.local_rotary_base == 80000.0
    all_global = config_from_huggingface(base | {"layer_types": [full] * 5})
    assert (all_global.global_attention_every, all_global.local_layers) == (1, ())
    assert config_from_huggingface(base | {"layer_norm_eps": 0.25}).layer_norm_eps == 0.25
    eps = {"layer_norm_eps": 0.25, "norm_eps": 0.125}
    assert config_from_huggingface(base | eps).layer_norm_eps == 0.125
    assert config_from_huggingface(base | dict(reversed(eps.items()))).layer_norm_eps == 0.125


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling is .*: only null is supported"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
            "rope_parameters.full_attention is .*yarn.*: only rope_type 'default'",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}},
            "rope_parameters is .*: expected a table for each of full_attention",
        ),
        ({"global_rope_theta": 0}, "global_rope_theta is 0: expected a number from 1 to 1e"),
        ({"local_attention": 1}, "local_attention is 1 with global_attention_every .*: expected 2"),
        ({"local_attention": -1}, "local_attention is -1: expected a whole number from 1"),
        ({"layer_types": ["chunked_attention"] * 22}, "layer_types is .*: expected num_hidden_l"),
        ({"layer_types": ["full_attention"] * 3}, r"expected num_hidden_layers \(22\) times"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False: only True is supported"),
        ({"hidden_activation": "tanh"}, "hidden_activation is 'tanh': expected one of gelu, silu"),
        ({"classifier_pooling": "max"}, "classifier_pooling is .*max.*: expected one of"),
        ({"num_attention_heads": 256}, "'rotary' with heads of 3 numbers .*even number"),
        ({"model_type": "modernbert-decoder"}, "the family 'modernbert-decoder' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], message: str):
    with pytest.raises(BertworksError, match=message):
        config_from_huggingface({"model_type": "modernbert"} | settings)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rotary_base": 5.0}, "rotary_base is 5.0 with position_embedding_type 'learned'"),
        ({"local_attention": 8}, "local_attention is 8 without global_attention_every"),
        ({"local_layers": (3, 1), "local_attention": 8}, r"local_layers is \[3, 1\] with num_hid"),
        ({"local_layers": (12,), "local_attention": 8}, "expected numbers of layers from 0"),
        (
            {"global_attention_every": 2, "local_attention": 8, "direction": "left_to_right"},
            "global_attention_every or local_layers with direction",
        ),
        ({"first_norm": False}, "first_norm is false with norm_first False"),
        (
            {"position_embedding_type": "rotary"},
            "position_embedding_type 'rotary' with type_vocab_size 2",
        ),
        (
            {
                "position_embedding_type": "rotary",
                "type_vocab_size": 0,
                "direction": "left_to_right",
                "pooler": "last",
            },
            "'rotary' with direction 'left_to_right'",
        ),
        (
            {
                "position_embedding_type": "rotary",
                "type_vocab_size": 0,
                "local_rotary_base": 7.0,
            },
            "local_rotary_base is 7.0 and rotary_base 10000.0 without local layers",
        ),
        ({"task_transform": True}, "task_transform with lm_head 'transform'.*'first_tanh'"),
        ({"pooler": "mean"}, "pooler 'mean' without task_transform"),
        ({"lm_head": "bias", "lm_head_bias": False}, "lm_head_bias False and transform_bias"),
        ({"initializer_cutoff": 0.0}, "initializer_cutoff is 0.0: expected a number from 0.1"),
        ({"kind": "static", "gated_feed_forward": True}, "kind 'static' with"),
    ],
)
def test_combinations_without_meaning_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        EncoderConfig(vocab_size=90, **fields)


# The body, and with the head for masked tokens.
PUBLISHED = {
    "modernbert-base": (149_014_272, 149_655_232),
    "modernbert-large": (394_781_696, 395_881_664),
    "ettin-17m": (16_797_440, 16_913_600),
    "ettin-32m": (31_883_136, 32_081_344),
    "ettin-68m": (68_144_640, 68_457_664),
    "ettin-150m": (149_014_272, 149_655_232),
    "ettin-400m": (394_781_696, 395_881_664),
    "ettin-1b": (1_028_050_688, 1_031_314_112),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str):
    config = PRESETS[name]
    assert (num_parameters(config, []), num_parameters(config, ["lm_head"])) == PUBLISHED[name]
    settings = config_to_huggingface(config, architectures=["ModernBertForMaskedLM"])
    assert config_from_huggingface(settings) == config
    with torch.device("meta"):
        theirs = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**settings))
        encoder = Encoder(config)
    counts = [sum(p.numel() for p in m.parameters()) for m in (encoder, theirs.model, theirs)]
    assert counts == [PUBLISHED[name][0], *PUBLISHED[name]]


def test_some_layers_keep_what_they_read():
    config, state = ours_of(theirs_of("even window"))
    smaller, kept = select_layers(config, state, (0, 1, 3, 5))
    assert [smaller.is_local(n) for n in range(4)] == [False, True, False, True]
    assert (smaller.global_attention_every, smaller.local_layers) == (2, ())
    Encoder(smaller).load_state_dict(part(kept, "encoder."))
    other, _ = select_layers(config, state, (0, 1, 2, 4))
    assert [other.is_local(n) for n in range(4)] == [False, True, True, True]


def test_operations_of_local_layers_stop_at_the_window():
    config = replace(PRESETS["modernbert-base"], local_attention=128)
    one, two = (config.stack_flops(n, 1.0) for n in (1024, 2048))
    assert two - one == 8 * 4 * 768 * 1024


def test_a_budget_has_a_network_of_the_same_make():
    recipe = choose_recipe(600, 1e11, 10**7, family=load_recipe("modernbert-small"))
    c = recipe.encoder
    assert (c.family, c.gated_feed_forward, c.local_attention) == ("modernbert", True, 64)
    assert c.intermediate_size == 3 * c.hidden_size // 2
    assert recipe.initialization == "scaled_residual"
    assert recipe.masking.rate == 0.3


def test_the_recipe_has_the_network_of_its_description():
    """6 layers of 256, 4 heads, 384 within, windows of 64 tokens: counted by the formula."""
    c = replace(load_recipe("modernbert-small").encoder, vocab_size=16_000)
    hidden, inner, layers = 256, 384, 6
    blocks = layers * (4 * hidden * hidden + 3 * hidden * inner + 2 * hidden) - hidden
    body = 16_000 * hidden + 2 * hidden + blocks
    assert c.num_parameters() == body
    assert c.num_parameters("lm_head") == body + hidden * hidden + hidden + 16_000
    with torch.device("meta"):
        assert sum(p.numel() for p in Encoder(c).parameters()) == body


def test_initial_weights_have_the_deviations_of_transformers():
    """Of the blocks with the recipe's initialization, and of a new head of a task."""
    c = replace(PRESETS["ettin-17m"], vocab_size=1000, initializer_cutoff=1.0)
    torch.manual_seed(0)
    encoder = Encoder(c)
    scale_residual(encoder)
    model = TaskModel(c, Classification(outputs=500))
    scale = 1.0 / math.sqrt(2 * c.num_hidden_layers)
    block = encoder.blocks[1]
    assert isinstance(block, Block)
    assert model.transform is not None
    expected = {
        encoder.embeddings.token.weight: 0.02,
        block.attention.qkv.weight: 0.02,
        block.attention.output.weight: 0.02 * scale,
        block.feed_forward.up.weight: 0.02,
        block.feed_forward.down.weight: 0.02 * scale,
        model.transform.dense.weight: 0.02 * scale,
        model.classifier.weight: 256**-0.5,
    }
    for weight, deviation in expected.items():
        assert weight.abs().max() <= deviation * 1.0001  # cut at one deviation
        assert float(weight.detach().std()) == pytest.approx(0.54 * deviation, rel=0.05)
