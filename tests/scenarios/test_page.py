"""The page of a server, in a real browser by clicking and by keyboard: it shows what the server
says, only that, and in it text stays text."""

import ast
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import bertworks
from bertworks.inference.explain import MAPS
from bertworks.retrieval.index import Index
from bertworks.serve.application import PAGE
from tests.inference.test_explain import ATTACK, NOT_ATTRIBUTION, SIMILARITY, write_task_model
from tests.support.fine import write_translator

FILES = [
    *(
        PAGE / name
        for name in ("index.html", "page.js", "code.js", "many.js", "page.css", "icon.svg")
    ),
    *(MAPS / name for name in ("maps.js", "maps.css")),
]
TEXT = "the film was good , Anna"
# characters of one and of two UTF-16 units
JAPANESE = "🎉👩‍🚀 東京で Anna が 𠮷野家 lives in Paris 🍜 . とても good"
MARKUP = "<img src=x onerror=alert(1)></p>"  # of few tokens: an explanation is short
LONG = "Donaudampfschifffahrtsgesellschaft" * 6
DOCUMENTS = [ATTACK, "the men and dogs in Oslo", "music in Kyoto 🎌 last night", LONG]
NAMES = {
    "fill": "Fill blanks",
    "predict": "Classify",
    "translate": "Translate",
    "rerank": "Rank",
    "ner": "Entities",
    "qa": "Questions",
    "similarity": "Similarity",
    "search": "Search",
    "explain": "Explain",
}


# --- without a browser


def test_nothing_on_the_page_makes_markup_of_text():
    unsafe = r"(inner|outer)HTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|eval\("
    unsafe += r"|Function\(|setHTML"
    for path in FILES:
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(unsafe, text), path
        assert not re.search(r"https?:|//\w", text), path


class Tags(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        assert tag not in ("style", "iframe", "object", "base")
        assert tag != "script" or attributes["src"]
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        if tag in ("input", "textarea", "select") and attributes.get("type") != "checkbox":
            self.fields.add(attributes["id"])
        self.labelled |= {attributes["for"]} if tag == "label" and "for" in attributes else set()


def test_the_page_has_nothing_inline_and_a_label_for_every_field():
    tags = Tags()
    tags.fields, tags.labelled = set(), set()
    tags.feed((PAGE / "index.html").read_text())
    assert tags.fields
    assert tags.fields == tags.labelled


def test_the_page_says_of_attention_what_an_explanation_says():
    said = " ".join((PAGE / "index.html").read_text().split())
    assert NOT_ATTRIBUTION in said
    assert SIMILARITY in said


# --- servers and a browser

# Has imported everything once, and forks servers: a line in says what one is to serve, a line out
# where it is.
NURSERY = """
import json, os, sys
from bertworks.serve.server import serve
import bertworks.serve.application, uvicorn
for line in sys.stdin:
    if os.fork() == 0:
        for event in serve(port=0, **json.loads(line)):
            print(json.dumps({"pid": os.getpid(), **event.fields}), flush=True)
        os._exit(0)
"""
Serve = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def serve() -> Iterator[Serve]:
    pytest.importorskip("starlette", reason="the extra serve is not installed")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", NURSERY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    ) as process:

        def serve(model: Path, **options: str) -> dict[str, Any]:
            print(json.dumps({"model": str(model), **options}), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield serve
        os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def models(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of tiny models: of a task, with a head drawn at random; "pairs", which says whether
    two texts fit; or "tiny", the model without a head."""
    folder = tmp_path_factory.mktemp("served")

    def models(task: str) -> Path:
        if task == "tiny":
            return model
        if (folder / task).exists():
            return folder / task
        if task == "translation":
            return write_translator(folder / task, length=32)
        if task == "pairs":
            return write_task_model(model, folder / task, "classification", ("no", "yes"))
        return write_task_model(model, folder / task, task)

    return models


@pytest.fixture(scope="module")
def at(
    serve: Serve, models: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """Where a model is served, the one without a head together with documents."""
    known: dict[str, str] = {}

    def at(task: str) -> str:
        if task not in known:
            options = {}
            if task == "tiny":
                options["index"] = str(tmp_path_factory.mktemp("index") / "i")
                index = Index.create(options["index"], models(task))
                index.add(DOCUMENTS, fields=[{ATTACK: ATTACK}] * len(DOCUMENTS))
            known[task] = serve(models(task), **options)["url"]
        return known[task]

    return at


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    if not (chromium := shutil.which("chromium")):
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as started:
        yield started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])


WATCH = (
    "addEventListener('securitypolicyviolation', e => console.error(`policy: "
    "${e.violatedDirective} ${e.blockedURI}`))"
)


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page. At the end: nothing went wrong in it, and no request left for another
    host."""
    contexts, faults = [], []

    def visit(url: str, *, width: int = 1000, dark: bool = False, ready: str = "[role=tab]") -> Any:
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light")
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        page.add_init_script(WATCH)
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.on(
            "request",
            lambda request: (
                request.url.startswith(url.partition("#")[0]) or faults.append(request.url)
            ),
        )
        page.goto(url)
        page.wait_for_selector(ready)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not [
        fault for fault in faults if not fault.startswith("Failed to load resource")
    ]  # a refusal that was meant


def ask(page: Any, name: str, **fields: str) -> str:
    """Fills in a form by mouse and sends it: what the page says, in a line."""
    page.click(f"#{name}-tab")
    for field, text in fields.items():
        page.fill(f"#{name} [name={field}]", text)
    page.click(f"#{name} form button:not([type])")
    return answered(page, name)


def answered(page: Any, name: str) -> str:
    page.wait_for_selector(f"#{name}[aria-busy=false]")
    return page.text_content(f"#{name} [role=status]")


def said(page: Any, path: str, **body: Any) -> Any:
    """What the server says to a program."""
    answer = page.request.post(page.url.partition("#")[0] + path, data=body)
    assert answer.ok, answer.text()
    return answer.json()


def texts(page: Any, selector: str) -> list[str]:
    return page.locator(selector).all_text_contents()


def everywhere(page: Any, text: str) -> Iterator[tuple[str, str]]:
    """With the same text in all fields: the name of each ability, and what the page says, in a
    line."""
    for name in page.locator("section").evaluate_all("all => all.map(e => e.id)"):
        page.click(f"#{name}-tab")
        inputs = "input:not([type=checkbox], [type=file], [name=target])"
        fields = page.locator(f"#{name} form :is(textarea, {inputs}):visible")
        yield (
            name,
            ask(
                page,
                name,
                **dict.fromkeys(fields.evaluate_all("all => all.map(e => e.name)"), text),
            ),
        )


def percent(p: float) -> str:
    return f"{100 * p:.1f}%"


# --- every ability, by clicking


@pytest.mark.parametrize(
    ("task", "offered"),
    [
        ("tiny", ["fill", "similarity", "search", "explain"]),
        ("classification", ["predict", "explain"]),
        ("pairs", ["predict", "rerank", "explain"]),
        ("tagging", ["ner", "explain"]),
        ("qa", ["qa", "explain"]),
        ("translation", ["translate", "explain"]),
    ],
)
def test_only_what_the_model_offers_is_shown(
    at: Callable[[str], str], visit: Callable[..., Any], task: str, offered: list[str]
):
    page = visit(at(task))
    assert texts(page, "[role=tab]") == [NAMES[name] for name in offered]
    assert page.locator("section").count() == len(offered)
    assert page.text_content("h1") in page.title()


def test_blanks_are_filled(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    page.click("#fill-tab")
    page.fill("#fill-text", "🎉 the  was")
    page.evaluate("document.getElementById('fill-text').setSelectionRange(7, 7)")
    page.click("#insert")
    assert page.input_value("#fill-text") == "🎉 the [MASK] was"
    text = "🎉 the [MASK] was [MASK] ."
    says = ask(page, "fill", text=text)
    masks = said(page, "fill", inputs=text, top_k=5)
    assert says == ", ".join(found[0]["token_str"].removeprefix("##") for found in masks)
    assert texts(page, "#fill .bars li") == [
        one["token_str"] + percent(one["score"]) for found in masks for one in found
    ]
    first, second = texts(page, "#fill .said mark")
    assert texts(page, "#fill .said") == [f"🎉 the {first} was {second} ."]


def test_a_text_is_classified(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("classification"))
    says = ask(page, "predict", text=TEXT)
    labels = said(page, "predict", inputs=TEXT)
    assert says == f"{labels[0]['label']}, {percent(labels[0]['score'])}"
    assert texts(page, "#predict .bars li") == [
        one["label"] + percent(one["score"]) for one in labels
    ]
    shares = page.evaluate(
        "[...document.querySelectorAll('.bars li')].map(e => +e.style.getPropertyValue('--share'))"
    )
    assert shares == pytest.approx([one["score"] for one in labels], abs=1e-3)
    pair = ask(page, "predict", text=TEXT, second="men and dogs")
    assert pair.endswith(percent(said(page, "predict", inputs=[TEXT, "men and dogs"])[0]["score"]))


@pytest.mark.parametrize(
    ("task", "name"), [("regression", "Score"), ("choice", "Choose"), ("multilabel", "Classify")]
)
def test_other_heads(at: Callable[[str], str], visit: Callable[..., Any], task: str, name: str):
    page = visit(at(task))
    assert (
        texts(page, "[role=tab]")[0]
        == page.text_content("#predict form button:not([type])")
        == name
    )
    says = ask(page, "predict", text=TEXT, second="good\n\na dog")
    if task == "choice":
        (best, *_) = said(page, "predict", inputs=[TEXT, "good", "a dog"])
        assert says == f"{best['label']}, {percent(best['score'])}"
        return
    found = said(page, "predict", inputs=[TEXT, "good\n\na dog"])
    if task == "regression":
        assert float(says) == pytest.approx(found[0]["score"], rel=1e-3)
    else:
        assert says == (
            ", ".join(one["label"] for one in found if one["given"]) or "none of the labels"
        )
        assert page.locator("#predict .bars .quiet").count() == sum(one["given"] for one in found)


@pytest.mark.parametrize("task", ["pairs", "regression"])
def test_texts_are_put_in_order(at: Callable[[str], str], visit: Callable[..., Any], task: str):
    page = visit(at(task))
    given = ["men and dogs", TEXT, "music 🎌"]
    says = ask(page, "rerank", query="good men", texts="\n".join(given) + "\n\n")
    ranked = [
        (given[one["index"]], one["score"])
        for one in said(page, "rerank", query="good men", texts=given)
    ]
    assert len({score for _, score in ranked}) == len(given)
    assert says == f"Fits best: {ranked[0][0]}"
    rows = page.locator("#rerank .bars li").all()
    assert [row.locator("span").first.text_content() for row in rows] == [
        text for text, _ in ranked
    ]
    figures = texts(page, "#rerank .bars .figure")
    if task == "pairs":
        assert figures == [percent(score) for _, score in ranked]
        assert "“yes”" in page.text_content("#rerank .answer p")
    else:
        assert [float(one) for one in figures] == pytest.approx(
            [score for _, score in ranked], rel=1e-3
        )
        assert page.locator("#rerank .bars .plain").count() == len(given)


@pytest.mark.parametrize("text", [TEXT, JAPANESE])
def test_entities_are_marked_where_they_stand(
    at: Callable[[str], str], visit: Callable[..., Any], text: str
):
    page = visit(at("tagging"))
    ask(page, "ner", text=text)
    entities = said(page, "ner", inputs=text)
    assert entities
    assert any(ord(c) > 0xFFFF for c in text[: entities[-1]["start"]]) == (text == JAPANESE)
    assert texts(page, "#ner mark") == [
        text[one["start"] : one["end"]] + one["entity_group"] for one in entities
    ]
    page.evaluate("document.querySelectorAll('#ner mark small').forEach(label => label.remove())")
    assert texts(page, "#ner .said") == [text]
    assert texts(page, "#ner .best") == []


@pytest.mark.parametrize("context", ["Anna lives in Paris . the men was good", JAPANESE])
def test_the_answer_is_marked_in_the_passage(
    at: Callable[[str], str], visit: Callable[..., Any], context: str
):
    page = visit(at("qa"))
    says = ask(page, "qa", question="where lives Anna ?", context=context)
    answer = said(
        page, "qa", inputs={"question": "where lives Anna ?", "context": context}, top_k=3
    )
    assert answer["answer"]
    assert says == answer["answer"] == context[answer["start"] : answer["end"]]
    assert texts(page, "#qa mark") == [says]
    before = page.evaluate("document.querySelector('#qa mark').previousSibling.textContent")
    assert before == context[: answer["start"]]
    assert texts(page, "#qa .said") == [context]
    assert texts(page, "#qa .bars li") == [
        one["answer"] + percent(one["score"]) for one in answer["n_best"]
    ]


def test_lines_are_translated(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("translation"))
    lines = ["the film was good", "", ATTACK[:8]]
    status = ask(page, "translate", text="\n".join(lines))
    answers = said(page, "translate", texts=lines)
    assert status.startswith("Translated 3 lines")
    assert texts(page, "#translate .said p") == [one["translation"] for one in answers]
    assert not page.is_visible("#translate-language")
    assert ask(page, "translate", text=lines[0]).startswith("Translated")
    assert texts(page, "#translate .said p") == [answers[0]["translation"]]


def test_a_translation_is_explained(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("translation"))
    status = ask(page, "explain", text="Anna lives in Oslo")
    assert status == "Who reads whom in the translation"
    answer = said(page, "explain", inputs="Anna lives in Oslo")
    assert texts(page, "#explain h3")[:2] == ["Last layer", "Mean of all layers"]
    for number, layers in enumerate(("last_layer", "all_layers")):
        table = page.locator("#explain .map").nth(number)
        assert table.locator("thead th").all_text_contents() == ["%", *answer["tokens"]]
        assert table.locator("tbody th").all_text_contents() == answer["translation_tokens"]
        cells = [int(text) for text in table.locator("td").all_text_contents()]
        weights = [100 * weight for row in answer["reading"][layers] for weight in row]
        assert cells == pytest.approx(weights, abs=0.8)  # of a byte each, and rounded


def test_texts_are_compared(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    others = ["men and dogs", TEXT, "music 🎌"]
    says = ask(page, "similarity", text=TEXT, others="\n".join(others) + "\n\n")
    cosines = said(page, "similarity", inputs={"source_sentence": TEXT, "sentences": others})
    ranked = sorted(zip(cosines, others, strict=True), reverse=True)
    assert says == f"Closest: {TEXT}"
    assert texts(page, "#similarity .bars li") == [f"{text}{cosine:.3f}" for cosine, text in ranked]


@pytest.mark.parametrize("ranking", ["hybrid", "dense", "bm25"])
def test_documents_are_found(at: Callable[[str], str], visit: Callable[..., Any], ranking: str):
    page = visit(at("tiny"))
    page.click("#search-tab")
    page.select_option("#search-ranking", ranking)
    ask(page, "search", query="music in Kyoto")
    hits = said(page, "search", query="music in Kyoto", ranking=ranking)
    assert hits[0]["text"] == DOCUMENTS[2] or ranking == "dense"
    assert texts(page, "#search .hits p:first-child") == [hit["text"] for hit in hits]
    figures = page.locator("#search .hits .fitness").all()
    for figure, one in zip(figures, hits, strict=True):
        beside = [] if ranking == "bm25" else [f"cosine {one['cosine']:.3f}"]
        hover = [f"document {one['id']}", f"score {one['score']:.3f}", *beside]
        assert figure.get_attribute("title").split(" · ") == hover
        name, number = figure.text_content().rsplit(" ", 1)
        assert name == ("word score" if ranking == "bm25" else "similarity")
        value = one["score"] if ranking == "bm25" else 100 * one["cosine"]
        assert float(number.rstrip("%")) == pytest.approx(value, abs=0.5001)


def test_stop_words_of_a_query_are_not_marked(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    ask(page, "search", query="the men in Oslo")
    assert set(texts(page, "#search mark")) == {"men", "Oslo"}


TITLED = [
    {
        "title": "Old dogs",
        "text": f"Old dogs 🎉 {'the men and ' * 60}the dogs in Oslo heard{' music' * 80} .",
        "year": 1901,
    },
    {"title": ATTACK, "text": f"{ATTACK} {MARKUP} the dog", "year": 1902},
    {"title": "", "text": "𠮷野家 の dogs", "year": 1903},
    {"title": "Towns", "text": "東京都に住む" * 90 + "dogs" + "山" * 200, "year": 1904},
]


@pytest.fixture(scope="module")
def titled(serve: Serve, model: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where documents with titles are served, with English stems."""
    folder = tmp_path_factory.mktemp("titled") / "i"
    index = Index.create(folder, model, language="english")
    fields = [{name: value for name, value in row.items() if name != "text"} for row in TITLED]
    index.add([row["text"] for row in TITLED], fields=fields)
    return serve(model, index=str(folder))["url"]


@pytest.mark.parametrize("width", [1000, 390])
def test_documents_show_titles_and_snippets_with_the_words_that_were_found(
    titled: str, visit: Callable[..., Any], width: int
):
    page = visit(titled, width=width)
    assert page.locator("[role=tabpanel]:visible").get_attribute("id") == "search"
    page.select_option("#search-ranking", "bm25")
    ask(page, "search", query="the dogs of Oslo")
    hits = said(page, "search", query="the dogs of Oslo", ranking="bm25", matches=True)
    assert {hit["title"] for hit in hits} == {row["title"] for row in TITLED}
    for line, hit in zip(page.locator(".hits > li").all(), hits, strict=True):
        title, text = hit["title"], hit["text"]
        first = len(title) if text.startswith(title) else 0
        rest = text[first:]
        assert line.locator("h3").all_text_contents() == ([title] if title else [])
        assert line.evaluate("e => e.firstChild.tagName") == ("H3" if title else "P")
        shown = line.locator("p").first.text_content()
        assert shown.removeprefix("… ").removesuffix(" …") in rest
        assert len(shown) <= 1.25 * 320 + 4
        assert "dog" in shown
        assert line.locator("details").count() == (len(rest) > 1.25 * 320)
        assert {mark.lower() for mark in line.locator("mark").all_text_contents()} <= {
            "dogs",
            "dog",
            "oslo",
        }
        assert line.locator("> p mark").count()
        if line.locator("details").count():
            assert line.locator("details p").text_content() == rest
            found = [text[a:b] for a, b in hit["matches"] if a >= first]
            assert line.locator("details mark").all_text_contents() == found
            line.locator("summary").focus()
            page.keyboard.press("Enter")
            assert line.locator("details p").is_visible()
        assert hit["title"] == "" or f"title: {title}" not in line.text_content()
        assert f"year: {hit['fields']['year']}" in line.text_content()
    assert (
        "Oslo"
        in page.locator(".hits > li", has_text="Old dogs").locator("> p").first.text_content()
    )
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert [(text, value) for value, text in page.evaluate(CONTRASTS) if value < 4.5] == []


def test_the_page_of_an_index_opens_on_search(
    titled: str, at: Callable[[str], str], visit: Callable[..., Any]
):
    for url, opened in [
        (titled, "search"),
        (f"{titled}#fill", "fill"),
        (f"{titled}#nowhere", "search"),
    ]:
        assert visit(url).get_by_role("tab", selected=True).text_content() == NAMES[opened]
    assert visit(at("pairs")).get_by_role("tab", selected=True).text_content() == NAMES["predict"]


def test_an_explanation_lists_all_labels_with_bars(
    serve: Serve, model: Path, tmp_path: Path, visit: Callable[..., Any]
):
    labels = [f"label {n}" for n in range(12)]
    page = visit(serve(write_task_model(model, tmp_path / "m", "classification", labels))["url"])
    ask(page, "explain", text=TEXT)
    answer = bertworks.explain(tmp_path / "m", TEXT).answer
    shown = page.locator("#explain .bars li").evaluate_all(
        "all => all.map(e => [e.firstChild.textContent, +e.style.getPropertyValue('--share')])"
    )
    assert [(name, f"{share:.1%}") for name, share in shown] == list(answer)
    assert {name for name, _ in shown} == set(labels)


@pytest.mark.parametrize("task", ["tiny", "classification", "tagging", "qa", "choice"])
def test_an_answer_is_explained(at: Callable[[str], str], visit: Callable[..., Any], task: str):
    page = visit(at(task))
    fields = {"text": "the [MASK] was good"}
    if task in ("qa", "choice"):
        fields["second"] = "Anna lives in Paris" if task == "qa" else "good\na dog"
    says = ask(page, "explain", **fields)
    for summary in page.locator("#explain .answer summary").all():
        summary.click()
    inputs = (
        [fields["text"], *fields.get("second", "").split("\n")]
        if "second" in fields
        else fields["text"]
    )
    found = said(page, "explain", inputs=inputs)
    assert says == found["sentence"]
    assert says
    assert texts(page, "#explain .chip bdi") == found["words"] * 2
    assert page.locator("#explain canvas").count() == found["layers"] * found["heads"]
    assert texts(page, "#explain .tokens button") == found["tokens"] * 2
    assert NOT_ATTRIBUTION in " ".join(page.text_content("#explain .warning").split())
    page.select_option("#explain .answer select", "0")
    rows = page.locator(".attention .map tbody tr")
    assert rows.count() == 1 + found["heads"]
    page.click(".attention .tokens button >> nth=2")
    assert page.locator(".attention .map thead .chosen").text_content() == found["tokens"][2]
    for row in rows.all():
        assert sum(map(int, row.locator("td").all_text_contents())) == pytest.approx(
            100, abs=len(found["tokens"])
        )


def test_another_answer_is_explained(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tagging"))
    found = said(page, "explain", inputs=TEXT)
    ask(page, "explain", text=TEXT)
    assert texts(page, "#explain .bars li") == [
        word + tag for word, tag in found["answer"] if tag != "O"
    ]
    assert "“Anna”" in ask(page, "explain", text=TEXT, target="Anna")
    assert "'dog' is not in the text" in ask(page, "explain", text=TEXT, target="dog")
    page = visit(at("classification"))
    labels = page.locator("#explain-labels option").evaluate_all("all => all.map(e => e.value)")
    assert set(labels) == {"pos", "neg", "even"}
    for label in labels:
        says = ask(page, "explain", text=TEXT, target=label)
        assert says == said(page, "explain", inputs=TEXT, target=label)["sentence"]
        assert f"the label “{label}” (log-odds)" in page.text_content("#explain .answer")
        others = page.locator("#explain .answer .examples button")
        assert set(others.all_text_contents()) == set(labels) - {label}
    name = others.first.text_content()
    others.first.click()
    page.wait_for_selector(f"#explain .answer:has-text('increase the label “{name}”')")
    assert page.input_value("#explain-target") == name


def test_a_long_explanation_is_a_running_text(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("classification"), width=390)
    text = "the men , and dogs. " * 9
    ask(page, "explain", text=text)
    found = said(page, "explain", inputs=text)
    flow = page.locator("#explain .flow").first
    assert flow.text_content() == "".join(
        space + word for space, word in zip(found["spaces"], found["words"], strict=True)
    )
    assert flow.locator("span").nth(1).get_attribute("title") == f"{found['gradients'][1]:+.2f}"
    assert page.locator("#explain .chip").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390


# --- from an answer to others


@pytest.mark.parametrize("task", ["tiny", "classification", "tagging", "qa", "choice"])
def test_an_answer_leads_to_its_explanation(
    at: Callable[[str], str], visit: Callable[..., Any], task: str
):
    page = visit(at(task))
    name, fields = {
        "tiny": ("fill", {"text": "the [MASK] was"}),
        "tagging": ("ner", {"text": TEXT}),
        "qa": ("qa", {"question": "where lives Anna ?", "context": "Anna lives in Oslo"}),
        "choice": ("predict", {"text": TEXT, "second": "good\na dog"}),
    }.get(task, ("predict", {"text": TEXT}))
    ask(page, name, **fields)
    for field in fields:  # what was asked is explained, not what stands in the form now
        page.fill(f"#{name} [name={field}]", "another")
    page.evaluate("document.querySelector('#explain [name=target]').value = 'of another text'")
    page.click(f"#{name} .after button:has-text('Explain this')")
    assert page.locator("[role=tabpanel]:visible").get_attribute("id") == "explain"
    says = answered(page, "explain")
    parts = [part for field in fields.values() for part in field.split("\n")]
    found = said(page, "explain", inputs=parts if len(parts) > 1 else parts[0])
    assert says == found["sentence"]
    assert focused(page) == "explain-tab"
    page.go_back()
    assert page.locator("[role=tabpanel]:visible").get_attribute("id") == name
    assert page.locator(f"#{name} .answer").text_content()


def test_what_cannot_be_explained_has_no_such_button(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("translation"))
    button = "#translate .after button:has-text('Explain this')"
    ask(page, "translate", text="the film\nwas good")
    assert page.locator(button).count() == 0
    ask(page, "translate", text="the film was good")
    page.click(button)
    assert answered(page, "explain") == "Who reads whom in the translation"
    page = visit(at("tiny"))
    ask(page, "search", query="Oslo")
    assert page.locator("#search .after > p button").count() == 0


QUOTED = 'it\'s "50 %" of $HOME `ls` \\ 🎉\nAnna'


@pytest.mark.parametrize("token", ["", "a long word"])
def test_a_request_is_shown_as_code_that_runs(
    serve: Serve, models: Callable[[str], Path], visit: Callable[..., Any], token: str
):
    """The key is no part of it."""
    options = {"token": token} if token else {}
    page = visit(
        serve(models("qa"), **options)["url"], ready="#key:visible" if token else "[role=tab]"
    )
    if token:
        page.fill("#token", token)
        page.keyboard.press("Enter")
    ask(page, "qa", question="where lives Anna ?", context=QUOTED)
    assert not page.is_visible("#qa pre")
    page.click("#qa .code summary")
    curl, python = texts(page, "#qa pre")
    assert token == "" or token not in page.text_content("body")
    assert ("$BERTWORKS_API_KEY" in curl) == bool(token)
    environment = {**os.environ, "BERTWORKS_API_KEY": token}
    answers = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        for command in (["sh", "-c", curl], [sys.executable, "-c", python])
    ]
    answer = json.loads(answers[0])
    assert answer == ast.literal_eval(answers[1])
    assert answer["answer"] == page.text_content("#qa .best")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for number, code in enumerate([curl, python]):
        button = page.locator("#qa .code button").nth(number)
        button.click()
        page.wait_for_function("e => e.textContent === 'Copied'", arg=button.element_handle())
        assert page.evaluate("navigator.clipboard.readText()") == code


def test_code_is_selected_where_a_page_may_not_copy(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("classification"))
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    ask(page, "predict", text=TEXT)
    page.click("#predict .code summary")
    page.click("#predict .code button >> nth=0")
    assert page.evaluate("getSelection().toString()") == texts(page, "#predict pre")[0]


def test_the_page_links_to_the_documentation(
    serve: Serve, models: Callable[[str], Path], at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("classification"))
    links = page.locator("footer a").evaluate_all("all => all.map(e => e.href)")
    assert links == [page.url.partition("#")[0] + name for name in ("docs", "openapi.json")]
    for link in links:
        assert page.request.get(link).ok
    page = visit(serve(models("classification"), token="a long word")["url"], ready="#key:visible")
    assert not page.is_visible("footer")
    page.fill("#token", "a long word")
    page.keyboard.press("Enter")
    page.wait_for_selector("footer:visible")
    with page.expect_download() as saved:
        page.click("footer a >> text=openapi.json")
    assert saved.value.suggested_filename == "openapi.json"
    assert "/predict" in json.loads(saved.value.path().read_text())["paths"]


# --- many texts


def file_of(content: str | bytes, name: str) -> dict[str, Any]:
    """A file as the browser gets it."""
    buffer = content.encode() if isinstance(content, str) else content
    return {"name": name, "mimeType": "text/plain", "buffer": buffer}


def rows_shown(page: Any) -> list[list[str]]:
    return page.locator("#predict .list tbody tr").evaluate_all(
        "all => all.map(row => [...row.children].map(cell => cell.textContent))"
    )


def saved_rows(page: Any) -> list[list[str]]:
    with page.expect_download() as saved:
        page.click("#predict .after button:has-text('Save as CSV')")
    content = saved.value.path().read_text("utf-8-sig")
    return list(csv.reader(content.splitlines(keepends=True)))


def best_of(page: Any, text: str) -> tuple[str, float]:
    (best, *_) = said(page, "predict", inputs=text)
    return best["label"], best["score"]


def test_lines_are_predicted_as_texts(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("classification"))
    lines = [TEXT, MARKUP, 'men, "dogs" 🎌']
    says = ask(page, "predict", text="\n\n".join(lines) + "\n")
    labels = [best_of(page, line) for line in lines]
    assert says.startswith("3 texts: ")
    for name, count in Counter(label for label, _ in labels).items():
        assert f"{count} {name}" in says
    shown = [[line, label, percent(p)] for line, (label, p) in zip(lines, labels, strict=True)]
    assert rows_shown(page) == shown
    head, *rows = saved_rows(page)
    assert head == ["text", "predicted_label", "predicted_score"]
    assert [row[:2] for row in rows] == [row[:2] for row in shown]
    assert [float(row[2]) for row in rows] == pytest.approx([p for _, p in labels], abs=1e-5)
    page.click("text=Each line is a text of its own")
    text = "\n".join(lines)
    says = ask(page, "predict", text=text)
    label, p = best_of(page, text)
    assert says == f"{label}, {percent(p)}"
    assert page.locator("#predict .list").count() == 0
    page.fill("#predict-text", TEXT)
    assert not page.is_visible("text=Each line is a text of its own")


@pytest.mark.parametrize("task", ["multilabel", "regression"])
def test_lines_of_other_heads(at: Callable[[str], str], visit: Callable[..., Any], task: str):
    page = visit(at(task))
    lines = [TEXT, "men and dogs"]
    says = ask(page, "predict", text="\n".join(lines))
    answers = [said(page, "predict", inputs=line) for line in lines]
    head, *rows = saved_rows(page)
    if task == "regression":
        values = [labels[0]["score"] for labels in answers]
        assert head == ["text", "predicted_value"]
        assert [float(row[1]) for row in rows] == pytest.approx(values, abs=1e-5)
        low, high = map(float, says.removeprefix("2 texts, from ").rstrip(".").split(" to "))
        assert (low, high) == pytest.approx((min(values), max(values)), rel=1e-2)
    else:
        names = ["; ".join(one["label"] for one in labels if one["given"]) for labels in answers]
        assert (head, [row[1] for row in rows]) == (["text", "predicted_labels"], names)


TABLE = 'id;question\n7;"the; film\nwas ""good"""\n8;\n9;men and dogs of Oslo\n'


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_table_is_predicted_and_keeps_its_rows(
    at: Callable[[str], str], visit: Callable[..., Any], is_dropped: bool
):
    page = visit(at("classification"))
    if is_dropped:
        data = page.evaluate_handle(
            """table => {
              const data = new DataTransfer();
              data.items.add(new File([table], "t.csv"));
              return data;
            }""",
            TABLE,
        )
        page.dispatch_event("#predict-text", "drop", {"dataTransfer": data})
    else:
        page.set_input_files("#predict-file", file_of(TABLE, "t.csv"))
    page.wait_for_selector("#predict .file:has-text('t.csv: 3 rows')")
    assert page.locator("#predict-column option:checked").text_content() == "question"
    assert page.is_checked("[name=header]")
    assert page.is_disabled("#predict-text")
    page.click("#predict form button:not([type])")
    says = answered(page, "predict")
    assert says.startswith("2 texts: ")
    assert says.endswith("Without a text: 1 row.")
    texts_of_rows = ['the; film\nwas "good"', "", "men and dogs of Oslo"]
    head, *rows = saved_rows(page)
    assert head == ["id", "question", "predicted_label", "predicted_score"]
    assert [row[:3] for row in rows] == [
        [number, text, best_of(page, text)[0] if text else ""]
        for number, text in zip("789", texts_of_rows, strict=True)
    ]
    page.uncheck("[name=header]")
    assert page.locator("#predict-column option").all_text_contents() == ["column 1", "column 2"]
    page.select_option("#predict-column", label="column 1")
    page.click("#predict form button:not([type])")
    assert answered(page, "predict").startswith("4 texts: ")
    assert [row[0] for row in rows_shown(page)] == ["id", "7", "8", "9"]
    page.click("text=Remove the file")
    assert ask(page, "predict", text=TEXT).endswith("%")


@pytest.mark.slow
def test_files_that_cannot_be_read_are_refused_in_words(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("classification"))
    for content, name, said_of_it in [
        (b"PK\x03\x04", "t.xlsx", "ends in .csv, .tsv or .txt"),
        (b"caf\xe9\n", "t.txt", "not UTF-8"),
        (b"a\0b", "t.csv", "not a text file"),
        ('a,"b\n', "t.csv", "a quotation mark is never closed"),
        ("\n \n", "t.txt", "has no text"),
        ("a\n" * 5002, "t.txt", "5,002 rows: this page reads 20 MB and 5,000 texts at most"),
        (b"a" * 20_000_001, "t.txt", "has 20.0 MB"),
    ]:
        page.set_input_files("#predict-file", file_of(content, name))
        page.wait_for_selector(f"#predict .error:has-text('{said_of_it}')")
        assert name in page.text_content("#predict [role=status]")
        assert not page.is_visible("#predict .file")
    for content in ("\ufeffmen\n\n dogs".encode("utf-16-le"), b"men\r\ndogs"):
        page.set_input_files("#predict-file", file_of(content, "t.txt"))
        page.click("#predict form button:not([type])")
        assert answered(page, "predict").startswith("2 texts: ")
        assert [row[0] for row in rows_shown(page)] == ["men", "dogs"]


def test_many_texts_are_sent_in_parts_until_the_end_or_a_stop(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("classification"))
    sizes, busy = list[int](), [True]

    def route(request: Any) -> None:
        sizes.append(len(request.request.post_data_json["inputs"]))
        if busy and sizes == [32, 32]:
            busy.clear()
            request.fulfill(status=429, headers={"Retry-After": "1"}, body="{}")
        else:
            request.continue_()

    page.route("**/predict", route)
    many = [f"men {'and dogs ' * (number % 3)}" for number in range(70)]
    says = ask(page, "predict", text="\n".join(many))
    assert sizes == [32, 32, 32, 6], "the second part is sent again after a second"
    assert says.startswith("70 texts: ")
    assert len(rows_shown(page)) == 70
    page.unroute("**/predict")
    page.route("**/predict", lambda request: sizes.append(0) or request.fulfill(status=502))
    assert ask(page, "predict", text="\n".join(many)).startswith(
        "Stopped before row 1: The server answered 502"
    )
    page.unroute("**/predict")
    held = list[Any]()
    page.route("**/predict", lambda request: held.append(request))
    page.click("#predict form button:not([type])")
    page.wait_for_selector("progress")
    assert page.text_content("#predict [role=status]") == "0 of 70 texts…"
    page.click("text=Stop")
    held[0].continue_()
    says = answered(page, "predict")
    assert says.startswith("32 texts: ")
    assert says.endswith("Stopped before row 33.")
    assert len(held) == 1
    assert len(saved_rows(page)) == 1 + 70


def test_pairs_and_choices_are_predicted_one_by_one(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    assert not visit(at("choice")).is_visible("#predict-file")
    page = visit(at("classification"))
    ask(page, "predict", text="men\ndogs", second="Anna")
    assert page.locator("#predict .list").count() == 0


# --- examples

EXAMPLES = [ATTACK, "the [MASK] was good", "men and dogs\tAnna lives in Oslo", LONG]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("examples") / "examples.txt"
    file.write_text("\n".join(EXAMPLES))
    return str(file)


def test_examples_are_offered_and_stay_text(
    serve: Serve, model: Path, examples: str, visit: Callable[..., Any]
):
    page = visit(serve(model, examples=examples)["url"], width=390)
    assert texts(page, "#fill .examples button") == [EXAMPLES[1]]
    page.click("#fill .examples button")
    (best, *_) = said(page, "fill", inputs=EXAMPLES[1])
    assert answered(page, "fill") == best["token_str"].removeprefix("##")
    page.click("#explain-tab")
    shown = "#explain .examples button"
    assert texts(page, shown) == EXAMPLES
    assert page.locator("img, [onerror]").count() == 0
    page.click(f"{shown} >> nth=0")
    assert answered(page, "explain")
    assert page.input_value("#explain-text") == ATTACK
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_examples_fill_in_both_texts_of_a_pair(
    serve: Serve, models: Callable[[str], Path], examples: str, visit: Callable[..., Any]
):
    page = visit(serve(models("qa"), examples=examples)["url"])
    chips = page.locator("#qa .examples button")
    chips.nth(1).click()  # it has no second text
    assert page.evaluate("document.activeElement.name") == "context"
    assert page.text_content("#qa [role=status]") == ""
    chips.nth(2).click()
    answer = said(page, "qa", inputs={"question": "men and dogs", "context": "Anna lives in Oslo"})
    assert answered(page, "qa") in (answer["answer"], "The passage does not say")
    assert page.input_value("#qa-context") == "Anna lives in Oslo"


def test_a_file_gives_way_to_an_example(
    serve: Serve, models: Callable[[str], Path], examples: str, visit: Callable[..., Any]
):
    page = visit(serve(models("classification"), examples=examples)["url"])
    page.set_input_files("#predict-file", file_of("men\ndogs", "t.txt"))
    page.wait_for_selector("#predict .file:visible")
    page.click("#predict .examples button >> nth=1")
    label, p = best_of(page, EXAMPLES[1])
    assert answered(page, "predict") == f"{label}, {percent(p)}"
    assert not page.is_visible("#predict .file")
    assert page.input_value("#predict-file") == ""


def test_without_the_option_there_are_no_examples(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    assert visit(at("classification")).locator(".examples").count() == 0


# --- by keyboard


def focused(page: Any) -> str:
    return page.evaluate("document.activeElement.id")


def visible_focus(page: Any) -> bool:
    return page.evaluate("getComputedStyle(document.activeElement).outlineStyle !== 'none'")


def test_everything_is_reached_by_keyboard(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    page.keyboard.press("Tab")
    assert focused(page) == "search-tab"
    assert visible_focus(page)
    for key, name in [
        ("Home", "fill"),
        ("ArrowRight", "similarity"),
        ("ArrowRight", "search"),
        ("ArrowRight", "explain"),
        ("ArrowRight", "fill"),
        ("ArrowLeft", "explain"),
        ("Home", "fill"),
        ("End", "explain"),
        ("Home", "fill"),
    ]:
        page.keyboard.press(key)
        assert focused(page) == f"{name}-tab"
        assert visible_focus(page)
        assert page.locator("[role=tabpanel]:visible").get_attribute("id") == name
        assert page.get_by_role("tab", selected=True).text_content() == NAMES[name]
        assert page.url.endswith(f"#{name}")
    page.keyboard.press("Tab")
    assert focused(page) == "fill-text"
    page.keyboard.type("the [MASK] was")
    page.keyboard.press("Control+Enter")
    assert answered(page, "fill")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    page.keyboard.type("good men")
    page.keyboard.press("Tab")
    assert focused(page) == "explain-target"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Explain"
    page.keyboard.press("Enter")
    assert answered(page, "explain")
    page.focus("#explain .answer summary >> nth=0")
    if not page.is_visible("#explain .attention"):
        page.keyboard.press("Enter")
    page.focus("#explain .attention .tokens [aria-checked=true]")
    for key, chosen in [("ArrowRight", 2), ("Home", 0), ("ArrowLeft", 3), ("ArrowRight", 0)]:
        page.keyboard.press(key)
        assert visible_focus(page)
        states = page.locator(".attention .tokens button").evaluate_all(
            "all => all.map(e => e.ariaChecked)"
        )
        assert states.index("true") == chosen


def test_a_tab_has_an_address(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    page.click("#search-tab")
    page.reload()
    page.wait_for_selector("#search:visible")
    page.fill("#search-query", "Oslo")
    page.keyboard.press("Enter")
    assert answered(page, "search")


def test_the_tab_follows_the_address(at: Callable[[str], str], visit: Callable[..., Any]):
    def shown() -> str:
        panels = page.locator("[role=tabpanel]:visible").evaluate_all("all => all.map(e => e.id)")
        assert [page.get_by_role("tab", selected=True).text_content()] == [
            NAMES[name] for name in panels
        ]
        return panels[0]

    page = visit(at("tiny"))
    for name in ("fill", "similarity"):
        page.click(f"#{name}-tab")
    page.evaluate("location.hash = 'explain'")
    page.wait_for_selector("#explain:visible")
    for step, name in [
        (page.go_back, "similarity"),
        (page.go_back, "fill"),
        (page.go_forward, "similarity"),
        (page.go_back, "fill"),
        (page.go_back, "search"),
    ]:
        step()
        page.wait_for_selector(f"#{name}:visible")
        assert shown() == name
    page.evaluate("location.hash = 'nowhere'")
    page.wait_for_url("**#search")
    assert shown() == "search"


def test_every_part_says_what_it_is(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    ask(page, "explain", text="good men")
    nameless = page.locator(
        "button, input, textarea, select, [role]:not([role=status])"
    ).evaluate_all(
        "all => all.filter(e => !(e.labels?.length || e.ariaLabel || "
        "e.getAttribute('aria-labelledby') || "
        "e.textContent.trim())).map(e => e.outerHTML)"
    )
    assert nameless == []
    for panel in page.locator("[role=tabpanel]").all():
        tab = page.locator(f"#{panel.get_attribute('aria-labelledby')}")
        assert tab.get_attribute("aria-controls") == panel.get_attribute("id")
        assert panel.locator("[role=status]").count() == 1


# --- what it looks like

CONTRASTS = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const paint = (color, over) => {  // as the screen shows it over another colour
    canvas.fillStyle = `rgb(${over.join()})`;
    canvas.fillRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const behind = element => element
    ? paint(getComputedStyle(element).backgroundColor, behind(element.parentElement))
    : [255, 255, 255];
  const light = rgb => rgb.map(v => v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const back = behind(element);
    const [a, b] = [light(back), light(paint(getComputedStyle(element).color, back))];
    found.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), walker.currentNode.data.trim()]);
  }
  return found;
}"""


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_is_enough_in_both_modes(
    at: Callable[[str], str], visit: Callable[..., Any], dark: bool
):
    """4.5 to 1, which WCAG's level AA asks of small text."""
    page = visit(at("tagging"), dark=dark)
    red, *_ = map(
        int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
    )
    assert (red < 60) == dark
    for name in ("ner", "explain"):
        ask(page, name, text=TEXT)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 10
        assert [(text, round(value, 2)) for value, text in contrasts if value < 4.5] == []


@pytest.mark.parametrize("task", ["tiny", "classification", "pairs", "tagging", "qa"])
def test_a_phone_scrolls_down_only(at: Callable[[str], str], visit: Callable[..., Any], task: str):
    page = visit(at(task), width=360)
    for name, says in everywhere(page, f"{LONG} [MASK] good"):
        assert says
        assert page.evaluate("document.documentElement.scrollWidth") == 360, name
        small = page.locator("button:visible, input:visible, textarea:visible").evaluate_all(
            "all => all.filter(e => e.type !== 'checkbox' && !e.closest('.tokens')).map(e => "
            "e.offsetHeight)"
        )
        assert min(small) >= 40, "fingers are not pointers"


# --- what should not happen


@pytest.mark.parametrize("task", ["tiny", "classification", "pairs", "tagging", "qa", "choice"])
def test_text_never_becomes_markup(
    at: Callable[[str], str],
    visit: Callable[..., Any],
    serve: Serve,
    model: Path,
    tmp_path: Path,
    task: str,
):
    """In fields, documents, labels, and the model's name."""
    if task == "classification":
        folder = write_task_model(
            model, tmp_path / ATTACK.replace("/", ""), task, [ATTACK, "b", "c"]
        )
        url = serve(folder)["url"]
    else:
        url = at(task)
    page = visit(url)
    for name, says in everywhere(page, f"{MARKUP} [MASK]\n{MARKUP}"):
        assert "could not be shown" not in says
        assert page.locator(f"#{name} .answer").text_content()
    page.evaluate("document.querySelectorAll('mark small').forEach(label => label.remove())")
    assert (ATTACK if task in ("tiny", "classification") else MARKUP) in page.text_content("main")
    if task == "classification":
        assert page.text_content("h1") == folder.name
    assert page.locator("img, iframe, body script, [onerror]").count() == 0


def test_errors_are_said_in_words(at: Callable[[str], str], visit: Callable[..., Any]):
    page = visit(at("tiny"))
    assert "[MASK]" in ask(page, "fill", text="nothing is missing")
    assert page.locator("#fill .error").count() == 1
    assert ask(page, "fill", text="the [MASK]")
    assert page.locator("#fill .error").count() == 0
    assert "tokens" in ask(page, "explain", text="good " * 200)
    page.route(
        "**/fill", lambda route: route.fulfill(status=429, headers={"Retry-After": "7"}, body="{}")
    )
    assert ask(page, "fill", text="the [MASK]") == "The server is busy. Try again in 7 seconds."
    assert page.text_content("#fill .answer") == ""
    page.route("**/fill", lambda route: route.fulfill(status=502, body="<h1>Bad gateway</h1>"))
    assert ask(page, "fill", text="the [MASK]").startswith("The server answered 502")


def test_a_server_that_is_gone(
    serve: Serve, models: Callable[[str], Path], visit: Callable[..., Any]
):
    served = serve(models("classification"))
    page = visit(served["url"])
    os.kill(served["pid"], signal.SIGKILL)
    assert ask(page, "predict", text=TEXT) == "The server does not answer. Is it still running?"


def test_the_key_of_a_server(
    serve: Serve, models: Callable[[str], Path], visit: Callable[..., Any]
):
    url = serve(models("classification"), token="a long word")["url"]
    page = visit(url, ready="#key:visible")
    page.keyboard.type("another")
    page.keyboard.press("Enter")
    page.wait_for_selector("#about:has-text('This API key is not valid.')")
    page.fill("#token", "a long word")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=tab]")
    assert not page.is_visible("#key")
    assert ask(page, "predict", text=TEXT).endswith("%")
    assert "a long word" not in page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    )


def test_a_question_can_be_seen_and_a_newer_one_wins(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("tiny"))
    held: list[Any] = []
    page.route("**/fill", lambda route: route.continue_() if held else held.append(route))
    page.click("#fill-tab")
    page.fill("#fill-text", "the [MASK] was")
    page.click("#fill form button:not([type])")
    page.wait_for_selector("#fill[aria-busy=true]")
    assert page.text_content("#fill [role=status]") == "Computing…"
    newer = ask(page, "fill", text="good [MASK] and [MASK]")
    assert held
    held[0].fulfill(
        status=200, body=json.dumps([[{"score": 1, "token_str": "old", "text": "the old was"}]])
    )
    page.wait_for_timeout(200)
    assert page.text_content("#fill [role=status]") == newer != "old"
    assert page.locator("#fill h3").count() == 2


def test_the_policy_lets_only_files_of_the_server_in(
    at: Callable[[str], str], visit: Callable[..., Any]
):
    page = visit(at("tiny"))
    headers = page.request.get(page.url.partition("#")[0]).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    # the browser refuses innerHTML as well
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
