"""Statistics of the columns of labelled data: texts, numbers, lists, different values of each column."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertworks.datasets.reader import Row
from bertworks.datasets.values import answers_of, label_text, list_of

MOST_CLASSES = 20  # of numbers without fraction: more of them are rather amounts
LONGEST_LABEL = 60  # characters
MOST = 0.9  # so many values are what all should be: the others are mistakes, which are named when the rows are read
_MOST_VALUES = 2000  # different ones that are counted in a column


@dataclass
class Column:
    """What stands in a column. Of more than _MOST_VALUES different values, only the first so many are counted."""

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
        return self.lists > 0 and self.lists >= MOST * self.filled

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
        if len(text) <= LONGEST_LABEL:
            self._add_number(text)
        if text in self.values or len(self.values) < _MOST_VALUES:
            self.values[text] += 1
        else:
            self.many = True

    def _add_structure(self, value: Any) -> None:
        self.answers += answers_of(value) is not None
        if isinstance(value, list) or (isinstance(value, str) and value[:1] == "["):
            entries = list_of(value)
            self.lists += 1
            self.entries += len(str(value).split() if entries is None else entries)

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
        return not self.many and different > 1 and often and self.mean_length <= LONGEST_LABEL


def study(rows: Iterable[Row], names: Sequence[str]) -> dict[str, Column]:
    """What stands in each column, counted over all rows."""
    columns = {name: Column(name) for name in names}
    for row in rows:
        for name, value in row.values.items():
            if name not in columns:
                columns[name] = Column(name)
            columns[name].add(value)
    return columns
