"""What the head of a task predicts, and how its loss is weighed, as values. No torch.

`tasks.heads` has the networks and the losses.

- `TaskHead`: the outputs of a task: `Classification`, `MultiLabel`, `Regression`, `SpanExtraction`,
  `MultipleChoice`
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from bertworks.tasks.settings import SentenceVectors


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """The predictions of a task for a sequence, or for many tokens of each.

    head: name of the output layer in a model folder.
    outputs: logits of a prediction.
    pooled: whether whole sequences are classified, or tokens.
    vectors: what of a sequence is classified, if `pooled`; see `heads.combine_vectors`.
    """

    head: ClassVar[Literal["classifier", "span"]] = "classifier"
    outputs: int = 1
    pooled: bool = True
    vectors: SentenceVectors = "pooler"

    def width(self, hidden_size: int) -> int:
        """Return the number of features that the output layer reads."""
        return {"pair": 2 * hidden_size + 1, "cosine": 1}.get(self.vectors, hidden_size)


@dataclass(frozen=True, kw_only=True)
class Classification(TaskHead):
    """One of several labels, the outputs.

    It is the label of a sequence (Devlin et al. 2019, section 4.1) or, if not `pooled`, of each
    predicted token (section 5.3).

    weights: of the labels in the loss, with a mean of 1 over the training data; (): all 1.
    smoothing: fraction of the target probability that is spread over all labels.
    """

    weights: tuple[float, ...] = ()
    smoothing: float = 0.0


class MultiLabel(TaskHead):
    """Each label, yes or no.

    Labels of a batch: float32 [B, outputs] of zeros and ones.
    """


@dataclass(frozen=True, kw_only=True)
class Regression(TaskHead):
    """A number.

    Labels of a batch: float32 [B]. The squared error is in units of the standard deviation of the
    targets, and the bias starts at their mean, so that the scale of the targets does not matter.
    """

    mean: float = 0.0
    deviation: float = 1.0


@dataclass(frozen=True, kw_only=True)
class SpanExtraction(TaskHead):
    """Start and end of an answer (section 4.2), predicted from all tokens.

    Labels of a batch: int64 [2 B], positions of the first and last token of the answer, both 0
    ([CLS]) if there is none (section 4.3).
    """

    head: ClassVar[Literal["classifier", "span"]] = "span"
    outputs: int = 2
    pooled: bool = False


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(TaskHead):
    """The best of several continuations (section 4.4).

    `num_choices` sequences in a row have one score each. Labels of a batch: float32 [B], 1 for the
    right choice, else 0.
    """

    num_choices: int
