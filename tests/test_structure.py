"""The shape of the house: imports go down the street only, every room says what it is, no room holds two things."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "bertworks"
WINGS = "errors text rows nn data learn files runs use doors serve demo cli".split()
LIBRARIES = {  # what each wing may import besides the standard library
    "errors": "",
    "text": "numpy pyarrow sentencepiece tokenizers",
    "rows": "pyarrow",
    "nn": "torch",
    "data": "numpy",
    "learn": "numpy torch",
    "files": "numpy safetensors torch",
    "runs": "numpy torch",
    "use": "numpy torch",
    "doors": "numpy torch",
    "serve": "numpy",
    "demo": "",
    "cli": "cyclopts rich",
}
ALSO = {
    "data.batch": "torch",
    "demo.tour": "sklearn",
    "doors.export": "onnxruntime",
    "doors.push": "huggingface_hub",
    "files.names": "huggingface_hub",
    "files.onnx_graph": "onnx",
    "learn.exported": "onnxruntime",
    "learn.scores": "scipy seqeval sklearn",
    "serve.application": "prometheus_client starlette",
    "serve.connections": "httptools uvicorn",
    "serve.gate": "prometheus_client",
    "serve.serving": "uvicorn",
    "use.neighbours": "faiss",
}
LONGEST_MODULE, LONGEST_FUNCTION = 400, 60

FILES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}
ROOMS = [name for name in FILES if not name.endswith("__init__")]


def listed() -> dict[str, list[str]]:
    """Wing -> its modules in the order in which docs/architecture.md lists them."""
    drawing = (ROOT.parent / "docs" / "architecture.md").read_text().split("```")[1]
    wings: dict[str, list[str]] = {}
    wing = ""
    for line in drawing.splitlines()[2:]:
        if match := re.match(r"  (\w+)/", line):
            wing = match[1]
            wings[wing] = []
        elif line.startswith("    "):
            while (plain := re.sub(r"\([^()]*\)", "", line)) != line:  # remarks in parentheses, innermost first
                line = plain
            described = re.match(r"\s+(\w+)\s{2,}\S", line)  # one room and what leaves it, or several without a word
            wings[wing] += [described[1]] if described else [name.strip() for name in line.split(",") if name.strip()]
    return wings


LISTED = listed()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


@cache
def imports(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Our rooms, and other libraries, that a room imports anywhere in its text."""
    ours, others = set(), set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = ["bertworks", *name.split(".")[: -node.level]] if node.level else []
            base = ".".join([*parents, *(node.module or "").split(".")]).strip(".")
            modules = [
                f"{base}.{a.name}" if f"{base}.{a.name}".removeprefix("bertworks.") in ROOMS else base
                for a in node.names
            ]
        else:
            continue
        for module in modules:
            first, _, rest = module.partition(".")
            if first == "bertworks":
                ours.add(rest)
            elif first not in sys.stdlib_module_names:
                others.add(first)
    return frozenset(ours), frozenset(others)


def place(name: str) -> tuple[int, int]:
    """Where a room stands: its wing, and its place inside the wing."""
    wing, _, module = name.partition(".")
    order = LISTED.get(wing, [])
    return WINGS.index(wing), order.index(module) if module in order else len(order)


@pytest.mark.parametrize("wing", WINGS[1:])
def test_the_architecture_page_lists_every_room(wing: str):
    there = {name.partition(".")[2] for name in ROOMS if name.startswith(f"{wing}.")}
    assert set(LISTED[wing]) == there, f"docs/architecture.md, {wing}/: differs by {set(LISTED[wing]) ^ there}"


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_rooms_before_it(name: str):
    above = [other for other in imports(name)[0] if other and place(other) >= place(name)]
    assert not above, f"{name} stands before {above}"


@pytest.mark.parametrize("name", ROOMS)
def test_a_wing_keeps_to_its_libraries(name: str):
    allowed = set(LIBRARIES[name.partition(".")[0]].split()) | set(ALSO.get(name, "").split())
    assert imports(name)[1] <= allowed


@pytest.mark.parametrize("name", [name for name in ROOMS if name.startswith("nn.")])
def test_networks_know_nothing_but_networks(name: str):
    assert all(other == "errors" or other.startswith("nn.") for other in imports(name)[0])


@pytest.mark.parametrize("name", FILES)
def test_transformers_is_an_oracle_for_tests_and_nothing_else(name: str):
    assert not imports(name)[1] & {"transformers", "sentence_transformers", "datasets"}


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_says_what_it_is_and_holds_one_thing(name: str):
    assert len((ast.get_docstring(tree(name)) or "").split()) >= 8, "the first docstring says what the module is"
    assert FILES[name].read_text().count("\n") <= LONGEST_MODULE


@pytest.mark.parametrize("name", ROOMS)
def test_functions_fit_on_a_screen(name: str):
    functions = [n for n in ast.walk(tree(name)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno - f.lineno >= LONGEST_FUNCTION}
    assert not long


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".__init__")])
def test_wings_do_not_export_again(name: str):
    code = [node for node in tree(name).body if not isinstance(node, ast.Expr)]
    assert not code, f"{name}: import from the room itself"
