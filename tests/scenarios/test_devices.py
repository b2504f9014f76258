"""Where a GPU would compute, without one: tensors of the device "meta" have shapes and no numbers,
and a product of one with a tensor elsewhere is an error. Not here: numbers; kernels that are called
with what they do not take."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bertworks.batching.batch import Batch, BatchTarget, collate
from bertworks.batching.examples import Example, Target
from bertworks.models import kernels
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import pool
from bertworks.models.transformer import to_bf16_inference, to_fp32_inference
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import (
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
    SpanExtraction,
    TaskHead,
)
from bertworks.training.device import Precision
from bertworks.training.loop import MixedPrecision, make_optimizer, update
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import OptimizerConfig

CONFIG = EncoderConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=32,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
LENGTHS = (9, 17, 32)
TOKENS = torch.arange(sum(LENGTHS))
FIRST = torch.tensor([0, 9, 26])
LABELS: list[tuple[TaskHead, torch.Tensor, torch.Tensor]] = [
    (
        Classification(outputs=3, weights=(1.0, 2.0, 1.0), smoothing=0.1),
        FIRST,
        torch.tensor([0, 1, 2]),
    ),
    (Classification(outputs=3, pooled=False), TOKENS, torch.zeros(len(TOKENS), dtype=torch.int64)),
    (MultiLabel(outputs=3), FIRST, torch.zeros(3, 3)),
    (Regression(mean=1960.0, deviation=10.0), FIRST, torch.zeros(3)),
    (SpanExtraction(), TOKENS, torch.arange(6)),
    (MultipleChoice(num_choices=3), FIRST, torch.tensor([0.0, 1.0, 0.0])),
]


def batch() -> Batch:
    draw = np.random.default_rng(0)
    return collate(
        [
            Example(
                draw.integers(100, size=n),
                np.zeros(n, np.int64),
                {
                    "masked_lm": Target(np.array([1, 4]), draw.integers(100, size=2)),
                    "next_sentence": Target(np.zeros(1, np.int64), np.array([n % 2])),
                },
            )
            for n in LENGTHS
        ]
    )


@pytest.fixture(autouse=True)
def meta_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta")
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    # which does not know this device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    return make().to("meta")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_pre_training(
    precision: Precision, dropout: float, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "bf16":  # nothing is padded, with dropout or without
        monkeypatch.setattr(kernels, "attention_reference", None)
    c = replace(CONFIG, hidden_dropout=dropout, attention_dropout=dropout)
    model = on_meta(lambda: PretrainingModel(c, gradient_checkpointing=checkpointing)).train()
    optimizer = make_optimizer(model, OptimizerConfig())
    torch.stack(
        [tally.loss for tally in MixedPrecision(model, precision)(batch().to("meta")).values()]
    ).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
    norm = nn.utils.get_total_norm([gradient for gradient in gradients if gradient is not None])
    assert update(optimizer, 1e-3, norm, 1.0).device.type == "meta"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("task", "requested", "labels"), LABELS, ids=lambda value: type(value).__name__
)
def test_fine_tuning(
    precision: Precision, task: TaskHead, requested: torch.Tensor, labels: torch.Tensor
) -> None:
    model = on_meta(lambda: TaskModel(CONFIG, task)).train()
    given = replace(batch(), targets={"task": BatchTarget(requested, labels)}).to("meta")
    loss = MixedPrecision(model, precision)(given)["task"].loss
    loss.backward()
    assert (loss.device.type, loss.dtype) == ("meta", torch.float32)


@pytest.mark.parametrize("turn", [to_fp32_inference, to_bf16_inference])
def test_answers(turn: Callable[..., nn.Module]) -> None:
    given = batch().to("meta")
    model = on_meta(lambda: PretrainingModel(CONFIG)).eval().requires_grad_(False)
    encoder = turn(model.encoder)
    read = given.input_ids, given.layout, given.token_type_ids
    with torch.no_grad():
        states = encoder(*read)
        assert {state.device.type for state in states} == {"meta"}
        assert {state.dtype for state in states} == {
            torch.bfloat16 if turn is to_bf16_inference else torch.float32
        }
        assert encoder(*read, given.layout.first)[-1].shape == (3, 32)
        for kind in ("mean", "max", "last-four"):
            assert pool(states, given.layout, kind).device.type == "meta"
        assert all(
            found.device.type == "meta"
            for found in model.encoder.attention_maps(states, given.layout)
        )
