"""The machine: devices, precision by measured matrix products, threads, memory."""

import ctypes
import math
import os
import platform
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch

from bertworks.errors import expect
from bertworks.events import JsonObject
from bertworks.io.processes import CpuMonitor, available_cpus
from bertworks.io.system import lower_priority, physical_memory, resident_memory
from bertworks.models.config import EncoderConfig
from bertworks.models.layers import cpu_supports_bf16

Precision = Literal["fp32", "bf16"]  # of a training
InferencePrecision = Literal[Precision, "int8"]
PrecisionOption = Literal["auto", InferencePrecision]
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
PRIORITY_STEP = 5  # niceness of threads that compute, above that of threads that answer requests
GROWTH = 1.5  # of the memory in use, after which unused memory is returned to the system
SERVER_GROWTH = 1.15  # the same for a server, of the least memory that it ever had in use
# Kernels that are kept: with few sizes of batches (see `pad_rows_to_bucket`) as fast as the usual
# 1,024.
KERNEL_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": 64, "LRU_CACHE_CAPACITY": 32}
TRIM_SHARE = 0.1  # of the time of a server, to return memory to the system
LOOK_SECONDS = 0.02  # between two looks at the memory of a server
ADAPT_SECONDS = 0.5  # between two looks at the load
FIRST_SECONDS = 0.3  # of load before a training chooses its threads
KEEP_MARGIN = 0.4
RAISE_MARGIN = 0.2  # CPUs; see `next_count`
# of a micro-batch: the default of recipes; what keeps a GPU busy
CPU_TOKENS = 8192
GPU_TOKENS = 1 << 17
# Per token, layer and unit of the width, for the backward pass: 35 measured in bf16 on an H100,
# with dropout.
KEPT_BYTES: dict[str, int] = {"bf16": 40, "fp32": 80}
MEMORY_SHARE = 0.8  # of a GPU's memory that a training may plan with
GAIN = 1.3  # bf16 is chosen if its matrix products are faster than those of fp32 by this factor


def choose_device(name: str = "auto") -> torch.device:
    """`auto`: the GPU of this process if there is one (LOCAL_RANK under torchrun), else the CPU.

    Raises:
        UsageError: there is no such GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    is_known = re.fullmatch(r"cpu|cuda(:\d+)?", name)
    expect(is_known, f"the device {name!r} is not known", hint="name auto, cpu, cuda or cuda:1")
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if name == "cuda"
        else torch.device(name)
    )
    if device.type == "cuda":
        count = torch.cuda.device_count()
        expect(
            (device.index or 0) < count,
            f"there is no {device}: the number of GPUs is {count}, counted from 0",
            hint="leave --device out: `bertworks doctor` lists the devices; under torchrun, at "
            f"most {count} processes",
        )
        # cuBLAS reads this variable before its first product: with it, sums have a fixed order.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return device


@contextmanager
def fixed_order(device: torch.device) -> Iterator[bool]:
    """Make a GPU add numbers in a fixed order in the block.

    So the same training ends with the same bits; the value is whether it does.
    BERTWORKS_DETERMINISTIC=0 leaves the order to the GPU, which is a little faster. A CPU needs no
    such mode.
    """
    is_fixed = os.environ.get("BERTWORKS_DETERMINISTIC") != "0"
    settings: Any = torch.utils.deterministic
    before = torch.are_deterministic_algorithms_enabled()
    fills = settings.fill_uninitialized_memory
    if device.type == "cuda" and is_fixed:
        torch.use_deterministic_algorithms(True)
        settings.fill_uninitialized_memory = False  # only costs time: all memory is written
    try:
        yield is_fixed or device.type != "cuda"
    finally:
        torch.use_deterministic_algorithms(before)
        settings.fill_uninitialized_memory = fills


def micro_tokens(tokens: int, c: EncoderConfig, precision: str, device: torch.device) -> int:
    """Return the largest number of tokens of a micro-batch in a training.

    CPU_TOKENS, the default of recipes, becomes GPU_TOKENS on a GPU, or fewer if its memory is
    small; any other number was chosen by someone, and stays.
    """
    if device.type != "cuda" or tokens != CPU_TOKENS:
        return tokens
    # weights, gradients, moments, copies
    free = MEMORY_SHARE * total_memory(device) - 24 * c.num_parameters()
    fitting = int(free / (KEPT_BYTES[precision] * c.hidden_size * max(1, c.num_hidden_layers)))
    return max(1024, min(GPU_TOKENS, fitting // 1024 * 1024))


def bytes_to_train(
    tokens: int, longest: int, c: EncoderConfig, precision: str, checkpointing: bool = False
) -> int:
    """Return an estimate of the bytes of a training that computes these tokens at once.

    Args:
        tokens: of the largest number of sequences that cannot be divided: one, or the windows of a
            text.
        longest: tokens of the longest sequence among them.
        checkpointing: whether blocks are computed again in the backward pass, so that only the
            states between them are kept.
    """
    weights = 24 * c.num_parameters()  # weights, gradients, moments, copies
    of_layer = KEPT_BYTES[precision] * c.hidden_size * tokens
    number_size = 2 if precision == "bf16" else 4
    # scores of distances, which are kept with the probabilities and what they are made of
    if c.position_embedding_type in ("relative", "disentangled"):
        of_layer += 3 * number_size * c.num_attention_heads * longest * tokens
    states = number_size * c.hidden_size * tokens
    layers = max(1, c.num_hidden_layers)
    return weights + (of_layer + layers * states if checkpointing else layers * of_layer)


def require_memory(
    tokens: int,
    longest: int,
    c: EncoderConfig,
    precision: str,
    device: torch.device,
    *,
    checkpointing: bool = False,
    hint: str,
) -> None:
    """Check that the memory of a device may be enough; the arguments: see `bytes_to_train`.

    Raises:
        UsageError: it is not. hint: what to do then.
    """
    needed = bytes_to_train(tokens, longest, c, precision, checkpointing)
    there = total_memory(device)
    expect(
        needed <= there,
        f"a training that reads {tokens:,} tokens at once needs about {needed / 1e9:.0f} GB of "
        f"memory, and there are {there / 1e9:.0f} GB",
        hint=hint,
    )


def measure_matmul(
    dtype: torch.dtype, device: torch.device | str = "cpu", seconds: float = 0.3
) -> float:
    """FLOP/s of a large matrix product: the ceiling that a training step is compared with.

    The fastest of many products counts: other programs on the machine can only slow one down. Sizes
    grow until one product takes a sixteenth of the time, so that a slow precision is measured
    quickly, too.
    """
    largest = 8192 if torch.device(device).type == "cuda" else 1024
    best = 0.0
    size = 128
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        torch.mm(a, b)  # the first call prepares the kernel
        took = math.inf
        for _ in range(4):
            start = time_when_done(a.device)
            torch.mm(a, b)
            took = min(took, time_when_done(a.device) - start)
        best = max(best, 2 * size**3 / took)
        if took < seconds / 16:
            size = min(2 * size, largest)
    return best


def time_when_done(device: torch.device) -> float:
    """Return the time, in seconds, at which the device has no work left."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _has_bfloat16() -> bool:
    """Return whether the processor itself has instructions for bf16.

    oneDNN emulates them on CPUs with AVX-512.
    """
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return not is_x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


@cache
def best_precision(device: torch.device | str = "cpu") -> Precision:
    """Return bf16 where its matrix products are clearly faster than fp32's, else fp32.

    They are on GPUs and CPUs with AMX.

    A CPU without instructions for bf16 is not measured: it would only emulate them. Others are
    measured once.
    """
    if torch.device(device).type == "cpu" and not (cpu_supports_bf16() and _has_bfloat16()):
        return "fp32"
    bf16, fp32 = (measure_matmul(DTYPES[p], device, 0.15) for p in ("bf16", "fp32"))
    return "bf16" if bf16 > GAIN * fp32 else "fp32"


class ThreadPolicy:
    """The number of threads that torch computes with on the CPU.

    `OMP_NUM_THREADS` and `set_threads(N)` fix it. Else it follows the CPUs that other programs
    leave free. Inference and serving call `adapt` before each batch, in the thread that computes. A
    training keeps the number of its start (`hold`), because the last bits of a sum depend on it,
    and adapts only after `set_threads("auto")`.
    """

    def __init__(self) -> None:
        # the default is also the maximum
        self._default = torch.get_num_threads()
        self._own = threading.local()
        self._monitor = CpuMonitor()
        self._lock = threading.Lock()
        self._free: float | None = None  # CPUs, a running mean
        fixed = os.environ.get("OMP_NUM_THREADS", "")
        self.fixed = int(fixed) if fixed.isdigit() and int(fixed) else None
        # set by the command line
        self.training_adapts = os.environ.get("BERTWORKS_THREADS") == "auto"
        self.count = self.fixed or self._maximum()

    def set(self, threads: int | Literal["auto"] | None) -> None:
        """A number fixes it.

        "auto": trainings adapt as well. None: nothing changes.

        Raises:
            UsageError: a number below 1.
        """
        if threads is None:
            return
        expect(
            threads == "auto" or threads >= 1,
            f"{threads} threads: expected 1 or more",
            hint="--threads 1, or --threads auto",
        )
        self.training_adapts = threads == "auto"
        self.fixed = None if threads == "auto" else threads
        self.count = self.fixed or self._maximum()

    def adapt(self, batches: int | None = None, *, seconds: float = ADAPT_SECONDS) -> int:
        """Sets the threads of the calling thread and returns their number.

        Args:
            batches: at the same time, each in a thread that calls this; they share the number.
                None: as before.
            seconds: between two looks at the load.
        """
        if self.fixed is None and self._monitor.elapsed() >= seconds:
            with self._lock:
                free = self._monitor.free_cpus()
                if free is not None:
                    self._free = free if self._free is None else (self._free + free) / 2
                    self.count = next_count(self.count, self._free, self._maximum())
        self._own.batches = batches or getattr(self._own, "batches", 1)
        count: int = max(1, self.count // self._own.batches)
        if torch.get_num_threads() != count:  # of the calling thread
            torch.set_num_threads(count)
        return count

    @contextmanager
    def hold(self, count: int | None = None) -> Iterator[int]:
        """Return the number for a training, kept until its end.

        It is `count`, that of a resumed run, or one chosen by the load of this moment. It is not
        kept after `set_threads("auto")`.
        """
        if self.fixed is None and count is None:
            # start a new interval: before, our own worker processes may have been busy
            self._monitor.free_cpus()
            self._free = None
            time.sleep(FIRST_SECONDS)
            self.adapt(seconds=0)
        fixed = self.fixed
        if fixed is None and not self.training_adapts:
            self.fixed = self.count = count or self.count
        try:
            yield self.adapt()
        finally:
            self.fixed = fixed

    def _maximum(self) -> int:
        return min(available_cpus(), self._default)


def next_count(count: int, free: float, maximum: int) -> int:
    """Threads for `free` CPUs of `maximum`, when there were `count`.

    Another thread needs a CPU that is nearly free; a thread stays until its CPU is busy with others
    for a good part of the time.

    Two threads, of which one waits for a busy CPU, are slower than one: products share the work in
    equal parts.
    """
    if count - KEEP_MARGIN <= free < count + 1 - RAISE_MARGIN and count <= maximum:
        return count
    return max(1, min(maximum, math.floor(free + RAISE_MARGIN)))


THREADS = ThreadPolicy()


def set_threads(threads: int | Literal["auto"] | None) -> None:
    """Fix the number of threads that torch computes with on the CPU, or "auto".

    With "auto" trainings, too, follow the CPUs that other programs leave free. By default inference
    and serving do, and a training chooses a number when it starts.

    Raises:
        UsageError: a number below 1.
    """
    THREADS.set(threads)


def fixed_machine(device: str, threads: int | None = None) -> JsonObject:
    """Fix and return what the last bits of results depend on besides model and data.

    It is the processor, torch, and the number of threads, which does not change from now on:
    `threads`, else that of --threads, else 1.
    """
    set_threads(threads or THREADS.fixed or 1)
    chosen = choose_device(device)
    is_cuda = chosen.type == "cuda"
    name = (
        torch.cuda.get_device_name(chosen)
        if is_cuda
        else f"CPU {torch.backends.cpu.get_cpu_capability()}"
    )
    return {"device": name, "threads": THREADS.count, "torch": torch.__version__}


def shared_machine(device: str, is_shared: bool) -> dict[str, Any]:
    """Return the arguments `machine` and `gpus` of a `FileJob`.

    They are left out if one process makes all portions.

    machine: see `fixed_machine`. gpus: the number of GPUs that processes can share; 0 on a CPU.
    """
    if not is_shared:
        return {}
    is_cuda = choose_device(device).type == "cuda"
    return {
        "machine": fixed_machine(device),
        "gpus": torch.cuda.device_count() if is_cuda else 0,
    }


def lower_thread_priority(steps: int = 1) -> None:
    """The calling thread, and those that it starts, give way to the other threads of the process.

    Only on Linux.
    """
    lower_priority(steps * PRIORITY_STEP)


def disable_heap_trim() -> None:
    """Make glibc keep freed memory from now on.

    Call it once per process, before a training on a CPU: otherwise every large tensor is new memory
    from the kernel, whose page faults cost as much as the arithmetic. No effect without glibc.
    """
    if libc := _glibc():
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no allocation outside the heap
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never give the heap's end back


def use_one_heap() -> None:
    """Make all threads allocate from the same heap from now on.

    glibc gives each its own, and what a thread has freed in one cannot be used by the others: the
    memory of a server with many threads grows. It has no effect without glibc.
    """
    if libc := _glibc():
        libc.mallopt(-8, 1)  # M_ARENA_MAX


def limit_kernel_caches() -> None:
    """oneDNN, and PyTorch's binding to it in each thread, keep few compiled kernels from now on.

    They keep 1,024 by default, one for each size of a product, some of 450 kB: a server that gets
    texts of all lengths would grow by hundreds of MB. Call it before the first product: the
    settings are read once. The user's own settings stay.
    """
    for name, count in KERNEL_CACHES.items():
        os.environ.setdefault(name, str(count))


def trim_heap() -> None:
    """Returns unused memory to the system.

    Later allocations cause page faults.
    """
    if libc := _glibc():
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library, if it is glibc."""
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def total_memory(device: torch.device | str = "cpu") -> int:
    """Return the memory of the device in bytes; of a CPU, see `physical_memory`."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return physical_memory()


def memory_in_use(device: torch.device | str = "cpu") -> int:
    """Bytes: on a GPU the peak so far; on a CPU the resident memory of the process now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resident_memory()


class HeapTrimmer:
    """Makes the process keep freed memory, and watches how much.

    Batches differ in size, so kept memory is fragmented and grows to several times what is needed:
    after a growth by GROWTH it is returned to the system.
    """

    def __init__(self, device: torch.device | str = "cpu"):
        disable_heap_trim()
        self.device = device
        self.baseline = 0  # bytes at the first look after memory was returned; 0: not known yet

    def look(self) -> int:
        """Return the bytes in use.

        Call this now and then.
        """
        now = memory_in_use(self.device)
        if not self.baseline:
            self.baseline = now
        elif now > GROWTH * self.baseline:
            trim_heap()
            self.baseline = 0
        return now


class ServerHeapTrimmer(HeapTrimmer):
    """Keeps the memory of a server near the least that it ever needed.

    Whatever its clients send, freed memory is returned to the system while more than SERVER_GROWTH
    of that is in use. That takes TRIM_SHARE of the time at most, and any thread may ask for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._looked = self._next_trim = -math.inf

    def look(self) -> int:
        """Return the bytes in use at the last look.

        Call this after each piece of work.
        """
        moment = time.monotonic()
        if moment - self._looked < LOOK_SECONDS:
            return self.baseline
        self._looked = moment
        now = memory_in_use(self.device)
        self.baseline = min(now, self.baseline or now)
        if now > SERVER_GROWTH * self.baseline and moment >= self._next_trim:
            self._next_trim = math.inf  # no other thread does it at the same time
            trim_heap()
            finished = time.monotonic()
            self._next_trim = finished + (finished - moment) / TRIM_SHARE
        return now
