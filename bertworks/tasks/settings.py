"""Describe the task of a fine-tuned model as settings: plain data.

`checkpoints.task_config` reads and writes them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from bertworks.config import AboveZero, Range, Settings, Size, SizeOrZero
from bertworks.datasets.annotations import TagScheme, tag_scheme

TaskType = Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]
LSTMEncoder = Literal["frozen", "trained"]
LayerNames = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all", "mix"
]
FeatureLayers = LayerNames | int
SentenceVectors = Literal["pooler", "mean", "pair", "cosine"]
MOST_WINDOWS = 64  # of a text
WindowsOrZero = Annotated[int, Range(f"0 to {MOST_WINDOWS}", lambda x: 0 <= x <= MOST_WINDOWS)]


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Settings):
    """The task of a fine-tuned model, and how it reads texts.

    labels: names of the outputs, in order; none for regression, qa and choice.
    lstm_units, lstm_encoder, feature_layers: see `FinetuneRecipe`.
    document: the column of the document of a row, for document context; None: that of a CoNLL file,
        or none.
    text, label: the columns of the training data; several labels: one column for each, in their
        order.
    first_choice: the number of the first choice in the data; None: inferred from each file.
    threshold: see `Task.decode`.
    temperature: what the logits of the weights are still divided by, see `Task.decode`. It
        is 1 in a folder of this version; earlier versions left the division to the program that
        reads the folder.
    weights_temperature: what the output layer in the weights has been divided by, so that every
        program computes the calibrated probabilities (`put_temperature_into_weights`). Logits times
        this number are those of the training.
    vectors: what of a sequence is classified, see `tasks.heads`.
    windows: the largest number of windows of a text with one prediction, see
        `tasks.sequences.read_texts`; 0 or 1: a text that is too long is truncated.
    bare_types: see `Schema`.
    positive: the class whose F1 is reported, if there are two; None in folders of earlier versions,
        which report the F1 of the second class.
    """

    task: TaskType
    labels: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    label: tuple[str, ...] = ()
    separator: str = ""
    num_choices: SizeOrZero = 0
    first_choice: int | None = None
    max_length: Size = 512
    stride: Size = 128
    max_question: SizeOrZero = 64
    max_answer: Size = 30
    document_context: bool = False
    document: str | None = None
    lstm_units: SizeOrZero = 0
    lstm_encoder: LSTMEncoder = "frozen"
    feature_layers: FeatureLayers = "concat-last-four"
    threshold: float | None = None
    vectors: SentenceVectors = "pooler"
    windows: WindowsOrZero = 0
    temperature: AboveZero = 1.0
    weights_temperature: AboveZero = 1.0
    bare_types: bool = False
    positive: str | None = None

    @property
    def positive_label(self) -> str | None:
        """The class whose F1 is reported, or None if there are not two classes."""
        if self.task != "classification" or len(self.labels) != 2:
            return None
        return self.labels[1] if self.positive is None else self.positive

    @property
    def divides_logits(self) -> bool:
        """Whether the temperature is not in the weights, as in folders of earlier versions.

        Logits are then divided by it.

        Numbers have no temperature.
        """
        return self.temperature != 1 and self.task != "regression"

    @property
    def reads_means(self) -> bool:
        """Whether the output layer reads means of hidden states.

        transformers then opens the encoder alone.
        """
        return self.vectors != "pooler"

    @property
    def tag_scheme(self) -> TagScheme | None:
        """How the labels mark entities; None: they mark none."""
        return tag_scheme(self.labels, self.bare_types)
