"""`bertworks serve`: a model as a web server, with a page and an API. What it does stands in `serve.serving`."""

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bertworks.cli.console import emit
from bertworks.cli.options import Json, Rounding
from bertworks.cli.training import Device


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
    from bertworks.serve.question import Limits
    from bertworks.serve.serving import serve as room

    for event in room(
        model, host=host, port=port, index=index, token=api_key or os.environ.get("BERTWORKS_API_KEY", ""),
        device=device, precision=precision,
        limits=Limits(batch_tokens=max_batch_tokens, requests=max_concurrent_requests),
    ):  # fmt: skip
        emit({"kind": event.kind, **event.fields}) if as_json else print(event.text, flush=True)
