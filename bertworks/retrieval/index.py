"""Search in documents by vectors, by words, or by both.

- `Index`: search, and documents added or deleted
- `index_file`: a file of documents -> an index
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, get_args

import numpy as np
import torch

from bertworks.checkpoints.resolve import is_model_name, resolve_model
from bertworks.datasets.reader import Quoting, Row, RowReader
from bertworks.datasets.values import ID_NAMES, label_text
from bertworks.errors import BertworksError, UsageError, listed
from bertworks.events import Event
from bertworks.inference.embed import Embedder, portions, row_text, text_columns
from bertworks.inference.engine import LazyModel
from bertworks.inference.whitening import normalized
from bertworks.io.tables import find_column
from bertworks.io.text_files import IssueCounter
from bertworks.models.heads import Pooling
from bertworks.retrieval.ranking import DEPTH, Reranker, Scores, bm25, fuse_rankings, top_k
from bertworks.retrieval.store import MANIFEST, NAMED, Manifest, Stored, read_manifest, write_manifest, writing

Ranking = Literal["hybrid", "dense", "bm25"]
RERANKED = 50  # of the first hits, at least, are read by a second model
_FEWEST = 128  # candidates of approximate search
_SCORES = 1 << 24  # that are in memory at a time


class Hit(TypedDict):
    """A document that was found."""

    id: str
    score: float  # cosine; BM25, without upper bound; hybrid: by ranks, at most 2/61; or what a second model says
    text: str
    fields: dict[str, Any]  # the other columns of its row


class Index:
    """A folder of documents and their vectors, opened. Vectors are of length 1, so that their product is the cosine.
    What another process adds is seen when the folder is opened again.

    Args:
        model: where the model is now, or the open model; None: where it was when the index was made.

    Attributes:
        stored: the documents as they lie on disk (`Stored`).
        manifest: what the index says of itself.

    Raises:
        BertworksError: no index there, or a damaged one. When it is asked for vectors: the model is not there, or is
            another one than that which made the index.
    """

    def __init__(self, folder: str | Path, *, model: str | Path | LazyModel | None = None, device: str = "auto"):
        self.folder, self._model, self._device = Path(folder), model, device
        self.stored = Stored(self.folder)

    @classmethod
    def create(
        cls,
        folder: str | Path,
        model: str | Path,
        *,
        pooling: Pooling | None = None,
        max_length: int | None = None,
        device: str = "auto",
    ) -> Self:
        """An index without documents.

        Args:
            model, pooling, max_length: see `Embedder`.

        Raises:
            UsageError: the folder is not empty.
        """
        folder = Path(folder)
        _refuse_full(folder)  # before the model is read
        embedder = Embedder(model, pooling=pooling, max_length=max_length, device=device)
        name = str(model) if is_model_name(model) else str(Path(model).resolve())
        with writing(folder):
            before = _refuse_full(folder)  # another process may have been sooner
            made = Manifest(model=name, fingerprint=embedder.fingerprint, dimension=embedder.dimension)
            if before is not None:  # what had a number, and is gone, does not come back as something else
                made = replace(made, next_segment=before.next_segment, next_row=before.next_row)
            write_manifest(folder, made)
        return cls(folder, model=model, device=device)

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def manifest(self) -> Manifest:
        return self.stored.manifest

    def add(
        self,
        texts: Iterable[str],
        ids: Sequence[str] | None = None,
        fields: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """Adds documents, all or none; how many that are there were replaced, because they had the same id.

        Args:
            ids: None: numbers that were never used.
            fields: what is kept beside each text, as JSON can say it.

        Raises:
            UsageError: a text is empty, or there are more or fewer ids or fields than texts.
            BertworksError: another process writes, or the model is another one.
        """
        texts = listed(texts, "add([text])")
        count = len(texts)
        if any(given is not None and len(given) != count for given in (ids, fields)):
            raise UsageError(f"there are {count} texts, and not as many ids or fields")
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise UsageError(f"{wrong[0]!r:.60} is no text", hint="give strings")
        if empty := [number for number, text in enumerate(texts, 1) if not text.strip()]:
            raise UsageError(f"text {empty[0]} is empty")
        try:
            json.dumps(list(map(dict, fields or ())), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"fields hold what JSON cannot say: {error}", hint="use None for what is missing"
            ) from None
        with self.stored.changing():
            return self.append(texts, ids, fields) if count else 0

    def delete(self, ids: Iterable[str]) -> int:
        """Deletes documents, as far as they are there, and says how many were. Their texts stay on disk until
        `compact`."""
        gone = list(map(str, listed(ids, "delete([id])", "id")))
        with self.stored.changing():
            return self.stored.delete(gone)

    def compact(self) -> None:
        """Writes the index anew: deleted documents are gone from the disk, and many small segments become few."""
        with self.stored.changing():
            self.stored.compact()

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        ranking: Ranking = "hybrid",
        rerank: "Reranker | str | Path | None" = None,
        approximate: bool = False,
    ) -> list[Hit]:
        """The k best documents for a query, the best first.

        Args:
            ranking: "dense" by the cosine of vectors, "bm25" by words, "hybrid" by the ranks in both.
            rerank: a model that was fine-tuned on pairs of texts; it reads the query with each of the first
                max(k, 50) documents and puts these in a new order.
            approximate: vectors by the graph of `build_graph`: soon among millions, and some are missed.

        Raises:
            UsageError: k is not positive; the second model does not read pairs; there is no graph.
            BertworksError: the model is not there, or is another one.
        """
        if k < 1:
            raise UsageError(f"k is {k}: expected 1 or more")
        if ranking not in get_args(Ranking):
            raise UsageError(f"the ranking {ranking!r} is not known", hint=f"name {', '.join(get_args(Ranking))}")
        second = Reranker(rerank, device=self._device) if isinstance(rerank, str | Path) else rerank
        candidates = max(4 * k, _FEWEST if ranking == "dense" else DEPTH) if approximate else None
        (scores,) = self.scores([query], ranking, candidates)
        numbers = top_k(scores, k if second is None else max(k, RERANKED))
        rows, final = list(self.stored.rows(numbers)), scores[numbers]
        if second is not None:
            final = second(query, [row["text"] for row in rows])
        hits = ((rows[place], float(final[place])) for place in top_k(final, k))
        return [Hit(id=row["id"], score=score, text=row["text"], fields=row["fields"]) for row, score in hits]

    def build_graph(self) -> float:
        """Makes the graph for approximate search of all documents that are there; later ones are searched exactly until
        it is made again. The share of the ten nearest of 100 documents that it finds.

        Raises:
            UsageError: there are no documents.
            BertworksError: faiss is not installed.
        """
        with self.stored.changing():
            self.stored.build_graph()
        parts = [segment.vectors for segment in self.stored.segments.values()]
        some = parts[0][:: max(1, len(parts[0]) // 100)][:100]
        scores, (_, found) = np.concatenate([some @ part.T for part in parts], axis=1), self.stored.graph(some, 11)
        truth = (set(top_k(one, 11).tolist()) for one in scores)
        return float(np.mean([len(one & set(other)) / len(one) for one, other in zip(truth, found.tolist())]))

    def scores(
        self, queries: Sequence[str], ranking: Ranking = "hybrid", candidates: int | None = None
    ) -> Iterator[Scores]:
        """For each query float32 [documents, deleted ones too]: -inf for what is no hit. candidates: of the graph, as
        many as have a vector's score; None: all."""
        segments = self.stored.segments.values()
        parts, alive = [one.postings for one in segments], [one.alive for one in segments]
        at_once = max(1, _SCORES // max(1, self.stored.edges[-1]))
        for start in range(0, len(queries), at_once):
            group = queries[start : start + at_once]
            dense = self._dense(group, candidates) if ranking != "bm25" else np.zeros((len(group), 0), np.float32)
            for query, cosines in zip(group, dense, strict=True):
                if ranking == "dense":
                    yield cosines
                    continue
                try:
                    words = bm25(query, parts, alive)
                except IndexError:
                    raise BertworksError(
                        "words stand in documents that are not there", where=str(self.folder), hint="make it again"
                    ) from None
                yield words if ranking == "bm25" else fuse_rankings(cosines, words)

    @cached_property
    def embedder(self) -> Embedder:
        """The model, which must be the one that made the index."""
        self._made_for = wanted = self.manifest.fingerprint
        made_by = self.manifest.model
        found = Embedder(
            self._model or resolve_model(made_by, fetch=False),  # which may be a stranger's index
            pooling=wanted.get("pooling"), normalize=wanted.get("normalize"), max_length=wanted.get("max_length"),
            device=self._device,
        )  # fmt: skip
        differing = [name for name, value in found.fingerprint.items() if wanted.get(name) != value]
        if differing:
            raise BertworksError(
                f"this index was made by another model than {self._model or made_by}: {differing[0]} "
                "is not the same, and vectors of two models cannot be compared",
                where=str(self.folder),
                hint=f"give the model that made it, {made_by}; or make the index again",
            )
        return found

    def append(
        self,
        texts: Sequence[str],
        ids: Sequence[str] | None,
        fields: Sequence[Mapping[str, Any]] | None,
        sources: Mapping[str, tuple[int, bool]] | None = None,
    ) -> int:
        """`add` without its checks, within `stored.changing`. Of documents with one id the last one counts. sources:
        see `Stored.add`."""
        first = self.manifest.next_row
        names = [str(first + n) for n in range(len(texts))] if ids is None else list(map(str, ids))
        last = {name: place for place, name in enumerate(names)}
        kept = sorted(last.values())
        embedder = self.embedder
        if self._made_for != self.manifest.fingerprint:
            raise BertworksError(
                "another process has made this index anew, for another model", where=str(self.folder),
                hint="open it again",
            )  # fmt: skip
        prompt = embedder.settings.prompt("document", "passage", "corpus")
        vectors = normalized(embedder.embed([texts[place] for place in kept], prompt=prompt))
        rows: list[dict[str, Any]] = [
            {"id": names[place], "text": texts[place], "fields": dict(fields[place]) if fields else {}}
            for place in kept
        ]
        replaced = self.stored.add(rows, vectors, first + len(texts), sources)
        return replaced + len(texts) - len(kept)

    def _dense(self, queries: Sequence[str], candidates: int | None) -> Scores:
        """Cosines [queries, documents]."""
        asked = normalized(self.embedder.embed(queries, prompt=self.embedder.settings.prompt("query")))
        edges, segments = self.stored.edges, self.stored.segments.values()
        scores = np.full((len(queries), edges[-1]), -np.inf, np.float32)
        covered = 0 if candidates is None else edges[len(self.manifest.neighbours)]
        if candidates is not None:
            deleted = sum(int((~segment.alive).sum()) for segment in segments)
            cosines, numbers = self.stored.graph(asked, min(covered, candidates + deleted))
            for row, values, places in zip(scores, cosines, numbers, strict=True):
                row[places[places >= 0]] = values[places >= 0]
        for segment, (start, end) in zip(segments, pairwise(edges), strict=True):
            if start >= covered:  # numpy's threads would wait for more to do, on the cores that the next query needs
                scores[:, start:end] = (torch.from_numpy(asked) @ torch.from_numpy(segment.vectors).T).numpy()
            if segment.deleted:
                scores[:, start:end][:, ~segment.alive] = -np.inf
        return scores


def _refuse_full(folder: Path) -> Manifest | None:
    """Raises UsageError where something is in a folder that is to become an index. What an index there, in which
    nothing is, says of itself."""
    there = [path.name for path in folder.iterdir() if path.name[0] != "."] if folder.is_dir() else []
    # What was killed while the first documents came leaves a part of a segment that nobody names.
    strange = [name for name in there if name != MANIFEST and not (MANIFEST in there and name.startswith("segment-"))]
    if MANIFEST in there and not strange and not (found := read_manifest(folder)).segments:
        return found
    if there:
        what = "there is an index already" if MANIFEST in there else f"the folder is not empty: {strange[0]}"
        raise UsageError(what, where=str(folder), hint="name another folder")
    return None


_ID_NAMES = (*ID_NAMES, "_id", "docno", "doc_id")


def index_file(
    documents: str | Path,
    folder: str | Path,
    *,
    model: str | Path | None = None,
    text: Sequence[str] = (),
    identity: str | None = None,
    pooling: Pooling | None = None,
    max_length: int | None = None,
    device: str = "auto",
    quoting: Quoting = "auto",
) -> Iterator[Event]:
    """The rows of a file as documents of an index, which is made if there is none. Stopped and called again it goes on
    where it was; a file that is in the index already is not read again.

    Args:
        documents: any file of rows, or of lines; "-" is standard input.
        model: None: that of the index; `minilm` for a new one.
        text: columns, joined by a space; (): guessed. The other columns are kept beside it.
        identity: the column with a name for each row; None: a column that is called so, or else numbers. A document
            takes the place of one with the same name.
        pooling, max_length: of a new index, see `Embedder`.

    Raises:
        BertworksError, UsageError: no such model or column; a row without name; an index of another model.
    """
    folder = Path(folder)
    reader = RowReader(documents, quoting=quoting)
    columns = text_columns(reader, text)
    named = _identity(reader, identity, columns)
    index = _opened(folder, model, pooling, max_length, device)
    yield from _how(index, columns, named)
    source, empty, replaced = _fingerprint(reader, columns, named), IssueCounter(), 0
    with index.stored.changing():
        done, whole = index.manifest.sources.get(source, (0, False))
        if whole:
            yield _done(index, f"{reader.name} is in the index already", replaced)
            return
        if done:
            yield Event("note", f"going on after {done:,} rows", {"resumed_row": done})
        rest = iter(reader)
        for row in islice(rest, done):  # counted as if nobody had stopped
            row_text(row, columns, empty)
        for rows in portions(rest):
            texts = [row_text(row, columns, empty) for row in rows]
            kept = [(row, one) for row, one in zip(rows, texts, strict=True) if one]
            done += len(rows)
            ids = None if named is None else [_name(row, named) for row, _ in kept]
            fields = [{k: v for k, v in row.values.items() if k not in (named, *columns)} for row, _ in kept]
            if kept:
                replaced += index.append([one for _, one in kept], ids, fields, {source: (done, False)})
            yield Event("stage", f"index: {done:,} rows", {"stage": "index", "what": "rows", "amount": done})
        index.stored.note_sources({source: (done, True)})
    yield from (Event("note", note) for note in reader.notes)
    if empty.count:
        yield Event("note", f"rows without text, which are left out: {empty}", {"empty": empty.count})
    yield _done(index, f"{done:,} rows of {reader.name}", replaced)


def _opened(
    folder: Path, model: str | Path | None, pooling: Pooling | None, max_length: int | None, device: str
) -> Index:
    """The index of a folder, which must be as it is wanted, or a new one."""
    there = read_manifest(folder) if (folder / MANIFEST).exists() else None
    if there is not None and there.segments:
        index = Index(folder, model=model, device=device)
        asked = {"pooling": pooling, "max_length": max_length}
        for name, value in asked.items():
            if value not in (None, given := there.fingerprint.get(name)):
                raise UsageError(f"the index has {name} {given}, not {value}", where=str(folder), hint="leave it out")
        _ = index.embedder  # whatever is against the model is said before anything is read
        return index
    if there is not None and model is None:  # it was emptied, or never filled, and stays what it is
        model, found = there.model, there.fingerprint
        pooling, max_length = pooling or found.get("pooling"), max_length or found.get("max_length")
    return Index.create(folder, model or "minilm", pooling=pooling, max_length=max_length, device=device)


def _how(index: Index, columns: Sequence[str], named: str | None) -> Iterator[Event]:
    """What is read, and how it is compared, if that may surprise."""
    numbered = "a number; a file that has changed is added whole once more"
    yield Event("note", f"text: {', '.join(columns)}; id: {named or numbered}")
    if (meant := index.embedder.settings.similarity) != "cosine":
        yield Event("note", f"the model's vectors are meant to be compared by {meant}; an index takes the cosine")


def _done(index: Index, what: str, replaced: int) -> Event:
    more = f"; {replaced:,} took the place of others with their id" if replaced else ""
    fields = {"index": str(index.folder), "documents": len(index), "replaced": replaced}
    return Event("done", f"{index.folder}: {what}{more}; {len(index):,} documents", fields)


def _identity(reader: RowReader, wanted: str | None, columns: Sequence[str]) -> str | None:
    if wanted is not None:
        return find_column(reader.columns, reader.name, wanted, "--id")
    there = {name.strip().lower(): name for name in reversed(reader.columns) if name not in columns}
    return next((there[name] for name in _ID_NAMES if name in there), None)


def _name(row: Row, column: str) -> str:
    name = label_text(row.values.get(column))
    if name is None:
        raise BertworksError(f"the row has no {column!r}", where=row.where, hint="write one, or name another with --id")
    return name


def _fingerprint(reader: RowReader, columns: Sequence[str], named: str | None) -> str:
    state = reader.path.stat()
    content: list[Any] = [str(reader.path.resolve()), state.st_size, state.st_mtime_ns, reader.quoting]
    return NAMED * (named is not None) + hashlib.sha256(json.dumps([*content, *columns, named]).encode()).hexdigest()
