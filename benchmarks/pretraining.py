"""How fast BERT learns: our training step and that of transformers, on the CPU.

    python benchmarks/pretraining.py [--sizes small mixed base] [--rounds 3] [--threads N] [--quick]

A step is forward, backward, clipping at 1.0 and fused AdamW, for masked words (15 %) and next
sentences, dropout 0.1, on the same random tokens. Every variant runs in a process of its own; they
take turns; medians of the rounds are shown, and of the steps of a process after the first ones.
Only real tokens are counted, no padding.

    bertworks                     as `bertworks pretrain` trains: automatic precision
    transformers, fp32            BertForPreTraining as people run it: labels for all places (-100
                                  where nothing is predicted), scaled_dot_product_attention
    transformers, bf16            the same under autocast. Where the machine only emulates bf16:
    once, and one step of
                                  two sequences after another for warming up
    transformers, allocator       in the faster precision, with glibc set to keep memory, as
                                  bertworks does
    transformers, tuned           and with torch.compile: the best that a patient user gets without
                                  changing the model

"of matmul" is the share of the speed of large matrix products, measured in the same process right
before the steps: products that the training needs (masked places only) over products that the
machine could have done.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import process, provenance, publish

VARIANTS = (
    "bertworks",
    *(f"transformers, {how}" for how in ("fp32", "bf16", "allocator", "tuned")),
)
BATCHES = 4  # different ones, in turn


@dataclass(frozen=True)
class Case:
    """What is trained."""

    title: str
    size: str
    sequences: int
    shortest: int
    longest: int = 128


CASES = {
    "small": Case("BERT-small, 64 x 128", "small", 64, 128),
    "mixed": Case("BERT-small, 64 sequences of 32 to 128", "small", 64, 32),
    "base": Case("BERT-Base, 8 x 128", "base", 8, 128),
}


def main() -> None:
    arguments = parse()
    if arguments.variant:
        print(json.dumps(run_variant(arguments)))
        return
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch  # compiled once, in the first round
        results = compare(arguments)
    shown = table(results)
    if not arguments.quick:
        publish("pretraining", results, shown)
    print(shown)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="of steps in a process, at least; and 3 steps"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one round, an eighth of the sequences"
    )
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16"), default="auto", help=argparse.SUPPRESS
    )
    return parser.parse_args()


# --- the parent: variants take turns


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    origin = provenance(("torch", "transformers", "numpy"))
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {
        size: {name: [] for name in VARIANTS} for size in arguments.sizes
    }
    precision = "auto"  # until bertworks has chosen
    for number in range(1 if arguments.quick else arguments.rounds):
        for size in arguments.sizes:
            for name in VARIANTS:
                if name == "transformers, bf16" and precision == "fp32" and number:
                    continue
                command = [
                    "--variant",
                    name,
                    "--sizes",
                    size,
                    "--precision",
                    precision,
                    "--seconds",
                    str(arguments.seconds),
                ]
                found = process(
                    __file__, command + ["--quick"] * arguments.quick, arguments.threads
                )
                precision = found["precision"] if name == "bertworks" else precision
                runs[size][name].append(found)
                print(
                    f"{size:6} {name:24} {found['tokens_per_second']:9,.0f} tokens/s",
                    file=sys.stderr,
                    flush=True,
                )
    return {
        **origin,
        "threads": arguments.threads,
        "quick": arguments.quick,
        "cases": {s: summary(r) for s, r in runs.items()},
    }


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of the rounds of each variant, and how many times as fast bertworks is."""
    figures = ("tokens_per_second", "seconds_per_step", "matmul_flops", "matmul_share", "memory_mb")
    medians: dict[str, Any] = {}
    for name, found in runs.items():
        medians[name] = {
            figure: statistics.median(run[figure] for run in found) for figure in figures
        }
        medians[name]["precision"] = found[0]["precision"]
    ours = medians["bertworks"]["tokens_per_second"]
    for median in medians.values():
        median["bertworks_is_faster"] = ours / median["tokens_per_second"]
    return {"medians": medians, "runs": runs}


def table(results: dict[str, Any]) -> str:
    origin = f"{results['cpu']}, {results['threads']} threads, {' '.join(results['cpu_flags'])}; "
    origin += ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    lines = [
        f"`{results['command']}` at {results['commit']}, {results['time'][:10]}; {origin}.",
        "",
        "| | tokens/s | s/step | of matmul | memory MB | bertworks is faster |",
        "|---|---|---|---|---|---|",
    ]
    for size, case in results["cases"].items():
        lines.append(f"| **{CASES[size].title}** | | | | | |")
        for name, m in case["medians"].items():
            title = name if name.endswith(m["precision"]) else f"{name}, {m['precision']}"
            speed = "" if name == "bertworks" else f"{m['bertworks_is_faster']:.2f} x"
            lines.append(
                f"| {title} | {m['tokens_per_second']:,.0f} | {m['seconds_per_step']:.2f} | "
                f"{m['matmul_share']:.0%} "
                f"| {m['memory_mb']:,.0f} | {speed} |"
            )
    return "\n".join(lines)


# --- a variant, alone in its process


def run_variant(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    from bertworks.models.config import BERT_SIZES
    from bertworks.training.device import DTYPES, best_precision, disable_heap_trim, measure_matmul

    (size,) = arguments.sizes
    case, name = CASES[size], arguments.variant
    best = best_precision() if arguments.precision == "auto" else arguments.precision
    precision = name.split(", ")[1] if name.endswith(("16", "32")) else best
    lacking = precision == "bf16" and best == "fp32"
    sequences = 2 if lacking else case.sequences // 8 if arguments.quick else case.sequences
    rows = [
        make_examples(BERT_SIZES[case.size].vocab_size, case, sequences, seed)
        for seed in range(BATCHES)
    ]
    ceiling = measure_matmul(DTYPES[precision], seconds=1.0)
    if name in ("bertworks", "transformers, allocator", "transformers, tuned"):
        disable_heap_trim()
    torch.manual_seed(0)
    prepare = prepare_bertworks if name == "bertworks" else prepare_transformers
    step = prepare(BERT_SIZES[case.size], rows, precision, name.endswith("tuned"))
    times, losses = time_steps(step, arguments, few=lacking)
    lengths = [len(example.input_ids) for row in rows for example in row]
    predicted = sum(len(example.targets["masked_lm"].labels) for row in rows for example in row)
    mean_length = sum(n * n for n in lengths) / sum(lengths)  # that attention sees
    # Ours finishes the last layer for predicted tokens and [CLS] only: what is not computed does
    # not count.
    finished = (predicted + len(lengths)) / sum(lengths) if name == "bertworks" else 1.0
    flops = BERT_SIZES[case.size].flops_per_token(
        round(mean_length), predicted / sum(lengths), finished=finished
    )
    seconds = statistics.median(times)
    speed = sum(lengths) / BATCHES / seconds
    return {
        "precision": precision,
        "tokens_per_second": speed,
        "seconds_per_step": seconds,
        "steps": len(times),
        "sequences": sequences,
        "first_losses": losses,
        "matmul_flops": ceiling,
        "matmul_share": speed * flops / ceiling,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }


def time_steps(
    step: Callable[[int], float], arguments: argparse.Namespace, few: bool
) -> tuple[list[float], list[float]]:
    """Seconds of steps after the first ones, which prepare kernels and fill memory; and the losses
    of the first two."""
    warm_up, least, seconds = (1, 1, 0.0) if few else (2, 3, arguments.seconds)
    seconds = 0.0 if arguments.quick else seconds
    times: list[float] = []
    losses: list[float] = []
    while len(times) < warm_up + least or sum(times[warm_up:]) < seconds:
        begin = time.perf_counter()
        losses.append(step(len(times)))
        times.append(time.perf_counter() - begin)
    return times[warm_up:], losses[:2]


def make_examples(vocab_size: int, case: Case, sequences: int, seed: int) -> list[Any]:
    """Random tokens, of which 15 % are predicted; the first sequence is as long as any."""
    import numpy as np

    from bertworks.batching.examples import Example, Target

    generator = np.random.default_rng(seed)
    lengths = generator.integers(case.shortest, case.longest + 1, sequences)
    lengths[0] = case.longest
    return [
        Example(
            generator.integers(vocab_size, size=length),
            np.arange(length) // (length // 2 + 1),
            {
                "masked_lm": Target(
                    np.sort(generator.permutation(length)[: round(0.15 * length)]),
                    generator.integers(vocab_size, size=round(0.15 * length)),
                ),
                "next_sentence": Target(np.zeros(1, np.int64), generator.integers(2, size=1)),
            },
        )
        for length in lengths.tolist()
    ]


def prepare_bertworks(
    config: Any, rows: list[list[Any]], precision: Any, _: bool
) -> Callable[[int], float]:
    from bertworks.batching.batch import collate
    from bertworks.training.loop import make_optimizer, train
    from bertworks.training.objectives import PretrainingModel
    from bertworks.training.recipe import OptimizerConfig

    model = PretrainingModel(config)
    settings = OptimizerConfig(schedule="constant", warmup=0.0)
    batches = [collate(row) for row in rows]
    steps = train(
        model,
        make_optimizer(model, settings),
        lambda n: [batches[n % BATCHES]],
        settings,
        1 << 30,
        precision=precision,
    )
    return lambda _: sum(mean.loss for mean in next(steps).read().values())


def prepare_transformers(
    config: Any, rows: list[list[Any]], precision: str, compiled: bool
) -> Callable[[int], float]:
    import torch
    from transformers import BertConfig, BertForPreTraining

    from bertworks.checkpoints.hf_config import config_to_huggingface

    settings = config_to_huggingface(config, architectures=["BertForPreTraining"])
    model = BertForPreTraining(BertConfig(**settings, attn_implementation="sdpa")).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)
    forward = torch.compile(model) if compiled else model
    batches = [padded(row) for row in rows]

    def step(number: int) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = forward(**batches[number % BATCHES]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def padded(row: list[Any]) -> dict[str, Any]:
    """Examples as transformers reads them: rectangles, padded to the longest; -100 where nothing is
    predicted."""
    import torch

    shape = len(row), max(len(example.input_ids) for example in row)
    batch = {
        name: torch.zeros(shape, dtype=torch.int64)
        for name in ("input_ids", "token_type_ids", "attention_mask")
    }
    labels = torch.full(shape, -100)
    for i, example in enumerate(row):
        n = len(example.input_ids)
        batch["input_ids"][i, :n] = torch.from_numpy(example.input_ids)
        batch["token_type_ids"][i, :n] = torch.from_numpy(example.token_type_ids)
        batch["attention_mask"][i, :n] = 1
        masked_lm = example.targets["masked_lm"]
        labels[i, torch.from_numpy(masked_lm.positions)] = torch.from_numpy(masked_lm.labels)
    pairs = torch.tensor([int(example.targets["next_sentence"].labels[0]) for example in row])
    return batch | {"labels": labels, "next_sentence_label": pairs}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
