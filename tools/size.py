"""Print the size of the package: Python tokens and lines of code of each package, and lines of its
other files.

A token is a name, an operator, a number or a string as Python 3.11's tokenizer counts them, without
comments and docstrings. Later versions take an f-string apart; here it is one token in every
version, so that figures of all versions can be compared. A line of code holds at least one such
token. Layout (line ends, indentation) does not count: a formatter cannot change the number of
tokens, except by trailing commas and parentheses.

    python tools/size.py [PACKAGE FOLDER] [--json]
"""

import argparse
import ast
import io
import json
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1] / "bertworks"
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
# Python 3.12 has tokens for the beginning and the end of an f-string, and 3.14 for those of a
# t-string.
OPENING = {
    getattr(tokenize, name)
    for name in ("FSTRING_START", "TSTRING_START")
    if hasattr(tokenize, name)
}
CLOSING = {
    getattr(tokenize, name) for name in ("FSTRING_END", "TSTRING_END") if hasattr(tokenize, name)
}
JINJA_MARKS = ("{{", "{%")
OTHER_KINDS = ("TOML", "Jinja", "HTML", "JS", "CSS")
TOP_LEVEL = "(top level)"
TOTAL = "total"


@dataclass
class Size:
    """The size of some modules. lines: all lines, with comments, docstrings and blank lines."""

    modules: int = 0
    tokens: int = 0
    code_lines: int = 0
    lines: int = 0

    @property
    def tokens_per_line(self) -> float:
        """Tokens per line of code, to one decimal; 0.0 without any code."""
        if not self.code_lines:
            return 0.0
        return round(self.tokens / self.code_lines, 1)

    def __add__(self, other: "Size") -> "Size":
        return Size(
            self.modules + other.modules,
            self.tokens + other.tokens,
            self.code_lines + other.code_lines,
            self.lines + other.lines,
        )

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "tokens_per_line": self.tokens_per_line}


def docstring_places(text: str) -> set[tuple[int, int]]:
    """The lines, from 1, and columns, in bytes, at which the docstrings of a module begin."""
    places: set[tuple[int, int]] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant):
            continue
        if isinstance(first.value.value, str):
            places.add((first.lineno, first.col_offset))
    return places


def counted_tokens(text: str) -> Iterator[tuple[int, int]]:
    """The first and the last line of each counted token of a module. An f-string is one token."""
    docstrings = docstring_places(text)
    in_docstring = False
    depth = 0  # of f-strings within f-strings, as Python 3.12 and later tell them
    beginning = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in OPENING:
            beginning = beginning if depth else token.start[0]
            depth += 1
        elif token.type in CLOSING:
            depth -= 1
            if not depth:
                yield beginning, token.end[0]
        elif depth or token.type not in COUNTED:
            continue
        elif token.type == tokenize.STRING and (in_docstring or byte_place(token) in docstrings):
            in_docstring = True  # which may be written as several strings side by side
        else:
            in_docstring = False
            yield token.start[0], token.end[0]


def byte_place(token: tokenize.TokenInfo) -> tuple[int, int]:
    """Where a token begins: its line, and its column in bytes, as in the nodes of `ast`."""
    line, column = token.start
    return line, len(token.line[:column].encode())


def size_of_module(path: Path) -> Size:
    """The size of a Python file. A package's `__init__.py` is not counted as a module."""
    text = path.read_text(encoding="utf-8")
    tokens = 0
    code_lines: set[int] = set()
    for first, last in counted_tokens(text):
        tokens += 1
        code_lines.update(range(first, last + 1))
    return Size(int(path.name != "__init__.py"), tokens, len(code_lines), text.count("\n"))


def sizes_of_packages(root: Path) -> dict[str, Size]:
    """The size of each package in a folder, of the modules at its top level, and of all
    together."""
    sizes: dict[str, Size] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        size = size_of_module(path)
        for name in (parts[0] if len(parts) > 1 else TOP_LEVEL, TOTAL):
            sizes[name] = sizes.get(name, Size()) + size
    total = sizes.pop(TOTAL, Size())
    return {**dict(sorted(sizes.items())), TOTAL: total}


def kind_of_file(path: Path) -> str | None:
    """The kind of a file that is not Python: one of OTHER_KINDS, or None. A template may have any
    suffix."""
    suffix = path.suffix.lower()
    if suffix in (".html", ".htm", ".md", ".txt", ".j2", ".jinja"):
        text = path.read_text(encoding="utf-8")
        if suffix in (".j2", ".jinja") or any(mark in text for mark in JINJA_MARKS):
            return "Jinja"
    return {".toml": "TOML", ".html": "HTML", ".htm": "HTML", ".js": "JS", ".css": "CSS"}.get(
        suffix
    )


def lines_of_other_files(root: Path) -> dict[str, int]:
    """The number of lines of each kind of file that is not Python."""
    lines = dict.fromkeys(OTHER_KINDS, 0)
    for path in sorted(root.rglob("*")):
        kind = kind_of_file(path) if path.is_file() else None
        if kind is not None:
            lines[kind] += len(path.read_text(encoding="utf-8").splitlines())
    return lines


def table(sizes: dict[str, Size], other: dict[str, int]) -> str:
    """The sizes for people to read."""
    rows = [f"{'package':<14}{'modules':>9}{'tokens':>10}{'code':>9}{'per line':>10}{'lines':>9}"]
    for name, size in sizes.items():
        rows.append(
            f"{name:<14}{size.modules:>9}{size.tokens:>10,}{size.code_lines:>9,}"
            f"{size.tokens_per_line:>10.1f}{size.lines:>9,}"
        )
    rows.append("")
    rows.append("lines of")
    rows.extend(f"{kind:<14}{lines:>9,}" for kind, lines in other.items())
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=ROOT, help="the folder of a package"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    sizes, other = sizes_of_packages(arguments.folder), lines_of_other_files(arguments.folder)
    if arguments.json:
        packages = {name: size.as_dict() for name, size in sizes.items()}
        print(json.dumps({"packages": packages, "other_lines": other}, indent=2))
    else:
        print(table(sizes, other))


if __name__ == "__main__":
    main()
