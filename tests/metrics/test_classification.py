"""Scores: equal to scikit-learn, scipy, seqeval and conlleval; defined where nothing is; loud where
wrong."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from hypothesis import given, settings, strategies as st

from bertworks.datasets.annotations import tag_scheme
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item
from bertworks.errors import BertworksError
from bertworks.metrics.classification import Span, count_spans, figures_by_type, paired
from bertworks.tasks.scores import compute_metrics
from bertworks.tasks.settings import TaskConfig, TaskType
from tests.support.schemes import Scheme, convert_tags, tag_spans, tagging, tagging_per_type

LABELS = ("cat", "dog", "owl")
TAGS = ("O", "B-X", "I-X", "E-X", "S-X", "B-Y", "I-Y", "E-Y", "S-Y")
SCHEMES = {"IOB1": seqeval.scheme.IOB1, "IOB2": seqeval.scheme.IOB2, "BIOES": seqeval.scheme.IOBES}

pairs = st.lists(
    st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1, max_size=30
)
tagged = st.lists(
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), max_size=9),
    min_size=1,
    max_size=4,
)


def halves(rows: Sequence[Sequence[tuple[str, str]]]) -> tuple[list[list[str]], list[list[str]]]:
    return [[a for a, _ in row] for row in rows], [[b for _, b in row] for row in rows]


def scores(
    task: TaskType, gold: Sequence[Any], predicted: Sequence[Any], labels: Sequence[str] = ()
) -> dict[str, float]:
    """The figures of predictions for texts."""
    field = {
        "classification": "label",
        "multilabel": "labels",
        "regression": "value",
        "choice": "choice",
    }[task]
    items = [Item(("a text",), label, f"row {n}") for n, label in enumerate(gold, 1)]
    return compute_metrics(
        TaskConfig(task=task, labels=tuple(labels)), items, [{field: one} for one in predicted]
    )


# --- labels ---


@given(pairs)
def test_classification_is_that_of_scikit_learn(rows: list[tuple[str, str]]):
    gold, predicted = zip(*rows)
    ours = scores("classification", gold, predicted, LABELS)
    theirs = sklearn.metrics.f1_score(gold, predicted, average="macro", zero_division=0.0)
    assert ours["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(gold, predicted))
    assert ours["macro_f1"] == pytest.approx(theirs)
    theirs = (
        sklearn.metrics.matthews_corrcoef(gold, predicted) if len({*gold, *predicted}) > 1 else 0.0
    )
    assert ours["matthews_correlation"] == pytest.approx(theirs)
    assert "f1" not in ours
    counts = sklearn.metrics.confusion_matrix(gold, predicted, labels=LABELS)
    rows = [([(0, 1, a)], [(0, 1, b)]) for a, b in rows]
    table = figures_by_type(*count_spans(rows, LABELS))
    assert [row["support"] for row in table.values()] == counts.sum(1).tolist()
    assert [row["recall"] * row["support"] for row in table.values()] == pytest.approx(
        np.diag(counts)
    )
    assert [row["precision"] for row in table.values()] == pytest.approx(
        np.diag(counts) / np.maximum(counts.sum(0), 1)
    )


def test_two_labels_have_a_positive_one():
    """10 rows: 3 hits, 1 miss, 2 false alarms, 4 rightly left alone."""
    gold, predicted = "1111000000", "1110110000"
    ours = scores("classification", gold, predicted, ("0", "1"))
    assert ours["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 2))
    assert ours["matthews_correlation"] == pytest.approx((3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5))
    assert scores("classification", gold, predicted, ("1", "0"))["f1"] == pytest.approx(
        2 * 4 / (2 * 4 + 1 + 2)
    )


@pytest.mark.parametrize("answer", ["0", "1"])
def test_answers_that_are_all_the_same(answer: str):
    ours = scores("classification", "0011", answer * 4, ("0", "1"))
    assert ours == {
        "accuracy": 0.5,
        "macro_f1": pytest.approx(1 / 3),
        "matthews_correlation": 0.0,
        "f1": pytest.approx(2 / 3 if answer == "1" else 0.0),
    }
    assert scores("classification", "00", "00", ("0", "1"))["f1"] == 0.0


@given(st.lists(st.tuples(*[st.sets(st.sampled_from(LABELS))] * 2), min_size=1, max_size=12))
def test_multilabel_is_that_of_scikit_learn(rows: list[tuple[set[str], set[str]]]):
    gold, predicted = zip(*rows)
    ours = scores("multilabel", gold, predicted)
    occurring = sorted(set().union(*gold, *predicted))
    assert ours["accuracy"] == sum(a == b for a, b in rows) / len(rows)
    if len(occurring) > 1:  # with fewer, scikit-learn takes the columns for something else
        matrices = [
            np.array([[label in row for label in occurring] for row in side])
            for side in (gold, predicted)
        ]
        for average in ("micro", "macro"):
            theirs = sklearn.metrics.f1_score(*matrices, average=average, zero_division=0.0)
            assert ours[f"{average}_f1"] == pytest.approx(theirs)
        assert ours["precision"] == pytest.approx(
            sklearn.metrics.precision_score(*matrices, average="micro", zero_division=0.0)
        )


def test_multilabel_at_its_edges():
    nothing = {"precision": 0.0, "recall": 0.0, "micro_f1": 0.0, "macro_f1": 0.0}
    assert scores("multilabel", [()], [()]) == {"accuracy": 1.0, **nothing}
    assert scores("multilabel", [("a",)], [()]) == {"accuracy": 0.0, **nothing}
    assert scores("multilabel", [("a", "b")], [["b", "a", "a"]])["accuracy"] == 1.0


def test_choice():
    assert scores("choice", [0, 3, 2, 1], [0, 3, 1, 1]) == {"accuracy": 0.75}
    with pytest.raises(BertworksError, match="nothing to score"):
        scores("choice", [], [])


# --- numbers ---


def test_regression_by_the_definitions():
    generator = np.random.default_rng(0)
    gold = generator.integers(0, 6, 200) / 5  # with ties
    predicted = gold + generator.normal(size=200)
    ours = scores("regression", gold.tolist(), predicted.tolist())
    ranks = [[(np.sum(v < x) + np.sum(v <= x) + 1) / 2 for x in v] for v in (gold, predicted)]
    assert ours["pearson"] == pytest.approx(np.corrcoef(gold, predicted)[0, 1])
    assert ours["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert ours["rmse"] == pytest.approx(np.sqrt(np.mean((gold - predicted) ** 2)))


@pytest.mark.parametrize(
    "values", [([1.0, 2, 3], [2.5, 2.5, 2.5]), ([4.0, 4.0], [1.0, 2.0]), ([1.0], [2.0])]
)
def test_no_correlation_where_nothing_varies(values: tuple[list[float], list[float]]):
    ours = scores("regression", *values)
    assert (ours["pearson"], ours["spearman"]) == (0.0, 0.0)
    assert ours["rmse"] > 0


def test_answers_that_are_nearly_the_same():
    assert scores("regression", [1.0, 2.0, 3.0], [7.0, 7.0, 7.0 + 1e-15])[
        "spearman"
    ] == pytest.approx(math.sqrt(0.75))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number(value: float):
    with pytest.raises(BertworksError, match=f"row 2: target 2.0, prediction {value}"):
        scores("regression", [1.0, 2.0], [1.0, value])


# --- tags ---


def conlleval(gold: list[list[str]], predicted: list[list[str]]) -> tuple[int, int, int]:
    """Entities right, found and there, as the script of CoNLL counts them: word by word, on both
    sides at once."""
    right = found = there = 0
    for one, other in zip(gold, predicted):
        before, inside = ("O", "O"), False
        for now in [*zip(one, other), ("O", "O")]:
            steps = [(p[:1], p[1:], n[:1], n[1:]) for p, n in zip(before, now)]
            ends = [p != "O" and (pt != nt or p in "ES" or n in "BSO") for p, pt, n, nt in steps]
            starts = [n != "O" and (pt != nt or n in "BS" or p in "ESO") for p, pt, n, nt in steps]
            right += inside and all(ends)
            inside = inside and not any(ends)
            found, there = found + starts[1], there + starts[0]
            inside = inside or (all(starts) and steps[0][3] == steps[1][3])
            before = now
    return right, found, there


@settings(max_examples=300)
@given(tagged)
def test_tagging_is_that_of_conlleval(rows: list[list[tuple[str, str]]]):
    gold, predicted = halves(rows)
    ours = tagging(gold, predicted)
    right, found, there = conlleval(gold, predicted)
    assert ours["precision"] == right / max(found, 1)
    assert ours["recall"] == right / max(there, 1)
    assert ours["f1"] == pytest.approx(2 * right / max(found + there, 1))
    table = tagging_per_type(gold, predicted)
    assert sum(row["support"] for row in table.values()) == there
    words = [pair for row in rows for pair in row]
    assert ours["accuracy"] == sum(a == b for a, b in words) / max(len(words), 1)


@given(tagged)
def test_tagging_is_that_of_seqeval(rows: list[list[tuple[str, str]]]):
    gold, predicted = halves(rows)
    ours = tagging(gold, predicted)
    for name in ("precision", "recall", "f1"):
        theirs = getattr(seqeval.metrics, f"{name}_score")(gold, predicted, zero_division=0)
        assert ours[name] == pytest.approx(theirs)
    report = (
        seqeval.metrics.classification_report(gold, predicted, output_dict=True, zero_division=0)
        if any(tag != "O" for side in (gold, predicted) for row in side for tag in row)
        else {}
    )
    table = tagging_per_type(gold, predicted)
    assert [*table] == sorted(set(report) & {"X", "Y"})
    for kind, row in table.items():
        assert row == pytest.approx(
            {name.replace("f1-score", "f1"): value for name, value in report[kind].items()}
        )


@st.composite
def entities(draw: st.DrawFn) -> tuple[int, list[Span]]:
    """A number of words and entities that do not overlap."""
    found, place = [], 0
    for gap, length, kind in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from("XY")))
    ):
        found.append((place + gap, place + gap + length, kind))
        place += gap + length
    return place + draw(st.integers(0, 2)), found


@given(entities(), st.sampled_from(list(SCHEMES)), st.sampled_from(list(SCHEMES)))
def test_schemes_say_the_same(drawn: tuple[int, list[Span]], first: Scheme, second: Scheme):
    length, there = drawn
    plain = ["O"] * length
    for start, end, kind in there:
        plain[start:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - start - 1)]
    tags = convert_tags(plain, first)
    assert tag_spans(tags) == there
    strict = seqeval.scheme.Entities([tags], SCHEMES[first]).entities[0]
    assert [(e.start, e.end, e.tag) for e in strict] == there, (
        "it is valid by the letter of the scheme"
    )
    assert convert_tags(convert_tags(tags, second), first) == tags


@pytest.mark.parametrize(
    ("tags", "scheme", "expected"),
    [
        ("B-X I-X B-X O B-Y", "IOB1", "I-X I-X B-X O I-Y"),
        ("I-X I-X B-X I-Y", "IOB2", "B-X I-X B-X B-Y"),
        ("I-X I-X I-X O I-Y", "BIOES", "B-X I-X E-X O S-Y"),
        ("S-X B-X E-X", "IOB1", "I-X B-X I-X"),
        ("B I O B", "BIOES", "B E O S"),
        ("B-a-b I-a-b I-a", "IOB2", "B-a-b I-a-b B-a"),
        ("", "IOB2", ""),
    ],
)
def test_schemes_by_example(tags: str, scheme: Scheme, expected: str):
    assert convert_tags(tags.split(), scheme) == expected.split()


@pytest.mark.parametrize("tag", ["X", "PER", "", "B-", "O-PER", "X-PER"])
def test_what_is_no_tag(tag: str):
    assert tag_scheme(("O", tag)) is None


def test_a_word_without_a_tag():
    with pytest.raises(BertworksError, match="sentence 2: 1 predicted tags for 2 words"):
        tagging([["O"], ["O", "O"]], [["O"], ["O"]])


def test_spans_are_right_as_a_whole():
    gold = [[(0, 5, "person"), (9, 14, "place")], [(3, 4, "place")]]
    predicted = [[(0, 5, "person"), (9, 13, "place"), (9, 14, "person")], []]
    items = [Item(("a text",), spans, "row") for spans in gold]
    answers = [
        {"entities": [dict(zip(("start", "end", "type"), one)) for one in spans]}
        for spans in predicted
    ]
    figures = compute_metrics(TaskConfig(task="spans"), items, answers)
    assert figures == {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3}
    assert figures_by_type(*count_spans(list(zip(gold, predicted, strict=True)))) == {
        "person": {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1.0},
        "place": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2.0},
    }


@pytest.mark.parametrize(
    ("file", "entities"),
    [("wnut17/emerging.test.annotated", 1079), ("wikigold/wikigold.conll.txt", 3558)],
)
def test_real_sentences(file: str, entities: int, data_folder: Path):
    gold = [row.values["tags"] for row in RowReader(data_folder / "ner" / file)]
    blank = [["O"] * len(tags) for tags in gold]
    for scheme in SCHEMES:
        ours = tagging(gold, [convert_tags(tags, scheme) for tags in gold])
        assert (ours["precision"], ours["recall"], ours["f1"]) == (1.0, 1.0, 1.0)
    assert sum(row["support"] for row in tagging_per_type(gold, blank).values()) == entities


def test_entities_are_paired_with_those_that_overlap_them_most():
    gold = [(0, 4, "a"), (6, 8, "b"), (10, 12, "c")]
    predicted = [(6, 8, "b"), (3, 5, "a"), (0, 3, "x"), (20, 21, "d")]
    assert paired(gold, predicted) == [
        ((0, 4, "a"), (0, 3, "x")),
        ((6, 8, "b"), (6, 8, "b")),
        ((10, 12, "c"), None),
        (None, (3, 5, "a")),
        (None, (20, 21, "d")),
    ]
