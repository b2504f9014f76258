"""The memory of a network that reads a text in segments (Dai et al. 2019, section 3.2).

- `Memory`: the states of the last tokens of each lane of a text, before each block
- `make_memory`: that of a configuration; `refuse_too_long`: that there is room for it
"""

import torch
import torch.distributed as dist
from torch import Tensor

from bertworks.errors import expect
from bertworks.models.config import EncoderConfig

MOST_BYTES = 2_000_000_000  # of a memory
_NUMBER_BYTES = 4


class Memory:
    """The states of the last tokens of each lane of a text, before each block of a network.

    The tokens of a segment read them as if they stood in front of it, without gradients. What a
    pass writes is read only after `commit`: a training step that is interrupted leaves the memory
    as it was.

    A training in several processes has all lanes in each of them, of which each process reads and
    writes its own.

    Args:
        num_layers: blocks of the network.
        num_lanes: lanes of the text.
        length: the largest number of tokens of a lane that are kept.
        width: of the states.

    Attributes:
        states: float32 [num_layers, num_lanes, length, width], the newest token last.
    """

    def __init__(
        self,
        num_layers: int,
        num_lanes: int,
        length: int,
        width: int,
        device: torch.device | str = "cpu",
    ):
        self.length = length
        self.states = torch.zeros(num_layers, num_lanes, length, width, device=device)
        self._written: list[tuple[Tensor, list[Tensor]]] = []  # lanes, and their states per layer

    def read(self, lanes: Tensor, num_before: int) -> list[Tensor] | None:
        """Return what the next segments of some lanes read, for each layer.

        Args:
            lanes: int64 [B].
            num_before: tokens of each of these lanes before the segment. At the beginning of a text
                it is 0, and nothing is read that was written before.

        Returns:
            Tensors [B, N, width]; N is num_before, but at most `length`. None if it is 0.
        """
        count = min(self.length, num_before)
        if count == 0:
            return None
        return [layer[lanes, self.length - count :] for layer in self.states]

    def write(self, lanes: Tensor, states: list[Tensor]) -> None:
        """Keep the states of segments of equal length, one of each lane, until `commit`.

        Args:
            lanes: int64 [B].
            states: of each layer, before its block: [T, width], T tokens in B segments.
        """
        parts = [state.detach().unflatten(0, (len(lanes), -1)) for state in states]
        self._written.append((lanes, [part[:, -self.length :] for part in parts]))

    @torch.no_grad()
    def commit(self) -> None:
        """Put what was written behind the states of its lanes.

        A number that is not finite becomes 0: a checkpoint would refuse it, and the steps that
        follow would inherit it.
        """
        for lanes, parts in self._written:
            for layer, part in zip(self.states, parts, strict=True):
                whole = torch.cat([layer[lanes], part.to(layer.dtype)], 1)[:, -self.length :]
                layer[lanes] = torch.where(whole.isfinite(), whole, 0.0)
        self._written.clear()

    def gather(self, rank: int, num_processes: int) -> None:
        """Bring the lanes of all processes to each of them; all must call it.

        Args:
            rank: the number of this process, which has every `num_processes`-th lane from it on.
        """
        if num_processes == 1:
            return
        is_other = torch.ones(self.states.shape[1], dtype=torch.bool, device=self.states.device)
        is_other[rank::num_processes] = False
        self.states[:, is_other] = 0
        dist.all_reduce(self.states)


def make_memory(
    c: EncoderConfig,
    num_lanes: int,
    device: torch.device | str = "cpu",
    length: int | None = None,
) -> Memory | None:
    """Return an empty memory of a network.

    Args:
        length: the largest number of its tokens; None: that of the training.

    Returns:
        None if the length is 0.
    """
    length = c.memory_length if length is None else length
    if length == 0:
        return None
    return Memory(c.num_hidden_layers, num_lanes, length, c.hidden_size, device)


def refuse_too_long(c: EncoderConfig, num_lanes: int, length: int, option: str) -> None:
    """Raise UsageError for a memory of more than MOST_BYTES.

    Args:
        length: the largest number of its tokens.
        option: what sets the length, as it is typed before the number.
    """
    token = _NUMBER_BYTES * c.num_hidden_layers * num_lanes * c.hidden_size
    expect(
        length * token <= MOST_BYTES,
        f"a memory of {length:,} tokens in {num_lanes:,} lanes, before {c.num_hidden_layers} "
        f"blocks of width {c.hidden_size:,}, has {length * token / 1e9:,.1f} GB: expected at most "
        f"{MOST_BYTES / 1e9:.0f} GB",
        hint=f"{option}{MOST_BYTES // token}",
    )
