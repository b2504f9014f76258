"""A server of a fine-tuned model answers as the model itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertworks.inference.predictor import Predictor
from bertworks.retrieval.ranking import Reranker
from tests.serve.test_endpoints import TEXTS, models as models, near, words as words
from tests.support.served import Local, write_head


@pytest.mark.parametrize("kind", ["classification", "multilabel"])
def test_labels_are_those_of_predict(kind: str, models: dict[str, Path]):
    with Local(models[kind]) as local:
        theirs = Predictor(models[kind], device="cpu").predict(TEXTS, probabilities=True)
        ours = local.post("/predict", {"inputs": [[text] for text in TEXTS]}).json()
        for one, other in zip(ours, theirs, strict=True):
            assert {item["label"]: pytest.approx(item["score"], abs=1e-6) for item in one} == other[
                "scores"
            ]
            assert one == sorted(one, key=lambda item: -item["score"])
        assert near(local.post("/predict", {"inputs": TEXTS[0]}).json(), ours[0])
        raw = local.post("/predict", {"inputs": TEXTS[0], "raw_scores": True}).json()
        chance = (
            1 / (1 + np.exp(raw[1]["score"] - raw[0]["score"]))
            if kind == "classification"
            else None
        )
        assert chance is None or near(chance, ours[0][0]["score"])


def test_a_list_of_two_is_a_pair_and_a_list_of_lists_is_many(models: dict[str, Path]):
    with Local(models["regression"]) as local:
        theirs = Predictor(models["regression"], device="cpu").predict(
            [("a film", "music"), ("good", "men")]
        )
        ours = local.post("/predict", {"inputs": [["a film", "music"], ["good", "men"]]}).json()
        assert near([item[0]["score"] for item in ours], [answer["value"] for answer in theirs])
        assert near(local.post("/predict", {"inputs": ["a film", "music"]}).json(), ours[0])
        # A model of pairs has nothing to say of one text.
        alone = local.post("/predict", {"inputs": [["a film"], ["a film", "music"]]})
        assert alone.status_code == 422
        assert "a pair of strings" in alone.json()["error"]
        assert local.post("/predict", {"inputs": ["a", "b", "c"]}).status_code == 422


@pytest.mark.parametrize("kind", ["pairs", "regression"])
def test_texts_are_ranked_as_by_the_reranker(kind: str, models: dict[str, Path]):
    with Local(models[kind]) as local:
        scores = Reranker(models[kind], device="cpu")("good film", TEXTS)
        requested = {"query": "good film", "texts": TEXTS, "return_text": True}
        ours = local.post("/rerank", requested).json()
        if kind == "regression":  # as TEI and cross-encoders give them
            raw = local.post("/rerank", {**requested, "raw_scores": True}).json()
            assert near([one["score"] for one in raw], sorted(scores.tolist(), reverse=True))
            scores = 1 / (1 + np.exp(-scores))
        assert [one["index"] for one in ours] == np.argsort(-scores, kind="stable").tolist()
        assert near([one["score"] for one in ours], sorted(scores.tolist(), reverse=True))
        assert [one["text"] for one in ours] == [TEXTS[one["index"]] for one in ours]
        assert "reranker" in local.send("GET", "/info").json()["model_type"]


@pytest.mark.parametrize("vectors", ["pair", "cosine"])
def test_both_texts_of_a_pair_whose_vectors_are_compared_are_in_one_batch(
    vectors: Any, tmp_path: Path
):
    """Each text is a sequence of its own, and the prediction needs both: also for the speed at the
    start."""
    description = {
        "task": "classification",
        "labels": ("no", "yes"),
        "text": ("a", "b"),
        "vectors": vectors,
    }
    model = write_head(tmp_path / "model", **description)
    items = [("a film", "music"), ("good", "men and dogs"), ("sad dogs", "a story")]
    with Local(model, precision="fp32") as local:
        local.application.pipeline.measure_speed()
        ours = local.post("/predict", {"inputs": [list(item) for item in items]}).json()
        ranked = local.post("/rerank", {"query": "a film", "texts": ["music", "men"]}).json()
    expected = Predictor(model, device="cpu", precision="fp32").predict_proba(items)
    by_label = [{score["label"]: score["score"] for score in scores} for scores in ours]
    assert near([[scores["no"], scores["yes"]] for scores in by_label], expected.tolist())
    assert near(next(one["score"] for one in ranked if one["index"] == 0), float(expected[0, 1]))


@pytest.mark.parametrize("kind", ["tagging", "spans"])
def test_entities_are_those_of_predict(kind: str, models: dict[str, Path]):
    texts = [*TEXTS, " ".join(["Anna lives in Oslo ."] * 30)]  # in windows
    with Local(models[kind]) as local:
        theirs = Predictor(models[kind], device="cpu").predict(texts)
        ours = local.post("/ner", {"inputs": texts}).json()
        assert sum(map(len, ours)) > 10
        for text, one, other in zip(texts, ours, theirs, strict=True):
            assert [(e["entity_group"], e["start"], e["end"]) for e in one] == [
                (e["type"], e["start"], e["end"]) for e in other["entities"]
            ]
            assert all(e["word"] == text[e["start"] : e["end"]] for e in one)
        assert near(local.post("/ner", {"inputs": texts[0]}).json(), ours[0])
        assert local.post("/ner", {"inputs": "   "}).json() == []


def test_words_have_tags(models: dict[str, Path]):
    with Local(models["speech"]) as local:
        (theirs,) = Predictor(models["speech"], device="cpu").predict([TEXTS[2]])
        ours = local.post("/ner", {"inputs": TEXTS[2]}).json()
        assert ([e["word"] for e in ours], [e["entity_group"] for e in ours]) == (
            theirs["words"],
            theirs["tags"],
        )


def test_questions_are_answered_as_by_predict(models: dict[str, Path]):
    requested = [("where ?", "Anna lives in Oslo . " * n) for n in (1, 20)]
    with Local(models["qa"]) as local:
        theirs = Predictor(models["qa"], device="cpu").predict(requested, top_k=3)
        inputs = [{"question": question, "context": context} for question, context in requested]
        ours = local.post("/qa", {"inputs": inputs, "top_k": 3}).json()
        for one, other in zip(ours, theirs, strict=True):
            assert [one[name] for name in ("answer", "start", "end")] == [
                other[name] for name in ("answer", "start", "end")
            ]
            assert [(n["answer"], n["start"]) for n in one["n_best"]] == [
                (n["text"], n["start"]) for n in other["n_best"]
            ]
        one = local.post("/qa", {"inputs": inputs[0]}).json()
        assert one.keys() == {"answer", "score", "start", "end"}


def test_choices_are_weighed(models: dict[str, Path]):
    with Local(models["choice"]) as local:
        (theirs,) = Predictor(models["choice"], device="cpu").predict(
            [("a", "b", "c", "d")], probabilities=True
        )
        ours = local.post("/predict", {"inputs": ["a", "b", "c", "d"]}).json()
        assert near(
            [one["score"] for one in sorted(ours, key=lambda one: one["index"])], theirs["scores"]
        )
        assert {one["index"]: one["label"] for one in ours} == {0: "b", 1: "c", 2: "d"}
        assert local.post("/predict", {"inputs": "a"}).status_code == 422
