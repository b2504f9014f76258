"""Questions over long contexts: the published windows, which tokens are learned, which answers are
found."""

from typing import Any

import numpy as np
import pytest

from bertworks.datasets.schema import Item
from bertworks.tasks.features import CLOZE_NEAR, CLOZE_TEXT, Featurizer, training_groups
from bertworks.tasks.sequences import Features
from tests.support.fine import BAD, FILLER, GOOD, PEOPLE, PLACES, tokenizer


def encoded(
    context: str, answers: tuple = (), question: str = "where lives Anna", **how: Any
) -> Features:
    (found,) = Featurizer(tokenizer(), "qa", **how)([Item((question, context), answers, "here:1")])
    return found


def test_every_window_that_holds_an_answer_is_taught_where() -> None:
    context = " ".join(FILLER[n % len(FILLER)] for n in range(60))
    tokens = tokenizer().encode(context)
    for token, (start, end) in enumerate(tokens.offsets[1:-1]):
        found = encoded(
            context, ((start, context[start:end]), (0, context[:1])), max_length=24, stride=5
        )
        held = 0
        for one, window in zip(found.unit, found.windows, strict=True):
            first, last = one.target.labels.tolist()
            places = window.start + np.arange(len(one.input_ids)) - found.begin
            assert len(one.input_ids) <= 24
            if window.start <= token < window.end:
                held += 1
                assert (places[first], places[last]) == (token, token)
                assert one.input_ids[first] == tokens.ids[token + 1]
            else:
                assert (first, last) == (0, 0)
        assert held


def test_a_long_question_leaves_half_to_the_context() -> None:
    words = " ".join(["dogs"] * 60)
    found = encoded(words, question=words, max_length=24, stride=5)
    assert found.num_truncated == 60 - 12
    assert all(one.token_type_ids.tolist()[:15] == [0] * 14 + [1] for one in found.unit)


def test_windows_that_ask_nothing_are_not_learned_from() -> None:
    item = Item(("?" * 60, "film"), ("O", "B-x"), "a:1")
    (found,) = Featurizer(tokenizer(), "tagging", ("O", "B-x"), 16)([item])
    assert any(not len(one.target.positions) for one in found.unit)
    units = training_groups(found, "tagging")
    assert all(len(one.target.positions) for unit in units for one in unit)
    assert sum(len(one.target.positions) for unit in units for one in unit) == 2


CLOZE_CONTEXTS = [" ".join(PLACES), " ".join(PEOPLE + GOOD), " ".join(BAD)]  # each word stands once


def clozes(contexts: list[str], count: int, seed: int = 0, **how: Any) -> list[Any]:
    items = [Item(("who ?", context), (), "here:1") for context in contexts]
    groups = list(Featurizer(tokenizer(), "qa", **how).clozes(items, count, seed))
    assert all(len(group) == 1 for group in groups)
    return [group[0] for group in groups]


@pytest.mark.parametrize("max_length", [8, 11, 24, 64])
def test_a_cloze_asks_for_a_phrase_with_words_around_it(max_length: int) -> None:
    whole = [*tokenizer().ids([" ".join(CLOZE_CONTEXTS)])[0], tokenizer().unk_id]
    place_of = {token: place for place, token in enumerate(whole)}
    assert len(place_of) == len(whole)
    starts = set()
    for one in clozes(CLOZE_CONTEXTS, 300, max_length=max_length):
        ids, types = one.input_ids, one.token_type_ids
        assert len(ids) <= max_length
        question, text = ids[types == 0][1:-1].tolist(), ids[types == 1][:-1].tolist()
        at = place_of[text[0]]
        assert text == whole[at : at + len(text)]
        first, last = one.target.labels.tolist()
        assert one.target.positions.tolist() == list(range(len(ids)))
        answer = [place_of[token] for token in ids[first : last + 1].tolist()]
        assert answer == list(range(answer[0], answer[0] + len(answer)))
        assert 1 <= len(answer) <= 1 + CLOZE_TEXT // 8
        near = [place_of[token] for token in question]
        assert not set(near) & set(answer)
        assert all(answer[0] - CLOZE_NEAR <= place <= answer[-1] + CLOZE_NEAR for place in near)
        assert len(near) <= max(1, max_length // 3)
        starts.add(first)
    assert len(starts) > 1 or max_length == 8


def test_frequent_words_are_in_no_cloze_answer_and_seldom_in_the_question() -> None:
    words = [*PLACES, *PEOPLE, *GOOD, *BAD]
    contexts = [
        " ".join(f"the {word} {other}" for word, other in zip(words[::2], words[1::2], strict=True))
    ]
    frequent = set(tokenizer().ids(["the"])[0])
    made = clozes(contexts, 500)
    rare, common = 0, 0
    for one in made:
        first, last = one.target.labels.tolist()
        assert not frequent & set(one.input_ids[first : last + 1].tolist())
        question = one.input_ids[one.token_type_ids == 0][1:-1].tolist()
        common += sum(token in frequent for token in question)
        rare += sum(token not in frequent for token in question)
    # Half as many, and more beside an answer; without a choice between them the ratio would be
    # above 0.5.
    assert 0.1 < common / rare < 0.4


def test_clozes_are_a_function_of_the_texts_and_the_seed() -> None:
    def ids(*given: Any, **named: Any) -> list[list[int]]:
        return [one.input_ids.tolist() for one in clozes(*given, **named)]

    assert ids(CLOZE_CONTEXTS, 20) == ids([*CLOZE_CONTEXTS, CLOZE_CONTEXTS[0]], 20)
    assert ids(CLOZE_CONTEXTS, 20) != ids(CLOZE_CONTEXTS, 20, seed=1)


@pytest.mark.parametrize("context", ["Oslo", "\u200b"])
def test_texts_of_one_token_or_none_make_clozes_too(context: str) -> None:
    answers = set()
    for one in clozes([context], 20):
        first, last = one.target.labels.tolist()
        answers.add(tuple(one.input_ids[first : last + 1].tolist()))
    token = tokenizer().ids([context])[0]
    assert answers == {(*token, tokenizer().unk_id)}
