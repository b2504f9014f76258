"""Show the OpenAPI document as a page for people, `GET /docs`.

It has every path, what it reads and what it answers.

It loads nothing else than the style sheet of the server's page, and needs no script.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.reports.svg import render

_TEMPLATE = Path(__file__).with_name("documentation.html")


def documentation(document: Mapping[str, Any]) -> bytes:
    """Return the page of an OpenAPI document, as HTML in UTF-8."""
    dumps = partial(json.dumps, indent=2, ensure_ascii=False)
    page = render(_TEMPLATE.read_text(encoding="utf-8"), document=document, dumps=dumps)
    return page.encode("utf-8", "backslashreplace")
