"""What columns mean is inferred right for every set that we know, can be given, and every row is
checked."""

import csv
import io
import json
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import assume, given, settings, strategies as some
from pyarrow import parquet

from bertworks.checkpoints.task_config import read_task_json, save_task
from bertworks.cli.main import main
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item, Schema, fitted, infer_schema, items, refuse_rows
from bertworks.datasets.values import (
    DECIMAL_COMMA,
    NUMBERED,
    SENTENCE,
    SPLIT,
    WORD,
    EmptyTextError,
    MissingLabelError,
    choice_number,
    names_columns,
    several_labels,
    sorted_labels,
)
from bertworks.errors import BertworksError, UsageError, quoted
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.inference.predictor import predict_file
from bertworks.io.file_job import write_rows
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import ReadOptions
from bertworks.io.tables import is_code
from bertworks.runs.finetune import finetune
from bertworks.tasks.registry import TASKS
from bertworks.tasks.settings import TaskConfig
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import read_data

misplaced = TASKS["qa"].is_doubtful


def table(folder: Path, rows: list[dict[str, object]], name: str = "a.jsonl") -> RowReader:
    path = folder / name
    write_rows(path, list(dict.fromkeys(key for row in rows for key in row)), rows)
    return RowReader(path, name=name)


def csv_text(folder: Path, *lines: list[object], name: str = "a.csv") -> RowReader:
    content = io.StringIO()
    csv.writer(content).writerows(lines)
    (folder / name).write_text(content.getvalue())
    return RowReader(folder / name, name=name)


def infer(reader: RowReader, **known: object) -> Schema:
    return infer_schema(reader, TASKS, **known)[0]


def failure(reader: RowReader, schema: Schema, **options: object) -> BertworksError:
    with pytest.raises(BertworksError) as caught:
        list(items(reader, schema, TASKS, **options))
    return caught.value


REVIEWS = [
    {"review": f"It was number {n}, and I saw it.", "stars": str(n % 5 + 1)} for n in range(20)
]


# --- inference on real sets
# -------------------------------------------------------------------------------------------

PAIR = ("sentence1", "sentence2")
AB = ("text_a", "text_b")
MRPC = ("#1 String", "#2 String")
QA = ("question", "context")
NLI = ("contradiction", "entailment", "neutral")
RTE = ("entailment", "not_entailment")
WNUT = tuple(
    f"{b}-{kind}"
    for b in "BI"
    for kind in ("corporation creative-work group location person product").split()
)
JA_TYPES = (
    "その他の組織名",
    "イベント名",
    "人名",
    "地名",
    "政治的組織名",
    "施設名",
    "法人名",
    "製品名",
)
CODAH = tuple(f"column {n}" for n in range(2, 7))
JCQA = ("question", *(f"choice{n}" for n in range(5)))
REAL = {
    "glue/CoLA/train.tsv": ("classification", ("column 4",), "column 2", ("0", "1"), 8551),
    "glue/CoLA/dev.tsv": ("classification", ("column 4",), "column 2", ("0", "1"), 1043),
    "glue/SST-2/train.tsv": ("classification", ("sentence",), "label", ("0", "1"), 67349),
    "glue/SST-2/dev.tsv": ("classification", ("sentence",), "label", ("0", "1"), 872),
    "glue/MRPC/train.tsv": ("classification", MRPC, "Quality", ("0", "1"), 3667),
    "glue/MRPC/dev.tsv": ("classification", MRPC, "Quality", ("0", "1"), 408),
    "glue/MRPC/msr_paraphrase_train.txt": ("classification", MRPC, "Quality", ("0", "1"), 4076),
    "glue/MRPC/msr_paraphrase_test.txt": ("classification", MRPC, "Quality", ("0", "1"), 1725),
    "glue/STS-B/train.tsv": ("regression", PAIR, "score", (), 5749),
    "glue/STS-B/dev.tsv": ("regression", PAIR, "score", (), 1500),
    "glue/QQP/train-sample.jsonl.gz": ("classification", AB, "label", ("0", "1"), 8999),
    "glue/QQP/heldout-from-train-sample.jsonl.gz": (
        "classification",
        AB,
        "label",
        ("0", "1"),
        1000,
    ),
    "glue/MNLI/train-sample.jsonl.gz": ("classification", AB, "label", NLI, 8999),
    "glue/MNLI/heldout-from-train-sample.jsonl.gz": ("classification", AB, "label", NLI, 1000),
    "glue/MNLI/dev-matched-and-mismatched.csv.gz": (
        "classification",
        ("premise", "hypothesis"),
        "label",
        NLI,
        19647,
    ),
    "glue/QNLI/train-sample.jsonl.gz": ("classification", AB, "label", RTE, 8999),
    "glue/QNLI/heldout-from-train-sample.jsonl.gz": ("classification", AB, "label", RTE, 1000),
    "glue/QNLI/dev.tsv": ("classification", ("question", "sentence"), "label", RTE, 5463),
    "glue/RTE/train.tsv": ("classification", PAIR, "label", RTE, 2490),
    "glue/RTE/dev.tsv": ("classification", PAIR, "label", RTE, 277),
    "glue/WNLI/train.tsv": ("classification", PAIR, "label", ("0", "1"), 635),
    "glue/WNLI/dev.tsv": ("classification", PAIR, "label", ("0", "1"), 71),
    "squad/train-v1.1-sample.json.gz": ("qa", QA, "answers", (), 8200),
    "squad/dev-v1.1.json.gz": ("qa", QA, "answers", (), 10570),
    "squad/dev-v2.0.json.gz": ("qa", QA, "answers", (), 11873),
    "ner/wnut17/wnut17train.conll": ("tagging", ("tokens",), "tags", (*WNUT, "O"), 3394),
    "ner/wnut17/emerging.dev.conll": ("tagging", ("tokens",), "tags", (*WNUT, "O"), 1009),
    "ner/wnut17/emerging.test.annotated": ("tagging", ("tokens",), "tags", (*WNUT, "O"), 1287),
    "ner/wikigold/wikigold.conll.txt": (
        "tagging",
        ("tokens",),
        "tags",
        ("I-LOC", "I-MISC", "I-ORG", "I-PER", "O"),
        1696,
    ),
    "multiple-choice/codah/train.tsv": ("choice", CODAH, "column 7", (), 1665),
    "multiple-choice/codah/dev.tsv": ("choice", CODAH, "column 7", (), 556),
    "multiple-choice/codah/test.tsv": ("choice", CODAH, "column 7", (), 555),
    "ja/jaquad/train.json.gz": ("qa", QA, "answers", (), 31748),
    "ja/jaquad/dev.json.gz": ("qa", QA, "answers", (), 3939),
    "ja/jsts/train.jsonl.gz": ("regression", PAIR, "label", (), 12451),
    "ja/jsts/valid.jsonl.gz": ("regression", PAIR, "label", (), 1457),
    "ja/jcommonsenseqa/train.jsonl.gz": ("choice", JCQA, "label", (), 8939),
    "ja/jcommonsenseqa/valid.jsonl.gz": ("choice", JCQA, "label", (), 1119),
    "ja/ner-wikipedia/ner.json.gz": ("spans", ("text",), "entities", JA_TYPES, 5343),
    "ko/nsmc/ratings_train.txt.gz": ("classification", ("document",), "label", ("0", "1"), 149995),
    "ko/nsmc/ratings_test.txt.gz": ("classification", ("document",), "label", ("0", "1"), 49997),
    "ko/korsts/sts-train.tsv": ("regression", PAIR, "score", (), 5749),
    "ko/korsts/sts-dev.tsv": ("regression", PAIR, "score", (), 1500),
    "ko/korsts/sts-test.tsv": ("regression", PAIR, "score", (), 1379),
}
EMPTY = {"ko/nsmc/ratings_train.txt.gz": 5, "ko/nsmc/ratings_test.txt.gz": 3}


LONG = ("ko/nsmc/ratings_train.txt.gz", "ja/jaquad/train.json.gz")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in REAL]
)
def test_real_sets_are_understood(data_folder: Path, name: str) -> None:
    reader = RowReader(data_folder / name)
    schema, why = infer_schema(reader, TASKS)
    task, text, label, labels, count = REAL[name]
    assert (schema.task, schema.text, schema.label, schema.labels) == (task, text, (label,), labels)
    assert why[0].startswith(f"task: {task}")
    left_out = IssueCounter()
    found = list(items(reader, schema, TASKS, left_out=left_out))
    assert (len(found), left_out.count) == (count, EMPTY.get(name, 0))
    assert not any(item.label is None for item in found)
    if task == "qa":
        assert not any(map(misplaced, found))


@pytest.mark.parametrize("name", ["CoLA", "SST-2", "MRPC", "STS-B", "QNLI", "RTE", "WNLI"])
def test_test_sets_without_labels(data_folder: Path, name: str) -> None:
    reader = RowReader(data_folder / "glue" / name / "test.tsv")
    with pytest.raises(BertworksError, match="no column looks like a label"):
        infer_schema(reader, TASKS)
    if name not in ("CoLA",):
        train = infer(RowReader(data_folder / "glue" / name / ("dev.tsv")))
        found = list(items(reader, replace(train, label=()), TASKS))
        assert all(item.label is None and len(item.texts) == len(train.text) for item in found)


# --- inference on what else there is
# ----------------------------------------------------------------------------------


def test_reviews(tmp_path: Path) -> None:
    reader = table(tmp_path, REVIEWS, "reviews.csv")
    schema, why = infer_schema(reader, TASKS)
    assert schema == Schema(
        task="classification", text=("review",), label=("stars",), labels=("1", "2", "3", "4", "5")
    )
    assert why == [
        "task: classification (one label for a text)",
        "text: 'review'",
        "label: 'stars', 5 different values: 1, 2, 3, 4, 5",
        "header: yes",
        "inferred: text by its name, label by its name",
    ]
    assert list(items(reader, schema, TASKS))[1] == Item(
        ("It was number 1, and I saw it.",), "2", "reviews.csv:3"
    )


@pytest.mark.parametrize(
    ("columns", "task", "text", "label"),
    [
        (
            {"本文": "これはとても長い文章です。", "感情": ["喜び", "悲しみ"]},
            "classification",
            ("本文",),
            "感情",
        ),
        (
            {"말": "이 영화는 정말 재미있었다", "감정": ["기쁨", "슬픔"]},
            "classification",
            ("말",),
            "감정",
        ),
        (
            {"bemerkung": "Das war ein guter Film", "art": ["gut", "schlecht"]},
            "classification",
            ("bemerkung",),
            "art",
        ),
        (
            {
                "bemerkung": "Das war ein guter Film",
                "art": ["gut", "schlecht"],
                "rest": ["x", "y", *[""] * 18],
            },
            "classification",
            ("bemerkung",),
            "art",
        ),
        (
            {"lang": ["de", "en"], "text": "some words", "kind": ["a", "b", "c"]},
            "classification",
            ("text",),
            "kind",
        ),
        (
            {"title": "Title", "Text": "some words", "Topics": ["a|b", "b", "a"]},
            "multilabel",
            ("Text",),
            "Topics",
        ),
        (
            {"text": "some words", "labels": ["a, b", "b", "a", "a, b", "c, a"]},
            "multilabel",
            ("text",),
            "labels",
        ),
        (
            {"text": "some words", "labels": [["a", "b"], [], ["b"]]},
            "multilabel",
            ("text",),
            "labels",
        ),
        ({"text": "some words", "label": ["a, really", "b"]}, "classification", ("text",), "label"),
        ({"text": "some words", "score": [0.5, 1, 2.25]}, "regression", ("text",), "score"),
        ({"text": "some words", "score": [1, 2, 3]}, "classification", ("text",), "score"),
        ({"text": "some words", "price": [1.5, 20.5, 3]}, "regression", ("text",), "price"),
        (
            {"text": "some words", "label": [n * 7 for n in range(60)]},
            "regression",
            ("text",),
            "label",
        ),
        ({"text": "some words", "label": list(range(40))}, "classification", ("text",), "label"),
        ({"tokens": [["a", "b"]], "ner_tags": [[0, 3]]}, "tagging", ("tokens",), "ner_tags"),
        (
            {"ctx": "Which?", "endings": [["a", "b", "c"]], "gold": [0, 1, 2]},
            "choice",
            ("ctx", "endings"),
            "gold",
        ),
        (
            {"premise": "It was so.", "choice1": "a", "choice2": "b", "label": [0, 1]},
            "choice",
            ("premise", "choice1", "choice2"),
            "label",
        ),
        (
            {
                "video-id": "x",
                "sent1": "One.",
                "sent2": "He",
                "startphrase": "One. He",
                **{f"ending{n}": f"end {n}" for n in range(4)},
                "label": [0, 1, 2, 3],
            },
            "choice",
            ("startphrase", "ending0", "ending1", "ending2", "ending3"),
            "label",
        ),
    ],
)
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_inference(
    tmp_path: Path,
    columns: dict[str, object],
    task: str,
    text: tuple[str, ...],
    label: str,
    suffix: str,
) -> None:
    def cell(value: object, n: int) -> object:
        return value[n % len(value)] if isinstance(value, list) else f"{value} {n}"

    rows = [{name: cell(value, n) for name, value in columns.items()} for n in range(240)]
    schema = infer(table(tmp_path, rows, f"a{suffix}"))
    assert (schema.task, schema.text, schema.label) == (task, text, (label,))
    assert len(list(items(RowReader(tmp_path / f"a{suffix}"), schema, TASKS))) == 240


def test_a_mistake_among_numbers_is_named_and_does_not_make_them_classes(tmp_path: Path) -> None:
    scores = [[f"a text {n}", "high" if n == 17 else n / 10] for n in range(40)]
    reader = csv_text(tmp_path, ["text", "score"], *scores)
    schema = infer(reader)
    assert schema.task == "regression"
    with pytest.raises(BertworksError, match="'high'") as caught:
        list(items(reader, schema, TASKS))
    assert caught.value.where == "a.csv:19"
    few = [[f"a text {n}", "none" if n == 17 else n % 4 / 2] for n in range(40)]
    assert infer(csv_text(tmp_path, ["text", "score"], *few)).task == "classification"


def test_pairs_without_a_header(tmp_path: Path) -> None:
    rows = [
        [f"The first sentence, number {n}", f"The second sentence, number {n}", n % 3]
        for n in range(30)
    ]
    schema = infer(csv_text(tmp_path, *rows))
    assert (schema.text, schema.label, schema.labels) == (
        ("column 1", "column 2"),
        ("column 3",),
        ("0", "1", "2"),
    )


def test_questions_in_a_table(tmp_path: Path) -> None:
    answers = {"text": ["1973"], "answer_start": [12]}
    rows = [
        {"id": str(n), "question": f"When? {n}", "context": "It began in 1973.", "answers": answers}
        for n in range(3)
    ]
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        reader = table(tmp_path, rows, name)
        schema = infer(reader)
        assert (schema.task, schema.text, schema.label, schema.id) == (
            "qa",
            ("question", "context"),
            ("answers",),
            "id",
        )
        assert list(items(reader, schema, TASKS))[1] == Item(
            ("When? 1", "It began in 1973."),
            ((12, "1973"),),
            f"{name}:{3 if name == 'a.csv' else 2}",
            "1",
        )


def test_a_label_that_is_named_is_looked_for_in_layouts_too(tmp_path: Path) -> None:
    rows = [
        {"tokens": ["Anna", "sings"], "ner_tags": ["B-person", "O"], "pos_tags": ["NOUN", "VERB"]}
        for _ in range(20)
    ]
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        reader = table(tmp_path, rows, name)
        assert infer(reader) == Schema(
            task="tagging", text=("tokens",), label=("ner_tags",), labels=("B-person", "O")
        )
        other = Schema(
            task="tagging", text=("tokens",), label=("pos_tags",), labels=("NOUN", "VERB")
        )
        assert (
            infer(reader, label="pos_tags")
            == infer(reader, label="pos_tags", text=("tokens",))
            == other
        )
    renamed = [{"Wörter": row["tokens"], "Tags": row["ner_tags"]} for row in rows]
    assert infer(table(tmp_path, renamed, "b.jsonl"), text=("Wörter",)).task == "tagging"
    answers, gold = ({"text": [text], "answer_start": [0]} for text in ("Anna", "Anna sings."))
    requested = [
        {"question": f"Who? {n}", "context": "Anna sings.", "answers": answers, "gold": gold}
        for n in range(9)
    ]
    reader = table(tmp_path, requested, "q.jsonl")
    assert next(items(reader, infer(reader), TASKS)).label == ((0, "Anna"),)
    assert next(items(reader, infer(reader, label="gold"), TASKS)).label == ((0, "Anna sings."),)


def test_questions_of_a_squad_file_have_names_even_if_they_come_again(tmp_path: Path) -> None:
    requested = [{"id": f"q{n % 4}", "question": "Who?", "answers": []} for n in range(9)]
    (tmp_path / "a.json").write_text(
        json.dumps({"data": [{"paragraphs": [{"context": "Anna sings.", "qas": requested}]}]})
    )
    reader = RowReader(tmp_path / "a.json", name="a.json")
    assert infer(reader).id == "id"
    assert "occurs twice" in failure(reader, infer(reader)).what


@pytest.mark.parametrize(
    ("labels", "first"),
    [((0, 1, 2), 0), ((1, 2, 3), 1), ((1, 2), 0), ((0, 1, 2, 3), 0), ((3,) * 9 + (1,), 1)],
)
def test_choices_are_counted_from_one_where_the_last_is_named_and_none_is_0(
    tmp_path: Path, labels: tuple[int, ...], first: int
) -> None:
    texts = ("One.", "Two.", "Three.")
    given = [labels[n % len(labels)] for n in range(60)]
    rows = [
        {"ctx": f"Which? {n}", "endings": [*texts], "gold": label} for n, label in enumerate(given)
    ]
    schema = infer(table(tmp_path, rows))
    assert (schema.text, schema.first_choice) == (("ctx", "endings"), first)
    rows = [
        {
            "question": f"Which? {n}",
            "answer 1": "left",
            **{f"option{m}": text for m, text in enumerate(texts)},
            "answer": label,
        }
        for n, label in enumerate(given)
    ]
    schema = infer(table(tmp_path, rows, "b.csv"))
    assert (schema.text, schema.first_choice) == (
        ("question", "option0", "option1", "option2"),
        first,
    )


def test_what_is_no_choice_in_a_table_without_header(tmp_path: Path) -> None:
    def rows(texts: int, *labels: object) -> list[list[object]]:
        return [
            [*(f"The {m}. sentence of {n}" for m in range(texts)), labels[n % len(labels)]]
            for n in range(30)
        ]

    def task(*lines: list[object]) -> str:
        return infer(csv_text(tmp_path, *lines), text=("column 1",)).task

    assert infer(csv_text(tmp_path, *rows(4, 0, 1, 2))).task == "choice"
    assert task(*rows(4, 0, 0.5, 2)) == "regression"
    # two choices are rarer than three texts with a yes or no
    assert task(*rows(3, 0, 1)) == "classification"


def test_texts_of_a_table_without_header(tmp_path: Path) -> None:
    def texts(*lengths: int) -> tuple[str, ...]:
        rows = [
            [*(f"{n:03} {'word ' * 99}"[:length] for length in lengths), n % 2] for n in range(40)
        ]
        return infer(csv_text(tmp_path, *rows)).text

    assert texts(40, 30) == ("column 1", "column 2")
    assert texts(100, 30) == ("column 1",)
    assert texts(14, 9) == ("column 1",)  # too short for sentences


def test_a_known_name_over_numbers_is_no_text(tmp_path: Path) -> None:
    rows = [
        {"question": 1000 + n, "remark": f"It was number {n}.", "kind": "ab"[n % 2]}
        for n in range(40)
    ]
    assert infer(table(tmp_path, rows)).text == ("remark",)


@pytest.mark.parametrize(
    ("columns", "task", "text", "label"),
    [
        (
            {"text": "some words", "uid": ["a", "b"], "kind": ["x", "y", "z"]},
            "classification",
            ("text",),
            "kind",
        ),
        (
            {
                "text": "some words",
                "price": [n + 0.5 for n in range(2500)],
                "count": list(range(2500)),
            },
            "regression",
            ("text",),
            "price",
        ),
        (
            {"text": "some words", "words": [["a", "b", "c"]], "labels": [["x"], ["y"]]},
            "multilabel",
            ("text",),
            "labels",
        ),
        (
            {"question": "Is it?", "context": "It was.", "answer": [["c"], *["yes", "no"] * 10]},
            "classification",
            ("question", "context"),
            "answer",
        ),
        ({"text": "some words", "label": ["a|b", "c|d"]}, "multilabel", ("text",), "label"),
        (
            {
                "text": "some words",
                "label": [*(["long " * 20 + ", y", "long " * 20 + ", z"] * 9), "y", "z"],
            },
            "classification",
            ("text",),
            "label",
        ),
        ({"text": "some words", "label": list(range(2500))}, "regression", ("text",), "label"),
    ],
)
def test_inference_between_two_ways(
    tmp_path: Path, columns: dict[str, object], task: str, text: tuple[str, ...], label: str
) -> None:
    def cell(value: object, n: int) -> object:
        return value[n % len(value)] if isinstance(value, list) else f"{value} {n}"

    rows = [{name: cell(value, n) for name, value in columns.items()} for n in range(2500)]
    schema = infer(table(tmp_path, rows))
    assert (schema.task, schema.text, schema.label) == (task, text, (label,))


def test_several_labels_that_were_requested(tmp_path: Path) -> None:
    rows = [{"text": f"text {n}", "label": ("a;b", "c;d")[n % 2]} for n in range(9)]
    assert infer(table(tmp_path, rows), task="multilabel").labels == ("a", "b", "c", "d")


def test_numbers_alone_are_no_texts(tmp_path: Path) -> None:
    reader = table(tmp_path, [{"amount": 1.5 * n, "kind": "ab"[n % 2]} for n in range(40)])
    with pytest.raises(BertworksError, match="no column looks like a text"):
        infer(reader)


def test_tags_that_are_a_mistake_are_no_labels(tmp_path: Path) -> None:
    def labels(*tags: str) -> tuple[str, ...]:
        return infer(table(tmp_path, [{"tokens": ["word"], "tags": [tag]} for tag in tags])).labels

    assert labels(*["O"] * 90, *["B-person"] * 19, "0") == ("B-person", "O")
    assert labels(*["NOUN"] * 9, "B-person", "O") == ("B-person", "NOUN", "O")


def test_many_classes_can_be_requested(tmp_path: Path) -> None:
    reader = table(tmp_path, [{"text": f"text {n}", "label": f"remark {n}"} for n in range(99)])
    with pytest.raises(BertworksError, match="99 different values in 99 rows are not") as caught:
        infer(reader)
    assert str(caught.value.hint).startswith("if they are: --task classification; else name")
    assert len(infer(reader, task="classification").labels) == 99
    several = table(
        tmp_path, [{"text": f"text {n}", "label": f"remark {n}"} for n in range(2001)], "b.jsonl"
    )
    with pytest.raises(BertworksError, match="2,001 different values in 2,001 rows"):
        infer(several)


def test_numbers_may_be_classes(tmp_path: Path) -> None:
    """Whole numbers with gaps are amounts; a note says what to type if they are ids of classes."""

    def note(*numbers: float) -> str:
        rows = [{"text": f"text {n}", "label": number} for n, number in enumerate(numbers)]
        reader = table(tmp_path, rows)
        return next(x for x in infer_schema(reader, TASKS)[1] if x.startswith("label: "))

    ids = [7 * n for n in range(30)] * 5
    advice = "; if they are classes: --task classification"
    assert note(*ids) == f"label: 'label', numbers from 0 to 203{advice}"
    assert note(*(number / 4 for number in ids)) == "label: 'label', numbers from 0 to 50.75"
    assert note(*range(0, 1000, 7)) == "label: 'label', numbers from 0 to 994"


def test_one_number_and_a_mistake_are_reported_by_the_mistake(tmp_path: Path) -> None:
    reader = table(
        tmp_path,
        [{"text": f"text {n}", "score": "2.5" if n else "high"} for n in range(5)],
        "a.csv",
    )
    assert "holds 'high'" in failure(reader, infer(reader, task="regression")).what


def test_a_prompt_alone_has_no_choices(tmp_path: Path) -> None:
    reader = table(tmp_path, [{"prompt": f"text {n}", "label": n % 2} for n in range(9)])
    with pytest.raises(BertworksError, match="there are no choices"):
        infer(reader, task="choice", text=("prompt",))


def test_numbers_as_labels_keep_their_text(tmp_path: Path) -> None:
    labels = pyarrow.array([0, 1, 10, 2, None] * 4, pyarrow.int64())
    texts = pyarrow.array([f"text {n}" for n in range(20)])
    parquet.write_table(pyarrow.table({"text": texts, "label": labels}), tmp_path / "a.parquet")
    assert infer(RowReader(tmp_path / "a.parquet")).labels == ("0", "1", "2", "10")
    parquet.write_table(
        pyarrow.table({"text": texts, "label": labels.cast(pyarrow.float64())}),
        tmp_path / "b.parquet",
    )
    assert infer(RowReader(tmp_path / "b.parquet")).labels == ("0", "1", "2", "10")
    rows = [{"text": f"text {n}", "label": f"{n % 2}.0"} for n in range(10)]
    assert infer(table(tmp_path, rows, "c.csv")).labels == ("0.0", "1.0")
    assert sorted_labels(["b", "10", "9"]) == ("10", "9", "b")


def test_what_is_given_is_not_inferred(tmp_path: Path) -> None:
    rows = [
        {**row, "title": f"Title {n}", "season": "winter" if n % 3 else "summer"}
        for n, row in enumerate(REVIEWS)
    ]
    reader = table(tmp_path, rows, "a.csv")
    assert infer(reader).label == ("stars",)
    schema = infer(reader, text=("title", "review"), label="season")
    assert (schema.task, schema.text, schema.labels) == (
        "classification",
        ("title", "review"),
        ("summer", "winter"),
    )
    schema = infer(reader, task="regression")
    assert (schema.label, schema.labels) == (("stars",), ())
    assert [item.label for item in items(reader, schema, TASKS)][:3] == [1.0, 2.0, 3.0]
    assert infer(reader, task="multilabel").labels == ("1", "2", "3", "4", "5")
    assert next(item.label for item in items(reader, infer(reader, task="multilabel"), TASKS)) == (
        "1",
    )
    with pytest.raises(UsageError, match="did you mean --label season") as caught:
        infer(reader, label="seson")
    assert "review, stars, title, season" in caught.value.what
    with pytest.raises(UsageError, match="--text review"):
        infer(reader, text=("reviews",))


def test_conll_can_be_something_else_and_tables_can_be_tagging(tmp_path: Path) -> None:
    reader = csv_text(tmp_path, ["sentence", "tags"], ["EU rejects", "B-ORG O"], ["so what", "O O"])
    schema = infer(reader, task="tagging")
    assert next((item.texts, item.label) for item in items(reader, schema, TASKS)) == (
        ("EU", "rejects"),
        ("B-ORG", "O"),
    )
    bad = csv_text(tmp_path, ["sentence", "tags"], ["EU rejects", "B-ORG"], name="b.csv")
    assert failure(bad, schema).what == "2 words and 1 tags"


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (
            [{"text": f"text {n}", "label": "x"} for n in range(5)],
            "all rows with a text have the same label, 'x'",
        ),
        ([{"text": f"text {n}", "score": 2.5} for n in range(5)], "same number, 2.5"),
        ([{"tokens": ["a"], "tags": ["O"]}] * 5, "other than O"),
        (
            [{"text": f"text {n}", "label": f"another remark {n}"} for n in range(99)],
            "99 different values in 99 rows",
        ),
        ([{"text": f"text {n}"} for n in range(5)], "no column looks like a label"),
        ([{"label": n % 2} for n in range(10)], "no column looks like a text"),
        ([{"text": f"text {n}", "labels": []} for n in range(5)], "no row has a label"),
    ],
)
def test_nothing_to_learn(tmp_path: Path, rows: list[dict[str, object]], what: str) -> None:
    with pytest.raises(BertworksError) as caught:
        infer_schema(table(tmp_path, rows), TASKS)
    assert what in caught.value.what
    assert caught.value.hint
    assert caught.value.where == "a.jsonl"


def test_a_table_without_another_column(tmp_path: Path) -> None:
    """Where there is no other column, none can be named."""
    with pytest.raises(BertworksError, match="no column looks like a label") as caught:
        infer_schema(csv_text(tmp_path, ["text"], ["a film"], ["a dog"]), TASKS)
    assert caught.value.hint == "add one with the label"


def test_no_rows(tmp_path: Path) -> None:
    reader = csv_text(tmp_path, ["text", "label"])
    with pytest.raises(BertworksError, match="no rows"):
        infer_schema(reader, TASKS)
    assert "no rows" in failure(reader, Schema(task="classification", text=("text",))).what


# --- rows are checked
# -------------------------------------------------------------------------------------------------

REGRESSION = Schema(task="regression", text=("text",), label=("label",))
TAGGING = Schema(task="tagging", text=("text",), label=("label",), labels=("O",))
MULTILABEL = Schema(task="multilabel", text=("text",), label=("label",), labels=("a",))
SPANS = Schema(task="spans", text=("text",), label=("entities",), labels=("x",))
QUESTIONS = Schema(task="qa", text=("question", "context"), label=("answers",))
CHOICE = Schema(task="choice", text=("p", "a", "b"), label=("label",))
KNOWN = Schema(task="classification", text=("text",), label=("label",), labels=("neg", "pos"))


@pytest.mark.parametrize(
    ("schema", "row", "what"),
    [
        (KNOWN, {"text": "", "label": "pos"}, "the text in 'text' is empty"),
        (KNOWN, {"text": " \n", "label": "pos"}, "the text in 'text' is empty"),
        (KNOWN, {"text": "NaN", "label": "pos"}, "the text in 'text' is empty: 'NaN'"),
        (KNOWN, {"text": None, "label": "pos"}, "the text in 'text' is empty"),
        (KNOWN, {"text": 5, "label": "pos"}, "'text' holds 5, not a text"),
        (KNOWN, {"label": "pos"}, "no field 'text'"),
        (KNOWN, {"text": "a"}, "no field 'label'"),
        (KNOWN, {"text": "a", "label": "poss"}, "the label 'poss' is not known"),
        (KNOWN, {"text": "a", "label": ""}, "the label in 'label' is missing"),
        (KNOWN, {"text": "a", "label": None}, "the label in 'label' is missing"),
        (KNOWN, {"text": "a", "label": float("nan")}, "the label in 'label' is missing"),
        (
            KNOWN,
            {"text": "a", "label": "nan"},
            "the label in 'label' is missing: the cell holds 'nan'",
        ),
        (
            replace(KNOWN, missing=("N/A",)),
            {"text": "a", "label": " N/A"},
            "the label in 'label' is missing: the cell holds 'N/A'",
        ),
        (MULTILABEL, {"text": "x", "label": ["a", "b"]}, "the label 'b' is not known"),
        (MULTILABEL, {"text": "x", "label": "a;b"}, "holds 'a;b'"),
        (REGRESSION, {"text": "a", "label": "four"}, "holds 'four'"),
        (REGRESSION, {"text": "a", "label": "nan"}, "is missing"),
        (REGRESSION, {"text": "a", "label": True}, "holds True"),
        (REGRESSION, {"text": "a", "label": None}, "is missing"),
        (TAGGING, {"text": ["a", "b"], "label": ["O"]}, "2 words and 1 tags"),
        (TAGGING, {"text": ["a"], "label": ["B"]}, "'B' is not known"),
        (TAGGING, {"text": ["a", ""], "label": ["O", "O"]}, "is empty"),
        (TAGGING, {"text": [], "label": []}, "has no word"),
        (TAGGING, {"text": [1], "label": ["O"]}, ", not words"),
        (
            SPANS,
            {"text": "abc", "entities": [{"start": 1, "end": 4, "type": "x"}]},
            "from 1 to 4 is not inside its text of 3",
        ),
        (
            SPANS,
            {"text": "abc", "entities": [{"start": 1, "end": 2, "type": "y"}]},
            "'y' is not known",
        ),
        (
            SPANS,
            {"text": "abc", "entities": [{"start": 1, "end": 1, "type": "x"}]},
            "from 1 to 1 is not inside its text of 3",
        ),
        (QUESTIONS, {"question": "q", "context": "c", "answers": ["c", "d"]}, "holds ['c', 'd']"),
        (QUESTIONS, {"question": "q", "context": "c", "answers": None}, "is missing"),
        (CHOICE, {"p": "p", "a": "a", "b": "b", "label": 2}, "holds 2"),
        (CHOICE, {"p": "p", "a": "", "b": "b", "label": 1}, "'a' is empty"),
    ],
)
def test_bad_rows_are_named(
    tmp_path: Path, schema: Schema, row: dict[str, object], what: str
) -> None:
    good = {
        "classification": "pos",
        "multilabel": ["a"],
        "regression": 1,
        "tagging": ["O"],
        "choice": 0,
    }
    columns: dict[str, object] = dict.fromkeys(schema.text, "some")
    columns |= {
        schema.label[0]: good.get(schema.task, []),
        **({"text": ["some"]} if schema.task == "tagging" else {}),
    }
    path = tmp_path / "a.jsonl"
    path.write_text(
        "".join(json.dumps(one) + "\n" for one in [columns, {**columns, "entities": []}, row])
    )
    found = failure(RowReader(path, name="a.jsonl"), schema)
    assert what in found.what
    assert found.where == "a.jsonl:3"
    assert found.hint


@pytest.mark.parametrize(
    ("labels", "written", "meant"),
    [
        (("false", "true"), ("True", "FALSE", "true"), ("true", "false", "true")),
        (("0", "1"), ("1.0", "0", "1"), ("1", "0", "1")),
        (("0.0", "1.0"), ("1", "0", "1.0"), ("1.0", "0.0", "1.0")),
        (("1", "1.0"), ("1.0", "1"), ("1.0", "1")),  # two labels, if the data says so
    ],
)
def test_labels_that_programs_write_in_several_ways(
    tmp_path: Path, labels: tuple[str, ...], written: tuple[str, ...], meant: tuple[str, ...]
) -> None:
    schema = Schema(task="classification", text=("text",), label=("label",), labels=labels)
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"some,{label}\n" for label in written))
    assert tuple(item.label for item in items(RowReader(path), schema, TASKS)) == meant
    path.write_text("text,label\nsome,1.5\n")
    assert "'1.5' is not known" in failure(RowReader(path), schema).what


def test_unknown_labels_say_which_are_known(tmp_path: Path) -> None:
    found = failure(csv_text(tmp_path, ["text", "label"], ["a", "poss"]), KNOWN)
    assert (found.where, found.hint) == ("a.csv:2", "did you mean 'pos'? the labels are: neg, pos")


def test_missing_columns(tmp_path: Path) -> None:
    reader = csv_text(tmp_path, ["texts", "label"], ["a", "pos"])
    with pytest.raises(UsageError, match="did you mean --text texts"):
        next(items(reader, KNOWN, TASKS))
    with pytest.raises(UsageError, match="no column 'label'"):
        next(items(csv_text(tmp_path, ["text", "other"], ["a", "pos"], name="b.csv"), KNOWN, TASKS))


def test_rows_without_labels(tmp_path: Path) -> None:
    reader = csv_text(tmp_path, ["text", "other"], ["a", "pos"])
    assert list(items(reader, replace(KNOWN, label=()), TASKS)) == [Item(("a",), None, "a.csv:2")]
    (tmp_path / "b.txt").write_text("Some text.\nMore, and no label.\n")
    plain = RowReader(tmp_path / "b.txt", name="b.txt")
    review = Schema(task="classification", text=("review",), labels=("1", "2"), id="id")
    assert fitted(review, plain).text == ("text",)
    assert [item.texts for item in items(plain, review, TASKS)] == [
        ("Some text.",),
        ("More, and no label.",),
    ]
    words = Schema(task="tagging", text=("tokens",), labels=("O",))
    assert next(item.texts for item in items(plain, words, TASKS)) == ("Some", "text.")


def test_texts_without_labels_are_guessed_from_the_beginning(tmp_path: Path) -> None:
    rows = [{"id": n, "stars": n % 5, "review": f"It was number {n}."} for n in range(2000)]
    schema, why = infer_schema(
        table(tmp_path, rows, "a.csv"), TASKS, task="classification", labelled=False
    )
    assert schema == Schema(task="classification", text=("review",), id="id")
    assert why[1:] == [
        "text: 'review'",
        "name of a row: 'id'",
        "not used: 'stars'",
        "header: yes",
        "inferred: text by its name",
    ]
    choices = [{"question": f"which {n}?", "choice0": "a", "choice1": "b"} for n in range(5)]
    schema = infer(table(tmp_path, choices, "b.csv"), task="choice", labelled=False)
    assert (schema.task, schema.text) == ("choice", ("question", "choice0", "choice1"))
    same = table(tmp_path, [{"column": "a"}] * 10, "c.csv")
    assert infer(same, task="classification", labelled=False).text == ("column",)
    # for one who reads that far
    (tmp_path / "d.jsonl").write_text('{"text": "a film"}\n' * 1000 + "no JSON\n")
    assert infer(RowReader(tmp_path / "d.jsonl"), task="classification", labelled=False).text == (
        "text",
    )


def test_empty_texts_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    reader = csv_text(
        tmp_path, ["text", "label"], ["a", "pos"], ["", "pos"], ["b", "neg"], ["nan", "neg"]
    )
    with pytest.raises(EmptyTextError):
        list(items(reader, KNOWN, TASKS))
    left_out = IssueCounter()
    assert [item.texts for item in items(reader, KNOWN, TASKS, left_out=left_out)] == [
        ("a",),
        ("b",),
    ]
    assert (left_out.count, left_out.places) == (2, ["a.csv:3", "a.csv:5 has 'nan'"])


@pytest.mark.parametrize("word", ["N/A", "NA", "n/a", "#N/A", "null"])
def test_words_for_a_missing_label_are_settled_by_an_option(tmp_path: Path, word: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"text,label\na,pos\nb,{word}\nc,neg\nd,unknown\ne,\n")

    def labels(**options: Any) -> tuple[list[Any], int]:
        reader = RowReader(path, ReadOptions(**options))
        schema = Schema(task="classification", text=("text",), label=("label",))
        labels_of_rows = [item.label for item in items(reader, schema, TASKS)]
        return labels_of_rows, reader.unlabelled.count

    with pytest.raises(MissingLabelError, match="as programs write a cell without") as error:
        labels()
    assert f"--missing {quoted(word)}" in str(error.value.hint)
    assert "--missing-none" in str(error.value.hint)
    assert labels(missing=(word,)) == (["pos", "neg", "unknown"], 2)
    assert labels(missing=("unknown",)) == (["pos", "neg"], 3)
    options = {"missing_none": True, "skip_unlabelled": True}
    assert labels(**options) == (["pos", word, "neg", "unknown"], 1)


def test_ids(tmp_path: Path) -> None:
    rows = [
        {"id": n if n != 150 else 7, "text": f"text {n}", "label": "ab"[n % 2]} for n in range(300)
    ]
    reader = table(tmp_path, rows)
    schema = infer(reader)
    assert schema.id == "id"
    found = failure(reader, schema)
    assert (found.where, found.what) == (
        "a.jsonl:151",
        "the id '7' in column 'id' occurs twice; first at a.jsonl:8",
    )
    assert [item.id for item in items(reader, replace(schema, label=()), TASKS)][:2] == ["0", "1"]
    assert (
        infer(table(tmp_path, [{**row, "id": n % 9} for n, row in enumerate(rows)], "b.csv")).id
        is None
    )
    assert (
        infer(table(tmp_path, [{**row, "id": n % 280} for n, row in enumerate(rows)], "c.csv")).id
        == "id"
    )
    assert (
        infer(table(tmp_path, [{**row, "id": n % 4} for n, row in enumerate(rows[:5])], "d.csv")).id
        == "id"
    )


def test_misplaced_answers_are_reported_and_no_error(tmp_path: Path) -> None:
    rows = [
        {
            "question": "q?",
            "context": "It began.",
            "answers": [{"text": "began", "answer_start": n}],
        }
        for n in (3, 4, -1)
    ]
    reader = table(tmp_path, rows)
    assert [misplaced(item) for item in items(reader, infer(reader), TASKS)] == [False, True, True]
    assert not misplaced(Item(("q", "c"), (), "a:1"))


def test_choices_by_number_letter_and_text(tmp_path: Path) -> None:
    def labels(*given: object) -> list[int]:
        rows = [
            {"question": "which?", "choice_a": "left", "choice_b": "right", "answer": one}
            for one in given
        ]
        reader = table(tmp_path, rows)
        return [item.label for item in items(reader, infer(reader), TASKS)]

    assert labels(0, 1, 0) == [0, 1, 0]
    assert labels(1, 2, 1) == [0, 1, 0]
    assert labels("A", "b") == [0, 1]
    assert labels("right", "left") == [1, 0]


def test_what_is_before_the_first_choice_is_none() -> None:
    assert [choice_number(one, ["left", "right"], 1) for one in ("0", "1", "2", "3")] == [
        None,
        0,
        1,
        None,
    ]


def test_a_label_that_is_given_twice_is_one() -> None:
    assert several_labels(["b", "a", "b"], "") == several_labels("b|a|b", "|") == ["b", "a"]


def test_documents_of_conll(tmp_path: Path) -> None:
    text = "-DOCSTART- O\n\nEU B-ORG\n\nrejects O\n\n-DOCSTART- O\n\nall O\n"
    (tmp_path / "a.conll").write_text(text)
    reader = RowReader(tmp_path / "a.conll")
    assert [item.document for item in items(reader, infer(reader), TASKS)] == ["1", "1", "2"]
    (tmp_path / "b.conll").write_text(text.replace("-DOCSTART- O\n\n", ""))
    reader = RowReader(tmp_path / "b.conll")
    assert [item.document for item in items(reader, infer(reader), TASKS)] == ["", "", ""]


# --- one bad row is named, and does not change what the others mean
# ---------------------------------------------------

TOKENS = [{"tokens": ["Anna", "sings", str(n)], "tags": ["B-person", "O", "O"]} for n in range(20)]
QUESTIONS = [
    {
        "question": f"Who sings {n}?",
        "context": "Anna sings.",
        "answers": {"text": ["Anna"], "answer_start": [0]},
    }
    for n in range(20)
]
MANY = [{"text": f"It was number {n}.", "labels": ["x", "y"][: n % 3]} for n in range(20)]
CHOICES = [
    {"startphrase": f"Number {n}", "ending0": "goes", "ending1": "stays", "label": str(n % 2)}
    for n in range(20)
]


@pytest.mark.parametrize(
    ("rows", "bad", "task", "what"),
    [
        (TOKENS, {"tokens": ["Anna", "sings"], "tags": ["O"]}, "tagging", "2 words and 1 tags"),
        (
            QUESTIONS,
            {"question": "Who?", "context": "Anna.", "answers": {"text": ["Anna"]}},
            "qa",
            "holds {'text'",
        ),
        (MANY, {"text": "It was one.", "labels": "x"}, "multilabel", "holds 'x'"),
        (
            CHOICES,
            {"startphrase": "One", "ending0": "a", "ending1": "b", "label": "5"},
            "choice",
            "holds '5'",
        ),
        (
            CHOICES,
            {"startphrase": "One", "ending0": "a", "ending1": "b", "label": "-1"},
            "choice",
            "holds '-1'",
        ),
        (
            REVIEWS,
            {"review": "It was one.", "stars": {"name": "n"}},
            "classification",
            "holds {'name': 'n'}",
        ),
    ],
)
def test_one_bad_row_is_named(rows: list, bad: dict, task: str, what: str, tmp_path: Path) -> None:
    reader = table(tmp_path, [*rows, bad])
    try:
        schema = infer(reader)
        assert schema.task == task
        error = failure(reader, schema)
    except BertworksError as named_early:
        error = named_early
    assert what in str(error)
    assert error.where == "a.jsonl:21"


@pytest.mark.parametrize(
    "spans",
    [
        [{"start": 0, "end": 4, "type": "x"}],
        [{"start_offset": 0, "end_offset": 4, "label": "x"}],
        [[0, 4, "x"]],
    ],
)
def test_spans_in_a_cell_have_any_usual_layout(spans: list[object], tmp_path: Path) -> None:
    rows = [{"text": f"Anna sings {n}", "entities": json.dumps(spans)} for n in range(9)]
    reader = table(tmp_path, rows, "a.csv")
    found = list(items(reader, infer(reader, task="spans", label="entities"), TASKS))
    assert [item.label for item in found] == [((0, 4, "x"),)] * 9


@pytest.mark.parametrize("task", ["tagging", "multilabel"])
def test_rows_that_all_have_errors_are_all_named(task: str, tmp_path: Path) -> None:
    reader = table(tmp_path, [{"tokens": ["a", "b"], "labels": {"x": n}} for n in range(3)])
    with pytest.raises(BertworksError, match="3 rows") as caught:
        infer(reader, task=task, text=("tokens",), label="labels")
    assert [f"a.jsonl:{n}: " in caught.value.what for n in (1, 2, 3)] == [True] * 3


def test_lists_as_pandas_writes_them_are_named(tmp_path: Path) -> None:
    rows = [[f"It was number {n}.", "['x', 'y']"] for n in range(20)]
    with pytest.raises(BertworksError, match="20 rows") as caught:
        infer(csv_text(tmp_path, ["text", "labels"], *rows))
    assert "a.csv:2: the label in 'labels' holds" in caught.value.what


def test_several_labels_in_a_cell_where_it_is_requested(tmp_path: Path) -> None:
    cells = ["x,y", "x", "", "z, x"]
    reader = csv_text(
        tmp_path, ["text", "labels"], *([f"It was number {n}.", cells[n % 4]] for n in range(8))
    )
    schema = infer(reader, task="multilabel")
    assert (schema.separator, schema.labels) == (",", ("x", "y", "z"))
    assert [item.label for item in items(reader, schema, TASKS)][:4] == [
        ("x", "y"),
        ("x",),
        (),
        ("z", "x"),
    ]


def test_an_id_that_stands_twice_is_named_in_small_files_too(tmp_path: Path) -> None:
    rows = [{"id": f"q{n}", **row} for n, row in enumerate(REVIEWS)]
    rows[7]["id"] = "q3"
    reader = table(tmp_path, rows)
    assert failure(reader, infer(reader)).where == "a.jsonl:8"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"text": ("review", "more", "note"), "label": "stars"}, "not 3 columns"),
        ({"text": ("review", "review")}, "one column is named twice"),
        ({"text": ("review",), "label": "review"}, "one column is named twice"),
        ({"text": ("review",), "task": "qa", "label": "stars"}, "not 1 columns"),
        ({"text": ("review", "more"), "task": "spans", "label": "stars"}, "not 2 columns"),
    ],
)
def test_columns_that_do_not_suit_the_task_are_refused(
    options: dict, what: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=what):
        infer(
            table(tmp_path, [row | {"more": "some words", "note": "n"} for row in REVIEWS]),
            **options,
        )


SUBJECTS = (
    "the old ferry,a quiet street,her brother,our little shop,the night train,every second page"
).split(",")
VERBS = (
    "was late again,felt like home,told us nothing new,never opened on time,made me "
    "smile,cost too much"
).split(",")
CITIES = ("Oslo", "Kyoto", "Lima")


def sentence(n: int) -> str:
    return (
        f"{SUBJECTS[n % 6]} {VERBS[n // 6 % 6]} and we {'stayed' if n % 5 else 'left'} until "
        f"{n % 23} past {n // 7}"
    )


def columns_file(
    path: Path, columns: dict[str, list[Any]], *, named: bool = True, delimiter: str = ","
) -> Path:
    content = io.StringIO()
    writer = csv.writer(content, delimiter=delimiter)
    writer.writerows([list(columns)] if named else [])
    writer.writerows(zip(*columns.values(), strict=True))
    path.write_text(content.getvalue())
    return path


def meaning(
    path: Path, read: ReadOptions = ReadOptions(), **known: Any
) -> tuple[Schema, list[Any]]:
    reader = RowReader(path, read)
    schema, _ = infer_schema(reader, TASKS, **known)
    return schema, [item.label for item in items(reader, schema, TASKS)]


def refusal(path: Path, read: ReadOptions = ReadOptions(), **known: Any) -> BertworksError:
    with pytest.raises(BertworksError) as caught:
        infer_schema(RowReader(path, read), TASKS, **known)
    assert caught.value.hint
    assert str(path) in (caught.value.where or "")
    return caught.value


TEXTS = [sentence(n) for n in range(60)]


# --- columns of 0 and 1
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [("0", "1"), ("False", "True"), ("no", "yes"), (0, 1)])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_column_for_each_label(tmp_path: Path, kind: tuple[Any, Any], suffix: str) -> None:
    flags = {
        name: [kind[n % every == 0] for n in range(60)]
        for name, every in (("rude", 2), ("late", 3), ("odd", 5))
    }
    columns = {"id": [f"a{n}" for n in range(60)], "remark": TEXTS, **flags}
    path = tmp_path / f"a{suffix}"
    if suffix == ".csv":
        columns_file(path, columns)
    else:
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    schema, labels = meaning(path)
    assert (schema.task, schema.text, schema.label) == (
        "multilabel",
        ("remark",),
        ("rude", "late", "odd"),
    )
    assert schema.labels == ("rude", "late", "odd")
    assert labels[:7] == [
        ("rude", "late", "odd"),
        (),
        ("rude",),
        ("late",),
        ("rude",),
        ("odd",),
        ("rude", "late"),
    ]
    assert meaning(path, task="multilabel")[0] == schema
    assert meaning(path, label=["odd", "rude"])[0].labels == ("odd", "rude")
    alone, labels = meaning(path, label="late")
    assert (alone.task, len(set(labels))) == ("classification", 2)
    data = read_data(path)
    assert "label: 3 columns, each for one label: rude, late, odd" in data.notes


def test_columns_of_labels_that_are_not_safe(tmp_path: Path) -> None:
    flags = {"rude": [n % 2 for n in range(60)], "late": [n % 3 // 2 for n in range(60)]}
    always = columns_file(tmp_path / "a.csv", {"remark": TEXTS, **flags, "seen": [1] * 60})
    assert meaning(always)[0].label == ("rude", "late")
    assert "'seen' is true of every row" in refusal(always, label=["rude", "seen"]).what
    words = columns_file(
        tmp_path / "b.csv",
        {"remark": TEXTS, **flags, "read": [("no", "yes")[n % 2] for n in range(60)]},
    )
    # written in another way: is it another kind of column?
    assert "'rude' (0, 1)" in refusal(words).what
    apart = columns_file(
        tmp_path / "c.csv", {"rude": flags["rude"], "remark": TEXTS, "late": flags["late"]}
    )
    assert "--label rude" in (refusal(apart).hint or "")
    known = columns_file(
        tmp_path / "d.csv", {"remark": TEXTS, "quality": flags["rude"], "late": flags["late"]}
    )
    assert "'quality'" in refusal(known).what
    one = columns_file(tmp_path / "e.csv", {"remark": TEXTS, "rude": flags["rude"]})
    assert meaning(one)[0].task == "classification"
    assert "named only 0 and 1" in refusal(one, task="multilabel").what
    bad = columns_file(
        tmp_path / "f.csv",
        {"remark": TEXTS, **{name: [*ones[:-1], -1] for name, ones in flags.items()}},
    )
    with pytest.raises(BertworksError, match="'rude' holds '-1'") as caught:
        read_data(bad)
    assert caught.value.where == f"{bad}:61"
    with pytest.raises(UsageError, match="regression reads one label, not several: rude, late"):
        read_data(one.with_name("a.csv"), task="regression", label=["rude", "late"])


def test_lists_of_0_and_1(tmp_path: Path) -> None:
    rows = [{"text": text, "labels": [n % 2, n % 3 // 2, 0]} for n, text in enumerate(TEXTS)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "--label-names" in (refusal(path).hint or "")
    schema, labels = meaning(path, ReadOptions(label_names="rude, late,odd"))
    assert (schema.task, schema.labels) == ("multilabel", ("rude", "late", "odd"))
    assert labels[:6] == [(), ("rude",), ("late",), ("rude",), (), ("rude", "late")]
    with pytest.raises(BertworksError, match="60 rows cannot be used"):
        meaning(path, ReadOptions(label_names="rude,late"))
    cells = columns_file(
        tmp_path / "a.csv", {"text": TEXTS, "marks": [f"{n % 2} {n % 3 // 2}" for n in range(60)]}
    )
    assert meaning(cells, ReadOptions(label_names="rude,late", label_separator=" "))[1] == [
        tuple(name for name, flag in (("rude", n % 2), ("late", n % 3 // 2)) if flag)
        for n in range(60)
    ]


def test_a_separator_that_is_named(tmp_path: Path) -> None:
    cells = ["sea / wind" if n % 2 else "sun" for n in range(60)]
    path = columns_file(tmp_path / "a.csv", {"text": TEXTS, "label": cells})
    assert meaning(path)[0].task == "classification"
    schema, labels = meaning(path, ReadOptions(label_separator="/"))
    assert (schema.task, schema.labels, labels[1]) == (
        "multilabel",
        ("sea", "sun", "wind"),
        ("sea", "wind"),
    )


def test_the_columns_of_several_labels_are_the_labels(tmp_path: Path) -> None:
    task = TaskConfig(task="multilabel", labels=("b", "a"), text=("text",), label=("a", "b"))
    save_task(task, tmp_path)
    assert read_task_json(tmp_path / "task.json").label == ("a", "b")
    content = json.loads((tmp_path / "task.json").read_text()) | {"label": ["a", "c"]}
    (tmp_path / "task.json").write_text(json.dumps(content))
    with pytest.raises(BertworksError, match="are not the labels"):
        read_task_json(tmp_path / "task.json")


# --- what is no text, and what is no label
# ----------------------------------------------------------------------------


def test_one_word_per_row(tmp_path: Path) -> None:
    words = "Ada Lovelace lived in London and wrote for the engine".split() * 6
    tags = ["B-person", "I-person", "O", "O", "B-place", "O", "O", "O", "O", "O"] * 6
    marks = [f"Sentence: {n // 10}" if n % 10 == 0 else "" for n in range(60)]
    pos = ["NNP", "NNP", "VBD", "IN", "NNP", "CC", "VBD", "IN", "DT", "NN"] * 6
    path = columns_file(
        tmp_path / "a.csv", {"Sentence #": marks, "Word": words, "POS": pos, "Tag": tags}
    )
    for known in ({}, {"task": "tagging", "text": ["Word"], "label": "Tag", "group": "Sentence #"}):
        error = refusal(path, **known)
        assert "each row holds one word: 'Word'" in error.what
        assert "--sentence-column 'Sentence #' --text Word --label Tag" in (error.hint or "")
    for columns in (
        {"a": words, "b": tags},
        {"token": words, "upos": pos},
        {"n": range(60), "form": words, "ner": tags},
    ):
        assert "each row holds one word" in refusal(columns_file(tmp_path / "b.csv", columns)).what
    names = columns_file(
        tmp_path / "c.csv",
        {"name": [f"{a}{b}" for a in "BLMNR" for b in "aeioulmnrstv"], "kind": ["x", "y"] * 30},
    )
    assert meaning(names, text=["name"], label="kind")[0].task == "classification"


@pytest.mark.parametrize(
    "codes",
    [
        [f"2024-01-{n % 28 + 1:02} 10:{n:02}" for n in range(60)],
        [f"{n % 28 + 1} March 20{n:02}" for n in range(60)],
        [f"user_{n}" for n in range(60)],
        [f"https://example.org/{n}/page" for n in range(60)],
        [f"Sentence: {n}" for n in range(60)],
        [f"{n:08}-7c1e-4f" for n in range(60)],
        [f"2024年3月{n % 28 + 1}日 {n}" for n in range(60)],
        [f"anna{n}@example.org" for n in range(60)],
    ],
)
def test_codes_are_no_texts(tmp_path: Path, codes: list[str]) -> None:
    kinds = [("x", "y")[n % 2] for n in range(60)]
    path = columns_file(tmp_path / "a.csv", {"posted": codes, "kind": kinds})
    schema, notes = infer_schema(RowReader(path), TASKS)
    assert schema.text == ("posted",)  # nothing else is left
    assert any("'posted' holds dates, ids, addresses or other codes" in note for note in notes)
    assert meaning(path, text=["posted"])[0].text == ("posted",)
    assert meaning(
        columns_file(tmp_path / "b.csv", {"posted": codes, "kind": kinds, "remark": TEXTS})
    )[0].text == ("remark",)


def test_texts_that_look_like_codes_in_part_are_texts(tmp_path: Path) -> None:
    for texts in (
        ["2018年に開店した店です、とてもよかった" + "よ" * n for n in range(60)],
        [f"gr8 film no {n}" for n in range(60)],
    ):
        path = columns_file(
            tmp_path / "a.csv", {"remark": texts, "kind": [("x", "y")[n % 2] for n in range(60)]}
        )
        assert meaning(path)[0].text == ("remark",)


def test_parts_of_texts(tmp_path: Path) -> None:
    offsets = [n % 7 * 3 for n in range(60)]
    requested = {
        "context": TEXTS,
        "question": TEXTS[::-1],
        "answer_text": CITIES * 20,
        "answer_start": offsets,
    }
    assert (
        "'answer_start' holds places in a text"
        in refusal(columns_file(tmp_path / "a.csv", requested)).what
    )
    spans = columns_file(
        tmp_path / "b.csv",
        {"text": TEXTS, "start": offsets, "end": [n + 4 for n in offsets], "label": CITIES * 20},
    )
    assert "'start' holds places in a text" in refusal(spans).what
    assert meaning(spans, label="label")[0].labels == tuple(sorted(CITIES))


def test_rows_for_evaluation(tmp_path: Path) -> None:
    columns = {
        "text": TEXTS,
        "part": ["train"] * 40 + ["valid"] * 10 + ["test"] * 10,
        "label": ["x", "y"] * 30,
    }
    path = columns_file(tmp_path / "a.csv", columns)
    error = refusal(path)
    assert "'part' divides the rows (train, valid, test)" in error.what
    assert "--dev" in (error.hint or "")
    notes = infer_schema(RowReader(path), TASKS, label="label")[1]
    assert "all rows are used, though 'part' divides them" in notes
    assert meaning(columns_file(tmp_path / "b.csv", columns | {"part": ["train"] * 60}))[
        0
    ].label == ("label",)


def test_words_that_count_and_words_that_are_all_the_same(tmp_path: Path) -> None:
    def conll(*first: str) -> Path:
        rows = (
            f"{first[n % len(first)]}\tword{n}\t{'B-x' if n % 4 == 0 else 'O'}" for n in range(80)
        )
        lines = (line + "\n" * (n % 4 == 3) for n, line in enumerate(rows))
        (tmp_path / "a.conll").write_text("\n".join(lines) + "\n")
        return tmp_path / "a.conll"

    for numbers in (("1", "2", "3", "4"), ("0", "1", "2", "3")):
        path = conll(*numbers)
        assert "count" in refusal(path, ReadOptions(columns="word=1,tag=3")).what
        assert next(iter(RowReader(path))).values["tokens"] == ["word0", "word1", "word2", "word3"]
        assert meaning(path)[0].task == "tagging"
    error = refusal(conll("bc/cctv/00"))
    assert "are all the same" in error.what
    assert "--columns word=2,tag=4" in (error.hint or "")
    assert meaning(conll("one", "and", "one", "2"))[0].task == "tagging"


def test_decimal_commas(tmp_path: Path) -> None:
    marks = [f"{n % 9},{n % 4}" for n in range(60)]
    for name in ("score", "wert"):
        path = columns_file(tmp_path / "a.csv", {"text": TEXTS, name: marks}, delimiter=";")
        error = refusal(path)
        assert "decimal comma" in error.what
        assert "--decimal ," in (error.hint or "")
        schema, labels = meaning(path, ReadOptions(decimal=","))
        assert (schema.task, schema.separator) == ("regression", "")
        assert labels == [n % 9 + n % 4 / 10 for n in range(60)]
        assert meaning(path, ReadOptions(label_separator=","))[0].task == "multilabel"
    thousands = columns_file(
        tmp_path / "b.csv",
        {"text": TEXTS, "wert": [f"1.{n:03},5" for n in range(60)]},
        delimiter=";",
    )
    assert meaning(thousands, ReadOptions(decimal=","))[1][7] == 1007.5
    points = columns_file(
        tmp_path / "c.csv", {"text": TEXTS, "wert": [f"{n},5" if n else "0.5" for n in range(60)]}
    )
    with pytest.raises(BertworksError, match=r"holds '0.5'"):
        meaning(points, ReadOptions(decimal=","))


def test_several_columns_could_be_the_label(tmp_path: Path) -> None:
    kinds, grades = ["x", "y"] * 30, ["a", "b", "c"] * 20
    error = refusal(
        columns_file(tmp_path / "a.csv", {"remark": TEXTS, "kind": kinds, "city": CITIES * 20})
    )
    assert "'kind' (x, y), 'city' (Oslo, Kyoto, Lima)" in error.what
    assert (
        "'sentiment' (x, y)"
        in refusal(
            columns_file(tmp_path / "b.csv", {"text": TEXTS, "topic": grades, "sentiment": kinds})
        ).what
    )
    by_name = columns_file(
        tmp_path / "c.csv", {"remark": TEXTS, "city": CITIES * 20, "label": kinds}
    )
    schema, notes = infer_schema(RowReader(by_name), TASKS)
    assert schema.label == ("label",)
    assert notes[-2:] == [
        "header: yes",
        "inferred: text by its values, label by its name; another label could be: 'city'",
    ]
    assert (
        infer_schema(RowReader(by_name), TASKS, text=["remark"], label="label")[1][-1]
        == "header: yes"
    )


def test_no_text_is_dropped(tmp_path: Path) -> None:
    kinds = ["x", "y"] * 30
    path = columns_file(tmp_path / "a.csv", {"remark": TEXTS, "reply": TEXTS[::-1], "kind": kinds})
    assert "several columns hold texts: 'remark', 'reply'" in refusal(path).what
    assert meaning(path, text=["reply", "remark"])[0].text == ("reply", "remark")
    titles = columns_file(
        tmp_path / "b.csv",
        {
            "title": [text[:16] for text in TEXTS],
            "body": [text * 3 for text in TEXTS],
            "kind": kinds,
        },
    )
    assert meaning(titles)[0].text == ("body",)
    few = columns_file(
        tmp_path / "c.csv",
        {"note": [text if n < 20 else "" for n, text in enumerate(TEXTS)], "kind": kinds},
    )
    error = refusal(few)
    assert "only 20 of 60 rows have a text in 'note'" in error.what


def test_a_header_that_comes_again(tmp_path: Path) -> None:
    path = columns_file(
        tmp_path / "a.csv", {"text": [*TEXTS, "text"], "label": [*["x", "y"] * 30, "label"]}
    )
    with pytest.raises(BertworksError, match="come again as a row") as caught:
        read_data(path)
    assert caught.value.where == f"{path}:62"


# --- headers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "rows", "named"),
    [
        (
            ["v1", "v2", "", "", ""],
            [["ham" if n % 3 else "spam", TEXTS[n], "", "", ""] for n in range(60)],
            True,
        ),
        (["", "remark", "kind"], [[n, TEXTS[n], "xy"[n % 2]] for n in range(60)], True),
        (["the film was good and we stayed"], [[text] for text in TEXTS], False),
        (["awful plot"], [[text] for text in TEXTS], True),
        (["great"], [["bad"], ["so so"], ["good"]], None),
        (["Lob"], [["Tadel"], ["Ruhm"]], None),
        (["とても楽しい映画でしたまた見たい"], [["つまらない映画でした"], ["よかった"]], False),
        (["text"], [["bad"], ["so so"]], True),
        (["What is it about", "rank"], [[TEXTS[n], n] for n in range(60)], None),
        (
            ["my card never arrived and I do not know who can help me", "card_arrival"],
            [[TEXTS[n], f"intent_{n % 50}"] for n in range(60)],
            False,
        ),
        (["remark", "intent"], [[TEXTS[n], f"intent_{n % 5}"] for n in range(60)], True),
        (["good old days", "pos"], [["bad", "neg"], ["fine", "pos"]], False),
        (["some words", "3.5"], [[TEXTS[n], n / 2] for n in range(60)], False),
    ],
)
def test_whether_the_first_row_is_a_header(
    first: list[str], rows: list[list[Any]], named: bool | None
) -> None:
    assert names_columns(first, [list(map(str, row)) for row in rows]) is named


def test_a_header_in_doubt_is_requested(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("great\nbad\nso so\n")
    with pytest.raises(UsageError, match="does the first row name the columns") as caught:
        RowReader(tmp_path / "a.csv")
    assert caught.value.hint == "--header if so, else --no-header"
    assert RowReader(tmp_path / "a.csv", ReadOptions(header=True)).columns == ["great"]
    assert len(list(RowReader(tmp_path / "a.csv", ReadOptions(header=False)))) == 3
    assert RowReader(tmp_path / "a.csv", known=("great",)).columns == ["great"]


# --- tables of known meaning
# ------------------------------------------------------------------------------------------


@some.composite
def tables(draw: some.DrawFn) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Columns in any order, and what they mean."""
    rows = draw(some.integers(40, 80))
    numbers = random.Random(draw(some.integers(0, 10**6)))
    task = draw(
        some.sampled_from(["classification", "flags", "regression", "commas", "listed", "pair"])
    )
    texts = [sentence(numbers.randrange(500)) + f" {n}" for n in range(rows)]
    meant: dict[str, Any] = {
        "task": task,
        "text": [draw(some.sampled_from(["text", "review", "bemerkung", "v2"]))],
    }
    columns: dict[str, list[Any]] = {meant["text"][0]: texts}
    if task == "pair":
        first, second = draw(
            some.sampled_from(
                [("sentence1", "sentence2"), ("question", "passage"), ("frage", "satz")]
            )
        )
        columns, meant["text"] = {first: texts, second: texts[::-1]}, [first, second]
    name = draw(some.sampled_from(["label", "Stimmung", "v1", "rating"]))
    match task:
        case "classification" | "pair":
            classes = draw(
                some.sampled_from(
                    [("ham", "spam"), ("0", "1", "2"), ("yes", "no"), ("B1", "B2", "C1")]
                )
            )
            columns[name] = [numbers.choice(classes) for _ in range(rows)]
            columns[name][: len(classes) * 3] = classes * 3
            meant |= {"label": [name], "values": columns[name]}
        case "flags":
            names = draw(
                some.sampled_from([("toxic", "insult"), ("joy", "fear", "anger", "trust")])
            )
            flags = {one: [int(numbers.random() < 0.4) for _ in range(rows)] for one in names}
            for one in names:
                flags[one][:2] = [0, 1]
            columns |= flags
            meant |= {"label": list(names)}
            meant["values"] = [tuple(one for one in names if flags[one][n]) for n in range(rows)]
        case "regression" | "commas":
            amounts = [round(numbers.random() * 9, 1) + 0.05 for _ in range(rows)]
            columns[name] = [
                f"{x:.2f}".replace(".", "," if task == "commas" else ".") for x in amounts
            ]
            meant |= {"label": [name], "values": [float(f"{x:.2f}") for x in amounts]}
        case "listed":
            some_of = [
                tuple(sorted(numbers.sample(["a1", "b2", "c3"], numbers.randrange(1, 3))))
                for _ in range(rows)
            ]
            some_of[:4] = [("a1",), ("b2", "c3"), ("a1", "c3"), ("b2",)]
            columns[name] = ["|".join(labels) for labels in some_of]
            meant |= {"label": [name], "values": some_of}
    extras = {
        "id": [f"r{n}" for n in range(rows)],
        "posted": [f"2024-02-{n % 28 + 1:02}T10:00:00Z" for n in range(rows)],
        "day": [f"2024-02-{n % 3 + 1:02}" for n in range(rows)],
        "part": ["train" if n % 3 else "test" for n in range(rows)],
        "city": [CITIES[n % 3] for n in range(rows)],
        "answer_start": [n % 5 * 7 for n in range(rows)],
        "length": list(range(rows)),
        # Beside labels of 0 and 1, nothing says that one more such column is no label.
        "seen": [["no", "yes"][n % 2] if task == "flags" else n % 2 for n in range(rows)],
        "reply": [sentence(n * 31) for n in range(rows)],
        "empty": [""] * rows,
    }
    for extra in draw(some.lists(some.sampled_from(sorted(extras)), unique=True, max_size=3)):
        columns[extra] = extras[extra]
    order = draw(some.permutations(list(columns)))
    return {one: columns[one] for one in order}, meant


@settings(max_examples=80, deadline=None)
@given(tables(), some.booleans())
def test_tables_of_known_meaning_are_understood_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[dict[str, list[Any]], dict[str, Any]],
    named: bool,
) -> None:
    columns, meant = case
    assume(named or "reply" not in columns)  # two texts without names are read as a pair
    path = columns_file(tmp_path_factory.mktemp("t") / "a.csv", columns, named=named)
    rows = len(columns[meant["text"][0]])
    places = {name: name if named else f"column {place}" for place, name in enumerate(columns, 1)}

    def learned(read: ReadOptions = ReadOptions(), **known: Any) -> Schema:
        """Nothing else than what was meant is learned, from all rows."""
        reader = RowReader(path, read)
        schema, _ = infer_schema(reader, TASKS, **known)
        texts = [places[name] for name in meant["text"]]
        assert list(schema.text) == (texts if named or known else sorted(texts))
        label = [item.label for item in items(reader, schema, TASKS)]
        assert len(label) == rows
        wanted = meant["values"]
        if meant["task"] == "flags":
            wanted = [tuple(sorted(places[name] for name in labels)) for labels in wanted]
        assert [tuple(sorted(one)) if isinstance(one, tuple) else one for one in label] == wanted
        return schema

    refused = None
    try:
        learned()
    except BertworksError as error:
        refused = error
    assert refused is None or (refused.hint and refused.where)
    # What is named is never refused, and never taken for something else.
    read = ReadOptions(header=named, decimal="," if meant["task"] == "commas" else ".")
    text, label = ([places[name] for name in meant[what]] for what in ("text", "label"))
    tasks = {
        "flags": "multilabel",
        "commas": "regression",
        "listed": "multilabel",
        "pair": "classification",
    }
    assume(meant["task"] != "flags" or len(label) > 1)
    schema = learned(read, text=text, label=label, task=tasks.get(meant["task"], meant["task"]))
    assert sorted(schema.label) == sorted(label)


@pytest.mark.parametrize(
    "cell",
    [
        "1 " + "mon" * 9999 + "é",
        "@" * 99_999 + " x",
        "1" * 99_999 + "é",
        "a " * 50_000 + "é",
        "1.1" * 33_333 + "é",
        "/" * 99_999 + " x",
        "a/." * 33_333 + " x",
        "a@" * 50_000 + " x",
        "C:\\" + "\\." * 49_000 + " x",
    ],
)
def test_no_cell_takes_long_to_recognise(cell: str) -> None:
    begin = time.process_time()
    assert not any(pattern.fullmatch(cell) for pattern in (NUMBERED, SPLIT, DECIMAL_COMMA, WORD))
    assert not is_code(cell)
    assert SENTENCE.fullmatch(cell)
    assert time.process_time() - begin < 1


# --- relatives
# --------------------------------------------------------------------------------------------------


def test_half_a_character_in_squad_is_refused(tmp_path: Path) -> None:
    requested = {
        "id": "q1",
        "question": "Who \ud83d?",
        "answers": [{"text": "Ada", "answer_start": 0}],
    }
    content = {"data": [{"paragraphs": [{"context": "Ada wrote it.", "qas": [requested]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(BertworksError, match="half a character") as caught:
        list(RowReader(tmp_path / "a.json", name="a.json"))
    assert caught.value.where == "a.json: question q1"


@pytest.mark.parametrize("name", ["stride", "max_question", "max_answer", "lstm_units"])
def test_sizes_that_no_model_folder_can_hold_are_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match="1,048,576"):
        load_finetune_recipe("stable", [f"{name}=2000000"])
    assert getattr(load_finetune_recipe("stable", [f"{name}=1048576"]), name) == 1 << 20


# --- from a table to an answer
# ----------------------------------------------------------------------------------------


def test_columns_of_labels_from_training_to_answers(
    model: Path, tmp_path: Path, capsys: Any
) -> None:
    flags = {"rude": [n % 2 for n in range(60)], "late": [n % 3 // 2 for n in range(60)]}
    path = columns_file(tmp_path / "a.csv", {"id": range(60), "remark": TEXTS, **flags})
    assert (
        main(["check", str(path), "--label", "rude", "--label", "late", "--model", str(model)]) == 0
    )
    printed = capsys.readouterr()
    assert "label        2 columns, each for one label: rude, late" in printed.out
    assert printed.err.strip().endswith(
        f"finetune {path} --model {model} --label rude --label late -o MODEL-FOLDER"
    )
    out = tmp_path / "out"
    finetune(
        path, model=model, output=out, device="cpu", overrides=["epochs=1"], label=["rude", "late"]
    )
    assert read_task_json(out / "task.json").label == ("rude", "late")
    found = evaluate_task(out, path, device="cpu")
    assert (found["rows"], {*found["table"]}) == (60, {"rude", "late"})
    swapped = columns_file(
        tmp_path / "b.csv", {"late": flags["late"], "rude": flags["rude"], "remark": TEXTS}
    )
    assert evaluate_task(out, swapped, device="cpu")["figures"] == found["figures"]
    listed = ["|".join(name for name in flags if flags[name][n]) for n in range(60)]
    cells = columns_file(tmp_path / "c.csv", {"remark": TEXTS, "marks": listed})
    read = ReadOptions(label_separator="|")
    assert (
        evaluate_task(out, cells, device="cpu", label="marks", read=read)["figures"]
        == found["figures"]
    )
    with pytest.raises(UsageError, match="the columns of the labels are rude, id"):
        evaluate_task(out, path, device="cpu", label=["rude", "id"])
    list(predict_file(out, path, tmp_path / "p.csv", device="cpu"))
    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert len(rows) == 60
    assert {"rude", "late", "predicted_labels"} <= rows[0].keys()


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_file_of_sentences_has_an_answer_for_each(
    model: Path, tmp_path: Path, suffix: str
) -> None:
    train = columns_file(tmp_path / "a.csv", {"text": TEXTS, "label": ["x", "y"] * 30})
    out = tmp_path / "out"
    finetune(train, model=model, output=out, device="cpu", overrides=["epochs=1"])
    sentences = columns_file(tmp_path / f"b{suffix}", {"": TEXTS[:12]}, named=False)
    *notes, done = (
        event.text for event in predict_file(out, sentences, tmp_path / "p.jsonl", device="cpu")
    )
    assert "header: no" in notes
    assert done.startswith("12 rows written to ")
    named = columns_file(tmp_path / f"c{suffix}", {"text": ["ok", "so so", "good"]})
    assert [*predict_file(out, named, tmp_path / "q.jsonl", device="cpu")][-1].fields["rows"] == 3
    doubtful = columns_file(tmp_path / f"d{suffix}", {"": ["ok", "so so", "good"]}, named=False)
    with pytest.raises(UsageError, match="does the first row name"):
        list(predict_file(out, doubtful, tmp_path / "r.jsonl", device="cpu"))
    read = ReadOptions(header=False)
    assert [*predict_file(out, doubtful, tmp_path / "r.jsonl", device="cpu", read=read)][-1].fields[
        "rows"
    ] == 3


def test_of_errors_of_one_kind_three_are_listed() -> None:
    def listed(*whats: str) -> list[str]:
        errors = [BertworksError(what, where=f"a:{n}") for n, what in enumerate(whats, 1)]
        with pytest.raises(BertworksError) as caught:
            refuse_rows(errors, "a")
        return caught.value.what.splitlines()[1:]

    alike = [f"the label {{'label': {n}.2, 'x': [{n}]}} of 'row {n}' is no name" for n in range(20)]
    lines = [f"  a:{n}: {what}" for n, what in enumerate(alike, 1)]
    assert listed(*alike) == [*lines[:3], "  and 17 more of this kind"]
    assert listed(*alike[:4]) == lines[:4]
    assert listed(alike[0], "the text is too long", *alike[1:]) == [
        lines[0],
        *(f"  a:{n}: {alike[n - 2]}" for n in (3, 4)),
        "  and 17 more of this kind",
        "  a:2: the text is too long",
    ]
    others = listed(*(f"{chr(97 + n)} is wrong" for n in range(26)))
    assert len(others) == 21
    assert others[-1] == "  and 6 others"
