"""A fine-tuned model on labelled rows: what the run itself said of the same rows, in every task,
and bad rows."""

import csv
import json
from pathlib import Path

import pytest

from bertworks.checkpoints.storage import read_json
from bertworks.cli.main import main
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import (
    evaluate_blimp,
    evaluate_sts,
    evaluate_task,
    training_copies,
)
from bertworks.inference.predictor import predict_file
from bertworks.io.options import ReadOptions
from bertworks.models.transformer import cpu_supports_int8
from bertworks.runs.finetune import finetune
from bertworks.tasks.settings import TaskConfig
from tests.support.fine import (
    FILES_OF_TASKS,
    read_data,
    write_examples,
    write_reviews,
)
from tests.support.refusals import refusal
from tests.support.served import write_head
from tests.support.tables import write_records, write_table


@pytest.mark.parametrize("task", FILES_OF_TASKS)
def test_the_figures_are_those_of_the_run(task: str, model: Path, tmp_path: Path):
    train = write_examples(tmp_path, task, 60)
    dev = tmp_path / f"dev-{train.name}"
    dev.write_bytes(train.read_bytes())
    out = tmp_path / "out"
    settings = ["epochs=2", "optimizer.learning_rate=2e-3", "precision=fp32"]
    finetune(train, model=model, dev=dev, output=out, device="cpu", overrides=settings)
    reported = read_json(out / "result.json")
    evaluation = evaluate_task(out, dev, device="cpu", errors=tmp_path / "errors.csv")
    assert (evaluation["task"], evaluation["rows"]) == (task, reported["rows"])
    json.dumps(evaluation)
    assert set(evaluation["intervals"]) == set(reported["intervals"]) <= set(evaluation["figures"])
    for name, (low, high) in evaluation["intervals"].items():
        assert -1 <= low <= evaluation["figures"][name] + 1e-9 <= high + 1e-8 <= 1 + 2e-8
    # a threshold: the run scores each half of dev with that of the other
    if task in ("multilabel", "qa"):
        return
    assert evaluation["mistakes"] == reported["mistakes"]
    # a figure of the run, and not of the model
    named = [key for key in reported["figures"] if key != "threshold"]
    assert {key: evaluation["figures"][key] for key in named} == pytest.approx(
        {key: reported["figures"][key] for key in named}
    )
    assert evaluation["table"] == reported["table"]
    assert (tmp_path / "errors.csv").read_bytes() == (out / "errors.csv").read_bytes()
    if cpu_supports_int8():
        check_eight_bits(out, dev, tmp_path / "predicted.jsonl")


def check_eight_bits(model: Path, data: Path, output: Path) -> None:
    """That they are beside what fp32 says, and say how far from it."""
    exact, rounded = (
        evaluate_task(model, data, device="cpu", precision=which) for which in ("fp32", "int8")
    )
    assert rounded["figures_fp32"] == exact["figures"]
    events = predict_file(model, data, output, device="cpu", precision="int8")
    (reported,) = [event.fields for event in events if "compared" in event.fields]
    assert reported["compared"] == exact["rows"]
    assert reported.get("others", 0) <= 0.1 * exact["rows"]
    assert 0 <= reported.get("largest", 0) < 0.1


@pytest.fixture(scope="module")
def classifier(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    finetune(
        write_reviews(folder / "d.csv"),
        model=model,
        output=folder / "out",
        device="cpu",
        overrides=["epochs=1"],
    )
    return folder / "out"


def write_rows(path: Path, *rows: tuple[str, ...]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def test_rows_of_one_label_can_be_evaluated(classifier: Path, tmp_path: Path):
    data = write_rows(
        tmp_path / "t.csv", ("text", "label"), ("a good film", "pos"), ("a great story", "pos")
    )
    evaluation = evaluate_task(classifier, data, device="cpu")
    assert evaluation["rows"] == 2
    assert evaluation["table"]["pos"]["support"] == 2


def test_labels_that_were_never_trained_are_mistakes(classifier: Path, tmp_path: Path):
    rows = [("a good film", "pos"), ("so so", "neutral"), ("so", "neutral"), ("a sad film", "negg")]
    data = write_rows(tmp_path / "t.csv", ("text", "label"), *rows)
    evaluation = evaluate_task(classifier, data, errors=tmp_path / "errors.csv", device="cpu")
    assert (evaluation["rows"], evaluation["unknown_labels"]) == (4, {"neutral": 2, "negg": 1})
    assert evaluation["mistakes"] >= 3
    assert evaluation["figures"]["accuracy"] <= 0.25
    assert evaluation["table"]["neutral"] == {"precision": 0, "recall": 0, "f1": 0, "support": 2}
    (note,) = [note for note in evaluation["notes"] if "never trained" in note]
    assert "2 labels" in note
    assert "'neutral' (2), 'negg' (1, did you mean 'neg'?)" in note
    json.dumps(evaluation)
    with (tmp_path / "errors.csv").open(newline="") as file:
        assert {"neutral", "negg"} <= {row["gold"] for row in csv.DictReader(file)}
    (tmp_path / "train.csv").write_text("text,label\n" + "a good film,pos\na sad film,neg\n" * 20)
    # in a dev file they are errors
    with pytest.raises(BertworksError, match=r"t\.csv.*'negg'") as raised:
        read_data(tmp_path / "train.csv", dev=data)
    assert "did you mean 'neg'?" in str(raised.value)


UNKNOWN: dict[str, tuple[TaskConfig, list[dict[str, object]]]] = {
    "multilabel": (
        TaskConfig(task="multilabel", labels=("a", "b")),
        [
            {"text": "x", "label": ["a", "new"]},
            {"text": "y", "label": ["b"]},
            {"text": "y", "label": []},
        ],
    ),
    "tagging": (
        TaskConfig(task="tagging", labels=("B-PER", "I-PER", "O")),
        [{"text": ["x", "y"], "label": ["B-new", "O"]}, {"text": ["y"], "label": ["O"]}],
    ),
    "spans": (
        TaskConfig(task="spans", labels=("O", "B-PER", "I-PER")),
        [
            {"text": "x y", "entities": [{"start": 0, "end": 1, "type": "new"}]},
            {"text": "y", "entities": []},
        ],
    ),
}


@pytest.mark.parametrize("task", UNKNOWN)
def test_every_task_counts_labels_that_were_never_trained(task: str, tmp_path: Path):
    d, rows = UNKNOWN[task]
    write_head(tmp_path / "model", task=task, labels=d.labels)
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = evaluate_task(tmp_path / "model", tmp_path / "d.jsonl", device="cpu")
    assert evaluation["unknown_labels"] == {"B-new" if task == "tagging" else "new": 1}
    assert evaluation["table"]["new"]["support"] == 1
    assert evaluation["table"]["new"]["recall"] == 0
    if task == "tagging":
        (tmp_path / "d.jsonl").write_text(
            json.dumps({"text": ["x", "y"], "label": ["B-PER", "7"]}) + "\n"
        )
        with pytest.raises(BertworksError, match="do: 7"):
            evaluate_task(tmp_path / "model", tmp_path / "d.jsonl", device="cpu")


def test_rows_without_a_label_are_skipped_and_counted(classifier: Path, tmp_path: Path):
    data = write_rows(
        tmp_path / "t.csv",
        ("text", "label"),
        ("a good film", "pos"),
        ("so so", ""),
        ("a sad film", "neg"),
    )
    with pytest.raises(BertworksError, match=r"t\.csv:3.*missing") as raised:
        evaluate_task(classifier, data, device="cpu")
    assert "--skip-unlabelled" in str(raised.value)
    evaluation = evaluate_task(
        classifier, data, device="cpu", read=ReadOptions(skip_unlabelled=True)
    )
    assert evaluation["rows"] == 2
    assert any(note.startswith("rows without a label, left out: 1") for note in evaluation["notes"])


@pytest.mark.parametrize(
    ("good", "missing", "label"),
    [
        ({"text": "x"}, None, [1.5, 2.5, 3.5, 4.5]),
        (
            {"tokens": ["Anna", "lives", "here"]},
            None,
            [["B-PER", "O", "O"], ["O"] * 3, ["O", "B-PER", "O"], ["O"] * 3],
        ),
        (
            {"question": "who?", "context": "it is x"},
            None,
            [[{"text": "x", "answer_start": 6}]] * 4,
        ),
        ({"prompt": "p", "choices": ["a", "b"]}, "", [0, 1, 0, 1]),
        ({"text": "x"}, "", ["yes", "no", "no", "yes"]),
    ],
)
def test_every_task_skips_rows_without_a_label(
    good: dict, missing: object, label: list, tmp_path: Path
):
    name = "answers" if "question" in good else "label"
    rows = [{**good, name: label[n % 4] if n % 5 else missing} for n in range(1, 41)]
    for number, row in enumerate(rows):
        for column in {"text", "context"} & row.keys():
            row[column] = f"{row[column]} {number}"
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BertworksError, match="--skip-unlabelled"):
        read_data(tmp_path / "d.jsonl", label=name)
    data = read_data(tmp_path / "d.jsonl", label=name, read=ReadOptions(skip_unlabelled=True))
    assert len(data.train) + len(data.dev) == 32
    assert any(note.startswith("rows without a label, left out: 8") for note in data.notes)


def test_errors_of_a_model_that_names_no_columns(tmp_path: Path):
    """As those of transformers: the columns are those of the data."""
    write_head(tmp_path / "model", task="classification", labels=("neg", "pos"))
    (tmp_path / "d.csv").write_text("review,label\na good film,pos\na good film,neg\n")
    evaluation = evaluate_task(
        tmp_path / "model", tmp_path / "d.csv", errors=tmp_path / "errors.csv", device="cpu"
    )
    with (tmp_path / "errors.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (evaluation["mistakes"], row["review"]) == (1, "a good film")


def test_a_missing_column_is_named(classifier: Path, tmp_path: Path):
    data = write_rows(
        tmp_path / "t.csv", ("text", "stars"), ("a good film", "pos"), ("a sad film", "neg")
    )
    with pytest.raises(UsageError, match="'label'"):
        evaluate_task(classifier, data, device="cpu")
    assert evaluate_task(classifier, data, label="stars", device="cpu")["rows"] == 2


def test_what_a_person_sees(classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    data = write_reviews(tmp_path / "t.csv", 30, seed=9)
    assert (
        main(["evaluate", "task", str(classifier), str(data), "-o", str(tmp_path / "errors.csv")])
        == 0
    )
    printed = capsys.readouterr()
    assert printed.out.startswith("30 rows: accuracy ")
    assert [line.split()[0] for line in printed.out.splitlines()[1:]] == ["neg", "pos"]
    assert "errors.csv" in printed.err
    assert main(["evaluate", "task", str(classifier), str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 30


def test_a_file_of_other_labels_only_is_refused(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("text,label\na good film,1\na bad film,0\n")
    with pytest.raises(
        BertworksError, match="the model knows none of these labels: 0, 1"
    ) as caught:
        evaluate_task(classifier, tmp_path / "test.csv", label="label", device="cpu")
    assert caught.value.hint == "its labels are: neg, pos"


def test_a_fine_tuned_model_is_evaluated(tmp_path: Path):
    classifier = write_head(
        tmp_path / "c",
        task="classification",
        text=("text",),
        label=("label",),
        labels=("neg", "pos"),
    )
    rows = [(f"a film {n}", ["neg", "pos"][n % 2]) for n in range(6)]
    result = evaluate_task(
        classifier, write_table(tmp_path / "d.csv", ("text", "label"), *rows), device="cpu"
    )
    assert (result["task"], result["rows"]) == ("classification", 6)
    assert 0 <= result["figures"]["accuracy"] <= 1
    with refusal("no row has a text and a label", "name another file, or --text COLUMN"):
        rows = [("", "pos")] * 3
        evaluate_task(classifier, write_table(tmp_path / "e.csv", ("text", "label"), *rows))
    with refusal("the model knows none of these labels: a", "its labels are: neg, pos"):
        rows = [("a film", "a")] * 3
        evaluate_task(classifier, write_table(tmp_path / "f.csv", ("text", "label"), *rows))


def test_tags_of_another_scheme_are_refused(tmp_path: Path):
    labels = ("O", "B-work", "I-work")
    tagger = write_head(
        tmp_path / "t", task="tagging", text=("tokens",), label=("tags",), labels=labels
    )
    rows = [{"tokens": ["the", "film"], "tags": ["O", tag]} for tag in ("B-work", "work")]
    with refusal("some of these tags mark no entities", "the tags of the model are: O, B-work"):
        evaluate_task(tagger, write_records(tmp_path / "d.jsonl", *rows), device="cpu")


def test_one_text_has_no_similarity(model: Path, tmp_path: Path):
    rows = [("a film", 1.5), ("a dog", 2.5)] * 9
    data = write_table(tmp_path / "d.csv", ("text", "score"), *rows)
    with refusal("these rows have no two texts to compare", "name another file"):
        evaluate_sts(model, data)


MOODS = TaskConfig(
    task="classification", labels=("bad", "good"), text=("text",), label=("label",), max_length=32
)
TRAINED = [
    (f"a {mood} film of the town, seen {n} times", mood) for n in range(12) for mood in MOODS.labels
]


def items_of(*rows: tuple[str, str]) -> list[Item]:
    return [Item((text,), label, f"new.csv:{n}") for n, (text, label) in enumerate(rows, 2)]


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    data = write_table(folder / "d.csv", ("text", "label"), *TRAINED)
    finetune(data, model=model, output=folder / "m", device="cpu", method="frozen")
    return folder / "m"


def test_copies_are_counted_with_their_places(trained: Path):
    rows = items_of(TRAINED[0], TRAINED[5], ("men heard music last night", "good"))
    count, note = training_copies(trained, rows, MOODS)
    assert count == 2
    assert "2 of the 3 rows (66.7%) are duplicates or near-duplicates" in note
    assert "new.csv:2 = d.csv:2" in note
    copies = training_copies(trained, rows[2:], MOODS)
    assert copies == (
        0,
        "no row is a duplicate or near-duplicate of a row in the training data d.csv",
    )


def test_training_data_that_is_not_known(trained: Path, model: Path, tmp_path: Path):
    rows = items_of(TRAINED[0])
    assert training_copies(model, rows, MOODS) == (None, "")
    run = read_json(trained / "run.json")
    run["request"]["data_sha256"] = "0" * 64
    (tmp_path / "run.json").write_text(json.dumps(run))
    count, note = training_copies(tmp_path, rows, MOODS)
    assert count is None
    assert "d.csv: it is not on this machine, or has changed since the training" in note
    run["request"]["data"] = str(tmp_path / "gone.csv")
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert training_copies(tmp_path, rows, MOODS)[0] is None


def test_a_folder_without_pairs_of_sentences(model: Path, tmp_path: Path):
    with refusal("no pairs of sentences", "name a .jsonl file of BLiMP"):
        list(evaluate_blimp(model, tmp_path))
