"""Chroma, with vectors of /embed and of /v1/embeddings."""

import uuid
from collections.abc import Mapping

import chromadb
from chromadb.utils.embedding_functions import HuggingFaceEmbeddingServer

TEXTS = ["good film", "sad dogs", "a story of music"]


def test_a_collection_finds_its_texts(servers: Mapping[str, str]):
    client = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False))
    function = HuggingFaceEmbeddingServer(url=f"{servers['masked']}/embed")
    collection = client.create_collection(f"texts-{uuid.uuid4()}", embedding_function=function)
    collection.add(ids=["0", "1", "2"], documents=TEXTS)
    for number, text in enumerate(TEXTS):
        assert collection.query(query_texts=[text], n_results=1)["ids"] == [[str(number)]]
