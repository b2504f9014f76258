"""Run the tests of other people's programs, each in a virtual environment of its own: `make test-clients`.

    python tests/clients/run.py                 # all programs of clients.toml
    python tests/clients/run.py openai          # some of them

It starts a server for each of a few tiny models, makes build/clients/NAME with the packages of clients.toml, and runs
test_NAME.py in it. An environment is made again when its packages change.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ENVIRONMENTS = ROOT / "build" / "clients"
PYTEST = "pytest==9.2.0"
# The models of the servers, by name: None is a masked language model, and others have a head of this task.
MODELS: Mapping[str, dict[str, Any] | None] = {
    "masked": None,
    "classes": {"task": "classification", "labels": ("neg", "pos"), "text": ("text",)},
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "tags": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "questions": {"task": "qa"},
}

sys.path.insert(0, str(FOLDER.parent))  # the modules that all tests share


@contextmanager
def running_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Start a server for each model, with its files in a folder. Yield their addresses by the names of the models."""
    from fine import write_model
    from served import process, write_head

    with ExitStack() as stack:
        addresses = {}
        for name, head in MODELS.items():
            model = write_model(folder / name) if head is None else write_head(folder / name, **head)
            _, address = stack.enter_context(process(str(model), OMP_NUM_THREADS="1"))
            addresses[name] = address.rstrip("/")
        yield addresses


def environment(name: str, client: Mapping[str, Any]) -> Path:
    """Return the Python of the environment of a program, which is made unless it is there already.

    Args:
        client: its section of clients.toml.
    """
    folder = ENVIRONMENTS / name
    stamp = folder / "packages.json"
    content = json.dumps([sys.version, PYTEST, dict(client)])
    python = folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == content:
        return python
    print(f"Installing {', '.join(client['packages'])} into {folder.relative_to(ROOT)} ...", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, PYTEST, *client["packages"]], check=True)
    if client.get("imports_bertworks"):
        # Packages of the environment come first, then those that bertworks needs.
        (packages,) = folder.glob("lib/python*/site-packages")
        paths = [str(ROOT), sysconfig.get_path("purelib")]
        (packages / "bertworks.pth").write_text("".join(f"{path}\n" for path in paths))
    stamp.write_text(content)
    return python


def run_tests(name: str, client: Mapping[str, Any], addresses: Mapping[str, str]) -> bool:
    """Run the tests of a program in its environment. Return whether all pass."""
    file = FOLDER / f"test_{name.replace('-', '_')}.py"
    python = environment(name, client)
    command = [python, "-m", "pytest", "-c", FOLDER / "pytest.ini", "--rootdir", FOLDER, file]
    print(f"== {name}", flush=True)
    # PYTHONPATH would bring the packages of another environment.
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    variables = {
        "BERTWORKS_SERVERS": json.dumps(dict(addresses)),
        "OMP_NUM_THREADS": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    return subprocess.run(command, env=inherited | variables, cwd=FOLDER).returncode == 0


def main() -> int:
    """Run the tests of the programs that are named, or of all. Return the exit status: 1 if any test fails."""
    clients = tomllib.loads((FOLDER / "clients.toml").read_text())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(clients)}; none: all")
    names = parser.parse_args().names or list(clients)
    if unknown := [name for name in names if name not in clients]:
        parser.error(f"there is no program {unknown[0]!r}: expected some of {', '.join(clients)}")
    with tempfile.TemporaryDirectory() as folder, running_servers(Path(folder)) as addresses:
        failed = [name for name in names if not run_tests(name, clients[name], addresses)]
    print(f"failed: {', '.join(failed)}" if failed else f"all of {len(names)} programs work")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
