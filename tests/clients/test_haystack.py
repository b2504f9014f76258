"""Haystack: its embedders for TEI, which send to the main path, and its ranker."""

from collections.abc import Mapping

import pytest
from haystack import Document
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

# Different texts of words that the models know.
WORDS = "good great fine film story men dogs music town".split()
DOCUMENTS = [Document(content=f"{first} {second}") for first in WORDS for second in WORDS]


def test_vectors(servers: Mapping[str, str]):
    place = {"api_type": "text_embeddings_inference", "api_params": {"url": servers["masked"]}}
    embedded = HuggingFaceAPIDocumentEmbedder(**place).run(documents=DOCUMENTS)["documents"]
    assert [len(document.embedding) for document in embedded] == [32] * len(DOCUMENTS)
    vector = HuggingFaceAPITextEmbedder(**place).run(DOCUMENTS[3].content)["embedding"]
    assert vector == pytest.approx(embedded[3].embedding, abs=1e-5)


@pytest.mark.parametrize("raw_scores", [False, True])
def test_ranks(raw_scores: bool, servers: Mapping[str, str]):
    ranker = HuggingFaceTEIRanker(url=servers["pairs"], raw_scores=raw_scores)
    ranked = ranker.run(query="a film", documents=DOCUMENTS[:5])["documents"]
    scores = [document.score for document in ranked]
    assert len(scores) == 5
    assert scores == sorted(scores, reverse=True)
    assert raw_scores or 0 <= scores[-1] <= scores[0] <= 1
