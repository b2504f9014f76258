"""Find statements in the text of a package that do too much at once.

- `joined_assignments`: `a, b = x, y`, except where values move between the same names
- `multiplied_texts`: `"text" * condition`
- `assigning_comparisons`: conditions that assign with `:=` and also compare

    python tools/statements.py    prints the place of each
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from names import ROOT, Place, parsed_modules

Condition = ast.If | ast.While | ast.IfExp | ast.Assert
CONDITION_FUNCTIONS = ("all", "any", "bool", "callable", "hasattr", "isinstance", "issubclass")
CONDITION_METHODS = ("endswith", "startswith")


def joined_assignments(root: Path) -> list[Place]:
    """Return the assignments of several values to several names in one statement.

    An assignment in which a value depends on one of the names, as in `a, b = b, a`, does not count.
    """
    places = []
    for module, tree in parsed_modules(root):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
                continue
            targets = [target for target in node.targets if isinstance(target, ast.Tuple)]
            if targets and not any(moves_values(target, node.value) for target in targets):
                places.append(Place(module, node.lineno, ast.unparse(targets[0])))
    return sorted(places)


def moves_values(target: ast.Tuple, value: ast.Tuple) -> bool:
    """Return whether a value depends on a name that gets a value, as in a swap."""
    names = {ast.unparse(element) for element in target.elts}
    return any(
        isinstance(node, ast.expr) and ast.unparse(node) in names for node in ast.walk(value)
    )


def multiplied_texts(root: Path) -> list[Place]:
    """Return the products of a text and a condition."""
    places = []
    for module, tree in parsed_modules(root):
        for node in ast.walk(tree):
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
                continue
            for text, factor in ((node.left, node.right), (node.right, node.left)):
                if is_text(text) and is_condition(factor):
                    places.append(Place(module, node.lineno, ast.unparse(node)))
    return sorted(places)


def is_text(node: ast.expr) -> bool:
    """Return whether an expression is written as a text."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)


def is_condition(node: ast.expr) -> bool:
    """Return whether an expression is a condition by its form: a comparison, `not x`, `any(x)`."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute):
            return function.attr in CONDITION_METHODS
        return isinstance(function, ast.Name) and function.id in CONDITION_FUNCTIONS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Compare | ast.BoolOp)


def assigning_comparisons(root: Path) -> list[Place]:
    """Return the conditions that assign with `:=` and also compare.

    Those within a comprehension that is assigned do not count: they are conditions of their own.
    """
    places = []
    for module, tree in parsed_modules(root):
        for node in ast.walk(tree):
            conditions = []
            if isinstance(node, Condition):
                conditions = [node.test]
            elif isinstance(node, ast.comprehension):
                conditions = node.ifs
            for condition in conditions:
                parts = list(parts_of(condition))
                assigns = any(isinstance(part, ast.NamedExpr) for part in parts)
                if assigns and any(isinstance(part, ast.Compare) for part in parts):
                    places.append(Place(module, condition.lineno, ast.unparse(condition)))
    return sorted(places)


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a condition without those of comprehensions and lambdas."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(
            child, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda
        ):
            yield from parts_of(child)


def main() -> None:
    for title, places in (
        ("assignments of several values", joined_assignments(ROOT)),
        ("texts times conditions", multiplied_texts(ROOT)),
        ("conditions that assign and compare", assigning_comparisons(ROOT)),
    ):
        print(f"{title}: {len(places)}")
        for place in places:
            print(f"  {place.module}:{place.line}: {place.name.splitlines()[0]}")


if __name__ == "__main__":
    main()
