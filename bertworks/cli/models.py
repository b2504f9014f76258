"""`bertworks import`, `convert` and `push`: models from elsewhere, and to elsewhere.

`bertworks export`: a model for programs that know nothing of bertworks.

`bertworks serve`: a model as a web server, with a page and an API. What it does stands in `serve.serving`.

`bertworks doctor` and `bertworks demo`: what this machine has, and what the tool does on it.
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import Json, Output, Rounding, emit, show_events
from bertworks.cli.inference import Model
from bertworks.cli.pretrain import Device


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
    from bertworks.interop.convert import import_checkpoint

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
    from bertworks.interop.convert import convert as run

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
    from bertworks.interop.push import push as run

    events = run(folder, repository, dry_run=dry_run, private=private, licence=licence)
    show_events(events, as_json=as_json)


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
    from bertworks.interop.export import export as room

    show_events(room(model, output, format=format, encoder=encoder, int8=int8, data=data), as_json=as_json)


def serve(
    model: Annotated[str, Parameter(help="A model, fine-tuned or not: a folder, minilm, or a name on the hub.")],
    /,
    *,
    host: Annotated[str, Parameter(help="The address to listen at. Others than this machine's own need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535), help="0: any free one.")] = 8080,
    index: Annotated[Path | None, Parameter(help="The folder of an index, to be searched.")] = None,
    api_key: Annotated[
        str | None,
        Parameter(
            help="A token that all requests have to bear. Better set BERTWORKS_API_KEY, which others cannot see."
        ),
    ] = None,
    max_batch_tokens: Annotated[int, Parameter(validator=Number(gte=1), help="Computed together.")] = 4096,
    max_concurrent_requests: Annotated[
        int, Parameter(validator=Number(gte=1), help="At once; more are told to come again.")
    ] = 512,
    device: Device = "auto",
    precision: Rounding = "auto",
    as_json: Json = False,
) -> None:
    """Serve a model: an API that clients of Text Embeddings Inference and of OpenAI's embeddings know, and a page.

    GET /info says what this model can be asked. Logs are JSON lines on standard error. SIGTERM and Ctrl-C end it when
    what was asked is answered.
    """
    from bertworks.serve.job import Limits
    from bertworks.serve.server import serve as room

    for event in room(
        model, host=host, port=port, index=index, token=api_key or os.environ.get("BERTWORKS_API_KEY", ""),
        device=device, precision=precision,
        limits=Limits(batch_tokens=max_batch_tokens, requests=max_concurrent_requests),
    ):  # fmt: skip
        emit({"kind": event.kind, **event.fields}) if as_json else print(event.text, flush=True)


def doctor(*, as_json: Json = False) -> int:
    """Show what this machine has, what was chosen for it, and whether training works here. Takes a few seconds."""
    from bertworks.diagnostics import doctor as examine

    checks = []
    for check in examine():
        checks.append(check)
        if not as_json:
            print(f"{'  ' if check.good else '! '}{check.name:<14}{check.text}", flush=True)
            if check.hint:
                print(f"{'':16}hint: {check.hint}")
    if as_json:
        emit([asdict(check) for check in checks])
    return 0 if all(check.good for check in checks) else 1


def demo(
    *,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The folder to write.")] = Path("demo"),
    minutes: Annotated[float, Parameter(validator=Number(gte=0.5), help="Time for vocabulary and pre-training.")] = 3.5,
    as_json: Json = False,
) -> None:
    """Pre-train a small BERT on the English that comes with Python, fine-tune one to tell its libraries apart, and show
    what they learned. No data is downloaded.
    """
    from bertworks.demo.tour import demo as run

    show_events(run(output, minutes=minutes), as_json=as_json)
