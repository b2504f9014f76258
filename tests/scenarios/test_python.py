"""The first hour in Python: rows in memory in every form, plain settings, probabilities, scores,
frames, progress; one text or several paths in the wrong place."""

import datetime
import gc
import inspect
import json
import re
import sys
import types
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings, strategies as some

import bertworks as bw
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.reader import RowReader
from bertworks.io.file_job import write_rows
from bertworks.io.tables import StoredRows, rows_of
from bertworks.runs.finetune_job import FinetuneRequest
from bertworks.runs.pretrain import Request
from bertworks.tasks.registry import TASKS
from tests.support import ROOT
from tests.support.fine import (
    FILES_OF_TASKS,
    write_examples,
    write_reviews,
    write_squad,
)
from tests.support.tiny import write_corpus, write_recipe

FAST = {
    "epochs": 2,
    "learning_rate": 2e-3,
    "device": "cpu",
    "method": "full",
    "validation": "split",
}
FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {}


def form(function: Callable[[list[dict[str, Any]]], Any]) -> Callable[[list[dict[str, Any]]], Any]:
    FORMS[function.__name__] = function
    return function


class Frame:
    """A DataFrame as pandas has it, as far as bertworks uses it."""

    def __init__(self, rows: list[dict[str, Any]], index: Any = None):
        self.rows, self.columns, self.index = rows, list(rows[0]) if rows else [], index

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [dict(zip(self.columns, row.values())) for row in self.rows]

    def __iter__(self) -> Any:
        return iter(self.columns)

    def add_prefix(self, prefix: str) -> "Frame":
        return Frame(
            [{f"{prefix}{name}": value for name, value in row.items()} for row in self.rows],
            self.index,
        )


@form
def dicts(rows: list[dict[str, Any]]) -> Any:
    return rows


@form
def generator(rows: list[dict[str, Any]]) -> Any:
    return iter(rows)


@form
def columns(rows: list[dict[str, Any]]) -> Any:
    return {name: [row[name] for row in rows] for name in rows[0]}


@form
def arrays(rows: list[dict[str, Any]]) -> Any:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@form
def frame(rows: list[dict[str, Any]]) -> Any:
    return Frame(rows)


@form
def arrow(rows: list[dict[str, Any]]) -> Any:
    return pyarrow.Table.from_pylist(rows)


@form
def polars(rows: list[dict[str, Any]]) -> Any:
    return types.SimpleNamespace(columns=list(rows[0]), to_dicts=lambda: rows)


@form
def dataset(rows: list[dict[str, Any]]) -> Any:
    return types.SimpleNamespace(
        column_names=list(rows[0]), to_list=lambda: rows, to_dict=lambda size: {}
    )


@form
def pandas(rows: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("pandas").DataFrame(rows)


def reviews(tmp_path: Path, count: int = 60) -> list[dict[str, Any]]:
    rows = [row.values for row in RowReader(write_reviews(tmp_path / "reviews.csv", count))]
    return [{"text": row["text"], "label": row["label"]} for row in rows]


# Rows


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_rows_of_the_file(name: str, tmp_path: Path) -> None:
    rows = reviews(tmp_path)
    reader = RowReader(FORMS[name](rows))
    # it can be read again
    assert [row.values for row in reader] == rows == [row.values for row in reader]
    assert [row.where for row in reader][:2] == ["rows:1", "rows:2"]


CELLS = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(1 << 60), 1 << 60)
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(some.characters(exclude_categories=["Cs"])),
    lambda inner: (
        some.lists(inner, max_size=3) | some.dictionaries(some.text("abc"), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=30)
@given(some.lists(some.fixed_dictionaries({"text": CELLS, "other": CELLS}), min_size=1, max_size=4))
def test_values_of_json_stay_as_they_are(rows: list[dict[str, Any]]) -> None:
    file = StoredRows(rows)
    assert [
        json.loads(line) for line in Path(file).read_text(encoding="utf-8").split("\n")[:-1]
    ] == rows
    assert [dict(row) for row in rows_of(columns(rows))] == rows


def test_values_of_numpy_and_pandas_become_those_of_json() -> None:
    missing = (
        type("NAType", (), {})(),
        type("NaTType", (), {})(),
        float("nan"),
        np.float32("nan"),
        None,
    )
    assert [
        row.values["x"] for row in RowReader([{"x": value} for value in ("text", *missing)])
    ] == [
        "text",
        *[None] * 5,
    ]
    values = {
        "i": np.int64(3),
        "f": np.float32(0.5),
        "a": np.arange(2),
        "words": ("a", "b"),
        "labels": {"b", "a"},
        "day": datetime.date(2024, 1, 2),
        "price": Decimal("1.50"),
        "b": np.bool_(True),
        7: "seven",
        "text": "\ud83d",
    }
    file = StoredRows([values])
    assert json.loads(Path(file).read_text(encoding="utf-8")) == {
        "i": 3,
        "f": 0.5,
        "a": [0, 1],
        "words": ["a", "b"],
        "labels": ["a", "b"],
        "day": "2024-01-02",
        "price": "1.50",
        "b": True,
        "7": "seven",
        "text": "\ud83d",
    }
    with pytest.raises(bw.BertworksError, match="half a character"):
        list(RowReader([values]))


def test_the_file_of_the_rows_is_deleted() -> None:
    reader = RowReader([{"text": "a"}])
    path = reader.path
    assert path.exists()
    del reader
    gc.collect()
    assert not path.exists()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (["a.csv", "b.csv"], "row 1 is 'a.csv', not a dict"),
        ([{"text": "a"}, ["b"]], r"row 2 is \['b'\], not a dict"),
        ([], "there are no rows"),
        ({"text": [], "label": []}, "there are no rows"),
        ({"text": "a", "label": "b"}, "list of 'text' values, not one"),
        ({"text": ["a", "b"], "label": 3}, "list of 'label' values, not 3"),
        ({"text": ["a", "b"], "label": ["x"]}, "different lengths: text 2, label 1"),
        ({"train": Frame([{"text": "a"}])}, r"(?s)several tables: train.*DATA\['train'\]"),
        (
            {"train": pyarrow.table({"text": ["a"]}), "test": 3},
            r"(?s)several tables: train, test.*DATA\['train'\]",
        ),
        (3, "list of rows, not 3"),
        (None, "list of rows, not None"),
        (b"a.csv", "not one row"),
    ],
)
def test_what_are_no_rows_is_refused(data: Any, what: str, model: Path) -> None:
    for call in (bw.finetune, bw.check_file, bw.make_finetune_request):
        if data is not None or call is bw.finetune:
            with pytest.raises(bw.UsageError, match=what):
                call(data, model=model)


def test_two_columns_of_one_name_are_refused() -> None:
    data = Frame([{"text": "a", "label": "b"}])
    data.columns = ["text", "text"]
    with pytest.raises(bw.UsageError, match="two columns are named 'text'"):
        RowReader(data)
    with pytest.raises(bw.UsageError, match="two columns are named 'x'"):
        RowReader(pyarrow.table([["a"], ["b"]], names=["x", "x"]))


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("label", None, "rows:3: the label in 'label' is missing"),
        ("label", float("nan"), "rows:3: the label in 'label' is missing"),
        ("label", {"a": 1}, "rows:3: the label in 'label' holds {'a': 1}"),
        ("text", 3.5, "rows:3: 'text' holds 3.5, not a text"),
        ("text", b"film", "rows:3: 'text' holds [102, 105, 108, 109], not a text"),
    ],
)
def test_a_bad_value_is_named_by_row_and_column(
    column: str, value: Any, what: str, model: Path, tmp_path: Path
) -> None:
    rows = reviews(tmp_path)
    rows[2][column] = value
    with pytest.raises(bw.BertworksError) as error:
        bw.finetune(rows, model=model, text="text", label="label", task="classification")
    assert what in str(error.value)


# Fine-tuning


@pytest.fixture(scope="module")
def trained(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], Path]:
    """Rows, and the folder of a model that was fine-tuned on them."""
    folder = tmp_path_factory.mktemp("python")
    rows = reviews(folder)
    bw.finetune(rows, dev=rows[:20], model=model, output=folder / "out", **FAST)
    return rows, folder / "out"


def test_rows_train_the_model_of_their_file(
    trained: tuple[list[dict[str, Any]], Path], model: Path, tmp_path: Path
) -> None:
    rows, folder = trained
    for name, part in (("train", rows), ("dev", rows[:20])):
        write_rows(tmp_path / f"{name}.jsonl", ["text", "label"], part)
    bw.finetune(
        tmp_path / "train.jsonl",
        dev=tmp_path / "dev.jsonl",
        model=model,
        output=tmp_path / "out",
        **FAST,
    )
    assert (folder / "model.safetensors").read_bytes() == (
        tmp_path / "out" / "model.safetensors"
    ).read_bytes()
    assert (
        "rows:" in (folder / "errors.csv").read_text()
        or "dev rows:" in (folder / "errors.csv").read_text()
    )


def test_the_request_is_that_of_the_content(
    trained: tuple[list[dict[str, Any]], Path], model: Path
) -> None:
    rows, folder = trained
    before = (folder / "model.safetensors").stat().st_mtime_ns
    for make in (dicts, columns, frame, arrow):
        bw.finetune(make(rows), dev=make(rows[:20]), model=model, output=folder, **FAST)
    # finished: it is not trained again
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    other = [{**rows[0], "text": "another film"}, *rows[1:]]
    for data, dev in ((other, rows[:20]), (rows, rows[:21])):
        with pytest.raises(bw.UsageError, match=r"other settings:\n  (data|dev)_sha256"):
            bw.finetune(data, dev=dev, model=model, output=folder, **FAST)


def test_settings_are_those_of_the_recipe(tmp_path: Path) -> None:
    rows = reviews(tmp_path, 10)
    request = bw.make_finetune_request(
        rows, epochs=3, learning_rate=2e-5, batch_size=8, max_length=32, overrides="seed=7"
    )
    assert request.overrides == (
        "seed=7",
        "optimizer.learning_rate=2e-05",
        "epochs=3",
        "batch_size=8",
        "max_length=32",
    )
    assert bw.make_finetune_request(rows, overrides="seed=7").overrides == ("seed=7",)
    for words in ("epochs=1", ["seed=1", "epochs=3"]):
        with pytest.raises(bw.UsageError, match="epochs is set twice"):
            bw.make_finetune_request(rows, epochs=3, overrides=words)
    with pytest.raises(bw.UsageError, match="learning_rate is set twice"):
        bw.make_finetune_request(
            rows, learning_rate=1e-3, overrides=["optimizer.learning_rate=1e-3"]
        )
    with pytest.raises(bw.UsageError, match="'epochs' sets nothing"):
        bw.make_finetune_request(rows, overrides="epochs")


def test_a_wrong_setting_is_refused(model: Path, tmp_path: Path) -> None:
    rows = reviews(tmp_path, 30)
    for setting, what in (
        ({"epochs": "three"}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_length": -1}, "max_l"),
    ):
        with pytest.raises(bw.UsageError, match=what):
            bw.finetune(rows, model=model, device="cpu", **setting)


def test_the_signature_has_every_field_of_a_request() -> None:
    words = inspect.signature(bw.finetune).parameters.keys()
    # `plan_trials` sets the folds, `make_finetune_request` the addresses of copies.
    assert FinetuneRequest.__dataclass_fields__.keys() - words == {"fold", "folds", "urls"}
    assert {"epochs", "learning_rate", "batch_size", "max_length", "progress"} <= words


# Predictions


@pytest.mark.parametrize("task", FILES_OF_TASKS)
def test_rows_and_texts_have_the_same_predictions_and_the_score_of_the_evaluation(
    task: str, model: Path, tmp_path: Path
) -> None:
    file = write_examples(tmp_path, task, 40)
    predictor = bw.finetune(file, model=model, output=tmp_path / "out", **FAST)
    rows, d = [dict(row.values) for row in RowReader(file)], predictor.description
    listed = [[row[column] for column in d.text] for row in rows]
    texts = [part[0] if len(part) == 1 else tuple(part) for part in listed]
    assert predictor.predict(rows) == predictor.predict(texts) == predictor.predict(Frame(rows))
    assert bw.load(tmp_path / "out", device="cpu").predict(rows) == predictor.predict(rows)
    figures = bw.evaluate_task(tmp_path / "out", file, device="cpu")["figures"]
    assert bw.evaluate_task(tmp_path / "out", rows, device="cpu")["figures"] == figures
    labels = [row[d.label[0]] for row in rows]
    assert predictor.score(rows, labels) == pytest.approx(figures[TASKS[d.task].metrics[0]])
    assert predictor.score(texts, labels) == predictor.score(rows, labels)
    assert bw.load(tmp_path / "out", device="cpu").predictor().score(
        rows, labels
    ) == predictor.score(rows, labels)
    with pytest.raises(bw.UsageError, match="40 texts and 39 labels"):
        predictor.score(texts, labels[1:])
    if task in ("classification", "multilabel"):
        scores = [answer["scores"] for answer in predictor.predict(texts, probabilities=True)]
        p = predictor.predict_proba(texts)
        assert p.shape == (40, len(predictor.classes_))
        assert [
            dict(zip(predictor.classes_.tolist(), row.tolist(), strict=True)) for row in p
        ] == scores
        assert predictor.predict_proba([]).shape == (0, len(predictor.classes_))
    else:
        with pytest.raises(bw.UsageError, match="no labels of a whole text"):
            predictor.predict_proba(texts)


def test_labels_are_those_of_the_training(trained: tuple[list[dict[str, Any]], Path]) -> None:
    rows, folder = trained
    predictor = bw.Predictor(folder, device="cpu")
    assert predictor.classes_.tolist() == ["neg", "pos"]
    best = predictor.classes_[predictor.predict_proba(rows).argmax(1)].tolist()
    assert best == [answer["label"] for answer in predictor.predict(rows)]
    with pytest.raises(
        bw.BertworksError, match=r"(?s)label 2: the label 'poss' is not known.*did you mean 'pos'"
    ):
        predictor.score(["a film", "a film"], ["pos", "poss"])
    with pytest.raises(bw.BertworksError, match="label 1: the label in 'labels' is missing"):
        predictor.score(["a film"], [None])
    with pytest.raises(bw.UsageError, match="list of labels, not one label"):
        predictor.score(["a film"], "pos")


def test_rows_without_the_column_or_its_value_are_refused(
    trained: tuple[list[dict[str, Any]], Path],
) -> None:
    predictor = bw.Predictor(trained[1], device="cpu")
    # the only column
    assert predictor.predict([{"body": "a film"}]) == predictor.predict(["a film"])
    with pytest.raises(bw.UsageError, match="no column 'text'; the columns are: body, id"):
        predictor.predict({"body": ["a film"], "id": [3]})
    with pytest.raises(bw.BertworksError, match="rows:2: the text in 'text' is empty"):
        predictor.predict({"text": ["a film", None], "id": [3, 4]})


def test_predictions_of_a_frame(
    trained: tuple[list[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, folder = trained
    predictor = bw.Predictor(folder, device="cpu")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        bw.BertworksError, match=r"(?s)a DataFrame needs a package.*pip install pandas"
    ):
        predictor.predict_frame(rows)
    fake = types.SimpleNamespace(DataFrame=Frame)
    monkeypatch.setitem(sys.modules, "pandas", fake)
    found = predictor.predict_frame(Frame(rows, index="the index"), probabilities=True)
    columns = ["predicted_label", "predicted_score", "predicted_scores", "truncated_tokens"]
    assert (found.index, found.columns) == ("the index", columns)
    assert [row["predicted_label"] for row in found.rows] == [
        answer["label"] for answer in predictor.predict(rows)
    ]
    assert predictor.predict_frame(rows).index is None  # a list has a method of that name


def test_with_pandas(trained: tuple[list[dict[str, Any]], Path]) -> None:
    frames = pytest.importorskip("pandas")
    rows, folder = trained
    predictor = bw.Predictor(folder, device="cpu")
    table = frames.DataFrame(rows, index=range(100, 100 + len(rows)))
    joined = table.join(predictor.predict_frame(table))
    assert joined["predicted_label"].tolist() == [
        answer["label"] for answer in predictor.predict(table["text"])
    ]


def test_files_of_rows_in_memory(
    trained: tuple[list[dict[str, Any]], Path], model: Path, tmp_path: Path
) -> None:
    rows, folder = trained
    list(bw.predict_file(folder, Frame(rows), tmp_path / "out.jsonl", device="cpu"))
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["predicted_label"] for row in found] == [
        answer["label"] for answer in bw.Predictor(folder).predict(rows)
    ]
    list(bw.embed_file(model, rows, tmp_path / "out.npy", text="text", device="cpu"))
    assert len(np.load(tmp_path / "out.npy")) == len(rows)
    list(bw.index_file(rows, tmp_path / "index", model=model, text="text", device="cpu"))
    assert len(bw.Index(tmp_path / "index", device="cpu")) == len(rows)


# One text, one path


def test_one_text_is_no_list_of_letters(
    trained: tuple[list[dict[str, Any]], Path], model: Path, tmp_path: Path
) -> None:
    text, predictor, tokenizer = (
        "the [MASK] film",
        bw.Predictor(trained[1], device="cpu"),
        bw.load(model).tokenizer,
    )
    index = bw.Index.create(tmp_path / "index", model, device="cpu")
    calls: list[Callable[[], Any]] = [
        lambda: list(bw.fill(model, text)),
        lambda: list(bw.score(model, text)),
        lambda: bw.embed(model, text),
        lambda: predictor.predict(text),
        lambda: predictor.predict_proba(text),
        lambda: predictor.score(text, ["pos"]),
        lambda: index.add(text),
        lambda: index.delete("12"),
        lambda: index.add(["a", "b"], ids="12"),
        lambda: bw.load(model).fill(text),
        lambda: bw.load(model).score(text),
        lambda: tokenizer.encode_batch(text),
        lambda: tokenizer.ids(text),
        lambda: list(tokenizer.arrays(text)),
        lambda: tokenizer.unknown(text),
        lambda: bw.train_vocabulary(text, bw.VocabularyConfig(size=100)),
        lambda: bw.Embedder(model).embed(text),
    ]
    for call in calls:
        with pytest.raises(bw.UsageError, match=r"expected a list of \w+, not one \w+"):
            call()
    index.add([text])
    calls = [
        lambda: index.search([text]),
        lambda: index.search([text], ranking="bm25"),
        lambda: tokenizer.encode([text]),
    ]
    for call in calls:
        with pytest.raises(bw.UsageError, match=r"expected one query|not a text"):
            call()
    with pytest.raises(bw.UsageError, match="list of ids, not one id"):
        tokenizer.decode("12")
    for call in (lambda: bw.split_sentences([text]), lambda: bw.explain(model, [text])):
        with pytest.raises(bw.UsageError, match="text"):
            call()


def test_one_name_is_one_name(
    trained: tuple[list[dict[str, Any]], Path], model: Path, tmp_path: Path
) -> None:
    rows, folder = trained
    body = [{"title": "x y z", "body": row["text"], "label": row["label"]} for row in rows]
    assert "'body'" in " ".join(bw.check_file(body, model=model, text="body", label="label").notes)
    list(bw.predict_file(folder, body, tmp_path / "out.jsonl", text="body", device="cpu"))
    assert bw.evaluate_task(folder, body, text="body", label="label", device="cpu")["rows"] == len(
        rows
    )
    request = bw.make_finetune_request(rows, text="text", label="label", overrides="seed=3")
    assert (request.text, request.label, request.overrides) == (("text",), ("label",), ("seed=3",))
    assert len(bw.plan_trials(request, sweep="batch_size=8,16")) == 2
    (tmp_path / "a.txt").write_text("A text. " * 20)
    calls: list[Callable[[], Any]] = [
        lambda: bw.make_finetune_request(rows, overrides=3),
        lambda: bw.make_finetune_request(rows, text=3),
        lambda: bw.plan_trials(request, sweep=3),
        lambda: list(bw.predict_file(folder, rows, tmp_path / "o.csv", text=3)),
        lambda: list(bw.pretrain(str(tmp_path / "a.txt"), tmp_path / "run", overrides=3)),
        lambda: list(bw.pretrain(3, tmp_path / "run")),
        lambda: bw.CorpusReader(3),
        lambda: bw.evaluate_mlm(model, 3),
    ]
    for call in calls:
        with pytest.raises(bw.UsageError, match=r"expected a list of (names|paths), not 3"):
            call()
    with pytest.raises(bw.UsageError, match="nothing_there: no such field"):
        list(bw.pretrain(str(tmp_path / "a.txt"), tmp_path / "run", overrides="nothing_there=1"))


@pytest.mark.parametrize("path", [["a", "b"], {"a": 1}, 3, b"a"])
def test_what_is_no_path_is_refused(
    path: Any, trained: tuple[list[dict[str, Any]], Path], model: Path, tmp_path: Path
) -> None:
    rows, folder = trained
    request = bw.make_finetune_request(rows, model=model)
    predictor, file = bw.Predictor(folder, device="cpu"), write_reviews(tmp_path / "r.csv", 20)
    calls: list[Callable[[], Any]] = [
        lambda: bw.load(path),
        lambda: bw.Predictor(path),
        lambda: bw.Embedder(path),
        lambda: bw.embed(path, ["a"]),
        lambda: list(bw.fill(path, ["a"])),
        lambda: list(bw.score(path, ["a"])),
        lambda: bw.explain(path, "a"),
        lambda: bw.finetune(rows, model=path),
        lambda: bw.finetune(rows, model=model, output=path),
        lambda: list(bw.finetune_events(path, request)),
        lambda: bw.check_file(file, model=path),
        lambda: list(bw.run_trials(path, bw.plan_trials(request, seeds=2))),
        lambda: predictor.save(path),
        lambda: list(bw.predict_file(path, file, tmp_path / "o.csv")),
        lambda: list(bw.predict_file(folder, file, path)),
        lambda: list(bw.embed_file(model, file, path)),
        lambda: bw.evaluate_task(path, file),
        lambda: list(bw.index_file(file, path, model=model)),
        lambda: bw.Index(path),
        lambda: bw.load_model(path),
        lambda: bw.Index.create(path, model),
        lambda: list(bw.convert(model, path)),
        lambda: list(bw.convert(path, "x")),
        lambda: list(bw.export(path, tmp_path / "x")),
        lambda: list(bw.export(model, path)),
        lambda: bw.Shards.open(path),
        lambda: bw.Tokenizer.load(path),
        lambda: list(bw.pretrain([file], path)),
        lambda: list(bw.evaluate_glue(path, "x")),
        lambda: list(bw.evaluate_retrieval(path, model)),
        lambda: list(bw.evaluate_blimp(model, path)),
        lambda: list(bw.push(path, "me/model")),
        lambda: list(bw.import_checkpoint(path, tmp_path / "x")),
        lambda: list(bw.evaluate_probe(model, path)),
        lambda: list(bw.evaluate_ablation("table6", [file], path)),
    ]
    for call in calls:
        with pytest.raises(bw.UsageError, match=r"expected one [\w ]+, not"):
            call()


# What is shown


def test_finetune_shows_its_progress(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bw.finetune(reviews(tmp_path, 30), model=model, output=tmp_path / "out", progress=True, **FAST)
    assert (
        f"\r{read_json(tmp_path / 'out' / 'finished.json')['text'].splitlines()[0]}"[:40]
        in capsys.readouterr().err
    )


def test_what_a_notebook_shows(trained: tuple[list[dict[str, Any]], Path], model: Path) -> None:
    rows, folder = trained
    predictor = bw.Predictor(folder, device="cpu")
    assert repr(predictor) == f"<classification model {folder}: reads text, 2 labels: neg, pos>"
    assert (
        predictor._repr_html_()
        == f"<pre>&lt;classification model {folder}: reads text, 2 labels: neg, pos&gt;</pre>"
    )
    page = bw.explain(folder, "a <good> film", device="cpu")._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert page.count("<") == 2  # the page itself is escaped
    report = bw.check_file(
        [{"text": row["text"], "label": f"<{row['label']}>"} for row in rows], model=model
    )
    assert "&lt;pos&gt;" in report._repr_html_()


GUIDE = ROOT / "docs" / "guides" / "python.md"


@pytest.mark.parametrize("with_pandas", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_code_of_the_guide_runs(
    with_pandas: bool,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if with_pandas:
        pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    code = [block for block in blocks if with_pandas or "import pandas" not in block]
    assert len(code) > 5
    for block in code:
        exec(block.replace('"minilm"', repr(str(model))), names)
    out = capsys.readouterr().out
    assert "['neg' 'pos']" in out
    assert "next: bertworks predict reviews-model-2" in out


# Raw text and answers in memory


def test_a_pretraining_reads_rows_in_memory_and_resumes(tmp_path: Path) -> None:
    rows = [
        json.loads(line) for line in write_corpus(tmp_path / "t.jsonl").read_text().splitlines()
    ]
    options = {
        "recipe": write_recipe(tmp_path / "r.toml", ("num_steps = 40", "num_steps = 2")),
        "workers": 1,
    }
    options = {name: str(value) if name == "recipe" else value for name, value in options.items()}
    for number, data in enumerate((rows, Frame(rows), {"text": [row["text"] for row in rows]})):
        list(bw.pretrain(data, tmp_path / str(number), device="cpu", **options))
        assert (tmp_path / str(number) / "model.safetensors").exists()
    list(bw.pretrain(str(tmp_path / "t.jsonl"), tmp_path / "file", device="cpu", **options))
    weights = {
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("0", "1", "2", "file")
    }
    assert len(weights) == 1
    begun = (tmp_path / "0" / "model.safetensors").stat().st_mtime_ns
    # the same rows: nothing is done again
    list(bw.pretrain(rows, tmp_path / "0", device="cpu", **options))
    assert (tmp_path / "0" / "model.safetensors").stat().st_mtime_ns == begun
    with pytest.raises(bw.UsageError, match="inputs"):
        list(bw.pretrain(rows[:-1], tmp_path / "0", device="cpu", **options))
    assert bw.evaluate_mlm(tmp_path / "0", rows, sequence_length=32) == bw.evaluate_mlm(
        tmp_path / "0", str(tmp_path / "t.jsonl"), sequence_length=32
    )
    assert [document.source for document in bw.CorpusReader(rows[:2])] == ["rows:1", "rows:2"]
    for empty in ([], {}):
        with pytest.raises(bw.UsageError):
            list(bw.pretrain(empty, tmp_path / "empty", **options))


def test_the_options_of_a_function_are_its_parameters() -> None:
    words = inspect.signature(bw.pretrain).parameters
    assert set(Request.__dataclass_fields__) <= words.keys()
    assert {"task", "text", "label", "group", "dev", "read", "validation"} <= inspect.signature(
        bw.check_file
    ).parameters.keys()
    for call in (bw.pretrain, bw.check_file, bw.finetune, bw.evaluate_glue):
        assert not [
            one
            for one in inspect.signature(call).parameters.values()
            if one.kind is one.VAR_KEYWORD
        ]
    with pytest.raises(TypeError, match="epoch"):
        bw.pretrain("text.txt", "out", epoch=3)  # type: ignore[call-arg]


def test_the_score_of_answers(model: Path, tmp_path: Path) -> None:
    predictor = bw.finetune(
        write_squad(tmp_path / "d.json", 24), model=model, output=tmp_path / "out", **FAST
    )
    context = "Anna lives in Oslo. Boris heard some music in Paris."
    texts = [("who heard music?", context), ("where does Anna live?", context)]
    found = [answer["answer"] for answer in predictor.predict(texts)]
    assert (
        predictor.score(texts, found)
        == predictor.score(texts, [[one, "another"] for one in found])
        == 1
    )
    assert predictor.score(texts, ["zzz", "zzz"]) == 0
    layout = [{"text": [one], "answer_start": [context.find(one)]} for one in found]
    assert predictor.score(texts, layout) == 1
    # the first has no answer
    assert predictor.score(texts, ["", found[1]]) == (1 if not found[0] else 0.5)
    with pytest.raises(bw.BertworksError, match="label 2"):
        predictor.score(texts, [found[0], 3.5])
    with pytest.raises(
        bw.BertworksError, match=r"cannot score.*\n.*predictor\(\)\.score\(texts, labels\)"
    ):
        bw.load(tmp_path / "out", device="cpu").score(["a text"])
