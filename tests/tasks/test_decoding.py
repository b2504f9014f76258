"""Logits become answers: the best spans, thresholds, windows."""

from itertools import product

import numpy as np
import pytest

from bertworks.datasets.schema import Item
from bertworks.tasks.decoding import Decoder
from bertworks.tasks.features import Featurizer
from bertworks.tasks.probabilities import softmax
from bertworks.tasks.questions import best_spans
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.text.vocabulary import VocabularyConfig, train_vocabulary
from tests.support.fine import FILLER
from tests.tasks.test_features import encoded


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
    answer = Decoder(config)(found, logits)
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
    answer = Decoder(TaskConfig(task="qa", threshold=threshold))(found, logits)
    assert answer["no_answer_margin"] == 2
    assert answer["answer"] == ("Oslo" if given else "")
    nothing = 0 if threshold is None else np.exp(7 - 5) * answer["n_best"][0]["score"]
    assert sum(one["score"] for one in answer["n_best"]) + nothing == pytest.approx(1)
    assert answer["score"] == pytest.approx(answer["n_best"][0]["score"] if given else nothing)


def test_an_answer_that_stands_twice_is_given_once() -> None:
    found = encoded("Oslo was Oslo", max_length=24)
    logits = np.zeros((len(found.unit[0].input_ids), 2), np.float32)
    logits[[found.begin, found.begin + 2]] = 2.5
    texts = [one["text"] for one in Decoder(TaskConfig(task="qa"))(found, logits)["n_best"]]
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
    (encoded,) = Featurizer(made, "qa", max_length=64)([Item(("who ?", context), None, "a", "a")])
    count = sum(len(example.input_ids) for example in encoded.unit)
    for seed in range(50):
        logits = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
        answer = Decoder(TaskConfig(task="qa"))(encoded, logits)
        assert (
            answer["answer"].strip()
            == answer["answer"]
            == context[answer["start"] : answer["end"]]
            != ""
        )
