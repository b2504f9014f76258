"""The package tei-client, which reads /info before its first request."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import Starter
from tei_client import HttpClient
from tei_client.models import TruncationDirection


def test_vectors(servers: Mapping[str, str]):
    client = HttpClient(servers["masked"])
    assert [len(vector) for vector in client.embed(["good film", "sad dogs"])] == [32, 32]
    assert client.embed("good film " * 60, truncate=True)


def test_vectors_of_all_tokens(servers: Mapping[str, str]):
    client = HttpClient(servers["masked"])
    (tokens,) = client.tokenize("good film")
    (vectors,) = client.embed_all("good film", truncation_direction=TruncationDirection.Left)
    assert [len(vector) for vector in vectors] == [32] * len(tokens.tokens)


def test_labels(servers: Mapping[str, str]):
    (result,) = HttpClient(servers["classes"]).classify("good film")
    assert {score.label for score in result.scores} == {"neg", "pos"}
    assert sum(score.score for score in result.scores) == pytest.approx(1, abs=1e-5)


def test_ranks(servers: Mapping[str, str]):
    result = HttpClient(servers["pairs"]).rerank(
        "a film", ["a story", "men and dogs"], return_text=True
    )
    assert sorted((rank.index, rank.text) for rank in result.ranks) == [
        (0, "a story"),
        (1, "men and dogs"),
    ]


def test_tokens_and_info(servers: Mapping[str, str]):
    client = HttpClient(servers["masked"])
    (tokens,) = client.tokenize("good film")
    assert client.decode([tokens.get_ids()]) == ["good film"]
    info = client.info()
    assert info.server_model_id == "masked"
    assert info.max_batch_requests is None


def test_names_of_prompts(servers: Mapping[str, str], serve: Starter, models: Path, tmp_path: Path):
    """The client reads them from the message of an error."""
    assert HttpClient(servers["masked"]).prompt_names() == []
    folder = tmp_path / "prompts"
    shutil.copytree(models / "masked", folder)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    prompts = {"prompts": {"query": "good ", "passage": "sad "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with serve(folder) as address:
        client = HttpClient(address)
        assert sorted(client.prompt_names()) == ["passage", "query"]
        assert client.embed("film", prompt_name="query") == client.embed("good film")
