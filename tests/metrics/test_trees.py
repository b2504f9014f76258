"""Figures of trees: as Floyd and Warshall, Kruskal and scipy's rank correlation give them."""

import random
from collections import defaultdict

import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.stats import spearmanr

from bertworks.metrics.trees import GoldTree, spanning_tree, spearman, tree_distances, tree_metrics
from tests.support.treebanks import floyd_warshall, random_heads, random_sentence


@pytest.mark.parametrize("seed", range(20))
def test_distances_are_shortest_paths(seed: int):
    draw = random.Random(seed)
    heads = random_heads(draw, draw.randint(1, 30))
    oracle = floyd_warshall(heads)
    assert np.array_equal(tree_distances(heads), oracle)
    assert np.array_equal(GoldTree(heads, [False] * len(heads)).depths, oracle[heads.index(-1)])


def symmetric(rng: np.random.Generator, count: int) -> np.ndarray:
    x = rng.random((count, count))
    return x + x.T - np.diag(2 * x.diagonal())


@pytest.mark.parametrize("count", [2, 3, 7, 40])
def test_the_spanning_tree_is_the_shortest(count: int):
    for seed in range(10):
        distances = symmetric(np.random.default_rng(seed), count)
        assert {tuple(edge) for edge in spanning_tree(distances).tolist()} == kruskal(distances)


def test_zero_distances_are_edges_too():
    distances = np.array([[0.0, 3, 0, 5], [3, 0, 2, 0], [0, 2, 0, 1], [5, 0, 1, 0]])
    assert {tuple(edge) for edge in spanning_tree(distances).tolist()} == {(0, 2), (1, 3), (2, 3)}


def kruskal(distances: np.ndarray) -> set[tuple[int, int]]:
    """The oracle where distances are equal: the pairs in their order, each that closes no
    circle."""
    count = len(distances)
    group, edges = list(range(count)), set()
    for first, second in sorted(zip(*np.triu_indices(count, 1)), key=lambda pair: distances[pair]):
        if group[first] != group[second]:
            edges.add((int(first), int(second)))
            group = [group[first] if one == group[second] else one for one in group]
    return edges


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_of_equal_distances_the_first_pair_is_shorter(count: int):
    for seed in range(20):
        distances = np.rint(symmetric(np.random.default_rng(seed), count) * 2)
        assert {tuple(edge) for edge in spanning_tree(distances).tolist()} == kruskal(distances)


def test_ranks_and_correlations_are_those_of_scipy_with_ties():
    rng = np.random.default_rng(0)
    x, y = (rng.integers(0, 6, (30, 9)).astype(float) for _ in range(2))
    oracle = [spearmanr(a, b).statistic for a, b in zip(x, y)]
    assert spearman(x, y) == pytest.approx(oracle, abs=1e-12)
    assert spearman(x[0], y[0]) == pytest.approx(oracle[0], abs=1e-12)


def test_equal_numbers_have_no_correlation():
    assert spearman(np.ones(6), np.arange(6.0)) == 0


def test_a_perfect_prediction_is_perfect():
    draw = random.Random(0)
    gold = [GoldTree(s.heads, s.is_punctuation) for s in (random_sentence(draw) for _ in range(20))]
    metrics = tree_metrics(
        gold, [3.0 * t.distances for t in gold], [7.0 * t.depths + 1 for t in gold]
    )
    assert {name: metric.value for name, metric in metrics.items()} == pytest.approx(
        dict.fromkeys(("uuas", "dspr", "root_accuracy", "nspr"), 1.0)
    )


def test_figures_are_those_of_the_definitions():
    """Written out with scipy, sentence by sentence and word by word."""
    draw, rng = random.Random(1), np.random.default_rng(1)
    sentences = [random_sentence(draw, 2, 60) for _ in range(80)]
    gold = [GoldTree(s.heads, s.is_punctuation) for s in sentences]
    distances = [symmetric(rng, len(s.words)) for s in sentences]
    depths = [rng.random(len(s.words)) for s in sentences]
    found, edges, right, rows, nodes = 0, 0, [], defaultdict(list), defaultdict(list)
    for s, matrix, depth in zip(sentences, distances, depths):
        kept = [n for n in range(len(s.words)) if not s.is_punctuation[n]]
        tree = {tuple(sorted((n, s.heads[n]))) for n in kept if s.heads[n] >= 0}
        predicted = minimum_spanning_tree(matrix[np.ix_(kept, kept)] + 1).nonzero()
        found += len(tree & {tuple(sorted((kept[a], kept[b]))) for a, b in zip(*predicted)})
        edges += len(tree)
        right.append(min(kept, key=lambda n: depth[n]) == s.root)
        if 5 <= len(s.words) <= 50:
            truth = floyd_warshall(s.heads)
            rows[len(s.words)] += [spearmanr(a, b).statistic for a, b in zip(matrix, truth)]
            nodes[len(s.words)].append(spearmanr(depth, truth[s.root]).statistic)
    oracle = {
        "uuas": found / edges,
        "dspr": np.mean([np.mean(values) for values in rows.values()]),
        "root_accuracy": np.mean(right),
        "nspr": np.mean([np.mean(values) for values in nodes.values()]),
    }
    metrics = tree_metrics(gold, distances, depths)
    assert {name: metric.value for name, metric in metrics.items()} == pytest.approx(
        oracle, abs=1e-10
    )


def test_punctuation_is_no_edge_and_no_root():
    only = GoldTree((-1, 0), (True, True))
    assert (only.edges, only.counts_for_root) == (set(), False)
    # "," hangs between: the two words below it are linked, as its distances say
    between = GoldTree((-1, 0, 1, 1), (False, True, False, False))
    assert between.edges == {(0, 2), (0, 3)}
    depths = [np.array([0.5, 0.0, 1.0, 1.0])]
    assert tree_metrics([between], [between.distances], depths)["root_accuracy"].value == 1
    metrics = tree_metrics(
        [only, between], [only.distances, between.distances], [only.depths, *depths]
    )
    assert metrics["root_accuracy"].value == 1
    assert metrics["dspr"].value == 0  # no sentence of 5 to 50 words
