"""Networks of which only the shapes are wanted, because their numbers come from a file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """Nothing is drawn at random. Even where there is no memory to fill, torch would import its compiler for that,
    which takes seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (Tensor.normal_, Tensor.uniform_):
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def blank() -> Iterator[None]:
    """Modules that are made in it have parameters of the device "meta": shapes without memory."""
    with torch.device("meta"), _Undrawn():
        yield
