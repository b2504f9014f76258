"""What columns mean is inferred right for every set that we know, can be given, and every row is
checked."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item, Schema, fitted, items, misplaced
from bertworks.datasets.values import EmptyTextError, choice_number, several_labels, sorted_labels
from bertworks.datasets.writer import write_rows
from bertworks.errors import BertworksError, UsageError
from bertworks.io.inputs import IssueCounter
from bertworks.tasks.registry import TASKS


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
    with pytest.raises(BertworksError, match="99 different values in 99 rows are not classes"):
        infer(reader)
    assert len(infer(reader, task="classification").labels) == 99
    several = table(
        tmp_path, [{"text": f"text {n}", "label": f"remark {n}"} for n in range(2001)], "b.jsonl"
    )
    with pytest.raises(BertworksError, match="2,001 different values in 2,001 rows"):
        infer(several)


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
