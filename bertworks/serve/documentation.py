"""The OpenAPI document as a page for people, `GET /docs`: every path, what it reads and what it
answers.

It loads nothing else than the style sheet of the server's page, and needs no script.
"""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="page.css">
<main>
<h1>{title}</h1>
<p>The same as a document for programs: <a href="openapi.json">openapi.json</a>.</p>
{operations}
{schemas}
</main>
</html>
"""


def documentation(document: Mapping[str, Any]) -> bytes:
    """Return the page of an OpenAPI document, as HTML in UTF-8."""
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f'<details id="{escape(name)}"><summary>{escape(name)}</summary>{_json(schema)}</details>'
        for name, schema in document["components"]["schemas"].items()
    ]
    title = escape(document["info"]["title"])
    page = _PAGE.format(title=title, operations="\n".join(operations), schemas="\n".join(schemas))
    return page.encode("utf-8", "backslashreplace")


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    """The section of a path: its summary, the request, and the answer with each status."""
    parts = [f"<h2>{method.upper()} {escape(path)}</h2>", f"<p>{escape(operation['summary'])}</p>"]
    if "requestBody" in operation:
        parts.append(f"<h3>Request</h3>{_content(operation['requestBody'])}")
    answer = operation["responses"]["200"]
    parts.append(f"<h3>Answer</h3>{_content(answer)}")
    refusals = [
        f"{status}: {response['description']}"
        for status, response in operation["responses"].items()
        if status != "200"
    ]
    parts.append(f"<p>{escape('; '.join(refusals))}</p>")
    return f"<section>{''.join(parts)}</section>"


def _content(body: Mapping[str, Any]) -> str:
    (content,) = body["content"].values()
    return _json(content["schema"])


def _json(schema: Any) -> str:
    return f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre>"
