"""What a fine-tuning names is read once: standard input, and the rows of a job."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import bertworks as bw
from bertworks.runs.finetune_job import FinetuneJob
from bertworks.runs.preparation import prepare_finetuning
from tests.support.fine import write_reviews

CPU = torch.device("cpu")


def pipe(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_rows_of_standard_input_train_the_model_of_their_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rows resume the run, others are refused."""
    file = write_reviews(tmp_path / "reviews.csv", 40)
    content = file.read_bytes()
    options: dict[str, Any] = {
        "model": model,
        "epochs": 1,
        "precision": "fp32",
        "validation": "split",
    }
    bw.finetune(file, output=tmp_path / "file", device="cpu", **options)
    for _ in range(2):
        pipe(content, monkeypatch)
        bw.finetune("-", output=tmp_path / "pipe", device="cpu", **options)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("file", "pipe")]
    assert weights[0] == weights[1]
    pipe(content + b"a good film,pos\n", monkeypatch)
    with pytest.raises(bw.UsageError, match=r"other settings:\n  data_sha256"):
        bw.finetune("-", output=tmp_path / "pipe", device="cpu", **options)


def test_processes_do_not_share_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(bw.UsageError, match="standard input can be read only once"):
        bw.make_finetune_request("-")


def test_variants_and_folds_share_the_rows_and_the_model(model: Path, tmp_path: Path) -> None:
    file = write_reviews(tmp_path / "reviews.csv", 40)
    request = bw.make_finetune_request(file, model=model, validation="folds")
    prepared = prepare_finetuning(request, CPU)
    file.unlink()
    job = FinetuneJob(prepared)
    frozen = job.variant("frozen")
    fold = job.fold(0)
    assert frozen.data is job.data is prepared.data
    assert frozen.model is fold.model is prepared.model
    assert (frozen.method, fold.method) == ("frozen", job.method)
    assert len(fold.dev) == len(job.data.parts[0])
    assert len(fold.train) + len(fold.dev) == len(job.train)
