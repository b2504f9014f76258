"""LangChain's client of OpenAI, which sends ids of OpenAI's tokens unless it is told not to; and
litellm."""

import os
from collections.abc import Mapping
from pathlib import Path

import litellm
import openai
import pytest
from conftest import Starter
from langchain_openai import OpenAIEmbeddings

TEXTS = ["good film", "sad dogs", "日本語 with 👩‍👩‍👧 in it", "good film " * 60]
# litellm has the file of the table in its package, by the name that tiktoken gives it.
TABLES = Path(litellm.__file__).parent / "litellm_core_utils" / "tokenizers"


def test_vectors_of_texts(servers: Mapping[str, str]):
    embeddings = OpenAIEmbeddings(
        base_url=f"{servers['masked']}/v1",
        api_key="none",
        model="masked",
        check_embedding_ctx_length=False,
    )
    vectors = embeddings.embed_documents(TEXTS)
    assert [len(vector) for vector in vectors] == [32] * 4
    assert embeddings.embed_query(TEXTS[1]) == pytest.approx(vectors[1], abs=1e-5)


def test_ids_are_refused_with_a_hint(servers: Mapping[str, str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TABLES))
    embeddings = OpenAIEmbeddings(
        base_url=f"{servers['masked']}/v1", api_key="none", model="masked"
    )
    with pytest.raises(
        openai.BadRequestError, match=r"check_embedding_ctx_length=False.*--token-ids"
    ):
        embeddings.embed_documents(TEXTS)


def test_vectors_of_ids(
    servers: Mapping[str, str], serve: Starter, models: Path, monkeypatch: pytest.MonkeyPatch
):
    """With its defaults, to a server that knows the vocabulary: the vectors are those of the
    texts."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(TABLES))
    expected = OpenAIEmbeddings(
        base_url=f"{servers['masked']}/v1",
        api_key="none",
        model="masked",
        check_embedding_ctx_length=False,
    ).embed_documents(TEXTS)
    assert os.environ["TIKTOKEN_CACHE_DIR"] == str(TABLES)
    with serve(models / "masked", "--token-ids", "cl100k_base", "--precision", "fp32") as address:
        vectors = OpenAIEmbeddings(
            base_url=f"{address}/v1", api_key="none", model="masked"
        ).embed_documents(TEXTS)
    for vector, of_text in zip(vectors, expected, strict=True):
        assert vector == pytest.approx(of_text, abs=1e-5)


def test_litellm(servers: Mapping[str, str]):
    place = {"model": "openai/masked", "api_base": f"{servers['masked']}/v1", "api_key": "none"}
    answer = litellm.embedding(**place, input=TEXTS[:2], encoding_format="float")
    assert [len(item["embedding"]) for item in answer.data] == [32, 32]
