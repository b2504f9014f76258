"""The package tei-client, which reads /info before its first request."""

from collections.abc import Mapping

import pytest
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
    result = HttpClient(servers["pairs"]).rerank("a film", ["a story", "men and dogs"], return_text=True)
    assert sorted((rank.index, rank.text) for rank in result.ranks) == [(0, "a story"), (1, "men and dogs")]


def test_tokens_and_info(servers: Mapping[str, str]):
    client = HttpClient(servers["masked"])
    (tokens,) = client.tokenize("good film")
    assert client.decode([tokens.get_ids()]) == ["good film"]
    info = client.info()
    assert info.server_model_id == "masked"
    assert info.max_batch_requests is None
