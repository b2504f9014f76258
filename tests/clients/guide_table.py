"""The table of clients in docs/guides/serve.md."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "serve.md"
HEADER = ("package", "for", "import", "the line that connects it")
# The models of `run.py` that each kind of request is for.
MODELS = {
    "vectors": "masked",
    "masks": "masked",
    "labels": "classes",
    "ranks": "pairs",
    "entities": "tags",
    "answers": "questions",
    "any model": "classes",
}


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        package: as `pip install` takes it, without a version but with extras.
        purpose: a key of `MODELS`.
        imports: Python, or nothing if the line is a command.
        line: an expression of Python with `url`, or a command with the address
            http://127.0.0.1:8080.
    """

    package: str
    purpose: str
    imports: str
    line: str


def rows() -> Iterator[Row]:
    """Yield the rows of the table, in their order."""
    table = GUIDE.read_text(encoding="utf-8").split(f"| {' | '.join(HEADER)} |\n", maxsplit=1)[1]
    for line in table.splitlines()[1:]:
        if not line.startswith("|"):
            return
        package, purpose, imports, code = (
            cell.strip().strip("`") for cell in line.strip("|").split("|")
        )
        yield Row(package, purpose, imports, code)


def package_of(requirement: str) -> str:
    """Return the package of a requirement such as `optimum-onnx[onnxruntime]==0.1.0`."""
    return re.split(r"[\[=<>~!]", requirement, maxsplit=1)[0]
