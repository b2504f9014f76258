"""The front door: every public name is there, in its place, documented, and costs nothing before it is used."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import bertworks

DOOR = Path(bertworks.__file__)


def in_new_process(code: str) -> list[str]:
    """The modules of a fresh interpreter after `code`."""
    code = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def test_import_loads_no_library_and_no_room():
    modules = in_new_process("import bertworks")
    assert not {"torch", "numpy", "pyarrow", "tokenizers", "safetensors", "rich", "cyclopts"} & set(modules)
    assert [name for name in modules if name.startswith("bertworks")] == ["bertworks"]


def test_a_name_of_the_text_wing_brings_no_torch():
    assert "torch" not in in_new_process(
        "import bertworks; bertworks.CorpusReader; bertworks.Tokenizer; bertworks.Shards"
    )


def test_names_are_sorted_and_once():
    assert bertworks.__all__ == sorted(set(bertworks.__all__))
    assert set(bertworks.__all__) < set(dir(bertworks))


@pytest.mark.parametrize("name", bertworks.__all__)
def test_every_name_is_there_and_documented(name: str):
    value = getattr(bertworks, name)
    assert value.__module__.startswith("bertworks.")
    documentation = value.__doc__ or ""
    assert len(documentation.split()) >= 4
    assert not documentation.startswith(f"{name}("), "a dataclass without a docstring of its own"


def test_type_checkers_see_the_same_names_in_the_same_rooms():
    block = next(node for node in ast.parse(DOOR.read_text()).body if isinstance(node, ast.If))
    seen = {alias.name: statement.module for statement in block.body for alias in statement.names}
    assert seen == {name: f"bertworks.{room}" for name, room in bertworks._MODULE_OF.items()}


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bertworks.no_such_name


def test_the_python_page_names_them_all():
    page = (DOOR.parents[1] / "docs" / "python.md").read_text()
    assert [name for name in bertworks.__all__ if f"`{name}" not in page] == [], "run `make docs`"
