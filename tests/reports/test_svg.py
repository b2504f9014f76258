"""Sections of a page: each kind is drawn, and no value of one is taken for HTML."""

from html.parser import HTMLParser

import pytest

from bertworks.reports import svg

HOSTILE = '</pre><script>alert("it\'s")</script>&'
BARS = [(0.5, (0.25, 0.75)), (0.75, (0.5, 1.0))]
BINS = [
    {"low": 0.5, "high": 0.6, "confidence": 0.55, "correct": 0.5, "predictions": 4},
    {"low": 0.9, "high": 1.0, "confidence": 0.96, "correct": 1.0, "predictions": 12},
]
SERIES = [svg.Series(HOSTILE, "train", [(1, 2.0), (2, 1.0)]), svg.Series("b", "held", [(1, 1.0)])]
SECTIONS = {
    "headline": svg.headline(HOSTILE, HOSTILE),
    "preformatted": svg.preformatted(HOSTILE, HOSTILE),
    "folded": svg.folded(HOSTILE, HOSTILE),
    "note": svg.note(HOSTILE),
    "figures": svg.figures(HOSTILE, [("a", HOSTILE, str), ("b", "b", str)], [{"a": HOSTILE}]),
    "words": svg.words([HOSTILE, "b"], [[HOSTILE, HOSTILE]], wraps=False),
    "commands": svg.words(["a", "b"], [["c", "d"]], commands=(HOSTILE, [HOSTILE])),
    "heat": svg.heat([HOSTILE, "b"], [[3, 1], [0, 12345]]),
    "chart": svg.chart(HOSTILE, SERIES, svg.plain, False),
    "scatter": svg.scatter(HOSTILE, [(1, 2), (2, 3)], HOSTILE, HOSTILE),
    "intervals": svg.intervals(
        HOSTILE, [HOSTILE, "b"], [[HOSTILE, "c"], ["d", HOSTILE]], BARS, svg.percent, marked=0
    ),
    "columns": svg.columns([svg.note(HOSTILE), svg.note("b")]),
    "details": svg.details(HOSTILE, svg.note(HOSTILE)),
    "reliability": svg.reliability(HOSTILE, BINS),
    "fixed_width": svg.fixed_width(HOSTILE),
    "counts": svg.counts(HOSTILE, [HOSTILE, "b"], [(HOSTILE, "train", [3, 1])]),
    "histogram": svg.histogram(HOSTILE, [0, 4, 1], 5, HOSTILE, HOSTILE, 12),
    "plane": svg.plane(
        HOSTILE, {HOSTILE: [svg.Dot(0.5, 1, True, HOSTILE)], "b": [svg.Dot(2, 3, False, "two")]}
    ),
    "grid": svg.grid(HOSTILE, [HOSTILE, "b"], [[True, False], [True, True]]),
}


class Reader(HTMLParser):
    """The names of the elements of a page, its texts and the values of its attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.texts = list[str](), list[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.texts += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_value_is_shown_and_is_no_html(name: str) -> None:
    page = Reader(svg.page("name", "what", "summary", [SECTIONS[name]]))
    assert "script" not in page.elements
    if name == "grid":  # long names are cut
        assert any(HOSTILE[:13] in text for text in page.texts)
    assert any(HOSTILE in text for text in page.texts)


def test_a_page_has_its_sections_in_order() -> None:
    parts = [svg.note("first"), svg.section("second", svg.note("third"), svg.note("fourth"))]
    text = svg.page(HOSTILE, HOSTILE, HOSTILE, parts)
    page = Reader(text)
    assert "script" not in page.elements
    shown = [part for part in page.texts if part in ("first", "second", "third", "fourth")]
    assert shown == ["first", "second", "third", "fourth"]
    assert text.startswith("<!DOCTYPE html>\n")


def test_a_confusion_matrix_has_counts_and_fractions_of_rows() -> None:
    text = svg.page("name", "what", "summary", [svg.heat(["a", "b"], [[3, 1], [0, 12345]])])
    page = Reader(text)
    cells = [part for part in page.texts if part in ("3", "75%", "1", "25%", "0", "12,345", "100%")]
    assert cells[1:] == ["3", "75%", "1", "25%", "0", "12,345", "100%"]  # after tabindex
    assert "--share: 0.750" in page.texts
    assert "--share: 0.250" in page.texts
    assert [page.texts.count(style) for style in ("right", "wrong")] == [2, 2]


@pytest.mark.parametrize("labels", [8, 9])
def test_many_labels_of_a_confusion_matrix_are_vertical(labels: int) -> None:
    names = [f"label {number}" for number in range(labels)]
    text = svg.page("name", "what", "summary", [svg.heat(names, [[1] * labels] * labels)])
    assert text.count('<th class="tall">') == (labels if labels > 8 else 0)
    assert text.count('<th class="narrow">') == (labels if labels <= 8 else 0)


def test_labels_of_a_confusion_matrix_are_whole_up_to_forty_characters() -> None:
    names = ["abbreviation of a long name", "x" * 41]
    text = svg.page("name", "what", "summary", [svg.heat(names, [[3, 1], [0, 2]])])
    page = Reader(text)
    assert page.texts.count(names[0]) == 4  # at its row and its column, each with its title
    assert page.texts.count("x" * 39 + "…") == 2


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.0, 0.5, 1.0], ["0%", "50%", "100%"]),
        ([0.8, 0.825, 0.85], ["80.0%", "82.5%", "85.0%"]),
        ([0.9, 0.9025], ["90.00%", "90.25%"]),
    ],
)
def test_fractions_of_an_axis_have_equally_many_digits(
    values: list[float], texts: list[str]
) -> None:
    assert [text for _, text in svg.labelled(values, svg.percent)] == texts
    assert [svg.percent(value) for value in (0.9, 0.864, 1)] == ["90.0%", "86.4%", "100.0%"]


def test_short_names_of_bars_leave_the_room_to_the_bars() -> None:
    bars = [svg.counts("t", [name], [("p", "train", [5])])["bars"][0] for name in ("a", "a" * 20)]
    (_, short, end, _), (_, long, same_end, _) = bars
    assert short[0][2] > long[0][2]
    assert end == pytest.approx(same_end)
