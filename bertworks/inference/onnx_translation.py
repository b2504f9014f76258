"""The network of an exported translator, computed by onnxruntime.

- `OnnxTranslationNetwork`: the interface of `TranslationNetwork` over the files of `export`
- `key_value_names`: how these files name keys and values
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bertworks.errors import require
from bertworks.inference.engine import open_session, run_session
from bertworks.models.attention import Source
from bertworks.models.config import EncoderConfig
from bertworks.models.layout import Layout

ENCODER_INPUTS = ("input_ids", "attention_mask")
DECODER_INPUTS = ("input_ids", "encoder_attention_mask")


def key_value_names(config: EncoderConfig) -> list[str]:
    """Return the names of the keys and values of all layers of a decoder, in order.

    Those with "decoder" are of the tokens of the translation, those with "encoder" of the source.
    """
    assert config.decoder is not None
    return [
        f"{number}.{place}.{part}"
        for number in range(config.decoder.num_hidden_layers)
        for place in ("decoder", "encoder")
        for part in ("key", "value")
    ]


class OnnxCache:
    """The keys and values that a pass of the decoder returned, and the next one reads.

    Attributes:
        mask: int64 [hypotheses, S]: 1 for a token of the source, 0 for padding.
        past: float32 [hypotheses, heads, length, d], by the names of the inputs; {} at first.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask
        self.past: dict[str, Tensor] = {}

    def keep(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Drop all hypotheses but `rows`: see `KeyValueCache.keep`."""
        changes_sources = sources is not None
        if changes_sources:
            self.mask = self.mask[rows]
        for name, tensor in self.past.items():
            if changes_sources or ".decoder." in name:
                self.past[name] = tensor[rows]


class OnnxTranslationNetwork:
    """The encoder and the decoder of an exported translator, on the CPU.

    Args:
        paths: the files `EXPORTED_TRANSLATOR`.
        config: of the network.

    Raises:
        BertworksError: a file that is missing, damaged or of another network; onnxruntime is not
            installed.
    """

    device = torch.device("cpu")

    def __init__(self, paths: Sequence[Path], config: EncoderConfig):
        names = key_value_names(config)
        present = [f"present.{name}" for name in names]
        expected = (
            (ENCODER_INPUTS, ["last_hidden_state"], config.hidden_size),
            ((*DECODER_INPUTS, "encoder_hidden_states"), ["logits", *present], config.vocab_size),
            (
                (*DECODER_INPUTS, *(f"past_key_values.{name}" for name in names)),
                ["logits", *(name for name in present if ".decoder." in name)],
                config.vocab_size,
            ),
        )
        self._files = []
        for path, (inputs, outputs, width) in zip(paths, expected, strict=True):
            session = open_session(path)
            values = session.get_outputs()
            fits = {value.name for value in session.get_inputs()} == {*inputs}
            fits = fits and [value.name for value in values] == outputs
            require(
                fits and [*values[0].shape][-1:] == [width],
                "the inputs and outputs of this file are not those of the network in config.json",
                path,
                "export the model again with bertworks",
            )
            self._files.append((session, path))

    def read(self, sources: Sequence[Sequence[int]]) -> Source:
        """Return the last states of the encoder for sources in tokens."""
        ids = torch.tensor([number for ids in sources for number in ids])
        return self.encode(ids, Layout.of(list(map(len, sources))))

    def encode(self, ids: Tensor, layout: Layout) -> Source:
        """Return the last states of the encoder for tokens: int64 [S]."""
        inputs = (layout.pad(ids), layout.present.long())
        states = self._run(0, dict(zip(ENCODER_INPUTS, inputs, strict=True)))["last_hidden_state"]
        return Source(layout.unpad(states), layout)

    def start(self, source: Source, texts: int, room: int) -> OnnxCache:
        """Return the cache before the first token of some texts for each source."""
        return OnnxCache(source.layout.present.long().repeat_interleave(texts, 0))

    def step(self, tokens: Tensor, source: Source, cache: OnnxCache) -> Tensor:
        """Return the logits of the next token of each hypothesis: see `TranslationNetwork.step`."""
        return self.decode(tokens[:, None], source, cache)[:, 0]

    def decode(self, tokens: Tensor, source: Source, cache: OnnxCache) -> Tensor:
        """Return the logits after each of the next tokens: int64 [B, L] -> float32 [B, L, V].

        cache: of the tokens before, to which these are added; with such tokens L is 1.
        """
        inputs = {**dict(zip(DECODER_INPUTS, (tokens, cache.mask), strict=True)), **cache.past}
        number = 2
        if not cache.past:
            states = source.layout.pad(source.states)
            texts = len(tokens) // len(states)
            inputs["encoder_hidden_states"] = states.repeat_interleave(texts, 0)
            number = 1
        outputs = self._run(number, inputs)
        logits = outputs.pop("logits")
        for name, tensor in outputs.items():
            cache.past[name.replace("present", "past_key_values")] = tensor
        return logits

    def _run(self, number: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        session, path = self._files[number]
        return run_session(session, {name: x.numpy() for name, x in inputs.items()}, path)
