"""Finds what the program advises to type, and types it: messages with commands and options, in the
code and in answers.

A template is a text of the code with {} for each value, such as "--dev {}".
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from bertworks.cli.main import main
from tests.support import ROOT

_PROGRAMS = (
    "bertworks|iconv|tr|pdftotext|gzip|zstd|xz|bzip2|tar|sed|cut|grep|jq|ls|mv|mkdir|pip|hf|python"
)
VERBS = (
    "vocab|prepare|pretrain|check|finetune|predict|fill|generate|score|explain|embed|index|search|"
    "evaluate|serve|export"
)
_ADVICE = re.compile(
    rf"`(?:{_PROGRAMS}|\{{\}}) |`bertworks|(?<![\w-])(?:bertworks "
    rf"(?:{VERBS}|import|convert|push|doctor|demo|--)\b"
    r"|iconv -|sed -|python -c|pip install|hf auth|(?:gzip|zstd|xz|bzip2) -)"
    r"|bertworks\.[a-z_]+\(|^(?:\w+|\{\})\([^()]*\[(?:text|id)\]\)"
    r"|(?:^|[\s:(;])--?[a-z][\w-]*|--\{\} |--\{\}$|(?:^|with |mean )\{option\}(?: |$)"
)
_ONLY_AN_OPTION = re.compile(r"-{1,2}[\w-]+=?|--\{\}|\{option\} \{\}.*")


def _text(node: ast.AST) -> str | None:
    """The template of a string in the code. A value called `option` is one: its name stays."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(part.value)
        else:
            assert isinstance(part, ast.FormattedValue)
            parts.append("{option}" if ast.unparse(part.value) == "option" else "{}")
    return "".join(parts)


def _strings(node: ast.AST) -> list[str]:
    """All texts but docstrings, also those within the values of others."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    inside = (
        [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        if isinstance(node, ast.JoinedStr)
        else ast.iter_child_nodes(node)
    )
    text = _text(node)
    return ([text] if text is not None else []) + [
        found for child in inside for found in _strings(child)
    ]


def _values(node: object) -> list[str]:
    """All texts of a table of TOML."""
    if isinstance(node, str):
        return [re.sub(r"\{(?!option\})\w[^{}\"]*\}", "{}", node)]
    inside = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return [text for value in inside for text in _values(value)]


def _texts(path: Path) -> list[str]:
    """The texts of a file of the package: of code, of a table, the lines of a page."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return _strings(ast.parse(content))
    if path.suffix == ".toml":
        return _values(tomllib.loads(content))
    return [re.sub(r"\{[^{}]*\}", "{}", line) for line in content.splitlines()]


@cache
def templates() -> dict[str, str]:
    """Every template of the package that contains a command or an option to type, and the file that
    it is in."""
    found: dict[str, str] = {}
    files = (
        path for path in (ROOT / "bertworks").rglob("*") if path.suffix in (".py", ".toml", ".md")
    )
    for path in sorted(path for path in files if "recipes" not in path.parts):
        for text in _texts(path):
            if _ADVICE.search(text) and not _ONLY_AN_OPTION.fullmatch(text.strip()):
                found.setdefault(text, str(path.relative_to(ROOT)))
    return found


class Shell:
    """A person who types commands. Those of bertworks run in this process.

    found: the templates that the answers had.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys, self.found = capsys, set[str]()

    def fails(self, *words: object) -> str:
        """What a command that is refused says."""
        code, out, err = self._run(words)
        assert code in (1, 2), f"{code}: {out}{err}"
        assert "bug in bertworks" not in err
        return err

    def works(self, *words: object) -> str:
        """What a command prints, on both streams."""
        code, out, err = self._run(words)
        assert code == 0, err
        return out + err

    def _run(self, words: tuple[object, ...]) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(list(map(str, words)))
        return code, *self._capsys.readouterr()

    def shows(self, answer: object, template: str) -> str:
        """The advice in an answer, as it is there."""
        assert template in templates(), f"no longer in the code: {template}"
        pattern = re.sub(r"\\\{(option)?\\\}", "(?:.*?)", re.escape(template))
        end = r"(?=`|\n|$|\)|; )" if template.endswith("}") else ""
        match = re.search(pattern + end, str(answer))
        assert match, f"{template!r} is not in:\n{answer}"
        self.found.add(template)
        return match[0]

    def types(self, advice: str, *more: object, **placeholders: object) -> str:
        """Type the command in some advice: between back quotes, or from the name of the program on.

        Args:
            more: words that a person adds.
            placeholders: what is typed for a word in capitals, with _ for -. For "...": `rest`.
        """
        if match := re.search(r"`(.*?)`", advice):
            command = match[1]
        else:
            command = advice[re.search(rf"(?<![\w/-])(?:{_PROGRAMS}) ", advice).start() :]  # type: ignore[union-attr]
        rest = placeholders.pop("rest", None)
        for name, value in placeholders.items():
            name = name.replace("_", "-")
            assert name in command, command
            command = re.sub(
                rf"(?<![\w-]){name}(?![\w-])", lambda _, v=value: shlex.quote(str(v)), command
            )
        command = command.replace("...", str(rest)) if rest else command
        command = " ".join([command, *(shlex.quote(str(word)) for word in more)])
        if command.startswith("bertworks "):
            return self.works(*shlex.split(command)[1:])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, env=os.environ | {"PATH": path}
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout


TESTED: dict[str, list[str]] = defaultdict(list)  # by template: the tests that type it
