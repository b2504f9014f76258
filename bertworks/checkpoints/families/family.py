"""What a family is: names of parameters, settings of config.json, classes, oddities.

Tables have one row for each parameter of ours: its name; theirs, joined in order along the first axis; the shape of
each of theirs. "#" is the number of a layer. "*" is weight, or bias, which has only the first axis. Sizes: V
vocabulary, P positions, T token types, E embedding, H hidden, I feed-forward, Q 3 * H, L labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bertworks.models.config import EncoderConfig

Row = tuple[str, list[str], str]

# Theirs: ours. Google's code computes the tanh approximation under the name "gelu"; in these files it is exact.
GELUS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu",
    "gelu_python": "gelu", "gelu_fast": "gelu_tanh",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Family:
    """The files of a family in transformers.

    prefix: before the names of the body, in files that hold a head as well.
    body: how names of the body begin, without the prefix.
    table: rows, see above.
    by_class: rows that replace those of the table in files of a class.
    tied: copies of tied parameters that some versions write, and what each must be equal to.
    buffers: names, with "#", of tensors that are no parameters.
    transposed: endings of our names whose matrices are stored [inputs, outputs].
    unused_positions: rows of the position table before the first position.
    settings: key of config.json: field of EncoderConfig. Of several keys for a field the last one counts.
    default: the configuration of a config.json without these keys; its position table has all rows. Fields that no key
        describes are equal in the whole family. `default.family` is the family's name (model_type).
    required: settings that change what is computed, and the only value that is supported.
    written: further settings that are written.
    pretraining: heads that a state holds: the class that saves exactly these.
    tasks: our task: the class.
    """

    prefix: str
    body: tuple[str, ...]
    table: list[Row]
    by_class: Mapping[str, list[Row]] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    buffers: frozenset[str] = frozenset()
    transposed: tuple[str, ...] = ()
    unused_positions: int = 0
    settings: Mapping[str, str]
    default: EncoderConfig
    required: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    pretraining: Mapping[frozenset[str], str] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)


def task_classes(name: str) -> dict[str, str]:
    """Classes of the heads, as transformers calls them: `Bert` -> BertForSequenceClassification, ..."""
    sequence, tokens = f"{name}ForSequenceClassification", f"{name}ForTokenClassification"
    return {
        "classification": sequence, "multilabel": sequence, "regression": sequence, "tagging": tokens, "spans": tokens,
        "qa": f"{name}ForQuestionAnswering", "choice": f"{name}ForMultipleChoice",
    }  # fmt: skip
