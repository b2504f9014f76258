"""English text from the installed Python: a corpus and a labelled data set for the demo.

- `prose`: docstrings and README files (reStructuredText, Markdown) -> English sentences without
  markup. Sentences that look like code, tables or fragments are left out.
- `write_demo_corpus`: texts in the sources of the standard library and of installed packages.
  Sources are read as text, never imported.
- `write_demo_origins`: paragraphs, labelled with the library that they come from.
"""

import hashlib
import importlib.metadata
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from bertworks.datasets.reader import RowReader
from bertworks.errors import require
from bertworks.io.file_job import write_rows
from bertworks.text.segmentation import split_sentences

# a blank line, a field, a list item, a heading
_BLOCK_END = re.compile(r"\n\s*(?:\n|(?=:)|[-*•] )|:[ \t]*\n")
_MARKUP = (
    (re.compile(r"!?\[([^\]]*)\]\([^)]*\)"), r"\1"),  # Markdown link
    (re.compile(r":[\w:+-]+:`~[^`]*?([^`.]+)`"), r"\1"),  # role with a shortened target
    # code, role, reStructuredText link
    (re.compile(r"(?::[\w:+-]+:)?`+([^`<]+?)(?:\s*<[^`]*)?`+_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*{1,2}([^*\s][^*]*)\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\b([a-zA-Z]+)\(\)"), r"\1"),
)
_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")  # quotation marks

_WHOLE = re.compile(r"[\"'(]?[A-Z].*[.!?][\"')]*")
_CODE = re.compile(
    r"[{}<>|\\=^~@#$`_\[\]*+]|://|\w/\w|\.\.|\w(?<!\bi)(?<!\be)\.[a-z]|\(\)|\s-{1,2}\w|--"
)
_PLAIN = re.compile(
    r"^[\"'(]*(?:[A-Za-z]?[a-z]*(?:[-'][A-Za-z]?[a-z]+)*|[A-Z]{2,6}s?|Python|i\.e|e\.g|\d+(?:[.,]\d+)*%?)[\"')]*[.,;:!?]*[\"')]*$"
)
_MIN_SENTENCE = 5  # words
_NO_WORD = re.compile(r"\W+")


def prose(text: str, seen: set[str]) -> Iterator[str]:
    """Yield the paragraphs of a text: whole English sentences without markup and code.

    seen: sentences, without punctuation, that are left out; those of this text are added.
    """
    for block in _BLOCK_END.split(text):
        words = block.split()
        if len(words) < _MIN_SENTENCE:
            continue
        paragraph = " ".join(words).translate(_STRAIGHT)
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        sentences = []
        for sentence in split_sentences(paragraph):
            if not is_sentence(sentence):
                continue
            words_only = _NO_WORD.sub(" ", sentence).lower()
            if words_only not in seen:
                seen.add(words_only)
                sentences.append(sentence)
        if sentences:
            yield " ".join(sentences)


def is_sentence(text: str) -> bool:
    """Return whether `text` looks like an English sentence.

    It has a capital, an end, mostly plain words and some function words.
    """
    words = text.split()
    if not (_MIN_SENTENCE <= len(words) <= 80 and _WHOLE.fullmatch(text)) or _CODE.search(text):
        return False
    if text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    plain = sum(bool(_PLAIN.match(word)) for word in words)
    small = sum(word.strip("\"'(),.;:!?").lower() in ENGLISH_STOP_WORDS for word in words)
    symbols = sum(len(word) <= 1 and word not in ("a", "A", "I", "-") for word in words)
    return plain >= 0.9 * len(words) and small >= max(2, 0.2 * len(words)) and symbols <= 1


_SKIPPED_FOLDERS = frozenset(
    "__pycache__ _vendor benchmarks idlelib lib2to3 pip setuptools site-packages test testing "
    "tests turtledemo _distutils_hack".split()
)
_HELD_OUT = 20  # one document of this many is held out
_MIN_WORDS = 30  # of a document
_TRIPLE_QUOTED = re.compile(r'("""|\'\'\')(.{40,}?)\1', re.DOTALL)


def write_demo_corpus(folder: Path) -> list[tuple[int, int]]:
    """Write the prose of this Python installation, and return its numbers of documents and words.

    The files are `folder/training.jsonl` and `folder/held-out.jsonl`, with `id` and `text`; the
    numbers are those of both files.

    The same installation gives the same bytes. Takes some seconds and no network.
    """
    parts: dict[str, list[dict[str, str]]] = {"training": [], "held-out": []}
    seen = set[str]()
    for name, content in _documents():
        text = "\n".join(prose(content, seen))
        if len(text.split()) >= _MIN_WORDS:
            part = "training" if _hash(name) % _HELD_OUT else "held-out"
            parts[part].append({"id": name, "text": text})
    for part, rows in parts.items():
        write_rows(folder / f"{part}.jsonl", ("id", "text"), rows)
    return [(len(rows), sum(len(row["text"].split()) for row in rows)) for rows in parts.values()]


def _documents() -> Iterator[tuple[str, str]]:
    """Yield the name and the triple-quoted strings of every module of prose.

    Modules of tests, of installers and copies of other packages are left out. The order is that of
    the names within each folder of packages.
    """
    packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    for kind, root in [
        ("python", sysconfig.get_path("stdlib")),
        *(("package", root) for root in packages),
    ]:
        for path in sorted(Path(root).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if _SKIPPED_FOLDERS.isdisjoint(parts) and not parts[-1].startswith("test_"):
                strings = _TRIPLE_QUOTED.findall(path.read_text(encoding="utf-8", errors="ignore"))
                yield (
                    f"{kind}/{'.'.join(parts).removesuffix('.__init__')}",
                    "\n\n".join(text for _, text in strings),
                )


MAX_LIBRARIES = 8
MIN_ROWS = 100
WORDS = range(12, 41)  # of a paragraph: shorter ones could be from any library
DEV_FRACTION = 4  # one module of this many is in dev
MAX_ROWS = {"train": 200, "dev": 75}  # of each library


def write_demo_origins(corpus: Sequence[Path], folder: Path) -> None:
    """Write `train.csv` and `dev.csv`, with columns `text` and `library`.

    They hold paragraphs of the libraries that have most of them.

    corpus: files of `write_demo_corpus`. The same installation gives the same bytes.

    Raises:
        BertworksError: fewer than two libraries have enough text.
    """
    texts = _texts(corpus)
    counts = {
        library: min(len(parts["train"]), DEV_FRACTION * len(parts["dev"]))
        for library, parts in texts.items()
    }
    names = sorted((n for n in counts if counts[n] >= MIN_ROWS), key=lambda n: (-counts[n], n))[
        :MAX_LIBRARIES
    ]
    require(
        len(names) >= 2,
        f"only {len(names)} of the installed libraries have enough text",
        "",
        "install numpy or scipy with their sources",
    )
    folder.mkdir(parents=True, exist_ok=True)
    for part, most in MAX_ROWS.items():
        rows = [
            {"text": t, "library": name}
            for name in names
            for t in sorted(texts[name][part], key=_hash)[:most]
        ]
        write_rows(
            folder / f"{part}.csv",
            ("text", "library"),
            sorted(rows, key=lambda row: _hash(row["text"])),
        )


def _texts(corpus: Iterable[Path]) -> Mapping[str, dict[str, list[str]]]:
    """Library -> "train" and "dev" -> paragraphs of a fitting length that name no library.

    The paragraphs of a module are all in one part.
    """
    distributions = importlib.metadata.packages_distributions()
    known = set(
        map(_letters, ("python", *distributions, *chain.from_iterable(distributions.values())))
    )
    # `rich` is also a word
    names = re.compile("|".join(sorted(name for name in known if len(name) >= 5)))
    texts: dict[str, dict[str, list[str]]] = defaultdict(lambda: {"train": [], "dev": []})
    for row, *_ in chain.from_iterable(map(RowReader, corpus)):
        kind, _, module = row["id"].partition("/")
        library = module.partition(".")[0] if kind == "package" else kind
        part = "train" if _hash(module) % DEV_FRACTION else "dev"
        paragraphs = (text for text in row["text"].split("\n") if len(text.split()) in WORDS)
        texts[library][part] += [text for text in paragraphs if not names.search(_letters(text))]
    return texts


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
