"""Tables: delimiters, quotes and headers; columns of texts; rows in memory."""

import csv
import gc
import io
import json
import math
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from bertworks.errors import BertworksError, UsageError
from bertworks.io import tables
from bertworks.io.inputs import Issues

CELLS = st.lists(st.text("ab\"',;\t x", max_size=6), min_size=2, max_size=4)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2k", 2048), ("1.5 GiB", 3 << 29), ("16m", 16 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert tables.parse_size(text, "--max-memory") == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1x", "m"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        tables.parse_size(text, "--max-memory")


@pytest.mark.parametrize(
    ("line", "format", "delimiter"),
    [("a,b", None, ","), ("a;b;c,d", "csv", ";"), ("a\tb", "csv", "\t"), ("a,b", "tsv", "\t")],
)
def test_the_delimiter_of_a_line(line: str, format: str | None, delimiter: str) -> None:
    assert tables.delimiter_of(["", line], format) == delimiter


@given(st.lists(CELLS, min_size=1, max_size=5))
def test_quoted_rows_as_the_library_of_python_writes_them(rows: list[list[str]]) -> None:
    file = io.StringIO()
    csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    lines = enumerate(file.getvalue().split("\n")[:-1], 1)
    read = tables.split_rows(lines, ",", quoted=True, name="a.csv", strict=True)
    assert list(read) == list(enumerate(rows, 1))


def test_an_open_quote_mark_is_named_with_its_row() -> None:
    lines = [(1, 'a,"b'), (2, "c"), (3, "")]
    with pytest.raises(BertworksError, match="opened here and never closed") as caught:
        list(tables.split_rows(lines, ",", quoted=True, name="a.csv", strict=True))
    assert caught.value.where == "a.csv:1"


@pytest.mark.parametrize(
    ("lines", "matter"),
    [
        (["a\tb"], False),
        (['he said "no"\tx', "b\ty"], False),
        (['"a\tb"\tx', "c\ty"], True),
        (['"a"\t"b"', "c\td"], True),
    ],
)
def test_whether_quote_marks_enclose_cells(lines: list[str], matter: bool) -> None:
    assert tables.quotes_matter(lines) is matter


def test_rows_that_a_newline_has_broken() -> None:
    rows = [(1, ["a", "b", "c"]), (2, ["d", "e"]), (3, ["f", "g"]), (4, ["h"]), (5, ["i"])]
    counts = Issues()
    joined = list(tables.rejoin_broken_rows(rows, 3, counts, "a.tsv"))
    assert joined == [(1, ["a", "b", "c"]), (2, ["d", "e\nf", "g"]), (4, ["h"]), (5, ["i"])]
    (counter,) = counts.values()
    assert counter.places == ["a.tsv:2"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [(["text", "label"], True), (["text", "text"], False), (["a good film.", "1"], False)],
)
def test_names_of_columns(row: list[str], expected: bool) -> None:
    assert tables.is_header(row) is expected


def test_the_column_of_the_text() -> None:
    columns = {"id": ["1", "2"], "review": ["a film that is long", "and another long one"]}
    assert tables.choose_column(columns, "a.csv", None) == "review"
    assert tables.choose_column(columns, "a.csv", "id") == "id"
    with pytest.raises(UsageError, match="no column 'Review'") as caught:
        tables.choose_column(columns, "a.csv", "Review")
    assert "did you mean --text-column review?" in str(caught.value.hint)
    with pytest.raises(BertworksError, match="no column looks like text"):
        tables.choose_column({"id": ["1"]}, "a.csv", None)


def test_batches_of_parquet_hold_all_rows_in_order(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"text {number}" for number in range(1000)]
    parquet.write_table(pyarrow.table({"text": texts, "n": range(1000)}), path, row_group_size=300)
    with tables.open_parquet(path, "a.parquet") as file:
        batches = list(tables.batches_of(file, ["text"], "a.parquet"))
    assert [text for batch in batches for text in batch["text"].to_pylist()] == texts
    assert max(map(len, batches)) <= 256
    with (
        pytest.raises(BertworksError, match="a row has more than 3 bytes"),
        tables.open_parquet(path, "a.parquet") as file,
    ):
        list(tables.batches_of(file, ["text"], "a.parquet", 3))


def test_rows_in_memory_are_a_file_as_long_as_their_owner() -> None:
    rows = tables.StoredRows({"text": ["a", "ü"], "n": np.array([1, 2])})
    path = Path(rows)
    lines = path.read_text("utf-8").splitlines()
    assert list(map(json.loads, lines)) == [{"text": "a", "n": 1}, {"text": "ü", "n": 2}]
    del rows
    gc.collect()
    assert not path.exists()


def test_texts_of_lists_and_of_tables() -> None:
    assert list(tables.texts_of(["a", "b"], "")) == ["a", "b"]
    assert list(tables.texts_of([{"text": "a", "n": 1}], "")) == ["a"]
    with pytest.raises(UsageError, match="text 2 is None"):
        list(tables.texts_of(["a", None], ""))


def test_values_of_json() -> None:
    assert tables.as_json({"a": math.nan, "b": [math.inf]}) == '{"a": null, "b": ["inf"]}'
    assert tables.as_json("ü") == '"ü"'
