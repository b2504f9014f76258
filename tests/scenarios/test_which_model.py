"""The models that the guides name on the Hugging Face hub: their published configurations open, and
have the sizes that the guide prints."""

import re
import shlex
import tomllib
from typing import Any

import pytest

from bertworks.checkpoints.hf_config import config_from_huggingface
from bertworks.cli.parser import make_app
from bertworks.errors import BertworksError
from tests.support import ROOT

TABLES = tomllib.loads((ROOT / "tests/support/published_configs.toml").read_text())
MODELS: dict[str, dict[str, Any]] = TABLES["models"]
GUIDES = ROOT / "docs" / "guides"
GUIDE = (GUIDES / "which-model.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| [^|]+ \| `([\w.-]+/[\w.-]+)` \| (\d+) \| ([^|]+) \|", GUIDE, re.MULTILINE)


def published(name: str) -> dict[str, Any]:
    """The settings of the model's config.json."""
    settings = dict(MODELS[name])
    base = settings.pop("base", None)
    return (TABLES[base] if base else {}) | settings


def test_every_name_of_the_guide_is_tested_and_every_tested_name_is_in_a_table():
    names = set(re.findall(r"`([A-Za-z][\w-]*/[A-Z\w][\w.-]+)`", GUIDE))
    assert len(names) > 15
    assert names == set(MODELS) == {name for name, _, _ in ROWS}


def test_the_other_guide_for_newcomers_names_no_other_models():
    page = (GUIDES / "coming-from.md").read_text(encoding="utf-8")
    owners = {name.split("/")[0] for name in MODELS}
    names = set(re.findall(rf"\b((?:{'|'.join(owners)})/[\w.-]+)", page))
    assert names
    assert names <= set(MODELS)


@pytest.mark.parametrize(("name", "size", "licence"), ROWS)
def test_a_published_configuration_opens(name: str, size: str, licence: str):
    config = config_from_huggingface(published(name))
    assert round(config.num_parameters() / 1e6) == int(size)
    assert licence in ("Apache-2.0", "MIT", "CC BY-SA 4.0")


@pytest.mark.parametrize("name", MODELS)
def test_the_network_is_the_published_one(name: str):
    """Settings that would make another network are not ignored: each is refused, or changes it."""
    settings = published(name)
    config = config_from_huggingface(settings)
    layers = "n_layers" if "n_layers" in settings else "num_hidden_layers"
    assert config.num_hidden_layers == settings[layers]
    assert config.vocab_size == settings["vocab_size"]
    assert config.max_position_embeddings in (
        settings["max_position_embeddings"],
        settings["max_position_embeddings"] - 2,  # rows that these families do not use
        2048,  # DeBERTa has distances in the place of positions
    )
    with pytest.raises(BertworksError):
        config_from_huggingface(settings | {"model_type": "longformer"})


def test_the_commands_next_to_those_of_other_tools_parse():
    """Those in tables, with the same five jobs for each of four tools."""
    page = (GUIDES / "coming-from.md").read_text(encoding="utf-8")
    tables = page.split("\n## From ")[1:]
    assert len(tables) == 4
    app = make_app()
    for table in tables:
        rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`bertworks [^|]+`) \|$", table, re.MULTILINE)
        assert [job for job, _ in rows] == [
            "classifier with a score",
            "predict a file",
            "embed and search",
            "further pre-training",
            "serve or export",
        ]
        for _, commands in rows:
            for command in re.findall(r"`bertworks ([^`]+)`", commands):
                assert callable(app.parse_args(shlex.split(command))[0])
