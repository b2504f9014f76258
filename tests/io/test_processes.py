"""Work in several processes: order, errors, and an interrupt at any moment."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from bertworks.errors import BertworksError
from bertworks.io.processes import in_processes

INTERRUPT_IN_LOCK = """
import itertools, sys, threading
from bertworks.io.processes import in_processes

class Interrupt:
    # Raises when the main thread has locked the n-th condition, before its `with` block begins.
    def __init__(self, number):
        self.left = number
    def __call__(self, frame, event, argument):
        if frame.f_code is not threading.Condition.__enter__.__code__:
            return None
        if event == "return":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self

for number in itertools.count(1):
    interrupt = Interrupt(number)
    sys.settrace(interrupt)
    try:
        places = in_processes("builtins:getattr", [[1], "index"], [1] * 20, 2, ended="", hint="")
        assert list(places) == [0] * 20
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    if interrupt.left > 0:
        break
print("interrupts:", number - 1)
"""


def squares(offset: int) -> Callable[[int], int]:
    def work(value: int) -> int:
        if value < 0:
            raise ValueError(f"{value} is negative")
        return value * value + offset

    return work


def ending() -> Callable[[int], int]:
    return lambda value: os._exit(3) if value else value


def run(inputs: Any, workers: int) -> list[Any]:
    return list(
        in_processes(f"{__name__}:squares", [1], inputs, workers, ended="{number}: {how}", hint="")
    )


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 40])
def test_results_come_in_order(count: int, workers: int) -> None:
    assert run(range(count), workers) == [value * value + 1 for value in range(count)]


def test_an_error_of_a_worker_comes_after_the_results_before_it() -> None:
    results = in_processes(f"{__name__}:squares", [0], [1, 2, -3, 4], 2, ended="", hint="")
    assert [next(results), next(results)] == [1, 4]
    with pytest.raises(ValueError, match="-3 is negative"):
        next(results)


def test_a_value_that_cannot_be_pickled_and_a_worker_that_ends() -> None:
    with pytest.raises(AttributeError, match="pickle"):
        run([1, lambda: None], 2)
    with pytest.raises(BertworksError, match="1: exit code 3"):
        list(in_processes(f"{__name__}:ending", [], [0, 1], 2, ended="{number}: {how}", hint=""))


def test_an_interrupt_at_any_lock_ends_the_work() -> None:
    """Ctrl-C in `Condition.__enter__` leaves the lock locked, and another thread that waits for it
    never ends."""
    finished = subprocess.run(
        [sys.executable, "-c", INTERRUPT_IN_LOCK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "interrupts:" in finished.stdout
