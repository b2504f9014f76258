"""report.html: what a run learned, as one page that needs nothing else: no script, no network, no library.

It reads metrics.jsonl, recipe.toml and run.json of a run folder and draws; it computes no figure of its own.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import BertworksError
from ..files.storage import read_json
from ..text.atomic import write_text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 230, 56, 14, 8, 40  # of a chart, in CSS pixels
MOST_POINTS = 150  # of a line; more are averaged in groups, with their extremes as a band
STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --ink: #1b1b1a; --soft: #62605c; --line: #e2e0da;
  --card: #ffffff; --train: #2a6fc9; --held: #c4500b; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --ink: #eeece6; --soft: #a5a29b; --line: #383734;
  --card: #1f1f1d; --train: #6aa6f0; --held: #f0924f; } }
body { margin: 0 auto; max-width: 1000px; padding: 28px 20px 60px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif; }
h1 { font-size: 25px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 36px 0 10px; }
.summary { color: var(--soft); margin: 4px 0 22px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 16px; }
figure { margin: 0; padding: 12px 12px 4px; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; }
figcaption { font-weight: 600; display: flex; gap: 14px; align-items: baseline; flex-wrap: wrap; }
figcaption span { font-weight: 400; font-size: 13px; color: var(--soft); }
figcaption span::before { content: ""; display: inline-block; width: 18px; height: 3px; border-radius: 2px;
  margin-right: 6px; vertical-align: middle; background: var(--stroke); }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--soft); }
.train { --stroke: var(--train); } .held { --stroke: var(--held); }
.grid { stroke: var(--line); stroke-width: 1; } .band { fill: var(--stroke); opacity: .16; }
.path { fill: none; stroke: var(--stroke); stroke-width: 2; stroke-linejoin: round; }
.dot { fill: var(--stroke); stroke: var(--card); stroke-width: 1.5; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 4px 16px 4px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); font-size: 13px; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px 14px;
  overflow-x: auto; font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; }
.scroll { overflow-x: auto; } .quiet { color: var(--soft); font-size: 13px; }
"""

Point = tuple[float, float]
Show = Callable[[float], str]


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    name: str
    style: str  # "train" or "held", of which the latter has a dot for every point
    points: Sequence[Point]


def write_report(folder: str | Path) -> Path:
    """Draw the page of a run folder and return its path. What has not been measured yet is left out.

    Raises:
        BertworksError: a line of metrics.jsonl is not what a run writes; the page cannot be written.
    """
    folder = Path(folder)
    recipe = folder / "recipe.toml"
    run = read_json(folder / "run.json") if (folder / "run.json").exists() else {}
    page = _page(
        folder.resolve().name,
        *_read_metrics(folder / "metrics.jsonl"),
        recipe.read_text(encoding="utf-8") if recipe.exists() else "",
        {str(name): str(version) for name, version in run.get("versions", {}).items()},
    )
    write_text(folder / "report.html", page)
    return folder / "report.html"


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
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


def _page(
    name: str, steps: list[dict[str, Any]], evaluations: list[dict[str, Any]], recipe: str, versions: dict[str, str]
) -> str:
    charts = "\n".join(_charts(steps, evaluations))
    sections = [f'<div class="charts">\n{charts}\n</div>' if charts else "<p>Nothing has been measured yet.</p>"]
    if evaluations:
        sections.append(f'<h2>Held-out text</h2>\n<div class="scroll">{_table(evaluations)}</div>')
    if recipe:
        sections.append(f"<h2>Recipe</h2>\n<pre>{escape(recipe.strip())}</pre>")
    if versions:
        listed = ", ".join(f"{escape(package)} {escape(version)}" for package, version in versions.items())
        sections.append(f'<p class="quiet">Begun with {listed}.</p>')
    body = "\n".join(sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(name)}: pre-training</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(name)}</h1>
<p class="summary">{escape(_summary(steps, evaluations))}</p>
{body}
</body>
</html>
"""


def _summary(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> str:
    """The last figures in one line."""
    last, held = (rows[-1] if rows else {} for rows in (steps, evaluations))
    step = max(last.get("step", 0), held.get("step", 0))
    parts = [f"{step:,} steps"]
    if "tokens" in last:
        parts.append(f"{_short(last['tokens'])} tokens")
    if "seconds" in last:
        parts.append(f"{_duration(last['seconds'])} of training")
    if "masked_lm_accuracy" in held:
        parts.append(f"{held['masked_lm_accuracy']:.1%} of held-out masked words right")
    if "masked_lm_perplexity" in held:
        parts.append(f"perplexity {held['masked_lm_perplexity']:,.1f}")
    if "next_sentence_accuracy" in held:
        parts.append(f"{held['next_sentence_accuracy']:.1%} of sentence pairs right")
    return " · ".join(parts)


def _charts(steps: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> Iterable[str]:
    def lines(name: str) -> list[Series]:
        train = Series("training", "train", _points(steps, name))
        return [one for one in (train, Series("held out", "held", _points(evaluations, name))) if one.points]

    wanted: list[tuple[str, str, Show, bool]] = [  # the last: whether the axis begins at zero
        ("Loss on masked words", "masked_lm_loss", _plain, False),
        ("Accuracy on masked words", "masked_lm_accuracy", _percent, True),
        ("Loss on sentence pairs", "next_sentence_loss", _plain, False),
        ("Accuracy on sentence pairs", "next_sentence_accuracy", _percent, False),
        ("Learning rate", "learning_rate", _scientific, True),
        ("Norm of the gradient", "gradient_norm", _plain, True),
        ("Tokens per second", "tokens_per_second", _short, True),
        ("Share of the matrix-product ceiling", "matmul_share", _percent, True),
    ]
    for title, name, show, from_zero in wanted:
        if series := lines(name):
            yield _chart(title, series, show, from_zero)


def _points(rows: list[dict[str, Any]], name: str) -> list[Point]:
    return [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]


def _chart(title: str, series: list[Series], show: Show, from_zero: bool) -> str:
    """A figure with axes. The heights are those of the averaged lines: single outliers may leave the frame."""
    means = [[(x, y) for x, y, _, _ in _grouped(one.points)] for one in series]
    values = [y for line in means for _, y in line]
    right = max(x for line in means for x, _ in line)
    xs, ys = _ticks(0, right, 5), _ticks(0 if from_zero else min(values), max(values), 4)
    low, high = ys[0], ys[-1]

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / max(right, 1)
        down = TOP + (HEIGHT - TOP - BOTTOM) * (high - min(max(y, low), high)) / (high - low)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for y in ys:
        across, down = place(0, y).split(",")
        parts.append(f'<line class="grid" x1="{across}" x2="{WIDTH - RIGHT}" y1="{down}" y2="{down}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down}" dy="4" text-anchor="end">{show(y)}</text>')
    for x in (x for x in xs if x <= right):
        across = place(x, low).split(",")[0]
        anchor = "end" if float(across) > WIDTH - RIGHT - 16 else "middle"
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 17}" text-anchor="{anchor}">{_short(x)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">steps</text>')
    parts += [_line(one, place, show) for one in series]
    legend = "".join(f'<span class="{one.style}">{one.name}</span>' for one in series if len(series) > 1)
    description = ", ".join(f"{one.name} ends at {show(one.points[-1][1])}" for one in series)
    return (
        f"<figure><figcaption>{escape(title)}{legend}</figcaption>\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{title}: {description}")}">\n'
        + "\n".join(parts)
        + "\n</svg></figure>"
    )


def _line(series: Series, place: Callable[[float, float], str], show: Show) -> str:
    groups = _grouped(series.points)
    parts = []
    if len(groups) < len(series.points):
        edge = [place(x, high) for x, _, _, high in groups] + [place(x, low) for x, _, low, _ in reversed(groups)]
        parts.append(f'<polygon class="band" points="{" ".join(edge)}"/>')
    parts.append(f'<polyline class="path" points="{" ".join(place(x, y) for x, y, _, _ in groups)}"/>')
    if series.style == "held" or len(groups) == 1:
        for x, y, _, _ in groups:
            across, down = place(x, y).split(",")
            hint = f"<title>step {x:,.0f}: {show(y)}</title>"
            parts.append(f'<circle class="dot" cx="{across}" cy="{down}" r="3.5">{hint}</circle>')
    return f'<g class="{series.style}">' + "\n".join(parts) + "</g>"


def _grouped(points: Sequence[Point]) -> list[tuple[float, float, float, float]]:
    """At most MOST_POINTS of (x, mean, least, greatest), each of equally many neighbours."""
    size = -(-len(points) // MOST_POINTS)
    groups = [[point for _, point in group] for _, group in groupby(enumerate(points), lambda one: one[0] // size)]
    result = []
    for group in groups:
        ys = [y for _, y in group]
        result.append((group[-1][0], math.fsum(ys) / len(ys), min(ys), max(ys)))
    return result


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers about `count` steps apart that enclose both ends."""
    if high <= low:
        low, high = low - abs(low) / 2 - (low == 0), high + abs(high) / 2 + (high == 0)
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (power * factor) <= count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{value * 100:.3g}%"


def _scientific(value: float) -> str:
    """0.0001 -> 1e-4."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"


def _short(value: float) -> str:
    """12300 -> 12.3k."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def _table(evaluations: list[dict[str, Any]]) -> str:
    columns: list[tuple[str, str, Show]] = [
        ("step", "step", lambda step: f"{step:,.0f}"),
        ("masked_lm_loss", "loss, masked words", lambda loss: f"{loss:.4f}"),
        ("masked_lm_accuracy", "accuracy, masked words", lambda accuracy: f"{accuracy:.2%}"),
        ("masked_lm_perplexity", "perplexity", lambda perplexity: f"{perplexity:,.2f}"),
        ("next_sentence_loss", "loss, sentence pairs", lambda loss: f"{loss:.4f}"),
        ("next_sentence_accuracy", "accuracy, sentence pairs", lambda accuracy: f"{accuracy:.2%}"),
    ]
    present = [column for column in columns if any(column[0] in row for row in evaluations)]
    head = "".join(f"<th>{title}</th>" for _, title, _ in present)
    rows = [
        "".join(f"<td>{show(row[name]) if name in row else ''}</td>" for name, _, show in present)
        for row in evaluations
    ]
    return f"<table>\n<tr>{head}</tr>\n" + "\n".join(f"<tr>{row}</tr>" for row in rows) + "\n</table>"
