"""A fine-tuned model on labelled rows: what the run itself said of the same rows, in every task, and bad rows."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fine import (
    write_choices,
    write_conll,
    write_multilabel,
    write_pairs,
    write_reviews,
    write_spans,
    write_squad,
)
from served import write_head

from bertworks.checkpoints.storage import read_json
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.inference.predict import predict_file
from bertworks.models.packed_linear import cpu_supports_int8
from bertworks.runs.finetune import finetune

TASKS: dict[str, tuple[str, Callable[..., Path]]] = {
    "classification": ("d.csv", write_reviews),
    "multilabel": ("d.jsonl", write_multilabel),
    "regression": ("d.tsv", write_pairs),
    "tagging": ("d.conll", write_conll),
    "spans": ("d.json", write_spans),
    "qa": ("d.json", write_squad),
    "choice": ("d.csv", write_choices),
}


@pytest.mark.parametrize("task", TASKS)
def test_the_figures_are_those_of_the_run(task: str, model: Path, tmp_path: Path):
    name, write = TASKS[task]
    train = write(tmp_path / name, 60)
    dev = tmp_path / f"dev-{name}"
    dev.write_bytes(train.read_bytes())
    out = tmp_path / "out"
    settings = ["epochs=2", "optimizer.learning_rate=2e-3", "precision=fp32"]
    finetune(train, model=model, dev=dev, output=out, device="cpu", overrides=settings)
    told = read_json(out / "result.json")
    found = evaluate_task(out, dev, device="cpu", errors=tmp_path / "errors.csv")
    assert (found["task"], found["rows"], found["mistakes"]) == (task, told["rows"], told["mistakes"])
    named = [key for key in told["figures"] if key != "threshold"]  # a figure of the run, and not of the model
    assert {key: found["figures"][key] for key in named} == pytest.approx({key: told["figures"][key] for key in named})
    assert found["table"] == told["table"]
    assert (tmp_path / "errors.csv").read_bytes() == (out / "errors.csv").read_bytes()
    json.dumps(found)
    if cpu_supports_int8():
        check_eight_bits(out, dev, tmp_path / "predicted.jsonl")


def check_eight_bits(model: Path, data: Path, output: Path) -> None:
    """That they are beside what fp32 says, and say how far from it."""
    exact, rounded = (evaluate_task(model, data, device="cpu", precision=which) for which in ("fp32", "int8"))
    assert rounded["figures_fp32"] == exact["figures"]
    events = predict_file(model, data, output, device="cpu", precision="int8")
    (told,) = [event.fields for event in events if "compared" in event.fields]
    assert told["compared"] == exact["rows"]
    assert told.get("others", 0) <= 0.1 * exact["rows"]
    assert 0 <= told.get("largest", 0) < 0.1


@pytest.fixture(scope="module")
def classifier(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    finetune(write_reviews(folder / "d.csv"), model=model, output=folder / "out", device="cpu", overrides=["epochs=1"])
    return folder / "out"


def write_rows(path: Path, *rows: tuple[str, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_rows_of_one_label_can_be_judged(classifier: Path, tmp_path: Path):
    data = write_rows(tmp_path / "t.csv", ("text", "label"), ("a good film", "pos"), ("a great story", "pos"))
    found = evaluate_task(classifier, data, device="cpu")
    assert found["rows"] == 2
    assert found["table"]["pos"]["support"] == 2


def test_an_unknown_label_is_named_with_its_line(classifier: Path, tmp_path: Path):
    data = write_rows(tmp_path / "t.csv", ("text", "label"), ("a good film", "pos"), ("so so", "neutral"))
    with pytest.raises(BertworksError, match=r"t\.csv:3.*'neutral'") as raised:
        evaluate_task(classifier, data, device="cpu")
    assert "neg, pos" in str(raised.value)


def test_errors_of_a_model_that_names_no_columns(tmp_path: Path):
    """As those of transformers: the columns are those of the data."""
    write_head(tmp_path / "model", task="classification", labels=("neg", "pos"))
    (tmp_path / "d.csv").write_text("review,label\na good film,pos\na good film,neg\n")
    found = evaluate_task(tmp_path / "model", tmp_path / "d.csv", errors=tmp_path / "errors.csv", device="cpu")
    with (tmp_path / "errors.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (found["mistakes"], row["review"]) == (1, "a good film")


def test_a_missing_column_is_named(classifier: Path, tmp_path: Path):
    data = write_rows(tmp_path / "t.csv", ("text", "stars"), ("a good film", "pos"), ("a sad film", "neg"))
    with pytest.raises(UsageError, match="'label'"):
        evaluate_task(classifier, data, device="cpu")
    assert evaluate_task(classifier, data, label="stars", device="cpu")["rows"] == 2


def test_what_a_person_sees(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = write_reviews(tmp_path / "t.csv", 30, seed=9)
    assert main(["evaluate", "task", str(classifier), str(data), "-o", str(tmp_path / "errors.csv")]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("30 rows: accuracy ")
    assert [line.split()[0] for line in shown.out.splitlines()[1:]] == ["neg", "pos"]
    assert "errors.csv" in shown.err
    assert main(["evaluate", "task", str(classifier), str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 30
