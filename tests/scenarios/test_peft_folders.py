"""Folders of PEFT, which hold changes to the weights of another model: the message says how to
merge both."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import bertworks as bw
from tests.support.fine import write_model


def write_adapter(folder: Path, base: str) -> Path:
    """The files that `PeftModel.save_pretrained` writes."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    save_file(
        {"base_model.model.classifier.weight": torch.zeros(2, 2)},
        folder / "adapter_model.safetensors",
    )
    return folder


@pytest.mark.parametrize("has_config", [False, True])
def test_an_adapter_is_named_and_how_it_is_merged(has_config: bool, tmp_path: Path) -> None:
    base = write_model(tmp_path / "base")
    folder = write_adapter(tmp_path / "adapter", str(base))
    if has_config:  # some programs copy the files of the other model, without its weights
        (folder / "config.json").write_bytes((base / "config.json").read_bytes())
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
            "vocab.txt",
            "special_tokens_map.json",
        ):
            (folder / name).write_bytes((base / name).read_bytes())
    for call in (
        bw.Embedder,
        bw.Predictor,
        lambda path, device: bw.embed(path, ["a"], device=device),
    ):
        with pytest.raises(bw.BertworksError, match="this is an adapter of PEFT") as error:
            call(folder, device="cpu")
        assert "merge_and_unload().save_pretrained" in str(error.value.hint)
        assert "base" in error.value.what


def test_a_model_beside_an_adapter_opens(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base")
    expected = bw.embed(base, ["a film"], device="cpu")
    (base / "adapter_config.json").write_text("{}", encoding="utf-8")
    np.testing.assert_array_equal(bw.embed(base, ["a film"], device="cpu"), expected)
