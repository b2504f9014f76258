"""The task of a fine-tuned model: task.json, and the settings in config.json that transformers reads.

Folders of transformers have no task.json: their task comes from config.json. Labels are compared by name, not by id.
"""

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from bertworks.checkpoints.hf_mapping import FAMILIES, OWN_TYPE, config_from_huggingface
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.schema import TaskType
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import write_text

FILE, FORMAT = "task.json", 1
MAX_LABELS = 100_000
_OWN_CLASS = "BertworksRecurrentTagger"  # unknown to transformers
_PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The task of a fine-tuned model, and how it reads texts.

    labels: names of the outputs, in order; none for regression, qa and choice.
    lstm_units: see `FinetuneRecipe`; "recurrent_units" in folders of earlier versions.
    document: the column of the document of a row, for document context; None: that of a CoNLL file, or none.
    text, label: the columns of the training data.
    first_choice: the number of the first choice in the data; None: inferred from each file.
    threshold: see `inference.decoding`.
    """

    task: TaskType
    labels: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    label: str | None = None
    separator: str = ""
    num_choices: int = 0
    first_choice: int | None = None
    max_length: int = 512
    stride: int = 128
    max_question: int = 64
    max_answer: int = 30
    document_context: bool = False
    document: str | None = None
    lstm_units: int = 0
    threshold: float | None = None

    def save(self, folder: Path) -> None:
        """Writes task.json."""
        write_text(folder / FILE, json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False) + "\n")


def has_task(settings: Mapping[str, Any]) -> bool:
    """Whether a config.json names a class for a task."""
    return bool(_tasks(settings))


def task_from_settings(settings: Mapping[str, Any], path: Path) -> TaskConfig:
    """The task of a config.json without task.json, as transformers writes it.

    Args:
        path: the config.json, for messages.

    Raises:
        BertworksError: no head of a task, or damaged labels.
    """
    tasks = _tasks(settings)
    if not tasks:
        names = settings.get("architectures")
        head = ", ".join(map(str, names))[:100] if isinstance(names, list) and names else "no head"
        raise BertworksError(
            f"this model ({head}) was not fine-tuned for a task", where=str(path.parent),
            hint=f"fine-tune it: bertworks finetune DATA --model {shlex.quote(str(path.parent))} -o ANOTHER-FOLDER",
        )  # fmt: skip
    labels = _labels(settings, path)
    if tasks[0] == "classification":
        problem = settings.get("problem_type") or ("regression" if len(labels) == 1 else None)
        tasks = [task for task, name in _PROBLEMS.items() if name == problem] or ["classification"]
    length = config_from_huggingface(settings, where=str(path)).max_position_embeddings
    labels = () if tasks[0] in ("regression", "qa", "choice") else labels
    return TaskConfig(task=cast(TaskType, tasks[0]), labels=labels, max_length=min(512, length))


def task_settings(description: TaskConfig, family: str = "bert") -> dict[str, Any]:
    """The settings of the head in config.json; its own model_type if transformers has no such network."""
    task = description.task
    own = {"architectures": [_OWN_CLASS], "model_type": OWN_TYPE} if description.lstm_units else {}
    labels = description.labels or (("LABEL_0",) if task in ("regression", "choice") else ("LABEL_0", "LABEL_1"))
    return {
        "architectures": [FAMILIES[family].tasks[task]],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        **({"problem_type": _PROBLEMS[task]} if task in _PROBLEMS else {}),
        **own,
    }


def check_same_task(
    head: TaskConfig, task: TaskType, labels: Collection[str], where: str, *, lstm_units: int = 0
) -> None:
    """Check that the head of a model can be fine-tuned for a task.

    Raises:
        BertworksError: another task, other labels, or another number of LSTM units; both are shown.
    """
    names, others = _listed(head.labels), _listed(labels)
    if head.task != task:
        what = f"the model was fine-tuned for {head.task}{names}, the data is for {task}{others}"
    elif set(head.labels) != set(labels):
        what = f"the model's labels are not those of the data:\n  model:{names}\n  data: {others}"
    elif head.lstm_units != lstm_units:
        what = f"the model's head has {head.lstm_units} LSTM units, the recipe has {lstm_units}"
    else:
        return
    raise BertworksError(what, where=where, hint="--reset-head discards the model's head and trains a new one")


def _tasks(settings: Mapping[str, Any]) -> list[str]:
    """The tasks of transformers' classes in a config.json."""
    names = settings.get("architectures")
    classes = [pair for family in FAMILIES.values() for pair in family.tasks.items()]
    return [task for task, name in classes if isinstance(names, list) and name in names]


def _listed(labels: Collection[str]) -> str:
    return f" ({', '.join(list(labels)[:20])}{', ...' if len(labels) > 20 else ''})" if labels else ""


def read_task_json(path: Path) -> TaskConfig:
    """Read a task.json.

    Raises:
        BertworksError: a later format, or a damaged file.
    """
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise BertworksError(f"not a description of format {FORMAT}", where=str(path), hint="upgrade bertworks")
    if "recurrent_units" in content:
        content["lstm_units"] = content.pop("recurrent_units")
    try:
        task = TaskConfig(**content | {name: tuple(map(str, content[name])) for name in ("labels", "text")})
    except (TypeError, KeyError) as error:
        raise BertworksError(f"not a description of a task: {error}", where=str(path)) from None
    sizes = (task.num_choices, task.max_length, task.stride, task.max_question, task.max_answer, task.lstm_units)
    if (
        task.task not in get_args(TaskType)
        or not len(set(task.labels)) == len(task.labels) <= MAX_LABELS
        or not all(type(size) is int and 0 <= size <= 1 << 20 for size in sizes)
        or task.max_length < 3  # [CLS], a token, [SEP]
        or (task.task == "qa" and not (task.stride and task.max_answer))
        or not isinstance(task.separator, str)
        or not isinstance(task.label, str | None)
        or not isinstance(task.document, str | None)
        or not isinstance(task.threshold, float | int | None)
        or not isinstance(task.first_choice, int | None)
    ):
        raise BertworksError("damaged, or not written by fine-tuning", where=str(path))
    return task


def _labels(settings: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """id2label as a list; without it LABEL_0, LABEL_1, ..., as in transformers."""
    count = settings.get("num_labels", 2)
    count = count if type(count) is int and 0 < count <= MAX_LABELS else 2
    names = settings.get("id2label")
    if names is None:
        names = {str(number): f"LABEL_{number}" for number in range(count)}
    is_table = isinstance(names, dict) and 0 < len(names) <= MAX_LABELS
    if not is_table or set(names) != {str(number) for number in range(len(names))}:
        raise BertworksError("id2label is not a table of the numbers from 0", where=str(path))
    labels = tuple(str(names[str(number)]) for number in range(len(names)))
    if len(set(labels)) < len(labels):
        raise BertworksError("id2label has the same name for two labels", where=str(path))
    return labels
