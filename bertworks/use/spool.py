"""Answers on disk until all are there: what was stopped goes on where it was. Not here: what is answered."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Self

from bertworks.errors import BertworksError

_END = b"end of portion\n"


class Spool:
    """Answers, one JSON line each, in portions. What a killed process wrote of a portion is forgotten: the portion is
    answered again as a whole, and so just as it would have been. While it is open no other process can open it.

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
        self._file = self._alone()
        if not self._usable():
            self._file.truncate(0)
            self._file.write(fingerprint.encode() + b"\n")
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _alone(self) -> BinaryIO:
        """The file, open, which the kernel keeps for this process until that ends.

        Raises:
            BertworksError: another process answers for the same output.
        """
        while True:
            file = self.path.open("a+b")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.close()
                what = "another process is writing the same output"
                raise BertworksError(what, where=str(self.path), fix="wait for it, or name another output") from None
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self.path.stat()):
                    return file
            file.close()  # who had it has just finished, and removed it

    def _usable(self) -> bool:
        """Whether answers of the same kind are there; half a portion is cut off."""
        file = self._file
        file.seek(0)
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
        for result in portion:
            self._file.write((json.dumps(result, ensure_ascii=False) + "\n").encode())
        self._file.write(_END)
        self._file.flush()
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


def beside(output: str | Path) -> Path | None:
    """The output, as a spool wants it."""
    return None if str(output) == "-" else Path(output).expanduser()
