"""Exports of annotation tools in the layouts that the tools write: each is read as it was meant, or
named.

The layouts are those of the documentation of Label Studio (task format, JSON-MIN of its converter,
tags), doccano, Prodigy (annotation interfaces) and spaCy (training data of version 2,
`Doc.to_json`).
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertworks.cli.main import main
from bertworks.datasets.annotations import conll_layout, with_entities
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item, infer_schema, items
from bertworks.datasets.values import MissingLabelError
from bertworks.errors import BertworksError
from bertworks.io.options import ReadOptions
from bertworks.tasks.registry import TASKS
from tests.support.refusals import refusal

TEXTS = [
    "Peter Blackburn lives in Brussels",
    "Mary went to Paris by train",
    "there are no names in this text",
]
SPANS = [[(0, 15, "PER"), (25, 33, "LOC")], [(0, 4, "PER"), (13, 18, "LOC")], []]
CLASSES = ["pos", "neg", "neu"]
ROWS = 12
Make = Callable[[int], Any]


def text(n: int) -> str:
    return f"{TEXTS[n % 3]} {n}"


def spans(n: int) -> list[tuple[int, int, str]]:
    return SPANS[n % 3]


def cls(n: int) -> str:
    return CLASSES[n % 3]


def write(path: Path, make: Make, count: int = ROWS) -> Path:
    rows = [make(n) for n in range(count)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(lines if path.suffix == ".jsonl" else json.dumps(rows, indent=1))
    return path


def learned(path: Path) -> tuple[str, list[Item], list[str]]:
    reader = RowReader(path)
    schema, _ = infer_schema(reader, TASKS)
    return schema.task, list(items(reader, schema, TASKS)), reader.notes


# --- Label Studio
# --------------------------------------------------------------------------------------------------


def region(start: int, end: int, *names: str, n: int = 0) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text(n)[start:end], "labels": list(names)}
    place = {"id": f"r{start}", "from_name": "label", "to_name": "text", "origin": "manual"}
    return {"value": value, "type": "labels", **place}


def regions(n: int) -> list[dict[str, Any]]:
    return [region(*span, n=n) for span in spans(n)]


def choices(*names: str, **more: Any) -> dict[str, Any]:
    return {
        "value": {**more, "choices": [*names]},
        "from_name": "sentiment",
        "to_name": "text",
        "type": "choices",
    }


def annotation(*results: Any, **more: Any) -> dict[str, Any]:
    fields = {
        "id": 1001,
        "completed_by": 1,
        "was_cancelled": False,
        "ground_truth": False,
        "lead_time": 4.288,
    }
    return {
        **fields,
        "result": [*results],
        "result_count": len(results),
        "parent_annotation": None,
        **more,
    }


def task(n: int, *annotations: Any, **more: Any) -> dict[str, Any]:
    fields = {
        "id": n + 1,
        "drafts": [],
        "predictions": [],
        "meta": {},
        "inner_id": n + 1,
        "project": 83,
    }
    return {
        **fields,
        "annotations": [*annotations],
        "data": {"text": text(n)},
        "comment_authors": [],
        **more,
    }


def minimal(n: int, annotator: int = 1, **fields: Any) -> dict[str, Any]:
    known = {
        "annotator": annotator,
        "annotation_id": 100 * annotator + n,
        "created_at": "2021-03-09T22:16:08.728353Z",
    }
    return {"text": text(n), "id": n + 1, **fields, **known, "lead_time": 3.2}


RELATION = {
    "from_id": "r0",
    "to_id": "r25",
    "type": "relation",
    "direction": "right",
    "labels": ["lives_in"],
}
PREDICTED = {"model_version": "m", "score": 0.5, "result": [region(0, 2, "WRONG")]}

# --- Prodigy
# --------------------------------------------------------------------------------------------------


def prodigy(n: int, answer: str = "accept", **fields: Any) -> dict[str, Any]:
    known = {
        "_input_hash": n,
        "_task_hash": -n,
        "_is_binary": False,
        "_view_id": "any",
        "_timestamp": 1680000000,
    }
    return {"text": text(n), **known, "answer": answer, **fields}


def prodigy_spans(n: int) -> list[dict[str, Any]]:
    return [
        {"start": s, "end": e, "token_start": 0, "token_end": 1, "label": kind}
        for s, e, kind in spans(n)
    ]


def options(identity: Callable[[int], object]) -> list[dict[str, object]]:
    return [{"id": identity(number), "text": name} for number, name in enumerate(CLASSES)]


# --- doccano and spaCy
# ------------------------------------------------------------------------------------------------


def doccano(n: int, **fields: Any) -> dict[str, Any]:
    return {"id": n, "text": text(n), **fields, "Comments": []}


def lists(n: int) -> list[list[Any]]:
    return [list(span) for span in spans(n)]


def objects(n: int, start: str = "start", end: str = "end") -> list[dict[str, Any]]:
    return [{"id": n * 9 + s, "label": kind, start: s, end: e} for s, e, kind in spans(n)]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.json", lambda n: task(n, annotation(*regions(n)), predictions=[PREDICTED])),
        ("a.json", lambda n: task(n, annotation(*regions(n), RELATION))),
        ("a.json", lambda n: task(n, annotation(*regions(n), choices("good", start=0, end=4)))),
        (
            "a.json",
            lambda n: task(
                n, annotation(region(0, 2, "WRONG"), was_cancelled=True), annotation(*regions(n))
            ),
        ),
        (
            "a.json",
            lambda n: {
                "id": n,
                "completions": [annotation(*regions(n))],
                "data": {"text": text(n)},
            },
        ),
        (
            "a.json",
            lambda n: minimal(
                n, **({"label": [r["value"] for r in regions(n)]} if spans(n) else {})
            ),
        ),
        ("a.jsonl", lambda n: doccano(n, label=lists(n))),
        (
            "a.jsonl",
            lambda n: {
                "id": n,
                "text": text(n),
                "meta": {},
                "annotation_approver": None,
                "labels": lists(n),
            },
        ),
        ("a.jsonl", lambda n: {"id": n, "data": text(n), "label": lists(n)}),
        (
            "a.jsonl",
            lambda n: doccano(
                n,
                entities=objects(n, "start_offset", "end_offset"),
                relations=[{"id": 1, "from_id": 0, "to_id": 25, "type": "lives in"}],
            ),
        ),
        (
            "a.jsonl",
            lambda n: prodigy(
                n, spans=prodigy_spans(n), tokens=[{"text": "x", "start": 0, "id": 0}]
            ),
        ),
        (
            "a.jsonl",
            lambda n: prodigy(
                n, spans=prodigy_spans(n), relations=[{"head": 0, "child": 1, "label": "X"}]
            ),
        ),
        ("a.json", lambda n: [text(n), {"entities": lists(n)}]),
        (
            "a.jsonl",
            lambda n: {
                "text": text(n),
                "ents": objects(n),
                "sents": [{"start": 0, "end": 3}],
                "tokens": [],
            },
        ),
        (
            "a.jsonl",
            lambda n: {"text": text(n), "ents": [], "spans": {"sc": objects(n)}, "tokens": []},
        ),
    ],
)
def test_spans(name: str, make: Make, tmp_path: Path) -> None:
    kind, found, _ = learned(write(tmp_path / name, make))
    assert kind == "spans"
    assert [(item.texts, list(item.label)) for item in found] == [
        ((text(n),), spans(n)) for n in range(ROWS)
    ]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.json", lambda n: task(n, annotation(choices(cls(n))))),
        (
            "a.json",
            lambda n: task(
                n,
                annotation(
                    choices(cls(n)),
                    {"type": "textarea", "value": {"text": ["a note"]}, "from_name": "comment"},
                ),
            ),
        ),
        ("a.json", lambda n: minimal(n, sentiment=cls(n))),
        ("a.json", lambda n: minimal(n, sentiment={"choices": [cls(n)]})),
        ("a.jsonl", lambda n: doccano(n, label=[cls(n)])),
        ("a.jsonl", lambda n: prodigy(n, options=options(CLASSES.__getitem__), accept=[cls(n)])),
        ("a.jsonl", lambda n: prodigy(n, options=options(int), accept=[n % 3])),
        ("a.jsonl", lambda n: prodigy(n, label=cls(n), _is_binary=True, meta={"score": 0.5})),
        (
            "a.json",
            lambda n: [text(n), {"cats": {name: float(name == cls(n)) for name in CLASSES}}],
        ),
        (
            "a.jsonl",
            lambda n: {
                "text": text(n),
                "ents": [],
                "cats": {name: name == cls(n) for name in CLASSES},
            },
        ),
    ],
)
def test_classes(name: str, make: Make, tmp_path: Path) -> None:
    kind, found, _ = learned(write(tmp_path / name, make))
    assert kind == "classification"
    assert [(item.texts, item.label) for item in found] == [
        ((text(n),), cls(n)) for n in range(ROWS)
    ]


def test_a_rating_is_a_number_and_not_an_object(tmp_path: Path) -> None:
    kind, found, _ = learned(
        write(tmp_path / "a.json", lambda n: minimal(n, rating=[{"rating": 1 + n % 3}]))
    )
    assert (kind, [item.label for item in found]) == (
        "classification",
        [str(1 + n % 3) for n in range(ROWS)],
    )


def test_sentences_of_spacy_2(tmp_path: Path) -> None:
    def article(n: int) -> dict[str, Any]:
        words = text(n).split()
        tokens = [
            {"id": i, "orth": word, "tag": "NN", "ner": "O" if i else "U-PER"}
            for i, word in enumerate(words)
        ]
        sentences = [{"tokens": tokens[:3], "brackets": []}, {"tokens": tokens[3:], "brackets": []}]
        return {"id": n, "paragraphs": [{"raw": text(n), "sentences": sentences, "cats": []}]}

    kind, found, _ = learned(write(tmp_path / "a.json", article))
    words = [part for n in range(ROWS) for part in (text(n).split()[:3], text(n).split()[3:])]
    assert (kind, [list(item.texts) for item in found]) == ("tagging", words)
    assert [item.label for item in found[:2]] == [("U-PER", "O", "O"), ("O",) * (len(words[1]))]


def test_pairs_with_their_classes(tmp_path: Path) -> None:
    pairs = [[text(n), {"entities": lists(n)}] for n in range(ROWS)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"classes": ["PER", "LOC"], "annotations": [*pairs, None]}))
    assert [list(item.label) for item in learned(path)[1]] == [spans(n) for n in range(ROWS)]


def test_a_span_with_two_labels_is_two_spans(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", lambda n: task(n, annotation(region(0, 4, "PER", "X", n=n))))
    assert learned(path)[1][0].label == ((0, 4, "PER"), (0, 4, "X"))


def test_numbers_of_labels_of_old_doccano(tmp_path: Path) -> None:
    def row(n: int) -> dict[str, Any]:
        found = [
            {"label": len(kind), "start_offset": s, "end_offset": e, "user": 1}
            for s, e, kind in spans(n)
        ]
        return {
            "id": n,
            "text": text(n),
            "annotations": found,
            "meta": {},
            "annotation_approver": "admin",
        }

    assert learned(write(tmp_path / "a.jsonl", row))[1][0].label == ((0, 15, "3"), (25, 33, "3"))


# --- several annotators, rejected rows, rows without annotations
# ------------------------------------------------------


@pytest.mark.parametrize("layout", ["json", "minimal", "csv"])
def test_of_several_annotators_the_first_counts(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    if layout == "json":
        write(
            path,
            lambda n: task(
                n, annotation(choices(cls(n))), annotation(choices(cls(n + 1)), completed_by=2)
            ),
        )
    else:
        rows = [minimal(n, a, sentiment=cls(n + a)) for n in range(ROWS) for a in (0, 1)]
        path.write_text(json.dumps(rows))
    if layout == "csv":
        path = tmp_path / "a.csv"
        path.write_text(
            "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)])
            + "\n"
        )
    kind, found, notes = learned(path)
    assert (kind, [item.label for item in found]) == (
        "classification",
        [cls(n) for n in range(ROWS)],
    )
    assert [
        note
        for note in notes
        if note.startswith(f"rows with several annotations: the first one counts: {ROWS} (")
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: prodigy(n, "ignore" if n == 1 else "accept", label=cls(n)),
        lambda n: prodigy(
            n, "reject" if n == 1 else "accept", options=options(str), accept=[cls(n)]
        ),
        lambda n: {"text": text(n), "label": cls(n), "answer": "reject" if n == 1 else "accept"},
    ],
)
def test_what_the_annotator_did_not_accept_is_left_out(make: Make, tmp_path: Path) -> None:
    _, found, notes = learned(write(tmp_path / "a.jsonl", make))
    assert [(item.texts[0], item.label) for item in found] == [
        (text(n), cls(n)) for n in range(ROWS) if n != 1
    ]
    assert any(
        note.startswith("rows that the annotator rejected or ignored, left out: 1 (")
        for note in notes
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda n: task(n, *([annotation(choices(cls(n)))] if n != 4 else [])),
        lambda n: task(n, annotation(choices(cls(n)), was_cancelled=n == 4)),
        lambda n: {
            "id": n,
            "data": {"text": text(n)},
            "completions": [annotation(choices(cls(n)), skipped=n == 4)],
        },
    ],
)
def test_a_task_without_annotation_has_no_label(make: Make, tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", make)
    with pytest.raises(MissingLabelError, match="--skip-unlabelled"):
        learned(path)
    reader = RowReader(path, ReadOptions(skip_unlabelled=True))
    schema, _ = infer_schema(reader, TASKS)
    assert len(list(items(reader, schema, TASKS))) == ROWS - 1
    assert len(list(RowReader(path))) == ROWS  # a prediction needs no label


def test_no_choice_of_one_is_no_label(tmp_path: Path) -> None:
    def row(n: int) -> dict[str, Any]:
        accept = [cls(n)] if n else []
        return prodigy(
            n,
            options=options(CLASSES.__getitem__),
            accept=accept,
            config={"choice_style": "single"},
        )

    with pytest.raises(MissingLabelError):
        learned(write(tmp_path / "a.jsonl", row))


def test_answers_about_one_span_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path / "a.jsonl", lambda n: prodigy(n, spans=prodigy_spans(n)[:1], _is_binary=True)
    )
    assert main(["check", str(path)]) == 0
    printed = capsys.readouterr()
    assert (
        f"about one span: nothing else in them counts as an entity: {ROWS} ("
        in printed.err + printed.out
    )


HTML = {
    "type": "hypertextlabels",
    "value": {"start": "/p[1]", "startOffset": 0, "hypertextlabels": ["PER"]},
}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda n: task(n, annotation({**HTML, "from_name": "ner"})),
            "of the type hypertextlabels, not of plain text",
        ),
        (lambda n: task(n, predictions=[PREDICTED]), "columns are: id, text, predictions$"),
        (
            lambda n: {"data": {"text": text(n)}, "predictions": [PREDICTED]},
            "columns are: id, text, predictions$",
        ),
        (
            lambda n: prodigy(n, "reject" if n % 2 else "accept", label="SPORT", _is_binary=True),
            "the same label, 'SPORT'",
        ),
        (
            lambda n: {"text": text(n), "label": [f"a translation {n}"]},
            "30 different values in 30 rows are not classes",
        ),
    ],
)
def test_what_cannot_be_learned_is_named(make: Make, said: str, tmp_path: Path) -> None:
    with pytest.raises(BertworksError) as caught:
        learned(write(tmp_path / "a.jsonl", make, 30))
    assert re.search(said, caught.value.what)


@pytest.mark.parametrize(
    ("spans", "what"),
    [
        (0, "'entities' is 0, not a list of spans"),
        ([{"start": 1}], "{'start': 1} is not a span of characters"),
    ],
)
def test_spans_that_are_none_are_refused(spans: Any, what: str) -> None:
    with refusal(what, "start"):
        with_entities({"text": "a film", "entities": spans}, "entities", "d.jsonl:1")


def test_the_columns_of_a_conll_file() -> None:
    block = ["1\tthe\tx\tO\n", "2\tfilm\tx\tB-work\n", "\n"]
    layout = conll_layout(block * 3, {})
    assert (layout.word, layout.tag) == (1, 3)
    layout = conll_layout(["the\tO\n", "film\tB-work\n", "\n"] * 3, {})
    assert (layout.word, layout.tag) == (0, 1)
    with refusal("", "--columns word=1,tag=2, counted from 1"):
        conll_layout(["the\tO\n", "film\tB-work\n", "\n"] * 3, {"word": 1, "tag": 9})
