"""What a person asked for, as a value: the same request in the same folder goes on, another one is refused.

Not here: how it is done (`pretrain`).
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import UsageError
from ..text.atomic import write_text
from ..text.corpus import CorpusReader
from ..text.shards import Shards
from .prepare import Documents
from .run import versions

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
CHARACTERS_PER_TOKEN = 4.2  # for estimates before there is a vocabulary


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
        """Is the input a folder that `prepare` wrote?"""
        return len(self.inputs) == 1 and (Path(self.inputs[0]) / "manifest.json").is_file()

    def shards_folder(self, output: Path) -> Path:
        """Where the token ids are, or will be."""
        return Path(self.inputs[0]) if self.is_shards else output / "shards"

    def corpus_tokens(self) -> int:
        """Of the shards; of raw text a guess by the size of its files."""
        if self.is_shards:
            return Shards.open(self.inputs[0]).manifest.tokens
        if "-" in self.inputs:
            return 10_000_000
        reader = CorpusReader(self.inputs, text_column=self.text_column, documents=self.documents)
        packed = {".gz": 2.8, ".zst": 3.0, ".xz": 3.6, ".bz2": 3.6, ".parquet": 2.0}
        size = sum(path.stat().st_size * packed.get(path.suffix, 1.0) for path in reader.files)
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
    if tokenizer and init:
        raise UsageError("a model to begin with brings its own tokenizer", fix="give --tokenizer or --init")
    if budget:
        seconds_of(budget)
    given = [str(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    names = tuple(str(Path(one).resolve()) if Path(one).exists() else one for one in given)
    if recipe and recipe.endswith(".toml") and Path(recipe).is_file():
        recipe = str(Path(recipe).resolve())
    return Request(
        names, recipe, tuple(overrides), budget or (None if recipe else "1h"), tokenizer, init, precision, seed,
        text_column, documents,
    )  # fmt: skip


def seconds_of(budget: str) -> float:
    """90s, 30m, 2h, 1d, 1h30m -> seconds."""
    total, number = 0.0, ""
    for letter in budget.strip().lower():
        if letter in UNITS and number:
            total, number = total + float(number) * UNITS[letter], ""
        elif letter.isdigit() or letter == ".":
            number += letter
        else:
            number = "?"
            break
    if number or total < 10:
        raise UsageError(f"{budget!r} is no budget", fix="write a time of 10 s or more such as 30m, 2h or 1h30m")
    return total


def claim(output: Path, request: Request, overwrite: bool) -> None:
    """Takes the folder for this request. Refused if it holds another run, or what is no run at all."""
    path = output / "run.json"
    content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(request).items()}
    if request.recipe and request.recipe.endswith(".toml") and Path(request.recipe).is_file():
        content["recipe_sha256"] = hashlib.sha256(Path(request.recipe).read_bytes()).hexdigest()
    if overwrite and path.exists():
        _clear(output)
    if path.exists():
        there = json.loads(path.read_text(encoding="utf-8"))["request"]
        differing = [name for name in content if content[name] != there.get(name)]
        if differing:
            lines = "".join(f"\n  {n}: {there.get(n)!r} there, {content[n]!r} now" for n in differing)
            raise UsageError(
                f"the folder holds a run with other settings:{lines}",
                where=str(output),
                fix="-o ANOTHER-FOLDER keeps both; --overwrite deletes the run that is there",
            )
        return
    strange = [p.name for p in output.iterdir() if not p.name.startswith(".")]
    if strange:
        raise UsageError(
            f"the folder is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
            where=str(output),
            fix="-o ANOTHER-FOLDER, or empty this one",
        )
    write_text(path, json.dumps({"request": content, "versions": versions()}, indent=2, ensure_ascii=False) + "\n")


def _clear(output: Path) -> None:
    for path in output.iterdir():
        if path.name.startswith("."):
            continue  # the lock that we hold
        shutil.rmtree(path) if path.is_dir() else path.unlink()
