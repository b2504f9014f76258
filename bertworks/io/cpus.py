"""CPUs that this process may use, and those that other programs leave free.

- `available_cpus`: the limit by affinity and by the CPU quota of a control group (`docker --cpus`)
- `CpuMonitor`: free CPUs, measured between two calls
"""

import math
import os
import time
from pathlib import Path


def allowed_cpus() -> set[int]:
    """Numbers of the CPUs that the affinity of this process allows."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def cpu_quota() -> float | None:
    """CPUs that the control groups of this process may use per second of time; None: no limit is set."""
    limits = []
    for folder in group_folders("cpu"):
        values = read_system_file(folder / "cpu.max").split() or [
            read_system_file(folder / "cpu.cfs_quota_us").strip(),
            read_system_file(folder / "cpu.cfs_period_us").strip(),
        ]
        if len(values) == 2 and all(value.isdigit() for value in values) and int(values[1]):
            limits.append(int(values[0]) / int(values[1]))
    return min(limits, default=None)


def available_cpus() -> int:
    """CPUs that this process may keep busy, at least 1: the number of the affinity, or a smaller quota, rounded up. Two
    threads use a quota of 1.5 CPUs fully, one does not."""
    allowed, quota = len(allowed_cpus()), cpu_quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


class CpuMonitor:
    """Measures the CPUs that are free for this process: those that it uses itself, and those that are idle."""

    def __init__(self) -> None:
        self._last = self._sample()

    def elapsed(self) -> float:
        """Seconds since the last measurement."""
        return time.monotonic() - self._last[0]

    def free_cpus(self) -> float | None:
        """Free CPUs on average since the last call, or since the monitor was made. None: the system does not tell."""
        before, now = self._last, self._sample()
        self._last = now
        seconds, ticks = now[0] - before[0], now[3] - before[3]
        if seconds <= 0 or ticks <= 0:
            return None
        idle = (now[2] - before[2]) / ticks * len(allowed_cpus())
        return min(float(len(allowed_cpus())), idle + (now[1] - before[1]) / seconds)

    @staticmethod
    def _sample() -> tuple[float, float, int, int]:
        """Time, CPU seconds of this process, idle ticks and all ticks of the allowed CPUs."""
        idle = total = 0
        names = {f"cpu{number}" for number in allowed_cpus()}
        for line in read_system_file(Path("/proc/stat")).splitlines():
            name, *values = line.split()
            if name in names:
                ticks = [int(value) for value in values[:8]]  # user nice system idle iowait irq softirq steal
                idle += sum(ticks[3:5])
                total += sum(ticks)
        return time.monotonic(), time.process_time(), idle, total


def group_folders(controller: str) -> list[Path]:
    """Folders of the control groups that this process is in, for version 1 or 2, from its own to the root."""
    root, folders = Path("/sys/fs/cgroup"), []
    for line in read_system_file(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        group = base / path.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(base))]
    return folders


def read_system_file(path: str | Path) -> str:
    """The text of a small file of the system; nothing where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
