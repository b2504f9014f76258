"""Write docs/commands.md and docs/python.md from the code: `make docs`. What they say is said there only once."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import bertworks

DOCS = Path(__file__).parent
VERBS = (
    "", "vocab", "prepare", "pretrain", "check", "finetune", "predict", "fill", "score", "explain", "embed", "index",
    "search", "serve", "export", "import", "convert", "push", "evaluate mlm", "evaluate blimp", "evaluate task",
    "evaluate glue", "evaluate squad", "evaluate sts", "evaluate retrieval", "doctor", "demo",
)  # fmt: skip


def commands() -> str:
    """The help of every verb."""
    page = ["# Commands", "Written by `make docs` from the code.", ""]
    for verb in VERBS:
        command = [sys.executable, "-m", "bertworks.cli.main", *verb.split(), "--help"]
        environment = {"COLUMNS": "110", "TERM": "dumb", "NO_COLOR": "1", "PYTHONPATH": str(DOCS.parent)}
        text = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        page += [f"## bertworks {verb}".rstrip(), "```", lines, "```", ""]
    return "\n".join(page)


def python() -> str:
    """Every public name with its signature and its docstring."""
    page = ["# Python", "Written by `make docs` from the code. Every name is imported when it is first used.", ""]
    for name in bertworks.__all__:
        value = getattr(bertworks, name)
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        page += [f"## `{name}`", f"From `{value.__module__}`.", *described(name, value, signed=not is_error)]
        for method in [] if is_error or not inspect.isclass(value) else methods(value):
            page += [f"### `{name}.{method}`", *described(method, getattr(value, method))]
    return "\n".join(page)


def methods(kind: type) -> list[str]:
    """Those of its own that are for everybody, in the order in which they are written."""
    own = [name for name, member in vars(kind).items() if isinstance(member, FunctionType | classmethod)]
    return [name for name in own if not name.startswith("_") and getattr(kind, name).__doc__]


def described(name: str, value: Any, *, signed: bool = True) -> list[str]:
    """Signature and docstring."""
    signature = str(inspect.signature(value)).replace("bertworks.", "") if signed else ""
    return ["```python", f"{name}{signature}", "```", "```text", inspect.cleandoc(value.__doc__ or ""), "```", ""]


if __name__ == "__main__":
    (DOCS / "commands.md").write_text(commands(), encoding="utf-8")
    (DOCS / "python.md").write_text(python(), encoding="utf-8")
