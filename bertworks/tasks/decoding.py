"""What the settings of a fine-tuned model make: its featurizer, its head, its decoder."""

from collections.abc import Sequence
from dataclasses import dataclass

from bertworks.batching.batch import ExampleGroup
from bertworks.tasks.features import Featurizer
from bertworks.tasks.heads import TaskHead
from bertworks.tasks.probabilities import Answer, Logits
from bertworks.tasks.registry import TASKS
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.recipe import FinetuneRecipe


@dataclass(frozen=True)
class Decoder:
    """Turns the logits of an item into a prediction: `decoder(features, logits)`.

    logits: float32 [M, outputs], all of the item. They are divided by the temperature of the task,
    which changes the probabilities; thresholds apply to these.
    """

    config: TaskConfig

    def __call__(self, features: Features, logits: Logits) -> Answer:
        """Return the prediction for an item."""
        return TASKS[self.config.task].decode(self.config, features, logits)


def make_task_head(
    d: TaskConfig, units: Sequence[ExampleGroup] = (), recipe: FinetuneRecipe | None = None
) -> TaskHead:
    """Return the head and the loss of a task.

    In training, `units` give the weights of classes and the scale of values.
    """
    return TASKS[d.task].head(d, units, recipe)


def make_featurizer(d: TaskConfig, tokenizer: Tokenizer) -> Featurizer:
    """Return the featurizer of a task."""
    return Featurizer(
        tokenizer,
        d.task,
        d.labels,
        d.max_length,
        d.stride,
        d.max_question,
        d.document_context,
        apart=d.vectors in ("pair", "cosine"),
    )
