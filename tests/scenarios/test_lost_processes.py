"""Processes of a training that are killed, halted, added or without the folder of the others.

`BERTWORKS_KILLS=300 pytest -m slow tests/scenarios/test_lost_processes.py -k killed` repeats the
kills as often.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bertworks.io.atomic_write import sha256
from tests.runs.test_pretrain import STILL
from tests.support import ROOT
from tests.support.tiny import TIMINGS, write_corpus, write_recipe

KILLS = int(os.environ.get("BERTWORKS_KILLS", "3"))
SLOWER = ("learning_rate = 1e-3", "learning_rate = 1e-4")  # rounding errors grow less


@contextmanager
def training(folder: Path, *words: object, seconds: float = 0) -> Iterator[subprocess.Popen[str]]:
    """A pre-training by the command line, into `folder`; a step takes these seconds more. What is
    left is killed."""
    command = ["pretrain", "-o", str(folder), "--workers", "1", "--device", "cpu", *map(str, words)]
    log = (folder.parent / f"{folder.name}-{time.monotonic_ns()}.log").open("w")
    paths = os.pathsep.join([str(ROOT), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.slow_training", *command],
        stdout=log,
        stderr=log,
        text=True,
        start_new_session=True,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "SECONDS_PER_STEP": str(seconds), "PYTHONPATH": paths},
    )
    vars(process)["log"] = Path(log.name)
    try:
        yield process
    finally:
        kill_all(process)
        log.close()


def kill_all(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        for worker in workers(process):
            os.kill(worker, signal.SIGKILL)
        process.kill()
    process.wait()


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The processes that it started."""
    with suppress(OSError):
        return [
            int(n)
            for n in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
    return []


def log_of(process: subprocess.Popen[str]) -> str:
    return str(vars(process)["log"].read_text())


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    texts = path.read_text().split("\n")[:-1] if path.exists() else []
    return [{k: v for k, v in json.loads(text).items() if k not in TIMINGS} for text in texts]


def last_step(folder: Path) -> int:
    return max((line["step"] for line in lines(folder)), default=0)


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def finish(process: subprocess.Popen[str], seconds: float = 600 + 30 * KILLS) -> None:
    assert process.wait(seconds) == 0, log_of(process)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("localhost", port)):
        return True
    return False


def same_losses(folder: Path, other: Path) -> float:
    """The largest relative difference. All steps are there once, with the same tokens."""
    ours, theirs = lines(folder), lines(other)
    assert [(x["step"], x.get("tokens")) for x in ours] == [
        (x["step"], x.get("tokens")) for x in theirs
    ]
    return max(
        abs(x["loss"] / y["loss"] - 1) for x, y in zip(ours, theirs, strict=True) if "loss" in x
    )


@pytest.mark.slow
def test_killed_processes_change_no_bit(tmp_path: Path) -> None:
    steps = 60 * (KILLS + 1)
    text, recipe = (
        write_corpus(tmp_path / "t.jsonl"),
        write_recipe(tmp_path / "r.toml", ("= 40", f"= {steps}")),
    )
    words = [text, "--recipe", recipe, "--processes", "2", "--restarts", KILLS]
    with training(tmp_path / "whole", *words) as whole:
        finish(whole)
    draw, folder = random.Random(0), tmp_path / "a"
    with training(folder, *words) as process:
        for number in range(KILLS):
            reached = 60 * number + draw.randrange(5, 50)
            wait_for(lambda: last_step(folder) >= reached or process.poll() is not None)  # noqa: B023
            os.kill(draw.choice(workers(process)), signal.SIGKILL)
            wait_for(lambda: log_of(process).count("restarting all ranks") > number)  # noqa: B023
        finish(process)
    assert log_of(process).count("was killed by signal 9") == KILLS
    assert lines(folder) == lines(tmp_path / "whole")
    assert [line["step"] for line in lines(folder) if "loss" in line] == [*range(1, steps + 1)]
    assert sha256(folder / "model.safetensors") == sha256(tmp_path / "whole" / "model.safetensors")


@pytest.mark.slow
def test_machines_that_are_lost_and_come_change_no_loss(tmp_path: Path) -> None:
    """Two agents with a process each; the second one is killed, and another one comes, again and
    again."""
    steps = 200 * (KILLS + 1)
    text, recipe = write_corpus(tmp_path / "t.jsonl"), tmp_path / "r.toml"
    write_recipe(recipe, ("= 40", f"= {steps}"), STILL, SLOWER)
    with training(tmp_path / "one", text, "--recipe", recipe) as one:
        finish(one)
    folder, port = tmp_path / "a", free_port()
    words = [
        text,
        "--recipe",
        recipe,
        "--processes",
        "1",
        "--nodes",
        "1:2",
        "--rendezvous",
        f"localhost:{port}",
    ]
    sizes = list[int]()
    with training(folder, *words, "--restarts", 10 * KILLS, seconds=0.1) as first:
        wait_for(lambda: answers(port))  # it is the one where all meet, which is not killed
        for number in range(KILLS):
            with training(folder, *words, seconds=0.1) as second:
                wait_for(lambda: workers(second) and workers(first))
                reached = last_step(folder) + 20
                wait_for(lambda: last_step(folder) >= reached and workers(second))  # noqa: B023
                sizes.append(len(workers(first)) + len(workers(second)))
                if number % 2:  # the agent alone: its process sees that and ends
                    second.kill()
                    time.sleep(8)
            reached = last_step(folder) + 20
            wait_for(lambda: last_step(folder) >= min(reached, steps))  # noqa: B023
        finish(first)
    assert sizes == [2] * KILLS
    assert same_losses(folder, tmp_path / "one") <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("halted", [0, 1])
def test_all_start_again_if_a_process_is_halted(
    halted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_SECONDS", "20")
    text, recipe = (
        write_corpus(tmp_path / "t.jsonl"),
        write_recipe(tmp_path / "r.toml", ("= 40", "= 120")),
    )
    words = [text, "--recipe", recipe, "--processes", "2"]
    with training(tmp_path / "whole", *words) as whole:
        finish(whole)
    with training(tmp_path / "a", *words) as process:
        wait_for(lambda: last_step(tmp_path / "a") >= 20)
        ranks = {rank_of(worker): worker for worker in workers(process)}
        os.kill(ranks[halted], signal.SIGSTOP)
        wait_for(lambda: "restarting all ranks" in log_of(process))
        finish(process)
    assert "did not finish a step within 20 s" in log_of(process)
    assert lines(tmp_path / "a") == lines(tmp_path / "whole")
    assert sha256(tmp_path / "a" / "model.safetensors") == sha256(
        tmp_path / "whole" / "model.safetensors"
    )


@pytest.mark.slow
def test_an_evaluation_may_take_longer_than_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEP_SECONDS", "20")
    monkeypatch.setenv("SECONDS_PER_EVALUATION", "30")
    text, recipe = write_corpus(tmp_path / "t.jsonl"), write_recipe(tmp_path / "r.toml")
    with training(
        tmp_path / "a", text, "--recipe", recipe, "--processes", "2", "--restarts", "0"
    ) as process:
        finish(process)
    assert any("evaluation" in line for line in lines(tmp_path / "a"))
    assert (tmp_path / "a" / "model.safetensors").exists()


def rank_of(process: int) -> int:
    values = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return int(next(value[5:] for value in values if value.startswith(b"RANK=")))


@pytest.mark.slow
def test_machines_without_a_common_folder_are_refused_before_the_first_step(tmp_path: Path) -> None:
    text, recipe = write_corpus(tmp_path / "t.jsonl"), write_recipe(tmp_path / "r.toml")
    words = [
        text,
        "--recipe",
        recipe,
        "--processes",
        "1",
        "--nodes",
        "2",
        "--rendezvous",
        f"localhost:{free_port()}",
    ]
    (tmp_path / "other").mkdir()
    with (
        training(tmp_path / "a", *words) as first,
        training(tmp_path / "other" / "a", *words) as second,
    ):
        assert first.wait(200) != 0
        assert second.wait(200) != 0
    for process in (first, second):
        assert "cannot see the folder" in log_of(process)
        assert "-o FOLDER on a disk that all machines share" in log_of(process)
    assert not lines(tmp_path / "a")
    assert not (tmp_path / "other" / "a").exists()
    assert not list(tmp_path.rglob(".shared-*"))
