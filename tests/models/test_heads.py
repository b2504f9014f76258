"""The heads of a network: poolers and language-model heads."""

from dataclasses import replace

import torch
from torch import nn

from bertworks.models.heads import LMHead, Pooler, pool
from bertworks.models.layout import Layout
from tests.models.test_config import SMALL
from tests.models.test_layout import TINY


def test_poolers_and_lm_heads():
    torch.manual_seed(0)
    x, table, layout = torch.randn(4, 24), torch.randn(60, 24), Layout.of([3, 1])
    for kind, function in (
        ("tanh", torch.tanh),
        ("gelu", torch.nn.functional.gelu),
        ("relu", torch.relu),
    ):
        pooler = Pooler(replace(SMALL, pooler=f"first_{kind}"))
        assert pooler.dense is not None
        pooler.dense.bias.data.normal_()
        torch.testing.assert_close(
            pooler(x), function(x @ pooler.dense.weight.T + pooler.dense.bias)
        )
        assert pooler.tokens(layout).tolist() == [0, 3]
    last = Pooler(replace(SMALL, pooler="last"))
    assert torch.equal(last(x), x)
    assert last.tokens(layout).tolist() == [2, 3]
    assert torch.equal(LMHead(replace(SMALL, lm_head="plain"))(x, table), x @ table.T)
    head = LMHead(replace(SMALL, lm_head="bias"))
    head.bias.data.normal_()
    torch.testing.assert_close(head(x, table), x @ table.T + head.bias)


def test_the_head_is_tied_to_the_table_it_is_given():
    head = LMHead(TINY)
    x, words = torch.randn(5, 32), torch.randn(50, 32)
    transformed = nn.functional.layer_norm(nn.functional.gelu(head.dense(x)), (32,), eps=1e-12)
    torch.testing.assert_close(head(x, words), transformed @ words.T + head.bias)


def test_vectors_of_texts_are_means_and_maxima_of_their_tokens():
    states = [torch.randn(5, 4) for _ in range(6)]
    first, second = states[-1][:2], states[-1][2:]
    layout = Layout.of([2, 3])
    expected = torch.stack([first.mean(0), second.mean(0)])
    torch.testing.assert_close(pool(states, layout, "mean"), expected)
    expected = torch.stack([first.amax(0), second.amax(0)])
    torch.testing.assert_close(pool(states, layout, "max"), expected)
    last = torch.stack(states[2:]).mean(0)
    expected = torch.stack([last[:2].mean(0), last[2:].mean(0)])
    torch.testing.assert_close(pool(states, layout, "last-four"), expected)
