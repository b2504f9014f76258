"""How fast a translator learns: our training step and that of transformers, on the CPU.

    python benchmarks/translation_training.py [--shapes tiny base] [--rounds 3] [--threads N]
    [--quick]

A step is forward, backward, clipping at 1.0 and fused AdamW on random pairs whose sides have 8 to
40 tokens, sorted by length and divided into batches of about 4,000 tokens with padding. Networks
have the sizes of those of `translation.py`, with ReLU, dropout 0.1 and no label smoothing. Both
libraries train in fp32 and, where the processor computes in bf16, in bf16. All have the same pairs
in the same batches; each runs in a process of its own, in turns. Target tokens are counted, without
padding. The table goes to docs/concepts/performance.md.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from provenance import process, provenance, publish
from translation import END, LENGTHS, SHAPES, marian_config

PAIRS = 400
TOKENS = 4000  # of a batch, of both sides with padding
Pair = tuple[list[int], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of steps in a process")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true", help="does it run? nothing is kept")
    parser.add_argument("--contender", help="of one process")
    a = parser.parse_args()
    if a.contender:
        torch.set_num_threads(a.threads)
        print(json.dumps(measured(a.contender, a.shapes[0], a.seconds)))
        return
    from bertworks.models.layers import cpu_supports_bf16

    about = provenance(("torch", "transformers"))
    precisions = ("fp32", "bf16") if cpu_supports_bf16() else ("fp32",)
    contenders = [
        f"{name}, {precision}" for name in ("transformers", "bertworks") for precision in precisions
    ]
    rows: list[dict[str, Any]] = []
    for _ in range(1 if a.quick else a.rounds):
        for shape in a.shapes:
            for contender in contenders:
                words = ["--contender", contender, "--shapes", shape]
                words += ["--seconds", "0" if a.quick else str(a.seconds)]
                words += ["--threads", str(a.threads)]
                result = process(__file__, words, a.threads)
                rows.append({"shape": shape, "contender": contender, **result})
    lines = table(rows, contenders, a.shapes)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}, "
        f"{a.threads} threads, {' '.join(about['cpu_flags'])}; load {about['load_average'][0]}; "
        f"{versions}.",
    ]
    if not a.quick:
        publish("translation-training", {**about, "rows": rows}, "\n".join(lines))
    print("\n".join(lines))


def table(rows: list[dict[str, Any]], contenders: list[str], shapes: list[str]) -> list[str]:
    """Return Markdown: target tokens per second, medians, and ratios to transformers in fp32."""
    lines = [f"| network | {' | '.join(contenders)} |", "|---" * (len(contenders) + 1) + "|"]
    for shape in shapes:
        speeds = [
            statistics.median(
                row["tokens_per_second"]
                for row in rows
                if (row["shape"], row["contender"]) == (shape, contender)
            )
            for contender in contenders
        ]
        cells = [f"{speed:,.0f} ({speed / speeds[0]:.2f} x)" for speed in speeds]
        lines.append(f"| {shape} | {' | '.join(cells)} |")
    return lines


def measured(contender: str, shape: str, seconds: float) -> dict[str, Any]:
    """Return the target tokens per second of the steps after those of the first pass."""
    name, precision = contender.split(", ")
    batches = make_batches(SHAPES[shape]["vocab_size"])
    torch.manual_seed(0)
    if name == "bertworks":
        step = with_bertworks(shape, batches, precision)
    else:
        step = with_transformers(shape, batches, precision)
    losses = [step(number) for number in range(len(batches))]
    num_passes = 0
    start = time.perf_counter()
    while num_passes == 0 or time.perf_counter() - start < seconds:
        for number in range(len(batches)):
            step(number)
        num_passes += 1
    elapsed = time.perf_counter() - start
    tokens = num_passes * sum(len(target) for batch in batches for _, target in batch)
    return {"tokens_per_second": tokens / elapsed, "first_loss": losses[0]}


def make_batches(vocab_size: int) -> list[list[Pair]]:
    """Return random pairs, sorted by length, in batches of equally many tokens with padding."""
    draw = np.random.default_rng(0)
    shortest, longest = LENGTHS
    pairs: list[Pair] = []
    for _ in range(PAIRS):
        length = int(draw.integers(shortest, longest + 1))
        other = int(np.clip(round(length * draw.normal(1, 0.1)), shortest, longest))
        sides = [draw.integers(1, vocab_size - 2, n - 1).tolist() for n in (length, other)]
        pairs.append(([*sides[0], END], [*sides[1], END]))
    pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])))
    batches: list[list[Pair]] = [[]]
    for pair in pairs:
        rows = [*batches[-1], pair]
        padded = sum(len(rows) * max(len(row[side]) for row in rows) for side in (0, 1))
        if padded > TOKENS:
            batches.append([])
        batches[-1].append(pair)
    return batches


def config_of(shape: str) -> Any:
    """Return the settings of the network that is trained."""
    return marian_config(
        shape,
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.0,
    )


def with_transformers(
    shape: str, batches: list[list[Pair]], precision: str
) -> Callable[[int], float]:
    import transformers

    config = config_of(shape)
    model = transformers.MarianMTModel(config).train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    pad = config.pad_token_id
    inputs = []
    for batch in batches:
        sources, targets = (
            torch.nn.utils.rnn.pad_sequence(
                [torch.tensor(pair[side]) for pair in batch], batch_first=True, padding_value=pad
            )
            for side in (0, 1)
        )
        labels = targets.masked_fill(targets == pad, -100)
        mask = (sources != pad).long()
        inputs.append({"input_ids": sources, "attention_mask": mask, "labels": labels})

    def step(number: int) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = model(**inputs[number]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def with_bertworks(shape: str, batches: list[list[Pair]], precision: Any) -> Callable[[int], float]:
    from bertworks.batching.batch import collate
    from bertworks.batching.examples import TokenSequence
    from bertworks.batching.sampling import NextTokens
    from bertworks.checkpoints.hf_config import config_from_huggingface
    from bertworks.training.device import disable_heap_trim
    from bertworks.training.loop import make_optimizer, train
    from bertworks.training.objectives import PretrainingModel
    from bertworks.training.recipe import OptimizerConfig

    disable_heap_trim()
    settings = config_of(shape)
    config = config_from_huggingface(
        {**settings.to_dict(), "architectures": ["MarianMTModel"], "model_type": "marian"}
    )
    model = PretrainingModel(config, {"translation": 1.0})
    generator = np.random.default_rng(0)
    start = settings.decoder_start_token_id
    collated = []
    for batch in batches:
        examples = []
        for source, target in batch:
            ids = np.array([*source, start, *target])
            types = np.repeat([0, 1], [len(source), len(target) + 1])
            row = TokenSequence(ids, types, np.zeros(len(ids), np.bool_), {})
            examples.append(NextTokens("translation")(row, generator))
        collated.append(collate(examples))
    optimizer = OptimizerConfig(schedule="constant", warmup=0.0)
    steps = train(
        model,
        make_optimizer(model, optimizer),
        lambda number: [collated[number % len(collated)]],
        optimizer,
        1 << 30,
        precision=precision,
    )
    return lambda _: sum(mean.loss for mean in next(steps).read().values())


if __name__ == "__main__":
    main()
