"""Predictions for texts: as requested, in every precision, and as transformers gives them."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from bertworks.datasets.annotations import ConllLayout
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.predictor import PredictionFormat, Predictor, Unit, predict_file
from bertworks.io.file_job import RowFormat
from tests.interop.test_export import write_head
from tests.runs.test_finetune import Trained, classifier as classifier, trained as trained
from tests.support import served
from tests.support.fine import (
    write_choices,
    write_reviews,
)
from tests.support.refusals import refusal
from tests.support.tables import read_table, write_table


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


WORDS = {"word": ["Anna", "sings"], "n": ["1", "2"]}
TAGS = {"predicted_tags": ["B-PER", "O"], "truncated_tokens": 0}
CONLL = RowFormat(name="a.conll", kind="conll", columns=())


def finished_rows(output_format: PredictionFormat, unit: Unit, columns: dict) -> str:
    """The bytes of the rows in a portion, by a format that went through JSON as for a worker."""
    settings = json.loads(json.dumps(asdict(output_format)))
    portion = PredictionFormat.of_settings(settings).portion([unit], [columns])
    _, rows = portion  # after the counts
    return rows.decode()


def test_a_row_with_its_prediction() -> None:
    rows = RowFormat(name="a.csv", kind="csv", columns=("text", "predicted_label"))
    unit = Unit(1, {"text": "good"}, None, "a.csv:2")
    assert finished_rows(PredictionFormat(rows=rows), unit, {"predicted_label": "pos"}) == (
        "good,pos\n"
    )


def test_a_row_for_each_word() -> None:
    """What is true of the sentence stands in the row of its first word."""
    columns = ("word", "n", "predicted_tags", "truncated_tokens")
    output_format = PredictionFormat(
        rows=RowFormat(name="a.csv", kind="csv", columns=columns), word_columns=("word", "n")
    )
    unit = Unit(1, WORDS, None, "a.csv:2")
    assert finished_rows(output_format, unit, TAGS) == "Anna,1,B-PER,0\nsings,2,O,\n"


def test_lines_of_conll_keep_what_is_around_words() -> None:
    output_format = PredictionFormat(rows=CONLL, layout=ConllLayout(2, 0, 1))
    lines = ["# id 1", "Anna x", "sings y", "", "# id 2"]
    unit = Unit(1, {}, None, "a.conll:2", lines)
    assert finished_rows(output_format, unit, TAGS) == (
        "# id 1\nAnna x B-PER\nsings y O\n\n# id 2\n"
    )


def test_words_become_lines_of_conll() -> None:
    item = Item(("Anna", "sings"), None, "a.jsonl:1")
    unit = Unit(1, {}, item, "a.jsonl:1")
    assert finished_rows(PredictionFormat(rows=CONLL), unit, TAGS) == "Anna\tB-PER\nsings\tO\n\n"
    wrong = Unit(1, {}, Item(("a\tb", "c"), None, ""), "a.jsonl:7")
    with pytest.raises(BertworksError, match="does not fit in a line") as caught:
        finished_rows(PredictionFormat(rows=CONLL), wrong, TAGS)
    assert caught.value.where == "a.jsonl:7"


def test_the_score_is_the_first_metric_of_the_task(classifier: Path) -> None:
    predictor = Predictor(classifier, device="cpu")
    texts = ["a good film", "awful dogs", "great music", "sad men"]
    labels = [answer["label"] for answer in predictor.predict(texts)]
    assert predictor.score(texts, labels) == 1.0
    others = {"pos": "neg", "neg": "pos"}
    assert predictor.score(texts, [others[labels[0]], *labels[1:]]) == 0.75
    with refusal("4 texts and 3 labels", "give one label for each text"):
        predictor.score(texts, labels[:3])
    with refusal("expected a list of labels, not one label", "score([text], [label])"):
        predictor.score(texts[:1], "pos")


def test_an_lstm_has_no_int8(tmp_path: Path) -> None:
    write_head(tmp_path, "tagging", lstm_units=8)
    with refusal("a model of the recipe `feature_based` has no int8", "leave --precision out"):
        Predictor(tmp_path, device="cpu", precision="int8")


def test_every_row_of_a_file_gets_a_prediction(tmp_path: Path) -> None:
    model = served.write_head(
        tmp_path / "m", task="classification", text=("text",), labels=("neg", "pos")
    )
    data = write_table(tmp_path / "d.csv", ("text", "n"), ("a good film", 1), ("sad dogs", 2))
    *_, done = predict_file(model, data, tmp_path / "out.csv", device="cpu")
    rows = read_table(tmp_path / "out.csv")
    assert [(row["text"], row["n"]) for row in rows] == [("a good film", "1"), ("sad dogs", "2")]
    expected = Predictor(model, device="cpu").predict([row["text"] for row in rows])
    assert [row["predicted_label"] for row in rows] == [answer["label"] for answer in expected]
    assert done.kind == "done"
