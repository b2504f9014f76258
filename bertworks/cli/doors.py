"""`bertworks import`, `convert` and `push`: models from elsewhere, and to elsewhere."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from bertworks.cli.console import show_events
from bertworks.cli.options import Json, Output


def import_(
    checkpoint: Annotated[Path, Parameter(help="A checkpoint of Google's, such as bert_model.ckpt, or its folder.")],
    /,
    *,
    output: Output,
    config: Annotated[Path | None, Parameter(help="Unset: bert_config.json beside the checkpoint.")] = None,
    vocabulary: Annotated[
        Path | None, Parameter(name="--vocab", help="Unset: vocab.txt beside the checkpoint.")
    ] = None,
    lowercase: Annotated[
        bool | None,
        Parameter(
            name="--uncased",
            negative="--cased",
            help="Whether text is lower-cased. Unset: as the names say, else as the vocabulary looks.",
        ),
    ] = None,
    gelu: Annotated[
        Literal["tanh", "exact"],
        Parameter(help="What gelu means: tanh, as Google's code computes it, or the exact function."),
    ] = "tanh",
    leave_out: Annotated[
        list[str] | None,
        Parameter(negative="", help="A variable that is not wanted, or a pattern with *. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a model folder of a TensorFlow checkpoint of Google's BERT. TensorFlow is not needed."""
    from bertworks.doors.convert import import_checkpoint

    events = import_checkpoint(
        checkpoint,
        output,
        config=config,
        vocabulary=vocabulary,
        lowercase=lowercase,
        gelu=gelu,
        leave_out=leave_out or [],
    )
    show_events(events, as_json=as_json)


def convert(
    model: Annotated[
        str, Parameter(help="A model folder, old or new, a name on the hub, or a checkpoint of Google's.")
    ],
    /,
    *,
    output: Output,
    as_json: Json = False,
) -> None:
    """Write any BERT that can be read as a clean folder: safetensors, configuration, tokenizer, card."""
    from bertworks.doors.convert import convert as run

    show_events(run(model, output), as_json=as_json)


def push(
    folder: Annotated[Path, Parameter(help="A model folder.")],
    repository: Annotated[str, Parameter(help="owner/name on the Hugging Face hub.")],
    /,
    *,
    dry_run: Annotated[
        bool, Parameter(negative="", show_default=False, help="Show the files and the card; nothing is sent.")
    ] = False,
    private: Annotated[
        bool, Parameter(negative="", show_default=False, help="For you alone, if the repository is made now.")
    ] = False,
    licence: Annotated[
        str | None, Parameter(name="--license", help="What the card is to say, such as mit or apache-2.0.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send a model folder to the Hugging Face hub: weights, configuration, tokenizer and card, and nothing else."""
    from bertworks.doors.push import push as run

    events = run(folder, repository, dry_run=dry_run, private=private, licence=licence)
    show_events(events, as_json=as_json)
