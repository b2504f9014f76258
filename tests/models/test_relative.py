"""Relative attention: against transformers' XLNet in both directions and with a memory, against a
formula in float64, and against itself in other batches, with a cache and in other precisions."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bertworks.models.cache import KeyValueCache
from bertworks.models.config import EncoderConfig
from bertworks.models.embeddings import sinusoids
from bertworks.models.layout import Layout
from bertworks.models.transformer import (
    Encoder,
    to_bf16_inference,
    to_fp32_inference,
    to_int8_inference,
)

BOTH = EncoderConfig(
    vocab_size=101,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=64,
    position_embedding_type="relative",
    relative_segments=True,
    type_vocab_size=0,
    embedding_norm=False,
    attention_bias=False,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    lm_head="bias",
    pooler="last_tanh",
)
LEFT = replace(
    BOTH,
    relative_segments=False,
    direction="left_to_right",
    memory_length=12,
    hidden_act="relu",
)
LENGTHS = [13, 1, 2, 7, 30]


def network(c: EncoderConfig, dtype: torch.dtype = torch.float64) -> Encoder:
    """A network of which no bias and no norm has its initial values."""
    torch.manual_seed(0)
    encoder = Encoder(c).to(dtype).eval()
    with torch.no_grad():
        for p in encoder.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return encoder


def pair(c: EncoderConfig, **settings: Any) -> tuple[torch.nn.Module, Encoder]:
    """A network of transformers and ours with the same weights, in float32."""
    settings = {"mem_len": None, "reuse_len": None, "clamp_len": c.clamp_length or -1} | settings
    theirs = transformers.XLNetModel(
        transformers.XLNetConfig(
            vocab_size=c.vocab_size,
            d_model=c.hidden_size,
            n_layer=c.num_hidden_layers,
            n_head=c.num_attention_heads,
            d_inner=c.ffn_size,
            dropout=0.0,
            ff_activation=c.hidden_act,
            attn_type="uni" if c.direction == "left_to_right" else "bi",
            bi_data=False,
            **settings,
        )
    ).eval()
    ours = network(c, torch.float32)
    with torch.no_grad():
        theirs.word_embedding.weight.copy_(ours.embeddings.token.weight)
        for block, layer in zip(ours.blocks, theirs.layer, strict=True):
            a, other = block.attention, layer.rel_attn
            key, value = a.key_value.weight.chunk(2)
            matrices = (a.query.weight, key, value, a.position.weight)
            for name, matrix in zip("qkvr", matrices, strict=True):
                folded = getattr(other, name)
                folded.copy_(matrix.t().reshape(folded.shape))
            other.o.copy_(a.output.weight.reshape(other.o.shape))
            other.r_w_bias.copy_(a.content_bias)
            other.r_r_bias.copy_(a.position_bias)
            if a.segment is not None:
                other.r_s_bias.copy_(a.segment_bias)
                other.seg_embed.copy_(a.segment)
            other.layer_norm.load_state_dict(block.attention_norm.state_dict())
            layer.ff.layer_norm.load_state_dict(block.feed_forward_norm.state_dict())
            layer.ff.layer_1.load_state_dict(block.feed_forward.up.state_dict())
            layer.ff.layer_2.load_state_dict(block.feed_forward.down.state_dict())
    return theirs, ours


def next_memory(memory: list[Tensor] | None, states: list[Tensor], most: int) -> list[Tensor]:
    """The last states before each layer, of texts of one length."""
    count = len(states[0]) if memory is None else len(memory[0])
    new = [x.detach().view(count, -1, x.shape[-1]) for x in states[:-1]]
    if memory is not None:
        new = [torch.cat(both, 1) for both in zip(memory, new, strict=True)]
    return [x[:, -most:] for x in new]


def oracle(c: EncoderConfig, encoder: Encoder, ids: Tensor, types: Tensor | None) -> Tensor:
    """The last states of one text by the formula of the scores, one pair of tokens at a time."""
    length, size = len(ids), c.hidden_size // c.num_attention_heads
    x = encoder.embeddings.token.weight[ids]
    for block in encoder.blocks:
        a = block.attention
        q = a.query(x).view(length, -1, size)
        k, v = a.key_value(x).view(length, 2, -1, size).unbind(1)
        scores = torch.full((c.num_attention_heads, length, length), -math.inf).to(x)
        for i in range(length):
            for j in range(length if c.direction == "bidirectional" else i + 1):
                distance = torch.tensor([i - j])
                if c.clamp_length:
                    distance = distance.clamp(-c.clamp_length, c.clamp_length)
                r = a.position(sinusoids(distance, c.hidden_size).to(x)).view(-1, size)
                score = ((q[i] + a.content_bias) * k[j]).sum(-1)
                score = score + ((q[i] + a.position_bias) * r).sum(-1)
                if types is not None:
                    kind = a.segment[int(types[i] != types[j])]
                    score = score + ((q[i] + a.segment_bias) * kind).sum(-1)
                scores[:, i, j] = score / math.sqrt(size)
        context = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1)
        x = block.attention_norm(x + a.output(context))
        x = block.feed_forward_norm(x + block.feed_forward(x))
    return x


@pytest.mark.parametrize("clamp_length", [0, 4])
def test_three_segments_with_memory_are_those_of_transformers(clamp_length: int):
    c = replace(LEFT, clamp_length=clamp_length)
    theirs, ours = pair(c, mem_len=12, use_mems_eval=True)
    texts = torch.randint(101, (3, 24))
    memory = mems = None
    for segment in texts.split(8, 1):
        with torch.no_grad():
            expected = theirs(segment, mems=mems)
            states = ours(segment.flatten(), Layout.of([8] * 3), memory=memory)
        mems = expected.mems
        difference = states[-1].view(3, 8, -1) - expected.last_hidden_state
        assert difference.abs().max() < 3e-6
        old = memory or [x.new_zeros(3, 0, 32) for x in states[:-1]]
        memory = next_memory(old, states, 12)
        for kept, other in zip(memory, mems, strict=True):
            assert (kept - other.transpose(0, 1)).abs().max() < 3e-6


def test_segments_with_memory_are_one_pass_over_the_text():
    """As long as the memory reaches the beginning of the text; in any number of parts."""
    encoder = network(replace(LEFT, memory_length=24))
    texts = torch.randint(101, (3, 24))
    whole = encoder(texts.flatten(), Layout.of([24] * 3))[-1].view(3, 24, -1)
    for parts in ([8, 8, 8], [1, 22, 1], [5, 19]):
        memory = [torch.zeros(3, 0, 32, dtype=torch.float64)] * 3
        outputs = []
        for segment in texts.split(parts, 1):
            count = segment.shape[1]
            states = encoder(segment.flatten(), Layout.of([count] * 3), memory=memory)
            memory = next_memory(memory, states, 24)
            outputs.append(states[-1].view(3, count, -1))
        assert (torch.cat(outputs, 1) - whole).abs().max() < 1e-12


@pytest.mark.parametrize("has_types", [False, True])
def test_states_and_gradients_of_both_directions_are_those_of_transformers(has_types: bool):
    theirs, ours = pair(BOTH)
    ids = torch.randint(101, (sum(LENGTHS),))
    types = torch.randint(3, ids.shape) if has_types else None
    rows = torch.nn.utils.rnn.pad_sequence(ids.split(LENGTHS), batch_first=True)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    others = None
    if types is not None:
        others = torch.zeros_like(rows)
        others[mask] = types
    expected = theirs(rows, attention_mask=mask.float(), token_type_ids=others)[0][mask]
    states = ours(ids, Layout.of(LENGTHS), types)[-1]
    assert (states - expected).abs().max() < 5e-6
    probe = torch.randn_like(states)
    (states * probe).sum().backward()
    (expected * probe).sum().backward()
    for block, layer in zip(ours.blocks, theirs.layer, strict=True):
        a, other = block.attention, layer.rel_attn
        folded = {n: getattr(other, n).grad.reshape(32, -1) for n in "qkvro"}
        found = {
            "q": a.query.weight.grad.t(),
            "k": a.key_value.weight.grad[:32].t(),
            "v": a.key_value.weight.grad[32:].t(),
            "r": a.position.weight.grad.t(),
            "o": a.output.weight.grad,
            "content": a.content_bias.grad,
            "position": a.position_bias.grad,
        }
        wanted = folded | {"content": other.r_w_bias.grad, "position": other.r_r_bias.grad}
        if has_types:
            found |= {"of segments": a.segment_bias.grad, "segments": a.segment.grad}
            wanted |= {"of segments": other.r_s_bias.grad, "segments": other.seg_embed.grad}
        for name, gradient in found.items():
            scale = 1 + wanted[name].abs().max()
            assert (gradient - wanted[name]).abs().max() < 2e-5 * scale, name


@pytest.mark.parametrize("clamp_length", [0, 3])
@pytest.mark.parametrize("c", [BOTH, LEFT], ids=["both directions", "left to right"])
def test_states_are_those_of_the_formula(c: EncoderConfig, clamp_length: int):
    c = replace(c, clamp_length=clamp_length)
    encoder = network(c)
    ids = torch.randint(101, (9,))
    types = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1, 2]) if c.relative_segments else None
    with torch.no_grad():
        expected = oracle(c, encoder, ids, types)
        states = encoder(ids, Layout.of([9]), types)
    assert (states[-1] - expected).abs().max() < 1e-12
    assert (encoder(ids, Layout.of([9]), types)[-1] - expected).abs().max() < 1e-12


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("c", [BOTH, LEFT], ids=["both directions", "left to right"])
def test_packed_texts_are_those_of_one_text_at_a_time(c: EncoderConfig, has_memory: bool):
    """Also the gradients of all parameters, some rows of the last layer, and without gradients."""
    lengths = [40, 13, 1, 2, 7, 30, 90]  # several rectangles
    ids = torch.randint(101, (sum(lengths),))
    types = torch.randint(2, ids.shape)
    past = [torch.randn(len(lengths), 5, 32, dtype=torch.float64) for _ in range(3)]
    probe = torch.randn(len(ids), 32, dtype=torch.float64)
    results = []
    for sizes in ([1] * len(lengths), [len(lengths)], [3, 4]):
        encoder = network(c)
        states, first, start = [], 0, 0
        for size in sizes:
            part = lengths[first : first + size]
            end = start + sum(part)
            memory = [x[first : first + size] for x in past] if has_memory else None
            inputs = ids[start:end], Layout.of(part), types[start:end]
            states.append(encoder(*inputs, memory=memory)[-1])
            last = Layout.of(part).last.long()
            with torch.no_grad():
                quick = encoder(*inputs, memory=memory)[-1]
                some = encoder(*inputs, rows=last, memory=memory)[-1]
            assert (quick - states[-1]).abs().max() < 1e-12
            assert (some - states[-1][last]).abs().max() < 1e-12
            start, first = end, first + size
        result = torch.cat(states)
        (result * probe).sum().backward()
        gradients = [p.grad for name, p in encoder.named_parameters() if name != "query"]
        results.append([result, *gradients])
    for result in results[1:]:
        for found, wanted in zip(result, results[0], strict=True):
            assert (found - wanted).norm() <= 1e-10 * (1 + wanted.norm())


def test_no_gradient_passes_into_the_memory_and_every_state_of_it_is_read():
    encoder = network(LEFT)
    memory = [torch.randn(2, 5, 32, dtype=torch.float64).requires_grad_() for _ in range(3)]
    ids, layout = torch.randint(101, (14,)), Layout.of([7, 7])
    states = encoder(ids, layout, memory=memory)[-1]
    states.sum().backward()
    assert all(x.grad is None for x in memory)
    for number in range(3):
        other = [x.detach().clone() for x in memory]
        other[number][1, 0] += 1
        changed = (encoder(ids, layout, memory=other)[-1] - states).abs().amax(1) > 1e-9
        assert changed.tolist() == [False] * 7 + [True] * 7


def test_without_a_rank_of_its_own_a_token_reads_those_of_lower_ranks():
    """Any order of reading, also together with a memory."""
    encoder = network(replace(BOTH, num_hidden_layers=1))
    rank = torch.tensor([2, -1, 0, 1, -1, 3])
    layout = replace(Layout.of([6]), rank=rank)
    memory = [torch.randn(1, 2, 32, dtype=torch.float64)]
    ids = torch.arange(6)
    for has_memory in (False, True):
        past = memory if has_memory else None
        states = encoder(ids, layout, memory=past)[-1]
        for number in range(6):
            other = ids.clone()
            other[number] = 50
            changed = (encoder(other, layout, memory=past)[-1] != states).any(1)
            assert changed.tolist() == (rank >= rank[number]).tolist()


def ranks_of(lengths: list[int], targets: list[list[int]]) -> Tensor:
    """A random order of the targets and of the last two tokens; -1: tokens that all others read."""
    parts = []
    for length, places in zip(lengths, targets, strict=True):
        rank = torch.full((length,), -1)
        ordered = [*places, length - 2, length - 1]
        rank[ordered] = torch.randperm(len(ordered))
        parts.append(rank)
    return torch.cat(parts)


LONGER = [11, 7, 13, 5]
TARGETS = [[1, 4, 6], [2, 3], [0, 5, 9], [1]]
PLACES = torch.tensor(
    [place + sum(LONGER[:number]) for number, row in enumerate(TARGETS) for place in row]
)


@pytest.mark.parametrize("num_before", [0, 6])
def test_predictions_and_gradients_in_an_order_are_those_of_transformers(num_before: int):
    theirs, ours = pair(BOTH)
    model = transformers.XLNetLMHeadModel(theirs.config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
        model.transformer.load_state_dict(theirs.state_dict())
        model.transformer.mask_emb.copy_(ours.query.view(1, 1, -1))
    ids = torch.randint(101, (sum(LONGER),))
    types = torch.randint(3, ids.shape)
    rank = ranks_of(LONGER, TARGETS)
    count = max(LONGER)
    rows, kinds = (torch.zeros(4, count, dtype=torch.long) for _ in range(2))
    mask = torch.arange(count) < torch.tensor(LONGER)[:, None]
    rows[mask], kinds[mask] = ids, types
    hidden = torch.zeros(4, count, count)
    asked = torch.zeros(4, 3, count)
    for number, (ranks, targets) in enumerate(zip(rank.split(LONGER), TARGETS, strict=True)):
        own = ranks + 1  # the other tokens read themselves
        own[targets] -= 1
        length = len(ranks)
        hidden[number, :length, :length] = ((ranks >= 0) & (own[:, None] <= ranks)).float()
        asked[number, range(len(targets)), targets] = 1
    inputs = {"attention_mask": mask.float(), "token_type_ids": kinds}
    past = None
    if num_before:
        past = [torch.randn(4, num_before, 32) for _ in range(3)]
        inputs["mems"] = [states.transpose(0, 1) for states in past]
    logits = model(rows, **inputs, perm_mask=hidden, target_mapping=asked).logits
    expected = torch.cat([row[: len(t)] for row, t in zip(logits, TARGETS, strict=True)])
    layout = replace(Layout.of(LONGER), rank=rank)
    states, before = ours.read(ids, layout, PLACES, types, past)
    assert len(before) == 3
    found = states @ ours.embeddings.token.weight.t() + model.lm_loss.bias
    assert (found - expected).abs().max() < 5e-6
    probe = torch.randn_like(found)
    (found * probe).sum().backward()
    (expected * probe).sum().backward()
    for mine, other in (
        (ours.embeddings.token.weight, model.transformer.word_embedding.weight),
        (ours.query, model.transformer.mask_emb),
        (ours.blocks[0].attention.segment, model.transformer.layer[0].rel_attn.seg_embed),
    ):
        scale = 1 + other.grad.abs().max()
        assert (mine.grad - other.grad.view(mine.shape)).abs().max() < 2e-5 * scale


@pytest.mark.parametrize("has_memory", [False, True])
def test_a_prediction_depends_on_what_has_a_lower_rank_and_on_nothing_else(has_memory: bool):
    encoder = network(replace(BOTH, num_hidden_layers=2))
    ids, types = torch.arange(sum(LONGER)), torch.randint(2, (sum(LONGER),))
    rank = ranks_of(LONGER, TARGETS)
    layout = replace(Layout.of(LONGER), rank=rank)
    past = [torch.randn(4, 3, 32, dtype=torch.float64) for _ in range(2)] if has_memory else None
    states = encoder.read(ids, layout, PLACES, types, past)[0]
    sequences = layout.sequence_ids
    for number in range(len(ids)):
        other = ids.clone()
        other[number] = 90
        changed = (encoder.read(other, layout, PLACES, types, past)[0] != states).any(1)
        lower = (sequences[PLACES] == sequences[number]) & (rank[number] < rank[PLACES])
        assert changed.tolist() == lower.tolist()  # its own token changes nothing: exactly 0


def test_a_token_for_which_there_is_nothing_to_read_reads_nothing():
    encoder = network(replace(BOTH, num_hidden_layers=1))
    layout = replace(Layout.of([3, 2]), rank=torch.tensor([0, 1, 2, 1, 0]))
    tokens = torch.tensor([0, 1, 4])
    states = encoder.read(torch.arange(5), layout, tokens)[0]
    block = encoder.blocks[0]
    alone = block.attention_norm(encoder.query)
    alone = block.feed_forward_norm(alone + block.feed_forward(alone))
    assert (states[[0, 2]] - alone).abs().max() < 1e-12
    assert (states[1] - alone).abs().max() > 1e-3


def test_predictions_of_packed_texts_are_those_of_one_text_at_a_time():
    encoder = network(BOTH)
    ids, types = torch.randint(101, (sum(LONGER),)), torch.randint(2, (sum(LONGER),))
    rank = ranks_of(LONGER, TARGETS)
    layout = replace(Layout.of(LONGER), rank=rank)
    memory = [torch.randn(4, 3, 32, dtype=torch.float64) for _ in range(3)]
    states, _ = encoder.read(ids, layout, PLACES, types, memory)
    parts = zip(ids.split(LONGER), types.split(LONGER), rank.split(LONGER), TARGETS, strict=True)
    alone = [
        encoder.read(
            text,
            replace(Layout.of([len(text)]), rank=ranks),
            torch.tensor(targets),
            kinds,
            [x[number : number + 1] for x in memory],
        )[0]
        for number, (text, kinds, ranks, targets) in enumerate(parts)
    ]
    assert (torch.cat(alone) - states).abs().max() < 1e-12


def test_a_cache_computes_the_same_as_one_pass():
    """Texts of several lengths, of which some end early."""
    encoder = network(replace(LEFT, clamp_length=6))
    lengths, steps = [5, 9, 1], 6
    texts = [torch.randint(101, (n + steps,)) for n in lengths]
    wanted = [encoder(text, Layout.of([len(text)]))[-1] for text in texts]
    cache = KeyValueCache(3, Layout.of(lengths), steps)
    rows = list(range(3))
    with torch.no_grad():
        prompts = torch.cat([text[:n] for text, n in zip(texts, lengths, strict=True)])
        states = encoder(prompts, Layout.of(lengths), cache=cache)[-1]
        expected = torch.cat([x[:n] for x, n in zip(wanted, lengths, strict=True)])
        assert (states - expected).abs().max() < 1e-12
        for step in range(steps):
            if step == 2:
                rows = [0, 2]
                cache.keep(torch.tensor([0, 2]))
            ids = torch.stack([texts[row][lengths[row] + step] for row in rows])
            states = encoder(ids, cache.next_layout(), cache=cache)[-1]
            expected = torch.stack([wanted[row][lengths[row] + step] for row in rows])
            assert (states - expected).abs().max() < 1e-12


def test_distances_of_long_sequences_do_not_change_those_of_short_ones():
    encoder = network(BOTH)
    ids = torch.randint(101, (300,))
    first = encoder(ids[:5], Layout.of([5]))[-1]
    encoder(ids, Layout.of([300]))
    assert torch.equal(encoder(ids[:5], Layout.of([5]))[-1], first)


def test_attention_maps_say_what_is_read():
    encoder = network(BOTH)
    ids, layout = torch.randint(101, (sum(LENGTHS),)), Layout.of(LENGTHS)
    types = torch.randint(2, ids.shape)
    states = encoder(ids, layout, types)
    maps = encoder.attention_maps(states, layout, types)
    for block, x, after, probabilities in zip(
        encoder.blocks, states[:-1], states[1:], maps, strict=True
    ):
        sums = probabilities.sum(-1)[layout.present[:, None].expand(-1, 4, -1)]
        assert (sums - 1).abs().max() < 1e-12
        values = layout.pad(block.attention.key_value(x)[:, 32:].unflatten(1, (4, -1)))
        context = layout.unpad((probabilities @ values.transpose(1, 2)).transpose(1, 2)).flatten(1)
        y = block.attention_norm(x + block.attention.output(context))
        y = block.feed_forward_norm(y + block.feed_forward(y))
        assert (y - after).abs().max() < 1e-12


@pytest.mark.parametrize(
    ("prepare", "off"),
    [(to_fp32_inference, 2e-5), (to_bf16_inference, 0.1), (to_int8_inference, 0.3)],
)
def test_packed_weights_compute_the_same(prepare: Any, off: float):
    encoder = network(BOTH, torch.float32)
    ids, layout = torch.randint(101, (sum(LENGTHS),)), Layout.of(LENGTHS)
    types = torch.randint(2, ids.shape)
    memory = [torch.randn(len(LENGTHS), 5, 32) for _ in range(3)]
    with torch.no_grad():
        wanted = encoder(ids, layout, types, memory=memory)[-1]
        found = prepare(encoder)(ids, layout, types, memory=memory)[-1]
    assert (found.float() - wanted).norm() < off * wanted.norm()


def test_blocks_that_are_computed_again_have_the_same_gradients():
    gradients = []
    ids, layout = torch.randint(101, (sum(LENGTHS),)), Layout.of(LENGTHS)
    types = torch.randint(2, ids.shape)
    memory = [torch.randn(len(LENGTHS), 5, 32) for _ in range(3)]
    for is_checkpointed in (False, True):
        torch.manual_seed(0)
        encoder = Encoder(replace(BOTH, hidden_dropout=0.1), is_checkpointed).train()
        encoder(ids, layout, types, memory=memory)[-1].square().sum().backward()
        gradients.append([p.grad for name, p in encoder.named_parameters() if name != "query"])
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("c", [BOTH, LEFT], ids=["both directions", "left to right"])
def test_parameters_and_operations_are_counted(c: EncoderConfig):
    assert c.num_parameters() == sum(p.numel() for p in Encoder(c).parameters())
    alone = replace(c, memory_length=0)
    more = replace(c, memory_length=8)
    # keys and values of 8 tokens for 4, their scores with and without distances, and what is read
    added = 3 * (4 * 32 * 32 * 8 / 4 + (2 + 2 + 2) * 32 * 8)
    assert (more.flops_per_token(4, 0) - alone.flops_per_token(4, 0)) / 3 == added


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 5, 32)] * 2, r"a memory of 2 tensors .*expected 3 of one shape, \[2, tokens, 32\]"),
        ([(2, 5, 32), (2, 5, 32), (2, 4, 32)], r"shapes \[\(2, 4, 32\), \(2, 5, 32\)\]"),
        ([(1, 5, 32)] * 3, r"shapes \[\(1, 5, 32\)\]: expected 3 of one shape, \[2, tokens"),
        ([(10, 32)] * 3, r"shapes \[\(10, 32\)\]"),
        ([], "a memory of 0 tensors"),
    ],
)
def test_a_memory_of_another_shape_is_refused(shapes: list[tuple[int, ...]], message: str):
    memory = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        network(LEFT)(torch.arange(6), Layout.of([3, 3]), memory=memory)


def test_a_memory_where_none_is_read_is_refused():
    memory = [torch.zeros(1, 2, 32)] * 3
    c = EncoderConfig(
        vocab_size=9, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, type_vocab_size=0
    )
    with pytest.raises(ValueError, match="a network without relative positions"):
        Encoder(c)(torch.arange(3), Layout.of([3]), memory=memory)
    cache = KeyValueCache(3, Layout.of([3]), 1)
    with pytest.raises(ValueError, match="together with a cache"):
        network(LEFT)(torch.arange(3), Layout.of([3]), cache=cache, memory=memory)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type_vocab_size": 2}, "'relative' with type_vocab_size 2: expected type_vocab_size = 0"),
        ({"embedding_norm": True}, "embedding_norm is True with .*'relative': expected embedding_"),
        ({"attention_bias": True}, "attention_bias is True with .*expected attention_bias = false"),
        ({"norm_first": True}, "norm_first is True with .*'relative'"),
        ({"num_hidden_groups": 1}, "num_hidden_groups is 1 with .*'relative'"),
        ({"relative_position_buckets": 32}, "relative_position_buckets is 32 with .*'relative'"),
        ({"local_attention": 8, "global_attention_every": 3}, "global_attention_every is 3 with"),
        ({"local_attention": 8, "local_layers": (1,)}, "local_layers is .*with position_embedding"),
        ({"kind": "lstm", "decoder": None}, "kind 'lstm' with position_embedding_type 'relative'"),
        (
            {"memory_length": 4, "direction": "right_to_left", "pooler": "first_tanh"},
            "memory_length is 4 with direction 'right_to_left'",
        ),
        ({"memory_length": -1}, "memory_length is -1: expected a whole number from 0"),
        ({"clamp_length": 2_000_000}, "clamp_length is 2000000: expected a whole number from 0"),
        (
            {"position_embedding_type": "learned"},
            "relative_segments is True with position_embedding_type 'learned': expected "
            "relative_segments = false, or 'relative'",
        ),
    ],
)
def test_combinations_without_meaning_are_refused(fields: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        replace(BOTH, **fields)


@pytest.mark.parametrize("name", ["memory_length", "clamp_length"])
def test_fields_of_relative_positions_are_refused_elsewhere(name: str):
    with pytest.raises(ValueError, match=f"{name} is 4 with position_embedding_type 'learned'"):
        EncoderConfig(vocab_size=9, **{name: 4})
