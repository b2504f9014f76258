"""Work in several child processes, with results in order, and an error if one of them dies.

Workers are plain child processes that read from standard input, not `multiprocessing`: they need no
`if __name__ == "__main__"` in the user's script, Ctrl-C does not reach them, and they end when their parent is gone.
Values are passed as `marshal` writes them.
"""

import json
import marshal
import os
import queue
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from typing import IO, Any

from bertworks.errors import BertworksError

_READ_AHEAD = 2  # inputs read and waiting, besides those that the workers have


def chunk_by_size(texts: Iterable[str], characters: int) -> Iterator[list[str]]:
    """Texts in chunks of at least this number of characters; the last may be smaller."""
    lot: list[str] = []
    size = 0
    for text in texts:
        lot.append(text)
        size += len(text)
        if size >= characters:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot


def in_processes(
    maker: str, settings: Sequence[Any], inputs: Iterable[Any], workers: int | None, *, ended: str, hint: str
) -> Generator[Any, None, None]:
    """Yield the answer to each input, in order.

    Args:
        maker: "module:name" of what, called with the settings in each process, gives the function from input to answer.
        settings: what JSON can hold.
        inputs: plain values (texts, bytes, numbers, tuples, lists, dicts of these), as answers have to be.
        workers: processes; None: one per processor; 1: none but this one.
        ended, hint: what to say of a process that ended too early. {number} in it is that of the input, {how} its end.

    Raises:
        BertworksError: a worker was killed, or raised one.
    """
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers == 1:
        yield from map(_made(maker, settings), inputs)
        return
    pending: deque[Future[Any]] = deque()
    team = _Team(workers, json.dumps([maker, settings]), ended, hint)
    try:
        for number, value in enumerate(inputs):
            pending.append(team.submit(number, value))
            while len(pending) > workers + _READ_AHEAD or (pending and pending[0].done()):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        team.stop()


def _made(maker: str, settings: Sequence[Any]) -> Callable[[Any], Any]:
    module, name = maker.split(":")
    work: Callable[[Any], Any] = getattr(import_module(module), name)(*settings)
    return work


class _Team:
    """Worker processes, each served by one thread of ours that waits for it. They start when there is work."""

    def __init__(self, workers: int, work: str, ended: str, hint: str):
        self._workers, self._work, self._ended, self._fix = workers, work, ended, hint
        self._threads = ThreadPoolExecutor(workers)
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._all: list[subprocess.Popen[bytes]] = []

    def submit(self, number: int, value: Any) -> Future[Any]:
        if len(self._all) < self._workers:
            self._start()
        return self._threads.submit(self._ask, number, value)

    def _start(self) -> None:
        command = [sys.executable, "-c", "from bertworks.io.workers import serve; serve()", self._work]
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self._all.append(worker)
        self._idle.put(worker)

    def _ask(self, number: int, value: Any) -> Any:
        worker = self._idle.get()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            _send(worker.stdin, value)
            answer, error, bug = _receive(worker.stdout)
        except (OSError, EOFError):  # a broken pipe
            code = worker.wait()
            how = f"killed by signal {-code}: was memory short?" if code < 0 else f"exit code {code}"
            raise BertworksError(self._ended.format(number=number, how=how), hint=self._fix) from None
        finally:  # also when it died: the next input must not wait for a worker for ever
            self._idle.put(worker)
        if error:
            what, where, hint = error
            raise BertworksError(what, where=where, hint=hint)
        if bug:
            raise RuntimeError(f"in a worker process:\n{bug}")
        return answer

    def stop(self) -> None:
        """End the processes at once; what they have not finished is lost."""
        for worker in self._all:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.communicate()


def _send(pipe: IO[bytes], value: Any) -> None:
    content = marshal.dumps(value)
    pipe.write(len(content).to_bytes(8, "big") + content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """Raises EOFError where the other end is gone."""
    size = pipe.read(8)
    if len(size) < 8:
        raise EOFError
    return marshal.loads(pipe.read(int.from_bytes(size, "big")))  # EOFError also where it is cut short


def serve() -> None:
    """What a worker process does: inputs come in by standard input, answers go out, until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else prints does not get between the answers
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            value = _receive(sys.stdin.buffer)
        except EOFError:
            return
        answer, error, bug = None, None, ""
        try:
            work = work or _made(*json.loads(sys.argv[1]))
            answer = work(value)
        except BertworksError as raised:
            error = (raised.what, raised.where, raised.hint)
        except Exception:
            bug = traceback.format_exc()
        _send(answers, (answer, error, bug))
