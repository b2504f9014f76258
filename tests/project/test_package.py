"""The distributions: what they say of the package, what is in them, and that they work without the
repository."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from tests.support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def tool() -> dict[str, Any]:
    return run_path(str(ROOT / "tools" / "distribution.py"))


def write_wheel(path: Path, names: set[str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*names, "bertworks-1.dist-info/METADATA"):
            archive.writestr(name, "")
    return path


def write_source(path: Path, folder: Path, names: set[str]) -> Path:
    (folder / "empty").touch()
    with tarfile.open(path, "w:gz") as archive:
        for name in (*names, "bertworks.egg-info/PKG-INFO"):
            archive.add(folder / "empty", f"bertworks-1/{name}")
    return path


def test_a_missing_file_and_one_too_many_are_named(tool: dict[str, Any], tmp_path: Path):
    files = tool["package_files"]()
    assert {"bertworks/py.typed", "bertworks/serve/page/page.js", "bertworks/config.py"} <= files
    assert not [name for name in files if name.endswith(".pyc")]
    texts = {*tool["SOURCE_FILES"], *tool["BY_SETUPTOOLS"]}
    wheel = write_wheel(tmp_path / "all.whl", files)
    source = write_source(tmp_path / "all.tar.gz", tmp_path, files | texts)
    tool["check_content"](wheel, source)
    less = write_wheel(tmp_path / "less.whl", files - {"bertworks/py.typed"})
    with pytest.raises(tool["DistributionError"], match=r"^less.whl lacks bertworks/py.typed$"):
        tool["check_content"](less, source)
    more = write_source(tmp_path / "more.tar.gz", tmp_path, files | texts | {"tests/test_x.py"})
    with pytest.raises(tool["DistributionError"], match=r"^more.tar.gz has also tests/test_x.py$"):
        tool["check_content"](wheel, more)


def test_a_failure_has_the_output_of_the_command(tool: dict[str, Any]):
    program = "print('a figure'); raise SystemExit('a reason')"
    with pytest.raises(tool["DistributionError"], match=r"exit code 1\n(.*\n)*a figure\na reason"):
        tool["run"](sys.executable, "-c", program)
    with pytest.raises(tool["DistributionError"], match="no line like"):
        tool["pattern"](r"^(payment)$", "return")


def test_the_metadata_are_complete():
    assert PROJECT["readme"] == "README.md"
    assert PROJECT["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in PROJECT["license-files"])
    assert set(PROJECT["urls"]) == {"Repository", "Documentation", "Changelog"}
    assert set(PROJECT["urls"].values()) == {"REPOSITORY-URL"}, "as in the README"
    assert PROJECT["authors"]
    assert PROJECT["keywords"]


def test_the_classifiers_claim_what_the_readme_says_is_tested():
    """The README names one system and one version of Python."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert "Tested by continuous integration (`make test`): Linux on x86-64, Python 3.11" in text
    kinds = ("Operating System", "Programming Language :: Python :: 3.")
    claims = [line for line in PROJECT["classifiers"] if line.startswith(kinds)]
    assert claims == [
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
    ]
    assert PROJECT["requires-python"] == ">=3.11"


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("build"), reason="`build` is missing; `make package` installs it")
def test_both_distributions_work_in_an_empty_environment(tmp_path: Path):
    command = [sys.executable, "tools/distribution.py", "--out", str(tmp_path / "dist")]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert len(lines) == 2
    assert all("; payment " in line for line in lines)
