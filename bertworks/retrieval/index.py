"""Search in documents by vectors, by words, or by both.

- `Index`: search, and documents added or deleted
- `index_file`: a file of documents -> an index
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np
import torch

from bertworks.checkpoints.resolve import is_model_name, resolve_model
from bertworks.datasets.reader import Row, RowReader
from bertworks.datasets.values import ID_NAMES, label_text
from bertworks.errors import BertworksError, UsageError, expect, listed, quoted
from bertworks.events import Event, JsonObject
from bertworks.inference.embed_file import (
    WITHOUT_VECTOR,
    StoredRow,
    TextRow,
    reading_note,
    row_text,
    rows_and_vectors,
    text_columns,
    vector_job,
)
from bertworks.inference.embedder import (
    DOCUMENT_PROMPTS,
    Embedder,
    Vectors,
    normalized,
    num_zero,
)
from bertworks.inference.engine import LazyModel, ModelReference, Opening, Reopened, reopened_model
from bertworks.io.atomic_write import local_path, url_of
from bertworks.io.file_job import portions_of
from bertworks.io.inputs import IssueCounter, as_path
from bertworks.io.options import Bulk, ReadOptions
from bertworks.io.tables import (
    SAMPLE_ROWS,
    TITLE_NAMES,
    Data,
    find_column,
    first_rows,
    texts_of,
    usual_column,
)
from bertworks.models.settings import Pooling
from bertworks.retrieval.ranking import (
    DEPTH,
    Reranker,
    Scores,
    bm25,
    fuse_rankings,
    top_k,
    words_state,
)
from bertworks.retrieval.store import (
    MANIFEST,
    NAMED,
    Documents,
    Manifest,
    Sources,
    create_index,
    refuse_documents,
)
from bertworks.tasks.sequences import Truncation, format_counts

Ranking = Literal["hybrid", "dense", "bm25"]
RERANKED = 50  # minimum number of hits that are reranked
_MIN_CANDIDATES = 128  # of approximate search
_MAX_SCORES = 1 << 24  # in memory
_COMPACTED_ROWS = 1 << 16  # of a segment that `compact` writes
_NUMBERED = "a number; a file that has changed is added again as a whole"
_ID_NAMES = (*ID_NAMES, "_id", "docno", "doc_id")


class Hit(TypedDict):
    """A document as a search result."""

    id: str
    # cosine; BM25, without upper bound; hybrid: by ranks, at most 2/61; or the score of the
    # reranker
    score: float
    # of the vectors of query and text; None with the ranking "bm25", which needs no model
    cosine: float | None
    title: str  # in `fields`; "": none
    text: str
    fields: JsonObject  # the other columns of its row


class Index(Documents, Reopened):
    """Documents and their vectors, in a folder.

    Vectors have length 1: their inner product is the cosine. Changes by other processes are visible
    after the folder is opened again.

    Args:
        model: the path of the model if it has moved, or the open model; None: the path stored in
            the index.

    Attributes:
        manifest: the state of the index.
        truncation: how many of the documents that this object has added were longer than the model
            reads, and how much of them was left out.
        num_without_vector: how many of the documents that this object has added have the vector 0,
            which only static vectors give: no token of them is known.

    Raises:
        BertworksError: the index is missing or damaged. When vectors are computed: the model is
            missing, or is not the one that made the index.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: str | Path | LazyModel | None = None,
        device: str = "auto",
    ):
        super().__init__(as_path(folder))
        self._model = model
        self._device = device
        self.truncation = Truncation()
        self.num_without_vector = 0
        self._is_open()

    def _opening_call(self) -> Opening:
        """Return the call that opens the same state of the index."""
        model: str | ModelReference | None
        if isinstance(self._model, LazyModel):
            model = self._model.reference
        elif self._model is None:
            model = None
        elif is_model_name(self._model) or url_of(self._model):
            model = str(self._model)
        else:
            model = str(Path(self._model).absolute())
        return Opening(
            _open_index, (str(self.folder.absolute()), model, self._device, self.manifest.sha256)
        )

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: str | Path,
        *,
        pooling: Pooling | None = None,
        max_length: int | None = None,
        windows: int | None = None,
        language: str | None = None,
        device: str = "auto",
    ) -> Self:
        """Return an index without documents.

        Args:
            model, pooling, max_length: see `Embedder`.
            windows: also of queries, see `Embedder`. None: texts are truncated.
            language: of the texts, as "english". Words are then compared by their stems, and stop
                words are left out of queries, for the rankings "bm25" and "hybrid". None: words are
                compared as they are written.

        Raises:
            UsageError: the folder is not empty, or there is no stemmer for the language.
        """
        folder = local_path(folder)
        refuse_documents(folder)  # before the model is read
        words = words_state(language)
        embedder = Embedder(
            model, pooling=pooling, max_length=max_length, windows=windows or 0, device=device
        )
        name = str(model) if is_model_name(model) or url_of(model) else str(Path(model).resolve())
        manifest = Manifest(
            model=name, fingerprint=embedder.fingerprint | words, dimension=embedder.dimension
        )
        create_index(folder, manifest)
        return cls(folder, model=model, device=device)

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[str] | None = None,
        fields: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Add documents, all or none.

        The number of documents with the same ids that they replace.

        Args:
            ids: None: new numbers.
            fields: JSON values stored with each text.

        Raises:
            UsageError: a text is empty, or there are more or fewer ids or fields than texts.
            BertworksError: another process writes to the index, or the model does not match.
        """
        texts = list(texts_of(texts, "add([text])"))
        count = len(texts)
        ids = ids if ids is None else listed(ids, "add([text], [id])", "id")
        if any(values is not None and len(values) != count for values in (ids, fields)):
            raise UsageError(f"the number of texts, {count}, is not the number of ids or fields")
        if wrong := [
            n for n, text in enumerate(texts, 1) if not (isinstance(text, str) and text.strip())
        ]:
            raise UsageError(
                f"text {wrong[0]} is {texts[wrong[0] - 1]!r:.60}: expected a string that is not "
                "empty"
            )
        try:
            values = [dict(row) for row in fields or [{}] * count]
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"fields hold a value that is not JSON: {error}", hint="use None if it is missing"
            ) from None
        with self.changing():
            return self.append(texts, ids, values) if count else 0

    def delete(self, ids: Iterable[str]) -> int:
        """Delete the documents with these ids.

        The number of deleted documents; their texts stay on disk until `compact`.
        """
        names = list(map(str, listed(ids, "delete([id])", "id", ordered=False)))
        with self.changing():
            before = len(self)
            self.commit(self.without(names))
            return before - len(self)

    def compact(self) -> None:
        """Write the index again: remove deleted documents from disk and merge small segments."""
        with self.changing():
            numbers = np.flatnonzero(self.alive)
            # the files of an empty index are read again
            sources = self.manifest.sources if len(numbers) else {}
            state = {
                **self.manifest.fingerprint,
                **words_state(self.manifest.fingerprint.get("language")),
            }
            manifest = replace(
                self.manifest, segments={}, neighbours=(), sources=sources, fingerprint=state
            )
            for start in range(0, len(numbers), _COMPACTED_ROWS):
                documents = [
                    self.segment_of(number) for number in numbers[start : start + _COMPACTED_ROWS]
                ]
                rows = [segment.row(row) for segment, row in documents]
                vectors = np.stack([segment.vectors[row] for segment, row in documents])
                manifest = self.with_segment(manifest, rows, vectors)
            self.commit(manifest)
            self.remove_strays()

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        ranking: Ranking = "hybrid",
        rerank: "Reranker | str | Path | None" = None,
        approximate: bool = False,
    ) -> list[Hit]:
        """Return the k best documents for a query, the best first.

        Args:
            ranking: "dense" by the cosine of vectors, "bm25" by words, "hybrid" by the ranks in
                both.
            rerank: a model that was fine-tuned on pairs of texts; it scores the query with each of
                the first max(k, 50) documents and reorders them.
            approximate: use the graph of `build_graph`: fast with millions of vectors, and misses
                some.

        Raises:
            UsageError: k is not positive; the reranker does not score pairs; there is no graph.
            BertworksError: the model is missing, or is not the one that made the index.
        """
        expect(
            isinstance(query, str),
            f"expected one query, not {query!r:.60}",
            hint="search each query on its own",
        )
        expect(k >= 1, f"k is {k}: expected 1 or more")
        if ranking not in get_args(Ranking):
            raise UsageError(
                f"the ranking {ranking!r} is not known", hint=f"name {', '.join(get_args(Ranking))}"
            )
        reranker = (
            Reranker(rerank, device=self._device) if isinstance(rerank, str | Path) else rerank
        )
        candidates = (
            max(4 * k, _MIN_CANDIDATES if ranking == "dense" else DEPTH) if approximate else None
        )
        vectors = None if ranking == "bm25" else self._vectors([query])
        scores = self._scores(
            query, ranking, None if vectors is None else self._cosines(vectors, candidates)[0]
        )
        numbers = top_k(scores, k if reranker is None else max(k, RERANKED))
        hits = [self._hit(number, float(scores[number]), vectors) for number in numbers]
        if reranker is not None:
            for hit, score in zip(
                hits, reranker(query, [hit["text"] for hit in hits]), strict=True
            ):
                hit["score"] = float(score)
            hits.sort(key=lambda hit: -hit["score"])
        return hits[:k]

    def _hit(self, number: int, score: float, vectors: Vectors | None) -> Hit:
        segment, place = self.segment_of(number)
        cosine = None if vectors is None else float(vectors[0] @ segment.vectors[place])
        row = segment.row(place)
        title = str(row["fields"].get(usual_column(row["fields"], TITLE_NAMES)) or "")
        return Hit(
            id=row["id"],
            score=score,
            cosine=cosine,
            title=title,
            text=row["text"],
            fields=row["fields"],
        )

    def build_graph(self) -> float:
        """Build the graph for approximate search of all documents.

        Later documents are searched exactly until it is built again. The result is its recall: the
        fraction of the ten nearest neighbours of 100 documents it finds.

        Raises:
            UsageError: there are no documents.
            BertworksError: faiss is not installed.
        """
        self.write_graph()
        parts = [segment.vectors[:] for segment in self.segments]
        sample = parts[0][:: max(1, len(parts[0]) // 100)][:100]
        scores = np.concatenate([sample @ part.T for part in parts], 1)
        (_, numbers) = self.nearest(sample, 11)
        nearest = (set(top_k(row, 11).tolist()) for row in scores)
        return float(
            np.mean(
                [
                    len(exact & set(row)) / len(exact)
                    for exact, row in zip(nearest, numbers.tolist())
                ]
            )
        )

    def scores(self, queries: Sequence[str], ranking: Ranking = "hybrid") -> Iterator[Scores]:
        """Yield for each query the scores of all documents, float32 [documents].

        Deleted documents are included. The score of a document that is no hit is -inf.
        """
        queries = list(texts_of(queries, "scores([query])", "query"))
        size = max(1, _MAX_SCORES // max(1, len(self.alive)))
        for start in range(0, len(queries), size):
            group = queries[start : start + size]
            rows = [None] * len(group) if ranking == "bm25" else self._cosines(self._vectors(group))
            yield from (
                self._scores(query, ranking, row) for query, row in zip(group, rows, strict=True)
            )

    def _scores(self, query: str, ranking: Ranking, cosines: Scores | None) -> Scores:
        if cosines is None or ranking == "dense":
            return self._bm25(query) if cosines is None else cosines
        return fuse_rankings(cosines, self._bm25(query))

    @property
    def embedder(self) -> Embedder:
        """The model, which must be the one that made the index."""
        embedder, fingerprint = self._embedder
        name = self.manifest.model
        expected = self.manifest.fingerprint
        differing = [key for key, value in fingerprint.items() if expected.get(key) != value]
        if differing:
            raise BertworksError(
                f"this index was made by another model than {self._model or name}: its "
                f"{differing[0]} differs",
                where=self.folder,
                hint=f"give the model that made it, {name}; or make the index again",
            )
        return embedder

    @property
    def stored_model(self) -> Path:
        """The folder of the model that the index names.

        The index may come from a stranger: nothing is fetched.

        Raises:
            BertworksError: the model is not on this machine.
        """
        command = f"bertworks search {quoted(self.folder)} QUERY"
        return resolve_model(self.manifest.model, fetch=False, command=command)

    @cached_property
    def _embedder(self) -> tuple[Embedder, JsonObject]:
        """The model with the settings of the index, and all that its vectors depend on."""
        names = ("pooling", "normalize", "max_length")
        fingerprint = self.manifest.fingerprint
        settings: JsonObject = {name: fingerprint.get(name) for name in names}
        settings["windows"] = fingerprint.get("windows", 0)
        embedder = Embedder(self._model or self.stored_model, device=self._device, **settings)
        return embedder, embedder.fingerprint

    def append(
        self,
        texts: Sequence[str],
        ids: Sequence[str] | None,
        fields: Sequence[JsonObject],
        sources: Sources | None = None,
        vectors: Vectors | None = None,
    ) -> int:
        """`add` without its checks, within `changing`.

        Of documents with the same id the last one is kept. sources: new states of indexed files.
        vectors: float32 [texts, dimension], of any norm; None: they are computed.
        """
        first = self.manifest.next_row
        names = map(str, range(first, first + len(texts)) if ids is None else ids)
        places: dict[str, int] = {}
        for place, name in enumerate(names):
            places.pop(name, None)
            places[name] = place
        rows = [
            {"id": name, "text": texts[place], "fields": fields[place]}
            for name, place in places.items()
        ]
        _ = self.language  # report another stemmer before vectors are computed
        before = len(self)
        prompt = self.embedder.settings.prompt(*DOCUMENT_PROMPTS)
        if vectors is None:
            vectors, _ = self.embedder.embed_and_count(texts, prompt=prompt, counts=self.truncation)
        vectors = normalized(vectors[list(places.values())])
        self.num_without_vector += num_zero(vectors)
        manifest = self.without(list(places))
        manifest = replace(
            manifest, next_row=first + len(texts), sources={**manifest.sources, **(sources or {})}
        )
        self.commit(self.with_segment(manifest, rows, vectors))
        return before + len(texts) - len(self)

    def _vectors(self, queries: Sequence[str]) -> Vectors:
        return normalized(
            self.embedder.embed(queries, prompt=self.embedder.settings.prompt("query"))
        )

    def query_tokens(self, query: str) -> tuple[int, int]:
        """Return how many tokens of a query its vector is made of, and how many are left out.

        The model reads no more than the former.
        """
        (unit,), (truncated,) = self.embedder.units([query], self.embedder.settings.prompt("query"))
        return sum(len(example.input_ids) for example in unit), truncated

    def _cosines(self, vectors: Vectors, candidates: int | None = None) -> Scores:
        """Return the cosines [queries, documents].

        candidates: number of documents that the graph scores; None: all documents are scored.
        """
        scores = np.full((len(vectors), len(self.alive)), -np.inf, np.float32)
        covered = 0
        if candidates is not None:
            covered = int(self.edges[len(self.manifest.neighbours)])
            deleted = len(self.alive) - len(self)
            for row, cosines, numbers in zip(
                scores, *self.nearest(vectors, min(covered, candidates + deleted))
            ):
                row[numbers[numbers >= 0]] = cosines[numbers >= 0]
        for segment, (start, end) in zip(self.segments, pairwise(self.edges), strict=True):
            # by torch: numpy's threads keep spinning on the cores that the next query needs
            if start >= covered:
                scores[:, start:end] = (
                    torch.from_numpy(vectors) @ torch.from_numpy(segment.vectors[:]).T
                ).numpy()
        scores[:, ~self.alive] = -np.inf
        return scores

    def _bm25(self, query: str) -> Scores:
        try:
            return bm25(
                query, [segment.postings for segment in self.segments], self.alive, self.language
            )
        except IndexError:
            raise BertworksError(
                "words are in documents that do not exist",
                where=self.folder,
                hint="make it again",
            ) from None


def _open_index(
    folder: str, model: str | ModelReference | None, device: str, manifest_sha256: str
) -> Index:
    """Return the index of a pickle.

    Raises:
        BertworksError: the index is missing, or has changed since the object was pickled.
    """
    index = Index(
        folder,
        model=reopened_model(model) if isinstance(model, ModelReference) else model,
        device=device,
    )
    if index.manifest.sha256 != manifest_sha256:
        raise BertworksError(
            "the index of an object in a pickle has changed since the object was pickled",
            where=folder,
            hint="open the index again, and pickle that object",
        )
    return index


def index_file(
    documents: Data,
    folder: str | Path,
    *,
    model: str | Path | None = None,
    text: Sequence[str] = (),
    identity: str | None = None,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    windows: int | None = None,
    language: str | None = None,
    device: str = "auto",
    read: ReadOptions = ReadOptions(),
    bulk: Bulk = Bulk(),
) -> Iterator[Event]:
    """Add the rows of a file to an index, and create the index if it is missing.

    Call it again to resume; a file that is in the index already is not read again.

    Args:
        documents: any file of rows or lines; rows in memory; "-" is standard input.
        model: None: the model of the index; `minilm` for a new index.
        text: columns, joined by a space; (): inferred, and that of titles, unless all texts begin
            with their titles. The title and the other columns are stored with the text.
        identity: the column with the id of each row; None: a column with a usual name, else
            numbers. A document replaces one with the same id.
        pooling, max_length, windows, language: of a new index, see `Index.create`.
        bulk: where vectors are computed, if not here.

    Raises:
        BertworksError, UsageError: no such model, language or column; a row without id; an index of
            another model.
    """
    folder = local_path(folder)
    reader = RowReader(documents, read)
    columns, title = _document_columns(reader, text)
    if identity is None:
        id_column = usual_column(
            [name for name in reader.columns if name not in columns], _ID_NAMES
        )
    else:
        id_column = find_column(reader.columns, reader.name, identity, "--id")
    settings = {
        "pooling": pooling,
        "max_length": max_length,
        "windows": 0 if windows == 1 else windows,
        "language": language,
    }
    index = _open_or_create(folder, model, device, bulk.part, **settings)
    hint = (
        f"; --text {quoted(columns[-1])} leaves the title out"
        if title in columns and not text
        else ""
    )
    hint += f"; bm25 compares the stems of {index.language}" if index.language else ""
    yield reading_note(reader, columns, f"id: {id_column or _NUMBERED}{hint}")
    similarity = index.embedder.settings.similarity
    if similarity != "cosine":
        yield Event(
            "note",
            f"the model's vectors are meant to be compared by {similarity}; an index takes the "
            "cosine",
        )
    source = reader.fingerprint(columns, id_column)
    empty = IssueCounter()
    source = source if id_column is None else NAMED + source

    stored = {id_column, *columns} - {title}
    num_rows = 0

    def text_rows() -> Iterator[TextRow]:
        nonlocal num_rows
        for num_rows, row in enumerate(reader, 1):
            text = row_text(row, columns, empty)
            document = {
                "where": row.where,
                "id": _row_id(row, id_column) if id_column is not None and text else None,
                "fields": {name: row.values[name] for name in row.values if name not in stored},
                "text": text,
            }
            yield TextRow(num_rows, document, text)

    portions = portions_of(text_rows(), lambda row: len(row.text))
    # workers open the model, too
    embedder_options = {"model": str(model or index.stored_model), "device": device}
    job, compute = vector_job(
        folder,
        bulk,
        reader,
        index.embedder,
        embedder_options,
        prompts=DOCUMENT_PROMPTS,
        command="index",
        columns=[columns, id_column, title],
    )
    with ExitStack() as stack:
        is_finished = index.manifest.sources.get(source, (0, False))[1]
        if bulk.is_shared and is_finished:
            job.discard()
        elif bulk.is_shared:
            stack.enter_context(job.open())
            inputs = ([row for row in portion if row.text] for portion in portions)
            yield from job.make("index", filter(None, inputs), compute)
            if bulk.part:
                return
        # one portion at a time, after the rows that are there
        replaced = 0
        with index.changing():
            done, complete = index.manifest.sources.get(source, (0, False))
            if complete:
                yield _done_event(index, f"{reader.name} is in the index already", replaced)
                return
            if done:
                yield Event("note", f"resuming after {done:,} rows", {"resumed_row": done})
            new_rows: Iterable[tuple[list[StoredRow], Vectors | None]] = (
                ([(row.number, row.row) for row in portion], None) for portion in portions
            )
            if bulk.is_shared:
                new_rows = map(rows_and_vectors, job.files)
            for rows, vectors in new_rows:
                end = rows[-1][0]
                if end <= done:
                    continue
                if not done:
                    yield from index.embedder.examples(
                        ((document["where"], document["text"]) for _, document in rows),
                        *DOCUMENT_PROMPTS,
                    )
                # An earlier run may have ended within this portion: in several processes, portions
                # leave out rows without text.
                places = [
                    place
                    for place, (number, document) in enumerate(rows)
                    if number > done and document["text"]
                ]
                done = end
                if places:
                    documents = [rows[place][1] for place in places]
                    texts = [document["text"] for document in documents]
                    ids = None if id_column is None else [document["id"] for document in documents]
                    fields = [document["fields"] for document in documents]
                    new_vectors = None if vectors is None else vectors[places]
                    sources = {source: (done, False)}
                    replaced += index.append(texts, ids, fields, sources, new_vectors)
                yield Event(
                    "stage",
                    f"index: {done:,} rows",
                    {"stage": "index", "what": "rows", "amount": done},
                )
            index.commit(
                replace(
                    index.manifest, sources={**index.manifest.sources, source: (num_rows, True)}
                )
            )
        yield from reader.events(empty, "are left out")
        yield _done_event(
            index,
            f"{num_rows:,} rows of {reader.name}",
            replaced,
            [
                sum(pair)
                for pair in zip_longest(job.counts, index.truncation.as_counts(), fillvalue=0)
            ],
        )


def _open_or_create(
    folder: Path, model: str | Path | None, device: str, part: str | None, **settings: Any
) -> Index:
    """Return the index in a folder, which must have the same settings, or a new one.

    Another `part` may be making it at the same time.
    """
    index = Index(folder, model=model, device=device) if (folder / MANIFEST).exists() else None
    if index is None or (not index.segments and (model or any(settings.values()))):
        # an empty index is false
        name = model or ("minilm" if index is None else index.stored_model)
        try:
            return Index.create(folder, name, device=device, **settings)
        except BertworksError:
            if not part:
                raise
            time.sleep(1)
            return _open_or_create(folder, model, device, None, **settings)
    for setting, value in settings.items():
        absent = 0 if setting == "windows" else None
        stored = index.manifest.fingerprint.get(setting, absent)
        if value not in (None, stored):
            raise UsageError(
                f"the index has {setting} {stored}, not {value}",
                where=folder,
                hint="leave it out, or make another index",
            )
    _ = index.embedder  # report a wrong model before rows are read
    return index


def _done_event(
    index: Index, what: str, num_replaced: int, counts: Sequence[int] = (0, 0, 0, 0)
) -> Event:
    """Return the last event.

    Args:
        what: what is in the index now, for people.
        num_replaced: how many documents of the index were replaced.
        counts: of the new documents that are longer than the model reads, see
            `Truncation.as_counts`.
    """
    is_static = index.embedder.is_static
    if is_static:  # no text is truncated: the portions count something else
        counts = (0, 0, 0, 0)
    parts = [what]
    if num_replaced:
        parts.append(f"{num_replaced:,} replaced documents with the same id")
    if any(counts):
        parts.append(format_counts(counts))
    if index.num_without_vector:
        parts.append(f"{index.num_without_vector:,} {WITHOUT_VECTOR}")
    parts.append(f"{len(index):,} documents")
    fields = {
        "index": str(index.folder),
        "documents": len(index),
        "replaced": num_replaced,
        "truncated": counts[0],
    }
    if is_static:
        fields["without_vector"] = index.num_without_vector
    return Event("done", f"{index.folder}: {'; '.join(parts)}", fields)


def _document_columns(reader: RowReader, text: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return the columns of the text, and that of titles, which is stored as well.

    The latter is "" if there is none or it is all the text. Titles are text unless `text` names
    other columns, or each text begins with its title.
    """
    columns = text_columns(reader, text)
    title = usual_column(reader.columns, TITLE_NAMES) or ""
    sample = (
        []
        if text
        else [
            (row.values.get(title), str(row.values.get(columns[0])))
            for row in first_rows(reader.sample(SAMPLE_ROWS))
        ]
    )
    is_missing = any(
        name and not content.startswith(name) for name, content in sample if isinstance(name, str)
    )
    if (
        title not in columns
        and is_missing
        and all(isinstance(name, str | None) for name, _ in sample)
    ):
        columns = (title, *columns)
    return columns, "" if columns == (title,) else title


def _row_id(row: Row, column: str) -> str:
    name = label_text(row.values.get(column))
    if name is None:
        raise BertworksError(
            f"the row has no {column!r}",
            where=row.where,
            hint="write one, or name another with --id",
        )
    return name
