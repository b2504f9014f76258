"""What the columns of labelled data mean: texts, labels, choices, row names, and the task.

Inferred from known names first, then from statistics of the values. `schema` checks single rows later.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bertworks.datasets import values
from bertworks.datasets.annotations import ENTITY_TAG
from bertworks.datasets.reader import Row, RowReader
from bertworks.datasets.schema import Schema, TaskType, items, refuse_rows
from bertworks.datasets.values import MAX_CLASSES, MAX_LABEL_LENGTH, MOST, Column
from bertworks.errors import BertworksError, UsageError
from bertworks.io.tables import find_column
from bertworks.io.text_files import IssueCounter

Columns = Mapping[str, Column]  # by name
_SHOWN_LABELS = 10
_SAMPLE_ROWS = 1000  # read where labels do not matter
_CHOICE = re.compile(r"(choice|ending|option|answer|alternative|candidate|sol|solution|選択肢|보기)s?[ _-]?(\d+|[a-e])")
_CHOICE_LISTS = ("choices", "endings", "options", "candidates", "answers")
_NO_LABELS = re.compile(  # names of columns with few different values that are not labels
    r"#?\d* ?(id|idx|index)s?|.*[_ ]ids?|genre|file|filename|year|date|time|month|split|fold|set|source\d*|origin|"
    r"domain|lang|language|locale|country|version|user|author|annotator|worker|speaker|gender|url|name|old_index|document|lines"
)
_TASKS: dict[TaskType, tuple[str, int, int, str]] = {  # in words; how many columns hold texts, and which they are
    "classification": ("one label for a text", 1, 2, "the text, or a pair of texts"),
    "multilabel": ("any number of labels for a text", 1, 2, "the text, or a pair of texts"),
    "regression": ("a number for a text", 1, 2, "the text, or a pair of texts"),
    "tagging": ("a tag for each word", 1, 1, "the words"),
    "spans": ("labelled stretches of a text", 1, 1, "the text"),
    "qa": ("the answer to a question, found in its context", 2, 2, "the question and the context"),
    "choice": ("one of several continuations or answers", 1, 1 << 10, "the prompt and the choices"),
}


def infer_schema(
    reader: RowReader,
    *,
    task: TaskType | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    group: str | None = None,
    labelled: bool = True,
) -> tuple[Schema, list[str]]:
    """What the columns of a file mean, and why, in words. Reads the file twice; only its beginning unless `labelled`.

    Args:
        task, text, label: what is known already.
        group: the column that tells which rows belong together.
        labelled: whether labels are looked for.

    Raises:
        UsageError: `text`, `label` or `group` names no column, or the task reads fewer or more texts.
        BertworksError: no column looks like a text or a label; all rows have the same label.
    """
    for name, option in (*((name, "--text") for name in text), (label, "--label"), (group, "--group")):
        if name is not None:
            find_column(reader.columns, reader.name, name, option)
    if len({*text, label} - {None}) < len(text) + (label is not None):
        raise UsageError("one column is named twice", where=reader.name, hint="name each text and the label once")
    columns = _study(reader if labelled else itertools.islice(reader, _SAMPLE_ROWS), reader.columns)
    if next(iter(reader), None) is None:
        raise BertworksError("there are no rows", where=reader.name, hint="name a file that holds rows")
    schema = _by_layout(reader, columns, text, label)
    if schema is None or (task and schema.task != task) or (label and schema.label != label):
        schema = _by_columns(columns, tuple(text), label, task)
    if text or (not labelled and len(reader.columns) == 1):
        schema = replace(schema, text=tuple(text) or tuple(reader.columns))
    for value, what in ((schema.text, "text"), (schema.label, "label")):
        if not value and (labelled or what == "text"):
            others = set(reader.columns) - {*schema.text}
            hint = f"name the one with the {what} with --{what}" if others else f"add one with the {what}"
            problem = f"no column looks like a {what}; the columns are: {', '.join(reader.columns)}"
            raise BertworksError(problem, where=reader.name, hint=hint)
    _check_texts(schema, reader.name)
    row_id = "id" if reader.kind == "squad" else _find_id(columns)
    schema = replace(schema, id=row_id, document=group or schema.document)
    if not labelled:
        schema = replace(schema, label=None, separator="")
    elif schema.label is not None:
        column = columns[schema.label]
        schema = replace(schema, labels=_labels(reader, schema))
        _check_labels(schema, column, reader.name, is_explicit=task is not None)
    return schema, _reasons(schema, columns)


def _study(rows: Iterable[Row], names: Sequence[str]) -> dict[str, Column]:
    """The statistics of each column."""
    columns = {name: Column(name) for name in names}
    for row in rows:
        for name, value in row.values.items():
            if name not in columns:
                columns[name] = Column(name)
            columns[name].add(value)
    return columns


# --- the task ---------------------------------------------------------------------------------------------------------


def _by_layout(reader: RowReader, columns: Columns, text: Sequence[str], label: str | None) -> Schema | None:
    """The schema, if the layout of the file is enough to tell it."""
    if reader.kind == "squad":
        return Schema(task="qa", text=("question", "context"), label="answers")
    if reader.kind == "spans":
        return Schema(task="spans", text=_find_texts(columns, ("entities",)), label="entities")
    if reader.kind == "conll":
        document = "document" if columns["document"].high > 0 else None
        return Schema(task="tagging", text=("tokens",), label="tags" if "tags" in columns else None, document=document)
    if words := _find_words(columns, text, label):
        return Schema(task="tagging", text=words[:1], label=words[1])
    if questions := _find_questions(columns, label):
        return Schema(task="qa", text=questions[:2], label=questions[2])
    return None


def _by_columns(columns: Columns, text: tuple[str, ...], label: str | None, task: TaskType | None) -> Schema:
    if task in (None, "choice") and (schema := _choice(columns, text, label, is_explicit=task is not None)):
        return schema
    text = text or _find_texts(columns, (label,))
    label = label or _find_label(columns, text)
    if label is None:
        return Schema(task=task or "classification", text=text)
    column = columns[label]
    separator = _separator_of(column, is_explicit=task == "multilabel")
    if task is None:
        amounts: TaskType = "regression" if column.has_amounts else "classification"
        plural = re.fullmatch(r".*[^s]s", column.known_name)  # annotation tools write one label as a list, `label`
        several = column.is_listed and (plural or column.single < column.filled)
        task = "multilabel" if several or separator else amounts
    in_cells = task == "multilabel" and not column.is_listed
    return Schema(task=task, text=text, label=label, separator=(separator or "|") if in_cells else "")


def _choice(columns: Columns, text: tuple[str, ...], label: str | None, *, is_explicit: bool) -> Schema | None:
    """A multiple choice, if the columns hold one, or if the task was named."""
    texts = text or _find_choices(columns)
    if not texts or (text and not is_explicit):
        return None
    label = label or _find_label(columns, texts)
    last = columns[texts[-1]]
    number = last.entries // last.lists if last.is_listed else len(texts) - 1
    right = columns[label] if label is not None else Column("")
    counts = [right.values[str(place)] for place in range(number + 1)]
    are_choices = right.numbers < MOST * right.filled or sum(counts) >= MOST * right.filled
    if not is_explicit and (label is None or not are_choices):
        return None
    return Schema(task="choice", text=texts, label=label, first_choice=int(not counts[0] and counts[number] > 0))


def _separator_of(column: Column, *, is_explicit: bool) -> str:
    """The mark between several labels in one cell; "" if there is none. A comma or semicolon counts only if the parts
    recur, unless the task was named."""
    for mark in "|;,/" if is_explicit else "|;,":
        cells = [value for value in column.values if mark in value]
        if is_explicit and cells:
            return mark
        parts = {part.strip() for value in column.values for part in value.split(mark)}
        recur = mark == "|" or len(parts) < len(column.values)
        if cells and recur and max(map(len, parts)) <= MAX_LABEL_LENGTH:
            return mark
    return ""


# --- texts, labels and ids --------------------------------------------------------------------------------------------


def _named(columns: Iterable[Column]) -> dict[str, Column]:
    return {column.known_name: column for column in columns if column.filled}


def _first(named: Columns, names: Iterable[str]) -> Column | None:
    return next((named[name] for name in names if name in named), None)


def _find_choices(columns: Columns) -> tuple[str, ...]:
    """The prompt and the choices (or the one column with a list of them); () if there are none."""
    named = _named(columns.values())
    stems: dict[str, list[str]] = {}
    for known, column in named.items():
        if match := _CHOICE.fullmatch(known):
            stems.setdefault(match[1], []).append(column.name)
    choices = max(stems.values(), key=len, default=[])
    if len(choices) < 2:
        choices = [named[known].name for known in _CHOICE_LISTS if known in named and named[known].is_listed][:1]
    prompt = _first(named, values.PROMPTS)
    if choices and prompt is not None:
        return prompt.name, *choices
    # A prompt, at least three choices and the number of the right one, at the end of a table without header.
    *others, label = columns.values()
    number = int(label.high) + 1 if label.is_numeric and not label.fractions and label.low == 0 else 0
    texts = others[-1 - number :]
    if not _are_nameless(columns) or number < 3 or len(texts) <= number or not all(text.is_text for text in texts):
        return ()
    return tuple(text.name for text in texts)


def _find_texts(columns: Columns, excluded: Sequence[str | None]) -> tuple[str, ...]:
    """The text or the pair of texts; () if no column looks like one."""
    named = _named(column for name, column in columns.items() if name not in excluded)
    for pair in values.PAIRS:
        if all(name in named for name in pair):
            return tuple(named[name].name for name in pair)
    if known := _first(named, (name for name in values.SINGLE_TEXTS if name in named and not named[name].is_numeric)):
        return (known.name,)
    texts = [column for name, column in named.items() if column.is_text and name not in values.ID_NAMES]
    longest = max((column.mean_length for column in texts), default=0)
    long = [column.name for column in texts if column.mean_length > max(15, longest / 2)]
    if len(long) == 2 and _are_nameless(columns):
        return tuple(long)
    return tuple(column.name for column in texts if column.mean_length == longest)[:1]


def _find_label(columns: Columns, texts: Sequence[str]) -> str | None:
    """The column with the label; None if no column looks like one."""
    named = _named(column for name, column in columns.items() if name not in texts)
    if known := _first(named, values.LABEL_NAMES):
        return known.name
    others = [named[name] for name in named if name not in values.ID_NAMES and not _NO_LABELS.fullmatch(name)]
    rows = max(column.filled for column in columns.values())
    classes = [column for column in others if column.has_few_values and column.filled > MOST * rows]
    if classes:
        return min(reversed(classes), key=lambda column: len(column.values)).name
    return next((column.name for column in reversed(others) if column.is_numeric and column.fractions), None)


def _find_id(columns: Columns) -> str | None:
    """The column with a name for each row; None if there is none, or if many of its names recur."""
    named = _named(reversed([*columns.values()]))
    for column in [named[name] for name in values.ID_NAMES if name in named]:
        if column.values.total() - len(column.values) <= max(1, (1 - MOST) * len(column.values)):
            return column.name
    return None


def _find_words(columns: Columns, text: Sequence[str], label: str | None) -> tuple[str, str] | None:
    """The columns with lists of words and of their tags; None if there are none. `text` and `label` are known."""
    lists = _named(column for column in columns.values() if column.is_listed)
    words = _first(lists, [columns[name].known_name for name in text] or ["tokens", "words", "token", "word"])
    known = [columns[label].known_name] if label else ["tags", "ner_tags", "pos_tags", "labels", "label", "tag"]
    for tags in [lists[name] for name in known if name in lists]:
        if words and MOST <= tags.entries / max(1, words.entries) <= 1 / MOST:
            return words.name, tags.name
    return None


def _find_questions(columns: Columns, label: str | None) -> tuple[str, str, str] | None:
    """The columns with questions, contexts and answers; None if there are none. `label` is known."""
    named = _named(columns.values())
    answers = _first(named, [columns[label].known_name] if label else ["answers", "answer"])
    if "question" in named and "context" in named and answers and answers.answers >= MOST * answers.filled:
        return named["question"].name, named["context"].name, answers.name
    return None


def _are_nameless(columns: Columns) -> bool:
    return all(re.fullmatch(r"column \d+", name) for name in columns)


# --- the labels of the file -------------------------------------------------------------------------------------------


def _labels(reader: RowReader, schema: Schema) -> tuple[str, ...]:
    """All labels of the file. Rows with errors are left out: they are refused when they are read again, or here if the
    others have too few labels."""
    if schema.task in ("regression", "qa", "choice"):
        return ()
    counts = Counter[str]()
    errors: list[BertworksError] = []
    for item in items(reader, replace(schema, id=None), left_out=IssueCounter(), errors=errors):
        if schema.task == "classification":
            counts[item.label] += 1
        else:
            counts.update(label if isinstance(label, str) else label[2] for label in item.label)
    if len(counts.keys() - {"O"}) < 1 + (schema.task == "classification"):
        refuse_rows(errors, reader.name)
    return values.sorted_labels(_true_tags(counts) if schema.task == "tagging" else counts)


def _true_tags(counts: Mapping[str, int]) -> Iterable[str]:
    """If nearly all tags but O say where an entity begins or continues, all others are errors: a header, a 0."""
    marks = {tag for tag in counts if ENTITY_TAG.fullmatch(tag)}
    marked = sum(counts[tag] for tag in marks)
    total = sum(counts.values()) - counts.get("O", 0)
    return [tag for tag in counts if tag in marks or tag == "O"] if marked >= MOST * total else counts


def _check_texts(schema: Schema, name: str) -> None:
    """Raises UsageError if the task reads more or fewer texts."""
    _, least, most, meaning = _TASKS[schema.task]
    if not least <= len(schema.text) <= most:
        hint = "name them: --text QUESTION --text CONTEXT" if schema.task == "qa" else "name others: --text, --task"
        what = f"{schema.task} reads {meaning}, not {len(schema.text)} columns: {', '.join(map(repr, schema.text))}"
        raise UsageError(what, where=name, hint=hint)


def _check_labels(schema: Schema, column: Column, name: str, *, is_explicit: bool) -> None:
    """Raises BertworksError if the labels cannot train a model: no label, one label only, or as many as rows."""
    what, hint = "", "name another column with --label, or another task with --task"
    count = f"{column.filled:,} rows"
    task, labels = schema.task, schema.labels
    if task == "classification" and len(labels) < 2:
        what = f"all rows with a text have the same label, {labels[0]!r}" if labels else "there is no label"
        hint = "add rows with another label"
    elif task == "classification":
        if not is_explicit and len(column.values) > MAX_CLASSES and not column.has_few_values:
            more = " or more" if column.has_more_values else ""
            what = f"{len(column.values):,}{more} different values in {count} are not classes"
    elif task == "regression" and column.low == column.high and column.is_numeric:
        what, hint = f"all {count} have the same number, {column.low}", "add rows with other numbers"
    elif task == "tagging" and not set(labels) - {"O"}:
        what, hint = "no word has a tag other than O", "tag some words"
    elif task in ("multilabel", "spans") and not labels:
        what, hint = "no row has a label", "label some rows"
    elif task == "choice" and len(schema.text) < 2:
        what, hint = "there are no choices", "name them: --text PROMPT --text CHOICE1 --text CHOICE2"
    if what:
        raise BertworksError(f"{what} (in {schema.label!r})", where=name, hint=hint)


def _reasons(schema: Schema, columns: Columns) -> list[str]:
    """The schema in words."""
    lines = [f"task: {schema.task} ({_TASKS[schema.task][0]})", f"text: {' and '.join(map(repr, schema.text))}"]
    if schema.label is not None:
        column = columns[schema.label]
        shown = values.first_names(schema.labels, _SHOWN_LABELS)
        meaning = {
            "classification": f"{len(schema.labels)} different values: {shown}",
            "multilabel": f"any of {len(schema.labels)}, separated by {schema.separator or 'commas'}: {shown}",
            "regression": f"numbers from {column.low:g} to {column.high:g}",
            "tagging": f"a tag for each word: {shown}",
            "spans": f"stretches of characters: {shown}",
            "qa": "answers, and their places in the context",
            "choice": f"the right choice; {schema.first_choice} is the first",
        }
        lines.append(f"label: {schema.label!r}, {meaning[schema.task]}")
    if schema.id:
        lines.append(f"name of a row: {schema.id!r}")
    if schema.document in columns and schema.task != "tagging":
        lines.append(f"kept together: rows with the same {schema.document!r}")
    if unused := [name for name in columns if name not in (*schema.text, schema.label, schema.id, schema.document)]:
        lines.append(f"not used: {', '.join(map(repr, unused))}")
    return lines
