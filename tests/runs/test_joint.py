"""One encoder with the heads of several tasks: steps, their order, Adamax, the folders of the
tasks, refusals."""

import copy
import gc
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import bertworks as bw
from bertworks.batching.batch import Batch, joint_sizes, joint_step
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.checkpoints.resolve import joint_tasks, resolve_model
from bertworks.cli.main import main
from bertworks.errors import BertworksError, UsageError
from bertworks.runs.joint import finetune_joint, joint_events, make_joint_request
from bertworks.tasks.heads import JointModel, TaskModel
from bertworks.training.loop import make_optimizer, train
from bertworks.training.recipe import OptimizerConfig
from tests.scenarios.test_finetune_processes import torchrun
from tests.support.fine import (
    write_conll,
    write_model,
    write_multilabel,
    write_pairs,
    write_reviews,
)
from tests.support.heads import CASES, CONFIG, batch_of

SETTINGS = ("optimizer.learning_rate=2e-3", "precision=fp32", "epochs=2", "save_every=7")
SHARED = "model-00001-of-00002.safetensors"


def models(*tasks: str) -> dict[str, TaskModel]:
    torch.manual_seed(0)
    made = {task: TaskModel(CONFIG, CASES[task][0]) for task in tasks}
    for parameter in [p for model in made.values() for p in model.parameters()]:
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def named(task: str, seed: int = 0) -> Batch:
    batch = batch_of(task, seed)
    return Batch(batch.input_ids, batch.layout, batch.token_type_ids, {task: batch.target})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_of_one_task_is_the_step_of_this_task(precision: Any) -> None:
    c = OptimizerConfig(optimizer="adamax", learning_rate=1e-3, schedule="constant", warmup=0.0)
    alone, other = models("regression")["regression"], models("regression")
    joint = JointModel(other)
    one = [
        *train(
            alone,
            make_optimizer(alone, c),
            lambda n: [batch_of("regression", n)],
            c,
            3,
            precision=precision,
        )
    ]
    two = [
        *train(
            joint,
            make_optimizer(joint, c),
            lambda n: [named("regression", n)],
            c,
            3,
            precision=precision,
        )
    ]
    assert [step.read() for step in one] == [step.read() for step in two]
    assert all(map(torch.equal, alone.parameters(), other["regression"].parameters()))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_tasks_give_the_encoder_the_sum_of_their_gradients(precision: Any) -> None:
    """Accumulated in one step, which divides by the terms of both."""
    tasks = ("classification", "tagging", "multilabel")
    ours = models(*tasks)
    joint = JointModel(ours)
    assert len({id(model.encoder) for model in ours.values()}) == 1
    expected: dict[str, torch.Tensor] = {}
    counts = [joint.counts(named(task))["task"] for task in tasks[:2]]
    for task in tasks[:2]:
        model = copy.deepcopy(ours[task])
        model(batch_of(task))["task"][0].backward()
        for name, p in model.named_parameters():
            key = (
                name
                if name.startswith(("encoder", "pooler"))
                else f"heads.{tasks.index(task)}.{name.partition('.')[2]}"
            )
            assert p.grad is not None
            expected[key] = expected.get(key, 0) + p.grad / sum(counts)
    seen: dict[str, torch.Tensor] = {}

    def keep() -> None:
        seen.update(
            {name: p.grad.clone() for name, p in joint.named_parameters() if p.grad is not None}
        )

    batches = [named(task) for task in tasks[:2]]
    c = OptimizerConfig(max_grad_norm=0.0)
    next(
        train(
            joint,
            make_optimizer(joint, c),
            lambda _: batches,
            c,
            1,
            precision=precision,
            before_update=keep,
        )
    )
    assert seen.keys() == {name for name, _ in joint.named_parameters()}
    limit = 1e-4 if precision == "fp32" else 0.1
    for name, gradient in seen.items():
        if name.startswith("heads.2"):
            assert not gradient.any(), name
        else:
            assert expected[name].any(), name
            # The bias of keys has no gradient but rounding.
            assert (gradient - expected[name]).norm() <= limit * expected[name].norm().clamp_min(
                1e-3
            ), name


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0, 9.0])
def test_an_epoch_has_each_batch_once_in_an_order_of_its_own(mix: float) -> None:
    sizes = [8, 5, 11]
    first, others = joint_sizes(sizes, mix)
    assert (first, others) == (8, {0.0: 16, 0.5: 4, 1.0: 8, 9.0: 16}[mix])
    count, orders, drawn = first + others, [], []
    for epoch in range(3):
        steps = [
            joint_step(n, sizes, mix, seed=4) for n in range(epoch * count, (epoch + 1) * count)
        ]
        assert len(set(steps)) == count
        for task, number in steps:
            assert epoch * sizes[task] <= number < (epoch + 1) * sizes[task]
        tasks = [task for task, _ in steps]
        orders.append(tasks)
        drawn.append({(task, number - epoch * sizes[task]) for task, number in steps})
        assert Counter(tasks)[0] == 8
        assert tasks != sorted(tasks)
    assert orders[0] != orders[1]
    assert (drawn[0] == drawn[1]) == (others == 16)
    assert orders[0] != [joint_step(n, sizes, mix, seed=5)[0] for n in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("data")
    paths = [
        write_conll(folder / "people.conll"),
        write_reviews(folder / "reviews.csv"),
        write_pairs(folder / "pairs.tsv"),
        write_multilabel(folder / "topics.jsonl"),
    ]
    return list(map(str, paths))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def joint(data: list[str], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("joint") / "out"
    overrides = (*SETTINGS, "epochs=3", "select=best", "optimizer.optimizer=adamw")
    overrides += ("optimizer.learning_rate=5e-3",)
    *_, done = joint_events(
        folder, make_joint_request(data, model=model, overrides=overrides), device="cpu"
    )
    figures = done.fields["figures"]
    assert figures["people"]["f1"] > 0.9
    assert figures["pairs"]["spearman"] > 0.5
    return folder


def test_each_task_is_a_folder_with_one_file_of_the_encoder(joint: Path) -> None:
    tasks = joint_tasks(joint)
    assert [*tasks] == ["pairs", "people", "reviews", "topics"]
    assert len({(folder / SHARED).stat().st_ino for folder in tasks.values()}) == 1
    for name in tasks:
        assert name in (joint / "README.md").read_text()
        assert f"tasks/{name}" in (joint / "report.html").read_text()
    texts = ["a great film", "the music was awful"]
    ours = bw.load(joint, task="reviews").predict(texts, probabilities=True)
    theirs = transformers.pipeline(
        "text-classification", model=str(tasks["reviews"]), top_k=None, device="cpu"
    )(texts)
    for one, other in zip(ours, theirs, strict=True):
        assert one["scores"] == pytest.approx(
            {row["label"]: row["score"] for row in other}, abs=1e-5
        )
    tokens = transformers.AutoModelForTokenClassification.from_pretrained(tasks["people"])
    state = tokens.state_dict()
    loaded = ModelFolder(tasks["people"]).weights
    assert state.keys() <= loaded.keys()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in state.items())
    assert bw.load(tasks["people"]).predict([["Anna", "lives", "in", "Paris"]])[0]["tags"]


@pytest.mark.slow
def test_a_stopped_run_has_the_bits_of_a_whole_one(
    data: list[str], model: Path, tmp_path: Path
) -> None:
    request = make_joint_request(data[:3], model=model, overrides=SETTINGS, mix=1.5)
    *_, whole = joint_events(tmp_path / "whole", request, device="cpu")
    for limit in (5, 9, 16):
        for event in joint_events(tmp_path / "parts", request, device="cpu"):
            if event.kind == "step" and event.fields["step"] % limit == 0:
                break
    *_, last = joint_events(tmp_path / "parts", request, device="cpu")
    assert whole.fields["step"] == 2 * sum(joint_sizes([14, 23, 23], 1.5))
    for name in ("people", "reviews", "pairs"):
        for file in (SHARED, SHARED.replace("01-of", "02-of")):
            parts = [tmp_path / run / "tasks" / name / file for run in ("whole", "parts")]
            assert parts[0].read_bytes() == parts[1].read_bytes()
    assert last.fields["figures"] == whole.fields["figures"]
    *_, again = joint_events(tmp_path / "parts", request, device="cpu")
    assert again.fields == last.fields


@pytest.mark.slow
def test_two_processes_are_one(data: list[str], model: Path, tmp_path: Path) -> None:
    words = ["finetune", *data[:3], "--joint", "--model", str(model), "--device", "cpu", "--json"]
    words += [word for setting in (*SETTINGS, "batch_size=7") for word in ("--set", setting)]
    done = torchrun([*words, "-o", str(tmp_path / "two")])
    assert done.returncode == 0, done.stderr
    request = make_joint_request(data[:3], model=model, overrides=(*SETTINGS, "batch_size=7"))
    *_, one = joint_events(tmp_path / "one", request, device="cpu")
    for name in ("people", "reviews", "pairs"):
        ours, theirs = (
            ModelFolder(tmp_path / run / "tasks" / name).weights for run in ("two", "one")
        )
        for key, tensor in theirs.items():
            assert (ours[key] - tensor).abs().max() <= 2e-3 * tensor.abs().max().clamp_min(0.1), (
                name,
                key,
            )
    fields = json.loads((tmp_path / "two/finished.json").read_text())["fields"]
    assert fields["step"] == one.fields["step"]
    expected = one.fields["figures"]["pairs"]["spearman"]
    assert fields["figures"]["pairs"]["spearman"] == pytest.approx(expected, abs=1e-2)


def test_a_task_goes_on_alone_with_its_head_or_with_a_new_one(
    joint: Path, data: list[str], tmp_path: Path
) -> None:
    other = tmp_path / "films.csv"
    other.write_text(Path(data[1]).read_text())
    request: dict[str, Any] = {
        "model": joint,
        "method": "full",
        "validation": "split",
        "overrides": ("epochs=1",),
    }
    for file, head in ((data[1], True), (str(other), False)):
        events = list(
            bw.finetune_events(
                tmp_path / Path(file).stem, bw.make_finetune_request(file, **request)
            )
        )
        (note,) = (event.text for event in events if event.text.startswith("starts from"))
        assert note.startswith(
            f"starts from the encoder{' and the head' * head} in {joint / 'tasks'}"
        )
        assert joint_tasks(tmp_path / Path(file).stem) == {}
    wrong = tmp_path / "people.csv"
    wrong.write_text(Path(data[1]).read_text())
    with pytest.raises(BertworksError, match="fine-tuned for tagging"):
        list(
            bw.finetune_events(tmp_path / "wrong", bw.make_finetune_request(str(wrong), **request))
        )


def test_models_in_memory_by_name(model: Path) -> None:
    rows = [
        {"text": text, "label": label}
        for text, label in (("a good film", "yes"), ("a bad film", "no"))
    ] * 20
    found = finetune_joint(
        {"a": rows, "b": rows}, model=model, overrides=("epochs=1", "precision=fp32"), device="cpu"
    )
    assert [*found] == ["a", "b"]
    assert found["b"].predict(["a good film"])[0]["label"] in ("yes", "no")
    folder = found["b"].folder
    del found["a"]
    gc.collect()
    assert (folder / "config.json").exists()  # the folder of both models, until both are freed
    del found
    gc.collect()
    assert not folder.exists()


def test_a_model_of_several_tasks_needs_the_name_of_one(
    joint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        BertworksError, match="several tasks: pairs, people, reviews, topics"
    ) as refusal:
        resolve_model(joint)
    assert refusal.value.hint == f"name the folder of one: {joint / 'tasks/pairs'}"
    with pytest.raises(BertworksError, match="no task 'x': the model has pairs, people"):
        bw.task_folder(joint, "x")
    with pytest.raises(BertworksError, match="not fine-tuned jointly"):
        bw.task_folder(joint / "tasks/people", "people")
    capsys.readouterr()
    assert main(["predict", str(joint), "-t", "a good film", "--task", "reviews", "-v"]) == 0
    assert "predicted_label" in capsys.readouterr().out


def test_requests_without_meaning_are_refused(data: list[str], model: Path, tmp_path: Path) -> None:
    def refused(
        message: str, *paths: str, error: type[BertworksError] = UsageError, **options: Any
    ) -> None:
        with pytest.raises(error, match=message):
            list(joint_events(tmp_path / "out", make_joint_request(paths, **options), device="cpu"))
        assert not (tmp_path / "out").exists()

    two = data[:2]
    given: dict[str, Any] = {
        "text": ("text",),
        "label": "x",
        "dev": "dev.csv",
        "task": "qa",
        "budget": "5m",
        "folds": 3,
        "seeds": 2,
        "sweep": ["paper"],
        "method": "frozen",
        "validation": "folds",
        "group": "g",
        "metric": "f1",
    }
    for name, value in given.items():
        refused(f"--{name} is for one data set", *two, **{name: value})
    refused("two or more data sets", two[0])
    refused("two data sets have the name 'people'", two[0], two[0])
    refused("mix is -1", *two, mix=-1)
    refused(
        "task none: there is no such file",
        two[0],
        str(tmp_path / "none.csv"),
        error=BertworksError,
        model=model,
    )
    refused("recipe stable has no number of epochs", *two, recipe="stable", model=model)
    refused(
        "lstm_units is for one task",
        *two,
        recipe="feature_based",
        model=model,
        overrides=("epochs=1",),
    )
    refused("cloze_steps is for one task", *two, model=model, overrides=("cloze_steps=3",))
    refused("lm_weight is for one task", *two, model=model, overrides=("lm_weight=0.5",))
    refused("--teacher is for one data set", *two, model=model, teacher=model)
    with pytest.raises(UsageError, match="not a name of a task"):
        make_joint_request({"a/b": two[0], "c": two[1]})
