"""A fine-tuned model that teaches another one its task, and an initial model with some of its layers."""

from collections.abc import Callable, Sequence

import torch

from bertworks.batching.batch import ExampleGroup
from bertworks.batching.sampling import Target
from bertworks.checkpoints.model_folder import Model, TaskConfig
from bertworks.datasets.values import first_names
from bertworks.errors import BertworksError, UsageError
from bertworks.inference.engine import LazyModel, compute_each
from bertworks.inference.predictor import task_network
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.distillation import select_layers
from bertworks.training.task_heads import TEACHER

TASKS = ("classification", "multilabel", "regression", "tagging", "spans")


class TaskTeacher:
    """A fine-tuned model as a teacher of one with the same tokenizer, for a task with the same labels.

    Raises:
        BertworksError: no such model, or it was not fine-tuned for a task.
    """

    def __init__(self, name: str, device: str):
        self.source = LazyModel(name, device)
        self.task, self.config = self.source.task_config, self.source.config

    def check(self, d: TaskConfig, tokenizer: Tokenizer) -> None:
        """Check that it can teach a task to a model with a tokenizer.

        Raises:
            UsageError: the task has no loss with a teacher.
            BertworksError: another task, other labels, or another tokenizer.
        """
        if d.task not in TASKS:
            what = f"--teacher is not available for {d.task}: expected {', '.join(TASKS)}"
            raise UsageError(what, hint="leave out --teacher")
        names, others = (f" ({first_names(task.labels, 20)})" if task.labels else "" for task in (self.task, d))
        same = self.task.task == d.task and {*self.task.labels} == {*d.labels} and self.task.vectors == d.vectors
        what = f"the teacher was fine-tuned for {self.task.task}{names}, the data is for {d.task}{others}"
        if same and self.source.tokenizer.sha256 != tokenizer.sha256:
            same, what = False, "the teacher has another tokenizer than the model"
        if not same:
            hint = "fine-tune a teacher from the same model on the same data: bertworks finetune DATA --method full"
            raise BertworksError(what, where=str(self.source), hint=hint)

    def label(self, groups: Sequence[ExampleGroup], d: TaskConfig, note: Callable[[str], None]) -> list[ExampleGroup]:
        """The examples with the logits of the teacher as further targets, in the order of the labels of `d`. It reads
        each once, without dropout."""
        network = task_network(self.source, self.task)
        order = torch.tensor([self.task.labels.index(label) for label in d.labels] or [0])
        logits = compute_each(network, lambda batch: network.logits(batch)[:, order], groups, (len(order),))
        result: list[ExampleGroup] = []
        for (example,), rows in zip(groups, logits, strict=True):
            targets = {**example.targets, TEACHER: Target(example.target.positions, rows)}
            result.append([example._replace(targets=targets)])
        note(f"the teacher has predicted {len(groups):,} training examples")
        return result


def with_layers(model: Model, count: int) -> Model:
    """The model with some of its layers.

    Raises:
        UsageError: it has fewer.
    """
    if not 1 <= count <= (most := model.config.num_hidden_layers):
        raise UsageError(f"--layers {count}: expected a number from 1 to {most}, the layers of the model")
    config, state = select_layers(model.config, model.state, count)
    return Model(config, state, model.tokenizer)
