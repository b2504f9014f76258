"use strict";
// A request as code that can be copied, for curl and for Python. The key of the server is never part of it: an
// environment variable stands for it.

const KEY_VARIABLE = "BERTWORKS_API_KEY";
const addressOf = path => new URL(path, document.baseURI).href;

// As one word of a shell.
const inShell = text => `'${text.replaceAll("'", "'\\''")}'`;

// A value of JSON as Python writes it.
function inPython(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(inPython).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${inPython(one)}`).join(", ")}}`;
}

function curlCode(path, body, hasKey) {
  const key = hasKey ? [`-H "Authorization: Bearer $${KEY_VARIABLE}"`] : [];
  return [`curl ${inShell(addressOf(path))}`, ...key, "-H 'Content-Type: application/json'",
    `-d ${inShell(JSON.stringify(body))}`].join(" \\\n  ");
}

function pythonCode(path, body, hasKey) {
  const key = hasKey ? [`    "Authorization": "Bearer " + os.environ["${KEY_VARIABLE}"],`] : [];
  return [
    "import json", ...(hasKey ? ["import os"] : []), "import urllib.request", "",
    `body = ${inPython(body)}`,
    "headers = {", ...key, '    "Content-Type": "application/json",', "}",
    `url = ${JSON.stringify(addressOf(path))}`,
    "request = urllib.request.Request(url, json.dumps(body).encode(), headers)",
    "with urllib.request.urlopen(request) as answer:", "    print(json.load(answer))",
  ].join("\n");
}

// The request, folded; a button copies it, or selects it where a page may not copy.
function showCode(parent, path, body, hasKey) {
  const folded = make("details", parent, undefined, "code");
  make("summary", folded, "This request as code");
  for (const [name, text] of [["curl", curlCode(path, body, hasKey)], ["Python", pythonCode(path, body, hasKey)]]) {
    const head = make("div", folded, undefined, "line");
    make("strong", head, name);
    const copy = make("button", head, "Copy", "other"), code = make("code", make("pre", folded), text);
    copy.type = "button";
    copy.setAttribute("aria-label", `Copy the code for ${name}`);
    code.parentElement.tabIndex = 0;
    copy.onclick = async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {  // no page of this machine, not HTTPS, or not allowed
        getSelection().selectAllChildren(code);
        copy.textContent = "Selected: now press Ctrl+C";
      }
    };
  }
  if (hasKey) make("p", folded, `The environment variable ${KEY_VARIABLE} has to hold your API key.`, "quiet");
}
