"""Modules of sentence-transformers after the pooling: Dense, LayerNorm and Dropout give the vectors
of that library, are written back, exported, indexed and served."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertworks.checkpoints.sentence_transformers import VectorModule, read_sentence_transformer
from bertworks.checkpoints.vector_modules import vector_network
from bertworks.errors import BertworksError
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder, normalized
from bertworks.interop.convert import convert
from bertworks.interop.export import export
from bertworks.retrieval.index import Index
from tests.checkpoints.test_sentence_transformers import TEXTS, library, vectors
from tests.support.served import Local

Kinds = tuple[str, ...]


def saved(model: Path, folder: Path, kinds: Kinds, **dense: Any) -> Path:
    """Write a model with these modules as sentence-transformers does. dense: arguments of Dense."""
    torch.manual_seed(0)
    modules = library(".models")
    body = modules.Transformer(str(model), max_seq_length=20)
    layers = [body, modules.Pooling(32, "mean")]
    size = 32
    for kind in kinds:
        if kind == "Dense":
            layers.append(modules.Dense(size, size // 2, **dense))
            size //= 2
        elif kind == "LayerNorm":
            layers.append(modules.LayerNorm(size))
        else:
            layers.append(getattr(modules, kind)())
        for parameter in layers[-1].parameters():
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    library().SentenceTransformer(modules=layers, device="cpu").save(str(folder))
    return folder


def embedded(folder: Path, **settings: Any) -> np.ndarray:
    return Embedder(folder, device="cpu", precision="fp32", **settings).embed(TEXTS)


CHAINS: list[Kinds] = [
    ("Dense",),
    ("LayerNorm",),
    ("Dropout", "Dense", "Normalize"),
    ("LayerNorm", "Dense", "Dense"),
    ("Normalize", "Dense", "LayerNorm", "Normalize"),
]


@pytest.mark.parametrize("kinds", CHAINS, ids="-".join)
def test_vectors_are_those_of_sentence_transformers(kinds: Kinds, model: Path, tmp_path: Path):
    theirs = saved(model, tmp_path / "theirs", kinds)
    expected = vectors(theirs)
    assert expected.shape == (len(TEXTS), 32 >> kinds.count("Dense"))
    embedder = Embedder(theirs, device="cpu", precision="fp32")
    assert embedder.dimension == expected.shape[1]
    np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=2e-6)
    if kinds[-1] != "Normalize":
        of_length_1 = vectors(theirs, normalize_embeddings=True)
        np.testing.assert_allclose(embedded(theirs, normalize=True), of_length_1, atol=2e-6)
    # Saved, converted and saved by their library again: the same vectors and settings.
    embedder.save(tmp_path / "saved")
    *_, done = convert(theirs, tmp_path / "converted")
    assert not any("left out of the folder" in note for note in done.fields["notes"])
    for name in ("saved", "converted"):
        np.testing.assert_allclose(vectors(tmp_path / name), expected, atol=2e-6)
        settings = read_sentence_transformer(tmp_path / name).settings
        original = read_sentence_transformer(theirs).settings
        assert (settings.modules, settings.normalize) == (original.modules, original.normalize)
        modules = json.loads((tmp_path / name / "modules.json").read_text())
        assert [module["type"].rpartition(".")[2] for module in modules[2:]] == list(kinds)


FUNCTIONS = ["Identity", "GELU"]
FUNCTIONS += [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("Tanh", "ReLU", "SiLU", "Sigmoid", "ELU", "Softplus")
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_activation_function_of_a_dense_layer(name: str, model: Path, tmp_path: Path):
    folder = saved(model, tmp_path, ("Dense",), activation_function=getattr(torch.nn, name)())
    np.testing.assert_allclose(embedded(folder), vectors(folder), atol=2e-6)


def test_a_dense_layer_without_bias(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path, ("Dense",), bias=False)
    assert list(load_file(folder / "2_Dense/model.safetensors")) == ["linear.weight"]
    np.testing.assert_allclose(embedded(folder), vectors(folder), atol=2e-6)


def test_an_activation_function_that_is_not_named_is_tanh(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path, ("Dense",))
    path = folder / "2_Dense/config.json"
    settings = json.loads(path.read_text())
    del settings["activation_function"], settings["bias"]
    path.write_text(json.dumps(settings))
    np.testing.assert_allclose(embedded(folder), vectors(folder), atol=2e-6)


def test_files_an_index_and_the_server_have_these_vectors(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path / "model", ("LayerNorm", "Dense"))
    texts = [text for text in TEXTS if text]
    expected = library().SentenceTransformer(str(folder), device="cpu").encode(texts)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    options: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
    list(embed_file(folder, tmp_path / "texts.txt", tmp_path / "vectors.npy", **options))
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected, atol=2e-6)
    index = Index.create(tmp_path / "index", folder, device="cpu")
    index.add(texts)
    cosines = normalized(expected) @ normalized(expected)[0]
    for hit in index.search(texts[0], ranking="dense"):
        assert hit["score"] == pytest.approx(cosines[texts.index(hit["text"])], abs=1e-3)
    with Local(folder, precision="fp32") as server:
        assert server.send("GET", "/info").json()["dimension"] == 16
        answer = server.post("/embed", {"inputs": texts, "normalize": False})
        np.testing.assert_allclose(answer.json(), expected, atol=2e-6)


def test_an_exported_model_has_the_modules(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path / "model", ("Dense", "Normalize"))
    list(export(folder, tmp_path / "onnx", encoder=True))
    np.testing.assert_allclose(embedded(tmp_path / "onnx"), vectors(folder), atol=1e-5)


def test_the_fingerprint_changes_with_the_weights_of_a_module(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path, ("Dense",))
    before = Embedder(folder, device="cpu").fingerprint
    assert json.loads(json.dumps(before)) == before
    path = folder / "2_Dense/model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(path).items()}, path)
    assert Embedder(folder, device="cpu").fingerprint != before
    assert "modules" not in Embedder(model, device="cpu").fingerprint


@pytest.mark.parametrize("also_the_network", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_weights_in_pickles_are_read_only_if_they_are_trusted(
    also_the_network: bool, model: Path, tmp_path: Path
):
    folder = saved(model, tmp_path / "theirs", ("LayerNorm", "Dense", "Normalize"))
    expected = vectors(folder)
    places = [folder / "2_LayerNorm", folder / "3_Dense", *[folder] * also_the_network]
    for place in places:
        torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
        (place / "model.safetensors").unlink()
    with pytest.raises(BertworksError, match="pickle") as error:
        embedded(folder)
    assert "--trust-pickle" in str(error.value.hint)
    *_, done = convert(folder, tmp_path / "ours", trust_pickle=True)
    assert not any("left out of the folder" in note for note in done.fields["notes"])
    assert not list((tmp_path / "ours").rglob("*.bin"))
    np.testing.assert_allclose(embedded(tmp_path / "ours"), expected, atol=2e-6)
    np.testing.assert_allclose(vectors(tmp_path / "ours"), expected, atol=2e-6)


# --- damaged folders


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_features": 31}, r"the module Dense reads vectors of 31 numbers, but gets 32"),
        ({"in_features": "32"}, r"in_features is '32': expected a whole number from 1"),
        ({"out_features": True}, r"out_features is True: expected a whole number from 1"),
        ({"out_features": 10**9}, r"out_features is 1000000000: expected a whole number"),
        ({"out_features": 8}, r"the weights of the module Dense are .*\[16, 32\].*, expected"),
        ({"bias": False}, r"the weights of the module Dense are .*linear\.bias.*, expected"),
        ({"bias": "yes"}, r"bias is 'yes': expected true or false"),
        ({"activation_function": "torch.hub.load"}, r"only functions of torch\.nn are supported"),
        ({"activation_function": "torch.nn.modules.activation.MultiheadAttention"}, r"torch\.nn"),
        ({"use_residual": True}, r"use_residual is True: only False is supported"),
        ({"module_input_name": "token_embeddings"}, r"only sentence_embedding is supported"),
    ],
)
def test_settings_that_are_not_computed_are_refused(
    settings: dict[str, Any], message: str, model: Path, tmp_path: Path
):
    folder = saved(model, tmp_path, ("Dense",))
    path = folder / "2_Dense/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    with pytest.raises(BertworksError, match=message):
        Embedder(folder, device="cpu")


def test_damaged_weights_are_refused(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path, ("Dense",))
    path = folder / "2_Dense/model.safetensors"
    weights = load_file(path)
    not_finite = weights | {"linear.bias": torch.full((16,), torch.nan)}
    whole_numbers = {name: tensor.int() for name, tensor in weights.items()}
    for tensors, message in ((not_finite, "linear.bias"), (whole_numbers, "the module Dense are")):
        save_file(tensors, path)
        with pytest.raises(BertworksError, match=message):
            Embedder(folder, device="cpu")
    path.write_bytes(b"cut")
    with pytest.raises(BertworksError, match="not a safetensors file"):
        Embedder(folder, device="cpu")
    path.unlink()
    with pytest.raises(BertworksError, match="cannot be read"):
        Embedder(folder, device="cpu")
    shutil.rmtree(path.parent)
    with pytest.raises(BertworksError, match="in_features is None"):
        Embedder(folder, device="cpu")


def test_modules_follow_each_other(tmp_path: Path):
    """The size of vectors that leave one module is that of vectors that enter the next."""
    weights = {"linear.weight": torch.eye(2, 3), "linear.bias": torch.ones(2)}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    dense = VectorModule(
        "Dense", {"in_features": 3, "out_features": 2, **identity}, tmp_path, weights
    )
    network = vector_network([dense, VectorModule("Normalize", {}, tmp_path)], 3)
    assert network.size == 2
    expected = torch.tensor([[3.0, 4.0]]) / 5
    torch.testing.assert_close(network(torch.tensor([[2.0, 3.0, 9.0]])), expected)
    with pytest.raises(BertworksError, match="reads vectors of 3 numbers, but gets 2"):
        vector_network([dense, dense], 3)
