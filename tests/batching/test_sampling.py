"""Sentence pairs and full sentences, held against a slow reading of the published algorithm, and
against arithmetic."""

import hashlib
import random
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from bertworks.batching import sampling
from bertworks.batching.batch import Batches
from bertworks.batching.examples import LanePlace, add_special_tokens, keyed_rng
from bertworks.batching.sampling import (
    ExampleStream,
    FullSentences,
    Masker,
    MaskingConfig,
    NextSentencePairs,
    NextTokens,
    Sampler,
    SamplingConfig,
    make_sampler,
    make_targets,
    truncate,
)
from bertworks.errors import BertworksError, UsageError
from bertworks.text.shards import TokenStore
from bertworks.text.tokenizer import Template
from tests.support.fine import tokenizer
from tests.support.refusals import refusal

CLS, SEP = 101, 102
SPECIAL = Template((CLS,), (SEP,), (SEP,))


def make_store(
    documents: int = 60, seed: int = 0, longest: int = 40, most_sentences: int = 30
) -> TokenStore:
    """Token n of the corpus is 1000 + n, so that a token says where it stands."""
    r = np.random.default_rng(seed)
    counts = r.integers(1, most_sentences, documents)
    lengths = r.integers(1, longest, counts.sum())
    sentences = np.concatenate([[0], lengths.cumsum()])
    return TokenStore(
        1000 + np.arange(sentences[-1]), sentences, np.concatenate([[0], counts.cumsum()])
    )


def document_of(store: TokenStore, token: int) -> int:
    sentence = np.searchsorted(store.sentences, token - 1000, side="right") - 1
    return int(np.searchsorted(store.documents, sentence, side="right") - 1)


def every(store: TokenStore) -> np.ndarray:
    return np.arange(len(store.documents) - 1)


def planned(store: TokenStore, max_length: int, seed: int = 0, **settings) -> Sampler:
    """A sampler with a plan of all documents."""
    sampler = make_sampler(store, SamplingConfig(**settings), max_length, SPECIAL, seed)
    sampler.plan = sampler.make_plan(every(store))
    return sampler


def make_pairs(
    store: TokenStore, max_length: int = 64, seed: int = 0, **settings
) -> NextSentencePairs:
    sampler = planned(store, max_length, seed, **settings)
    assert isinstance(sampler, NextSentencePairs)
    return sampler


def published(store: TokenStore, max_length: int, short_rate: float, seed: int):
    """google-research/bert create_instances_from_document, read slowly: (tokens of A, tokens of B,
    label)."""
    r = random.Random(seed)
    documents = [
        [list(store.tokens[a:b]) for a, b in pairwise(store.sentences[first : last + 1])]
        for first, last in pairwise(store.documents)
    ]
    for d, document in enumerate(documents):
        target = max_length - 3
        if r.random() < short_rate:
            target = r.randint(2, max_length - 3)
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(map(len, chunk)) >= target:
                a_end = r.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a = [t for s in chunk[:a_end] for t in s]
                b, label = [], 0
                if len(chunk) == 1 or r.random() < 0.5:
                    label = 1
                    other = r.choice([e for e in range(len(documents)) if e != d])
                    start = r.randint(0, len(documents[other]) - 1)
                    for sentence in documents[other][start:]:
                        b += sentence
                        if len(b) >= target - len(a):
                            break
                    i -= len(chunk) - a_end
                else:
                    b = [t for s in chunk[a_end:] for t in s]
                yield a, b, label
                chunk = []
            i += 1


def segments(sequence):
    ids = sequence.input_ids
    first, second = np.flatnonzero(ids == SEP)
    return ids[1:first], ids[first + 1 : second]


def test_a_pair_has_special_tokens_and_types():
    s = add_special_tokens([np.array([7, 8]), np.array([9])], SPECIAL)
    assert s.input_ids.tolist() == [CLS, 7, 8, SEP, 9, SEP]
    assert s.token_type_ids.tolist() == [0, 0, 0, 0, 1, 1]
    assert s.special.tolist() == [True, False, False, True, False, True]
    assert not s.targets


def test_pairs_are_true_neighbours_or_from_another_document():
    store = make_store()
    labels = []
    for s in map(make_pairs(store).__getitem__, range(len(make_pairs(store)))):
        a, b = segments(s)
        assert len(s.input_ids) <= 64
        assert len(a)
        assert len(b)
        assert (np.diff(a) == 1).all()
        assert (np.diff(b) == 1).all()  # both are stretches of the text
        label = s.targets["next_sentence"].labels.item()
        if label == 0:  # is next: B continues A, up to what was cut off between them
            assert document_of(store, a[0]) == document_of(store, b[0])
            assert b[0] > a[-1]
        else:  # never the same document
            assert document_of(store, a[0]) != document_of(store, b[0])
        labels.append(label)
    assert 0.4 < np.mean(labels) < 0.75


@pytest.mark.parametrize("short_rate", [0.0, 0.1, 1.0])
def test_pairs_have_the_statistics_of_the_published_algorithm(short_rate):
    store = make_store(400, seed=3)
    ours = np.array(
        [
            [b - a, d - c, label]
            for seed in range(6)
            for a, b, c, d, label in make_pairs(store, seed=seed, short_rate=short_rate).plan
        ]
    )
    theirs = np.array(
        [
            [len(a), len(b), label]
            for seed in range(6)
            for a, b, label in published(store, 64, short_rate, seed)
        ]
    )
    assert len(ours) == pytest.approx(len(theirs), rel=0.02)
    deviation = theirs.std(0) * np.sqrt(2 / len(theirs))
    assert np.abs(ours.mean(0) - theirs.mean(0)).max() < (4 * deviation).max()
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 5 * deviation).all()
    for column in (0, 1):
        quantiles = np.linspace(0.05, 0.95, 10)
        difference = np.quantile(ours[:, column], quantiles) - np.quantile(
            theirs[:, column], quantiles
        )
        assert np.abs(difference).max() <= 2


def test_coins_of_a_chunk_with_a_choice_are_fair():
    """With documents of many short sentences a chunk always has a choice, so that half are
    random."""
    store = make_store(300, longest=6, most_sentences=60)
    labels = np.concatenate(
        [make_pairs(store, seed=seed, short_rate=0.0).plan[:, 4] for seed in range(4)]
    )
    # Only the last sentence of a document has no choice: that lifts the share a little above one
    # half.
    last = 300 * 4 / len(labels)
    assert (
        0.5 - 3 * 0.5 / np.sqrt(len(labels))
        < labels.mean()
        < 0.5 + last + 3 * 0.5 / np.sqrt(len(labels))
    )


def test_no_sentence_is_lost():
    """What a random B displaced is put back: every sentence is a part of some A or true B."""
    store = make_store(50)
    seen = np.zeros(len(store.tokens), bool)
    for a, a_end, b, b_end, label in make_pairs(store, short_rate=0.0).plan:
        seen[a:a_end] = True
        if label == 0:
            seen[b:b_end] = True
    assert seen.all()


def test_short_targets_are_drawn_once_per_document_uniformly():
    """With sentences of one token the length of a chunk is the target itself."""
    documents, size = 3000, 400
    n = documents * size
    store = TokenStore(1000 + np.arange(n), np.arange(n + 1), np.arange(0, n + 1, size))
    plan = make_pairs(store, max_length=23, short_rate=1.0).plan
    follows = plan[plan[:, 4] == 0]
    document = follows[:, 0] // size
    complete = follows[:, 3] % size != 0  # the last chunk of a document may be shorter
    lengths = follows[complete][:, 3] - follows[complete][:, 0]
    target = {}
    for d, length in zip(document[complete].tolist(), lengths.tolist(), strict=True):
        assert target.setdefault(d, length) == length
    counts = np.bincount(list(target.values()), minlength=21)
    assert counts[:2].sum() == 0
    assert len(counts) == 21  # from 2 to 20
    expected = len(target) / 19
    assert np.abs(counts[2:] - expected).max() < 5 * np.sqrt(expected)


def test_truncation_takes_from_the_longer_and_from_either_end():
    fronts = []
    for seed in range(400):
        a, a_end, b, b_end = truncate(
            0, 30, 100, 110, 20, lambda seed=seed: np.random.default_rng(seed)
        )
        assert (a_end - a) + (b_end - b) == 20
        assert b_end - b == 10  # the shorter is not touched
        fronts.append(a)
    assert np.mean(fronts) == pytest.approx(10, abs=4 * np.sqrt(20) / 2 / np.sqrt(400))
    a, a_end, b, b_end = truncate(0, 10, 100, 110, 19, lambda: np.random.default_rng(0))
    assert (a, a_end) == (0, 10)  # of two equally long ones the second gives
    assert truncate(0, 5, 9, 12, 8, lambda: pytest.fail("nothing to cut")) == (0, 5, 9, 12)


def test_a_plan_is_a_function_of_its_address():
    store = make_store()
    assert (make_pairs(store, seed=5).plan == make_pairs(store, seed=5).plan).all()
    assert (
        len(make_pairs(store, seed=5).plan) != len(make_pairs(store, seed=6).plan)
        or (make_pairs(store, seed=5).plan != make_pairs(store, seed=6).plan).any()
    )


def test_copies_are_cut_anew():
    store = make_store()
    once, twice = make_pairs(store).plan, make_pairs(store, copies=2).plan
    assert (twice[: len(once)] == once).all()
    rest = twice[len(once) :]
    assert len(rest) != len(once) or (rest != once).any()


def test_only_the_given_documents_are_used():
    store = make_store()
    documents = np.array([3, 7, 20, 21])
    plan = make_sampler(store, SamplingConfig(), 64, SPECIAL, 0).make_plan(documents)
    used = {document_of(store, 1000 + t) for t in np.concatenate([plan[:, 0], plan[:, 2]])}
    assert used == set(documents.tolist())


def test_sentence_order_is_two_neighbours_of_one_document_in_either_order():
    store = make_store(400, seed=2)
    sampler = planned(store, 64, format="sentence_order", short_rate=0.1)
    used = np.zeros(len(store.tokens), np.int64)
    for (a, a_end, b, b_end, label), row in zip(sampler.plan.tolist(), sampler, strict=True):
        first, last = (b, a_end) if label else (a, b_end)
        assert (b_end == a) if label else (a_end == b)  # they touch, in the order of the label
        assert a < a_end
        assert b < b_end
        assert {first, last, a, b} <= set(store.sentences.tolist())
        assert document_of(store, 1000 + first) == document_of(store, 1000 + last - 1)
        used[first:last] += 1
        target = row.targets["sentence_order"]
        assert (target.positions.tolist(), target.labels.tolist()) == ([0], [label])
        assert row.targets.keys() == {"sentence_order"}
        begins = [row.input_ids[(row.token_type_ids == kind) & ~row.special][0] for kind in (0, 1)]
        # tokens are numbered in the order of the text
        assert (begins[0] > begins[1]) == bool(label)
    labels = sampler.plan[:, 4]
    assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(labels))
    assert used.max() == 1  # nothing twice
    # What is left out are chunks of one sentence: the ends of documents, and sentences longer than
    # a target.
    lengths, left = np.diff(store.sentences), used[store.sentences[:-1]] == 0
    assert 0 < left.sum() < 0.1 * len(left)
    last = np.isin(np.arange(len(lengths)) + 1, store.documents)
    short = planned(store, 64, format="sentence_order", short_rate=0.0)
    used[:] = 0
    for a, a_end, b, b_end, _ in short.plan.tolist():
        used[min(a, b) : max(a_end, b_end)] += 1
    # no sentence reaches the target of 61 tokens
    assert (last[used[store.sentences[:-1]] == 0]).all()


def test_sentence_order_splits_anywhere():
    """With sentences of one token every chunk is as long as the target, and is split anywhere
    within."""
    n = 60_000
    store = TokenStore(1000 + np.arange(n), np.arange(n + 1), np.arange(0, n + 1, 600))
    a, a_end, b, b_end, label = planned(store, 23, format="sentence_order", short_rate=0.0).plan.T
    total, first = a_end - a + b_end - b, np.where(label == 1, b_end - b, a_end - a)
    assert (total == 20).all()
    assert set(first.tolist()) == set(range(1, 20))
    assert abs(first.mean() - 10) < 4 * np.sqrt(30 / len(first))


def test_sentence_order_needs_documents_of_two_sentences():
    store = TokenStore(np.arange(40), np.arange(0, 41, 4), np.arange(11))
    with pytest.raises(BertworksError, match="too short for a single sequence") as error:
        planned(store, 64, format="sentence_order")
    assert error.value.hint is not None
    assert "documents of two sentences or more" in error.value.hint


@pytest.mark.parametrize("max_length", [5, 16, 64, 5000])
def test_full_sentences_lose_nothing_and_cross_documents_with_a_separator(max_length):
    store = make_store(40, longest=30)
    sampler = planned(store, max_length, format="full_sentences")
    assert isinstance(sampler, FullSentences)
    sequences = [sampler[i] for i in range(len(sampler))]
    assert all(3 <= len(s.input_ids) <= max_length for s in sequences)
    assert all((s.token_type_ids == 0).all() and not s.targets for s in sequences)
    text = np.concatenate([s.input_ids[~s.special] for s in sequences])
    assert (text == store.tokens).all()
    for s in sequences:
        pieces = np.split(s.input_ids[1:], np.flatnonzero(s.input_ids[1:] == SEP))[:-1]
        homes = [document_of(store, piece[piece != SEP][0]) for piece in pieces]
        assert all(a < b for a, b in pairwise(homes))  # one piece per document
    # sentences of at most 29 tokens are whole, and no sequence could take one more
    if max_length == 64:
        ends = np.cumsum([(~s.special).sum() for s in sequences])
        assert np.isin(ends, store.sentences).all()


def test_configurations_that_mean_nothing_are_refused():
    with pytest.raises(ValueError, match="short_rate"):
        SamplingConfig(short_rate=1.5)
    with pytest.raises(ValueError, match="copies"):
        SamplingConfig(copies=0)


@pytest.mark.parametrize(
    ("settings", "sha256"),
    [
        ({"copies": 2}, "437f4936a240cf93853bc448e3995bf714a7cdea2a790a72163ad4d8d599d200"),
        (
            {"format": "full_sentences"},
            "804294d9999aa18dde0f5eb247e0c13de095432ffd79c1c7d80c03b76014bf4e",
        ),
    ],
)
def test_plans_are_those_of_the_first_release(
    settings: dict, sha256: str, monkeypatch: pytest.MonkeyPatch
):
    """A run that was begun with another version goes on with the same examples."""
    store = make_store()
    for block in (1, 7, 1 << 16):
        monkeypatch.setattr(sampling, "BLOCK", block)
        plan = planned(store, 64, 7, **settings).plan
        assert hashlib.sha256(plan.astype("<i8").tobytes()).hexdigest() == sha256


def peak_of(action: Callable[[], object]) -> int:
    """Bytes that were in use at once while something was done."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pairs", ["next_sentence", "full_sentences"])
def test_making_a_plan_takes_the_memory_of_a_block(pairs: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sampling, "BLOCK", 100)
    store = make_store(300, longest=20)
    sampler = planned(store, 16, format=pairs, copies=3)
    size = sampler.plan.nbytes
    assert size > 100_000
    assert peak_of(lambda: sum(map(len, sampler.plan_blocks(every(store))))) < size / 4


def test_a_sampler_does_not_read_its_whole_plan():
    sampler = planned(make_store(300, longest=20), 16, format="full_sentences")
    assert peak_of(lambda: sampler[len(sampler.plan) // 3]) < sampler.plan.nbytes / 10


def test_there_is_nothing_beyond_the_end():
    sampler = planned(make_store(3), 16, format="full_sentences")
    assert len(list(sampler)) == len(sampler)
    with pytest.raises(IndexError):
        sampler[-1]


def test_a_length_without_room_for_the_template_is_refused() -> None:
    template = Template((1,), (2,), (2,))
    store = TokenStore(np.zeros(4, np.int32), np.arange(5), np.arange(0, 5, 2))
    for kind, least in (("next_sentence", 5), ("sentence_order", 5), ("full_sentences", 3)):
        with pytest.raises(UsageError, match=f"need {least}"):
            make_sampler(store, SamplingConfig(format=kind), least - 1, template, 0)
        make_sampler(store, SamplingConfig(format=kind), least, template, 0).make_plan(np.arange(2))


@pytest.mark.parametrize("suffix", [(), (SEP,)])
@pytest.mark.parametrize("length", [2, 7, 64, 10_000])
def test_a_stream_is_the_text_with_a_token_after_each_document(
    length: int, suffix: tuple[int, ...]
) -> None:
    store = make_store(longest=25)
    sampler = make_sampler(
        store, SamplingConfig(format="stream"), length, Template((), (), suffix), 0
    )
    sampler.plan = sampler.make_plan(every(store))
    edges = store.sentences[store.documents]
    text = np.concatenate([np.append(store.tokens[a:b], suffix) for a, b in pairwise(edges)])
    parts = list(sampler)
    assert (np.concatenate([part.input_ids for part in parts]) == text).all()
    assert {len(part.input_ids) for part in parts[:-1]} <= {length}
    assert 0 < len(parts[-1].input_ids) <= length
    assert all(((part.input_ids == SEP) == part.special).all() for part in parts)
    assert not any(part.token_type_ids.any() or part.targets for part in parts)


def test_each_token_is_predicted_from_those_before_it() -> None:
    (part, *_) = planned(make_store(), 16, format="stream")
    example = NextTokens()(part, keyed_rng("test", 0))
    target = example.targets["causal_lm"]
    assert (example.input_ids == part.input_ids).all()
    assert (part.input_ids[target.positions + 1] == target.labels).all()
    assert (target.positions == np.arange(15)).all()


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
def test_masks_that_mean_nothing_are_refused(settings):
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


def lane_stream(lanes: int, length: int = 16, seed: int = 0, suffix: int = 1) -> ExampleStream:
    """A text in lanes: token n is 1000 + n, and an end token stands after each document."""
    store = make_store(longest=25)
    config = SamplingConfig(format="stream", lanes=True)
    sampler = make_sampler(store, config, length, Template((), (), (SEP,) * suffix), seed)
    sampler.plan = sampler.make_plan(every(store))
    return ExampleStream(sampler, NextTokens(), seed, lanes)


def test_a_lane_goes_on_from_step_to_step() -> None:
    lanes = 5
    length = 16
    stream = lane_stream(lanes, length)
    text = np.concatenate([part.input_ids for part in stream.sampler])
    size = stream.num_steps * length
    for lane in range(lanes):
        examples = [stream[step * lanes + lane] for step in range(stream.num_steps)]
        part = text[lane * size : (lane + 1) * size + 1]
        assert (np.concatenate([e.input_ids for e in examples]) == part[:-1]).all()
        # also the first token of a sequence, by the last one of the sequence before
        assert (np.concatenate([e.target.labels for e in examples]) == part[1:]).all()
        places = [LanePlace(lane, length * step) for step in range(stream.num_steps)]
        assert [example.place for example in examples] == places
    assert 0 < len(text) - lanes * size < (lanes + 1) * length


def test_all_lanes_begin_again_in_the_same_step() -> None:
    stream = lane_stream(3)
    count = 3 * stream.num_steps
    for n in range(7):
        first = stream[n]
        again = stream[count + n]
        assert again.place == first.place
        assert (again.input_ids == first.input_ids).all()


def test_a_step_of_several_processes_is_that_of_one() -> None:
    stream = lane_stream(5)
    whole = Batches(stream, 5, 1 << 20)(2)[0]
    assert whole.lanes is not None
    assert whole.lanes.numbers.tolist() == [0, 1, 2, 3, 4]
    assert whole.lanes.num_before == 32
    rows = whole.input_ids.view(5, -1)
    for rank in range(2):
        for part in Batches(stream, 5, 16, rank, 2)(2):  # a sequence in each micro-batch
            assert part.lanes is not None
            assert part.lanes.num_before == 32
            (lane,) = part.lanes.numbers.tolist()
            assert lane % 2 == rank
            assert (part.input_ids == rows[lane]).all()


def test_lanes_that_cannot_be_are_refused() -> None:
    for settings in ({"format": "full_sentences"}, {"format": "stream", "parallel_rate": 0.5}):
        with pytest.raises(ValueError, match=r"lanes with format .*: expected format = 'stream'"):
            SamplingConfig(lanes=True, **settings)
    count = len(lane_stream(1).sampler) - 1
    assert lane_stream(count).num_steps == 1
    what = (
        f"the text has {count:,} sequences of 16 tokens, fewer than the {count + 1:,} lanes in "
        "which it is to be read"
    )
    hint = "give more text, or choose shorter sequences, or fewer of them in a step"
    with refusal(what, hint):
        lane_stream(count + 1)
    with refusal("2 tokens end a text in this tokenizer", "choose a tokenizer with one such token"):
        lane_stream(2, suffix=2)
