"""A retrieval test collection -> documents, queries, relevance judgments: a folder in the layout of TREC or of BEIR."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple

from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError
from bertworks.io.tables import as_text
from bertworks.io.text_files import IssueCounter, Repairs, open_lines

_ELEMENT = re.compile(r"<(doc|top)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_FIELD = re.compile(r"<(docno|num|title|text)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_JUDGEMENT = re.compile(r"(\S+)\s+\S+\s+(\S+)\s+(-?\d+)\s*")
_LAYOUTS = "name a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, or with TREC's <doc>, <top> and qrels"


class Collection(NamedTuple):
    """Texts by id, and the grade (0: not relevant) of each judged document, by query.

    missing: judgements of what is not there, which do not count.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    grades: dict[str, dict[str, int]]
    missing: IssueCounter


def read_collection(folder: str | Path) -> Collection:
    """All of a collection. Where TREC's judgements number the queries by their place, as Cranfield's do, so are they
    here. A title is put before its text, unless the text begins with it.

    Raises:
        BertworksError: something is missing or stands twice, or a line is no judgement.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BertworksError("no such folder", where=str(folder), hint=_LAYOUTS)
    found = _read_beir(folder) if (folder / "corpus.jsonl").exists() else _read_trec(folder)
    if not found.documents or not found.queries or not found.grades:
        raise BertworksError("there are no documents, no queries, or no judgements", where=str(folder), hint=_LAYOUTS)
    missing = IssueCounter()
    grades: dict[str, dict[str, int]] = {}
    for query, judged in found.grades.items():
        for document, grade in judged.items():
            if query in found.queries and document in found.documents:
                grades.setdefault(query, {})[document] = grade
            else:
                missing.add(f"query {query}, document {document}")
    if not grades:
        raise BertworksError(
            "no judgement is of a query and a document that are there", where=str(folder), hint=_LAYOUTS
        )
    return Collection(found.documents, {name: found.queries[name] for name in grades}, grades, missing)


def _read_beir(folder: Path) -> Collection:
    grades: dict[str, dict[str, int]] = {}
    for row in RowReader(folder / "qrels" / "test.tsv", header=False):
        query, document, grade = list(map(str, row.values.values()))[:3] if len(row.values) >= 3 else ("", "", "")
        if not grade.strip().lstrip("-").isdecimal():
            if not grades and grade:
                continue  # the header
            raise BertworksError("no judgement: query, document, grade", where=row.where, hint="repair the line")
        grades.setdefault(query, {})[document] = int(grade)
    return Collection(_texts(folder / "corpus.jsonl"), _texts(folder / "queries.jsonl"), grades, IssueCounter())


def _texts(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for row in RowReader(path):
        name = as_text(row.values.get("_id"))
        if not name or name in found:
            what = f"the _id {name!r} stands twice" if name else "the row has no _id"
            raise BertworksError(what, where=row.where, hint="give each row an _id of its own")
        found[name] = _titled(as_text(row.values.get("title")), as_text(row.values.get("text")))
    return found


def _read_trec(folder: Path) -> Collection:
    documents, queries, grades = dict[str, str](), dict[str, str](), dict[str, dict[str, int]]()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        lines = list(_lines(path))
        if lines and all(_JUDGEMENT.fullmatch(line) for line in lines if line.strip()):
            for query, document, grade in (_JUDGEMENT.fullmatch(line).groups() for line in lines if line.strip()):  # type: ignore[union-attr]
                grades.setdefault(query, {})[document] = int(grade)
            continue
        for element in _ELEMENT.finditer("\n".join(lines)):
            fields = dict[str, str]()
            for name, value in _FIELD.findall(element[2]):  # a text may stand in several pieces
                fields[name.lower()] = f"{fields.get(name.lower(), '')} {unescape(value).strip()}".strip()
            text = _titled(fields.get("title"), fields.get("text"))
            is_document = element[1].lower() == "doc"
            kind, name, found = ("document", "docno", documents) if is_document else ("topic", "num", queries)
            number = fields.get(name, "").removeprefix("Number:").strip()
            if not number or number in found:
                what = f"the {name} {number!r} stands twice" if number else f"a {kind} has no {name}: {text[:40]!r}"
                raise BertworksError(what, where=str(path), hint=f"give each {kind} a number of its own")
            found[number] = text
    if not set(grades) <= set(queries) and set(grades) <= {str(n) for n in range(1, len(queries) + 1)}:
        queries = {str(n): text for n, text in enumerate(queries.values(), 1)}
    return Collection(documents, queries, grades, IssueCounter())


def _lines(path: Path) -> Iterator[str]:
    with open_lines(path, str(path), Repairs()) as reader:
        yield from (line for _, line in reader.lines())


def _titled(title: str | None, text: str | None) -> str:
    title, text = " ".join((title or "").split()), " ".join((text or "").split())
    return text if text.startswith(title) else f"{title} {text}".strip()
