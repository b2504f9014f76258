"""Labelled text that is not a table -> plain values: CoNLL columns, schemes of tags, SQuAD articles, character spans.

Only the layout is checked here. The meaning of labels and answers is checked later, by `schema`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from bertworks.errors import BertworksError

ENTITY_TAG = re.compile(r"[BIESLUMW][-_]\S+")
OUTSIDE = ("O", "o")  # tags of words outside entities
_SCHEMES = {"IOB1": "I", "IOB": "BI", "IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}
_PREFIXED = re.compile(r"(?is)(?P<mark>[BIESLUMW])([-_](?P<type>.+))?")
_SUFFIXED = re.compile(r"(?is)((?P<type>.+)[-_])?(?P<mark>[BIESLUMW])")
_AS_IOBES = str.maketrans("LUWM", "ESSI")
_SPAN_COLUMNS = ("entities", "spans", "labels", "label", "annotations", "ents")
_START_NAMES = ("start", "start_offset", "begin")
_END_NAMES = ("end", "end_offset", "stop")
_TYPE_NAMES = ("type", "label", "entity", "entity_group", "tag")
_SQUAD = 'SQuAD: {"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers"}]}]}]}'
_SPAN_HINT = 'write spans as {"start": 0, "end": 5, "type": "person"}: characters from 0, the end after the last one'


class TagScheme(NamedTuple):
    """How tags mark entities. name: IOB1, IOB (either IOB1 or IOB2), IOBES, BILOU, BMES, BMEWO, or bare types.
    marks: for each tag but O, its letter in IOBES and its type, "" if it has none."""

    name: str
    marks: Mapping[str, tuple[str, str]]


@lru_cache(maxsize=64)
def tag_scheme(labels: tuple[str, ...], bare_types: bool = False) -> TagScheme | None:
    """The first scheme that has all these tags; None if they mark no entities, as parts of speech. The letter is before
    or after the type: B-PER, b_per, PER-B.

    bare_types: all tags but O are types of entities.
    """
    tags = [label for label in labels if label not in OUTSIDE]
    if bare_types:
        return TagScheme("bare types (neighbours of one type are one entity)", {tag: ("I", tag) for tag in tags})
    for pattern in (_PREFIXED, _SUFFIXED):
        found = [(tag, m["mark"].upper(), m["type"] or "") for tag in tags if (m := pattern.fullmatch(tag))]
        letters = {letter for _, letter, _ in found}
        names = [name for name, known in _SCHEMES.items() if letters <= set(known)]
        if names and len(found) == len(tags):
            return TagScheme(names[0], {tag: (letter.translate(_AS_IOBES), kind) for tag, letter, kind in found})
    return None


# --- CoNLL ------------------------------------------------------------------------------------------------------------


def conll_width(sample: Iterable[str]) -> int:
    """The number of cells that most lines of a CoNLL file have."""
    widths = Counter(len(conll_cells(line)) for line in sample if not _is_boundary(line))
    return widths.most_common(1)[0][0] if widths else 1


def looks_like_conll(sample: Iterable[str]) -> bool:
    """Whether nearly all lines begin with a token and end with a tag like O or B-person."""
    rows = [conll_cells(line) for line in sample if not _is_boundary(line)]
    tagged = sum(len(row) > 1 and (row[-1] == "O" or ENTITY_TAG.fullmatch(row[-1]) is not None) for row in rows)
    return len(rows) > 1 and tagged >= 0.9 * len(rows)


def _is_boundary(line: str) -> bool:
    return not line.strip() or line.startswith("-DOCSTART-")


def conll_cells(line: str) -> list[str]:
    """The cells of one line, separated by tabs, or by spaces if there is no tab."""
    line = line.rstrip(" \r")
    return line.split("\t") if "\t" in line else re.split(" +", line)


def read_conll(lines: Iterable[tuple[int, str]], name: str, width: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, values) for each sentence: `tokens`, `tags` (unless `width` is 1), `document`, `lines`.

    Args:
        lines: numbered. A blank line ends a sentence, -DOCSTART- begins a document.
        width: the cells of each line. The first is the token, the last is the tag.

    Raises:
        BertworksError: a line has fewer or more cells, or an empty token or tag.
    """
    document = 0
    for is_boundary, group in groupby(lines, lambda numbered: _is_boundary(numbered[1])):
        if is_boundary:
            document += sum(bool(line.strip()) for _, line in group)
            continue
        sentence = [(number, line.removesuffix("\r"), conll_cells(line)) for number, line in group]
        for number, line, cells in sentence:
            _check_conll_line(f"{name}:{number}", line, cells, width)
        values: dict[str, Any] = {"tokens": [cells[0] for *_, cells in sentence]}
        if width > 1:
            values["tags"] = [cells[-1] for *_, cells in sentence]
        yield sentence[0][0], {**values, "document": document, "lines": [line for _, line, _ in sentence]}


def _check_conll_line(where: str, line: str, cells: list[str], width: int) -> None:
    if len(cells) < width or not cells[-1]:
        what = f"{line!r} has no tag"
        hint = "write the tag after the token, separated by a tab; O where there is no entity"
    elif len(cells) > width or not cells[0]:
        what, hint = f"{line!r} has {len(cells)} cells", "write one tab between token and tag, and none in a token"
    else:
        return
    raise BertworksError(f"{what}; most lines have {width} cells", where=where, hint=hint)


def with_tags(lines: Iterable[str], tags: Iterable[str], width: int) -> Iterator[str]:
    """The lines of a CoNLL file with one more cell. Lines between sentences stay as they are. A -DOCSTART- line with as
    many cells as the others gets O, so that all lines still have the same number of cells.

    Args:
        tags: of all words of the file.
        width: the cells of each line.
    """
    tag = iter(tags)
    for line in lines:
        bare = line.rstrip(" \r")
        separator = "\t" if "\t" in bare else " "
        end = line[len(line.rstrip("\r")) :]
        if not _is_boundary(line):
            yield f"{bare}{separator}{next(tag)}{end}"
        elif bare.strip() and width > 1 and len(conll_cells(line)) == width:
            yield f"{bare}{separator}O{end}"
        else:
            yield line


# --- SQuAD ------------------------------------------------------------------------------------------------------------


def is_squad(value: object) -> bool:
    """Whether a JSON value has the layout of SQuAD: a list `data` of articles with `paragraphs`."""
    data = value.get("data") if isinstance(value, dict) else None
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "paragraphs" in data[0]


def read_squad(document: Mapping[str, Any], name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (" question ID", values) for each question: id, title, context, question, answers, is_impossible.

    `answers` is a list of {"text", "answer_start"} that may have more fields; None where the file has no answers.

    Raises:
        BertworksError: something is missing or has the wrong type; `where` names the question or the paragraph.
    """
    for article_number, article in enumerate(document["data"], 1):
        within = f"{name}: article {article_number}"
        title = str(_part(article, "title", str | None, within) or "")
        for paragraph_number, paragraph in enumerate(_part(article, "paragraphs", list, within), 1):
            inside = f"{within}, paragraph {paragraph_number}"
            context = _part(paragraph, "context", str, inside)
            for entry in _part(paragraph, "qas", list, inside):
                question = str(_part(entry, "id", str | int, inside))
                place = f" question {question}"
                where = f"{name}:{place}"
                answers = _part(entry, "answers", list | None, where)
                for answer in answers or ():
                    _part(answer, "text", str, where)
                    _part(answer, "answer_start", int, where)
                values = {"id": question, "title": title, "context": context}
                values["question"] = _part(entry, "question", str, where)
                values["answers"] = answers
                values["is_impossible"] = bool(_part(entry, "is_impossible", bool | None, where))
                yield place, values


def _part(entry: Any, key: str, kind: Any, where: str) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        problem = "is missing" if value is None else f"is {value!r:.60}"
        raise BertworksError(f"{key!r} {problem}", where=where, hint=f"make it like {_SQUAD}")
    return value


# --- character spans --------------------------------------------------------------------------------------------------


def span_column(records: Iterable[Mapping[str, Any]]) -> str | None:
    """The field of JSON objects with lists of character spans; None if there is none, or if all lists are empty."""
    for record in records:
        for key in _SPAN_COLUMNS:
            value = record.get(key)
            if isinstance(value, list) and value and all(span_of(entry) is not None for entry in value):
                return key
    return None


def may_hold_spans(records: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a field with the name of a span column is an empty list: later rows show whether it holds spans."""
    return any(record.get(key) == [] for record in records for key in _SPAN_COLUMNS)


def with_entities(record: Mapping[str, Any], column: str, where: str) -> dict[str, Any]:
    """The record with its spans as `entities`: a list of {"start", "end", "type"} that keep their other fields.

    Raises:
        BertworksError: a span has no start, end or type.
    """
    spans = record.get(column)
    if spans is not None and not isinstance(spans, list):
        raise BertworksError(f"{column!r} is {spans!r:.60}, not a list of spans", where=where, hint=_SPAN_HINT)
    for entry in spans or ():
        if span_of(entry) is None:
            raise BertworksError(f"{entry!r:.80} is not a span of characters", where=where, hint=_SPAN_HINT)
    entities = None if spans is None else list(map(span_of, spans))
    return {"entities" if key == column else key: entities if key == column else record[key] for key in record}


def span_of(entry: Any) -> dict[str, Any] | None:
    """One span as {"start", "end", "type"} with its other fields, from any usual layout: {"start", "end", "label"},
    {"span": [0, 5], ...}, [0, 5, "x"]; None if it is no span."""
    if isinstance(entry, list) and len(entry) == 3:
        entry = dict(zip(("start", "end", "type"), entry))
    if not isinstance(entry, dict):
        return None
    rest = dict(entry)
    if isinstance(rest.get("span"), list) and len(rest["span"]) == 2:
        rest["start"], rest["end"] = rest.pop("span")
    start, end, kind = (_take(rest, names) for names in (_START_NAMES, _END_NAMES, _TYPE_NAMES))
    if type(start) is not int or type(end) is not int or not isinstance(kind, str):
        return None
    return {"start": start, "end": end, "type": kind, **rest}


def _take(entry: dict[str, Any], names: Sequence[str]) -> Any:
    return next((entry.pop(name) for name in names if name in entry), None)
