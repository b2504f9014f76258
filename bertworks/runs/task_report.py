"""report.html of a fine-tuning: curves, the confusion matrix, figures of each label, the worst mistakes with their
texts, the data. It draws what others found. Not here: how charts are drawn (`charts`)."""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, cast

from bertworks.files.storage import read_json
from bertworks.rows.schema import Task
from bertworks.runs import charts
from bertworks.runs.charts import Series, Show
from bertworks.runs.judging import NAMES, SHARES, describe_scores, metric_of
from bertworks.runs.mistakes import NOTHING, counted
from bertworks.runs.report import origin, read_metrics, spent
from bertworks.text.atomic import write_text

SHOWN_CHARACTERS = 500  # of a text
PARTS: Mapping[Task, str] = {  # of which figures are given
    "classification": "label", "multilabel": "label", "tagging": "kind of entity", "spans": "kind of entity",
    "qa": "kind of question",
}  # fmt: skip

Rows = list[dict[str, Any]]


def write_task_report(folder: Path, data: str, result: Mapping[str, Any] | None) -> Path:
    """Draws the page of a run folder and returns its path. What is not there yet is left out.

    Args:
        data: what is known of the data, for people.
        result: what the best state makes of dev, as in result.json; None: nobody has looked yet.

    Raises:
        BertworksError: a line of metrics.jsonl is not what a run writes; the page cannot be written.
    """
    steps, evaluations = read_metrics(folder / "metrics.jsonl")
    metric = _metric(folder)
    best = max(evaluations, key=lambda row: (row.get(metric, 0.0), -row.get("loss", 0.0)), default=None)
    sections = [charts.side_by_side(list(_charts(steps, evaluations, metric, best, result or {})))]
    if result:
        sections += _found(result)
    if evaluations:
        sections.append(charts.figures("Looks at dev", _columns(), evaluations))
    sections.append(charts.preformatted("Data", data))
    sections += origin(folder)
    page = charts.page(folder.resolve().name, "fine-tuning", _summary(steps, evaluations, best, result), sections)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _metric(folder: Path) -> str:
    """The figure by which the best state was chosen."""
    told = read_json(folder / "task.json")
    request = read_json(folder / "run.json").get("request", {}) if (folder / "run.json").exists() else {}
    return metric_of(cast(Task, told["task"]), request.get("metric"), told["labels"])


def _summary(steps: Rows, evaluations: Rows, best: Mapping[str, Any] | None, result: Mapping[str, Any] | None) -> str:
    last, held = (rows[-1] if rows else {} for rows in (steps, evaluations))
    parts = spent(last, max(last.get("step", 0), held.get("step", 0)))
    if best is not None:
        parts.append(f"best after step {best['step']:,}: {describe_scores(result['figures'] if result else best)}")
    return " · ".join(parts)


def _charts(
    steps: Rows, evaluations: Rows, metric: str, best: Mapping[str, Any] | None, result: Mapping[str, Any]
) -> Iterable[str]:
    train = Series("training", "train", charts.points(steps, "loss"))
    losses = [one for one in (train, Series("dev", "held", charts.points(evaluations, "loss"))) if one.points]
    if losses:
        yield charts.chart("Loss", losses, charts.plain, False)
    scores = charts.points(evaluations, metric)
    if scores and best is not None:
        show = _show(metric)
        marked = Series("dev", "held", scores, (best["step"], best[metric]))
        yield charts.chart(f"{_title(metric)} on dev", [marked], show, False)
    for title, name, scale in (("Learning rate", "learning_rate", charts.scientific),
                               ("Norm of the gradient", "gradient_norm", charts.plain)):  # fmt: skip
        if points := charts.points(steps, name):
            yield charts.chart(title, [Series("training", "train", points)], scale, True)
    if result.get("points"):
        yield charts.scatter("Numbers of dev", [(x, y) for x, y in result["points"]], "right", "answered")


def _columns() -> list[tuple[str, str, Show]]:
    figures = [(name, title, _show(name)) for name, title in NAMES.items()]
    return [("step", "step", lambda step: f"{step:,.0f}"), ("loss", "loss", lambda loss: f"{loss:.4f}"), *figures]


def _show(name: str) -> Show:
    return charts.percent if name in SHARES else charts.plain


def _title(name: str) -> str:
    title = NAMES[name]
    return title[0].upper() + title[1:]


def _found(result: Mapping[str, Any]) -> Iterable[str]:
    """What the examination found: mix-ups, figures of parts, the worst mistakes."""
    if confusion := result["confusion"]:
        table = charts.heat(confusion["labels"], confusion["counts"])
        if result["task"] in ("tagging", "spans"):
            told = f"{NOTHING} is nothing. An entity with wrong borders counts as found here; below it does not."
            table += f'<p class="quiet">{told}</p>'
        yield charts.section("What was taken for what", table)
    if parts := result["table"]:
        shares = [(name, NAMES.get(name, name), charts.percent) for name in ("precision", "recall", "exact", "f1")]
        columns: list[tuple[str, str, Show]] = [("name", PARTS[result["task"]], str), *shares]
        columns.append(("support", "how many", lambda number: f"{number:,.0f}"))
        yield charts.figures(
            f"By {PARTS[result['task']]}", columns, [{"name": name, **row} for name, row in parts.items()]
        )
    if worst := result["worst"]:
        told = counted(result["mistakes"], result["rows"])
        if result["task"] == "regression":
            told = f"{result['rows']:,} rows"
        told += f"; most frequent: {result['frequent']}" if result["frequent"] else ""
        told += "; all are in errors.csv"
        last = "difference" if result["task"] == "regression" else "sure"
        show = charts.plain if result["task"] == "regression" else charts.percent
        rows = []
        for one in worst:
            texts = [_shown(text) for text in (" / ".join(one["texts"]), one["gold"], one["predicted"])]
            rows.append([_end(one["where"]), *texts, "" if one["score"] is None else show(one["score"])])
        table = charts.words(["where", "text", "right", "answered", last], rows)
        yield charts.section("The worst mistakes", f'<p class="quiet">{escape(told)}</p>\n{table}')


def _end(where: str) -> str:
    """File and row, without the folders."""
    return where.rpartition("/")[2]


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
