"""Threads by what is free: limits of control groups, the measured load, and what a training
keeps."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from bertworks.cli.main import main
from bertworks.errors import UsageError
from bertworks.io import processes
from bertworks.io.processes import CpuMonitor, available_cpus, cpu_quota
from bertworks.training import device
from bertworks.training.device import ThreadPolicy, next_count
from tests.support import ROOT


def system(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], allowed: set[int] | None = None
) -> None:
    monkeypatch.setattr(processes, "read_system_file", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(processes, "allowed_cpus", lambda: allowed or {0, 1, 2, 3})


@pytest.mark.parametrize(
    ("files", "quota", "count"),
    [
        ({}, None, 4),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5, 2),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, None, 4),
        ({"/proc/self/cgroup": "0::/a/b\n", "/sys/fs/cgroup/a/cpu.max": "50000 100000\n"}, 0.5, 1),
        ({"/proc/self/cgroup": "0::/gone\n", "/sys/fs/cgroup/cpu.max": "900000 100000\n"}, 9.0, 4),
        (
            {
                "/proc/self/cgroup": "2:memory:/\n1:cpu:/docker/1\n0::/\n",
                "/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": "200000\n",
                "/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000\n",
            },
            2.0,
            2,
        ),
        (
            {
                # of the host: here the group is the root
                "/proc/self/cgroup": "1:cpu,cpuacct:/docker/1\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            None,
            4,
        ),
    ],
)
def test_limits_of_control_groups(
    files: dict[str, str], quota: float | None, count: int, monkeypatch: pytest.MonkeyPatch
):
    system(monkeypatch, files)
    assert cpu_quota() == quota
    assert available_cpus() == count


def test_affinity_limits_the_cpus(monkeypatch: pytest.MonkeyPatch):
    system(monkeypatch, {}, {2})
    assert available_cpus() == 1


def test_free_cpus_are_idle_ones_and_own_ones(monkeypatch: pytest.MonkeyPatch):
    """One allowed CPU is busy all the time, half of it with this process; the other is busy a
    quarter of the time."""
    clock, own = [100.0], [5.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: own[0])
    files = {
        "/proc/stat": "cpu 9 9 9 9\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\n"
        "cpu2 7 7 7 7 7 7 7 7 0 0\n"
    }
    system(monkeypatch, files, {0, 1})
    monitor = CpuMonitor()
    clock[0], own[0] = 102.0, 6.0
    files["/proc/stat"] = (
        "cpu0 150 0 40 0 0 0 0 10 0 0\ncpu1 25 20 5 100 50 0 0 0 0 0\ncpu2 99 0 0 0 0 0 0 0 0 0\n"
    )
    assert monitor.elapsed() == 2.0
    assert monitor.free_cpus() == pytest.approx(0.75 + 0.5)
    assert monitor.free_cpus() is None  # no time has passed


@pytest.mark.parametrize(
    ("count", "free", "most", "expected"),
    [
        (2, 2.0, 2, 2),
        (2, 1.6, 2, 2),
        (2, 1.5, 2, 1),
        (1, 1.7, 2, 1),
        (1, 1.8, 2, 2),
        (1, 0.1, 2, 1),
        (2, 0.2, 2, 1),
        (8, 3.1, 8, 3),
        (1, 7.9, 8, 8),
        (4, 4.7, 8, 4),
        (4, 4.0, 2, 2),
    ],
)
def test_the_next_number_of_threads(count: int, free: float, most: int, expected: int):
    assert next_count(count, free, most) == expected


class Load:
    """A monitor that reports what a test says."""

    def __init__(self, *free: float | None):
        self.free = list(free)

    def elapsed(self) -> float:
        return 10.0

    def free_cpus(self) -> float | None:
        return self.free.pop(0)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "available_cpus", lambda: 2)
    torch.set_num_threads(2)
    yield ThreadPolicy()
    torch.set_num_threads(before)


def test_inference_follows_the_load_in_both_directions(policy: ThreadPolicy):
    policy._monitor = Load(2.0, 0.9, 0.9, 2.0, 2.0, 2.0, None)
    assert [policy.adapt() for _ in range(7)] == [2, 1, 1, 1, 1, 2, 2]
    assert torch.get_num_threads() == 2


def test_batches_at_the_same_time_share_the_threads(policy: ThreadPolicy):
    policy._monitor = Load(*[2.0] * 9)
    counts = []
    worker = threading.Thread(
        target=lambda: counts.extend([policy.adapt(2), policy.adapt(), policy.adapt(1)])
    )
    worker.start()
    worker.join()
    assert counts == [1, 1, 2]
    assert policy.adapt() == 2


def test_a_training_keeps_its_number(policy: ThreadPolicy):
    policy._monitor = Load(2.0, 1.0, 2.0, 2.0)  # the first: before the training
    with policy.hold() as threads:
        assert threads == 1
        assert policy.adapt() == 1  # an evaluation on the way
    policy._monitor = Load(2.0, 2.0, 2.0)
    with policy.hold(1) as threads:  # of the run that is resumed: nothing is measured
        assert threads == policy.adapt() == 1
    assert [policy.adapt() for _ in range(3)] == [1, 1, 2]
    policy._monitor = Load(0.1, 2.0)  # worker processes were busy until now
    with policy.hold() as threads:
        assert threads == 2


def test_a_fixed_number_stays(policy: ThreadPolicy):
    policy.set(1)
    policy._monitor = Load()
    assert policy.adapt() == 1
    with policy.hold(2) as threads:
        assert threads == 1
    policy.set(None)
    assert policy.adapt() == 1


def test_auto_adapts_in_a_training(policy: ThreadPolicy):
    policy.set("auto")
    policy._monitor = Load(2.0, 0.5, 0.5)
    with policy.hold(1) as threads:
        assert threads == 2
        assert [policy.adapt(), policy.adapt()] == [1, 1]


def test_a_number_below_1_is_refused(policy: ThreadPolicy):
    with pytest.raises(UsageError, match="0 threads: expected 1 or more"):
        policy.set(0)


def test_the_environment_fixes_the_number():
    code = "from bertworks.training.device import THREADS; print(THREADS.fixed, THREADS.adapt())"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["1", "1"]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["--threads", "1", "doctor", "--json"], marks=pytest.mark.slow),
        ["doctor", "--threads=1", "--json"],
    ],
)
def test_the_command_line_sets_the_number(words: list[str]):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(ROOT)}
    code = (
        "import sys; from bertworks.cli.main import _set_threads; words = "
        "_set_threads(sys.argv[1:]);"
        "from bertworks.training.device import THREADS; print(*words, THREADS.fixed, "
        "THREADS.training_adapts)"
    )
    command = [sys.executable, "-c", code]
    answer = subprocess.run(
        [*command, *words], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["doctor", "--json", "1", "False"]
    answer = subprocess.run(
        [*command, "--threads", "auto"], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["None", "True"]


@pytest.mark.parametrize("count", ["0", "many", ""])
def test_a_wrong_number_on_the_command_line_is_refused(
    count: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["doctor", "--threads", *([count] if count else [])]) == 2
    assert "hint: --threads 1, or --threads auto" in capsys.readouterr().err
