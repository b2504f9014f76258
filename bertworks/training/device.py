"""What the machine can do, measured: matrix products per second, the precision that pays, memory. Not here: models."""

import ctypes
import os
import platform
import re
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from bertworks.errors import UsageError
from bertworks.models.layers import cpu_supports_bf16

Precision = Literal["fp32", "bf16"]  # of a network that learns
InferencePrecision = Literal[Precision, "int8"]  # of one that answers
PrecisionOption = Literal["auto", InferencePrecision]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
STEP = 5  # by which a thread that only computes is less urgent than those that answer
GROWTH = 1.5  # of the memory in use, from which on what is kept is returned
GAIN = 1.3  # bf16 is taken where it multiplies matrices so much faster than fp32


def choose_device(name: str = "auto") -> torch.device:
    """`auto`: the GPU of this process if there is one (LOCAL_RANK under torchrun), else the CPU.

    Raises:
        UsageError: there is no such GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise UsageError(f"the device {name!r} is not known", hint="name auto, cpu, cuda or cuda:1")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if name == "cuda" else torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch finds no GPU here", hint="leave --device out; `bertworks doctor` tells what there is")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise UsageError(f"{device} is asked for, and there are {there} GPUs, counted from 0",
                         hint=f"name another; under torchrun, start at most {there} processes")  # fmt: skip
    return device


def measure_matmul(dtype: torch.dtype, device: torch.device | str = "cpu", seconds: float = 0.3) -> float:
    """FLOP/s of a large matrix product: the ceiling that a training step is compared with.

    The fastest of many products counts, for other programs on the machine can only slow one down. Sizes grow until one
    takes a fair part of the time, so that a slow precision is found out soon.
    """
    largest = 8192 if torch.device(device).type == "cuda" else 1024
    best, size, end = 0.0, 128, time.perf_counter() + seconds
    while time.perf_counter() < end:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        torch.mm(a, b)  # the first call prepares the kernel
        took = min(_time_product(a, b) for _ in range(4))
        best = max(best, 2 * size**3 / took)
        if took < seconds / 16:
            size = min(2 * size, largest)
    return best


def _time_product(a: torch.Tensor, b: torch.Tensor) -> float:
    """Seconds of one product."""
    if a.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    torch.mm(a, b)
    if a.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _has_bfloat16() -> bool:
    """Whether the processor itself has instructions for bf16. oneDNN, if asked, emulates them where AVX-512 is."""
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return not is_x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@cache
def best_precision(device: torch.device | str = "cpu") -> Precision:
    """bf16 where its matrix products are clearly faster here than fp32's, as on GPUs and CPUs with AMX; else fp32.

    A CPU without instructions for bf16 is not measured: it would only emulate them. Others are measured once.
    """
    if torch.device(device).type == "cpu" and not (cpu_supports_bf16() and _has_bfloat16()):
        return "fp32"
    bf16, fp32 = (measure_matmul(DTYPES[p], device, 0.15) for p in ("bf16", "fp32"))
    return "bf16" if bf16 > GAIN * fp32 else "fp32"


def get_compute_threads() -> int:
    """Threads with which the calling thread computes on the CPU."""
    return torch.get_num_threads()


def set_compute_threads(threads: int) -> None:
    """The calling thread computes on the CPU with so many threads from now on."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def lower_thread_priority() -> None:
    """The calling thread, and those that it starts, leave the processor to the other threads of the process when these
    want it. Elsewhere than on Linux: no effect."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + STEP))


def disable_heap_trim() -> None:
    """Tells glibc to keep the memory that is freed. Once per process, before training on a CPU: otherwise every large
    tensor is fresh memory from the kernel, whose page faults cost as much as the arithmetic. Elsewhere: no effect."""
    if libc := _glibc():
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no allocation outside the heap
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never give the heap's end back


def trim_heap() -> None:
    """Gives the system what is kept and not in use, at the price of page faults to come."""
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library, if it is that one."""
    if not hasattr(os, "confstr") or not (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc"):
        return None
    return ctypes.CDLL(None)


def total_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that the device has."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_in_use(device: torch.device | str = "cpu") -> int:
    """Bytes: of the GPU, the most so far; of a CPU process, what is resident now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0  # no Linux: not known
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class HeapTrimmer:
    """Looks at the memory of a process that keeps what is freed. Batches differ in size, so that what is kept falls
    into pieces and grows to several times what is needed: having grown by GROWTH it is returned."""

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = device
        self.settled = 0  # bytes at the first look after a return; 0: not looked yet

    def look(self) -> int:
        """Bytes in use, to be asked now and then."""
        now = memory_in_use(self.device)
        if not self.settled:
            self.settled = now
        elif now > GROWTH * self.settled:
            trim_heap()
            self.settled = 0
        return now
