"""Rows of every kind of file, as they stand there; every kind of damage is named; what is written
is read again."""

import bz2
import csv
import gc
import gzip
import io
import json
import lzma
import math
import os
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings, strategies as st
from pyarrow import parquet

from bertworks.datasets.reader import RowReader, parse_json
from bertworks.errors import BertworksError, UsageError
from bertworks.io.file_job import write_rows
from bertworks.io.options import ReadOptions


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path: Path, **options: Any) -> list[dict[str, object]]:
    return [row.values for row in RowReader(path, ReadOptions(**options))]


def places(path: Path) -> list[str]:
    return [row.where.removeprefix(str(path)) for row in RowReader(path)]


def error(path: Path, **options: Any) -> BertworksError:
    with pytest.raises(BertworksError) as caught:
        list(RowReader(path, ReadOptions(**options)))
    return caught.value


def json_lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


# --- tables
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_quoted_tables_say_where_rows_begin(tmp_path: Path, delimiter: str) -> None:
    rows = [["text", "label"], ['He said "no",\nand; left|.\t', "1"], ["", "0"], ["01", " x "]]
    lines = io.StringIO()
    csv.writer(lines, delimiter=delimiter, lineterminator="\r\n").writerows(rows)
    path = write(tmp_path / "a.csv", lines.getvalue())
    reader = RowReader(path)
    assert (reader.kind, reader.columns) == ("table", ["text", "label"])
    assert [list(row.values.values()) for row in reader] == rows[1:]
    assert [row.where for row in reader] == [f"{path}:{line}" for line in (2, 4, 5)]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", lambda data: pyarrow.compress(data, "zstd", asbytes=True)),
    ],
)
def test_compression(tmp_path: Path, suffix: str, pack: object) -> None:
    data = "text,label\na b c,x\n".encode("utf-8-sig")
    assert values(write(tmp_path / f"a.csv{suffix}", pack(data))) == [
        {"text": "a b c", "label": "x"}
    ]


def test_quote_marks_in_tsv_mean_nothing_unless_they_are_well_formed_and_needed(
    tmp_path: Path,
) -> None:
    raw = 'text\tlabel\n"Stray at the beginning\t1\nin "the" middle\t0\n"Whole."\t1\n'
    assert [row["text"] for row in values(write(tmp_path / "raw.tsv", raw))] == [
        '"Stray at the beginning',
        'in "the" middle',
        '"Whole."',
    ]
    quoted = 'text\tlabel\n"He said ""no""."\t1\nplain\t0\n'
    assert [row["text"] for row in values(write(tmp_path / "quoted.tsv", quoted))] == [
        'He said "no".',
        "plain",
    ]
    everywhere = '"text"\t"label"\n"plain"\t"0"\n'
    assert values(write(tmp_path / "all.tsv", everywhere)) == [{"text": "plain", "label": "0"}]
    inside = 'text\tlabel\n"a tab\there and\na line"\t1\n'
    assert values(write(tmp_path / "inside.tsv", inside)) == [
        {"text": "a tab\there and\na line", "label": "1"}
    ]
    accident = 'text\tlabel\n"Whole."\t1\n'
    assert values(write(tmp_path / "b.tsv", accident))[0]["text"] == '"Whole."'
    assert values(tmp_path / "b.tsv", quoting="quoted")[0]["text"] == "Whole."
    assert values(tmp_path / "quoted.tsv", quoting="raw")[0]["text"] == '"He said ""no""."'
    assert values(write(tmp_path / "c.csv", 'text,label\n"x,1\n'), quoting="raw") == [
        {"text": '"x', "label": "1"}
    ]


def test_what_quote_marks_mean_is_decided_by_the_first_ones_however_late(tmp_path: Path) -> None:
    plain = "some words that fill the file\t0\n" * 60_000
    quoted = write(tmp_path / "a.tsv", "text\tlabel\n" + plain + '"He said ""no""."\t1\n')
    assert values(quoted)[-1]["text"] == 'He said "no".'
    raw = write(tmp_path / "b.tsv", "text\tlabel\n" + plain + '"He said" no.\t1\n')
    assert values(raw)[-1]["text"] == '"He said" no.'


@pytest.mark.parametrize(
    ("content", "columns", "count"),
    [
        ("text,label\na,text\nb,x\n", ["text", "label"], 2),  # a value like a column's name
        ("text\ntext\n", ["text"], 1),
        ("good film,positive\nbad film,negative\nso so,positive\n", ["column 1", "column 2"], 3),
        (
            "gj04\t1\t\tA sentence stands here.\n",
            ["column 1", "column 2", "column 3", "column 4"],
            1,
        ),
        (",text,label\n0,a,x\n1,b,y\n", ["column 1", "text", "label"], 2),
        ("\n\nname,kind\n\na,x\n\n", ["name", "kind"], 1),
    ],
)
def test_header_is_recognized(tmp_path: Path, content: str, columns: list[str], count: int) -> None:
    path = write(tmp_path / ("a.tsv" if "\t" in content else "a.csv"), content)
    reader = RowReader(path)
    assert reader.columns == columns
    assert len(list(reader)) == count


def test_header_can_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,x\n")
    assert values(path, header=False) == [
        {"column 1": "text", "column 2": "label"},
        {"column 1": "a", "column 2": "x"},
    ]
    path = write(tmp_path / "b.csv", "1,2\n3,4\n")
    assert values(path, header=True) == [{"1": "3", "2": "4"}]


def test_plain_text_has_a_row_for_each_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", 'Hello, world.\r\n\n"Another" line\twith a tab')
    assert values(path) == [
        {"text": "Hello, world."},
        {"text": ""},
        {"text": '"Another" line\twith a tab'},
    ]
    assert places(path) == [":1", ":2", ":3"]


def test_text_files_can_be_tables(tmp_path: Path) -> None:
    path = write(tmp_path / "ratings.txt", "id\tdocument\tlabel\n1\t좋다\t1\n2\t\t0\n")
    assert values(path) == [
        {"id": "1", "document": "좋다", "label": "1"},
        {"id": "2", "document": "", "label": "0"},
    ]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('id,remark\n1,"one, two"\n2,three\n', ["id", "remark"]),
        ("bemerkung;datum\na, b;2020\n", ["bemerkung", "datum"]),
        ('text,label\n"a\nb",x\n', ["text", "label"]),
        ("Yes, please\nNo, thanks\n", ["text"]),
        ("Hello, world\n", ["text"]),
        ("He came,\nhe saw, and\nhe left.\n", ["text"]),
        ("id\ttwo, three, four\nfive\tsix\n", ["id", "two, three, four"]),
        ('say "this, that\nand, then\n', ["text"]),
    ],
)
def test_without_a_suffix_a_table_has_even_rows_below_a_header(
    tmp_path: Path, content: str, columns: list[str]
) -> None:
    for name in ("a.txt", "no-suffix"):
        assert RowReader(write(tmp_path / name, content)).columns == columns


def test_one_column_without_a_suffix(tmp_path: Path) -> None:
    """`cat new.csv | bertworks predict MODEL -`: the name of the only column is no text."""
    rows = RowReader(write(tmp_path / "named", 'text\n"a, b"\nc\n'))
    assert [row.values for row in rows] == [{"text": "a, b"}, {"text": "c"}]
    lines = RowReader(write(tmp_path / "lines", "a cat\na dog\n"))
    assert [row.values for row in lines] == [{"text": "a cat"}, {"text": "a dog"}]


def test_a_named_pipe_is_read_as_often_as_one_likes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    writer = threading.Thread(target=write, args=(tmp_path / "pipe.csv", "text,label\na,x\n"))
    writer.start()
    reader = RowReader(tmp_path / "pipe.csv")
    writer.join()
    assert (
        list(reader)
        == list(reader)
        == [({"text": "a", "label": "x"}, f"{tmp_path / 'pipe.csv'}:2", None)]
    )


def test_blank_lines_above_a_header_are_no_header(tmp_path: Path) -> None:
    reader = RowReader(write(tmp_path / "a.csv", "\n\ntext\nfirst\n\nlast\n"))
    assert [(row.values["text"], row.where[-1]) for row in reader] == [
        ("first", "4"),
        ("", "5"),
        ("last", "6"),
    ]


def test_one_column_keeps_its_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'sentence\none\n\n"two,\nthree"\n')
    assert values(path) == [{"sentence": "one"}, {"sentence": ""}, {"sentence": "two,\nthree"}]


@pytest.mark.parametrize(
    ("name", "content", "where", "what"),
    [
        ("a.csv", "text,label\na,x\nb\n", ":3", "1 cells, but the first row has 2"),
        ("a.csv", "text,label\na,x\nb,y,z\n", ":3", "3 cells"),
        ("a.tsv", 'text\tlabel\n"a\tx\nb" c\n', ":3", "1 cells"),
        ("a.csv", 'text,label\na,x\n"b,y\nc,z\n', ":3", "never closed"),
        ("a.csv", 'text,label\n"a" b,y\n', ":2", "expected after"),
        ("a.csv", "text,label\ra,x\rb,y\r", ":1", "carriage return"),
        ("a.csv", b"text,label\na,x\nb\xff,y\n", ":3", "not UTF-8"),
        ("a.csv", "text,label,text\na,x,b\n", ":1", "two columns are named 'text'"),
        ("a.csv", "", "", "empty"),
        ("a.csv", " \n\n", "", "empty"),
        ("a.csv", bytes(range(256)), "", "not text"),
        ("a.csv", b"%PDF-1.7\ntext,label\na,x\n", "", "a PDF"),
        ("a.docx", b"PK\x03\x04 word/document.xml", "", "Word"),
        ("a.doc", b"\xd0\xcf\x11\xe0 Word", "", "old Office"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', ":2", "not JSON"),
        ("a.jsonl", '{"text": "a"}\n["b"]\n', ":2", "expected a JSON object"),
        ("a.jsonl", '{"text": "a"}\n{"a": 1, "a": 2}\n', ":2", "'a' twice"),
        ("a.jsonl", '{"text": "a"}\n{"a": "\\ud800"}\n', ":2", "half a character"),
        ("a.jsonl", '{"text": "a"}\n{"a": "\\uD800"}\n', ":2", "half a character"),
        ("a.jsonl", b'{"text": "a"}\n{"a": "\xff"}\n', ":2", "not UTF-8"),
        ("a.json", '[\n{"text": "a"},\n{"text" "b"}\n]', ":3", "not JSON"),
        ("a.json", '[{"text": "a"}, "b"]', ":2", "expected a JSON object"),
        ("a.json", '{"one": {"two":\n 3}}', "", "not a list of rows"),
        ("a.json", '{"text": "a"', ":1", "not JSON"),
        ("a.conll", "EU\tB-ORG\nrejects\n\n", ":2", "has no tag"),
        ("a.conll", "EU\tB-ORG\nrejects\t\n", ":2", "has no tag"),
        ("a.conll", "EU\tB-ORG\na\tO\nrejects\tO\tO\n", ":3", "3 cells"),
        ("a.txt", "EU B-ORG\n" + "a O\n" * 20 + "rejects\n\n", ":22", "has no tag"),
        ("a.conllu", "1\ta\tb\n2\tc\n", ":2", "has no tag"),
        ("a.parquet", b"PAR1 and nothing else", "", "damaged"),
    ],
)
def test_damage_is_named_with_its_line(
    tmp_path: Path, name: str, content: str | bytes, where: str, what: str
) -> None:
    path = write(tmp_path / name, content)
    found = error(path)
    assert what in found.what
    assert found.where == f"{path}{where}"
    assert found.hint


def test_paths_that_hold_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "reviews.csv", "text,label\na,x\n")
    with pytest.raises(UsageError, match=r"did you mean .*reviews.csv"):
        RowReader(tmp_path / "review.csv")
    with pytest.raises(UsageError, match="folder"):
        RowReader(tmp_path)


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,x\nb,y\n")
    reader = RowReader(path)
    rows = iter(reader)
    next(rows)
    with path.open("a") as file:
        file.write("c,z\n")
    with pytest.raises(BertworksError, match="changed"):
        list(rows)
    with pytest.raises(BertworksError, match="changed"):
        list(reader)
    assert len(list(RowReader(path))) == 3


def test_standard_input_is_read_as_often_as_one_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text,label\na,x\n")))
    reader = RowReader("-")
    assert list(reader) == list(reader) == [({"text": "a", "label": "x"}, "<stdin>:2", None)]
    path = reader.path
    del reader
    gc.collect()
    assert not path.exists()


@pytest.mark.no_cover
def test_memory_does_not_grow_with_a_table(tmp_path: Path) -> None:
    def peak(path: Path) -> int:
        tracemalloc.start()
        for _ in RowReader(path):
            pass
        peaked = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peaked

    line = "a few words that are a text" + " and more" * 20
    for suffix, separator in ((".csv", ","), (".tsv", "\t")):
        small = write(
            tmp_path / f"small{suffix}",
            "text,label\n".replace(",", separator) + f"{line}{separator}1\n" * 5_000,
        )
        large = write(
            tmp_path / f"large{suffix}",
            "text,label\n".replace(",", separator) + f"{line}{separator}1\n" * 15_000,
        )
        assert peak(large) < 1.2 * peak(small) + 1_000_000


# --- JSON and Parquet
# -------------------------------------------------------------------------------------------------


def test_json_lines_and_arrays_keep_their_values(tmp_path: Path) -> None:
    records = [
        {"text": "ä", "n": 1, "f": 1.5, "no": None, "tags": ["a"]},
        {"text": "b", "more": {"x": True}},
    ]
    columns = ["text", "n", "f", "no", "tags", "more"]
    path = write(tmp_path / "a.jsonl", "\n" + json_lines(*records))
    assert values(path) == records
    assert places(path) == [":2", ":3"]
    assert RowReader(path).columns == columns
    for name, content in (
        ("b.json", json.dumps(records)),
        ("c.json", json.dumps(records, indent=2)),
        ("d.json", "[]"),
    ):
        path = write(tmp_path / name, content)
        assert RowReader(path).kind == "json"
        assert values(path) == (records if name != "d.json" else [])
    assert places(tmp_path / "c.json") == [":1", ":2"]
    assert values(write(tmp_path / "no-suffix", json_lines(*records))) == records


def test_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    """NaN is what tables have for nothing; what else there is stays as a text."""
    write_rows(
        tmp_path / "a.jsonl",
        ["x", "y"],
        [{"x": math.nan, "y": [1.5, (math.nan,), {"z": -math.inf}]}],
    )
    assert (tmp_path / "a.jsonl").read_text() == '{"x": null, "y": [1.5, [null], {"z": "-inf"}]}\n'


def test_parquet(tmp_path: Path) -> None:
    records = [{"text": f"t{n}", "label": n, "list": ["a"] * n, "none": None} for n in range(600)]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    reader = RowReader(tmp_path / "a.parquet", name="a")
    assert (reader.kind, reader.columns) == ("parquet", ["text", "label", "list", "none"])
    assert [row.values for row in reader] == records
    assert [row.where for row in reader] == [f"a:{n}" for n in range(1, 601)]
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])
    parquet.write_table(twice, tmp_path / "b.parquet")
    assert "two columns are named 'text'" in error(tmp_path / "b.parquet").what


# --- CoNLL, SQuAD, spans
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", ["\t", " ", " NNP "])
def test_conll(tmp_path: Path, separator: str) -> None:
    lines = [
        "-DOCSTART- O",
        "",
        "EU B-ORG",
        "rejects O",
        "\t",
        ". O",
        "",
        "-DOCSTART- O",
        "",
        "Peter B-PER",
    ]
    path = write(tmp_path / "a.txt", "\r\n".join(line.replace(" ", separator) for line in lines))
    reader = RowReader(path)
    assert (reader.kind, reader.columns) == ("conll", ["tokens", "tags", "document", "lines"])
    rows = list(reader)
    assert [row.values["tokens"] for row in rows] == [["EU", "rejects"], ["."], ["Peter"]]
    assert [row.values["tags"] for row in rows] == [["B-ORG", "O"], ["O"], ["B-PER"]]
    assert [row.values["document"] for row in rows] == [1, 1, 2]
    assert rows[0].values["lines"] == [f"EU{separator}B-ORG", f"rejects{separator}O"]
    assert [row.where for row in rows] == [f"{path}:{line}" for line in (3, 6, 10)]


def test_conll_without_tags_and_with_strange_tokens(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "EU\nrejects\n\n\u00a0x\n")
    reader = RowReader(path)
    assert reader.columns == ["tokens", "document", "lines"]
    assert [row.values["tokens"] for row in reader] == [["EU", "rejects"], ["\u00a0x"]]
    path = write(tmp_path / "b.conll", "New York\tB-LOC\n\u200b\tO\n")
    assert values(path)[0]["tokens"] == ["New York", "\u200b"]


SQUAD = {
    "version": "v2",
    "data": [
        {
            "title": "Oil",
            "paragraphs": [
                {
                    "context": "It began in 1973.",
                    "qas": [
                        {
                            "id": "a",
                            "question": "When?",
                            "answers": [{"text": "1973", "answer_start": 12}],
                        },
                        {"id": "b", "question": "Who?", "answers": [], "is_impossible": True},
                        {"id": 3, "question": "Why?"},
                    ],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("indent", [None, 2])
def test_squad(tmp_path: Path, indent: int | None) -> None:
    path = write(tmp_path / "dev.json", json.dumps(SQUAD, indent=indent))
    reader = RowReader(path)
    assert reader.kind == "squad"
    rows = list(reader)
    assert [row.where for row in rows] == [f"{path}: question {name}" for name in ("a", "b", "3")]
    assert rows[0].values == {
        "id": "a",
        "title": "Oil",
        "context": "It began in 1973.",
        "question": "When?",
        "answers": [{"text": "1973", "answer_start": 12}],
        "is_impossible": False,
    }
    assert [row.values["is_impossible"] for row in rows] == [False, True, False]
    assert [row.values["answers"] for row in rows][1:] == [[], None]


def test_squad_with_something_missing(tmp_path: Path) -> None:
    broken = json.loads(json.dumps(SQUAD))
    del broken["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"]
    found = error(write(tmp_path / "a.json", json.dumps(broken)))
    assert (found.what, found.where) == (
        "'answer_start' is missing",
        f"{tmp_path / 'a.json'}: question a",
    )
    del broken["data"][0]["paragraphs"][0]["context"]
    assert error(write(tmp_path / "b.json", json.dumps(broken))).where.endswith(
        "article 1, paragraph 1"
    )


@pytest.mark.parametrize(
    "span",
    [
        {"name": "EU", "span": [0, 2], "type": "org"},
        {"start": 0, "end": 2, "label": "org"},
        {"start_offset": 0, "end_offset": 2, "label": "org"},
        {"start": 0, "end": 2, "entity_group": "org"},
        [0, 2, "org"],
    ],
)
@pytest.mark.parametrize("field", ["entities", "spans", "label"])
def test_spans(tmp_path: Path, span: object, field: str) -> None:
    records = [
        {"id": 1, "text": "none", field: []},
        {"id": 2, "text": "EU rejects", field: [span]},
        {"id": 3, "text": "not known", field: None},
    ]
    for name, content in (("a.jsonl", json_lines(*records)), ("b.json", json.dumps(records))):
        reader = RowReader(write(tmp_path / name, content))
        assert (reader.kind, reader.columns) == ("spans", ["id", "text", "entities"])
        rows = [row.values for row in reader]
        assert rows[0] == {"id": 1, "text": "none", "entities": []}
        assert rows[2] == {"id": 3, "text": "not known", "entities": None}
        kept = {"name": "EU"} if isinstance(span, dict) and "name" in span else {}
        assert rows[1]["entities"] == [{"start": 0, "end": 2, "type": "org", **kept}]


def test_a_span_without_end(tmp_path: Path) -> None:
    good = [{"text": "EU", "entities": [[0, 2, "org"]]}] * 200
    path = write(
        tmp_path / "a.jsonl",
        json_lines(*good, {"text": "x", "entities": [{"start": 0, "label": "org"}]}),
    )
    assert error(path).where == f"{path}:201"


# --- writing
# --------------------------------------------------------------------------------------------------

CELLS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "",
        '"',
        '""',
        "a\r\nb",
        "a\rb",
        '"whole"',
        "text",
        "label",
        "\ufeff",
        " x ",
        "\t",
        "a,b",
        "\0",
        "NaN",
        "1.0",
        "'",
    ]
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(
        [
            ".csv",
            ".tsv",
            ".jsonl",
            ".json",
            ".parquet",
            ".csv.gz",
            ".tsv.xz",
            ".jsonl.zst",
            ".csv.bz2",
        ]
    ),
    st.sampled_from([["text"], ["text", "label"], ["id", "text", "a b c"]]),
    st.data(),
)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, columns: list[str], data: st.DataObject
) -> None:
    rows = data.draw(
        st.lists(st.fixed_dictionaries(dict.fromkeys(columns, CELLS)), min_size=1, max_size=6)
    )
    path = tmp_path_factory.mktemp("written") / f"a{suffix}"
    assert write_rows(path, columns, rows) == len(rows)
    assert values(path) == rows
    again = path.with_name(f"again{suffix}")
    write_rows(again, columns, (row.values for row in RowReader(path)))
    assert again.read_bytes() == path.read_bytes()


def test_values_that_are_no_strings(tmp_path: Path) -> None:
    rows = [
        {"a": [1, "ä"], "b": {"x": None}, "c": 1.5, "d": True, "e": None},
        {"a": [], "b": {"x": "y"}, "c": 2, "d": False},
    ]
    columns = ["a", "b", "c", "d", "e"]
    write_rows(tmp_path / "a.csv", columns, rows)
    assert values(tmp_path / "a.csv", header=True) == [
        {"a": '[1, "ä"]', "b": '{"x": null}', "c": "1.5", "d": "true", "e": ""},
        {"a": "[]", "b": '{"x": "y"}', "c": "2", "d": "false", "e": ""},
    ]
    write_rows(tmp_path / "a.jsonl", columns, [*rows, {"z": 1}])
    assert values(tmp_path / "a.jsonl") == [*rows, {"z": 1}]


def test_no_row_is_an_empty_line(tmp_path: Path) -> None:
    """Which other readers pass over."""
    write_rows(tmp_path / "a.csv", ["a"], [{"a": ""}, {"a": None}, {"a": "x"}])
    assert list(csv.reader((tmp_path / "a.csv").read_text().splitlines())) == [
        ["a"],
        [""],
        [""],
        ["x"],
    ]


def test_the_same_rows_are_the_same_bytes_whenever_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "a.csv.gz", ["a"], [{"a": "x"}])
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_rows(tmp_path / "b.csv.gz", ["a"], [{"a": "x"}])
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


def test_parquet_types_widen_as_rows_come(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"n": n, "late": None} for n in range(1200)]
    rows += [{"n": 0.5, "late": "text"}, {"n": None, "late": None}]
    assert write_rows(tmp_path / "a.parquet", ["n", "late", "never"], iter(rows)) == 1202
    read = values(tmp_path / "a.parquet")
    assert [(row["n"], row["late"]) for row in read] == [(row["n"], row["late"]) for row in rows]
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
    with pytest.raises(BertworksError, match="rows 501 to 1000"):
        write_rows(
            tmp_path / "a.parquet", ["n"], ({"n": "word" if n == 700 else n} for n in range(2000))
        )
    assert len(values(tmp_path / "a.parquet")) == 1202
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv.gz", ".jsonl", ".parquet"])
def test_failing_half_way_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    def rows() -> object:
        yield from ({"a": str(n)} for n in range(3000))
        raise BertworksError("it stops here")

    with pytest.raises(BertworksError, match="stops here"):
        write_rows(tmp_path / f"a{suffix}", ["a"], rows())
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written(tmp_path: Path) -> None:
    for name in ("a.xlsx", "a", "a.parquet.gz"):
        with pytest.raises(UsageError, match=name):
            write_rows(tmp_path / name, ["a"], [])
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(BertworksError, match="row 2 has the field 'b'"):
            write_rows(tmp_path / name, ["a"], [{"a": 1}, {"a": 2, "b": 3}])
        with pytest.raises(BertworksError, match="row 1 has the field 'b'"):
            write_rows(tmp_path / name, ["a"], [{"b": 1}])
    with pytest.raises(UsageError, match="stream"):
        write_rows("-", ["a"], [], kind="parquet")
    assert list(tmp_path.iterdir()) == []


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert write_rows("-", ["a", "b"], [{"a": "ä,", "b": 1}]) == 1
    write_rows("-", ["a"], [{"a": "ä"}], kind="jsonl")
    assert capfdbinary.readouterr().out.decode() == 'a,b\n"ä,",1\n{"a": "ä"}\n'


def test_other_readers_agree_about_what_is_written(tmp_path: Path) -> None:
    rows = [{"text": 'He said "no",\nthen left.', "label": "1"}, {"text": "a\tb", "label": ""}]
    for name, delimiter in (("a.csv", ","), ("a.tsv", "\t")):
        write_rows(tmp_path / name, ["text", "label"], rows)
        with (tmp_path / name).open(newline="") as file:
            assert list(csv.DictReader(file, delimiter=delimiter)) == rows


# --- real data
# --------------------------------------------------------------------------------------------------

REAL = {
    "glue/CoLA/train.tsv": ("table", 8551),
    "glue/SST-2/dev.tsv": ("table", 872),
    "glue/MRPC/train.tsv": ("table", 3667),
    "glue/MRPC/msr_paraphrase_train.txt": ("table", 4076),
    "glue/STS-B/train.tsv": ("table", 5749),
    "glue/MNLI/dev-matched-and-mismatched.csv.gz": ("table", 19647),
    "glue/QQP/train-sample.jsonl.gz": ("json", 8999),
    "glue/QNLI/dev.tsv": ("table", 5463),
    "glue/RTE/train.tsv": ("table", 2490),
    "glue/WNLI/test.tsv": ("table", 146),
    "ko/nsmc/ratings_test.txt.gz": ("table", 50000),
    "ko/korsts/sts-train.tsv": ("table", 5749),
    "multiple-choice/codah/train.tsv": ("table", 1665),
    "ner/wikigold/wikigold.conll.txt": ("conll", 1696),
    "ner/wnut17/wnut17train.conll": ("conll", 3394),
    "ner/wnut17/emerging.test.annotated": ("conll", 1287),
    "ja/jaquad/dev.json.gz": ("squad", 3939),
    "ja/ner-wikipedia/ner.json.gz": ("spans", 5343),
    "squad/dev-v2.0.json.gz": ("squad", 11873),
    "ja/jsts/valid.jsonl.gz": ("json", 1457),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files_are_read_whole(data_folder: Path, name: str, tmp_path: Path) -> None:
    reader = RowReader(data_folder / name)
    rows = [row.values for row in reader]
    assert (reader.kind, len(rows)) == REAL[name]
    # GLUE's, KorSTS's and CODAH's tables are raw, all of them
    if reader.kind == "table" and name.endswith(".tsv"):
        raw = (
            (data_folder / name).read_text("utf-8-sig").removesuffix("\n").split("\n")[-len(rows) :]
        )
        assert ["\t".join(row.values()) for row in rows] == raw
    suffix = ".tsv" if reader.kind == "table" else ".jsonl"
    write_rows(tmp_path / f"a{suffix}", reader.columns, rows)
    assert values(tmp_path / f"a{suffix}") == rows


QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"


def test_a_row_broken_over_two_lines_is_joined_and_named(tmp_path: Path) -> None:
    path = write(
        tmp_path / "train.tsv",
        QQP + '1\t3\t4\tHow do I "hack?\tWhy?\t0\n2\t5\t6\tWhat is\nthis?\tAnd that?\t1\n'
        "3\t7\t8\tOne\r\n?\tTwo\t0\r\n"
        "4\t9\t10\tThree\tFour\nFive\t1\n",
    )
    reader = RowReader(path, ReadOptions(quoting="raw"))
    for _ in range(2):  # counted anew in every pass
        rows = list(reader)
        assert [row.values["question1"] for row in rows] == [
            'How do I "hack?',
            "What is\nthis?",
            "One\n?",
            "Three",
        ]
        assert [row.values["question2"] for row in rows] == [
            "Why?",
            "And that?",
            "Two",
            "Four\nFive",
        ]
        assert [row.values["is_duplicate"] for row in rows] == ["0", "1", "0", "1"]
        assert [row.where for row in rows] == [f"{path}:{line}" for line in (2, 3, 5, 7)]
        places = f"3 ({path}:3, {path}:5, {path}:7)"
        assert reader.notes == [f"rows broken over two lines, joined: {places}"]


@pytest.mark.parametrize(
    ("lines", "where", "count"),
    [
        ("1\t2\t3\tq\n4\t5\t6\tq\tq\t1\n", ":2", 4),  # a whole row comes after it
        ("1\t2\t3\tq\nq\tq\t1\t\n", ":2", 4),  # together there are too many
        ("1\t2\t3\tq\n\nq\tq\t1\n", ":2", 4),
        ("1\t2\t3\tq\tq\t1\n1\t2\t3\tq\n", ":3", 4),  # nothing comes after it
        ("1\t2\t3\tq\tq\t1\tx\n", ":2", 7),
    ],
)
def test_what_is_not_just_broken_stays_an_error(
    tmp_path: Path, lines: str, where: str, count: int
) -> None:
    found = error(write(tmp_path / "a.tsv", QQP + lines), quoting="raw")
    assert found.where is not None
    assert found.where.endswith(where)
    assert f"{count} cells" in found.what


def test_quoted_tables_are_not_repaired(tmp_path: Path) -> None:
    found = error(write(tmp_path / "a.csv", "a,b,c\n1,2\n3,4\n"))
    assert found.where is not None
    assert found.where.endswith(":2")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_json_file_is_one_array(count: int, tmp_path: Path) -> None:
    rows = [{"text": f"{n}"} for n in range(count)]
    assert write_rows(tmp_path / "a.json", ["text"], rows) == count
    assert json.loads((tmp_path / "a.json").read_text()) == rows


# --- passes over a file

COUNTED: list[str] = []  # the names of files that were opened; a hook cannot be removed
sys.addaudithook(
    lambda event, arguments: COUNTED.append(str(arguments[0])) if event == "open" else None
)


def numbered_rows(count: int, suffix: str) -> str:
    """Rows of a file of this suffix, with their numbers from 0."""
    if suffix == ".jsonl":
        return json_lines(*({"text": f"text {n}", "n": n} for n in range(count)))
    separator = "\t" if suffix == ".tsv" else ","
    return f"text{separator}n\n" + "".join(f"text {n}{separator}{n}\n" for n in range(count))


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".json", ".tsv", ".csv.gz"])
@pytest.mark.parametrize("count", [3, 1500])
def test_a_file_is_opened_once_for_each_pass_and_a_small_one_once(
    count: int, suffix: str, tmp_path: Path
) -> None:
    content = numbered_rows(count, suffix.removesuffix(".gz")).encode()
    if suffix == ".json":
        content = json.dumps([{"text": f"text {n}", "n": n} for n in range(count)]).encode()
    path = write(
        tmp_path / f"a{suffix}", gzip.compress(content) if suffix.endswith("gz") else content
    )
    COUNTED.clear()
    reader = RowReader(path)
    opens = [COUNTED.count(str(path))]

    def count_opens() -> None:
        opens.append(COUNTED.count(str(path)) - sum(opens))

    assert [int(row.values["n"]) for row in reader.sample(5)] == list(range(min(count, 5)))
    count_opens()
    assert [int(row.values["n"]) for row in reader] == list(range(count))
    count_opens()
    reader.load()
    count_opens()
    assert [int(row.values["n"]) for row in reader] == list(range(count))
    count_opens()
    is_small = count == 3
    # the first pass over a large file continues where it was recognized
    assert opens == [1, 0, 0, 0 if is_small else 1, 0]


def test_an_error_behind_the_first_rows_is_one_of_the_pass(tmp_path: Path) -> None:
    content = numbered_rows(300, ".csv").replace("text 250,250", "text 250")
    reader = RowReader(write(tmp_path / "a.csv", content))
    assert [row.values["n"] for row in reader.sample(250)] == [str(n) for n in range(250)]
    for read in (list, lambda rows: list(rows.sample(251)), RowReader.load):
        with pytest.raises(BertworksError, match="1 cells, but the first row has 2") as caught:
            read(reader)
        assert caught.value.where == f"{tmp_path / 'a.csv'}:252"


def test_rows_in_memory_have_the_notes_of_their_pass(tmp_path: Path) -> None:
    content = "a\tb\tc\n1\t2\t3\n4\t5\n6\t7\n"
    reader = RowReader(write(tmp_path / "a.tsv", content))
    for _ in range(2):
        rows = [row.values for row in reader]
        assert rows[1] == {"a": "4", "b": "5\n6", "c": "7"}
        assert reader.notes == [f"rows broken over two lines, joined: 1 ({tmp_path / 'a.tsv'}:3)"]


def test_a_file_that_changes_is_refused_though_its_rows_are_in_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", numbered_rows(3, ".csv"))
    reader = RowReader(path)
    write(path, numbered_rows(4, ".csv"))
    with pytest.raises(BertworksError, match="changed while it was read"):
        list(reader)


def test_a_hash_of_a_file_and_its_content(tmp_path: Path) -> None:
    first = RowReader(write(tmp_path / "a.csv", numbered_rows(3, ".csv")))
    second = RowReader(write(tmp_path / "b.csv", numbered_rows(3, ".csv")))
    assert first.content_identity() == second.content_identity()
    assert first.fingerprint("x") == first.fingerprint("x")
    assert first.fingerprint("x") not in (second.fingerprint("x"), first.fingerprint("y"))
    third = RowReader(first.path, ReadOptions(header=True))
    assert first.content_identity() != third.content_identity()
    with pytest.raises(UsageError, match="this is the input file"):
        first.refuse_output(tmp_path / "a.csv")
    first.refuse_output(tmp_path / "b.csv")


def test_a_line_of_empty_lists_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BertworksError, match="empty lists or objects are not data") as caught:
        parse_json(f"[{'[],' * 300_000}[]]", "a.json", 7)
    assert (caught.value.where, caught.value.hint) == (
        "a.json:7",
        "repair the line, or leave it out",
    )


def nested_file(path: Path, count: int) -> Path:
    rows = [
        {"text": {"a.b": f"film {n}", "n": n}, "labels": {"label": "ab"[n % 2], "x": {"y": n}}}
        for n in range(count)
    ]
    return write(path, "".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize("count", [3, 1500])
def test_fields_within_objects_are_columns_once_they_are_named(count: int, tmp_path: Path) -> None:
    path = nested_file(tmp_path / "a.jsonl", count)
    reader = RowReader(path)
    assert reader.columns == ["text", "labels"]
    names = ("text.a.b", "labels.label", "labels.x.y")
    assert [reader.find_column(name, "--text") for name in names] == [*names]
    assert reader.find_column("labels.label", "--label") == "labels.label"
    assert reader.columns == ["text", "labels", *names]
    assert reader.written_columns == ["text", "labels"]
    for attempt in range(3):
        rows = list(reader)
        assert [row.values["text.a.b"] for row in rows] == [f"film {n}" for n in range(count)]
        assert [row.values["labels.x.y"] for row in rows] == [*range(count)]
        assert rows[-1].written == {name: rows[-1].values[name] for name in ("text", "labels")}
        assert [row.values["labels.label"] for row in reader.sample(3)] == ["a", "b", "a"]
        if attempt:
            reader.load()
    assert RowReader(path, known=("labels.label", "none")).columns[2:] == ["labels.label"]
    with pytest.raises(UsageError, match=r"the fields within them: text\.a\.b, text\.n") as caught:
        RowReader(path).find_column("labels.labl", "--label")
    assert caught.value.hint == "did you mean --label labels.label?"


def test_a_row_without_the_named_field_has_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"t": {"a": "x"}}\n{"t": null}\n{"t": {"b": {}}}\n')
    reader = RowReader(path)
    reader.find_column("t.a", "--text")
    assert [row.values["t.a"] for row in reader] == ["x", None, None]
