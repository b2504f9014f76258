"""The same steps fed by batches made in line, by a thread, and by a thread in pinned memory."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common import Part, new_model, step_seconds
from corpus import write_shards

from bertworks.batching.batch import Batch, Prefetched
from bertworks.events import no_notes
from bertworks.runs.pretrain_job import PretrainJob
from bertworks.text.shards import Shards
from bertworks.training.recipe import Phase, TrainConfig, load_recipe


def main() -> None:
    part = Part("feed")
    with tempfile.TemporaryDirectory() as scratch:
        shards = Shards.open(write_shards(Path(scratch), 20 if part.quick else 2000, 300 if part.quick else 8000))
        part.ready()
        for size, tokens in [("tiny", 1024)] if part.quick else [("base", 1 << 16), ("small", 1 << 16)]:
            for how in ("same batch", "in line", "thread", "thread, pinned"):
                part.attempt(f"{size}, {how}", feed, part, Path(scratch), shards, size, tokens, how, least=4)


def feed(part: Part, scratch: Path, shards: Shards, size: str, tokens: int, how: str) -> None:
    length = 32 if part.quick else 128
    phases = (Phase(num_steps=1 << 20, batch_size=tokens // length, sequence_length=length),)
    recipe = load_recipe(f"bert-{size}", ["sampling.copies=1"])
    encoder = replace(recipe.encoder, vocab_size=shards.tokenizer().vocab_size)
    recipe = replace(
        recipe, encoder=encoder, train=TrainConfig(phases=phases, micro_batch_tokens=tokens, precision="bf16")
    )
    batches: Callable[[int], list[Batch]] = PretrainJob(recipe, shards).batches(scratch / "plans", 0, 1, no_notes)
    if how == "same batch":
        one = [batch.to(part.device) for batch in batches(0)]
        batches = lambda _: one  # noqa: E731
    elif how.startswith("thread"):
        pinned = part.device if how.endswith("pinned") and part.is_gpu else None
        batches = Prefetched(batches, pinned)
    real = sum(len(batch.input_ids) for batch in batches(0))
    took = step_seconds(new_model(encoder, part.device), batches, part.device, 0.3 if part.quick else 1.2)
    part.line(f"{size}, {how}", tokens=real, tokens_per_second=real / took, milliseconds=1000 * took)


main()
