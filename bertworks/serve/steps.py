"""What the endpoints of all models share: the type of an endpoint, and checks of its texts.

An endpoint is a generator: it checks a request, yields what to compute, gets the results, and
returns the parts of the answer. Parts are work, too: the server makes them in turns, and only if
they fit into its limit of bytes. No HTTP, no threads.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.serve.answers import (
    AnswerParts,
    joined_list,
    only_part,
)
from bertworks.serve.batching import InferenceJob, RequestError, grant

Request = Mapping[str, Any]
Rows = NDArray[np.float32]
Ids = NDArray[np.int32]
Steps = Generator[InferenceJob, Sequence[Any], AnswerParts]
Endpoint = Callable[[Request], Steps]
PART_TOKENS = 2048  # tokens that a part of an answer spells: some milliseconds of work
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # the names of TEI


def like_inputs(inputs: Any) -> Callable[[Sequence[bytes]], bytes]:
    """Return the `join` of answers with a part for each input.

    It is a list for a list of inputs, else the single part.
    """
    return joined_list if isinstance(inputs, list) else only_part


def list_of(inputs: Any) -> list[Any]:
    """Return the inputs as a list, also a single one."""
    return inputs if isinstance(inputs, list) else [inputs]


def call_each(units: Sequence[Callable[[], Any]]) -> list[Any]:
    """Compute units that are functions."""
    return [work() for work in units]


class TextTooLongError(RequestError):
    """A text is longer than the model reads, and the request does not permit to truncate it."""

    code = "context_length_exceeded"  # of OpenAI


def refuse_truncated(request: Request, truncated: Sequence[int]) -> None:
    """truncated: number of tokens that do not fit, of each text."""
    number = next((n for n, count in enumerate(truncated) if count), None)
    if request.get("truncate") is False and number is not None:
        what = f"text {number} is {truncated[number]} tokens too long"
        raise TextTooLongError(413, what, hint='shorten it, or send it with "truncate"')


def keeps_end(request: Request) -> bool:
    """Return whether a text that is too long loses its beginning."""
    return request.get("truncation_direction") == "Left"


def check_tokens(tokens: int, limit: int) -> None:
    """Raise RequestError if a request has too many tokens."""
    grant(
        tokens <= limit,
        413,
        f"{tokens:,} tokens: expected {limit:,} at most",
        hint="send less at once",
    )
