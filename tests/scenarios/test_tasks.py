"""The five heads beside those of transformers: logits, losses and gradients; and weights,
smoothing, balance."""

import numpy as np
import pytest
import torch

from bertworks.batching.batch import (
    LabelledBatches,
    collate,
    token_budget_batches,
    token_budget_indices,
)
from bertworks.batching.examples import Example, Lazy, Target
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.inference import engine
from bertworks.inference.engine import compute_logits, compute_logits_and_loss
from bertworks.tasks.heads import TaskModel, count_predictions, tally
from bertworks.tasks.outputs import Classification, Regression
from tests.support.heads import CASES, CONFIG, batch_of, example, pair, rectangles


@pytest.mark.parametrize("task", CASES)
def test_losses_and_gradients_are_those_of_transformers(task: str) -> None:
    model, theirs = pair(task)
    batch = batch_of(task)
    if task == "qa":  # transformers lets padding take part in the softmax: only full rows compare
        generator = np.random.default_rng(3)
        batch = collate([example(task, 12, number, generator) for number in range(4)])
    tallies, counts = model(batch), model.counts(batch)
    loss = tallies["task"].loss / counts["task"]
    expected = theirs(**rectangles(task, batch)).loss
    assert abs(loss - expected).item() <= 1e-6 * max(1.0, expected.item())
    loss.backward()
    expected.backward()
    gradients = from_huggingface({n: p.grad for n, p in theirs.named_parameters()}, CONFIG)
    largest = max(gradient.abs().max() for gradient in gradients.values())
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        # Some gradients are zero but for rounding: what shifts all scores alike changes no softmax.
        scale = gradients[name].abs().max().clamp_min(largest / 100)
        assert ((p.grad - gradients[name]).abs().max() / scale).item() <= 1e-4, name


@pytest.mark.parametrize("task", CASES)
def test_logits_come_in_the_order_of_the_units(task: str) -> None:
    model, _ = pair(task)
    generator = np.random.default_rng(5)
    sizes = 3 if task == "choice" else 1
    lengths = [9, 30, 4, 17, 22, 9, 40]
    units = [[example(task, n, i, generator) for i in range(sizes)] for n in lengths]
    found, mean = compute_logits_and_loss(model, units)
    alone = [compute_logits(model, [unit])[0] for unit in units]
    for many, one in zip(found, alone, strict=True):
        np.testing.assert_allclose(many, one, atol=2e-5)
    assert mean.count == sum(count_predictions(model.task, collate(unit)) for unit in units)
    assert mean.loss == pytest.approx(
        sum(model(collate(unit))["task"].loss.item() for unit in units) / mean.count
    )
    assert model.training


def test_windows_of_a_long_text_are_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = pair("tagging")
    generator, tokens = np.random.default_rng(5), []
    examples = [example("tagging", 20 + n % 3, n, generator) for n in range(12)]
    units = [[examples[0]], Lazy(range(12), examples.__getitem__), [examples[1]]]
    whole = compute_logits(model, [[one] for one in (examples[0], *examples, examples[1])])
    monkeypatch.setattr(engine, "BATCH_TOKENS", 60)
    monkeypatch.setattr(
        engine,
        "collate",
        lambda some: tokens.append(sum(len(e.input_ids) for e in some)) or collate(some),
    )
    first, windows, last = compute_logits(model, units)
    assert max(tokens) <= 60
    for found, wanted in (
        (first, whole[0]),
        (windows, np.concatenate(whole[1:-1])),
        (last, whole[-1]),
    ):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_accuracy_counts_what_is_right() -> None:
    model, theirs = pair("classification")
    batch = batch_of("classification")
    tallies = model(batch)
    right = (
        theirs(**rectangles("classification", batch)).logits.argmax(-1) == batch.target.labels
    ).sum()
    assert tallies["task"].correct == right


def test_weights_and_smoothing_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=generator)
    batch = batch_of("classification")
    weights = (0.5, 1.5, 1.0)
    task = Classification(outputs=3, weights=weights, smoothing=0.1)
    expected = torch.nn.functional.cross_entropy(
        logits.double(),
        batch.target.labels,
        torch.tensor(weights).double(),
        label_smoothing=0.1,
        reduction="none",
    ).sum()
    assert tally(task, logits, batch).loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_padding_is_no_place_for_an_answer() -> None:
    model, _ = pair("qa")
    generator = np.random.default_rng(4)
    examples = [example("qa", length, 0, generator) for length in (4, 12)]
    together = model(collate(examples))["task"].loss.item()
    assert together == pytest.approx(
        sum(model(collate([one]))["task"].loss.item() for one in examples), rel=1e-5
    )


def test_dropout_comes_before_the_classifier_in_training_alone() -> None:
    model, _ = pair("classification")
    batch = batch_of("classification")
    exact = model.logits(batch)
    model.dropout = 1.0
    assert model.classifier is not None
    assert torch.equal(model.logits(batch), model.classifier.bias.expand_as(exact))
    assert torch.equal(model.eval().logits(batch), exact)


def test_a_regression_begins_at_the_mean() -> None:
    model = TaskModel(CONFIG, Regression(mean=40.0, deviation=8.0))
    assert abs(model.logits(batch_of("regression")).mean().item() - 40) < 8


def test_an_epoch_asks_everything_once_and_each_epoch_has_its_order() -> None:
    units = [
        [
            Example(
                np.array([n, n]), np.zeros(2, int), {"task": Target(np.array([0]), np.array([n]))}
            )
        ]
        for n in range(10)
    ]
    batches = LabelledBatches(units, batch_size=4, micro_batch_tokens=100, seed=3)
    assert batches.steps_per_epoch == 3
    epochs = [
        [
            n
            for step in range(3 * e, 3 * e + 3)
            for b in batches(step)
            for n in b.target.labels.tolist()
        ]
        for e in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    orders = [
        [
            sorted(b.target.labels.tolist())
            for step in range(3 * e, 3 * e + 3)
            for b in batches(step)
        ]
        for e in (0, 1)
    ]
    assert orders[0] != orders[1]
    again = LabelledBatches(units, batch_size=4, micro_batch_tokens=100, seed=3)
    assert [b.target.labels.tolist() for b in again(4)] == [
        b.target.labels.tolist() for b in batches(4)
    ]


def test_micro_batches_keep_to_their_tokens_and_keep_choices_together() -> None:
    lengths, sizes = [50, 3, 20, 20, 7, 90], [1, 2, 1, 3, 1, 1]
    parts = list(token_budget_indices(lengths, sizes, 60))
    assert sorted(n for part in parts for n in part) == list(range(6))
    for part in parts:
        assert len(part) == 1 or sum(sizes[n] for n in part) * max(lengths[n] for n in part) <= 60
    assert len(parts) < 6
    generator = np.random.default_rng(0)
    units = [[example("choice", n, i, generator) for i in range(3)] for n in (9, 30, 4)]
    assert {batch.layout.num_sequences for batch in token_budget_batches(units, 90)} == {3, 6}
