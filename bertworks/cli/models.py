"""The commands `import`, `convert`, `push`, `export`, `serve`, `doctor` and `demo`."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli import console


def import_(
    checkpoint: Annotated[Path, Parameter(help="A TensorFlow checkpoint, such as bert_model.ckpt, or its folder.")],
    /,
    *,
    output: console.Output,
    config: Annotated[Path | None, Parameter(help="Unset: bert_config.json next to the checkpoint.")] = None,
    vocabulary: Annotated[
        Path | None, Parameter(name="--vocab", help="Unset: vocab.txt next to the checkpoint.")
    ] = None,
    lowercase: Annotated[
        bool | None,
        Parameter(
            name="--uncased",
            negative="--cased",
            help="Lowercase the text. Unset: inferred from the names, else from the vocabulary.",
        ),
    ] = None,
    gelu: Annotated[
        Literal["tanh", "exact"], Parameter(help="tanh: the approximation in Google's code; exact: the exact function.")
    ] = "tanh",
    leave_out: Annotated[list[str] | None, console.repeatable("A variable to leave out, or a pattern with *.")] = None,
    as_json: console.Json = False,
) -> None:
    """Convert a TensorFlow checkpoint of Google's BERT to a model folder. TensorFlow is not needed."""
    from bertworks.interop.convert import import_checkpoint

    options: dict[str, Any] = {"config": config, "vocabulary": vocabulary, "lowercase": lowercase, "gelu": gelu}
    console.show_events(import_checkpoint(checkpoint, output, leave_out=leave_out or [], **options), as_json=as_json)


def convert(
    model: Annotated[
        str, Parameter(help="A model folder, old or new, a name on the hub, or a TensorFlow checkpoint of Google's.")
    ],
    /,
    *,
    output: console.Output,
    as_json: console.Json = False,
) -> None:
    """Convert a model to a clean folder: safetensors, configuration, tokenizer, model card."""
    from bertworks.interop.convert import convert as run

    console.show_events(run(model, output), as_json=as_json)


def push(
    folder: Annotated[Path, Parameter(help="A model folder.")],
    repository: Annotated[str, Parameter(help="owner/name on the Hugging Face hub.")],
    /,
    *,
    dry_run: Annotated[bool, console.flag("Show the files and the card; send nothing.")] = False,
    private: Annotated[bool, console.flag("Make a new repository private.")] = False,
    licence: Annotated[
        str | None, Parameter(name="--license", help="License for the model card, such as mit or apache-2.0.")
    ] = None,
    as_json: console.Json = False,
) -> None:
    """Upload a model folder to the Hugging Face hub: only weights, configuration, tokenizer and card."""
    from bertworks.interop.push import push as run

    events = run(folder, repository, dry_run=dry_run, private=private, licence=licence)
    console.show_events(events, as_json=as_json)


def export(
    model: console.Model,
    /,
    *,
    output: console.Output,
    format: Annotated[Literal["onnx"], Parameter(help="The file format.")] = "onnx",
    encoder: Annotated[bool, console.flag("Export the hidden states only, without the head.")] = False,
    int8: Annotated[bool, console.flag("8-bit weights: smaller, faster, slightly less accurate.")] = False,
    data: Annotated[str | None, Parameter(help="Labelled rows to evaluate, compare and time both models on.")] = None,
    as_json: console.Json = False,
) -> None:
    """Export a model to one ONNX file, and compare it with the original.

    `predict` and `evaluate task` read the folder too. The outputs are the logits of a fine-tuned model, the logits over
    the vocabulary of a pre-trained model, or the hidden states of an encoder.
    """
    from bertworks.interop.export import export as run

    console.show_events(run(model, output, format=format, encoder=encoder, int8=int8, data=data), as_json=as_json)


def serve(
    model: console.Model,
    /,
    *,
    host: Annotated[str, Parameter(help="Address to listen on. Addresses other than this machine need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535), help="0: any free port.")] = 8080,
    index: Annotated[Path | None, Parameter(help="The folder of an index to search.")] = None,
    api_key: Annotated[
        str | None, Parameter(help="Token that requests need. Prefer BERTWORKS_API_KEY, which other users cannot see.")
    ] = None,
    max_batch_tokens: Annotated[int, console.at_least(1, "Tokens per batch.")] = 4096,
    max_concurrent_requests: Annotated[int, console.at_least(1, "Requests at a time; more are refused.")] = 512,
    device: console.Device = "auto",
    precision: console.InferencePrecision = "auto",
    as_json: console.Json = False,
) -> None:
    """Serve a model over HTTP: a page, and an API for clients of Text Embeddings Inference and OpenAI embeddings.

    GET /info lists what the model can do. Logs are JSON lines on standard error. SIGTERM and Ctrl-C finish the requests
    in flight first.
    """
    from bertworks.serve.batching import Limits
    from bertworks.serve.server import serve as run

    for event in run(
        model, host=host, port=port, index=index, token=api_key or os.environ.get("BERTWORKS_API_KEY", ""),
        device=device, precision=precision,
        limits=Limits(batch_tokens=max_batch_tokens, requests=max_concurrent_requests),
    ):  # fmt: skip
        console.emit({"kind": event.kind, **event.fields}) if as_json else print(event.text, flush=True)


def doctor(*, as_json: console.Json = False) -> int:
    """Report this machine's hardware, the settings chosen for it, and whether training works. Takes a few seconds."""
    from bertworks.diagnostics import doctor as run

    checks = []
    for check in run():
        checks.append(check)
        if not as_json:
            print(f"{'  ' if check.good else '! '}{check.name:<14}{check.text}", flush=True)
            if check.hint:
                print(f"{'':16}hint: {check.hint}")
    if as_json:
        console.emit([asdict(check) for check in checks])
    return 0 if all(check.good for check in checks) else 1


def demo(
    *,
    output: Annotated[Path, console.output_file("The output folder.")] = Path("demo"),
    minutes: Annotated[float, console.at_least(0.5, "Time for vocabulary and pre-training.")] = 3.5,
    as_json: console.Json = False,
) -> None:
    """Pre-train and fine-tune small BERTs on the English text that comes with Python, and show the results.

    Nothing is downloaded.
    """
    from bertworks.demo.tour import demo as run

    console.show_events(run(output, minutes=minutes), as_json=as_json)
