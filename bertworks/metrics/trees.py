"""Figures of predicted distances and depths of words against dependency trees (Hewitt and Manning 2019, section 3).

- `tree_distances`, `tree_depths`: of the words of a tree
- `spanning_tree`: the minimum spanning tree of distances
- `spearman`: rank correlation, with ties
- `tree_metrics`: `uuas`, `dspr`, `root_accuracy` and `nspr` of many sentences, as functions of sums over sentences
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.metrics.intervals import Array, RowSums, ratio, ratio_sums

SHORTEST, LONGEST = 5, 50  # sentences, in words, that count in the rank correlations
Numbers = NDArray[np.floating[Any]] | NDArray[np.int64]


def tree_depths(heads: Sequence[int]) -> NDArray[np.int64]:
    """int64 [n]: edges between each word and the root. The head of the root is -1."""
    depths = np.full(len(heads), -1)
    for start in range(len(heads)):
        path, word = list[int](), start
        while word >= 0 and depths[word] < 0:
            path.append(word)
            word = heads[word]
        depth = int(depths[word]) if word >= 0 else -1
        depths[path[::-1]] = np.arange(depth + 1, depth + 1 + len(path))
    return depths


def tree_distances(heads: Sequence[int]) -> NDArray[np.int64]:
    """int64 [n, n]: edges on the path between two words of a tree. The head of its root is -1."""
    distances = np.zeros((len(heads), len(heads)), np.int64)
    seen = list[int]()
    for word in np.argsort(tree_depths(heads), kind="stable").tolist():  # a head comes before its words
        if seen:
            distances[word, seen] = distances[seen, word] = distances[heads[word], seen] + 1
        seen.append(word)
    return distances


def spanning_tree(distances: Numbers) -> NDArray[np.int64]:
    """int64 [n - 1, 2], each row ascending: the edges of the minimum spanning tree of symmetric distances [n, n]
    (Prim 1957). Of equal distances the pair that comes first is the shorter one, so that there is one such tree."""
    count = len(distances)
    first, second = np.triu_indices(count, 1)
    ranks = np.full((count, count), len(first))  # the order of all pairs: no two are equal
    ranks[first, second] = np.argsort(np.argsort(distances[first, second], kind="stable"))
    ranks = np.minimum(ranks, ranks.T)
    edges = np.zeros((max(0, count - 1), 2), np.int64)
    nearest, rank = np.zeros(count, np.int64), ranks[:1].ravel().copy()  # the nearest word of the tree, to each word
    outside = np.arange(count) > 0
    for edge in edges:
        word = int(np.where(outside, rank, len(first) + 1).argmin())
        edge[:] = sorted((word, int(nearest[word])))
        outside[word] = False
        closer = outside & (ranks[word] < rank)
        nearest[closer], rank[closer] = word, ranks[word, closer]
    return edges


def ranks_of(x: Numbers) -> Array:
    """float64 [..., n]: the rank of each number in its row, from 1; equal numbers have the mean of their ranks."""
    below = (x[..., None, :] < x[..., :, None]).sum(-1)
    equal = (x[..., None, :] == x[..., :, None]).sum(-1)
    return np.asarray(below + (equal + 1) / 2)


def spearman(x: Numbers, y: Numbers) -> Array:
    """float64 [...]: the rank correlation of the rows of x and y, both [..., n]; 0 where all numbers of one are
    equal."""
    a, b = (ranks - ranks.mean(-1, keepdims=True) for ranks in (ranks_of(x), ranks_of(y)))
    return ratio((a * b).sum(-1), np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))


class GoldTree:
    """What predictions of a sentence are compared with. heads, is_punctuation: see `datasets.treebank`."""

    def __init__(self, heads: Sequence[int], is_punctuation: Sequence[bool]):
        self.distances, self.depths = tree_distances(heads), tree_depths(heads)
        self.root = list(heads).index(-1)
        self.counted = np.flatnonzero(~np.array(is_punctuation, bool))  # the words that edges and roots may be of

    @cached_property
    def edges(self) -> set[tuple[int, int]]:
        """Those of the tree, without punctuation."""
        return self.edges_of(self.distances)

    def edges_of(self, distances: Numbers) -> set[tuple[int, int]]:
        """The edges of the minimum spanning tree over the words that are no punctuation."""
        if not len(self.counted):
            return set()
        edges = self.counted[spanning_tree(distances[np.ix_(self.counted, self.counted)])]
        return {(first, second) for first, second in edges.tolist()}

    @property
    def counts_for_root(self) -> bool:
        """Whether the root is no punctuation: it could not be found."""
        return self.root in self.counted

    @property
    def counts_for_correlation(self) -> bool:
        """Whether the rank correlations are averaged over sentences of this length."""
        return SHORTEST <= len(self.depths) <= LONGEST


def tree_metrics(
    gold: Sequence[GoldTree], distances: Sequence[Numbers], depths: Sequence[NDArray[Any]]
) -> dict[str, RowSums]:
    """The figures of predictions; a row for each sentence.

    - `uuas`: the fraction of the edges of the gold tree that the minimum spanning tree of the distances has, over all
      sentences (micro average). Punctuation is left out of both trees.
    - `dspr`: the rank correlation of the distances from each word with those in the tree, the mean over the words of
      all sentences of a length, then over the lengths from 5 to 50.
    - `root_accuracy`: the fraction of sentences in which the root has the smallest depth of all words that are no
      punctuation. A sentence with a root that is punctuation does not count.
    - `nspr`: the rank correlation of the depths of a sentence, averaged over lengths like `dspr`.

    Args:
        distances: of each sentence [n, n]. depths: of each sentence [n].
    """
    found = [len(tree.edges & tree.edges_of(matrix)) for tree, matrix in zip(gold, distances, strict=True)]
    right = [
        float(tree.counts_for_root and tree.counted[depth[tree.counted].argmin()] == tree.root)
        for tree, depth in zip(gold, depths, strict=True)
    ]
    of_distances, of_depths = (np.zeros((len(gold), 2, LONGEST + 1)) for _ in range(2))
    for number, (tree, matrix, depth) in enumerate(zip(gold, distances, depths, strict=True)):
        if tree.counts_for_correlation:
            length = len(tree.depths)
            of_distances[number, :, length] = spearman(matrix, tree.distances).mean(), 1
            of_depths[number, :, length] = spearman(depth, tree.depths), 1
    return {
        "uuas": ratio_sums(found, [len(tree.edges) for tree in gold]),
        "dspr": RowSums(of_distances.reshape(len(gold), -1), _mean_over_lengths),
        "root_accuracy": ratio_sums(right, [float(tree.counts_for_root) for tree in gold]),
        "nspr": RowSums(of_depths.reshape(len(gold), -1), _mean_over_lengths),
    }


def _mean_over_lengths(sums: Array) -> Array:
    """Sums and counts [samples, 2 * lengths] -> the mean of the means of all lengths that occur."""
    total, count = np.split(sums, 2, axis=1)
    return ratio(ratio(total, count).sum(1), (count > 0).sum(1))
