"""LangChain's client of the API of Hugging Face, which sends to the main path."""

import asyncio
from collections.abc import Mapping

import pytest
from langchain_huggingface import HuggingFaceEndpointEmbeddings


def test_vectors(servers: Mapping[str, str]):
    embeddings = HuggingFaceEndpointEmbeddings(model=servers["masked"])
    vectors = embeddings.embed_documents(["good film", "sad dogs"])
    assert [len(vector) for vector in vectors] == [32, 32]
    assert embeddings.embed_query("sad dogs") == pytest.approx(vectors[1], abs=1e-5)
    assert asyncio.run(embeddings.aembed_query("sad dogs")) == pytest.approx(vectors[1], abs=1e-5)
