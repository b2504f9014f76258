"""Linear layers and dropout that are fast on CPUs, also in training."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALL_BATCH_ROWS = 64  # rows; with more of them arithmetic takes the time
_ROW_STEPS = 8, 64  # to multiples of which more rows are filled up: the least and the most


def pad_rows_to_bucket(x: Tensor) -> Tensor:
    """[T, ...] -> [at least T, ...]: zeros after the rows, up to one of few numbers. For products by oneDNN, which
    writes a program for each size: that takes as long as a small product, and a thousand of them stay in memory."""
    least, most = _ROW_STEPS
    step = min(most, max(least, 1 << len(x).bit_length() - 5)) if len(x) > SMALL_BATCH_ROWS else 1
    return F.pad(x, (*(0, 0) * (x.dim() - 1), 0, -len(x) % step)) if len(x) % step else x


@cache
def cpu_supports_bf16() -> bool:
    """Whether this processor has instructions for it that oneDNN may use."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Linear):
    """`torch.nn.Linear`, save that on a CPU that multiplies bf16, in bf16 and with gradients, the bias is added within
    the product: autograd would spread it over a matrix as large as the result beforehand, a fifth of the product."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        learning = x.dtype == self.weight.dtype == torch.bfloat16 and torch.is_grad_enabled()
        if learning and x.device.type == "cpu" and cpu_supports_bf16():
            return _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]
        return F.linear(x, self.weight, self.bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            grad @ weight if of_x else None,
            rows.t() @ x.flatten(0, -2) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


DROPOUT_LEVELS = 256  # a byte decides over an element, so rates are multiples of 1/256: 0.1 becomes 26/256


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """residual + x with a share p of x zeroed and the rest scaled up by 1 / (1 - p); any shape."""
    dropped = min(round(p * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    if dropped == 0:
        return x if residual is None else residual + x
    if x.is_cuda:
        return F.dropout(x, p) if residual is None else residual + F.dropout(x, p)
    return _Dropout.apply(x, residual, dropped)  # type: ignore[no-any-return, no-untyped-call]


def keep_mask(x: Tensor, dropped: int) -> Tensor:
    """Like x: 0 with probability dropped / LEVELS, else 1. One 64-bit draw serves eight elements."""
    # The full range, or every eighth byte would lack its highest bit.
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.uint8)[: x.numel()].view(x.shape)
    return torch.ge(bits, dropped, out=torch.empty(x.shape, dtype=x.dtype))  # compares and converts at once


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, residual: Tensor | None, dropped: int) -> Tensor:  # type: ignore[no-untyped-def]
        mask, ctx.scale = keep_mask(x, dropped), DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped)
        ctx.save_for_backward(mask)
        if residual is None:
            return (x * mask).mul_(ctx.scale)
        return torch.addcmul(residual, x, mask, value=ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def]
        (mask,) = ctx.saved_tensors
        return (grad * mask).mul_(ctx.scale), grad if ctx.needs_input_grad[1] else None, None
