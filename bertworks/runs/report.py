"""report.html of a pre-training and of a fine-tuning, from metrics.jsonl, recipe.toml, run.json and the final
evaluation."""

import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, cast

from bertworks.checkpoints.storage import read_json
from bertworks.datasets.schema import TaskType
from bertworks.errors import BertworksError
from bertworks.events import duration
from bertworks.io.atomic_write import write_text
from bertworks.reports import svg
from bertworks.reports.svg import Point, Series, Show
from bertworks.runs.run_folder import describe, lengths
from bertworks.runs.task_metrics import NAMES, NOTHING, SHARES, counted, format_metrics, metric_of
from bertworks.training.objectives import OBJECTIVES, PERPLEXITY

Rows = list[dict[str, Any]]
OPTIMIZATION: tuple[tuple[str, str, Show, bool], ...] = (  # charts of every training
    ("Learning rate", "learning_rate", svg.scientific, True),
    ("Norm of the gradient", "gradient_norm", svg.plain, True),
)


def write_report(folder: str | Path) -> Path:
    """Draw the page of a run folder and return its path. What has not been measured yet is left out.

    Raises:
        BertworksError: a line of metrics.jsonl is damaged; the page cannot be written.
    """
    folder = Path(folder)
    steps, evaluations = read_metrics(folder / "metrics.jsonl")
    sections = [svg.side_by_side(list(_charts(steps, evaluations)))]
    if evaluations:
        sections.append(svg.figures("Held-out text", _columns(evaluations[-1]), evaluations))
    held = [f"held out: {describe(evaluations[-1])}"] if evaluations else []
    return _write(folder, "pre-training", [*_spent(steps, evaluations), *held], sections)


def _write(folder: Path, kind: str, summary: list[str], sections: list[str]) -> Path:
    """The page, with the recipe of the run and the software it was begun with at the end."""
    recipe, run = folder / "recipe.toml", folder / "run.json"
    sections += [svg.preformatted("Recipe", recipe.read_text(encoding="utf-8"))] if recipe.exists() else []
    if versions := read_json(run).get("versions") if run.exists() else None:
        sections.append(svg.software(versions))
    write_text(folder / "report.html", svg.page(folder.resolve().name, kind, " · ".join(summary), sections))
    return folder / "report.html"


def read_metrics(path: Path) -> tuple[Rows, Rows]:
    """Steps, and evaluations (their figures with the step among them), in the order of steps.

    A run that was resumed may repeat steps: the last line counts. An incomplete last line is of a killed process.
    """
    steps: dict[int, dict[str, Any]] = {}
    evaluations: dict[int, dict[str, Any]] = {}
    lines = path.read_bytes().decode("utf-8", errors="replace").split("\n") if path.exists() else []
    for number, line in enumerate(lines[:-1], 1):
        try:
            content = json.loads(line)
            step = int(content["step"])
            figures = content.get("evaluation", content)
            numbers = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            raise BertworksError(
                "the line is damaged: expected a JSON object with a step and numbers",
                where=f"{path}:{number}",
                hint="delete the line",
            ) from None
        (evaluations if "evaluation" in content else steps)[step] = numbers | {"step": step}
    return [steps[step] for step in sorted(steps)], [evaluations[step] for step in sorted(evaluations)]


def _spent(steps: Rows, evaluations: Rows) -> list[str]:
    """Steps, tokens and time so far, in words."""
    last, held = (rows[-1] if rows else {} for rows in (steps, evaluations))
    parts = [f"{max(last.get('step', 0), held.get('step', 0)):,} steps"]
    if "tokens" in last:
        parts.append(f"{svg.short(last['tokens'])} tokens")
    if "seconds" in last:
        parts.append(f"{duration(last['seconds'])} of training")
    return parts


def _lines(
    charts: Iterable[tuple[str, str, Show, bool]], steps: Rows, evaluations: Rows, held: str, best: Mapping[str, Point]
) -> Iterable[str]:
    """Charts of figures over steps; a figure that nothing has is left out.

    Args:
        charts: title, name of the figure, format, whether the axis begins at zero.
        held: the name of the evaluations. best: points to mark, by figure.
    """
    for title, name, show, from_zero in charts:
        train = Series("training", "train", svg.points(steps, name))
        series = [train, Series(held, "held", svg.points(evaluations, name), best.get(name))]
        if series := [line for line in series if line.points]:
            yield svg.chart(title, series, show, from_zero)


def _charts(steps: Rows, evaluations: Rows) -> Iterable[str]:
    charts: list[tuple[str, str, Show, bool]] = [
        (
            f"{objective.title}: {m.name}".capitalize(),
            f"{kind}_{m.name}",
            svg.percent if "%" in m.format else svg.plain,
            m.starts_at_zero,
        )
        for kind, objective in OBJECTIVES.items()
        for m in objective.measures
        if m is not PERPLEXITY  # a function of the loss
    ]
    speed: list[tuple[str, str, Show, bool]] = [
        ("Tokens per second", "tokens_per_second", svg.short, True),
        ("Fraction of the matrix-product speed", "matmul_share", svg.percent, True),
    ]
    return _lines([*charts, *OPTIMIZATION, *speed], steps, evaluations, "held out", {})


def _columns(evaluation: dict[str, Any]) -> list[tuple[str, str, Show]]:
    """The figures of all objectives, and those of longer sequences if there are any."""
    columns: list[tuple[str, str, Show]] = [("step", "step", lambda step: f"{step:,.0f}")]
    for kind, objective in OBJECTIVES.items():
        for suffix in ("", *(f"_at_{length}" for length in lengths(evaluation))):
            title = f"{objective.title}{suffix.replace('_', ' ')}{' tokens' if suffix else ''}"
            columns += [(f"{kind}_{m.name}{suffix}", f"{m.name}, {title}", m.show) for m in objective.measures]
    return [column for column in columns if column[0] in evaluation]


SHOWN_CHARACTERS = 500  # of a text
PARTS: Mapping[TaskType, str] = {  # of which figures are given
    "classification": "label", "multilabel": "label", "tagging": "kind of entity", "spans": "kind of entity",
    "qa": "kind of question",
}  # fmt: skip


def write_task_report(folder: Path, data: str, result: Mapping[str, Any] | None) -> Path:
    """Draws the page of a run folder and returns its path. What is not there yet is left out.

    Args:
        data: what is known of the data, for people.
        result: what the best state makes of dev, as in result.json; None: not evaluated yet.

    Raises:
        BertworksError: a line of metrics.jsonl is damaged; the page cannot be written.
    """
    steps, evaluations = read_metrics(folder / "metrics.jsonl")
    metric = _metric(folder)
    best = max(evaluations, key=lambda row: (row.get(metric, 0.0), -row.get("loss", 0.0)), default=None)
    sections = [svg.side_by_side(list(_task_charts(steps, evaluations, metric, best, result or {})))]
    if result:
        sections += _evaluation_sections(result)
    if evaluations:
        sections.append(svg.figures("Evaluations on dev", _task_columns(), evaluations))
    sections.append(svg.preformatted("Data", data))
    summary = _spent(steps, evaluations)
    if best is not None:
        summary.append(f"best after step {best['step']:,}: {format_metrics(result['figures'] if result else best)}")
    return _write(folder, "fine-tuning", summary, sections)


def _metric(folder: Path) -> str:
    """The figure by which the best state was chosen."""
    task = read_json(folder / "task.json")
    request = read_json(folder / "run.json").get("request", {}) if (folder / "run.json").exists() else {}
    return metric_of(cast(TaskType, task["task"]), request.get("metric"), task["labels"])


def _task_charts(
    steps: Rows, evaluations: Rows, metric: str, best: Mapping[str, Any] | None, result: Mapping[str, Any]
) -> Iterable[str]:
    charts = [("Loss", "loss", svg.plain, False), (f"{_title(metric)} on dev", metric, _show(metric), False)]
    marks = {metric: (best["step"], best[metric])} if best is not None and metric in best else {}
    yield from _lines([*charts, *OPTIMIZATION], steps, evaluations, "dev", marks)
    if result.get("points"):
        yield svg.scatter("Numbers of dev", [(x, y) for x, y in result["points"]], "right", "answered")


def _task_columns() -> list[tuple[str, str, Show]]:
    figures = [(name, title, _show(name)) for name, title in NAMES.items()]
    return [("step", "step", lambda step: f"{step:,.0f}"), ("loss", "loss", lambda loss: f"{loss:.4f}"), *figures]


def _show(name: str) -> Show:
    return svg.percent if name in SHARES else svg.plain


def _title(name: str) -> str:
    title = NAMES[name]
    return title[0].upper() + title[1:]


def _evaluation_sections(result: Mapping[str, Any]) -> Iterable[str]:
    """Sections of the final evaluation: confusion matrix, figures by label, the worst mistakes."""
    if confusion := result["confusion"]:
        table = svg.heat(confusion["labels"], confusion["counts"])
        if result["task"] in ("tagging", "spans"):
            note = f"{NOTHING} means no entity. An entity with wrong borders counts as correct here, but not below."
            table += f'<p class="quiet">{note}</p>'
        yield svg.section("Confusion matrix", table)
    if parts := result["table"]:
        shares = [(name, NAMES.get(name, name), svg.percent) for name in ("precision", "recall", "exact", "f1")]
        columns: list[tuple[str, str, Show]] = [("name", PARTS[result["task"]], str), *shares]
        columns.append(("support", "support", lambda number: f"{number:,.0f}"))
        yield svg.figures(
            f"By {PARTS[result['task']]}", columns, [{"name": name, **row} for name, row in parts.items()]
        )
    if worst := result["worst"]:
        note = counted(result["mistakes"], result["rows"])
        if result["task"] == "regression":
            note = f"{result['rows']:,} rows"
        note += f"; most frequent: {result['frequent']}" if result["frequent"] else ""
        note += "; all are in errors.csv"
        last = "difference" if result["task"] == "regression" else "score"
        show = svg.plain if result["task"] == "regression" else svg.percent
        rows = []
        for one in worst:
            texts = [_shown(text) for text in (" / ".join(one["texts"]), one["gold"], one["predicted"])]
            rows.append([_end(one["where"]), *texts, "" if one["score"] is None else show(one["score"])])
        table = svg.words(["where", "text", "label", "prediction", last], rows)
        yield svg.section("The worst mistakes", f'<p class="quiet">{escape(note)}</p>\n{table}')


def _end(where: str) -> str:
    """File and row, without the folders."""
    return where.rpartition("/")[2]


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
