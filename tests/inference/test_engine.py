"""Networks over the weights of a folder: precisions, threads, and files that change."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from bertworks.checkpoints.model_folder import load_model
from bertworks.inference import engine
from bertworks.inference.engine import LazyModel, OnnxModel
from tests.inference.test_reopening import TEXTS, vectors
from tests.interop.test_export import classifier as classifier, exported as exported
from tests.interop.test_load import folders as folders


def test_processes_do_not_measure_another_precision(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "best_precision", lambda _: "bf16")
    embedder = vectors(model)
    content = pickle.dumps(embedder)
    monkeypatch.setattr(engine, "best_precision", lambda _: "fp32")
    other = pickle.loads(content)
    assert (embedder.precision, other.precision) == ("bf16", "bf16")
    np.testing.assert_array_equal(other.embed(TEXTS), embedder.embed(TEXTS))


def test_matrices_lie_in_columns_and_are_the_files(folders: dict[str, Path]):
    state = LazyModel(folders["classifier"], "cpu").state
    for name, tensor in load_model(folders["classifier"]).state.items():
        assert torch.equal(state[name], tensor)
        rows = ".embeddings." in name or tensor.ndim == 1
        assert state[name].is_contiguous() is rows, name
        assert (state[name] if rows else state[name].t()).is_contiguous(), name


def test_an_open_model_does_not_change_with_its_file(model: Path, tmp_path: Path):
    shutil.copytree(model, tmp_path / "m")
    state, path = LazyModel(tmp_path / "m", "cpu").state, tmp_path / "m/model.safetensors"
    before = {name: value.clone() for name, value in state.items()}
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    for name, value in state.items():
        assert torch.equal(value, before[name]), name


def test_as_many_threads_as_torch(exported: Path):
    found = OnnxModel(exported / "model.onnx").session.get_session_options().intra_op_num_threads
    assert found == torch.get_num_threads()
