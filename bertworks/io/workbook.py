"""A sheet of an Excel file as rows of cells, each a string as in a file of comma-separated values.

- `is_workbook`: whether a file is one
- `Sheet`: the rows of a sheet
"""

import json
import tempfile
import warnings
import weakref
import zipfile
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

from bertworks.errors import BertworksError, UsageError, first_names, optional_import, quoted
from bertworks.io.inputs import too_large

_MOST_BYTES = 1 << 32  # of all parts, without compression: openpyxl has some of them in memory


def is_workbook(path: Path) -> bool:
    """Return whether a file is an Excel file of the present kind: .xlsx or .xlsm."""
    if not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except zipfile.BadZipFile:
        return False


class Sheet:
    """The rows of a sheet, copied once to a temporary file, which is deleted with this object.

    Args:
        path: the file. name: in messages.
        title: of the sheet; None: the first one.
        largest: bytes of a row.

    Attributes:
        note: which sheet is read, in words.

    Raises:
        BertworksError: openpyxl is not installed; the file is damaged; a row is too large.
        UsageError: there is no such sheet.
    """

    def __init__(self, path: Path, name: str, title: str | None, largest: int):
        try:
            with optional_import("a file of Excel", '"bertworks[excel]"'):
                from openpyxl import load_workbook
        except BertworksError as error:
            error.where = name
            error.hint = f"{error.hint}; or save the sheet as .csv (UTF-8) in Excel"
            raise
        with zipfile.ZipFile(path) as archive:
            size = sum(part.file_size for part in archive.infolist())
        if size > _MOST_BYTES:
            raise BertworksError(
                f"the file of Excel has {size / 1e9:.1f} GB without compression",
                where=name,
                hint="save the sheet as .csv (UTF-8) in Excel",
            )
        self._width = 0
        with tempfile.NamedTemporaryFile(
            "w", prefix="bertworks-sheet-", suffix=".jsonl", delete=False, encoding="utf-8"
        ) as file:
            self._copy = Path(file.name)
            weakref.finalize(self, self._copy.unlink, missing_ok=True)
            try:
                with warnings.catch_warnings():  # on charts and formats, which are not read
                    warnings.simplefilter("ignore")
                    workbook = load_workbook(path, read_only=True, data_only=True)
                    titles = [sheet.title for sheet in workbook.worksheets]
                    self.note = self._choose(titles, title, name)
                    sheet = workbook[titles[0] if title is None else title]
                    sheet.reset_dimensions()  # some programs write wrong ones
                    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
                        cells = list(map(_text_of, row))
                        while cells and not cells[-1]:
                            cells.pop()
                        self._width = max(self._width, len(cells))
                        line = json.dumps(cells)
                        if len(line) > largest:
                            raise too_large(f"{name}:{number}", largest, "")
                        file.write(f"{line}\n")
                    workbook.close()
            except (BertworksError, MemoryError):
                raise
            except Exception as error:  # openpyxl raises what its parsers raise
                raise BertworksError(
                    f"the file of Excel is damaged: {error}",
                    where=name,
                    hint="open it in Excel, and save the sheet as .csv (UTF-8)",
                ) from error

    @staticmethod
    def _choose(titles: list[str], title: str | None, name: str) -> str:
        """Return which of the sheets is read, in words."""
        if not titles or title not in (None, *titles):
            raise UsageError(
                f"there is no sheet {title or ''!r}; the sheets are: {first_names(titles)}",
                where=name,
                hint=f"--sheet {quoted(titles[0])}" if titles else "name a file with a sheet",
            )
        further = [other for other in titles if other != (title or titles[0])]
        note = f"sheet: {title or titles[0]}"
        return f"{note} (others, with --sheet: {first_names(further)})" if further else note

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number of each row in the sheet, from 1, and its cells; [] for a blank row."""
        with self._copy.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                cells = json.loads(line)
                yield number, cells + [""] * (self._width - len(cells)) if cells else []


def _text_of(value: Any) -> str:
    """Return a cell as Excel writes it to a file of comma-separated values."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime) and (value.hour, value.minute, value.second) == (0, 0, 0):
        return value.date().isoformat()
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    return str(value)
