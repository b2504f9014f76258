"""Labelled data that every machine has: paragraphs of the demo's corpus, and the library that each was written for.

Not trivial: a paragraph that names a library is left out, and train and dev come from different modules. No paragraph
stands there twice, for the corpus has no sentence twice. Not here: the corpus itself (`corpus`).
"""

import csv
import hashlib
import importlib.metadata
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from bertworks.errors import BertworksError
from bertworks.rows.writer import write_rows

MOST_LIBRARIES, FEWEST_ROWS = 8, 100
WORDS = range(12, 41)  # of a paragraph: shorter ones could be from anywhere
DEV_SHARE = 4  # one module of this many
MOST = {"train": 200, "dev": 75}  # rows of each library
COLUMNS = ("text", "library")


def write_demo_origins(corpus: Sequence[Path], folder: Path) -> None:
    """`train.csv` and `dev.csv`, with columns `text` and `library`, of the libraries with most paragraphs.

    corpus: files of `write_demo_corpus`. The same installation gives the same bytes.

    Raises:
        BertworksError: the installation has too little text of two libraries.
    """
    found = {library: _parts(texts) for library, texts in _texts(corpus).items()}
    counts = {library: min(len(rows["train"]), DEV_SHARE * len(rows["dev"])) for library, rows in found.items()}
    names = sorted((n for n in counts if counts[n] >= FEWEST_ROWS), key=lambda n: (-counts[n], n))[:MOST_LIBRARIES]
    if len(names) < 2:
        raise BertworksError(
            f"{len(names)} of the installed libraries have enough text to be told apart",
            fix="install numpy or scipy with their sources",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for part, most in MOST.items():
        chosen = [(text, name) for name in names for text in found[name][part][:most]]
        chosen.sort(key=lambda row: _number(row[0]))
        write_rows(folder / f"{part}.csv", COLUMNS, (dict(zip(COLUMNS, row, strict=True)) for row in chosen))


def read_demo_origins(folder: Path) -> list[tuple[list[str], list[str]]]:
    """Texts and libraries, of train and of dev."""
    found = []
    for part in MOST:
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found.append(([row["text"] for row in rows], [row["library"] for row in rows]))
    return found


def _texts(corpus: Sequence[Path]) -> dict[str, list[tuple[str, str]]]:
    """Library -> module and text of each paragraph that fits and names no library."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in corpus:
        with path.open(encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                kind, _, module = record["id"].partition("/")
                library = module.partition(".")[0] if kind == "package" else kind
                if kind in ("package", "python"):
                    found[library] += [(module, text) for text in record["text"].split("\n")]
    named = re.compile("|".join(map(re.escape, sorted(_names(found)))))
    return {
        library: [(m, t) for m, t in texts if len(t.split()) in WORDS and not named.search(_letters(t))]
        for library, texts in found.items()
    }


def _names(libraries: dict[str, list[tuple[str, str]]]) -> Iterator[str]:
    """What libraries are called: as they are imported and as they are installed."""
    distributions = importlib.metadata.packages_distributions()
    for library in libraries:
        for name in (library, *distributions.get(library, ())):
            first = _letters(re.split(r"[-_.]", name.strip("_"))[0])
            if len(first) >= 5:  # `rich` and `click` are words
                yield first


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _parts(texts: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The paragraphs of some modules to learn from, those of the others to judge on; each in an order by lot."""
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for module, text in sorted(texts, key=lambda row: _number(row[1])):
        parts["train" if _number(module) % DEV_SHARE else "dev"].append(text)
    return parts


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
