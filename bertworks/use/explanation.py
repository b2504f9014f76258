"""What is known of one answer of a model: values, a table for a terminal, and a page that needs nothing but a browser.
Not here: how it is found out (`explain`)."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.learn.attribution import IntegratedGradients
from bertworks.text.atomic import write_bytes
from bertworks.use.charts import page, section, words

MOST_CELLS = 8_000_000  # of all attention maps on a page; of longer sequences only the beginning is shown
NOT_ATTRIBUTION = (
    "Attention is not attribution: it says from where a head gathers, not what the answer depends on. Much of it can "
    "often be moved without changing the answer (Jain and Wallace 2019), and [CLS] and [SEP] get most of it where a "
    "head has nothing to do. What an answer depends on, attributions say."
)

STYLE = """
.chips { line-height: 2.5; margin: 8px 0; } figure.said { padding: 10px 14px; margin: 8px 0; overflow-wrap: anywhere; }
.chip, .tokens button { display: inline-block; font: inherit; line-height: 1.3; color: inherit; padding: 3px 7px;
  margin: 0 3px 4px 0; border: 1px solid var(--line); border-radius: 6px; text-align: center; vertical-align: top;
  background: color-mix(in srgb, var(--shade, var(--card)) calc(var(--share, 0) * 60%), var(--card)); }
.chip small { display: block; font-size: 11px; opacity: .8; font-variant-numeric: tabular-nums; }
.warning { border-left: 3px solid var(--held); padding-left: 12px; } .frame { color: var(--soft); }
.tokens button { cursor: pointer; font-size: 14px; }
.tokens button[aria-checked=true] { border-color: var(--train); box-shadow: inset 0 0 0 1px var(--train); }
:focus-visible { outline: 2px solid var(--held); outline-offset: 1px; }
select { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 2px 6px; }
.heat.map td { min-width: 24px; padding: 3px 2px; font-size: 11px; border-width: 1px; }
.heat.map th { font-size: 12px; } .heat.map th:first-child { position: sticky; left: 0; background: var(--page); }
.heat.map .tall { padding: 2px; } .heat.map .tall span { max-height: 9em;
  overflow: hidden; text-overflow: ellipsis; } .heat.map .chosen { color: var(--train); }
.overview canvas { width: 58px; height: 58px; image-rendering: pixelated; display: block; cursor: pointer;
  border: 1px solid var(--line); border-radius: 3px; background: var(--card); }
.overview td { padding: 2px; border: 0; } .overview th { border: 0; padding: 2px 8px 2px 0; font-size: 12px; }
.overview thead th { text-align: center; padding: 2px; } .overview .chosen canvas { border-color: var(--train); }
"""

SCRIPT = """
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const tokens = data.tokens, n = tokens.length;
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
const attention = data.attention.map(bytes), similarity = data.similarity.map(bytes);
const heads = attention[0].length / (n * n);

function make(name, parent, text, style) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  parent.append(made);
  return made;
}

// A row of tokens of which one is chosen, as in a radio group: arrow keys, Home and End move.
function picker(place, chosen) {
  const buttons = tokens.map((token, number) => {
    const button = make("button", place, token);
    button.type = "button";
    button.setAttribute("role", "radio");
    button.dir = "auto";
    button.onclick = () => choose(number);
    return button;
  });
  function choose(number) {
    buttons.forEach((button, other) => {
      button.setAttribute("aria-checked", other === number);
      button.tabIndex = other === number ? 0 : -1;
    });
    place.number = number;
    chosen();
  }
  place.onkeydown = event => {
    const to = { ArrowRight: place.number + 1, ArrowDown: place.number + 1, ArrowLeft: place.number - 1,
      ArrowUp: place.number - 1, Home: 0, End: n - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const number = (to + n) % n;
    choose(number);
    buttons[number].focus();
  };
  return () => choose(Math.min(1, n - 1));
}

// rows: names; value(row, column) from -1 to 1.
function heat(place, from, rows, value) {
  place.replaceChildren();
  const table = make("table", place, undefined, "heat map");
  const head = make("tr", make("thead", table));
  make("th", head, "%", "corner");
  tokens.forEach((token, column) => {
    make("span", make("th", head, undefined, column === from ? "tall chosen" : "tall"), token).title = token;
  });
  const body = make("tbody", table);
  rows.forEach((name, row) => {
    const line = make("tr", body);
    make("th", line, name);
    tokens.forEach((token, column) => {
      const v = value(row, column);
      const cell = make("td", line, Math.round(100 * v), v < 0 ? "wrong" : "right");
      cell.style.setProperty("--share", Math.sqrt(Math.abs(v)).toFixed(2));
      cell.title = name + ": " + tokens[from] + " \\u2192 " + token + " " + (100 * v).toFixed(0) + "%";
    });
  });
}

const at = name => document.querySelector(name);
const layer = at("#layer"), looking = at("#looking"), alike = at("#alike"), overview = at("#overview");

function drawAttention() {
  const maps = attention[layer.value], from = looking.number;
  const one = (head, to) => maps[(head * n + from) * n + to] / 255;
  const mean = to => { let sum = 0; for (let h = 0; h < heads; h++) sum += one(h, to); return sum / heads; };
  const names = ["all heads", ...Array.from({ length: heads }, (_, h) => "head " + (h + 1))];
  heat(at("#attention"), from, names, (row, to) => row ? one(row - 1, to) : mean(to));
  overview.querySelectorAll("tbody tr").forEach((row, l) => row.classList.toggle("chosen", l == layer.value));
}

function drawSimilarity() {
  const from = alike.number;
  const names = similarity.map((_, l) => l ? "layer " + l : "embeddings");
  heat(at("#similarity"), from, names, (l, to) => (similarity[l][from * n + to] - 127) / 127);
}

function drawOverview() {
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--train").trim();
  const rgb = [1, 3, 5].map(i => parseInt(ink.slice(i, i + 2), 16));
  overview.replaceChildren();
  const table = make("table", overview);
  const head = make("tr", make("thead", table));
  make("th", head, "layer");
  for (let h = 0; h < heads; h++) make("th", head, "head " + (h + 1));
  const body = make("tbody", table);
  attention.forEach((maps, l) => {
    const line = make("tr", body);
    make("th", line, l + 1);
    for (let h = 0; h < heads; h++) {
      const canvas = make("canvas", make("td", line));
      canvas.width = canvas.height = n;
      canvas.setAttribute("role", "img");
      canvas.title = "layer " + (l + 1) + ", head " + (h + 1);
      canvas.onclick = () => { layer.value = l; drawAttention(); };
      const pen = canvas.getContext("2d"), image = pen.createImageData(n, n);
      for (let i = 0; i < n * n; i++) {
        image.data.set(rgb, 4 * i);
        image.data[4 * i + 3] = 255 * Math.sqrt(maps[h * n * n + i] / 255);
      }
      pen.putImageData(image, 0, 0);
    }
  });
  drawAttention();
}

overview.onkeydown = event => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key], to = Number(layer.value) + step;
  if (!(to in attention)) return;
  event.preventDefault();
  layer.value = to;
  drawAttention();
};
attention.forEach((_, l) => { make("option", layer, l + 1).value = l; });
layer.value = attention.length - 1;
layer.onchange = drawAttention;
picker(looking, drawAttention)();
picker(alike, drawSimilarity)();
drawOverview();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOverview);
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
        return page(self.model, "an answer explained", summary, sections, style=STYLE, script=SCRIPT)

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

    def _maps(self) -> Sequence[str]:
        layers, heads, n = len(self.attention), len(self.attention[0]), len(self.tokens)
        shown = min(n, int((MOST_CELLS / (layers * heads)) ** 0.5))
        part = f'<p class="quiet">Of {n} tokens the first {shown} are shown.</p>' if shown < n else ""
        data = {
            "tokens": self.tokens[:shown],
            "attention": [_packed(layer[:, :shown, :shown] * 255) for layer in self.attention],
            "similarity": [_packed(layer[:shown, :shown] * 127 + 127) for layer in self.similarity],
        }
        # "<" would be the only way out of the element.
        content = json.dumps(data, ensure_ascii=True).replace("<", "\\u003c")
        quiet = '<noscript><p class="quiet">This part of the page needs its own script to run.</p></noscript>'
        attention = (
            f'<p class="warning">{escape(NOT_ATTRIBUTION)}</p>{part}{quiet}'
            '<p class="quiet">All heads: a row of a square is a token that looks, a column one that is looked at. '
            "Click a square for its layer, or go up and down with the arrow keys.</p>"
            '<div class="scroll overview" id="overview" tabindex="0" role="region" aria-label="All heads"></div>'
            '<p><label>Layer <select id="layer"></select></label> and the token that looks:</p>'
            '<div class="tokens" id="looking" role="radiogroup" aria-label="The token that looks"></div>'
            '<div class="scroll" id="attention" tabindex="0" role="region" aria-label="Attention by head"></div>'
        )
        similarity = (
            '<p>The cosine between the states of one token and of all others, from the embeddings to the last layer: '
            'the same word in two places begins alike and parts as its context is read.</p>' + part + quiet +
            '<div class="tokens" id="alike" role="radiogroup" aria-label="The token that is compared"></div>'
            '<div class="scroll" id="similarity" tabindex="0" role="region" aria-label="Similarity by layer"></div>'
            f'<script type="application/json" id="data">{content}</script>'
        )  # fmt: skip
        return [
            section("Where each token looks", attention),
            section("How alike tokens are, layer by layer", similarity),
        ]


def _packed(values: NDArray[np.float32]) -> str:
    """As bytes, in base64."""
    return b64encode(np.rint(values).clip(0, 255).astype(np.uint8).tobytes()).decode()
