"""Read parallel text: sentences and their translations.

They come from a table of two columns or from two files with the same number of lines.

Only a line feed ends a line. A carriage return, a line separator of Unicode (U+2028) or a NEL
(U+0085) inside a line is part of the sentence: else all later sentences would stand next to the
wrong translation.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bertworks.errors import BertworksError, expect, printable, require
from bertworks.io.inputs import IssueCounter, Issues, LineReader, as_path, open_lines
from bertworks.io.tables import delimiter_of, is_header, split_rows

_ALIGNED = "give a sentence and its translation in each line, without lines that have no text"
# A pair is suspicious if its ratio of lengths differs from the usual one by this factor, and its
# longer side has this number of characters: a word and its translation may differ as much.
_FAR = 3.0
_SHORTEST_FAR = 20
# Lengths tell whether two sides are in the same order only if long texts have long partners. Titles
# of abstracts do not: in the right order their ratios vary as much as in a wrong one.
_LARGEST_RATIO = 5.0
_SUSPICIOUS = 0.1  # the fraction of suspicious pairs that is worth a warning
_INSIDE = "carriage returns inside lines (they end no line)"
_OTHER_ENDS = "other line separators inside lines (they end no line)"
_NumberedRow = tuple[int, Sequence[str]]  # the number of its line, its cells
_SEPARATORS = re.compile("[\\v\\f\\x1c-\\x1e\\x85\\u2028\\u2029]")


@dataclass(frozen=True)
class Translations:
    """Pairs of sentences, with counts of pairs that a person should look at.

    Attributes:
        pairs: the two sides of each line.
        files: the names of the files, one or two.
        issues: counts and places ("file:line") of lines that a person should look at.
        num_identical: the number of pairs with the same text on both sides.
        usual_ratio: the median, over the pairs, of the characters of the second side for each of
            the first.
        num_far: the number of pairs whose ratio differs from the median by a factor of more than 3.
        header: the names of the columns in the first row of a .csv file; empty: it has none.
    """

    pairs: list[tuple[str, str]]
    files: list[str]
    issues: Issues
    num_identical: int
    usual_ratio: float
    num_far: int
    header: Sequence[str] = ()

    def notes(self) -> list[str]:
        """Return sentences to read before the pairs are used, with two of the pairs."""
        number = len(self.pairs)
        unit = "rows" if self.header else "lines"
        where = f"{unit} 1 to {number:,} of {' and '.join(self.files)}"
        text = (
            f"translations: {number:,} pairs, {where}; {self.num_identical / number:.1%} are "
            "the same on both sides; "
        )
        text += (
            f"the second side has {self.usual_ratio:.2f} times the characters of the first (median)"
        )
        examples = [
            f"example  {first[:60]!r} -> {second[:60]!r}" for first, second in self.pairs[:2]
        ]
        notes = [
            text,
            *examples,
            *(f"{name}: {counter}" for name, counter in self.issues.items() if counter.count),
        ]
        if self.header:
            notes.append(f"the first row is a header, not a pair: {' and '.join(self.header)}")
        has_like_sides = 1 / _LARGEST_RATIO < self.usual_ratio < _LARGEST_RATIO
        if has_like_sides and self.num_far > _SUSPICIOUS * number:
            notes.append(
                "warning: the lengths of many pairs do not fit: are the two sides in the same "
                "order?"
            )
        if self.num_identical > _SUSPICIOUS * number:
            notes.append(
                "warning: many pairs are the same on both sides: is one side not translated?"
            )
        return list(map(printable, notes))


def read_translations(files: Sequence[str | Path]) -> Translations:
    """Read translations: two columns of a table, or the lines of two files.

    The columns are separated by tabs, or those of a .csv file. Its first row is a header if both
    cells are single words.

    Raises:
        UsageError: no file, or more than two.
        BertworksError: a file has carriage returns in place of line feeds, one has more lines than
            the other, a line has no text on one side, or not two columns.
    """
    expect(
        0 < len(files) < 3,
        f"{len(files)} files of translations: expected a table of two columns, or two files",
    )
    names = list(map(str, files))
    issues = Issues()
    columns = []
    header: Sequence[str] = ()
    rows: list[_NumberedRow] = []
    for path in files:
        with open_lines(as_path(path), str(path)) as reader:
            if len(files) == 1 and reader.format == "csv":
                header, rows = _csv_rows(reader, str(path))
            else:
                columns.append(_lines(reader, str(path), issues))
    if len(files) == 2 and len(columns[0]) != len(columns[1]):
        shorter = int(len(columns[1]) < len(columns[0]))
        raise BertworksError(
            f"{names[0]} has {len(columns[0]):,} lines, {names[1]} has {len(columns[1]):,}: "
            "expected the same number",
            where=f"{names[shorter]}:{len(columns[shorter]) + 1}",
            hint=_ALIGNED,
        )
    if len(columns) == 2:
        rows = list(enumerate(zip(*columns, strict=True), 1))
    elif columns:
        rows = [(number, line.split("\t")) for number, line in enumerate(columns[0], 1)]
    require(rows, "the file has no lines", names[0], _ALIGNED)
    pairs = []
    empty_sides = IssueCounter()
    for number, row in rows:
        require(
            len(row) == 2,
            f"{len(row)} columns: expected two, separated by a tab, or those of a .csv file",
            f"{names[0]}:{number}",
            _ALIGNED,
        )
        pairs.append((row[0].strip(), row[1].strip()))
        for side, text in enumerate(pairs[-1]):
            if not text:
                empty_sides.add(f"{names[side % len(names)]}:{number}")
    if empty_sides.count:
        raise BertworksError(
            f"no text on one side of a translation, in {empty_sides.count:,} places: {empty_sides}",
            where=empty_sides.places[0],
            hint=_ALIGNED,
        )
    usual_ratio = median(len(second) / len(first) for first, second in pairs)
    num_identical = 0
    num_far = 0
    for (number, _), (first, second) in zip(rows, pairs, strict=True):
        place = f"{names[0]}:{number}"
        if first == second:
            num_identical += 1
            issues["pairs with the same text on both sides"].add(place)
        ratio = len(second) / len(first) / usual_ratio
        if abs(math.log(ratio)) > math.log(_FAR) and max(len(first), len(second)) >= _SHORTEST_FAR:
            num_far += 1
            issues[
                f"pairs whose lengths differ by a factor of more than {_FAR:g} from the usual ratio"
            ].add(place)
    return Translations(pairs, names, issues, num_identical, usual_ratio, num_far, header)


def _csv_rows(reader: LineReader, name: str) -> tuple[Sequence[str], list[_NumberedRow]]:
    """Return the header of a .csv file, empty if it has none, and its rows."""
    reader.require_line_feeds()
    delimiter = delimiter_of(reader.sample(), "csv")
    rows: list[_NumberedRow] = [
        (number, [cell.replace("\n", " ") for cell in row])
        for number, row in split_rows(reader.lines(), delimiter, quoted=True, name=name)
        if row
    ]
    first = list(rows[0][1]) if rows else []
    if first and is_header(first) and all(len(cell.split()) == 1 for cell in first):
        return first, rows[1:]
    return (), rows


def _lines(reader: LineReader, name: str, issues: Issues) -> list[str]:
    """Return the lines of a file.

    Characters inside them that other programs take for line ends are counted.
    """
    reader.require_line_feeds()
    lines = []
    for number, line in reader.lines():
        if "\r" in line.strip():
            issues[_INSIDE].add(f"{name}:{number}")
        if _SEPARATORS.search(line.strip()):
            issues[_OTHER_ENDS].add(f"{name}:{number}")
        lines.append(line)
    return lines
