"""Compute the figures of a masked LM on batches, of which any number of processes measured parts.

The sums of each batch are added in their order, so the figures have the same bits wherever the
batches were computed.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from bertworks.batching.batch import Batch
from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.checkpoints.resolve import resolve_model
from bertworks.inference.detect import detection_scores, load_with_generator, ranking_figures
from bertworks.inference.engine import open_model
from bertworks.io.atomic_write import local_path
from bertworks.io.file_job import FileJob, content_of
from bertworks.io.options import Bulk
from bertworks.models.config import EncoderConfig
from bertworks.runs.adaptation import BitsBatches
from bertworks.runs.run_folder import BITS
from bertworks.training.device import Precision, choose_device, fixed_machine, gpus_for
from bertworks.training.loop import batch_sums, means
from bertworks.training.objectives import LossStats, PretrainingModel, figures
from bertworks.training.recipe import ObjectiveKind

Kind = Literal["masks", "bits"]
Task = tuple[Kind, Sequence[Batch]]
_BATCHES = 16  # of a portion


def network_of(
    config: EncoderConfig, kinds: Iterable[ObjectiveKind], state: Mapping[str, Any]
) -> PretrainingModel:
    """Return the network with the heads of these objectives and the weights of a model folder."""
    network = PretrainingModel(config, dict.fromkeys(kinds, 1.0))
    network.load_state_dict({name: state[name] for name, _ in network.named_parameters()})
    return network


def _compute(
    network: PretrainingModel, detects: bool, precision: Precision, task: Task
) -> tuple[int, bytes]:
    kind, batches = task
    reader = network if kind == "masks" else network.generator or network
    terms = [
        ({name: t.tolist() for name, t in sums.items()}, counts)
        for sums, counts in batch_sums(reader, batches, precision)
    ]
    ranked = detection_scores(network, batches) if detects and kind == "masks" else ()
    return 0, json.dumps(
        [kind, terms, [[array.tolist() for array in pair] for pair in ranked]]
    ).encode()


def mlm_maker(
    model: str,
    kinds: Sequence[ObjectiveKind],
    detects: bool,
    precision: Precision,
    device: str,
    threads: int,
) -> tuple[dict[str, Any], Callable[[Task], tuple[int, bytes]]]:
    """Return the `maker` of sums, see `FileJob`."""
    machine = fixed_machine(device, threads)
    source = ModelFolder(resolve_model(model))
    config, state, _ = source.load(needs={"encoder"})
    network = (
        load_with_generator(source.folder, config) if detects else network_of(config, kinds, state)
    )
    identity = open_model(model, device).fingerprint | machine
    return identity, partial(_compute, network.to(choose_device(device)), detects, precision)


def mlm_job(
    bulk: Bulk, output: str | Path | None, settings: Sequence[Any], *options: Any
) -> FileJob:
    """The job that computes batches. settings: all that they depend on. options: of `mlm_maker`."""
    model = options[0]
    device = options[4]
    identity = {
        "command": "evaluate mlm",
        "settings": [*settings, *options],
        **(open_model(model, device).fingerprint if output else {}),
    }
    return FileJob(
        local_path(output or "-"),
        bulk,
        identity,
        "bertworks.evaluation.mlm_portions:mlm_maker",
        options,
        machine=fixed_machine(device) if bulk.is_shared else {},
        gpus=gpus_for(device) if bulk.is_shared else 0,
    )


def mlm_figures(
    network: PretrainingModel,
    batches: Sequence[Batch],
    bits: BitsBatches,
    precision: Precision,
    job: FileJob,
    on_note: Callable[[str], object],
) -> dict[str, float] | None:
    """Return the figures of a masked LM; None after a part. job: has the batches computed."""
    by_kind: dict[Kind, Sequence[Batch]] = {"masks": batches, "bits": bits.batches}
    tasks = [
        (kind, kind_batches[start : start + _BATCHES])
        for kind, kind_batches in by_kind.items()
        for start in range(0, len(kind_batches), _BATCHES)
    ]
    compute = partial(_compute, network, network.replaced_token is not None, precision)
    with job.open():
        for event in job.make("evaluate", tasks, compute):
            if event.kind != "stage":
                on_note(event.text)
        portions = [json.loads(content_of(file)) for file in job.files]
    if job.bulk.part:
        return None
    masks, rest = (
        [term for name, terms, _ in portions if name == kind for term in terms] for kind in by_kind
    )
    stats = _added(masks)
    result = figures(stats)
    if bits.characters:
        (scored,) = _added(rest).values()
        result[BITS] = scored.loss * scored.count / math.log(2) / bits.characters
    ranked = [
        (np.array(scores), np.array(replaced))
        for _, _, pairs in portions
        for scores, replaced in pairs
    ]
    result |= ranking_figures(ranked) if ranked else {}
    sequences = sum(batch.layout.num_sequences for batch in batches)
    counts = {
        "sequences": sequences,
        "masked_tokens": stats["masked_lm"].count,
        "characters": bits.characters,
    }
    return result | {name: float(count) for name, count in counts.items()}


def _added(terms: Iterable[tuple[dict[str, list[float]], dict[str, int]]]) -> dict[str, LossStats]:
    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    for sums_of_batch, counts_of_batch in terms:
        for name, values in sums_of_batch.items():
            sums[name] = sums.get(name, 0) + torch.tensor(values)
        counts.update(counts_of_batch)
    return means(sums, counts)
