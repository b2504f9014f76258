"""Parts of HTML pages: frame, tables, SVG charts, formatted numbers. A page needs no network and no library."""

import hashlib
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 230, 56, 14, 8, 40  # of a chart, in CSS pixels
MOST_ACROSS = 8  # names that are written across above their columns; more are written upright
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
.ring { fill: none; stroke: var(--stroke); stroke-width: 1.5; } .point { fill: var(--stroke); opacity: .45; }
.ideal { stroke: var(--soft); stroke-dasharray: 4 4; } figcaption .plain::before { display: none; }
.heat th { border: 0; padding: 2px 10px 2px 0; white-space: nowrap; } .heat .corner { font-weight: 400; }
.heat .narrow { text-align: center; padding: 2px; max-width: 90px; overflow: hidden; text-overflow: ellipsis; }
.heat .tall { vertical-align: bottom; } .heat .tall span { writing-mode: vertical-rl; transform: rotate(180deg); }
.heat td { text-align: center; min-width: 52px; padding: 7px 6px; border: 2px solid var(--page); border-radius: 4px;
  background: color-mix(in srgb, var(--shade) calc(var(--share) * 55%), var(--card)); }
.heat small { display: block; font-size: 11px; opacity: .75; }
.right { --shade: var(--train); } .wrong { --shade: var(--held); }
.words th, .words td { text-align: left; vertical-align: top; padding: 6px 16px 6px 0; min-width: 72px; }
.words .text { min-width: 240px; white-space: pre-line; overflow-wrap: anywhere; }
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
    best: Point | None = None  # is marked


def page(name: str, what: str, summary: str, sections: Sequence[str], *, style: str = "", script: str = "") -> str:
    """A whole page.

    Args:
        name, what: of the model, and of what was done to it; summary: a line.
        sections: HTML.
        style: CSS beyond STYLE.
        script: JavaScript of ours, the only one that the page lets run: its hash is in the page's policy.
    """
    body = "\n".join(sections)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{digest}'" if script else ""
    end = f"<script>{script}</script>\n" if script else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'{allowed}">
<title>{escape(name)}: {escape(what)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<h1>{escape(name)}</h1>
<p class="summary">{escape(summary)}</p>
{body}
{end}</body>
</html>
"""


def side_by_side(drawn: Sequence[str]) -> str:
    """Figures side by side where there is room."""
    joined = "\n".join(drawn)
    return f'<div class="charts">\n{joined}\n</div>' if drawn else "<p>Nothing has been measured yet.</p>"


def section(title: str, body: str) -> str:
    """body: HTML."""
    return f"<h2>{escape(title)}</h2>\n{body}"


def preformatted(title: str, text: str) -> str:
    return section(title, f"<pre>{escape(text.strip())}</pre>")


def software(versions: Mapping[str, Any]) -> str:
    """With what a run was begun."""
    listed = ", ".join(f"{escape(str(package))} {escape(str(version))}" for package, version in versions.items())
    return f'<p class="quiet">Begun with {listed}.</p>'


def figures(title: str, columns: Sequence[tuple[str, str, Show]], rows: Sequence[Mapping[str, Any]]) -> str:
    """A table of numbers. columns: name in a row, title, how it is shown; one that no row has is left out."""
    present = [column for column in columns if any(column[0] in row for row in rows)]
    head = "".join(f"<th>{escape(title)}</th>" for _, title, _ in present)
    lines = [
        "".join(f"<td>{escape(show(row[name])) if name in row else ''}</td>" for name, _, show in present)
        for row in rows
    ]
    table = f"<table>\n<tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"
    return section(title, f'<div class="scroll">{table}</div>')


def words(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts; the second column is the widest."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    classes = ["quiet", "text", *["cell"] * len(columns)]
    lines = [
        "".join(f'<td class="{style}">{escape(cell)}</td>' for style, cell in zip(classes, row, strict=False))
        for row in rows
    ]
    table = f"<tr>{head}</tr>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table class="words">\n{table}\n</table></div>'


def points(rows: list[dict[str, Any]], name: str) -> list[Point]:
    return [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]


def chart(title: str, series: list[Series], show: Show, from_zero: bool) -> str:
    """Lines over steps. The heights are those of the averaged lines: single outliers may leave the frame."""
    means = [[(x, y) for x, y, _, _ in grouped(one.points)] for one in series]
    values = [y for line in means for _, y in line]
    right = max(x for line in means for x, _ in line)
    ys = ticks(0 if from_zero else min(values), max(values), 4)
    frame = _Frame(0, max(right, 1), ys[0], ys[-1])
    parts = frame.axes([x for x in ticks(0, right, 5) if x <= right], ys, short, show, "steps")
    parts += [_line(one, frame, show) for one in series]
    legend = "".join(f'<span class="{one.style}">{escape(one.name)}</span>' for one in series if len(series) > 1)
    description = ", ".join(f"{one.name} ends at {show(one.points[-1][1])}" for one in series)
    return _figure(title, legend, f"{title}: {description}", parts)


def scatter(title: str, dots: Sequence[Point], across: str, up: str) -> str:
    """Dots between two axes of the same numbers, with the line on which both numbers are the same."""
    values = [value for dot in dots for value in dot]
    marks = ticks(min(values), max(values), 4)
    frame = _Frame(marks[0], marks[-1], marks[0], marks[-1])
    parts = frame.axes(marks, marks, plain, plain, across)
    (x1, y1), (x2, y2) = frame.place(marks[0], marks[0]), frame.place(marks[-1], marks[-1])
    parts.append(f'<line class="ideal" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
    for x, y in (frame.place(*dot) for dot in dots):
        parts.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
    legend = f'<span class="plain">{escape(up)} over {escape(across)}</span>'
    return _figure(title, legend, f"{title}: {len(dots)} points", [f'<g class="train">{"".join(parts)}</g>'])


@dataclass(frozen=True)
class _Frame:
    """Which numbers stand at the edges of a picture."""

    left: float
    right: float
    low: float
    high: float

    def place(self, x: float, y: float) -> Point:
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - self.left) / (self.right - self.left)
        share = (self.high - min(max(y, self.low), self.high)) / (self.high - self.low)
        return across, TOP + (HEIGHT - TOP - BOTTOM) * share

    def text(self, x: float, y: float) -> str:
        across, down = self.place(x, y)
        return f"{across:.1f},{down:.1f}"

    def axes(self, xs: Sequence[float], ys: Sequence[float], show_x: Show, show_y: Show, name: str) -> list[str]:
        """Lines across at `ys`, numbers at both, and what is across."""
        parts = []
        for y in ys:
            across, down = self.text(self.left, y).split(",")
            parts.append(f'<line class="grid" x1="{across}" x2="{WIDTH - RIGHT}" y1="{down}" y2="{down}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{down}" dy="4" text-anchor="end">{show_y(y)}</text>')
        for x in xs:
            across = self.text(x, self.low).split(",")[0]
            anchor = "end" if float(across) > WIDTH - RIGHT - 16 else "middle"
            parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 17}" text-anchor="{anchor}">{show_x(x)}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        return [*parts, f'<text x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">{escape(name)}</text>']


def _figure(title: str, legend: str, description: str, parts: Sequence[str]) -> str:
    drawn = "\n".join(parts)
    return (
        f"<figure><figcaption>{escape(title)}{legend}</figcaption>\n"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(description)}">\n{drawn}\n</svg></figure>'
    )


def _line(series: Series, frame: _Frame, show: Show) -> str:
    groups = grouped(series.points)
    parts = []
    if len(groups) < len(series.points):
        edge = [frame.text(x, high) for x, _, _, high in groups]
        edge += [frame.text(x, low) for x, _, low, _ in reversed(groups)]
        parts.append(f'<polygon class="band" points="{" ".join(edge)}"/>')
    parts.append(f'<polyline class="path" points="{" ".join(frame.text(x, y) for x, y, _, _ in groups)}"/>')
    if series.style == "held" or len(groups) == 1:
        for x, y, _, _ in groups:
            across, down = frame.text(x, y).split(",")
            hint = f"<title>step {x:,.0f}: {show(y)}</title>"
            parts.append(f'<circle class="dot" cx="{across}" cy="{down}" r="3.5">{hint}</circle>')
    if series.best:
        parts += _mark(*frame.place(*series.best), f"best: {show(series.best[1])}")
    return f'<g class="{series.style}">' + "\n".join(parts) + "</g>"


def _mark(across: float, down: float, text: str) -> list[str]:
    """A ring with words, which stay inside the picture."""
    below = 20 if down < TOP + 24 else -10
    anchor = "end" if across > WIDTH - RIGHT - 40 else "start" if across < LEFT + 40 else "middle"
    return [
        f'<circle class="ring" cx="{across:.1f}" cy="{down:.1f}" r="7"/>',
        f'<text x="{across:.1f}" y="{down + below:.1f}" text-anchor="{anchor}">{text}</text>',
    ]


def heat(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A table of counts whose cells are the darker the greater their share of their row; what is right stands on the
    diagonal."""
    style = "tall" if len(names) > MOST_ACROSS else "narrow"
    head = "".join(
        f'<th class="{style}"><span title="{escape(name)}">{escape(_cut(name))}</span></th>' for name in names
    )
    lines = [f'<tr><th class="corner">right &#8595; answered &#8594;</th>{head}</tr>']
    for row, name in enumerate(names):
        total = max(1, sum(counts[row]))
        cells = []
        for column, count in enumerate(counts[row]):
            style = "right" if row == column else "wrong"
            share = f"<small>{count / total:.0%}</small>" if count else ""
            cells.append(f'<td class="{style}" style="--share: {count / total:.3f}">{count:,}{share}</td>')
        lines.append(f'<tr><th title="{escape(name)}">{escape(_cut(name))}</th>{"".join(cells)}</tr>')
    return '<div class="scroll"><table class="heat">\n' + "\n".join(lines) + "\n</table></div>"


def _cut(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def grouped(points: Sequence[Point]) -> list[tuple[float, float, float, float]]:
    """At most MOST_POINTS of (x, mean, least, greatest), each of equally many neighbours."""
    size = -(-len(points) // MOST_POINTS)
    groups = [[point for _, point in group] for _, group in groupby(enumerate(points), lambda one: one[0] // size)]
    result = []
    for group in groups:
        ys = [y for _, y in group]
        result.append((group[-1][0], math.fsum(ys) / len(ys), min(ys), max(ys)))
    return result


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers about `count` steps apart that enclose both ends."""
    if high - low < 1e-300:
        around = abs(low) / 2 if abs(low) > 1e-300 else 1.0
        low, high = low - around, high + around
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (power * factor) <= count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def plain(value: float) -> str:
    return f"{value:.4g}"


def percent(value: float) -> str:
    return f"{value * 100:.3g}%"


def scientific(value: float) -> str:
    """0.0001 -> 1e-4."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"


def short(value: float) -> str:
    """12300 -> 12.3k."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{sign}"
    return f"{value:.3g}"
