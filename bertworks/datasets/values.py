"""Names and values of columns.

- known names of columns, and whether the first row of a table is a header
- a cell of a table or a field of JSON -> a text, words, a label, a number, spans, answers; or an error

In errors `column` is the name of the column and `where` the row.
"""

import difflib
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from bertworks.errors import BertworksError
from bertworks.io.tables import TEXT_NAMES, is_header, split_rows

LABEL_NAMES = (
    *("label", "labels", "gold_label", "class", "classes", "category", "categories", "target", "targets", "gold", "y"),
    *("sentiment", "score", "stars", "star", "rating", "ratings", "quality", "polarity", "emotion", "emotions"),
    *("intent", "topic", "topics", "tag", "tags", "is_duplicate", "similarity", "answer", "answer_key", "answerkey"),
    *("ラベル", "正解", "分類", "カテゴリ", "カテゴリー", "感情", "評価"),
    *("라벨", "레이블", "분류", "감정", "감성", "평점", "점수"),
)
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("text_a", "text_b"), ("text1", "text2")),
    *(("question1", "question2"), ("#1 string", "#2 string"), ("sentence_a", "sentence_b"), ("text", "text_pair")),
    *(("sent1", "sent2"), ("s1", "s2"), ("question", "sentence"), ("question", "passage"), ("question", "context")),
    *(("query", "passage"), ("query", "document"), ("query", "text"), ("claim", "evidence")),
)
SINGLE_TEXTS = (*TEXT_NAMES, "tweet", "utterance", "message", "post", "question", "query", "title", "headline")
PROMPTS = tuple("startphrase ctx prompt question premise context goal stem sentence sent1 text".split())
ID_NAMES = ("id", "guid", "uid", "uuid", "idx", "index", "qid", "q_id", "example_id", "question_id")
KNOWN_NAMES = frozenset((*ID_NAMES, *LABEL_NAMES, *SINGLE_TEXTS, *PROMPTS, *(name for pair in PAIRS for name in pair)))
JUDGED_ROWS = 100  # by which header and columns are told


def names_columns(first: list[str], others: list[list[str]]) -> bool:
    """Whether the first row of a table is a header: known names; or like one, with no cell that is a value below it."""
    known = sum(cell.strip().lower() in KNOWN_NAMES for cell in first)
    if known >= 2 or known == len(first):
        return True
    index_first = [first[0] if first[0].strip() else "index", *first[1:]]  # pandas leaves the name of its index empty
    recurs = any(cell == row[index] for row in others for index, cell in enumerate(first) if index < len(row))
    return not recurs and is_header(list(dict.fromkeys(index_first)))


def has_header(sample: list[str], delimiter: str) -> bool:
    """Whether a file that may as well be plain text is a table: even rows below a header of bare names."""
    try:
        rows = split_rows(enumerate(sample, 1), delimiter, quoted=True, name="", strict=True)
        first, *others = [row for _, row in itertools.islice(rows, JUDGED_ROWS) if row]
    except BertworksError:
        return False
    bare = all(cell == cell.strip() for cell in first) and (len(first) > 1 or first[0] in TEXT_NAMES)
    return bare and len(others) > 0 and {len(first)} == set(map(len, others)) and names_columns(first, others)


_LISTED_LABELS = 30
_PRINTED_LIST = re.compile(r"""\[(['"].*['"]|\d[\d\s]*)\]""", re.DOTALL)
_MISSING = frozenset(("", "nan", "NaN"))  # pandas writes the latter two for a cell without value


class EmptyTextError(BertworksError):
    """A row has no text where one is asked for."""


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
        raise bad_label(value, column, where, 'write several labels as a list, ["one", "another"]')
    return tuple(dict.fromkeys(text for part in found if (text := label_text(part)) is not None))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The names in order; numbers by value where all are numbers."""
    names = sorted(set(labels))
    try:
        numbers = {name: float(name) for name in names}
    except ValueError:
        return tuple(names)
    unordered = any(math.isnan(number) for number in numbers.values())
    return tuple(names if unordered else sorted(names, key=numbers.__getitem__))


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
        parsed = _json_list(value) if value.lstrip().startswith("[") else None
        value = value.split() if parsed is None else parsed
    return value if isinstance(value, list) else None


def choice_number(value: Any, choices: Sequence[str], first: int) -> int | None:
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


def text_of(value: Any, column: str, where: str) -> str:
    missing = value is None or (isinstance(value, float) and math.isnan(value))
    if not missing and not isinstance(value, str):
        raise BertworksError(
            f"{column!r} holds {value!r:.60}, which is no text", where=where, hint='write it as "text"'
        )
    if missing or value.strip() in _MISSING:
        raise EmptyTextError(
            f"the text in {column!r} is empty" + ("" if missing else f": {value!r}"),
            where=where,
            hint="write a text there, or take the row out",
        )
    assert isinstance(value, str)
    return value


def words_of(value: Any, column: str, where: str) -> tuple[str, ...]:
    """The words of a row: a list, or a text that is split at white space."""
    words = [] if value is None else list_of(value)
    if words is None or not all(isinstance(word, str) for word in words):
        raise BertworksError(
            f"{column!r} holds {value!r:.60}, which are no words", where=where, hint='write them as ["some", "words"]'
        )
    if not words or not all(words):  # one of white space, as the Japanese web has them, is a word of its own
        raise EmptyTextError(
            f"{column!r} has no word" if not words else f"a word in {column!r} is empty",
            where=where,
            hint="write a word there, or take the row out",
        )
    return tuple(words)


def known_label(label: str | None, labels: Sequence[str], column: str, where: str) -> str:
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
        hint=(f"did you mean {close[0]!r}? " if close else "") + f"the labels are: {listed}",
    )


def _as_written(label: str) -> str:
    """One name for what programs write in several ways: 1 and 1.0, true and True."""
    if label.lower() in ("true", "false"):
        return label.lower()
    return label.removesuffix(".0") if re.fullmatch(r"-?\d+\.0", label) else label


def bad_label(value: Any, column: str, where: str, hint: str) -> BertworksError:
    missing = value is None or (isinstance(value, str) and not value.strip())
    what = "is missing" if missing else f"holds {value!r:.80}"
    return BertworksError(f"the label in {column!r} {what}", where=where, hint=hint)


def number_of(value: Any, column: str, where: str) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise bad_label(value, column, where, "write a number there, or take the row out")
    return number


def tags_of(value: Any, words: Sequence[str], labels: Sequence[str], column: str, where: str) -> tuple[str, ...]:
    tags = list_of(value)
    if tags is None:
        raise bad_label(value, column, where, 'write one tag for each word, as ["O", "B-person"]')
    if len(tags) != len(words):
        raise BertworksError(
            f"{len(words)} words and {len(tags)} tags", where=where, hint="write one tag for each word; O for none"
        )
    return tuple(known_label(label_text(tag), labels, column, where) for tag in tags)


def _is_span(value: Any) -> bool:
    kinds = {"start": int, "end": int, "type": str}
    return isinstance(value, dict) and all(isinstance(value.get(name), kind) for name, kind in kinds.items())


def spans_of(value: Any, text: str, labels: Sequence[str], column: str, where: str) -> tuple[tuple[int, int, str], ...]:
    value = _json_list(value) if isinstance(value, str) and value.strip() else value
    if not isinstance(value, list):
        raise bad_label(value, column, where, 'write a list of {"start": 0, "end": 5, "type": "person"}, or []')
    if wrong := [span for span in value if not _is_span(span)]:
        raise bad_label(wrong[0], column, where, 'write a span as {"start": 0, "end": 5, "type": "person"}')
    spans = [(span["start"], span["end"], known_label(span["type"], labels, column, where)) for span in value]
    for start, end, kind in spans:
        if not 0 <= start < end <= len(text):
            raise BertworksError(
                f"the {kind} from {start} to {end} is not inside its text of {len(text)} characters",
                where=where,
                hint="count characters (not bytes) from 0; the end is the place after the last one",
            )
    return tuple(spans)
