"""sentence-transformers' folders through `convert`, there and back: the same vectors in their own
library, nothing lost that is not named."""

import inspect
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bertworks.checkpoints import sentence_transformers
from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.sentence_transformers import (
    SentenceTransformerSettings,
    read_sentence_transformer,
)
from bertworks.config import packaged_table
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.embed_file import embed_file
from bertworks.inference.embedder import Embedder
from bertworks.interop.convert import convert
from bertworks.interop.export import export
from bertworks.interop.push import push
from tests.support.refusals import refusal

TEXTS = [
    "good film",
    "the men in this town heard some music last night " * 9,
    "",
    "Anna lives in Oslo",
]


def library(part: str = "") -> Any:
    """Imported where it is used: it takes seconds, and each process that runs tests would spend
    them."""
    return pytest.importorskip(
        f"sentence_transformers{part}", reason="sentence-transformers, the oracle, is missing"
    )


def saved(model: Path, folder: Path, pooling: str, *kinds: str, **settings: Any) -> Path:
    """As their library writes it today."""
    torch.manual_seed(0)
    models = library(".models")
    last = {
        "Dense": lambda: models.Dense(32, 16),
        "LayerNorm": lambda: models.LayerNorm(32),
        "Dropout": models.Dropout,
        "Normalize": models.Normalize,
    }
    body = models.Transformer(str(model), max_seq_length=20)
    modules = [body, models.Pooling(32, pooling), *(last[kind]() for kind in kinds)]
    library().SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder))
    return folder


def vectors(folder: Path, **how: Any) -> np.ndarray:
    found = library().SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return found.encode(TEXTS, **how)


def notes(source: Path, target: Path) -> Sequence[str]:
    *_, done = convert(source, target)
    return done.fields["notes"]


@pytest.mark.parametrize(
    ("pooling", "kinds"),
    [("mean", ()), ("cls", ("Normalize",)), ("max", ()), ("mean", ("Normalize",))],
)
def test_there_and_back(pooling: str, kinds: tuple[str, ...], model: Path, tmp_path: Path):
    prompts = {"query": "good ", "document": "", "own": "sad "}
    theirs = saved(
        model,
        tmp_path / "theirs",
        pooling,
        *kinds,
        prompts=prompts,
        default_prompt_name="own",
        similarity_fn_name="dot",
    )
    said = notes(theirs, tmp_path / "ours")
    assert not any("left out of the folder" in note for note in said), said
    expected = vectors(theirs)
    np.testing.assert_allclose(vectors(tmp_path / "ours"), expected, atol=1e-5)
    np.testing.assert_allclose(
        Embedder(tmp_path / "ours", device="cpu", precision="fp32").embed(TEXTS),
        expected,
        atol=1e-5,
    )
    types = [module["type"] for module in json.loads((tmp_path / "ours/modules.json").read_text())]
    assert types == [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", *kinds)
    ]
    opened = library().SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert (opened.prompts, opened.default_prompt_name, opened.similarity_fn_name) == (
        prompts,
        "own",
        "dot",
    )
    assert opened.max_seq_length == 20
    # And back: what their library saves of ours is converted to the same again.
    opened.save(str(tmp_path / "again"))
    assert not any(
        "left out of the folder" in note for note in notes(tmp_path / "again", tmp_path / "back")
    )
    assert (
        read_sentence_transformer(tmp_path / "back")[1]
        == read_sentence_transformer(tmp_path / "ours")[1]
    )
    np.testing.assert_allclose(vectors(tmp_path / "back"), expected, atol=1e-5)
    list(convert(tmp_path / "ours", tmp_path / "twice"))
    assert contents(tmp_path / "twice") == contents(tmp_path / "ours")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_layer_that_is_not_computed_goes_along(model: Path, tmp_path: Path):
    """Here a residual connection, which our own `embed` refuses."""
    theirs = saved(model, tmp_path / "theirs", "cls", "Dense", "Normalize")
    path = theirs / "2_Dense/config.json"
    residual = json.loads(path.read_text()) | {"use_residual": True, "out_features": 32}
    path.write_text(json.dumps(residual))
    weights = {"linear.weight": torch.eye(32), "linear.bias": torch.ones(32)}
    save_file(weights, path.with_name("model.safetensors"))
    said = notes(theirs, tmp_path / "ours")
    assert any(
        "copied, although" in note and "2_Dense/model.safetensors" in note for note in said
    ), said
    assert vectors(tmp_path / "ours").shape == (len(TEXTS), 32)
    with pytest.raises(BertworksError, match="use_residual is True"):
        Embedder(theirs, device="cpu")
    np.testing.assert_allclose(vectors(tmp_path / "ours"), vectors(theirs), atol=1e-5)
    assert not any("left out of the folder" in note for note in said), said


def test_a_module_that_is_a_pickle_is_named(model: Path, tmp_path: Path):
    theirs = saved(model, tmp_path / "theirs", "mean", "Dense")
    (theirs / "2_Dense/model.safetensors").rename(theirs / "2_Dense/pytorch_model.bin")
    said = notes(theirs, tmp_path / "ours")
    assert (
        "the settings of its vectors are left out: the weights of a module are a pickle, which is "
        "not read"
    ) in said
    (left,) = (note for note in said if note.startswith("left out of the folder"))
    assert all(name in left for name in ("modules.json", "1_Pooling/", "2_Dense/"))
    assert read_sentence_transformer(tmp_path / "ours")[1] == SentenceTransformerSettings()


def test_an_old_folder_with_the_model_within(model: Path, tmp_path: Path):
    """As the first versions wrote it."""
    Embedder(model, pooling="cls", max_length=20, device="cpu").save(tmp_path / "flat")
    old = tmp_path / "old"
    shutil.copytree(
        tmp_path / "flat",
        old / "0_BERT",
        ignore=shutil.ignore_patterns("1_*", "modules.json", "config_*", "README*"),
    )
    for name in ("1_Pooling", "config_sentence_transformers.json"):
        shutil.move(tmp_path / "flat" / name, old / name)
    modules = json.loads((tmp_path / "flat" / "modules.json").read_text())
    (old / "modules.json").write_text(json.dumps([modules[0] | {"path": "0_BERT"}, *modules[1:]]))
    (old / "0_BERT" / "training_args.bin").write_bytes(b"pickle")
    said = notes(old, tmp_path / "ours")
    assert "left out of the folder: 0_BERT/training_args.bin" in "\n".join(said)
    assert read_sentence_transformer(tmp_path / "ours")[:2] == (
        tmp_path / "ours",
        read_sentence_transformer(old)[1],
    )
    np.testing.assert_allclose(vectors(tmp_path / "ours"), vectors(old), atol=1e-5)
    # What reads weights finds them; what writes a folder of the same kind says how to come by one.
    flat, nested = load_model(tmp_path / "ours"), load_model(old)
    assert nested.config == flat.config
    assert nested.tokenizer.sha256 == flat.tokenizer.sha256
    assert all(torch.equal(tensor, flat.state[name]) for name, tensor in nested.state.items())
    refused = "the weights are in a subfolder"
    with pytest.raises(UsageError, match=refused):
        list(export(old, tmp_path / "onnx"))
    with pytest.raises(UsageError, match=refused):
        list(push(old, "a/b", dry_run=True))


def test_settings_without_a_place_are_named(model: Path, tmp_path: Path):
    Embedder(model, device="cpu").save(tmp_path / "theirs")
    path = tmp_path / "theirs/1_Pooling/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"include_prompt": False}))
    assert "left out of 1_Pooling/config.json: include_prompt" in notes(
        tmp_path / "theirs", tmp_path / "ours"
    )
    (tmp_path / "theirs/1_Pooling/secret.json").symlink_to("/etc/hostname")
    assert "left out of the folder: 1_Pooling/secret.json" in "\n".join(
        notes(tmp_path / "theirs", tmp_path / "b")
    )


def test_a_pooling_that_leaves_out_the_prompt_is_refused(model: Path, tmp_path: Path):
    Embedder(model, device="cpu").save(tmp_path / "m")
    path = tmp_path / "m/1_Pooling/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"include_prompt": False}))
    Embedder(tmp_path / "m", device="cpu")  # without prompts it makes no difference
    path = tmp_path / "m/config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": {"query": "good "}}))
    with pytest.raises(BertworksError, match="without the tokens of the prompt"):
        Embedder(tmp_path / "m", device="cpu")


@pytest.mark.parametrize("length", [2, True, "64"])
def test_a_damaged_length_is_refused(length: Any, model: Path, tmp_path: Path):
    Embedder(model, device="cpu").save(tmp_path / "m")
    path = tmp_path / "m/sentence_bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_seq_length": length}))
    with refusal(f"max_seq_length is {length!r}", "write 3 or more"):
        read_sentence_transformer(tmp_path / "m")


# --- every field of their files


TABLE = packaged_table(sentence_transformers.__file__, "sentence_transformers.toml")


def listed(file: str) -> set[str]:
    fields = TABLE[file]
    return {*fields["honoured"], *fields.get("required", {}), *fields["without_effect"]}


def test_every_field_of_their_files_has_its_place(model: Path, tmp_path: Path):
    """The fields of their classes, and of what they write; each is honoured, refused by name, or
    without effect."""
    modules = library(".sentence_transformer.modules")
    transformer = library(".base.modules").Transformer
    folder = saved(model, tmp_path / "all", "mean", "Normalize", truncate_dim=8, prompts={"a": "b"})
    folders = {
        kind: saved(model, tmp_path / kind, "mean", kind)
        for kind in ("Dense", "LayerNorm", "Dropout")
    }
    written = {
        file: {*json.loads((folders.get(file[2:].partition("/")[0], folder) / file).read_text())}
        for file in TABLE
        if file != "modules.json"
    }
    written["modules.json"] = {
        name for module in json.loads((folder / "modules.json").read_text()) for name in module
    }
    assert "truncate_dim" in written["config_sentence_transformers.json"]
    expected = {
        "modules.json": {"idx", "name", "type", "path", "kwargs"},
        "config_sentence_transformers.json": {"requirements"},
        # Of both the constructor and the file: files of version 5 and older hold its arguments.
        "sentence_bert_config.json": {
            *transformer.config_keys,
            *inspect.signature(transformer).parameters,
        },
        "1_Pooling/config.json": {*modules.Pooling.config_keys, *modules.Pooling.config_key_renames}
        | {
            f"pooling_mode_{mode}"
            for mode in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
        }
        | {"pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken"},
    } | {
        f"2_{kind}/config.json": {*getattr(library(".models"), kind).config_keys}
        for kind in ("Normalize", "Dense", "LayerNorm", "Dropout")
    }
    assert expected.keys() == TABLE.keys()
    for file, names in expected.items():
        assert (names | written[file]) - listed(file) == set(), file
        assert all(TABLE[file]["without_effect"].values())


@pytest.mark.parametrize(
    ("file", "name"),
    [(file, name) for file, fields in TABLE.items() for name in fields.get("required", {})],
)
def test_values_that_are_not_computed_are_refused_by_name(
    file: str, name: str, model: Path, tmp_path: Path
):
    kind = "Dense" if "Dense" in file else "Normalize"
    folder = saved(model, tmp_path / "theirs", "mean", kind)
    path = folder / file
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {name: "another"}))
    with pytest.raises(BertworksError, match=f"{name} is 'another': only .* is supported") as error:
        Embedder(folder, device="cpu")
    assert error.value.where == str(path)
    for allowed in (None, *TABLE[file]["required"][name]):
        path.write_text(json.dumps(settings | {name: allowed}))
        read_sentence_transformer(folder)


@pytest.mark.parametrize("kinds", [(), ("Normalize",)])
@pytest.mark.parametrize("size", [1, 8, 31, 32, 500])
def test_truncated_vectors_are_those_of_their_library(
    size: int, kinds: tuple[str, ...], model: Path, tmp_path: Path
):
    folder = saved(model, tmp_path / "theirs", "mean", *kinds, truncate_dim=size)
    embedder = Embedder(folder, device="cpu", precision="fp32")
    ours = embedder.embed(TEXTS)
    assert embedder.dimension == ours.shape[1] == min(size, 32)
    np.testing.assert_allclose(ours, vectors(folder), atol=1e-5)
    ours = Embedder(folder, normalize=True, device="cpu", precision="fp32").embed(TEXTS)
    np.testing.assert_allclose(ours, vectors(folder, normalize_embeddings=True), atol=1e-5)
    notes(folder, tmp_path / "ours")
    np.testing.assert_allclose(vectors(tmp_path / "ours"), vectors(folder), atol=1e-6)
    embedder.save(tmp_path / "again")
    np.testing.assert_allclose(vectors(tmp_path / "again"), vectors(folder), atol=1e-6)


def test_truncated_vectors_of_files(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path / "theirs", "mean", "Normalize", truncate_dim=8)
    (tmp_path / "texts.txt").write_text("good film\nAnna lives in Oslo\n")
    for normalize in (None, True):
        options: dict[str, Any] = {"normalize": normalize, "device": "cpu", "precision": "fp32"}
        output = tmp_path / f"{normalize}.npy"
        list(embed_file(folder, tmp_path / "texts.txt", output, **options))
        expected = Embedder(folder, **options).embed(["good film", "Anna lives in Oslo"])
        np.testing.assert_array_equal(np.load(output), expected)


@pytest.mark.parametrize("size", [0, -3, 2.5, True, "8"])
def test_a_damaged_size_of_vectors_is_refused(size: Any, model: Path, tmp_path: Path):
    folder = saved(model, tmp_path / "theirs", "mean")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": size}))
    with pytest.raises(BertworksError, match=r"truncate_dim is .*: expected a whole number from 1"):
        Embedder(folder, device="cpu")


def test_truncated_and_normalized_vectors_have_no_place_in_a_folder(model: Path, tmp_path: Path):
    folder = saved(model, tmp_path / "theirs", "mean", truncate_dim=8)
    with pytest.raises(BertworksError, match="truncates vectors after it normalizes them"):
        Embedder(folder, normalize=True, device="cpu").save(tmp_path / "ours")


@pytest.mark.parametrize("name", ["sentence_roberta_config.json", "sentence_xlnet_config.json"])
def test_the_file_of_the_network_under_an_older_name(name: str, model: Path, tmp_path: Path):
    folder = saved(model, tmp_path / "theirs", "mean")
    (folder / "sentence_bert_config.json").rename(folder / name)
    (folder / name).write_text('{"max_seq_length": 5, "do_lower_case": true}')
    settings = read_sentence_transformer(folder).settings
    assert (settings.max_length, settings.lowercase) == (5, True)
    notes(folder, tmp_path / "ours")
    assert read_sentence_transformer(tmp_path / "ours").settings == settings
