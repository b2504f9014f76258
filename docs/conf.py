"""Settings of Sphinx for the site of the documentation: `make site`.

- `navigation`: the parts of the site and their pages, from the headings and links of docs/README.md
- `add_navigation`: adds them to the front page, when Sphinx reads it

The source folder is that of the repository, so that all links between pages work here as they do on
a code host. Nothing in a page comes from another host.
"""

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

ROOT = Path(__file__).parents[1]
FRONT_PAGE = "README"
LIST_OF_PAGES = "docs/README"
LOG = "docs/experiments/README"
_VERSION = re.search(
    r'^__version__ = "(.+)"$',
    (ROOT / "bertworks" / "__init__.py").read_text(encoding="utf-8"),
    re.MULTILINE,
)

project = "bertworks"
release = _VERSION[1] if _VERSION else ""
root_doc = FRONT_PAGE
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
language = "en"

# Anchors are those of code hosts; an image in HTML is copied into the site as one in Markdown is.
myst_heading_anchors = 6
myst_heading_slug_func = "github"
myst_enable_extensions = ["html_image"]
suppress_warnings = ["myst.header"]  # a page of the reference may skip a level

html_theme = "furo"
html_title = f"{project} {release}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_search_summary = False  # a browser refuses to read other files of a folder for it
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False  # commands within texts are copied
pygments_style = "default"
pygments_dark_style = "github-dark"


def navigation() -> list[tuple[str, list[str]]]:
    """Return the headings of the list of pages, and the pages below each, as paths of Sphinx.

    A heading without pages of its own is left out.
    """
    text = (ROOT / LIST_OF_PAGES).with_suffix(".md").read_text(encoding="utf-8")
    folder = posixpath.dirname(LIST_OF_PAGES)
    parts = []
    for section in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, content = section.partition("\n")
        links = re.findall(r"\]\(([^)#]+)\.md\)", content)
        pages = ["/" + posixpath.normpath(posixpath.join(folder, link)) for link in links]
        if pages:
            parts.append((heading.partition(":")[0], list(dict.fromkeys(pages))))
    return parts


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Add the hidden lists of pages that Sphinx makes the navigation of."""
    if page == FRONT_PAGE:
        source[0] += _toctree("", [f"All pages </{LIST_OF_PAGES}>"])
        source[0] += "".join(_toctree(heading, pages) for heading, pages in navigation())
    if page == LOG:
        months = sorted((ROOT / LOG).parent.glob("2*.md"))
        source[0] += _toctree("", [month.stem for month in months])


def _toctree(caption: str, pages: list[str]) -> str:
    options = [":hidden:"]
    if caption:
        options.append(f":caption: {caption}")
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def copy_front_page(app: Any, error: Exception | None) -> None:
    """Make the front page what a server of files, or a person who opens the folder, looks for."""
    if error is None and app.builder.name == "html":
        folder = Path(app.outdir)
        shutil.copyfile(folder / f"{FRONT_PAGE}.html", folder / "index.html")


def setup(app: Any) -> None:
    """Connect what is above with Sphinx."""
    for table in ("csv", "tsv"):
        app.add_lexer(table, TextLexer)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", copy_front_page)
