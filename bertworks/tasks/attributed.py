"""Outputs of a network that can be attributed to the tokens of its input."""

from collections.abc import Callable

import torch
from torch import Tensor

from bertworks.batching.masking import Example

Value = Callable[[Tensor], Tensor]  # [copies, M, outputs] -> [copies]
# a sequence and an output for it: its name and value; "", None: none
Attributed = tuple[Example, str, Value | None]


def log_odds(logits: Tensor, output: int) -> Tensor:
    """Return log p / (1 - p) of one output of a softmax, [copies, outputs] -> [copies].

    Unlike a logit it does not change when a constant is added to all logits. A single output is
    returned as it is.
    """
    if logits.shape[-1] == 1:
        return logits[:, 0]
    is_output = torch.arange(logits.shape[-1], device=logits.device) == output
    return logits[:, output] - logits.masked_fill(is_output, -torch.inf).logsumexp(-1)
