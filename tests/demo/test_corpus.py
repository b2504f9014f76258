"""Prose out of docstrings, and the corpus made of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.demo import corpus as demo_corpus
from bertworks.demo.corpus import is_sentence, prose, write_demo_corpus, write_demo_origins
from tests.support.refusals import refusal
from tests.support.tables import read_table

NUMPY_STYLE = """
    fit(x, y, *, rate=0.1)

    Fit a straight line to the points that are given.  The line is the one
    with the *smallest* sum of squares, see :func:`~package.module.solve`.

    Parameters
    ----------
    x : array_like
        The places at which the values of the function were observed.
    rate : float
        How fast the line is moved to where it should be at the end.

    Notes
    -----
    The solution is not unique if all of the places are the same.

    Examples
    --------
    >>> fit([1, 2], [3, 4])
    The output of this call is not a part of the text that we want.
"""

GOOGLE_STYLE = """Reads a file and returns what is in it.

    Args:
        path (str): The name of the file that is to be read by this function.
            It may be a name with a star in it.

    Returns:
        list: The lines of the file in the order in which they were found.

    Note:
        The file is closed when all of its lines have been read.

    .. math:: a = b

    .. warning:: This is slow for a file that is very long.

    The result can be used like this::

        The text of this block is kept because it is a sentence.

    * The first item of a list that goes
      on in the next line is kept.
    * Too short.
"""

MARKDOWN = """# A heading that is not a sentence of the text.

The [library](https://example.org/x) reads **all** of the files in a folder. It's `fast` and it
does not need the net!

| The | table | of | the | things |
```
This is the code of the example in a fence.
```
Visit https://example.org for the rest of the documentation.
"""


def paragraphs(text: str) -> list[str]:
    return list(prose(text, set()))


def test_numpy_docstring_without_names_signatures_and_code():
    assert paragraphs(NUMPY_STYLE) == [
        "Fit a straight line to the points that are given. The line is the one with the smallest "
        "sum of squares, see"
        " solve.",
    ]


def test_google_docstring_without_names_and_markup():
    assert paragraphs(GOOGLE_STYLE) == [
        "Reads a file and returns what is in it.",
        "It may be a name with a star in it.",
        "The file is closed when all of its lines have been read.",
        "The text of this block is kept because it is a sentence.",
        "The first item of a list that goes on in the next line is kept.",
    ]


def test_markdown_keeps_sentences_without_markup():
    assert paragraphs(MARKDOWN) == [
        "The library reads all of the files in a folder. It's fast and it does not need the net!",
    ]


def test_no_sentence_occurs_twice():
    seen = set[str]()
    text = "The value of this option is used. The value of this *option* is used!"
    assert list(prose(text, seen)) == ["The value of this option is used."]
    assert list(prose(text, seen)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Use the value i.e. the one that is in the list of values.",
        "This is the name (if there is one) of the file.",
        '"This is what he said to the others in the room."',
    ],
)
def test_sentences(text: str):
    assert is_sentence(text)
    assert paragraphs(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "the sentence has no capital at the start of it.",
        "The sentence has no end to it and is cut",
        "The value of x_1 is set to {value} in the call.",
        "The value is used if a = b and c = d are both true.",
        "Numpy arrays tensors floats ints strings bytes.",
        "See https://example.org for more of it.",
        "Too short.",
        "The value (which is not closed is used for the rest.",
    ],
)
def test_no_sentences(text: str):
    assert not is_sentence(text)


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python installation with two packages and no prose of its own."""
    library, packages = tmp_path / "lib", tmp_path / "site"
    library.mkdir()
    many = " ".join(
        f"Number {number} of the sentences is here so that the text is long." for number in range(9)
    )
    for package in ("alpha", "beta", "test"):
        (packages / package).mkdir(parents=True)
        own = many.replace("Number", f"Part {package}")
        (packages / package / "__init__.py").write_text(
            f'"""{own}\n\n{many}\n"""\nraise SystemExit("imported")\n'
        )
    (packages / "alpha" / "calls.py").write_text(
        f'add_docstr(f, r"""{many.replace("Number", "Call")}""")\n'
    )
    monkeypatch.setattr(
        demo_corpus.sysconfig,
        "get_path",
        lambda name: str(library if name == "stdlib" else packages),
    )
    return tmp_path


def test_each_sentence_once_and_nothing_imported(installation: Path):
    sizes = write_demo_corpus(installation / "out")
    files = [installation / "out" / name for name in ("training.jsonl", "held-out.jsonl")]
    parts = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    assert sizes == [(len(rows), sum(len(row["text"].split()) for row in rows)) for rows in parts]
    records = [*parts[0], *parts[1]]
    assert {record["id"] for record in records} == {
        "package/alpha",
        "package/alpha.calls",
        "package/beta",
    }
    sentences = [s for record in records for s in re.split(r"(?<=[.]) |\n", record["text"])]
    assert len(sentences) == len(set(sentences)) == 4 * 9


def test_same_installation_same_bytes(installation: Path):
    for name in ("one", "two"):
        write_demo_corpus(installation / name)
    for file in ("training.jsonl", "held-out.jsonl"):
        assert (installation / "one" / file).read_bytes() == (
            installation / "two" / file
        ).read_bytes()


@pytest.mark.slow
def test_this_installation_has_hundreds_of_thousands_of_words(tmp_path: Path):
    (_, training), (_, held_out) = write_demo_corpus(tmp_path)
    assert training > 300_000
    assert 0.02 < held_out / training < 0.15
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import bertworks.demo.corpus, sys; assert 'torch' not in sys.modules",
        ],
        check=True,
    )


def test_origins_are_paragraphs_of_libraries(tmp_path: Path):
    words = (
        "each of these sentences has as many words as a paragraph needs to be one of them".split()
    )
    count = 2 * demo_corpus.MIN_ROWS // demo_corpus.DEV_FRACTION + 200
    records = [
        {
            "id": f"package/{library}.m{n}",
            "text": "\n".join(" ".join([library[0], str(n), str(m), *words]) for m in range(9)),
        }
        for library in ("zq", "xv")
        for n in range(count)
    ]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    write_demo_origins([corpus], tmp_path / "origins")
    for part in ("train", "dev"):
        rows = read_table(tmp_path / f"origins/{part}.csv")
        assert {row["library"] for row in rows} == {"zq", "xv"}
        assert all(row["text"].startswith(row["library"][0]) for row in rows)
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records[:count]))
    what = "only 1 of the installed libraries have enough text"
    with refusal(what, "install numpy or scipy with their sources"):
        write_demo_origins([corpus], tmp_path / "others")
