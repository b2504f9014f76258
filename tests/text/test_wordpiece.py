"""Pieces of a WordPiece vocabulary: merges by the definition."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from bertworks.errors import UsageError
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.wordpiece import (
    MergeLearner,
    characters_of,
    extend_vocabulary,
    train_word_pieces,
    without_last,
)
from tests.runs.test_adaptation import home as home


def naive_merges(words):
    """The definition, all counts made anew at every step; ties to the pair of older symbols."""
    words = [(characters_of(word), count) for word, count in words]
    order = {
        form: number
        for number, form in enumerate(sorted({form for word, _ in words for form in word}))
    }
    merges = []
    while True:
        pairs = Counter()
        for word, count in words:
            for pair in pairwise(word):
                pairs[pair] += count
        scored = [
            (-count, order[a], order[b], a, b) for (a, b), count in pairs.items() if count > 1
        ]
        if not scored:
            break
        *_, left, right = min(scored)
        merges.append((left, right))
        form = left + right.removeprefix("##")
        order.setdefault(form, len(order))
        for word, _ in words:
            place = 0
            while place < len(word) - 1:
                if (word[place], word[place + 1]) == (left, right):
                    word[place : place + 2] = [form]
                place += 1
    return merges


@pytest.mark.no_cover
@given(
    st.dictionaries(
        st.text(st.sampled_from("abc"), min_size=1, max_size=9), st.integers(1, 20), max_size=12
    )
)
@settings(deadline=None, max_examples=150)
def test_merges_are_those_of_the_definition(words):
    items = sorted(words.items())
    alphabet = sorted({form for word, _ in items for form in characters_of(word)})
    learner = MergeLearner(items, alphabet, "##")
    learner.merge_until(1000)
    assert learner.merges == naive_merges(items)


def test_stepping_stones_are_dropped():
    words = [("abcdef", 100), ("xy", 3), ("zw", 2)]
    alphabet = sorted({form for word, _ in words for form in characters_of(word)})
    pieces = train_word_pieces(words, alphabet, len(alphabet) + 6, min_frequency=2)
    assert set(pieces[len(alphabet) :]) >= {"abcdef", "xy"}
    few = train_word_pieces(words, alphabet, len(alphabet) + 5, min_frequency=2)
    assert few[len(alphabet) :][-1] == "xy", (
        "a fifth more than 5 is 6; a stepping stone of abcdef went"
    )


def test_words_are_chosen_by_the_tokens_that_they_save(home: Path):
    """Against counts in plain Python."""
    t = Tokenizer.load(home / "m")
    texts = ["Subimoka subimoka, subimoka! lomape 17x 17x once", "lomape subimoka subimoka"]
    extended, words = extend_vocabulary(texts, t, 2)
    counts = Counter("subimoka subimoka subimoka lomape once lomape subimoka subimoka".split())
    saved = {
        word: count * (len(t.ids([word])[0]) - 1) for word, count in counts.items() if count > 1
    }
    assert all(saved.values())
    assert [w.word for w in words] == sorted(saved, key=lambda word: -saved[word])
    assert [(w.frequency, w.pieces) for w in words] == [
        (counts[w.word], t.ids([w.word])[0]) for w in words
    ]
    assert extended.tokens == [*t.tokens, *(w.word for w in words)]
    assert without_last(extended, 2).sha256 == t.sha256
    with pytest.raises(
        UsageError, match="the text has 2 words that a vocabulary can be extended by, not 3"
    ):
        extend_vocabulary(texts, t, 3)
