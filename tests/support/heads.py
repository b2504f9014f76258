"""Every head, beside the one of transformers with equal weights, and made-up examples for it."""

from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.hf_config import config_to_huggingface
from bertworks.checkpoints.hf_mapping import from_huggingface
from bertworks.models.config import EncoderConfig
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
    TaskHead,
)

CONFIG = EncoderConfig(
    vocab_size=90,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=40,
    initializer_range=0.2,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
LENGTHS = [7, 19, 3, 12, 12, 40]
CASES: dict[str, tuple[TaskHead, str, dict[str, Any]]] = {
    "classification": (Classification(outputs=3), "SequenceClassification", {"num_labels": 3}),
    "multilabel": (
        MultiLabel(outputs=4),
        "SequenceClassification",
        {"num_labels": 4, "problem_type": "multi_label_classification"},
    ),
    "regression": (
        Regression(),
        "SequenceClassification",
        {"num_labels": 1, "problem_type": "regression"},
    ),
    "tagging": (Classification(outputs=5, pooled=False), "TokenClassification", {"num_labels": 5}),
    "qa": (SpanExtraction(), "QuestionAnswering", {}),
    "choice": (MultipleChoice(num_choices=3), "MultipleChoice", {}),
}


def example(task: str, length: int, number: int, generator: np.random.Generator) -> Example:
    ids, types = generator.integers(5, 90, length), np.arange(length) // (length // 2 + 1)
    requested, labels = np.array([0]), np.array([generator.integers(3)])
    match task:
        case "multilabel":
            labels = generator.integers(0, 2, (1, 4)).astype(np.float32)
        case "regression":
            labels = generator.normal(size=1).astype(np.float32)
        case "tagging":
            requested = np.sort(generator.permutation(length)[: max(1, length // 2)])
            labels = generator.integers(0, 5, len(requested))
        case "qa":
            requested, labels = np.arange(length), np.sort(generator.integers(0, length, 2))
        case "choice":
            labels = np.array([float(number % 3 == 1)], np.float32)
    return Example(ids, types, {"task": Target(requested, labels)})


def batch_of(task: str, seed: int = 0) -> Batch:
    generator = np.random.default_rng(seed)
    return collate(
        [example(task, length, number, generator) for number, length in enumerate(LENGTHS)]
    )


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
            labels[layout.slots[batch.target.positions]] = batch.target.labels
            inputs["labels"] = labels.view(layout.num_sequences, -1)
        case "qa":
            inputs["start_positions"], inputs["end_positions"] = batch.target.labels.view(
                -1, 2
            ).unbind(1)
        case "choice":
            inputs = {name: x.view(-1, 3, layout.max_seqlen) for name, x in inputs.items()}
            inputs["labels"] = batch.target.labels.view(-1, 3).argmax(1)
        case _:
            inputs["labels"] = batch.target.labels
    return inputs


def pair(task: str) -> tuple[TaskModel, Any]:
    head, name, settings = CASES[task]
    torch.manual_seed(1)
    config = transformers.BertConfig(**config_to_huggingface(CONFIG, architectures=[]) | settings)
    reference = getattr(transformers, f"BertFor{name}")(config).train()
    model = TaskModel(CONFIG, head).train()
    model.load_state_dict(from_huggingface(reference.state_dict(), CONFIG))
    return model, reference
