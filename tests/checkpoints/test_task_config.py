"""Descriptions of tasks: read from task.json or from the settings of transformers, and compared
with the data."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bertworks.checkpoints.task_config import (
    check_same_task,
    read_task_json,
    save_task,
    task_from_settings,
    task_settings,
)
from bertworks.errors import BertworksError
from bertworks.tasks.settings import TaskConfig
from tests.support.refusals import refusal

TAGGER = TaskConfig(task="tagging", labels=("O", "B-work"), text=("tokens",), lstm_units=8)


def test_a_description_comes_back(tmp_path: Path):
    task = TaskConfig(
        task="classification", labels=("neg", "pos"), text=("text",), max_length=32, positive="pos"
    )
    save_task(task, tmp_path)
    assert read_task_json(tmp_path / "task.json") == task


@pytest.mark.parametrize(
    ("changes", "what", "hint"),
    [
        ({"format": 99}, "not a description of format", "upgrade bertworks"),
        ({"max_length": 2}, "max_length is 2: expected 3 or more", ""),
        ({"positive": "neu"}, "the positive label 'neu' is not one of the labels", ""),
        ({"labels": None}, "labels", ""),
    ],
)
def test_a_damaged_description_is_refused(
    changes: dict[str, Any], what: str, hint: str, tmp_path: Path
):
    save_task(TaskConfig(task="classification", labels=("neg", "pos"), text=("text",)), tmp_path)
    path = tmp_path / "task.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with refusal(what, hint):
        read_task_json(path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"task": "spans"}, "the model was fine-tuned for tagging (O, B-work), the data is for"),
        ({"labels": ("O", "B-name")}, "the model's labels are not those of the data"),
        ({"lstm_units": 0}, "the model's head has 8 LSTM units, the recipe has 0"),
        ({"feature_layers": "last"}, "the recipe has 'last'"),
    ],
)
def test_a_head_of_another_task_is_refused(changes: dict[str, Any], what: str):
    head = TaskConfig(**asdict(TAGGER) | {"feature_layers": "all"})
    data = TaskConfig(**asdict(head) | changes)
    check_same_task(head, head, "a model")
    with refusal(what, "--reset-head discards the model's head and trains a new one"):
        check_same_task(head, data, "a model")


def test_the_settings_of_a_head_name_its_task(tmp_path: Path):
    task = TaskConfig(task="multilabel", labels=("loud", "rude"), text=("text",))
    settings = {"model_type": "bert", **task_settings(task)}
    assert settings["architectures"] == ["BertForSequenceClassification"]
    read = task_from_settings(settings, tmp_path / "config.json")
    assert (read.task, read.labels) == ("multilabel", ("loud", "rude"))


def test_settings_without_a_task_are_refused(tmp_path: Path):
    advice = "fine-tune it: bertworks finetune DATA --model"
    with refusal("this model (BertModel) was not fine-tuned for a task", advice):
        task_from_settings(
            {"model_type": "bert", "architectures": ["BertModel"]}, tmp_path / "config.json"
        )
    head = {"architectures": ["BertForSequenceClassification"], "is_decoder": True}
    with refusal("reads the first token of a text, which from left to right has read", advice):
        task_from_settings({"model_type": "bert", **head}, tmp_path / "config.json")
    with pytest.raises(BertworksError, match="id2label"):
        task_from_settings({"model_type": "bert", "id2label": 3, **head}, tmp_path / "config.json")
