"""Tokens per second of text generation: a random network of GPT-2's shape (124M parameters),
greedy, with a cache.

    python benchmarks/generation.py [--batches 1 16] [--tokens 64] [--threads 2] [--rounds 3]
    [--quick]

bertworks and transformers' `generate` continue the same prompts of 32 to 96 tokens, in fp32 and in
bf16, bertworks also in int8. Every figure is that of a process of its own, which continues once
before the clock starts; all take turns. The time of bertworks has tokenization and decoding in it,
that of transformers has not. The table goes to docs/concepts/performance.md.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from provenance import process, provenance, publish

from bertworks.models.transformer import cpu_supports_int8
from bertworks.training.device import PrecisionOption

LENGTHS = 32, 96  # tokens of the shortest and of the longest prompt
WARM = 4  # tokens before the clock starts
PRECISIONS = {"bertworks": ("fp32", "bf16", "int8"), "transformers": ("fp32", "bf16")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="does it run? a small network, nothing is kept"
    )
    parser.add_argument(
        "--contender", nargs=4, help="of one process: program, precision, batch, folder"
    )
    a = parser.parse_args()
    if a.contender:
        torch.set_num_threads(a.threads)
        program, precision, batch, folder = a.contender
        print(json.dumps(measured(program, precision, int(batch), Path(folder), a.tokens)))
        return
    about = provenance(("torch", "transformers"))
    cells = [
        (batch, program, precision)
        for batch in a.batches
        for program in PRECISIONS
        for precision in PRECISIONS[program]
        if precision != "int8" or cpu_supports_int8()
    ]
    speeds: dict[tuple[int, str, str], list[float]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), small=a.quick)
        for _ in range(1 if a.quick else a.rounds):
            for batch, program, precision in cells:
                words = [
                    "--contender",
                    program,
                    precision,
                    str(batch),
                    folder,
                    "--tokens",
                    str(a.tokens),
                ]
                result = process(__file__, [*words, "--threads", str(a.threads)], a.threads)
                speeds[batch, program, precision].append(result["tokens_per_second"])
    medians = {cell: statistics.median(found) for cell, found in speeds.items()}
    lines = table(medians, a.batches, a.threads)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    load = f"load {about['load_average'][0]}"
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}; "
        f"{load}; {versions}.",
    ]
    rows = [
        {"batch": b, "program": p, "precision": q, "tokens_per_second": s}
        for (b, p, q), s in speeds.items()
    ]
    if not a.quick:
        publish("generation", {**about, "rows": rows}, "\n".join(lines))
    print("\n".join(lines))


def table(
    medians: dict[tuple[int, str, str], float], batches: list[int], threads: int
) -> list[str]:
    """Markdown, with the ratio of each figure to the better one of transformers."""
    lines = [f"| tokens/s, {threads} threads | fp32 | bf16 | int8 |", "|---|---|---|---|"]
    for batch in batches:
        best = max(
            medians[batch, "transformers", precision] for precision in PRECISIONS["transformers"]
        )
        for program in PRECISIONS:
            cells = []
            for precision in PRECISIONS["bertworks"]:
                speed = medians.get((batch, program, precision))
                ratio = f" ({speed / best:.2f} x)" if speed and program == "bertworks" else ""
                cells.append(f"{speed:.1f}{ratio}" if speed else "")
            lines.append(f"| {program}, {batch} text{'s' * (batch > 1)} | {' | '.join(cells)} |")
    return lines


def measured(
    program: str, precision: PrecisionOption, batch: int, folder: Path, tokens: int
) -> dict[str, float]:
    """Tokens per second of one batch."""
    draw = random.Random(0)
    shortest, longest = LENGTHS
    lengths = [round(shortest + (longest - shortest) * (n + 0.5) / batch) for n in range(batch)]
    texts = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz ", k=length)) for length in lengths]
    run = (ours if program == "bertworks" else theirs)(folder, precision, texts)
    run(WARM)
    start = time.perf_counter()
    assert run(tokens) == batch * tokens
    return {"tokens_per_second": batch * tokens / (time.perf_counter() - start)}


def ours(folder: Path, precision: PrecisionOption, texts: list[str]) -> Callable[[int], int]:
    from bertworks.inference.causal_lm import SamplingOptions, TextGenerator

    generator = TextGenerator(folder, "cpu", precision)
    return lambda count: sum(
        len(one["ids"]) for one in generator(texts, SamplingOptions(max_tokens=count))
    )


def theirs(folder: Path, precision: PrecisionOption, texts: list[str]) -> Callable[[int], int]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    network = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).eval()
    inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)

    def run(count: int) -> int:
        made = network.generate(**inputs, max_new_tokens=count, do_sample=False, pad_token_id=0)
        return int(made[:, inputs["input_ids"].shape[1] :].numel())

    return run


def write_model(folder: Path, *, small: bool) -> None:
    """A random network without an end token, and a tokenizer of single bytes with as many
    tokens."""
    import tokenizers
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    tokens = [*letters, *(f"token{number}" for number in range(50_257 - len(letters)))]
    t = tokenizers.Tokenizer(
        tokenizers.models.BPE({token: number for number, token in enumerate(tokens)}, [])
    )
    t.pre_tokenizer, t.decoder = ByteLevel(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=t, pad_token=letters[0]).save_pretrained(
        folder
    )
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2} if small else {}
    config = transformers.GPT2Config(bos_token_id=None, eos_token_id=None, **sizes)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
