"""Draw docs/images/family.svg: which tokens a token reads in each kind of network.

    python docs/draw_family.py

One matrix for each kind: a row is a token, and what it reads is filled. Rows in which something is
predicted have another colour.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from draw_trust import BLUE, GREY, ORANGE, text, write_picture

TOKENS = ("the", "cat", "sat", "on", "the", "mat", ".")
BEFORE = ("it", "rained", ".")  # the segment before
TRANSLATION = ("die", "Katze", "saß", "auf", "der", "Matte", ".")
MASKED = (1, 5)  # numbers of tokens
ORDER = {5: 0, 1: 1, 3: 2}  # the tokens that XLNet predicts, and their ranks
UNRANKED = -1
CELL = 15  # pixels
LEFT = 54  # of a matrix in its panel: names of tokens stand before it
TOP = 42
WIDTH = 285  # of a panel
HEIGHT = TOP + CELL * len(TOKENS) + 26
COLUMNS = 4  # panels side by side


@dataclass(frozen=True)
class Panel:
    """One kind of network.

    systems: those of this kind.
    reads: what a token reads, in words.
    is_read: whether the token of a row reads that of a column.
    predicts: the rows in which something is predicted.
    rows, columns: the tokens.
    """

    systems: str
    reads: str
    is_read: Callable[[int, int], bool]
    predicts: Sequence[int] = range(len(TOKENS))
    rows: Sequence[str] = TOKENS
    columns: Sequence[str] = TOKENS


def reads_target(row: int, column: int) -> bool:
    """Return whether a word of the translation reads a token of the source or the translation."""
    return column < len(TOKENS) or column - len(TOKENS) < row


def rank(number: int) -> int:
    """Return the place of a token in the random order."""
    return ORDER.get(number, UNRANKED)


MASKS = ["[MASK]" if number in MASKED else token for number, token in enumerate(TOKENS)]
REPLACED = ["dog" if number == MASKED[0] else token for number, token in enumerate(TOKENS)]
PANELS = (
    Panel("word2vec", "one vector for each word", lambda row, column: row == column),
    Panel(
        "ELMo",
        "what is before, or what is behind",
        lambda row, column: row != column,
    ),
    Panel(
        "seq2seq, Transformer",
        "the source, and the words so far",
        reads_target,
        rows=TRANSLATION,
        columns=(*TOKENS, *TRANSLATION),
    ),
    Panel("GPT, GPT-2", "the tokens before the next", lambda row, column: column <= row),
    Panel(
        "Transformer-XL",
        "also those of the segment before",
        lambda row, column: column <= row + len(BEFORE),
        columns=(*BEFORE, *TOKENS),
    ),
    Panel(
        "BERT, RoBERTa, ALBERT, XLM",
        "all tokens; some are masked",
        lambda row, column: True,
        predicts=MASKED,
        rows=MASKS,
    ),
    Panel(
        "ELECTRA",
        "all tokens; some are replaced",
        lambda row, column: True,
        rows=REPLACED,
    ),
    Panel(
        "XLNet",
        "what is earlier in a random order",
        lambda row, column: rank(column) < rank(row) or rank(column) == UNRANKED,
        predicts=tuple(ORDER),
    ),
)


def main() -> None:
    parts: list[str] = []
    for number, panel in enumerate(PANELS):
        left = WIDTH * (number % COLUMNS)
        top = HEIGHT * (number // COLUMNS)
        parts.append(f'<g transform="translate({left} {top})">')
        parts.append(text(LEFT, 16, panel.systems, weight="bold"))
        parts.append(text(LEFT, 32, panel.reads))
        parts += matrix(panel)
        parts.append("</g>")
    num_lines = -(-len(PANELS) // COLUMNS)
    bottom = HEIGHT * num_lines
    parts.append(text(LEFT, bottom, "row: a token", colour=GREY))
    parts.append(text(LEFT + 90, bottom, "column: what it reads", colour=GREY))
    parts.append(text(LEFT + 250, bottom, "orange: something is predicted", colour=ORANGE))
    write_picture("family.svg", parts, WIDTH * COLUMNS, bottom + 14)


def matrix(panel: Panel) -> Iterator[str]:
    """Yield the rows of a matrix, of which each reads columns, with names and a grid."""
    height = CELL * len(panel.rows)
    width = CELL * len(panel.columns)
    for row, token in enumerate(panel.rows):
        yield text(2, TOP + CELL * (row + 0.5) + 4, token)
        colour = ORANGE if row in panel.predicts else BLUE
        for column in range(len(panel.columns)):
            if panel.is_read(row, column):
                place = f'x="{LEFT + CELL * column}" y="{TOP + CELL * row}"'
                yield f'<rect {place} width="{CELL}" height="{CELL}" fill="{colour}"/>'
    across = "".join(f"M{LEFT} {TOP + CELL * n}h{width}" for n in range(len(panel.rows) + 1))
    down = "".join(f"M{LEFT + CELL * n} {TOP}v{height}" for n in range(len(panel.columns) + 1))
    yield f'<path d="{across}{down}" stroke="{GREY}" stroke-width="0.5"/>'
    borders = {"Transformer-XL": len(BEFORE), "seq2seq, Transformer": len(TOKENS)}
    if panel.systems in borders:
        edge = LEFT + CELL * borders[panel.systems]
        yield f'<path d="M{edge} {TOP - 4}v{height + 8}" stroke="{GREY}" stroke-width="2"/>'


if __name__ == "__main__":
    main()
