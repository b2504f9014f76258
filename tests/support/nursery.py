"""A process that has imported everything once, and forks children that pre-train and are killed on
command.

Orders come in by standard input, a JSON object in a line; answers go out by standard output.
Children of a fresh process are as good as fresh processes, and begin at once instead of after
seconds.

    arguments   of `pretrain`
    kill        null; {"seconds": 0.2}; {"operations": 12}, by SIGKILL in front of the 12th change
                of the file system; {"step": 7, "signal": 15}, when step 7 is done; {"stage":
                "shards", "signal": 15}, when that begins
    slow        a step that computes for a minute
"""

import contextlib
import json
import mmap
import os
import signal
import struct
import sys
import time
from typing import Any

import torch

import bertworks.runs.training_run
from bertworks.errors import BertworksError
from bertworks.runs.pretrain import pretrain
from bertworks.training.objectives import PretrainingModel

STAGES = ("begin", "vocabulary", "shards", "plan", "evaluation", "step", "saved", "done")
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
BOARD = mmap.mmap(-1, 4096)  # shared with the child: stage, step, operations
FIELDS = struct.Struct("iii")


def read() -> tuple[int, int, int]:
    return FIELDS.unpack_from(BOARD)


def note(**fields: int) -> None:
    names = ("stage", "step", "operations")
    FIELDS.pack_into(
        BOARD, 0, *(fields.get(name, value) for name, value in zip(names, read(), strict=True))
    )


def count_operations(last: int) -> None:
    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = (
            event == "open"
            and isinstance(arguments[2], int)
            and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if event in CHANGES or writes:
            operations = read()[2] + 1
            note(operations=operations)
            if operations == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def make_slow(step: int) -> None:
    forward = PretrainingModel.forward

    def slow_forward(self: PretrainingModel, batch: Any) -> Any:
        if self.training and read()[1] == step - 1:
            # like one long call of a library: a signal handler that only notes does not end it
            time.sleep(60)
        return forward(self, batch)

    PretrainingModel.forward = slow_forward  # type: ignore[method-assign]


def child(order: dict[str, Any], answer: int) -> int:
    kill = order.get("kill") or {}
    count_operations(kill.get("operations", 0))
    if slow := order.get("slow"):
        make_slow(slow)
    stage = 0
    try:
        for event in pretrain(**order["arguments"]):
            name = event.fields.get("stage", event.kind)
            stage = STAGES.index(name) if name in STAGES else stage
            note(stage=stage, **({"step": event.fields["step"]} if event.kind == "step" else {}))
    except BertworksError as error:
        os.write(answer, str(error).encode())
        return error.exit_code
    except SystemExit as error:
        return int(str(error.code))
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        os.write(answer, repr(error).encode())
        return 99
    return 0


def is_time(kill: dict[str, Any], began: float) -> bool:
    stage, step, _ = read()
    if "seconds" in kill:
        return time.perf_counter() - began >= kill["seconds"]
    if "stage" in kill:
        return stage >= STAGES.index(kill["stage"])
    return "step" in kill and step >= kill["step"]


def live(order: dict[str, Any]) -> dict[str, Any]:
    note(stage=0, step=0, operations=0)
    reading, writing = os.pipe()
    began = time.perf_counter()
    process = os.fork()
    if process == 0:
        os._exit(child(order, writing))
    os.close(writing)
    kill = order.get("kill") or {}
    signalled = None
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if signalled is None and is_time(kill, began):
            signalled = time.perf_counter()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kill.get("signal", signal.SIGKILL))
        time.sleep(0.001)
    now = time.perf_counter()
    stage, step, operations = read()
    with os.fdopen(reading) as file:
        said = file.read()
    return {
        "code": os.waitstatus_to_exitcode(status),
        "stage": STAGES[stage],
        "step": step,
        "operations": operations,
        "seconds": now - began,
        "leaving": now - signalled if signalled else None,
        "said": said,
    }


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = os.fstat  # type: ignore[assignment]  # what a killed process wrote is there all the same
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    bertworks.runs.training_run.measure_matmul = lambda *_: 1e11  # type: ignore[attr-defined]
    for line in sys.stdin:
        print(json.dumps(live(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
