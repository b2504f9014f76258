"""The words around words, held against a slow reading of the definitions and against arithmetic."""

from itertools import pairwise

import numpy as np
import pytest

from bertworks.batching.batch import collate
from bertworks.batching.contexts import BLOCK, NEGATIVES, ContextConfig, ContextWords
from bertworks.batching.examples import Example, TokenSequence, keyed_rng
from bertworks.batching.sampling import ExampleStream, SamplingConfig, make_sampler
from bertworks.errors import BertworksError
from bertworks.text.shards import TokenStore
from bertworks.text.tokenizer import Template

VOCABULARY = 40
UNKNOWN = 0
COUNTS = np.arange(VOCABULARY, dtype=np.int64) ** 2
ALL = ContextConfig(subsampling=0.0)


def sequence(count: int = 500, seed: int = 0, longest: int = 30) -> TokenSequence:
    """Random words in sentences of random lengths; some of the words are unknown."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, longest, count)
    sentences = np.arange(count).repeat(lengths)[:count] + 7
    return TokenSequence(
        draw.integers(0, VOCABULARY, count), sentences, np.zeros(count, np.bool_), {}
    )


def example(s: TokenSequence, config: ContextConfig = ALL, seed: int = 0) -> Example:
    words = ContextWords("skip_gram", config, COUNTS, [UNKNOWN])
    return words(s, keyed_rng("test", seed))


def pairs(e: Example) -> set[tuple[int, int]]:
    """The places in the sequence of all words and words of their contexts."""
    places, reach = e.targets["skip_gram"]
    return {
        (int(places[i]), int(places[j]))
        for i, (before, after) in enumerate(reach.tolist())
        for j in range(i - before, i + after + 1)
        if j != i
    }


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 500])
def test_pairs_are_of_one_sentence_one_block_and_a_window(count: int) -> None:
    s = sequence(count)
    e = example(s)
    places, reach = e.targets["skip_gram"]
    known = np.flatnonzero(s.input_ids != UNKNOWN)
    assert (places[: len(known)] == known).all()
    assert (
        len(places) == len(e.targets[NEGATIVES].labels) == -(-max(1, len(known)) // BLOCK) * BLOCK
    )
    assert not reach[len(known) :].any()
    # the windows that were drawn, of which the target has only what sentences and blocks leave
    draw = keyed_rng("test", 0)
    draw.random(count)
    windows = draw.integers(1, 6, len(known))
    expected = {
        (int(known[i]), int(known[j]))
        for i in range(len(known))
        for j in range(len(known))
        if i != j
        and abs(i - j) <= windows[i]
        and i // BLOCK == j // BLOCK
        and s.token_type_ids[known[i]] == s.token_type_ids[known[j]]
    }
    assert pairs(e) == expected
    assert (reach.sum(1) > 0).sum() == len({i for i, _ in expected})


def test_near_words_are_drawn_more_often() -> None:
    """A word at the distance d is in the window with the probability (5 - d + 1) / 5."""
    s = TokenSequence(np.full(64, 3), np.zeros(64, np.int64), np.zeros(64, np.bool_), {})
    found = [pairs(example(s, seed=n)) for n in range(400)]
    for distance in range(1, 7):
        share = np.mean([(30, 30 + distance) in one for one in found])
        assert share == pytest.approx(max(0, 6 - distance) / 5, abs=0.12)


def test_frequent_words_are_dropped_as_often_as_published() -> None:
    config = ContextConfig(subsampling=1e-2)
    words = ContextWords("cbow", config, COUNTS, [UNKNOWN])
    share = COUNTS / COUNTS.sum()
    ids = np.arange(VOCABULARY).repeat(2000)
    s = TokenSequence(ids, np.zeros_like(ids), np.zeros(len(ids), np.bool_), {})
    places, reach = words(s, keyed_rng("test", 1)).targets["cbow"]
    kept = np.bincount(ids[np.unique(places)], minlength=VOCABULARY) / 2000
    ratio = 1e-2 / share[1:]
    assert kept[1:] == pytest.approx(np.minimum(1, np.sqrt(ratio) + ratio), abs=0.06)
    assert kept[UNKNOWN] == 0
    assert len(reach) == len(places)


def test_negative_words_have_the_power_of_their_counts() -> None:
    words = ContextWords("skip_gram", ALL, COUNTS, [UNKNOWN])
    long = TokenSequence(
        np.full(100_000, 5), np.zeros(100_000, np.int64), np.zeros(100_000, np.bool_), {}
    )
    drawn = words(long, keyed_rng("test", 2)).targets[NEGATIVES].labels
    expected = COUNTS**0.75 / (COUNTS**0.75).sum()
    found = np.bincount(drawn, minlength=VOCABULARY) / len(drawn)
    assert found == pytest.approx(expected, abs=4e-3)
    assert found[UNKNOWN] == 0


def test_words_that_the_training_does_not_have_are_left_out() -> None:
    s = sequence(400)
    e = ContextWords("skip_gram", ALL, np.where(np.arange(VOCABULARY) == 9, 0, COUNTS), [UNKNOWN])(
        s, keyed_rng("test", 3)
    )
    assert not {9, UNKNOWN} & {*s.input_ids[e.targets["skip_gram"].positions].tolist()}
    assert 9 not in e.targets[NEGATIVES].labels


def test_a_sequence_without_a_known_word_has_a_block_without_pairs() -> None:
    e = example(TokenSequence(np.zeros(9, np.int64), np.zeros(9, np.int64), np.zeros(9, bool), {}))
    assert len(e.targets["skip_gram"].labels) == BLOCK
    assert not e.targets["skip_gram"].labels.any()
    both = collate([e, example(sequence())])
    assert len(both.targets["skip_gram"].labels) == len(both.targets[NEGATIVES].labels)


def test_a_text_without_a_word_of_the_vocabulary_is_refused() -> None:
    counts = np.zeros(VOCABULARY, np.int64)
    counts[UNKNOWN] = 9
    with pytest.raises(BertworksError, match="none of the words of the text"):
        ContextWords("skip_gram", ALL, counts, [UNKNOWN])


@pytest.mark.parametrize("length", [2, 7, 64, 10_000])
def test_sentences_are_the_text_with_the_number_of_each_sentence(length: int) -> None:
    draw = np.random.default_rng(0)
    counts = draw.integers(1, 9, 30)
    borders = np.concatenate([[0], draw.integers(1, 20, counts.sum()).cumsum()])
    store = TokenStore(
        1000 + np.arange(borders[-1]), borders, np.concatenate([[0], counts.cumsum()])
    )
    documents = np.delete(np.arange(30), [4, 5, 17])
    sampler = make_sampler(
        store, SamplingConfig(format="sentences"), length, Template((), (), ()), 0
    )
    sampler.plan = sampler.make_plan(documents)
    edges = store.sentences[store.documents]
    text = np.concatenate([store.tokens[edges[d] : edges[d + 1]] for d in documents])
    parts = list(sampler)
    ids = np.concatenate([part.input_ids for part in parts])
    assert (ids == text).all()
    assert {len(part.input_ids) for part in parts[:-1]} <= {length}
    numbers = np.concatenate([part.token_type_ids for part in parts])
    expected = [int(np.searchsorted(borders, token - 1000, side="right")) for token in text]
    assert [a == b for a, b in pairwise(numbers)] == [a == b for a, b in pairwise(expected)]
    assert not any(part.special.any() or part.targets for part in parts)
    # template and epochs: nothing between the words, and another draw in each epoch
    stream = ExampleStream(
        sampler, ContextWords("skip_gram", ContextConfig(), np.ones(2000 + len(text), np.int64)), 0
    )
    epochs = [
        {stream[n].targets[NEGATIVES].labels.tobytes() for n in range(start, start + len(sampler))}
        for start in (0, len(sampler))
    ]
    assert epochs[0].isdisjoint(epochs[1])
