"""The doctor: what the machine has, and whether text becomes a model on it."""

import json
import tomllib
from pathlib import Path

import pytest
import torch

from bertworks import diagnostics as room
from bertworks.cli.main import main
from bertworks.diagnostics import Check
from bertworks.errors import BertworksError


@pytest.fixture
def quick(monkeypatch):
    """Measurements that take no time."""
    speeds = {torch.float32: 5e10, torch.bfloat16: 4e11}
    monkeypatch.setattr(room, "measure_matmul", lambda dtype, device: speeds[dtype])
    monkeypatch.setattr(room, "best_precision", lambda device: "bf16")


def test_all_checks_in_order(quick, capsys):
    code = main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert list(checks) == [
        "versions", "extras", "system", "cores", "memory", "disk", "device", "matmul speed", "chosen", "self-test",
    ]  # fmt: skip
    assert code == (0 if all(check["good"] for check in checks.values()) else 1)
    assert checks["versions"]["fields"]["torch"] == torch.__version__
    assert checks["matmul speed"]["text"] == "fp32 50 GFLOP/s, bf16 400 GFLOP/s"
    assert "8.0 times as fast" in checks["chosen"]["text"]
    assert checks["self-test"]["good"]  # in bf16
    assert checks["self-test"]["fields"]["last_loss"] < 0.7 * checks["self-test"]["fields"]["first_loss"]


def test_a_failing_self_test_is_told_and_is_exit_code_1(quick, monkeypatch, capsys):
    def fails(folder, device):
        raise BertworksError("the disk is full", hint="free some")

    monkeypatch.setattr(room, "_train_a_little", fails)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "! self-test     failed: the disk is full" in out
    assert "hint: free some" in out


def test_a_model_that_does_not_learn_is_no_success(monkeypatch):
    monkeypatch.setattr(room, "_train_a_little", lambda folder, device: (79, 4.4, 4.3))
    check = room._self_test(torch.device("cpu"))
    assert not check.good
    assert "does not learn" in check.text


@pytest.mark.parametrize(
    ("files", "quota", "limit"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000", "/sys/fs/cgroup/memory.max": "2147483648"}, 1.5, 1 << 31),
        ({"/sys/fs/cgroup/cpu.max": "max 100000", "/sys/fs/cgroup/memory.max": "max"}, None, None),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            4.0,
            None,
        ),
        ({}, None, None),
    ],
)
def test_limits_of_control_groups(files, quota, limit, monkeypatch):
    monkeypatch.setattr(room, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(room, "_control_group", lambda name: None)
    assert room._processor_quota() == quota
    assert room._memory_limit() == limit


def test_more_threads_than_cores_is_a_finding(monkeypatch):
    monkeypatch.setattr(room, "_processor_quota", lambda: 1.0)
    monkeypatch.setattr(room.torch, "get_num_threads", lambda: 8)
    check = room._cores()
    assert not check.good
    assert check.hint == "OMP_NUM_THREADS=1"


def test_instruction_sets_are_read_from_the_kernel(monkeypatch):
    cpuinfo = "model name\t: A Processor\nflags\t\t: fpu avx2 avx512f amx_bf16\n"
    monkeypatch.setattr(room, "_read", lambda path: cpuinfo)
    check = room._system()
    assert check.fields["instructions"] == ["AVX2", "AVX-512", "AMX bf16"]
    assert "A Processor" in check.text


def test_all_extras_are_looked_for():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    theirs = {extra for extra, _ in room._EXTRAS.values()}
    assert theirs == {*project["optional-dependencies"]} - {"dev", "bench"}


def test_missing_extras_say_what_to_install(monkeypatch):
    monkeypatch.setattr(room, "_EXTRAS", {"no-such-package": ("vocab", "unigram vocabularies")})
    (check,) = room._extras()
    assert check == Check(
        "extras",
        'no-such-package is not installed; unigram vocabularies need it: pip install "bertworks[vocab]"',
        fields={"no-such-package": None},
    )
