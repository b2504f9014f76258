"""Check that wheels of all that bertworks needs exist for the systems that people have.

    python tools/wheels.py [--python 3.11 3.12] [--system windows] [--extras serve]

For every version of Python and every system pip resolves the requirements of pyproject.toml, then
those of the packages that it has chosen, and so on: with the tags of that system, the newest
versions, and without building (`--only-binary=:all:`). The markers of requirements, such as
`sys_platform == "win32"`, are evaluated for that system, which pip itself does not do. Nothing is
installed, and of a wheel only the metadata are downloaded. The settings of pip on this machine, as
of further indexes, are left out: the answer is that of the package index.

It prints a table in Markdown; exit code 1 if a wheel is missing. It needs pip 24 or later. What it
does not see: two packages that require versions of a third which exclude each other.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST_PIP = 24  # earlier versions download whole wheels for a dry run
GLIBC = 28  # 2.28: that of Debian 10, RHEL 8 and Ubuntu 18.10
MISSING = re.compile(r"No matching distribution found for ([\w.-]+)")


@dataclass(frozen=True)
class System:
    """A system with the tags of its wheels, and what markers of requirements ask of it."""

    name: str
    tags: tuple[str, ...]
    sys_platform: str
    platform_system: str
    platform_machine: str

    def markers(self, python: str) -> dict[str, str]:
        """Return the environment of markers (the specification of dependency specifiers)."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{python}.0",
            "os_name": "nt" if self.sys_platform == "win32" else "posix",
            "platform_machine": self.platform_machine,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": self.platform_system,
            "platform_version": "",
            "python_full_version": f"{python}.0",
            "python_version": python,
            "sys_platform": self.sys_platform,
        }


def linux(machine: str) -> System:
    """Return Linux with glibc, and all tags of wheels that it runs (PEP 600)."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    tags += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1")]
    return System(f"Linux {machine}, glibc 2.{GLIBC}", tuple(tags), "linux", "Linux", machine)


SYSTEMS = {
    "linux-x86_64": linux("x86_64"),
    "linux-aarch64": linux("aarch64"),
    # pip adds the tags of all earlier versions of macOS
    "macos": System("macOS 14 arm64", ("macosx_14_0_arm64",), "darwin", "Darwin", "arm64"),
    "windows": System("Windows x64", ("win_amd64",), "win32", "Windows", "AMD64"),
}
# Requirements and a system to the chosen packages, each with its own requirements, and the names of
# those without a wheel.
Resolver = Callable[[list[str], System, str], tuple[dict[str, list[str]], list[str]]]


def resolve(
    requirements: list[str], system: System, python: str
) -> tuple[dict[str, list[str]], list[str]]:
    """Let pip choose a wheel for each requirement.

    Returns:
        The requirements of each package that has one, and the names of those that have none.
    """
    left = {canonicalize_name(Requirement(text).name): text for text in requirements}
    missing: list[str] = []
    while left:
        report, error = pip_report([*left.values()], system, python)
        if report is not None:
            return {
                canonicalize_name(item["metadata"]["name"]): item["metadata"].get(
                    "requires_dist", []
                )
                for item in report["install"]
            }, missing
        match = MISSING.search(error)
        if match is None:
            raise SystemExit(f"error: pip failed for {system.name}, Python {python}:\n{error}")
        name = canonicalize_name(match[1])
        missing.append(name)
        del left[name]
    return {}, missing


def pip_report(
    requirements: list[str], system: System, python: str
) -> tuple[dict[str, Any] | None, str]:
    """Run pip without installing: its report, or None and what it printed as an error."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        command += ["--no-deps", "--only-binary=:all:", "--use-feature=fast-deps", "--no-cache-dir"]
        command += ["--report", str(report), "--target", folder, "--python-version", python]
        for tag in system.tags:
            command += ["--platform", tag]
        process = subprocess.run(
            [*command, *requirements],
            env=pip_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            return None, process.stderr
        return json.loads(report.read_text(encoding="utf-8")), ""


def pip_environment() -> dict[str, str]:
    """Return the environment without other indexes and constraints of this machine."""
    ignored = ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT")
    variables = {name: value for name, value in os.environ.items() if name not in ignored}
    return variables | {"PIP_CONFIG_FILE": os.devnull}


def needed(requirement: Requirement, extras: Iterable[str], markers: dict[str, str]) -> bool:
    """Return whether a package with these extras has a requirement on that system."""
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate(markers | {"extra": extra}) for extra in ("", *extras))


def missing_wheels(
    requirements: list[str], system: System, python: str, resolver: Resolver = resolve
) -> tuple[int, list[str]]:
    """Return the number of packages that are needed there, and the names of those without a wheel.

    Args:
        requirements: as in pyproject.toml.
        system: for which the wheels are.
        python: its version, such as "3.11".
        resolver: chooses wheels.
    """
    markers = system.markers(python)
    extras: dict[str, set[str]] = defaultdict(set)
    metadata: dict[str, list[str]] = {}
    missing: list[str] = []
    wanted = [
        requirement
        for requirement in map(Requirement, requirements)
        if needed(requirement, (), markers)
    ]
    while wanted:
        specifiers: dict[str, list[str]] = defaultdict(list)
        names: set[str] = set()
        for requirement in wanted:
            name = canonicalize_name(requirement.name)
            if not requirement.extras <= extras[name] or name not in metadata:
                names.add(name)
            extras[name] |= requirement.extras
            specifiers[name].append(str(requirement.specifier))
        texts = [
            name + ",".join(filter(None, specifiers[name]))
            for name in sorted(names - metadata.keys() - set(missing))
        ]
        if texts:
            chosen, without_wheel = resolver(texts, system, python)
            metadata |= chosen
            missing += without_wheel
        wanted = [
            requirement
            for name in sorted(names & metadata.keys())
            for requirement in map(Requirement, metadata[name])
            if needed(requirement, extras[name], markers)
        ]
    return len(metadata) + len(missing), sorted(missing)


def requirements_of(extras: Iterable[str]) -> list[str]:
    """Return the requirements of pyproject.toml with those of these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    return [
        *project["dependencies"],
        *(text for extra in extras for text in optional[extra]),
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print the table; exit code 1 if a wheel is missing."""
    parser = argparse.ArgumentParser(description="Check that wheels exist.")
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions of Python")
    parser.add_argument("--system", nargs="+", default=SYSTEMS, choices=SYSTEMS, help="systems")
    parser.add_argument("--extras", nargs="*", default=["serve"], help="extras of pyproject.toml")
    options = parser.parse_args(arguments)
    version = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    if int(version.partition(".")[0]) < OLDEST_PIP:
        sys.exit(f"error: pip {version} is too old\n  hint: python -m pip install --upgrade pip")
    requirements = requirements_of(options.extras)
    out = sys.stdout
    out.write(f"{datetime.now(UTC):%Y-%m-%d}, pip {version}: {len(requirements)} requirements\n\n")
    out.write(f"| system | {' | '.join(f'Python {python}' for python in options.python)} |\n")
    out.write(f"|{'---|' * (1 + len(options.python))}\n")
    is_complete = True
    for name in options.system:
        cells = []
        for python in options.python:
            count, missing = missing_wheels(requirements, SYSTEMS[name], python)
            is_complete = is_complete and not missing
            cells.append(f"no wheel of {', '.join(missing)}" if missing else f"all {count}")
        out.write(f"| {SYSTEMS[name].name} | {' | '.join(cells)} |\n")
        out.flush()
    if not is_complete:
        sys.exit(1)


if __name__ == "__main__":
    main()
