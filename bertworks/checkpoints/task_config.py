"""What a fine-tuned model folder says of its head: task.json in our words, and in config.json those that transformers
reads. A folder of transformers' own, without task.json, is understood as well. Labels are names: what a model answers
is compared by them, never by their numbers.
"""

import json
import shlex
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

from bertworks.checkpoints.hf_mapping import FAMILIES, OWN_TYPE, config_from_huggingface
from bertworks.checkpoints.storage import read_json
from bertworks.datasets.schema import TaskType
from bertworks.errors import BertworksError
from bertworks.io.atomic_write import write_text

FILE, FORMAT = "task.json", 1
MOST_LABELS = 100_000
_OWN_CLASS = "BertworksRecurrentTagger"  # a name that no library knows
_PROBLEMS = {
    "classification": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regression": "regression",
}


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What a fine-tuned model does, and how it reads.

    labels: names of its outputs, in order; none for regression, qa and choice.
    lstm_units: see `training.finetune_recipe.FinetuneRecipe`; "recurrent_units" in folders of earlier versions.
    document: the column that tells which rows are read as one document's; None: that of a CoNLL file, or none.
    text, label: the columns that it learned from, of which a file to be predicted has the first.
    first_choice: the number by which the data calls the first choice; None: that is guessed anew.
    threshold: see `learn.answers.Decoding`.
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


def has_task(folder: Path) -> bool:
    """Whether the model of a folder was fine-tuned for a task that we know."""
    return (folder / FILE).exists() or bool(_tasks(read_json(folder / "config.json")))


def read_task_config(folder: Path) -> TaskConfig:
    """What the model of a folder does.

    Raises:
        BertworksError: it has no head of a task, or its description is damaged.
    """
    if (folder / FILE).exists():
        return _read_ours(folder / FILE)
    settings = read_json(folder / "config.json")
    tasks = _tasks(settings)
    if not tasks:
        named = settings.get("architectures")
        found = ", ".join(map(str, named))[:100] if isinstance(named, list) and named else "no head"
        raise BertworksError(
            f"this model ({found}) was not fine-tuned for a task", where=str(folder),
            hint=f"fine-tune it: bertworks finetune DATA --model {shlex.quote(str(folder))} -o ANOTHER-FOLDER",
        )  # fmt: skip
    labels = _labels(settings, folder / "config.json")
    if tasks[0] == "classification":
        problem = settings.get("problem_type") or ("regression" if len(labels) == 1 else None)
        tasks = [task for task, name in _PROBLEMS.items() if name == problem] or ["classification"]
    length = config_from_huggingface(settings, where=str(folder / "config.json")).max_position_embeddings
    without = tasks[0] in ("regression", "qa", "choice")
    return TaskConfig(task=cast(TaskType, tasks[0]), labels=() if without else labels, max_length=min(512, length))


def task_settings(description: TaskConfig, family: str = "bert") -> dict[str, Any]:
    """What config.json says of the head, and of the whole model where transformers has no such network."""
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
    found: TaskConfig, task: TaskType, labels: Collection[str], where: str, *, lstm_units: int = 0
) -> None:
    """A head that was trained for something else, or that is another network, is not taken for what is wanted.

    Raises:
        BertworksError: another task, other labels, or another number of LSTM units; both are shown.
    """
    if found.task != task:
        what = (
            f"the model was fine-tuned for {found.task}{_listed(found.labels)}, the data is for {task}{_listed(labels)}"
        )
    elif set(found.labels) != set(labels):
        what = (
            f"the model's labels are not those of the data:\n  model:{_listed(found.labels)}\n  data: {_listed(labels)}"
        )
    elif found.lstm_units != lstm_units:
        what = f"the model's head has {found.lstm_units} LSTM units, the recipe has {lstm_units}"
    else:
        return
    raise BertworksError(what, where=where, hint="--reset-head discards the model's head and trains a new one")


def _tasks(settings: dict[str, Any]) -> list[str]:
    """What the head may be for, by the names of transformers' classes."""
    named = settings.get("architectures")
    classes = [pair for family in FAMILIES.values() for pair in family.tasks.items()]
    return [task for task, name in classes if isinstance(named, list) and name in named]


def _listed(labels: Collection[str]) -> str:
    return f" ({', '.join(list(labels)[:20])}{', ...' if len(labels) > 20 else ''})" if labels else ""


def _read_ours(path: Path) -> TaskConfig:
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise BertworksError(f"not a description of format {FORMAT}", where=str(path), hint="upgrade bertworks")
    if "recurrent_units" in content:
        content["lstm_units"] = content.pop("recurrent_units")
    try:
        for name in ("labels", "text"):
            content[name] = tuple(map(str, content[name]))
        found = TaskConfig(**content)
    except (TypeError, KeyError) as error:
        raise BertworksError(f"this cannot be understood: {error}", where=str(path)) from None
    names = ("num_choices", "max_length", "stride", "max_question", "max_answer", "lstm_units")
    sizes = [getattr(found, name) for name in names]
    kinds = {"separator": str, "label": str | None, "document": str | None, "threshold": float | int | None}
    kinds["first_choice"] = int | None
    if (
        found.task not in get_args(TaskType)
        or not len(set(found.labels)) == len(found.labels) <= MOST_LABELS
        or not all(type(size) is int and 0 <= size <= 1 << 20 for size in sizes)
        or found.max_length < 3  # [CLS], a token, [SEP]
        or (found.task == "qa" and not (found.stride and found.max_answer))
        or not all(isinstance(getattr(found, name), kind) for name, kind in kinds.items())
    ):
        raise BertworksError("this is not what fine-tuning writes", where=str(path))
    return found


def _labels(settings: dict[str, Any], path: Path) -> tuple[str, ...]:
    """id2label as a list; LABEL_0, LABEL_1, ..., as in transformers, where there is none."""
    count = settings.get("num_labels", 2)
    count = count if type(count) is int and 0 < count <= MOST_LABELS else 2
    named = settings.get("id2label")
    if named is None:
        named = {str(number): f"LABEL_{number}" for number in range(count)}
    good = isinstance(named, dict) and 0 < len(named) <= MOST_LABELS
    if not good or set(named) != {str(number) for number in range(len(named))}:
        raise BertworksError("id2label is not a table of the numbers from 0", where=str(path))
    labels = tuple(str(named[str(number)]) for number in range(len(named)))
    if len(set(labels)) < len(labels):
        raise BertworksError("id2label gives one name to two labels", where=str(path))
    return labels
