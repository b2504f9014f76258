"""Parts that the modules of a network share: fast on CPUs, also in training.

- `Linear`, `dropout`: as torch's, in less time; `layer_norm`: the norm of a configuration
- `pad_rows_to_bucket`: products of few sizes
- `ACTIVATIONS`: the functions that a configuration can name
- `initialize`, `initialize_xavier`, `initialize_word_vectors`: the initial weights;
  `meta_device_init`: shapes without memory; `count_parameters`: the number of parameters of a
  network, without memory
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bertworks.models.settings import LayerConfig

SMALL_BATCH_ROWS = 64  # rows; with more of them arithmetic takes the time
_ROW_STEPS = 8, 64  # to multiples of which rows are filled up: the least and the most


def pad_rows_to_bucket(x: Tensor, *, pads_small: bool = False) -> Tensor:
    """[T, ...] -> [at least T, ...]: zeros after the rows, up to one of few numbers.

    For products by oneDNN, which writes a program for each size: that takes as long as a small
    product, and a thousand of them stay in memory.

    Args:
        pads_small: also pad up to SMALL_BATCH_ROWS rows. A training has few such batches, a server
            many.
    """
    if len(x) <= SMALL_BATCH_ROWS and not pads_small:
        return x
    least, most = _ROW_STEPS
    step = min(most, max(least, 1 << max(0, len(x).bit_length() - 5)))
    return F.pad(x, (*(0, 0) * (x.dim() - 1), 0, -len(x) % step)) if len(x) % step else x


def compiles_sizes(x: Tensor) -> bool:
    """Whether oneDNN compiles a program for each size of a product of x: in bf16 on a CPU."""
    return x.dtype == torch.bfloat16 and x.device.type == "cpu"


@cache
def cpu_supports_bf16() -> bool:
    """Return whether this processor has instructions for it that oneDNN may use."""
    return torch.backends.mkldnn.is_available() and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


class Linear(nn.Linear):
    """`torch.nn.Linear` with a fused bias for bf16 training on CPUs.

    Autograd would spread the bias over a matrix as large as the result beforehand, which takes a
    fifth of the product's time.
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        learning = x.dtype == self.weight.dtype and torch.is_grad_enabled()
        if learning and compiles_sizes(x) and cpu_supports_bf16():
            return _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        return F.linear(x, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        rows = pad_rows_to_bucket(x)
        ctx.save_for_backward(rows, weight)
        product = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
        return product[: len(x)]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        count = len(grad)
        grad = pad_rows_to_bucket(grad)
        rows = grad.flatten(0, -2)
        return (
            (grad @ weight)[:count] if of_x else None,
            rows.t() @ x.flatten(0, -2) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


def layer_norm(width: int, c: LayerConfig) -> nn.LayerNorm:
    """Return the layer norm of a configuration over vectors of this width."""
    return nn.LayerNorm(width, c.layer_norm_eps, bias=c.norm_bias)


# a byte decides over an element, so rates are multiples of 1/256: 0.1 becomes 26/256
DROPOUT_LEVELS = 256


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """Return x with a fraction p of its values zeroed and the rest scaled up, plus the residual.

    The scale is 1 / (1 - p); x has any shape.
    """
    dropped = min(round(p * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    if dropped == 0:
        return x if residual is None else residual + x
    if x.is_cuda:
        return F.dropout(x, p) if residual is None else residual + F.dropout(x, p)
    return _Dropout.apply(x, residual, dropped)  # type: ignore[no-any-return, no-untyped-call]


def keep_mask(x: Tensor, dropped: int, generator: torch.Generator | None = None) -> Tensor:
    """Like x: 0 with probability dropped / LEVELS, else 1.

    One 64-bit draw serves eight elements. generator: of the draws; None: that of torch.
    """
    # The full range, or every eighth byte would lack its highest bit.
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(
        -(2**63), None, generator=generator
    )
    bits = draws.view(torch.uint8)[: x.numel()].view(x.shape)
    # compares and converts at once
    return torch.ge(bits, dropped, out=torch.empty(x.shape, dtype=x.dtype))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, residual: Tensor | None, dropped: int) -> Tensor:  # type: ignore[no-untyped-def]
        mask = keep_mask(x, dropped)
        ctx.scale = DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped)
        ctx.save_for_backward(mask)
        if residual is None:
            return (x * mask).mul_(ctx.scale)
        return torch.addcmul(residual, x, mask, value=ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def]
        (mask,) = ctx.saved_tensors
        return (grad * mask).mul_(ctx.scale), grad if ctx.needs_input_grad[1] else None, None


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def initialize(module: nn.Module, c: LayerConfig) -> None:
    """Draw the parameters of a network.

    Matrices and tables come from a normal distribution that is cut, at two deviations as in
    google-research/bert `create_initializer` unless the configuration says otherwise; biases are
    zero; norms are as torch makes them. The row of [PAD] is drawn like any other.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            limit = c.initializer_cutoff * c.initializer_range
            nn.init.trunc_normal_(part.weight, std=c.initializer_range, a=-limit, b=limit)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)


def initialize_xavier(module: nn.Module, width: int) -> None:
    """Draw the parameters of a network again.

    Matrices come from a uniform distribution by their two widths (Glorot and Bengio 2010, equation
    16), tables from a normal one with the deviation width ** -0.5, as in the code of Vaswani et al.
    2017. Matrices that stand together, as those of query, key and value, count as one.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=width**-0.5)


@torch.no_grad()
def initialize_word_vectors(table: nn.Embedding, known: Tensor) -> None:
    """Draw the vectors of words from -1 to 1 over twice their width, as word2vec's code does.

    known: bool [vocab_size], which words there are; the vectors of others are 0.
    """
    limit = 0.5 / table.embedding_dim
    table.weight.uniform_(-limit, limit)
    table.weight[~known] = 0


class _SkipInit(TorchFunctionMode):
    """Nothing is drawn at random.

    Even where there is no memory to fill, torch would import its compiler for that, which takes
    seconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Any = None,
    ) -> Any:
        named: Mapping[str, Any] = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            Tensor.normal_,
            Tensor.uniform_,
        ):
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@contextmanager
def meta_device_init() -> Iterator[None]:
    """Modules that are made in it have parameters of the device "meta": shapes without memory."""
    with torch.device("meta"), _SkipInit():
        yield


def count_parameters(kind: Callable[..., nn.Module], *settings: object) -> int:
    """Return the number of parameters of the network `kind(*settings)`, made without memory."""
    with meta_device_init():
        return sum(p.numel() for p in kind(*settings).parameters())
