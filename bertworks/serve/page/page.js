"use strict";
// The page of `bertworks serve`: a form for each ability of the model, and its answers. Text from the model is shown as
// text, never as markup. All files come from this server.

const $ = name => document.getElementById(name);
const percent = p => `${(100 * p).toFixed(1)}%`;
const whole = p => `${Math.round(100 * p)}%`;
let key = "";

// --- asking

// wait: the seconds after which a busy server may get the request again.
class Refused extends Error {
  constructor(message, wait) {
    super(message);
    this.wait = wait;
  }
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const sent = body === undefined ? { headers, signal }
    : { method: "POST", headers, body: JSON.stringify(body), signal };
  let answer;
  try {
    answer = await fetch(path, sent);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is it still running?");
  }
  const number = name => Number(answer.headers.get(name));
  if (answer.ok) {
    return [await answer.json(), { texts: number("X-Truncated-Texts"), tokens: number("X-Truncated-Tokens") }];
  }
  throw new Refused(await inWords(answer), answer.status === 429 ? number("Retry-After") || 1 : undefined);
}

// What of the texts the model did not read, in words.
function leftOut({ texts, tokens }) {
  if (!texts) return "";
  const windows = info.windows > 1 ? `${info.windows} windows of ` : "";
  return `The model reads ${windows}${info.max_input_length} tokens: ${tokens} at the end of ` +
    `${texts === 1 ? "a text" : `${texts} texts`} were left out.`;
}

async function inWords(answer) {
  if (answer.status === 401) {
    $("key").hidden = false;
    $("token").focus();
    return key ? "This API key is not valid." : "This server requires an API key.";
  }
  const wait = answer.headers.get("Retry-After");
  if (answer.status === 429) return `The server is busy. Try again in ${wait ?? "some"} seconds.`;
  const said = await answer.json().then(found => found.error?.message ?? found.error, () => undefined);
  return typeof said === "string" ? said : `The server answered ${answer.status} ${answer.statusText}`.trim() + ".";
}

// Saves a file.
function hand(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// --- drawing

// Offsets of the server count characters (code points); strings of JavaScript count UTF-16 units. from, to: the part
// that is shown, undefined for all of it.
function marked(place, text, spans, from = 0, to = Infinity) {
  const characters = Array.from(text), last = Math.min(to, characters.length);
  let done = from;
  place.dir = "auto";
  for (const { start, end, type } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < done || end > last) continue;
    place.append(characters.slice(done, start).join(""));
    const mark = make("mark", place, characters.slice(start, end).join(""));
    if (type) make("small", mark, type);
    done = end;
  }
  place.append(characters.slice(done, last).join(""));
  return place;
}

const SNIPPET = 320, BEFORE = 60, MOST_MARKS = 200;  // characters; of them before the first match; matches compared

// Start and end of the part of a text, after `from`, that has the most different matches.
function snippet(text, spans, from) {
  const characters = Array.from(text), later = spans.filter(one => one.start >= from).slice(0, MOST_MARKS);
  if (characters.length - from <= 1.25 * SNIPPET) return [from, characters.length];
  const word = one => characters.slice(one.start, one.end).join("").toLowerCase();
  let start = from, most = 0;
  for (const first of later) {
    const within = later.filter(one => one.start >= first.start && one.end <= first.start + SNIPPET - BEFORE);
    const count = new Set(within.map(word)).size;
    if (count > most) [start, most] = [first.start, count];
  }
  const match = start;
  start = Math.max(from, start - BEFORE);
  while (start > from && start < match && /\S/.test(characters[start - 1])) start++;
  const end = Math.min(characters.length, start + SNIPPET);
  let space = end;
  while (space < characters.length && space > end - BEFORE && /\S/.test(characters[space])) space--;
  return [start, space > end - BEFORE ? space : end];
}

// How well a document fits, in words for people, and in figures.
function fitness({ id, score, cosine }, { ranking, rerank }) {
  const inWords = rerank ? `relevance ${info.labels.length ? whole(score) : score.toPrecision(3)}`
    : ranking === "bm25" ? `word score ${score.toFixed(2)}` : `similarity ${whole(cosine)}`;
  const figures = [`document ${id}`, `score ${score.toFixed(3)}`, cosine !== null && `cosine ${cosine.toFixed(3)}`];
  return [inWords, figures.filter(one => one).join(" \u00b7 ")];
}

// A document with its title first, its matches marked, and the whole text behind a snippet of it.
function hit(line, found, body) {
  const { title, text, fields, matches } = found;
  const spans = matches.map(([start, end]) => ({ start, end }));
  const from = title && text.startsWith(title) ? Array.from(title).length : 0;
  if (title) marked(make("h3", line), title, from ? spans : []);
  const [start, end] = snippet(text, spans, from), isWhole = start === from && end === Array.from(text).length;
  const place = marked(make("p", line), text, spans, start, end);
  if (start > from) place.prepend("… ");
  const also = Object.entries(fields).filter(([, value]) => value !== title).map(([name, value]) =>
    `${name}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  const [inWords, figures] = fitness(found, body), about = make("p", line, undefined, "quiet");
  about.dir = "auto";
  make("span", about, inWords, "fitness").title = figures;
  about.append(also.map(one => ` \u00b7 ${one}`).join(""));
  if (isWhole) return;
  if (end < Array.from(text).length) place.append(" …");
  const more = make("details", line);
  make("summary", more, "Whole text");
  marked(make("p", more), text, spans, from);
}

// rows: [name, share of the whole line or undefined, figure, remark]; ranked: the first is the best.
function bars(parent, rows, ranked = true) {
  const list = make("ul", parent, undefined, "bars");
  rows.forEach(([name, share, figure, remark], number) => {
    const line = make("li", list);
    make("span", line, name, ranked && !number ? "best" : "").dir = "auto";
    make("span", line, figure, "figure");
    if (remark) make("span", line, remark, "quiet");
    if (share === undefined) line.className = "plain";
    else line.style.setProperty("--share", Math.min(1, Math.max(0, share)).toFixed(4));
  });
}

const MOST_TARGETS = 6;  // labels that can be explained instead
const MOST_BOXES = 40;  // words in boxes with their values; more are a running text

// Words with their weights, blue for and orange against.
function chips(parent, title, { words, spaces }, values, remark) {
  make("h3", parent, title);
  const isLong = words.length > MOST_BOXES, place = make("div", parent, undefined, isLong ? "flow" : "chips");
  const most = Math.max(...values.map(Math.abs), 1e-12);
  if (isLong) place.dir = "auto";
  words.forEach((word, number) => {
    const value = values[number], style = value === 0 ? "frame" : value > 0 ? "right" : "wrong";
    const figure = value ? `${value > 0 ? "+" : ""}${value.toFixed(2)}` : "\u00a0";
    if (isLong) place.append(spaces[number]);
    const chip = make("span", place, undefined, isLong ? style : `chip ${style}`);
    make("bdi", chip, word);
    if (isLong) chip.title = figure;
    else make("small", chip, figure);
    chip.style.setProperty("--share", (Math.abs(value) / most).toFixed(3));
  });
  make("p", parent, remark, "quiet");
}

// The other labels of a text: a click explains one of them.
function offerTargets(place, { answer, explained }) {
  if (!["classification", "multilabel"].includes(info.task)) return place.remove();
  const others = answer.map(([name]) => name).filter(name => explained !== `the label “${name}” (log-odds)`);
  make("span", place, "Explain instead:", "quiet");
  for (const name of others.slice(0, MOST_TARGETS)) {
    const button = make("button", place, name, "other"), form = $("explain").querySelector("form");
    button.type = "button";
    button.dir = "auto";
    button.onclick = () => {
      form.elements.target.value = name;
      form.requestSubmit();
    };
  }
  return place;
}

// --- abilities: what is sent to the path of that name, and how the answer is shown; `show` returns it in a few words.
// `explained`: the texts of a request whose answer can be explained.

let info;

const lines = text => text.split("\n").map(line => line.trim()).filter(line => line);

// One item as the model reads it: a text, or a list of texts.
function item(fields) {
  const second = fields.second.value;
  if (info.reads === "choices") return [fields.text.value, ...lines(second)];
  return info.reads === "text" || !second.trim() ? fields.text.value : [fields.text.value, second];
}

const abilities = {
  fill: {
    sent: fields => ({ inputs: fields.text.value, top_k: 5 }),
    explained: ({ inputs }) => [inputs],
    show(place, answer, { inputs }) {
      const masks = Array.isArray(answer[0]) ? answer : [answer];  // of a single mask there is only its own list
      const parts = inputs.split(info.mask_token), filled = make("div", place, undefined, "said");
      filled.dir = "auto";
      const words = masks.map(([best]) => best.token_str.trim().replace(/^##/, ""));  // as they are written in a text
      parts.forEach((part, number) => {
        filled.append(part);
        if (number < words.length) make("mark", filled, words[number]);
      });
      masks.forEach((found, number) => {
        if (masks.length > 1) make("h3", place, `Blank ${number + 1}`);
        bars(place, found.map(one => [one.token_str, one.score, percent(one.score)]));
      });
      return words.join(", ");
    },
  },
  predict: {
    sent: fields => ({ inputs: item(fields) }),
    explained: ({ inputs }) => [inputs].flat(),
    show(place, labels) {
      if (info.task === "regression") return labels[0].score.toPrecision(4);
      bars(place, labels.map(one => [one.label, one.score, percent(one.score), one.given && "given"]));
      if (info.task !== "multilabel") return `${labels[0].label}, ${percent(labels[0].score)}`;
      return labels.filter(one => one.given).map(one => one.label).join(", ") || "none of the labels";
    },
  },
  rerank: {
    sent: fields => ({ query: fields.query.value, texts: lines(fields.texts.value) }),
    show(place, ranked, { texts }) {
      const [, fits] = info.labels;  // of a model for numbers there are no labels, and a number has no share
      if (fits) make("p", place, `How probable the label “${fits}” is for the query with each text.`, "quiet");
      bars(place, ranked.map(({ index, score }) =>
        [texts[index], fits && score, fits ? percent(score) : score.toPrecision(4)]));
      return ranked.length ? `Fits best: ${texts[ranked[0].index]}` : "Nothing to rank";
    },
  },
  ner: {
    sent: fields => ({ inputs: fields.text.value }),
    explained: ({ inputs }) => [inputs],
    show(place, entities, { inputs }) {
      marked(make("div", place, undefined, "said"), inputs, entities.map(one => ({ ...one, type: one.entity_group })));
      bars(place, entities.map(one => [one.word, one.score, `${one.entity_group} ${percent(one.score)}`]), false);
      return entities.length === 1 ? "1 entity" : `${entities.length || "no"} entities`;
    },
  },
  qa: {
    sent: fields => ({ inputs: { question: fields.question.value, context: fields.context.value }, top_k: 3 }),
    explained: ({ inputs }) => [inputs.question, inputs.context],
    show(place, answer, { inputs }) {
      marked(make("div", place, undefined, "said"), inputs.context, answer.answer ? [answer] : []);
      if (answer.n_best.length) make("h3", place, "Most probable answers");
      bars(place, answer.n_best.map(one => [one.answer || "(no answer)", one.score, percent(one.score)]));
      return answer.answer || "The passage does not say";
    },
  },
  translate: {
    sent: fields => ({ texts: fields.text.value.split("\n"), target_language: fields.language.value || null }),
    explained: ({ texts, target_language: language }) =>
      texts.length === 1 && [language ? `>>${language}<< ${texts[0]}` : texts[0]],
    show(place, answers) {
      const box = make("div", place, undefined, "said");
      for (const one of answers) make("p", box, one.translation).dir = "auto";
      const cut = answers.filter(one => one.finish_reason === "max_tokens").length;
      const lines = answers.length === 1 ? "Translated" : `Translated ${answers.length} lines`;
      return cut ? `${lines}. At the limit of their tokens, and maybe without their end: ${cut}.` : lines;
    },
  },
  similarity: {
    sent: fields => ({ inputs: { source_sentence: fields.text.value, sentences: lines(fields.others.value) } }),
    show(place, cosines, { inputs }) {
      const found = inputs.sentences.map((text, number) => [text, cosines[number], cosines[number].toFixed(3)]);
      found.sort((a, b) => b[1] - a[1]);
      bars(place, found);
      return found.length ? `Closest: ${found[0][0]}` : "Nothing to compare";
    },
  },
  search: {
    sent: fields => ({ query: fields.query.value, k: 10, ranking: fields.ranking.value,
      rerank: fields.rerank.checked, matches: true }),
    show(place, hits, body) {
      const list = make("ol", place, undefined, "hits");
      for (const found of hits) hit(make("li", list), found, body);
      return hits.length === 1 ? "1 document" : `${hits.length || "no"} documents`;
    },
  },
  explain: {
    sent: fields => ({ inputs: item(fields), target: fields.target.value.trim() || null, maps: true }),
    show(place, found) {
      for (const note of found.notes) make("p", place, `${note}.`, "quiet");
      const rows = info.task === "tagging" ? found.answer.filter(([, tag]) => tag !== "O") : found.answer;
      const share = figure => figure.endsWith("%") ? parseFloat(figure) / 100 : undefined;
      bars(place, rows.map(([name, figure]) => [name, share(figure), figure]), !IN_ORDER.includes(info.task));
      if (found.explained) {
        make("h2", place, "Attributions");
        offerTargets(make("div", place, undefined, "examples"), found);
        make("p", place, `Blue words increase ${found.explained}, orange words decrease it.`);
        if (found.gradients) chips(place, "Integrated gradients", found, found.gradients,
          `From ${found.baseline} in place of every word to the text. Completeness error ` +
          `${found.completeness_error.toFixed(4)}, ${found.steps} steps.`);
        if (found.occlusion) chips(place, "Occlusion", found, found.occlusion,
          `How much the output falls when a single word is replaced by ${found.baseline}. The two methods measure ` +
          "different things. Where they agree, trust them more.");
      }
      if (found.translation_maps) {
        make("h2", place, "Who reads whom in the translation");
        make("p", place, "A row is a token of the translation, a column is a token of the text. The figures are in " +
          "percent: the attention of the step that wrote the token, as the mean over the heads.");
        drawTranslation(make("div", place), found);
      }
      place.append($("maps").content.cloneNode(true));
      if (!found.explained) for (const folded of place.querySelectorAll("details")) folded.open = true;
      drawAttention(place.querySelector(".attention"), found);
      drawSimilarity(place.querySelector(".similarity"), found);
      if (found.translation_maps) return "Who reads whom in the translation";
      return found.sentence || "Attention and similarity of the text";
    },
  },
};

// --- panels: a form, a line that says how it stands, the answer, and what can be done with it

let openTab;  // opens the tab of an ability

function explainThese(place, [text, ...others]) {
  const button = make("button", make("p", place), "Explain this", "other");
  button.type = "button";
  button.onclick = () => {
    const form = $("explain").querySelector("form"), fields = form.elements;
    [fields.text.value, fields.second.value, fields.target.value] = [text, others.join("\n"), ""];
    openTab("explain");
    $("explain-tab").focus();
    form.requestSubmit();
  };
}

function panel(section) {
  const form = section.querySelector("form"), { sent, show, explained } = abilities[section.id];
  const status = make("p", section, "", "status"), answer = make("div", section, undefined, "answer");
  const after = make("div", section, undefined, "after");
  status.setAttribute("role", "status");
  const say = (text, style = "") => { status.textContent = text; status.className = `status ${style}`; };
  const many = section.id === "predict" ? offerMany(form, say) : () => undefined;
  let newest;
  form.onsubmit = async event => {
    event.preventDefault();
    newest?.abort();
    const mine = newest = new AbortController();
    section.ariaBusy = "true";
    say("Computing…");
    try {
      const source = many();
      if (source) {
        const about = await predictMany(source, answer, after, say, mine.signal);
        if (mine !== newest) return;
        say(about);
        section.ariaBusy = "false";
        return;
      }
      const body = sent(form.elements), [found, missing] = await ask(section.id, body, mine.signal);
      if (mine !== newest) return;
      answer.replaceChildren();
      after.replaceChildren();
      say([show(answer, found, body), leftOut(missing)].filter(one => one).join(" "));
      const texts = info.abilities.includes("explain") && explained?.(body);
      if (texts) explainThese(after, texts);
      showCode(after, section.id, body, key);
    } catch (error) {
      if (mine !== newest) return;
      answer.replaceChildren();
      after.replaceChildren();
      say(error instanceof Refused ? error.message : `The answer could not be shown: ${error.message}`, "error");
    }
    section.ariaBusy = "false";
  };
  offerExamples(form);
  form.onkeydown = event => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(); };
}

// The examples of the server: a click fills in the form, and sends it if nothing else is missing.
function offerExamples(form) {
  const isBlank = form.parentElement.id === "fill";
  const texts = info.examples.filter(text => !isBlank || text.includes(info.mask_token));
  if (!texts.length) return;
  const fields = [...form.querySelectorAll("textarea, input:not([type=checkbox], [type=file], [name=target])")]
    .filter(field => !field.closest(".second[hidden]"));
  const place = make("div", form, undefined, "examples");
  make("span", place, texts.length === 1 ? "Example:" : "Examples:", "quiet");
  for (const text of texts) {
    const parts = fields.length > 1 ? text.split("\t").map(part => part.trim()) : [text];
    const chip = make("button", place, parts.join(" \u00b7 "), "other");
    chip.type = "button";
    chip.title = text;
    chip.dir = "auto";
    chip.onclick = () => {
      form.dispatchEvent(new Event("example"));  // a file gives way to it
      fields.forEach((field, number) => {
        if (parts[number] !== undefined || !field.required) field.value = parts[number] ?? "";
      });
      if (form.checkValidity()) form.requestSubmit();
      else form.querySelector(":invalid").focus();
    };
  }
}

// Tabs as the ARIA practices have them: one is reached by Tab, the others by arrow keys, Home and End. The address
// names the open tab; a click adds one to the history.
function tabs(sections) {
  const made = sections.map((section, number) => {
    const tab = make("button", $("tabs"), section.dataset.name);
    tab.type = "button";
    tab.id = `${section.id}-tab`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", section.id);
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", tab.id);
    tab.onclick = () => choose(number);
    return tab;
  });
  const place = name => sections.findIndex(section => `#${section.id}` === name);
  let now = Math.max(0, place(location.hash) < 0 ? place("#search") : place(location.hash));
  function choose(number, isVisit = true) {
    now = number;
    made.forEach((tab, other) => {
      tab.ariaSelected = String(other === now);
      tab.tabIndex = other === now ? 0 : -1;
      sections[other].hidden = other !== now;
    });
    const address = `#${sections[now].id}`;
    if (location.hash === address) return;
    if (isVisit) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  }
  addEventListener("hashchange", () => choose(place(location.hash) < 0 ? now : place(location.hash), false));
  openTab = name => choose(place(`#${name}`));
  $("tabs").onkeydown = event => {
    const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: made.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose((to + made.length) % made.length, false);
    made[now].focus();
  };
  choose(now, false);
}

// --- the page

const TASKS = { classification: "one label for a text", multilabel: "labels for a text",
  regression: "a number for a text", tagging: "tags of words", spans: "entities", qa: "answers to questions",
  choice: "one of several choices", translation: "translations of texts", "masked-lm": "words in the place of blanks", embedding: "vectors of texts" };
const READS = { pair: ["First text", "Second text"], "text or pair": ["Text", "Second text, if there is one"],
  question: ["Question", "Passage"], choices: ["Beginning", "Choices, one per line"] };
const TARGETS = { classification: "Explain another label", multilabel: "Explain another label",
  tagging: "Explain another word", spans: "Explain another word",
  "masked-lm": "Explain another word" };
const IN_ORDER = ["choice", "tagging", "spans"];  // whose answers stand in the order of the text, and not of merit
const RANKINGS = { hybrid: "meaning and words", dense: "meaning", bm25: "words" };

function fit() {
  const names = READS[info.reads];
  for (const place of names ? document.querySelectorAll(".second") : []) {
    const [first, second] = place.closest("form").querySelectorAll("label");
    [first.textContent, second.textContent] = names;
    place.hidden = false;
    place.querySelector("textarea").required = info.reads !== "text or pair";
  }
  if (TARGETS[info.task]) {
    const target = document.querySelector(".target");
    target.hidden = false;
    target.querySelector("label").textContent = `${TARGETS[info.task]} (optional)`;
    if (!IN_ORDER.includes(info.task)) {
      for (const name of info.labels) make("option", $("explain-labels")).value = name;
    }
  }
  const verb = { regression: "Score", choice: "Choose" }[info.task] ?? "Classify";
  $("predict").dataset.name = $("predict").querySelector("button:not([type])").textContent = verb;
  for (const place of document.querySelectorAll(".mask")) place.textContent = info.mask_token;
  const text = $("fill-text");
  text.placeholder = text.placeholder.replace("[MASK]", info.mask_token);
  $("insert").onclick = () => {
    text.setRangeText(info.mask_token, text.selectionStart, text.selectionEnd, "end");
    text.focus();
  };
  for (const name of info.index?.rankings ?? []) {
    make("option", $("search-ranking"), RANKINGS[name] ?? name).value = name;
  }
  for (const name of info.target_languages) make("option", $("translate-language"), name).value = name;
  document.querySelector(".language").hidden = !info.target_languages.length;
  document.querySelector(".rerank").hidden = !info.index?.rerank;
}

async function start() {
  try {
    [info] = await ask("info");
  } catch (error) {
    $("about").textContent = error.message;
    return;
  }
  $("key").hidden = true;
  document.title = `${info.model_id} \u00b7 bertworks`;
  $("model").textContent = info.model_id;
  $("about").textContent = [TASKS[info.task] ?? info.task, info.labels.length && `${info.labels.length} labels`,
    info.index && `${info.index.documents.toLocaleString("en")} documents`,
    `up to ${info.max_input_length} tokens`].filter(part => part).join(" \u00b7 ");
  fit();
  const sections = [...document.querySelectorAll("main > section")];
  sections.filter(section => !info.abilities.includes(section.id)).forEach(section => section.remove());
  const offered = sections.filter(section => section.isConnected);
  offered.forEach(panel);
  if (offered.length) tabs(offered);
  document.querySelector("main").hidden = document.querySelector("footer").hidden = false;
}

// A link carries no key: where one is required, the page gets the file and hands it over.
for (const link of document.querySelectorAll("footer a")) {
  link.onclick = async event => {
    if (!key) return;
    event.preventDefault();
    const answer = await fetch(link.href, { headers: { Authorization: `Bearer ${key}` } });
    if (answer.ok) hand(await answer.blob(), link.dataset.file);
  };
}

$("key").onsubmit = event => {
  event.preventDefault();
  key = $("token").value;
  $("key").hidden = true;
  if (!info) start();
};
start();
