"""Draw docs/images/local-attention.svg: which tokens a token of a ModernBERT reads.

    python docs/draw_local_attention.py

Two matrices, of a global and of a local layer with a window of 6 tokens: a row is a token, and the
tokens that it reads are filled. Then the tokens that a token depends on behind three local layers.
"""

from collections.abc import Iterator
from itertools import product

from draw_trust import BLUE, GREY, ORANGE, text, write_picture

COUNT = 16  # tokens
REACH = 3  # half of the window
TOKEN = 8  # the number of the token that is drawn in orange
CELL = 12  # pixels
PANEL = 300  # the width of a panel, in pixels
HEIGHT = 285
LEFT = 30
TOP = 58
LAYERS = 3
PALE = "#f0c8a8"
LAYER_GAP = 44  # between the states of neighbouring layers


def main() -> None:
    titles = (
        ("Global layer", "each third one, from the first on"),
        ("Local layer", "up to half of the window, on both sides"),
        ("Three local layers", "a token depends on three times as many"),
    )
    parts: list[str] = []
    for number, (title, reads) in enumerate(titles):
        parts.append(f'<g transform="translate({PANEL * number} 0)">')
        parts.append(text(LEFT, 20, title, weight="bold"))
        parts.append(text(LEFT, 37, reads, colour=ORANGE))
        parts += depth() if number == len(titles) - 1 else matrix(is_local=number == 1)
        parts.append("</g>")
    width = PANEL * len(titles)
    write_picture("local-attention.svg", parts, width, HEIGHT)


def matrix(*, is_local: bool) -> Iterator[str]:
    """Yield the rows of a matrix, of which each reads columns, and a grid over them."""
    for row in range(COUNT):
        first, last = (max(0, row - REACH), min(COUNT - 1, row + REACH))
        if not is_local:
            first, last = (0, COUNT - 1)
        colour = ORANGE if row == TOKEN else BLUE
        places = f'x="{LEFT + CELL * first}" y="{TOP + CELL * row}"'
        size = f'width="{CELL * (last - first + 1)}" height="{CELL}"'
        yield f'<rect {places} {size} fill="{colour}"/>'
    edge = CELL * COUNT
    lines = [
        f"M{LEFT} {TOP + CELL * n}h{edge}M{LEFT + CELL * n} {TOP}v{edge}" for n in range(COUNT + 1)
    ]
    yield f'<path d="{"".join(lines)}" stroke="{GREY}" stroke-width="0.5"/>'
    yield text(LEFT, TOP + edge + 18, "columns: tokens that the token of a row reads")


def depth() -> Iterator[str]:
    """Yield the states of some local layers, with lines to what the last state depends on."""
    bottom = TOP + LAYER_GAP * LAYERS + 20
    lines = []
    for layer in range(LAYERS):  # from the last one down
        reads = REACH * layer
        high = bottom - LAYER_GAP * (LAYERS - layer)
        for place in range(max(0, TOKEN - reads), min(COUNT, TOKEN + reads + 1)):
            for read in range(max(0, place - REACH), min(COUNT, place + REACH + 1)):
                lines.append(f"M{center(place):.0f} {high}L{center(read):.0f} {high + LAYER_GAP}")
    yield f'<path d="{"".join(lines)}" stroke="{PALE}" stroke-width="0.7"/>'
    for layer, place in product(range(LAYERS + 1), range(COUNT)):
        is_read = abs(place - TOKEN) <= REACH * layer
        y = bottom - LAYER_GAP * (LAYERS - layer)
        colour = ORANGE if is_read else "#cccccc"
        yield f'<circle cx="{center(place):.0f}" cy="{y}" r="4" fill="{colour}"/>'
    yield text(LEFT, bottom + 24, "below: the embeddings of the tokens")


def center(place: int) -> float:
    return LEFT + CELL * (place + 0.5)


if __name__ == "__main__":
    main()
