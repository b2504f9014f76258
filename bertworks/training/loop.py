"""The training loop, its optimizers and their update.

- `TrainableModel`: what the loop needs of a network
- `LossSum`: losses as sums. The mean is taken once, over all micro-batches and processes, so that
  an accumulated batch equals a large one however unequal its parts are
- `train`: yields after every step; the caller logs, evaluates and saves
- `evaluate`: means over batches; `with_memory`: with another memory of the network
- `time_step`: the time of a training step
- `make_optimizer`, `update`: AdamW, LAMB or Adamax; they skip steps that are not finite
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers_from, groupby
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from bertworks.batching.batch import Batch
from bertworks.models.heads import OutputLayer
from bertworks.models.memory import Memory
from bertworks.models.transformer import Encoder
from bertworks.training.device import DTYPES, THREADS, Precision, time_when_done
from bertworks.training.recipe import OptimizerConfig

STACKED = ".attention.qkv.weight"  # three matrices in one
State = dict[str, Tensor]  # of a parameter
UNCORRECTED = 1e7  # steps after which Adam's bias corrections are 1 to the last bit
# The length of a schedule of which only the first steps are run, to time them.
MANY_STEPS = 1 << 30


class LossSum(NamedTuple):
    """A loss over a batch, and the number of correct predictions."""

    loss: Tensor  # float32 []: sum of the losses
    correct: Tensor  # float32 []: how often the label has the highest logit


@dataclass(frozen=True)
class LossStats:
    """A loss and its accuracy over many batches and processes."""

    loss: float
    accuracy: float
    count: int


def cross_entropy(
    logits: Tensor, labels: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> LossSum:
    """Return the cross-entropy of logits [M, C] with labels int64 [M].

    weights: [C], of the labels.
    smoothing: fraction of the target probability that is spread over all labels.
    """
    loss = F.cross_entropy(
        logits.float(), labels, weights, reduction="sum", label_smoothing=smoothing
    )
    return LossSum(loss, (logits.detach().argmax(-1) == labels).sum().float())


class TrainableModel(nn.Module, ABC):
    """A network that turns a batch into named sums of losses.

    `model(batch)` is a dict of `LossSum`.

    weights: of the losses in the sum that is minimized, by name. counts(batch): the denominators,
    known before the forward pass: that of a whole step is needed for its first
        gradient.

    memory: what the network read before each batch of a text that is read in lanes; None: it has no
        memory. It is no part of the network: not trained, not saved in model folders.
    """

    weights: dict[str, float]
    memory: Memory | None = None

    @abstractmethod
    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of predictions of each loss for a batch."""


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
        learned = {name: p for name, p in objective.named_parameters() if p.requires_grad}
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
                lambda name: block_of.get(learned[name]),
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
        # The tokens and the denominators of the losses, of all processes.
        totals = Counter(tokens=sum(len(batch.input_ids) for batch in parts))
        for batch in parts:
            totals.update(objective.counts(batch))
        if world_size > 1:
            row = weight * torch.tensor([*totals.values()], device=device)
            dist.all_reduce(row)
            totals = Counter(dict(zip(totals, row.tolist(), strict=True)))
        tokens = totals.pop("tokens")
        counts = {name: max(count, 1) for name, count in totals.items()}
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
        if objective.memory is not None:
            objective.memory.commit()
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


@contextmanager
def with_memory(objective: TrainableModel, memory: Memory | None) -> Iterator[None]:
    """Let a network read and write another memory in the block."""
    former = objective.memory
    objective.memory = memory
    try:
        yield
    finally:
        objective.memory = former


@torch.no_grad()
def batch_sums(
    objective: TrainableModel, batches: Iterable[Batch], precision: Precision = "fp32"
) -> Iterator[tuple[dict[str, Tensor], Mapping[str, int]]]:
    """What `means` gets, of each batch, without dropout.

    A memory is written after each batch.
    """
    compute = MixedPrecision(objective, precision)
    device = next(objective.parameters()).device
    training = objective.training
    objective.eval()
    for batch in batches:
        sums = {name: torch.stack(t) for name, t in compute(batch.to(device)).items()}
        if objective.memory is not None:
            objective.memory.commit()
        yield sums, objective.counts(batch)
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


def time_step(
    objective: TrainableModel,
    optimizer: OptimizerConfig,
    precision: Precision,
    batch: Batch | Callable[[int], Sequence[Batch]],
    seconds: float,
    start: int = 0,
) -> tuple[float, float]:
    """Return the seconds of a micro-batch and of an update.

    They are medians of three steps or more, as the time allows, with the threads that a training
    would use. The parameters are changed. batch: of all steps; or what makes that of a step from
    `start` on, in the time that is measured.
    """
    now = partial(time_when_done, next(objective.parameters()).device)
    begins: list[float] = []  # of the updates
    times: list[tuple[float, float]] = []  # of a step, and of its update
    steps = train(
        objective,
        make_optimizer(objective, optimizer),
        batch if callable(batch) else lambda _: [batch],
        optimizer,
        start + MANY_STEPS,
        precision=precision,
        start=start,
        before_update=lambda: begins.append(now()),
    )
    with THREADS.hold():
        begin = last = now()
        for _ in steps:
            end = now()
            times.append((end - last, end - begins[-1]))
            last = end
            if len(times) >= 3 and end - begin > seconds:
                break
    # the first step prepares kernels and memory
    step, update = np.median(times[1:], axis=0).tolist()
    return step - update, update


class SkippingOptimizer(torch.optim.Optimizer):
    """An optimizer that divides gradients and skips steps inside the step, as fused AdamW does."""

    found_inf: Tensor  # 1: nothing changes
    grad_scale: Tensor | None = None  # by which gradients are divided

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Change all parameters by one step, without waiting for the device."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    gradient = p.grad if self.grad_scale is None else p.grad / self.grad_scale
                    for name, new in self._after(p, gradient, group, self.state[p]).items():
                        old = self.state[p].get(name, p)
                        old.copy_(torch.where(self.found_inf > 0, old, new))

    def _after(self, p: Tensor, gradient: Tensor, group: dict[str, Any], state: State) -> State:
        """Return a parameter, as "parameter", and its state after the step."""
        raise NotImplementedError


class Adamax(SkippingOptimizer):
    """Adamax (Kingma and Ba 2015, algorithm 2), in the form of torch.optim.Adamax."""

    def _after(self, p: Tensor, gradient: Tensor, group: dict[str, Any], state: State) -> State:
        beta1, beta2 = group["betas"]
        gradient = gradient.add(p, alpha=group["weight_decay"])
        step = state["step"] + 1
        mean = state["exp_avg"].lerp(gradient, 1 - beta1)
        largest = torch.maximum(state["exp_inf"] * beta2, gradient.abs() + group["eps"])
        new = p - group["lr"] / (1 - beta1**step) * (mean / largest)
        return {"parameter": new, "step": step, "exp_avg": mean, "exp_inf": largest}


class Lamb(SkippingOptimizer):
    """LAMB (You et al. 2020, algorithm 2).

    The update of AdamW, weight decay included, is scaled to the norm of its matrix. Vectors (biases
    and norms) have the scale 1, as in google-research/albert `lamb_optimizer.py`.

    `stacked` of a group: matrices in each parameter, along the first axis, each with a scale of its
    own.
    """

    def _after(self, p: Tensor, gradient: Tensor, group: dict[str, Any], state: State) -> State:
        beta1, beta2 = group["betas"]
        step = state["step"] + 1
        mean = beta1 * state["exp_avg"] + (1 - beta1) * gradient
        square = beta2 * state["exp_avg_sq"] + (1 - beta2) * gradient.square()
        root = (square / (1 - beta2**step)).sqrt_()
        change = (
            (mean / (1 - beta1**step))
            .div_(root.add_(group["eps"]))
            .add_(p, alpha=group["weight_decay"])
        )
        if p.ndim > 1:
            for part, weights in zip(
                change.chunk(group["stacked"]), p.chunk(group["stacked"]), strict=True
            ):
                of_weights = weights.norm()
                of_change = part.norm()
                part.mul_(
                    torch.where((of_weights > 0) & (of_change > 0), of_weights / of_change, 1.0)
                )
        return {
            "parameter": p - group["lr"] * change,
            "step": step,
            "exp_avg": mean,
            "exp_avg_sq": square,
        }


def make_optimizer(model: nn.Module, c: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimizer, with weight decay on matrices and embeddings, not on biases and norms.

    AdamW is fused: one pass over memory.
    """
    # The layers between a parameter of the encoder and the loss: 1 for the last block, the most for
    # the embeddings. Heads are not among them.
    layers_above: dict[nn.Parameter, int] = {}
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, Encoder):
        num_blocks = len(encoder.blocks)
        layers_above = dict.fromkeys(encoder.parameters(), num_blocks + 1)
        for number, block in enumerate(encoder.blocks):
            layers_above |= dict.fromkeys(block.parameters(), num_blocks - number)
    groups: dict[tuple[float, float, int], dict[str, Any]] = {}
    for name, p in model.named_parameters():
        if p.requires_grad:
            above = layers_above.get(p, 0)
            factor = c.layer_decay ** (above + c.layer_decay_offset * (above > 0))
            decay = c.weight_decay * (p.ndim > 1)
            stacked = 3 if c.optimizer == "lamb" and name.endswith(STACKED) else 1
            group = {"params": [], "weight_decay": decay, "factor": factor, "stacked": stacked}
            groups.setdefault((factor, decay, stacked), group)["params"].append(p)
    defaults: dict[str, Any] = {"lr": c.learning_rate, "betas": (c.beta1, c.beta2), "eps": c.eps}
    own_classes: dict[str, type[SkippingOptimizer]] = {"lamb": Lamb, "adamax": Adamax}
    parts = [*groups.values()]
    kind = own_classes.get(c.optimizer)
    optimizer: torch.optim.Optimizer
    optimizer = kind(parts, defaults) if kind else torch.optim.AdamW(parts, **defaults, fused=True)
    second = "exp_inf" if c.optimizer == "adamax" else "exp_avg_sq"
    for p in (p for group in parts for p in group["params"]):
        # The corrections are powers of the betas: after many steps there is no correction.
        step = torch.tensor(0.0 if c.bias_correction else UNCORRECTED, device=p.device)
        optimizer.state[p] = {
            "step": step,
            "exp_avg": torch.zeros_like(p),
            second: torch.zeros_like(p),
        }
    return optimizer


def update(
    optimizer: torch.optim.Optimizer, learning_rate: float, grad_norm: Tensor, max_grad_norm: float
) -> Tensor:
    """Make one step, with gradients scaled down to `max_grad_norm`.

    Nothing changes if `grad_norm` is not finite.

    Both are done inside the step, without waiting for the device. Returns 1 if the step was
    skipped, else 0.
    """
    skipped = (~grad_norm.isfinite()).float()
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["factor"]
    optimizer.found_inf = skipped  # type: ignore[attr-defined]
    if max_grad_norm:
        optimizer.grad_scale = (grad_norm / max_grad_norm).clamp_min(1.0)  # type: ignore[attr-defined]
    optimizer.step()
    return skipped
