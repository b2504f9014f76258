"""What a step of a training costs on this machine. Not here: what follows from it (`plan`, `runs.forecast`)."""

import time

import numpy as np
import torch
from torch import nn

from bertworks.data.batch import Batch
from bertworks.learn.machine import Precision
from bertworks.learn.optimization import OptimizerConfig, make_optimizer
from bertworks.learn.train import train


def time_step(
    objective: nn.Module, optimizer: OptimizerConfig, precision: Precision, batch: Batch, seconds: float
) -> tuple[float, float]:
    """Seconds of a micro-batch, and of an update: medians, of three steps or of as many as the time allows. The
    parameters are not what they were afterwards."""
    updating = _Timer(cuda=next(objective.parameters()).is_cuda)
    steps = train(
        objective, make_optimizer(objective, optimizer), lambda _: [batch], optimizer, 1 << 30, precision=precision,
        updating=updating,
    )  # fmt: skip
    whole: list[float] = []
    updates: list[float] = []
    begin = last = time.perf_counter()
    for step in steps:
        step.grad_norm.item()  # waits for the device
        now = time.perf_counter()
        whole.append(now - last)
        updates.append(updating.seconds)
        last, updating.seconds = now, 0.0
        if len(whole) >= 3 and now - begin > seconds:
            break
    update = float(np.median(updates[1:]))  # the first step prepares kernels and memory
    return float(np.median(whole[1:])) - update, update


class _Timer:
    """Seconds spent inside, in all. A GPU is waited for before and after."""

    def __init__(self, *, cuda: bool):
        self.seconds, self._cuda = 0.0, cuda

    def __enter__(self) -> None:
        self._begin = self._now()

    def __exit__(self, *_: object) -> None:
        self.seconds += self._now() - self._begin

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()
