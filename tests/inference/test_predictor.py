"""Predictions for texts: as requested, in every precision, and as transformers gives them."""

from pathlib import Path

import pytest
import torch

from bertworks.errors import BertworksError, UsageError
from bertworks.inference.predict import predict_file
from bertworks.inference.predictor import Predictor
from tests.runs.test_finetune import Trained, classifier as classifier, trained as trained
from tests.support.fine import (
    write_choices,
    write_reviews,
)


def test_answers_have_what_was_requested(classifier: Path, trained: Trained) -> None:
    predictor = Predictor(classifier, device="cpu")
    (one,) = predictor.predict(["a good film"])
    assert list(one) == ["label", "score"]
    (best,) = predictor.predict(["a good film"], top_k=2)
    assert next(iter(best["scores"].items())) == (one["label"], one["score"])
    assert sum(best["scores"].values()) == pytest.approx(1.0)
    assert [list(best), len(best["scores"])] == [["label", "score", "scores"], 2]
    with pytest.raises(UsageError, match="expected a list of texts"):
        predictor.predict("a good film")
    tagger = Predictor(trained("tagging")[0], device="cpu")
    assert list(tagger.predict([["a", "film"]])[0]) == ["tags"]
    with pytest.raises(UsageError, match="a single prediction"):
        tagger.predict([["a", "film"]], top_k=2)


def test_pairs_and_single_texts_are_not_taken_for_one_another(
    classifier: Path, trained: Trained, tmp_path: Path
) -> None:
    pairs, _ = trained("regression")
    with pytest.raises(UsageError, match="expected a pair of strings"):
        Predictor(pairs, device="cpu").predict(["one text"])
    with pytest.raises(UsageError, match="expected a string"):
        Predictor(classifier, device="cpu").predict([("one", "two")])
    with pytest.raises(UsageError, match="the model reads two texts"):
        list(
            predict_file(
                pairs, write_reviews(tmp_path / "r.csv", 10), tmp_path / "out.csv", device="cpu"
            )
        )
    choices = write_choices(tmp_path / "c.csv", 5)
    more = (
        choices.read_text()
        .replace("ending2,label", "ending2,ending3,label")
        .replace(",0\n", ",x,0\n")
    )
    (tmp_path / "four.csv").write_text(more.replace(",1\n", ",x,1\n").replace(",2\n", ",x,2\n"))
    options = {"text": ("startphrase", "ending0", "ending1", "ending2", "ending3"), "device": "cpu"}
    with pytest.raises(BertworksError, match="choices, but the model was trained with 3"):
        list(
            predict_file(
                trained("choice")[0], tmp_path / "four.csv", tmp_path / "out.csv", **options
            )
        )


def test_what_is_no_fine_tuned_model_is_refused(
    classifier: Path, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(BertworksError, match="not fine-tuned"):
        Predictor(model)
    (tmp_path / "other.csv").write_text("words,label\ngood film,pos\nbad film,neg\n")
    with pytest.raises(UsageError, match=r"other.csv.*'text'.*words, label"):
        list(
            predict_file(classifier, tmp_path / "other.csv", tmp_path / "scored.csv", text=["text"])
        )
    assert not (tmp_path / "scored.csv").exists()


def test_bf16_is_near(classifier: Path) -> None:
    exact = Predictor(classifier, device="cpu").predict(["a good film"])[0]
    near = Predictor(classifier, device="cpu", precision="bf16").predict(["a good film"])[0]
    assert near["score"] == pytest.approx(exact["score"], abs=0.05)
    assert torch.is_grad_enabled()
