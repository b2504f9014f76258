"""Linear layers for CPU inference, with weights packed once for the kernels of this processor.

- `pack_linears`: a copy of an encoder in which they replace every `nn.Linear`
- `pack_output`: the output layer over the vocabulary
- `to_fp32_inference`, `to_bf16_inference`, `to_int8_inference`, `with_fp16_weights`: the encoder in
  a precision
"""

import copy
import platform
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.attention import Block, FeedForward
from bertworks.models.embeddings import Embeddings
from bertworks.models.layers import SMALL_BATCH_ROWS, cpu_supports_bf16, meta_device_init
from bertworks.models.transformer import Encoder

# of the largest weight of a matrix: fp16 has few digits for smaller ones, and no larger ones
_FP16_LIMITS = 1e-2, 6e4
_PACKED_ROWS = 4096  # rows of a product, for which packed matrices are laid out
_MAX_INT8 = 127
_ZERO_POINT = 128  # oneDNN takes unsigned inputs: 128 is added to them
_SMALLEST_SCALE = 1e-30  # for a row of zeros
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # in place
    "gelu": torch.ops.aten.gelu_.default,
    "gelu_tanh": partial(torch.ops.aten.gelu_.default, approximate="tanh"),
    "relu": torch.relu_,
}
_FUSED = {
    None: ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}

Product = Callable[[Tensor], Tensor]  # a packed linear layer: [T, in_features] -> [T, out_features]
# a layer, the activation behind it, whether it may overwrite x
Pack = Callable[[nn.Linear, str | None, bool], Product]


def pack_linears(encoder: Encoder, pack: Pack, dtype: torch.dtype, *, pads_rows: bool) -> Encoder:
    """Return a copy of the encoder for inference on a CPU, with packed linear layers.

    Its states are in `dtype`. It shares the tables and the norms with the original.

    pads_rows: whether the number of rows of a product is padded to one of few, for kernels that are
        compiled for each.
    """
    result = copy.deepcopy(encoder, {id(p): p for p in encoder.parameters()})
    result.compute_dtype = dtype
    result.pads_rows = pads_rows
    for module in result.modules():
        if isinstance(module, Encoder | Block) and next(encoder.parameters()).device.type != "cpu":
            for norm in (part for part in module.children() if isinstance(part, nn.LayerNorm)):
                # A GPU has no norm of states in one type with weights in another; it computes in
                # float32 anyway.
                norm.weight, norm.bias = (
                    nn.Parameter(p.to(dtype), False) for p in (norm.weight, norm.bias)
                )
        for name, part in list(module.named_children()):
            # The projection of the embeddings is small, and in the precision of the tables.
            if isinstance(part, nn.Linear) and not isinstance(module, Embeddings):
                activation = (
                    module.name if isinstance(module, FeedForward) and name == "up" else None
                )
                # nothing else reads what attention and the activation returned
                owns_input = name in ("output", "down")
                delattr(module, name)
                # a module costs time in each call
                module.__dict__[name] = pack(part, activation, owns_input)
        if isinstance(module, FeedForward):
            module.activation = lambda x: x  # part of the packed layer before it
    return result


class InferenceEncoder(nn.Module):
    """An encoder and its packed copy, with the interface of `Encoder`.

    With gradients the encoder itself computes.

    Args:
        pack, dtype, pads_rows: see `pack_linears`. The copy is made when it is first needed.
        fallback: computes batches of more than SMALL_BATCH_ROWS tokens; None: the packed copy does.
        output_dtype: of the states that are returned; None: as they are computed.
    """

    def __init__(
        self,
        encoder: Encoder,
        pack: Pack,
        dtype: torch.dtype = torch.float32,
        *,
        pads_rows: bool = True,
        fallback: "Encoder | InferenceEncoder | None" = None,
        output_dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.encoder = encoder
        self.config = encoder.config
        self.training = encoder.training
        self._pack = partial(pack_linears, pack=pack, dtype=dtype, pads_rows=pads_rows)
        self._packed: Encoder | None = None
        self._fallback = fallback
        self._output_dtype = output_dtype

    def forward(self, input_ids: Tensor, *inputs: Any, **options: Any) -> list[Tensor]:
        """As `Encoder.forward`."""
        if torch.is_grad_enabled():
            return self.encoder(input_ids, *inputs, **options)  # type: ignore[no-any-return]
        if self._fallback is not None and len(input_ids) > SMALL_BATCH_ROWS:
            return self._fallback(input_ids, *inputs, **options)  # type: ignore[no-any-return]
        packed = self._packed or self._pack(self.encoder)
        self._packed = packed  # complete when it is assigned: several threads may be here
        with torch.autocast(input_ids.device.type, enabled=False):  # it would look at every call
            states: list[Tensor] = packed(input_ids, *inputs, **options)
        return (
            states
            if self._output_dtype is None
            else [state.to(self._output_dtype) for state in states]
        )


def to_fp32_inference(encoder: Encoder) -> Encoder | InferenceEncoder:
    """Return the encoder in float32 for inference.

    On a CPU it is about 5 % faster, on one of AMD with AVX-512 twice as fast, with a second copy of
    the matrices in memory.
    """
    if next(encoder.parameters()).device.type != "cpu":
        return encoder
    return (
        InferenceEncoder(encoder, _mkl, pads_rows=False)
        if _prefer_mkl()
        else InferenceEncoder(encoder, _onednn)
    )


def with_fp16_weights(
    encoder: Encoder, fallback: Encoder | InferenceEncoder
) -> Encoder | InferenceEncoder:
    """Return the encoder with weights in half precision for up to SMALL_BATCH_ROWS tokens.

    It is where this processor and these weights allow it: the time of one short text is that of
    fetching weights. It takes half to two thirds of the time, and states differ in the fourth
    digit. More tokens are left to `fallback`.
    """
    if (
        torch.backends.quantized.engine not in ("x86", "fbgemm")
        or next(encoder.parameters()).device.type != "cpu"
    ):
        return fallback
    least, most = _FP16_LIMITS
    matrices = (part.weight for part in encoder.modules() if isinstance(part, nn.Linear))
    if not all(least < weight.detach().abs().amax() < most for weight in matrices):
        return fallback
    return InferenceEncoder(encoder, _fp16, pads_rows=False, fallback=fallback)


def to_bf16_inference(encoder: Encoder) -> Encoder | InferenceEncoder:
    """Return the encoder in bf16.

    On a GPU, and on a processor that multiplies such matrices, states are bf16, with sums and
    softmax in float32, and the encoder itself stays as it was. Elsewhere its matrices are rounded.
    """
    if next(encoder.parameters()).device.type != "cpu":
        return InferenceEncoder(encoder, _rounded, torch.bfloat16, pads_rows=False)
    if cpu_supports_bf16():
        return InferenceEncoder(encoder, partial(_onednn, dtype=torch.bfloat16), torch.bfloat16)
    for part in encoder.modules():
        if isinstance(part, nn.Linear):
            part.bfloat16()
    return encoder


def pack_output(weight: Tensor, bias: Tensor | None, precision: str) -> Product:
    """Return the product with the embedding matrix [V, hidden] of an output layer.

    It is for inference in "fp32", "bf16" or "int8": its results are logits of the vocabulary.
    """
    is_fp32 = precision == "fp32" or (weight.device.type == "cpu" and not cpu_supports_bf16())
    dtype = torch.float32 if is_fp32 else torch.bfloat16
    if weight.device.type != "cpu" or (is_fp32 and _prefer_mkl()):
        weight = weight.detach().to(dtype)
        bias = None if bias is None else bias.detach().to(dtype)
        return lambda x: F.linear(x.to(dtype), weight, bias)
    with meta_device_init():
        linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    linear.bias = nn.Parameter(
        weight.new_zeros(len(weight)) if bias is None else bias.detach(), requires_grad=False
    )
    multiply = (_int8 if precision == "int8" else _onednn)(linear, None, False, dtype)
    return lambda x: multiply(x.to(dtype))


def to_int8_inference(encoder: Encoder) -> InferenceEncoder:
    """Return the encoder with matrices in int8, for a processor that multiplies these.

    Weights have a scale for each output, inputs one for each token (Dettmers et al. 2022, section
    2.1). Sums are exact; all else is in bf16 where this processor multiplies such matrices, else in
    float32.
    """
    dtype = torch.bfloat16 if cpu_supports_bf16() else torch.float32
    return InferenceEncoder(encoder, partial(_int8, dtype=dtype), dtype, output_dtype=torch.float32)


@cache
def cpu_supports_int8() -> bool:
    """Return whether this processor, as oneDNN may use it, multiplies int8 numbers exactly.

    Without VNNI the sum of two products overflows.
    """
    if not torch.backends.mkldnn.is_available() or not torch.cpu._is_vnni_supported():
        return False
    weight = torch.full((1, 64), _MAX_INT8, dtype=torch.int8)
    rows = torch.full((1, 64), _ZERO_POINT + _MAX_INT8, dtype=torch.uint8)
    return _int8_product(weight, torch.ones(1))(rows).item() == 64 * _MAX_INT8 * _MAX_INT8


@cache
def _prefer_mkl() -> bool:
    """Return whether float32 is left to PyTorch, which uses MKL where it was built with it.

    MKL keeps its best kernels for Intel's processors; on AMD's oneDNN is faster. Not measured, so
    that results never differ between two processes.
    """
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):
        return True
    cpuinfo = Path("/proc/cpuinfo")
    return "AuthenticAMD" not in (cpuinfo.read_text() if cpuinfo.exists() else platform.processor())


def _with_activation(product: Product, activation: str | None) -> Product:
    if activation is None:
        return product
    function = _ACTIVATIONS[activation]
    return lambda x: function(product(x))


def _rounded(linear: nn.Linear, activation: str | None, owns_input: bool) -> Product:
    """Return states in the type of the weights after a norm on a GPU.

    torch's own mode of mixed precision would return float32 states.
    """
    weight = linear.weight.detach().bfloat16()
    bias = linear.bias.detach().bfloat16()
    return _with_activation(lambda x: F.linear(x, weight, bias), activation)


def _mkl(linear: nn.Linear, activation: str | None, owns_input: bool) -> Product:
    weight = linear.weight.detach().t()
    bias = linear.bias.detach()
    return _with_activation(lambda x: torch.addmm(bias, x, weight), activation)


def _onednn(
    linear: nn.Linear, activation: str | None, owns_input: bool, dtype: torch.dtype = torch.float32
) -> Product:
    """In bf16 an activation is faster within the product, in fp32 on its own."""
    weight = torch.ops.mkldnn._reorder_linear_weight(
        linear.weight.detach().to(dtype).contiguous(), _PACKED_ROWS
    )
    bias = linear.bias.detach().to(dtype)
    multiply = torch.ops.mkldnn._linear_pointwise.default
    within, behind = (activation, None) if dtype == torch.bfloat16 else (None, activation)
    function, variant = _FUSED[within]
    return _with_activation(lambda x: multiply(x, weight, bias, function, [], variant), behind)


def _fp16(linear: nn.Linear, activation: str | None, owns_input: bool) -> Product:
    """By FBGEMM."""
    weight = torch.ops.quantized.linear_prepack_fp16(
        linear.weight.detach().contiguous(), linear.bias.detach()
    )
    return _with_activation(
        lambda x: torch.ops.quantized.linear_dynamic_fp16.default(x, weight), activation
    )


def _int8(
    linear: nn.Linear, activation: str | None, owns_input: bool, dtype: torch.dtype = torch.float32
) -> Product:
    weight = linear.weight.detach().float()
    bias = linear.bias.detach().to(dtype)
    scales = weight.abs().amax(1).clamp_min(_SMALLEST_SCALE) / _MAX_INT8
    multiply = _int8_product(
        (weight / scales[:, None]).round().to(torch.int8).contiguous(), scales, dtype
    )
    # in bf16 a quotient may be rounded up
    most = _MAX_INT8 if dtype == torch.float32 else _MAX_INT8 - 1

    def product(x: Tensor) -> Tensor:
        scale = _max_abs(x).clamp_min_(_SMALLEST_SCALE).div_(most)
        x = x.div_(scale) if owns_input else x / scale
        # another sign bit: + 128
        y = multiply(x.round_().to(torch.int8).bitwise_xor_(-_ZERO_POINT).view(torch.uint8))
        return torch.addcmul(bias, y, scale)

    return _with_activation(product, activation)


def _max_abs(x: Tensor) -> Tensor:
    """[T, n] -> [T, 1]: the largest absolute number of each row.

    The bits of bf16 without the sign are in the order of their values, and whole numbers are
    compared in half the time.
    """
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).bitwise_and(0x7FFF).amax(1, keepdim=True).view(torch.bfloat16)
    return torch.maximum(x.amax(1, keepdim=True), -x.amin(1, keepdim=True))


def _int8_product(weight: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Product:
    """Return a product of int8 [outputs, inputs] and a scale for each output with uint8 inputs.

    The inputs [T, inputs] are 128 too large; the result is [T, outputs] of that type.
    """
    packed = torch.ops.onednn.qlinear_prepack(weight, [_PACKED_ROWS, weight.shape[1]])
    zeros = torch.zeros_like(scales).long()
    return lambda rows: torch.ops.onednn.qlinear_pointwise.default(
        rows, 1.0, _ZERO_POINT, packed, scales, zeros, None, 1.0, 0, dtype, "none", [], ""
    )
