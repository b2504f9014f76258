"""The memory of a network: what is read is what was written last, and nothing of another text."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bertworks.batching.batch import collate
from bertworks.batching.examples import LanePlace, TokenSequence
from bertworks.batching.orders import RANK, Permuter
from bertworks.models.config import EncoderConfig
from bertworks.models.memory import MOST_BYTES, Memory, make_memory, refuse_too_long
from bertworks.runs.run_folder import Processes
from bertworks.training.objectives import PretrainingModel
from tests.models.test_relative import BOTH, next_memory
from tests.runs.test_launch import in_a_group
from tests.support.refusals import refusal

LAYERS, LANES, LENGTH, WIDTH = 2, 3, 5, 4


def make() -> Memory:
    return Memory(LAYERS, LANES, LENGTH, WIDTH)


def states(lanes: int, tokens: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = lanes * tokens, WIDTH
    return [torch.randn(size, generator=generator, requires_grad=True) for _ in range(LAYERS)]


@pytest.mark.parametrize("tokens", [1, 2, 5, 8])
def test_the_last_tokens_of_each_lane_are_read(tokens: int) -> None:
    memory = make()
    whole = [np.zeros((LANES, 0, WIDTH), np.float32) for _ in range(LAYERS)]
    for step in range(4):
        before = step * tokens
        for lanes in (torch.tensor([2]), torch.tensor([0, 1])):
            read = memory.read(lanes, before)
            if before == 0:
                assert read is None
                continue
            assert read is not None
            for layer, x in zip(whole, read, strict=True):
                assert np.array_equal(layer[lanes.numpy()][:, -LENGTH:], x.numpy())
        new = states(LANES, tokens, step)
        memory.write(torch.tensor([2]), [x[2 * tokens :] for x in new])
        memory.write(torch.tensor([0, 1]), [x[: 2 * tokens] for x in new])
        assert memory.read(torch.tensor([0]), 0) is None
        memory.commit()
        parts = [x.detach().numpy().reshape(LANES, tokens, WIDTH) for x in new]
        whole = [np.concatenate(pair, 1) for pair in zip(whole, parts, strict=True)]
    assert not memory.states.requires_grad


def test_nothing_is_read_before_it_is_committed() -> None:
    memory = make()
    memory.write(torch.arange(LANES), states(LANES, LENGTH))
    assert not memory.states.any()
    memory.commit()
    once = memory.states.clone()
    assert once.any()
    memory.commit()
    assert torch.equal(memory.states, once)


def test_the_beginning_of_a_text_does_not_read_what_was_before() -> None:
    memory = make()
    memory.write(torch.arange(LANES), states(LANES, LENGTH))
    memory.commit()
    assert memory.read(torch.arange(LANES), 0) is None
    new = states(LANES, 2, seed=1)
    memory.write(torch.arange(LANES), new)
    memory.commit()
    read = memory.read(torch.arange(LANES), 2)
    assert read is not None
    for x, y in zip(read, new, strict=True):
        assert torch.equal(x, y.view(LANES, 2, WIDTH))


def test_numbers_that_are_not_finite_become_zeros() -> None:
    memory = make()
    new = states(LANES, LENGTH)
    with torch.no_grad():
        new[0][1, 2] = torch.nan
        new[1][3, 0] = torch.inf
    memory.write(torch.arange(LANES), new)
    memory.commit()
    assert memory.states.isfinite().all()
    assert memory.states[0, 0, 1].tolist() == [*new[0][1, :2].tolist(), 0.0, new[0][1, 3].item()]
    assert memory.states[1, 0, 3, 0] == 0
    assert (memory.states == 0).sum() == 2


def test_half_precision_is_kept_exactly() -> None:
    memory = make()
    new = [x.detach().bfloat16() for x in states(LANES, LENGTH)]
    memory.write(torch.arange(LANES), new)
    memory.commit()
    for layer, x in zip(memory.states, new, strict=True):
        assert torch.equal(layer.bfloat16().flatten(0, 1), x)


def test_processes_bring_their_lanes_together(tmp_path: Path) -> None:
    def work(group: Processes) -> None:
        memory = make()
        for seed in range(2):  # what was gathered before is not added again
            lanes = torch.arange(LANES)[group.rank :: 2]
            new = [x.view(LANES, 2, WIDTH)[lanes].flatten(0, 1) for x in states(LANES, 2, seed)]
            memory.write(lanes, new)
            memory.commit()
            memory.gather(group.rank, group.count)
            expected = make()
            for other in range(seed + 1):
                expected.write(torch.arange(LANES), states(LANES, 2, other))
                expected.commit()
            assert torch.equal(memory.states, expected.states)
        (tmp_path / f"finished {group.rank}").touch()

    assert in_a_group(tmp_path, work) == [0, 0]
    assert len(list(tmp_path.glob("finished *"))) == 2


def test_a_memory_of_a_configuration() -> None:
    c = EncoderConfig(
        vocab_size=10,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        position_embedding_type="relative",
        memory_length=6,
        attention_bias=False,
        type_vocab_size=0,
        embedding_norm=False,
    )
    memory = make_memory(c, 4)
    assert memory is not None
    assert memory.states.shape == (3, 4, 6, 8)
    longer = make_memory(c, 4, length=9)
    assert longer is not None
    assert longer.length == 9
    assert make_memory(c, 4, length=0) is None
    most = MOST_BYTES // (4 * 3 * 4 * 8)
    refuse_too_long(c, 4, most, "--memory ")
    what = "a memory of 10,416,666 tokens in 4 lanes, before 3 blocks of width 8, has 4.0 GB"
    with refusal(what, f"--memory {most}"):
        refuse_too_long(c, 4, 2 * most, "--memory ")


SEGMENT = 6  # tokens


def test_a_segment_in_an_order_reads_the_states_of_the_one_before() -> None:
    """What is kept are the states before each layer, and the loss is that of the network's read."""
    torch.manual_seed(0)
    model = PretrainingModel(replace(BOTH, memory_length=8), {"permutation_lm": 1.0}).eval()
    model.memory = make_memory(model.encoder.config, 3)
    generator = np.random.default_rng(0)
    permuter = Permuter(lambda length, _: 3, np.ones(BOTH.vocab_size, np.bool_))
    special = np.zeros(SEGMENT, np.bool_)
    types = np.zeros(SEGMENT, np.int64)
    past = [torch.zeros(3, 0, BOTH.hidden_size)] * BOTH.num_hidden_layers
    for step in range(3):
        rows = generator.integers(BOTH.vocab_size, size=(3, SEGMENT))
        batch = collate(
            [
                permuter(TokenSequence(row, types, special, {}), generator)._replace(
                    place=LanePlace(lane, SEGMENT * step)
                )
                for lane, row in enumerate(rows)
            ]
        )
        target = batch.targets["permutation_lm"]
        layout = replace(batch.layout, rank=batch.targets[RANK].labels)
        inputs = batch.input_ids, layout, target.positions, batch.token_type_ids
        read, before = model.encoder.read(*inputs, past if step else None)
        x, table, bias = model.vocabulary_inputs(read)
        expected = F.cross_entropy(F.linear(x, table, bias), target.labels, reduction="sum")
        assert model(batch)["permutation_lm"].loss.item() == pytest.approx(expected.item())
        if step:
            alone, _ = model.encoder.read(*inputs)
            assert (alone - read).abs().max() > 1e-3
        assert model.memory is not None
        model.memory.commit()
        past = next_memory(past, [*before, read], 8)
