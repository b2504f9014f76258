"""Names of labels as rows of a linear head.

With few rows of each label the name of a label says as much as a row: "card arrival" is a text of
this label. Such rows are trained on and never held out.

- `words_of`: the words in the name of a label
- `label_rows`: the rows of the labels of some data
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Item
from bertworks.errors import expect, first_names, require, some_names
from bertworks.runs.data_splits import LabelledData, has_classes_of_texts, rows_per_class

# Of each label: with fewer rows, names of labels are rows (docs/experiments, 2026-11-30).
FEW_OF_LABEL = 8
_LISTED = 4  # labels in a note
_SHOWN = 20  # in an error
_SEPARATORS = re.compile(r"[\s_\-/.:|]+|(?<=[^\W\d_A-Z])(?=[A-Z])")
_WORD = re.compile(r"[^\W\d_]{3,}")
_NUMBERED = re.compile(r"[^\W\d_]+ ?#?\d+")  # label_3, TICKET-17
_CODE = re.compile(r"(?=\w*\d)(?=\w*[^\W\d])\w+")  # letters and digits in one word: 4f2a
COLUMNS = ("label", "text")  # of a file of descriptions


def words_of(label: str) -> str:
    """Return the words in the name of a label, or "" if it is a number, a code or a letter.

    "card_arrival" and "cardArrival" have the words "card arrival".
    """
    words = _SEPARATORS.sub(" ", unicodedata.normalize("NFKC", label)).strip()
    is_code = _NUMBERED.fullmatch(words) or any(map(_CODE.fullmatch, words.split()))
    return "" if is_code or not _WORD.search(words) else words


def label_rows(data: LabelledData, descriptions: str | None) -> tuple[list[Item], list[str]]:
    """Return rows with the names of labels as texts, and notes.

    With FEW_OF_LABEL rows of a label or more there are no such rows, unless there are
    descriptions. Labels with the same words in their names get no row.

    Args:
        descriptions: a file with the columns "label" and "text": texts that describe labels, in
            place of their names.

    Raises:
        UsageError: the data have no labels of single texts.
        BertworksError: the file has other columns, a label that is not in the data, or no text.
    """
    labels = data.schema.labels
    if descriptions is not None:
        expect(
            has_classes_of_texts(data.schema),
            "descriptions of labels are for data with one text and one label in each row",
            hint="leave out --label-descriptions",
        )
        rows = _read_descriptions(Path(descriptions), labels)
    elif has_classes_of_texts(data.schema) and rows_per_class(data) < FEW_OF_LABEL:
        rows = []
    else:
        return [], []
    by_words: dict[str, list[str]] = defaultdict(list)
    for label in labels:
        by_words[words_of(label).casefold()].append(label)
    nameless = by_words.pop("", [])
    described = {row.label for row in rows}
    notes = []
    if described:
        notes.append(f"descriptions of labels are rows of the linear head ({len(rows):,})")
    names: list[Item] = []
    for group in by_words.values():
        missing = [label for label in group if label not in described]
        if len(group) == 1:
            names += [Item((words_of(label),), label, f"label {label!r}") for label in missing]
        elif missing:
            notes.append(
                "labels with the same words in their names are not used as rows: "
                f"{some_names(group)}"
            )
    if names:
        examples = first_names([f"{row.texts[0]!r}" for row in names], _LISTED)
        notes.append(f"names of labels are rows of the linear head ({len(names):,}): {examples}")
    missing = [label for label in nameless if label not in described]
    if missing:
        notes.append(
            f"labels without words in their names: {first_names(missing, _LISTED)}; "
            "--label-descriptions FILE says what they mean"
        )
    return rows + names, notes


def _read_descriptions(path: Path, labels: Sequence[str]) -> list[Item]:
    """Return a row for each description in a file."""
    rows = []
    for row in RowReader(path):
        for column in COLUMNS:
            require(
                column in row.values,
                f"descriptions of labels need the column {column!r}, and there are: "
                f"{first_names(list(row.values), _SHOWN)}",
                path,
                "name the columns label and text",
            )
        values = (row.values[column] for column in COLUMNS)
        label, text = ("" if value is None else str(value).strip() for value in values)
        require(
            label in labels,
            f"{label!r} is not a label of the data",
            row.where,
            f"the labels are: {first_names(list(labels), _SHOWN)}",
        )
        require(text, f"the description of {label!r} is empty", row.where, "write a text")
        rows.append(Item((text,), label, row.where))
    return rows
