"""Rows of labelled data -> items: texts and the label, before tokenization. Every value is checked.

A `Schema` says what the columns mean; nothing is inferred here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from bertworks.datasets.reader import Row, RowReader
from bertworks.datasets.values import (
    EmptyTextError,
    answers_of,
    bad_label,
    choice_number,
    known_label,
    label_text,
    list_of,
    number_of,
    several_labels,
    spans_of,
    tags_of,
    text_of,
    words_of,
)
from bertworks.errors import BertworksError
from bertworks.io.tables import find_column
from bertworks.io.text_files import IssueCounter

TaskType = Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]


class Item(NamedTuple):
    """What is asked of a text."""

    # one text; two for a pair; tagging: the words; spans: the text; qa: question, context; choice: prompt, choices
    texts: tuple[str, ...]
    # None where it is not known. classification: str; multilabel: tuple[str, ...]; regression: float; tagging: tuple of
    # tags; spans: tuple of (start, end, type); qa: tuple of (start, text), () = no answer; choice: int, from 0
    label: Any
    where: str  # "reviews.csv:17"
    id: str = ""
    document: str = ""  # what it is part of; for splits that keep together what belongs together, and for context
    raw: bool = False  # tagging: there is one text, and not its words


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the columns mean.

    text: the columns of `Item.texts`, in that order; for tagging the one with the words, for choice the prompt and the
        choices (or one column with the list of them).
    label: the column with the label; None where there is none.
    labels: the names, sorted (numbers by value): of classes; of the tags; of the types of spans; () for regression, qa
        and choice.
    separator: between several labels in one cell of a table; "" where cells or fields are JSON lists.
    first_choice: the number by which the file calls the first choice.
    id: the column with a name of the row, of which none may stand twice.
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
    reader: RowReader, schema: Schema, *, labelled: bool = True, left_out: IssueCounter | None = None
) -> Iterator[Item]:
    """The rows of a file as items, every row checked.

    Args:
        labelled: whether labels are read and must be there, and ids must differ.
        left_out: rows with an empty text are counted here and left out; None: they are an error.

    Raises:
        UsageError: the file lacks a column.
        BertworksError: with `where` the row: an empty text (EmptyTextError); a label that is missing, unknown or no
            number; more or fewer tags than words; a span outside its text; an id that stands twice; no row at all.
    """
    schema = fitted(schema, reader, labelled=labelled)
    seen: dict[str, str] = {}
    found = False
    for row in reader:
        found = True
        try:
            item = read_item(row, schema, labelled=labelled)
        except EmptyTextError:
            if left_out is None:
                raise
            left_out.add(row.where)
            continue
        if labelled and item.id:
            if item.id in seen:
                raise BertworksError(
                    f"the id {item.id!r} of column {schema.id!r} stands twice; first at {seen[item.id]}",
                    where=row.where,
                    hint="give each row an id of its own, or rename the column if it holds none",
                )
            seen[item.id] = row.where
        yield item
    if not found:
        raise BertworksError("there are no rows", where=reader.name, hint="name a file that holds rows")


def fitted(schema: Schema, reader: RowReader, *, labelled: bool = True) -> Schema:
    """The schema with columns that this file has: where one text is asked for, the only column of a file is it.

    Raises:
        UsageError: the file lacks a column.
    """
    if len(schema.text) == 1 and len(reader.columns) == 1 and not labelled:
        return replace(schema, text=tuple(reader.columns), label=None, id=None, document=None)
    wanted = dict.fromkeys(schema.text, "--text")
    if labelled and schema.label is not None:
        wanted[schema.label] = "--label"
    for column, option in wanted.items():
        find_column(reader.columns, reader.name, column, option)
    return replace(
        schema,
        id=schema.id if schema.id in reader.columns else None,
        document=schema.document if schema.document in reader.columns else None,
    )


def read_item(row: Row, schema: Schema, *, labelled: bool = True) -> Item:
    """One row as an item; `items` says what is checked, save for ids."""
    values, where, _ = row
    if schema.task == "tagging" and not schema.raw:
        texts = words_of(_field(row, schema.text[0]), schema.text[0], where)
    elif schema.task == "choice" and len(schema.text) == 2:
        prompt, column = schema.text
        choices = list_of(_field(row, column)) or ()
        texts = (_text(row, prompt), *(text_of(choice, column, where) for choice in choices))
    else:
        texts = tuple(_text(row, column) for column in schema.text)
    label = None
    if labelled and schema.label is not None:
        label = _label(_field(row, schema.label), schema.label, texts, schema, where)
        if schema.task == "qa" and values.get("is_impossible") is True:
            label = ()  # answers that only look right, as google-research/bert reads them
    identity, document = (
        "" if column is None else label_text(values.get(column)) or "" for column in (schema.id, schema.document)
    )
    return Item(texts, label, where, identity, document, schema.raw)


def misplaced(item: Item) -> bool:
    """Whether an answer of a qa item does not stand in the context where its label says."""
    context = item.texts[1]
    return any(context[start : start + len(text)] != text for start, text in item.label or ())


def overlapping(item: Item) -> bool:
    """Whether spans of an item have characters in common: tags can tell of one only."""
    ordered = sorted(item.label or ())
    return any(second[0] < first[1] for first, second in pairwise(ordered))


def _field(row: Row, column: str) -> Any:
    try:
        return row.values[column]
    except KeyError:
        raise BertworksError(
            f"the row has no field {column!r}, only {', '.join(row.values)}", where=row.where, hint="add it to the row"
        ) from None


def _text(row: Row, column: str) -> str:
    return text_of(_field(row, column), column, row.where)


def _label(value: Any, column: str, texts: tuple[str, ...], schema: Schema, where: str) -> Any:
    match schema.task:
        case "classification":
            if isinstance(value, list | dict):
                raise bad_label(value, column, where, "write one name there; or is it --task multilabel?")
            return known_label(label_text(value), schema.labels, column, where)
        case "multilabel":
            parts = several_labels(value, schema.separator, column, where)
            return tuple(known_label(part, schema.labels, column, where) for part in parts)
        case "regression":
            return number_of(value, column, where)
        case "tagging":
            return tags_of(value, texts, schema.labels, column, where)
        case "spans":
            return spans_of(value, texts[0], schema.labels, column, where)
        case "qa":
            answers = answers_of(value)
            if answers is None:
                raise bad_label(value, column, where, 'write answers as [{"text": "1968", "answer_start": 17}]')
            return tuple(answers)
        case "choice":
            number = choice_number(value, texts[1:], schema.first_choice)
            if number is None:
                last = schema.first_choice + len(texts) - 2
                raise bad_label(
                    value, column, where, f"write the number of the right one, {schema.first_choice}-{last}"
                )
            return number
