"""Run the tests of other people's programs, each in a virtual environment of its own: `make
test-clients`.

    python tests/clients/run.py                 # all programs of clients.toml
    python tests/clients/run.py --quick         # those that continuous integration runs
    python tests/clients/run.py openai          # some of them

It starts a server for each of a few tiny models, makes build/clients/NAME with the packages of
clients.toml, and runs test_NAME.py in it, and the lines of the table in docs/guides/serve.md for
the packages of this environment. An environment is made again when its packages change. Programs
are skipped if no package registry can be reached.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ENVIRONMENTS = ROOT / "build" / "clients"
PYTEST = "pytest==9.2.0"
PROGRAMS_AT_A_TIME = 2  # as many as the processors of a small machine
# What pip says if it cannot connect to a registry, or only to one that is out of order.
NO_CONNECTION = "after connection broken by"
# The models of the servers, by name: None is a masked language model, and others have a head of
# this task.
MODELS: Mapping[str, dict[str, Any] | None] = {
    "masked": None,
    "classes": {"task": "classification", "labels": ("neg", "pos"), "text": ("text",)},
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "tags": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "questions": {"task": "qa"},
}

sys.path.insert(0, str(ROOT))  # tests.support


class UnreachableRegistryError(Exception):
    """The packages of a program could not be fetched, because no package registry can be
    reached."""


class InstallationError(Exception):
    """pip cannot install the packages of a program."""


@contextmanager
def running_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Start a server for each model, with its files in a folder. Yield their addresses by the names
    of the models."""
    from tests.support.fine import write_model
    from tests.support.served import process, write_head

    for name, head in MODELS.items():
        if head is None:
            write_model(folder / name)
        else:
            write_head(folder / name, **head)
    with ExitStack() as stack:

        def started(name: str) -> str:
            _, address = stack.enter_context(
                process(str(folder / name), "--precision", "fp32", OMP_NUM_THREADS="1")
            )
            return address.rstrip("/")

        with ThreadPoolExecutor() as starters:
            addresses = dict(zip(MODELS, starters.map(started, MODELS)))
        yield addresses


def environment(name: str, client: Mapping[str, Any]) -> Path:
    """Return the Python of the environment of a program, which is made unless it is there already.

    Args:
        client: its section of clients.toml.

    Raises:
        UnreachableRegistryError: the packages cannot be fetched.
        InstallationError: pip refuses them.
    """
    folder = ENVIRONMENTS / name
    stamp = folder / "packages.json"
    content = json.dumps([sys.version, PYTEST, dict(client)])
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == content:
        return python
    # The pip that is here installs into the environment, and modules are compiled when they are
    # imported: with a pip of its own and all modules compiled, an environment takes three times as
    # long.
    venv.create(folder, clear=True, with_pip=False)
    if client.get("imports_bertworks"):
        # Packages of the environment come first, then those that bertworks needs. pip installs only
        # what is missing.
        (packages,) = folder.glob("lib/python*/site-packages")
        paths = [str(ROOT), sysconfig.get_path("purelib")]
        (packages / "bertworks.pth").write_text("".join(f"{path}\n" for path in paths))
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "--retries",
        "2",
    ]
    command = [*pip, "install", "--quiet", "--no-compile", PYTEST, *client["packages"]]
    installed = subprocess.run(command, capture_output=True, text=True)
    if installed.returncode != 0:
        if NO_CONNECTION in installed.stderr:
            raise UnreachableRegistryError(installed.stderr.strip().splitlines()[-1])
        raise InstallationError(installed.stderr)
    stamp.write_text(content)
    return python


def run_tests(
    name: str, client: Mapping[str, Any], python: Path, variables: Mapping[str, str]
) -> tuple[bool, str]:
    """Run the tests of a program in its environment. Return whether all pass, and what pytest
    prints.

    Args:
        python: the Python of the environment.
        variables: of the process, which `conftest.py` reads.
    """
    files = [FOLDER / f"test_{name.replace('-', '_')}.py"]
    if not client.get("imports_bertworks"):  # a client of a server
        files.append(FOLDER / "test_guide.py")
    command = [python, "-m", "pytest", "-c", FOLDER / "pytest.ini", "--rootdir", FOLDER, *files]
    # PYTHONPATH would bring the packages of another environment.
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    settings = {
        "BERTWORKS_PACKAGES": json.dumps(client["packages"]),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        command,
        env=inherited | settings | dict(variables),
        cwd=FOLDER,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode == 0, done.stdout


def check(name: str, client: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    """Install a program and run its tests. Print what happens at once, as several programs are
    checked at a time.

    Returns:
        Whether nothing failed.
    """
    title = f"== {name}: {', '.join(client['packages'])}"
    begin = time.monotonic()
    try:
        python = environment(name, client)
    except UnreachableRegistryError as error:
        print(f"{title}\nskipped: no package registry can be reached ({error})", flush=True)
        return True
    except InstallationError as error:
        print(f"{title}\nfailed: pip cannot install the packages\n{error}", flush=True)
        return False
    installed = time.monotonic()
    passed, output = run_tests(name, client, python, variables)
    seconds = (
        f"installed in {installed - begin:.1f} s, tested in {time.monotonic() - installed:.1f} s"
    )
    print(f"{title}\n{output}{seconds}", flush=True)
    return passed


def main() -> int:
    """Run the tests of the programs that are named, or of all. Return the exit status: 1 if any
    test fails."""
    clients = tomllib.loads((FOLDER / "clients.toml").read_text())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(clients)}; none: all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="only those that continuous integration runs"
    )
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in clients]:
        parser.error(f"there is no program {unknown[0]!r}: expected some of {', '.join(clients)}")
    names = arguments.names or list(clients)
    if arguments.quick:
        names = [name for name in names if clients[name].get("quick")]
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_servers(Path(folder)) as addresses,
        ThreadPoolExecutor(max_workers=PROGRAMS_AT_A_TIME) as workers,
    ):
        variables = {
            "BERTWORKS_SERVERS": json.dumps(addresses),
            "BERTWORKS_MODELS": folder,
            "BERTWORKS_PYTHON": sys.executable,
        }
        passed = workers.map(lambda name: check(name, clients[name], variables), names)
        failed = [name for name, has_passed in zip(names, passed) if not has_passed]
    outcome = f"failed: {', '.join(failed)}" if failed else "no program failed"
    print(f"{outcome} of {len(names)}, in {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
