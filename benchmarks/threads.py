"""Threads by what is free: steps of BERT-mini with a fixed number of threads and with `--threads
auto`, on an idle machine and next to busy programs. Each figure is of a process of its own; the
settings take turns.

    python benchmarks/threads.py [--rounds 3] [--seconds 8] [--busy 0 1 8]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch

STEPS = """
import json, sys, time
import torch
from bertworks.models.config import BERT_SIZES
from bertworks.training.budget import random_batch
from bertworks.training.device import THREADS, disable_heap_trim
from bertworks.training.loop import train
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import OptimizerConfig
from bertworks.training.loop import make_optimizer
from bertworks.training.recipe import Phase, Recipe, TrainConfig
seconds = float(sys.argv[1])
disable_heap_trim()
torch.manual_seed(0)
model, c = PretrainingModel(BERT_SIZES["mini"]), OptimizerConfig(learning_rate=1e-4)
phase = Phase(num_steps=1, batch_size=16, sequence_length=128)
recipe = Recipe(title="threads", train=TrainConfig(phases=(phase,)), encoder=BERT_SIZES["mini"])
batches = [random_batch(recipe, 16, 128)]
with THREADS.hold():
    start, tokens, counts = None, 0, []
    optimizer = make_optimizer(model, c)
    for step in train(model, optimizer, lambda n: batches, c, 10**6, precision="bf16"):
        if THREADS.training_adapts:
            THREADS.adapt()
        now = time.perf_counter()
        if step.number == 5:
            start = now
        elif start is not None:
            tokens += step.tokens
            counts.append(torch.get_num_threads())
            if now - start > seconds:
                break
print(json.dumps({"speed": tokens / (now - start), "threads": sum(counts) / len(counts)}))
"""
BUSY = "while True: sum(range(100000))"


def measure(setting: str, seconds: float) -> dict[str, float]:
    """Tokens per second, and threads on average."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}
    environment |= {"BERTWORKS_THREADS": "auto"} if setting == "auto" else {}
    environment |= {"OMP_NUM_THREADS": setting} if setting.isdigit() else {}
    command = [sys.executable, "-c", STEPS, str(seconds)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--busy", type=int, nargs="*", default=[0, 1, 4 * cores], help="numbers of busy programs"
    )
    options = parser.parse_args()
    settings = [*map(str, range(1, cores + 1)), "start", "auto"]
    print(f"{platform.processor() or platform.machine()}, {cores} cores, torch {torch.__version__}")
    for busy in options.busy:
        programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        time.sleep(1)
        try:
            rows = [
                {name: measure(name, options.seconds) for name in settings}
                for _ in range(options.rounds)
            ]
        finally:
            for program in programs:
                program.kill()
                program.wait()
        for name in settings:
            best = [
                row[name]["speed"] / max(row[str(n)]["speed"] for n in range(1, cores + 1))
                for row in rows
            ]
            speeds, threads = ([row[name][key] for row in rows] for key in ("speed", "threads"))
            print(
                f"{busy} busy programs, {name:>5}: {statistics.median(speeds):9,.0f} tokens/s, "
                f"{statistics.median(threads):.2f} threads, {statistics.median(best):.2f} of the "
                "best fixed number "
                f"({min(best):.2f} to {max(best):.2f})"
            )


if __name__ == "__main__":
    main()
