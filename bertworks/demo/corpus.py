"""English text from the installed Python: a corpus and a labelled data set for the demo.

- `prose`: docstrings and README files (reStructuredText, NumPy and Google sections, Markdown) -> English sentences.
  Markup, signatures, code and tables are removed; what is uncertain is left out.
- `write_demo_corpus`: help topics of `pydoc`, docstrings of the standard library and of installed packages, and package
  descriptions. Source files are parsed with `ast`, never imported.
- `write_demo_origins`: paragraphs, labelled with the library that they come from.
"""

import ast
import gc
import hashlib
import importlib.metadata
import inspect
import re
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from bertworks.datasets.reader import RowReader
from bertworks.datasets.writer import write_rows
from bertworks.errors import BertworksError
from bertworks.io.processes import in_processes
from bertworks.text.segmentation import split_sentences

_DROPPED_SECTIONS = frozenset(
    "args arguments attributes call class code credits copyright example examples fields functions glossary inputs"
    " keyword keywords kwargs license methods optional options other outputs parameter parameters params properties"
    " raises raise reference references return returns see shape signature todo todos type usage variables warns"
    " yield yields".split()
)
_KEPT_DIRECTIVES = frozenset("note warning important tip caution attention hint admonition topic rubric".split())

_UNDERLINE = re.compile(r"^\s*([=\-~^\"'`#*+])\1{2,}\s*$")
_SECTION = re.compile(r"^(\s*)([A-Z][A-Za-z]+)( [A-Za-z]+){0,2}:{1,2}\s*$")
_DIRECTIVE = re.compile(r"^(\s*)\.\. *([\w:-]*?)::\s*(.*)$")
_FIELD = re.compile(r"^\s*(:[A-Za-z][^:`]*:|@(param|return|type|rtype|raise)\b)(?!`)")
_BULLET = re.compile(r"^(\s*)([-*+•]|\(?[0-9a-zA-Z][.)])\s+(?=\S)")
_TABLE = re.compile(r"\||^\s*\+[-=+]+\+?\s*$|^\s*[=-]{2,}(\s+[=-]{2,})+\s*$")

_INLINE = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),  # Markdown picture
    (re.compile(r"\[([^\]]*)\]\([^)]*\)"), r"\1"),  # Markdown link
    (re.compile(r":math:`[^`]*`"), "{}"),  # is_sentence refuses braces
    (re.compile(r":[\w:+-]+:`~[^`]*?([^`.]+)`"), r"\1"),  # role with a shortened target
    (re.compile(r":[\w:+-]+:`([^`<]+?)\s*<[^`]*`"), r"\1"),  # role with a title
    (re.compile(r":[\w:+-]+:`([^`]*)`"), r"\1"),
    (re.compile(r"``([^`]*)``"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`]*>`_{0,2}"), r"\1"),  # reStructuredText link
    (re.compile(r"`([^`]*)`_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"\s*\[[\w#-]+\]_(?!\w)"), ""),  # footnote
    (re.compile(r'"([\w.]+)(\(\))?"'), r"\1"),  # help topics put code in quotation marks
    (re.compile(r"\b([a-zA-Z]+)\(\)"), r"\1"),
    (re.compile(r"\s+--+\s+"), " - "),
    (re.compile(r"[\u2018\u2019]"), "'"),
    (re.compile(r"[\u201c\u201d]"), '"'),
    (re.compile(r"\s+"), " "),
)

_CODE = re.compile(r"[{}<>|\\=^~@#$`_\[\]*+]|://|\w/\w|\.\.|\w(?<!\bi)(?<!\be)\.[a-z]|\(\)|\s-{1,2}\w|--")
_PLAIN = re.compile(
    r"^[\"'(]*(?:[A-Za-z]?[a-z]*(?:[-'][A-Za-z]?[a-z]+)*|[A-Z]{2,6}s?|Python|i\.e|e\.g|\d+(?:[.,]\d+)*%?)[\"')]*[.,;:!?]*[\"')]*$"
)
_FUNCTION_WORDS = frozenset(
    "a an and are as at be because been but by can do does for from had has have how if in into is it its may more must"
    " no not of on one only or other same should so such than that the their them then there these they this to under"
    " use used was we what when where whether which while who will with would you your".split()
)


def prose(text: str) -> list[list[str]]:
    """The paragraphs of `text`, each a list of whole English sentences, without markup, code and fragments."""
    paragraphs = []
    for paragraph in _paragraphs(_without_blocks(text.expandtabs().splitlines())):
        for pattern, replacement in _INLINE:
            paragraph = pattern.sub(replacement, paragraph)
        if sentences := [sentence for sentence in split_sentences(paragraph.strip()) if is_sentence(sentence)]:
            paragraphs.append(sentences)
    return paragraphs


def is_sentence(text: str) -> bool:
    """Whether `text` looks like an English sentence: a capital, an end, mostly plain words, some function words."""
    words = text.split()
    if not 5 <= len(words) <= 80 or not re.match(r"[\"'(]?[A-Z]", text) or not re.search(r"[.!?][\"')]*$", text):
        return False
    if _CODE.search(text) or text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    plain = sum(bool(_PLAIN.match(word)) for word in words)
    small = sum(word.strip("\"'(),.;:!?").lower() in _FUNCTION_WORDS for word in words)
    symbols = sum(len(word) <= 1 and word not in ("a", "A", "I", "-") for word in words)
    return plain >= 0.9 * len(words) and small >= max(2, 0.2 * len(words)) and symbols <= 1


def _without_blocks(lines: list[str]) -> Iterator[str]:
    """The lines outside code, doctests, tables, fields and the sections that list parameters."""
    block: int | None = None  # the indentation before a block that is skipped
    in_fence = in_dropped_section = in_doctest = False
    for line, following in zip(lines, [*lines[1:], ""]):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if stripped.startswith(("```", "~~~")):
            in_fence = not in_fence
            continue
        if in_fence or (stripped and block is not None and indent > block):
            continue
        kept = ""
        section, directive = _SECTION.match(line), _DIRECTIVE.match(line)
        if not stripped:
            in_doctest = False
            yield ""
            continue
        block = None
        if _UNDERLINE.match(following) and not _UNDERLINE.match(line):
            in_dropped_section = stripped.split()[0].lower().rstrip(":") in _DROPPED_SECTIONS
            yield ""
            continue
        in_doctest = in_doctest or stripped.startswith((">>>", "In [", "$ ", "% "))
        if in_dropped_section or in_doctest or _UNDERLINE.match(line) or _TABLE.search(line) or stripped[0] in "#<@":
            pass
        elif directive and directive[2] in _KEPT_DIRECTIVES:
            kept = directive[1] + directive[3]
        elif stripped.startswith("..") or _FIELD.match(line) or (section and section[2].lower() in _DROPPED_SECTIONS):
            block = indent  # also comments and the texts of footnotes
        else:
            block = indent if stripped.endswith("::") else None
            kept = f"{line}\n" if section else line
        yield from kept.split("\n")


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Hard-wrapped lines joined. A paragraph ends at a blank line, a bullet, or a change of indentation."""
    current: list[str] = []
    margin = 0
    hanging = False  # a list item may continue in deeper lines
    for line in lines:
        bullet = _BULLET.match(line)
        indent = len(line) - len(line.lstrip())
        continues = bool(line.strip()) and not bullet and (indent == margin or (hanging and indent > margin))
        if current and not continues:
            yield " ".join(current)
            current = []
        if line.strip():
            if not current or (hanging and indent > margin):
                margin, hanging = indent, not current and bullet is not None
            current.append(line[bullet.end() :] if bullet else line.strip())
    if current:
        yield " ".join(current)


_SKIPPED_FOLDERS = frozenset(
    "__pycache__ _vendor benchmarks idlelib lib2to3 pip setuptools site-packages test testing tests turtledemo"
    " _distutils_hack".split()
)
_HELD_OUT = 20  # one document of this many is held out
_MIN_WORDS = 30  # of a document
_FILES_PER_TASK = 64  # of a worker process
_TRIPLE_QUOTED = re.compile(rb'"""(.{200,}?)"""', re.DOTALL)


class DemoCorpus(NamedTuple):
    """The files of the two parts (JSON lines with `id` and `text`), and their sizes."""

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
    training, held_out = list[dict[str, str]](), list[dict[str, str]]()
    seen: set[str] = set()
    for name, paragraphs in _documents(workers):
        text = "\n".join(_unseen(paragraphs, seen))
        if len(text.split()) >= _MIN_WORDS:
            part = training if _hash(name, 4) % _HELD_OUT else held_out
            part.append({"id": name, "text": text})
    files = folder / "training.jsonl", folder / "held-out.jsonl"
    sizes = []
    for file, part in zip(files, (training, held_out)):
        sizes += [write_rows(file, ("id", "text"), part), sum(len(row["text"].split()) for row in part)]
    return DemoCorpus(*files, *sizes)


def _unseen(paragraphs: list[list[str]], seen: set[str]) -> Iterator[str]:
    """The paragraphs without the sentences that this document or an earlier one has already."""
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
    modules = _modules(standard_library, "python") + [m for root in installed for m in _modules(Path(root), "package")]
    yield from _topics(standard_library / "pydoc_data" / "topics.py")
    paths = [str(path) for _, path in modules]
    tasks = (paths[n : n + _FILES_PER_TASK] for n in range(0, len(paths), _FILES_PER_TASK))
    ended = "a process that reads Python files ended ({how})"
    results = in_processes("bertworks.demo.corpus:module_reader", (), tasks, workers, ended=ended, hint="run it again")
    yield from zip((name for name, _ in modules), chain.from_iterable(results), strict=True)
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
    """Name and file of every module in `root` that is not a test, a copy of another package, or an installer."""
    modules = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if _SKIPPED_FOLDERS.isdisjoint(parts) and not parts[-1].startswith("test_"):
            modules.append((f"{kind}/{'.'.join(parts).removesuffix('.__init__')}", path))
    return sorted(modules)


def module_reader() -> Callable[[list[str]], list[list[list[str]]]]:
    """The work of a worker process: the prose of some source files."""
    return lambda paths: [_module_prose(Path(path)) for path in paths]


def _module_prose(path: Path) -> list[list[str]]:
    """The prose of one source file; none if this interpreter cannot parse it."""
    source = path.read_bytes()
    if not _TRIPLE_QUOTED.search(source):  # fifty times faster than parsing, and two files in three have none
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
    """Docstrings, outermost first, and long strings in calls at module level, as in `add_docstr(abs, "...")`."""
    if documentation := ast.get_docstring(tree):
        yield documentation
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _strings(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            for argument in ast.walk(node.value):
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str) and len(argument.value) > 200:
                    yield inspect.cleandoc(argument.value)


MAX_LIBRARIES, MIN_ROWS = 8, 100
WORDS = range(12, 41)  # of a paragraph: shorter ones could be from any library
DEV_FRACTION = 4  # one module of this many is in dev
MAX_ROWS = {"train": 200, "dev": 75}  # of each library
COLUMNS = ("text", "library")


def write_demo_origins(corpus: Sequence[Path], folder: Path) -> None:
    """Write `train.csv` and `dev.csv`, with columns `text` and `library`, of the libraries with the most paragraphs.

    corpus: files of `write_demo_corpus`. The same installation gives the same bytes.

    Raises:
        BertworksError: fewer than two libraries have enough text.
    """
    parts = {library: _parts(texts) for library, texts in _texts(corpus).items()}
    counts = {library: min(len(rows["train"]), DEV_FRACTION * len(rows["dev"])) for library, rows in parts.items()}
    names = sorted((n for n in counts if counts[n] >= MIN_ROWS), key=lambda n: (-counts[n], n))[:MAX_LIBRARIES]
    if len(names) < 2:
        what = f"only {len(names)} of the installed libraries have enough text"
        raise BertworksError(what, hint="install numpy or scipy with their sources")
    folder.mkdir(parents=True, exist_ok=True)
    for part, most in MAX_ROWS.items():
        rows = [{"text": text, "library": name} for name in names for text in parts[name][part][:most]]
        write_rows(folder / f"{part}.csv", COLUMNS, sorted(rows, key=lambda row: _hash(row["text"])))


def read_demo_origins(folder: Path) -> list[tuple[list[str], list[str]]]:
    """Texts and libraries, of train and of dev."""
    parts = []
    for part in MAX_ROWS:
        rows = [row.values for row in RowReader(folder / f"{part}.csv", header=True)]
        parts.append(([row["text"] for row in rows], [row["library"] for row in rows]))
    return parts


def _texts(corpus: Sequence[Path]) -> dict[str, list[tuple[str, str]]]:
    """Library -> module and text of each paragraph of a fitting length that names no library."""
    texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for record, *_ in chain.from_iterable(map(RowReader, corpus)):
        kind, _, module = record["id"].partition("/")
        library = module.partition(".")[0] if kind == "package" else kind
        if kind in ("package", "python"):
            texts[library] += [(module, text) for text in record["text"].split("\n")]
    names = re.compile("|".join(map(re.escape, sorted(_names(texts)))))
    return {
        library: [(m, t) for m, t in rows if len(t.split()) in WORDS and not names.search(_letters(t))]
        for library, rows in texts.items()
    }


def _names(libraries: Iterable[str]) -> Iterator[str]:
    """The names of libraries, as they are imported and as they are installed."""
    distributions = importlib.metadata.packages_distributions()
    for library in libraries:
        for name in (library, *distributions.get(library, ())):
            first = _letters(re.split(r"[-_.]", name.strip("_"))[0])
            if len(first) >= 5:  # `rich` and `click` are words
                yield first


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _parts(texts: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The paragraphs of most modules for train, those of the others for dev; both in random order."""
    parts: dict[str, list[str]] = {"train": [], "dev": []}
    for module, text in sorted(texts, key=lambda row: _hash(row[1])):
        parts["train" if _hash(module) % DEV_FRACTION else "dev"].append(text)
    return parts


def _hash(text: str, size: int = 8) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big")
