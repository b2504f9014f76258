"""The public names: they exist, are documented, and are imported only when they are used."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import bertworks
from bertworks.training.recipe import FinetuneRecipe, Recipe

PACKAGE = Path(bertworks.__file__)
REFERENCE = PACKAGE.parents[1] / "docs" / "reference"


def in_new_process(code: str) -> list[str]:
    """The modules of a fresh interpreter after `code`."""
    code = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return json.loads(answer.stdout.splitlines()[-1])


def test_import_loads_no_library_and_no_module():
    modules = in_new_process("import bertworks")
    assert not {
        "torch",
        "numpy",
        "pyarrow",
        "tokenizers",
        "safetensors",
        "rich",
        "cyclopts",
        "sklearn",
    } & set(modules)
    assert [name for name in modules if name.startswith("bertworks")] == ["bertworks"]


def test_names_of_the_text_package_do_not_import_torch():
    assert "torch" not in in_new_process(
        "import bertworks; bertworks.CorpusReader; bertworks.Tokenizer; bertworks.Shards"
    )


def test_names_are_sorted_and_unique():
    assert bertworks.__all__ == sorted(set(bertworks.__all__))
    assert set(bertworks.__all__) < set(dir(bertworks))


@pytest.mark.parametrize("name", bertworks.__all__)
def test_every_name_exists_and_is_documented(name: str):
    value = getattr(bertworks, name)
    assert value.__module__.startswith("bertworks.")
    documentation = value.__doc__ or ""
    assert len(documentation.split()) >= 4
    assert not documentation.startswith(f"{name}("), "a dataclass without a docstring of its own"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = bertworks.no_such_name


@pytest.mark.parametrize("recipe", [Recipe, FinetuneRecipe])
def test_the_recipe_page_has_every_field(recipe: type):
    page = (REFERENCE / "recipes.md").read_text()
    for kind in [
        recipe,
        *(hint for hint in get_type_hints(recipe).values() if dataclasses.is_dataclass(hint)),
    ]:
        names = [field.name for field in dataclasses.fields(kind)]
        missing = [name for name in names if not re.search(rf"`{name}`|\b{name}\]+`", page)]
        assert missing == [], "run `make docs`"


def test_every_field_of_a_recipe_has_a_meaning():
    rows = [
        line
        for line in (REFERENCE / "recipes.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert [row for row in rows if not row.split("|")[-2].strip()] == []
    assert len(rows) > 60


def test_the_python_page_has_every_name():
    page = (REFERENCE / "python.md").read_text()
    assert [name for name in bertworks.__all__ if f"`{name}" not in page] == [], "run `make docs`"
