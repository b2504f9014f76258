"""Run by torchrun in test_pretrain: `pretrain` with arguments in JSON; the first process may be
late, a step slow."""

import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import torch

import bertworks.runs.pretrain
import bertworks.runs.training_run
from bertworks.runs.pretrain import pretrain
from bertworks.training.budget import Measurement
from bertworks.training.objectives import PretrainingModel


def make_slow(step: int) -> None:
    """Step number `step` takes a minute."""
    forward, calls = PretrainingModel.forward, 0

    def slow_forward(self: PretrainingModel, batch: Any) -> Any:
        nonlocal calls
        calls += self.training
        if self.training and calls == step:
            time.sleep(60)
        return forward(self, batch)

    PretrainingModel.forward = slow_forward  # type: ignore[method-assign]


def fake_clock(slow_from: int) -> None:
    """By the clock of the first process a step takes 2 s, from one of them on 4 s; other clocks
    nearly stand still."""
    forward, now, calls = PretrainingModel.forward, 0.0, 0

    def timed_forward(self: PretrainingModel, batch: Any) -> Any:
        nonlocal now, calls
        seconds = (4 if calls >= slow_from else 2) if self.training else 1
        now += seconds if os.environ["RANK"] == "0" else 1e-3
        calls += self.training
        return forward(self, batch)

    clock = SimpleNamespace(perf_counter=lambda: now)
    bertworks.runs.training_run.time = bertworks.runs.pretrain.time = clock  # type: ignore[assignment]
    bertworks.runs.pretrain.measure_steps = lambda *_: Measurement([4.0, 4.0], 1 << 30)  # type: ignore[assignment]
    PretrainingModel.forward = timed_forward  # type: ignore[method-assign]


def main() -> None:
    torch.set_num_threads(1)
    bertworks.runs.training_run.measure_matmul = lambda *_: 1e11  # type: ignore[attr-defined]
    order = json.loads(sys.argv[1])
    rank = os.environ["RANK"]
    if rank == "0":
        time.sleep(order.get("late", 0))
    if slow := order.get("slow"):
        make_slow(slow)
    if slow_from := order.get("clock"):
        fake_clock(slow_from)
    for event in pretrain(**order["arguments"]):
        if event.kind == "done":
            print(f"done of rank {rank}", flush=True)


if __name__ == "__main__":
    main()
    # as the command does: threads of libraries now and then abort a process that takes itself down
    os._exit(0)
