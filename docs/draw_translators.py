"""Draw docs/images/translators.svg: what a step of a translator reads.

    python docs/draw_translators.py

One panel for each network: LSTMs without attention, LSTMs with attention, and a Transformer of one
layer on each side. What the step reads that writes the third word is orange.
"""

from collections.abc import Iterator
from itertools import pairwise, product

from draw_trust import GREY, ORANGE, dot, line, text, write_picture

SOURCE = ("A", "man", "rides", "&lt;/s&gt;")
# The decoder begins with a special token, and each step writes the next word.
TARGET = ("&lt;s&gt;", "Ein", "Mann", "reitet")
STEP = 2  # its token is "Mann", and it writes "reitet"
PANEL = 330  # the width of a panel, in pixels
HEIGHT = 215
GAP = 36  # between neighbouring states
LEFT = 30
TARGET_LEFT = LEFT + GAP * len(SOURCE) + 14
LOW = 150  # the row of the states that are computed first
HIGH = 85
WORDS = 180


def main() -> None:
    titles = (
        ("LSTMs (seq2seq)", "only the state before, and its own word"),
        ("LSTMs with attention", "also all states of the source"),
        ("Transformer", "all of the source, and the words so far"),
    )
    parts: list[str] = []
    for number, (title, reads) in enumerate(titles):
        parts.append(f'<g transform="translate({PANEL * number} 0)">')
        parts.append(text(LEFT - 10, 20, title, weight="bold"))
        parts.append(text(LEFT - 10, 37, reads, colour=ORANGE))
        parts += transformer() if number == 2 else recurrent(attends=number == 1)
        parts += words()
        parts.append("</g>")
    width = PANEL * len(titles)
    write_picture("translators.svg", parts, width, HEIGHT)


def source_x(number: int) -> float:
    return LEFT + GAP * number


def target_x(number: int) -> float:
    return TARGET_LEFT + GAP * number


def words() -> Iterator[str]:
    """Yield the words below their states, and the word that the step writes."""
    for number, word in enumerate(SOURCE):
        yield text(source_x(number), WORDS, word, anchor="middle")
    for number, word in enumerate(TARGET[: STEP + 1]):
        yield text(target_x(number), WORDS, word, anchor="middle")
    yield text(target_x(STEP), WORDS + 22, f"writes: {TARGET[STEP + 1]}", anchor="middle")


def recurrent(attends: bool) -> Iterator[str]:
    """Yield the states of two LSTMs, each of which reads the one before it."""
    places = [source_x(number) for number in range(len(SOURCE))]
    places += [target_x(number) for number in range(STEP + 1)]
    for left, right in pairwise(places):
        yield line(left, LOW, right, LOW, GREY, 1)
    yield line(places[-2], LOW, places[-1], LOW, ORANGE, 3)
    if attends:
        for number in range(len(SOURCE)):
            yield arc(target_x(STEP), source_x(number))
    for x in places:
        yield dot(x, LOW)


def transformer() -> Iterator[str]:
    """Yield the states of an encoder and a decoder before and after a layer."""
    for low, high in product(range(len(SOURCE)), repeat=2):
        yield line(source_x(low), LOW, source_x(high), HIGH, GREY, 1)
    for high in range(STEP + 1):
        for low in range(high + 1):
            colour, width = (ORANGE, 3) if high == STEP else (GREY, 1)
            yield line(target_x(low), LOW, target_x(high), HIGH, colour, width)
    for number in range(len(SOURCE)):
        yield arc(target_x(STEP), source_x(number), HIGH)
    for y in (LOW, HIGH):
        for number in range(len(SOURCE)):
            yield dot(source_x(number), y)
        for number in range(STEP + 1):
            yield dot(target_x(number), y)


def arc(start: float, end: float, y: float = LOW) -> str:
    """Return a curve above the states from one to another one."""
    middle = (start + end) / 2
    top = y - 20 - (start - end) / 5
    curve = f"M {start:.1f} {y:.1f} Q {middle:.1f} {top:.1f} {end:.1f} {y:.1f}"
    return f'<path d="{curve}" stroke="{ORANGE}" stroke-width="2" fill="none"/>'


if __name__ == "__main__":
    main()
