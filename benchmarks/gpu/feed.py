"""The same steps fed by batches made in line, by a thread, and by a thread in pinned memory."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common import Part, new_model, step_seconds
from corpus import write_shards

from bertworks.batching.batch import Batch, Prefetched
from bertworks.events import no_notes
from bertworks.models.config import EncoderConfig
from bertworks.runs.pretrain_job import PretrainJob
from bertworks.text.shards import Shards
from bertworks.training.recipe import Phase, TrainConfig, load_recipe

Make = Callable[[int], list[Batch]]


def main() -> None:
    part = Part("feed")
    with tempfile.TemporaryDirectory() as scratch:
        shards = Shards.open(
            write_shards(Path(scratch), 20 if part.quick else 2000, 300 if part.quick else 8000)
        )
        sizes = [("tiny", 1024)] if part.quick else [("base", 1 << 16), ("small", 1 << 16)]
        prepared = [
            (size, *prepare(part, Path(scratch) / size, shards, size, tokens))
            for size, tokens in sizes
        ]
        part.ready()
        for size, encoder, batches in prepared:
            for how in ("in line", "thread, pinned", "same batch", "thread"):
                part.attempt(f"{size}, {how}", feed, part, encoder, batches, size, how)


def prepare(
    part: Part, scratch: Path, shards: Shards, size: str, tokens: int
) -> tuple[EncoderConfig, Make]:
    """The network, and what makes the batches of a step."""
    length = 32 if part.quick else 128
    phases = (Phase(num_steps=1 << 20, batch_size=tokens // length, sequence_length=length),)
    recipe = load_recipe(f"bert-{size}", ["sampling.copies=1"])
    encoder = replace(recipe.encoder, vocab_size=shards.tokenizer().vocab_size)
    train = TrainConfig(phases=phases, micro_batch_tokens=tokens, precision="bf16")
    scratch.mkdir()
    job = PretrainJob(replace(recipe, encoder=encoder, train=train), shards)
    return encoder, job.batches(scratch, 0, 1, no_notes)


def feed(part: Part, encoder: EncoderConfig, batches: Make, size: str, how: str) -> None:
    real = sum(len(batch.input_ids) for batch in batches(0))
    if how == "same batch":
        one = [batch.to(part.device) for batch in batches(0)]
        batches = lambda _: one  # noqa: E731
    elif how.startswith("thread"):
        batches = Prefetched(
            batches, part.device if how.endswith("pinned") and part.is_gpu else None
        )
    took = step_seconds(
        new_model(encoder, part.device), batches, part.device, 0.3 if part.quick else 1.0, warmup=2
    )
    part.line(
        f"{size}, {how}", tokens=real, tokens_per_second=real / took, milliseconds=1000 * took
    )


main()
