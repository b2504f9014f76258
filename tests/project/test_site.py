"""The site of the documentation: its navigation has every page, no page needs another host, and its
search works without a network."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from urllib.parse import urlsplit

import pytest

from tests.support import ROOT

SPHINX = all(map(find_spec, ("sphinx", "myst_parser", "furo")))
NO_SPHINX = "the extra `site` is not installed; `make site` installs it"
RESOURCES = {  # elements for which a browser sends a request by itself: where the address is
    "link": "href",
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "embed": "src",
    "object": "data",
    "video": "src",
    "audio": "src",
}


class Resources(HTMLParser):
    """Collects the addresses of what a page is made of: its scripts, styles, images and fonts."""

    def __init__(self, page: str):
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page)
        self.addresses += re.findall(r"url\([\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in RESOURCES and (address := attributes.get(RESOURCES[tag])):
            self.addresses.append(address)


def other_hosts(text: str) -> list[str]:
    """Addresses of other hosts from which a page or a style sheet loads something."""
    page = Resources(text)
    addresses = ["".join(address) for address in page.addresses]
    return [address for address in addresses if urlsplit(address).netloc]


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<img src="http://example/x.png">',
        "@font-face { src: url('https://fonts.example/x.woff2') }",
        '@import "https://fonts.example/x.css";',
    ],
)
def test_a_resource_of_another_host_is_recognized(text: str):
    assert len(other_hosts(text)) == 1
    assert other_hosts(re.sub(r"(https?:)?//[\w.]+/", "../", text)) == []


def test_the_navigation_has_every_page_once():
    parts = run_path(str(ROOT / "docs" / "conf.py"))["navigation"]()
    pages = [page.removeprefix("/") for _, names in parts for page in names]
    by_conf = {"README", "docs/README"}  # the front page, and the list itself
    written = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        if not re.match(r"2\d{3}-", path.name)  # months of the log, which are below its first page
    }
    assert sorted(pages) == sorted(written - by_conf)
    headings = [heading for heading, _ in parts]
    assert headings[0] == "Begin"
    assert headings[-3:] == ["Concepts", "Reference", "The project"]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Iterator[Path]:
    """The site, built as `make site` does."""
    if not SPHINX:
        pytest.skip(NO_SPHINX)
    folder = tmp_path_factory.mktemp("site")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\t@\$\(BIN\)/python (-m sphinx .+)$", makefile, re.MULTILINE)
    assert " -W " in command, "a warning is an error: all links lead somewhere"
    words = shlex.split(command.replace("build/", f"{folder}/"))
    process = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return folder / "site"


@pytest.mark.slow
def test_every_page_is_built_and_needs_no_other_host(site: Path):
    pages = sorted(site.rglob("*.html"))
    sheets = sorted(site.rglob("*.css"))
    markdown = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert {path.relative_to(ROOT).with_suffix(".html") for path in markdown} <= {
        page.relative_to(site) for page in pages
    }
    assert sheets
    for path in pages + sheets:
        assert other_hosts(path.read_text(encoding="utf-8")) == [], path
    front = (site / "index.html").read_text(encoding="utf-8")
    assert front == (site / "README.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_links_within_the_site_lead_to_files(site: Path):
    """Also to files that are no pages: examples, and sources that a page names."""
    for page in site.rglob("*.html"):
        links = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8"))
        local = [link for link in links if not urlsplit(link).scheme]
        assert local
        assert [link for link in local if not (page.parent / link).exists()] == [], page


@pytest.mark.slow
def test_the_search_works_without_a_network(site: Path):
    playwright = pytest.importorskip("playwright.sync_api")
    if not (chromium := shutil.which("chromium")):
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 390, "height": 844}, offline=True).new_page()
        faults: list[str] = []
        requests: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390, "no sideways scrolling"
        page.goto(f"{(site / 'search.html').as_uri()}?q=temperature")
        page.wait_for_selector("#search-results li a")
        results = page.locator("#search-results li a").all_inner_texts()
        assert "How sure is my model?" in results
        page.get_by_role("link", name="How sure is my model?").last.click()
        assert page.inner_text("h1").startswith("How sure is my model?")
        assert faults == []
        assert requests
        assert [address for address in requests if not address.startswith("file:")] == []
        browser.close()
