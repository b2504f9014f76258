"""`doctor`: the hardware, the chosen settings, and the self-test."""

import importlib.metadata
import json
import re
import tomllib
from itertools import takewhile

import pytest
import torch

from bertworks import diagnostics
from bertworks.cli.main import main
from bertworks.diagnostics import Check, doctor
from bertworks.errors import BertworksError
from bertworks.events import Event
from bertworks.io import processes
from bertworks.runs import pretrain
from tests.support import ROOT


@pytest.fixture
def quick(monkeypatch):
    """Measurements without a delay."""
    speeds = {torch.float32: 5e10, torch.bfloat16: 4e11}
    monkeypatch.setattr(diagnostics, "measure_matmul", lambda dtype, device: speeds[dtype])
    for module in (diagnostics, pretrain):
        monkeypatch.setattr(module, "best_precision", lambda device: "bf16")


def check_of(name):
    """Return the check of this name; those after it are not made."""
    return next(check for check in doctor() if check.name == name)


def test_all_checks_in_order(quick, capsys):
    code = main(["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)}
    assert list(checks) == [
        "versions",
        "extras",
        "system",
        "cores",
        "memory",
        "disk",
        "device",
        "matmul speed",
        "chosen",
        "self-test",
    ]
    assert code == (0 if all(check["good"] for check in checks.values()) else 1)
    assert checks["versions"]["fields"]["torch"] == torch.__version__
    assert checks["matmul speed"]["text"] == "fp32 50 GFLOP/s, bf16 400 GFLOP/s"
    assert "8.0 times as fast" in checks["chosen"]["text"]
    assert checks["self-test"]["good"]  # in bf16
    assert (
        checks["self-test"]["fields"]["last_loss"]
        < 0.7 * checks["self-test"]["fields"]["first_loss"]
    )


def test_a_failing_self_test_is_reported_with_exit_code_1(quick, monkeypatch, capsys):
    def fails(*_, **__):
        raise BertworksError("the disk is full", hint="free some")

    monkeypatch.setattr(diagnostics, "pretrain", fails)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "! self-test     failed: the disk is full" in out
    assert "hint: free some" in out


def test_a_model_that_does_not_learn_is_no_success(quick, monkeypatch):
    events = [Event("step", "", {"masked_lm_loss": loss}) for loss in (4.4, 4.5, 4.3)]
    monkeypatch.setattr(diagnostics, "pretrain", lambda *_, **__: events)
    check = check_of("self-test")
    assert not check.good
    assert "does not learn" in check.text


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"/sys/fs/cgroup/memory.max": "2147483648\n"}, 1 << 31),
        (
            {"/sys/fs/cgroup/a/memory.max": "max", "/sys/fs/cgroup/memory.max": "1073741824"},
            1 << 30,
        ),
        ({"/sys/fs/cgroup/a/memory.max": "max"}, None),
        ({"/sys/fs/cgroup/memory/b/memory.limit_in_bytes": "1073741824"}, 1 << 30),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
)
def test_memory_limits_of_control_groups(files, limit, monkeypatch):
    files["/proc/self/cgroup"] = "0::/a\n3:memory:/b\n"
    for module in (processes, diagnostics):
        monkeypatch.setattr(module, "read_system_file", lambda path: files.get(str(path), ""))
    assert check_of("memory").fields["limit"] == limit


def test_more_threads_than_cores_is_reported(monkeypatch):
    monkeypatch.setattr(diagnostics, "cpu_quota", lambda: 1.0)
    monkeypatch.setattr(diagnostics.torch, "get_num_threads", lambda: 8)
    check = check_of("cores")
    assert not check.good
    assert check.hint == "OMP_NUM_THREADS=1"


def test_instruction_sets_are_read_from_the_kernel(monkeypatch):
    cpuinfo = "model name\t: A Processor\nflags\t\t: fpu avx2 avx512f amx_bf16\n"
    monkeypatch.setattr(diagnostics, "read_system_file", lambda path: cpuinfo)
    check = check_of("system")
    assert check.fields["instructions"] == ["AVX2", "AVX-512", "AMX bf16"]
    assert "A Processor" in check.text


@pytest.fixture
def checks_of_missing_extras(monkeypatch):
    """The checks of the extras where none is installed."""
    version = importlib.metadata.version
    needed = check_of("versions").fields

    def missing(name):
        if name in needed:
            return version(name)
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    checks = takewhile(lambda check: check.name in ("versions", "extras"), doctor())
    return [check for check in checks if check.name == "extras"]


def test_all_extras_are_looked_for(checks_of_missing_extras):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [check.text for check in checks_of_missing_extras]
    names = {re.search(r"bertworks\[(\w+)\]", text)[1] for text in texts}
    assert names == {*project["optional-dependencies"]} - {"dev", "bench", "site"}


def test_missing_extras_come_with_the_command_to_install_them(checks_of_missing_extras):
    assert checks_of_missing_extras[0] == Check(
        "extras",
        "sentencepiece is not installed; unigram vocabularies need it: pip install "
        '"bertworks[vocab]"',
        fields={"sentencepiece": None},
    )
