"""The examination at the end of a fine-tuning: its figures are those of the model in the folder,
its files agree with one another and with the answers."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.config import dump_recipe
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item
from bertworks.inference.predictor import Predictor
from bertworks.io.atomic_write import write_text
from bertworks.runs.finetune import evaluate_on_dev, make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.runs.report import task_card, write_errors
from bertworks.runs.run_folder import create_run_folder
from bertworks.tasks import scores as task_metrics
from bertworks.tasks.registry import TASKS
from bertworks.tasks.scores import compute_metrics
from bertworks.tasks.settings import TaskConfig
from tests.support.fine import (
    FILES_OF_TASKS,
    tokenizer,
    write_examples,
    write_squad,
)
from tests.support.tasks import featurizer

CPU = torch.device("cpu")


def begun(task: str, model: Path, folder: Path) -> tuple[Path, FinetuneJob]:
    """A run folder as it is before the first step: the model has a head that nobody trained."""
    output = folder / "run"
    # then `evaluate` has the same rows and thresholds
    split = {"method": "full", "validation": "split"}
    request = make_finetune_request(
        write_examples(folder, task), model=model, overrides=["epochs=1", "precision=fp32"], **split
    )
    work = FinetuneJob(prepare_finetuning(request, CPU))
    output.mkdir()
    create_run_folder(output, request.content())
    write_text(output / "recipe.toml", dump_recipe(work.recipe))
    network, _ = work.initial_network()
    work.save(output, network, {"step": 0, "evaluated": None, "evaluation": {}})
    figures = work.evaluate(network)
    write_text(output / "metrics.jsonl", json.dumps({"step": 0, "evaluation": figures}) + "\n")
    return output, work


def examined(output: Path, work: FinetuneJob) -> tuple[dict[str, float], str]:
    result, text = evaluate_on_dev(work, output)
    assert read(output / "result.json") == json.loads(json.dumps(result))
    return result["figures"], text


class Examined(NamedTuple):
    folder: Path
    work: FinetuneJob
    figures: dict[str, float]
    text: str


@pytest.fixture(scope="module")
def done(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Examined]:
    """Of each task one examination, to be looked at and not to be changed."""

    @cache
    def done(task: str) -> Examined:
        output, work = begun(task, model, tmp_path_factory.mktemp(task))
        assert work.description.threshold == (0.0 if task == "qa" else None)
        return Examined(output, work, *examined(output, work))

    return done


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.mark.parametrize("task", FILES_OF_TASKS)
def test_every_task_is_examined_and_all_files_agree(
    task: str, done: Callable[[str], Examined]
) -> None:
    output, work, figures, text = done(task)
    # The model as anybody else finds it in the folder answers so, and no otherwise.
    predictor = Predictor(output, device="cpu")
    answers = [answer for _, answer in predictor.answers(work.data.dev)]
    expected = compute_metrics(predictor.description, work.data.dev, answers)
    # the threshold of each half is that of the other, and the stored one is the best of all rows
    if task == "qa":
        assert figures["f1"] <= expected["f1"] + 1e-9
        expected |= {name: figures[name] for name in figures}
    for name in set(figures) - {"threshold"}:
        assert figures[name] == pytest.approx(expected[name], abs=1e-6), name
    result = read(output / "result.json")
    assert result["figures"] == figures
    assert result["rows"] == len(work.data.dev)
    errors = list(RowReader(output / "errors.csv"))
    assert len(errors) == result["mistakes"] > 0
    name = FILES_OF_TASKS[task][0]
    assert all(Path(row.values["where"].partition(":")[0]).name == name for row in errors)
    card = (output / "README.md").read_text()
    assert f"{work.data_report.train:,} rows in train" in card
    page = (output / "report.html").read_text()
    assert ("Largest errors" if task == "regression" else "Most confident errors") in page
    for expected_text in (
        str(output),
        "report.html",
        "errors.csv",
        f"next: bertworks predict {output} new.csv",
    ):
        assert expected_text in text


def test_tables_of_classes_add_up(done: Callable[[str], Examined]) -> None:
    output, _, figures, text = done("classification")
    result = read(output / "result.json")
    counts = result["confusion"]["counts"]
    assert result["confusion"]["labels"] == ["neg", "pos"]
    assert sum(map(sum, counts)) == result["rows"]
    assert counts[0][0] + counts[1][1] == round(figures["accuracy"] * result["rows"])
    assert result["mistakes"] == counts[0][1] + counts[1][0]
    assert [result["table"][name]["support"] for name in ("neg", "pos")] == list(map(sum, counts))
    assert ", predicted " in text
    rows = list(csv.DictReader((output / "errors.csv").read_text().splitlines()))
    assert all(row["gold"] != row["predicted"] for row in rows)
    assert [float(row["gold_score"]) for row in rows] == sorted(
        float(row["gold_score"]) for row in rows
    )


def test_without_a_result_there_is_a_report(model: Path, tmp_path: Path) -> None:
    output, work = begun("classification", model, tmp_path)
    work.save(output, None, {})
    assert "Accuracy on dev" in (output / "report.html").read_text()


def test_what_is_not_written_to_the_end_is_done_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, work = begun("classification", model, tmp_path)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bertworks.runs.finetune.write_task_report", killed)
        with pytest.raises(KeyboardInterrupt):
            examined(output, work)
    assert not (output / "result.json").exists()
    figures, _ = examined(output, work)
    assert read(output / "result.json")["figures"] == figures


def test_the_best_threshold_is_stored_in_the_model(done: Callable[[str], Examined]) -> None:
    output, work, figures, _ = done("qa")
    assert ModelFolder(output).task_config.threshold == figures["threshold"]
    for threshold in (None, -50.0, 0.0, 50.0):
        other = Predictor(output, device="cpu", threshold=threshold)
        answers = [answer for _, answer in other.answers(work.data.dev)]
        f1 = compute_metrics(other.description, work.data.dev, answers)["f1"]
        assert (
            f1 == pytest.approx(figures["best_f1"])
            if threshold is None
            else f1 <= figures["best_f1"] + 1e-9
        )
    table = read(output / "result.json")["table"]
    assert table["with an answer"]["support"] + table["without an answer"]["support"] == len(
        work.data.dev
    )


def test_tables_of_questions_add_up(done: Callable[[str], Examined]) -> None:
    output, work, figures, _ = done("qa")
    table, rows = read(output / "result.json")["table"], len(work.data.dev)
    for kinds in (
        ("with an answer", "without an answer"),
        ("context in one piece", "context in several pieces"),
    ):
        there = [table[kind] for kind in kinds if kind in table]
        assert sum(row["support"] for row in there) == rows
        for name in ("exact", "f1"):
            assert sum(row[name] * row["support"] for row in there) / rows == pytest.approx(
                figures[name]
            )


def test_contexts_in_several_pieces_have_their_own_figures() -> None:
    items = [
        Item(("who ?", "Anna lives in Oslo . " * times), ((0, "Anna"),), "q") for times in (1, 20)
    ]
    dev = list(featurizer(tokenizer(), "qa", (), 24, stride=8)(items))
    answers = [{"answer": "Anna"}, {"answer": "Oslo"}]
    table = TASKS["qa"].table(dev, list(zip(items, answers, strict=True)))
    assert table == {
        "context in one piece": {"exact": 1.0, "f1": 1.0, "support": 1.0},
        "context in several pieces": {"exact": 0.0, "f1": 0.0, "support": 1.0},
    }


def test_of_many_numbers_some_are_shown_from_all_over() -> None:
    items = [Item(("text",), float(n), "a.csv:1") for n in range(2500)]
    points = task_metrics.points(items, [{"value": -item.label} for item in items])
    assert 500 < len(points) <= task_metrics.MAX_POINTS
    assert points[0] == (0.0, 0.0)
    assert points[-1][0] > 2490
    assert all(answer == -gold for gold, answer in points)


def test_japanese_answers_are_evaluated_by_their_characters() -> None:
    requested = Item(("どこに住む?", "アンナは奈良に住む"), ((4, "奈良"),), "q")
    assert compute_metrics(TaskConfig(task="qa"), [requested], [{"answer": "奈良に"}]) == {
        "exact": 0,
        "f1": pytest.approx(0.8),
    }


def test_questions_that_all_have_answers_need_no_threshold(model: Path, tmp_path: Path) -> None:
    write_squad(tmp_path / "squad.json", impossible=False)
    request = make_finetune_request(
        tmp_path / "squad.json", model=model, overrides=["precision=fp32"]
    )
    assert FinetuneJob(prepare_finetuning(request, CPU)).description.threshold is None


def test_columns_of_the_data_that_are_called_as_ours_are_distinguished(
    model: Path, tmp_path: Path
) -> None:
    _, work = begun("classification", model, tmp_path)
    wrong = [task_metrics.Mistake("a.csv:1", ("x", "y"), "pos", "neg", 0.5, 0.5)]
    write_errors(tmp_path / "e.csv", replace(work.description, text=("gold", "where")), wrong)
    assert (tmp_path / "e.csv").read_text().splitlines()[
        0
    ] == "where,gold (text),where (text),gold,predicted,score"


@pytest.mark.parametrize("task", FILES_OF_TASKS)
def test_the_card_names_no_folder_and_has_the_figures(
    task: str, model: Path, done: Callable[[str], Examined]
) -> None:
    output, _, figures, _ = done(task)
    card = (output / "README.md").read_text()
    assert str(output.parent) not in card
    assert str(model.parent) not in card
    front = card.split("---\n")[1]
    lines = dict(line.split(": ", 1) for line in front.splitlines())
    assert lines["library_name"] == "transformers"
    assert lines["pipeline_tag"] in {
        "text-classification",
        "token-classification",
        "question-answering",
        "multiple-choice",
    }
    assert "base_model" not in lines, "a folder is no model of the hub"
    assert lines["metrics"].startswith("[")
    phrases = {
        "classification": f"| accuracy | {figures.get('accuracy', 0):.1%} (",
        "regression": f"| Spearman | {figures.get('spearman', 0):.3f} (",
        "qa": f"| F1 | {figures.get('f1', 0):.1%} (",
    }
    assert phrases.get(task, "") in card
    assert "epochs = 1" in card


def test_the_card_names_the_dev_file_without_its_folder(model: Path, tmp_path: Path) -> None:
    output, work = begun("classification", model, tmp_path)
    survey = replace(work.data_report, notes=["evaluated on /home/anna/dev.csv: 20 rows"])
    card = task_card(output, work.description, work.recipe, "x", survey, {})
    assert "Dev: evaluated on dev.csv: 20 rows." in card
    assert "anna" not in card


def test_the_card_names_the_model_of_the_hub(model: Path, tmp_path: Path) -> None:
    output, work = begun("classification", model, tmp_path)
    for name, base in (
        ("minilm", "sentence-transformers/all-MiniLM-L6-v2"),
        ("some/bert", "some/bert"),
    ):
        card = task_card(
            output, work.description, work.recipe, name, work.data_report, {"accuracy": 0.5}
        )
        assert f"base_model: {base}\n" in card


def test_labels_and_names_cannot_break_the_card(model: Path, tmp_path: Path) -> None:
    output, work = begun("classification", model, tmp_path)
    survey = replace(work.data_report, labels={"a|b\nc": (1, 1)})
    card = task_card(output, work.description, work.recipe, "x", survey, {})
    assert "| a\\|b c | 1 | 1 |" in card
