"""Kernels of attention within packed sequences, for GPUs and CPUs, with and without gradients."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.models.layers import DROPOUT_LEVELS, compiles_sizes, keep_mask
from bertworks.models.layout import Layout

_VECTOR = 32  # bf16 numbers in a register of the processor
_MIN_TOKENS_FOR_BMM = 48  # with fewer tokens the time is that of the calls
_MULTIPLE = 16  # of keys: the fused kernel takes the rest one by one
# sums of exponentials up to this one, times a value, are far from the limits of bf16
_MAX_SUM = 2.0**100
_MASKED_SCORE = -3.4e38
_MAX_BORROWED = 1e15  # largest number in a key that is masked: larger ones and NaN would give NaN


def supports_packed(qkv: Tensor) -> bool:
    """Whether the GPU has a kernel for packed sequences: in half precision, from Ampere on, for
    heads whose size is a multiple of 8."""
    fits = qkv.dtype in (torch.bfloat16, torch.float16) and qkv.shape[-1] in range(8, 257, 8)
    return qkv.is_cuda and fits and torch.cuda.get_device_capability(qkv.device) >= (8, 0)


@cache
def _one_split() -> dict[str, Any]:
    """The option that keeps the keys of a query together, where this torch has it. Without it the
    kernel may divide them by the longest sequence of the batch, so that the last bits of a text
    would depend on its neighbours."""
    names = [
        argument.name
        for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments
    ]
    return {"num_splits": 1} if "num_splits" in names else {}


def attention_packed(qkv: Tensor, layout: Layout, p: float = 0.0) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d] by flash attention on a GPU (Dao 2023), without padding; p
    as in `attention_padded`. The public function for it, `varlen_attn`, has no dropout, and costs
    the host ten times as much.
    """
    q, k, v = qkv.unbind(1)
    ends = layout.cu_seqlens, layout.cu_seqlens, layout.max_seqlen, layout.max_seqlen
    options = {} if torch.is_grad_enabled() else _one_split()
    forward = torch.ops.aten._flash_attention_forward.default
    return forward(q, k, v, *ends, p, layout.is_causal, False, **options)[0]  # type: ignore[no-any-return]


def attention_padded(
    qkv: Tensor, groups: Sequence[Layout], p: float, memory: Tensor | None = None
) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d]; the sequences of a group are padded to its longest.

    p: dropout of the attention probabilities.
    memory: [M, 2, heads, d]: keys and values of the memory of the only group.
    """
    results = []
    parts = (
        [qkv] if len(groups) == 1 else qkv.split([len(layout.position_ids) for layout in groups])
    )
    for part, layout in zip(parts, groups, strict=True):
        q, k, v = layout.pad(part).permute(2, 0, 3, 1, 4)  # [B, heads, length, d] each
        if memory is not None and layout.memory is not None:
            before = layout.memory.pad(memory).permute(2, 0, 3, 1, 4)
            k, v = (torch.cat([old, new], 2) for old, new in zip(before, (k, v), strict=True))
        results.append(layout.unpad(attention(q, k, v, layout.visible, p).transpose(1, 2)))
    return results[0] if len(results) == 1 else torch.cat(results)


def attention_training_cpu(qkv: Tensor, layout: Layout, p: float) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d] on a CPU; p as in `attention_padded`. Where a program is
    compiled for each size, the rectangles have few sizes."""
    if layout.is_uniform or not compiles_sizes(qkv):
        return attention_padded(qkv, layout.groups, p)
    sizes, tokens, _, places = layout.buckets
    rectangles = qkv.new_zeros(len(tokens), *qkv.shape[1:]).index_copy(0, places, qkv)
    parts = rectangles.split([count * length for count, length in sizes])
    results = []
    for part, size, mask in zip(parts, sizes, layout.visible_in_buckets, strict=True):
        q, k, v = part.view(*size, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
        results.append(attention(q, k, v, mask, p).transpose(1, 2).flatten(0, 1))
    return torch.cat(results).index_select(0, places)


def attention_inference_cpu(qkv: Tensor, layout: Layout) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d], without gradients, dropout and rank, on a CPU."""
    # In bf16 the fused kernel takes 1.5 times as long as matrix products, except for few tokens.
    if qkv.dtype == torch.bfloat16 and len(qkv) > _MIN_TOKENS_FOR_BMM:
        return _attention_bucketed(qkv, layout)
    return _attention_by_equal_length(qkv, layout)


def _attention_by_equal_length(qkv: Tensor, layout: Layout) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d], without padding: one call for neighbours of one length.
    Sorted batches have many of them."""
    results = []
    for start, count, length in layout.equal_lengths:
        rectangle = qkv[start : start + count * length].view(count, length, *qkv.shape[1:])
        q, k, v = rectangle.permute(2, 0, 3, 1, 4)  # [count, heads, length, d] each
        extra, mask, behind = -length % _MULTIPLE, None, qkv[start + count * length :]
        is_large = qkv.dtype == torch.float32 and count * length > _MIN_TOKENS_FOR_BMM
        if (
            extra
            and is_large
            and len(behind) >= extra
            and behind[:extra].abs().amax() < _MAX_BORROWED
        ):
            # The keys of the next tokens fill the multiple and are masked: up to 1.7 times as fast.
            mask = F.pad(qkv.new_zeros(1, 1, 1, length), (0, extra), value=-torch.inf).expand(
                count, 1, length, -1
            )
            k, v = (
                t.as_strided((*t.shape[:2], length + extra, t.shape[3]), t.stride()) for t in (k, v)
            )
        results.append(attention(q, k, v, mask).transpose(1, 2).flatten(0, 1))
    return results[0] if len(results) == 1 else torch.cat(results)


def _attention_bucketed(qkv: Tensor, layout: Layout) -> Tensor:
    """bf16 [T, 3, heads, d] -> [T, heads, d]. oneDNN compiles a program for each size of a product,
    which takes longer than the product of a small batch, and keeps a thousand of them. Here there
    are few sizes."""
    heads, size = qkv.shape[2:]
    sizes, tokens, present, places = layout.buckets
    qkv, context = qkv.flatten(1), qkv.new_empty(len(tokens), heads, size)
    numbers = [count * length for count, length in sizes]
    for part, out, (count, length), mask in zip(
        tokens.split(numbers), context.split(numbers), sizes, present, strict=True
    ):
        q, k, v = (
            qkv.index_select(0, part).view(count, length, 3, heads, size).permute(2, 0, 3, 1, 4)
        )
        _attention_exp2(
            q, k, v, mask[:, None, :, None], out.view(count, length, heads, size).transpose(1, 2)
        )
    return context.index_select(0, places)


def _attention_exp2(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, out: Tensor) -> None:
    """All bf16 [B, heads, L, d]; the result goes to `out`. mask: bool [B, 1, L, 1], True for a key
    that is a token.

    Softmax without subtraction of the maximum: exp2(q k') is multiplied with [v, 1] and divided by
    the last column, the sum of the row. Where such a sum leaves [2^-100, 2^100] the softmax is
    used.
    """
    size = q.shape[-1]
    # exp2 is faster than exp
    q = torch.mul(q, size**-0.5 * math.log2(math.e), out=q.new_empty(q.shape))
    values = v.new_empty(*v.shape[:-1], size + 1)
    torch.mul(v, mask, out=values[..., :-1])
    values[..., -1:] = mask
    q, k, values = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)
    context, sums = (
        torch.bmm(torch.bmm(q, k).exp2_(), values)
        .view(*v.shape[:-1], size + 1)
        .split([size, 1], -1)
    )
    least, most = torch.aminmax(sums)
    if least > 1 / _MAX_SUM and most < _MAX_SUM:  # False for NaN
        torch.div(context, sums, out=out)
        return
    scores = torch.bmm(q, k).mul_(math.log(2)).view(*v.shape[:2], *q.shape[1:2], -1)
    scores = softmax_(scores.masked_fill_(~mask.transpose(2, 3), -torch.inf))
    out.copy_(torch.bmm(scores.flatten(0, 1), values[..., :-1]).view(v.shape))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float = 0.0) -> Tensor:
    """q [B, heads, L, d], k and v [B, heads, K, d] -> [B, heads, L, d].

    mask: bool [B or 1, 1, L or 1, K], True where a token is read; without gradients also a number
        that is added to the scores.
    p: fraction of the attention probabilities that is dropped.
    """
    if is_exported():  # a score for masked tokens that is still a number where a row has no token
        scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        scores = scores if mask is None else scores + (~mask).to(scores.dtype) * _MASKED_SCORE
        return scores.softmax(-1) @ v
    if q.is_cuda or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, mask, p)
    # On a CPU the backward pass of the fused kernel takes several times as long as matrix products.
    bias = None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    parts = (t.reshape(-1, *t.shape[2:]) for t in (q, k, v))
    context: Tensor = _AttentionFunction.apply(*parts, bias, round(p * DROPOUT_LEVELS))  # type: ignore[no-untyped-call]
    return context.view(q.shape)


def is_exported() -> bool:
    """Whether an ONNX graph is traced."""
    return bool(torch.onnx.is_in_onnx_export())


def softmax_(scores: Tensor) -> Tensor:
    """Over the last dimension; the scores may be overwritten."""
    # for these the kernel takes three times as long
    if scores.dtype == torch.bfloat16 and scores.shape[-1] % _VECTOR:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1, out=scores)


class _AttentionFunction(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + bias) v with dropout, for q [N, L, d], k and v [N, K, d], N = B *
    heads, bias [B or 1, 1, L or 1, K]. Autograd would keep and read the largest tensors of the
    step, the [N, L, K] scores, several times more than is needed."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropped: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.scale = q.shape[-1] ** -0.5
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(ctx.scale)
        if bias is not None:
            scores.view(len(bias), -1, *scores.shape[1:]).add_(bias)
        probabilities = softmax_(scores)
        mask = (
            keep_mask(probabilities, dropped).mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))
            if dropped
            else None
        )
        ctx.save_for_backward(q, k, v, probabilities, mask)
        return torch.bmm(probabilities if mask is None else probabilities * mask, v)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]
        q, k, v, probabilities, mask = ctx.saved_tensors
        used = probabilities if mask is None else probabilities * mask
        grad_v = torch.bmm(used.transpose(1, 2), grad)
        grad_p = torch.bmm(grad, v.transpose(1, 2))
        if mask is not None:
            grad_p *= mask
        grad_scores = torch._softmax_backward_data(
            grad_p, probabilities, -1, probabilities.dtype
        ).mul_(ctx.scale)
        grad_q, grad_k = torch.bmm(grad_scores, k), torch.bmm(grad_scores.transpose(1, 2), q)
        return grad_q, grad_k, grad_v, None, None
