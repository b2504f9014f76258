"""Longer texts for a network with a table of positions: the table gets more rows.

The new rows repeat those that were learned, in their order, as Longformer began (Beltagy, Peters
and Cohan 2020, "Longformer: the long-document transformer", section 5). Nothing is trained: a
training that follows adapts the network to the new lengths.

- `lengthen`: a model -> the same with more positions, and notes
"""

from dataclasses import replace

from torch import Tensor

from bertworks.checkpoints.model_folder import Model
from bertworks.errors import UsageError, expect
from bertworks.models.settings import LIMITS

_TABLE = "encoder.embeddings.position.weight"


def lengthen(model: Model, positions: int, where: object) -> tuple[Model, list[str]]:
    """Return a model that reads texts of more tokens, and what people should know about it.

    Learned positions are repeated from the second row on: the first one is that of the token that
    begins a text, and occurs once. Positions that are sines and cosines are computed for any
    length. Texts that the model could read before give the same vectors.

    Args:
        model: its weights and its configuration stay; its tokenizer gets the new length.
        positions: tokens of the longest text, with the special ones.
        where: the source, for messages.

    Raises:
        UsageError: the network has no table of positions; it reads texts of this length already; an
            absurd number of positions.

    Example:
        A table with the rows a b c and 6 positions becomes a b c b c b.
    """
    config = model.config
    before = config.max_position_embeddings
    kind = config.position_embedding_type
    if kind not in ("learned", "sinusoidal"):
        reason = {
            "none": "the network has no positions, so it has no table of them",
            "rotary": "the positions of this network are rotations in its layers, so it has no "
            "table of them",
            "disentangled": "the positions of this network are distances of two tokens, so it has "
            "no table of places",
        }.get(kind, f"the positions of this network are {kind}, so it has no table of them")
        raise UsageError(
            f"{reason}; it reads texts of {before:,} tokens",
            where=where,
            hint="leave --positions out",
        )
    expect(
        positions > before,
        f"--positions {positions}: the model reads texts of {before:,} tokens already",
        where=where,
        hint=f"give a larger number, such as --positions {4 * before}",
    )
    most = LIMITS["max_position_embeddings"]
    expect(
        positions <= most,
        f"--positions {positions}: expected at most {most:,}",
        where=where,
        hint=f"give a smaller number, such as --positions {4 * before}",
    )
    state = dict(model.state)
    notes = [f"the model reads texts of {positions:,} tokens now; it read {before:,}"]
    if kind == "learned":
        state[_TABLE] = _repeated(state[_TABLE], positions)
        notes.append(
            f"positions from {before + 1:,} on have the rows of those from 2 to {before:,}: train "
            "the model with long texts, by pretrain --init or finetune --set max_length, before "
            "you trust it with them"
        )
    if config.decoder is None:  # that of a translator is the length of the texts that trained it
        model.tokenizer.model_max_length = positions
    return Model(replace(config, max_position_embeddings=positions), state, model.tokenizer), notes


def _repeated(table: Tensor, positions: int) -> Tensor:
    """Return a longer table: all rows, then all but the first again, as often as needed."""
    repeated = table.new_empty(positions, table.shape[1])
    filled = len(table)
    repeated[:filled] = table
    rows = table[1:] if filled > 1 else table
    while filled < positions:
        count = min(len(rows), positions - filled)
        repeated[filled : filled + count] = rows[:count]
        filled += count
    return repeated
