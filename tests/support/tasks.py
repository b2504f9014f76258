"""Tasks with the settings that a test needs."""

from typing import Any

from bertworks.tasks.registry import task_of
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Featurizer
from bertworks.text.tokenizer import Tokenizer


def featurizer(
    tokenizer: Tokenizer,
    task: Any,
    labels: tuple[str, ...] = (),
    max_length: int = 512,
    **settings: Any,
) -> Featurizer:
    """Return how a model of these settings reads items."""
    d = TaskConfig(task=task, labels=labels, max_length=max_length, **settings)
    return Featurizer(tokenizer, task_of(d))
