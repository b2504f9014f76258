"""An explanation of a prediction: values, a table for a terminal, and an HTML page without external files."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.inference.attribution import IntegratedGradients
from bertworks.io.atomic_write import write_bytes
from bertworks.reports.svg import page, section, words

MOST_CELLS = 8_000_000  # of all attention maps on a page; long sequences are truncated
NOT_ATTRIBUTION = (
    "Attention is not attribution. It shows where a head reads from, not what the prediction depends on. It can often "
    "be changed without changing the prediction (Jain and Wallace 2019), and inactive heads attend to [CLS] and [SEP]. "
    "Use attributions to see what a prediction depends on."
)
SIMILARITY = (
    "The cosine similarity of the hidden states of one token and all others, from the embeddings to the last layer. "
    "Two occurrences of a word start similar and become different as the layers add context."
)
MAPS = Path(__file__).with_name("maps")  # the drawing code, shared with the page of `bertworks serve`
STYLE = """
figure.text { padding: 10px 14px; margin: 8px 0; overflow-wrap: anywhere; }
"""
START = """
const maps = JSON.parse(document.getElementById("data").textContent);
drawAttention(document.getElementById("attention"), maps);
drawSimilarity(document.getElementById("similarity"), maps);
"""


@dataclass(frozen=True)
class Explanation:
    """A prediction of a model for a text, or a pair: n tokens in w words, including `[CLS]` and `[SEP]`.

    answer: the prediction: names and values, the best first.
    explained: the output that is attributed, in words; "": none, without attributions.
    baseline: the token that stands for "no information".
    spans: the first token and the end of each word.
    gradients: integrated gradients of every token; None: the network has no gradients.
    occlusion: float64 [w]: by how much the output falls without a word.
    attention: of each layer float32 [heads, n, n]: attention of a token (row) to another (column).
    similarity: float32 [layers + 1, n, n]: cosine similarity of tokens after each layer, embeddings first.
    """

    model: str
    texts: tuple[str, ...]
    answer: tuple[tuple[str, str], ...]
    explained: str
    baseline: str
    tokens: tuple[str, ...]
    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    gradients: IntegratedGradients | None
    occlusion: NDArray[np.float64] | None
    attention: tuple[NDArray[np.float32], ...]
    similarity: NDArray[np.float32]
    notes: tuple[str, ...] = ()

    @property
    def word_gradients(self) -> NDArray[np.float64] | None:
        """float64 [w]: integrated gradients, summed over the tokens of each word."""
        if self.gradients is None:
            return None
        return np.array([self.gradients.attributions[first:end].sum() for first, end in self.spans])

    @property
    def completeness(self) -> str:
        """The completeness error of the integrated gradients, in words."""
        g = self.gradients
        if g is None:
            return ""
        fraction = abs(g.error) / max(float(np.abs(g.attributions).sum()), 1e-12)
        return (
            f"integrated gradients sum to {g.attributions.sum():+.3f}; the output goes from {g.start:+.3f} (all words "
            f"{self.baseline}) to {g.end:+.3f}: completeness error {g.error:+.4f}, {fraction:.1%} of all attributions, "
            f"{g.steps} steps"
        )

    def as_dict(self) -> dict[str, Any]:
        """All but attention and similarity, which are large."""
        values: dict[str, Any] = {
            name: getattr(self, name) for name in ("model", "texts", "answer", "explained", "words")
        }
        if (by_word := self.word_gradients) is not None and self.gradients is not None:
            values |= {"gradients": by_word.tolist(), "completeness_error": self.gradients.error}
            values |= {"steps": self.gradients.steps}
        if self.occlusion is not None:
            values["occlusion"] = self.occlusion.tolist()
        return values | {"baseline": self.baseline, "notes": self.notes}

    def __str__(self) -> str:
        lines = [f"{figure:>8}  {name}" for name, figure in self.answer]
        by_word = self.word_gradients
        if self.explained:
            lines += ["", f"for {self.explained}:", f"{'gradients':>9}  {'occlusion':>9}"]
        for number, word in enumerate(self.words if self.explained else ()):
            figures = [
                f"{values[number]:+9.3f}" if values is not None else " " * 9 for values in (by_word, self.occlusion)
            ]
            lines.append(f"{figures[0]}  {figures[1]}  {word}")
        return "\n".join([*lines, *([self.completeness] if self.gradients else []), *self.notes])

    def save(self, path: str | Path) -> None:
        """Write the page: one HTML file without external files.

        Raises:
            BertworksError: it cannot be written.
        """
        write_bytes(path, self.html().encode("utf-8", "replace"))  # lone surrogates are not UTF-8

    def html(self) -> str:
        """The page. Texts, labels and tokens are escaped."""
        texts = "".join(f'<figure class="text" dir="auto">{escape(text)}</figure>' for text in self.texts)
        notes = "".join(f'<p class="quiet">{escape(note)}.</p>' for note in self.notes)
        sections = [
            texts + notes,
            *([section("Prediction", words(["", ""], self.answer))] if self.answer else []),
            *([self._attributions()] if self.explained else []),
            *self._maps(),
        ]
        summary = f"explained: {self.explained}" if self.explained else "attention and similarity of a text"
        style, script = (MAPS.joinpath(f"maps.{kind}").read_text("utf-8") for kind in ("css", "js"))
        return page(
            self.model, "explanation of a prediction", summary, sections, style=style + STYLE, script=script + START
        )

    def _attributions(self) -> str:
        by_word = self.word_gradients
        b = escape(self.baseline)
        parts = [
            f"<p>Blue words increase {escape(self.explained)}, orange words decrease it. The values have the "
            "unit of that output.</p>"
        ]
        if by_word is not None:
            parts += ["<h3>Integrated gradients</h3>", self._chips(by_word)]
            parts.append(f'<p class="quiet">From {b} in place of every word to the text: '
                         f"{escape(self.completeness)}.</p>")  # fmt: skip
        if self.occlusion is not None:
            parts += ["<h3>Occlusion</h3>", self._chips(self.occlusion)]
            parts.append(f'<p class="quiet">By how much the output falls when a single word is replaced by {b}. The '
                         "two methods measure different things. Where they agree, trust them more.</p>")  # fmt: skip
        return section("Attributions", "\n".join(parts))

    def _chips(self, values: NDArray[np.float64]) -> str:
        most = max(float(np.abs(values).max(initial=0)), 1e-12)
        chips = []
        for word, value in zip(self.words, values.tolist(), strict=True):
            kind = "frame" if value == 0 else "right" if value > 0 else "wrong"
            figure = f"<small>{value:+.2f}</small>" if value else "<small>&nbsp;</small>"
            share = f"--share: {abs(value) / most:.3f}"
            chips.append(f'<span class="chip {kind}" style="{share}"><bdi>{escape(word)}</bdi>{figure}</span>')
        return f'<div class="chips">{"".join(chips)}</div>'

    def maps(self) -> dict[str, Any]:
        """Input of maps/maps.js: the first tokens, up to a limit, and maps of them as bytes in base64: attention of
        each layer [heads, n, n], 255 for 1; similarity after each layer, embeddings first, [n, n], 127 for 0."""
        layers, heads, n = len(self.attention), len(self.attention[0]), len(self.tokens)
        shown = min(n, int((MOST_CELLS / (layers * heads)) ** 0.5))
        return {
            "tokens": self.tokens[:shown],
            "attention": [_packed(layer[:, :shown, :shown] * 255) for layer in self.attention],
            "similarity": [_packed(layer[:shown, :shown] * 127 + 127) for layer in self.similarity],
        }

    def _maps(self) -> Sequence[str]:
        data, n = self.maps(), len(self.tokens)
        shown = len(data["tokens"])
        part = f'<p class="quiet">The first {shown} of {n} tokens are shown.</p>' if shown < n else ""
        # "<" could end the element.
        content = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
        quiet = '<noscript><p class="quiet">This part of the page needs JavaScript.</p></noscript>'
        attention = f'<p class="warning">{escape(NOT_ATTRIBUTION)}</p>{part}{quiet}<div id="attention"></div>'
        similarity = (
            f'<p>{escape(SIMILARITY)}</p>{part}{quiet}<div id="similarity"></div>'
            f'<script type="application/json" id="data">{content}</script>'
        )
        return [
            section("Attention", attention),
            section("Similarity of tokens after each layer", similarity),
        ]


def _packed(values: NDArray[np.float32]) -> str:
    """Values from 0 to 255 as bytes, in base64."""
    return b64encode(np.rint(values).clip(0, 255).astype(np.uint8).tobytes()).decode()
