"""What inference.py measures of bertworks alone: where the time goes, how it grows, how soon a
command answers.

python benchmarks/stages.py profile|growth|lengths|start ...    what was measured is the last line,
as JSON
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from contenders import memory_mb

ROOT = Path(__file__).resolve().parents[1]
LENGTHS = (16, 32, 64, 128, 256, 512)


class Clock:
    """Seconds of each stage, without those of the stages within it."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self.stack, self.last = ["other"], time.perf_counter()

    def enter(self, stage: str) -> None:
        self.switch()
        self.stack.append(stage)

    def leave(self) -> None:
        self.switch()
        self.stack.pop()

    def switch(self) -> None:
        now = time.perf_counter()
        self.spent[self.stack[-1]] += now - self.last
        self.last = now

    def around(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            self.enter(stage)
            try:
                return function(*arguments, **named)
            finally:
                self.leave()

        return timed

    def watch(self, module: Any, stage: str) -> None:
        module.register_forward_pre_hook(lambda *_: self.enter(stage))
        module.register_forward_hook(lambda *_: self.leave())


def profile(model: str, texts: list[str], ceiling: float) -> dict[str, Any]:
    """Seconds of each stage of one pass over texts; and what its matrix products would take at the
    ceiling."""
    from bertworks.inference import engine
    from bertworks.inference.embedder import Embedder
    from bertworks.models import attention

    embedder, clock = Embedder(model, device="cpu"), Clock()
    embedder.embed(texts[:: max(1, len(texts) // 64)])
    network: Any = embedder._network
    while network._fallback is not None:  # the copy for short texts
        network = network._fallback
    embedder._network, encoder = network, network._packed
    tokens: list[int] = []
    inside = vars(engine)
    collate, packed = inside["collate"], inside["token_budget_indices"]

    def batch(examples: Any) -> Any:
        tokens.extend(len(example.input_ids) for example in examples)
        return collate(examples)

    patches: dict[str, Callable[..., Any]] = {
        "collate": clock.around(batch, "batch"),
        "token_budget_indices": clock.around(lambda *given: list(packed(*given)), "batch"),
        "pool": clock.around(inside["pool"], "pool"),
    }
    inside |= patches
    encode_each = embedder.tokenizer.encode_each
    vars(embedder.tokenizer)["encode_each"] = clock.around(
        lambda *given, **named: list(encode_each(*given, **named)), "tokenise"
    )
    clock.watch(encoder.embeddings, "embed")
    between = "attention: between the matrices"
    name = "attention"
    vars(attention)[name] = clock.around(vars(attention)[name], between)
    for block in network._packed.blocks:
        clock.watch(block, "norms and residuals")
        for part, stage in (
            (block.attention, "attention: matrices"),
            (block.feed_forward, "feed-forward: matrices and activation"),
        ):
            for name in ("qkv", "output", "up", "down"):
                if name in vars(part):
                    vars(part)[name] = clock.around(vars(part)[name], stage)
    clock.last = time.perf_counter()
    embedder.embed(texts)
    clock.switch()
    c = encoder.config
    total, squares, hidden = sum(tokens), sum(n * n for n in tokens), c.hidden_size
    flops = {
        "attention: matrices": c.num_hidden_layers * total * 8 * hidden * hidden,
        between: c.num_hidden_layers * squares * 4 * hidden,
        "feed-forward: matrices and activation": c.num_hidden_layers
        * total
        * 4
        * hidden
        * c.ffn_size,
    }
    floors = {stage: count / ceiling for stage, count in flops.items()}
    return {
        "seconds": dict(clock.spent),
        "floors": floors,
        "tokens": total,
        "precision": embedder.precision,
    }


def growth(model: str, source: str) -> dict[str, Any]:
    """What `bertworks embed` does with a file, from the loaded model to the written vectors."""
    from bertworks.inference.embed_file import embed_file

    with tempfile.TemporaryDirectory() as folder:
        events = embed_file(model, source, Path(folder, "vectors.npy"), text=["text"], device="cpu")
        next(events)  # the model is loaded
        begin = time.perf_counter()
        for _ in events:
            pass
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "memory_mb": memory_mb()}


def lengths(model: str, texts: list[str], tokens: int) -> dict[str, Any]:
    """Tokens per second of texts that are all of one length; and matrix products per token."""
    from bertworks.inference.embedder import Embedder

    found = {}
    for length in LENGTHS:
        embedder = Embedder(model, device="cpu", max_length=length)
        count = max(1, tokens // length)
        # As many words as there should be tokens are cut to that length, for no word is less than a
        # token.
        words = " ".join(texts).split()
        long = [" ".join(words[n * length : (n + 1) * length]) for n in range(count)]
        embedder.embed(long[: 1 + count // 4])
        begin = time.perf_counter()
        embedder.embed(long)
        speed = count * length / (time.perf_counter() - begin)
        flops = embedder._network.config.flops_per_token(length, 0) / 3  # without the backward pass
        found[str(length)] = {"tokens_per_second": speed, "flops_per_second": speed * flops}
    return found


def start(model: str, filled: str, times: int) -> dict[str, float]:
    """Seconds of commands, as typed; medians."""
    command = [sys.executable, "-c", "from bertworks.cli.main import run; run()"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "text.txt")
        source.write_text("Which of these texts is about the weather?\n")
        words = {
            "bertworks --help": ["--help"],
            "bertworks fill MODEL TEXT": ["fill", filled, "The capital of France is [MASK]."],
            "bertworks embed MODEL FILE": [
                "embed",
                model,
                str(source),
                "-o",
                f"{folder}/NUMBER.npy",
            ],
        }
        found: dict[str, list[float]] = {name: [] for name in words}
        for number in range(times):
            for name, arguments in words.items():
                typed = [*command, *(word.replace("NUMBER", str(number)) for word in arguments)]
                begin = time.perf_counter()
                subprocess.run(typed, cwd=ROOT, check=True, capture_output=True)
                found[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def ceiling() -> dict[str, float]:
    """FLOP/s of large matrix products, in the precisions that this machine has instructions for."""

    from bertworks.models.layers import cpu_supports_bf16
    from bertworks.training.device import DTYPES, measure_matmul

    known = {name: dtype for name, dtype in DTYPES.items() if name == "fp32" or cpu_supports_bf16()}
    return {name: measure_matmul(dtype, seconds=1.0) for name, dtype in known.items()}


if __name__ == "__main__" and len(sys.argv) > 1:
    sys.path.insert(0, str(ROOT))
    job = json.loads(sys.argv[2])
    if isinstance(job.get("texts"), str):
        job["texts"] = json.loads(Path(job["texts"]).read_text())
    works: dict[str, Callable[..., Any]] = {
        "profile": profile,
        "growth": growth,
        "lengths": lengths,
        "start": start,
        "ceiling": ceiling,
    }
    print(json.dumps(works[sys.argv[1]](**job)))
