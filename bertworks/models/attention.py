"""Tokens gather from the tokens of their own sequence. The only module that knows which kernel does it."""

import math
from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.config import EncoderConfig
from bertworks.models.layers import DROPOUT_LEVELS, Linear, keep_mask
from bertworks.models.layout import Layout

_VECTOR = 32  # bf16 numbers that a processor's register holds
_MIN_TOKENS_FOR_BMM = 48  # tokens: their attention is a matter of calling functions
_MULTIPLE = 16  # of keys: beyond one the fused kernel takes them one by one
_POWER = 2.0**100  # sums of powers up to these, times a value, are far from the ends of bf16
_LARGEST = 1e15  # number in a key or a value that is masked: of larger ones, and of none, the mask would make NaN


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2), one matrix for query, key and value."""

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.num_heads, self.dropout = c.num_attention_heads, c.attention_dropout
        self.qkv = Linear(c.hidden_size, 3 * c.hidden_size)
        self.output = Linear(c.hidden_size, c.hidden_size)

    def forward(self, x: Tensor, layout: Layout, rows: Tensor | None = None) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only. Nobody sees what `x` has
        beyond the layout's tokens, and zeros are its context."""
        p, more = self.dropout if self.training else 0.0, len(x) - len(layout.position_ids)
        qkv: Tensor = self.qkv(x)
        qkv = (qkv[:-more] if more else qkv).unflatten(1, (3, self.num_heads, -1))  # [T, 3, heads, d]
        if p == 0 and _supports_varlen(qkv):
            from torch.nn.attention import varlen  # brings torch's compiler along, which takes seconds to import

            q, k, v = qkv.unbind(1)
            ends = layout.cu_seqlens, layout.cu_seqlens, layout.max_seqlen, layout.max_seqlen
            context: Tensor = varlen.varlen_attn(q, k, v, *ends)  # type: ignore[assignment]
        elif not (qkv.is_cuda or torch.is_grad_enabled()):
            context = attention_inference_cpu(qkv, layout, p)
        else:
            context = attention_padded(qkv, [layout] if qkv.is_cuda else layout.groups, p)
        context = context.flatten(1)
        if rows is not None:
            context = context.index_select(0, rows)
        elif more:
            context = F.pad(context, (0, 0, 0, more))
        return self.output(context)  # type: ignore[no-any-return]


def _supports_varlen(qkv: Tensor) -> bool:
    """Whether a GPU has a kernel for sequences one after the other: in half precision, from Ampere on, for heads of
    whole vectors."""
    if not qkv.is_cuda or qkv.dtype not in (torch.bfloat16, torch.float16):
        return False
    return qkv.shape[-1] % 8 == 0 and qkv.shape[-1] <= 256 and _capability(qkv.device) >= (8, 0)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def attention_padded(qkv: Tensor, groups: Sequence[Layout], p: float) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d]; the sequences of a group are padded to its longest."""
    found = []
    for part, layout in zip(qkv.split([len(g.position_ids) for g in groups]), groups, strict=True):
        q, k, v = layout.pad(part).permute(2, 0, 3, 1, 4)  # [B, heads, length, d] each
        mask = None if layout.is_uniform else layout.present[:, None, None]
        found.append(layout.unpad(attention(q, k, v, mask, p).transpose(1, 2)))
    return found[0] if len(found) == 1 else torch.cat(found)


def attention_inference_cpu(qkv: Tensor, layout: Layout, p: float = 0.0) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d], without gradients, on a CPU."""
    # In bf16 the fused kernel takes half as long again as plain products, save for few tokens.
    if qkv.dtype == torch.bfloat16 and len(qkv) > _MIN_TOKENS_FOR_BMM and p == 0:
        return _attention_bucketed(qkv, layout)
    return _attention_by_equal_length(qkv, layout, p)


def _attention_by_equal_length(qkv: Tensor, layout: Layout, p: float) -> Tensor:
    """[T, 3, heads, d] -> [T, heads, d], nothing padded: a call for each run of sequences of one length. Sorted batches
    have few."""
    found = []
    for begin, count, length in layout.runs:
        rectangle = qkv[begin : begin + count * length].view(count, length, *qkv.shape[1:])
        q, k, v = rectangle.permute(2, 0, 3, 1, 4)  # [count, heads, length, d] each
        more, mask, behind = -length % _MULTIPLE, None, qkv[begin + count * length :]
        fused = more and qkv.dtype == torch.float32 and count * length > _MIN_TOKENS_FOR_BMM and len(behind) >= more
        if fused and behind[:more].abs().amax() < _LARGEST:
            # The keys of the next tokens are there anyway, and none looks at them: up to 1.7 times as fast.
            mask = F.pad(qkv.new_zeros(1, 1, 1, length), (0, more), value=-torch.inf).expand(count, 1, length, -1)
            k, v = (t.as_strided((*t.shape[:2], length + more, t.shape[3]), t.stride()) for t in (k, v))
        found.append(attention(q, k, v, mask, p).transpose(1, 2).flatten(0, 1))
    return found[0] if len(found) == 1 else torch.cat(found)


def _attention_bucketed(qkv: Tensor, layout: Layout) -> Tensor:
    """bf16 [T, 3, heads, d] -> [T, heads, d]. oneDNN writes a program for each size of a product, which takes longer
    than the product of a small batch, and keeps a thousand of them: here there are few sizes."""
    heads, size = qkv.shape[2:]
    sizes, tokens, present, places = layout.rectangles
    qkv, context = qkv.flatten(1), qkv.new_empty(len(tokens), heads, size)
    numbers = [count * length for count, length in sizes]
    for part, out, (count, length), mask in zip(
        tokens.split(numbers), context.split(numbers), sizes, present, strict=True
    ):
        q, k, v = qkv.index_select(0, part).view(count, length, 3, heads, size).permute(2, 0, 3, 1, 4)
        _attention_exp2(q, k, v, mask[:, None, :, None], out.view(count, length, heads, size).transpose(1, 2))
    return context.index_select(0, places)


def _attention_exp2(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, out: Tensor) -> None:
    """All bf16 [B, heads, L, d], also `out`, which is written; mask bool [B, 1, L, 1], True where there is a key. The
    softmax would take most of the time: here nothing is subtracted before the powers, for scores that allow it, and not
    the powers but what comes of them is divided by their sums, which come with it, from one more value that is 1."""
    size = q.shape[-1]
    q = torch.mul(q, size**-0.5 * math.log2(math.e), out=q.new_empty(q.shape))  # for powers of 2, which are sooner
    values = v.new_empty(*v.shape[:-1], size + 1)
    torch.mul(v, mask, out=values[..., :-1])
    values[..., -1:] = mask
    q, k, values = q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), values.flatten(0, 1)
    context, sums = torch.bmm(torch.bmm(q, k).exp2_(), values).view(*v.shape[:-1], size + 1).split([size, 1], -1)
    least, most = torch.aminmax(sums)
    if least > 1 / _POWER and most < _POWER:  # not for what is no number either
        torch.div(context, sums, out=out)
        return
    scores = torch.bmm(q, k).mul_(math.log(2)).view(*v.shape[:2], *q.shape[1:2], -1)
    scores = softmax_(scores.masked_fill_(~mask.transpose(2, 3), -torch.inf))
    out.copy_(torch.bmm(scores.flatten(0, 1), values[..., :-1]).view(v.shape))


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """q, k, v [B, heads, L, d]; mask bool [B, 1, 1, L], True where there is a token -> [B, heads, L, d]. Without
    gradients it may also be what is added to the scores, and there may be more keys than queries.

    `p` is the share of the attention probabilities that is dropped.
    """
    batch, heads, length, size = q.shape
    if q.is_cuda or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, mask, p)
    # On a CPU the backward pass of the fused kernel costs several times as much as plain matrix products.
    q, k, v = (t.reshape(batch * heads, length, size) for t in (q, k, v))
    bias = None
    if mask is not None:
        bias = q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf).expand(batch, heads, 1, length).flatten(0, 1)
    context: Tensor = _AttentionFunction.apply(q, k, v, bias, round(p * DROPOUT_LEVELS))  # type: ignore[no-untyped-call]
    return context.view(batch, heads, length, size)


def softmax_(scores: Tensor) -> Tensor:
    """Over the last dimension; the scores may be written over."""
    if scores.dtype == torch.bfloat16 and scores.shape[-1] % _VECTOR:  # the kernel is three times as slow for these
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1, out=scores)


class _AttentionFunction(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + bias) v with dropout. Written out because autograd would keep and pass over the largest
    tensors of the step, the [N, L, L] scores, half a dozen times more than is needed."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropped: int) -> Tensor:  # type: ignore[no-untyped-def]
        scale = q.shape[-1] ** -0.5
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(scale)
        if bias is not None:
            scores += bias
        probabilities = softmax_(scores)
        mask = keep_mask(probabilities, dropped).mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped)) if dropped else None
        ctx.scale = scale
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
        grad_scores = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype).mul_(ctx.scale)
        grad_q, grad_k = torch.bmm(grad_scores, k), torch.bmm(grad_scores.transpose(1, 2), q)
        return grad_q, grad_k, grad_v, None, None
