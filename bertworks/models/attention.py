"""Multi-head attention within packed sequences, and its kernels.

- `Linear`, `dropout`: fast on CPUs, also in training.
- `Attention`: the module; it chooses the kernel.
- `attention_padded`: the reference: any visibility, with or without gradients.
- `attention_packed`: on a GPU, in half precision, with or without gradients: no padding.
- `attention_training_cpu`: on a CPU, with or without gradients.
- `attention_inference_cpu`: without gradients on a CPU, where every token reads its whole sequence.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.cache import LayerCache
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout

SMALL_BATCH_ROWS = 64  # rows; with more of them arithmetic takes the time
_ROW_STEPS = 8, 64  # to multiples of which rows are filled up: the least and the most


def pad_rows_to_bucket(x: Tensor, *, pads_small: bool = False) -> Tensor:
    """[T, ...] -> [at least T, ...]: zeros after the rows, up to one of few numbers. For products
    by oneDNN, which writes a program for each size: that takes as long as a small product, and a
    thousand of them stay in memory.

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
    """Whether this processor has instructions for it that oneDNN may use."""
    return torch.backends.mkldnn.is_available() and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


class Linear(nn.Linear):
    """`torch.nn.Linear`, save that on a CPU that multiplies bf16, in bf16 and with gradients, the
    bias is added within the product: autograd would spread it over a matrix as large as the result
    beforehand, a fifth of the product."""

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
        count, grad = len(grad), pad_rows_to_bucket(grad)
        rows = grad.flatten(0, -2)
        return (
            (grad @ weight)[:count] if of_x else None,
            rows.t() @ x.flatten(0, -2) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )


# a byte decides over an element, so rates are multiples of 1/256: 0.1 becomes 26/256
DROPOUT_LEVELS = 256


def dropout(x: Tensor, p: float, residual: Tensor | None = None) -> Tensor:
    """residual + x with a share p of x zeroed and the rest scaled up by 1 / (1 - p); any shape."""
    dropped = min(round(p * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)
    if dropped == 0:
        return x if residual is None else residual + x
    if x.is_cuda:
        return F.dropout(x, p) if residual is None else residual + F.dropout(x, p)
    return _Dropout.apply(x, residual, dropped)  # type: ignore[no-any-return, no-untyped-call]


def keep_mask(x: Tensor, dropped: int) -> Tensor:
    """Like x: 0 with probability dropped / LEVELS, else 1. One 64-bit draw serves eight
    elements."""
    # The full range, or every eighth byte would lack its highest bit.
    draws = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.uint8)[: x.numel()].view(x.shape)
    # compares and converts at once
    return torch.ge(bits, dropped, out=torch.empty(x.shape, dtype=x.dtype))


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


_VECTOR = 32  # bf16 numbers in a register of the processor
_MIN_TOKENS_FOR_BMM = 48  # with fewer tokens the time is that of the calls
_MULTIPLE = 16  # of keys: the fused kernel takes the rest one by one
# sums of exponentials up to this one, times a value, are far from the limits of bf16
_MAX_SUM = 2.0**100
_MASKED_SCORE = -3.4e38
_MAX_BORROWED = 1e15  # largest number in a key that is masked: larger ones and NaN would give NaN


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), one matrix for query, key and
    value."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.num_heads, self.dropout = c.num_attention_heads, c.attention_dropout
        self.qkv = Linear(c.hidden_size, 3 * c.hidden_size)
        self.output = Linear(c.hidden_size, c.hidden_size)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only.

        x: may have more rows than the layout has tokens; their result is of no use.
        memory: [tokens of layout.memory, hidden]: states that are read as well.
        cache: keys and values of the tokens before, which are read as well; those of x are added.
        """
        p, num_padding_rows = (
            self.dropout if self.training else 0.0,
            len(x) - len(layout.position_ids),
        )
        qkv = self._heads(self.qkv(x))
        qkv = qkv[:-num_padding_rows] if num_padding_rows else qkv
        if cache is not None and cache.continues:
            context = cache.attend(qkv)
        elif memory is not None:
            kv = self._heads(self.qkv(memory))[:, 1:]
            context = attention_padded(qkv, [layout], p, kv)
        elif (layout.rank is None or layout.is_causal) and _supports_packed(qkv):
            context = attention_packed(qkv, layout, p)
        elif (
            p == 0
            and layout.rank is None
            and not (qkv.is_cuda or torch.is_grad_enabled() or _is_exported())
        ):
            context = attention_inference_cpu(qkv, layout)
        else:
            context = (
                attention_padded(qkv, [layout], p)
                if qkv.is_cuda
                else attention_training_cpu(qkv, layout, p)
            )
        if cache is not None and not cache.continues:
            cache.start(qkv[:, 1:])
        context = context.flatten(1)
        if rows is not None:
            context = context.index_select(0, rows)
        elif num_padding_rows:
            context = F.pad(context, (0, 0, 0, num_padding_rows))
        return self.output(context)  # type: ignore[no-any-return]

    @torch.no_grad()
    def probabilities(self, x: Tensor, layout: Layout) -> Tensor:
        """[T, hidden], the input of `forward` -> [B, heads, max_seqlen, max_seqlen]: the attention
        that the token of a row pays to the token of a column. Rows sum to 1; rows and columns of
        places without a token are 0."""
        # [B, heads, max_seqlen, d]
        q, k, _ = layout.pad(self._heads(self.qkv(x))).permute(2, 0, 3, 1, 4)
        scores: Tensor = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if (mask := layout.visible) is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) * layout.present[:, None, :, None]

    def _heads(self, qkv: Tensor) -> Tensor:
        """[T, 3 * hidden] -> [T, 3, heads, d]."""
        return qkv.unflatten(1, (3, self.num_heads, -1))  # type: ignore[no-any-return]


def _supports_packed(qkv: Tensor) -> bool:
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
    if _is_exported():  # a score for masked tokens that is still a number where a row has no token
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


def _is_exported() -> bool:
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
