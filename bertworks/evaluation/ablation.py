"""Ablations: controlled comparisons of the BERT literature, each a TOML file in `ablations/`.

- `MEASURES`: what can be measured of a trained arm: figures of held-out text, of a fine-tuning, of
  the training; the options of a measure are the keyword arguments of its function
- `Ablation`: arms, which are keyword arguments of `pretrain` and `finetune`, and what is measured
  of them
- `evaluate_ablation`: trains the arms, all with one seed before the next seed, and writes the table
- `ablation_tables`: figures -> means and paired differences
"""

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from bertworks.batching.sampling import FORMATS, Format, MaskingConfig
from bertworks.checkpoints.hf_config import component_names
from bertworks.checkpoints.model_card import render_table
from bertworks.checkpoints.model_folder import check_components, load_model
from bertworks.checkpoints.resolve import TASKS, resolve_model
from bertworks.checkpoints.storage import read_json
from bertworks.config import (
    AboveZero,
    NotNegative,
    Positive,
    Range,
    Settings,
    parse_as,
    parse_overrides,
    read_recipe_text,
)
from bertworks.errors import UsageError, expect, names_of, require
from bertworks.evaluation.causal_lm import segment_losses
from bertworks.evaluation.evaluate import similarity_metric
from bertworks.evaluation.masked_lm import evaluate_mlm, network_of
from bertworks.evaluation.permutation_lm import held_out_orders, largest_leak, order_losses
from bertworks.evaluation.retrieval import evaluate_pairs
from bertworks.evaluation.tags import tag_metric
from bertworks.evaluation.translation import translation_metric
from bertworks.events import Event, JsonObject, forward_events
from bertworks.inference.embedder import Embedder
from bertworks.io.atomic_write import local_path, refuse_nested, write_json, write_text
from bertworks.io.inputs import as_path
from bertworks.io.options import Documents
from bertworks.io.tables import sources_of
from bertworks.metrics.intervals import (
    SAMPLES,
    Array,
    RowSums,
    difference,
    interval_of_mean,
    mean_sums,
    ratio,
    resampled,
)
from bertworks.metrics.translation import bleu
from bertworks.reports import svg
from bertworks.runs.finetune import finetune, finetune_events, make_finetune_request
from bertworks.runs.finetune_job import FinetuneRequest
from bertworks.runs.joint import JointRequest, joint_events, make_joint_request
from bertworks.runs.prepare import make_shards, make_vocabulary, read_text
from bertworks.runs.pretrain import pretrain
from bertworks.runs.pretrain_job import held_out_batches, split_documents, split_long_documents
from bertworks.runs.run_folder import BITS, absolute, open_run, read_plans
from bertworks.runs.trials import MAX_TRIALS
from bertworks.text.corpus import CorpusReader
from bertworks.text.shards import Shards
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import VocabularyConfig
from bertworks.training.budget import fixed_phases
from bertworks.training.device import choose_device
from bertworks.training.loop import evaluate
from bertworks.training.objectives import heads_of, num_trained
from bertworks.training.recipe import ObjectiveKind, Recipe, load_recipe

_FILES = sorted((Path(__file__).parent / "ablations").glob("*.toml"))
PACKAGED = {path.stem: path.read_text(encoding="utf-8") for path in _FILES}
MAX_FACTOR = 1_000_000  # of the steps or times of an ablation
NOT_RESOLVED = "not resolved at this budget"
_PLACEHOLDER = re.compile(r"\{([\w:/-]+)\}")
# Arguments that a file cannot set.
_ENGINE = {"arm", "options", "output", "device", "overwrite", "progress", "seed", "budget"}
Name = Annotated[str, Range("letters, digits, - and _", lambda x: bool(re.fullmatch(r"[\w-]+", x)))]


Figures = Sequence[Mapping[str, Any]]  # of arms, seeds and measures


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

    signature: the version and the settings of the program that computes the figure, if it has one.
    """

    value: float
    samples: list[float]
    signature: str = ""


Measuring = Generator[Event, None, Measured]


def measured(metric: RowSums, signature: str = "") -> Measured:
    """Return the figure of rows, and its resamples."""
    return Measured(metric.value, np.round(resampled(metric), 8).tolist(), signature)


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
    require(
        tokenizer.tokens == shards.tokenizer().tokens,
        "the vocabulary of the model is not that of the held-out text",
        path,
        "measure a fine-tuning instead",
    )
    longest = config.max_position_embeddings
    require(
        sequence_length <= longest,
        f"the model reads {longest} tokens, not {sequence_length}",
        path,
        "set sequence_length in the options of the measure",
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

    return measured(RowSums(np.array(rows), score))


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

    Of a joint one, the first task is measured. There is no comparison with baselines.
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


def measure_cost(
    arm: Arm, *, of: str, figure: Literal["seconds", "memory"] = "seconds"
) -> Measuring:
    """Measure what the last steps of a fine-tuning report of the arm: see `measure_finetuning`.

    Args:
        of: the name of the measure that has fine-tuned it.
        figure: "seconds" of its steps, or "memory", the most that the process had in use after one
            of them, in GB.
    """
    yield Event("stage", f"{figure} of {of}", {"stage": "cost"})
    lines = (arm.output.parent / of / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [line for line in map(json.loads, lines) if "seconds" in line]
    factor = 1e-9 if figure == "memory" else 1.0
    return Measured(factor * max(step[figure] for step in steps), [])


def measure_training(arm: Arm, *, figure: str) -> Measuring:
    """Return a figure of the pre-training.

    It is its `steps`, `tokens`, `flops`, `seconds`, `tokens_per_second`, of a translator its
    `epochs`, the `parameters` of the model, or one of its last evaluation, as
    `replaced_token_accuracy`.

    Raises:
        UsageError: it has no such figure.
    """
    expect(
        figure in arm.facts,
        f"the training of {arm.model} has no figure {figure!r}",
        hint=f"name one of {', '.join(arm.facts)}",
    )
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
    return measured(mean_sums(result["correct"][direction]))


def measure_bits(arm: Arm, *, inputs: Sequence[str], sequences: int = 0) -> Measuring:
    """Measure the bits per character of a text that the arm has not read: see `runs.adaptation`.

    Arms with different vocabularies can be compared.
    """
    yield Event("stage", "bits per character", {"stage": "bits"})
    figures = evaluate_mlm(arm.model, inputs, sequences=sequences, device=arm.device) or {}
    return Measured(figures[BITS], [])


def measure_translation(
    arm: Arm, *, files: Sequence[str], minus: JsonObject | None = None, **options: Any
) -> Measuring:
    """Measure BLEU or chrF of the translations of a model: see `translation_metric`.

    The pairs are the rows. The folder of the arm keeps the translations.

    Args:
        minus: options in place of some of the others, with which the same is measured and
            subtracted: with {beam = 1} it is what a beam adds.
    """
    yield Event("stage", "translating", {"stage": "translation"})
    folder = arm.output.parent
    metric = translation_metric(arm.model, files, folder, device=arm.device, **options)
    if minus is None:
        return measured(metric, metric.signature)
    other = translation_metric(arm.model, files, folder, device=arm.device, **{**options, **minus})
    return measured(difference(metric, other), metric.signature)


def measure_similarity(arm: Arm, *, file: str) -> Measuring:
    """Measure the rank correlation of the cosines of two words with human scores.

    The pairs of known words are the rows: see `evaluate_similarity`. The interval of a difference
    is narrower than it should be, or wider, if the arms know different words.
    """
    yield Event("stage", "similarity of words", {"stage": "similarity"})
    metric, _ = similarity_metric(Embedder(arm.model, device=arm.device), file)
    return measured(metric)


def measure_tags(
    arm: Arm,
    *,
    data: str,
    forms: Literal["all", "ambiguous"] = "all",
    figure: Literal["accuracy", "layer"] = "accuracy",
    sample: int = 3000,
) -> Measuring:
    """Measure what the states of the best layer tell of parts of speech: see `tag_metric`.

    The sentences are the rows. The folder of the arm keeps the predictions.

    Args:
        figure: "accuracy", or "layer": the number of the best layer, 0 for the embeddings.
    """
    yield Event("stage", "parts of speech", {"stage": "tags"})
    folder = arm.output.parent
    metric, layer = tag_metric(
        arm.model, data, folder, forms=forms, sample=sample, device=arm.device
    )
    return Measured(layer, []) if figure == "layer" else measured(metric)


def measure_memory(
    arm: Arm,
    *,
    memory: int | None = None,
    first: int = 0,
    last: int | None = None,
    figure: Literal["loss", "perplexity"] = "perplexity",
    sequence_length: int = 128,
    sequences: int = 0,
    minus: JsonObject | None = None,
) -> Measuring:
    """Measure the next tokens of held-out text, of which segment after segment is read.

    The rows are batches of segments.

    Args:
        memory: tokens before each segment that are kept; None: as many as in the training.
        first, last: the places in a segment from which and to which tokens predict; None for last:
            to the end of the segment.
        sequence_length: of a segment. sequences: the most segments; 0: all of the held-out text.
        minus: options in place of some of the others, with which the same is measured and
            subtracted: with {memory = 0} it is the gain by a memory.

    Raises:
        UsageError: a memory that the network cannot have; places outside a segment.
    """
    yield Event("stage", "reading with a memory", {"stage": "memory"})
    options: JsonObject = {
        "memory": memory,
        "places": (first, sequence_length - 1 if last is None else last),
        "sequence_length": sequence_length,
        "sequences": sequences,
    }
    unknown = sorted(set(minus or ()) - {"memory"})
    expect(
        not unknown,
        f"minus of the measure memory has {', '.join(unknown)}: expected memory alone",
    )
    text = Shards.open(arm.shards)

    def metric(**changes: Any) -> RowSums:
        rows = segment_losses(arm.model, text, arm.seed, arm.device, **options | changes)

        def score(sums: Array) -> Array:
            value = ratio(sums[:, 0], sums[:, 1])
            return np.exp(value) if figure == "perplexity" else value

        return RowSums(rows, score)

    if minus is None:
        return measured(metric())
    return measured(difference(metric(), metric(**minus)))


def measure_orders(
    arm: Arm,
    *,
    orders: int = 20,
    figure: Literal["loss", "spread", "leak"] = "loss",
    sequence_length: int = 128,
    sequences: int = 256,
) -> Measuring:
    """Measure a network that predicts tokens in a random order (Yang et al. 2019, section 2.3).

    The rows are batches of held-out sequences. The same tokens are predicted in each order.

    Args:
        figure: "loss", its mean over the orders; "spread", the standard deviation of the loss of
            all of the text over the orders; "leak", by how much a logit changes at most when the
            predicted token itself is another one.

    Raises:
        UsageError: a spread of fewer than two orders.
        BertworksError: the model predicts no tokens in an order, or has another vocabulary.
    """
    yield Event("stage", "predicting in several orders", {"stage": "orders"})
    expect(
        orders >= (2 if figure == "spread" else 1),
        f"the {figure} of {orders} orders: expected at least two orders for a spread, and one "
        "otherwise",
        hint="set orders in the options of the measure",
    )
    network, batches = held_out_orders(
        arm.model,
        Shards.open(arm.shards),
        arm.seed,
        arm.device,
        sequence_length=sequence_length,
        sequences=sequences,
    )
    if figure == "leak":
        return Measured(largest_leak(network, batches), [])

    def score(sums: Array) -> Array:
        losses = sums[:, :-1] / sums[:, -1:]
        statistic: Array = losses.mean(1) if figure == "loss" else losses.std(1, ddof=1)
        return statistic

    return measured(RowSums(order_losses(network, batches, orders), score))


MEASURES: Mapping[str, Callable[..., Measuring]] = {
    "bits": measure_bits,
    "cost": measure_cost,
    "held_out": measure_held_out,
    "finetuning": measure_finetuning,
    "memory": measure_memory,
    "orders": measure_orders,
    "pairs": measure_pairs,
    "similarity": measure_similarity,
    "tags": measure_tags,
    "training": measure_training,
    "translation": measure_translation,
}
# The functions that have the options of a measure.
_FUNCTIONS: Mapping[str, Sequence[Callable[..., object]]] = {
    **{kind: [measure] for kind, measure in MEASURES.items()},
    "finetuning": [measure_finetuning, finetune],
    "translation": [measure_translation, translation_metric],
}


@dataclass(frozen=True, kw_only=True)
class ArmConfig(Settings):
    """One arm of an ablation: a model that is trained and measured.

    pretrain, finetune: keyword arguments of `bertworks.pretrain`, and of `bertworks.finetune` for
        each fine-tuning that is measured.
    model: without `pretrain`: the model that is measured.
    measures: names; (): all.
    published: figures of the source, by the name of a measure or of something else that was
        measured.
    compared: false for an arm that only serves other arms, as a teacher does. It has the steps of
        its recipe.

    In all arguments `{shards}` is the prepared corpus, `{corpus}` its text, `{data}` the folder of
    labelled data, `{arm:NAME}` the model of another arm, and `{arm:NAME/MEASURE}` the one that was
    fine-tuned for a measure.
    """

    name: Name
    title: str = ""
    pretrain: JsonObject = field(default_factory=dict)
    finetune: JsonObject = field(default_factory=dict)
    model: str = ""
    measures: tuple[str, ...] = ()
    published: JsonObject = field(default_factory=dict)
    compared: bool = True


@dataclass(frozen=True, kw_only=True)
class MeasureConfig(Settings):
    """A figure that is measured of each arm.

    kind: a key of `MEASURES`; options: its arguments; percent, digits: how it is printed.
    """

    name: Name
    title: str
    kind: Annotated[str, Range(f"one of {', '.join(MEASURES)}", lambda x: x in MEASURES)]
    options: JsonObject = field(default_factory=dict)
    percent: bool = False
    digits: NotNegative = 3

    @property
    def sign(self) -> str:
        """The sign of positive figures: that of a difference has one."""
        return "+" if "minus" in self.options else ""

    def show(self, figure: Mapping[str, Any], sign: str = "") -> str:
        """Return a mean, with its interval if it has one.

        Args:
            sign: "+" of a difference, which may be not resolved.
        """
        form, factor = (f"{sign}.1f", 100) if self.percent else (f"{sign},.{self.digits}f", 1)
        mean, *ends = (
            f"{factor * value:{form}}" for value in (figure["mean"], *(figure["interval"] or ()))
        )
        if ends:
            low, high = figure["interval"]
            verdict = f": {NOT_RESOLVED}" if sign and low <= 0 <= high else ""
            return f"{mean} ({' to '.join(ends)}){verdict}"
        return f"{mean} (one seed: no interval)" if sign else mean


@dataclass(frozen=True, kw_only=True)
class Ablation(Settings):
    """A controlled comparison of arms.

    source: of the published figures. note: what to know before the figures are read.
    equal: what all arms have in common: "steps"; "flops", the matrix-product operations of the
        pre-training; or "time", `minutes` of pre-training for each arm.
    pretrain: arguments of every arm with a table `pretrain`; the overrides of both are joined.
    """

    title: str
    source: str
    note: str = ""
    equal: Literal["steps", "flops", "time"] = "steps"
    minutes: AboveZero = 10.0
    seeds: Positive = 3
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    pretrain: JsonObject = field(default_factory=dict)
    arms: Annotated[
        tuple[ArmConfig, ...],
        Range("two arms or more, with different names", lambda x: _differ(x, 2)),
    ]
    measures: Annotated[
        tuple[MeasureConfig, ...], Range("measures with different names", lambda x: _differ(x, 1))
    ]

    def __post_init__(self) -> None:
        super().__post_init__()
        for measure in self.measures:
            options = [*measure.options, *measure.options.get("minus", ())]
            _check_names(f"the measure {measure.name}", options, _FUNCTIONS[measure.kind])
        finetunings = list[str]()
        for measure in self.measures:
            if measure.kind == "finetuning":
                finetunings.append(measure.name)
            expect(
                measure.kind != "cost" or measure.options.get("of") in finetunings,
                f"the measure {measure.name} names {measure.options.get('of')!r}: expected a "
                "measure of the kind finetuning in front of it",
                hint="set of in its options",
            )
        measures = [measure.name for measure in self.measures]
        known = [f"arm:{arm.name}/{name}" for arm in self.arms for name in measures]
        known += ["shards", "corpus", "data", *(f"arm:{arm.name}" for arm in self.arms)]
        for arm in self.arms:
            where = f"the arm {arm.name}"
            _check_names(where, self.arguments(arm), [pretrain])
            _check_names(where, arm.finetune, [finetune])
            expect(
                bool(arm.pretrain) != bool(arm.model),
                f"{where}: expected pretrain or model, one of them",
            )
            words = self.arguments(arm).get("overrides", ())
            expect(
                self.equal != "time" or not fixed_phases(1, parse_overrides(words)),
                f"{where} has a number of steps, and the time of all arms is equal",
                hint="leave num_steps out; train.phases.0.batch_size=64 sets the size of a batch",
            )
            for kind, names, allowed in (
                ("measure", arm.measures, measures),
                ("input", self.inputs_of(arm), known),
            ):
                unknown = sorted({*names} - {*allowed})
                if unknown:
                    raise UsageError(
                        f"{where} names the {kind} {unknown[0]!r}: there are {', '.join(allowed)}"
                    )
            for measure in self.measures_of(arm):
                if measure.kind == "finetuning":
                    # Conflicts are refused before any training.
                    finetuning_request(**{**measure.options, **arm.finetune})
        try:
            self.in_order()
        except CycleError as error:
            raise UsageError(f"these arms need each other: {', '.join(error.args[1])}") from None

    def arguments(self, arm: ArmConfig) -> JsonObject:
        """Return the keyword arguments of `pretrain` for an arm; {} if it is not pre-trained."""
        if not arm.pretrain:
            return {}
        words = [
            *names_of(self.pretrain.get("overrides")),
            *names_of(arm.pretrain.get("overrides")),
        ]
        return {"inputs": "{shards}", **self.pretrain, **arm.pretrain, "overrides": words}

    def measures_of(self, arm: ArmConfig) -> list[MeasureConfig]:
        """Return the measures of an arm, in the order of the ablation."""
        return [
            measure for measure in self.measures if not arm.measures or measure.name in arm.measures
        ]

    def text_of_arguments(self, arm: ArmConfig) -> str:
        """Return all arguments of an arm as JSON."""
        options = [measure.options for measure in self.measures_of(arm)]
        return json.dumps([self.arguments(arm), arm.finetune, arm.model, options])

    def inputs_of(self, arm: ArmConfig) -> list[str]:
        """Return the placeholders in the arguments of an arm."""
        return _PLACEHOLDER.findall(self.text_of_arguments(arm))

    def in_order(self) -> list[ArmConfig]:
        """Return the arms, each after those that it needs."""
        needs = {
            a.name: [re.split("[:/]", x)[1] for x in self.inputs_of(a) if ":" in x]
            for a in self.arms
        }
        names = [*TopologicalSorter(needs).static_order()]
        return sorted(self.arms, key=lambda arm: names.index(arm.name))

    @property
    def first(self) -> ArmConfig:
        """The arm with which the other arms are compared."""
        return next((arm for arm in self.arms if arm.compared), self.arms[0])


def _differ(parts: Sequence[Any], least: int) -> bool:
    """Return whether there are at least `least` parts, and their names differ."""
    return len({part.name for part in parts}) == len(parts) >= least


def _check_names(
    where: str, arguments: Iterable[str], functions: Iterable[Callable[..., Any]]
) -> None:
    """Refuse names of arguments that none of the functions has."""
    names = {
        name
        for call in functions
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind is not parameter.POSITIONAL_ONLY
    } - _ENGINE
    unknown = sorted({*arguments} - names)
    if unknown:
        raise UsageError(
            f"{where}: no argument {unknown[0]!r}: there are {', '.join(sorted(names))}"
        )


def list_ablations() -> dict[str, str]:
    """Return the titles of the ablations that come with the package, by name."""
    return {name: tomllib.loads(text)["title"] for name, text in PACKAGED.items()}


def evaluate_ablation(
    name: str,
    inputs: Sequence[str | Path] | str | Path,
    output: str | Path,
    *,
    data: str | Path | None = None,
    documents: Documents | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    scale: float | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> Iterator[Event]:
    """Train all arms of an ablation, and write tables, a report and the scores.

    The files are `table.md`, `table.json`, `report.html` and `figures.jsonl`. All arms are trained
    with one seed before the next one, so that the table is complete after each seed. The same call
    resumes, also with more seeds. `figures.jsonl` has the score of each arm, seed and measure, with
    the same score of 1,000 resamples of the held-out rows: `summarize` computes all means and
    intervals from it.

    Args:
        name: of an ablation, or its TOML file.
        inputs: raw text: files, folders, globs; ().
        data: the folder of labelled data, which ablations call {data}.
        documents: where a document of raw text ends; None: as in the ablation, or else "auto".
        seeds: their number, from 0; None: that of the ablation.
        steps: of the first arm; the others get theirs in the same proportion. scale: a factor of
            all steps or times.

    Raises:
        UsageError: no such ablation, or one with unknown arguments; the folder holds another one.
        BertworksError: text or labelled data is missing. Otherwise as `pretrain` and `finetune`.
    """
    text = read_recipe_text(str(as_path(name)), "ablation", PACKAGED)
    ablation = parse_as(Ablation, text, name)
    output = local_path(output, "output folder")
    inputs = [inputs] if isinstance(inputs, str | Path) else inputs
    sources = [absolute(source) for source in sources_of(inputs)]
    folder = None if data is None else absolute(data)
    work = _Work(ablation, sources, folder, documents, output, device)
    num_seeds = ablation.seeds if seeds is None else seeds
    work.check(num_seeds, steps, scale)
    refuse_nested(output, sources, sources)
    request = {"ablation": text, "inputs": sources, "data": work.data, "factor": work.factor}
    if documents is not None:
        request["documents"] = documents
    with open_run(output, request, overwrite):
        yield from work.prepare()
        figures = list[JsonObject]()
        for seed in range(num_seeds):
            for arm in ablation.in_order():
                yield Event("stage", f"seed {seed}, {arm.name}", {"stage": arm.name, "seed": seed})
                figures += yield from work.figures(arm, seed)
            lines = [f"{json.dumps(figure)}\n" for figure in figures]
            write_text(output / "figures.jsonl", "".join(lines))
            means = summarize(ablation, figures)
            write_json(output / "table.json", {"title": ablation.title, "measures": means})
            about = about_ablation(ablation, len({figure["seed"] for figure in figures}))
            table = f"# {ablation.title}\n\n{about}\n"
            sections = []
            for title, head, rows in ablation_tables(ablation, means):
                rows_of_arms = render_table(head, {row[0]: tuple(row[1:]) for row in rows})
                table += f"\n## {title}\n\n{rows_of_arms}"
                sections.append(svg.section(title, svg.words(head, rows, wraps=False)))
            write_text(output / "table.md", table)
            page = svg.page(
                ablation.title,
                "ablation",
                ablation.source,
                [*sections, svg.preformatted("About", about)],
            )
            write_text(output / "report.html", page)
            yield Event("note", f"seed {seed} is complete: see {output}/table.md", {"seed": seed})
    yield Event(
        "done",
        f"{table}\nwritten to {output}/table.md and {output}/report.html",
        {"output": str(output), "measures": means},
    )


@dataclass
class _Work:
    """The trainings of an ablation in its folder.

    factor: of all steps or times.
    """

    ablation: Ablation
    sources: list[str]
    data: str | None
    documents: Documents | None
    output: Path
    device: str
    factor: float = 1.0

    @property
    def shards(self) -> Path:
        """The prepared corpus."""
        return self.output / "shards"

    def reader(self) -> CorpusReader:
        """Return the reader of the raw text."""
        return read_text(self.sources, documents=self.documents or "auto")

    def check(self, seeds: int, steps: int | None, scale: float | None) -> None:
        """Set the factor, and refuse what cannot be trained before anything is.

        Raises:
            UsageError: the numbers make no sense, or text or data is not named.
            BertworksError: a file is missing.
        """
        ablation = self.ablation
        arms = ablation.arms
        inputs = {name for arm in arms for name in ablation.inputs_of(arm)}
        recipes = [
            self.recipe(arm)
            for arm in arms
            if arm.compared and ablation.arguments(arm) and ablation.equal != "time"
        ]
        first = recipes[0].train.num_steps if steps and recipes else 1
        self.factor = (steps / first if steps else 1.0) * (1.0 if scale is None else scale)
        if seeds < 1 or self.factor <= 0 or (steps and (scale or ablation.equal == "time")):
            raise UsageError(
                "expected 1 seed or more, and a number of steps or a scale above 0, not both"
            )
        trainings = seeds * len(arms)
        expect(
            trainings <= MAX_TRIALS,
            f"{trainings:,} trainings (arms times seeds): expected at most {MAX_TRIALS:,}",
            hint="choose a smaller number of --seeds",
        )
        expect(
            self.factor < MAX_FACTOR,
            f"{self.factor:,.0f} times the steps or the time of the ablation: expected less than "
            f"{MAX_FACTOR:,} times",
            hint="choose a smaller number of --steps or --scale",
        )
        if any(measure.kind == "translation" for measure in ablation.measures):
            bleu([""], [""])  # a package that is not installed is reported before any training
        if inputs & {"shards", "corpus"} and not self.sources:
            raise UsageError(
                "this ablation pre-trains on text",
                hint="name files, folders or globs after its name",
            )
        if self.sources:
            # A file that is missing is refused before the folder is created.
            self.reader()
        if "data" in inputs and self.data is None:
            raise UsageError(
                "this ablation fine-tunes on labelled data", hint="--data FOLDER names the folder"
            )
        what = "this is not in the folder of labelled data"
        arguments = "".join(map(ablation.text_of_arguments, arms))
        for name in re.findall(r'"\{data\}([^"*?]*)"', arguments):
            path = Path(f"{self.data}{name}")
            require(path.exists(), what, path, "--data FOLDER names the folder")

    def prepare(self) -> Iterator[Event]:
        """Make one vocabulary and one set of shards for all arms that read them."""
        if any("shards" in self.ablation.inputs_of(arm) for arm in self.ablation.arms):
            reader = self.reader()
            tokenizer = self.output / "tokenizer"
            if not (tokenizer / "tokenizer.json").exists():
                yield from forward_events(
                    make_vocabulary(reader, tokenizer, self.ablation.vocabulary)
                )
            yield from forward_events(make_shards(reader, self.shards, Tokenizer.load(tokenizer)))

    def figures(self, arm: ArmConfig, seed: int) -> Generator[Event, None, list[JsonObject]]:
        """Return the figures of an arm, which is trained first.

        Figures that are finished are read.
        """
        folder = self.output / "arms" / arm.name / f"seed-{seed}"
        fill = partial(self._fill, seed)
        path = folder / "figures.json"
        arguments = self.ablation.arguments(arm)
        done = read_json(path) if path.exists() else {}
        measures = self.ablation.measures_of(arm)
        if arguments and "training" not in done:
            done["training"] = yield from self._pretrain(arm, folder / "model", seed)
        model = str(folder / "model") if arguments else fill(arm.model)
        shards = folder / "model/shards" if (folder / "model/shards").exists() else self.shards
        for measure in measures:
            if measure.name in done:
                continue
            trained = Arm(
                model,
                seed,
                shards,
                folder / measure.name,
                done.get("training", {}),
                fill(arm.finetune),
                self.device,
            )
            figure = yield from MEASURES[measure.kind](trained, **fill(measure.options))
            done[measure.name] = figure._asdict()
            write_json(path, done)
            text = measure.show({"mean": figure.value, "interval": None})
            yield Event(
                "evaluation",
                f"{arm.name}, seed {seed}: {measure.title} {text}",
                {"value": figure.value},
            )
        return [
            {"arm": arm.name, "seed": seed, "measure": measure.name, **done[measure.name]}
            for measure in measures
        ]

    def _pretrain(
        self, arm: ArmConfig, folder: Path, seed: int
    ) -> Generator[Event, None, dict[str, float]]:
        """Return figures of the pre-training of an arm."""
        ablation = self.ablation
        factor = self.factor
        arguments = self._fill(seed, ablation.arguments(arm))
        if self.documents is not None and "corpus" in ablation.inputs_of(arm):
            arguments["documents"] = self.documents
        if ablation.equal == "time":
            arguments["budget"] = f"{60 * factor * ablation.minutes:.0f}s"
        else:
            recipe = self.recipe(arm)
            if ablation.equal == "flops" and arm.compared:
                first_flops = self.recipe(ablation.first).training_flops()
                factor *= first_flops / recipe.training_flops()
            tables = []
            for phase in recipe.train.phases:
                fields = vars(phase) | {"num_steps": max(1, round(factor * phase.num_steps))}
                table = ", ".join(f"{name} = {value}" for name, value in fields.items())
                tables.append("{" + table + "}")
            arguments["overrides"] += [f"train.phases=[{', '.join(tables)}]"]
        done = yield from forward_events(
            pretrain(output=folder, seed=seed, device=self.device, **arguments)
        )
        recipe = load_recipe(str(folder / "recipe.toml"))
        if ablation.equal == "time":
            recipe = recipe.with_steps(read_plans(folder)[-1].steps)
        fields = done.fields
        epochs = {}
        if recipe.encoder.decoder is not None:
            num_pairs = sum(phase.num_steps * phase.batch_size for phase in recipe.train.phases)
            epochs["epochs"] = num_pairs / len(np.load(folder / "plans/phase-0.npy", mmap_mode="r"))
        return {
            **epochs,
            "steps": fields["step"],
            "tokens": fields["tokens"],
            "seconds": fields["seconds"],
            "flops": recipe.training_flops(),
            "parameters": num_trained(recipe),
            **fields["evaluation"],
            "tokens_per_second": fields["tokens"] / max(1e-9, fields["seconds"]),
        }

    def recipe(self, arm: ArmConfig) -> Recipe:
        """Return the recipe of an arm; after `prepare` with the size of the vocabulary."""
        arguments = self.ablation.arguments(arm)
        expect(
            "recipe" in arguments,
            f"the arm {arm.name} has no recipe, so no steps",
            hint="or set equal = 'time'",
        )
        recipe = load_recipe(str(as_path(arguments["recipe"])), arguments["overrides"])
        if recipe.encoder.vocab_size == 0 and (self.output / "tokenizer").exists():
            size = Tokenizer.load(self.output / "tokenizer").vocab_size
            recipe = replace(recipe, encoder=replace(recipe.encoder, vocab_size=size))
        return recipe

    def _fill(self, seed: int, value: Any) -> Any:
        """Return arguments with the values of their placeholders."""
        if isinstance(value, dict):
            return {name: self._fill(seed, part) for name, part in value.items()}
        if value == "{corpus}":
            return [*self.sources]
        if isinstance(value, list):
            filled = list[Any]()
            for part in value:
                filled += self.sources if part == "{corpus}" else [self._fill(seed, part)]
            return filled

        def path(match: re.Match[str]) -> str:
            _, _, arm = match[1].partition("arm:")
            name, _, measure = arm.partition("/")
            model = self.output / "arms" / name / f"seed-{seed}" / (measure or "model")
            return str({"shards": self.shards, "data": self.data}.get(match[1], model))

        return _PLACEHOLDER.sub(path, value) if isinstance(value, str) else value


def summarize(ablation: Ablation, figures: Figures) -> dict[str, JsonObject]:
    """Return the means by measure and arm.

    Of each there are the `values` of the seeds, their `mean` and `interval`, and the `difference`
    to the first arm, paired by seed and by row: mean, interval, and `resolved`: whether the
    interval excludes 0. Intervals are of 95 %, over rows and seeds; they are None for one seed
    without rows.
    """
    by_key = {(figure["measure"], figure["arm"], figure["seed"]): figure for figure in figures}
    seeds = sorted({figure["seed"] for figure in figures})
    first_arm = ablation.first.name
    means = dict[str, JsonObject]()
    for measure, arm in dict.fromkeys((figure["measure"], figure["arm"]) for figure in figures):
        by_seed = {
            seed: by_key[measure, arm, seed] for seed in seeds if (measure, arm, seed) in by_key
        }
        row = means.setdefault(measure, {})[arm] = _mean([*by_seed.values()])
        if signature := next(iter(by_seed.values())).get("signature"):
            row["signature"] = signature
        differences = []
        for seed, figure in by_seed.items():
            reference = by_key.get((measure, first_arm, seed))
            if arm != first_arm and reference:
                pairs = zip(figure["samples"], reference["samples"])  # of the same resamples
                value = figure["value"] - reference["value"]
                differences.append({"value": value, "samples": [x - y for x, y in pairs]})
        if differences:
            change = _mean(differences)
            low, high = change["interval"] or (0, 0)
            row["difference"] = change | {"resolved": not low <= 0 <= high}
    return means


def _mean(figures: Figures) -> JsonObject:
    """Return the values of figures of several seeds, their mean and its interval."""
    values = [figure["value"] for figure in figures]
    samples = [np.array(figure["samples"] or [figure["value"]] * SAMPLES) for figure in figures]
    has_interval = len(values) > 1 or figures[0]["samples"]
    interval = interval_of_mean(values, samples) if has_interval else None
    return {"values": values, "mean": float(np.mean(values)), "interval": interval}


Table = tuple[str, list[str], list[list[str]]]  # title, head, rows


def ablation_tables(ablation: Ablation, means: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Return a table of each measure next to the published figures.

    A last table has the published figures of other measures.
    """
    titles = {arm.name: ": ".join(filter(None, (arm.name, arm.title))) for arm in ablation.arms}
    tables = []
    for measure in ablation.measures:
        rows = []
        for arm in ablation.arms:
            row = means.get(measure.name, {}).get(arm.name)
            if row is None:
                continue
            change = row.get("difference")
            to_first = measure.show(change, "+") if change else ""
            published = str(arm.published.get(measure.name, ""))
            rows.append([titles[arm.name], measure.show(row, measure.sign), to_first, published])
        head = ["arm", "mean", f"difference to {ablation.first.name}", "published"]
        title = f"{measure.title}, in percent" if measure.percent else measure.title
        signatures = {row.get("signature") for row in means.get(measure.name, {}).values()}
        title = ": ".join([title, *filter(None, signatures)])
        tables.append((title, head, rows))
    names = {name: None for arm in ablation.arms for name in arm.published if name not in means}
    if names:
        rows = [
            [titles[arm.name], *(str(arm.published.get(name, "")) for name in names)]
            for arm in ablation.arms
        ]
        tables.append(("Published, not measured here", ["arm", *names], rows))
    return tables


def about_ablation(ablation: Ablation, seeds: int) -> str:
    """Return sentences about the trainings behind the tables."""
    equal = {
        "steps": "equal steps",
        "flops": "equal matrix-product operations",
        "time": "equal time",
    }[ablation.equal]
    chance = (
        "over held-out rows and seeds" if seeds > 1 else "over held-out rows only, not over seeds"
    )
    lines = [
        f"Published: {ablation.source}.",
        f"Pre-trained with {equal}; {seeds} {'seeds' if seeds > 1 else 'seed'}.",
        f"Intervals: 95 %, {chance}. Differences are paired by seed and by row.",
    ]
    if ablation.note:
        lines.append(ablation.note)
    return "\n".join(lines)
