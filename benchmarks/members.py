"""How fast members of the family learn: our training step and that of transformers' own class, on
the CPU.

    python benchmarks/members.py [--members bert xlm ...] [--rounds 3] [--threads N] [--quick]

Every member has BERT-small's shape (4 layers, hidden size 512, 8 heads, 30,522 tokens) and its own
objective, on the same random tokens, 64 x 128. A step is forward, backward, clipping at 1.0 and
fused AdamW, dropout as in the member's preset. transformers runs in fp32 and under bf16 autocast
with its default attention. It has no class that trains ELECTRA's two networks together: there, as
in the paper, a masked LM of a quarter of the size makes the tokens that the discriminator reads,
both share their tables, and the losses are added. Every figure is that of a process of its own; the
variants take turns. Of transformers, whose steps are long, each process times the second step, and
only the faster precision has more than one round. The table in docs/concepts/performance.md keeps
the rows of other members.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pretraining import BATCHES, Case, make_examples, padded, time_steps
from provenance import HERE, process, provenance, publish

CASE = Case("64 x 128", "small", 64, 128)
MEMBERS = {  # by name: preset, class of transformers, objectives with their weights
    "bert": ("bert-base", "BertForPreTraining", {"masked_lm": 1.0, "next_sentence": 1.0}),
    "roberta": ("roberta-base", "RobertaForMaskedLM", {"masked_lm": 1.0}),
    "albert": ("albert-base", "AlbertForPreTraining", {"masked_lm": 1.0, "sentence_order": 1.0}),
    "electra": (
        "electra-small",
        "ElectraForPreTraining",
        {"masked_lm": 1.0, "replaced_token": 50.0},
    ),
    "distilbert": ("distilbert-base", "DistilBertForMaskedLM", {"masked_lm": 1.0}),
    "xlm": ("xlm-en", "XLMWithLMHeadModel", {"masked_lm": 1.0}),
    "gpt": ("gpt", "OpenAIGPTLMHeadModel", {"causal_lm": 1.0}),
    "gpt2": ("gpt2", "GPT2LMHeadModel", {"causal_lm": 1.0}),
}
STORE = HERE / "results" / "members.json"
VARIANTS = "bertworks", "transformers, fp32", "transformers, bf16"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--members", nargs="+", choices=MEMBERS, default=list(MEMBERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of steps in a process, at least; and 3 steps"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--quick", action="store_true", help="does it run? one round, an eighth of the sequences"
    )
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.variant:
        print(json.dumps(measured(a)))
        return
    about = provenance(("torch", "transformers"))
    cells = [(member, variant) for member in a.members for variant in VARIANTS]
    speeds: dict[tuple[str, str], list[float]] = {cell: [] for cell in cells}
    for number in range(1 if a.quick else a.rounds):
        for member, variant in cells:
            others = [speeds[member, one] for one in VARIANTS[1:] if one != variant]
            if (
                number
                and variant != VARIANTS[0]
                and max(max(found) for found in others) > max(speeds[member, variant])
            ):
                continue
            words = ["--variant", variant, "--members", member, "--seconds", str(a.seconds)]
            found = process(__file__, words + ["--quick"] * a.quick, a.threads)
            speeds[member, variant].append(found["tokens_per_second"])
            print(
                f"{member:8} {variant:20} {found['tokens_per_second']:9,.0f} tokens/s",
                file=sys.stderr,
                flush=True,
            )
    run = {
        **about,
        "threads": a.threads,
        "speeds": {m: {v: speeds[m, v] for v in VARIANTS} for m in a.members},
    }
    if a.quick:
        print(table([run]))
        return
    kept = [without(old, a.members) for old in json.loads(STORE.read_text())["runs"]]
    runs = [*(old for old in kept if old["speeds"]), run]
    shown = table(runs)
    publish("members", {"runs": runs}, shown)
    print(shown)


def without(run: dict[str, Any], members: list[str]) -> dict[str, Any]:
    return {
        **run,
        "speeds": {
            member: found for member, found in run["speeds"].items() if member not in members
        },
    }


def table(runs: list[dict[str, Any]]) -> str:
    lines = []
    for run in runs:
        versions = ", ".join(f"{name} {number}" for name, number in run["versions"].items())
        lines.append(
            f"{', '.join(run['speeds'])}: `{run['command']}` at {run['commit']}, "
            f"{run['time'][:10]}; {run['cpu']}, "
            f"{run['threads']} threads, load {run['load_average'][0]}; {versions}.\n"
        )
    lines += [
        "| tokens/s | bertworks | transformers, fp32 | transformers, bf16 | than the faster one "
        "(rounds) |",
        "|---|---|---|---|---|",
    ]
    for member, speeds in (
        (member, found[member]) for run in runs for found in [run["speeds"]] for member in found
    ):
        ours, *theirs = (speeds[variant] for variant in VARIANTS)
        faster = max(theirs, key=statistics.median)
        ratios = [x / y for x, y in zip(ours, faster, strict=True)]
        cells = [f"{statistics.median(found):,.0f}" for found in (ours, *theirs)]
        spread = f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"
        lines.append(f"| {member} | {' | '.join(cells)} | {spread} |")
    return "\n".join(lines)


# --- a variant, alone in its process


def measured(a: argparse.Namespace) -> dict[str, float]:
    import torch

    from bertworks.models.config import PRESETS
    from bertworks.training.device import best_precision, disable_heap_trim

    (member,) = a.members
    preset, _, objectives = MEMBERS[member]
    shape: dict[str, Any] = {
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 0,
    }
    config = replace(PRESETS[preset], vocab_size=30_522, max_position_embeddings=512, **shape)
    count = CASE.sequences // 8 if a.quick else CASE.sequences
    rows = [make_examples(config.vocab_size, CASE, count, seed) for seed in range(BATCHES)]
    rows = [
        [adapted(example, objectives, seed) for seed, example in enumerate(row)] for row in rows
    ]
    torch.manual_seed(0)
    if a.variant == "bertworks":
        disable_heap_trim()
        step = ours(config, rows, objectives, best_precision())
    else:
        step = theirs(member, config, rows, a.variant.endswith("bf16"))
    times, _ = time_steps(step, a, few=a.variant != VARIANTS[0])
    return {"tokens_per_second": sum(len(e.input_ids) for e in rows[0]) / statistics.median(times)}


def adapted(example: Any, objectives: dict[str, float], seed: int) -> Any:
    """The example with the targets of a member, and types of one segment where there is no pair."""
    import numpy as np

    from bertworks.batching.examples import Target

    ids, targets = example.input_ids, dict(example.targets)
    masked, pair = targets.pop("masked_lm"), targets.pop("next_sentence")
    numbers = np.random.default_rng(seed).random(len(masked.positions), np.float32)
    made = {
        "masked_lm": masked,
        "causal_lm": Target(np.arange(len(ids) - 1), ids[1:]),
        "next_sentence": pair,
        "sentence_order": pair,
        "replaced_token": Target(masked.positions, numbers),
    }
    types = example.token_type_ids * (
        {"next_sentence", "sentence_order"} & objectives.keys() != set()
    )
    return example._replace(token_type_ids=types, targets={kind: made[kind] for kind in objectives})


def ours(
    config: Any, rows: list[list[Any]], objectives: Any, precision: Any
) -> Callable[[int], float]:
    from bertworks.batching.batch import collate
    from bertworks.training.loop import make_optimizer, train
    from bertworks.training.objectives import PretrainingModel
    from bertworks.training.recipe import OptimizerConfig

    model = PretrainingModel(config, objectives)
    settings = OptimizerConfig(schedule="constant", warmup=0.0)
    batches = [collate(row) for row in rows]
    optimizer = make_optimizer(model, settings)
    steps = train(
        model, optimizer, lambda n: [batches[n % BATCHES]], settings, 1 << 30, precision=precision
    )
    return lambda _: sum(mean.loss for mean in next(steps).read().values())


def theirs(member: str, config: Any, rows: list[list[Any]], low: bool) -> Callable[[int], float]:
    import torch
    import transformers

    from bertworks.checkpoints.hf_config import config_to_huggingface

    def make(name: str, c: Any) -> Any:
        settings = config_to_huggingface(
            c, architectures=[name], pad_token_id=1 if member == "roberta" else 0
        )
        return getattr(transformers, name)(transformers.AutoConfig.for_model(**settings)).train()

    model = make(MEMBERS[member][1], config)
    modules, batches = [model], [inputs_of(member, row) for row in rows]
    if member == "electra":
        generator = make("ElectraForMaskedLM", config.generator(0.25))
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings"):
            setattr(generator.electra.embeddings, name, getattr(model.electra.embeddings, name))
        generator.generator_lm_head.weight = model.electra.embeddings.word_embeddings.weight
        modules.append(generator)
    parameters = list({id(p): p for module in modules for p in module.parameters()}.values())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def loss_of(batch: dict[str, Any]) -> Any:
        if member != "electra":
            return model(**batch).loss
        made = generator(**batch)
        predicted = batch["labels"] != -100
        with torch.no_grad():
            samples = torch.distributions.Categorical(
                logits=made.logits[predicted].float()
            ).sample()
        read = batch["input_ids"].masked_scatter(predicted, samples)
        differ = torch.zeros_like(read).masked_scatter(
            predicted, (samples != batch["labels"][predicted]).long()
        )
        return (
            made.loss
            + 50 * model(input_ids=read, attention_mask=batch["attention_mask"], labels=differ).loss
        )

    def step(number: int) -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            loss = loss_of(batches[number % BATCHES])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    return step


def inputs_of(member: str, row: list[Any]) -> dict[str, Any]:
    """A batch as the class of a member reads it."""
    import numpy as np

    from bertworks.batching.examples import Target

    kinds, none = MEMBERS[member][2], Target(np.zeros(0, np.int64), np.zeros(1, np.int64))
    pair = next((kind for kind in ("next_sentence", "sentence_order") if kind in kinds), "")
    given = [
        {"masked_lm": e.targets.get("masked_lm", none), "next_sentence": e.targets.get(pair, none)}
        for e in row
    ]
    batch = padded([e._replace(targets=targets) for e, targets in zip(row, given, strict=True)])
    label = batch.pop("next_sentence_label")
    if pair:
        batch[f"{pair}_label"] = label
    if "causal_lm" in kinds:
        return {"input_ids": batch["input_ids"], "labels": batch["input_ids"]}
    if not pair:
        del batch["token_type_ids"]
    return batch


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
