"""The OpenAPI document is true: schemathesis, which knows nothing else of a server, finds what it
documents and no fault. Long: thousands of requests, most of them wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.retrieval.index import Index
from tests.support.served import process, write_head

SETTINGS = """
[checks.negative_data_rejection]
expected-statuses = [400, 413, 415, 422, 429, 431]
[[operations]]
include-path = "/explain"  # words and labels of a model, and numbers of tokens, are in no schema
[operations.checks.positive_data_acceptance]
enabled = false
[[operations]]
include-path-regex = "^/(fill|invocations)?$"  # the targets of a mask are words of the vocabulary
[operations.checks.positive_data_acceptance]
enabled = false
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["words", "classification", "qa", "choice"])
def test_schemathesis_finds_no_fault(kind: str, model: Path, tmp_path: Path):
    index = Index.create(tmp_path / "idx", model, device="cpu")
    index.add(["good film", "sad dogs"])
    arguments = [str(model), "--index", str(index.folder)]
    if kind != "words":
        labels = ("neg", "pos") if kind == "classification" else ()
        arguments = [str(write_head(tmp_path / "model", task=kind, labels=labels))]
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with process(*arguments) as (_, url):
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            "schemathesis.toml",
            "run",
            f"{url}openapi.json",
            "--max-response-time",
            "60",
            "--max-examples",
            "20",
            "--request-timeout",
            "60",
            "--phases",
            "examples,coverage,fuzzing",
            "--continue-on-failure",
            "--no-color",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, "\n".join(line[:300] for line in done.stdout.splitlines() if line)[
        -8000:
    ]
