"""`bertworks pretrain`: raw text, or a folder of shards, to a pre-trained model."""

from typing import Annotated, Any, Literal

from cyclopts import Parameter

from bertworks.cli.console import emit, show_events
from bertworks.cli.options import Documents, Inputs, Json, Output, Overwrite, TextColumn, Workers

Recipe = Annotated[str | None, Parameter(help="A recipe by name (bert-base) or a .toml file of your own.")]
Settings = Annotated[
    list[str] | None,
    Parameter(name="--set", negative="", help="Change one field of the recipe: --set seed=1. Repeatable."),
]
Budget = Annotated[
    str | None, Parameter(help="Time to spend (30m, 2h): size, batch and steps are chosen so that it is used.")
]
OnlyEstimate = Annotated[
    bool,
    Parameter(
        negative="", show_default=False, help="Print parameters, memory, tokens, time and disk, and do not start."
    ),
]
Vocabulary = Annotated[str | None, Parameter(help="A tokenizer folder. Unset: a vocabulary is made of the text.")]
Init = Annotated[
    str | None,
    Parameter(help="A model to go on from, instead of random weights: a folder, minilm, or a name on the hub."),
]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to compute.")]
Precision = Annotated[
    Literal["auto", "fp32", "bf16"],
    Parameter(help="auto: as the recipe says, or else bf16 where this hardware gains by it."),
]
Seed = Annotated[int | None, Parameter(help="Of the weights, the order of the text and the masks.")]


def pretrain(
    inputs: Inputs,
    /,
    *,
    output: Output,
    recipe: Recipe = None,
    settings: Settings = None,
    budget: Budget = None,
    estimate: OnlyEstimate = False,
    tokenizer: Vocabulary = None,
    init: Init = None,
    device: Device = "auto",
    precision: Precision = "auto",
    seed: Seed = None,
    workers: Workers = None,
    text_column: TextColumn = None,
    documents: Documents = "auto",
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Pre-train a BERT on raw text, or on a folder that `prepare` wrote.

    From its first step on the output folder is a model folder that Hugging Face transformers opens. The same command
    again goes on where the run stopped; Ctrl-C saves first.
    """
    from bertworks.runs import pretrain as room

    request: dict[str, Any] = {
        "recipe": recipe,
        "overrides": settings or [],
        "budget": budget,
        "tokenizer": tokenizer,
        "init": init,
        "device": device,
        "precision": None if precision == "auto" else precision,
        "seed": seed,
        "text_column": text_column,
        "documents": documents,
    }
    if estimate:
        result = room.estimate(inputs, **request)
        emit(result.as_dict()) if as_json else print(result)
    else:
        show_events(room.pretrain(inputs, output, overwrite=overwrite, workers=workers, **request), as_json=as_json)
