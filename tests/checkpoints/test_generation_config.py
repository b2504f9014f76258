"""generation_config.json: end tokens and sampling are those of transformers; every field of its
class has its place."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.checkpoints import generation_config
from bertworks.checkpoints.generation_config import read_generation_config
from bertworks.cli.main import main
from bertworks.config import packaged_table
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.causal_lm import SamplingOptions, next_token_probabilities
from bertworks.interop.convert import convert
from tests.support.gpt import END_ID, write_gpt2

EXACT: dict[str, Any] = {"device": "cpu", "precision": "fp32"}
TABLE = packaged_table(generation_config.__file__, "generation_config.toml")


def write(folder: Path, **values: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_gpt2(tmp_path)
    return tmp_path


def test_every_field_of_transformers_has_its_place() -> None:
    fields = {*vars(transformers.GenerationConfig())}
    fields |= {*transformers.GenerationConfig().to_dict()}
    listed = [
        *TABLE["end_tokens"],
        *TABLE["sampling"],
        *TABLE["not_computed"],
        *TABLE["without_effect"],
    ]
    assert len({*listed}) == len(listed)
    assert fields - {*listed} == set()
    assert all(TABLE["without_effect"].values())


def test_neutral_values_are_the_defaults_of_transformers() -> None:
    defaults = transformers.GenerationConfig._get_default_generation_params()
    for name, neutral in TABLE["not_computed"].items():
        if name in defaults:
            assert neutral == ("" if defaults[name] is None else defaults[name]), name


@pytest.mark.parametrize("name", TABLE["not_computed"])
def test_what_is_not_computed_is_printed_and_refused_by_name(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, **{name: 3})
    assert f"has {name} 3: not used" in read_generation_config(folder).notes("options")[0]
    with pytest.raises(
        BertworksError, match=f"the model samples with {name} 3, which bertworks does not compute"
    ):
        read_generation_config(folder).require_computed()
    if name == "repetition_penalty":
        with pytest.raises(BertworksError, match=name):
            list(bw.generate(folder, ["the dog"], sampling="model", **EXACT))


@pytest.mark.parametrize(
    "values",
    [
        {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.8},
        {"do_sample": True, "top_p": 0.5},
        {"do_sample": True, "top_k": 0, "temperature": 2.0},
        {"do_sample": True},
        {"do_sample": False, "temperature": 0.7, "top_k": 3},
        {"temperature": 0.7},
        {},
    ],
)
def test_the_sampling_of_the_model_is_that_of_transformers(
    values: dict[str, Any], folder: Path
) -> None:
    """The probabilities from which transformers draws the next token, by its own processors of
    logits."""
    write(folder, eos_token_id=END_ID, **values)
    network = transformers.GPT2LMHeadModel.from_pretrained(folder)
    ids = torch.tensor([[7, 31, 12, 9]])
    output = network.generate(
        ids,
        max_new_tokens=1,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    options = SamplingOptions(sampling="model").of_model(read_generation_config(folder))
    if options.temperature == 0:
        assert not values.get("do_sample")
        assert (options.top_k, options.top_p) == (None, None)
        return
    expected = output.scores[0].double().softmax(-1)[0]
    p, tokens = next_token_probabilities(
        output.logits[0], options.temperature, options.top_k, options.top_p
    )
    probabilities = torch.zeros_like(expected)
    probabilities[torch.arange(len(p[0])) if tokens is None else tokens[0]] = p[0]
    assert (probabilities - expected).abs().max() <= 1e-6


def test_the_command_prints_the_sampling_of_the_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, do_sample=True, temperature=0.7, top_p=0.9)
    command = [
        "generate",
        str(folder),
        "the dog",
        "--max-tokens",
        "5",
        "--device",
        "cpu",
        "--precision",
        "fp32",
    ]
    greedy = next(bw.generate(folder, ["the dog"], max_tokens=5, **EXACT))
    assert main([*command, "--json"]) == 0
    output = capsys.readouterr()
    assert (
        "has do_sample true, temperature 0.7, top_p 0.9: not used without --sampling model"
        in output.err
    )
    assert json.loads(output.out) == greedy
    assert main([*command, "--json", "--sampling", "model", "--seed", "3"]) == 0
    output = capsys.readouterr()
    assert "sampling of the model: temperature 0.7, top_k 50, top_p 0.9" in output.err
    options: dict[str, Any] = {"temperature": 0.7, "top_k": 50, "top_p": 0.9, "seed": 3}
    assert json.loads(output.out) == next(
        bw.generate(folder, ["the dog"], max_tokens=5, **options, **EXACT)
    )
    assert main([*command, "--sampling", "model", "--temperature", "1"]) == 2
    assert "temperature, top_k and top_p are those of the model" in capsys.readouterr().err
    write(folder, eos_token_id=END_ID)
    assert main(command) == 0
    assert "sampling" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0}, "temperature is 0: expected a number above 0"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": 2.5}, "top_k is 2.5: expected a whole number from 0"),
        ({"top_p": 3}, "top_p is 3: expected a number above 0, up to 1"),
        ({"do_sample": "yes"}, "do_sample is 'yes': expected true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>': expected the number of a token"),
        ({"eos_token_id": [1, -2]}, "eos_token_id is .1, -2.: expected the number of a token"),
    ],
)
def test_damaged_values_are_refused(values: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(BertworksError, match=message):
        read_generation_config(write(folder, **values))
    with pytest.raises(BertworksError, match=message):
        list(bw.generate(folder, ["the dog"], **EXACT))


def test_an_unknown_sampling_is_refused() -> None:
    with pytest.raises(UsageError, match="sampling is 'best': expected 'options' or 'model'"):
        SamplingOptions(sampling="best")  # type: ignore[arg-type]


def test_the_file_stays_when_a_model_is_converted(folder: Path, tmp_path: Path) -> None:
    write(folder, eos_token_id=[1, END_ID], top_p=0.5)
    list(convert(folder, tmp_path / "converted"))
    assert read_generation_config(tmp_path / "converted").end_ids == (1, END_ID)
