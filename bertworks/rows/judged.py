"""A retrieval test collection -> documents, queries, judgements: a folder in the layout of TREC or of BEIR. Not here:
what is made of them."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import NamedTuple

from bertworks.errors import BertworksError
from bertworks.rows.reader import RowReader
from bertworks.text.streams import Repairs, open_lines
from bertworks.text.tables import as_text

_ELEMENT = re.compile(r"<(doc|top)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_FIELD = re.compile(r"<(docno|num|title|text)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_JUDGEMENT = re.compile(r"(\S+)\s+\S+\s+(\S+)\s+(-?\d+)\s*")
_LAYOUTS = "name a folder with corpus.jsonl, queries.jsonl and qrels/test.tsv, or with TREC's <doc>, <top> and qrels"


class Collection(NamedTuple):
    """Texts by id, and the grade (0: not relevant) of each judged document, by query."""

    documents: dict[str, str]
    queries: dict[str, str]
    grades: dict[str, dict[str, int]]


def read_collection(folder: str | Path) -> Collection:
    """All of a collection. Where TREC's judgements number the queries by their place, as Cranfield's do, so are they
    here. A title is put before its text, unless the text begins with it.

    Raises:
        BertworksError: something is missing, or judgements are of queries or documents that are not there.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise BertworksError("no such folder", where=str(folder), fix=_LAYOUTS)
    found = _read_beir(folder) if (folder / "corpus.jsonl").exists() else _read_trec(folder)
    judged = {name: {d: g for d, g in grades.items() if d in found.documents} for name, grades in found.grades.items()}
    queries = {name: found.queries[name] for name, grades in judged.items() if grades and name in found.queries}
    if not queries:
        raise BertworksError("there are no documents, no queries, or no judgements", where=str(folder), fix=_LAYOUTS)
    return Collection(found.documents, queries, {name: judged[name] for name in queries})


def _read_beir(folder: Path) -> Collection:
    documents, queries = (
        {str(row.values["_id"]): _titled(as_text(row.values.get("title")), as_text(row.values.get("text")))
         for row in RowReader(folder / name)}
        for name in ("corpus.jsonl", "queries.jsonl")
    )  # fmt: skip
    grades: dict[str, dict[str, int]] = {}
    for row in RowReader(folder / "qrels" / "test.tsv", header=True):
        query, document, grade = row.values.values()
        grades.setdefault(query, {})[document] = int(grade)
    return Collection(documents, queries, grades)


def _read_trec(folder: Path) -> Collection:
    documents, queries, grades = dict[str, str](), dict[str, str](), dict[str, dict[str, int]]()
    for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
        lines = list(_lines(path))
        if lines and all(_JUDGEMENT.fullmatch(line) for line in lines if line.strip()):
            for query, document, grade in (_JUDGEMENT.fullmatch(line).groups() for line in lines if line.strip()):  # type: ignore[union-attr]
                grades.setdefault(query, {})[document] = int(grade)
            continue
        for element in _ELEMENT.finditer("\n".join(lines)):
            fields = {name.lower(): unescape(value).strip() for name, value in _FIELD.findall(element[2])}
            text = _titled(fields.get("title"), fields.get("text"))
            if element[1].lower() == "doc":
                documents[fields.get("docno", "")] = text
            else:
                queries[fields.get("num", "").removeprefix("Number:").strip()] = text
    if not set(grades) <= set(queries) and set(grades) <= {str(n) for n in range(1, len(queries) + 1)}:
        queries = {str(n): text for n, text in enumerate(queries.values(), 1)}
    return Collection(documents, queries, grades)


def _lines(path: Path) -> Iterator[str]:
    with open_lines(path, str(path), Repairs()) as reader:
        yield from (line for _, line in reader.lines())


def _titled(title: str | None, text: str | None) -> str:
    title, text = " ".join((title or "").split()), " ".join((text or "").split())
    return text if text.startswith(title) else f"{title} {text}".strip()
