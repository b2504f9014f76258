"""Fine-tunings for few questions begin with questions that are made from their texts."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.checkpoints.storage import read_tensors
from bertworks.models.config import EncoderConfig
from bertworks.runs import finetune as finetune_module
from bertworks.runs.data_splits import PARTS
from bertworks.runs.finetune import finetune_events
from bertworks.runs.finetune_job import FinetuneJob, Forecast, prepare_finetuning
from bertworks.tasks.registry import task_of
from bertworks.tasks.task import Featurizer
from bertworks.training.recipe import load_finetune_recipe, resolve_recipe
from tests.support.fine import write_reviews, write_squad

make_finetune_request = partial(
    finetune_module.make_finetune_request, method="full", validation="split"
)
SHORT = ("cloze_steps=3", "epochs=2", "precision=fp32", "optimizer.learning_rate=1e-3")


def job(data: Path, model: Path, *overrides: str, **options: Any) -> FinetuneJob:
    request = make_finetune_request(
        data, model=model, overrides=("precision=fp32", *overrides), **options
    )
    return FinetuneJob(prepare_finetuning(request, torch.device("cpu")))


@pytest.mark.parametrize(
    ("settings", "count", "expected"),
    [
        ({}, 50, (200, 50)),  # together as many steps as for other tasks
        ({}, 100, (200, 29)),
        ({}, 304, (200, 20)),
        ({}, 305, (0, 20)),
        ({}, 500, (0, 20)),
        ({"epochs": 7}, 50, (0, 7)),
        ({"epochs": 7, "cloze_steps": 30}, 50, (30, 7)),
        ({"cloze_steps": 0}, 50, (0, 100)),
        ({"cloze_steps": 1000}, 100, (1000, 20)),
        ({"cloze_steps": 30}, 5000, (30, 4)),
    ],
)
def test_few_questions_begin_with_clozes(
    settings: dict[str, int], count: int, expected: tuple[int, int]
) -> None:
    recipe = resolve_recipe(
        replace(load_finetune_recipe("stable"), **settings), count, EncoderConfig(vocab_size=100)
    )
    assert (recipe.cloze_steps, recipe.epochs) == expected
    # as of a fold
    assert resolve_recipe(recipe, count // 2, EncoderConfig(vocab_size=100)) == recipe


def test_other_tasks_recipes_and_heads_begin_with_their_labels(model: Path, tmp_path: Path) -> None:
    questions = write_squad(tmp_path / "squad.json", 40, impossible=False)
    assert job(questions, model).recipe.cloze_steps == 200
    for other in (
        job(questions, model, recipe="paper"),
        job(write_reviews(tmp_path / "reviews.csv", 40), model, "cloze_steps=5"),
    ):
        assert (other.recipe.cloze_steps, other.clozes) == (0, [])
    *_, done = finetune_events(
        tmp_path / "out",
        make_finetune_request(questions, model=model, overrides=SHORT),
        device="cpu",
    )
    assert done.kind == "done"
    assert job(questions, tmp_path / "out", "cloze_steps=5").recipe.cloze_steps == 0
    assert job(questions, tmp_path / "out", "cloze_steps=5", new_head=True).recipe.cloze_steps == 5


def test_the_first_batches_are_clozes_of_the_training_rows_then_the_labelled_ones(
    model: Path, tmp_path: Path
) -> None:
    data = write_squad(tmp_path / "squad.json", 40, impossible=False)
    some, none = job(data, model, *SHORT), job(data, model, *SHORT, "cloze_steps=0")
    assert none.settings.num_steps == 2 * none.train_batches.steps_per_epoch
    assert some.settings.num_steps == 3 + none.settings.num_steps
    clozes = {tuple(one.input_ids.tolist()) for group in some.clozes for one in group}
    batches, labelled = (one.batches(tmp_path, 0, 1, print) for one in (some, none))
    seen = set()
    for step in range(3):
        for batch in batches(step):
            ids = batch.input_ids.split(batch.layout.cu_seqlens.diff().tolist())
            seen |= {tuple(row.tolist()) for row in ids}
    assert seen == clozes
    for step in range(none.settings.num_steps):
        ours, theirs = batches(3 + step), labelled(step)
        assert [one.input_ids.tolist() for one in ours] == [
            one.input_ids.tolist() for one in theirs
        ]
    assert [some.progress(step).fields["epoch"] for step in (0, 3, some.settings.num_steps)] == [
        0,
        0,
        2,
    ]
    # Two processes share each batch.
    both = [some.batches(tmp_path, rank, 2, print)(0) for rank in (0, 1)]
    assert sum(one.layout.num_sequences for part in both for one in part) == 16


def test_a_fold_makes_no_clozes_from_the_texts_that_it_predicts(
    model: Path, tmp_path: Path
) -> None:
    whole = job(
        write_squad(tmp_path / "squad.json", 80, impossible=False), model, *SHORT, validation="auto"
    )
    assert whole.data.is_validated
    fold = whole.fold(0)
    assert fold.recipe.cloze_steps == 3
    texts = {item.texts[1] for item in fold.data.train}
    assert texts.isdisjoint({item.texts[1] for item in fold.data.dev})
    assert len(fold.data.train) == pytest.approx(80 * (PARTS - 1) / PARTS, abs=4)
    featurize = Featurizer(fold.model.tokenizer, task_of(fold.description))
    own = featurize.clozes(fold.data.train, 3 * 16, fold.recipe.seed)
    assert [one.input_ids.tolist() for (one,) in fold.clozes] == [
        one.input_ids.tolist() for (one,) in own
    ]


def test_patience_begins_with_the_labelled_questions(model: Path, tmp_path: Path) -> None:
    data = write_squad(tmp_path / "squad.json", 40, impossible=False)
    one = job(data, model, "cloze_steps=30", "epochs=9", "select=best", "patience=2")
    wait = 2 * one.settings.evaluate_every
    assert not one.settings.should_stop(30 + wait - 1, one.settings.evaluate_every)
    assert one.settings.should_stop(30 + wait, one.settings.evaluate_every)
    assert not one.settings.should_stop(40 + wait - 1, 40)
    assert one.settings.should_stop(40 + wait, 40)


def test_a_run_that_is_stopped_within_the_clozes_ends_with_the_same_weights(
    model: Path, tmp_path: Path
) -> None:
    request = make_finetune_request(
        write_squad(tmp_path / "squad.json", 40), model=model, overrides=(*SHORT, "save_every=2")
    )
    for event in finetune_events(tmp_path / "stopped", request, device="cpu"):
        if event.kind == "saved" and event.fields["step"] == 2:
            break
    for name in ("stopped", "whole"):
        *_, done = finetune_events(tmp_path / name, request, device="cpu")
        assert done.fields["step"] == 3 + 2 * 3
    ours, theirs = (
        read_tensors(tmp_path / name / "model.safetensors") for name in ("stopped", "whole")
    )
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_plan_and_forecast_count_the_clozes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bertworks.runs.finetune_job.time_step",
        lambda *given: (0.003 * len(given[3].input_ids), 0.5),
    )
    data = write_squad(tmp_path / "squad.json", 40, impossible=False)

    def plan(*overrides: str) -> Any:
        request = make_finetune_request(data, model=model, overrides=(*SHORT, *overrides))
        return next(
            e
            for e in finetune_events(tmp_path / "-".join(overrides), request, device="cpu")
            if e.kind == "plan"
        )

    some, none = plan("cloze_steps=30"), plan("cloze_steps=0")
    assert "training     30 steps on clozes, then 2 epochs" in some.text
    assert "clozes" not in none.text
    of_clozes = sum(
        len(one.input_ids) for group in job(data, model, "cloze_steps=30").clozes for one in group
    )
    more = some.fields["estimated_seconds"] - none.fields["estimated_seconds"]
    work = job(data, model, *SHORT)
    evaluated = sum(len(one.input_ids) for unit in work.dev_units for one in unit)
    evaluations = 30 // work.settings.evaluate_every
    assert more == pytest.approx(
        0.003 * (of_clozes + evaluations * evaluated / 3) + 0.5 * 30, rel=0.02
    )


def test_a_budget_takes_clozes_and_epochs_alike(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "bertworks.runs.finetune.forecast", lambda job, *_: Forecast(2.0 * job.recipe.epochs, 0.0)
    )
    data = write_squad(tmp_path / "squad.json", 40, impossible=False)
    request = make_finetune_request(data, model=model, budget="1m")
    plan = next(
        e for e in finetune_events(tmp_path / "out", request, device="cpu") if e.kind == "plan"
    )
    whole, fitted = job(data, model).recipe, plan.fields["recipe"]
    assert 0 < fitted["epochs"] < whole.epochs
    assert fitted["cloze_steps"] == 200 * fitted["epochs"] // whole.epochs


def test_contexts_without_a_token_are_trained_on(model: Path, tmp_path: Path) -> None:
    articles = []
    for n in range(30):
        requested = [{"id": f"q{n}", "question": "who ?", "is_impossible": True, "answers": []}]
        articles.append({"title": str(n), "paragraphs": [{"context": "\u200b", "qas": requested}]})
    data = tmp_path / "squad.json"
    data.write_text(json.dumps({"version": "v2.0", "data": articles}))
    request = make_finetune_request(data, dev=data, model=model, overrides=SHORT)
    *_, done = finetune_events(tmp_path / "out", request, device="cpu")
    assert done.fields["step"] == 3 + 2 * 2
