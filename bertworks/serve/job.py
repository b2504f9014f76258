"""A request to a model as a value, and its size limits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UsageError

Request = Mapping[str, Any]
Rows = NDArray[np.float32]


class RequestTooLargeError(UsageError):
    """More than one request may ask for."""


@dataclass(frozen=True)
class Limits:
    """Of one request; and of all: `batch_tokens` are computed together, `requests` may be there at once, and none is
    let in that would have to wait for more than `patience` seconds."""

    body_bytes: int = 2_000_000
    texts: int = 2048
    tokens: int = 65_536  # of all its texts, in all windows
    k: int = 100  # answers for one question
    explained_tokens: int = 128
    batch_tokens: int = 4096
    requests: int = 512
    patience: float = 2.0


@dataclass(frozen=True)
class InferenceJob:
    """What a request asks: `answer(rows)` is the value that JSON can say, or a list of vectors, `rows` being what
    `compute` gives for `units`, among whatever units of other questions. `costs`: of each unit, in tokens; where no
    network reads, 1."""

    answer: Callable[[Sequence[Any]], Any]
    units: Sequence[Any] = ()
    costs: Sequence[int] = ()
    compute: Callable[[Sequence[Any]], Sequence[Any]] = list


DTYPES = {"fp32": "float32", "bf16": "bfloat16", "int8": "int8"}  # as Text Embeddings Inference calls them
Ask = Callable[[Request], InferenceJob]


def texts_of(inputs: str | list[str]) -> list[str]:
    return [inputs] if isinstance(inputs, str) else inputs


def prompt_of(request: Request, prompts: Any) -> str:
    name = request.get("prompt_name")
    if name is None:
        return ""
    if name not in prompts:
        known = f"it has {', '.join(prompts)}" if prompts else "it has none"
        raise UsageError(f"the model has no prompt {name!r:.60}: {known}")
    return str(prompts[name])


def refuse_cut(request: Request, cut: Sequence[int]) -> None:
    if request.get("truncate") is False and (long := [n for n, count in enumerate(cut) if count]):
        raise RequestTooLargeError(
            f"text {long[0]} is {cut[long[0]]} tokens too long", hint='shorten it, or ask with "truncate"'
        )


def first_of(question: InferenceJob) -> InferenceJob:
    """Of one item the value itself, and not a list of it."""
    return InferenceJob(lambda rows: question.answer(rows)[0], question.units, question.costs, question.compute)
