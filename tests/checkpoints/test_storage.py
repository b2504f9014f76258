"""Tensors and JSON on disk: errors name the place, and large files are not loaded."""

import json
import resource

import pytest
import torch

from bertworks.checkpoints.model_folder import load_model
from bertworks.checkpoints.storage import read_json, read_tensors, write_sharded, write_tensors
from bertworks.errors import BertworksError
from tests.checkpoints.test_model_folder import (
    folder as folder,
    shard,
    state as state,
    tokenizer as tokenizer,
)


@pytest.mark.parametrize(
    "file",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "x.bin",
        "",
        "..",
        "absent.safetensors",
    ],
)
def test_an_index_cannot_lead_out_of_its_folder(folder, file):
    places = shard(folder)
    write_tensors(folder.parent / "secret.safetensors", {"x": torch.ones(1)}, {})
    places["bert.pooler.dense.bias"] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    with pytest.raises(
        BertworksError, match=r"is not the name of a safetensors file in this folder|cannot be read"
    ):
        load_model(folder)


def test_json_errors_name_the_line(tmp_path):
    (tmp_path / "a.json").write_text('{\n "a": 1,\n}')
    with pytest.raises(BertworksError, match=r"a\.json:3"):
        read_json(tmp_path / "a.json")


def test_reading_a_large_file_does_not_load_it(tmp_path):
    write_tensors(tmp_path / "large", {"zeros": torch.zeros(64 << 20, dtype=torch.uint8)}, {})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensors = read_tensors(tmp_path / "large")
    assert tensors["zeros"][5] == 0
    tensors["zeros"][5] = 1  # a private map: the file is as it was
    assert read_tensors(tmp_path / "large")["zeros"][5] == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


def test_folders_share_the_body_of_sharded_weights(tmp_path):
    indexes = [tmp_path / name / "model.safetensors.index.json" for name in "ab"]
    for index in indexes:
        index.parent.mkdir()
    tensors = {"bert.a": torch.arange(3.0), "cls.b": torch.ones(2)}
    first = write_sharded(indexes[0], tensors, ("bert.",), indexes[0])
    assert [set(read_tensors(path)) for path in first] == [{"bert.a"}, {"cls.b"}]
    assert torch.equal(read_tensors(first[0])["bert.a"], tensors["bert.a"])
    second = write_sharded(indexes[1], {"cls.c": torch.zeros(1)}, ("bert.",), indexes[0])
    assert second[0].samefile(first[0])
    assert set(read_tensors(second[1])) == {"cls.c"}
    content = read_json(indexes[1])
    assert content["weight_map"] == {"bert.a": second[0].name, "cls.c": second[1].name}
    assert content["metadata"]["total_size"] == sum(path.stat().st_size for path in second)
