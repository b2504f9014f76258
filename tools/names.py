"""Find names in the text of a package: comparisons with the name of a task, and variables whose
names say nothing.

- `task_names`: comparisons and match cases with a task's name
- `refused_names`: variables and parameters with a refused name

    python tools/names.py    prints the place of each
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1] / "bertworks"
TASKS = ("classification", "multilabel", "regression", "tagging", "spans", "qa", "choice")
TASKS_PACKAGE = "tasks"  # the only package that may know them
# What these name is found only by reading on: a name is a noun of the field.
REFUSED_NAMES = frozenset(
    (Path(__file__).parent / "refused_names.txt").read_text(encoding="utf-8").split()
)
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(frozen=True, order=True)
class Place:
    """Where a name stands. module: with dots, below the package."""

    module: str
    line: int
    name: str


def parsed_modules(root: Path) -> Iterator[tuple[str, ast.Module]]:
    """The modules of a package, with their names below it, and their syntax trees."""
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        yield name, parsed(path, path.stat().st_mtime_ns)


@cache
def parsed(path: Path, changed: int) -> ast.Module:
    """Return the syntax tree of a file, which is read once.

    Args:
        changed: when the file was changed.
    """
    return ast.parse(path.read_text(encoding="utf-8"))


def names_task(node: ast.expr) -> str | None:
    """The task that an operand of a comparison names, itself or as an element of a list, tuple or
    set; None: none."""
    if isinstance(node, ast.Constant):
        return node.value if node.value in TASKS else None
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return next(filter(None, map(names_task, node.elts)), None)
    return None


def task_names(root: Path) -> list[Place]:
    """Where a package compares something with the name of a task: `==`, `!=`, `in`, `not in` and
    the like, once for each chain of comparisons, and each case of a `match` whose pattern holds the
    name. The package `tasks` is left out."""
    places = []
    for module, tree in parsed_modules(root):
        if module.partition(".")[0] == TASKS_PACKAGE:
            continue
        for node in ast.walk(tree):
            operands: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                operands = [node.left, *node.comparators]
            elif isinstance(node, ast.match_case):
                operands = [
                    part.value
                    for part in ast.walk(node.pattern)
                    if isinstance(part, ast.MatchValue)
                ]
            tasks = list(filter(None, map(names_task, operands)))
            if tasks:
                places.append(Place(module, operands[0].lineno, tasks[0]))
    return sorted(places)


def refused_names(root: Path) -> list[Place]:
    """The variables and parameters of a package that have a refused name, each once in its module,
    class, function, lambda or comprehension: at the first line that gives it a value. Attributes do
    not count."""
    places = []
    for module, tree in parsed_modules(root):
        first_lines: dict[tuple[int, str], int] = {}
        for scope, name, line in bindings(tree, tree):
            if name in REFUSED_NAMES:
                key = (id(scope), name)
                first_lines[key] = min(line, first_lines.get(key, line))
        places += [Place(module, line, name) for (_, name), line in first_lines.items()]
    return sorted(places)


def bindings(node: ast.AST, scope: ast.AST) -> Iterator[tuple[ast.AST, str, int]]:
    """What gives a name a value within a node: the scope of the name, the name, its line. Imports,
    functions and classes do not count: their names are of other kinds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield scope, node.id, node.lineno
    elif isinstance(node, ast.arg):
        yield scope, node.arg, node.lineno
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield scope, node.name, node.lineno
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield scope, node.rest, node.lineno
    inner = node if isinstance(node, Scope | Comprehension) else scope
    for child in ast.iter_child_nodes(node):
        yield from bindings(child, inner)


def main() -> None:
    for title, places in (
        ("comparisons with a task", task_names(ROOT)),
        ("refused names", refused_names(ROOT)),
    ):
        print(f"{title}: {len(places)}")
        for place in places:
            print(f"  {place.module}:{place.line}: {place.name}")


if __name__ == "__main__":
    main()
