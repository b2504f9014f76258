"""Formulas of search against definitions written out, and figures against scikit-learn's and
trec_eval's by hand."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from bertworks.retrieval.ranking import (
    DEPTH,
    K1,
    B,
    bm25,
    fuse_rankings,
    hash_of,
    postings,
    ranking_figures,
    top_k,
    words_of,
)

DRAW = random.Random(0)
WORDS = [a + b for a in "bdklmn" for b in "aeiou"]
TEXTS = [
    " ".join(DRAW.choices(WORDS, [1 / (n + 1) for n in range(30)], k=DRAW.randint(0, 25)))
    for _ in range(80)
]
QUERIES = [" ".join(DRAW.choices(WORDS, k=n)) for n in (1, 2, 5, 5, 9)] + ["nothing", ""]


def written_out(query: str, texts: list[str]) -> np.ndarray:
    split = [text.split() for text in texts]
    mean = sum(map(len, split)) / len(split)
    scores = []
    for words in split:
        counts, score = Counter(words), -math.inf
        for word in query.split():
            if counts[word]:
                df = sum(word in other for other in split)
                idf = math.log(1 + (len(split) - df + 0.5) / (df + 0.5))
                share = counts[word] / (counts[word] + K1 * (1 - B + B * len(words) / mean))
                score = max(score, 0) + idf * share
        scores.append(score)
    return np.array(scores)


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("cuts", [[], [30], [1, 40, 41]])
def test_bm25_is_its_formula(query: str, cuts: list[int]):
    edges = [0, *cuts, len(TEXTS)]
    parts = [postings(TEXTS[a:b]) for a, b in itertools.pairwise(edges)]
    every = np.ones(len(TEXTS), bool)
    np.testing.assert_allclose(bm25(query, parts, every), written_out(query, TEXTS), rtol=1e-5)


@pytest.mark.parametrize("query", QUERIES)
def test_what_is_deleted_counts_nowhere(query: str):
    alive = np.array([DRAW.random() < 0.6 for _ in TEXTS])
    scores = bm25(query, [postings(TEXTS)], alive)
    expected = written_out(query, [text for text, there in zip(TEXTS, alive, strict=True) if there])
    np.testing.assert_allclose(scores[alive], expected, rtol=1e-5)
    assert np.isneginf(scores[~alive]).all()


def test_nothing_at_all():
    assert bm25("a", [], np.ones(0, bool)).shape == (0,)
    assert np.isneginf(bm25("a", [postings(["", "."])], np.ones(2, bool))).all()
    assert np.isneginf(bm25("a", [postings(["a"])], np.zeros(1, bool))).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop -- it's ＦＵＬＬ!", ["don", "t", "stop", "it", "s", "full"]),
        ("東京都に住む John", ["東京", "京都", "都に", "に住", "住む", "john"]),
        ("サッカー 山", ["サッ", "ッカ", "カー", "山"]),
        ("한국어 a_b Ünï", ["한국", "국어", "a", "b", "ünï"]),
        ("😀 . \n", []),
    ],
)
def test_words(text: str, words: list[str]):
    assert words_of(text) == words


def test_hashes_are_the_same_everywhere():
    assert hash_of("aerodynamics") == 2334704318671806781
    assert len({hash_of(str(n)) for n in range(10**5)}) == 10**5


# --- rankings


def test_the_best_are_those_of_a_sort():
    draw = np.random.default_rng(0)
    for size in (1, 2, 50):
        scores = draw.integers(0, 6, size).astype(np.float32)
        scores[draw.random(size) < 0.2] = -np.inf
        for k in (1, 2, 7, 50, 99):
            expected = [
                n
                for n in sorted(range(size), key=lambda n: (-scores[n], n))
                if np.isfinite(scores[n])
            ][:k]
            assert top_k(scores, k).tolist() == expected
    assert top_k(np.zeros(0, np.float32), 3).tolist() == []


def test_fusion_by_hand():
    dense = np.array([0.9, 0.5, 0.1, -np.inf], np.float32)
    words = np.array([-np.inf, 4.0, 2.0, -np.inf], np.float32)
    np.testing.assert_allclose(
        fuse_rankings(dense, words), [1 / 61, 1 / 62 + 1 / 61, 1 / 63 + 1 / 62, -np.inf], rtol=1e-6
    )
    nothing = np.full(4, -np.inf, np.float32)
    np.testing.assert_allclose(
        fuse_rankings(dense, nothing), [1 / 61, 1 / 62, 1 / 63, -np.inf], rtol=1e-6
    )
    assert np.isneginf(fuse_rankings(nothing, nothing)).all()


def test_fusion_takes_the_first_thousand_of_each():
    falling, nothing = (
        -np.arange(DEPTH + 5, dtype=np.float32),
        np.full(DEPTH + 5, -np.inf, np.float32),
    )
    assert np.isfinite(fuse_rankings(falling, nothing)).tolist() == [True] * DEPTH + [False] * 5


def test_figures_by_hand():
    ranking, grades = ["a", "b", "c", "d"], {"a": 3, "b": 0, "d": 1, "e": 2}
    ideal = 3 + 2 / math.log2(3) + 1 / math.log2(4)
    expected = {"ndcg@10": (3 + 1 / math.log2(5)) / ideal, "map": (1 / 1 + 2 / 4) / 3}
    expected |= {"recall@10": 2 / 3, "recall@100": 2 / 3}
    assert ranking_figures(ranking, grades) == pytest.approx(expected)
    for found in (([], grades), (ranking, {"a": 0}), (ranking, {})):
        assert set(ranking_figures(*found).values()) == {0}
    assert ranking_figures(ranking, {"a": -1, "c": 1})["ndcg@10"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("rank", "figures"),
    [
        (10, (1 / math.log2(11), 0.1, 1, 1)),
        (11, (0, 1 / 11, 0, 1)),
        (100, (0, 0.01, 0, 1)),
        (101, (0, 1 / 101, 0, 0)),
    ],
)
def test_figures_count_to_their_depth(rank: int, figures: tuple[float, ...]):
    found = ranking_figures([str(n) for n in range(1, 201)], {str(rank): 1})
    assert found == pytest.approx(
        dict(zip(("ndcg@10", "map", "recall@10", "recall@100"), figures, strict=True))
    )


def test_the_ideal_ranking_is_as_deep_as_the_other():
    """Of eleven relevant documents ten may be among the first ten."""
    ranking = [str(n) for n in range(11)]
    assert ranking_figures(ranking, dict.fromkeys(ranking, 1))["ndcg@10"] == pytest.approx(1)


def test_figures_as_scikit_learn_has_them():
    draw = np.random.default_rng(1)
    for _ in range(50):
        gold, scores = draw.integers(0, 3, 20), draw.permutation(20).astype(float)
        if not gold.any():
            continue
        ranking = [str(n) for n in np.argsort(-scores)]
        grades = {str(n): int(grade) for n, grade in enumerate(gold)}
        found = ranking_figures(ranking, grades)
        assert found["ndcg@10"] == pytest.approx(ndcg_score([gold], [scores], k=10), abs=1e-12)
        assert found["map"] == pytest.approx(average_precision_score(gold > 0, scores), abs=1e-12)


def test_the_pattern_of_words_takes_linear_time():
    assert len(words_of("a" * 10**6)) == 1
    assert len(words_of("_" * 10**6)) == 0
