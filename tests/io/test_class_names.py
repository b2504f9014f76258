"""Classes that `datasets` stores as numbers keep their names: in Arrow tables, Parquet files, data
sets in memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import bertworks as bw
from bertworks.datasets.reader import RowReader
from bertworks.inference.predictor import predict_file
from bertworks.io.class_names import ClassNames

CLASSES = {"names": ["neg", "pos"], "_type": "ClassLabel"}
TAGS = {"names": ["O", "B-PER", "I-PER", "B-LOC"], "_type": "ClassLabel"}
QUICK: dict[str, Any] = {"device": "cpu", "overrides": ["epochs=1"]}


def table_of(columns: dict[str, list[Any]], features: dict[str, Any]) -> pyarrow.Table:
    """A table with the metadata that `Dataset.to_parquet` writes."""
    metadata = json.dumps({"info": {"features": features}})
    return pyarrow.table(columns).replace_schema_metadata({"huggingface": metadata})


def reviews(count: int = 60) -> pyarrow.Table:
    columns: dict[str, list[Any]] = {"text": [], "label": []}
    for number in range(count):
        columns["text"].append(f"a {'good' if number % 2 else 'bad'} film number {number}")
        columns["label"].append(number % 2)
    return table_of(columns, {"text": {"dtype": "string", "_type": "Value"}, "label": CLASSES})


def sentences(count: int = 40, kind: str = "List") -> pyarrow.Table:
    columns: dict[str, list[Any]] = {"tokens": [], "ner_tags": []}
    for number in range(count):
        columns["tokens"] += [
            ["Anna", "Smith", "in", "Paris", str(number)],
            ["Tom", "runs", str(number)],
        ]
        columns["ner_tags"] += [[1, 2, 0, 3, 0], [1, 0, 0]]
    words = {"feature": {"dtype": "string", "_type": "Value"}, "_type": kind}
    return table_of(columns, {"tokens": words, "ner_tags": {"feature": TAGS, "_type": kind}})


def written(table: pyarrow.Table, path: Path) -> Path:
    parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("place", ["file", "memory"])
def test_a_model_learns_the_names_of_classes(place: str, model: Path, tmp_path: Path) -> None:
    table = reviews()
    data: Any = table if place == "memory" else written(table, tmp_path / "reviews.parquet")
    report = bw.check_file(data, model=model)
    assert "classes of 'label' by their names: 0 neg, 1 pos" in report.notes
    predictor = bw.finetune(data, model=model, output=tmp_path / "out", **QUICK)
    assert predictor.classes_.tolist() == ["neg", "pos"]
    figures = bw.evaluate_task(tmp_path / "out", data, device="cpu")
    assert figures["unknown_labels"] == {}
    assert figures["rows"] == 60
    list(predict_file(tmp_path / "out", data, tmp_path / "predicted.jsonl", device="cpu"))
    rows = [
        json.loads(line)
        for line in (tmp_path / "predicted.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [row["label"] for row in rows] == ["neg", "pos"] * 30
    assert {row["predicted_label"] for row in rows} <= {"neg", "pos"}


@pytest.mark.parametrize("kind", ["List", "Sequence", "LargeList"])
def test_a_model_learns_entities_from_the_names_of_tags(
    kind: str, model: Path, tmp_path: Path
) -> None:
    path = written(sentences(kind=kind), tmp_path / "entities.parquet")
    report = bw.check_file(path, model=model)
    assert report.task == "tagging"
    assert not [note for note in report.notes if "mark no entities" in note]
    if kind != "List":
        return
    predictor = bw.finetune(path, model=model, output=tmp_path / "out", **QUICK)
    assert set(predictor.classes_) == {"O", "B-PER", "I-PER", "B-LOC"}
    figures = bw.evaluate_task(tmp_path / "out", path, device="cpu")
    assert "f1" in " ".join(figures["figures"]).lower()
    assert figures["unknown_labels"] == {}


def test_names_within_lists_and_objects() -> None:
    """Each layout in which `datasets` has described classes, also as its earlier versions did."""
    span = {"start": {"dtype": "int32", "_type": "Value"}, "type": CLASSES}
    features = {
        "objects": {"feature": span, "_type": "Sequence"},
        "objects of early versions": [span],
        "lists of lists": {"feature": {"feature": CLASSES, "_type": "List"}, "_type": "List"},
        "object": {"type": CLASSES, "other": {"dtype": "string", "_type": "Value"}},
        "numbers": {"dtype": "int64", "_type": "Value"},
        "picture": {"_type": "Image"},
        "names": CLASSES,
    }
    row = {
        "objects": {"start": [4, 7], "type": [0, 1]},
        "objects of early versions": [{"start": 4, "type": 1}],
        "lists of lists": [[0, 1], [], None],
        "object": {"type": 1, "other": "x"},
        "numbers": 1,
        "picture": None,
        "names": "pos",
        "a column that is not described": 1,
    }
    assert ClassNames(features).named_row(row, "row 1") == {
        "objects": {"start": [4, 7], "type": ["neg", "pos"]},
        "objects of early versions": [{"start": 4, "type": "pos"}],
        "lists of lists": [["neg", "pos"], [], None],
        "object": {"type": "pos", "other": "x"},
        "numbers": 1,
        "picture": None,
        "names": "pos",
        "a column that is not described": 1,
    }


def test_minus_one_is_a_missing_label_and_other_numbers_are_errors(tmp_path: Path) -> None:
    features = {"label": CLASSES}
    path = written(
        table_of({"text": ["a", "b", "c"], "label": [0, -1, None]}, features),
        tmp_path / "a.parquet",
    )
    assert [row.values["label"] for row in RowReader(path)] == ["neg", None, None]
    wrong = table_of({"text": ["a", "b"], "label": [0, 2]}, features)
    for data in (wrong, written(wrong, tmp_path / "b.parquet")):
        with pytest.raises(
            bw.BertworksError, match="'label' holds 2, and its classes are numbered from 0 to 1"
        ) as error:
            list(RowReader(data))
        assert str(error.value.where).endswith(":2")


@pytest.mark.parametrize("metadata", ["{", "[" * 100_000, '{"a": \ud800}'])
def test_damaged_metadata_are_an_error(metadata: str, tmp_path: Path) -> None:
    content = metadata.encode("utf-8", "surrogatepass")
    table = pyarrow.table({"text": ["a"], "label": [1]}).replace_schema_metadata(
        {"huggingface": content}
    )
    for data in (table, written(table, tmp_path / "a.parquet")):
        with pytest.raises(
            bw.BertworksError, match="names of classes in the metadata cannot be read"
        ) as error:
            list(RowReader(data))
        assert "replace_schema_metadata(None)" in str(error.value.hint)
    assert [row.values["label"] for row in RowReader(table.replace_schema_metadata(None))] == [1]


@pytest.mark.parametrize(
    "metadata", ["[]", "{}", '{"info": 3}', '{"info": {"features": [1]}}', "null"]
)
def test_metadata_without_classes_change_nothing(metadata: str) -> None:
    table = pyarrow.table({"text": ["a"], "label": [1]}).replace_schema_metadata(
        {"huggingface": metadata}
    )
    assert [row.values for row in RowReader(table)] == [{"text": "a", "label": 1}]


def test_a_score_reads_the_names_of_classes(model: Path, tmp_path: Path) -> None:
    """A column of `datasets` knows the data set that it belongs to; a model compares its names, not
    its numbers."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset(reviews())
    predictor = bw.finetune(data, model=model, output=tmp_path / "out", **QUICK)
    names = np.array(["neg", "pos"])[np.array(list(data["label"]))]
    expected = predictor.score(list(data["text"]), names)
    assert predictor.score(data["text"], data["label"]) == expected
    columns = {"text": data["text"], "label": data["label"]}
    assert [row.values["label"] for row in RowReader(columns)] == names.tolist()


def test_data_sets_in_memory_and_their_files(tmp_path: Path) -> None:
    """What the library itself writes and holds in memory, a stream included."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["neg", "pos"]),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
            "object": {"kind": datasets.ClassLabel(names=["x", "y"])},
        }
    )
    columns = {
        "text": ["a b", "c"],
        "label": [1, -1],
        "tags": [[0, 1], [0]],
        "object": [{"kind": 1}, {"kind": 0}],
    }
    data = datasets.Dataset.from_dict(columns, features=features)
    expected = [
        {"text": "a b", "label": "pos", "tags": ["O", "B-PER"], "object": {"kind": "y"}},
        {"text": "c", "label": None, "tags": ["O"], "object": {"kind": "x"}},
    ]
    data.to_parquet(tmp_path / "a.parquet")
    for source in (
        data,
        data.to_iterable_dataset(),
        data.with_format("numpy"),
        tmp_path / "a.parquet",
    ):
        assert [row.values for row in RowReader(source)] == expected
