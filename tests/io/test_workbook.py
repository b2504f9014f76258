"""Files of Excel: their rows are those of the .csv file that Excel writes."""

import datetime
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, UsageError
from bertworks.io.options import ReadOptions
from bertworks.io.workbook import Sheet, is_workbook
from tests.support.shell import Shell
from tests.support.tables import read_table

TEXTS = ["A warm and funny film.", "Two hours that felt like four.", "I was bored all the time."]


def write_workbook(path: Path, **sheets: Sequence[Sequence[Any]]) -> Path:
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for title, rows in sheets.items():
        sheet = workbook.create_sheet(title)
        for row in rows:
            sheet.append(list(row))
    workbook.save(path)
    return path


def test_cells_are_those_of_a_csv_file(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 3, 1)
    row = [1, 2.0, 2.5, True, None, " a\nb", day, day.replace(hour=7), day.date(), "x"]
    path = write_workbook(tmp_path / "a.xlsx", one=[["h"], [], row])
    sheet = Sheet(path, "a.xlsx", None, 1 << 20)
    cells = ["1", "2", "2.5", "TRUE", "", " a\nb", "2024-03-01", "2024-03-01 07:00:00"]
    assert list(sheet.rows()) == [
        (1, ["h"] + [""] * 9),
        (2, []),
        (3, [*cells, "2024-03-01", "x"]),
    ]
    assert sheet.note == "sheet: one"


def test_a_sheet_is_a_table_like_its_csv_file(tmp_path: Path) -> None:
    rows = [["text", "label"], [TEXTS[0], "pos"], [], [TEXTS[1], None], [TEXTS[2], "neg"]]
    path = write_workbook(tmp_path / "a.xlsx", Notes=[["a note"]], data=rows)
    csv = tmp_path / "a.csv"
    csv.write_text("".join(",".join(cell or "" for cell in row) + "\n" for row in rows))
    reader = RowReader(path, ReadOptions(sheet="data"))
    same = RowReader(csv)
    assert reader.columns == same.columns == ["text", "label"]
    assert [row.values for row in reader] == [row.values for row in same]
    assert [row.where for row in reader] == [f"{path}:{n}" for n in (2, 4, 5)]
    assert reader.header_note == "sheet: data (others, with --sheet: Notes); header: yes"
    assert [row.values for row in reader] == [row.values for row in same]  # another pass
    with pytest.raises(UsageError, match="no sheet 'Data'; the sheets are: Notes, data"):
        RowReader(path, ReadOptions(sheet="Data"))
    with pytest.raises(UsageError, match="--sheet is for files of Excel"):
        RowReader(csv, ReadOptions(sheet="data"))
    unnamed = RowReader(
        write_workbook(tmp_path / "b.xlsx", one=rows[1:]), ReadOptions(header=False)
    )
    assert unnamed.columns == ["column 1", "column 2"]
    assert len(list(unnamed)) == 3


def test_what_is_no_sheet_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = write_workbook(tmp_path / "empty.xlsx", one=[], two=[["a"]])
    with pytest.raises(BertworksError, match=r"sheet: one .*it is empty"):
        RowReader(empty)
    large = write_workbook(tmp_path / "large.xlsx", one=[["text"], ["a" * 3000]])
    with pytest.raises(BertworksError, match="more than 2,000 bytes") as caught:
        RowReader(large, ReadOptions(max_row_bytes="2000"))
    assert caught.value.where == f"{large}:2"
    damaged = tmp_path / "damaged.xlsx"
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook")
    assert is_workbook(damaged)
    with pytest.raises(BertworksError, match="the file of Excel is damaged"):
        RowReader(damaged)
    monkeypatch.setattr("bertworks.io.workbook._MOST_BYTES", 1000)
    with pytest.raises(BertworksError, match="GB without compression"):
        RowReader(large)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(BertworksError, match="a file of Excel needs a package") as caught:
        RowReader(large)
    assert caught.value.where == str(large)
    assert 'pip install "bertworks[excel]"; or save the sheet as .csv' in str(caught.value.hint)


def test_commands_read_a_sheet(model: Path, shell: Shell) -> None:
    rows = [[f"{TEXTS[n % 2]} {n}", ("pos", "neg")[n % 2]] for n in range(40)]
    data = write_workbook(Path("a.xlsx"), one=[["text", "label"], *rows])
    answer = shell.works("check", data, "--model", model)
    shell.shows(answer, "sheet        one; header: yes")
    shell.works("finetune", data, "--model", model, "-o", "out", "--method", "frozen")
    shell.works("predict", "out", data, "-o", "scored.csv")
    assert [row["text"] for row in read_table("scored.csv")] == [text for text, _ in rows]
