"""The structure of the package: imports go downward only, every module has a docstring, and
`transformers` is never imported."""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "bertworks"
LIBRARIES = {  # what the modules of a package may import besides the standard library
    "errors": "",
    "events": "",
    "config": "",
    "io": "filelock numpy pyarrow",
    "text": "numpy pyarrow sentencepiece tokenizers",
    "datasets": "pyarrow",
    "models": "torch",
    "batching": "numpy",
    "training": "numpy torch",
    "metrics": "numpy",
    "tasks": "numpy torch",
    "checkpoints": "numpy safetensors torch",
    "reports": "",
    "inference": "numpy torch",
    "retrieval": "numpy torch",
    "runs": "numpy torch",
    "evaluation": "numpy torch",
    "interop": "numpy torch",
    "sklearn": "numpy scipy sklearn",
    "diagnostics": "torch",
    "serve": "numpy",
    "demo": "sklearn",
    "cli": "cyclopts rich",
}
ALSO = {  # what single modules may import
    "batching.batch": "torch",
    "io.remote": "filelock fsspec",
    "checkpoints.resolve": "huggingface_hub",
    "checkpoints.tensorflow": "google_crc32c",
    "checkpoints.allennlp": "h5py numpy torch",
    "inference.embedder": "mteb numpy torch",
    "inference.engine": "onnxruntime",
    "reports.svg": "jinja2 markupsafe",
    "interop.export": "numpy onnxruntime torch",
    "interop.trace": "onnx onnxruntime torch",
    "interop.push": "huggingface_hub",
    "io.ray_engine": "ray",
    "io.workbook": "openpyxl",
    "metrics.classification": "sklearn",
    "metrics.intervals": "numpy scipy",
    "metrics.translation": "numpy sacrebleu",
    "metrics.trees": "scipy",
    "tasks.linear_head": "numpy sklearn torch",
    "retrieval.store": "faiss",
    "runs.baselines": "scipy sklearn",
    "runs.loggers": "mlflow numpy torch trackio wandb",
    "retrieval.ranking": "snowballstemmer",
    "serve.endpoints": "msgspec numpy orjson",
    "serve.pipeline": "numpy prometheus_client starlette",
    "serve.application": "prometheus_client starlette uvicorn",
    "serve.openapi": "msgspec",
    "serve.server": "uvicorn",
}
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in sorted(ROOT.rglob("*.py"))
}
MODULES = [name for name in FILES if not name.endswith("__init__")]


def listed_modules() -> list[str]:
    """All modules in the order in which docs/architecture.md lists them."""
    tree = (ROOT.parent / "docs" / "architecture.md").read_text().split("```")[1]
    names, package = [], ""
    for line in tree.splitlines()[2:]:
        if match := re.match(r"  (\w+)/", line):
            package = match[1]
        elif match := re.match(r"    (\w+)/ .*: (.+)$", line):  # a folder within the package
            names += [f"{package}.{match[1]}.{name}" for name in match[2].split(", ")]
        elif match := re.match(r"    (\w+) {2,}\S", line):
            names.append(f"{package}.{match[1]}")
        elif match := re.match(r"  (\w+) {2,}\S", line):
            names.append(match[1])
    return names


ORDER = listed_modules()


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(FILES[name].read_text())


@cache
def imports(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """Our modules, and other libraries, that a module imports anywhere in its text."""
    ours, others = set(), set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            modules = [
                f"{base}.{a.name}"
                if f"{base}.{a.name}".removeprefix("bertworks.") in MODULES
                else base
                for a in node.names
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "import_module",
            "importlib.import_module",
        ):
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            modules = [str(name) for name in names if str(name).startswith("bertworks.")]
        else:
            continue
        for module in modules:
            first, _, rest = module.partition(".")
            if first == "bertworks":
                ours.add(rest)
            elif first not in sys.stdlib_module_names:
                others.add(first)
    return frozenset(ours), frozenset(others)


def test_the_architecture_page_lists_every_module():
    assert sorted(ORDER) == sorted(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_downward(name: str):
    wrong = [
        other for other in imports(name)[0] if other and ORDER.index(other) >= ORDER.index(name)
    ]
    assert not wrong, f"{name} is listed before {wrong}"


@pytest.mark.parametrize("name", MODULES)
def test_a_package_imports_its_libraries_only(name: str):
    allowed = set(LIBRARIES[name.partition(".")[0]].split()) | set(ALSO.get(name, "").split())
    assert imports(name)[1] <= allowed


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("models.")])
def test_networks_import_networks_only(name: str):
    assert all(other == "errors" or other.startswith("models.") for other in imports(name)[0])


@pytest.mark.parametrize("name", FILES)
def test_transformers_is_not_imported(name: str):
    assert not imports(name)[1] & {"transformers", "sentence_transformers", "datasets"}


def test_home_folders_are_expanded_in_one_place():
    """By `local_path` and `as_path`; the rules that tell texts from names of files look, too."""
    counts = {name: path.read_text().count(".expanduser()") for name, path in FILES.items()}
    assert {name: count for name, count in counts.items() if count} == {
        "io.atomic_write": 1,
        "io.inputs": 2,
    }


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_a_docstring(name: str):
    assert len((ast.get_docstring(tree(name)) or "").split()) >= 8, (
        "the docstring says what the module is for"
    )


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".__init__")])
def test_packages_export_nothing(name: str):
    code = [node for node in tree(name).body if not isinstance(node, ast.Expr)]
    assert not code, f"{name}: import from the module itself"


def test_modules_have_a_test_file_of_their_path():
    """Of the modules of more than 60 lines at least 90 % have one: tests/io/test_remote.py is that
    of io/remote.py."""
    long = [path for path in FILES.values() if len(path.read_text().splitlines()) > 60]
    tests = ROOT.parent / "tests"
    missing = [
        str(path.relative_to(ROOT))
        for path in long
        if not (tests / path.relative_to(ROOT)).with_name(f"test_{path.name}").exists()
    ]
    assert len(missing) <= 0.1 * len(long), missing


def test_data_files_are_installed():
    """Whatever is not Python is named in pyproject.toml: without it an installed package would lack
    it."""
    settings = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    patterns = settings["tool"]["setuptools"]["package-data"]["bertworks"]
    data = [
        path for path in ROOT.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    installed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert data
    assert not set(data) - installed
    assert all(any(ROOT.glob(pattern)) for pattern in patterns)
