"""Evaluate search on a test collection.

Rankings are by vectors, by words, by both, and reranked by a second model.

- `read_collection`: a folder in the layout of TREC or BEIR -> documents, queries, relevance
  judgments
- `evaluate_retrieval`: nDCG, average precision and recall of each ranking
- `evaluate_pairs`: translations found by nearest vectors
"""

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.batching.batch import Batch
from bertworks.batching.examples import Example, example_of
from bertworks.datasets.reader import RowReader
from bertworks.errors import BertworksError, expect, require
from bertworks.events import Event, JsonObject, no_notes
from bertworks.inference.embed_file import WITHOUT_VECTOR
from bertworks.inference.embedder import DOCUMENT_PROMPTS, Vectors, normalized
from bertworks.inference.engine import LazyModel, compute_each, open_model
from bertworks.io.file_job import ROWS_AT_ONCE
from bertworks.io.inputs import IssueCounter, as_path, open_lines
from bertworks.io.options import ReadOptions
from bertworks.io.tables import as_text
from bertworks.metrics.intervals import wilson_interval
from bertworks.models.settings import Pooling
from bertworks.models.transformer import Encoder
from bertworks.retrieval.index import RERANKED, Index, Ranking
from bertworks.retrieval.ranking import Reranker, Scores, ranking_figures, top_k
from bertworks.tasks.sequences import Truncation, format_truncation, format_windows
from bertworks.text.translations import read_translations

_DEPTH = 1000  # documents of a ranking that count, as in trec_eval
_ELEMENT = re.compile(r"<(doc|top)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_FIELD = re.compile(r"<(docno|num|title|text)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_JUDGMENT_LINE = re.compile(r"(\S+)\s+\S+\s+(\S+)\s+(-?\d+)\s*")
_LAYOUTS = (
    "name a folder with corpus.jsonl, queries.jsonl and qrels.tsv or qrels/test.tsv, or with "
    "TREC's <doc>, <top> and qrels"
)
_LEFT_OUT = "left out of their own ranking, as in BEIR (--keep-identical keeps them)"
Grades = dict[str, dict[str, int]]  # query -> document -> grade
_Judgment = tuple[str, str, int, str]  # query, document, grade, "path:line"
_Content = tuple[dict[str, str], dict[str, str], list[_Judgment]]  # documents, queries, judgments


class Collection(NamedTuple):
    """A test collection: texts by id, and the grades of documents, by query.

    grades: 0 is not relevant.
    missing: judgments of unknown queries or documents, which do not count.
    repeated: judgments that occur again with the same grade, which count once.
    identical: the queries that are documents as well, under the same id. Where the layout is that
        of BEIR, an equal id is enough; where it is TREC's, which often numbers both from 1, the
        document must end with the text of the query.
    """

    documents: dict[str, str]
    queries: dict[str, str]
    grades: Grades
    missing: IssueCounter
    repeated: IssueCounter
    identical: set[str]


def read_collection(folder: str | Path) -> Collection:
    """Return a whole collection.

    If TREC's judgments number the queries by their position, as in Cranfield, the positions are the
    ids of the queries. A title is put before its text, unless the text begins with it.

    Raises:
        BertworksError: something is missing or occurs twice, a line is not a judgment, or two lines
            contradict each other.
    """
    folder = as_path(folder)
    require(folder.is_dir(), "no such folder", folder, _LAYOUTS)
    is_beir = (folder / "corpus.jsonl").exists()
    documents, queries, judgments = (_read_beir if is_beir else _read_trec)(folder)
    missing = IssueCounter()
    repeated = IssueCounter()
    grades = Grades()
    first: dict[tuple[str, str], tuple[int, str]] = {}
    for query, document, grade, where in judgments:
        earlier, place = first.setdefault((query, document), (grade, where))
        require(
            earlier == grade,
            f"query {query}, document {document} has the grade {grade} here and {earlier} in "
            f"{place}",
            where,
            "remove the wrong one of the two lines",
        )
        if place != where:
            repeated.add(where)
        elif query in queries and document in documents:
            grades.setdefault(query, {})[document] = grade
        else:
            missing.add(f"query {query}, document {document}")
    require(grades, "there are no documents, no queries, or no judgments of them", folder, _LAYOUTS)
    queries = {name: queries[name] for name in grades}
    identical = {
        name
        for name, text in queries.items()
        if name in documents and (is_beir or documents[name].endswith(text))
    }
    return Collection(documents, queries, grades, missing, repeated, identical)


def _read_beir(folder: Path) -> _Content:
    """Return the documents, the queries and the judgments of a folder in the layout of BEIR."""
    judgments: list[_Judgment] = []
    path = folder / "qrels" / "test.tsv"
    if (folder / "qrels.tsv").exists() and not path.exists():
        path = folder / "qrels.tsv"
    for row in RowReader(path, ReadOptions(header=False)):
        cells = list(map(str, row.values.values()))
        query, document, grade = cells[:3] if len(cells) >= 3 else ("", "", "")
        if re.fullmatch(r"\s*-?\d+\s*", grade):
            judgments.append((query, document, int(grade), row.where))
        elif judgments or not grade:  # else it is the header
            raise BertworksError(
                "not a judgment: query, document, grade", where=row.where, hint="repair the line"
            )
    return _beir_texts(folder / "corpus.jsonl"), _beir_texts(folder / "queries.jsonl"), judgments


def _beir_texts(path: Path) -> dict[str, str]:
    """Return the texts of a file by id."""
    texts: dict[str, str] = {}
    for row in RowReader(path):
        fields = {name: as_text(value) or "" for name, value in row.values.items()}
        _add_text(texts, "row", "_id", fields, row.where)
    return texts


def _add_text(
    texts: dict[str, str], kind: str, key: str, fields: Mapping[str, str], where: str
) -> None:
    """Add the title and the text of a row under its key.

    Raises:
        BertworksError: the key is missing, or occurs twice.
    """
    name = fields.get(key, "")
    title, text = (" ".join(fields.get(field, "").split()) for field in ("title", "text"))
    text = text if text.startswith(title) else f"{title} {text}".strip()
    require(
        name and name not in texts,
        f"the {key} {name!r} occurs twice" if name else f"a {kind} has no {key}: {text[:40]!r}",
        where,
        f"give each {kind} its own {key}",
    )
    texts[name] = text


def _read_trec(folder: Path) -> _Content:
    """Return the documents, the queries and the judgments of a folder in the layout of TREC."""
    documents = dict[str, str]()
    queries = dict[str, str]()
    judgments = list[_Judgment]()
    for path in sorted(
        path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    ):
        with open_lines(path, str(path)) as reader:
            lines = list(reader.lines(universal=True))
        matches = [
            (number, _JUDGMENT_LINE.fullmatch(line)) for number, line in lines if line.strip()
        ]
        if lines and all(match for _, match in matches):
            judgments += [(m[1], m[2], int(m[3]), f"{path}:{number}") for number, m in matches if m]
            continue
        for element in _ELEMENT.finditer("\n".join(line for _, line in lines)):
            fields = dict[str, str]()
            for tag, value in _FIELD.findall(element[2]):  # a text may consist of several pieces
                name = tag.lower()
                fields[name] = f"{fields.get(name, '')} {unescape(value).strip()}".strip()
            if element[1].lower() == "doc":
                _add_text(documents, "document", "docno", fields, str(path))
            else:
                fields["num"] = fields.get("num", "").removeprefix("Number:").strip()
                _add_text(queries, "topic", "num", fields, str(path))
    graded = {query for query, *_ in judgments}
    if not graded <= set(queries) and graded <= {str(n) for n in range(1, len(queries) + 1)}:
        queries = {str(n): text for n, text in enumerate(queries.values(), 1)}
    return documents, queries, judgments


def evaluate_retrieval(
    data: str | Path,
    model: str | Path = "minilm",
    *,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    windows: int | None = None,
    language: str | None = None,
    rerank: str | Path | None = None,
    keep_identical: bool = False,
    device: str = "auto",
) -> Iterator[Event]:
    """Compute nDCG@10, mean average precision and recall for each ranking of a test collection.

    They are means over all queries. The fields of the event "done" are `dense`, `bm25`, `hybrid`
    and, with `rerank`, `reranked`: figures by name; and `truncated`, `truncated_tokens` and
    `truncated_share`: how many documents the model does not read to their end, and how much of them
    it leaves out.

    Args:
        data: a folder in the layout of TREC or BEIR (`read_collection`).
        model, pooling, max_length, windows, language: see `Index.create`.
        rerank: a model fine-tuned on pairs, which orders the first 50 of the hybrid ranking again.
        keep_identical: keep a query that is a document itself in its own ranking. BEIR leaves it
            out, as is done here by default, but its judgment, if there is one, counts in both.

    Raises:
        BertworksError, UsageError: no such collection or model, or its judgments contradict each
            other.
    """
    collection = read_collection(data)
    for name, what, counter in (
        ("missing", "of unknown queries or documents, which do not count", collection.missing),
        ("repeated", "that occur again with the same grade, which count once", collection.repeated),
    ):
        if counter.count:
            yield Event("note", f"judgments {what}: {counter}", {name: counter.count})
    identical = collection.identical
    if identical:
        differing = sum(
            not collection.documents[name].endswith(collection.queries[name]) for name in identical
        )
        text = (
            f"queries with the id of a document: {len(identical):,}, {differing:,} of them with "
            "another text; they are "
        )
        text += "kept in their own ranking" if keep_identical else _LEFT_OUT
        yield Event("note", text, {"identical": len(identical)})
    if keep_identical:
        collection = collection._replace(identical=set())
    reranker = None if rerank is None else Reranker(rerank, device=device)
    names = list(collection.documents)
    texts = [text or "-" for text in collection.documents.values()]
    queries = list(collection.queries.values())
    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(
            Path(folder) / "i",
            model,
            pooling=pooling,
            max_length=max_length,
            windows=windows,
            language=language,
            device=device,
        )
        yield from index.embedder.examples(
            [(f"query {next(iter(collection.queries))}", queries[0])], "query"
        )
        yield from index.embedder.examples([(f"document {names[0]}", texts[0])], *DOCUMENT_PROMPTS)
        for start in range(0, len(names), ROWS_AT_ONCE):
            stop = min(start + ROWS_AT_ONCE, len(names))
            index.add(texts[start:stop], names[start:stop])
            fields = {"stage": "index", "what": "documents", "amount": stop}
            yield Event("stage", f"index: {stop:,} of {len(names):,} documents", fields)
        scores = {ranking: index.scores(queries, ranking) for ranking in get_args(Ranking)}
        if reranker is not None:
            hybrid_scores = index.scores(queries, "hybrid")
            scores["reranked"] = _reranked(reranker, queries, texts, hybrid_scores)
        figures = {
            ranking: _figures(collection, names, of_queries)
            for ranking, of_queries in scores.items()
        }
        truncation = index.truncation
        num_without_vector = index.num_without_vector
    if truncation.truncated:
        counts = {"rows": truncation.rows, **truncation.as_dict()}
        yield Event("note", f"WARNING: {format_truncation(counts, 'documents')}", counts)
    if truncation.in_windows:
        counts = {"rows": truncation.rows, **truncation.as_dict()}
        yield Event("note", format_windows(counts, "documents"), counts)
    if num_without_vector:
        text = f"WARNING: {num_without_vector:,} of {len(names):,} {WITHOUT_VECTOR}"
        yield Event("note", text, {"without_vector": num_without_vector})
    text = f"{len(queries):,} queries, {len(names):,} documents"
    fields = {"queries": len(queries), "documents": len(names), **truncation.as_dict(), **figures}
    yield Event("done", text, fields)


def evaluate_pairs(
    model: str | Path,
    files: Sequence[str | Path],
    *,
    languages: Sequence[str] = (),
    device: str = "auto",
    on_note: Callable[[str], None] = no_notes,
) -> JsonObject:
    """Compute how often the nearest sentence on the other side is the translation (P@1).

    Both directions count, by the cosine of vectors: the mean over tokens and layers. It needs no
    trained vector space; chance is 1 / pairs.

    Args:
        files: translations, see `read_translations`: a table of two columns, or two files.
        languages: of the two sides, for a model with several.
        on_note: is called with what a person should know: pairs that look wrong, and where they
            are.

    Raises:
        UsageError: the model has several languages, and no two are given.
        BertworksError: the files cannot be used.

    Returns:
        pairs, forward and backward (fractions), intervals (95 %, Wilson), correct (for each pair,
        both directions); truncated, truncated_tokens and truncated_share (how many texts were
        longer than the model reads, and how much of them was left out).
    """
    expect(
        len(languages) in (0, 2),
        f"{len(languages)} languages: expected those of the two sides, or none",
    )
    translations = read_translations(files)
    for note in translations.notes():
        on_note(note)
    truncation = Truncation()
    vectors_of_sides = []
    sides = zip(*translations.pairs, strict=True)
    for texts, language in zip(sides, languages or ["", ""], strict=True):
        source = open_model(model, device, language)
        vectors_of_sides.append(_mean_vectors(source, texts, truncation))
    first, second = vectors_of_sides
    hits = {
        "forward": _nearest_is_translation(first, second),
        "backward": _nearest_is_translation(second, first),
    }
    return {
        "pairs": len(translations.pairs),
        **{name: float(of_pairs.mean()) for name, of_pairs in hits.items()},
        "intervals": {
            name: wilson_interval(float(of_pairs.sum()), len(of_pairs))
            for name, of_pairs in hits.items()
        },
        "correct": {name: of_pairs.tolist() for name, of_pairs in hits.items()},
        **truncation.as_dict(),
    }


def _mean_vectors(source: LazyModel, texts: Sequence[str], truncation: Truncation) -> Vectors:
    """Return the normalized vector of each text, the mean over its tokens and all layers.

    Args:
        truncation: the texts are counted there.
    """
    encoder = source.network(Encoder, "encoder.")
    longest = source.config.max_position_embeddings

    def compute(batch: Batch) -> Tensor:
        states = encoder(*batch.inputs)[1:]
        return batch.layout.mean(torch.stack(states, 1)).mean(1)

    encodings = list(source.tokenizer.encode_each(list(texts), max_length=longest))
    room = longest - source.tokenizer.template.num_special()
    units: list[list[Example]] = []
    for encoding in encodings:
        truncation.add(room, encoding.num_truncated)
        units.append([example_of(source.tokenizer, encoding)])
    batches = compute_each(encoder, compute, units, (source.config.hidden_size,))
    return normalized(np.concatenate(batches))


def _nearest_is_translation(queries: Vectors, candidates: Vectors) -> NDArray[np.bool_]:
    """Return for each query whether the candidate with the same number is the nearest of all."""
    nearest = [
        (queries[n : n + 1024] @ candidates.T).argmax(1) for n in range(0, len(queries), 1024)
    ]
    return np.concatenate(nearest) == np.arange(len(queries))  # type: ignore[no-any-return]


def _figures(
    collection: Collection, names: Sequence[str], scores: Iterator[Scores]
) -> dict[str, float]:
    """Return the mean of each figure over the queries."""
    rows = []
    for (query, grades), of_query in zip(collection.grades.items(), scores, strict=True):
        ranking = [
            names[n]
            for n in top_k(of_query, _DEPTH + 1)
            if names[n] != query or query not in collection.identical
        ]
        rows.append(ranking_figures(ranking[:_DEPTH], grades))
    means = np.mean([list(row.values()) for row in rows], axis=0)
    return dict(zip(rows[0], means.tolist(), strict=True))


def _reranked(
    reranker: Reranker, queries: Sequence[str], texts: Sequence[str], scores: Iterator[Scores]
) -> Iterator[Scores]:
    """Yield the scores of each query with the first documents in the order of the reranker.

    They come before all other documents, which keep their order.
    """
    for query, of_query in zip(queries, scores, strict=True):
        numbers = top_k(of_query, RERANKED)
        reranked = reranker(query, [texts[number] for number in numbers])
        highest = of_query[np.isfinite(of_query)].max(initial=0)
        of_query[numbers] = reranked - reranked.min(initial=0) + highest + 1
        yield of_query
