"""Measure a trained arm of an ablation.

The figures are of held-out text, of a fine-tuning, or of the training.

- `MEASURES`: the measures by kind; the options of a measure are the keyword arguments of its
  function
- `Arm`: what a measure reads; `Measured`: the figure and its resamples
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bertworks.batching.masking import MaskingConfig
from bertworks.batching.sampling import FORMATS, Format
from bertworks.checkpoints.hf_mapping import component_names
from bertworks.checkpoints.model_folder import check_components, load_model
from bertworks.checkpoints.resolve import TASKS, resolve_model
from bertworks.checkpoints.storage import read_json
from bertworks.errors import expect, require
from bertworks.evaluation.masked_lm import evaluate_mlm, network_of
from bertworks.evaluation.retrieval import evaluate_pairs
from bertworks.events import Event, forward_events
from bertworks.metrics.intervals import Array, RowSums, mean_sums, ratio, resampled
from bertworks.runs.finetune import finetune_events, make_finetune_request
from bertworks.runs.joint import JointRequest, joint_events, make_joint_request
from bertworks.runs.preparation import FinetuneRequest
from bertworks.runs.pretrain_job import held_out_batches, split_documents, split_long_documents
from bertworks.runs.run_folder import BITS
from bertworks.text.shards import Shards
from bertworks.training.device import choose_device
from bertworks.training.loop import evaluate
from bertworks.training.objectives import heads_of
from bertworks.training.recipe import ObjectiveKind


class Arm(NamedTuple):
    """A trained arm of an ablation, with one seed.

    shards: the text of which this seed holds documents out.
    output: a new folder for a fine-tuning.
    facts: figures of the pre-training.
    finetune: arguments of the arm for each of its fine-tunings.
    """

    model: str
    seed: int
    shards: Path
    output: Path
    facts: Mapping[str, float]
    finetune: Mapping[str, Any]
    device: str


class Measured(NamedTuple):
    """A figure, and the same figure of SAMPLES resamples of its rows, or [] if it has no rows.

    Arms that are measured on the same rows have the same resamples, so that their difference is
    paired.
    """

    value: float
    samples: list[float]


Measuring = Generator[Event, None, Measured]


def measure_held_out(
    arm: Arm,
    *,
    predict: Literal["tokens", "pairs"] = "tokens",
    figure: str = "loss",
    mask: float = 0.8,
    random: float = 0.1,
    format: Format = "full_sentences",
    sequence_length: int = 128,
    sequences: int = 512,
) -> Measuring:
    """Measure the loss, accuracy or perplexity of held-out sequences, which are the rows.

    It is that of their masked tokens; or of their pairs by the head of pairs, whatever it was
    trained for.

    mask, random: fractions of the predicted tokens that become [MASK], or any token. With 0 and 0
    the network reads the text as it is, as in fine-tuning.
    format: of pairs: "next_sentence" (does B follow A?) or "sentence_order" (in order, or
        swapped?).

    Raises:
        UsageError: a format without pairs.
        BertworksError: the model lacks the head, or has another vocabulary.
    """
    path = resolve_model(arm.model)
    shards = Shards.open(arm.shards)
    config, state, tokenizer = load_model(path, needs={"encoder"})
    what = "the vocabulary of the model is not that of the held-out text"
    require(
        tokenizer.tokens == shards.tokenizer().tokens, what, path, "measure a fine-tuning instead"
    )
    longest = config.max_position_embeddings
    hint = "set sequence_length in the options of the measure"
    require(
        sequence_length <= longest,
        f"the model reads {longest} tokens, not {sequence_length}",
        path,
        hint,
    )
    kind: ObjectiveKind = "masked_lm"
    if predict == "pairs":
        kind = "sentence_order" if "sentence_order" in component_names(state) else "next_sentence"
        expect(
            FORMATS[format].targets,
            f"sequences of the format {format!r} have no pairs",
            hint="name next_sentence",
        )
    check_components(component_names(state), set(heads_of([kind])), path)
    network = network_of(config, [kind], state).to(choose_device(arm.device))
    store = split_long_documents(shards)
    rows = []
    documents = split_documents(store, arm.seed)[1]
    batches = held_out_batches(
        store,
        documents,
        shards.tokenizer(),
        format=format,
        sequence_length=sequence_length,
        sequences=sequences,
        masking=MaskingConfig(dynamic=False, mask=mask, random=random),
        at_once=1,
    )
    yield Event("stage", f"evaluating {len(batches):,} held-out sequences", {"stage": "held-out"})
    for batch in batches:
        target = batch.targets["masked_lm" if predict == "tokens" else format]
        stats = evaluate(network, [replace(batch, targets={kind: target})], "fp32")[kind]
        rows.append([stats.loss * stats.count, stats.accuracy * stats.count, stats.count])

    def score(sums: Array) -> Array:
        value = ratio(sums[:, int(figure == "accuracy")], sums[:, 2])
        return np.exp(value) if figure == "perplexity" else value

    metric = RowSums(np.array(rows), score)
    return Measured(metric.value, np.round(resampled(metric), 8).tolist())


def finetuning_request(
    data: str | list[str] = "", **options: Any
) -> FinetuneRequest | JointRequest:
    """Return the request of a fine-tuning with these options of `bertworks.finetune`.

    With several `data` it is that of a joint fine-tuning.

    Raises:
        UsageError: options that are set twice, or that do not fit together.
    """
    if isinstance(data, str):
        return make_finetune_request(data, **options)
    return make_joint_request(data, **options)


def measure_finetuning(arm: Arm, **options: Any) -> Measuring:
    """Measure the score on dev of a fine-tuning: see `finetuning_request`.

    Of a joint one, the first task is measured. There is no comparison with simple methods.
    """
    request = finetuning_request(
        **{"model": arm.model, "seed": arm.seed, **options, **arm.finetune}
    )
    folder = arm.output
    if isinstance(request, FinetuneRequest):
        events = finetune_events(folder, request, device=arm.device, compares=False)
    else:
        events = joint_events(folder, request, device=arm.device, compares=False)
        folder = folder / TASKS / next(iter(request.tasks))
    yield from forward_events(events)
    result = read_json(folder / "result.json")
    return Measured(result["score"], result["resamples"])


def measure_training(arm: Arm, *, figure: str) -> Measuring:
    """Return a figure of the pre-training.

    It is its `steps`, `tokens`, `flops`, `seconds`, `tokens_per_second`, the `parameters` of the
    model, or one of its last evaluation, as `replaced_token_accuracy`.

    Raises:
        UsageError: it has no such figure.
    """
    what = f"the training of {arm.model} has no figure {figure!r}"
    expect(figure in arm.facts, what, hint=f"name one of {', '.join(arm.facts)}")
    yield Event("stage", figure, {"stage": "training"})
    return Measured(arm.facts[figure], [])


def measure_pairs(
    arm: Arm,
    *,
    files: Sequence[str],
    languages: Sequence[str],
    direction: Literal["forward", "backward"] = "forward",
) -> Measuring:
    """Measure how often the nearest sentence is the translation: see `evaluate_pairs`.

    The pairs are the rows.
    """
    yield Event("stage", "translations by the nearest vector", {"stage": "pairs"})
    result = evaluate_pairs(arm.model, files, languages=languages, device=arm.device)
    metric = mean_sums(result["correct"][direction])
    return Measured(metric.value, np.round(resampled(metric), 8).tolist())


def measure_bits(arm: Arm, *, inputs: Sequence[str], sequences: int = 0) -> Measuring:
    """Measure the bits per character of a text that the arm has not read: see `runs.adaptation`.

    Arms with different vocabularies can be compared.
    """
    yield Event("stage", "bits per character", {"stage": "bits"})
    figures = evaluate_mlm(arm.model, inputs, sequences=sequences, device=arm.device) or {}
    return Measured(figures[BITS], [])


MEASURES: Mapping[str, Callable[..., Measuring]] = {
    "bits": measure_bits,
    "held_out": measure_held_out,
    "finetuning": measure_finetuning,
    "pairs": measure_pairs,
    "training": measure_training,
}
