"""Requests of a pre-training: what is wrong is refused before anything is written."""

from pathlib import Path
from typing import Any

import pytest

from bertworks.errors import BertworksError
from bertworks.runs.pretrain import pretrain
from bertworks.runs.request import make_request
from tests.runs.test_pretrain import shards as shards
from tests.support.refusals import refusal
from tests.support.tiny import write_recipe


@pytest.mark.parametrize(
    ("options", "recipe", "message"),
    [
        ({"recipe": "bert-smal"}, None, "did you mean bert-small"),
        ({"recipe": "missing.toml"}, None, "there is no recipe file"),
        ({"budget": "5 o'clock"}, None, "is not a budget"),
        ({"budget": "1.2.3m"}, None, "is not a budget"),
        ({"overrides": ["train.precison=fp32"]}, None, "did you mean train.precision"),
        ({"overrides": ["encoder.hidden_sise=64"]}, None, "did you mean encoder.hidden_size"),
        (
            {"overrides": ["train.phases.0.num_step=1"]},
            None,
            r"did you mean train.phases\[0\].num_steps",
        ),
        ({"overrides": ["train.phases.7.num_steps=1"]}, None, "there is no '7'"),
        ({"overrides": ["title.x=1"]}, None, "title.x: there is no 'x'"),
        ({"overrides": ["seed"]}, None, "sets nothing"),
        ({"seed": -1}, None, "seed is -1"),
        ({"precision": "int8"}, None, "train.precision: 'int8' is none of 'auto', 'fp32', 'bf16'"),
        ({"tokenizer": "nowhere"}, None, "nowhere"),
        ({"init": "nowhere"}, None, "no such model folder"),
        ({"init": "a", "tokenizer": "b"}, None, "takes the tokenizer of the model"),
        ({}, ("hidden_size = 32", "hidden_size = 33"), "does not divide"),
        ({}, ("hidden_size = 32", "hidden_size = 100_000"), "hidden_size is 100000"),
        (
            {},
            ("hidden_size = 32", "hidden_size = 65536\nnum_hidden_layerss = 1"),
            "did you mean encoder.num_hidden_layers",
        ),
        (
            {"overrides": ["encoder.hidden_size=32768", "encoder.num_hidden_layers=1000"]},
            None,
            "GB of memory",
        ),
        ({"overrides": ["encoder.vocab_size=100"]}, None, "but the vocabulary has"),
        ({}, ("sequence_length = 32", "sequence_length = 65"), "max_position_embeddings is 64"),
        ({}, ("batch_size = 8", "batch_size = 0"), "expected 1 to 1,048,576"),
    ],
)
def test_a_wrong_request_touches_nothing(
    options: dict[str, Any],
    recipe: tuple[str, str] | None,
    message: str,
    shards: Path,
    tmp_path: Path,
):
    file = write_recipe(tmp_path / "r.toml", *([recipe] if recipe else []))
    requested = {"recipe": None if "budget" in options else str(file)} | options
    with pytest.raises(BertworksError, match=message):
        list(pretrain([shards], tmp_path / "a", device="cpu", **requested))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("inputs", "options", "what", "hint"),
    [
        ([], {}, "no input was given", "name files, folders, a glob in quotes, or - for"),
        (
            ["a.txt"],
            {"tokenizer": "t", "init": "m"},
            "--init takes the tokenizer of the model",
            "give --tokenizer or --init, not both",
        ),
        (
            ["a.txt"],
            {"extend_vocabulary": 0, "init": "m"},
            "--extend-vocabulary 0 adds words to the vocabulary of a model",
            "give a model and a number: --init MODEL --extend-vocabulary 1000",
        ),
        (
            ["a.txt"],
            {"languages": ["en", "de"]},
            "1 inputs and the languages en, de: expected a name for each input",
            "give --language once per input, such as en, in their order",
        ),
        (
            ["-"],
            {"languages": ["en"]},
            "languages are for files and folders of text",
            "write the text into a file",
        ),
    ],
)
def test_requests_that_contradict_themselves(
    inputs: list[str], options: dict[str, Any], what: str, hint: str
) -> None:
    with refusal(what, hint):
        make_request(inputs, **options)
