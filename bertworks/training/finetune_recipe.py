"""The recipe of a fine-tuning: everything that decides its numbers, except model and data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bertworks.config import dump_recipe, parse_as, read_recipe_text
from bertworks.errors import UsageError
from bertworks.models.config import EncoderConfig
from bertworks.training.optimization import OptimizerConfig


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """epochs: times that all training data is seen; 0: as many as give LEAST_STEPS steps, from 3 to 20 (Mosbach et al.
        2021: small sets need many).
    batch_size: items in a step.
    max_length: tokens of a sequence; 0: as many as the model reads, but 512 at most. Short texts cost what they are,
        not what the longest may be.
    evaluations: on the dev set, in an epoch.
    patience: evaluations without a better score after which the training ends; 0: it never ends early.
    dropout: of the network; -1: what its configuration says.
    reinitialized_layers: so many of the last layers, and the pooler, begin at random (Zhang et al. 2021).
    class_weights: "balanced": errors on rare labels count more, so that all labels count the same in all.
    label_smoothing: share of the wanted probability that is spread over all labels.
    stride, max_question, max_answer: see `data.questions.Reading` and `learn.answers.Decoding`.
    document_context: sentences to be tagged are read with their document around them.
    recurrent_units: tagging and spans: the encoder is frozen, and a two-layer bidirectional LSTM with so many units in
        each direction reads its last four layers (the feature-based approach of Devlin et al. 2019, section 5.3); 0:
        the encoder itself is fine-tuned.
    """

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
    recurrent_units: int = 0
    micro_batch_tokens: int = 8192
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    save_every: int = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.batch_size, self.evaluations, self.micro_batch_tokens, self.stride, self.max_answer) < 1:
            raise ValueError("batch_size, evaluations, micro_batch_tokens, stride and max_answer: expected 1 or more")
        least = (self.epochs, self.patience, self.reinitialized_layers, self.save_every, self.max_question)
        if min(*least, self.recurrent_units) < 0:
            raise ValueError(
                "epochs, patience, reinitialized_layers, save_every, max_question and recurrent_units: expected 0 or "
                "more"
            )
        if self.recurrent_units and self.reinitialized_layers:
            raise ValueError("recurrent_units freezes the encoder: reinitialized_layers would leave it at random")
        if self.max_length and self.max_length < MIN_LENGTH:
            raise ValueError(f"max_length is {self.max_length}: expected at least {MIN_LENGTH}, or 0")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing is {self.label_smoothing}: expected a share from 0 to below 1")
        if self.dropout != -1 and not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}: expected a number from 0 to below 1, or -1")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed}: expected a whole number from 0 to {(1 << 32) - 1:,}")


MIN_STEPS = 1000
MIN_LENGTH = 8  # tokens of a sequence: windows of fewer would have no room for a text
REFERENCE_RATE = 768, 5e-5  # of a network so wide
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
    # The same, section 5.3: 768 units over the frozen encoder. The rate is that of a network learned from nothing.
    "features": FinetuneRecipe(
        title="features",
        batch_size=32,
        patience=0,  # for some epochs it finds nothing, and then everything
        recurrent_units=768,
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup=0.1),
    ),
}
PAPER_GRID = {"batch_size": (16, 32), "optimizer.learning_rate": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}


def load_finetune_recipe(name: str, overrides: Sequence[str] = ()) -> FinetuneRecipe:
    """The recipe of a name or of a TOML file, with the `table.field=value` words of the command line put in.

    Raises:
        UsageError: no such recipe; unknown field, wrong type or refused value: with its path.
    """
    text = read_recipe_text(name, "fine-tuning recipe", list(RECIPES), lambda: dump_recipe(RECIPES[name]))
    return parse_as(FinetuneRecipe, text, name, overrides)


def default_max_length(recipe: FinetuneRecipe, longest: int) -> int:
    """Tokens of a sequence, of a network that reads so many.

    Raises:
        UsageError: the recipe asks for more.
    """
    max_length = recipe.max_length or min(512, longest)
    if max_length > longest:
        raise UsageError(f"max_length is {max_length}, but the model reads at most {longest} tokens")
    return max_length


def default_learning_rate(hidden_size: int) -> float:
    """The learning rate that a network of this width takes: smaller networks take, and need, larger ones."""
    width, rate = REFERENCE_RATE
    return float(f"{rate * width / hidden_size:.1e}")


def resolve_recipe(recipe: FinetuneRecipe, count: int, c: EncoderConfig) -> FinetuneRecipe:
    """Everything that was left open, decided. count: items to train on; c: the network."""
    steps_per_epoch = math.ceil(count / recipe.batch_size)
    epochs = recipe.epochs or min(20, max(3, math.ceil(MIN_STEPS / steps_per_epoch)))
    rate = recipe.optimizer.learning_rate or default_learning_rate(c.hidden_size)
    return replace(
        recipe,
        epochs=epochs,
        max_length=default_max_length(recipe, c.max_position_embeddings),
        optimizer=replace(recipe.optimizer, learning_rate=rate),
    )
