"""Run as a program in test_loop.py: imports once, and forks two processes that train, each on its
share; the first one writes what it saw. torchrun, which imports three times, starts those of
two_pretrainings and two_finetunings."""

import multiprocessing
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from bertworks.batching.batch import Batches
from bertworks.batching.sampling import ExampleStream, Masker, MaskingConfig
from bertworks.training.loop import make_optimizer, train
from bertworks.training.objectives import BERT, PretrainingModel, Teacher
from bertworks.training.recipe import ObjectiveKind, OptimizerConfig
from tests.batching.test_batch import Numbers
from tests.training.test_loop import SMALL


def learned(rank: int, world_size: int) -> dict[str, torch.Tensor]:
    """Losses and norms of four steps, and the first moments after the first: of BERT, ELECTRA, a
    student."""
    results = {}
    electra: dict[ObjectiveKind, float] = {"masked_lm": 1.0, "replaced_token": 50.0}
    distilbert: dict[ObjectiveKind, float] = {"masked_lm": 2.0, "distillation": 5.0, "cosine": 1.0}
    for family, kinds in (("bert", BERT), ("electra", electra), ("distilbert", distilbert)):
        result = _learned(rank, world_size, kinds)
        results |= {f"{name}/{family}": value for name, value in result.items()}
    return results


def _learned(
    rank: int, world_size: int, kinds: Mapping[ObjectiveKind, float]
) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = PretrainingModel(
        replace(SMALL, vocab_size=1000, embedding_size=16), kinds, generator_size=0.5
    )
    model.teacher = teacher = Teacher(
        replace(SMALL, vocab_size=1000, num_hidden_layers=3), None, torch.float32
    )
    for p in teacher.parts.parameters():  # a divergence near 0 is a difference of large numbers
        p.add_(torch.randn_like(p), alpha=0.5)
    c = OptimizerConfig(learning_rate=1e-3, warmup=0.5)
    optimizer = make_optimizer(model, c)
    masker = Masker(MaskingConfig(), 4, np.ones(1000, bool), replaces="replaced_token" in kinds)
    stream = ExampleStream(Numbers(50), masker)
    # one process may have more micro-batches than the other
    batches = Batches(stream, 13, 40, rank, world_size)
    result = {}
    for step in train(model, optimizer, batches, c, 4):
        for name, mean in step.read().items():
            result[f"{name}_{step.number}"] = torch.tensor(mean.loss, dtype=torch.float64)
        result[f"norm_{step.number}"] = step.grad_norm
        if step.number == 1:
            result |= {
                f"exp_avg/{n}": optimizer.state[p]["exp_avg"].clone()
                for n, p in model.named_parameters()
            }
    return result


def one_of_two(rank: int, output: str) -> None:
    meeting = f"file://{output}.meeting"
    dist.init_process_group("gloo", meeting, timedelta(minutes=1), world_size=2, rank=rank)
    result = learned(rank, 2)
    if rank == 0:
        torch.save(result, output)
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=one_of_two, args=(rank, sys.argv[1])) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main()
