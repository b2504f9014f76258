"""Types commands of this program in the process of the tests, and what their answers advise."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.cli.main import main

# Programs that hints name.
PROGRAMS = "bertworks|gzip|tar|sed|jq|ls|mv|pdftotext|python"


class Shell:
    """A person who types commands."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def works(self, *words: object) -> str:
        """Return what a command prints, on both streams."""
        code, out, err = self._run(words)
        assert code == 0, err
        return out + err

    def fails(self, *words: object) -> str:
        """Return the error message of a command that is refused."""
        code, out, err = self._run(words)
        assert code in (1, 2), f"{code}: {out}{err}"
        assert "bug in bertworks" not in err
        return err

    def refuses(self, words: str | list[object], error: str, hint: str) -> None:
        """Type a command that is refused with this error and this hint, parts of each."""
        message = self.fails(*(shlex.split(words) if isinstance(words, str) else words))
        what, _, advice = message.partition("hint: ")
        assert error in what, message
        assert hint in advice, message

    def _run(self, words: tuple[object, ...]) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = main(list(map(str, words)))
        return code, *self._capsys.readouterr()

    def shows(self, answer: object, template: str) -> str:
        """Return the part of an answer that matches a template, in which {} is any text."""
        pattern = re.escape(template).replace(r"\{\}", "(?:.*?)")
        end = r"(?=`|\n|$|\)|; )" if template.endswith("}") else ""
        match = re.search(pattern + end, str(answer))
        assert match, f"{template!r} is not in:\n{answer}"
        return match[0]

    def types(self, advice: str, *more: object, **placeholders: object) -> str:
        """Type the command in some advice: between back quotes, or from the name of the program on.

        Args:
            more: words that a person adds.
            placeholders: what is typed for a word in capitals, with _ for -.
        """
        quoted = re.search(r"`(.*?)`", advice)
        if quoted:
            command = quoted[1]
        else:
            start = re.search(rf"(?<![\w/-])(?:{PROGRAMS}) ", advice)
            assert start is not None, advice
            command = advice[start.start() :]
        for name, value in placeholders.items():
            word = name.replace("_", "-")
            assert word in command, command
            typed = shlex.quote(str(value))
            command = re.sub(rf"(?<![\w-]){word}(?![\w-])", lambda _, typed=typed: typed, command)
        command = " ".join([command, *(shlex.quote(str(word)) for word in more)])
        if command.startswith("bertworks "):
            return self.works(*shlex.split(command)[1:])
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        run = subprocess.run(
            command, shell=True, capture_output=True, text=True, env=os.environ | {"PATH": path}
        )
        assert run.returncode == 0, f"{command}: {run.stderr}"
        return run.stdout
