"""The task of settings, and how items are read: clozes, which are questions made from texts."""

from typing import Any

import numpy as np
import pytest
import scipy.special

from bertworks.datasets.schema import Item
from bertworks.errors import UsageError
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import CLOZE_NEAR, CLOZE_TEXT, sigmoid, softmax
from tests.support.fine import BAD, GOOD, PEOPLE, PLACES, tokenizer
from tests.support.tasks import featurizer

CLOZE_CONTEXTS = [" ".join(PLACES), " ".join(PEOPLE + GOOD), " ".join(BAD)]  # each word stands once


def clozes(contexts: list[str], count: int, seed: int = 0, **how: Any) -> list[Any]:
    items = [Item(("who ?", context), (), "here:1") for context in contexts]
    groups = list(featurizer(tokenizer(), "qa", **how).clozes(items, count, seed))
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


def test_a_task_has_the_settings_of_its_model_and_others_stay() -> None:
    d = TaskConfig(task="tagging", labels=("O", "B-x"))
    task = task_of(d)
    assert task.d is d
    assert type(task) is type(TASKS["tagging"])
    assert TASKS["tagging"].d.labels == ()
    assert [name for name, one in TASKS.items() if one.name != name or one.d.task != name] == []


def test_the_first_metric_is_the_default_and_others_are_refused() -> None:
    two, three = (
        task_of(TaskConfig(task="classification", labels=labels)) for labels in ("ab", "abc")
    )
    assert (two.metric(), two.metric("f1")) == ("accuracy", "f1")
    with pytest.raises(UsageError, match="'f1' is not a metric of classification") as raised:
        three.metric("f1")
    assert raised.value.hint == "name one of accuracy, macro_f1, matthews_correlation"


def test_probabilities_are_those_of_scipy() -> None:
    x = np.random.default_rng(0).normal(0, 50, (5, 7)).astype(np.float32)
    assert softmax(x) == pytest.approx(scipy.special.softmax(x.astype(np.float64), -1))
    assert sigmoid(x / 10) == pytest.approx(scipy.special.expit((x / 10).astype(np.float64)))
