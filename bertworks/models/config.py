"""A network, composed of its parts, and the published sizes.

- `EncoderConfig`: the settings of all parts. Its defaults are BERT-Base (Devlin et al. 2019)
- `PRESETS`: published models as points on these axes; `BERT_SIZES`: the BERTs among them
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertworks.errors import check
from bertworks.models.attention import TransformerConfig
from bertworks.models.embeddings import EmbeddingsConfig
from bertworks.models.heads import Head, HeadsConfig

_TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(HeadsConfig, TransformerConfig, EmbeddingsConfig):
    """The shape of a network: what its parts have, under the same names.

    `EmbeddingsConfig`, `TransformerConfig` and `HeadsConfig` describe their fields, check them and
    count their parameters and operations; docs/reference/recipes.md lists all fields. The defaults
    are those of BERT-Base (Devlin et al. 2019, section 3).

    family: the name table of its files (checkpoints/families).

    Raises:
        ValueError: a size that is not positive or absurdly large; values that exclude each other.
    """

    family: str = "bert"

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.direction != "left_to_right" or not self.pooler.startswith("first"),
            f"pooler {self.pooler!r} with direction 'left_to_right': the first token has read "
            "nothing; use 'last' or 'last_tanh'",
        )
        check(
            self.direction != "right_to_left" or not self.pooler.startswith("last"),
            f"pooler {self.pooler!r} with direction 'right_to_left': the last token has read "
            "nothing; use 'first_tanh'",
        )

    def generator(self, fraction: float) -> "EncoderConfig":
        """Return the network that replaces tokens for this one (Clark et al. 2020, section 3.2).

        It has as many layers, a fraction of the hidden size, heads of 64 dimensions, embeddings of
        the same width.
        """
        hidden = max(1, round(self.hidden_size * fraction))
        heads = next(n for n in range(max(1, hidden // 64), 0, -1) if hidden % n == 0)
        return replace(
            self,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            embedding_size=self.embedding_width,
        )

    def num_parameters(self, *heads: Head) -> int:
        """Parameters of the encoder and of the heads that are named.

        Shared and tied ones count once.
        """
        encoder = self.num_embedding_parameters + self.num_stack_parameters
        return encoder + self.num_head_parameters(*heads)

    def flops_per_token(
        self, sequence_length: int, predictions: float, finished: float = 1.0
    ) -> float:
        """Matrix-product operations of a training per token (a multiply-add counts 2).

        predictions: predicted tokens per token.
        finished: fraction of the tokens whose last layer is computed beyond queries, keys and
        values. Training is three forward passes: the backward pass has two products for each of the
        forward pass.
        """
        encoder = self.embedding_flops + self.stack_flops(sequence_length, finished)
        return 3 * (encoder + predictions * self.lm_head_flops)


BERT = EncoderConfig()
# `like` in a preset names another one, of which it takes what it does not have itself.
PRESETS = {
    name: EncoderConfig(**_TABLES.get(table.pop("like", ""), {}) | table)
    for name, table in _TABLES.items()
}
BERT_SIZES = {
    name.removeprefix("bert-"): c for name, c in PRESETS.items() if name.startswith("bert-")
}
