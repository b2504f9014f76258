"""A server of a pre-trained model answers as the model itself."""

import base64
from pathlib import Path

import numpy as np
import pytest

from bertworks.inference.embedder import Embedder
from bertworks.inference.masked_lm import Filler
from tests.serve.test_endpoints import TEXTS, models as models, near, words as words
from tests.support.served import Local


def test_vectors_are_those_of_the_embedder(words: Local, models: dict[str, Path]):
    ours = Embedder(models["words"], device="cpu").embed(TEXTS)
    unit = ours / np.linalg.norm(ours, axis=1, keepdims=True)
    assert near(words.post("/embed", {"inputs": TEXTS, "normalize": False}).json(), ours)
    assert near(words.post("/embed", {"inputs": TEXTS}).json(), unit)
    assert near(words.post("/embed", {"inputs": TEXTS[0]}).json(), unit[:1])
    cut = ours[:, :7] / np.linalg.norm(ours[:, :7], axis=1, keepdims=True)
    assert near(words.post("/embed", {"inputs": TEXTS, "dimensions": 7}).json(), cut)
    requested = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    assert near(words.post("/similarity", requested).json(), unit[1:] @ unit[0])


def test_vectors_in_the_shape_of_openai(words: Local):
    plain = words.post("/v1/embeddings", {"input": TEXTS[:2], "model": "any"}).json()
    coded = words.post(
        "/embeddings", {"input": TEXTS[:2], "model": "any", "encoding_format": "base64"}
    ).json()
    assert (plain["object"], [one["index"] for one in plain["data"]]) == ("list", [0, 1])
    assert plain["usage"]["prompt_tokens"] == sum(
        map(len, words.post("/tokenize", {"inputs": TEXTS[:2]}).json())
    )
    for one, other in zip(plain["data"], coded["data"], strict=True):
        assert near(np.frombuffer(base64.b64decode(other["embedding"]), "<f4"), one["embedding"])
    assert words.send("GET", "/v1/models").json()["data"][0]["id"] == "words"


def test_masks_are_filled_as_by_fill(words: Local, models: dict[str, Path]):
    texts = ["the [MASK] was [MASK]", "[MASK]"]
    theirs = [Filler(models["words"])(text, 3) for text in texts]
    ours = words.post("/fill", {"inputs": texts, "top_k": 3}).json()
    tokens = [
        [[one["token_str"] for one in mask] for mask in text] for text in (ours[0], [ours[1]])
    ]
    assert tokens == [[[one["token_str"] for one in mask] for mask in text] for text in theirs]
    # A sentence with several masks would be repeated for each mask and token.
    assert ours[0][0][0].keys() == {"score", "token", "token_str"}
    assert ours[1][0].keys() == {"score", "token", "token_str", "sequence"}
    assert [one["sequence"] for one in ours[1]] == [one["sequence"] for one in theirs[1][0]]
    with_text = words.post(
        "/fill", {"inputs": ["a [MASK] film", texts[0]], "top_k": 3, "return_text": True}
    ).json()
    in_python = Filler(models["words"])("a [MASK] film", 3)
    assert [one["text"] for one in with_text[0]] == [one["text"] for one in in_python[0]]
    assert with_text[1] == ours[0]
    assert near(words.post("/fill", {"inputs": texts[1], "top_k": 3}).json(), ours[1])


def test_documents_are_found(words: Local):
    found = words.post("/search", {"query": "sad dogs", "k": 2}).json()
    assert (found[0]["id"], found[0]["fields"], len(found)) == ("b", {"n": 1}, 2)
    assert words.post("/search", {"query": "Oslo", "ranking": "bm25"}).json()[0]["id"] == "c"
    dense = words.post("/search", {"query": "sad dogs", "ranking": "dense"}).json()
    cosines = {one["id"]: one["score"] for one in dense}
    assert [one["cosine"] for one in found] == pytest.approx(
        [cosines[one["id"]] for one in found], abs=1e-5
    )
    assert "matches" not in found[0]
    (found,) = words.post("/search", {"query": "Oslo", "ranking": "bm25", "matches": True}).json()
    assert [found["text"][start:end] for start, end in found["matches"]] == ["Oslo"]
    assert (found["cosine"], found["title"]) == (None, "")
    assert words.send("GET", "/info").json()["index"]["documents"] == 4
    assert words.post("/search", {"query": "Oslo", "rerank": True}).status_code == 422


def test_tokens_and_back(words: Local):
    (tokens,) = words.post("/tokenize", {"inputs": "😀 good"}).json()
    assert [(t["special"], t["start"], t["stop"]) for t in tokens][-2:] == [
        (False, 2, 6),
        (True, None, None),
    ]
    ids = [
        t["id"]
        for t in words.post(
            "/tokenize", {"inputs": "good film", "add_special_tokens": False}
        ).json()[0]
    ]
    assert words.post("/decode", {"ids": ids}).json() == ["good film"]
    assert words.post("/decode", {"ids": [ids, ids]}).json() == ["good film"] * 2
    assert words.post("/decode", {"ids": [10**9]}).status_code == 422
