"""What the columns of labelled data mean: texts, labels, choices, row names, and the task.

Inferred from known names first, then from statistics of the values. Single rows are checked later, by `schema`.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bertworks.datasets.annotations import ENTITY_TAG
from bertworks.datasets.column_stats import LONGEST_LABEL, MOST, MOST_CLASSES, Column, study
from bertworks.datasets.reader import RowReader
from bertworks.datasets.schema import Schema, TaskType
from bertworks.datasets.values import (
    ID_NAMES,
    LABEL_NAMES,
    PAIRS,
    PROMPTS,
    SINGLE_TEXTS,
    label_text,
    list_of,
    several_labels,
    sorted_labels,
)
from bertworks.errors import BertworksError, UsageError
from bertworks.io.tables import find_column

_CHOICE = re.compile(r"(choice|ending|option|answer|alternative|candidate|sol|solution|選択肢|보기)s?[ _-]?(\d+|[a-e])")
_CHOICE_LISTS = ("choices", "endings", "options", "candidates", "answers")
_NO_LABELS = re.compile(  # what a column of few different values is about, when it is not the label
    r"#?\d* ?(id|idx|index)s?|.*[_ ]ids?|genre|file|filename|year|date|time|month|split|fold|set|source\d*|origin|"
    r"domain|lang|language|locale|country|version|user|author|annotator|worker|speaker|gender|url|name|old_index|document|lines"
)
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


def guess_schema(
    reader: RowReader,
    *,
    task: TaskType | None = None,
    text: Sequence[str] = (),
    label: str | None = None,
    group: str | None = None,
    labelled: bool = True,
) -> tuple[Schema, list[str]]:
    """What the columns of a file mean, and why, in words. Reads the file twice; where not `labelled`, its beginning.

    Args:
        task, text, label: what is known already, and not guessed.
        group: the column that tells which rows belong together.
        labelled: whether labels are looked for.

    Raises:
        UsageError: `text`, `label` or `group` names no column, or more texts than the task has.
        BertworksError: no column looks like a text or a label; all rows have the same label.
    """
    named = [*((name, "--text") for name in text), (label, "--label"), (group, "--group")]
    for wanted, option in named:
        if wanted is not None:
            find_column(reader.columns, reader.name, wanted, option)
    if len({*text, label} - {None}) < len(text) + (label is not None):
        raise UsageError("one column is named twice", where=reader.name, hint="name each text and the label once")
    columns = study(reader if labelled else itertools.islice(reader, _STUDIED_ROWS), reader.columns)
    if not any(column.rows for column in columns.values()):
        raise BertworksError("there are no rows", where=reader.name, hint="name a file that holds rows")
    schema = _by_layout(reader, columns, tuple(text), label) or _by_columns(columns, tuple(text), label, task)
    if (task and schema.task != task) or (label and schema.label != label):
        schema = _by_columns(columns, tuple(text), label, task)
    if text or (not labelled and len(reader.columns) == 1):
        schema = replace(schema, text=tuple(text) or tuple(reader.columns))
    for found, what in ((schema.text, "text"), (schema.label, "label")):
        if not found and (labelled or what == "text"):
            other = set(reader.columns) - {*schema.text}
            raise BertworksError(
                f"no column looks like a {what}; the columns are: {', '.join(reader.columns)}",
                where=reader.name,
                hint=f"name the one that holds the {what} with --{what}" if other else f"add one that holds the {what}",
            )
    _check_texts(schema, reader.name)
    schema = replace(schema, id="id" if reader.kind == "squad" else _find_id(columns))
    schema = replace(schema, document=group) if group is not None else schema
    if not labelled or schema.label is None:
        return (schema := replace(schema, label=None, separator="")), _reasons(schema, None, list(columns))
    column = columns[schema.label]
    schema = replace(schema, labels=_names(reader, schema))
    _check_labels(schema, column, reader.name, asked=task is not None)
    return schema, _reasons(schema, column, list(columns))


def _by_layout(
    reader: RowReader, columns: dict[str, Column], text: tuple[str, ...], label: str | None
) -> Schema | None:
    """Where the file's layout says it all."""
    if reader.kind == "squad":
        return Schema(task="qa", text=("question", "context"), label="answers")
    if reader.kind == "spans":
        return Schema(task="spans", text=_find_texts(columns, ("entities",)), label="entities")
    if reader.kind == "conll":
        documents = columns["document"].high > 0
        label = "tags" if "tags" in columns else None
        return Schema(task="tagging", text=("tokens",), label=label, document="document" if documents else None)
    if words := _find_words(columns, text, label):
        return Schema(task="tagging", text=words[:1], label=words[1])
    if questions := _find_questions(columns, label):
        return Schema(task="qa", text=questions[:2], label=questions[2])
    return None


def _by_columns(columns: dict[str, Column], text: tuple[str, ...], label: str | None, task: TaskType | None) -> Schema:
    if task in (None, "choice") and (choices := text if task and text else () if text else _find_choices(columns)):
        right = label or _find_label(columns, choices)
        listed = columns[choices[-1]]
        number = listed.entries // listed.lists if listed.listed else len(choices) - 1
        answers = columns[right] if right is not None else Column("")
        counts = {str(place): answers.values[str(place)] for place in range(number + 1)}
        theirs = answers.numbers < MOST * answers.filled or sum(counts.values()) >= MOST * answers.filled
        if task or (right is not None and theirs):
            first = int(not counts["0"] and counts[str(number)] > 0)
            return Schema(task="choice", text=choices, label=right, first_choice=first)
    text = text or _find_texts(columns, (label,))
    label = label or _find_label(columns, text)
    if label is None:
        return Schema(task=task or "classification", text=text)
    column = columns[label]
    separator = _separator_of(column, asked=task == "multilabel")
    if task is None and (column.listed or separator):
        task = "multilabel"
    elif task is None:
        task = "regression" if _are_amounts(column) else "classification"
    parted = task == "multilabel" and not column.listed
    return Schema(task=task, text=text, label=label, separator=(separator or "|") if parted else "")


def _names(reader: RowReader, schema: Schema) -> tuple[str, ...]:
    """All labels that stand in the file."""
    names: set[str | None] = set()
    tags = Counter[str | None]()
    for row in reader:
        value = row.values.get(schema.label or "")
        match schema.task:
            case "classification":
                names.add(None if isinstance(value, list | dict) else label_text(value))
            case "multilabel":
                names.update(several_labels(value, schema.separator, schema.label or "", row.where))
            case "tagging":
                if (entries := list_of(value)) is None and value is not None:
                    what = f"{schema.label!r} holds {value!r:.60}, which are no tags"
                    raise BertworksError(what, where=row.where, hint='write them as ["B-person", "O"]')
                tags.update(map(label_text, entries or ()))
            case "spans":
                spans = list_of(value) or []
                names.update(str(span["type"]) for span in spans if isinstance(span, dict) and "type" in span)
            case "regression" | "qa" | "choice":
                break
    return sorted_labels(name for name in (*names, *_true_tags(tags)) if name is not None)


def _true_tags(tags: Counter[str | None]) -> list[str | None]:
    """Where nearly all that is not O says where an entity begins or goes on, all else is a mistake: a header, a 0."""
    marks = {tag for tag in tags if tag and ENTITY_TAG.fullmatch(tag)}
    others = sum(count for tag, count in tags.items() if tag not in (None, "O") and tag not in marks)
    most = sum(tags[tag] for tag in marks)
    return [tag for tag in tags if tag in marks or tag == "O"] if most >= MOST * (most + others) else list(tags)


_TEXTS: dict[TaskType, tuple[int, int, str]] = {  # how many columns hold texts, and which these are
    "classification": (1, 2, "the text, or a pair of texts"), "multilabel": (1, 2, "the text, or a pair of texts"),
    "regression": (1, 2, "the text, or a pair of texts"), "tagging": (1, 1, "the words"), "spans": (1, 1, "the text"),
    "qa": (2, 2, "the question and the context"), "choice": (1, 1 << 10, "the prompt and the choices"),
}  # fmt: skip


def _check_texts(schema: Schema, name: str) -> None:
    """Raises UsageError where the task reads more columns, or fewer."""
    least, most, meant = _TEXTS[schema.task]
    if not least <= len(schema.text) <= most:
        given = ", ".join(map(repr, schema.text))
        raise UsageError(
            f"{schema.task} reads {meant}, and {len(schema.text)} columns are to be read: {given}",
            where=name,
            hint="name them: --text QUESTION --text CONTEXT" if schema.task == "qa" else "name others: --text, --task",
        )


def _check_labels(schema: Schema, column: Column, name: str, *, asked: bool) -> None:
    """Raises BertworksError where nothing can be learned: no label, one label only, or as many as rows."""
    what, hint = "", "name another column with --label, or another task with --task"
    count = f"{column.filled:,} rows"
    match schema.task:
        case "classification":
            if len(schema.labels) < 2:
                what = (
                    f"all {count} have the same label, {schema.labels[0]!r}" if schema.labels else "there is no label"
                )
                hint = "add rows with another label"
            elif not asked and len(column.values) > MOST_CLASSES and not column.few():
                what = f"{len(column.values):,}{' or more' * column.many} different values in {count} are no classes"
        case "regression":
            if column.low == column.high and column.numeric:
                what, hint = f"all {count} have the same number, {column.low}", "add rows with other numbers"
        case "tagging":
            if not set(schema.labels) - {"O"}:
                what, hint = "no word has a tag other than O", "tag some words"
        case "multilabel" | "spans":
            if not schema.labels:
                what, hint = "no row has a label", "label some rows"
        case "choice":
            if len(schema.text) < 2:
                what, hint = "there are no choices", "name them: --text PROMPT --text CHOICE1 --text CHOICE2"
        case "qa":
            pass
    if what:
        raise BertworksError(f"{what} (in {schema.label!r})", where=name, hint=hint)


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
    if schema.document in names and schema.task != "tagging":
        lines.append(f"kept together: rows with the same {schema.document!r}")
    if unused:
        lines.append(f"not used: {', '.join(map(repr, unused))}")
    return lines


def _find_choices(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The prompt and the choices (or the one column with a list of them); () if this is no multiple choice."""
    by_name = {column.known_name: name for name, column in columns.items() if column.filled}
    stems: dict[str, list[str]] = {}
    for known, name in by_name.items():
        if match := _CHOICE.fullmatch(known):
            stems.setdefault(match[1], []).append(name)
    choices = max(stems.values(), key=len, default=[])
    if len(choices) < 2:
        lists = [known for known in _CHOICE_LISTS if known in by_name]
        choices = [by_name[known] for known in lists if columns[by_name[known]].listed][:1]
    prompt = next((by_name[known] for known in PROMPTS if known in by_name), None)
    if choices and prompt is not None:
        return prompt, *choices
    return _choices_without_names(list(columns.values())) if _nameless(columns) else ()


def _choices_without_names(columns: list[Column]) -> tuple[str, ...]:
    """A prompt, at least three choices, the number of the right one, at the end of a table without header."""
    label = columns[-1]
    number = int(label.high) + 1 if label.numeric and not label.fractions and label.low == 0 else 0
    texts = columns[-2 - number : -1]
    if number < 3 or len(texts) != number + 1 or not all(_is_text(column) for column in texts):
        return ()
    return tuple(column.name for column in texts)


def _find_texts(columns: Mapping[str, Column], taken: Iterable[str | None] = ()) -> tuple[str, ...]:
    """The text or the pair of texts; () if nothing looks like one.

    Args:
        taken: columns that are something else.
    """
    free = {column.known_name: column for name, column in columns.items() if column.filled and name not in set(taken)}
    for pair in PAIRS:
        if all(name in free for name in pair):
            return free[pair[0]].name, free[pair[1]].name
    if known := next((free[name].name for name in SINGLE_TEXTS if name in free and not free[name].numeric), None):
        return (known,)
    texts = [column for column in free.values() if _is_text(column) and column.known_name not in ID_NAMES]
    longest = max(texts, key=lambda column: column.mean_length, default=None)
    if longest is None:
        return ()
    alike = [column.name for column in texts if column.mean_length > max(15, longest.mean_length / 2)]
    return tuple(alike) if len(alike) == 2 and _nameless(columns) else (longest.name,)


def _find_label(columns: Mapping[str, Column], texts: Sequence[str]) -> str | None:
    """The column with the label; None if nothing looks like one."""
    free = {column.known_name: column for name, column in columns.items() if name not in texts and column.filled}
    if known := next((free[name].name for name in LABEL_NAMES if name in free), None):
        return known
    others = [column for known, column in free.items() if known not in ID_NAMES and not _NO_LABELS.fullmatch(known)]
    rows = max(column.filled for column in columns.values())
    classes = [column for column in others if column.few() and column.filled > MOST * rows]
    if classes:
        return min(reversed(classes), key=lambda column: len(column.values)).name
    return next((column.name for column in reversed(others) if column.numeric and column.fractions), None)


def _find_id(columns: Mapping[str, Column]) -> str | None:
    """The column with a name for each row; None if there is none, or many of its names stand more than once."""
    for name in ID_NAMES:
        column = next((column for column in columns.values() if column.known_name == name), None)
        if column is None or not column.filled:
            continue
        again = sum(column.values.values()) - len(column.values)
        if again <= max(1, (1 - MOST) * len(column.values)):
            return column.name
    return None


def _find_words(columns: Mapping[str, Column], text: Sequence[str], label: str | None) -> tuple[str, str] | None:
    """The columns with lists of words and of their tags; None if there are none of these.

    Args:
        text, label: what is known already.
    """
    lists = {column.known_name: column for column in columns.values() if column.listed}
    wanted = [columns[name].known_name for name in text] or ["tokens", "words"]
    words = next((lists[name] for name in wanted if name in lists), None)
    known = [columns[label].known_name] if label else ["tags", "ner_tags", "pos_tags", "labels", "label"]
    tags = [lists[name] for name in known if name in lists]
    return next(
        ((words.name, tag.name) for tag in tags if words and MOST <= tag.entries / max(1, words.entries) <= 1 / MOST),
        None,
    )


def _find_questions(columns: Mapping[str, Column], label: str | None) -> tuple[str, str, str] | None:
    """The columns with questions, contexts and answers in them; None if there are none of these.

    Args:
        label: what is known already.
    """
    known = {column.known_name: column for column in columns.values() if column.filled}
    wanted = [columns[label].known_name] if label else ["answers", "answer"]
    answers = next((known[name] for name in wanted if name in known), None)
    if "question" in known and "context" in known and answers and answers.answers >= MOST * answers.filled:
        return known["question"].name, known["context"].name, answers.name
    return None


def _separator_of(column: Column, *, asked: bool) -> str:
    """Between several labels in one cell; "" if there is none. A comma or semicolon only where names come again, unless
    somebody said that cells hold several labels."""
    for mark in "|;,/" if asked else "|;,":
        cells = [value for value in column.values if mark in value]
        if asked and cells:
            return mark
        parts = {part.strip() for value in column.values for part in value.split(mark)}
        if cells and (mark == "|" or len(parts) < len(column.values)) and max(map(len, parts)) <= LONGEST_LABEL:
            return mark
    return ""


def _are_amounts(column: Column) -> bool:
    """Whether numbers are amounts, and not names of classes: with fractions, or many of them with gaps between.

    Of many different values a few may be no numbers: mistakes, which are named when the rows are read.
    """
    many = len(column.values) > MOST_CLASSES
    gaps = column.high - column.low + 1 > len(column.values)
    numbers = column.numeric or (many and column.numbers >= MOST * column.filled)
    return numbers and (column.fractions > 0 or (many and (gaps or column.many)))


def _is_text(column: Column) -> bool:
    return column.filled > 0 and not column.listed and column.numbers < 0.5 * column.filled and not column.few()


def _nameless(columns: Mapping[str, Column]) -> bool:
    return all(re.fullmatch(r"column \d+", name) for name in columns)
