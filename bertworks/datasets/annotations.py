"""Read labelled text that is not a table as plain values.

CoNLL columns, schemes of tags, SQuAD articles, character spans.

Only the layout is checked here. The meaning of labels and answers is checked later, by `schema`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, dropwhile, groupby
from statistics import mode
from sys import intern
from typing import Any, NamedTuple

from bertworks.errors import BertworksError, expect
from bertworks.events import JsonObject
from bertworks.io.tables import (
    WORD_RANGE,
    begins_comment,
    conll_cells,
    is_boundary,
    is_entity_tag,
)

Record = dict[str, Any]  # the values of a row, by column or field
Records = Iterator[tuple[int | str, Record]]  # each with its line, its number or its name
NumberedLines = Iterable[tuple[int, str]]
_FASTTEXT = re.compile(r"(?:(?<=\s)|^)__label__(\S+)\s*")
_SPLIT = re.compile(
    r"(\w+[-_ ])?(train|training|dev|devel|development|val|valid|validation|test)([-_ ]?\w+)?"
)
_DOCUMENT = re.compile(r"-DOCSTART-|# ?(newdoc|begin document)")
OUTSIDE = ("O", "o")  # tags of words outside entities
_SCHEMES = {
    "IOB1": "I",
    "IOB": "BI",
    "IOBES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
    "BMEWO": "BMEW",
}
_PREFIXED = re.compile(r"(?is)(?P<mark>[BIESLUMW])([-_](?P<type>.+))?")
_SUFFIXED = re.compile(r"(?is)((?P<type>.+)[-_])?(?P<mark>[BIESLUMW])")
_AS_IOBES = str.maketrans("LUWM", "ESSI")
_SPAN_COLUMNS = ("entities", "spans", "labels", "label", "annotations", "ents")
# fields of Label Studio and Prodigy
_EXPORTED = {"annotation_id", "annotator", "lead_time", "_task_hash"}
_TYPE_NAMES = ("type", "label", "entity", "entity_group", "tag", "labels")
_SPAN_FIELDS = (("start", "start_offset", "begin"), ("end", "end_offset", "stop"), _TYPE_NAMES)
SQUAD_FIELDS = ("id", "title", "context", "question", "answers", "is_impossible")
_SQUAD = (
    'SQuAD: {"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", '
    '"answers"}]}]}]}'
)
_SPAN_HINT = (
    'write spans as {"start": 0, "end": 5, "type": "person"}: characters from 0, the end '
    "after the last one"
)


class TagScheme(NamedTuple):
    """How tags mark entities.

    name: IOB1, IOB (either IOB1 or IOB2), IOBES, BILOU, BMES, BMEWO, or bare types. marks: for each
    tag but O, its letter in IOBES and its type, "" if it has none.
    """

    name: str
    marks: Mapping[str, tuple[str, str]]


@lru_cache(maxsize=64)
def tag_scheme(labels: tuple[str, ...], bare_types: bool = False) -> TagScheme | None:
    """Return the first scheme that has all these tags.

    It is None if they mark no entities, as parts of speech. The letter is before or after the type:
    B-PER, b_per, PER-B.

    bare_types: all tags but O are types of entities.
    """
    tags = [label for label in labels if label not in OUTSIDE]
    if bare_types:
        return TagScheme(
            "bare types (neighbours of one type are one entity)", {tag: ("I", tag) for tag in tags}
        )
    for pattern in (_PREFIXED, _SUFFIXED):
        marked_tags = [
            (tag, m["mark"].upper(), m["type"] or "")
            for tag in tags
            if (m := pattern.fullmatch(tag))
        ]
        letters = {letter for _, letter, _ in marked_tags}
        names = [name for name, known in _SCHEMES.items() if letters <= set(known)]
        if names and len(marked_tags) == len(tags):
            return TagScheme(
                names[0],
                {tag: (letter.translate(_AS_IOBES), kind) for tag, letter, kind in marked_tags},
            )
    return None


# --- CoNLL
# --------------------------------------------------------------------------------------------------


class ConllLayout(NamedTuple):
    """The cells of a line. word, tag: their indices, from 0; no tag: None."""

    width: int
    word: int
    tag: int | None
    is_numbered: bool = False  # the first cell counts the words of a sentence: 1, 2, 3
    has_entities: bool = False  # the tags are O or like B-person

    @property
    def notes(self) -> list[str]:
        """Where word and tag are, in words; nothing where there are no other columns."""
        tag = "" if self.tag is None else f", tag {self.tag + 1}"
        return (
            [f"columns: word {self.word + 1}{tag} of {self.width}"]
            if self.width > 2 or self.word
            else []
        )


def conll_layout(
    sample: Iterable[str], chosen: Mapping[str, int], *, treebank: bool = False
) -> ConllLayout:
    """Return the layout of a CoNLL file.

    The word is the first cell, or the second if the first counts the words. The tag is the last
    cell; in a treebank (CoNLL-U: ten cells) it is the fourth, the part of speech. Of nested
    entities (GermEval: the last two columns have the same types) it is the outer one.

    Args:
        chosen: the columns of "word" and "tag" that are known, from 1.
        treebank: whether the file is CoNLL-U by its name.

    Raises:
        UsageError: the lines have fewer cells.
    """
    lines = [conll_cells(line) if not is_boundary(line) else [] for line in sample]
    blocks = [
        list(dropwhile(lambda row: begins_comment(row[0]), group))
        for filled, group in groupby(lines, bool)
        if filled
    ]
    width = mode([len(row) for block in blocks for row in block] or [1])
    blocks = [
        [row for row in block if len(row) == width and not WORD_RANGE.fullmatch(row[0])]
        for block in blocks
    ]
    counted = [
        all(row[0] in (str(n), str(n + 1)) for n, row in enumerate(block)) for block in blocks
    ]
    counts = sum(counted) > 0.9 * len(counted) and any(
        len({row[0] for row in block}) > 1 for block in blocks
    )
    is_numbered = width > 1 and (treebank or counts)
    word = chosen.get("word", 1 + is_numbered) - 1
    columns = [[row[index] for block in blocks for row in block] for index in range(width)]
    types = {
        index: {cell[2:] for cell in cells} - {""}
        for index, cells in enumerate(columns)
        if index > word and sum(map(is_entity_tag, cells)) >= 0.9 * len(cells)
    }
    last = types.get(width - 1, {"no tag"})
    outer = (
        index
        for index, names in types.items()
        if is_numbered and (names & last or (names and not last))
    )
    usual = 3 if width == 10 and is_numbered and width - 1 not in types else next(outer, width - 1)
    tag = chosen.get("tag", usual + 1) - 1
    expect(
        max(word, tag) < width,
        f"the lines have {width} cells: there is no column {max(word, tag) + 1}",
        hint="--columns word=1,tag=2, counted from 1",
    )
    return ConllLayout(width, word, tag if tag != word else None, is_numbered, tag in types)


def _conll_lines(
    lines: NumberedLines, layout: ConllLayout
) -> Iterator[tuple[str, int, str, list[str]]]:
    """Yield the kind, number, text and cells of each line.

    Kinds: "word"; "part", a range (1-2) or an empty node (5.1), which are no words; "comment",
    which begins with "# " or "## " and stands before the words of a sentence; "end" of a sentence.
    """
    kind = "end"
    for number, line in lines:
        cells = conll_cells(line)
        if is_boundary(line):
            kind = "end"
        elif (
            begins_comment(cells[0]) and kind in ("end", "comment") and not _is_word(cells, layout)
        ):
            kind = "comment"
        else:
            kind = "part" if layout.is_numbered and WORD_RANGE.fullmatch(cells[0]) else "word"
        yield kind, number, line, cells


def _is_word(cells: list[str], layout: ConllLayout) -> bool:
    """Return whether a line that begins as a comment does holds a word with its tag."""
    fits = not layout.is_numbered and layout.tag is not None and len(cells) == layout.width
    return fits and (not layout.has_entities or is_entity_tag(cells[layout.tag or 0]))


class Sentence(Record):
    """The values of a sentence of a CoNLL file.

    Attributes:
        all_lines: from its first word, or from the beginning of the file, to the next sentence:
            also comments, empty lines and parts of words.
    """

    all_lines: list[str]


def read_conll(lines: NumberedLines, name: str, layout: ConllLayout) -> Records:
    """Yield (line, values) for each sentence.

    The values are `tokens`, `tags` (if there are any), `document` and `lines`.

    Args:
        lines: numbered. A blank line ends a sentence; -DOCSTART- or a comment "newdoc" begins a
            document.

    Raises:
        BertworksError: a line has fewer or more cells, or an empty token or tag.
    """
    document = first = 0
    tokens: list[str] = []
    tags: list[str] = []
    word_lines: list[str] = []
    all_lines: list[str] = []
    sentence: tuple[int, Sentence] | None = None  # complete, but for the lines after it
    end = "end", 0, "", list[str]()  # of the last sentence
    for kind, number, line, cells in chain(_conll_lines(lines, layout), [end]):
        if kind == "word":
            if sentence:
                yield sentence
                sentence = None
                all_lines = []
            first = first or number
            word_line = line.removesuffix("\r")
            has_tag = len(cells) >= layout.width and cells[-1 if layout.tag is None else layout.tag]
            if not has_tag or len(cells) > layout.width or not cells[layout.word]:
                problem = f"{len(cells)} cells" if has_tag else "no tag"
                raise BertworksError(
                    f"{word_line!r} has {problem}; most lines have {layout.width} cells",
                    where=f"{name}:{number}",
                    hint="write a token, one tab and its tag on each line: O where there is no "
                    "entity; no tab within a token",
                )
            # kept once: a long sentence repeats most of its words
            tokens.append(intern(cells[layout.word]))
            tags.append(intern(cells[layout.tag or 0]))
            word_lines.append(intern(word_line))
        elif kind == "end" and tokens:
            tag_values = {} if layout.tag is None else {"tags": tags}
            values = Sentence(tokens=tokens, **tag_values, document=document, lines=word_lines)
            values.all_lines = all_lines
            sentence = first, values
            first = 0
            tokens = []
            tags = []
            word_lines = []
        document += kind != "word" and _DOCUMENT.match(line) is not None
        if number:
            all_lines.append(intern(line))
    if sentence:
        yield sentence


def with_tags(lines: Iterable[str], tags: Iterable[str], layout: ConllLayout) -> Iterator[str]:
    """Yield the lines of a CoNLL file, or of sentences of it, with one more cell.

    Comments and lines between sentences stay as they are. A -DOCSTART- line with as many cells as
    the others gets O, and what is no word gets _, so that all have the same number of cells.

    Args:
        tags: of all words of these lines.
    """
    tag = iter(tags)
    for kind, _, line, cells in _conll_lines(enumerate(lines), layout):
        bare = line.rstrip(" \r")
        separator = "\t" if "\t" in bare else " "
        end = line[len(line.rstrip("\r")) :]
        is_document = kind == "end" and bare.strip() and layout.width == len(cells) > 1
        new = (
            next(tag) if kind == "word" else "_" if kind == "part" else "O" if is_document else None
        )
        yield line if new is None else f"{bare}{separator}{new}{end}"


# --- JSON of annotation tools and libraries
# ---------------------------------------------------------------------------


def json_rows(value: Any) -> Any:
    """Return the rows of a JSON value that fills a file, or a SQuAD document.

    It is None for one row, or something else.

    Known: lists; {"data": rows}; {"classes", "annotations": rows}; pandas (orient records, split,
    table, values; columns and index with row numbers); SQuAD; spaCy 2.
    """
    if isinstance(value, dict):
        data = value.get("data")
        names = value.get("columns")
        parts = list(value.values())
        if isinstance(data, list) and isinstance(names, list):
            fits = all(isinstance(row, list) and len(row) == len(names) for row in data)
            value = [dict(zip(map(str, names), row)) for row in data] if fits else None
        elif isinstance(data, list):
            value = data
        elif "classes" in value and isinstance(value.get("annotations"), list):
            value = list(filter(None, value["annotations"]))
        elif all(isinstance(part, dict) for part in parts) and parts:
            if all(map(str.isdecimal, value)):
                value = parts
            elif all(map(str.isdecimal, parts[0])):
                value = [
                    {name: cells.get(key) for name, cells in value.items()} for key in parts[0]
                ]
    if not isinstance(value, list):
        return None
    first = value[0] if value and isinstance(value[0], dict) else {}
    if "paragraphs" in first:
        return _spacy_sentences(value) or {"data": value}
    return {"data": [{"paragraphs": value}]} if "qas" in first else value


def _spacy_sentences(articles: Any) -> list[Record] | None:
    """Return the words and tags (entities, else parts of speech) in JSON of spaCy 2.

    It is None for something else.
    """
    with suppress(AttributeError, KeyError, TypeError):
        paragraphs = chain.from_iterable(article["paragraphs"] for article in articles)
        sentences = [sentence["tokens"] for part in paragraphs for sentence in part["sentences"]]
        tag = "ner" if any(word.get("ner") for words in sentences for word in words) else "tag"
        return [
            {"tokens": [word["orth"] for word in s], "tags": [word.get(tag) for word in s]}
            for s in sentences
        ]
    return None


def splits_of(value: Any) -> list[str]:
    """Return the names of the parts of a JSON value like {"train": [...], "validation": [...]}.

    Of any other value there are none.
    """
    names = list(value) if isinstance(value, dict) else []
    return (
        names
        if all(isinstance(value[name], list) and _SPLIT.fullmatch(name) for name in names)
        else []
    )


def record_of(row: Any) -> Any:
    """Return one row of JSON as a flat object, if it has a known layout.

    Known are those of spaCy, Label Studio, and Prodigy's choices. Other lists become "column 1",
    "column 2", ...
    """
    if isinstance(row, list):
        pair = len(row) == 2 and isinstance(row[1], dict)
        row = (
            {"text": row[0], **row[1]}
            if pair
            else {f"column {number}": cell for number, cell in enumerate(row, 1)}
        )
    if not isinstance(row, dict):
        return row
    if isinstance(row.get("data"), dict) and row.keys() & {
        "annotations",
        "completions",
        "predictions",
    }:
        row = _label_studio(row)
    if "accept" in row and "options" in row:
        row["accept_options"] = options = row.pop("options")
        names = {option["id"]: option.get("text") for option in options}
        row["label"] = [
            key if isinstance(key, str) else names.get(key) or key for key in row.pop("accept")
        ]
        row["label"] = row["label"] or (
            [] if row.get("config", {}).get("choice_style") != "single" else None
        )
    if isinstance(row.get("spans"), dict) and not row.get("ents"):  # groups of spans in spaCy 3
        row |= {"spans": list(chain.from_iterable(row["spans"].values())), "ents": None}
    if isinstance(row.get("cats"), dict):
        row["label"] = [name for name, score in row.pop("cats").items() if score >= 0.5]
    for name, value in row.items() if row.keys() & _EXPORTED else ():
        only = value[0] if isinstance(value, list) and len(value) == 1 else value
        if isinstance(only, dict) and list(only) in (["choices"], ["rating"], ["number"]):
            (row[name],) = only.values()
        elif (
            isinstance(value, list)
            and value
            and all(isinstance(part, list) and part == part[:9] for part in value)
        ):
            row[name] = list(map(" > ".join, value))  # the path of a taxonomy
    return row


def _label_studio(task: Mapping[str, Any]) -> Record:
    """Return the data and the first annotation of a task.

    "annotations" is their number if there are several. ValueError: annotations of other data than
    plain text.
    """
    annotations = task.get("annotations") or task.get("completions") or []  # the latter: until 2021
    done = [
        entry for entry in annotations if not (entry.get("was_cancelled") or entry.get("skipped"))
    ]
    flat = {"id": task.get("id"), **task["data"]}
    if not done:
        return {**flat, "predictions": len(task.get("predictions") or ())}
    flat["annotation_id"] = done[0].get("id")
    for result in done[0].get("result", []):
        kind = result["type"]
        value = result.get("value")
        if kind == "labels":
            flat.setdefault("entities", []).extend(
                {**value, "labels": [name]} for name in value["labels"]
            )
        elif kind.endswith("labels"):
            raise ValueError(f"annotations of the type {kind}, not of plain text")
        # of the whole text
        elif kind in ("choices", "taxonomy", "rating", "number") and "start" not in value:
            flat[result["from_name"]] = value[kind]
    return flat | ({"annotations": len(done)} if len(done) > 1 else {})


def is_rejected(record: Mapping[str, Any]) -> bool:
    """Return whether the annotator of Prodigy did not accept a row."""
    known = record.keys() & {"_task_hash", "spans", "accept_options", "label"}
    return record.get("answer") in ("reject", "ignore") and bool(known)


def fasttext_rows(lines: NumberedLines) -> Records:
    """Yield the text and the labels of lines like "__label__a __label__b text"."""
    for number, line in lines:
        if line.strip():
            text = _FASTTEXT.sub("", line).strip()
            yield number, {"text": text, "label": _FASTTEXT.findall(line)}


# --- questions
# --------------------------------------------------------------------------------------------------


def answer_fields(
    names: Mapping[str, str], rows: Iterable[Mapping[str, Any]]
) -> tuple[str, str, str | None] | None:
    """Return the fields of the context, the answers as text and their start in rows with questions.

    It is None if there are none, or if most answers are not in their context.

    Args:
        names: of the columns, among them a question and a context, by their usual names.
    """
    answer = next(
        (names[name] for name in ("answer_text", "answers", "answer") if name in names), None
    )
    if answer is None:
        return None
    context = names["context"]
    texts = [
        (text, str(record.get(context)))
        for record in rows
        for text in _answer_texts(record.get(answer))
    ]
    if sum(text in within for text, within in texts) <= 0.5 * len(texts):
        return None
    return (
        context,
        answer,
        next((names[name] for name in ("answer_start", "start") if name in names), None),
    )


def _answer_texts(value: Any) -> list[str]:
    return [
        text
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str) and text.strip()
    ]


def with_answers(
    record: Mapping[str, Any], context: str, answer: str, start: str | None
) -> tuple[Record, bool]:
    """Return the record with `answers` as in SQuAD, and whether an answer is ambiguous.

    An answer without a start may occur several times in the context: the first place counts; -1 is
    none. The names are those of `answer_fields`.
    """
    within = str(record.get(context))
    texts = _answer_texts(record.get(answer))
    place = str(record.get(start)).removesuffix(".0").strip("[]") if start else ""
    has_place = re.fullmatch(r"\d{1,9}", place) is not None and len(texts) == 1
    answers = [
        {"text": text, "answer_start": int(place) if has_place else within.find(text)}
        for text in texts
    ]
    several = not has_place and any(within.count(text) > 1 for text in texts)
    return {name: record[name] for name in record if name not in (answer, start)} | {
        "answers": answers
    }, several


def read_squad(document: Mapping[str, Any], file: str) -> Records:
    """Yield (" question ID", values) for each question.

    The values are id, title, context, question, answers and is_impossible.

    `answers` is a list of {"text", "answer_start"} that may have more fields; None where the file
    has no answers.

    Raises:
        BertworksError: something is missing or has the wrong type; `where` names the question or
            the paragraph.
    """
    for article_number, article in enumerate(document["data"], 1):
        within = f"{file}: article {article_number}"
        title = str(_part(article, "title", str | None, within) or "")
        for paragraph_number, paragraph in enumerate(_part(article, "paragraphs", list, within), 1):
            inside = f"{within}, paragraph {paragraph_number}"
            context = _part(paragraph, "context", str, inside)
            for entry in _part(paragraph, "qas", list, inside):
                name = str(_part(entry, "id", str | int, inside))
                place = f" question {name}"
                where = f"{file}:{place}"
                answers = _part(entry, "answers", list | None, where)
                for answer in answers or ():
                    _part(answer, "text", str, where)
                    _part(answer, "answer_start", int, where)
                text = _part(entry, "question", str, where)
                is_impossible = bool(_part(entry, "is_impossible", bool | None, where))
                yield (
                    place,
                    dict(zip(SQUAD_FIELDS, (name, title, context, text, answers, is_impossible))),
                )


def _part(entry: Any, key: str, kind: Any, where: str) -> Any:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        problem = "is missing" if value is None else f"is {value!r:.60}"
        raise BertworksError(f"{key!r} {problem}", where=where, hint=f"make it like {_SQUAD}")
    return value


# --- character spans
# --------------------------------------------------------------------------------------------------


def span_column(
    sample: Sequence[Mapping[str, Any]], records: Iterable[Mapping[str, Any]]
) -> str | None:
    """Return the field of JSON objects with lists of character spans.

    It is None if there is none, or if all lists are empty.

    sample: the first of the records. The others show it if a field with the name of a span column
        is an empty list.
    """
    is_open = any(record.get(key) == [] for record in sample for key in _SPAN_COLUMNS)
    for record in chain(sample, records if is_open else ()):
        for key, value in sorted(record.items(), key=lambda item: item[0] not in _SPAN_COLUMNS):
            known = key in _SPAN_COLUMNS or record.keys() & _EXPORTED
            if (
                known
                and isinstance(value, list)
                and value
                and all(span_of(entry) is not None for entry in value)
            ):
                return key
    return None


def with_entities(record: Mapping[str, Any], column: str, where: str) -> Record:
    """Return the record with its spans as `entities`.

    They are a list of {"start", "end", "type"} that keep their other fields.

    Raises:
        BertworksError: a span has no start, end or type.
    """
    if column not in record and record.keys() & _EXPORTED:  # the annotator marked no span
        record = {**record, column: []}
    spans = record.get(column)
    if not isinstance(spans, list | None):
        raise BertworksError(
            f"{column!r} is {spans!r:.60}, not a list of spans", where=where, hint=_SPAN_HINT
        )
    entities = None if spans is None else list(map(span_of, spans))
    for entry, entity in zip(spans or (), entities or ()):
        if entity is None:
            raise BertworksError(
                f"{entry!r:.80} is not a span of characters", where=where, hint=_SPAN_HINT
            )
    return {
        "entities" if key == column else key: entities if key == column else record[key]
        for key in record
    }


def span_of(entry: Any) -> JsonObject | None:
    """Return one span as {"start", "end", "type"} with its other fields, or None if it is no span.

    The usual layouts are {"start", "end", "label"}, {"span": [0, 5], ...} and [0, 5, "x"].
    """
    if isinstance(entry, list) and len(entry) == 3:
        entry = dict(zip(("start", "end", "type"), entry))
    if not isinstance(entry, dict):
        return None
    rest = dict(entry)
    if isinstance(rest.get("span"), list) and len(rest["span"]) == 2:
        rest["start"], rest["end"] = rest.pop("span")
    start, end, kind = (
        next((rest.pop(name) for name in names if name in rest), None) for names in _SPAN_FIELDS
    )
    kind = kind[0] if isinstance(kind, list) and len(kind) == 1 else kind
    # doccano until 2021
    kind = str(kind) if type(kind) is int and "start_offset" in entry else kind
    if type(start) is not int or type(end) is not int or not isinstance(kind, str):
        return None
    return {"start": start, "end": end, "type": kind, **rest}
