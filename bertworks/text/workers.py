"""Parts -> part files by several processes at once; what happens when one of them dies.

It does not know what a part file holds (`parts` does). Workers are plain child processes fed through their standard
input rather than `multiprocessing`: they need no `if __name__ == "__main__"` in the user's script, Ctrl-C does not
reach them, and they end by themselves when their parent is gone, however it went.
"""

import json
import os
import queue
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from bertworks.errors import BertworksError
from bertworks.text.parts import Part, PartCounts, PartWriter, find_part

_READ_AHEAD = 2  # parts read and waiting, besides those that the workers have


def write_parts(
    parts: Iterable[Part], tokenizer_folder: Path, tokenizer_sha256: str, folder: Path, workers: int
) -> Generator[PartCounts, None, None]:
    """Write the parts that are not there yet and yield the counts of all, in order.

    Args:
        workers: processes; 1 works in this one.

    Raises:
        BertworksError: a worker was killed, or could not write. The parts written so far stay and are found again.
    """
    if workers == 1:
        writer = PartWriter(tokenizer_folder, folder)
        for part in parts:
            yield find_part(folder, part, tokenizer_sha256) or writer.write(part)
        return
    pending: deque[Future[PartCounts]] = deque()
    team = _Team(workers, tokenizer_folder, folder)
    try:
        for part in parts:
            found = find_part(folder, part, tokenizer_sha256)
            pending.append(_done(found) if found else team.submit(part))
            while len(pending) > workers + _READ_AHEAD or (pending and pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        team.stop()


def _done(counts: PartCounts) -> Future[PartCounts]:
    future: Future[PartCounts] = Future()
    future.set_result(counts)
    return future


class _Team:
    """Worker processes, each served by one thread of ours that waits for it. They start when there is work."""

    def __init__(self, workers: int, tokenizer_folder: Path, folder: Path):
        self._threads = ThreadPoolExecutor(workers)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []
        self._workers = workers
        self._command = [sys.executable, "-c", "from bertworks.text.workers import serve; serve()"]
        self._command += [str(tokenizer_folder), str(folder)]

    def submit(self, part: Part) -> Future[PartCounts]:
        if len(self._all) < self._workers:
            self._start()
        return self._threads.submit(self._write, part)

    def _start(self) -> None:
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
        worker = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._all.append(worker)
        self._idle.put(worker)

    def _write(self, part: Part) -> PartCounts:
        worker = self._idle.get()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            _send(worker.stdin, part)
            answer = worker.stdout.readline()
        except OSError:  # a broken pipe
            answer = b""
        finally:  # also when it died: the next part must not wait for a worker for ever
            self._idle.put(worker)
        if not answer.endswith(b"\n"):
            raise BertworksError(
                f"a worker process ended while it made part {part.number} ({_how_it_ended(worker)})",
                fix="type the same again: it goes on with the parts that are written; fewer --workers need less memory",
            )
        return _understand(json.loads(answer))

    def stop(self) -> None:
        """End the processes at once; what they have not finished is lost, what they wrote is whole."""
        for worker in self._all:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.communicate()


def _how_it_ended(worker: subprocess.Popen[bytes]) -> str:
    code = worker.wait()
    return f"killed by signal {-code}: was memory short?" if code < 0 else f"exit code {code}"


def _understand(answer: dict[str, Any]) -> PartCounts:
    if "error" in answer:
        raise BertworksError(answer["error"], where=answer["where"], fix=answer["fix"])
    if "bug" in answer:
        raise RuntimeError(f"in a worker process:\n{answer['bug']}")
    return PartCounts(**answer)


def _send(pipe: IO[bytes], part: Part) -> None:
    sizes = [len(piece) for piece in part.pieces]
    header = [part.number, sizes, part.begins, part.characters, part.sha256]
    pipe.write(json.dumps(header).encode() + b"\n")
    pipe.write(b"".join(part.pieces))
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Part | None:
    header = pipe.readline()
    if not header.endswith(b"\n"):
        return None
    number, sizes, begins, characters, digest = json.loads(header)
    pieces = [pipe.read(size) for size in sizes]
    return Part(number, pieces, begins, characters, digest) if sum(map(len, pieces)) == sum(sizes) else None


def serve() -> None:
    """What a worker process does: parts come in by standard input, counts go out, until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints does not get between the answers
    writer: PartWriter | None = None
    while (part := _receive(sys.stdin.buffer)) is not None:
        try:
            writer = writer or PartWriter(Path(sys.argv[1]), Path(sys.argv[2]))
            answer = asdict(writer.write(part))
        except BertworksError as error:
            answer = {"error": error.what, "where": error.where, "fix": error.fix}
        except Exception:
            answer = {"bug": traceback.format_exc()}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
