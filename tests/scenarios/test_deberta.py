"""DeBERTa-v3: the network against an oracle of plain torch in float64 and against transformers,
with gradients; rows of distances; files, settings and published sizes.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from bertworks.batching.batch import Batch, BatchTarget
from bertworks.checkpoints.hf_config import (
    config_from_huggingface,
    config_to_huggingface,
    num_parameters,
)
from bertworks.checkpoints.hf_mapping import (
    from_huggingface,
    redundant_tensors,
    to_huggingface,
    unread_tensors,
)
from bertworks.errors import BertworksError
from bertworks.models.config import PRESETS, EncoderConfig
from bertworks.models.disentangled import rows_of_distances
from bertworks.models.layout import Layout
from bertworks.models.transformer import (
    Encoder,
    select_layers,
    to_bf16_inference,
    to_fp32_inference,
    to_int8_inference,
)
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification, MultipleChoice, SpanExtraction
from bertworks.training.loop import make_optimizer
from bertworks.training.recipe import OptimizerConfig

V3: dict[str, Any] = {
    "relative_attention": True,
    "position_biased_input": False,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "pos_att_type": "p2c|c2p",
    "position_buckets": 256,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
}
SMALL: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
SHAPES: dict[str, dict[str, Any]] = {
    "published buckets": {},
    "few buckets": {"position_buckets": 8, "max_relative_positions": 64},
    "other heads": {
        "position_buckets": 32,
        "max_relative_positions": 128,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "hidden_act": "relu",
        "pos_att_type": ["c2p", "p2c"],
    },
    "one head": {"num_attention_heads": 1, "position_buckets": 64, "num_hidden_layers": 2},
}
LENGTHS = [200, 37, 1, 2, 150]


def theirs_of(shape: str, kind: str = "Model", **settings: Any) -> torch.nn.Module:
    """A network of transformers with random weights, biases and norms included."""
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(**SMALL | V3 | SHAPES[shape] | settings)
    model = getattr(transformers, f"DebertaV2{kind}")(config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (1 if "LayerNorm.weight" in name else 0))
    return model


def ours_of(theirs: torch.nn.Module) -> tuple[EncoderConfig, dict[str, Tensor]]:
    settings = theirs.config.to_dict()
    settings["architectures"] = [type(theirs).__name__]
    config = config_from_huggingface(settings)
    return config, from_huggingface(theirs.state_dict(), config, settings=settings)


def part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}


def encoder_of(config: EncoderConfig, state: dict[str, Tensor]) -> Encoder:
    encoder = Encoder(config).eval()
    encoder.load_state_dict(part(state, "encoder."))
    return encoder


def bucket(distance: int, buckets: int, furthest: int) -> int:
    """The row of a distance, by the formula of microsoft/DeBERTa."""
    middle, length = buckets // 2, abs(distance)
    if length <= middle:
        return distance + buckets
    steps = math.log(length / middle) / math.log((furthest - 1) / middle) * (middle - 1)
    row = buckets + (1 if distance > 0 else -1) * (math.ceil(steps) + middle)
    return min(max(row, 0), 2 * buckets - 1)


def oracle(c: EncoderConfig, s: dict[str, Tensor], ids: Tensor) -> Tensor:
    """The last states of one text, in the precision of the weights: a formula for each line of the
    network's description."""
    length, size = len(ids), c.hidden_size // c.num_attention_heads
    act = {"gelu": F.gelu, "relu": F.relu}[c.hidden_act]

    def norm(x: Tensor, name: str) -> Tensor:
        width = (x.shape[-1],)
        return F.layer_norm(x, width, s[f"{name}.weight"], s[f"{name}.bias"], c.layer_norm_eps)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, s[f"{name}.weight"], s[f"{name}.bias"])

    rows = torch.tensor(
        [
            [bucket(i - j, c.position_buckets, c.max_relative_positions) for j in range(length)]
            for i in range(length)
        ]
    )
    x = norm(s["encoder.embeddings.token.weight"][ids], "encoder.embeddings.norm")
    distances = norm(s["encoder.distances.table.weight"], "encoder.distances.norm")
    for number in range(c.num_hidden_layers):
        block = f"encoder.blocks.{number}"
        q, k, v = linear(x, f"{block}.attention.qkv").view(length, 3, -1, size).unbind(1)
        qd, kd, _ = (
            linear(distances, f"{block}.attention.qkv").view(-1, 3, q.shape[1], size).unbind(1)
        )
        scores = torch.einsum("qhd,khd->hqk", q, k)
        scores = scores + torch.einsum("qhd,qkhd->hqk", q, kd[rows])
        scores = scores + torch.einsum("khd,qkhd->hqk", k, qd[rows])
        y = torch.einsum("hqk,khd->qhd", (scores / math.sqrt(3 * size)).softmax(-1), v)
        x = norm(
            x + linear(y.reshape(length, -1), f"{block}.attention.output"),
            f"{block}.attention_norm",
        )
        y = linear(act(linear(x, f"{block}.feed_forward.up")), f"{block}.feed_forward.down")
        x = norm(x + y, f"{block}.feed_forward_norm")
    return x


def padded(ids: Tensor, lengths: list[int]) -> tuple[Tensor, Tensor]:
    rows = torch.nn.utils.rnn.pad_sequence(ids.split(lengths), batch_first=True)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return rows, mask


@pytest.mark.parametrize(
    ("buckets", "furthest"),
    [
        (256, 512),
        (256, 24528),
        (8, 64),
        (32, 128),
        (64, 512),
        (256, 1024),
        (2, 9),
        (5, 40),
        (14, 9),
    ],
)
def test_rows_of_distances_are_those_of_both_codes(buckets: int, furthest: int):
    """Rows are those of a formula in float64 and of transformers, at all distances up to 4,000."""
    distances = torch.arange(-3999, 4000)
    theirs = make_log_bucket_position(distances, buckets, furthest).long()
    found = rows_of_distances(4000, buckets, furthest)
    assert torch.equal(found, (theirs + buckets).clamp(0, 2 * buckets - 1))
    assert found.tolist() == [bucket(d, buckets, furthest) for d in distances.tolist()]


@pytest.mark.parametrize("shape", SHAPES)
def test_states_and_gradients_are_those_of_transformers(shape: str):
    theirs = theirs_of(shape)
    config, state = ours_of(theirs)
    encoder = encoder_of(config, state)
    ids = torch.randint(3, 99, (sum(LENGTHS),))
    rows, mask = padded(ids, LENGTHS)
    expected = theirs(rows, attention_mask=mask.long(), output_hidden_states=True).hidden_states
    layout = Layout.of(LENGTHS)
    states = encoder(ids, layout)
    with torch.no_grad():
        quick = encoder(ids, layout)
    assert len(states) == len(quick) == len(expected) == config.num_hidden_layers + 1
    for found, inferred, other in zip(states, quick, expected, strict=True):
        assert (found - other[mask]).abs().max() < 2e-5
        assert (inferred - other[mask]).abs().max() < 2e-5
    probe = torch.randn_like(states[-1])
    (states[-1] * probe).sum().backward()
    (expected[-1][mask] * probe).sum().backward()
    gradients = from_huggingface({n: p.grad for n, p in theirs.named_parameters()}, config)
    parameters = [*encoder.named_parameters("encoder")]
    assert {name for name, _ in parameters} == gradients.keys() == state.keys()
    for name, p in parameters:
        assert (p.grad - gradients[name]).norm() < 2e-5 * (gradients[name].norm() + 1e-3), name


@pytest.mark.parametrize("shape", SHAPES)
def test_states_in_float64_are_those_of_the_formulas(shape: str):
    config, state = ours_of(theirs_of(shape))
    state = {name: value.double() for name, value in state.items()}
    encoder = encoder_of(config, state).double()
    encoder.load_state_dict(part(state, "encoder."))
    lengths = [130, 37, 1, 2, 300, 129]
    ids = torch.randint(3, 99, (sum(lengths),))
    expected = torch.cat([oracle(config, state, text) for text in ids.split(lengths)])
    layout = Layout.of(lengths)
    assert (encoder(ids, layout)[-1] - expected).abs().max() < 1e-10
    with torch.no_grad():
        assert (encoder(ids, layout)[-1] - expected).abs().max() < 1e-10
        firsts = encoder(ids, layout, rows=layout.first.long())[-1]
        assert (firsts - expected[layout.first]).abs().max() < 1e-10


def test_distances_have_a_sign():
    """A reversed text with a reversed table of distances has reversed states; with the same table
    it has others."""
    config, state = ours_of(theirs_of("few buckets"))
    ids = torch.randint(3, 99, (50,))
    layout = Layout.of([50])
    with torch.no_grad():
        wanted = encoder_of(config, state)(ids, layout)[-1]
        same = encoder_of(config, state)(ids.flip(0), layout)[-1].flip(0)
        # row b + S is the distance b; row 0 has no opposite one
        table = state["encoder.distances.table.weight"]
        state["encoder.distances.table.weight"] = torch.cat([table[:1], table[1:].flip(0)])
        turned = encoder_of(config, state)(ids.flip(0), layout)[-1].flip(0)
    assert (turned - wanted).abs().max() < 1e-5
    assert (same - wanted).abs().max() > 0.1


@pytest.mark.parametrize("needs_gradients", [False, True])
def test_packed_texts_are_those_of_one_text_at_a_time(needs_gradients: bool):
    """Also the gradients of all parameters."""
    lengths = [63, 64, 128, 129, 1, 130, 300]
    config, state = ours_of(theirs_of("published buckets"))
    ids = torch.randint(3, 99, (sum(lengths),))
    probe = torch.randn(sum(lengths), 32, dtype=torch.float64)
    results = []
    for parts in ([[n] for n in lengths], [lengths], [lengths[:4], lengths[4:]]):
        encoder = encoder_of(config, state).double()
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


def test_texts_beyond_the_trained_length_are_those_of_transformers():
    theirs = theirs_of("published buckets", num_hidden_layers=2)
    config, state = ours_of(theirs)
    longer = config_from_huggingface(
        theirs.config.to_dict() | {"max_position_embeddings": 2048, "max_relative_positions": 512}
    )
    assert longer.max_relative_positions == config.max_relative_positions == 512
    ids = torch.randint(3, 99, (1100,))  # beyond the length from which blocks are computed
    with torch.no_grad():
        expected = theirs(ids[None]).last_hidden_state[0]
        found = encoder_of(longer, state)(ids, Layout.of([1100]))[-1]
        with pytest.raises(ValueError, match="a sequence of 1100 tokens, but the model has 512"):
            encoder_of(config, state)(ids, Layout.of([1100]))
    assert (found - expected).abs().max() < 3e-5


def test_blocks_that_are_computed_again_have_the_same_gradients():
    config, state = ours_of(theirs_of("few buckets"))
    ids, layout = torch.randint(3, 99, (sum(LENGTHS),)), Layout.of(LENGTHS)
    gradients = []
    for is_checkpointed in (False, True):
        torch.manual_seed(1)
        encoder = Encoder(config, is_checkpointed).train()
        encoder.load_state_dict(part(state, "encoder."))
        torch.manual_seed(2)
        encoder(ids, layout)[-1].square().sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    for a, b in zip(*gradients, strict=True):
        assert a is not None
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("prepare", "off"),
    [(to_fp32_inference, 3e-5), (to_bf16_inference, 0.3), (to_int8_inference, 0.6)],
)
@pytest.mark.parametrize("shape", ["published buckets", "other heads"])
def test_packed_weights_compute_the_same(shape: str, prepare: Any, off: float):
    """Also in a second call, which has the positions of the first one."""
    config, state = ours_of(theirs_of(shape))
    encoder = encoder_of(config, state)
    ids = torch.randint(3, 99, (sum(LENGTHS),))
    layout = Layout.of(LENGTHS)
    with torch.no_grad():
        wanted = encoder(ids, layout)[-1]
        prepared = prepare(encoder)
        first, second = (prepared(ids, layout)[-1].float() for _ in range(2))
    assert torch.equal(first, second)
    assert (first - wanted).abs().max() < off
    assert (first - wanted).norm() < off / 4 * wanted.norm()


def test_attention_maps_are_those_of_transformers():
    theirs = theirs_of("other heads")
    theirs.set_attn_implementation("eager")
    config, state = ours_of(theirs)
    encoder = encoder_of(config, state)
    ids = torch.randint(3, 99, (sum(LENGTHS),))
    rows, mask = padded(ids, LENGTHS)
    expected = theirs(rows, attention_mask=mask.long(), output_attentions=True).attentions
    layout = Layout.of(LENGTHS)
    with torch.no_grad():
        found = encoder.attention_maps(encoder(ids, layout), layout)
    present = mask[:, None, :, None]
    for ours, other in zip(found, expected, strict=True):
        assert (ours - other * present).abs().max() < 1e-5


TASKS = {
    "SequenceClassification": Classification(outputs=3),
    "TokenClassification": Classification(outputs=3, pooled=False),
    "QuestionAnswering": SpanExtraction(),
    "MultipleChoice": MultipleChoice(num_choices=5),
}


@pytest.mark.parametrize("kind", TASKS)
def test_heads_of_tasks_and_their_dropout(kind: str, monkeypatch: pytest.MonkeyPatch):
    """With a dropout that scales instead of zeroing, the outputs in training agree only if its
    places agree."""

    def scale(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 - p) if training else x

    labels = 2 if kind == "QuestionAnswering" else 3
    theirs = theirs_of(
        "few buckets",
        f"For{kind}",
        num_labels=labels,
        cls_dropout=0.3,
        pooler_dropout=0.4,
        hidden_dropout_prob=0.2,
    )
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
            theirs.deberta.eval()
            found, output = model.logits(batch), theirs(**inputs)
            expected = output.logits if "logits" in output else None
            if expected is None:
                expected = torch.stack([output.start_logits, output.end_logits], -1)
            expected = expected.view(found.shape) if task.pooled else expected[mask]
            assert (found - expected).abs().max() < 3e-5
    written = to_huggingface(state, config, f"DebertaV2For{kind}")
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[name], value) for name, value in theirs.state_dict().items())


def test_dropout_within_the_network_is_where_transformers_has_it(monkeypatch: pytest.MonkeyPatch):
    """Also that of the distances, anew in each layer."""

    def scale(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return x * (1 - p) if training else x

    def ours(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
        return x * (1 - p) if residual is None else residual + x * (1 - p)

    theirs = theirs_of("few buckets", hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.5)
    config, state = ours_of(theirs)
    encoder = encoder_of(config, state).train()
    monkeypatch.setattr("torch.nn.functional.dropout", scale)
    for module in ("attention", "embeddings", "disentangled"):
        monkeypatch.setattr(f"bertworks.models.{module}.dropout", ours)

    def kept(*arguments: Any) -> Tensor:
        q, k, v, mask, bias, heads, dropped, *_ = arguments
        assert mask is None
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        scores = (scores.view(-1, heads, *scores.shape[1:]) + bias).flatten(0, 1)
        assert dropped == round(0.5 * 256)
        return scores.softmax(-1) * 0.5 @ v

    monkeypatch.setattr("bertworks.models.kernels._AttentionFunction.apply", kept)
    ids = torch.randint(3, 99, (20,))
    expected = theirs.train()(ids[None], output_hidden_states=True).hidden_states
    for found, wanted in zip(encoder(ids, Layout.of([20])), expected, strict=True):
        assert (found - wanted[0]).abs().max() < 3e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification"])
def test_our_files_open_in_transformers(shape: str, kind: str, tmp_path: Path):
    theirs = theirs_of(shape, kind, num_labels=3, pooler_hidden_act="tanh")
    config, state = ours_of(theirs)
    name = f"DebertaV2{kind}"
    is_task = kind == "ForSequenceClassification"
    written = to_huggingface(state, config, name if is_task else None)
    settings = config_to_huggingface(config, architectures=[name])
    settings |= {"id2label": {str(n): f"LABEL_{n}" for n in range(3)}} if is_task else {}
    is_longest = shape in ("published buckets", "one head")
    assert (settings["max_relative_positions"] == -1) == is_longest
    assert config_from_huggingface(settings) == config
    (tmp_path / "config.json").write_text(json.dumps(settings))
    tensors = {key: value.contiguous().clone() for key, value in written.items()}
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    read, info = getattr(transformers, name).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    for key, value in theirs.state_dict().items():
        assert torch.equal(read.state_dict()[key], value), key
    ids = torch.randint(3, 99, (1, 60))
    with torch.no_grad():
        assert (read.eval()(ids)[0] - theirs(ids)[0]).abs().max() < 1e-5


def test_heads_of_pretraining_are_left_out_by_name():
    """Published files have them, and a position table that nothing reads."""
    theirs = theirs_of("few buckets", "ForMaskedLM", legacy=False)
    config, state = ours_of(theirs)
    tensors = dict(theirs.state_dict())
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.zeros(64, 32)
    for layer in ("dense", "LayerNorm", "classifier"):
        for end in ("weight", "bias"):
            tensors[f"mask_predictions.{layer}.{end}"] = torch.zeros(2)
    found = from_huggingface(tensors, config)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[name], value) for name, value in state.items())
    unread = unread_tensors(tensors, "deberta-v2")
    assert {name.split(".")[0] for name in unread} == {"lm_predictions", "mask_predictions"}
    unread += redundant_tensors(tensors, "deberta-v2")
    kept = {name for name in tensors if name not in unread}
    assert kept == {f"deberta.{name}" for name in to_huggingface(state, config)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relative_attention": False}, "relative_attention is False: only True is supported"),
        ({"relative_attention": None}, "relative_attention is None: only True is supported"),
        ({"share_att_key": False}, "share_att_key is False: only True is supported"),
        ({"position_biased_input": True}, "position_biased_input is True: only False"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd is 'none': only 'layer_norm' is supported"),
        ({"pos_att_type": "c2p"}, "pos_att_type is 'c2p': only 'p2c|c2p' is supported"),
        ({"pos_att_type": ["p2p", "c2p"]}, "pos_att_type is .*p2p.*: only"),
        ({"pos_att_type": 3}, "pos_att_type is 3: only"),
        ({"conv_kernel_size": 3}, "conv_kernel_size is 3: only 0 is supported"),
        ({"type_vocab_size": 2}, "type_vocab_size is 2: only 0 is supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False: only True"),
        ({"position_buckets": -1}, "position_buckets is -1: expected a whole number from 1"),
        ({"position_buckets": 1}, "position_buckets is 1 and max_relative_positions 512: expected"),
        ({"max_relative_positions": 100}, "position_buckets is 256 and max_relative_positions 100"),
        ({"max_relative_positions": 1.5}, "max_relative_positions is 1.5: expected a whole"),
        ({"embedding_size": 128}, "embedding_size is 128 with hidden_size 768.*: only the usual"),
        ({"attention_head_size": 32}, "attention_head_size is 32 .*: only the usual width"),
        ({"pooler_hidden_size": 32}, "pooler_hidden_size is 32, hidden_size is 768: only equal"),
        ({"pooler_hidden_act": "silu"}, 'pooler_hidden_act is \'"silu"\': expected one of "gelu"'),
        ({"hidden_act": "tanh"}, "hidden_act is 'tanh': expected one of gelu"),
        ({"cls_dropout": 2}, "cls_dropout is 2: expected a number from 0 to 1"),
        ({"model_type": "deberta"}, "the family 'deberta' is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], message: str):
    base = {"model_type": "deberta-v2", "hidden_size": 768, **V3}
    with pytest.raises(BertworksError, match=message):
        config_from_huggingface(base | settings)


@pytest.mark.parametrize(
    "name", sorted(V3.keys() - {"max_relative_positions", "type_vocab_size", "layer_norm_eps"})
)
def test_settings_without_which_transformers_computes_another_network(name: str):
    settings = {"model_type": "deberta-v2", **V3}
    assert config_from_huggingface(settings).max_relative_positions == 512
    del settings[name]
    with pytest.raises(BertworksError, match=f"{name}.*: only .*supported"):
        config_from_huggingface(settings)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_buckets": 8}, "position_buckets is 8 and max_relative_positions 0"),
        ({"max_relative_positions": 8}, "position_buckets is 0 and max_relative_positions 8"),
        (
            {"position_buckets": 8, "max_relative_positions": 64},
            "position_buckets is 8 with position_embedding_type 'learned'",
        ),
        (
            {"position_embedding_type": "disentangled", "type_vocab_size": 0},
            "position_buckets is 0 with position_embedding_type 'disentangled'",
        ),
        (
            {"position_embedding_type": "disentangled"},
            "position_embedding_type 'disentangled' with type_vocab_size 2",
        ),
        (
            {
                "position_embedding_type": "disentangled",
                "type_vocab_size": 0,
                "position_buckets": 8,
                "max_relative_positions": 64,
                "direction": "left_to_right",
                "pooler": "last",
            },
            "'disentangled' with direction 'left_to_right'",
        ),
        ({"position_buckets": -2}, "position_buckets is -2: expected a whole number from 0"),
        ({"pooler_input_dropout": 1.0}, "pooler_input_dropout is 1.0: expected a number from 0"),
    ],
)
def test_combinations_without_meaning_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        EncoderConfig(vocab_size=90, **fields)


PUBLISHED = {
    "deberta-v3-xsmall": 70_682_112,
    "deberta-v3-small": 141_304_320,
    "deberta-v3-base": 183_831_552,
    "deberta-v3-large": 434_012_160,
    "mdeberta-v3-base": 278_218_752,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str):
    config = PRESETS[name]
    assert num_parameters(config, []) == PUBLISHED[name]
    settings = config_to_huggingface(config, architectures=["DebertaV2Model"])
    assert config_from_huggingface(settings) == config
    with torch.device("meta"):
        theirs = transformers.DebertaV2Model(transformers.DebertaV2Config(**settings))
        encoder = Encoder(config)
    counts = [sum(p.numel() for p in m.parameters()) for m in (encoder, theirs)]
    assert counts == [PUBLISHED[name]] * 2


def test_distances_belong_to_the_group_of_the_embeddings():
    """Where lower layers have smaller rates."""
    config, _ = ours_of(theirs_of("few buckets"))
    model = TaskModel(config, TASKS["TokenClassification"])
    groups = make_optimizer(model, OptimizerConfig(layer_decay=0.5)).param_groups
    factors = {id(p): group["factor"] for group in groups for p in group["params"]}
    assert model.encoder.distances is not None
    tables = model.encoder.distances.table.weight, model.encoder.embeddings.token.weight
    assert [factors[id(table)] for table in tables] == [0.5**4] * 2


def test_layers_are_selected_with_the_distances_of_all():
    config, state = ours_of(theirs_of("few buckets"))
    smaller, chosen = select_layers(config, state, [0, 2])
    ids, layout = torch.randint(3, 99, (20,)), Layout.of([20])
    with torch.no_grad():
        found = encoder_of(smaller, chosen)(ids, layout)[1]
        assert torch.equal(found, encoder_of(config, state)(ids, layout)[1])
    assert "encoder.distances.table.weight" in chosen


def test_initial_weights_of_distances_are_those_of_other_tables():
    torch.manual_seed(0)
    fields = {"position_buckets": 64, "max_relative_positions": 512}
    config = EncoderConfig(
        vocab_size=9,
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        position_embedding_type="disentangled",
        type_vocab_size=0,
        **fields,
    )
    encoder = Encoder(config)
    assert encoder.distances is not None
    table = encoder.distances.table.weight.detach().numpy()
    assert np.abs(table).max() <= 0.04
    assert 0.015 < table.std() < 0.02
