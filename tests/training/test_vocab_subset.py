"""A training on the rows of a table that its texts name is the training on all of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertworks.batching.batch import ExampleGroup, LabelledBatches
from bertworks.tasks.heads import Classification, TaskModel
from bertworks.training.loop import train
from bertworks.training.optimization import OptimizerConfig, make_optimizer
from bertworks.training.vocab_subset import VocabSubset
from tests.support.heads import CONFIG, example

WORDS = "encoder.embeddings.token.weight"
SETTINGS = OptimizerConfig(learning_rate=1e-3, weight_decay=0.5, warmup=0.1)


def some_units(count: int = 24) -> list[ExampleGroup]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 12, count).tolist()
    return [[example("classification", length, 0, generator)] for length in lengths]


def trained(
    network: TaskModel, units: Sequence[ExampleGroup], *, damaged: int | None = None
) -> dict[str, torch.Tensor]:
    """The state after two epochs; one step's gradient is made no number, and so it is skipped."""
    network.dropout = 0.0
    batches = LabelledBatches(units, batch_size=8, micro_batch_tokens=64, seed=1)
    steps = 2 * batches.steps_per_epoch
    loop = train(network, make_optimizer(network, SETTINGS), batches, SETTINGS, steps)
    for step in loop:
        bias = network.classifier.bias  # type: ignore[union-attr]
        if step.number == damaged:
            handle = bias.register_hook(lambda gradient: gradient * torch.nan)
        elif step.number == (damaged or -1) + 1:
            handle.remove()
            assert step.skipped.item() == 1
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


@pytest.mark.parametrize("damaged", [None, 2])
def test_a_shortlist_learns_what_the_whole_table_does(damaged: int | None) -> None:
    units, task = some_units(), Classification(outputs=3)
    torch.manual_seed(0)
    whole = TaskModel(CONFIG, task)
    begun = {name: value.clone() for name, value in whole.state_dict().items()}
    shortlist = VocabSubset(units, CONFIG.vocab_size)
    assert shortlist.has_unused
    assert len(shortlist.ids) < CONFIG.vocab_size
    small = TaskModel(replace(CONFIG, vocab_size=len(shortlist.ids)), task)
    small.load_state_dict(begun | {WORDS: shortlist.rows(begun[WORDS])})
    shortlist.attach(small.encoder.embeddings.token)
    expected = trained(whole, units, damaged=damaged)
    found = trained(small, units, damaged=damaged)
    found[WORDS] = shortlist.merge(begun[WORDS], found[WORDS])
    assert not torch.allclose(
        expected[WORDS][shortlist.ids[-1]], begun[WORDS][shortlist.ids[-1]], rtol=1e-4
    )
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_a_shortlist_reads_the_rows_of_the_tokens() -> None:
    units, table = some_units(5), torch.randn(CONFIG.vocab_size, 4)
    shortlist = VocabSubset(units, CONFIG.vocab_size)
    embedding = torch.nn.Embedding.from_pretrained(shortlist.rows(table))
    shortlist.attach(embedding)
    for (one,) in units:
        assert torch.equal(embedding(torch.from_numpy(one.input_ids)), table[one.input_ids])
    # as on a GPU
    assert embedding.to("meta")(torch.from_numpy(units[0][0].input_ids).to("meta")).is_meta
    assert torch.equal(shortlist.merge(table, shortlist.rows(table)), table)  # to the last bit


def test_where_texts_name_every_token_there_is_no_witness() -> None:
    (first,) = some_units(1)[0]
    everything = [first._replace(input_ids=np.arange(7))]
    shortlist = VocabSubset([everything], 7)
    assert not shortlist.has_unused
    assert shortlist.ids.tolist() == list(range(7))
    table = torch.randn(7, 3)
    assert torch.equal(shortlist.merge(table, 2 * table), 2 * table)


def test_a_row_of_zeros_gives_nothing_and_damages_nothing() -> None:
    (first,) = some_units(1)[0]
    shortlist = VocabSubset([[first._replace(input_ids=np.array([0, 2]))]], 4)
    table = torch.ones(4, 2)
    table[1] = 0
    assert torch.equal(shortlist.merge(table, shortlist.rows(table)), table)
