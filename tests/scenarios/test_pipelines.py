"""Requests as the pipelines of transformers read them: each setting in `parameters` is honoured, as
the pipeline of the same model does, or refused by its name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import pipeline

from bertworks.inference.predictor import Predictor
from bertworks.serve.batching import Limits
from bertworks.serve.openapi import requests_of
from tests.support.fine import write_model
from tests.support.served import Local, write_head

HEADS: dict[str, dict[str, Any]] = {
    "classes": {"task": "classification", "labels": ("neg", "neutral", "pos"), "text": ("text",)},
    "pairs": {"task": "classification", "labels": ("no", "yes"), "text": ("query", "text")},
    "many": {"task": "multilabel", "labels": ("person", "place"), "text": ("text",)},
    "value": {"task": "regression", "text": ("text",)},
    "choice": {"task": "choice", "num_choices": 3},
    "tags": {"task": "tagging", "labels": ("O", "B-person", "I-person")},
    "speech": {"task": "tagging", "labels": ("noun", "verb")},
    "spans": {"task": "spans", "labels": ("O", "B-person", "I-person")},
    "questions": {"task": "qa"},
}
TEXTS = ["good film", "sad dogs in this town", "Anna lives in Oslo ."]
QUESTION = {"question": "where ?", "context": "Anna lives in Oslo . The men heard music in Paris ."}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    heads = {name: write_head(folder / name, **head) for name, head in HEADS.items()}
    return {"masked": write_model(folder / "masked"), **heads}


@pytest.fixture(scope="module")
def servers(folders: dict[str, Path]) -> Iterator[dict[str, Local]]:
    servers = {name: Local(folder, precision="fp32") for name, folder in folders.items()}
    yield servers
    for local in servers.values():
        local.application.close()


def answer(local: Local, path: str, inputs: Any, **parameters: Any) -> Any:
    response = local.post(path, {"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def assert_near(found: Any, expected: Any) -> None:
    """Equal fields, numbers within what the order of a sum may change. Fields that transformers
    lacks do not count."""
    if isinstance(expected, list):
        assert len(found) == len(expected), (found, expected)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other)
    elif isinstance(expected, dict):
        assert expected.keys() <= found.keys()
        for name, value in expected.items():
            assert_near(found[name], value)
    elif isinstance(expected, float | np.floating):
        assert found == pytest.approx(float(expected), abs=1e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("path", ["/predict", "/"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"top_k": 1},
        {"top_k": 2},
        {"function_to_apply": "sigmoid"},
        {"function_to_apply": "softmax"},
        {"function_to_apply": "none", "top_k": 2},
        {"top_k": None},
    ],
)
@pytest.mark.parametrize("kind", ["classes", "many"])
def test_labels_are_those_of_the_pipeline(
    kind: str,
    parameters: dict[str, Any],
    path: str,
    servers: dict[str, Local],
    folders: dict[str, Path],
):
    classify = pipeline("text-classification", model=str(folders[kind]), device="cpu")
    settings = {"top_k": None, **parameters}
    assert_near(answer(servers[kind], path, TEXTS, **parameters), classify(TEXTS, **settings))
    assert_near(
        answer(servers[kind], path, TEXTS[0], **parameters), classify(TEXTS[:1], **settings)
    )


def test_pairs_may_be_objects(servers: dict[str, Local]):
    pairs = servers["pairs"]
    expected = pairs.post("/predict", {"inputs": ["good film", "a story"]}).json()
    pair = {"text": "good film", "text_pair": "a story"}
    assert pairs.post("/predict", {"inputs": pair}).json() == expected
    # Sums of a batch of two may have another order.
    assert_near(pairs.post("/predict", {"inputs": [pair, pair]}).json(), [expected, expected])
    assert answer(pairs, "/", pair) == [expected]
    assert pairs.post("/predict", {"inputs": {"text": "good film"}}).status_code == 422
    text = servers["classes"].post("/predict", {"inputs": "good film"}).json()
    assert (
        servers["classes"]
        .post("/predict", {"inputs": {"text": "good film", "text_pair": None}})
        .json()
        == text
    )
    assert servers["classes"].post("/predict", {"inputs": [{"text": "good film"}]}).json() == [text]
    assert servers["choice"].post("/predict", {"inputs": pair}).status_code == 422


def test_a_list_is_a_pair_for_tei_and_several_texts_for_a_pipeline(servers: dict[str, Local]):
    texts = ["good film", "a story"]
    alone = [servers["classes"].post("/predict", {"inputs": text}).json() for text in texts]
    assert_near(answer(servers["classes"], "/predict", texts), alone)
    assert_near(answer(servers["classes"], "/predict", [*texts, texts[0]]), [*alone, alone[0]])
    assert servers["classes"].post("/predict", {"inputs": texts}).status_code == 422
    pair = servers["pairs"].post("/predict", {"inputs": texts}).json()
    assert answer(servers["pairs"], "/predict", texts) == [pair]


def test_functions_that_a_task_does_not_have_are_refused(servers: dict[str, Local]):
    (value,) = servers["value"].post("/predict", {"inputs": "good film"}).json()
    assert answer(servers["value"], "/predict", "good film", function_to_apply="none") == [[value]]
    for kind, inputs, function in (
        ("value", "good film", "sigmoid"),
        ("choice", ["a", "b", "c", "d"], "sigmoid"),
    ):
        body = {"inputs": inputs, "parameters": {"function_to_apply": function}}
        refused = servers[kind].post("/predict", body)
        assert refused.status_code == 422
        assert (
            "parameters.function_to_apply: Invalid enum value 'sigmoid': expected one of"
            in refused.json()["error"]
        )


@pytest.mark.parametrize("path", ["/fill", "/"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"top_k": 2},
        {"targets": ["film", "dogs", "film", "##s"]},
        {"targets": ["Anna", "film", "story"], "top_k": 2},
    ],
)
def test_masks_are_filled_as_by_the_pipeline(
    parameters: dict[str, Any], path: str, servers: dict[str, Local], folders: dict[str, Path]
):
    fill = pipeline("fill-mask", model=str(folders["masked"]), device="cpu")
    texts = ["a [MASK] film", "the [MASK] was a story of men"]
    settings = {"top_k": 5, **parameters}
    # it gives a target that is there twice two times, and knows only lower case
    if "targets" in parameters:
        settings["targets"] = [text.lower() for text in dict.fromkeys(parameters["targets"])]
    assert_near(answer(servers["masked"], path, texts[0], **parameters), fill(texts[0], **settings))
    assert_near(answer(servers["masked"], path, texts, **parameters), fill(texts, **settings))
    both = "a [MASK] of [MASK] film"
    found = answer(servers["masked"], path, both, **parameters)
    for mask, expected in zip(found, fill(both, **settings), strict=True):
        # the text would be repeated for every mask and token
        for filling, other in zip(mask, expected, strict=True):
            assert_near(
                filling, {name: value for name, value in other.items() if name != "sequence"}
            )


def test_one_mask_has_one_list_without_parameters_too(servers: dict[str, Local]):
    found = servers["masked"].post("/fill", {"inputs": "a [MASK] film", "top_k": 3}).json()
    assert [filling.keys() for filling in found] == [
        {"score", "token", "token_str", "sequence"}
    ] * 3
    several = (
        servers["masked"]
        .post("/fill", {"inputs": ["a [MASK] film", "[MASK] and [MASK]"], "top_k": 3})
        .json()
    )
    assert_near(several[0], found)
    assert [len(mask) for mask in several[1]] == [3, 3]


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("unbelievable story", "tokens of this model: expected one"),
        ("☃", "is not in the vocabulary"),
        (" ", "'' is 0 tokens"),
    ],
)
def test_targets_that_are_no_token_are_refused(target: str, what: str, servers: dict[str, Local]):
    body = {"inputs": "a [MASK] film", "parameters": {"targets": ["film", target]}}
    refused = servers["masked"].post("/fill", body)
    assert refused.status_code == 422
    assert what.replace("''", repr(target)) in refused.json()["error"]


@pytest.mark.parametrize("path", ["/ner", "/"])
@pytest.mark.parametrize(("kind", "strategy"), [("tags", "first"), ("spans", "simple")])
def test_entities_are_those_of_the_pipeline(
    kind: str, strategy: str, path: str, servers: dict[str, Local], folders: dict[str, Path]
):
    tag = pipeline(
        "token-classification",
        model=str(folders[kind]),
        device="cpu",
        aggregation_strategy=strategy,
    )
    texts = [*TEXTS, "Anna and Boris heard Clara , Dmitri and the unbelievable dogs in Oslo"]
    found = answer(servers[kind], path, texts, aggregation_strategy=strategy, ignore_labels=["O"])
    assert sum(map(len, found)) > 5
    # "word" is decoded there, and cut out of the text here
    names = ("entity_group", "score", "start", "end")
    assert_near(
        found,
        [
            [{name: entity[name] for name in names} for entity in entities]
            for entities in tag(texts)
        ],
    )
    assert answer(servers[kind], path, texts[3]) == found[3]
    assert answer(servers[kind], path, texts, ignore_labels=["O", "person"]) == [[]] * 4


def test_strategies_and_labels_that_cannot_be_honoured_are_refused(servers: dict[str, Local]):
    for kind, parameters, what in (
        ("tags", {"aggregation_strategy": "simple"}, "'simple': expected one of \"first\""),
        ("tags", {"aggregation_strategy": "none"}, "'none': expected one of \"first\""),
        ("spans", {"aggregation_strategy": "max"}, "'max': expected one of \"simple\""),
        ("speech", {"aggregation_strategy": "first"}, "'aggregation_strategy' is not known here"),
        ("tags", {"ignore_labels": []}, 'expected "O" among the labels to ignore'),
        ("tags", {"ignore_labels": ["person"]}, 'expected "O" among the labels to ignore'),
        (
            "tags",
            {"stride": 3},
            "'stride' is not known here: expected some of aggregation_strategy, ignore_labels",
        ),
    ):
        refused = servers[kind].post("/ner", {"inputs": "Anna lives", "parameters": parameters})
        assert refused.status_code == 422, parameters
        assert what in refused.json()["error"]
    words = servers["speech"].post("/ner", {"inputs": "Anna lives in Oslo"}).json()
    without = answer(
        servers["speech"], "/ner", "Anna lives in Oslo", ignore_labels=[words[0]["entity_group"]]
    )
    assert without == [word for word in words if word["entity_group"] != words[0]["entity_group"]]


@pytest.mark.parametrize("path", ["/qa", "/"])
def test_answers_to_questions_have_the_shape_of_the_pipeline(path: str, servers: dict[str, Local]):
    local = servers["questions"]
    best = local.post("/qa", {"inputs": QUESTION}).json()
    assert answer(local, path, QUESTION) == best
    assert answer(local, path, QUESTION, top_k=1) == best
    several = answer(local, path, QUESTION, top_k=3)
    assert several[0] == best
    assert [item["answer"] for item in several] == [
        item["answer"]
        for item in local.post("/qa", {"inputs": QUESTION, "top_k": 3}).json()["n_best"]
    ]
    assert [item.keys() for item in several] == [{"answer", "score", "start", "end"}] * 3
    assert answer(local, path, [QUESTION] * 2, top_k=3) == [several] * 2
    short = answer(local, path, QUESTION, max_answer_len=1, top_k=20)
    assert {len(item["answer"].split()) for item in short} == {1}
    assert max(len(item["answer"].split()) for item in answer(local, path, QUESTION, top_k=20)) > 1


def test_a_question_may_have_no_answer_if_the_request_or_the_model_says_so(
    tmp_path: Path, folders: dict[str, Path]
):
    contexts = ["Anna lives in Oslo .", "Anna", "the", "good film", "men", *TEXTS]
    questions = [("the men and dogs in this town", context) for context in contexts]
    inputs = [{"question": question, "context": context} for question, context in questions]
    names = ("answer", "start", "end", "score")

    def expected(folder: Path, threshold: float | None) -> list[dict[str, Any]]:
        answers = Predictor(folder, device="cpu", precision="fp32", threshold=threshold).predict(
            questions
        )
        return [{name: found[name] for name in names} for found in answers]

    never = expected(folders["questions"], 0.0)
    assert 0 < sum(found["answer"] == "" for found in never) < len(never)
    model = write_head(tmp_path / "model", task="qa", threshold=-1000.0)
    with (
        Local(folders["questions"], precision="fp32") as local,
        Local(model, precision="fp32") as reluctant,
    ):
        assert_near(answer(local, "/qa", inputs, handle_impossible_answer=True), never)
        always = answer(local, "/qa", inputs)
        assert_near(always, expected(folders["questions"], None))
        assert answer(local, "/qa", inputs, handle_impossible_answer=False) == always
        # The threshold of the model is that of its training data.
        assert [found["answer"] for found in answer(reluctant, "/qa", inputs)] == [""] * len(inputs)
        maybe = answer(reluctant, "/qa", inputs, handle_impossible_answer=True)
        assert [found["answer"] for found in maybe] == [""] * len(inputs)
        assert_near(answer(reluctant, "/qa", inputs, handle_impossible_answer=False), always)
        several = answer(reluctant, "/qa", inputs[0], top_k=3)
        assert several[0] == maybe[0]
        assert [found["answer"] != "" for found in several] == [False, True, True]


@pytest.mark.parametrize(
    ("kind", "inputs", "parameters", "name"),
    [
        (
            "classes",
            "a match",
            {"candidate_labels": ["sport", "food"], "multi_label": False},
            "candidate_labels",
        ),
        ("classes", [["a match"]], {"candidate_labels": ["sport", "food"]}, "candidate_labels"),
        ("masked", "a match", {"candidate_labels": ["sport", "food"]}, "candidate_labels"),
        ("masked", "a [MASK]", {"top_k": 2, "temperature": 0.7}, "temperature"),
        ("masked", "a film", {"encoding_format": "base64"}, "encoding_format"),
        ("questions", QUESTION, {"doc_stride": 64}, "doc_stride"),
        ("questions", QUESTION, {"align_to_words": True}, "align_to_words"),
        ("tags", "Anna", {"stride": 8}, "stride"),
    ],
)
def test_a_setting_that_is_not_known_is_refused_by_its_name(
    kind: str, inputs: Any, parameters: dict[str, Any], name: str, servers: dict[str, Local]
):
    refused = servers[kind].post("/", {"inputs": inputs, "parameters": parameters})
    assert refused.status_code == 422
    assert name in refused.json()["error"]
    parameters_first = servers[kind].post("/", {"parameters": parameters, "inputs": inputs})
    assert name in parameters_first.json()["error"]


def test_settings_of_a_path_are_honoured_in_parameters_and_come_first(servers: dict[str, Local]):
    plain = (
        servers["masked"]
        .post("/embed", {"inputs": "a film", "normalize": False, "dimensions": 3})
        .json()
    )
    nested = {
        "inputs": "a film",
        "normalize": True,
        "parameters": {"normalize": False, "dimensions": 3},
    }
    assert servers["masked"].post("/embed", nested).json() == plain
    raw = servers["classes"].post("/predict", {"inputs": "a film", "raw_scores": True}).json()
    assert answer(servers["classes"], "/predict", "a film", raw_scores=True) == [raw]


def test_vectors_of_all_tokens_are_those_of_the_pipeline(
    servers: dict[str, Local], folders: dict[str, Path]
):
    extract = pipeline("feature-extraction", model=str(folders["masked"]), device="cpu")
    texts = [*TEXTS, "good " * 50]
    response = servers["masked"].post("/embed_all", {"inputs": texts})
    for found, text in zip(response.json(), texts, strict=True):
        (expected,) = extract(text)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    (alone,) = servers["masked"].post("/embed_all", {"inputs": texts[1]}).json()
    np.testing.assert_allclose(alone, response.json()[1], atol=1e-6)
    assert (response.headers["x-truncated-texts"], response.headers["x-truncated-tokens"]) == (
        "0",
        "0",
    )
    long_text = {"inputs": "good " * 70}
    assert servers["masked"].post("/embed_all", long_text).headers["x-truncated-tokens"] == "8"
    assert servers["masked"].post("/embed_all", {**long_text, "truncate": False}).status_code == 413
    with Local(folders["masked"], limits=Limits(answer_bytes=32 * 16 * 100)) as local:
        assert local.post("/embed_all", {"inputs": ["good " * 50]}).status_code == 200
        refused = local.post("/embed_all", {"inputs": ["good " * 50] * 2})
        assert refused.status_code == 413
        assert "the answer may have" in refused.json()["error"]


def test_every_ability_of_the_main_path_has_parameters(servers: dict[str, Local]):
    for local in servers.values():
        types = requests_of(local.abilities.info, local.abilities.limits)
        for type_ in types["invocations"]:
            assert "parameters" in type_.__annotations__, type_
