"""Memory that is kept for the next step, and given back when asked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GLIBC = hasattr(os, "confstr") and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")

KEEPS_AND_RETURNS = """
import torch
from bertworks.learn.machine import keep_memory, memory_in_use, return_memory
keep_memory()
before = memory_in_use()
tensors = [torch.ones(1 << 20) for _ in range(64)]  # 4 MB each
last = torch.ones(1 << 20)  # stands behind them, so that the heap's end is in use
del tensors
kept = memory_in_use() - before
return_memory()
print(kept >> 20, (memory_in_use() - before) >> 20, float(last.sum()))
"""


@pytest.mark.skipif(not GLIBC, reason="memory is kept and returned on glibc alone")
def test_memory_is_kept_until_it_is_returned() -> None:
    command = [sys.executable, "-c", KEEPS_AND_RETURNS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parent)
    kept, left, intact = map(float, done.stdout.split())
    assert kept >= 250
    assert left <= 40
    assert intact == 1 << 20
