"""What is learned from a table is what was meant, or it is refused with the options that settle
it."""

import csv
import io
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as some

from bertworks.checkpoints.task_config import read_task_json, save_task
from bertworks.cli.main import main
from bertworks.datasets.infer_schema import infer_schema
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema, items
from bertworks.datasets.values import DECIMAL_COMMA, NUMBERED, SENTENCE, SPLIT, WORD, names_columns
from bertworks.errors import BertworksError, UsageError
from bertworks.evaluation.evaluate import evaluate_task
from bertworks.inference.predict import predict_file
from bertworks.io.options import ReadOptions
from bertworks.runs.finetune import finetune
from bertworks.tasks.registry import TASKS
from bertworks.tasks.settings import TaskConfig
from bertworks.text.codes import is_code
from bertworks.training.recipe import load_finetune_recipe
from tests.support.fine import read_data

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


def table(
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
        table(path, columns)
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
    always = table(tmp_path / "a.csv", {"remark": TEXTS, **flags, "seen": [1] * 60})
    assert meaning(always)[0].label == ("rude", "late")
    assert "'seen' is true of every row" in refusal(always, label=["rude", "seen"]).what
    words = table(
        tmp_path / "b.csv",
        {"remark": TEXTS, **flags, "read": [("no", "yes")[n % 2] for n in range(60)]},
    )
    # written in another way: is it another kind of column?
    assert "'rude' (0, 1)" in refusal(words).what
    apart = table(
        tmp_path / "c.csv", {"rude": flags["rude"], "remark": TEXTS, "late": flags["late"]}
    )
    assert "--label rude" in (refusal(apart).hint or "")
    known = table(
        tmp_path / "d.csv", {"remark": TEXTS, "quality": flags["rude"], "late": flags["late"]}
    )
    assert "'quality'" in refusal(known).what
    one = table(tmp_path / "e.csv", {"remark": TEXTS, "rude": flags["rude"]})
    assert meaning(one)[0].task == "classification"
    assert "named only 0 and 1" in refusal(one, task="multilabel").what
    bad = table(
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
    cells = table(
        tmp_path / "a.csv", {"text": TEXTS, "marks": [f"{n % 2} {n % 3 // 2}" for n in range(60)]}
    )
    assert meaning(cells, ReadOptions(label_names="rude,late", label_separator=" "))[1] == [
        tuple(name for name, flag in (("rude", n % 2), ("late", n % 3 // 2)) if flag)
        for n in range(60)
    ]


def test_a_separator_that_is_named(tmp_path: Path) -> None:
    cells = ["sea / wind" if n % 2 else "sun" for n in range(60)]
    path = table(tmp_path / "a.csv", {"text": TEXTS, "label": cells})
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
    path = table(tmp_path / "a.csv", {"Sentence #": marks, "Word": words, "POS": pos, "Tag": tags})
    for known in ({}, {"task": "tagging", "text": ["Word"], "label": "Tag", "group": "Sentence #"}):
        error = refusal(path, **known)
        assert "each row holds one word: 'Word'" in error.what
        assert "--sentence-column 'Sentence #' --text Word --label Tag" in (error.hint or "")
    for columns in (
        {"a": words, "b": tags},
        {"token": words, "upos": pos},
        {"n": range(60), "form": words, "ner": tags},
    ):
        assert "each row holds one word" in refusal(table(tmp_path / "b.csv", columns)).what
    names = table(
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
    path = table(tmp_path / "a.csv", {"posted": codes, "kind": kinds})
    schema, notes = infer_schema(RowReader(path), TASKS)
    assert schema.text == ("posted",)  # nothing else is left
    assert any("'posted' holds dates, ids, addresses or other codes" in note for note in notes)
    assert meaning(path, text=["posted"])[0].text == ("posted",)
    assert meaning(table(tmp_path / "b.csv", {"posted": codes, "kind": kinds, "remark": TEXTS}))[
        0
    ].text == ("remark",)


def test_texts_that_look_like_codes_in_part_are_texts(tmp_path: Path) -> None:
    for texts in (
        ["2018年に開店した店です、とてもよかった" + "よ" * n for n in range(60)],
        [f"gr8 film no {n}" for n in range(60)],
    ):
        path = table(
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
        in refusal(table(tmp_path / "a.csv", requested)).what
    )
    spans = table(
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
    path = table(tmp_path / "a.csv", columns)
    error = refusal(path)
    assert "'part' divides the rows (train, valid, test)" in error.what
    assert "--dev" in (error.hint or "")
    notes = infer_schema(RowReader(path), TASKS, label="label")[1]
    assert "all rows are used, though 'part' divides them" in notes
    assert meaning(table(tmp_path / "b.csv", columns | {"part": ["train"] * 60}))[0].label == (
        "label",
    )


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
        path = table(tmp_path / "a.csv", {"text": TEXTS, name: marks}, delimiter=";")
        error = refusal(path)
        assert "decimal comma" in error.what
        assert "--decimal ," in (error.hint or "")
        schema, labels = meaning(path, ReadOptions(decimal=","))
        assert (schema.task, schema.separator) == ("regression", "")
        assert labels == [n % 9 + n % 4 / 10 for n in range(60)]
        assert meaning(path, ReadOptions(label_separator=","))[0].task == "multilabel"
    thousands = table(
        tmp_path / "b.csv",
        {"text": TEXTS, "wert": [f"1.{n:03},5" for n in range(60)]},
        delimiter=";",
    )
    assert meaning(thousands, ReadOptions(decimal=","))[1][7] == 1007.5
    points = table(
        tmp_path / "c.csv", {"text": TEXTS, "wert": [f"{n},5" if n else "0.5" for n in range(60)]}
    )
    with pytest.raises(BertworksError, match=r"holds '0.5'"):
        meaning(points, ReadOptions(decimal=","))


def test_several_columns_could_be_the_label(tmp_path: Path) -> None:
    kinds, grades = ["x", "y"] * 30, ["a", "b", "c"] * 20
    error = refusal(
        table(tmp_path / "a.csv", {"remark": TEXTS, "kind": kinds, "city": CITIES * 20})
    )
    assert "'kind' (x, y), 'city' (Oslo, Kyoto, Lima)" in error.what
    assert (
        "'sentiment' (x, y)"
        in refusal(
            table(tmp_path / "b.csv", {"text": TEXTS, "topic": grades, "sentiment": kinds})
        ).what
    )
    by_name = table(tmp_path / "c.csv", {"remark": TEXTS, "city": CITIES * 20, "label": kinds})
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
    path = table(tmp_path / "a.csv", {"remark": TEXTS, "reply": TEXTS[::-1], "kind": kinds})
    assert "several columns hold texts: 'remark', 'reply'" in refusal(path).what
    assert meaning(path, text=["reply", "remark"])[0].text == ("reply", "remark")
    titles = table(
        tmp_path / "b.csv",
        {
            "title": [text[:16] for text in TEXTS],
            "body": [text * 3 for text in TEXTS],
            "kind": kinds,
        },
    )
    assert meaning(titles)[0].text == ("body",)
    few = table(
        tmp_path / "c.csv",
        {"note": [text if n < 20 else "" for n, text in enumerate(TEXTS)], "kind": kinds},
    )
    error = refusal(few)
    assert "only 20 of 60 rows have a text in 'note'" in error.what


def test_a_header_that_comes_again(tmp_path: Path) -> None:
    path = table(
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
    path = table(tmp_path_factory.mktemp("t") / "a.csv", columns, named=named)
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
    path = table(tmp_path / "a.csv", {"id": range(60), "remark": TEXTS, **flags})
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
    swapped = table(
        tmp_path / "b.csv", {"late": flags["late"], "rude": flags["rude"], "remark": TEXTS}
    )
    assert evaluate_task(out, swapped, device="cpu")["figures"] == found["figures"]
    listed = ["|".join(name for name in flags if flags[name][n]) for n in range(60)]
    cells = table(tmp_path / "c.csv", {"remark": TEXTS, "marks": listed})
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
    train = table(tmp_path / "a.csv", {"text": TEXTS, "label": ["x", "y"] * 30})
    out = tmp_path / "out"
    finetune(train, model=model, output=out, device="cpu", overrides=["epochs=1"])
    sentences = table(tmp_path / f"b{suffix}", {"": TEXTS[:12]}, named=False)
    *notes, done = (
        event.text for event in predict_file(out, sentences, tmp_path / "p.jsonl", device="cpu")
    )
    assert "header: no" in notes
    assert done.endswith("12 rows")
    named = table(tmp_path / f"c{suffix}", {"text": ["ok", "so so", "good"]})
    assert [*predict_file(out, named, tmp_path / "q.jsonl", device="cpu")][-1].fields["rows"] == 3
    doubtful = table(tmp_path / f"d{suffix}", {"": ["ok", "so so", "good"]}, named=False)
    with pytest.raises(UsageError, match="does the first row name"):
        list(predict_file(out, doubtful, tmp_path / "r.jsonl", device="cpu"))
    read = ReadOptions(header=False)
    assert [*predict_file(out, doubtful, tmp_path / "r.jsonl", device="cpu", read=read)][-1].fields[
        "rows"
    ] == 3
