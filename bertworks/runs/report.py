"""report.html of a pre-training: what a run learned, drawn from metrics.jsonl, recipe.toml and run.json of its folder.
It computes no figure of its own. Not here: how charts are drawn (`charts`)."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError
from bertworks.files.storage import read_json
from bertworks.runs import charts
from bertworks.runs.charts import Series, Show
from bertworks.runs.events import duration
from bertworks.runs.metrics import lengths
from bertworks.text.atomic import write_text


def write_report(folder: str | Path) -> Path:
    """Draw the page of a run folder and return its path. What has not been measured yet is left out.

    Raises:
        BertworksError: a line of metrics.jsonl is not what a run writes; the page cannot be written.
    """
    folder = Path(folder)
    steps, evaluations = read_metrics(folder / "metrics.jsonl")
    sections = [charts.side_by_side(list(_charts(steps, evaluations)))]
    if evaluations:
        sections.append(charts.figures("Held-out text", _columns(evaluations[-1]), evaluations))
    sections += origin(folder)
    page = charts.page(folder.resolve().name, "pre-training", _summary(steps, evaluations), sections)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Steps, and evaluations (their figures with the step among them), in the order of steps.

    A run that was resumed may repeat steps: the last word counts. Half a line at the end is of a killed process.
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
                "not a line that a run writes: expected a JSON object with a step and numbers",
                where=f"{path}:{number}",
                fix="delete the line",
            ) from None
        (evaluations if "evaluation" in content else steps)[step] = numbers | {"step": step}
    return [steps[step] for step in sorted(steps)], [evaluations[step] for step in sorted(evaluations)]


def origin(folder: Path) -> list[str]:
    """Sections: the recipe of a run, and the software it was begun with."""
    recipe, run = folder / "recipe.toml", folder / "run.json"
    sections = [charts.preformatted("Recipe", recipe.read_text(encoding="utf-8"))] if recipe.exists() else []
    versions = read_json(run).get("versions") if run.exists() else None
    return [*sections, charts.software(versions)] if versions else sections


def spent(last: dict[str, Any], step: int) -> list[str]:
    """Steps, tokens and time so far, in words. last: the figures of the last step."""
    parts = [f"{step:,} steps"]
    if "tokens" in last:
        parts.append(f"{charts.short(last['tokens'])} tokens")
    if "seconds" in last:
        parts.append(f"{duration(last['seconds'])} of training")
    return parts


def _summary(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> str:
    """The last figures in one line."""
    last, held = (rows[-1] if rows else {} for rows in (steps, evaluations))
    parts = spent(last, max(last.get("step", 0), held.get("step", 0)))
    if "masked_lm_accuracy" in held:
        parts.append(f"{held['masked_lm_accuracy']:.1%} of held-out masked words right")
    if "masked_lm_perplexity" in held:
        parts.append(f"perplexity {held['masked_lm_perplexity']:,.1f}")
    if "next_sentence_accuracy" in held:
        parts.append(f"{held['next_sentence_accuracy']:.1%} of sentence pairs right")
    return " · ".join(parts)


def _charts(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> Iterable[str]:
    wanted: list[tuple[str, str, Show, bool]] = [  # the last: whether the axis begins at zero
        ("Loss on masked words", "masked_lm_loss", charts.plain, False),
        ("Accuracy on masked words", "masked_lm_accuracy", charts.percent, True),
        ("Loss on sentence pairs", "next_sentence_loss", charts.plain, False),
        ("Accuracy on sentence pairs", "next_sentence_accuracy", charts.percent, False),
        ("Learning rate", "learning_rate", charts.scientific, True),
        ("Norm of the gradient", "gradient_norm", charts.plain, True),
        ("Tokens per second", "tokens_per_second", charts.short, True),
        ("Share of the matrix-product ceiling", "matmul_share", charts.percent, True),
    ]
    for title, name, show, from_zero in wanted:
        train = Series("training", "train", charts.points(steps, name))
        series = [one for one in (train, Series("held out", "held", charts.points(evaluations, name))) if one.points]
        if series:
            yield charts.chart(title, series, show, from_zero)


def _columns(evaluation: dict[str, Any]) -> list[tuple[str, str, Show]]:
    """Those of all runs, and of sequences longer than most if there are any."""
    return _COLUMNS + [
        column
        for length in lengths(evaluation)
        for column in (
            (f"masked_lm_loss_at_{length}", f"loss at {length} tokens", _loss),
            (f"masked_lm_accuracy_at_{length}", f"accuracy at {length} tokens", _accuracy),
        )
    ]


def _loss(value: float) -> str:
    return f"{value:.4f}"


def _accuracy(value: float) -> str:
    return f"{value:.2%}"


_COLUMNS: list[tuple[str, str, Show]] = [
    ("step", "step", lambda step: f"{step:,.0f}"),
    ("masked_lm_loss", "loss, masked words", _loss),
    ("masked_lm_accuracy", "accuracy, masked words", _accuracy),
    ("masked_lm_perplexity", "perplexity", lambda perplexity: f"{perplexity:,.2f}"),
    ("next_sentence_loss", "loss, sentence pairs", _loss),
    ("next_sentence_accuracy", "accuracy, sentence pairs", _accuracy),
]
