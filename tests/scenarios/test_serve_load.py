"""A server under the load of another process: as much as it can, three times that, and less.
Long."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from bertworks.checkpoints.resolve import resolve_model
from tests.support import ROOT
from tests.support.served import process, stop

LOAD = ROOT / "benchmarks" / "serving.py"
Kinds = dict[str, list[float]]


def run_load(url: str, rate: float, seconds: float) -> tuple[Kinds, dict[str, Any]]:
    """Milliseconds of each kind of answer. Rate 0: 64 clients, each as often as it is answered."""
    command = [sys.executable, str(LOAD), "--load", url, "/embed", str(rate), str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found["milliseconds"], found


def resident(number: int) -> int:
    """Bytes."""
    return int(Path(f"/proc/{number}/statm").read_text().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="memory is read as Linux tells it"
)
def test_each_request_is_answered_or_refused() -> None:
    body = {"inputs": ["a cat", "an engine, and what else there is about it"]}
    with process(str(resolve_model("minilm")), "--precision", "fp32") as (running, url):
        before = httpx.post(f"{url}embed", json=body, timeout=60).json()
        warm, found = run_load(url, 0, 6)
        assert set(warm) == {"200", "health"}
        capacity, memory = len(warm["200"]) / found["seconds"], []
        for _ in range(3):
            crowd, found = run_load(url, 3 * capacity, 10)
            assert set(crowd) == {"200", "429", "health"}  # and none without an answer
            assert len(crowd["200"]) + len(crowd["429"]) == found["sent"]
            memory.append(resident(running.pid))
        few, found = run_load(url, 0.3 * capacity, 10)
        assert set(few) == {"200", "health"}
        assert len(few["200"]) == found["sent"]
        assert memory[2] < 1.1 * memory[1]  # what was needed once is kept, and no more
        after = httpx.post(f"{url}embed", json=body, timeout=60).json()
        np.testing.assert_allclose(after, before, atol=1e-5)
        code, _, log = stop(running)
    assert code == 0
    assert not [line for line in log if line["level"] == "error"]
