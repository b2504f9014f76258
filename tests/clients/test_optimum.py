"""optimum opens exported folders, and computes the probabilities that bertworks computes."""

from pathlib import Path

import numpy as np
import pytest
from optimum.onnxruntime import ORTModelForFeatureExtraction, ORTModelForSequenceClassification
from transformers import AutoTokenizer, pipeline

import bertworks as bw

TEXTS = ["good film", "sad dogs heard music", "a story of men"]


@pytest.mark.parametrize("subfolder", [False, True])
def test_probabilities(subfolder: bool, models: Path, tmp_path: Path):
    list(bw.export(models / "classes", tmp_path / "onnx", subfolder=subfolder))
    model = ORTModelForSequenceClassification.from_pretrained(
        tmp_path / "onnx", local_files_only=True
    )
    classify = pipeline(
        "text-classification",
        model=model,
        tokenizer=AutoTokenizer.from_pretrained(tmp_path / "onnx"),
        top_k=None,
    )
    predictor = bw.Predictor(models / "classes", device="cpu", precision="fp32")
    expected = predictor.predict_proba(TEXTS)
    for scores, row in zip(classify(TEXTS), expected, strict=True):
        by_label = {score["label"]: score["score"] for score in scores}
        assert [by_label[label] for label in predictor.classes_] == pytest.approx(
            list(row), abs=1e-5
        )


def test_states(models: Path, tmp_path: Path):
    list(bw.export(models / "masked", tmp_path / "onnx", encoder=True, subfolder=True))
    model = ORTModelForFeatureExtraction.from_pretrained(tmp_path / "onnx", local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "onnx")
    encoded = tokenizer(TEXTS, padding=True, return_tensors="np")
    states = model(**encoded).last_hidden_state
    mask = encoded["attention_mask"][..., None]
    mean = (states * mask).sum(axis=1) / mask.sum(axis=1)
    vectors = bw.Embedder(models / "masked", device="cpu", precision="fp32", normalize=False).embed(
        TEXTS
    )
    np.testing.assert_allclose(mean, vectors, atol=1e-5)
