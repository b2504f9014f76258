"""What can vary in an encoder: one field, one axis. Not here: anything about data, objectives or training.

The published sizes as points on the axes of `EncoderConfig` (Devlin et al. 2019; Turc et al. 2019, table 1).
"""

from dataclasses import dataclass, replace
from typing import Literal

LIMITS = {  # beyond these a configuration is a mistake or an attack, not a model
    "vocab_size": 4_000_000,
    "hidden_size": 65_536,
    "num_hidden_layers": 1_024,
    "num_attention_heads": 1_024,
    "intermediate_size": 524_288,
    "max_position_embeddings": 1_048_576,
    "type_vocab_size": 65_536,
}


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of a BERT encoder (Devlin et al. 2019, section 3). The defaults are those of BERT-Base.

    vocab_size 0 means: as many as the tokenizer has. `gelu` is the exact function, `gelu_tanh` the approximation that
    Google's released code computes. Dropout rates are probabilities of zeroing.

    Raises:
        ValueError: if a size is not positive, absurdly large, or heads do not divide the hidden size.
    """

    vocab_size: int = 0
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 0  # 0: 4 * hidden_size
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            least = 0 if name in ("vocab_size", "intermediate_size") else 1
            if type(value) is not int or not least <= value <= limit:
                raise ValueError(f"{name} is {value!r}: expected a whole number from {least} to {limit:,}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_attention_heads} attention heads"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}: expected a number from 0 to below 1")
        if not self.layer_norm_eps > 0:
            raise ValueError(f"layer_norm_eps is {self.layer_norm_eps!r}: expected a number above 0")

    @property
    def ffn_size(self) -> int:
        """The width between the two matrices of a feed-forward layer."""
        return self.intermediate_size or 4 * self.hidden_size

    def num_parameters(self, pretraining: bool = True) -> int:
        """Parameters of the encoder, and with `pretraining` those of pooler, MLM head (tied) and NSP head as well."""
        hidden, inner = self.hidden_size, self.ffn_size
        tables = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2) * hidden
        block = 4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner
        heads = (hidden * hidden + hidden) * 2 + 2 * hidden + self.vocab_size + 2 * hidden + 2
        return tables + self.num_hidden_layers * block + (heads if pretraining else 0)

    def flops_per_token(
        self, sequence_length: int, predictions: float, training: bool = True, finished: float = 1.0
    ) -> float:
        """Matrix-product operations (a multiply-add counts 2) per token. `predictions`: asked tokens per token.

        finished: share of the tokens whose last layer is computed beyond queries, keys and values.
        Training is three forwards: the backward pass forms two products for each of the forward pass.
        """
        hidden = self.hidden_size
        block = 2 * (4 * hidden * hidden + 2 * hidden * self.ffn_size) + 4 * hidden * sequence_length
        head = 2 * hidden * (hidden + self.vocab_size)
        saved = (1 - finished) * 2 * (hidden * hidden + 2 * hidden * self.ffn_size)
        return (self.num_hidden_layers * block - saved + predictions * head) * (3 if training else 1)


BERT_BASE = EncoderConfig(vocab_size=30522)
BERT_LARGE = replace(BERT_BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16)
BERT_MEDIUM = replace(BERT_BASE, hidden_size=512, num_hidden_layers=8, num_attention_heads=8)
BERT_SMALL = replace(BERT_MEDIUM, num_hidden_layers=4)
BERT_MINI = replace(BERT_BASE, hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
BERT_TINY = replace(BERT_BASE, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)

BERT_SIZES: dict[str, EncoderConfig] = {
    "tiny": BERT_TINY,
    "mini": BERT_MINI,
    "small": BERT_SMALL,
    "medium": BERT_MEDIUM,
    "base": BERT_BASE,
    "large": BERT_LARGE,
}
