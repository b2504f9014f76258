"""Rows are written in blocks, and the joined blocks are the file; `reader` reads the same cells."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from bertworks.datasets.reader import RowReader
from bertworks.datasets.writer import (
    FileKind,
    RowFormat,
    format_of,
    join_portions,
    row_portion,
    write_rows,
)
from bertworks.errors import BertworksError, UsageError
from bertworks.io.file_job import create
from bertworks.io.inputs import IssueCounter

ROWS = [
    {"n": 1, "text": 'She said "no", and left.'},
    {"n": 2, "text": "two\nlines"},
    {"n": 3, "text": "=SUM(A1)"},
    {"n": None, "text": ""},
]
KINDS: tuple[FileKind, ...] = ("csv", "tsv", "jsonl", "json")


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_the_file(kind: FileKind, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    assert write_rows(path, ["n", "text"], ROWS) == 4
    row_format = format_of(path, ["n", "text"])
    for cut in range(5):
        blocks = [row_format.block(ROWS[:cut]), row_format.block(ROWS[cut:], cut + 1)]
        row_format.join(tmp_path / "b", lambda: blocks)  # noqa: B023
        assert (tmp_path / "b").read_bytes() == path.read_bytes()


def test_a_table_as_the_library_of_python_reads_it() -> None:
    row_format = RowFormat(name="a.csv", kind="csv", columns=["n", "text"])
    rows = list(csv.reader(io.StringIO(row_format.block(ROWS).decode(), newline="")))
    assert rows == [[str(row["n"] or ""), row["text"]] for row in ROWS]


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_an_array_of_json(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    write_rows(tmp_path / "a.json", ["n", "text"], rows)
    assert json.loads((tmp_path / "a.json").read_text()) == rows


def test_types_of_blocks_of_parquet_are_joined(tmp_path: Path) -> None:
    row_format = format_of(tmp_path / "a.parquet", ["x", "y"])
    blocks = [
        row_format.block([{"x": 1, "y": None}]),
        row_format.block([{"x": 2.5, "y": ["a"]}, {"x": None}], 2),
    ]
    row_format.join(tmp_path / "a.parquet", lambda: blocks)
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pydict() == {"x": [1.0, 2.5, None], "y": [None, ["a"], None]}
    text_blocks = [blocks[0], row_format.block([{"x": "a"}], 2)]
    with pytest.raises(BertworksError, match="rows 2 to 2 cannot be written as Parquet"):
        row_format.join(tmp_path / "b.parquet", lambda: text_blocks)
    assert not (tmp_path / "b.parquet").exists()


def test_formulas_are_counted_at_their_rows_and_guarded() -> None:
    formulas = IssueCounter()
    row_format = RowFormat(name="a.csv", kind="csv", columns=["text"], guard_formulas=True)
    block = row_format.block([{"text": "=1"}, {"text": "-1"}, {"text": "@a"}], 11, formulas)
    assert block == b"'=1\n-1\n'@a\n"
    assert formulas.places == ["row 11, column 'text'", "row 13, column 'text'"]


def test_a_field_that_is_no_column_is_named_with_its_row() -> None:
    row_format = RowFormat(name="a.csv", kind="csv", columns=["text"])
    with pytest.raises(BertworksError, match="row 8 has the field 'more'") as caught:
        row_format.block([{"text": "a"}, {"more": "b"}], 7)
    assert "jsonl" in str(caught.value.hint)


def test_portions_are_joined_with_what_they_counted(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    row_format = format_of(tmp_path / "a.csv", ["=x"])
    names = [
        create(folder, "0123456789abcdef", number, 0, row_portion(row_format, [row], number + 1))
        for number, row in enumerate([{"=x": "+a"}, {"=x": "b"}])
    ]
    note = join_portions(row_format, tmp_path / "a.csv", [folder / name for name in names])
    assert (tmp_path / "a.csv").read_text() == "=x\n+a\nb\n"
    assert note is not None
    assert "2 (header, column '=x', row 1, column '=x')" in note


def test_compression_and_kinds(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.csv.gz", ["text"], [{"text": "one"}, {"text": "two"}])
    assert [row.values["text"] for row in RowReader(tmp_path / "a.csv.gz")] == ["one", "two"]
    for kind, message in (("conll", "words and tags"), ("parquet", "to a stream")):
        with pytest.raises(UsageError, match=message):
            format_of("-", ["text"], kind=kind)  # type: ignore[arg-type]
