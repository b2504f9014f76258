"""Translators that learn to copy a text, in seconds."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertworks.events import Event
from bertworks.runs.pretrain import pretrain

NETWORK = [
    "vocabulary.size=320",
    "encoder.num_hidden_layers=1",
    "encoder.decoder.num_hidden_layers=1",
    "encoder.hidden_size=32",
    "encoder.intermediate_size=64",
    "encoder.num_attention_heads=2",
    "optimizer.learning_rate=1e-2",
    "optimizer.warmup_steps=30",
    "train.precision=fp32",
    "train.average=2",
]
SHORT = [
    "train.evaluate_every=5",
    "train.phases=[{num_steps=20, batch_size=8, sequence_length=64}]",
]


def write_copies(folder: Path, count: int = 400) -> list[str]:
    """Two files with the same texts of two to five words; their paths."""
    draw = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdklmnprst" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 2))) for _ in range(10)]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 5))) for _ in range(count)]
    paths = [folder / "text.en", folder / "text.de"]
    for path in paths:
        path.write_text("".join(f"{line}\n" for line in lines))
    return list(map(str, paths))


def train_copier(
    output: Path, files: Sequence[str], overrides: Sequence[str] = SHORT
) -> Iterator[Event]:
    """The events of a training."""
    return pretrain(
        [],
        output,
        recipe="transformer-tiny",
        overrides=[*NETWORK, *overrides],
        parallel=files,
        workers=1,
        device="cpu",
    )
