"""Labelled text that is not a table: CoNLL columns, SQuAD articles, character spans in JSON -> plain values per item.

Only the shape is checked here, not the meaning of labels and answers.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertworks.errors import BertworksError

ENTITY_TAG = re.compile(r"[BIESLUMW][-_]\S+")
_SPAN_COLUMNS = ("entities", "spans", "labels", "label", "annotations", "ents")
_START_NAMES = ("start", "start_offset", "begin")
_END_NAMES = ("end", "end_offset", "stop")
_TYPE_NAMES = ("type", "label", "entity", "entity_group", "tag")
_SQUAD = 'SQuAD: {"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers"}]}]}]}'


# --- CoNLL ------------------------------------------------------------------------------------------------------------


def conll_width(sample: Iterable[str]) -> int:
    """How many cells most lines of a CoNLL file have."""
    widths = Counter(len(conll_cells(line)) for line in sample if not _is_boundary(line))
    return widths.most_common(1)[0][0] if widths else 1


def looks_like_conll(sample: Iterable[str]) -> bool:
    """Whether nearly all lines are a token and what goes with it, the last of which is a tag like O or B-person."""
    rows = [conll_cells(line) for line in sample if not _is_boundary(line)]
    tagged = sum(len(row) > 1 and (row[-1] == "O" or ENTITY_TAG.fullmatch(row[-1]) is not None) for row in rows)
    return len(rows) > 1 and tagged >= 0.9 * len(rows)


def _is_boundary(line: str) -> bool:
    return not line.strip() or line.startswith("-DOCSTART-")


def conll_cells(line: str) -> list[str]:
    """The cells of one line, parted by tabs, or by spaces where there is no tab."""
    line = line.rstrip(" \r")
    return line.split("\t") if "\t" in line else re.split(" +", line)


def read_conll(lines: Iterable[tuple[int, str]], name: str, width: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, values) for each sentence: `tokens`, `tags` (not where `width` is 1), `document`, `lines`.

    Args:
        lines: numbered; a blank one ends a sentence, -DOCSTART- begins a document.
        width: how many cells each line has; the token is the first, the tag the last.

    Raises:
        BertworksError: a line has fewer or more cells, or an empty token or tag.
    """
    document, start = 0, 0
    sentence: list[tuple[list[str], str]] = []

    def values() -> tuple[int, dict[str, Any]]:
        found: dict[str, Any] = {"tokens": [cells[0] for cells, _ in sentence]}
        if width > 1:
            found["tags"] = [cells[-1] for cells, _ in sentence]
        return start, {**found, "document": document, "lines": [line for _, line in sentence]}

    for number, line in lines:
        if _is_boundary(line):
            if sentence:
                yield values()
                sentence = []
            document += bool(line.strip())
            continue
        cells = conll_cells(line)
        if len(cells) != width or not cells[0] or not cells[-1]:
            raise _bad_conll_line(f"{name}:{number}", line, cells, width)
        start = start if sentence else number
        sentence.append((cells, line.removesuffix("\r")))
    if sentence:
        yield values()


def with_tags(lines: Iterable[str], tags: Iterable[str], width: int) -> Iterator[str]:
    """The lines of a CoNLL file with one more cell. What parts sentences stays as it is; a line that begins a document
    and has as many cells as the others gets O, so that all lines still have the same number.

    Args:
        tags: of all words of the file.
        width: how many cells each line has.
    """
    rest = iter(tags)
    for line in lines:
        bare = line.rstrip(" \r")
        if not _is_boundary(line):
            tag = next(rest)
        elif bare.strip() and width > 1 and len(conll_cells(line)) == width:
            tag = "O"
        else:
            yield line
            continue
        yield f"{bare}{chr(9) if chr(9) in bare else ' '}{tag}" + line[len(line.rstrip(chr(13))) :]


def _bad_conll_line(where: str, line: str, cells: list[str], width: int) -> BertworksError:
    if len(cells) < width or not cells[-1]:
        what, hint = (
            f"{line!r} has no tag",
            "write the tag after the token, parted by a tab; O where there is no entity",
        )
    else:
        what, hint = f"{line!r} has {len(cells)} cells", "part token and tag by one tab; a token holds no tab"
    return BertworksError(f"{what}; most lines have {width} cells", where=where, hint=hint)


# --- SQuAD ------------------------------------------------------------------------------------------------------------


def is_squad(value: object) -> bool:
    """Whether a JSON value has the layout of SQuAD: a list `data` of articles with `paragraphs`."""
    data = value.get("data") if isinstance(value, dict) else None
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "paragraphs" in data[0]


def read_squad(document: Mapping[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (question id, values) for each question: id, title, context, question, answers, is_impossible.

    `answers` is a list of {"text", "answer_start"} (with whatever else they say), None where the file has none.

    Raises:
        BertworksError: something is missing or of another kind; `where` names the question, or the paragraph.
    """
    for article_number, article in enumerate(document["data"], 1):
        place = f"{name}: article {article_number}"
        title = str(_part(article, "title", str | None, place) or "")
        for paragraph_number, paragraph in enumerate(_part(article, "paragraphs", list, place), 1):
            inside = f"{place}, paragraph {paragraph_number}"
            context = _part(paragraph, "context", str, inside)
            for question in _part(paragraph, "qas", list, inside):
                identity = str(_part(question, "id", str | int, inside))
                yield identity, _question(question, identity, title, context, f"{name}: question {identity}")


def _question(entry: Mapping[str, Any], identity: str, title: str, context: str, where: str) -> dict[str, Any]:
    answers = _part(entry, "answers", list | None, where)
    for answer in answers or ():
        _part(answer, "text", str, where)
        _part(answer, "answer_start", int, where)
    return {
        "id": identity,
        "title": title,
        "context": context,
        "question": _part(entry, "question", str, where),
        "answers": answers,
        "is_impossible": bool(_part(entry, "is_impossible", bool | None, where)),
    }


def _part(entry: Any, key: str, kind: Any, where: str) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        said = "is missing" if value is None else f"is {value!r:.60}"
        raise BertworksError(f"{key!r} {said}", where=where, hint=f"make it like {_SQUAD}")
    return value


# --- character spans --------------------------------------------------------------------------------------------------


def span_column(records: Iterable[Mapping[str, Any]]) -> str | None:
    """The field of JSON objects that holds lists of character spans; None if there is none, or they are all empty."""
    for record in records:
        for key in _SPAN_COLUMNS:
            value = record.get(key)
            if isinstance(value, list) and value and all(_span(entry) is not None for entry in value):
                return key
    return None


def may_hold_spans(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a field that could hold lists of spans holds empty ones: what they are is said later in the file."""
    return any(record.get(key) == [] for record in records for key in _SPAN_COLUMNS)


def with_entities(record: Mapping[str, Any], column: str, where: str) -> dict[str, Any]:
    """The record with its spans as `entities`: a list of {"start", "end", "type"} with whatever else they say.

    Raises:
        BertworksError: a span has no start, end or type.
    """
    spans = record.get(column)
    if spans is not None and not isinstance(spans, list):
        raise BertworksError(f"{column!r} is {spans!r:.60}, not a list of spans", where=where, hint=_SPAN_FIX)
    entities: list[dict[str, Any]] | None = None if spans is None else []
    for entry in spans or ():
        span = _span(entry)
        if span is None:
            raise BertworksError(f"{entry!r:.80} is no span of characters", where=where, hint=_SPAN_FIX)
        assert entities is not None
        entities.append(span)
    return {("entities" if key == column else key): (entities if key == column else record[key]) for key in record}


_SPAN_FIX = 'write spans as {"start": 0, "end": 5, "type": "person"}: characters from 0, the end after the last one'


def _span(entry: Any) -> dict[str, Any] | None:
    """One span in our words, from any usual layout: {"start", "end", "label"}, {"span": [0, 5]}, [0, 5, "x"]."""
    if isinstance(entry, list) and len(entry) == 3:
        start, end, kind, rest = *entry, {}
    elif isinstance(entry, dict):
        rest = dict(entry)
        if isinstance(entry.get("span"), list) and len(entry["span"]) == 2:
            start, end = rest.pop("span")
        else:
            start, end = _take(rest, _START_NAMES), _take(rest, _END_NAMES)
        kind = _take(rest, _TYPE_NAMES)
    else:
        return None
    if type(start) is not int or type(end) is not int or not isinstance(kind, str):
        return None
    return {"start": start, "end": end, "type": kind, **rest}


def _take(entry: dict[str, Any], names: Sequence[str]) -> Any:
    return next((entry.pop(name) for name in names if name in entry), None)
