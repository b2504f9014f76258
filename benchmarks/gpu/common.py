"""What the parts of `benchmarks/gpu/run.py` share: a report that is written line by line, batches,
models, clocks.

A part is a script of its own, so that a crash of the GPU ends only one of them. It imports what it
needs, prepares on the CPU, calls `Part.ready`, and waits until its turn has come: all parts prepare
at the same time.
"""

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.batching.batch import Batch, collate
from bertworks.batching.examples import Example, Target
from bertworks.models.config import BERT_SIZES, EncoderConfig
from bertworks.training.device import (
    Precision,
    choose_device,
    fixed_order,
    measure_matmul,
    time_when_done,
)
from bertworks.training.loop import make_optimizer, train
from bertworks.training.objectives import PretrainingModel
from bertworks.training.recipe import OptimizerConfig

MASKED = 0.15
MANY_STEPS = 1 << 20


class Part:
    """A part of the run: its options, its lines of the report, and its time."""

    def __init__(self, name: str):
        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="auto")
        parser.add_argument(
            "--quick", action="store_true", help="tiny sizes, to try the scripts on a CPU"
        )
        parser.add_argument("--out", type=Path, default=Path("gpu-report"))
        parser.add_argument("--seconds", type=float, default=600.0)
        parser.add_argument(
            "--wait", action="store_true", help="until a line comes on standard input"
        )
        options = parser.parse_args()
        self.name, self.quick, self.out, self.seconds, self._waits = (
            name,
            options.quick,
            options.out,
            options.seconds,
            options.wait,
        )
        self.out.mkdir(parents=True, exist_ok=True)
        self.device = choose_device(options.device)
        self.is_gpu = self.device.type == "cuda"
        self.began = time.perf_counter()

    def ready(self) -> None:
        """Everything is prepared: wait for the turn of this part."""
        if self.is_gpu:
            torch.randn(256, 256, device=self.device).square().sum().item()  # creates the context
        if self._waits:
            print(f"{self.name} is ready", flush=True)
            sys.stdin.readline()
        self.began = time.perf_counter()

    def left(self) -> float:
        """Seconds."""
        return float(self.seconds) - (time.perf_counter() - self.began)

    def line(self, what: str, **figures: Any) -> None:
        """A line of both reports, on disk when this returns."""
        shown = {
            name: f"{x:.4g}" if isinstance(x, float) else str(x) for name, x in figures.items()
        }
        text = f"- **{self.name}** {what}: " + ", ".join(f"{name} {x}" for name, x in shown.items())
        row = {
            "part": self.name,
            "what": what,
            "at": round(time.perf_counter() - self.began, 2),
            **figures,
        }
        for file, words in (("report.jsonl", json.dumps(row, default=str)), ("report.md", text)):
            with (self.out / file).open("a", encoding="utf-8") as stream:
                stream.write(words + "\n")
                stream.flush()
                os.fsync(stream.fileno())
        print(text, flush=True)

    @contextmanager
    def trying(self, what: str, least: float = 2.0) -> Iterator[None]:
        """A measurement. What goes wrong in it is a line of the report, and the next one follows;
        it is left out if fewer seconds are left."""
        if self.left() < least:
            self.line(what, left_out="no time left")
            raise _LeftOutError
        begin = time.perf_counter()
        try:
            yield
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            self.line(
                what,
                error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
                where=where,
            )
            traceback.print_exc()
        finally:
            took = time.perf_counter() - begin
            if took > 5:
                print(f"  ({what} took {took:.1f} s)", flush=True)
            if self.is_gpu:
                torch.cuda.empty_cache()

    def attempt(
        self,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        least: float = 2.0,
        **named: Any,
    ) -> Any:
        """The result of a measurement; None if it failed or was left out."""
        result = None
        try:
            with self.trying(what, least):
                result = function(*arguments, **named)
        except _LeftOutError:
            pass
        return result


class _LeftOutError(Exception):
    pass


def config(size: str, dropout: float, vocab_size: int = 30522) -> EncoderConfig:
    return replace(
        BERT_SIZES[size], vocab_size=vocab_size, hidden_dropout=dropout, attention_dropout=dropout
    )


def batch_of(lengths: Sequence[int], c: EncoderConfig, seed: int = 0) -> Batch:
    """Random tokens in pairs of segments, 15 % of them predicted, with a label of the pair."""
    draw, examples = np.random.default_rng(seed), []
    for n in lengths:
        positions = np.sort(draw.choice(n, max(1, int(MASKED * n)), replace=False))
        targets = {
            "masked_lm": Target(positions, draw.integers(1, c.vocab_size, len(positions))),
            "next_sentence": Target(np.zeros(1, np.int64), draw.integers(2, size=1)),
        }
        types = (np.arange(n) > n // 2).astype(np.int64)
        examples.append(Example(draw.integers(1, c.vocab_size, n), types, targets))
    return collate(examples)


def perturbed(model: Any, seed: int = 0) -> Any:
    """Away from zero biases and unit norms, which hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.02 * torch.randn(parameter.shape, generator=generator).to(parameter.device)
            )
    return model


def new_model(c: EncoderConfig, device: torch.device, **options: Any) -> PretrainingModel:
    """Made on the device: a large one takes seconds on a CPU."""
    torch.manual_seed(0)
    with torch.device(device):
        return PretrainingModel(c, **options)


def step_seconds(
    model: PretrainingModel,
    batches: Callable[[int], Sequence[Batch]],
    device: torch.device,
    seconds: float,
    precision: Precision = "bf16",
    fixed: bool = True,
    warmup: int = 3,
) -> float:
    """The mean time of a step of a training after the first ones."""
    os.environ["BERTWORKS_DETERMINISTIC"] = "1" if fixed else "0"
    optimizer = OptimizerConfig()
    with fixed_order(device):
        steps = train(
            model,
            make_optimizer(model, optimizer),
            batches,
            optimizer,
            MANY_STEPS,
            precision=precision,
        )
        for _ in range(warmup):
            next(steps)
        begin, count = time_when_done(device), 0
        while True:
            # work queues up between two looks at the clock
            for _ in range(3 if device.type == "cuda" else 1):
                next(steps)
                count += 1
            now = time_when_done(device)
            if now - begin > seconds:
                return (now - begin) / count


def peak(device: torch.device) -> float:
    """GB of the GPU since the last look."""
    if device.type != "cuda":
        return 0.0
    value = torch.cuda.max_memory_allocated(device) / 1e9
    torch.cuda.reset_peak_memory_stats(device)
    return value


def ceiling(device: torch.device, seconds: float = 0.6) -> float:
    """FLOP/s of a large product in bf16."""
    return measure_matmul(torch.bfloat16, device, seconds)


warnings.filterwarnings("ignore", category=FutureWarning)
