"""Batches of examples through a network, sorted by length, with the results in the order of the input."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.batching.batch import Batch, ExampleGroup, collate, longest_sequence, token_budget_indices
from bertworks.batching.masking import Example
from bertworks.errors import UsageError
from bertworks.inference.decoding import Logits
from bertworks.inference.onnx_runtime import OnnxModel
from bertworks.models.encoder import Encoder
from bertworks.models.heads import Pooling, pool
from bertworks.models.packed_linear import (
    InferenceEncoder,
    cpu_supports_int8,
    to_bf16_inference,
    to_fp32_inference,
    to_int8_inference,
    with_fp16_weights,
)
from bertworks.training.device import THREADS, InferencePrecision, Precision, PrecisionOption, best_precision
from bertworks.training.losses import LossStats
from bertworks.training.objectives import PretrainingModel
from bertworks.training.task_heads import TaskModel

BATCH_TOKENS = 4096  # of a batch, padding counted
MAX_SCORES = 1 << 24  # of words at asked places, at once


def prepare_for_inference(
    encoder: Encoder, wanted: PrecisionOption
) -> tuple[Encoder | InferenceEncoder, InferencePrecision]:
    """An encoder that learns no more, as it answers soonest in this precision; and what "auto" has become: bf16 where
    this hardware gains by it, else fp32.

    Raises:
        UsageError: no such precision; int8 where the hardware has no instructions for it.
    """
    turned: dict[str, Callable[[Encoder], Encoder | InferenceEncoder]] = {
        "fp32": to_fp32_inference,
        "bf16": to_bf16_inference,
        # A few tokens in whole numbers would take twice as long as with weights in half precision, and be less exact.
        "int8": lambda encoder: with_fp16_weights(encoder, to_int8_inference(encoder)),
    }
    if wanted not in ("auto", *turned):
        raise UsageError(f"the precision {wanted!r} is not known", hint=f"name auto, {', '.join(turned)}")
    device = next(encoder.parameters()).device
    precision = best_precision(device) if wanted == "auto" else wanted
    if precision == "int8" and device.type != "cpu":
        raise UsageError("int8 is for CPUs", hint="leave --precision out: GPUs take bf16")
    if precision == "int8" and not cpu_supports_int8():
        raise UsageError("this processor has no instructions for int8 (VNNI)", hint="leave --precision out")
    return turned[precision](encoder), precision


def compute_logits(
    model: TaskModel | OnnxModel, units: Sequence[ExampleGroup], precision: InferencePrecision = "fp32"
) -> list[Logits]:
    """For each unit float32 [M, outputs]: the scores of everything it asks, over all its sequences in order.

    The network is left as it was found; dropout is off while it computes.
    """
    found: list[Logits] = [np.zeros((0, model.task.outputs), np.float32)] * len(units)
    for numbers, _, logits in _run_batches(model, model.logits, units, precision):
        _scatter_results(found, units, numbers, logits)
    return found


def compute_logits_and_loss(
    model: TaskModel, units: Sequence[ExampleGroup], precision: Precision = "fp32"
) -> tuple[list[Logits], LossStats]:
    """The same, and how well the labels of the units are met, on average."""
    found: list[Logits] = [np.zeros((0, model.task.outputs), np.float32)] * len(units)
    loss = correct = 0.0
    count = 0
    for numbers, batch, logits in _run_batches(model, model.logits, units, precision):
        _scatter_results(found, units, numbers, logits)
        tally = model.task.tally(logits, batch)
        loss, correct, count = loss + tally.loss.item(), correct + tally.correct.item(), count + model.task.count(batch)
    return found, LossStats(loss / max(1, count), correct / max(1, count), count)


def log_probabilities(
    model: PretrainingModel, examples: Sequence[Example], precision: Precision = "fp32"
) -> NDArray[np.float64]:
    """[examples]: the natural logarithm of the probability that the label of each has at its one masked place.

    The model is in evaluation mode. The vocabulary is scored at asked places alone.
    """
    found = np.zeros(len(examples))
    device, vocabulary = next(model.parameters()).device, model.encoder.config.vocab_size
    lengths, most = [len(example.input_ids) for example in examples], max(1, MAX_SCORES // vocabulary)
    for part in token_budget_indices(lengths, [1] * len(examples), BATCH_TOKENS):
        for numbers in (part[n : n + most] for n in range(0, len(part), most)):
            batch = collate([examples[number] for number in numbers]).to(device)
            THREADS.adapt()
            with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                scores = model.scores(batch).float()
            told = scores.gather(1, batch.target.labels[:, None])[:, 0] - scores.logsumexp(-1)
            found[numbers] = told.cpu().numpy()
    return found


def compute_vectors(
    encoder: Encoder | InferenceEncoder | OnnxModel,
    units: Sequence[ExampleGroup],
    pooling: Pooling,
    width: int,
    precision: InferencePrecision = "fp32",
) -> NDArray[np.float32]:
    """float32 [units, width]: one vector for each unit, which is one sequence that asks about one token.

    width: the hidden size."""

    def compute(batch: Batch) -> Tensor:
        if pooling == "cls":  # the last layer is finished for these tokens alone
            return encoder(batch.input_ids, batch.layout, batch.token_type_ids, batch.layout.first)[-1]  # type: ignore[no-any-return]
        return pool(encoder(batch.input_ids, batch.layout, batch.token_type_ids), batch.layout, pooling)

    found = np.zeros((len(units), width), np.float32)
    for numbers, _, vectors in _run_batches(encoder, compute, units, precision):
        found[numbers] = vectors.cpu().numpy()
    return found


def _run_batches(
    model: nn.Module, compute: Callable[[Batch], Tensor], units: Sequence[ExampleGroup], precision: InferencePrecision
) -> Iterator[tuple[list[int], Batch, Tensor]]:
    """Numbers of units, their batch, and what it gives."""
    training, device = model.training, next((p.device for p in model.parameters()), torch.device("cpu"))
    if training:  # else not: for one short text, telling all modules would take a tenth of the time
        model.eval()
    # A unit that predicts nothing, such as a text without words to tag, is left out.
    present = [n for n, unit in enumerate(units) if any(not e.targets or len(e.target.positions) for e in unit)]
    lengths, sizes = [longest_sequence(units[n]) for n in present], [len(units[n]) for n in present]
    for part in token_budget_indices(lengths, sizes, BATCH_TOKENS):
        numbers = [present[place] for place in part]
        batch = collate([example for number in numbers for example in units[number]]).to(device)
        THREADS.adapt()
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            result = compute(batch).float()
        yield numbers, batch, result
    if training:
        model.train()


def _scatter_results(found: list[Logits], units: Sequence[ExampleGroup], numbers: list[int], logits: Tensor) -> None:
    counts = [sum(len(one.target.positions) for one in units[number]) for number in numbers]
    for number, rows in zip(numbers, np.split(logits.cpu().numpy(), np.cumsum(counts)[:-1]), strict=True):
        found[number] = rows
