"""Run by torchrun in test_pretrain: `pretrain` with arguments in JSON; the first process may be late, a step slow."""

import json
import os
import sys
import time
from typing import Any

import torch

import bertworks.runs.training_run
from bertworks.runs.pretrain import pretrain
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


def main() -> None:
    torch.set_num_threads(1)
    bertworks.runs.training_run.measure_matmul = lambda *_: 1e11  # type: ignore[attr-defined]
    order = json.loads(sys.argv[1])
    rank = os.environ["RANK"]
    if rank == "0":
        time.sleep(order.get("late", 0))
    if slow := order.get("slow"):
        make_slow(slow)
    for event in pretrain(**order["arguments"]):
        if event.kind == "done":
            print(f"done of rank {rank}", flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # as the command does: threads of libraries now and then abort a process that takes itself down
