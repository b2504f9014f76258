"""What a call runs of a package, and how often it opens a file: traced in a process of its own.

- `traced`: runs a function in a fork of this process and returns its `Trace`
- `Recorder`: counts what happens between `start` and `stop`

What is counted stands at the fields of `Trace`.
"""

import dis
import gzip
import json
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

SUSPENDED = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
# Python 3.12 computes a comprehension within its function: none is counted as a function in any
# version.
NO_FUNCTIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"}


@dataclass(frozen=True)
class Trace:
    """What a call ran.

    modules: the modules of the package of which at least one function was called, in alphabetical
        order.
    functions: how many functions, methods and lambdas of these modules were called. Those that
        `dataclass` writes, comprehensions and the bodies of classes do not count.
    calls: how often they were called. A generator or a coroutine is called once, however often it
        is resumed.
    opens: how often Python opened the input for reading: that path, by whatever name, or a file in
        the folder for temporary files with the same bytes, compressed or not. Reading standard
        input counts as opening it once. Opens by a library's C code are not seen.
    """

    modules: tuple[str, ...]
    functions: int
    calls: int
    opens: int


@cache
def first_resume(code: CodeType) -> int:
    """The offset of the instruction at which a generator or a coroutine begins; later ones resume
    it."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


class Recorder:
    """Counts the calls of functions in a folder and the opens of a file, in all threads begun after
    it was made.

    An audit hook cannot be removed: a recorder is for a process that ends with it.
    """

    def __init__(self, package: Path, input_file: Path | None, temporary: Path):
        """package: the folder whose functions count. temporary: the folder in which copies of the
        input count."""
        self._prefix = str(package) + os.sep
        self._input = input_file
        self._contents = contents_of(input_file) if input_file else ()
        self._temporary = temporary
        self._is_recording = False
        self._is_comparing = False
        self._calls: dict[CodeType, int] = {}
        self._is_counted: dict[CodeType, bool] = {}
        self.opens = 0
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        if input_file:
            sys.addaudithook(self._audit)

    def start(self) -> None:
        self._is_recording = True

    def stop(self) -> None:
        self._is_recording = False

    def trace(self) -> Trace:
        """What was counted so far."""
        names = {
            Path(code.co_filename).relative_to(self._prefix).with_suffix("").as_posix()
            for code in self._calls
        }
        modules = tuple(sorted(name.replace("/", ".") for name in names))
        return Trace(modules, len(self._calls), sum(self._calls.values()), self.opens)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._is_recording:
            return
        code = frame.f_code
        counted = self._is_counted.get(code)
        if counted is None:
            counted = code.co_filename.startswith(self._prefix) and code.co_name not in NO_FUNCTIONS
            counted = counted and not is_class_body(frame)
            self._is_counted[code] = counted
        if not counted or (code.co_flags & SUSPENDED and frame.f_lasti != first_resume(code)):
            return
        self._calls[code] = self._calls.get(code, 0) + 1

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self._is_recording or self._is_comparing:
            return
        path = arguments[0]
        if isinstance(path, int) or path is None:  # a descriptor: its file was opened before
            return
        self._is_comparing = True  # what this hook opens itself does not count
        try:
            self.opens += self._is_input(Path(os.fsdecode(path)))
        finally:
            self._is_comparing = False

    def _is_input(self, path: Path) -> bool:
        """Whether a path is that of the input, or of a temporary copy of it."""
        assert self._input is not None
        try:
            if path.samefile(self._input):
                return True
            if not path.resolve().is_relative_to(self._temporary) or not path.is_file():
                return False
            return path.read_bytes() in self._contents
        except OSError:  # no such file: it is only now created
            return False


def is_class_body(frame: FrameType) -> bool:
    """Whether a frame computes the body of a class: a function has local variables of its own."""
    return not frame.f_code.co_flags & 1  # CO_OPTIMIZED


def contents_of(path: Path) -> tuple[bytes, ...]:
    """The bytes of a file, and those that it has compressed."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        return content, gzip.decompress(content)
    return (content,)


def traced(
    run: Callable[[Recorder], None],
    package: Path,
    folder: Path,
    *,
    input_file: Path | None = None,
    is_standard_input: bool = False,
) -> Trace:
    """Run a function in a fork of this process, so that it finds everything imported and no cache
    filled.

    Args:
        run: starts and stops the recorder, and may end in any way after it was stopped.
        package: the folder of the package whose functions are counted.
        folder: the working folder, which also gets the output of the function: `log.txt`.
        input_file: the file whose opens are counted.
        is_standard_input: whether this file is also the standard input.

    Raises:
        RuntimeError: the function failed before it started or stopped the recorder; with what it
            printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "trace.json", folder / "log.txt"
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if not process:
        code = 1
        try:
            with log.open("wb") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            trace = traced_here(run, package, folder, input_file, is_standard_input)
            result.write_text(json.dumps(asdict(trace)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(process, 0)
    if status or not result.exists():
        raise RuntimeError(
            f"a traced call ended with status {status}:\n{log.read_text(errors='replace')}"
        )
    content = json.loads(result.read_text())
    return Trace(**{**content, "modules": tuple(content["modules"])})


def traced_here(
    run: Callable[[Recorder], None],
    package: Path,
    folder: Path,
    input_file: Path | None,
    is_standard_input: bool,
) -> Trace:
    """The trace of a function in this process, which is to end afterwards."""
    temporary = (folder / "temporary").resolve()
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    os.chdir(folder)
    if is_standard_input:
        assert input_file is not None
        descriptor = os.open(input_file, os.O_RDONLY)
        os.dup2(descriptor, 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (stays open until the process ends)
    recorder = Recorder(package, input_file, temporary)
    try:
        run(recorder)
    finally:
        recorder.stop()
        sys.setprofile(None)
        threading.setprofile(None)
    recorder.opens += is_standard_input
    return recorder.trace()
