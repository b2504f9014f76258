"""What a fine-tuning says of its model: which class F1 is of, whether anything was learned, what is
not found."""

import csv
import json
import re
from dataclasses import replace
from html import unescape
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score, matthews_corrcoef

from bertworks.checkpoints.storage import read_json
from bertworks.checkpoints.task_config import read_task_json
from bertworks.datasets.schema import Item, Schema
from bertworks.datasets.values import misspelt_labels
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.metrics.intervals import label_correlation
from bertworks.runs.baselines import FINETUNED, compare_baselines
from bertworks.runs.data_splits import LabelledData, choose_positive, describe_task
from bertworks.runs.dataset_report import check_file
from bertworks.runs.finetune import finetune, finetune_events, make_finetune_request
from bertworks.runs.report import statements
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import compute_metrics, format_never_found, task_results
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Featurizer
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import (
    BAD,
    FILLER,
    GOOD,
    PEOPLE,
    PLACES,
    read_data,
    tokenizer,
    write_reviews,
)
from tests.support.shell import Shell


def rows_of(labels: list[str]) -> list[Features]:
    d = TaskConfig(
        task="classification", text=("text",), labels=tuple(sorted(set(labels))), max_length=64
    )
    items = [Item((f"a film {n}",), label, f"f:{n}") for n, label in enumerate(labels)]
    return list(Featurizer(tokenizer(), task_of(d))(items))


def compared(gold: list[str], predicted: list[str], **options: Any) -> dict[str, Any]:
    """The comparison of predictions with the most frequent label alone."""
    d = TaskConfig(
        task="classification", text=("text",), labels=tuple(sorted(set(gold))), max_length=64
    )
    most_frequent = max(sorted(set(gold)), key=gold.count)
    answers = {
        FINETUNED: [{"label": label} for label in predicted],
        "most frequent label": [{"label": most_frequent}] * len(gold),
    }
    return compare_baselines(
        d, options.pop("metric", "accuracy"), rows_of(gold), answers, **options
    )


# --- the class whose F1 is reported ---


@pytest.mark.parametrize(
    ("counts", "positive", "expected"),
    [
        ({"ham": 30, "spam": 5}, None, "spam"),
        ({"fraud": 5, "ok": 30}, None, "fraud"),  # the first in alphabetical order
        ({"no": 5, "yes": 30}, None, "yes"),  # by its name, although it is frequent
        ({"0": 5, "1": 30}, None, "1"),
        ({"-1": 5, "1": 30}, None, "1"),
        ({"False": 3, "True": 9}, None, "True"),
        ({"neg": 3, "pos": 9}, None, "pos"),
        ({"a": 7, "b": 7}, None, "b"),
        ({"no": 5, "yes": 30}, "no", "no"),
    ],
)
def test_f1_is_that_of_the_class_which_a_user_looks_for(
    counts: dict[str, int], positive: str | None, expected: str
) -> None:
    rows = [Item(("a",), label, "f:1") for label, count in counts.items() for _ in range(count)]
    schema = Schema(task="classification", text=("t",), labels=tuple(sorted(counts)))
    notes: list[str] = []
    assert choose_positive(rows, schema, positive, notes) == expected
    assert notes[0].startswith(f"F1 of: {expected!r}")
    d = TaskConfig(task="classification", labels=schema.labels, positive=expected)
    draw = np.random.default_rng(0)
    predicted = [str(label) for label in draw.choice(schema.labels, len(rows))]
    f1 = compute_metrics(d, rows, [{"label": label} for label in predicted])["f1"]
    assert f1 == pytest.approx(f1_score([row.label for row in rows], predicted, pos_label=expected))


def test_a_class_that_does_not_exist_is_refused() -> None:
    rows = [Item(("a",), label, "f:1") for label in "abc"]
    for labels in (("a", "b", "c"), ("a", "b")):
        with pytest.raises(
            UsageError, match="F1 of one class" if len(labels) == 3 else "not one of the two labels"
        ):
            choose_positive(
                rows, Schema(task="classification", text=("t",), labels=labels), "d", []
            )
    assert (
        choose_positive(
            rows, Schema(task="classification", text=("t",), labels=("a", "b", "c")), None, []
        )
        is None
    )


def test_all_folds_have_the_same_class(tmp_path: Path) -> None:
    """Ten rows of each label, of which a fold may have more of one."""
    data = tmp_path / "d.csv"
    rows = [f"a film number {n},{'x' if n % 2 else 'y'}" for n in range(21)]
    data.write_text("\n".join(["text,label", *rows]))
    all_data = read_data(data, validation="folds")
    assert {all_data.positive, *(all_data.fold(n).positive for n in range(3))} == {"x"}
    assert {read_data(data, fold=(n, 4)).positive for n in range(4)} == {"x"}


def test_the_class_is_stored_in_the_model(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "d.csv", 40)
    output = tmp_path / "out"
    options = {"method": "frozen", "validation": "split", "positive": "neg"}
    finetune(data, model=model, output=output, device="cpu", **options)
    assert read_json(output / "task.json")["positive"] == "neg"
    result = read_json(output / "result.json")
    assert result["positive"] == "neg"
    assert result["figures"]["f1"] == pytest.approx(result["table"]["neg"]["f1"])
    assert "F1 of 'neg'" in (output / "README.md").read_text()
    assert "F1 of &#x27;neg&#x27;" in (output / "report.html").read_text()
    evaluation = evaluate_task(output, data, device="cpu")
    assert evaluation["positive"] == "neg"
    assert evaluation["figures"]["f1"] == pytest.approx(evaluation["table"]["neg"]["f1"])
    # A folder of an earlier version has no such field, and keeps its F1: that of the second label.
    content = read_json(output / "task.json")
    del content["positive"]
    (output / "task.json").write_text(json.dumps(content))
    evaluation_of_old_folder = evaluate_task(output, data, device="cpu")
    assert evaluation_of_old_folder["positive"] == "pos"
    assert evaluation_of_old_folder["figures"]["f1"] == pytest.approx(
        evaluation_of_old_folder["table"]["pos"]["f1"]
    )
    (output / "task.json").write_text(json.dumps(content | {"positive": "other"}))
    with pytest.raises(BertworksError, match="the positive label 'other' is not one of the labels"):
        read_task_json(output / "task.json")


def test_data_without_a_choice_keep_the_second_label() -> None:
    """`evaluate glue` makes its data itself: F1 of RTE stays that of "not_entailment"."""
    items = [Item(("a", "b"), label, "f:1") for label in ("entailment", "not_entailment")]
    schema = Schema(task="classification", text=("a", "b"), labels=("entailment", "not_entailment"))
    d = describe_task(
        LabelledData(schema, items, items), replace(load_finetune_recipe("stable"), max_length=64)
    )
    assert (d.positive, d.positive_label) == (None, "not_entailment")


# --- whether anything was learned ---


def test_thirty_five_percent_of_many_labels_is_not_nothing() -> None:
    """35 % is right where 28 % of the rows have the most frequent label: not clearly more, and far
    from chance."""
    draw = np.random.default_rng(4)
    gold = [str(label) for label in draw.choice(list("abcdefgh"), 100, p=[0.28, *[0.72 / 7] * 7])]
    predicted = [
        label if draw.random() < 0.25 else str(draw.choice(list("abcdefgh"))) for label in gold
    ]
    comparison = compared(gold, predicted)
    assert (
        comparison["methods"][1]["difference_interval"][0]
        < 0
        < comparison["methods"][1]["difference"]
    )
    assert "nothing" not in comparison["verdict"]
    assert (
        'fine-tuning is not clearly better than "most frequent label": accuracy'
        in comparison["verdict"]
    )


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
def test_chance_is_nothing_by_every_metric(metric: str) -> None:
    """The macro F1 of random answers is higher than that of a constant one."""
    draw = np.random.default_rng(2)
    gold = ["a"] * 150 + ["b"] * 50
    predicted = [str(label) for label in draw.choice(["a", "b"], 200)]
    assert "has learned nothing" in compared(gold, predicted, metric=metric)["verdict"]


def test_of_few_rows_nothing_follows() -> None:
    """All of three rows are right, which chance gives as well."""
    verdict = compared(["a", "b", "c"], ["a", "b", "c"])["verdict"]
    assert "nothing" not in verdict
    assert (
        "cannot show whether fine-tuning has learned anything: with 3 rows, even a perfect model"
    ) in verdict


def test_the_same_is_not_said_twice() -> None:
    gold = ["a", "b"] * 50
    verdict = compared(gold, ["a"] * 100)["verdict"]
    assert verdict.count('"most frequent label"') == 1
    assert verdict.startswith("WARNING: fine-tuning has learned nothing")


def test_a_model_of_two_rows_per_label_is_not_called_useless(model: Path, tmp_path: Path) -> None:
    """With fewer rows of a label than folds, a fold is evaluated by a model that has hardly seen
    its labels."""
    labels = [f"topic {n}" for n in range(12)]
    rows = [
        f"the town of dogs {word} {n},{label}"
        for n, label in enumerate(labels)
        for word in ("good", "bad")
    ]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]))
    output = tmp_path / "out"
    finetune(tmp_path / "d.csv", model=model, method="frozen", output=output, device="cpu")
    result = read_json(output / "result.json")
    assert not result["never_found"]
    assert "errors.csv" not in result["advice"]
    page = (output / "README.md").read_text()
    assert (
        "how sure: no estimate for new rows: 2 rows per label are too few for a confidence" in page
    )
    assert "| method | accuracy | advantage of the linear head |" in page
    verdict = result["baselines"]["verdict"]
    assert "nothing" not in verdict
    assert "12 of the 12 labels have fewer examples than there are folds (3)" in verdict


# --- what a method is compared with, and what the words say of it ---


def test_the_linear_head_is_not_compared_with_itself(model: Path, tmp_path: Path) -> None:
    names = {}
    for method in ("frozen", "full"):
        output = tmp_path / method
        options = {"overrides": ["epochs=1"]} if method == "full" else {}
        finetune(
            write_reviews(tmp_path / "d.csv", 30),
            model=model,
            method=method,
            output=output,
            device="cpu",
            **options,
        )
        names[method] = [
            comparison["method"]
            for comparison in read_json(output / "result.json")["baselines"]["methods"]
        ]
    assert names["frozen"] == ["linear head", "most frequent label", "bag of words"]
    assert "frozen vectors" in names["full"]


def test_words_of_a_cross_validation(model: Path, tmp_path: Path) -> None:
    """The model in the folder has seen all rows, there is no dev, and the figures are estimates."""
    output = tmp_path / "out"
    finetune(
        write_reviews(tmp_path / "d.csv", 30),
        model=model,
        method="frozen",
        output=output,
        device="cpu",
    )
    text = read_json(output / "finished.json")["text"]
    assert "in cross-validation, on 30 held-out rows" in text
    assert "rows that it did not see" not in text
    assert "not calibrated: that needs 50 evaluated rows" in text
    assert not re.search(r"\bdev\b", text)
    sentences = statements(read_json(output / "result.json"))
    method, certainty, advice = sentences
    assert method == "method: frozen; as requested"
    assert certainty.startswith("how sure: these are estimates for the model in the folder")
    assert advice.startswith("what would help next: more rows of all labels, equally many of each")
    assert all(f"\n{sentence}" in text for sentence in sentences)
    for name in ("report.html", "README.md"):
        page = (output / name).read_text()
        assert all(sentence in unescape(page) for sentence in sentences)
        assert "models trained on nine tenths and on two thirds of the rows" in page
        assert "the table compares models trained on two thirds of the rows" in page
        assert "dev rows: the uncertainty" not in page
        assert "evaluated rows: the uncertainty of a score" in page


def test_a_model_that_never_finds_the_rare_class_has_no_high_score_as_its_headline(
    model: Path, tmp_path: Path
) -> None:
    """99 % of the rows are frequent: F1 of the frequent class is near 100 %, and the model is of no
    use."""
    rows = [f"a film {n},{'rare' if n % 50 == 0 else 'often'}" for n in range(150)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]))
    output = tmp_path / "out"
    options = {"positive": "often", "metric": "f1"}
    finetune(
        tmp_path / "d.csv", model=model, method="frozen", output=output, device="cpu", **options
    )
    result = read_json(output / "result.json")
    assert result["figures"]["f1"] > 0.98
    assert result["never_found"] == {"rare": int(result["table"]["rare"]["support"])}
    assert "more rows of 'rare' (3 rows, F1 about 0%)" in result["advice"]
    assert "errors.csv has the probable label errors first" in result["advice"]
    sentence = format_never_found(result["never_found"])
    assert f"\nWARNING: {sentence}\n" in read_json(output / "finished.json")["text"]
    headline = re.search(r'<p class="headline">(.*?)</p>', (output / "report.html").read_text())
    assert headline is not None
    assert headline[1].startswith("The model does not find any of the ")
    assert f"Warning: {sentence}." in (output / "README.md").read_text()


def test_tables_have_the_most_frequent_of_many_labels(
    model: Path, tmp_path: Path, shell: Shell
) -> None:
    """210 labels with two rows, of which most have one dev row: macro F1 has no interval."""
    words = [*GOOD, *BAD, *PEOPLE, *PLACES, *FILLER[5:10]]
    topics = list(islice(combinations(words, 2), 210))
    for name, starts in (("d.csv", ("a film", "film")), ("dev.csv", ("the film",))):
        rows = [
            f"{start} {first} {second},topic {n}"
            for n, (first, second) in enumerate(topics)
            for start in starts
        ]
        if name == "dev.csv":
            rows.append(f"one film {' '.join(topics[-1])},topic 209")
        (tmp_path / name).write_text("\n".join(["text,label", *rows]))
    output = tmp_path / "out"
    data = {"data": tmp_path / "d.csv", "dev": tmp_path / "dev.csv", "task": "classification"}
    finetune(**data, model=model, method="frozen", output=output, device="cpu")
    result = read_json(output / "result.json")
    assert result["figures"]["macro_f1"] > 0.1
    assert result["intervals"]["macro_f1"] is None
    assert "no interval" in result["certainty"]
    assert "macro F1 about " in read_json(output / "finished.json")["text"]
    assert len(result["table"]) == 210
    page = (output / "report.html").read_text()
    assert "By label, the weakest first: 200 of 210, all are in result.json" in page
    names = re.findall(r"<tr>\s*<td>(topic \d+)</td>", page)
    figures = [result["table"][name]["f1"] for name in names]
    assert figures == sorted(figures)
    assert len(names) == 200
    lines = shell.works("evaluate", "task", output, tmp_path / "dev.csv").splitlines()
    shown = [line.split("  ")[0].strip() for line in lines if line.startswith("topic ")]
    assert shown[0] == "topic 209"  # the most frequent label
    assert {*shown} == {*names}


def test_labels_that_are_never_found_are_those_without_a_right_answer() -> None:
    gold = list("aabbccd")
    predicted = list("aaacbaa")
    d = TaskConfig(task="classification", labels=("a", "b", "c", "d", "e"))
    rows = [
        row._replace(item=row.item._replace(label=label))
        for row, label in zip(rows_of(gold), gold, strict=True)
    ]
    scores = dict.fromkeys(d.labels, 0.2)
    results, _ = task_results(
        d, rows, [{"label": label, "score": 0.2, "scores": scores} for label in predicted]
    )
    assert results["never_found"] == {"b": 2, "c": 2, "d": 1}
    sentence = (
        "the model does not find any row of 3 labels: 'b' (2 rows), 'c' (2 rows), 'd' (1 row)"
    )
    assert format_never_found(results["never_found"]) == sentence
    assert format_never_found({"d": 1}) == "the model does not find the only row of 'd'"
    assert format_never_found({}) == ""


# --- words about the data ---


def test_a_label_of_the_held_out_rows_alone_is_no_spelling_mistake() -> None:
    """HUM and NUM are two labels of TREC; "postive" is none."""
    assert misspelt_labels("HUM", ["NUM", "LOC", "ENTY"]) == []
    assert misspelt_labels("postive", ["positive", "negative"]) == ["positive"]


def test_the_hint_names_a_pair_in_the_order_of_its_columns(tmp_path: Path) -> None:
    """Which text follows from which matters: the shorter one may be the second."""
    long_text = "the dogs of the town walk along the river every day"
    short_text = "some dogs walk near the water"
    rows = [f"{n},{long_text} {n},{short_text} {n},{'yes' if n % 2 else 'no'}" for n in range(20)]
    for name, header in (("a.csv", "n,source,remark,label"), ("b.csv", "n,remark,source,label")):
        swapped = (
            rows
            if name == "a.csv"
            else [f"{n},{short_text} {n},{long_text} {n},yes" for n in range(20)]
        )
        (tmp_path / name).write_text("\n".join([header, *swapped]))
        with pytest.raises(UsageError, match="several columns hold texts") as error:
            read_data(tmp_path / name)
        _, first, second, _ = header.split(",")
        assert str(error.value.hint).endswith(f"or --text {first} --text {second}")


def test_a_single_label_more_is_listed_and_not_counted(model: Path, tmp_path: Path) -> None:
    for count in (9, 10):
        path = tmp_path / f"{count}.csv"
        rows = [f"a film {n},label {n % count}" for n in range(count * 6)]
        path.write_text("\n".join(["text,label", *rows]))
        text = str(check_file(path, model=model))
        assert "1 others" not in text
        assert ("and 2 others" in text) == (count == 10)
        assert ("label 8  " in text) == (count == 9)


def test_a_time_is_never_nothing_and_includes_the_comparison(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "d.csv", 30)
    request = make_finetune_request(data, model=model, method="frozen")
    seconds = {}
    for compares in (True, False):
        events = finetune_events(tmp_path / str(compares), request, device="cpu", compares=compares)
        plan = next(event for event in events if event.kind == "plan")
        assert "about 0 s" not in plan.text
        seconds[compares] = plan.fields["estimated_seconds"]
    assert seconds[False] > 0
    assert seconds[True] > 0


def test_errors_are_introduced(model: Path, tmp_path: Path) -> None:
    """The first rows are those that contradict the model most clearly: they may be errors of the
    data."""
    rows = [f"a {'good' if n % 2 else 'bad'} film,{'pos' if n % 2 else 'neg'}" for n in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]))
    dev_rows = [
        "a good film indeed,neg",
        "a bad film indeed,pos",
        "a good film,neg",
        "a good film,pos",
    ]
    (tmp_path / "dev.csv").write_text("\n".join(["text,label", *dev_rows]))
    output = tmp_path / "out"
    data = {"data": tmp_path / "d.csv", "dev": tmp_path / "dev.csv"}
    finetune(**data, model=model, method="frozen", output=output, device="cpu")
    with (output / "errors.csv").open(newline="") as file:
        scores = [float(row["gold_score"]) for row in csv.DictReader(file)]
    assert scores == sorted(scores)
    text = read_json(output / "finished.json")["text"]
    assert scores
    assert "some of them may have wrong labels" in text


# --- several labels for each row ---


def compared_sets(
    gold: list[list[str]], predicted: list[list[str]], names: str = "abcdef"
) -> dict[str, Any]:
    """The comparison of predicted sets of labels with the most frequent label alone."""
    d = TaskConfig(task="multilabel", text=("text",), labels=tuple(names), max_length=64)
    items = [Item((f"a film {n}",), labels, f"f:{n}") for n, labels in enumerate(gold)]
    rows = list(Featurizer(tokenizer(), task_of(d))(items))
    answers = {
        FINETUNED: [{"labels": labels, "scores": {}} for labels in predicted],
        "most frequent labels": [{"labels": ["a"], "scores": {}}] * len(gold),
    }
    return compare_baselines(d, "micro_f1", rows, answers)


def test_a_model_that_finds_rare_labels_has_learned_something() -> None:
    """Micro F1 is smaller than that of the most frequent label, which does not depend on the
    text."""
    gold = [
        ["a", *(name for place, name in enumerate("bcdef") if n % 20 == place)] for n in range(100)
    ]
    gold = [labels if n % 10 else labels[1:] for n, labels in enumerate(gold)]
    predicted = [[name for name in labels if name != "a"] for labels in gold]
    found = compared_sets(gold, predicted)
    assert found["methods"][1]["difference"] < 0
    assert "learned nothing" not in found["verdict"]
    assert "worse than" in found["verdict"]


def test_random_labels_are_nothing_and_few_rows_show_nothing() -> None:
    draw = np.random.default_rng(3)
    gold = [[name for name in "abcdef" if draw.random() < 0.3] for _ in range(100)]
    predicted = [[name for name in "abcdef" if draw.random() < 0.9] for _ in range(100)]
    assert "learned nothing" in compared_sets(gold, predicted)["verdict"]
    assert "has learned nothing" in compared_sets(gold, [["a", "b"]] * 100)["verdict"]
    assert "learned nothing" in compared_sets([["b"], ["c"]] * 50, [["c"], ["b"]] * 50)["verdict"]
    few = compared_sets([["a"], ["b"], ["a"]], [["a"], ["b"], ["a"]])["verdict"]
    assert "cannot show whether fine-tuning has learned anything: with 3 rows," in few


def test_the_correlation_of_labels_is_that_of_matthews_where_each_row_has_one() -> None:
    draw = np.random.default_rng(4)
    gold, predicted = np.eye(4)[draw.integers(0, 4, 60)], np.eye(4)[draw.integers(0, 4, 60)]
    counts = np.stack([gold * predicted, predicted, gold], 1)
    reference = matthews_corrcoef(gold.argmax(1), predicted.argmax(1))
    assert label_correlation(counts).value == pytest.approx(reference)
    several = (draw.random((60, 4)) < 0.4).astype(float)
    single = np.stack([several * gold, several, gold], 1)[:, :, :1]
    reference = matthews_corrcoef(gold[:, 0], several[:, 0])
    assert label_correlation(single).value == pytest.approx(reference)
