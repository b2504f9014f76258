"""The five heads beside those of transformers: logits, losses and gradients; and weights, smoothing, balance."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from bertworks.data.batch import Batch, collate
from bertworks.data.labelled import LabelledBatches, packed, packed_numbers
from bertworks.data.masking import Example
from bertworks.files.foreign import config_to_huggingface, from_huggingface
from bertworks.learn.inference import examine, logits_of
from bertworks.learn.tasks import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
    Task,
    TaskModel,
)
from bertworks.nn.config import EncoderConfig

CONFIG = EncoderConfig(
    vocab_size=90, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=40,
    initializer_range=0.2, hidden_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
LENGTHS = [7, 19, 3, 12, 12, 40]
CASES: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "classification": (Classification(num_labels=3), "SequenceClassification", {"num_labels": 3}),
    "multilabel": (
        MultiLabel(num_labels=4),
        "SequenceClassification",
        {"num_labels": 4, "problem_type": "multi_label_classification"},
    ),
    "regression": (Regression(), "SequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    "tagging": (Classification(num_labels=5, pooled=False), "TokenClassification", {"num_labels": 5}),
    "qa": (SpanExtraction(), "QuestionAnswering", {}),
    "choice": (MultipleChoice(num_choices=3), "MultipleChoice", {}),
}


def example(task: str, length: int, number: int, generator: np.random.Generator) -> Example:
    ids, types = generator.integers(5, 90, length), np.arange(length) // (length // 2 + 1)
    asked, labels = np.array([0]), np.array([generator.integers(3)])
    match task:
        case "multilabel":
            labels = generator.integers(0, 2, (1, 4)).astype(np.float32)
        case "regression":
            labels = generator.normal(size=1).astype(np.float32)
        case "tagging":
            asked = np.sort(generator.permutation(length)[: max(1, length // 2)])
            labels = generator.integers(0, 5, len(asked))
        case "qa":
            asked, labels = np.arange(length), np.sort(generator.integers(0, length, 2))
        case "choice":
            labels = np.array([float(number % 3 == 1)], np.float32)
    return Example(ids, types, asked, labels, -1)


def batch_of(task: str, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    return collate([example(task, length, number, generator) for number, length in enumerate(LENGTHS)])


def rectangles(task: str, batch: Batch) -> dict[str, Tensor]:
    layout = batch.layout
    assert batch.token_type_ids is not None
    inputs = {
        "input_ids": layout.pad(batch.input_ids),
        "token_type_ids": layout.pad(batch.token_type_ids),
        "attention_mask": layout.present.long(),
    }
    match task:
        case "tagging":
            labels = torch.full((layout.num_sequences * layout.max_seqlen,), -100)
            labels[layout.slots[batch.masked_positions]] = batch.labels
            inputs["labels"] = labels.view(layout.num_sequences, -1)
        case "qa":
            inputs["start_positions"], inputs["end_positions"] = batch.labels.view(-1, 2).unbind(1)
        case "choice":
            inputs = {name: x.view(-1, 3, layout.max_seqlen) for name, x in inputs.items()}
            inputs["labels"] = batch.labels.view(-1, 3).argmax(1)
        case _:
            inputs["labels"] = batch.labels
    return inputs


def pair(task: str) -> tuple[TaskModel, Any]:
    ours, name, settings = CASES[task]
    torch.manual_seed(1)
    config = transformers.BertConfig(**config_to_huggingface(CONFIG, architectures=[]) | settings)
    theirs = getattr(transformers, f"BertFor{name}")(config).train()
    model = TaskModel(CONFIG, ours).train()
    model.load_state_dict(from_huggingface(theirs.state_dict(), CONFIG))
    return model, theirs


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
    found, mean = examine(model, units)
    alone = [logits_of(model, [unit])[0] for unit in units]
    for many, one in zip(found, alone, strict=True):
        np.testing.assert_allclose(many, one, atol=2e-5)
    assert mean.count == sum(model.task.count(collate(unit)) for unit in units)
    assert model.training


def test_accuracy_counts_what_is_right() -> None:
    model, theirs = pair("classification")
    batch = batch_of("classification")
    tallies = model(batch)
    right = (theirs(**rectangles("classification", batch)).logits.argmax(-1) == batch.labels).sum()
    assert tallies["task"].correct == right


def test_weights_and_smoothing_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 3, generator=generator)
    batch = batch_of("classification")
    weights = (0.5, 1.5, 1.0)
    task = Classification(num_labels=3, weights=weights, smoothing=0.1)
    expected = torch.nn.functional.cross_entropy(
        logits.double(), batch.labels, torch.tensor(weights).double(), label_smoothing=0.1, reduction="none"
    ).sum()
    assert task.tally(logits, batch).loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_regression_begins_at_the_mean() -> None:
    model = TaskModel(CONFIG, Regression(mean=40.0, deviation=8.0))
    assert abs(model.logits(batch_of("regression")).mean().item() - 40) < 8


def test_an_epoch_asks_everything_once_and_each_epoch_has_its_order() -> None:
    units = [[Example(np.array([n, n]), np.zeros(2, int), np.array([0]), np.array([n]), -1)] for n in range(10)]
    batches = LabelledBatches(units, batch_size=4, micro_batch_tokens=100, seed=3)
    assert batches.steps_per_epoch == 3
    epochs = [[n for step in range(3 * e, 3 * e + 3) for b in batches(step) for n in b.labels.tolist()] for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    orders = [[sorted(b.labels.tolist()) for step in range(3 * e, 3 * e + 3) for b in batches(step)] for e in (0, 1)]
    assert orders[0] != orders[1]
    again = LabelledBatches(units, batch_size=4, micro_batch_tokens=100, seed=3)
    assert [b.labels.tolist() for b in again(4)] == [b.labels.tolist() for b in batches(4)]


def test_micro_batches_keep_to_their_tokens_and_keep_choices_together() -> None:
    lengths, sizes = [50, 3, 20, 20, 7, 90], [1, 2, 1, 3, 1, 1]
    parts = list(packed_numbers(lengths, sizes, 60))
    assert sorted(n for part in parts for n in part) == list(range(6))
    for part in parts:
        assert len(part) == 1 or sum(sizes[n] for n in part) * max(lengths[n] for n in part) <= 60
    assert len(parts) < 6
    generator = np.random.default_rng(0)
    units = [[example("choice", n, i, generator) for i in range(3)] for n in (9, 30, 4)]
    assert {len(part) for part in packed(units, 90)} == {1, 2}
