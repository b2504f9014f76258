"""Rows of labelled data -> items: what is asked of a text, before it is tokens. Every value is checked.

It is told what the columns mean (`Schema`) and guesses nothing (`guessing` does); it knows no tokens and no network.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from bertworks.errors import BertworksError
from bertworks.rows.reader import Row, RowReader
from bertworks.text.streams import Tally
from bertworks.text.tables import find_column

Task = Literal["classification", "multilabel", "regression", "tagging", "spans", "qa", "choice"]
_LISTED_LABELS = 30
_PRINTED_LIST = re.compile(r"""\[(['"].*['"]|\d[\d\s]*)\]""", re.DOTALL)
_MISSING = frozenset(("", "nan", "NaN"))  # pandas writes the latter two for a cell without value


class EmptyTextError(BertworksError):
    """A row has no text where one is asked for."""


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
        if labelled and item.id:
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
    values, where, _ = row
    if schema.task == "tagging" and not schema.raw:
        texts = _words_of(_field(row, schema.text[0]), schema.text[0], where)
    elif schema.task == "choice" and len(schema.text) == 2:
        prompt, column = schema.text
        choices = list_of(_field(row, column)) or ()
        texts = (_text(row, prompt), *(_text_of(choice, column, where) for choice in choices))
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
            f"the row has no field {column!r}, only {', '.join(row.values)}", where=row.where, fix="add it to the row"
        ) from None


def _text(row: Row, column: str) -> str:
    return _text_of(_field(row, column), column, row.where)


def _label(value: Any, column: str, texts: tuple[str, ...], schema: Schema, where: str) -> Any:
    match schema.task:
        case "classification":
            if isinstance(value, list | dict):
                raise _bad_label(value, column, where, "write one name there; or is it --task multilabel?")
            return _known_label(label_text(value), schema.labels, column, where)
        case "multilabel":
            parts = several_labels(value, schema.separator, column, where)
            return tuple(_known_label(part, schema.labels, column, where) for part in parts)
        case "regression":
            return _number_of(value, column, where)
        case "tagging":
            return _tags_of(value, texts, schema.labels, column, where)
        case "spans":
            return _spans_of(value, texts[0], schema.labels, column, where)
        case "qa":
            answers = answers_of(value)
            if answers is None:
                raise _bad_label(value, column, where, 'write answers as [{"text": "1968", "answer_start": 17}]')
            return tuple(answers)
        case "choice":
            number = _choice_number(value, texts[1:], schema.first_choice)
            if number is None:
                last = schema.first_choice + len(texts) - 2
                raise _bad_label(
                    value, column, where, f"write the number of the right one, {schema.first_choice}-{last}"
                )
            return number


# --- a cell of a table or a field of JSON -----------------------------------------------------------------------------


def label_text(value: Any) -> str | None:
    """The name of a class as text, 1 and 1.0 as "1"; None where it is missing."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value).strip()
    return None if text in _MISSING else text


def several_labels(value: Any, separator: str, column: str, where: str) -> tuple[str, ...]:
    """The names in a cell or field with several labels, which may be none.

    Raises:
        BertworksError: it holds no such thing; column: what it is called, where: its row.
    """
    found = value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        found = []
    elif isinstance(value, str):
        found = value.split(separator) if separator else _json_list(value) if value.strip() else []
    if not isinstance(found, list) or any(isinstance(part, list | dict) for part in found):
        raise _bad_label(value, column, where, 'write several labels as a list, ["one", "another"]')
    return tuple(dict.fromkeys(text for part in found if (text := label_text(part)) is not None))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The names in order; numbers by value where all are numbers."""
    names = set(labels)
    try:
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    except ValueError:
        return tuple(sorted(names))


def answers_of(value: Any) -> list[tuple[int, str]] | None:
    """The answers to a question as (start, text), from any usual layout; None where it holds no such thing."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if isinstance(value, dict):  # {"text": [...], "answer_start": [...]}
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            return None
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
    answers: list[tuple[int, str]] = []
    for answer in value if isinstance(value, list) else [None]:
        start, text = (answer.get("answer_start"), answer.get("text")) if isinstance(answer, dict) else (None, None)
        if not isinstance(start, int) or not isinstance(text, str):
            return None
        if text:  # "" is how some say that there is none
            answers.append((start, text))
    return answers


def list_of(value: Any) -> list[Any] | None:
    """A list, also one in JSON, or a text split at white space; None where it holds no such thing, as a list that was
    written in the manner of Python or numpy: ['a', 'b']."""
    if isinstance(value, str) and _PRINTED_LIST.fullmatch(value.strip()) and _json_list(value) is None:
        return None
    if isinstance(value, str):
        value = (_json_list(value) if value.lstrip().startswith("[") else None) or value.split()
    return value if isinstance(value, list) else None


def _choice_number(value: Any, choices: Sequence[str], first: int) -> int | None:
    """Which choice is right, from 0: by number (`first` is the first's), by letter, or by the choice's own text."""
    name = label_text(value) or ""
    if name.isdecimal() and 0 <= int(name) - first < len(choices):
        return int(name) - first
    letters = [chr(ord("A") + number) for number in range(len(choices))]
    if name.upper() in letters:
        return letters.index(name.upper())
    return list(choices).index(name) if name in choices else None


def _json_list(text: str) -> list[Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


# --- what is not allowed raises BertworksError: `column` is what the cell is called, `where` its row ------------------


def _text_of(value: Any, column: str, where: str) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    if not missing and not isinstance(value, str):
        raise BertworksError(f"{column!r} holds {value!r:.60}, which is no text", where=where, fix='write it as "text"')
    if missing or value.strip() in _MISSING:
        raise EmptyTextError(
            f"the text in {column!r} is empty" + ("" if missing else f": {value!r}"),
            where=where,
            fix="write a text there, or take the row out",
        )
    assert isinstance(value, str)
    return value


def _words_of(value: Any, column: str, where: str) -> tuple[str, ...]:
    """The words of a row: a list, or a text that is split at white space."""
    words = [] if value is None else list_of(value)
    if words is None or not all(isinstance(word, str) for word in words):
        raise BertworksError(
            f"{column!r} holds {value!r:.60}, which are no words", where=where, fix='write them as ["some", "words"]'
        )
    if not words or not all(words):  # one of white space, as the Japanese web has them, is a word of its own
        raise EmptyTextError(
            f"{column!r} has no word" if not words else f"a word in {column!r} is empty",
            where=where,
            fix="write a word there, or take the row out",
        )
    return tuple(words)


def _known_label(label: str | None, labels: Sequence[str], column: str, where: str) -> str:
    if label in labels:
        assert label is not None
        return label
    same = [known for known in labels if label is not None and _as_written(known) == _as_written(label)]
    if len(same) == 1:
        return same[0]
    close = difflib.get_close_matches(label or "", labels, 1)
    listed = ", ".join(labels[:_LISTED_LABELS]) + (", ..." if len(labels) > _LISTED_LABELS else "")
    raise BertworksError(
        f"the label in {column!r} is missing" if label is None else f"the label {label!r} is not known",
        where=where,
        fix=(f"did you mean {close[0]!r}? " if close else "") + f"the labels are: {listed}",
    )


def _as_written(label: str) -> str:
    """One name for what programs write in several ways: 1 and 1.0, true and True."""
    if label.lower() in ("true", "false"):
        return label.lower()
    return label.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", label) else label


def _bad_label(value: Any, column: str, where: str, fix: str) -> BertworksError:
    missing = value is None or (isinstance(value, str) and not value.strip())
    what = "is missing" if missing else f"holds {value!r:.80}"
    return BertworksError(f"the label in {column!r} {what}", where=where, fix=fix)


def _number_of(value: Any, column: str, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _bad_label(value, column, where, "write a number there, or take the row out")
    return number


def _tags_of(value: Any, words: Sequence[str], labels: Sequence[str], column: str, where: str) -> tuple[str, ...]:
    tags = list_of(value)
    if tags is None:
        raise _bad_label(value, column, where, 'write one tag for each word, as ["O", "B-person"]')
    if len(tags) != len(words):
        raise BertworksError(
            f"{len(words)} words and {len(tags)} tags", where=where, fix="write one tag for each word; O for none"
        )
    return tuple(_known_label(label_text(tag), labels, column, where) for tag in tags)


def _is_span(value: Any) -> bool:
    kinds = {"start": int, "end": int, "type": str}
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def _spans_of(
    value: Any, text: str, labels: Sequence[str], column: str, where: str
) -> tuple[tuple[int, int, str], ...]:
    value = _json_list(value) if isinstance(value, str) and value.strip() else value
    if not isinstance(value, list):
        raise _bad_label(value, column, where, 'write a list of {"start": 0, "end": 5, "type": "person"}, or []')
    if wrong := [span for span in value if not _is_span(span)]:
        raise _bad_label(wrong[0], column, where, 'write a span as {"start": 0, "end": 5, "type": "person"}')
    spans = [(span["start"], span["end"], _known_label(span["type"], labels, column, where)) for span in value]
    for start, end, kind in spans:
        if not 0 <= start < end <= len(text):
            raise BertworksError(
                f"the {kind} from {start} to {end} is not inside its text of {len(text)} characters",
                where=where,
                fix="count characters (not bytes) from 0; the end is the place after the last one",
            )
    return tuple(spans)
