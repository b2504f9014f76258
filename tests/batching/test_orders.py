"""Tokens that are predicted in a random order: how many, which, in which order, and what stays
readable."""

from collections import Counter
from functools import partial

import numpy as np
import pytest

from bertworks.batching.batch import collate
from bertworks.batching.examples import TokenSequence, add_special_tokens
from bertworks.batching.orders import RANK, Permuter
from bertworks.batching.sampling import MaskingConfig, num_predicted
from bertworks.text.tokenizer import Template

TEMPLATE = Template((), (1,), (1, 2), last_type=2)
NUM_TOKENS = 50
CONTINUES = {30, 31, 32}  # tokens within a word


def permuter(rate: float = 0.166) -> Permuter:
    starts = np.array([number not in CONTINUES for number in range(NUM_TOKENS)])
    return Permuter(partial(num_predicted, MaskingConfig(rate=rate)), starts)


def sequence(first: int, second: int = 0, seed: int = 0) -> TokenSequence:
    generator = np.random.default_rng(seed)
    sizes = [first, second] if second else [first]
    return add_special_tokens([generator.integers(10, NUM_TOKENS, n) for n in sizes], TEMPLATE)


def test_the_last_token_has_a_type_of_its_own():
    assert sequence(3).token_type_ids.tolist() == [0, 0, 0, 0, 2]
    assert sequence(2, 3).token_type_ids.tolist() == [0, 0, 0, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("lengths", [(500, 0), (60, 65), (1, 0), (2, 0), (3, 1)])
def test_targets_and_ranks(lengths: tuple[int, int]):
    for seed in range(50):
        s = sequence(*lengths, seed)
        example = permuter()(s, np.random.default_rng(seed))
        assert example.input_ids is s.input_ids  # nothing is masked
        positions, labels = example.targets["permutation_lm"]
        places, rank = example.targets[RANK]
        assert places.tolist() == [*range(len(s.input_ids))]
        assert (np.diff(positions) > 0).all()
        assert (labels == s.input_ids[positions]).all()
        assert not s.special[positions].any()
        ordinary = int((~s.special).sum())
        wanted = max(1, round(0.166 * len(s.input_ids)))
        assert len(positions) == min(wanted, max(1, ordinary - 1))
        ranked = np.flatnonzero(rank >= 0)
        assert {*ranked} == {*positions, *np.flatnonzero(s.special)}
        assert sorted(rank[ranked]) == [*range(len(ranked))]
        assert ordinary == 1 or (rank == -1).any()


def test_spans_are_whole_words_of_one_to_five_words():
    """n words with a probability in proportion to 1 / n; words in a row may be two spans."""
    counts: Counter[int] = Counter()
    broken = total = 0
    for seed in range(400):
        s = sequence(510, 0, seed)
        positions = permuter()(s, np.random.default_rng(seed)).targets["permutation_lm"].positions
        is_chosen = np.zeros(len(s.input_ids) + 1, np.bool_)
        is_chosen[positions] = True
        within = np.isin(s.input_ids, [*CONTINUES])
        splits = is_chosen[1:-1] != is_chosen[:-2]
        broken += int((splits & within[1:]).sum())
        total += len(positions)
        runs = np.diff(np.flatnonzero(np.diff(np.concatenate([[0], is_chosen.astype(int)]))))[::2]
        counts.update(np.minimum(runs, 9).tolist())
    assert broken < 0.02 * total  # only what fills the number up
    assert counts[1] > counts[2] > counts[3] > counts[4] > counts[6] > 0


def test_every_place_is_chosen_as_often_and_every_order_is_possible():
    places = np.zeros(66)
    firsts: Counter[bool] = Counter()
    for seed in range(4000):
        example = permuter()(sequence(64, 0, seed), np.random.default_rng(seed))
        positions, _ = example.targets["permutation_lm"]
        places[positions] += 1
        rank = example.targets[RANK].labels
        firsts[bool(rank[positions[0]] < rank[positions[1]])] += 1
    frequencies = places[:64] / 4000
    assert abs(frequencies.mean() - 11 / 64) < 1e-9
    # a span that does not end within the sequence is left out
    assert frequencies[:-4].min() > 0.6 * frequencies.mean()
    assert frequencies.min() > 0.3 * frequencies.mean()
    assert frequencies.max() < 1.5 * frequencies.mean()
    assert abs(firsts[True] / 4000 - 0.5) < 0.03


def test_a_batch_has_the_ranks_of_its_tokens():
    make = permuter()
    examples = [make(sequence(n, 0, n), np.random.default_rng(n)) for n in (20, 9, 33)]
    batch = collate(examples)
    ranks = np.concatenate([e.targets[RANK].labels for e in examples])
    assert batch.targets[RANK].labels.tolist() == ranks.tolist()
    assert batch.targets[RANK].positions.tolist() == [*range(len(batch.input_ids))]
