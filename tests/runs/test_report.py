"""The page of a run: it shows the figures that were written, stands alone, and cannot be talked
into anything else."""

import hashlib
import json
import math
import os
import re
import shlex
from base64 import b64encode
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as some

from bertworks.io.inputs import IssueCounter
from bertworks.reports import svg
from bertworks.runs.dataset_report import DatasetReport, Lengths
from bertworks.runs.report import _probability_parts, write_report, write_task_report


def step_line(step, **figures):
    return {
        "step": step,
        "loss": 8.0,
        "masked_lm_loss": 7.0 - step / 100,
        "masked_lm_accuracy": 0.1,
        "next_sentence_loss": 0.7,
        "next_sentence_accuracy": 0.5,
        "learning_rate": 1e-4,
        "gradient_norm": 1.5,
        "tokens": step * 1000,
        "tokens_per_second": 9600.0,
        "seconds": step * 0.5,
    } | figures


def evaluation_line(step, loss=3.0):
    figures = {
        "masked_lm_loss": loss,
        "masked_lm_accuracy": 0.4375,
        "masked_lm_perplexity": math.exp(loss),
    }
    return {"step": step, "evaluation": figures | {"next_sentence_accuracy": 0.8125}}


def write_metrics(folder, lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def page_of(folder):
    return write_report(folder).read_text()


def drawings(page):
    """Title -> the chart's picture, parsed."""
    figures = re.findall(
        r"<figcaption>(.*?)(?:<span.*?)?</figcaption>\n(<svg.*?</svg>)", page, re.S
    )
    return {title: ElementTree.fromstring(svg) for title, svg in figures}


def line_of(drawing, style="train"):
    path = next(group for group in drawing.iter("g") if group.get("class") == style).find(
        "polyline"
    )
    return [tuple(map(float, point.split(","))) for point in path.get("points").split()]


class Nesting(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def run(tmp_path):
    write_metrics(
        tmp_path,
        [
            line
            for n in range(1, 101)
            for line in (step_line(n), *[evaluation_line(n)] * (n % 25 == 0))
        ],
    )
    (tmp_path / "recipe.toml").write_text('title = "mine"\n[train]\n')
    (tmp_path / "run.json").write_text(
        json.dumps({"versions": {"bertworks": "0.1.0", "torch": "2.13.0"}})
    )
    return tmp_path


def test_the_page_shows_the_last_figures_the_recipe_and_the_versions(run):
    page = page_of(run)
    assert write_report(run) == run / "report.html"
    for expected in (
        "100 steps",
        "100k tokens",
        "50 s of training",
        "masked tokens: loss 3.000, accuracy 43.8%, perplexity 20.1",
        "next sentence: accuracy 81.2%",
        "title = &quot;mine&quot;",
        "bertworks 0.1.0, torch 2.13.0",
    ):
        assert expected in page
    assert list(drawings(page)) == [
        "Masked tokens: loss",
        "Masked tokens: accuracy",
        "Masked tokens: perplexity",
        "Next sentence: loss",
        "Next sentence: accuracy",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
    ]


def test_a_line_is_where_its_numbers_are(run):
    drawing = drawings(page_of(run))["Masked tokens: loss"]
    labels = {text.text: text for text in drawing.iter("text")}
    low, high = labels["3"], labels["7"]
    points = line_of(drawing)
    assert len(points) == 100
    top, bottom = float(high.get("y")), float(low.get("y"))
    for step, (x, y) in enumerate(points, 1):
        loss = 7.0 - step / 100
        assert y == pytest.approx(top + (7 - loss) / 4 * (bottom - top), abs=0.06)
        assert x == pytest.approx(
            svg.LEFT + (svg.WIDTH - svg.LEFT - svg.RIGHT) * step / 100, abs=0.06
        )
    held = line_of(drawing, "held")
    assert [x for x, _ in held] == [points[n - 1][0] for n in (25, 50, 75, 100)]
    assert {y for _, y in held} == {bottom}


def test_long_runs_are_averaged_and_keep_their_extremes(tmp_path):
    losses = [5.0 + (n % 10) / 10 for n in range(10_000)]
    write_metrics(
        tmp_path, [step_line(n + 1, masked_lm_loss=loss) for n, loss in enumerate(losses)]
    )
    page = page_of(tmp_path)
    drawing = drawings(page)["Masked tokens: loss"]
    assert len(line_of(drawing)) <= svg.MAX_POINTS
    assert any(part.get("class") == "band" for part in drawing.iter("polygon"))
    assert len(page) < 100_000


@given(some.lists(some.floats(-1e6, 1e6), min_size=1, max_size=900))
def test_groups_keep_mean_and_extremes(values):
    points = list(enumerate(values, 1))
    groups = svg.grouped(points)
    assert len(groups) <= svg.MAX_POINTS
    assert min(low for _, _, low, _ in groups) == min(values)
    assert max(high for _, _, _, high in groups) == max(values)
    assert groups[-1][0] == len(values)
    assert all(low - 1e-9 <= mean <= high + 1e-9 for _, mean, low, high in groups)


@given(some.floats(-1e9, 1e9), some.floats(-1e9, 1e9), some.integers(3, 8))
def test_ticks_are_few_even_and_enclose(first, second, count):
    low, high = sorted((first, second))
    ticks = svg.ticks(low, high, count)
    slack = 1e-6 * max(abs(low), abs(high), high - low)
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= count + 3
    if high - low > 1e-3:
        gaps = [b - a for a, b in pairwise(ticks)]
        assert max(gaps) - min(gaps) <= 1e-6 * max(map(abs, ticks))


def test_the_page_stands_alone(run):
    page = page_of(run)
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    tags = {tag for tag, _ in nesting.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not [
        name
        for _, attributes in nesting.seen
        for name in attributes
        if name in ("src", "href", "srcset")
    ]
    assert "url(" not in page
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_text_cannot_become_markup(tmp_path):
    attack = "<script>alert(1)</script>\"'&</pre>"
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    write_metrics(folder, [step_line(1) | {attack: 1.0, "note": attack}, evaluation_line(1)])
    (folder / "recipe.toml").write_text(f"title = '{attack}'")
    (folder / "run.json").write_text(json.dumps({"versions": {attack: attack}}))
    page = page_of(folder)
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert not {tag for tag, _ in nesting.seen} & {"script", "img"}
    assert not [
        name for _, attributes in nesting.seen for name in attributes if name.startswith("on")
    ]


def test_a_resumed_run_has_its_last_word(tmp_path):
    write_metrics(
        tmp_path, [step_line(n, masked_lm_loss=9.0) for n in (1, 2, 3)] + [evaluation_line(3, 9.0)]
    )
    with (tmp_path / "metrics.jsonl").open("a") as file:
        for line in (step_line(2), step_line(3), evaluation_line(3, 2.0), step_line(4)):
            file.write(json.dumps(line) + "\n")
        file.write('{"step": 5, "loss": 1.')  # the process was killed here
    page = page_of(tmp_path)
    assert "4 steps" in page
    assert "perplexity 7.4" in page
    assert len(line_of(drawings(page)["Masked tokens: loss"])) == 4


def test_numbers_that_are_none_are_left_out(tmp_path):
    write_metrics(
        tmp_path,
        [
            step_line(1),
            step_line(2, masked_lm_loss=math.nan),
            step_line(3, masked_lm_loss=math.inf),
        ],
    )
    page = page_of(tmp_path)
    assert "nan" not in page.lower()
    assert len(line_of(drawings(page)["Masked tokens: loss"])) == 1
    assert len(line_of(drawings(page)["Learning rate"])) == 3


def test_a_run_that_has_not_begun_has_a_page(tmp_path):
    assert "Nothing has been measured yet" in page_of(tmp_path)
    write_metrics(tmp_path, [])
    assert "0 steps" in page_of(tmp_path)
    write_metrics(tmp_path, [evaluation_line(0)])
    assert drawings(page_of(tmp_path)).keys() == {
        "Masked tokens: loss",
        "Masked tokens: accuracy",
        "Masked tokens: perplexity",
        "Next sentence: accuracy",
    }


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"loss": 1}', '{"step": "x"}', '{"step": 1, "evaluation": 3}', "\ufffd"]
)
def test_figures_are_shown_up_to_a_line_that_no_run_writes(run, line):
    text = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(text[:4]) + "\n")
    before = page_of(run)
    (run / "metrics.jsonl").write_text("\n".join([*text[:4], line, *text[4:]]) + "\n")
    assert page_of(run) == before


def test_the_same_run_gives_the_same_bytes(run):
    assert page_of(run) == page_of(run)


def test_the_page_lets_its_own_script_run_and_no_other():
    script = "document.title = 'ä';\n"
    text = svg.page("name", "what", "summary", [], script=script)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text
    assert f"<script>{script}</script>" in text
    assert "script" not in svg.page("name", "what", "summary", [])


def test_a_table_of_figures_has_the_columns_that_any_row_has():
    columns = [("step", "step", str), ("loss", "loss", str), ("grade", "grade", str)]
    section = svg.figures("Figures", columns, [{"step": 1}, {"step": 2, "loss": 0.5}])
    table = svg.page("name", "what", "summary", [section])
    assert re.findall(r"<th>(.*?)</th>", table) == ["step", "loss"]
    assert re.findall(r"<td>(.*?)</td>", table) == ["1", "", "2", "0.5"]


def test_the_page_of_a_task_has_its_metric(run):
    path = write_task_report(run, "accuracy", "40 rows", None)
    assert path == run / "report.html"
    assert "40 rows" in path.read_text()


def test_the_page_says_what_was_trained_on_what(run):
    request = {"model": "/models/bert", "data": "/data/rows.csv"}
    (run / "run.json").write_text(json.dumps({"request": request}))
    os.utime(run / "run.json", (1_700_000_000, 1_700_000_000))
    page = write_task_report(run, "accuracy", "40 rows", None).read_text()
    assert "Trained from bert on rows.csv, 2023-11-1" in page
    request = {"model": "minilm", "data": [f"/data/{n}.csv" for n in range(5)]}
    (run / "run.json").write_text(json.dumps({"request": request}))
    page = write_task_report(run, "accuracy", "40 rows", None).read_text()
    assert "Trained from minilm on 0.csv, 1.csv, 2.csv and 2 other files, 20" in page


def test_probabilities_have_a_diagram_and_say_what_a_person_could_answer():
    bins = [
        {"low": 0.5, "high": 0.6, "confidence": 0.55, "correct": 0.5, "predictions": 4},
        {"low": 0.9, "high": 1.0, "confidence": 0.96, "correct": 1.0, "predictions": 12},
    ]
    coverage = [(0.4, 1.0), (0.79, 0.985), (1.0, 0.9)]
    calibration = {"text": "calibrated", "bins": bins, "coverage": coverage}
    page = svg.page("m", "w", "s", [*_probability_parts(calibration)])
    names = list(drawings(page))
    assert names == ["Reliability of the probabilities", "Accuracy of the most confident answers"]
    assert (
        "If a person answers the 21% of the rows about which the model is least sure, 98.5% of its "
        "other answers are right; of all its answers, 90.0%."
    ) in page
    assert "fraction of the rows 79.0%: 98.5%" in page
    diagram = drawings(page)["Reliability of the probabilities"]
    columns = [float(part.get("height")) for part in diagram.iter("rect")]
    assert columns[1] == pytest.approx(3 * columns[0], abs=0.2)
    assert line_of(diagram)[1][1] == pytest.approx(svg.TOP)
    older = svg.page("m", "w", "s", [*_probability_parts({"text": "calibrated"})])
    assert not drawings(older)


def fold_evaluations(accuracies):
    """Of each fold an evaluation after every fourth step."""
    return [
        [{"step": 4 * n, "loss": 1 - a, "accuracy": a} for n, a in enumerate(fold, 1)]
        for fold in accuracies
    ]


def task_result(**values):
    """Return a result that has nothing but these values."""
    empty = dict.fromkeys(("confusion", "table", "worst", "mistakes", "frequent"))
    return {"task": "classification", "rows": 40, "figures": {}, **empty, **values}


def test_the_folds_of_a_cross_validation_are_lines_and_their_mean_is_one(run):
    folds = fold_evaluations([(0.5, 0.7), (0.6, 0.9)])
    result = task_result(is_validated=True, fold_evaluations=folds)
    write_metrics(run, [step_line(n) for n in range(1, 9)])
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    charts = drawings(page)
    assert [*charts][:2] == ["Loss", "Accuracy in cross-validation"]
    losses = [line_of(charts["Loss"], style)[-1] for style in ("train", "held")]
    assert losses[0][0] == losses[1][0] == pytest.approx(svg.WIDTH - svg.RIGHT, abs=0.1)
    chart = charts["Accuracy in cross-validation"]
    groups = [group for group in chart.iter("g") if group.get("class") == "fold"]
    ends = [line_of(group, "fold")[-1] for group in groups]
    (x, first), (_, second) = ends
    assert line_of(chart, "held")[-1] == (x, pytest.approx((first + second) / 2, abs=0.11))
    labels = {text.text: float(text.get("y")) for text in chart.iter("text")}
    assert first == pytest.approx(labels["70%"], abs=0.11)
    assert second == pytest.approx(labels["90%"], abs=0.11)
    assert page.index("<h2>Training</h2>") < page.index("<figcaption>Loss")
    result["fold_evaluations"][0][1]["accuracy"] = 0.8
    assert write_task_report(run, "accuracy", "40 rows", result).read_text() != page


def test_folds_without_a_curve_or_without_common_steps_have_no_mean(run):
    folds = fold_evaluations([(0.5, 0.7), (0.6, 0.9)])
    folds[1][0]["step"] = 5
    result = task_result(is_validated=True, fold_evaluations=folds)
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    assert ">mean</span>" not in page
    assert page.count('<g class="fold">') == 4  # two of each chart
    ends = [fold[1:] for fold in folds]
    result = task_result(is_validated=True, fold_evaluations=ends)
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    assert 'class="fold"' not in page


def data_report(labels, *, is_validated=False, max_length=64):
    """Return the report on data with these labels, and lengths of texts in bins of two tokens."""
    lengths = Lengths(
        width=2, counts=[0, 4, 8, 1], median=4, longest=90, max_length=max_length, too_long=1,
        windows=False,
    )  # fmt: skip
    counters = {name: IssueCounter() for name in ("copies", "leaked", "conflicts")}
    return DatasetReport(
        task="classification", notes=[], train=9, dev=4, labels=labels, unit="", targets={},
        lengths=lengths, unknown=0.0, unknown_words=[], pieces=1.2, is_validated=is_validated,
        **counters,
    )  # fmt: skip


def test_labels_and_lengths_of_the_data_are_charts(run):
    labels = {"a long name of a label": (6, 3), "b": (3, 1)}
    page = write_task_report(run, "accuracy", data_report(labels), None).read_text()
    charts = drawings(page)
    bars = charts["Rows by label"]
    widths = [float(bar.get("width")) for bar in bars.iter("rect")]
    assert widths == pytest.approx([n * widths[3] for n in (6, 3, 3, 1)], abs=0.3)
    texts = [text.text or "".join(text.itertext()) for text in bars.iter("text")]
    assert {"9", "4", "bb", "a long name of a label" * 2} <= {*texts}  # each with its title
    columns = [float(bar.get("height")) for bar in charts["Text lengths"].iter("rect")]
    assert columns == pytest.approx([columns[0], 2 * columns[0], columns[0] / 4], abs=0.2)
    assert "6 and more tokens: 1" in page
    assert "The dashed line" not in page  # it would be outside
    validated = data_report(labels, is_validated=True, max_length=6)
    page = write_task_report(run, "accuracy", validated, None).read_text()
    assert len([*drawings(page)["Rows by label"].iter("rect")]) == 2
    assert "The dashed line is the maximum length, 6 tokens." in page
    many = data_report({f"label {n}": (20 - n, 0) for n in range(20)})
    page = write_task_report(run, "accuracy", many, None).read_text()
    assert "The 16 most frequent of 20 labels." in page


def map_of(labels):
    """Return a map of rows on a line; the prediction of each is "a"."""
    rows = [
        {"x": n, "y": -n / 2, "label": label, "predicted": "a", "text": f"text {n}"}
        for n, label in enumerate(labels)
    ]
    return {"variance": 0.234, "rows": rows}


def test_the_map_has_a_point_for_each_row_and_a_ring_for_each_mistake(run):
    rows_of_map = map_of("aabac")
    result = task_result(map=rows_of_map)
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    drawing = drawings(page)["Embeddings before the fine-tuning"]
    points = [path for path in drawing.iter("path") if path.find("title") is not None]
    places = sorted(
        tuple(map(float, re.match(r"M(\S+) (\S+)m", path.get("d")).groups())) for path in points
    )
    steps = [(x - places[0][0], y - places[0][1]) for x, y in places]
    width = steps[-1][0]
    assert steps == [
        (pytest.approx(width * n / 4, abs=1), pytest.approx(width * n / 8, abs=1)) for n in range(5)
    ]
    assert len([*drawing.iter("circle")]) == 2
    assert "the 2 rows whose prediction" in page
    assert "They hold 23.4% of the variance" in page
    assert [*dict.fromkeys(path.get("class") for path in points)] == ["k0", "k1", "k2"]
    for label in ("a (3)", "b (1)", "c (1)"):
        assert f"{label}</span>" in page
    assert "true &#x27;c&#x27;, predicted &#x27;a&#x27;: text 4" in page
    rows_of_map["rows"][1]["x"] = 3.5
    assert write_task_report(run, "accuracy", "40 rows", result).read_text() != page


@pytest.mark.parametrize(("labels", "marks"), [(12, 12), (14, 12)])
def test_the_rarest_labels_of_a_map_have_a_common_mark(labels, marks, run):
    names = [chr(ord("a") + n) for n in range(labels)]
    result = task_result(map=map_of(names))
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    assert page.count('aria-hidden="true"') == marks
    assert ("3 other labels (3)" in page) == (labels == 14)
    shapes = re.findall(r'aria-hidden="true">\s*(<path.*?>)', page)
    assert len({*shapes}) == marks


def mistake(text, predicted="neg"):
    return {
        "where": "dev.csv:7",
        "texts": [text],
        "gold": "pos",
        "predicted": predicted,
        "score": 0.9,
    }


def test_a_mistake_has_the_command_that_explains_it(run):
    text = 'It\'s "bad" & <b>long</b>\nreally'
    worst = [mistake(text), mistake("-5 points", "-1"), mistake("long " * 200)]
    values = {"worst": worst, "mistakes": 3, "rows": 40}
    result = task_result(**values, has_explanations=True)
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    commands = [unescape(code) for code in re.findall("<code>(.*?)</code>", page, re.S)]
    assert [shlex.split(command) for command in commands] == [
        ["bertworks", "explain", str(run), "--target", "neg", text],
        ["bertworks", "explain", str(run), "--target=-1", "--", "-5 points"],
    ]
    assert "which words speak for this prediction" in page
    assert "has learned from these rows" not in page
    result["is_validated"] = True
    page = write_task_report(run, "accuracy", "40 rows", result).read_text()
    assert "has learned from these rows" in page
    page = write_task_report(run, "accuracy", "40 rows", task_result(**values)).read_text()
    assert "<code>" not in page


def test_the_perplexity_falls_along_an_axis_of_equal_ratios(tmp_path):
    perplexities = [20000.0, 1000.0, 100.0]
    write_metrics(
        tmp_path,
        [evaluation_line(n * 10, math.log(value)) for n, value in enumerate(perplexities, 1)],
    )
    drawing = drawings(page_of(tmp_path))["Masked tokens: perplexity"]
    heights = [y for _, y in line_of(drawing, "held")]
    marks = {text.text: float(text.get("y")) for text in drawing.iter("text")}
    assert [marks[mark] for mark in ("1,000", "100")] == pytest.approx(heights[1:], abs=0.1)
    ratios = [(heights[1] - heights[0]) / math.log(20), (heights[2] - heights[1]) / math.log(10)]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.01)
    assert "step 20: 1,000</title>" in page_of(tmp_path)


@given(some.floats(1.0, 1e9), some.floats(1.0, 1e9))
def test_ticks_of_ratios_are_few_and_enclose(first, second):
    low, high = sorted((first, second))
    ticks = svg.ratio_ticks(low, high)
    assert ticks[0] <= low * (1 + 1e-6)
    assert ticks[-1] >= high * (1 - 1e-6)
    assert 2 <= len(ticks) <= svg.MOST_TICKS + 1
    assert ticks == sorted({*ticks})


def test_the_most_frequent_token_is_a_dashed_line(run):
    page = write_report(run, {"token": "the", "masked_lm_accuracy": 0.0625}).read_text()
    drawing = drawings(page)["Masked tokens: accuracy"]
    line = line_of(drawing, "base")
    (accuracy,) = {y for _, y in line}
    held = line_of(drawing, "held")
    zero = next(float(text.get("y")) for text in drawing.iter("text") if text.text == "0%")
    # 0.0625 is a seventh of the held-out accuracy, 0.4375
    assert accuracy == pytest.approx(zero - (zero - held[-1][1]) / 7, abs=0.1)
    assert line[-1][0] == held[-1][0]
    assert page.count("always &#x27;the&#x27;</span>") == 1
    assert "always" not in page_of(run)
