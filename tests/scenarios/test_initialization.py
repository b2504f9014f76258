"""The first layer begins by looking at the neighbours, at any size; nothing else of the network
changes."""

from dataclasses import replace

import pytest
import torch

from bertworks.models.config import BERT_SIZES
from bertworks.models.layout import Layout
from bertworks.models.transformer import SHIFTS, Encoder, init_local_attention


def attention_of_the_first_layer(encoder: Encoder, length: int) -> torch.Tensor:
    """[heads, length, length]."""
    ids, layout = torch.randint(5, encoder.config.vocab_size, (length,)), Layout.of([length])
    attention = encoder.blocks[0].attention
    q, k, _ = (
        attention.qkv(encoder.embeddings(ids, layout))
        .view(length, 3, attention.num_heads, -1)
        .unbind(1)
    )
    return (torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5).softmax(-1)


@pytest.mark.parametrize(
    ("size", "deviation", "width"),
    [
        ("tiny", 0.06, 0),
        ("mini", 0.04, 0),
        ("small", 0.02, 0),
        ("base", 0.02, 0),
        ("tiny", 0.06, 64),
        ("mini", 0.04, 128),
        ("base", 0.02, 128),
    ],
)
def test_heads_look_where_they_should(size, deviation, width):
    torch.manual_seed(0)
    config = replace(
        BERT_SIZES[size], vocab_size=500, num_hidden_layers=1, initializer_range=deviation
    )
    config = replace(config, embedding_size=width)
    encoder = Encoder(config).eval()
    init_local_attention(encoder)
    with torch.no_grad():
        probabilities = attention_of_the_first_layer(encoder, 64)
    for head, shift in zip(probabilities, SHIFTS, strict=False):
        near = sum(head.diagonal(shift + around).sum() for around in (-1, 0, 1)) / 64
        assert near > 0.35  # evenly spread it would be 0.05
        assert head.diagonal(shift).mean() > 1.5 * head.diagonal(-shift).mean()


@pytest.mark.parametrize("width", [0, 64])
def test_only_positions_queries_and_keys_are_touched(width):
    encoders = []
    for touched in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(replace(BERT_SIZES["tiny"], vocab_size=100, embedding_size=width))
        if touched:
            init_local_attention(encoder)
        encoders.append(dict(encoder.named_parameters()))
    changed = {name for name, p in encoders[0].items() if not torch.equal(p, encoders[1][name])}
    expected = {"embeddings.position.weight", "blocks.0.attention.qkv.weight"}
    assert changed == expected | ({"embeddings.projection.weight"} if width else set())
    weights = [e["blocks.0.attention.qkv.weight"] for e in encoders]
    assert torch.equal(weights[0][256:], weights[1][256:])  # the values
