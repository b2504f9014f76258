"""Fine-tuning by several processes: the numbers of one, the last small batch of an epoch, the early
end."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bertworks.batching.batch import LabelledBatches
from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.storage import read_tensors
from bertworks.errors import UsageError
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.trials import plan_trials, run_trials
from tests.support import SUPPORT
from tests.support.fine import write_model, write_reviews

SETTINGS = (
    "optimizer.learning_rate=1e-3",
    "precision=fp32",
    "epochs=4",
    "batch_size=8",
    "micro_batch_tokens=64",
)


def torchrun(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [
        "--standalone",
        "--nproc-per-node",
        "2",
        str(SUPPORT / "two_finetunings.py"),
        *words,
    ]
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def lines(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_two_processes_get_the_numbers_of_one_and_end_early_together(
    tmp_path: Path,
) -> None:
    model, data = write_model(tmp_path / "tiny"), write_reviews(tmp_path / "reviews.csv", 55)
    dev = write_reviews(tmp_path / "dev.csv", 40, seed=1)
    rows = data.read_text().splitlines()
    # the last batch of an epoch has one row: less than processes
    data.write_text("\n".join(rows[: 1 + 49]) + "\n")
    settings = (*SETTINGS, "epochs=20", "select=best", "patience=3")
    request = make_finetune_request(data, dev=dev, model=model, overrides=settings)
    *_, one = finetune_events(tmp_path / "one", request, device="cpu")
    words = [
        "finetune",
        str(data),
        "--dev",
        str(dev),
        "--model",
        str(model),
        "-o",
        str(tmp_path / "two"),
    ]
    words += [word for setting in settings for word in ("--set", setting)] + [
        "--device",
        "cpu",
        "--json",
    ]
    done = torchrun(words)
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines()]
    assert kinds.count("done") == 1
    alone, together = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert one.fields["step"] < 20 * 7  # it did end early
    assert [line["step"] for line in together] == [line["step"] for line in alone]
    for line, other in zip(together, alone, strict=True):
        for name in ("loss", "tokens", "accuracy"):
            if name in other:
                assert line[name] == pytest.approx(other[name], rel=2e-3, abs=1e-5), (name, line)
    ours, theirs = (read_tensors(tmp_path / name / "model.safetensors") for name in ("two", "one"))
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).abs().max() <= 2e-3 * tensor.abs().max().clamp_min(0.1), name
    for name in ("figures", "score", "metric", "step"):
        assert (
            json.loads((tmp_path / "two/finished.json").read_text())["fields"][name]
            == one.fields[name]
        )
    assert not (tmp_path / "two" / "checkpoints").exists()


def test_processes_share_every_batch_and_leave_nothing_out() -> None:
    units = [
        [
            Example(
                np.arange(1 + n % 5),
                np.zeros(1 + n % 5, int),
                {"task": Target(np.array([0]), np.array([n]))},
            )
        ]
        for n in range(17)
    ]
    whole = LabelledBatches(units, batch_size=8, micro_batch_tokens=100, seed=3)
    shares = [LabelledBatches(units, 8, 100, seed=3, rank=rank, world_size=3) for rank in range(3)]
    for step in range(6):
        requested = [
            [n for batch in part(step) for n in batch.target.labels.tolist()]
            for part in (whole, *shares)
        ]
        assert sorted(requested[1] + requested[2] + requested[3]) == sorted(requested[0])
        assert max(map(len, requested[1:])) - min(map(len, requested[1:])) <= 1
    assert [len(part(2)) for part in shares] == [1, 0, 0]


def test_what_processes_cannot_share_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = make_finetune_request(
        write_reviews(tmp_path / "reviews.csv"), model=write_model(tmp_path / "tiny")
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="in one process, and there are 2 processes"):
        list(run_trials(tmp_path / "out", plan_trials(request, seeds=2), device="cpu"))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_what_is_done_or_refused_is_so_for_all_processes(tmp_path: Path) -> None:
    model, data = write_model(tmp_path / "tiny"), write_reviews(tmp_path / "reviews.csv", 30)
    words = [
        "finetune",
        str(data),
        "--model",
        str(model),
        "-o",
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--json",
    ]
    words += ["--set", "precision=fp32", "--set", "epochs=1"]
    refused = torchrun([*words, "--set", "batch_size=1"])
    assert refused.returncode != 0
    assert "a step of 1 items cannot be divided among 2 processes" in refused.stderr
    assert not (tmp_path / "out").exists()
    first, second = torchrun(words), torchrun(words)
    assert first.returncode == second.returncode == 0, second.stderr
    assert json.loads(second.stdout) == json.loads(first.stdout.splitlines()[-1])
    assert not [
        path.name
        for path in tmp_path.rglob("*")
        if "partial" in path.name or path.name == "checkpoints"
    ]
