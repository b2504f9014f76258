"""The table of GLUE from a folder with tiny tasks."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.glue import evaluate_glue, find_glue_tasks, table
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import write_pairs, write_reviews
from tests.support.refusals import refusal

FAST = ("optimizer.learning_rate=2e-3", "epochs=3", "patience=0", "precision=fp32")


def write_glue(folder: Path, count: int = 80) -> Path:
    """SST-2, STS-B and the beginning of RTE, in GLUE's own layout."""
    folder.mkdir()
    for split, seed in (("train", 0), ("dev", 1)):
        reviews = write_reviews(folder / "reviews.csv", count, seed).read_text().splitlines()[1:]
        rows = [line.split(",") for line in reviews]
        lines = [f"{text}\t{int(label == 'pos')}" for text, label, _ in rows]
        path = folder / "SST-2" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
        pairs = write_pairs(folder / "pairs.tsv", count)
        sts = folder / "STS-B" / f"{split}.tsv"
        sts.parent.mkdir(exist_ok=True)
        sts.write_text(pairs.read_text())
    (folder / "SST-2" / "test.tsv").write_text(
        "index\tsentence\n0\ta good film\n1\t\n2\ta bad film\n"
    )
    (folder / "RTE").mkdir()
    (folder / "RTE" / "dev.tsv").write_text(
        "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n"
    )
    for name in ("reviews.csv", "pairs.tsv"):
        (folder / name).unlink()
    return folder


def test_the_table_names_what_it_is_of(model: Path, tmp_path: Path) -> None:
    data = write_glue(tmp_path / "glue")
    events = list(
        evaluate_glue(data, tmp_path / "out", model=model, seeds=2, overrides=FAST, device="cpu")
    )
    assert any("RTE: no train file" in event.text for event in events)
    reported = json.loads((tmp_path / "out/glue.json").read_text())
    assert set(reported["columns"]) == {"SST-2", "STS-B"}
    scores = [seed["accuracy"] for seed in reported["columns"]["SST-2"]["seeds"]]
    assert len(scores) == 2
    text = (tmp_path / "out/table.md").read_text()
    reported = [float(mean) for mean in re.findall(r"([0-9.]+) \(", text)]
    assert any(mean == pytest.approx(50 * sum(scores), abs=0.051) for mean in reported)
    assert "of 2 tasks" in text
    assert "Missing from the average" in text
    assert "BERT-Base (Devlin et al. 2019, table 1) | test |" in text
    lines = (tmp_path / "out/submission/SST-2.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    # also the one without text
    assert [line.split("\t")[0] for line in lines[1:]] == ["0", "1", "2"]
    *_, again = evaluate_glue(
        data, tmp_path / "out", model=model, seeds=2, overrides=FAST, device="cpu"
    )
    assert again.text == events[-1].text


def test_plain_options_arrive_in_every_task(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, requests = write_glue(tmp_path / "glue"), []

    def stop(request: Any, **options: Any) -> Any:
        requests.append(request)
        raise BertworksError("enough")

    monkeypatch.setattr("bertworks.evaluation.glue.plan_trials", stop)
    words = [
        "--epochs",
        "2",
        "--learning-rate",
        "3e-4",
        "--batch-size",
        "8",
        "--max-length",
        "64",
        "--seed",
        "5",
    ]
    assert (
        main(
            [
                "evaluate",
                "glue",
                str(model),
                "--data",
                str(data),
                "-o",
                str(tmp_path / "out"),
                *words,
            ]
        )
        == 1
    )
    recipe = load_finetune_recipe("stable", requests[0].overrides)
    assert (
        recipe.epochs,
        recipe.optimizer.learning_rate,
        recipe.batch_size,
        recipe.max_length,
    ) == (2, 3e-4, 8, 64)
    assert (requests[0].seed, requests[0].model) == (5, str(model))


def test_rows_without_text_are_left_out_and_said(model: Path, tmp_path: Path) -> None:
    """The official train file of QQP has two."""
    data = write_glue(tmp_path / "glue")
    with (data / "SST-2" / "train.tsv").open("a") as file:
        file.write("\t1\n")
    events = list(
        evaluate_glue(
            data,
            tmp_path / "out",
            model=model,
            tasks=["SST-2"],
            overrides=(*FAST, "epochs=1"),
            device="cpu",
        )
    )
    assert any("rows without text are left out: 1" in event.text for event in events)
    assert events[-1].kind == "done"


def test_samples_and_other_dev_sets_are_named() -> None:
    rows = {
        "QQP": {
            "split": "heldout",
            "sampled": True,
            "train": "train-sample.jsonl.gz",
            "metrics": ["f1"],
            "seeds": [{"f1": 0.8}],
            "interval": [0.75, 0.85],
        }
    }
    text = table(rows, "tiny", "stable", 1)
    assert "Trained on a sample of the official training set: QQP (train-sample.jsonl.gz)" in text
    assert "Not measured on the official dev set as it is: QQP on heldout" in text
    assert "| 80.0 (75.0 to 85.0) |" in text


def test_what_is_no_task_is_refused(model: Path, tmp_path: Path) -> None:
    data = write_glue(tmp_path / "glue")
    with pytest.raises(UsageError, match="is not a GLUE task"):
        list(evaluate_glue(data, tmp_path / "out", model=model, tasks=["SST"]))
    with pytest.raises(BertworksError, match="CoLA is not there"):
        list(evaluate_glue(data, tmp_path / "out", model=model, tasks=["CoLA"]))
    with pytest.raises(BertworksError, match="no task has both"):
        list(evaluate_glue(data, tmp_path / "out", model=model, tasks=["RTE"]))
    with refusal("no task of GLUE is here", "name the folder that holds them, such as glue_data"):
        find_glue_tasks(tmp_path / "elsewhere")
    for path in data.rglob("*.tsv"):
        path.write_text("a\tb\nc\td\n")
    with refusal("no column is called", "is this file of another task?"):
        list(evaluate_glue(data, tmp_path / "other", model=model))
