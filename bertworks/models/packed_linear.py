"""An encoder that learns no more, sooner: its matrices are turned once into what this processor multiplies fastest, and
products, biases, activations and residuals are as few calls, and as few new tensors, as can be. Not here: gradients,
GPUs; `Encoder` does these.
"""

import math
import platform
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.attention import attention_inference_cpu
from bertworks.models.encoder import Block, Encoder
from bertworks.models.layers import SMALL_BATCH_ROWS, cpu_supports_bf16, pad_rows_to_bucket
from bertworks.models.layout import Layout

_LARGEST = 1e-2, 6e4  # weight of a matrix: half precision has few digits for smaller ones, and no larger ones
_ROWS = 4096  # of a product, for which packed matrices are laid out
_MOST, _ZERO = 127, 128  # whole numbers from -127 to 127; oneDNN wants none below 0, so 128 is added to those of inputs
_LEAST = 1e-30  # a scale: of a row of zeros too
_IN_PLACE: dict[str | None, Callable[[Tensor], Tensor]] = {
    "gelu": torch.ops.aten.gelu_.default,
    "gelu_tanh": partial(torch.ops.aten.gelu_.default, approximate="tanh"),
    "relu": torch.relu_,
    None: lambda x: x,
}
_FUSED = {"gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class Dense(Protocol):
    """A matrix with its bias, and what comes after it: an activation, or a residual that is added. Where there is one,
    `x` is nobody else's, and may be overwritten."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> Tensor: ...


class _Layer(NamedTuple):
    block: Block
    qkv: Dense
    output: Dense
    up: Dense
    down: Dense

    def __call__(self, x: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
        """`Block.forward` in few calls. `x` may have more rows than there are tokens."""
        first, second = self.block.attention_norm, self.block.feed_forward_norm
        qkv = self.qkv(x)[: len(layout.position_ids)].unflatten(1, (3, self.block.attention.num_heads, -1))
        context = attention_inference_cpu(qkv, layout).flatten(1)
        if rows is not None:
            context, x = context.index_select(0, rows), x.index_select(0, rows)
        elif len(x) > len(context):
            context = F.pad(context, (0, 0, 0, len(x) - len(context)))
        x = torch.layer_norm(self.output(context, x), first.normalized_shape, first.weight, first.bias, first.eps)
        x = self.down(self.up(x), x)
        return torch.layer_norm(x, second.normalized_shape, second.weight, second.bias, second.eps)


class InferenceEncoder(nn.Module):
    """Made by `in_float32`, `in_bfloat16`, `in_int8` or `halved`.

    Args:
        few: more tokens than these are left to `rest`.
        rounded: whether rows are filled up to one of few numbers of them.
        told: the type of the states that it gives, where that is another one than they are computed in.
    """

    def __init__(
        self,
        encoder: Encoder,
        dense: Callable[[nn.Linear, str | None], Dense],
        dtype: torch.dtype,
        few: float = math.inf,
        rest: "Encoder | InferenceEncoder | None" = None,
        *,
        rounded: bool = False,
        told: torch.dtype | None = None,
    ):
        super().__init__()
        self.encoder, self.config, self.training = encoder, encoder.config, encoder.training
        self._dense, self._dtype, self._few, self._rest, self._rounded = dense, dtype, few, rest, rounded
        self._told = told or dtype
        self._layers: list[_Layer] = []

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None, rows: Tensor | None = None
    ) -> list[Tensor]:
        """As `Encoder.forward`."""
        if torch.is_grad_enabled():
            return self.encoder(input_ids, layout, token_type_ids, rows)  # type: ignore[no-any-return]
        if self._rest is not None and len(input_ids) > self._few:
            return self._rest(input_ids, layout, token_type_ids, rows)  # type: ignore[no-any-return]
        layers = self._layers or [self._turned(cast(Block, block)) for block in self.encoder.blocks]
        self._layers = layers  # whole at once, and not looked at again below: several threads may be here
        with torch.autocast("cpu", enabled=False):  # it would look at every call
            fill = pad_rows_to_bucket if self._rounded else lambda x: x
            states = [fill(self.encoder.embeddings(input_ids, layout, token_type_ids).to(self._dtype))]
            asked = None if rows is None else fill(rows)
            for layer in layers:
                states.append(layer(states[-1], layout, asked if layer is layers[-1] else None))
        last = len(input_ids) if rows is None else len(rows)
        return [*(state[: len(input_ids)].to(self._told) for state in states[:-1]), states[-1][:last].to(self._told)]

    def _turned(self, block: Block) -> _Layer:
        attention, inner = block.attention, block.feed_forward
        return _Layer(
            block,
            self._dense(attention.qkv, None),
            self._dense(attention.output, None),
            self._dense(inner.up, self.config.hidden_act),
            self._dense(inner.down, None),
        )


def to_fp32_inference(encoder: Encoder) -> Encoder | InferenceEncoder:
    """The encoder in single precision: on a CPU a twentieth sooner, on one of AMD twice as soon with AVX-512, whose
    matrices are then in memory twice."""
    if next(encoder.parameters()).device.type != "cpu":
        return encoder
    at_home = _prefer_mkl()
    return InferenceEncoder(encoder, _single if at_home else _packed_single, torch.float32, rounded=not at_home)


def with_fp16_weights(encoder: Encoder, rest: Encoder | InferenceEncoder) -> Encoder | InferenceEncoder:
    """One short text is a matter of fetching weights: from half precision, where this processor and these weights allow
    it. Up to FEW tokens take half to two thirds of the time, and their states differ in the fourth digit; once there
    were some, the matrices are in memory in half precision too. More tokens are left to `rest`."""
    if torch.backends.quantized.engine not in ("x86", "fbgemm") or next(encoder.parameters()).device.type != "cpu":
        return rest
    least, most = _LARGEST
    matrices = (part.weight for part in encoder.modules() if isinstance(part, nn.Linear))
    fits = all(least < weight.detach().abs().amax() < most for weight in matrices)
    return InferenceEncoder(encoder, _half, torch.float32, SMALL_BATCH_ROWS, rest) if fits else rest


def to_bf16_inference(encoder: Encoder) -> Encoder | InferenceEncoder:
    """The encoder in bf16. On a processor that multiplies such matrices, states are bf16 throughout; sums and softmaxes
    are taken in single precision. The encoder itself stays as it was. Elsewhere its matrices are rounded."""
    if next(encoder.parameters()).device.type == "cpu" and cpu_supports_bf16():
        return InferenceEncoder(encoder, _bfloat16, torch.bfloat16, rounded=True)
    for part in encoder.modules():
        if isinstance(part, nn.Linear):
            part.bfloat16()
    return encoder


def to_int8_inference(encoder: Encoder) -> InferenceEncoder:
    """The encoder with matrices in whole numbers of eight bits, for a processor that multiplies these. Weights have a
    scale for each output, inputs one for each token (Dettmers et al. 2022, section 2.1). Sums are exact, and all else
    is in single precision, or, where this processor multiplies such matrices, in bf16."""
    dtype = torch.bfloat16 if cpu_supports_bf16() else torch.float32
    return InferenceEncoder(encoder, partial(_int8, dtype=dtype), dtype, rounded=True, told=torch.float32)


@cache
def cpu_supports_int8() -> bool:
    """Whether this processor, as oneDNN may use it, multiplies numbers of eight bits exactly. Those without
    instructions for it (VNNI) let the sums of two products overflow."""
    if not torch.backends.mkldnn.is_available() or not torch.cpu._is_vnni_supported():
        return False
    weight, rows = torch.full((1, 64), _MOST, dtype=torch.int8), torch.full((1, 64), _ZERO + _MOST, dtype=torch.uint8)
    return _whole(weight, torch.ones(1))(rows).item() == 64 * _MOST * _MOST


@cache
def _prefer_mkl() -> bool:
    """Whether single precision is best left to PyTorch, which asks MKL where it was built with it. That keeps its best
    kernels for Intel's processors; on AMD's oneDNN is sooner. Not measured, so that answers never change by a digit
    from one process to the next."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return True
    told = Path("/proc/cpuinfo")
    return "AuthenticAMD" not in (told.read_text() if told.exists() else platform.processor())


def _single(linear: nn.Linear, activation: str | None) -> Dense:
    weight, bias, function = linear.weight.detach().t(), linear.bias.detach(), _IN_PLACE[activation]

    def dense(x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is not None:
            return (residual + bias).addmm_(x, weight)
        return function(torch.addmm(bias, x, weight))

    return dense


def _packed_single(linear: nn.Linear, activation: str | None) -> Dense:
    """As oneDNN keeps them. What comes after a product is sooner on its own here."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().contiguous(), _ROWS)
    bias, multiply = linear.bias.detach(), torch.ops.mkldnn._linear_pointwise.default
    return _followed(lambda x: multiply(x, weight, bias, "none", [], ""), activation)


def _half(linear: nn.Linear, activation: str | None) -> Dense:
    """As FBGEMM keeps them."""
    weight = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().contiguous(), linear.bias.detach())
    return _followed(lambda x: torch.ops.quantized.linear_dynamic_fp16.default(x, weight), activation)


def _followed(multiply: Callable[[Tensor], Tensor], activation: str | None) -> Dense:
    """By an activation or a residual, in the place of the product."""
    function = _IN_PLACE[activation]

    def dense(x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = function(multiply(x))
        return y if residual is None else y.add_(residual)

    return dense


def _bfloat16(linear: nn.Linear, activation: str | None) -> Dense:
    """As oneDNN keeps them."""
    weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().bfloat16().contiguous(), _ROWS)
    bias = linear.bias.detach().bfloat16()
    function, variant = _FUSED[activation] if activation else ("none", "")

    def dense(x: Tensor, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, function, [], variant)  # type: ignore[no-any-return]
        return torch.ops.mkldnn._linear_pointwise.binary(x, residual, weight, bias, "add")  # type: ignore[no-any-return]

    return dense


def _int8(linear: nn.Linear, activation: str | None, dtype: torch.dtype = torch.float32) -> Dense:
    weight, bias, function = linear.weight.detach().float(), linear.bias.detach().to(dtype), _IN_PLACE[activation]
    scales = weight.abs().amax(1).clamp_min(_LEAST) / _MOST
    multiplied = _whole((weight / scales[:, None]).round().to(torch.int8).contiguous(), scales, dtype)
    most = _MOST if dtype == torch.float32 else _MOST - 1  # of rows: in bf16 they are rounded up by as much

    def dense(x: Tensor, residual: Tensor | None = None) -> Tensor:
        scale = _largest(x).clamp_min_(_LEAST).div_(most)
        x = x / scale if residual is None else x.div_(scale)
        y = multiplied(x.round_().to(torch.int8).bitwise_xor_(-_ZERO).view(torch.uint8))  # another first bit: 128 more
        if residual is not None:
            return (residual + bias).addcmul_(y, scale)
        return function(torch.addcmul(bias, y, scale))

    return dense


def _largest(x: Tensor) -> Tensor:
    """[T, n] -> [T, 1]: the largest absolute number of each row. The bits of bf16 without their sign are in the order
    of what they stand for, and whole numbers are compared in half the time."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).bitwise_and(0x7FFF).amax(1, keepdim=True).view(torch.bfloat16)
    return torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))


def _whole(weight: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
    """int8 [outputs, inputs], as oneDNN keeps them, and a scale of each output -> what multiplies uint8 [T, inputs],
    which are 128 too large, with them: [T, outputs] of that type."""
    packed, zeros = torch.ops.onednn.qlinear_prepack(weight, [_ROWS, weight.shape[1]]), torch.zeros_like(scales).long()

    def multiplied(rows: Tensor) -> Tensor:
        return torch.ops.onednn.qlinear_pointwise.default(  # type: ignore[no-any-return]
            rows, 1.0, _ZERO, packed, scales, zeros, None, 1.0, 0, dtype, "none", [], ""
        )

    return multiplied
