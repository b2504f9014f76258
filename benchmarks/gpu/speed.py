"""Tokens per second of a pre-training step: BERT-Base first, then what its time goes to, then the
other sizes."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import Part, batch_of, ceiling, config, new_model, peak, step_seconds
from torch.profiler import ProfilerActivity, profile

from bertworks.models import attention as attention_module
from bertworks.training.device import fixed_order

# real tokens/s of BERT-Base at length 128, and the share of the speed of a product
TARGET, SHARE = 650_000, 0.45


def main() -> None:
    part = Part("speed")
    part.ready()
    name = torch.cuda.get_device_name(part.device) if part.is_gpu else "cpu"
    part.line("machine", device=name, torch=torch.__version__, cuda=str(torch.version.cuda))
    speeds = {d: part.attempt("ceiling", matmul, part, d) for d in ("bf16", "fp32")}
    most = speeds["bf16"] or 1e12
    if part.quick:
        cells: list[tuple[str, int, int, float]] = [("tiny", 64, 256, 0.1), ("tiny", 64, 256, 0.0)]
    else:
        cells = [("base", 128, tokens << 10, p) for p in (0.1, 0.0) for tokens in (128, 64, 32, 8)]
    best, seconds = 0.0, 0.3 if part.quick else 1.0
    for size, length, tokens, p in cells:
        reached = part.attempt(
            f"{size} s{length}", one, part, size, length, tokens, p, most, seconds
        )
        best = max(best, reached or 0.0)
    part.line("target", tokens_per_second=best, goal=TARGET, reached=best >= TARGET)
    size, length, tokens, _ = cells[0]
    part.attempt("kernels", kernels, part, size, length, tokens, 0.1)
    part.attempt("kernels", kernels, part, size, length, min(tokens, 8192), 0.1, "host.txt")
    part.attempt("free order", one, part, size, length, tokens, 0.1, most, 0.8, fixed=False)
    part.attempt("lengths 32-128", one, part, size, 0, tokens, 0.1, most, 1.0)
    rest = [
        ("large", 128, 32),
        ("large", 512, 32),
        ("base", 512, 64),
        ("small", 128, 64),
        ("small", 128, 8),
        ("tiny", 128, 128),
        ("tiny", 128, 8),
    ]
    for size, length, tokens in [] if part.quick else rest:
        for p in (0.1, 0.0):
            part.attempt(f"{size} s{length}", one, part, size, length, tokens * 1024, p, most, 0.6)
    if part.is_gpu:
        part.attempt("compiled blocks", compiled, part, "base", length, tokens, most, least=20)


def matmul(part: Part, dtype: str) -> float:
    """FLOP/s, a line for each type."""
    if dtype == "bf16":
        speed = ceiling(part.device)
    else:
        from bertworks.training.device import measure_matmul

        speed = measure_matmul(torch.float32, part.device, 0.3)
    part.line("ceiling", dtype=dtype, tflops=speed / 1e12)
    return speed


def one(
    part: Part,
    size: str,
    length: int,
    tokens: int,
    p: float,
    most: float,
    seconds: float,
    fixed: bool = True,
) -> float:
    """Real tokens per second; length 0: between 32 and 128, as many of each."""
    c = config(size, p)
    if length:
        lengths = [length] * max(1, tokens // length)
    else:
        lengths = sorted(np.random.default_rng(0).integers(32, 129, max(1, tokens // 80)).tolist())
    batch = batch_of(lengths, c).to(part.device)
    model = new_model(c, part.device)
    peak(part.device)
    took = step_seconds(model, lambda _: [batch], part.device, seconds, fixed=fixed)
    real = len(batch.input_ids)
    flops = c.flops_per_token(length or 80, 0.15) * real / took
    part.line(
        f"{size} s{length or '32-128'}",
        micro_batch=real,
        dropout=p,
        fixed_order=fixed,
        tokens_per_second=real / took,
        milliseconds=1000 * took,
        tflops=flops / 1e12,
        share=flops / most,
        memory_gb=peak(part.device),
    )
    return real / took


def kernels(
    part: Part, size: str, length: int, tokens: int, p: float, file: str = "kernels.txt"
) -> None:
    """What the time of a step goes to: a table of the operations, and how long the GPU waits for
    the host."""
    c = config(size, p)
    batch, model = (
        batch_of([length] * max(1, tokens // length), c).to(part.device),
        new_model(c, part.device),
    )
    run = stepper(model, batch, part.device)
    for _ in range(3):
        run()
    sync(part)
    begin = time.perf_counter()
    for _ in range(3):
        run()
    issued = (time.perf_counter() - begin) / 3
    sync(part)
    whole = (time.perf_counter() - begin) / 3
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * part.is_gpu
    with profile(activities=kinds) as watched:
        run()
        sync(part)
    events = watched.key_averages()
    column = (
        "self_device_time_total" if part.is_gpu and file == "kernels.txt" else "self_cpu_time_total"
    )
    (part.out / file).write_text(
        events.table(sort_by=column, row_limit=45, max_name_column_width=90)
    )
    on_device = [e for e in watched.events() if "CUDA" in str(e.device_type)]
    busy = sum(e.self_device_time_total for e in on_device) / 1e6 if part.is_gpu else 0.0
    part.line(
        "a step",
        tokens=tokens,
        host_ms=1000 * issued,
        whole_ms=1000 * whole,
        kernels=len(on_device),
        busy_ms=1000 * busy,
        longest=longest(on_device),
    )


def longest(events: Any, count: int = 14) -> str:
    """The kernels that take most of the time, with their milliseconds."""
    sums: dict[str, float] = {}
    for event in events:
        sums[event.name[:60]] = sums.get(event.name[:60], 0.0) + event.self_device_time_total / 1000
    rows = sorted(sums.items(), key=lambda row: -row[1])[:count]
    return "; ".join(f"{name} {ms:.2f}" for name, ms in rows)


def stepper(model: Any, batch: Any, device: torch.device) -> Callable[[], None]:
    """A function that makes one step of a training."""
    from bertworks.training.loop import make_optimizer, train
    from bertworks.training.recipe import OptimizerConfig

    optimizer = OptimizerConfig()
    steps = train(
        model,
        make_optimizer(model, optimizer),
        lambda _: [batch],
        optimizer,
        1 << 20,
        precision="bf16",
    )

    def run() -> None:
        with fixed_order(device):
            next(steps)

    return run


def sync(part: Part) -> None:
    if part.is_gpu:
        torch.cuda.synchronize(part.device)


def compiled(part: Part, size: str, length: int, tokens: int, most: float) -> None:
    """What fusing a residual sum, dropout and norm, and the activation, would bring: torch's
    compiler."""
    original = attention_module.Block.forward
    begin = time.perf_counter()
    try:
        torch._dynamo.config.suppress_errors = False
        attention_module.Block.forward = torch.compile(original, dynamic=False)  # type: ignore[method-assign]
        one(part, size, length, tokens, 0.1, most, 1.0, fixed=False)
    finally:
        attention_module.Block.forward = original  # type: ignore[method-assign]
    part.line("compiled blocks", seconds=time.perf_counter() - begin)


main()
