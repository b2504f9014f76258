"""Attention within packed sequences: one function, `attention`, and the kernels that compute it.

Every kernel has a function `supports_...` that states which inputs it takes. The first that
supports the inputs computes them; `attention_reference` takes the rest: any visibility, other keys,
a bias, with or without gradients, on every device. Where a sequence has LONG tokens or more, no
kernel on a CPU keeps numbers for all pairs of tokens.

- `attention_packed`: on a GPU, in half precision, without padding
- `attention_local`: where a token reads its neighbours
- `attention_inference`: on a CPU, without gradients, where a token reads its whole sequence
- `attention_bucketed`: in training on a CPU that compiles a program for each size of a product
"""

import math
from collections.abc import Callable, Iterator, Sequence
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
# From this many keys on, the scores of a sequence are computed in blocks of queries.
LONG = 1_024
_BLOCK = 128  # queries of such a block
_LOCAL_BLOCK = 64  # queries of a block where tokens read their neighbours, or the reach if longer
_MAX_BORROWED = 1e15  # largest number in a key that is masked: larger ones and NaN would give NaN

# The layout of a rectangle of sequences, and its queries and keys [sequences, heads, places, d] ->
# numbers that are added to its scores before the softmax, [sequences or 1, heads or 1, places,
# places of the keys]. The places of a rectangle are as many as its layout's max_seqlen; numbers for
# places without a token have no effect.
Bias = Callable[[Layout, Tensor, Tensor], Tensor]
# Pairs of tokens for which a bias is added at once: more do not stay in the cache.
_BIASED_PAIRS = 1 << 16


class Inputs(NamedTuple):
    """The arguments of `attention`."""

    q: Tensor
    k: Tensor
    v: Tensor
    layout: Layout
    keys_layout: Layout | None = None
    bias: Bias | None = None
    dropout: float = 0.0
    reach: int = 0


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layout: Layout,
    *,
    keys_layout: Layout | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
    reach: int = 0,
) -> Tensor:
    """Return softmax(q k' / sqrt(d) + bias) v within each sequence.

    Vaswani et al. 2017, section 3.2.1: q [T, heads, d], k and v [K, heads, d] -> [T, heads, d].

    Args:
        layout: of the queries.
        keys_layout: of the keys, as many sequences as `layout` has; None: keys and queries are the
            same tokens.
        bias: has gradients; see `Bias`.
        dropout: probability of zeroing an attention probability.
        reach: the largest distance, in tokens, at which a token reads another one (Beltagy et al.
            2020, section 3.1); 0: it reads the whole sequence.
    """
    if reach and not is_exported() and layout.max_seqlen <= reach + 1:
        reach = 0  # all tokens are near
    inputs = Inputs(q, k, v, layout, keys_layout, bias, dropout, reach)
    for supports, compute in KERNELS:
        if supports(inputs):
            return compute(inputs)
    return attention_reference(inputs)


def attention_reference(inputs: Inputs) -> Tensor:
    """Return `attention` of any inputs.

    Sequences are padded to rectangles: on a CPU neighbours of similar lengths, on a GPU all of
    them.
    """
    groups = [inputs.layout] if inputs.q.is_cuda or inputs.keys_layout else inputs.layout.groups
    return _joined([_rectangle(part) for part in _parts(inputs, groups)])


def _parts(inputs: Inputs, layouts: Sequence[Layout]) -> list[Inputs]:
    """Return the inputs of neighbours, of which each layout has some, in order."""
    if len(layouts) == 1:
        return [inputs._replace(layout=layouts[0])]
    lengths = [len(layout.position_ids) for layout in layouts]
    tensors = (x.split(lengths) for x in inputs[:3])
    return [
        inputs._replace(q=q, k=k, v=v, layout=layout)
        for q, k, v, layout in zip(*tensors, layouts, strict=True)
    ]


def _rectangle(inputs: Inputs) -> Tensor:
    """Return attention within sequences that are padded to one rectangle."""
    q, k, v, layout, keys_layout, bias, dropout, reach = inputs
    layouts = (layout, keys_layout or layout, keys_layout or layout)
    queries, keys, values = (
        part_layout.pad(x).transpose(1, 2)
        for part_layout, x in zip(layouts, (q, k, v), strict=True)
    )
    # a long sequence has no mask of all pairs: padding comes after every token
    is_causal = layout.is_causal and layout.max_seqlen >= LONG and not keys_layout
    mask = None
    if not is_causal:
        mask = layout.visible_keys(keys_layout) if keys_layout else visible(layout, reach)
    bias_of_pairs = bias and bias(layout, queries, keys)
    context = attend(queries, keys, values, mask, bias_of_pairs, dropout, is_causal=is_causal)
    return layout.unpad(context.transpose(1, 2))


def visible(layout: Layout, reach: int) -> Tensor | None:
    """Return which tokens of the rectangle a token reads, as `Layout.visible`.

    reach: see `attention`. A place without a token reads all tokens of its sequence.
    """
    mask = layout.visible
    if not reach:
        return mask
    places = torch.arange(layout.max_seqlen, device=layout.position_ids.device)
    near = ((places - places[:, None]).abs() <= reach)[None, None]
    if mask is None:
        return near
    return mask & (near | ~layout.present[:, None, :, None])


def supports_packed(inputs: Inputs) -> bool:
    """Return whether `attention_packed` takes the inputs.

    It does on a GPU from Ampere on, in half precision, for heads whose size is a multiple of 8,
    without a bias and other keys. A token reads its whole sequence, or itself and the tokens before
    it.
    """
    q, _, _, layout, keys_layout, bias, *_ = inputs
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
    q, k, v, layout, _, _, dropout, reach = inputs
    ends = layout.cu_seqlens, layout.cu_seqlens, layout.max_seqlen, layout.max_seqlen
    options = {} if torch.is_grad_enabled() else dict(_one_split())
    if reach:
        options |= {"window_size_left": reach, "window_size_right": reach}
    forward = torch.ops.aten._flash_attention_forward.default
    return forward(q, k, v, *ends, dropout, layout.is_causal, False, **options)[0]  # type: ignore[no-any-return]


def supports_local(inputs: Inputs) -> bool:
    """Return whether `attention_local` takes the inputs.

    It does where a token reads its neighbours on both sides, without a bias and other keys.
    """
    is_plain = inputs.bias is None and inputs.keys_layout is None and inputs.layout.rank is None
    return inputs.reach > 0 and is_plain and not is_exported()


def attention_local(inputs: Inputs) -> Tensor:
    """Return `attention` where a token reads its neighbours.

    Short sequences are padded to rectangles, of which a mask hides what is far. Of longer ones
    blocks of queries read the keys that are near one of them: blocks never cross sequences.
    """
    block = max(_LOCAL_BLOCK, inputs.reach)
    contexts = []
    for part in _parts(inputs, inputs.layout.groups):
        if part.layout.max_seqlen <= 3 * block:
            contexts.append(_rectangle(part))
            continue
        lengths = part.layout.cu_seqlens.diff().tolist()
        texts = zip(*(x.split(lengths) for x in part[:3]), strict=True)
        contexts += [_local(q, k, v, inputs.reach, block, inputs.dropout) for q, k, v in texts]
    return _joined(contexts)


def _local(q: Tensor, k: Tensor, v: Tensor, reach: int, block: int, dropout: float) -> Tensor:
    """Return attention of one sequence to neighbours: [L, heads, d] each -> [L, heads, d].

    block: queries that are computed together, at least as many as the reach.
    """
    length = len(q)
    if torch.is_grad_enabled() and not q.is_cuda:
        rows = (x.transpose(0, 1) for x in (q, k, v))
        dropped = round(dropout * DROPOUT_LEVELS)
        context: Tensor = _BlockwiseFunction.apply(  # type: ignore[no-untyped-call]
            *rows, None, None, q.shape[1], dropped, (reach, reach), block
        )
        return context.transpose(0, 1)
    # The first block has no keys before it. Behind the blocks that have all keys on both sides
    # there are less than two blocks.
    inner = max(0, (length - reach) // block - 1)
    end = (1 + inner) * block
    pieces = [_near(q, k, v, 0, block, reach, dropout)]
    if inner:
        # views: [blocks, heads, block, d], and of keys [blocks, heads, block + 2 * reach, d]
        queries = q[block:end].unflatten(0, (inner, block)).transpose(1, 2)
        keys, values = (
            x[block - reach : end + reach].unfold(0, block + 2 * reach, block).transpose(2, 3)
            for x in (k, v)
        )
        mask = _near_mask(block, 2 * reach + block, -reach, (reach, reach), q.device)
        context = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
        pieces.append(context.transpose(1, 2).flatten(0, 1))
    pieces.append(_near(q, k, v, end, length, reach, dropout))
    return torch.cat(pieces)


def _near(
    q: Tensor, k: Tensor, v: Tensor, start: int, end: int, reach: int, dropout: float
) -> Tensor:
    """Return attention of the queries from `start` to `end` of a sequence to their neighbours."""
    first = max(0, start - reach)
    last = min(len(k), end + reach)
    mask = _near_mask(end - start, last - first, first - start, (reach, reach), q.device)
    queries, keys, values = (
        x[None].transpose(1, 2) for x in (q[start:end], k[first:last], v[first:last])
    )
    context = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
    return context[0].transpose(0, 1)


def _near_mask(
    num_queries: int, num_keys: int, offset: int, reach: tuple[int, int], device: torch.device
) -> Tensor:
    """Return which keys are near a query: bool [num_queries, num_keys].

    offset: the place of the first key minus that of the first query. reach: the largest distances
        of keys before a query and behind it.
    """
    before, behind = reach
    places = torch.arange(num_keys, device=device) + offset
    distances = places - torch.arange(num_queries, device=device)[:, None]
    return (distances >= -before) & (distances <= behind)


def supports_inference(inputs: Inputs) -> bool:
    """Return whether `attention_inference` takes the inputs.

    It does without gradients and dropout, and on a CPU for tokens that read their whole sequence.
    """
    reads_sequence = inputs.layout.rank is None and inputs.keys_layout is None and not inputs.reach
    has_gradients = torch.is_grad_enabled()
    return (
        reads_sequence
        and inputs.dropout == 0
        and not (inputs.q.is_cuda or has_gradients or is_exported())
    )


def attention_inference(inputs: Inputs) -> Tensor:
    """Return `attention` on a CPU without gradients."""
    q, k, v, layout, _, bias, *_ = inputs
    # In bf16 the fused kernel takes 1.5 times as long as matrix products, except for few tokens.
    # These need memory for all pairs of tokens.
    are_few = len(q) <= _MIN_TOKENS_FOR_BMM
    if q.dtype == torch.bfloat16 and not are_few and layout.max_seqlen < LONG:
        return _inference_bucketed(inputs)
    # Without padding, one call for neighbours of one length: sorted batches have many of them.
    contexts = []
    first = 0  # sequence of a run
    for start, count, length in _runs(layout, bias):
        end = start + count * length
        parts = (q, k, v) if end - start == len(q) else (q[start:end], k[start:end], v[start:end])
        # [count, heads, length, d] each
        queries, keys, values = (x.view(count, length, *x.shape[1:]).transpose(1, 2) for x in parts)
        mask = None
        if bias is not None:
            mask = bias(layout.part(first, first + count, length), queries, keys).to(q.dtype)
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


def _runs(layout: Layout, bias: Bias | None) -> Iterator[tuple[int, int, int]]:
    """Yield neighbours of one length, as `Layout.equal_lengths`.

    With a bias they have up to _BIASED_PAIRS pairs of tokens, or are single sequences.
    """
    for start, count, length in layout.equal_lengths:
        most = count if bias is None else max(1, _BIASED_PAIRS // length**2)
        for first in range(0, count, most):
            yield start + first * length, min(most, count - first), length


def _inference_bucketed(inputs: Inputs) -> Tensor:
    """Return attention in bf16.

    oneDNN compiles a program for each size of a product, which takes longer than the product of a
    small batch, and keeps a thousand of them. Here there are few sizes.
    """
    q, k, v, layout, _, bias, *_ = inputs
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
            bias and bias(part, queries, keys),
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
    reads_itself = inputs.keys_layout is None and not inputs.reach
    return reads_itself and not inputs.layout.is_uniform and compiles_sizes(inputs.q)


def attention_bucketed(inputs: Inputs) -> Tensor:
    """Return `attention` on a CPU, with gradients, in rectangles of few sizes."""
    q, k, v, layout, _, bias, dropout, _ = inputs
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
        added = bias and bias(part, queries, keys)
        context = attend(queries, keys, values, part.visible, added, dropout)
        contexts.append(context.transpose(1, 2).flatten(0, 1))
    return torch.cat(contexts).index_select(0, places)


# Each kernel behind the function that states what it supports; the first that does is used.
KERNELS: tuple[tuple[Callable[[Inputs], bool], Callable[[Inputs], Tensor]], ...] = (
    (supports_packed, attention_packed),
    (supports_local, attention_local),
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
    *,
    is_causal: bool = False,
) -> Tensor:
    """Return attention of one rectangle.

    q [B, heads, L, d], k and v [B, heads, K, d] -> [B, heads, L, d].

    Args:
        mask: bool [B or 1, 1, L or 1, K], True where a token is read; without gradients also a
            number that is added to the scores.
        bias: [B or 1, heads or 1, L, K], added to the scores.
        dropout: probability of zeroing an attention probability.
        is_causal: whether a query reads the keys up to its own place; of LONG keys or more, without
            a mask and a bias.
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
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
    # On a CPU the backward pass of the fused kernel takes longer than matrix products, but for long
    # sequences in single precision, where it takes two thirds of their time.
    is_long = k.shape[2] >= LONG
    if is_long and bias is None and not dropout and not compiles_sizes(q):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
    hidden = None if mask is None else q.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    rectangles = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v))
    dropped = round(dropout * DROPOUT_LEVELS)
    context: Tensor
    if not is_long:
        context = _AttentionFunction.apply(*rectangles, hidden, bias, q.shape[1], dropped)  # type: ignore[no-untyped-call]
        return context.view(q.shape)
    reach = (k.shape[2], 0) if is_causal else None
    context = _BlockwiseFunction.apply(  # type: ignore[no-untyped-call]
        *rectangles, hidden, bias, q.shape[1], dropped, reach, _BLOCK
    )
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


class _BlockwiseFunction(torch.autograd.Function):
    """The same as `_AttentionFunction` in blocks of queries, of which nothing is kept.

    The backward pass computes probabilities again, and draws the same dropout. So memory grows with
    the number of tokens, and not with its square.

    reach: the largest distances of keys before a query and behind it; None: all keys are read.
    block: queries of a block.
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
        reach: tuple[int, int] | None,
        block: int,
    ) -> Tensor:
        seed = int(torch.randint(2**62, ())) if dropped else 0
        ctx.settings = _Blocks(q.shape[1], k.shape[1], num_heads, dropped, reach, block, seed)
        ctx.save_for_backward(q, k, v, mask, bias)
        context = torch.empty_like(q)
        for part in ctx.settings.parts():
            used, _, _ = ctx.settings.probabilities(part, q, k, mask, bias)
            context[:, part.queries] = torch.bmm(used, v[:, part.keys])
        return context

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
        q, k, v, mask, bias = ctx.saved_tensors
        blocks = ctx.settings
        # many sums are added up: in single precision at least
        dtype = torch.promote_types(q.dtype, torch.float32)
        grad_q = torch.empty_like(q)
        grad_k, grad_v = (torch.zeros_like(x, dtype=dtype) for x in (k, v))
        needs_bias = ctx.needs_input_grad[4]
        grad_bias = torch.zeros_like(bias, dtype=dtype) if needs_bias else None
        for part in blocks.parts():
            used, probabilities, keep = blocks.probabilities(part, q, k, mask, bias)
            grad_part = grad[:, part.queries]
            grad_v[:, part.keys] += torch.bmm(used.transpose(1, 2), grad_part)
            grad_p = torch.bmm(grad_part, v[:, part.keys].transpose(1, 2))
            if keep is not None:
                grad_p *= keep
            scores = torch._softmax_backward_data(grad_p, probabilities, -1, probabilities.dtype)
            if grad_bias is not None:
                per_head = scores.view(-1, blocks.num_heads, *scores.shape[1:])
                rows = grad_bias[:, :, part.queries, part.keys]
                rows += per_head.sum_to_size(rows.shape)
            scores.mul_(q.shape[-1] ** -0.5)
            grad_q[:, part.queries] = torch.bmm(scores, k[:, part.keys])
            grad_k[:, part.keys] += torch.bmm(scores.transpose(1, 2), q[:, part.queries])
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        gradients = grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype), None, grad_bias
        return *gradients, None, None, None, None


class _Part(NamedTuple):
    """A block of queries, and the keys that one of them may read."""

    number: int
    queries: slice
    keys: slice


class _Blocks(NamedTuple):
    """How `_BlockwiseFunction` divides queries.

    seed: of the dropout.
    """

    num_queries: int
    num_keys: int
    num_heads: int
    dropped: int
    reach: tuple[int, int] | None
    block: int
    seed: int

    def parts(self) -> Iterator[_Part]:
        """Yield the blocks in order."""
        for number, start in enumerate(range(0, self.num_queries, self.block)):
            end = min(start + self.block, self.num_queries)
            keys = slice(0, self.num_keys)
            if self.reach:
                before, behind = self.reach
                keys = slice(max(0, start - before), min(self.num_keys, end + behind))
            yield _Part(number, slice(start, end), keys)

    def probabilities(
        self, part: _Part, q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the probabilities of a block after dropout, before it, and the factors of it.

        They are [N, queries, keys] each; without dropout the first two are the same.
        """
        queries = q[:, part.queries]
        scores = torch.bmm(queries, k[:, part.keys].transpose(1, 2)).mul_(q.shape[-1] ** -0.5)
        for added in (mask, bias):
            if added is not None:
                rows = part.queries if added.shape[2] > 1 else slice(None)
                per_head = scores.view(-1, self.num_heads, *scores.shape[1:])
                per_head.add_(added[:, :, rows, part.keys])
        if self.reach:
            offset = part.keys.start - part.queries.start
            num_queries, num_keys = scores.shape[1:]
            near = _near_mask(num_queries, num_keys, offset, self.reach, scores.device)
            scores.masked_fill_(~near, -torch.inf)
        probabilities = softmax_(scores)
        if not self.dropped:
            return probabilities, probabilities, None
        generator = torch.Generator().manual_seed((self.seed + part.number) % 2**63)
        keep = keep_mask(probabilities, self.dropped, generator)
        keep.mul_(DROPOUT_LEVELS / (DROPOUT_LEVELS - self.dropped))
        return probabilities * keep, probabilities, keep
