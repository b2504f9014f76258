"""A finite set of labelled examples becomes the batches of a run, and of an examination. Not here: how texts become
examples (`questions`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertworks.data.batch import Batch, collate
from bertworks.data.masking import Example
from bertworks.data.stream import shuffled

Unit = Sequence[Example]  # sequences that are asked together: one, or the choices among which one is right


@dataclass(frozen=True)
class LabelledBatches:
    """`batches(n)` is what this process computes for the n-th step: its share of the same units, none where there are
    fewer units than processes. Every epoch has an order of its own, which is stored nowhere, and ends with a batch that
    may be smaller: nothing is left out."""

    units: Sequence[Unit]
    batch_size: int  # units in a step, over all processes
    micro_batch_tokens: int  # at most so many at once, padding counted; or one unit
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.units) // self.batch_size)

    def __call__(self, n: int) -> list[Batch]:
        epoch, k = divmod(n, self.steps_per_epoch)
        count = len(self.units)
        places = range(k * self.batch_size, min((k + 1) * self.batch_size, count))
        chosen = [self.units[shuffled(i, count, self.seed, epoch)] for i in places]
        share = sorted(chosen, key=longest)[self.rank :: self.world_size]
        return [
            collate([example for unit in part for example in unit]) for part in packed(share, self.micro_batch_tokens)
        ]


def packed(units: Sequence[Unit], tokens: int) -> Iterator[list[Unit]]:
    """The units, sorted by length (neighbours pad one another little), in parts that fit into so many tokens."""
    for part in packed_numbers([longest(unit) for unit in units], [len(unit) for unit in units], tokens):
        yield [units[number] for number in part]


def packed_numbers(lengths: Sequence[int], sizes: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Numbers of units in such parts. lengths: of the longest sequence of each; sizes: how many sequences each has."""
    part: list[int] = []
    sequences = 0
    for number in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if part and (sequences + sizes[number]) * lengths[number] > tokens:
            yield part
            part, sequences = [], 0
        part.append(number)
        sequences += sizes[number]
    if part:
        yield part


def longest(unit: Unit) -> int:
    """Tokens of the longest sequence of a unit."""
    return max(len(example.input_ids) for example in unit)
