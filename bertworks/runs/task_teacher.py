"""A fine-tuned model that teaches another one its task."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bertworks.batching.batch import Batch, ExampleGroup, Target
from bertworks.datasets.values import first_names
from bertworks.errors import expect, require
from bertworks.inference.engine import LazyModel, compute_each
from bertworks.inference.predictor import task_network
from bertworks.tasks.heads import TEACHER
from bertworks.tasks.registry import TASKS
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer


class TaskTeacher:
    """A fine-tuned model that teaches its task to a model with the same tokenizer.

    Args:
        d: the task of the data.

    Raises:
        UsageError: the task has no loss with a teacher.
        BertworksError: no such model; one for another task, other labels or shorter texts, or with
            another tokenizer.
    """

    def __init__(self, name: str, d: TaskConfig, tokenizer: Tokenizer, device: torch.device):
        known = [task.name for task in TASKS.values() if task.has_linear_head]
        what = f"--teacher is not available for {d.task}: expected {', '.join(known)}"
        expect(d.task in known, what, hint="leave out --teacher")
        self.source = LazyModel(name, str(device))
        self.description = d
        self.task = self.source.task_config
        teacher = self.task
        teacher_labels, data_labels = (
            f" ({first_names(config.labels, 20)})" if config.labels else ""
            for config in (teacher, d)
        )
        is_same_task = (
            teacher.task == d.task
            and {*teacher.labels} == {*d.labels}
            and teacher.vectors == d.vectors
        )
        length = self.source.config.max_position_embeddings
        hint = (
            "fine-tune a teacher from the same model: bertworks finetune DATA --method full -o "
            "TEACHER"
        )
        what = (
            f"the teacher was fine-tuned for {teacher.task}{teacher_labels}, the data is for "
            f"{d.task}{data_labels}"
        )
        require(is_same_task, what, name, hint)
        has_same_tokenizer = self.source.tokenizer.sha256 == tokenizer.sha256
        what = "the teacher has another tokenizer than the model"
        require(has_same_tokenizer, what, name, hint)
        what = f"the teacher reads at most {length} tokens, the model {d.max_length}"
        require(length >= d.max_length, what, name, f"set max_length to {length}")

    def label(
        self, groups: Sequence[ExampleGroup], note: Callable[[str], None]
    ) -> list[ExampleGroup]:
        """Return the examples with the logits of the teacher as further targets.

        They are in the order of the labels of the data. It reads each once, without dropout.
        """
        network = task_network(self.source, self.task)
        order = torch.tensor(
            [self.task.labels.index(label) for label in self.description.labels] or [0]
        )
        # the logits that the student learns are those of its training
        temperature = self.task.weights_temperature

        def compute(batch: Batch) -> Tensor:
            return network.logits(batch)[:, order] * temperature

        logits = compute_each(network, compute, groups, (len(order),))
        result: list[ExampleGroup] = []
        for (example,), rows in zip(groups, logits, strict=True):
            targets = {**example.targets, TEACHER: Target(example.target.positions, rows)}
            result.append([example._replace(targets=targets)])
        note(f"the teacher has predicted {len(groups):,} training examples")
        return result
