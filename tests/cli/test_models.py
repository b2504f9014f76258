"""Commands about models as a whole: servers, uploads and scripts for clusters."""

import shutil
from pathlib import Path

import pytest

from tests.support.shell import Shell


def test_a_key_that_is_short_serves_nothing(
    model: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BERTWORKS_API_KEY", "short")
    shell.refuses(
        ["serve", model, "--host", "0.0.0.0", "--port", "0"],
        "other machines can reach 0.0.0.0: expected a token of 16 characters or more",
        "export BERTWORKS_API_KEY=",
    )


def test_only_trainings_are_jobs(shell: Shell):
    shell.refuses(
        "slurm embed x", "a job is a training", "bertworks slurm pretrain SHARDS -o MODEL"
    )


def test_what_is_no_pickle_needs_no_trust(model: Path, shell: Shell):
    Path("checkpoint").mkdir()
    Path("checkpoint/bert_model.ckpt.index").write_bytes(b"")
    shell.refuses(
        "convert checkpoint -o new --trust-pickle",
        "Google's checkpoints are not pickles",
        "leave --trust-pickle out",
    )
    shutil.copytree(model, "no card")
    Path("no card/README.md").unlink()
    shell.refuses(
        ["push", "no card", "me/x", "--dry-run"], "README.md", "bertworks convert 'no card' -o"
    )
