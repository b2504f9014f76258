"""Paragraphs and their libraries: what is taken, what is left out, and that nothing leaks from
train to dev."""

import csv
import json
from pathlib import Path

import pytest

from bertworks.demo import corpus as demo_origins
from bertworks.demo.corpus import MAX_ROWS, write_demo_origins
from bertworks.errors import BertworksError

# modules
LIBRARIES = {
    "package/alphabet": 400,
    "package/beta_ray": 200,
    "python/gamma": 100,
    "package/small": 2,
}
FILLER = "is what the value of this option decides on when it is set"


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Six paragraphs in each module: three fit, two name a library, one is too short."""
    names = {"alphabet": ["alphabet"], "beta_ray": ["electron-tools"], "small": ["small"]}
    monkeypatch.setattr(demo_origins.importlib.metadata, "packages_distributions", lambda: names)
    records = []
    for library, count in LIBRARIES.items():
        for module in range(count):
            name = f"{library}.m{module}"
            # by which a paragraph is known, and which is no library's name
            mark = f"{name[8:11]}{module}"
            texts = [f"{mark} {number} {FILLER}." for number in range(3)]
            texts += [
                f"Alpha-Bet's {mark} {FILLER}.",
                f"Electron tools {mark} {FILLER}.",
                "Too short.",
            ]
            records.append({"id": name, "text": "\n".join(texts)})
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path, part in zip(paths, (records[::2], records[1::2]), strict=True):
        path.write_text("".join(json.dumps(record) + "\n" for record in part))
    return paths


def read(folder: Path) -> list[tuple[list[str], list[str]]]:
    """Texts and libraries, of train and of dev."""
    parts = []
    for part in MAX_ROWS:
        with (folder / f"{part}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        parts.append(([row["text"] for row in rows], [row["library"] for row in rows]))
    return parts


def test_libraries_have_the_same_share_and_are_not_named(corpus: list[Path], tmp_path: Path):
    write_demo_origins(corpus, tmp_path / "out")
    for (texts, libraries), most in zip(read(tmp_path / "out"), MAX_ROWS.values(), strict=True):
        counts = {library: libraries.count(library) for library in libraries}
        assert counts.keys() == {"alphabet", "beta_ray", "python"}, "a small one"
        assert counts["alphabet"] == most
        assert all(
            "lpha" not in text and "lectron" not in text and len(text.split()) > 2 for text in texts
        )


def test_train_and_dev_are_of_other_modules(corpus: list[Path], tmp_path: Path):
    write_demo_origins(corpus, tmp_path / "out")
    modules = [
        {(library, text.split()[0]) for text, library in zip(*part, strict=True)}
        for part in read(tmp_path / "out")
    ]
    assert not modules[0] & modules[1]
    assert len(modules[1]) > 30


def test_the_same_corpus_gives_the_same_bytes(corpus: list[Path], tmp_path: Path):
    for name in ("one", "two"):
        write_demo_origins(corpus, tmp_path / name)
    for file in ("train.csv", "dev.csv"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    with (tmp_path / "one" / "dev.csv").open(newline="") as file:
        libraries = [row["library"] for row in csv.DictReader(file)]
    assert libraries != sorted(libraries), "in random order"


def test_one_library_is_too_few(corpus: list[Path], tmp_path: Path):
    lines = [
        line for path in corpus for line in path.read_text().splitlines() if "alphabet" in line
    ]
    corpus[0].write_text("\n".join(lines) + "\n")
    with pytest.raises(BertworksError, match="only 1 of the installed libraries"):
        write_demo_origins(corpus[:1], tmp_path / "out")
    assert not (tmp_path / "out").exists()
