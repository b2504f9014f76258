"""Words that must not come back, in code, messages, help and docs. CONTRIBUTING.md names what to
write instead."""

import re
from pathlib import Path

import pytest

from tests.support import ROOT

WORDS = """
sooner soonest nobody nobody's somebody somebody's whoever whomever told untold asked unasked judged
judging judgement judge judges guess guesses suited parted likelier likeliest anybody everybody
unasked spoil spoils spoilt yardstick mended wing wings lest hence henceforth upon thereof whereof
hitherto ere twice-told by-lot so-many in-vain at-home
""".split()
PHRASES = (
    r"tables? of words|so many|so much as|is said|are said|be said|by heart|for eyes|set "
    r"aside|told apart|by and by|"
    r"go(es|ne)? on (from|with)|as it comes|as it stands|h[au]ngs? on|without end"
)
# A word also counts as a part of an identifier: `asked_for`, `_told`.
FORBIDDEN = re.compile(
    rf"(?<![a-z])(?:{'|'.join(word.replace('-', ' ') for word in WORDS)}|{PHRASES})(?![a-z])",
    re.IGNORECASE,
)


def found(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{path.relative_to(ROOT)}:{n}: {line.strip()[:100]}"
        for n, line in enumerate(lines, 1)
        if FORBIDDEN.search(line)
    ]


PARTS = sorted(
    path.name for path in (ROOT / "bertworks").iterdir() if path.is_dir() or path.suffix == ".py"
)


@pytest.mark.parametrize("name", [name for name in PARTS if name != "__pycache__"])
def test_code_uses_plain_words(name: str):
    part = ROOT / "bertworks" / name
    files = (
        [part]
        if part.is_file()
        else [p for p in part.rglob("*") if p.suffix in (".py", ".toml", ".html", ".js", ".md")]
    )
    files = [path for path in files if path.name != "sentence_words.toml"]  # words of texts
    assert [line for path in sorted(files) for line in found(path)] == []


def test_benchmarks_and_tools_use_plain_words():
    files = [path for name in ("benchmarks", "tools") for path in (ROOT / name).rglob("*.py")]
    assert [
        line for path in sorted(files) if ".peers" not in path.parts for line in found(path)
    ] == []


TOP_PAGES = [ROOT / name for name in ("README.md", "AGENTS.md", "CHANGELOG.md")]
DOCUMENTS = [*TOP_PAGES, *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize(
    "path",
    [p for p in DOCUMENTS if "experiments" not in p.parts],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_documents_use_plain_words(path: Path):
    assert found(path) == []


@pytest.mark.parametrize(
    "line", ["it is faster", "the number of rows", "masked tokens", "taskedit"]
)
def test_plain_lines_pass(line: str):
    assert not FORBIDDEN.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "it is sooner",
        "so many rows",
        "rows set aside",
        "asked_for = 1",
        "_told",
        "Nobody's",
        "a Table of words",
    ],
)
def test_forbidden_lines_fail(line: str):
    assert FORBIDDEN.search(line)
