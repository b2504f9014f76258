"""Rows of labelled data -> items: texts and the label, before tokenization.

Every value is checked.

A `Schema` says what the columns mean; only the names of the labels are collected here.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

from bertworks.datasets import values
from bertworks.datasets.annotations import ENTITY_TAG
from bertworks.datasets.reader import Row, RowReader
from bertworks.errors import BertworksError, UsageError, require
from bertworks.io.inputs import IssueCounter
from bertworks.io.tables import find_column

_LISTED_ERRORS = 20
_SHOWN_LABELS = 10
Columns = Mapping[str, values.Column]  # of a file, by name
Names = tuple[str, ...]  # of columns
ReadName = Callable[[str | None], str]
_CHECKED_ROWS = 1000  # of which the words are checked


class Item(NamedTuple):
    """The texts and the label of one row."""

    # one text; two for a pair; tagging: the words; spans: the text; qa: question, context; choice:
    # prompt, choices
    texts: tuple[str, ...]
    # None if it is not known. classification: str; multilabel: tuple[str, ...]; regression: float;
    # tagging: tuple of tags; spans: tuple of (start, end, type); qa: tuple of (start, text), () =
    # no answer; choice: int, from 0
    label: Any
    where: str  # "reviews.csv:17"
    id: str = ""
    # the document that it is part of: splits keep documents whole, and it may serve as context
    document: str = ""
    raw: bool = False  # tagging: there is one text instead of words

    @property
    def characters(self) -> int:
        """The length of all texts."""
        return sum(map(len, self.texts))


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the columns mean.

    text: the columns of `Item.texts`, in that order; for tagging the one with the words, for choice
        the prompt and the choices (or one column with the list of them).
    label: the column with the label; (): there is none. Several: each says whether the label of its
        name is true (multilabel).
    labels: the names of the classes, tags or types of spans, sorted (numbers by value), or in the
        order of their columns; (): not known yet, any name is read. Regression, qa and choice have
        none.
    separator: between several labels in one cell of a table; "" if cells or fields are JSON lists.
    decimal: the mark before the fraction of a number.
    label_names: of lists of 0 and 1, in their order; (): labels are written as names.
    first_choice: the number that the file gives to the first choice.
    id: the column with a unique name of each row.
    document: the column that tells which rows belong together.
    raw: tagging of texts: no column holds words.
    bare_types: tagging: all labels but O are types of entities.
    any_label: labels that are not among `labels` are read as well, and are no errors.
    join_labels: labels that differ only in case, width or spaces are one class.
    """

    task: str
    text: tuple[str, ...]
    label: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    separator: str = ""
    decimal: str = "."
    label_names: tuple[str, ...] = ()
    first_choice: int = 0
    id: str | None = None
    document: str | None = None
    raw: bool = False
    bare_types: bool = False
    any_label: bool = False
    join_labels: bool = False


class RowTask(ABC):
    """What the rows of a task hold: the part of a task that is known without a network.

    name: as in `Schema.task`. meaning: in words.
    num_texts: of columns that hold texts, at least and at most; texts: what they are.
    texts_hint: what to type if they are more or fewer.
    label_note: what the column of the label holds. `{column}`, `{count}`, `{labels}` and the like
        stand for its values.
    file_kind: the kind of files that hold such rows only; "": there is none.
    needed_columns: known names of columns without which `schema_of_columns` is None; needed_lists:
        how many columns must hold lists.
    has_labels: its labels have names. has_classes: each text has one of them. has_many_labels: it
        may have several, each in a column. predicts_numbers: its labels are numbers.
    has_text_labels: its labels are names that are true of a whole text.
    reads_words: texts are divided into words, each with a tag.
    counts_choices: the last texts are choices, and labels their numbers, from 0 or from 1.
    has_context: labels are answers in a context; there may be none.
    expected: what to write instead of a label that cannot be read. NUMBERS: of choices.
    """

    name: ClassVar[Any]
    meaning: ClassVar[str]
    num_texts: ClassVar[tuple[int, int]]
    texts: ClassVar[str]
    texts_hint: ClassVar[str] = "name others: --text, --task"
    label_note: ClassVar[str]
    file_kind: ClassVar[str] = ""
    needed_columns: ClassVar[Names] = ()
    needed_lists: ClassVar[int] = 0
    has_labels: ClassVar[bool] = True
    has_classes: ClassVar[bool] = False
    has_many_labels: ClassVar[bool] = False
    predicts_numbers: ClassVar[bool] = False
    has_text_labels: ClassVar[bool] = False
    reads_words: ClassVar[bool] = False
    counts_choices: ClassVar[bool] = False
    has_context: ClassVar[bool] = False
    expected: ClassVar[str]

    def label_cell(self, value: Any) -> Any:
        """Return what a column of labels holds, as it is written in tables."""
        return value

    @abstractmethod
    def read_label(
        self, value: Any, texts: Names, schema: Schema, read_name: ReadName, where: str
    ) -> Any:
        """Return the value of a column as `Item.label`; None if it is no label of the task.

        Args:
            read_name: checks the name of a label.
            where: the row, for errors.
        """

    def schema_of_kind(self, columns: Columns, text: Names) -> Schema | None:
        """Return what the columns of a file of `file_kind` mean."""
        return None

    def schema_of_columns(self, columns: Columns, text: Names, label: Names) -> Schema | None:
        """Return the meaning of columns that can be of this task only, or None.

        text, label: the columns that are known.
        """
        return None

    def schema_of_choices(
        self, columns: Columns, text: Names, label: Names, *, has_labels: bool, is_explicit: bool
    ) -> Schema | None:
        """Return the meaning of columns with choices, or None if there are no such columns.

        is_explicit: the task was named, so that only its own columns count.
        """
        return None

    def fits_label(self, column: values.Column, *, has_several: bool) -> bool:
        """Return whether a column holds labels of the task. has_several: its cells hold several."""
        return False

    def label_problem(
        self, schema: Schema, column: values.Column, *, is_explicit: bool
    ) -> tuple[str, str]:
        """Return why labels cannot train a model, and a hint; "" if they can.

        A hint of "" is that of all tasks. is_explicit: the task was named.
        """
        return "", ""


Tasks = Mapping[str, RowTask]  # by name; the first one is assumed where nothing tells


def items(
    reader: RowReader,
    schema: Schema,
    tasks: Tasks,
    *,
    left_out: IssueCounter | None = None,
    errors: list[BertworksError] | None = None,
) -> Iterator[Item]:
    """Yield the rows of a file as items, every row checked.

    Items with labels must have unique ids.

    Rows without a label are left out with the option `skip_unlabelled`; the notes of the reader
    count them.

    Args:
        tasks: all tasks, by name.
        left_out: counts the rows with an empty text, which are left out; None: an empty text is an
            error.
        errors: collects the errors of rows, which are left out; None: the first one is raised.

    Raises:
        UsageError: the file lacks a column.
        BertworksError: with `where` the row: an empty text (EmptyTextError); a label that is
            missing, unknown or not a number; more or fewer tags than words; a span outside its
            text; a repeated id; no row at all.
    """
    schema = fitted(schema, reader)
    task = tasks[schema.task]
    places: dict[str, str] = {}
    row = None
    for row in reader:
        try:
            item = read_item(row, schema, task)
            if item.id in places:
                what = (
                    f"the id {item.id!r} in column {schema.id!r} occurs twice; first at "
                    f"{places[item.id]}"
                )
                raise BertworksError(
                    what, where=row.where, hint="give each row its own id, or rename the column"
                )
        except BertworksError as error:
            if left_out is not None and isinstance(error, values.EmptyTextError):
                has_nan = any(values.is_nan_text(row.values.get(column)) for column in schema.text)
                left_out.add(f"{row.where} has 'nan'" if has_nan else row.where)
            elif reader.options.skip_unlabelled and isinstance(error, values.MissingLabelError):
                reader.unlabelled.add(row.where)
            elif errors is not None:
                errors.append(error.with_traceback(None))
            else:
                raise
        else:
            if item.id and schema.label:
                places[item.id] = row.where
            yield item
    require(row is not None, "there are no rows", reader.name, "name a file that holds rows")


def refuse_rows(errors: Sequence[BertworksError], name: str) -> None:
    """Raises one error with all errors of rows, if there are any. name: of the file."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [f"{len(errors):,} rows cannot be used for training"]
        # A line that says "and 1 other" takes as much room as the error itself.
        listed_errors = errors if len(errors) == _LISTED_ERRORS + 1 else errors[:_LISTED_ERRORS]
        lines += [f"  {error.where}: {error.what}" for error in listed_errors]
        num_unlisted = len(errors) - len(listed_errors)
        if num_unlisted:
            lines.append(f"  and {num_unlisted:,} others")
        hints = list(dict.fromkeys(error.hint for error in errors if error.hint))
        raise BertworksError("\n".join(lines), where=name, hint="; ".join(hints[:3]))


def fitted(schema: Schema, reader: RowReader) -> Schema:
    """Return the schema for this file, with its options.

    If it reads one text and no label, the only column of a file is that text.

    Raises:
        UsageError: the file lacks a column.
    """
    if len(schema.text) == 1 and len(reader.columns) == 1 and not schema.label:
        return replace(schema, text=tuple(reader.columns), id=None, document=None)
    for column in (*schema.text, *schema.label):
        find_column(
            reader.columns, reader.name, column, "--label" if column in schema.label else "--text"
        )
    names = (reader.options.label_names or "").split(",")
    return replace(
        schema,
        decimal=reader.options.decimal,
        label_names=tuple(filter(None, map(str.strip, names))),
        join_labels=reader.options.join_labels,
    )


def read_item(row: Row, schema: Schema, task: RowTask) -> Item:
    """One row as an item.

    The checks are those of `items`, except for repeated ids.
    """
    where = row.where
    columns = schema.text
    if len(row.values) > 1 and all(name == value for name, value in row.values.items()):
        raise BertworksError(
            "the names of the columns come again as a row", where=where, hint="remove the row"
        )
    if task.reads_words and not schema.raw:
        texts = values.words_of(_field(row, columns[0]), columns[0], where)
    else:
        cells = [(_field(row, column), column) for column in columns]
        if task.counts_choices and len(columns) == 2:  # the second column lists the choices
            cells = [
                cells[0],
                *((choice, columns[1]) for choice in values.list_of(cells[1][0]) or ()),
            ]
        texts = tuple(values.text_of(value, column, where) for value, column in cells)
    label: Any = None
    if len(schema.label) > 1:
        label = tuple(
            column
            for column in schema.label
            if values.flag_of(_field(row, column, True), column, where)
        )
    elif schema.label:
        value = _field(row, schema.label[0], True)
        label = label_of(value, schema.label[0], texts, schema, task, where)
        if task.has_context and row.values.get("is_impossible") is True:
            # such answers are only plausible; google-research/bert reads them the same way
            label = ()

    def name(column: str | None) -> str:
        return "" if column is None else values.label_text(row.values.get(column)) or ""

    # rows of group 1 and of group 1.0 stay together
    document = values.canonical_label(name(schema.document))
    return Item(texts, label, where, name(schema.id), document, schema.raw)


def misplaced(item: Item) -> bool:
    """Whether an answer of a qa item is not in the context at the place that its label gives."""
    context = item.texts[1]
    return any(context[start : start + len(text)] != text for start, text in item.label or ())


def overlapping(item: Item) -> bool:
    """Return whether spans of an item overlap: tags can express only one of them."""
    return any(second[0] < first[1] for first, second in pairwise(sorted(item.label or ())))


def find_labels(
    reader: RowReader, schema: Schema, tasks: Tasks
) -> tuple[tuple[str, ...], list[str]]:
    """Return all classes of the file, and notes on those that are written in several ways.

    The most frequent spelling names the class. Rows with errors are left out: they are refused when
    they are read again, or here if the others have too few labels.

    Raises:
        UsageError: a label is true of every row; the words count or repeat something.
    """
    task = tasks[schema.task]
    if not task.has_labels:
        return (), []
    counts = Counter[str]()
    num_rows = 0
    sample: list[Item] = []
    errors: list[BertworksError] = []
    for item in items(
        reader, replace(schema, id=None), tasks, left_out=IssueCounter(), errors=errors
    ):
        num_rows += 1
        counts.update(label_names(item))
        if len(sample) < _CHECKED_ROWS:
            sample.append(item)
    classes = values.spellings_of_classes(counts, join=reader.options.join_labels)
    if len(classes.keys() - {"O"}) < 1 + task.has_classes:
        refuse_rows(errors, reader.name)
    problem = _no_words([item.texts for item in sample]) if task.reads_words else ""
    if problem:
        hint = "--columns word=2,tag=4 names those of a CoNLL file, and --text that of a table"
        raise UsageError(
            f"the words of a row {problem}: {sample[0].texts[:5]}", where=reader.name, hint=hint
        )
    totals = {name: sum(spellings.values()) for name, spellings in classes.items()}
    if task.has_many_labels and num_rows > 1:
        for name, count in totals.items():
            if count == num_rows and name.lower() not in values.FLAGS:
                column = "its column" if len(schema.label) > 1 else "it"
                hint = f"leave {column} out, or name other columns with --label"
                raise UsageError(
                    f"the label {name!r} is true of every row", where=reader.name, hint=hint
                )
    names = fitted(schema, reader).label_names or (schema.label[1:] and schema.label)
    labels = values.sorted_labels(_true_tags(totals) if task.reads_words else totals)
    if names and labels:
        return tuple(names), []
    return labels, [_spelling_note(classes[name]) for name in labels if len(classes[name]) > 1]


def _spelling_note(spellings: Mapping[str, int]) -> str:
    """Return a note on the spellings of a class, with their counts.

    Args:
        spellings: the number of rows of each spelling. The first one is the name of the class.
    """
    descriptions = [f"{spelling!r} ({count:,})" for spelling, count in spellings.items()]
    name = next(iter(spellings))
    listed = values.first_names(descriptions, _SHOWN_LABELS)
    return f"one label in several spellings, read as {name!r}: {listed}"


def label_names(item: Item) -> list[str]:
    """Return the names in a label, in order: classes, tags, types of spans."""
    labels = [item.label] if isinstance(item.label, str) else item.label
    return [label if isinstance(label, str) else label[2] for label in labels]


def _no_words(rows: Sequence[tuple[str, ...]]) -> str:
    """Return what shows that the words of all rows are none, or "" if nothing does.

    They count, or are the same.
    """
    long = [row for row in rows if len(row) > 1]
    if len(long) < max(2, values.MOST * len(rows)):
        return ""
    if all(
        row[0].isdecimal() and row == tuple(map(str, range(int(row[0]), int(row[0]) + len(row))))
        for row in long
    ):
        return "count"
    return "are all the same" if all(len(set(row)) == 1 for row in long) else ""


def _true_tags(counts: Mapping[str, int]) -> Iterable[str]:
    """Return the tags without errors, such as a header or a 0.

    If nearly all tags but O say where an entity begins or continues, all others are errors.
    """
    marks = {tag for tag in counts if ENTITY_TAG.fullmatch(tag)}
    marked = sum(counts[tag] for tag in marks)
    total = sum(counts.values()) - counts.get("O", 0)
    return (
        [tag for tag in counts if tag in marks or tag == "O"]
        if marked >= values.MOST * total
        else counts
    )


def schema_notes(schema: Schema, columns: Columns, task: RowTask) -> list[str]:
    """Return the schema in words."""
    lines = [
        f"task: {schema.task} ({task.meaning})",
        f"text: {' and '.join(map(repr, schema.text))}",
    ]
    labels = values.first_names(schema.labels, _SHOWN_LABELS)
    if len(schema.label) > 1:
        lines.append(f"label: {len(schema.label)} columns, each for one label: {labels}")
    elif schema.label:
        column = columns[schema.label[0]]
        values_of = {
            "schema": schema,
            "column": column,
            "count": len(schema.labels),
            "labels": labels,
        }
        meaning = task.label_note.format_map(values_of | {"mark": schema.separator or "commas"})
        lines.append(f"label: {column.name!r}, {meaning}")
    if schema.id:
        lines.append(f"name of a row: {schema.id!r}")
    if schema.document in columns and not task.reads_words:
        lines.append(f"kept together: rows with the same {schema.document!r}")
    unused = [
        name
        for name in columns
        if name not in (*schema.text, *schema.label, schema.id, schema.document)
    ]
    if unused:
        lines.append(f"not used: {', '.join(map(repr, unused))}")
    return lines


def _field(row: Row, column: str, is_label: bool = False) -> Any:
    if column not in row.values:
        what = f"the row has no field {column!r}, only {', '.join(row.values)}"
        hint = "add it to the row" + "; or leave such rows out: --skip-unlabelled" * is_label
        raise (values.MissingLabelError if is_label else BertworksError)(
            what, where=row.where, hint=hint
        )
    return row.values[column]


def label_of(
    value: Any, column: str, texts: tuple[str, ...], schema: Schema, task: RowTask, where: str
) -> Any:
    """Return the value of a column as `Item.label`.

    Raises:
        BertworksError: it is missing, unknown, or no label of the task.
    """
    value = task.label_cell(value)
    numbers = f"{schema.first_choice}-{schema.first_choice + len(texts) - 2}"
    expected = task.expected.replace("NUMBERS", numbers)
    if not task.has_text_labels and values.label_text(value) is None:
        raise values.missing_label(column, where, expected)
    if task.has_text_labels and values.is_nan_text(value):
        raise values.missing_label(
            column, where, "write a label there; a class of this name needs another name", value
        )
    read_name = partial(
        values.known_label,
        labels=schema.labels,
        column=column,
        where=where,
        accept=schema.any_label,
        join=schema.join_labels,
    )
    label = task.read_label(value, texts, schema, read_name, where)
    if label is not None:
        return label
    raise BertworksError(f"the label in {column!r} holds {value!r:.80}", where=where, hint=expected)
