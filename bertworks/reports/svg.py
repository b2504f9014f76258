"""HTML pages with tables, SVG charts and formatted numbers. A page needs no network and no
library."""

import hashlib
import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 230, 56, 14, 8, 40  # of a chart, in CSS pixels
_MAX_HORIZONTAL = 8  # names above columns; more names are written vertically
MAX_POINTS = 150  # of a line; more are averaged in groups, with their extremes as a band
PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
STYLE = "\n" + Path(__file__).with_name("style.css").read_text(encoding="utf-8")

Point = tuple[float, float]
Show = Callable[[float], str]


class Series(NamedTuple):
    """A line of a chart."""

    name: str
    style: str  # "train"; "held", with a dot at every point; "base", dashed
    points: Sequence[Point]
    best: Point | None = None  # the point to mark


def page(
    name: str,
    what: str,
    summary: str,
    sections: Sequence[str],
    *,
    style: str = "",
    script: str = "",
) -> str:
    """A whole page.

    Args:
        name: of the model. what: the kind of page. summary: one line.
        sections: HTML.
        style: CSS besides STYLE.
        script: JavaScript. The policy of the page allows this script only, by its hash.
    """
    allowed = end = ""
    if script:
        allowed = (
            f"; script-src 'sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        )
        end = f"<script>{script}</script>\n"
    name, what, summary = map(escape, (name, what, summary))
    values = {"allowed": allowed, "style": STYLE + style, "body": "\n".join(sections), "end": end}
    return PAGE.format(name=name, what=what, summary=summary, **values)


def side_by_side(drawn: Sequence[str]) -> str:
    """Figures side by side where there is room."""
    joined = "\n".join(drawn)
    return (
        f'<div class="charts">\n{joined}\n</div>'
        if drawn
        else "<p>Nothing has been measured yet.</p>"
    )


def section(title: str, body: str) -> str:
    """body: HTML."""
    return f"<h2>{escape(title)}</h2>\n{body}"


def preformatted(title: str, text: str) -> str:
    return section(title, f"<pre>{escape(text.strip())}</pre>")


def folded(title: str, text: str) -> str:
    """A text that a click unfolds."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text.strip())}</pre></details>"


def headline(text: str, warning: str = "") -> str:
    """The result at the top of a page, and what to know before it is used."""
    return (
        f'<p class="headline">{escape(text)}</p>'
        + f'<p class="warning">{escape(warning)}</p>' * bool(warning)
    )


def figures(
    title: str, columns: Sequence[tuple[str, str, Show]], rows: Sequence[Mapping[str, Any]]
) -> str:
    """A table of numbers. columns: key in a row, title, format; a column that no row has is left
    out."""
    present = [column for column in columns if any(column[0] in row for row in rows)]
    head = [f"<th>{escape(title)}</th>" for _, title, _ in present]
    body = [
        [f"<td>{escape(show(row[key])) if key in row else ''}</td>" for key, _, show in present]
        for row in rows
    ]
    return section(title, _table([head, *body]))


def words(columns: Sequence[str], rows: Sequence[Sequence[str]], wraps: bool = True) -> str:
    """A table of texts; the second column is the widest. wraps: whether a cell may have several
    lines."""
    classes = ["quiet", "text", *["cell"] * len(columns)]
    head = [f"<th>{escape(column)}</th>" for column in columns]
    body = [
        [f'<td class="{style}">{escape(cell)}</td>' for style, cell in zip(classes, row)]
        for row in rows
    ]
    return _table([head, *body], f' class="words{"" if wraps else " whole"}"')


def _table(rows: Sequence[Sequence[str]], attributes: str = "") -> str:
    """rows: HTML of cells."""
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f'<div class="scroll" tabindex="0"><table{attributes}>\n{body}\n</table></div>'


def points(rows: list[dict[str, Any]], name: str) -> list[Point]:
    return [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]


def chart(
    title: str, series: list[Series], show: Show, from_zero: bool, across: str = "step"
) -> str:
    """Lines over steps, or over what `across` names. The averaged lines set the limits of the axis:
    single outliers may leave the chart."""
    means = [(x, y) for line in series for x, y, _, _ in grouped(line.points)]
    right = max(x for x, _ in means)
    ys = ticks(0 if from_zero else min(y for _, y in means), max(y for _, y in means), 4)
    axes = _Axes(0, max(right, 1), ys[0], ys[-1])
    parts = [
        *axes.draw([x for x in ticks(0, right, 5) if x <= right], ys, short, show, f"{across}s")
    ]
    parts += [_line(line, axes, show, across) for line in series]
    legend = "".join(
        f'<span class="{line.style}">{escape(line.name)}</span>'
        for line in series
        if len(series) > 1
    )
    description = ", ".join(f"{line.name} ends at {show(line.points[-1][1])}" for line in series)
    return _figure(title, legend, f"{title}: {description}", parts)


def scatter(title: str, dots: Sequence[Point], across: str, up: str) -> str:
    """Dots between two axes of the same numbers, with the line on which both numbers are equal."""
    values = [value for dot in dots for value in dot]
    marks = ticks(min(values), max(values), 4)
    axes = _Axes(marks[0], marks[-1], marks[0], marks[-1])
    (x1, y1), (x2, y2) = axes.place(marks[0], marks[0]), axes.place(marks[-1], marks[-1])
    ideal = f'<line class="ideal" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    places = (axes.place(*dot) for dot in dots)
    points = (f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    parts = [*axes.draw(marks, marks, plain, plain, across), ideal, *points]
    legend = f'<span class="plain">{escape(up)} over {escape(across)}</span>'
    return _figure(
        title, legend, f"{title}: {len(dots)} points", [f'<g class="train">{"".join(parts)}</g>']
    )


def intervals(
    title: str, bars: Sequence[tuple[str, float, Point]], show: Show, marked: str = ""
) -> str:
    """A dot and a horizontal interval for each (name, value, interval), under its name. marked: the
    name of one."""
    marks = ticks(min(low for _, _, (low, _) in bars), max(high for _, _, (_, high) in bars), 5)
    axes, height = _Axes(marks[0], marks[-1], 0, 1), TOP + BOTTOM + 38 * len(bars)
    parts = []
    for x in marks:
        across, anchor = f"{axes.place(x, 0)[0]:.1f}", "end" if x == marks[-1] else "middle"
        parts.append(
            f'<line class="grid" x1="{across}" x2="{across}" y1="{TOP}" y2="{height - BOTTOM}"/>'
        )
        parts.append(
            f'<text x="{across}" y="{height - BOTTOM + 17}" text-anchor="{anchor}">{show(x)}</text>'
        )
    for number, (name, value, ends) in enumerate(bars):
        (low, _), (middle, _), (high, _) = (axes.place(x, 0) for x in (ends[0], value, ends[1]))
        y, style = TOP + 38 * number + 28, "held" if name == marked else "train"
        parts.append(
            f'<text x="{LEFT}" y="{y - 12}">{escape(name)}: {show(value)}</text><g class="{style}">'
        )
        parts.append(f'<line class="path" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="dot" cx="{middle:.1f}" cy="{y}" r="4.5"/></g>')
    return _figure(title, "", f"{title}: {bars[0][0]} {show(bars[0][1])}", parts, height)


class _Axes(NamedTuple):
    """The numbers at the edges of a chart."""

    left: float
    right: float
    low: float
    high: float

    def place(self, x: float, y: float) -> Point:
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - self.left) / (self.right - self.left)
        fraction = (self.high - min(max(y, self.low), self.high)) / (self.high - self.low)
        return across, TOP + (HEIGHT - TOP - BOTTOM) * fraction

    def path(self, points: Iterable[Point]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.place(*point) for point in points))

    def draw(
        self, xs: Sequence[float], ys: Sequence[float], show_x: Show, show_y: Show, name: str
    ) -> Iterator[str]:
        """Horizontal lines at `ys`, numbers at `xs` and `ys`, and the name of the horizontal
        axis."""
        for y in ys:
            _, down = self.place(self.left, y)
            yield (
                f'<line class="grid" x1="{LEFT:.1f}" x2="{WIDTH - RIGHT}" y1="{down:.1f}" '
                f'y2="{down:.1f}"/>'
            )
            yield f'<text x="{LEFT - 8}" y="{down:.1f}" dy="4" text-anchor="end">{show_y(y)}</text>'
        for x in xs:
            across, _ = self.place(x, self.low)
            anchor = "end" if across > WIDTH - RIGHT - 16 else "middle"
            yield (
                f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 17}" '
                f'text-anchor="{anchor}">{show_x(x)}</text>'
            )
        yield (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 5}" '
            f'text-anchor="middle">{escape(name)}</text>'
        )


def _figure(
    title: str, legend: str, description: str, parts: Sequence[str], height: int = HEIGHT
) -> str:
    caption = f"<figure><figcaption>{escape(title)}{legend}</figcaption>"
    start = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(description)}">'
    return "\n".join([caption, start, *parts, "</svg></figure>"])


def _line(series: Series, axes: _Axes, show: Show, unit: str) -> str:
    groups = grouped(series.points)
    parts = []
    if len(groups) < len(series.points):
        edge = [(x, high) for x, _, _, high in groups] + [
            (x, low) for x, _, low, _ in reversed(groups)
        ]
        parts.append(f'<polygon class="band" points="{axes.path(edge)}"/>')
    parts.append(f'<polyline class="path" points="{axes.path((x, y) for x, y, _, _ in groups)}"/>')
    if series.style == "held" or len(groups) == 1:
        for x, y, _, _ in groups:
            across, down = axes.place(x, y)
            hint = f"<title>{unit} {x:,.0f}: {show(y)}</title>"
            parts.append(
                f'<circle class="dot" cx="{across:.1f}" cy="{down:.1f}" r="3.5">{hint}</circle>'
            )
    if series.best:  # a ring, with words that stay inside the chart
        x, y = axes.place(*series.best)
        text_y = y + (20 if y < TOP + 24 else -10)
        anchor = "end" if x > WIDTH - RIGHT - 40 else "start" if x < LEFT + 40 else "middle"
        parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{text_y:.1f}" text-anchor="{anchor}">best: '
            f"{show(series.best[1])}</text>"
        )
    return f'<g class="{series.style}">' + "\n".join(parts) + "</g>"


def heat(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A confusion matrix. A cell is darker the larger its fraction of its row is; the diagonal is
    right."""
    style = "tall" if len(names) > _MAX_HORIZONTAL else "narrow"
    heads = [
        f'title="{escape(name)}">{escape(name if len(name) < 25 else f"{name[:23]}…")}'
        for name in names
    ]
    head = [f'<th class="{style}"><span {name}</span></th>' for name in heads]
    rows = [['<th class="corner">label &#8595; prediction &#8594;</th>', *head]]
    for row, of_row in enumerate(counts):
        total = max(1, sum(of_row))
        cells = [f"<th {heads[row]}</th>"]
        for column, count in enumerate(of_row):
            style = "right" if row == column else "wrong"
            percentage = f"<small>{count / total:.0%}</small>" if count else ""
            cells.append(
                f'<td class="{style}" style="--share: '
                f'{count / total:.3f}">{count:,}{percentage}</td>'
            )
        rows.append(cells)
    return _table(rows, ' class="heat"')


def grid(title: str, names: Sequence[str], filled: Sequence[Sequence[bool]]) -> str:
    """A square of cells with names at its rows and columns."""
    short = [escape(name if len(name) < 15 else f"{name[:13]}…") for name in names]
    left = 20 + 7 * min(15, max(map(len, names)))
    cell = min(18.0, (WIDTH - left - 10) / len(names))
    parts = ['<g class="train">']
    for y, (name, row) in enumerate(zip(short, filled, strict=True)):
        middle = left + (y + 0.7) * cell
        parts.append(f'<text x="{left - 6}" y="{middle:.1f}" text-anchor="end">{name}</text>')
        parts.append(
            f'<text transform="translate({middle:.1f} {left - 6}) rotate(-90)">{name}</text>'
        )
        for x, is_filled in enumerate(row):
            at = (
                f'x="{left + x * cell:.1f}" y="{left + y * cell:.1f}" width="{cell - 2:.1f}" '
                f'height="{cell - 2:.1f}"'
            )
            parts.append(f'<rect class="{"cell" if is_filled else "cell blank"}" {at}/>')
    height = round(left + len(names) * cell + 8)
    return _figure(title, "", f"{title}: {sum(map(sum, filled))} cells", [*parts, "</g>"], height)


def grouped(points: Sequence[Point]) -> list[tuple[float, float, float, float]]:
    """At most MAX_POINTS of (x, mean, minimum, maximum), each of equally many neighbors."""
    size = -(-len(points) // MAX_POINTS) or 1
    groups = (zip(*points[start : start + size]) for start in range(0, len(points), size))
    return [(xs[-1], math.fsum(ys) / len(ys), min(ys), max(ys)) for xs, ys in groups]


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers at equal distances that enclose both ends."""
    if high - low < 1e-300:
        around = abs(low) / 2 if abs(low) > 1e-300 else 1.0
        low, high = low - around, high + around
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (power * factor) <= count
    )
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
    sizes = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0, ""))
    size, sign = next((size, sign) for size, sign in sizes if abs(value) >= size)
    return f"{value / (size or 1):.3g}{sign}"
