"""The package tei-client, which reads /info before its first request."""

from collections.abc import Mapping

from tei_client import HttpClient


def test_vectors(servers: Mapping[str, str]):
    client = HttpClient(servers["masked"])
    assert [len(vector) for vector in client.embed(["good film", "sad dogs"])] == [32, 32]
