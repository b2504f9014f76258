"""Long texts: tokens per second and peak memory by length, beside transformers.

    python benchmarks/lengths.py [--networks bert modernbert ...] [--lengths 512 ... 8192]
    [--threads N] [--rounds 3] [--quick]

Random networks in published shapes read random tokens: one text of each length, or as many as make
4,096 tokens. "bert" is BERT-base with a table of 8,192 positions (`convert --positions`), and
"minilm, windows" reads overlapping windows of 512 tokens. bertworks computes in fp32 and, where the
processor has it, bf16; transformers in fp32 with its default attention, on batches without padding.
A token that two windows read counts once. Every figure is that of a process of its own, which reads
one batch before the clock starts; all take turns. Memory is what the process needs at its peak
above the loaded model. Before a process starts, what its attention needs at least is estimated; a
cell that exceeds three quarters of the memory of the machine is printed as such instead. Where one
variant takes longer than SLOW seconds, all are measured in the first round alone, which the table
says. Finished cells stay in results/lengths.json: run the same command again to resume, and
--overwrite to begin again. The table goes to docs/concepts/performance.md.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provenance import HERE, process, provenance, publish

LENGTHS = 512, 1024, 2048, 4096, 8192
TOKENS = 4096  # of a batch, at least
VARIANTS = "transformers", "fp32", "bf16"
MEMORY_SHARE = 0.75
WINDOW = 512
SLOW = 60  # seconds of a cell that is measured once
STORE = HERE / "results" / "lengths.json"


@dataclass(frozen=True)
class Network:
    """A shape that is compared.

    preset: a name in `PRESETS`.
    peer: the class of transformers; "": it has none that reads such texts.
    squares: tensors of heads x length x length that the class of transformers keeps at once.
    fields: of the configuration that differ from the preset.
    """

    preset: str
    peer: str = ""
    squares: int = 0
    fields: tuple[tuple[str, int], ...] = ()
    has_windows: bool = False


NETWORKS = {
    "bert": Network("bert-base", "BertModel", 0, (("max_position_embeddings", max(LENGTHS)),)),
    "minilm, windows": Network(
        "bert-base",
        fields=(("hidden_size", 384), ("num_hidden_layers", 6), ("intermediate_size", 1536)),
        has_windows=True,
    ),
    "modernbert": Network("modernbert-base", "ModernBertModel"),
    "xlnet": Network("xlnet-base", "XLNetModel", 4, (("max_position_embeddings", max(LENGTHS)),)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one round, two lengths, nothing is kept"
    )
    parser.add_argument("--overwrite", action="store_true", help="measure finished cells again")
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.cell:
        name, length, variant = a.cell
        print(json.dumps(measured(name, int(length), variant)))
        return
    from bertworks.models.layers import cpu_supports_bf16

    about = provenance(("torch", "transformers"))
    variants = [name for name in a.variants if name != "bf16" or cpu_supports_bf16()]
    lengths = a.lengths[:2] if a.quick else a.lengths
    rows: list[dict[str, Any]] = []
    if STORE.exists() and not (a.quick or a.overwrite):
        rows = json.loads(STORE.read_text())["rows"]
    for number in range(1 if a.quick else a.rounds):
        for name, length in itertools.product(a.networks, lengths):
            if number and is_slow(rows, name, length):
                continue
            for variant in variants:
                cell = {"network": name, "length": length, "variant": variant, "round": number}
                is_known = any(row.items() >= cell.items() for row in rows)
                if is_known or (variant == "transformers" and not NETWORKS[name].peer):
                    continue
                rows.append({**cell, **figures_of(name, length, variant, a.threads)})
                print(rows[-1], file=sys.stderr, flush=True)
                if not a.quick:
                    content = {**about, "threads": a.threads, "rows": rows}
                    STORE.write_text(json.dumps(content, indent=2) + "\n")
    lines = table(rows, variants)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}, "
        f"{' '.join(about['cpu_flags'])}, {a.threads} threads; load {about['load_average'][0]}; "
        f"{versions}.",
    ]
    if not a.quick:
        publish("lengths", {**about, "threads": a.threads, "rows": rows}, "\n".join(lines))
    print("\n".join(lines))


def figures_of(name: str, length: int, variant: str, threads: int) -> dict[str, float]:
    """Return the figures of a cell, or what it needs if that is more than there is."""
    needed = estimated_bytes(name, length, variant)
    if needed > MEMORY_SHARE * memory_of_machine():
        return {"needed_gb": needed / 1e9}
    return process(__file__, ["--cell", name, str(length), variant], threads)


def is_slow(rows: list[dict[str, Any]], name: str, length: int) -> bool:
    """Return whether a variant of a network takes longer than SLOW seconds."""
    speeds = [
        row["tokens_per_second"]
        for row in rows
        if (row["network"], row["length"]) == (name, length) and "tokens_per_second" in row
    ]
    return any(max(TOKENS, length) / speed > SLOW for speed in speeds)


def table(rows: list[dict[str, Any]], variants: list[str]) -> list[str]:
    """Return Markdown: medians of tokens per second, with the ratio to transformers, and memory."""
    lines = [
        f"| network, tokens of a text | {' | '.join(variants)} |",
        "|---" * (len(variants) + 1) + "|",
    ]
    for name, length in dict.fromkeys((row["network"], row["length"]) for row in rows):
        of_cell = [row for row in rows if (row["network"], row["length"]) == (name, length)]
        peer = speed_of(of_cell, "transformers")
        texts = []
        for variant in variants:
            own = [row for row in of_cell if row["variant"] == variant]
            speed = speed_of(of_cell, variant)
            if not own:
                texts.append("no such network")
            elif speed is None:
                texts.append(f"needs {own[0]['needed_gb']:.0f} GB")
            else:
                memory = statistics.median(row["memory_mb"] for row in own)
                ratio = f" ({speed / peer:.2f} x)" if peer and variant != "transformers" else ""
                texts.append(f"{speed:,.0f}{ratio}, {memory:,.0f} MB")
        once = " (one round)" if is_slow(rows, name, length) else ""
        lines.append(f"| {name}, {length:,}{once} | {' | '.join(texts)} |")
    return lines


def speed_of(rows: list[dict[str, Any]], variant: str) -> float | None:
    """Return the median of the tokens per second; None: nothing was measured."""
    speeds = [
        row["tokens_per_second"]
        for row in rows
        if row["variant"] == variant and "tokens_per_second" in row
    ]
    return statistics.median(speeds) if speeds else None


def memory_of_machine() -> int:
    """Return the bytes of memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def configuration(name: str) -> Any:
    """Return the configuration of a network."""
    from bertworks.models.config import PRESETS

    network = NETWORKS[name]
    fields: dict[str, Any] = dict(network.fields)
    return replace(PRESETS[network.preset], **fields)


def estimated_bytes(name: str, length: int, variant: str) -> int:
    """Return what the squares of attention need at least, of a class that keeps them."""
    squares = NETWORKS[name].squares if variant == "transformers" else 0
    heads: int = configuration(name).num_attention_heads
    return squares * heads * length**2 * 4


# --- a cell, alone in its process


def measured(name: str, length: int, variant: str) -> dict[str, float]:
    """Return the tokens per second of a batch, and its memory."""
    import torch

    torch.manual_seed(0)
    count = max(1, TOKENS // length)
    ids = torch.randint(10, 1000, (count, length))
    make = with_transformers if variant == "transformers" else with_bertworks
    reads = make(name, variant, length)
    with torch.inference_mode():
        reads(ids[:1, :WINDOW])
        Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
        before = kilobytes("VmRSS")
        start = time.perf_counter()
        reads(ids)
        seconds = time.perf_counter() - start
    memory = (kilobytes("VmHWM") - before) / 1024
    return {"tokens_per_second": ids.numel() / seconds, "memory_mb": memory}


def kilobytes(name: str) -> int:
    """Return a figure of the memory of this process, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def with_bertworks(name: str, variant: str, length: int) -> Callable[[Any], Any]:
    import numpy as np

    from bertworks.batching.batch import collate
    from bertworks.batching.examples import Example
    from bertworks.inference.engine import prepared_encoder
    from bertworks.tasks.sequences import window_starts
    from bertworks.tasks.settings import MOST_WINDOWS
    from bertworks.training.objectives import PretrainingModel

    network = PretrainingModel(configuration(name), {}).eval()
    encoder, _ = prepared_encoder(network.encoder, variant)  # type: ignore[arg-type]

    def reads(ids: Any) -> Any:
        rows = [row.numpy() for row in ids]
        if NETWORKS[name].has_windows:
            starts = window_starts(ids.shape[1], WINDOW, MOST_WINDOWS)
            rows = [row[start : start + WINDOW] for row in rows for start in starts]
        examples = [Example(row, np.zeros_like(row), {}) for row in rows]
        return encoder(*collate(examples).inputs)[-1]

    return reads


def with_transformers(name: str, variant: str, length: int) -> Callable[[Any], Any]:
    import transformers

    from bertworks.checkpoints.hf_config import config_to_huggingface
    from bertworks.models.config import PRESETS

    class_name = NETWORKS[name].peer
    config = configuration(name)
    if config.position_embedding_type == "relative":  # their files have no other number
        preset = PRESETS[NETWORKS[name].preset]
        config = replace(config, max_position_embeddings=preset.max_position_embeddings)
    settings = config_to_huggingface(config, architectures=[class_name])
    kind = getattr(transformers, class_name)
    network = kind(kind.config_class(**settings)).eval()

    def reads(ids: Any) -> Any:
        return network(input_ids=ids).last_hidden_state

    return reads


if __name__ == "__main__":
    main()
