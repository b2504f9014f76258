"""The optimizers and their schedule: functions of the parameters and of the number of the step."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from bertworks.config import Range, Settings
from bertworks.models.transformer import Encoder

STACKED = ".attention.qkv.weight"  # three matrices in one
State = dict[str, Tensor]  # of a parameter
MANY_STEPS = 1e7  # after which Adam's bias corrections are 1 to the last bit


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """AdamW (Loshchilov and Hutter 2019), LAMB or Adamax, clipping, warm-up and linear decay.

    optimizer: "adamw"; "lamb" for batches of thousands of sequences (You et al. 2020; ALBERT); or
    "adamax" (Kingma and Ba 2015, section 7.1; MT-DNN), with weight decay in the gradient.
    learning_rate: the peak; 0: a default for the width of the network (fine-tuning only).
    bias_correction: of the moments. False is google-research/bert's AdamWeightDecayOptimizer, and
        the LAMB of ALBERT.
    warmup: fraction of the steps in which the rate rises linearly from 0.
    schedule: "linear" falls from the peak to 0 at the last step. "linear_from_start" is that of
    google-research/bert: the falling line begins at step 0, so that the rate drops a little where
    the warm-up ends. "cosine" falls along half a period (Radford et al. 2018, section 4.1),
    "inverse_sqrt" with the root of the step (Vaswani et al. 2017, section 5.3).
    weight_decay: of matrices and embeddings, not of biases and norms.
    beta1, beta2: decay rates of the moments.
    eps: added to the root of the second moment.
    max_grad_norm: gradients are scaled down to this norm, of all parameters together; 0: no
        clipping.
    layer_decay: the rate of a layer is that of the layer above times this; heads have the full
    rate, the embeddings the smallest (Sun et al. 2019, section 5.3.3). Layers that share a block
    count as one. 1: all have the same rate.
    layer_decay_offset: layers that are counted between the heads and the last block, which then has
    the full rate times layer_decay to the power of 1 + this number (google-research/electra: 1).
    """

    optimizer: Literal["adamw", "lamb", "adamax"] = "adamw"
    learning_rate: Annotated[
        float, Range("a number above 0, and well below 10", lambda x: 0 <= x < 10)
    ] = 1e-4
    warmup: Annotated[
        float, Range("a fraction of the steps, from 0 to 1", lambda x: 0 <= x <= 1)
    ] = 0.01
    schedule: Literal["linear", "linear_from_start", "cosine", "inverse_sqrt", "constant"] = (
        "linear"
    )
    weight_decay: Annotated[float, Range("0 or more", lambda x: x >= 0)] = 0.01
    beta1: Annotated[float, Range("a number from 0 to below 1", lambda x: 0 <= x < 1)] = 0.9
    beta2: Annotated[float, Range("a number from 0 to below 1", lambda x: 0 <= x < 1)] = 0.999
    eps: Annotated[float, Range("a number above 0", lambda x: x > 0)] = 1e-6
    bias_correction: bool = True
    max_grad_norm: Annotated[float, Range("0 or more", lambda x: x >= 0)] = 1.0
    layer_decay: Annotated[float, Range("a factor above 0, at most 1", lambda x: 0 < x <= 1)] = 1.0
    layer_decay_offset: Annotated[
        int, Range("a number of layers, or 0", lambda x: 0 <= x < 1000)
    ] = 0

    def rate(self, step: float, num_steps: int) -> float:
        """Return the learning rate of a step, counted from 0.

        As in both published forms the first step of a warm-up is 0.

        step: with a fraction where a plan was changed on the way (`training.budget.Schedule`).
        """
        warmup_steps = round(self.warmup * num_steps)
        if step < warmup_steps:
            return self.learning_rate * step / warmup_steps
        rest = (num_steps - step) / max(1, num_steps - warmup_steps)
        factors = {
            "linear": rest,
            "cosine": (1 - math.cos(math.pi * rest)) / 2,
            "linear_from_start": 1 - step / num_steps,
            "inverse_sqrt": math.sqrt(max(1, warmup_steps) / max(1, step)),
            "constant": 1.0,
        }
        return self.learning_rate * factors[self.schedule]


class SkippingOptimizer(torch.optim.Optimizer):
    """An optimizer that divides gradients and skips steps inside the step, as fused AdamW does."""

    found_inf: Tensor | None = None  # 1: nothing changes
    grad_scale: Tensor | None = None  # by which gradients are divided

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """One step, without waiting for the device."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    gradient = p.grad if self.grad_scale is None else p.grad / self.grad_scale
                    skips = (
                        torch.zeros((), device=p.device)
                        if self.found_inf is None
                        else self.found_inf
                    )
                    for name, new in self._after(p, gradient, group, self.state[p]).items():
                        old = self.state[p].get(name, p)
                        old.copy_(torch.where(skips > 0, old, new))

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
    layers_above = _layers_above(model)
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
        step = torch.tensor(0.0 if c.bias_correction else MANY_STEPS, device=p.device)
        optimizer.state[p] = {
            "step": step,
            "exp_avg": torch.zeros_like(p),
            second: torch.zeros_like(p),
        }
    return optimizer


def _layers_above(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return the number of layers between each parameter of the encoder and the loss.

    It is 1 for the last block, and the largest for the embeddings. Heads are not in it: it is 0.
    """
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, Encoder):
        return {}
    num_blocks = len(encoder.blocks)
    layers = dict.fromkeys(encoder.parameters(), num_blocks + 1)
    for number, block in enumerate(encoder.blocks):
        layers |= dict.fromkeys(block.parameters(), num_blocks - number)
    return layers


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
