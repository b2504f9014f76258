"""Evaluate a masked LM on raw text; any number of processes compute the figures of its batches.

The sums of each batch are added in their order, so the figures have the same bits wherever the
batches were computed.
"""

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from bertworks.batching.batch import Batch
from bertworks.batching.sampling import FORMATS
from bertworks.checkpoints.hf_config import component_names
from bertworks.checkpoints.model_folder import ModelFolder, check_components
from bertworks.checkpoints.resolve import resolve_model
from bertworks.errors import expect
from bertworks.evaluation.causal_lm import evaluate_next_tokens
from bertworks.events import JsonObject, no_notes
from bertworks.inference.engine import open_model
from bertworks.inference.masked_lm import detection_scores, load_with_generator, ranking_figures
from bertworks.io.atomic_write import local_path, write_json
from bertworks.io.file_job import FileJob, Portion, unpacked_values
from bertworks.io.options import Bulk, Documents
from bertworks.io.tables import Data
from bertworks.models.config import EncoderConfig
from bertworks.runs.adaptation import bits_batches
from bertworks.runs.prepare import read_text
from bertworks.runs.pretrain_job import held_out_batches, masked_examples, split_long_documents
from bertworks.runs.run_folder import BITS
from bertworks.text.shards import write_shards
from bertworks.training.device import Precision, choose_device, fixed_machine, shared_machine
from bertworks.training.loop import LossStats, batch_sums, means
from bertworks.training.objectives import PretrainingModel, figures, heads_of
from bertworks.training.recipe import ObjectiveKind, TokenObjective

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


def _compute(network: PretrainingModel, detects: bool, precision: Precision, task: Task) -> Portion:
    kind, batches = task
    reader = network if kind == "masks" else network.generator or network
    terms = [
        ({name: t.tolist() for name, t in sums.items()}, counts)
        for sums, counts in batch_sums(reader, batches, precision)
    ]
    ranked = detection_scores(network, batches) if detects and kind == "masks" else ()
    pairs = [[array.tolist() for array in pair] for pair in ranked]
    return 0, [json.dumps([kind, terms, pairs]).encode()]


def mlm_maker(
    model: str,
    kinds: Sequence[ObjectiveKind],
    detects: bool,
    precision: Precision,
    device: str,
    threads: int,
) -> tuple[JsonObject, Callable[[Task], Portion]]:
    """Return the `maker` of sums, see `FileJob`."""
    machine = fixed_machine(device, threads)
    source = ModelFolder(resolve_model(model))
    config, state, _ = source.load(needs={"encoder"})
    network = (
        load_with_generator(source.folder, config) if detects else network_of(config, kinds, state)
    )
    identity = open_model(model, device).fingerprint | machine
    return identity, partial(_compute, network.to(choose_device(device)), detects, precision)


def evaluate_mlm(
    model: str | Path,
    inputs: Sequence[str | Path] | Data,
    *,
    sequence_length: int | None = None,
    sequences: int = 0,
    memory: int | None = None,
    device: str = "auto",
    precision: Precision = "fp32",
    text_column: str | None = None,
    documents: Documents = "auto",
    encoding: str | None = None,
    output: str | Path | None = None,
    bulk: Bulk = Bulk(),
    on_note: Callable[[str], object] = no_notes,
) -> dict[str, float] | None:
    """Return loss, accuracy and perplexity on masked words of raw text.

    Also the accuracy of next sentence or sentence order prediction if the model has such a head and
    the text two documents, one of them of two sentences. 15 % of the tokens are masked, 80/10/10,
    always the same ones. `bits_per_character` compares models with any vocabulary
    (`runs.adaptation`); `characters`: of its words.

    Of an XLNet: loss, accuracy and perplexity of 15 % of the tokens, predicted in an order that is
    always the same (`permutation_lm_loss`). `bits_per_character` is of words that are predicted
    from all others.

    Of an ELECTRA discriminator: these figures of the generator in its folder; and loss, accuracy,
    area under the ROC curve (`replaced_token_auc`) of the discriminator, and the fraction of the
    tokens that were replaced.

    Of a model that reads from left to right: loss, accuracy and perplexity of all next tokens of
    the text, which is read in lanes, segment after segment, and perplexities by the place of a
    token in its segment (`perplexity_at_0-7`, and so on). A memory holds the tokens before each
    segment.

    Args:
        model: a folder, or the name of a model on the Hugging Face hub.
        inputs: as in `pretrain`, without shards.
        sequence_length: of the examples, in tokens; None: 128, or as many as the model reads if
            that is less.
        sequences: the most sequences to evaluate; 0: all of the text.
        memory: of a Transformer-XL: the tokens that are kept before each segment; None: as many as
            in its training.
        text_column, documents, encoding: see `CorpusReader`.
        output: a JSON file for the figures.
        bulk: where the figures of the batches are computed, if not here; after a part, there are
            none.
        on_note: is called with notes before the work: how the text was read, two examples and their
            masked tokens.

    Raises:
        UsageError: sequences longer than the model can read; a memory that it cannot have.
        BertworksError: no such model, no text.
    """
    path = resolve_model(model)
    source = open_model(path, device, predicts_tokens=True)
    if source.config.direction == "left_to_right":
        reader = read_text(inputs, text_column, documents, encoding)
        return evaluate_next_tokens(
            source,
            reader,
            sequence_length=sequence_length,
            sequences=sequences,
            memory=memory,
            device=device,
            precision=precision,
            output=output,
            bulk=bulk,
            settings=(reader.content_sha256(), text_column, documents, encoding),
            on_note=on_note,
        )
    expect(
        memory is None,
        "this model reads in both directions, and is evaluated without a memory of the text before",
        where=source.folder,
        hint="leave --memory out",
    )
    config, state, tokenizer = source.load(needs={"encoder"})
    detects = "replaced_token" in (parts := component_names(state))
    check_components(parts, set() if detects else {"lm_head"}, path)
    longest = config.max_position_embeddings
    length = min(128, longest) if sequence_length is None else sequence_length
    expect(
        5 <= length <= longest,
        f"a sequence length of {length}: the model reads from 5 to {longest} tokens",
    )
    reader = read_text(inputs, text_column, documents, encoding)
    with tempfile.TemporaryDirectory() as folder:
        store = split_long_documents(write_shards(reader, tokenizer, Path(folder) / "shards"))
        documents_of_store = np.arange(len(store.documents) - 1)
        # else all pairs are of sentences drawn at random
        follows = bool((np.diff(store.documents) > 1).any())
        formats = [
            name for name, sampler in FORMATS.items() if {*heads_of(sampler.targets)} <= parts
        ]
        format = formats[0] if len(documents_of_store) >= 2 and follows else "full_sentences"
        kind: TokenObjective = "masked_lm"
        if config.has_query:
            kind = "permutation_lm"
            format = "one_segment"
        kinds = cast(list[ObjectiveKind], [kind, *FORMATS[format].targets])
        network = load_with_generator(path, config) if detects else network_of(config, kinds, state)
        network.to(choose_device(device))
        most = sequences or 1 << 40
        batches = held_out_batches(
            store,
            documents_of_store,
            tokenizer,
            format=format,
            sequence_length=length,
            sequences=most,
            kind=kind,
            replaces=detects,
        )
        for note in (str(reader.report), *masked_examples(batches[0], tokenizer, kind)):
            on_note(note)
        bits, _ = bits_batches(
            store,
            documents_of_store,
            tokenizer,
            tokenizer.template,
            length=length,
            windows=most,
            kind=kind,
        )
    options = (str(model), kinds, detects, precision, device)
    settings = (reader.content_sha256(), text_column, documents, encoding, length, most, precision)
    identity = {"command": "evaluate mlm", "settings": [*settings, *options]}
    if output:
        identity |= open_model(model, device).fingerprint
    job = FileJob(
        local_path(output or "-"),
        bulk,
        identity,
        "bertworks.evaluation.masked_lm:mlm_maker",
        options,
        **shared_machine(device, bulk.is_shared),
    )
    by_kind: dict[Kind, Sequence[Batch]] = {"masks": batches, "bits": bits.batches}
    tasks = [
        (kind, kind_batches[start : start + _BATCHES])
        for kind, kind_batches in by_kind.items()
        for start in range(0, len(kind_batches), _BATCHES)
    ]
    with job.open():
        for event in job.make("evaluate", tasks, partial(_compute, network, detects, precision)):
            if event.kind != "stage":
                on_note(event.text)
        portions = [json.loads(value) for file in job.files for value in unpacked_values(file)]
    if bulk.part:
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
    counts = {
        "sequences": sum(batch.layout.num_sequences for batch in batches),
        "masked_tokens": stats[kind].count,
        "characters": bits.characters,
    }
    result |= {name: float(count) for name, count in counts.items()}
    if output:
        write_json(local_path(output), result)
    return result


def _added(terms: Iterable[tuple[dict[str, list[float]], dict[str, int]]]) -> dict[str, LossStats]:
    sums: dict[str, Tensor] = {}
    counts: Counter[str] = Counter()
    for sums_of_batch, counts_of_batch in terms:
        for name, values in sums_of_batch.items():
            sums[name] = sums.get(name, 0) + torch.tensor(values)
        counts.update(counts_of_batch)
    return means(sums, counts)
