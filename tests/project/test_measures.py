"""The tools that measure the structure: tokens, names, the walk of the request, traced routes; and
their table."""

import io
import json
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import get_args

import pytest

from bertworks.tasks.settings import TaskType
from tests.support import ROOT

TOOLS = ROOT / "tools"
sys.path.insert(0, str(TOOLS))

import names  # noqa: E402
import request_walk  # noqa: E402
import routes  # noqa: E402
import size  # noqa: E402


def write_package(folder: Path, modules: dict[str, str]) -> Path:
    """A package of these modules, by their paths."""
    package = folder / "small"
    for path, text in {"__init__.py": "", **modules}.items():
        file = package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return package


# Size


@pytest.mark.parametrize(
    ("text", "tokens", "code_lines"),
    [
        ('"""A module."""\n\nx = 1  # a comment\n', 3, 1),
        ("x = f\"a {y:{z}} {f'b'} c\" 'd'\n", 4, 1),
        ("x = f'''\n{y}\n'''\n", 3, 3),
        ('def f():\n    """One."""\n    return "two"\n', 7, 2),
        ('def f():\n    "One, " "two."\n    ...\n', 6, 2),
        ('x = 1\n"no docstring"\n', 4, 2),
        ('class C: "é"; x = "é"\n', 7, 1),
        ("f(\n    a,\n    b,\n)\n", 7, 4),
        ("", 0, 0),
    ],
)
def test_tokens_and_lines_of_code(text: str, tokens: int, code_lines: int, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(text)
    module = size.size_of_module(tmp_path / "module.py")
    assert (module.tokens, module.code_lines) == (tokens, code_lines)


@pytest.mark.skipif(
    sys.version_info >= (3, 12),
    reason="the tokenizer of Python 3.11 is what others are compared with",
)
def test_tokens_are_those_of_the_tokenizer() -> None:
    path = ROOT / "bertworks" / "text" / "corpus.py"
    text = path.read_text()
    kinds = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    tokens = sum(
        token.type in kinds for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
    docstrings = len(size.docstring_places(text))
    assert docstrings > 20
    assert size.size_of_module(path).tokens == tokens - docstrings


def test_sizes_of_packages_add_up() -> None:
    sizes = size.sizes_of_packages(size.ROOT)
    total = sizes.pop(size.TOTAL)
    folders = sorted(path.parent.name for path in size.ROOT.glob("*/__init__.py"))
    assert "checkpoints" in folders
    assert list(sizes) == [size.TOP_LEVEL, *folders]
    assert sum(package.tokens for package in sizes.values()) == total.tokens > 10_000
    assert total.tokens_per_line == round(total.tokens / total.code_lines, 1)


def test_lines_of_other_files(tmp_path: Path) -> None:
    files = {
        "a.toml": "x = 1\n\ny = 2\n",
        "page.html": "<p>\n",
        "template.html": "{% if x %}\n{{ x }}\n{% endif %}\n",
    }
    for name, text in (files | {"a.js": "f()", "a.css": "", "a.md": "text\n"}).items():
        (tmp_path / name).write_text(text)
    assert size.lines_of_other_files(tmp_path) == {
        "TOML": 3,
        "Jinja": 3,
        "HTML": 1,
        "JS": 1,
        "CSS": 0,
    }


# Names


def test_the_tasks_are_those_of_the_package() -> None:
    assert get_args(TaskType) == names.TASKS


def test_comparisons_with_the_name_of_a_task(tmp_path: Path) -> None:
    text = """
def f(task, other):
    if task == "qa" or "tagging" != task or task in ("choice", "spans", "x"):
        return {"qa": 1}[task]
    match task, other:
        case "regression" | "qa", 1:
            return task == "question"
        case ["x", {"key": "multilabel"}]:
            return "qa" < task < "qa"
"""
    package = write_package(tmp_path, {"a.py": text, "tasks/qa.py": text})
    places = [(place.module, place.line, place.name) for place in names.task_names(package)]
    assert places == [
        ("a", 3, "choice"),
        ("a", 3, "qa"),
        ("a", 3, "tagging"),
        ("a", 6, "regression"),
        ("a", 8, "multilabel"),
        ("a", 9, "qa"),
    ]


def test_refused_names(tmp_path: Path) -> None:
    text = """
import one
found = 1
found = 2

def given(own, *theirs, row=found):
    shown = own
    own.made = [one for one in own]
    with row as (row, [*taken]):
        for row.kept in row:
            pass
    return lambda others: (drawn := 1)

class C:
    some: int = 1
    def many(self, x):
        found = x
        match x:
            case [every, *wanted]:
                pass
"""
    package = write_package(tmp_path, {"a.py": text})
    assert [(place.line, place.name) for place in names.refused_names(package)] == [
        (3, "found"),
        (6, "own"),
        (6, "theirs"),
        (7, "shown"),
        (8, "one"),
        (9, "taken"),
        (12, "drawn"),
        (12, "others"),
        (15, "some"),
        (17, "found"),
        (19, "every"),
        (19, "wanted"),
    ]


# The walk of the request

LOW = """
def as_path(path):
    return Path(path)

def size_of(path):
    return len(path)
"""
MIDDLE = """
from small.low.paths import as_path, size_of
from small import errors

def read(source, *columns, **options):
    errors.require(source, columns)
    path = as_path(source)
    size_of(path)
    return [line for line in path]
"""
TOP = """
from dataclasses import dataclass, replace
from small.middle import reader
from small.middle.reader import read

@dataclass
class Request:
    data: str
    text: str = ""

    def check(self):
        reader.read(self.data)

class Job:
    def __init__(self, request, device):
        self.request, self.device = request, device
        rows = read(request.data, request.text, size=len(request.text))
        print(rows)

def events(request: Request, device):
    resolved = replace(request, text="x") if device else request
    request.check()
    if device == resolved:
        device = f"{resolved}"

    def make(number):
        return Job(resolved, number)

    return make(device)
"""


def test_the_walk_follows_a_value_and_its_fields(tmp_path: Path) -> None:
    modules = {
        "errors.py": "def require(*values):\n    pass\n",
        "low/paths.py": LOW,
        "middle/reader.py": MIDDLE,
        "top/job.py": TOP,
    }
    package = write_package(tmp_path, modules)
    walk = request_walk.walk_request(package, ("events", "request"))
    assert [(stay.module, stay.function, stay.climbs) for stay in walk.stays] == [
        ("top.job", "events", False),
        ("middle.reader", "read", False),  # from `check`
        ("low.paths", "as_path", False),
        ("middle.reader", "read", True),
        ("low.paths", "size_of", False),
        ("top.job", "events", True),
        ("middle.reader", "read", False),  # from `Job`, with another parameter
        ("low.paths", "as_path", False),
        ("middle.reader", "read", True),
        ("low.paths", "size_of", False),
    ]
    assert walk.climbs == 3
    assert walk.modules == {"top.job", "middle.reader", "low.paths"}
    assert walk.names == {"request", "resolved", "source", "path", "columns"}
    assert walk.hand_overs == 8  # check, Job, twice read, each with as_path and size_of


CALLS = """
def target(first, second=None, *rest, third=None, **options):
    pass

def start(x, y):
    {}
"""


@pytest.mark.parametrize(
    ("call", "parameters"),
    [
        ("target(y, x)", "second"),
        ("target(y, third=x)", "third"),
        ("target(y, y, y, x.a)", "rest"),
        ("target(y, fourth=x)", "options"),
        ("target(*[x])", "first second rest"),
        ("target(y, **vars(x))", "second third options"),
        ("target(y, third=str(x.a) or y)", "third"),
        ("target({'a': x.a}['a'])", "first"),
        ("[target(part) for part in (x.a, x.b)]", "part first"),
        ("(z := x) and target(z)", "z first"),
        ("partial(target, third=x)", "third"),
        ("list(map(target, [y, x]))", "first"),
        ("z = x\n    z = y\n    target(z)", "z"),
        ("z = x\n    if y:\n        z = y\n    target(z)", "z first"),
        ("z, w = x, y\n    target(w, z)", "z second"),
        ("for name, value in vars(x).items():\n        target(value)", "name value first"),
        ("target(x.a == 1, f'{x}', x.a + y, not x)", ""),
        ("target(x.a.b, x.a[0], len(x))", ""),
        ("y(x)", ""),
    ],
)
def test_which_parameters_get_the_value(call: str, parameters: str, tmp_path: Path) -> None:
    package = write_package(tmp_path, {"a.py": CALLS.format(call)})
    walk = request_walk.walk_request(package, ("start", "x"))
    assert walk.names == {"x", *parameters.split()}


PROTOCOL = """
from typing import Protocol

class Stored(Protocol):
    def content(self): ...

class Request:
    def content(self):
        return low(self.data)

class Other:
    def content(self):
        return 1

def low(path):
    pass

def start(x: Request):
    store(x)

def store(value: Stored):
    value.content()
"""


def test_a_method_that_a_protocol_names_is_that_of_the_value(tmp_path: Path) -> None:
    walk = request_walk.walk_request(write_package(tmp_path, {"a.py": PROTOCOL}), ("start", "x"))
    assert walk.names == {"x", "value", "path"}


# Traces

TRACED = """
import asyncio
from small import other

class Reader:
    value = 1

    def lines(self, path):
        with open(path) as file:
            yield from file

async def pause():
    await asyncio.sleep(0)
    await asyncio.sleep(0)

def read(path):
    lines = [line for line in Reader().lines(path)]
    other.read_again(path)
    asyncio.run(pause())
    return lines
"""
OTHER = """
import os, shutil, tempfile
from pathlib import Path

def read_again(path):
    Path(path).read_bytes()
    os.close(os.open(path, os.O_RDONLY))
    copy = tempfile.mkstemp()[1]
    shutil.copyfile(path, copy)
    Path(copy).read_text()
    Path(__file__).read_text()
"""
PROGRAM = """
import json, os, sys
from pathlib import Path
tools, folder = map(Path, sys.argv[1:])
sys.path[:0] = [str(tools), str(folder)]
import tracing
from small import reader

def run(recorder):
    reader.read("../rows.csv")
    recorder.start()
    reader.read("../rows.csv")
    recorder.stop()
    reader.read("../rows.csv")

def read_standard_input(recorder):
    recorder.start()
    print(sys.stdin.read())
    recorder.stop()

def fail(recorder):
    raise ValueError("this fails")

package, rows = folder / "small", folder / "rows.csv"
for number, (function, is_standard_input) in enumerate([(run, False), (read_standard_input, True)]):
    options = {"input_file": rows, "is_standard_input": is_standard_input}
    trace = tracing.traced(function, package, folder / str(number), **options)
    print(*trace.modules, trace.functions, trace.calls, trace.opens)
print((folder / "1" / "log.txt").read_text())
try:
    tracing.traced(fail, package, folder / "2")
except RuntimeError as error:
    print(error)
"""


def test_a_trace_counts_modules_calls_and_opens(tmp_path: Path) -> None:
    write_package(tmp_path, {"reader.py": TRACED, "other.py": OTHER})
    (tmp_path / "rows.csv").write_text("a\nb\n")
    command = [sys.executable, "-c", PROGRAM, str(TOOLS), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    # read, lines, read_again, pause; the path by three functions and as the source of the copy, and
    # the copy
    assert lines[0] == "other reader 4 4 5"
    assert lines[1] == "0 0 1"
    assert lines[2:4] == ["a", "b"]
    assert "ValueError: this fails" in result.stdout


# The table


def table_of_measures() -> list[list[str]]:
    """The cells of the table on the page, without its second line."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    lines = page.split("\n## Measures\n")[1].split("\n## ")[0].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    return [rows[0], *rows[2:]]


@pytest.fixture(scope="module")
def static_rows() -> list[routes.Measurement]:
    """What is counted in the text of the package: it takes seconds."""
    return routes.static_measurements()


def test_the_page_has_a_figure_for_each_measure(static_rows: list[routes.Measurement]) -> None:
    header, *rows = table_of_measures()
    assert header[0] == "measure"
    assert len(header) > 1
    assert all(re.fullmatch("`[0-9a-f]{8}`", commit) for commit in header[1:])
    measures = [*routes.route_measurement_names(), *(row.name for row in static_rows)]
    assert [row[0] for row in rows] == measures
    for row in rows:
        assert len(row) == len(header)
        assert all(re.fullmatch(r"[\d,]+(\.\d)?|refused", figure) for figure in row[1:]), row


def test_what_is_printed(
    static_rows: list[routes.Measurement],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(routes, "static_measurements", lambda: static_rows)
    monkeypatch.setattr(sys, "argv", ["routes.py", "--static"])
    routes.main()
    rows = [f"| {row.name} | {row.value:,} |" for row in static_rows]
    assert capsys.readouterr().out.splitlines() == ["| measure | now |", "|---|---|", *rows]
    monkeypatch.setattr(sys, "argv", ["routes.py", "--static", "--json"])
    routes.main()
    assert json.loads(capsys.readouterr().out) == {
        "now": {row.name: row.value for row in static_rows}
    }


def test_the_counts_of_the_package_are_plausible(static_rows: list[routes.Measurement]) -> None:
    """A tool that reads nothing counts nothing."""
    figures = {row.name: row.value for row in static_rows}
    assert figures["request of a fine-tuning: modules"] > 3
    assert (
        figures["request of a fine-tuning: times handed on"]
        > figures["request of a fine-tuning: climbs"]
    )
    assert (
        figures["Python tokens of the package"]
        > figures["Python lines of code of the package"]
        > 10_000
    )
    assert all(figures[f"lines of {kind}"] > 0 for kind in size.OTHER_KINDS)


@pytest.mark.slow
def test_all_routes_are_traced() -> None:
    command = [sys.executable, str(TOOLS / "routes.py"), "--json", "--modules"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    figures, modules = content["now"], content["modules"]
    assert (
        list(figures)[: len(routes.route_measurement_names())] == routes.route_measurement_names()
    )
    for route in routes.ROUTES:
        if not route.counts_opens_alone:
            counts = [
                figures[f"{route.name}: {quantity}"]
                for quantity in ("modules", "functions", "calls")
            ]
            assert 0 < counts[0] < counts[1] < counts[2]
            assert len(modules[route.name]) == counts[0]
        if route.data:
            opens = figures[f"{route.name}: opens"]
            assert opens == "refused" or opens > 0
    assert "models.transformer" in modules["csv of 30 rows to the first loss"]
    assert "tasks.heads" in modules["csv of 30 rows to the first loss"]
