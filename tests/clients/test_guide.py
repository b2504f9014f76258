"""The lines of the guide that connect clients, run in the environment of their packages."""

import json
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from guide_table import MODELS, Row, package_of, rows

PACKAGES = {package_of(requirement) for requirement in json.loads(os.environ["BERTWORKS_PACKAGES"])}
ROWS = [row for row in rows() if package_of(row.package) in PACKAGES]


def answered_requests(url: str) -> float:
    """Return how many requests a server has answered with 200, except for its metrics."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    counts = [
        line
        for line in lines
        if line.startswith("te_request_success{") and '"/metrics"' not in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.package}-{row.purpose}" for row in ROWS])
def test_the_line_connects(row: Row, servers: Mapping[str, str], tmp_path: Path):
    url = servers[MODELS[row.purpose]]
    before = answered_requests(url)
    if row.imports:
        names: dict[str, Any] = {"url": url}
        exec(row.imports, names)
        assert eval(row.line, names) is not None
    else:
        command = shlex.split(row.line.replace("http://127.0.0.1:8080", url))
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(tmp_path.iterdir())
    assert answered_requests(url) > before
