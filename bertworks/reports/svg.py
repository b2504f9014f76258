"""Write pages of reports.

Sections, charts among them, are data that the template page.html draws. A page needs no network and
no library.
"""

import hashlib
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

# Of a chart, in CSS pixels.
WIDTH = 460
HEIGHT = 230
LEFT = 56
RIGHT = 14
TOP = 8
BOTTOM = 40
COLUMN_HEIGHT = 0.25  # of a chart: the largest column of counts
# Of names beside bars: the width of a character, and the widest column of names.
CHARACTER = 6.6
WIDEST_NAMES = 190
BAR_ROW = 22
# Of a plane: its width, its greatest height and its edge; each of the first MARKS numbers has
# another pair of one of 6 colors and one of 4 shapes.
PLANE_WIDTH = 720
PLANE_HEIGHT = 440
PLANE_EDGE = 12
MARKS = 12
MOST_TICKS = 6  # of a logarithmic axis
MAX_POINTS = 150  # of a line; more are averaged in groups, with their extremes as a band
PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
STYLE = "\n" + Path(__file__).with_name("style.css").read_text(encoding="utf-8")

Point = tuple[float, float]
Show = Callable[[float], str]
Section = Mapping[str, Any]  # its kind, which page.html draws, and the values that this kind has


class Series(NamedTuple):
    """A line of a chart."""

    name: str
    style: str  # "train"; "held", with a dot at every point; "fold", thin; "base", dashed
    points: Sequence[Point]
    best: Point | None = None  # the point to mark


class Dot(NamedTuple):
    """A point of `plane`."""

    x: float
    y: float
    is_marked: bool  # by a ring
    words: str  # which the mouse shows


def page(
    name: str,
    what: str,
    summary: str,
    sections: Sequence[Section],
    *,
    style: str = "",
    script: str = "",
) -> str:
    """Return a whole page as HTML.

    Args:
        name: of the model. what: the kind of page. summary: one line.
        style: CSS besides STYLE.
        script: JavaScript. The policy of the page allows this script only, by its hash.
    """
    return render(
        PAGE,
        name=name,
        what=what,
        summary=summary,
        sections=sections,
        style=STYLE + style,
        script=script,
        digest=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=RIGHT,
        top=TOP,
        bottom=BOTTOM,
    )


def render(template: str, **values: Any) -> str:
    """Return the HTML of a Jinja template in which all values are escaped."""
    html: str = _compiled(template).render(values)
    return html


@cache
def _compiled(template: str) -> Any:
    """Return the compiled Jinja template. Compilation takes far longer than rendering."""
    import jinja2
    from markupsafe import Markup

    def escaped(value: object) -> object:
        """Return a value as HTML, with the character references of Python's `html`."""
        return value if isinstance(value, Markup) else Markup(escape(str(value)))

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined, finalize=escaped
    )
    return environment.from_string(template)


def section(title: str, *parts: Section) -> Section:
    """Return a section with a title, and parts below it."""
    return {"kind": "section", "title": title, "parts": parts}


def side_by_side(charts: Sequence[Section]) -> Section:
    """Return figures that stand side by side where there is room."""
    return {"kind": "charts", "figures": charts}


def preformatted(title: str, text: str) -> Section:
    """Return a text of several lines with a title."""
    return section(title, fixed_width(text))


def fixed_width(text: str) -> Section:
    """Return a text of several lines, in a font of equally wide characters."""
    return {"kind": "preformatted", "text": text.strip()}


def folded(title: str, text: str) -> Section:
    """Return a text that a click unfolds."""
    return {"kind": "folded", "title": title, "text": text.strip()}


def headline(text: str, warning: str = "") -> Section:
    """Return the result at the top of a page, and what to know before it is used."""
    return {"kind": "headline", "text": text, "warning": warning}


def details(title: str, *parts: Section) -> Section:
    """Return parts below a title that a click unfolds."""
    return {"kind": "details", "title": title, "parts": parts}


def note(text: str, *, quiet: bool = True) -> Section:
    """Return a paragraph; quiet: in a lighter color."""
    return {"kind": "note", "text": text, "quiet": quiet}


def html(text: str) -> Section:
    """Return a part that is HTML already."""
    return {"kind": "html", "text": text}


def figures(
    title: str, columns: Sequence[tuple[str, str, Show]], rows: Sequence[Mapping[str, Any]]
) -> Section:
    """Return a table of numbers.

    columns: key in a row, title, format; a column that no row has is left out.
    """
    present = [column for column in columns if any(column[0] in row for row in rows)]
    cells = [[show(row[key]) if key in row else "" for key, _, show in present] for row in rows]
    heads = [name for _, name, _ in present]
    return section(
        title, {"kind": "table", "style": "", "head": heads, "rows": cells, "commands": ()}
    )


def words(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    wraps: bool = True,
    commands: tuple[str, Sequence[str]] = ("", ()),
) -> Section:
    """Return a table of texts; the second column is the widest.

    Args:
        wraps: whether a cell may have several lines.
        commands: a name, and of each row a command that is unfolded below its second cell; "" in
            place of a command: there is none.
    """
    style = "words" if wraps else "words whole"
    name, texts = commands
    return {
        "kind": "table",
        "style": style,
        "head": columns,
        "rows": rows,
        "name": name,
        "commands": texts,
    }


def heat(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Section:
    """Return a confusion matrix.

    A cell is darker the larger its fraction of its row is; the diagonal is right.
    """
    return {"kind": "heat", "names": names, "counts": counts}


def columns(parts: Sequence[Section]) -> Section:
    """Return sections that stand side by side where there is room."""
    return {"kind": "columns", "parts": parts}


def points(rows: list[dict[str, Any]], name: str) -> list[Point]:
    """Return the points of a figure: (step, value) of each row that has it."""
    return [(row["step"], row[name]) for row in rows if math.isfinite(row.get(name, math.nan))]


def chart(
    title: str,
    series: list[Series],
    show: Show,
    from_zero: bool,
    across: str = "step",
    show_x: Show | None = None,
    is_logarithmic: bool = False,
) -> Section:
    """Return lines over steps, or over what `across` names.

    The averaged lines set the limits of the axis: single outliers may leave the chart.

    Args:
        show_x: the format of numbers along the axis; None: that of whole numbers, which `across`
            counts.
        is_logarithmic: whether equal distances along the vertical axis are equal ratios; all
            numbers are positive then.
    """
    ends = ", ".join(f"{line.name} ends at {show(line.points[-1][1])}" for line in series)
    show_point = show
    if is_logarithmic:
        series = [
            line._replace(points=[(x, math.log10(y)) for x, y in line.points]) for line in series
        ]

        def show_point(y: float) -> str:
            """Return the number of which a point has the logarithm."""
            return show(10.0**y)

    # the folds of a cross-validation look alike
    names = ("folds" if line.style == "fold" else line.name for line in series)
    legend = dict.fromkeys(zip(names, (line.style for line in series), strict=True))
    lines = [(line, grouped(line.points)) for line in series]
    means = [(x, y) for _, groups in lines for x, y, _, _ in groups]
    right = max(x for x, _ in means)
    low = 0 if from_zero else min(y for _, y in means)
    high = max(y for _, y in means)
    if is_logarithmic:
        marks = [(math.log10(y), show(y)) for y in ratio_ticks(10.0**low, 10.0**high)]
    else:
        marks = labelled(ticks(low, high, 4), show)
    return {
        "kind": "figure",
        "shape": "lines",
        "title": title,
        "description": ends,
        "axes": Axes(0, max(right, 1), marks[0][0], marks[-1][0]),
        "lines": lines,
        "legend": [*legend],
        "xs": labelled([x for x in ticks(0, right, 5) if x <= right], show_x or short),
        "ys": marks,
        "show_x": show_x or "{:,.0f}".format,
        "show": show_point,
        "unit": across,
        "across": f"{across}s" if show_x is None else across,
    }


def reliability(title: str, bins: Sequence[Mapping[str, float]]) -> Section:
    """Return how often predictions are right, over their confidence, and how many there are.

    Args:
        bins: the fields of `ReliabilityBin` (`metrics.intervals`).
    """
    largest = max(part["predictions"] for part in bins)
    marks = ticks(0, 1, 5)
    return {
        "kind": "figure",
        "shape": "reliability",
        "title": title,
        "description": f"{len(bins)} ranges of confidence",
        "axes": Axes(0, 1, 0, 1),
        "bins": [
            {**part, "height": COLUMN_HEIGHT * part["predictions"] / largest} for part in bins
        ],
        "xs": labelled(marks, percent),
        "ys": labelled(marks, percent),
        "show": percent,
        "across": "confidence",
        "up": "fraction right",
    }


def scatter(title: str, dots: Sequence[Point], across: str, up: str) -> Section:
    """Dots between two axes of the same numbers, with the line on which both numbers are equal."""
    values = [value for dot in dots for value in dot]
    marks = ticks(min(values), max(values), 4)
    return {
        "kind": "figure",
        "shape": "dots",
        "title": title,
        "description": f"{len(dots)} points",
        "axes": Axes(marks[0], marks[-1], marks[0], marks[-1]),
        "dots": dots,
        "xs": labelled(marks, plain),
        "ys": labelled(marks, plain),
        "up": up,
        "across": across,
    }


def intervals(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    bars: Sequence[tuple[float, Point]],
    show: Show,
    marked: int | None,
) -> Section:
    """Return a table of texts with a dot and an interval in each row, after its first cell.

    Args:
        heads, rows: of the table.
        bars: value and interval of each row.
        marked: the number of a row; None: no row is marked.
    """
    marks = ticks(min(low for _, (low, _) in bars), max(high for _, (_, high) in bars), 4)

    def place(value: float) -> float:
        """Return a place in the cell, in percent of its width."""
        return 100 * (value - marks[0]) / (marks[-1] - marks[0])

    table_rows = [
        {
            "cells": row,
            "style": "held" if number == marked else "train",
            "dot": place(value),
            "left": place(low),
            "width": place(high) - place(low),
        }
        for number, (row, (value, (low, high))) in enumerate(zip(rows, bars, strict=True))
    ]
    return {
        "kind": "intervals",
        "title": title,
        "head": heads,
        "rows": table_rows,
        "xs": [(place(x), label) for x, label in labelled(marks, show)],
    }


def counts(
    title: str, names: Sequence[str], parts: Sequence[tuple[str, str, Sequence[int]]]
) -> Section:
    """Return a horizontal bar for each name, with its number at its end.

    Args:
        parts: name, style and the number for each of `names`. A bar is made of them, one after
            another; the number at its end is their sum.
    """
    totals = [sum(values) for values in zip(*(numbers for *_, numbers in parts), strict=True)]
    edge = round(min(WIDEST_NAMES, CHARACTER * max(map(len, names))) + 14)
    room = WIDTH - edge - CHARACTER * len(f"{max(totals):,}") - 12
    scale = room / max(1, *totals)
    bars = []
    for row, name in enumerate(names):
        left: float = edge
        pieces = []
        for part, style, numbers in parts:
            width = scale * numbers[row]
            pieces.append((style, left, width, f"{part}: {numbers[row]:,}"))
            left += width
        bars.append((name, pieces, left, totals[row]))
    return {
        "kind": "figure",
        "shape": "counts",
        "title": title,
        "description": ", ".join(f"{name} {total:,}" for name, total in zip(names, totals)),
        "height": TOP + BAR_ROW * len(names) + 4,
        "row": BAR_ROW,
        "edge": edge,
        "letters": int(WIDEST_NAMES / CHARACTER),
        "bars": bars,
        "legend": [(part, style) for part, style, _ in parts],
    }


def histogram(
    title: str, numbers: Sequence[int], width: int, across: str, up: str, mark: int | None = None
) -> Section:
    """Return how many rows there are in each of equally wide ranges, from 0 on.

    Args:
        numbers: of each range; the last one has everything beyond it.
        width: of a range. across: what is measured. up: what is counted.
        mark: where a dashed line stands, such as a limit; None: there is none.
    """
    whole: Show = "{:,.0f}".format
    right = width * len(numbers)
    ys = ticks(0, max(numbers), 4)
    ends = [f"{width * (n + 1) - 1:,}" for n in range(len(numbers))]
    ranges = [f"{width * n:,} to {end}" if width > 1 else end for n, end in enumerate(ends)]
    ranges[-1] = f"{right - width:,} and more"
    return {
        "kind": "figure",
        "shape": "histogram",
        "title": title,
        "description": f"{sum(numbers):,} {up}",
        "axes": Axes(0, right, 0, ys[-1]),
        "columns": [
            (width * n, width * (n + 1), number, f"{ranges[n]} {across}: {number:,}")
            for n, number in enumerate(numbers)
        ],
        "mark": mark,
        "xs": labelled([x for x in ticks(0, right, 5) if x <= right], whole),
        "ys": labelled([y for y in ys if y == int(y)], whole),
        "across": across,
        "up": up,
    }


def plane(title: str, groups: Mapping[str, Sequence[Dot]]) -> Section:
    """Return points in a plane whose axes have the same scale, and no numbers.

    Args:
        groups: points by the name of their group, of which there are at most MARKS. Each has a
            shape and a color of its own.
    """
    dots = [dot for group in groups.values() for dot in group]
    left = min(dot.x for dot in dots)
    right = max(dot.x for dot in dots)
    low = min(dot.y for dot in dots)
    high = max(dot.y for dot in dots)
    room = PLANE_WIDTH - 2 * PLANE_EDGE, PLANE_HEIGHT - 2 * PLANE_EDGE
    scale = min(room[0] / max(right - left, 1e-9), room[1] / max(high - low, 1e-9))
    height = round(scale * (high - low)) + 2 * PLANE_EDGE
    begin = (PLANE_WIDTH - scale * (right - left)) / 2
    placed = [
        (
            begin + scale * (dot.x - left),
            PLANE_EDGE + scale * (high - dot.y),
            number,
            dot.is_marked,
            dot.words,
        )
        for number, group in enumerate(groups.values())
        for dot in group
    ]
    return {
        "kind": "figure",
        "shape": "plane",
        "title": title,
        "description": f"{len(dots)} points of {len(groups)} groups",
        "width": PLANE_WIDTH,
        "height": height,
        "dots": sorted(placed, key=lambda dot: dot[3]),  # marked ones are drawn last
        "marks": [f"{name} ({len(group):,})" for name, group in groups.items()],
    }


def grid(title: str, names: Sequence[str], filled: Sequence[Sequence[bool]]) -> Section:
    """Return a square of cells with names at its rows and columns."""
    edge = 20 + 7 * min(15, max(map(len, names)))
    cell = min(18.0, (WIDTH - edge - 10) / len(names))
    return {
        "kind": "figure",
        "shape": "cells",
        "title": title,
        "description": f"{sum(map(sum, filled))} cells",
        "height": round(edge + len(names) * cell + 8),
        "rows": list(zip(names, filled, strict=True)),
        "edge": edge,
        "cell": cell,
    }


class Axes(NamedTuple):
    """The numbers at the edges of a chart."""

    left: float
    right: float
    low: float
    high: float

    def place(self, x: float, y: float) -> Point:
        """Return the pixels of a point. y is clamped to the range of the axis."""
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - self.left) / (self.right - self.left)
        fraction = (self.high - min(max(y, self.low), self.high)) / (self.high - self.low)
        return across, TOP + (HEIGHT - TOP - BOTTOM) * fraction


def grouped(points: Sequence[Point]) -> list[tuple[float, float, float, float]]:
    """Return at most MAX_POINTS of (x, mean, minimum, maximum), each of equally many neighbors."""
    size = -(-len(points) // MAX_POINTS) or 1
    groups = (zip(*points[start : start + size]) for start in range(0, len(points), size))
    return [(xs[-1], math.fsum(ys) / len(ys), min(ys), max(ys)) for xs, ys in groups]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers at equal distances that enclose both ends."""
    if high - low < 1e-300:
        around = abs(low) / 2 if abs(low) > 1e-300 else 1.0
        low = low - around
        high = high + around
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (power * factor) <= count
    )
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def ratio_ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers that enclose two positive ones, for a logarithmic axis.

    They are 1, 2 and 5 times powers of ten, or powers of ten alone where these are enough.
    """
    first = math.floor(math.log10(low) + 1e-9)
    last = math.ceil(math.log10(high) - 1e-9)
    for factors in ((1, 2, 5), (1,)):
        marks = [factor * 10.0**power for power in range(first, last + 2) for factor in factors]
        below = max(mark for mark in marks if mark <= low * (1 + 1e-9))
        above = min(mark for mark in marks if mark >= high * (1 - 1e-9) and mark > below)
        enclosing = [mark for mark in marks if below <= mark <= above]
        if len(enclosing) <= MOST_TICKS:
            return enclosing
    step = -(-(last - first) // (MOST_TICKS - 1))
    return [10.0**power for power in range(first, last + step, step)]


def labelled(values: Sequence[float], show: Show) -> list[tuple[float, str]]:
    """Return numbers along an axis with their texts: fractions in percent have equally many digits.

    Args:
        show: their format; `percent` gets as few digits as they need.
    """
    if show is not percent:
        return [(value, show(value)) for value in values]
    shares = [100 * value for value in values]
    digits = next(
        (n for n in range(3) if all(abs(round(x, n) - x) < 1e-9 for x in shares)),
        3,
    )
    return [(value, f"{share:.{digits}f}%") for value, share in zip(values, shares)]


def plain(value: float) -> str:
    """Return a number as a short text."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.4g}"


def percent(value: float) -> str:
    """Return a fraction in percent, with one digit."""
    return f"{value:.1%}"


def scientific(value: float) -> str:
    """0.0001 -> 1e-4."""
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}" if value else "0"


def short(value: float) -> str:
    """12300 -> 12.3k."""
    sizes = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (0, ""))
    size, sign = next((size, sign) for size, sign in sizes if abs(value) >= size)
    return f"{value / (size or 1):.3g}{sign}"
