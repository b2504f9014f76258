"""Print the size of each package: modules, lines of code (without blank lines, comments and docstrings), all lines."""

import ast
import io
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1] / "bertworks"
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(text: str) -> int:
    """Lines that hold a token which is no comment and no docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def main() -> None:
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(ROOT).parts
        for name in (parts[0] if len(parts) > 1 else "(top level)", "total"):
            row = sizes[name]
            row[0] += path.name != "__init__.py"
            row[1] += code_lines(text)
            row[2] += text.count("\n")
    print(f"{'package':<14}{'modules':>9}{'code':>8}{'lines':>8}")
    total = sizes.pop("total")
    for name, row in [*sorted(sizes.items()), ("total", total)]:
        print(f"{name:<14}{row[0]:>9}{row[1]:>8,}{row[2]:>8,}")


if __name__ == "__main__":
    sys.exit(main())
