"""The training loop.

It yields after every step; the caller logs, evaluates and saves.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count as numbers_from, groupby
from typing import cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from bertworks.batching.batch import Batch
from bertworks.models.heads import OutputLayer
from bertworks.models.transformer import Encoder
from bertworks.training.device import DTYPES, Precision
from bertworks.training.objectives import LossStats, LossSum, TrainableModel
from bertworks.training.optimization import OptimizerConfig, update


@dataclass(frozen=True)
class Step:
    """A finished step.

    Its tensors stay on the device until `read()`, which waits for them.
    """

    number: int  # of steps done
    learning_rate: float
    grad_norm: Tensor  # before clipping
    skipped: Tensor  # 1: loss or gradient was not finite, and the parameters were left as they were
    sums: dict[str, Tensor]  # float32 [2]: a `LossSum` over all batches and processes of the step
    counts: dict[str, int]
    tokens: int  # of this step, all processes

    def read(self) -> dict[str, LossStats]:
        """Return the mean losses and accuracies of the step."""
        return means(self.sums, self.counts)


class MixedPrecision(nn.Module):
    """An objective in a precision.

    In bf16 the network computes with rounded copies of its parameters. The rounding is part of the
    graph, so gradients arrive, accumulate and are applied in float32: the parameters of the
    objective are the master weights. Frozen parameters and the output layer of a task are not
    rounded; of an embedding matrix, the rows that are read are.
    """

    def __init__(self, objective: TrainableModel, precision: Precision):
        super().__init__()
        self.objective = objective
        self.dtype = DTYPES[precision]
        exact = tuple(
            f"{name}."
            for name, part in objective.named_modules()
            if isinstance(part, nn.Embedding | OutputLayer)
        )
        learned = [name for name, p in objective.named_parameters() if p.requires_grad]
        encoders = [part for part in objective.modules() if isinstance(part, Encoder)]
        block_of = {
            parameter: block
            for encoder in encoders
            for block in encoder.blocks
            for parameter in block.parameters()
        }
        # The names of the rounded parameters: those of a block together.
        self.groups = [
            [*names]
            for _, names in groupby(
                (name for name in learned if not name.startswith(exact)),
                lambda name: block_of.get(objective.get_parameter(name)),
            )
        ]

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        """Return the losses of the objective, computed in the precision."""
        if self.dtype == torch.float32:
            return cast(dict[str, LossSum], self.objective(batch))
        copies: dict[str, Tensor] = {}
        # On a GPU the time of hundreds of small copies would be that of their calls: one per block.
        # Not one for all, so that processes exchange the gradients of a block while those of the
        # next are computed.
        for names in self.groups:
            parameters = [self.objective.get_parameter(name) for name in names]
            if parameters[0].is_cuda:
                rounded = _Rounded.apply(self.dtype, *parameters)  # type: ignore[no-untyped-call]
            else:
                rounded = [p.to(self.dtype) for p in parameters]
            copies |= zip(names, rounded, strict=True)
        return cast(dict[str, LossSum], functional_call(self.objective, copies, (batch,)))


class _Rounded(torch.autograd.Function):
    """Copies of tensors in another type; and of their gradients in float32."""

    @staticmethod
    def forward(ctx, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
        ctx.set_materialize_grads(False)  # an objective that is not in a batch has no gradient
        return _copies(tensors, dtype)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        copies = iter(_copies([g for g in gradients if g is not None], torch.float32))
        return None, *(None if g is None else next(copies) for g in gradients)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(x, dtype=dtype) for x in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


def train(
    objective: TrainableModel,
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int], Sequence[Batch]],
    config: OptimizerConfig,
    num_steps: int,
    *,
    precision: Precision = "fp32",
    seed: int = 0,
    start: int = 0,
    before_update: Callable[[], None] | None = None,
    position: Callable[[int], float] = float,
) -> Iterator[Step]:
    """Train a network, and yield statistics.

    `batches(n)` are the micro-batches of step n, always the same: to resume is to start at another
    number. In some of several processes there may be none, but not in all steps.

    The losses of a step are means over all its micro-batches and all processes of the default
    process group, so that the split shows in dropout's random numbers alone. They are multiplied by
    the objective's weights. `before_update` is called in each step before parameters change.
    `position(n)` is where step n stands in a schedule of `num_steps`
    steps: the training ends where it reaches them.
    """
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    parameters = [p for p in objective.parameters() if p.requires_grad]
    device = parameters[0].device
    compute: nn.Module = MixedPrecision(objective, precision)
    if world_size > 1:
        compute = DistributedDataParallel(compute, gradient_as_bucket_view=True)
    step = start
    while True:
        reached = position(step)
        if reached >= num_steps:
            break
        objective.train()
        # Of dropout. Hashed: the CPU's generator uses only the low 32 bits of a seed.
        torch.manual_seed(int(np.random.SeedSequence((seed, step, rank)).generate_state(1)[0]))
        step_batches = batches(step)
        # A process without a batch computes one with weight 0: the others wait for its gradients.
        weight = 1 if step_batches else 0
        parts = [
            batch.to(device)
            for batch in step_batches or next(filter(None, map(batches, numbers_from())))[:1]
        ]
        counts, tokens = _global_counts(objective, parts, weight, device)
        # Data parallelism averages gradients; the losses are divided by global counts, so undo the
        # average.
        factors = {
            name: objective.weights[name] * world_size / count for name, count in counts.items()
        }
        sums: dict[str, Tensor] = {}
        for number, batch in enumerate(parts):
            is_last = number == len(parts) - 1  # gradients are reduced once per step
            with (
                nullcontext()
                if is_last or not isinstance(compute, DistributedDataParallel)
                else compute.no_sync()
            ):
                part = {name: weight * torch.stack(t) for name, t in compute(batch).items()}
                torch.stack(
                    [factors[name] * loss for name, (loss, _) in part.items()]
                ).sum().backward()
            sums |= {name: sums.get(name, 0) + t.detach() for name, t in part.items()}
        if world_size > 1:  # one small message
            row = torch.stack([*sums.values()])
            dist.all_reduce(row)
            sums = dict(zip(sums, row, strict=True))
        grad_norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        # A loss that is not finite may have finite gradients: make the norm not finite, so that the
        # step is skipped.
        grad_norm = grad_norm + 0 * torch.stack([loss for loss, _ in sums.values()]).sum()
        learning_rate = config.rate(reached, num_steps)
        if before_update is not None:
            before_update()
        skipped = update(optimizer, learning_rate, grad_norm, config.max_grad_norm)
        optimizer.zero_grad(set_to_none=world_size == 1)
        step += 1
        yield Step(step, learning_rate, grad_norm, skipped, sums, counts, tokens)


def evaluate(
    objective: TrainableModel, batches: Iterable[Batch], precision: Precision = "fp32"
) -> dict[str, LossStats]:
    """Return the means over all batches, without dropout.

    Pass each process its own part.
    """
    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    for sums_of_batch, counts_of_batch in batch_sums(objective, batches, precision):
        sums |= {name: sums.get(name, 0) + t for name, t in sums_of_batch.items()}
        counts.update(counts_of_batch)
    return means(sums, counts)


@torch.no_grad()
def batch_sums(
    objective: TrainableModel, batches: Iterable[Batch], precision: Precision = "fp32"
) -> Iterator[tuple[dict[str, Tensor], Mapping[str, int]]]:
    """What `means` gets, of each batch, without dropout."""
    compute = MixedPrecision(objective, precision)
    device = next(objective.parameters()).device
    training = objective.training
    objective.eval()
    for batch in batches:
        yield (
            {name: torch.stack(t) for name, t in compute(batch.to(device)).items()},
            objective.counts(batch),
        )
    objective.train(training)


def means(sums: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, LossStats]:
    """Return the means of losses and of correct predictions, on the host.

    sums: float32 [2] by name: the sum of the losses, the number of correct predictions. counts:
        their denominators.
    """
    read = {name: (*t.tolist(), counts[name]) for name, t in sums.items()}
    return {
        name: LossStats(loss / count, correct / count, count)
        for name, (loss, correct, count) in read.items()
    }


def _global_counts(
    objective: TrainableModel, parts: Sequence[Batch], weight: int, device: torch.device
) -> tuple[dict[str, int], int]:
    """Return the denominators of the losses, and the tokens, of all processes."""
    counts = Counter(tokens=sum(len(batch.input_ids) for batch in parts))
    for batch in parts:
        counts.update(objective.counts(batch))
    if dist.is_initialized() and dist.get_world_size() > 1:
        row = weight * torch.tensor([*counts.values()], device=device)
        dist.all_reduce(row)
        counts = Counter(dict(zip(counts, row.tolist(), strict=True)))
    tokens = counts.pop("tokens")
    return {name: max(count, 1) for name, count in counts.items()}, tokens
