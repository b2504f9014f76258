"""Run by torchrun in test_finetune_processes: the command line, without its measurement of the
machine."""

import sys

import torch

import bertworks.runs.training_run
from bertworks.cli.main import run

if __name__ == "__main__":
    torch.set_num_threads(1)
    bertworks.runs.training_run.measure_matmul = lambda *_: 1e11  # type: ignore[attr-defined]
    sys.exit(run())  # type: ignore[func-returns-value]
