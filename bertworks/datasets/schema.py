"""Rows of labelled data -> items: texts and the label, before tokenization. Every value is checked.

A `Schema` says what the columns mean; nothing is inferred here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from bertworks.datasets import values
from bertworks.datasets.reader import Row, RowReader
from bertworks.errors import BertworksError
from bertworks.io.tables import find_column
from bertworks.io.text_files import IssueCounter

TaskType = Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]


class Item(NamedTuple):
    """The texts and the label of one row."""

    # one text; two for a pair; tagging: the words; spans: the text; qa: question, context; choice: prompt, choices
    texts: tuple[str, ...]
    # None if it is not known. classification: str; multilabel: tuple[str, ...]; regression: float; tagging: tuple of
    # tags; spans: tuple of (start, end, type); qa: tuple of (start, text), () = no answer; choice: int, from 0
    label: Any
    where: str  # "reviews.csv:17"
    id: str = ""
    document: str = ""  # the document that it is part of: splits keep documents whole, and it may serve as context
    raw: bool = False  # tagging: there is one text instead of words


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the columns mean.

    text: the columns of `Item.texts`, in that order; for tagging the one with the words, for choice the prompt and the
        choices (or one column with the list of them).
    label: the column with the label; None if there is none.
    labels: the names of the classes, tags or types of spans, sorted (numbers by value); () for regression, qa and
        choice.
    separator: between several labels in one cell of a table; "" if cells or fields are JSON lists.
    first_choice: the number that the file gives to the first choice.
    id: the column with a unique name of each row.
    document: the column that tells which rows belong together.
    raw: tagging of texts: no column holds words.
    """

    task: TaskType
    text: tuple[str, ...]
    label: str | None = None
    labels: tuple[str, ...] = ()
    separator: str = ""
    first_choice: int = 0
    id: str | None = None
    document: str | None = None
    raw: bool = False


def items(
    reader: RowReader,
    schema: Schema,
    *,
    labelled: bool = True,
    left_out: IssueCounter | None = None,
    errors: list[BertworksError] | None = None,
) -> Iterator[Item]:
    """The rows of a file as items, every row checked.

    Args:
        labelled: whether labels are read and required, and ids must be unique.
        left_out: counts the rows with an empty text, which are left out; None: an empty text is an error.
        errors: collects the errors of rows, which are left out; None: the first one is raised.

    Raises:
        UsageError: the file lacks a column.
        BertworksError: with `where` the row: an empty text (EmptyTextError); a label that is missing, unknown or not a
            number; more or fewer tags than words; a span outside its text; a repeated id; no row at all.
    """
    schema = fitted(schema, reader, labelled=labelled)
    places: dict[str, str] = {}
    is_empty = True
    for row in reader:
        is_empty = False
        try:
            item = read_item(row, schema, labelled=labelled)
            if labelled and item.id in places:
                hint = "give each row its own id, or rename the column if it does not hold ids"
                what = f"the id {item.id!r} in column {schema.id!r} occurs twice; first at {places[item.id]}"
                raise BertworksError(what, where=row.where, hint=hint)
        except values.EmptyTextError:
            if left_out is None:
                raise
            left_out.add(row.where)
        except BertworksError as error:
            if errors is None:
                raise
            errors.append(error.with_traceback(None))
        else:
            if labelled and item.id:
                places[item.id] = row.where
            yield item
    if is_empty:
        raise BertworksError("there are no rows", where=reader.name, hint="name a file that holds rows")


def fitted(schema: Schema, reader: RowReader, *, labelled: bool = True) -> Schema:
    """The schema with columns of this file. If it reads one text and no label, the only column of a file is that text.

    Raises:
        UsageError: the file lacks a column.
    """
    if len(schema.text) == 1 and len(reader.columns) == 1 and not labelled:
        return replace(schema, text=tuple(reader.columns), label=None, id=None, document=None)
    options = dict.fromkeys(schema.text, "--text")
    if labelled and schema.label is not None:
        options[schema.label] = "--label"
    for column, option in options.items():
        find_column(reader.columns, reader.name, column, option)
    known = {None, *reader.columns}
    return replace(
        schema,
        id=schema.id if schema.id in known else None,
        document=schema.document if schema.document in known else None,
    )


def read_item(row: Row, schema: Schema, *, labelled: bool = True) -> Item:
    """One row as an item. The checks are those of `items`, except for repeated ids."""
    where = row.where
    columns = schema.text
    if schema.task == "tagging" and not schema.raw:
        texts = values.words_of(_field(row, columns[0]), columns[0], where)
    else:
        cells = [(_field(row, column), column) for column in columns]
        if schema.task == "choice" and len(columns) == 2:  # the second column lists the choices
            cells = [cells[0], *((choice, columns[1]) for choice in values.list_of(cells[1][0]) or ())]
        texts = tuple(values.text_of(value, column, where) for value, column in cells)
    label = None
    if labelled and schema.label is not None:
        label = _label(_field(row, schema.label), schema.label, texts, schema, where)
        if schema.task == "qa" and row.values.get("is_impossible") is True:
            label = ()  # such answers are only plausible; google-research/bert reads them the same way
    name, document = (
        "" if column is None else values.label_text(row.values.get(column)) or ""
        for column in (schema.id, schema.document)
    )
    return Item(texts, label, where, name, document, schema.raw)


def misplaced(item: Item) -> bool:
    """Whether an answer of a qa item is not in the context at the place that its label gives."""
    context = item.texts[1]
    return any(context[start : start + len(text)] != text for start, text in item.label or ())


def overlapping(item: Item) -> bool:
    """Whether spans of an item overlap: tags can express only one of them."""
    return any(second[0] < first[1] for first, second in pairwise(sorted(item.label or ())))


def _field(row: Row, column: str) -> Any:
    if column not in row.values:
        what = f"the row has no field {column!r}, only {', '.join(row.values)}"
        raise BertworksError(what, where=row.where, hint="add it to the row")
    return row.values[column]


def _label(value: Any, column: str, texts: tuple[str, ...], schema: Schema, where: str) -> Any:
    match schema.task:
        case "classification" if not isinstance(value, list | dict):
            return values.known_label(values.label_text(value), schema.labels, column, where)
        case "multilabel":
            parts = values.several_labels(value, schema.separator, column, where)
            return tuple(values.known_label(part, schema.labels, column, where) for part in parts)
        case "regression":
            return values.number_of(value, column, where)
        case "tagging":
            return values.tags_of(value, texts, schema.labels, column, where)
        case "spans":
            return values.spans_of(value, texts[0], schema.labels, column, where)
        case "qa" if (answers := values.answers_of(value)) is not None:
            return tuple(answers)
        case "choice" if (number := values.choice_number(value, texts[1:], schema.first_choice)) is not None:
            return number
    hints = {
        "classification": "write one name there; or is it --task multilabel?",
        "qa": 'write answers as [{"text": "1968", "answer_start": 17}]',
        "choice": f"write the number of the right one, {schema.first_choice}-{schema.first_choice + len(texts) - 2}",
    }
    raise values.bad_label(value, column, where, hints[schema.task])
