"""Compare predicted distances and depths of words with dependency trees.

The figures are those of Hewitt and Manning 2019, section 3.

- `tree_distances`: of the words of a tree
- `spanning_tree`: the minimum spanning tree of distances
- `spearman`: rank correlation, with ties
- `tree_metrics`: `uuas`, `dspr`, `root_accuracy` and `nspr` of many sentences, as functions of sums
  over sentences
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.metrics.intervals import Array, RowSums, ratio, ratio_sums

# Sentences of these lengths, in words, count in the rank correlations.
SHORTEST = 5
LONGEST = 50
Numbers = NDArray[np.floating[Any]] | NDArray[np.int64]


def tree_distances(heads: Sequence[int]) -> NDArray[np.int64]:
    """Return the number of edges on the path between two words of a tree: int64 [n, n].

    Args:
        heads: the head of each word; that of the root is -1.
    """
    from scipy.sparse.csgraph import shortest_path

    edges = np.zeros((len(heads), len(heads)))
    words = np.flatnonzero(np.asarray(heads) >= 0)
    edges[words, np.asarray(heads)[words]] = 1
    return np.asarray(shortest_path(edges, directed=False, unweighted=True), np.int64)


def spanning_tree(distances: Numbers) -> NDArray[np.int64]:
    """Return the edges of the minimum spanning tree of symmetric distances [n, n].

    They are int64 [n - 1, 2], each row ascending. Of equal distances the pair that comes first
    counts as the shorter one, so that there is one such tree.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import minimum_spanning_tree

    pairs = np.triu_indices(len(distances), 1)
    ranks = 1.0 + np.argsort(np.argsort(distances[pairs], kind="stable"))  # no two pairs are equal
    tree = minimum_spanning_tree(csr_array((ranks, pairs), distances.shape))
    return np.transpose(tree.nonzero()).astype(np.int64)


def spearman(x: Numbers, y: Numbers) -> Array:
    """Return the rank correlation of the rows of x and y, both [..., n], as float64 [...].

    It is 0 where all numbers of one are equal.
    """
    from scipy.stats import rankdata

    a, b = (
        ranks - ranks.mean(-1, keepdims=True)
        for ranks in (rankdata(x, axis=-1), rankdata(y, axis=-1))
    )
    return ratio((a * b).sum(-1), np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))


class GoldTree:
    """A dependency tree with which predictions are compared.

    Args:
        heads: the head of each word, see `datasets.treebank`.
        is_punctuation: whether each word is punctuation.

    Attributes:
        counted: the words that are no punctuation, between which edges count.
        counts_for_root: whether the root is one of them: else it could not be predicted.
        counts_for_correlation: whether the rank correlations are averaged over sentences of this
            length.
    """

    def __init__(self, heads: Sequence[int], is_punctuation: Sequence[bool]):
        self.distances = tree_distances(heads)
        self.root = list(heads).index(-1)
        self.depths = self.distances[self.root]
        self.counted = np.flatnonzero(~np.array(is_punctuation, bool))
        self.counts_for_root = self.root in self.counted
        self.counts_for_correlation = SHORTEST <= len(heads) <= LONGEST

    @cached_property
    def edges(self) -> set[tuple[int, int]]:
        """The edges of the tree, without punctuation."""
        return self.edges_of(self.distances)

    def edges_of(self, distances: Numbers) -> set[tuple[int, int]]:
        """Return the edges of the minimum spanning tree over the words that are no punctuation."""
        if not len(self.counted):
            return set()
        edges = self.counted[spanning_tree(distances[np.ix_(self.counted, self.counted)])]
        return {(first, second) for first, second in edges.tolist()}


def tree_metrics(
    gold: Sequence[GoldTree], distances: Sequence[Numbers], depths: Sequence[NDArray[Any]]
) -> dict[str, RowSums]:
    """Return the figures of predictions; a row for each sentence.

    - `uuas`: the fraction of the edges of the gold tree that the minimum spanning tree of the
      distances has, over all sentences (micro average). Punctuation is left out of both trees.
    - `dspr`: the rank correlation of the distances from each word with those in the tree, the mean
      over the words of all sentences of a length, then over the lengths from 5 to 50.
    - `root_accuracy`: the fraction of sentences in which the root has the smallest depth of all
      words that are no punctuation. A sentence with a root that is punctuation does not count.
    - `nspr`: the rank correlation of the depths of a sentence, averaged over lengths like `dspr`.

    Args:
        gold: the tree of each sentence.
        distances: of the words of each sentence [n, n].
        depths: of the words of each sentence [n].
    """
    right_edges = list[float]()
    right_roots = list[float]()
    # Of each sentence the correlation and 1, at the place of its length.
    distance_correlations, depth_correlations = (
        np.zeros((len(gold), 2, LONGEST + 1)) for _ in range(2)
    )
    for number, (tree, matrix, depth) in enumerate(zip(gold, distances, depths, strict=True)):
        right_edges.append(len(tree.edges & tree.edges_of(matrix)))
        right_roots.append(
            float(tree.counts_for_root and tree.counted[depth[tree.counted].argmin()] == tree.root)
        )
        if tree.counts_for_correlation:
            length = len(tree.depths)
            mean_correlation = spearman(matrix, tree.distances).mean()
            distance_correlations[number, :, length] = mean_correlation, 1
            depth_correlations[number, :, length] = spearman(depth, tree.depths), 1
    num_roots = [float(tree.counts_for_root) for tree in gold]
    return {
        "uuas": ratio_sums(right_edges, [len(tree.edges) for tree in gold]),
        "dspr": RowSums(distance_correlations.reshape(len(gold), -1), _mean_over_lengths),
        "root_accuracy": ratio_sums(right_roots, num_roots),
        "nspr": RowSums(depth_correlations.reshape(len(gold), -1), _mean_over_lengths),
    }


def _mean_over_lengths(sums: Array) -> Array:
    """Return the mean of the means of all lengths that occur: [samples].

    Args:
        sums: of values and counts [samples, 2 * lengths].
    """
    total, count = np.split(sums, 2, axis=1)
    return ratio(ratio(total, count).sum(1), (count > 0).sum(1))
