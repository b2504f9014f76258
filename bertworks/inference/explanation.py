"""What is known of one answer of a model: values, a table for a terminal, and a page that needs nothing but a browser.
Not here: how it is found out (`explain`).
"""

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

MOST_CELLS = 8_000_000  # of all attention maps on a page; of longer sequences only the beginning is shown
NOT_ATTRIBUTION = (
    "Attention is not attribution: it says from where a head gathers, not what the answer depends on. Much of it can "
    "often be moved without changing the answer (Jain and Wallace 2019), and [CLS] and [SEP] get most of it where a "
    "head has nothing to do. What an answer depends on, attributions say."
)
SIMILARITY = (
    "The cosine between the states of one token and of all others, from the embeddings to the last layer: the same "
    "word in two places begins alike and parts as its context is read."
)
MAPS = Path(__file__).with_name("maps")  # what draws attention, here and on the page of `bertworks serve`
STYLE = """
figure.said { padding: 10px 14px; margin: 8px 0; overflow-wrap: anywhere; }
"""
START = """
const maps = JSON.parse(document.getElementById("data").textContent);
drawAttention(document.getElementById("attention"), maps);
drawSimilarity(document.getElementById("similarity"), maps);
"""


@dataclass(frozen=True)
class Explanation:
    """One answer of a model to one text, or pair of texts: n tokens in w words, `[CLS]` and `[SEP]` among them.

    answer: what the model says, names and figures, the best first.
    asked: the number that is attributed, in words; "" where there is none, and then neither of the attributions.
    baseline: the token that stands for "nothing is said here".
    spans: of each word the first token and the one behind the last.
    gradients: integrated gradients of every token. None: the network lets no gradients through.
    occlusion: float64 [w]: by how much the number falls without a word.
    attention: of each layer float32 [heads, n, n]: what a token (row) gathers from another (column).
    similarity: float32 [layers + 1, n, n]: the cosine between tokens after each layer, embeddings first.
    """

    model: str
    texts: tuple[str, ...]
    answer: tuple[tuple[str, str], ...]
    asked: str
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
        """How far integrated gradients can be trusted here, in words."""
        g = self.gradients
        if g is None:
            return ""
        share = abs(g.error) / max(float(np.abs(g.attributions).sum()), 1e-12)
        return (
            f"integrated gradients sum to {g.attributions.sum():+.3f}; the number goes from {g.start:+.3f} (every word "
            f"{self.baseline}) to {g.end:+.3f}: completeness error {g.error:+.4f}, {share:.1%} of all attributions, "
            f"{g.steps} steps"
        )

    def as_dict(self) -> dict[str, Any]:
        """Without attention and similarity, which are many numbers."""
        found: dict[str, Any] = {name: getattr(self, name) for name in ("model", "texts", "answer", "asked", "words")}
        if (by_word := self.word_gradients) is not None and self.gradients is not None:
            found |= {"gradients": by_word.tolist(), "completeness_error": self.gradients.error}
            found |= {"steps": self.gradients.steps}
        if self.occlusion is not None:
            found["occlusion"] = self.occlusion.tolist()
        return found | {"baseline": self.baseline, "notes": self.notes}

    def __str__(self) -> str:
        lines = [f"{figure:>8}  {name}" for name, figure in self.answer]
        by_word = self.word_gradients
        if self.asked:
            lines += ["", f"for {self.asked}:", f"{'gradients':>9}  {'occlusion':>9}"]
        for number, word in enumerate(self.words if self.asked else ()):
            figures = [
                f"{values[number]:+9.3f}" if values is not None else " " * 9 for values in (by_word, self.occlusion)
            ]
            lines.append(f"{figures[0]}  {figures[1]}  {word}")
        return "\n".join([*lines, *([self.completeness] if self.gradients else []), *self.notes])

    def save(self, path: str | Path) -> None:
        """Writes the page: one HTML file without any reference to another.

        Raises:
            BertworksError: it cannot be written there.
        """
        write_bytes(path, self.html().encode("utf-8", "replace"))  # a lone surrogate of a text is not UTF-8

    def html(self) -> str:
        """The page. Whatever stands in texts, labels and tokens remains text."""
        said = "".join(f'<figure class="said" dir="auto">{escape(text)}</figure>' for text in self.texts)
        notes = "".join(f'<p class="quiet">{escape(note)}.</p>' for note in self.notes)
        sections = [
            said + notes,
            *([section("What the model says", words(["", ""], self.answer))] if self.answer else []),
            *([self._attributions()] if self.asked else []),
            *self._maps(),
        ]
        summary = f"one answer explained: {self.asked}" if self.asked else "what its layers make of a text"
        style, script = (MAPS.joinpath(f"maps.{kind}").read_text("utf-8") for kind in ("css", "js"))
        return page(self.model, "an answer explained", summary, sections, style=style + STYLE, script=script + START)

    def _attributions(self) -> str:
        by_word = self.word_gradients
        b = escape(self.baseline)
        parts = [
            f"<p>Blue words speak for {escape(self.asked)}, orange ones against it; figures are in the units of that "
            "number.</p>"
        ]
        if by_word is not None:
            parts += ["<h3>Integrated gradients</h3>", self._chips(by_word)]
            parts.append(f'<p class="quiet">On the way from {b} in the place of every word to the text: '
                         f"{escape(self.completeness)}.</p>")  # fmt: skip
        if self.occlusion is not None:
            parts += ["<h3>Occlusion</h3>", self._chips(self.occlusion)]
            parts.append(f'<p class="quiet">By how much the number falls when one word alone is replaced by {b}. The '
                         "two methods ask different things: where they agree, trust them more.</p>")  # fmt: skip
        return section("What in the text speaks for it", "\n".join(parts))

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
        """What maps/maps.js draws: tokens, of too many the first, and maps of these as bytes in base64: of each layer
        attention [heads, n, n], 255 for 1, and of each layer and the embeddings similarity [n, n], 127 for 0."""
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
        part = f'<p class="quiet">Of {n} tokens the first {shown} are shown.</p>' if shown < n else ""
        # "<" would be the only way out of the element.
        content = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
        quiet = '<noscript><p class="quiet">This part of the page needs its own script to run.</p></noscript>'
        attention = f'<p class="warning">{escape(NOT_ATTRIBUTION)}</p>{part}{quiet}<div id="attention"></div>'
        similarity = (
            f'<p>{escape(SIMILARITY)}</p>{part}{quiet}<div id="similarity"></div>'
            f'<script type="application/json" id="data">{content}</script>'
        )
        return [
            section("Where each token looks", attention),
            section("How alike tokens are, layer by layer", similarity),
        ]


def _packed(values: NDArray[np.float32]) -> str:
    """As bytes, in base64."""
    return b64encode(np.rint(values).clip(0, 255).astype(np.uint8).tobytes()).decode()
