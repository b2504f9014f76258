"""Draw docs/images/memory.svg: what a token of a Transformer-XL reads.

    python docs/draw_memory.py

Three panels: segments without a memory; the same with a memory, which is the states of the segment
before; and how many tokens a state depends on through all layers. The token is orange.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from draw_trust import GREY, ORANGE, dot, line, text, write_picture

SEGMENTS = 3
LENGTH = 4  # tokens of a segment, and of the memory
LAYERS = 2
COUNT = SEGMENTS * LENGTH
TOKEN = 9  # the number of the token that is drawn in orange
GAP = 22  # between neighbouring tokens
SPACE = 12  # between segments
PANEL = 330  # the width of a panel, in pixels
HEIGHT = 200
LEFT = 30
HIGH = 70  # the row of the last states
LAYER_GAP = 42
PALE = "#e5e5e5"


def main() -> None:
    titles = (
        ("Segments alone", "a token reads those before it in its segment"),
        ("With a memory", "also the states of the segment before"),
        ("Through two layers", "a state depends on one more segment per layer"),
    )
    parts: list[str] = []
    for number, (title, reads) in enumerate(titles):
        parts.append(f'<g transform="translate({PANEL * number} 0)">')
        parts.append(text(LEFT - 10, 20, title, weight="bold"))
        parts.append(text(LEFT - 10, 37, reads, colour=ORANGE))
        parts += states(has_memory=number > 0, through_all=number == len(titles) - 1)
        parts.append("</g>")
    width = PANEL * len(titles)
    write_picture("memory.svg", parts, width, HEIGHT)


def states(*, has_memory: bool, through_all: bool) -> Iterator[str]:
    """Yield the states of all layers, lines to what they read, and the segments below them."""
    on_way = {(LAYERS, TOKEN)}
    orange_lines = []
    for layer in range(LAYERS, 0, -1):
        is_followed = through_all or layer == LAYERS
        for place in range(COUNT):
            is_orange = is_followed and (layer, place) in on_way
            for read in read_by(place, has_memory):
                ends = x(read), y(layer - 1), x(place), y(layer)
                if is_orange:
                    on_way.add((layer - 1, read))
                    orange_lines.append(line(*ends, ORANGE, 1.5))
                else:
                    yield line(*ends, PALE, 1)
    yield from orange_lines
    for layer, place in product(range(LAYERS + 1), range(COUNT)):
        if (layer, place) in on_way:
            yield dot(x(place), y(layer))
        else:
            yield f'<circle cx="{x(place):.0f}" cy="{y(layer)}" r="3" fill="{GREY}"/>'
    bottom = y(0) + 14
    for number in range(SEGMENTS):
        first = number * LENGTH
        yield line(x(first) - 5, bottom, x(first + LENGTH - 1) + 5, bottom, GREY, 2)
        middle = (x(first) + x(first + LENGTH - 1)) / 2
        yield text(middle, bottom + 18, f"segment {number + 1}", anchor="middle")


def read_by(place: int, has_memory: bool) -> Sequence[int]:
    """Return the places that the token in a place reads."""
    first = place // LENGTH * LENGTH
    if has_memory:
        first = max(0, first - LENGTH)
    return range(first, place + 1)


def x(place: int) -> float:
    return LEFT + GAP * place + SPACE * (place // LENGTH)


def y(layer: int) -> float:
    return HIGH + LAYER_GAP * (LAYERS - layer)


if __name__ == "__main__":
    main()
