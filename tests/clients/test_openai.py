"""The client of OpenAI."""

from collections.abc import Mapping

import openai
import pytest


@pytest.fixture
def client(servers: Mapping[str, str]) -> openai.OpenAI:
    """Return a client of the masked language model."""
    return openai.OpenAI(base_url=f"{servers['masked']}/v1", api_key="none", max_retries=0)


def test_vectors(client: openai.OpenAI):
    answer = client.embeddings.create(model="masked", input=["good film", "sad dogs"])
    assert [len(item.embedding) for item in answer.data] == [32, 32]
    assert answer.usage.prompt_tokens > 4


def test_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["masked"]
    assert client.models.retrieve("masked").id == "masked"
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("text-embedding-3-small")
    assert raised.value.code == "model_not_found"


def test_errors(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="masked", input=[])
    assert (raised.value.type, raised.value.param) == ("invalid_request_error", "input")
    long_text = "good film " * 60
    assert client.embeddings.create(model="masked", input=long_text).usage.total_tokens == 64
    with pytest.raises(openai.BadRequestError) as raised:
        client.embeddings.create(model="masked", input=long_text, extra_body={"truncate": False})
    assert raised.value.code == "context_length_exceeded"
