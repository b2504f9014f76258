"""Draw docs/images/orders.svg: which tokens a token reads in an XLNet.

    python docs/draw_orders.py

Matrices of a text of nine tokens: a row is a token, and the tokens that it reads are filled. Behind
three tokens and the two special ones are their ranks in a random order.
"""

from collections.abc import Iterator, Sequence

from draw_trust import BLUE, GREY, ORANGE, text, write_picture

TOKENS = ("The", "cat", "sat", "on", "the", "mat", ".", "<sep>", "<cls>")
# Tokens without a rank are read by all others.
RANKS = {"cat": 2, "on": 0, "mat": 3, "<sep>": 4, "<cls>": 1}
PREDICTED = ("cat", "on", "mat")
CELL = 20  # pixels
PANEL = 310  # the width of a panel, in pixels
LEFT = 62  # of a matrix in its panel: names of tokens stand before it
TOP = 58
HEIGHT = TOP + CELL * len(TOKENS) + 28
UNRANKED = -1


def main() -> None:
    ranks = [RANKS.get(token, UNRANKED) for token in TOKENS]
    everything = [[True] * len(TOKENS)] * len(TOKENS)
    lower_or_own = [[other <= rank for other in ranks] for rank in ranks]
    lower = [
        [token in PREDICTED and other < rank for other in ranks]
        for token, rank in zip(TOKENS, ranks, strict=True)
    ]
    panels = (
        ("Fine-tuned", "each token reads all of them", everything, False),
        ("Pre-trained: tokens", "lower ranks, none, and itself", lower_or_own, True),
        ("Pre-trained: predictions", "lower ranks and none, never itself", lower, True),
    )
    parts: list[str] = []
    for number, (title, reads, rows, has_ranks) in enumerate(panels):
        parts.append(f'<g transform="translate({PANEL * number} 0)">')
        parts.append(text(LEFT, 20, title, weight="bold"))
        parts.append(text(LEFT, 37, reads, colour=ORANGE))
        parts += matrix(rows, has_ranks=has_ranks)
        parts.append("</g>")
    write_picture("orders.svg", parts, PANEL * len(panels), HEIGHT)


def matrix(rows: Sequence[Sequence[bool]], *, has_ranks: bool) -> Iterator[str]:
    """Yield the rows of a matrix, of which each reads columns, with names and a grid."""
    edge = CELL * len(TOKENS)
    for row, (token, columns) in enumerate(zip(TOKENS, rows, strict=True)):
        middle = TOP + CELL * (row + 0.5) + 4
        yield text(4, middle, token.replace("<", "&lt;").replace(">", "&gt;"))
        if has_ranks and token in RANKS:
            yield text(LEFT + edge + 6, middle, str(RANKS[token] + 1), colour=GREY)
        colour = ORANGE if token in PREDICTED else BLUE
        for column, is_read in enumerate(columns):
            if is_read:
                place = f'x="{LEFT + CELL * column}" y="{TOP + CELL * row}"'
                yield f'<rect {place} width="{CELL}" height="{CELL}" fill="{colour}"/>'
    lines = [
        f"M{LEFT} {TOP + CELL * n}h{edge}M{LEFT + CELL * n} {TOP}v{edge}"
        for n in range(len(TOKENS) + 1)
    ]
    yield f'<path d="{"".join(lines)}" stroke="{GREY}" stroke-width="0.5"/>'
    yield text(LEFT, TOP + edge + 18, "columns: the same tokens; right: the order")


if __name__ == "__main__":
    main()
