"""Distillation: a student is made from layers of its teacher, and reads what it computes.

- `student_config`, `student_state`: the student of a pre-training
- `Teacher`: a frozen network with a masked LM head
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from bertworks.batching.batch import Batch
from bertworks.errors import check
from bertworks.models.config import EncoderConfig
from bertworks.models.heads import LMHead
from bertworks.models.transformer import Encoder, select_layers
from bertworks.training.objectives import TeacherStates

POSITIONS, TYPES = (f"encoder.embeddings.{name}.weight" for name in ("position", "token_type"))


# What a student of a pre-training does not take from its teacher.
OWN = (
    "num_hidden_layers",
    "type_vocab_size",
    "hidden_dropout",
    "attention_dropout",
    "sequence_dropout",
    "token_dropout",
    "embedding_dropout",
    "choice_dropout",
    "span_dropout",
    "initializer_range",
    "pooler",
    "pooler_dropout",
    "family",
)


def student_config(c: EncoderConfig, teacher: EncoderConfig) -> EncoderConfig:
    """Return the network of a student.

    It has the width, vocabulary and positions of the teacher; the layers and the family of `c`.

    Raises:
        ValueError: the teacher cannot teach such a network.
    """
    layers = c.num_hidden_layers
    teacher_layers = teacher.num_hidden_layers
    rules = [
        (
            layers <= teacher_layers,
            f"the student has {layers} layers, the teacher {teacher_layers}: expected "
            f"encoder.num_hidden_layers = {max(1, teacher_layers // 2)}",
        ),
        (
            c.direction == teacher.direction,
            f"the teacher reads {teacher.direction}, encoder.direction is {c.direction!r}",
        ),
        (
            c.type_vocab_size in (0, teacher.type_vocab_size),
            f"encoder.type_vocab_size is {c.type_vocab_size}, that of "
            f"the teacher {teacher.type_vocab_size}: expected 0, or the same",
        ),
    ]
    for holds, message in rules:
        check(holds, message)
    groups = (
        min(teacher.num_hidden_groups, 1)
        if teacher.num_groups == 1
        else layers * (teacher.num_hidden_groups > 0)
    )
    return replace(teacher, num_hidden_groups=groups, **{name: getattr(c, name) for name in OWN})


def student_state(
    teacher: tuple[EncoderConfig, Mapping[str, Tensor], object], c: EncoderConfig
) -> dict[str, Tensor]:
    """Return the parameters from which a student starts.

    Without token types it computes what the teacher's layers compute where all types are 0: row 0
    of their table is added to every position.
    """
    _, result = select_layers(*teacher[:2], c.num_hidden_layers)
    result = {
        name: value for name, value in result.items() if name.startswith(("encoder.", "lm_head."))
    }
    types = None if c.type_vocab_size else result.pop(TYPES, None)
    if types is not None:
        result[POSITIONS] = result[POSITIONS] + types[0]
    return result


class Teacher:
    """`teacher(batch)` is what a frozen network computes, without dropout and gradients.

    It is no module, so that no network that has it trains or saves it.

    dtype: in which it computes; its parameters are rounded once. The embeddings that are read are
        not.
    """

    def __init__(self, c: EncoderConfig, state: Mapping[str, Tensor] | None, dtype: torch.dtype):
        self.encoder = Encoder(c)
        self.lm_head = LMHead(c)
        self.parts = nn.ModuleDict({"encoder": self.encoder, "lm_head": self.lm_head})
        if state is not None:
            self.parts.load_state_dict({name: state[name] for name in self.parts.state_dict()})
        self.parts.eval().requires_grad_(False)
        self.table = self.encoder.embeddings.token.weight.to(dtype)
        for part in self.parts.modules():
            if not isinstance(part, nn.Embedding):
                for parameter in part.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> TeacherStates:
        """Return the states of the teacher for a batch."""
        self.parts.to(batch.input_ids.device)
        self.table = self.table.to(batch.input_ids.device)
        states = self.encoder(batch.input_ids, batch.layout, batch.token_type_ids)[-1]
        return TeacherStates(states, self.lm_head.transform(states), self.table, self.lm_head.bias)
