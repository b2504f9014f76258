"""Attention within packed sequences: one function, `attention`, and the kernels that compute it.

Every kernel has a function `supports_...` that states which inputs it takes. The first that
supports the inputs computes them; `attention_reference` takes the rest: any visibility, other keys,
a bias, with or without gradients, on every device.

- `attention_packed`: on a GPU, in half precision, without padding
- `attention_inference`: on a CPU, without gradients, where a token reads its whole sequence
- `attention_bucketed`: in training on a CPU that compiles a program for each size of a product
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.models.layers import DROPOUT_LEVELS, compiles_sizes, keep_mask
from bertworks.models.layout import Layout

_VECTOR = 32  # bf16 numbers in a register of the processor
_MIN_TOKENS_FOR_BMM = 48  # with fewer tokens the time is that of the calls
_MULTIPLE = 16  # of keys: the fused kernel takes the rest one by one
# least number of sequences of one length for which masked keys save more time than they take,
# without AVX-512: there a rest is at most 7 keys
_MIN_SEQUENCES = 16
# sums of exponentials up to this one, times a value, are far from the limits of bf16
_MAX_SUM = 2.0**100
_MASKED_SCORE = -3.4e38
_MAX_BORROWED = 1e15  # largest number in a key that is masked: larger ones and NaN would give NaN

# The layout of a rectangle of sequences -> numbers that are added to its scores before the softmax,
# [sequences or 1, heads or 1, places, places of the keys]. The places of a rectangle are as many as
# its layout's max_seqlen; numbers for places without a token have no effect.
Bias = Callable[[Layout], Tensor]


class Inputs(NamedTuple):
    """The arguments of `attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    layout: Layout
    keys_layout: Layout | None = None
    bias: Bias | None = None
    dropout: float = 0.0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    keys_layout: Layout | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(q k' / sqrt(d) + bias) v within each sequence.

    Vaswani et al. 2017, section 3.2.1: q [T, heads, d], k and v [K, heads, d] -> [T, heads, d].

    Args:
        layout: of the queries.
        keys_layout: of the keys, as many sequences as `layout` has; None: keys and queries are the
            same tokens.
        bias: has gradients; see `Bias`.
        dropout: probability of zeroing an attention probability.
    """
    inputs = Inputs(q, k, v, layout, keys_layout, bias, dropout)
    for supports, compute in KERNELS:
        if supports(inputs):
            return compute(inputs)
    return attention_reference(inputs)


def attention_reference(inputs: Inputs) -> Tensor:
    """Return `attention` of any inputs.

    Sequences are padded to rectangles: on a CPU neighbours of similar lengths, on a GPU all of
    them.
    """
    q, k, v, layout, keys_layout, bias, dropout = inputs
    groups = [layout] if q.is_cuda or keys_layout else layout.groups
    lengths = [len(group.position_ids) for group in groups]
    parts = [(q, k, v)]
    if len(groups) > 1:
        parts = list(zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True))
    contexts = []
    for part, group in zip(parts, groups, strict=True):
        layouts = (group, keys_layout or group, keys_layout or group)
        queries, keys, values = (
            part_layout.pad(x).transpose(1, 2) for part_layout, x in zip(layouts, part, strict=True)
        )
        mask = group.visible_keys(keys_layout) if keys_layout else group.visible
        context = attend(queries, keys, values, mask, bias and bias(group), dropout)
        contexts.append(group.unpad(context.transpose(1, 2)))
    return _joined(contexts)


def supports_packed(inputs: Inputs) -> bool:
    """Return whether `attention_packed` takes the inputs.

    It does on a GPU from Ampere on, in half precision, for heads whose size is a multiple of 8,
    without a bias and other keys. A token reads its whole sequence, or itself and the tokens before
    it.
    """
    q, _, _, layout, keys_layout, bias, _ = inputs
    if bias is not None or keys_layout is not None:
        return False
    reads = layout.rank is None or layout.is_causal
    fits = q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] in range(8, 257, 8)
    return q.is_cuda and reads and fits and torch.cuda.get_device_capability(q.device) >= (8, 0)


@cache
def _has_wide_vectors() -> bool:
    """Return whether the kernels of torch use AVX-512 here."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def _one_split() -> dict[str, Any]:
    """Return the option that keeps the keys of a query together, where this torch has it.

    Without it the kernel may divide them by the longest sequence of the batch, so that the last
    bits of a text would depend on its neighbours.
    """
    names = [
        argument.name
        for argument in torch.ops.aten._flash_attention_forward.default._schema.arguments
    ]
    return {"num_splits": 1} if "num_splits" in names else {}


def attention_packed(inputs: Inputs) -> Tensor:
    """Return `attention` by flash attention on a GPU (Dao 2023), without padding.

    The public function for it, `varlen_attn`, has no dropout, and costs the host ten times as much.
    """
    q, k, v, layout, _, _, dropout = inputs
    ends = layout.cu_seqlens, layout.cu_seqlens, layout.max_seqlen, layout.max_seqlen
    options = {} if torch.is_grad_enabled() else _one_split()
    forward = torch.ops.aten._flash_attention_forward.default
    return forward(q, k, v, *ends, dropout, layout.is_causal, False, **options)[0]  # type: ignore[no-any-return]


def supports_inference(inputs: Inputs) -> bool:
    """Return whether `attention_inference` takes the inputs.

    It does without gradients and dropout, and on a CPU for tokens that read their whole sequence.
    """
    reads_sequence = inputs.layout.rank is None and inputs.keys_layout is None
    has_gradients = torch.is_grad_enabled()
    return (
        reads_sequence
        and inputs.dropout == 0
        and not (inputs.q.is_cuda or has_gradients or is_exported())
    )


def attention_inference(inputs: Inputs) -> Tensor:
    """Return `attention` on a CPU without gradients."""
    q, k, v, layout, _, bias, _ = inputs
    # In bf16 the fused kernel takes 1.5 times as long as matrix products, except for few tokens.
    if q.dtype == torch.bfloat16 and len(q) > _MIN_TOKENS_FOR_BMM:
        return _inference_bucketed(inputs)
    # Without padding, one call for neighbours of one length: sorted batches have many of them.
    contexts = []
    first = 0  # sequence of a run
    for start, count, length in layout.equal_lengths:
        end = start + count * length
        parts = (q, k, v) if end - start == len(q) else (q[start:end], k[start:end], v[start:end])
        # [count, heads, length, d] each
        queries, keys, values = (x.view(count, length, *x.shape[1:]).transpose(1, 2) for x in parts)
        mask = None
        if bias is not None:
            mask = bias(layout.part(first, first + count, length)).to(q.dtype)
        extra = -length % _MULTIPLE if _has_wide_vectors() or count >= _MIN_SEQUENCES else 0
        is_large = q.dtype == torch.float32 and count * length > _MIN_TOKENS_FOR_BMM
        has_behind = extra > 0 and is_large and len(q) - end >= extra
        if has_behind and all(x[end : end + extra].abs().amax() < _MAX_BORROWED for x in (k, v)):
            # The keys of the next tokens fill the multiple and are masked: up to 1.7 times as fast.
            mask = q.new_zeros(1, 1, 1, length) if mask is None else mask
            mask = F.pad(mask, (0, extra), value=-torch.inf).expand(count, -1, length, -1)
            keys, values = (
                x.as_strided((*x.shape[:2], length + extra, x.shape[3]), x.stride())
                for x in (keys, values)
            )
        contexts.append(attend(queries, keys, values, mask).transpose(1, 2).flatten(0, 1))
        first += count
    return _joined(contexts)


def _inference_bucketed(inputs: Inputs) -> Tensor:
    """Return attention in bf16.

    oneDNN compiles a program for each size of a product, which takes longer than the product of a
    small batch, and keeps a thousand of them. Here there are few sizes.
    """
    q, k, v, layout, _, bias, _ = inputs
    layouts, tokens, places = layout.buckets
    context = q.new_empty(len(tokens), *q.shape[1:])
    numbers = [part.num_places for part in layouts]
    parts = zip(layouts, tokens.split(numbers), context.split(numbers), strict=True)
    for part, rows, out in parts:
        shape = (part.num_sequences, part.max_seqlen, *q.shape[1:])
        queries, keys, values = (
            x.flatten(1).index_select(0, rows).view(shape).transpose(1, 2) for x in (q, k, v)
        )
        _attention_exp2(
            queries,
            keys,
            values,
            part.present[:, None, :, None],
            bias and bias(part),
            out.view(shape).transpose(1, 2),
        )
    return context.index_select(0, places)


def _attention_exp2(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Compute attention for bf16 [B, heads, L, d] into `out`.

    mask: bool [B, 1, L, 1], True for a key that is a token; bias: see `Bias`.

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
    q = q.flatten(0, 1)
    k = k.flatten(0, 1).transpose(1, 2)
    values = values.flatten(0, 1)

    def scores() -> Tensor:
        """[B * heads, L, L], with logarithms to base 2."""
        products = torch.bmm(q, k)
        if bias is not None:
            products.view(*v.shape[:2], *products.shape[1:]).add_(bias, alpha=math.log2(math.e))
        return products

    context, sums = (
        torch.bmm(scores().exp2_(), values).view(*v.shape[:-1], size + 1).split([size, 1], -1)
    )
    least, most = torch.aminmax(sums)
    if least > 1 / _MAX_SUM and most < _MAX_SUM:  # False for NaN
        torch.div(context, sums, out=out)
        return
    natural = scores().mul_(math.log(2)).view(*v.shape[:2], *q.shape[1:2], -1)
    probabilities = softmax_(natural.masked_fill_(~mask.transpose(2, 3), -torch.inf))
    out.copy_(torch.bmm(probabilities.flatten(0, 1), values[..., :-1]).view(v.shape))


def supports_bucketed(inputs: Inputs) -> bool:
    """Return whether `attention_bucketed` takes the inputs, and saves time.

    It does for sequences of several lengths on a CPU that compiles a program for each size.
    """
    reads_itself = inputs.keys_layout is None
    return reads_itself and not inputs.layout.is_uniform and compiles_sizes(inputs.q)


def attention_bucketed(inputs: Inputs) -> Tensor:
    """Return `attention` on a CPU, with gradients, in rectangles of few sizes."""
    q, k, v, layout, _, bias, dropout = inputs
    layouts, tokens, places = layout.buckets
    numbers = [part.num_places for part in layouts]
    rectangles = [
        x.new_zeros(len(tokens), *x.shape[1:]).index_copy_(0, places, x).split(numbers)
        for x in (q, k, v)
    ]
    contexts = []
    for part, *rectangle in zip(layouts, *rectangles, strict=True):
        queries, keys, values = (
            x.view(part.num_sequences, part.max_seqlen, *x.shape[1:]).transpose(1, 2)
            for x in rectangle
        )
        context = attend(queries, keys, values, part.visible, bias and bias(part), dropout)
        contexts.append(context.transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts).index_select(0, places)


# Each kernel behind the function that states what it supports; the first that does is used.
KERNELS: tuple[tuple[Callable[[Inputs], bool], Callable[[Inputs], Tensor]], ...] = (
    (supports_packed, attention_packed),
    (supports_inference, attention_inference),
    (supports_bucketed, attention_bucketed),
)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return attention of one rectangle.

    q [B, heads, L, d], k and v [B, heads, K, d] -> [B, heads, L, d].

    Args:
        mask: bool [B or 1, 1, L or 1, K], True where a token is read; without gradients also a
            number that is added to the scores.
        bias: [B or 1, heads or 1, L, K], added to the scores.
        dropout: probability of zeroing an attention probability.
    """
    if bias is not None:
        bias = bias.to(q.dtype)
    if is_exported():  # a score for masked tokens that is still a number where a row has no token
        scores: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
        scores = scores if bias is None else scores + bias
        scores = scores if mask is None else scores + (~mask).to(scores.dtype) * _MASKED_SCORE
        return scores.softmax(-1) @ v
    if q.is_cuda or not torch.is_grad_enabled():
        if bias is not None:
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout)
    # On a CPU the backward pass of the fused kernel takes several times as long as matrix products.
    hidden = None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    rectangles = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    dropped = round(dropout * DROPOUT_LEVELS)
    context: Tensor = _AttentionFunction.apply(*rectangles, hidden, bias, q.shape[1], dropped)  # type: ignore[no-untyped-call]
    return context.view(q.shape)


def _joined(contexts: list[Tensor]) -> Tensor:
    """Return the tensors as one; a single tensor itself."""
    return contexts[0] if len(contexts) == 1 else torch.cat(contexts)


def is_exported() -> bool:
    """Return whether an ONNX graph is traced."""
    return bool(torch.onnx.is_in_onnx_export())


def softmax_(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension; the scores may be overwritten."""
    # for these the kernel takes three times as long
    if scores.dtype == torch.bfloat16 and scores.shape[-1] % _VECTOR:
        return torch.softmax(scores, -1, dtype=torch.float32).to(scores.dtype)
    return torch.softmax(scores, -1, out=scores)


class _AttentionFunction(torch.autograd.Function):
    """Attention with a backward pass that keeps less than autograd.

    softmax(q k' / sqrt(d) + mask + bias) v with dropout, for q [N, L, d], k and v [N, K, d], N = B
    * heads, mask [B or 1, 1, L or 1, K] and bias [B or 1, heads or 1, L, K]. Autograd would keep
    and read the largest tensors of the step, the [N, L, K] scores, several times more than is
    needed.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        num_heads: int,
        dropped: int,
    ) -> Tensor:
        ctx.scale = q.shape[-1] ** -0.5
        ctx.bias_shape = None if bias is None else bias.shape
        scores = torch.bmm(q, k.transpose(1, 2)).mul_(ctx.scale)
        for added in (mask, bias):
            if added is not None:
                scores.view(-1, num_heads, *scores.shape[1:]).add_(added)
        probabilities = softmax_(scores)
        keep = None
        if dropped:
            keep = keep_mask(probabilities, dropped)
            keep.mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped))
        ctx.num_heads = num_heads
        ctx.save_for_backward(q, k, v, probabilities, keep)
        return torch.bmm(probabilities if keep is None else probabilities * keep, v)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        q, k, v, probabilities, keep = ctx.saved_tensors
        used = probabilities if keep is None else probabilities * keep
        grad_v = torch.bmm(used.transpose(1, 2), grad)
        grad_p = torch.bmm(grad, v.transpose(1, 2))
        if keep is not None:
            grad_p *= keep
        grad_scores = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype)
        grad_bias = None
        if ctx.needs_input_grad[4]:
            per_head = grad_scores.view(-1, ctx.num_heads, *grad_scores.shape[1:])
            grad_bias = per_head.sum_to_size(ctx.bias_shape).clone()
        grad_scores.mul_(ctx.scale)
        grad_q = torch.bmm(grad_scores, k)
        grad_k = torch.bmm(grad_scores.transpose(1, 2), q)
        return grad_q, grad_k, grad_v, None, grad_bias, None, None
