"""InferenceClient of huggingface_hub, with the address of a server, or of one of its paths, in
place of a model."""

from collections.abc import Mapping

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError


@pytest.mark.parametrize("path", ["", "/", "/embed"])
def test_vectors(path: str, servers: Mapping[str, str]):
    client = InferenceClient(servers["masked"] + path)
    assert client.feature_extraction("good film").shape == (1, 32)
    several = client.feature_extraction(
        ["good film", "sad dogs"], normalize=False, truncation_direction="right"
    )
    assert several.shape == (2, 32)
    assert not np.allclose(np.linalg.norm(several, axis=1), 1)
    with pytest.raises(HfHubHTTPError, match="encoding_format"):
        client.feature_extraction("good film", encoding_format="base64")


@pytest.mark.parametrize("path", ["", "/similarity"])
def test_similarities(path: str, servers: Mapping[str, str]):
    client = InferenceClient(servers["masked"] + path)
    assert len(client.sentence_similarity("good film", ["sad dogs", "a story"])) == 2


@pytest.mark.parametrize("path", ["", "/predict"])
def test_labels(path: str, servers: Mapping[str, str]):
    client = InferenceClient(servers["classes"] + path)
    labels = client.text_classification("good film")
    assert {label.label for label in labels} == {"neg", "pos"}
    (best,) = client.text_classification("good film", top_k=1, function_to_apply="none")
    assert best.label == labels[0].label
    with pytest.raises(HfHubHTTPError, match="candidate_labels"):
        client.zero_shot_classification("a match", candidate_labels=["sport", "food"])


@pytest.mark.parametrize("path", ["", "/ner"])
def test_entities(path: str, servers: Mapping[str, str]):
    client = InferenceClient(servers["tags"] + path)
    entities = client.token_classification("Anna lives in Oslo", aggregation_strategy="first")
    assert {entity.entity_group for entity in entities} <= {"person"}
    with pytest.raises(HfHubHTTPError, match="aggregation_strategy"):
        client.token_classification("Anna lives in Oslo", aggregation_strategy="max")


@pytest.mark.parametrize("path", ["", "/qa"])
def test_answers(path: str, servers: Mapping[str, str]):
    client = InferenceClient(servers["questions"] + path)
    question = {
        "question": "where ?",
        "context": "Anna lives in Oslo . The men heard music in Paris .",
    }
    best = client.question_answering(**question)
    several = client.question_answering(**question, top_k=3)
    assert len(several) == 3
    assert several[0].answer == best.answer
    with pytest.raises(HfHubHTTPError, match="doc_stride"):
        client.question_answering(**question, doc_stride=3)


@pytest.mark.parametrize("path", ["", "/fill"])
def test_masks(path: str, servers: Mapping[str, str]):
    client = InferenceClient(servers["masked"] + path)
    found = client.fill_mask("a [MASK] story", top_k=2)
    assert [type(filling.token) for filling in found] == [int, int]
    (film, *_) = client.fill_mask("a [MASK] story", targets=["film"])
    assert film.token_str == "film"
