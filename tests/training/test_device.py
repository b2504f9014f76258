"""Memory that is kept for the next step, and given back on request."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bertworks.errors import UsageError
from bertworks.training import device
from tests.support import ROOT
from tests.support.refusals import refusal

GLIBC = hasattr(os, "confstr") and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")

KEEPS_AND_RETURNS = """
import torch
from bertworks.training.device import disable_heap_trim, memory_in_use, trim_heap
disable_heap_trim()
before = memory_in_use()
tensors = [torch.ones(1 << 20) for _ in range(64)]  # 4 MB each
last = torch.ones(1 << 20)  # stands behind them, so that the heap's end is in use
del tensors
kept = memory_in_use() - before
trim_heap()
print(kept >> 20, (memory_in_use() - before) >> 20, float(last.sum()))
"""


@pytest.mark.skipif(not GLIBC, reason="memory is kept and returned on glibc alone")
def test_memory_is_kept_until_it_is_returned() -> None:
    command = [sys.executable, "-c", KEEPS_AND_RETURNS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    kept, left, intact = map(float, done.stdout.split())
    assert kept >= 250
    assert left <= 40
    assert intact == 1 << 20


GROWTH_BY_KERNELS = """
import torch
from bertworks.training import device
device.limit_kernel_caches()
weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(1536, 384), 4096)
before = 0
for rows in range(1, 300):
    torch.ops.mkldnn._linear_pointwise.default(torch.randn(rows, 384), weight, None, "none", [], "")
    if rows == 1:
        before = device.memory_in_use()
device.trim_heap()
print(device.memory_in_use() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not GLIBC or not torch.backends.mkldnn.is_available(), reason="oneDNN's kernels are in its heap"
)
def test_few_kernels_are_kept_unless_the_user_says_otherwise() -> None:
    def growth(**settings: str) -> int:
        environment = {
            name: value for name, value in os.environ.items() if name not in device.KERNEL_CACHES
        }
        command = [sys.executable, "-c", GROWTH_BY_KERNELS]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=environment | settings,
        )
        return int(done.stdout)

    # oneDNN's and PyTorch's usual ones
    settings_of_user = dict.fromkeys(device.KERNEL_CACHES, "1024")
    assert growth() < growth(**settings_of_user) / 2


def test_memory_that_has_grown_by_half_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [100, 150, 151, 120, 170, 181, 90, 100]
    left, returned = iter(sizes), list[int]()
    watch, seen = device.HeapTrimmer(), list[int]()
    monkeypatch.setattr(device, "memory_in_use", lambda device: next(left))
    monkeypatch.setattr(device, "trim_heap", lambda: returned.append(len(seen)))
    for _ in sizes:
        seen.append(watch.look())
    assert seen == sizes
    assert returned == [2, 5]


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device.torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="there is no cuda:0: the number of GPUs is 0"):
        device.choose_device("cuda")
    assert device.choose_device("auto").type == "cpu"
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.choose_device("auto") == device.torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match="there is no cuda:2: the number of GPUs is 2"):
        device.choose_device("auto")


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_a_thread_steps_back_and_those_that_it_starts_but_no_other():
    def urgency() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def measured() -> None:
        device.lower_thread_priority()
        with ThreadPoolExecutor(1) as inner:
            found.extend([urgency(), inner.submit(urgency).result(10)])

    found, before = list[int](), urgency()
    thread = threading.Thread(target=measured)
    thread.start()
    thread.join(10)
    assert found == [min(19, before + device.PRIORITY_STEP)] * 2
    assert urgency() == before


@pytest.mark.parametrize(("instructions", "chosen"), [(False, "fp32"), (True, "bf16")])
def test_bf16_is_measured_where_the_processor_has_it(
    instructions: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
):
    """Elsewhere it would be emulated, and to measure that takes a tenth of the time until the first
    answer."""
    requested = []
    monkeypatch.setattr(device, "cpu_supports_bf16", lambda: True)
    monkeypatch.setattr(device, "_has_bfloat16", lambda: instructions)
    monkeypatch.setattr(
        device,
        "measure_matmul",
        lambda dtype, *_: requested.append(dtype) or {torch.bfloat16: 2e12}.get(dtype, 1e11),
    )
    assert device.best_precision.__wrapped__("cpu") == chosen
    assert len(requested) == 2 * instructions


@pytest.mark.parametrize(
    ("processor", "avx512", "amx", "there"),
    [
        ("x86_64", False, False, False),
        ("AMD64", True, False, True),
        ("x86_64", False, True, True),
        ("aarch64", False, False, True),
    ],
)
def test_who_has_instructions_for_bf16(
    processor: str, avx512: bool, amx: bool, there: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device.platform, "machine", lambda: processor)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert device._has_bfloat16() == there


def test_threads_are_a_number_or_adapt() -> None:
    policy = device.ThreadPolicy()
    policy.set(3)
    assert (policy.fixed, policy.training_adapts) == (3, False)
    policy.set("auto")
    assert (policy.fixed, policy.training_adapts) == (None, True)
    policy.set(None)
    assert policy.training_adapts
    with refusal("0 threads: expected 1 or more", "--threads 1, or --threads auto"):
        policy.set(0)
