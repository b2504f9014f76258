"""What is hidden: exact counts, rates within their errors, whole words, spans."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bertworks.batching.batch import add_special_tokens, keyed_rng
from bertworks.batching.masking import Masker, MaskingConfig, NextTokens, make_targets
from bertworks.text.tokenizer import Template
from tests.support.fine import tokenizer
from tests.support.refusals import refusal

MASK, VOCAB = 4, 1000


def make_sequence(first: int, second: int, seed: int = 0):
    r = np.random.default_rng(seed)
    return add_special_tokens(
        [r.integers(10, VOCAB, first), r.integers(10, VOCAB, second)], Template((2,), (3,), (3,))
    )


def masker(starts_word=None, **settings) -> Masker:
    return Masker(
        MaskingConfig(**settings),
        MASK,
        np.ones(VOCAB, bool) if starts_word is None else starts_word,
    )


@given(
    st.integers(1, 200),
    st.integers(1, 200),
    st.sampled_from([0.05, 0.15, 0.4, 1.0]),
    st.sampled_from([0, 20]),
)
def test_the_exact_number_is_predicted(first, second, rate, most):
    s = make_sequence(first, second)
    e = masker(rate=rate, max_predictions=most)(s, keyed_rng("test", 0))
    length = first + second + 3  # with [CLS] and both [SEP]
    expected = max(1, round(rate * length))
    expected = min(expected, most) if most else expected
    assert len(e.targets["masked_lm"].positions) == min(expected, first + second)
    assert (np.diff(e.targets["masked_lm"].positions) > 0).all()
    assert not s.special[e.targets["masked_lm"].positions].any()
    assert (e.targets["masked_lm"].labels == s.input_ids[e.targets["masked_lm"].positions]).all()
    others = np.setdiff1d(np.arange(length), e.targets["masked_lm"].positions)
    assert (e.input_ids[others] == s.input_ids[others]).all()


@pytest.mark.parametrize(
    ("mask", "random"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.5, 0.25), (0.0, 0.0)]
)
@pytest.mark.parametrize("unit", ["token", "whole_word", "span"])
def test_the_split_is_as_configured(mask, random, unit):
    m = masker(mask=mask, random=random, unit=unit)
    fates = np.zeros(3)
    for i in range(600):
        s = make_sequence(60, 60, i)
        e = m(s, keyed_rng("test", i))
        read = e.input_ids[e.targets["masked_lm"].positions]
        hidden, kept = read == MASK, read == e.targets["masked_lm"].labels
        fates += hidden.sum(), (~hidden & ~kept).sum(), kept.sum()
    total = fates.sum()
    once = random / VOCAB  # a random token may be [MASK], or the right one
    for seen, expected in zip(
        fates / total, (mask + once, random - 2 * once, 1 - mask - random + once), strict=True
    ):
        assert abs(seen - expected) < 4 * np.sqrt((expected * (1 - expected) + 1e-3) / total)


def test_every_place_is_predicted_equally_often():
    counts = np.zeros(103)
    for i in range(4000):
        counts[
            masker()(make_sequence(50, 50), keyed_rng("test", i)).targets["masked_lm"].positions
        ] += 1
    words = np.delete(counts, [0, 51, 102])
    expected = words.mean()
    assert counts[[0, 51, 102]].sum() == 0
    assert np.abs(words - expected).max() < 5 * np.sqrt(expected)


def test_random_tokens_come_from_the_whole_vocabulary():
    drawn = np.concatenate(
        [
            e.input_ids[e.targets["masked_lm"].positions]
            for e in (
                masker(mask=0, random=1.0)(make_sequence(60, 60, i), keyed_rng("test", i))
                for i in range(800)
            )
        ]
    )
    counts = np.bincount(drawn, minlength=VOCAB)
    assert counts[:10].sum() > 0  # special tokens too
    assert np.abs(counts - counts.mean()).max() < 6 * np.sqrt(counts.mean())


def test_whole_words_are_hidden_whole_and_never_over_a_border():
    starts = np.arange(VOCAB) % 3 == 0  # two of three tokens continue a word
    for i in range(200):
        s = make_sequence(40, 40, i)
        e = masker(starts, unit="whole_word")(s, keyed_rng("test", i))
        assert len(e.targets["masked_lm"].positions) <= round(0.15 * 83)
        chosen = np.zeros(len(s.input_ids), bool)
        chosen[e.targets["masked_lm"].positions] = True
        for position in range(1, len(chosen)):
            same_word = (
                not starts[s.input_ids[position]]
                and not s.special[position]
                and not s.special[position - 1]
            )
            if same_word:
                assert chosen[position] == chosen[position - 1]


def test_a_segment_cut_inside_a_word_starts_a_word():
    """Otherwise the pieces after a [SEP] would be glued to the last word before it (a quirk of the
    original)."""
    starts = np.ones(VOCAB, bool)
    starts[500] = False
    s = add_special_tokens(
        [np.array([10, 11, 12, 13]), np.array([500, 14, 15, 16])], Template((2,), (3,), (3,))
    )
    alone = 0
    for i in range(300):
        positions = set(
            masker(starts, unit="whole_word", rate=0.1)(s, keyed_rng("test", i))
            .targets["masked_lm"]
            .positions.tolist()
        )
        assert len(positions) == 1
        alone += positions == {6}
    assert alone > 10


def test_a_word_beyond_the_budget_is_passed_over():
    starts = np.zeros(VOCAB, bool)
    starts[10] = True
    s = add_special_tokens(
        [np.array([10, *range(11, 40), 10, 10]), np.array([10])], Template((2,), (3,), (3,))
    )  # one word of 30 pieces
    for i in range(50):
        positions = (
            masker(starts, unit="whole_word")(s, keyed_rng("test", i))
            .targets["masked_lm"]
            .positions
        )
        assert set(positions.tolist()) == {31, 32, 34}


def test_spans_have_the_lengths_requested():
    # few, so that they seldom touch or run out of budget
    m = masker(unit="span", spans=(0.5, 0.3, 0.2), rate=0.02)
    m.budget = lambda length, generator: 3  # type: ignore[method-assign]
    runs = np.zeros(4)
    for i in range(6000):
        positions = (
            m(make_sequence(200, 200, i % 7), keyed_rng("test", i)).targets["masked_lm"].positions
        )
        generator = keyed_rng("test", i)
        generator.permutation(400)
        first_size = 1 + np.searchsorted(m.span_edges, generator.random(400)[0], side="right")
        runs[first_size] += 1
        assert len(positions) == 3
    assert runs[1:] / runs.sum() == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_spans_hide_neighbouring_words():
    together = sum(
        (
            np.diff(
                masker(unit="span")(make_sequence(60, 60, i), keyed_rng("test", i))
                .targets["masked_lm"]
                .positions
            )
            == 1
        ).sum()
        for i in range(100)
    )
    apart = sum(
        (
            np.diff(
                masker()(make_sequence(60, 60, i), keyed_rng("test", i))
                .targets["masked_lm"]
                .positions
            )
            == 1
        ).sum()
        for i in range(100)
    )
    assert together > 2 * apart


@pytest.mark.parametrize(
    "settings", [{"rate": 0.0}, {"rate": 1.1}, {"mask": 0.9, "random": 0.2}, {"spans": ()}]
)
def test_configurations_that_mean_nothing_are_refused(settings):
    with pytest.raises(ValueError, match="expected"):
        MaskingConfig(**settings)


def test_fairseq_rounds_at_random_and_predicts_special_tokens():
    m = Masker(
        MaskingConfig(rounding="random", special_tokens="predicted", mask=0.0, random=1.0),
        MASK,
        np.ones(30, bool),
        special_ids={0, 1, 2, 3, 4},
    )
    # 21 tokens: 3.15 of them
    s = add_special_tokens([np.arange(10, 29)], Template((2,), (3,), (3,)))
    sizes, special = [], 0
    for i in range(4000):
        target = (e := m(s, keyed_rng("test", i))).targets["masked_lm"]
        sizes.append(len(target.positions))
        special += s.special[target.positions].sum()
        assert (target.labels == s.input_ids[target.positions]).all()
        assert not np.isin(e.input_ids[target.positions], [0, 1, 2, 3, 4]).any()
    assert set(sizes) == {3, 4}
    assert np.mean(sizes) == pytest.approx(3.15, abs=0.03)
    assert special / sum(sizes) == pytest.approx(2 / 21, abs=0.015)


def test_special_tokens_are_predicted_one_by_one():
    with pytest.raises(
        ValueError, match="special_tokens 'predicted' with unit 'span': expected unit 'token'"
    ):
        MaskingConfig(special_tokens="predicted", unit="span")


def test_targets_are_of_masked_or_of_next_tokens():
    t = tokenizer()
    assert isinstance(make_targets(t, MaskingConfig(), "masked_lm"), Masker)
    assert isinstance(make_targets(t, MaskingConfig(), "causal_lm"), NextTokens)
    t.mask_id = -1
    assert isinstance(make_targets(t, MaskingConfig(), "causal_lm"), NextTokens)
    with refusal("the tokenizer has no mask token", "choose a tokenizer with [MASK] or <mask>"):
        make_targets(t, MaskingConfig(), "masked_lm")
