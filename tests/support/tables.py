"""Small files to read: raw text, tables, and a recipe of three steps."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from bertworks.text import corpus
from bertworks.text.corpus import CorpusReader
from tests.support.tiny import write_recipe

SENTENCE = (
    "the old house stands by the river and the dogs of the town know who built it in the "
    "year of the flood"
)
# Options of a fine-tuning that takes a moment.
FAST = (
    "--set",
    "epochs=1",
    "--set",
    "batch_size=8",
    "--set",
    "optimizer.learning_rate=2e-3",
    "--device",
    "cpu",
)


def write_text(path: str | Path, documents: int = 12) -> Path:
    """Write raw text of several documents, of which no two are equal."""
    path = Path(path)
    words = SENTENCE.split()
    lines = [
        " ".join([*words[n % 7 :], *words[: n % 5]]).capitalize() + "."
        for n in range(documents * 4)
    ]
    path.write_text(
        "\n\n".join("\n".join(lines[n : n + 4]) for n in range(0, len(lines), 4)) + "\n"
    )
    return path


def write_table(path: str | Path, *rows: tuple[Any, ...]) -> Path:
    """Write a csv file; the first row has the names of the columns."""
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return Path(path)


def write_records(path: str | Path, *rows: dict[str, Any]) -> Path:
    """Write a file of JSON lines."""
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path(path)


def read_table(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def short(*replacements: tuple[str, str]) -> list[str]:
    """Return the options of a pre-training that takes a moment."""
    recipe = write_recipe(Path("tiny.toml"), ("num_steps = 40", "num_steps = 3"), *replacements)
    return ["--recipe", str(recipe), "--device", "cpu", "--workers", "1"]


def seven_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CorpusReader:
    """Return the reader of a folder of seven files, the n-th with n documents, in small groups."""
    monkeypatch.setattr(corpus, "_GROUP", 100)
    texts = folder / "texts"
    texts.mkdir()
    for number in range(7):
        lines = [json.dumps({"text": f"Text {number} of {row}."}) for row in range(number)]
        (texts / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return CorpusReader([texts])
