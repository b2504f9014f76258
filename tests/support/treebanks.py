"""Random dependency trees, and treebanks in CoNLL-U with the words that the tiny model knows."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertworks.datasets.treebank import TreeSentence
from tests.support.fine import FILLER


def random_heads(draw: random.Random, count: int) -> tuple[int, ...]:
    """The heads of a random tree; -1 for its root."""
    order = draw.sample(range(count), count)
    heads = [-1] * count
    for place, word in enumerate(order[1:], 1):
        heads[word] = draw.choice(order[:place])
    return tuple(heads)


def random_sentence(draw: random.Random, least: int = 5, most: int = 9) -> TreeSentence:
    """The last word is punctuation, and a leaf."""
    count = draw.randint(least, most) - 1
    heads = (*random_heads(draw, count), draw.randrange(count))
    words = (*draw.choices(FILLER, k=count), ".")
    parts_of_speech = tuple("PUNCT" if word == "." else "X" for word in words)
    return TreeSentence(words, heads, parts_of_speech, "")


def lines_of(sentence: TreeSentence) -> list[str]:
    """The lines of its words."""
    rows = zip(sentence.words, sentence.heads, sentence.parts_of_speech, strict=True)
    return [
        f"{n}\t{word}\t_\t{part_of_speech}\t_\t_\t{head + 1}\tdep\t_\t_"
        for n, (word, head, part_of_speech) in enumerate(rows, 1)
    ]


def write_trees(path: Path, sentences: Sequence[TreeSentence]) -> Path:
    """A file in CoNLL-U."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(
            f"# sent_id = {n}\n" + "\n".join(lines_of(s)) + "\n\n" for n, s in enumerate(sentences)
        )
    )
    return path


def write_treebank(
    folder: Path, train: int = 40, dev: int = 12, test: int = 12, seed: int = 0
) -> Path:
    """A folder with the three parts; of 0 sentences none is written."""
    draw = random.Random(seed)
    for name, count in (("train", train), ("dev", dev), ("test", test)):
        if count:
            write_trees(
                folder / f"xx-ud-{name}.conllu", [random_sentence(draw) for _ in range(count)]
            )
    return folder


def floyd_warshall(heads: Sequence[int]) -> np.ndarray:
    """The oracle of the distances: shortest paths between all pairs, by dynamic programming."""
    count = len(heads)
    distances = np.full((count, count), np.inf)
    np.fill_diagonal(distances, 0)
    for word, head in enumerate(heads):
        if head >= 0:
            distances[word, head] = distances[head, word] = 1
    for middle in range(count):
        distances = np.minimum(distances, distances[:, [middle]] + distances[[middle]])
    return distances
