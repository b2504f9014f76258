"""Recipes of pre-training and fine-tuning: TOML files, in memory frozen dataclasses.

They decide all numbers of a run, except the data. Unknown names and wrong types are errors.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

from bertworks.batching.contexts import BLOCK, CONTEXT_OBJECTIVES, ContextConfig, ContextObjective
from bertworks.batching.sampling import FORMATS, MaskingConfig, SamplingConfig
from bertworks.batching.spelled_words import DIRECTED_OBJECTIVES, DirectedObjective
from bertworks.config import (
    MAX_COUNT,
    MAX_SIZE,
    AboveZero,
    Count,
    CountOrZero,
    Fraction,
    FractionAboveZero,
    FractionBelowOne,
    Range,
    Settings,
    Size,
    SizeOrZero,
    TokenCount,
    parse_as,
    read_recipe_text,
)
from bertworks.errors import expect
from bertworks.models.config import EncoderConfig
from bertworks.tasks.settings import MOST_WINDOWS, FeatureLayers, LSTMEncoder
from bertworks.text.vocabulary import VocabularyConfig

HELD_OUT_LENGTH = 128
ZeroOrMore = Annotated[float, Range("0 or more", lambda x: x >= 0)]
BelowOne = Annotated[float, Range("a number from 0 to below 1", lambda x: 0 <= x < 1)]
Seed = Annotated[
    int, Range(f"a whole number from 0 to {(1 << 32) - 1:,}", lambda x: 0 <= x < 1 << 32)
]
BelowHundred = Annotated[float, Range("0 or more, below 100", lambda x: 0 <= x < 100)]


@dataclass(frozen=True, kw_only=True)
class Phase(Settings):
    """A part of a run.

    The original trains 9 of 10 steps at length 128 and the rest at 512 (Devlin et al. 2019,
    appendix A.2).

    num_steps: updates of the parameters.
    batch_size: sequences in a step.
    sequence_length: the largest number of tokens of a sequence, special tokens included.
    """

    num_steps: Count
    batch_size: Size
    # The sampler, too, refuses lengths that are too small for the special tokens.
    sequence_length: Annotated[int, Range(f"5 to {MAX_SIZE:,}", lambda x: 5 <= x <= MAX_SIZE)] = 128


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Settings):
    """The steps of a run, and how they are computed.

    phases: one after the other, under one learning-rate schedule.
    micro_batch_tokens: the largest number of tokens computed at once; larger batches are
        accumulated. 8192, the default, is for CPUs: a GPU takes up to 131,072 instead, as its
        memory allows. Other numbers stay.
    precision: of the network; "auto": bf16 where the hardware is faster with it.
    gradient_checkpointing: compute each block again in the backward pass: less memory, a third more
        arithmetic.
    average: the model is the mean of the parameters at the last evaluations, this many, if that
        is better on held-out text; 0: there is no mean (Vaswani et al. 2017, section 6.1).
    held_out_sequences: of 128 tokens, and about as many tokens in sequences of the greatest length.
    evaluate_every, save_every: in steps; 0: about twenty times in a run, and every few minutes.
    """

    phases: Annotated[tuple[Phase, ...], Range("at least one phase", bool)]
    micro_batch_tokens: TokenCount = 8192
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    average: SizeOrZero = 0
    held_out_sequences: Size = 256
    evaluate_every: CountOrZero = 0
    save_every: CountOrZero = 0

    @property
    def num_steps(self) -> int:
        """The number of steps of all phases."""
        return sum(phase.num_steps for phase in self.phases)

    def locate(self, step: int) -> tuple[int, int]:
        """The number of the phase of a step, and the number of the step in it; all count from 0."""
        starts = [0, *accumulate(phase.num_steps for phase in self.phases[:-1])]
        number = bisect_right(starts, step) - 1
        return number, step - starts[number]

    @property
    def sequence_length(self) -> int:
        """The longest of all phases."""
        return max(phase.sequence_length for phase in self.phases)

    @property
    def held_out_length(self) -> int:
        """The length of most held-out sequences.

        It is equal in all runs, so that their figures compare.
        """
        return min(HELD_OUT_LENGTH, self.sequence_length)

    @property
    def num_tokens(self) -> int:
        """The largest number of tokens: short sequences have fewer."""
        return sum(p.num_steps * p.batch_size * p.sequence_length for p in self.phases)


TokenObjective = Literal[
    "masked_lm", "causal_lm", "permutation_lm", "translation", "forward_lm", ContextObjective
]
ObjectiveKind = Literal[
    TokenObjective,
    DirectedObjective,
    "next_sentence",
    "sentence_order",
    "replaced_token",
    "distillation",
    "cosine",
]
TOKEN_OBJECTIVES: frozenset[str] = frozenset(get_args(TokenObjective))
TEACHER_OBJECTIVES: frozenset[str] = frozenset({"distillation", "cosine"})
# of networks with a memory
MEMORY_OBJECTIVES: frozenset[str] = frozenset({"causal_lm", "permutation_lm"})


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Settings):
    """An objective (`training.objectives.OBJECTIVES`).

    kind: "masked_lm" (predict masked tokens), "causal_lm" (predict each next token),
        "permutation_lm" (predict some tokens in a random order, for XLNet), "translation"
        (predict each next token of a translation, with a decoder), "forward_lm" and "backward_lm"
        (predict each word from those before it and from those behind it, for ELMo),
        "skip_gram" (a word predicts each word around it) and "cbow" (the words around it predict a
        word), both for static vectors (Mikolov et al. 2013),
        "next_sentence" (does segment B follow segment A?), "sentence_order" (which of two segments
        comes first in the text?), "replaced_token" (which tokens did a generator replace? masked_lm
        then trains the generator; Clark et al. 2020), or, with a teacher, "distillation" (predict
        its probabilities of all tokens; Sanh et al. 2019) and "cosine" (the direction of its last
        hidden states).
    weight: the factor of its loss in the sum.
    """

    kind: ObjectiveKind
    weight: AboveZero = 1.0


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """AdamW (Loshchilov and Hutter 2019), LAMB or Adamax, clipping, warm-up and linear decay.

    optimizer: "adamw"; "lamb" for batches of thousands of sequences (You et al. 2020; ALBERT); or
    "adamax" (Kingma and Ba 2015, section 7.1; MT-DNN), with weight decay in the gradient.
    learning_rate: the peak; 0: a default for the size of the network (fine-tuning only).
    bias_correction: of the moments. False is google-research/bert's AdamWeightDecayOptimizer, and
        the LAMB of ALBERT.
    warmup: fraction of the steps in which the learning rate rises linearly from 0.
    warmup_steps: the number of these steps, but at most half of all steps; 0: `warmup` says it.
    schedule: "linear" falls from the peak to 0 at the last step. "linear_from_start" is that of
    google-research/bert: the falling line begins at step 0, so that the learning rate drops a
    little where the warm-up ends. "cosine" falls along half a period (Radford et al. 2018, section
    4.1), "inverse_sqrt" with the root of the step (Vaswani et al. 2017, section 5.3).
    weight_decay: of matrices and embeddings, not of biases and norms.
    beta1, beta2: decay rates of the moments.
    eps: added to the root of the second moment.
    max_grad_norm: gradients are scaled down to this norm, of all parameters together; 0: no
        clipping.
    layer_decay: the learning rate of a layer is that of the layer above times this; heads have the
    full learning rate, the embeddings the smallest (Sun et al. 2019, section 5.3.3). Layers that
    share a block count as one. 1: all have the same learning rate.
    layer_decay_offset: layers that are counted between the heads and the last block, which then has
    the full learning rate times layer_decay to the power of 1 + this number
    (google-research/electra: 1).
    """

    optimizer: Literal["adamw", "lamb", "adamax"] = "adamw"
    learning_rate: Annotated[
        float, Range("a number above 0, and well below 10", lambda x: 0 <= x < 10)
    ] = 1e-4
    warmup: Annotated[
        float, Range("a fraction of the steps, from 0 to 1", lambda x: 0 <= x <= 1)
    ] = 0.01
    warmup_steps: CountOrZero = 0
    schedule: Literal["linear", "linear_from_start", "cosine", "inverse_sqrt", "constant"] = (
        "linear"
    )
    weight_decay: ZeroOrMore = 0.01
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    eps: Annotated[float, Range("a number above 0", lambda x: x > 0)] = 1e-6
    bias_correction: bool = True
    max_grad_norm: ZeroOrMore = 1.0
    layer_decay: Annotated[float, Range("a factor above 0, at most 1", lambda x: 0 < x <= 1)] = 1.0
    layer_decay_offset: Annotated[
        int, Range("a number of layers, or 0", lambda x: 0 <= x < 1000)
    ] = 0

    def rate(self, step: float, num_steps: int) -> float:
        """Return the learning rate of a step, counted from 0.

        As in both published forms the first step of a warm-up is 0.

        step: with a fraction where a plan was changed on the way (`training.budget.Schedule`).
        """
        warmup_steps = min(self.warmup_steps, num_steps // 2) or round(self.warmup * num_steps)
        if step < warmup_steps:
            return self.learning_rate * step / warmup_steps
        rest = (num_steps - step) / max(1, num_steps - warmup_steps)
        factors = {
            "linear": rest,
            "cosine": (1 - math.cos(math.pi * rest)) / 2,
            "linear_from_start": 1 - step / num_steps,
            "inverse_sqrt": math.sqrt(max(1, warmup_steps) / max(1, step)),
            "constant": 1.0,
        }
        return self.learning_rate * factors[self.schedule]


@dataclass(frozen=True, kw_only=True)
class Recipe(Settings):
    """A whole pre-training: everything that decides the result, except the text.

    title: a name for people.
    context: of the objectives "skip_gram" and "cbow".
    objectives: what is learned; (): masked_lm, or causal_lm if the encoder reads from left to
        right, or permutation_lm if it reads distances from both sides, or skip_gram for static
        vectors, or forward_lm and backward_lm for ELMo, with half of the weight each, and what the
        format of the sequences has targets for. The first one chooses the best checkpoint.
    initialization: "published": everything at random (static vectors: a uniform distribution from
        -1 to 1 over twice their width, as in word2vec's code; ELMo: as in the code of its authors);
        "xavier": matrices from a uniform
        distribution by their two widths (Glorot and Bengio 2010, equation 16), embeddings with the
        deviation hidden_size ** -0.5 (the code of Vaswani et al. 2017); "scaled_residual": as
        "published", and the matrices that lead into the residual stream divided by the root of
        their number (Radford et al. 2019, section 2.3), and that of a `task_transform`;
        "neighbours": the first layer starts with attention to the neighbouring tokens
        (`models.transformer.init_local_attention`), which a small budget has no time to learn, and
        the position embeddings are not trained.
    generator_size: of the objective "replaced_token": the hidden size of the generator as a
        fraction of the encoder's.
    temperature: of the objective "distillation": logits are divided by it.
    label_smoothing: of the losses of tokens: the fraction of the target probability that is spread
        over the vocabulary.
    teacher_layers: layers of the teacher; 0: twice those of the encoder, until there is a teacher.
    seed: of all random numbers.
    """

    title: str
    train: TrainConfig
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    objectives: tuple[ObjectiveConfig, ...] = ()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    initialization: Literal["published", "xavier", "scaled_residual", "neighbours"] = "published"
    generator_size: FractionAboveZero = 0.25
    temperature: AboveZero = 2.0
    label_smoothing: FractionBelowOne = 0.0
    teacher_layers: SizeOrZero = 0
    seed: Seed = 0

    def rules(self) -> Iterable[tuple[object, str]]:
        """Yield conditions that the fields must fulfil together, each with its error."""
        c = self.encoder
        length = self.train.sequence_length
        rate = self.optimizer.learning_rate
        format = self.sampling.format
        sampler = FORMATS[self.sampling.format]
        kinds = [o.kind for o in self.objectives]
        other_kinds = [kind for kind in kinds if kind not in ("masked_lm", "replaced_token")]
        required: dict[str, object] = {}
        if self.initialization == "neighbours":  # into a learned table, under a norm
            required = {
                "position_embedding_type": "learned",
                "embedding_norm": True,
                "direction": "bidirectional",
            }
            # a projection that loses nothing
            required |= {"embedding_size": min(c.embedding_size, c.hidden_size)}
        elif self.initialization == "scaled_residual":
            required = {"kind": "transformer"}
        yield from [
            (
                length <= c.max_position_embeddings,
                f"train.phases ask for {length} tokens, but "
                f"encoder.max_position_embeddings is {c.max_position_embeddings}",
            ),
            (
                max(1, c.type_vocab_size) >= sampler.segments
                or c.decoder is not None
                or c.relative_segments,
                f"encoder.type_vocab_size is {c.type_vocab_size}, but sampling.format {format!r} "
                f"has {sampler.segments} segments: expected sampling.format = 'full_sentences'",
            ),
            (
                len(set(kinds)) == len(kinds),
                f"objectives: {', '.join(kinds)}: expected each kind once",
            ),
            (
                not kinds or len(TOKEN_OBJECTIVES & {*kinds}) == 1,
                "objectives: expected masked_lm, causal_lm, permutation_lm, translation, "
                "forward_lm, skip_gram or cbow, one of them",
            ),
            (
                (self.token_objective in CONTEXT_OBJECTIVES) == (c.kind == "static")
                and (c.kind != "static" or (format == "sentences" and len(self.weights) == 1)),
                "static vectors (encoder.kind = 'static') have sampling.format = 'sentences' and "
                "one objective, skip_gram or cbow, which no other network has",
            ),
            (
                {*DIRECTED_OBJECTIVES}.isdisjoint(self.weights)
                if c.kind != "elmo"
                else {*DIRECTED_OBJECTIVES} == self.weights.keys() and format == "full_sentences",
                "ELMo (encoder.kind = 'elmo') has sampling.format = 'full_sentences' and both "
                "objectives, forward_lm and backward_lm, which no other network has",
            ),
            (
                (self.vocabulary.algorithm == "spelled_words") == (c.kind == "elmo"),
                f"vocabulary.algorithm {self.vocabulary.algorithm!r} with encoder.kind {c.kind!r}: "
                "expected 'spelled_words' with kind = 'elmo', and only there",
            ),
            (
                c.kind not in ("static", "elmo") or self.initialization == "published",
                f"initialization {self.initialization!r} with encoder.kind {c.kind!r}: expected "
                "initialization = 'published'",
            ),
            (
                (self.token_objective == "translation") == (c.decoder is not None)
                and (c.decoder is None or format == "parallel"),
                "a network with a decoder has sampling.format = 'parallel' and the objective "
                "translation, which no other network has",
            ),
            (
                c.decoder is None
                or not (self.vocabulary.lowercase or self.vocabulary.algorithm == "wordpiece"),
                "a translation has the characters of the text: expected vocabulary.algorithm = "
                "'bpe' and vocabulary.lowercase = false",
            ),
            (
                self.token_objective != "causal_lm" or c.direction == "left_to_right",
                f"objectives: causal_lm with encoder.direction {c.direction!r}, which sees the "
                "next token: expected encoder.direction = 'left_to_right'",
            ),
            (
                (self.token_objective == "permutation_lm") == c.has_query
                and (not c.has_query or len(self.weights) == 1),
                "XLNet (encoder.position_embedding_type = 'relative' and encoder.direction = "
                "'bidirectional') has one objective, permutation_lm, which no other network has",
            ),
            (
                not c.has_query or format in ("one_segment", "stream"),
                f"sampling.format {format!r} with encoder.position_embedding_type 'relative' and "
                "encoder.direction 'bidirectional': expected sampling.format = 'one_segment', or "
                "'stream'",
            ),
            (
                "replaced_token" not in kinds or not other_kinds,
                f"objectives: {', '.join(other_kinds)} and replaced_token exclude each other: "
                "expected one of them",
            ),
            *(
                (
                    kind
                    in (
                        self.token_objective,
                        "replaced_token",
                        "backward_lm",
                        *TEACHER_OBJECTIVES,
                        *sampler.targets,
                    ),
                    f"objectives: {kind} has no targets in sequences of "
                    f"sampling.format {format!r}: leave it out, or choose another format",
                )
                for kind in self.weights
            ),
            *(
                (
                    getattr(c, name) == value,
                    f"initialization {self.initialization!r} with encoder.{name} "
                    f"{getattr(c, name)!r}: expected {value!r}, or initialization = 'published'",
                )
                for name, value in required.items()
            ),
            (
                c.kind == "transformer" or self.train.precision != "bf16",
                f"train.precision 'bf16' with encoder.kind {c.kind!r}, which is computed in fp32: "
                "expected train.precision = 'auto'",
            ),
            (
                not self.sampling.lanes or len(self.train.phases) == 1,
                f"sampling.lanes with {len(self.train.phases)} train.phases: expected one phase, "
                "in which each sequence continues one of the step before",
            ),
            (
                not c.memory_length or self.sampling.lanes,
                f"encoder.memory_length is {c.memory_length} without sampling.lanes, so that "
                "sequences do not continue those before them: expected sampling.lanes = true, or "
                "memory_length = 0",
            ),
            (
                not c.memory_length or self.weights.keys() <= MEMORY_OBJECTIVES,
                f"encoder.memory_length is {c.memory_length} with the objectives "
                f"{', '.join(self.weights)}: expected "
                f"{' or '.join(sorted(MEMORY_OBJECTIVES))} alone, or memory_length = 0",
            ),
            (
                c.initializer_range > 0,
                f"encoder.initializer_range is {c.initializer_range}: expected more than 0",
            ),
            (
                rate > 0,
                "optimizer.learning_rate is 0: expected the rate, which a pre-training does not "
                "choose",
            ),
        ]
        if "replaced_token" in kinds:
            c.generator(self.generator_size)  # refuses sizes without meaning

    @property
    def weights(self) -> dict[ObjectiveKind, float]:
        """The weight of each objective, by kind."""
        if self.encoder.kind == "elmo" and not self.objectives:
            return dict.fromkeys(DIRECTED_OBJECTIVES, 1 / len(DIRECTED_OBJECTIVES))
        token_objective = "masked_lm"
        if self.encoder.decoder is not None:
            token_objective = "translation"
        elif self.encoder.kind == "static":
            token_objective = "skip_gram"
        elif self.encoder.direction == "left_to_right":
            token_objective = "causal_lm"
        elif self.encoder.has_query:
            token_objective = "permutation_lm"
        kinds = [token_objective, *FORMATS[self.sampling.format].targets]
        return {o.kind: o.weight for o in self.objectives} or {
            cast(ObjectiveKind, kind): 1.0 for kind in kinds
        }

    @property
    def token_objective(self) -> TokenObjective:
        """How tokens are predicted."""
        kinds = (kind for kind in self.weights if kind in TOKEN_OBJECTIVES)
        return cast(TokenObjective, next(kinds, "masked_lm"))

    @property
    def predictions(self) -> float:
        """Predicted tokens per token."""
        rate = self.masking.rate
        rates = {"masked_lm": rate, "permutation_lm": rate, "translation": 0.5}
        return rates.get(self.token_objective, 1.0)

    @property
    def distils(self) -> bool:
        """Whether there is a teacher."""
        return not TEACHER_OBJECTIVES.isdisjoint(self.weights)

    @property
    def teacher(self) -> EncoderConfig:
        """The size of the teacher: a student has its width."""
        layers = self.teacher_layers or 2 * self.encoder.num_hidden_layers
        return replace(self.encoder, num_hidden_layers=layers)

    def flops_per_token(self, sequence_length: int, finished: float = 1.0) -> float:
        """Matrix-product operations of a training per token, as `EncoderConfig.flops_per_token`."""
        if (
            self.token_objective in CONTEXT_OBJECTIVES
        ):  # products with a block of words, and another
            return 3 * 2 * 2 * BLOCK * self.encoder.hidden_size
        # all tokens are predicted; of the teacher a forward pass, a third of a training
        if self.distils:
            student = self.encoder.flops_per_token(sequence_length, 1 + self.predictions)
            return student + self.teacher.flops_per_token(sequence_length, 1.0) / 3
        if self.token_objective == "permutation_lm":  # predicted tokens pass all layers once more
            c = self.encoder
            second = 3 * self.predictions * c.stack_flops(sequence_length, 1.0)
            return c.flops_per_token(sequence_length, self.predictions, 0.0) + second
        if "replaced_token" not in self.weights:
            return self.encoder.flops_per_token(sequence_length, self.predictions, finished)
        generator = self.encoder.generator(self.generator_size)
        encoder = self.encoder.flops_per_token(sequence_length, 0.0)
        return generator.flops_per_token(sequence_length, self.predictions, finished) + encoder

    def with_steps(self, steps: Sequence[int]) -> "Recipe":
        """Return the recipe with other numbers of steps of its phases."""
        phases = tuple(
            replace(phase, num_steps=count)
            for phase, count in zip(self.train.phases, steps, strict=True)
        )
        return replace(self, train=replace(self.train, phases=phases))

    def training_flops(self) -> float:
        """Matrix-product operations of the whole training."""
        total = 0.0
        for p in self.train.phases:
            finished = min(1, self.predictions + 1 / p.sequence_length)
            total += (
                p.num_steps
                * p.batch_size
                * p.sequence_length
                * self.flops_per_token(p.sequence_length, finished)
            )
        return total

    def with_objectives(self) -> "Recipe":
        """Return the recipe with its objectives listed, also those that were left to the format."""
        objectives = tuple(
            ObjectiveConfig(kind=kind, weight=weight) for kind, weight in self.weights.items()
        )
        return replace(self, objectives=objectives)


def packaged_recipes(folder: str = "") -> dict[str, str]:
    """Return the texts of the recipes that come with the package, by name.

    They are those of pre-training or in "finetuning".
    """
    files = sorted((Path(__file__).parents[1] / "recipes" / folder).glob("*.toml"))
    return {path.stem: path.read_text(encoding="utf-8") for path in files}


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a TOML file or a name.

    It has the `table.field=value` overrides of the command line.

    Raises:
        UsageError: no such recipe; unknown field, wrong type, missing or refused value: with its
            path.
    """
    text = read_recipe_text(name, "recipe", packaged_recipes())
    return parse_as(Recipe, text, name, overrides)


def family_recipe(name: str | None) -> Recipe | None:
    """Return the recipe of a family that is named without a size, or None.

    Such names are roberta or gpt2: it is that of its base model, else of a small one, else of
    another. A budget chooses the size. None: no family has this name; or its networks are no
    Transformers, translate, or have a memory, because a budget does not choose their size.
    """
    known = packaged_recipes()
    if name is None or name.endswith(".toml") or (name in known and "-" in name):
        return None
    sizes = [size for size in known if size == name or size.startswith(f"{name}-")]
    if not sizes:
        return None
    ranks = [name, f"{name}-base", f"{name}-small"]
    recipe = load_recipe(min(sizes, key=lambda size: (*(size != rank for rank in ranks), size)))
    c = recipe.encoder
    has_sizes = c.decoder is None and c.kind == "transformer" and not c.memory_length
    return recipe if has_sizes else None


MIN_LENGTH = 8  # tokens of a fine-tuning sequence: shorter windows would have no room for text
LONG_TEXT = 2048  # tokens that the windows over a text cover, if their number is not set


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(Settings):
    """Everything that decides the result of a fine-tuning, except the model and the data.

    title: a name for people.
    epochs: passes over the training data; 0: enough for MIN_STEPS steps and LABEL_STEPS for each
        label of texts, at most MANY_EPOCHS, or FEW_STEPS steps (Mosbach et al. 2021: small data
        sets need many).
    batch_size: items per step.
    max_length: tokens per sequence; 0: the limit of the model, at most 512. Short texts are not
        padded to it.
    windows: the largest number of windows over a long text to be classified, or to which a number
        belongs; each has up to `max_length` tokens, and they overlap by half. 0 or 1: texts are
        truncated. -1: as many as LONG_TEXT tokens need, if more than 5 % of the rows are longer
        than one window, else 0.
    evaluations: on dev, per epoch.
    select: the state that is kept: "last", or "best" on dev, which then says nothing about other
        rows.
    patience: with "best": evaluations without a better score after which the training ends; 0: it
        never ends early.
    learned_loss: the training ends early once the loss of every step of a fifth of its steps
        (LEARNED_SHARE), of a whole epoch, and of LEARNED_STEPS steps is below this: the learning
        rate then falls to zero in a tenth of the steps done. 0: it does not end early.
    dropout: of the network; -1: the value of the model's configuration.
    head_deviation: standard deviation of the weights of a new classifier of sequences, times the
        root of their number; less for more than two labels; 0: as in the rest of the model. With
        larger weights probabilities can be calibrated: the tanh of a pooler bounds logits.
    class_weights: "balanced": every label has the same weight in the loss, however rare it is.
    label_smoothing: fraction of the target probability that is spread over all labels.
    stride: tokens by which the windows over a long context of a question advance.
    max_question: the largest number of tokens of a question; its end is truncated.
    max_answer: the largest number of tokens of an answer.
    document_context: sentences to be tagged are read with the text of their document around them.
    cloze_steps: before the labelled questions, for a new head: steps on questions that are made
        from the texts (`Featurizer.clozes`); -1: CLOZE_STEPS of the FEW_STEPS of few questions, if
        `epochs` is 0; else none.
    teacher_weight: with a teacher: the fraction of the loss that compares logits with the
        teacher's; the rest is the loss of the labels.
    temperature: logits are divided by it where they are compared with a teacher's (Hinton et al.
        2015, section 2).
    rows_per_label: of the method contrastive: the rows of a label that are in a step together, if
        there are more than `batch_size` rows.
    contrastive_temperature: of the same method: by which cosines are divided (Khosla et al. 2020,
        equation 2).
    lm_weight: of the loss of a causal LM on the training texts, which is added to that of the task
        (Radford et al. 2018, section 3.2); for networks that read from left to right, without an
        LSTM.
    lstm_units: a two-layer bidirectional LSTM with this number of units in each direction reads
        hidden states of the encoder; 0: there is no LSTM.
    lstm_encoder: with an LSTM. "frozen", for tagging and spans: the encoder does not learn (the
        feature-based approach of Devlin et al. 2019, section 5.3). "trained": it learns together
        with the LSTM (section 5.1); of whole texts the LSTM's state of the first token is
        classified.
    feature_layers: the hidden states that the LSTM reads (table 7 of the paper): "embeddings",
        "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all" (without the
        embeddings), or the number of a layer, 0 for the embeddings; "mix": a sum of all, embeddings
        included, with weights that are learned (Peters et al. 2018, equation 1). A trained encoder
        needs those that include the last layer.
    micro_batch_tokens: the largest number of tokens computed at once; larger batches are
        accumulated. 8192, the default, is for CPUs: a GPU takes up to 131,072 instead, as its
        memory allows. Other numbers stay.
    precision: of the network; "auto": bf16 where the hardware is faster with it.
    save_every: steps between checkpoints; 0: every few minutes.
    seed: of the new head, the order of the rows and dropout.
    """

    title: str
    epochs: SizeOrZero = 0
    batch_size: Size = 16
    max_length: Annotated[
        int,
        Range(
            f"{MIN_LENGTH} to {MAX_SIZE:,}, or 0", lambda x: x == 0 or MIN_LENGTH <= x <= MAX_SIZE
        ),
    ] = 0
    windows: Annotated[
        int, Range(f"0 to {MOST_WINDOWS}, or -1", lambda x: -1 <= x <= MOST_WINDOWS)
    ] = -1
    evaluations: Count = 1
    select: Literal["last", "best"] = "last"
    patience: CountOrZero = 4
    learned_loss: BelowHundred = 0.0
    dropout: Annotated[
        float, Range("a number from 0 to below 1, or -1", lambda x: x == -1 or 0 <= x < 1)
    ] = -1.0
    head_deviation: BelowHundred = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    label_smoothing: FractionBelowOne = 0.0
    stride: Size = 128
    max_question: SizeOrZero = 64
    max_answer: Size = 30
    document_context: bool = False
    cloze_steps: Annotated[
        int, Range(f"0 to {MAX_COUNT:,}, or -1", lambda x: -1 <= x <= MAX_COUNT)
    ] = 0
    rows_per_label: Size = 4
    contrastive_temperature: AboveZero = 0.1
    lm_weight: BelowHundred = 0.0
    lstm_units: SizeOrZero = 0
    lstm_encoder: LSTMEncoder = "frozen"
    feature_layers: FeatureLayers = "concat-last-four"
    teacher_weight: Fraction = 0.5
    temperature: AboveZero = 2.0
    micro_batch_tokens: TokenCount = 8192
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    save_every: CountOrZero = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    seed: Seed = 0

    def rules(self) -> Iterable[tuple[object, str]]:
        """Return conditions that the fields must fulfil together, each with its error."""
        layers = self.feature_layers
        trained = self.lstm_encoder == "trained"
        return [
            (
                self.lstm_units or layers == "concat-last-four",
                f"feature_layers {layers!r} without lstm_units: only an "
                f"LSTM reads features: expected lstm_units above 0",
            ),
            (
                self.lstm_units or not trained,
                "lstm_encoder 'trained' without lstm_units: expected lstm_units above 0",
            ),
            (
                not trained
                or not (layers in ("embeddings", "second-to-last") or isinstance(layers, int)),
                f"lstm_encoder 'trained' with feature_layers {layers!r}: layers that are not read "
                "would not be trained: expected feature_layers = 'last'",
            ),
            (
                not self.lm_weight or not self.lstm_units,
                "lm_weight with lstm_units: expected one of them above 0",
            ),
        ]


# Without `epochs`: MIN_STEPS steps or MIN_EPOCHS; of few rows MANY_EPOCHS, or FEW_STEPS steps in at
# most MAX_EPOCHS (docs/experiments, 2026-11-26). Of FEW_STEPS on questions, CLOZE_STEPS are on
# clozes.
LABEL_STEPS = 40
CLOZE_STEPS = 200
MIN_STEPS = 1000
MIN_EPOCHS = 3
MANY_EPOCHS = 20
FEW_STEPS = 400
MAX_EPOCHS = 100
# With a low loss, before a training ends early: steps, and their share of the planned ones.
LEARNED_STEPS = 20
LEARNED_SHARE = 0.2
# at most, and times the rate: of a training that starts from a fitted head
FITTED_EPOCHS = 10
FITTED_RATE = 0.3
# of the method "contrastive"
CONTRASTIVE_EPOCHS = 2
CONTRASTIVE_STEPS = 20
PAPER_GRID = ("batch_size=16,32", "optimizer.learning_rate=5e-05,3e-05,2e-05", "epochs=2,3,4")


def load_finetune_recipe(name: str, overrides: Sequence[str] = ()) -> FinetuneRecipe:
    """Return the recipe of a name or of a TOML file, with `table.field=value` overrides.

    Raises:
        UsageError: no such recipe; unknown field, wrong type or refused value: with its path.
    """
    text = read_recipe_text(name, "fine-tuning recipe", packaged_recipes("finetuning"))
    return parse_as(FinetuneRecipe, text, name, overrides)


def default_max_length(recipe: FinetuneRecipe, max_positions: int) -> int:
    """Tokens of a sequence for a model that reads at most `max_positions`.

    Raises:
        UsageError: the recipe needs longer sequences.
    """
    max_length = recipe.max_length or min(512, max_positions)
    expect(
        max_length <= max_positions,
        f"max_length is {max_length}, but the model reads at most {max_positions} tokens",
    )
    return max_length


def default_rate(c: EncoderConfig) -> float:
    """Return the learning rate of a fine-tuning for the size of a network.

    It is that of BERT-Base; narrower networks need larger ones. Networks with disentangled
    attention need smaller ones, which fall with depth as well: 2e-5 for the base size, as in the
    model card of its authors, who have 4.5e-5 for the small sizes and 6e-6 for the large one.
    """
    rate = 5e-5 * 768 / c.hidden_size
    if c.position_embedding_type == "disentangled":
        rate = min(rate, 2e-5 * 12 * 768 / (c.num_hidden_layers * c.hidden_size))
    return float(f"{rate:.1e}")


def resolve_recipe(
    recipe: FinetuneRecipe, count: int, c: EncoderConfig, labels: int = 0
) -> FinetuneRecipe:
    """Return the recipe with values for its defaults.

    These are epochs and learning rate where they are 0 for "default", and steps on clozes where
    they are -1. count: examples; c: the network; labels: of texts.
    """
    # of an epoch; before the first one
    steps = math.ceil(count / recipe.batch_size)
    clozes = recipe.cloze_steps
    clozes = (
        CLOZE_STEPS * (MANY_EPOCHS * steps < FEW_STEPS and not recipe.epochs)
        if clozes < 0
        else clozes
    )
    most = min(MAX_EPOCHS, max(MANY_EPOCHS, math.ceil((FEW_STEPS - clozes) / steps)))
    epochs = recipe.epochs or min(
        most, max(MIN_EPOCHS, math.ceil(max(MIN_STEPS, LABEL_STEPS * labels) / steps))
    )
    rate = recipe.optimizer.learning_rate or default_rate(c)
    return replace(
        recipe,
        epochs=epochs,
        cloze_steps=clozes,
        optimizer=replace(recipe.optimizer, learning_rate=rate),
    )


def resolve_contrastive(
    recipe: FinetuneRecipe, requested: FinetuneRecipe, count: int
) -> FinetuneRecipe:
    """Return a resolved recipe for the method "contrastive".

    It has CONTRASTIVE_EPOCHS epochs, or more for CONTRASTIVE_STEPS steps, where the `requested`
    recipe leaves the choice. count: examples.
    """
    steps = math.ceil(count / recipe.batch_size)
    epochs = max(CONTRASTIVE_EPOCHS, math.ceil(CONTRASTIVE_STEPS / steps))
    return replace(recipe, epochs=requested.epochs or epochs)


def resolve_fitted(recipe: FinetuneRecipe, requested: FinetuneRecipe) -> FinetuneRecipe:
    """Return a resolved recipe for a training that starts from a fitted head.

    It is changed where the `requested` recipe leaves the choice.
    """
    epochs = requested.epochs or min(FITTED_EPOCHS, recipe.epochs)
    rate = requested.optimizer.learning_rate or float(
        f"{FITTED_RATE * recipe.optimizer.learning_rate:.1e}"
    )
    return replace(recipe, epochs=epochs, optimizer=replace(recipe.optimizer, learning_rate=rate))
