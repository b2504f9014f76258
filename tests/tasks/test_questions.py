"""Answers of a model of questions: the published windows over long contexts, which tokens are
learned, the best spans, thresholds, and when it gives none."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from bertworks.datasets.schema import Item
from bertworks.tasks.questions import best_spans, best_threshold
from bertworks.tasks.registry import task_of
from bertworks.tasks.scores import mistakes
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import softmax
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from tests.support.fine import FILLER, tokenizer
from tests.support.tasks import featurizer


def encoded(
    context: str, answers: tuple = (), question: str = "where lives Anna", **how: Any
) -> Features:
    (found,) = featurizer(tokenizer(), "qa", **how)([Item((question, context), answers, "here:1")])
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


def test_best_spans_are_those_of_a_search_of_all() -> None:
    places, own = np.array([-1, -1, -1, *range(7, 19), -1]), np.zeros(16, bool)
    own[5:12] = True
    logits = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    wanted = {
        (int(places[a]), int(places[b])): float(logits[a, 0]) + float(logits[b, 1])
        for a, b in product(range(3, 15), repeat=2)
        if own[a] and 0 <= b - a < 4
    }
    found = best_spans(logits, places, own, 4)
    assert {(a, b): score for score, a, b in found} == pytest.approx(wanted)
    assert len(found) == len(wanted)


def of_all_windows(found: Features, logits: np.ndarray, most: int) -> list[dict]:
    """The best answers, from all spans of all windows together."""
    spans, start = [], 0
    for example, window in zip(found.unit, found.windows, strict=True):
        rows = logits[start + found.begin :][: len(window.is_own)]
        spans += best_spans(rows, np.arange(window.start, window.end), window.is_own, most)
        start += len(example.input_ids)
    best: dict[str, dict] = {}
    for score, first, last in sorted(spans, reverse=True):
        a, b = int(found.offsets[first, 0]), int(found.offsets[last, 1])
        if len(best) < 20:
            text = found.item.texts[1][a:b]
            best.setdefault(text, {"text": text, "start": a, "end": b, "score": score})
    return list(best.values())


@pytest.mark.parametrize("seed", range(5))
def test_answers_of_many_windows_are_those_of_all_together(seed: int) -> None:
    draw = np.random.default_rng(seed)
    context = " ".join(draw.choice(["Anna", "lives", "in", "Oslo"], 300))  # most answers come again
    found = encoded(context, max_length=24, stride=5)
    count = sum(len(example.input_ids) for example in found.unit)
    logits = draw.integers(0, 9, (count, 2)).astype(np.float32)  # many scores are equal
    config = TaskConfig(task="qa", text=("question", "context"), label=("answers",), max_answer=4)
    answer = task_of(config).decode(found, logits)
    wanted = of_all_windows(found, logits, 4)
    assert len(wanted) == 20
    assert [{**one, "score": 0} for one in answer["n_best"]] == [
        {**one, "score": 0} for one in wanted
    ]
    p = softmax(np.array([one["score"] for one in wanted]))
    assert [one["score"] for one in answer["n_best"]] == p.tolist()


@pytest.mark.parametrize(
    ("threshold", "given"), [(None, True), (2.0, True), (1.99, False), (2.01, True)]
)
def test_no_answer_is_said_above_the_threshold(threshold: float | None, given: bool) -> None:
    found = encoded("Anna lives in Oslo", max_length=24)
    logits = np.zeros((len(found.unit[0].input_ids), 2), np.float32)
    logits[0] = 3.5  # both of [CLS]: 7
    logits[found.begin + 3] = 2.5  # Oslo: 5
    answer = task_of(TaskConfig(task="qa", threshold=threshold)).decode(found, logits)
    assert answer["no_answer_margin"] == 2
    assert answer["answer"] == ("Oslo" if given else "")
    nothing = 0 if threshold is None else np.exp(7 - 5) * answer["n_best"][0]["score"]
    assert sum(one["score"] for one in answer["n_best"]) + nothing == pytest.approx(1)
    assert answer["score"] == pytest.approx(answer["n_best"][0]["score"] if given else nothing)


def test_an_answer_that_stands_twice_is_given_once() -> None:
    found = encoded("Oslo was Oslo", max_length=24)
    logits = np.zeros((len(found.unit[0].input_ids), 2), np.float32)
    logits[[found.begin, found.begin + 2]] = 2.5
    texts = [one["text"] for one in task_of(TaskConfig(task="qa")).decode(found, logits)["n_best"]]
    assert texts[0] == "Oslo"
    assert len(set(texts)) == len(texts)


def test_no_answer_begins_with_the_space_that_some_tokenizers_count_to_a_word() -> None:
    pytest.importorskip("sentencepiece")
    config = VocabularyConfig(size=60, algorithm="unigram", lowercase=False)
    made, _ = train_vocabulary([" ".join(FILLER)] * 20, config)
    context = "Zoe  was with men of this town"
    assert any(
        context[start:end].startswith(" ") for start, end in made.encode(context).offsets[1:-1]
    )
    (encoded,) = featurizer(made, "qa", max_length=64)([Item(("who ?", context), None, "a", "a")])
    count = sum(len(example.input_ids) for example in encoded.unit)
    for seed in range(50):
        logits = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
        answer = task_of(TaskConfig(task="qa")).decode(encoded, logits)
        assert (
            answer["answer"].strip()
            == answer["answer"]
            == context[answer["start"] : answer["end"]]
            != ""
        )


def test_the_answer_at_the_edge_does_not_hang_on_the_last_digit() -> None:
    answers = [{"no_answer_margin": margin} for margin in (-3.0, 2.0, 2.5)]
    assert best_threshold(answers, {"threshold": 2.0}) == 2.25
    assert best_threshold(answers, {"threshold": -3.0}) == -2.5
    assert best_threshold(answers, {"threshold": 2.5}) == 3.0


def test_a_model_that_had_better_not_answer_does_not() -> None:
    answers = [{"no_answer_margin": margin} for margin in (-3.0, 2.0)]
    assert best_threshold(answers, {"threshold": 0.0}) < -3.0
    assert best_threshold([{"no_answer_margin": 5.0}], {"threshold": 0.0}) < 0


@pytest.mark.parametrize(
    ("golds", "answer", "kind", "f1"),
    [
        (["in Paris", "Paris"], "Paris", None, 1.0),
        (["the Paris"], "paris.", None, 1.0),
        (["in Paris"], "Paris now", "partly right", 0.5),
        (["Paris"], "Oslo", "quite another answer", 0.0),
        (["Paris"], "", "left without an answer", 0.0),
        ([], "Oslo", "answered, but there is no answer", 0.0),
        ([], "", None, 1.0),
    ],
)
def test_answers_are_wrong_in_five_ways(
    golds: list[str], answer: str, kind: str | None, f1: float
) -> None:
    requested = Item(
        ("who ?", "a context"), tuple((0, gold) for gold in golds), "q.json: question 1", "1"
    )
    found = mistakes(TaskConfig(task="qa"), [requested], [{"answer": answer, "score": 0.5}])
    assert [(one.kind, one.figures["f1"], one.texts) for one in found] == (
        [(kind, f1, ("who ?",))] if kind else []
    )


def test_of_answers_equally_wrong_the_surer_one_comes_first() -> None:
    requested = [
        Item(("who ?", "a context"), ((0, "Paris"),), f"q.json: question {n}") for n in range(3)
    ]
    answers = [
        {"answer": "Oslo", "score": 0.2},
        {"answer": "Lima", "score": 0.9},
        {"answer": "in Paris", "score": 0.9},
    ]
    found = mistakes(TaskConfig(task="qa"), requested, answers)
    assert [one.where[-1] for one in found] == ["1", "2", "0"]
