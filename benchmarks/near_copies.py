"""How long it takes to find the near-copies among 100,000 rows, and how many of them are found.

    python benchmarks/near_copies.py [--rows 100000] [--rounds 3] [--quick]

Texts are made up: words of a Zipf distribution, of which a tenth are repeated with other case and
punctuation, and another tenth with other last words (similarity 0.8 or more). In "one template" all
texts share 16 of 20 words, which is the slowest case: many pairs look promising and few are
near-copies. Times are processor time of one thread. The table goes to docs/concepts/performance.md.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

from provenance import provenance, publish

from bertworks.text.near_copies import near_copies

WORDS = 20_000
LETTERS = "abcdefghijklmnopqrstuvwxyz"
KANA = (
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="does it run? few rows, nothing is kept"
    )
    a = parser.parse_args()
    count = 1000 if a.quick else a.rows
    about = provenance(("numpy",))
    cases: dict[str, Callable[[], tuple[list[str], int]]] = {
        f"{count // 4:,} rows of 20 words": lambda: with_copies(count // 4, 20),
        f"{count:,} rows of 20 words": lambda: with_copies(count, 20),
        f"{count // 10:,} rows of 400 words": lambda: with_copies(count // 10, 400),
        f"{count:,} rows of 60 characters without spaces": lambda: unspaced(count),
        f"{count:,} rows of 20 words, one template": lambda: one_template(count),
    }
    rows: dict[str, dict[str, float]] = {}
    for name, make in cases.items():
        texts, planted = make()
        seconds = []
        for _ in range(a.rounds):
            start = time.process_time()
            groups = near_copies(texts)
            seconds.append(time.process_time() - start)
        # Planted copies follow the other texts; made-up texts are no near-copies of one another.
        found = sum(
            group < number for number, group in enumerate(groups) if number >= len(texts) - planted
        )
        rows[name] = {"seconds": statistics.median(seconds), "planted": planted, "found": found}
    lines = ["| | seconds of processor time | near-copies planted | found |", "|---|---|---|---|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['seconds']:.1f} | {row['planted']:,} | {row['found']:,} |")
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    lines += [
        "",
        f"`{about['command']}` at {about['commit']}, {about['time'][:10]}; {about['cpu']}; "
        f"{versions}.",
    ]
    if not a.quick:
        publish("near_copies", {**about, "rows": rows}, "\n".join(lines))
    print("\n".join(lines))


def word(number: int) -> str:
    """A word of letters for a number."""
    letters = ""
    while number >= 0:
        letters += LETTERS[number % 26]
        number = number // 26 - 1
    return letters


def with_copies(count: int, length: int) -> tuple[list[str], int]:
    """Texts of `length` words, the last fifth of them near-copies of others; and the number of
    these."""
    draw = random.Random(0)
    vocabulary = [word(number) for number in range(WORDS)]
    weights = [1 / (number + 1) for number in range(WORDS)]
    each = count // 10
    texts = [" ".join(draw.choices(vocabulary, weights, k=length)) for _ in range(count - 2 * each)]
    sources = draw.sample(texts, 2 * each)
    changed_marks = [f"{text.upper()} !" for text in sources[:each]]
    # One other last word in 20: 17 of 19 different 3-grams are in both texts.
    changed_words = [
        " ".join([*text.split()[: -length // 20], *["other"] * (length // 20)])
        for text in sources[each:]
    ]
    return texts + changed_marks + changed_words, 2 * each


def unspaced(count: int) -> tuple[list[str], int]:
    """Texts of 60 kana, the last tenth of them with another last character."""
    draw = random.Random(0)
    each = count // 10
    texts = ["".join(draw.choices(KANA, k=60)) for _ in range(count - each)]
    return texts + [f"{text[:-1]}x" for text in draw.sample(texts, each)], each


def one_template(count: int) -> tuple[list[str], int]:
    """Texts that share all words but two at each end, the last hundredth of them with another last
    word."""
    draw = random.Random(0)
    middle = " ".join(word(number) for number in range(30, 46))
    each = count // 100
    texts = []
    for number in range(count - each):
        ends = [word(1000 + 4 * number + place) for place in range(4)]
        texts.append(" ".join([*ends[:2], middle, *ends[2:]]))
    return texts + [f"{text.rpartition(' ')[0]} other" for text in draw.sample(texts, each)], each


if __name__ == "__main__":
    main()
