"""The documentation is true: links resolve, commands parse, samples are read as described, guides
are short."""

import ast
import json
import re
import shlex
import tomllib
from pathlib import Path
from runpy import run_path

import pytest

import bertworks
import bertworks.sklearn
from bertworks.cli.parser import make_app
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import infer_schema, items
from bertworks.tasks.registry import TASKS as ALL_TASKS
from tests.support import ROOT

DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
WRITTEN = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if path.name not in ("commands.md", "python.md", "recipes.md")
]
TOP_PAGES = [ROOT / name for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = TOP_PAGES + WRITTEN
LABELLED = (DOCS / "guides" / "labelled-data.md").read_text(encoding="utf-8")
SAMPLES = re.findall(
    r"^### ([^\n]+)\n`([\w.]+)`\n```\w+\n(.*?)^```$", LABELLED, re.DOTALL | re.MULTILINE
)
TASKS = dict(re.findall(r"\(#([\w-]+)\)[^|]*\| `(\w+)` \|", LABELLED))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    """Code blocks of a page in these languages; "" is a block without a language."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return [content for language, content in found if language in languages]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_a_guide_has_at_most_120_lines(page: Path):
    assert page.read_text(encoding="utf-8").count("\n") <= 120


def test_each_client_of_the_table_is_tested():
    """Each line of the table in serve.md is run by tests/clients, in an environment that has its
    package."""
    folder = ROOT / "tests" / "clients"
    table = run_path(str(folder / "guide_table.py"))
    environments = tomllib.loads((folder / "clients.toml").read_text(encoding="utf-8"))
    packages = [
        package for environment in environments.values() for package in environment["packages"]
    ]
    assert not [package for package in packages if "==" not in package]
    for name in environments:
        assert (folder / f"test_{name.replace('-', '_')}.py").is_file(), name
    rows = list(table["rows"]())
    assert len(rows) > 10
    for row in rows:
        assert any(package.startswith(f"{row.package}==") for package in packages), row
        assert row.purpose in table["MODELS"], row


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path):
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = (page.parent / file) if file else page
            assert target.is_file(), link
            assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_list_of_pages():
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    kinds = {
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if "experiments" not in path.parts
    }
    assert [page for page in sorted(kinds - {"README.md"}) if f"({page})" not in index] == []


def test_commands_parse():
    """An unknown command or option raises."""
    app = make_app()
    pages = [*GUIDES, DOCS / "concepts" / "family-in-ten-minutes.md", ROOT / "README.md"]
    lines = [
        line.strip().removeprefix("$ ")
        for p in pages
        for line in "".join(blocks(p, "", "bash", "text")).splitlines()
    ]
    commands = [line for line in lines if line.startswith("bertworks ")]
    parsed = [app.parse_args(shlex.split(command, comments=True)[1:])[0] for command in commands]
    assert len(parsed) > 50
    assert all(map(callable, parsed))


@pytest.mark.parametrize("page", GUIDES, ids=name_of)
def test_python_examples_use_public_names(page: Path):
    for block in blocks(page, "python"):
        ast.parse(block)
        names = set(re.findall(r"\b(?:bertworks|bw)\.(\w+)", block))
        assert names <= {*bertworks.__all__, "sklearn"}
        estimators = re.findall(r"^from bertworks\.sklearn import (.+)$", block, re.MULTILINE)
        assert set(", ".join(estimators).split(", ")) - {""} <= set(bertworks.sklearn.__all__)


def test_json_of_the_http_reference_is_json():
    examples = blocks(DOCS / "reference" / "http.md", "json")
    assert len(examples) > 20
    for example in examples:
        json.loads(example)


def test_paths_of_docs_in_the_code_exist():
    files = [
        *(ROOT / "bertworks").rglob("*.py"),
        *(ROOT / "benchmarks").rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
    ]
    paths = {
        path
        for file in files
        if ".peers" not in file.parts  # what `make bench-peers` installs
        for path in re.findall(r"\bdocs/[\w/.-]*\w", file.read_text(encoding="utf-8"))
    }
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    "page", [page for page in WRITTEN if "experiments" not in page.parts], ids=name_of
)
def test_modules_in_the_docs_exist(page: Path):
    paths = re.findall(r"[`| (]((?:\w+/)+\w+\.(?:py|html|js))\b", page.read_text(encoding="utf-8"))
    assert [
        path
        for path in paths
        if not any((root / path).exists() for root in (ROOT, ROOT / "bertworks"))
    ] == []


def test_there_is_a_sample_of_every_task():
    assert set(TASKS.values()) == {
        "classification",
        "multilabel",
        "regression",
        "tagging",
        "spans",
        "qa",
        "choice",
    }
    assert len(SAMPLES) == len(TASKS)


@pytest.mark.parametrize(
    ("heading", "name", "content"), SAMPLES, ids=[sample[0] for sample in SAMPLES]
)
def test_samples_have_the_task_of_the_table(heading: str, name: str, content: str, tmp_path: Path):
    (tmp_path / name).write_text(content, encoding="utf-8")
    reader = RowReader(tmp_path / name)
    schema, _ = infer_schema(reader, ALL_TASKS)
    assert schema.task == TASKS[heading.lower().replace(" ", "-")]
    assert len(list(items(reader, schema, ALL_TASKS))) >= 2


def test_the_reference_is_that_of_the_code():
    for path, text in run_path(str(DOCS / "write_reference.py"))["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run `make docs`"


def test_the_family_in_ten_minutes_has_seventeen_systems_with_paper_and_command():
    """And each interval of a system, but in what a command prints, is one of the results."""
    page = (DOCS / "concepts" / "family-in-ten-minutes.md").read_text(encoding="utf-8")
    systems = re.findall(r"^\*\*[^*]+\*\* \(20[12]\d, \[", page, re.MULTILINE)
    assert len(systems) == 17
    parts = re.split(r"^(?=\*\*[^*]+\*\* \(20)", page, flags=re.MULTILINE)[1:]
    assert all("](https://" in part and "\nbertworks " in part for part in parts)
    results = (DOCS / "concepts" / "results.md").read_text(encoding="utf-8")
    words = re.sub(r"```text\n.*?```", "", "".join(parts), flags=re.DOTALL)
    figures = re.findall(r"[\d.]+(?: %)? \(([\d.]+) to ([\d.]+)\)", words)
    assert len(figures) > 15
    rounded = {
        f"{float(number):.{digits}f}"
        for number in re.findall(r"\d+\.\d+", results)
        for digits in (1, 2, 3)
    }
    assert [pair for pair in figures if not set(pair) <= rounded] == []
