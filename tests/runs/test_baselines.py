"""The simple methods beside a fine-tuning: each gives what scikit-learn gives without our code,
exact figures where the answer is obvious, and the right words where fine-tuning is not better."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertworks.checkpoints.model_folder import ModelFolder
from bertworks.datasets.schema import Item
from bertworks.inference.embedder import Embedder
from bertworks.inference.engine import compute_logits
from bertworks.runs import baselines
from bertworks.runs.baselines import (
    FINETUNED,
    FrozenEncoder,
    baseline_answers,
    compare_baselines,
    format_baselines,
    sample,
)
from bertworks.runs.finetune import make_finetune_request
from bertworks.runs.finetune_job import FinetuneJob, prepare_finetuning
from bertworks.tasks.heads import TaskModel, combine_vectors
from bertworks.tasks.linear_head import SEQUENCE_DEVIATION
from bertworks.tasks.registry import TASKS, task_of
from bertworks.tasks.scores import compute_metrics
from bertworks.tasks.sequences import Features
from bertworks.tasks.settings import TaskConfig
from bertworks.tasks.task import Featurizer
from tests.support.fine import (
    tokenizer,
    write_examples,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def job(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], FinetuneJob]:
    @cache
    def job(task: str) -> FinetuneJob:
        data = write_examples(tmp_path_factory.mktemp("data"), task)
        return FinetuneJob(
            prepare_finetuning(make_finetune_request(data, model=model, validation="split"), CPU)
        )

    return job


def answers_of(job: FinetuneJob) -> dict[str, Any]:
    encoder = FrozenEncoder(job.model, CPU, job.description.max_length)
    return baseline_answers(job.train, job.dev, job.description, encoder)


def score(job: FinetuneJob, answers: Any) -> float:
    return compute_metrics(job.description, [row.item for row in job.dev], answers)[job.metric]


def rows_of(texts: list[tuple[str, ...]], labels: list[Any], d: TaskConfig) -> list[Features]:
    items = [
        Item(text, label, f"f:{n}")
        for n, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    return list(Featurizer(tokenizer(), task_of(d))(items))


@pytest.mark.parametrize(
    ("task", "methods"),
    [
        ("classification", ["most frequent label", "bag of words", "frozen vectors"]),
        ("multilabel", ["most frequent labels", "bag of words", "frozen vectors"]),
        ("regression", ["mean", "bag of words", "frozen vectors", "cosine"]),
        ("tagging", ["most frequent tag", "features of words", "frozen vectors"]),
        ("spans", ["no entity", "features of words", "frozen vectors"]),
        ("qa", ["no answer", "nearest sentence"]),
        ("choice", ["most frequent choice", "most similar choice"]),
    ],
)
def test_every_task_has_its_methods_and_they_answer_like_the_model(
    task: str, methods: list[str], job: Callable[[str], FinetuneJob]
) -> None:
    work = job(task)
    answers = answers_of(work)
    assert list(answers) == methods
    assert answers == answers_of(work)  # the same for the same seed
    d, items = work.description, [row.item for row in work.dev]
    for one in answers.values():
        figures = compute_metrics(d, items, one)
        assert set(task_of(d).metrics) & set(figures)
        assert len(one) == len(items)
    # The words of these files decide their labels, so that a linear model of words finds all of
    # them.
    if task in ("classification", "multilabel", "tagging", "spans"):
        assert score(work, answers[methods[1]]) > 0.94
        assert score(work, answers[methods[0]]) < 0.7


def test_a_bag_of_words_is_that_of_scikit_learn(job: Callable[[str], FinetuneJob]) -> None:
    work = job("classification")
    train, dev = [row.item for row in work.train], [row.item for row in work.dev]
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]+", ngram_range=(1, 2), sublinear_tf=True)
    theirs = make_pipeline(words, LogisticRegression(C=10.0, tol=1e-8, max_iter=10_000))
    theirs.fit([item.texts[0] for item in train], [item.label for item in train])
    ours = answers_of(work)["bag of words"]
    assert [a["label"] for a in ours] == theirs.predict([item.texts[0] for item in dev]).tolist()
    expected = theirs.predict_proba([item.texts[0] for item in dev])
    assert np.allclose([list(a["scores"].values()) for a in ours], expected, atol=0.01)


def test_words_of_many_labels_are_compared_with_the_mean_of_each(
    job: Callable[[str], FinetuneJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that lacks labels would be no comparison: all rows are used, and no fit is needed.

    The oracle are the tf-idf and the cosines of scikit-learn.
    """
    work = job("classification")
    monkeypatch.setattr(baselines, "_MAX_TERMS", 1)
    train, dev = ([row.item for row in rows] for rows in (work.train, work.dev))
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]+", ngram_range=(1, 2), sublinear_tf=True)
    features = words.fit_transform([item.texts[0] for item in train]).toarray()
    labels = work.description.labels
    means = [
        features[[item.label == label for item in train]].mean(0, keepdims=True) for label in labels
    ]
    new = words.transform([item.texts[0] for item in dev])
    cosines = cosine_similarity(new, np.concatenate(means))
    answers = answers_of(work)["bag of words"]
    assert [a["label"] for a in answers] == [labels[n] for n in cosines.argmax(1)]
    differences = np.diff(np.log([[a["scores"][label] for label in labels] for a in answers]))
    assert np.allclose(differences, np.diff(cosines), atol=1e-5)


def test_frozen_vectors_are_those_of_embed(job: Callable[[str], FinetuneJob], model: Path) -> None:
    work = job("classification")
    train, dev = [row.item for row in work.train], [row.item for row in work.dev]
    embedder = Embedder(model, pooling="mean", normalize=True, device="cpu", precision="fp32")
    x, new = (embedder.embed([item.texts[0] for item in items]) for items in (train, dev))
    encoder = FrozenEncoder(work.model, CPU, 64)
    assert np.allclose(encoder.texts(item.texts[0] for item in dev), new, atol=1e-5)
    theirs = make_pipeline(
        StandardScaler(),
        LogisticRegression(C=SEQUENCE_DEVIATION**2 / x.shape[1], tol=1e-8, max_iter=10_000),
    )
    theirs.fit(x, [item.label for item in train])
    ours = answers_of(work)["frozen vectors"]
    assert np.allclose(
        [list(a["scores"].values()) for a in ours], theirs.predict_proba(new), atol=0.01
    )


def test_several_labels_are_those_of_one_versus_the_rest(job: Callable[[str], FinetuneJob]) -> None:
    work = job("multilabel")
    train, dev = [row.item for row in work.train], [row.item for row in work.dev]
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]+", ngram_range=(1, 2), sublinear_tf=True)
    theirs = make_pipeline(words, OneVsRestClassifier(LogisticRegression(C=10.0)))
    labels = [[name in item.label for name in work.description.labels] for item in train]
    theirs.fit([item.texts[0] for item in train], np.array(labels, int))
    p = theirs.predict_proba([item.texts[0] for item in dev])
    ours = np.array([list(a["scores"].values()) for a in answers_of(work)["bag of words"]])
    # one threshold for all labels, as 0.5 for the reader
    shift = np.log(p / (1 - p)) - np.log(ours / (1 - ours))
    assert np.ptp(shift) < 0.2


def test_states_of_words_are_those_of_the_network(job: Callable[[str], FinetuneJob]) -> None:
    """The input of the head of a tagger without training is what the linear model reads."""
    work = job("tagging")
    network, _ = work.initial_network()
    assert isinstance(network, TaskModel)
    seen: list[torch.Tensor] = []
    network.classifier.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for row in work.dev[:3]:
        seen.clear()
        compute_logits(network, [row.unit])
        ours = FrozenEncoder(work.model, CPU, 64).predicted_tokens([row])
        assert np.allclose(ours, torch.cat(seen).numpy(), atol=1e-4)


def test_words_are_answered_in_blocks(
    job: Callable[[str], FinetuneJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features and states of all words of a long row would take far more memory than the row."""
    names, whole, shapes = (
        job("tagging"),
        answers_of(job("tagging")),
        list[tuple[int, ...]](),
    )
    compute = baselines.compute_each
    monkeypatch.setattr(
        baselines, "compute_each", lambda *given: [shapes.append(given[3]), compute(*given)][1]
    )
    monkeypatch.setattr(baselines, "_AT_ONCE", 7)
    assert answers_of(names) == whole
    assert shapes == [(names.model.config.hidden_size,), (len(names.description.labels),)], (
        "logits, not states"
    )


def test_features_of_pairs() -> None:
    u, v = np.array([[0.6, 0.8]], np.float32), np.array([[1.0, 0.0]], np.float32)
    assert np.array_equal(combine_vectors(torch.from_numpy(u), "mean"), u)
    pair = torch.from_numpy(np.concatenate([u, v]))
    assert np.allclose(combine_vectors(pair, "pair"), [[0.4, 0.8, 0.6, 0.0, 0.6]])


def test_the_cosine_orders_pairs_by_their_similarity(model: Path) -> None:
    d = TaskConfig(task="regression", text=("a", "b"), max_length=64)
    draw = random.Random(0)
    words = (
        "the film was a story of men and dogs in this town with some music that they heard".split()
    )
    pairs = [
        (" ".join(draw.choices(words, k=6)), " ".join(draw.choices(words, k=6))) for _ in range(40)
    ]
    same = [(a, a if n % 2 else b) for n, (a, b) in enumerate(pairs)]
    rows = rows_of(same, [float(n % 2) for n in range(40)], d)
    answers = baseline_answers(
        rows[:20], rows[20:], d, FrozenEncoder(ModelFolder(model).load(), CPU, 64)
    )
    assert [a["value"] > 1 - 1e-5 for a in answers["cosine"]] == [
        bool(row.item.label) for row in rows[20:]
    ]
    assert all(a["value"] == 0.5 for a in answers["mean"])
    # With labels instead of numbers a threshold is learned.
    d = TaskConfig(task="classification", labels=("other", "same"), text=("a", "b"), max_length=64)
    rows = rows_of(same, ["same" if n % 2 else "other" for n in range(40)], d)
    answers = baseline_answers(
        rows[:20], rows[20:], d, FrozenEncoder(ModelFolder(model).load(), CPU, 64)
    )
    assert [a["label"] for a in answers["cosine"]] == [row.item.label for row in rows[20:]]


def test_the_nearest_sentence_is_the_one_with_the_words_of_the_question(model: Path) -> None:
    d = TaskConfig(task="qa", text=("question", "context"))
    context = "Anna lives in Oslo. Boris heard some music in Paris. The story was sad."
    rows = rows_of([("who heard music?", context)], [((20, "Boris"),)], d)
    (answer,) = baseline_answers(rows, rows, d, FrozenEncoder(ModelFolder(model).load(), CPU, 64))[
        "nearest sentence"
    ]
    assert answer["answer"] == "Boris heard some music in Paris."
    assert context[answer["start"] : answer["end"]] == answer["answer"]


@pytest.mark.parametrize(
    "texts", [["猫が好きです", "犬が嫌いだ"], ["고양이가좋다", "개가싫다"], ["喜欢猫", "讨厌狗"]]
)
def test_scripts_without_spaces_are_read_by_characters(texts: list[str]) -> None:
    vectorizer = baselines._vectorizer(texts)
    assert vectorizer.analyzer == "char"
    assert texts[0][:2] in vectorizer.vocabulary_
    assert baselines._vectorizer(["a cat", "?!"]).get_feature_names_out().tolist() == [
        "?!",
        "a",
        "a cat",
        "cat",
    ]


@pytest.mark.parametrize("most", [100, 400, 10**6])
def test_a_sample_has_the_labels_of_the_whole(most: int, job: Callable[[str], FinetuneJob]) -> None:
    rows = job("classification").train
    some = sample(rows, most, seed=3)
    assert len({row.item.where for row in some}) == len(some)
    assert sum(len(example.input_ids) for row in some for example in row.unit) <= most
    whole, part = (Counter(row.item.label for row in side) for side in (rows, some))
    assert all(
        abs(part[label] - count * len(some) / len(rows)) <= 1 for label, count in whole.items()
    )


def test_a_row_that_is_larger_than_a_sample_is_in_none(job: Callable[[str], FinetuneJob]) -> None:
    rows = job("classification").train[:20]
    large = rows[0]._replace(unit=rows[0].unit * 1000)
    for seed in range(5):
        some = sample([large, *rows], 200, seed)
        assert large not in some
        assert len(some) > 3
    assert sample([large], 200, 0) == [large]


@pytest.mark.parametrize("labels", [("a", "a", "a"), ("a", "b", "a")])
def test_labels_that_no_training_row_has(labels: tuple[str, ...], model: Path) -> None:
    d = TaskConfig(task="classification", labels=("a", "b", "c"), text=("t",))
    train, new = (
        rows_of([("good",), ("bad",), ("fine",)], list(labels), d),
        rows_of([("sad",)], ["c"], d),
    )
    for (answer,) in baseline_answers(
        train, new, d, FrozenEncoder(ModelFolder(model).load(), CPU, 64)
    ).values():
        assert answer["label"] in labels
        assert answer["scores"]["c"] < 0.5 * max(answer["scores"][label] for label in labels)


def compared(job: FinetuneJob, answers: Any) -> dict[str, Any]:
    return compare_baselines(
        job.description, job.metric, job.dev, {FINETUNED: answers, **answers_of(job)}
    )


def test_what_follows_from_the_comparison(job: Callable[[str], FinetuneJob]) -> None:
    work = job("classification")
    right = [{"label": row.item.label} for row in work.dev]
    trivial = answers_of(work)["most frequent label"]
    flipped = [{"label": "neg" if row.item.label == "pos" else "pos"} for row in work.dev]
    draw = random.Random(0)
    chance = [{"label": draw.choice(["neg", "pos"])} for _ in work.dev]
    best = compared(work, right)
    assert "nothing" not in best["verdict"]
    # both know all answers
    assert 'not clearly better than "bag of words": accuracy +0.0' in best["verdict"]
    assert best["methods"][0]["score"] == 1
    for answers, words in (
        (trivial, "has learned nothing"),
        (flipped, "has learned nothing"),
        (chance, "nothing"),
    ):
        found = compared(work, answers)
        assert found["methods"][1 + found["best"]]["method"] == "bag of words"
        assert found["verdict"].startswith("WARNING")
        assert words in found["verdict"]
        assert 'worse than "bag of words"' in found["verdict"]
        assert found["advice"] == ["another --model"]
    row = found["methods"][2]
    assert row["difference"] == pytest.approx(found["methods"][0]["score"] - row["score"])
    assert row["difference_interval"][0] <= row["difference"] <= row["difference_interval"][1] < 0


def test_many_rows_are_sampled_and_the_name_says_so(
    job: Callable[[str], FinetuneJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = job("classification")
    monkeypatch.setattr(baselines, "_MAX_TERMS", 1000)
    monkeypatch.setattr(baselines, "_ENCODER_WORK", 1.0)
    first, words, frozen = answers_of(work)
    assert first == "most frequent label"
    count = int(words.removeprefix("bag of words of ").removesuffix(" rows"))
    assert count == len(sample(work.train, 500, 0)) < len(work.train)
    assert frozen == "frozen vectors of 1 rows on 1 rows"
    found = compare_baselines(
        work.description,
        work.metric,
        work.dev,
        {
            FINETUNED: answers_of(work)[first],
            "mean": answers_of(work)[first],
            "frozen vectors of 9 rows": [{"label": row.item.label} for row in work.dev],
        },
    )
    assert found["advice"] == ["--method frozen", "another --model"]


@pytest.mark.slow
def test_features_of_words_learn_from_all_sentences(model: Path) -> None:
    """With many labels too: a tagger that learns from a part of the sentences looks weak."""
    draw = random.Random(0)
    labels = tuple(f"T{n:02}" for n in range(40))
    sentences = [tuple(f"w{draw.randrange(400)}" for _ in range(30)) for _ in range(600)]
    d = TaskConfig(task="tagging", labels=labels, text=("words",), max_length=64)
    rows = rows_of(
        sentences, [tuple(labels[int(w[1:]) // 10] for w in words) for words in sentences], d
    )
    assert len(sample(rows, 400_000 // 40, 0)) < 0.9 * len(rows), "as many as they learned from"
    fitted: list[int] = []
    count = baselines._word_counts

    def counted(train: Any, held_out: Any) -> Any:
        fitted.append(len(train))
        return count(train, held_out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(baselines, "_word_counts", counted)
        answers = baseline_answers(
            rows, rows[:10], d, FrozenEncoder(ModelFolder(model).load(), CPU, 64)
        )
    assert fitted == [600]
    assert "features of words" in answers


@pytest.mark.parametrize(("factor", "expected"), [(2.0, 100), (0.5, 50), (0.01, 30)])
def test_a_tagger_of_many_words_takes_fewer_iterations(
    factor: float, expected: int, job: Callable[[str], FinetuneJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = job("tagging")
    targets = sum(len(example.target.labels) for row in names.train for example in row.unit)
    monkeypatch.setattr(
        baselines, "_MAX_TAGGED", round(factor * targets * len(names.description.labels) + 0.5)
    )
    seen: list[int] = []
    sparse = baselines._sparse
    monkeypatch.setattr(
        baselines, "_sparse", lambda *given: [seen.append(given[5]), sparse(*given)][1]
    )
    answers_of(names)
    assert seen == [expected]


def test_a_model_that_is_better_needs_no_words(job: Callable[[str], FinetuneJob]) -> None:
    work = job("choice")
    found = compared(work, [{"choice": row.item.label} for row in work.dev])
    assert found["verdict"] == ""
    heads, ours, *others = format_baselines(found)
    assert heads[0] == "method"
    assert ours == ["fine-tuned", "100.0% (80.6 to 100.0%)", ""]
    assert [cells[0] for cells in others] == ["most frequent choice", "most similar choice"]
    assert all(cells[2].startswith("+") for cells in others)


def test_correlations_are_no_fractions(job: Callable[[str], FinetuneJob]) -> None:
    work = job("regression")
    found = compared(work, [{"value": row.item.label} for row in work.dev])
    assert format_baselines(found)[1] == ["fine-tuned", "1.000 (0.678 to 1.000)", ""]
    assert found["methods"][1]["score"] == pytest.approx(0, abs=1e-6)  # the mean orders nothing


def test_rows_of_few_documents_are_compared_one_by_one(job: Callable[[str], FinetuneJob]) -> None:
    """Two documents have no interval: rows do."""
    work = job("choice")
    rows = [
        row._replace(item=row.item._replace(document=f"d{n % 2}")) for n, row in enumerate(work.dev)
    ]
    answers = {
        FINETUNED: [{"choice": n % 3} for n in range(len(rows))],
        "x": [{"choice": 0}] * len(rows),
    }
    low, high = compare_baselines(replace(work.description), "accuracy", rows, answers)["methods"][
        0
    ]["interval"]
    assert low < high
    assert [TASKS["choice"].predicted_label(a) for a in answers["x"]] == [0] * len(rows)


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_a_constant_of_every_fold_has_no_correlation(metric: str, model: Path) -> None:
    """The means of the other parts order the parts the wrong way round."""
    d = TaskConfig(task="regression", text=("a", "b"), max_length=64)
    texts = [(f"a film {n}", f"the town {n % 5}") for n in range(36)]
    numbers = [0.1 + n // 12 + n % 3 for n in range(36)]  # each part has another mean
    rows, parts = rows_of(texts, numbers, d), [list(range(12)), list(range(12, 24))]
    encoder = FrozenEncoder(ModelFolder(model).load(), CPU, 64)
    answers = baseline_answers(rows, rows[:24], d, encoder, parts=parts)
    found = compare_baselines(
        d, metric, rows[:24], {FINETUNED: [{"value": x} for x in numbers[:24]], **answers}
    )
    assert found["methods"][1]["method"] == "mean"
    assert found["methods"][1]["score"] == 0
    assert found["methods"][0]["score"] == pytest.approx(1)


def test_a_part_is_answered_by_what_was_learned_from_the_others(
    job: Callable[[str], FinetuneJob],
) -> None:
    work = job("classification")
    encoder = FrozenEncoder(work.model, CPU, 64)
    count = len(work.train) // 3
    parts = [list(range(count)), list(range(count, 2 * count))]
    found = baseline_answers(
        work.train, work.train[: 2 * count], work.description, encoder, parts=parts
    )
    for place, part in enumerate(parts):
        others = [row for n, row in enumerate(work.train) if n not in part]
        alone = baseline_answers(others, [work.train[n] for n in part], work.description, encoder)
        for name in ("bag of words", "frozen vectors"):
            assert found[name][place * count : (place + 1) * count] == alone[name]
    # the same constant in all parts: exactly its share
    labels = Counter(row.item.label for row in work.train)
    assert {answer["label"] for answer in found["most frequent label"]} == {
        labels.most_common(1)[0][0]
    }


@pytest.mark.parametrize("task", ["classification", "regression", "tagging", "choice"])
def test_of_many_held_out_rows_vectors_answer_a_sample(
    task: str, job: Callable[[str], FinetuneJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = job(task)
    tokens = sum(len(example.input_ids) for row in work.dev for example in row.unit)
    whole = answers_of(work)
    most = FrozenEncoder(work.model, CPU, 64).max_tokens
    monkeypatch.setattr(baselines, "HELD_OUT_WORK", 0.5 * tokens / most)
    found = answers_of(work)
    sampled = {
        method.partition(" on ")[0]: answers
        for method, answers in found.items()
        if " on " in method
    }
    assert sampled.keys() == whole.keys() & {"frozen vectors", "cosine", "most similar choice"}
    for method, answers in sampled.items():
        given = [n for n, answer in enumerate(answers) if answer is not None]
        assert f"{method} on {len(given)} rows" in found
        assert 0 < len(given) < len(work.dev)
        assert [answers[n] for n in given] == [whole[method][n] for n in given]
    # The difference is that on these rows, also for the fine-tuned model.
    method, answers = list(sampled.items())[-1]
    given = [n for n, answer in enumerate(answers) if answer is not None]
    ours = whole[next(iter(whole))]
    mean = {"": [*ours], "x": [*ours], method: answers}
    some = {key: [side[n] for n in given] for key, side in mean.items()}
    one = compare_baselines(work.description, work.metric, work.dev, mean)["methods"][2]
    assert (
        one
        == compare_baselines(work.description, work.metric, [work.dev[n] for n in given], some)[
            "methods"
        ][2]
    )


@pytest.mark.parametrize(
    ("method", "tried", "best", "advice"),
    [
        ("full", ("full",), "frozen vectors", ["--method frozen"]),
        ("full", ("full", "frozen"), "frozen vectors", []),  # `auto` has compared both
        ("frozen", ("frozen",), "bag of words", ["--method full"]),
        ("frozen", ("frozen",), "features of words", ["--method full"]),
        ("cosine", ("cosine",), "frozen vectors", ["--method frozen"]),
        ("cosine", ("cosine",), "cosine", ["--method full"]),
    ],
)
def test_the_verdict_speaks_of_the_method_that_ran_and_advises_another(
    method: str,
    tried: tuple[str, ...],
    best: str,
    advice: list[str],
    job: Callable[[str], FinetuneJob],
) -> None:
    work = job("classification")
    right = [{"label": row.item.label} for row in work.dev]
    wrong = [{"label": "neg" if one["label"] == "pos" else "pos"} for one in right]
    answers = {"ours": wrong, "most frequent label": wrong, best: right}
    found = compare_baselines(
        work.description, work.metric, work.dev, answers, method=method, tried=tried
    )
    assert found["advice"] == [*advice, "another --model"]
    name = {
        "full": "fine-tuning",
        "frozen": "the linear head",
        "cosine": "fine-tuning from the cosine",
    }[method]
    assert f"WARNING: {name} has learned nothing" in found["verdict"]
    assert f'; {name} is worse than "{best}"' in found["verdict"]
    assert format_baselines(found)[0][2] == f"advantage of {name} (95 % CI)"
