"""What a person asked for, as a value: the same request in the same folder goes on, another one is refused.

Not here: how it is done (`pretrain`).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertworks.errors import UsageError
from bertworks.files.names import is_name
from bertworks.runs.claims import absolute
from bertworks.runs.prepare import Documents, read_text
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import Shards, holds_shards

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
CHARACTERS_PER_TOKEN = 4.2  # for estimates before there is a vocabulary
PACKED = {".gz": 2.8, ".zst": 3.0, ".xz": 3.6, ".bz2": 3.6, ".parquet": 2.0}  # characters per byte, about


@dataclass(frozen=True)
class Request:
    """What a person asked for: the same request in the same folder goes on, another is refused."""

    inputs: tuple[str, ...]
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    budget: str | None = None
    tokenizer: str | None = None
    init: str | None = None
    precision: str | None = None
    seed: int | None = None
    text_column: str | None = None
    documents: Documents = "auto"

    @property
    def is_shards(self) -> bool:
        """Is the input a folder that `prepare` wrote, or began to write?"""
        return len(self.inputs) == 1 and holds_shards(self.inputs[0])

    def shards_folder(self, output: Path) -> Path:
        """Where the token ids are, or will be."""
        return Path(self.inputs[0]) if self.is_shards else output / "shards"

    @property
    def paths(self) -> tuple[str, ...]:
        """What is read, and must not lie in what is written."""
        return tuple(filter(None, (*self.inputs, self.tokenizer, self.init)))

    def content(self) -> dict[str, Any]:
        """The request as JSON holds it, and the hashes of what it names."""
        content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        if self.recipe and self.recipe.endswith(".toml") and Path(self.recipe).is_file():
            content["recipe_sha256"] = hashlib.sha256(Path(self.recipe).read_bytes()).hexdigest()
        if self.is_shards and (manifest := Path(self.inputs[0]) / "manifest.json").is_file():
            content["shards_sha256"] = hashlib.sha256(manifest.read_bytes()).hexdigest()
        return content

    def reader(self) -> CorpusReader:
        """Of the raw text. Standard input is read into a temporary file here, and only once.

        Raises:
            BertworksError: an input names nothing that can be read.
        """
        return read_text(self.inputs, self.text_column, self.documents)


def corpus_tokens(corpus: CorpusReader | Shards) -> int:
    """Of shards, their number; of raw text, a guess by the size of its files."""
    if isinstance(corpus, Shards):
        return corpus.manifest.tokens
    size = sum(path.stat().st_size * PACKED.get(path.suffix, 1.0) for path in corpus.files)
    return int(size / CHARACTERS_PER_TOKEN)


def make_request(
    inputs: Sequence[str | Path],
    recipe: str | None,
    overrides: Sequence[str],
    budget: str | None,
    tokenizer: str | None,
    init: str | None,
    precision: str | None,
    seed: int | None,
    text_column: str | None,
    documents: Documents,
) -> Request:
    """The request as typed, with paths that mean the same from every folder.

    Raises:
        UsageError: options that contradict one another, or a budget that is none.
    """
    if not inputs:
        raise UsageError("no input was given", fix="name files, folders, a glob in quotes, or - for standard input")
    if tokenizer and init:
        raise UsageError("a model to begin with brings its own tokenizer", fix="give --tokenizer or --init")
    if budget:
        seconds_of(budget)
    if recipe and recipe.endswith(".toml"):
        recipe = absolute(recipe)
    if init and not is_name(init):
        init = absolute(init)
    given = [inputs] if isinstance(inputs, str | Path) else inputs
    return Request(
        tuple(absolute(one) for one in given), recipe, tuple(overrides), budget or (None if recipe else "1h"),
        tokenizer and absolute(tokenizer), init, precision, seed, text_column, documents,
    )  # fmt: skip


def seconds_of(budget: str) -> float:
    """90s, 30m, 2h, 1d, 1h30m -> seconds."""
    words = re.fullmatch(r"(\d+(\.\d+)?[smhd])+", budget.strip().lower(), re.ASCII)
    parts = re.findall(r"([\d.]+)([smhd])", words[0]) if words else []
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not 10 <= total < 1e9:
        raise UsageError(f"{budget!r} is no budget", fix="write a time of 10 s or more such as 30m, 2h or 1h30m")
    return total
