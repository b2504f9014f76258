"""Multi-head attention within packed sequences: its matrices, and the kernel that computes it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.models.cache import LayerCache
from bertworks.models.config import EncoderConfig
from bertworks.models.kernels import Bias, attention
from bertworks.models.layers import Linear
from bertworks.models.layout import Layout


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2).

    There is one matrix for query, key and value.
    """

    def __init__(self, c: EncoderConfig):
        super().__init__()
        self.num_heads = c.num_attention_heads
        self.dropout = c.attention_dropout
        self.qkv = Linear(c.hidden_size, 3 * c.hidden_size)
        self.output = Linear(c.hidden_size, c.hidden_size)

    def forward(
        self,
        x: Tensor,
        layout: Layout,
        rows: Tensor | None = None,
        memory: Tensor | None = None,
        cache: LayerCache | None = None,
        bias: Bias | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden], or [R, hidden] for the tokens `rows` int64 [R] only.

        x: may have more rows than the layout has tokens; their result is of no use.
        memory: [tokens of layout.memory, hidden]: states that are read as well.
        cache: keys and values of the tokens before, which are read as well; those of x are added.
        bias: added to the scores; not with a cache.
        """
        assert cache is None or bias is None
        dropout = self.dropout if self.training else 0.0
        num_padding_rows = len(x) - len(layout.position_ids)
        qkv = self._heads(self.qkv(x))
        qkv = qkv[:-num_padding_rows] if num_padding_rows else qkv
        if cache is not None and cache.continues:
            context = cache.attend(qkv)
        else:
            q, k, v = qkv.unbind(1)
            keys_layout = None
            if memory is not None:
                keys_layout, order = layout.keys_with_memory
                _, *before = self._heads(self.qkv(memory)).unbind(1)
                k, v = (
                    torch.cat([old, new]).index_select(0, order)
                    for old, new in zip(before, (k, v), strict=True)
                )
            context = attention(
                q, k, v, layout, keys_layout=keys_layout, bias=bias, dropout=dropout
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
    def probabilities(self, x: Tensor, layout: Layout, bias: Bias | None = None) -> Tensor:
        """Return the attention that the token of a row pays to the token of a column.

        [T, hidden], the input of `forward` -> [B, heads, max_seqlen, max_seqlen]. Rows sum to 1;
        rows and columns of places without a token are 0.
        """
        # [B, heads, max_seqlen, d]
        q, k, _ = layout.pad(self._heads(self.qkv(x))).permute(2, 0, 3, 1, 4)
        scores: Tensor = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias(layout)
        mask = layout.visible
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores.softmax(-1) * layout.present[:, None, :, None]

    def _heads(self, qkv: Tensor) -> Tensor:
        """[T, 3 * hidden] -> [T, 3, heads, d]."""
        return qkv.unflatten(1, (3, self.num_heads, -1))  # type: ignore[no-any-return]
