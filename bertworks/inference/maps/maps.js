"use strict";
// Draws who attends to whom and which tokens are alike. Shared by the page of `bertworks explain`, which carries it
// inside, and by the page of `bertworks serve`. Text only ever becomes text.

// An element at the end of another one.
function make(name, parent, text, style) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  parent.append(made);
  return made;
}

const dark = matchMedia("(prefers-color-scheme: dark)");

// Maps of the explanation, from base64: one byte a number.
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

// A row of tokens of which one is chosen, as in a radio group: arrow keys, Home and End move.
function picker(parent, label, tokens, chosen) {
  const place = make("div", parent, undefined, "tokens");
  place.setAttribute("role", "radiogroup");
  place.setAttribute("aria-label", label);
  const buttons = tokens.map((token, number) => {
    const button = make("button", place, token);
    button.type = "button";
    button.setAttribute("role", "radio");
    button.dir = "auto";
    button.onclick = () => choose(number);
    return button;
  });
  let now = Math.min(1, tokens.length - 1);
  function choose(number) {
    now = number;
    buttons.forEach((button, other) => {
      button.setAttribute("aria-checked", other === now);
      button.tabIndex = other === now ? 0 : -1;
    });
    chosen(now);
  }
  place.onkeydown = event => {
    const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0,
      End: tokens.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose((to + tokens.length) % tokens.length);
    buttons[now].focus();
  };
  return () => choose(now);
}

// A table that scrolls on its own where it is too wide.
function table(parent, label, style) {
  const place = make("div", parent, undefined, "scroll");
  place.tabIndex = 0;
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", label);
  return make("table", place, undefined, style);
}

// Fills a table with numbers from -1 to 1. from: the token that is compared, undefined: none; rows: names;
// value(row, column).
function heat(map, tokens, from, rows, value) {
  map.replaceChildren();
  const head = make("tr", make("thead", map));
  make("th", head, "%", "corner");
  tokens.forEach((token, column) => {
    make("span", make("th", head, undefined, column === from ? "tall chosen" : "tall"), token).title = token;
  });
  const body = make("tbody", map);
  rows.forEach((name, row) => {
    const line = make("tr", body);
    make("th", line, name);
    tokens.forEach((token, column) => {
      const v = value(row, column);
      const cell = make("td", line, Math.round(100 * v), v < 0 ? "wrong" : "right");
      cell.style.setProperty("--share", Math.sqrt(Math.abs(v)).toFixed(2));
      const reader = from === undefined ? name : `${name}: ${tokens[from]}`;
      cell.title = `${reader} \u2192 ${token} ${(100 * v).toFixed(0)}%`;
    });
  });
}

// All heads as small squares, then one layer and one token in figures. data: `Explanation.maps()`.
function drawAttention(place, data) {
  if (!data.attention.length) {
    make("p", place, "This network has no self-attention.", "quiet");
    return;
  }
  const tokens = data.tokens, n = tokens.length;
  const attention = data.attention.map(bytes), heads = attention[0].length / (n * n);
  place.replaceChildren();
  make("p", place, "All heads: a row of a square is the token that attends, a column is the token it attends to. " +
    "Click a square to select its layer, or use the arrow keys.", "quiet");
  const overview = table(place, "All heads", "overview");
  const label = make("label", make("p", place), "Layer ");
  const layer = make("select", label);
  label.after(" and the token that attends:");
  attention.forEach((_, l) => { make("option", layer, l + 1).value = l; });
  layer.value = attention.length - 1;
  let from = 0;
  const draw = picker(place, "The token that attends", tokens, number => { from = number; drawLayer(); });
  const map = table(place, "Attention by head", "map");

  function drawLayer() {
    const maps = attention[layer.value];
    const one = (head, to) => maps[(head * n + from) * n + to] / 255;
    const mean = to => { let sum = 0; for (let h = 0; h < heads; h++) sum += one(h, to); return sum / heads; };
    const names = ["all heads", ...Array.from({ length: heads }, (_, h) => `head ${h + 1}`)];
    heat(map, tokens, from, names, (row, to) => row ? one(row - 1, to) : mean(to));
    overview.querySelectorAll("tbody tr").forEach((row, l) => row.classList.toggle("chosen", l == layer.value));
  }

  function drawOverview() {
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--train").trim();
    const rgb = [1, 3, 5].map(i => parseInt(ink.slice(i, i + 2), 16));
    overview.replaceChildren();
    const head = make("tr", make("thead", overview));
    make("th", head, "layer");
    for (let h = 0; h < heads; h++) make("th", head, `head ${h + 1}`);
    const body = make("tbody", overview);
    attention.forEach((maps, l) => {
      const line = make("tr", body);
      make("th", line, l + 1);
      for (let h = 0; h < heads; h++) {
        const canvas = make("canvas", make("td", line));
        canvas.width = canvas.height = n;
        canvas.title = `layer ${l + 1}, head ${h + 1}`;
        canvas.onclick = () => { layer.value = l; drawLayer(); };
        const pen = canvas.getContext("2d"), image = pen.createImageData(n, n);
        for (let i = 0; i < n * n; i++) {
          image.data.set(rgb, 4 * i);
          image.data[4 * i + 3] = 255 * Math.sqrt(maps[h * n * n + i] / 255);
        }
        pen.putImageData(image, 0, 0);
      }
    });
    drawLayer();
  }

  overview.parentElement.onkeydown = event => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key], to = Number(layer.value) + step;
    if (!(to in attention)) return;
    event.preventDefault();
    layer.value = to;
    drawLayer();
  };
  layer.onchange = drawLayer;
  draw();
  drawOverview();
  dark.onchange = drawOverview;
}

// What the tokens of a translation read of the text: of the last layer, and of all.
function drawTranslation(place, data) {
  const n = data.tokens.length;
  for (const [name, layers] of [["Last layer", "last_layer"], ["Mean of all layers", "all_layers"]]) {
    const weights = bytes(data.translation_maps[layers]), value = (row, to) => weights[row * n + to] / 255;
    make("h3", place, name);
    heat(table(place, name, "map"), data.tokens, undefined, data.translation_tokens, value);
  }
}

// One token beside all others, layer by layer.
function drawSimilarity(place, data) {
  const tokens = data.tokens, n = tokens.length, similarity = data.similarity.map(bytes);
  const names = similarity.map((_, l) => l ? `layer ${l}` : "embeddings");
  place.replaceChildren();
  const draw = picker(place, "The token that is compared", tokens, from => {
    heat(map, tokens, from, names, (l, to) => (similarity[l][from * n + to] - 127) / 127);
  });
  const map = table(place, "Similarity by layer", "map");
  draw();
}

// The page of `bertworks explain` carries its maps.
const carried = document.getElementById("data");
if (carried) {
  const maps = JSON.parse(carried.textContent);
  if (maps.translation_maps) drawTranslation(document.getElementById("translation"), maps);
  drawAttention(document.getElementById("attention"), maps);
  drawSimilarity(document.getElementById("similarity"), maps);
}
