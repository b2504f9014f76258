"""Multi-head attention: its maps are those of transformers."""

from dataclasses import replace

import torch
import transformers

from bertworks.models.layout import Layout
from tests.models.test_config import AXES, network


def test_attention_maps_are_those_of_transformers():
    theirs = transformers.GPT2Model(
        transformers.GPT2Config(
            vocab_size=60,
            n_embd=24,
            n_layer=2,
            n_head=4,
            n_positions=16,
            attn_implementation="eager",
        )
    ).eval()
    encoder = network(
        replace(AXES["gpt-2"], num_hidden_layers=2, layer_norm_eps=1e-5), torch.float32
    )
    for block, other in zip(encoder.blocks, theirs.h, strict=True):
        block.attention.qkv.weight.data = other.attn.c_attn.weight.data.T.contiguous()
        block.attention.qkv.bias.data = other.attn.c_attn.bias.data
        block.attention_norm.load_state_dict(other.ln_1.state_dict())
    ids = torch.randint(60, (9,))
    with torch.no_grad():
        expected = theirs(ids[None], output_attentions=True, output_hidden_states=True)
    states = [state[0] for state in expected.hidden_states]
    maps = encoder.attention_maps(states, Layout.of([9]))
    for ours, attention in zip(maps, expected.attentions, strict=True):
        torch.testing.assert_close(ours, attention, atol=1e-6, rtol=0)


def test_states_are_the_values_weighed_by_the_maps():
    encoder = network(AXES["gpt-2"], torch.float64)
    attention, layout = encoder.blocks[0].attention, Layout.of([5])
    states = torch.randn(5, 24, dtype=torch.float64)
    values = attention.qkv(states)[:, 48:].view(5, 4, 6).transpose(0, 1)
    weighed = (attention.probabilities(states, layout)[0] @ values).transpose(0, 1).flatten(1)
    torch.testing.assert_close(attention(states, layout), attention.output(weighed))
