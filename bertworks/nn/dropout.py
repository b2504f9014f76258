"""Dropout that costs little on a CPU, with the residual added in the same pass. Not here: who drops what."""

import torch
import torch.nn.functional as F
from torch import Tensor

LEVELS = 256  # a byte decides over an element, so rates are multiples of 1/256: 0.1 becomes 26/256


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """residual + x with a share p of x zeroed and the rest scaled up by 1 / (1 - p); any shape."""
    dropped = min(round(p * LEVELS), LEVELS - 1)
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
        mask, ctx.scale = keep_mask(x, dropped), LEVELS / (LEVELS - dropped)
        ctx.save_for_backward(mask)
        if residual is None:
            return (x * mask).mul_(ctx.scale)
        return torch.addcmul(residual, x, mask, value=ctx.scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:  # type: ignore[no-untyped-def]
        (mask,) = ctx.saved_tensors
        return (grad * mask).mul_(ctx.scale), grad if ctx.needs_input_grad[1] else None, None
