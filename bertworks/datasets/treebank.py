"""Treebanks in CoNLL-U -> sentences with their dependency trees, each tree checked.

- `read_treebank`: a file, or a folder with train, dev and test files -> `Treebank`
- `read_trees`: one file -> `TreeSentence`
"""

import random
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from bertworks.datasets.reader import Row, RowReader
from bertworks.errors import BertworksError, require, some_names
from bertworks.io.inputs import as_path

_DEV = {"dev", "devel", "development", "valid", "validation", "val"}
# words in the names of files
_PARTS = {"train": {"train", "training"}, "dev": _DEV, "test": {"test", "testing"}}
_CELLS = 10  # of a line of CoNLL-U
_WORD = 1
_UPOS = 3
_HEAD = 6
_FEWEST = 10  # sentences of a file that is divided into parts
_REPAIR = "repair the tree, or remove the sentence"
_LAYOUT = (
    "name a .conllu file, or a folder with files such as en-train.conllu, en-dev.conllu and "
    "en-test.conllu"
)


class TreeSentence(NamedTuple):
    """A sentence of n words, each of which has one head."""

    words: tuple[str, ...]
    heads: tuple[int, ...]  # the number of the head of each word, from 0; -1 for the root
    parts_of_speech: tuple[str, ...]  # those of Universal Dependencies (UPOS)
    where: str  # "en-dev.conllu:17": the line of the first word

    @property
    def root(self) -> int:
        """The number of the word without a head."""
        return self.heads.index(-1)

    @property
    def is_punctuation(self) -> tuple[bool, ...]:
        """Whether the part of speech of each word is PUNCT."""
        return tuple(part == "PUNCT" for part in self.parts_of_speech)


class Treebank(NamedTuple):
    """The parts of a treebank.

    test is empty if there is no such file; notes: what was read, in words.
    """

    train: list[TreeSentence]
    dev: list[TreeSentence]
    test: list[TreeSentence]
    notes: list[str]


def read_treebank(path: str | Path) -> Treebank:
    """Return all sentences of a treebank.

    Args:
        path: a folder with CoNLL-U files that have train, dev and test in their names, test is
            optional; or one file, of which a random tenth each is dev and test, the same every
            time.

    Raises:
        BertworksError: no such files, no train or no dev file, a file without sentences, or a tree
            that is none.
    """
    path = as_path(path, "treebank")
    if not path.is_dir():
        return _divided(path)
    present = sorted(
        file for file in path.iterdir() if file.is_file() and ".conllu" in file.suffixes[-2:]
    )
    require(present, "there is no .conllu file in this folder", path, _LAYOUT)
    words = {file: {*re.split("[-_.]", file.name.lower())} for file in present}
    parts = {
        file: [part for part, known in _PARTS.items() if known & words[file]] for file in present
    }
    files = {part: [file for file in present if parts[file] == [part]] for part in _PARTS}
    unused = [file.name for file in present if len(parts[file]) != 1]
    for part in ("train", "dev"):
        names = some_names(file.name for file in present)
        require(
            files[part],
            f"no file has the part {part!r} in its name; there are {names}",
            path,
            _LAYOUT,
        )
    sentences = {
        part: [sentence for file in group for sentence in read_trees(file)]
        for part, group in files.items()
    }
    notes = [
        f"{part}: {', '.join(file.name for file in group)}, {len(sentences[part]):,} sentences"
        for part, group in files.items()
        if group
    ]
    if unused:
        notes.append(f"not used, as their names have no part or several: {', '.join(unused)}")
    return Treebank(sentences["train"], sentences["dev"], sentences["test"], notes)


def _divided(path: Path) -> Treebank:
    """Return the sentences of one file in three random parts."""
    sentences = list(read_trees(path))
    require(
        len(sentences) >= _FEWEST,
        f"{len(sentences)} sentences are too few to be divided into train, dev and test: "
        f"expected {_FEWEST} or more",
        path,
        _LAYOUT,
    )
    random.Random(0).shuffle(sentences)
    count = len(sentences) // 10
    train = sentences[2 * count :]
    dev = sentences[:count]
    test = sentences[count : 2 * count]
    note = (
        f"{path.name}: {len(sentences):,} sentences, a random tenth each is dev and test; "
        "sentences of one document "
    )
    return Treebank(train, dev, test, [note + "are in several parts"])


def read_trees(path: str | Path) -> Iterator[TreeSentence]:
    """Yield the sentences of a CoNLL-U file, in any compression.

    Ranges of words (1-2) and empty nodes (1.1) are no words.

    Raises:
        BertworksError: the file cannot be read or has no sentence; the lines have no heads; the
            heads of a sentence are no tree with one root. Its line is named.
    """
    reader = RowReader(path)
    require(reader.kind == "conll", "this is not a treebank in CoNLL-U", reader.name, _LAYOUT)
    row = None
    for row in reader:
        yield _tree(row)
    require(row is not None, "the file has no sentence", reader.name, _LAYOUT)


def _tree(row: Row) -> TreeSentence:
    lines = [line.split("\t") for line in row.values["lines"]]
    for number, cells in enumerate(lines, 1):
        require(
            len(cells) == _CELLS,
            f"a line of a treebank has {_CELLS} cells between tabs, this one has {len(cells)}: "
            f"{cells[0]!r:.60}",
            row.where,
            _LAYOUT,
        )
        require(
            cells[0] == str(number),
            f"the words of a sentence are numbered 1, 2, 3, ...: word {number} has the number "
            f"{cells[0]!r:.20}",
            row.where,
            _REPAIR,
        )
        what = f"word {number}, {cells[_WORD]!r:.60}, has the head {cells[_HEAD]!r:.20}: "
        what += f"expected a number from 0 (the root) to {len(lines)}, and not its own"
        is_number = cells[_HEAD].isascii() and cells[_HEAD].isdecimal()
        is_head = is_number and int(cells[_HEAD]) <= len(lines) and int(cells[_HEAD]) != number
        require(is_head, what, row.where, _REPAIR)
    heads = tuple(int(cells[_HEAD]) - 1 for cells in lines)
    roots = [number for number, head in enumerate(heads, 1) if head < 0]
    require(
        len(roots) <= 1,
        f"words {', '.join(map(str, roots[:5]))} have the head 0: a sentence has one root",
        row.where,
        _REPAIR,
    )
    try:
        TopologicalSorter({word: [head + 1] for word, head in enumerate(heads, 1)}).prepare()
    except CycleError as error:
        cycle = error.args[1][:0:-1]  # the error names a head before its word
        raise BertworksError(
            f"the heads lead from word {' to '.join(map(str, [*cycle[:8], cycle[0]]))}: this "
            "is a cycle, not a tree",
            where=row.where,
            hint=_REPAIR,
        ) from None
    words = (cells[_WORD] for cells in lines)
    parts_of_speech = (cells[_UPOS] for cells in lines)
    return TreeSentence(tuple(words), heads, tuple(parts_of_speech), row.where)
