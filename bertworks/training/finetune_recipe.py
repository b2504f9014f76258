"""The recipe of a fine-tuning: everything that decides its numbers, except model and data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from bertworks.config import dump_recipe, parse_as, read_recipe_text
from bertworks.errors import UsageError
from bertworks.models.config import EncoderConfig
from bertworks.training.optimization import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Everything that decides the result of a fine-tuning, except the model and the data.

    title: a name for people.
    epochs: passes over the training data; 0: enough for MIN_STEPS steps, from 3 to 20 (Mosbach et al. 2021: small
        data sets need many).
    batch_size: items per step.
    max_length: tokens per sequence; 0: the limit of the model, at most 512. Short texts are not padded to it.
    evaluations: on dev, per epoch.
    patience: evaluations without a better score after which the training ends; 0: it never ends early.
    dropout: of the network; -1: the value of the model's configuration.
    reinitialized_layers: number of last layers that start at random, like the pooler (Zhang et al. 2021).
    class_weights: "balanced": every label has the same weight in the loss, however rare it is.
    label_smoothing: fraction of the target probability that is spread over all labels.
    stride: tokens by which the windows over a long context of a question advance.
    max_question: the largest number of tokens of a question; its end is truncated.
    max_answer: the largest number of tokens of an answer.
    document_context: sentences to be tagged are read with the text of their document around them.
    lstm_units: tagging and spans: the encoder is frozen, and a two-layer bidirectional LSTM with this number of units
        in each direction reads its last four layers (the feature-based approach of Devlin et al. 2019, section 5.3); 0:
        the encoder itself is fine-tuned.
    micro_batch_tokens: the largest number of tokens computed at once; larger batches are accumulated.
    precision: of the network; "auto": bf16 where the hardware is faster with it.
    save_every: steps between checkpoints; 0: every few minutes.
    seed: of the new head, the order of the rows and dropout.
    """

    ALIASES: ClassVar[Mapping[str, str]] = {"recurrent_units": "lstm_units"}  # of fields, for one release

    title: str
    epochs: int = 0
    batch_size: int = 16
    max_length: int = 0
    evaluations: int = 1
    patience: int = 4
    dropout: float = -1.0
    reinitialized_layers: int = 0
    class_weights: Literal["none", "balanced"] = "none"
    label_smoothing: float = 0.0
    stride: int = 128
    max_question: int = 64
    max_answer: int = 30
    document_context: bool = False
    lstm_units: int = 0
    micro_batch_tokens: int = 8192
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    save_every: int = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "evaluations", "micro_batch_tokens", "stride", "max_answer"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected 1 or more")
        for name in ("epochs", "patience", "reinitialized_layers", "save_every", "max_question", "lstm_units"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: expected 0 or more")
        if self.lstm_units and self.reinitialized_layers:
            raise ValueError("lstm_units freezes the encoder: reinitialized_layers would leave it at random")
        if self.max_length and self.max_length < MIN_LENGTH:
            raise ValueError(f"max_length is {self.max_length}: expected at least {MIN_LENGTH}, or 0")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}: expected a fraction from 0 to below 1")
        if self.dropout != -1 and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: expected a number from 0 to below 1, or -1")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed}: expected an integer from 0 to {(1 << 32) - 1:,}")


MIN_STEPS = 1000
MIN_LENGTH = 8  # tokens of a sequence: shorter windows would have no room for text
REFERENCE_RATE = 768, 5e-5  # hidden size and learning rate of BERT-Base
RECIPES = {
    # Mosbach et al. 2021: bias correction, a warm-up, long enough.
    "stable": FinetuneRecipe(title="stable", optimizer=OptimizerConfig(learning_rate=0.0, warmup=0.1)),
    # Devlin et al. 2019, appendix A.3, as released: 3 epochs, no bias correction, the best of the grid on dev.
    "paper": FinetuneRecipe(
        title="paper",
        epochs=3,
        batch_size=32,
        patience=0,
        optimizer=OptimizerConfig(learning_rate=5e-5, warmup=0.1, bias_correction=False, schedule="linear_from_start"),
    ),
    # The same, section 5.3: 768 units on the frozen encoder. The learning rate suits a network that starts at random.
    "feature_based": FinetuneRecipe(
        title="feature_based",
        batch_size=32,
        patience=0,  # scores stay near zero for some epochs, then rise
        lstm_units=768,
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup=0.1),
    ),
}
ALIASES = {"features": "feature_based"}  # of recipes, for one release
PAPER_GRID = {"batch_size": (16, 32), "optimizer.learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}


def load_finetune_recipe(name: str, overrides: Sequence[str] = ()) -> FinetuneRecipe:
    """The recipe of a name or of a TOML file, with `table.field=value` overrides.

    Raises:
        UsageError: no such recipe; unknown field, wrong type or refused value: with its path.
    """
    name = ALIASES.get(name, name)
    text = read_recipe_text(name, "fine-tuning recipe", list(RECIPES), lambda: dump_recipe(RECIPES[name]))
    return parse_as(FinetuneRecipe, text, name, overrides)


def default_max_length(recipe: FinetuneRecipe, max_positions: int) -> int:
    """Tokens of a sequence for a model that reads at most `max_positions`.

    Raises:
        UsageError: the recipe needs longer sequences.
    """
    max_length = recipe.max_length or min(512, max_positions)
    if max_length > max_positions:
        raise UsageError(f"max_length is {max_length}, but the model reads at most {max_positions} tokens")
    return max_length


def default_learning_rate(hidden_size: int) -> float:
    """The learning rate for this hidden size: smaller networks need larger ones."""
    width, rate = REFERENCE_RATE
    return float(f"{rate * width / hidden_size:.1e}")


def resolve_recipe(recipe: FinetuneRecipe, count: int, c: EncoderConfig) -> FinetuneRecipe:
    """The recipe with values for everything that is 0 for "default". count: training examples; c: the network."""
    steps_per_epoch = math.ceil(count / recipe.batch_size)
    epochs = recipe.epochs or min(20, max(3, math.ceil(MIN_STEPS / steps_per_epoch)))
    rate = recipe.optimizer.learning_rate or default_learning_rate(c.hidden_size)
    return replace(
        recipe,
        epochs=epochs,
        max_length=default_max_length(recipe, c.max_position_embeddings),
        optimizer=replace(recipe.optimizer, learning_rate=rate),
    )
