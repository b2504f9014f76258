"""What the columns of labelled data look like: counts for each, and which are texts, labels, choices, names of rows.

By known names first, then by content. It decides no task and checks no row: `schema` does.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertworks.text.cells import answers_of, label_text, list_of
from bertworks.text.rows import Row
from bertworks.text.tables import ID_NAMES, LABEL_NAMES, PAIRS, PROMPTS, SINGLE_TEXTS

MOST_VALUES = 2000  # different ones that are counted in a column
MOST_CLASSES = 20  # of numbers without fraction: more of them are rather amounts
_LONGEST_LABEL = 60  # characters
_CHOICE = re.compile(r"(choice|ending|option|answer|alternative|candidate|sol|solution|選択肢|보기)s?[ _-]?(\d+|[a-e])")
_CHOICE_LISTS = ("choices", "endings", "options", "candidates", "answers")
_NO_LABELS = re.compile(  # what a column of few different values is about, when it is not the label
    r"#?\d* ?(id|idx|index)s?|.*[_ ]ids?|genre|file|filename|year|date|time|month|split|fold|set|source\d*|origin|"
    r"domain|lang|language|locale|country|version|user|author|annotator|worker|speaker|gender|url|name|old_index|document|lines"
)


@dataclass
class Column:
    """What stands in a column. Of more than MOST_VALUES different values, only the first so many are counted."""

    name: str
    rows: int = 0
    filled: int = 0  # rows that have a value
    characters: int = 0
    numbers: int = 0  # values that are numbers; among them
    fractions: int = 0  # not whole
    low: float = math.inf
    high: float = -math.inf
    lists: int = 0  # values that are lists, with so many
    entries: int = 0  # entries in all
    answers: int = 0  # values that are answers to a question
    values: Counter[str] = field(default_factory=Counter)
    many: bool = False

    @property
    def mean_length(self) -> float:
        """Characters of a value, on average."""
        return self.characters / max(1, self.filled)

    @property
    def numeric(self) -> bool:
        return 0 < self.filled == self.numbers

    @property
    def listed(self) -> bool:
        return 0 < self.filled == self.lists

    @property
    def known_name(self) -> str:
        return self.name.strip().lower()

    def add(self, value: Any) -> None:
        """Count one more value."""
        self.rows += 1
        if isinstance(value, list | dict) or (isinstance(value, str) and value[:1] in "[{" and value[-1:] in "]}"):
            self._add_structure(value)
            if not isinstance(value, str):
                self.filled += 1
                return
        text = label_text(value)
        if text is None:
            return
        self.filled += 1
        self.characters += len(text)
        if len(text) <= _LONGEST_LABEL:
            self._add_number(text)
        if text in self.values or len(self.values) < MOST_VALUES:
            self.values[text] += 1
        else:
            self.many = True

    def _add_structure(self, value: Any) -> None:
        self.answers += answers_of(value) is not None
        if isinstance(value, list) or (isinstance(value, str) and value[:1] == "["):
            entries = list_of(value)
            self.lists += 1
            self.entries += len(entries or ())

    def _add_number(self, text: str) -> None:
        try:
            number = float(text)
        except ValueError:
            return
        if math.isfinite(number):
            self.numbers += 1
            self.fractions += not number.is_integer()
            self.low, self.high = min(self.low, number), max(self.high, number)

    def few(self) -> bool:
        """Whether there are so few different values, each so often, that these can be classes."""
        different = len(self.values)
        often = 5 * different <= self.filled or (different <= MOST_CLASSES and 2 * different <= self.filled)
        return not self.many and different > 1 and often and self.mean_length <= _LONGEST_LABEL


def study(rows: Iterable[Row], names: Sequence[str]) -> dict[str, Column]:
    """What stands in each column, counted over all rows."""
    columns = {name: Column(name) for name in names}
    for row in rows:
        for name, value in row.values.items():
            if name not in columns:
                columns[name] = Column(name)
            columns[name].add(value)
    return columns


def find_choices(columns: Mapping[str, Column]) -> tuple[str, ...]:
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
    prompt = next((by_name[known] for known in PROMPTS if known in by_name and by_name[known] not in choices), None)
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


def count_choices(columns: Mapping[str, Column], texts: Sequence[str]) -> int:
    """How many choices there are, given the columns with the prompt and the choices (or a list of them)."""
    listed = columns[texts[-1]]
    return listed.entries // listed.lists if listed.listed else len(texts) - 1


def is_choice(column: Column, number: int) -> bool:
    """Whether a column can tell which one of so many choices is right: if it holds numbers, these must be theirs."""
    return not column.numeric or (column.low >= 0 and column.high <= number and not column.fractions)


def find_texts(columns: Mapping[str, Column], taken: Iterable[str | None] = ()) -> tuple[str, ...]:
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


def find_label(columns: Mapping[str, Column], texts: Sequence[str]) -> str | None:
    """The column with the label; None if nothing looks like one."""
    free = {column.known_name: column for name, column in columns.items() if name not in texts and column.filled}
    if known := next((free[name].name for name in LABEL_NAMES if name in free), None):
        return known
    others = [column for known, column in free.items() if known not in ID_NAMES and not _NO_LABELS.fullmatch(known)]
    rows = max(column.filled for column in columns.values())
    classes = [column for column in others if column.few() and column.filled > 0.9 * rows]
    if classes:
        return min(reversed(classes), key=lambda column: len(column.values)).name
    return next((column.name for column in reversed(others) if column.numeric and column.fractions), None)


def find_id(columns: Mapping[str, Column]) -> str | None:
    """The column with a name for each row; None if there is none, or its names stand more than once."""
    for name in ID_NAMES:
        column = next((column for column in columns.values() if column.known_name == name), None)
        if column is not None and column.filled and sum(column.values.values()) <= 1.01 * len(column.values):
            return column.name
    return None


def find_words(columns: Mapping[str, Column]) -> tuple[str, str] | None:
    """The columns with lists of words and of their tags; None if there are none of these."""
    lists = {column.known_name: column for column in columns.values() if column.listed}
    words = next((lists[name] for name in ("tokens", "words") if name in lists), None)
    tags = [lists[name] for name in ("tags", "ner_tags", "pos_tags", "labels", "label") if name in lists]
    return next(((words.name, tag.name) for tag in tags if words and tag.entries == words.entries), None)


def find_questions(columns: Mapping[str, Column]) -> tuple[str, str, str] | None:
    """The columns with questions, contexts and answers in them; None if there are none of these."""
    known = {column.known_name: column for column in columns.values() if column.filled}
    answers = next((known[name] for name in ("answers", "answer") if name in known), None)
    if "question" in known and "context" in known and answers and answers.answers == answers.filled:
        return known["question"].name, known["context"].name, answers.name
    return None


def separator_of(column: Column) -> str:
    """Between several labels in one cell; "" if there is none. A comma or semicolon only where names come again."""
    for mark in "|;,":
        cells = [value for value in column.values if mark in value]
        parts = {part.strip() for value in column.values for part in value.split(mark)}
        if cells and (mark == "|" or len(parts) < len(column.values)) and max(map(len, parts)) <= _LONGEST_LABEL:
            return mark
    return ""


def are_amounts(column: Column) -> bool:
    """Whether numbers are amounts, and not names of classes: with fractions, or many of them with gaps between."""
    gaps = column.high - column.low + 1 > len(column.values)
    return column.numeric and (column.fractions > 0 or (len(column.values) > MOST_CLASSES and (gaps or column.many)))


def _is_text(column: Column) -> bool:
    return column.filled > 0 and not column.lists and column.numbers < 0.5 * column.filled and not column.few()


def _nameless(columns: Mapping[str, Column]) -> bool:
    return all(re.fullmatch(r"column \d+", name) for name in columns)
