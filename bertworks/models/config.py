"""A network, composed of its parts, and the published sizes.

- `EncoderConfig`: the settings of all parts. Its defaults are BERT-Base (Devlin et al. 2019)
- `PRESETS`: published models as points on these axes; `BERT_SIZES`: the BERTs among them
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertworks.errors import check
from bertworks.models.settings import (
    DecoderConfig,
    EmbeddingsConfig,
    Head,
    HeadsConfig,
    TransformerConfig,
    directed_flops,
    lstm_flops,
    relative_flops,
)

# Of every kind but "transformer": there is no attention to set up.
_WITHOUT_ATTENTION: dict[str, Any] = {
    "position_embedding_type": "none",
    "direction": "bidirectional",
    "norm_first": False,
    "num_hidden_groups": 0,
    "relative_position_buckets": 0,
    "global_attention_every": 0,
    "local_layers": (),
    "gated_feed_forward": False,
    "attention_bias": True,
    "feed_forward_bias": True,
    "norm_bias": True,
    "dropout_within": False,
}
# Of an encoder alone with nothing behind the vectors of its tokens.
_PLAIN_EMBEDDINGS: dict[str, Any] = {
    "embedding_norm": False,
    "embedding_size": 0,
    "embedding_scale": False,
    "decoder": None,
}
# Of a network with relative positions.
_RELATIVE: dict[str, Any] = {
    "embedding_norm": False,
    "norm_first": False,
    "num_hidden_groups": 0,
    "relative_position_buckets": 0,
    "global_attention_every": 0,
    "local_layers": (),
    "attention_bias": False,
    "decoder": None,
}
# Fields that only such a network has.
_ONLY_RELATIVE: dict[str, Any] = {
    "relative_segments": False,
    "memory_length": 0,
    "clamp_length": 0,
}
# What a network of a kind has: other values mean nothing there.
_OF_KIND: dict[str, dict[str, Any]] = {
    "lstm": _WITHOUT_ATTENTION,
    "elmo": _WITHOUT_ATTENTION | _PLAIN_EMBEDDINGS,
    # a table of vectors, and nothing that could change them
    "static": {"num_hidden_layers": 0} | _WITHOUT_ATTENTION | _PLAIN_EMBEDDINGS,
}
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
    decoder: what writes a text while it reads the one of the encoder (Sutskever et al. 2014;
        Vaswani et al. 2017); None: there is none.

    Raises:
        ValueError: a size that is not positive or absurdly large; values that exclude each other.
    """

    family: str = "bert"
    decoder: DecoderConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_kind()
        self._check_rotary()
        self._check_relative()
        self._check_disentangled()
        check(
            self.decoder is None
            or (
                self.direction == "bidirectional"
                and self.position_embedding_type not in ("rotary", "disentangled")
                and not self.relative_position_buckets
                and not self.num_hidden_groups
                and not self.local_attention
                and self.first_norm
                and not self.dropout_within
            ),
            "a decoder with direction 'left_to_right' or 'right_to_left', position_embedding_type "
            "'rotary' or 'disentangled', relative_position_buckets, num_hidden_groups, "
            "local_attention, first_norm = false or dropout_within: expected an encoder that reads "
            "in both directions, with a block per layer, absolute positions and BERT's dropout",
        )
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

    def _check_rotary(self) -> None:
        """Check the fields of positions that are rotations of queries and keys."""
        if self.position_embedding_type != "rotary":
            for name in ("rotary_base", "local_rotary_base"):
                default = getattr(TransformerConfig, name)
                check(
                    getattr(self, name) == default,
                    f"{name} is {getattr(self, name)} with position_embedding_type "
                    f"{self.position_embedding_type!r}: expected position_embedding_type = "
                    f"'rotary', or {name} = {default}",
                )
            return
        size = self.hidden_size // self.num_attention_heads
        check(
            size % 2 == 0,
            f"position_embedding_type 'rotary' with heads of {size} numbers (hidden_size "
            f"{self.hidden_size}, num_attention_heads {self.num_attention_heads}): expected an "
            "even number, because pairs of numbers are rotated",
        )
        check(
            self.direction == "bidirectional" and not self.relative_position_buckets,
            f"position_embedding_type 'rotary' with direction {self.direction!r} and "
            f"relative_position_buckets {self.relative_position_buckets}: expected an encoder that "
            "reads in both directions, with relative_position_buckets = 0",
        )
        check(
            self.local_attention > 0 or self.local_rotary_base == self.rotary_base,
            f"local_rotary_base is {self.local_rotary_base} and rotary_base {self.rotary_base} "
            "without local layers: expected the same number",
        )

    def _check_relative(self) -> None:
        """Check the fields of attention that reads the distances of tokens."""
        kind = self.position_embedding_type
        is_relative = kind == "relative"
        for name, value in (_RELATIVE if is_relative else _ONLY_RELATIVE).items():
            other = "another position_embedding_type" if is_relative else "'relative'"
            check(
                getattr(self, name) == value,
                f"{name} is {getattr(self, name)!r} with position_embedding_type {kind!r}: "
                f"expected {name} = {json.dumps(value)}, or {other}",
            )
        check(
            not self.memory_length or self.direction != "right_to_left",
            f"memory_length is {self.memory_length} with direction 'right_to_left': what is before "
            "a sequence is not read there; expected memory_length = 0, or direction = "
            "'left_to_right'",
        )

    @property
    def has_query(self) -> bool:
        """Whether there is a vector from which tokens are predicted that are not read.

        See `Encoder.read`.
        """
        return self.position_embedding_type == "relative" and self.direction == "bidirectional"

    def _check_disentangled(self) -> None:
        """Check the fields of positions that are vectors of distances."""
        is_disentangled = self.position_embedding_type == "disentangled"
        check(
            is_disentangled == (self.position_buckets > 0),
            f"position_buckets is {self.position_buckets} with position_embedding_type "
            f"{self.position_embedding_type!r}: expected position_buckets above 0 with "
            "position_embedding_type = 'disentangled', and only there",
        )
        check(
            not is_disentangled
            or (
                self.direction == "bidirectional"
                and not self.relative_position_buckets
                and not self.local_attention
            ),
            f"position_embedding_type 'disentangled' with direction {self.direction!r}, "
            f"relative_position_buckets {self.relative_position_buckets} and local_attention "
            f"{self.local_attention}: expected an encoder that reads whole texts in both "
            "directions, with relative_position_buckets = 0",
        )

    def with_layers(self, numbers: Sequence[int]) -> "EncoderConfig":
        """Return the configuration of a network with some of the layers, in this order.

        numbers: from 0. Where layers share their weights, `num_hidden_groups` stays.
        """
        period, local_layers = self.pattern_of(numbers)
        return replace(
            self,
            num_hidden_layers=len(numbers),
            global_attention_every=period,
            local_layers=local_layers,
        )

    def _check_kind(self) -> None:
        """Check the fields that must fit the kind of the network."""
        for name, value in _OF_KIND.get(self.kind, {}).items():
            check(
                getattr(self, name) == value,
                f"kind {self.kind!r} with {name} {getattr(self, name)!r}: expected {name} = "
                f"{json.dumps(value)}, or kind = 'transformer'",
            )
        check(
            self.kind == "static" or self.num_hidden_layers > 0,
            f"num_hidden_layers is 0 with kind {self.kind!r}: expected a whole number from 1",
        )
        check(
            self.kind not in ("lstm", "elmo") or self.hidden_size % 2 == 0,
            f"kind {self.kind!r} with hidden_size {self.hidden_size}: expected an even number, "
            "half of it for each direction",
        )
        check(
            (self.characters is not None) == (self.kind == "elmo"),
            f"kind {self.kind!r} {'without' if self.characters is None else 'with'} characters: "
            "expected a table characters with kind = 'elmo', and only there",
        )
        if self.kind == "lstm":
            check(
                self.decoder is not None,
                "kind 'lstm' without a decoder: expected a decoder, or kind = 'transformer'",
            )
        check(
            self.kind != "transformer" or self.position_embedding_type != "none",
            "position_embedding_type 'none' with kind 'transformer', which would not know the "
            "order of the tokens: expected 'learned' or 'sinusoidal'",
        )
        if self.decoder is not None:
            kinds = "multiplicative", "additive", "none"
            expected = kinds if self.kind == "lstm" else ("multi_head",)
            check(
                self.decoder.attention in expected,
                f"attention {self.decoder.attention!r} of the decoder with kind {self.kind!r}: "
                f"expected {' or '.join(map(repr, expected))}",
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
        """Parameters of the encoder, of the decoder, and of the heads that are named.

        Shared and tied ones count once.
        """
        # Parameters are counted in networks, which need torch. Programs that only read a
        # configuration, such as `bertworks check`, should not wait for its import: this is the one
        # place where a configuration makes a network.
        from bertworks.models.attention import num_decoder_block_parameters, num_stack_parameters
        from bertworks.models.embeddings import num_embedding_parameters
        from bertworks.models.heads import num_head_parameters
        from bertworks.models.layers import count_parameters
        from bertworks.models.recurrent import DirectedBlock, LSTMBlock, LSTMDecoder
        from bertworks.models.relative import RelativeBlock

        stack = num_stack_parameters(self)
        decoder = 0
        if self.decoder is not None and self.kind == "lstm":
            stack = self.num_hidden_layers * count_parameters(LSTMBlock, self)
            decoder = count_parameters(LSTMDecoder, self, self.decoder)
        elif self.kind == "elmo":
            stack = self.num_hidden_layers * count_parameters(DirectedBlock, self, 0)
        elif self.position_embedding_type == "relative":
            stack = self.num_hidden_layers * count_parameters(RelativeBlock, self)
            stack += self.has_query * self.hidden_size
        elif self.decoder is not None:
            norm = 2 * self.hidden_size if self.norm_first else 0
            blocks = self.decoder.num_hidden_layers * num_decoder_block_parameters(self)
            decoder = blocks + norm
        encoder = num_embedding_parameters(self) + stack
        return encoder + decoder + num_head_parameters(self, *heads)

    def flops_per_token(
        self, sequence_length: int, predictions: float, finished: float = 1.0
    ) -> float:
        """Matrix-product operations of a training per token (a multiply-add counts 2).

        predictions: predicted tokens per token.
        finished: fraction of the tokens whose last layer is computed beyond queries, keys and
        values. Training is three forward passes: the backward pass has two products for each of the
        forward pass. With a decoder half of the tokens pass the encoder, the other half the
        decoder, which also computes the keys and values of the source.
        """
        encoder = self.embedding_flops + self.stack_flops(sequence_length, finished)
        if self.decoder is not None and self.kind == "lstm":
            encoder = self.embedding_flops + lstm_flops(self, self.decoder, sequence_length)
        elif self.kind == "elmo":
            encoder = self.embedding_flops + directed_flops(self)
        elif self.position_embedding_type == "relative":
            encoder += relative_flops(self, sequence_length)
        elif self.decoder is not None:
            layers = self.num_hidden_layers + self.decoder.num_hidden_layers
            each = self.stack_flops(sequence_length // 2, 1.0) / self.num_hidden_layers
            attention_to_source = (
                2 * 4 * self.hidden_size**2 + 2 * self.hidden_size * sequence_length
            )
            encoder = self.embedding_flops + layers * each / 2
            encoder += self.decoder.num_hidden_layers * attention_to_source / 2
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
