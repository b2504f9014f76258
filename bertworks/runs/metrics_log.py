"""The figures of a run: as numbers, as text, and line by line in metrics.jsonl."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError
from bertworks.io.atomic_write import write_text
from bertworks.training.losses import LossStats
from bertworks.training.objectives import OBJECTIVES


class Metrics:
    """metrics.jsonl: a line for each logged step, and one with `evaluation` for each evaluation."""

    def __init__(self, path: Path):
        self.path = path

    def record(self, line: Mapping[str, Any]) -> None:
        """Appends a line.

        Raises:
            BertworksError: a full disk, or the file cannot be written.
        """
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise BertworksError(
                f"cannot be written: {error.strerror}; the checkpoints are untouched",
                where=str(self.path),
                hint="make room, or the file writable, and type the same again",
            ) from error

    def sync(self) -> None:
        """Flushes the file to disk."""
        with self.path.open("a") as file:
            os.fsync(file.fileno())

    def forget(self, after: int, evaluated: int) -> None:
        """Drops steps after `after` and evaluations after `evaluated`, which a resumed run repeats, and an incomplete
        last line."""
        if not self.path.exists():
            return
        kept = [
            line + "\n"
            for line, step, is_evaluation in self._lines()
            if step <= (evaluated if is_evaluation else after)
        ]
        write_text(self.path, "".join(kept))

    def last_step(self) -> int:
        """The last recorded step, or 0."""
        return max((step for _, step, _ in self._lines()), default=0) if self.path.exists() else 0

    def _lines(self) -> Iterator[tuple[str, int, bool]]:
        """Each line, its step, and whether it is an evaluation, up to the first broken line."""
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                content = json.loads(line)
                yield line, int(content["step"]), "evaluation" in content
            except (ValueError, KeyError, TypeError):
                return


class Stopwatch:
    """Seconds and tokens of training since the last lap, without pauses."""

    def __init__(self) -> None:
        self.tokens, self._mark = 0, time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._mark += time.perf_counter() - begin

    def lap(self) -> tuple[float, int]:
        """Seconds and tokens since the last lap; both restart at 0."""
        now = time.perf_counter()
        result = now - self._mark, self.tokens
        self.tokens, self._mark = 0, now
        return result


def finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures with None for numbers that are not finite: JSON has none."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in figures.items()}


def training_figures(means: Mapping[str, LossStats]) -> dict[str, float]:
    """Losses and accuracies by name."""
    return {
        f"{name}_{kind}": value
        for name, mean in means.items()
        for kind, value in (("loss", mean.loss), ("accuracy", mean.accuracy))
    }


def total_loss(means: Mapping[str, LossStats], weights: Mapping[str, float]) -> float:
    """The weighted sum of the losses, which a training minimizes."""
    return sum(weights[name] * stats.loss for name, stats in means.items())


def lengths(figures: Mapping[str, float]) -> list[int]:
    """The longer sequences that were evaluated, too."""
    return sorted(int(name.rpartition("_")[2]) for name in figures if "_loss_at_" in name)


def describe(figures: Mapping[str, float]) -> str:
    """The figures of a pre-training's evaluation as a sentence."""
    parts = []
    for kind, objective in OBJECTIVES.items():
        for suffix in ("", *(f"_at_{length}" for length in lengths(figures))):
            named = [
                (m, f"{kind}_{m.name}{suffix}") for m in objective.measures if f"{kind}_{m.name}{suffix}" in figures
            ]
            if named:
                title = f"{objective.title}{suffix.replace('_', ' ')}{' tokens' if suffix else ''}"
                parts.append(f"{title}: " + ", ".join(f"{m.name} {m.show(figures[name])}" for m, name in named))
    return "; ".join(parts) or "nothing was evaluated"
