"""Names and values of columns.

- known names of columns, and whether the first row of a table is a header
- a cell of a table or a field of JSON -> a text, words, a label, a number, spans, answers; or an
  error
- `Column`: statistics of all values of a column

In errors `column` is the name of the column and `where` the row.
"""

import difflib
import itertools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from bertworks.datasets.annotations import span_of
from bertworks.errors import BertworksError, quoted
from bertworks.io.tables import (
    COLUMN_NAMES,
    TEXT_NAMES,
    first_rows,
    is_code,
    is_header,
    is_single_word,
    nested_hint,
    split_rows,
)

# The label, whatever else there is; others.
SURE_LABELS, _OTHER_LABELS, _OTHER_TEXTS, PROMPTS, ID_NAMES = (
    tuple(COLUMN_NAMES[kind].split())
    for kind in ("sure_label", "other_label", "other_text", "prompt", "id")
)
LABEL_NAMES = (*SURE_LABELS, *_OTHER_LABELS)
SINGLE_TEXTS = (*TEXT_NAMES, *_OTHER_TEXTS)
PAIRS = [tuple(pair) for pair in COLUMN_NAMES["pairs"]]
KNOWN_NO_TEXTS = frozenset((*ID_NAMES, *LABEL_NAMES))
KNOWN_NAMES = frozenset(
    (*ID_NAMES, *LABEL_NAMES, *SINGLE_TEXTS, *PROMPTS, *itertools.chain(*PAIRS))
)
MAX_CLASSES = 20  # different numbers without fraction; more of them are amounts
MAX_LABEL_LENGTH = 60  # characters
# a fraction of the values that decides for all: the others are errors, reported when the rows are
# read
MOST = 0.9
SIMILAR = 0.8  # of the letters of two names that one is written for the other by mistake
_MANY_ROWS = 10  # from which one value in half of them says something about a column
_FEW = 3  # words of the name of a column; values that show how long texts are
_LONGEST_NAME = 12
_MAX_VALUES = 2000  # different values that are counted in a column
_LONGEST_VALUE = 1000  # characters of a value by which it differs
_PRINTED_LIST = re.compile(r"""\[(['"].*['"]|\d[\d\s]*)\]""", re.DOTALL)
NUMBERED = re.compile(r"\W*[^\W\d_]+\W*\d+\W*")  # "Sentence: 1"
WORD = re.compile(r"\S{1,25}")
SENTENCE = re.compile(r"\s*\S+(\s+\S+){2,}\s*|.{26,}", re.DOTALL)
SPLIT = re.compile(
    r"(public|private)?(train(ing)?|test(ing)?|dev|devel(opment)?|val|valid(ation)?|eval|holdout)",
    re.I,
)
_WHOLE_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
# of a code, as a postal code: no number is written so
_LEADING_ZEROS = re.compile(r"[+-]?0[0-9]+(\.[0-9]+)?")
DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?")
FLAG_KINDS = [re.compile(kind, re.I) for kind in ("0|1", "false|true", "no|yes")]
# whether a label is true
FLAGS = {"0": False, "1": True, "false": False, "true": True, "no": False, "yes": True}
NO_LABELS = re.compile("|".join(COLUMN_NAMES["no_label"]))
_MISSING = frozenset(("", "nan", "NaN"))  # pandas writes the latter two for a cell without a value
# What programs and people write into the cell of a label that is not known.
MISSING_LABELS = frozenset(("N/A", "NA", "n/a", "#N/A", "null", "nan", "NaN"))
# These may mean the same, or be classes.
PERHAPS_MISSING = frozenset(("none", "None", "NONE", "-", "?"))


class EmptyTextError(BertworksError):
    """A row has no text where the schema reads one."""


class MissingLabelError(BertworksError):
    """A row has no label where the schema reads one."""


def missing_label(column: str, where: str, hint: str, value: Any = None) -> MissingLabelError:
    """Return the error for a row without a label.

    value: what the cell holds, which is named if it is one of MISSING_LABELS.
    """
    what = f"the label in {column!r} is missing"
    if isinstance(value, str) and value.strip() in MISSING_LABELS:
        word = value.strip()
        what += f": the cell holds {word!r}, as programs write a cell without a value"
        hint = f"{hint}; or leave such rows out: --missing {quoted(word)}"
        if not is_nan_text(word):
            hint += "; or read such cells as a class: --missing-none"
    else:
        hint = f"{hint}; or skip all rows without a label: --skip-unlabelled"
    return MissingLabelError(what, where=where, hint=hint)


def is_nan_text(value: Any) -> bool:
    """Return whether a value is the text "nan", which pandas writes for a cell without a value."""
    return isinstance(value, str) and value.strip() in _MISSING and bool(value.strip())


def names_columns(
    first: Sequence[str], rows: Sequence[Sequence[str]], known: Container[str] = ()
) -> bool | None:
    """Return whether the first row of a table is a header; None: in doubt.

    A header has known names, or cells unlike those below. Names may be empty: pandas leaves out
    that of its index, and columns without values have none.

    known: more names.
    """
    columns = [Column(cell.strip()) for cell in first]
    for row in rows:
        for column, cell in zip(columns, row):
            column.add(cell)
    columns = [column for column in columns if column.name]
    count = sum(column.known_name in KNOWN_NAMES or column.name in known for column in columns)
    if columns and (count >= 2 or count == len(columns)):
        return True
    if not columns or any(column.name in column.values for column in columns):
        return False
    names = [column.name for column in columns]
    # a name has fewer words and, in a script without spaces, fewer characters
    is_row = not is_header(names) or any(
        len(name.split()) > _FEW
        or (not name.isascii() and len(max(name.split(), key=len)) >= _LONGEST_NAME)
        for name in names
    )
    differs = any(map(_is_unlike_its_name, columns))
    is_usual = count or any(NO_LABELS.fullmatch(column.known_name) for column in columns)
    return differs if differs != is_row else True if is_usual and not is_row else None


def _is_unlike_its_name(column: "Column") -> bool:
    """Return whether a column's first cell is probably a header.

    Its values are numbers and the first cell is none, few distinct values, or texts more than twice
    as long.
    """
    # Good and Turing: how likely another value is new
    once = sum(count == 1 for count in column.values.values())
    is_short = column.filled >= _FEW and 2 * len(column.name) <= min(map(len, column.values))
    is_number = not math.isnan(as_number(column.name))
    is_closed = column.filled > _FEW and once <= (1 - MOST) * column.filled
    return not is_number and (
        column.numbers >= MOST * max(1, column.filled) or is_short or is_closed
    )


def has_header(sample: list[str], delimiter: str) -> bool:
    """Return whether a file that may be plain text is a table.

    A table has rows of equal length below a header of bare names.
    """
    try:
        rows = split_rows(enumerate(sample, 1), delimiter, quoted=True, name="", strict=True)
        first, *rows_below = [row for _, row in first_rows(rows) if row]
    except BertworksError:
        return False
    bare = all(cell == cell.strip() for cell in first) and (
        len(first) > 1 or first[0] in TEXT_NAMES
    )
    return (
        bare
        and len(rows_below) > 0
        and {len(first)} == set(map(len, rows_below))
        and bool(names_columns(first, rows_below))
    )


# --- texts
# --------------------------------------------------------------------------------------------------


def text_of(value: Any, column: str, where: str) -> str:
    """Return the text of a cell."""
    if label_text(value) is None:
        raise EmptyTextError(
            f"the text in {column!r} is empty" + (f": {value!r}" if isinstance(value, str) else ""),
            where=where,
            hint="write a text there, or remove the row",
        )
    if not isinstance(value, str):
        raise BertworksError(
            f"{column!r} holds {value!r:.60}, not a text",
            where=where,
            hint=nested_hint(column, value, "--text") or 'write it as "text"',
        )
    return value


def words_of(value: Any, column: str, where: str) -> tuple[str, ...]:
    """Return the words of a row: a list, or a text that is split at white space."""
    words = [] if value is None else list_of(value)
    if words is None or not all(isinstance(word, str) for word in words):
        raise BertworksError(
            f"{column!r} holds {value!r:.60}, not words",
            where=where,
            hint='write them as ["some", "words"]',
        )
    # white space, as in the Japanese web treebank, is a word of its own
    if not words or not all(words):
        raise EmptyTextError(
            f"a word in {column!r} is empty" if words else f"{column!r} has no word",
            where=where,
            hint="write a word there, or remove the row",
        )
    # equal ones are one object: those of a long text take a seventh of the memory
    return tuple(map(intern, words))


def list_of(value: Any) -> list[Any] | None:
    """Return a list, a JSON list, or a text split at white space, else None.

    It is None also for a list as Python or numpy print it.
    """
    parsed = _parsed(value)
    if isinstance(parsed, list):
        return parsed
    return (
        value.split()
        if isinstance(value, str) and not _PRINTED_LIST.fullmatch(value.strip())
        else None
    )


def _parsed(value: Any) -> Any:
    """Return the value of JSON; None for a text that is no JSON.

    Other values stay as they are.
    """
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None


# --- labels
# --------------------------------------------------------------------------------------------------


def label_text(value: Any) -> str | None:
    """Return the name of a class as text, 1 and 1.0 as "1"; None if it is missing."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = "" if value is None else str(value).strip()
    return None if text in _MISSING else text


def flag_of(value: Any, column: str, where: str) -> bool:
    """Return whether the label with the name of a column is true."""
    name = canonical_label(label_text(value) or "").lower()
    hint = "write 1 where the label is true, 0 where it is not"
    if not name:
        raise missing_label(column, where, hint)
    if name not in FLAGS:
        raise BertworksError(f"the label in {column!r} holds {value!r:.80}", where=where, hint=hint)
    return FLAGS[name]


def several_labels(value: Any, separator: str, names: Sequence[str] = ()) -> list[str] | None:
    """The labels in a cell or field that holds any number of them; None if it holds something else.

    names: there is a 0 or a 1 for each of them instead of labels.
    """
    parts = [] if label_text(value) is None else value
    if isinstance(parts, str):
        parts = parts.split(separator) if separator else _parsed(parts)
    if not isinstance(parts, list) or any(isinstance(part, list | dict) for part in parts):
        return None
    texts = [text for text in map(label_text, parts) if text is not None]
    if names:
        flags = [FLAGS.get(canonical_label(text).lower()) for text in texts]
        are_flags = len(flags) == len(names) and None not in flags
        return [name for name, flag in zip(names, flags) if flag] if are_flags else None
    return list(dict.fromkeys(texts))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Return the labels sorted; by value if all are numbers."""
    names = sorted(set(labels))
    numbers = {name: as_number(name) for name in names}
    return tuple(
        names if any(map(math.isnan, numbers.values())) else sorted(names, key=numbers.__getitem__)
    )


def misspelt_labels(label: str, labels: Sequence[str]) -> list[str]:
    """Return [the known label that an unknown one may mean], or [].

    They differ in hardly more than a wrong letter.

    Short names that differ in one letter of three, as HUM and NUM, are two labels.
    """
    return difflib.get_close_matches(label, labels, 1, cutoff=SIMILAR)


def canonical_label(label: str) -> str:
    """Return the usual spelling of a class.

    Programs write 1 also as 1.0, and true also as True or TRUE. The comparison is one of texts: 01
    and 1.10 are other classes than 1 and 1.1, and true is not 1.
    """
    if label.lower() in ("true", "false"):
        return label.lower()
    whole_number = _WHOLE_NUMBER.fullmatch(label)
    return whole_number[1] if whole_number else label


def folded_label(label: str) -> str:
    """Return the same text for labels that differ only in case, width or spaces.

    pos, Pos and full-width ｐｏｓ are such labels. An underscore is a space.
    """
    visible_text = "".join(
        character for character in label if unicodedata.category(character) != "Cf"
    )
    text = unicodedata.normalize("NFKC", canonical_label(visible_text)).casefold()
    return " ".join(text.replace("_", " ").split())


def spellings_of_classes(counts: Mapping[str, int], *, join: bool) -> dict[str, dict[str, int]]:
    """Return for each class of a file the counts of all of its spellings.

    The most frequent spelling comes first.

    That spelling is also the name of the class. Of equally frequent spellings it is the shortest.

    Args:
        counts: the number of rows of each label.
        join: whether labels are one class that `folded_label` makes equal; else only those that
            `canonical_label` makes equal.
    """
    groups: dict[str, dict[str, int]] = {}
    for label, count in counts.items():
        key = folded_label(label) if join else canonical_label(label)
        groups.setdefault(key, {})[label] = count
    classes = {}
    for spellings in groups.values():
        ordered = sorted(spellings, key=lambda label: (-spellings[label], len(label), label))
        classes[ordered[0]] = {label: spellings[label] for label in ordered}
    return classes


def similar_labels(counts: Mapping[str, int]) -> list[str]:
    """Return the classes that differ only in case, width or spaces, in words.

    Each group reads "'pos' (12) and 'Pos' (3)".
    """
    groups = spellings_of_classes(counts, join=True).values()
    similar_groups = [group for group in groups if len(group) > 1]
    return [
        " and ".join(f"{label!r} ({count:,})" for label, count in group.items())
        for group in similar_groups
    ]


def as_number(value: Any, decimal: str = ".") -> float:
    """Return a number, or a text that is one; NaN for other values.

    decimal: the mark before the fraction in a text.
    """
    if decimal == "," and isinstance(value, str):
        value = (
            value.replace(".", "").replace(",", ".")
            if DECIMAL_COMMA.fullmatch(value.strip())
            else None
        )
    # Python reads 12_34 as a number; in data it is an id
    if isinstance(value, str) and "_" in value:
        return math.nan
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def spans_of(value: Any) -> list[dict[str, Any]] | None:
    """Return spans of characters (`annotations.span_of`), from any usual layout, or None."""
    value = _parsed(value)
    spans: list[Any] = list(map(span_of, value)) if isinstance(value, list) else [None]
    return None if None in spans else spans


def answers_of(value: Any) -> list[tuple[int, str]] | None:
    """Return the answers to a question as (start, text), from any usual layout, or None."""
    match _parsed(value):
        case {"answer_start": list(starts), "text": list(texts)} if len(starts) == len(texts):
            answers = list(zip(starts, texts))
        case list(entries) if all(isinstance(entry, dict) for entry in entries):
            answers = [(entry.get("answer_start"), entry.get("text")) for entry in entries]
        case _:
            return None
    if not all(isinstance(start, int) and isinstance(text, str) for start, text in answers):
        return None
    return [(start, text) for start, text in answers if text]  # some files write "" for no answer


def choice_number(value: Any, choices: Sequence[str], first: int) -> int | None:
    """Return which choice is right, from 0.

    The value is its number (`first` for the first), its letter or its own text.
    """
    name = canonical_label(label_text(value) or "")
    if name.isdecimal() and 0 <= int(name) - first < len(choices):
        return int(name) - first
    letters = [chr(ord("A") + number) for number in range(len(choices))]
    if name.upper() in letters:
        return letters.index(name.upper())
    return list(choices).index(name) if name in choices else None


# --- all values of a column
# -------------------------------------------------------------------------------------------


@dataclass
class Column:
    """Statistics of a column."""

    name: str
    decimal: str = "."  # the mark before the fraction of a number
    filled: int = 0  # rows with a value
    characters: int = 0
    numbers: int = 0  # values that are numbers
    fractions: int = 0  # numbers that are not whole
    leading_zeros: int = 0  # numbers that are written like codes, as 007
    low: float = math.inf
    high: float = -math.inf
    lists: int = 0  # values that are lists
    entries: int = 0  # of all lists
    single: int = 0  # lists with one text
    answers: int = 0  # values that are answers to a question
    # The first _MAX_VALUES different ones, in the spelling of `canonical_label`.
    values: Counter[str] = field(default_factory=Counter)
    has_more_values: bool = False

    @property
    def mean_length(self) -> float:
        """Characters of a value, on average."""
        return self.characters / max(1, self.filled)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return 0 < self.filled == self.numbers

    @property
    def is_listed(self) -> bool:
        """Whether nearly all values are lists."""
        return self.lists > 0 and self.lists >= MOST * self.filled

    @property
    def known_name(self) -> str:
        """The name of the column in lower case, as in lists of usual names."""
        return self.name.strip().lower()

    @property
    def has_few_values(self) -> bool:
        """Whether the different values are few and frequent enough to be classes."""
        count = len(self.values)
        frequent = 5 * count <= self.filled or (count <= MAX_CLASSES and 2 * count <= self.filled)
        return (
            not self.has_more_values
            and count > 1
            and frequent
            and self.mean_length <= MAX_LABEL_LENGTH
        )

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return (
            self.filled > 0
            and not self.is_listed
            and self.numbers < 0.5 * self.filled
            and not self.has_few_values
        )

    @property
    def has_amounts(self) -> bool:
        """Return whether numbers are amounts and not names of classes.

        Amounts have fractions, or there are many of them with gaps between. Values with leading
        zeros are codes.

        If there are many different values, some of them may be no numbers: they are errors,
        reported when the rows are read.
        """
        has_many_values = len(self.values) > MAX_CLASSES
        has_gaps = self.high - self.low + 1 > len(self.values)
        are_numbers = self.is_numeric or (has_many_values and self.numbers >= MOST * self.filled)
        if not are_numbers or self.leading_zeros:
            return False
        return self.fractions > 0 or (has_many_values and (has_gaps or self.has_more_values))

    @property
    def other_reading(self) -> str:
        """What numbers may be besides amounts, for a note; "" if nothing else is likely."""
        may_be_classes = self.has_few_values and not self.fractions
        return "; if they are classes: --task classification" if may_be_classes else ""

    def holds(self, pattern: re.Pattern[str], part: float = MOST) -> bool:
        """Return whether a part of the values match."""
        return self.part_of(pattern.fullmatch) >= part

    @property
    def is_constant(self) -> bool:
        """Whether at least half of many rows have the same value, as a field that is not in use."""
        largest_count = max(self.values.values(), default=0)
        return self.filled >= _MANY_ROWS and 2 * largest_count >= self.filled

    def holds_one_word(self) -> bool:
        """Return whether most rows have the same word, as NO_QUERY where there was no query."""
        return self.is_constant and self.is_text and " " not in self.values.most_common(1)[0][0]

    def holds_codes(self) -> bool:
        """Return whether the values are dates, ids, paths, addresses or numbers, not language."""
        if self.known_name not in KNOWN_NAMES and self.holds(NUMBERED):
            return True
        return not self.is_listed and self.part_of(is_code) >= MOST

    def holds_single_words(self) -> bool:
        """Whether the values are single words or names without a space, as those of users."""
        return self.part_of(lambda value: is_single_word(value) or is_code(value)) >= MOST

    def part_of(self, holds: Callable[[str], object]) -> float:
        """Return the part of the values of which a condition holds."""
        count = sum(count for value, count in self.values.items() if holds(value))
        return count / max(1, self.values.total())

    def add(self, value: Any) -> None:
        """Count one more value."""
        if isinstance(value, list | dict) or (
            isinstance(value, str) and value[:1] in "[{" and value[-1:] in "]}"
        ):
            self.answers += answers_of(value) is not None
            if isinstance(value, list) or (isinstance(value, str) and value[:1] == "["):
                entries = list_of(value)
                self.lists += 1
                self.single += (
                    isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)
                )
                self.entries += len(str(value).split() if entries is None else entries)
            if not isinstance(value, str):
                self.filled += 1
                return
        text = label_text(value)
        if text is None:
            return
        self.filled += 1
        self.characters += len(text)
        number = as_number(text, self.decimal) if len(text) <= MAX_LABEL_LENGTH else math.nan
        if math.isfinite(number):
            self.numbers += 1
            self.fractions += not number.is_integer()
            self.leading_zeros += _LEADING_ZEROS.fullmatch(text) is not None
            self.low = min(self.low, number)
            self.high = max(self.high, number)
        text = canonical_label(text[:_LONGEST_VALUE])
        if text in self.values or len(self.values) < _MAX_VALUES:
            self.values[text] += 1
        else:
            self.has_more_values = True
