"""Classifiers on static vectors: a table and a linear head on the mean of its vectors, from an
encoder or from a table, in every command that reads a fine-tuned model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import bertworks as bw
from bertworks.checkpoints.model_folder import load_model
from bertworks.interop.convert import convert
from bertworks.interop.export import export
from tests.checkpoints.test_model_card import executed, snippets
from tests.support.fine import (
    tokenizer,
    write_conll,
    write_model,
    write_multilabel,
    write_pairs,
    write_reviews,
    write_squad,
)
from tests.support.refusals import refusal
from tests.support.served import Local

TEXTS = ["a good film", "the music was awful and sad", "dogs in this town", "[SEP] nasty", "good"]


def train(data: Path, folder: Path, model: Path, **options: Any) -> dict[str, Any]:
    """Fine-tune into a folder, and return the fields of the last event."""
    settings = {"epochs": 5, "validation": "split"} | options
    bw.finetune(data, output=folder, model=model, device="cpu", **settings)
    fields: dict[str, Any] = json.loads((folder / "finished.json").read_text())["fields"]
    return fields


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("encoder") / "model", noise=0.1)


@pytest.fixture(scope="module")
def table(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table") / "model"
    list(convert(encoder, folder, static=32))
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_reviews(tmp_path_factory.mktemp("data") / "reviews.csv")


@pytest.fixture(scope="module")
def classifier(encoder: Path, reviews: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier") / "model"
    train(reviews, folder, encoder, method="static")
    return folder


def means_of(folder: Path, texts: list[str]) -> NDArray[np.float64]:
    """The mean of the vectors of the tokens of each text, from the files alone."""
    vectors = load_file(folder / "model.safetensors")["embedding.weight"].astype(np.float64)
    reader = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return np.stack([vectors[reader.encode(text).ids].mean(0) for text in texts])


def test_probabilities_are_those_of_the_files(classifier: Path):
    tensors = load_file(classifier / "model.safetensors")
    weight = tensors["classifier.weight"][0].astype(np.float64)
    logits = means_of(classifier, TEXTS) @ weight.T + tensors["classifier.bias"]
    powers = np.exp(logits - logits.max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True)
    predictor = bw.Predictor(classifier, device="cpu")
    np.testing.assert_allclose(predictor.predict_proba(TEXTS), expected, atol=1e-6)
    one_by_one = np.concatenate([predictor.predict_proba([text]) for text in TEXTS])
    np.testing.assert_allclose(one_by_one, expected, atol=1e-6)
    assert [answer["label"] for answer in predictor.predict(TEXTS[:2])] == ["pos", "neg"]


def test_the_code_on_the_card_computes_the_same(classifier: Path):
    (snippet,) = snippets(classifier)
    value, _ = executed(snippet, classifier)
    (answer,) = bw.Predictor(classifier, device="cpu").predict(["A text"], probabilities=True)
    assert value == pytest.approx(answer["scores"], abs=1e-6)
    assert "A table of static vectors for classification" in (classifier / "README.md").read_text()


def test_the_training_starts_from_the_table_and_moves_the_rows_that_it_reads(
    table: Path, classifier: Path, reviews: Path
):
    """The table of the encoder is the one that `convert --static` makes."""
    before = load_model(table).state["encoder.embeddings.token.weight"]
    after = load_model(classifier).state["encoder.embeddings.token.weight"]
    read = {number for ids in tokenizer().ids([reviews.read_text()]) for number in ids}
    moved = {number for number, row in enumerate((before != after).any(1).tolist()) if row}
    assert moved
    assert moved <= read
    result = json.loads((classifier / "result.json").read_text())
    assert result["figures"]["accuracy"] > 0.9


def test_a_table_has_the_methods_static_and_frozen(table: Path, reviews: Path, tmp_path: Path):
    done = train(reviews, tmp_path / "auto", table, validation="auto")
    compared = (tmp_path / "auto" / "README.md").read_text()
    assert "static accuracy" in compared
    assert "frozen accuracy" in compared
    assert done["method"] in ("static", "frozen")
    frozen = train(reviews, tmp_path / "frozen", table, method="frozen", epochs=None)
    assert frozen["method"] == "frozen"
    same = load_model(tmp_path / "frozen").state["encoder.embeddings.token.weight"]
    torch.testing.assert_close(
        same, load_model(table).state["encoder.embeddings.token.weight"], rtol=0, atol=0
    )
    full = train(reviews, tmp_path / "full", table, method="full")
    assert full["method"] == "static"


def test_a_classifier_is_trained_further(classifier: Path, reviews: Path, tmp_path: Path):
    done = train(reviews, tmp_path / "further", classifier, method="static")
    assert done["figures"]["accuracy"] > 0.9


def test_pairs_numbers_and_several_labels(table: Path, tmp_path: Path):
    pairs = write_pairs(tmp_path / "pairs.tsv")
    done = train(pairs, tmp_path / "pairs", table, method="static")
    assert done["method"] == "static"
    (answer,) = bw.Predictor(tmp_path / "pairs", device="cpu").predict([("good men", "bad dogs")])
    assert np.isfinite(answer["value"])
    value, _ = executed(snippets(tmp_path / "pairs")[0], tmp_path / "pairs")
    expected = bw.Predictor(tmp_path / "pairs", device="cpu").predict([("A text", "and another")])
    assert value == pytest.approx(expected[0]["value"], abs=1e-5)
    labels = write_multilabel(tmp_path / "labels.jsonl")
    train(labels, tmp_path / "labels", table, method="static", epochs=20)
    answers = bw.Predictor(tmp_path / "labels", device="cpu").predict(["Anna the men", "the town"])
    assert [answer["labels"] for answer in answers] == [["person"], []]


def test_an_export_agrees(classifier: Path, reviews: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    expected = bw.Predictor(classifier, device="cpu").predict_proba(TEXTS)
    for int8, tolerance in ((False, 1e-5), (True, 0.05)):
        folder = tmp_path / f"onnx-{int8}"
        list(export(classifier, folder, int8=int8, data=reviews))
        exported = bw.Predictor(folder, device="cpu").predict_proba(TEXTS)
        np.testing.assert_allclose(exported, expected, atol=tolerance)


def test_it_is_opened_served_and_explained(classifier: Path):
    model = bw.load(classifier, device="cpu")
    assert model.can == ("embed", "explain", "predict")
    np.testing.assert_allclose(
        model.embed(TEXTS), means_of(classifier, TEXTS), atol=1e-6, rtol=1e-5
    )
    explanation = model.explain("a good film")
    assert explanation.occlusion is not None
    assert explanation.words[int(explanation.occlusion.argmax())] == "good"
    with Local(classifier) as server:
        answer = server.post("/predict", {"inputs": TEXTS[0]}).json()
    expected = bw.Predictor(classifier, device="cpu").predict(TEXTS[:1])
    assert answer[0]["label"] == expected[0]["label"]


def test_what_has_no_place_is_refused(table: Path, encoder: Path, reviews: Path, tmp_path: Path):
    out = tmp_path / "out"
    with refusal("no network for the method 'contrastive'", "--method static"):
        bw.finetune(reviews, output=out, model=table, method="contrastive", device="cpu")
    with refusal("static vectors have no layers", "leave --layers out"):
        bw.finetune(reviews, output=out, model=table, layers=1, device="cpu")
    with refusal("the method 'static' keeps no layers", "leave --layers out"):
        bw.finetune(reviews, output=out, model=encoder, method="static", layers=1, device="cpu")
    with refusal("a token has the same vector in all texts", "--model minilm"):
        bw.finetune(write_conll(tmp_path / "tags.conll"), output=out, model=table, device="cpu")
    with refusal("a token has the same vector in all texts", "--model minilm"):
        bw.finetune(write_squad(tmp_path / "squad.json"), output=out, model=table, device="cpu")
    with refusal("the method 'static' is not for qa", "use --method full"):
        bw.finetune(
            tmp_path / "squad.json", output=out, model=encoder, method="static", device="cpu"
        )
    with refusal("the method 'static' has no LSTM", "leave --recipe out"):
        bw.finetune(
            reviews, output=out, model=table, method="static", recipe="feature_based", device="cpu"
        )
    assert not out.exists()
