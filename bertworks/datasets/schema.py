"""What the columns of labelled data mean, and its rows as items: texts and the label.

- `Schema`: what the columns mean; `items`: rows before tokenization, every value checked
- `infer_schema`: the schema of a file: texts, labels, choices, row names, and the task

Columns are inferred from known names first, then from statistics of the values. What is not safe is
refused with the candidates and the options that settle it.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bertworks.datasets import values
from bertworks.datasets.reader import PLAIN_KINDS, Kind, Row, RowReader
from bertworks.datasets.values import MAX_LABEL_LENGTH, MOST, Column
from bertworks.errors import (
    BertworksError,
    UsageError,
    expect,
    first_names,
    names_of,
    quoted,
    require,
)
from bertworks.io import tables
from bertworks.io.inputs import IssueCounter
from bertworks.io.options import ReadOptions
from bertworks.io.tables import ENTITY_TAG, is_code

_LISTED_ERRORS = 20
_LISTED_OF_KIND = 3
# What differs between errors of one kind: quoted texts, objects, lists and numbers.
_VALUE = re.compile(r"""'[^']*'|"[^"]*"|\{.*\}|\[.*\]|\d+(?:[.,]\d+)*""")
_LISTED_LABELS = 30
_SHOWN_LABELS = 10
Columns = Mapping[str, Column]  # of a file, by name
Names = tuple[str, ...]  # of columns, or of labels
Texts = tuple[str, ...]  # of a row
LabelProblem = tuple[str, str]  # in words, and a hint; "": the hint for all tasks
_CHECKED_ROWS = 1000  # of which the words are checked
_TAG = re.compile(rf"O|{ENTITY_TAG.pattern}")
_TAG_NAMES = ("tag", "tags", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "upos", "entity")
_SHOWN_VALUES = 3
_MIN_TEXT = 15  # characters on average of a text that is named by no known name
_DATE = 8  # characters of codes that are dates or addresses, not the names of classes
_MIN_FILLED = 0.5  # of the rows have a text, if its column is inferred
_SAMPLE_ROWS = 1000  # read where labels do not matter
CHOICE_LISTS = ("choices", "endings", "options", "candidates", "answers")
_OFFSETS = re.compile(
    r"((answer|span|char|token|entity)s?)?[ _-]?(start|begin|end|offset)s?[ _-]?(index|char|pos)?"
)


class Item(NamedTuple):
    """The texts and the label of one row."""

    # one text; two for a pair; tagging: the words; spans: the text; qa: question, context; choice:
    # prompt, choices
    texts: Texts
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
    missing: what stands in a cell with no label, besides nothing.
    """

    task: str
    text: Names
    label: Names = ()
    labels: Names = ()
    separator: str = ""
    decimal: str = "."
    label_names: Names = ()
    first_choice: int = 0
    id: str | None = None
    document: str | None = None
    raw: bool = False
    bare_types: bool = False
    any_label: bool = False
    join_labels: bool = False
    missing: Names = ()


class StudiedFile(NamedTuple):
    """The columns of a file with their values, and what the user says about them.

    kind: see `RowReader`.
    text, label: the columns that the user names.
    task: the name of the task; None: it is inferred.
    options: how labels are read; None: labels are not looked for.
    """

    kind: Kind
    columns: Columns
    text: Names
    label: Names
    task: str | None
    options: ReadOptions | None


@dataclass(frozen=True)
class LabelCell:
    """A cell with the label of a row.

    texts: those of the row. where: the row, for errors.
    """

    value: Any
    column: str
    texts: Texts
    schema: Schema
    where: str

    def known_label(self, name: str | None) -> str:
        """Return a label, or the only one of the schema that other programs write like it.

        See `values.canonical_label`.

        Raises:
            BertworksError: it is missing or unknown.
        """
        labels = self.schema.labels
        if name is not None and (name in labels or not labels):
            return name
        hint = (
            f"the labels are: {first_names(labels, _LISTED_LABELS)}"
            if labels
            else "write one there, or remove the row"
        )
        if name is None:
            raise values.missing_label(self.column, self.where, hint)
        canonical = values.canonical_label(name)
        equal_labels = [each for each in labels if values.canonical_label(each) == canonical]
        folded = values.folded_label(name)
        similar_labels = [each for each in labels if values.folded_label(each) == folded]
        if self.schema.join_labels and not equal_labels:
            equal_labels = similar_labels
        if len(equal_labels) == 1:
            return equal_labels[0]
        if self.schema.any_label:
            return name
        candidates = similar_labels or values.misspelt_labels(name, labels)
        suggestion = f"did you mean {candidates[0]!r}? " if candidates else ""
        if len(similar_labels) == 1:
            suggestion += "--join-labels reads it so; "
        raise BertworksError(
            f"the label {name!r} is not known", where=self.where, hint=suggestion + hint
        )


class RowTask(ABC):
    """What the rows of a task hold: the part of a task that is known without a network.

    name: as in `Schema.task`. meaning: in words.
    num_texts: of columns that hold texts, at least and at most; texts: what they are.
    texts_hint: what to type if they are more or fewer.
    label_note: what the column of the label holds. `{column}`, `{count}`, `{labels}` and the like
        stand for its values.
    file_kind: the kind of files that hold such rows only; "": there is none.
    needed_columns: known names of columns. needed_lists: a number of columns with lists.
        `schema_of_layout` reads a file of another kind only if the file has them.
    has_labels: its labels have names. has_classes: each text has one of them. has_many_labels: it
        may have several, each in a column. predicts_numbers: its labels are numbers.
    has_text_labels: its labels are names that are true of a whole text.
    reads_words: texts are divided into words, each with a tag.
    counts_choices: the last texts are choices, and labels their numbers, from 0 or from 1.
    has_context: labels are answers in a context; there may be none.
    expected: what to write instead of a label that cannot be read. NUMBERS: of choices.
    """

    name: Any
    meaning: str
    num_texts: tuple[int, int]
    texts: str
    texts_hint = "name others: --text, --task"
    label_note: str
    file_kind = ""
    needed_columns: Names = ()
    needed_lists = 0
    has_labels = True
    has_classes = False
    has_many_labels = False
    predicts_numbers = False
    has_text_labels = False
    reads_words = False
    counts_choices = False
    has_context = False
    expected: str

    @abstractmethod
    def read_label(self, cell: LabelCell) -> Any:
        """Return the value of a cell as `Item.label`; None if it is no label of the task."""

    def schema_of_layout(self, file: StudiedFile) -> Schema | None:
        """Return the meaning of a file that can be of this task only, or None.

        It is called for a file of `file_kind`, and for a table, JSON or Parquet that has
        `needed_columns` and `needed_lists`.
        """
        return None

    def schema_of_choices(self, file: StudiedFile) -> Schema | None:
        """Return the meaning of columns with choices, or None if there are no such columns.

        Text columns that the user names count only if the user names the task, too.
        """
        return None

    def label_problem(self, schema: Schema, file: StudiedFile) -> LabelProblem | None:
        """Return why labels cannot train a model; None if they can."""
        if self.has_labels and not schema.labels:
            return "no row has a label", "label some rows"
        return None


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

    Rows without a label are left out with the options `skip_unlabelled` and `missing`; the notes of
    the reader count them.

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
                raise BertworksError(
                    f"the id {item.id!r} in column {schema.id!r} occurs twice; first at "
                    f"{places[item.id]}",
                    where=row.where,
                    hint="give each row its own id, or rename the column",
                )
        except BertworksError as error:
            if left_out is not None and isinstance(error, values.EmptyTextError):
                has_nan = any(values.is_nan_text(row.values.get(column)) for column in schema.text)
                left_out.add(f"{row.where} has 'nan'" if has_nan else row.where)
            elif reader.options.skips_unlabelled and isinstance(error, values.MissingLabelError):
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
    """Raises one error with all errors of rows, if there are any.

    Of errors of one kind, which differ only in values, the first ones are listed, and the others
    are counted.

    Args:
        name: of the file.
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [f"{len(errors):,} rows cannot be used for training"]
        kinds: dict[str, list[BertworksError]] = {}
        for error in errors:
            kinds.setdefault(_VALUE.sub("", error.what), []).append(error)
        num_unlisted = 0
        for of_kind in kinds.values():
            # A line that counts one other takes as much room as the error itself.
            count = len(of_kind) if len(of_kind) == _LISTED_OF_KIND + 1 else _LISTED_OF_KIND
            if len(lines) + len(of_kind[:count]) > _LISTED_ERRORS + 1:
                num_unlisted += len(of_kind)
                continue
            lines += [f"  {error.where}: {error.what}" for error in of_kind[:count]]
            num_alike = len(of_kind[count:])
            if num_alike:
                lines.append(f"  and {num_alike:,} more of this kind")
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
        reader.find_column(column, "--label" if column in schema.label else "--text")
    names = (reader.options.label_names or "").split(",")
    usual = () if reader.options.missing_none else values.MISSING_LABELS
    return replace(
        schema,
        missing=tuple(sorted({*usual, *reader.options.missing})),
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
        label = label_of(LabelCell(value, schema.label[0], texts, schema, where), task)
        if task.has_context and row.values.get("is_impossible") is True:
            # such answers are only plausible; google-research/bert reads them the same way
            label = ()

    def name(column: str | None) -> str:
        return "" if column is None else values.label_text(row.values.get(column)) or ""

    # rows of group 1 and of group 1.0 stay together
    document = values.canonical_label(name(schema.document))
    return Item(texts, label, where, name(schema.id), document, schema.raw)


def find_labels(reader: RowReader, schema: Schema, tasks: Tasks) -> tuple[Names, list[str]]:
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
        raise UsageError(
            f"the words of a row {problem}: {sample[0].texts[:5]}",
            where=reader.name,
            hint="--columns word=2,tag=4 names those of a CoNLL file, and --text that of a table",
        )
    totals = {name: sum(spellings.values()) for name, spellings in classes.items()}
    if task.has_many_labels and num_rows > 1:
        for name, count in totals.items():
            if count == num_rows and name.lower() not in values.FLAGS:
                column = "its column" if len(schema.label) > 1 else "it"
                raise UsageError(
                    f"the label {name!r} is true of every row",
                    where=reader.name,
                    hint=f"leave {column} out, or name other columns with --label",
                )
    names = fitted(schema, reader).label_names or (schema.label[1:] and schema.label)
    if task.reads_words:
        # If nearly all tags but O say where an entity begins or continues, all others, as those of
        # a header, are errors.
        marks = {tag for tag in totals if ENTITY_TAG.fullmatch(tag)}
        marked = sum(totals[tag] for tag in marks)
        if marked >= values.MOST * (sum(totals.values()) - totals.get("O", 0)):
            totals = {tag: totals[tag] for tag in totals if tag in marks or tag == "O"}
    labels = values.sorted_labels(totals)
    if names and labels:
        return tuple(names), []
    notes = []
    for name in labels:
        spellings = [f"{spelling!r} ({count:,})" for spelling, count in classes[name].items()]
        if len(spellings) > 1:
            listed = first_names(spellings, _SHOWN_LABELS)
            notes.append(f"one label in several spellings, read as {name!r}: {listed}")
    return labels, notes


def label_names(item: Item) -> list[str]:
    """Return the names in a label, in order: classes, tags, types of spans."""
    labels = [item.label] if isinstance(item.label, str) else item.label
    return [label if isinstance(label, str) else label[2] for label in labels]


def _no_words(rows: Sequence[Texts]) -> str:
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


def schema_notes(schema: Schema, columns: Columns, task: RowTask) -> list[str]:
    """Return the schema in words."""
    lines = [
        f"task: {schema.task} ({task.meaning})",
        f"text: {' and '.join(map(repr, schema.text))}",
    ]
    labels = first_names(schema.labels, _SHOWN_LABELS)
    if len(schema.label) > 1:
        lines.append(f"label: {len(schema.label)} columns, each for one label: {labels}")
    elif schema.label:
        column = columns[schema.label[0]]
        values_of = {
            "schema": schema,
            "column": column,
            "count": len(schema.labels),
            "labels": labels,
            "mark": schema.separator or "commas",
        }
        meaning = task.label_note.format_map(values_of)
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


def label_of(cell: LabelCell, task: RowTask) -> Any:
    """Return the value of a cell as `Item.label`.

    Raises:
        BertworksError: it is missing, unknown, or no label of the task.
    """
    schema = cell.schema
    if task.has_classes and isinstance(cell.value, list) and len(cell.value) == 1:
        cell = replace(cell, value=cell.value[0])  # annotation tools write one label as a list
    numbers = f"{schema.first_choice}-{schema.first_choice + len(cell.texts) - 2}"
    expected = task.expected.replace("NUMBERS", numbers)
    if not task.has_text_labels and values.label_text(cell.value) is None:
        raise values.missing_label(cell.column, cell.where, expected)
    is_missing = isinstance(cell.value, str) and cell.value.strip() in schema.missing
    if task.has_text_labels and (is_missing or values.is_nan_text(cell.value)):
        raise values.missing_label(cell.column, cell.where, "write a label there", cell.value)
    label = task.read_label(cell)
    if label is not None:
        return label
    raise BertworksError(
        f"the label in {cell.column!r} holds {cell.value!r:.80}",
        where=cell.where,
        hint=tables.nested_hint(cell.column, cell.value, "--label") or expected,
    )


# --- what the columns of a file mean
# ----------------------------------------------------------------------------------------


def infer_schema(
    reader: RowReader,
    tasks: Tasks,
    *,
    task: str | None = None,
    text: Sequence[str] = (),
    label: str | Sequence[str] | None = None,
    group: str | None = None,
    labelled: bool = True,
) -> tuple[Schema, list[str]]:
    """What the columns of a file mean, and why, in words.

    Reads the file twice; only its beginning unless `labelled`.

    Args:
        tasks: all tasks, by name.
        task, text, label: what is known already. Several labels: columns of 0 and 1. A number is
            that of a column, from 1.
        group: the column that tells which rows belong together.
        labelled: whether labels are looked for.

    Raises:
        UsageError: `text`, `label` or `group` names no column, or the task reads fewer or more
            texts; the columns may mean several things, or the rows are no texts with labels.
        BertworksError: no column looks like a text or a label; all rows have the same label.
    """
    text = tuple(reader.find_column(name, "--text") for name in names_of(text))
    label = tuple(reader.find_column(name, "--label") for name in names_of(label))
    for name in names_of(group):
        tables.find_column(reader.columns, reader.name, name, "--group")
    if len({*text, *label}) < len(text) + len(label):
        raise UsageError(
            "one column is named twice", where=reader.name, hint="name each text and the label once"
        )
    columns = study(reader, None if labelled else _SAMPLE_ROWS)
    spelling_notes: list[str] = []
    require(
        next(reader.sample(1), None) is not None,
        "there are no rows",
        reader.name,
        "name a file that holds rows",
    )
    options = reader.options if labelled else None
    file = StudiedFile(reader.kind, columns, text, label, task, options)
    try:
        schema = _by_layout(file, tasks)
        if schema is None or (task and schema.task != task) or (label and schema.label != label):
            schema = _by_columns(file, tasks)
    except UsageError as error:
        error.where = reader.name
        raise
    if text or (not labelled and len(reader.columns) == 1):
        schema = replace(schema, text=text or tuple(reader.columns))
    for value, what in ((schema.text, "text"), (schema.label, "label")):
        if not value and (labelled or what == "text"):
            remaining = set(reader.columns) - {*schema.text}
            hint = (
                f"name the one with the {what} with --{what}"
                if remaining
                else f"add one with the {what}"
            )
            codes = [
                name for name, column in columns.items() if what == "text" and column.holds_codes()
            ]
            but = f"; dates, ids or numbers are in: {', '.join(codes)}" if codes else ""
            raise BertworksError(
                f"no column looks like a {what}; the columns are: {', '.join(reader.columns)}{but}",
                where=reader.name,
                hint=hint,
            )
    schema_task = tasks[schema.task]
    least, most = schema_task.num_texts
    reads = f"{schema.task} reads {schema_task.texts}"
    is_fitting = least <= len(schema.text) <= most
    expect(
        is_fitting,
        f"{reads}, not {len(schema.text)} columns: {', '.join(map(repr, schema.text))}",
        where=reader.name,
        hint=schema_task.texts_hint,
    )
    num_rows = max(column.filled for column in columns.values())
    num_texts = num_rows if text or not labelled else columns[schema.text[0]].filled
    name = schema.text[0]
    expect(
        num_texts >= _MIN_FILLED * num_rows,
        f"only {num_texts:,} of {num_rows:,} rows have a text in {name!r}",
        where=reader.name,
        hint=f"name another column with --text, or leave the other rows out: --text {quoted(name)}",
    )
    row_id = "id" if reader.kind == "squad" else _find_id(columns)
    schema = replace(schema, id=row_id, document=group or schema.document)
    if not labelled:
        schema = replace(schema, label=(), separator="")
    elif schema.label:
        labels, spelling_notes = find_labels(reader, schema, tasks)
        schema = replace(schema, labels=labels)
        label_problem = schema_task.label_problem(schema, file)
        if label_problem is not None:
            what, hint = label_problem
            raise BertworksError(
                f"{what} (in {', '.join(map(repr, schema.label))})",
                where=reader.name,
                hint=hint or "name another column with --label, or another task with --task",
            )
    notes = [*schema_notes(schema, columns, schema_task), *spelling_notes]
    return schema, [*notes, *_certainty(schema, file, reader.header_note)]


def study(reader: RowReader, count: int | None) -> dict[str, Column]:
    """Return the statistics of each column of a file. count: of rows; None: all."""
    decimal = reader.options.decimal
    columns = {name: Column(name, decimal) for name in reader.columns}
    for row in reader if count is None else reader.sample(count):
        for name, value in row.values.items():
            if name not in columns:
                columns[name] = Column(name, decimal)
            columns[name].add(value)
    return columns


# --- the task
# --------------------------------------------------------------------------------------------------


def _by_layout(file: StudiedFile, tasks: Tasks) -> Schema | None:
    """Return the schema, if the layout of the file is enough to tell it."""
    names = named_columns(file.columns.values()).keys()
    num_lists = sum(column.is_listed for column in file.columns.values())
    for task in tasks.values():
        may_be = names >= {*task.needed_columns} and num_lists >= task.needed_lists
        if file.kind == task.file_kind or (may_be and file.kind in PLAIN_KINDS):
            schema = task.schema_of_layout(file)
            if schema is not None:
                return schema
    return None


def _by_columns(file: StudiedFile, tasks: Tasks) -> Schema:
    """Return the schema by names and values."""
    task = file.task
    options = file.options
    columns = file.columns
    if options:
        _refuse_parts(file, has_words=task is None or tasks[task].reads_words)
    for name in [*tasks] if task is None else [task]:
        schema = tasks[name].schema_of_choices(file)
        if schema:
            return schema
    named_task = None if task is None else tasks[task]
    is_one = named_task is not None and named_task.num_texts == (1, 1)
    text = file.text or find_texts(columns, file.label, is_one=is_one)
    label = file.label or (find_label(columns, text) if options and text else ())
    if not label or options is None:
        return Schema(task=task or next(iter(tasks)), text=text)
    several = len(label) > 1 or options.label_names or options.label_separator
    is_one_label = named_task is not None and not named_task.has_many_labels
    if several and is_one_label:
        raise UsageError(
            f"{task} reads one label, not several: {', '.join(label)}",
            hint="--label NAME names one; --label-separator and --label-names are for --task "
            "multilabel",
        )
    with_many_labels = next(each for each in tasks.values() if each.has_many_labels)
    if len(label) > 1:
        return Schema(task=with_many_labels.name, text=text, label=label)
    column = columns[label[0]]
    may_be_number = named_task is None or named_task.predicts_numbers
    has_commas = _has_decimal_commas(column) and not several and may_be_number
    if has_commas and options.decimal != ",":
        raise UsageError(
            f"{column.name!r} holds numbers with a decimal comma or lists of numbers: "
            f"{_some_values(column)}",
            hint="--decimal , for numbers; --label-separator , for several labels",
        )
    separator = (
        ""
        if has_commas
        else options.label_separator
        or _separator_of(column, is_explicit=named_task is not None and not is_one_label)
    )
    if named_task is None:
        # annotation tools write one label as a list, `label`
        plural = re.fullmatch(r".*[^s]s", column.known_name)
        is_list = column.is_listed and (plural is not None or column.single < column.filled)
        if is_list or several or separator:
            named_task = with_many_labels
        elif column.has_amounts:
            named_task = next(each for each in tasks.values() if each.predicts_numbers)
        else:
            named_task = next(each for each in tasks.values() if each.has_classes)
    in_cells = named_task.has_many_labels and not column.is_listed
    separator = (separator or "|") if in_cells else ""
    return Schema(task=named_task.name, text=text, label=label, separator=separator)


def _refuse_parts(file: StudiedFile, *, has_words: bool) -> None:
    """Raise UsageError if a row is one word or one stretch of a text.

    Also if not all rows are for training.
    """
    columns = file.columns
    text = file.text
    tags = [name for name in file.label or columns if _holds_tags(columns[name])]
    short = [
        c
        for name, c in columns.items()
        if name not in tags and c.mean_length <= 12 and 2 * c.numbers < c.filled
    ]
    words = [
        column.name
        for column in short
        if column.holds(values.WORD) and (not text or column.name in text)
    ]
    is_whole = not text and any(column.holds(values.SENTENCE, 0.5) for column in columns.values())
    if has_words and tags and words and not is_whole:
        sentence = next((name for name in columns if name.lower().startswith("sent")), "COLUMN")
        options = (
            f"--sentence-column {quoted(sentence)} --text {quoted(words[0])} --label {tags[-1]}"
        )
        raise UsageError(
            f"each row holds one word: {words[0]!r} with the tag {tags[-1]!r}",
            hint=f"{options}; or write a CoNLL file: a word and its tag on each line, a blank line "
            "after a sentence",
        )
    for column in columns.values() if not file.label else ():
        expect(
            not _is_split(column),
            f"{column.name!r} divides the rows ({_some_values(column)}), and all of them would "
            "be trained on",
            hint="write one file for each part: bertworks finetune TRAIN --dev DEV; --label COLUMN "
            "uses all rows",
        )
        if (
            _OFFSETS.fullmatch(column.known_name)
            and column.is_numeric
            and not column.fractions
            and column.high > 1
        ):
            raise UsageError(
                f"{column.name!r} holds places in a text, and no labels",
                hint='write answers as in SQuAD, or spans as {"start": 0, "end": 5, "type": '
                '"person"}; or --label COLUMN',
            )


def _holds_tags(column: Column) -> bool:
    """Return whether each value is one tag of a word."""
    is_named = (
        column.known_name in _TAG_NAMES and column.has_few_values and column.holds(values.WORD)
    )
    return is_named or (column.holds(_TAG) and [*column.values] != ["O"])


def _is_split(column: Column) -> bool:
    """Return whether the values say which rows are for training and which for evaluation."""
    return len(column.values) > 1 and column.holds(values.SPLIT, 1)


def _has_decimal_commas(column: Column) -> bool:
    return any("," in value for value in column.values) and column.holds(values.DECIMAL_COMMA)


def _holds_ids(column: Column) -> bool:
    is_number = column.numbers > 0 or _has_decimal_commas(column)
    return not is_number and not column.is_listed and column.part_of(is_code) >= MOST


def _some_values(column: Column) -> str:
    return first_names(list(column.values), _SHOWN_VALUES)


def _separator_of(column: Column, *, is_explicit: bool) -> str:
    """Return the mark between several labels in one cell; "" if there is none.

    A comma or semicolon counts only if the parts recur, unless the task was named.
    """
    for mark in "|;,/" if is_explicit else "|;,":
        cells = [value for value in column.values if mark in value]
        if is_explicit and cells:
            return mark
        parts = {part.strip() for value in column.values for part in value.split(mark)}
        recur = mark == "|" or len(parts) < len(column.values)
        if cells and recur and max(map(len, parts)) <= MAX_LABEL_LENGTH:
            return mark
    return ""


# --- texts, labels and ids
# --------------------------------------------------------------------------------------------


def named_columns(columns: Iterable[Column]) -> dict[str, Column]:
    """Return the columns that hold something, by their names as tables usually spell them."""
    return {column.known_name: column for column in columns if column.filled}


def first_column(named: Columns, names: Iterable[str]) -> Column | None:
    """Return the column with the first of these names that there is, or None."""
    return next((named[name] for name in names if name in named), None)


def find_texts(columns: Columns, excluded: Names, *, is_one: bool = False) -> Names:
    """Return the text or the pair of texts; () if no column looks like one.

    Raises:
        UsageError: there is another text, and no known name tells which are read, unless the task
            reads one (`is_one`).
    """
    possible_columns = [column for name, column in columns.items() if name not in excluded]
    columns_by_name = named_columns(
        column
        for column in possible_columns
        if not (column.holds_codes() or column.holds_one_word())
    )
    for pair in values.PAIRS:
        if all(name in columns_by_name for name in pair):
            return tuple(columns_by_name[name].name for name in pair)
    text_names = [
        name
        for name in values.SINGLE_TEXTS
        if name in columns_by_name and not columns_by_name[name].is_numeric
    ]
    texts = []
    for name, column in columns_by_name.items():
        is_language = column.is_text and not column.is_constant and not column.holds_single_words()
        if is_language and name not in values.KNOWN_NO_TEXTS:
            texts.append(column)
    longest = first_column(columns_by_name, text_names) or max(
        texts, key=lambda column: column.mean_length, default=None
    )
    if longest is None:
        return _only_words_or_codes(possible_columns)
    min_length = max(_MIN_TEXT, longest.mean_length / 2)
    min_filled = _MIN_FILLED * max(column.filled for column in columns.values())
    long_names = []
    for column in texts:
        if column is longest or (column.mean_length > min_length and column.filled > min_filled):
            long_names.append(column.name)
    if len(long_names) == 2 and longest.name in long_names and are_nameless(columns):
        return tuple(long_names)
    other_names = [] if is_one else [name for name in long_names if name != longest.name]
    if other_names:
        # The order of a pair matters, as that of premise and hypothesis: it is that of the columns.
        single_option = f"--text {quoted(longest.name)}"
        text_pair = (longest.name, other_names[0])
        pair_options = " ".join(f"--text {quoted(name)}" for name in columns if name in text_pair)
        names = ", ".join(repr(name) for name in columns if name in (longest.name, *other_names))
        raise UsageError(
            f"several columns hold texts: {names}", hint=f"{single_option}, or {pair_options}"
        )
    return (longest.name,)


def _only_words_or_codes(possible_columns: Sequence[Column]) -> Names:
    """Return the only column that can be the text although it looks like something else, or ().

    It holds single words, names, ids, dates, addresses or one value.

    Raises:
        UsageError: there are several.
    """
    candidates = [
        column
        for column in possible_columns
        if column.is_text and column.known_name not in values.KNOWN_NO_TEXTS
    ]
    candidates = [column for column in candidates if not column.is_constant] or candidates
    candidates = [column for column in candidates if not column.holds_codes()] or candidates
    if len(candidates) > 1:
        names = ", ".join(repr(column.name) for column in candidates)
        raise UsageError(
            "several columns hold single words, names or codes, and none holds longer texts: "
            f"{names}",
            hint=f"--text {quoted(candidates[0].name)}, or another",
        )
    return tuple(column.name for column in candidates)


def find_label(columns: Columns, texts: Names) -> Names:
    """The column with the label, or several columns of 0 and 1; () if no column looks like one.

    Raises:
        UsageError: several columns look like one, and no name tells which.
    """
    named = named_columns(column for name, column in columns.items() if name not in texts)
    known = [
        named[name] for name in values.LABEL_NAMES if name in named and not _is_split(named[name])
    ]
    candidates = sorted(_candidates(columns, texts), key=lambda column: len(column.values))
    if len(known) > 1 or (
        known and not any(_flags(columns, [*known, c]) for c in candidates if c is not known[0])
    ):
        candidates = known
    if known and (known[0].known_name in values.SURE_LABELS or len(candidates) == 1):
        return (known[0].name,)
    first, *rest = candidates or [Column("")]
    if are_nameless(columns):  # 0 and 1 next to ids, as in CoLA
        is_sure = first.holds(values.FLAG_KINDS[0]) and all(
            len(c.values) > 9 and _holds_ids(c) for c in rest
        )
        candidates = [first] if is_sure else candidates
    elif not known and rest:
        flags = _flags(columns, candidates)
        if flags:
            return flags
    if len(candidates) < 2:
        return tuple(column.name for column in candidates)
    examples = ", ".join(
        f"{column.name!r} ({_some_values(column)})" for column in candidates[:_SHOWN_LABELS]
    )
    name = quoted(candidates[0].name)
    raise UsageError(
        f"several columns could be the label: {examples}",
        hint=f"--label {name}, or another; several columns of 0 and 1: --label {name} --label ...",
    )


def _flags(columns: Columns, candidates: Sequence[Column]) -> Names:
    """Columns of 0 and 1 that stand together and are written in the same way: each is a label.

    () if these are none.
    """
    places = [[*columns].index(column.name) for column in candidates]
    run = [*columns.values()][min(places) : max(places) + 1]
    is_even = any(all(column.holds(kind) for column in run) for kind in values.FLAG_KINDS)
    return tuple(column.name for column in run) if is_even else ()


def _candidates(columns: Columns, texts: Names) -> list[Column]:
    """The columns that could be the label by their values: classes, or numbers with fractions."""
    rows = max(column.filled for column in columns.values())
    candidates = []
    for name, column in columns.items():
        if name not in texts and column.filled > MOST * rows and _may_be_label(column):
            candidates.append(column)
    return candidates


def _may_be_label(column: Column) -> bool:
    name = column.known_name
    if name in values.ID_NAMES or values.NO_LABELS.fullmatch(name) or _OFFSETS.fullmatch(name):
        return False
    if _is_split(column) or (column.mean_length >= _DATE and _holds_ids(column)):
        return False
    has_fractions = column.is_numeric and column.fractions and not column.leading_zeros
    return column.has_few_values or bool(has_fractions) or _has_decimal_commas(column)


def _find_id(columns: Columns) -> str | None:
    """The column with a name for each row; None if there is none, or if many of its names recur."""
    named = named_columns(reversed([*columns.values()]))
    for column in [named[name] for name in values.ID_NAMES if name in named]:
        if column.values.total() - len(column.values) <= max(1, (1 - MOST) * len(column.values)):
            return column.name
    return None


def _doubt_about_text(column: Column) -> list[str]:
    """Return a note if a column that was inferred to be the text is probably none.

    It holds no text, or only single words.
    """
    kind = ""
    if column.holds_codes():
        kind = "dates, ids, addresses or other codes"
    elif column.is_constant:
        kind = "one value in most rows"
    elif column.holds_single_words() and column.known_name not in values.SINGLE_TEXTS:
        kind = "single words or names"
    if not kind:
        return []
    return [f"{column.name!r} holds {kind} ({_some_values(column)}), and is read as the text"]


def are_nameless(columns: Columns) -> bool:
    """Return whether all columns have numbers for names, as in a file without a header."""
    return all(re.fullmatch(r"column \d+", name) for name in columns)


def _certainty(schema: Schema, file: StudiedFile, header_note: str) -> list[str]:
    """Return the header, the grounds of what was inferred, and what else is possible."""
    columns = file.columns
    named = {*file.text, *file.label}
    lines = [header_note] if header_note else []
    has_layout = file.kind not in PLAIN_KINDS
    inferred = []
    for what, names in (("text", schema.text), ("label", schema.label)):
        if {*names} - named:
            by_name = {columns[name].known_name for name in names} <= values.KNOWN_NAMES | {
                *CHOICE_LISTS
            }
            inferred.append(
                f"{what} by its {'layout' if has_layout else 'name' if by_name else 'values'}"
            )
    for name in schema.text:
        if name in columns and name not in named and not has_layout:
            lines += _doubt_about_text(columns[name])
    is_open = not has_layout and {*schema.label} - named
    alternatives = [
        repr(c.name) for c in _candidates(columns, (*schema.text, *schema.label)) if is_open
    ]
    also = f"; another label could be: {', '.join(alternatives)}" if alternatives else ""
    if inferred:
        lines.append(f"inferred: {', '.join(inferred)}{also}")
    for column in columns.values():
        if named and _is_split(column):
            lines.append(f"all rows are used, though {column.name!r} divides them")
    return lines
