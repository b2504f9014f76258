"""The recipe of a pre-training: a TOML file, in memory a frozen dataclass. Unknown names and wrong types are errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, ClassVar, Literal, cast

from bertworks.batching.masking import MaskingConfig
from bertworks.batching.sampling import FORMATS, SamplingConfig
from bertworks.config import parse_as, read_recipe_text
from bertworks.models.config import EncoderConfig
from bertworks.text.vocabulary import VocabularyConfig
from bertworks.training.optimization import OptimizerConfig

HELD_OUT_LENGTH = 128
MIN_LENGTH = 5  # of a sequence; the sampler refuses lengths that are too small for the special tokens


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run. The original trains 9 of 10 steps at length 128 and the rest at 512 (Devlin et al. 2019,
    appendix A.2).

    num_steps: updates of the parameters.
    batch_size: sequences in a step.
    sequence_length: the largest number of tokens of a sequence, special tokens included.
    """

    num_steps: int
    batch_size: int
    sequence_length: int = 128

    def __post_init__(self) -> None:
        if min(self.num_steps, self.batch_size) < 1:
            raise ValueError("num_steps and batch_size: expected 1 or more")
        if self.sequence_length < MIN_LENGTH:
            raise ValueError(f"sequence_length is {self.sequence_length}: expected {MIN_LENGTH} or more")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The steps of a run, and how they are computed.

    phases: one after the other, under one learning-rate schedule.
    micro_batch_tokens: the largest number of tokens computed at once; larger batches are accumulated.
    precision: of the network; "auto": bf16 where the hardware is faster with it.
    gradient_checkpointing: compute each block again in the backward pass: less memory, a third more arithmetic.
    held_out_sequences: of 128 tokens, and about as many tokens in sequences of the greatest length.
    evaluate_every, save_every: in steps; 0: about twenty times in a run, and every few minutes.
    """

    phases: tuple[Phase, ...]
    micro_batch_tokens: int = 8192
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_checkpointing: bool = False
    held_out_sequences: int = 256
    evaluate_every: int = 0
    save_every: int = 0

    def __post_init__(self) -> None:
        if min(self.micro_batch_tokens, self.held_out_sequences) < 1:
            raise ValueError("micro_batch_tokens and held_out_sequences: expected 1 or more")
        if min(self.evaluate_every, self.save_every) < 0:
            raise ValueError("evaluate_every and save_every: expected a number of steps, or 0")

    @property
    def num_steps(self) -> int:
        return sum(phase.num_steps for phase in self.phases)

    @property
    def sequence_length(self) -> int:
        """The longest of all phases."""
        return max(phase.sequence_length for phase in self.phases)

    @property
    def held_out_length(self) -> int:
        """The length of most held-out sequences: equal in all runs, so that their figures compare."""
        return min(HELD_OUT_LENGTH, self.sequence_length)

    @property
    def num_tokens(self) -> int:
        """The largest number of tokens: short sequences have fewer."""
        return sum(p.num_steps * p.batch_size * p.sequence_length for p in self.phases)


ObjectiveKind = Literal["masked_lm", "next_sentence"]


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """An objective (`training.objectives.OBJECTIVES`).

    kind: "masked_lm" (predict masked tokens) or "next_sentence" (does segment B follow segment A?).
    weight: the factor of its loss in the sum.
    """

    kind: ObjectiveKind
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"weight is {self.weight}: expected a number above 0")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole pre-training: everything that decides the result, except the text.

    title: a name for people.
    objectives: what is learned; (): masked_lm, and what the format of the sequences has targets for. The first one
        chooses the best checkpoint.
    initialization: "published": everything at random; "neighbours": the first layer starts with attention to the
        neighbouring tokens (`models.initialization`), which a small budget has no time to learn, and the position
        embeddings are not trained.
    seed: of all random numbers.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {"sampling.pairs": "sampling.format"}  # of fields, for one release

    title: str
    train: TrainConfig
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    objectives: tuple[ObjectiveConfig, ...] = ()
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    initialization: Literal["published", "neighbours"] = "published"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.train.phases:
            raise ValueError("train.phases is empty: expected at least one phase")
        if self.train.sequence_length > self.encoder.max_position_embeddings:
            raise ValueError(
                f"train.phases ask for {self.train.sequence_length} tokens, but encoder.max_position_embeddings is "
                f"{self.encoder.max_position_embeddings}"
            )
        self._check_objectives()
        self._check_initialization()
        if not self.encoder.initializer_range > 0:
            raise ValueError(f"encoder.initializer_range is {self.encoder.initializer_range}: expected more than 0")
        if not self.optimizer.learning_rate:
            raise ValueError("optimizer.learning_rate is 0: expected the rate, which a pre-training does not choose")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed}: expected a whole number from 0 to {(1 << 32) - 1:,}")

    @property
    def weights(self) -> dict[ObjectiveKind, float]:
        """The weight of each objective, by kind."""
        kinds = ["masked_lm", *FORMATS[self.sampling.format].targets]
        return {o.kind: o.weight for o in self.objectives} or {cast(ObjectiveKind, kind): 1.0 for kind in kinds}

    def with_objectives(self) -> "Recipe":
        """The recipe with its objectives listed, also those that were left to the format."""
        objectives = tuple(ObjectiveConfig(kind=kind, weight=weight) for kind, weight in self.weights.items())
        return replace(self, objectives=objectives)

    def _check_objectives(self) -> None:
        format, sampler = self.sampling.format, FORMATS[self.sampling.format]
        if self.encoder.type_vocab_size < sampler.segments:
            raise ValueError(
                f"encoder.type_vocab_size is {self.encoder.type_vocab_size}, but sampling.format {format!r} has "
                f"{sampler.segments} segments: expected sampling.format = 'full_sentences'"
            )
        kinds = [o.kind for o in self.objectives]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"objectives: {', '.join(kinds)}: expected each kind once")
        if kinds and "masked_lm" not in kinds:
            raise ValueError("objectives has no masked_lm: tokens are masked, so expected a loss for them")
        for kind in self.weights:
            if kind not in ("masked_lm", *sampler.targets):
                raise ValueError(
                    f"objectives: {kind} has no targets in sequences of sampling.format {format!r}: "
                    f"leave it out, or choose another format"
                )

    def _check_initialization(self) -> None:
        """Local attention is written into a learned position table of the hidden size, under a norm."""
        if self.initialization == "published":
            return
        needed = {"position_embedding_type": "learned", "embedding_norm": True, "direction": "bidirectional"}
        needed["embedding_size"] = self.encoder.hidden_size if self.encoder.embedding_size else 0
        for name, value in needed.items():
            if getattr(self.encoder, name) != value:
                raise ValueError(
                    f"initialization {self.initialization!r} with encoder.{name} {getattr(self.encoder, name)!r}: "
                    f"expected {value!r}, or initialization = 'published'"
                )


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a TOML file or a name, with the `table.field=value` overrides of the command line.

    Raises:
        UsageError: no such recipe; unknown field, wrong type, missing or refused value: with its path.
    """
    text = read_recipe_text(
        name, "recipe", recipe_names(), lambda: (_folder() / f"{name}.toml").read_text(encoding="utf-8")
    )
    return parse_recipe(text, name, overrides)


def parse_recipe(text: str, where: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that a TOML text describes. `where` is its name in errors."""
    return parse_as(Recipe, text, where, overrides)


def _folder() -> Any:
    return resources.files("bertworks") / "recipes"
