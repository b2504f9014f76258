"""Options of files and of large jobs, as they are typed."""

import shlex
from pathlib import Path

import pytest

from bertworks.datasets.reader import RowReader
from bertworks.errors import UsageError
from bertworks.io.options import ReadOptions
from tests.scenarios.test_memory import write


def test_options_as_they_are_typed() -> None:
    options = ReadOptions(decimal=",", label_separator=";", label_names="a,b")
    assert shlex.join(options.words) == "--decimal , --label-separator ';' --label-names a,b"


@pytest.mark.parametrize("size", ["0", "much", "-1m"])
def test_a_size_that_is_none(tmp_path: Path, size: str) -> None:
    with pytest.raises(UsageError, match="--max-row-bytes"):
        RowReader(write(tmp_path / "a.csv", "text,label\na,b\n"), ReadOptions(max_row_bytes=size))


def test_columns_have_numbers():
    assert ReadOptions(columns="word=2, tag=4").numbers_of_columns == {"word": 2, "tag": 4}
    assert ReadOptions().numbers_of_columns == {}
    with pytest.raises(UsageError, match="names no columns"):
        assert ReadOptions(columns="word").numbers_of_columns
