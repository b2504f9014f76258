"""What is learned in the same time: our `pretrain --budget` and transformers, on the same text and
the same cores.

    python benchmarks/learning.py [CORPUS] [--minutes 30] [--size mini] [--threads N] [--together]
    [--quick]

All train a model of the same shape, over the same vocabulary, on the same documents, for the same
time, one after the other, each in a process of its own; or, with --together, at the same time, each
on its own share of the cores, so that whatever else the machine does disturbs all alike. The loss
on masked words of held-out text is taken at ten moments, always on the same masks (15 %, 80/10/10,
full sentences without pairs, 128 tokens), while the clock stands still.

    bertworks                     what `pretrain --budget` does with a model of this size: recipe,
    measuring of the
                                  speed (which counts) and schedule; without checkpoints
    transformers                  the defaults of its examples/pytorch/language-modeling/run_mlm.py:
    BertForMaskedLM,
                                  text cut into rows of the tokenizer's model_max_length (512), its
                                  collator, 8 rows a step, AdamW at 5e-5 without decay or warm-up,
                                  clipping at 1.0, dropout 0.1, fp32. The loop is written out, as
                                  Trainer would run it, without its logs and checkpoints; the rate
                                  falls in a straight line to 0 at the end of the time, not of three
                                  epochs
    transformers, our settings    BertForPreTraining with our batches, rates, phases, initial
    weights and precision:
                                  what is left is the difference in speed

Vocabulary and shards are made before, once, and are not counted; nor are imports.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from provenance import IMAGES, process, provenance, publish, skip_without

CONTENDERS = ("bertworks", "transformers", "transformers, our settings")
MOMENTS = 10
HELD_OUT_LENGTH, HELD_OUT_SEQUENCES = 128, 384
THEIR_RATE, THEIR_BATCH = 5e-5, 8  # of TrainingArguments


def main() -> None:
    arguments = parse()
    skip_without(arguments.corpus)
    if arguments.contender:
        print(json.dumps(contend(arguments)))
        return
    with tempfile.TemporaryDirectory(prefix="bertworks-bench-") as scratch:
        results = compare(arguments, Path(scratch))
    shown = table(results)
    if not arguments.quick:
        draw(results, IMAGES / "learning-curves.png")
        publish(
            "learning",
            results,
            f"{shown}\n\n![Held-out loss over minutes of training](../images/learning-curves.png)",
        )
    print(shown)


def parse() -> argparse.Namespace:
    data = Path(os.environ.get("BERTWORKS_DATA", "."))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "corpus", nargs="?", type=Path, default=data / "text" / "en-wikipedia-8m.jsonl.gz"
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--size", default="mini", help="a size of the plan of bertworks: tiny, mini, small, ..."
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--together", action="store_true", help="at the same time, each on its share of the cores"
    )
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--shards", type=Path, help="shards of the corpus that are there already")
    parser.add_argument(
        "--quick", action="store_true", help="does it run? half a minute each, nothing is kept"
    )
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.minutes = 0.5 if arguments.quick else arguments.minutes
    return arguments


# --- the parent: the same shards for all, then one after the other


def compare(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    origin = provenance(("torch", "transformers", "tokenizers", "numpy"))
    shards = arguments.shards or make_shards(arguments, scratch)
    options = [
        "--shards",
        str(shards),
        "--minutes",
        str(arguments.minutes),
        "--size",
        arguments.size,
    ]
    names = arguments.contenders
    cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
    share = len(cores) // len(names) if arguments.together else len(cores)
    if not share:
        raise SystemExit(
            f"{len(names)} contenders on {len(cores)} cores: name fewer with --contenders"
        )
    shares = [
        cores[n * share : (n + 1) * share] if arguments.together else cores
        for n in range(len(names))
    ]
    with ThreadPoolExecutor(len(names) if arguments.together else 1) as pool:
        run = partial(process, __file__, threads=share)
        found = [
            pool.submit(run, ["--contender", name, *options], cores=own)
            for name, own in zip(names, shares)
        ]
        curves = {name: one.result() for name, one in zip(names, found)}
    for name, curve in curves.items():
        print(f"{name:28} loss {curve['curve'][-1]['loss']:.3f}", file=sys.stderr, flush=True)
    arguments.threads = share
    facts = {"corpus": arguments.corpus.name, "minutes": arguments.minutes, "size": arguments.size}
    return {**origin, "threads": arguments.threads, **facts, "contenders": curves}


def make_shards(arguments: argparse.Namespace, scratch: Path) -> Path:
    from bertworks.text.corpus import CorpusReader
    from bertworks.text.shards import write_shards
    from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
    from bertworks.training.budget import SIZE_PRESETS

    (size,) = (rung.vocab_size for rung in SIZE_PRESETS if rung.size == arguments.size)
    reader = CorpusReader([arguments.corpus])
    tokenizer, _ = train_vocabulary(
        (document.text for document in reader), VocabularyConfig(size=size)
    )
    write_shards(reader, tokenizer, scratch / "shards", workers=arguments.threads)
    return scratch / "shards"


def table(results: dict[str, Any]) -> str:
    found = results["contenders"]
    ours = found["bertworks"]["curve"]
    lines = [
        f"`{results['command']}` at {results['commit']}, {results['time'][:10]}; "
        f"{results['corpus']}, "
        f"{results['minutes']:g} minutes each on {results['cpu']}, {results['threads']} threads "
        "each; "
        f"BERT-{results['size']}, {found['bertworks']['recipe']}.",
        "",
        "| | precision | steps | tokens | held-out loss | accuracy | bertworks is there after |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        last = one["curve"][-1]
        there = next((p["seconds"] / 60 for p in ours if p["loss"] <= last["loss"]), None)
        there_text = (
            "" if name == "bertworks" else "not yet" if there is None else f"{there:.1f} min"
        )
        lines.append(
            f"| {name} | {one['precision']} | {last['steps']:,} | {last['tokens'] / 1e6:.1f} M | "
            f"{last['loss']:.3f} "
            f"| {last['accuracy']:.1%} | {there_text} |"
        )
    return "\n".join(lines)


def draw(results: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (name, one), colour in zip(
        results["contenders"].items(), ("#0072b2", "#d55e00", "#888888"), strict=False
    ):
        minutes, losses = zip(*((p["seconds"] / 60, p["loss"]) for p in one["curve"]), strict=True)
        axes.plot(
            minutes, losses, "o-", color=colour, label=f"{name}: {losses[-1]:.2f}", markersize=3.5
        )
    axes.set(xlabel="minutes of training", ylabel="held-out loss of masked words", xlim=(0, None))
    axes.set_title(
        f"BERT-{results['size']}, the same {results['minutes']:g} minutes, {results['threads']} "
        "core(s) each"
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=80)


# --- a contender, alone in its process


class Clock:
    """The time that a contender has, which stands still while it is examined."""

    def __init__(self, seconds: float):
        self.seconds, self._begin = seconds, time.perf_counter()

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._begin

    @property
    def running(self) -> bool:
        return self.elapsed < self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._begin += time.perf_counter() - begin


def contend(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything that all have in common: data, time and examination."""
    from bertworks.runs.pretrain_job import held_out_batches, split_documents, split_long_documents
    from bertworks.text.shards import Shards
    from bertworks.training.device import best_precision
    from bertworks.training.loop import evaluate
    from bertworks.training.objectives import PretrainingModel

    shards = Shards.open(arguments.shards)
    store, tokenizer = split_long_documents(shards), shards.tokenizer()
    recipe = make_recipe(arguments, shards)
    documents, held_out = split_documents(store, recipe.seed)
    questions = held_out_batches(
        store,
        held_out,
        tokenizer,
        format="full_sentences",
        sequence_length=HELD_OUT_LENGTH,
        sequences=HELD_OUT_SEQUENCES,
    )
    examined = PretrainingModel(recipe.encoder, {"masked_lm": 1.0})
    precision = "fp32" if arguments.contender == "transformers" else best_precision()
    prepare = {"bertworks": bertworks, "transformers": transformers}.get(
        arguments.contender, transformers_our_settings
    )
    clock = Clock(arguments.minutes * 60)
    steps, state = prepare(recipe, precision, store, documents, tokenizer, clock)
    count = tokens = 0
    curve: list[dict[str, float]] = []

    def examine() -> None:
        with clock.paused():
            known = state()
            examined.load_state_dict({name: known[name] for name, _ in examined.named_parameters()})
            mean = evaluate(examined, questions)["masked_lm"]
        learned = {"loss": mean.loss, "accuracy": mean.accuracy}
        curve.append({"seconds": clock.elapsed, "steps": count, "tokens": tokens, **learned})

    examine()
    for number in steps:
        count, tokens = count + 1, tokens + number
        if clock.elapsed >= len(curve) * clock.seconds / MOMENTS:
            examine()
    if curve[-1]["steps"] < count:
        examine()
    phases = ", then ".join(f"{p.batch_size} x {p.sequence_length}" for p in recipe.train.phases)
    described = (
        f"vocabulary {tokenizer.vocab_size:,}, batches of {phases}, rate "
        f"{recipe.optimizer.learning_rate:g}"
    )
    return {"precision": precision, "recipe": described, "curve": curve}


def make_recipe(arguments: argparse.Namespace, shards: Any) -> Any:
    """What a budget of this time would choose on a machine whose speed is within the range of the
    given size."""
    from bertworks.training.budget import EFFICIENCY, SIZE_PRESETS, choose_recipe
    from bertworks.training.device import DTYPES, best_precision, measure_matmul

    seconds = arguments.minutes * 60
    number = [rung.size for rung in SIZE_PRESETS].index(arguments.size)
    limits = [rung.flops for rung in SIZE_PRESETS[number : number + 2]]
    flops = max(seconds * EFFICIENCY * measure_matmul(DTYPES[best_precision()]), limits[0])
    flops = min([flops, *(0.99 * limit for limit in limits[1:])])
    recipe = choose_recipe(seconds, flops / seconds / EFFICIENCY * 1.0001, shards.manifest.tokens)
    return replace(recipe, encoder=replace(recipe.encoder, vocab_size=shards.manifest.vocab_size))


# training that yields the tokens of each step; the state so far
Steps = tuple[Iterator[int], Callable[[], Any]]


def bertworks(
    recipe: Any, precision: Any, store: Any, documents: Any, tokenizer: Any, clock: Clock
) -> Steps:
    import torch

    from bertworks.runs.pretrain import RESERVE
    from bertworks.runs.pretrain_job import phase_batches
    from bertworks.training.budget import fit_steps, measure_steps
    from bertworks.training.device import disable_heap_trim
    from bertworks.training.loop import make_optimizer, train

    disable_heap_trim()
    measured = measure_steps(
        replace(recipe, train=replace(recipe.train, precision=precision)), torch.device("cpu")
    )
    recipe = fit_steps(recipe, clock.seconds * (1 - RESERVE) - clock.elapsed, measured.step_seconds)
    model = begin(recipe)
    optimizer = make_optimizer(model, recipe.optimizer)

    def steps() -> Iterator[int]:
        with tempfile.TemporaryDirectory() as plans:
            batches = phase_batches(store, documents, recipe, tokenizer, Path(plans), 0, 1)
            n = recipe.train.num_steps
            for step in train(
                model,
                optimizer,
                batches,
                recipe.optimizer,
                n,
                precision=precision,
                seed=recipe.seed,
            ):
                yield step.tokens
                if not clock.running:
                    break

    return steps(), model.state_dict


def begin(recipe: Any) -> Any:
    """Our network before its first step, as `pretrain` begins it."""
    import torch

    from bertworks.models.transformer import init_local_attention
    from bertworks.training.objectives import PretrainingModel

    torch.manual_seed(recipe.seed)
    model = PretrainingModel(recipe.encoder)
    if recipe.initialization == "neighbours":
        init_local_attention(model.encoder)
        model.encoder.embeddings.position.requires_grad_(False)
    return model


def transformers(
    recipe: Any, _: Any, store: Any, documents: Any, tokenizer: Any, clock: Clock
) -> Steps:
    import torch
    from transformers import (
        AutoTokenizer,
        BertConfig,
        BertForMaskedLM,
        DataCollatorForLanguageModeling,
    )

    from bertworks.checkpoints.hf_mapping import from_huggingface

    with clock.paused(), tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(folder))
        rows = rows_of(store, documents, tokenizer)
    torch.manual_seed(42)
    c = recipe.encoder
    sizes = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    )
    settings = {name: getattr(c, name) for name in sizes}
    model = BertForMaskedLM(BertConfig(**settings, intermediate_size=c.ffn_size)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=THEIR_RATE, weight_decay=0.0, fused=True)
    loader = torch.utils.data.DataLoader(rows, THEIR_BATCH, shuffle=True, collate_fn=collator)

    def steps() -> Iterator[int]:
        while True:
            for batch in loader:
                if not clock.running:
                    return
                model(**batch).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.param_groups[0]["lr"] = THEIR_RATE * max(
                    0.0, 1 - clock.elapsed / clock.seconds
                )
                optimizer.step()
                optimizer.zero_grad()
                yield batch["input_ids"].numel()

    return steps(), lambda: from_huggingface(model.state_dict(), c)


def rows_of(store: Any, documents: Any, tokenizer: Any) -> list[dict[str, list[int]]]:
    """Texts between [CLS] and [SEP], joined, in rows of as many tokens as the model can read."""
    import numpy as np

    parts = []
    for first, last in zip(store.documents[documents], store.documents[documents + 1], strict=True):
        parts += [
            [tokenizer.cls_id],
            store.tokens[store.sentences[first] : store.sentences[last]],
            [tokenizer.sep_id],
        ]
    joined = np.concatenate(parts).astype(np.int64)
    length = tokenizer.model_max_length
    rows = joined[: len(joined) // length * length].reshape(-1, length)
    special = np.isin(rows, (tokenizer.cls_id, tokenizer.sep_id))
    zeros, ones = [0] * length, [1] * length
    return [
        {
            "input_ids": row,
            "token_type_ids": zeros,
            "attention_mask": ones,
            "special_tokens_mask": mask,
        }
        for row, mask in zip(rows.tolist(), special.astype(int).tolist(), strict=True)
    ]


def transformers_our_settings(
    recipe: Any, precision: Any, store: Any, documents: Any, tokenizer: Any, clock: Clock
) -> Steps:
    import torch
    from transformers import BertConfig, BertForPreTraining

    from bertworks.checkpoints.hf_config import config_to_huggingface
    from bertworks.checkpoints.hf_mapping import from_huggingface, to_huggingface
    from bertworks.runs.pretrain_job import phase_batches
    from bertworks.training.budget import LATER_FRACTION
    from bertworks.training.loop import make_optimizer

    c = recipe.encoder
    model = BertForPreTraining(
        BertConfig(**config_to_huggingface(c, architectures=["BertForPreTraining"]))
    ).train()
    # tied copies follow
    model.load_state_dict(to_huggingface(begin(recipe).state_dict(), c), strict=False)
    model.bert.embeddings.position_embeddings.requires_grad_(recipe.initialization == "published")
    optimizer = make_optimizer(model, recipe.optimizer)
    # As many steps as the time allows: phases share it as in `fit`, and the rate follows the clock.
    later = len(recipe.train.phases) - 1
    borders = [1 - LATER_FRACTION * (later - n) for n in range(later)]
    endless = tuple(replace(phase, num_steps=1 << 30) for phase in recipe.train.phases)
    recipe = replace(
        recipe, train=replace(recipe.train, phases=endless, micro_batch_tokens=1 << 30)
    )

    def steps() -> Iterator[int]:
        done = [0] * len(endless)
        with tempfile.TemporaryDirectory() as plans:
            batches = phase_batches(store, documents, recipe, tokenizer, Path(plans), 0, 1)
            while clock.running:
                phase = sum(clock.elapsed / clock.seconds >= border for border in borders)
                (batch,) = batches((phase << 30) + done[phase])
                done[phase] += 1
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = model(**padded(batch)).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.optimizer.max_grad_norm)
                rate = recipe.optimizer.rate(int(clock.elapsed * 1000), int(clock.seconds * 1000))
                for group in optimizer.param_groups:
                    group["lr"] = max(0.0, rate)
                optimizer.step()
                optimizer.zero_grad()
                yield len(batch.input_ids)

    return steps(), lambda: from_huggingface(model.state_dict(), c)


def padded(batch: Any) -> dict[str, Any]:
    """A batch of ours as transformers reads it: rectangles; -100 where nothing is predicted."""
    import torch

    layout = batch.layout
    labels = torch.full((layout.num_sequences * layout.max_seqlen,), -100)
    masked_lm = batch.targets["masked_lm"]
    labels[layout.slots[masked_lm.positions]] = masked_lm.labels
    return {
        "input_ids": layout.pad(batch.input_ids),
        "token_type_ids": layout.pad(batch.token_type_ids),
        "attention_mask": layout.present.long(),
        "labels": labels.view(layout.num_sequences, -1),
        "next_sentence_label": batch.targets["next_sentence"].labels,
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    main()
