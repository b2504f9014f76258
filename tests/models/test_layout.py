"""The network against plain arithmetic: packed = padded = one by one, dropout that is one, sizes
that are published."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bertworks.models.config import BERT_SIZES, PRETRAINING_HEADS, EncoderConfig
from bertworks.models.embeddings import Embeddings
from bertworks.models.heads import LMHead
from bertworks.models.kernels import (
    Inputs,
    attend,
    attention,
    attention_bucketed,
    attention_inference,
    attention_reference,
)
from bertworks.models.layers import Linear, dropout
from bertworks.models.layout import Layout
from bertworks.models.transformer import Encoder

TINY = EncoderConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=40,
)


def make_row(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    ids = torch.randint(50, (total,), generator=generator)
    return ids, Layout.of(lengths), torch.randint(2, (total,), generator=generator)


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [1, 40, 13, 2], [9, 3]])
@pytest.mark.parametrize("gradients", [True, False])
def test_packed_is_one_by_one(lengths, gradients):
    """Whatever stands beside a sequence never shows, with the training path and with the inference
    path."""
    torch.manual_seed(0)
    encoder = Encoder(TINY).eval()
    ids, layout, types = make_row(lengths)
    with torch.set_grad_enabled(gradients):
        together = encoder(ids, layout, types)
        start = 0
        for length in lengths:
            part = slice(start, start + length)
            alone = encoder(ids[part], Layout.of([length]), types[part])
            for a, b in zip(together, alone, strict=True):
                torch.testing.assert_close(a[part], b, atol=1e-5, rtol=0)
            start += length


@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_that_of_the_paper(masked):
    """softmax(q k' / sqrt(d)) v in float64, and its gradients, against both kernels."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, probe = (
        torch.randn(2, 3, 9, 8, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    present = torch.arange(9)[None] < torch.tensor([[9], [4]])
    mask = present[:, None, None] if masked else None

    def reference(q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(8)
        if masked:
            scores = scores.masked_fill(~present[:, None, None], -torch.inf)
        return scores.softmax(-1) @ v

    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    wanted = torch.autograd.grad((reference(*inputs) * probe).sum(), inputs)
    found = torch.autograd.grad((attend(*inputs, mask) * probe).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(attend(*inputs, mask), reference(q, k, v), atol=1e-12, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(attend(q, k, v, mask), reference(q, k, v), atol=1e-12, rtol=0)


def test_attention_with_dropout_has_the_right_gradient():
    """The same seed drops the same probabilities, so that finite differences apply."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, 2, 5, 4, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(3)
    )

    def dropped(q, k, v):
        torch.manual_seed(7)
        return attend(q, k, v, dropout=0.3)

    assert torch.autograd.gradcheck(dropped, (q, k, v))


def test_attention_dropout_is_right_on_average():
    torch.manual_seed(0)
    q, k = (torch.randn(1, 1, 6, 4).requires_grad_() for _ in range(2))
    v = torch.ones(1, 1, 6, 4)
    mean = torch.stack([attend(q, k, v, dropout=0.25) for _ in range(4000)]).mean()
    assert mean.item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_drops_its_share_and_scales_the_rest(dtype):
    torch.manual_seed(0)
    x = torch.ones(1000, 333, dtype=dtype)
    y = dropout(x, 0.1).float()
    assert y.unique().tolist() == pytest.approx([0.0, 256 / 230], rel=4e-3)
    assert (y == 0).float().mean().item() == pytest.approx(26 / 256, abs=1e-3)
    columns = (y == 0).float().mean(0)  # every byte of a draw is as random as the others
    assert columns.max() - columns.min() < 0.08
    eighths = torch.stack([(y.flatten()[i::8] == 0).float().mean() for i in range(8)])
    assert (eighths - 26 / 256).abs().max() < 4e-3


def test_a_dropout_of_nearly_all_leaves_something():
    torch.manual_seed(0)
    y = dropout(torch.ones(1 << 16), 0.999)
    assert 0 < (y > 0).float().mean() < 0.01
    assert y.mean().item() == pytest.approx(1, abs=0.3)


def test_a_model_of_one_kind_of_text_reads_pairs_as_one_kind():
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=50, hidden_size=32, num_attention_heads=2, num_hidden_layers=1, type_vocab_size=1
    )
    embeddings, ids = Embeddings(config).eval(), torch.arange(12)
    layout = Layout.of([5, 7])
    expected = embeddings(ids, layout, torch.zeros_like(ids))
    torch.testing.assert_close(embeddings(ids, layout, torch.ones_like(ids)), expected)


def test_dropout_adds_the_residual_and_has_the_right_gradient():
    x, residual = (torch.randn(11, 3, dtype=torch.float64).requires_grad_() for _ in range(2))

    def dropped(x, residual):
        torch.manual_seed(3)
        return dropout(x, 0.4, residual)

    assert torch.autograd.gradcheck(dropped, (x, residual))
    torch.manual_seed(3)
    alone = dropout(x, 0.4)
    torch.testing.assert_close(dropped(x, residual), residual + alone)
    assert dropout(x, 0.0) is x


def test_gradient_checkpointing_changes_nothing():
    """With dropout too: the second forward draws the same numbers."""
    ids, layout, types = make_row([9, 4])
    results = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(TINY, checkpointing).train()
        torch.manual_seed(1)
        encoder(ids, layout, types)[-1].square().sum().backward()
        results.append([p.grad for p in encoder.parameters()])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_initial_weights_are_cut_normals():
    torch.manual_seed(0)
    encoder = Encoder(BERT_SIZES["tiny"])
    for name, p in encoder.named_parameters():
        if name.endswith("bias"):
            assert (p == 0).all(), name
        elif "norm" in name:
            assert (p == 1).all(), name
        else:
            assert p.abs().max() <= 0.04, name
            # A normal cut at two deviations has 0.8796 of the deviation.
            assert p.std().item() == pytest.approx(0.02 * 0.8796, rel=0.05), name
    assert encoder.embeddings.token.weight[0].abs().sum() > 0  # [PAD] is drawn like any other


@pytest.mark.parametrize(
    ("size", "millions"),
    [
        ("tiny", 4.4),
        ("mini", 11.2),
        ("small", 28.8),
        ("medium", 41.4),
        ("base", 109.5),
        ("large", 335.1),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(size, millions):
    """Turc et al. 2019, table 1, and google-research/bert: encoder and pooler."""
    c = BERT_SIZES[size]
    pooler = c.hidden_size**2 + c.hidden_size
    assert (c.num_parameters() + pooler) / 1e6 == pytest.approx(millions, rel=0.005)


def test_the_count_of_parameters_is_that_of_the_network():
    from bertworks.training.objectives import PretrainingModel

    assert sum(p.numel() for p in Encoder(TINY).parameters()) == TINY.num_parameters()
    assert sum(p.numel() for p in PretrainingModel(TINY).parameters()) == TINY.num_parameters(
        *PRETRAINING_HEADS
    )


def test_operations_are_counted_as_in_the_published_table():
    """BERT-Base at length 128 with the head on 15 %: 0.545 GFLOP per token of training."""
    assert BERT_SIZES["base"].flops_per_token(128, 0.15) / 1e9 == pytest.approx(0.545, abs=0.001)
    assert BERT_SIZES["large"].flops_per_token(512, 0.15) / 1e9 == pytest.approx(1.992, abs=0.002)


def test_gelu_is_exact_or_the_approximation():
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    exact = torch.tensor(
        [v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()], dtype=torch.float64
    )
    tanh = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    from bertworks.models.layers import ACTIVATIONS

    torch.testing.assert_close(ACTIVATIONS["gelu"](x), exact)
    torch.testing.assert_close(ACTIVATIONS["gelu_tanh"](x), tanh)
    assert (exact - tanh).abs().max() > 1e-4  # they are not the same


def test_the_head_is_tied_to_the_table_it_is_given():
    head = LMHead(TINY)
    x, words = torch.randn(5, 32), torch.randn(50, 32)
    transformed = nn.functional.layer_norm(nn.functional.gelu(head.dense(x)), (32,), eps=1e-12)
    torch.testing.assert_close(head(x, words), transformed @ words.T + head.bias)


def test_layout_knows_places():
    layout = Layout.of([2, 4, 1])
    assert layout.cu_seqlens.tolist() == [0, 2, 6, 7]
    assert layout.position_ids.tolist() == [0, 1, 0, 1, 2, 3, 0]
    assert layout.first.tolist() == [0, 2, 6]
    x = torch.arange(1, 8)
    padded = layout.pad(x)
    assert padded.tolist() == [[1, 2, 0, 0], [3, 4, 5, 6], [7, 0, 0, 0]]
    assert layout.present.tolist() == (padded > 0).tolist()
    assert torch.equal(layout.unpad(padded), x)
    assert Layout.of([3, 3]).is_uniform


@pytest.mark.parametrize(
    ("lengths", "together"),
    [
        ([7], [[7]]),
        ([20, 30, 30], [[20, 30, 30]]),
        ([10, 20, 200, 210], [[10, 20], [200, 210]]),
        ([10, 20, 200, 250], [[10, 20], [200], [250]]),
        ([150, 1, 2], [[150], [1, 2]]),
    ],
)
def test_sequences_are_grouped_where_padding_costs_little(lengths, together):
    groups = Layout.of(lengths).groups
    assert [group.cu_seqlens.diff().tolist() for group in groups] == together
    assert [group.max_seqlen for group in groups] == list(map(max, together))


def test_groups_change_no_gradient(monkeypatch):
    torch.manual_seed(0)
    encoder = Encoder(TINY).double().eval()
    ids, _, types = make_row(lengths := [3, 9, 20, 33, 40])
    found = {}
    for waste in (0, 1000, math.inf):
        monkeypatch.setattr("bertworks.models.layout.WASTE", waste)
        layout = Layout.of(lengths)
        encoder.zero_grad()
        encoder(ids, layout, types)[-1].pow(3).sum().backward()
        found[len(layout.groups)] = [p.grad.clone() for p in encoder.parameters()]
    assert sorted(found) == [1, 2, 5]
    for gradients in found.values():
        torch.testing.assert_close(gradients, found[1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("direction", ["bidirectional", "left_to_right", "right_to_left", "mixed"])
def test_attention_in_buckets_is_attention(direction, monkeypatch):
    """What bf16 on a CPU computes in training, here in float64: values and gradients, whatever a
    token reads."""
    monkeypatch.setattr("bertworks.models.kernels.compiles_sizes", lambda _: True)
    torch.manual_seed(0)
    lengths = [3, 1, 20, 512, 33, 64, 64, 17, 40, 2]  # the longest fills its bucket
    layout = Layout.of(lengths)
    if direction == "mixed":
        layout = replace(layout, rank=torch.randint(3, layout.position_ids.shape))
    else:
        layout = layout.directed(direction)
    qkv, weights = (
        torch.randn(sum(lengths), 3, 4, 8).double().requires_grad_(),
        torch.randn(sum(lengths), 4, 8).double(),
    )
    assert len(layout.buckets.sizes) > 2
    inputs = Inputs(*qkv.unbind(1), layout)
    wanted, found = attention_reference(inputs), attention_bucketed(inputs)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-12)
    gradients = [torch.autograd.grad((x * weights).sum(), qkv)[0] for x in (wanted, found)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


def test_too_long_a_sequence_is_refused():
    ids, layout, types = make_row([41])
    with pytest.raises(ValueError, match="40 positions"):
        Encoder(TINY)(ids, layout, types)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": -1},
        {"hidden_size": 100, "num_attention_heads": 3},
        {"hidden_dropout": 1.0},
        {"vocab_size": 10**10},
        {"num_attention_heads": "4"},
    ],
)
def test_absurd_configurations_are_refused(settings):
    with pytest.raises(ValueError, match=r"expected|divide"):
        EncoderConfig(**settings)


def test_inference_leaves_no_trace_of_the_batch():
    """The same text in ten different companies: the same vectors."""
    torch.manual_seed(0)
    encoder = Encoder(TINY).eval()
    r = np.random.default_rng(0)
    text, _, types = make_row([11], seed=5)
    with torch.no_grad():
        alone = encoder(text, Layout.of([11]), types)[-1]
        for seed in range(10):
            others = r.integers(1, 40, 4).tolist()
            ids, _, more_types = make_row(others, seed)
            row = torch.cat([ids, text]), Layout.of([*others, 11]), torch.cat([more_types, types])
            cosine = nn.functional.cosine_similarity(encoder(*row)[-1][-11:], alone, dim=-1)
            assert cosine.min() > 0.99999


def test_a_last_layer_for_some_tokens_is_that_of_all():
    torch.manual_seed(0)
    encoder = Encoder(TINY)
    ids, layout, types = make_row([9, 4, 20])
    rows = torch.tensor([30, 0, 5, 12, 9])
    encoder.eval()
    every, some = encoder(ids, layout, types), encoder(ids, layout, types, rows)
    assert some[-1].shape == (5, 32)
    torch.testing.assert_close(some[-1], every[-1][rows], atol=1e-6, rtol=0)
    probe = torch.randn(5, 32)
    wanted = torch.autograd.grad((every[-1][rows] * probe).sum(), list(encoder.parameters()))
    found = torch.autograd.grad((some[-1] * probe).sum(), list(encoder.parameters()))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_bf16_product_and_its_gradients_are_those_of_float64():
    """Rounded once on the way: of numbers near 1 the eighth bit is the last."""
    torch.manual_seed(2)
    layer, x = Linear(48, 33), torch.randn(5, 7, 48)
    with torch.no_grad():
        layer.bias.normal_()
    probe = torch.randn(5, 7, 33).bfloat16()
    layer.bfloat16()
    rounded = x.bfloat16().requires_grad_()
    found = layer(rounded)
    grads = torch.autograd.grad((found * probe).sum(), (rounded, layer.weight, layer.bias))
    exact = [t.detach().double().requires_grad_() for t in (rounded, layer.weight, layer.bias)]
    wanted = exact[0] @ exact[1].T + exact[2]
    assert (found - wanted).norm() / wanted.norm() < 4e-3
    for a, b in zip(grads, torch.autograd.grad((wanted * probe).sum(), exact), strict=True):
        assert a.shape == b.shape
        assert (a - b).norm() / b.norm() < 4e-3


@pytest.mark.parametrize(
    "lengths", [[5] * 20 + [7] * 10 + [61] * 3 + [100], [61], [64] * 2, [13] * 4, [30, 30, 17, 3]]
)
def test_no_sequence_sees_the_next_one(lengths: list[int]):
    """Against float64, where the keys of a run reach into the tokens behind it; their values are
    large here."""
    torch.manual_seed(len(lengths))
    layout, qkv = Layout.of(lengths), torch.randn(sum(lengths), 3, 2, 8)
    qkv[:, 2] += torch.arange(sum(lengths))[:, None, None]
    with torch.no_grad():
        found = attention_inference(Inputs(*qkv.unbind(1), layout))
    wanted = []
    for part in qkv.double().split(lengths):
        q, k, v = part.permute(1, 2, 0, 3)
        wanted.append((q @ k.transpose(1, 2) / math.sqrt(8)).softmax(-1) @ v)
    torch.testing.assert_close(
        found.double(), torch.cat([one.transpose(0, 1) for one in wanted]), rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 3e38])
def test_a_sequence_that_overflows_damages_no_other(bad: float):
    torch.manual_seed(0)
    layout, qkv = Layout.of([13] * 5 + [14] * 6), torch.randn(149, 3, 2, 8)
    with torch.no_grad():
        wanted = attention_inference(Inputs(*qkv.unbind(1), layout))
        qkv[65:79] = bad
        found = attention_inference(Inputs(*qkv.unbind(1), layout))
    others = [*range(65), *range(79, 149)]
    torch.testing.assert_close(found[others], wanted[others])


def causal_keys(layout, keys_layout):
    """A query reads the keys up to its own place."""
    return layout.directed("left_to_right"), keys_layout.directed("left_to_right")


def add_bias(layout, weights, keys_layout=None):
    """[1, heads, queries, keys]: a number for each head and distance from query to key, as networks
    with relative positions have."""
    places = torch.arange(layout.max_seqlen)[:, None]
    keys = torch.arange((keys_layout or layout).max_seqlen)[None]
    return weights[:, (keys - places).clamp(-9, 9) + 9][None]


def plain_attention(q, k, v, lengths, key_lengths, weights=None, causal=False):
    """One sequence after the other, by autograd."""
    contexts = []
    parts = zip(q.split(lengths), k.split(key_lengths), v.split(key_lengths), strict=True)
    for queries, keys, values in parts:
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(q.shape[-1])
        distance = torch.arange(len(keys))[None] - torch.arange(len(queries))[:, None]
        if weights is not None:
            scores = scores + weights[:, distance.clamp(-9, 9) + 9]
        if causal:
            scores = scores.masked_fill(distance > 0, -torch.inf)
        contexts.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
    return torch.cat(contexts)


LENGTHS = [3, 1, 20, 33, 17, 17, 64, 2]
BIAS_PATHS = {
    "reference": ("bidirectional", False),
    "ranks": ("left_to_right", False),
    "buckets": ("bidirectional", True),
    "buckets with ranks": ("left_to_right", True),
}


@pytest.mark.parametrize("path", BIAS_PATHS)
@pytest.mark.parametrize("lengths", [LENGTHS, [16, 16], [9]])
def test_a_bias_and_its_gradient_are_those_of_float64(path, lengths, monkeypatch):
    """On each path of training, for padded sequences, rectangles and a single sequence."""
    direction, is_bucketed = BIAS_PATHS[path]
    monkeypatch.setattr("bertworks.models.kernels.compiles_sizes", lambda _: is_bucketed)
    torch.manual_seed(0)
    layout = Layout.of(lengths).directed(direction)
    qkv = torch.randn(sum(lengths), 3, 4, 8).double().requires_grad_()
    weights = torch.randn(4, 19).double().requires_grad_()
    probe = torch.randn(sum(lengths), 4, 8).double()
    q, k, v = qkv.unbind(1)
    is_causal = direction == "left_to_right"
    expected = plain_attention(q, k, v, lengths, lengths, weights, is_causal)
    context = attention(q, k, v, layout, bias=lambda part: add_bias(part, weights))
    torch.testing.assert_close(context, expected, atol=1e-12, rtol=1e-12)
    gradients = [
        torch.autograd.grad((x * probe).sum(), (qkv, weights)) for x in (expected, context)
    ]
    torch.testing.assert_close(*gradients, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("lengths", [LENGTHS, [16, 16], [9], [13] * 6 + [40]])
@pytest.mark.parametrize("peak", [0.0, 300.0])
def test_a_bias_in_inference_is_that_of_float64(dtype, off, lengths, peak):
    """With a peak of 300, exponentials without a subtracted maximum would overflow."""
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 4, 8).to(dtype)
    weights = torch.randn(4, 19).to(dtype)
    weights[:, 9] += peak
    with torch.no_grad():
        q, k, v = qkv.unbind(1)
        layout = Layout.of(lengths)
        context = attention(q, k, v, layout, bias=lambda part: add_bias(part, weights))
    exact = [x.double() for x in (q, k, v)]
    expected = plain_attention(*exact, lengths, lengths, weights.double())
    torch.testing.assert_close(context.double(), expected, atol=off, rtol=off)


def test_a_bias_with_dropout_has_the_right_gradient():
    torch.manual_seed(0)
    q, k, v, bias = (
        torch.randn(*shape).double().requires_grad_()
        for shape in ((2, 2, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4), (1, 2, 5, 5))
    )

    def dropped(q, k, v, bias):
        torch.manual_seed(7)
        return attend(q, k, v, bias=bias, dropout=0.3)

    assert torch.autograd.gradcheck(dropped, (q, k, v, bias))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_attention_to_other_keys_is_a_plain_softmax(has_bias, causal, gradients):
    """As many sequences of keys, of other lengths: packed is one by one, with and without ranks."""
    torch.manual_seed(0)
    lengths, key_lengths = [3, 7, 1, 12], [5, 2, 30, 12]
    layout, keys_layout = Layout.of(lengths), Layout.of(key_lengths)
    if causal:
        layout, keys_layout = causal_keys(layout, keys_layout)
    q = torch.randn(sum(lengths), 4, 8).double().requires_grad_()
    kv = torch.randn(sum(key_lengths), 2, 4, 8).double().requires_grad_()
    weights = torch.randn(4, 19).double().requires_grad_()
    probe = torch.randn(sum(lengths), 4, 8).double()
    k, v = kv.unbind(1)
    bias = (lambda part: add_bias(part, weights, keys_layout)) if has_bias else None
    with torch.set_grad_enabled(gradients):
        context = attention(q, k, v, layout, keys_layout=keys_layout, bias=bias)
    expected = plain_attention(q, k, v, lengths, key_lengths, weights if has_bias else None, causal)
    torch.testing.assert_close(context, expected, atol=1e-12, rtol=1e-12)
    if gradients:
        inputs = (q, kv, weights) if has_bias else (q, kv)
        found = [torch.autograd.grad((x * probe).sum(), inputs) for x in (expected, context)]
        torch.testing.assert_close(*found, atol=1e-11, rtol=1e-11)


def test_a_block_with_a_bias_is_packed_as_alone():
    """Training and inference of a whole encoder's block, and the attention that it shows."""
    torch.manual_seed(0)
    block = Encoder(TINY).double().eval().blocks[0]
    weights, lengths = torch.randn(4, 19).double(), [5, 17, 17, 2]
    x = torch.randn(sum(lengths), 32).double()

    def bias(layout):
        return add_bias(layout, weights)

    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            together = block(x, Layout.of(lengths), bias=bias)
            alone = [block(part, Layout.of([len(part)]), bias=bias) for part in x.split(lengths)]
            plain = block(x, Layout.of(lengths))
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-12, rtol=0)
        assert (together - plain).abs().max() > 1e-3
    shown = block.attention.probabilities(x, Layout.of(lengths), bias)
    q, k, _ = block.attention._heads(block.attention.qkv(x[:5])).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(8)
    scores = scores + add_bias(Layout.of([5]), weights)[0]
    torch.testing.assert_close(shown[0, :, :5, :5], scores.softmax(-1))
