"""Run by torchrun in test_train: trains on this process's share and lets the first one write what it saw."""

import sys
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from test_stream import Numbers
from test_train import SMALL

from bertworks.data.batch import Batches
from bertworks.data.masking import Masker, MaskingConfig
from bertworks.data.stream import Stream
from bertworks.learn.objectives import PretrainingModel
from bertworks.learn.optimization import OptimizerConfig, make_optimizer
from bertworks.learn.train import train


def learned(rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """Losses and norms of four steps, and the optimiser's first moments after the first."""
    torch.manual_seed(0)
    model = PretrainingModel(replace(SMALL, vocab_size=1000))
    c = OptimizerConfig(learning_rate=1e-3, warmup=0.5)
    optimizer = make_optimizer(model, c)
    stream = Stream(Numbers(50), Masker(MaskingConfig(), 4, np.ones(1000, bool)))
    batches = Batches(stream, 13, 3, rank, world_size)
    result = {}
    for step in train(model, optimizer, batches, c, 4):
        for name, mean in step.read().items():
            result[f"{name}_{step.number}"] = torch.tensor(mean.loss, dtype=torch.float64)
        result[f"norm_{step.number}"] = step.grad_norm
        if step.number == 1:
            result |= {f"exp_avg/{n}": optimizer.state[p]["exp_avg"].clone() for n, p in model.named_parameters()}
    return result


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    assert dist.get_world_size() == 2
    result = learned(dist.get_rank(), 2)
    if dist.get_rank() == 0:
        torch.save(result, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
