"""The page of a fine-tuning: what was found is on it, where it belongs, and no text becomes
markup."""

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bertworks.checkpoints.task_config import save_task
from bertworks.config import dump_recipe
from bertworks.reports import svg
from bertworks.runs.report import write_task_report, write_trials_report
from bertworks.tasks.settings import TaskConfig, TaskType
from bertworks.training.recipe import load_finetune_recipe

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&</pre></td>"


class Nesting(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def nesting(page: str) -> Nesting:
    found = Nesting()
    found.feed(page)
    assert found.open == []
    return found


def run_folder(folder: Path, task: TaskType = "classification", scores: Any = None) -> Path:
    lines: list[dict[str, Any]] = []
    for step in range(1, 41):
        lines.append(
            {
                "step": step,
                "loss": 1 / step,
                "learning_rate": 1e-4,
                "gradient_norm": 1.0,
                "tokens": 100 * step,
                "seconds": step / 2,
            }
        )
        if step % 10 == 0:
            usual_scores = {
                10: (0.5, 0.4, 0.9),
                20: (0.8, 0.6, 0.7),
                30: (0.8, 0.7, 0.5),
                40: (0.7, 0.75, 0.8),
            }
            accuracy, f1, loss = (scores or usual_scores)[step]
            figures = {"loss": loss, "accuracy": accuracy, "macro_f1": f1, "spearman": accuracy}
            lines.append({"step": step, "evaluation": figures})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "recipe.toml").write_text(dump_recipe(load_finetune_recipe("stable")))
    run = {"request": {"model": "tiny"}, "versions": {"bertworks": "0.1.0"}}
    (folder / "run.json").write_text(json.dumps(run))
    save_task(TaskConfig(task=task, labels=("neg", "pos")), folder)
    return folder


def result(**fields: Any) -> dict[str, Any]:
    worst = {
        "where": "/data/dev.csv:7",
        "texts": ["the text"],
        "gold": "pos",
        "predicted": "neg",
        "score": 0.97,
    }
    return {
        "task": "classification",
        "rows": 100,
        "figures": {"accuracy": 0.8, "macro_f1": 0.7},
        "table": {"neg": {"precision": 0.75, "recall": 0.6, "f1": 0.667, "support": 50.0}},
        "confusion": {"labels": ["neg", "pos"], "counts": [[30, 20], [0, 50]]},
        "points": [],
        "mistakes": 20,
        "frequent": "true 'neg', predicted 'pos' (20)",
        "worst": [worst],
    } | fields


def comparison(verdict: str = "") -> dict[str, Any]:
    """The model has 80 of 100, the best simple method 75."""
    methods = [
        {
            "method": name,
            "score": score,
            "interval": (score - 0.1, score + 0.1),
            "difference": 0.8 - score,
            "difference_interval": (0.7 - score, 0.9 - score),
        }
        for name, score in (
            ("fine-tuned", 0.8),
            ("most frequent label", 0.5),
            ("bag of words", 0.75),
        )
    ]
    return {"metric": "accuracy", "methods": methods, "best": 1, "verdict": verdict}


def page_of(
    folder: Path,
    found: dict[str, Any] | None = None,
    data: str = "rows  100",
    metric: str = "accuracy",
) -> str:
    assert write_task_report(folder, metric, data, found) == folder / "report.html"
    return (folder / "report.html").read_text()


def drawing(page: str, title: str) -> ElementTree.Element:
    figures = re.findall(
        r"<figcaption>(.*?)(?:<span.*?)?</figcaption>\n(<svg.*?</svg>)", page, re.S
    )
    return ElementTree.fromstring(dict(figures)[title])


def test_what_was_found_is_on_the_page(tmp_path: Path) -> None:
    page = page_of(run_folder(tmp_path), result())
    for expected in (
        "40 steps",
        "4k tokens",
        "20 s of training",
        "accuracy 80.0%, macro F1 70.0%",
        "Confusion matrix",
        "By label",
        "66.7%",
        "Most confident errors",
        "20 mistakes in 100 rows",
        "true &#x27;neg&#x27;, predicted &#x27;pos&#x27; (20)",
        "the text",
        "dev.csv:7",
        "97.0%",
        "Evaluations on dev",
        "rows  100",
        "title = &quot;stable&quot;",
        "bertworks 0.1.0",
    ):
        assert expected in page, expected
    assert "/data/dev.csv" not in page


def test_the_best_look_is_marked_by_the_figure_that_was_requested(tmp_path: Path) -> None:
    right = svg.WIDTH - svg.RIGHT
    for metric, title, best in (
        ("accuracy", "Accuracy on dev", 30),
        ("macro_f1", "Macro F1 on dev", 40),
    ):
        picture = drawing(page_of(run_folder(tmp_path), metric=metric), title)
        (ring,) = [part for part in picture.iter("circle") if part.get("class") == "ring"]
        # of equal accuracies that of the lower loss
        expected = svg.LEFT + (right - svg.LEFT) * best / 40
        assert float(ring.get("cx", 0)) == pytest.approx(expected, abs=0.06)
        dots = [part for part in picture.iter("circle") if part.get("class") == "dot"]
        assert len(dots) == 4
        assert ring.get("cy") == dots[best // 10 - 1].get("cy")


def test_training_and_dev_share_a_chart_of_the_loss(tmp_path: Path) -> None:
    groups = drawing(page_of(run_folder(tmp_path)), "Loss").iter("g")
    assert [group.get("class") for group in groups] == ["train", "held"]


def test_cells_show_counts_and_shares_of_their_rows(tmp_path: Path) -> None:
    page = page_of(run_folder(tmp_path), result())
    cells = re.findall(
        r'<td class="(\w+)" style="--share: ([\d.]+)">([\d,]+)(?:<small>(\d+%)</small>)?</td>', page
    )
    assert cells == [
        ("right", "0.600", "30", "60%"),
        ("wrong", "0.400", "20", "40%"),
        ("wrong", "0.000", "0", ""),
        ("right", "1.000", "50", "100%"),
    ]


def test_numbers_are_scattered_around_the_line_on_which_they_are_right(tmp_path: Path) -> None:
    dots = [(0.0, 0.0), (5.0, 5.0), (5.0, 0.0)]
    found = result(
        task="regression",
        points=dots,
        confusion={},
        table={},
        frequent="",
        figures={"spearman": 0.5},
    )
    page = page_of(run_folder(tmp_path, "regression"), found, metric="spearman")
    picture = drawing(page, "Numbers on dev")
    (line,) = [part for part in picture.iter("line") if part.get("class") == "ideal"]
    places = [(part.get("cx"), part.get("cy")) for part in picture.iter("circle")]
    assert places[0] == (line.get("x1"), line.get("y1"))
    assert places[1][0] == places[2][0]
    assert places[2][1] == places[0][1]
    x1, y1, x2, y2 = (float(line.get(name, 0)) for name in ("x1", "y1", "x2", "y2"))
    x, y = map(float, (str(place) for place in places[1]))
    assert (x - x1) / (x2 - x1) == pytest.approx((y - y1) / (y2 - y1), abs=1e-3)
    assert "difference" in page
    assert "Confusion matrix" not in page


@pytest.mark.parametrize("score", [0.5, None])
def test_texts_cannot_become_markup(tmp_path: Path, score: float | None) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    worst = {
        "where": ATTACK,
        "texts": [ATTACK, ATTACK * 50],
        "gold": ATTACK,
        "predicted": ATTACK,
        "score": score,
    }
    found = result(
        worst=[worst],
        frequent=ATTACK,
        table={ATTACK: {"f1": 1.0}},
        confusion={"labels": [ATTACK, "pos"], "counts": [[1, 0], [0, 1]]},
    )
    run_folder(folder)
    (folder / "recipe.toml").write_text(ATTACK)
    page = page_of(folder, found, data=ATTACK)
    seen = nesting(page).seen
    assert not {tag for tag, _ in seen} & {"script", "img", "link", "iframe", "form"}
    assert not [
        name
        for _, attributes in seen
        for name in attributes
        if name.startswith("on") or name in ("src", "href")
    ]
    assert "default-src 'none'" in page
    assert page.count("&lt;script&gt;") > 8
    assert "http:" not in page
    assert "https:" not in page
    assert len(page) < 60_000, "long texts are cut"


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    (folder / "metrics.jsonl").unlink()
    page = page_of(folder)
    assert "Nothing has been measured yet" in page
    nesting(page)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    assert page_of(folder, result()) == page_of(folder, result())


def test_the_headline_is_the_score_with_its_interval_and_the_best_simple_method(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    page = page_of(folder, result(baselines=comparison(f"worse {ATTACK}")))
    nesting(page)
    headline = "Accuracy on dev 80.0% (70.0 to 90.0%); bag of words 75.0% (65.0 to 85.0%)"
    assert (
        f'<p class="headline">{headline}</p>\n<p class="warning">worse &lt;script&gt;'
        in page.replace("</p><p", "</p>\n<p")
    )
    assert ATTACK not in page
    assert (
        page.index("headline")
        < page.index("Comparison with baselines")
        < page.index("<figcaption>Loss")
    )
    assert "+5.0 (-5.0 to +15.0)" in page
    assert '<p class="warning">' not in page_of(folder, result(baselines=comparison()))


def test_the_recipe_is_folded(tmp_path: Path) -> None:
    page = page_of(run_folder(tmp_path), result())
    (recipe,) = re.findall(
        "<details><summary>Recipe</summary><pre>(.*?)</pre></details>", page, re.DOTALL
    )
    assert "epochs" in recipe


def test_an_interval_is_drawn_where_its_numbers_are(tmp_path: Path) -> None:
    """Dots and ends of lines are a linear function of the numbers, and inside the picture."""
    bars = [(0.5, (0.25, 0.75)), (0.75, (0.5, 1.0))]
    rows = [["a", "50%"], ["b", "75%"]]
    table = svg.intervals("Scores", ["name", "score"], rows, bars, svg.percent, marked=1)
    text = svg.page("name", "what", "summary", [table])
    start, end = text.index("<figure>"), text.index("</figure>") + len("</figure>")
    picture = ElementTree.fromstring(text[start:end])
    # the axis is from 20 to 100 %
    assert places(picture, "em") == [[37.5], [pytest.approx(68.75, abs=0.1)]]
    ends = [(left, left + width) for left, width in places(picture, "b")]
    assert [*itertools.chain(*ends)] == pytest.approx([6.25, 68.75, 37.5, 100], abs=0.1)
    marks = [mark.text for mark in picture.iter("span")]
    assert marks == ["20%", "40%", "60%", "80%", "100%"]
    styles = [cell.get("class") for cell in picture.iter("td") if "plot" in cell.get("class", "")]
    assert styles == ["plot train", "plot held"]
    point = [(0.5, (0.5, 0.5))]  # no width
    assert svg.intervals("One", ["name"], [["a"]], point, svg.plain, marked=None)


def places(picture: ElementTree.Element, tag: str) -> list[list[float]]:
    """The numbers in the styles of the elements of a picture."""
    return [
        [float(number) for number in re.findall(r"([\d.]+)%", mark.get("style", ""))]
        for mark in picture.iter(tag)
    ]


def test_many_fine_tunings_have_one_page(tmp_path: Path) -> None:
    done = [
        {"folder": f"seed-{n}", "metric": "accuracy", "seconds": 60.0, "baselines": comparison()}
        for n in range(3)
    ]
    page = write_trials_report(tmp_path, done, f"all: {ATTACK}").read_text()
    nesting(page)
    assert ATTACK not in page
    for n in range(3):
        assert f'<td class="quiet">seed-{n}</td>' in page
    assert page.count("bag of words 75.0% (65.0 to 85.0%)") == page.count("60 s") == 3
    assert page.count("<em ") == 3
