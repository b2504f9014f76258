"""Names and descriptions of labels as rows of a linear head."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertworks.datasets.schema import Item, Schema
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.predictor import Predictor
from bertworks.runs.data_splits import LARGE_CLASS, LabelledData, rows_per_class
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.runs.label_rows import label_rows, words_of
from bertworks.tasks.task import softmax
from tests.runs.test_finetune_job import logistic, vectors_of
from tests.support.fine import BAD, GOOD, sentence, write_multilabel, write_pairs
from tests.support.refusals import refusal


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("card_arrival", "card arrival"),
        ("Card-Arrival", "Card Arrival"),
        ("cardArrival", "card Arrival"),
        ("Refund not showing up?", "Refund not showing up?"),
        ("pos", "pos"),
        ("긍정적인 평가", "긍정적인 평가"),
        ("top 10 questions", "top 10 questions"),
        ("", ""),
        ("ｃａｒｄ　ａｒｒｉｖａｌ", "card arrival"),
        ("3", ""),
        ("2.5", ""),
        ("x", ""),
        ("no", ""),
        ("label_3", ""),
        ("LABEL_3", ""),
        ("class 12", ""),
        ("TICKET-17", ""),
        ("4f2a91bc", ""),
        ("a3f inquiry", ""),
    ],
)
def test_the_words_of_a_label(label: str, words: str) -> None:
    assert words_of(label) == words


def labelled(labels: list[str], texts: tuple[str, ...] = ("text",), task: str = "classification"):
    train = [Item(("a film",) * len(texts), label, f"r.csv:{n}") for n, label in enumerate(labels)]
    known = tuple(dict.fromkeys(labels))
    return LabelledData(Schema(task=task, text=texts, label=("label",), labels=known), train, [])


def test_labels_without_words_of_their_own_are_no_rows() -> None:
    """Labels whose names say nothing, and labels whose names say the same."""
    data = labelled(
        ["card_arrival", "Card arrival", "ｃａｒｄ arrival", "refund", "label_3", "7"] * 2
    )
    assert rows_per_class(data) == 2
    rows, notes = label_rows(data, None)
    assert [(row.texts, row.label) for row in rows] == [(("refund",), "refund")]
    assert notes == [
        "labels with the same words in their names are not used as rows: "
        "Card arrival, card_arrival, ｃａｒｄ arrival",
        "names of labels are rows of the linear head (1): 'refund'",
        "labels without words in their names: label_3, 7; --label-descriptions FILE says what "
        "they mean",
    ]


def test_where_labels_are_no_rows() -> None:
    """With eight rows of the label in the middle, beside a label of many rows, and for pairs."""
    assert label_rows(labelled(["refund", "delivery"] * 8), None) == ([], [])
    few = ["delivery", "return"] * 7
    rare = labelled(["refund"] * LARGE_CLASS + few)
    assert [row.label for row in label_rows(rare, None)[0]] == ["refund", "delivery", "return"]
    assert label_rows(labelled(["refund"] * (LARGE_CLASS + 1) + few), None) == ([], [])
    pairs = labelled(["same", "other"] * 3, texts=("a", "b"))
    assert rows_per_class(pairs) == 3
    assert label_rows(pairs, None) == ([], [])


def test_descriptions_take_the_place_of_names(tmp_path: Path) -> None:
    """Several of a label are several rows; labels without one keep their names."""
    path = tmp_path / "labels.csv"
    path.write_text("label,text\n7,where is my card\n7,my card is late\nrefund, money back \n")
    data = labelled(["7", "refund", "return"] * 20)
    rows, notes = label_rows(data, str(path))
    assert [(row.texts[0], row.label) for row in rows] == [
        ("where is my card", "7"),
        ("my card is late", "7"),
        ("money back", "refund"),
        ("return", "return"),
    ]
    assert notes == [
        "descriptions of labels are rows of the linear head (3)",
        "names of labels are rows of the linear head (1): 'return'",
    ]


@pytest.mark.parametrize(
    ("content", "what", "hint"),
    [
        ("label,words\nrefund,a\n", "the column 'text'", "name the columns label and text"),
        ("label,text\nrefunds,a\n", "'refunds' is not a label", "the labels are: refund, return"),
        ("label,text\nrefund,a\nreturn,\n", "description of 'return' is empty", "write a text"),
    ],
)
def test_descriptions_that_are_refused(content: str, what: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(content)
    with refusal(what, hint):
        label_rows(labelled(["refund", "return"]), str(path))
    with pytest.raises(UsageError, match="one text and one label") as caught:
        label_rows(labelled(["refund", "return"], texts=("a", "b")), str(path))
    assert caught.value.hint == "leave out --label-descriptions"
    with pytest.raises(BertworksError):
        label_rows(labelled(["refund", "return"]), str(tmp_path / "none.csv"))


def write_few(path: Path, count: int = 5) -> Path:
    """The reviews of `write_reviews`, `count` of each label; labels are words."""
    draw = random.Random(3)
    rows = [
        f"{sentence(draw, draw.choice(words))},{label}"
        for words, label in ((GOOD, "good_film"), (BAD, "bad film"))
        for _ in range(count)
    ]
    draw.shuffle(rows)
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


def test_a_head_learns_from_names_which_no_fold_holds_out(model: Path, tmp_path: Path) -> None:
    """They are rows of each part of a cross-validation, and count as rows nowhere."""
    data = write_few(tmp_path / "few.csv")
    request = make_finetune_request(data, model=model, precision="fp32", method="frozen")
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    logits = job.logits_of_evaluated_parts
    rows = job.data.train
    names = ["bad film", "good film"]
    labels = list(job.description.labels)
    assert sorted(labels) == ["bad film", "good_film"]
    texts = [item.texts[0] for item in rows]
    for part, outputs in zip(job.data.parts, logits):
        others = [n for n in range(len(rows)) if n not in part]
        x = vectors_of(model, [*(texts[n] for n in others), *names])
        y = [*(rows[n].label for n in others), "bad film", "good_film"]
        expected = logistic(x, y)(vectors_of(model, [texts[n] for n in part]))
        assert softmax(np.concatenate(outputs)) == pytest.approx(expected, abs=2e-4)
    assert len(job.train) == 10
    assert sum(count for count, _ in job.data_report.labels.values()) == 10
    assert "names of labels are rows of the linear head (2)" in str(job.data_report)


def run(data: Path, output: Path, model: Path, **options: Any) -> Any:
    request = make_finetune_request(data, model=model, precision="fp32", **options)
    return list(finetune_events(output, request, device="cpu"))


def test_auto_fits_a_head_where_labels_have_few_rows(model: Path, tmp_path: Path) -> None:
    *events, done = run(write_few(tmp_path / "few.csv"), tmp_path / "out", model)
    assert done.fields["method"] == "frozen"
    assert done.fields["choice"] == "frozen; labels have fewer than 8 rows"
    plan = next(event for event in events if event.kind == "plan")
    assert "method       frozen: labels have fewer than 8 rows" in plan.text
    assert "names of labels are rows" in plan.text
    assert "names of labels are rows" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("method", ["frozen", "contrastive"])
def test_descriptions_change_a_head(method: str, model: Path, tmp_path: Path) -> None:
    """Also of 20 rows of each label; the same request resumes, and another file is refused."""
    data = write_few(tmp_path / "more.csv", 20)
    described = tmp_path / "labels.csv"
    described.write_text("label,text\ngood_film,a wonderful story\nbad film,boring town\n")
    options: dict[str, Any] = {"method": method}
    if method == "contrastive":
        options["epochs"] = 2
    run(data, tmp_path / "plain", model, **options)
    *_, done = run(data, tmp_path / "out", model, label_descriptions=described, **options)
    scores = [
        Predictor(tmp_path / name, device="cpu").predict(["a story"])[0]["score"]
        for name in ("plain", "out")
    ]
    assert scores[0] != scores[1]
    (again,) = run(data, tmp_path / "out", model, label_descriptions=described, **options)
    assert again.fields == done.fields
    described.write_text(described.read_text() + "good_film,great\n")
    with pytest.raises(UsageError, match="label_descriptions"):
        run(data, tmp_path / "out", model, label_descriptions=described, **options)


def test_methods_and_tasks_without_such_rows(model: Path, tmp_path: Path) -> None:
    data = write_few(tmp_path / "few.csv")
    described = tmp_path / "labels.csv"
    described.write_text("label,text\ngood_film,a wonderful story\n")
    with pytest.raises(UsageError, match="'full' does not use --label-descriptions") as caught:
        make_finetune_request(data, model=model, method="full", label_descriptions=described)
    assert caught.value.hint == "leave out --label-descriptions; or --method frozen"
    for other in (write_pairs(tmp_path / "p.tsv"), write_multilabel(tmp_path / "t.jsonl")):
        with pytest.raises(UsageError, match="one text and one label in each row"):
            run(other, tmp_path / "out", model, label_descriptions=described)


ODD_ROWS = {
    "equal texts": [("a good film", "ab"[n % 2]) for n in range(24)],
    "a class of one row": [
        ("the fine town", "c"),
        *((f"the town {('good', 'bad')[n % 2]}", "ab"[n % 2]) for n in range(30)),
    ],
    "an unknown language": [(f"это хорошо {n}", "ab"[n % 2]) for n in range(24)],
}


@pytest.mark.parametrize("rows", ODD_ROWS.values(), ids=ODD_ROWS)
def test_rows_from_which_little_can_be_learned_make_a_model(
    rows: list[tuple[str, str]], model: Path, tmp_path: Path
) -> None:
    """A contrastive training has no partner for some rows, or no difference between texts."""
    data = [{"text": text, "label": label} for text, label in rows]
    request = make_finetune_request(
        data, model=model, precision="fp32", method="contrastive", epochs=2, text="text"
    )
    *_, done = finetune_events(tmp_path / "out", request, device="cpu")
    (answer,) = Predictor(tmp_path / "out", device="cpu").predict(["a good film"])
    assert answer["label"] in {label for _, label in rows}
    assert 0 < answer["score"] < 1
    assert 0 <= done.fields["score"] <= 1


def test_classes_of_unequal_size_are_not_few_rows() -> None:
    """The median of 200, 5 and 5 rows is 5, and the frequent class has many."""
    assert rows_per_class(labelled(["a"] * 30 + ["b"] * 5 + ["c"] * 5)) == 5
    data = labelled(["card arrival"] * 200 + ["refund"] * 5 + ["top up"] * 5)
    assert rows_per_class(data) == math.inf
    assert label_rows(data, None) == ([], [])


def test_labels_that_are_numbers_are_described(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"label": 0, "text": "refund"}\n{"label": 1, "text": "return"}\n')
    rows, _ = label_rows(labelled(["0", "1"]), str(path))
    assert [(row.label, *row.texts) for row in rows] == [("0", "refund"), ("1", "return")]


def test_descriptions_that_the_chosen_method_does_not_use(model: Path, tmp_path: Path) -> None:
    described = tmp_path / "labels.csv"
    described.write_text("label,text\ngood_film,a wonderful story\n")
    data = write_few(tmp_path / "many.csv", 40)
    with pytest.raises(UsageError, match="'full', which is used here") as caught:
        run(data, tmp_path / "out", model, label_descriptions=described, validation="split")
    assert caught.value.hint == "leave out --label-descriptions; or --method frozen"


def test_a_head_that_goes_on_has_no_names_as_rows(model: Path, tmp_path: Path) -> None:
    """Where its training is the only method, no note speaks of names of labels."""
    data = write_few(tmp_path / "few.csv")
    first = tmp_path / "first"
    run(data, first, model)
    job, other = (
        FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
        for request in (
            make_finetune_request(data, model=first, validation="split", precision="fp32"),
            make_finetune_request(data, model=first, precision="fp32"),
        )
    )
    assert job.compared_methods == ("full",)
    assert not job.prepared.data.label_rows
    assert not any("names of labels" in note for note in job.data_report.notes)
    assert other.compared_methods == ("full", "frozen")  # which has them
    assert any("names of labels" in note for note in other.data_report.notes)
