"""CPUs that this process may use, and work in several processes.

- `available_cpus`: the limit by affinity and by the CPU quota of a control group (`docker --cpus`)
- `CpuMonitor`: free CPUs, measured between two calls
- `in_processes`: results in the order of the inputs, and an error if a worker dies

Workers are child processes that read from standard input, not `multiprocessing`: they need no `if
__name__ == "__main__"` in the script of the user, Ctrl-C does not reach them, and they end with
their parent. Values are pickled: they come from this process and its workers only.
"""

import json
import math
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from typing import Any, TypeVar

from bertworks.errors import BertworksError
from bertworks.io.system import read_system_file

_T = TypeVar("_T")
_READ_AHEAD = 2  # inputs that wait for a worker


def allowed_cpus() -> set[int]:
    """Numbers of the CPUs that the affinity of this process allows."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """Return the CPUs that the control groups of this process may use per second of time.

    None: no limit is set.
    """
    limits = []
    for folder in group_folders("cpu"):
        text = read_system_file(folder / "cpu.max") or " ".join(
            read_system_file(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        if limit := re.fullmatch(r"(\d+)\s+([1-9]\d*)\s*", text):
            limits.append(int(limit[1]) / int(limit[2]))
    return min(limits, default=None)


def available_cpus() -> int:
    """Return the number of CPUs that this process may keep busy, at least 1.

    It is the number of the affinity, or a smaller quota, rounded up: two threads use a quota of 1.5
    CPUs fully, one does not.
    """
    allowed = len(allowed_cpus())
    quota = cpu_quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


class CpuMonitor:
    """Measures the CPUs that are free for this process: its own, and those that are idle."""

    def __init__(self) -> None:
        self._last = self._sample()

    def elapsed(self) -> float:
        """Seconds since the last measurement."""
        return time.monotonic() - self._last[0]

    def free_cpus(self) -> float | None:
        """Free CPUs on average since the last call, or since the monitor was made.

        None: the system does not tell.
        """
        before = self._last
        self._last = self._sample()
        seconds, used, idle, ticks = (new - old for old, new in zip(before, self._last))
        if seconds <= 0 or ticks <= 0:
            return None
        cpus = len(allowed_cpus())
        return min(float(cpus), idle / ticks * cpus + used / seconds)

    @staticmethod
    def _sample() -> tuple[float, float, int, int]:
        """Time, CPU seconds of this process, idle ticks and all ticks of the allowed CPUs."""
        idle = total = 0
        names = {f"cpu{number}" for number in allowed_cpus()}
        for line in read_system_file(Path("/proc/stat")).splitlines():
            name, *values = line.split()
            if name in names:
                # user nice system idle iowait irq softirq steal
                ticks = [int(value) for value in values[:8]]
                idle += sum(ticks[3:5])
                total += sum(ticks)
        return time.monotonic(), time.process_time(), idle, total


def group_folders(controller: str) -> list[Path]:
    """Return the folders of the control groups of this process, from its own to the root.

    They are those of version 1 or 2.
    """
    root = Path("/sys/fs/cgroup")
    folders = []
    for line in read_system_file(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        group = base / path.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(base))]
    return folders


def in_processes(
    maker: str,
    settings: Sequence[Any],
    inputs: Iterable[Any],
    workers: int | None,
    *,
    ended: str,
    hint: str,
    tries: int = 1,
    gpus: int = 0,
    any_order: bool = False,
) -> Generator[Any, None, None]:
    """Yield the result of each input, in order, or with `any_order` as they come.

    Args:
        maker: "module:name" of a function. Each process calls it with the settings; it returns the
            function from input to result.
        settings: values that JSON can hold.
        inputs: values that can be pickled, as the results.
        workers: processes; None: one per CPU; 1: this process only, unless `any_order`.
        ended, hint: the error when an input has ended as many processes as `tries`. {number}
            becomes its number, {value[0]} its first part, {how} the exit status. gpus: that the
            processes share.

    Raises:
        BertworksError: a worker was killed, or raised this error.
    """
    workers = workers or available_cpus()
    if workers == 1 and not any_order:
        yield from map(resolve_name(maker)(*settings), inputs)
        return
    # No lock of `threading` or `concurrent.futures` here: an interrupt may leave one locked for
    # ever. A queue may not.
    tasks = SimpleQueue[tuple[int, Any] | None]()
    results = SimpleQueue[tuple[int, Any]]()
    processes = list[subprocess.Popen[bytes]]()
    done = dict[int, Any]()
    sent = 0
    received = 0
    ends = list[bool]()  # not empty when the processes are no longer needed

    def finished(unfinished: int) -> Iterator[Any]:
        """Yield the next results.

        These are those that exist, and more until at most `unfinished` inputs have none.
        """
        nonlocal received
        while received in done or sent - received > unfinished or not results.empty():
            if received not in done:
                number, value = results.get()
                done[received if any_order else number] = value
                continue
            result = done.pop(received)
            received += 1
            if isinstance(result, Exception):
                raise result
            yield result

    def start(place: int) -> subprocess.Popen[bytes]:
        work = json.dumps([maker, settings])
        command = [sys.executable, "-c", "from bertworks.io.processes import serve; serve()", work]
        rank = {"LOCAL_RANK": str(place % gpus)} if gpus else {}
        options = {"TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | rank | options,
            start_new_session=True,
        )

    def feed(place: int) -> None:
        """Give inputs to a process, one at a time, and collect its results, until an input is None.

        Another one takes its place when it ends.
        """
        with suppress(OSError), ExitStack() as stack:
            stack.enter_context(processes[place])
            while task := tasks.get():
                number, value = task
                for left in reversed(range(tries)):
                    process = processes[place]
                    try:
                        assert process.stdin
                        assert process.stdout
                        pickle.dump(value, process.stdin)
                        process.stdin.flush()
                        result = pickle.load(process.stdout)
                        break
                    # a broken pipe, or an incomplete value
                    except (OSError, EOFError, pickle.UnpicklingError):
                        code = process.wait()
                        how = (
                            f"killed by signal {-code}, perhaps for lack of memory"
                            if code < 0
                            else f"exit code {code}"
                        )
                        result = BertworksError(
                            ended.format(number=number, how=how, value=value), hint=hint
                        )
                        if left and not ends:
                            processes[place] = stack.enter_context(start(place))
                        if ends:
                            processes[place].kill()
                    except Exception as error:  # the value cannot be pickled
                        result = error
                        break
                results.put((number, result))

    try:
        for value in inputs:
            if sent < workers:
                processes.append(start(sent))
                threading.Thread(target=feed, args=(sent,), daemon=True).start()
            tasks.put((sent, value))
            sent += 1
            yield from finished(workers + _READ_AHEAD)
        yield from finished(0)
    finally:
        ends.append(True)
        for process in processes:
            process.kill()
            tasks.put(None)
        for process in processes:
            process.wait()


def serve() -> None:
    """Run the loop of a worker process.

    It reads inputs from standard input and writes results until the input ends. An exception is a
    result too. If the parent was killed, the process ends without a word, since no process reads
    the results.
    """
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints of libraries must not mix with the results
    maker, settings = json.loads(sys.argv[1])
    work: Callable[[Any], Any] | None = None
    while True:
        try:
            value = pickle.load(sys.stdin.buffer)
        except (EOFError, pickle.UnpicklingError):  # no input, or a part of one
            return
        try:
            work = work or resolve_name(maker)(*settings)
            result = work(value)
        except Exception as error:
            error.add_note(f"in a worker process:\n{traceback.format_exc()}")
            result = error
        try:
            pickle.dump(result, output)
            output.flush()
        except BrokenPipeError:
            # else Python would try to write the rest once more, and print that it cannot
            os._exit(0)
