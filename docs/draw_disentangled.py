"""Draw docs/images/disentangled.svg: what a score of a DeBERTa is made of.

    python docs/draw_disentangled.py

Three terms of the score of a query and a key; the rows of a small table of distances that pairs of
tokens read; and the rows of the published table for all distances of a text of 512 tokens.
"""

from collections.abc import Iterator
from itertools import product

from draw_trust import BLUE, GREY, ORANGE, line, text, write_picture

from bertworks.models.disentangled import rows_of_distances

COUNT = 16  # tokens
CELL = 12  # pixels
SMALL = 4, 16  # buckets of the small table, and the distance from which all have one row
PUBLISHED = 256, 512
PANEL = 300  # the width of a panel, in pixels
HEIGHT = 285
LEFT = 30
TOP = 58
EDGE = CELL * COUNT
PALE = "#dddddd"
STEP = 7  # of the distances that the curve is drawn through
TERMS = (
    ("content", "content", "which word reads which"),
    ("content", "distance", "where this word looks"),
    ("distance", "content", "from where this word is seen"),
)


def main() -> None:
    titles = (
        ("A score has three terms", "their sum is divided by the root of 3 d"),
        ("A row for each distance", f"up to {SMALL[0] // 2}, then by its logarithm"),
        ("The published table", f"{2 * PUBLISHED[0]} rows, {PUBLISHED[0] // 2} distances exactly"),
    )
    panels = terms, matrix, curve
    parts: list[str] = []
    for number, ((title, says), draw) in enumerate(zip(titles, panels, strict=True)):
        parts.append(f'<g transform="translate({PANEL * number} 0)">')
        parts.append(text(LEFT, 20, title, weight="bold"))
        parts.append(text(LEFT, 37, says, colour=ORANGE))
        parts += draw()
        parts.append("</g>")
    write_picture("disentangled.svg", parts, PANEL * len(titles), HEIGHT)


def terms() -> Iterator[str]:
    """Yield the terms: what is read of the query, and of the key."""
    width = 84
    for number, (of_query, of_key, meaning) in enumerate(TERMS):
        y = TOP + 64 * number
        for x, name in ((LEFT, of_query), (LEFT + width + 40, of_key)):
            colour = BLUE if name == "content" else ORANGE
            yield f'<rect x="{x}" y="{y}" width="{width}" height="24" fill="{colour}" rx="4"/>'
            yield text(x + width / 2, y + 16, name, "middle", "white")
        yield text(LEFT + width + 20, y + 17, "·", "middle")
        yield text(LEFT, y + 41, meaning, colour=GREY)
    yield text(LEFT, TOP + EDGE + 18, "left: the query, right: the key")


def matrix() -> Iterator[str]:
    """Yield the numbers of the rows that pairs of tokens read, in a shade for each."""
    buckets, furthest = SMALL
    rows = rows_of_distances(COUNT, buckets, furthest).tolist()
    squares: dict[int, list[str]] = {}
    for query, key in product(range(COUNT), repeat=2):
        row = rows[query - key + COUNT - 1]
        corner = f"M{LEFT + CELL * key} {TOP + CELL * query}"
        squares.setdefault(row, []).append(f"{corner}h{CELL}v{CELL}h-{CELL}z")
    for row, paths in sorted(squares.items()):
        colour = BLUE if row < buckets else ORANGE
        shade = f'fill="{colour}" fill-opacity="{abs(row - buckets) / buckets:.2f}"'
        yield f'<path d="{"".join(paths)}" {shade} stroke="{PALE}" stroke-width="0.5"/>'
    yield text(LEFT, TOP + EDGE + 18, "row: query; orange: the key is before it")


def curve() -> Iterator[str]:
    """Yield the rows of distances, and the axes."""
    buckets, furthest = PUBLISHED
    rows = rows_of_distances(furthest, buckets, furthest).tolist()
    width = PANEL - 2 * LEFT
    points = []
    for number, row in [*enumerate(rows)][::STEP]:
        x = LEFT + width * number / (len(rows) - 1)
        y = TOP + EDGE - EDGE * row / (2 * buckets - 1)
        points.append(f"{x:.1f} {y:.1f}")
    yield line(LEFT, TOP + EDGE, LEFT + width, TOP + EDGE, GREY, 1)
    yield line(LEFT + width / 2, TOP, LEFT + width / 2, TOP + EDGE, PALE, 1)
    yield f'<path d="M{"L".join(points)}" fill="none" stroke="{BLUE}" stroke-width="2"/>'
    for share, distance in ((0, 1 - furthest), (0.5, 0), (1, furthest - 1)):
        x = LEFT + width * share
        yield text(x, TOP + EDGE + 18, str(distance), "middle")
    yield text(LEFT, TOP + EDGE + 34, "place of the query minus that of the key")


if __name__ == "__main__":
    main()
