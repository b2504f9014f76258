"""Linear heads on the features of a frozen encoder, against scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.inference.predictor import Predictor
from bertworks.tasks import linear_head
from bertworks.tasks.linear_head import fit_linear_head
from bertworks.tasks.outputs import Classification, MultiLabel, Regression
from bertworks.tasks.task import softmax
from tests.runs.test_finetune_job import logistic, run, vectors_of
from tests.support.fine import (
    read_data,
    write_reviews,
)


def test_a_frozen_classifier_is_logistic_regression_on_mean_vectors(
    model: Path, tmp_path: Path
) -> None:
    data = write_reviews(tmp_path / "reviews.csv")
    done, _ = run(data, tmp_path / "out", model, method="frozen")
    assert done.fields["method"] == "frozen"
    rows = read_data(data, validation="folds").train
    texts, labels = [item.texts[0] for item in rows], [item.label for item in rows]
    new = [*texts[:7], "the film was good", "a bad plot"]
    expected = logistic(vectors_of(model, texts), labels)(vectors_of(model, new))
    answers = Predictor(tmp_path / "out", device="cpu", precision="fp32").predict(
        new, probabilities=True
    )
    found = np.array(
        [[answer["scores"][name] for name in sorted(set(labels))] for answer in answers]
    )
    temperature = ModelFolder(tmp_path / "out").task_config.weights_temperature
    assert temperature != 1
    assert found == pytest.approx(softmax(np.log(expected) / temperature), abs=2e-4)


def test_linear_heads_of_labels_without_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 8)) * 3 + 5
    labels = (x[:, 0] > 5).astype(np.int64) * 2  # the label 1 never occurs
    head = fit_linear_head(Classification(outputs=3), x, labels)
    assert (head(x).argmax(1) == labels).mean() > 0.95
    several = fit_linear_head(MultiLabel(outputs=2), x, np.stack([labels / 2, np.ones(50)], 1))
    assert ((several(x) > 0) == np.stack([labels > 0, np.ones(50, bool)], 1)).mean() > 0.95
    numbers = fit_linear_head(Regression(), x, x[:, 1] * 2 - 1)
    assert numbers(x)[:, 0] == pytest.approx(x[:, 1] * 2 - 1, abs=0.05)
    assert fit_linear_head(Regression(), x, np.full(50, 2.5))(x)[:, 0] == pytest.approx(
        np.full(50, 2.5)
    )


@pytest.mark.parametrize("weights", [(), (1.0, 1.0, 1.0)])
def test_many_labels_have_a_discriminant_analysis(
    weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of scikit-learn with the same covariance."""
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1, 2], [20, 12, 8])
    x = rng.normal(size=(40, 6)) + np.eye(3, 6)[labels]
    x = (x - x.mean(0)) / x.std(0)

    class Mixed(BaseEstimator):
        """The covariance of a label, which is weighted by its rows, with that of 6 more rows."""

        def fit(self, rows: np.ndarray) -> "Mixed":
            freedom = 40 - 3 + 6
            self.covariance_ = (40 * np.cov(rows.T, bias=True) + 6 * np.eye(6)) / freedom
            return self

    model = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=Mixed())
    expected = model.fit(x, labels)
    monkeypatch.setattr(linear_head, "MANY_LABELS", 2)
    head = fit_linear_head(Classification(outputs=3, weights=weights), x, labels)
    assert head.weight == pytest.approx(expected.coef_)
    prior = np.log(expected.priors_)
    assert head.bias == pytest.approx(expected.intercept_ - (prior if weights else 0))


def test_a_discriminant_analysis_of_odd_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of each label; a label without rows; equal rows."""
    monkeypatch.setattr(linear_head, "MANY_LABELS", 0)
    x = np.random.default_rng(2).normal(size=(50, 8))
    numbers = np.arange(50)
    head = fit_linear_head(Classification(outputs=51), x, numbers)
    assert (head(x).argmax(1) == numbers).all()
    equal = fit_linear_head(Classification(outputs=50), np.ones((50, 8)), numbers)
    assert np.isfinite(equal(x)).all()
    assert np.ptp(equal(x)) == pytest.approx(0)
