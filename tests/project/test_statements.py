"""How the package is written: names that say what the value is, and one statement per line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project.test_measures import write_package
from tests.support import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import names
import statements

Search = Callable[[Path], list[names.Place]]
SEARCHES: list[Search] = [
    names.refused_names,
    statements.joined_assignments,
    statements.multiplied_texts,
    statements.assigning_comparisons,
]
# Modules that are not held to these rules yet.


@pytest.mark.parametrize("search", SEARCHES)
def test_the_package_has_none(search: Search) -> None:
    places = search(names.ROOT)
    assert not places


@pytest.mark.parametrize(
    ("search", "statement", "is_found"),
    [
        (statements.joined_assignments, "a, b = 1, 2", True),
        (statements.joined_assignments, "self.a, self.b = a, b", True),
        (statements.joined_assignments, "a, b = b, a", False),
        (statements.joined_assignments, "a, b = a + b, 0", False),
        (statements.joined_assignments, "a, b = pair", False),
        (statements.joined_assignments, "a = 1, 2", False),
        (statements.multiplied_texts, "a = 'x' * (b > 1)", True),
        (statements.multiplied_texts, "a = any(b) * f'{c}'", True),
        (statements.multiplied_texts, "a = 'x' * b.startswith('c')", True),
        (statements.multiplied_texts, "a = ' ' * (b + 2)", False),
        (statements.multiplied_texts, "a = b * (c > 1)", False),
        (statements.assigning_comparisons, "if (a := b) > 1: pass", True),
        (statements.assigning_comparisons, "while a and (b := c) is not None: pass", True),
        (statements.assigning_comparisons, "d = [a for b in c if (a := b) != 1]", True),
        (statements.assigning_comparisons, "if a := b: pass", False),
        (statements.assigning_comparisons, "if a := [b for b in c if b != 1]: pass", False),
        (names.refused_names, "one = 1", True),
        (names.refused_names, "first = 1", False),
    ],
)
def test_statements(search: Search, statement: str, is_found: bool, tmp_path: Path) -> None:
    package = write_package(tmp_path, {"module.py": f"{statement}\n"})
    places = [(place.module, place.line) for place in search(package)]
    assert places == ([("module", 1)] if is_found else [])
