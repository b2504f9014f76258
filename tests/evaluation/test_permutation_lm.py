"""Losses in several orders, and whether a prediction depends on the token that it predicts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.batching.batch import Batch
from bertworks.batching.examples import keyed_rng
from bertworks.batching.orders import RANK, UNRANKED
from bertworks.errors import UsageError
from bertworks.evaluation.ablation import Arm, measure_orders
from bertworks.evaluation.permutation_lm import (
    held_out_orders,
    in_another_order,
    largest_leak,
    order_losses,
)
from bertworks.models import relative
from bertworks.models.layout import Layout
from bertworks.runs.pretrain import pretrain
from bertworks.text.shards import Shards
from bertworks.training.loop import evaluate
from bertworks.training.objectives import PretrainingModel
from tests.support.refusals import refusal
from tests.support.tiny import write_corpus, write_pretrained

ORDERS = {"sequence_length": 32, "sequences": 12}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    text = write_corpus(folder / "t.jsonl", 400)
    words = ["vocabulary.size=300", "encoder.hidden_size=32", "encoder.num_hidden_layers=2"]
    words += ["encoder.num_attention_heads=2", "train.phases.0.batch_size=8"]
    words += ["train.phases.0.num_steps=3", "train.phases.0.sequence_length=32"]
    options = {"recipe": "xlnet-small", "overrides": words, "workers": 1, "device": "cpu"}
    list(pretrain([text], folder / "xlnet", **options))  # type: ignore[arg-type]
    return folder / "xlnet"


def perturb(network: PretrainingModel) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


def of(model: Path) -> tuple[PretrainingModel, list[Batch]]:
    return held_out_orders(str(model), Shards.open(model / "shards"), 0, "cpu", **ORDERS)


def test_another_order_ranks_the_same_tokens(model: Path) -> None:
    _, batches = of(model)
    generator = keyed_rng("test")
    for batch in batches:
        other = in_another_order(batch, generator)
        before, after = batch.targets[RANK].labels, other.targets[RANK].labels
        assert ((before == UNRANKED) == (after == UNRANKED)).all()
        assert not torch.equal(before, after)
        for first, end in zip(batch.layout.cu_seqlens, batch.layout.cu_seqlens[1:], strict=False):
            assert torch.equal(before[first:end].sort().values, after[first:end].sort().values)
        assert other.targets["permutation_lm"] is batch.targets["permutation_lm"]


def test_losses_of_orders_are_those_of_the_objective(model: Path) -> None:
    network, batches = of(model)
    perturb(network)
    rows = order_losses(network, batches, 4)
    assert rows.shape == (len(batches), 5)
    assert len(batches) == 2  # of eight sequences and of four
    assert rows[:, -1].tolist() == [len(b.targets["permutation_lm"].labels) for b in batches]
    generator = keyed_rng("orders of tokens", 1)
    for order in range(4):
        stats = evaluate(network, [in_another_order(batches[1], generator)])["permutation_lm"]
        assert rows[1, order] == pytest.approx(stats.loss * stats.count)
    assert len({*rows[0, :4].tolist()}) == 4  # the order matters


def test_a_prediction_does_not_depend_on_its_token(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, batches = of(model)
    perturb(network)
    assert largest_leak(network, batches) == 0.0

    def own_rank_too(layout: Layout, readers: relative.Readers) -> torch.Tensor:
        assert layout.rank is not None
        rank = readers.layout.pad(layout.rank[readers.tokens])
        return (layout.pad(layout.rank)[:, None] <= rank[:, :, None])[:, None]

    monkeypatch.setattr(relative, "_lower_ranks", own_rank_too)
    assert largest_leak(network, batches) > 1e-3


def test_figures_of_a_comparison(model: Path, tmp_path: Path) -> None:
    arm = Arm(str(model), 0, model / "shards", tmp_path / "m", {}, {}, "cpu")

    def measure(**options: object) -> tuple[float, list[float]]:
        generator = measure_orders(arm, **ORDERS | options)  # type: ignore[arg-type]
        try:
            while True:
                next(generator)
        except StopIteration as end:
            return end.value.value, end.value.samples

    network, batches = of(model)
    rows = order_losses(network, batches, 5)
    losses = rows[:, :-1].sum(0) / rows[:, -1].sum()
    loss, samples = measure(orders=5)
    assert loss == pytest.approx(losses.mean())
    assert len(samples) == 1000
    assert measure(orders=5, figure="spread")[0] == pytest.approx(np.std(losses, ddof=1))
    assert measure(figure="leak") == (0.0, [])
    with pytest.raises(UsageError, match="the spread of 1 orders: expected at least two orders"):
        measure(orders=1, figure="spread")
    bert = write_pretrained(tmp_path, ("num_steps = 40", "num_steps = 1"))
    arm = Arm(str(bert), 0, model / "shards", tmp_path / "m", {}, {}, "cpu")
    with refusal("the model predicts no tokens in an order", "such as one of --recipe xlnet"):
        measure()
