"""A fine-tuned model tells other programs the length that it was trained with."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bertworks.inference.engine import LazyModel
from bertworks.interop.export import export
from bertworks.runs.finetune import finetune
from tests.support.fine import write_reviews


def length_in(folder: Path) -> Any:
    return json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))[
        "model_max_length"
    ]


def test_other_programs_cut_texts_as_the_model_does(model: Path, tmp_path: Path) -> None:
    """Further training may read more tokens, as many as the network has positions."""
    data = write_reviews(tmp_path / "reviews.csv", 40)
    settings: dict[str, Any] = {"model": model, "device": "cpu"}
    finetune(data, output=tmp_path / "trained", overrides=["epochs=1", "max_length=24"], **settings)
    list(export(tmp_path / "trained", tmp_path / "exported"))
    for folder in (tmp_path / "trained", tmp_path / "exported"):
        assert length_in(folder) == 24
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert len(tokenizer(" ".join(["film"] * 99), truncation=True).input_ids) == 24
    longest = LazyModel(model, "cpu").config.max_position_embeddings
    assert longest > 24
    settings["model"] = tmp_path / "trained"
    more = ["epochs=1", f"max_length={longest}"]
    again = finetune(data, output=tmp_path / "again", overrides=more, **settings)
    assert again.description.max_length == longest
    assert length_in(tmp_path / "again") == longest
