"""report.html of a pre-training and of a fine-tuning, from metrics.jsonl, recipe.toml, run.json and the final
evaluation."""

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from bertworks.checkpoints.storage import read_json
from bertworks.datasets.schema import TaskType
from bertworks.events import duration
from bertworks.io.atomic_write import write_text
from bertworks.reports import svg
from bertworks.reports.svg import Point, Series, Show
from bertworks.runs.run_folder import describe, named_measures, read_metrics
from bertworks.runs.task_metrics import NAMES, NOTHING, SHARES, counted, format_metrics
from bertworks.training.objectives import OBJECTIVES, PERPLEXITY

Rows = list[dict[str, Any]]
Chart = tuple[str, str, Show, bool]  # title, name of the figure, format, whether the axis begins at zero
Column = tuple[str, str, Show]  # name of the figure, title, format
OBJECTIVE_CHARTS: list[Chart] = [
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
OPTIMIZATION_CHARTS: list[Chart] = [
    ("Learning rate", "learning_rate", svg.scientific, True),
    ("Norm of the gradient", "gradient_norm", svg.plain, True),
]
SPEED_CHARTS: list[Chart] = [
    ("Tokens per second", "tokens_per_second", svg.short, True),
    ("Fraction of the matrix-product speed", "matmul_share", svg.percent, True),
]
STEP_COLUMN: Column = ("step", "step", "{:,.0f}".format)
SHOWN_CHARACTERS = 500  # of a text
PARTS: Mapping[TaskType, str] = {  # of which figures are given
    "classification": "label", "multilabel": "label", "tagging": "kind of entity", "spans": "kind of entity",
    "qa": "kind of question",
}  # fmt: skip


def write_report(folder: str | Path) -> Path:
    """Draw the page of a run folder and return its path. What has not been measured yet is left out.

    Raises:
        BertworksError: a line of metrics.jsonl is damaged; the page cannot be written.
    """
    folder = Path(folder)
    steps, evaluations = _read_rows(folder)
    charts = [*OBJECTIVE_CHARTS, *OPTIMIZATION_CHARTS, *SPEED_CHARTS]
    sections, summary = [svg.side_by_side(_lines(charts, steps, evaluations, "held out"))], _spent(steps, evaluations)
    if evaluations:
        columns = [(name, f"{m.name}, {title}", m.show) for title, m, name in named_measures(evaluations[-1])]
        sections.append(svg.figures("Held-out text", [STEP_COLUMN, *columns], evaluations))
        summary.append(f"held out: {describe(evaluations[-1])}")
    return _write(folder, "pre-training", summary, sections)


def write_task_report(folder: Path, metric: str, data: str, result: Mapping[str, Any] | None) -> Path:
    """Draws the page of a run folder and returns its path. What is not there yet is left out.

    Args:
        metric: by which the best state was chosen.
        data: what is known of the data, for people.
        result: what the best state makes of dev, as in result.json; None: not evaluated yet.

    Raises:
        BertworksError: a line of metrics.jsonl is damaged; the page cannot be written.
    """
    steps, evaluations = _read_rows(folder)
    summary = _spent(steps, evaluations)
    best = max(evaluations, key=lambda row: (row.get(metric, 0.0), -row.get("loss", 0.0)), default={})
    marks = {metric: (best["step"], best[metric])} if metric in best else {}
    title = f"{NAMES[metric][0].upper()}{NAMES[metric][1:]} on dev"
    charts = [("Loss", "loss", svg.plain, False), (title, metric, _show(metric), False), *OPTIMIZATION_CHARTS]
    drawn = _lines(charts, steps, evaluations, "dev", marks)
    if result and result.get("points"):
        drawn.append(svg.scatter("Numbers of dev", result["points"], "right", "answered"))
    sections = [svg.side_by_side(drawn), *(_evaluation_sections(result) if result else ())]
    if evaluations:
        columns = [
            STEP_COLUMN,
            ("loss", "loss", "{:.4f}".format),
            *((name, NAMES[name], _show(name)) for name in NAMES),
        ]
        sections.append(svg.figures("Evaluations on dev", columns, evaluations))
        figures = format_metrics(result["figures"] if result else best)
        summary.append(f"best after step {best['step']:,}: {figures}")
    sections.append(svg.preformatted("Data", data))
    return _write(folder, "fine-tuning", summary, sections)


def _write(folder: Path, kind: str, summary: list[str], sections: list[str]) -> Path:
    """The page, with the recipe of the run and the software it was begun with at the end."""
    recipe, run = folder / "recipe.toml", folder / "run.json"
    sections += [svg.preformatted("Recipe", recipe.read_text(encoding="utf-8"))] if recipe.exists() else []
    if versions := read_json(run).get("versions") if run.exists() else None:
        sections.append(svg.software(versions))
    write_text(folder / "report.html", svg.page(folder.resolve().name, kind, " · ".join(summary), sections))
    return folder / "report.html"


def _read_rows(folder: Path) -> tuple[Rows, Rows]:
    """Steps, and evaluations (their figures with the step among them), in the order of steps. A run that was resumed
    may repeat steps: the last line counts."""
    steps: dict[int, dict[str, Any]] = {}
    evaluations: dict[int, dict[str, Any]] = {}
    for _, step, figures, is_evaluation in read_metrics(folder / "metrics.jsonl"):
        (evaluations if is_evaluation else steps)[step] = figures | {"step": step}
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
    charts: Iterable[Chart], steps: Rows, evaluations: Rows, held: str, best: Mapping[str, Point] | None = None
) -> list[str]:
    """Charts of figures over steps; a figure that nothing has is left out.

    Args:
        held: the name of the evaluations. best: points to mark, by figure.
    """
    drawn = []
    for title, name, show, from_zero in charts:
        train = Series("training", "train", svg.points(steps, name))
        series = [train, Series(held, "held", svg.points(evaluations, name), (best or {}).get(name))]
        if series := [line for line in series if line.points]:
            drawn.append(svg.chart(title, series, show, from_zero))
    return drawn


def _show(name: str) -> Show:
    return svg.percent if name in SHARES else svg.plain


def _evaluation_sections(result: Mapping[str, Any]) -> Iterable[str]:
    """Sections of the final evaluation: confusion matrix, figures by label, the worst mistakes."""
    if confusion := result["confusion"]:
        table = svg.heat(confusion["labels"], confusion["counts"])
        if result["task"] in ("tagging", "spans"):
            note = f"{NOTHING} means no entity. An entity with wrong borders counts as correct here, but not below."
            table += f'<p class="quiet">{note}</p>'
        yield svg.section("Confusion matrix", table)
    if parts := result["table"]:
        part = PARTS[result["task"]]
        shares = [(name, NAMES.get(name, name), svg.percent) for name in ("precision", "recall", "exact", "f1")]
        columns: list[Column] = [("name", part, str), *shares, ("support", "support", "{:,.0f}".format)]
        yield svg.figures(f"By {part}", columns, [{"name": name, **row} for name, row in parts.items()])
    if worst := result["worst"]:
        note, last, show = counted(result["mistakes"], result["rows"]), "score", svg.percent
        if result["task"] == "regression":
            note, last, show = f"{result['rows']:,} rows", "difference", svg.plain
        note += f"; most frequent: {result['frequent']}" if result["frequent"] else ""
        note += "; all are in errors.csv"
        rows = []
        for one in worst:
            where = one["where"].rpartition("/")[2]  # without the folders
            texts = [_shorten(text) for text in (" / ".join(one["texts"]), one["gold"], one["predicted"])]
            rows.append([where, *texts, "" if one["score"] is None else show(one["score"])])
        table = svg.words(["where", "text", "label", "prediction", last], rows)
        yield svg.section("The worst mistakes", f'<p class="quiet">{escape(note)}</p>\n{table}')


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + " …"
