"""Predictions become finished rows of an output, whatever its format."""

import json
from dataclasses import asdict

import pytest

from bertworks.datasets.annotations import ConllLayout
from bertworks.datasets.schema import Item
from bertworks.datasets.writer import RowFormat
from bertworks.errors import BertworksError
from bertworks.inference.predict import PredictionFormat, Unit

WORDS = {"word": ["Anna", "sings"], "n": ["1", "2"]}
TAGS = {"predicted_tags": ["B-PER", "O"], "truncated_tokens": 0}
CONLL = RowFormat(name="a.conll", kind="conll", columns=())


def finished_rows(output_format: PredictionFormat, unit: Unit, columns: dict) -> str:
    """The bytes of the rows in a portion, by a format that went through JSON as for a worker."""
    settings = json.loads(json.dumps(asdict(output_format)))
    portion = PredictionFormat.of_settings(settings).portion([unit], [columns])
    return list(portion)[3].decode()  # after the length and the counts, and the length


def test_a_row_with_its_prediction() -> None:
    rows = RowFormat(name="a.csv", kind="csv", columns=("text", "predicted_label"))
    unit = Unit(1, {"text": "good"}, None, "a.csv:2")
    assert finished_rows(PredictionFormat(rows=rows), unit, {"predicted_label": "pos"}) == (
        "good,pos\n"
    )


def test_a_row_for_each_word() -> None:
    """What is true of the sentence stands in the row of its first word."""
    columns = ("word", "n", "predicted_tags", "truncated_tokens")
    output_format = PredictionFormat(
        rows=RowFormat(name="a.csv", kind="csv", columns=columns), word_columns=("word", "n")
    )
    unit = Unit(1, WORDS, None, "a.csv:2")
    assert finished_rows(output_format, unit, TAGS) == "Anna,1,B-PER,0\nsings,2,O,\n"


def test_lines_of_conll_keep_what_is_around_words() -> None:
    output_format = PredictionFormat(rows=CONLL, layout=ConllLayout(2, 0, 1))
    lines = ["# id 1", "Anna x", "sings y", "", "# id 2"]
    unit = Unit(1, {}, None, "a.conll:2", lines)
    assert finished_rows(output_format, unit, TAGS) == (
        "# id 1\nAnna x B-PER\nsings y O\n\n# id 2\n"
    )


def test_words_become_lines_of_conll() -> None:
    item = Item(("Anna", "sings"), None, "a.jsonl:1")
    unit = Unit(1, {}, item, "a.jsonl:1")
    assert finished_rows(PredictionFormat(rows=CONLL), unit, TAGS) == "Anna\tB-PER\nsings\tO\n\n"
    wrong = Unit(1, {}, Item(("a\tb", "c"), None, ""), "a.jsonl:7")
    with pytest.raises(BertworksError, match="does not fit in a line") as caught:
        finished_rows(PredictionFormat(rows=CONLL), wrong, TAGS)
    assert caught.value.where == "a.jsonl:7"
