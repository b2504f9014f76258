"""Write docs/commands.md and docs/python.md from the code: `make docs`. What they say is said there only once."""

import inspect
import subprocess
import sys
from pathlib import Path

import bertworks

DOCS = Path(__file__).parent
VERBS = ("", "vocab", "prepare", "pretrain", "fill", "evaluate mlm", "doctor", "demo")


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
        signature = "" if is_error else str(inspect.signature(value)).replace("bertworks.", "")
        page += [f"## `{name}`", f"From `{value.__module__}`.", "```python", f"{name}{signature}", "```"]
        page += ["```text", inspect.cleandoc(value.__doc__ or ""), "```", ""]
    return "\n".join(page)


if __name__ == "__main__":
    (DOCS / "commands.md").write_text(commands(), encoding="utf-8")
    (DOCS / "python.md").write_text(python(), encoding="utf-8")
