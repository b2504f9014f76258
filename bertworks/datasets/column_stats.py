"""Statistics of the columns of labelled data: texts, numbers, lists and different values of each column."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertworks.datasets.reader import Row
from bertworks.datasets.values import answers_of, as_number, label_text, list_of

MAX_CLASSES = 20  # different numbers without fraction; more of them are amounts
MAX_LABEL_LENGTH = 60  # characters
MOST = 0.9  # a fraction of the values that decides for all: the others are errors, reported when the rows are read
_MAX_VALUES = 2000  # different values that are counted in a column


@dataclass
class Column:
    """Statistics of a column."""

    name: str
    filled: int = 0  # rows with a value
    characters: int = 0
    numbers: int = 0  # values that are numbers
    fractions: int = 0  # numbers that are not whole
    low: float = math.inf
    high: float = -math.inf
    lists: int = 0  # values that are lists
    entries: int = 0  # of all lists
    answers: int = 0  # values that are answers to a question
    values: Counter[str] = field(default_factory=Counter)  # the first _MAX_VALUES different ones
    has_more_values: bool = False

    @property
    def mean_length(self) -> float:
        """Characters of a value, on average."""
        return self.characters / max(1, self.filled)

    @property
    def is_numeric(self) -> bool:
        return 0 < self.filled == self.numbers

    @property
    def is_listed(self) -> bool:
        return self.lists > 0 and self.lists >= MOST * self.filled

    @property
    def known_name(self) -> str:
        return self.name.strip().lower()

    @property
    def has_few_values(self) -> bool:
        """Whether the different values are few and frequent enough to be classes."""
        count = len(self.values)
        frequent = 5 * count <= self.filled or (count <= MAX_CLASSES and 2 * count <= self.filled)
        return not self.has_more_values and count > 1 and frequent and self.mean_length <= MAX_LABEL_LENGTH

    @property
    def is_text(self) -> bool:
        return self.filled > 0 and not self.is_listed and self.numbers < 0.5 * self.filled and not self.has_few_values

    @property
    def has_amounts(self) -> bool:
        """Whether numbers are amounts and not names of classes: with fractions, or many of them with gaps between.

        If there are many different values, some of them may be no numbers: they are errors, reported when the rows are
        read.
        """
        many = len(self.values) > MAX_CLASSES
        gaps = self.high - self.low + 1 > len(self.values)
        numeric = self.is_numeric or (many and self.numbers >= MOST * self.filled)
        return numeric and (self.fractions > 0 or (many and (gaps or self.has_more_values)))

    def add(self, value: Any) -> None:
        """Count one more value."""
        if isinstance(value, list | dict) or (isinstance(value, str) and value[:1] in "[{" and value[-1:] in "]}"):
            self.answers += answers_of(value) is not None
            if isinstance(value, list) or (isinstance(value, str) and value[:1] == "["):
                entries = list_of(value)
                self.lists += 1
                self.entries += len(str(value).split() if entries is None else entries)
            if not isinstance(value, str):
                self.filled += 1
                return
        text = label_text(value)
        if text is None:
            return
        self.filled += 1
        self.characters += len(text)
        number = as_number(text) if len(text) <= MAX_LABEL_LENGTH else math.nan
        if math.isfinite(number):
            self.numbers += 1
            self.fractions += not number.is_integer()
            self.low, self.high = min(self.low, number), max(self.high, number)
        if text in self.values or len(self.values) < _MAX_VALUES:
            self.values[text] += 1
        else:
            self.has_more_values = True


def study(rows: Iterable[Row], names: Sequence[str]) -> dict[str, Column]:
    """The statistics of each column."""
    columns = {name: Column(name) for name in names}
    for row in rows:
        for name, value in row.values.items():
            if name not in columns:
                columns[name] = Column(name)
            columns[name].add(value)
    return columns
