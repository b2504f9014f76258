"""The Dockerfile, as far as it can be checked without Docker: its files, packages, versions,
options and addresses."""

import json
import re
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from bertworks.cli.parser import make_app
from tests.support import ROOT

TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
LINES = [
    line.partition(" ")[::2] for line in TEXT.splitlines() if line and not line.startswith("#")
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GUIDE = (ROOT / "docs" / "guides" / "serve.md").read_text()


def arguments(instruction: str) -> list[str]:
    return [argument for name, argument in LINES if name == instruction]


def copied() -> list[str]:
    return [source for argument in arguments("COPY") for source in argument.split()[:-1]]


def test_what_is_copied_exists_and_is_not_ignored():
    ignored = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and line[0] != "#"
    ]
    assert ignored[0] == "*", "only what is named enters the image"
    for source in copied():
        assert (ROOT / source).exists(), source
        last = [line for line in ignored if fnmatch(source, line.removeprefix("!"))][-1]
        assert last.startswith("!"), source


def test_what_the_build_of_the_package_reads_is_copied():
    needed = {
        "pyproject.toml",
        "bertworks",
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
    }
    assert needed <= set(copied())


def test_packages_and_versions_are_those_of_the_project():
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    commands = [shlex.split(argument) for argument in arguments("RUN") if "pip install" in argument]
    torch, own = commands
    assert "--index-url" in torch
    assert torch[-1] in constraints
    assert own[-1].startswith(".[")
    assert set(own[-1][2:-1].split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert own[own.index("-c") + 1] in copied()
    version = re.fullmatch(r"python:3\.(\d+)-slim", *arguments("FROM"))
    assert version
    assert int(version[1]) >= int(PROJECT["project"]["requires-python"].removeprefix(">=3."))


def test_the_command_parses_and_the_check_uses_its_port():
    command = json.loads(arguments("ENTRYPOINT")[0]) + json.loads(arguments("CMD")[0])
    _, bound, *_ = make_app().parse_args(command[1:])
    assert bound.arguments["host"] == "0.0.0.0"
    assert bound.arguments["model"] == "/model"
    port = str(bound.arguments["port"])
    assert arguments("EXPOSE") == [port]
    assert f"http://127.0.0.1:{port}/health" in arguments("HEALTHCHECK")[0]
    assert '"/health"' in (ROOT / "bertworks" / "serve" / "application.py").read_text()


def test_the_server_is_not_run_as_root():
    names = [name for name, _ in LINES]
    assert arguments("USER") == ["bertworks"]
    assert any(
        "useradd" in argument and argument.endswith(" bertworks") for argument in arguments("RUN")
    )
    assert names.index("USER") < names.index("ENTRYPOINT")


def test_the_guide_runs_this_image():
    """Port, folder and user in the guide are those of the image; the options after its name are
    those of `serve`."""
    section = GUIDE.split("## Run it in Docker")[1].split("\n## ")[0]
    assert ":8080:8080 -e BERTWORKS_API_KEY" in section
    assert ":/model:ro" in section
    user = re.search(r"--uid (\d+)", TEXT)
    assert user
    assert f"user {user[1]}" in section
    words = re.search(r" bertworks (/model --index /index)`", section)
    assert words
    command = json.loads(arguments("ENTRYPOINT")[0]) + words[1].split()
    assert make_app().parse_args(command[1:])[1].arguments["index"] == Path("/index")
