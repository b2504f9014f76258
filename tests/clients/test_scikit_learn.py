"""scikit-learn with bertworks in the same process, in the oldest version that the estimators
support."""

import pickle
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import bertworks as bw
from bertworks.sklearn import BertClassifier, BertEmbedder

TEXTS = [f"{'good' if number % 2 else 'bad'} film number {number}" for number in range(24)]
LABELS = ["pos" if number % 2 else "neg" for number in range(24)]
QUICK: dict[str, Any] = {"device": "cpu", "method": "frozen", "validation": "split"}


def test_a_search_over_a_pipeline(models: Path):
    pipeline = Pipeline(
        [
            ("vectors", BertEmbedder(models / "masked", device="cpu")),
            ("classes", LogisticRegression()),
        ]
    )
    grid = {"vectors__pooling": ["mean", "cls"], "classes__C": [0.1, 10.0]}
    search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2, error_score="raise").fit(TEXTS, LABELS)
    assert search.best_score_ > 0.5
    assert search.predict(TEXTS[:2]).shape == (2,)


def test_a_cross_validation_in_two_processes(models: Path):
    embedder = bw.Embedder(models / "masked", device="cpu", precision="fp32")
    pipeline = make_pipeline(FunctionTransformer(embedder.embed), LogisticRegression())
    scores = cross_val_score(pipeline, TEXTS, LABELS, cv=3, n_jobs=2, error_score="raise")
    np.testing.assert_allclose(scores, cross_val_score(pipeline, TEXTS, LABELS, cv=3))


def test_models_of_two_processes(models: Path):
    classifier = BertClassifier(models / "masked", **QUICK)
    results = cross_validate(
        classifier,
        TEXTS,
        LABELS,
        cv=2,
        n_jobs=2,
        return_estimator=True,
        return_train_score=True,
        error_score="raise",
    )
    for estimator in results["estimator"]:
        assert estimator.classes_.tolist() == ["neg", "pos"]
        copied = pickle.loads(pickle.dumps(estimator))
        np.testing.assert_array_equal(copied.predict_proba(TEXTS), estimator.predict_proba(TEXTS))
    assert min(results["train_score"]) > 0.5


@pytest.mark.parametrize("kind", [BertClassifier, BertEmbedder])
def test_checks_without_a_sample(kind: type):
    """The other checks give numbers: tests/test_estimators.py lists them."""
    results = check_estimator(kind(), on_fail=None, on_skip=None)
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    assert {
        "check_no_attributes_set_in_init",
        "check_get_params_invariance",
        "check_estimators_unfitted",
    } <= passed


def test_the_version_is_the_oldest_that_is_supported():
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    version = ".".join(sklearn.__version__.split(".")[:2])
    assert f"scikit-learn>={version}" in project["dependencies"]
