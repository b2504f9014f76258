"""Turn a budget of time into a recipe.

Size, vocabulary, batch, phases and steps come from the measured speed of the machine.

- `SIZE_PRESETS`: what suits which amount of arithmetic, from sizes.toml
- `seconds_of`: a budget in words -> seconds
- `Schedule`: the steps of a run, planned again where the speed changes; `Pace`: the recent speed
"""

import math
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from operator import mul
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from bertworks.batching.batch import Batch, collate
from bertworks.batching.contexts import ContextWords
from bertworks.batching.examples import LanePlace, Target, TokenSequence
from bertworks.batching.orders import Permuter
from bertworks.batching.sampling import FORMATS, Masker, NextTokens, TargetMaker, num_predicted
from bertworks.batching.spelled_words import SpelledWords
from bertworks.config import packaged_table
from bertworks.errors import UsageError, expect
from bertworks.events import duration
from bertworks.models.config import BERT_SIZES, EncoderConfig
from bertworks.models.memory import make_memory
from bertworks.models.settings import PRETRAINING_HEADS
from bertworks.text.tokenizer import SPELLED
from bertworks.training.device import (
    DTYPES,
    Precision,
    disable_heap_trim,
    measure_matmul,
)
from bertworks.training.loop import MANY_STEPS, MixedPrecision, time_step
from bertworks.training.objectives import PretrainingModel, Teacher
from bertworks.training.recipe import OptimizerConfig, Phase, Recipe, TrainConfig


class SizePreset(NamedTuple):
    """The best choice from an amount of arithmetic on."""

    flops: float  # matrix-product operations that the budget allows
    size: str
    vocab_size: int
    tokens: int  # of a step
    lengths: Sequence[int]  # of the sequences, phase after phase
    learning_rate: float
    initializer_range: float


_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SHORTEST_BUDGET = 20  # seconds of a budget: to measure the speed, and to train
SIZE_PRESETS = [
    SizePreset(**preset) for preset in packaged_table(__file__, "sizes.toml")["presets"]
]
EFFICIENCY = 0.7  # of the matmul ceiling, before anything is measured
GPU_FRACTION = 0.6  # of that on a GPU, which multiplies too fast for the rest of the work
EVALUATION_FRACTION = 0.03  # of the time, for evaluations
# Of the time, for each phase after the first. The original gives its last phase a tenth of the
# steps, which in a short run is not enough to learn what changes with the length
# (docs/experiments).
LATER_FRACTION = 0.2
REPETITIONS = 4  # of a text, after which a large network may memorize it
OVERRUN = 1.5  # times the budget that a plan may take, if every phase has one step
PROCESS = 400 << 20  # bytes of Python and torch, without a model
# The rest of a run is planned again if it would end this much earlier or later: fractions of the
# budget and the rest.
TOLERANCE = 0.02
REST_TOLERANCE = 0.1
CHECKS = 40  # of the speed in a run, as long as its steps are those of the first plan
MEMORY = 0.04  # of a budget: over about this time the speed is averaged


BERT_BASE = Recipe(title="BERT-Base", train=TrainConfig(phases=(Phase(num_steps=1, batch_size=1),)))


def size_preset_for(flops: float) -> SizePreset:
    """Return the best choice for an amount of arithmetic."""
    return [preset for preset in SIZE_PRESETS if preset.flops <= flops][-1]


def choose_recipe(
    seconds: float,
    matmul: float,
    corpus_tokens: int,
    encoder: EncoderConfig | None = None,
    family: Recipe | None = None,
) -> Recipe:
    """Return a recipe for a budget, with phases of one step each: `fit_steps` sets their numbers.

    Args:
        matmul: FLOP/s of the machine.
        encoder: that of a model to continue from, or of a student; None: one for the budget.
        family: a recipe of it, which decides what is not size, optimizer or batch; None: BERT.
    """
    flops = seconds * matmul * EFFICIENCY
    preset = size_preset_for(flops)
    base = family or BERT_BASE
    default = replace(
        BERT_SIZES[preset.size],
        vocab_size=preset.vocab_size,
        initializer_range=preset.initializer_range,
    )
    # of the family, with this size; narrow embeddings have at most half its width
    names = (
        "vocab_size",
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "initializer_range",
    )
    values = {name: getattr(default, name) for name in names}
    width = min(base.encoder.embedding_size, default.hidden_size // 2)
    # with a gate as wide as in ModernBERT, in proportion
    inner = 3 * default.hidden_size // 2 if base.encoder.gated_feed_forward else 0
    default = replace(base.encoder, **values, intermediate_size=inner, embedding_size=width)
    per_token = default.flops_per_token(preset.lengths[0], 0.15)
    parameters = default.num_parameters(*PRETRAINING_HEADS)
    # With few repetitions a network does not overfit, and a small network cannot memorize a large
    # text.
    memorizes = flops / per_token > REPETITIONS * corpus_tokens and 2 * parameters > corpus_tokens
    dropout = 0.1 if memorizes else 0.0
    chosen = encoder or replace(default, vocab_size=0)  # 0: that of the tokenizer
    lengths = sorted({min(length, chosen.max_position_embeddings) for length in preset.lengths})
    phases = [
        Phase(num_steps=1, batch_size=max(1, preset.tokens // n), sequence_length=n)
        for n in lengths
    ]
    name, _, size = base.title.partition(",")[0].rpartition("-")
    name += f"-{size}" if size.lower() not in ("base", "small") else ""
    title = name if base.distils else "more training" if encoder else f"{name}-{preset.size}"
    # A student starts from trained layers, the rates of the presets are for random weights.
    rate = min(preset.learning_rate, base.optimizer.learning_rate if base.distils else math.inf)
    sampling = replace(base.sampling, copies=1)
    has_segments = max(1, chosen.type_vocab_size) >= FORMATS[sampling.format].segments
    if not has_segments and not chosen.relative_segments:
        sampling = replace(sampling, format="full_sentences")
    recipe = replace(
        base,
        title=f"{title} for {duration(seconds)}",
        train=TrainConfig(phases=tuple(phases)),
        encoder=replace(
            chosen, hidden_dropout=dropout, attention_dropout=dropout, embedding_dropout=None
        ),
        vocabulary=replace(base.vocabulary, size=preset.vocab_size),
        sampling=sampling,
        masking=replace(base.masking, max_predictions=0, dynamic=True),
        initialization="published" if encoder else base.initialization,
        optimizer=OptimizerConfig(learning_rate=rate, warmup=0.1),
        teacher_layers=0,
        seed=0,
    )
    if encoder is None:
        with suppress(ValueError):  # not every network can start with this attention
            recipe = replace(recipe, initialization="neighbours")
    return recipe


def fit_steps(
    recipe: Recipe,
    seconds: float,
    step_seconds: Sequence[float],
    fixed: Collection[str] = frozenset(),
) -> Recipe:
    """The recipe with as many steps as fill the time, and as many evaluations as cost little of it.

    Args:
        step_seconds: the time of one step of each phase. Phases keep their fractions of the time;
            those of `choose_recipe`, with one step each, get those of LATER_FRACTION.
        fixed: names of fields that keep their values, such as `train.phases.0.num_steps`.

    Raises:
        UsageError: a step takes longer than its phase has.
    """
    old = recipe.train.phases
    later = [LATER_FRACTION] * (len(old) - 1)
    costs = [phase.num_steps * cost for phase, cost in zip(old, step_seconds, strict=True)]
    is_draft = all(phase.num_steps == 1 for phase in old)
    fractions = [1 - sum(later), *later] if is_draft else [cost / sum(costs) for cost in costs]
    steps = [
        max(1, int(seconds * fraction / cost))
        for fraction, cost in zip(fractions, step_seconds, strict=True)
    ]
    if sum(map(mul, steps, step_seconds)) > OVERRUN * seconds:
        # The time in which each phase has a step.
        needed = [cost / fraction for cost, fraction in zip(step_seconds, fractions, strict=True)]
        number = needed.index(max(needed))
        batch_size = old[number].batch_size
        length = old[number].sequence_length
        took = duration(step_seconds[number])
        raise UsageError(
            f"{duration(seconds)} is too little time: a step of {batch_size} x {length} tokens "
            f"takes {took}",
            hint=f"--budget {math.ceil(1.1 * needed[number] / 60)}m; or a smaller recipe; or "
            f"smaller batches: --set train.phases.{number}.batch_size={max(1, batch_size // 8)}",
        )
    fixed_numbers = fixed_phases(len(old), fixed)
    counts = [phase.num_steps if n in fixed_numbers else steps[n] for n, phase in enumerate(old)]
    phases = tuple(
        replace(phase, num_steps=count) for phase, count in zip(old, counts, strict=True)
    )
    # A forward pass is a third of a step; the longest sequences are as many tokens again.
    token = step_seconds[0] / old[0].batch_size / old[0].sequence_length
    evaluation = 2 / 3 * token * recipe.train.held_out_sequences * recipe.train.held_out_length
    evaluations = min(20, max(3, int(EVALUATION_FRACTION * seconds / evaluation)))
    interval = -(-sum(counts) // evaluations)
    train_config = replace(
        recipe.train, phases=phases, evaluate_every=recipe.train.evaluate_every or interval
    )
    return replace(recipe, train=train_config)


def fixed_phases(count: int, fields: Collection[str]) -> list[int]:
    """Return the numbers of the phases that have their steps from overrides.

    There are `count` phases; the overrides are those of these fields.
    """
    return [
        n
        for n in range(count)
        if not {"train.phases", f"train.phases.{n}.num_steps"}.isdisjoint(fields)
    ]


class Plan(NamedTuple):
    """The steps of a run with a budget, from one of them on: a line of schedule.jsonl."""

    step: int  # steps done when it was made
    steps: Sequence[int]  # of each phase, from the beginning of the run
    step_seconds: Sequence[float]  # of a step of each phase, at the speed of that moment
    spent: float  # seconds of the budget

    @property
    def seconds(self) -> float:
        """The time of all steps."""
        return float(sum(map(mul, self.steps, self.step_seconds)))


class Pace:
    """Seconds per unit of cost, of about the last `memory` seconds.

    Older steps count less, exponentially.

    state: seconds and cost so far.
    """

    def __init__(self, memory: float, state: tuple[float, float] = (0.0, 0.0)):
        self.memory = memory
        self.state = state

    def add(self, seconds: float, cost: float) -> None:
        """Add a step."""
        remaining = math.exp(-seconds / self.memory)
        self.state = remaining * self.state[0] + seconds, remaining * self.state[1] + cost

    @property
    def value(self) -> float:
        """The seconds per unit of cost."""
        return self.state[0] / self.state[1]


@dataclass
class Schedule:
    """The steps of a run with a budget, as functions of its plans.

    seconds: of the budget, to the end of the last evaluation.
    begin: when they began, by `time.perf_counter`; of a resumed run, earlier by the time that it
        took before.
    plans: the first one begins at step 0. Later ones may be ahead of a run that was resumed.
    fixed: names of fields that keep their values, as in `fit_steps`.
    follow: is called with the steps of each phase where they change.
    """

    seconds: float
    begin: float
    plans: list[Plan]
    fixed: Collection[str] = ()
    follow: Callable[[Sequence[int]], None] = lambda steps: None

    def at(self, step: int) -> Plan:
        """Return the plan of a step, counted from 0."""
        return [plan for plan in self.plans if plan.step <= step][-1]

    def position(self, step: int) -> float:
        """Return the step of the first plan that has the learning rate of this step.

        It counts from 0 and has a fraction. A new plan continues where the one before it stood, and
        goes evenly to the end: the rate has no jump, and reaches its end. The phases keep their
        shares.
        """
        whole = end = sum(self.plans[0].steps)
        start = 0
        reached = 0.0
        for plan in self.plans:
            if plan.step <= step:
                reached = whole - (end - plan.step) * (whole - reached) / (end - start)
                start = plan.step
                end = sum(plan.steps)
        return whole - (end - step) * (whole - reached) / (end - start)

    def is_due(self, step: int) -> bool:
        """Return whether the speed is compared with the plan after this number of steps."""
        interval = max(1, sum(self.plans[0].steps) // CHECKS)
        return step % interval == 0 and 0 < step < sum(self.at(step).steps)

    def plan_again(
        self, step: int, spent: float, pace: float, evaluation: float, interval: int
    ) -> Plan | None:
        """Return a plan that ends with the budget; None if the present one nearly does.

        Args:
            step: steps done. spent: seconds of the budget.
            pace: how many times as long as in the first plan a step takes now.
            evaluation: seconds of one with saving.
            interval: steps after which there is an evaluation; there is one at the end, too.
        """
        plan = self.at(step)
        step_seconds = [pace * seconds for seconds in self.plans[0].step_seconds]
        fixed = fixed_phases(len(step_seconds), self.fixed)
        left = [
            min(n, max(0, end - step))
            for n, end in zip(plan.steps, accumulate(plan.steps), strict=True)
        ]
        times = [
            n * (seconds + evaluation / interval)
            for n, seconds in zip(left, step_seconds, strict=True)
        ]
        expected = sum(seconds for number, seconds in enumerate(times) if number not in fixed)
        available = self.seconds - spent - evaluation - sum(times[number] for number in fixed)
        if (
            not expected
            or abs(available - expected) <= TOLERANCE * self.seconds + REST_TOLERANCE * expected
        ):
            return None
        steps = [*plan.steps]
        for number, rest in enumerate(left):
            if rest and number not in fixed:
                # no phase is left out
                fewest = 1 if rest == plan.steps[number] or number == len(left) - 1 else 0
                steps[number] += max(fewest, round(rest * available / expected)) - rest
        return None if steps == [*plan.steps] else Plan(step, steps, step_seconds, spent)


class Measurement(NamedTuple):
    """The cost of a recipe's training steps, measured on random tokens."""

    step_seconds: list[float]  # per phase
    memory: int  # bytes of the process, or on the GPU, estimated


def measure_steps(
    recipe: Recipe,
    device: torch.device,
    seconds: float = 6.0,
    make_batches: Callable[[Recipe], Callable[[int], Sequence[Batch]]] | None = None,
) -> Measurement:
    """Time steps of every phase, for about `seconds` in all.

    On a slow machine there are fewer sequences per micro-batch than the recipe's. Memory is
    computed from the tensors that one and two sequences keep for the backward pass.

    Args:
        recipe: with a precision, not "auto".
        make_batches: a recipe -> the batches of its steps; None: one random batch of sequences of
            equal length, which takes a half to two thirds of the time of real ones.
    """
    disable_heap_trim()
    train_config = recipe.train
    precision = cast(Precision, train_config.precision)
    model = PretrainingModel.of(recipe)
    model.teacher = Teacher(recipe.teacher, None, DTYPES[precision]) if recipe.distils else None
    model.to(device)
    patience = seconds / len(train_config.phases)
    speed = EFFICIENCY * measure_matmul(DTYPES[precision], device)
    step_seconds = []
    activations = 0
    for number, phase in enumerate(train_config.phases):
        length = phase.sequence_length
        full = min(phase.batch_size, max(1, train_config.micro_batch_tokens // length))
        expected = recipe.flops_per_token(length) * length / speed  # seconds of a sequence
        few = min(full, max(1, int(patience / 4 / expected)))
        batch, single, pair = (random_batch(recipe, n, length).to(device) for n in (few, 1, 2))
        first = _bytes_for_backward(model, precision, single)
        both = _bytes_for_backward(model, precision, pair)
        activations = max(activations, first + (both - first) * (full - 1))
        phases = tuple(
            replace(p, batch_size=few, num_steps=MANY_STEPS) for p in train_config.phases
        )
        timed = replace(recipe, train=replace(train_config, phases=phases))
        model.memory = make_memory(recipe.encoder, few, device)
        real = _with_full_memory(recipe, make_batches(timed)) if make_batches else batch
        micro, update = time_step(
            model, recipe.optimizer, precision, real, patience, number * MANY_STEPS
        )
        step_seconds.append(micro * phase.batch_size / few + update)
    # Float32 parameters, gradients and two moments. Gradients of activations are not kept for long.
    memory = 16 * sum(p.numel() for p in model.parameters()) + int(1.3 * activations)
    memory += 4 * recipe.teacher.num_parameters("lm_head") * recipe.distils
    c = recipe.encoder
    num_states = c.memory_length * train_config.phases[0].batch_size * c.num_hidden_layers
    memory += 4 * num_states * c.hidden_size
    return Measurement(step_seconds, memory + PROCESS)


def _with_full_memory(
    recipe: Recipe, make: Callable[[int], Sequence[Batch]]
) -> Callable[[int], Sequence[Batch]]:
    """Return the same batches, before which their lanes have as many tokens as a memory holds."""

    def batches(step: int) -> Sequence[Batch]:
        return [
            replace(batch, lanes=batch.lanes._replace(num_before=recipe.encoder.memory_length))
            if batch.lanes
            else batch
            for batch in make(step)
        ]

    return batches if recipe.encoder.memory_length else make


def _bytes_for_backward(model: PretrainingModel, precision: Precision, batch: Batch) -> int:
    """Bytes that a forward pass keeps for the backward pass, without the parameters."""
    sizes: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        losses = MixedPrecision(model, precision)(batch)
    for p in model.parameters():
        sizes.pop(p.untyped_storage().data_ptr(), None)
    del losses  # they keep the tensors alive
    return sum(sizes.values())


def random_batch(recipe: Recipe, sequences: int, length: int) -> Batch:
    """Random tokens and targets in the shape of those that a recipe trains on."""
    generator = np.random.default_rng(0)
    c = recipe.encoder
    masking = replace(recipe.masking, unit="token")
    replaces = "replaced_token" in recipe.weights
    kind = recipe.token_objective
    make_example: TargetMaker
    if kind == "masked_lm":
        make_example = Masker(masking, 0, np.ones(c.vocab_size, np.bool_), replaces=replaces)
    elif kind == "permutation_lm":
        budget = partial(num_predicted, masking)
        make_example = Permuter(budget, np.ones(c.vocab_size, np.bool_))
    elif kind == "skip_gram" or kind == "cbow":
        make_example = ContextWords(kind, recipe.context, np.ones(c.vocab_size, np.int64))
    elif kind == "forward_lm":
        make_example = SpelledWords(np.arange(c.vocab_size).astype(SPELLED))
    else:
        make_example = NextTokens(kind)
    num_types = 2 if kind == "translation" else max(1, c.type_vocab_size)
    types = np.arange(length) // (length // 2 + 1) % num_types
    special = np.zeros(length, np.bool_)
    label = Target(np.zeros(1, np.int64), np.zeros(1, np.int64))
    targets = dict.fromkeys(FORMATS[recipe.sampling.format].targets, label)
    rows = generator.integers(c.vocab_size, size=(sequences, length))
    if kind == "forward_lm":  # which computes each different word once: as frequent as in texts
        rows = ((c.vocab_size + 1) ** generator.random(rows.shape)).astype(np.int64) - 1
    examples = [
        make_example(TokenSequence(row, types, special, targets), generator) for row in rows
    ]
    if recipe.sampling.lanes:  # with a full memory
        examples = [
            example._replace(place=LanePlace(lane, c.memory_length))
            for lane, example in enumerate(examples)
        ]
    return collate(examples)


def seconds_of(budget: str) -> float:
    """Return the seconds of a budget such as 90s, 30m, 2h, 1d or 1h30m.

    Raises:
        UsageError: it is no budget, or too short.
    """
    words = re.fullmatch(r"(\d+(\.\d+)?[smhd])+", budget.strip().lower(), re.ASCII)
    parts = re.findall(r"([\d.]+)([smhd])", words[0]) if words else []
    total = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts)
    expect(
        _SHORTEST_BUDGET <= total < 1e9,
        f"{budget!r} is not a budget",
        hint=f"give a time of {_SHORTEST_BUDGET} s or more, such as 30m, 2h or 1h30m",
    )
    return total
