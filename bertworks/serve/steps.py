"""What the endpoints of all models share: their type, the parts of their answers, checks.

An endpoint is a generator: it checks a request, yields what to compute, gets the results, and
returns the parts of the answer. Parts are work, too: the server makes them in turns, and only if
they fit into its limit of bytes. No HTTP, no threads.

- `AnswerParts`: what an endpoint returns
- `check_answer`: refuses an answer that may be too large
- `to_json`, `json_size`, `joined_list`, `joined_lists`: parts as JSON, put together without reading
  them again
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import NDArray

from bertworks.serve.batching import InferenceJob, RequestError, grant

# Bytes of JSON, at most.
NUMBER_BYTES = 26  # a float64 or a whole number, and a comma
FLOAT32_BYTES = 16  # the shortest digits of a float32, and a comma
CHARACTER_BYTES = 6  # a control character: \\u0001


@dataclass(frozen=True)
class AnswerParts:
    """An answer that is not made yet.

    make: functions, each of which makes a part: a JSON value. They are called in any order, and not
        at all if the answer would be too large or the client has gone.
    sizes: the bytes of each part as JSON, at most. They are also its cost: work is shared by them.
    join: the parts as JSON, in order -> the answer as JSON.
    truncated: of each text that was read, the number of tokens that did not fit and were left out.
    """

    make: Sequence[Callable[[], Any]]
    sizes: Sequence[int]
    join: Callable[[Sequence[bytes]], bytes]
    truncated: Sequence[int] = ()


Request = Mapping[str, Any]
Rows = NDArray[np.float32]
Ids = NDArray[np.int32]
Steps = Generator[InferenceJob, Sequence[Any], AnswerParts]
Endpoint = Callable[[Request], Steps]
PART_TOKENS = 2048  # tokens that a part of an answer spells: some milliseconds of work
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # the names of TEI


def to_json(value: Any) -> bytes:
    """Return a value as JSON.

    NaN and infinite numbers are null.
    """
    return msgspec.json.encode(value, enc_hook=_encode_vector)


def _encode_vector(vector: NDArray[np.float32]) -> msgspec.Raw:
    """Return the shortest digits that give the same float32."""
    return msgspec.Raw(orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY))


def json_size(text: str) -> int:
    """Return the bytes of a string as JSON."""
    return len(msgspec.json.encode(text))


def joined_list(parts: Iterable[bytes]) -> bytes:
    """Return a list of values that are JSON already."""
    return b"[" + b",".join(parts) + b"]"


def joined_lists(parts: Iterable[bytes]) -> bytes:
    """Return the items of several lists that are JSON already, as one list."""
    return joined_list(part[1:-1] for part in parts if len(part) > 2)


def joined_groups(counts: Iterable[int], parts: Iterable[bytes]) -> bytes:
    """Return a list of lists, each of which is joined from a number of parts that are lists."""
    remaining = iter(parts)
    return joined_list(joined_lists(islice(remaining, count)) for count in counts)


def only_part(parts: Sequence[bytes]) -> bytes:
    """Return the JSON of an answer with one part."""
    (part,) = parts
    return part


def ready_json(content: bytes) -> msgspec.Raw:
    """Return a value that is JSON already, as a part of another one."""
    return msgspec.Raw(content)


def check_answer(size: int, limit: int) -> None:
    """Raise RequestError if an answer may have too many bytes."""
    what = f"the answer may have {size:,} bytes: expected {limit:,} at most"
    grant(size <= limit, 413, what, hint="send less at once, or request fewer results")


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
