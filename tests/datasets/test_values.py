"""One class in several spellings: which are joined, which never are, and what is said about it."""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema, infer_schema, items
from bertworks.datasets.values import canonical_label, choice_number, flag_of, folded_label
from bertworks.errors import BertworksError
from bertworks.io.options import ReadOptions
from bertworks.tasks.registry import TASKS
from tests.support.refusals import refusal


def write_labels(path: Path, labels: list[str], name: str = "label") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", name])
        writer.writerows(
            [f"the film number {number} was seen by us", label]
            for number, label in enumerate(labels)
        )
    return path


def labels_of(
    path: Path, options: ReadOptions = ReadOptions(), **choices: Any
) -> tuple[Schema, list[Any], list[str]]:
    reader = RowReader(path, options)
    schema, notes = infer_schema(reader, TASKS, **choices)
    return schema, [item.label for item in items(reader, schema, TASKS)], notes


def test_a_whole_number_and_the_same_with_zeros_are_one_class(tmp_path: Path) -> None:
    spellings = [
        "0",
        "1",
        "2",
        "0.0",
        "1.0",
        "2.0",
        "0",
        "1",
        "2.00",
        "2.0",
        "-1",
        "-1.0",
        "-1",
    ] * 3
    schema, labels, notes = labels_of(write_labels(tmp_path / "a.csv", spellings))
    assert schema.labels == ("-1", "0", "1", "2.0")  # the more frequent spelling names the class
    assert labels == [
        {"2": "2.0", "2.00": "2.0", "0.0": "0", "1.0": "1", "-1.0": "-1"}.get(x, x)
        for x in spellings
    ]
    spelling_notes = [note for note in notes if note.startswith("one label in several spellings")]
    assert "one label in several spellings, read as '1': '1' (6), '1.0' (3)" in spelling_notes
    assert (
        "one label in several spellings, read as '2.0': '2.0' (6), '2' (3), '2.00' (3)"
        in spelling_notes
    )
    assert len(spelling_notes) == 4


def test_true_is_one_class_in_any_case_and_not_the_number_one(tmp_path: Path) -> None:
    spellings = ["True", "true", "TRUE", "True", "False", "false", "1"] * 4
    schema, labels, _ = labels_of(write_labels(tmp_path / "a.csv", spellings))
    assert schema.labels == ("1", "False", "True")
    assert labels[:7] == ["True", "True", "True", "True", "False", "False", "1"]


def test_codes_keep_their_zeros_and_decimals_their_digits(tmp_path: Path) -> None:
    spellings = ["1", "1.0", "1.1", "1.10", "01", "001"] * 10
    schema, labels, _ = labels_of(write_labels(tmp_path / "a.csv", spellings))
    assert schema.task == "classification"
    assert set(schema.labels) == {"1", "1.1", "1.10", "01", "001"}
    assert labels == [{"1.0": "1"}.get(label, label) for label in spellings]
    without_codes = [label for label in spellings if not label.startswith("0")]
    assert labels_of(write_labels(tmp_path / "b.csv", without_codes))[0].task == "regression"


def test_many_codes_are_no_numbers_without_a_word(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "a.csv", [f"{number:05}" for number in range(0, 9000, 37)])
    with pytest.raises(BertworksError, match="leading zeros are codes and no numbers") as error:
        infer_schema(RowReader(path), TASKS, label="label")
    assert "--task regression" in str(error.value.hint)
    schema, labels, _ = labels_of(path, label="label", task="regression")
    assert schema.task == "regression"
    assert labels[:2] == [0, 37]


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_the_rows_changes_no_class(tmp_path: Path, seed: int) -> None:
    spellings = [
        "1",
        "1.0",
        "1.00",
        "01",
        "1.10",
        "1.1",
        "true",
        "True",
        "TRUE",
        "yes",
        "Yes",
        "-0",
        "10",
        "10.0",
    ]
    random = np.random.default_rng(seed)
    column = [spellings[number] for number in random.integers(0, len(spellings), 200)]
    shuffled_column = [column[number] for number in random.permutation(200)]
    first_schema, labels, _ = labels_of(write_labels(tmp_path / "a.csv", column))
    second_schema, _, _ = labels_of(write_labels(tmp_path / "b.csv", shuffled_column))
    assert first_schema.labels == second_schema.labels
    for (a, label_a), (b, label_b) in itertools.combinations(
        set(zip(column, labels, strict=True)), 2
    ):
        assert (label_a == label_b) == (canonical_label(a) == canonical_label(b)), (a, b)


def test_which_labels_are_never_joined() -> None:
    different = [
        "1",
        "01",
        "001",
        "1.1",
        "1.10",
        "-1",
        "+1",
        "true",
        "yes",
        "1e0",
        "1.",
        "1,0",
        "10",
        "1.01",
        "1 .0",
    ]
    assert len({canonical_label(label) for label in different}) == len(different)
    assert canonical_label("-1.000") == "-1"
    assert {canonical_label(label) for label in ("true", "True", "TRUE", "tRuE")} == {"true"}
    assert {
        folded_label(label) for label in ("pos", "Pos", "POS", " pos", "ｐｏｓ", "p\u200bos")
    } == {"pos"}
    assert folded_label("very  good") == folded_label("Very\u00a0Good")
    assert folded_label("Very_good") == folded_label("very good")
    assert folded_label("very good") != folded_label("verygood")
    assert choice_number("1.0", ("a", "b"), 0) == 1


def test_models_with_both_classes_stay_as_they_are(tmp_path: Path) -> None:
    path = write_labels(tmp_path / "a.csv", ["1", "1.0", "Pos", "pos"])
    schema = Schema(
        task="classification", text=("text",), label=("label",), labels=("1", "1.0", "Pos", "pos")
    )
    for join in (False, True):
        reader = RowReader(path, ReadOptions(join_labels=join))
        assert [item.label for item in items(reader, schema, TASKS)] == ["1", "1.0", "Pos", "pos"]


def test_labels_in_other_cases_are_counted_in_a_warning_and_joined_by_one_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    path = write_labels(
        tmp_path / "a.csv", ["pos", "neg", "Pos", " pos", "NEG", "ｎｅｇ", "neg", "pos", "neg"] * 8
    )
    assert main(["check", str(path), "--model", str(model)]) == 0
    report = capsys.readouterr().out
    assert (
        "warning: labels that differ only in case, width or spaces are different classes" in report
    )
    assert "'neg' (24) and 'NEG' (8) and 'ｎｅｇ' (8); 'pos' (24) and 'Pos' (8)" in report
    assert main(["check", str(path), "--model", str(model), "--join-labels"]) == 0
    report = capsys.readouterr().out
    assert "differ only in case" not in report
    assert "2 different values: neg, pos" in report
    assert "one label in several spellings, read as 'pos': 'pos' (24), 'Pos' (8)" in report
    schema, labels, _ = labels_of(path, ReadOptions(join_labels=True))
    assert schema.labels == ("neg", "pos")
    assert labels[:9] == ["pos", "neg", "pos", "pos", "neg", "neg", "neg", "pos", "neg"]


def test_evaluation_data_in_another_case_are_refused_with_the_option(tmp_path: Path) -> None:
    schema = Schema(task="classification", text=("text",), label=("label",), labels=("neg", "pos"))
    path = write_labels(tmp_path / "a.csv", ["Pos", "NEG"])
    with pytest.raises(BertworksError, match="the label 'Pos' is not known") as error:
        list(items(RowReader(path), schema, TASKS))
    assert "did you mean 'pos'? --join-labels reads it so" in str(error.value.hint)
    labels = [
        item.label for item in items(RowReader(path, ReadOptions(join_labels=True)), schema, TASKS)
    ]
    assert labels == ["pos", "neg"]


def test_several_labels_and_tags_are_joined_alike(tmp_path: Path) -> None:
    rows = [
        {"text": f"a film {n}", "labels": labels}
        for n, labels in enumerate([["1", "1.0"], ["2"], ["1"]] * 5)
    ]
    reader = RowReader(rows)
    schema, _ = infer_schema(reader, TASKS, task="multilabel")
    assert schema.labels == ("1", "2")
    assert [item.label for item in items(reader, schema, TASKS)][:3] == [("1",), ("2",), ("1",)]
    tagged = [
        {"tokens": ["Anna", "runs"], "tags": ["NOUN", tag]} for tag in ["VERB"] * 6 + ["Verb"] * 2
    ]
    reader = RowReader(tagged, ReadOptions(join_labels=True))
    schema, _ = infer_schema(reader, TASKS)
    assert schema.labels == ("NOUN", "VERB")
    assert {item.label for item in items(reader, schema, TASKS)} == {("NOUN", "VERB")}


def test_groups_written_in_two_ways_stay_together(tmp_path: Path) -> None:
    rows = [
        {"text": f"a long film number {n}", "label": "xy"[n % 2], "g": g}
        for n, g in enumerate(["1", "1.0"] * 6)
    ]
    reader = RowReader(rows)
    schema, _ = infer_schema(reader, TASKS, group="g")
    assert {item.document for item in items(reader, schema, TASKS)} == {"1"}


def test_what_was_trained_on_two_spellings_has_one_class(tmp_path: Path, model: Path) -> None:
    path = write_labels(tmp_path / "a.csv", ["0", "1", "0.0", "1.0"] * 10)
    report = bw.check_file(path, model=model)
    assert report.labels.keys() == {"0", "1"}


@pytest.mark.parametrize(
    ("value", "what"), [("", "the label in 'rude' is missing"), ("perhaps", "holds 'perhaps'")]
)
def test_a_flag_is_0_or_1(value: str, what: str) -> None:
    assert flag_of("1", "rude", "d.csv:2")
    assert not flag_of("no", "rude", "d.csv:2")
    with refusal(what, "write 1 where the label is true, 0 where it is not"):
        flag_of(value, "rude", "d.csv:2")
