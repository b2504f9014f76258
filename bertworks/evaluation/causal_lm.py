"""Evaluate a network that reads from left to right on raw text, with and without a memory.

The text is read in lanes, segment after segment, so that a memory holds the tokens before each of
them (Dai et al. 2019, section 3.2).

- `evaluate_next_tokens`: perplexity, of all tokens and by the place of a token in its segment
- `segment_losses`: losses of held-out text, for a comparison
- `pretraining_network`: the network of a folder, with its output layer
- `PlacedLosses`: losses by this place; `place_ranges`: of which places together
"""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.batching.batch import Batch
from bertworks.checkpoints.hf_mapping import check_output_layer
from bertworks.errors import expect, require
from bertworks.events import JsonObject
from bertworks.inference.engine import LazyModel, open_model
from bertworks.io.atomic_write import local_path, write_json
from bertworks.io.file_job import FileJob, Portion, unpacked_values
from bertworks.io.options import Bulk
from bertworks.models.config import EncoderConfig
from bertworks.models.memory import make_memory, refuse_too_long
from bertworks.runs.pretrain_job import (
    held_out_batches,
    split_documents,
    split_long_documents,
)
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import Shards, write_shards
from bertworks.training.device import Precision, choose_device, fixed_machine, shared_machine
from bertworks.training.loop import LossStats, LossSum, TrainableModel, batch_sums, with_memory
from bertworks.training.objectives import PretrainingModel, figures, vocabulary_cross_entropy
from bertworks.training.recipe import ObjectiveKind

KIND: Literal["causal_lm"] = "causal_lm"  # the objective
FIRST_PLACES = 8  # that are counted together
_BATCHES = 16  # of a portion
Places = tuple[int, int]  # the first one and the last one
Settings = tuple[int, int, Precision]  # tokens of a segment, tokens of the memory


def place_ranges(length: int) -> list[Places]:
    """Return ranges of places in a segment, each with its first and its last place.

    The losses of a range are added up. The first range has FIRST_PLACES places, the second as many,
    and each one after it twice as many as the one before.
    """
    ranges = [(0, min(length, FIRST_PLACES) - 1)]
    while ranges[-1][1] < length - 1:
        first = ranges[-1][1] + 1
        ranges.append((first, min(2 * first, length) - 1))
    return ranges


class PlacedLosses(TrainableModel):
    """The losses of the next tokens by the place of the token that predicts them in its segment.

    The network has the memory of this object.

    Args:
        network: reads from left to right.
        ranges: see `place_ranges`. The losses of each have the name "FIRST-LAST".
    """

    def __init__(self, network: PretrainingModel, ranges: Sequence[Places]):
        super().__init__()
        self.network = network
        self.ranges = {f"{first}-{last}": (first, last) for first, last in ranges}
        self.weights = dict.fromkeys(self.ranges, 1.0)

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of predictions of each range of places."""
        return {name: int(rows.sum()) for name, rows in self._rows(batch).items()}

    def forward(self, batch: Batch) -> dict[str, LossSum]:
        """Return the losses of each range of places."""
        target = batch.targets[KIND]
        with with_memory(self.network, self.memory):
            states = self.network.last_states(batch, target.positions)
        return {
            name: vocabulary_cross_entropy(
                *self.network.vocabulary_inputs(states[rows]), target.labels[rows]
            )
            for name, rows in self._rows(batch).items()
        }

    def _rows(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Return which predictions are of each range of places: bool [M]."""
        target = batch.targets[KIND]
        places = batch.layout.places[target.positions.to(batch.layout.places.device)]
        return {
            name: (places >= first) & (places <= last)
            for name, (first, last) in self.ranges.items()
        }


def _compute(
    network: PretrainingModel, length: int, memory: int, precision: Precision, batches: list[Batch]
) -> Portion:
    """Return the losses of batches: for each range of places a sum, right ones and all."""
    losses = PlacedLosses(network, place_ranges(length))
    device = next(network.parameters()).device
    lanes = batches[0].layout.num_sequences
    losses.memory = make_memory(network.encoder.config, lanes, device, memory)
    totals = dict.fromkeys(losses.ranges, np.zeros(3))
    for sums, counts in batch_sums(losses, batches, precision):
        for name, (loss, correct) in sums.items():
            totals[name] = totals[name] + [loss.item(), correct.item(), counts[name]]
    return 0, [json.dumps({name: row.tolist() for name, row in totals.items()}).encode()]


def next_token_maker(
    model: str, length: int, memory: int, precision: Precision, device: str, threads: int
) -> tuple[JsonObject, Callable[[list[Batch]], Portion]]:
    """Return the `maker` of sums, see `FileJob`."""
    machine = fixed_machine(device, threads)
    source = open_model(model, device)
    network = pretraining_network(source, KIND, device)
    identity = source.fingerprint | machine
    return identity, partial(_compute, network, length, memory, precision)


def pretraining_network(source: LazyModel, kind: ObjectiveKind, device: str) -> PretrainingModel:
    """Return the network with its output layer, of which the folder may lack no part.

    Args:
        kind: the objective of which the losses are computed.
    """
    path = str(source.within / "config.json")
    check_output_layer(source.settings, source.weights, source.config, path, predicts_tokens=True)
    network = source.network(partial(PretrainingModel, objectives={kind: 1.0}))
    return network.to(choose_device(device))


def checked_memory(c: EncoderConfig, memory: int | None, model: object) -> int:
    """Return the length of the memory with which a network is evaluated.

    Args:
        memory: the requested number of tokens; None: that of the training.
        model: the name of the folder, for messages.

    Raises:
        UsageError: a negative number, or a network that cannot read a memory.
    """
    if memory is None:
        return c.memory_length
    expect(memory >= 0, f"a memory of {memory} tokens: expected 0 or more", hint="--memory 0")
    expect(
        memory == 0 or c.position_embedding_type == "relative",
        f"this model has no memory: its positions are {c.position_embedding_type!r}, and only "
        "distances of tokens reach beyond a segment",
        where=model,
        hint="leave --memory out",
    )
    return memory


def evaluate_next_tokens(
    source: LazyModel,
    reader: CorpusReader,
    *,
    sequence_length: int | None,
    sequences: int,
    memory: int | None,
    device: str,
    precision: Precision,
    output: str | Path | None,
    bulk: Bulk,
    settings: Sequence[Any],
    on_note: Callable[[str], object],
) -> dict[str, float] | None:
    """Return loss, accuracy and perplexity of the next tokens of raw text: see `evaluate_mlm`.

    Args:
        reader: of the text.
        settings: how it is read, for the identity of the job.

    Raises:
        UsageError: segments longer than the model can read; a memory that it cannot have.
        BertworksError: the text is too short, or the model lacks its output layer.
    """
    c = source.config
    length = min(128, c.max_position_embeddings) if sequence_length is None else sequence_length
    expect(
        5 <= length <= c.max_position_embeddings,
        f"a sequence length of {length}: the model reads from 5 to {c.max_position_embeddings} "
        "tokens",
    )
    num_kept = checked_memory(c, memory, source.folder)
    with tempfile.TemporaryDirectory() as folder:
        shards = write_shards(reader, source.tokenizer, Path(folder) / "shards")
        store = split_long_documents(shards)
        batches = held_out_batches(
            store,
            np.arange(len(store.documents) - 1),
            source.tokenizer,
            format="stream",
            sequence_length=length,
            sequences=sequences or 1 << 40,
            kind=KIND,
            in_lanes=True,
        )
    lanes = batches[0].layout.num_sequences
    refuse_too_long(c, lanes, num_kept, "--memory ")
    on_note(str(reader.report))
    if num_kept > c.memory_length:
        on_note(
            f"a memory of {num_kept:,} tokens; the network was trained with {c.memory_length:,}"
        )
    if num_kept > length * (len(batches) - 1):
        on_note(
            f"the text has {lanes} lanes of {len(batches) * length:,} tokens: a memory of "
            f"{num_kept:,} tokens is never full"
        )
    options = (str(source.folder), length, num_kept, precision, device)
    identity = {"command": "evaluate mlm", "settings": [*settings, sequences, *options]}
    if output:
        identity |= source.fingerprint
    job = FileJob(
        local_path(output or "-"),
        bulk,
        identity,
        "bertworks.evaluation.causal_lm:next_token_maker",
        options,
        **shared_machine(device, bulk.is_shared),
    )
    # with a memory each batch continues the one before it
    size = len(batches) if num_kept else _BATCHES
    tasks = [batches[start : start + size] for start in range(0, len(batches), size)]
    compute = partial(
        _compute, pretraining_network(source, KIND, device), length, num_kept, precision
    )
    with job.open():
        for event in job.make("evaluate", tasks, compute):
            if event.kind != "stage":
                on_note(event.text)
        portions = [json.loads(value) for file in job.files for value in unpacked_values(file)]
    if bulk.part:
        return None
    result = _figures(portions)
    result |= {
        "memory": float(num_kept),
        "sequences": float(lanes * len(batches)),
    }
    if output:
        write_json(local_path(output), result)
    return result


def segment_losses(
    model: str,
    text: Shards,
    seed: int,
    device: str,
    *,
    memory: int | None,
    places: Places,
    sequence_length: int,
    sequences: int,
) -> NDArray[np.float64]:
    """Return the losses of the next tokens of held-out text, by batches of segments.

    Args:
        text: of a training, of which the seed holds documents out.
        memory: tokens before each segment that are kept; None: as many as in the training.
        places: of the tokens in their segment that predict.
        sequences: the most segments; 0: all.

    Returns:
        [batches, 2]: the sum of the losses of a batch, and their number.

    Raises:
        UsageError: places outside a segment; a memory that the network cannot have.
        BertworksError: the model has another vocabulary, or reads in both directions.
    """
    source = open_model(model, device)
    c = source.config
    first, last = places
    expect(
        0 <= first <= last < sequence_length <= c.max_position_embeddings,
        f"places {first} to {last} of segments of {sequence_length} tokens: expected places from 0 "
        f"to below the length, which is at most {c.max_position_embeddings}",
    )
    require(
        c.direction == "left_to_right" and source.tokenizer.tokens == text.tokenizer().tokens,
        "the model reads in both directions, or its vocabulary is not that of the held-out text",
        source.folder,
        "measure a model that was trained on this text, such as one of --recipe "
        "transformer-xl-small",
    )
    num_kept = checked_memory(c, memory, source.folder)
    store = split_long_documents(text)
    batches = held_out_batches(
        store,
        split_documents(store, seed)[1],
        source.tokenizer,
        format="stream",
        sequence_length=sequence_length,
        sequences=sequences or 1 << 40,
        kind=KIND,
        in_lanes=True,
    )
    network = pretraining_network(source, KIND, device)
    losses = PlacedLosses(network, [places])
    lanes = batches[0].layout.num_sequences
    losses.memory = make_memory(c, lanes, choose_device(device), num_kept)
    rows = [
        [sums[name][0].item(), counts[name]]
        for sums, counts in batch_sums(losses, batches)
        for name in losses.ranges
    ]
    return np.array(rows)


def _figures(portions: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the figures of all tokens, and the perplexity of each range of places."""
    by_range = {name: np.sum([portion[name] for portion in portions], 0) for name in portions[0]}
    loss, correct, count = np.sum([*by_range.values()], 0).tolist()
    result = figures({KIND: LossStats(loss / count, correct / count, int(count))})
    result["tokens"] = count
    for name, (loss_of_range, _, count_of_range) in by_range.items():
        if count_of_range:
            result[f"perplexity_at_{name}"] = math.exp(min(loss_of_range / count_of_range, 700.0))
    return result
