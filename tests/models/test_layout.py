"""The network against plain arithmetic: packed = padded = one by one, dropout that is one, sizes
that are published."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from bertworks.models.config import BERT_SIZES, EncoderConfig
from bertworks.models.kernels import (
    attention,
)
from bertworks.models.layout import Layout
from bertworks.models.settings import PRETRAINING_HEADS
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
    bias = (lambda part, *_: add_bias(part, weights, keys_layout)) if has_bias else None
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

    def bias(layout, *_):
        return add_bias(layout, weights)

    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            together = block(x, Layout.of(lengths), bias=bias)
            alone = [block(part, Layout.of([len(part)]), bias=bias) for part in x.split(lengths)]
            plain = block(x, Layout.of(lengths))
        torch.testing.assert_close(together, torch.cat(alone), atol=1e-12, rtol=0)
        assert (together - plain).abs().max() > 1e-3
    shown = block.attention.probabilities(x, Layout.of(lengths), bias)
    q, k, _ = block.attention.qkv(x[:5]).view(5, 3, 4, 8).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(8)
    scores = scores + add_bias(Layout.of([5]), weights)[0]
    torch.testing.assert_close(shown[0, :, :5, :5], scores.softmax(-1))


def test_buckets_hold_every_token_once():
    layout = Layout.of([3, 9, 1, 3])
    buckets = layout.buckets
    assert sum(part.num_places for part in buckets.layouts) == len(buckets.tokens)
    assert sum(int(part.present.sum()) for part in buckets.layouts) == 16
    assert buckets.tokens[buckets.places].tolist() == list(range(16))
