"""What the columns of labelled data mean: the task, the texts, the labels; rows -> items, each of them checked.

It knows no tokens and no network, and guesses nothing (`guessing` does): an item is what is asked of a text, before it
is tokens.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from bertworks.errors import BertworksError
from bertworks.text.cells import (
    EmptyTextError,
    answers_of,
    bad_label,
    choice_number,
    known_label,
    label_parts,
    label_text,
    list_of,
    number_of,
    sorted_labels,
    spans_of,
    tags_of,
    text_of,
    words_of,
)
from bertworks.text.guessing import (
    MOST_CLASSES,
    Column,
    are_amounts,
    count_choices,
    find_choices,
    find_id,
    find_label,
    find_questions,
    find_texts,
    find_words,
    is_choice,
    separator_of,
    study,
)
from bertworks.text.rows import Row, RowReader
from bertworks.text.streams import Tally
from bertworks.text.tables import find_column

Task = Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]
_SHOWN_LABELS = 10
_STUDIED_ROWS = 1000  # where labels do not matter
_TASK_WORDS = {
    "classification": "classification (one label for a text)",
    "multilabel": "multilabel (any number of labels for a text)",
    "regression": "regression (a number for a text)",
    "tagging": "tagging (a tag for each word)",
    "spans": "spans (stretches of a text, and what they are)",
    "qa": "qa (the answer to a question, found in its context)",
    "choice": "choice (one of several continuations or answers)",
}


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

    task: Task
    text: tuple[str, ...]
    label: str | None = None
    labels: tuple[str, ...] = ()
    separator: str = ""
    first_choice: int = 0
    id: str | None = None
    document: str | None = None
    raw: bool = False


def items(reader: RowReader, schema: Schema, *, labelled: bool = True, left_out: Tally | None = None) -> Iterator[Item]:
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
        if labelled and schema.id is not None:
            if item.id in seen:
                raise BertworksError(
                    f"the id {item.id!r} of column {schema.id!r} stands twice; first at {seen[item.id]}",
                    where=row.where,
                    fix="give each row an id of its own, or rename the column if it holds none",
                )
            seen[item.id] = row.where
        yield item
    if not found:
        raise BertworksError("there are no rows", where=reader.name, fix="name a file that holds rows")


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
    values, where = row
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
    identity, document = (
        "" if column is None else label_text(values.get(column)) or "" for column in (schema.id, schema.document)
    )
    return Item(texts, label, where, identity, document, schema.raw)


def misplaced(item: Item) -> bool:
    """Whether an answer of a qa item does not stand in the context where its label says."""
    context = item.texts[1]
    return any(context[start : start + len(text)] != text for start, text in item.label or ())


def _field(row: Row, column: str) -> Any:
    try:
        return row.values[column]
    except KeyError:
        raise BertworksError(
            f"the row has no field {column!r}, only {', '.join(row.values)}", where=row.where, fix="add it to the row"
        ) from None


def _text(row: Row, column: str) -> str:
    return text_of(_field(row, column), column, row.where)


def _label(value: Any, column: str, texts: tuple[str, ...], schema: Schema, where: str) -> Any:
    match schema.task:
        case "classification":
            return known_label(label_text(value), schema.labels, column, where)
        case "multilabel":
            parts = label_parts(value, schema.separator)
            if parts is None:
                raise bad_label(value, column, where, 'write several labels as a list, ["one", "another"]')
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


# --- the guess --------------------------------------------------------------------------------------------------------


def guess_schema(
    reader: RowReader,
    *,
    task: Task | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    labelled: bool = True,
) -> tuple[Schema, list[str]]:
    """What the columns of a file mean, and why, in words. Reads the file twice; where not `labelled`, its beginning.

    Args:
        task, text, label: what is known already, and not guessed.
        labelled: whether labels are looked for.

    Raises:
        UsageError: `text` or `label` names no column.
        BertworksError: no column looks like a text or a label; all rows have the same label.
    """
    for wanted, option in [*((name, "--text") for name in text), *([(label, "--label")] if label else [])]:
        find_column(reader.columns, reader.name, wanted, option)
    columns = study(reader if labelled else itertools.islice(reader, _STUDIED_ROWS), reader.columns)
    if not any(column.rows for column in columns.values()):
        raise BertworksError("there are no rows", where=reader.name, fix="name a file that holds rows")
    schema = _by_layout(reader, columns) or _by_columns(columns, tuple(text), label, task)
    if (task and schema.task != task) or (label and schema.label != label):
        schema = _by_columns(columns, tuple(text), label, task)
    if text or (not labelled and len(reader.columns) == 1):
        schema = replace(schema, text=tuple(text) or tuple(reader.columns))
    for found, what in ((schema.text, "text"), (schema.label, "label")):
        if not found and (labelled or what == "text"):
            raise BertworksError(
                f"no column looks like a {what}; the columns are: {', '.join(reader.columns)}",
                where=reader.name,
                fix=f"name the one that holds the {what} with --{what}",
            )
    schema = replace(schema, id=find_id(columns))
    if not labelled or schema.label is None:
        return (schema := replace(schema, label=None, separator="")), _reasons(schema, None, list(columns))
    column = columns[schema.label]
    schema = replace(schema, labels=_names(reader, schema))
    _check_labels(schema, column, reader.name, asked=task is not None)
    return schema, _reasons(schema, column, list(columns))


def _by_layout(reader: RowReader, columns: dict[str, Column]) -> Schema | None:
    """Where the file's layout says it all."""
    if reader.kind == "squad":
        return Schema(task="qa", text=("question", "context"), label="answers")
    if reader.kind == "spans":
        return Schema(task="spans", text=find_texts(columns, ("entities",)), label="entities")
    if reader.kind == "conll":
        documents = columns["document"].high > 0
        label = "tags" if "tags" in columns else None
        return Schema(task="tagging", text=("tokens",), label=label, document="document" if documents else None)
    if words := find_words(columns):
        return Schema(task="tagging", text=words[:1], label=words[1])
    if questions := find_questions(columns):
        return Schema(task="qa", text=questions[:2], label=questions[2])
    return None


def _by_columns(columns: dict[str, Column], text: tuple[str, ...], label: str | None, task: Task | None) -> Schema:
    if task in (None, "choice") and (choices := text if task and text else () if text else find_choices(columns)):
        right = label or find_label(columns, choices)
        number = count_choices(columns, choices)
        if task or (right is not None and is_choice(columns[right], number)):
            first = int(right is not None and columns[right].low > 0 and columns[right].high == number)
            return Schema(task="choice", text=choices, label=right, first_choice=first)
    text = text or find_texts(columns, (label,))
    label = label or find_label(columns, text)
    text = text or find_texts(columns, (label,))
    if label is None:
        return Schema(task=task or "classification", text=text)
    separator = "" if columns[label].listed else separator_of(columns[label])
    if task is None:
        if columns[label].listed or separator:
            task = "multilabel"
        else:
            task = "regression" if are_amounts(columns[label]) else "classification"
    if task == "multilabel" and not columns[label].listed:
        return Schema(task=task, text=text, label=label, separator=separator or "|")
    return Schema(task=task, text=text, label=label)


def _names(reader: RowReader, schema: Schema) -> tuple[str, ...]:
    """All labels that stand in the file."""
    names: set[str | None] = set()
    for row in reader:
        value = row.values.get(schema.label or "")
        match schema.task:
            case "classification":
                names.add(label_text(value))
            case "multilabel":
                names.update(label_parts(value, schema.separator) or ())
            case "tagging":
                names.update(map(label_text, list_of(value) or ()))
            case "spans":
                names.update(span["type"] for span in value or ())
            case "regression" | "qa" | "choice":
                break
    return sorted_labels(name for name in names if name is not None)


def _check_labels(schema: Schema, column: Column, name: str, *, asked: bool) -> None:
    """Raises BertworksError where nothing can be learned: no label, one label only, or as many as rows."""
    what, fix = "", "name another column with --label, or another task with --task"
    count = f"{column.filled:,} rows"
    match schema.task:
        case "classification":
            if len(schema.labels) < 2:
                what = (
                    f"all {count} have the same label, {schema.labels[0]!r}" if schema.labels else "there is no label"
                )
                fix = "add rows with another label"
            elif not asked and (column.many or (len(column.values) > MOST_CLASSES and not column.few())):
                what = f"{len(column.values):,}{' or more' * column.many} different values in {count} are no classes"
        case "regression":
            if column.low == column.high and column.numeric:
                what, fix = f"all {count} have the same number, {column.low}", "add rows with other numbers"
        case "tagging":
            if not set(schema.labels) - {"O"}:
                what, fix = "no word has a tag other than O", "tag some words"
        case "multilabel" | "spans":
            if not schema.labels:
                what, fix = "no row has a label", "label some rows"
        case "choice":
            if len(schema.text) < 2:
                what, fix = "there are no choices", "name them: --text PROMPT --text CHOICE1 --text CHOICE2"
        case "qa":
            pass
    if what:
        raise BertworksError(f"{what} (in {schema.label!r})", where=name, fix=fix)


def _reasons(schema: Schema, column: Column | None, names: Sequence[str]) -> list[str]:
    """The schema in words. column: the one with the label."""
    shown = ", ".join(schema.labels[:_SHOWN_LABELS]) + (", ..." if len(schema.labels) > _SHOWN_LABELS else "")
    kinds = {
        "classification": f"{len(schema.labels)} different values: {shown}",
        "multilabel": f"any of {len(schema.labels)}, parted by {schema.separator or 'commas in a list'}: {shown}",
        "regression": f"numbers from {column.low:g} to {column.high:g}" if column else "",
        "tagging": f"a tag for each word: {shown}",
        "spans": f"stretches of characters: {shown}",
        "qa": "answers, and where in the context they stand",
        "choice": f"which choice is right; {schema.first_choice} is the first",
    }
    used = {*schema.text, schema.label, schema.id, schema.document}
    unused = [name for name in names if name not in used]
    lines = [f"task: {_TASK_WORDS[schema.task]}"]
    lines.append(f"text: {' and '.join(map(repr, schema.text))}")
    if column:
        lines.append(f"label: {schema.label!r}, {kinds[schema.task]}")
    if schema.id:
        lines.append(f"name of a row: {schema.id!r}")
    if unused:
        lines.append(f"not used: {', '.join(map(repr, unused))}")
    return lines
