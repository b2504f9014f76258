"""The check of wheels asks pip for what each system needs, and reports what has none."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import wheels

INDEX = {  # packages with their requirements
    "first": ["second>=1; sys_platform == 'win32'", "third[fast]", "Fifth_Name<3"],
    "second": [],
    "third": ["first", "fourth>2; extra == 'fast'", "absent; python_version >= '3.14'"],
    "fourth": ["fifth-name>1"],
    "fifth-name": [],
}


class Index:
    """An index in memory, which notes the requirements that it was asked for."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def resolve(
        self, requirements: list[str], system: wheels.System, python: str
    ) -> tuple[dict[str, list[str]], list[str]]:
        self.requests += requirements
        names = [re.match(r"[\w-]+", text)[0] for text in requirements]  # type: ignore[index]
        missing = [name for name in names if name not in INDEX]
        return {name: INDEX[name] for name in names if name in INDEX}, missing


@pytest.mark.parametrize(
    ("system", "python", "count", "missing"),
    [
        ("linux-x86_64", "3.11", 4, []),
        ("windows", "3.11", 5, []),
        ("macos", "3.14", 5, ["absent"]),
    ],
)
def test_requirements_of_requirements_for_the_system(
    system: str, python: str, count: int, missing: list[str]
):
    index = Index()
    requirements = ["first>=2", "second; sys_platform == 'win32'"]
    assert wheels.missing_wheels(requirements, wheels.SYSTEMS[system], python, index.resolve) == (
        count,
        missing,
    )
    assert "first>=2" in index.requests
    assert "fourth>2" in index.requests, "of an extra that a requirement names"
    assert len(index.requests) == count, "each package is asked for once"


def test_linux_has_all_tags_up_to_its_glibc():
    tags = wheels.SYSTEMS["linux-aarch64"].tags
    assert tags[0] == "manylinux_2_28_aarch64"
    assert {"manylinux_2_17_aarch64", "manylinux2014_aarch64"} <= set(tags)


def test_pip_is_called_again_without_what_has_no_wheel(monkeypatch: pytest.MonkeyPatch):
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        assert "PIP_FIND_LINKS" not in options["env"]
        if "no-wheel>1" in command:
            error = "ERROR: No matching distribution found for No_Wheel>1"
            return subprocess.CompletedProcess(command, 1, "", error)
        report = Path(command[command.index("--report") + 1])
        item = {"metadata": {"name": "Rich", "requires_dist": ["pygments>=2"]}}
        report.write_text(json.dumps({"install": [item]}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setenv("PIP_FIND_LINKS", "somewhere")
    monkeypatch.setattr(subprocess, "run", run)
    system = wheels.SYSTEMS["windows"]
    packages = wheels.resolve(["rich>=13", "no-wheel>1"], system, "3.12")
    assert packages == ({"rich": ["pygments>=2"]}, ["no-wheel"])
    assert [command[-2:] for command in commands] == [
        ["rich>=13", "no-wheel>1"],
        ["win_amd64", "rich>=13"],
    ]
    assert all("--only-binary=:all:" in command for command in commands)


def test_another_failure_of_pip_is_no_missing_wheel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wheels, "pip_report", lambda *arguments: (None, "ERROR: no network"))
    with pytest.raises(
        SystemExit, match=r"pip failed for Windows x64, Python 3.12:\nERROR: no net"
    ):
        wheels.resolve(["rich"], wheels.SYSTEMS["windows"], "3.12")


def test_the_table_of_the_guide_has_every_system_and_version():
    guide = (ROOT / "docs" / "guides" / "install.md").read_text(encoding="utf-8")
    head = f"| system | {' | '.join(f'Python {python}' for python in wheels.PYTHONS)} |"
    assert head in guide
    for system in wheels.SYSTEMS.values():
        (row,) = re.findall(rf"^\| {re.escape(system.name)} \| (.+) \|$", guide, re.MULTILINE)
        assert len(row.split(" | ")) == len(wheels.PYTHONS)
    assert {"torch>=2.10", "uvicorn>=0.40"} <= set(wheels.requirements_of(["serve"]))
