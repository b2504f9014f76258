"""Training in several processes: steps of BERT-small in one process and in two, with one thread
each. The settings take turns; the speed is that of all processes together. It needs as many free
cores.

    python benchmarks/processes.py [--rounds 3] [--seconds 60] [--processes 2] [--tokens 32768]
    [--device auto]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from bertworks.models.config import BERT_SIZES
from bertworks.runs.run_folder import training_processes
from bertworks.training.budget import random_batch
from bertworks.training.device import (
    best_precision,
    choose_device,
    disable_heap_trim,
    time_when_done,
)
from bertworks.training.loop import make_optimizer, train
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import OptimizerConfig, Phase, Recipe, TrainConfig

LENGTH, MICRO_BATCH = 128, 32  # tokens of a sequence; sequences


def work(seconds: float, tokens: int, name: str) -> None:
    """What each process does. The first one prints tokens per second, of all of them."""
    disable_heap_trim()
    device, encoder = choose_device(name), BERT_SIZES["small"]
    phase = Phase(num_steps=1, batch_size=tokens // LENGTH, sequence_length=LENGTH)
    recipe = Recipe(title="processes", train=TrainConfig(phases=(phase,)), encoder=encoder)
    with training_processes(device) as processes:
        processes.meet(Path())
        torch.manual_seed(0)
        model, c = PretrainingModel(encoder).to(device), OptimizerConfig(learning_rate=1e-4)
        batch, counted, start = random_batch(recipe, MICRO_BATCH, LENGTH).to(device), 0, 0.0
        parts = [batch] * (phase.batch_size // MICRO_BATCH // processes.count)
        steps = train(
            model,
            make_optimizer(model, c),
            lambda _: parts,
            c,
            10**6,
            precision=best_precision(device),
        )
        done = torch.zeros(1, device=device)
        for step in steps:
            if step.number == 2:
                start = time_when_done(device)
            elif step.number > 2:
                counted += step.tokens
                done += float(processes.first and time.perf_counter() - start > seconds)
                if processes.count > 1:  # the first one decides for all
                    torch.distributed.broadcast(done, src=0)
                if done.item():
                    break
        if processes.first:
            print(json.dumps({"speed": counted / (time_when_done(device) - start)}))


def measure(processes: int, options: argparse.Namespace) -> float:
    """Tokens per second."""
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        __file__,
        "--work",
    ]
    command += [
        f"--seconds={options.seconds}",
        f"--tokens={options.tokens}",
        f"--device={options.device}",
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=True
    )
    return float(json.loads(done.stdout.splitlines()[-1])["speed"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--tokens", type=int, default=256 * LENGTH, help="of a step, all together: the recipe's"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.seconds, options.tokens, options.device)
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, torch "
        f"{torch.__version__}"
    )
    speeds: dict[int, list[float]] = {1: [], options.processes: []}
    for _ in range(options.rounds):
        for count, row in speeds.items():
            row.append(measure(count, options))
            print(f"{count} processes: {row[-1]:8,.0f} tokens/s", flush=True)
    one, several = (statistics.median(row) for row in speeds.values())
    print(
        f"{options.processes} processes are {several / one:.2f} times as fast as one (wanted on a "
        "quiet machine: 1.7)"
    )


if __name__ == "__main__":
    main()
