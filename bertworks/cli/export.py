"""`bertworks export`: a model for programs that know nothing of bertworks."""

from typing import Annotated, Literal

from cyclopts import Parameter

from bertworks.cli.answers import Model
from bertworks.cli.console import show_events
from bertworks.cli.options import Json, Output


def export(
    model: Model,
    /,
    *,
    output: Output,
    format: Annotated[Literal["onnx"], Parameter(help="Of the file.")] = "onnx",
    encoder: Annotated[
        bool, Parameter(negative="", show_default=False, help="Only the hidden states, of a model with a head as well.")
    ] = False,
    int8: Annotated[
        bool, Parameter(negative="", show_default=False, help="Weights of 8 bits: smaller, faster, a little worse.")
    ] = False,
    data: Annotated[str | None, Parameter(help="Labelled rows, on which both are scored, compared and timed.")] = None,
    as_json: Json = False,
) -> None:
    """Write a model as one ONNX file, compared with the original before it appears, and what is needed to use it.

    `predict` and `evaluate task` read the folder too. A fine-tuned model gives logits, a pre-trained one the scores of
    words, an encoder its hidden states.
    """
    from bertworks.doors.export import export as room

    show_events(room(model, output, format=format, encoder=encoder, int8=int8, data=data), as_json=as_json)
