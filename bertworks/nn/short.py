"""A few tokens through an encoder, soon: there the time goes into fetching weights and calling functions, so that
weights are read in half precision, computed with in single precision, and no modules are called. Not here: gradients,
GPUs, many tokens; `Encoder` does these."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from bertworks.nn.attention import attend_in_runs
from bertworks.nn.encoder import Block, Encoder
from bertworks.nn.layout import Layout

FEW = 64  # tokens; with more of them arithmetic takes the time
_LARGEST = 1e-2, 6e4  # weight of a matrix: half precision has few digits for smaller ones, and no larger ones


class Short(nn.Module):
    """An encoder that learns no more. Asked without gradients about few tokens it answers in half to two thirds of the
    time, with states that differ in the fourth digit; from then on its matrices are in memory in half precision too."""

    def __init__(self, encoder: Encoder):
        super().__init__()
        self.encoder, self.config, self.training = encoder, encoder.config, encoder.training
        self._blocks: list[tuple[Block, list[Any]]] = []

    def forward(
        self, input_ids: Tensor, layout: Layout, token_type_ids: Tensor | None = None, rows: Tensor | None = None
    ) -> list[Tensor]:
        """As `Encoder.forward`."""
        if len(input_ids) > FEW or torch.is_grad_enabled():
            return self.encoder(input_ids, layout, token_type_ids, rows)  # type: ignore[no-any-return]
        self._blocks = self._blocks or [(cast(Block, block), _halved(block)) for block in self.encoder.blocks]
        states = [self.encoder.embeddings(input_ids, layout, token_type_ids)]
        for block, halves in self._blocks:
            wanted = rows if block is self._blocks[-1][0] else None
            states.append(_through(block, halves, states[-1], layout, wanted))
        return states


def shortened(encoder: Encoder) -> Encoder | Short:
    """The encoder, sooner where this processor and these weights allow it."""
    if torch.backends.quantized.engine not in ("x86", "fbgemm") or next(encoder.parameters()).device.type != "cpu":
        return encoder
    least, most = _LARGEST
    matrices = (part.weight for part in encoder.modules() if isinstance(part, nn.Linear))
    fits = all(least < weight.detach().abs().amax() < most for weight in matrices)
    return Short(encoder) if fits else encoder


def _halved(block: nn.Module) -> list[Any]:
    """Its matrices with their biases, in the order of use, as FBGEMM keeps them."""
    matrices = [part for part in block.modules() if isinstance(part, nn.Linear)]
    return [torch.ops.quantized.linear_prepack_fp16(part.weight.detach(), part.bias.detach()) for part in matrices]


def _through(block: Block, halves: list[Any], x: Tensor, layout: Layout, rows: Tensor | None) -> Tensor:
    """`Block.forward` in few calls."""
    product, (qkv, output, up, down) = torch.ops.quantized.linear_dynamic_fp16.default, halves
    first, second = block.attention_norm, block.feed_forward_norm
    context = attend_in_runs(product(x, qkv).view(len(x), 3, block.attention.num_heads, -1), layout).flatten(1)
    if rows is not None:
        context, x = context.index_select(0, rows), x.index_select(0, rows)
    x = torch.layer_norm(product(context, output).add_(x), first.normalized_shape, first.weight, first.bias, first.eps)
    inner = product(block.feed_forward.activation(product(x, up)), down)
    return torch.layer_norm(inner.add_(x), second.normalized_shape, second.weight, second.bias, second.eps)
