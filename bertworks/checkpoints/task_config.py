"""Read and write the task of a fine-tuned model.

It is task.json, or the settings of config.json that transformers writes. Labels are compared by
name, not by id.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bertworks.checkpoints.hf_config import (
    FAMILIES,
    VECTOR_CLASS,
    config_from_huggingface,
    own_type,
)
from bertworks.checkpoints.storage import read_json
from bertworks.config import build
from bertworks.errors import BertworksError, first_names, quoted, require
from bertworks.events import JsonObject
from bertworks.io.atomic_write import write_json
from bertworks.models.config import BERT, EncoderConfig
from bertworks.tasks.registry import TASKS
from bertworks.tasks.settings import TaskConfig, TaskType

if TYPE_CHECKING:
    from torch import Tensor

TASK_FILE = "task.json"
FORMAT = 1
MAX_LABELS = 100_000
_OWN_CLASS = "BertworksRecurrentTagger"  # unknown to transformers


def save_task(task: TaskConfig, folder: Path) -> None:
    """Write task.json."""
    write_json(folder / TASK_FILE, {"format": FORMAT, **asdict(task)})


def is_own_network(task: TaskConfig, c: EncoderConfig) -> bool:
    """Return whether transformers has no such network, on an encoder of this configuration."""
    return bool(task.lstm_units) or task.reads_means or _pools_last(task.task, c)


def task_from_settings(settings: Mapping[str, Any], path: Path) -> TaskConfig:
    """The task of a config.json without task.json, as transformers writes it.

    Args:
        path: the config.json, for messages.

    Raises:
        BertworksError: no head of a task, or damaged labels.
    """
    tasks = tasks_of(settings)
    names = settings.get("architectures")
    head = ", ".join(map(str, names))[:100] if isinstance(names, list) and names else "no head"
    hint = f"fine-tune it: bertworks finetune DATA --model {quoted(path.parent)} -o ANOTHER-FOLDER"
    require(tasks, f"this model ({head}) was not fine-tuned for a task", path.parent, hint)
    labels = _labels(settings, path)
    if TASKS[tasks[0]].problem_type:
        problem = settings.get("problem_type") or ("regression" if len(labels) == 1 else None)
        tasks = [task for task in tasks if TASKS[task].problem_type == problem] or tasks
    config = config_from_huggingface(settings, where=path)
    length = config.max_position_embeddings
    require(
        not _pools_last(cast(TaskType, tasks[0]), config),
        f"{head} reads the first token of a text, which from left to right has read nothing "
        "(is_decoder is true)",
        path.parent,
        hint,
    )
    labels = labels if TASKS[tasks[0]].has_labels else ()
    return TaskConfig(task=cast(TaskType, tasks[0]), labels=labels, max_length=min(512, length))


def _pools_last(task: TaskType, c: EncoderConfig) -> bool:
    """Return whether a decoder is read at the last token of a text.

    transformers reads the first one, which has read nothing.
    """
    return FAMILIES[c.family].is_decoder(c) and TASKS[task].predicts_texts


def task_settings(description: TaskConfig, c: EncoderConfig = BERT) -> JsonObject:
    """The settings of the head in config.json.

    transformers does not have some networks. If it has the encoder, the class is one that
    transformers does not know; else the model_type is, too, and transformers refuses the folder.
    """
    task = description.task
    family = c.family
    own_class: JsonObject = {}
    if description.reads_means:
        own_class = {"architectures": [VECTOR_CLASS]}
    elif is_own_network(description, c):
        own_class = {"architectures": [_OWN_CLASS], "model_type": own_type(family)}
    facts = TASKS[task]
    labels = description.labels or tuple(f"LABEL_{n}" for n in range(facts.num_outputs))
    return {
        "architectures": [FAMILIES[family].tasks[task]],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        **({"problem_type": facts.problem_type} if facts.problem_type else {}),
        **facts.head_settings,
        **own_class,
    }


def exported_settings(description: TaskConfig, c: EncoderConfig) -> JsonObject:
    """Return the settings of the head in config.json of an exported model.

    Its file computes the logits itself, also those of a linear layer on means: programs that run
    the file take them for the logits of the usual class.

    A decoder of the BERT family keeps its own class, as everywhere: the usual class would read its
    first token.
    """
    settings = task_settings(description, c)
    family = FAMILIES[c.family]
    if description.reads_means and not family.is_decoder(c):
        settings["architectures"] = [family.tasks[description.task]]
    return settings


def put_temperature_into_weights(
    state: Mapping[str, "Tensor"], task: TaskConfig
) -> tuple[dict[str, "Tensor"], TaskConfig]:
    """Divide the output layer by the temperature of the task.

    Programs that do not know of the temperature then compute the same probabilities.

    Args:
        state: parameters under our names, in float32; those of the output layer are enough.

    Returns:
        The parameters, and the task, whose temperature is 1 now: applying this function twice
        divides once.
    """
    if not task.divides_logits:
        return dict(state), task
    divided = dict(state)
    for name in output_layer(state):
        divided[name] = state[name] / task.temperature
    product = task.weights_temperature * task.temperature
    return divided, replace(task, temperature=1.0, weights_temperature=product)


def output_layer(state: Mapping[str, "Tensor"]) -> dict[str, "Tensor"]:
    """Return the parameters of the last layer of a fine-tuned model.

    They are its weight, and its bias if it has one.
    """
    return {
        name: value for name, value in state.items() if name.split(".")[0] in ("classifier", "span")
    }


def check_same_task(head: TaskConfig, data: TaskConfig, where: str) -> None:
    """Check that the head of a model can be fine-tuned for the task of the data.

    Raises:
        BertworksError: another task, other labels, or another LSTM or other layers that it reads;
            both are shown.
    """
    head_names, data_names = (
        f" ({first_names(task.labels, 20)})" if task.labels else "" for task in (head, data)
    )
    hint = "--reset-head discards the model's head and trains a new one"
    require(
        head.task == data.task,
        f"the model was fine-tuned for {head.task}{head_names}, the data is for "
        f"{data.task}{data_names}",
        where,
        hint,
    )
    require(
        {*head.labels} == {*data.labels},
        "the model's labels are not those of the data:\n"
        f"  model:{head_names}\n  data: {data_names}",
        where,
        hint,
    )
    require(
        head.lstm_units == data.lstm_units,
        f"the model's head has {head.lstm_units} LSTM units, the recipe has {data.lstm_units}",
        where,
        hint,
    )
    require(
        head.feature_layers == data.feature_layers,
        f"the model's LSTM reads feature_layers {head.feature_layers!r}, the recipe has "
        f"{data.feature_layers!r}",
        where,
        hint,
    )


def tasks_of(settings: Mapping[str, Any]) -> list[str]:
    """The tasks of transformers' classes in a config.json."""
    names = settings.get("architectures")
    classes = [pair for family in FAMILIES.values() for pair in family.tasks.items()]
    return [task for task, name in classes if isinstance(names, list) and name in names]


def read_task_json(path: Path) -> TaskConfig:
    """Read a task.json.

    Raises:
        BertworksError: a later format, or a damaged file.
    """
    content = read_json(path)
    require(
        content.pop("format", None) == FORMAT,
        f"not a description of format {FORMAT}",
        path,
        "upgrade bertworks",
    )
    # Fields that may be null have null as their default.
    fields = {
        name: value
        for name, value in content.items()
        if value is not getattr(TaskConfig, name, ...)
    }
    try:
        require({"labels", "text"} <= content.keys(), "labels or text is missing")
        task = build(TaskConfig, fields, str(path))
        require(task.max_length >= 3, f"max_length is {task.max_length}: expected 3 or more")
        is_known = task.positive is None or task.positive in task.labels
        require(is_known, f"the positive label {task.positive!r} is not one of the labels")
        names = sorted(task.labels)
        columns = sorted(task.label)
        require(
            len({*names}) == len(names) <= MAX_LABELS,
            "two labels have the same name, or there are too many",
        )
        is_one_each = TASKS[task.task].has_many_labels and columns == names
        require(len(columns) < 2 or is_one_each, "the columns of several labels are not the labels")
    except BertworksError as error:
        reason = error.what[:200]
        raise BertworksError(
            f"it is damaged, or was not written by a fine-tuning: {reason}", where=path
        ) from None
    return task


def _labels(settings: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """id2label as a list; without it LABEL_0, LABEL_1, ..., as in transformers."""
    count = settings.get("num_labels", 2)
    count = count if type(count) is int and 0 < count <= MAX_LABELS else 2
    names = settings.get("id2label")
    if names is None:
        return tuple(f"LABEL_{number}" for number in range(count))
    numbers = [str(number) for number in range(len(names))] if isinstance(names, dict) else []
    is_table = 0 < len(numbers) <= MAX_LABELS and {*names} == {*numbers}
    require(is_table, "id2label is not a table of the numbers from 0", path)
    labels = tuple(str(names[number]) for number in numbers)
    require(len(set(labels)) == len(labels), "id2label has the same name for two labels", path)
    return labels
