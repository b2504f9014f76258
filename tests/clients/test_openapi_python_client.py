"""openapi-python-client writes a client from the document of each server, and the client is
answered."""

import importlib
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

MODELS = ("masked", "classes", "pairs", "tags", "questions")


@pytest.mark.parametrize("model", MODELS)
def test_a_client_is_generated(model: str, servers: Mapping[str, str], tmp_path: Path):
    document = tmp_path / "openapi.json"
    with urllib.request.urlopen(f"{servers[model]}/openapi.json") as answer:
        document.write_bytes(answer.read())
    generator = Path(sys.executable).with_name("openapi-python-client")
    command = [
        generator,
        "generate",
        "--path",
        document,
        "--output-path",
        tmp_path / "generated",
        "--meta",
        "none",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr, done.stdout + done.stderr
    sys.path.insert(0, str(tmp_path))
    try:
        importlib.invalidate_caches()
        client = importlib.import_module("generated").Client(base_url=servers[model])
        health = importlib.import_module("generated.api.default.health").sync(client=client)
        assert health.status == "ok"
    finally:
        sys.path.remove(str(tmp_path))
        for name in [name for name in sys.modules if name.partition(".")[0] == "generated"]:
            del sys.modules[name]
