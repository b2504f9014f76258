"""A matrix and its bias. The only module that knows how a product learns, and how many rows it is given."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 64  # rows; with more of them arithmetic takes the time
_STEPS = 8, 64  # to multiples of which more rows are filled up: the least and the most


def filled(x: Tensor) -> Tensor:
    """[T, ...] -> [at least T, ...]: zeros after the rows, up to one of few numbers. For products by oneDNN, which
    writes a program for each size: that takes as long as a small product, and a thousand of them stay in memory."""
    least, most = _STEPS
    step = min(most, max(least, 1 << len(x).bit_length() - 5)) if len(x) > FEW else 1
    return F.pad(x, (*(0, 0) * (x.dim() - 1), 0, -len(x) % step)) if len(x) % step else x


@cache
def multiplies_bfloat16() -> bool:
    """Whether this processor has instructions for it that oneDNN may use."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Linear):
    """`torch.nn.Linear`, save that on a CPU that multiplies bf16, in bf16 and with gradients, the bias is added within
    the product: autograd would spread it over a matrix as large as the result beforehand, a fifth of the product."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        learning = x.dtype == self.weight.dtype == torch.bfloat16 and torch.is_grad_enabled()
        if learning and x.device.type == "cpu" and multiplies_bfloat16():
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
