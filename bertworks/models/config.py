"""What can vary in a network, and the published sizes.

- `EncoderConfig`: one field, one axis. Its defaults are BERT-Base (Devlin et al. 2019).
- `PRESETS`: published models as points on these axes; `BERT_SIZES`: the BERTs among them.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bertworks.errors import check

_TABLES: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("presets.toml").read_text(encoding="utf-8")
)
LIMITS: dict[str, int] = _TABLES.pop("limits")  # the largest values of fields of a network
_MAY_BE_0 = {
    "vocab_size",
    "embedding_size",
    "num_hidden_groups",
    "intermediate_size",
    "type_vocab_size",
}

Head = Literal["pooler", "lm_head", "next_sentence", "sentence_order", "replaced_token"]
PRETRAINING_HEADS: tuple[Head, ...] = ("pooler", "lm_head", "next_sentence")  # of BERT


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The shape of a network.

    The defaults are those of BERT-Base (Devlin et al. 2019, section 3).

    vocab_size: tokens; 0: those of the tokenizer.
    hidden_size: width of the hidden states; a multiple of num_attention_heads.
    num_hidden_layers: blocks that a token passes.
    num_attention_heads: of every layer.
    intermediate_size: width of the feed-forward layers; 0: 4 * hidden_size.
    embedding_size: width of the embedding tables; 0: hidden_size. If it differs, a linear layer
        projects to hidden_size (ALBERT, ELECTRA).
    max_position_embeddings: the longest sequence.
    num_hidden_groups: blocks with parameters of their own; layer i uses block i * groups // layers;
        0: num_hidden_layers (ALBERT: 1).
    position_embedding_type: "learned", or "sinusoidal" (Vaswani et al. 2017, section 3.5).
    type_vocab_size: 0: no token type embeddings (DistilBERT, GPT-2).
    relative_position_buckets: of a bias on the attention scores for the distance of two tokens,
        which all layers share (Raffel et al. 2020, section 2.1; MPNet); 0: no such bias.
    direction: which tokens a token reads. "left_to_right": itself and those before it (GPT-2).
    norm_first: layer norm before attention and feed-forward, and one after the last block (GPT-2).
    embedding_norm: layer norm over the sum of the embeddings.
    embedding_scale: token embeddings times sqrt(hidden_size) (Vaswani et al. 2017, section 3.4).
    hidden_act: "gelu" is the exact function, "gelu_tanh" its approximation in Google's released
        code.
    lm_head_act: the activation in the head that predicts masked tokens; "" if it is hidden_act. The
        published RoBERTa and ELECTRA always have "gelu" there.
    hidden_dropout, attention_dropout: probabilities of zeroing.
    embedding_dropout: after the embeddings (GPT-2); None: hidden_dropout.
    sequence_dropout: in fine-tuning, before the output layer for whole texts and choices; None:
        hidden_dropout.
    choice_dropout: the same for choices (ELECTRA, RoBERTa); None: as for whole texts.
    token_dropout: sequence_dropout also before the output layer for tokens (ALBERT, BERT).
    span_dropout: in fine-tuning, before the output layer for answers in texts (DistilBERT); None:
        no dropout.
    layer_norm_eps: added to the variance.
    initializer_range: standard deviation of the initial matrices and embeddings.
    lm_head: "transform": dense, activation, norm, tied embeddings, bias; "bias": tied embeddings
        and bias; "plain": tied embeddings alone.
    pooler: which token stands for a sequence, and the activation of the dense layer over it, which
        "first" and "last" do not have.
    pooler_dropout: in fine-tuning for whole texts, the same dropout also before the dense layer of
        the pooler (RoBERTa).
    family: the name table of its files (checkpoints/families).
    languages: names of the token types, where these are languages (XLM, Conneau and Lample 2019,
        section 3).
    language: the one that all texts are in; "": the token types of a batch are its languages, as in
        pre-training.

    Raises:
        ValueError: a size that is not positive or absurdly large; values that exclude each other.
    """

    vocab_size: int = 0
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 0
    embedding_size: int = 0
    num_hidden_groups: int = 0
    max_position_embeddings: int = 512
    position_embedding_type: Literal["learned", "sinusoidal"] = "learned"
    type_vocab_size: int = 2
    relative_position_buckets: int = 0
    direction: Literal["bidirectional", "left_to_right", "right_to_left"] = "bidirectional"
    norm_first: bool = False
    embedding_norm: bool = True
    embedding_scale: bool = False
    hidden_act: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    lm_head_act: Literal["", "gelu", "gelu_tanh", "relu"] = ""
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    embedding_dropout: float | None = None
    sequence_dropout: float | None = None
    choice_dropout: float | None = None
    token_dropout: bool = False
    span_dropout: float | None = None
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    lm_head: Literal["transform", "bias", "plain"] = "transform"
    pooler: Literal["first_tanh", "first_gelu", "first_relu", "first", "last_tanh", "last"] = (
        "first_tanh"
    )
    pooler_dropout: bool = False
    family: str = "bert"
    languages: tuple[str, ...] = ()
    language: str = ""

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            least = int(name not in _MAY_BE_0)
            is_valid = type(value) is int and least <= value <= limit
            check(
                is_valid, f"{name} is {value!r}: expected a whole number from {least} to {limit:,}"
            )
        rules = [
            (
                self.hidden_size % self.num_attention_heads == 0,
                "hidden_size {hidden_size} does not divide into {num_attention_heads} attention "
                "heads",
            ),
            *(
                (
                    0 <= (getattr(self, name) or 0) < 1,
                    f"{name} is {{{name}}}: expected a number from 0 to below 1",
                )
                for name in vars(self)
                if name.endswith("_dropout") and name not in ("token_dropout", "pooler_dropout")
            ),
            (
                not self.languages
                or len({*self.languages}) == len(self.languages) == self.type_vocab_size,
                "languages {languages} with type_vocab_size {type_vocab_size}: expected a name "
                "for each type",
            ),
            (
                self.relative_position_buckets in (0, *range(4, 1025, 4))
                and (not self.relative_position_buckets or self.direction == "bidirectional"),
                "relative_position_buckets is {relative_position_buckets} with direction "
                "{direction!r}: expected 0, or a multiple of 4 up to 1,024 with 'bidirectional'",
            ),
            (
                self.language in ("", *self.languages),
                "language is {language!r}: expected one of {languages}",
            ),
            (
                self.layer_norm_eps > 0,
                "layer_norm_eps is {layer_norm_eps}: expected a number above 0",
            ),
            (
                self.num_hidden_layers % self.num_groups == 0,
                "num_hidden_groups {num_hidden_groups} does not divide num_hidden_layers "
                "{num_hidden_layers}: use a "
                "divisor, or 0 for a block per layer",
            ),
            (
                self.embedding_width == self.hidden_size or self.lm_head == "transform",
                "lm_head {lm_head!r} with embedding_size {embedding_size} and hidden_size "
                "{hidden_size}: only lm_head "
                "'transform' leads from one width to the other",
            ),
            (
                self.direction != "left_to_right" or not self.pooler.startswith("first"),
                "pooler {pooler!r} with direction 'left_to_right': the first token has read "
                "nothing; use 'last' or "
                "'last_tanh'",
            ),
            (
                self.direction != "right_to_left" or not self.pooler.startswith("last"),
                "pooler {pooler!r} with direction 'right_to_left': the last token has read "
                "nothing; use 'first_tanh'",
            ),
        ]
        for holds, message in rules:
            check(holds, message.format_map(vars(self)))

    @property
    def ffn_size(self) -> int:
        """The width between the two matrices of a feed-forward layer."""
        return self.intermediate_size or 4 * self.hidden_size

    @property
    def lm_head_activation(self) -> str:
        """The activation in the head that predicts masked tokens."""
        return self.lm_head_act or self.hidden_act

    @property
    def sequence_rate(self) -> float:
        """The dropout before the output layer for whole texts."""
        return self.hidden_dropout if self.sequence_dropout is None else self.sequence_dropout

    @property
    def choice_rate(self) -> float:
        """The dropout before the output layer for choices."""
        return self.sequence_rate if self.choice_dropout is None else self.choice_dropout

    @property
    def embedding_rate(self) -> float:
        """The dropout after the embeddings."""
        return self.hidden_dropout if self.embedding_dropout is None else self.embedding_dropout

    @property
    def embedding_width(self) -> int:
        """The width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def num_groups(self) -> int:
        """Blocks with parameters of their own."""
        return self.num_hidden_groups or self.num_hidden_layers

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

    @property
    def num_table_parameters(self) -> int:
        """Parameters of the embeddings of tokens, positions and token types."""
        positions = self.max_position_embeddings if self.position_embedding_type == "learned" else 0
        return (self.vocab_size + self.type_vocab_size + positions) * self.embedding_width

    def num_parameters(self, *heads: Head) -> int:
        """Parameters of the encoder and of the heads that are named.

        Shared and tied ones count once.
        """
        hidden = self.hidden_size
        width = self.embedding_width
        inner = self.ffn_size
        count = self.num_table_parameters + 2 * self.embedding_norm * width
        count += self.relative_position_buckets * self.num_attention_heads
        count += (width + 1) * hidden if width != hidden else 0
        count += self.num_groups * (4 * hidden * hidden + 2 * hidden * inner + 9 * hidden + inner)
        count += 2 * hidden if self.norm_first else 0
        if "pooler" in heads and "_" in self.pooler:
            count += hidden * hidden + hidden
        if "lm_head" in heads:
            count += (hidden * width + 3 * width) * (self.lm_head == "transform")
            count += self.vocab_size if self.lm_head != "plain" else 0
        count += (hidden + 1) * (hidden + 1) if "replaced_token" in heads else 0
        return count + (2 * hidden + 2) * len({"next_sentence", "sentence_order"} & {*heads})

    def flops_per_token(
        self, sequence_length: int, predictions: float, finished: float = 1.0
    ) -> float:
        """Matrix-product operations per token (a multiply-add counts 2).

        predictions: predicted tokens per token.
        finished: fraction of the tokens whose last layer is computed beyond queries, keys and
        values. Training is three forward passes: the backward pass has two products for each of the
        forward pass.
        """
        hidden = self.hidden_size
        width = self.embedding_width
        block = (
            2 * (4 * hidden * hidden + 2 * hidden * self.ffn_size) + 4 * hidden * sequence_length
        )
        head = 2 * width * ((hidden if self.lm_head == "transform" else 0) + self.vocab_size)
        saved = (1 - finished) * 2 * (hidden * hidden + 2 * hidden * self.ffn_size)
        projection = 2 * width * hidden if width != hidden else 0
        return 3 * (self.num_hidden_layers * block + projection - saved + predictions * head)


BERT = EncoderConfig()
# `like` in a preset names another one, of which it takes what it does not have itself.
PRESETS = {
    name: EncoderConfig(**_TABLES.get(table.pop("like", ""), {}) | table)
    for name, table in _TABLES.items()
}
BERT_SIZES = {
    name.removeprefix("bert-"): c for name, c in PRESETS.items() if name.startswith("bert-")
}
