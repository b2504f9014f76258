"use strict";
// Many texts at once, as lines or in a file: read in the browser, sent in batches, shown as a table that can be saved.

const MOST_TEXTS = 5000, LARGEST_FILE = 20_000_000;  // bytes
const TEXTS_AT_ONCE = 32;  // of one client that many always wait, however slow the model is
const MOST_ROWS = 200;  // that are shown
const SAMPLE = 100;  // rows from which the column of the texts is inferred

const grouped = number => number.toLocaleString("en");
const counted = (number, what) => `${grouped(number)} ${what}${number === 1 ? "" : "s"}`;

// --- files

// The rows of a table. A cell within quotation marks may hold delimiters and line breaks.
function cellsOf(text, delimiter, isQuoting = true) {
  const rows = [];
  let row = [], cell = "", isQuoted = false;
  for (let at = 0; at < text.length; at++) {
    const character = text[at];
    if (isQuoted && character !== '"') cell += character;
    else if (isQuoted && text[at + 1] === '"') cell += text[++at];
    else if (isQuoted) isQuoted = false;
    else if (isQuoting && character === '"' && !cell) isQuoted = true;
    else if (character === delimiter || character === "\n") {
      row.push(cell);
      cell = "";
      if (character === "\n") rows.push(row);
      if (character === "\n") row = [];
    } else cell += character;
  }
  if (isQuoted) return undefined;
  if (cell || row.length) rows.push([...row, cell]);
  return rows.filter(cells => cells.some(one => one.trim()));
}

// The delimiter that is most frequent in the first line.
function delimiterOf(text) {
  const [line] = text.split("\n", 1), count = mark => line.split(mark).length;
  return [",", ";", "\t"].reduce((best, mark) => count(mark) > count(best) ? mark : best);
}

// Whether the first row of a table has names: short ones, all different, and no numbers.
const hasNames = ([first]) => new Set(first).size === first.length &&
  first.every(cell => cell.trim() && cell.length <= 40 && Number.isNaN(Number(cell)));

const widthOf = rows => Math.max(...rows.slice(0, SAMPLE).map(row => row.length));

// The number of the column with the longest texts.
function textColumn(rows) {
  const sample = rows.slice(0, SAMPLE);
  const sizes = Array.from({ length: widthOf(rows) }, (_, column) =>
    sample.reduce((sum, row) => sum + (row[column]?.length ?? 0), 0));
  return sizes.indexOf(Math.max(...sizes));
}

// A file as rows; a line of a text file is a row of one cell.
async function rowsOf(file) {
  const [ending] = file.name.toLowerCase().match(/\.[a-z0-9]+$/) ?? [""];
  const large = `this page reads ${(LARGEST_FILE / 1e6)} MB and ${grouped(MOST_TEXTS)} texts at most. ` +
    `For larger files there is the command: bertworks predict MODEL ${file.name}`;
  if (![".csv", ".tsv", ".txt"].includes(ending)) {
    throw new Refused(`${file.name}: expected a file that ends in .csv, .tsv or .txt. ` +
      "Spreadsheet programs can save such files.");
  }
  if (file.size > LARGEST_FILE) throw new Refused(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB: ${large}`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const encoding = { "255,254": "utf-16le", "254,255": "utf-16be" }[bytes.slice(0, 2).join()] ?? "utf-8";
  let text;
  try {
    text = new TextDecoder(encoding, { fatal: true }).decode(bytes).replace(/\r\n?/g, "\n");
  } catch {
    throw new Refused(`${file.name} is not UTF-8. Save it as UTF-8, or as “CSV UTF-8”.`);
  }
  if (text.includes("\0")) throw new Refused(`${file.name} is not a text file. Save it as CSV.`);
  let rows = text.split("\n").filter(line => line.trim()).map(line => [line.trim()]);
  if (ending === ".csv") rows = cellsOf(text, delimiterOf(text));
  if (ending === ".tsv") rows = cellsOf(text, "\t") ?? cellsOf(text, "\t", false);
  if (!rows) throw new Refused(`${file.name}: a quotation mark is never closed.`);
  if (!rows.length) throw new Refused(`${file.name} has no text.`);
  if (rows.length > MOST_TEXTS + 1) {
    throw new Refused(`${file.name} has ${grouped(rows.length)} rows: ${large}`);
  }
  return { rows, isTable: ending !== ".txt" };
}

// --- the form

// Lets a form take lines and files, and returns a function: the texts that it holds, with the columns of their rows, or
// undefined for a single text. say: shows a line.
function offerMany(form, say) {
  if (!["text", "text or pair"].includes(info.reads)) return () => undefined;
  const place = form.querySelector(".many"), about = place.querySelector(".file"), each = place.querySelector(".each");
  const { text, second, file, column, header, each: isEach } = form.elements;
  const isOne = () => info.reads !== "text" && second.value.trim();
  let table;  // name, rows, isTable
  place.hidden = false;
  form.oninput = () => { each.hidden = Boolean(table || isOne() || lines(text.value).length < 2); };

  function describe() {
    about.hidden = !table;
    text.disabled = second.disabled = Boolean(table);
    form.oninput();
    if (!table) return;
    const names = header.checked ? table.rows[0] : [];
    const chosen = column.value === "" ? textColumn(table.rows.slice(header.checked ? 1 : 0)) : column.value;
    column.replaceChildren();
    for (let n = 0; n < widthOf(table.rows); n++) {
      make("option", column, names[n]?.trim() || `column ${n + 1}`).value = n;
    }
    column.value = chosen;
    const count = table.rows.length - header.checked;
    about.querySelector("span").textContent = `${table.name}: ${counted(count, "row")}`;
    about.querySelector(".columns").hidden = !table.isTable;
  }

  async function open(chosen) {
    table = undefined;
    column.replaceChildren();
    try {
      if (chosen) table = { name: chosen.name, ...await rowsOf(chosen) };
      header.checked = Boolean(table?.isTable && table.rows.length > 1 && hasNames(table.rows));
      if (form.parentElement.querySelector(".status.error")) say("");
    } catch (error) {
      say(error instanceof Refused ? error.message : `The file could not be read: ${error.message}`, "error");
    }
    if (!table) file.value = "";
    describe();
  }

  form.addEventListener("example", () => open());
  file.onchange = () => open(file.files[0]);
  header.onchange = describe;
  about.querySelector("button").onclick = () => open();
  const hasFile = event => event.dataTransfer.types.includes("Files");
  form.ondragover = event => {
    if (!hasFile(event)) return;
    event.preventDefault();
    form.classList.add("target-of-drop");
  };
  form.ondragleave = () => form.classList.remove("target-of-drop");
  form.ondrop = event => {
    form.classList.remove("target-of-drop");
    if (!hasFile(event)) return;
    event.preventDefault();
    file.value = "";
    open(event.dataTransfer.files[0]);
  };

  return () => {
    if (table) {
      const rows = table.rows.slice(header.checked ? 1 : 0);
      const names = [...column.options].map(option => option.text), at = Number(column.value);
      if (!rows.some(row => row[at]?.trim())) throw new Refused(`${table.name} has no text in “${names[at]}”.`);
      const name = table.name.replace(/\.[^.]*$/, "-predicted");
      return { name, columns: table.isTable ? names : ["text"], rows, at };
    }
    const rows = isOne() || !isEach.checked ? [] : lines(text.value).map(line => [line]);
    if (rows.length < 2) return undefined;
    if (rows.length > MOST_TEXTS) {
      throw new Refused(`${grouped(rows.length)} lines: this page takes ${grouped(MOST_TEXTS)} texts at most.`);
    }
    return { name: "predictions", columns: ["text"], rows, at: 0 };
  };
}

// --- predicting

// Texts in parts that the server accepts: by their number, their bytes, and the tokens that they may have.
function* batchesOf(texts) {
  const { body_bytes, tokens, texts: most } = info.limits, encoder = new TextEncoder();
  const longest = info.max_input_length * Math.max(1, info.windows);
  const atOnce = Math.max(1, Math.min(TEXTS_AT_ONCE, most, Math.floor(tokens / longest)));
  let batch = [], bytes = 0;
  for (const text of texts) {
    const size = encoder.encode(JSON.stringify(text)).length + 3;
    if (batch.length && (batch.length === atOnce || bytes + size > body_bytes / 2)) {
      yield batch;
      [batch, bytes] = [[], 0];
    }
    batch.push(text);
    bytes += size;
  }
  if (batch.length) yield batch;
}

const manyBody = texts => ({ inputs: texts.map(text => [text]) });

// The columns of a prediction, as `bertworks predict` names them, and its cells.
function predicted(labels) {
  if (info.task === "regression") return { predicted_value: labels[0].score };
  if (info.task !== "multilabel") return { predicted_label: labels[0].label, predicted_score: labels[0].score };
  return { predicted_labels: labels.filter(one => one.given).map(one => one.label).join("; ") };
}

// All labels with the number of their texts, the most frequent first; of numbers the smallest and the largest.
function summary(predictions) {
  const count = counted(predictions.length, "text");
  if (info.task === "regression") {
    const values = predictions.map(one => one.predicted_value);
    return `${count}, from ${Math.min(...values).toPrecision(3)} to ${Math.max(...values).toPrecision(3)}`;
  }
  const counts = new Map();
  for (const { predicted_label: label, predicted_labels: names } of predictions) {
    for (const name of label === undefined ? names.split("; ") : [label]) counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const ranked = [...counts].sort((a, b) => b[1] - a[1]), others = ranked.length - 5;
  const first = ranked.slice(0, 5).map(([name, number]) => `${grouped(number)} ${name || "without a label"}`);
  return `${count}: ${first.join(", ")}${others > 0 ? `, and ${counted(others, "other label")}` : ""}`;
}

function csvOf(columns, rows) {
  const cell = value => /[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  // with the mark by which spreadsheet programs recognise UTF-8
  return `\ufeff${[columns, ...rows].map(row => row.map(one => cell(String(one))).join(",")).join("\n")}\n`;
}

const paused = seconds => new Promise(done => setTimeout(done, 1000 * seconds));

// Predicts many texts and shows them; what is predicted stays if it stops before the end. Returns a line about them.
async function predictMany({ name, columns, rows, at }, answer, after, say, signal) {
  const numbers = rows.flatMap((row, number) => row[at]?.trim() ? [number] : []);  // others have no prediction
  const texts = numbers.map(number => rows[number][at]), predictions = [], missing = { texts: 0, tokens: 0 };
  let isStopped = false, ending = "";
  answer.replaceChildren();
  after.replaceChildren();
  const bar = make("progress", after), stop = make("button", make("p", after), "Stop", "other");
  bar.max = texts.length;
  bar.setAttribute("aria-label", "Texts that are predicted");
  stop.type = "button";
  const stopping = new Promise(done => { stop.onclick = () => { isStopped = true; done(); }; });
  for (const batch of batchesOf(texts)) {
    let found;
    while (!found && !isStopped && !ending) {
      say(`${grouped(predictions.length)} of ${grouped(texts.length)} texts…`);
      bar.value = predictions.length;
      try {
        found = await ask("predict", manyBody(batch), signal);
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        if (error.wait) await Promise.race([paused(error.wait), stopping]);
        else ending = error.message;
        signal.throwIfAborted();
      }
    }
    if (!found) break;
    predictions.push(...found[0].map(predicted));
    missing.texts += found[1].texts;
    missing.tokens += found[1].tokens;
  }
  after.replaceChildren();
  if (predictions.length < texts.length) {
    const next = numbers[predictions.length] + 1;
    ending = `Stopped before row ${grouped(next)}${ending ? `: ${ending}` : "."}`;
  }
  if (!predictions.length) throw new Refused(ending);
  drawMany(answer, texts, predictions);
  const save = make("button", make("p", after), "Save as CSV", "other"), parts = Object.keys(predictions[0]);
  save.type = "button";
  save.onclick = () => {
    const byRow = new Map(predictions.map((one, number) => [numbers[number], one]));
    const cells = rows.map((row, number) =>
      [...columns.map((_, n) => row[n] ?? ""), ...parts.map(part => byRow.get(number)?.[part] ?? "")]);
    hand(new Blob([csvOf([...columns, ...parts], cells)], { type: "text/csv" }), `${name}.csv`);
  };
  showCode(after, "predict", manyBody(texts.slice(0, 3)), key);
  const without = rows.length - texts.length;
  const blank = without ? `Without a text: ${counted(without, "row")}.` : "";
  return [`${summary(predictions)}.`, blank, leftOut(missing), ending].filter(one => one).join(" ");
}

// The first predictions as a table.
function drawMany(place, texts, predictions) {
  const list = table(place, "Predictions", "list"), { predicted_label: label, predicted_value: value } = predictions[0];
  const head = make("tr", make("thead", list)), body = make("tbody", list);
  make("th", head, "Text");
  make("th", head, value !== undefined ? "Value" : label !== undefined ? "Label" : "Labels");
  if (label !== undefined) make("th", head, "Probability");
  predictions.slice(0, MOST_ROWS).forEach((one, number) => {
    const row = make("tr", body);
    make("div", make("td", row), texts[number]).dir = "auto";
    const shown = one.predicted_label ?? one.predicted_labels ?? one.predicted_value.toPrecision(4);
    make("td", row, shown || "none of the labels").dir = "auto";
    if (label !== undefined) make("td", row, percent(one.predicted_score), "figure");
  });
  if (predictions.length > MOST_ROWS) {
    make("p", place, `The first ${MOST_ROWS} are shown; the file has all of them.`, "quiet");
  }
}
