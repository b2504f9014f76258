"""LlamaIndex: its class for TEI, and its class for the API of Hugging Face, which sends to the main
path."""

import asyncio
import itertools
from collections.abc import Callable, Mapping

import pytest
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.embeddings.huggingface_api import HuggingFaceInferenceAPIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

# Different texts of words that the models know.
WORDS = "good great fine film story men dogs music town".split()
TEXTS = [" ".join(words) for words in itertools.product(WORDS, repeat=3)][:640]


@pytest.fixture(params=["TEI", "API of Hugging Face"])
def client(
    request: pytest.FixtureRequest, servers: Mapping[str, str]
) -> Callable[[], BaseEmbedding]:
    """Return what makes a client of the masked language model.

    The class for the API of Hugging Face keeps connections of an event loop that has ended, so each
    call needs an object of its own.
    """
    url = servers["masked"]
    if request.param == "TEI":
        return lambda: TextEmbeddingsInference(
            model_name="masked", base_url=url, embed_batch_size=8
        )
    return lambda: HuggingFaceInferenceAPIEmbedding(model_name=url, embed_batch_size=20)


def test_vectors(client: Callable[[], BaseEmbedding]):
    texts = TEXTS[:20]
    vectors = client().get_text_embedding_batch(texts)
    assert [len(vector) for vector in vectors] == [32] * 20
    assert client().get_text_embedding(texts[3]) == pytest.approx(vectors[3], abs=1e-5)
    assert client().get_query_embedding(texts[3]) == pytest.approx(vectors[3], abs=1e-5)


def test_vectors_asynchronously(client: Callable[[], BaseEmbedding]):
    texts = TEXTS[:20]
    vectors = asyncio.run(client().aget_text_embedding_batch(texts))
    assert vectors[3] == pytest.approx(
        asyncio.run(client().aget_text_embedding(texts[3])), abs=1e-5
    )
    assert len({tuple(vector) for vector in vectors}) == 20


def test_many_batches_at_once(servers: Mapping[str, str]):
    """The client sends 20 batches of 32 texts at once, and takes an error for vectors: none may be
    refused."""
    embedding = TextEmbeddingsInference(
        model_name="masked", base_url=servers["masked"], embed_batch_size=32
    )
    vectors = asyncio.run(embedding.aget_text_embedding_batch(TEXTS))
    assert [len(vector) for vector in vectors] == [32] * 640
    assert len({tuple(vector) for vector in vectors}) == 640
    assert vectors[600] == pytest.approx(embedding.get_text_embedding(TEXTS[600]), abs=1e-5)
