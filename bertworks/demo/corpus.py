"""English text that is on the machine: a corpus and a labelled data set for the demo.

- `prose`: docstrings and README files (reStructuredText, NumPy and Google sections, Markdown) -> English sentences.
  Markup, signatures, code and tables are removed; what is uncertain is left out.
- `write_demo_corpus`: help topics of `pydoc`, docstrings of the standard library and of installed packages, and package
  descriptions. Source files are parsed with `ast`, never imported.
- `write_demo_origins`: paragraphs, labelled with the library that they come from.
"""

import ast
import csv
import gc
import hashlib
import importlib.metadata
import inspect
import json
import re
import sysconfig
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bertworks.datasets.writer import write_rows
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import write_text
from bertworks.io.workers import in_processes
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
    (re.compile(r":math:`[^`]*`"), "{}"),  # braces make the sentence fail the test of prose below
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
    """Paragraphs of `text`, each a list of whole English sentences; markup, code and fragments are gone."""
    kept = []
    for paragraph in _paragraphs(_without_blocks(text.expandtabs().splitlines())):
        sentences = [sentence for sentence in split_sentences(_without_markup(paragraph)) if is_sentence(sentence)]
        if sentences:
            kept.append(sentences)
    return kept


def is_sentence(text: str) -> bool:
    """Whether `text` reads as an English sentence: a capital, an end, mostly plain words, and small words between."""
    words = text.split()
    if not 5 <= len(words) <= 80 or not re.match(r"[\"'(]?[A-Z]", text) or not re.search(r"[.!?][\"')]*$", text):
        return False
    if _CODE.search(text) or text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    plain = sum(bool(_PLAIN.match(word)) for word in words)
    small = sum(word.strip("\"'(),.;:!?").lower() in _FUNCTION_WORDS for word in words)
    letters = sum(len(word) <= 1 and word not in ("a", "A", "I", "-") for word in words)
    return plain >= 0.9 * len(words) and small >= max(2, 0.2 * len(words)) and letters <= 1


def _without_blocks(lines: list[str]) -> Iterator[str]:
    """The lines outside code, doctests, tables, fields and the sections that list parameters."""
    skip_deeper_than: int | None = None  # inside a block that ends where the indentation comes back
    in_fence = in_dropped_section = in_doctest = False
    for number, line in enumerate(lines):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if stripped.startswith(("```", "~~~")):
            in_fence = not in_fence
            continue
        if in_fence:
            continue
        if not stripped:
            in_doctest = False
            yield ""
            continue
        if skip_deeper_than is not None:
            if indent > skip_deeper_than:
                continue
            skip_deeper_than = None
        if _UNDERLINE.match(following) and not _UNDERLINE.match(line):
            in_dropped_section = stripped.split()[0].lower().rstrip(":") in _DROPPED_SECTIONS
            yield ""
            continue
        in_doctest = in_doctest or stripped.startswith((">>>", "In [", "$ ", "% "))
        if in_dropped_section or in_doctest or _UNDERLINE.match(line) or _TABLE.search(line) or stripped[0] in "#<@":
            yield ""
            continue
        if _FIELD.match(line):
            skip_deeper_than = indent
            yield ""
            continue
        section, directive = _SECTION.match(line), _DIRECTIVE.match(line)
        if section and section[2].lower() in _DROPPED_SECTIONS:
            skip_deeper_than = indent
            yield ""
        elif directive:
            if directive[2] in _KEPT_DIRECTIVES:
                yield directive[1] + directive[3]
            else:
                skip_deeper_than = indent
                yield ""
        elif stripped.startswith(".."):  # a comment or a footnote's text
            skip_deeper_than = indent
            yield ""
        else:
            if stripped.endswith("::"):
                skip_deeper_than = indent
            yield line
            if section:
                yield ""


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Hard-wrapped lines joined: a paragraph ends at a blank line, a bullet, or a change of indentation."""
    current: list[str] = []
    margin = 0
    hanging = False  # a list item goes on in deeper lines
    for line in lines:
        bullet = _BULLET.match(line)
        indent = len(line) - len(line.lstrip())
        goes_on = bool(line.strip()) and not bullet and (indent == margin or (hanging and indent > margin))
        if current and not goes_on:
            yield " ".join(current)
            current = []
        if not line.strip():
            continue
        if not current:
            margin, hanging = indent, bullet is not None
        elif hanging and indent > margin:
            margin, hanging = indent, False
        current.append(line[bullet.end() :] if bullet else line.strip())
    if current:
        yield " ".join(current)


def _without_markup(text: str) -> str:
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text.strip()


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
    told = in_processes("bertworks.demo.corpus:lot_reader", (), lots, workers, ended=ended, hint="run it again")
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
            hint="install numpy or scipy with their sources",
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
