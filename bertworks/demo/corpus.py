"""The English that is already on the machine: what comes with Python and with the installed packages.

Help topics of `pydoc`, docstrings of the standard library and of every installed package, and the packages' own
descriptions. Source files are read with `ast` and never imported. One document per module or topic, in an order that
depends on names only; a sentence is kept where it appears first, so none stands both in the training and in the
held-out part. It is a corpus to try the tool on, not one to publish a model from: its licences are the packages'.
"""

import ast
import gc
import hashlib
import importlib.metadata
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bertworks.demo.prose import prose
from bertworks.text.atomic import write_text
from bertworks.text.workers import in_processes

_SKIPPED_FOLDERS = frozenset(
    "__pycache__ _vendor benchmarks idlelib lib2to3 pip setuptools site-packages test testing tests turtledemo"
    " _distutils_hack".split()
)
_HELD_OUT_SHARE = 20  # one document of this many
_FEWEST_WORDS = 30  # of a document
_LOT = 64  # files that a process reads at a time
_TRIPLE_QUOTED = re.compile(rb'"""(.{200,}?)"""', re.DOTALL)


@dataclass(frozen=True)
class DemoCorpus:
    """Where the two parts lie (JSON lines with `id` and `text`), and how much of them there is."""

    training: Path
    held_out: Path
    training_documents: int
    training_words: int
    held_out_documents: int
    held_out_words: int


def write_demo_corpus(folder: str | Path, *, workers: int = 2) -> DemoCorpus:
    """Collect the prose of this Python installation into `folder/training.jsonl` and `folder/held-out.jsonl`.

    The same installation gives the same bytes. Takes a few seconds and no network.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts: dict[bool, list[str]] = {False: [], True: []}
    words = {False: 0, True: 0}
    seen: set[str] = set()
    for name, paragraphs in _documents(workers):
        text = "\n".join(_unseen(paragraphs, seen))
        number = len(text.split())
        if number < _FEWEST_WORDS:
            continue
        held_out = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % _HELD_OUT_SHARE == 0
        parts[held_out].append(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")
        words[held_out] += number
    training, kept_aside = folder / "training.jsonl", folder / "held-out.jsonl"
    write_text(training, "".join(parts[False]))
    write_text(kept_aside, "".join(parts[True]))
    return DemoCorpus(training, kept_aside, len(parts[False]), words[False], len(parts[True]), words[True])


def _unseen(paragraphs: list[list[str]], seen: set[str]) -> Iterator[str]:
    """Paragraphs without the sentences that an earlier document, or this one, had already."""
    for sentences in paragraphs:
        fresh = []
        for sentence in sentences:
            key = re.sub(r"\W+", " ", sentence).lower()
            if key not in seen:
                seen.add(key)
                fresh.append(sentence)
        if fresh:
            yield " ".join(fresh)


def _documents(workers: int) -> Iterator[tuple[str, list[list[str]]]]:
    """Name and paragraphs of each document, in the order of names within each kind of source."""
    standard_library = Path(sysconfig.get_path("stdlib"))
    installed = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    modules = [
        *_modules(standard_library, "python"),
        *(m for root in installed for m in _modules(Path(root), "package")),
    ]
    yield from _topics(standard_library / "pydoc_data" / "topics.py")
    paths = [str(path) for _, path in modules]
    lots = (paths[n : n + _LOT] for n in range(0, len(paths), _LOT))
    ended = "a process that reads Python files ended ({how})"
    told = in_processes("bertworks.demo.corpus:lot_reader", (), lots, workers, ended=ended, fix="run it again")
    yield from zip((name for name, _ in modules), chain.from_iterable(told), strict=True)
    for distribution in sorted(importlib.metadata.distributions(), key=lambda d: d.name.lower()):
        if "Description" in distribution.metadata:
            yield f"description/{distribution.name}", prose(distribution.metadata["Description"])


def _topics(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """The help topics of `pydoc`: the module is one dictionary of strings."""
    if not path.is_file():  # some distributions put it in a package of its own
        return
    for node in ast.parse(path.read_bytes()).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Dict):
            for topic, text in sorted(ast.literal_eval(value).items()):
                yield f"topic/{topic}", prose(text)


def _modules(root: Path, kind: str) -> list[tuple[str, Path]]:
    """Name and file of every module under `root` that is not a test, a copy of another package, or an installer."""
    found = []
    for path in root.rglob("*.py"):
        inside = path.relative_to(root).with_suffix("").parts
        if _SKIPPED_FOLDERS.isdisjoint(inside) and not inside[-1].startswith("test_"):
            found.append((f"{kind}/{'.'.join(inside).removesuffix('.__init__')}", path))
    return sorted(found)


def lot_reader() -> Callable[[list[str]], list[list[list[str]]]]:
    """What a worker process does: the prose of each of some source files."""
    return lambda paths: [_module_prose(Path(path)) for path in paths]


def _module_prose(path: Path) -> list[list[str]]:
    """The prose of one source file; nothing where it is not Python that this interpreter reads."""
    source = path.read_bytes()
    if not _TRIPLE_QUOTED.search(source):  # fifty times quicker than parsing, and true of two files in three
        return []
    gc.disable()  # a syntax tree is thousands of objects and no cycle
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's code
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return [paragraph for text in _strings(tree) for paragraph in prose(text)]


def _strings(tree: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Docstrings, outermost first, and long texts handed to a call at module level, as `add_docstr(abs, "...")`."""
    documentation = ast.get_docstring(tree)
    if documentation:
        yield documentation
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _strings(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            for argument in ast.walk(node.value):
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and len(argument.value) > 200:
                    yield inspect.cleandoc(argument.value)
