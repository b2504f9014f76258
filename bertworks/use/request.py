"""What a person asked for, as a value: the same request in the same folder goes on, another one is refused.

Not here: how it is done (`pretrain`).
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..text.atomic import write_text
from ..text.corpus import CorpusReader
from ..text.shards import Shards
from .prepare import Documents
from .run import versions

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
CHARACTERS_PER_TOKEN = 4.2  # for estimates before there is a vocabulary
PACKED = {".gz": 2.8, ".zst": 3.0, ".xz": 3.6, ".bz2": 3.6, ".parquet": 2.0}  # characters per byte, about
FILES = (  # of a run folder, besides run.json
    "recipe.toml", "metrics.jsonl", "report.html", "config.json", "model.safetensors", "README.md", "vocab.txt",
    "special_tokens_map.json", "tokenizer_config.json", "tokenizer.json",
)  # fmt: skip
FOLDERS = ("checkpoints", "plans", "shards", "tokenizer")


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
        folder = Path(self.inputs[0]) if len(self.inputs) == 1 else None
        return folder is not None and any((folder / name).is_file() for name in ("manifest.json", "plan.json"))

    def shards_folder(self, output: Path) -> Path:
        """Where the token ids are, or will be."""
        return Path(self.inputs[0]) if self.is_shards else output / "shards"

    def reader(self) -> CorpusReader:
        """Of the raw text. Standard input is read into a temporary file here, and only once.

        Raises:
            BertworksError: an input names nothing that can be read.
        """
        return CorpusReader(self.inputs, text_column=self.text_column, documents=self.documents)


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
        recipe = _absolute(recipe)
    given = [inputs] if isinstance(inputs, str | Path) else inputs
    return Request(
        tuple(_absolute(one) for one in given), recipe, tuple(overrides), budget or (None if recipe else "1h"),
        tokenizer and _absolute(tokenizer), init and _absolute(init), precision, seed, text_column, documents,
    )  # fmt: skip


def _absolute(path: str | Path) -> str:
    """A path or a glob that means the same from every folder; "-" is standard input."""
    return str(path) if str(path) == "-" else os.path.abspath(Path(path).expanduser())  # noqa: PTH100 - it keeps links


def seconds_of(budget: str) -> float:
    """90s, 30m, 2h, 1d, 1h30m -> seconds."""
    words = re.fullmatch(r"(\d+(\.\d+)?[smhd])+", budget.strip().lower(), re.ASCII)
    parts = re.findall(r"([\d.]+)([smhd])", words[0]) if words else []
    total = sum(float(number) * UNITS[unit] for number, unit in parts)
    if not 10 <= total < 1e9:
        raise UsageError(f"{budget!r} is no budget", fix="write a time of 10 s or more such as 30m, 2h or 1h30m")
    return total


def refuse_nested(output: Path, request: Request) -> None:
    """What is read must not change because of what is written.

    Raises:
        UsageError: the folder holds what is to be read, or lies within the corpus.
    """
    target = output.resolve()
    for one in filter(None, (*request.inputs, request.tokenizer, request.init)):
        path = Path(one).resolve()
        if target in (path, *path.parents):
            raise UsageError(
                f"the output folder holds what is to be read: {one}", where=str(output), fix="-o ANOTHER-FOLDER"
            )
        if one in request.inputs and one != "-" and path.is_dir() and path in target.parents:
            raise UsageError(
                f"the output folder lies in the folder that is read, {one}: the model's files would become its text",
                where=str(output),
                fix="-o A-FOLDER-ELSEWHERE",
            )


def refuse_other(output: Path, request: Request) -> bool:
    """Whether the folder holds this very request already; False: it is free.

    Raises:
        UsageError: it holds another run, or what is no run at all.
    """
    path = output / "run.json"
    if path.exists():
        there, now = _asked(path), _content(request)
        if differing := [name for name in now if there.get(name) != now[name]]:
            lines = "".join(f"\n  {name}: {_shown(there, name)} there, {_shown(now, name)} now" for name in differing)
            raise UsageError(
                f"the folder holds a run with other settings:{lines}",
                where=str(output),
                fix="-o ANOTHER-FOLDER keeps both; --overwrite deletes the run that is there",
            )
        return True
    strange = [p.name for p in output.iterdir() if not p.name.startswith(".")] if output.is_dir() else []
    if strange:
        raise UsageError(
            f"the folder is not empty and holds no run: {', '.join(sorted(strange)[:5])}",
            where=str(output),
            fix="-o ANOTHER-FOLDER, or empty this one",
        )
    return False


def claim(output: Path, request: Request) -> None:
    """Writes the request down, in a folder that `refuse_other` called free or that `clear` made so."""
    content = {"request": _content(request), "versions": versions()}
    write_text(output / "run.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def clear(output: Path) -> bool:
    """Deletes the run in a folder and nothing else; False: there is none. Its run.json stays until the next request
    replaces it: what a killed process leaves can so be deleted again."""
    if not (output / "run.json").exists():
        return False
    for name in FOLDERS:
        shutil.rmtree(output / name, ignore_errors=True)
    for name in FILES:
        (output / name).unlink(missing_ok=True)
    return True


def _content(request: Request) -> dict[str, Any]:
    """The request as JSON holds it, and the hashes of what it names."""
    content = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(request).items()}
    if request.recipe and request.recipe.endswith(".toml") and Path(request.recipe).is_file():
        content["recipe_sha256"] = hashlib.sha256(Path(request.recipe).read_bytes()).hexdigest()
    if request.is_shards and (manifest := Path(request.inputs[0]) / "manifest.json").is_file():
        content["shards_sha256"] = hashlib.sha256(manifest.read_bytes()).hexdigest()
    return content


def _asked(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["request"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            "this is not what a run writes about itself",
            where=str(path),
            fix="-o ANOTHER-FOLDER; or --overwrite, which deletes the run that is there",
        ) from None


def _shown(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return f"{value[:12]}..." if name.endswith("sha256") and value else repr(value)
