"""Labelled files to fine-tuned models, every task, as a user calls it."""

import csv
import importlib
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.utils.class_weight import compute_class_weight

from bertworks.batching.examples import Example, Target
from bertworks.checkpoints.model_folder import ModelFolder, load_model
from bertworks.checkpoints.storage import read_tensors, write_tensors
from bertworks.config import dump_recipe
from bertworks.datasets.schema import Item, Schema
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.events import Event, duration
from bertworks.inference.predictor import Predictor, predict_file
from bertworks.io.file_job import write_rows
from bertworks.metrics.intervals import SAMPLES, wilson_interval
from bertworks.models.config import EncoderConfig
from bertworks.runs import finetune as finetune_module
from bertworks.runs.data_splits import EVALUATED, divide
from bertworks.runs.finetune import choose_method, finetune_events, frozen_accuracy
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning, run_settings
from bertworks.runs.options import Method
from bertworks.runs.training_run import TrainingRun
from bertworks.runs.trials import plan_trials, run_trials
from bertworks.tasks.heads import TaskModel
from bertworks.tasks.outputs import Classification
from bertworks.tasks.task import balanced_weights
from bertworks.training.recipe import (
    LEARNED_SHARE,
    default_max_length,
    load_finetune_recipe,
    resolve_recipe,
)
from tests.support.fine import (
    FILES_OF_TASKS,
    read_data,
    write_choices,
    write_conll,
    write_examples,
    write_reviews,
    write_squad,
)

FAST = ("optimizer.learning_rate=2e-3", "epochs=6", "select=best", "patience=0", "precision=fp32")
# The other methods and cross-validation: test_methods.py.
make_finetune_request = partial(
    finetune_module.make_finetune_request, method="full", validation="split"
)
finetune = partial(finetune_module.finetune, method="full", validation="split")


def run(
    data: Path, output: Path, model: Path, *, overrides: tuple[str, ...] = FAST, **options: Any
) -> Event:
    request = make_finetune_request(data, model=model, overrides=overrides, **options)
    *_, last = finetune_events(output, request, device="cpu")
    assert last.kind == "done"
    return last


TASKS: dict[str, tuple[str, float]] = {
    "classification": ("accuracy", 0.9),
    "multilabel": ("micro_f1", 0.9),
    "regression": ("spearman", 0.7),
    "tagging": ("f1", 0.9),
    "spans": ("f1", 0.9),
    "qa": ("f1", 0.6),
    "choice": ("accuracy", 0.8),
}


Trained = Callable[[str], tuple[Path, Event]]


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Of each task one fine-tuning, beside its data: its folder, to be looked at and not to be
    changed, and its end."""

    @cache
    def trained(task: str) -> tuple[Path, Event]:
        folder = tmp_path_factory.mktemp(task)
        epochs = "epochs=16" if task in ("qa", "regression", "choice") else "epochs=8"
        return folder / "out", run(
            write_examples(folder, task), folder / "out", model, overrides=(*FAST, epochs)
        )

    return trained


@pytest.fixture(scope="module")
def classifier(trained: Trained) -> Path:
    return trained("classification")[0]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_guessed_learned_and_predicted(
    task: str, trained: Trained, tmp_path: Path
) -> None:
    metric, least = TASKS[task]
    folder, done = trained(task)
    assert ModelFolder(folder).task_config.task == task
    assert done.fields["metric"] == metric
    assert done.fields["score"] >= least, done.fields["figures"]
    figures = json.loads((folder / "result.json").read_text())["figures"]
    assert figures[metric] == done.fields["score"]
    for file in (
        "report.html",
        "errors.csv",
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ):
        assert (folder / file).stat().st_size > 0, file
    *_, reported = predict_file(
        folder, folder.with_name(FILES_OF_TASKS[task][0]), tmp_path / "scored.jsonl", device="cpu"
    )
    rows = (tmp_path / "scored.jsonl").read_text().splitlines()
    assert reported.fields["rows"] == len(rows)
    assert all("truncated_tokens" in json.loads(row) for row in rows)


def test_transformers_opens_the_folder_and_says_the_same(classifier: Path) -> None:
    texts = ["a great film", "the music was awful", "happy dogs and men in this town"]
    ours = Predictor(classifier, device="cpu").predict(texts, probabilities=True)
    theirs = transformers.pipeline(
        "text-classification", model=str(classifier), top_k=None, device="cpu"
    )(texts)
    for one, other in zip(ours, theirs, strict=True):
        expected = {row["label"]: row["score"] for row in other}
        assert one["scores"] == pytest.approx(expected, abs=1e-5)
        assert one["label"] == max(expected, key=expected.__getitem__)


def test_a_stopped_run_goes_on_to_the_same_bits(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv")
    request = make_finetune_request(
        data, model=model, overrides=(*FAST, "epochs=2", "save_every=7")
    )
    *_, whole = finetune_events(tmp_path / "whole", request, device="cpu")
    for limit in (5, 9, 16):  # of 24 steps
        for event in finetune_events(tmp_path / "parts", request, device="cpu"):
            if event.kind == "step" and event.fields["step"] % limit == 0:
                break
    *_, last = finetune_events(tmp_path / "parts", request, device="cpu")
    assert (tmp_path / "whole/model.safetensors").read_bytes() == (
        tmp_path / "parts/model.safetensors"
    ).read_bytes()
    assert last.fields["figures"] == whole.fields["figures"]
    *_, again = finetune_events(tmp_path / "parts", request, device="cpu")
    assert again.fields == last.fields


def test_the_best_state_is_kept_not_the_last(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 60)
    done = run(data, tmp_path / "out", model, overrides=(*FAST, "epochs=12", "patience=2"))
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    scores = {
        line["step"]: line["evaluation"]["accuracy"] for line in lines if "evaluation" in line
    }
    assert done.fields["figures"]["accuracy"] == max(scores.values())
    assert done.fields["best"]["accuracy"] == max(scores.values())


def test_the_folder_holds_the_best_state_where_later_ones_are_worse(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, seen = FinetuneJob.evaluate, []

    def watched(work: FinetuneJob, network: TaskModel) -> dict[str, float]:
        seen.append(network.state_dict()["classifier.weight"].clone())
        return evaluate(work, network)

    monkeypatch.setattr(FinetuneJob, "evaluate", watched)
    monkeypatch.setattr(FinetuneJob, "is_better", lambda *_: False)  # than the first
    run(
        write_reviews(tmp_path / "reviews.csv", 40),
        tmp_path / "out",
        model,
        overrides=(*FAST, "epochs=3"),
    )
    kept = load_model(tmp_path / "out").state["classifier.weight"]
    assert [torch.equal(kept, one) for one in seen] == [True, False, False]


def test_training_ends_early_when_nothing_gets_better(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 60)
    quiet = (*FAST, "epochs=20", "patience=2", "optimizer.learning_rate=1e-9", "head_deviation=0")
    done = run(data, tmp_path / "out", model, overrides=quiet)
    assert done.fields["step"] < 20 * 4


LEARNS = ("optimizer.learning_rate=2e-3", "epochs=60", "learned_loss=0.2", "precision=fp32")


def test_a_training_with_a_low_loss_winds_down(model: Path, tmp_path: Path) -> None:
    """The learning rate falls to zero in a tenth of the steps done, stopped and resumed or not."""
    data = write_reviews(tmp_path / "reviews.csv", 90)
    request = make_finetune_request(data, model=model, overrides=(*LEARNS, "save_every=1"))
    events = list(finetune_events(tmp_path / "whole", request, device="cpu"))
    steps = [event.fields for event in events if event.kind == "step"]
    (note,) = [event for event in events if event.text.startswith("the training loss has been")]
    last = note.fields["steps"]
    learned = next(number for number in range(1, last) if number + max(1, number // 10) == last)
    assert steps[-1]["step"] == events[-1].fields["step"] == last < 60 * 6
    low = [step["loss"] < 0.2 for step in steps]
    num_low = round(LEARNED_SHARE * 60 * 6)
    assert all(low[learned - num_low : learned])
    assert not low[learned - num_low - 1]
    rates = [step["learning_rate"] for step in steps[learned:]]
    assert rates[0] == pytest.approx(2e-3 * (1 - learned / 360) / 0.9)
    assert np.diff(rates) == pytest.approx(-rates[0] / len(rates))
    assert {step["steps"] for step in steps[: learned - 1]} == {360}
    assert {step["steps"] for step in steps[learned - 1 :]} == {last}

    for limit in (learned - 3, learned, learned + 1):
        for event in finetune_events(tmp_path / "parts", request, device="cpu"):
            if event.kind == "step" and event.fields["step"] >= limit:
                break
    *_, resumed = finetune_events(tmp_path / "parts", request, device="cpu")
    assert resumed.fields["figures"] == events[-1].fields["figures"]
    for name in ("model.safetensors", "task.json"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_training_with_a_high_loss_takes_all_steps(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 60)
    overrides = ("epochs=8", "learned_loss=0.01", "optimizer.learning_rate=1e-9")
    assert run(data, tmp_path / "out", model, overrides=overrides).fields["step"] == 8 * 4


@pytest.mark.parametrize("learned", [None, 1, 9, 40, 95, 99])
def test_a_schedule_ends_where_the_training_ends(learned: int | None) -> None:
    recipe = load_finetune_recipe("stable", ["epochs=10", "cloze_steps=0", "precision=fp32"])
    settings = run_settings(recipe, 10)
    last = settings.last_step(learned)
    positions = [settings.position(step, learned) for step in range(last + 1)]
    assert positions[0] == 0
    assert positions[-1] == settings.num_steps == 100
    assert last <= 100
    assert (np.diff(positions) > 0).all()
    start = last if learned is None else learned
    assert positions[: start + 1] == list(range(start + 1))


def test_other_labels_and_tasks_are_refused_and_a_new_head_is_not(
    classifier: Path, tmp_path: Path
) -> None:
    text = (
        write_reviews(tmp_path / "reviews.csv")
        .read_text()
        .replace(",pos,", ",good,")
        .replace(",neg,", ",bad,")
    )
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(
        BertworksError, match=r"labels are not those of the data(.|\n)*neg, pos(.|\n)*bad, good"
    ):
        run(tmp_path / "other.csv", tmp_path / "second", classifier)
    assert not (tmp_path / "second").exists()
    with pytest.raises(BertworksError, match="fine-tuned for classification"):
        run(write_conll(tmp_path / "names.conll"), tmp_path / "second", classifier)
    run(
        tmp_path / "other.csv",
        tmp_path / "second",
        classifier,
        overrides=(*FAST, "epochs=1"),
        new_head=True,
    )
    assert ModelFolder(tmp_path / "second").task_config.labels == ("bad", "good")


def test_a_head_goes_on_by_the_names_of_its_labels(classifier: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(classifier, tmp_path / "first")
    task = json.loads((folder / "task.json").read_text())
    task["labels"] = ["pos", "neg"]  # the outputs, called the other way round
    (folder / "task.json").write_text(json.dumps(task))
    done = run(
        write_reviews(tmp_path / "reviews.csv"),
        tmp_path / "second",
        folder,
        overrides=(*FAST, "epochs=1", "optimizer.learning_rate=1e-9"),
    )
    assert done.fields["score"] <= 0.2  # right outputs with wrong names


def test_seeds_and_sweeps_tell_mean_and_interval(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv")
    with pytest.raises(
        UsageError, match=r"optimizer\.learning_rate is in the sweep, and is set by another option"
    ):
        plan_trials(
            make_finetune_request(data, model=model, overrides=FAST),
            sweep=["optimizer.learning_rate=1,2"],
        )
    request = make_finetune_request(data, model=model, overrides=FAST[1:])
    trials = plan_trials(request, seeds=2, sweep=["optimizer.learning_rate=1e-9,2e-3"])
    *_, done = run_trials(tmp_path / "out", trials, device="cpu")
    reported = json.loads((tmp_path / "out/trials.json").read_text())
    assert [len(setting["scores"]) for setting in reported["settings"]] == [2, 2]
    assert done.fields["best"]["setting"] == "optimizer.learning_rate=2e-3"
    for setting in reported["settings"]:
        assert setting["mean"] == pytest.approx(np.mean(setting["scores"]))
        assert setting["deviation"] == pytest.approx(np.std(setting["scores"], ddof=1))
        low, high = setting["interval"]
        # of the 20 rows of dev
        rows = [wilson_interval(score * 20, 20) for score in setting["scores"]]
        assert 0 <= low <= setting["mean"] <= high <= 1
        assert high - low > 0.5 * min(one.high - one.low for one in rows)
    for name in ("README.md", "report.html"):
        assert "the best of 4 trainings, chosen by its" in (tmp_path / "out" / name).read_text()
    assert "expect the mean on new texts" in done.text
    assert Predictor(tmp_path / "out", device="cpu").predict(["a good film"])[0]["label"] == "pos"
    with pytest.raises(UsageError, match="sweeps nothing"):
        plan_trials(request, sweep=["epochs"])


def finished(folder: Path, score: float) -> Event:
    """What a training with this score leaves and says."""
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(folder.name)
    (folder / "result.json").write_text(json.dumps({"resamples": [score] * SAMPLES}))
    one = {
        "method": "x",
        "score": score,
        "interval": [0, 1],
        "difference": 0.0,
        "difference_interval": [0, 0],
    }
    compared = {"metric": "accuracy", "methods": [one, one], "best": 0, "verdict": ""}
    fields = {
        "metric": "accuracy",
        "score": score,
        "figures": {},
        "seconds": 1.0,
        "rows": 20,
        "baselines": compared,
    }
    return Event("done", "", fields)


def test_the_best_of_several_stands_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.25, 0.75, 0.5])

    def fake_events(output: Path, *_: Any, **__: Any) -> Iterator[Event]:
        yield Event("plan", "")
        yield finished(output, next(scores))

    monkeypatch.setattr("bertworks.runs.trials.finetune_events", fake_events)
    request = make_finetune_request(write_reviews(tmp_path / "reviews.csv"), model="minilm")
    trials = plan_trials(request, sweep=["epochs=1,2,3,2"])
    assert [trial.setting for trial in trials] == ["epochs=1", "epochs=2", "epochs=3"]
    *_, done = run_trials(tmp_path / "out", trials, device="cpu")
    assert (
        (tmp_path / "out/README.md").read_text()
        == trials[1].folder
        == done.fields["best"]["folder"]
    )
    assert [line.partition(":")[0] for line in done.text.splitlines()[:3]] == [
        "epochs=2",
        "epochs=3",
        "epochs=1",
    ]


def test_the_best_setting_has_the_best_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best single run may be of a setting that is worse on average."""
    scores = iter([0.9, 0.1, 0.6, 0.7])

    def fake_events(output: Path, *_: Any, **__: Any) -> Iterator[Event]:
        yield Event("plan", "")
        yield finished(output, next(scores))

    monkeypatch.setattr("bertworks.runs.trials.finetune_events", fake_events)
    request = make_finetune_request(write_reviews(tmp_path / "reviews.csv"), model="minilm")
    *_, done = run_trials(
        tmp_path / "out", plan_trials(request, seeds=2, sweep=["epochs=1,2"]), device="cpu"
    )
    assert (done.fields["best"]["setting"], done.fields["best"]["score"]) == ("epochs=2", 0.7)


def test_folds_evaluate_every_row_once(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 60)
    request = make_finetune_request(
        data, model=model, overrides=(*FAST, "epochs=1"), group="reviewer"
    )
    *_, done = run_trials(tmp_path / "out", plan_trials(request, folds=3), device="cpu")
    counts = [
        json.loads((tmp_path / "out" / t["folder"] / "data.json").read_text())["dev"]
        for t in done.fields["trials"]
    ]
    assert sum(count["rows"] if isinstance(count, dict) else count for count in counts) == 60


def test_folds_need_parts_to_divide(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_reviews(folder / "train.csv", 60)
    write_reviews(folder / "dev.csv", 20)
    request = make_finetune_request(folder, model=model, overrides=FAST)
    with pytest.raises(UsageError, match="there is a dev file"):
        list(run_trials(tmp_path / "out", plan_trials(request, folds=3), device="cpu"))
    request = make_finetune_request(
        folder / "train.csv", model=model, overrides=FAST, group="reviewer"
    )
    with pytest.raises(
        UsageError, match="8 folds need at least 8 rows, or groups of rows: there are 7"
    ):
        list(run_trials(tmp_path / "out", plan_trials(request, folds=8), device="cpu"))
    assert not (tmp_path / "out").exists()


def test_several_trainings_leave_other_folders_alone(model: Path, tmp_path: Path) -> None:
    fast = (*FAST, "epochs=1")
    data = write_reviews(tmp_path / "reviews.csv", 60)
    run(data, tmp_path / "one", model, overrides=fast)
    before = (tmp_path / "one/model.safetensors").read_bytes()
    several = plan_trials(make_finetune_request(data, model=model, overrides=fast), seeds=2)
    with pytest.raises(UsageError, match="a run with other settings"):
        list(run_trials(tmp_path / "one", several, device="cpu"))
    assert (tmp_path / "one/model.safetensors").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/README.md").write_text("mine")
    with pytest.raises(UsageError, match="holds no run: README"):
        list(run_trials(tmp_path / "mine", several, device="cpu"))
    list(run_trials(tmp_path / "several", several, device="cpu"))
    with pytest.raises(UsageError, match="a run with other settings"):
        run(data, tmp_path / "several", model, overrides=fast)
    more = plan_trials(make_finetune_request(data, model=model, overrides=fast), seeds=3)
    *_, last = run_trials(tmp_path / "several", more, device="cpu")
    assert len(last.fields["trials"]) == 3
    *_, last = run_trials(tmp_path / "one", several, device="cpu", overwrite=True)
    assert len(last.fields["trials"]) == 2


@pytest.mark.parametrize(
    ("labels", "often", "aside"),
    # all of them; 20; as many as a tenth of all
    [(8, 10, 8 + 1), (60, 10, 20 + 1), (300, 100, 100 + 10)],
)
def test_a_row_of_each_rare_label_is_set_aside_until_they_are_as_many_as_a_share(
    labels: int, often: int, aside: int
) -> None:
    given = [f"rare {n % labels}" for n in range(3 * labels)] + ["often"] * often
    found = [Item((f"a film {n}",), label, str(n)) for n, label in enumerate(given)]
    train, dev = divide(
        found, Schema(task="classification", text=("text",), label=("label",)), range(len(found))
    )
    assert sorted(train + dev, key=lambda item: int(item.where)) == found
    assert len(dev) == aside
    assert max(Counter(item.label for item in dev if item.label != "often").values()) == 1


def test_labels_of_rows_without_text_are_none(tmp_path: Path) -> None:
    rows = [f"a film {n},{'ab'[n % 2]}" for n in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows, ",rare"]) + "\n")
    assert read_data(tmp_path / "d.csv").schema.labels == ("a", "b")
    rows = [f"{'a film' if n % 2 else ''},{'ab'[n % 2]}" for n in range(40)]
    (tmp_path / "e.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    with pytest.raises(BertworksError, match="all rows with a text have the same label, 'b'"):
        read_data(tmp_path / "e.csv")


def test_answers_at_a_wrong_position_are_left_out_of_train(tmp_path: Path) -> None:
    rows = [
        {
            "context": f"Anna lives in house {n} .",
            "question": "who lives there ?",
            "answers": [{"text": "Anna", "answer_start": n % 2}],
        }
        for n in range(40)
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = read_data(tmp_path / "q.jsonl")
    assert {item.label for item in found.train} == {((0, "Anna"),)}
    note = next(
        note for note in found.notes if "answers are not at their position in the context" in note
    )
    assert int(note.split()[0]) + len(found.train) + len(found.dev) == 40


def test_spans_that_overlap_are_counted(tmp_path: Path) -> None:
    spans = [{"start": 0, "end": 10, "type": "p"}, {"start": 5, "end": 8, "type": "q"}]
    rows = [
        {"text": "Anna Boris of Oslo", "entities": spans if n < 20 else spans[:1]}
        for n in range(30)
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    data = read_data(tmp_path / "s.jsonl")
    assert any(
        "texts have overlapping spans" in note and "s.jsonl:1," in note for note in data.notes
    )


@pytest.mark.parametrize(
    ("names", "dev"),
    [
        (("train.csv", "devices.csv"), None),
        (("train-00.csv", "dev2.csv"), "dev2.csv"),
        (("training.csv", "validation.csv"), "validation.csv"),
        (("traindata.csv",), None),
    ],
)
def test_a_dev_file_is_called_so(names: tuple[str, ...], dev: str | None, tmp_path: Path) -> None:
    for name in names:
        write_reviews(tmp_path / name, 40)
    notes = read_data(tmp_path).notes
    assert (
        any(dev in note for note in notes)
        if dev
        else any("a random split" in note for note in notes)
    )


def test_hidden_files_of_a_folder_are_no_data(tmp_path: Path) -> None:
    write_reviews(tmp_path / "train.csv", 40)
    write_reviews(tmp_path / "._train.csv", 40)
    assert len(read_data(tmp_path).train) == 36


def test_questions_need_no_names(model: Path, tmp_path: Path) -> None:
    whole = json.loads(write_squad(tmp_path / "squad.json", impossible=False).read_text())
    rows = [
        {"context": paragraph["context"], "question": one["question"], "answers": one["answers"]}
        for paragraph in whole["data"][0]["paragraphs"]
        for one in paragraph["qas"]
    ]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    done = run(tmp_path / "q.jsonl", tmp_path / "out", model, overrides=(*FAST, "epochs=1"))
    assert done.fields["metric"] == "f1"


@pytest.mark.parametrize(
    ("task", "metric"), [("multilabel", "f1"), ("spans", "accuracy"), ("qa", "accuracy")]
)
def test_metrics_that_a_task_does_not_have_are_refused(
    task: str, metric: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=f"'{metric}' is not a metric of {task}"):
        run(write_examples(tmp_path, task), tmp_path / "out", model, metric=metric)
    assert not (tmp_path / "out").exists()


def test_f1_is_for_two_classes(model: Path, tmp_path: Path) -> None:
    rows = [f"a film {n},{'abc'[n % 3]}" for n in range(60)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    with pytest.raises(UsageError, match="'f1' is not a metric of classification"):
        run(tmp_path / "d.csv", tmp_path / "out", model, metric="f1")


def test_each_setting_changes_what_is_learned(model: Path, tmp_path: Path) -> None:
    data, found = tmp_path / "d.csv", set[bytes]()
    rows = [f"a film {n},{'rare' if n % 5 == 0 else 'usual'}" for n in range(60)]
    data.write_text("\n".join(["text,label", *rows]) + "\n")
    settings = (
        (),
        ("class_weights=balanced",),
        ("label_smoothing=0.1",),
        ("optimizer.layer_decay=0.5",),
    )
    for number, setting in enumerate(settings):
        run(data, tmp_path / str(number), model, overrides=(*FAST, "epochs=1", *setting))
        found.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(found) == len(settings)


def work_for(data: Path, model: Path, *overrides: str) -> FinetuneJob:
    """What a run with these settings trains."""
    request = make_finetune_request(data, model=model, overrides=(*FAST, *overrides))
    return FinetuneJob(prepare_finetuning(request, torch.device("cpu")))


def test_rare_labels_weigh_as_in_scikit_learn(model: Path, tmp_path: Path) -> None:
    rows = [f"a film {n},{'rare' if n % 5 == 0 else 'usual'}" for n in range(60)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    work = work_for(tmp_path / "d.csv", model, "class_weights=balanced", "label_smoothing=0.1")
    labels = [unit[0].target.labels.item() for unit in work.groups]
    expected = compute_class_weight("balanced", classes=np.array([0, 1]), y=labels)
    assert work.network().task == Classification(outputs=2, weights=tuple(expected), smoothing=0.1)
    assert work_for(tmp_path / "d.csv", model).network().task == Classification(outputs=2)


def test_a_label_that_never_occurs_weighs_one() -> None:
    units = [
        [Example(np.array([1]), np.zeros(1, int), {"task": Target(np.array([0]), np.array([n]))})]
        for n in (0, 0, 0, 2)
    ]
    assert balanced_weights(units, 3) == (pytest.approx(4 / 9), 1.0, pytest.approx(4 / 3))


def test_the_dropout_of_a_training_is_not_one_of_the_model(model: Path, tmp_path: Path) -> None:
    work = work_for(write_reviews(tmp_path / "r.csv", 40), model, "dropout=0.3")
    network = work.network()
    assert network.dropout == 0.3
    work.save(tmp_path / "out", network, {"step": 0, "evaluated": None, "evaluation": {}})
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["hidden_dropout_prob"] == config["attention_probs_dropout_prob"] == 0.0


def test_of_equal_scores_the_smaller_loss_is_better(model: Path, tmp_path: Path) -> None:
    work = work_for(write_reviews(tmp_path / "r.csv", 40), model)
    best = {"accuracy": 0.9, "loss": 0.5}
    assert work.is_better({"accuracy": 0.9, "loss": 0.4}, best)
    assert work.is_better({"accuracy": 0.91, "loss": 0.6}, best)
    assert not work.is_better({"accuracy": 0.9, "loss": 0.6}, best)
    assert not work.is_better(best, best)


def test_patience_counts_looks_at_dev(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "r.csv", 200)
    work = work_for(data, model, "evaluations=3", "patience=2")
    assert (work.settings.num_steps, work.settings.evaluate_every) == (6 * 12, 4)
    assert [work.settings.should_stop(evaluated, best=4) for evaluated in (4, 8, 12, 16)] == [
        False,
        False,
        True,
        True,
    ]
    assert not work_for(data, model, "patience=0").settings.should_stop(72, best=4)


def test_python_gives_a_model_that_predicts_and_is_saved(model: Path, tmp_path: Path) -> None:
    found = finetune(
        write_reviews(tmp_path / "reviews.csv"), model=model, overrides=FAST, device="cpu"
    )
    assert [one["label"] for one in found.predict(["a lovely film", "a nasty film"])] == [
        "pos",
        "neg",
    ]
    found.save(tmp_path / "kept")
    assert (
        Predictor(tmp_path / "kept", device="cpu").predict(["a lovely film"])[0]["label"] == "pos"
    )
    with pytest.raises(UsageError, match="not empty"):
        found.save(tmp_path / "kept")


def test_a_file_keeps_its_columns_order_and_rows(classifier: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 300)
    *_, done = predict_file(
        classifier, data, tmp_path / "scored.csv", probabilities=True, device="cpu"
    )
    with (tmp_path / "scored.csv").open() as scored, data.open() as requested:
        given, rows = list(csv.DictReader(scored)), list(csv.DictReader(requested))
    assert len(given) == len(rows) == done.fields["rows"]
    for row, before in zip(given, rows, strict=True):
        assert {name: row[name] for name in before} == before
    alone = Predictor(classifier, device="cpu").predict(
        [row["text"] for row in rows[:20]], probabilities=True
    )
    for row, one in zip(given, alone, strict=False):
        assert row["predicted_label"] == one["label"]
        assert json.loads(row["predicted_scores"]) == pytest.approx(one["scores"], abs=1e-5)


def test_columns_come_back_as_they_were(trained: Trained, tmp_path: Path) -> None:
    rows = [{"label": [[0, 4, "person"]], "text": "Anna was in this town", "n": 1}]
    (tmp_path / "doccano.jsonl").write_text(json.dumps(rows[0]) + "\n")
    list(
        predict_file(
            trained("spans")[0], tmp_path / "doccano.jsonl", tmp_path / "out.jsonl", device="cpu"
        )
    )
    reported = json.loads((tmp_path / "out.jsonl").read_text())
    assert {name: reported[name] for name in rows[0]} == rows[0]
    assert set(reported) == {*rows[0], "predicted_entities", "truncated_tokens"}


def test_what_is_there_is_not_written_over(classifier: Path, tmp_path: Path) -> None:
    lines = [{"text": "a good film"}] * 150 + [{"text": "a bad film", "predicted_label": "mine"}]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(UsageError, match="has a column 'predicted_label' already") as caught:
        list(predict_file(classifier, tmp_path / "d.jsonl", tmp_path / "out.jsonl", device="cpu"))
    assert str(caught.value.where).endswith("d.jsonl:151")
    data = write_reviews(tmp_path / "own.csv", 10)
    with pytest.raises(UsageError, match="this is the input file"):
        list(predict_file(classifier, data, data, device="cpu"))


@pytest.mark.parametrize("setting", ["dropout=1.0", "dropout=-0.5", "optimizer.beta2=1.0"])
def test_settings_that_make_no_sense_are_refused_before_anything(
    setting: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="expected a number from 0 to below 1"):
        run(write_reviews(tmp_path / "r.csv", 40), tmp_path / "out", model, overrides=(setting,))
    assert not (tmp_path / "out").exists()


def test_choices_are_counted_as_in_training(model: Path, tmp_path: Path) -> None:
    """Of a dev file in which the last choice is never right it cannot be known by its numbers."""
    rows = list(csv.DictReader(write_choices(tmp_path / "c.csv", 60).read_text().splitlines()))
    from_one = [row | {"label": str(int(row["label"]) + 1)} for row in rows]
    write_rows(tmp_path / "one.csv", list(rows[0]), from_one)
    write_rows(
        tmp_path / "dev.csv", list(rows[0]), [row for row in from_one if row["label"] != "3"]
    )
    run(tmp_path / "one.csv", tmp_path / "out", model, overrides=(*FAST, "epochs=2"))
    answers = Predictor(tmp_path / "out", device="cpu").predict(
        [
            (row["startphrase"], *(row[f"ending{n}"] for n in range(3)))
            for row in rows
            if row["label"] != "2"
        ]
    )
    right = [
        answer["choice"] == int(row["label"])
        for answer, row in zip(answers, (row for row in rows if row["label"] != "2"), strict=True)
    ]
    reported = evaluate_task(tmp_path / "out", tmp_path / "dev.csv", device="cpu")
    assert reported["figures"]["accuracy"] == pytest.approx(sum(right) / len(right))
    list(predict_file(tmp_path / "out", tmp_path / "dev.csv", tmp_path / "told.csv", device="cpu"))
    with (tmp_path / "told.csv").open() as file:
        assert [row["label"] == row["predicted_choice"] for row in csv.DictReader(file)] == right


def test_rows_with_more_or_fewer_choices_are_refused(model: Path, tmp_path: Path) -> None:
    rows = [
        {"question": f"who is number {n} ?", "choices": ["Anna", "Boris"], "label": n % 2}
        for n in range(40)
    ]
    rows[6]["choices"] = ["Anna", "Boris", "Clara"]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    with pytest.raises(BertworksError, match=r"c.jsonl:7: 3 choices, where most rows have 2"):
        work_for(tmp_path / "c.jsonl", model)


def test_long_texts_are_cut_and_it_is_said(classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("text\n" + "good " * 100 + "\ngood\n")
    *_, done = predict_file(
        classifier, tmp_path / "long.csv", tmp_path / "scored.csv", device="cpu"
    )
    with (tmp_path / "scored.csv").open() as file:
        assert [int(row["truncated_tokens"]) for row in csv.DictReader(file)] == [38, 0]
    assert "cut" in done.text


def test_a_stopped_prediction_goes_on(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 300)
    *_, _ = predict_file(classifier, data, tmp_path / "whole.csv", device="cpu")
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 50)
    for event in predict_file(classifier, data, tmp_path / "parts.csv", device="cpu"):
        if event.kind == "stage" and event.fields["amount"] >= 100:
            break
    assert not (tmp_path / "parts.csv").exists()
    events = list(predict_file(classifier, data, tmp_path / "parts.csv", device="cpu"))
    assert (
        1
        <= next(e for e in events if "resumed_portions" in e.fields).fields["resumed_portions"]
        < 6
    )
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not list(tmp_path.glob(".*portions"))


def test_a_stopped_prediction_of_other_weights_begins_anew(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where they lie in several files, as transformers writes large models."""
    data, folder = write_reviews(tmp_path / "reviews.csv", 100), tmp_path / "parts"
    shutil.copytree(classifier, folder)
    for record in ("weights.json", "result.json"):  # the folder is to be that of another program
        (folder / record).unlink(missing_ok=True)
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    part = folder / "model-00001-of-00001.safetensors"
    state = read_tensors(part)
    index = {"weight_map": dict.fromkeys(state, part.name)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    monkeypatch.setattr("bertworks.io.file_job.ROWS_AT_ONCE", 50)
    next(
        e for e in predict_file(folder, data, tmp_path / "a.csv", device="cpu") if e.kind == "stage"
    )
    write_tensors(part, {name: tensor * 0.5 for name, tensor in state.items()}, {})
    assert not any(
        "resumed_portions" in e.fields
        for e in predict_file(folder, data, tmp_path / "a.csv", device="cpu")
    )


def test_tags_cover_every_word_of_a_sentence_longer_than_the_model(trained: Trained) -> None:
    words = ["the", "film"] * 60 + ["Anna"] + ["was", "a"] * 60
    (answer,) = Predictor(trained("tagging")[0], device="cpu").predict([words])
    assert len(answer["tags"]) == len(words)
    assert answer["tags"][120] == "B-person"


def test_answers_and_entities_stand_where_they_say(
    trained: Trained, model: Path, tmp_path: Path
) -> None:
    run(
        write_squad(tmp_path / "squad.json", impossible=False),
        tmp_path / "qa",
        model,
        overrides=(*FAST, "epochs=2"),
    )
    context = (
        "the story of men and dogs in this town . " * 6
        + "Clara lives in Kyoto . "
        + "with some music . " * 10
    )
    (answer,) = Predictor(tmp_path / "qa", device="cpu").predict(
        [("where lives Clara ?", context)], top_k=3
    )
    assert context[answer["start"] : answer["end"]] == answer["answer"]
    assert answer["n_best"][0]["text"] == answer["answer"]
    (found,) = Predictor(trained("spans")[0], device="cpu").predict(["the music,  Boris, and dogs"])
    assert [(e["text"], e["type"]) for e in found["entities"]] == [("Boris", "person")]
    assert found["entities"][0]["start"] == 12


def test_rows_without_text_have_no_answer_and_are_named(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv")
    data.write_text(data.read_text() + ",pos,3\n")
    request = make_finetune_request(data, model=model, overrides=(*FAST, "epochs=1"))
    plan = next(
        event
        for event in finetune_events(tmp_path / "out", request, device="cpu")
        if event.kind == "plan"
    )
    assert "reviews.csv:202" in plan.text
    list(finetune_events(tmp_path / "out", request, device="cpu"))
    (tmp_path / "empty.csv").write_text('text\ngood film\n""\nbad film\n')
    events = list(
        predict_file(
            tmp_path / "out", tmp_path / "empty.csv", tmp_path / "scored.csv", device="cpu"
        )
    )
    assert any("empty.csv:3" in event.text for event in events)
    with (tmp_path / "scored.csv").open() as file:
        given = [row["predicted_label"] for row in csv.DictReader(file)]
    assert len(given) == 3
    assert [label == "" for label in given] == [False, True, False]


def test_tags_that_are_no_entities_are_evaluated_by_the_word(model: Path, tmp_path: Path) -> None:
    text = write_conll(tmp_path / "names.conll").read_text()
    (tmp_path / "words.conll").write_text(
        text.replace("B-person", "NAME").replace("B-place", "NAME").replace("\tO", "\tWORD")
    )
    done = run(tmp_path / "words.conll", tmp_path / "out", model)
    assert done.fields["metric"] == "accuracy"
    assert done.fields["score"] > 0.9
    assert set(done.fields["figures"]) >= {"accuracy", "macro_f1"}


@pytest.mark.parametrize("metric", [None, "macro_f1"])
def test_the_report_of_such_tags_has_their_figure(
    metric: str | None, model: Path, tmp_path: Path
) -> None:
    data = tmp_path / "words.conll"
    data.write_text("the\tDET\nfilm\tNOUN\n\nmen\tNOUN\nheard\tVERB\n\n" * 20)
    run(data, tmp_path / "out", model, overrides=(*FAST, "epochs=2"), metric=metric)
    title = "Macro F1 on dev" if metric else "Accuracy on dev"
    assert title in (tmp_path / "out" / "report.html").read_text()


def test_large_numbers_are_distinguished_in_bf16(model: Path, tmp_path: Path) -> None:
    """Years: in bf16 they would be 1944, 1952, 1960, ..."""
    lines = [
        "text,year",
        *(
            f"a film {word} {n},{year + n % 3}"
            for n in range(80)
            for word, year in (("good", 1990), ("bad", 1950))
        ),
    ]
    (tmp_path / "years.csv").write_text("\n".join(lines) + "\n")
    options = {"task": "regression", "label": "year", "precision": "bf16"}
    last = run(
        tmp_path / "years.csv",
        tmp_path / "out",
        model,
        overrides=("optimizer.learning_rate=2e-3", "epochs=6", "patience=0"),
        **options,
    )
    assert last.fields["figures"]["pearson"] > 0.99
    texts = [f"a {name} {word}" for name in ("film", "story", "town") for word in ("good", "bad")]
    exact, rounded = (
        [
            answer["value"]
            for answer in Predictor(tmp_path / "out", device="cpu", precision=precision).predict(
                texts
            )
        ]
        for precision in ("fp32", "bf16")
    )
    assert rounded == pytest.approx(exact, abs=1)
    assert all(value % 8 for value in rounded)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stop_while_the_network_computes_can_be_gone_on_from(
    precision: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16 the network holds rounded copies of its parameters then."""
    data, overrides = (
        write_reviews(tmp_path / "d.csv", 60),
        ("optimizer.learning_rate=2e-3", "epochs=2", "patience=0"),
    )
    request = make_finetune_request(data, model=model, overrides=overrides, precision=precision)
    *_, whole = finetune_events(tmp_path / "whole", request, device="cpu")

    forward, runs = TaskModel.forward, []

    def leaving(network: TaskModel, batch: Any) -> Any:
        if runs and runs[0].step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return forward(network, batch)

    class Watched(TrainingRun):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            runs.append(self)

    with monkeypatch.context() as patches:
        patches.setattr(TaskModel, "forward", leaving)
        patches.setattr("bertworks.runs.finetune.TrainingRun", Watched)
        with pytest.raises(KeyboardInterrupt):
            list(finetune_events(tmp_path / "out", request, device="cpu"))
    assert (tmp_path / "out" / "checkpoints" / "step-00000003").exists()
    *_, last = finetune_events(tmp_path / "out", request, device="cpu")
    assert last.fields["figures"] == whole.fields["figures"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out")]
    assert weights[0] == weights[1]


def test_the_seed_is_the_recipes_unless_another_is_named(model: Path, tmp_path: Path) -> None:
    data, own = write_reviews(tmp_path / "d.csv"), tmp_path / "own.toml"
    own.write_text(dump_recipe(load_finetune_recipe("stable")).replace("seed = 0", "seed = 9"))
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        ({"overrides": ["seed=5"]}, 5),
        ({"recipe": str(own)}, 9),
        ({"recipe": str(own), "seed": 2}, 2),
    ]
    for options, seed in cases:
        request = make_finetune_request(data, model=model, **options)
        assert FinetuneJob(prepare_finetuning(request, torch.device("cpu"))).recipe.seed == seed
    trials = plan_trials(make_finetune_request(data, model=model, overrides=["seed=5"]), seeds=2)
    assert [
        FinetuneJob(prepare_finetuning(one.request, torch.device("cpu"))).recipe.seed
        for one in trials
    ] == [5, 6]
    with pytest.raises(UsageError, match="--seeds"):
        plan_trials(request, sweep=["seed=1,2"])


def test_a_precision_of_inference_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision: 'int8' is none of 'auto', 'fp32', 'bf16'"):
        run(
            write_reviews(tmp_path / "d.csv"),
            tmp_path / "out",
            model,
            overrides=(),
            precision="int8",
        )
    assert not (tmp_path / "out").exists()


def test_a_folder_with_the_name_of_a_recipe_changes_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = make_finetune_request(write_reviews(tmp_path / "d.csv"), model=model, recipe="paper")
    before = request.content()
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "main.tex").write_text("x")
    assert request.content() == before


def test_nothing_of_dev_is_computed_twice(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first step, and of the best state once more at the end; unless a stop lies
    between."""
    requested: list[int] = []

    def counted(module: str, name: str) -> None:
        function = getattr(importlib.import_module(module), name)

        def counting(model: Any, units: Any, *given: Any) -> Any:
            requested.append(len(units))
            return function(model, units, *given)

        monkeypatch.setattr(f"{module}.{name}", counting)

    counted("bertworks.runs.finetune_job", "compute_logits_and_loss")
    data, overrides = write_squad(tmp_path / "squad.json"), (*FAST, "epochs=2")
    run(data, tmp_path / "out", model, overrides=overrides)
    assert requested == [12, 12]
    metrics = [
        json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in metrics if "evaluation" in line] == [7, 14]

    request = make_finetune_request(data, model=model, overrides=overrides)
    for event in finetune_events(tmp_path / "stopped", request, device="cpu"):
        if event.kind == "saved" and event.fields["step"] == 14:
            break
    requested.clear()
    *_, last = finetune_events(tmp_path / "stopped", request, device="cpu")
    assert requested == [12]
    kept, again = (
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("out", "stopped")
    )
    assert kept == again
    assert last.fields["figures"]["threshold"] == kept["figures"]["threshold"]


def test_the_forecast_counts_every_token(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[int] = []

    def time_step(
        network: Any, optimizer: Any, precision: str, batch: Any, seconds: float
    ) -> tuple[float, float]:
        timed.append(len(batch.input_ids))
        return 0.003 * len(batch.input_ids), 2.0

    monkeypatch.setattr("bertworks.runs.finetune_job.time_step", time_step)
    data = write_reviews(tmp_path / "d.csv", 400)
    request = make_finetune_request(data, model=model, overrides=("epochs=3", "precision=fp32"))
    work = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    events = finetune_events(tmp_path / "out", request, device="cpu")
    plan = next(event for event in events if event.kind == "plan")
    learned = sum(len(one.input_ids) for unit in work.groups for one in unit)
    requested = sum(len(one.input_ids) for encoded in work.dev for one in encoded.unit)
    steps = 3 * -(-len(work.groups) // 16)
    trained = 0.003 * (3 * learned + 3 * requested / 3) + 2.0 * steps
    # `auto` compares with the linear head, whose features are computed once
    frozen = 0.001 * learned
    simple = 0.001 * (learned + requested)  # the simple methods encode each text once
    assert plan.fields["estimated_seconds"] == pytest.approx(
        trained + simple + frozen * ("switches to frozen" in plan.text)
    )
    assert f"about {duration(plan.fields['estimated_seconds'])} on this machine" in plan.text
    minutes = -(-plan.fields["estimated_seconds"] // 180)  # of a third of it
    assert f"; for less: --budget {minutes:.0f}m or --method frozen" in plan.text
    # As many as are in a step, short and long ones.
    assert timed[0] == pytest.approx(16 * learned / len(work.groups), rel=0.05)


@pytest.mark.parametrize(
    ("count", "epochs"),
    [
        (10, 100),
        (100, 58),
        (500, 20),
        (16 * 100, 10),
        (16 * 142 + 1, 7),
        (16 * 400, 3),
        (16 * 2000, 3),
    ],
)
def test_few_rows_are_seen_often_and_many_three_times(count: int, epochs: int) -> None:
    recipe, c = load_finetune_recipe("stable", ["cloze_steps=0"]), EncoderConfig(vocab_size=100)
    assert resolve_recipe(recipe, count, c).epochs == epochs
    assert resolve_recipe(replace(recipe, epochs=2), count, c).epochs == 2


@pytest.mark.parametrize(
    ("count", "labels", "epochs"), [(5000, 12, 4), (5000, 67, 9), (500, 67, 20), (50_000, 67, 3)]
)
def test_many_labels_need_more_steps(count: int, labels: int, epochs: int) -> None:
    assert (
        resolve_recipe(load_finetune_recipe("stable"), count, EncoderConfig(), labels).epochs
        == epochs
    )


@pytest.mark.parametrize(("longest", "length"), [(64, 64), (512, 512), (1024, 512)])
def test_texts_are_read_up_to_512_tokens_unless_more_are_requested(
    longest: int, length: int
) -> None:
    stable = load_finetune_recipe("stable")
    assert default_max_length(stable, longest) == length
    assert default_max_length(replace(stable, max_length=longest), longest) == longest
    with pytest.raises(UsageError, match="the model reads at most"):
        default_max_length(replace(stable, max_length=longest + 1), longest)


def test_the_rate_suits_the_network_unless_it_is_named(model: Path, tmp_path: Path) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 40)
    run(data, tmp_path / "a", model, overrides=("epochs=1",))
    # 5e-5 * 768 / 32
    assert "\nlearning_rate = 0.0012\n" in (tmp_path / "a" / "recipe.toml").read_text()
    run(data, tmp_path / "b", model, overrides=("epochs=1", "optimizer.learning_rate=3e-4"))
    assert "\nlearning_rate = 0.0003\n" in (tmp_path / "b" / "recipe.toml").read_text()
    for hidden_size, rate in ((768, 5e-5), (384, 1e-4)):
        c = EncoderConfig(hidden_size=hidden_size)
        assert resolve_recipe(load_finetune_recipe("stable"), 1, c).optimizer.learning_rate == rate


def test_a_reported_score_did_not_choose_its_method(model: Path, tmp_path: Path) -> None:
    """The rows of a part have the predictions of the method that is best on the other parts."""
    data = write_reviews(tmp_path / "reviews.csv")
    settings = ("optimizer.learning_rate=2e-3", "epochs=2", "precision=fp32")
    request = finetune_module.make_finetune_request(data, model=model, overrides=settings)
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    gold = [
        job.description.labels.index(job.train[n].item.label)
        for part in job.data.parts[:EVALUATED]
        for n in part
    ]
    first = len(job.data.parts[0])

    def logits(right: Callable[[int], bool]) -> list[list[np.ndarray]]:
        rows = [
            np.eye(2, dtype=np.float32)[[label if right(n) else 1 - label]]
            for n, label in enumerate(gold)
        ]
        return [rows[:first], rows[first:]]

    # each is right on one part
    made = {"full": logits(lambda n: n < first), "frozen": logits(lambda n: n >= first)}
    with pytest.MonkeyPatch.context() as patch:

        def validate(one: FinetuneJob, folder: Path, parts: Any) -> Any:
            yield from ()
            return made[one.method]

        patch.setattr("bertworks.runs.finetune._validate", validate)
        stream = choose_method(job, tmp_path)
        try:
            while True:
                next(stream)
        except StopIteration as end:
            chosen = end.value
    assert [int(one.argmax()) for one in chosen.validated.chosen] == [1 - label for label in gold]


@pytest.mark.parametrize(
    ("methods", "gain", "method"),
    [
        (("full", "frozen"), 0.1, "frozen"),  # it is cheaper
        (("full", "frozen"), -0.1, "full"),
        (("frozen", "full"), 0.1, "frozen"),
        (("frozen", "full"), 0.6, "full"),
    ],
)
def test_a_dearer_method_must_be_clearly_better(
    methods: tuple[Method, ...],
    gain: float,
    method: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few rows must not choose by chance; the note gives the scores and the reason.

    The gain is that of the second method.
    """
    job = FinetuneJob(
        prepare_finetuning(
            finetune_module.make_finetune_request(
                write_reviews(tmp_path / "reviews.csv"), model=model
            ),
            torch.device("cpu"),
        )
    )
    gold = [
        job.description.labels.index(one.item.label)
        for part in job.data.parts[:EVALUATED]
        for one in (job.train[n] for n in part)
    ]
    monkeypatch.setattr(FinetuneJob, "compared_methods", methods)
    right = dict(zip(methods, (0.4, 0.4 + gain)))

    def validate(one: FinetuneJob, folder: Path, parts: Any) -> Any:
        yield from ()
        chance = np.random.default_rng(len(one.method)).random(len(gold))
        rows = [
            np.eye(2, dtype=np.float32)[[label if x < right[one.method] else 1 - label]]
            for label, x in zip(gold, chance)
        ]
        first = len(job.data.parts[0])
        return [rows[:first], rows[first:]]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertworks.runs.finetune._validate", validate)
        (note,) = [
            event for event in choose_method(job, tmp_path) if event.text.startswith("method: ")
        ]
    assert note.fields["method"] == method
    means = note.fields["methods"]
    assert (means[methods[1]] > means[methods[0]]) == (gain > 0)
    reason = "no other method is significantly better, so frozen is kept"
    assert (reason in note.text) == (methods[0] == "frozen" and gain < 0.5)


def few_reviews(folder: Path, model: Path, count: int = 24) -> FinetuneJob:
    """A job of the method "auto" with few rows of each class."""
    data = write_reviews(folder / "few.csv", count)
    request = finetune_module.make_finetune_request(data, model=model, precision="fp32")
    return FinetuneJob(prepare_finetuning(request, torch.device("cpu")))


@pytest.mark.parametrize(
    ("accuracies", "used", "of_parts"),
    [
        ((0.9, 0.9, 0.9), "frozen", ("frozen", "frozen")),
        ((0.8, 0.8, 0.8), "contrastive", ("contrastive", "contrastive")),
        ((0.9, 0.8, 0.9), "frozen", ("contrastive", "frozen")),
        ((0.8, 0.9, 0.8), "contrastive", ("frozen", "contrastive")),
    ],
)
def test_few_rows_of_a_class_are_learned_by_a_head_or_by_contrast(
    accuracies: tuple[float, float, float],
    used: str,
    of_parts: tuple[str, str],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What decides for the rows of a part are the other rows.

    Both methods are as good in the folds. Nothing is trained if a head is good enough.
    """
    job = few_reviews(tmp_path, model)
    assert job.compared_methods == ("contrastive", "frozen")
    validated = []
    sizes = [len(part) for part in job.data.parts[:EVALUATED]]

    def validate(one: FinetuneJob, folder: Path, parts: Any) -> Any:
        yield from ()
        validated.append(one.method)
        row = np.array([[1, 0] if one.method == "frozen" else [0, 1]], np.float32)
        return [[row] * size for size in sizes]

    parts = dict(zip((None, 0, 1), accuracies))
    monkeypatch.setattr("bertworks.runs.finetune._validate", validate)
    monkeypatch.setattr("bertworks.runs.finetune.frozen_accuracy", lambda _, part: parts[part])
    halves = np.full((EVALUATED, 9), 0.5)
    scored = finetune_module.Scores(halves[:, 0], halves, np.array(sizes))
    monkeypatch.setattr("bertworks.runs.finetune.score_parts", lambda *_: scored)
    stream = choose_method(job, tmp_path)
    notes = []
    try:
        while True:
            notes.append(next(stream))
    except StopIteration as end:
        chosen = end.value
    assert chosen.method == used
    (note,) = notes
    assert note.fields["method"] == used
    assert note.text == f"method: {chosen.choice}"
    assert ("which is enough (at least 85%)" in note.text) == (accuracies[0] > 0.85)
    assert ("contrastive" in validated) == (min(accuracies) < 0.85)
    expected = [
        int(method == "contrastive") for method, size in zip(of_parts, sizes) for _ in range(size)
    ]
    assert [int(row.argmax()) for row in chosen.validated.of_parts] == expected


def test_the_accuracy_of_a_head_of_all_rows_is_that_of_its_learning_curve(
    model: Path, tmp_path: Path
) -> None:
    """Of the rows outside a part, or of all."""
    job = few_reviews(tmp_path, model, 30)
    frozen = job.variant("frozen")
    labels = [job.description.labels.index(row.item.label) for row in frozen.train]
    for left_out in (None, 0, 1):
        part = () if left_out is None else job.data.parts[left_out]
        rows = [n for n in range(len(labels)) if n not in part]
        positions = []
        for logits in (frozen.logits_of_tenths, frozen.logits_of_parts):
            share = np.mean([logits[n][0].argmax() == labels[n] for n in rows])
            margin = 0.5 / len(rows)
            positions.append(np.arctanh(2 * np.clip(share, margin, 1 - margin) - 1))
        step = (1 - 0.9**-0.5) / (0.9**-0.5 - (2 / 3) ** -0.5)
        position = positions[0] + step * (positions[0] - positions[1])
        expected = (1 + np.tanh(position)) / 2
        assert frozen_accuracy(job, left_out) == pytest.approx(expected, abs=1e-9)


def test_which_methods_are_compared(model: Path, tmp_path: Path) -> None:
    """By the rows of the class in the middle, and by whether the rows can be divided."""
    for count, methods in (
        (10, ("frozen",)),
        (24, ("contrastive", "frozen")),
        (80, ("full", "frozen")),
    ):
        assert few_reviews(tmp_path, model, count).compared_methods == methods
    rows = [{"text": f"a film {n}", "label": "ab"[n % 2], "author": "me"} for n in range(20)]
    dev = write_reviews(tmp_path / "dev.csv", 20)
    dev.write_text(dev.read_text().replace("pos", "a").replace("neg", "b"))
    request = finetune_module.make_finetune_request(
        rows, dev=dev, model=model, group="author", text="text", label="label"
    )
    job = FinetuneJob(prepare_finetuning(request, torch.device("cpu")))
    assert job.compared_methods == ("contrastive",)


def test_a_dearer_method_with_as_many_right_rows_is_used() -> None:
    """Parts of 33 and 34 rows have other means for the same number of right rows."""
    sizes = np.array([33, 34])

    def scores(*right: int) -> finetune_module.Scores:
        parts = np.array(right) / sizes
        return finetune_module.Scores(parts, np.tile(parts[:, None], 5), sizes)

    full = scores(25, 25)
    assert full.mean([0, 1]) == pytest.approx(50 / 67)
    for right, method in (((26, 24), "full"), ((24, 27), "frozen"), ((24, 25), "full")):
        compared: dict[Method, finetune_module.Scores] = {"full": full, "frozen": scores(*right)}
        compared["full"].samples[:, :2] += 0.1  # so that nothing is clear
        assert finetune_module.best_method(compared, [0, 1]) == method
        assert finetune_module.best_method(compared, [0, 1], few=True) == "full"
