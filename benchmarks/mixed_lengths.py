"""Texts of mixed lengths: tokens per second beside transformers, for the networks that came later.

    python benchmarks/mixed_lengths.py [--networks modernbert ...] [--texts 32] [--rounds 3]
        [--quick]

Three layers of the width of the base model, with random weights, read random texts: lengths are
uniform, or log-uniform, up to those of the pre-training. Both programs get the same texts, sorted,
in the same batches; transformers pads them, bertworks packs them. All take turns in one process
with one thread, and the time is that of the processor. bertworks computes in fp32 and, where the
processor has them, bf16 and int8; transformers in fp32 with its default attention. States in fp32
are compared. The table goes to docs/concepts/performance.md.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from provenance import provenance, publish

DISTRIBUTIONS = "uniform", "log-uniform"
LAYERS = 3
LARGEST_DIFFERENCE = 2e-5  # of states in fp32, which are about 1


@dataclass(frozen=True)
class Network:
    """A network of published width.

    preset: a name in `PRESETS`.
    peer: the class of transformers.
    shortest, longest: lengths of texts in tokens.
    batch: texts of a batch.
    """

    preset: str
    peer: str
    shortest: int
    longest: int
    batch: int


NETWORKS = {
    "modernbert": Network("modernbert-base", "ModernBertModel", 16, 2048, 4),
    "deberta": Network("deberta-v3-base", "DebertaV2Model", 16, 512, 8),
    "xlnet": Network("xlnet-base", "XLNetModel", 16, 512, 8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one round, few texts, nothing is kept"
    )
    a = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    about = provenance(("torch", "transformers"))
    rows = []
    for name in a.networks:
        for distribution in DISTRIBUTIONS:
            row = compare(name, distribution, 4 if a.quick else a.texts, 1 if a.quick else a.rounds)
            print(row, file=sys.stderr, flush=True)
            rows.append(row)
    lines = table(rows)
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}, "
        f"{' '.join(about['cpu_flags'])}, one thread; load {about['load_average'][0]}; {versions}.",
    ]
    if not a.quick:
        publish("mixed-lengths", {**about, "rows": rows}, "\n".join(lines))
    print("\n".join(lines))


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return Markdown: medians of tokens per second, and of the ratios of each round."""
    variants = list(dict.fromkeys(variant for row in rows for variant in row["speeds"]))
    lines = [
        f"| network, lengths | {' | '.join(variants)} |",
        "|---" * (len(variants) + 1) + "|",
    ]
    for row in rows:
        peer = row["speeds"]["transformers"]
        cells = []
        for variant in variants:
            speeds = row["speeds"][variant]
            ratios = [speed / other for speed, other in zip(speeds, peer, strict=True)]
            ratio = "" if variant == "transformers" else f" ({statistics.median(ratios):.2f} x)"
            cells.append(f"{statistics.median(speeds):,.0f}{ratio}")
        lengths = f"{row['distribution']} {row['shortest']} to {row['longest']:,}"
        lines.append(f"| {row['network']}, {lengths} | {' | '.join(cells)} |")
    return lines


def compare(name: str, distribution: str, texts: int, rounds: int) -> dict[str, Any]:
    """Return the tokens per second of all variants, of which each has a turn in each round."""
    import torch

    from bertworks.models.layers import cpu_supports_bf16
    from bertworks.models.transformer import cpu_supports_int8

    network = NETWORKS[name]
    torch.manual_seed(0)
    batches = random_batches(network, distribution, texts)
    encoder, peer = networks(network)
    variants = {"fp32": True, "bf16": cpu_supports_bf16(), "int8": cpu_supports_int8()}
    readers = {"transformers": peer}
    readers |= {
        variant: with_bertworks(encoder, variant)
        for variant, is_supported in variants.items()
        if is_supported
    }
    num_tokens = sum(len(text) for batch in batches for text in batch)
    speeds: dict[str, list[float]] = {variant: [] for variant in readers}
    with torch.inference_mode():
        first = batches[0]
        difference = float((readers["fp32"](first) - peer(first)).abs().max())
        if difference > LARGEST_DIFFERENCE:
            raise SystemExit(f"{name}: states differ by {difference:.1e} from transformers")
        for reads in readers.values():  # the first batch prepares what later ones use
            reads(first)
        for _ in range(rounds):
            for variant, reads in readers.items():
                begin = time.process_time()
                for batch in batches:
                    reads(batch)
                speeds[variant].append(num_tokens / (time.process_time() - begin))
    return {
        "network": name,
        "distribution": distribution,
        "shortest": network.shortest,
        "longest": network.longest,
        "difference": difference,
        "speeds": speeds,
    }


def random_batches(network: Network, distribution: str, texts: int) -> list[list[Any]]:
    """Return texts of random tokens, sorted by their length, in batches."""
    import numpy as np
    import torch

    generator = np.random.default_rng(0)
    shortest, longest = network.shortest, network.longest
    if distribution == "uniform":
        lengths = generator.integers(shortest, longest + 1, texts)
    else:
        edges = np.log(shortest), np.log(longest + 1)
        lengths = np.exp(generator.uniform(*edges, texts)).astype(int)
    lengths.sort()
    rows = [torch.randint(10, 1000, (int(length),)) for length in lengths]
    return [rows[start : start + network.batch] for start in range(0, texts, network.batch)]


def networks(network: Network) -> tuple[Any, Callable[[list[Any]], Any]]:
    """Return an encoder, and what reads batches with the same weights in transformers."""
    import torch
    import transformers

    from bertworks.checkpoints.hf_config import config_to_huggingface
    from bertworks.checkpoints.hf_mapping import to_huggingface
    from bertworks.models.config import PRESETS
    from bertworks.models.transformer import Encoder

    transformers.logging.set_verbosity_error()
    preset = PRESETS[network.preset]
    config = replace(preset, num_hidden_layers=LAYERS, vocab_size=1000)
    encoder = Encoder(config).eval()
    settings = config_to_huggingface(config, architectures=[network.peer])
    kind = getattr(transformers, network.peer)
    peer = kind(kind.config_class(**settings)).eval()
    state = {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}
    weights = to_huggingface(state, config)
    prefix = kind.base_model_prefix + "."
    weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    missing, unexpected = peer.load_state_dict(weights, strict=False)
    if missing or unexpected:
        raise SystemExit(
            f"{network.peer}: weights {missing} are missing, {unexpected} are not read"
        )

    def reads(batch: list[Any]) -> Any:
        rows = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
        lengths = torch.tensor([len(text) for text in batch])
        is_present = torch.arange(rows.shape[1]) < lengths[:, None]
        states = peer(input_ids=rows, attention_mask=is_present.long()).last_hidden_state
        return states[is_present]

    return encoder, reads


def with_bertworks(encoder: Any, variant: str) -> Callable[[list[Any]], Any]:
    import numpy as np

    from bertworks.batching.batch import collate
    from bertworks.batching.examples import Example
    from bertworks.inference.engine import prepared_encoder

    prepared, _ = prepared_encoder(encoder, variant)  # type: ignore[arg-type]

    def reads(batch: list[Any]) -> Any:
        rows = [text.numpy() for text in batch]
        examples = [Example(row, np.zeros_like(row), {}) for row in rows]
        return prepared(*collate(examples).inputs)[-1]

    return reads


if __name__ == "__main__":
    main()
