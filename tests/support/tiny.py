"""A corpus in a language of its own, a recipe that takes a second, and what makes two runs the same
run."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertworks.runs.pretrain import pretrain

RECIPE = """
title = "Tiny"

[vocabulary]
size = 300

[encoder]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2
max_position_embeddings = 64

[optimizer]
learning_rate = 1e-3
warmup = 0.1

[train]
precision = "fp32"
evaluate_every = 10
save_every = 5
held_out_sequences = 16

[[train.phases]]
num_steps = 40
batch_size = 8
sequence_length = 32
"""
TIMINGS = {"tokens_per_second", "matmul_share", "memory", "seconds"}


def documents(count: int = 60, seed: int = 0) -> list[str]:
    """Some sentences each, of words of which few are frequent, as in any language."""
    draw = random.Random(seed)
    syllables = [consonant + vowel for consonant in "bdklmnprst" for vowel in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(200)]
    weights = [1 / (rank + 1) for rank in range(len(words))]

    def sentence() -> str:
        return " ".join(draw.choices(words, weights, k=draw.randint(4, 12))).capitalize() + "."

    return [" ".join(sentence() for _ in range(draw.randint(4, 9))) for _ in range(count)]


def write_corpus(path: Path, count: int = 60, seed: int = 0) -> Path:
    """A JSONL file."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents(count, seed)))
    return path


def write_recipe(path: Path, *replacements: tuple[str, str]) -> Path:
    """The recipe with some of its lines replaced."""
    text = RECIPE
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def write_pretrained(
    folder: Path, *replacements: tuple[str, str], overrides: Sequence[str] = ()
) -> Path:
    """Pre-train a tiny model in a folder; the replacements are those of its recipe."""
    recipe = write_recipe(folder / "r.toml", *replacements)
    text = write_corpus(folder / "t.jsonl")
    output = folder / "a"
    list(pretrain([text], output, recipe=str(recipe), workers=1, device="cpu", overrides=overrides))
    return output


def metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of metrics.jsonl, without what no two runs share."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMINGS} for line in lines]


def newest(folder: Path) -> Path:
    """The last checkpoint."""
    return max((folder / "checkpoints").glob("step-????????"))


def facts(folder: Path) -> dict[str, Any]:
    content = json.loads((newest(folder) / "checkpoint.json").read_text())
    assert isinstance(content["facts"].pop("seconds"), float)
    return {"step": content["step"], **content["facts"]}


def assert_same_run(first: Path, second: Path) -> None:
    """Weights, training state, figures and shards, to the last bit."""
    assert metrics(first) == metrics(second)
    assert newest(first).name == newest(second).name
    assert facts(first) == facts(second)
    for name in (
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "recipe.toml",
        "shards/tokens.bin",
    ):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    state = "state.safetensors"
    assert (newest(first) / state).read_bytes() == (newest(second) / state).read_bytes()


def leftovers(folder: Path) -> list[str]:
    """What only an unfinished run may have."""
    files = [p for p in folder.rglob("*") if p.name.endswith((".tmp", ".former", ".corrupt"))]
    return [
        str(p.relative_to(folder))
        for p in [*files, *folder.rglob("parts"), *folder.rglob("plan.json")]
    ]
