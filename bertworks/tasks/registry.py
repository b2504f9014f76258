"""All tasks, by name.

A new task is a class and a line here.
"""

from collections.abc import Mapping

from bertworks.tasks.questions import QuestionsTask
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Task
from bertworks.tasks.text_labels import (
    ChoiceTask,
    ClassificationTask,
    MultiLabelTask,
    RegressionTask,
)
from bertworks.tasks.token_labels import SpansTask, TaggingTask

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        ClassificationTask(),
        MultiLabelTask(),
        RegressionTask(),
        TaggingTask(),
        SpansTask(),
        QuestionsTask(),
        ChoiceTask(),
    )
}


def task_of(d: TaskConfig) -> Task:
    """Return the task with the settings of a model."""
    return type(TASKS[d.task])(d)
