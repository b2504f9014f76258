"""A signal in the middle of a long step: how long is waited, and who has the processors then."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.runs.signals import EXIT_SECONDS, PATIENCE, patience_for

_PROGRAM = """
import json, os, sys, threading, time
from pathlib import Path
from bertworks.runs.signals import GracefulShutdown

def leave():
    tasks = {int(task.name) for task in Path("/proc/self/task").iterdir()}
    others = tasks - {threading.get_native_id()}
    priorities = [os.getpriority(os.PRIO_PROCESS, task) for task in sorted(others)]
    Path(sys.argv[1]).write_text(json.dumps([os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), priorities]))

GracefulShutdown.ends_process = sys.argv[2] == "command"
with GracefulShutdown(leave, patience=0.1) as interruption:
    print("ready", flush=True)
    try:
        time.sleep(60 if GracefulShutdown.ends_process else 1.5)  # a step that no handler ends
        interruption.take_over()
        interruption.end()
    finally:
        print("unwound", flush=True)
"""


def program(output: Path, whose: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _PROGRAM, str(output), whose]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_program_of_somebody_else_is_not_ended(number: int, code: int, tmp_path: Path) -> None:
    """In a notebook all variables would be lost."""
    process = program(tmp_path / "found.json", "theirs")
    process.send_signal(number)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert said == "unwound\n"
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert not (tmp_path / "found.json").exists()


def test_patience_is_shorter_the_more_there_is_to_save() -> None:
    assert patience_for(0) == patience_for(50_000_000) == PATIENCE
    assert 0 < patience_for(750_000_000) < PATIENCE
    assert patience_for(1_200_000_000) == 0
    assert all(patience_for(size) + size / 250e6 <= EXIT_SECONDS for size in (10**6, 10**8, 10**9))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have no priorities of their own there")
def test_who_saves_has_the_processors(tmp_path: Path) -> None:
    found = tmp_path / "priorities.json"
    process = program(found, "command")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 128 + signal.SIGTERM
    saving, others = json.loads(found.read_text())
    assert others == [max(10, os.getpriority(os.PRIO_PROCESS, 0))] * len(others)
    assert others
    assert saving == os.getpriority(os.PRIO_PROCESS, 0)
