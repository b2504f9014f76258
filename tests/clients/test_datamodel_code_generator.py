"""datamodel-code-generator writes pydantic models from the document of each server, and answers fit
them."""

import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

MODELS = ("masked", "classes", "pairs", "tags", "questions")


@pytest.mark.parametrize("model", MODELS)
def test_models_are_generated(model: str, servers: Mapping[str, str], tmp_path: Path):
    document = tmp_path / "openapi.json"
    with urllib.request.urlopen(f"{servers[model]}/openapi.json") as answer:
        document.write_bytes(answer.read())
    target = tmp_path / "generated.py"
    command = [
        sys.executable,
        "-m",
        "datamodel_code_generator",
        "--input",
        document,
        "--input-file-type",
        "openapi",
        "--output",
        target,
        "--output-model-type",
        "pydantic_v2.BaseModel",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = subprocess.run([sys.executable, "-W", "error", target], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
