"""Examples -> batches of tensors.

- `Batch`, `collate`: examples -> tensors of a batch; `Lanes`: where its sequences stand in a text
  that is read in lanes
- `Batches`: the micro-batches of each step of a pre-training
- `LabelledBatches`: the micro-batches of each step of a fine-tuning; `ContrastiveBatches`: of one
  that compares all sequences of a step
- `Prefetched`: batches of the next step, made by a thread
- `joint_step`: of which task the batch of each step is, where several fine-tunings are one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.examples import (
    Example,
    ExampleGroup,
    Ids,
    LanePlace,
    keyed_rng,
    longest_sequence,
    shuffled_index,
)
from bertworks.batching.sampling import ExampleStream
from bertworks.models.layout import Layout


class BatchTarget(NamedTuple):
    """The targets of one objective in all sequences of a batch."""

    positions: Tensor  # int64 [M]: rows of the batch, ascending
    labels: Tensor  # [M], or [M, number of labels]; spans: [2 B]


class Lanes(NamedTuple):
    """Where the sequences of a batch stand in a text that is read in lanes."""

    numbers: Tensor  # int64 [B]: the lane of each
    num_before: int  # tokens of each of these lanes before the batch

    @classmethod
    def of(cls, places: Sequence[LanePlace]) -> Lanes | None:
        """Return the lanes of sequences of one step; None: without places there are no lanes."""
        if not places:
            return None
        return cls(torch.tensor([place.lane for place in places]), places[0].num_before)


@dataclass(frozen=True)
class Batch:
    """What a network reads and predicts.

    B sequences, T tokens; M predictions of each objective, by its name.
    """

    # int64 [T]; of spellings uint8 [T, 48], the bytes of each word, 0 behind its end
    input_ids: Tensor
    layout: Layout
    token_type_ids: Tensor | None  # int64 [T]
    targets: Mapping[str, BatchTarget]
    # int64 [texts + 1]: the windows of text t are sequences texts[t]:texts[t + 1]. None: each
    # sequence is a text.
    texts: Tensor | None = None
    lanes: Lanes | None = None  # None: its text is not read in lanes

    @property
    def inputs(self) -> tuple[Tensor, Layout, Tensor | None]:
        """What an encoder reads: token ids, their layout and token types."""
        return self.input_ids, self.layout, self.token_type_ids

    @property
    def target(self) -> BatchTarget:
        """The target of a task: the first one.

        A teacher may have added another.
        """
        return next(iter(self.targets.values()))

    def mean_of_windows(self, vectors: Tensor) -> Tensor:
        """Return the vector of each text, the mean of those of its windows.

        [B, width] -> [texts, width], float32 if any text has several windows. All windows of a text
        have the same weight.
        """
        if self.texts is None:
            return vectors
        return torch.segment_reduce(vectors.float(), "mean", offsets=self.texts)

    def to(self, device: torch.device | str) -> Batch:
        """Return the same batch on a device.

        From pinned memory a GPU reads it while the host goes on.
        """
        return self.map(lambda x: x.to(device, non_blocking=True))

    def map(self, move: Callable[[Tensor], Tensor]) -> Batch:
        """Return the same batch with copies of its tensors."""
        types = None if self.token_type_ids is None else move(self.token_type_ids)
        targets = {name: BatchTarget(*map(move, target)) for name, target in self.targets.items()}
        texts = None if self.texts is None else move(self.texts)
        lanes = self.lanes and self.lanes._replace(numbers=move(self.lanes.numbers))
        return Batch(move(self.input_ids), self.layout.map(move), types, targets, texts, lanes)


def collate(examples: Sequence[Example]) -> Batch:
    """Return the sequences laid end to end, with their targets."""
    lengths = np.array([len(e.input_ids) for e in examples])
    starts = np.concatenate([[0], lengths.cumsum()])

    def join(parts: Sequence[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts))

    position_ids = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    layout = Layout(
        torch.from_numpy(starts.astype(np.int32)),
        int(lengths.max()),
        torch.from_numpy(position_ids),
    )
    targets = {}
    for name in examples[0].targets:
        rows = [
            e.targets[name].positions + start for e, start in zip(examples, starts, strict=False)
        ]
        targets[name] = BatchTarget(join(rows), join([e.targets[name].labels for e in examples]))
    input_ids: NDArray[Any] = np.concatenate([e.input_ids for e in examples])
    if input_ids.dtype.kind == "S":
        input_ids = input_ids.view(np.uint8).reshape(len(input_ids), input_ids.dtype.itemsize)
    texts = None
    if any(e.window for e in examples):
        first_windows = [number for number, e in enumerate(examples) if not e.window]
        texts = torch.tensor([*first_windows, len(examples)])
    return Batch(
        torch.from_numpy(input_ids),
        layout,
        join([e.token_type_ids for e in examples]),
        targets,
        texts,
        Lanes.of([e.place for e in examples if e.place is not None]),
    )


def batches_by_length(examples: Iterable[Example], count: int) -> list[Batch]:
    """Return the examples, the shortest first, in batches of `count`."""
    ordered = sorted(examples, key=lambda example: len(example.input_ids))
    return [collate(ordered[n : n + count]) for n in range(0, len(ordered), count)]


@dataclass(frozen=True)
class Batches:
    """The batches of a pre-training.

    `batches(n)` is what this process computes in step n: its part of the same `batch_size`
    sequences, sorted by length (so that little is padded) and divided into micro-batches. There are
    at most as many processes as sequences.
    """

    stream: ExampleStream
    batch_size: int  # sequences in a step, over all processes
    micro_batch_tokens: int  # the largest number, with padding; one sequence may have more
    rank: int = 0
    world_size: int = 1

    def __call__(self, n: int) -> list[Batch]:
        """Return the micro-batches of this process in step n."""
        numbers = range(n * self.batch_size, (n + 1) * self.batch_size)[
            self.rank :: self.world_size
        ]
        return list(
            token_budget_batches([[self.stream[i]] for i in numbers], self.micro_batch_tokens)
        )


@dataclass(frozen=True)
class LabelledBatches:
    """The batches of a fine-tuning.

    `batches(n)` is what this process computes in step n: its part of the same groups, none if there
    are fewer groups than processes. Every epoch has another order, and its last batch may be
    smaller: no group is left out.
    """

    groups: Sequence[ExampleGroup]
    batch_size: int  # groups in a step, over all processes
    micro_batch_tokens: int  # the largest number, with padding; one group may have more
    seed: int = 0
    rank: int = 0
    world_size: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in an epoch."""
        return -(-len(self.groups) // self.batch_size)

    def __call__(self, n: int) -> list[Batch]:
        """Return the micro-batches of this process in step n."""
        epoch, k = divmod(n, self.steps_per_epoch)
        count = len(self.groups)
        places = range(k * self.batch_size, min((k + 1) * self.batch_size, count))
        groups = [list(self.groups[shuffled_index(i, count, self.seed, epoch)]) for i in places]
        part = sorted(groups, key=longest_sequence)[self.rank :: self.world_size]
        return list(token_budget_batches(part, self.micro_batch_tokens))


@dataclass(frozen=True)
class ContrastiveBatches(LabelledBatches):
    """The batches of a training that compares all sequences of a step with each other.

    Each step is one batch, in one process; it begins with the shortest groups. The rows of each
    label are shuffled and divided into parts of at most `rows_per_label`, as equal as possible, so
    that a row meets others of its label however many labels there are. The order of the parts is
    random, and the steps of an epoch have the same number of rows, but for one.
    """

    rows_per_label: int = 4

    def __call__(self, n: int) -> list[Batch]:
        """Return the batch of step n."""
        epoch, k = divmod(n, self.steps_per_epoch)
        if epoch not in self._steps:
            self._steps.clear()  # of the epoch before
            self._steps[epoch] = np.array_split(self._order(epoch), self.steps_per_epoch)
        rows = self._steps[epoch][k].tolist()
        groups = sorted((self.groups[row] for row in rows), key=longest_sequence)
        return [collate([example for group in groups for example in group])]

    def _order(self, epoch: int) -> Ids:
        """Return the numbers of all rows in the order of an epoch: int64 [rows]."""
        rng = keyed_rng("contrastive", self.seed, epoch)
        parts: list[Ids] = []
        for rows_of_label in self._rows_by_label:
            rows = rng.permutation(rows_of_label)
            parts += np.array_split(rows, -(-len(rows) // self.rows_per_label))
        return np.concatenate([parts[number] for number in rng.permutation(len(parts))])

    @cached_property
    def _steps(self) -> dict[int, list[Ids]]:
        """The numbers of the rows of each step, by epoch: that of the last batch."""
        return {}

    @cached_property
    def _rows_by_label(self) -> list[Ids]:
        """The numbers of the rows of each label, in ascending order."""
        labels = np.concatenate([group[0].target.labels for group in self.groups])
        order = np.argsort(labels, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


StepBatches = Callable[[int], list[Batch]]  # from the number of a step to its micro-batches


class Prefetched:
    """Batches, of which a thread makes those of the next step while a step is computed.

    They lie in memory that a GPU reads by itself.

    device: the GPU; None: ordinary memory.
    """

    def __init__(self, batches: StepBatches, device: torch.device | None = None):
        self._batches = batches
        self._pins = device is not None
        self._thread = ThreadPoolExecutor(
            1, initializer=partial(torch.cuda.set_device, device) if device else None
        )
        self._ahead = dict[int, Future[list[Batch]]]()  # step -> its batches: one step

    def __call__(self, n: int) -> list[Batch]:
        """Return the batches of step n, and begin those of the next step."""
        result = (self._ahead.get(n) or self._thread.submit(self._make, n)).result()
        self._ahead = {n + 1: self._thread.submit(self._make, n + 1)}
        return result

    def forget(self) -> None:
        """The steps ahead have changed."""
        self._ahead = {}

    def _make(self, n: int) -> list[Batch]:
        batches = self._batches(n)
        return [batch.map(Tensor.pin_memory) for batch in batches] if self._pins else batches


def joint_sizes(sizes: Sequence[int], mix: float = 0.0) -> tuple[int, int]:
    """Return the steps of an epoch of several tasks that are task 0's, and those of all others.

    See `joint_step`.
    """
    first = sizes[0]
    rest = sum(sizes[1:])
    return first, min(rest, round(mix * first)) if mix else rest


def joint_step(n: int, sizes: Sequence[int], mix: float = 0.0, seed: int = 0) -> tuple[int, int]:
    """Return the task of step n, and the number of the step among those of the task.

    The order of all batches of an epoch is a permutation (Liu et al. 2019, algorithm 1).

    Args:
        sizes: the steps of an epoch of each task.
        mix: batches of all other tasks together, for one of task 0: they are drawn in each epoch
            without replacement; 0: all.
    """
    first, rest = joint_sizes(sizes, mix)
    epoch, k = divmod(n, first + rest)
    rng = keyed_rng("joint", seed, epoch)
    chosen = np.concatenate([np.arange(first), first + rng.permutation(sum(sizes[1:]))[:rest]])
    place = int(chosen[rng.permutation(len(chosen))[k]])
    starts = np.cumsum([0, *sizes])
    task = int(np.searchsorted(starts, place, "right")) - 1
    return task, epoch * sizes[task] + place - int(starts[task])


def token_budget_batches(groups: Sequence[ExampleGroup], tokens: int) -> Iterator[Batch]:
    """The groups, sorted by length, in batches of at most this number of tokens with padding."""
    for part in token_budget_indices(
        list(map(longest_sequence, groups)), list(map(len, groups)), tokens
    ):
        yield collate([example for number in part for example in groups[number]])


def token_budget_indices(
    lengths: Sequence[int], sizes: Sequence[int], tokens: int
) -> Iterator[list[int]]:
    """Yield the numbers of the groups of each batch within a token budget.

    lengths: of the longest sequence of each; sizes: sequences of each.
    """
    part: list[int] = []
    sequences = 0
    for number in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if part and (sequences + sizes[number]) * lengths[number] > tokens:
            yield part
            part = []
            sequences = 0
        part.append(number)
        sequences += sizes[number]
    if part:
        yield part
