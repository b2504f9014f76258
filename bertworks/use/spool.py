"""Answers on disk until all are there: what was stopped goes on where it was. Not here: what is answered."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertworks.text.atomic import write_text

_END = b"end of portion\n"


class Spool:
    """Answers, one JSON line each, in portions. What a killed process wrote of a portion is forgotten: the portion is
    answered again as a whole, and so just as it would have been.

    Args:
        output: the file beside which it is kept; None: nothing is to be kept.
        fingerprint: of all that the answers depend on; the first line says it, and another one begins anew.

    Attributes:
        count: of the answers that are there.
        truncated: how many of them are to texts that were cut.
    """

    def __init__(self, output: Path | None, fingerprint: str):
        if output is None:
            self._scratch = TemporaryDirectory()
            self.path = Path(self._scratch.name) / "answers.partial"
        else:
            self.path = output.with_name(f".{output.name}.partial")
            output.parent.mkdir(parents=True, exist_ok=True)
        self.fingerprint, self.count, self.truncated = fingerprint, 0, 0
        if not self._usable():
            write_text(self.path, fingerprint + "\n")

    def _usable(self) -> bool:
        """Whether answers of the same kind are there; half a portion is cut off."""
        if not self.path.exists():
            return False
        with self.path.open("rb+") as file:
            if file.readline().decode("utf-8", "replace").rstrip("\n") != self.fingerprint:
                return False
            good, count, truncated = file.tell(), 0, 0
            for line in iter(file.readline, b""):
                if line == _END:
                    good, self.count, self.truncated = file.tell(), count, truncated
                elif line.endswith(b"\n"):
                    count += 1
                    truncated += json.loads(line)["truncated_tokens"] > 0
            file.truncate(good)
        return True

    def add(self, portion: Sequence[Mapping[str, Any]]) -> None:
        """Keeps a portion of answers."""
        with self.path.open("ab") as file:
            for result in portion:
                file.write((json.dumps(result, ensure_ascii=False) + "\n").encode())
            file.write(_END)
        self.count += len(portion)
        self.truncated += sum(result["truncated_tokens"] > 0 for result in portion)

    def read(self) -> Iterator[dict[str, Any]]:
        """All answers, in their order."""
        with self.path.open("rb") as file:
            next(file)
            for line in file:
                if line != _END:
                    yield json.loads(line)

    def remove(self) -> None:
        """Deletes it: the answers are where they belong."""
        self.path.unlink(missing_ok=True)
